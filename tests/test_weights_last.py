"""Weights whose input channels lie last in memory, as those of a torch model in channels_last: read and written where
they lie."""
import numpy as np
import pytest
import torch

import calls
import pyconv
import pyconv.torch as door
from calls import assert_equal, assert_same_bits, last, peak_of, per_channel, poisoned
from plan_runs import geometry_of
from problems import PHASES, PROBLEMS, P, maps, whole
from pyconv import _known, _pieces, _tiled
from test_winograd import TILED

MORE = [
    P('whole vectors', (7, 6), (3, 3), (32, 64), padding=1, batch=2),
    P('more rows than vectors', (6, 5), (3, 3), (21, 70), padding=1, batch=2),
    P('under 5 by 5', (9, 12), (5, 5), (40, 33), padding=2, batch=2),
    P('strided', (11, 12), (3, 3), (48, 40), stride=2, padding=1, batch=3),
    P('far phases', (17, 15), (5, 4), (36, 68), stride=(2, 3), padding=(2, 1), batch=2),
    P('in groups', (9, 8), (3, 3), (64, 96), padding=1, groups=2, batch=2),
    P('in small groups', (9, 8), (3, 3), (40, 20), padding=1, groups=10, batch=2),
    P('lines', (40,), (5,), (24, 50), padding=2, batch=2),
    P('planes', (4, 7, 9), (2, 3, 3), (17, 40), padding=1, batch=2),
    P('backwards over an edge', (9, 9), (3, 3), (20, 40), padding=((-1, 3), (2, -2)), dilation=(1, 2), batch=2),
    P('reflected', (9, 10), (3, 3), (18, 36), padding=2, padding_mode='reflect', batch=2),
    P('of the size of the image', (4, 4), (4, 4), (12, 40), batch=3),
    P('patches', (16, 16), (4, 4), (16, 40), stride=4, batch=2),
    P('more taps than positions', (17,), (16,), (32, 32), padding=1, batch=2),
    P('more taps than positions amid constants', (17,), (16,), (32, 24), padding=1, batch=2, padding_mode='constant',
      padding_value=2),
    P('one position amid constants', (2, 7), (3, 3), (40, 9), stride=3, padding=((0, 1), (-2, -2)), batch=2,
      padding_mode='constant', padding_value=2),
]
every_problem = pytest.mark.parametrize('problem', PROBLEMS + PHASES + MORE, ids=str)


def to_weight(problem, x, y, per_sample=False, before=None, **more):
    """grad_weight into an `out` whose input channels lie last, added to `before` where that is given."""
    shape = (len(x), *problem.weight_shape) if per_sample else problem.weight_shape
    out = last(poisoned(shape, x.dtype) if before is None else before.copy(), problem.rank)
    accumulate = before is not None
    found = calls.grad_weight(problem, x, y, out=out, per_sample=per_sample, accumulate=accumulate, **more)
    assert found is out
    return out


def assert_alike(problem, found, wanted):
    """The very bits; but a kernel that covers the input is summed in the order in which it lies: then, as each may be
    off by 1e-6 of its size in float32, twice that."""
    if not _pieces.is_dense_layer('forward', geometry_of(problem)):
        assert_same_bits(found, wanted)
        return
    most = 2e-6 * np.finfo(wanted.dtype).eps / np.finfo(np.float32).eps
    assert np.linalg.norm((found - wanted).ravel()) <= most * np.linalg.norm(wanted.ravel())


def check(problem, dtype):
    """The numbers of the loops, and of the same weight in C order."""
    data, wanted = problem.integers(dtype), whole(problem)
    w = last(data.w, problem.rank)
    kept = w.copy()
    assert_equal(calls.forward(problem, data.x, w, data.b), wanted.forward + per_channel(data.b, problem.rank), dtype)
    assert_equal(calls.grad_input(problem, w, data.y), wanted.grad_input, dtype)
    assert_equal(to_weight(problem, data.x, data.y), wanted.grad_weight, dtype)
    floats = problem.floats(dtype)
    for x, y in ((floats.x, floats.y), (last(floats.x, problem.rank), last(floats.y, problem.rank))):
        for threads in (1, 3):
            with pyconv.num_threads(threads):
                found = [(calls.forward(problem, x, w), calls.grad_input(problem, w, y))
                         for w in (floats.w, last(floats.w, problem.rank))]
            for one, other in zip(*found):
                assert_alike(problem, one, other)
            assert_alike(problem, to_weight(problem, x, y), calls.grad_weight(problem, x, y))
            assert_alike(problem, to_weight(problem, x, y, before=floats.w), calls.grad_weight(
                problem, x, y, out=floats.w.copy(), accumulate=True))
            if data.x.ndim == problem.rank + 2:
                of_each = calls.grad_weight(problem, x, y, per_sample=True)
                assert_same_bits(to_weight(problem, x, y, per_sample=True), of_each)
    assert_same_bits(w, kept)


