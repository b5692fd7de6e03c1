"""Arrays whose channels lie last in memory: every problem, every combination, read and written without a whole copy."""
import itertools

import numpy as np
import pytest
import torch

import calls
import pyconv
import pyconv.torch as door
from calls import assert_equal, assert_same_bits, last, peak_of, per_channel, poisoned
from plan_runs import geometry_of
from problems import IN_TURNS, LAST, PROBLEMS, ROWS, SHARED_CELLS, VARIED_MODES, WOVEN, P, maps, whole
from pyconv import _blocking, _blocks, _known, _phases, _pieces, _tiled, _ways
from pyconv._geometries import convolved
from test_ways import way_of

MORE = [
    P('tiles of many channels', (30, 31), (3, 3), (40, 50), padding=1, batch=2),
    P('depthwise', (19, 18), (5, 5), (40, 40), padding=2, groups=40, batch=3),
    P('few in groups', (19, 18), (3, 3), (64, 96), padding=1, groups=32, batch=2),
    P('kernel 1', (20, 20), (1, 1), (70, 90), batch=2),
    P('kernel 1 to more channels', (9, 7), (1, 1), (32, 90), batch=3),
    P('kernel 1 to more channels in groups', (5, 31), (1, 1), (32, 64), groups=2, batch=2),
    P('kernel 1 at stride 2', (21, 20), (1, 1), (70, 90), stride=2, batch=2),
    P('planes', (7, 14, 9), (3, 3, 3), (17, 33), padding=1, batch=2),
    P('image', (30, 30), (7, 7), (3, 64), stride=2, padding=3),
    P('to an image', (24, 24), (4, 4), (64, 3), stride=2, padding=1),
    P('patches', (32, 32), (8, 8), (3, 40), stride=8),
    P('patches of many channels', (14, 21), (2, 3), (24, 17), stride=(2, 3), batch=2),
    P('patches in groups', (12, 14), (2, 2), (20, 20), stride=2, groups=5, batch=2),
    P('patches of each channel, with a rest', (20, 25), (3, 3), (18, 18), stride=3, groups=18, batch=2),
    P('kernel 1 to one channel', (9, 11), (1, 1), (32, 1), batch=3),
    P('kernel 1 to five channels in groups', (9, 7), (1, 1), (32, 10), groups=2, batch=2),
    P('kernel 1 from an image to one', (19, 37), (1, 1), (3, 3), batch=2),
]
# Of fewer channels than a vector has, each its own group: rows of theirs are turned, by two, three and four at once.
IMAGES = [
    P('of two channels', (21, 33), (3, 3), (2, 2), groups=2, padding=1, batch=3),
    P('of three channels', (17, 48), (3, 3), (3, 3), groups=3, padding=1, batch=2),
    P('of four channels', (19, 35), (5, 5), (4, 4), groups=4, padding=2),
    P('of six channels, cropped', (18, 41), (3, 3), (6, 6), groups=6, padding=((-1, 2), (1, -3)), batch=2),
    P('to two of each', (15, 34), (3, 3), (3, 6), groups=3, padding=1, batch=2),
    P('to two of each of twenty', (18, 36), (3, 3), (20, 40), groups=20, padding=1, batch=2),
    P('blurred along columns', (40, 37), (21, 1), (3, 3), groups=3, padding=(10, 0), batch=2),
    P('blurred along rows', (7, 120), (1, 21), (3, 3), groups=3, padding=(0, 10), batch=2),
    P('reflected', (18, 34), (3, 3), (3, 3), groups=3, padding=1, padding_mode='reflect', batch=2),
    P('in planes', (3, 18, 36), (1, 3, 3), (3, 3), groups=3, padding=(0, 1, 1)),
    P('at stride 2, whose phases have three taps or four', (21, 70), (7, 7), (3, 3), groups=3, stride=2, padding=3),
    P('at stride 2, of which one phase has taps', (25, 67), (3, 3), (2, 2), groups=2, stride=2, dilation=2, batch=2),
]
# Blocks at an edge are copies, in which channels do not lie last; which blocks these are hangs on the batch. What is
# cropped is contiguous in one sample, and not in several.
EDGED = [
    P('circular 1d', (149,), (3,), (32, 32), padding=1, padding_mode='circular'),
    P('constant 1d dilated', (130,), (3,), (40, 24), padding=2, dilation=2, padding_mode='constant', padding_value=2),
    P('reflect 2d one axis', (20, 31), (3, 1), (64, 32), padding=(1, 0), padding_mode='reflect'),
    P('replicate 2d strided', (41, 30), (1, 3), (33, 40), padding=(0, 1), stride=2, padding_mode='replicate'),
    P('circular 1d cropped', (121,), (5,), (30, 14), stride=3, padding=((2, -1),), groups=2, padding_mode='circular'),
    P('circular 3d far', (2, 2, 2), (3, 3, 3), (16, 17), padding=3, padding_mode='circular'),
]
every_problem = pytest.mark.parametrize(
    'problem', PROBLEMS + SHARED_CELLS + WOVEN + MORE + VARIED_MODES + ROWS + EDGED + LAST + IN_TURNS + IMAGES,
    ids=str)


