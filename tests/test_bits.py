"""The same bits: for any number of threads, in any batch, again and again.

The data are random floats, so that another order of summation shows.
"""
import itertools

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_same_bits, poisoned
from plan_runs import geometry_of
from problems import LAYERS, VARIED, P
from pyconv import _blocks, _phases, _pieces, _tiled, _winograd
from test_dtypes import DTYPES, INTEGERS, data_of, dtype_of
from test_identities import generic
from test_ways import way_of

every_layer = pytest.mark.parametrize('problem', VARIED + LAYERS, ids=str)


def all_maps(problem, data):
    """The three maps and the transposed convolution, those that take a bias with it."""
    return (calls.forward(problem, data.x, data.w, data.b), calls.grad_input(problem, data.w, data.y),
            calls.grad_weight(problem, data.x, data.y), calls.transposed(problem, data.y, data.w, data.c),
            pyconv.conv_bias(data.y))


@every_layer
def test_any_number_of_threads(problem, dtype):
    data = problem.floats(dtype)
    with pyconv.num_threads(1):
        alone = all_maps(problem, data)
    for threads in (*range(2, 9), 40):  # in few blocks, in more and in many: see test_pieces
        with pyconv.num_threads(threads):
            for many, one in zip(all_maps(problem, data), alone):
                assert_same_bits(many, one)
    pyconv.set_num_threads(3)
    for many, one in zip(all_maps(problem, data), alone):
        assert_same_bits(many, one)


@every_layer
def test_a_sample_in_any_batch(problem, dtype):
    """Alone, without a batch axis, and in every position of batches of 1 to 9, among samples that are not finite."""
    full = problem._replace(batch=9).floats(dtype)
    xs, ys = full.x, full.y
    forwards = [calls.forward(problem, x, full.w, full.b) for x in xs]
    backs = [calls.grad_input(problem, full.w, y) for y in ys]
    for start in range(9):  # so that the last sample is in every place
        answer = calls.forward(problem, xs[start:], full.w, full.b)
        back = calls.grad_input(problem, full.w, ys[start:])
        for index in range(9 - start):
            assert_same_bits(answer[index], forwards[start + index])
            assert_same_bits(back[index], backs[start + index])
    spoiled_x, spoiled_y = xs.copy(), ys.copy()
    spoiled_x[1::2], spoiled_y[1::2] = np.nan, np.inf
    answer = calls.forward(problem, spoiled_x, full.w, full.b)
    back = calls.grad_input(problem, full.w, spoiled_y)
    for index in range(0, 9, 2):
        assert_same_bits(answer[index], forwards[index])
        assert_same_bits(back[index], backs[index])


# One of each kind of work, which may be padded by anything; most have just enough for eight threads.
KINDS = [P(name, *rest, batch=9, **more) for name, *rest, more in (
    ('line', (97,), (4,), (20, 36), {'padding': ((3, 1),), 'dilation': 2}),
    ('tiles', (6, 6), (3, 3), (32, 33), {'padding': 1}),
    ('strided groups', (16, 19), (3, 3), (24, 32), {'groups': 2, 'stride': 2, 'padding': ((2, 1), (1, 3))}),
    ('depthwise', (20, 27), (5, 5), (20, 20), {'groups': 20, 'padding': 2}),
    ('kernel 1', (14, 15), (1, 1), (33, 34), {'padding': ((0, 1), (1, 0))}),
    ('few channels', (41, 41), (3, 3), (3, 6), {'padding': 1}),
    ('dense', (4, 3), (4, 3), (40, 66), {}),
    ('volumes', (4, 5, 6), (2, 3, 3), (10, 10), {'padding': 1}),
    ('four axes', (2, 4, 5, 6), (2, 2, 3, 3), (5, 10), {'padding': (1, 0, 1, 1)}),
)]
LEGAL = [(algorithm, name) for algorithm in ('auto', 'gemm', 'winograd', 'columns')
         for name in ('float32', 'float64', *DTYPES) if algorithm != 'winograd' or name not in INTEGERS]


def random(problem, dtype):
    """Integers of all sizes, or normal numbers."""
    if dtype.name in INTEGERS:
        return data_of(problem, dtype)
    data = problem.floats()
    if dtype.kind == 'c':
        data = type(data)(*(real + 1j * other for real, other in zip(data, problem.floats(seed=1))))
    return type(data)(*(part.astype(dtype) for part in data))


