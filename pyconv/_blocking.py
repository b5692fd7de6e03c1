"""How a piece is cut for the caches: the positions, rows and depth that one thread works on at a time.

Whatever decides the order of a sum follows from the geometry and the kernels' tile alone (in forward and grad_input,
of one sample: the depth; in grad_weight, of all: everything), so the bits are the same for any number of threads, any
scratch and, for forward and grad_input, any batch.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import inf, prod
from operator import itemgetter
from typing import NamedTuple

from pyconv._blocks import (
    CORRELATE,
    CORRELATE_FEW,
    CORRELATE_FLAT,
    CORRELATE_POSITIONS,
    CORRELATE_UNROLLED,
    DEPTH,
    FEW_SETS,
    GATHER,
    GATHER_ACROSS,
    GATHER_BROADCAST,
    GATHER_DENSE,
    GATHER_FLAT,
    GROUPS,
    LEAST_POSITIONS,
    LINE,
    TASKS,
    Block,
    Blocking,
    Tile,
    best_block,
    blocks_of,
    candidates,
    cells_met,
    cost_of,
    even_part,
    is_copied,
    is_flat,
    least_of,
    power_of_two,
    reads_source_last,
    scratch_of,
    splits_of,
    streams_of,
    unevenness,
    unrolling_cost,
    up_to,
    wanted_tasks,
)
from pyconv._piece import Piece, Triple, has_padding

# Where a lone tap has at most so many rows, and a sample's planes of a group more bytes than this, so many planes are
# gone through at a time, for more than half of the rows twice as many: the processor follows these, and fetches ahead.
FEW_ROWS, BEYOND, FEW_PLANES = 16, 1 << 21, 8
# Samples of a dense layer that meet its weights where they lie, in tiles of eight rows and of four: of more these are
# packed. Weights that are worth a task. Bytes of the sums of a sample in a block, and where those of rows that lie side
# by side are to stay in L1 with the weights that they meet.
MOST_SAMPLES, DENSE_TASK, DENSE_SUMS, DENSE_SUMS_BESIDE = {8: 12, 4: 4}, 1 << 16, 1 << 14, 1 << 11
FEW_CELLS = 64  # of a plane, as of 7x7
RESULTS = 3 << 17  # bytes of results that wait in L2 while the depth runs
ROW_BLOCKS = (64, 128, 256, 512)  # more rows: the source is unrolled less often, the weights are read more often
PANEL = 1 << 20  # bytes that the packed weights of a block may take
SCRATCH = 1 << 19  # bytes that an unrolled block may take: half of a common L2
CORRELATE_ROWS = 576  # channels * taps of a block of grad_weight
DOT_ROWS = 384  # the same of inner products: positions are many
DOTS = 1024  # of them, where output channels are many: their sums are added up as often as there are blocks
OFTEN_BY_EIGHT = 512  # output channels, for which tiles of eight rows read each line of source often
OFTEN_LAST = 64  # the same of any tiles, where channels lie last
SPREAD_OVER = 1 << 22  # bytes that such cells lie in, as measured
APART = 1 << 14  # bytes of a panel and of cells in lines of their own that tiles meet again: a third or half of L1
# Bytes that the weights of a tile of four rows may take with the lines of cells that it reads, three quarters of L1,
# where each tap has a line of its own, as of 7x1: of more channels every tile read both from L2.
NEAR = 24 << 10
ADD_COST = 4  # operations of keeping a part of a sum and of adding it to others, as measured
CORRELATE_RESULTS = 9 << 15  # bytes of the results of these and of a block's output channels: they stay in L2
MOST_RESULTS = 1 << 19  # bytes of the fewest that a block has
SHARED_CELLS = (2, 1), (3, 1), (5, 1), (3, 2)  # taps along x, and steps, whose cells kernels broadcast once for all
# operations of a vector of an inner product, and of adding up its lanes; and of broadcasting a cell to one vector of
# columns, by rows of a tile
DOT_COST, LANES_COST, COLUMN_COST = 1.15, 2, {8: 1.15, 4: 2}
WORK = 1 << 18  # products that make a task worth its handling
# operations of a short tile, and of adding its sums to those that are kept, for each vector of them
KEPT_COST = 10
BOX_COST = 16  # operations that a product of a box costs besides those of its positions: tiles of few, weights from L2
# operations of reading a line of cells that are broadcast: in L2, there in new pages, and beyond
CELL_COST, CELL_COST_OF_PAGE, CELL_COST_BEYOND = 3, 10, 30
# cells of several channels are copied: what a vector of them costs, and how many are summed in registers, so that those
# of a tile and their weights stay in L1
COPY_COST, COPIED_AT_ONCE = 6, 96
ROWS_ACROSS = 7  # channels of target that vectors of channels of source are summed for
ACROSS_WEIGHTS = 1 << 15  # bytes of weights that vectors of channels of source meet: in L1
POSITIONS = (32, 64, 128, 256, 512, 1024, 2048)  # about so many of a block whose cells are broadcast
PAGES = 1 << 18  # bytes of pages that the processor finds quickly
STORE_COST = 16  # operations of turning and storing a vector of results
# operations of storing it where channels lie last: with all of a position's while a cache holds the block's, or later
STORE_COST_TOGETHER, STORE_COST_APART = 4, 30
TOGETHER = 1 << 16  # bytes of such a block's results


def _together(piece: Piece, groups: int, blocks: int, block: Block, rows: int, channels: int, tile: Tile) -> int:
    """How many small groups one task does at once, where their channels follow each other in every operand."""
    _, extent, _ = block
    source, target = piece.source, piece.target
    rows_of_group = prod(n for n, _ in piece.row_taps)
    if channels < piece.channels or rows < piece.rows or source.group != piece.channels * source.channel or (
            target.group * rows_of_group != piece.rows * target.channel):
        return 1
    taps = prod(axis.taps for axis in piece.axes)
    size, _, positions = scratch_of(streams_of(piece.axes), block, tile.lanes)
    most = min(WORK // max(1, positions * taps * channels * piece.rows), GROUPS // (size * channels * tile.itemsize),
               RESULTS // (2 * positions * piece.rows * tile.itemsize))
    return min(groups, max(1, min(most, blocks * groups // tile.tasks)))


class _Sized(NamedTuple):
    """Blocks of one size whose cells are broadcast: positions of one, how many, the taps of all their boxes, or of taps
    alone; what a cell costs, and to copy all of them, in operations."""

    positions: int
    number: int
    taps: int
    cell: float
    copy: int
    samples: int
    extent: Triple


def _cell_cost(piece: Piece, channels: int, tile: Tile, by_taps: bool) -> Callable[[int], float]:
    """Of a product of a panel, what its cell costs, where a block has so many cells of a channel."""
    taps = (1, 1, 1) if by_taps else tuple(axis.taps for axis in piece.axes)
    pages = channels * piece.source.channel * tile.itemsize > PAGES
    near = CELL_COST_OF_PAGE if pages else CELL_COST
    if piece.axes[2].taps == 1 and not piece.source_last:
        near *= piece.axes[2].step  # a line has cells that no tap reads
    of_cell, shared = channels * tile.itemsize, tile.rows * taps[2]  # bytes, and products that share a line of cells
    if piece.source_last and channels < piece.channels and of_cell < LINE:  # of which later channels read the rest
        of_cell = min(LINE, piece.source.axes[2] * tile.itemsize)
        shared = channels * max(1, prod(taps) // prod(axis.step for axis in piece.axes))
    return lambda cells: (CELL_COST_BEYOND if cells * of_cell > SCRATCH else near) / shared


def _sizes(piece: Piece, channels: int, tile: Tile, by_taps: bool) -> list[_Sized]:
    """The sizes of blocks to choose from: some positions of a sample, or some samples."""
    count, taps = tuple(axis.positions for axis in piece.axes), tuple(axis.taps for axis in piece.axes)
    of_stretches = [cells_met(axis)[1] for axis in piece.axes]
    total, cell_cost = prod(count), _cell_cost(piece, channels, tile, by_taps)
    wanted = [n for n in POSITIONS if n < 4 * total or n == POSITIONS[0]]  # of more, the same blocks follow again
    blocks = {(1, extent) for positions in wanted
              for extent, _ in candidates(count, positions, tile.lanes, least_of(piece))}
    if total < POSITIONS[-1]:
        blocks |= {(samples, count) for positions in POSITIONS for most in [max(1, positions // total)]
                   for samples in (min(piece.batch, most), even_part(piece.batch, most))}
    found = []
    for samples, extent in sorted(blocks):
        number = blocks_of(piece, (samples, extent, 0))
        cells = samples * prod(min(axis.size, axis.step * (n - 1) + abs(axis.tap_step) * (axis.taps - 1) + 1)
                               for axis, n in zip(piece.axes, extent))
        of_boxes = number * prod(taps) if by_taps else -(-piece.batch // samples) * prod(
            total + (-(-positions // n) - 1) * k for total, k, positions, n in zip(of_stretches, taps, count, extent))
        copy = COPY_COST * number * -(-cells // tile.lanes) if piece.several else 0
        found.append(_Sized(samples * prod(extent), number, of_boxes, cell_cost(cells), copy, samples, extent))
    return found


@lru_cache(maxsize=64)
def broadcast_blocking(
    piece: Piece, groups: int, channels: int, tile: Tile, members: int = 1, by_taps: bool = False
) -> tuple[float, Blocking | None]:
    """The cheapest blocks for cells that are broadcast, and their cost: as `cost_of`, of all channels.

    As many `members` have their results in L2 at once; None where there is no room for those of several.
    by_taps: under one tap after the other, not in boxes of positions that have the same taps.
    """
    width, taps = tile.vectors * tile.lanes, prod(axis.taps for axis in piece.axes)
    sizes = _sizes(piece, channels, tile, by_taps)
    smallest, positions = min(sizes).positions, piece.batch * prod(axis.positions for axis in piece.axes)
    products = piece.batch * prod(cells_met(axis)[0] for axis in piece.axes)
    least, best, least_tasks, room = inf, None, wanted_tasks(piece, groups, tile), RESULTS // members
    for rows in {min(piece.rows, up_to(even_part(piece.rows, most), tile.lanes)) for most in (width, *ROW_BLOCKS)}:
        if by_taps and rows > width and rows * channels * taps * tile.itemsize > PANEL:
            continue
        times, vectors = -(-piece.rows // rows), -(-rows // tile.lanes)
        panels = times * -(-vectors // tile.vectors)
        kept = KEPT_COST * times * vectors * -(-piece.channels // channels) * by_taps
        for size in sizes:
            if size.positions * rows * tile.itemsize > room and (
                    members > 1 or size.positions > max(POSITIONS[0], smallest)):
                continue
            work = products * kept + piece.channels * (
                products * (times * vectors + size.cell * panels) + BOX_COST * size.taps * panels + size.copy * times)
            tasks = times * size.number
            store = STORE_COST
            if piece.target.channel == 1:
                together = times == 1 and size.positions * rows * tile.itemsize <= TOGETHER
                store = STORE_COST_TOGETHER if together else STORE_COST_APART
            cost = work + store * positions * times * vectors + 300 * tasks
            cost *= unevenness(tasks * groups, least_tasks)
            if cost < least:
                least, best = cost, Blocking(
                    GATHER_BROADCAST, size.samples, size.extent, 0, channels, rows, by_taps=by_taps)
    return least, best


def are_few(piece: Piece) -> bool:
    """Whether a plane has so few cells that its weights cost more than they; a dense layer's has one, and its positions
    are samples, which have no say."""
    return piece.turned or prod(axis.size for axis in piece.axes) <= FEW_CELLS


def _waits_for_memory(piece: Piece, tile: Tile) -> bool:
    """Whether a lone tap has so few rows, and planes so large, that memory is the limit, if these are read in runs. It
    decides the order of sums, as only planes can be read so."""
    size = piece.channels * prod(axis.size for axis in piece.axes) * tile.itemsize
    return piece.rows <= FEW_ROWS and size > BEYOND and piece.source.axes[2] == 1 and not piece.several and (
        all(axis.step == 1 for axis in piece.axes))


def channels_at_once(piece: Piece, tile: Tile, most_taps: int = 0) -> int:
    """How many channels are summed in registers; what makes the order of a sum."""
    taps = prod(axis.taps for axis in piece.axes)
    if piece.woven:  # of a cell, all channels are loaded as one vector
        return piece.channels
    most = COPIED_AT_ONCE if piece.several else 256 if are_few(piece) else 128  # under few taking sums up costs more
    if max(taps, most_taps) == 1 and _waits_for_memory(piece, tile):
        most = FEW_PLANES if 2 * piece.rows <= FEW_ROWS else 2 * FEW_PLANES
    if tile.rows == 4 and not most_taps and piece.axes[2].taps == 1 < taps:
        most = min(most, NEAR // (taps * (tile.vectors * tile.lanes * tile.itemsize + LINE)))
    return even_part(piece.channels, min(most, DEPTH // max(1, taps, most_taps)))


def by_taps_blocking(piece: Piece, groups: int, tile: Tile) -> tuple[float, Blocking | None]:
    """For cells that are broadcast under one tap after the other, and their cost: about as many channels at once as
    under a lone tap, of which the weights of all taps have room in a panel as wide as a tile."""
    taps, width = prod(axis.taps for axis in piece.axes), tile.vectors * tile.lanes * tile.itemsize
    channels = even_part(piece.channels, min(DEPTH // 2, PANEL // (taps * width)))
    return broadcast_blocking(piece, groups, channels, tile, by_taps=True)


def is_across(piece: Piece, tile: Tile) -> bool:
    """Whether vectors hold channels of source, for few of target: how these lie decides no order of sums. Half a vector
    of them and more are few where cells are read again, under other taps, and registers hold sums of most."""
    most = tile.lanes if tile.rows == 8 and prod(axis.taps for axis in piece.axes) > 1 else tile.lanes // 2
    return (
        piece.source_last and piece.source.channel == 1 and piece.rows < min(most, ROWS_ACROSS + 1)
        and piece.channels > 0 and piece.channels % tile.lanes == 0
        and all(axis.taps and axis.positions and axis.lattice for axis in piece.axes)
        and (piece.edge, piece.folded, piece.parts, piece.woven) == ("zeros", "zeros", 1, 0) and not piece.swapped
        and all(n == 1 for n, _ in piece.row_taps))


def across_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For cells whose channels fill vectors."""
    taps = prod(axis.taps for axis in piece.axes)
    most = ACROSS_WEIGHTS // tile.itemsize // taps // piece.rows // tile.lanes
    channels = up_to(even_part(piece.channels, max(1, most) * tile.lanes), tile.lanes)
    _, blocking = broadcast_blocking(piece, groups, channels, tile)
    assert blocking is not None
    return blocking._replace(way=GATHER_ACROSS)


