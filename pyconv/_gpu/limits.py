"""What a launch can count, in 32 bits, and how work is cut by it; a ValueError in a user's words where it cannot be."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import gcd, prod
from operator import gt, mul
from typing import Any, NamedTuple

from pyconv._geometry import Geometry
from pyconv._gpu import plain, tiles
from pyconv._gpu.specialise import Source
from pyconv._gpu.tiles import Element
from pyconv._piece import Axes

MOST = 2**31 - 2**13  # what a launch can count of anything: 32 bits, with a tile to spare
# The arguments of kernels that count; so do all that are divided by.
COUNTS = ("count", "cells", "positions", "block_positions", "part_positions", "rounds", "rows", "channels", "chunks",
          "stages", "groups_padded")
GRID = 2**31 - 1, 2**16 - 1, 2**16 - 1  # blocks along its axes


def check_counts(kernel: Source, grid: tuple[int, int, int], values: dict[str, Any]) -> None:
    """ValueError unless the kernel can count what it is given in 32 bits, on a grid that the driver takes.

    No launch passes this by. What calls it has cut its work before, or raised in words that a user knows.
    """
    names = _counted(tuple(values))
    counts = [values[name] for name in names]
    if min(counts, default=0) < 0 or max(counts, default=0) > MOST or any(map(gt, grid, GRID)):
        raise ValueError("a launch must count fewer than 2**31 of anything; "
                         f"got {kernel.name} with {dict(zip(names, counts))}, {grid}")


@lru_cache(maxsize=256)
def _counted(names: tuple[str, ...]) -> tuple[str, ...]:
    """Which of a launch's arguments are counts."""
    return tuple(name for name in names if name in COUNTS or f"{name}_magic" in names)


