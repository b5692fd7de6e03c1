"""pyconv.torch under torch.compile and torch.export: values, gradients, symbols for sizes, transforms, and errors."""
import shutil
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad, grad
from torch.func import jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.masked import masked_tensor
from torch.nn.utils._per_sample_grad import call_for_per_sample_grads

import pyconv
import pyconv.torch as door
from torch_problems import CONV, DERIVATIVES, TRANSPOSE, case_of

OPERATOR = torch.ops.pyconv.map.default
SOME = ('pairs', 'causal', 'no batch', 'reflect cropped', 'constant', 'transposed replicate', 'transposed same',
        'transposed output padding above stride', '3d')


@pytest.fixture(autouse=True)
def forget_graphs():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(function, backend='aot_eager', **more):
    return torch.compile(function, backend=backend, fullgraph=True, **more)


def integers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


def leaves(*shapes, dtype=torch.float32):
    return [integers(*shape, dtype=dtype, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]


def assert_alike(ours, plain, *tensors):
    """The same bits and strides, forward and in every gradient."""
    results = []
    for function in (ours, plain):
        y = function(*tensors)
        free = [tensor for tensor in tensors if tensor.requires_grad]
        results.append((y, *grad((y * y.conj()).real.sum(), free)))
    for ours, plain in zip(*results, strict=True):
        assert torch.equal(ours, plain) and ours.stride() == plain.stride()


@pytest.mark.parametrize('name', SOME)
def test_values_and_gradients(name):
    function, free = case_of(name)
    ours = compiled(function)
    assert_alike(ours, function, *free)


@pytest.mark.parametrize('type_', [torch.bfloat16, torch.complex64], ids=str)
def test_other_types(type_):
    if type_ is torch.bfloat16:
        pytest.importorskip('ml_dtypes')
    x, w, b = leaves((2, 4, 5), (6, 2, 3), (6,), dtype=type_)
    if type_.is_complex:
        x = (x.detach() * (1 + 2j)).requires_grad_()

    def function(x, w, b):
        return door.conv1d(x, w, b, 2, 3, groups=2, padding_mode='constant', padding_value=2)

    assert_alike(compiled(function), function, x, w, b)


@pytest.mark.parametrize('dtype', ['float32', 'int8'])
def test_plain_functions_inside(dtype):
    """Of NumPy's arrays, which torch takes for tensors meanwhile: the same whether the call was ever made outside."""
    x, w = np.arange(75).reshape(1, 3, 5, 5).astype(dtype), np.ones((2, 3, 3, 3), dtype)
    for maker in (pyconv.conv2d, lambda x, w: pyconv.conv2d_input(x.shape, w, np.ones((1, 2, 3, 3), dtype))):
        found = torch.compile(maker, backend='eager')(x, w)
        wanted = maker(x, w)
        assert found.dtype == wanted.dtype and np.array_equal(found, wanted)


@pytest.mark.skipif(not (shutil.which('g++') or shutil.which('clang++')), reason='inductor needs a C++ compiler')
def test_inductor_with_sizes_that_change():
    torch.manual_seed(0)
    model = nn.Sequential(
        door.Conv2d(2, 4, 3, stride=2, padding='same', padding_mode='reflect'), nn.ReLU(),
        door.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, padding_mode='circular')).double()
    ours = compiled(model, 'inductor', dynamic=True)
    for shape in ((2, 2, 8, 6), (3, 2, 9, 11)):
        x = torch.randn(shape, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
        results = [(y, *grad(y.sum(), (x, *model.parameters()))) for y in (ours(x), model(x))]
        for mine, plain in zip(*results, strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-12, atol=1e-12)  # sums may be fused in another order


def test_one_graph_for_all_sizes():
    graphs = []

    def counting(graph, _):
        graphs.append(graph)
        return graph.forward

    def function(x, w):
        return door.conv_transpose2d(door.conv2d(x, w, padding=1, stride=2), w, stride=2, padding='same')

    ours = torch.compile(function, backend=counting, fullgraph=True, dynamic=True)
    w = integers(3, 3, 3, 2)
    for batch, *size in ((4, 7, 9), (5, 9, 7), (6, 12, 5), (8, 6, 31)):
        x = integers(batch, 3, *size)
        assert torch.equal(ours(x, w), function(x, w))
    assert len(graphs) == 1


@pytest.mark.parametrize('strict', [False, True])
def test_export(strict):
    model, x = door.replace(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ConvTranspose2d(3, 1, 2, 2))), torch.ones(
        2, 2, 5, 6)
    sizes = {0: torch.export.Dim('batch'), 2: torch.export.Dim('height', min=4, max=100)}
    program = torch.export.export(model, (x,), dynamic_shapes=(sizes,), strict=strict)
    assert sum(node.target is OPERATOR for node in program.graph.nodes) == 2
    for shape in ((2, 2, 5, 6), (3, 2, 8, 6)):
        x = integers(*shape)
        assert torch.equal(program.module()(x), model(x))