@lru_cache(maxsize=64)
def unrolled_blocking(piece: Piece, groups: int, channels: int, tile: Tile) -> tuple[float, Blocking]:
    """The cheapest blocks for matrix products of unrolled cells, and their cost."""
    taps = max(1, prod(axis.taps for axis in piece.axes))
    total = prod(axis.positions for axis in piece.axes) * piece.batch
    width = tile.lanes * tile.vectors
    least_tasks = wanted_tasks(piece, groups, tile)

    def options() -> Iterator[tuple[float, int, Block, int]]:
        for most in ROW_BLOCKS:
            rows = min(piece.rows, up_to(even_part(piece.rows, most), tile.rows))
            if rows > most and most > ROW_BLOCKS[0] or rows * channels * taps * tile.itemsize > PANEL:
                continue
            times = groups * -(-piece.rows // rows)
            wanted = min(8 * width * min(8, max(1, 32 // rows)), RESULTS // tile.itemsize // rows)
            for positions in {wanted, min(wanted, up_to(total // (least_tasks // times or 1), width))}:
                block = _fitting(piece, max(width, positions), rows, channels, tile)
                tasks, once = times * blocks_of(piece, block), piece.channels * cost_of(piece, rows, tile)(block)
                yield once * -(-piece.rows // rows) * unevenness(tasks, least_tasks), rows, block, tasks
            if rows == piece.rows:
                return

    cost, rows, block, tasks = min(options(), key=itemgetter(0))
    if tasks < least_tasks:
        rows = min(rows, max(4 * tile.rows, up_to(piece.rows * tasks // least_tasks, tile.rows)))
    together = _together(piece, groups, blocks_of(piece, block), block, rows, channels, tile)
    in_place = together == 1 and block[0] == 1 and is_flat(piece) and not is_copied(piece, tile)
    way = GATHER_FLAT if in_place else GATHER
    return cost, Blocking(way, *block, channels, rows, groups=together)


def dense_blocking(piece: Piece, channels: int, tile: Tile) -> Blocking | None:
    """For a few samples of a dense layer, which are its positions."""
    samples = piece.axes[2].positions
    if not piece.turned or not 0 < samples <= MOST_SAMPLES[tile.rows] or not piece.rows * piece.channels:
        return None
    tasks = max(1, min(tile.tasks, piece.rows * piece.channels // DENSE_TASK))
    most = (DENSE_SUMS_BESIDE if piece.weight.batch == 1 else DENSE_SUMS) // tile.itemsize
    rows = min(piece.rows, up_to(even_part(piece.rows, min(most, -(-piece.rows // tasks))), tile.lanes))
    return Blocking(GATHER_DENSE, 1, (1, 1, samples), 0, channels, rows)


def pays_by_dots(piece: Piece, blocking: Blocking, tile: Tile) -> bool:
    """Whether inner products along positions cost grad_weight less than cells that are broadcast to the one vector of
    few output channels: where a row of positions is short, unrolling costs more, and so do those of cells in the
    padding, which are left out else. In the model's vector operations, as measured."""
    taps, extent = prod(axis.taps for axis in piece.axes), blocking.extent
    if taps == 1 or blocking.way != CORRELATE_FEW:
        return True
    block = blocking.samples, extent, blocking.shared
    size, streams, at_once = scratch_of(streams_of(piece.axes), block, tile.lanes)
    dots = -(-at_once // tile.lanes) * (DOT_COST * piece.rows + 1) + LANES_COST * piece.rows
    rows = blocking.samples * extent[0] * extent[1] * streams
    each = taps * dots + unrolling_cost(piece, size, rows, tile.lanes)
    others = piece.batch * prod(cells_met(axis)[0] for axis in piece.axes)
    return blocks_of(piece, block) * each < COLUMN_COST[tile.rows] * others


def many_rows_blocking(piece: Piece, rows: int, groups: int, channels: int, tile: Tile) -> Blocking:
    """Blocks whose cells are unrolled once for so many rows, of several pieces, and have all their results in L2."""
    width, total = tile.lanes * tile.vectors, prod(axis.positions for axis in piece.axes) * piece.batch
    shared = up_to(-(-total * groups // wanted_tasks(piece._replace(rows=rows), groups, tile)), width)
    most = min(8 * width, RESULTS // tile.itemsize // rows, shared)
    return Blocking(GATHER, *_fitting(piece, max(tile.lanes, most), rows, channels, tile), channels, piece.rows)


def _is_unrolled(piece: Piece, taps: int, tile: Tile) -> bool:
    """Whether grad_weight reads a lone tap's cells, which lie apart, from scratch: tiles of four rows read each line of
    source so often that what they leave of it costs more. So do those of eight where numbers have 8 bytes and output
    channels are many. Cells whose channels lie last are so read under a stride, for many output channels, and where,
    being most channels, many of them lie a power of two apart: they would meet in few sets of the caches."""
    if taps != 1 or piece.turned:
        return False
    if piece.source_last:
        apart = tile.itemsize * piece.source.axes[2]
        over = apart * piece.batch * prod(axis.positions for axis in piece.axes)
        in_few_sets = apart >= FEW_SETS and apart == power_of_two(apart)
        return piece.axes[2].step > 1 and piece.rows >= OFTEN_LAST or (
            in_few_sets and over >= SPREAD_OVER and piece.channels >= 2 * piece.rows)
    often = tile.rows == 4 or tile.itemsize == 8 and piece.rows >= OFTEN_BY_EIGHT
    return often and piece.axes[2].step > 1


def _blocks_of_channels(piece: Piece, channels: int, columns: int) -> tuple[int, int]:
    """Of a group: blocks of the target's channels, and of the source's."""
    return -(-piece.rows // columns), -(-piece.channels // channels)


def _even_channels(piece: Piece, taps: int, most: int, columns: int, tile: Tile) -> int:
    """Channels of a block of grad_weight, about `most`. Amid padding most taps reach positions of their own, so that
    rows of a register tile are channels of one tap: whole tiles of them. Fewer share the cells of a row of taps, if
    these are such. Where channels lie last, those of a line are read together."""
    x = piece.axes[2]
    shares = any((x.taps, x.step) == (shared, step * abs(x.tap_step)) for shared, step in SHARED_CELLS)
    least = tile.rows // 2 if shares else LINE // tile.itemsize if piece.source_last else tile.rows
    fitting = max(1, min(max(most, least), MOST_RESULTS // tile.itemsize // (columns * taps)))
    channels = even_part(piece.channels, fitting)
    if taps == 1 or channels == piece.channels or fitting < tile.rows or not has_padding(piece.axes):
        return channels
    return min(up_to(channels, tile.rows), fitting // tile.rows * tile.rows)


def _correlated(piece: Piece, groups: int, taps: int, wanted: int, tile: Tile) -> tuple[int, int]:
    """Channels and columns of a block of grad_weight: the source is read anew for each block of columns, the target
    turned anew for each block of channels; and where both leave fewer units than wanted, sums are made in parts."""
    room = CORRELATE_RESULTS // tile.itemsize
    positions = max(1, piece.batch * prod(axis.positions for axis in piece.axes))
    streams = prod(axis.streams for axis in piece.axes) if taps <= CORRELATE_ROWS else taps
    read = 2 * streams * (1 if piece.axes[2].step == 1 else 3)
    deepest = CORRELATE_ROWS
    if _is_unrolled(piece, taps, tile):
        deepest = min(deepest, SCRATCH // (CORRELATE_POSITIONS * tile.itemsize))

    def cost(option: tuple[int, int]) -> float:  # of a position
        channels, columns = option
        across, deep = _blocks_of_channels(piece, channels, columns)
        parts = min(-(-wanted // (groups * across * deep)), positions // LEAST_POSITIONS)
        added = ADD_COST * parts * piece.rows * piece.channels * taps / positions if parts > 1 else 0.0
        return across * piece.channels * read + deep * piece.rows * (tile.lanes.bit_length() + 2) + added

    options: list[tuple[int, int]] = []
    for vectors in (6, 9, 12, 18, 24, 36):
        columns = up_to(even_part(piece.rows, vectors * tile.lanes), tile.lanes)
        if options and columns * taps > room:  # of a single channel
            break
        most = min(deepest, room // columns) // taps
        options += [(_even_channels(piece, taps, most // n, columns, tile), columns) for n in (1, 2, 4)]
    return min(options, key=cost)


def _fitting(piece: Piece, positions: int, rows: float, channels: int, tile: Tile, gaps: bool = True) -> Block:
    """The block of at most about `positions` positions that fits scratch."""
    while True:
        block = best_block(piece, positions, rows, tile, gaps)
        size, *_ = scratch_of(streams_of(piece.axes), block, tile.lanes)
        if size * channels * tile.itemsize <= SCRATCH or positions <= tile.lanes:
            return block
        positions //= 2


def _most_positions(piece: Piece, taps: int, tile: Tile) -> int:
    """Of a block of grad_weight: fewer where each has lines of its own, which are read again for every tile of rows;
    half as many where under a stride lines have cells that no tap reads, as measured in tiles of eight rows."""
    apart = piece.axes[2].step * piece.source.axes[2] * tile.itemsize >= LINE
    copied = _is_unrolled(piece, taps, tile) or not reads_source_last(CORRELATE, piece, tile.itemsize)
    width = tile.vectors * tile.lanes * tile.itemsize
    if copied:
        return CORRELATE_POSITIONS
    if apart:
        return APART // (LINE + width)
    return CORRELATE_POSITIONS // 2 if tile.rows == 8 and piece.axes[2].step > 1 else CORRELATE_POSITIONS


def correlate_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For grad_weight: `rows` is here the block of output channels."""
    taps, count = max(1, prod(axis.taps for axis in piece.axes)), tuple(max(1, axis.positions) for axis in piece.axes)
    wanted = max(1, tile.units * wanted_tasks(piece, groups, tile) // TASKS)
    channels, columns = _correlated(piece, groups, taps, wanted, tile)
    units = groups * prod(_blocks_of_channels(piece, channels, columns))
    most = max(LEAST_POSITIONS, min(_most_positions(piece, taps, tile), prod(count) * piece.batch * units // wanted))
    options = [(samples, extent, 0) for extent, _ in candidates(count, most, tile.lanes)
               for samples in ({1, even_part(piece.batch, max(1, most // prod(extent)))} if extent == count else {1})
               if samples * prod(extent) <= 1.5 * most]
    block = min(options, key=lambda block: blocks_of(piece, block))
    way = CORRELATE_UNROLLED if _is_unrolled(piece, taps, tile) else CORRELATE
    return Blocking(way, *block, channels, columns, splits_of(blocks_of(piece, block), units, wanted))


def few_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """The same for few output channels; or for many, which stay where they lie, of few input channels."""
    taps = max(1, prod(axis.taps for axis in piece.axes))
    channels = even_part(piece.channels, DOT_ROWS // taps)
    many = piece.rows > tile.lanes
    block = _fitting(piece, DOTS if many else 128 * tile.lanes, piece.rows / tile.lanes, channels, tile, not many)
    splits = splits_of(blocks_of(piece, block), groups * -(-piece.channels // channels), tile.units)
    together = _together(piece, groups, 1, block, piece.rows, channels, tile)
    in_runs = is_flat(piece) and piece.target.axes[2] == 1 and not piece.patched[1] and all(
        axis.positions == 1 for axis in piece.axes[:2])
    way = CORRELATE_FLAT if together == 1 and block[0] == 1 and in_runs else CORRELATE_FEW
    return Blocking(way, *block, channels, piece.rows, splits, together)
