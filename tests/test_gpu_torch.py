"""pyconv.torch over CUDA tensors that have no memory, and over the CPU's that pretend to be a GPU's. No GPU runs."""
import gc
import sys
import weakref
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import gpu_fakes
import pyconv
import pyconv.torch as door
import pyconv.torch._maps as maps
from pyconv._gpu import kinds
from pyconv._gpu.arrays import DTYPES, DeviceArray
from pyconv._gpu.kinds import TorchKind
from pyconv._integers import steps_of
from pyconv.torch import _call


@pytest.fixture
def backend(monkeypatch):
    backend = gpu_fakes.Backend()
    monkeypatch.setitem(sys.modules, 'pyconv._cuda', backend)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: SimpleNamespace(cuda_stream=640 + device))
    return backend


# CUDA tensors without memory: what they are taken for


class Asked:
    """A plan that remembers what it would have run on."""

    def __init__(self, *asked, **more):
        self.asked = (*asked, more)

    def steps(self, first, second, out, bias, scratch, accumulate):
        map, _, dtype, *_, more = self.asked

        def run(stream, **_):
            self.runs.append((map, dtype.name, more, first.strides, out.strides, stream))
        yield gpu_fakes.step(run, {})


@pytest.fixture
def runs(backend, monkeypatch):
    """(map, dtype, device and allow_tf32, strides of the first factor and of the result, stream) of each run."""
    Asked.runs = []
    monkeypatch.setattr(backend, 'plan', Asked, raising=False)
    monkeypatch.setattr(_call, '_len_torch_dispatch_stack', lambda: 0)  # or tensors without memory go to the operator
    monkeypatch.setattr(_call, '_answer_for_operators', lambda *tensors: False)
    monkeypatch.setattr(FakeTensor, 'data_ptr', lambda tensor: 4096)  # of its own it has 0, which is refused
    for room in ('_arguments', '_known_on_gpu'):
        monkeypatch.setattr(f'pyconv.{room}.check_tensors', lambda *named: None)  # which refuses their class
    with FakeTensorMode(), torch.no_grad():
        yield Asked.runs


def tensors(dtype=torch.float32, device='cuda:1'):
    """Input, weight and bias of a conv2d."""
    return [torch.empty(shape, dtype=dtype, device=device) for shape in ((2, 3, 6, 5), (4, 3, 3, 3), (4,))]


PLAIN, LAST, OUT, OUT_LAST = (90, 30, 5, 1), (90, 1, 15, 3), (48, 12, 3, 1), (48, 1, 12, 4)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize('last', [False, True], ids=['contiguous', 'channels last'])
def test_cuda_tensors(dtype, last, runs):
    x, w, b = tensors(dtype)
    y = door.conv2d(in_order(x, last), w, b)
    assert (y.device, y.dtype, tuple(y.shape)) == (torch.device('cuda:1'), dtype, (2, 4, 4, 3))
    more = {'allow_tf32': False, 'device': 1}
    assert runs == [('forward', str(dtype)[6:], more, LAST if last else PLAIN, OUT_LAST if last else OUT, 641)]
    assert y.stride() == runs[0][4]


def in_order(tensor, last):
    return tensor.to(memory_format=torch.channels_last) if last else tensor


@pytest.mark.parametrize('last', [False, True], ids=['contiguous', 'channels last'])
def test_no_memory_for_a_result(last, runs, monkeypatch):
    x, w, _ = tensors()
    x = in_order(x, last)

    make = torch.empty if last else torch.empty_strided

    def full(*args, device, **kwargs):
        if device == 'meta':  # for the mode itself
            return make(*args, device=device, **kwargs)
        raise torch.OutOfMemoryError('CUDA out of memory')

    monkeypatch.setattr(torch, make.__name__, full)
    monkeypatch.setattr(kinds, '_in_torch', kinds._in_torch.__wrapped__)  # which keeps what makes tensors
    with pytest.raises(MemoryError) as caught:
        door.conv2d(x, w)
    assert str(caught.value) == (
        'cuda:1 must have 384 bytes free for an array of shape (2, 4, 4, 3), dtype float32; got OutOfMemoryError')
    assert not runs


