"""pyconv.pytensor: values, derivatives by both of PyTensor's ways, shapes known and unknown, and errors."""
import itertools

import numpy as np
import pytest

pytensor = pytest.importorskip('pytensor', reason='pytensor is not installed')

import pytensor.tensor as pt  # noqa: E402
from pytensor.compile.mode import Mode  # noqa: E402
from pytensor.gradient import grad, hessian_vector_product, jacobian, pushforward, verify_grad  # noqa: E402
from pytensor.graph.replace import vectorize_graph  # noqa: E402

import doors  # noqa: E402
import pyconv  # noqa: E402
import pyconv.pytensor as door  # noqa: E402
from calls import assert_equal  # noqa: E402
from problems import SMALL, some  # noqa: E402

PYTHON = Mode('py', 'fast_run')  # compiles nothing, which takes a second a function


def evaluate(outputs, inputs, arrays, mode=PYTHON):
    """The values of the outputs."""
    return pytensor.function(inputs, outputs, mode=mode)(*arrays)


def variables(arrays, known):
    """One variable for each array, whose type knows its shape or its number of axes alone."""
    return [pt.tensor(dtype=array.dtype, shape=array.shape if known else (None,) * array.ndim) for array in arrays]


@pytest.mark.parametrize('known', [True, False], ids=['known', 'unknown'])
@pytest.mark.parametrize('problem', doors.PROBLEMS, ids=str)
def test_functions_and_their_gradients(problem, known):
    for name, (function, operands, wanted) in doors.cases(door, problem).items():
        cotangent, gradients = doors.gradients(problem, name)
        inputs = variables(operands, known)
        output = function(*inputs)
        assert output.type.ndim == wanted.ndim and (not known or output.type.shape == wanted.shape)
        pulled = grad(None, inputs, known_grads={output: pt.constant(cotangent)})
        answers = evaluate([output, *pulled], inputs, operands)
        for answer, right in zip(answers, (wanted, *gradients), strict=True):
            assert_equal(answer, right, np.float64)
        if known:
            assert [variable.type.shape for variable in pulled] == [array.shape for array in operands]


# function, problem
CHECKED = [
    *((name, problem) for name in ('forward', 'transposed') for problem in SMALL),
    *((name, problem) for name in ('input', 'weight') for problem in SMALL[1::3]),
]


@pytest.mark.sparse
@pytest.mark.parametrize(('name', 'problem'), CHECKED, ids=str)
def test_derivatives(name, problem):
    """verify_grad of the gradient, and of the gradient of that; test_functions_and_their_gradients has the first."""
    function, operands, _ = doors.cases(door, problem, problem.floats())[name]
    operands = [operand / 2 for operand in operands]

    def first(*operands):
        return grad((function(*operands) ** 2).sum(), operands[0])

    def second(*operands):
        return grad((first(*operands) ** 2).sum(), operands[1])

    # forward differences of step 1e-7 err by that times a second derivative of some hundreds at most
    for tested in (first, second) if problem in SMALL[:8:7] else (first,):
        verify_grad(tested, operands, n_tests=1, rng=np.random.default_rng(0), mode=PYTHON)


@pytest.mark.parametrize('own', [True, False], ids=['pushforward', 'pullback twice'])
@pytest.mark.parametrize('problem', [SMALL[3], SMALL[7]], ids=str)
def test_directional_derivatives(problem, own):
    still, data = problem._replace(padding_value=0, padding_mode='zeros'), problem.integers()
    if problem.padding_mode != 'constant':
        still = problem
    for name, (function, operands, _) in doors.cases(door, problem, data).items():
        # linear in each of the first two; around a direction of x a constant is nothing
        of_first, of_second = (doors.cases(pyconv, form, data)[name].function for form in (still, problem))
        if name in ('input', 'transposed'):
            of_first = of_second
        tangents = [np.roll(operand, 1) for operand in operands]
        inputs = variables(operands, False)
        pushed = pushforward(function(*inputs), inputs, [pt.constant(one) for one in tangents], use_op_pushforward=own)
        zero = [np.zeros_like(operand) for operand in operands[2:]]
        wanted = of_first(tangents[0], operands[1], *tangents[2:]) + of_second(operands[0], tangents[1], *zero)
        assert_equal(evaluate([pushed], inputs, operands)[0], wanted, np.float64)


