"""The ways of forward and grad_input by register tiles, each on every problem: cells unrolled, and cells broadcast.

Which of the two is taken follows from what is expected to take less time, in a batch of that size: so they must agree
to the bit. The other ways are forced in their own files or by the problems themselves.
"""
from pathlib import Path

import numpy as np
import pytest

import calls
import pyconv
import reference
import test_nonfinite as nonfinite
from calls import assert_equal, assert_same_bits
from plan_runs import geometry_of
from problems import PROBLEMS, SHARED_CELLS, VARIED, P, whole
from pyconv import _blocking, _blocks, _cpu, _known, _lattices, _phases, _pieces, _ways

UNROLLED, BROADCAST = 0, np.inf
TILES = [_blocks.Tile(4, 16, 8, 3), _blocks.Tile(8, 2, 4, 2)]
MATRICES = _blocks.Tile(4, 16, 16, 3)
MORE = [
    P('a patch', (64, 64), (16, 16), (3, 50), stride=16, batch=3),
    P('a kernel with far taps', (28, 28), (3, 3), (20, 70), padding=12, dilation=12, batch=2),
    P('few positions of many channels', (7, 7), (3, 3), (150, 100), padding=1, batch=4),
    P('one long row', (1, 900), (1, 1), (40, 30), batch=2),
    P('one row in groups', (30, 32), (1, 1), (66, 99), groups=3, batch=2),
    P('few rows of two phases', (20, 23), (5, 5), (3, 90), stride=2, padding=2, batch=3),
    P('few rows of uneven phases', (21, 26), (7, 4), (2, 70), stride=(3, 2), padding=(1, 3)),
    P('one row of five phases', (1203,), (10,), (1, 300), stride=5),
    P('one row of eight phases', (500,), (16,), (1, 40), stride=8, padding=4),
    P('one row of a hundred phases', (1150,), (230,), (1, 37), stride=100, padding=((11, 3),), batch=2),
    P('three rows of many phases', (43, 40), (14, 13), (3, 9), stride=9, padding=2),
    P('phases with far taps', (19, 24), (4, 5), (2, 40), stride=3, padding=3, dilation=2),
    P('phases of planes', (7, 8, 9), (3, 3, 3), (2, 130), stride=2, padding=1),
    P('planes of two', (2, 7, 7), (3, 3, 3), (33, 17), padding=1, batch=3),
    P('more taps apart than clips are kept of', (20, 22), (9, 9), (3, 20), stride=9, padding=4, batch=2),
]
ROWS_OF_TAPS = [  # one vector of output channels for some type and level, and 8, 4, 2 and 1 input channels at once
    P(f'{taps} taps to {outputs} channels, {apart} apart, positions {step}, {pads}', (4, size), (2, taps),
      (15, outputs), stride=(1, step), dilation=(1, apart), padding=((0, 1), pads))
    for taps, step, apart in ((2, 1, 1), (3, 1, 1), (5, 1, 1), (3, 2, 1), (3, 2, 2), (5, 3, 3))
    for size, pads in ((23, (0, 0)), (19, (2, 1)), (21, (-1, -2)), (2, (7, 9)))
    for outputs in (2, 4, 8, 16)]
LONE_TAPS = [
    P('of 40 channels', (33, 31), (1, 1), (40, 70), stride=2, batch=3),
    P('in the padding too', (20, 23), (1, 1), (70, 41), stride=3, padding=(1, 2), batch=2),
    P('of one long row', (2100,), (1,), (20, 33), stride=2),
    P('of planes in groups', (4, 9, 10), (1, 1, 1), (18, 36), stride=(1, 2, 2), groups=2, batch=2)]
RUNS = [  # under one tap, whose weight's gradient is of runs of positions in both operands
    P('to one channel', (50, 47), (1, 1), (9, 1), batch=3),
    P('to three channels', (50, 47), (1, 1), (4, 3)),  # of as many as a tile of four has rows: vectors of two are full
    P('from one channel', (50, 47), (1, 1), (1, 40), batch=2),
    P('from three channels, a row', (4107,), (1,), (3, 37), batch=2),
    P('from two channels in groups', (18, 12, 11), (1, 1, 1), (4, 66), groups=2)]
PLANES = [P(f'to {few} channels', (130, 128), (1, 1), (37, few), batch=2) for few in (1, 5, 16)]  # beyond the caches
every_problem = pytest.mark.parametrize('problem', PROBLEMS + SHARED_CELLS + MORE, ids=str)


