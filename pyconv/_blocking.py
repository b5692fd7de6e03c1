"""How a piece is cut for the caches: the positions, rows and depth that one thread works on at a time.

Whatever decides the order of a sum follows from the geometry and the kernels' tile alone (in forward and grad_input,
of one sample: the depth; in grad_weight, of all: everything), so the bits are the same for any number of threads, any
scratch and, for forward and grad_input, any batch.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from pyconv._pieces import Piece, Triple

Block = tuple[int, Triple, int]  # samples, extent, shared

DEPTH = 288  # channels * taps summed in registers: 8 rows of packed weights of this depth take a third of L1
RESULT_ROWS = 128  # rows whose results wait in L2 while the depth runs
SCRATCH = 1 << 19  # bytes that an unrolled block may take: half of a common L2
CORRELATE_ROWS = 384  # channels * taps of a block of grad_weight
CORRELATE_VECTORS = 12  # and the vectors of output channels: rows * vectors * 64 B stay in L2
UNITS = 32  # of work that grad_weight is cut into where its result is small
WORK = 1 << 18  # products that make a task worth its handling
TASKS = 8  # blocks that a call should have at least, so that threads share them evenly
LEAST_ROWS = 64  # of a block, before its positions are cut instead: unrolling is paid for by the rows


class Tile(NamedTuple):
    """What blocking must know of the kernels: element size, lanes of a vector, rows and vectors of the widest tile."""

    itemsize: int
    lanes: int
    rows: int
    vectors: int


class Blocking(NamedTuple):
    samples: int
    extent: Triple
    shared: int  # the axis whose taps share streams, 3 for none
    channels: int
    rows: int
    splits: int = 1  # grad_weight: partial sums of a result
    groups: int = 1  # forward, grad_input: small groups that one task does


def _even(total: int, most: int) -> int:
    """The size of equal parts of `total`, none above `most`."""
    return -(-total // -(-total // max(1, most))) if total else 1


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _scratch(piece: Piece, samples: int, extent: Triple, shared: int, lanes: int) -> tuple[int, int]:
    """Elements that one channel of a block takes unrolled; as `layout` in the kernels."""
    stream, streams = samples, 1
    for a, axis in enumerate(piece.axes):
        own = a == shared
        reach = abs(axis.unit) * (-(-axis.taps // axis.streams) - 1)
        stream *= extent[a] + (reach if own else 0)
        streams *= axis.streams if own else axis.taps
    return streams * (_up(stream + lanes, lanes) + lanes), streams


def _candidates(count: Triple, positions: int) -> Iterator[tuple[Triple, int]]:
    """Blocks of about `positions` positions: whole samples, planes, rows, or part of one row."""
    for first in range(3):  # axes before `first` have extent 1, those after are whole
        inner = prod(count[first + 1:])
        if inner <= positions or first == 2:
            wanted = max(1, positions // inner)
            extent = [1] * 3
            extent[first + 1:] = count[first + 1:]
            for n in {wanted, max(1, wanted // 2), wanted + 1, _even(count[first], wanted)}:
                extent[first] = min(n, count[first])
                yield tuple(extent), first


def _block(piece: Piece, positions: int, rows: float, tile: Tile) -> Block:
    """The cheapest block by a count of vector operations: products, unrolling, and a fixed cost a block."""
    count = tuple(axis.positions for axis in piece.axes)
    batch = piece.batch
    if not all(count):
        return 1, (1, 1, 1), 3
    taps = prod(axis.taps for axis in piece.axes)
    options = []
    for extent, first in _candidates(count, positions):
        if any(extent[a] < count[a] for a in range(3)):
            options += [(1, extent, 3), (1, extent, first)]
        else:
            wanted = max(1, positions // prod(extent))
            options += [(1, extent, first)] + [
                (min(n, batch), extent, 3) for n in {wanted, wanted + 1, _even(batch, wanted)}]

    def cost(option: Block) -> float:
        samples, extent, shared = option
        size, streams = _scratch(piece, samples, extent, shared, tile.lanes)
        blocks = prod(-(-count[a] // extent[a]) for a in range(3)) * -(-batch // samples)
        at_once = prod(extent) * samples
        products = _up(at_once, tile.lanes) / tile.lanes * taps * rows
        runs = streams * samples * extent[0] * (1 if taps == 1 else extent[1])
        weights = taps * rows / tile.lanes
        return blocks * (products + weights + 2 * size / tile.lanes + 3 * runs + 40)

    return min(options, key=cost)


def gather_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For forward and grad_input."""
    batch, rows = piece.batch, piece.rows
    taps = max(1, prod(axis.taps for axis in piece.axes))
    channels = _even(piece.channels, DEPTH // taps)
    width = tile.lanes * tile.vectors
    total = prod(axis.positions for axis in piece.axes) * batch
    row_block = _up(_even(rows, RESULT_ROWS), tile.rows)
    wanted = 8 * width * min(8, max(1, 32 // rows))
    if groups * -(-rows // row_block) * (total / wanted) < TASKS:
        row_block = min(row_block, LEAST_ROWS)
        wanted = min(wanted, _up(total // (TASKS // (groups * -(-rows // row_block)) or 1), width))
    samples, extent, shared = _fitting(piece, max(width, wanted), rows, channels, tile)
    blocks = prod(-(-axis.positions // extent[a]) for a, axis in enumerate(piece.axes)) * -(-batch // samples)
    if blocks * groups * -(-rows // row_block) < TASKS:
        row_block = min(row_block, max(4 * tile.rows, _up(rows * blocks * groups // TASKS, tile.rows)))
    work = prod(extent) * samples * taps * channels * rows
    small = channels == piece.channels and row_block >= rows
    together = min(groups, max(1, min(WORK // work, blocks * groups // TASKS))) if small else 1
    return Blocking(samples, extent, shared, channels, row_block, groups=together)


def _fitting(piece: Piece, positions: int, rows: float, channels: int, tile: Tile) -> Block:
    """The block of at most about `positions` positions that fits scratch."""
    while True:
        block = _block(piece, positions, rows, tile)
        size, _ = _scratch(piece, *block, tile.lanes)
        if size * channels * tile.itemsize <= SCRATCH or positions <= tile.lanes:
            return block
        positions //= 2


def correlate_blocking(piece: Piece, groups: int, tile: Tile) -> Blocking:
    """For grad_weight: `rows` is here the block of output channels."""
    batch, columns = piece.batch, piece.rows
    taps = max(1, prod(axis.taps for axis in piece.axes))
    few = columns < tile.lanes // 2
    channels = _even(piece.channels, CORRELATE_ROWS // taps)
    column_block = columns if few else _up(_even(columns, CORRELATE_VECTORS * tile.lanes), tile.lanes)
    positions = (128 if few else 16) * tile.lanes
    samples, extent, shared = _fitting(piece, positions, column_block / tile.lanes, channels, tile)
    blocks = prod(-(-axis.positions // extent[a]) for a, axis in enumerate(piece.axes)) * -(-batch // samples)
    units = groups * -(-columns // column_block) * -(-piece.channels // channels)
    splits = max(1, min(blocks, -(-UNITS // units)))
    return Blocking(samples, extent, shared, channels, column_block, splits)
