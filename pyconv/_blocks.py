"""Blocks of positions: what one is, how much scratch it takes, how many there are, and which is the cheapest."""

from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from pyconv._edges import NO_FOLDS, Folds, held_in
from pyconv._piece import Axes, Axis, Piece, Strides, Triple

Block = tuple[int, Triple, int]  # samples, extent, shared
Streams = tuple[tuple[tuple[int, int], tuple[int, int]], ...]

LINE = 64  # bytes of a cache
LARGE_SECOND_LEVEL = 1 << 21  # bytes of L2 from which on blocks are as they were measured on an Intel
DEPTH = 288  # channels * taps summed in registers: 8 rows of packed weights of this depth take a third of L1
GROUPS = 1 << 16  # bytes that the unrolled source of several small groups may take: with their results, most of L1
TASKS = 8  # blocks that a call should have at least, so that threads share them evenly
TASK = 150000  # products, below which a further one is not worth having
UNITS = 16  # of work that grad_weight is cut into where its result is small
UNITS_OF_SAMPLE = 4  # the same of each sample: most calls have several, which are enough to share
CORRELATE_POSITIONS, LEAST_POSITIONS = 512, 64  # of a block of grad_weight: as many as leave UNITS of work
# times as long it takes to unroll cells that lie apart: every other one is picked from vectors, others come one by one
EVERY_OTHER, ONE_BY_ONE = 2.5, 16
ALL = 7  # all axes share their streams
# operations of moving a vector of results to target and of beginning a stretch of it, by rows of a tile; those of eight
# are of a processor whose L2 is large, others were not measured
MOVE_COST, STRETCH_COST = {4: 2, 8: 24}, {4: 30, 8: 0}
# Cells that lie in runs are copied all the same for so many rows, if they are of more channels: where these lie
# multiples of FEW_SETS apart, and where L2 is large: on an Intel 1x1 layers gain a tenth by it with
# AVX-512 and AVX2 alike. Whether processors with a smaller one gain was not measured.
COPIED_CHANNELS, COPIED_IN_FEW_SETS, COPIED_ROWS = 8, 32, 48
FAR_UNROLLING = 6  # times as long it takes there to unroll a lone tap's cells that come from beyond L2
FEW_SETS = 4096  # bytes between cells, whose lines a first-level cache then holds in one of its 64 sets
FAR_POSITIONS = 2048  # bytes between positions whose channels are read faster at once than by vectors, or from copies
FOLDED_TILES = 15  # most cells before a row of tiles that store them: 32 positions at least are stored together


class Tile(NamedTuple):
    """What blocking must know of the kernels: element size, lanes of a vector, rows and vectors of the widest tile; of
    the threads: how many blocks a call should have at least, how many parts of a sum of grad_weight, and how many
    samples have tasks of their own, where each has a weight gradient; and how many bytes the second-level cache has,
    0 where that is not known, which may change no bit of a result; and whether floats may be sliced."""

    itemsize: int
    lanes: int
    rows: int
    vectors: int
    tasks: int = TASKS
    narrow: bool = False
    units: int = UNITS
    samples: int = 1
    second_level: int = 0
    slices: int = 1  # of a number, which products of matrices multiply: see _tiles/slices.h

    @property
    def has_large_cache(self) -> bool:
        """Whether L2 is such that blocks are as they were measured on an Intel."""
        return self.second_level >= LARGE_SECOND_LEVEL

    @property
    def deciding(self) -> "Tile":
        """The tile as what decides the order of a sum may see it: the same for any threads, scratch and caches."""
        return self._replace(tasks=TASKS, narrow=False, second_level=0)


