"""What only a real GPU can show: streams, graphs, great tensors, threads, memory, other frameworks' arrays, accuracy.

`pytest -m gpu` runs this; without a GPU every test here is skipped. What these tests print with -s are measurements.
"""
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='torch, whose CUDA tensors these tests use, is not installed')

import calls  # noqa: E402
import gpus  # noqa: E402
import pyconv  # noqa: E402
import pyconv.torch as door  # noqa: E402
from problems import LAYERS  # noqa: E402
from pyconv import _cuda  # noqa: E402
from pyconv._gpu import launch  # noqa: E402

pytestmark = pytest.mark.gpu
DEVICE = 'cuda'
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
WAYS = {name: (getattr(torch, dtype), keywords) for name, (dtype, keywords) in gpus.WAYS.items()}
every_way = pytest.mark.parametrize('way', WAYS)
GIGA = 10**9


@pytest.fixture(autouse=True)
def device(request):
    missing = gpus.real_gpu()
    if missing:
        pytest.skip(missing)
    gpus.skip_what_the_chip_lacks(request)
    _cuda.forget()
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32
    cudnn.allow_tf32 = matmul.allow_tf32 = False
    yield
    cudnn.allow_tf32, matmul.allow_tf32 = before
    torch.cuda.synchronize()


def operands(dtype=torch.float32, batch=4, channels=(32, 48), size=(20, 21), seed=0, kernel=3):
    """Input, weight and grad_output of a padded 2-D layer."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    shapes = (batch, channels[0], *size), (channels[1], channels[0], kernel, kernel), (batch, channels[1], *size)
    return [torch.randn(shape, generator=generator, device=DEVICE, dtype=dtype) for shape in shapes]


def three_maps(x, w, y, **more):
    """forward, grad_input and grad_weight of such a layer."""
    pad = w.shape[-1] // 2
    return (pyconv.conv2d(x, w, None, padding=pad, **more), pyconv.conv2d_input(x.shape, w, y, padding=pad, **more),
            pyconv.conv2d_weight(x, w.shape, y, padding=pad, **more))


def same(found, wanted):
    """The same numbers in arrays of the same kind."""
    for one, other in zip(found, wanted, strict=True):
        assert type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one, other), f'{int((one != other).sum())} of {one.numel()} differ'


def error(found, wanted):
    """Relative Frobenius norm of the difference from a float64 result."""
    return float(torch.linalg.vector_norm(found.double() - wanted) / torch.linalg.vector_norm(wanted))


# Streams


def by_torch(side, x, w):
    with torch.cuda.stream(side):
        return pyconv.conv2d(x, w, None, padding=1)


def by_keyword(side, x, w):
    return pyconv.conv2d(x, w, None, padding=1, stream=side)


def by_handle(side, x, w):
    return pyconv.conv2d(x, w, None, padding=1, stream=side.cuda_stream)


def by_cupy(side, x, w):
    cupy = pytest.importorskip('cupy')
    arrays = cupy.from_dlpack(x), cupy.from_dlpack(w)
    with cupy.cuda.ExternalStream(side.cuda_stream):
        found = pyconv.conv2d(*arrays, None, padding=1)
    assert isinstance(found, cupy.ndarray)
    return torch.from_dlpack(found)


@pytest.mark.parametrize('call', [by_torch, by_keyword, by_handle, by_cupy])
def test_work_goes_to_the_callers_stream(call):
    """What is computed is what the stream will have written when the turn comes; any other stream would be early."""
    x, w, _ = operands()
    later, side = torch.randn_like(x), torch.cuda.Stream()
    wanted = pyconv.conv2d(later, w, None, padding=1)
    call(side, x, w)  # loaded and compiled: nothing of that hides a wrong order
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # a tenth of a second
        x.copy_(later)
    found = call(side, x, w)
    side.synchronize()
    same([found], [wanted])


def test_memory_is_kept_for_a_given_stream():
    """torch would give the memory of a tensor that is freed to the next one on its own stream."""
    x, w, _ = operands()
    wanted, side = pyconv.conv2d(x, w, None, padding=1), torch.cuda.Stream()
    copy = x * 1
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
    found = by_keyword(side, copy, w)
    del copy
    spoiled = torch.full_like(x, torch.nan)
    side.synchronize()
    same([found], [wanted])
    assert spoiled.isnan().all()


@pytest.mark.parametrize('library', ['cupy', 'numba.cuda'])
def test_other_libraries_wait_for_what_is_written_to_their_arrays(library):
    module = pytest.importorskip(library)
    x, w, y = operands()
    wanted, side = pyconv.conv2d(x, w, None, padding=1), torch.cuda.Stream()
    out = (module.empty if library == 'cupy' else module.device_array)(tuple(y.shape), 'float32')
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        pyconv.conv2d(x, w, None, padding=1, out=out)
    found = module.asnumpy(out) if library == 'cupy' else out.copy_to_host()
    assert np.array_equal(found, wanted.cpu().numpy())


def test_backward_goes_to_the_stream_of_forward():
    x, w, y = operands(torch.float64)
    x.requires_grad_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        door.conv2d(x, w, padding=1).backward(y)
    torch.cuda.synchronize()
    assert error(x.grad, pyconv.conv2d_input(x.shape, w, y, padding=1)) == 0


def test_nothing_waits_for_the_device():
    x, w, y = operands()
    columns = pyconv.unfold(x, 3, padding=1)

    def everything():
        return (*three_maps(x, w, y), pyconv.conv_bias(y), pyconv.unfold(x, 3, padding=1),
                pyconv.fold(columns, x.shape[2:], 3, padding=1), door.conv2d(x, w, padding=1))

    everything()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # a second
    start = time.perf_counter()
    everything()
    took, busy = time.perf_counter() - start, not torch.cuda.current_stream().query()
    assert busy, 'the device had finished when the calls returned'
    assert took < 0.5


# CUDA graphs


def captured(function):
    """The graph of a call, and what it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