@pytest.mark.parametrize('last', [False, True], ids=['contiguous', 'channels last'])
def test_a_result_is_made_after_the_checks_of_a_gpu(last, runs, backend, monkeypatch):
    def refused(*args, **kwargs):
        raise ValueError('stride must be small')

    x, w, _ = tensors()
    x = in_order(x, last)
    monkeypatch.setattr(backend, 'plan', refused)
    monkeypatch.setattr(torch, 'empty', lambda *args, **kwargs: pytest.fail('a result was made'))
    with pytest.raises(ValueError, match='^stride must be small$'):
        door.conv2d(x, w)


def test_the_plain_functions_take_them_too(runs):
    y = pyconv.conv2d(*tensors(torch.bfloat16))
    assert y.device == torch.device('cuda:1') and y.dtype == torch.bfloat16 and y.is_contiguous()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_autocast(dtype, runs):
    before = torch.get_autocast_dtype('cuda')
    torch.set_autocast_enabled('cuda', True)
    torch.set_autocast_dtype('cuda', dtype)
    try:
        x, w, b = tensors()
        assert door.conv2d(x, w.to(torch.float16), b).dtype == dtype
        assert door.conv_transpose2d(x, torch.empty(3, 4, 3, 3, device='cuda:1'), b, allow_tf32=True).dtype == dtype
        assert [run[1] for run in runs] == [str(dtype)[6:]] * 2 and runs[1][2]['allow_tf32']
        assert door.conv2d(*tensors(torch.float64)).dtype == torch.float64  # which autocast leaves as it is
        with pytest.raises(TypeError, match='^weight must be on the device of input, cuda:1; got an array in main '):
            door.conv2d(x, w.cpu(), b)
    finally:
        torch.set_autocast_enabled('cuda', False)
        torch.set_autocast_dtype('cuda', before)


DEVICES = {
    'weight on the host': (lambda x, w, b: (x, w.cpu(), b),
                           'weight must be on the device of input, cuda:1; got an array in main memory ({})'),
    'bias on the host': (lambda x, w, b: (x, w, b.cpu()),
                         'bias must be on the device of input, cuda:1; got an array in main memory ({})'),
    'input on the host': (lambda x, w, b: (x.cpu(), w, b),
                          'weight must be in main memory, as input is; got an array on cuda:1'),
    'weight elsewhere': (lambda x, w, b: (x, torch.empty(w.shape, device='cuda:0'), b),
                         'weight must be on the device of input, cuda:1; got cuda:0'),
}


@pytest.mark.parametrize('function', [door.conv2d, pyconv.conv2d], ids=['door', 'plain'])
@pytest.mark.parametrize(('mix', 'text'), DEVICES.values(), ids=DEVICES)
def test_mixed_devices(function, mix, text, runs):
    with pytest.raises(TypeError) as caught:
        function(*mix(*tensors()))
    assert str(caught.value) == text.format('FakeTensor')


def test_dtypes_of_a_gpu(runs):
    with pytest.raises(TypeError) as caught:
        door.conv2d(*tensors(torch.int32))
    assert str(caught.value) == (
        'input must have dtype torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64 or '
        'torch.complex128; got torch.int32')


@pytest.mark.parametrize('place', [0, 1])
@pytest.mark.parametrize('function', [door.conv2d, door.conv_transpose2d], ids=['plain', 'transposed'])
def test_a_tensor_without_memory_is_called_by_its_name(function, place, runs, monkeypatch):
    operands = torch.empty(2, 3, 6, 5, device='cuda:1'), torch.empty(3, 3, 3, 3, device='cuda:1')
    shape = operands[place].shape
    monkeypatch.setattr(FakeTensor, 'data_ptr', lambda tensor: 0 if tensor.shape == shape else 4096)
    with pytest.raises(TypeError) as caught:
        function(*operands)
    name = ('input', 'weight')[place]
    assert str(caught.value) == f'{name} must have memory of its own; got a FakeTensor without'


# the CPU's tensors as a GPU's: values and derivatives


class HostKind(TorchKind):
    """torch's kind over main memory."""

    def read(self, name, value):
        return DeviceArray(value, value.data_ptr(), tuple(value.shape), value.stride(),
                           DTYPES[str(value.dtype).removeprefix('torch.')], 0, self)

    def made(self, shape, dtype, device):
        return self.read_new(torch.full(shape, torch.nan, dtype=getattr(torch, dtype.name)))


