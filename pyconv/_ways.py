"""Which way a piece is worked on: a table, of which the first row that suits is taken, with the reason for each.

How a piece is cut for a way is decided where the row says. What decides the order of a sum follows from the geometry of
one sample (of grad_weight, of the batch), the type and the kernels' tile: so a row may only look at these, but for rows
that sum in the same order, of which the batch may decide: those of dense layers, and the last two if no channels lie
last and no cells are broadcast tap by tap.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

from pyconv import _tiled
from pyconv._blocking import (
    DOTS,
    across_blocking,
    are_few,
    broadcast_blocking,
    by_taps_blocking,
    channels_at_once,
    correlate_blocking,
    dense_blocking,
    few_blocking,
    is_across,
    pays_by_dots,
    unrolled_blocking,
)
from pyconv._blocks import (
    CORRELATE,
    CORRELATE_DIRECT,
    CORRELATE_FEW,
    CORRELATE_FLAT,
    CORRELATE_LAST,
    CORRELATE_MATRICES,
    CORRELATE_POSITIONS,
    CORRELATE_ROWS,
    CORRELATE_UNROLLED,
    CORRELATE_WINOGRAD,
    GATHER,
    GATHER_ACROSS,
    GATHER_BROADCAST,
    GATHER_DENSE,
    GATHER_DIRECT,
    GATHER_FLAT,
    GATHER_LAST,
    GATHER_MATRICES,
    GATHER_ROWS,
    GATHER_SLICES,
    GATHER_WINOGRAD,
    TASKS,
    Blocking,
    Tile,
    blocks_of,
    even_part,
    power_of_two,
    splits_of,
    up_to,
)
from pyconv._depthwise import (
    direct_blocking,
    in_rows,
    last_blocking,
    last_weight_blocking,
    rows_blocking,
    rows_weight_blocking,
)
from pyconv._lattices import SIDES
from pyconv._matrices import matrix_blocking, matrix_weight_blocking, sliced_blocking, suits_matrices, suits_slices
from pyconv._piece import Axis, Piece
from pyconv._winograd import is_lone, of_tiles

# How much longer unrolled cells take than the count of their operations says, beside cells that are broadcast, as
# measured: in tiles of eight rows any, and those of 4 bytes that lie apart in so many channels and more; where L2 is
# large those of a lone tap, and those of one that lie apart;
BY_EIGHT, APART_BY_EIGHT, MANY_CHANNELS = 1.1, 1.17, 8
LONE_BY_EIGHT, LONE_APART_BY_EIGHT = 0.94, 1.12
# in tiles of four rows any; those that lie apart, under so many rows of taps and more; those under several rows of so
# many taps that overlap; and a few, where weights of some of the taps, which lie apart, are packed for them;
BY_FOUR, APART_BY_FOUR, MANY_ROWS, OVERLAPPING_BY_FOUR, MANY_TAPS, FEW_BY_FOUR = 0.95, 1.43, 3, 1.1, 4, 1.14
# how much less cells that are broadcast tap by tap must cost than in boxes, and than unrolled ones, by rows of a tile
# and whether their channels lie last
BY_TAPS = {(4, False): (2.2, 1.3), (4, True): (1.3, 1.1), (8, False): (2.2, 1.8), (8, True): (1.2, 1.1)}
ONE_VECTOR = 0.7  # of that beside one vector of rows where so many taps and more meet cells that lie apart
# operations of turning a number of channels that lie last, at stride 1 and at others
TURN_COST, TURN_COST_APART = 0.45, 1.1
MOSTLY_FILLED = 3  # vectors of output channels, of which the last may have a few
FEW_CELLS_READ = 16  # channels * taps for which the output channels are not turned
FEW_READ_BY_ONE = 16  # input channels of a lone tap whose products with less than a vector of output channels are few
MOST_SUMMED = 64  # rows of positions of a block, if samples are whole: rounding errors grow with them


class Asked(NamedTuple):
    """What a row may look at besides the piece: see `choose`."""

    map: str
    groups: int
    tile: Tile
    most_taps: int
    may_direct: bool


class Way(NamedTuple):
    """A row: `blocks` are those of the piece, in tiles of so many `outputs`, or None where the way does not suit; they
    are for one of the kernels of these `ways`. No `algorithms` stand for any."""

    name: str
    ways: tuple[int, ...]
    maps: tuple[str, ...]
    algorithms: tuple[str, ...]
    when: str
    why: str
    blocks: Callable[[Piece, Asked], Blocking | None]
    outputs: int = 0


def _tiles(piece: Piece, asked: Asked) -> Blocking | None:
    if not _tiled.tiling_pays(asked.map, piece):
        return None
    if asked.map == "grad_weight":
        return _of_batches(piece, asked.groups, asked.tile, _tiled.correlate)
    return _tiled.gather(piece, asked.tile)


# forward and grad_input

def _weights_of_matrices(piece: Piece, asked: Asked) -> Blocking | None:
    return _summed(matrix_weight_blocking)(piece, asked) if suits_matrices(asked.tile) else None


def _matrices_of(piece: Piece, asked: Asked) -> Blocking | None:
    return matrix_blocking(piece, asked.groups, asked.tile) if suits_matrices(asked.tile) else None


def _slices_of(piece: Piece, asked: Asked) -> Blocking | None:
    return sliced_blocking(piece, asked.groups, asked.tile) if suits_slices(piece, asked.tile) else None


def _lone_tiles(piece: Piece, asked: Asked) -> Blocking | None:
    tasks = max(1, asked.tile.tasks // SIDES)  # as many as there are of other parts are done along with these
    return _tiled.gather(piece, asked.tile._replace(tasks=tasks)) if is_lone(piece) else None


def _overlapping(piece: Piece, asked: Asked) -> Blocking | None:
    if all(axis.lattice for axis in piece.axes):
        return None
    apart = piece._replace(axes=tuple(axis._replace(lattice=1) for axis in piece.axes))
    _, blocking = unrolled_blocking(apart, asked.groups, channels_at_once(piece, asked.tile), asked.tile)
    extent = tuple(n if axis.lattice else axis.positions for axis, n in zip(piece.axes, blocking.extent))
    return blocking._replace(way=GATHER, extent=extent)


def _dense(piece: Piece, asked: Asked) -> Blocking | None:
    return dense_blocking(piece, channels_at_once(piece, asked.tile), asked.tile)


def _directly(blocks: Callable[[Piece, int, Tile], Blocking | None]) -> Callable[[Piece, Asked], Blocking | None]:
    def of(piece: Piece, asked: Asked) -> Blocking | None:
        return blocks(piece, asked.groups, asked.tile) if asked.may_direct and not piece.several else None
    return of


def _across(piece: Piece, asked: Asked) -> Blocking | None:
    return across_blocking(piece, asked.groups, asked.tile) if is_across(piece, asked.tile) else None


def unrolled_loses(piece: Piece, tile: Tile) -> float:
    """How much longer unrolled cells take than is counted: four rows leave more to what surrounds the products."""
    z, y, x = piece.axes
    rows, apart = z.taps * y.taps, x.step > 1 and piece.channels >= MANY_CHANNELS
    if tile.rows == 8:
        if prod(axis.taps for axis in piece.axes) == 1 and tile.has_large_cache:
            return LONE_BY_EIGHT if x.step == 1 else LONE_APART_BY_EIGHT
        return APART_BY_EIGHT if apart and tile.itemsize == 4 else BY_EIGHT
    loses = BY_FOUR
    if apart and rows >= MANY_ROWS:
        loses = APART_BY_FOUR
    elif rows > 1 and x.taps >= MANY_TAPS and x.taps > x.step:
        loses = OVERLAPPING_BY_FOUR
    elif are_few(piece) and rows * x.taps < min(piece.weight.batch, piece.weight.channel):
        loses = FEW_BY_FOUR
    return loses * (ONE_VECTOR if piece.rows <= tile.lanes and x.taps >= MANY_TAPS and x.step > 1 else 1)


def _turning_cost(piece: Piece) -> float:
    """Operations of turning a sample's cells and results whose channels lie last, of one group."""
    cells = piece.channels * prod(axis.size for axis in piece.axes) if piece.source_last else 0
    results = piece.rows * prod(axis.positions for axis in piece.axes) if piece.target_last else 0
    each = TURN_COST if all(axis.step == 1 for axis in piece.axes) else TURN_COST_APART
    return each * (cells + results)


