"""The streams of calls on GPU arrays, over fakes: which one a call runs on, what waits, whose memory it is."""
import gc
import weakref
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import pyconv
from gpu_fakes import (  # noqa: F401, the fixtures
    SETTINGS,
    B,
    DLPack,
    Interface,
    W,
    X,
    Y,
    backend,
    conv,
    frameworks,
    integers,
    maker,
    waits,
)
from pyconv._gpu import launch, streams
from pyconv._gpu.streams import device_of
from test_cuda_launch import RESTART, Status

POISONED = RESTART.format('CUDA_ERROR_ILLEGAL_ADDRESS')

FORMS = {
    'handle': (4096, 4096), 'legacy': (1, 0), 'null': (0, 0), 'per thread': (2, 2), 'numpy integer': (np.int64(8), 8),
    'torch': (SimpleNamespace(cuda_stream=4096), 4096), 'CuPy': (SimpleNamespace(ptr=4096), 4096),
    'integer-like': (SimpleNamespace(handle=np.int64(4096)), 4096),
    'ctypes': (SimpleNamespace(handle=SimpleNamespace(value=4096)), 4096),
    'null of ctypes': (SimpleNamespace(handle=SimpleNamespace(value=None)), 0),
    'protocol': (SimpleNamespace(__cuda_stream__=lambda: (0, 4096), ptr=5), 4096),
}


@pytest.mark.parametrize(('stream', 'handle'), FORMS.values(), ids=FORMS)
def test_forms_of_streams(stream, handle, backend):
    x, w, y = Interface(X), Interface(W), Interface(Y)
    pyconv.conv2d(x, w, **SETTINGS, stream=stream)
    pyconv.conv_bias(y, stream=stream)
    pyconv.fold(pyconv.unfold(x, 2, stream=stream), (6, 5), 2, stream=stream)
    assert [run.stream for run in backend.runs] == [handle]
    assert backend.streams == [handle] * 3


@pytest.mark.parametrize('kind', ['torch', 'cupy'])
def test_a_framework_s_current_stream(kind, frameworks, backend, waits):
    gpu, frameworks.current = maker(kind, frameworks), 640
    for times in range(3):  # the later ones are known
        pyconv.conv2d(gpu(X), gpu(W), **SETTINGS)
        assert backend.runs[-1].stream == 640 and not waits and frameworks.entered == times * [704]
        pyconv.conv2d(gpu(X), gpu(W), **SETTINGS, stream=704)  # memory comes from that stream's pool
        assert backend.runs[-1].stream == 704 and not waits and frameworks.entered == (times + 1) * [704]


@pytest.mark.parametrize('kind', ['torch', 'cupy'])
def test_a_current_stream_is_that_of_the_arrays_device(kind, frameworks, backend, monkeypatch):
    """Whichever device is the current one."""
    def current(device):
        return SimpleNamespace(cuda_stream=640 + device, ptr=640 + device)

    monkeypatch.setattr(frameworks.torch.cuda, 'current_stream', current)
    monkeypatch.setattr(frameworks.cupy.cuda, 'get_current_stream', current)
    for device in (1, 0, 1, 0):
        x, w, out = (maker(kind, frameworks)(array, device=device) for array in (X, W, np.empty_like(Y)))
        conv(x, w, out=out)
        assert backend.runs[-1].stream == 640 + device


@pytest.mark.parametrize('stream', [0, 1, SimpleNamespace(cuda_stream=0)])
def test_torch_s_memory_for_the_legacy_default_stream_is_that_stream_s(stream, frameworks, backend, waits):
    """torch takes no stream of handle 0: it would make one of its own, whose memory nothing orders."""
    frameworks.current = 640
    pyconv.conv2d(frameworks.torch.Tensor(X), frameworks.torch.Tensor(W), **SETTINGS, stream=stream)
    assert backend.runs[-1].stream == 0 and frameworks.entered == ['default of 0']


def test_the_first_operand_s_stream_is_used_and_the_others_waited_for(frameworks, backend, waits):
    answer = pyconv.conv2d(Interface(X, stream=64), Interface(W, stream=128), Interface(B, stream=64), **SETTINGS)
    assert backend.runs[-1].stream == 64 and waits == [(64, 128, 0), (128, 64, 0)]
    assert answer.__cuda_array_interface__['stream'] == 64
    waits.clear()
    pyconv.conv2d(Interface(X, stream=1), Interface(W), **SETTINGS)  # 1 is the legacy default stream, as 0 is
    assert backend.runs[-1].stream == 0 and not waits


