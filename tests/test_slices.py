"""float32 as slices of 8 bits, which registers for matrices (AMX) multiply: wherever such products are possible,
whether or not they pay.

Sums of small whole numbers are exact. What slices cannot hold, numbers that are very small, very large or not finite,
goes by products of floats.
"""
import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits, last, per_channel
from problems import P, maps
from pyconv import _matrices
from test_bytes import ways
from test_matrices import ALL, needs_matrices

pytestmark = needs_matrices
SLICES = 'product of slices'
SHIFTED = [
    P('taps far apart', (40, 9), (3, 3), (20, 24), padding=(12, 1), dilation=(12, 1)),
    P('taps beyond the edges', (5, 6), (3, 3), (18, 24), padding=(14, 3), dilation=(13, 4)),
    P('cells of a stride', (20, 23), (5, 4), (34, 24), stride=(3, 2), padding=2, dilation=(2, 3)),
    P('three axes', (5, 6, 7), (3, 2, 3), (33, 40), padding=(1, 1, 0), batch=2),
    P('reflected', (8, 9), (3, 5), (24, 20), padding=2, padding_mode='reflect'),
    P('amid a constant', (8, 9), (3, 3), (24, 20), padding=2, padding_mode='constant', padding_value=-2.0),
]
every_problem = pytest.mark.parametrize('problem', [*ALL, *SHIFTED], ids=str)
SMALL = P('small', (6, 7), (3, 3), (40, 24), padding=1, batch=3)
LARGE = P('large', (14, 14), (1, 1), (256, 256), batch=2)


@pytest.fixture(autouse=True)
def wherever_possible(monkeypatch):
    monkeypatch.setattr(_matrices, 'slicing_pays', lambda piece: True)
    forget()
    yield
    monkeypatch.undo()
    forget()


def forget():
    pyconv._phases.forget()
    pyconv._known.forget()


def whole(problem):
    data, rng = problem.integers(), np.random.default_rng(len(problem.name))
    return *data[:3], *(rng.integers(-100, 100, n).astype(float) for n in problem.channels[::-1])


@every_problem
def test_exact(problem):
    """With a bias, added to what is there, into and from either order of memory."""
    x, w, y, b, c = whole(problem)
    rank, wanted = problem.rank, maps(problem, x, w, y)
    forward, back = wanted.forward + per_channel(b, rank), wanted.grad_input + per_channel(c, rank)
    x, w, y, b, c = (part.astype(np.float32) for part in (x, w, y, b, c))
    for order in (np.ascontiguousarray, lambda array: last(array, rank)):
        assert_equal(calls.forward(problem, order(x), w, b), forward, np.float32)
        assert_equal(calls.grad_input(problem, w, order(y)), wanted.grad_input, np.float32)
        assert_equal(calls.transposed(problem, order(y), order(w), c), back, np.float32)
        to_y, to_x = (order(np.full(part.shape, 7, np.float32)) for part in (y, x))
        assert_equal(calls.forward(problem, x, order(w), b, out=to_y, accumulate=True), forward + 7, np.float32)
        assert_equal(calls.grad_input(problem, w, y, out=to_x, accumulate=True), wanted.grad_input + 7, np.float32)


def test_the_way_is_told(caplog):
    x, w = np.zeros((2, 40, 6, 7), np.float32), np.zeros((24, 40, 3, 3), np.float32)
    assert ways(caplog, lambda: pyconv.conv2d(x, w, stride=2)) == {SLICES}
    assert ways(caplog, lambda: pyconv.conv2d(x, w, stride=2, algorithm='gemm')) == {'matrix product'}


def test_four_axes():
    """Whose volumes are summed one after the other; and where one of them alone is not to be sliced."""
    problem = P('four axes', (4, 5, 3, 6), (2, 3, 1, 2), (20, 24), padding=((1, 1), (0, 0), (1, 1), (2, 2)))
    x, w, y, *_ = whole(problem)
    wanted = maps(problem, x, w, y)
    x, w, y = (part.astype(np.float32) for part in (x, w, y))
    settings = 1, problem.padding, 1, False, 0, 1
    assert_equal(pyconv.convolution(x, w, None, *settings), wanted.forward, np.float32)
    grad_x, _, _ = pyconv.convolution_backward(y, x, w, *settings, (True, False, False))
    assert_equal(grad_x, wanted.grad_input, np.float32)
    x[1, 3, 2] = 1e-40
    floats = pyconv.convolution(x, w, None, *settings, algorithm='gemm')
    assert_same_bits(pyconv.convolution(x, w, None, *settings)[1], floats[1])


