"""Few channels of target where source's lie last in memory: inner products across the channels of source.

The way is taken for multiples of a vector's lanes, of which there are 16 at most: so channels here are multiples of 16.
"""
import itertools

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits, last, per_channel, poisoned
from plan_runs import geometry_of
from problems import P, maps, whole
from pyconv import _blocks, _pieces, _ways

FEW = (1, 2, 3, 4, 5, 6, 7)
PROBLEMS = [
    *(P(f'to {few}', (9, 20), (3, 3), (32, few), padding=1, batch=3) for few in FEW),
    *(P(f'{few} in groups', (7, 8), (2, 3), (48, 3 * few), groups=3, padding=((1, 0), (-1, 2)))
      for few in FEW),
    *(P(f'from {few} at stride 2', (17, 21), (4, 3), (few, 16), stride=2, padding=1, batch=2) for few in FEW),
    P('kernel 1', (12, 13), (1, 1), (64, 3), batch=2),
    P('kernel 1 of wide cells', (12, 13), (1, 1), (144, 3), batch=2),
    P('kernel 1 strided', (12, 13), (1, 1), (16, 3), stride=(2, 3), batch=2),
    P('row', (57,), (5,), (16, 2), padding=2, dilation=3, batch=2),
    P('strided row', (57,), (5,), (2, 16), padding=2, stride=3, batch=2),
    P('planes', (4, 7, 9), (3, 2, 3), (16, 3), padding=1, batch=2),
    P('planes at stride 2', (5, 7, 9), (3, 3, 3), (3, 16), padding=1, stride=2, batch=2),
    P('far padding', (5, 4), (3, 3), (16, 3), padding=5, batch=2),
    P('dilated and strided', (21, 26), (3, 4), (3, 32), stride=(3, 2), dilation=(2, 3), padding=3),
    P('more weights than a block has', (6, 7), (7, 7), (192, 3), padding=3, batch=2),
    P('many channels', (5, 6), (3, 3), (1040, 2), padding=1, batch=2),
]
every_problem = pytest.mark.parametrize('problem', PROBLEMS, ids=str)


def ways(problem, tile):
    laid = geometry_of(problem, x_last=True, y_last=True)
    return {_ways.choose(name, piece, problem.groups, tile, 'auto')[1].way
            for name in ('forward', 'grad_input') for piece in _pieces.pieces(name, laid)}


@every_problem
def test_these_problems_take_it(problem):
    assert _blocks.GATHER_ACROSS in ways(problem, _blocks.Tile(4, 16, 8, 3))


@pytest.mark.parametrize(('kernel', 'few'), [(1, (1, 2, 3)), (3, FEW)])
def test_how_many_are_few(kernel, few):
    """Of 8 bytes: half a vector's where a cell is read once."""
    for rows in range(1, 9):
        problem = P('to few', (9, 20), (kernel, kernel), (32, rows), padding=kernel // 2)
        assert (_blocks.GATHER_ACROSS in ways(problem, _blocks.Tile(8, 8, 8, 3))) == (rows in few)
        assert (_blocks.GATHER_ACROSS in ways(problem, _blocks.Tile(4, 8, 4, 3))) == (rows < 4)


@every_problem
def test_exact_for_small_integers(problem, dtype):
    """With a bias and added to what is there, into either order."""
    data, rank = problem.integers(dtype), problem.rank
    wanted = whole(problem)
    x, y = last(data.x, rank), last(data.y, rank)
    for lies_last, accumulate in itertools.product((False, True), repeat=2):
        to_x, to_y = (np.ones(part.shape, dtype) if accumulate else poisoned(part.shape, dtype)
                      for part in (data.x, data.y))
        if lies_last:
            to_x, to_y = last(to_x, rank), last(to_y, rank)
        calls.forward(problem, x, data.w, data.b, out=to_y, accumulate=accumulate)
        calls.grad_input(problem, data.w, y, out=to_x, accumulate=accumulate)
        assert_equal(to_y, wanted.forward + per_channel(data.b, rank) + accumulate, dtype)
        assert_equal(to_x, wanted.grad_input + accumulate, dtype)


@every_problem
def test_what_is_not_finite_is_where_the_definition_puts_it(problem, dtype):
    data, rank = problem.integers(dtype), problem.rank
    for value in (np.nan, np.inf):
        x, w, y = (part.copy() for part in data[:3])
        for part in (x, y):
            part[0, -1].flat[part[0, -1].size // 2] = value
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
        assert_equal(calls.forward(problem, last(x, rank), w), wanted.forward, dtype)
        assert_equal(calls.grad_input(problem, w, last(y, rank)), wanted.grad_input, dtype)
        w.flat[w.size // 2] = value
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, *(part.astype(float) for part in (data.x, w, data.y)))
        assert_equal(calls.forward(problem, last(data.x, rank), w), wanted.forward, dtype)
        assert_equal(calls.grad_input(problem, w, last(data.y, rank)), wanted.grad_input, dtype)


@every_problem
def test_the_same_bits(problem, dtype):
    """In any batch, on any threads, into either order, with any scratch."""
    data, rank = problem._replace(batch=5).floats(dtype), problem.rank
    x, y = last(data.x, rank), last(data.y, rank)
    forwards = np.stack([calls.forward(problem, one, data.w) for one in x])
    backs = np.stack([calls.grad_input(problem, data.w, one) for one in y])
    sizes = pyconv.workspace(data.x.shape, data.w.shape, problem.stride, problem.padding, problem.dilation,
                             problem.groups, dtype=dtype)
    least = {'finput': poisoned(max(1, sizes.finput_minimum), dtype),
             'fgrad_input': poisoned(max(1, sizes.fgrad_input_minimum), dtype)}
    for threads in (1, 3, 40):
        with pyconv.num_threads(threads):
            for to_x, to_y in ((None, None), (np.empty_like(data.x), np.empty_like(data.y))):
                assert_same_bits(calls.forward(problem, x, data.w, out=to_y), forwards)
                assert_same_bits(calls.grad_input(problem, data.w, y, out=to_x), backs)
            assert_same_bits(calls.forward(problem, x, data.w, finput=least['finput']), forwards)
            assert_same_bits(calls.grad_input(problem, data.w, y, fgrad_input=least['fgrad_input']), backs)


@pytest.mark.parametrize('channels', [15, 17, 8])
def test_channels_that_fill_no_vector_are_done_otherwise(channels, dtype):
    problem = P('odd', (9, 10), (3, 3), (channels, 3), padding=1, batch=2)
    assert _blocks.GATHER_ACROSS not in ways(problem, _blocks.Tile(4, 16, 8, 3))
    data = problem.integers(dtype)
    wanted = whole(problem)
    assert_equal(calls.forward(problem, last(data.x, 2), data.w), wanted.forward, dtype)
    assert_equal(calls.grad_input(problem, data.w, last(data.y, 2)), wanted.grad_input, dtype)
