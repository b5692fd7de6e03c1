"""Blocks of the ways for few channels in many groups, as in depthwise convolution: a lane a group, or by rows."""

from math import prod
from operator import or_

from pyconv._blocks import (
    CORRELATE_LAST,
    CORRELATE_POSITIONS,
    CORRELATE_ROWS,
    GATHER_DIRECT,
    GATHER_LAST,
    GATHER_ROWS,
    GROUPS,
    LEAST_POSITIONS,
    Blocking,
    Tile,
    best_block,
    blocks_of,
    candidates,
    cost_of,
    even_part,
    holding,
    least_of,
    splits_of,
    up_to,
    wanted_tasks,
)
from pyconv._edges import NO_FOLDS
from pyconv._piece import Piece, Triple

BOX = 1 << 18  # bytes of the cells that a direct block reads and of its results: a quarter of a common L2
LEAST_DOWN = 6  # for grad_weight: rows whose products are worth more than what a plane of them costs besides,
MOST_DOWN = 512  # and rows of a block, as rounding errors grow with them
MOST_DEEP = 512  # products of a sum of a direct block: of as many taps as a piece may have
MOST_ALONG = 7  # taps along x that share cells where channels lie last
LEAST_ACROSS, MOST_ACROSS = 12, 512  # positions of a row that are worth more than turned vectors; of a block's row
MOST_ADDED = 1024  # channels whose sums are added one after the other, as rounding errors grow with them
LEAST_FILLED = 0.7  # of a row's vectors, if they are
DIRECT_WEIGHTS = 1 << 15  # bytes of weights of a direct block, or of grad_weight's results: in L1
IN_REGISTERS = 8  # neighbouring positions whose results are
MOST_TURNED = 512  # bytes of a cell, or of a position, whose channels lie last and are turned to rows
LEAST_ROWS = 8  # of a block where channels lie last, if there are
MOST_MIXED = 256  # bytes of a cell, or of a position, whose channels are done together where the other's lie in rows
FEW_PLACES = 1024  # bytes
ALONE = {1: 1}  # channels of groups that are done together where they lie last, and how many lanes a vector must have
IN_TURNS = {1: 1, 2: 2, 4: 4, 8: 16}  # the same for grad_weight: 8 channels of 8 lanes took up to 1.6 times as long
TILES_LOSE = 1.5  # how much longer tiles take for few rows than the count of their operations says, as measured


