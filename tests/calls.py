"""The four public calls of a problem, by rank, and the comparison that the tests share."""
import tracemalloc

import numpy as np

import pyconv

CONV = {1: pyconv.conv1d, 2: pyconv.conv2d, 3: pyconv.conv3d}
INPUT = {1: pyconv.conv1d_input, 2: pyconv.conv2d_input, 3: pyconv.conv3d_input}
WEIGHT = {1: pyconv.conv1d_weight, 2: pyconv.conv2d_weight, 3: pyconv.conv3d_weight}
TRANSPOSE = {1: pyconv.conv_transpose1d, 2: pyconv.conv_transpose2d, 3: pyconv.conv_transpose3d}


def forward(problem, x, w, b=None, **more):
    return CONV[problem.rank](x, w, b, **problem.keywords, **more)


def grad_input(problem, w, y, **more):
    """Of a batch as long as that of y, or of no batch axis where y has none."""
    batch = np.shape(y)[:-1 - problem.rank]
    size = (*batch, problem.channels[0], *problem.size)
    return INPUT[problem.rank](size, w, y, **problem.keywords, **more)


def grad_weight(problem, x, y, **more):
    return WEIGHT[problem.rank](x, problem.weight_shape, y, **problem.keywords, **more)


def transposed(problem, y, w, c=None, **more):
    return TRANSPOSE[problem.rank](y, w, c, **problem.transposed_keywords, **more)


def planar(x, w, b, y):
    """conv2d, conv2d_input and conv2d_weight of these arrays, padded by 1, where a test names no others."""
    def conv(x=x, w=w, b=b, stride=1, padding=1, dilation=1, groups=1, **more):
        return pyconv.conv2d(x, w, b, stride, padding, dilation, groups, **more)

    def backwards(size=x.shape, w=w, y=y, stride=1, padding=1, **more):
        return pyconv.conv2d_input(size, w, y, stride, padding, **more)

    def to_weight(x=x, size=w.shape, y=y, stride=1, padding=1, **more):
        return pyconv.conv2d_weight(x, size, y, stride, padding, **more)

    return conv, backwards, to_weight


def three_maps(problem, x, w, y, **more):
    """forward, grad_input and grad_weight."""
    return forward(problem, x, w, **more), grad_input(problem, w, y, **more), grad_weight(problem, x, y, **more)


def per_channel(bias, rank):
    """A bias in the shape that broadcasts over positions."""
    return bias.reshape(-1, *(1,) * rank)


def last(array, rank):
    """The same numbers with the channels last in memory."""
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, -rank - 1, -1)), -1, -rank - 1)


def peak_of(call):
    """Bytes that Python and NumPy allocate at most during a call that has been made before."""
    call()
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def poisoned(shape, dtype):
    """An array that nobody may read before writing it."""
    return np.full(shape, np.nan, dtype)


def assert_equal(actual, wanted, dtype):
    """The very numbers (NaN where NaN, infinities with their sign), in a plain array of that dtype."""
    assert isinstance(actual, np.ndarray)
    assert actual.dtype == dtype and actual.dtype.isnative
    assert actual.shape == wanted.shape
    wrong = ~((actual == wanted) | (np.isnan(actual) & np.isnan(wanted)))
    assert not wrong.any(), (
        f'{np.count_nonzero(wrong)} of {wrong.size} differ, first at {np.argwhere(wrong)[0].tolist()}: '
        f'{actual[wrong][:5]} should be {wanted[wrong][:5]}')


def assert_same_bits(actual, wanted):
    """Every byte, so that -0.0 is not 0.0."""
    assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
    if actual.tobytes() != wanted.tobytes():
        wrong = actual != wanted
        raise AssertionError(f'{np.count_nonzero(wrong)} of {wrong.size} have other bits')