def _is_better_turned(piece: Piece, asked: Asked, channels: int) -> bool:
    """Whether turning and unrolling cells whose channels lie last costs less than broadcasting them, to vectors that
    are not full or, where results lie in rows, to results that are turned afterwards. The two ways round differently,
    as one of them sums the padding too: so one sample decides, on any number of threads."""
    tile = asked.tile.deciding
    fills = piece.rows % tile.lanes == 0 or piece.rows >= MOSTLY_FILLED * tile.lanes
    if (piece.target_last and fills) or any(n > 1 for n, _ in piece.row_taps):
        return False
    one = piece._replace(batch=1)
    unrolled = unrolled_loses(one, tile) * unrolled_blocking(one, asked.groups, channels, tile)[0]
    return unrolled + _turning_cost(one) <= broadcast_blocking(one, asked.groups, channels, tile)[0]


def _pays_by_taps(piece: Piece, asked: Asked, channels: int) -> bool:
    """Whether cells are better broadcast under one tap after the other, as those of small images under large kernels,
    whose boxes have few positions for all of their weights. That is another order of sums, so one sample decides, on
    any number of threads; at a stride these would be read from as many lines for each tap."""
    tile, one = asked.tile.deciding, piece._replace(batch=1)
    less = BY_TAPS[tile.rows, piece.source_last]
    if piece.several or piece.woven or piece.swapped or any(axis.step > 1 for axis in piece.axes) or (
            prod(axis.taps for axis in piece.axes) == 1):
        return False
    taps, _ = by_taps_blocking(one, asked.groups, tile)
    boxes, _ = broadcast_blocking(one, asked.groups, channels, tile)
    if less[0] * taps >= boxes:
        return False
    return less[1] * taps < unrolled_loses(one, tile) * unrolled_blocking(one, asked.groups, channels, tile)[0]