@pytest.fixture
def force(monkeypatch):
    """Decide the comparison of the two, neither tap by tap."""
    monkeypatch.setattr(_ways, 'BY_TAPS', dict.fromkeys(_ways.BY_TAPS, (np.inf, np.inf)))

    def decide(factor):
        monkeypatch.setattr(_ways, 'unrolled_loses', lambda *_: factor)
        _known.forget()
    yield decide
    _known.forget()


def ways(problem, tile):
    """How forward and grad_input of the problem are worked on."""
    geometry = geometry_of(problem)
    return {_ways.choose(name, piece, geometry.groups, tile, 'gemm')[1].way
            for name in ('forward', 'grad_input') for piece in _pieces.pieces(name, geometry)}


LAST = {'x_last': True, 'y_last': True}
OF_EVERY_ROW = [  # maps, and changes of a geometry
    (P('tiles', (28, 28), (3, 3), (64, 64), padding=1), 'winograd', {}),
    (P('tiles', (28, 28), (3, 3), (64, 64), padding=1), 'auto', {}),
    (P('fully connected', (5, 5), (5, 5), (8, 40), batch=2), 'auto', {}),
    (P('replicated', (9, 9), (3, 3), (8, 8), padding=4, stride=2), 'auto', {'padding_mode': 'replicate'}),
    (P('depthwise', (28, 28), (3, 3), (32, 32), groups=32, padding=1), 'auto', LAST),
    (P('depthwise', (28, 32), (3, 3), (32, 32), groups=32, padding=1), 'auto', {}),
    (P('narrow', (7, 7), (3, 3), (32, 32), groups=32, padding=1), 'auto', {}),
    (P('few results', (28, 28), (3, 3), (3, 64), padding=1, stride=2), 'auto', LAST),
    (P('few results', (28, 28), (3, 3), (64, 3), padding=1, stride=2), 'gemm', {}),
    (P('many', (28, 28), (1, 1), (64, 64)), 'auto', {}),
    (P('few', (5, 5), (2, 2), (3, 2)), 'auto', {}),
    (P('cells of several channels', (9, 9), (3, 3), (64, 64), padding=1), 'auto', {'cell': 4, 'summed': 16}),
    (P('far taps', (16, 16), (3, 3), (64, 64), padding=8, dilation=8), 'auto', {}),
    (P('many channels', (14, 14), (1, 1), (256, 256)), 'auto', {}),
]


def test_the_table_of_ways():
    """Every kernel is in a row, every row is taken by some layer, and the page shows them all, in their order."""
    rows = _ways.WAYS
    assert {way for row in rows for way in row.ways} == set(range(_blocks.CORRELATE_WINOGRAD + 1))
    taken = set()
    for problem, algorithm, changes in OF_EVERY_ROW:
        geometry = geometry_of(problem, **changes)
        for name in ('forward', 'grad_input', 'grad_weight'):
            whole = _pieces.pieces(name, geometry)
            floats = TILES[0]._replace(slices=3 if problem.name == 'many channels' else 1)
            asked = _ways.Asked(name, geometry.groups, MATRICES if geometry.cell > 1 else floats, 0, True)
            for piece in _lattices.in_lone_tiles(name, whole[0]) or whole:
                taken.add(rows.index(_ways._first(piece, asked, algorithm)[0]))
    assert taken == set(range(len(rows)))
    page = (Path(__file__).parents[1] / 'docs' / 'ways.md').read_text()
    shown = [line.strip('| ').split(' | ') for line in page.splitlines() if line.startswith('| ')][1:]
    asked_for = {('winograd',): ", if `algorithm='winograd'`"}
    assert shown == [[row.name + asked_for.get(row.algorithms, ''), ', '.join(row.maps), row.when, row.why]
                     for row in rows]


@pytest.mark.parametrize('tile', TILES, ids=str)
def test_many_problems_take_either(force, tile):
    """Else the rest of this file would say nothing."""
    force(UNROLLED)
    taken = [way for problem in PROBLEMS + MORE for way in ways(problem, tile)]
    assert taken.count(_blocks.GATHER) >= 100 and taken.count(_blocks.GATHER_FLAT) >= 3
    assert _blocks.GATHER_BROADCAST not in taken
    force(BROADCAST)
    taken = [way for problem in PROBLEMS + MORE for way in ways(problem, tile)]
    assert taken.count(_blocks.GATHER_BROADCAST) >= 100


