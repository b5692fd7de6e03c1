"""bfloat16 by products of matrices, where the processor has registers for them (AMX), and by others where it has not.

Operands are small whole numbers, whose sums float32 holds: so the results are the reference's, rounded once. What the
registers would flush, numbers too small to be normal, goes another way.
"""
import ml_dtypes
import numpy as np
import pytest

import calls
import pyconv
from calls import last, per_channel
from problems import P, maps
from test_bytes import PROBLEMS, ways

BRAIN = np.dtype(ml_dtypes.bfloat16)
HAS_MATRICES = pyconv._backend.cpu.config()['level'] == 'amx'
needs_matrices = pytest.mark.skipif(not HAS_MATRICES, reason='the processor has no registers for matrices')
MANY = [
    *(P(f'{ins} channels to {outs}', (5, 7), (3, 3), (ins, outs), padding=1)
      for ins, outs in ((32, 16), (33, 15), (34, 31), (64, 33), (95, 64), (130, 79))),
    P('many positions', (37, 41), (3, 3), (40, 72), padding=1),
    P('many rows', (9, 9), (1, 1), (300, 600)),
    P('many taps', (12, 12), (11, 11), (24, 40), padding=5),
    P('stride 4', (33, 35), (11, 11), (16, 40), stride=4, padding=2),
    P('three axes of large steps', (9, 9, 9), (3, 2, 3), (40, 40), stride=(2, 3, 1), padding=(1, 0, 2)),
    P('a first layer', (31, 34), (7, 7), (3, 40), stride=2, padding=3),
    P('few channels', (9, 12), (3, 5), (5, 20), padding=((1, 0), (2, 3)), dilation=(1, 2)),
    P('few channels in groups', (8, 9, 7), (2, 3, 3), (6, 48), groups=3, padding=1),
    P('one position', (3, 3), (3, 3), (64, 64)),
    P('wide groups', (8, 9), (3, 3), (120, 132), groups=3, padding=1),
]
ALL = [*PROBLEMS, *MANY]
every_problem = pytest.mark.parametrize('problem', ALL, ids=str)
SMALL = P('small', (6, 7), (3, 3), (40, 24), padding=1, batch=3)


def brain(array):
    return np.asarray(array).astype(np.float32).astype(BRAIN)


def of_whole_numbers(problem):
    """x, w and y of whole numbers from -3 to 3, biases of up to 100."""
    data, rng = problem.integers(), np.random.default_rng(len(problem.name))
    biases = (rng.integers(-100, 100, n).astype(float) for n in problem.channels[::-1])
    return data.x, data.w, data.y, *biases


def same(answer, wanted):
    assert answer.dtype == BRAIN
    np.testing.assert_array_equal(answer.view(np.uint16), brain(wanted).view(np.uint16))


@every_problem
def test_exact(problem):
    """With a bias, added to what is there, into and from either order of memory."""
    x, w, y, b, c = of_whole_numbers(problem)
    rank, wanted = problem.rank, maps(problem, x, w, y)
    forward, back = wanted.forward + per_channel(b, rank), wanted.grad_input + per_channel(c, rank)
    x, w, y, b, c = map(brain, (x, w, y, b, c))
    for order in (np.ascontiguousarray, lambda array: last(array, rank)):
        same(calls.forward(problem, order(x), w, b), forward)
        same(calls.grad_input(problem, w, order(y)), wanted.grad_input)
        same(calls.transposed(problem, order(y), w, c), back)
        same(calls.grad_weight(problem, order(x), order(y)), wanted.grad_weight)
        to_y, to_x, to_w = (order(np.full(part.shape, 7, BRAIN)) for part in (y, x, w))
        same(calls.forward(problem, x, w, b, out=to_y, accumulate=True), forward + 7)
        same(calls.grad_input(problem, w, y, out=to_x, accumulate=True), wanted.grad_input + 7)
        same(calls.grad_weight(problem, x, y, out=to_w, accumulate=True), wanted.grad_weight + 7)