def test_hessian_times_a_vector():
    problem = SMALL[0]
    data = problem.integers()
    w, direction = pt.tensor3('w', dtype='float64'), np.roll(data.w, 1)
    loss = (door.conv1d(data.x, w, **problem.keywords) ** 2).sum() / 2
    along = pyconv.conv1d(data.x, direction, **problem.keywords)
    wanted = pyconv.conv1d_weight(data.x, data.w.shape, along, **problem.keywords)
    ways = (hessian_vector_product(loss, w, pt.constant(direction)),
            *(pushforward(grad(loss, w), w, pt.constant(direction), use_op_pushforward=own) for own in (True, False)))
    for answer in evaluate([*ways], [w], [data.w]):
        assert_equal(answer, wanted, np.float64)


@pytest.mark.parametrize('dtype', ['float16', 'float32'])
def test_dtypes(dtype):
    [problem] = some('2d groups everything')
    data, wanted = problem.integers(dtype, -1, 1), doors.answers(problem, problem.integers(np.float64, -1, 1))
    x, w = pt.tensor4(dtype=dtype), pt.tensor4(dtype=dtype)
    output = door.conv2d(x, w, **problem.keywords)
    pulled = grad(None, [x, w], known_grads={output: pt.constant(data.y)})
    for answer, right in zip(evaluate([output, *pulled], [x, w], [data.x, data.w]), wanted, strict=True):
        assert_equal(answer, right.astype(dtype), dtype)
    wide = grad((output.astype('float64') * np.float64(2)).sum(), x)
    pushed = pushforward(output, x, pt.constant(data.x.astype(np.float64)), use_op_pushforward=True)
    assert wide.type.dtype == dtype and pushed.type.dtype == dtype
    assert {factor.type.dtype for factor in pushed.owner.inputs[:2]} == {dtype}


@pytest.mark.parametrize('known', [True, False], ids=['known', 'unknown'])
def test_without_batch_axis(known):
    [problem] = some('2d groups everything')
    data, shape = problem.integers(), problem.input_shape[1:]
    inputs = variables((data.x[1], data.w, data.b, data.y[1]), known)
    x, w, b, y = inputs
    outputs = [
        door.conv2d(x, w, b, **problem.keywords), door.conv2d_input(shape, w, y, **problem.keywords),
        door.conv2d_weight(x, problem.weight_shape, y, **problem.keywords),
        door.conv_transpose2d(y, w, **problem.transposed_keywords),
    ]
    wanted = [
        pyconv.conv2d(data.x[1], data.w, data.b, **problem.keywords),
        pyconv.conv2d_input(shape, data.w, data.y[1], **problem.keywords),
        pyconv.conv2d_weight(data.x[1], problem.weight_shape, data.y[1], **problem.keywords),
        pyconv.conv_transpose2d(data.y[1], data.w, **problem.transposed_keywords),
    ]
    for answer, right in zip(evaluate(outputs, inputs, (data.x[1], data.w, data.b, data.y[1])), wanted, strict=True):
        assert_equal(answer, right, np.float64)


def test_symbolic_sizes():
    [problem] = some('2d groups everything')
    data, wanted = problem.integers(), doors.expected(problem.name)
    x, w, y = inputs = variables(data[:3], False)
    outputs = [door.conv2d_input(x.shape, w, y, **problem.keywords),
               door.conv2d_weight(x, w.shape, y, **problem.keywords)]
    for answer, right in zip(evaluate(outputs, inputs, data[:3]), wanted[1:], strict=True):
        assert_equal(answer, right, np.float64)
    # lengths and a stride that leave the size open: a size that the call names is a size that its gradient gets
    assert evaluate([grad(outputs[0].sum(), y).shape], inputs, data[:3])[0].tolist() == list(data.y.shape)


