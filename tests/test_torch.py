"""pyconv.torch: values, three orders of derivatives, what is saved, computed and copied, and errors."""

import numpy as np
import pytest
import torch
from torch.autograd import Function, grad, gradcheck, gradgradcheck
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

import pyconv
import pyconv.torch as door
import pyconv.torch._maps as maps
from calls import assert_equal, per_channel
from problems import PADDINGS, TRANSPOSED, VARIED, VARIED_MODES, expected, some
from problems import maps as maps_of
from pyconv._memory import PAGE, claim
from reference import channel_sum, named_or_numeric_padding
from torch_problems import CONV, DERIVATIVES, FROZEN, TRANSPOSE, case_of, operands_of

SHAPES = list({problem.name: problem for problem in (*VARIED, *PADDINGS, *TRANSPOSED)}.values())
SHAPES_AND_MODES = [*SHAPES, *VARIED_MODES]
# around a transposed convolution's output a constant is nothing, so that it is no map of the problem
TRANSPOSED_AND_MODES = [problem for problem in SHAPES_AND_MODES if problem.padding_mode != 'constant']
NO_MODES = [name for name, (*_, settings) in DERIVATIVES.items() if 'padding_mode' not in settings]
TORCH_CONV = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TORCH_TRANSPOSE = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def tensors(*arrays):
    """Leaves that share the arrays' memory and want gradients."""
    return [torch.from_numpy(array).requires_grad_() for array in arrays]


def transposed_settings(problem):
    """Of conv_transpose without output_size, which torch's signature has not; in the order of its arguments."""
    padding, output_padding = problem.transposed_padding
    return {'stride': problem.stride, 'padding': padding, 'output_padding': output_padding, 'groups': problem.groups,
            'dilation': problem.dilation, **problem.mode}


# values


