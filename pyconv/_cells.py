"""Cells of several channels, of integers whose products are summed in 32 bits and of bfloat16: where they pay, and what
is exact; and where sums of integers are exact as those of float64.

Kernels for cells sum four products of bytes at once, or two of 16 bits, or matrices of them: see _tiles/cells.h and
_tiles/matrices.h.
"""

from math import prod

from pyconv._dtypes import DType
from pyconv._geometry import Geometry
from pyconv._matrices import LEAST_CELLS, OF_REGISTER
from pyconv._pieces import read_channels

LEAST_WEIGHTS = 64  # of a group's tap, for cells of several channels
LEAST_ROWS, LEAST_OF_GROUPS = 2, 8  # for products of matrices; channels of either kind, for weights of several groups
LEAST_TAPS, MANY_ROWS = 3, 16  # taps of a row, and rows, for those of few cells
FEW_PRODUCTS = 16  # of a result, too few for pairs of channels: to turn and to store it costs more


def suits_cells(map: str, g: Geometry, cell: int) -> bool:
    """Whether cells of so many channels pay: these are mostly there, and there is enough to do for each result."""
    channels = read_channels(map, g)
    rows = (g.in_channels + g.out_channels) // g.groups - channels
    if map == "grad_weight" or min(channels, rows) < 3 or channels * rows < LEAST_WEIGHTS:
        return False
    if cell == 2:
        return channels * prod(g.kernel_size) > FEW_PRODUCTS
    return map == "forward" or g.padding_mode == "zeros"


def summed_at_once(map: str, g: Geometry, cell: int) -> int:
    """Of a group's cells, how many one product of matrices sums: equal parts, as in _tiles/matrices.h, or of a few
    cells one, under all taps of a row. 0 where such products do not pay: of gradients to a weight, few products for a
    result, and what lies beyond edges."""
    channels = read_channels(map, g)
    rows = (g.in_channels + g.out_channels) // g.groups - channels
    cells = -(-channels // cell)
    if map == "grad_weight" or rows < LEAST_ROWS or map == "grad_input" and g.padding_mode != "zeros":
        return 0
    if cells < LEAST_CELLS:
        fitting = map == "forward" and channels > 1 and LEAST_TAPS <= g.kernel_size[2] <= OF_REGISTER
        return 1 if fitting and rows >= MANY_ROWS else 0
    return -(-cells // -(-cells // OF_REGISTER))


def weights_suit_matrices(g: Geometry) -> bool:
    """Whether such products pay for gradients to a weight, whose sums are along positions."""
    least = LEAST_ROWS if g.groups == 1 else LEAST_OF_GROUPS
    return g.padding_mode == "zeros" and min(g.in_channels, g.out_channels) // g.groups >= least


def _largest(dtype: DType) -> int:
    return 1 << 8 * dtype.itemsize - (dtype.kind == "i")


def suits_doubles(map: str, g: Geometry, dtype: DType, result: DType) -> bool:
    """Whether sums of 64 bits, of products of integers of 16 bits and less, are exact as those of float64: these are
    made several times as fast. Of three axes: of more, other terms are added; so they are in the gradient to an input
    that its padding repeats."""
    if map == "grad_input" and g.padding_mode != "zeros":
        return False
    summed = g.batch * prod(g.output_size) if map == "grad_weight" else read_channels(map, g) * prod(g.kernel_size)
    return result.name == "int64" and dtype.itemsize <= 2 and g.rank <= 3 and summed * _largest(dtype) ** 2 < 1 << 53


def tiles_are_exact(map: str, g: Geometry, dtype: DType, in_doubles: bool = False) -> bool:
    """Whether Winograd's F(2, 3) sums integers exactly, of which two are one cell, modulo 2 ** 32; or in doubles, where
    along each of two axes cells are 2 times as large, weights 3 times, and what is halved need not be even.

    Sums of products are halved once an axis. There they must not have lost a bit: cells that were added along x are up
    to 2 times as large as those of source, weights 3 times, and twice the sum of 3 products is halved along y.
    """
    largest = _largest(dtype)
    if in_doubles:
        return map != "grad_weight" and read_channels(map, g) * prod(g.kernel_size) * 6 ** 2 * largest ** 2 < 1 << 51
    products = read_channels(map, g) * g.kernel_size[0]
    return g.cell == 2 and products * 2 * 3 * (2 * largest) * (3 * largest) < 1 << 31
