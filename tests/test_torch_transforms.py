"""pyconv.torch under torch's transforms: forward mode, vmap, torch.func, and gradcheck with all that it can check."""
import functools
import gc
import itertools
import weakref

import pytest
import torch
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.func import hessian, jacfwd, jacrev, jvp, vjp, vmap

import pyconv
import pyconv.torch as door
from torch_problems import CONV, DERIVATIVES, TRANSPOSE, case_of, operands_of

SOME = ('pairs', 'grouped', 'no batch', 'reflect cropped', 'constant', 'transposed replicate',
        'transposed dilated grouped')


def integers(*shape, seed=0, dtype=torch.float64):
    """Small integers, whose sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)


@pytest.mark.sparse
@pytest.mark.parametrize('dtype', [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize('name', SOME)
def test_gradcheck_with_batches_and_forward_mode(name, dtype):
    function, free = case_of(name, dtype=dtype)
    assert gradcheck(
        function, free, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True,
        check_undefined_grad=True)
    assert gradgradcheck(function, free, check_fwd_over_rev=True, check_batched_grad=True)


# vmap: x and w of both kinds of convolution, with and without a batch axis inside, against one call after the other

SETTINGS = {'stride': 2, 'padding': 1, 'groups': 2}
MODES = {'zeros': {}, 'circular': {'padding_mode': 'circular'},
         'constant': {'padding_mode': 'constant', 'padding_value': 2}}
WHICH = [which for which in itertools.product((None, 0), repeat=3) if any(dim == 0 for dim in which)]


def one_after_the_other(function, in_dims, count, *tensors):
    def slice_of(place):
        return [t if dim is None else t.select(dim, place) for t, dim in zip(tensors, in_dims)]
    return torch.stack([function(*slice_of(place)) for place in range(count)])


def batched(shape, dim, seed, count=3):
    """Integers of a shape, with an axis more at `dim`, or with none."""
    return integers(*shape, seed=seed) if dim is None else integers(count, *shape, seed=seed).movedim(0, dim)


@pytest.mark.parametrize('in_dims', [*WHICH, (2, 1, 1)], ids=str)
@pytest.mark.parametrize('lead', [(), (2,)], ids=['no batch', 'batch'])
@pytest.mark.parametrize('mode', MODES.values(), ids=MODES)
@pytest.mark.parametrize('conv', [door.conv2d, door.conv_transpose2d], ids=['plain', 'transposed'])
def test_vmap(conv, mode, lead, in_dims):
    shapes = (*lead, 4, 5, 4), (4, 3, 3, 2) if conv is door.conv_transpose2d else (6, 2, 3, 2), (6,)
    x, w, b = (batched(shape, dim, seed) for seed, (shape, dim) in enumerate(zip(shapes, in_dims)))

    def function(x, w, b):
        return conv(x, w, b, **SETTINGS, **mode)

    assert torch.equal(vmap(function, in_dims)(x, w, b), one_after_the_other(function, in_dims, 3, x, w, b))


@pytest.mark.parametrize('in_dims', WHICH, ids=str)
@pytest.mark.parametrize('mode', MODES.values(), ids=MODES)
@pytest.mark.parametrize('conv', [door.conv2d, door.conv_transpose2d], ids=['plain', 'transposed'])
def test_vmap_of_all_gradients(conv, mode, in_dims):
    shapes = (2, 4, 5, 4), (4, 3, 3, 2) if conv is door.conv_transpose2d else (6, 2, 3, 2)
    inner = conv(*(torch.zeros(shape) for shape in shapes), **SETTINGS, **mode).shape
    x, w, y = (batched(shape, dim, seed) for seed, (shape, dim) in enumerate(zip((*shapes, inner), in_dims)))

    def gradients(x, w, y):
        _, back = vjp(lambda x, w: conv(x, w, **SETTINGS, **mode), x, w)
        return torch.cat([gradient.flatten() for gradient in back(y)])

    assert torch.equal(vmap(gradients, in_dims)(x, w, y), one_after_the_other(gradients, in_dims, 3, x, w, y))


def test_vmap_in_vmap():
    x, w = integers(2, 3, 4, 5), integers(2, 5, 6, 4, 2)
    answer = vmap(vmap(door.conv1d, (None, 0)))(x, w)
    wanted = torch.stack([torch.stack([door.conv1d(a, b) for b in bs]) for a, bs in zip(x, w)])
    assert torch.equal(answer, wanted) and answer.shape == (2, 5, 3, 6, 4)


@pytest.mark.parametrize('in_dims', [*WHICH, (2, 1, 1)], ids=str)
@pytest.mark.parametrize('mode', MODES.values(), ids=MODES)
@pytest.mark.parametrize('conv', [door.conv2d, door.conv_transpose2d], ids=['plain', 'transposed'])
def test_vmap_over_nothing(conv, mode, in_dims):
    shapes = (2, 4, 5, 4), (4, 3, 3, 2) if conv is door.conv_transpose2d else (6, 2, 3, 2), (6,)
    tensors = [batched(shape, dim, 0, count=0) for shape, dim in zip(shapes, in_dims)]
    one = conv(*(torch.ones(shape) for shape in shapes), **SETTINGS, **mode)

    def function(x, w, b):
        return conv(x, w, b, **SETTINGS, **mode)

    assert vmap(function, in_dims)(*tensors).shape == (0, *one.shape)
    gradients = torch.func.grad(lambda *at: vmap(function, in_dims)(*at).sum(), (0, 1, 2))(*tensors)
    assert all(torch.equal(gradient, torch.zeros_like(tensor)) for gradient, tensor in zip(gradients, tensors))


def test_jacobians_of_no_sample():
    x, w = torch.ones(0, 4, 6, 6), torch.ones(3, 4, 3, 3)
    for jacobian in (jacrev, jacfwd):
        to_x, to_w = jacobian(door.conv2d, (0, 1))(x, w)
        assert to_x.shape == (0, 3, 4, 4, *x.shape) and to_w.shape == (0, 3, 4, 4, *w.shape)
        cube = jacobian(jacobian(lambda x: (door.conv2d(x, w) ** 3).sum()))
        assert cube(x).shape == 2 * x.shape
        cube = jacobian(jacobian(lambda w: (door.conv2d(x, w) ** 3).sum()))
        assert torch.equal(cube(w), torch.zeros(2 * w.shape))


def test_autograd_s_own_vmap_in_itself():
    x, w = (integers(*shape).requires_grad_() for shape in ((2, 3, 5), (4, 3, 2)))
    [jacobian] = grad(door.conv1d(x, w), x, torch.eye(32, dtype=x.dtype).view(32, 2, 4, 4), is_grads_batched=True)
    assert torch.equal(jacobian, jacrev(door.conv1d)(x.detach(), w.detach()).reshape(32, 2, 3, 5))
    hessians = [torch.autograd.functional.hessian(lambda x: (door.conv1d(x, w) ** 3).sum(), x, vectorize=vectorize)
                for vectorize in (False, True)]
    assert torch.equal(*hessians)


@pytest.mark.parametrize('name', SOME)
def test_jacobians_and_hessians_of_both_modes_are_one(name):
    rank, transposed, *_, settings = DERIVATIVES[name]
    conv, operands = (TRANSPOSE if transposed else CONV)[rank], operands_of(name)

    def function(*tensors):
        return conv(*tensors, **settings)

    places = (0, 1, 2)
    reverse, forward = jacrev(function, places)(*operands), jacfwd(function, places)(*operands)
    torch.testing.assert_close(reverse, forward, rtol=1e-12, atol=1e-12)  # sums of tens of products of order 1
    cube = [order(lambda *tensors: (function(*tensors) ** 3).sum(), (0, 1))(*operands)
            for order in (hessian, lambda f, at: jacrev(jacfwd(f, at), at), lambda f, at: jacrev(jacrev(f, at), at))]
    for other in cube[1:]:
        torch.testing.assert_close(other, cube[0], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize('mode', MODES.values(), ids=MODES)
def test_forward_mode_is_conv_jvp(mode):
    primals, tangents = ([integers(*shape, seed=seed) for shape in ((2, 4, 5, 4), (6, 2, 3, 2), (6,))]
                         for seed in (0, 1))
    arrays = [tensor.numpy() for tensor in (*primals[:2], *tangents)]
    wanted = torch.from_numpy(pyconv.conv_jvp(*arrays, **SETTINGS, **mode))
    _, tangent = jvp(lambda *tensors: door.conv2d(*tensors, **SETTINGS, **mode), tuple(primals), tuple(tangents))
    assert torch.equal(tangent, wanted)
    with forward_ad.dual_level():  # of each alone
        parts = []
        for place in range(3):
            given = list(primals)
            given[place] = forward_ad.make_dual(primals[place], tangents[place])
            parts.append(forward_ad.unpack_dual(door.conv2d(*given, **SETTINGS, **mode)).tangent)
    assert torch.equal(sum(parts), wanted)


def test_gradients_of_samples_are_those_of_per_sample():
    images, grad_outputs = integers(5, 4, 9), integers(5, 6, 7, seed=1)
    leaves = {'weight': integers(6, 2, 3, seed=2), 'bias': integers(6, seed=3)}

    def loss(leaves, image, grad_output):
        return (door.conv1d(image[None], leaves['weight'], leaves['bias'], groups=2) * grad_output).sum()

    gradients = vmap(torch.func.grad(loss), (None, 0, 0))(leaves, images, grad_outputs)
    wanted = pyconv.conv1d_weight(
        images.numpy(), (6, 2, 3), grad_outputs.numpy(), groups=2, per_sample=True)
    assert torch.equal(gradients['weight'], torch.from_numpy(wanted))
    assert torch.equal(gradients['bias'], grad_outputs.sum(-1))
    whole = torch.func.grad(lambda leaves: vmap(loss, (None, 0, 0))(leaves, images, grad_outputs).sum())(leaves)
    assert torch.equal(whole['weight'], gradients['weight'].sum(0))


def test_forward_mode_keeps_nothing_beyond_the_call():
    leaf, w = torch.ones(1, 1, 5, requires_grad=True), torch.ones(1, 1, 2)
    x = leaf * 1
    seen, y = weakref.ref(x), door.conv1d(x, w)
    del x
    gc.collect()
    assert seen() is None and y.requires_grad


@pytest.mark.parametrize('name', ['conv1d', 'conv_transpose1d'])
def test_a_complex_constant_around_the_input(name):
    """A gradient reads it conjugated, as it does the input."""
    x, w = (torch.randn(shape, dtype=torch.complex128, requires_grad=True) for shape in ((2, 2, 5), (2, 2, 3)))
    call = functools.partial(getattr(door, name), padding=2, padding_mode='constant', padding_value=1 - 2j)
    assert gradcheck(call, (x, w), check_forward_ad=True)
    assert gradgradcheck(call, (x, w))
    compiled = torch.compile(lambda x, w: call(x, w).real.sum(), backend='aot_eager', fullgraph=True)
    for one, other in zip(grad(compiled(x, w), (x, w)), grad(call(x, w).real.sum(), (x, w))):
        torch.testing.assert_close(one, other)


def test_forward_over_reverse_of_tensors_that_are_conjugated_lazily():
    x, w = (torch.randn(shape, dtype=torch.complex128) for shape in ((1, 2, 5), (3, 2, 2)))
    gradient = torch.func.grad(lambda x, w: door.conv1d(x, w).real.pow(3).sum(), (0, 1))
    for first, second in ((x.conj(), w), (x, w.conj())):
        wanted = jvp(gradient, (first.resolve_conj(), second.resolve_conj()), (x, w))
        torch.testing.assert_close(jvp(gradient, (first, second), (x, w)), wanted)


# forward mode in forward mode


def along(letter, function, tangents):
    """The derivative of a function of many tensors along those tangents, forward, reverse, or forward in a vmap."""
    def forward(*tensors):
        return jvp(function, tensors, tangents)[1]

    def many(*tensors):
        times = torch.tensor([1, 2], dtype=torch.float64)
        return vmap(lambda s: jvp(function, tensors, tuple(t * s for t in tangents))[1])(times).sum() / 3

    def reverse(*tensors):
        gradients = torch.func.grad(function, tuple(range(len(tensors))))(*tensors)
        return sum((g.conj() * t).real.sum() for g, t in zip(gradients, tangents))

    return {'J': forward, 'V': many, 'G': reverse}[letter]


def derivative(word, function, operands):
    """Of a sum over the function, along one direction as many times as the word has letters, its last letter inmost."""
    tangents = tuple(tensor.flip(-1) + 1 for tensor in operands)

    def loss(x, w, b):
        y = function(x.sin(), w * w, b)
        return (y * y * y).real.sum()

    for letter in reversed(word):
        loss = along(letter, loss, tangents)
    return loss(*operands)


WORDS = [''.join(word) for count in (2, 3) for word in itertools.product('JGV', repeat=count)
         if len(word) - word.count('G') > 1]


def words_of(turn):
    """A third of the words of two letters, and of those of three, in which any two places have any two letters."""
    return [word for word in WORDS if sum(map('JGV'.index, word)) % 3 == turn % 3]


@pytest.mark.parametrize(('turn', 'name', 'dtype'), [(turn, *case) for turn, case in enumerate([
    *((name, torch.float64) for name in DERIVATIVES), *((name, torch.complex128) for name in SOME)])], ids=str)
def test_forward_mode_in_forward_mode(turn, name, dtype):
    """Every problem with a third of the words, the next with another third."""
    rank, transposed, *_, settings = DERIVATIVES[name]
    conv, operands = functools.partial((TRANSPOSE if transposed else CONV)[rank], **settings), operands_of(name, dtype)
    wanted = {count: derivative('G' * count, conv, operands) for count in (2, 3)}
    for word in words_of(turn):  # sums of hundreds of products
        torch.testing.assert_close(derivative(word, conv, operands), wanted[len(word)], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize('name', SOME)
def test_forward_mode_in_forward_mode_of_many(name):
    rank, transposed, *_, settings = DERIVATIVES[name]
    conv, operands = functools.partial((TRANSPOSE if transposed else CONV)[rank], **settings), operands_of(name)

    for in_dims in WHICH:
        many = [t if dim is None else torch.stack([t, t + 1, t * 2]) for t, dim in zip(operands, in_dims)]
        wanted = one_after_the_other(lambda *one: derivative('GG', conv, one), in_dims, 3, *many)
        answers = vmap(lambda *one: derivative('JJ', conv, one), in_dims)(*many)
        torch.testing.assert_close(answers, wanted, rtol=1e-11, atol=1e-11)


def test_jacobians_of_jacobians_of_a_network():
    x, w = operands_of('1d')[0][:, :, :4], operands_of('1d')[1][:2, :, :2]

    def function(w):
        return door.conv1d(torch.tanh(door.conv1d(x, w)), w).sum()

    wanted = jacrev(jacrev(function))(w)
    assert wanted.abs().max() > 0.1
    for twice in (jacfwd(jacfwd(function)), jacfwd(jacrev(function)), jacrev(jacfwd(function))):
        torch.testing.assert_close(twice(w), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('transform', [
    lambda function, x: vmap(function)(x[None]), lambda function, x: torch.func.grad(lambda x: function(x).sum())(x),
    lambda function, x: jvp(function, (x,), (x,)),
], ids=['vmap', 'grad', 'jvp'])
def test_plain_functions_refuse_what_is_transformed(transform):
    x, w = integers(1, 2, 6), integers(3, 2, 2)
    for name, tensor, call in (
        ('input', x, lambda x: pyconv.conv1d(x, w)), ('weight', w, lambda w: pyconv.conv1d(x, w))):
        with pytest.raises(TypeError) as error:
            transform(call, tensor)
        assert str(error.value) == (f"{name} must be outside of torch.func's transforms, which take pyconv.torch's "
                                    "functions; got a tensor inside")