def test_shapes_are_inferred_without_the_result():
    x, w, b = pt.tensor4(dtype='float64'), pt.tensor4(dtype='float64'), pt.vector(dtype='float64')
    for output in (door.conv2d(x, w, b, padding='same', stride=2), door.conv_transpose2d(x, w, stride=2)):
        function = pytensor.function([x, w, b], [output.shape, *grad(output.sum(), [x, w])[0].shape], mode=PYTHON,
                                     on_unused_input='ignore')
        assert not any(isinstance(node.op, door.Derivative) for node in function.maker.fgraph.apply_nodes)
    part = pt.tensor(dtype='float64', shape=(4, None, 9, 9))
    assert door.conv2d(part, pt.tensor(dtype='float64', shape=(3, 2, None, 3))).type.shape == (4, 3, None, None)
    assert door.conv_transpose2d(part, pt.tensor(dtype='float64', shape=(None, 2, 3, 3)), groups=2).type.shape == (
        4, 4, None, None)


def test_graph_operations():
    """What PyTensor itself does to the graph: merging, cloning, vectorizing, its default mode."""
    x, w = pt.tensor3('x', dtype='float64'), pt.tensor3('w', dtype='float64')
    arrays = np.arange(30.0).reshape(3, 1, 2, 5) % 7, np.arange(12.0).reshape(3, 2, 2) % 5
    twice = pytensor.function([x, w], door.conv1d(x, w, stride=[2]) + door.conv1d(x, w, stride=(2,)), mode=PYTHON)
    assert sum(isinstance(node.op, door.Derivative) for node in twice.maker.fgraph.apply_nodes) == 1
    many = pt.tensor4('many', dtype='float64')
    stacked = vectorize_graph(door.conv1d(x, w), {x: many})
    [answer] = evaluate([stacked], [many, w], arrays)
    assert_equal(answer, np.stack([pyconv.conv1d(one, arrays[1]) for one in arrays[0]]), np.float64)
    rows = jacobian(door.conv1d(x, w).ravel(), w)
    [answer] = evaluate([rows], [x, w], (arrays[0][0], arrays[1]))
    columns = [pyconv.conv1d(arrays[0][0], one.reshape(3, 2, 2)).ravel() for one in np.eye(12)]
    assert_equal(answer.reshape(-1, 12), np.stack(columns, 1), np.float64)


@pytest.mark.filterwarnings('ignore:Numba will use object mode')
def test_default_mode():
    x, w = pt.tensor3('x', dtype='float64'), pt.tensor3('w', dtype='float64')
    operands = np.arange(10.0).reshape(1, 2, 5), np.arange(12.0).reshape(3, 2, 2)
    output = door.conv1d(x, w)
    value, pulled = evaluate([output, grad(output.sum(), w)], [x, w], operands, None)
    assert_equal(value, pyconv.conv1d(*operands), np.float64)
    assert_equal(pulled, pyconv.conv1d_weight(operands[0], (3, 2, 2), np.ones((1, 3, 4))), np.float64)


# errors and signatures


@pytest.mark.filterwarnings('ignore:Numba will use object mode')
def test_signatures_and_docstrings():
    doors.check_functions(door, 'PyTensor variables')


def test_errors_are_the_plain_functions():
    doors.check_errors(door)


def test_what_needs_no_shape_is_refused_while_building():
    x, w = pt.tensor3(dtype='float64'), pt.tensor3(dtype='float64')
    for wrong in ({'stride': 0}, {'padding': -1}, {'padding': 'reflect'}, {'groups': 0}, {'dilation': (1, 1)}):
        with pytest.raises(ValueError) as wanted:
            pyconv.conv1d(np.ones((1, 2, 5)), np.ones((3, 2, 2)), **wrong)
        with pytest.raises(ValueError) as error:
            door.conv1d(x, w, **wrong)
        assert str(error.value) == str(wanted.value)


X, W, B, Y = (pt.tensor(dtype='float64', shape=shape) for shape in (
    (None, None, 5), (3, 2, None), (None,), (None, None, None)))
AXES = 'must have 3 axes (batch, channels, 1 spatial) or 2 without batch; got shape'
TAPS = 'weight must have 3 axes (channels, channels per group, 1 spatial); got shape (None, None)'


