"""A whole backend in NumPy, as an example: python docs/with_backend.py docs/numpy_backend.py tests it.

Every map is a matrix product with the columns of x, which makes this slow and greedy, but it is all that the contract
asks for. One promise it breaks: padded cells are zeros that are multiplied, so that Inf in a weight makes NaN there.
"""

from functools import lru_cache
from math import prod

import numpy as np

from pyconv import _unfolding

COMPUTED = {"float16": np.float32, "bfloat16": np.float32}
threads_of_process = 1


class Plan:
    """One map on one geometry for one dtype."""

    scratch_minimum = 0

    def __init__(self, map, geometry, dtype, algorithm, result):
        self.map, self.geometry, self.result = map, geometry, result
        self.settings = dtype, algorithm, result
        self.has_columns = algorithm == "columns"
        self.computed = np.dtype(COMPUTED.get(dtype.name, result))

    def scratch_size(self, threads):
        return 0

    def enough(self, scratch):
        return scratch

    def of_batch(self, batch):
        return Plan(self.map, self.geometry._replace(batch=batch), *self.settings)

    def run(self, first, second, out, bias=None, scratch=None, accumulate=False, *, threads=None):
        g = self.geometry
        if self.map == "grad_weight":
            found = self.product(self.columns(first), self.outputs(second))
        elif self.map == "forward":
            found = self.weights(second) @ self.columns(first)
        else:
            found = self.folded(self.weights(second).transpose(0, 2, 1) @ self.outputs(first))
        has_channels_last = g.y_last if self.map == "forward" else g.x_last and self.map == "grad_input"
        if has_channels_last:
            found = np.moveaxis(found.reshape(g.batch, -1, prod(out.shape) // (g.batch * out.shape[-1])), 1, -1)
        if bias is not None:
            axis = found.ndim - 1 if has_channels_last else 1
            found = found.reshape(g.batch, bias.size, -1) if axis == 1 else found
            found = found + bias.astype(self.computed).reshape([-1 if a == axis else 1 for a in range(3)])
        found = found.reshape(out.shape).astype(self.result)
        out[...] = out + found if accumulate else found

    def columns(self, x):
        """(batch, groups, channels * taps, positions) of x, or of the columns that x is already."""
        g = self.geometry
        if not self.has_columns:
            source = np.moveaxis(x.reshape(g.batch, -1, g.in_channels), -1, 1) if g.x_last else x
            x = np.empty((g.batch, g.in_channels * prod(g.kernel_size), prod(g.output_size)), source.dtype)
            _unfolding.unfold(g, np.ascontiguousarray(source), x)
        return x.astype(self.computed).reshape(g.batch, g.groups, -1, prod(g.output_size))

    def folded(self, columns):
        g = self.geometry
        x = np.empty((g.batch, g.in_channels, *g.input_size), columns.dtype)
        sum_columns(g, columns, x)
        return x

    def outputs(self, y):
        """(batch, groups, channels, positions) of y."""
        g = self.geometry
        y = np.moveaxis(y.reshape(g.batch, -1, g.out_channels), -1, 1) if g.y_last else y
        return y.astype(self.computed).reshape(g.batch, g.groups, -1, prod(g.output_size))

    def weights(self, w):
        """(groups, channels, channels * taps) of w."""
        return w.astype(self.computed).reshape(self.geometry.groups, w.shape[0] // self.geometry.groups, -1)

    def product(self, columns, outputs):
        each = outputs @ columns.transpose(0, 1, 3, 2)
        return each if self.geometry.per_sample else each.sum(0)


@lru_cache(maxsize=512)
def plan(map, geometry, dtype, algorithm="auto", result=None):
    return Plan(map, geometry, dtype, algorithm, dtype if result is None else result)


def is_ready(array, dtype):
    return array.flags.c_contiguous and array.flags.aligned and array.dtype is dtype


def form(numbers, arrays, written, rank=None, to_weight=False):
    return None  # every call asks for its plan


def unfold(geometry, input, columns, fold, accumulate=False, *, threads=None):
    if fold:
        found = np.empty(input.shape, COMPUTED.get(input.dtype.name, input.dtype))
        sum_columns(geometry, columns, found)
        input[...] = input + found if accumulate else found
    else:
        _unfolding.unfold(geometry, input, columns)


def sum_columns(geometry, columns, x):
    """x <- the sum of columns, each at the cell that it is read from: unfold tells which, of an x of their numbers."""
    one = geometry._replace(batch=1, in_channels=1, padding_value=0)
    numbers = np.arange(1, 1 + prod(x.shape[2:]))
    cells = np.empty(columns.size // (geometry.batch * geometry.in_channels), numbers.dtype)
    _unfolding.unfold(one, numbers, cells)
    sums = np.zeros((geometry.batch * geometry.in_channels, 1 + numbers.size), x.dtype)
    np.add.at(sums, (slice(None), cells), columns.reshape(len(sums), -1).astype(x.dtype))
    x[...] = sums[:, 1:].reshape(x.shape)


def channel_sum(array, out, accumulate=False, *, threads=None):
    sums = array.sum((0, 2), dtype=np.float64)
    out[...] = out + sums if accumulate else sums


def set_threads(threads):
    global threads_of_process
    threads_of_process = threads


def config():
    return {"level": "numpy", "levels": ["numpy"], "openmp": False, "threads": threads_of_process}

