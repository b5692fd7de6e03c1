"""Integers of 8 and 16 bits into sums of 64: products of float64, whose sums are exact up to 2**53."""
import numpy as np
import pytest

import calls
import pyconv
from calls import last, per_channel
from plan_runs import geometry_of
from problems import P, maps
from pyconv import _cells
from test_bytes import PROBLEMS, of_bytes, ways

every_dtype = pytest.mark.parametrize('dtype', [np.int8, np.uint8, np.int16, np.uint16])
INT64 = {'dtype': np.int64}


def exactly(array, bias=0):
    """Sums of float64 below 2**53, and a bias modulo 2**64."""
    return np.rint(array).astype(np.int64).view(np.uint64) + np.asarray(bias, np.int64).view(np.uint64)


def same(answer, wanted):
    assert answer.dtype == np.int64
    np.testing.assert_array_equal(answer.view(np.uint64), wanted)


@pytest.mark.parametrize('extreme', [False, True], ids=['any', 'ends'])
@every_dtype
@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
def test_exact(problem, dtype, extreme):
    """With biases of 64 bits, added to what is there, into and from either order of memory."""
    x, w, y, *_ = of_bytes(problem, dtype, extreme)
    rank, ends = problem.rank, np.iinfo(np.int64)
    rng = np.random.default_rng(len(problem.name))
    b, c = (rng.integers(ends.min, ends.max, n, np.int64, endpoint=True) for n in problem.channels[::-1])
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    forward, back = exactly(wanted.forward, per_channel(b, rank)), exactly(wanted.grad_input)
    to_weight = exactly(wanted.grad_weight)
    for order in (np.ascontiguousarray, lambda array: last(array, rank)):
        same(calls.forward(problem, order(x), w, b, **INT64), forward)
        same(calls.grad_input(problem, w, order(y), **INT64), back)
        same(calls.grad_weight(problem, order(x), order(y), **INT64), to_weight)
        same(calls.transposed(problem, order(y), w, c, **INT64), exactly(wanted.grad_input, per_channel(c, rank)))
        to_y, to_x, to_w = (order(np.full(part.shape, ends.max)) for part in (y, x, w))
        much = np.uint64(ends.max)
        same(calls.forward(problem, x, w, b, out=to_y, accumulate=True, **INT64), forward + much)
        same(calls.grad_input(problem, w, y, out=to_x, accumulate=True, **INT64), back + much)
        same(calls.grad_weight(problem, x, y, out=to_w, accumulate=True, **INT64), to_weight + much)


@every_dtype
@pytest.mark.parametrize('problem', PROBLEMS[::3], ids=str)
def test_any_batch_threads_and_scratch(problem, dtype):
    problem = problem._replace(batch=3)
    x, w, y, *_ = of_bytes(problem, dtype, True)
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords, dtype=dtype, result_dtype=np.int64)
    assert sizes.dtype == np.int64
    least = [np.full(max(1, size), -1) for size in (sizes.finput_minimum, sizes.fgrad_input_minimum)]  # NaN as floats
    for threads in (1, 2, 5):
        with pyconv.num_threads(threads):
            for first, second in ((None, None), least):
                same(calls.forward(problem, x, w, finput=first, **INT64), exactly(wanted.forward))
                same(calls.grad_input(problem, w, y, fgrad_input=second, **INT64), exactly(wanted.grad_input))
                same(calls.grad_weight(problem, x, y, finput=first, **INT64), exactly(wanted.grad_weight))


@pytest.mark.parametrize(('channels', 'is_tiled'), [(6400, True), (6500, False)])
def test_as_large_as_can_be(channels, is_tiled, caplog):
    """Of so many channels Winograd's sums of the largest numbers nearly fill what float64 holds."""
    x, w = np.full((1, channels, 6, 6), -2 ** 15, np.int16), np.full((24, channels, 3, 3), -2 ** 15, np.int16)
    w[::2] = 2 ** 15 - 1
    taps = pyconv.conv2d(np.ones((1, 1, 6, 6)), np.ones((1, 1, 3, 3)), padding=1)[0, 0].astype(np.int64)
    went = ways(caplog, lambda: same(pyconv.conv2d(x, w, padding=1), (
        channels * -2 ** 15 * w[:, 0, 0, 0].astype(np.int64)[None, :, None, None] * taps).view(np.uint64)))
    assert went == {'Winograd F(2, 3)' if is_tiled else 'matrix product'}
    assert 'Winograd' not in str(ways(caplog, lambda: pyconv.conv2d(x, w, padding=1, algorithm='gemm')))


@every_dtype
@pytest.mark.parametrize('value', [0, 3])
def test_biases_over_four_axes_amid_constants(dtype, value):
    """Some volumes of the result are of the constant alone."""
    x, w = np.ones((1, 2, 1, 2, 1, 2), dtype), np.ones((3, 2, 1, 1, 1, 1), dtype)
    b = np.array([1, 2 ** 62, -2 ** 63])
    answer = pyconv.convolution(x, w, b, 1, ((1, 0), (0, 0), (0, 0), (0, 0)), 1, False, 0, 1, padding_mode='constant',
                                padding_value=value, **INT64)
    wanted = np.empty(answer.shape, np.int64)
    wanted[:, :, 0], wanted[:, :, 1] = 2 * value, 2
    same(answer, (wanted.view(np.uint64) + per_channel(b, 4).view(np.uint64)))


@pytest.mark.parametrize('mode', ['circular', 'replicate', 'reflect'])
def test_what_padding_repeats_is_summed_in_whole_numbers(mode):
    """Of sums below 2**53 that are added to one cell the total may be above."""
    geometry = geometry_of(P('repeated', (3,), (3,), (8, 8), padding=1), padding_mode=mode)
    int16, int64 = np.dtype(np.int16), np.dtype(np.int64)
    assert not _cells.suits_doubles('grad_input', geometry, int16, int64)
    assert _cells.suits_doubles('forward', geometry, int16, int64)


@pytest.mark.parametrize(('dtype', 'channels', 'suits'), [
    (np.int16, 2 ** 23 - 1, True), (np.int16, 2 ** 23, False), (np.uint16, 2 ** 21 - 1, True),
    (np.uint16, 2 ** 21, False), (np.int8, 2 ** 30, True), (np.int32, 1, False)])
def test_where_sums_are_exact(dtype, channels, suits):
    geometry = geometry_of(P('many', (1,), (1,), (channels, 1)))
    assert _cells.suits_doubles('forward', geometry, np.dtype(dtype), np.dtype(np.int64)) == suits
    swapped = geometry_of(P('many', (1,), (1,), (1, channels)))
    assert _cells.suits_doubles('grad_input', swapped, np.dtype(dtype), np.dtype(np.int64)) == suits
    batch = geometry_of(P('many', (1,), (1,), (1, 1), batch=channels))
    assert _cells.suits_doubles('grad_weight', batch, np.dtype(dtype), np.dtype(np.int64)) == suits