@every_problem
def test_any_batch_threads_and_scratch(problem):
    problem = problem._replace(batch=3)
    data = problem.floats(np.float32)
    x, w, y = map(brain, data[:3])
    wanted = np.stack([calls.forward(problem, one, w) for one in x])
    back = np.stack([calls.grad_input(problem, w, one) for one in y])
    with pyconv.num_threads(1):
        to_weight = calls.grad_weight(problem, x, y)
    sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords, dtype=BRAIN)
    least = [np.full(max(1, size), np.nan, np.float32) for size in (sizes.finput_minimum, sizes.fgrad_input_minimum)]
    for threads in (1, 2, 5):
        with pyconv.num_threads(threads):
            for first, second in ((None, None), least):
                calls.assert_same_bits(calls.forward(problem, x, w, finput=first), wanted)
                calls.assert_same_bits(calls.grad_input(problem, w, y, fgrad_input=second), back)
                calls.assert_same_bits(calls.grad_weight(problem, x, y, finput=first), to_weight)


@every_problem
def test_rounding(problem):
    """Sums are of float32: the result is a rounding of what float64 gives, but where that is nearly a tie."""
    data = problem.floats(np.float32)
    x, w, y = map(brain, data[:3])
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    for answer, exact in zip(calls.three_maps(problem, x, w, y), wanted):
        size = np.linalg.norm(exact)
        assert np.linalg.norm(answer.astype(float) - exact) <= 2.0 ** -9 * size  # half a unit in the last of 8 bits


@needs_matrices
@pytest.mark.parametrize('channels', [(8, 4), (64, 64)])
def test_which_way(channels, caplog):
    problem = P('any', (8, 8), (3, 3), channels)
    x, w, y = map(brain, problem.integers()[:3])
    assert ways(caplog, lambda: calls.forward(problem, x, w)) == {'product of matrices'}
    assert ways(caplog, lambda: calls.grad_input(problem, w, y)) <= {'product of matrices', 'matrix product', 'direct'}
    assert ways(caplog, lambda: calls.forward(problem, x, w, algorithm='gemm')) == {'matrix product'}
    assert ways(caplog, lambda: calls.grad_weight(problem, x, y)) == {'product of matrices'}


def scaled(array, exponent):
    """The numbers times a power of two, rounded as bfloat16 has them."""
    return brain(np.ldexp(np.asarray(array, np.float64), exponent))


@pytest.mark.parametrize(('of_x', 'of_w'), [
    (-126, 0), (0, -126), (-130, 0), (0, -133), (-63, -63), (-60, -66), (-56, -56), (-57, -55), (-133, 100),
    (120, -130)])
def test_what_is_too_small_to_be_normal(of_x, of_w):
    """Operands, products and sums that registers for matrices take for zero."""
    x, w, y = SMALL.integers()[:3]
    small_x, small_w, small_y = scaled(x, of_x), scaled(w, of_w), scaled(y, of_x)
    other_y = scaled(y, of_w)
    wanted = maps(SMALL, *(part.astype(float) for part in (small_x, small_w, small_y)))
    of_weight = maps(SMALL, *(part.astype(float) for part in (small_x, small_w, other_y))).grad_weight
    for answer, exact in ((calls.forward(SMALL, small_x, small_w), wanted.forward),
                          (calls.grad_input(SMALL, small_w, small_y), wanted.grad_input),
                          (calls.grad_weight(SMALL, small_x, other_y), of_weight)):
        exact = exact.astype(np.float32)  # the sums are multiples of 2 ** -149 here, or rounded to these at the end
        np.testing.assert_array_equal(answer.view(np.uint16), exact.astype(BRAIN).view(np.uint16))


@pytest.mark.parametrize(('value', 'of_w'), [(-130, 0), (-127, 3), (-63, -64), (-50, -60)])
def test_what_is_around_an_image_may_be_too_small(value, of_w):
    problem = P('constant', (5, 6), (3, 3), (40, 24), padding=3, padding_mode='constant', padding_value=2.0 ** value)
    x, w = brain(problem.integers().x), scaled(problem.integers().w, of_w)
    wanted = maps(problem, x.astype(float), w.astype(float), problem.integers().y).forward.astype(np.float32)
    answer = calls.forward(problem, x, w)
    for place in (0, -1):  # the outermost results are of the constant alone
        assert wanted[..., place, :].any()
        np.testing.assert_array_equal(answer[..., place, :], wanted.astype(BRAIN)[..., place, :])
        np.testing.assert_array_equal(answer[..., place], wanted.astype(BRAIN)[..., place])