@every_problem
@pytest.mark.parametrize('factor', [UNROLLED, BROADCAST])
def test_exact_for_small_integers(force, factor, problem, dtype):
    force(factor)
    data = problem.integers(dtype)
    wanted = whole(problem)
    with_bias = wanted.forward + calls.per_channel(data.b, problem.rank)
    assert_equal(calls.forward(problem, data.x, data.w, data.b, algorithm='gemm'), with_bias, dtype)
    assert_equal(calls.grad_input(problem, data.w, data.y, algorithm='gemm'), wanted.grad_input, dtype)


@pytest.mark.parametrize('problem', RUNS, ids=str)
def test_runs_of_a_lone_tap(problem, dtype):
    """Both operands are read where they lie, of every sample and type, and of others than C order from copies."""
    for tile in TILES:
        taken = {_ways.choose('grad_weight', piece, problem.groups, tile, 'auto')[1].way
                 for piece in _pieces.pieces('grad_weight', geometry_of(problem))}
        assert taken == {_blocks.CORRELATE_FLAT}
    data, wanted = problem.integers(dtype), whole(problem).grad_weight
    assert_equal(calls.grad_weight(problem, data.x, data.y), wanted, dtype)
    out = np.ones(problem.weight_shape, dtype)
    calls.grad_weight(problem, data.x, data.y, out=out, accumulate=True)
    assert_equal(out, wanted + 1, dtype)
    x, y = (np.ascontiguousarray(np.moveaxis(part, 1, -1)) for part in (data.x, data.y))
    assert_equal(calls.grad_weight(problem, np.moveaxis(x, -1, 1), np.moveaxis(y, -1, 1)), wanted, dtype)
    assert_equal(calls.grad_weight(problem, data.x[..., ::-1], data.y[..., ::-1]), wanted, dtype)
    each = calls.grad_weight(problem, data.x, data.y, per_sample=True)
    assert_equal(each.sum(0), wanted, dtype)
    data = problem.floats(dtype)
    wanted = calls.grad_weight(problem, data.x, data.y)
    with pyconv.num_threads(3):
        assert_same_bits(calls.grad_weight(problem, data.x, data.y), wanted)
    nonfinite.test_in_one_operand(problem, (np.inf, np.nan))


@pytest.mark.parametrize('problem', PLANES, ids=str)
def test_few_planes_at_a_time(problem, dtype):
    """Where a lone tap waits for memory: the same bits whichever way sums them, of a sample in any batch."""
    tile = _blocks.Tile(4, 16, 8, 3)
    [piece] = _pieces.pieces('forward', geometry_of(problem))
    assert _blocking.channels_at_once(piece, tile) == (13 if problem.channels[1] == 16 else 8)
    assert _blocking.channels_at_once(piece._replace(rows=17), tile) == 37
    data = problem.integers(dtype)
    assert_equal(calls.forward(problem, data.x, data.w), whole(problem).forward, dtype)
    data = problem.floats(dtype)
    found = calls.forward(problem, data.x, data.w)
    assert_same_bits(calls.forward(problem, data.x[1:], data.w), found[1:])


@pytest.mark.parametrize('unrolled', [False, True])
@pytest.mark.parametrize('problem', LONE_TAPS, ids=str)
def test_cells_of_a_lone_tap(force, monkeypatch, problem, unrolled, dtype):
    """Those between them are not read; unrolled where tiles have four rows."""
    pieces = _pieces.pieces('grad_weight', geometry_of(problem))
    taken = [_ways.choose('grad_weight', piece, problem.groups, _blocks.Tile(8, 4, rows, 3), 'gemm')[1].way
             for piece in pieces for rows in (4, 8)]
    assert taken == [_blocks.CORRELATE_UNROLLED, _blocks.CORRELATE]
    monkeypatch.setattr(_blocking, '_is_unrolled', lambda *_: unrolled)
    _known.forget()
    data = problem.integers(dtype)
    wanted = whole(problem).grad_weight
    x = np.full_like(data.x, np.nan)
    read = tuple(slice(-problem.pads[a][0] % step, None, step)
                 for a, step in enumerate(problem.per_axis(problem.stride)))
    x[..., *read] = data.x[..., *read]
    sizes = pyconv.workspace(x.shape, problem.weight_shape, **problem.keywords, dtype=dtype, algorithm='gemm')
    out = np.ones(problem.weight_shape, dtype)
    for size in sizes.finput, sizes.finput_minimum:
        finput = calls.poisoned(size, dtype)
        assert_equal(calls.grad_weight(problem, x, data.y, algorithm='gemm', finput=finput), wanted, dtype)
    calls.grad_weight(problem, x, data.y, algorithm='gemm', out=out, accumulate=True)
    assert_equal(out, wanted + 1, dtype)


