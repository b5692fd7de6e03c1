"""output_size of a convolution: a division rounded up, as a row of PROBLEMS whose last positions are asked for."""
import itertools

import numpy as np
import pytest

import pyconv
from calls import CONV, INPUT, WEIGHT, assert_equal, per_channel
from problems import PROBLEMS, expected, maps

torch = pytest.importorskip('torch')


def less_padded(problem):
    """The problem's pads with less behind, so that each axis that can has its last position beyond the division."""
    pads = []
    for n, k, s, d, y, (lo, hi) in zip(problem.size, problem.kernel, problem.per_axis(problem.stride),
                                       problem.per_axis(problem.dilation), problem.positions, problem.pads):
        rest = (n + lo + hi - d * (k - 1) - 1) % s
        asked = rest < s - 1 and y > 1 and (y - 1) * s < n + lo
        pads.append((lo, hi - rest - 1) if asked else (lo, hi))
    return None if pads == problem.pads else pads


ROWS = [(problem, pads) for problem in PROBLEMS if (pads := less_padded(problem)) is not None]
every_row = pytest.mark.parametrize(('problem', 'pads'), ROWS, ids=[str(problem) for problem, _ in ROWS])


def settings(problem, pads):
    return {**problem.keywords, 'padding': pads}


def test_there_are_rows():
    assert len(ROWS) > 30 and {problem.rank for problem, _ in ROWS} == {1, 2, 3}


@every_row
def test_forward(problem, pads, dtype):
    data, wanted, rank = problem.integers(dtype), expected(problem.name).forward, problem.rank
    smaller = CONV[rank](data.x, data.w, **settings(problem, pads))
    assert smaller.shape != wanted.shape
    inside = tuple(map(slice, smaller.shape))
    assert_equal(smaller, wanted[inside], dtype)
    found = CONV[rank](data.x, data.w, data.b, **settings(problem, pads), output_size=problem.positions)
    assert_equal(found, wanted + per_channel(data.b, rank), dtype)
    assert_equal(CONV[rank](data.x, data.w, **settings(problem, pads), output_size=smaller.shape[2:]),
                 wanted[inside], dtype)


@every_row
def test_gradients(problem, pads, dtype):
    data, wanted, rank = problem.integers(dtype), expected(problem.name), problem.rank
    more = settings(problem, pads)
    assert_equal(INPUT[rank](data.x.shape, data.w, data.y, **more), wanted.grad_input, dtype)
    assert_equal(WEIGHT[rank](data.x, data.w.shape, data.y, **more), wanted.grad_weight, dtype)
    assert_equal(WEIGHT[rank](data.x[0], data.w.shape, data.y[0], **more),
                 maps(problem, data.x[:1], data.w, data.y[:1]).grad_weight, dtype)


@every_row
def test_any_rank(problem, pads, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    steps = (problem.stride, pads, problem.dilation)
    found = pyconv.convolution(data.x, data.w, None, *steps, False, 0, problem.groups, output_size=problem.positions)
    assert_equal(found, wanted.forward, dtype)
    grads = pyconv.convolution_backward(data.y, data.x, data.w, *steps, False, 0, problem.groups, (True,) * 3)
    assert_equal(grads[0], wanted.grad_input, dtype)
    assert_equal(grads[1], wanted.grad_weight, dtype)
    second = pyconv.convolution_double_backward(
        data.x, 2 * data.w, data.b, data.y, data.w, data.x, *steps, False, 0, problem.groups, (True,) * 3)
    assert_equal(second[0], 3 * wanted.forward + per_channel(data.b, problem.rank), dtype)
    assert_equal(second[1], 2 * wanted.grad_input, dtype)
    assert_equal(second[2], wanted.grad_weight, dtype)
    tangent = pyconv.conv_jvp(data.x, data.w, data.x, None, data.b, *steps, problem.groups,
                              output_size=problem.positions)
    assert_equal(tangent, wanted.forward + per_channel(data.b, problem.rank), dtype)


@pytest.mark.parametrize(('problem', 'pads'), ROWS[::6], ids=str)
def test_workspace_knows_the_size(problem, pads, dtype):
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **settings(problem, pads), dtype=dtype,
                             output_size=problem.positions)
    data = problem.integers(dtype)
    found = CONV[problem.rank](data.x, data.w, **settings(problem, pads), output_size=problem.positions,
                               finput=np.full(sizes.finput_minimum, np.nan, dtype))
    assert_equal(found, expected(problem.name).forward, dtype)


POOLED = itertools.product(range(1, 9), (1, 2, 3), (1, 2, 3, 4), (0, 1))  # size, kernel, stride, padding


@pytest.mark.parametrize('axis', [axis for axis in POOLED if axis[1] >= 2 * axis[3]], ids=str)
def test_the_largest_size_is_that_of_pooling(axis):
    size, kernel, stride, padding = axis
    x, w = np.ones((1, 1, size)), np.ones((1, 1, kernel))
    try:
        most = torch.nn.functional.avg_pool1d(
            torch.ones(1, 1, size), kernel, stride, padding, ceil_mode=True).shape[-1]
    except RuntimeError:
        with pytest.raises(ValueError, match='weight must span at most'):
            pyconv.conv1d(x, w, None, stride, padding, output_size=1)
        return
    assert pyconv.conv1d(x, w, None, stride, padding, output_size=most).shape == (1, 1, most)
    assert pyconv.conv1d_weight(x, w.shape, np.ones((1, 1, most)), stride, padding).shape == w.shape
    for wrong in (most + 1, most - 2):
        if wrong >= 1:
            with pytest.raises(ValueError, match=r'output_size must be from \(\d+,\) to '):
                pyconv.conv1d(x, w, None, stride, padding, output_size=wrong)
            with pytest.raises(ValueError, match='grad_output must have shape'):
                pyconv.conv1d_weight(x, w.shape, np.ones((1, 1, wrong)), stride, padding)


def test_same_has_the_size_of_the_division_rounded_up_already():
    x, w = np.ones((1, 1, 7)), np.ones((1, 1, 2))
    assert pyconv.conv1d(x, w, None, 3, 'same', output_size=3).shape == (1, 1, 3)
    with pytest.raises(ValueError) as caught:
        pyconv.conv1d(x, w, None, 3, 'same', output_size=4)
    assert str(caught.value) == 'output_size must be from (3,) to (3,), axis by axis; got (4,)'


def test_a_padded_position_meets_no_weight():
    """Not even one that is not finite."""
    x, w = np.ones((1, 1, 4)), np.array([[[1.0, 2.0, np.inf]]])
    found = pyconv.conv1d(x, w, stride=3, output_size=2)
    assert found.tolist() == [[[np.inf, 1.0]]]


@pytest.mark.parametrize(('value', 'error', 'text'), [
    (True, TypeError, 'output_size must be an int >= 1 or a sequence of 2 such; got True'),
    ((2,), ValueError, 'output_size must be an int >= 1 or a sequence of 2 such; got (2,)'),
    (0, ValueError, 'output_size must be an int >= 1 or a sequence of 2 such; got 0'),
    ((2, 4), ValueError, 'output_size must be from (2, 2) to (3, 2), axis by axis; got (2, 4)'),
])
def test_error(value, error, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        pyconv.conv2d(np.ones((1, 2, 6, 5)), np.ones((3, 2, 3, 3)), stride=2, output_size=value)
    assert type(caught.value) is error and str(caught.value) == text