def scratches(algorithm, problem, data):
    """None, of the least and of the full size, for sums over the batch and for each sample's own."""
    if algorithm == 'columns':
        return [{}]
    sizes = [pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=data.w.dtype,
                              algorithm=algorithm, per_sample=apart) for apart in (False, True)]
    return [{}, *({name: np.full(max(getattr(each, name + size) for each in sizes), 77, sizes[0].dtype)
                   for name in ('finput', 'fgrad_input')} for size in ('_minimum', ''))]


def calls_by(algorithm, problem, data, sums, **scratch):
    """Forward and the gradients of each sample, or what is made of columns; and, where `sums`, those of the weight and
    the bias that are summed over the batch."""
    x, steps, more = data.x, generic(problem, False), problem.mode
    if algorithm == 'columns':
        settings = {'padding': problem.padding, 'stride': problem.stride, 'dilation': problem.dilation, **more}
        columns = pyconv.unfold(x, problem.kernel, **settings)
        yield from (columns, pyconv.fold(columns, problem.size, problem.kernel, **settings))
        x, more = None, {**more, 'finput': columns}
    else:
        more = {**more, 'algorithm': algorithm, **scratch}
        yield pyconv.convolution(x, data.w, data.b, *steps, **more)
    for apart in (True, False)[:1 + sums]:
        mask = apart and x is not None, True, True
        grads = pyconv.convolution_backward(data.y, x, data.w, *steps, mask, per_sample=apart, **more)
        yield from grads[not mask[0]:]


@pytest.mark.parametrize('problem', KINDS, ids=str)
@pytest.mark.parametrize('mode', ['zeros', 'constant', 'circular', 'replicate', 'reflect'])
@pytest.mark.parametrize(('algorithm', 'name'), LEGAL)
def test_every_kind_of_call(problem, mode, algorithm, name):
    """On 1 to 8 threads, in any scratch, and of each sample in batches of 1 to 9."""
    problem = problem._replace(padding_mode=mode, padding_value=3 * (mode == 'constant'))
    data = random(problem, dtype_of(name))
    with pyconv.num_threads(1):
        before = list(calls_by(algorithm, problem, data, True))
        sizes = itertools.cycle(scratches(algorithm, problem, data))
    for threads, scratch in zip(range(2, 9), sizes):
        with pyconv.num_threads(threads):
            for again, first in zip(calls_by(algorithm, problem, data, True, **scratch), before, strict=True):
                assert_same_bits(again, first)
    for start in range(1, 9):
        part = data._replace(x=data.x[start:], y=data.y[start:])
        for again, first in zip(calls_by(algorithm, problem, part, False), before):
            assert_same_bits(again, first[start:])


# whose blocks one number of threads, batch or size of scratch has unrolled, another not
BOTH_WAYS = [
    P('5 by 5', (14, 14), (5, 5), (24, 32), padding=2, batch=4),
    P('3 by 3 strided', (28, 28), (3, 3), (16, 32), padding=1, stride=2, batch=4),
    P('groups of three axes', (2, 4, 2), (3, 3, 3), (64, 12), padding=1, stride=2, groups=4, batch=5),
    P('few channels', (4, 9, 5), (3, 3, 3), (2, 9), padding=1, stride=2, batch=3),
]


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('problem', LAYERS + BOTH_WAYS, ids=str)
def test_numbers_beside_those_that_are_not_finite(problem, value, dtype):
    """What one weight, or one element of a gradient, that is not finite leaves numbers is the same in any call too."""
    data = problem.floats(dtype)
    data.w.flat[0] = data.y.flat[0] = value

    def maps(samples=slice(None), finput=None, fgrad_input=None):
        answer = calls.forward(problem, data.x[samples], data.w, finput=finput)
        back = calls.grad_input(problem, data.w, data.y[samples], fgrad_input=fgrad_input)
        return [np.where(np.isfinite(result), result, 0) for result in (answer, back)]

    def assert_as_before(found):
        for result, first in zip(found, before):
            assert_same_bits(result, first[:len(result)])

    with pyconv.num_threads(1):
        before = maps()
        assert_as_before(maps(slice(1)))
        sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
        for one, other in ((sizes.finput, sizes.fgrad_input), (sizes.finput_minimum, sizes.fgrad_input_minimum)):
            assert_as_before(maps(finput=np.empty(one, dtype), fgrad_input=np.empty(other, dtype)))
    for threads in (2, 4, 7):
        with pyconv.num_threads(threads):
            assert_as_before(maps())