def boxes(sizes: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(first, sizes) of parts of an array, each of no more elements than a launch can count."""
    length, *others = sizes
    if prod(others) > MOST:
        for first in range(length):
            yield from (((first, *rest), (1, *found)) for rest, found in boxes(others))
        return
    step = MOST // max(1, prod(others))
    for first in range(0, length, step):
        yield (first, *[0] * len(others)), (min(step, length - first), *others)


def most_planes(g: Geometry, *of_plane: int) -> int:
    """How many planes, which are channels of a sample, a launch can take that counts so many things in each.

    ValueError where it is none, or where kernels could not tell cells beyond the edge from those inside.
    """
    rank, found = g.rank, MOST // max(of_plane)
    if not found:
        cells, results = (g.in_channels, *g.input_size[-rank:]), (g.out_channels, *g.output_size[-rank:])
        raise ValueError(
            "a channel of a sample must have fewer than 2**31 cells, results and columns on a GPU; got shapes "
            f"{cells} and {results}")
    for n, y, k, s, d, pad in zip(
            g.input_size, g.output_size, g.kernel_size, g.stride, g.dilation, g.padding):
        reach = d * (k - 1)
        places = 0 if g.padding_mode == "zeros" else max(n, s * (y - 1) + reach + 1)  # that are told from one another
        if max(reach, abs(pad), places) >= -tiles.OUTSIDE or abs(pad) + s * (y - 1) + reach >= 2**31:
            raise ValueError(
                "stride, padding and dilation must keep all taps within 2**30 cells of the input on a GPU; got stride "
                f"{g.stride[-rank:]}, padding {g.padding[-rank:]} and dilation {g.dilation[-rank:]}")
    return found


def check_weight(g: Geometry, element: Element) -> None:
    """ValueError unless a launch can count the weight, packed for either role, and 32 bits hold a row's bytes."""
    taps, whole = prod(g.kernel_size), 16 // element.size
    outs, ins = (-(-channels // g.groups // whole) * whole for channels in (g.out_channels, g.in_channels))
    rows = max(g.out_channels * ins, g.in_channels * outs) * taps
    if max(rows, max(ins, outs) * taps * element.size) > MOST:
        shape = (g.out_channels, g.in_channels // g.groups, *g.kernel_size[-g.rank:])
        raise ValueError(
            "weight must have fewer than 2**31 elements, and 2**31 bytes for each channel, on a GPU; got shape "
            f"{shape}")


def distance(first: Sequence[int], steps: Sequence[int]) -> int:
    """How far an element lies from that of index 0."""
    return sum(map(mul, first, steps))


def nearest_last(
    sizes: Sequence[int], to: Sequence[int], read: Sequence[int], bias_stride: int,
) -> tuple[list[int], ...]:
    """Sizes, strides of results and of parts, and of the bias of axis 1, of five axes: but for the first in the order
    in which results lie, the nearest last, and those made one of which both are read through as one."""
    found: list[list[int]] = []
    axes = zip(sizes[1:], to[1:], read[1:], (bias_stride, 0, 0, 0))
    for n, *steps in sorted((axis for axis in axes if axis[0] != 1), key=lambda axis: -abs(axis[1])):
        if found and found[-1][1:] == [n * step for step in steps]:
            found[-1] = [found[-1][0] * n, *steps]
        else:
            found.append([n, *steps])
    found = [[sizes[0], to[0], read[0], 0], *[[1, 0, 0, 0]] * (4 - len(found)), *found]
    return tuple(map(list, zip(*found)))


def divided(**counts: int) -> dict[str, int]:
    """Each count, and the numbers by which `divide` divides by it."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        shift = 31 + max(count - 1, 0).bit_length()
        found |= {name: count, f"{name}_magic": -(-(1 << shift) // count), f"{name}_shift": shift}
    return found


def cells_of_chunks(cells: int, row: int) -> tuple[int, dict[str, int]]:
    """The blocks of a kernel that copies `row` chunks of each of so many cells, and what it is told; see packing.pack.
    """
    beside = 1 if row > 1 else 0
    across = -(-(cells << beside) // plain.THREADS)
    rounds = max(1, min(tiles.PACKED, row >> beside, across * (row >> beside) // tiles.PACKING_BLOCKS))
    return across * -(-row // (rounds << beside)), {
        "cells": cells, "row_chunks": row, "beside": beside, "rounds": rounds, **divided(across=across)}


def own_taps(axes: Axes, stride: Sequence[int] | None) -> dict[str, int]:
    """Along each axis how many taps a kernel tries for a result, and of how many; where a stride divides the cells of
    grad_input, which of them: `every` so many, from the cell times `inverse` on, modulo the stride."""
    found: dict[str, int] = {}
    for name, axis, step in zip("zyx", axes, stride or (1, 1, 1)):
        every, inverse = 1, 0
        if gcd(step, axis.tap_step) == 1 and step * step <= MOST:
            every, inverse = step, pow(-axis.tap_step, -1, step)
        found |= {f"k{name}": -(-axis.taps // every), f"taps_{name}": axis.taps, f"every_{name}": every,
                  f"inverse_{name}": inverse}
    return found


class Parts(NamedTuple):
    """How the positions of a batch are cut: blocks of `samples` samples into `cuts` parts of `positions` each."""

    samples: int
    cuts: int
    positions: int

    def count(self, samples: int) -> int:
        return -(-samples // self.samples) * self.cuts

    def arguments(self, samples: int, of_sample: int) -> dict[str, int]:
        return {"positions": samples * of_sample, "block_positions": self.samples * of_sample,
                "part_positions": self.positions, **divided(cuts=self.cuts)}


def cut(batch: int, of_sample: int, wanted: int, multiple: int, most: int) -> Parts:
    """About `wanted` parts: whole samples to a part, or several parts to a sample, each a multiple of positions.

    No part has more samples than the `most` that a launch can take.
    """
    if wanted <= batch:
        samples = min(-(-batch // wanted), most)
        return Parts(samples, 1, -(-samples * of_sample // multiple) * multiple)
    cuts = min(wanted // batch, -(-of_sample // multiple))
    positions = -(-of_sample // (cuts * multiple)) * multiple
    return Parts(1, -(-of_sample // positions), positions)


def runs_of_rows(groups: int, rows: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """(first group, groups, first row, rows) of runs of at most `most` rows: of whole groups, or of one group's.

    So, too, of planes, whose groups are samples.
    """
    step, at_once = max(1, most // rows), min(rows, most)
    for group in range(0, groups, step):
        for row in range(0, rows, at_once):
            yield group, min(step, groups - group), row, min(at_once, rows - row)


def chunks_of_samples(batch: int, most: int, of_block: int = 1) -> Iterator[tuple[int, int]]:
    """(first, count) of runs of samples, whole blocks, at most `most` samples or one block in each."""
    step = max(of_block, most // of_block * of_block)
    for first in range(0, batch, step):
        yield first, min(step, batch - first)