@every_problem
def test_any_batch_threads_and_scratch(problem):
    problem = problem._replace(batch=3)
    x, w, y = (part.astype(np.float32) for part in problem.floats(np.float32)[:3])
    wanted = np.stack([calls.forward(problem, one, w) for one in x])
    back = np.stack([calls.grad_input(problem, w, one) for one in y])
    sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords)
    least = [np.full(max(1, size), np.nan, np.float32) for size in (sizes.finput_minimum, sizes.fgrad_input_minimum)]
    for threads in (1, 2, 5):
        with pyconv.num_threads(threads):
            for first, second in ((None, None), least):
                assert_same_bits(calls.forward(problem, x, w, finput=first), wanted)
                assert_same_bits(calls.grad_input(problem, w, y, fgrad_input=second), back)


@pytest.mark.parametrize('problem', [LARGE, *ALL, *SHIFTED], ids=str)
def test_errors_are_no_larger_than_those_of_rounded_sums(problem, caplog):
    """Of one product that of its rounding, which some problems sum few of."""
    x, w, y = (part.astype(np.float32) for part in problem.floats(np.float32)[:3])
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    for call, operands, exact in (
            (calls.forward, (x, w), wanted.forward), (calls.grad_input, (w, y), wanted.grad_input)):
        if ways(caplog, lambda: call(problem, *operands)) != {SLICES}:  # noqa: B023
            continue
        sliced, summed = (np.linalg.norm(call(problem, *operands, algorithm=algorithm) - exact)
                          for algorithm in ('auto', 'gemm'))
        assert sliced <= max(summed, 2.0 ** -24 * np.linalg.norm(exact))


def test_the_error_is_a_third():
    x, w, y = (part.astype(np.float32) for part in LARGE.floats(np.float32)[:3])
    exact = maps(LARGE, *(part.astype(float) for part in (x, w, y))).forward
    sliced, summed = (np.linalg.norm(calls.forward(LARGE, x, w, algorithm=name) - exact) for name in ('auto', 'gemm'))
    assert 2 * sliced < summed


def operands(problem):
    x, w, y = (part.astype(np.float32) for part in problem.floats(np.float32)[:3])
    return ('forward', calls.forward, x, w), ('grad_input', calls.grad_input, y, w)


def called(name, call, problem, data, weight, **keywords):
    return call(problem, data, weight, **keywords) if name == 'forward' else call(problem, weight, data, **keywords)


@pytest.mark.parametrize('value', [1e-45, 1e-39, 1.2e-38, 1e-33, 1e-31])
def test_what_is_very_small_goes_by_floats(value):
    """Its sample alone."""
    for name, call, data, weight in operands(SMALL):
        before = called(name, call, SMALL, data, weight)
        assert not (before[1] == called(name, call, SMALL, data, weight, algorithm='gemm')[1]).all()
        data[1].flat[7] = value
        found = called(name, call, SMALL, data, weight)
        assert_same_bits(found[1], called(name, call, SMALL, data, weight, algorithm='gemm')[1])
        assert_same_bits(found[[0, 2]], before[[0, 2]])


@pytest.mark.parametrize('data, weight', [(1e-20, 1e-25), (1e-30, 1e-12), (1.0, 1e-40), (1e-25, 1e-20)])
def test_small_products_are_kept(data, weight):
    """Those that registers would take for zero, of numbers none of which is too small."""
    for name, call, x, w in operands(SMALL):
        x, w = (x * data).astype(np.float32), (w * weight).astype(np.float32)
        assert_same_bits(called(name, call, SMALL, x, w), called(name, call, SMALL, x, w, algorithm='gemm'))