@pytest.mark.parametrize(('call', 'text'), [
    (lambda: door.conv1d(pt.vector(), pt.tensor3()), f'input {AXES} (None,)'),
    (lambda: door.conv1d(pt.tensor4(), pt.tensor3()), f'input {AXES} (None, None, None, None)'),
    (lambda: door.conv_transpose1d(pt.vector(), pt.tensor3()), f'input {AXES} (None,)'),
    (lambda: door.conv1d(pt.tensor3(), pt.matrix()), TAPS),
    (lambda: door.conv_transpose1d(pt.tensor3(), pt.matrix()), TAPS),
    (lambda: door.conv1d(X, W, pt.matrix(dtype='float64')), 'bias must have shape (3,); got shape (None, None)'),
    (lambda: door.conv1d(X, pt.tensor3(dtype='float64'), pt.matrix(dtype='float64')),
     'bias must have shape (None,); got shape (None, None)'),
    (lambda: door.conv1d(X, W, np.ones(2)), 'bias must have shape (3,); got shape (2,)'),
    (lambda: door.conv_transpose1d(Y, W, np.ones(3), groups=3), 'bias must have shape (6,); got shape (3,)'),
    (lambda: door.conv1d(pt.tensor(dtype='float64', shape=(None, 3, None)), W),
     'input must have 2 channels, axis 1 of weight, 2, times groups, 1; got shape (None, 3, None)'),
    (lambda: door.conv_transpose1d(pt.tensor(dtype='float64', shape=(None, 2, None)), W),
     'input must have 3 channels, axis 0 of weight; got shape (None, 2, None)'),
    (lambda: door.conv1d(X, W, groups=2), 'groups must divide axis 0 of weight, 3; got 2'),
    (lambda: door.conv1d_input((5,), W, Y), f'input_size {AXES} (5,)'),
    (lambda: door.conv1d_input(pt.stack([X.shape[2]]), W, Y), f'input_size {AXES} (None,)'),
    (lambda: door.conv1d_input((1, 4, 5), W, Y),
     'input_size must have 2 channels, axis 1 of weight, 2, times groups, 1; got shape (1, 4, 5)'),
    (lambda: door.conv1d_input((1, 2, 5), W, pt.vector(dtype='float64')), f'grad_output {AXES} (None,)'),
    (lambda: door.conv1d_weight(X, (3, 2), Y),
     'weight_size must have 3 axes (channels, channels per group, 1 spatial); got shape (3, 2)'),
    (lambda: door.conv1d_weight(X, (3, 2, 2), pt.tensor(dtype='float64', shape=(None, 2, None))),
     'grad_output must have 3 channels, axis 0 of weight_size; got shape (None, 2, None)'),
])
def test_axes_and_channels_are_checked_while_building(call, text):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value) == text


def test_unknown_sizes_are_refused_by_the_compiled_function():
    arrays = {'input': np.ones((1, 2, 5)), 'weight': np.ones((3, 2, 2)), 'bias': np.ones(3)}
    x, w, b = variables(arrays.values(), False)
    output = door.conv1d(x, w, b)
    for outputs, wrong in itertools.product(
        (output, output.shape, grad(output.sum(), x)),
        ({'weight': np.ones((3, 1, 2))}, {'weight': np.ones((3, 2, 6))}, {'bias': np.ones(2)}),
    ):
        given = {**arrays, **wrong}
        with pytest.raises(ValueError) as wanted:
            pyconv.conv1d(**given)
        function = pytensor.function([x, w, b], outputs, mode=PYTHON, on_unused_input='ignore')
        with pytest.raises(ValueError) as error:
            function(*given.values())
        assert str(error.value).startswith(str(wanted.value))


@pytest.mark.parametrize(('call', 'text'), [
    (lambda: door.conv1d([[1.0]], np.ones((3, 2, 2))),
     'input must be a TensorVariable or a numpy.ndarray; got list'),
    (lambda: door.conv1d(pt.tensor3(dtype='complex64'), np.ones((3, 2, 2))),
     'input must have dtype float16, float32 or float64; got complex64'),
    (lambda: door.conv1d(pt.tensor3(dtype='float32'), pt.tensor3(dtype='float64')),
     'weight must have the dtype of input, float32; got float64'),
    (lambda: door.conv1d_input(pt.lvector(), np.ones((3, 2, 2)), np.ones((1, 3, 4))),
     'input_size must be a sequence of ints or a vector of them of a known length; got Vector(int64, shape=(?,))'),
], ids=['list', 'complex', 'mixed', 'length'])
def test_kinds_that_are_refused(call, text):
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value) == text
