"""Every type of elements through every function, against the reference with ==.

Integers fill their type, and the reference's are Python's, modulo 2 to the number of the result's bits. Floats and
complex numbers are small integers, whose sums float32 holds; halves are rounded once, when they are stored.
"""
import zlib

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import assert_same_bits, per_channel
from problems import BY_NAME, Data, maps, some
from test_identities import double_backward, generic, linear, unrolled

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

INTEGERS = tuple(f'{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64))
DTYPES = ('float16', 'bfloat16', 'complex64', 'complex128', *INTEGERS)
PROBLEMS = some(
    '1d', '1d causal dilated', '2d one of everything', '2d 13 by 14', '2d stride 2', '2d stride above kernel',
    '2d same strided dilated', '2d crop strided dilated', '2d kernel 1 cropped', '2d fully connected',
    '2d groups everything', '2d depthwise', '2d depthwise strided', '2d depthwise multiplier 2', '2d channels 33 33',
    '2d 7 by 7 samples kernel 1', '3d groups everything', '3d depthwise', '1d long kernel strided',
    '2d transposed output padding above stride',
    'circular 2d groups everything', 'circular 1d cropped behind', 'reflect 1d far strided',
    'reflect 2d channels 33 33', 'replicate 2d depthwise strided', 'replicate 3d groups everything',
    'constant 2 2d', 'constant 2 2d depthwise', 'constant 2 3d groups everything')
FEW = some('1d', '2d stride 2', '2d groups everything', '2d depthwise', '3d groups everything', 'reflect 2d stride 2',
           'circular 2d depthwise', 'constant 2 2d groups everything', 'replicate 2d cropped and padded')


def dtype_of(name):
    if name == 'bfloat16':
        if ml_dtypes is None:
            pytest.skip('bfloat16 comes with ml_dtypes')
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@pytest.fixture(params=DTYPES)
def dtype(request):
    return dtype_of(request.param)


def result_of(dtype):
    """What the results are by default."""
    return np.dtype({'int8': 'i4', 'uint8': 'i4', 'uint64': 'u8'}.get(dtype.name, 'i8')) if is_integer(dtype) else dtype


def is_integer(dtype):
    return dtype.name in INTEGERS


def values(rng, shape, dtype, most=2):
    if is_integer(dtype):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    real = rng.integers(-most, most, shape, endpoint=True)
    if dtype.kind == 'c':
        real = real + 1j * rng.integers(-most, most, shape, endpoint=True)
    return real.astype(dtype)


def data_of(problem, dtype, seed=0, most=2, result=None):
    """Operands of the dtype and biases of the result's."""
    rng = np.random.default_rng([seed, zlib.crc32(problem.name.encode())])
    result = result_of(dtype) if result is None else result
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    return Data(*(values(rng, shape, dtype, most) for shape in shapes),
                *(values(rng, channels, result, most) for channels in (problem.channels[1], problem.channels[0])))


def exact(array):
    """The same numbers in a type that adds and multiplies them exactly."""
    if is_integer(array.dtype):
        return array.astype(np.int64 if array.itemsize <= 2 else object)
    return array.astype(np.complex128 if array.dtype.kind == 'c' else np.float64)


def exactly(data):
    return type(data)(*map(exact, data))


def stored(array, dtype):
    """Exact numbers as a result of that dtype holds them."""
    return reference.modulo(array, dtype) if is_integer(dtype) else array.astype(dtype)


def same(answer, wanted, dtype):
    """The stored numbers, in a plain array of the dtype."""
    assert type(answer) is np.ndarray and answer.dtype == dtype and answer.shape == wanted.shape
    wrong = answer != stored(wanted, dtype)
    assert not wrong.any(), f'{np.count_nonzero(wrong)} of {wrong.size} differ, first at {np.argwhere(wrong)[0]}'


def check_maps(problem, data, result, **more):
    whole = exactly(data)
    wanted, rank = maps(problem, *whole[:3]), problem.rank
    same(calls.forward(problem, data.x, data.w, **more), wanted.forward, result)
    biased = wanted.forward + per_channel(whole.b, rank)
    same(calls.forward(problem, data.x, data.w, data.b, **more), biased, result)
    same(calls.forward(problem, data.x[-1], data.w, data.b, **more), biased[-1], result)
    same(calls.grad_input(problem, data.w, data.y, **more), wanted.grad_input, result)
    same(calls.grad_weight(problem, data.x, data.y, **more), wanted.grad_weight, result)
    biased = wanted.grad_input + per_channel(whole.c, rank)
    same(calls.transposed(problem, data.y, data.w, data.c, **more), biased, result)
    alone = reference.grad_weight(whole.x, whole.y, problem.kernel, **problem.form, per_sample=True)
    same(calls.grad_weight(problem, data.x, data.y, per_sample=True, **more), alone, result)


@pytest.mark.every
@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
def test_maps(problem, dtype):
    check_maps(problem, data_of(problem, dtype), result_of(dtype))


CHOSEN = [(name, wanted) for name in INTEGERS for wanted in ('int32', 'int64', np.uint64)
          if name == 'uint64' or wanted is not np.uint64]
chosen_types = pytest.mark.parametrize(('dtype', 'wanted'), CHOSEN, ids=str, indirect=['dtype'])


@pytest.mark.parametrize('problem', FEW, ids=str)
@chosen_types
def test_sums_of_integers_of_a_chosen_type(problem, wanted, dtype):
    result = np.dtype(wanted)
    data = data_of(problem, dtype, result=result)
    check_maps(problem, data, result, dtype=wanted)
    same(pyconv.conv_bias(data.y, dtype=wanted), reference.channel_sum(exact(data.y)), result)
    public, form = unrolled(problem)
    columns = reference.unfold(data.x, problem.kernel, problem.positions, **form)
    folded = reference.fold(exact(columns), problem.size, problem.kernel, problem.positions, **form)
    same(pyconv.fold(columns, problem.size, **public, dtype=wanted), folded, result)


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_bias_and_columns(problem, dtype):
    data, result = data_of(problem, dtype), result_of(dtype)
    summed = reference.channel_sum(exact(data.y))
    for y in (data.y, np.asfortranarray(data.y)):
        same(pyconv.conv_bias(y), summed, result)
    same(pyconv.conv_bias(data.y[0], batched=False), reference.channel_sum(exact(data.y[:1])), result)
    public, form = unrolled(problem)
    columns = pyconv.unfold(data.x, **public)
    wanted = reference.unfold(data.x, problem.kernel, problem.positions, **form)
    same(columns, exact(wanted), dtype)
    folded = reference.fold(exact(wanted), problem.size, problem.kernel, problem.positions, **form)
    same(pyconv.fold(columns, problem.size, **public), folded, result)
    if isinstance(problem.padding, str):
        return
    weight = maps(problem, *exactly(data)[:3]).grad_weight
    same(calls.grad_weight(problem, None, data.y, finput=columns), weight, result)
    alone = reference.grad_weight(exact(data.x), exact(data.y), problem.kernel, **problem.form, per_sample=True)
    same(calls.grad_weight(problem, None, data.y, finput=columns, per_sample=True), alone, result)


def addable(dtype):
    """Numbers so small that sums of several results are exact in a half: they are rounded whenever they are stored."""
    return 1 if dtype.itemsize == 2 and not is_integer(dtype) else 2


def results(problem, transposed, data, other, given=np.asarray, **more):
    """(What a call gives, what it should in exact numbers) of the convolution, backward, double backward and jvp.

    data are the operands, other what comes in for their gradients or as tangents; `given` makes arrays of a call.
    """
    whole, mask, rest, more = exactly(data), (True, True, True), generic(problem, transposed), {**problem.mode, **more}
    around = maps(problem, *whole[:3])
    x, w, y, b, c = map(given, data)
    second = (other.y, other.w, other.c) if transposed else (other.x, other.w, other.b)
    _, twice = double_backward(problem, transposed, whole, [exact(part) for part in second])(mask)
    second = [given(part) for part in second]
    if transposed:
        input_, bias, grad_output, wanted = y, c, x, around.grad_input + per_channel(whole.c, problem.rank)
        first = maps(linear(problem), *whole[:3]) if problem.padding_value else around
        once = first.forward, first.grad_weight, reference.channel_sum(whole.x)
    else:
        input_, bias, grad_output, wanted = x, b, y, around.forward + per_channel(whole.b, problem.rank)
        once = around.grad_input, around.grad_weight, reference.channel_sum(whole.y)
    yield pyconv.convolution(input_, w, bias, *rest, **more), wanted
    yield from zip(pyconv.convolution_backward(grad_output, input_, w, *rest, mask, **more), once, strict=True)
    yield from zip(pyconv.convolution_double_backward(*second, grad_output, w, input_, *rest, mask, **more), twice,
                   strict=True)
    if not transposed:
        steps = problem.stride, problem.padding, problem.dilation, problem.groups
        yield pyconv.conv_jvp(x, w, *second, *steps, **more), twice[0]


either = pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])


