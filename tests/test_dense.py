"""Kernels that cover the input, as in dense layers: few samples read the weight where it lies, once for all."""
import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, assert_same_bits, last, per_channel, poisoned
from plan_runs import geometry_of
from problems import P, maps, whole
from pyconv import _blocks, _pieces, _ways

TILES = [_blocks.Tile(4, 16, 8, 3), _blocks.Tile(8, 8, 8, 3), _blocks.Tile(4, 8, 4, 3), _blocks.Tile(8, 2, 4, 2)]
PROBLEMS = [
    P('squeezed', (1, 1), (1, 1), (96, 24), batch=3),
    P('of one channel', (1, 1), (1, 1), (1, 37), batch=2),
    P('to one channel', (1, 1), (1, 1), (70, 1)),
    P('fewer channels than lanes', (1, 1), (1, 1), (3, 21), batch=4),
    P('several blocks of channels', (1, 1), (1, 1), (1030, 50), batch=2),
    P('several blocks of rows', (1, 1), (1, 1), (20, 9000), batch=2),
    P('rows a power of two apart', (1, 1), (1, 1), (1024, 35), batch=4),
    P('plane', (5, 7), (5, 7), (11, 33), batch=3),
    P('line', (40,), (40,), (5, 18), batch=4),
    P('volume', (2, 3, 4), (2, 3, 4), (10, 40), batch=2),
    P('in groups', (3, 3), (3, 3), (24, 36), groups=3, batch=2),
    P('at a stride', (6, 6), (6, 6), (4, 20), stride=3, batch=2),
]
every_problem = pytest.mark.parametrize('problem', PROBLEMS, ids=str)


def chosen(problem, name, tile):
    [piece] = _pieces.pieces(name, geometry_of(problem))
    return _ways.choose(name, piece, problem.groups, tile, 'auto')[1]


@every_problem
@pytest.mark.parametrize('name', ['forward', 'grad_input'])
def test_a_few_samples_take_it(problem, name):
    """And more do not, whose sums are made of the same blocks of channels."""
    for tile in TILES:
        most = 12 if tile.rows == 8 else 4
        found = {batch: chosen(problem._replace(batch=batch), name, tile) for batch in (1, most, most + 1, 70)}
        assert [blocking.way == _blocks.GATHER_DENSE for blocking in found.values()] == [True, True, False, False]
        assert len({blocking.channels for blocking in found.values()}) == 1


@every_problem
@pytest.mark.parametrize('threads', [1, 3])
def test_exact_for_small_integers(problem, dtype, threads):
    """With a bias and without, added to what is there and not; nothing is written beside."""
    data, wanted = problem.integers(dtype), whole(problem)
    rank, to_x, to_y = problem.rank, poisoned(data.x.shape, dtype), poisoned(data.y.shape, dtype)
    with pyconv.num_threads(threads):
        calls.forward(problem, data.x, data.w, data.b, out=to_y)
        assert_equal(to_y, wanted.forward + per_channel(data.b, rank), dtype)
        calls.forward(problem, data.x, data.w, out=to_y, accumulate=True)
        assert_equal(to_y, 2 * wanted.forward + per_channel(data.b, rank), dtype)
        calls.grad_input(problem, data.w, data.y, out=to_x)
        assert_equal(to_x, wanted.grad_input, dtype)
        calls.grad_input(problem, data.w, data.y, out=to_x, accumulate=True)
        assert_equal(to_x, 2 * wanted.grad_input, dtype)


@every_problem
def test_a_bias_of_the_transposed_map(problem, dtype):
    """Each of its numbers is added under all taps of a channel."""
    data, wanted = problem.integers(dtype), whole(problem)
    bias = np.arange(1, problem.channels[0] + 1, dtype=dtype)
    found = calls.transposed(problem, data.y, data.w, bias)
    assert_equal(found, wanted.grad_input + per_channel(bias, problem.rank), dtype)


