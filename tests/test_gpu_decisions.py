"""What is kept of a GPU's calls: asked for once for arrays that lie alike, right and safe for all others of them."""
import gc
import os
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import pyconv
from gpu_fakes import (  # noqa: F401, the fixtures
    SETTINGS,
    B,
    DLPack,
    Interface,
    Program,
    W,
    X,
    Y,
    backend,
    conv,
    frameworks,
    integers,
    waits,
)
from pyconv import _ops
from pyconv._gpu import arguments, arrays, calls, decisions, kinds, streams
from pyconv._gpu.launches import Step

HERE, SQUARE = os.path.dirname(__file__), integers(2, 2, 5, 5)
GEOMETRY = SETTINGS['stride'], SETTINGS['padding'], 1, False, 0, SETTINGS['groups']


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


@pytest.mark.parametrize('sizes', [(1000, 300), (300, 1000)])
def test_results_are_made_before_any_launch_and_share_scratch(sizes, frameworks, monkeypatch):
    seen, make = [], frameworks.torch.empty_strided

    def empty_strided(shape, *steps, **more):
        seen.append(shape)
        return make(shape, *steps, **more)

    def part(name, shape, size):
        def steps(target):
            yield Step(Program(size, lambda **there: seen.append(there), {}, dict.fromkeys(words, target), {}), {
                'out': target})
        return decisions.Part(name, shape, steps)

    words, shapes = ('out', 'scratch'), ((2, 3), (4,))
    monkeypatch.setattr(frameworks.torch, 'empty_strided', empty_strided)
    decision = decisions.Decision(
        [part(f'out[{place}]', shape, size) for place, shape, size in zip((0, 2), shapes, sizes)], {},
        arrays.DTYPES['float32'], 0)
    work = [('out[0]', shapes[0], None, None), None, ('out[2]', shapes[1], None, None)]
    first, none, last = decision.run(work, {}, {}, kinds.TorchKind(), 640, None)
    assert seen[:3] == [*shapes, (314,)] and none is None  # 1000 bytes and 256 to begin at a multiple of 256
    assert [run['out'].address for run in seen[3:]] == [first.data_ptr(), last.data_ptr()]
    [scratch] = {run['scratch'].address for run in seen[3:]}
    assert scratch % 256 == 0


def conv_to(out, x, w, _, **more):
    return pyconv.conv2d(x, w, out=out, **{**SETTINGS, **more})


WAYS = {
    'out': (conv_to, 0), 'stream': (lambda *call: conv_to(*call, stream=0), 3),
    'pairs': (lambda *call: conv_to(*call, padding=((1, 1), (1, 1))), 0),
    'buffer': (lambda *call: conv_to(*call, finput=call[-1]), 4),
    'accumulate': (lambda *call: conv_to(*call, accumulate=True), 1),
    'all': (lambda *call: conv_to(*call, finput=call[-1], accumulate=True, stream=0, algorithm='gemm'), 6),
    'size': (lambda out, x, w, _: pyconv.conv2d_input(Size(x.shape), w, out, out=x, **SETTINGS), 1),
    'backward': (lambda out, x, w, _: pyconv.convolution_backward(out, x, w, *GEOMETRY, (True, True, True)), 38),
}


