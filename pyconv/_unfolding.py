"""unfold and fold by NumPy's indices: for types of elements and for padded cells that have no kernels of their own."""

from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyconv._dtypes import FLOAT32, DType, element
from pyconv._geometry import Geometry
from pyconv._memory import empty
from pyconv._padding import held

Array = NDArray[Any]


def _cells(g: Geometry, a: int) -> Array:
    """[position, tap]: the cell of axis a that is read, -1 where there is none."""
    size = g.input_size[a]
    at = g.stride[a] * np.arange(g.output_size[a])[:, None] + g.dilation[a] * np.arange(g.kernel_size[a]) - g.padding[a]
    outside = (at < 0) | (at >= size)
    cells = [held(g.padding_mode, int(cell), size) for cell in at[outside]]
    at[outside] = [-1 if cell is None else cell for cell in cells]
    return at


def _taps(g: Geometry) -> list[tuple[tuple[Array, ...], Array]]:
    """For each tap the cells that its positions read along each axis, and which positions have one."""
    axes = [_cells(g, a) for a in range(len(g.input_size))]
    found = []
    for tap in product(*(range(k) for k in g.kernel_size)):
        cells = np.ix_(*(of_axis[:, k] for of_axis, k in zip(axes, tap)))
        found.append((cells, reduce(np.logical_and, (cell >= 0 for cell in cells))))
    return found


def unfold(g: Geometry, input: Array, columns: Array) -> None:
    """columns (batch, channels * taps, positions) <- input."""
    taps, padded = _taps(g), element(g.padding_value, input.dtype)
    to = columns.reshape(g.batch, g.in_channels, len(taps), *g.output_size)
    for cells, there in zip(input.reshape(g.batch, g.in_channels, *g.input_size), to):
        for tap, (read, inside) in enumerate(taps):
            if inside.all():
                there[:, tap] = cells[:, *read]
            else:
                there[:, tap] = padded
                if inside.any():
                    there[:, tap][:, inside] = cells[:, *np.broadcast_arrays(*read)][:, inside]


def summed(dtype: DType) -> DType:
    """What results of a type are summed in: halves in float32."""
    return dtype if dtype.itemsize > 2 or dtype.kind in "iu" else FLOAT32


class FarGradient:
    """The plan of a grad_input where padding repeats the input very often, sample by sample.

    The gradients of all columns are one matrix product, of `products`; each is added to the cell that it was read from.
    """

    def __init__(self, products: Any, geometry: Geometry) -> None:
        self.products, self.geometry, self.enough = products, geometry, products.enough
        self.scratch_minimum, self.scratch_size = products.scratch_minimum, products.scratch_size

    def run(
        self, first: Array, second: Array, out: Array, bias: Array | None = None, scratch: Array | None = None,
        accumulate: bool = False, threads: int | None = None,
    ) -> None:
        """See _backend."""
        g = self.geometry
        target = out.reshape(g.batch, g.in_channels, *g.input_size)
        shape = (1, g.in_channels * prod(g.kernel_size), prod(g.output_size))
        columns = empty(shape, summed(out.dtype))
        sums = empty((1, *target.shape[1:]), columns.dtype)
        one = g._replace(batch=1)
        for sample, cells in zip(first.reshape(g.batch, -1), target):
            self.products.run(sample, second, columns, None, self.enough(scratch), False, threads=threads)
            fold(one, columns, sums)
            with np.errstate(all="ignore"):
                if bias is not None:
                    sums += bias.astype(sums.dtype).reshape(-1, *(1,) * len(g.input_size))
                cells[...] = sums[0] + cells if accumulate else sums[0]


def of_columns(g: Geometry) -> Geometry:
    """The problem whose input is a sample's columns: a convolution of 1 x 1."""
    ones, zeros, positions = (1, 1, 1), (0, 0, 0), (1, 1, prod(g.output_size))
    return Geometry(
        rank=1, batch=1, groups=g.groups, in_channels=g.in_channels * prod(g.kernel_size), out_channels=g.out_channels,
        input_size=positions, kernel_size=ones, output_size=positions, stride=ones, dilation=ones, padding=zeros,
        padding_mode="zeros")


def fold(g: Geometry, columns: Array, target: Array) -> None:
    """target <- the sum of the columns, taps in ascending order; of halves, summed in float32."""
    taps = _taps(g)
    read = columns.reshape(g.batch, g.in_channels, len(taps), *g.output_size)
    for there, cells in zip(read, target.reshape(g.batch, g.in_channels, *g.input_size)):
        sums = np.zeros(cells.shape, summed(cells.dtype))
        with np.errstate(all="ignore"):
            for tap, (place, inside) in enumerate(taps):
                places: Any = (slice(None), *(index[inside] for index in np.broadcast_arrays(*place)))
                np.add.at(sums, places, there[:, tap][:, inside])
        cells[...] = sums
