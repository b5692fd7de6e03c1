"""NaN and the infinities arrive exactly where the definition puts them; denormals are kept; padding multiplies nothing.

The reference skips what lies outside the input, so it says which outputs a NaN or an infinity reaches and which sum
stays a number; all others are small integers and are compared with ==.
"""
import zlib

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import assert_equal, per_channel
from problems import BY_NAME, EVERY, VARIED, VARIED_MODES, Problem, maps, some, whole

pytestmark = pytest.mark.filterwarnings('ignore:invalid value', 'ignore:overflow')
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
every_problem = pytest.mark.parametrize('problem', EVERY, ids=str)


def spoiled(array, values, seed, corners):
    """A copy with the values at random places, or at the first and last elements, where the pads are."""
    array, rng = array.copy(), np.random.default_rng(seed)
    places = rng.choice(array.size, min(len(values), array.size), replace=False)
    if corners:
        places = np.array([0, array.size - 1])[:len(places)]
    array.flat[places] = values[:len(places)]
    return array


def without_zeros(data):
    """Inf times any of these is an infinity, not NaN."""
    return type(data)(*(np.where(part == 0, 1, part).astype(part.dtype) for part in data))


@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize('per_sample', [False, True])
def test_a_constant_that_is_not_finite_around_what_is_added(value, per_sample, dtype):
    """Some taps meet it and some do not."""
    x, y = np.ones((2, 3, 5), dtype), np.ones((2, 2, 5), dtype)
    settings = {'padding': ((0, 2),), 'padding_mode': 'constant', 'padding_value': value, 'per_sample': per_sample}
    wanted = np.broadcast_to(np.array([5, value, value], dtype) * (1 if per_sample else 2), (2, 3, 3))
    out = np.zeros((2, *wanted.shape) if per_sample else wanted.shape, dtype)
    np.testing.assert_array_equal(pyconv.conv1d_weight(x, (2, 3, 3), y, **settings), np.broadcast_to(wanted, out.shape))
    pyconv.conv1d_weight(x, (2, 3, 3), y, out=out, accumulate=True, **settings)
    np.testing.assert_array_equal(out, np.broadcast_to(wanted, out.shape))


@pytest.mark.parametrize('accumulate', [False, True])
@pytest.mark.parametrize('per_sample', [False, True])
def test_an_infinite_constant_around_the_first_of_four_axes(per_sample, accumulate, dtype):
    x, w, padding = np.ones((2, 2, 3, 3, 4, 6), dtype), np.ones((3, 2, 2, 1, 2, 2), dtype), ((1, 0), *[(0, 0)] * 3)
    settings = {'padding_mode': 'constant', 'padding_value': np.inf}
    y = np.ones((2, 3, 3, 3, 3, 5), dtype)
    out = np.zeros((2, *w.shape) if per_sample else w.shape, dtype)
    found = pyconv.convolution_backward(
        y, x, w, 1, padding, 1, False, 0, 1, (False, True, False), out=(None, out, None), accumulate=accumulate,
        per_sample=per_sample, **settings)[1]
    wanted = np.array([np.inf, 3 * 3 * 3 * 5 * (1 if per_sample else 2)], dtype)
    np.testing.assert_array_equal(found, np.broadcast_to(wanted[:, None, None, None], found.shape))


def check(problem, parts, spoiled_names='xwy'):
    """The maps that read one of the spoiled operands, in both dtypes, against the reference's."""
    x, w, y = (parts[name] for name in 'xwy')
    form = problem.form
    wanted = {
        'xw': 'x' in spoiled_names or 'w' in spoiled_names,
        'wy': 'w' in spoiled_names or 'y' in spoiled_names,
        'xy': 'x' in spoiled_names or 'y' in spoiled_names,
    }
    forward = reference.forward(x, w, problem.positions, **form) if wanted['xw'] else None
    grad_input = reference.grad_input(w, y, problem.size, **form) if wanted['wy'] else None
    grad_weight = reference.grad_weight(x, y, problem.kernel, **form) if wanted['xy'] else None
    for dtype in DTYPES:
        a, b, c = (part.astype(dtype) for part in (x, w, y))
        if wanted['xw']:
            assert_equal(calls.forward(problem, a, b), forward, dtype)
        if wanted['wy']:
            assert_equal(calls.grad_input(problem, b, c), grad_input, dtype)
            assert_equal(calls.transposed(problem, c, b), grad_input, dtype)
        if wanted['xy']:
            assert_equal(calls.grad_weight(problem, a, c), grad_weight, dtype)


