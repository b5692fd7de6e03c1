"""What looks wrong but is right: batches, channels and inputs of nothing, long strides, lists alone, outs in tuples."""
import re
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

import pyconv
from guarded import guards_memory
from pyconv import _evaluate
from pyconv._backend import cpu

F32 = np.float32
X, W, Y, B = np.ones((1, 2, 5, 5)), np.ones((3, 2, 3, 3)), np.ones((1, 3, 3, 3)), np.ones(3)
RNG = np.random.default_rng(0)
DATA = [RNG.integers(-3, 4, array.shape) for array in (X, W, Y, B)]


every_layout = pytest.mark.parametrize('layout', [
    np.asfortranarray, lambda array: np.repeat(array, 2, -1)[..., ::2],
    lambda array: array.astype(array.dtype.newbyteorder('>')),
], ids=['Fortran', 'gaps', 'big-endian'])


@every_layout
@pytest.mark.parametrize('per_sample', [False, True])
@pytest.mark.parametrize('batch', [(), (3,)], ids=['alone', 'batch'])
@pytest.mark.parametrize('transposed', [False, True])
def test_outs_of_all_gradients(transposed, batch, per_sample, layout, dtype, monkeypatch):
    """Where samples are worked on one after the other, the weight is all of theirs, and its gradient each one's own."""
    monkeypatch.setattr(_evaluate, 'AT_ONCE', 1)
    shapes = (*batch, 4, 7), (4, 4, 3), (*batch, 4, 9 if transposed else 5)
    x, w, y = (RNG.integers(-3, 4, shape).astype(dtype) for shape in shapes)
    arguments = (y, x, w, 1, 0, 1, transposed, 0, 1, (True, True, True))
    wanted = pyconv.convolution_backward(*arguments, per_sample=per_sample)
    for accumulate in (False, True):
        outs = tuple(layout(np.full(array.shape, 2, dtype)) for array in wanted)
        found = pyconv.convolution_backward(*arguments, per_sample=per_sample, out=outs, accumulate=accumulate)
        for out, result, array in zip(outs, found, wanted):
            assert result is out and np.array_equal(out, array + 2 * accumulate)


@every_layout
def test_outs_of_the_functions_with_many_results(layout, dtype):
    x, w, y, b = (array.astype(dtype) for array in DATA)
    outs = [layout(np.full(array.shape, np.nan, dtype)) for array in (y, x, w, b)]
    arguments = (y, x, w, 1, 0, 1, False, 0, 1, (True, True, True))
    found = pyconv.convolution_backward(*arguments, out=tuple(outs[1:]))
    for out, result, wanted in zip(outs[1:], found, pyconv.convolution_backward(*arguments)):
        assert result is out and np.array_equal(out, wanted)
    tangents = (x, w, b, y, w, x, 1, 0, 1, False, 0, 1, (True, True, True))
    found = pyconv.convolution_double_backward(*tangents, out=[outs[0], outs[1], None])
    for result, wanted in zip(found, pyconv.convolution_double_backward(*tangents)):
        assert np.array_equal(result, wanted)


def test_lists_alone_and_beside_an_array():
    assert pyconv.conv1d([[1, 2, 3]], np.ones((1, 1, 2), F32)).dtype == F32
    assert pyconv.conv1d([[1, 2, 3]], np.ones((1, 1, 2)), [1]).tolist() == [[4, 6]]
    assert pyconv.conv1d([[1.0, 2.0, 3.0]], [[[1, 1]]]).tolist() == [[3, 5]]


@pytest.mark.parametrize('transposed', [False, True])
def test_batch_of_nothing(transposed, dtype):
    x, w, y, b = (np.ones(array.shape, dtype) for array in (X, W, Y, B))
    u, v, c = (y[:0], x[:0], b[:2]) if transposed else (x[:0], y[:0], b)
    settings = (1, 0, 1, transposed, 0, 1)
    assert pyconv.convolution(u, w, c, *settings).shape == v.shape
    mask = (True, True, True)
    grads = pyconv.convolution_backward(v, u, w, *settings, mask)
    for found, wanted in zip(grads, (u, np.zeros_like(w), np.zeros_like(c))):
        assert found.dtype == dtype and np.array_equal(found, wanted)
    second = pyconv.convolution_double_backward(u, w, c, v, w, u, *settings, mask)
    for found, wanted in zip(second, (v, u, np.zeros_like(w))):
        assert found.dtype == dtype and np.array_equal(found, wanted)
    assert pyconv.unfold(x[:0], 3).shape == (0, 18, 9) and pyconv.fold(np.ones((0, 18, 9)), 5, 3).shape == (0, 2, 5, 5)
    assert pyconv.conv2d_weight(None, w.shape, y[:0], finput=np.ones((0, 18, 9), dtype)).tolist() == (0 * w).tolist()
    assert set(pyconv.workspace((0, 2, 5, 5), W.shape)[:4]) == {0}
    assert pyconv.conv2d(x[:0], w, finput=np.ones(1, F32)).shape == y[:0].shape