def test_a_given_stream_waits_for_those_that_a_protocol_names(frameworks, backend, waits):
    frameworks.current = 640
    out = Interface(np.empty_like(Y), stream=32)
    scratch = frameworks.torch.Tensor(np.empty(50, 'f4'))
    pyconv.conv2d(Interface(X, stream=64), Interface(W), **SETTINGS, out=out, finput=scratch, stream=704)
    assert backend.runs[-1].stream == 704 and sorted(waits) == [(704, 32, 0), (704, 64, 0)]


@pytest.mark.parametrize('version', [0, 1])
def test_what_dlpack_gives_is_ready_on_the_legacy_default_stream(version, backend):
    """DLPack numbers it 1."""
    x, out = DLPack(X, version), DLPack(np.empty_like(Y))
    pyconv.conv2d(x, Interface(W), **SETTINGS, out=out)
    assert backend.runs[-1].stream == 0 and {*x.ready_on, *out.ready_on} == {1}


DLPACK_CALLS = {
    'conv': lambda gpu, on: conv(
        gpu(X), gpu(W), gpu(B), **on, out=gpu(np.empty_like(Y)), finput=gpu(np.empty(300, 'f4'))),
    'again': lambda gpu, on: [conv(gpu(X), gpu(W), **on) for _ in range(2)],
    'old': lambda gpu, on: conv(gpu(X, 0), gpu(W, 0), **on),
    'to input': lambda gpu, on: pyconv.conv2d_input(X.shape, gpu(W), gpu(Y), **SETTINGS, **on),
    'to weight': lambda gpu, on: pyconv.conv2d_weight(gpu(X), W.shape, gpu(Y), **SETTINGS, **on),
    'of columns': lambda gpu, on: pyconv.conv2d_weight(
        None, (6, 4, 1, 1), gpu(integers(2, 6, 6, 5)), finput=gpu(X.reshape(2, 4, 30)), **on),
    'bias': lambda gpu, on: pyconv.conv_bias(gpu(Y), out=gpu(np.empty(6, 'f4')), **on),
    'columns': lambda gpu, on: pyconv.unfold(gpu(X), 2, **on),
    'sum': lambda gpu, on: pyconv.fold(gpu(np.ones((2, 16, 20), 'f4')), (6, 5), 2, out=gpu(np.empty_like(X)), **on),
    'backward': lambda gpu, on: pyconv.convolution_backward(
        *map(gpu, (Y, X, W)), (2, 1), 1, 1, False, 0, 2, (True, False, False),
        out=(gpu(np.empty_like(X)), None, None), fgrad_input=gpu(np.empty(300, 'f4')), **on),
    'twice': lambda gpu, on: pyconv.convolution_double_backward(
        *map(gpu, (X, W, B, Y, W, X)), (2, 1), 1, 1, False, 0, 2, (True, True, True), **on),
    'tangent': lambda gpu, on: pyconv.conv_jvp(*map(gpu, (X, W, X, W, B)), (2, 1), 1, 1, 2, **on),
}


@pytest.mark.parametrize(('stream', 'ready_on'), [(704, 704), (SimpleNamespace(ptr=704), 704), (2, 2), (0, 1), (1, 1)])
@pytest.mark.parametrize('call', DLPACK_CALLS.values(), ids=DLPACK_CALLS)
def test_what_dlpack_gives_is_ready_on_the_stream_of_the_call(call, stream, ready_on, backend, waits):
    """Its library orders nothing where that is its own stream, which may be captured in a graph; as ever in the next
    call."""
    given = []

    def gpu(array, version=1):
        given.append(DLPack(array, version))
        return given[-1]

    for more, wanted in (({'stream': stream}, ready_on), ({}, 1)):
        call(gpu, more)
        assert given and {handle for array in given for handle in array.ready_on or (None,)} == {wanted} and not waits
        given.clear()


def test_a_stream_of_another_call_is_asked_of_nobody(backend):
    """It may be destroyed."""
    conv(DLPack(X), stream=704)
    array = DLPack(X)
    with pytest.raises(TypeError, match='^out must be in main memory'):
        pyconv.conv2d(X, W, **SETTINGS, out=array)
    assert array.ready_on == [1]


