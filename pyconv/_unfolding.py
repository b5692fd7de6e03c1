"""unfold and fold by NumPy's indices: for types of elements and for padded cells that have no kernels of their own."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyconv._dtypes import FLOAT32, DType, element
from pyconv._geometry import Geometry, box, whole_size
from pyconv._memory import empty
from pyconv._padding import held

Array = NDArray[Any]
Run = tuple[slice, slice, bool]

AT_ONCE = 2**18  # cells that one operation of NumPy's takes


def _cells(g: Geometry, a: int) -> Array:
    """[position, tap]: the cell of axis a that is read, -1 where there is none."""
    size = g.input_size[a]
    at = g.stride[a] * np.arange(g.output_size[a])[:, None] + g.dilation[a] * np.arange(g.kernel_size[a]) - g.padding[a]
    outside = (at < 0) | (at >= size)
    cells = [held(g.padding_mode, int(cell), size) for cell in at[outside]]
    at[outside] = [-1 if cell is None else cell for cell in cells]
    return at


def _shares(planes: int, cells: int) -> Iterator[slice]:
    """Planes by so few at once that what NumPy does with them, which cannot be interrupted, takes milliseconds."""
    some = max(AT_ONCE // max(cells, 1), 1)
    return (slice(first, first + some) for first in range(0, planes, some))


def _runs(cells: Array) -> list[Run]:
    """The positions that read a cell, in runs; what each reads: cells in equal steps, or, True, one for all."""
    steps, there = np.diff(cells), cells >= 0
    ends = {*(np.flatnonzero(np.diff(steps)) + 2).tolist(), *(np.flatnonzero(np.diff(there)) + 1).tolist(), len(cells)}
    found, start = [], 0
    for end in sorted(ends):
        first, last = cells[start].item(), cells[end - 1].item()
        step = 0 if end - start == 1 else (last - first) // (end - start - 1)
        if first >= 0:
            beyond = last + (step or 1)
            read = slice(first, beyond if beyond >= 0 else None, step or 1)
            found.append((slice(start, end), read, step == 0 and end - start > 1))
        start = end
    return found


def _runs_of_taps(g: Geometry) -> list[list[list[Run]]]:
    """`_runs` of each tap along each axis."""
    axes = (_cells(g, a) for a in range(len(g.input_size)))
    return [[_runs(cells[:, tap]) for tap in range(cells.shape[1])] for cells in axes]


def unfold(g: Geometry, input: Array, columns: Array) -> None:
    """columns (batch, channels * taps, positions) <- input."""
    padded, runs = element(g.padding_value, input.dtype), _runs_of_taps(g)
    planes = input.reshape(g.batch * g.in_channels, *whole_size(g))[:, *box(g)]
    to = columns.reshape(len(planes), *g.kernel_size, *g.output_size)
    for share in _shares(len(planes), prod(g.output_size)):
        cells = planes[share]
        for tap in product(*(range(k) for k in g.kernel_size)):
            one: Any = (share, *tap)
            there, of_tap = to[one], [runs[a][k] for a, k in enumerate(tap)]
            met = (sum(places.stop - places.start for places, *_ in axis) for axis in of_tap)
            if any(positions < size for positions, size in zip(met, g.output_size)):
                there[...] = padded
            for parts in product(*of_tap):
                there[:, *(places for places, *_ in parts)] = cells[:, *(read for _, read, _ in parts)]


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
        target = out.reshape(g.batch, g.in_channels, *whole_size(g))
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


def fold(g: Geometry, columns: Array, target: Array, accumulate: bool = False) -> None:
    """target (+)= the sum of the columns, axis by axis, the last one first; of halves, summed in float32, and rounded
    once. What of target is not x gets 0."""
    rank, runs = len(g.input_size), _runs_of_taps(g)
    planes = target.reshape(g.batch * g.in_channels, *whole_size(g))
    read = columns.reshape(len(planes), *g.kernel_size, *g.output_size)
    if not accumulate and whole_size(g) != g.input_size:
        planes[...] = 0
    planes = planes[:, *box(g)]
    with np.errstate(all="ignore"):
        for share in _shares(len(planes), prod(g.output_size)):
            sums = read[share]
            for a in reversed(range(rank)):
                sums = _folded(sums, a, runs[a], g.input_size[a], summed(target.dtype))
            planes[share] = sums + planes[share] if accumulate else sums


def _folded(columns: Array, a: int, taps: list[list[Run]], size: int, dtype: DType) -> Array:
    """The sums over the taps of axis a, of columns (plane, taps up to that axis, positions up to it, cells)."""
    outer = columns.shape[:1 + a] + columns.shape[2 + a:2 + 2 * a]
    sums = np.zeros((*outer, size, *columns.shape[3 + 2 * a:]), dtype)
    before = (slice(None),) * len(outer)
    for tap, runs in enumerate(taps):
        one: Any = (slice(None),) * (1 + a) + (tap,)
        of_tap = columns[one]
        for positions, cells, is_shared in runs:
            values = of_tap[*before, positions]
            sums[*before, cells] += values.sum(len(outer), dtype, keepdims=True) if is_shared else values
    return sums
