"""A wide dilation's positions in parts whose lattices are lone tiles.

Where the tap step is a third of an image or more, each of its lattices has three cells at most along an axis. Two cells
with three taps are 4 products without the padding, and three are 7; a lone tile makes 3 and 5 of them.

Lattices of equally many cells lie side by side, so the image is cut in up to two along each axis. Rows of one lattice
are not neighbours: z has the lattices along y, so only an image without depth is cut.
"""

from collections.abc import Iterator
from itertools import product

from pyconv._piece import Axis, Piece, Strides
from pyconv._tiled import PAYS, packing_cost, products, tiled_cost
from pyconv._winograd import ascending, ends_in_zeros, is_in_rows, is_lone

MOST_CELLS = 3  # of a lattice that is a lone tile
SIDES = 4  # parts of an image, at most
WIDEST_STEP = 128  # cells of a row of tiles fit the transforms' arrays

Side = tuple[int, int, int]  # the first of some lattices of an axis, how many there are, and the cells of each


def in_lone_tiles(map: str, piece: Piece) -> list[Piece]:
    """The parts, if they take fewer vector operations than the piece as a whole, transforms included, else none. One
    sample decides, on any number of threads: tiles and products round differently."""
    whole = ascending(piece)
    z, y, x = whole.axes
    if map == "grad_weight" or (z.positions, z.taps, z.offset) != (1, 1, 0) or whole.several or not (
            is_in_rows(whole) and ends_in_zeros(whole)):
        return []
    if not all(_is_as_it_lies(axis) or _is_same(axis) for axis in (y, x)) or (y.taps, x.taps) == (1, 1):
        return []
    parts = [_along_y(_along_x(whole, of_x), of_y) for of_y, of_x in product(_sides(y), _sides(x))]
    return parts if sum(_cost(map, part) for part in parts) < PAYS * _cost(map, whole) else []


def _cost(map: str, piece: Piece) -> float:
    """Products of one sample, with as many as take the time of packing the weights."""
    return packing_cost(piece) + (tiled_cost(map, piece) / PAYS if is_lone(piece) else products(piece))


def _is_as_it_lies(axis: Axis) -> bool:
    """Whether one tap reads a cell of its own for each position, none of them in the padding."""
    return (axis.taps, axis.step, axis.lattice) == (1, 1, 1) and 0 <= axis.offset <= axis.size - axis.positions


def _is_same(axis: Axis) -> bool:
    """Whether three taps lie around each position, so wide apart that lattices are lone tiles."""
    return (axis.taps, axis.step, axis.lattice, axis.offset, axis.positions) == (
        3, 1, 1, -axis.tap_step, axis.size) and 1 < axis.tap_step <= WIDEST_STEP and (
        axis.size <= MOST_CELLS * axis.tap_step)


def _sides(axis: Axis) -> Iterator[Side]:
    """The lattices of an axis: those with one cell more, and the others; of one tap, all as they are."""
    if axis.taps == 1:
        yield 0, axis.positions, 1
        return
    cells, longer = divmod(axis.size, axis.tap_step)
    if longer:
        yield 0, longer, cells + 1
    if cells:
        yield longer, axis.tap_step - longer, cells


def _moved(strides: Strides, elements: int, axes: tuple[int, ...]) -> Strides:
    return strides._replace(base=strides.base + elements, axes=axes)


def _along_x(piece: Piece, side: Side) -> Piece:
    """These lattices along x: a tile's outputs are a tap step apart, with those of other lattices between them."""
    first, count, cells = side
    z, y, x = piece.axes
    if cells == 1:
        only = (x if x.taps == 1 else x.part(first, first + count).alone(1))._replace(start=0, tap_step=1)
        if x.taps > 1:
            piece = _of_tap(piece, 2)
        return piece._replace(axes=(z, y, only), target=_moved(
            piece.target, first * piece.target.axes[2], piece.target.axes))
    span = (cells - 1) * x.tap_step + count
    return piece._replace(
        axes=(z, y, x._replace(positions=span, size=span)), tile=(*piece.tile[:2], -cells),
        source=_moved(piece.source, first * piece.source.axes[2], piece.source.axes),
        target=_moved(piece.target, first * piece.target.axes[2], piece.target.axes))


def _along_y(piece: Piece, side: Side) -> Piece:
    """These lattices along y, where z has them and y the cells of each."""
    first, count, cells = side
    _, y, x = piece.axes
    if y.taps == 1:
        return piece
    lattices = Axis(count, count, 1, 0, 1, 1)
    along = Axis(cells, cells, 1, -1, 1, 3) if cells > 1 else Axis(1, 1, 1, 0, 1, 1)
    if cells == 1:
        piece = _of_tap(piece, 1)

    def placed(strides: Strides) -> Strides:
        _, row, cell = strides.axes
        return _moved(strides, first * row, (row, y.tap_step * row, cell))

    return piece._replace(
        axes=(lattices, along, x), source=placed(piece.source), target=placed(piece.target),
        tile=(1, -cells if cells > 1 else 1, piece.tile[2]))


def _of_tap(piece: Piece, a: int) -> Piece:
    """The piece with the weights of the second tap along an axis alone."""
    weight = piece.weight
    return piece._replace(weight=weight._replace(base=weight.base + weight.axes[a]))