@every_way
@pytest.mark.parametrize('given', [False, True], ids=['nothing given', 'out and buffers given'])
def test_graph(way, given):
    dtype, keywords = WAYS[way]
    x, w, y = operands(dtype)
    wants = pyconv.workspace(x.shape, w.shape, padding=1, dtype=str(dtype)[6:], device='cuda', **keywords)
    buffers = [torch.empty(max(size, 1), dtype=dtype, device=DEVICE) for size in (wants.finput, wants.fgrad_input)]
    outs = [torch.empty_like(array) for array in (y, x, w)]

    def function():
        if not given:
            return three_maps(x, w, y, **keywords)
        return (pyconv.conv2d(x, w, None, padding=1, out=outs[0], finput=buffers[0], **keywords),
                pyconv.conv2d_input(x.shape, w, y, padding=1, out=outs[1], fgrad_input=buffers[1], **keywords),
                pyconv.conv2d_weight(x, w.shape, y, padding=1, out=outs[2], finput=buffers[0], **keywords))

    function()
    graph, results = captured(function)
    for _ in range(2):
        for array in (x, w, y):
            array.copy_(torch.randn_like(array))
        graph.replay()
        torch.cuda.synchronize()
        same(results, three_maps(x, w, y, **keywords))


def test_graph_of_kernels_that_were_never_loaded(monkeypatch):
    x, w, y = operands()
    wanted = three_maps(x, w, y)
    monkeypatch.setattr(launch.device(0), '_kernels', {})
    _cuda.forget()
    graph, results = captured(lambda: three_maps(x, w, y))
    graph.replay()
    torch.cuda.synchronize()
    same(results, wanted)


def test_graph_of_arrays_that_have_only_dlpack():
    """They are handed over on the stream that is captured."""
    x, w, _ = operands()
    wanted = pyconv.conv2d(x, w, None, padding=1)
    out, size = torch.empty_like(wanted), pyconv.workspace(x.shape, w.shape, padding=1, device='cuda').finput
    given = [DLPack(array) for array in (x, w, out, torch.empty(max(size, 1), device=DEVICE))]
    graph, _ = captured(lambda: pyconv.conv2d(
        *given[:2], None, padding=1, out=given[2], finput=given[3], stream=torch.cuda.current_stream()))
    graph.replay()
    torch.cuda.synchronize()
    same([out], [wanted])


# More than 2**31 elements