def test_fold_takes_back_the_columns_of_nothing():
    """Columns of padding alone: every value of theirs is dropped."""
    x = np.ones((2, 3, 0, 4))
    columns = pyconv.unfold(x, 2, padding=1)
    assert columns.shape == (2, 12, 5) and not columns.any()
    assert pyconv.fold(columns + 1, (0, 4), 2, padding=1).shape == x.shape
    around = {'padding_mode': 'constant', 'padding_value': 7}
    assert (pyconv.unfold(x[:, :, :, :0], 2, padding=1, **around) == 7).all()
    assert pyconv.fold(np.ones((2, 12, 1)), 0, 2, padding=1, **around).shape == (2, 3, 0, 0)


def test_an_empty_result_of_our_own_is_an_out():
    for out in (pyconv.conv2d(X[:0], W), np.empty((0, 3, 3, 3))):
        assert pyconv.conv2d(X[:0], W, out=out) is out


def test_out_whose_elements_share_memory():
    """Strides of zero are not the only way."""
    out = np.lib.stride_tricks.as_strided(np.zeros(40), (1, 2, 5), (80, 8, 8))
    with pytest.raises(ValueError, match=re.escape('out must not overlap itself; got strides (80, 8, 8)')):
        pyconv.conv1d(np.ones((1, 2, 7)), np.ones((2, 2, 3)), out=out)
    apart = np.zeros((5, 2, 3))[:, ::-1].transpose(2, 1, 0)
    assert pyconv.conv1d(np.ones((3, 2, 7)), np.ones((2, 2, 3)), out=apart) is apart and (apart == 6).all()


def test_the_bias_gradient_of_a_view_needs_no_copy():
    view = np.broadcast_to(np.float32(0.5), (64, 3, 1000, 2000))
    tracemalloc.start()
    try:
        assert pyconv.conv_bias(view[:1]).tolist() == [1e6] * 3
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_no_channels():
    assert np.array_equal(pyconv.conv2d(X[:, :0], W[:, :0], B), np.broadcast_to(B[:, None, None], Y.shape))
    assert pyconv.conv2d(X, W[:0]).shape == (1, 0, 3, 3)
    assert not pyconv.conv2d_input(X.shape, W[:0], Y[:, :0]).any()
    assert pyconv.conv_bias(Y[:, :0]).shape == (0,)


def test_no_cells_but_padding():
    assert np.array_equal(pyconv.conv1d(np.ones((1, 2, 0)), np.ones((3, 2, 2)), B, padding=1), B.reshape(1, 3, 1))
    far = pyconv.conv1d(np.ones((1, 2, 1)), np.ones((1, 2, 1)), padding=((2**40, 2**40),), stride=2**40)
    assert far.tolist() == [[[0, 2, 0]]]


def test_stride_beyond_the_input():
    assert pyconv.conv2d(X, W, stride=2**62).tolist() == np.full((1, 3, 1, 1), 18.0).tolist()


@pytest.mark.parametrize(('shape', 'weight_size', 'stride', 'padding', 'dilation'), [
    ((1, 1, 9), (1, 1, 3), 3, ((2**21, -5),), 2**20), ((1, 2, 9, 11), (2, 2, 2, 2), 2, 258, 257),
    ((1, 4, 24, 27, 9), (1, 4, 4, 2, 4), (2, 2, 3), ((0, 172), (0, 41), (0, 13)), (65, 65, 7)),
], ids=str)
def test_phases_of_a_stride_whose_taps_are_far_apart(shape, weight_size, stride, padding, dilation):
    """Against the other map: both are the same form, and small integers' sums are exact."""
    rank, settings = len(shape) - 2, {'stride': stride, 'padding': padding, 'dilation': dilation}
    forward, backward = (getattr(pyconv, f'conv{rank}d{map}') for map in ('', '_input'))
    x, w = (RNG.integers(-3, 4, size).astype(float) for size in (shape, weight_size))
    y = forward(x, w, **settings)
    other = RNG.integers(-3, 4, y.shape).astype(float)
    assert (y * other).sum() == (x * backward(shape, w, other, **settings)).sum()


