"""The definition, as loops: what every other answer in the tests is compared with.

One trilinear form says it all (n batch, g group, o and i channels inside the group, a output position, k tap):

    T(x, w, y) = sum over n, g, o, i, a, k of  y[n, (g,o), a] * w[(g,o), i, k] * x[n, (g,i), stride*a + dilation*k - lo]

A cell outside x is nothing: it is skipped, not multiplied by zero, so that Inf and NaN show up only where they take
part; or it is what the padding mode says: a cell of x (phi says which), or a constant, and takes part like any other.
The three maps are the three partial derivatives of T.  Arrays have a batch axis and any number of spatial axes;
stride, lo and dilation are tuples with one int per axis.  Any dtype that numpy multiplies and adds will do (float, int,
complex, Python's integers as objects).  This file imports no pyconv.
"""
import functools
import itertools
import math
import typing

import numpy as np


def named_or_numeric_padding(padding, size, kernel, stride, dilation):
    """(lo, hi) of every axis of an input of this size, from any public form of padding."""
    extent = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    if padding == 'valid':
        return [(0, 0) for _ in size]
    if padding == 'full':
        return [(e - 1, e - 1) for e in extent]
    if padding == 'causal':
        return [(e - 1, 0) for e in extent]
    if padding in ('same', 'same_lower'):
        outputs = [math.ceil(length / s) for length, s in zip(size, stride)]
        totals = [max((a - 1) * s + e - length, 0) for a, s, e, length in zip(outputs, stride, extent, size)]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        return list(zip(small, large)) if padding == 'same' else list(zip(large, small))
    if isinstance(padding, int):
        return [(padding, padding) for _ in size]
    return [(p, p) if isinstance(p, int) else tuple(p) for p in padding]


def output_size(size, kernel, stride, pads, dilation):
    """How many positions every axis has."""
    return tuple(
        (length + lo + hi - d * (k - 1) - 1) // s + 1
        for length, k, s, (lo, hi), d in zip(size, kernel, stride, pads, dilation)
    )


def transposed_size(size, kernel, stride, pads, dilation, output_padding):
    """The size of the transposed convolution's output."""
    return tuple(
        (length - 1) * s - lo - hi + d * (k - 1) + 1 + extra
        for length, k, s, (lo, hi), d, extra in zip(size, kernel, stride, pads, dilation, output_padding)
    )


def kept(size, pads):
    """(first cell, cell behind the last) of every axis after the negative pads have cropped it."""
    return tuple((max(0, -lo), length - max(0, -hi)) for length, (lo, hi) in zip(size, pads))


def phi(cell, first, end, mode):
    """The cell that is read for this one of an axis, of whose cells those from first to end are left; None: nothing."""
    length, c = end - first, cell - first
    if 0 <= c < length:
        return cell
    if mode == 'circular':
        return first + c % length
    if mode == 'replicate':
        return first if c < 0 else end - 1
    if mode == 'reflect':
        there_and_back = c % (2 * length - 2) if length > 1 else 0
        return first + min(there_and_back, 2 * length - 2 - there_and_back)
    return None


class Padding(typing.NamedTuple):
    """The mode of the padding, the value of 'constant', and what is left of every axis (None: all)."""

    mode: str = 'zeros'
    value: complex = 0
    kept: tuple | None = None


NOTHING = Padding()


def taps(input_size, kernel_size, positions, stride, lo, dilation, padding=NOTHING):
    """For every tap k: the index of k, of the positions a that meet a cell of x, and of the cells that they meet."""
    sizes = (input_size, kernel_size, positions, stride, lo, dilation)
    return all_taps(*map(tuple, sizes), padding.mode, padding.kept)


@functools.lru_cache(maxsize=16)
def all_taps(input_size, kernel_size, positions, stride, lo, dilation, mode, kept):
    """As `taps`, kept since the maps of one problem ask for the same."""
    kept = kept or tuple((0, length) for length in input_size)
    axes = [[met(k, *sizes, *left, mode) for k in range(length)]
            for length, *sizes, left in zip(kernel_size, positions, stride, lo, dilation, kept)]
    return [(k, index([meets for meets, _ in found]), index([cells for _, cells in found]))
            for k, found in zip(itertools.product(*map(range, kernel_size)), itertools.product(*axes))]


def met(k, positions, stride, lo, dilation, first, end, mode):
    """Along one axis, for its tap k: the positions that meet a cell, and the cells."""
    there = [phi(stride * a + dilation * k - lo, first, end, mode) for a in range(positions)]
    return ([a for a, cell in enumerate(there) if cell is not None],
            [cell for cell in there if cell is not None])


def index(places):
    """Of the product of the places on each axis: slices where all of them lie evenly, which numpy reads far sooner."""
    slices = [slice_of(some) for some in places]
    return tuple(slices) if all(slices) else np.ix_(*(np.array(some, int) for some in places))


def slice_of(places):
    """The slice that is these places and no others; None: there is none."""
    step = places[1] - places[0] if len(places) > 1 else 1
    if not places or step < 1 or list(places) != list(range(places[0], places[-1] + 1, step)):
        return None
    return slice(places[0], places[-1] + 1, step)