@every_problem
def test_the_same_bits(force, problem, dtype):
    data = problem.floats(dtype)
    answers = []
    for factor in (UNROLLED, BROADCAST):
        force(factor)
        answers.append((calls.forward(problem, data.x, data.w, data.b, algorithm='gemm'),
                        calls.grad_input(problem, data.w, data.y, algorithm='gemm')))
    for one, other in zip(*answers):
        assert_same_bits(one, other)


@pytest.mark.parametrize('problem', ROWS_OF_TAPS, ids=str)
def test_weight_gradients_of_rows_of_taps(problem, dtype):
    data = problem.integers(dtype)
    wanted = reference.grad_weight(data.x, data.y, problem.kernel, **problem.form)
    assert_equal(calls.grad_weight(problem, data.x, data.y, algorithm='gemm'), wanted, dtype)
    assert_equal(calls.grad_weight(problem, calls.last(data.x, 2), data.y, algorithm='gemm'), wanted, dtype)
    if problem.channels[1] == 8:
        nonfinite.test_in_one_operand(problem, (np.inf, np.nan))


@pytest.mark.parametrize('problem', VARIED, ids=str)
@pytest.mark.parametrize('factor', [UNROLLED, BROADCAST])
def test_not_finite(force, factor, problem):
    force(factor)
    nonfinite.test_in_one_operand(problem, (np.inf, np.nan))


@pytest.mark.parametrize('tile', [*TILES, _blocks.Tile(4, 8, 4, 3)], ids=str)
@pytest.mark.parametrize('kernel', [(17, 9), (17, 17)])
def test_how_many_samples_there_are_does_not_decide_the_algorithm(tile, kernel):
    """Where the kernel is read and grad_output multiplied, rows are samples: only ways that sum alike may be taken."""
    sizes = tuple(k + n - 1 for k, n in zip(kernel, (3, 3)))
    for batch in (1, 2, 9, 300):
        problem = P('far larger kernel', sizes, kernel, (160, 200), groups=4, batch=batch)
        geometry = geometry_of(problem)
        assert _pieces.is_swapped('grad_input', geometry)
        for piece in _pieces.pieces('grad_input', geometry):
            way = _ways.choose('grad_input', piece, 4, tile, 'winograd')[1].way
            assert way in (_blocks.GATHER, _blocks.GATHER_FLAT, _blocks.GATHER_BROADCAST)


def way_of(problem, map, tile, **changes):
    """Of its one piece: how the problem is worked on, and in how many positions at a time."""
    [piece] = _pieces.pieces(map, geometry_of(problem, **changes))
    blocking = _ways.choose(map, piece, problem.groups, tile, 'gemm')[1]
    return blocking.way, blocking.samples * np.prod(blocking.extent)


BY_FOUR, BY_EIGHT = _blocks.Tile(4, 8, 4, 3), _blocks.Tile(4, 16, 8, 3)


@pytest.fixture
def forget():
    """Keep no choice; nor afterwards, of what the test changed."""
    yield _known.forget
    _known.forget()


@pytest.mark.parametrize(('channels', 'tile'), [
    ((16, 64), BY_FOUR),
    ((256, 1024), _blocks.Tile(8, 8, 8, 3, tasks=2, second_level=_blocks.LARGE_SECOND_LEVEL))], ids=str)
def test_results_that_are_one_run_are_not_moved(channels, tile, forget, monkeypatch):
    """Of one sample, if moving costs anything; else two, whose positions end with a vector."""
    [piece] = _pieces.pieces('forward', geometry_of(P('1x1', (14, 14), (1, 1), channels, batch=8)))
    assert _ways.choose('forward', piece, 1, tile, 'gemm')[1].samples == 1
    for cost in ('MOVE_COST', 'STRETCH_COST'):
        monkeypatch.setattr(_blocks, cost, {4: 0, 8: 0})
    forget()
    assert _ways.choose('forward', piece, 1, tile, 'gemm')[1].samples == 2


