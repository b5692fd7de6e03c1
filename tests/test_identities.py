"""What the maps are to each other: adjoints, the backwards, the second derivatives, the tangent, unfold and fold.

Integers again: every identity holds with ==.  The dot products are taken in Python's or float64's integers, never in
float32.
"""
import functools
import itertools

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import assert_equal, per_channel, poisoned
from problems import BY_NAME, EVERY, VARIED, VARIED_MODES, expected, maps, some

every_problem = pytest.mark.parametrize('problem', EVERY, ids=str)
varied = pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
MASKS = list(itertools.product([False, True], repeat=3))


def dot(a, b):
    """The exact inner product of integer-valued arrays."""
    a, b = a.ravel().astype(np.int64), b.ravel().astype(np.int64)
    return int((a * b).sum())


def generic(problem, transposed):
    """The arguments from stride to groups of convolution and its kin."""
    if not transposed:
        return problem.stride, problem.padding, problem.dilation, False, 0, problem.groups
    padding, output_padding = problem.transposed_padding
    return problem.stride, padding, problem.dilation, True, output_padding, problem.groups


@every_problem
def test_the_three_maps_are_adjoint(problem, dtype):
    """What a constant in the padding adds is no part of the form that is linear in x."""
    data = problem.integers(dtype)
    y, x, w = calls.three_maps(problem, data.x, data.w, data.y)
    assert dot(y, data.y) == dot(w, data.w)
    alone = calls.forward(problem, 0 * data.x, data.w) if problem.padding_value else np.zeros(1)
    assert dot(y - alone, data.y) == dot(x, data.x)