def add(array, at, values):
    """Add values at an index; where it may name a cell more than once, one by one."""
    if isinstance(at[0], slice):
        array[(..., *at)] += values
    else:
        np.add.at(array, (*[slice(None)] * (array.ndim - len(at)), *at), values)


def seen(x, a, cell, positions, padding):
    """(positions, what of x is seen there): those that meet a cell, or all where the others see a constant."""
    if padding.mode != 'constant':
        return a, x[(..., *cell)]
    values = np.full((*x.shape[:-len(positions)], *positions), padding.value, x.dtype)
    values[(..., *a)] = x[(..., *cell)]
    return index([range(length) for length in positions]), values


def grouped(array, groups, axis):
    """The channel axis split into (group, channel inside the group)."""
    return array.reshape(array.shape[:axis] + (groups, array.shape[axis] // groups) + array.shape[axis + 1:])


def forward(x, w, positions, stride, lo, dilation, groups, padding=NOTHING):
    """dT/dy: y[n, (g,o), a] = sum over i, k of w[(g,o), i, k] * x[n, (g,i), cell]."""
    y = np.zeros((x.shape[0], w.shape[0], *positions), np.result_type(x, w))
    yg, wg, xg = grouped(y, groups, 1), grouped(w, groups, 0), grouped(x, groups, 1)
    for k, a, cell in taps(x.shape[2:], w.shape[2:], positions, stride, lo, dilation, padding):
        at, values = seen(xg, a, cell, positions, padding)
        yg[(..., *at)] += np.einsum('goi,ngi...->ngo...', wg[(..., *k)], values)
    return y


def grad_input(w, y, input_size, stride, lo, dilation, groups, padding=NOTHING):
    """dT/dx: x[n, (g,i), cell] = sum over o and the (a, k) that meet the cell of w[(g,o), i, k] * y[n, (g,o), a]."""
    x = np.zeros((y.shape[0], w.shape[1] * groups, *input_size), np.result_type(w, y))
    yg, wg, xg = grouped(y, groups, 1), grouped(w, groups, 0), grouped(x, groups, 1)
    for k, a, cell in taps(input_size, w.shape[2:], y.shape[2:], stride, lo, dilation, padding):
        products = np.einsum('goi,ngo...->ngi...', wg[(..., *k)], yg[(..., *a)])
        add(xg, cell, products)
    return x


def grad_weight(x, y, kernel_size, stride, lo, dilation, groups, padding=NOTHING, per_sample=False):
    """dT/dw: w[(g,o), i, k] = sum over n, a of y[n, (g,o), a] * x[n, (g,i), cell]; per_sample: of each n alone."""
    own = (len(x),) if per_sample else ()
    w = np.zeros((*own, y.shape[1], x.shape[1] // groups, *kernel_size), np.result_type(x, y))
    yg, wg, xg = grouped(y, groups, 1), grouped(w, groups, len(own)), grouped(x, groups, 1)
    axes, result = 'ABCDEFGH'[:len(kernel_size)], 'ngoi' if per_sample else 'goi'
    for k, a, cell in taps(x.shape[2:], kernel_size, y.shape[2:], stride, lo, dilation, padding):
        at, values = seen(xg, a, cell, y.shape[2:], padding)
        wg[(..., *k)] = np.einsum(f'ngo{axes},ngi{axes}->{result}', yg[(..., *at)], values)
    return w


def transposed(u, w, size, stride, lo, dilation, groups, padding=NOTHING):
    """The transposed convolution of u: the gradient, to an input of that size, of the convolution that gives u."""
    return grad_input(w, u, size, stride, lo, dilation, groups, padding)


def unfold(x, kernel_size, positions, stride, lo, dilation, padding=NOTHING):
    """columns[n, (c, k), a] = x[n, c, cell], and zero where there is no cell."""
    columns = np.zeros((*x.shape[:2], *kernel_size, *positions), x.dtype)
    for k, a, cell in taps(x.shape[2:], kernel_size, positions, stride, lo, dilation, padding):
        at, values = seen(x, a, cell, positions, padding)
        columns[(slice(None), slice(None), *k)][(..., *at)] = values
    return columns.reshape(x.shape[0], x.shape[1] * math.prod(kernel_size), math.prod(positions))


def fold(columns, input_size, kernel_size, positions, stride, lo, dilation, padding=NOTHING):
    """x[n, c, cell] = sum of the columns[n, (c, k), a] that unfold reads from the cell."""
    columns = columns.reshape(columns.shape[0], -1, *kernel_size, *positions)
    x = np.zeros((*columns.shape[:2], *input_size), columns.dtype)
    for k, a, cell in taps(input_size, kernel_size, positions, stride, lo, dilation, padding):
        add(x, cell, columns[(slice(None), slice(None), *k)][(..., *a)])
    return x


def modulo(values, dtype):
    """Python's integers as an integer dtype holds them: modulo 2 to the number of its bits."""
    info = np.iinfo(dtype)
    least, count = int(info.min), int(info.max) - int(info.min) + 1
    flat = [(int(value) - least) % count + least for value in values.ravel()]
    return np.array(flat, dtype).reshape(values.shape)


def channel_sum(y):
    """The sum over all axes but the channel's: the gradient to the bias."""
    return y.sum(axis=(0, *range(2, y.ndim)))
