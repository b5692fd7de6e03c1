"""A piece: a box of positions times a box of taps that a kernel can run without a special case.

A position q of a piece reads, under tap t and along each axis, source cell ``step * q + offset + tap_step * t``, or
nothing when there is no such cell. Standard library only.
"""

from math import gcd
from typing import NamedTuple

from pyconv._edges import NO_FOLDS, Folds


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

    @property
    def beyond(self) -> int:
        """How many positions a shared stream has more than a tap reads: those that only its other taps reach."""
        return abs(self.unit) * (-(-self.taps // self.streams) - 1) if self.taps else 0

    def reached(self, tap: int) -> tuple[int, int]:
        """The first of the positions that have a cell under a tap, and the one behind the last."""
        offset = self.offset + self.tap_step * tap
        low = max(0, -(offset // self.step))
        return low, max(low, min(self.positions, (self.size - 1 - offset) // self.step + 1))

    def part(self, low: int, high: int) -> "Axis":
        """This axis with the positions from one to before another alone."""
        return self._replace(
            positions=high - low, offset=self.offset + self.step * low, start=self.start + self.lattice * low)

    def clipped(self, tap: int) -> "Axis":
        """This axis for one tap alone, restricted to the positions that have a cell under it."""
        return self.part(*self.reached(tap)).alone(tap)

    def alone(self, tap: int) -> "Axis":
        """This axis for one tap alone, whose cells beyond the edge are there."""
        return self._replace(offset=self.offset + self.tap_step * tap, taps=1, first=self.first + self.every * tap)

    def met(self) -> "Axis":
        """This axis with none but the taps that have a cell at some position."""
        taps = [tap for tap, (low, high) in enumerate(map(self.reached, range(self.taps))) if low < high]
        if not taps:
            return self._replace(taps=0)
        return self._replace(offset=self.offset + self.tap_step * taps[0], taps=taps[-1] - taps[0] + 1,
                             first=self.first + self.every * taps[0])

    def within(self, most: int) -> "list[Axis]":
        """This axis with its taps cut into boxes of at most `most`."""
        return [
            self._replace(offset=self.offset + self.tap_step * tap, taps=min(most, self.taps - tap),
                          first=self.first + self.every * tap)
            for tap in range(0, max(1, self.taps), most)]


ONE = Axis(1, 1, 1, 0, 0, 1)  # a single cell
Axes = tuple[Axis, ...]
Triple = tuple[int, ...]


def has_padding(axes: Axes) -> bool:
    """Whether some position of some tap lacks its cell."""
    return any(high - low < axis.positions for axis in axes if axis.taps
               for low, high in map(axis.reached, {0, axis.taps - 1}))


class Strides(NamedTuple):
    """Where an operand keeps its elements, in elements."""

    base: int
    batch: int
    channel: int
    axes: Triple
    group: int = 0


class Piece(NamedTuple):
    """Three axes, the operands' strides, and what becomes of the target: pieces of one wave write different cells."""

    axes: Axes
    batch: int
    rows: int  # of a group: target's channels, or their taps
    channels: int  # of source in a group
    source: Strides
    target: Strides
    weight: Strides  # batch: the stride of target's channel
    wave: int
    accumulate: bool
    row_taps: tuple[tuple[int, int], ...] = ((1, 0), (1, 0), (1, 0))  # along each axis: how many, stride in target
    rows_by_tap: bool = False  # rows are all channels of a tap and then those of the next, and lie side by side
    turned: bool = False  # the channels of a cell lie side by side, in source and target
    tile: Triple = (1, 1, 1)  # with Winograd's algorithm, outputs of a tile along each axis; less than 0: of a lone one
    swapped: bool = False  # rows are samples: how many there are must not decide the order of a sum
    exchanged: bool = False  # grad_weight's operands have changed places
    patched: tuple[bool, bool, bool] = (False, False, False)  # source, target, weight: see `copied`
    parts: int = 1  # real numbers of an element: rows and channels count them
    edge: str = "zeros"  # what source has beyond its edge
    folded: str = "zeros"  # what stand for positions beyond target's edge,
    folds: Folds = NO_FOLDS  # of which there are so many before and behind each axis
    several: int = 0  # channels of source in a group as stored, where several of them are one cell
    woven: int = 0  # channels of each of the groups that one vector holds
    weight_woven: int = 0  # from one of these to the next in weight

    def part(self, a: int, low: int, high: int) -> "Piece":
        """The same, without folds, with the positions along an axis from one to before another alone."""
        axes = (*self.axes[:a], self.axes[a].part(low, high), *self.axes[a + 1:])
        return self._replace(
            axes=axes, target=self.target._replace(base=self.target.base + low * self.target.axes[a]))

    @property
    def at_cells(self) -> "Piece":
        """The same at target's own cells alone, to which what is beyond its edges is added as it is summed."""
        axes = tuple(axis._replace(positions=axis.positions - sum(fold), offset=axis.offset + axis.step * fold[0])
                     for axis, fold in zip(self.axes, self.folds))
        return self._replace(axes=axes, folds=NO_FOLDS)

    @property
    def lattices(self) -> int:
        """Of so many lattices along y a block of tiles is of one, as the patches are that operands have."""
        copied = self.source_last or self.target_last or any(self.patched[:2])
        return self.axes[1].tap_step if self.tile[1] > 1 and copied else 1

    @property
    def source_last(self) -> bool:
        """Whether the channels of source lie last in memory, or in the copies of its blocks for ways that want them so:
        rows of its cells do not."""
        return self.source.axes[2] > 1 and not self.turned and (not self.patched[0] or self._keeps_last)

    @property
    def target_last(self) -> bool:
        return self.target.channel == 1 and self.target.axes[2] > 1 and not self.turned and (
            not self.patched[1] or self._keeps_last)

    @property
    def _keeps_last(self) -> bool:
        """Whether copies of blocks may be of cells, whose channels lie last there too."""
        return (self.edge, self.folded, self.parts) == ("zeros", "zeros", 1) and not self.several and not self.swapped