def test_other_kinds_are_waited_for_where_no_stream_is_given(frameworks, backend, waits):
    frameworks.current = 640
    out = frameworks.torch.Tensor(np.empty_like(Y))
    pyconv.conv2d(DLPack(X), DLPack(W), **SETTINGS, out=out)  # DLPack hands over on the legacy default stream
    assert backend.runs[-1].stream == 0 and waits == [(0, 640, 0), (640, 0, 0)]
    waits.clear()
    pyconv.conv2d(DLPack(X), DLPack(W), **SETTINGS, out=out, stream=704)
    assert not waits
    scratch = frameworks.torch.Tensor(np.empty(50, 'f4'))
    pyconv.conv2d(Interface(X, 2), Interface(W, 2), **SETTINGS, finput=scratch)
    assert waits == [(0, 640, 0), (640, 0, 0)]


@pytest.mark.parametrize('kind', ['cupy', 'interface', 'version 2', 'dlpack'])
def test_streams_that_were_waited_for_wait_in_turn(kind, frameworks, backend, waits, monkeypatch):
    """Only after the launch: before they read what it writes, and before memory that it reads is another array's."""
    gpu, frameworks.current = maker(kind, frameworks), 640
    monkeypatch.setattr(frameworks.cupy.cuda, 'get_current_stream', lambda device: SimpleNamespace(ptr=96))
    monkeypatch.setattr(backend, 'runs', waits)
    for more in ({'out': gpu(np.empty_like(Y))}, {'finput': gpu(np.empty(50, 'f4'))}):
        waits.clear()
        conv(*map(frameworks.torch.Tensor, (X, W)), **more)
        before, run, after = waits
        other = 96 if kind == 'cupy' else 0
        assert (before, run.stream, after) == ((640, other, 0), 640, (other, 640, 0))


def test_an_out_that_names_a_stream_is_read_there_after_it_is_written(frameworks, waits):
    conv(out=Interface(np.empty_like(Y), stream=32))
    assert waits == [(0, 32, 0), (32, 0, 0)]


def test_a_result_keeps_the_stream_that_it_names(frameworks, waits):
    """And what is computed from it: an object may destroy its stream when it dies."""
    class Owned:
        ptr = 704

    given = Owned()
    gone = weakref.ref(given)
    answer = conv(stream=given)
    del given
    answer = pyconv.conv_bias(pyconv.conv2d(answer, Interface(integers(6, 6, 1, 1))))
    assert answer.__cuda_array_interface__['stream'] == 704 and gone()
    del answer
    gc.collect()
    assert not gone()
    own = frameworks.numba.external_stream(64)
    assert conv(stream=own).stream is own


@pytest.mark.parametrize(('stream', 'lent'), [(None, []), (640, []), (704, [704]), (0, ['default of 0'])])
def test_torch_keeps_memory_that_a_given_stream_uses(stream, lent, frameworks, backend, waits):
    """A tensor may be freed as soon as the call has returned."""
    tensor, frameworks.current = frameworks.torch.Tensor, 640
    x, w, b, y, out, buffer = map(tensor, (X, W, B, Y, np.empty_like(Y), np.empty(50, 'f4')))
    for times in (1, 2, 3):  # the later ones are known
        conv(x, w, b, out=out, finput=buffer, stream=stream)
        pyconv.conv_bias(y, stream=stream)
        assert [each.lent for each in (x, w, b, y, out, buffer)] == [times * lent] * 6 and not waits


@pytest.fixture
def sums(backend, monkeypatch):
    """Launches of a bias's gradient, which fail where `fail` is set."""
    sums, launched = SimpleNamespace(fail=False), backend.summed

    def summed(**given):
        if sums.fail:
            raise MemoryError('the GPU has no memory left')
        launched(**given)

    monkeypatch.setattr(backend, 'summed', summed)
    return sums


@pytest.mark.parametrize('known', [False, True])
@pytest.mark.parametrize('last', ['tensor', 'interface', 'no memory'])
def test_what_is_in_a_stream_stays_lent_and_written_where_the_rest_fails(
        last, known, frameworks, backend, waits, sums):
    """Where the third result is not launched, the other two are computed all the same; where it has no memory, none."""
    tensors = [frameworks.torch.Tensor(array.copy()) for array in (Y, X, W, X, W, np.zeros(300, 'f4'))]
    y, x, w, to_x, to_w, finput = tensors
    makers = {'tensor': frameworks.torch.Tensor, 'interface': Interface, 'no memory': lambda array: None}
    to_bias = makers[last](B.copy())

    def call():
        pyconv.convolution_backward(
            y, x, w, (2, 1), 1, 1, False, 0, 2, (True,) * 3, out=(to_x, to_w, to_bias), stream=704, finput=finput)

    if known:
        call()
    sums.fail = frameworks.full = True
    with pytest.raises(MemoryError):
        call()
    calls = 1 + known
    assert [run.stream for run in backend.runs] == [704] * 2 * (known if last == 'no memory' else calls) and not waits
    assert [each.lent for each in tensors] == [[704] * calls] * 6
    assert [each.writes for each in tensors] == [0] * 3 + [calls] * 3


