"""Results that lie between one another where they are wanted: made channels last, then copied to their places.

Of a stride of 2 a phase writes every other cell of a line. Where the neighbours of a cell in memory are other cells,
and not its channels, each phase would store parts of sectors, which memory reads and stores once more for the next.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from pyconv._gpu import limits, program, tiles
from pyconv._gpu.launches import Program
from pyconv._gpu.layouts import strides
from pyconv._gpu.limits import divided
from pyconv._gpu.program import Target
from pyconv._gpu.tiles import Element
from pyconv._piece import Axes


class Spread(NamedTuple):
    """Where results are made, the pieces that make them there, and which cells of the whole result these are: all, or
    those of a lattice where there is one phase alone."""

    target: Target
    pieces: list[Axes]
    lattice: Axes | None


def of(made: Program, pieces: Sequence[Axes], target: Target, sizes: Sequence[int], element: Element) -> Spread | None:
    """That of results of (samples, channels, z, y, x) from these pieces, all that have taps; None where they are
    written where they belong."""
    samples, channels, *_ = sizes
    size = element.result_size
    if target.last or target.accumulate or all(axes[2].lattice == 1 for axes in pieces) or (
            channels * size % 16 or prod(sizes) * size < tiles.LEAST_SPREAD):
        return None
    found, lattice = list(pieces), None
    if len(found) == 1:
        [lattice] = found
        sizes = (samples, channels, *(axis.positions for axis in lattice))
        found = [tuple(axis._replace(start=0, lattice=1) for axis in lattice)]
    room = program.places(made, sizes, True, size)
    return Spread(room._replace(bias=target.bias, bias_stride=target.bias_stride), found, lattice)


def copy(made: Program, spread: Spread, target: Target, sizes: Sequence[int], element: Element) -> None:
    """The results to their places, and the bias to those that no piece makes."""
    samples, channels, *size = sizes
    kept = tiles.element(element.result or element.name)
    blocks, counts = limits.cells_of_chunks(samples * prod(size), channels * kept.size // 16)
    places = [(0, 1, n) for n in size] if spread.lattice is None else [
        (axis.start, axis.lattice, axis.positions) for axis in spread.lattice]
    of_axis: dict[str, int] = {}
    for name, n, (start, lattice, positions) in zip("zyx", size, places):
        of_axis |= {**divided(**{f"p{name}": n, f"lattice_{name}": lattice}), f"start_{name}": start,
                    f"size_{name}": positions}
    made.add(
        tiles.simple("unpack", kept, divided=spread.lattice is not None), (blocks,), packed=spread.target.place,
        target=target.place, bias=target.bias, bias_row=target.bias_stride, **counts, **of_axis,
        **strides(target=target.layout))