@pytest.mark.parametrize('problem', SHAPES_AND_MODES, ids=str)
def test_convolution_and_its_gradients(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    x, w, b = tensors(data.x, data.w, data.b)
    y = CONV[problem.rank](x, w, b, **problem.keywords)
    assert_equal(y.detach().numpy(), wanted.forward + per_channel(data.b, problem.rank), dtype)
    y.backward(torch.from_numpy(data.y))
    answers = wanted.grad_input, wanted.grad_weight, channel_sum(data.y)
    for tensor, answer in zip((x, w, b), answers):
        assert_equal(tensor.grad.numpy(), answer, dtype)


@pytest.mark.parametrize('problem', TRANSPOSED_AND_MODES, ids=str)
def test_transposed_convolution_and_its_gradients(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    y, w, c = tensors(data.y, data.w, data.c)
    x = TRANSPOSE[problem.rank](y, w, c, **transposed_settings(problem))
    assert_equal(x.detach().numpy(), wanted.grad_input + per_channel(data.c, problem.rank), dtype)
    x.backward(torch.from_numpy(data.x))
    answers = wanted.forward, wanted.grad_weight, channel_sum(data.x)
    for tensor, answer in zip((y, w, c), answers):
        assert_equal(tensor.grad.numpy(), answer, dtype)


@pytest.mark.parametrize('problem', VARIED, ids=str)
def test_without_batch_axis(problem):
    data, wanted = problem.integers(), expected(problem.name)
    x, w, b, y, c = tensors(data.x[-1], data.w, data.b, data.y[-1], data.c)
    answer = CONV[problem.rank](x, w, b, **problem.keywords)
    assert_equal(answer.detach().numpy(), wanted.forward[-1] + per_channel(data.b, problem.rank), data.x.dtype)
    answer.backward(y.detach())
    assert_equal(x.grad.numpy(), wanted.grad_input[-1], data.x.dtype)
    assert_equal(b.grad.numpy(), channel_sum(data.y[-1:]), data.x.dtype)
    answer = TRANSPOSE[problem.rank](y, w, c, **transposed_settings(problem))
    answer.backward(x.detach())
    assert_equal(y.grad.numpy(), wanted.forward[-1], data.x.dtype)
    assert_equal(c.grad.numpy(), channel_sum(data.x[-1:]), data.x.dtype)


OTHER_TYPES = (torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
FEW = some('1d', '2d same strided dilated', '2d groups everything', '2d depthwise', '3d groups everything',
           'reflect 1d far strided', 'circular 2d groups everything', 'constant -1 2d depthwise strided')


@pytest.mark.parametrize('type_', OTHER_TYPES, ids=str)
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_other_types(problem, type_):
    """Sums of small integers, rounded once where they are stored; complex gradients with torch's conjugates."""
    if type_ is torch.bfloat16:
        pytest.importorskip('ml_dtypes')
    data, others = problem.integers(), problem.integers(np.float32)
    if type_.is_complex:
        data = data._replace(x=data.x + 1j * others.x[::-1], w=data.w - 2j * others.w[::-1], y=data.y * (1 + 1j))
    x, w, b, y = (torch.from_numpy(array).to(type_).requires_grad_() for array in (data.x, data.w, data.b, data.y))
    answer = CONV[problem.rank](x, w, b, **problem.keywords)
    gradients = grad(answer, (x, w, b), y)
    forward, _, _ = maps_of(problem, data.x, data.w, data.y)
    _, grad_input, grad_weight = maps_of(problem, data.x.conj(), data.w.conj(), data.y)
    wanted = forward + per_channel(data.b, problem.rank), grad_input, grad_weight, channel_sum(data.y)
    for tensor, exact in zip((answer, *gradients), wanted):
        assert tensor.dtype is type_ and torch.equal(tensor, torch.from_numpy(exact).to(type_))


@pytest.mark.parametrize('traced', [False, True], ids=['called', 'traced'])
@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
def test_an_algorithm_is_for_all_products(transposed, traced):
    """For the gradients' and for theirs: the bits are those of the plain functions, and of each algorithm its own."""
    x, w, y, v = (torch.randn(shape, generator=torch.Generator().manual_seed(seed))
                  for seed, shape in enumerate(((2, 64, 12, 12), (64, 64, 3, 3), (2, 64, 12, 12), (2, 64, 12, 12))))
    found = []
    for algorithm in ('gemm', 'winograd'):
        settings = {'padding': 1, 'algorithm': algorithm}

        def ours(x, w, settings=settings):
            return (door.conv_transpose2d if transposed else door.conv2d)(x, w, **settings)

        free, called = (x.requires_grad_(), w.requires_grad_()), ours
        if traced:
            called = torch.compile(ours, backend='eager', fullgraph=True)
        answer = called(*free)
        to_x, to_w = grad(answer, free, y, create_graph=True)
        found.append([answer, to_x, to_w, grad(to_x, w, v)[0]])
        forward = pyconv.conv_transpose2d(x, w, **settings) if transposed else pyconv.conv2d(x, w, **settings)
        back = pyconv.conv2d(y, w, **settings) if transposed else pyconv.conv2d_input(x.shape, w, y, **settings)
        weights = [pyconv.conv2d_weight(*((y, w.shape, one) if transposed else (one, w.shape, y)), **settings)
                   for one in (x, v)]
        for one, plain in zip(found[-1], (forward, back, *weights), strict=True):
            assert torch.equal(one, plain)
    assert not any(map(torch.equal, *found))


def test_an_algorithm_must_be_one_of_those_that_there_are():
    for wrong in ('fft', 'tf32x3', None, 1):
        rule = f"^algorithm must be one of 'auto', 'gemm', 'winograd'; got {wrong!r}$"
        with pytest.raises(ValueError, match=rule):
            door.conv1d(torch.ones(1, 2, 5), torch.ones(3, 2, 2), algorithm=wrong)


@pytest.mark.parametrize('type_', OTHER_TYPES, ids=str)
def test_layouts_of_other_types(type_):
    if type_ is torch.bfloat16:
        pytest.importorskip('ml_dtypes')
    x, w = torch.randint(-3, 4, (2, 3, 5, 6)).to(type_), torch.randint(-3, 4, (4, 3, 3, 2)).to(type_)
    wanted = door.conv2d(x, w)
    last = door.conv2d(x.to(memory_format=torch.channels_last), w)
    assert last.is_contiguous(memory_format=torch.channels_last) and torch.equal(last, wanted)
    assert torch.equal(door.conv2d(x.conj() if type_.is_complex else x, w), wanted)
    turned = x.transpose(2, 3).contiguous().transpose(2, 3)
    assert torch.equal(door.conv2d(turned, w), wanted)


def test_output_size_is_that_of_the_plain_functions():
    x, w = torch.ones(1, 2, 6), torch.ones(3, 2, 3)
    assert door.conv1d(x, w, stride=2).shape == (1, 3, 2) and door.conv1d(x, w, stride=2, output_size=3).shape[2] == 3
    answer = door.conv_transpose1d(x, w.transpose(0, 1), stride=2, padding='same', output_size=11)
    assert torch.equal(answer, pyconv.conv_transpose1d(x, w.transpose(0, 1), stride=2, padding='same', output_size=11))


def torch_takes(padding):
    """Whether torch knows this form of padding and gives it the same meaning whatever the stride."""
    return padding == 'valid' or isinstance(padding, int) or all(isinstance(pad, int) for pad in padding)


@pytest.mark.parametrize('problem', [problem for problem in SHAPES if torch_takes(problem.padding)], ids=str)
def test_positional_arguments_mean_what_they_mean_to_torch(problem):
    data = problem.integers()
    x, w, y, b, c = (torch.from_numpy(array) for array in data)
    settings = problem.stride, problem.padding, problem.dilation, problem.groups
    assert torch.equal(CONV[problem.rank](x, w, b, *settings), TORCH_CONV[problem.rank](x, w, b, *settings))
    settings = tuple(transposed_settings(problem).values())
    if torch_takes(settings[1]):
        answer = TRANSPOSE[problem.rank](y, w, c, *settings)
        assert torch.equal(answer, TORCH_TRANSPOSE[problem.rank](y, w, c, *settings))


@pytest.mark.parametrize('kernel', [(3, 5), (1, 3)], ids=str)
def test_same_is_torch_s_at_stride_one(kernel):
    x, w = torch.arange(60.0).reshape(1, 2, 5, 6), torch.ones(2, 2, *kernel)
    assert torch.equal(door.conv2d(x, w, padding='same'), torch.conv2d(x, w, padding='same'))


# derivatives

def first_gradients(function):
    """The function of (free tensors, grad_output) that gives the gradients to the free tensors."""
    def gradients(*free_and_grad_output):
        *free, grad_output = free_and_grad_output
        return grad(function(*free), free, grad_output, create_graph=True)
    return gradients


@pytest.mark.parametrize('frozen', FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize('name', DERIVATIVES)
def test_first_and_second_derivatives(name, frozen):
    function, free = case_of(name, frozen)
    assert gradcheck(function, free)
    assert gradgradcheck(function, free)


@pytest.mark.sparse
@pytest.mark.parametrize(('name', 'kind'), [
    (name, kind) for turn, name in enumerate(DERIVATIVES) for kind in ('none frozen', [*FROZEN][1 + turn % 3])])
def test_third_derivatives(name, kind):
    """With none frozen, and the next problem with another one frozen than the last."""
    function, free = case_of(name, FROZEN[kind])
    # of the cube, so that no derivative up to the third is zero for want of a mixed term
    gradients = first_gradients(lambda *free: function(*free) ** 3)
    shape = function(*free).shape
    grad_output = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert gradgradcheck(gradients, [*free, grad_output.requires_grad_()])


def torch_formulation(name):
    """The function of input, weight and bias in torch's operations, padded and cropped apart from the convolution.

    (torch 2.13 raises at the third derivative of a transposed convolution with output_padding.)
    """
    rank, transposed, input_shape, (_, _, *kernel), settings = DERIVATIVES[name]
    stride, dilation = (np.broadcast_to(settings.get(word, 1), rank).tolist() for word in ('stride', 'dilation'))
    padding, groups = settings.get('padding', 0), settings.get('groups', 1)
    size = input_shape[-rank:]
    if transposed and padding == 'same':
        pads = transposed_same(size, kernel, stride, dilation)
    else:
        pads = named_or_numeric_padding(padding, size, kernel, stride, dilation)

    def pad(tensor, sign, extra):
        around = zip(pads, np.broadcast_to(extra, rank).tolist())
        flat = [[sign * lo, sign * hi + more] for (lo, hi), more in around]
        return torch.nn.functional.pad(tensor, sum(reversed(flat), []))

    def convolution(x, w, b):
        return TORCH_CONV[rank](pad(x, 1, 0), w, b, stride, 0, dilation, groups)

    def transposed_convolution(x, w, b):
        whole = TORCH_TRANSPOSE[rank](x, w, None, stride, 0, 0, groups, dilation)
        return pad(whole, -1, settings.get('output_padding', 0)) + b.reshape(-1, *(1,) * rank)

    return transposed_convolution if transposed else convolution


def transposed_same(size, kernel, stride, dilation):
    """(lo, hi) of every axis with which the output of a transposed convolution is as long as input times stride."""
    totals = [d * (k - 1) + 1 - s for k, s, d in zip(kernel, stride, dilation)]
    return [(total // 2, total - total // 2) for total in totals]


def nested_gradients(function, operands):
    """The gradients of three orders, each those of a weighted sum of the ones before, starting from a cube."""
    generator = torch.Generator().manual_seed(2)
    leaves = [tensor.clone().requires_grad_() for tensor in operands]
    orders, results = [], [function(*leaves) ** 3]
    for _ in range(3):
        weighted = sum((r * torch.randn(r.shape, generator=generator, dtype=r.dtype)).sum() for r in results)
        results = grad(weighted, leaves, create_graph=True)
        orders.append(results)
    return orders


@pytest.mark.parametrize('name', NO_MODES)
def test_three_orders_are_those_of_torch_s_operations(name):
    operands = operands_of(name)
    answers = nested_gradients(case_of(name)[0], operands)
    for ours, theirs in zip(answers, nested_gradients(torch_formulation(name), operands)):
        for answer, wanted in zip(ours, theirs):
            # sums of some hundred products: far above their rounding, far below an error
            torch.testing.assert_close(answer, wanted, rtol=1e-10, atol=1e-10)


class Seed(Function):
    """A user's own convolution over the plain functions."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return torch.from_numpy(pyconv.conv2d(x.detach().numpy(), w.detach().numpy(), stride=2, padding=1))

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        x, w, y = (tensor.detach().numpy() for tensor in (*ctx.saved_tensors, grad_output))
        return (torch.from_numpy(pyconv.conv2d_input(x.shape, w, y, stride=2, padding=1)),
                torch.from_numpy(pyconv.conv2d_weight(x, w.shape, y, stride=2, padding=1)))


def test_an_own_function_over_arrays():
    x, w = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64)[:, 0], torch.randn(3, 2, 3, 3, dtype=torch.float64)
    assert gradcheck(Seed.apply, (x.requires_grad_(), w.requires_grad_()))


# what is saved and computed


class Calls(list):
    """The maps that were computed."""

    def take(self):
        taken = sorted(self)
        self.clear()
        return taken


@pytest.fixture
def maps_computed(monkeypatch):
    """The names of the maps, as they are computed."""
    calls, evaluate = Calls(), maps.Geometric.evaluate

    def counting(form, map, *operands):
        calls.append(map)
        return evaluate(form, map, *operands)

    monkeypatch.setattr(maps.Geometric, 'evaluate', counting)
    return calls


WANTED = [(x, w, b) for x in (False, True) for w in (False, True) for b in (False, True)]


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('wanted', WANTED, ids=str)
def test_only_what_a_wanted_gradient_reads_is_saved_and_computed(wanted, transposed, maps_computed):
    x, w, b = (torch.randn(shape).requires_grad_(wants) for shape, wants in zip(((2, 3, 6), (3, 3, 2), (3,)), wanted))
    saved = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor.data_ptr()) or tensor, lambda tensor: tensor):
        y = (door.conv_transpose1d if transposed else door.conv1d)(x, w, b)
    assert saved == [tensor.data_ptr() for tensor, asked in ((x, wanted[1]), (w, wanted[0])) if asked]
    forward, to_input = ('grad_input', 'forward') if transposed else ('forward', 'grad_input')
    assert maps_computed.take() == [forward]
    if any(wanted):
        y.sum().backward()
    assert maps_computed.take() == sorted([to_input] * wanted[0] + ['grad_weight'] * wanted[1])
    assert [tensor.grad is not None for tensor in (x, w, b)] == list(wanted)


def test_second_order_saves_and_computes_for_what_is_free_alone(maps_computed):
    x, w = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 3, 2)
    grad_output = torch.ones(2, 3, 5, requires_grad=True)
    y = door.conv1d(x, w)
    saved = []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor.data_ptr()) or tensor, lambda tensor: tensor):
        [grad_x] = grad(y, x, grad_output, create_graph=True)
    assert saved == [w.data_ptr()]
    maps_computed.clear()
    grad(grad_x.sum(), grad_output)
    assert maps_computed == ['forward']


def test_nothing_is_saved_without_gradients():
    x, w = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 3, 2, requires_grad=True)
    saved = []
    with saved_tensors_hooks(saved.append, lambda tensor: tensor), torch.no_grad():
        assert not door.conv1d(x, w).requires_grad
    assert saved == []


def test_where_nothing_is_to_be_recorded_no_function_is_asked(monkeypatch):
    """Of torch's: it takes longer than a small call's sums."""
    x, w, b = torch.randn(2, 3, 6), torch.randn(3, 3, 2), torch.randn(3)
    wanted, asked, apply = door.conv1d(x, w, b), [], maps.Map.apply_once
    monkeypatch.setattr(maps.Map, 'apply_once', lambda *given: asked.append(1) or apply(*given))
    for change in (lambda tensor: tensor, torch.nn.Parameter):
        with torch.no_grad():
            assert torch.equal(door.conv1d(change(x), w, change(b)), wanted)
    with torch.inference_mode():
        assert door.conv1d(x, w, b).is_inference()
    assert torch.equal(door.conv1d(x, w, b), wanted) and not asked
    for place in range(3):
        given = [torch.nn.Parameter(tensor) if place == number else tensor for number, tensor in enumerate((x, w, b))]
        assert door.conv1d(*given).requires_grad and len(asked) == place + 1
    with torch.autograd.forward_ad.dual_level(), torch.no_grad():
        dual = torch.autograd.forward_ad.make_dual(b, b)
        tangent = torch.autograd.forward_ad.unpack_dual(door.conv1d(x, w, dual)).tangent
        assert torch.equal(tangent, b[:, None].expand(wanted.shape)) and len(asked) == 4


def test_a_weight_changed_in_place_before_backward_is_noticed():
    x, w = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 3, 2, requires_grad=True)
    y = door.conv1d(x, w)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        y.sum().backward()


# autocast


@pytest.mark.parametrize('type_', [torch.float16, torch.bfloat16], ids=str)
def test_autocast_is_torch_s(type_):
    pytest.importorskip('ml_dtypes')
    x, w, b = (torch.randint(-3, 4, shape).float().requires_grad_() for shape in ((2, 3, 5), (4, 3, 2), (4,)))
    results = []
    for function in (door.conv1d, torch.conv1d):
        with torch.autocast('cpu', type_):
            y = function(x, w, b)
            assert y.dtype == type_ and function(x.double(), w.double(), b.double()).dtype == torch.float64
        results.append((y, *grad(y.sum(), (x, w, b))))
    for ours, theirs in zip(*results):
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_autocast_leaves_another_device_to_its_error():
    x, w = (torch.empty(shape, device='meta') for shape in ((1, 2, 5), (3, 2, 3)))
    with torch.autocast('cpu', torch.bfloat16), pytest.raises(TypeError, match='; got torch.strided on meta$'):
        door.conv1d(x, w)


# memory


@pytest.fixture
def arrays_met(monkeypatch):
    """(addresses of the operands, address of the result) of each map, as they are computed."""
    met, run = [], maps.run_as_it_lies

    def recording(map, geometry, dtype, first, second, bias, out):
        met.append(({first.ctypes.data, second.ctypes.data}, out.ctypes.data))
        return run(map, geometry, dtype, first, second, bias, out)

    monkeypatch.setattr(maps, 'run_as_it_lies', recording)
    return met


@pytest.mark.parametrize('function', [door.conv2d, door.conv_transpose2d], ids=['plain', 'transposed'])
def test_arrays_are_the_tensors_own_memory(function, arrays_met):
    x, w = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(3, 3, 2, 2, requires_grad=True)
    y = function(x, w, stride=2)
    grad_output = torch.randn(y.shape)
    grad_x, grad_w = grad(y, (x, w), grad_output)
    a, b, c = x.data_ptr(), w.data_ptr(), grad_output.data_ptr()
    assert arrays_met == [({a, b}, y.data_ptr()), ({b, c}, grad_x.data_ptr()), ({a, c}, grad_w.data_ptr())]


def whole(*shape):
    """Whole numbers, whose sums are exact in any order."""
    return torch.randint(-8, 9, shape).float()


LAYOUTS = {
    'channels last': lambda: whole(2, 3, 5, 6).to(memory_format=torch.channels_last),
    'transposed axes': lambda: whole(2, 3, 6, 5).transpose(2, 3),
    'every other cell': lambda: whole(2, 3, 10, 12)[:, :, ::2, 1::2],
    'stride zero': lambda: whole(2, 3, 1, 6).expand(2, 3, 5, 6),
    'negated view': lambda: torch.complex(whole(2, 3, 5, 6), whole(2, 3, 5, 6)).conj().imag,
    'parameter': lambda: torch.nn.Parameter(whole(2, 3, 5, 6)),
    'batch 0': lambda: whole(0, 3, 5, 6),
}


@pytest.mark.parametrize('make', LAYOUTS.values(), ids=LAYOUTS)
def test_layouts(make):
    x, w, b = make(), whole(4, 3, 3, 2).requires_grad_(), whole(4).requires_grad_()
    plain = x.detach().resolve_neg().contiguous()
    answer, wanted = door.conv2d(x, w, b), door.conv2d(plain, w, b)
    assert answer.is_contiguous() != (make is LAYOUTS['channels last']) and torch.equal(answer, wanted)
    for ours, theirs in zip(grad(answer.sum(), (w, b)), grad(wanted, (w, b), torch.ones(wanted.shape))):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize('order', [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize('type_', [torch.float32, torch.float64, *OTHER_TYPES], ids=str)
def test_operands_and_results_can_be_resized(type_, order):
    """Tensor.numpy and torch.from_numpy would forbid it for good."""
    if np.lib.NumpyVersion(np.__version__) < '2.1.0':
        pytest.skip('before NumPy 2.1 they are what is used')
    if type_ is torch.bfloat16:
        pytest.importorskip('ml_dtypes')
    for function in (door.conv2d, door.conv_transpose2d):
        shapes = (2, 3, 5, 5), (3, 3, 1, 1), (3,), (2, 3, 5, 5)
        x, w, b, grad_output = (torch.ones(shape, dtype=type_) for shape in shapes)
        x, w, grad_output = (tensor.to(memory_format=order) for tensor in (x, w, grad_output))
        free = [tensor.requires_grad_() for tensor in (x, w, b)]
        y = function(*free)
        results = y, *grad(y, free, grad_output)
        assert torch.cat([torch.ones_like(x)] * 2, out=y.detach().resize_(0)).shape == (4, 3, 5, 5)
        for tensor in (x, w, b, grad_output, *results):
            assert tensor.untyped_storage().resizable()


def test_the_memory_of_a_large_result_is_claimed_in_any_order():
    for array in (np.ones((2, 2400, 1000), np.uint8), np.ones((2, 2400, 1000), np.uint8).transpose(1, 2, 0)):
        claim(array)
        memory = array.ravel(order='K')
        assert all(not memory[first:first + PAGE].all() for first in range(0, memory.size, PAGE))
        assert array.mean() > 0.99


def test_a_tensor_of_zeros_without_memory():
    zeros, w = torch._efficientzerotensor((2, 2, 5)), torch.ones(3, 2, 2)
    for x in (zeros[:1], zeros[1:]):
        assert torch.equal(door.conv1d(x, w), torch.zeros(1, 3, 4))


@pytest.mark.parametrize('first', [0, 4096])
def test_a_tensor_whose_memory_is_given_back_is_refused(first):
    x, flat = torch.ones(1, 2, 5), torch.ones(8192)
    w = flat[first:first + 12].view(3, 2, 2)
    flat.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match='^weight must have memory of its own; got a Tensor without'):
        door.conv1d(x, w)


def test_a_default_device_is_not_asked():
    x, w = torch.ones(1, 2, 5), torch.ones(3, 2, 2)
    with torch.device('meta'):
        assert (door.conv1d(x, w) == 4).all()


def test_no_argument_is_changed():
    x, w, b = torch.randn(2, 3, 6, requires_grad=True), torch.randn(3, 3, 2, requires_grad=True), torch.randn(3)
    before = [tensor.detach().clone() for tensor in (x, w, b)]
    for function in (door.conv1d, door.conv_transpose1d):
        function(x, w, b).sum().backward()
    assert all(map(torch.equal, before, (x.detach(), w.detach(), b)))


# errors

X, W, B = torch.ones(1, 2, 5), torch.ones(3, 2, 2), torch.ones(3)
DTYPES = 'torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64 or torch.complex128'
KIND_ERRORS = {
    'array': ((X.numpy(), W, B), 'input must be a torch.Tensor; got ndarray'),
    'none': ((X, None, B), 'weight must be a torch.Tensor; got NoneType'),
    'list': ((X, W, [1.0, 2.0, 3.0]), 'bias must be a torch.Tensor; got list'),
    'elsewhere': ((X.to('meta'), W, B),
                  'input must be a dense tensor on the CPU or a CUDA GPU; got torch.strided on meta'),
    'sparse': ((X, W.to_sparse(), B),
               'weight must be a dense tensor on the CPU or a CUDA GPU; got torch.sparse_coo on cpu'),
    'integers': ((X.long(), W, B), f'input must have dtype {DTYPES}; got torch.int64'),
    'bools': ((X, W, B.bool()), f'bias must have dtype {DTYPES}; got torch.bool'),
    'half': ((X.half(), W, B), 'weight must have the dtype of input, torch.float16; got torch.float32'),
    'complex': ((X, W.cfloat(), B), 'weight must have the dtype of input, torch.float32; got torch.complex64'),
    'mixed': ((X, W.double(), B), 'weight must have the dtype of input, torch.float32; got torch.float64'),
    'mixed bias': ((X, W, B.double()), 'bias must have the dtype of input, torch.float32; got torch.float64'),
}


@pytest.mark.parametrize('function', [door.conv1d, door.conv_transpose1d], ids=['plain', 'transposed'])
@pytest.mark.parametrize(('arguments', 'text'), KIND_ERRORS.values(), ids=KIND_ERRORS)
def test_a_wrong_kind_of_tensor_is_a_type_error(function, arguments, text):
    with pytest.raises(TypeError) as error:
        function(*arguments)
    assert str(error.value) == text


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('layout', [torch.strided, torch.jagged], ids=str)
def test_a_nested_tensor_is_a_type_error(layout):
    nested = torch.nested.nested_tensor([W, W], layout=layout)
    with pytest.raises(TypeError, match='^weight must be one tensor of one shape; got a nested tensor$'):
        door.conv1d(X, nested)


@pytest.mark.parametrize('wrong', [
    {'weight': torch.ones(3, 2, 2, 2)}, {'weight': torch.ones(3, 1, 2)}, {'bias': torch.ones(2)}, {'stride': 0},
    {'padding': -1}, {'padding': 'reflect'}, {'dilation': 9}, {'groups': 2}, {'stride': 1.5}, {'padding_mode': 'same'},
    {'padding_value': 1}, {'padding_mode': 'constant', 'padding_value': 1j}, {'output_size': 6},
], ids=str)
def test_shapes_and_settings_are_refused_in_the_words_of_the_plain_function(wrong):
    tensors = {'input': X, 'weight': W, **wrong}
    arrays = {name: value.numpy() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()}
    with pytest.raises((TypeError, ValueError)) as ours:
        door.conv1d(**tensors)
    with pytest.raises(ours.type) as plain:
        pyconv.conv1d(**arrays)
    assert str(ours.value) == str(plain.value)


@pytest.mark.parametrize('order', [torch.contiguous_format, torch.channels_last])
def test_no_room_for_a_result(order):
    """In the words of NumPy's functions and the GPU's, with the bytes: torch says it as a RuntimeError."""
    input = torch.ones(1, 2, 2, 2).to(memory_format=order)
    size = 2 + 2**22
    with pytest.raises(MemoryError) as caught:
        door.conv2d(input, torch.ones(3, 2, 1, 1), padding=2**21)
    assert str(caught.value) == (
        f'main memory must have {4 * 3 * size**2} bytes free for a tensor of shape (1, 3, {size}, {size}), dtype '
        'torch.float32; got RuntimeError')