@pytest.fixture
def much_memory():
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < 40 * GIGA:
        pytest.skip(f'40 GB of GPU memory must be free; got {free / GIGA:.0f}')
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize('last', [False, True], ids=['channels first', 'channels last'])
def test_tensor_of_more_than_2_to_31_elements(last, much_memory):
    batch, channels, side = 134, 64, 512
    samples = (0, 63, 127, 128, batch - 1)  # element 2**31 is the first of sample 128
    order = torch.channels_last if last else torch.contiguous_format
    x = torch.empty((batch, channels, side, side), dtype=torch.float16, device=DEVICE, memory_format=order).normal_()
    w = torch.randn(channels, channels, 3, 3, dtype=torch.float16, device=DEVICE) / 24
    assert x.numel() > 2**31 and samples[3] * x[0].numel() == 2**31

    def convolved(sample):
        return torch.nn.functional.conv2d(x[sample:sample + 1].double(), w.double(), padding=1)

    found = pyconv.conv2d(x, w, None, padding=1, out=torch.full_like(x, torch.nan))
    for sample in samples:
        assert error(found[sample:sample + 1], convolved(sample)) < 2**-11
    del found
    found = pyconv.conv2d_input(x.shape, w, x, padding=1, out=torch.full_like(x, torch.nan))
    for sample in samples:
        wanted = torch.nn.functional.conv_transpose2d(x[sample:sample + 1].double(), w.double(), padding=1)
        assert error(found[sample:sample + 1], wanted) < 2**-11
    del found
    y = torch.zeros_like(x)
    for sample in samples:
        y[sample].normal_()
    found = pyconv.conv2d_weight(x, w.shape, y, padding=1)
    few = list(samples)
    wanted = torch.nn.grad.conv2d_weight(x[few].double(), w.shape, y[few].double(), padding=1)
    assert error(found, wanted) < 2**-11


def test_sample_of_more_than_2_to_31_elements(much_memory):
    """Channel 32 begins with element 2**31; what is looked at are rows of all channels."""
    x = torch.empty(1, 40, 8192, 8192, dtype=torch.float16, device=DEVICE).normal_()
    w = torch.randn(16, 40, 1, 1, dtype=torch.float16, device=DEVICE)
    rows = slice(0, 4), slice(4094, 4098), slice(-4, None)
    y = torch.full((1, 16, 8192, 8192), torch.nan, dtype=torch.float16, device=DEVICE)
    pyconv.conv2d(x, w, out=y)
    for some in rows:
        assert error(y[:, :, some], torch.nn.functional.conv2d(x[:, :, some].double(), w.double())) < 2**-11
    found = pyconv.conv2d_input(x.shape, w, y, out=torch.full_like(x, torch.nan))
    for some in rows:
        wanted = torch.nn.functional.conv_transpose2d(y[:, :, some].double(), w.double())
        assert error(found[:, :, some], wanted) < 2**-11
    del found
    y.zero_()
    for some in rows:
        y[:, :, some].normal_()
    found = pyconv.conv2d_weight(x, w.shape, y, out=torch.full_like(w, torch.nan))
    wanted = sum(torch.nn.grad.conv2d_weight(x[:, :, some].double(), w.shape, y[:, :, some].double()) for some in rows)
    assert error(found, wanted) < 2**-11


# The same bits


@every_way
def test_same_bits_every_time(way):
    dtype, keywords = WAYS[way]
    arrays = operands(dtype, batch=16, channels=(64, 96), size=(28, 28))
    wanted = three_maps(*arrays, **keywords)
    for _ in range(10):
        torch.empty(10**7, device=DEVICE).fill_(torch.nan)  # what new memory may hold
        same(three_maps(*arrays, **keywords), wanted)


@every_way
def test_same_bits_for_a_sample_in_any_batch(way):
    """The whole batch takes large tiles, a sample small ones."""
    dtype, keywords = WAYS[way]
    x, w, y = operands(dtype, batch=32, channels=(128, 128), size=(28, 28))
    wanted = three_maps(x, w, y, **keywords)[:2]
    for part in (slice(0, 1), slice(31, 32), slice(5, 12)):
        same(three_maps(x[part], w, y[part], **keywords)[:2], [whole[part] for whole in wanted])


@every_way
def test_same_bits_in_any_buffer(way):
    dtype, keywords = WAYS[way]
    x, w, y = operands(dtype, batch=16, channels=(64, 64), size=(28, 28))
    wanted = three_maps(x, w, y, **keywords)
    wants = pyconv.workspace(x.shape, w.shape, padding=1, dtype=str(dtype)[6:], device='cuda', **keywords)
    for share in (0, 0.3, 1):
        sizes = [least + int(share * (full - least)) for full, least in (
            (wants.finput, wants.finput_minimum), (wants.fgrad_input, wants.fgrad_input_minimum))]
        unrolled, gradient = (torch.full((size,), torch.nan, dtype=dtype, device=DEVICE) for size in sizes)
        same((pyconv.conv2d(x, w, None, padding=1, finput=unrolled, **keywords),
              pyconv.conv2d_input(x.shape, w, y, padding=1, fgrad_input=gradient, **keywords),
              pyconv.conv2d_weight(x, w.shape, y, padding=1, finput=unrolled, **keywords)), wanted)


def test_two_threads_on_two_streams():
    layers = operands(seed=1), operands(torch.float16, channels=(64, 64), size=(33, 30), seed=2)
    wanted = [three_maps(*arrays) for arrays in layers]
    torch.cuda.synchronize()
    _cuda.forget()

    def work(place):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                found = three_maps(*layers[place])
                same(found, wanted[place])
        stream.synchronize()

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, place % 2) for place in range(4)]:
            future.result()


