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

Option = tuple[int, float, Blocking]  # bytes beyond what there is room for, of which there are to be few; cycles


def suits_matrices(tile: Tile) -> bool:
    """Whether the kernels are those."""
    return tile.rows == OF_REGISTER


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
                    GATHER_MATRICES, *block, channels, rows, by_taps=by_taps)

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
