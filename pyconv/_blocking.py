"""How a piece is cut for the caches: the positions, rows and depth that one thread works on at a time.

Whatever decides the order of a sum follows from the geometry and the kernels' tile alone (in forward and grad_input,
of one sample: the depth; in grad_weight, of all: everything), so the bits are the same for any number of threads, any
scratch and, for forward and grad_input, any batch.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from math import inf, lcm, prod
from typing import NamedTuple

from pyconv._edges import NO_FOLDS, Folds, held_in
from pyconv._pieces import Axes, Axis, Piece, Strides, Triple, of_frequency, winograd

Block = tuple[int, Triple, int]  # samples, extent, shared
Streams = tuple[tuple[tuple[int, int], tuple[int, int]], ...]

DEPTH = 288  # channels * taps summed in registers: 8 rows of packed weights of this depth take a third of L1
RESULTS = 3 << 17  # bytes of results that wait in L2 while the depth runs
ROW_BLOCKS = (64, 128, 256, 512)  # more rows: the source is unrolled less often, the weights are read more often
PANEL = 1 << 20  # bytes that the packed weights of a block may take
SCRATCH = 1 << 19  # bytes that an unrolled block may take: half of a common L2
CORRELATE_ROWS = 384  # channels * taps of a block of grad_weight
CORRELATE_RESULTS = 9 << 15  # bytes of the results of these and of a block's output channels: they stay in L2
CORRELATE_POSITIONS, LEAST_POSITIONS = 512, 64  # of a block of grad_weight: as many as leave UNITS of work
UNITS = 16  # of work that grad_weight is cut into where its result is small
WORK = 1 << 18  # products that make a task worth its handling
TASKS = 8  # blocks that a call should have at least, so that threads share them evenly
TASK = 150000  # products, below which a further one is not worth having
GROUPS = 1 << 16  # bytes that the unrolled source of several small groups may take: with their results, most of L1
BOX = 1 << 18  # bytes of the cells that a direct block reads and of its results: a quarter of a common L2
DIRECT_WEIGHTS = 1 << 15  # bytes of weights of a direct block: in L1
DIRECT_RESULTS = 1 << 16  # the same for grad_weight, where they are touched once a row of positions: in L2
TILES_LOSE = 1.5  # how much longer tiles take for few rows than the count of their operations says, as measured
UNROLLED_LOSES = 1.1  # the same for unrolled cells
STRIDED = 2.5  # times as long it takes to unroll cells that lie apart, which are picked from vectors
WINOGRAD_DEPTH = 1 << 10  # channels * taps * frequencies that Winograd's algorithm sums at a time
WINOGRAD_ROOM = 14 << 17  # bytes of all arrays of a block: most is touched once in many products, L2 need not hold it
TRANSFORM = 7  # vector operations of a transform for each vector of a frequency
BOX_COST = 16  # operations that a product of a box costs besides those of its positions: tiles of few, weights from L2
# operations of reading a line of cells that are broadcast: in L2, there in new pages, and beyond
CELL_COST, CELL_COST_OF_PAGE, CELL_COST_BEYOND = 3, 10, 30
POSITIONS = (32, 64, 128, 256, 512, 1024, 2048)  # about so many of a block whose cells are broadcast
PAGES = 1 << 18  # bytes of pages that the processor finds quickly
STORE_COST = 16  # operations of turning and storing a vector of results
# operations of storing it where channels lie last: with all of a position's while a cache holds the block's, or later
STORE_COST_TOGETHER, STORE_COST_APART = 4, 30
TOGETHER = 1 << 16  # bytes of such a block's results
ALL = 7  # all axes share their streams


class Tile(NamedTuple):
    """What blocking must know of the kernels: element size, lanes of a vector, rows and vectors of the widest tile."""

    itemsize: int
    lanes: int
    rows: int
    vectors: int


# the ways of kernels.h
(GATHER, GATHER_FLAT, GATHER_BROADCAST, CORRELATE, CORRELATE_FEW, GATHER_DIRECT, CORRELATE_DIRECT,
 GATHER_WINOGRAD, CORRELATE_WINOGRAD) = range(9)


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


def reads_last(way: int, operand: Strides) -> bool:
    """Whether a way reads and writes an operand whose channels lie last as it is: a direct one wants groups of one."""
    return way in (GATHER_BROADCAST, CORRELATE) or way in (GATHER_DIRECT, CORRELATE_DIRECT) and operand.group == 1


def _even(total: int, most: int) -> int:
    """The size of equal parts of `total`, none above `most`."""
    return -(-total // -(-total // max(1, most))) if total else 1


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


@lru_cache(maxsize=1024)
def _streams(axes: Axes) -> Streams:
    """Of every axis: its streams, and the cells that each has beyond its positions, with taps apart and shared."""
    return tuple(((axis.taps, 0), (axis.streams, axis.beyond)) for axis in axes)


def _scratch(of_axes: Streams, block: Block, lanes: int) -> tuple[int, int, int]:
    """Elements that one channel of a block takes unrolled, its streams, its positions; as `layout` in the kernels."""
    samples, (z, y, x), shared = block
    (streams_z, more_z), (streams_y, more_y), (streams_x, more_x) = (
        of_axes[0][shared & 1], of_axes[1][shared >> 1 & 1], of_axes[2][shared >> 2])
    row = x + more_x
    plane = (y + more_y) * row
    volume = (z + more_z) * plane
    streams = streams_z * streams_y * streams_x
    positions = (samples - 1) * volume + (z - 1) * plane + (y - 1) * row + x
    return streams * (_up(samples * volume + lanes, lanes) + lanes), streams, positions


def _least(piece: Piece) -> Folds:
    """How many positions, or tiles of them, the first and the last block of an axis must have where it is folded."""
    return tuple((-(-held_in(before) // n), -(-(held_in(behind) + (behind and n - 1)) // n))
                 for (before, behind), n in zip(piece.folds, piece.tile))


def _holding(n: int, count: int, least: tuple[int, int]) -> int:
    """The least extent from n on of which the first and the last block of an axis have as much as they must."""
    first, last = least
    n = max(n, first)
    while n < count and (count - 1) % n + 1 < last:
        n += 1
    return min(n, count)


@lru_cache(maxsize=4096)
def _candidates(
    count: Triple, positions: int, lanes: int, least: Folds = NO_FOLDS
) -> tuple[tuple[Triple, int], ...]:
    """Blocks of about `positions` positions: whole samples, planes, rows, or whole vectors of one row.

    Where an axis is folded, its first and its last block hold what is added to their cells: `least` says how many.
    """
    found = []
    for first in range(3):  # axes before `first` have extent 1, those after are whole
        inner = prod(count[first + 1:])
        if inner <= positions or first == 2:
            wanted = max(1, positions // inner)
            extent = [1] * 3
            extent[first + 1:] = count[first + 1:]
            for n in {wanted, max(1, wanted // 2), wanted + 1, _even(count[first], wanted)}:
                extent[first] = min(_up(n, lanes) if first == 2 else n, count[first])
                found.append((tuple(map(_holding, extent, count, least)), first))
    return tuple(found)


def _wanted_tasks(piece: Piece, groups: int) -> int:
    """How many tasks a call should have at least: fewer where there is little to share."""
    products = piece.batch * piece.rows * piece.channels * prod(axis.positions * axis.taps for axis in piece.axes)
    return max(1, min(TASKS, products * groups // TASK))


def _blocks(piece: Piece, block: Block) -> int:
    """How many blocks of a size there are."""
    samples, (z, y, x), _ = block
    count_z, count_y, count_x = (axis.positions for axis in piece.axes)
    return -(-count_z // z) * -(-count_y // y) * -(-count_x // x) * -(-piece.batch // samples)


def _splits(blocks: int, units: int, wanted: int = UNITS) -> int:
    """Into how many partial sums grad_weight's blocks go, where there are so many parts of the weight."""
    return max(1, min(blocks, -(-wanted // units)))


def _is_flat(piece: Piece) -> bool:
    """Whether positions of a sample are one row of source, without padding, under one tap: they need no unrolling."""
    *others, x = piece.axes
    return piece.source.axes[2] == 1 and not piece.turned and not piece.patched[0] and all(
        (axis.positions, axis.size, axis.offset, axis.taps) == (1, 1, 0, 1) for axis in others) and (
        (x.positions, x.step, x.offset, x.taps) == (x.size, 1, 0, 1))


def _cost(piece: Piece, rows: float, tile: Tile) -> Callable[[Block], float]:
    """Of a block of a size, vector operations of all: products, unrolling, storing, and a fixed cost a block."""
    taps, lanes = prod(axis.taps for axis in piece.axes), tile.lanes
    of_axes, flat = _streams(piece.axes), _is_flat(piece)
    weights = 3 * taps * rows / lanes  # they come from beyond L2
    apart = STRIDED if piece.axes[2].step > 1 else 1

    def cost(block: Block) -> float:
        samples, extent, _ = block
        size, streams, at_once = _scratch(of_axes, block, lanes)
        vectors = -(-at_once // lanes)
        products = (vectors + 0.1 * -(-vectors // tile.vectors)) * taps * max(rows, 2)  # a load across two lines is two
        runs = samples * extent[0] * (1 if taps == 1 else extent[1])
        gaps = at_once != prod(extent) * samples
        unrolled = 0 if flat and samples == 1 else apart * (2 * size / lanes + 3 * runs * streams)
        return _blocks(piece, block) * (products + weights + unrolled + 3 * runs * gaps * rows + 40)

    return cost


def _block(piece: Piece, positions: int, rows: float, tile: Tile, gaps: bool) -> Block:
    """The cheapest block of about so many positions, with cells between its rows of positions or without."""
    count = tuple(axis.positions for axis in piece.axes)
    batch = piece.batch
    if not all(count):
        return 1, (1, 1, 1), 0
    options = []
    for extent, first in _candidates(count, positions, tile.lanes, _least(piece)):
        samples = [1]
        if extent == count:
            wanted = max(1, positions // prod(extent))
            samples += [min(n, batch) for n in (wanted, wanted + 1, _even(batch, wanted))]
        options += [(1, extent, 1 << first)] + [(n, extent, shared) for n in samples for shared in (0, ALL)]
    if not gaps:
        of_axes = _streams(piece.axes)
        options = [block for block in options if _scratch(of_axes, block, tile.lanes)[2] == block[0] * prod(block[1])]
    return min(dict.fromkeys(options), key=_cost(piece, rows, tile))


def direct_blocking(piece: Piece, groups: int, tile: Tile, weights: int, always: bool = False) -> Blocking | None:
    """A direct block, a lane a group, where that is possible and the cheaper way: of one sample, so for any batch."""
    taps, width = prod(axis.taps for axis in piece.axes), tile.lanes * tile.itemsize
    depth, count = piece.channels * taps, tuple(axis.positions for axis in piece.axes)
    if groups == 1 or piece.turned or piece.swapped or piece.woven or not depth or depth > DEPTH or not all(count) or (
            depth * piece.rows * width > weights or any(n > 1 for n, _ in piece.row_taps)):
        return None

    def cells(extent: Triple) -> int:
        return prod(x.step * (n - 1) + 1 + abs(x.tap_step) * (x.taps - 1) for x, n in zip(piece.axes, extent))

    def vectors(extent: Triple) -> int:
        return piece.channels * cells(extent) + piece.rows * prod(extent)

    extents = [extent for n in range(prod(count).bit_length() + 1)
               for extent, _ in _candidates(count, 1 << n, tile.lanes, _least(piece))]
    fitting = [extent for extent in extents if vectors(extent) * width <= BOX]
    if not fitting:
        return None
    turned = tile.lanes.bit_length() + 1  # operations of turning a vector

    def cost(extent: Triple) -> float:
        work = cells(extent) * piece.channels * turned + prod(extent) * piece.rows * (1.2 * depth + turned + 1) + 300
        return _blocks(one, (1, extent, 0)) * -(-groups // tile.lanes) * work

    one = piece._replace(batch=1)
    best = min(fitting, key=cost)
    other = _cost(one, piece.rows, tile)(_block(one, 8 * tile.lanes * tile.vectors, piece.rows, tile, True))
    in_place = piece.source.group == piece.target.group == 1  # what tiles would copy first
    if not (always or in_place) and cost(best) > TILES_LOSE * groups * other * piece.channels:
        return None
    blocks = _blocks(one, (1, best, 0)) * -(-groups // tile.lanes)  # of one sample
    most = min(BOX // (vectors(best) * width), piece.batch * blocks // _wanted_tasks(piece, groups))
    samples = _even(piece.batch, most)
    return Blocking(GATHER_DIRECT, samples, best, 0, piece.channels, piece.rows, groups=min(groups, tile.lanes))


def _together(piece: Piece, groups: int, blocks: int, block: Block, rows: int, channels: int, tile: Tile) -> int:
    """How many small groups one task does at once, where their channels follow each other in every operand."""
    _, extent, _ = block
    source, target = piece.source, piece.target
    rows_of_group = prod(n for n, _ in piece.row_taps)
    if channels < piece.channels or rows < piece.rows or source.group != piece.channels * source.channel or (
            target.group * rows_of_group != piece.rows * target.channel):
        return 1
    taps = prod(axis.taps for axis in piece.axes)
    size, _, positions = _scratch(_streams(piece.axes), block, tile.lanes)
    most = min(WORK // max(1, positions * taps * channels * piece.rows), GROUPS // (size * channels * tile.itemsize),
               RESULTS // (2 * positions * piece.rows * tile.itemsize))
    return min(groups, max(1, min(most, blocks * groups // TASKS)))


def _met(axis: Axis) -> tuple[int, int]:
    """How many taps have a cell, summed over the positions of an axis, and over its stretches of equal taps."""
    ends = [(x.start, x.start + x.lattice * x.positions) for x in (axis.clipped(tap) for tap in range(axis.taps))]
    starts = {axis.start, *(end for pair in ends for end in pair)} - {axis.start + axis.lattice * axis.positions}
    return (sum(end - start for start, end in ends) // axis.lattice,
            sum(start <= at < end for at in starts for start, end in ends))


def broadcast_blocking(
    piece: Piece, groups: int, channels: int, tile: Tile, members: int = 1
) -> tuple[float, Blocking | None]:
    """The cheapest blocks for cells that are broadcast, and their cost: as `_cost`, of all channels.

    As many `members` have their results in L2 at once; None where there is no room for those of several.
    """
    count, taps = tuple(axis.positions for axis in piece.axes), tuple(axis.taps for axis in piece.axes)
    met, of_stretches = zip(*(_met(axis) for axis in piece.axes))
    pages = channels * piece.source.channel * tile.itemsize > PAGES
    near = CELL_COST_OF_PAGE if pages else CELL_COST
    if taps[2] == 1 and not piece.source_last:
        near *= piece.axes[2].step  # a line has cells that no tap reads

    def cell_cost(samples: int, extent: Triple) -> float:
        cells = samples * prod(min(axis.size, axis.step * (n - 1) + abs(axis.tap_step) * (axis.taps - 1) + 1)
                               for axis, n in zip(piece.axes, extent))
        return (CELL_COST_BEYOND if channels * cells * tile.itemsize > SCRATCH else near) / tile.rows / taps[2]

    width = tile.vectors * tile.lanes
    blocks = {(1, extent) for positions in POSITIONS
              for extent, _ in _candidates(count, positions, tile.lanes, _least(piece))}
    if prod(count) < POSITIONS[-1]:
        blocks |= {(samples, count) for positions in POSITIONS for most in [max(1, positions // prod(count))]
                   for samples in (min(piece.batch, most), _even(piece.batch, most))}
    sizes = []  # of every block: positions, how many blocks, taps of their boxes, and what a cell costs
    for samples, extent in sorted(blocks):
        boxes = -(-piece.batch // samples) * prod(
            total + (-(-positions // n) - 1) * k for total, k, positions, n in zip(of_stretches, taps, count, extent))
        sizes.append((samples * prod(extent), _blocks(piece, (samples, extent, 0)), boxes, cell_cost(samples, extent),
                      samples, extent))
    products, positions, smallest = piece.batch * prod(met), piece.batch * prod(count), min(sizes)[0]
    least, best, least_tasks, room = inf, None, _wanted_tasks(piece, groups), RESULTS // members
    for rows in {min(piece.rows, _up(_even(piece.rows, most), tile.lanes)) for most in (width, *ROW_BLOCKS)}:
        times, vectors = -(-piece.rows // rows), -(-rows // tile.lanes)
        panels = times * -(-vectors // tile.vectors)
        for size, number, boxes, cell, samples, extent in sizes:
            if size * rows * tile.itemsize > room and (members > 1 or size > max(POSITIONS[0], smallest)):
                continue
            work = piece.channels * (products * (times * vectors + cell * panels) + BOX_COST * boxes * panels)
            tasks = times * number
            store = STORE_COST
            if piece.target.channel == 1:
                together = times == 1 and size * rows * tile.itemsize <= TOGETHER
                store = STORE_COST_TOGETHER if together else STORE_COST_APART
            cost = work + store * positions * times * vectors + 300 * tasks
            cost *= max(1, least_tasks / (tasks * groups))
            if cost < least:
                least, best = cost, Blocking(GATHER_BROADCAST, samples, extent, 0, channels, rows)
    return least, best


def channels_at_once(piece: Piece, most_taps: int = 0) -> int:
    """How many channels are summed in registers; what makes the order of a sum."""
    taps = prod(axis.taps for axis in piece.axes)
    if piece.woven:  # of a cell, all channels are loaded as one vector
        return piece.channels
    return _even(piece.channels, min(128, DEPTH // max(1, taps, most_taps)))


@lru_cache(maxsize=256)
def gather_blocking(piece: Piece, groups: int, tile: Tile, most_taps: int = 0, may_direct: bool = True) -> Blocking:
    """For forward and grad_input. Matrix products and broadcast cells sum in the same order: the batch may decide.

    Pieces that may share their source sum the same channels at a time: as many as suit the one of `most_taps`.
    """
    direct = direct_blocking(piece, groups, tile, DIRECT_WEIGHTS) if may_direct else None
    if direct:
        return direct
    taps, channels = prod(axis.taps for axis in piece.axes), channels_at_once(piece, most_taps)
    cost, blocking = unrolled_blocking(piece, groups, channels, tile)
    if not taps or piece.turned or not channels or not all(axis.positions for axis in piece.axes):
        return blocking
    other_cost, other = broadcast_blocking(piece, groups, channels, tile)
    assert other is not None
    if piece.source_last or piece.target_last:
        few = piece.rows < tile.lanes // 2 and all(n == 1 for n, _ in piece.row_taps)
        return blocking if few else other
    return other if other_cost < UNROLLED_LOSES * cost else blocking


def unrolled_blocking(piece: Piece, groups: int, channels: int, tile: Tile) -> tuple[float, Blocking]:
    """The cheapest blocks for matrix products of unrolled cells, and their cost."""
    taps = max(1, prod(axis.taps for axis in piece.axes))
    total = prod(axis.positions for axis in piece.axes) * piece.batch
    width = tile.lanes * tile.vectors
    least_tasks = _wanted_tasks(piece, groups)

    def options() -> Iterator[tuple[int, Block, int]]:
        for most in ROW_BLOCKS:
            rows = min(piece.rows, _up(_even(piece.rows, most), tile.rows))
            if rows > most and most > ROW_BLOCKS[0] or rows * channels * taps * tile.itemsize > PANEL:
                continue
            times = groups * -(-piece.rows // rows)
            wanted = min(8 * width * min(8, max(1, 32 // rows)), RESULTS // tile.itemsize // rows)
            for positions in {wanted, min(wanted, _up(total // (least_tasks // times or 1), width))}:
                block = _fitting(piece, max(width, positions), rows, channels, tile)
                yield rows, block, times * _blocks(piece, block)
            if rows == piece.rows:
                return

    def cost(option: tuple[int, Block, int]) -> float:
        rows, block, tasks = option
        return piece.channels * -(-piece.rows // rows) * _cost(piece, rows, tile)(block) * max(1, least_tasks / tasks)

    best = min(options(), key=cost)
    rows, block, tasks = best
    if tasks < least_tasks:
        rows = min(rows, max(4 * tile.rows, _up(piece.rows * tasks // least_tasks, tile.rows)))
    together = _together(piece, groups, _blocks(piece, block), block, rows, channels, tile)
    way = GATHER_FLAT if together == 1 and block[0] == 1 and _is_flat(piece) else GATHER
    return cost(best), Blocking(way, *block, channels, rows, groups=together)


def _correlated(piece: Piece, taps: int, tile: Tile) -> tuple[int, int]:
    """Channels and columns of a block of grad_weight: the source is read anew for each block of columns, the target
    turned anew for each block of channels."""
    room = CORRELATE_RESULTS // tile.itemsize
    streams = prod(axis.streams for axis in piece.axes) if taps <= CORRELATE_ROWS else taps
    read = 2 * streams * (1 if piece.axes[2].step == 1 else 3)

    def cost(option: tuple[int, int]) -> float:
        channels, columns = option
        return (-(-piece.rows // columns) * piece.channels * read
                + -(-piece.channels // channels) * piece.rows * (tile.lanes.bit_length() + 2))

    options = []
    for vectors in (3, 6, 9, 12, 18, 24, 36):
        columns = _up(_even(piece.rows, vectors * tile.lanes), tile.lanes)
        most = max(1, min(CORRELATE_ROWS, room // columns) // taps)
        options.append((_even(piece.channels, most), columns))
    return min(options, key=cost)


def _frequencies(piece: Piece) -> int:
    return prod(n + 2 for n in piece.tile if n > 1)


def _tiled_blocks(one: Piece, tile: Tile) -> "set[Block]":
    """Blocks of tiles that Winograd's algorithm may take: some vectors of them, no cells between their rows."""
    count = tuple(axis.positions for axis in one.axes)
    whole = range(1, min(one.batch, 8) + 1) if one.axes[0].taps == 1 else (1,)
    unit = lcm(tile.lanes, one.axes[2].tap_step)
    return {(n, extent, 1 << first) for vectors in range(1, 15, 2)
            for extent, first in _candidates(count, vectors * tile.lanes, unit, _least(one))
            for n in (whole if extent == count else (1,))}


def _of_tiles(piece: Piece) -> tuple[Piece, int, int, int]:
    """The piece of one frequency, how many frequencies, taps of a frequency, and channels summed at a time."""
    one, frequencies = of_frequency(piece), _frequencies(piece)
    taps = one.axes[0].taps
    return one, frequencies, taps, _even(piece.channels, max(1, WINOGRAD_DEPTH // frequencies // taps))


def gather_winograd(piece: Piece, tile: Tile) -> Blocking:
    """For forward and grad_input in tiles: the rows and positions whose vector operations are fewest."""
    one, frequencies, taps, channels = _of_tiles(piece)
    of_axes = _streams(one.axes)

    def cost(option: tuple[int, Block]) -> float:
        rows, block = option
        size, _, positions = _scratch(of_axes, block, tile.lanes)
        vectors = -(-positions // tile.lanes)
        elements = channels * size + rows * (vectors * tile.lanes + channels * taps)
        if frequencies * tile.itemsize * elements > WINOGRAD_ROOM:
            return inf
        products = channels * taps * rows * (vectors + 0.3 * -(-vectors // tile.vectors) + 6 / tile.lanes)
        transforms = TRANSFORM * vectors * (channels + rows * channels / piece.channels)
        times = _blocks(one, block) * -(-piece.rows // rows)
        return times * (products + transforms) * max(1, TASKS / times)

    sizes = {min(piece.rows, _up(_even(piece.rows, most), tile.rows)) for most in ROW_BLOCKS[:3]}
    rows, block = min(product(sorted(sizes), sorted(_tiled_blocks(one, tile))), key=cost)
    return Blocking(GATHER_WINOGRAD, *block, channels, rows)


def correlate_winograd(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For grad_weight in tiles, likewise."""
    one, frequencies, taps, channels = _of_tiles(piece)
    of_axes = _streams(one.axes)

    def cost(option: tuple[int, Block]) -> float:
        columns, block = option
        size, _, positions = _scratch(of_axes, block, tile.lanes)
        vectors = -(-columns // tile.lanes)
        sums = 2 * (1 + prod(axis.taps for axis in piece.axes[1:]) / frequencies)  # two partial ones, with gradients
        elements = channels * size + vectors * tile.lanes * (positions + sums * channels * taps)
        if frequencies * tile.itemsize * elements > WINOGRAD_ROOM:
            return inf
        products = channels * taps * (vectors + 0.3 * -(-vectors // tile.vectors)) * (positions + 4)
        transforms = TRANSFORM * (channels * -(-positions // tile.lanes) + positions * vectors)
        return _blocks(one, block) * -(-piece.rows // columns) * (products + transforms)

    sizes = {_up(_even(piece.rows, n * tile.vectors * tile.lanes), tile.lanes) for n in range(1, 5)}
    columns, block = min(product(sorted(sizes), sorted(_tiled_blocks(one, tile))), key=cost)
    units = groups * -(-piece.rows // columns) * -(-piece.channels // channels)
    splits = _splits(_blocks(one, block), units)
    return Blocking(CORRELATE_WINOGRAD, *block, channels, columns, splits)


def choose(
    map: str, piece: Piece, groups: int, tile: Tile, algorithm: str, most_taps: int = 0, may_direct: bool = True
) -> tuple[Piece, Blocking]:
    """The piece as it is to be worked on, and its blocks."""
    for outputs in {"auto": (2,), "winograd": (4, 2)}.get(algorithm, ()):
        tiled = winograd(piece, outputs)
        if tiled and _tiling_pays(map, tiled):
            if map == "grad_weight":
                return tiled, _of_whole_elements(tiled, correlate_winograd(tiled, groups, tile))
            return tiled, _of_whole_elements(tiled, gather_winograd(tiled, tile))
    if map == "grad_weight":
        return piece, _of_whole_elements(piece, correlate_blocking(piece, groups, tile))
    anywhere = piece._replace(  # the phases of a stride differ in where they lie, mostly in nothing else
        axes=tuple(axis._replace(start=0, lattice=1, first=0) for axis in piece.axes),
        source=piece.source._replace(base=0), target=piece.target._replace(base=0),
        weight=piece.weight._replace(base=0))
    if all(axis.lattice for axis in piece.axes):
        return piece, _of_whole_elements(piece, gather_blocking(anywhere, groups, tile, most_taps, may_direct))
    # positions that are summed in one cell must be in one block
    blocking = unrolled_blocking(anywhere, groups, channels_at_once(piece), tile)[1]
    extent = tuple(n if axis.lattice else axis.positions for axis, n in zip(piece.axes, blocking.extent))
    return piece, _of_whole_elements(piece, blocking._replace(way=GATHER, extent=extent))


def _of_whole_elements(piece: Piece, blocking: Blocking) -> Blocking:
    """The same with no element's parts in two blocks."""
    parts = piece.parts
    return blocking._replace(channels=_up(blocking.channels, parts), rows=_up(blocking.rows, parts))


def name_of(piece: Piece, blocking: Blocking) -> str:
    """What a person calls the way."""
    if blocking.way in (GATHER_WINOGRAD, CORRELATE_WINOGRAD):
        return f"Winograd F({max(piece.tile)}, 3)"
    return "direct" if blocking.way in (GATHER_DIRECT, CORRELATE_DIRECT) else "matrix product"


def _tiling_pays(map: str, piece: Piece) -> bool:
    """Whether tiles take fewer vector operations, transforms included: of one sample, so for any batch."""
    source, target = -(-piece.rows // 128), 1  # how often each is transformed
    if map == "grad_weight":
        source, target = -(-piece.rows // 64), -(-piece.channels // 64)
    one, frequencies = of_frequency(piece), _frequencies(piece)
    tiles = prod(axis.positions for axis in one.axes)
    tiled = frequencies * tiles * piece.rows * piece.channels * piece.axes[0].taps
    direct = prod(_met(axis)[0] for axis in piece.axes) * piece.rows * piece.channels
    transforms = TRANSFORM * frequencies * tiles * (piece.channels * source + piece.rows * target)
    return tiled + transforms < 0.9 * direct


def _fitting(piece: Piece, positions: int, rows: float, channels: int, tile: Tile, gaps: bool = True) -> Block:
    """The block of at most about `positions` positions that fits scratch."""
    while True:
        block = _block(piece, positions, rows, tile, gaps)
        size, *_ = _scratch(_streams(piece.axes), block, tile.lanes)
        if size * channels * tile.itemsize <= SCRATCH or positions <= tile.lanes:
            return block
        positions //= 2


def correlate_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For grad_weight: `rows` is here the block of output channels."""
    direct = direct_blocking(piece, groups, tile, DIRECT_RESULTS)
    if direct:
        blocks = _blocks(piece, (direct.samples, direct.extent, 0))
        splits = _splits(blocks, -(-groups // direct.groups))
        return direct._replace(way=CORRELATE_DIRECT, splits=splits)
    if piece.rows < tile.lanes // 2:
        return _correlate_few(piece, groups, tile)
    taps, count = max(1, prod(axis.taps for axis in piece.axes)), tuple(max(1, axis.positions) for axis in piece.axes)
    channels, columns = _correlated(piece, taps, tile)
    units = groups * -(-piece.rows // columns) * -(-piece.channels // channels)
    wanted = UNITS * _wanted_tasks(piece, groups) // TASKS
    most = max(LEAST_POSITIONS, min(CORRELATE_POSITIONS, prod(count) * piece.batch * units // wanted))
    options = [(samples, extent, 0) for extent, _ in _candidates(count, most, tile.lanes)
               for samples in ({1, _even(piece.batch, max(1, most // prod(extent)))} if extent == count else {1})
               if samples * prod(extent) <= 1.5 * most]
    block = min(options, key=lambda block: _blocks(piece, block))
    return Blocking(CORRELATE, *block, channels, columns, _splits(_blocks(piece, block), units, wanted))


def _correlate_few(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """The same for few output channels: inner products along the positions."""
    taps = max(1, prod(axis.taps for axis in piece.axes))
    channels = _even(piece.channels, CORRELATE_ROWS // taps)
    block = _fitting(piece, 128 * tile.lanes, piece.rows / tile.lanes, channels, tile)
    splits = _splits(_blocks(piece, block), groups * -(-piece.channels // channels))
    together = _together(piece, groups, 1, block, piece.rows, channels, tile)
    return Blocking(CORRELATE_FEW, *block, channels, piece.rows, splits, together)