@pytest.mark.parametrize('known', [False, True])
def test_other_streams_wait_for_what_is_in_a_stream_where_the_rest_fails(known, frameworks, waits, sums):
    scratch, frameworks.current = frameworks.torch.Tensor(np.empty(50, 'f4')), 640
    y, x, w, to_x, to_b = map(Interface, (Y, X, W, np.empty_like(X), np.empty_like(B)))

    def call():
        waits.clear()
        pyconv.convolution_backward(
            y, x, w, (2, 1), 1, 1, False, 0, 2, (True, False, True), out=(to_x, None, to_b),
            fgrad_input=scratch)

    if known:
        call()
    sums.fail = True
    with pytest.raises(MemoryError):
        call()
    assert waits == [(0, 640, 0), (640, 0, 0)]


def test_an_out_of_a_bias_counts_as_written_where_its_launch_fails(frameworks, backend, sums):
    y, out = frameworks.torch.Tensor(Y), frameworks.torch.Tensor(np.empty_like(B))
    for more in ({'batched': 1}, {'stream': 'none'}, {'accumulate': 1}):  # refused before
        with pytest.raises(TypeError):
            pyconv.conv_bias(y, out=out, **more)
    assert out.writes == 0
    pyconv.conv_bias(y, out=out)
    sums.fail = True
    for writes in (2, 3):  # known, and not
        with pytest.raises(MemoryError):
            pyconv.conv_bias(y, out=out)
        assert out.writes == writes
        backend.known.clear()


class Either:
    """In main memory, of a class whose arrays may lie elsewhere."""

    def __init__(self, array):
        self.array = array

    @property
    def __cuda_array_interface__(self):
        raise AttributeError('in main memory')

    def __array__(self, dtype=None, copy=None):
        return self.array


@pytest.mark.parametrize('gpu', [Either, np.asarray])
@pytest.mark.parametrize('stream', ['x', 5])
def test_arrays_in_main_memory_have_no_stream(stream, gpu):
    streams.named.set(None)
    x, w, y = map(gpu, (X, W, Y))
    for call in (lambda: pyconv.conv2d(x, w, **SETTINGS, stream=stream), lambda: pyconv.conv_bias(y, stream=stream)):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == f'stream must be None for arrays in main memory; got {stream!r}'
    assert streams.named.get() is None and (pyconv.conv2d(x, w, **SETTINGS) == pyconv.conv2d(X, W, **SETTINGS)).all()


@pytest.mark.parametrize('unused', ['finput', 'fgrad_input'])
def test_a_buffer_that_takes_no_part_is_neither_lent_nor_waited_for(unused, frameworks, backend, waits):
    """Nor need it be apart from other arrays."""
    tensor = frameworks.torch.Tensor
    for gpu, out in ((tensor, tensor(np.empty_like(Y))), (Interface, Interface(np.empty_like(Y)))):
        x, w, b = map(gpu, (X, W, B))
        other = tensor(out.host.reshape(-1)) if gpu is tensor else Interface(out.host.reshape(-1), stream=32)
        for _ in range(3):
            if unused == 'fgrad_input':
                pyconv.convolution(x, w, b, (2, 1), 1, 1, False, 0, 2, out=out, fgrad_input=other, stream=704)
            else:
                pyconv.convolution_backward(out, x, w, (2, 1), 1, 1, False, 0, 2, (True, False, True),
                                            out=(gpu(np.empty_like(X)), None, None), finput=other, stream=704)
        assert not waits and not getattr(other, 'lent', [])


@pytest.mark.parametrize('kind', ['torch', 'cupy', 'interface'])
def test_a_known_call_runs_on_the_stream_of_the_call(kind, frameworks, backend, waits):
    """Of streams nothing is known."""
    gpu, out = maker(kind, frameworks), np.empty_like(Y)
    current = []
    for stream, now in ((None, 0), (704, 0), (None, 640), (640, 640), (SimpleNamespace(ptr=96), 640), (1, 0), (2, 0)):
        frameworks.current = now
        conv(gpu(X), gpu(W), gpu(B), out=gpu(out), stream=stream)
        current.append(backend.runs[-1].stream)
    assert current == [0, 704, 0 if kind == 'interface' else 640, 640, 96, 0, 2] and not waits
    with pytest.raises(TypeError, match='^stream must be a stream.s handle'):
        conv(gpu(X), gpu(W), gpu(B), out=gpu(out), stream='current')
    assert len(backend.runs) == 7


