"""Every problem, float32 and float64, all maps, against the reference with ==.

`out` and the buffers come in poisoned with NaN, every call is made twice, and inputs come with and without batch axis.
"""
import functools

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import assert_equal, per_channel, poisoned
from problems import BY_NAME, EVERY, PHASES, PROBLEMS, ROWS, VARIED, VARIED_MODES, expected
from pyconv import _geometries

pytestmark = pytest.mark.every
every_problem = pytest.mark.parametrize('problem', EVERY + ROWS, ids=str)
every_gathered = pytest.mark.parametrize('problem', EVERY + ROWS + PHASES, ids=str)


@functools.cache
def workspace(problem_name, dtype, transposed):
    problem = BY_NAME[problem_name]
    shape = problem.output_shape if transposed else problem.input_shape
    keywords = problem.keywords
    if transposed:
        padding, output_padding = problem.transposed_padding
        keywords = {**keywords, 'padding': padding, 'output_padding': output_padding}
    return pyconv.workspace(shape, problem.weight_shape, **keywords, transposed=transposed, dtype=dtype)


def scratch(problem, dtype, transposed=False):
    """Poisoned finput and fgrad_input of full-speed size."""
    wants = workspace(problem.name, dtype, transposed)
    return {'finput': poisoned(wants.finput, dtype), 'fgrad_input': poisoned(wants.fgrad_input, dtype)}


def check_forward(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name).forward
    assert_equal(calls.forward(problem, data.x, data.w), wanted, dtype)
    biased = wanted + per_channel(data.b, problem.rank)
    out, finput = poisoned(wanted.shape, dtype), scratch(problem, dtype)['finput']
    for _ in range(2):
        assert calls.forward(problem, data.x, data.w, data.b, out=out, finput=finput) is out
        assert_equal(out, biased, dtype)
        out.fill(np.nan)
    assert_equal(calls.forward(problem, data.x[-1], data.w, data.b), biased[-1], dtype)


def check_grad_input(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name).grad_input
    assert_equal(calls.grad_input(problem, data.w, data.y), wanted, dtype)
    out, fgrad_input = poisoned(wanted.shape, dtype), scratch(problem, dtype)['fgrad_input']
    for _ in range(2):
        assert calls.grad_input(problem, data.w, data.y, out=out, fgrad_input=fgrad_input) is out
        assert_equal(out, wanted, dtype)
        out.fill(np.nan)
    assert_equal(calls.grad_input(problem, data.w, data.y[-1]), wanted[-1], dtype)


def check_grad_weight(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name).grad_weight
    assert_equal(calls.grad_weight(problem, data.x, data.y), wanted, dtype)
    out, finput = poisoned(wanted.shape, dtype), scratch(problem, dtype)['finput']
    for _ in range(2):
        assert calls.grad_weight(problem, data.x, data.y, out=out, finput=finput) is out
        assert_equal(out, wanted, dtype)
        out.fill(np.nan)
    alone = reference.grad_weight(data.x[-1:], data.y[-1:], problem.kernel, **problem.form)
    assert_equal(calls.grad_weight(problem, data.x[-1], data.y[-1]), alone, dtype)


def check_per_sample(problem, dtype):
    data = problem.integers(dtype)
    wanted = reference.grad_weight(data.x, data.y, problem.kernel, **problem.form, per_sample=True)
    answer = calls.grad_weight(problem, data.x, data.y, per_sample=True)
    assert_equal(answer, wanted, dtype)
    assert_equal(answer.sum(0), expected(problem.name).grad_weight, dtype)
    keywords = {**problem.keywords, 'dtype': dtype, 'per_sample': True}
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **keywords)
    for size in (wants.finput, wants.finput_minimum):
        out, finput = poisoned(wanted.shape, dtype), poisoned(size, dtype)
        assert calls.grad_weight(problem, data.x, data.y, per_sample=True, out=out, finput=finput) is out
        assert_equal(out, wanted, dtype)
    calls.grad_weight(problem, data.x, data.y, per_sample=True, out=out, accumulate=True)
    assert_equal(out, 2 * wanted, dtype)
    assert_equal(calls.grad_weight(problem, data.x[-1], data.y[-1], per_sample=True), wanted[-1], dtype)
    assert_equal(calls.grad_weight(problem, data.x[-1:], data.y[-1:], per_sample=True), wanted[-1:], dtype)


