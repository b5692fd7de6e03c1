"""Padding modes within Winograd's transforms: cells beyond an edge are picked from where those lie that stand for them.

Every problem takes tiles in all three maps. Small integers make F(2, 3) exact, so answers are compared with ==.
"""
import functools
import itertools
import logging

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits, per_channel, poisoned
from problems import P, maps, whole

SHAPES = [
    ('one cell on every side', (9, 20), (3, 3), 1),
    ('two and three cells', (10, 17), (3, 3), ((2, 3), (3, 2))),
    ('one side', (9, 18), (3, 3), ((2, 0), (0, 2))),
    ('a vector of cells', (9, 18), (3, 3), ((0, 1), (17, 16))),
    ('kept and cropped', (11, 20), (3, 3), ((-1, 2), (3, -2))),
    ('an odd number', (7, 7), (3, 3), 1),
    ('several strips', (3, 700), (3, 3), 2),
    ('many rows', (140, 8), (3, 3), 1),
    ('along x alone', (5, 40), (1, 3), (0, 2)),
    ('along y alone', (40, 5), (3, 1), (2, 0)),
    ('row', (90,), (3,), 4),
    ('row that ends with a strip of padding', (122,), (3,), ((5, 3),)),
    ('planes', (4, 8, 10), (3, 3, 3), 1),
    ('planes without taps beyond', (3, 9, 18), (1, 3, 3), (0, 1, 2)),
]
MODES = ('constant', 'circular', 'replicate', 'reflect')
PROBLEMS = [
    P(f'{mode} {name}', size, kernel, (64, 48), batch=3, padding=padding, padding_mode=mode, padding_value=3)
    for (name, size, kernel, padding), mode in itertools.product(SHAPES, MODES)]
every_problem = pytest.mark.parametrize('problem', PROBLEMS, ids=str)



@every_problem
def test_these_problems_take_tiles(problem, caplog):
    caplog.set_level(logging.DEBUG, 'pyconv')
    pyconv._backend.cpu.plan.cache_clear()
    data = problem.integers(np.float32)
    calls.forward(problem, data.x, data.w)
    calls.grad_weight(problem, data.x, data.y)
    said = [record.getMessage().rpartition(': ')[2] for record in caplog.records]
    assert said == ['Winograd F(2, 3)'] * 2


@every_problem
def test_exact_for_small_integers(problem, dtype):
    data = problem.integers(dtype)
    wanted = whole(problem)
    assert_equal(calls.forward(problem, data.x, data.w), wanted.forward, dtype)
    assert_equal(calls.grad_input(problem, data.w, data.y), wanted.grad_input, dtype)
    assert_equal(calls.grad_weight(problem, data.x, data.y), wanted.grad_weight, dtype)


@every_problem
def test_the_bias_and_what_is_there_are_added_once(problem, dtype):
    data = problem.integers(dtype)
    wanted = whole(problem).grad_input + per_channel(data.c, problem.rank)
    out = calls.transposed(problem, data.y, data.w, data.c)
    assert_equal(out, wanted, dtype)
    calls.transposed(problem, data.y, data.w, data.c, out=out, accumulate=True)
    assert_equal(out, 2 * wanted, dtype)
    parts = calls.transposed(problem, data.y * 1j, data.w.astype(data.y.dtype.char.upper()), data.c * 1j)
    assert_equal(parts, wanted * 1j, parts.dtype)


@every_problem
def test_the_same_bits(problem, dtype):
    """In any batch, on any threads, with any scratch."""
    data = problem._replace(batch=4).floats(dtype)
    forwards = np.stack([calls.forward(problem, one, data.w) for one in data.x])
    gradient = calls.grad_weight(problem, data.x, data.y)
    inputs = np.stack([calls.grad_input(problem, data.w, one) for one in data.y])
    sizes = pyconv.workspace(data.x.shape, data.w.shape, **problem.keywords, dtype=dtype)
    least, fewest = (poisoned(max(1, n), dtype) for n in (sizes.finput_minimum, sizes.fgrad_input_minimum))
    for threads in (1, 3):
        with pyconv.num_threads(threads):
            for scratch in (None, least):
                back = None if scratch is None else fewest
                assert_same_bits(calls.grad_input(problem, data.w, data.y, fgrad_input=back), inputs)
                assert_same_bits(calls.forward(problem, data.x, data.w, finput=scratch), forwards)
                assert_same_bits(calls.grad_weight(problem, data.x, data.y, finput=scratch), gradient)


@functools.lru_cache(maxsize=8)
def around(problem, value):
    """The reference's maps of a problem's integers with that constant around them."""
    with np.errstate(invalid='ignore'):
        return maps(problem._replace(padding_value=value), *problem.integers()[:3])


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('problem', [p for p in PROBLEMS if p.padding_mode == 'constant'], ids=str)
def test_constants_that_are_not_finite(problem, value, dtype):
    data, wanted = problem.integers(dtype), around(problem, value)
    problem = problem._replace(padding_value=value)
    assert_equal(calls.forward(problem, data.x, data.w), wanted.forward, dtype)
    assert_equal(calls.grad_weight(problem, data.x, data.y), wanted.grad_weight, dtype)
