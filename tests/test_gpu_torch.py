"""pyconv.torch over CUDA tensors that have no memory, and over the CPU's that pretend to be a GPU's. No GPU runs."""
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import gpu_fakes
import pyconv
import pyconv.torch as door
import pyconv.torch._maps as maps
from pyconv._gpu.arrays import DTYPES, DeviceArray, TorchKind
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
        return self.read('out', torch.full(shape, torch.nan, dtype=getattr(torch, dtype.name)))


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


def test_allow_tf32_is_a_bool():
    with pytest.raises(TypeError, match='^allow_tf32 must be True or False; got 1$'):
        door.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 2), allow_tf32=1)
