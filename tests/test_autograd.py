"""pyconv.autograd: values, derivatives to the third order in both modes, and errors."""
from functools import partial

import numpy as np
import pytest

autograd = pytest.importorskip('autograd', reason='autograd is not installed')

import autograd.numpy as anp  # noqa: E402
from autograd.differential_operators import make_jvp, make_vjp  # noqa: E402
from autograd.test_util import check_grads  # noqa: E402

import doors  # noqa: E402
import pyconv  # noqa: E402
import pyconv.autograd as door  # noqa: E402
from calls import assert_equal  # noqa: E402
from problems import SMALL, some  # noqa: E402
from pyconv import _forms  # noqa: E402


@pytest.mark.parametrize('problem', doors.PROBLEMS, ids=str)
def test_functions_and_their_gradients(problem):
    for name, (function, operands, wanted) in doors.cases(door, problem).items():
        cotangent, gradients = doors.gradients(problem, name)
        for place, gradient in enumerate(gradients):
            pull_back, value = make_vjp(function, place)(*operands)
            assert_equal(value, wanted, np.float64)
            assert_equal(pull_back(cotangent), gradient, np.float64)


# function, problem, order
CHECKED = [
    *((name, problem, 3 if problem in SMALL[::3] else 2) for name in ('forward', 'transposed') for problem in SMALL),
    *((name, problem, 2) for name in ('input', 'weight') for problem in SMALL[1::2]),
]


@pytest.mark.parametrize(('name', 'problem', 'order'), CHECKED, ids=str)
def test_derivatives(name, problem, order):
    function, operands, _ = doors.cases(door, problem, problem.floats())[name]
    check_grads(function, modes=['fwd', 'rev'], order=order)(*operands)


def test_hessian_and_its_product_with_a_vector():
    problem = SMALL[1]
    data = problem.floats()

    def loss(w):
        return anp.sum(door.conv2d(data.x, w, **problem.keywords) ** 4)

    hessian, vector = autograd.hessian(loss)(data.w), np.ones_like(data.w)
    product = np.tensordot(hessian, vector, vector.ndim)
    # sums of some ten products of up to 100
    np.testing.assert_allclose(autograd.hessian_vector_product(loss)(data.w, vector), product, rtol=1e-12, atol=1e-10)
    forward = make_jvp(autograd.grad(loss))(data.w)(vector)[1]
    np.testing.assert_allclose(forward, product, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'complex64', 'complex128'])
def test_dtypes(dtype):
    ml_dtypes = pytest.importorskip('ml_dtypes')
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == 'bfloat16' else dtype)
    [problem] = some('2d groups everything')
    data = problem.integers(np.float64, -1, 1)
    phase = 1 + 1j if dtype.kind == 'c' else 1  # no conjugate: a factor to each of the two is its square to the result
    x, w = ((array * phase).astype(dtype) for array in (data.x, data.w))
    pull_back, value = make_vjp(lambda x: door.conv2d(x, w, **problem.keywords))(x)
    assert_equal(value, (doors.answers(problem, data).forward * phase**2).astype(dtype), dtype)
    wanted = doors.answers(problem, data).grad_input * phase
    assert_equal(pull_back(data.y.astype(dtype)), wanted.astype(dtype), dtype)


def test_without_batch_axis():
    [problem] = some('2d groups everything')
    data = problem.integers()
    conv = partial(door.conv2d, **problem.keywords)
    plain = partial(pyconv.conv2d, **problem.keywords)
    assert_equal(conv(data.x[1], data.w, data.b), plain(data.x[1], data.w, data.b), np.float64)
    pull_back, _ = make_vjp(conv, 1)(data.x[1], data.w)
    wanted = pyconv.conv2d_weight(data.x[1], problem.weight_shape, data.y[1], **problem.keywords)
    assert_equal(pull_back(data.y[1]), wanted, np.float64)
    ours = door.conv2d_input(problem.input_shape[1:], data.w, data.y[1], **problem.keywords)
    wanted = pyconv.conv2d_input(problem.input_shape[1:], data.w, data.y[1], **problem.keywords)
    assert_equal(ours, wanted, np.float64)


def test_no_samples():
    gradient = autograd.grad(lambda w: anp.sum(door.conv2d(np.ones((0, 2, 5, 5)), w)))(np.ones((3, 2, 3, 3)))
    assert_equal(gradient, np.zeros((3, 2, 3, 3)), np.float64)


def test_only_what_is_traced_is_computed(monkeypatch):
    maps, evaluate = [], _forms.evaluate

    def counting(geometry, dtype, results, *rest):
        maps.append(results[0].terms[0][0])
        return evaluate(geometry, dtype, results, *rest)

    monkeypatch.setattr(_forms, 'evaluate', counting)
    x, w = np.ones((1, 2, 5)), np.ones((3, 2, 2))
    autograd.grad(lambda w: anp.sum(door.conv1d(x, w)))(w)
    autograd.grad(lambda x: anp.sum(door.conv1d(x, w)))(x)
    make_jvp(lambda x: door.conv1d(x, w))(x)(x)
    assert maps == ['forward', 'grad_weight', 'forward', 'grad_input', 'forward', 'forward']


def test_signatures_and_docstrings():
    doors.check_functions(door, 'NumPy arrays')


def test_errors_are_the_plain_functions():
    doors.check_errors(door)


X, W = np.ones((1, 2, 5)), np.ones((3, 2, 2))


@pytest.mark.parametrize(('arguments', 'text'), [
    (([[1.0]], W), 'input must be a numpy.ndarray; got list'),
    ((X, None), 'weight must be a numpy.ndarray; got NoneType'),
    ((X.astype(int), W),
     'input must have dtype float16, bfloat16, float32, float64, complex64 or complex128; got int64'),
], ids=['list', 'none', 'integers'])
def test_kinds_that_are_refused(arguments, text):
    with pytest.raises(TypeError) as error:
        door.conv1d(*arguments)
    assert str(error.value) == text


def test_a_direction_of_another_shape_or_kind_is_refused():
    with pytest.raises(ValueError) as error:
        make_jvp(lambda x: door.conv1d(x, W))(X)(X[..., :4])
    assert str(error.value) == 'a gradient or direction must have shape (1, 2, 5), that of what it is of; got (1, 2, 4)'
    with pytest.raises(TypeError) as error:
        make_jvp(lambda x: door.conv1d(x, W))(X)(X * 1j)
    assert str(error.value) == 'a gradient or direction must be real for float64 arrays; got complex128'
