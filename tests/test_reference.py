"""The reference itself: against numbers worked out by hand, against torch, and for every kind of number."""
import math

import numpy as np
import pytest
import torch

import reference
from problems import BY_NAME, EVERY, VARIED, P, expected, maps

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
TRANSPOSE = {1: torch.nn.functional.conv_transpose1d, 2: torch.nn.functional.conv_transpose2d,
             3: torch.nn.functional.conv_transpose3d}


NUMPY_S = {'zeros': 'constant', 'constant': 'constant', 'circular': 'wrap', 'replicate': 'edge', 'reflect': 'reflect'}


def padded(problem, x):
    """A copy with the padding around it (or without the border): numpy.pad says which cell lies where."""
    places = np.arange(math.prod(problem.size)).reshape(problem.size)
    crop = tuple(slice(max(0, -lo), length - max(0, -hi)) for length, (lo, hi) in zip(problem.size, problem.pads))
    around = [(max(0, lo), max(0, hi)) for lo, hi in problem.pads]
    nowhere = {'constant_values': -1} if problem.padding_mode in ('zeros', 'constant') else {}
    places = torch.from_numpy(np.pad(places[crop], around, NUMPY_S[problem.padding_mode], **nowhere))
    cells = x.flatten(2)[..., places.clamp(min=0)]
    return torch.where(places >= 0, cells, torch.tensor(float(problem.padding_value), dtype=x.dtype))


def torch_maps(problem, x, w, y):
    """Padding as a copy, then torch's own convolution and autograd."""
    x, w, y = (torch.from_numpy(a.copy()).requires_grad_() for a in (x, w, y))
    answer = CONV[problem.rank](padded(problem, x), w, None, problem.per_axis(problem.stride), 0,
                                problem.per_axis(problem.dilation), problem.groups)
    return answer.detach().numpy(), *(a.numpy() for a in torch.autograd.grad(answer, (x, w), y))


@pytest.mark.parametrize('problem', EVERY, ids=str)
def test_maps_are_torch_s(problem):
    data = problem.integers()
    for mine, other in zip(expected(problem.name), torch_maps(problem, data.x, data.w, data.y)):
        assert mine.shape == other.shape
        assert (mine == other).all()


def test_transposed_is_torch_s():
    compared = 0
    for problem in EVERY:
        padding, output_padding = problem.transposed_padding
        padding = reference.named_or_numeric_padding(
            padding, problem.size, problem.kernel, problem.per_axis(problem.stride), problem.per_axis(problem.dilation))
        if problem.mode or any(lo != hi or lo < 0 for lo, hi in padding):
            continue
        data = problem.integers()
        wanted = TRANSPOSE[problem.rank](
            torch.from_numpy(data.y), torch.from_numpy(data.w), None, problem.stride, [lo for lo, _ in padding],
            output_padding, problem.groups, problem.dilation).numpy()
        answer = reference.transposed(data.y, data.w, problem.size, **problem.form)
        assert answer.shape == wanted.shape and (answer == wanted).all(), problem.name
        compared += 1
    assert compared > 150


def test_unfold_and_fold_are_torch_s():
    problem = BY_NAME['2d stride 2 dilation 3']
    x = problem.integers().x
    keywords = {'kernel_size': problem.kernel, 'dilation': problem.dilation, 'padding': problem.padding,
                'stride': problem.stride}
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    columns = reference.unfold(x, problem.kernel, problem.positions, **form)
    assert (columns == torch.nn.functional.unfold(torch.from_numpy(x), **keywords).numpy()).all()
    back = reference.fold(columns, problem.size, problem.kernel, problem.positions, **form)
    assert (back == torch.nn.functional.fold(torch.from_numpy(columns), problem.size, **keywords).numpy()).all()


def test_by_hand():
    x, w = np.array([[[1., 2., 3., 4.]]]), np.array([[[10., 1.]]])
    form = {'stride': (2,), 'lo': (1,), 'dilation': (1,), 'groups': 1}
    y = reference.forward(x, w, (3,), **form)
    assert y.tolist() == [[[1., 23., 40.]]]
    assert reference.grad_input(w, y, (4,), **form).tolist() == [[[1., 230., 23., 400.]]]
    assert reference.grad_weight(x, y, (2,), **form).tolist() == [[[206., 70.]]]
    assert reference.unfold(x, (2,), (3,), (2,), (1,), (1,)).tolist() == [[[0., 2., 4.], [1., 3., 0.]]]