@pytest.mark.parametrize('transposed', [False, True])
def test_functions_as_values_of_a_graph(transposed):
    """In a closure, as an argument, and bound: of another number of axes each time."""
    first, second = (door.conv_transpose1d, door.conv_transpose2d) if transposed else (door.conv1d, door.conv2d)
    tensors = {rank: (integers(2, 3, *(7, 6)[:rank]), integers(3, 3, *(3, 2)[:rank])) for rank in (1, 2)}
    given = compiled(lambda function, x, w: function(x, w, padding=1), 'eager')
    for rank, function in ((1, first), (2, second)):
        bound, (x, w) = partial(function, padding=1), tensors[rank]
        assert torch.equal(given(function, x, w), bound(x, w))
        for ours in (lambda x: bound(x, w), lambda x: function(x, w, padding=1)):
            assert torch.equal(compiled(ours, 'eager', dynamic=True)(x), bound(x, w))


def test_a_numeric_padding_is_compiled_without_a_warning():
    x, w = integers(1, 3, 6), integers(3, 3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)
        assert torch.equal(compiled(lambda x: door.conv1d(x, w, padding=1), 'eager')(x), door.conv1d(x, w, padding=1))


@pytest.mark.parametrize('dilation', [1, 3])
def test_export_of_a_named_size_with_a_stride_and_the_padding_same(dilation):
    model = door.Conv1d(2, 3, 4, stride=3, padding='same', dilation=dilation)
    width = torch.export.Dim('width', min=4)  # as torch's own convolutions want it: no result has a single position
    program = torch.export.export(model, (torch.ones(1, 2, 20),), dynamic_shapes=({2: width},))
    for size in (4, 6, 8, 19):
        x = integers(1, 2, size)
        assert torch.equal(program.module()(x), model(x))


ARGUMENTS = {
    'plain': lambda: (
        'forward', *leaves((2, 4, 7, 6), (6, 2, 3, 3), (6,)), None, 2, 2, False, [2, 1], '', [1, 0, 2, 2], [1, 1],
        [0, 0], 'circular', [0.0, 0.0], 'gemm', False),
    'transposed': lambda: (
        'grad_input', *leaves((4, 3), (4, 2, 3), (2,)), [7], 1, 1, True, [3], 'same', [], [1], [0], 'zeros',
        [0.0, 0.0], 'auto', False),
    'weight': lambda: (
        'grad_weight', *leaves((2, 4, 7), (2, 6, 3)), None, [3], 2, 1, False, [2], '', [0], [1], [0], 'zeros',
        [0.0, 0.0], 'auto', False),
}


@pytest.mark.parametrize('make', ARGUMENTS.values(), ids=ARGUMENTS)
def test_opcheck(make):
    opcheck(OPERATOR, make())


