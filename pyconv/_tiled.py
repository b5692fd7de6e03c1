"""Blocks of Winograd's tiles, and whether these pay: reckoned in vector operations, of which a processor makes two a
cycle.

A block has arrays for every frequency. Large ones are read from beyond L2, which costs less than transforming anew for
every small one: so a block may be large, and where scratch is scarce there are narrow ones of the same sums.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import inf, lcm, prod
from typing import NamedTuple

from pyconv._blocks import (
    CORRELATE_WINOGRAD,
    GATHER_WINOGRAD,
    LINE,
    TASKS,
    UNITS,
    Block,
    Blocking,
    Tile,
    blocks_of,
    candidates,
    cells_met,
    even_part,
    least_of,
    power_of_two,
    scratch_of,
    splits_of,
    streams_of,
    up_to,
)
from pyconv._piece import Piece
from pyconv._winograd import ends_in_zeros, of_frequency, of_tiles

DEPTH = {1: 256, 2: 64}  # channels * taps summed at a time, by transformed axes: results are then taken up again
ROWS = 64, 128, 256  # of a block
NEVER = 1e30  # more than any cost
MOST_VECTORS = 15  # of tiles in a block
FREQUENCIES = {1: 1, 2: 4, 4: 6, -2: 3, -3: 5}  # along an axis, by the outputs of a tile, below 0 of a lone one
# operations of one axis's transform for a vector of tiles, with what it loads and stores: of cells or outputs that are
# dealt to the tiles of a row; of those of all rows, for each of which it is a pass
ROW = {1: 4, 2: 22, 4: 56, -2: 56, -3: 80}  # of lone tiles a row is read a few cells at a time, from beyond L2
PASS = {1: 0, 2: 20, 4: 42, -2: 12, -3: 24}
TRANSFORM = 7  # and of all for a vector of one frequency, where rows of tiles fill vectors
RUN_COST = 6  # of a row of outputs, which is stored by itself
PACK_COST = 30  # products that take as long as packing a weight once more
GRADIENT_COST = 12  # the same of transforming and storing what one frequency has of an element of the weight's gradient
PAYS, CUT_PAYS = 0.9, 0.87  # of what else it would cost: of tiles, and of these and products side by side


class Caches(NamedTuple):
    """What blocks of tiles must know of a processor's caches: bytes of all arrays of one; of one of grad_weight the
    bytes, channels * taps and register tiles of columns; what a vector of weights from beyond L2 costs, a line of
    cells that is written there and read again, each far from the one before, and to turn a vector of grad_weight's
    target."""

    room: int
    weight_room: int
    channels: tuple[int, ...]
    columns: tuple[int, ...]
    weights_cost: float
    far_cost: float
    turning_cost: float


CACHES = Caches(6 << 20, 5 << 20, (8, 16, 32, 48, 64, 96, 128), (1, 2, 3, 4), 24, 0, 0)
NARROW = CACHES._replace(room=14 << 17, weight_room=14 << 17)  # where scratch is scarce, on any processor
# Where L2 is large, as an Intel's, what is beyond it is farther than on those where the above was
# measured. Results may be there, since they are gone through in order: of more rows, or channels and columns, so that
# operands are transformed less often. Of cells all stay in L2 up to FAR_FROM of it, fewer and fewer up to its size.
LARGE_CACHES = Caches(12 << 20, 12 << 20, (*CACHES.channels, 192, 256), (*CACHES.columns, 6), 6, 60, 20)
FAR_FROM = 0.25
SUMS_FAR = 0.25  # of what a line of cells costs, a line of sums from which the weight's gradient is transformed


def _caches(tile: Tile) -> Caches:
    return NARROW if tile.narrow else LARGE_CACHES if tile.has_large_cache else CACHES


def _frequencies(piece: Piece) -> int:
    return prod(FREQUENCIES[n] for n in piece.tile)


def products(piece: Piece) -> float:
    """Of one sample, without tiles."""
    met = (axis.positions * axis.taps if piece.edge != "zeros" else cells_met(axis)[0] for axis in piece.axes)
    return prod(met) * piece.rows * piece.channels


def packing_cost(piece: Piece) -> float:
    """As many products as take the time of packing the weights."""
    return PACK_COST * piece.rows * piece.channels * prod(axis.taps for axis in piece.axes)


def tiled_cost(map: str, piece: Piece) -> float:
    """Products of one sample in tiles, with what as many transforms as there are of each operand cost."""
    source, target = -(-piece.rows // 128), 1  # how often each is transformed
    if map == "grad_weight":
        source, target = -(-piece.rows // 64), -(-piece.channels // 64)
    frequencies = _frequencies(piece)
    tiles = prod(axis.positions for axis in of_frequency(piece).axes)
    transforms = TRANSFORM * frequencies * tiles * (piece.channels * source + piece.rows * target)
    return frequencies * tiles * piece.rows * piece.channels * piece.axes[0].taps + transforms


def tiling_pays(map: str, piece: Piece) -> bool:
    """Whether tiles take fewer vector operations, transforms included: of one sample, so for any batch. The weight's
    gradient is transformed once for all samples, of which the next power of two decides."""
    if map != "grad_weight":
        return tiled_cost(map, piece) < PAYS * products(piece)
    batch = power_of_two(piece.batch)
    gradient = GRADIENT_COST * _frequencies(piece) * piece.axes[0].taps * piece.rows * piece.channels
    return batch * tiled_cost(map, piece) + gradient < PAYS * batch * products(piece)


def in_whole_tiles(map: str, piece: Piece, outputs: list[int]) -> list[Piece]:
    """The piece, or parts of it where tiles of so many outputs pay only if all of each is there: the positions that are
    left over along one axis after the other, and behind these, as they make many small tasks, those of whole tiles.

    Few taps of a wide dilation have a cell at the positions left over, which tiles would not see. One sample decides,
    on any number of threads: tiles and products round differently.
    """
    if map == "grad_weight" or not ends_in_zeros(piece):
        return [piece]
    tiled = [(n, made) for n in outputs for made in [of_tiles(piece, n)] if made is not None]
    if any(tiling_pays(map, made) for _, made in tiled):
        return [piece]
    for n, made in tiled:
        *rests, whole = _cut(piece, [
            axis.positions // (axis.tap_step * n) * axis.tap_step * n if n > 1 else axis.positions
            for axis, n in zip(made.axes, made.tile)])
        tiles = of_tiles(whole, n)
        cost = sum(products(rest) + packing_cost(piece) for rest in rests)
        if rests and tiles is not None and tiling_pays(map, tiles) and (
                cost + tiled_cost(map, tiles) / PAYS < CUT_PAYS * products(piece)):
            return [*rests, whole]
    return [piece]


def _cut(piece: Piece, whole: list[int]) -> list[Piece]:
    """The positions behind the first so many along one axis after the other, and these."""
    rests = []
    for a, n in enumerate(whole):
        if n < piece.axes[a].positions:
            rests.append(piece.part(a, n, piece.axes[a].positions))
            piece = piece.part(a, 0, n)
    return [*rests, piece]


def _of_lattice(piece: Piece) -> Piece:
    """`of_frequency` of what a block is of: one lattice along y, or all of them."""
    one = of_frequency(piece)
    z, y, x = one.axes
    return one._replace(axes=(z, y._replace(positions=y.positions // piece.lattices), x))


def _blocks(piece: Piece, tile: Tile) -> set[Block]:
    """Blocks of tiles: some vectors of them, no cells between their rows."""
    one = _of_lattice(piece)
    count = tuple(axis.positions for axis in one.axes)
    whole = range(1, min(one.batch, 8) + 1) if one.axes[0].taps == 1 else (1,)
    unit = lcm(tile.lanes, one.axes[2].tap_step if piece.tile[2] > 1 else 1)
    return {(n, extent, 1 << first) for vectors in range(1, MOST_VECTORS, 2)
            for extent, first in candidates(count, vectors * tile.lanes, unit, least_of(one))
            for n in (whole if extent == count else (1,))}


def _cells_cost(piece: Piece, block: Block, tile: Tile) -> float:
    """Of transforming one channel of a block of source."""
    samples, (z, y, x), _ = block
    planes = samples * (z + piece.axes[0].taps - 1)
    of_y, of_x = piece.tile[1:]
    # as winograd_narrow.h has them
    if min(of_y, of_x) > 1 and x <= tile.lanes // 4 and piece.edge == "zeros" and piece.axes[2].tap_step == 1:
        rows = -(-planes * y * power_of_two(x) // tile.lanes) * FREQUENCIES[of_y]
        return rows * ROW[of_x] + FREQUENCIES[of_x] * -(-planes * y * x // tile.lanes) * PASS[of_y]
    rows = y * abs(of_y) + 2 * (of_y > 1)
    along = rows * -(-x // tile.lanes) * ROW[of_x] * (1 if of_x < 0 or piece.axes[2].tap_step == 1 else 1.5)
    return planes * (along + FREQUENCIES[of_x] * -(-y * x // tile.lanes) * PASS[of_y])


def _outputs_cost(piece: Piece, block: Block, tile: Tile) -> float:
    """Of transforming and storing one row of a block of results."""
    samples, (z, y, x), _ = block
    of_y, of_x = piece.tile[1:]
    vectors = -(-samples * z * y * x // tile.lanes)
    high, wide = abs(of_y), abs(of_x)
    runs = samples * z * y * high * (wide if of_x < 0 else 1)
    return vectors * (FREQUENCIES[of_x] * PASS[of_y] + high * (ROW[of_x] + 3 * wide)) + RUN_COST * runs


def _far_cost(size: int, tile: Tile) -> float:
    """Of bringing so many bytes to where they wait together and back, as far as they leave L2."""
    cost = _caches(tile).far_cost
    if not cost:
        return 0
    return cost * size / LINE * min(1, max(0, (size / tile.second_level - FAR_FROM) / (1 - FAR_FROM)))


def gather(piece: Piece, tile: Tile) -> Blocking:
    """For forward and grad_input: the rows and positions whose vector operations are fewest."""
    one, frequencies = _of_lattice(piece), _frequencies(piece)
    taps, of_axes, lattices = one.axes[0].taps, streams_of(one.axes), piece.lattices
    channels = even_part(piece.channels, max(1, DEPTH[sum(n != 1 for n in piece.tile)] // taps))
    caches = _caches(tile)

    def cost(option: tuple[int, Block]) -> float:
        rows, block = option
        size, _, positions = scratch_of(of_axes, block, tile.lanes)
        vectors = -(-positions // tile.lanes)
        elements = channels * size + rows * (vectors * tile.lanes + channels * taps)
        if frequencies * tile.itemsize * elements > caches.room:
            return inf
        products = frequencies * piece.channels * taps * rows * (
            vectors + 0.3 * -(-vectors // tile.vectors) + caches.weights_cost / tile.lanes)
        transforms = piece.channels * _cells_cost(piece, block, tile) + rows * _outputs_cost(piece, block, tile)
        transforms += piece.channels / channels * _far_cost(frequencies * tile.itemsize * channels * size, tile)
        blocks = lattices * blocks_of(one, block)
        packing = packed if blocks > 1 else 0  # of a lone block a thread packs what it is to read
        return (products + transforms) * up_to(blocks * -(-piece.rows // rows), tile.tasks) + packing

    weights = frequencies * tile.itemsize * piece.rows * piece.channels * taps
    packed = _far_cost(weights, tile) / 2  # reading is among the products
    sizes = {min(piece.rows, up_to(even_part(piece.rows, most), tile.rows)) for most in ROWS}
    rows, block = min(product(sorted(sizes), sorted(_blocks(piece, tile))), key=cost)
    return Blocking(GATHER_WINOGRAD, *block, channels, rows)


def correlate(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For grad_weight, likewise: source is transformed for every block of columns, target for every one of channels.

    The order of sums is that of the blocks of positions and of the partial sums, which are the same for any scratch and
    any number of threads; how much of the weight a task does is not.
    """
    block, splits = _sums(piece, groups, tile.deciding._replace(samples=1))
    _, _, part = min(_costs(piece, groups, tile, block, splits))
    return Blocking(CORRELATE_WINOGRAD, *block, *part, splits)