@pytest.fixture
def pretending(backend, monkeypatch):
    kind, names = HostKind(), []
    backend.names = names  # of the tensors that were read

    def array_of(name, tensor):
        names.append(name)
        return kind.read(name, tensor.detach().resolve_neg())

    monkeypatch.setattr(maps, 'array_of', array_of)
    return backend


def integers(*shape, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(0).integers(-3, 4, shape).astype(float)).to(dtype)


@pytest.mark.parametrize('dtype', [torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize('order', [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
def test_values_and_gradients(transposed, order, dtype, pretending):
    ours, theirs = ((door.conv_transpose2d, torch.conv_transpose2d) if transposed else (door.conv2d, torch.conv2d))
    shapes = (2, 3, 6, 5), (3, 4, 3, 3) if transposed else (4, 3, 3, 3), (4,)
    results = []
    for function, type_ in ((ours, dtype), (theirs, torch.float64)):
        x, w, b = (integers(*shape, dtype=type_).requires_grad_() for shape in shapes)
        with torch.no_grad():
            x = x.to(memory_format=order).requires_grad_()
        y = function(x, w, b, stride=2, padding=1)
        grad_output = integers(*y.shape, dtype=type_).to(memory_format=order)
        gradients = torch.autograd.grad(y, (x, w, b), grad_output, create_graph=True)
        second = torch.autograd.grad(gradients[0].sum() + gradients[1].sum(), (x, w))
        results.append((y, *gradients, *second))
    for answer, wanted in zip(*results):
        assert answer.dtype == dtype and torch.equal(answer.double(), wanted)
    assert results[0][0].is_contiguous(memory_format=order) and results[0][1].is_contiguous(memory_format=order)
    assert {run.stream for run in pretending.runs} == {640}
    assert all(run.first.owner is not None and run.first.kind.stream(0) == 640 for run in pretending.runs)


@pytest.mark.parametrize('function', [door.conv1d, door.conv_transpose1d], ids=['plain', 'transposed'])
def test_gradients_call_tensors_by_their_names(function, pretending):
    x, w, b = (integers(*shape).requires_grad_() for shape in ((1, 2, 5), (2, 2, 2), (2,)))
    gradients = torch.autograd.grad(function(x, w, b).sum(), (x, w))
    assert len(gradients) == 2 and pretending.names[:5] == ['input', 'weight', 'bias', 'grad_output', 'weight']
    assert sorted(pretending.names[5:]) == ['grad_output', 'input']


@pytest.mark.parametrize('allow_tf32', [False, True])
def test_tf32_is_for_all_products_or_none(allow_tf32, pretending):
    x, w = integers(1, 2, 5).requires_grad_(), integers(3, 2, 2).requires_grad_()
    gradients = torch.autograd.grad(door.conv1d(x, w, allow_tf32=allow_tf32).sum(), (x, w), create_graph=True)
    torch.autograd.grad(sum(gradient.sum() for gradient in gradients), (x, w))
    assert {map for map, *_ in pretending.plans} == {'forward', 'grad_input', 'grad_weight'}
    assert {plan[3] for plan in pretending.plans} == {allow_tf32}


def test_an_algorithm_of_cuda_tensors(runs, monkeypatch):
    """A GPU has others than main memory, and of every type its own."""
    x, w, b = tensors()
    asked = []
    monkeypatch.setattr(Asked, '__init__', lambda self, *plan, **more: asked.append(plan[3]) or setattr(
        self, 'asked', (*plan, more)))
    for algorithm in ('tf32x3', 'gemm', 'tf32x3'):
        door.conv2d(x, w, b, algorithm=algorithm)
    assert asked == ['tf32x3', 'gemm'] and len(runs) == 3  # the third is known
    with pytest.raises(ValueError, match="^algorithm must be one of 'auto', 'gemm', .* for float32 on a GPU; got"):
        door.conv2d(x, w, b, algorithm='winograd')


def test_allow_tf32_is_a_bool():
    with pytest.raises(TypeError, match='^allow_tf32 must be True or False; got 1$'):
        door.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 2), allow_tf32=1)


# calls like one before


@pytest.fixture
def as_cuda(backend, monkeypatch):
    """The CPU's tensors say that they are a GPU's, and are read as these are."""
    monkeypatch.setattr(torch.Tensor, 'is_cuda', property(lambda tensor: True))
    monkeypatch.setattr(torch.Tensor, 'get_device', lambda tensor: 0)
    monkeypatch.setattr(kinds, '_in_torch', lambda torch, shape, dtype, device: (
        steps_of(shape), partial(torch.empty_strided, shape, steps_of(shape), dtype=getattr(torch, dtype.name))))
    return backend


X, W, B = integers(2, 4, 6, 5), integers(6, 2, 3, 3), integers(6)
Y = door.conv2d(X, W, groups=2)
CONSTANT = {'padding': 1, 'padding_mode': 'constant'}


class Named(torch.Tensor):
    """A subclass that does nothing."""


def conv(x=X, w=W, b=B, **settings):
    return door.conv2d(x, w, b, **{'groups': 2, **settings})


def gradients(function=conv, arguments=(X, W, B), **more):
    given = [argument.detach().clone().requires_grad_() for argument in arguments]
    y = function(*given, **more)
    first = torch.autograd.grad((y * y).sum(), given, create_graph=True)
    return y, *first, *torch.autograd.grad(sum(one.sum() for one in first), given)


def transposed(*given, **more):
    return door.conv_transpose2d(*(given or (Y, W)), **{'groups': 2, **more})


def cropped(x, pad):
    return gradients(arguments=(x, W, B), padding=((pad, 1), (0, 0)), padding_mode='circular')


def freed(part, tensor=X):
    """A tensor whose memory was given back, of which a view elsewhere than at the start has an address still."""
    memory = torch.cat([tensor[:1], tensor])
    tensor = memory[part]
    memory.untyped_storage().resize_(0)
    return tensor


MEMORY = np.zeros(X.numel() * 8 + 8, np.uint8)
MISPLACED = torch.frombuffer(MEMORY, dtype=X.dtype, offset=4, count=X.numel()).reshape(X.shape)


def dual():
    with torch.autograd.forward_ad.dual_level():
        return torch.autograd.forward_ad.unpack_dual(conv(torch.autograd.forward_ad.make_dual(X, X)))


def autocast():
    with torch.autocast('cpu', torch.float16):
        return conv(X.float(), W.float(), B.float())


def is_grads_batched():
    w = W.clone().requires_grad_()
    return torch.autograd.grad(conv(w=w), w, torch.stack([Y, 2 * Y]), is_grads_batched=True)[0]


BEFORE = {
    'forward': conv, 'gradients': gradients, 'last': lambda: conv(X.to(memory_format=torch.channels_last)),
    'transposed': transposed, 'a constant': lambda: conv(**CONSTANT, padding_value=2),
    'gradients of a transposed one': lambda: gradients(transposed, (Y, W)), 'cropped': lambda: cropped(X, -1),
}
LATER = {
    **BEFORE, 'cropped to the same': lambda: cropped(integers(2, 4, 7, 5), -2), 'no bias': lambda: conv(b=None),
    'other values': lambda: conv(2 * X, -W), 'unbatched': lambda: conv(X[0]), 'one sample': lambda: conv(X[:1]),
    'tf32': lambda: conv(allow_tf32=True), 'groups': lambda: conv(X[:, :2], groups=1),
    'float32': lambda: conv(X.float(), W.float(), B.float()), 'the constant 0': lambda: conv(**CONSTANT),
    'another constant': lambda: conv(**CONSTANT, padding_value=3),
    'gradients of a constant': lambda: gradients(**CONSTANT, padding_value=2),
    'gradients, last': lambda: gradients(arguments=(X.to(memory_format=torch.channels_last), W, B)),
    'in other steps': lambda: conv(X.transpose(2, 3).contiguous().transpose(2, 3)),
    'a view elsewhere': lambda: conv(torch.cat([X[:1], X])[1:]), 'a subclass': lambda: conv(X.as_subclass(Named)),
    'not for this memory': lambda: conv(MISPLACED), 'freed': lambda: conv(freed(slice(2))),
    'a freed view': lambda: conv(freed(slice(1, 3))), 'a freed weight': lambda: transposed(Y, freed(slice(1, 7), W)),
    'negated': lambda: conv(torch.complex(X, X).conj().imag), 'a wrong bias': lambda: conv(b=B[1:]),
    'another dtype': lambda: conv(w=W.float()), 'sparse': lambda: conv(X.to_sparse()),
    'zeros without memory': lambda: conv(torch._efficientzerotensor(X.shape, dtype=X.dtype)),
    'no samples': lambda: conv(X[:0]), 'a dual': dual, 'autocast': autocast, 'is_grads_batched': is_grads_batched,
    'inference mode': lambda: torch.inference_mode()(conv)(), 'jvp': lambda: torch.func.jvp(conv, (X, W), (X, 2 * W)),
    'vmap': lambda: torch.func.vmap(conv)(torch.stack([X, 2 * X])),
    'grad': lambda: torch.func.grad(lambda w: (conv(w=w)**2).sum())(W),
    'a padding that is none': lambda: conv(padding=-9), 'as transposed': lambda: transposed(Y, W, B[:4]),
}


def outcome(call):
    """What a call returns and how it lies, or the error that it raises."""
    try:
        found = call()
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error)
    return [(type(one), one.dtype, one.stride(), one.requires_grad, one.is_inference(), one.tolist())
            for one in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize('call', LATER.values(), ids=LATER)
def test_a_call_after_others_does_what_it_does_alone(call, as_cuda):
    first, alone = outcome(call), [(run.plan, run.first.strides, run.out.strides) for run in as_cuda.runs]
    as_cuda.decisions.clear()
    as_cuda.known.clear()
    for _ in range(2):
        before = [outcome(each) for each in BEFORE.values()]
    for _ in range(2):
        as_cuda.runs.clear()
        assert outcome(call) == first
        assert [(run.plan, run.first.strides, run.out.strides) for run in as_cuda.runs] == alone
    assert [outcome(each) for each in BEFORE.values()] == before


def test_maps_of_tensors_that_lie_alike_are_told_apart(as_cuda):
    given, outcomes = (X, integers(4, 4, 3, 3)), []
    for function in (door.conv2d, torch.conv2d, door.conv2d):
        outcomes.append(gradients(function, given, padding=1))
    assert all(torch.equal(one, other) for found in outcomes[::2] for one, other in zip(found, outcomes[1]))


@pytest.mark.parametrize('call', BEFORE.values(), ids=BEFORE)
def test_a_second_call_reads_no_array_and_decides_nothing(call, as_cuda, monkeypatch):
    first, plans = outcome(call), len(as_cuda.plans)
    assert plans and as_cuda.known
    for name in ('array_of', 'maker_of', 'evaluate'):
        monkeypatch.setattr(maps, name, None)
    assert outcome(call) == first and len(as_cuda.plans) == plans


def test_what_is_known_keeps_no_tensor(as_cuda):
    x, w = X.to(memory_format=torch.channels_last), W.clone()
    kept = [weakref.ref(tensor) for tensor in (x, w, conv(x, w))]
    for _ in range(2):
        kept.append(weakref.ref(conv(x, w)))
    as_cuda.runs.clear()
    del x, w
    gc.collect()
    assert as_cuda.known and not any(one() is not None for one in kept)


def test_a_known_call_runs_on_the_current_stream_and_says_where_no_memory_is_left(as_cuda, monkeypatch):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError('CUDA out of memory')

    last = X.to(memory_format=torch.channels_last)
    for stream in (640, 7):
        monkeypatch.setattr(torch.cuda, 'current_stream', lambda device, at=stream: SimpleNamespace(cuda_stream=at))
        conv()
        conv(last)
        assert [run.stream for run in as_cuda.runs[-2:]] == [stream] * 2
    monkeypatch.setattr(torch, 'empty_strided', full)
    runs = len(as_cuda.runs)
    with pytest.raises(MemoryError, match=r'^cuda:0 must have 1152 bytes free .*; got OutOfMemoryError$'):
        conv()
    assert len(as_cuda.runs) == runs
