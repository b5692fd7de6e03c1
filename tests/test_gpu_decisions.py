"""What is kept of a GPU's calls: asked for once for arrays that lie alike, right and safe for all others of them."""
import gc
import os
import sys
import weakref

import numpy as np
import pytest

import pyconv
from gpu_fakes import (  # noqa: F401, the fixtures
    SETTINGS,
    B,
    Interface,
    W,
    X,
    Y,
    backend,
    conv,
    frameworks,
    integers,
)
from pyconv import _ops
from pyconv._gpu import arguments, calls, decisions

HERE, SQUARE = os.path.dirname(__file__), integers(2, 2, 5, 5)


class Size(tuple):
    """As torch's."""




def test_a_second_call_is_not_decided_again(backend, monkeypatch):
    for factor in (1, 2):
        x, w, b, out = (factor * array for array in (X, W, B, np.empty_like(Y)))
        assert (conv(Interface(x), Interface(w), Interface(b)).host == pyconv.conv2d(x, w, b, **SETTINGS)).all()
        conv(Interface(x), Interface(w), out=Interface(out), finput=Interface(np.empty(300, 'f4')))
        assert (out == pyconv.conv2d(x, w, **SETTINGS)).all()
        assert (pyconv.conv_bias(Interface(factor * Y)).host == pyconv.conv_bias(factor * Y)).all()
        if factor == 1:
            asked = len(backend.plans)
            monkeypatch.setattr(arguments, 'check_out', None)
    assert len(backend.plans) == asked and len(backend.decisions) == 3


def conv_to(out, x, w, _, **more):
    return pyconv.conv2d(x, w, out=out, **{**SETTINGS, **more})


WAYS = {
    'out': (conv_to, 0), 'stream': (lambda *call: conv_to(*call, stream=0), 27),
    'pairs': (lambda *call: conv_to(*call, padding=((1, 1), (1, 1))), 0),
    'buffer': (lambda *call: conv_to(*call, finput=call[-1]), 31),
    'size': (lambda out, x, w, _: pyconv.conv2d_input(Size(x.shape), w, out, out=x, **SETTINGS), 0),
}


@pytest.mark.parametrize(('way', 'more'), WAYS.values(), ids=WAYS)
def test_a_second_call_takes_few_steps(way, more, frameworks, backend, monkeypatch):
    """A call of a Python function takes some 0.1 to 0.3 us, with what it does: so many before the launches, six of
    them of NumPy for these tensors' addresses, and so many more to check what else is given."""
    operands = [frameworks.torch.Tensor(array) for array in (np.empty_like(Y), X.copy(), W, np.empty(300, 'f4'))]
    steps = []

    def step(frame, event, _):
        if event == 'call' and not frame.f_code.co_filename.startswith(HERE):
            steps.append(frame.f_code.co_qualname)

    way(*operands)
    monkeypatch.setattr(decisions.Decision, 'run', lambda *launches: None)
    before = sys.getprofile()
    gc.disable()  # JAX, where another test has loaded it, takes two steps whenever garbage is collected
    sys.setprofile(step)
    try:
        way(*operands)
    finally:
        sys.setprofile(before)
        gc.enable()
    assert len(steps) <= 24 + more, ' '.join(steps)


def outcome(call):
    """What a call returns, or the error that it raises."""
    try:
        return call()
    except (TypeError, ValueError) as error:
        return type(error), str(error)


def known_out(kind, **more):
    """Arrays for a call with an `out` of which more is said."""
    return (*map(kind, (X, W, B)), kind(np.empty_like(Y), **more))


def no_geometry(*given):
    raise AssertionError('asked for the geometry again')


ROOM = np.zeros(X.size + Y.size, 'f4')


def over_input(kind):
    x, out = ROOM[:X.size].reshape(X.shape), ROOM[X.size - 1:-1].reshape(Y.shape)
    return pyconv.conv2d(kind(x), kind(W), kind(B), out=kind(out), **SETTINGS)