def test_what_cancels_to_less_than_a_normal_number():
    """Products are normal numbers, and their difference is not."""
    problem = P('difference', (1,), (1,), (16, 16), batch=1)
    x, w = np.zeros((1, 16, 1), BRAIN), np.zeros((16, 16, 1), BRAIN)
    x[0, :2, 0] = brain([2.0 ** -63, 2.0 ** -63 * (1 + 2.0 ** -7)])
    w[:, :2, 0] = brain([2.0 ** -62, -2.0 ** -62])
    assert (calls.forward(problem, x, w) == brain(-2.0 ** -132)).all()


@pytest.mark.parametrize('small', [(1,), (0, 2), (0, 1, 2)])
def test_a_sample_with_small_numbers_leaves_the_others_alone(small):
    data = SMALL.floats(np.float32)
    x, w, y = map(brain, data[:3])
    usual, back = calls.forward(SMALL, x, w), calls.grad_input(SMALL, w, y)
    for n in small:
        x[n, 3, 2, 4] = y[n, 3, 2, 4] = brain(2.0 ** -130)
    answer, back_again = calls.forward(SMALL, x, w), calls.grad_input(SMALL, w, y)
    for n in range(3):
        calls.assert_same_bits(answer[n], calls.forward(SMALL, x[n], w))
        calls.assert_same_bits(back_again[n], calls.grad_input(SMALL, w, y[n]))
        if n not in small:
            calls.assert_same_bits(answer[n], usual[n])
            calls.assert_same_bits(back_again[n], back[n])


@pytest.mark.parametrize('small', [(1,), (0, 2), (0, 1, 2)])
def test_gradients_of_samples_with_small_numbers(small):
    data = SMALL.floats(np.float32)
    x, w, y = map(brain, data[:3])
    usual = calls.grad_weight(SMALL, x, y, per_sample=True)
    for n in small:
        x[n, 3, 2, 4] = brain(2.0 ** -130)
    answer = calls.grad_weight(SMALL, x, y, per_sample=True)
    for n in range(3):
        alone = calls.grad_weight(SMALL, x[n:n + 1], y[n:n + 1], per_sample=True)
        calls.assert_same_bits(answer[n], alone[0])
        if n not in small:
            calls.assert_same_bits(answer[n], usual[n])


@pytest.mark.parametrize('exponent', [0, -130])
@pytest.mark.parametrize('problem', [SMALL, MANY[4], MANY[7]], ids=str)
def test_no_memory_but_what_is_given(problem, exponent):
    """However small the numbers are, and however little scratch there is."""
    x, w, y = (scaled(part, exponent) for part in problem.floats(np.float32)[:3])
    sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords, dtype=BRAIN)
    finput, fgrad_input = (np.empty(n, np.float32) for n in (sizes.finput_minimum, sizes.fgrad_input_minimum))
    out, back, to_weight = np.empty_like(y), np.empty_like(x), np.empty_like(w)
    for call in (lambda: calls.forward(problem, x, w, out=out, finput=finput),
                 lambda: calls.grad_input(problem, w, y, out=back, fgrad_input=fgrad_input),
                 lambda: calls.grad_weight(problem, x, y, out=to_weight, finput=finput)):
        assert calls.peak_of(call) < 1 << 14


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('problem', [
    SMALL, MANY[9], P('cropped', (9, 9), (3, 3), (40, 40), padding=((-1, 2), (3, -2)))], ids=str)
