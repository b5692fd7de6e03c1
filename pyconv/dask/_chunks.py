"""Arrays in chunks: what a block of a result reads of the chunks of its source, axis by axis.

An axis is in chunks of given lengths; its bounds are where they begin and where the last ends. What a block of forward
or grad_weight reads of x, what a block of grad_input reads of y, and where the padded cells that stand for a cell of x
lie are all lists of pieces, for each axis by itself; a block of several axes reads their product.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise, product
from math import prod
from operator import itemgetter
from typing import Any, NamedTuple

from pyconv._edges import Stretch, beyond
from pyconv._integers import Shape
from pyconv._padding import REPEATING

Part = tuple[int, int | None, int]
Chunks = tuple[tuple[int, ...], ...]


class Piece(NamedTuple):
    """Neighbouring cells of one axis: those of `part` of a chunk, a slice, and [first, stop) of a block, their place.

    A part of one cell fills all of a longer place; the cells of a longer part are summed for a place of one.
    """

    chunk: int
    part: Part
    place: tuple[int, int]


class Reading(NamedTuple):
    """What a block reads of one axis: pieces, how many cells they make up, and how many of padding lie around them."""

    pieces: list[Piece]
    length: int
    pads: tuple[int, int] = (0, 0)


class Pair(NamedTuple):
    """Neighbouring cells of one axis, and the positions of a chunk of y that meet them.

    `cells` is a part of a chunk of x, which is PADDED for padding, and `positions` one of the chunk of y. There are
    `length` cells, more than in that part where one is repeated, and the positions meet `pads` others around them.
    """

    chunk: int
    cells: Part
    positions: tuple[int, int, int]
    length: int
    pads: tuple[int, int]


class Meeting(NamedTuple):
    """The same of all axes: parts of two chunks, the shape of the cells, and their padding. Padding is of chunk ()."""

    chunk: Shape
    cells: tuple[Part, ...]
    positions: tuple[tuple[int, int, int], ...]
    shape: Shape
    pads: tuple[tuple[int, int], ...]

    @property
    def most_products(self) -> int:
        """As many as if every position met every cell."""
        return prod(self.shape) * prod(stop - first for first, stop, _ in self.positions)


PADDED, ONE = -1, (0, 1, 1)


# --- chunks of one axis ---


def bounds_of(chunks: Sequence[int]) -> list[int]:
    """Where the chunks begin, and where the last ends."""
    return list(accumulate(chunks, initial=0))


def split(sizes: Sequence[int], total: int) -> Shape:
    """Chunks of `total` cells: as the sizes say as far as they go, then of the largest of them; none is empty."""
    ends, most = [min(end, total) for end in bounds_of(sizes)], max(*sizes, 1)
    ends += [*range(ends[-1] + most, total, most), total]
    return tuple(stop - first for first, stop in pairwise(ends) if stop > first) or (0,)


def pieces_of(bounds: list[int], cells: Stretch, at: int) -> Iterator[Piece]:
    """Where in the chunks of an axis the cells lie; `at` is the first cell of the block that they are for."""
    first, count, start, slope = cells
    low = start - (count - 1) * (slope == -1)
    high = low + (count if slope else 1)
    for chunk in range(bisect_right(bounds, low) - 1, bisect_left(bounds, high)):
        begin = bounds[chunk]
        a, b = max(begin, low), min(bounds[chunk + 1], high)
        if a < b and slope == -1:
            place = first - at + high - b
            yield Piece(chunk, (b - 1 - begin, a - 1 - begin if a > begin else None, -1), (place, place + b - a))
        elif a < b:
            place = first - at + a - low
            yield Piece(chunk, (a - begin, b - begin, 1), (place, place + (b - a if slope else count)))


def as_they_lie(bounds: list[int], first: int, stop: int) -> Reading:
    """Those cells of the axis."""
    return Reading(list(pieces_of(bounds, Stretch(first, stop - first, first, 1), first)), stop - first)


def readings(read: Callable[..., Any], source: Sequence[int], chunks: Sequence[int]) -> list[Any]:
    """What the blocks of an axis in these chunks read of an axis in the chunks of the source."""
    bounds = bounds_of(source)
    return [read(bounds, first, stop) for first, stop in pairwise(bounds_of(chunks))]


class Axis(NamedTuple):
    """One spatial axis of a geometry, by itself: x has `size` cells and y `positions`."""

    size: int
    positions: int
    kernel: int
    stride: int
    dilation: int
    low: int
    mode: str

    @property
    def span(self) -> int:
        """How many cells all positions reach, padded ones too: from -low on."""
        return self.stride * (self.positions - 1) + self.dilation * (self.kernel - 1) + 1

    def seen(self, bounds: list[int], first: int, stop: int) -> Reading:
        """What positions from `first` to `stop` read of x."""
        low = self.stride * first - self.low
        high = low + self._replace(positions=stop - first).span
        if self.mode in REPEATING:
            cells = self.inside_and_beyond(low, high)
            return Reading([piece for stretch in cells for piece in pieces_of(bounds, stretch, low)], high - low)
        begin = min(max(low, 0), self.size)
        count = max(min(high, self.size) - begin, 0)
        return as_they_lie(bounds, begin, begin + count)._replace(pads=(begin - low, high - begin - count))

    def pairs(self, bounds: list[int], first: int, stop: int) -> list[Pair]:
        """The same piece by piece, each with the positions that meet it; padding that holds a constant is met too."""
        reading, reach = self.seen(bounds, first, stop), self.dilation * (self.kernel - 1)
        low, span = reading.pads[0], self._replace(positions=stop - first).span
        met = [(piece.chunk, piece.part, low + piece.place[0], low + piece.place[1]) for piece in reading.pieces]
        if self.mode == "constant":
            met += [(PADDED, ONE, 0, min(low, span)), (PADDED, ONE, max(low + reading.length, 0), span)]
        found = []
        for chunk, cells, a, b in met:
            begin, end = max(-((reach - a) // self.stride), 0), min(-(-b // self.stride), stop - first)
            if a < b and begin < end:
                before = a - self.stride * begin
                behind = self._replace(positions=end - begin).span - before - (b - a)
                found.append(Pair(chunk, cells, (begin, end, 1), b - a, (before, behind)))
        return found

    def reaching(self, bounds: list[int], first: int, stop: int) -> Reading:
        """The positions of y that reach cells from `first` to `stop`; one that reaches none where there is no other."""
        reach = self.dilation * (self.kernel - 1)
        begin = min(max(-((reach - self.low - first) // self.stride), 0), self.positions - 1)
        end = max(min((stop - 1 + self.low) // self.stride + 1, self.positions), begin + 1)
        low = self.low + first - self.stride * begin
        high = self._replace(positions=end - begin).span - (stop - first) - low
        return as_they_lie(bounds, begin, end)._replace(pads=(low, high))

    def returning(self, start: int, bounds: list[int], first: int, stop: int) -> Reading:
        """Where in x with all of its padding the cells from `first` to `stop` stand; x itself begins at `start`."""
        found: list[Piece] = []
        for at, count, cell, slope in self.inside_and_beyond(-self.low, self.span - self.low):
            low = start + cell - (count - 1) * (slope == -1)
            begin, end = max(low, first), min(low + (count if slope else 1), stop)
            if begin < end and slope:
                padded = at + self.low + (begin - low if slope == 1 else low + count - 1 - begin)
                found += pieces_of(bounds, Stretch(begin, end - begin, padded, slope), first)
            elif begin < end:
                alike = as_they_lie(bounds, at + self.low, at + self.low + count).pieces
                found += [piece._replace(place=(begin - first, end - first)) for piece in alike]
        return Reading(found, stop - first)

    def inside_and_beyond(self, low: int, high: int) -> Iterator[Stretch]:
        """Which cells of x the cells from `low` to `high` are or, as padding, stand for."""
        first, stop = max(low, 0), min(high, self.size)
        if first < stop:
            yield Stretch(first, stop - first, first, 1)
        for begin, end in ((low, min(high, 0)), (max(low, self.size), high)):
            if begin < end:
                yield from beyond(self.mode, begin, end, self.size, end - begin)


def runs(size: Shape, most: int) -> list[Shape]:
    """Chunks of every axis such that each block is a run in C order, of at most so many positions or of one."""
    found: list[Shape] = []
    for length in reversed(size):
        step = min(max(most, 1), length)
        found.insert(0, split([step], length))
        most //= length
    return found


# --- blocks of several axes ---


def meetings(axes: Sequence[Axis], x: Chunks, y: Chunks) -> dict[Shape, list[Meeting]]:
    """What every block of y meets of x, chunk by chunk, along the batch, the channels and these axes of space."""
    rank, at = len(axes), len(x) - len(axes) - 1
    every = [*(Axis(sum(along), sum(along), 1, 1, 1, 0, "zeros") for along in x[:at]), *axes]
    pairs = [readings(axis.pairs, *along) for axis, *along in zip(every, x[:at] + x[at + 1:], y[:at] + y[at + 1:])]
    pairs.insert(at, [[Pair(0, (0, x[at][0], 1), (0, y[at][0], 1), x[at][0], (0, 0))]])
    found: dict[Shape, list[Meeting]] = {}
    for index in product(*(range(len(along)) for along in y)):
        found[index] = []
        for some in product(*(axis[place] for axis, place in zip(pairs, index))):
            chunk, cells, positions, shape, pads = zip(*some)
            if PADDED in chunk:
                chunk, cells = (), (ONE,) * len(cells)
            found[index].append(Meeting(chunk, cells, positions, shape, pads[-rank:]))
    return found


def near_and_far(met: dict[Shape, list[Meeting]]) -> tuple[Any, Any, Any]:
    """Of every block of y its meetings with padding and with the chunks of x that it meets most of, and with others.

    Thirdly the edges at which these others meet: parts, as keys of a dictionary, of a chunk of x, 0, or of y, 1.
    """
    homes: dict[Shape, tuple[int, Shape]] = {}
    for index, some in met.items():
        for one in some:
            homes[one.chunk] = max(homes.get(one.chunk, (0, index)), (one.most_products, index), key=itemgetter(0))
    near, far = ({index: [one for one in some if (one.chunk == () or homes[one.chunk][1] == index) is is_near]
                  for index, some in met.items()} for is_near in (True, False))
    edges: dict[Shape, dict[tuple[Part, ...], None]] = defaultdict(dict)
    for index, some in far.items():
        for one in some:
            edges[0, *one.chunk][one.cells] = edges[1, *index][one.positions] = None
    return near, far, edges