@pytest.mark.parametrize(('channels', 'size', 'batch', 'way'), [
    ((1024, 256), 14, 8, _blocks.GATHER), ((2048, 512), 7, 8, _blocks.GATHER),
    ((640, 48), 16, 4, _blocks.GATHER_BROADCAST)])
def test_a_lone_tap_s_cells_are_unrolled_sooner_where_l2_is_large(channels, size, batch, way):
    """As measured; without such a cache they are broadcast. Few rows are not worth what unrolling takes."""
    layer = P('1x1', (size, size), (1, 1), channels, batch=batch)
    for second_level, taken in ((0, _blocks.GATHER_BROADCAST), (_blocks.LARGE_SECOND_LEVEL, way)):
        assert way_of(layer, 'forward', BY_EIGHT._replace(tasks=2, second_level=second_level))[0] == taken


@pytest.mark.parametrize(('problem', 'by_four', 'by_eight'), [
    (P('a column of taps', (17, 17), (7, 1), (192, 192), padding=(3, 0), batch=8), 0, 2),
    (P('overlapping taps', (28, 28), (5, 5), (64, 64), padding=2, batch=8), 2, 2),
    (P('one vector of rows', (14, 14), (5, 5), (6, 16), batch=64), 2, 0),
    (P('few cells', (14, 14), (3, 3), (512, 512), stride=2, padding=1), 2, 2)], ids=str)
def test_tiles_of_four_rows_unroll_sooner(problem, by_four, by_eight):
    """But not several rows of many taps, and not a few cells under some of a kernel's taps: grad_input."""
    for tile, way in ((BY_FOUR, by_four), (BY_EIGHT, by_eight)):
        taken = {_ways.choose('grad_input', piece, 1, tile, 'gemm')[1].way for piece in _pieces.pieces(
            'grad_input', geometry_of(problem))}
        assert taken == {(_blocks.GATHER, _blocks.GATHER_FLAT, _blocks.GATHER_BROADCAST)[way]}


@pytest.mark.parametrize(('kernel', 'itemsize', 'ways'), [
    ((3, 3), 4, {_blocks.GATHER_BROADCAST}), ((3, 3), 8, {_blocks.GATHER_BROADCAST}),
    ((1, 3), 4, {_blocks.GATHER, _blocks.GATHER_BROADCAST})])