@pytest.mark.parametrize('channels', [(1, 1), (3, 4)], ids=str)
@pytest.mark.parametrize('transposed', [False, True])
def test_calls_of_kernels_do_not_grow_with_the_groups(transposed, channels, monkeypatch):
    """Double backward is four runs of a plan, however many groups there are of one channel or of several."""
    runs = []

    def counting(*arguments):
        plan = cpu.plan(*arguments)
        return SimpleNamespace(
            run=lambda *given, **named: (runs.append(arguments[0]), plan.run(*given, **named)), enough=plan.enough)

    monkeypatch.setattr(_evaluate, 'cpu', SimpleNamespace(plan=counting, is_ready=cpu.is_ready))
    for groups in (1, 7, 64):
        runs.clear()
        x, y = (np.ones((2, groups * count, 6, 6), F32) for count in channels[::-1 if transposed else 1])
        w = np.ones((groups * channels[1], channels[0], 3, 3), F32)
        pyconv.convolution_double_backward(
            x, w, None, y, w, x, 1, 1, 1, transposed, 0, groups, (True, True, True))
        assert sorted(runs) == sorted(2 * ['grad_input' if transposed else 'forward']
                                      + ['forward' if transposed else 'grad_input', 'grad_weight'])


FAR = """
import numpy as np, pyconv
for far in (10**6, 10**12):
    for mode in ('circular', 'reflect', 'replicate'):
        steps = (far, far, far)  # the cells are far before the input's, its first, and far behind
        w, y = np.array([[[1.0, 2.0]]]), np.array([[[3.0, 5.0]]])
        found = pyconv.conv1d_input((1, 1, 3), w, y, *steps, padding_mode=mode)
        wanted = np.zeros(3)
        for a, k in np.ndindex(2, 2):
            cell = far * (a + k - 1)
            turn = cell % 4
            place = {'circular': cell % 3, 'reflect': min(turn, 4 - turn), 'replicate': min(max(cell, 0), 2)}[mode]
            wanted[place] += y[0, 0, a] * w[0, 0, k]
        assert np.array_equal(found[0, 0], wanted), (mode, found, wanted)
        pyconv.workspace((1, 1, 3), (1, 1, 2), *steps, padding_mode=mode)
"""


def test_padding_may_repeat_the_input_any_number_of_times(run_python):
    run_python(FAR, timeout=60)


@pytest.mark.parametrize('mode', ['zeros', 'circular', 'reflect', 'replicate'])
@pytest.mark.parametrize('stride', [2**62, 2**62 + 1, 2**62 + 2])
def test_strides_and_paddings_near_the_largest_number(stride, mode, dtype):
    """Two positions or two taps, one of them far in front of the input, whose sum with a step is no index."""
    def place(cell):
        turn = cell % 8
        return {'zeros': cell if 0 <= cell < 5 else None, 'circular': cell % 5, 'reflect': min(turn, 8 - turn),
                'replicate': min(max(cell, 0), 4)}[mode]

    x, columns, settings = np.arange(1, 6, dtype=dtype)[None], np.array([[10, 20]], dtype), {'padding_mode': mode}
    wanted, read = np.zeros((1, 5), dtype), [place(-stride), place(0)]
    for cell, number in zip(read, (10, 20)):
        if cell is not None:
            wanted[0, cell] += number
    seen = [[0 if cell is None else x[0, cell] for cell in read]]
    steps = {'stride': stride, 'padding': ((stride, 0),), **settings}
    assert np.array_equal(pyconv.unfold(x, (1,), **steps), seen)
    assert np.array_equal(pyconv.fold(columns, (5,), (1,), **steps), wanted)
    taps = {'dilation': stride, 'padding': ((stride, 0),), **settings}  # 5 positions: under tap 1 lies the input
    weight = np.array([[[0, 1]]], dtype)
    calls = ((pyconv.conv1d, x, np.ones((1, 1, 1), dtype), steps, seen), (pyconv.conv1d, x, weight, taps, x),
             (pyconv.conv1d_weight, x, (1, 1, 2), x, taps, None))
    for call, *operands, keywords, result in calls:
        if mode == 'zeros':
            found = call(*operands, **keywords)
            assert np.array_equal(found, result) if result is not None else found[0, 0, 1] == (x * x).sum()
        else:  # what is far beyond the edges is copied to scratch
            with pytest.raises(MemoryError):
                call(*operands, **keywords)
    assert np.array_equal(pyconv.conv1d_input((1, 5), np.ones((1, 1, 1), dtype), columns, **steps), wanted)
    if mode != 'circular':  # its input gradient goes round scratch as well
        assert np.array_equal(pyconv.conv1d_input((1, 5), weight, x, **taps), x)