@pytest.mark.parametrize('padding, pads', [
    ('valid', [(0, 0), (0, 0)]), ('full', [(4, 4), (3, 3)]), ('causal', [(4, 0), (3, 0)]),
    ('same', [(1, 2), (0, 1)]), ('same_lower', [(2, 1), (1, 0)]), (2, [(2, 2), (2, 2)]), ((1, 2), [(1, 1), (2, 2)]),
    (((1, -2), (0, 3)), [(1, -2), (0, 3)])])
def test_padding_by_hand(padding, pads):
    assert reference.named_or_numeric_padding(padding, (10, 12), (3, 4), (2, 3), (2, 1)) == pads


@pytest.mark.parametrize('mode, cells', [
    ('zeros', [None, None, None, None, None, 0, 1, 2, None, None]),
    ('circular', [1, 2, 0, 1, 2, 0, 1, 2, 0, 1]),
    ('replicate', [0, 0, 0, 0, 0, 0, 1, 2, 2, 2]),
    ('reflect', [1, 0, 1, 2, 1, 0, 1, 2, 1, 0])])
def test_modes_by_hand(mode, cells):
    assert [reference.phi(cell, 0, 3, mode) for cell in range(-5, 5)] == cells
    assert [reference.phi(cell, 2, 5, mode) for cell in range(-3, 7)] == [c if c is None else c + 2 for c in cells]


def test_one_cell_is_its_own_mirror():
    assert {reference.phi(cell, 4, 5, 'reflect') for cell in range(10)} == {4}


def test_a_constant_takes_part():
    x, w = np.array([[[np.nan, 1.]]]), np.array([[[np.inf, 1.]]])
    form = {'stride': (1,), 'lo': (1,), 'dilation': (1,), 'groups': 1, 'padding': reference.Padding('constant', -2)}
    assert reference.forward(np.ones_like(x), w, (3,), **form).tolist() == [[[-np.inf, np.inf, np.inf]]]
    y = reference.forward(x, np.ones_like(w), (3,), **form)
    assert np.isnan(y).tolist() == [[[True, True, False]]] and y[0, 0, 2] == -1
    assert reference.grad_weight(x, y * 0 + 1, (2,), **form)[0, 0, 1:].tolist()[0] != 0


def test_per_sample_sums_to_the_gradient():
    problem = BY_NAME['reflect 2d groups everything']
    data = problem.integers()
    alone = reference.grad_weight(data.x, data.y, problem.kernel, **problem.form, per_sample=True)
    assert alone.shape == (2, *problem.weight_shape)
    assert (alone.sum(0) == expected(problem.name).grad_weight).all()


def test_integers_modulo_powers_of_two():
    assert reference.modulo(np.array([127, 128, -129, 2**70 + 3], object), np.int8).tolist() == [127, -128, 127, 3]
    assert reference.modulo(np.array([[-1, 2**64]], object), np.uint64).tolist() == [[2**64 - 1, 0]]
    problem = P('objects', (5,), (2,))
    data = problem.integers(np.int64)
    exact = maps(problem, *(part.astype(object) for part in data[:3]))
    assert exact.forward.dtype == object
    for mine, wanted in zip(exact, maps(problem, *data[:3])):
        assert (mine == wanted).all()


def test_padding_multiplies_nothing():
    x, w = np.ones((1, 1, 3)), np.array([[[np.inf, 1., np.nan]]])
    y = reference.forward(x, w, (5,), (1,), (2,), (1,), 1)
    assert np.isnan(y[0, 0]).tolist() == [True, True, True, False, False]
    assert y[0, 0, 3:].tolist() == [np.inf, np.inf]


def test_complex_and_integers():
    for problem in VARIED:
        data = problem.integers(np.int64)
        for mine, wanted in zip(maps(problem, data.x, data.w, data.y), expected(problem.name)):
            assert mine.dtype == np.int64 and (mine == wanted).all()
    problem = BY_NAME['2d groups everything']
    a, b = problem.integers(np.complex128), problem.floats()
    x, w, y = a.x + 1j * b.x, a.w - 2j * b.w, a.y * (1 + 3j)
    real = [maps(problem, *parts) for parts in (
        (x.real, w.real, y.real), (x.imag, w.imag, y.imag), (x.real, w.imag, y.imag), (x.imag, w.real, y.real))]
    answer = maps(problem, x, w, y).forward
    np.testing.assert_allclose(answer.real, real[0].forward - real[1].forward, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(answer.imag, real[2].forward + real[3].forward, rtol=1e-12, atol=1e-12)


def test_float32_is_exact_for_every_problem():
    for problem in EVERY:
        assert max(problem.terms) * 3 * 3 < 2**24, problem.name
        assert math.prod(problem.output_shape) > 0, problem.name
