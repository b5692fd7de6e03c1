"""unfold by NumPy's indices, for types of elements and for padded cells that have no kernels of their own; and the
gradient of an input that its padding repeats very often, by its columns."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyconv._dtypes import FLOAT32, DType, element
from pyconv._geometry import Geometry, box, whole_size
from pyconv._integers import Shape
from pyconv._memory import empty, shares
from pyconv._outer import LAST
from pyconv._padding import held

Array = NDArray[Any]
Run = tuple[slice, slice]

AT_ONCE = 2**18  # cells that one operation of NumPy's takes, which cannot be interrupted: milliseconds


def cells_read(g: Geometry, a: int, positions: Array) -> Array:
    """[position, tap]: the cell of axis a that is read, -1 where there is none."""
    size = g.input_size[a]
    at = g.stride[a] * positions[:, None] + g.dilation[a] * np.arange(g.kernel_size[a]) - g.padding[a]
    outside = (at < 0) | (at >= size)
    cells = [held(g.padding_mode, int(cell), size) for cell in at[outside]]
    at[outside] = [-1 if cell is None else cell for cell in cells]
    return at


def _runs(cells: Array) -> list[Run]:
    """The positions that read a cell, in runs; what each reads: cells in equal steps, or one for all."""
    steps, there = np.diff(cells), cells >= 0
    ends = {*(np.flatnonzero(np.diff(steps)) + 2).tolist(), *(np.flatnonzero(np.diff(there)) + 1).tolist(), len(cells)}
    found, start = [], 0
    for end in sorted(ends):
        first, last = cells[start].item(), cells[end - 1].item()
        step = 0 if end - start == 1 else (last - first) // (end - start - 1)
        if first >= 0:
            beyond = last + (step or 1)
            read = slice(first, beyond if beyond >= 0 else None, step or 1)
            found.append((slice(start, end), read))
        start = end
    return found


def _runs_of_taps(g: Geometry) -> list[list[list[Run]]]:
    """`_runs` of each tap along each axis."""
    axes = (cells_read(g, a, np.arange(g.output_size[a])) for a in range(len(g.input_size)))
    return [[_runs(cells[:, tap]) for tap in range(cells.shape[1])] for cells in axes]


def unfold(g: Geometry, input: Array, columns: Array) -> None:
    """columns (batch, channels * taps, positions) <- input."""
    padded, runs = element(g.padding_value, input.dtype), _runs_of_taps(g)
    planes = input.reshape(g.batch * g.in_channels, *whole_size(g))[:, *box(g)]
    to = columns.reshape(len(planes), *g.kernel_size, *g.output_size)
    for share in shares(len(planes), AT_ONCE // max(prod(g.output_size), 1)):
        cells = planes[share]
        for tap in product(*(range(k) for k in g.kernel_size)):
            one: Any = (share, *tap)
            there, of_tap = to[one], [runs[a][k] for a, k in enumerate(tap)]
            met = (sum(places.stop - places.start for places, _ in axis) for axis in of_tap)
            if any(positions < size for positions, size in zip(met, g.output_size)):
                there[...] = padded
            for parts in product(*of_tap):
                there[:, *(places for places, _ in parts)] = cells[:, *(read for _, read in parts)]


def summed(dtype: DType) -> DType:
    """What results of a type are summed in: halves in float32."""
    return dtype if dtype.itemsize > 2 or dtype.kind in "iu" else FLOAT32


class FarGradient:
    """The plan of a grad_input where padding repeats the input very often, sample by sample.

    The gradients of the columns of some positions are one matrix product; each is added to the cell that it was read
    from. Sums of halves are kept in float32 until they are complete.
    """

    def __init__(self, geometry: Geometry, dtype: DType, result: DType, plan: Any, unfold: Any) -> None:
        self.geometry, self.unfold = geometry, unfold
        self.of_batch = lambda batch: plan("grad_input", geometry._replace(batch=batch), dtype, "gemm", result)
        self.channels, self.sums = geometry.in_channels * prod(geometry.kernel_size), summed(result)
        most = max(1, AT_ONCE // self.channels)  # positions of a part
        extents: Shape = ()
        for size in reversed(geometry.output_size):
            extents = (min(size, max(1, most // prod(extents))), *extents)
        self.extents = extents
        counts = set(map(prod, product(*({n, size % n or n} for n, size in zip(extents, geometry.output_size)))))
        self.products = {count: plan("grad_input", of_columns(geometry, count), dtype, "gemm", self.sums)
                         for count in counts}
        largest = max(self.products.values(), key=lambda products: products.scratch_minimum)
        self.scratch_minimum, self.enough = largest.scratch_minimum, largest.enough

    def scratch_size(self, threads: int) -> int:
        """See _backend."""
        return max(products.scratch_size(threads) for products in self.products.values())  # type: ignore[no-any-return]

    def run(
        self, first: Array, second: Array, out: Array, bias: Array | None = None, scratch: Array | None = None,
        accumulate: bool = False, threads: int | None = None,
    ) -> None:
        """See _backend."""
        g = self.geometry
        for sample, cells in zip(first.reshape(g.batch, g.out_channels, *g.output_size),
                                 out.reshape(g.batch, g.in_channels, *whole_size(g))):
            is_rounded = self.sums != out.dtype
            sums = np.zeros(cells.shape, self.sums) if is_rounded else cells
            adds = accumulate or is_rounded
            with np.errstate(all="ignore"):
                if bias is not None:
                    each = bias.astype(self.sums).reshape(-1, *(1,) * len(g.input_size))
                    np.add(sums if adds else 0, each, sums)
                for part, box in self.parts():
                    adds = adds or bias is not None or any(one.start for one in box)
                    self._add(part, sample[:, *box], second, sums, scratch, adds, threads)
                if is_rounded:
                    cells[...] = np.add(sums, cells, sums) if accumulate else sums

    def parts(self) -> Iterator[tuple[Geometry, tuple[slice, ...]]]:
        """The problem of one sample in parts of some positions, and which these are. Along an axis whose edges a part
        does not reach, its x is the cells that it reaches."""
        g = self.geometry
        for slices in product(*map(shares, g.output_size, self.extents)):
            sizes: Any = tuple(one.stop - one.start for one in slices)
            part = g._replace(batch=1, output_size=sizes)
            axes: list[tuple[int, ...]] = []
            for a, one in enumerate(slices):
                low, size = g.stride[a] * one.start - g.padding[a], g.input_size[a]
                high = low + g.stride[a] * (sizes[a] - 1) + g.dilation[a] * (g.kernel_size[a] - 1) + 1
                if low >= 0 and high <= size and a >= len(slices) - LAST:
                    axes.append((0, high - low, g.before[a] + low, g.behind[a] + size - high))
                else:
                    axes.append((-low, size, g.before[a], g.behind[a]))
            padding, cells, before, behind = (tuple(numbers) for numbers in zip(*axes))
            yield part._replace(padding=padding, input_size=cells, before=before, behind=behind), slices

    def _add(
        self, part: Geometry, grad_output: Array, weight: Array, sums: Array, scratch: Array | None, adds: bool,
        threads: int | None,
    ) -> None:
        count = prod(part.output_size)
        columns = empty((1, self.channels, count), self.sums)
        products = self.products[count]
        products.run(np.ascontiguousarray(grad_output), weight, columns, None, products.enough(scratch), False,
                     threads=threads)
        self.unfold(part, sums, columns, True, adds, threads=threads)


def of_columns(g: Geometry, count: int | None = None) -> Geometry:
    """The problem whose input is a sample's columns, or those of so many positions: a convolution of 1 x 1."""
    ones, zeros, positions = (1, 1, 1), (0, 0, 0), (1, 1, count or prod(g.output_size))
    return Geometry(
        rank=1, batch=1, groups=g.groups, in_channels=g.in_channels * prod(g.kernel_size), out_channels=g.out_channels,
        input_size=positions, kernel_size=ones, output_size=positions, stride=ones, dilation=ones, padding=zeros,
        padding_mode="zeros")