@lru_cache(maxsize=256)
def _sums(piece: Piece, groups: int, tile: Tile) -> tuple[Block, int]:
    """The blocks of grad_weight's positions, and how many partial sums there are."""
    blocks = sorted(_blocks(piece, tile))
    (_, splits, _), block = min((min(_costs(piece, groups, tile, block)), block) for block in blocks)
    return block, splits


@lru_cache(maxsize=256)
def _parts(all_channels: int, all_rows: int, taps: int, tile: Tile) -> tuple[tuple[int, int], ...]:
    """Channels and columns that a task may do: of whole register tiles, and less of them where scratch is scarce."""
    found: dict[tuple[int, int], None] = {}
    whole, least, caches = (tile.rows, tile.vectors * tile.lanes), (1, tile.lanes), _caches(tile)
    for rows, width in (whole, least) if tile.narrow else (whole,):
        for most, wide in product(caches.channels, caches.columns):
            channels = min(all_channels, up_to(even_part(all_channels, max(1, most // taps)), rows))
            found[channels, up_to(even_part(all_rows, wide * width), tile.lanes)] = None
    return tuple(found)


def _costs(
    piece: Piece, groups: int, tile: Tile, block: Block, splits: int | None = None
) -> Iterator[tuple[float, int, tuple[int, int]]]:
    """Of grad_weight in such blocks of positions: what every part that a task may do costs, in how many partial sums,
    which are as many as suit it where none are named, and its channels and columns."""
    one, frequencies = _of_lattice(piece), _frequencies(piece)
    taps, count = one.axes[0].taps, piece.lattices * blocks_of(one, block)
    gradients = prod(axis.taps for axis in piece.axes[1:]) / frequencies
    size, _, positions = scratch_of(streams_of(one.axes), block, tile.lanes)
    cells, caches = _cells_cost(piece, block, tile), _caches(tile)
    target = TRANSFORM * frequencies + caches.turning_cost * abs(prod(piece.tile))
    for channels, columns in _parts(piece.channels, piece.rows, taps, tile):
        tasks = groups * -(-piece.rows // columns) * -(-piece.channels // channels)
        partial = splits or splits_of(count, tasks, TASKS * tile.units // UNITS)
        sums = (1 + (partial > 1)) * (1 + gradients)
        elements = channels * size + columns * (positions + sums * channels * taps)
        filled = frequencies * tile.itemsize * elements / caches.weight_room
        vectors = columns // tile.lanes
        products = frequencies * channels * taps * (vectors + 0.3 * -(-vectors // tile.vectors)) * (positions + 4)
        transforms = channels * cells + target * positions * vectors
        read_again = SUMS_FAR * _far_cost(frequencies * tile.itemsize * channels * taps * columns, tile)
        shared = up_to(tasks * partial * tile.samples, tile.tasks) / tile.samples  # with idle threads' share
        cost = (count / partial * (products + transforms) + read_again) * shared
        if filled > 1:  # the less the better, and where scratch is scarce nothing else counts
            cost = NEVER * filled * (1 if tile.narrow else cost)
        yield cost, partial, (channels, columns)