@either
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_convolution_and_its_derivatives(problem, transposed, dtype):
    data, other = (data_of(problem, dtype, seed, addable(dtype)) for seed in (0, 1))
    for answer, exact_one in results(problem, transposed, data, other):
        same(answer, exact_one, result_of(dtype))


@either
@pytest.mark.parametrize('problem', FEW, ids=str)
@chosen_types
def test_every_map_of_integers_in_sums_of_a_chosen_type(problem, transposed, wanted, dtype):
    result = np.dtype(wanted)
    data, other = (data_of(problem, dtype, seed, result=result) for seed in (0, 1))
    for answer, exact_one in results(problem, transposed, data, other, dtype=wanted):
        same(answer, exact_one, result)


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_out_accumulate_and_scratch(problem, dtype):
    """Scratch of the least size and of full speed, full of rubbish; out in C order and not."""
    data, result = data_of(problem, dtype, most=addable(dtype)), result_of(dtype)
    whole = exactly(data)
    wanted = maps(problem, *whole[:3])
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    assert sizes.dtype == {'float16': 'f4', 'bfloat16': 'f4', 'complex64': 'f4', 'complex128': 'f8'}.get(
        dtype.name, result)
    for finput, fgrad_input in (sizes[:2], sizes[2:4]):
        finput, fgrad_input = (np.full(max(size, 1), 77, sizes.dtype) for size in (finput, fgrad_input))
        for call, exact_one in (
                (lambda **more: calls.forward(problem, data.x, data.w, data.b, finput=finput, **more),
                 wanted.forward + per_channel(whole.b, problem.rank)),
                (lambda **more: calls.grad_input(problem, data.w, data.y, fgrad_input=fgrad_input, **more),
                 wanted.grad_input),
                (lambda **more: calls.grad_weight(problem, data.x, data.y, finput=finput, **more), wanted.grad_weight),
                (lambda **more: pyconv.conv_bias(data.y, **more), reference.channel_sum(whole.y))):
            for layout in (np.ascontiguousarray, np.asfortranarray):
                out = layout(np.full(exact_one.shape, 99, result))
                assert call(out=out) is out
                same(np.ascontiguousarray(out), exact_one, result)
                out[...] = 3
                assert call(out=out, accumulate=True) is out
                same(np.ascontiguousarray(out), exact_one + 3, result)