@every_problem
def test_the_same_as_in_c_order(problem, dtype):
    check(problem, dtype)


@pytest.mark.parametrize('problem', TILED, ids=str)
def test_in_tiles(problem, dtype, monkeypatch):
    monkeypatch.setattr(_tiled, 'tiling_pays', lambda name, piece: True)
    _known.forget()
    check(problem, dtype)
    _known.forget()


@pytest.mark.parametrize('problem', [*MORE, *PHASES, *TILED[::3]], ids=str)
def test_what_is_not_finite(problem, dtype):
    data = problem.integers(dtype)
    w = data.w.copy()
    w[0, 0], w[-1, -1, ..., -1] = np.nan, np.inf
    with np.errstate(invalid='ignore'):
        wanted = maps(problem, data.x.astype(float), w.astype(float), data.y.astype(float))
        forward = calls.forward(problem, data.x, last(w, problem.rank))
        back = calls.grad_input(problem, last(w, problem.rank), data.y)
    assert np.array_equal(forward, wanted.forward, equal_nan=True)
    assert np.array_equal(back, wanted.grad_input, equal_nan=True)
    x = data.x.copy()
    x[0, 0], x[-1, ..., -1] = np.nan, np.inf
    with np.errstate(invalid='ignore'):
        assert_same_bits(to_weight(problem, x, data.y), calls.grad_weight(problem, x, data.y))


@pytest.mark.parametrize('dtype', ['float16', 'int8', 'int32', 'complex64', 'complex128'])
@pytest.mark.parametrize('problem', MORE[::2], ids=str)
def test_of_other_types(problem, dtype):
    data = problem.integers()
    x, w, y = (part.astype(dtype) for part in data[:3])
    turned = last(w, problem.rank)
    assert_same_bits(calls.forward(problem, x, turned), calls.forward(problem, x, w))
    assert_same_bits(calls.grad_input(problem, turned, y), calls.grad_input(problem, w, y))
    wanted = calls.grad_weight(problem, x, y)
    assert_same_bits(calls.grad_weight(problem, x, y, out=last(np.full_like(wanted, 99), problem.rank)), wanted)


