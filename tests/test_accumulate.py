"""accumulate=True adds every result to what its `out` holds; integers again, so that == says whether it did."""
import ml_dtypes
import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import assert_equal, peak_of, per_channel
from problems import BY_NAME, EVERY, VARIED, VARIED_MODES, expected, maps, some
from test_identities import backward_of, double_backward, generic, linear, unrolled

every_problem = pytest.mark.parametrize('problem', EVERY, ids=str)
varied = pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
MODES = ['zeros', 'constant', 'circular', 'replicate', 'reflect']
LAYOUTS = {
    'C': lambda a: a,
    'Fortran': np.asfortranarray,
    'channels last': lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    'every other': lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    'byte order': lambda a: a.astype(a.dtype.newbyteorder()),
}


def held(shape, dtype, seed=0):
    """What an `out` holds before a call."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def check(call, wanted, dtype, layout=LAYOUTS['C']):
    """The call adds `wanted` to its out, twice."""
    before = held(wanted.shape, dtype)
    out = layout(before.copy())
    for times in (1, 2):
        assert call(out=out, accumulate=True) is out
        assert_equal(np.array(out, dtype), before + times * wanted, dtype)


@every_problem
def test_the_maps_and_the_transposed_convolution(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    b, c = (per_channel(bias, problem.rank) for bias in (data.b, data.c))
    check(lambda **more: calls.forward(problem, data.x, data.w, **more), wanted.forward, dtype)
    check(lambda **more: calls.forward(problem, data.x, data.w, data.b, **more), wanted.forward + b, dtype)
    check(lambda **more: calls.grad_input(problem, data.w, data.y, **more), wanted.grad_input, dtype)
    check(lambda **more: calls.grad_weight(problem, data.x, data.y, **more), wanted.grad_weight, dtype)
    check(lambda **more: calls.transposed(problem, data.y, data.w, data.c, **more), wanted.grad_input + c, dtype)
    check(lambda **more: calls.forward(problem, data.x[0], data.w, data.b, **more), (wanted.forward + b)[0], dtype)


@pytest.mark.parametrize('layout', LAYOUTS)
@varied
def test_any_layout_of_out(problem, layout, dtype):
    data, wanted, into = problem.integers(dtype), expected(problem.name), LAYOUTS[layout]
    biased = wanted.forward + per_channel(data.b, problem.rank)
    check(lambda **more: calls.forward(problem, data.x, data.w, data.b, **more), biased, dtype, into)
    check(lambda **more: calls.grad_input(problem, data.w, data.y, **more), wanted.grad_input, dtype, into)
    check(lambda **more: calls.grad_weight(problem, data.x, data.y, **more), wanted.grad_weight, dtype, into)


@varied
def test_bias_columns_and_jvp(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    check(lambda **more: pyconv.conv_bias(data.y, **more), reference.channel_sum(data.y), dtype)
    turned = np.asfortranarray(data.y)
    check(lambda **more: pyconv.conv_bias(turned, **more), reference.channel_sum(data.y), dtype)
    tangents = data.x, data.w, data.b, problem.stride, problem.padding, problem.dilation, problem.groups
    tangent = wanted.forward + maps(linear(problem), *data[:3]).forward + per_channel(data.b, problem.rank)
    check(lambda **more: pyconv.conv_jvp(data.x, data.w, *tangents, **problem.mode, **more), tangent, dtype)
    public, form = unrolled(problem)
    columns = reference.unfold(data.x, problem.kernel, problem.positions, **form)
    folded = reference.fold(columns, problem.size, problem.kernel, problem.positions, **form)
    check(lambda **more: pyconv.fold(columns, problem.size, **public, **more), folded, dtype)
    if problem.groups == 1:
        check(lambda **more: calls.WEIGHT[problem.rank](
            None, problem.weight_shape, data.y, **problem.keywords, finput=columns, **more), wanted.grad_weight, dtype)


MASKS = [(True, True, True), (True, False, True), (False, True, False)]


def check_tuple(call, wanted, mask, dtype):
    """The call adds each of `wanted` to its out, where there is one."""
    before = [held(exact.shape, dtype, place) for place, exact in enumerate(wanted)]
    out = tuple(array.copy() if asked else None for array, asked in zip(before, mask))
    for times in (1, 2):
        for answer, place, start, exact in zip(call(out=out, accumulate=True), out, before, wanted):
            assert answer is place
            if place is not None:
                assert_equal(answer, start + times * exact, dtype)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@varied
def test_backward(problem, transposed, dtype):
    data = problem.integers(dtype)
    grad_output, input_, wanted = backward_of(problem, transposed, data)
    for mask in MASKS:
        check_tuple(lambda **more: pyconv.convolution_backward(
            grad_output, input_, data.w, *generic(problem, transposed), mask, **problem.mode, **more),
            wanted, mask, dtype)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('problem', some(
    '1d stride 2', '2d groups everything', '2d channels 33 33', 'reflect 2d groups everything',
    'circular 1d cropped behind'), ids=str)
def test_double_backward(problem, transposed, dtype):
    """Where nothing comes in, nothing is added."""
    data, other = problem.integers(dtype), problem._replace(name='again').integers(dtype)
    second = (other.y, other.w, other.c) if transposed else (other.x, other.w, other.b)
    of = double_backward(problem, transposed, data, second)
    for given in [(False, False, False), *MASKS]:
        arguments, wanted = of(given)
        for mask in MASKS:
            check_tuple(lambda **more: pyconv.convolution_double_backward(
                *arguments, mask, **problem.mode, **more), wanted, mask, dtype)


def test_nothing_adds_nothing_but_the_bias(dtype):
    problem = BY_NAME['2d groups everything']
    data = problem.integers(dtype)
    x, y = data.x[:0], data.y[:0]
    zeros = np.zeros(problem.weight_shape)
    check(lambda **more: calls.grad_weight(problem, x, y, **more), zeros, dtype)
    check(lambda **more: pyconv.conv_bias(y, **more), zeros[:, 0, 0, 0], dtype)
    check(lambda **more: calls.forward(problem, x, data.w, data.b, **more), y, dtype)
    no_x, no_w, bias = np.ones((2, 0, 5, 6), dtype), np.ones((3, 0, 3, 3), dtype), np.arange(3, dtype=dtype)
    wanted = np.broadcast_to(per_channel(bias, 2), (2, 3, 3, 4))
    check(lambda **more: pyconv.conv2d(no_x, no_w, bias, **more), wanted, dtype)
    check(lambda **more: pyconv.conv2d(no_x, no_w, **more), 0 * wanted, dtype)


@pytest.mark.parametrize('name', ['2d channels 33 33', '2d depthwise', '2d stride 2', '2d many channels kernel 1'])
def test_a_nan_that_out_holds_stays_where_it_is(name, dtype):
    problem = BY_NAME[name]
    data, wanted = problem.integers(dtype), expected(name)
    for call, exact in ((lambda **more: calls.forward(problem, data.x, data.w, **more), wanted.forward),
                        (lambda **more: calls.grad_weight(problem, data.x, data.y, **more), wanted.grad_weight)):
        before = held(exact.shape, dtype)
        before.flat[::7] = np.nan
        before.flat[3] = np.inf
        assert_equal(call(out=before.copy(), accumulate=True), before + exact, dtype)


def check_no_hidden_array(call):
    """Nothing of array size is allocated."""
    assert peak_of(call) < 50_000


def test_no_hidden_array():
    """With scratch and a C-contiguous out."""
    x, w = np.ones((4, 16, 64, 64), np.float32), np.ones((16, 16, 3, 3), np.float32)
    sizes = pyconv.workspace(x.shape, w.shape, padding=1)
    finput, fgrad_input = np.empty(sizes.finput, np.float32), np.empty(sizes.fgrad_input, np.float32)
    out, weight = np.zeros_like(x), np.zeros_like(w)
    more = dict(padding=1, accumulate=True)
    check_no_hidden_array(lambda: pyconv.conv2d(x, w, **more, out=out, finput=finput))
    check_no_hidden_array(lambda: pyconv.conv2d_input(x.shape, w, x, **more, out=out, fgrad_input=fgrad_input))
    check_no_hidden_array(lambda: pyconv.conv2d_weight(x, w.shape, x, **more, out=weight, finput=finput))


@pytest.mark.parametrize('channels_last', [False, True])
@pytest.mark.parametrize(('size', 'padding', 'mode'), [
    ((9000,), ((-200, 300),), 'circular'), ((96, 90), ((3, -4), (-2, 5)), 'reflect'),
    ((9, 30, 31), ((-2, 3), (1, 1), (2, -3)), 'circular'),
    ((4, 5, 20, 21), ((-1, 2), (0, 0), (3, -1), (1, 1)), 'reflect')], ids=str)
def test_no_hidden_array_where_an_axis_is_cropped_and_filled(size, padding, mode, channels_last):
    """Neither for the part of x that remains nor for its gradient."""
    rank = len(size)
    x, w = np.ones((4, 16, *size), np.float32), np.ones((16, 16, *(3,) * rank), np.float32)
    y = pyconv.convolution(x, w, None, 1, padding, 1, False, 0, 1, padding_mode=mode)
    buffer = np.empty(max(pyconv.workspace(x.shape, w.shape, padding=padding, padding_mode=mode)[:2]), np.float32)
    if channels_last:
        x, y = LAYOUTS['channels last'](x), LAYOUTS['channels last'](y)
    more = dict(padding_mode=mode, accumulate=True, finput=buffer, fgrad_input=buffer)
    out, outs = np.zeros_like(y), (np.zeros_like(x), np.zeros_like(w), None)
    check_no_hidden_array(lambda: pyconv.convolution(x, w, None, 1, padding, 1, False, 0, 1, **more, out=out))
    check_no_hidden_array(lambda: pyconv.convolution_backward(
        y, x, w, 1, padding, 1, False, 0, 1, (True, True, False), **more, out=outs))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('size', [(500, 500), (250_000,)], ids=str)
@pytest.mark.parametrize('name', ['float32', 'complex64', 'float16', 'bfloat16', 'int8', 'int64'])
def test_no_hidden_array_where_columns_are_summed(name, size, mode):
    """Not even of one plane, nor of a row."""
    dtype, rank = np.dtype(ml_dtypes.bfloat16 if name == 'bfloat16' else name), len(size)
    columns = np.ones((1, 3 ** rank, 250_000), dtype)
    out = np.zeros((1, 1, *size), np.int64 if dtype.kind == 'i' else dtype)
    more = dict(dtype=np.int64) if dtype.kind == 'i' else {}
    for accumulate in (False, True):
        check_no_hidden_array(lambda: pyconv.fold(
            columns, size, (3,) * rank, padding=1, padding_mode=mode, out=out, accumulate=accumulate, **more))


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize(('size', 'kernel', 'padding', 'stride', 'dilation'), [
    ((2500,), (3,), 7, 2, 3), ((2, 1100), (2, 3), ((3, -1), (5, 4)), 1, 2), ((3, 2, 2, 1030), (2, 1, 2, 3), 1, 1, 1),
    ((1025,), (2,), ((-3, 9),), 3, 5)], ids=str)
def test_columns_of_long_rows(mode, size, kernel, padding, stride, dilation):
    """Cells are summed a thousand at a time; a cell gets what unfold reads from it, however often that is."""
    rng, shape = np.random.default_rng(2), (2, 2, *size)
    settings = dict(kernel_size=kernel, padding=padding, stride=stride, dilation=dilation, padding_mode=mode)
    places = pyconv.unfold(np.arange(1, 1 + np.prod(shape)).reshape(shape), **settings)
    for name in ('float32', 'float64', 'complex128', 'float16', 'int16', 'uint64'):
        columns = rng.integers(0, 9, places.shape).astype(name)
        wanted = np.bincount(places.ravel(), columns.ravel().real, 1 + np.prod(shape))[1:].reshape(shape)
        if columns.dtype.kind == 'c':
            columns = columns * (1 + 2j)
            wanted = wanted * (1 + 2j)
        found = pyconv.fold(columns, size, **settings)
        assert np.array_equal(found, wanted)
        before = held(shape, found.dtype)
        out = before.copy()
        pyconv.fold(columns, size, **settings, out=out, accumulate=True)
        assert np.array_equal(out, before + wanted.astype(found.dtype))


@pytest.mark.parametrize('lies', ['C', 'Fortran'])
@pytest.mark.parametrize('name', ['float32', 'float64', 'complex64', 'float16', 'int8'])
def test_no_hidden_array_where_channels_are_summed(name, lies):
    y = LAYOUTS[lies](np.arange(2 * 20_001 * 3).reshape(2, 20_001, 3).astype(np.int8).astype(name))
    wanted = y.astype(np.int64 if y.dtype.kind == 'i' else np.complex128).sum((0, 2))
    result = np.int32 if y.dtype.kind == 'i' else y.dtype
    for accumulate in (False, True):
        out = np.ones(20_001, result)
        check_no_hidden_array(lambda: pyconv.conv_bias(y, out=out, accumulate=accumulate))
        assert np.array_equal(out, 1 + 2 * wanted if accumulate else wanted)


@pytest.mark.parametrize('name', ['float32', 'int8'])
def test_no_hidden_array_where_each_sample_s_channels_are_summed(name):
    y = np.arange(40 * 2001 * 3).reshape(40, 2001, 3).astype(np.int8).astype(name)
    w = np.ones((2001, 1, 1), name)
    out = None, None, np.ones((40, 2001), np.int32 if y.dtype.kind == 'i' else name)
    for batch in (1, 40):
        own = None, None, out[2][:batch]
        check_no_hidden_array(lambda: pyconv.convolution_backward(
            y[:batch], y[:batch, :1], w, 1, 0, 1, False, 0, 1, (False, False, True), per_sample=True, out=own,
            accumulate=True))
    wanted = y.astype(np.int32).sum(2) * 2
    wanted[0] *= 2
    assert np.array_equal(out[2], 1 + wanted)


@pytest.mark.parametrize('batch', [1, 3])
def test_gaps_between_samples_cost_no_array(batch):
    """As in some channels of a larger array."""
    x, w = held((batch, 8, 100, 110), np.float32), held((9, 8, 3, 3), np.float32)
    whole = held((2 * batch, 20, 100, 110), np.float32)
    before, out = whole.copy(), whole[::2, 4:13]
    scratch = np.empty(max(pyconv.workspace(x.shape, w.shape, padding=1)[:2]), np.float32)
    check_no_hidden_array(lambda: pyconv.conv2d(x, w, padding=1, out=out, accumulate=True, finput=scratch))
    y, added = pyconv.conv2d(x, w, padding=1), whole - before
    assert np.array_equal(added[::2, 4:13], 2 * y)
    added[::2, 4:13] = 0
    assert not added.any()
    out, before = whole[::2, :8], whole.copy()
    check_no_hidden_array(lambda: pyconv.conv2d_input(
        x.shape, w, y, padding=1, out=out, accumulate=True, fgrad_input=scratch))
    assert np.array_equal(out - before[::2, :8], 2 * pyconv.conv2d_input(x.shape, w, y, padding=1))


def test_gaps_between_samples_cost_no_array_in_any_other_function():
    def in_a_larger_array(shape):
        return held((shape[0], 2 * shape[1], *shape[2:]), np.float32)[:, 1:shape[1] + 1]

    x, w, y = (held(shape, np.float32) for shape in ((3, 16, 64, 64), (16, 16, 16, 16), (3, 16, 49, 49)))
    columns = pyconv.unfold(x, 3, padding=1)
    grad_w = (3, *w.shape)
    scratch = np.empty(pyconv.workspace(x.shape, w.shape, per_sample=True).finput, np.float32)
    nothing, bias = (x[:, :0], w[:, :0, :3, :3]), np.ones(16, np.float32)
    for call, shape, adds in [
            (lambda **to: pyconv.fold(columns, (64, 64), 3, padding=1, **to), x.shape, True),
            (lambda **to: pyconv.unfold(x, 3, padding=1, **to), columns.shape, False),
            (lambda **to: pyconv.conv2d_weight(x, w.shape, y, per_sample=True, finput=scratch, **to), grad_w, True),
            (lambda **to: pyconv.conv2d(*nothing, bias, padding=1, **to), x.shape, True)]:
        out = in_a_larger_array(shape)
        before, wanted = out.copy(), call()
        assert call(out=out) is out and np.array_equal(out, wanted)
        check_no_hidden_array(lambda: call(out=out))
        if adds:
            out[...] = before
            assert np.array_equal(call(out=out, accumulate=True), before + call())
            check_no_hidden_array(lambda: call(out=out, accumulate=True))


def test_gaps_within_samples_cost_one_of_them():
    x, w = held((5, 8, 400, 400), np.float32), held((8, 8, 1, 1), np.float32)
    whole = held((5, 8, 402, 402), np.float32)
    before, out = whole.copy(), whole[..., 1:-1, 1:-1]
    scratch = np.empty(pyconv.workspace(x.shape, w.shape).finput, np.float32)
    assert peak_of(lambda: pyconv.conv2d(x, w, out=out, accumulate=True, finput=scratch)) < 1.05 * out[0].nbytes
    added = whole - before
    assert np.array_equal(added[..., 1:-1, 1:-1], 2 * pyconv.conv2d(x, w))
    assert added.any(axis=(0, 1)).sum() <= 400 * 400


@pytest.mark.parametrize('mode', ['circular', 'replicate', 'reflect'])
@pytest.mark.parametrize('name', ['float32', 'float16', 'complex64', 'int32'])
def test_where_padding_repeats_the_input_very_often(name, mode):
    """The columns of the gradient are summed some positions at a time."""
    low, high, size = 100_000, 85_001, 50
    rng = np.random.default_rng(3)
    y = rng.integers(-1, 2, (2, 4, (size + low + high - 3) // 2 + 1)).astype(name)
    w, bias = rng.integers(-1, 2, (4, 6, 3)).astype(name), np.arange(6).astype(name)
    result = np.int64 if name == 'int32' else name
    before = held((2, 6, size), result)
    out, settings = before.copy(), dict(stride=2, padding=((low, high),), padding_mode=mode)
    call = {'out': out, 'accumulate': True}
    peak = peak_of(lambda: pyconv.conv_transpose1d(
        y, w, bias.astype(result), **settings, output_size=(size,), **call))
    numpys = {'circular': 'wrap', 'replicate': 'edge', 'reflect': 'reflect'}[mode]
    cells = np.pad(np.arange(size), (low, high), numpys)
    wanted = np.zeros((2, 6, size), np.complex128)
    for tap in range(3):
        read = cells[tap:tap + 2 * y.shape[2] - 1:2]
        for n, c in np.ndindex(2, 6):
            np.add.at(wanted[n, c], read, np.einsum('oa,o->a', y[n].astype(complex), w[:, c, tap].astype(complex)))
    if name == 'float16':
        rounded = before
        for _ in range(2):
            rounded = (rounded + wanted.real + np.arange(6)[:, None]).astype(name)
        assert np.array_equal(out, rounded)
    else:
        assert np.array_equal(out, before + 2 * (wanted + np.arange(6)[:, None]))
    assert peak < 5 * 2**20


@pytest.mark.parametrize('per_sample', [False, True])
@pytest.mark.parametrize('name', ['float16', 'bfloat16'])
@pytest.mark.parametrize('mode', ['zeros', 'circular', 'reflect'])
def test_no_hidden_array_where_halves_are_summed_over_four_axes(mode, name, per_sample):
    """Of a weight whose terms are added up before they are rounded, which is once."""
    dtype = np.dtype(np.float16 if name == 'float16' else ml_dtypes.bfloat16)
    rng, shape, weight = np.random.default_rng(5), (3, 8, 4, 3, 11, 10), (64, 8, 3, 2, 3, 3)
    x, w = rng.integers(0, 5, shape).astype(dtype), np.zeros(weight, dtype)
    settings = (1, ((2, 1), (0, 1), (1, 1), (2, 0)), 1, False, 0, 1, (False, True, False))
    y = rng.integers(0, 5, (3, 64, 5, 3, 11, 10)).astype(dtype)
    exact = pyconv.convolution_backward(*(array.astype(float) for array in (y, x, w)), *settings, padding_mode=mode,
                                        per_sample=per_sample)[1]
    out = held(exact.shape, dtype)
    finput = np.empty(pyconv.workspace(shape, weight, 1, settings[1], dtype=dtype, padding_mode=mode,
                                       per_sample=per_sample).finput, np.float32)
    wanted = out
    for _ in range(2):
        wanted = (wanted + exact).astype(dtype)
    check_no_hidden_array(lambda: pyconv.convolution_backward(
        y, x, w, *settings, padding_mode=mode, per_sample=per_sample, out=(None, out, None), accumulate=True,
        finput=finput))
    assert np.array_equal(out, wanted) and np.isfinite(exact).all()


@pytest.mark.parametrize('channels_last', [False, True])
@pytest.mark.parametrize('groups', [1, 4, 32])
def test_halves_take_the_sums_of_some_channels_at_a_time(groups, channels_last):
    """Those of a tile's rows at the least, here of eight: with padding that repeats cells, strided."""
    x, w = held((1, 32, 200, 210), np.float16) / 4, held((32, 32 // groups, 3, 3), np.float16) / 4
    w, settings = w.astype(np.float16), dict(padding=2, stride=2, groups=groups, padding_mode='circular')
    x = x.astype(np.float16)
    y = pyconv.conv2d(x, w, **settings)
    before = held(x.shape, np.float16)
    out = before.copy()
    if channels_last:
        y, out = LAYOUTS['channels last'](y), LAYOUTS['channels last'](out)
    wide = pyconv.conv2d_input(x.shape, w.astype(np.float32), y.astype(np.float32), **settings)
    scratch = np.empty(pyconv.workspace(x.shape, w.shape, **settings, dtype=np.float16).fgrad_input, np.float32)

    def call():
        return pyconv.conv2d_input(x.shape, w, y, **settings, out=out, accumulate=True, fgrad_input=scratch)

    call()
    np.testing.assert_allclose(out.astype(float), before + wide, rtol=2.0**-11, atol=1e-3)
    bound = 8 * 200 * 210 * 4 if groups == 1 or not channels_last else 32 * 200 * 210 * 4
    assert peak_of(call) < 1.1 * bound


@pytest.mark.parametrize('mode', [{}, {'padding_mode': 'circular'}, {'padding_mode': 'reflect'}], ids=str)
@pytest.mark.parametrize('padding', [1, ((-2, 4), (5, -1))], ids=str)
def test_columns_are_summed_before_they_are_added(mode, padding):
    """Bit for bit, with one thread and with two; halves are rounded once."""
    rng = np.random.default_rng(1)
    settings = dict(kernel_size=(3, 3), padding=padding, **mode)
    for name in ('float32', 'float64', 'complex64', 'float16'):
        dtype = np.dtype(name)
        columns = pyconv.unfold(rng.standard_normal((2, 3, 20, 19)).astype(dtype), **settings)
        columns *= rng.standard_normal(columns.shape).astype(dtype)
        before = rng.standard_normal((2, 3, 20, 19)).astype(dtype)
        wide = np.float32 if dtype == np.float16 else dtype
        sums = pyconv.fold(columns.astype(wide), (20, 19), **settings)
        for threads in (1, 2):
            out = before.copy()
            with pyconv.num_threads(threads):
                pyconv.fold(columns, (20, 19), **settings, out=out, accumulate=True)
            assert np.array_equal(out, (before + sums).astype(dtype))


@pytest.mark.parametrize('name', ['float16', 'bfloat16'])
def test_sixteen_bits_are_rounded_once(name):
    """To 1 are added 2**p + 1 ones, p being the bits of a number: their sum alone would be rounded down."""
    dtype = np.dtype(name) if name == 'float16' else np.dtype(ml_dtypes.bfloat16)
    count = {'float16': 2**11, 'bfloat16': 2**8}[name] + 1
    y = np.ones((1, 1, count), dtype)
    bias, weight = np.ones(1, dtype), np.ones((1, 1, 1), dtype)
    pyconv.conv_bias(y, out=bias, accumulate=True)
    pyconv.conv1d_weight(y, (1, 1, 1), y, out=weight, accumulate=True)
    assert float(bias[0]) == float(weight[0, 0, 0]) == count + 1
    w, y = np.ones((count, 1, 1), dtype), np.ones((1, count, 3), dtype)
    for mode, padding, terms in (('zeros', 0, (1, 1, 1)), ('zeros', ((-1, 1),), (0, 1, 1)),
                                 ('circular', ((-1, 1),), (0, 2, 1)), ('replicate', ((-1, 1),), (0, 1, 2))):
        out = np.ones((1, 1, 3), dtype)
        pyconv.conv1d_input(out.shape, w, y, padding=padding, padding_mode=mode, out=out, accumulate=True)
        assert out.ravel().tolist() == (np.multiply(terms, count) + 1.).astype(dtype).tolist()
    # the bias is added to 2**p along with the sum, also where some cells meet no tap and get the bias alone
    one, even = np.ones((1, 1, 2), dtype), float(count - 1)
    for stride in (1, 2):
        out = np.full((1, 1, 2 * stride - stride // 2), even, dtype)
        pyconv.conv_transpose1d(one, weight * 0 + 1, bias * 0 + 1, stride=stride, out=out, accumulate=True)
        assert out.ravel()[::stride].astype(float).tolist() == [even + 2] * 2
