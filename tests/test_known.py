"""Calls like one before, which are not asked for their geometry again: the same results, the same errors."""
import pickle
import sys
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits, per_channel
from problems import EVERY, expected
from pyconv import _known, _ops, _settings

X, W, B = np.arange(200.0).reshape(2, 4, 5, 5), np.arange(72.0).reshape(2, 4, 3, 3), np.arange(2.0)
Y = np.arange(100.0).reshape(2, 2, 5, 5)
V = np.arange(144.0).reshape(4, 4, 3, 3)  # with as many channels either way
conv, backwards, to_weight = calls.planar(X, W, B, Y)
FINPUT = np.zeros(5000)


@pytest.fixture(autouse=True)
def nothing_known():
    _known.forget()
    yield
    _known.forget()


def no_geometry(*given):
    raise AssertionError('asked for the geometry again')


@pytest.mark.parametrize('laid', [lambda array, rank: array, calls.last], ids=['channels first', 'channels last'])
@pytest.mark.parametrize('problem', EVERY, ids=str)
def test_other_numbers_in_arrays_of_the_same_shapes(problem, laid, dtype, monkeypatch):
    """The second call of each function, on other numbers; without a geometry where nothing is a list, no input is
    empty, and a plan takes the arrays as they lie."""
    data, wanted = problem.integers(dtype), expected(problem.name)
    data = data._replace(x=laid(data.x, problem.rank), y=laid(data.y, problem.rank))
    zeros = [np.zeros_like(array) for array in data]
    out = np.empty_like(data.y)

    def all_calls(x, w, y, b, c):
        yield calls.forward(problem, x, w), wanted.forward
        yield calls.forward(problem, x, w, b), wanted.forward + per_channel(data.b, problem.rank)
        yield calls.forward(problem, x, w, out=out), wanted.forward
        yield calls.grad_input(problem, w, y), wanted.grad_input
        yield calls.grad_weight(problem, x, y), wanted.grad_weight
        yield (calls.transposed(problem, y, w, c),
               wanted.grad_input + per_channel(data.c, problem.rank))

    for _ in all_calls(*zeros):
        pass
    may_be_far = problem.padding_mode != 'zeros' and laid is calls.last
    if '[' not in str(problem.keywords) and (problem.padding_mode == 'zeros' or data.x.size) and not may_be_far:
        monkeypatch.setattr(_ops.geometries, 'problem', no_geometry)
        monkeypatch.setattr(_ops.geometries, 'convolved', no_geometry)
    for found, right in all_calls(*data):
        assert_equal(found, right, dtype)


@pytest.mark.parametrize('mode', ['zeros', 'reflect', 'constant'])
@pytest.mark.parametrize('kind', ['float16', ml_dtypes.bfloat16, 'complex64', 'complex128', 'int8', 'uint8', 'int16',
                                  'int32', 'uint64', 'int64', 'longlong'], ids=str)
def test_other_numbers_of_any_type(kind, mode, monkeypatch):
    """The second call, on other numbers and without a geometry, gives what it gives where nothing is known."""
    rng = np.random.default_rng(0)
    sets = [[rng.integers(0, 9, array.shape).astype(kind) for array in (X, W, Y)] for _ in range(2)]

    def all_calls(x, w, y):
        return [conv(x, w, None, padding_mode=mode), backwards(w=w, y=y, padding_mode=mode),
                to_weight(x, y=y, padding_mode=mode), to_weight(x, y=y, padding_mode=mode, per_sample=True)]

    wanted = all_calls(*sets[1])
    _known.forget()
    all_calls(*sets[0])
    monkeypatch.setattr(_ops.geometries, 'problem', no_geometry)
    monkeypatch.setattr(_ops.geometries, 'convolved', no_geometry)
    for found, right in zip(all_calls(*sets[1]), wanted):
        assert_same_bits(found, right)


