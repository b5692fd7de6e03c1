"""Small images under large kernels: cells are broadcast under one tap after the other, not box by box."""
import itertools

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits, last, per_channel, poisoned
from plan_runs import geometry_of
from problems import P, maps, whole
from pyconv import _blocks, _known, _pieces, _ways

PROBLEMS = [
    P('7 on 6', (6, 6), (7, 7), (40, 24), padding=3, batch=3),
    P('a result smaller than the kernel', (12, 11), (8, 7), (9, 33), batch=2),
    P('more weights than a panel has room for', (5, 4, 5), (5, 5, 5), (70, 30), padding=2),
    P('a row', (9,), (9,), (130, 20), padding=4, batch=2),
    P('in groups', (5, 6), (5, 5), (24, 36), groups=3, padding=2, batch=2),
    P('phases', (9, 8), (6, 5), (20, 24), stride=2, padding=2, batch=2),
    P('phases in one panel', (11, 11), (4, 4), (24, 24), stride=2, padding=3, batch=2),
    P('phases without a tap', (13, 13), (6, 2), (24, 20), stride=(4, 3), padding=1),
    P('dilated', (9, 9), (3, 4), (20, 17), padding=5, dilation=(3, 2)),
    P('cropped', (9, 8), (5, 5), (20, 17), padding=((-1, 3), (2, -2))),
    P('far padding', (3, 3), (3, 3), (20, 17), padding=6),
]
every_problem = pytest.mark.parametrize('problem', PROBLEMS, ids=str)


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(_ways, 'BY_TAPS', dict.fromkeys(itertools.product((4, 8), (False, True)), (0, 0)))
    monkeypatch.setattr(_pieces, 'is_swapped', lambda name, geometry: False)
    _known.forget()
    yield
    _known.forget()


def go_by_taps(problem, name, tile=_blocks.Tile(4, 8, 4, 3), **fields):
    return any(_ways.choose(name, piece, problem.groups, tile, 'gemm')[1].by_taps
               for piece in _pieces.pieces(name, geometry_of(problem, **fields)))


@every_problem
def test_these_problems_go_by_taps(problem, everywhere):
    for lie_last in (False, True):
        assert go_by_taps(problem, 'grad_input', x_last=lie_last, y_last=lie_last)
        assert go_by_taps(problem, 'forward', x_last=lie_last, y_last=lie_last) == (problem.stride == 1)


@pytest.mark.parametrize(('problem', 'names'), [
    (P('5 on 8, all around', (8, 8, 8), (5, 5, 5), (20, 320)), ['grad_input']),
    (P('7 on 6', (6, 6, 6), (7, 7, 7), (64, 64), padding=3), ['forward', 'grad_input']),
    (P('3 on 28', (28, 28), (3, 3), (64, 64), padding=1), []),
    (P('3 on 7 at stride 2', (7, 7), (3, 3), (64, 64), padding=1, stride=2), []),
], ids=str)
def test_when_it_pays(problem, names):
    """In tiles of four rows and of eight, of any batch on any threads."""
    for tile in (_blocks.Tile(4, 8, 4, 3), _blocks.Tile(4, 16, 8, 3), _blocks.Tile(8, 8, 8, 3)):
        for name, batch, tasks in itertools.product(('forward', 'grad_input'), (1, 64), (1, 8)):
            assert go_by_taps(problem._replace(batch=batch), name, tile._replace(tasks=tasks)) == (name in names)


@pytest.mark.parametrize('lie_last', [False, True])
def test_sooner_where_channels_lie_last(lie_last):
    problem, tile = P('5 on 14', (14, 14), (5, 5), (64, 64), padding=2), _blocks.Tile(4, 16, 8, 3)
    for name in ('forward', 'grad_input'):
        assert go_by_taps(problem, name, tile, x_last=lie_last, y_last=lie_last) == lie_last


@every_problem
def test_exact_for_small_integers(problem, dtype, everywhere):
    """In every order, with a bias, and added to what is there."""
    data, rank = problem.integers(dtype), problem.rank
    wanted = whole(problem)
    for x_last, y_last, accumulate in itertools.product((False, True), repeat=3):
        x, y = last(data.x, rank) if x_last else data.x, last(data.y, rank) if y_last else data.y
        to_x, to_y = (np.ones_like(part) if accumulate else poisoned(part.shape, dtype) for part in (x, y))
        to_x, to_y = last(to_x, rank) if x_last else to_x, last(to_y, rank) if y_last else to_y
        calls.forward(problem, x, data.w, data.b, out=to_y, accumulate=accumulate, algorithm='gemm')
        calls.grad_input(problem, data.w, y, out=to_x, accumulate=accumulate, algorithm='gemm')
        assert_equal(to_y, wanted.forward + per_channel(data.b, rank) + accumulate, dtype)
        assert_equal(to_x, wanted.grad_input + accumulate, dtype)


@every_problem
def test_what_is_not_finite_is_where_the_definition_puts_it(problem, dtype, everywhere):
    data = problem.integers(dtype)
    for value in (np.nan, np.inf):
        x, w, y = (part.copy() for part in data[:3])
        for part in (x, w, y):
            part.flat[part.size // 2] = value
            with np.errstate(invalid='ignore'):
                wanted = maps(problem, *(operand.astype(float) for operand in (x, w, y)))
            assert_equal(calls.forward(problem, x, w, algorithm='gemm'), wanted.forward, dtype)
            assert_equal(calls.grad_input(problem, w, y, algorithm='gemm'), wanted.grad_input, dtype)


@every_problem
def test_the_same_bits(problem, dtype, everywhere):
    """In any batch, on any threads, with any scratch."""
    data = problem._replace(batch=5).floats(dtype)
    forwards = np.stack([calls.forward(problem, one, data.w, algorithm='gemm') for one in data.x])
    backs = np.stack([calls.grad_input(problem, data.w, one, algorithm='gemm') for one in data.y])
    sizes = pyconv.workspace(data.x.shape, data.w.shape, problem.stride, problem.padding, problem.dilation,
                             problem.groups, dtype=dtype, algorithm='gemm')
    least = {'finput': poisoned(max(1, sizes.finput_minimum), dtype),
             'fgrad_input': poisoned(max(1, sizes.fgrad_input_minimum), dtype)}
    for threads in (1, 3, 40):
        with pyconv.num_threads(threads):
            for finput, fgrad_input in ((None, None), least.values()):
                assert_same_bits(
                    calls.forward(problem, data.x, data.w, finput=finput, algorithm='gemm'), forwards)
                assert_same_bits(
                    calls.grad_input(problem, data.w, data.y, fgrad_input=fgrad_input, algorithm='gemm'), backs)