def later(kind):
    """By what differs from a call before: calls of arrays of that kind."""
    def conv(x=X, w=W, b=B, out=None, **more):
        x, w, b, out = (None if array is None else kind(array) for array in (x, w, b, out))
        return pyconv.conv2d(x, w, b, out=out, **{**SETTINGS, **more})

    def gradient(size=X.shape, **more):
        return pyconv.conv2d_input(size, kind(W), kind(Y), **{**SETTINGS, **more})

    def to_weight(size=W.shape, out=None, **more):
        return pyconv.conv2d_weight(kind(X), size, kind(Y), out=out, **{**SETTINGS, **more})

    return {
        'nothing': conv, 'no bias': lambda: conv(b=None), 'out': lambda: conv(out=np.empty_like(Y)),
        'gradient': gradient, 'to the weight': to_weight,
        'float': lambda: conv(groups=float(SETTINGS['groups'])),
        'bool': lambda: conv(dilation=True), 'list': lambda: conv(stride=[1, 1]),
        'padding': lambda: conv(padding=0), 'float32 of another size': lambda: conv(x=X[:1]),
        'float64': lambda: conv(*(array.astype('f8') for array in (X, W, B))),
        'float64 weight': lambda: conv(w=W.astype('f8')), 'channels': lambda: conv(w=W[:, :1]),
        'other bias': lambda: conv(b=B[:-1]), 'columns first': lambda: conv(x=np.asfortranarray(X)),
        'out of another shape': lambda: conv(out=np.empty((1, *Y.shape[1:]), 'f4')),
        'out of float64': lambda: conv(out=np.empty(Y.shape)),
        'out in another order': lambda: conv(out=np.asfortranarray(Y)),
        'out that overlaps itself': lambda: conv(out=np.broadcast_to(Y[:1], Y.shape)),
        'out that is an operand': lambda: over_input(kind),
        'out elsewhere': lambda: pyconv.conv2d(kind(X), kind(W), out=np.empty_like(Y), **SETTINGS),
        'algorithm': lambda: conv(algorithm='gemm'), 'stream': lambda: conv(stream=0),
        'unknown algorithm': lambda: conv(algorithm='none'), 'accumulate': lambda: conv(accumulate=True),
        'mode': lambda: conv(padding_mode='circular'), 'result type': lambda: conv(dtype='f4'),
        'other weight': lambda: to_weight((*W.shape[:-1], W.shape[-1] + 1)),
        'size in a list': lambda: gradient(list(X.shape)),
        'size of floats': lambda: gradient(tuple(map(float, X.shape))),
        'other size': lambda: gradient((*X.shape[:-1], X.shape[-1] + 1)),
        'per sample': lambda: to_weight(per_sample=True),
    }


BEFORE = list(later(Interface))[:5]


@pytest.mark.parametrize('kind', ['torch', 'interface'])
@pytest.mark.parametrize('name', later(Interface))
def test_a_call_after_others_does_what_it_does_alone(name, kind, frameworks, backend):
    calls = later(frameworks.torch.Tensor if kind == 'torch' else Interface)
    first = outcome(calls[name])
    backend.decisions.clear()
    backend.known.clear()
    for before in BEFORE * 2:
        calls[before]()
    for second in (outcome(calls[name]), outcome(calls[name])):
        assert first == second if isinstance(first, tuple) else (first.host == second.host).all()


UNUSUAL = {  # of a tensor: how it becomes so, and the error
    'negated': (lambda x: setattr(x, 'neg', True), 'hold its values as they are; got a tensor that resolve_neg would '),
    'conjugated': (lambda x: setattr(x, 'is_conj', lambda: True),
                   'hold its values as they are; got a tensor that resolve_conj would '),
    'zeros': (lambda x: setattr(x, 'zeros', True), 'have memory .*; got a tensor of zeros without'),
    'sparse': (lambda x: setattr(x, 'layout', 'sparse'), 'be a dense tensor; got sparse'),
    'freed': (lambda x: setattr(x, 'data_ptr', lambda: 0), r'have memory for its elements; got address 0 '),
    'elsewhere': (lambda x: setattr(x.device, 'index', 1), 'be on the device of input, cuda:0; got cuda:1'),
}