@pytest.mark.parametrize('problem', some('2d stride 2', 'reflect 2d depthwise strided', 'circular 2d channels 33 33'),
                         ids=str)
def test_layouts(problem, dtype):
    data, result = data_of(problem, dtype), result_of(dtype)
    wanted = maps(problem, *exactly(data)[:3])

    def misaligned(array):
        memory = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        memory[...] = array
        return memory

    for layout in (np.asfortranarray, lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
                   lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1], misaligned,
                   lambda a: a.byteswap().view(a.dtype.newbyteorder())):
        x, w, y = map(layout, data[:3])
        for answer, exact_one in zip(calls.three_maps(problem, x, w, y), wanted):
            same(answer, exact_one, result)
            assert answer.dtype.isnative and calls.forward(problem, x, data.w).dtype == result


def test_results_have_nothing_of_another_calls_dtype(dtype):
    """Which metadata belong to, where NumPy keeps them."""
    x, w = np.ones((1, 3, 4, 4), dtype), np.ones((1, 3, 2, 2), dtype)
    for _ in range(2):
        assert pyconv.conv2d(x.view(np.dtype(dtype, metadata={'unit': 'K'})), w).dtype.metadata is None
        assert pyconv.conv2d(x, w).dtype.metadata is None


def test_empty_batch(dtype):
    problem, result = BY_NAME['reflect 2d groups everything'], result_of(dtype)
    data = data_of(problem, dtype)
    x, y = data.x[:0], data.y[:0]
    same(calls.forward(problem, x, data.w, data.b), exact(y), result)
    same(calls.grad_input(problem, data.w, y), exact(x), result)
    same(calls.grad_weight(problem, x, y), exact(np.zeros(problem.weight_shape, 'i1')), result)
    assert calls.grad_weight(problem, x, y, per_sample=True).shape == (0, *problem.weight_shape)
    same(pyconv.conv_bias(y), exact(np.zeros(problem.channels[1], 'i1')), result)