@every_layer
def test_the_same_sample_many_times(problem, dtype):
    """Every position of a batch is treated alike, whichever thread and block it falls to."""
    data = problem._replace(batch=1).floats(dtype)
    repeated = data._replace(x=np.repeat(data.x, 7, 0), y=np.repeat(data.y, 7, 0))
    answer = calls.forward(problem, repeated.x, data.w, data.b)
    back = calls.grad_input(problem, data.w, repeated.y)
    for index in range(7):
        assert_same_bits(answer[index], answer[0])
        assert_same_bits(back[index], back[0])


@every_layer
def test_again_and_into_out(problem, dtype):
    data = problem.floats(dtype)
    once = all_maps(problem, data)
    for _ in range(3):
        for again, first in zip(all_maps(problem, data), once):
            assert_same_bits(again, first)
    outs = [poisoned(first.shape, dtype) for first in once]
    calls.forward(problem, data.x, data.w, data.b, out=outs[0])
    calls.grad_input(problem, data.w, data.y, out=outs[1])
    calls.grad_weight(problem, data.x, data.y, out=outs[2])
    calls.transposed(problem, data.y, data.w, data.c, out=outs[3])
    pyconv.conv_bias(data.y, out=outs[4])
    for again, first in zip(outs, once):
        assert_same_bits(again, first)


@pytest.mark.parametrize('problem', LAYERS, ids=str)
def test_where_the_arrays_lie(problem, dtype):
    """Any offset inside a cache line gives the same bits."""
    data = problem.floats(dtype)
    alone = all_maps(problem, data)
    for offset in (1, 3, 7):
        moved = []
        for part in data:
            memory = np.empty(part.size + offset, dtype)
            memory[offset:] = part.ravel()
            moved.append(memory[offset:].reshape(part.shape))
        for again, first in zip(all_maps(problem, type(data)(*moved)), alone):
            assert_same_bits(again, first)


POINTWISE = [P('1x1', (24, 24), (1, 1), (24, 64), batch=2), P('1x1 over lines', (400,), (1,), (9, 50)),
             P('1x1 in few sets', (32, 32), (1, 1), (40, 32)), P('1x1 from few channels', (32, 32), (1, 1), (8, 64)),
             P('1x1 to few channels', (24, 24), (1, 1), (24, 32))]


# Rows of results that lie one behind the other, and end within a vector.
WITHIN = [P('1x1 of several samples', (14, 14), (1, 1), (72, 136), batch=3), P('a line of 25', (25,), (1,), (300, 96)),
          P('1x1 at a stride', (29, 15), (1, 1), (64, 130), stride=2, batch=4),
          P('2x2', (15, 15), (2, 2), (64, 96), batch=2), P('a row too few', (7, 7), (1, 1), (80, 9), batch=2)]


@pytest.mark.parametrize('last', [False, True], ids=['channels first', 'channels last'])
@pytest.mark.parametrize('problem', VARIED + LAYERS + POINTWISE + WITHIN, ids=str)
def test_in_any_cache(problem, last, dtype, replan):
    """Whether cells are copied, broadcast or unrolled follows from the processor's cache, and shows in no bit."""
    data = problem.floats(dtype)
    if last:
        data = data._replace(**{name: np.moveaxis(np.ascontiguousarray(np.moveaxis(getattr(data, name), 1, -1)), -1, 1)
                                for name in 'xyw'})
    results = []
    for size in (0, 1 << 20, 1 << 21, 1 << 24):
        replan(pyconv._cpu, second_level=size)
        results.append(all_maps(problem, data))
    for found in results[1:]:
        for one, other in zip(found, results[0], strict=True):
            assert_same_bits(one, other)


SAME_SUMS = {_blocks.GATHER_FLAT: _blocks.GATHER, _blocks.GATHER_BROADCAST: _blocks.GATHER}


def decisive(name, choice):
    """Of a piece and its blocks, what decides the order of sums."""
    piece, blocking = choice
    if name == 'grad_weight':
        tiles = blocking.way == _blocks.CORRELATE_WINOGRAD
        return blocking._replace(channels=0, rows=0) if tiles else blocking
    lies_in_rows = not (piece.source_last or piece.target_last or blocking.by_taps)
    way = SAME_SUMS.get(blocking.way, blocking.way) if lies_in_rows else blocking.way
    return way, piece.tile, blocking.channels, blocking.by_taps