def check_transposed(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name).grad_input
    assert_equal(calls.transposed(problem, data.y, data.w), wanted, dtype)
    biased = wanted + per_channel(data.c, problem.rank)
    out, fgrad_input = poisoned(wanted.shape, dtype), scratch(problem, dtype, transposed=True)['fgrad_input']
    for _ in range(2):
        assert calls.transposed(problem, data.y, data.w, data.c, out=out, fgrad_input=fgrad_input) is out
        assert_equal(out, biased, dtype)
        out.fill(np.nan)
    assert_equal(calls.transposed(problem, data.y[-1], data.w, data.c), biased[-1], dtype)


@every_problem
def test_forward(problem, dtype):
    check_forward(problem, dtype)


@every_gathered
def test_grad_input(problem, dtype):
    check_grad_input(problem, dtype)


@every_problem
def test_grad_weight(problem, dtype):
    check_grad_weight(problem, dtype)


@every_problem
def test_grad_weight_of_each_sample(problem, dtype):
    check_per_sample(problem, dtype)


@every_gathered
def test_transposed(problem, dtype):
    check_transposed(problem, dtype)


@every_problem
def test_conv_bias(problem, dtype):
    y = problem.integers(dtype).y
    assert_equal(pyconv.conv_bias(y), reference.channel_sum(y), dtype)
    assert_equal(pyconv.conv_bias(y[-1], batched=False), reference.channel_sum(y[-1:]), dtype)
    out = poisoned(y.shape[1], dtype)
    assert pyconv.conv_bias(y, out=out) is out
    assert_equal(out, reference.channel_sum(y), dtype)


@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_empty_batch(problem, dtype):
    data = problem.integers(dtype)
    x, y = data.x[:0], data.y[:0]
    assert_equal(calls.forward(problem, x, data.w, data.b), y, dtype)
    assert_equal(calls.grad_input(problem, data.w, y), x, dtype)
    assert_equal(calls.transposed(problem, y, data.w, data.c), x, dtype)
    out = poisoned(problem.weight_shape, dtype)
    calls.grad_weight(problem, x, y, out=out)
    assert_equal(out, np.zeros(problem.weight_shape), dtype)
    none = np.zeros((0, *problem.weight_shape))
    assert_equal(calls.grad_weight(problem, x, y, per_sample=True), none, dtype)
    assert_equal(pyconv.conv_bias(y), np.zeros(problem.channels[1]), dtype)


def test_no_input_channels_leave_the_bias(dtype):
    x, w, bias = np.ones((2, 0, 5, 6), dtype), np.ones((3, 0, 3, 3), dtype), np.arange(3, dtype=dtype)
    answer = pyconv.conv2d(x, w, bias)
    assert_equal(answer, np.broadcast_to(per_channel(bias, 2), (2, 3, 3, 4)), dtype)
    assert_equal(pyconv.conv2d_input(x.shape, w, answer), x, dtype)
    assert_equal(pyconv.conv2d_weight(x, w.shape, answer), w, dtype)


def test_no_cells_but_a_constant(dtype):
    """Of an input without cells everything that is seen is the constant."""
    x, w, y = np.ones((2, 3, 0, 4), dtype), np.ones((5, 3, 2, 3), dtype), np.ones((2, 5, 5, 4), dtype)
    settings = {'padding': (3, 1), 'padding_mode': 'constant', 'padding_value': 2}
    assert_equal(pyconv.conv2d(x, w, **settings), np.full(y.shape, 36), dtype)
    assert_equal(pyconv.conv2d_weight(x, w.shape, y, **settings), np.full(w.shape, 80), dtype)
    assert_equal(pyconv.conv2d_weight(x, w.shape, y, **settings, per_sample=True), np.full((2, *w.shape), 40), dtype)
    assert_equal(pyconv.conv2d_input(x.shape, w, y, **settings), x, dtype)
    assert_equal(pyconv.unfold(x, (2, 3), **settings), np.full((2, 18, 20), 2), dtype)
    assert_equal(pyconv.conv2d(x[:0], w, **settings), y[:0], dtype)
    answer = pyconv.conv_jvp(x, w, x, w, **settings)
    assert_equal(answer, np.full(y.shape, 36), dtype)


def test_equal_constants_are_one(dtype):
    """One zero and one NaN: a constant is a key of caches."""
    x = np.ones((1, 1, 3), dtype)
    for zero in (-0.0, 0.0, np.float32(-0.0), 0):
        assert not np.signbit(pyconv.unfold(x, (2,), padding=1, padding_mode='constant', padding_value=zero)).any()
    before = None
    for value in (np.nan, float('nan'), -np.float64('nan')):
        pyconv.conv1d(x, x[..., :2], padding=1, padding_mode='constant', padding_value=value)
        before = before or _geometries._convolved.cache_info().misses
        assert _geometries._convolved.cache_info().misses == before