@pytest.mark.parametrize('value', [np.inf, -np.inf, np.nan, 3.4e38, -3.402e38])
@pytest.mark.parametrize('problem', [SMALL, *SHIFTED], ids=str)
def test_what_is_not_finite_is_where_the_definition_has_it(problem, value):
    """Whatever is finite beside it keeps its bits, unless the weight is not."""
    for name, call, data, weight in operands(problem._replace(batch=2)):
        before = called(name, call, problem, data, weight)
        data[-1].flat[data[-1].size // 3] = value
        found = called(name, call, problem, data, weight)
        wanted = called(name, call, problem, data, weight, algorithm='gemm')
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isposinf(found), np.isposinf(wanted))
        np.testing.assert_array_equal(np.isneginf(found), np.isneginf(wanted))
        assert_same_bits(found[0], before[0])
        weight[0].flat[5] = value
        with np.errstate(all='ignore'):
            assert_same_bits(np.isnan(called(name, call, problem, data, weight)),
                             np.isnan(called(name, call, problem, data, weight, algorithm='gemm')))


@pytest.mark.parametrize('data, weight', [(1e30, 1e8), (3e38, 1.0), (1e19, 1e19), (3.4e38, 1e-6)])
def test_sums_near_the_largest_number(data, weight):
    for name, call, x, w in operands(SMALL):
        x, w = (np.sign(x) * data).astype(np.float32), (np.sign(w) * weight).astype(np.float32)
        with np.errstate(all='ignore'):
            found, wanted = (called(name, call, SMALL, x, w, algorithm=algorithm) for algorithm in ('auto', 'gemm'))
        np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
        kept = np.isfinite(wanted)
        np.testing.assert_allclose(found[kept], wanted[kept], rtol=1e-4, atol=data * weight * 1e-5)


@pytest.mark.parametrize('value', [np.inf, np.nan, 1e-40, 3.4e38])
def test_added_to_what_is_there(value):
    """What could not be taken back goes by floats, its sample alone."""
    for name, call, data, weight in operands(SMALL):
        data[1].flat[11] = value
        for algorithm, kept in (('auto', [0, 2]), ('gemm', [1])):
            out = np.ones((len(data), *called(name, call, SMALL, data, weight).shape[1:]), np.float32)
            wanted = called(name, call, SMALL, data, weight, algorithm=algorithm)
            found = called(name, call, SMALL, data, weight, out=out, accumulate=True)
            np.testing.assert_allclose(found[kept], wanted[kept] + 1, rtol=1e-6, atol=1e-6)


def test_others_are_not_sliced(caplog):
    """Complex numbers, other types, and where another algorithm is asked for."""
    x, w = np.ones((1, 40, 9, 9)), np.ones((24, 40, 3, 3))
    for dtype in ('complex64', 'float16', 'float64'):
        assert SLICES not in ways(caplog, lambda: pyconv.conv2d(x.astype(dtype), w.astype(dtype)))  # noqa: B023
    x, w = x.astype(np.float32), w.astype(np.float32)
    for algorithm in ('gemm', 'winograd'):
        assert SLICES not in ways(caplog, lambda: pyconv.conv2d(x, w, stride=2, algorithm=algorithm))  # noqa: B023


@pytest.mark.parametrize('problem', [
    P('behind a stride', (17, 24), (4, 4), (32, 40), stride=(3, 1), batch=3),
    P('behind two', (12, 13), (3, 3), (34, 31), stride=2, batch=2),
    P('between far taps', (12, 2), (3, 1), (81, 31), stride=2, dilation=(5, 3), batch=5),
    P('in most columns', (15, 8), (1, 4), (108, 14), stride=(4, 3), batch=2),
    P('between taps of the last rows', (40, 40), (3, 3), (40, 32), dilation=9, batch=2),
], ids=str)
def test_cells_that_no_tap_reads_decide_nothing(problem):
    """Which of them lie among those that are sliced together depends on the blocks."""
    x, w, y = (part.astype(np.float32) for part in problem.floats(np.float32)[:3])
    before = calls.forward(problem, x, w)
    read = calls.grad_input(problem, np.ones_like(w), np.ones_like(y), algorithm='gemm')
    least = np.empty(max(1, pyconv.workspace(x.shape, w.shape, **problem.keywords).finput_minimum), np.float32)
    for value in (1e-41, np.nan):
        x[read == 0] = value
        for threads in (1, 2, 5):
            with pyconv.num_threads(threads):
                assert_same_bits(calls.forward(problem, x, w), before)
                assert_same_bits(calls.forward(problem, x, w, finput=least), before)
                assert_same_bits(np.stack([calls.forward(problem, one, w) for one in x]), before)