def test_not_finite(problem, value):
    """In an operand's last channel of many, in the image or in a weight that padded zeros meet."""
    x, w, y = problem.integers()[:3]
    for n, array in enumerate((x, w, y)):
        parts = [part.copy() for part in (x, w, y)]
        parts[n][(0, -1, *(0,) * problem.rank)] = value
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, *parts)
        few = [brain(part) for part in parts]
        if n != 2:
            answer = calls.forward(problem, *few[:2])
            np.testing.assert_array_equal(answer.astype(float), brain(wanted.forward).astype(float))
        if n != 0:
            answer = calls.grad_input(problem, *few[1:])
            np.testing.assert_array_equal(answer.astype(float), brain(wanted.grad_input).astype(float))
        if n != 1:
            answer = calls.grad_weight(problem, few[0], few[2])
            np.testing.assert_array_equal(answer.astype(float), brain(wanted.grad_weight).astype(float))


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize(('size', 'kernel', 'channels'), [
    ((5,), (3,), (16, 16)), ((60,), (3,), (64, 64)), ((9, 5), (3, 1), (16, 16)), ((34,), (3,), (16, 20))])
def test_not_finite_behind_the_last_position(size, kernel, channels, value):
    """Gradients to a weight: without padding the last cell is met by the last tap alone."""
    problem = P('the end', size, kernel, channels)
    x, w, y = problem.integers()[:3]
    x[(..., *(-1,) * problem.rank)] = value
    y += 4  # no zeros, which would make NaN of infinity
    with np.errstate(invalid='ignore'):
        wanted = maps(problem, x, w, y).grad_weight
    assert np.isfinite(wanted).any() and not np.isfinite(wanted).all()
    for more in ({}, {'per_sample': True}, {'out': np.zeros(w.shape, BRAIN), 'accumulate': True}):
        answer = calls.grad_weight(problem, brain(x), brain(y), **more).astype(float)
        summed = answer.sum(0) if more.get('per_sample') else answer
        np.testing.assert_array_equal(np.isfinite(summed), np.isfinite(wanted))


@pytest.mark.parametrize('channels', [3, 5, 7, 8, 9, 17, 33])
@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan])
def test_a_constant_that_is_not_finite(channels, value):
    """A last cell of one channel has no second one, which would be multiplied by the weight's zero."""
    x, w = np.ones((1, channels, 8), BRAIN), brain(-np.ones((16, channels, 3)))
    answer = pyconv.conv1d(x, w, padding=1, padding_mode='constant', padding_value=value)[0].astype(float)
    wanted = np.full((16, 8), -3.0 * channels)
    wanted[:, 0] = wanted[:, -1] = -value
    np.testing.assert_array_equal(answer, wanted)


def test_zeros_alone():
    x, w = np.zeros(SMALL.input_shape, BRAIN), np.zeros(SMALL.weight_shape, BRAIN)
    assert not calls.forward(SMALL, x, w).any()
    assert not calls.forward(SMALL, x, brain(np.ones(w.shape))).any()


AT_THE_END = """
import itertools, ml_dtypes, numpy as np, pyconv
from guarded import at_an_end
rng = np.random.default_rng(0)
for front, (x, w, form) in itertools.product((False, True), (
        ((2, 9, 7, 9), (17, 9, 3, 3), dict(padding=1)), ((1, 32, 7, 7), (16, 32, 1, 1), {}),
        ((1, 33, 6, 6), (9, 33, 1, 1), {}), ((1, 34, 6, 6), (34, 34, 1, 1), {}),
        ((1, 32, 5, 19), (16, 16, 1, 16), dict(padding=(0, 8), groups=2)),
        ((1, 8, 30, 30), (32, 8, 7, 7), dict(stride=2, padding=3)),
        ((2, 3, 30, 30), (32, 3, 7, 7), dict(stride=2, padding=3)), ((2, 9, 4, 4), (24, 9, 4, 4), {}))):
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in (x, w))
    wanted = pyconv.conv2d(x, w, **form)
    assert (pyconv.conv2d(at_an_end(x, front), at_an_end(w, front), **form) == wanted).all()
    to_weight = pyconv.conv2d_weight(x, w.shape, wanted, **form)
    assert (pyconv.conv2d_weight(at_an_end(x, front), w.shape, at_an_end(wanted, front), **form) == to_weight).all()
    back = pyconv.conv2d_input(x.shape, w, wanted, **form)
    assert (pyconv.conv2d_input(x.shape, at_an_end(w, front), at_an_end(wanted, front), **form) == back).all()
"""


def test_nothing_around_operands_is_read(run_python):
    run_python(AT_THE_END)