@pytest.mark.parametrize('name', ['input', 'weight', 'bias', 'out'])
@pytest.mark.parametrize('word', UNUSUAL)
@pytest.mark.filterwarnings('ignore::numpy.exceptions.ComplexWarning')  # of the fake, which computes with real numbers
def test_a_tensor_is_asked_anew(word, name, frameworks, backend):
    """Of a call that is known: what does not follow from how it lies."""
    (change, text), dtype = UNUSUAL[word], 'c8' if word == 'conjugated' else 'f4'
    tensors = {key: frameworks.torch.Tensor(array.astype(dtype))
               for key, array in (('input', X), ('weight', W), ('bias', B), ('out', Y))}
    for _ in range(2):
        pyconv.conv2d(**tensors, **SETTINGS)
    runs = len(backend.runs)
    change(tensors[name])
    if (name, word) == ('input', 'elsewhere'):
        name, text = 'weight', 'be on the device of input, cuda:1; got cuda:0'
    with pytest.raises(TypeError, match=f'^{name} must {text}'):
        pyconv.conv2d(**tensors, **SETTINGS)
    assert len(backend.runs) == runs


def test_an_out_is_asked_anew(frameworks, backend):
    """Of a call that is known: torch may have changed what it says of a tensor."""
    x, w, b, out = known_out(frameworks.torch.Tensor)
    for writes in (1, 2, 3):
        pyconv.conv2d(x, w, b, out=out, **SETTINGS)
        assert out.writes == writes
    out.requires_grad = True
    with pytest.raises(ValueError, match='^out must require no gradient'):
        pyconv.conv2d(x, w, b, out=out, **SETTINGS)
    *_, plain = known_out(Interface)
    x, w, b, read_only = known_out(Interface, read_only=True)
    pyconv.conv2d(x, w, b, out=plain, **SETTINGS)
    with pytest.raises(ValueError, match='^out must be writeable'):
        pyconv.conv2d(x, w, b, out=read_only, **SETTINGS)
    assert out.writes == 3


def test_devices_are_decided_apart(backend):
    for device in (0, 1):
        pyconv.conv2d(*(Interface(array.copy(), device=device) for array in (X, W, B)), **SETTINGS)
    assert len(backend.known) == len(backend.decisions) == 2


@pytest.mark.parametrize('name', BEFORE)
def test_a_second_call_asks_for_no_geometry(name, frameworks, backend, monkeypatch):
    call = later(frameworks.torch.Tensor)[name]
    wanted = call().host
    for function in ('problem', 'convolved'):
        monkeypatch.setattr(_ops.geometries, function, no_geometry)
    assert (call().host == wanted).all()


def test_few_calls_are_kept(backend, monkeypatch):
    monkeypatch.setattr(calls, 'KEPT', 3)
    monkeypatch.setattr(calls, 'TARGETS', 2)
    w = np.ones((1, 1, 2, 2), 'f4')
    for size in range(4, 12):
        x = np.ones((1, 1, size, size), 'f4')
        for step in (1, 2, 3, 4):
            out = np.empty((1, 1, size - 1, 4 * size), 'f4')[..., ::step][..., :size - 1]
            pyconv.conv2d(Interface(x), Interface(w), out=Interface(out))
            assert (out == 4).all()
        assert len(backend.known) <= 3
        assert all(len(known.decisions) <= 2 for known in backend.known.values())


def test_calls_that_differ_are_decided_apart(backend):
    """In strides, alignment, settings, the roles of their operands, or in whether one array serves twice."""
    x, w = Interface(SQUARE), Interface(integers(2, 2, 3, 3))
    fortran, room = np.asfortranarray(SQUARE), np.empty(4 * SQUARE.size + 32, 'u1')
    shifted = room[4 - room.ctypes.data % 16 + 16:][:4 * SQUARE.size].view('f4').reshape(SQUARE.shape)
    shifted[...] = SQUARE
    same = {'padding': 1}
    calls = [
        lambda: pyconv.conv2d(x, w, **same), lambda: pyconv.conv2d(Interface(fortran), w, **same),
        lambda: pyconv.conv2d(Interface(shifted), w, **same), lambda: pyconv.conv2d(x, w, **same, algorithm='gemm'),
        lambda: pyconv.conv2d(x, w, **same, allow_tf32=True), lambda: pyconv.conv_transpose2d(x, w, **same),
        lambda: pyconv.conv2d_input(SQUARE.shape, w, x, **same), lambda: pyconv.conv2d_weight(x, w.shape, x, **same)]
    for number, call in enumerate(calls, 1):
        call()
        call()
        assert len(backend.decisions) == number
    square = integers(2, 2, 2, 2)
    for first, second in ((square, square), (square, 3 * square), (2 * square, square)):
        found = pyconv.conv2d(Interface(first), Interface(second)).host
        assert (found == pyconv.conv2d(first, second)).all()
    for y in (SQUARE, np.ascontiguousarray(SQUARE[..., ::-1])):
        for transposed in (False, True):
            rest = 1, 1, 1, transposed, 0, 1, (True, True, False)
            found = pyconv.convolution_backward(Interface(y), x, w, *rest)
            for one, wanted in zip(found[:2], pyconv.convolution_backward(y, SQUARE, w.host, *rest)):
                assert (one.host == wanted).all()