TILES = [_blocks.Tile(4, 16, 8, 3), _blocks.Tile(8, 8, 8, 3), _blocks.Tile(4, 8, 4, 3)]


@pytest.mark.parametrize('tile', TILES, ids=str)
def test_what_decides_a_sum_follows_from_no_cache(tile):
    pick = np.random.default_rng(0)
    for _ in range(300):
        groups = int(pick.choice([1, 1, 4, 32]))
        channels = tuple(groups * int(n) for n in pick.choice([1, 3, 8, 40, 130], 2))
        kernel = tuple(map(int, pick.choice([1, 1, 2, 3, 5], 2)))
        size = tuple(int(n) + k for n, k in zip(pick.choice([1, 6, 13, 14, 27, 40], 2), kernel))
        problem = P('', size, kernel, channels, groups=groups, batch=int(pick.choice([1, 2, 8])),
                    stride=int(pick.choice([1, 1, 2, 3])), padding=int(pick.choice([0, 0, 1])))
        for name, last in itertools.product(('forward', 'grad_input', 'grad_weight'), (False, True)):
            geometry = geometry_of(problem)._replace(x_last=last, y_last=last)
            found = [[decisive(name, choice) for choice in _phases.choose_all(
                name, _pieces.pieces(name, geometry), groups, tile._replace(second_level=size), 'auto')]
                for size in (0, 1 << 21)]
            assert found[0] == found[1], (problem, name, last)


# Of tiles, whose blocks have other cells, rows, channels or columns where L2 is large, at one level or another.
TILED = [P('many rows', (26, 26), (3, 3), (20, 300), padding=1), P('large', (50, 50), (3, 3), (72, 290), padding=1),
         P('many channels', (9, 9), (3, 3), (260, 140), batch=5, padding=1), P('a line', (700,), (3,), (70, 280))]


@pytest.mark.parametrize('algorithm', ['auto', 'winograd'])
@pytest.mark.parametrize('problem', TILED, ids=str)
def test_blocks_of_tiles_in_any_cache(problem, algorithm, dtype, replan):
    """As large as suits the processor's, which shows in no bit, not even of the weight's gradient."""
    data = problem.floats(dtype)
    results = []
    for size in (0, 1 << 20, 1 << 21, 1 << 24):
        replan(pyconv._cpu, second_level=size)
        results.append(calls.three_maps(problem, *data[:2], data.y, algorithm=algorithm))
    for found in results[1:]:
        for one, other in zip(found, results[0], strict=True):
            assert_same_bits(one, other)


def test_which_blocks_a_large_cache_has():
    """Of cells as many as stay in it, of results more than on others."""
    sizes, tile = (0, 1 << 20, 1 << 21), _blocks.Tile(4, 16, 8, 3, tasks=2)
    few, many = ([_tiled.gather(tiled('forward', *layer), tile._replace(second_level=size)) for size in sizes]
                 for layer in ((64, 56), (512, 28)))
    assert few[0] == few[1] and few[0].extent == (1, 14, 14) and few[2].extent == (1, 2, 14)
    assert many[0] == many[1] and many[0].rows < many[2].rows and many[0].extent == many[2].extent
    sums = [_tiled.correlate(tiled('grad_weight', 256, 56), 1, tile._replace(second_level=size)) for size in sizes]
    assert sums[0] == sums[1] and sums[0].channels * sums[0].rows < sums[2].channels * sums[2].rows
    assert sums[0]._replace(channels=0, rows=0) == sums[2]._replace(channels=0, rows=0)  # these make no bit


def tiled(name, channels, size):
    """The piece of a 3x3 layer in tiles of F(4, 3)."""
    [piece] = _pieces.pieces(name, geometry_of(P('', (size, size), (3, 3), (channels, channels), batch=8, padding=1)))
    return _winograd.of_tiles(piece, 4)


@pytest.mark.parametrize('itemsize', [4, 8])
@pytest.mark.parametrize('problem', POINTWISE, ids=str)
def test_which_cells_are_copied(problem, itemsize):
    for size in (0, 1 << 20, 1 << 21):
        tile = _blocks.Tile(itemsize, 64 // itemsize, 8, 3, second_level=size)
        way, _ = way_of(problem, 'forward', tile)
        copied = problem.channels[0] > 8 and (problem.name == '1x1 in few sets' or (
            size == 1 << 21 and problem.channels[1] >= 48))
        assert way == (_blocks.GATHER if copied else _blocks.GATHER_FLAT)