@pytest.mark.parametrize(('way', 'more'), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize('kind', ['torch', 'cupy'])
def test_a_second_call_takes_few_steps(kind, way, more, frameworks, backend, monkeypatch):
    """A call of a Python function takes some 0.1 to 0.3 us, with what it does: so many before the launches, six of
    them of NumPy for these tensors' addresses, and so many more to check what else is given."""
    gpu = KINDS[kind](frameworks)
    operands = [gpu(array) for array in (np.empty_like(Y), X.copy(), W, np.empty(300, 'f4'))]
    steps = []

    def step(frame, event, _):
        if event == 'call' and not frame.f_code.co_filename.startswith(HERE):
            steps.append(frame.f_code.co_qualname)

    way(*operands)
    monkeypatch.setattr(Program, 'run', lambda *launches: None)
    before = sys.getprofile()
    gc.disable()  # JAX, where another test has loaded it, takes two steps whenever garbage is collected
    sys.setprofile(step)
    try:
        way(*operands)
    finally:
        sys.setprofile(before)
        gc.enable()
    assert len(steps) <= 21 + more, ' '.join(steps)


def outcome(call):
    """What a call returns, in a list, or the error that it raises."""
    try:
        found = call()
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    return [None if array is None else array.host.copy() for array in (found if type(found) is tuple else (found,))]


def same(first, second):
    """Whether two outcomes are."""
    if isinstance(first, tuple) or isinstance(second, tuple):
        return first == second
    return len(first) == len(second) and all(map(np.array_equal, first, second))


def known_out(kind, **more):
    """Arrays for a call with an `out` of which more is said."""
    return (*map(kind, (X, W, B)), kind(np.empty_like(Y), **more))


def no_storage(tensor):
    raise NotImplementedError('Cannot access storage of SparseTensorImpl')


def no_geometry(*given):
    raise AssertionError('asked for the geometry again')


ROOM = np.zeros(X.size + Y.size + 100, 'f4')


def over_input(kind):
    x, out = ROOM[:X.size].reshape(X.shape), ROOM[X.size - 1:-101].reshape(Y.shape)
    return pyconv.conv2d(kind(x), kind(W), kind(B), out=kind(out), **SETTINGS)


def scratch(*shape, dtype='f4'):
    return np.zeros(shape or 100, dtype)


def later(kind):
    """By what differs from a call before: calls of arrays of that kind."""
    def conv(x=X, w=W, b=B, out=None, finput=None, fgrad_input=None, **more):
        x, w, b, out, finput = (None if array is None else kind(array) for array in (x, w, b, out, finput))
        return pyconv.conv2d(x, w, b, out=out, finput=finput, **{**SETTINGS, **more})

    def of_any_rank(transposed=False):
        return pyconv.convolution(kind(SQUARE), kind(SQUARE), None, 1, 1, 1, transposed, 0, 1)

    def added(out=None, **more):
        return conv(out=np.ones_like(Y) if out is None else out, **{'accumulate': True, **more})

    def gradient(size=X.shape, **more):
        return pyconv.conv2d_input(size, kind(W), kind(Y), **{**SETTINGS, **more})

    def to_weight(size=W.shape, out=None, **more):
        return pyconv.conv2d_weight(kind(X), size, kind(Y), out=out, **{**SETTINGS, **more})

    def backward(mask=(True, True, True), out=None, transposed=False, **more):
        outs = out and tuple(None if array is None else kind(array) for array in out)
        geometry = (*GEOMETRY[:3], transposed, *GEOMETRY[4:])
        return pyconv.convolution_backward(kind(Y), kind(X), kind(W), *geometry, mask, out=outs, **more)

    def bias(out=None, **more):
        return pyconv.conv_bias(kind(Y), out=None if out is None else kind(out), **more)

    def beside(array):
        """It, and an array whose memory begins with its last element."""
        memory = np.zeros(array.size + 100, array.dtype)
        memory[:array.size] = array.reshape(-1)
        return memory[:array.size].reshape(array.shape), memory[array.size - 1:-1]

    x, over_x = beside(X)
    out, over_out = beside(Y)
    grad_w, over_grad_w = beside(W)
    outs = np.zeros_like(X), np.zeros_like(W), np.zeros_like(B)
    return {
        'nothing': conv, 'no bias': lambda: conv(b=None), 'out': lambda: conv(out=np.empty_like(Y)),
        'gradient': gradient, 'to the weight': to_weight, 'buffer': lambda: conv(finput=scratch()),
        'out and buffer': lambda: conv(out=np.empty_like(Y), finput=scratch()), 'added': added,
        'added, and buffer': lambda: added(finput=scratch()), 'stream': lambda: conv(stream=0),
        'algorithm': lambda: conv(algorithm='gemm'), 'backward': backward, 'bias': bias,
        'backward, out': lambda: backward(out=outs), 'weight by each sample': lambda: to_weight(per_sample=True),
        'a buffer that serves twice': lambda: backward(**dict.fromkeys(('finput', 'fgrad_input'), kind(scratch()))),
        'of any rank': of_any_rank,
        'transposed': lambda: of_any_rank(True), 'int for transposed, of any rank': lambda: of_any_rank(0),
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
        'other stream': lambda: conv(stream=640), 'no stream': lambda: conv(stream='default'),
        'bool for a stream': lambda: conv(stream=True), 'negative stream': lambda: conv(stream=-1),
        'unknown algorithm': lambda: conv(algorithm='none'), 'other algorithm': lambda: conv(algorithm='tf32x3'),
        'tf32': lambda: conv(allow_tf32=True), 'int for tf32': lambda: conv(allow_tf32=0),
        'not added': lambda: conv(out=np.ones_like(Y)), 'added nowhere': lambda: conv(accumulate=True),
        'added to what is there': lambda: added(np.full_like(Y, 7)), 'int for accumulate': lambda: added(accumulate=1),
        'added in another order': lambda: added(np.ones_like(np.asfortranarray(Y))),
        'added to another shape': lambda: added(np.ones((1, *Y.shape[1:]), 'f4')),
        'added to an operand': lambda: pyconv.conv2d(kind(SQUARE), kind(W[:2, :, :1, :1]), out=kind(SQUARE),
                                                     accumulate=True),
        'small buffer': lambda: conv(finput=scratch(49)), 'least buffer': lambda: conv(finput=scratch(50)),
        'empty buffer': lambda: conv(finput=scratch(0)), 'buffer of float64': lambda: conv(finput=scratch(dtype='f8')),
        'buffer in steps': lambda: conv(finput=scratch(200)[::2]),
        'buffer in axes': lambda: conv(finput=scratch(5, 20)),
        'buffer elsewhere': lambda: pyconv.conv2d(kind(X), kind(W), finput=scratch(), **SETTINGS),
        'buffer over the input': lambda: conv(x=x, finput=over_x),
        'buffer over out': lambda: conv(out=out, finput=over_out),
        'buffer of the other map': lambda: gradient(fgrad_input=kind(scratch())),
        'small buffer of the other map': lambda: gradient(fgrad_input=kind(scratch(49))),
        'circular': lambda: conv(padding_mode='circular'), 'unknown mode': lambda: conv(padding_mode='round'),
        'padding value': lambda: conv(padding_mode='constant', padding_value=2),
        'bool for a padding value': lambda: conv(padding_mode='constant', padding_value=True),
        'padding value of no mode': lambda: conv(padding_value=2),
        'result type': lambda: conv(dtype='f4'), 'other result type': lambda: conv(dtype='f8'),
        'other weight': lambda: to_weight((*W.shape[:-1], W.shape[-1] + 1)),
        'size in a list': lambda: gradient(list(X.shape)),
        'size of floats': lambda: gradient(tuple(map(float, X.shape))),
        'other size': lambda: gradient((*X.shape[:-1], X.shape[-1] + 1)),
        'int for per_sample': lambda: to_weight(per_sample=1),
        'other mask': lambda: backward((True, False, True)), 'mask of ints': lambda: backward((1, 1, 1)),
        'mask of nothing': lambda: backward((False,) * 3), 'int for transposed': lambda: backward(transposed=0),
        'backward of each sample': lambda: backward(per_sample=True),
        'bias sizes': lambda: backward(bias_sizes=(len(B),)), 'other bias sizes': lambda: backward(bias_sizes=(1,)),
        'an out of two': lambda: backward(out=outs[:2]), 'an out too many': lambda: backward((False, True, True), outs),
        'no out of the first': lambda: backward(out=(None, *outs[1:])),
        'out over another out': lambda: backward(out=(outs[0], grad_w, over_grad_w[:len(B)])),
        'out of the bias over the weight': lambda: backward(out=(*outs[:2], W.reshape(-1)[:len(B)])),
        'out of the weight in another shape': lambda: backward(out=(outs[0], outs[1][:1], outs[2])),
        'two buffers': lambda: backward(finput=kind(scratch()), fgrad_input=kind(scratch())),
        'a buffer over an out': lambda: backward(
            out=(outs[0], grad_w, outs[2]), finput=kind(over_grad_w), fgrad_input=kind(scratch())),
        'a small buffer of two': lambda: backward(finput=kind(scratch()), fgrad_input=kind(scratch(49))),
        'backward, added': lambda: backward(out=tuple(map(np.ones_like, outs)), accumulate=True),
        'backward, added nowhere': lambda: backward(out=(outs[0], None, outs[2]), accumulate=True),
        'bias, added': lambda: bias(np.ones_like(B), accumulate=True),
        'bias, added nowhere': lambda: bias(accumulate=True),
        'bias without batch': lambda: bias(batched=False), 'int for batched': lambda: bias(batched=1),
        'bias to an operand': lambda: bias(Y.reshape(-1)[:len(B)]), 'bias to float64': lambda: bias(np.ones(len(B))),
    }


BEFORE = list(later(Interface))[:17]
KINDS = {'torch': lambda frameworks: frameworks.torch.Tensor, 'cupy': lambda frameworks: frameworks.cupy.ndarray,
         'interface': lambda frameworks: Interface, 'dlpack': lambda frameworks: DLPack}


@pytest.mark.sparse
@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', later(Interface))
def test_a_call_after_others_does_what_it_does_alone(name, kind, frameworks, backend):
    calls = later(KINDS[kind](frameworks))
    first, alone = outcome(calls[name]), backend.runs[:]
    backend.decisions.clear()
    backend.known.clear()
    for before in BEFORE * 2:
        calls[before]()
    for _ in range(2):
        backend.runs.clear()
        calls = later(KINDS[kind](frameworks))  # what is added to holds what it held
        assert same(first, outcome(calls[name]))
        asked = [[(run.plan, run.accumulate, run.stream, run.scratch is None) for run in runs]
                 for runs in (alone, backend.runs)]
        assert asked[0] == asked[1]


UNUSUAL = {  # of a tensor: how it becomes so, and the error
    'negated': (lambda x: setattr(x, 'neg', True), 'hold its values as they are; got a tensor that resolve_neg would '),
    'conjugated': (lambda x: setattr(x, 'is_conj', lambda: True),
                   'hold its values as they are; got a tensor that resolve_conj would '),
    'zeros': (lambda x: setattr(x, 'zeros', True), 'have memory .*; got a tensor of zeros without'),
    'sparse': (lambda x: setattr(x, 'layout', 'sparse'), 'be a dense tensor; got sparse'),
    'freed': (lambda x: setattr(x, 'data_ptr', lambda: 0), r'have memory for its elements; got address 0 '),
    'a freed part': (lambda x: vars(x).update(offset=1, freed=True), r'have memory for its elements; got address 0 '),
    'elsewhere': (lambda x: setattr(x.device, 'index', 1), 'be on the device of input, cuda:0; got cuda:1'),
}


@pytest.mark.parametrize('name', ['input', 'weight', 'bias', 'out', 'finput'])
@pytest.mark.parametrize('word', UNUSUAL)
@pytest.mark.filterwarnings('ignore::numpy.exceptions.ComplexWarning')  # of the fake, which computes with real numbers
def test_a_tensor_is_asked_anew(word, name, frameworks, backend):
    """Of a call that is known: what does not follow from how it lies."""
    (change, text), dtype = UNUSUAL[word], 'c8' if word == 'conjugated' else 'f4'
    tensors = {key: frameworks.torch.Tensor(array.astype(dtype))
               for key, array in (('input', X), ('weight', W), ('bias', B), ('out', Y), ('finput', scratch()))}
    for _ in range(2):
        pyconv.conv2d(**tensors, **SETTINGS)
    runs = len(backend.runs)
    change(tensors[name])
    if (name, word) == ('input', 'elsewhere'):
        name, text = 'weight', 'be on the device of input, cuda:1; got cuda:0'
    with pytest.raises(TypeError, match=f'^{name} must {text}'):
        pyconv.conv2d(**tensors, **SETTINGS)
    assert len(backend.runs) == runs


def otherwise(array, host, device=0):
    """Another array of that object."""
    array.__init__(host, device)


def between(host):
    """Its elements, each a byte behind where it might be."""
    there = np.empty(host.nbytes + 1, 'u1')[1:].view(host.dtype).reshape(host.shape)
    there[...] = host
    return there


def swapped(host):
    """Its elements in the other byte order."""
    return host.astype(host.dtype.newbyteorder())


def of_steps(host):
    """With strides of no whole elements."""
    return np.lib.stride_tricks.as_strided(np.resize(host, 2 * host.size), host.shape, tuple(
        step + (step == host.itemsize) for step in host.strides))


OTHERWISE = {  # of an array of CuPy's: what it becomes, and the error
    'freed': (lambda x: setattr(x.data, 'ptr', 0), r'have memory for its elements; got address 0 and shape '),
    'elsewhere': (lambda x: otherwise(x, x.host, 1), 'be on the device of input, cuda:0; got cuda:1'),
    'misaligned': (lambda x: otherwise(x, between(x.host)), 'be aligned to its elements; got address '),
    'in steps': (lambda x: otherwise(x, of_steps(x.host)), 'be aligned to its elements; got address '),
    'in the other byte order': (lambda x: otherwise(x, swapped(x.host)), 'have dtype .*; got [<>]f4'),
    'of bool': (lambda x: otherwise(x, x.host.astype(bool)), 'have dtype .*; got bool'),
    'of float64': (lambda x: otherwise(x, x.host.astype(float)), 'have (the )?dtype .*; got float64'),
}


@pytest.mark.parametrize('name', ['input', 'weight', 'bias', 'out', 'finput'])
@pytest.mark.parametrize('word', OTHERWISE)
def test_an_array_of_cupy_s_is_asked_anew(word, name, frameworks, backend):
    """Of a call that is known: all that tells how it lies."""
    change, text = OTHERWISE[word]
    given = {key: frameworks.cupy.ndarray(array.copy())
             for key, array in (('input', X), ('weight', W), ('bias', B), ('out', Y), ('finput', scratch()))}
    for _ in range(2):
        pyconv.conv2d(**given, **SETTINGS)
    runs = len(backend.runs)
    change(given[name])
    if (name, word) == ('input', 'elsewhere'):
        name, text = 'weight', 'be on the device of input, cuda:1; got cuda:0'
    elif (name, word) == ('input', 'of float64'):
        name, text = 'weight', 'have the dtype of input, float64; got float32'
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=f'^{name} must {text}'):
            pyconv.conv2d(**given, **SETTINGS)
    assert len(backend.runs) == runs