@pytest.mark.parametrize('call', [
    lambda x, w: pyconv.conv2d(x, w, None, 1, 1),
    lambda x, w: pyconv.conv2d(x, w, None, 1, 1, out=calls.last(np.empty_like(x), 2)),
    lambda x, w: pyconv.conv2d_input(x.shape, w, x, 1, 1),
    lambda x, w: pyconv.conv2d_input(x.shape, w, x, 1, 1, out=calls.last(np.empty_like(x), 2)),
    lambda x, w: pyconv.conv2d_weight(x, w.shape, x, 1, 1)])
def test_numbers_that_are_not_finite_where_channels_lie_last(call):
    """Of Winograd's tiles they are worked out again, sample by sample."""
    x, w = calls.last(np.ones((2, 64, 12, 12)), 2), np.ones((64, 64, 3, 3))
    call(x, w)
    x[1, 0, 5, 6] = np.inf
    found = call(x, w)
    _known.forget()
    assert_same_bits(found, call(x, w))


def outcome(call):
    """What a call returns and leaves in `out`, or the error that it raises."""
    out = np.full(Y.shape, 7.0)
    try:
        return call(out), out
    except (TypeError, ValueError) as error:
        return type(error), str(error)


class Sub(np.ndarray):
    """A kind of array with a type of its own."""


def read_only():
    array = np.zeros(Y.shape)
    array.flags.writeable = False
    return array


def shared(first, second):
    """Two arrays of these shapes, of which the second begins within the first."""
    memory = np.zeros(first.size + second.size)
    memory[:first.size] = first.ravel()
    return memory[:first.size].reshape(first.shape), memory[first.size - 1:-1].reshape(second.shape)


def over_input():
    x, out = shared(X, Y)
    return conv(x, out=out)


def over_buffer():
    buffer, out = shared(FINPUT, Y)
    return conv(out=out, finput=buffer)


def either(transposed):
    return pyconv.convolution(X, V, None, 1, 1, 1, transposed, 0, 1)


