"""Elements of other types than are computed in, whose channels lie last: for some ways they do so in copies too."""
import itertools

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_same_bits, last, per_channel, poisoned
from plan_runs import geometry_of
from problems import IN_TURNS, LAST, P, maps, some
from pyconv import _blocks, _phases, _pieces
from test_dtypes import addable, data_of, exactly, result_of, same
from test_dtypes import dtype as dtype  # every type but float32 and float64

PROBLEMS = [
    *some('1d', '2d stride 2', '2d groups everything', '2d depthwise', '2d depthwise strided', '2d channels 33 33',
          '2d crop strided dilated', '2d transposed output padding above stride', '2d fully connected',
          '3d groups everything', 'circular 2d depthwise', 'reflect 2d stride 2', 'constant 2 2d groups everything'),
    *LAST[::3], *IN_TURNS[::4],
    P('tiles', (12, 19), (3, 3), (40, 50), padding=1, batch=2),
    P('kernel 1', (9, 13), (1, 1), (70, 90), batch=2),
    P('kernel 1 in groups at stride 2', (9, 13), (1, 1), (64, 48), stride=2, groups=2, batch=2),
    P('few of many', (8, 9), (3, 3), (64, 3), padding=1, batch=2),
    P('an image', (19, 20), (5, 5), (3, 32), stride=2, padding=2, batch=2),
    P('depthwise of 7 by 7', (9, 11), (7, 7), (70, 70), padding=3, groups=70, batch=2),
]


@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
def test_each_operand_in_either_order(problem, dtype):
    data, rank, result = data_of(problem, dtype, most=addable(dtype)), problem.rank, result_of(dtype)
    whole = exactly(data)
    wanted = maps(problem, *whole[:3])
    biased = wanted.forward + per_channel(whole.b, rank)
    for x_last, y_last in itertools.product((False, True), repeat=2):
        x, y = last(data.x, rank) if x_last else data.x, last(data.y, rank) if y_last else data.y
        before = x.copy(), y.copy()
        to_x, to_y = np.full(x.shape, 99, result), np.full(y.shape, 99, result)
        to_x, to_y = last(to_x, rank) if x_last else to_x, last(to_y, rank) if y_last else to_y
        calls.forward(problem, x, data.w, data.b, out=to_y)
        calls.grad_input(problem, data.w, y, out=to_x)
        same(to_y, biased, result)
        same(to_x, wanted.grad_input, result)
        same(calls.grad_weight(problem, x, y), wanted.grad_weight, result)
        to_y[...], to_x[...] = 3, 3
        calls.forward(problem, x, data.w, data.b, out=to_y, accumulate=True)
        calls.grad_input(problem, data.w, y, out=to_x, accumulate=True)
        same(to_y, biased + 3, result)
        same(to_x, wanted.grad_input + 3, result)
        assert_same_bits(x, before[0])
        assert_same_bits(y, before[1])


@pytest.mark.sparse
@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
def test_the_same_bits(problem, dtype):
    """Of any number of threads, any buffer, and of a sample in any batch."""
    problem, rank = problem._replace(batch=5), problem.rank
    data, result = data_of(problem, dtype), result_of(dtype)
    if np.dtype(dtype).kind not in 'iu':
        data = type(data)(*(part + (0.1 * part * part).astype(dtype) for part in data))
    x, y = last(data.x, rank), last(data.y, rank)
    to_x, to_y = (last(poisoned(part.shape, result) if result.kind == 'f' else np.full(part.shape, 99, result), rank)
                  for part in (x, y))
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    with pyconv.num_threads(1):
        forward = calls.forward(problem, x, data.w, out=to_y).copy('K')
        back = calls.grad_input(problem, data.w, y, out=to_x).copy('K')
        weight = calls.grad_weight(problem, x, y)
    for threads, (least, full) in itertools.product((1, 3), (sizes[:2], sizes[2:4])):
        finput, fgrad_input = (np.full(max(size, 1), 77, sizes.dtype) for size in (least, full))
        with pyconv.num_threads(threads):
            assert_same_bits(calls.forward(problem, x, data.w, out=to_y, finput=finput), forward)
            assert_same_bits(calls.grad_input(problem, data.w, y, out=to_x, fgrad_input=fgrad_input), back)
            assert_same_bits(calls.grad_weight(problem, x, y, finput=finput), weight)
    for batch in (1, 3):
        assert_same_bits(calls.forward(problem, x[-batch:], data.w, out=to_y[-batch:]), forward[-batch:])
        assert_same_bits(calls.grad_input(problem, data.w, y[-batch:], out=to_x[-batch:]), back[-batch:])


@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight'])
@pytest.mark.parametrize('channels, groups, way', [
    (96, 96, 'last'), (64, 1, 'tiles')])
def test_ways_are_those_of_floats(name, channels, groups, way):
    """Copies of blocks are of cells where these are read as they lie, and no larger for a larger image."""
    tile, most = _blocks.Tile(4, 16, 8, 3), []
    wanted = {'last': (_blocks.GATHER_LAST, _blocks.CORRELATE_LAST),
              'tiles': (_blocks.GATHER_WINOGRAD, _blocks.CORRELATE_WINOGRAD)}[way][name == 'grad_weight']
    for size in (56, 224):
        problem = P('layer', (size, size), (3, 3), (channels, channels), padding=1, groups=groups, batch=8)
        made = geometry_of(problem, x_last=True, y_last=True)._replace(converts=(True, True))
        [(piece, blocking)] = _phases.choose_all(name, _pieces.pieces(name, made), groups, tile, 'auto')
        assert piece.patched[:2] == (True, True) and blocking.way == wanted
        most.append(blocking.groups * blocking.extent[1] * blocking.extent[2] * 4)
    assert way != 'last' or max(most) <= 2 << 18


@pytest.mark.parametrize('name', ['float16', 'bfloat16'])
def test_what_is_not_finite(name):
    """A NaN or infinity reaches what it is multiplied for, and no padding is."""
    kind = pytest.importorskip('ml_dtypes').bfloat16 if name == 'bfloat16' else np.float16
    for problem in PROBLEMS:
        if problem.padding_mode != 'zeros':
            continue
        data, rank = problem.integers(np.dtype(np.float32)), problem.rank
        x, w, y = (part.copy() for part in data[:3])
        x[0, 0, ..., 0], y[-1, -1, ..., 0], w[0, 0, ..., 0] = np.nan, np.inf, np.nan
        with np.errstate(all='ignore'):
            wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
            x, y, w = last(x.astype(kind), rank), last(y.astype(kind), rank), w.astype(kind)
            found = (calls.forward(problem, x, w, out=last(np.zeros(y.shape, kind), rank)),
                     calls.grad_input(problem, w, y, out=last(np.zeros(x.shape, kind), rank)),
                     calls.grad_weight(problem, x, y))
            for one, exact in zip(found, wanted):
                assert np.array_equal(np.isfinite(one.astype(float)), np.isfinite(exact))