def test_an_array_of_cupy_s_may_become_another(frameworks, backend):
    """Of another size, in another order, elsewhere in memory, or over an `out` of a known call, which is refused."""
    x, w, b = map(frameworks.cupy.ndarray, (X.copy(), W, B))
    room = np.zeros(X.size + Y.size, 'f4')
    out = frameworks.cupy.ndarray(room[:Y.size].reshape(Y.shape))
    over = room[(Y.size - 1) // 4 * 4:][:X.size].reshape(X.shape)  # aligned as the others are
    for host in (X, 2 * X, np.asfortranarray(X), X[..., ::-1], X, over + X, X) * 2:
        otherwise(x, host)
        pyconv.conv2d(x, w, b, out=out, **SETTINGS)
        assert (out.host == pyconv.conv2d(host, W, B, **SETTINGS)).all()
        assert backend.runs[-1].first.strides == tuple(step // 4 for step in host.strides)
        for part in (host, host[:1]):
            otherwise(x, part)
            assert (pyconv.conv2d(x, w, b, **SETTINGS).host == pyconv.conv2d(part, W, B, **SETTINGS)).all()
        otherwise(x, over)
        with pytest.raises(ValueError, match='^out must not overlap input; got arrays with common bounds'):
            pyconv.conv2d(x, w, b, out=out, **SETTINGS)


@pytest.mark.parametrize('place', range(4))
def test_an_array_of_a_class_of_cupy_s_is_read(place, frameworks, backend):
    """It may say anything of itself: here in lists, which no key can hold."""
    class Derived(frameworks.cupy.ndarray):
        def __init__(self, host):
            super().__init__(host)
            self.strides = list(self.strides)

    kinds = [frameworks.cupy.ndarray] * 4
    for kind in (frameworks.cupy.ndarray, Derived):
        kinds[place] = kind
        for _ in range(2):
            x, w, b, out = (kind(array) for kind, array in zip(kinds, (X, W, B, np.empty_like(Y))))
            assert pyconv.conv2d(x, w, b, out=out, **SETTINGS) is out
            assert (out.host == pyconv.conv2d(X, W, B, **SETTINGS)).all()


def test_an_out_is_asked_anew(frameworks, backend):
    """Of a call that is known: torch may have changed what it says of a tensor."""
    x, w, b, out = known_out(frameworks.torch.Tensor)
    for writes in (1, 2, 3):
        pyconv.conv2d(x, w, b, out=out, **SETTINGS)
        assert out.writes == writes
    out.requires_grad = True
    with pytest.raises(ValueError, match='^out must require no gradient'):
        pyconv.conv2d(x, w, b, out=out, **SETTINGS)
    for kind in (Interface, frameworks.cupy.ndarray):
        x, w, b = map(kind, (X, W, B))
        plain, read_only = (Interface(np.empty_like(Y), read_only=said) for said in (False, True))
        pyconv.conv2d(x, w, b, out=plain, **SETTINGS)
        with pytest.raises(ValueError, match='^out must be writeable'):
            pyconv.conv2d(x, w, b, out=read_only, **SETTINGS)
    assert out.writes == 3


@pytest.mark.parametrize('kind', ['torch', 'cupy', 'interface'])
def test_devices_are_decided_apart(kind, frameworks, backend):
    for _ in range(2):
        for device in (0, 1):
            gpu = {'torch': frameworks.torch.Tensor, 'cupy': frameworks.cupy.ndarray, 'interface': Interface}[kind]
            x, w, b, out = (gpu(array.copy(), device=device) for array in (X, W, B, Y))
            pyconv.conv2d(x, w, b, out=out, **SETTINGS)
            assert backend.runs[-1].out.device == device
    known = [one for one in backend.known.values() if isinstance(one, calls.Known)]
    assert len(known) == len(backend.decisions) == 2


@pytest.mark.parametrize('word', ['out', 'finput', 'fgrad_input'])
def test_what_torch_says_of_a_target_is_asked_anew(word, frameworks, backend, monkeypatch):
    """Also of a buffer that the call has no use for."""
    forward_mode = frameworks.torch.autograd.forward_ad
    forward_mode.unpack_dual = lambda tensor: SimpleNamespace(tangent=tensor.tangent)
    x, w = map(frameworks.torch.Tensor, (X, W))
    targets = {name: frameworks.torch.Tensor(scratch()) for name in ('finput', 'fgrad_input')}
    targets['out'] = frameworks.torch.Tensor(np.empty_like(Y))
    target, geometry = targets[word], (None, *GEOMETRY)

    def call():
        pyconv.convolution(x, w, *geometry, **targets)

    for writes in (1, 2, 3):
        call()
        assert [each.writes for each in targets.values()] == [writes] * 3
    target.requires_grad = True
    with pytest.raises(ValueError, match=f'^{word} must require no gradient'):
        call()
    monkeypatch.setattr(frameworks.torch, 'is_grad_enabled', lambda: False)
    call()
    target.requires_grad = False
    monkeypatch.setattr(forward_mode, '_current_level', 0)
    for each in targets.values():
        each.tangent = 'a tangent' if each is target else None
    with pytest.raises(ValueError, match=f'^{word} must have no tangent'):
        call()
    target.tangent = None
    call()
    assert len(backend.runs) == 5
    monkeypatch.setattr(forward_mode, 'unpack_dual', no_storage)
    with pytest.raises(ValueError, match='^stride must be'):  # as ever that is said first
        pyconv.conv2d(x, w, stride=0, out=targets['out'], finput=targets['finput'])


def test_calls_of_one_kind_at_once(frameworks, backend):
    """Each thread has its own arrays; what is known is everyone's."""
    def run(number):
        x, out = X + number, np.empty_like(Y)
        wanted = pyconv.conv2d(x, W, B, **SETTINGS)
        for _ in range(50):
            pyconv.conv2d(*map(frameworks.torch.Tensor, (x, W, B)), out=frameworks.torch.Tensor(out), **SETTINGS)
            assert (out == wanted).all()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))
    assert len(backend.decisions) == 1


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', BEFORE)
def test_a_second_call_asks_for_no_geometry(name, kind, frameworks, backend, monkeypatch):
    wanted = outcome(later(KINDS[kind](frameworks))[name])
    call = later(KINDS[kind](frameworks))[name]
    for function in ('problem', 'convolved', 'channel_axis'):
        monkeypatch.setattr(_ops.geometries, function, no_geometry)
    assert same(outcome(call), wanted)