# torch's autograd, autocast, memory


LAYOUTS = {
    'contiguous': lambda tensor: tensor,
    'channels last': lambda tensor: tensor.movedim(1, -1).contiguous().movedim(-1, 1),
    'every other': lambda tensor: torch.stack((tensor, tensor), -1).flatten(-2)[..., ::2],
}


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize(('function', 'input', 'weight', 'settings'), [
    (door.conv1d, (2, 4, 9), (6, 2, 3), {'stride': 2, 'padding': 1, 'groups': 2}),
    (door.conv2d, (2, 3, 5, 4), (4, 3, 3, 2), {'padding': (2, 1), 'dilation': 2}),
    (door.conv2d, (1, 4, 5, 5), (4, 1, 3, 3), {'padding': 1, 'groups': 4}),
    (door.conv3d, (1, 2, 3, 4, 3), (2, 2, 2, 2, 2), {'padding': 1}),
    (door.conv_transpose2d, (1, 2, 3, 4), (2, 3, 3, 3), {'stride': 2, 'padding': 1, 'output_padding': 1}),
], ids=['1d', '2d', 'depthwise', '3d', 'transposed'])
def test_gradients_of_gradients(function, input, weight, settings, layout):
    generator = torch.Generator(DEVICE).manual_seed(0)
    tensors = [LAYOUTS[layout](torch.randn(shape, generator=generator, device=DEVICE, dtype=torch.float64))
               for shape in (input, weight)]
    x, w = (tensor.detach().requires_grad_() for tensor in tensors)
    outputs = weight[1] * settings.get('groups', 1) if function is door.conv_transpose2d else weight[0]
    bias = torch.randn(outputs, generator=generator, device=DEVICE, dtype=torch.float64, requires_grad=True)

    def call(*three):
        return function(*three, **settings)

    assert torch.autograd.gradcheck(call, (x, w, bias), nondet_tol=0)
    assert torch.autograd.gradgradcheck(call, (x, w, bias), nondet_tol=0)


@pytest.mark.parametrize('dtype', DTYPES[:2], ids=str)
def test_autocast(dtype):
    x, w, y = operands()
    x.requires_grad_(), w.requires_grad_()
    with torch.autocast('cuda', dtype):
        found = door.conv2d(x, w, padding=1)
    assert found.dtype is dtype
    found.float().backward(y)
    halves = [tensor.detach().to(dtype) for tensor in (x, w, y)]
    wanted = three_maps(*halves)
    assert x.grad.dtype is w.grad.dtype is torch.float32
    same((found.detach(), x.grad, w.grad), (wanted[0], *(gradient.float() for gradient in wanted[1:])))


@pytest.mark.parametrize('dtype', DTYPES[:3], ids=str)
def test_channels_last_is_not_copied(dtype):
    x, w, y = (tensor.contiguous(memory_format=torch.channels_last)
               for tensor in operands(dtype, batch=128, channels=(64, 64), size=(56, 56)))
    with torch.no_grad():
        for call, size in ((lambda: door.conv2d(x, w, padding=1), y.nbytes),
                           (lambda: pyconv.conv2d_input(x.shape, w, y, padding=1, out=torch.empty_like(x)), x.nbytes),
                           (lambda: pyconv.conv2d_weight(x, w.shape, y, padding=1), 0)):
            call()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            found = call()
            peak = torch.cuda.max_memory_allocated() - before
            # beside the result only what the weight's size is, or parts of its sum
            assert peak <= size + 0.4 * x.nbytes, f'{peak / 1e6:.0f} MB beside operands of {x.nbytes / 1e6:.0f} MB each'
            assert not size or found.is_contiguous(memory_format=torch.channels_last)