def _broadcast(piece: Piece, asked: Asked) -> Blocking | None:
    channels, tile = channels_at_once(piece, asked.tile, asked.most_taps), asked.tile
    if piece.turned or not channels or not all(axis.taps and axis.positions for axis in piece.axes):
        return None
    if _pays_by_taps(piece, asked, channels):
        return by_taps_blocking(piece, asked.groups, tile)[1]
    if (piece.source_last or piece.target_last) and not piece.several:
        turned = _is_better_turned(piece, asked, channels)
        return None if turned else broadcast_blocking(piece, asked.groups, channels, tile)[1]
    cost, blocking = broadcast_blocking(piece, asked.groups, channels, tile)
    if piece.several or cost < unrolled_loses(piece, tile) * unrolled_blocking(piece, asked.groups, channels, tile)[0]:
        return blocking
    return None


def _unrolled(piece: Piece, asked: Asked) -> Blocking:
    return unrolled_blocking(piece, asked.groups, channels_at_once(piece, asked.tile, asked.most_taps), asked.tile)[1]


# grad_weight

def _of_batches(
    piece: Piece, groups: int, tile: Tile, blocks: Callable[[Piece, int, Tile], Blocking | None]
) -> Blocking | None:
    """The blocks of a batch of the next power of two, cut to this one; so this batch wants no more scratch than that
    power of two does."""
    *outer, x = piece.axes
    whole = piece._replace(batch=power_of_two(piece.batch))
    if piece.turned:  # whose positions along the last axis are samples
        n = power_of_two(x.positions)
        whole = piece._replace(axes=(*outer, x._replace(positions=n, size=n)))
    found = blocks(whole, groups, tile)
    if found is None:
        return None
    last = min(found.extent[2], x.positions) if piece.turned else found.extent[2]
    return found._replace(samples=even_part(piece.batch, found.samples), extent=(*found.extent[:2], last))


