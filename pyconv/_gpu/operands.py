"""Operands as the tiles read them: in place if they lie so in memory, else packed. Sizes and strides are in bytes."""

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from pyconv._gpu import limits, tiles
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.layouts import (
    Layout,
    axes_arguments,
    blocks_for,
    edge_arguments,
    first_tap,
    mode_of,
    strides,
    tap_strides,
)
from pyconv._gpu.limits import divided
from pyconv._gpu.padding import Edge
from pyconv._gpu.tiles import Element
from pyconv._piece import Axes, Axis


class Operand(NamedTuple):
    """A source or grad_output: where it is, and how; `size` its cells along z, y, x, `channels` those of a group.

    With an edge, `size` are the places of the padded source that tiles read.
    """

    place: Ref
    layout: Layout
    size: tuple[int, int, int]
    channels: int
    groups: int
    edge: Edge | None = None


class Packed(NamedTuple):
    """An operand with its channels last and in whole chunks: strides, and how many chunks a group has."""

    place: Ref
    outer: int
    z: int
    y: int
    x: int
    group: int
    chunks: int


class Flags(NamedTuple):
    """Places that become 1 where an operand is spoiled: of all, of any sample, of the first sample, from one to the
    next. There are none where they are 0, and the three are one where samples have none of their own."""

    whole: Ref | int = 0
    some: Ref | int = 0
    own: Ref | int = 0
    step: int = 0
    samples: int = 0

    @classmethod
    def of(cls, program: Program, samples: int = 0) -> "Flags":
        """New ones, with one for each of so many samples."""
        place = program.reserve(4 * (samples + 2))
        return cls(place, place.at(4), place.at(8), 4, samples) if samples else cls(place, place, place)

    @property
    def places(self) -> int:
        """How many there are, one behind the other."""
        return self.samples + 2 if self.samples else 1

    def of_samples(self, first: int = 0) -> dict[str, Any]:
        """What kernels are given that look at samples from that one on."""
        return {"own": self.own.at(first * self.step) if isinstance(self.own, Ref) else 0, "own_n": self.step}