@pytest.mark.parametrize(('shape', 'kernel', 'settings'), [
    ((1, 3), (2,), {'dilation': 2**63 - 1, 'padding': ((0, 2**63 - 3),)}),
    ((1, 3), (2,), {'dilation': 2**63 - 4, 'padding': ((0, 2**63 - 6),)}),
    ((1, 9), (2,), {'dilation': 2**62 - 2, 'padding': ((-4, 2**63 - 2),)}),
    ((1, 5, 3), (1, 1), {'stride': (2**62 - 2, 1), 'padding': ((2**62 - 2, 0), (0, 0))}),
    ((2, 5), (1,), {'stride': 2**62, 'padding': ((2**62, 0),)})], ids=str)
@pytest.mark.parametrize('mode', ['zeros', 'circular', 'reflect', 'replicate', 'constant'])
def test_what_no_address_reaches_is_refused(shape, kernel, settings, mode):
    """Also where it is the cells behind an axis, or its channels, that a step goes over."""
    x, weight = np.ones((1, *shape)), np.ones((1, shape[0], *kernel))
    stride, padding, dilation = settings.get('stride', 1), settings['padding'], settings.get('dilation', 1)
    with pytest.raises(ValueError, match=r'^padding must keep every axis within 2\*\*63 - 1 cells'):
        pyconv.unfold(x, kernel, dilation, padding, stride, padding_mode=mode)
    with pytest.raises(ValueError, match=r'^padding must keep every axis within 2\*\*63 - 1 cells'):
        pyconv.convolution(x, weight, None, stride, padding, dilation, False, 0, 1, padding_mode=mode)


REPEATED = """
import sys, numpy as np, pyconv
mode, axis, n = sys.argv[1], int(sys.argv[2]), 300_000
size = (n, 1) if axis == 0 else (1, n)
padding = ((n - 1, n - 1), (0, 0))[::1 - 2 * axis]
columns = np.ones((1, 3 * n - 2), np.int8)
found = pyconv.fold(columns, size, (1, 1), padding=padding, padding_mode=mode, dtype='int64').ravel()
wanted = {'circular': np.r_[2, np.full(n - 2, 3), 2], 'replicate': np.r_[n, np.ones(n - 2, int), n],
          'reflect': np.r_[2, np.full(n - 2, 3), 2]}[mode]
assert np.array_equal(found, wanted)
"""


@pytest.mark.parametrize('axis', [0, 1])
@pytest.mark.parametrize('mode', ['circular', 'reflect', 'replicate'])
def test_time_grows_with_the_padding_and_no_faster(run_python, mode, axis):
    """Looking through all of it for each row takes minutes."""
    run_python(REPEATED, mode, axis, timeout=30)


@pytest.mark.parametrize('size', [(1,), (1, 2), (8,)], ids=str)
def test_what_replicates_very_often_is_summed_as_exactly(size):
    columns = np.full((1, 200_001 * size[-1]), 0.1, np.float32)
    padding = (*[(0, 0)] * (len(size) - 1), (100_000 * size[-1], 100_000 * size[-1]))
    kernel = (1,) * len(size)
    found = pyconv.fold(columns, size, kernel, padding=padding, padding_mode='replicate')
    wanted = pyconv.fold(columns.astype(np.float64), size, kernel, padding=padding, padding_mode='replicate')
    assert np.abs(found / wanted - 1).max() < 1e-6
    weight = np.ones((1, 1, *kernel), np.float32)
    found = pyconv.convolution_backward(
        columns.reshape(1, *size[:-1], -1), np.zeros((1, *size), np.float32), weight, 1, padding, 1, False, 0, 1,
        (True, False, False), padding_mode='replicate')[0]
    assert np.abs(found / wanted - 1).max() < 1e-6