# the ways of kernels.h
(GATHER, GATHER_FLAT, GATHER_DENSE, GATHER_BROADCAST, GATHER_ACROSS, CORRELATE, CORRELATE_UNROLLED, CORRELATE_FEW,
 CORRELATE_FLAT, GATHER_DIRECT, GATHER_LAST, GATHER_ROWS, GATHER_MATRICES, GATHER_SLICES, CORRELATE_DIRECT,
 CORRELATE_LAST, CORRELATE_ROWS, CORRELATE_MATRICES, GATHER_WINOGRAD, CORRELATE_WINOGRAD) = range(20)
# those that multiply padding by factors which are looked through for NaN and infinities, as all do that read columns;
# not so the tiles of GATHER_WINOGRAD: their results are, and what is not finite is worked out anew
PADDED = frozenset((
    GATHER, CORRELATE_FEW, GATHER_DIRECT, GATHER_ROWS, GATHER_MATRICES, CORRELATE_DIRECT,
    CORRELATE_MATRICES, CORRELATE_WINOGRAD))


class Blocking(NamedTuple):
    way: int
    samples: int
    extent: Triple
    shared: int  # bit a is set where the taps of axis a share streams
    channels: int
    rows: int
    splits: int = 1  # grad_weight: partial sums of a result
    groups: int = 1  # small groups that one task does at once
    paired: bool = False  # with the next piece, whose positions lie between this one's
    members: int = 1  # pieces from this one on that are done together; 0 where an earlier one is their first
    shares: bool = False  # they have the same cells unrolled
    one_panel: bool = False  # their weights are packed once
    by_taps: bool = False  # cells are broadcast under one tap after the other
    summed: int = 0  # cells of a group that one product of matrices sums


def reads_last(way: int, operand: Strides) -> bool:
    """Whether a way takes an operand whose channels lie last as it is: where a lane is a group, these have one each."""
    return way in (GATHER_BROADCAST, GATHER_ACROSS, GATHER_LAST, GATHER_SLICES, CORRELATE, CORRELATE_UNROLLED,
                   CORRELATE_LAST, CORRELATE_MATRICES) or (
        way in (GATHER_DIRECT, CORRELATE_DIRECT) and operand.group == 1)


def reads_source_last(way: int, piece: Piece, itemsize: int) -> bool:
    """The same of source: several taps of grad_weight read cells that lie far apart, which would meet in few sets of
    the caches, from a copy of a block."""
    far = way == CORRELATE and piece.source.axes[2] * itemsize >= FAR_POSITIONS
    return reads_last(way, piece.source) and not (far and prod(axis.taps for axis in piece.axes) > 1)