@pytest.mark.parametrize('kind', KINDS)
def test_what_is_handed_over_is_so_once_where_it_takes_part(kind, frameworks, backend, waits):
    """In the first call, in those that are known, and where `out` lies as none did before."""
    gpu = KINDS[kind](frameworks)
    for _ in range(3):
        for layout in (np.ascontiguousarray, np.asfortranarray):
            x, w, unused = map(DLPack, (X, W, np.empty(100, 'f4')))
            pyconv.convolution(gpu(X), gpu(W), None, *GEOMETRY, fgrad_input=unused)
            pyconv.convolution(x, w, None, *GEOMETRY, out=gpu(layout(np.empty_like(Y))), fgrad_input=unused)
            pyconv.convolution_backward(gpu(Y), gpu(X), gpu(W), *GEOMETRY, (True, False, True), finput=unused)
            assert [x.ready_on, w.ready_on, unused.ready_on] == [[1], [1], []]
        out = DLPack(np.empty_like(Y))
        pyconv.conv2d(gpu(X), gpu(W), **SETTINGS, out=out)
        assert out.ready_on == [1]


@pytest.mark.parametrize('kind', KINDS)
def test_a_refused_call_has_nothing_handed_over_that_it_would_write_to(kind, frameworks, backend):
    gpu = KINDS[kind](frameworks)
    for stride in (2, 0, 2, 0):
        out, buffer = DLPack(np.empty((2, 6, 3, 3), 'f4')), DLPack(np.empty(100, 'f4'))
        if stride:
            pyconv.conv2d(gpu(X), gpu(W), stride=stride, padding=1, groups=2, out=out, finput=buffer)
        else:
            with pytest.raises(ValueError, match='^stride must be'):
                pyconv.conv2d(gpu(X), gpu(W), stride=stride, padding=1, groups=2, out=out, finput=buffer)
        assert bool(out.ready_on) == bool(buffer.ready_on) == bool(stride)


