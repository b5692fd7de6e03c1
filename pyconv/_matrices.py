"""Blocks of products of matrices, which registers of 16 rows of 16 cells, or of 16 positions, make: see
_tiles/matrices.h. Reckoned in cycles, as measured on an Intel."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from math import prod
from operator import itemgetter

from pyconv._blocks import (
    ALL,
    CORRELATE_MATRICES,
    GATHER_MATRICES,
    GATHER_SLICES,
    TASKS,
    Block,
    Blocking,
    Tile,
    blocks_of,
    candidates,
    even_part,
    scratch_of,
    splits_of,
    streams_of,
    unevenness,
    up_to,
    wanted_tasks,
)
from pyconv._piece import Piece

LEAST_CELLS = 4  # of a group, of fewer a product sums one under all taps of a row
OF_REGISTER = 16  # rows of a register, and cells or positions of a row
DEPTH = 288  # cells * taps of a row of weights that are summed in registers: of 32 rows, most of L1
ROW_BLOCKS = 32, 128, 256, 512  # more rows: cells are read less often, weights more often
POSITIONS = 64, 128, 256, 512, 1024, 2048  # about so many of a block
COLUMNS, CORRELATE_POSITIONS = (32, 64, 128, 256, 512), (256, 512)  # the same of grad_weight, of output channels
SHARES = 1, 4, 16  # and parts of as many input channels as results have room for
SCRATCH, RESULTS, PANEL = 1 << 19, 3 << 17, 1 << 20  # bytes that cells, results and weights of a block may take in L2
PRODUCT, COPY, STORE, BLOCK = 17, 6, 6, 400  # cycles of a product, of a vector of cells or of results, of a block

# Of slices: pairs of channels * taps of a block; rows of one; bytes that cells, results and weights of it may each
# take, and what of these where scratch is scarce; of all weights, beyond which they come from beyond L2
SLICED_DEPTH, SLICED_ROWS = 128, (32, 128, 256, 512, 1024, 2048)
SLICED_ROOM, NARROW, SLICED_WEIGHTS = 1 << 20, 0.25, 1 << 20
# cycles of all products of a pair of registers' slices, with what adding their sums to others takes, where cells lie in
# lines and where they lie across two; of slicing a vector of pairs, of copying one, of moving a vector of results; and
# bytes a cycle from beyond L2
SLICED_PRODUCT, ACROSS_LINES, SLICE, COPY_SLICES, MOVE, FAR_BYTES = 112, 124, 20, 21, 8, 7
# which pay beside floats: taps of which panels have room for enough channels, and scratch for a copy of cells for each;
# products of floats a cycle; of what those take, how much slices may; samples for which that is reckoned
MOST_TAPS, TAPS_APART, PLAIN_PRODUCTS, SLICING_PAYS, SAMPLES = 64, 12, 28, 0.6, 4
# cycles of packing a weight, and one of several taps that goes beyond L2; more of a vector of pairs, and of results,
# whose channels lie last
PACK, PACK_FAR, TURN_PAIR, TURN_RESULT = 1, 2.4, 20, 25

Option = tuple[int, float, Blocking]  # bytes beyond what there is room for, of which there are to be few; cycles


def suits_matrices(tile: Tile) -> bool:
    """Whether the kernels are those."""
    return tile.rows == OF_REGISTER


def suits_slices(piece: Piece, tile: Tile) -> bool:
    """Whether the kernels have ways that slice floats, which take such a piece, and that pays."""
    return tile.slices > 1 and piece.parts == 1 and piece.folded == "zeros" and not (
        piece.turned or piece.swapped or piece.woven) and all(n == 1 for n, _ in piece.row_taps) and all(
        axis.lattice and axis.taps for axis in piece.axes) and slicing_pays(piece)


def slicing_pays(piece: Piece) -> bool:
    """Whether products of slices take less time than those of floats, with what surrounds them: of a few samples, for
    any batch, since they round differently. Phases of a stride, of whose taps each has some, would each slice the same
    cells."""
    taps = prod(axis.taps for axis in piece.axes)
    return taps <= MOST_TAPS and all(axis.every == 1 for axis in piece.axes) and share_of_slices(piece) < SLICING_PAYS


def share_of_slices(piece: Piece) -> float:
    """Of what a few samples' products of floats take."""
    taps, positions = prod(axis.taps for axis in piece.axes), SAMPLES * prod(axis.positions for axis in piece.axes)
    pairs, weights = -(-piece.channels // 2), piece.rows * piece.channels * taps
    between = prod(1 + axis.beyond / max(1, axis.positions) for axis in piece.axes)  # a copy for each tap has none
    vectors = -(-positions // OF_REGISTER) * (between if taps > TAPS_APART else 1)
    products = -(-piece.rows // OF_REGISTER) * vectors * -(-pairs // OF_REGISTER) * taps * SLICED_PRODUCT
    cells = vectors * pairs * (SLICE + (COPY_SLICES * taps if taps > 1 else 0) + TURN_PAIR * piece.source_last)
    results = vectors * piece.rows * TURN_RESULT * piece.target_last
    packing = weights * (PACK_FAR if taps > 1 and 6 * weights > SLICED_WEIGHTS else PACK)
    return (products + cells + results + packing) * PLAIN_PRODUCTS / (weights * positions or 1)


def _blocks(piece: Piece, positions: tuple[int, ...], lanes: int, able: int = ALL) -> list[Block]:
    """Those of about so many positions, in which the taps of these axes may share cells."""
    count = tuple(axis.positions for axis in piece.axes)
    if not all(count):
        return [(1, (1, 1, 1), 0)]
    found: dict[Block, None] = {}
    for wanted in positions:
        for extent, first in candidates(count, wanted, lanes):
            most = even_part(piece.batch, max(1, wanted // prod(extent))) if extent == count else 1
            for samples, shared in product(sorted({1, most}), sorted({0, able & 1 << first, able})):
                found[samples, extent, shared] = None
    return list(found)


def _beyond(tile: Tile, *sizes: tuple[int, int]) -> int:
    """Bytes by which so many elements each take more than they may."""
    return sum(max(0, n * tile.itemsize - most) for n, most in sizes)


@lru_cache(maxsize=64)
def matrix_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """The cheapest blocks. The depth, which is the order of sums, follows from the piece alone."""
    taps, of_axes = max(1, prod(axis.taps for axis in piece.axes)), streams_of(piece.axes)
    by_taps, parts = 0 < piece.channels < LEAST_CELLS, max(1, -(-piece.channels // OF_REGISTER))
    summed = max(1, piece.channels // parts)
    channels = summed * even_part(parts, DEPTH // (summed * taps))
    products = piece.channels * taps // piece.axes[2].taps if by_taps else taps * parts
    able = ALL & ~4 if by_taps else ALL  # those of a row are rows of a register then
    tasks = wanted_tasks(piece, groups, tile)

    def options() -> Iterator[Option]:
        at_once = {min(piece.rows, up_to(even_part(piece.rows, most), 2 * OF_REGISTER)) for most in ROW_BLOCKS}
        for block in _blocks(piece, POSITIONS, tile.lanes, able):
            size, _, together = scratch_of(of_axes, block, tile.lanes)
            vectors = -(-together // OF_REGISTER)
            for rows in sorted(at_once):
                each = -(-rows // OF_REGISTER) * vectors * products * PRODUCT + STORE * rows * vectors + BLOCK
                each += COPY * piece.channels * -(-size // tile.lanes)
                blocks = groups * -(-piece.rows // rows) * blocks_of(piece, block)
                beyond = _beyond(tile, (size * channels, SCRATCH), (rows * together, RESULTS),
                                 (rows * channels * taps, PANEL))
                yield beyond, blocks * each * unevenness(blocks, tasks), Blocking(
                    GATHER_MATRICES, *block, channels, rows, by_taps=by_taps, summed=summed)

    return min(options(), key=itemgetter(0, 1))[2]


def _is_aligned(piece: Piece, block: Block) -> bool:
    """Whether the cells of a register lie in lines of the cache, under every tap."""
    _, (_, _, x), shared = block
    return not any(shared >> a & 1 and axis.taps > 1 for a, axis in enumerate(piece.axes)) or (
        not shared & 4 and x % OF_REGISTER == 0)


def _joined(piece: Piece, block: Block) -> int:
    """The axes whose cells are sliced once for all taps, as in _tiles/slices.h."""
    _, extent, shared = block
    return shared | sum(1 << a for a, (axis, n) in enumerate(zip(piece.axes, extent))
                        if axis.beyond <= n * axis.taps // axis.streams - n)


@lru_cache(maxsize=64)
def sliced_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """The same where floats are sliced. Weights of a tile of rows stay in L1 while a block's cells come from L2: so all
    rows may be of one block."""
    taps, of_axes = prod(axis.taps for axis in piece.axes), streams_of(piece.axes)
    pairs = -(-piece.channels // 2)
    parts = -(-pairs // OF_REGISTER)
    summed = -(-pairs // parts)
    deep = summed * even_part(parts, SLICED_DEPTH // (summed * taps))
    size_of_weights = tile.slices * tile.itemsize * pairs * taps
    far = groups * piece.rows * size_of_weights > SLICED_WEIGHTS
    tasks, room = wanted_tasks(piece, groups, tile), (NARROW if tile.narrow else 1) * SLICED_ROOM

    def options() -> Iterator[Option]:
        at_once = {up_to(even_part(piece.rows, most), 2 * OF_REGISTER) for most in SLICED_ROWS}
        for block in _blocks(piece, POSITIONS, tile.lanes):
            if block[2] not in (0, ALL):
                continue
            size, streams, together = scratch_of(of_axes, block, tile.lanes)
            once, _, _ = scratch_of(of_axes, (*block[:2], _joined(piece, block)), tile.lanes)
            vectors, is_aligned = -(-together // OF_REGISTER), _is_aligned(piece, block)
            cells = pairs * (SLICE * once + (COPY_SLICES * size if size > once else 0)) / tile.lanes
            for rows in sorted({min(piece.rows, n) for n in at_once}):
                registers = -(-rows // OF_REGISTER) * vectors
                each = registers * parts * taps * (SLICED_PRODUCT if is_aligned else ACROSS_LINES) + cells + BLOCK
                each += (rows * size_of_weights / FAR_BYTES if far else 0)
                if block[0] > 1 or together > prod(block[1]) or piece.target.axes[2] > 1:
                    each += MOVE * rows * vectors
                blocks = groups * -(-piece.rows // rows) * blocks_of(piece, block)
                sizes = (tile.slices * deep * size + (OF_REGISTER + tile.slices) * once, rows * together,
                         tile.slices * rows * deep * taps)
                beyond = _beyond(tile, *((n, int(room)) for n in sizes))
                yield beyond, blocks * each * unevenness(blocks, tasks), Blocking(
                    GATHER_SLICES, *block, 2 * deep, rows, summed=summed)

    return min(options(), key=itemgetter(0, 1))[2]


@lru_cache(maxsize=64)
def matrix_weight_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """The same for grad_weight: `rows` is here the block of output channels."""
    taps, of_axes = max(1, prod(axis.taps for axis in piece.axes)), streams_of(piece.axes)
    wanted = max(1, tile.units * wanted_tasks(piece, groups, tile) // TASKS)

    def options() -> Iterator[Option]:
        parts = {(up_to(even_part(piece.rows, most), OF_REGISTER), share) for most, share in product(COLUMNS, SHARES)}
        sizes = {(columns, even_part(piece.channels, up_to(max(1, RESULTS // (
            tile.itemsize * columns * taps * share)), OF_REGISTER))) for columns, share in parts}
        for block in _blocks(piece, CORRELATE_POSITIONS, tile.lanes):
            size, _, together = scratch_of(of_axes, block, tile.lanes)
            for columns, channels in sorted(sizes):
                across, deep = -(-piece.rows // columns), -(-piece.channels // channels)
                products = -(-together // (2 * OF_REGISTER))
                each = -(-channels // OF_REGISTER) * columns // OF_REGISTER * taps * (products * PRODUCT + 2 * STORE)
                each += COPY * (channels * size + columns * together * 2) // (2 * tile.lanes) + BLOCK
                blocks = blocks_of(piece, block)
                splits = splits_of(blocks, groups * across * deep, wanted)
                beyond = _beyond(tile, (size * channels // 2, SCRATCH), (columns * channels * taps, 2 * RESULTS))
                yield beyond, across * deep * blocks * each, Blocking(
                    CORRELATE_MATRICES, *block, channels, columns, splits)

    return min(options(), key=itemgetter(0, 1))[2]