def test_out_of_memory():
    x, w = (torch.zeros(shape, device=DEVICE) for shape in ((1, 1, 2048, 2048), (256, 1, 1, 1)))
    pyconv.conv2d(x[..., :8, :8], w)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(2e9 / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(MemoryError, match='must have 4294967296 bytes free for an array of shape'):
            pyconv.conv2d(x, w)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    same([pyconv.conv2d(x[..., :8, :8], w)], [torch.zeros(1, 256, 8, 8, device=DEVICE)])


# Other frameworks' arrays


def test_cupy_arrays():
    cupy = pytest.importorskip('cupy')
    x, w, y = operands()
    wanted = three_maps(x, w, y)
    arrays = [cupy.asarray(tensor) for tensor in (x, w, y)]
    found = three_maps(*arrays)
    assert all(isinstance(array, cupy.ndarray) for array in found)
    cupy.cuda.get_current_stream().synchronize()
    same([torch.from_dlpack(array) for array in found], wanted)
    out = cupy.empty_like(arrays[2])
    assert pyconv.conv2d(*arrays[:2], None, padding=1, out=out) is out


def test_numba_arrays():
    pytest.importorskip('numba')
    from numba import cuda
    x, w, y = operands()
    wanted = three_maps(x, w, y)
    found = three_maps(*(cuda.as_cuda_array(tensor) for tensor in (x, w, y)))
    assert all(cuda.is_cuda_array(array) for array in found)
    for array, tensor in zip(found, wanted):
        assert np.array_equal(array.copy_to_host(), tensor.cpu().numpy())


class DLPack:
    """Has DLPack and nothing else."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **keywords):
        return self.tensor.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32, torch.float64], ids=str)
def test_dlpack(dtype):
    x, w, _ = operands(dtype)
    out = torch.empty(4, 48, 20, 21, dtype=dtype, device=DEVICE)
    given = DLPack(out)
    assert pyconv.conv2d(DLPack(x), DLPack(w), None, padding=1, out=given) is given
    torch.cuda.synchronize()
    same([out], [pyconv.conv2d(x, w, None, padding=1)])
    found = pyconv.conv2d(DLPack(x), DLPack(w), None, padding=1)
    assert np.array_equal(found.copy_to_host(), out.cpu().numpy()), 'a Numba array where nothing else is known'


def test_dlpack_waits_for_the_producer_s_stream():
    x, w, _ = operands()
    later, side = torch.randn_like(x), torch.cuda.Stream()
    wanted = pyconv.conv2d(later, w, None, padding=1).cpu().numpy()
    pyconv.conv2d(DLPack(x), DLPack(w), None, padding=1)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.copy_(later)
        found = pyconv.conv2d(DLPack(x), DLPack(w), None, padding=1)
    assert np.array_equal(found.copy_to_host(), wanted)


def test_main_memory_is_refused():
    x, w, _ = operands()
    with pytest.raises(TypeError, match='weight must be on the device of input, cuda:0; got an array in main memory'):
        pyconv.conv2d(x, w.cpu().numpy())


# Accuracy, on layers of ordinary size


def on_cpu(problem, x, w, y):
    """torch's maps in float64 on the CPU; gradients by autograd."""
    function = getattr(torch.nn.functional, f'conv{problem.rank}d')
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    found = function(x, w, None, problem.stride, problem.padding, problem.dilation, problem.groups)
    return found.detach(), *torch.autograd.grad(found, (x, w), y)


def by_torch_on_gpu(problem, x, w, y):
    return [tensor.double().cpu() for tensor in on_cpu(problem, x, w, y)]


@pytest.mark.parametrize('kind', ['normal', 'non-negative'])
@pytest.mark.parametrize('problem', [
    layer for layer in LAYERS if layer.padding != 'causal' and layer.padding_mode == 'zeros'], ids=str)
def test_ieee_float32_is_as_good_as_torch(problem, kind):
    data = [torch.from_numpy(part) for part in problem.floats(np.float32)[:3]]
    if kind == 'non-negative':
        data = [part.abs() for part in data]
    wanted = on_cpu(problem, *(part.double() for part in data))
    arrays = [part.to(DEVICE) for part in data]
    found = [array.cpu() for array in calls.three_maps(problem, *arrays)]
    for one, other, exact, name in zip(found, by_torch_on_gpu(problem, *arrays), wanted,
                                       ('forward', 'grad_input', 'grad_weight')):
        ours, theirs = error(one, exact), error(other, exact)
        print(f'{problem}, {kind}, {name}: {ours:.2e}, torch {theirs:.2e}')
        assert ours <= max(1e-6, 1.5 * theirs), name


@pytest.mark.skipif(sys.platform == 'win32', reason='the cache of kernels is filled by a child')
def test_a_second_process_compiles_nothing(run_python):
    code = '''if True:
        import logging, torch, pyconv
        logging.basicConfig(level=logging.INFO)
        x, w = torch.randn(2, 16, 9, 9, device='cuda'), torch.randn(16, 16, 3, 3, device='cuda')
        messages = []
        logging.getLogger('pyconv').addFilter(lambda record: messages.append(record.getMessage()) or True)
        pyconv.conv2d(x, w, None, padding=1)
        torch.cuda.synchronize()
        print(sum(message.startswith('compiled') for message in messages))'''
    run_python(code, timeout=300)
    assert run_python(code, timeout=300).split() == ['0']