def test_what_follows_from_addresses_is_checked_again(frameworks, backend):
    """Arrays that meet, that were freed, that lie between elements or on another device, whatever was decided."""
    arena, buffer = np.empty(2 * Y.size + X.size, 'f4'), np.empty(300, 'f4')
    x, w, out = Interface(X), Interface(W), Interface(arena[:Y.size].reshape(Y.shape))
    conv(x, w, out=out, finput=Interface(buffer))
    runs = len(backend.runs)
    arena[1:][:X.size] = X.reshape(-1)
    over = Interface(arena[1:][:X.size].reshape(X.shape))
    misaligned = np.zeros(4 * X.size + 2, 'u1')[2:].view('f4').reshape(X.shape)
    meet = 'got arrays with common bounds of memory'
    for operands, more, text in (
            ((over, w), {}, f'out must not overlap input; {meet}'),
            ((x, w), {'finput': Interface(arena[Y.size - 1:][:300])},
             f'finput must not overlap out, and have at least 50 elements; {meet}'),
            ((Interface(misaligned), w), {}, 'input must be aligned to its elements; got address '
             f'{misaligned.ctypes.data} and strides {X.strides} in bytes'),
            ((Interface(X, data=(0, False)), w), {},
             f'input must have memory for its elements; got address 0 and shape {X.shape}'),
            ((x, Interface(W.copy(), device=1)), {}, 'weight must be on the device of input, cuda:0; got cuda:1'),
            ((x, w), {'out': Interface(Y.copy(), read_only=True)}, 'out must be writeable; got a read-only array'),
            ((x, w), {'finput': Interface(np.empty(40, 'f4'))}, 'finput must have at least 50 elements; got 40')):
        with pytest.raises((TypeError, ValueError)) as caught:
            conv(*operands, **{'out': out, 'finput': Interface(buffer), **more})
        assert str(caught.value) == text
    assert len(backend.runs) == runs


def test_a_decision_keeps_no_array(backend):
    x, out, buffer = Interface(X.copy()), Interface(np.empty_like(Y)), Interface(np.empty(300, 'f4'))
    conv(x, out=out, finput=buffer)
    pyconv.conv_bias(out)
    backend.runs.clear()
    gone = [weakref.ref(array) for array in (x, out, buffer)]
    del x, out, buffer
    gc.collect()
    assert backend.decisions and [array() for array in gone] == [None] * 3


def test_so_many_are_kept_at_most(backend, monkeypatch):
    monkeypatch.setattr(decisions, 'KEPT', 3)
    for size in range(3, 10):
        x = integers(1, 1, size)
        for _ in range(2):
            assert (pyconv.conv1d(Interface(x), Interface(x[..., :2])).host == pyconv.conv1d(x, x[..., :2])).all()
        assert 1 <= len(backend.decisions) <= 3


def test_of_a_decision_so_many_targets_are_kept(backend, monkeypatch):
    monkeypatch.setattr(decisions, 'TARGETS', 3)
    for step in range(1, 9):
        out = np.empty(Y.shape[1] * step, 'f4')[::step]
        assert (pyconv.conv_bias(Interface(Y), out=Interface(out)).host == pyconv.conv_bias(Y)).all()
        [decision] = backend.decisions.values()
        assert len(decision._launches) <= 3