def chunks_of(channels: int, element: Element) -> int:
    return -(-channels * element.size // 16)


def packed_bytes(operand: Operand, samples: int, element: Element) -> int:
    return samples * prod(operand.size) * operand.groups * chunks_of(operand.channels, element) * 16


def in_place(operand: Operand, element: Element, dense: int = 0) -> bool:
    """Whether the operand lies as the tiles read it; `dense`: of so many samples, all cells one behind the other."""
    layout, size = operand.layout, operand.size
    steps = (layout.outer, layout.z, layout.y, layout.x)
    if operand.edge is not None or operand.place.offset % 16:
        return False
    if not layout.aligned or layout.channel != element.size or operand.channels * element.size % 16:
        return False
    if any(step % 16 or step < 0 for step in steps):
        return False
    return not dense or are_dense((dense, *size), (*steps[:3], cell_bytes(operand, element)))


def are_dense(sizes: Sequence[int], steps: Sequence[int]) -> bool:
    """Whether elements lie one behind the other, each as far from the next as the last axis says."""
    return all(size == 1 or step == prod(sizes[place + 1:]) * steps[-1]
               for place, (size, step) in enumerate(zip(sizes, steps)))


def cell_bytes(operand: Operand, element: Element) -> int:
    """From a cell to the next: of a single cell the layout does not tell."""
    return operand.layout.x if operand.size[2] > 1 else operand.channels * operand.groups * element.size


def pack(
    program: Program, operand: Operand, samples: int, element: Element, flags: Flags, space: Ref | None,
    clean: Ref | int = 0, rounded: bool = False,
) -> Packed:
    """The operand itself where there is no `space`, else a copy of it there, by which the flags are set and another
    cleared."""
    layout, chunks = operand.layout, chunks_of(operand.channels, element)
    if space is None:
        group = operand.channels * element.size
        x = cell_bytes(operand, element)
        return Packed(operand.place, layout.outer, layout.z, layout.y, x, group, chunks)
    x = operand.groups * chunks * 16
    y, z = x * operand.size[2], x * operand.size[2] * operand.size[1]
    cells, edge = samples * prod(operand.size), operand.edge
    places: Axes = tuple(Axis(n, n, 1, 0, 0, 1) for n in operand.size)
    if edge is not None:
        places = edge.placed(tuple(Axis(p, n, 1, -low, 0, 1) for p, n, low in zip(operand.size, edge.size, edge.low)))
    blocks, counts = limits.cells_of_chunks(cells, operand.groups * chunks)
    program.add(
        tiles.simple("pack", element, mode=mode_of(edge), rounded=rounded,
                     whole=rounded and in_place(operand, element)), (blocks,), source=operand.place,
        packed=space, flag=flags.some, **flags.of_samples(), clean=clean, **counts, channels=operand.channels,
        **divided(chunks=chunks), **axes_arguments(places), **edge_arguments(edge, element, stored=True),
        **strides(source=layout))
    return Packed(space, z * operand.size[0], z, y, x, chunks * 16, chunks)


class Weight(NamedTuple):
    """A weight in the roles that a map gives it: rows of the result, channels of the source, per group."""

    place: Ref
    layout: Layout
    row: int  # strides
    channel: int
    group: int
    rows: int
    channels: int
    groups: int
    kernel: tuple[int, int, int]


def weight_bytes(weight: Weight, element: Element) -> int:
    return element.parts * weight.groups * weight.rows * prod(weight.kernel) * chunks_of(weight.channels, element) * 16


def pack_weight(
    program: Program, weight: Weight, element: Element, flag: Ref | int, space: Ref, rounded: bool = False
) -> None:
    """The weight as (group, row, tap, channel) in whole chunks."""
    chunks, rows, taps = chunks_of(weight.channels, element), weight.groups * weight.rows, prod(weight.kernel)
    rows_inside = abs(weight.row) < abs(weight.channel)
    program.add(
        tiles.simple("pack_weight", element, rounded=rounded), blocks_for(rows * taps * chunks), weight=weight.place,
        packed=space, flag=flag, count=rows * taps * chunks, channels=weight.channels, chunks=chunks,
        rows_inside=int(rows_inside),
        **divided(inner=rows if rows_inside else chunks, taps=taps, rows=weight.rows,
                  **dict(zip(("ky", "kx"), weight.kernel[1:]))),
        weight_group=weight.group, weight_row=weight.row, weight_channel=weight.channel,
        **{f"weight_{name}": stride for name, stride in weight.layout.inner.items()})


def of_piece(weight: Weight, axes: Axes) -> tuple[Weight, Axes]:
    """The taps of a piece as a weight of their own, and the piece that takes them all in order."""
    z, y, x = axes
    strides = tap_strides(weight.layout[2:5], axes)
    own = weight._replace(
        place=weight.place.at(first_tap(weight.layout[2:5], axes)), kernel=(z.taps, y.taps, x.taps),
        layout=weight.layout._replace(z=strides[0], y=strides[1], x=strides[2]))
    return own, tuple(axis._replace(first=0, every=1) for axis in axes)


def clear(program: Program, flag: Ref | int, element: Element, count: int = 1) -> None:
    """So many flags say: finite."""
    if isinstance(flag, Ref):
        program.add(tiles.simple("clear_flag", element), blocks_for(count), flag=flag, count=count)


def is_packed(weight: Weight, element: Element) -> bool:
    """Whether the weight lies in memory as pack_weight would write it."""
    layout, channel_bytes = weight.layout, weight.channels * element.size
    is_whole = layout.aligned and weight.place.offset % 16 == channel_bytes % 16 == 0 and element.parts == 1
    return is_whole and weight.channel == element.size and are_dense(
        (weight.groups, weight.rows, *weight.kernel, 1), (weight.group, weight.row, *layout[2:5], channel_bytes))