def check(problem, dtype):
    """All maps, each operand and result in either order."""
    data, rank = problem.integers(dtype), problem.rank
    wanted = whole(problem)
    for x_last, y_last, w_last in itertools.product((False, True), repeat=3):
        x, y = last(data.x, rank) if x_last else data.x, last(data.y, rank) if y_last else data.y
        w = last(data.w, rank) if w_last else data.w
        to_x, to_y = (last(poisoned(part.shape, dtype), rank) if lies_last else poisoned(part.shape, dtype)
                      for part, lies_last in ((data.x, x_last), (data.y, y_last)))
        before = x.copy(), y.copy(), w.copy()
        assert calls.forward(problem, x, w, data.b, out=to_y) is to_y
        assert calls.grad_input(problem, w, y, out=to_x) is to_x
        assert_equal(to_y, wanted.forward + per_channel(data.b, rank), dtype)
        assert_equal(to_x, wanted.grad_input, dtype)
        assert_equal(calls.grad_weight(problem, x, y), wanted.grad_weight, dtype)
        calls.forward(problem, x, w, data.b, out=to_y, accumulate=True)
        calls.grad_input(problem, w, y, out=to_x, accumulate=True)
        assert_equal(to_y, 2 * (wanted.forward + per_channel(data.b, rank)), dtype)
        assert_equal(to_x, 2 * wanted.grad_input, dtype)
        assert_same_bits(x, before[0])
        assert_same_bits(y, before[1])
        assert_same_bits(w, before[2])


UNROLLED = [
    P('many channels', (9, 7), (1, 1), (64, 20), batch=3),
    P('in groups', (9, 8), (1, 1), (128, 32), groups=2, batch=2),
    P('strided amid padding', (11, 10), (1, 1), (64, 24), stride=2, padding=1, batch=2),
    P('cropped', (12, 11), (1, 1), (32, 9), padding=((-1, 2), (3, -2)), batch=2),
    P('along one axis', (70,), (1,), (64, 17), stride=3, batch=2),
    P('a volume', (3, 5, 6), (1, 1, 1), (32, 16), padding=1, batch=2),
    P('circular', (6, 7), (1, 1), (64, 20), padding=2, padding_mode='circular', batch=2),
    P('constant', (6, 7), (1, 1), (32, 8), padding=(1, 2), padding_mode='constant', padding_value=2, batch=2),
]


@pytest.fixture
def few_sets(replan):
    """Cells of any power of two of bytes are taken for such as meet in few sets of a cache."""
    replan(_blocking, FEW_SETS=1, SPREAD_OVER=0)


def check_weight(problem, dtype, algorithm):
    """Of small integers, and on any threads, also where more and more of the operands is not finite."""
    check(problem, dtype)
    data = problem.floats(dtype)
    x, y = last(data.x, problem.rank), last(data.y, problem.rank)
    for spoiled in (None, x, y):
        if spoiled is not None:
            spoiled[0, 0, ..., 0], spoiled[-1, -1, ..., -1] = np.nan, np.inf
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, x.astype(float), data.w.astype(float), y.astype(float)).grad_weight
            found = calls.grad_weight(problem, x, y, algorithm=algorithm)
            assert np.array_equal(np.isfinite(found), np.isfinite(wanted))
            for threads in (2, 5):
                with pyconv.num_threads(threads):
                    assert_same_bits(calls.grad_weight(problem, x, y, algorithm=algorithm), found)


