"""How operands lie in memory, and what kernels are told of that and of a piece's axes. Strides here are in bytes."""

from collections.abc import Sequence
from typing import NamedTuple

from pyconv._gpu import padding, plain, tiles
from pyconv._gpu.limits import divided
from pyconv._gpu.padding import Edge
from pyconv._gpu.tiles import Element
from pyconv._piece import Axes


class Layout(NamedTuple):
    """The strides of an operand: (batch, channel, z, y, x), of a weight (out channel, channel, z, y, x)."""

    outer: int
    channel: int
    z: int
    y: int
    x: int
    aligned: bool = False  # its first element lies at a multiple of 16
    sample: int = 0  # from a sample's weight to the next one's

    @property
    def inner(self) -> dict[str, int]:
        return {"z": self.z, "y": self.y, "x": self.x}


def axes_arguments(axes: Axes) -> dict[str, int]:
    """What a kernel must know of the positions and taps of a piece."""
    found = divided(**{f"p{name}": axis.positions for name, axis in zip("zyx", axes)})
    for name, axis in zip("zyx", axes):
        found |= {f"size_{name}": axis.size, f"step_{name}": axis.step, f"offset_{name}": axis.offset,
                  f"tap_{name}": axis.tap_step}
    return found


def taps_arguments(axes: Axes) -> dict[str, int]:
    return divided(**{f"k{name}": axis.taps for name, axis in zip("zyx", axes)})


def edge_arguments(
    edge: Edge | None, element: Element, periods: Sequence[int] = (1, 1, 1), stored: bool = False
) -> dict[str, int]:
    """What follows from a padding mode; without one, the periods among which cells lie. See padding.bits."""
    if edge is not None:
        periods = edge.periods()
    parts = (0, 0) if edge is None else padding.bits(edge.value, element.name, stored)
    return divided(**{f"period_{name}": period for name, period in zip("zyx", periods)}) | numbered("part", parts)


def mode_of(edge: Edge | None) -> str:
    return "zeros" if edge is None else edge.mode


def five(sizes: Sequence[int]) -> dict[str, int]:
    """The sizes of the last four of five axes, the last first."""
    found: dict[str, int] = {}
    for place, size in enumerate(sizes[:0:-1]):
        numbers = divided(n=max(size, 1))
        found |= {f"n{place}": size, f"m{place}": numbers["n_magic"], f"s{place}": numbers["n_shift"]}
    return found


def strides(**layouts: Layout) -> dict[str, int]:
    """source_n, source_channel, source_z, ... of each layout."""
    return {f"{name}_{axis}": stride for name, layout in layouts.items()
            for axis, stride in zip(("n", "channel", "z", "y", "x"), layout)}


def numbered(name: str, values: Sequence[int]) -> dict[str, int]:
    return {f"{name}_{place}": value for place, value in enumerate(values)}


def blocks_for(count: int) -> tuple[int]:
    """The grid of a kernel with a thread for each element."""
    return (-(-count // plain.THREADS),)


def in_turns(blocks: int, waits: bool, beside: int = 1) -> tuple[int, dict[str, int]]:
    """How many blocks are launched where there is work for so many, `beside` times over; and what the kernel is told.

    A kernel that waits for a flag, mostly in vain, has few, which take turns.
    """
    turns = max(1, min(blocks, -(-blocks * beside // tiles.WAITING_BLOCKS))) if waits else 1
    launched = -(-blocks // turns)
    return launched, {"turns": turns, "abreast": launched}


def tap_strides(inner: Sequence[int], axes: Axes) -> list[int]:
    return [stride * axis.every for stride, axis in zip(inner, axes)]


def first_tap(inner: Sequence[int], axes: Axes) -> int:
    return sum(stride * axis.first for stride, axis in zip(inner, axes))