BEFORE = [
    conv, lambda: conv(out=np.empty_like(Y)), lambda: conv(out=np.empty_like(Y), finput=FINPUT), lambda: conv(b=None),
    lambda: conv(padding=(1, 1)), lambda: conv(padding=((1, 1), (1, 1))), lambda: conv(padding='same'), backwards,
    lambda: backwards(fgrad_input=FINPUT), to_weight, lambda: to_weight(finput=FINPUT),
    lambda: to_weight(out=np.empty_like(W)), lambda: either(False), lambda: either(True),
    lambda: conv(V, V, None),
    lambda: conv(padding_mode='circular'), lambda: conv(padding_mode='constant', padding_value=1.5),
    lambda: conv(padding_mode='constant', padding_value=1), lambda: conv(padding_mode='constant', padding_value=0.0),
    lambda: backwards(padding_mode='reflect'), lambda: to_weight(padding_mode='replicate'),
    lambda: conv(out=np.ones_like(Y), accumulate=True), lambda: conv(algorithm='gemm'),
    lambda: conv(out=np.ones_like(Y), accumulate=True, algorithm='winograd', finput=FINPUT),
    *(lambda kind=kind: conv(X.astype(kind), W.astype(kind), None) for kind in (
        'f2', ml_dtypes.bfloat16, 'c8', 'i1', 'i8', 'u8')),
    lambda: conv(X.astype('f2'), W.astype('f2'), B.astype('f2'), out=np.empty(Y.shape, 'f2')),
    lambda: conv(X.astype('i8'), W.astype('i8'), B.astype('i8'), out=np.ones(Y.shape, 'i8'), accumulate=True),
    lambda: to_weight(per_sample=True), lambda: to_weight(per_sample=True, out=np.ones((2, *W.shape)), accumulate=True),
]
LATER = {
    'float stride': lambda out: conv(stride=1.0),
    'bool stride': lambda out: conv(stride=True),
    'int of numpy': lambda out: conv(stride=np.int64(1)),
    'float in a tuple': lambda out: conv(padding=(1, 1.0)),
    'bool in a pair': lambda out: conv(padding=((1, 1), (True, 1))),
    'list': lambda out: conv(padding=[1, 1]),
    'padding deep': lambda out: conv(padding=(((1,), 1), (1, 1))),
    'other padding': lambda out: conv(padding='valid'),
    'groups': lambda out: conv(groups=2),
    'rank': lambda out: pyconv.conv1d(X, W, B, 1, 1),
    'int for transposed': lambda out: either(1),
    'text for transposed': lambda out: either('True'),
    'array for transposed': lambda out: either(np.array([True, False])),
    'no input': lambda out: conv(x=None),
    'list of numbers': lambda out: conv(b=[0.0, 1.0]),
    'type of its own': lambda out: conv(x=X.view(Sub)),
    'float32': lambda out: conv(X.astype('f4'), W.astype('f4'), B.astype('f4')),
    'float32 weight': lambda out: conv(w=W.astype('f4')),
    'float32 bias': lambda out: conv(b=B.astype('f4')),
    'int64': lambda out: conv(X.astype('i8'), W.astype('i8'), B.astype('i8')),
    **{f'{kind} for {name}': lambda out, kind=kind, one=name: conv(
        **{name: array.astype(kind if name == one else 'f8') for name, array in (('x', X), ('w', W), ('b', B))})
       for kind in ('f2', 'c16', 'i1', 'g', '?', 'O', 'm8', 'G') for name in 'xwb'},
    **{f'{np.dtype(kind)} alone': lambda out, kind=kind: conv(X.astype(kind), W.astype(kind), None)
       for kind in ('f2', ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, 'c8', 'c16', 'i1', 'u1', 'i8', 'u8', 'g', '?')},
    'int8 with a bias of int8': lambda out: conv(X.astype('i1'), W.astype('i1'), B.astype('i1')),
    'int8 with a bias of int32': lambda out: conv(X.astype('i1'), W.astype('i1'), B.astype('i4')),
    'int8, summed in int64': lambda out: conv(X.astype('i1'), W.astype('i1'), None, dtype='i8'),
    'int8, out of int8': lambda out: conv(X.astype('i1'), W.astype('i1'), None, out=out.astype('i1')),
    'float16, a buffer of float16': lambda out: conv(
        X.astype('f2'), W.astype('f2'), None, finput=np.zeros(5000, 'f2')),
    'float16, a buffer of float32': lambda out: conv(
        X.astype('f2'), W.astype('f2'), None, finput=np.zeros(5000, 'f4')),
    'complex, a buffer of complex': lambda out: conv(
        X.astype('c16'), W.astype('c16'), None, finput=np.zeros(5000, 'c16')),
    'int8, a value that it has not': lambda out: conv(
        X.astype('i1'), W.astype('i1'), None, padding_mode='constant', padding_value=300),
    'big-endian': lambda out: conv(X.astype('>f8')),
    'columns first': lambda out: conv(np.asfortranarray(X)),
    'channels last': lambda out: conv(calls.last(X, 2)),
    'misaligned': lambda out: conv(np.ndarray(X.shape, 'f8', b'0' + X.tobytes(), 1)),
    'other bias': lambda out: conv(b=np.zeros(3)),
    'other channels': lambda out: conv(w=np.zeros((2, 3, 3, 3))),
    'out': lambda out: conv(out=out),
    'out of float32': lambda out: conv(out=out.astype('f4')),
    'out of another shape': lambda out: conv(out=out[:1]),
    'out in another order': lambda out: conv(out=np.asfortranarray(out)),
    'out that is read-only': lambda out: conv(out=read_only()),
    'out that is a list': lambda out: conv(out=out.tolist()),
    'out over the input': lambda out: over_input(),
    'out that is the input': lambda out: conv(V, V, None, out=V),
    'out over the buffer': lambda out: over_buffer(),
    'buffer': lambda out: conv(out=out, finput=np.full_like(FINPUT, np.nan)),
    'buffer of float32': lambda out: conv(finput=FINPUT.astype('f4')),
    'small buffer': lambda out: conv(finput=np.zeros(1)),
    'no room in the buffer': lambda out: conv(finput=np.zeros(0)),
    'buffer that is the weight': lambda out: conv(V, V, None, finput=V),
    'buffer of another map': lambda out: pyconv.convolution(X, W, B, 1, 1, 1, False, 0, 1, fgrad_input='none'),
    'algorithm': lambda out: conv(algorithm='gemm'),
    'unknown algorithm': lambda out: conv(algorithm='none'),
    'stream': lambda out: conv(stream=1),
    'accumulate': lambda out: conv(out=out, accumulate=True),
    'accumulate, nowhere': lambda out: conv(accumulate=True),
    'int for accumulate': lambda out: conv(accumulate=0),
    'numpy bool for accumulate': lambda out: conv(out=out, accumulate=np.True_),
    'accumulate in another type': lambda out: conv(out=out.astype('f4'), accumulate=True),
    'padding mode': lambda out: conv(padding_mode='circular'),
    'other padding mode': lambda out: conv(padding_mode='reflect'),
    'unknown padding mode': lambda out: conv(padding_mode='round'),
    'padding mode of its own type': lambda out: conv(padding_mode=np.str_('circular')),
    'padding mode in a list': lambda out: conv(padding_mode=['circular']),
    'value of another mode': lambda out: conv(padding_mode='circular', padding_value=1),
    'minus zero': lambda out: conv(np.zeros_like(X), -W, None, padding_mode='constant', padding_value=-0.0),
    'zero': lambda out: conv(np.zeros_like(X), -W, None, padding_mode='constant', padding_value=0),
    'other value': lambda out: conv(padding_mode='constant', padding_value=2.5),
    'bool for a value': lambda out: conv(padding_mode='constant', padding_value=True),
    'complex value': lambda out: conv(padding_mode='constant', padding_value=1j),
    'text for a value': lambda out: conv(padding_mode='constant', padding_value=(1.5).hex()),
    'numpy value': lambda out: conv(padding_mode='constant', padding_value=np.float64(1.5)),
    'value of no number': lambda out: conv(padding_mode='constant', padding_value=np.nan),
    'result type': lambda out: conv(dtype='f8'),
    'size in a list': lambda out: backwards(list(X.shape)),
    'size of floats': lambda out: backwards((2.0, 4, 5, 5)),
    'other size': lambda out: backwards((2, 4, 6, 5)),
    'per sample': lambda out: to_weight(per_sample=True),
    'numpy bool for per_sample': lambda out: to_weight(per_sample=np.True_),
    'int for per_sample': lambda out: to_weight(per_sample=0),
    'from columns': lambda out: to_weight(None, finput=pyconv.unfold(X, 3, padding=1)),
    'no input for a weight': lambda out: to_weight(None),
}