def even_part(total: int, most: int) -> int:
    """The size of equal parts of `total`, none above `most`."""
    return -(-total // -(-total // max(1, most))) if total else 1


def power_of_two(n: int) -> int:
    """The least that is not smaller than n."""
    return 1 << max(0, n - 1).bit_length()


def up_to(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@lru_cache(maxsize=1024)
def streams_of(axes: Axes) -> Streams:
    """Of every axis: its streams, and the cells that each has beyond its positions, with taps apart and shared."""
    return tuple(((axis.taps, 0), (axis.streams, axis.beyond)) for axis in axes)


def scratch_of(of_axes: Streams, block: Block, lanes: int) -> tuple[int, int, int]:
    """Elements that one channel of a block takes unrolled, its streams, its positions; as `layout` in the kernels."""
    samples, (z, y, x), shared = block
    (streams_z, more_z), (streams_y, more_y), (streams_x, more_x) = (
        of_axes[0][shared & 1], of_axes[1][shared >> 1 & 1], of_axes[2][shared >> 2])
    row = x + more_x
    plane = (y + more_y) * row
    volume = (z + more_z) * plane
    streams = streams_z * streams_y * streams_x
    positions = (samples - 1) * volume + (z - 1) * plane + (y - 1) * row + x
    return streams * (up_to(samples * volume + lanes, lanes) + lanes), streams, positions


def least_of(piece: Piece) -> Folds:
    """How many positions, or tiles of them, the first and the last block of an axis must have where it is folded."""
    if piece.folds == NO_FOLDS:
        return NO_FOLDS
    return tuple((-(-held_in(before) // n), -(-(held_in(behind) + (behind and n - 1)) // n))
                 for (before, behind), n in zip(piece.folds, piece.tile))


def holding(n: int, count: int, least: tuple[int, int]) -> int:
    """The least extent from n on of which the first and the last block of an axis have as much as they must."""
    first, last = least
    n = max(n, first)
    while n < count and (count - 1) % n + 1 < last:
        n += 1
    return min(n, count)


@lru_cache(maxsize=4096)
def candidates(
    count: Triple, positions: int, lanes: int, least: Folds = NO_FOLDS
) -> tuple[tuple[Triple, int], ...]:
    """Blocks of about `positions` positions: whole samples, planes, rows, or whole vectors of one row.

    Where an axis is folded, its first and its last block hold what is added to their cells: `least` says how many.
    """
    found: dict[tuple[Triple, int], None] = {}
    for first in range(3):  # axes before `first` have extent 1, those after are whole
        whole, behind = count[first], count[first + 1:]
        inner = prod(behind)
        if inner <= positions or first == 2:
            wanted = max(1, positions // inner)
            for n in {wanted, max(1, wanted // 2), wanted + 1, even_part(whole, wanted)}:
                extent = *(1,) * first, min(up_to(n, lanes) if first == 2 else n, whole), *behind
                found[extent if least == NO_FOLDS else tuple(map(holding, extent, count, least)), first] = None
    return tuple(found)


def wanted_tasks(piece: Piece, groups: int, tile: Tile) -> int:
    """How many tasks a call should have at least: fewer where there is little to share."""
    z, y, x = piece.axes
    products = piece.batch * piece.rows * piece.channels * (
        z.positions * z.taps * y.positions * y.taps * x.positions * x.taps)
    return max(1, min(tile.tasks, products * groups // TASK))


def unevenness(tasks: int, wanted: int) -> float:
    """How much longer so many equal tasks take than if they could be shared evenly: the last of them have some wait."""
    return up_to(tasks, wanted) / tasks


def blocks_of(piece: Piece, block: Block) -> int:
    """How many blocks of a size there are."""
    samples, (z, y, x), _ = block
    along_z, along_y, along_x = piece.axes
    return -(-along_z.positions // z) * -(-along_y.positions // y) * -(-along_x.positions // x) * (
        -(-piece.batch // samples))


def splits_of(blocks: int, units: int, wanted: int) -> int:
    """Into how many partial sums grad_weight's blocks go, where there are so many parts of the weight."""
    return max(1, min(blocks, -(-wanted // units)))


@lru_cache(maxsize=1024)
def cells_met(axis: Axis) -> tuple[int, int]:
    """How many taps have a cell, summed over the positions of an axis, and over its stretches of equal taps."""
    reached = [axis.reached(tap) for tap in range(axis.taps)]
    starts = sorted({0, *(end for pair in reached for end in pair)} - {axis.positions})
    return sum(end - start for start, end in reached), sum(
        bisect_left(starts, end) - bisect_left(starts, start) for start, end in reached)


def is_flat(piece: Piece) -> bool:
    """Whether positions of a block are one run of source, without padding, under one tap: they need no unrolling."""
    (z, y, x), (plane, row, cell) = piece.axes, piece.source.axes
    dense = cell == 1 and (y.size == 1 or row == x.size) and (z.size == 1 or plane == y.size * x.size)
    return dense and not piece.turned and not piece.patched[0] and all(
        (axis.positions, axis.step, axis.offset, axis.taps) == (axis.size, 1, 0, 1) for axis in piece.axes)


def is_copied(piece: Piece, tile: Tile) -> bool:
    """Whether cells that could be multiplied where they lie are copied first, to lines that lie side by side."""
    in_few_sets = piece.source.channel * tile.itemsize % FEW_SETS == 0
    return piece.channels > COPIED_CHANNELS and (
        in_few_sets and piece.rows >= COPIED_IN_FEW_SETS
        or tile.has_large_cache and piece.rows >= COPIED_ROWS)


def storing_cost(piece: Piece, block: Block, vectors: int, positions: int, tile: Tile) -> float:
    """Of a row of a block's results, so many vectors: where these are one run of target, they are summed there, else
    they are moved."""
    samples, (z, y, x), _ = block
    along_z, along_y, along_x = piece.target.axes
    never = along_x > 1 or piece.turned or piece.folded != "zeros"
    if tile.rows == 8 and (never or not tile.has_large_cache):
        return 0
    rows_follow = z * y == 1 or x * along_x == along_y
    is_run = not never and samples == 1 and positions == z * y * x and rows_follow and (z == 1 or y * x == along_z)
    begun = samples * z * (1 if rows_follow else y)
    return MOVE_COST[tile.rows] * vectors * (not is_run) + STRETCH_COST[tile.rows] * begun


def unrolling_cost(piece: Piece, size: int, rows: int, lanes: int) -> float:
    """Of so many cells in so many rows: those that do not lie side by side take longer."""
    step = piece.axes[2].step
    return (1 if step == 1 else EVERY_OTHER if step == 2 else ONE_BY_ONE) * (2 * size / lanes + 3 * rows)


def cost_of(piece: Piece, rows: float, tile: Tile) -> Callable[[Block], float]:
    """Of a block of a size, vector operations of all: products, unrolling, storing, and a fixed cost a block."""
    taps, lanes = prod(axis.taps for axis in piece.axes), tile.lanes
    of_axes, flat = streams_of(piece.axes), is_flat(piece) and not is_copied(piece, tile)
    weights = 3 * taps * rows / lanes  # they come from beyond L2
    source = piece.batch * piece.channels * prod(axis.size for axis in piece.axes) * tile.itemsize
    far = tile.has_large_cache and source > tile.second_level and tile.rows == 8 and taps == piece.axes[2].step == 1
    each = FAR_UNROLLING if far else 1
    across, at_least_two = tile.vectors, max(rows, 2)

    def cost(block: Block) -> float:
        samples, (z, y, x), _ = block
        size, streams, at_once = scratch_of(of_axes, block, lanes)
        vectors = -(-at_once // lanes)
        products = (vectors + 0.1 * -(-vectors // across)) * taps * at_least_two  # a load across two lines is two
        runs = samples * z * (1 if taps == 1 else y)
        gaps = at_once != samples * z * y * x
        unrolled = 0 if flat and samples == 1 else each * unrolling_cost(piece, size, runs * streams, lanes)
        stored = 3 * runs * gaps * rows
        stored += rows * storing_cost(piece, block, vectors, at_once, tile) / max(1, piece.channels)
        return blocks_of(piece, block) * (products + weights + unrolled + stored + 40)

    return cost


def best_block(piece: Piece, positions: int, rows: float, tile: Tile, gaps: bool) -> Block:
    """The cheapest block of about so many positions, with cells between its rows of positions or without."""
    count = tuple(axis.positions for axis in piece.axes)
    batch = piece.batch
    if not all(count):
        return 1, (1, 1, 1), 0
    options = []
    for extent, first in candidates(count, positions, tile.lanes, least_of(piece)):
        samples = [1]
        if extent == count:
            wanted = max(1, positions // prod(extent))
            samples += [min(n, batch) for n in (wanted, wanted + 1, even_part(batch, wanted))]
        options += [(1, extent, 1 << first)] + [(n, extent, shared) for n in samples for shared in (0, ALL)]
    if not gaps:
        of_axes = streams_of(piece.axes)
        options = [block for block in options if scratch_of(of_axes, block, tile.lanes)[2] == block[0] * prod(block[1])]
    return min(dict.fromkeys(options), key=cost_of(piece, rows, tile))