@pytest.mark.parametrize('order', [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_result_without_memory_has_the_strides_of_a_real_one(order):
    x, w = integers(2, 4, 7, 6).to(memory_format=order), integers(6, 4, 3, 3)
    opcheck(OPERATOR, ('forward', x, w, None, None, 1, 2, False, [1, 1], 'same', [], [1, 1], [0, 0], 'zeros',
                       [0.0, 0.0], 'auto', False), test_utils=('test_schema', 'test_faketensor'))


def test_every_gradient_of_the_operator_is_the_function_s():
    """The operator itself, as an exported program calls it: two orders, and forward mode."""
    for name in ('grouped', 'constant', 'transposed replicate'):
        rank, transposed, *_, settings = DERIVATIVES[name]
        _, free = case_of(name)
        ways = []
        for compiling in (False, True):
            function = partial((TRANSPOSE if transposed else CONV)[rank], **settings)
            if compiling:
                function = exported(function, free)
            y = function(*free)
            first = grad((y ** 3).sum(), free, create_graph=True)
            second = grad(sum((g * g).sum() for g in first), free)
            with forward_ad.dual_level():
                dual = [forward_ad.make_dual(tensor.detach(), tensor.detach() + 1) for tensor in free]
                ways.append((y, *first, *second, forward_ad.unpack_dual(function(*dual)).tangent))
        for mine, plain in zip(*ways, strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('twice', [
    lambda f, x, w: jvp(lambda x: jvp(lambda x: f(x, w), (x,), (x,))[1], (x,), (x,))[1],
    lambda f, x, w: jvp(lambda *at: jvp(f, at, at)[1], (x, w), (x, w))[1],
    lambda f, x, w: jvp(lambda *at: jvp(lambda *at: torch.func.grad(lambda x, w: f(x, w).sum(), (0, 1))(*at)[1],
                                        at, at)[1], (x, w), (x, w))[1],
    lambda f, x, w: torch.func.hessian(lambda x: f(x, w).sum())(x),
    lambda f, x, w: vmap(vmap(f, (0, None)), (None, 0))(torch.stack([x, x * 2]), torch.stack([w, w * 3])),
], ids=['jvp of jvp', 'jvp of jvp of both', 'jvp of jvp of gradient', 'hessian', 'vmap of vmap'])
def test_transforms_of_an_exported_program(twice):
    def function(x, w):
        return door.conv1d(x, w, padding=1).sin()

    x, w = integers(2, 2, 5, dtype=torch.float64), integers(3, 2, 2, dtype=torch.float64)
    program, wanted = exported(function, (x, w)), twice(lambda x, w: torch.conv1d(x, w, padding=1).sin(), x, w)
    torch.testing.assert_close(twice(program, x, w), wanted, rtol=1e-12, atol=1e-12)
    traced = make_fx(partial(twice, function))(x, w)
    torch.testing.assert_close(traced(x, w), wanted, rtol=1e-12, atol=1e-12)


def test_vmap_over_nothing_of_an_exported_program():
    x, w = integers(2, 2, 5), integers(3, 2, 2)
    program = exported(door.conv1d, (x, w))
    for in_dims in ((0, None), (None, 0), (0, 0), (2, 1)):
        tensors = [t if dim is None else t.new_empty(*t.shape[:dim], 0, *t.shape[dim:])
                   for t, dim in zip((x, w), in_dims)]
        assert vmap(program, in_dims)(*tensors).shape == (0, 2, 3, 4)


def exported(function, free):
    class Model(nn.Module):
        def forward(self, *tensors):
            return function(*tensors)

    return torch.export.export(Model(), tuple(tensor.detach() for tensor in free)).module()


def test_other_tracers_see_the_operator():
    x, w, other = integers(1, 2, 6), integers(3, 2, 2), integers(1, 2, 6, seed=1)

    def function(x):
        return door.conv1d(x, w, padding=1)

    graph = make_fx(function)(x)
    assert torch.equal(graph(other), function(other)) and any(node.target is OPERATOR for node in graph.graph.nodes)
    assert torch.equal(torch.jit.trace(function, (x,))(other), function(other))
    with FakeTensorMode() as mode:
        y = door.conv1d(mode.from_tensor(x), mode.from_tensor(w), padding=1)
    assert isinstance(y, FakeTensor) and y.shape == (1, 3, 7)


def test_subclasses_that_answer_for_operators_meet_the_operator():
    mode = FakeTensorMode()
    x, w = mode.from_tensor(integers(1, 2, 6)), mode.from_tensor(integers(3, 2, 2))
    y = door.conv1d(x, w, padding=1)
    assert isinstance(y, FakeTensor) and y.shape == (1, 3, 7)
    masked = masked_tensor(torch.ones(1, 2, 6), torch.ones(1, 2, 6) > 0)
    with pytest.raises(TypeError, match='pyconv.map.default'):
        door.conv1d(masked, integers(3, 2, 2))


@pytest.mark.skipif(not torch.distributed.is_available(), reason='this torch has no torch.distributed')
def test_a_distributed_tensor_is_refused():
    from torch import distributed
    from torch.distributed.tensor import DeviceMesh, distribute_tensor

    distributed.init_process_group('gloo', store=distributed.HashStore(), rank=0, world_size=1)
    try:
        x, w = (distribute_tensor(integers(*shape), DeviceMesh('cpu', [0])) for shape in ((1, 2, 6), (3, 2, 2)))
        with pytest.raises(NotImplementedError, match='pyconv.map.default does not have a sharding strategy'):
            door.conv1d(x, w)
    finally:
        distributed.destroy_process_group()


def test_what_torch_s_own_transforms_do_not_take():
    x, w = torch.ones(2, 2, 6), torch.ones(3, 2, 2)
    with pytest.raises(RuntimeError, match='Functionalize'):
        torch.func.functionalize(door.conv1d)(x, w)
    with pytest.raises(RuntimeError, match='Expanded Weights'):
        call_for_per_sample_grads(door.Conv1d(2, 3, 2), loss_reduction='sum')(x)


def test_transforms_inside_of_a_graph():
    x, w, grad_output = integers(3, 2, 4, 7), integers(6, 2, 3), integers(3, 2, 6, 5)

    def of_samples(w, x, grad_output):
        return vmap(torch.func.grad(lambda w, x, y: (door.conv1d(x, w, groups=2) * y).sum()), (None, 0, 0))(
            w, x, grad_output)

    assert torch.equal(compiled(of_samples)(w, x, grad_output), of_samples(w, x, grad_output))
    both = vmap(lambda x, w, b: door.conv1d(x, w, b))
    tensors = x, integers(3, 5, 4, 2), integers(3, 5)
    assert torch.equal(compiled(both)(*tensors), both(*tensors))


# forward mode


def test_forward_mode_is_refused_in_a_graph_and_right_beside_one():
    x, w, t = integers(1, 2, 6), integers(3, 2, 2), integers(1, 2, 6, seed=1)

    def tangent(x, t):
        return jvp(lambda x: door.conv1d(x, w).sin(), (x,), (t,))[1]

    def function(x):
        return door.conv1d(x, w).sin()

    wanted = tangent(x, t)
    for ours in (compiled(tangent), compiled(tangent, 'inductor')):
        with pytest.raises(Exception, match='forward mode must be outside of torch.compile and torch.export'):
            ours(x, t)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(tangent, backend='aot_eager')(x, t), wanted)
    for backend in ('aot_eager', 'inductor'):
        torch._dynamo.reset()
        ours = compiled(function, backend)
        with forward_ad.dual_level(), pytest.raises(Exception, match='forward mode must be outside of torch.compile'):
            ours(forward_ad.make_dual(x, t))
    with forward_ad.dual_level():
        y = torch.compile(function, backend='aot_eager')(forward_ad.make_dual(x, t))
        torch.testing.assert_close(forward_ad.unpack_dual(y).tangent, wanted)


def test_a_graph_made_before_is_not_used_in_forward_mode():
    x, w = integers(1, 2, 6), integers(3, 2, 2)
    ours = compiled(lambda x: door.conv1d(x, w))
    assert torch.equal(ours(x), door.conv1d(x, w))
    with forward_ad.dual_level(), pytest.raises(Exception, match='forward mode must be outside of torch.compile'):
        ours(forward_ad.make_dual(x, x))


def test_a_backward_that_a_graph_breaks_for():
    x, w = leaves((1, 2, 6), (3, 2, 2))
    y = door.conv1d(x, w)

    @torch.compile(backend='aot_eager')
    def step(y):
        (y * 2).sum().backward()
        return y + 1

    step(y)
    wanted = grad((door.conv1d(x, w) * 2).sum(), (x, w))
    assert torch.equal(x.grad, wanted[0]) and torch.equal(w.grad, wanted[1])


# errors


@pytest.mark.parametrize(('settings', 'text'), [
    ({'padding': 'reflect'}, 'padding must be an int >= 0, a sequence of 1 such'),
    ({'padding': ((1, 2), (3, 4))}, 'padding must be an int >= 0, a sequence of 1 such'),
    ({'stride': 0}, r'stride must be an int >= 1 or a sequence of 1 such; got \(?0'),
    ({'stride': 1.5}, 'stride must be an int >= 1 or a sequence of 1 such; got 1.5'),
    ({'groups': 3}, 'groups must divide axis 0 of weight, 4; got 3'),
    ({'input': torch.ones(1, 2, 0), 'padding': 'same'}, r'weight must span at most the padded input, \(1,\)'),
    ({'dilation': 9}, r'weight must span at most the padded input, \(6,\)'),
    ({'bias': torch.ones(5)}, r'bias must have shape \(4,\); got shape \(5,\)'),
    ({'weight': torch.ones(4, 3, 2)}, 'input must have 3 channels, axis 1 of weight, 3, times groups, 1'),
    ({'weight': torch.ones(4, 2, 2).double()}, 'weight must have the dtype of input, torch.float32'),
    ({'output_size': 9}, r'output_size must be from \(5,\) to \(5,\), axis by axis; got \(9,\)'),
    ({'padding_mode': 'wrap'}, "padding_mode must be one of 'zeros', 'constant'"),
    ({'padding_value': 1}, "padding_value must be 0 where padding_mode is not 'constant'"),
], ids=str)
def test_errors_are_those_of_every_call(settings, text):
    tensors = {'input': torch.ones(1, 2, 6), 'weight': torch.ones(4, 2, 2), **settings}
    with pytest.raises((TypeError, ValueError), match=f'^{text}'):
        door.conv1d(**tensors)
    with pytest.raises(Exception, match=text):
        compiled(lambda: door.conv1d(**tensors) + 1)()