@pytest.mark.parametrize('scratch', ['least', 'full'])
@pytest.mark.parametrize('problem', [*MORE, *PHASES], ids=str)
def test_in_a_buffer(problem, scratch, dtype):
    """Of the size that is wanted for a weight in C order."""
    data = problem.floats(dtype)
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    sizes = sizes[:2] if scratch == 'full' else (sizes.finput_minimum, sizes.fgrad_input_minimum)
    finput, fgrad_input = (poisoned(max(1, n), dtype) for n in sizes)
    w = last(data.w, problem.rank)
    assert_alike(problem, calls.forward(problem, data.x, w, finput=finput), calls.forward(problem, data.x, data.w))
    assert_alike(problem, calls.grad_input(problem, w, data.y, fgrad_input=fgrad_input),
                 calls.grad_input(problem, data.w, data.y))
    assert_alike(problem, to_weight(problem, data.x, data.y, finput=finput),
                 calls.grad_weight(problem, data.x, data.y))


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('kernel', [3, 5])
def test_nothing_is_copied(kernel, stride):
    """Of a weight of 6 MB and more; its scratch is less."""
    x = last(np.ones((1, 256, 8, 8), np.float32), 2)
    w, out = (last(np.ones((700, 256, kernel, kernel), np.float32), 2) for _ in range(2))
    settings = {'stride': stride, 'padding': kernel // 2}
    y = pyconv.conv2d(x, w, **settings)
    with pyconv.num_threads(1):
        for call in (lambda: pyconv.conv2d(x, w, **settings), lambda: pyconv.conv2d_input(x.shape, w, y, **settings),
                     lambda: pyconv.conv2d_weight(x, w.shape, y, **settings, out=out)):
            assert peak_of(call) < 6 << 20 < w.nbytes


def test_nothing_is_copied_of_a_dense_layer():
    """Of a weight of 25 MB, which lies as the input does."""
    x, w, y = (np.ones(shape, np.float32) for shape in ((2, 256, 7, 7), (512, 256, 7, 7), (2, 512, 1, 1)))
    w_last, to_w, to_x = last(w, 2), last(np.empty_like(w), 2), last(np.empty_like(x), 2)
    with pyconv.num_threads(1):
        for call in (lambda: pyconv.conv2d(x, w), lambda: pyconv.conv2d(last(x, 2), w_last),
                     lambda: pyconv.conv2d_weight(last(x, 2), w.shape, y, out=to_w),
                     lambda: pyconv.conv2d_input(x.shape, w_last, y, out=to_x)):
            assert peak_of(call) < 4 << 20


@pytest.mark.parametrize('front', [False, True])
def test_nothing_beside_it_is_touched(front, run_python):
    run_python("""
import sys
import numpy as np
from calls import forward, grad_input, grad_weight
from guarded import at_an_end
from problems import PHASES
from pyconv import _tiled
import test_weights_last as here
for tiled in (False, True):
    if tiled:
        _tiled.tiling_pays = lambda name, piece: True
    for problem in [*here.MORE, *PHASES, *here.TILED[::4]]:
        for dtype in (np.float32, np.float64):
            data, rank = problem.floats(np.dtype(dtype)), problem.rank
            w = np.moveaxis(at_an_end(np.ascontiguousarray(np.moveaxis(data.w, 1, -1)), sys.argv[1] == 'True'), -1, 1)
            forward(problem, data.x, w)
            grad_input(problem, w, data.y)
            grad_weight(problem, data.x, data.y, out=w)
""", str(front))


def test_a_torch_model_in_channels_last():
    """Its parameters' gradients are those of the same in C order, and lie as these: autograd need not copy them."""
    found = []
    for order in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = door.Conv2d(16, 32, 3, padding=1).to(memory_format=order)
        x = torch.randn(2, 16, 9, 9).to(memory_format=order).requires_grad_()
        model(x).square().sum().backward()
        assert model.weight.is_contiguous(memory_format=order)
        [grad] = torch.autograd.grad(model(x).sum(), model.weight)
        assert grad.stride() == model.weight.stride()
        found.append((x.grad, model.weight.grad))
    for one, other in zip(*found):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)  # sums of 288 products in two orders


@pytest.mark.parametrize('kind', ['planes', 'volumes', 'in groups', 'transposed'])
def test_a_gradient_lies_as_its_weight(kind, dtype):
    rank = 3 if kind == 'volumes' else 2
    call = {'volumes': door.conv3d, 'transposed': door.conv_transpose2d}.get(kind, door.conv2d)
    order = torch.channels_last_3d if rank == 3 else torch.channels_last
    w = torch.randn(6, 4, *(3, 2, 3)[:rank], dtype=torch.from_numpy(np.empty(0, dtype)).dtype)
    x = torch.randn(2, {'in groups': 8, 'transposed': 6}.get(kind, 4), *(5, 6, 7)[:rank], dtype=w.dtype)
    settings = {'groups': 2} if kind == 'in groups' else {}
    found = []
    for weight in (w.clone(), w.to(memory_format=order)):
        [grad] = torch.autograd.grad(call(x, weight.requires_grad_(), **settings).square().sum(), weight)
        assert grad.stride() == weight.stride()
        found.append(grad)
    assert torch.equal(*found)


def test_many_weights_at_a_time():
    """Below torch.vmap a weight does not say how it lies."""
    w = torch.randn(3, 6, 8, 3, 3).movedim(2, -1).contiguous().movedim(-1, 2)
    x = torch.randn(2, 8, 9, 9)
    assert w[0].is_contiguous(memory_format=torch.channels_last)
    wanted = torch.stack([door.conv2d(x, one) for one in w])
    assert torch.allclose(torch.vmap(lambda w: door.conv2d(x, w))(w), wanted, rtol=1e-4, atol=1e-4)
    grads = torch.vmap(torch.func.grad(lambda w: door.conv2d(x, w).sum()))(w)
    assert torch.allclose(grads[1], torch.func.grad(lambda w: door.conv2d(x, w).sum())(w[1]), rtol=1e-4, atol=1e-4)