@pytest.mark.sparse
@every_problem
@pytest.mark.parametrize('values', [(np.nan,), (np.inf, np.inf), (-np.inf, np.inf, np.nan)],
                         ids=['nan', 'inf', 'mixed'])
def test_in_one_operand(problem, values):
    """In the input, then the weight, then the gradient: NaN and all of one sign among zeros, a mixture among others."""
    seed = zlib.crc32(problem.name.encode())
    data = problem.integers()
    if len(values) > 2:
        data = without_zeros(data)
    for part in 'xwy':
        parts = {name: getattr(data, name) for name in 'xwy'}
        parts[part] = spoiled(parts[part], values, seed, corners=len(values) == 2)
        check(problem, parts, part)


@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_in_every_operand_at_once(problem):
    data = problem.integers()
    for seed in range(3):
        check(problem, {name: spoiled(getattr(data, name), (np.nan, np.inf, -np.inf)[seed:], seed, corners=False)
                        for name in 'xwy'})


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_everywhere(problem, value):
    """A whole operand of them: what no pair (a, k) meets is still a plain zero."""
    data = without_zeros(problem.integers())
    for part in 'xwy':
        parts = {name: getattr(data, name) for name in 'xwy'}
        parts[part] = np.full_like(parts[part], value)
        check(problem, parts, part)


@pytest.mark.parametrize('problem', some('2d', '2d depthwise', '2d padding int', '2d groups of 4', '2d kernel 1'),
                         ids=str)