class Unreadable(DLPack):
    def __dlpack__(self, **keywords):
        raise MemoryError


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('word', ['dlpack', 'interface', 'torch'])
def test_a_buffer_that_takes_no_part_need_not_be_readable(word, kind, frameworks, backend, monkeypatch):
    """Nor known to the driver."""
    def device_of(address):
        if address == array.ctypes.data:
            raise RuntimeError('no CUDA call works in this process any more')
        return 0

    def data_ptr():
        raise RuntimeError('no memory')

    gpu, array = KINDS[kind](frameworks), np.empty(100, 'f4')
    monkeypatch.setattr(streams, 'device_of', device_of)
    buffer = {'dlpack': Unreadable, 'interface': Interface, 'torch': frameworks.torch.Tensor}[word](array)
    buffer.data_ptr = data_ptr
    for _ in range(3):
        found = pyconv.convolution(gpu(X), gpu(W), None, *GEOMETRY, fgrad_input=buffer)
        assert (found.host == pyconv.conv2d(X, W, **SETTINGS)).all()


@pytest.mark.parametrize('name', BEFORE)
def test_arrays_of_others_may_say_that_they_are_on_a_gpu_as_torch_s_do(name, frameworks, backend, monkeypatch):
    class Other(Interface):
        is_cuda = True

    wanted = outcome(later(Interface)[name])
    monkeypatch.delitem(sys.modules, 'torch')
    for _ in range(2):
        assert same(outcome(later(Other)[name]), wanted)