def test_streams_that_arrays_name_are_waited_for_in_a_known_call(frameworks, backend, waits):
    def call(x=None, w=None, out=None, **more):
        conv(Interface(X, stream=x), Interface(W, stream=w), Interface(B, stream=x), **more,
             out=Interface(np.empty_like(Y), stream=out))
        return backend.runs[-1].stream

    for _ in range(2):
        assert call() == 0 and call(64, 64, 64) == 64 and call(64, 64, 64, stream=64) == 64 and not waits
    for given, stream, wanted in (
            ((64, 128, 64), None, (64, [(64, 128, 0), (128, 64, 0)])),
            ((64, 64, None), None, (64, [(64, 0, 0), (0, 64, 0)])),
            ((None, 64, None), None, (0, [(0, 64, 0), (64, 0, 0)])),
            ((64, 64, 64), 704, (704, [(704, 64, 0)]))):
        for _ in range(2):
            waits.clear()
            assert (call(*given, stream=stream), waits) == wanted


@pytest.mark.parametrize(('stream', 'named'), [(None, None), (704, 704)])
def test_new_arrays_of_a_known_call_name_its_stream(stream, named, frameworks, backend, waits):
    for _ in range(3):
        answer = conv(stream=stream)
        assert answer.__cuda_array_interface__['stream'] == named
        assert conv(answer, Interface(integers(6, 3, 1, 1))).__cuda_array_interface__['stream'] == named


def test_waiting_is_an_event_in_the_device_s_context(monkeypatch):
    asked = []

    class Driver(ModuleType):
        CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=SimpleNamespace(value=2))

        def __getattr__(self, name):
            if not name.startswith('cu'):
                raise AttributeError(name)

            def function(*arguments):
                asked.append((name, *arguments))
                answers = {'cuDeviceGet': 'device', 'cuDevicePrimaryCtxRetain': 'context', 'cuEventCreate': 'event'}
                status = Status.CUDA_ERROR_ILLEGAL_ADDRESS if name in fails else Status.CUDA_SUCCESS
                return (status, answers[name]) if name in answers else (status,)
            return function

    fails = ()
    driver = Driver('cuda.bindings.driver')
    monkeypatch.setattr(launch, '_driver', lambda: driver)
    streams._context.cache_clear()
    streams.wait(64, 128, 1)
    assert asked == [
        ('cuDeviceGet', 1), ('cuDevicePrimaryCtxRetain', 'device'), ('cuCtxPushCurrent', 'context'),
        ('cuEventCreate', 2), ('cuEventRecord', 'event', 128), ('cuStreamWaitEvent', 64, 'event', 0),
        ('cuEventDestroy', 'event'), ('cuCtxPopCurrent',)]
    for fails in ('cuCtxPushCurrent', 'cuEventCreate', 'cuEventRecord', 'cuStreamWaitEvent'):
        with pytest.raises(RuntimeError) as caught:
            streams.wait(64, 128, 1)
        assert str(caught.value) == f'could not let a stream wait for another: {POISONED}'
    streams._context.cache_clear()


@pytest.mark.parametrize(('status', 'found'), [
    (Status.CUDA_SUCCESS, 3), (Status.CUDA_ERROR_INVALID_VALUE, None),  # the driver's word for no memory of its own
    (Status.CUDA_ERROR_ILLEGAL_ADDRESS, f'could not find the device of an array: {POISONED}')])
def test_whose_memory_it_is(monkeypatch, status, found):
    """As the driver itself has it: some versions of cuda.bindings answer 0 for every address."""
    def of_the_driver(device, attribute, address):
        assert (attribute, address.value) == (9, 2**40 + 512)
        device._obj.value = 3
        return int(status)

    driver = SimpleNamespace(CUresult=Status)
    monkeypatch.setattr(launch, '_driver', lambda: driver)
    monkeypatch.setattr(launch, 'library', lambda: SimpleNamespace(cuPointerGetAttribute=of_the_driver), raising=False)
    if isinstance(found, str):
        with pytest.raises(RuntimeError) as caught:
            device_of(2**40 + 512)
        assert str(caught.value) == found
    else:
        assert device_of(2**40 + 512) == found
