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
from pyconv._gpu import arguments, decisions

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
    'out': (conv_to, 0), 'stream': (lambda *call: conv_to(*call, stream=0), 7),
    'pairs': (lambda *call: conv_to(*call, padding=((1, 1), (1, 1))), 9),
    'buffer': (lambda *call: conv_to(*call, finput=call[-1]), 10),
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
    sys.setprofile(step)
    try:
        way(*operands)
    finally:
        sys.setprofile(before)
    assert len(steps) <= 44 + more, steps


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