@pytest.mark.parametrize('call', LATER.values(), ids=LATER)
def test_what_differs_in_anything_else(call):
    """The same outcome as where nothing is known, and nothing else of the calls before."""
    first = outcome(call)
    _known.forget()
    before = [each() for _ in range(2) for each in BEFORE]
    second = outcome(call)
    if isinstance(first[0], type):
        assert first == second
    else:
        for one, other in zip(first, second):
            assert_same_bits(other, one)
    _known.forget()
    outcome(call)
    for each, wanted in zip(BEFORE, before):
        assert_same_bits(each(), wanted)


def test_arrays_that_serve_twice():
    """A first call with one array in two roles says nothing of a second with two."""
    other = V[::-1].copy()
    wanted = conv(V, other, None), conv(other, V, None)
    _known.forget()
    conv(V, V, None)
    assert_same_bits(conv(V, other, None), wanted[0])
    assert_same_bits(conv(other, V, None), wanted[1])


@pytest.mark.parametrize('other', [
    lambda array: pickle.loads(pickle.dumps(array)),
    lambda array: array.view(np.dtype(array.dtype, metadata={'unit': 'K'})),
], ids=['unpickled', 'metadata'])
@pytest.mark.parametrize('laid', [lambda array: array, lambda array: calls.last(array, 2)], ids=['first', 'last'])
def test_another_object_for_the_same_dtype(other, laid):
    """As arrays of another process have: these are read where they lie, and no less known for what they are."""
    if laid(X) is X:
        x, y, view = other(X), other(np.empty_like(Y)), lambda array: array
    else:
        x, y = other(np.moveaxis(laid(X), 1, -1)), other(np.moveaxis(laid(Y), 1, -1))
        view = partial(np.moveaxis, source=-1, destination=1)
    assert x.dtype is not X.dtype and x.dtype == X.dtype
    wanted = conv(X, W, B)
    _known.forget()
    for _ in range(3):
        assert_equal(conv(view(x), W, B), wanted, X.dtype)
        view(y).fill(np.nan)
        pyconv.conv2d(view(x), W, B, 1, 1, out=view(y))
        assert_same_bits(np.ascontiguousarray(view(y)), wanted)
        assert_same_bits(conv(laid(X), W, B), wanted)