AT_THE_END = """
import numpy as np, pyconv
from guarded import at_an_end
for shape, kernel in (((1, 1, 3, 1, 3, 2), (1,) * 4), ((1, 2, 3, 5, 2), (1, 2, 2)), ((2, 1, 5, 2), (2, 2))):
    x = at_an_end(np.arange(np.prod(shape), dtype='f4').reshape(shape), False)
    w, settings = np.ones((1, shape[1], *kernel), 'f4'), (1, [(0, 0)] * (len(kernel) - 1) + [(0, 1)], 1, False, 0, 1)
    for mode in ('constant', 'circular', 'replicate', 'reflect'):
        y, wanted = (pyconv.convolution(each, w, None, *settings, padding_mode=mode) for each in (x, x.copy()))
        assert (y == wanted).all()
        pyconv.convolution_backward(y, x, w, *settings, (True, True, True), padding_mode=mode)
"""
WEIGHT_AT_AN_END = """
import itertools, numpy as np, pyconv
from guarded import at_an_end
rng, settings = np.random.default_rng(0), (0, 1, True, 0, 1)
sizes, kernels = ((2,), (3, 9), (20, 20)), ((3,), (5,), (7,), (11,), (3, 3), (7, 1), (5, 5), (2, 2, 3))
sides = ((3, 40), (40, 3), (2, 600))
for kernel, channels, dtype, stride in itertools.product(kernels, sides, ('f4', 'f8', 'i4'), (1, 2)):
    w = rng.integers(-9, 9, (*channels, *kernel)).astype(dtype)
    for size in sizes:
        x = rng.integers(-9, 9, (1, channels[0], *(1,) * (len(kernel) - len(size)), *size[-len(kernel):])).astype(dtype)
        wanted = pyconv.convolution(x, w, None, stride, *settings, algorithm='gemm')
        for front, turned in itertools.product((False, True), (False, True)):
            there = at_an_end(w[::-1, ::-1] if turned else w, front)
            given = there[::-1, ::-1] if turned else there
            assert (pyconv.convolution(x, given, None, stride, *settings, algorithm='gemm') == wanted).all()
"""


@guards_memory
def test_nothing_behind_the_input_is_read(run_python):
    run_python(AT_THE_END)


@guards_memory
def test_nothing_around_the_weight_is_read(run_python):
    """Whose taps are turned in squares, some of which reach beyond a row: of few positions, and of many."""
    run_python(WEIGHT_AT_AN_END)


def test_a_nan_that_meets_no_padding_takes_the_plan_of_numbers():
    """Cells are broadcast from where they lie: no weight is looked through, and none needs a plan of its own."""
    x, w, plans = np.ones((1, 40, 15, 15), np.float32), np.ones((40, 40, 3, 3), np.float32), []
    for value in (1, np.nan):
        w[0, 0, 1, 1] = value
        y = pyconv.conv2d(x, w, stride=3, padding=1)
        grad_x = pyconv.conv2d_input(x.shape, w, y[:, 1:2] * np.ones((40, 1, 1), np.float32), stride=3, padding=1)
        plans.append(cpu.plan.cache_info().currsize)
    assert plans[0] == plans[1]
    assert np.isnan(y[0, 0]).all() and not np.isnan(y[0, 1:]).any()
    assert np.isnan(grad_x[0, 0, ::3, ::3]).all() and np.isnan(grad_x).sum() == 25


def test_a_complex_nan_around_the_input_makes_one_plan():
    x, w = np.ones((1, 1, 3), np.complex64), np.ones((1, 1, 3), np.complex64)
    before = cpu.plan.cache_info().currsize
    for _ in range(3):
        pyconv.conv1d(x, w, padding=1, padding_mode='constant', padding_value=complex(float('nan'), 1))
    assert cpu.plan.cache_info().currsize <= before + 1
