"""Sizes that never come again: their blocks are those of the next round size, found once for all that are near it."""
import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits
from problems import BY_NAME, LAST, PROBLEMS, P, expected, maps, whole
from pyconv import _blocks, _known, _phases, _pieces
from pyconv._geometries import convolved

MAPS = 'forward', 'grad_input', 'grad_weight'
LARGE = [P('1d 67', (67,), (3,), (5, 4), padding=1), P('1d 131 strided', (131,), (4,), (3, 9), stride=2, padding=1),
         P('1d 250 dilated', (250,), (5,), (4, 3), dilation=3), P('1d 197 kernel 1', (197,), (1,), (9, 17)),
         P('1d 203 depthwise', (203,), (3,), (16, 16), groups=16, padding=1),
         P('2d 67 by 66', (67, 66), (3, 3), (3, 4), padding=1, batch=1),
         P('2d 131 by 5 strided', (131, 5), (3, 2), (2, 5), stride=(2, 1), padding=1),
         P('2d 69 by 75 kernel 1', (69, 75), (1, 1), (4, 3), batch=1),
         P('2d 66 by 67 depthwise', (66, 67), (3, 3), (8, 8), groups=8, padding=1, batch=1),
         P('2d 131 patches', (131, 6), (2, 2), (3, 4), stride=2),
         P('2d one row of 16385', (2, 16385), (3, 3), (1, 1), padding=1, batch=1),  # of whose blocks the last is narrow
         P('2d three rows of 16387', (3, 16387), (3, 3), (4, 4), groups=4, padding=1, batch=1),
         P('2d mostly padding', (3, 7), (3, 3), (1, 1), padding=((1, 1), (126, 126)), batch=1),
         P('2d kernel 1 strided', (3, 261), (1, 1), (4, 4), stride=2, batch=1)]


@pytest.fixture
def roundest(replan):
    """Sizes are rounded up to powers of two, but for 1 and 2."""
    replan(_phases, ROUND=1)


def check(problem, dtype, wanted):
    data = problem.integers(dtype)
    assert_equal(calls.forward(problem, data.x, data.w), wanted.forward, dtype)
    assert_equal(calls.grad_input(problem, data.w, data.y), wanted.grad_input, dtype)
    assert_equal(calls.grad_weight(problem, data.x, data.y), wanted.grad_weight, dtype)


@pytest.mark.parametrize('problem', LARGE, ids=str)
def test_large_sizes(problem, dtype):
    check(problem, dtype, whole(problem))


@pytest.mark.parametrize('problem', PROBLEMS + LAST, ids=str)
def test_every_problem_in_blocks_of_far_larger_ones(roundest, problem, dtype):
    check(problem, dtype, expected(problem.name) if problem.name in BY_NAME else maps(
        problem, *problem.integers()[:3]))


@pytest.mark.parametrize('problem', LARGE, ids=str)
def test_the_same_bits_on_any_threads_and_in_any_batch(problem, dtype):
    data = problem._replace(batch=3).floats(dtype)
    alone = [calls.forward(problem, one, data.w) for one in data.x], [
        calls.grad_input(problem, data.w, one) for one in data.y]
    weight = calls.grad_weight(problem, data.x, data.y)
    for threads in (1, 3):
        with pyconv.num_threads(threads):
            assert_same_bits(calls.forward(problem, data.x, data.w), np.stack(alone[0]))
            assert_same_bits(calls.grad_input(problem, data.w, data.y), np.stack(alone[1]))
            assert_same_bits(calls.grad_weight(problem, data.x, data.y), weight)


def choices_of(map, size, search=True, kernel=3, stride=1, tile=(4, 8, 4, 3, 8)):
    g = convolved(1, (2, 8, size), (16, 8, kernel), None, None, stride, 1, 1, 1)[0]
    found = _pieces.pieces(map, g)
    if search:
        return _phases.choose_all(map, found, 1, _blocks.Tile(*tile), 'auto')
    return _phases.choose_rounded(map, g, found, 1, _blocks.Tile(*tile), 'auto', True)


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('map', MAPS)
def test_sizes_near_each_other_are_searched_once(monkeypatch, map, stride):
    """Pieces are a size's own, blocks those of 264 positions."""
    _known.forget()
    made, searched = [], []
    search = _phases.choose_all
    monkeypatch.setattr(_phases, 'choose_all', lambda *given: searched.append(1) or search(*given))
    for size in range(stride * 257, stride * 263, 2 * stride):
        made.append(choices_of(map, size, False, stride=stride))
    assert len(searched) == 1
    assert len({tuple(blocking for _, blocking in choices) for choices in made}) == 1
    assert len({tuple(piece for piece, _ in choices) for choices in made}) == len(made)


@pytest.mark.parametrize('map', MAPS)
def test_small_and_round_sizes_have_blocks_of_their_own(map):
    for size in (*range(3, 65), 72, 112, 128, 224, 512):
        assert choices_of(map, size, False) == choices_of(map, size)


def test_no_size_is_rounded_by_more_than_a_32nd(monkeypatch):
    """Where the round size has other pieces, the size itself is searched for."""
    rounded = []
    monkeypatch.setattr(_phases, '_found', lambda map, g, *_: rounded.append(g) or ())
    g = convolved(1, (1, 1, 2000), (1, 1, 1), None, None, 1, 0, 1, 1)[0]
    for size in range(1, 2000):
        one = g._replace(input_size=(1, 1, size), output_size=(1, 1, size))
        found, before = _pieces.pieces('forward', one), len(rounded)
        chosen = _phases.choose_rounded('forward', one, found, 1, _blocks.Tile(4, 8, 4, 3), 'gemm', True)
        assert chosen == _phases.choose_all('forward', found, 1, _blocks.Tile(4, 8, 4, 3), 'gemm')
        for other in rounded[before:]:
            assert size < other.output_size[2] <= size + size / 32 and other.input_size == other.output_size
    assert len(rounded) > 1500