def test_few_are_kept(monkeypatch):
    monkeypatch.setattr(_known, 'KEPT', 3)
    for size in range(3, 12):
        x = np.ones((1, 1, size, size))
        for _ in range(2):
            assert pyconv.conv2d(x, np.ones((1, 1, 2, 2))).sum() == 4 * (size - 1)**2
        assert len(_known._known) <= 3


@pytest.mark.parametrize('call', [BEFORE[0], BEFORE[2], BEFORE[7], BEFORE[9]], ids=['conv', 'out', 'input', 'weight'])
def test_a_second_call_takes_few_functions(call):
    """Of Python's, each of which takes some 0.1 us: what a small call costs."""
    call()
    steps = []

    def step(frame, event, _):
        if event == 'call' and 'pyconv' in frame.f_code.co_filename and 'tests' not in frame.f_code.co_filename:
            steps.append(frame.f_code.co_qualname)

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        call()
    finally:
        sys.setprofile(before)
    assert len(steps) <= 8, steps


def test_an_input_of_no_cells_amid_a_constant():
    """Others stand for it, which a call has to make."""
    for value in (1.5, 2.5):
        for _ in range(2):
            found = conv(np.empty((2, 4, 0, 5)), W, None, padding=((2, 2), (0, 0)), padding_mode='constant',
                         padding_value=value)
            assert_same_bits(found, conv(np.full((2, 4, 4, 5), value), W, None, padding=0))


def told(**settings):
    return _settings.told(_settings.settings_of(**settings))


def test_what_settings_tell():
    """Nothing of what is usual, and whatever tells results apart; None where a call is not kept."""
    assert _settings.told(_settings.DEFAULTS) == told(finput=FINPUT) == ()
    apart = [(), *(told(**more) for more in (
        {'algorithm': 'gemm'}, {'algorithm': 'winograd'}, {'accumulate': True}, {'padding_mode': 'circular'},
        *({'padding_mode': 'constant', 'padding_value': value} for value in (1, 2.0, -0.0, 0.0)),
        {'padding_mode': 'circular', 'accumulate': True}, {'padding_mode': 'circular', 'algorithm': 'gemm'}))]
    assert None not in apart and len(set(apart)) == len(apart)
    for more in ({'allow_tf32': True}, {'allow_tf32': 0}, {'stream': 1}, {'accumulate': 1}, {'dtype': 'f4'}):
        assert told(**more) is None
