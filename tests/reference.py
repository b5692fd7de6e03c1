"""The definition, as loops: what every other answer in the tests is compared with.

One trilinear form says it all (n batch, g group, o and i channels inside the group, a output position, k tap):

    T(x, w, y) = sum over n, g, o, i, a, k of  y[n, (g,o), a] * w[(g,o), i, k] * x[n, (g,i), stride*a + dilation*k - lo]

A cell outside x is nothing: it is skipped, not multiplied by zero, so that Inf and NaN show up only where they take
part.  The three maps are the three partial derivatives of T.  Arrays have a batch axis and any number of spatial axes;
stride, lo and dilation are tuples with one int per axis.  Any dtype that numpy multiplies and adds will do (float, int,
complex).  This file imports no pyconv.
"""
import itertools
import math

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


def taps(input_size, kernel_size, positions, stride, lo, dilation):
    """For every tap k: the index of k, of the positions a that meet a cell of x, and of the cells that they meet."""
    for k in itertools.product(*map(range, kernel_size)):
        meets, cells = [], []
        for axis in range(len(k)):
            a = np.arange(positions[axis])
            cell = stride[axis] * a + dilation[axis] * k[axis] - lo[axis]
            inside = (0 <= cell) & (cell < input_size[axis])
            meets.append(a[inside])
            cells.append(cell[inside])
        yield k, np.ix_(*meets), np.ix_(*cells)


def grouped(array, groups, axis):
    """The channel axis split into (group, channel inside the group)."""
    return array.reshape(array.shape[:axis] + (groups, array.shape[axis] // groups) + array.shape[axis + 1:])


def forward(x, w, positions, stride, lo, dilation, groups):
    """dT/dy: y[n, (g,o), a] = sum over i, k of w[(g,o), i, k] * x[n, (g,i), cell]."""
    y = np.zeros((x.shape[0], w.shape[0], *positions), np.result_type(x, w))
    yg, wg, xg = grouped(y, groups, 1), grouped(w, groups, 0), grouped(x, groups, 1)
    for k, a, cell in taps(x.shape[2:], w.shape[2:], positions, stride, lo, dilation):
        for g in range(groups):
            yg[:, g][(..., *a)] += np.einsum('oi,ni...->no...', wg[g][(..., *k)], xg[:, g][(..., *cell)])
    return y


def grad_input(w, y, input_size, stride, lo, dilation, groups):
    """dT/dx: x[n, (g,i), cell] = sum over o and the (a, k) that meet the cell of w[(g,o), i, k] * y[n, (g,o), a]."""
    x = np.zeros((y.shape[0], w.shape[1] * groups, *input_size), np.result_type(w, y))
    yg, wg, xg = grouped(y, groups, 1), grouped(w, groups, 0), grouped(x, groups, 1)
    for k, a, cell in taps(input_size, w.shape[2:], y.shape[2:], stride, lo, dilation):
        for g in range(groups):  # for one k, different a meet different cells: += adds each once
            xg[:, g][(..., *cell)] += np.einsum('oi,no...->ni...', wg[g][(..., *k)], yg[:, g][(..., *a)])
    return x


def grad_weight(x, y, kernel_size, stride, lo, dilation, groups):
    """dT/dw: w[(g,o), i, k] = sum over n, a of y[n, (g,o), a] * x[n, (g,i), cell]."""
    w = np.zeros((y.shape[1], x.shape[1] // groups, *kernel_size), np.result_type(x, y))
    yg, wg, xg = grouped(y, groups, 1), grouped(w, groups, 0), grouped(x, groups, 1)
    axes = 'abcdefgh'[:len(kernel_size)]
    for k, a, cell in taps(x.shape[2:], kernel_size, y.shape[2:], stride, lo, dilation):
        for g in range(groups):
            wg[g][(..., *k)] = np.einsum(f'no{axes},ni{axes}->oi', yg[:, g][(..., *a)], xg[:, g][(..., *cell)])
    return w


def transposed(u, w, size, stride, lo, dilation, groups):
    """The transposed convolution of u: the gradient, to an input of that size, of the convolution that gives u."""
    return grad_input(w, u, size, stride, lo, dilation, groups)


def unfold(x, kernel_size, positions, stride, lo, dilation):
    """columns[n, (c, k), a] = x[n, c, cell], and zero where there is no cell."""
    columns = np.zeros((*x.shape[:2], *kernel_size, *positions), x.dtype)
    for k, a, cell in taps(x.shape[2:], kernel_size, positions, stride, lo, dilation):
        columns[(slice(None), slice(None), *k)][(..., *a)] = x[(..., *cell)]
    return columns.reshape(x.shape[0], x.shape[1] * math.prod(kernel_size), math.prod(positions))


def fold(columns, input_size, kernel_size, positions, stride, lo, dilation):
    """x[n, c, cell] = sum of the columns[n, (c, k), a] that unfold reads from the cell."""
    columns = columns.reshape(columns.shape[0], -1, *kernel_size, *positions)
    x = np.zeros((*columns.shape[:2], *input_size), columns.dtype)
    for k, a, cell in taps(input_size, kernel_size, positions, stride, lo, dilation):
        x[(..., *cell)] += columns[(slice(None), slice(None), *k)][(..., *a)]
    return x


def channel_sum(y):
    """The sum over all axes but the channel's: the gradient to the bias."""
    return y.sum(axis=(0, *range(2, y.ndim)))