def direct_blocking(piece: Piece, groups: int, tile: Tile, always: bool = False) -> Blocking | None:
    """A direct block, a lane a group, where that is possible and the cheaper way: of one sample, so for any batch."""
    taps, width = prod(axis.taps for axis in piece.axes), tile.lanes * tile.itemsize
    depth, count = piece.channels * taps, tuple(axis.positions for axis in piece.axes)
    if groups == 1 or piece.turned or piece.swapped or piece.woven or not all(count) or (
            not 0 < depth <= MOST_DEEP or depth * piece.rows * width > DIRECT_WEIGHTS
            or any(n > 1 for n, _ in piece.row_taps)):
        return None

    (step_z, more_z), (step_y, more_y), (step_x, more_x) = (
        (axis.step, 1 - axis.step + abs(axis.tap_step) * (axis.taps - 1)) for axis in piece.axes)
    least, channels, rows = least_of(piece), piece.channels, piece.rows
    extents = dict.fromkeys(extent for n in range(prod(count).bit_length() + 1)
                            for extent, _ in candidates(count, 1 << n, tile.lanes, least))
    vectors: dict[Triple, tuple[int, int]] = {}  # of the extents that fit: those of their cells, and of their results
    for z, y, x in extents:
        of_cells = channels * (step_z * z + more_z) * (step_y * y + more_y) * (step_x * x + more_x)
        of_results = rows * z * y * x
        if (of_cells + of_results) * width <= BOX:
            vectors[z, y, x] = of_cells, of_results
    if not vectors:
        return None
    turned = tile.lanes.bit_length() + 1  # operations of turning a vector

    def cost(extent: Triple) -> float:
        of_cells, of_results = vectors[extent]
        work = of_cells * turned + of_results * (1.2 * depth + turned + 1) + 300
        return blocks_of(one, (1, extent, 0)) * -(-groups // tile.lanes) * work

    one = piece._replace(batch=1)
    best = min(vectors, key=cost)
    most = 8 * tile.lanes * tile.vectors
    other = cost_of(one, piece.rows, tile.deciding)(best_block(one, most, piece.rows, tile.deciding, True))
    in_place = piece.source.group == piece.target.group == 1 and 2 * groups > tile.lanes  # what tiles would copy first
    if not (always or in_place) and cost(best) > TILES_LOSE * groups * other * piece.channels:
        return None
    blocks = blocks_of(one, (1, best, 0)) * -(-groups // tile.lanes)  # of one sample
    most = min(BOX // (sum(vectors[best]) * width), piece.batch * blocks // wanted_tasks(piece, groups, tile))
    samples = even_part(piece.batch, most)
    return Blocking(GATHER_DIRECT, samples, best, 0, piece.channels, piece.rows, groups=min(groups, tile.lanes))


def _are_turned(piece: Piece, groups: int, tile: Tile) -> bool:
    """Whether so few channels lie last, as in an image, that rows of theirs are worth turning: of more, but for groups
    of several, a lane each is as fast."""
    several, most = max(piece.rows, piece.channels), tile.lanes - 1
    if groups > 1 and several > 1:
        most = max(most, MOST_TURNED // tile.itemsize)
    return (piece.source_last or piece.target_last) and groups * several <= most


def _has_rows(piece: Piece, groups: int, tile: Tile) -> bool:
    """Whether a channel of target has one of source, or is its group's only one, and rows may be vectors."""
    z, y, x = piece.axes
    turned = _are_turned(piece, groups, tile)
    able = all(stride == 1 or turned and last for stride, last in (
        (piece.source.axes[2], piece.source_last), (piece.target.axes[2], piece.target_last)))
    if not able or (
            (y.step, x.step, z.taps, piece.parts) != (1, 1, 1, 1)
            or piece.turned or piece.swapped or piece.woven or any(n > 1 for n, _ in piece.row_taps)
            or piece.target.group != piece.rows * piece.target.channel):
        return False
    # tiles of more rows load a cell for all of them
    if (piece.channels > 1 and piece.rows > 1) or (groups == 1 and piece.rows > 2) or piece.channels > MOST_ADDED:
        return False
    most_taps = 7 if tile.rows == 8 else 5  # as many rows of results, of two vectors, are kept in registers
    if y.taps != x.taps or x.taps not in range(3, most_taps + 1, 2) or {abs(y.tap_step), abs(x.tap_step)} != {1}:
        return False
    return y.positions * z.positions > 0 and x.positions >= LEAST_FILLED * up_to(x.positions, tile.lanes)


def in_rows(piece: Piece, tile: Tile) -> Piece:
    """The piece as rows have it. Of three taps whatever is beyond the edges by one is summed with the cells that it is
    added to. To a row's second cell it is added in the first vector, which the last one must not be stored over."""
    if piece.folds == NO_FOLDS:
        return piece
    made = piece.at_cells
    is_apart = piece.folded == "replicate" or made.axes[2].positions != tile.lanes + 1
    is_near = max(map(max, piece.folds)) <= 1 and made.axes[2].taps == 3
    return made if is_near and is_apart else piece


def rows_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking | None:
    """Rows of positions that are gone through from the top down, where they fill vectors: of one sample, so for any
    batch."""
    piece = in_rows(piece, tile)
    width = piece.axes[2].positions
    least_across = tile.lanes if piece.folds == NO_FOLDS else 2 * tile.lanes  # results that are folded are stored after
    if width < max(least_across, LEAST_ACROSS) or not _has_rows(piece, groups, tile):
        return None
    return _in_rows(piece, groups, tile, piece.axes[1].positions)


def rows_weight_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking | None:
    """The same for grad_weight of 3 x 3 taps, whose sums are in registers; its rows may be narrower: none is stored."""
    _, y, x = piece.axes
    if (piece.channels, x.taps) != (1, 3) or not x.positions or y.positions < LEAST_DOWN or not (
            _has_rows(piece, groups, tile)):
        return None
    vectors = up_to(x.positions, tile.lanes) // tile.lanes
    most = MOST_DOWN // 2 if vectors == 2 else MOST_DOWN  # more vectors of a row are summed apart from other rows
    found = _in_rows(piece, groups, tile._replace(tasks=tile.units), most)  # rather tasks than sums to be added up
    blocks = blocks_of(piece, (1, found.extent, 0))
    return found._replace(way=CORRELATE_ROWS, splits=splits_of(blocks, -(-groups // found.groups), tile.units))


def _in_rows(piece: Piece, groups: int, tile: Tile, most: int) -> Blocking:
    """Blocks of so many rows at most, whole or parts that fill a vector."""
    _, y, x = piece.axes
    _, least, (first, last) = least_of(piece)
    across = holding(even_part(x.positions, MOST_ACROSS), x.positions, (first, max(last, tile.lanes)))
    row, wanted = piece.rows * across * tile.itemsize, wanted_tasks(piece, groups, tile)
    strips = blocks_of(piece, (1, (1, y.positions, across), 0)) * groups
    shared = max(8 * y.taps, y.positions * strips // wanted)  # rows of a block where there are few strips
    down = holding(even_part(y.positions, max(1, min(BOX // row, shared, most))), y.positions, least)
    tasks = blocks_of(piece, (1, (1, down, across), 0)) * groups // wanted
    together = max(1, min(groups, tasks, GROUPS // (row * down)))
    if _are_turned(piece, groups, tile):  # all read the same lines
        together, down = groups, holding(even_part(down, max(1, BOX // (row * groups))), y.positions, least)
    return Blocking(GATHER_ROWS, 1, (1, down, across), 0, piece.channels, piece.rows, groups=together)


def _are_better_packed(piece: Piece, tile: Tile, gathers: bool, is_source_last: bool) -> bool:
    """Whether cells take less time by lanes, where the other operand is turned anyway: those that several rows of taps
    read at a distance for which first-level caches have few places, and for grad_weight rows at a stride, of which more
    would be turned than are used."""
    z, y, _ = piece.axes
    if is_source_last:
        return z.taps * y.taps > 1 and piece.source.axes[2] * tile.itemsize % FEW_PLACES == 0
    return not gathers and any(axis.step > 1 for axis in piece.axes)


def _together(piece: Piece, groups: int, tile: Tile, gathers: bool) -> int:
    """How many groups are done together where channels lie last, each with as many in as out; 0 where they are not so.
    Of groups of one channel those of one operand may lie in rows, which are turned.
    """
    width, lanes_of = piece.channels, ALONE if gathers else IN_TURNS
    if width not in lanes_of or (piece.rows, piece.parts) != (width, 1) or not (
            lanes_of[width] <= tile.lanes <= groups * width):
        return 0
    operands = piece.source, piece.target
    are_last = [is_last and (operand.group, operand.channel) == (width, 1)
                for operand, is_last in zip(operands, (piece.source_last, piece.target_last))]
    are_rows = [operand.axes[2] == 1 and not patched for operand, patched in zip(operands, piece.patched)]
    if gathers:
        are_rows[1] = True  # results are stored in any order
    is_mixed = not all(are_last)
    if not any(are_last) or not all(map(or_, are_last, are_rows)) or is_mixed and (
            width > 1 or _are_better_packed(piece, tile, gathers, are_last[0])):
        return 0
    if (piece.edge, piece.folded) != ("zeros", "zeros") or piece.swapped or piece.woven or any(
            n > 1 for n, _ in piece.row_taps) or not all(x.taps and x.positions and x.lattice for x in piece.axes):
        return 0
    x = piece.axes[2]
    read = prod(axis.taps for axis in piece.axes[:2]) * (x.step * (IN_REGISTERS - 1) + x.taps)  # cells for these
    most = min(DIRECT_WEIGHTS // read, MOST_MIXED if is_mixed else DIRECT_WEIGHTS) // tile.itemsize
    channels = up_to(even_part(groups * width, most), tile.lanes)
    # where the last part had less than a vector, its vector would have channels of the part before
    return groups if 0 < groups * width % channels < tile.lanes else channels // width


def _is_copied(piece: Piece) -> bool:
    return any(piece.patched[:2]) or not (piece.source_last and piece.target_last)


def _room(piece: Piece, tile: Tile) -> int:
    """Cells that a block may have where channels lie last: those that are copied take as much again."""
    return BOX // tile.itemsize // (2 if _is_copied(piece) else 1)


def last_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking | None:
    """Boxes of positions where channels lie last: of one sample, so for any batch. Under rows of many taps side by
    side, at stride 1, cells that are copied first lie close together."""
    (_, y, x), together, room = piece.axes, _together(piece, groups, tile, True), _room(piece, tile)
    if not together or (x.taps > MOST_ALONG and (x.step, abs(x.tap_step)) == (1, 1)):
        return None
    across = even_part(x.positions, max(1, room // (min(LEAST_ROWS, y.positions) * together)))
    most = max(1, room // (together * across))
    blocks = blocks_of(piece, (1, (1, y.positions, across), 0)) * -(-groups // together)
    shared = -(-y.positions * blocks // wanted_tasks(piece, groups, tile))
    down = even_part(y.positions, min(most, shared))
    return Blocking(GATHER_LAST, 1, (1, down, across), 0, 1, 1, groups=together)


def last_weight_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking | None:
    """The same for grad_weight, of rows of three taps: of more, cells that are copied first are read less often."""
    together, (z, y, x) = _together(piece, groups, tile, False), piece.axes
    if not together or x.taps != 3:
        return None
    units = -(-groups // together)
    wanted = -(-tile.units // (units * z.positions * piece.batch))  # blocks of a plane
    across = max(LEAST_POSITIONS, min(CORRELATE_POSITIONS, x.positions * y.positions // wanted))  # a row is one sum
    wide, down = even_part(x.positions, across), -(-y.positions // wanted)
    if _is_copied(piece):
        down = min(down, max(1, _room(piece, tile) // (together * piece.channels * wide)))
    extent = 1, even_part(y.positions, down), wide
    splits = splits_of(blocks_of(piece, (1, extent, 0)), units, tile.units)
    return Blocking(CORRELATE_LAST, 1, extent, 0, piece.channels, piece.rows, splits, groups=together)