def _summed(blocks: Callable[[Piece, int, Tile], Blocking | None]) -> Callable[[Piece, Asked], Blocking | None]:
    def of(piece: Piece, asked: Asked) -> Blocking | None:
        return _of_batches(piece, asked.groups, asked.tile._replace(tasks=TASKS, second_level=0), blocks)
    return of


def _weights_of_lanes(piece: Piece, groups: int, tile: Tile) -> Blocking | None:
    blocking = direct_blocking(piece, groups, tile)
    if blocking is None:
        return None
    z, y, _ = blocking.extent
    samples = even_part(piece.batch, max(1, min(blocking.samples, MOST_SUMMED // (z * y))))
    blocks = blocks_of(piece, (samples, blocking.extent, 0))
    return blocking._replace(way=CORRELATE_DIRECT, samples=samples, splits=splits_of(
        blocks, -(-groups // blocking.groups), tile.units))


def _reads_few(piece: Piece, tile: Tile) -> bool:
    """Whether many output channels, which lie in rows, meet so few cells that turning them costs more: as measured in
    tiles of eight rows."""
    cells = piece.channels * prod(axis.taps for axis in piece.axes)
    return tile.rows == 8 and piece.rows > tile.lanes and 0 < cells <= FEW_CELLS_READ and not (
        piece.source_last or piece.target_last or piece.turned or any(piece.patched))


def _few(piece: Piece, groups: int, tile: Tile) -> Blocking | None:
    half, plane = tile.lanes // 2, prod(axis.positions for axis in piece.axes)
    if _reads_few(piece, tile) and plane >= DOTS:
        return few_blocking(piece, groups, tile)
    at_stride_one = all(axis.step == 1 for axis in piece.axes)
    is_copied = piece.source_last or piece.target_last or any(axis.taps > 1 for axis in piece.axes)
    pays = piece.rows == half and (piece.channels <= half or at_stride_one and plane >= CORRELATE_POSITIONS) or (
        at_stride_one and not is_copied and (
            piece.channels <= tile.rows or piece.channels <= FEW_READ_BY_ONE and piece.rows < tile.lanes))
    if not (piece.rows < half or pays and plane * piece.batch >= CORRELATE_POSITIONS):
        return None
    blocking = few_blocking(piece, groups, tile)
    return blocking if pays_by_dots(piece, blocking, tile) else None


SUMS, WEIGHT, ANY = ("forward", "grad_input"), ("grad_weight",), ()
WAYS = (
    Way("product of matrices", (GATHER_MATRICES,), SUMS, ANY,
        "8-bit integers and, if `algorithm='auto'`, bfloat16, in groups of some channels, where the processor has "
        "registers for matrices (AMX)",
        "16 by 16 sums of 32 or 64 products each are made at once, of few channels those of a row of taps",
        _matrices_of),
    Way("product of matrices", (CORRELATE_MATRICES,), WEIGHT, ANY,
        "the same of bfloat16 alone, where what lies beyond the edges is zeros",
        "16 by 16 sums along 32 positions are made at once", _weights_of_matrices),
    Way("Winograd F(4, 3)", (GATHER_WINOGRAD, CORRELATE_WINOGRAD), SUMS + WEIGHT, ("winograd",),
        "three taps along y or x at stride 1, and fewer vector operations than products, transforms included",
        "a quarter of the products of 3×3, for three times the error: only where it is asked for", _tiles, 4),
    Way("Winograd F(2, 3)", (GATHER_WINOGRAD, CORRELATE_WINOGRAD), SUMS + WEIGHT, ("auto", "winograd"),
        "the same, in smaller tiles; of integers those of 8 bits, where two channels are summed at once",
        "4 products for 9 of 3×3, and transforms without a multiplication in forward and grad_input", _tiles, 2),
    Way("lone tiles", (GATHER_WINOGRAD,), SUMS, ("auto", "winograd"),
        "three taps at stride 1, so wide apart that no lattice of theirs has more than three cells along an axis, "
        "padding that keeps the size of an image without depth, and fewer vector operations than products",
        "no cell is beside a tile's own: two cells take 3 products for 4, three take 5 for 7", _lone_tiles),
    Way("product of slices", (GATHER_SLICES,), SUMS, ("auto",),
        "float32 in groups of many channels of either kind, under 64 taps at most, but for phases of a stride, where "
        "the processor has registers for matrices (AMX)",
        "a float is the sum of three brain floats of 8 bits; six of the products of these take two thirds of the time "
        "of one of floats, and their sums are rounded less often", _slices_of),
    Way("matrix product", (GATHER,), SUMS, ANY,
        "several positions are summed in one cell, as beyond a replicated edge under a stride",
        "they must be in one block, or two threads would add to one cell", _overlapping),
    Way("matrix product", (GATHER_DENSE,), SUMS, ANY,
        "the kernel covers the input, as in a dense layer, and the batch is small",
        "weights are read from where they lie, once for four samples: memory is the limit; sums are those of the last "
        "two rows",
        _dense),
    Way("direct", (GATHER_LAST,), SUMS, ANY,
        "groups of one channel, the channels lying last, at least in source or in target, but for more than seven taps "
        "side by side at stride 1, or cells that lie a multiple of 1 KB apart beside rows",
        "vectors of neighbouring channels are read and written where they lie: memory is the limit; rows are turned, a "
        "block at a time; in the other cases cells that are copied first are close together",
        _directly(last_blocking)),
    Way("direct", (GATHER_ROWS,), SUMS, ANY,
        "one channel in and a few out of each group, or several in and one out; odd square kernels of 3 to 7 at stride "
        "1, rows that fill vectors; where channels lie last only those of images, of fewer than a vector has, or of "
        "multipliers",
        "vectors of neighbouring positions, and as many rows of results in registers as there are rows of taps: a cell "
        "is loaded once", _directly(rows_blocking)),
    Way("direct", (GATHER_DIRECT,), SUMS, ANY,
        "several groups of few channels, where tiles of each group's own would cost more",
        "a lane holds a group, so that narrow rows and few channels fill vectors", _directly(direct_blocking)),
    Way("direct", (GATHER_ACROSS,), SUMS, ANY,
        "channels of the source lie last and fill vectors, those of the target are fewer than half a vector, or under "
        "several taps a vector of 8",
        "a register tile of so few rows is limited by its loads", _across),
    Way("matrix product", (GATHER_BROADCAST,), SUMS, ANY,
        "the cheaper one by the count of operations, turning channels that lie last among them: cells are read where "
        "they lie",
        "nothing is unrolled: a cell is broadcast to vectors of output channels, and cells in the padding are left "
        "out; where few positions have all taps alike, tap by tap, so that a block reads weights once",
        _broadcast),
    Way("matrix product", (GATHER, GATHER_FLAT), SUMS, ANY,
        "else: cells are unrolled into scratch, a block at a time",
        "vectors of positions, which few output channels, or many positions of a row, fill better", _unrolled),
    Way("direct", (CORRELATE_LAST,), WEIGHT, ANY,
        "groups of 1, 2, 4 or 8 channels in and as many out, and three taps along x, the channels lying last, of "
        "groups of one at least in the input or, at stride 1, in grad_output",
        "both operands are read where they lie, and within a vector each channel meets all of its group; with more "
        "taps cells that are copied first are read less often",
        _summed(last_weight_blocking)),
    Way("direct", (CORRELATE_ROWS,), WEIGHT, ANY,
        "one channel in and a few out of each group, 3×3 at stride 1, rows that fill most of a vector, where channels "
        "lie last as in the other maps",
        "vectors of neighbouring positions: both operands are read where they lie, and nothing is turned",
        _summed(rows_weight_blocking)),
    Way("direct", (CORRELATE_DIRECT,), WEIGHT, ANY,
        "several groups of few channels, where tiles of each group's own would cost more",
        "a lane holds a group, as in the other maps", _summed(_weights_of_lanes)),
    Way("matrix product", (CORRELATE_FEW, CORRELATE_FLAT), WEIGHT, ANY,
        "fewer output channels than half a vector, and with many positions half a vector, or few input channels under "
        "one tap, unless rows of positions are short or most cells lie in the padding; at most 16 cells of many "
        "positions",
        "inner products along the positions, which fill vectors; grad_output, and a lone tap's cells, are read where "
        "they lie if they do in runs",
        _summed(_few)),
    Way("matrix product", (CORRELATE, CORRELATE_UNROLLED), WEIGHT, ANY,
        "else: grad_output is turned, a block of positions at a time; cells are broadcast from where they lie, a lone "
        "tap's that lie apart from scratch",
        "vectors of output channels; a block's results stay in L2 while positions go by", _summed(correlate_blocking)),
)


def outputs_of_tiles(map: str, algorithm: str) -> list[int]:
    """Of the tiles that a map may take."""
    return [way.outputs for way in WAYS if way.outputs and map in way.maps and algorithm in way.algorithms]


@lru_cache(maxsize=256)
def _first(piece: Piece, asked: Asked, algorithm: str) -> tuple[Way, Blocking]:
    """The first row that suits, and its blocks, with no element's parts in two of them."""
    upwards = piece._replace(axes=tuple(axis._replace(lattice=abs(axis.lattice)) for axis in piece.axes))
    for way in WAYS:
        if asked.map not in way.maps or way.algorithms and algorithm not in way.algorithms:
            continue
        made = of_tiles(piece, way.outputs) if way.outputs else upwards
        blocking = made and way.blocks(made, asked)
        if blocking:
            return way, blocking._replace(
                channels=up_to(blocking.channels, piece.parts), rows=up_to(blocking.rows, piece.parts))
    raise AssertionError("the last row suits everything")


forget_first = _first.cache_clear


def _anywhere(axis: Axis) -> Axis:
    """The axis as far as a choice depends on it: of a lone tap all of whose cells are there, whether the first is read.
    """
    lattice = max(-1, min(axis.lattice, 1))
    if axis.taps == 1 and 0 <= axis.offset < axis.size - axis.step * (axis.positions - 1):
        return axis._replace(start=0, lattice=lattice, first=0, offset=min(axis.offset, 1), tap_step=1)
    return axis._replace(start=0, lattice=lattice, first=0)


def choose(
    map: str, piece: Piece, groups: int, tile: Tile, algorithm: str, most_taps: int = 0, may_direct: bool = True
) -> tuple[Piece, Blocking]:
    """The piece as it is to be worked on, and its blocks.

    Pieces that may share their source sum the same channels at a time: as many as suit the one of `most_taps`.
    """
    anywhere = piece._replace(  # phases of a stride and lone taps differ in where they lie, mostly in nothing else
        axes=tuple(_anywhere(axis) for axis in piece.axes),
        source=piece.source._replace(base=0), target=piece.target._replace(base=0),
        weight=piece.weight._replace(base=0), wave=0, accumulate=False)
    way, blocking = _first(anywhere, Asked(map, groups, tile, most_taps, may_direct), algorithm)
    made = in_tiles(piece, way.outputs)
    return in_rows(made, tile) if blocking.way == GATHER_ROWS else made, blocking


def in_tiles(piece: Piece, outputs: int) -> Piece:
    """The piece in tiles of so many outputs, which suits it; as it is where a tile has none or one."""
    made = of_tiles(piece, outputs) if outputs > 1 else piece
    assert made is not None
    return made


def name_of(piece: Piece, blocking: Blocking) -> str:
    """What a person calls the way."""
    name = next(way.name for way in WAYS if blocking.way in way.ways and way.outputs in (0, max(piece.tile)))
    return f"{name} of several channels" if piece.several and name == "matrix product" else name