def test_every_place(problem):
    """One NaN in turn in elements all over the first sample and the weight."""
    data, alone = problem.integers(), problem._replace(batch=1)
    first = {'x': data.x[:1], 'w': data.w, 'y': data.y[:1]}
    for part, array in first.items():
        for place in range(0, array.size, 1 + array.size // 60):
            parts = {**first, part: array.copy()}
            parts[part].flat[place] = np.nan
            check(alone, parts, part)


@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_bias(problem, dtype):
    data = problem.integers(dtype)
    b, c = spoiled(data.b, (np.nan, np.inf), 0, False), spoiled(data.c, (-np.inf, np.nan), 0, False)
    wanted = maps(problem, data.x, data.w, data.y)
    assert_equal(calls.forward(problem, data.x, data.w, b), wanted.forward + per_channel(b, problem.rank), dtype)
    assert_equal(calls.transposed(problem, data.y, data.w, c), wanted.grad_input + per_channel(c, problem.rank), dtype)
    y = spoiled(data.y, (np.inf, np.nan), 1, False)
    assert_equal(pyconv.conv_bias(y), reference.channel_sum(y), dtype)


@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_unfold_and_fold(problem, dtype):
    x = spoiled(problem.integers(dtype).x, (np.nan, np.inf, -np.inf), 2, False)
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    public = problem.kernel, problem.dilation, problem.padding, problem.stride
    columns = reference.unfold(x, problem.kernel, problem.positions, **form)
    assert_equal(pyconv.unfold(x, *public, **problem.mode), columns, dtype)
    columns = spoiled(columns, (np.nan, np.inf, -np.inf), 3, False)
    wanted = reference.fold(columns, problem.size, problem.kernel, problem.positions, **form)
    assert_equal(pyconv.fold(columns, problem.size, *public, **problem.mode), wanted, dtype)


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('problem', some('1d', '2d padding int', '2d groups of 4', '2d channels 33 33', '3d'), ids=str)
def test_padding_in_columns(problem, value, dtype):
    """A grad_output at the edge meets padding, which in columns is a zero like any other."""
    data = without_zeros(problem.integers(dtype))
    y = data.y.copy()
    y.flat[0] = y.flat[-1] = value
    columns = pyconv.unfold(data.x, problem.kernel, problem.dilation, problem.padding, problem.stride)
    found = calls.grad_weight(problem, None, y, finput=columns)
    assert_equal(found, reference.grad_weight(data.x, y, problem.kernel, **problem.form), dtype)


@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_buffers_full_of_nan_stay_out(problem, dtype):
    """Poison in scratch never meets a non-finite recomputation either."""
    data = problem.integers(dtype)
    x, w, y = (spoiled(part, (np.inf,), 5, False) for part in (data.x, data.w, data.y))
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    wanted = maps(problem, x, w, y)
    for sizes in ((wants.finput, wants.fgrad_input), (wants.finput_minimum, wants.fgrad_input_minimum)):
        finput, fgrad_input = (np.full(max(size, 1), np.nan, dtype) for size in sizes)
        assert_equal(calls.forward(problem, x, w, finput=finput), wanted.forward, dtype)
        assert_equal(calls.grad_input(problem, w, y, fgrad_input=fgrad_input), wanted.grad_input, dtype)
        assert_equal(calls.grad_weight(problem, x, y, finput=finput), wanted.grad_weight, dtype)


# Geometries that a fast transform would take, and some that it would not.
PLAIN = [
    Problem('3 by 3', (14, 15), (3, 3), (16, 16), padding=1),
    Problem('3 by 3 valid', (14, 15), (3, 3), (33, 17)),
    Problem('3 taps', (50,), (3,), (16, 16), padding=1),
    Problem('volume', (6, 7, 8), (3, 3, 3), (8, 8), padding=1),
    Problem('5 by 5', (14, 15), (5, 5), (8, 8), padding=2),
    Problem('depthwise', (14, 15), (3, 3), (8, 8), groups=8, padding=1),
    Problem('grouped', (14, 15), (3, 3), (16, 16), groups=4, padding=1),
]
TINY = {np.dtype(np.float32): 71680 * 2.0**-149, np.dtype(np.float64): 2.0**-1060}
HUGE = {np.dtype(np.float32): np.float32(3e38), np.dtype(np.float64): 1.5e308}


def one_tap(problem, dtype, value=1):
    """A weight that copies input channel i to output channel i: only its middle tap is not zero."""
    w = np.zeros(problem.weight_shape, dtype)
    middle = tuple(k // 2 for k in problem.kernel)
    for o in range(problem.channels[1]):
        w[(o, o % w.shape[1], *middle)] = value
    return w


@pytest.mark.parametrize('problem', PLAIN, ids=str)
def test_huge_numbers_do_not_overflow_on_the_way(problem, dtype):
    """Sums of two neighbours are infinite, the answer is not: a fast transform has to notice."""
    rng = np.random.default_rng(0)
    huge = HUGE[dtype]
    for signs in ((1,), (-1, 1)):
        w, copies = one_tap(problem, dtype), one_tap(problem, np.float64)
        x = (huge * rng.choice(signs, problem.input_shape)).astype(dtype)
        y = (huge * rng.choice(signs, problem.output_shape)).astype(dtype)
        with np.errstate(over='ignore'):
            answers = maps(problem, x.astype(np.float64), copies, y.astype(np.float64))
        if problem.channels[1] == problem.channels[0]:  # each input channel is copied once
            assert_equal(calls.grad_input(problem, w, y), answers.grad_input, dtype)
        assert_equal(calls.forward(problem, x, w), answers.forward, dtype)
        one = np.zeros(problem.output_shape, dtype)
        one[(1, slice(None), *(n // 2 for n in problem.positions))] = 1
        picked = reference.grad_weight(x.astype(np.float64), one.astype(np.float64), problem.kernel, **problem.form)
        assert_equal(calls.grad_weight(problem, x, one), picked, dtype)


@pytest.mark.parametrize('problem', PLAIN, ids=str)
def test_true_overflow_is_infinite(problem, dtype):
    """All of one sign: whatever the order, a sum of two or more is +Inf and never NaN, one alone is a number."""
    huge = HUGE[dtype]
    x, y = np.full(problem.input_shape, huge, dtype), np.full(problem.output_shape, huge, dtype)
    w, ones = np.ones(problem.weight_shape, dtype), maps(
        problem, np.ones(problem.input_shape), np.ones(problem.weight_shape), np.ones(problem.output_shape))
    for answer, count in ((calls.forward(problem, x, w), ones.forward),
                          (calls.grad_input(problem, w, y), ones.grad_input),
                          (calls.grad_weight(problem, x, np.ones_like(y)), ones.grad_weight)):
        assert_equal(answer, np.where(count > 1, np.inf, np.where(count == 1, float(huge), 0)), dtype)


@pytest.mark.parametrize('threads', [1, 4])
@pytest.mark.parametrize('problem', PLAIN + some('2d kernel 1', '2d stride 2', '2d groups everything'), ids=str)
def test_denormals_are_kept(problem, dtype, threads):
    """As operands and as results, in every thread; and the processor's state is as before."""
    tiny = TINY[dtype]
    data = problem.integers(dtype)
    wanted = whole(problem)
    scaled = {name: (getattr(data, name) * tiny).astype(dtype) for name in 'xwy'}
    assert np.count_nonzero(scaled['x']) == np.count_nonzero(data.x)
    with pyconv.num_threads(threads):
        answers = ((calls.forward(problem, scaled['x'], data.w), wanted.forward),
                   (calls.forward(problem, data.x, scaled['w']), wanted.forward),
                   (calls.grad_input(problem, data.w, scaled['y']), wanted.grad_input),
                   (calls.grad_input(problem, scaled['w'], data.y), wanted.grad_input),
                   (calls.grad_weight(problem, scaled['x'], data.y), wanted.grad_weight),
                   (calls.grad_weight(problem, data.x, scaled['y']), wanted.grad_weight))
    for answer, exact in answers:
        assert_equal(answer, exact * tiny, dtype)
    assert dtype.type(tiny) * dtype.type(0.5) != 0


def test_denormal_products(dtype):
    problem = BY_NAME['2d channels 33 33']
    data = problem.integers(dtype)
    root = 2.0**-70 if dtype == np.float32 else 2.0**-530
    small = [(part * dtype.type(root)).astype(dtype) for part in (data.x, data.w, data.y)]
    wanted = whole(problem)
    for answer, exact in zip(calls.three_maps(problem, *small), wanted):
        assert_equal(answer, exact * root * root, dtype)


@pytest.mark.parametrize('problem', PLAIN, ids=str)
def test_negative_zero_bias_and_signs(problem, dtype):
    """Nothing but zeros gives a zero of either sign, and never NaN."""
    data = problem.integers(dtype)
    zero = np.zeros_like(data.w)
    for answer in (calls.forward(problem, -data.x, zero), calls.grad_input(problem, zero, -data.y)):
        assert (answer == 0).all()


@pytest.mark.parametrize('dtype', [np.float16, np.float32, np.complex128], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize('accumulate', [False, True])
def test_sums_that_overflow_are_infinite_without_a_word(dtype, accumulate):
    """Whatever NumPy's errstate says of its own functions, as a convolution's sums are."""
    most = np.full((2, 3, 6), np.finfo(dtype).max, dtype)
    weight = np.ones((3, 3, 3), dtype)
    settings = (1, 1, 1, False, 0, 1)
    with np.errstate(all='raise'):
        outs = [{'out': np.full(shape, most.flat[0]), 'accumulate': True} if accumulate else {}
                for shape in ((3,), (2, 1, 4), (2, 1, 4))]
        answers = [
            pyconv.conv_bias(most, **outs[0]),
            pyconv.fold(most, (4,), (3,), padding=2, **outs[1]),
            pyconv.fold(most[..., :5], (4,), (3,), padding=((-1, 4),), padding_mode='reflect', **outs[2]),
        ]
        of_samples = pyconv.convolution_backward(most, most, weight, *settings, (False, False, True), per_sample=True)
    for answer in (*answers, of_samples[2]):
        assert np.isinf(answer).any() and not np.isnan(answer.real).any()
