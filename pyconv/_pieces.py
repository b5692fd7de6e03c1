"""Geometry to pieces: a map as boxes of positions times boxes of taps that a kernel can run without a special case.

A position q of a piece reads, under tap t and along each axis, source cell ``step * q + offset + tap_step * t``, or
nothing when there is no such cell. forward is one piece (step = stride). grad_input is one piece for each phase of the
stride: cells that agree modulo the stride read the same taps, and grad_output without gaps (step = 1), so nothing is
scattered. grad_weight reads as forward does. Standard library only.
"""

from collections.abc import Iterator
from itertools import product
from math import gcd, prod
from typing import NamedTuple

from pyconv._geometry import Geometry

TAPS = 512  # most taps of a piece: keeps a thread's scratch under its bound whatever the kernel size


class Axis(NamedTuple):
    """One axis of a piece: `start`, `lattice` place its positions in target, `first`, `every` its taps in weight."""

    positions: int
    size: int
    step: int
    offset: int
    tap_step: int
    taps: int
    start: int = 0
    lattice: int = 1
    first: int = 0
    every: int = 1

    @property
    def streams(self) -> int:
        """How many streams serve all taps: offsets that agree modulo `step` share one (see kernels.h)."""
        return max(1, min(self.taps, self.step // gcd(self.step, self.tap_step)))

    @property
    def unit(self) -> int:
        return self.tap_step * self.streams // self.step if self.streams < self.taps else 0

    def clipped(self, tap: int) -> "Axis":
        """This axis for one tap alone, restricted to the positions that have a cell under it."""
        offset = self.offset + self.tap_step * tap
        low = max(0, -(offset // self.step))
        high = max(low, min(self.positions, (self.size - 1 - offset) // self.step + 1))
        return self._replace(
            positions=high - low, offset=offset + self.step * low, taps=1, start=self.start + self.lattice * low,
            first=self.first + self.every * tap)

    def within(self, most: int) -> "list[Axis]":
        """This axis with its taps cut into boxes of at most `most`."""
        return [
            self._replace(offset=self.offset + self.tap_step * tap, taps=min(most, self.taps - tap),
                          first=self.first + self.every * tap)
            for tap in range(0, max(1, self.taps), most)]


Axes = tuple[Axis, ...]
Triple = tuple[int, ...]


class Strides(NamedTuple):
    """Where an operand keeps its elements, in elements."""

    base: int
    batch: int
    channel: int
    axes: Triple


class Piece(NamedTuple):
    """Three axes, the operands' strides, and what becomes of the target: pieces of one wave write different cells."""

    axes: Axes
    channels: int
    source: Strides
    target: Strides
    weight: Strides  # batch: the stride of target's channel
    wave: int
    accumulate: bool


def _dense(channels: int, size: Triple) -> Strides:
    inner = (size[1] * size[2], size[2], 1)
    return Strides(0, channels * prod(size), prod(size), inner)


def _forward_axes(g: Geometry, a: int) -> list[Axis]:
    return [Axis(g.output_size[a], g.input_size[a], g.stride[a], -g.padding[a], g.dilation[a], g.kernel_size[a])]


def _phase(g: Geometry, a: int, phase: int) -> Axis:
    """Cells stride * q + phase of the input: which taps reach them, and from where in grad_output."""
    stride, dilation, reach = g.stride[a], g.dilation[a], phase + g.padding[a]
    every = stride // gcd(stride, dilation)
    first = next((k for k in range(min(every, g.kernel_size[a])) if (reach - dilation * k) % stride == 0), None)
    taps = 0 if first is None else -(-(g.kernel_size[a] - first) // every)
    return Axis(
        -(-(g.input_size[a] - phase) // stride), g.output_size[a], 1,
        0 if first is None else (reach - dilation * first) // stride, -dilation * every // stride, taps,
        start=phase, lattice=stride, first=first or 0, every=every)


def _grad_input_axes(g: Geometry, a: int) -> list[Axis]:
    return [_phase(g, a, phase) for phase in range(min(g.stride[a], g.input_size[a]))]


def _place(
    axes: Axes, channels: int, source: Strides, target: Strides, weight: Strides, wave: int, accumulate: bool
) -> Piece:
    return Piece(
        axes, channels, source,
        target._replace(base=sum(x.start * s for x, s in zip(axes, target.axes)),
                        axes=tuple(x.lattice * s for x, s in zip(axes, target.axes))),
        weight._replace(base=weight.base + sum(x.first * s for x, s in zip(axes, weight.axes)),
                        axes=tuple(x.every * s for x, s in zip(axes, weight.axes))),
        wave, accumulate)


def _boxes(axes: Axes) -> Iterator[Axes]:
    """The axes with their taps cut so that a piece has at most TAPS of them, the last axes kept whole the longest."""
    most = TAPS
    cut = []
    for axis in reversed(axes):
        cut.append(axis.within(max(1, min(most, axis.taps))))
        most //= max(1, axis.taps)
    yield from product(*reversed(cut))


def _operands(map: str, g: Geometry) -> tuple[int, Strides, Strides, Strides]:
    channels, kernel = g.in_channels // g.groups, prod(g.kernel_size)
    inner = (g.kernel_size[1] * g.kernel_size[2], g.kernel_size[2], 1)
    x, y = _dense(g.in_channels, g.input_size), _dense(g.out_channels, g.output_size)
    if map == "grad_input":
        return g.out_channels // g.groups, y, x, Strides(0, kernel, channels * kernel, inner)
    return channels, x, y, Strides(0, channels * kernel, kernel, inner)


def pieces(map: str, g: Geometry) -> list[Piece]:
    """The pieces of a map, in waves: those of one wave can run at the same time, wave after wave.

    A piece without taps clears its positions: it leads where a phase of grad_input meets no tap.
    """
    channels, source, target, weight = _operands(map, g)
    options = _grad_input_axes if map == "grad_input" else _forward_axes
    found, fill = [], False
    for axes in product(*(options(g, a) for a in range(3))):
        if not all(axis.taps for axis in axes):
            fill = True
            continue
        for wave, box in enumerate(_boxes(axes)):
            accumulate = wave > 0 and map != "grad_weight"
            found.append(_place(box, channels, source, target, weight, wave + 1, accumulate))
    return ([_fill(g, map)] if fill else []) + found


def _fill(g: Geometry, map: str) -> Piece:
    _, source, target, weight = _operands(map, g)
    size = g.input_size if map == "grad_input" else g.output_size
    axes = tuple(Axis(n, 0, 1, 0, 0, 0) for n in size)
    return _place(axes, 0, source, target, weight, 0, False)


def _taps(map: str, g: Geometry) -> list[list[Axis]]:
    options = _grad_input_axes if map == "grad_input" else _forward_axes
    return [[axis.clipped(tap) for axis in options(g, a) for tap in range(axis.taps)] for a in range(3)]


def exact_pieces(map: str, g: Geometry) -> list[Piece]:
    """The same map with no padded product at all: tap by tap, over the positions that have a cell.

    For operands with NaN or infinities, where a padded zero would multiply them.
    """
    channels, source, target, weight = _operands(map, g)
    summed = map != "grad_weight"
    return ([_fill(g, map)] if summed else []) + [
        _place(axes, channels, source, target, weight, wave + 1, summed)
        for wave, axes in enumerate(product(*_taps(map, g)))
        if not summed or all(axis.positions for axis in axes)]


def touches_padding(map: str, g: Geometry) -> bool:
    """Whether any position of any tap lacks its cell."""
    options = _grad_input_axes if map == "grad_input" else _forward_axes
    return any(axis.clipped(tap).positions < axis.positions for a in range(3) for axis in options(g, a)
               for tap in {0, axis.taps - 1} if axis.taps)


def column_pieces(g: Geometry) -> list[Piece]:
    """grad_weight from columns (batch, in_channels * taps, positions): a 1 x 1 convolution of them."""
    channels, _, target, _ = _operands("grad_weight", g)
    taps, positions = prod(g.kernel_size), prod(g.output_size)
    rows = g.in_channels * taps
    source = Strides(0, rows * positions, positions, target.axes)
    axes = tuple(Axis(n, n, 1, 0, 0, 1) for n in g.output_size)
    return [_place(axes, channels * taps, source, target, Strides(0, channels * taps, 1, (0, 0, 0)), 1, False)]


def exact_column_pieces(g: Geometry) -> list[Piece]:
    """As `exact_pieces`, from columns: a tap's padded positions are left out."""
    channels, _, target, weight = _operands("grad_weight", g)
    taps, positions = prod(g.kernel_size), prod(g.output_size)
    found = []
    for wave, axes in enumerate(product(*_taps("grad_weight", g))):
        source = Strides(wave * positions, g.in_channels * taps * positions, taps * positions, target.axes)
        read = tuple(a._replace(size=n, step=1, offset=a.start, tap_step=0) for a, n in zip(axes, g.output_size))
        found.append(_place(read, channels, source, target, weight, wave + 1, False))
    return found