def test_cells_that_lie_apart_are_broadcast_in_tiles_of_four_rows(kernel, itemsize, ways):
    """Under three rows of taps: where rows of positions are 28 and 66 long."""
    taken = {way_of(P('strided', (size, size), kernel, channels, stride=2, padding=1), 'forward', _blocks.Tile(
        itemsize, 32 // itemsize, 4, 3))[0] for size, channels in ((56, (128, 128)), (131, (32, 64)), (112, (8, 16)))}
    assert taken == ways


@pytest.mark.parametrize(('taps', 'way'), [(2, _blocks.GATHER_BROADCAST), (3, _blocks.GATHER_BROADCAST),
                                           (5, _blocks.GATHER), (7, _blocks.GATHER)])
def test_one_vector_of_rows_unrolls_cells_that_lie_apart_for_many_taps(taps, way):
    problem = P('strided', (56, 56), (taps, taps), (16, 8), stride=2, padding=taps // 2)
    assert way_of(problem, 'forward', BY_FOUR)[0] == way


@pytest.mark.parametrize('tile', [BY_FOUR, BY_EIGHT], ids=['by four', 'by eight'])
@pytest.mark.parametrize('problem', [
    P('tiles', (28, 28), (3, 3), (16, 32), padding=1, batch=1),
    P('positions', (28, 28), (5, 5), (8, 16), padding=2, batch=1)], ids=str)
def test_gradients_of_each_sample_are_cut_less(problem, tile):
    """Samples are enough to share: each part of a sum is a result to make and to add."""
    [piece] = _pieces.pieces('grad_weight', geometry_of(problem))
    parts = [_ways.choose('grad_weight', piece, problem.groups, tile._replace(units=units), 'auto')[1].splits
             for units in (_blocks.UNITS_OF_SAMPLE, _blocks.UNITS)]
    assert parts[0] <= _blocks.UNITS_OF_SAMPLE < parts[1]


@pytest.mark.parametrize('per_sample', [False, True])
def test_plans_of_gradients_of_each_sample_ask_for_that(monkeypatch, forget, per_sample):
    units, choose = set(), _phases.choose

    def noting(map, piece, groups, tile, *rest):
        units.add(tile.units)
        return choose(map, piece, groups, tile, *rest)

    monkeypatch.setattr(_phases, 'choose', noting)
    forget()
    problem = P('a layer', (27, 23), (3, 3), (5, 11), batch=3)
    _cpu.plan('grad_weight', geometry_of(problem, per_sample=per_sample), np.dtype('float32'))
    assert units == {_blocks.UNITS_OF_SAMPLE if per_sample else _blocks.UNITS}


@pytest.mark.parametrize(('tile', 'most'), [(BY_FOUR, 102), (BY_EIGHT, 64)], ids=['by four', 'by eight'])
def test_positions_in_lines_of_their_own_are_few_in_a_block(tile, most):
    """Of channels that lie last, and of patches: so that lines stay in L1 until all tiles of rows have read them."""
    last = {'x_last': True, 'y_last': True}
    patches = P('patches', (224, 224), (16, 16), (3, 768), stride=16, batch=8)
    layer = P('layer', (56, 56), (3, 3), (64, 64), padding=1, batch=8)
    for problem, changes, apart in ((patches, {}, True), (layer, last, True), (layer, {}, False)):
        way, positions = way_of(problem, 'grad_weight', tile, **changes)
        assert way == _blocks.CORRELATE and (positions <= 1.5 * most) == apart


@pytest.mark.parametrize('tile', [BY_FOUR, BY_EIGHT], ids=['four rows', 'eight rows'])
@pytest.mark.parametrize('kernel, padding, channels', [
    ((7, 7), 3, (16, 32)), ((5, 5), 2, (40, 64)), ((1, 9), (0, 4), (200, 64)), ((4, 4, 4), 1, (64, 32)),
    ((7, 7), 3, (3, 32))])
def test_weights_of_padded_taps_have_whole_tiles_of_channels(tile, kernel, padding, channels):
    """Most taps meet positions of their own there, and a tile's rows are channels of one tap. Without padding taps fill
    tiles as well."""
    size = (20,) * len(kernel)
    [piece] = _pieces.pieces('grad_weight', geometry_of(P('padded', size, kernel, channels, padding=padding, batch=2)))
    found = _ways.choose('grad_weight', piece, 1, tile, 'gemm')[1].channels
    assert found == channels[0] if channels[0] < tile.rows else found % tile.rows == 0
    [piece] = _pieces.pieces('grad_weight', geometry_of(P('valid', (24, 24), (5, 5), (36, 50), batch=64)))
    assert _ways.choose('grad_weight', piece, 1, tile, 'gemm')[1].channels in (9, 18)


@pytest.mark.parametrize('itemsize, lanes', [(4, 16), (8, 8)])
def test_weights_read_a_line_of_channels_that_lie_last_at_once(itemsize, lanes):
    """As far as their sums stay in L2: those of rows of taps that share cells in smaller parts."""
    tile = _blocks.Tile(itemsize, lanes, 8, 3)
    line = 64 // itemsize
    for channels, kernel, stride, wanted in ((64, 16, 8, line), (24, 8, 4, None), (64, 11, 1, line)):
        problem = P('patches', (64, 64), (kernel, kernel), (channels, 24), stride=stride, padding=2)
        [piece, *_] = _pieces.pieces('grad_weight', geometry_of(problem, x_last=True, y_last=True))
        _, blocking = _ways.choose('grad_weight', piece, 1, tile, 'gemm')
        assert blocking.channels == (wanted or blocking.channels) and blocking.channels * itemsize >= 48
    for taps in (5, 3):
        problem = P('a box', (12, 12, 12), (11, 11, taps), (64, 32), padding=2)
        [piece, *_] = _pieces.pieces('grad_weight', geometry_of(problem, x_last=True, y_last=True))
        assert _ways.choose('grad_weight', piece, 1, tile, 'gemm')[1].channels == 4


def test_blocks_stay_in_l2_where_each_channel_reads_its_lines_again():
    """A line of cells whose channels lie last has other channels' too, where sums are of less than it."""
    for channels, is_small in ((32, True), (1, False)):
        problem = P('patches', (448, 448), (16, 16), (channels, 32), stride=8, padding=4, batch=2)
        [piece] = _pieces.pieces('forward', geometry_of(problem, x_last=True, y_last=True))
        _, blocking = _ways.choose('forward', piece, 1, BY_EIGHT, 'gemm')
        rows = 8 * (blocking.extent[1] - 1) + 16
        assert (rows * 448 * 64 <= 1 << 19) == is_small