def test_a_constant_of_zero_takes_part(dtype):
    """Other than nothing, it is multiplied."""
    x, w = np.ones((1, 1, 3), dtype), np.array([[[1, np.nan]]], dtype)
    assert np.isnan(pyconv.conv1d(x, w, padding=((0, 1),), padding_mode='constant')).all()
    assert np.isnan(pyconv.conv1d(x, w, padding=((0, 1),))).tolist() == [[[True, True, False]]]


def test_no_output_channels(dtype):
    x, w = np.ones((2, 3, 5, 6), dtype), np.ones((0, 3, 3, 3), dtype)
    answer = pyconv.conv2d(x, w)
    assert_equal(answer, np.ones((2, 0, 3, 4)), dtype)
    assert_equal(pyconv.conv2d_input(x.shape, w, answer), np.zeros(x.shape), dtype)


@pytest.mark.parametrize('rank', [1, 2, 3])
def test_lists_and_numpy_integers_as_arguments(rank, dtype):
    problem = next(p for p in PROBLEMS if p.name == f'{rank}d stride 2')
    data, wanted = problem.integers(dtype), expected(problem.name)
    for form in (lambda value: [value] * rank, np.int32, lambda value: np.array([value] * rank)):
        keywords = {name: form(problem.keywords[name]) for name in ('stride', 'padding', 'dilation')}
        keywords['groups'] = np.int64(problem.groups)
        assert_equal(calls.CONV[rank](data.x, data.w, None, **keywords), wanted.forward, dtype)
        for shape in (list, np.array):
            answer = calls.INPUT[rank](shape(problem.input_shape), data.w, data.y, **keywords)
            assert_equal(answer, wanted.grad_input, dtype)
            answer = calls.WEIGHT[rank](data.x, shape(problem.weight_shape), data.y, **keywords)
            assert_equal(answer, wanted.grad_weight, dtype)


def test_positional_order(dtype):
    """torch's orders, which differ between convolution and its transposed."""
    problem = next(p for p in PROBLEMS if p.name == '2d transposed groups dilated')
    data, wanted = problem.integers(dtype), expected(problem.name)
    rest = (problem.stride, problem.padding, problem.dilation, problem.groups)
    assert_equal(pyconv.conv2d(data.x, data.w, data.b, *rest), wanted.forward + per_channel(data.b, 2), dtype)
    assert_equal(pyconv.conv2d_input(data.x.shape, data.w, data.y, *rest), wanted.grad_input, dtype)
    assert_equal(pyconv.conv2d_weight(data.x, data.w.shape, data.y, *rest), wanted.grad_weight, dtype)
    left = problem.transposed_padding[1]
    answer = pyconv.conv_transpose2d(data.y, data.w, data.c, problem.stride, problem.padding, left, problem.groups,
                                     problem.dilation)
    assert_equal(answer, wanted.grad_input + per_channel(data.c, 2), dtype)


@pytest.mark.parametrize('problem', [p for p in EVERY if p.output_padding is None], ids=str)
def test_output_size_of_the_transposed_convolution(problem):
    """With numbers for padding it grows the far end; with a name it chooses the pads."""
    data = problem.integers(np.float32)
    padding = problem.padding if problem.padding in ('same', 'same_lower') else problem.transposed_padding[0]
    answer = calls.TRANSPOSE[problem.rank](data.y, data.w, stride=problem.stride, padding=padding,
                                           groups=problem.groups, dilation=problem.dilation, output_size=problem.size,
                                           **problem.mode)
    assert_equal(answer, expected(problem.name).grad_input, np.float32)


@pytest.mark.parametrize('padding', ['same', 'same_lower'])
@pytest.mark.parametrize('stride, kernel', [(1, 3), (1, 4), (2, 3), (3, 4), (3, 3)])
def test_same_transposed_multiplies_the_size_by_the_stride(padding, stride, kernel, dtype):
    rng = np.random.default_rng(0)
    y, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in ((2, 3, 5), (3, 2, kernel)))
    pads = reference.named_or_numeric_padding(padding, (5 * stride,), (kernel,), (stride,), (1,))
    wanted = reference.grad_input(w, y, (5 * stride,), (stride,), (pads[0][0],), (1,), 1)
    assert_equal(pyconv.conv_transpose1d(y, w, stride=stride, padding=padding), wanted, dtype)