def test_lists_take_the_dtype(dtype):
    w = np.ones((1, 1, 2), dtype)
    answer = pyconv.conv1d([[1, 2, 3]], w, [1])
    assert answer.dtype == result_of(dtype) and answer.tolist() == [[4, 6]]
    assert pyconv.conv1d(np.ones((1, 3), dtype), [[[1, 2]]]).dtype == result_of(dtype)


def test_lists_alone():
    assert pyconv.conv1d([[1, 2, 3]], [[[1, 1]]]).dtype == np.int64
    assert pyconv.conv1d([[1, 2, 3]], [[[1, 1j]]]).tolist() == [[1 + 2j, 2 + 3j]]


@pytest.mark.parametrize('name', ['q', 'l', 'Q', 'L', 'i', 'p'])
def test_integers_of_the_same_width_are_one_type(name):
    x, w = np.arange(6).reshape(1, 6).astype(name), np.ones((1, 1, 2), name)
    out = np.zeros((1, 5), pyconv.conv1d(x, w).dtype.newbyteorder())
    assert pyconv.conv1d(x, w, out=out).tolist() == [[1, 3, 5, 7, 9]]


@pytest.mark.parametrize('name', ['float16', 'bfloat16', 'complex64', 'complex128'])
@pytest.mark.parametrize('problem', some('2d', '2d stride 2', '2d groups everything', '2d depthwise',
                                         '2d channels 33 33', 'reflect 2d', 'constant 2 2d'), ids=str)
@pytest.mark.filterwarnings('ignore:invalid value', 'ignore:overflow')
def test_what_is_not_finite_goes_where_the_definition_puts_it(problem, name):
    dtype = dtype_of(name)
    for value, place, part in ((value, place, part) for value in (np.nan, np.inf) for place in (0, -1)
                               for part in range(3)):
        data = data_of(problem, dtype)
        data[part].flat[place] = value
        wanted = maps(problem, *exactly(data)[:3])
        for answer, exact_one in zip(calls.three_maps(problem, *data[:3]), wanted):
            finite = np.isfinite(exact_one)
            assert (np.isfinite(answer) == finite).all()
            assert (answer[finite] == exact_one[finite].astype(dtype)).all()


def test_halves_are_rounded_once_where_a_cropped_input_is_repeated():
    data = [np.random.default_rng(n).standard_normal(shape).astype(np.float16)
            for n, shape in enumerate(((2, 4, 9), (4, 3, 5), (3,)))]
    for mode in ('circular', 'reflect'):
        found, wide = (pyconv.conv_transpose1d(*(part.astype(of) for part in data), padding=((-1, 3),),
                                               padding_mode=mode) for of in (np.float16, np.float64))
        assert_same_bits(found, wide.astype(np.float16))


@pytest.mark.parametrize('accumulate', [False, True])
@pytest.mark.parametrize('count', [2**16, 23, 7])
@pytest.mark.parametrize('factor', [1, 0.3, 6e-5, 3e-7, 900])
def test_every_half_is_read_and_rounded_to_even(factor, count, accumulate):
    """Of one product each: vectors of them, and what is left of a row."""
    weight, rng = np.full((1, 1, 1), factor, np.float16), np.random.default_rng(count)
    halves = rng.permutation(2**16)[:count].astype(np.uint16).view(np.float16).reshape(1, 1, -1)
    out = rng.permutation(halves.ravel()).reshape(halves.shape)
    with np.errstate(all='ignore'):
        wanted = (halves.astype('f4') * weight.astype('f4') + (out.astype('f4') if accumulate else 0)).astype('f2')
    np.testing.assert_array_equal(pyconv.conv1d(halves, weight, out=out, accumulate=accumulate), wanted)


def test_nothing_is_said_where_sums_of_halves_overflow():
    many, out = np.full((1, 1, 4), 60000, np.float16), np.full((1, 1, 4), 60000, np.float16)
    with np.errstate(all='raise'):
        assert pyconv.conv_bias(many).tolist() == [np.inf]
        pyconv.conv_transpose1d(many, many[..., :3] * 0 + 1, padding=((-1, 3),), padding_mode='circular', out=out,
                                accumulate=True)
    assert np.isinf(out).any()


def test_nothing_is_said_where_infinities_meet_in_far_padding():
    grad_output = np.zeros((1, 1, 400), np.float32)
    grad_output[0, 0, [0, -1]] = np.inf, -np.inf
    with np.errstate(all='raise'):
        found = pyconv.conv1d_input((1, 1, 2), np.ones((1, 1, 3), np.float32), grad_output, padding=((200, 200),),
                                    padding_mode='circular')
    assert np.isnan(found).all()