@pytest.mark.parametrize('batch', [1, 3, 20])
@pytest.mark.parametrize('problem', PROBLEMS[7:10], ids=str)
def test_where_the_channels_of_input_and_weight_lie_last(problem, batch, dtype):
    """Under a bias too, whose numbers belong to other rows then."""
    problem = problem._replace(batch=batch)
    data, wanted, rank = problem.integers(dtype), whole(problem), problem.rank
    w, bias = last(data.w, rank), np.arange(1, problem.channels[0] + 1, dtype=dtype)
    for x in (data.x, last(data.x, rank)):
        assert_equal(calls.forward(problem, x, w, data.b), wanted.forward + per_channel(data.b, rank), dtype)
        to_w = last(poisoned(data.w.shape, dtype), rank)
        assert_equal(calls.grad_weight(problem, x, data.y, out=to_w), wanted.grad_weight, dtype)
        out = x.copy('K')
        biased = wanted.grad_input + per_channel(bias, rank)
        assert_equal(calls.transposed(problem, data.y, w, bias, out=out), biased, dtype)
        calls.transposed(problem, data.y, w, bias, out=out, accumulate=True)
        assert_equal(out, 2 * biased, dtype)


@pytest.mark.parametrize('offset', range(0, 64, 16))
@pytest.mark.parametrize('problem', PROBLEMS[:1] + PROBLEMS[6:8], ids=str)
def test_wherever_the_weight_begins(problem, offset, dtype):
    """In a cache line, to which vectors are aligned where they can be; in the same bits."""
    data = problem.floats(dtype)
    room = np.empty(data.w.nbytes + 128, np.uint8)
    first = -room.ctypes.data % 64 + offset
    w = room[first:first + data.w.nbytes].view(dtype).reshape(data.w.shape)
    w[...] = data.w
    assert_same_bits(calls.forward(problem, data.x, w), calls.forward(problem, data.x, data.w))
    assert_same_bits(calls.grad_input(problem, w, data.y), calls.grad_input(problem, data.w, data.y))


@every_problem
def test_the_same_bits_in_any_batch_and_on_any_threads(problem, dtype):
    """Of one sample to more than meet the weight where it lies, and to more than a plane of few cells has."""
    data = problem._replace(batch=70).floats(dtype)
    y, x = calls.forward(problem, data.x, data.w), calls.grad_input(problem, data.w, data.y)
    for some in (slice(0, 1), slice(3, 6), slice(60, 68), slice(20, 32), slice(5, 18), slice(2, 69)):
        for threads in (1, 2, 5):
            with pyconv.num_threads(threads):
                assert_same_bits(calls.forward(problem, data.x[some], data.w), y[some])
                assert_same_bits(calls.grad_input(problem, data.w, data.y[some]), x[some])


@pytest.mark.parametrize(('dtype', 'tiny'), [('float32', 1e-30), ('float64', 1e-200)])
@pytest.mark.parametrize('channels', [(1, 1), (1, 40), (40, 1), (1100, 20)])
def test_zeros_have_the_same_sign_in_any_batch(channels, dtype, tiny):
    """Of products that are too small for a number, and negative."""
    w = np.full((channels[1], channels[0], 1, 1), -tiny, dtype)
    x, y = (np.full((13, n, 1, 1), tiny, dtype) for n in channels)
    for some in (1, 4, 5, 12):
        assert_same_bits(pyconv.conv2d(x[:some], w), pyconv.conv2d(x, w)[:some])
        assert_same_bits(pyconv.conv2d_input(x[:some].shape, w, y[:some]), pyconv.conv2d_input(x.shape, w, y)[:some])


@every_problem
def test_what_is_not_finite(problem, dtype):
    """Stays in its row and its sample."""
    data = problem.integers(dtype)
    x, w, y = (part.copy() for part in data[:3])
    x[0, 0], w[-1, -1, ..., -1], y[-1, 0] = np.nan, np.inf, -np.inf
    with np.errstate(invalid='ignore'):
        wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
        assert np.array_equal(calls.forward(problem, x, w), wanted.forward, equal_nan=True)
        assert np.array_equal(calls.grad_input(problem, w, y), wanted.grad_input, equal_nan=True)


@pytest.mark.parametrize('dtype', ['float16', 'int8', 'int32', 'int64', 'complex64', 'complex128'])
@every_problem
def test_other_types(problem, dtype):
    """Integers of 32 and 64 bits take it too."""
    x, w, y = (part.astype(dtype) for part in problem.integers()[:3])
    wanted = whole(problem)
    assert np.array_equal(calls.forward(problem, x, w), wanted.forward)
    assert np.array_equal(calls.grad_input(problem, w, y), wanted.grad_input)