@every_problem
def test_convolution(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    for transposed, input_, bias, exact in ((False, data.x, data.b, wanted.forward),
                                            (True, data.y, data.c, wanted.grad_input)):
        rest = generic(problem, transposed)
        answer = pyconv.convolution(input_, data.w, bias, *rest, **problem.mode)
        assert_equal(answer, exact + per_channel(bias, problem.rank), dtype)
        assert_equal(pyconv.convolution(input_[0], data.w, None, *rest, **problem.mode), exact[0], dtype)


def backward_of(problem, transposed, data):
    """(grad_output, input, the three gradients) of the convolution or of the transposed one."""
    answers = expected(problem.name)
    if not transposed:
        return data.y, data.x, (answers.grad_input, answers.grad_weight, reference.channel_sum(data.y))
    answers = maps(linear(problem), data.x, data.w, data.y) if problem.padding_value else answers
    return data.x, data.y, (answers.forward, answers.grad_weight, reference.channel_sum(data.x))


def linear(problem):
    """The problem of a derivative with respect to x, where constant cells have none; of what is transposed, too."""
    return problem._replace(padding_mode='zeros') if problem.padding_mode == 'constant' else problem


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@every_problem
def test_backward(problem, transposed, dtype):
    grad_output, input_, wanted = backward_of(problem, transposed, problem.integers(dtype))
    weight = problem.integers(dtype).w
    masks = MASKS if problem in VARIED + VARIED_MODES else [(True, True, True)]
    for mask in masks:
        answers = pyconv.convolution_backward(grad_output, input_, weight, *generic(problem, transposed), mask,
                                              **problem.mode)
        assert isinstance(answers, tuple) and len(answers) == 3
        for answer, exact, asked in zip(answers, wanted, mask):
            if asked:
                assert_equal(answer, exact, dtype)
            else:
                assert answer is None


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@varied
def test_backward_into_out(problem, transposed, dtype):
    grad_output, input_, wanted = backward_of(problem, transposed, problem.integers(dtype))
    weight = problem.integers(dtype).w
    for mask in MASKS:
        out = tuple(poisoned(w.shape, dtype) if asked else None for w, asked in zip(wanted, mask))
        answers = pyconv.convolution_backward(grad_output, input_, weight, *generic(problem, transposed), mask,
                                              bias_sizes=wanted[2].shape, out=out, **problem.mode)
        for answer, given, exact in zip(answers, out, wanted):
            assert answer is given
            if given is not None:
                assert_equal(answer, exact, dtype)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@varied
def test_backward_without_batch_axis(problem, transposed, dtype):
    data = problem.integers(dtype)
    alone = problem._replace(batch=1)
    answers = maps(alone, data.x[-1:], data.w, data.y[-1:])
    grad_output, input_, grad_input = data.y, data.x, answers.grad_input
    if transposed:
        answers = maps(linear(alone), data.x[-1:], data.w, data.y[-1:])
        grad_output, input_, grad_input = data.x, data.y, answers.forward
    wanted = grad_input[0], answers.grad_weight, reference.channel_sum(grad_output[-1:])
    given = pyconv.convolution_backward(grad_output[-1], input_[-1], data.w, *generic(problem, transposed),
                                        (True, True, True), **problem.mode)
    for answer, exact in zip(given, wanted):
        assert_equal(answer, exact, dtype)


def test_masked_gradients_are_not_computed():
    """A masked gradient reads nothing: not even an operand that only it would need."""
    problem = BY_NAME['2d channels 33 33']
    data = problem.integers(np.float32)
    for mask, wanted in (((True, False, False), 'grad_input'), ((False, True, False), 'grad_weight')):
        for spoiled in ('x', 'w'):
            parts = {'x': data.x, 'w': data.w, spoiled: np.full_like(getattr(data, spoiled), np.nan)}
            answer = pyconv.convolution_backward(data.y, parts['x'], parts['w'], *generic(problem, False), mask)
            answer = answer[0] if mask[0] else answer[1]
            if (wanted == 'grad_input') == (spoiled == 'x'):
                assert_equal(answer, getattr(expected(problem.name), wanted), np.float32)
            else:
                assert np.isnan(answer).any()


def double_backward(problem, transposed, data, second):
    """By the definition: given -> (arguments of the call, the three gradients it should give).

    second holds what comes in for grad_input, grad_weight and grad_bias, in the roles of x, w and b (of y, w and c when
    transposed); what is not given counts as zero.
    """
    ggx, ggw, ggb = ((np.zeros_like(part), part) for part in second)

    @functools.cache
    def of_weight(there):
        return maps(linear(problem) if transposed else problem, data.x, ggw[there], data.y)

    @functools.cache
    def of_input(there):
        return maps(linear(problem), *((data.x, data.w, ggx[there]) if transposed else (ggx[there], data.w, data.y)))

    def found(given):
        other, first, bias = of_input(given[0]), of_weight(given[1]), per_channel(ggb[given[2]], problem.rank)
        if not transposed:
            to_output = other.forward + first.forward + bias
            operands, answers = (data.y, data.w, data.x), (to_output, first.grad_input, other.grad_weight)
        else:
            to_output = other.grad_input + first.grad_input + bias
            operands, answers = (data.x, data.w, data.y), (to_output, first.forward, other.grad_weight)
        incoming = [part if there else None for part, there in zip(second, given)]
        return (*incoming, *operands, *generic(problem, transposed)), answers

    return found


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('problem', VARIED + VARIED_MODES + some(
    '1d transposed output padding above stride', '3d transposed groups dilated', '2d transposed groups dilated',
    '1d causal dilated', '2d padding pairs strided'), ids=str)
def test_double_backward(problem, transposed, dtype):
    """With all eight subsets of what can come in; the products are all exact integers."""
    data, other = problem.integers(dtype), problem._replace(name=problem.name + ' again').integers(dtype)
    second = (other.y, other.w, other.c) if transposed else (other.x, other.w, other.b)
    of = double_backward(problem, transposed, data, second)
    for given in MASKS:
        arguments, wanted = of(given)
        masks = MASKS if problem.name == '2d groups everything' else [(True, True, True)]
        for mask in masks:
            answers = pyconv.convolution_double_backward(*arguments, mask, **problem.mode)
            assert isinstance(answers, tuple) and len(answers) == 3
            for answer, exact, asked in zip(answers, wanted, mask):
                if asked:
                    assert_equal(answer, exact, dtype)
                else:
                    assert answer is None


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
def test_double_backward_into_out(transposed, dtype):
    problem = BY_NAME['2d groups everything']
    data, other = problem.integers(dtype), problem._replace(name='again').integers(dtype)
    second = (other.y, other.w, other.c) if transposed else (other.x, other.w, other.b)
    of = double_backward(problem, transposed, data, second)
    for given in MASKS:
        arguments, wanted = of(given)
        out = tuple(poisoned(exact.shape, dtype) for exact in wanted)
        answers = pyconv.convolution_double_backward(*arguments, (True, True, True), out=out)
        for answer, place, exact in zip(answers, out, wanted):
            assert answer is place
            assert_equal(answer, exact, dtype)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('name', ['1d stride 2', '2d groups everything', '3d transposed groups dilated'])
def test_double_backward_without_batch_axis(name, transposed, dtype):
    problem = BY_NAME[name]._replace(batch=1)
    data, other = problem.integers(dtype), problem._replace(name='again').integers(dtype)
    second = (other.y, other.w, other.c) if transposed else (other.x, other.w, other.b)
    arguments, wanted = double_backward(problem, transposed, data, second)((True, True, True))
    arguments = [part[0] if i in (0, 3, 5) else part for i, part in enumerate(arguments)]
    answers = pyconv.convolution_double_backward(*arguments, (True, True, True), **problem.mode)
    for answer, exact in zip(answers, (wanted[0][0], wanted[1][0], wanted[2])):
        assert_equal(answer, exact, dtype)


@varied
def test_jvp(problem, dtype):
    data, other = problem.integers(dtype), problem._replace(name=problem.name + ' again').integers(dtype)
    parts = (maps(linear(problem), other.x, data.w, data.y).forward, maps(problem, data.x, other.w, data.y).forward,
             per_channel(other.b, problem.rank))
    for given in MASKS[1:]:
        dx, dw, db = (part if there else None for part, there in zip((other.x, other.w, other.b), given))
        wanted = np.zeros(problem.output_shape) + sum(part for part, there in zip(parts, given) if there)
        answer = pyconv.conv_jvp(data.x, data.w, dx, dw, db, problem.stride, problem.padding, problem.dilation,
                                 problem.groups, **problem.mode)
        assert_equal(answer, wanted, dtype)


@varied
def test_jvp_is_a_difference(problem, dtype):
    """A convolution is affine in its input and in its weight, so that a finite difference is the derivative."""
    data, other = problem.integers(dtype), problem._replace(name=problem.name + ' again').integers(dtype)
    rest = problem.stride, problem.padding, problem.dilation, problem.groups
    before = calls.forward(problem, data.x, data.w)
    answer = pyconv.conv_jvp(data.x, data.w, other.x, None, None, *rest, **problem.mode)
    assert_equal(answer, calls.forward(problem, data.x + other.x, data.w) - before, dtype)
    answer = pyconv.conv_jvp(data.x, data.w, None, other.w, None, *rest, **problem.mode)
    assert_equal(answer, calls.forward(problem, data.x, data.w + other.w) - before, dtype)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@varied
def test_double_backward_is_a_difference(problem, transposed, dtype):
    """<ggx, gx> + <ggw, gw> + <ggb, gb> is affine in each of grad_output, input and weight."""
    data, other = problem.integers(dtype, -2, 2), problem._replace(name=problem.name + ' again').integers(dtype, -2, 2)
    third = problem._replace(name='and again').integers(dtype, -2, 2)
    rest = *generic(problem, transposed), (True, True, True)

    def roles(some):
        return (some.x, some.y, some.w) if transposed else (some.y, some.x, some.w)  # grad_output, input, weight

    second = (other.y, other.w, other.c) if transposed else (other.x, other.w, other.b)
    point, steps = roles(data), roles(third)

    def pairing(grad_output, input_, weight):
        gradients = pyconv.convolution_backward(grad_output, input_, weight, *rest, **problem.mode)
        return sum(map(dot, second, gradients))

    grad_output, input_, weight = point
    answers = pyconv.convolution_double_backward(*second, grad_output, weight, input_, *rest, **problem.mode)
    for place, answer in enumerate(answers):
        moved = [part + step if place == which else part for which, (part, step) in enumerate(zip(point, steps))]
        assert pairing(*moved) - pairing(*point) == dot(answer, steps[place])


def unrolled(problem):
    """The keywords of unfold, and the reference's form."""
    public = {name: value for name, value in problem.keywords.items() if name != 'groups'} | {
        'kernel_size': problem.kernel}
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    return public, form


@every_problem
def test_unfold(problem, dtype):
    x = problem.integers(dtype).x
    public, form = unrolled(problem)
    wanted = reference.unfold(x, problem.kernel, problem.positions, **form)
    assert_equal(pyconv.unfold(x, **public), wanted, dtype)
    assert_equal(pyconv.unfold(x[-1], **public), wanted[-1], dtype)
    out = poisoned(wanted.shape, dtype)
    assert pyconv.unfold(x, **public, out=out) is out
    assert_equal(out, wanted, dtype)


@every_problem
def test_fold(problem, dtype):
    x = problem.integers(dtype).x
    public, form = unrolled(problem)
    rng = np.random.default_rng(len(problem.name))
    shape = reference.unfold(x, problem.kernel, problem.positions, **form).shape
    columns = rng.integers(-3, 4, shape).astype(dtype)
    wanted = reference.fold(columns, problem.size, problem.kernel, problem.positions, **form)
    assert_equal(pyconv.fold(columns, problem.size, **public), wanted, dtype)
    assert_equal(pyconv.fold(columns[-1], problem.size, **public), wanted[-1], dtype)
    out = poisoned(wanted.shape, dtype)
    assert pyconv.fold(columns, problem.size, **public, out=out) is out
    assert_equal(out, wanted, dtype)
    alone = pyconv.unfold(0 * x, **public) if problem.padding_value else 0
    assert dot(pyconv.unfold(x, **public) - alone, columns) == dot(x, wanted)


def test_fold_of_unfold_counts_how_often_a_cell_is_read(dtype):
    x = np.ones((1, 1, 4), dtype)
    answer = pyconv.fold(pyconv.unfold(x, (3,), padding=1), (4,), (3,), padding=1)
    assert answer.tolist() == [[[2, 3, 3, 2]]]


def test_an_int_kernel_means_two_axes(dtype):
    x = BY_NAME['2d stride 2'].integers(dtype).x
    columns = pyconv.unfold(x, (3, 3), 1, 1, 2)
    assert_equal(pyconv.unfold(x, 3, 1, 1, 2), columns, dtype)
    answer = pyconv.fold(columns, x.shape[2:], 3, 1, 1, 2)
    assert_equal(answer, pyconv.fold(columns, x.shape[2:], (3, 3), 1, 1, 2), dtype)
    assert_equal(pyconv.fold(pyconv.unfold(x[:, :, :9, :9], 3), 9, 3),
                 pyconv.fold(pyconv.unfold(x[:, :, :9, :9], (3, 3)), (9, 9), (3, 3)), dtype)


@pytest.mark.parametrize('problem', [p for p in VARIED + VARIED_MODES if p.groups == 1], ids=str)
def test_weight_gradient_is_columns_times_grad_output(problem, dtype):
    """unfold is what grad_weight unrolls: the design's own picture of it."""
    data = problem.integers(dtype)
    columns = pyconv.unfold(data.x, **unrolled(problem)[0]).astype(np.float64)
    y = data.y.reshape(problem.batch, problem.channels[1], -1).astype(np.float64)
    product = np.einsum('nop,nkp->ok', y, columns).reshape(problem.weight_shape)
    assert_equal(calls.grad_weight(problem, data.x, data.y), product, dtype)