def test_few_calls_are_kept(backend, monkeypatch):
    monkeypatch.setattr(calls, 'KEPT', 3)
    w = np.ones((1, 1, 2, 2), 'f4')
    for size in range(4, 12):
        x = np.ones((1, 1, size, size), 'f4')
        for step in (1, 2, 3, 4):
            out = np.empty((1, 1, size - 1, 4 * size), 'f4')[..., ::step][..., :size - 1]
            pyconv.conv2d(Interface(x), Interface(w), out=Interface(out))
            assert (out == 4).all()
            assert 1 <= len(backend.known) <= 3


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
            ((Interface(X, mask=Interface(X)), w), {}, 'input must have no mask; got a masked array'),
            ((x, Interface(W.copy(), device=1)), {}, 'weight must be on the device of input, cuda:0; got cuda:1'),
            ((x, w), {'out': Interface(Y.copy(), read_only=True)}, 'out must be writeable; got a read-only array'),
            ((x, w), {'finput': Interface(np.empty(40, 'f4'))}, 'finput must have at least 50 elements; got 40')):
        with pytest.raises((TypeError, ValueError)) as caught:
            conv(*operands, **{'out': out, 'finput': Interface(buffer), **more})
        assert str(caught.value) == text
    assert len(backend.runs) == runs


@pytest.mark.parametrize('kind', ['torch', 'cupy', 'interface'])
def test_no_array_is_kept(kind, frameworks, backend):
    gpu = KINDS[kind](frameworks)
    arrays = [gpu(array) for array in (X.copy(), W.copy(), np.empty_like(Y), scratch(), np.empty_like(X))]
    for stream in (None, 704, None):
        x, w, out, buffer, grad_x = arrays
        pyconv.conv2d(x, w, **SETTINGS, out=out, finput=buffer, stream=stream)
        pyconv.convolution_backward(out, x, w, *GEOMETRY, (True, True, True), out=(grad_x, None, None), stream=stream)
        pyconv.conv_bias(out, stream=stream)
    backend.runs.clear()
    gone = [weakref.ref(array) for array in arrays]
    del x, w, out, buffer, grad_x, arrays
    gc.collect()
    assert backend.decisions and backend.known and [array() for array in gone] == [None] * 5


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
        out = np.empty((2, 16, 20 * step), 'f4')[..., ::step]
        assert (pyconv.unfold(Interface(X), 2, out=Interface(out)).host == pyconv.unfold(X, 2)).all()
        [decision] = backend.decisions.values()
        assert len(decision._launches) <= 3