def way_to_weight(problem, dtype):
    """Of AVX-512's tiles."""
    size = np.dtype(dtype).itemsize
    return way_of(problem, 'grad_weight', _blocks.Tile(size, 64 // size, 8, 3), x_last=True, y_last=True)[0]


@pytest.mark.parametrize('problem', UNROLLED, ids=str)
def test_cells_that_would_meet_in_few_sets_of_a_cache(problem, dtype, few_sets):
    assert way_to_weight(problem, dtype) == _blocks.CORRELATE_UNROLLED
    check_weight(problem, dtype, 'auto')


@pytest.mark.parametrize(('channels', 'size', 'dtype', 'is_unrolled'), [
    ((512, 128), 28, 'float64', True), ((1024, 256), 14, 'float32', True), ((512, 256), 28, 'float64', True),
    ((512, 128), 28, 'float32', False), ((512, 512), 14, 'float64', False), ((768, 96), 28, 'float64', False),
    ((512, 128), 7, 'float64', False)])
def test_which_cells_meet_in_few_sets_of_a_cache(channels, size, dtype, is_unrolled):
    """Those of many channels, and enough of them, where these are a power of two."""
    way = way_to_weight(P('kernel 1', (size, size), (1, 1), channels, batch=8), dtype)
    assert way == (_blocks.CORRELATE_UNROLLED if is_unrolled else _blocks.CORRELATE)


@pytest.mark.parametrize(('outputs', 'stride', 'way'), [
    (63, 2, _blocks.CORRELATE), (64, 2, _blocks.CORRELATE_UNROLLED), (96, (1, 3), _blocks.CORRELATE_UNROLLED),
    (96, (3, 1), _blocks.CORRELATE), (96, 1, _blocks.CORRELATE)])
def test_strided_cells_of_many_output_channels_are_unrolled(outputs, stride, way, dtype):
    """Of a lone tap. Else each has lines of its own, and so few are met that they stay in L1."""
    problem = P('kernel 1', (40, 40), (1, 1), (48, outputs), stride=stride, batch=8)
    check(problem._replace(batch=1), dtype)
    for rows, vector in ((8, 64), (4, 32)):
        size = np.dtype(dtype).itemsize
        tile = _blocks.Tile(size, vector // size, rows, 3)
        found, positions = way_of(problem, 'grad_weight', tile, x_last=True, y_last=True)
        assert found == way
        assert way == _blocks.CORRELATE_UNROLLED or positions * 3 * vector <= 32 << 10


@pytest.fixture
def far(replan):
    """Cells are taken for such as lie far apart."""
    replan(_blocks, FAR_POSITIONS=1)


@pytest.mark.parametrize('problem', [p for p in PROBLEMS + MORE + EDGED if np.prod(p.kernel) > 1], ids=str)
def test_cells_that_lie_far_apart_are_copied_for_several_taps(problem, dtype, far):
    check_weight(problem, dtype, 'gemm')


@pytest.mark.parametrize(('channels', 'kernel', 'is_read'), [(512, 3, False), (511, 3, True), (512, 1, True)])
def test_which_cells_lie_far_apart(channels, kernel, is_read):
    """Of copied ones a block has more positions, as of channels that lie first."""
    problem = P('far', (28, 28), (kernel, kernel), (channels, 64), padding=kernel // 2, batch=8)
    _, positions = way_of(problem, 'grad_weight', _blocks.Tile(4, 16, 8, 3), x_last=True, y_last=True)
    assert (positions <= 96) == is_read


@pytest.mark.parametrize(('y_last', 'way'), [(False, _blocks.GATHER), (True, _blocks.GATHER_BROADCAST)])
def test_images_are_turned_where_results_would_be(y_last, way):
    """Of three channels that lie last, to many in rows: cells are broadcast to results that lie as they are made."""
    first = P('first layer', (224, 224), (3, 3), (3, 64), padding=1, batch=8)
    assert way_of(first, 'forward', _blocks.Tile(4, 16, 8, 3), x_last=True, y_last=y_last)[0] == way


@pytest.mark.parametrize(('outputs', 'way'), [
    (16, _blocks.GATHER_BROADCAST), (24, _blocks.GATHER), (32, _blocks.GATHER_BROADCAST), (36, _blocks.GATHER),
    (56, _blocks.GATHER_BROADCAST)])
def test_cells_and_results_are_turned_for_vectors_that_would_not_be_full(outputs, way):
    """Of two vectors of output channels and less, under taps enough to be worth it."""
    layer = P('5 by 5', (28, 28), (5, 5), (64, outputs), padding=2, batch=8)
    assert way_of(layer, 'forward', _blocks.Tile(4, 16, 8, 3), x_last=True, y_last=True)[0] == way


@every_problem
def test_exact_for_small_integers(problem, dtype):
    check(problem, dtype)


@pytest.mark.parametrize('problem', [p for p in PROBLEMS + MORE if 3 in p.kernel], ids=str)
def test_in_tiles_everywhere(monkeypatch, problem, dtype):
    monkeypatch.setattr(_tiled, 'tiling_pays', lambda name, piece: True)
    _known.forget()
    check(problem, dtype)
    _known.forget()


@pytest.mark.parametrize('problem', SHARED_CELLS + WOVEN + MORE + EDGED + LAST + IN_TURNS + IMAGES, ids=str)
def test_the_same_bits_in_any_batch_and_on_any_threads(problem, dtype):
    data, rank = problem._replace(batch=5).floats(dtype), problem.rank
    x, y = last(data.x, rank), last(data.y, rank)
    with pyconv.num_threads(1):
        alone = [calls.forward(problem, one, data.w, out=last(np.empty(problem.output_shape[1:], dtype), rank))
                 for one in x]
        backs = [calls.grad_input(problem, data.w, one) for one in y]
        weight = calls.grad_weight(problem, x, y)
    for threads in (1, 3):
        with pyconv.num_threads(threads):
            assert_same_bits(calls.forward(problem, x, data.w, out=last(np.empty_like(data.y), rank)), np.stack(alone))
            assert_same_bits(calls.grad_input(problem, data.w, y), np.stack(backs))
            assert_same_bits(calls.grad_weight(problem, x, y), weight)


@pytest.mark.parametrize('problem', [problem for problem in PROBLEMS + MORE if len(problem.kernel) == 2][::5], ids=str)
def test_from_columns(problem, dtype):
    """Columns have no channels-last order: grad_output's is then copied, and any order of the columns is right."""
    data = problem.integers(dtype)
    wanted = whole(problem).grad_weight
    columns = pyconv.unfold(data.x, problem.kernel, **{
        name: value for name, value in problem.keywords.items() if name != 'groups'})
    for order in itertools.permutations(range(3)):
        turned = np.ascontiguousarray(columns.transpose(order)).transpose(np.argsort(order))
        for y in (data.y, last(data.y, 2)):
            assert_equal(calls.grad_weight(problem, None, y, finput=turned), wanted, dtype)


@pytest.mark.parametrize('step', [1, 2])
def test_the_same_bits_where_the_samples_of_out_lie_apart(step, dtype):
    """As of one of them alone, whose channels lie last; with a bias, and added to what is there."""
    rng = np.random.default_rng(0)
    x, w = last(rng.standard_normal((5, 16, 9, 9)).astype(dtype), 2), rng.standard_normal((16, 16, 3, 3)).astype(dtype)
    bias, before = rng.standard_normal(16).astype(dtype), rng.standard_normal((5 * step, 9, 9, 16)).astype(dtype)

    def apart():
        return np.moveaxis(before.copy()[::step], -1, 1)

    for call in (lambda x, out, **more: pyconv.conv2d(x, w, bias, padding=1, out=out, **more),
                 lambda y, out, **more: pyconv.conv_transpose2d(y, w, bias, padding=1, out=out, **more)):
        for accumulate in (False, True):
            out, alone = apart(), apart()
            assert call(x, out, accumulate=accumulate) is out
            for n in range(5):
                call(x[n:n + 1], alone[n:n + 1], accumulate=accumulate)
            assert_same_bits(out, alone)


def way_of_depthwise(name, x_last, y_last, channels=96, stride=1, taps=3):
    geometry, _ = convolved(
        2, (2, channels, 56, 57), (channels, 1, taps, taps), None, None, stride, taps // 2, 1, channels)
    pieces = _pieces.pieces(name, geometry._replace(x_last=x_last, y_last=y_last))
    chosen = _phases.choose_all(name, pieces, channels, _blocks.Tile(4, 16, 8, 3), 'auto')
    [way] = {blocking.way for _, blocking in chosen}
    return way, chosen[0][1].groups


@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight'])
@pytest.mark.parametrize('stride', [1, 2, 3])
def test_depthwise_copies_nothing(name, stride):
    """Each lane is a channel there, whatever the phases of a stride cost elsewhere: tiles would copy blocks first.
    Operands are read and written where they lie."""
    way = _blocks.CORRELATE_LAST if name == 'grad_weight' else _blocks.GATHER_LAST
    assert way_of_depthwise(name, True, True, stride=stride)[0] == way


@pytest.mark.parametrize('x_last', [False, True])
@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight'])
def test_rows_meet_channels_that_lie_last(name, x_last):
    """Depthwise blocks of rows are turned, of few channels so that they are long. By lanes are cells that lie as far
    apart as have few places in a cache, unless one tap reads them, and rows at a stride of grad_weight."""
    last_way, by_lanes = (_blocks.CORRELATE_LAST, _blocks.CORRELATE_DIRECT) if name == 'grad_weight' else (
        _blocks.GATHER_LAST, _blocks.GATHER_DIRECT)
    is_source_last = x_last if name != 'grad_input' else not x_last
    assert way_of_depthwise(name, x_last, not x_last) == (last_way, 48)
    assert way_of_depthwise(name, x_last, not x_last, 256)[0] == (by_lanes if is_source_last else last_way)
    strided = way_of_depthwise(name, x_last, not x_last, stride=2)[0]
    assert strided == (by_lanes if name == 'grad_weight' and not x_last else last_way)
    if name != 'grad_weight':
        assert way_of_depthwise(name, x_last, not x_last, 256, taps=1) == (last_way, 64)


@pytest.mark.parametrize('x_last', [False, True])
@pytest.mark.parametrize('problem', LAST, ids=str)
def test_rows_that_are_turned_have_the_same_bits(problem, x_last, dtype):
    """In any batch, on any threads and with any scratch; with a bias."""
    problem = problem._replace(batch=4)
    data, rank = problem.floats(dtype), problem.rank
    x, y = last(data.x, rank) if x_last else data.x, data.y if x_last else last(data.y, rank)
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    with pyconv.num_threads(1):
        forward = calls.forward(problem, x, data.w, data.b, out=np.empty_like(y)).copy('K')
        back = calls.grad_input(problem, data.w, y, out=np.empty_like(x)).copy('K')
        weight = calls.grad_weight(problem, x, y)
    for threads, (least, full) in itertools.product((1, 3), (sizes[:2], sizes[2:4])):
        finput, fgrad_input = (np.full(max(size, 1), np.nan, sizes.dtype) for size in (least, full))
        with pyconv.num_threads(threads):
            assert_same_bits(
                calls.forward(problem, x, data.w, data.b, out=np.empty_like(y), finput=finput), forward)
            assert_same_bits(
                calls.grad_input(problem, data.w, y, out=np.empty_like(x), fgrad_input=fgrad_input), back)
            assert_same_bits(calls.grad_weight(problem, x, y, finput=finput), weight)
    for n in range(4):
        out_y, out_x = np.empty_like(y)[n:n + 1], np.empty_like(x)[n:n + 1]
        assert_same_bits(calls.forward(problem, x[n:n + 1], data.w, data.b, out=out_y), forward[n:n + 1])
        assert_same_bits(calls.grad_input(problem, data.w, y[n:n + 1], out=out_x), back[n:n + 1])


@pytest.mark.parametrize('lanes, itemsize', [(16, 4), (8, 4), (4, 4), (8, 8), (4, 8), (2, 8)])
@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight'])
@pytest.mark.parametrize('problem', LAST, ids=str)
def test_channels_are_lanes(problem, name, lanes, itemsize):
    """In blocks whose every part of the channels fills a vector, the same in any batch; grad_weight if three taps lie
    along x."""
    tile, groups = _blocks.Tile(itemsize, lanes, 8, 3), problem.groups
    way = _blocks.GATHER_LAST if name != 'grad_weight' else (
        _blocks.CORRELATE_LAST if problem.kernel[-1] == 3 else _blocks.CORRELATE_DIRECT)
    found = []
    for batch in (1, 3, 50):
        made = geometry_of(problem._replace(batch=batch), x_last=True, y_last=True)
        pieces = [piece for piece in _pieces.pieces(name, made) if all(axis.taps for axis in piece.axes)]
        found.append([blocking for _, blocking in _phases.choose_all(name, pieces, groups, tile, 'auto')])
        assert {blocking.way for blocking in found[-1]} == {way}
        assert way == _blocks.CORRELATE_DIRECT or all(
            (groups - 1) % blocking.groups + 1 >= lanes for blocking in found[-1])
    few = problem._replace(channels=(lanes - 1,) * 2, groups=lanes - 1)
    [piece, *_] = _pieces.pieces(name, geometry_of(few, x_last=True, y_last=True))
    assert _ways.choose(name, piece, lanes - 1, tile, 'auto')[1].way not in (
        _blocks.GATHER_LAST, _blocks.CORRELATE_LAST)


@pytest.mark.parametrize('channels, groups, exchanged', [
    ((32, 90), 1, True), ((64, 256), 1, True), ((128, 256), 4, True), ((64, 272), 1, False), ((128, 512), 4, False),
    ((64, 48), 1, False), ((64, 8), 1, True), ((64, 9), 1, False), ((64, 16), 2, True), ((24, 8), 1, False),
    ((64, 4), 1, True), ((64, 4), 2, True)])
def test_operands_change_places_where_output_channels_are_more_but_not_many(channels, groups, exchanged):
    """Of 272 and more, of all groups, each position is so far from the next that a cache keeps few of them. And where
    they are too few for vectors, however they lie: of the lanes that these have."""
    problem, each = P('kernel 1', (28, 28), (1, 1), channels, groups=groups), channels[1] // groups
    for lasts in (True, True), (True, False), (False, True):
        made = geometry_of(problem, **dict(zip(('x_last', 'y_last'), lasts)))
        [piece] = _pieces.pieces('grad_weight', made)
        assert piece.exchanged == (exchanged and (all(lasts) or lasts[0] and each <= 8))
        for lanes in 4, 8:
            [piece] = _pieces.pieces('grad_weight', made, lanes=lanes)
            assert piece.exchanged == (exchanged and (all(lasts) and each > 8 or lasts[0] and each <= lanes // 2))


def test_a_single_output_channel_lies_last_too():
    [piece] = _pieces.pieces('grad_weight', geometry_of(P('to one', (28, 28), (1, 1), (64, 1)), x_last=True))
    assert piece.exchanged


@pytest.mark.parametrize('lanes, itemsize', [(16, 4), (8, 4), (4, 4), (8, 8), (4, 8)])
@pytest.mark.parametrize('channels', range(2, 16))
def test_rows_of_an_image_are_turned(channels, lanes, itemsize):
    """All channels of it together; where they fill a vector, each is a lane."""
    image, tile = P('an image', (64, 64), (3, 3), (channels,) * 2, groups=channels, padding=1), _blocks.Tile(
        itemsize, lanes, 8 if itemsize * lanes == 64 else 4, 3)
    to_weight = {'grad_weight': (_blocks.CORRELATE_ROWS, _blocks.CORRELATE_LAST)}
    for name, batch in itertools.product(('forward', 'grad_input', 'grad_weight'), (1, 7)):
        [piece] = _pieces.pieces(name, geometry_of(image._replace(batch=batch), x_last=True, y_last=True))
        found = _ways.choose(name, piece, channels, tile, 'auto')[1]
        rows, lane = to_weight.get(name, (_blocks.GATHER_ROWS, _blocks.GATHER_LAST))
        assert found.way == (rows if channels < lanes else lane)
        assert channels >= lanes or found.groups == channels


@pytest.mark.parametrize(('channels', 'groups', 'phases'), [
    ((96, 96), 96, 9), ((64, 64), 1, 9), ((16, 64), 1, 9), ((15, 64), 1, 1), ((3, 96), 1, 1)])
def test_a_stride_of_the_size_of_the_kernel_has_phases(channels, groups, phases):
    """Where input channels lie last, and are a vector of them; else taps are rows of one product."""
    patches = P('patches', (27, 27), (3, 3), channels, stride=3, groups=groups)
    assert len(_pieces.pieces('grad_input', geometry_of(patches, x_last=True, y_last=True))) == phases
    assert len(_pieces.pieces('grad_input', geometry_of(patches, y_last=True))) == 1


@pytest.mark.parametrize('lanes, itemsize', [(16, 4), (8, 4), (4, 4), (8, 8), (4, 8), (2, 8)])
@pytest.mark.parametrize('problem', IN_TURNS, ids=str)
def test_groups_take_turns(problem, lanes, itemsize):
    """Where a vector holds whole groups: in blocks whose every part of the channels fills one, in any batch."""
    tile, width = _blocks.Tile(itemsize, lanes, 8, 3), problem.channels[0] // problem.groups
    for batch in (1, 3, 50):
        [piece] = _pieces.pieces('grad_weight', geometry_of(problem._replace(batch=batch), x_last=True, y_last=True))
        _, blocking = _ways.choose('grad_weight', piece, problem.groups, tile, 'auto')
        able = width <= (lanes if width < 8 else lanes // 2)
        assert (blocking.way == _blocks.CORRELATE_LAST) == able
        if able:
            assert (blocking.channels, blocking.rows) == (width, width)
            assert ((problem.groups - 1) % blocking.groups + 1) * width >= lanes
    for other in ({'x_last': True}, {'y_last': True}):
        [piece] = _pieces.pieces('grad_weight', geometry_of(problem, **other))
        assert _ways.choose('grad_weight', piece, problem.groups, tile, 'auto')[1].way != _blocks.CORRELATE_LAST


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_a_long_row_is_summed_in_parts(dtype):
    """Threads share them. Errors do not grow with it: sums of 512 products, and of 13 such parts in each of 16 splits,
    leave some ten roundings of 6e-8 in float32, where one sum of all numbers, of one sign, left 1e-5."""
    x, y = (last(np.random.default_rng(n).random((1, 16, 100_000)), 1) for n in (0, 1))
    exact = pyconv.conv1d_weight(x, (16, 1, 3), y, padding=1, groups=16)
    found = pyconv.conv1d_weight(x.astype(dtype), (16, 1, 3), y.astype(dtype), padding=1, groups=16)
    assert np.abs(found / exact - 1).max() < 1e-6
    problem = P('long', (100_000,), (3,), (16, 16), padding=1, groups=16, batch=1)
    [piece] = _pieces.pieces('grad_weight', geometry_of(problem, x_last=True, y_last=True))
    _, blocking = _ways.choose('grad_weight', piece, 16, _blocks.Tile(np.dtype(dtype).itemsize, 8, 8, 3), 'gemm')
    assert blocking.way == _blocks.CORRELATE_LAST and blocking.splits == _blocks.UNITS and blocking.extent[2] <= 512


@pytest.mark.parametrize('x_last, y_last', [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize('problem', LAST + IN_TURNS + IMAGES, ids=str)
def test_channels_that_are_lanes_where_not_all_is_finite(problem, x_last, y_last, dtype):
    """Of the weight, too: a tap that a position lacks is not multiplied by anything. Nothing is written beside."""
    data, rank = problem.integers(dtype), problem.rank
    x, w, y = (part.copy() for part in data[:3])
    ins, outs = problem.channels
    x[0, 3 % ins], y[-1, 1], w[0], w[-1], w[5 % outs] = np.nan, np.inf, np.nan, np.inf, -np.inf
    x[0, 7 % ins, ..., -1] = y[0, 9 % outs, ..., 0] = np.nan
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    x, y = last(x, rank) if x_last else x, last(y, rank) if y_last else y
    assert np.array_equal(calls.grad_weight(problem, x, y), wanted.grad_weight, equal_nan=True)
    for run, to, is_last in ((lambda out: calls.forward(problem, x, w, out=out), wanted.forward, y_last),
                             (lambda out: calls.grad_input(problem, w, y, out=out), wanted.grad_input, x_last)):
        room = np.full(to.size + 128, 77, dtype)
        out = room[64:-64].reshape(to.shape)
        if is_last:
            out = np.moveaxis(room[64:-64].reshape(to.shape[0], *to.shape[2:], to.shape[1]), -1, 1)
        run(out)
        assert np.array_equal(out, to, equal_nan=True) and (room[:64] == 77).all() and (room[-64:] == 77).all()


@pytest.mark.parametrize('x_last, y_last', [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight'])
@pytest.mark.parametrize('problem', [
    P('tiles', (160, 160), (3, 3), (32, 32), padding=1, batch=2),
    P('pointwise', (160, 160), (1, 1), (32, 32), batch=2),
    P('depthwise', (160, 160), (3, 3), (32, 32), padding=1, groups=32, batch=2),
    P('to few', (160, 160), (3, 3), (32, 3), stride=1, padding=1, batch=2),
], ids=str)
def test_nothing_is_copied_as_a_whole(problem, name, x_last, y_last):
    """The operands have 6.5 MB; two threads' scratch is less."""
    data, rank = problem.floats(np.float32), problem.rank
    x, y = last(data.x, rank) if x_last else data.x, last(data.y, rank) if y_last else data.y
    to_x, to_y, to_w = np.empty_like(x), np.empty_like(y), np.empty_like(data.w)
    call = {'forward': lambda: calls.forward(problem, x, data.w, out=to_y),
            'grad_input': lambda: calls.grad_input(problem, data.w, y, out=to_x),
            'grad_weight': lambda: calls.grad_weight(problem, x, y, out=to_w)}[name]
    with pyconv.num_threads(1):
        assert peak_of(call) < 3 << 20 < data.x.nbytes


def test_of_two_results_each_gives_its_scratch_back():
    """Where the buffer is too small for the ways that channels take; together they would need 4 MB."""
    problem = P('two results', (28, 28), (3, 3), (160, 160), padding=1, batch=4)
    data, settings = problem.floats(np.float64), (1, 1, 1, False, 0, 1)
    x, y, to_x, to_y = (last(array, 2) for array in (data.x, data.y, np.empty_like(data.x), np.empty_like(data.y)))
    to_w = np.empty_like(data.w)
    sizes = pyconv.workspace(x.shape, data.w.shape, padding=1, dtype=x.dtype)
    buffer = np.empty(max(sizes.finput_minimum, sizes.fgrad_input_minimum))
    lent = {'finput': buffer, 'fgrad_input': buffer}
    for call in (
            lambda: pyconv.convolution_backward(
                y, x, data.w, *settings, (True, True, False), out=(to_x, to_w, None), **lent),
            lambda: pyconv.convolution_double_backward(
                x, data.w, None, y, data.w, x, *settings, (True, True, True), out=(to_y, to_x, to_w), **lent)):
        with pyconv.num_threads(1):
            assert peak_of(call) < 3e6


def test_a_tensor_in_that_order_gives_one():
    """Of both results and of a gradient, with the numbers of the other order."""
    for shape, kernel, order, conv in (
            ((2, 6, 9, 8), (5, 6, 3, 3), torch.channels_last, (door.conv2d, torch.conv2d)),
            ((2, 6, 5, 4, 7), (5, 6, 3, 3, 3), torch.channels_last_3d, (door.conv3d, torch.conv3d)),
            ((2, 6, 9, 8), (6, 5, 3, 3), torch.channels_last, (door.conv_transpose2d, torch.conv_transpose2d))):
        x = torch.randint(-3, 4, shape).double().to(memory_format=order).requires_grad_()
        w = torch.randint(-3, 4, kernel).double().requires_grad_()
        y = conv[0](x, w, padding=1)
        assert y.is_contiguous(memory_format=order) and not y.is_contiguous()
        assert torch.equal(y, conv[1](x, w, padding=1))
        weights = torch.randint(-3, 4, y.shape).double().to(memory_format=order)
        ours, theirs = (torch.autograd.grad(result, (x, w), weights) for result in (y, conv[1](x, w, padding=1)))
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        assert ours[0].is_contiguous(memory_format=order) and not ours[0].is_contiguous()


@pytest.mark.parametrize('lanes', [8, 16])
def test_which_groups_a_vector_holds(lanes):
    """As many as fill it, if channels lie last on either side, and rows are channels."""
    def held(problem, **changes):
        geometry = geometry_of(problem, **{'x_last': True, 'y_last': True, **changes})
        return [_pieces.groups_of_vector(name, geometry, pieces(name, geometry), lanes)
                for name in ('forward', 'grad_input') for pieces in (_pieces.pieces, _pieces.exact_pieces)]

    for problem in WOVEN[:-2]:
        most = lanes // (problem.channels[0] // problem.groups)
        backwards = 1 if 'far more taps' in problem.name or 'two positions' in problem.name else most
        assert held(problem) == [most, most, backwards, backwards]
        assert held(problem, x_last=False) == held(problem, y_last=False) == [1] * 4
    assert held(WOVEN[-2]) == held(WOVEN[-1]) == [1] * 4


@pytest.mark.parametrize('bad', [np.nan, np.inf])
@pytest.mark.parametrize('problem', WOVEN, ids=str)
def test_no_group_meets_another(problem, bad, dtype):
    """What is not finite stays in its group, in the operands as in the weight."""
    data, rank = problem.integers(dtype), problem.rank
    x, w, y = data.x, data.w, data.y
    x[0, 1], y[0, 1], w[w.shape[0] // 2] = bad, -bad, bad
    out, into = last(poisoned(y.shape, dtype), rank), last(poisoned(x.shape, dtype), rank)
    with np.errstate(invalid='ignore'):
        wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    calls.forward(problem, last(x, rank), w, out=out)
    calls.grad_input(problem, w, last(y, rank), out=into)
    assert_equal(out, wanted.forward, dtype)
    assert_equal(into, wanted.grad_input, dtype)
