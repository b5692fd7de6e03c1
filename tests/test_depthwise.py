"""Depthwise convolution by rows: a vector holds neighbours of one row, and results go where they belong at once."""

import numpy as np
import pytest

import calls
import pyconv
import test_nonfinite as nonfinite
from calls import assert_equal, assert_same_bits
from guarded import guards_memory
from plan_runs import geometry_of
from problems import FILLED, P, maps, whole
from pyconv import _blocks, _pieces, _ways
from pyconv._backend import cpu
from pyconv._edges import NO_FOLDS

pytestmark = pytest.mark.filterwarnings('ignore:invalid value', 'ignore:overflow')
every_problem = pytest.mark.parametrize('problem', FILLED, ids=str)
# Of 3 by 3 taps and enough rows; and rows that fill less than a vector of some type and level, which no other map takes
# by rows.
WEIGHTS = [problem for problem in FILLED if problem.kernel[-2:] == (3, 3) and problem.positions[-2] > 5
           and problem.channels[0] == problem.groups and problem.channels[1] <= 2 * problem.groups] + [
    P('planes', (3, 7, 16), (1, 3, 3), (3, 3), groups=3, padding=(1, 1, 1), batch=2),
    P('planes, circular', (3, 7, 8), (1, 3, 3), (3, 3), groups=3, padding=(1, 1, 1), padding_mode='circular', batch=2),
    P('planes, reflect', (3, 6, 17), (1, 3, 3), (2, 4), groups=2, padding=(1, 1, 0), padding_mode='reflect'),
    P('narrow', (7, 7), (3, 3), (5, 5), groups=5, padding=1, batch=3),
    P('narrow, one channel to two', (6, 16), (3, 3), (3, 6), groups=3, padding=(1, 0)),
    P('narrow, far beyond the edges', (3, 2), (3, 3), (4, 4), groups=4, padding=((4, 1), (2, 5))),
    P('narrow, cropped', (9, 9), (3, 3), (2, 2), groups=2, padding=((-1, 3), (-2, 1))),
    P('narrow, reflect', (14, 6), (3, 3), (3, 3), groups=3, padding=1, padding_mode='reflect'),
    P('narrow, circular', (7, 7), (3, 3), (2, 2), groups=2, padding=1, padding_mode='circular', batch=2),
    P('two vectors, replicate', (7, 15), (3, 3), (2, 2), groups=2, padding=(2, 1), padding_mode='replicate', batch=2),
    P('narrow, one channel', (6, 3), (3, 3), (1, 1), padding=1)]
every_weight = pytest.mark.parametrize('problem', WEIGHTS, ids=str)
TILES = [_blocks.Tile(*tile) for tile in ((4, 16, 8, 3), (8, 8, 8, 3), (4, 8, 4, 3), (4, 4, 4, 3))]


def chosen(problem, tile, names=('forward', 'grad_input')):
    """How these maps of the problem are worked on."""
    geometry = geometry_of(problem, padding_mode=problem.padding_mode)
    return [_ways.choose(name, piece, geometry.groups, tile, 'auto')[1]
            for name in names for piece in _pieces.pieces(name, geometry)]


@every_problem
def test_rows_are_taken(problem):
    """On some level, the same in any batch; else the rest of this file would say nothing."""
    taken = [[found.way == _blocks.GATHER_ROWS for found in chosen(problem._replace(batch=batch), tile)]
             for batch in (1, 2, 9, 70) for tile in TILES]
    assert any(any(ways) for ways in taken[:len(TILES)])
    assert all(taken[i::len(TILES)] == taken[i:i + 1] * 4 for i in range(len(TILES)))


@every_weight
def test_weights_by_rows_are_taken(problem):
    """On some level, and on each of them in any batch."""
    taken = [{found.way == _blocks.CORRELATE_ROWS
              for batch in (1, 2, 9, 70) for found in chosen(problem._replace(batch=batch), tile, ('grad_weight',))}
             for tile in TILES]
    assert {True} in taken and all(len(ways) == 1 for ways in taken)


@pytest.mark.parametrize('problem', [p for p in FILLED if p.padding_mode in ('replicate', 'reflect')], ids=str)
def test_rows_are_folded(problem):
    """What is beyond the edges of grad_input is worked out by rows too, in whatever blocks; of three taps and beyond by
    one, with the cells that it is added to."""
    geometry = geometry_of(problem, padding_mode=problem.padding_mode)
    pieces = _pieces.pieces('grad_input', geometry)
    taken = [made for piece in pieces for tile in TILES
             for made, found in [_ways.choose('grad_input', piece, geometry.groups, tile, 'auto')]
             if found.way == _blocks.GATHER_ROWS]
    assert all(piece.folded == problem.padding_mode for piece in [*pieces, *taken])
    assert taken or problem.channels[1] > problem.channels[0]
    is_near = problem.kernel[-2:] == (3, 3) and max(map(max, pieces[0].folds)) == 1
    assert all((made.folds == NO_FOLDS) == is_near for made in taken)


@pytest.mark.parametrize('problem', [
    P('too narrow', (20, 11), (3, 3), (4, 4), groups=4, padding=1),
    P('a vector of which half is beyond', (20, 17), (3, 3), (4, 4), groups=4, padding=1),
    P('not square', (20, 32), (3, 5), (4, 4), groups=4, padding=1),
    P('two channels a group', (20, 32), (3, 3), (4, 4), groups=2, padding=1),
    P('dilated', (20, 32), (3, 3), (4, 4), groups=4, padding=1, dilation=2),
    P('strided', (20, 32), (3, 3), (4, 4), groups=4, padding=1, stride=2),
    P('two channels to many', (20, 32), (3, 3), (2, 3), padding=1)], ids=str)
def test_others_do_without(problem):
    assert _blocks.GATHER_ROWS not in {found.way for found in chosen(problem, TILES[0])}


@pytest.mark.parametrize(('width', 'kernel', 'way'), [
    (2, 3, _blocks.CORRELATE_DIRECT), (24, 1, _blocks.CORRELATE), (32, 1, _blocks.CORRELATE),
    (4, 3, _blocks.CORRELATE_DIRECT), (8, 3, _blocks.CORRELATE)])
def test_weights_of_a_lane_a_group_stay_in_the_nearest_cache(width, kernel, way):
    """Else all of them are read and written anew for every row of positions."""
    problem = P('groups', (28, 28), (kernel, kernel), (16 * width, 16 * width), groups=16, padding=kernel // 2, batch=8)
    [found] = chosen(problem, _blocks.Tile(8, 8, 8, 3), ('grad_weight',))
    assert found.way == way


def test_blocks_have_whole_vectors():
    """The last of those side by side too, and enough of them for threads even where there is one image."""
    for width in (512, 513, 1025, 3 * 512 + 1, 70001):
        found, *_ = chosen(P('wide', (3, width), (3, 3), (2, 2), groups=2, padding=1), TILES[0])
        assert found.way == _blocks.GATHER_ROWS and (width - 1) % found.extent[2] + 1 >= 16 and found.extent[2] <= 512
    found, *_ = chosen(P('one image', (1000, 500), (3, 3), (1, 1), padding=1, batch=1), TILES[0])
    assert found.way == _blocks.GATHER_ROWS and 1000 / found.extent[1] >= _blocks.TASKS


@every_problem
@pytest.mark.parametrize('threads', [1, 3])
def test_exact_for_small_integers(problem, dtype, threads):
    data = problem.integers(dtype)
    wanted = whole(problem)
    more, with_bias = calls.per_channel(data.b, problem.rank), wanted.forward
    with pyconv.num_threads(threads):
        assert_equal(calls.forward(problem, data.x, data.w, data.b), with_bias + more, dtype)
        assert_equal(calls.grad_input(problem, data.w, data.y), wanted.grad_input, dtype)
        out = np.ones_like(data.y)
        calls.forward(problem, data.x, data.w, data.b, out=out, accumulate=True)
        assert_equal(out, with_bias + more + 1, dtype)


@every_weight
@pytest.mark.parametrize('threads', [1, 3])
def test_weights_are_exact_for_small_integers(problem, dtype, threads):
    data, wanted = problem.integers(dtype), whole(problem).grad_weight
    with pyconv.num_threads(threads):
        assert_equal(calls.grad_weight(problem, data.x, data.y), wanted, dtype)
        out = np.ones_like(data.w)
        calls.grad_weight(problem, data.x, data.y, out=out, accumulate=True)
        assert_equal(out, wanted + 1, dtype)
        x, y = (part[..., ::-1].copy()[..., ::-1] for part in (data.x, data.y))
        assert_equal(calls.grad_weight(problem, x, y), wanted, dtype)
        for other in (np.float16, np.int8, np.int64):
            found = calls.grad_weight(problem, data.x.astype(other), data.y.astype(other))
            assert np.array_equal(found, whole(problem).grad_weight.astype(found.dtype))


@every_problem
def test_nothing_is_written_beside_the_results(problem, dtype):
    data = problem.integers(dtype)
    for like, run in ((data.y, lambda out: calls.forward(problem, data.x, data.w, out=out)),
                      (data.x, lambda out: calls.grad_input(problem, data.w, data.y, out=out))):
        room = np.full(like.size + 128, np.nan, dtype)
        out = room[64:64 + like.size].reshape(like.shape)
        run(out)
        assert np.isfinite(out).all() and np.isnan(room[:64]).all() and np.isnan(room[64 + like.size:]).all()


@pytest.mark.parametrize('problem', dict.fromkeys(FILLED + WEIGHTS), ids=str)
def test_not_finite(problem):
    nonfinite.test_in_one_operand(problem, (np.inf, np.nan))


@every_weight
def test_weights_have_the_same_bits_beside_anything(problem, dtype):
    """Vectors read what lies around the operands, or a copy where nothing does; a sample is summed as it is alone."""
    data = problem.floats(dtype)
    wanted, each = (calls.grad_weight(problem, data.x, data.y, per_sample=one) for one in (False, True))
    for beside in (np.nan, 3):
        x, y = (np.full((len(part) + 2, *part.shape[1:]), beside, dtype) for part in (data.x, data.y))
        x[1:-1], y[1:-1] = data.x, data.y
        assert_same_bits(calls.grad_weight(problem, x[1:-1], y[1:-1]), wanted)
        assert_same_bits(calls.grad_weight(problem, x[1:-1], y[1:-1], per_sample=True), each)
    with pyconv.num_threads(4):
        assert_same_bits(calls.grad_weight(problem, data.x, data.y), wanted)
    assert_same_bits(calls.grad_weight(problem, data.x[-1:], data.y[-1:], per_sample=True), each[-1:])


@pytest.mark.parametrize(('batch', 'size'), [
    (1, (4000, 6)), (64, (112, 112)), (8, (512, 512)), (64, (400, 8)), (64, (3000, 8)), (20000, (6, 7)),
    (9000, (2, 7))])
def test_rounding_errors_of_a_weight_grow_slowly(batch, size):
    """Of 0.1, whose products are all rounded the same way: of those in the middle, the most error for their number."""
    x = np.full((batch, 1, *size), 0.1, np.float32)
    found = pyconv.conv2d_weight(x, (1, 1, 3, 3), x, padding=1)[0, 0, 1, 1]
    assert abs(found / (x.size * np.float64(x.flat[0]) ** 2) - 1) < 1e-6


def test_zeros_have_the_same_sign_beside_anything(dtype):
    """A product that is too small for the dtype is -0, and stays it in sums with -0: of cells that are copied too."""
    x, w = np.full((3, 2, 8, 16), -0.0, dtype), np.ones((2, 1, 3, 3), dtype)
    x[..., ::4, ::4] = np.finfo(dtype).tiny
    w[..., 0, 0] = -np.finfo(dtype).tiny
    y = pyconv.conv2d(x, w, padding=1, groups=2)
    assert np.signbit(y[y == 0]).any() or cpu.config()['level'] == 'portable'  # rounds products before it adds
    assert_same_bits(pyconv.conv2d(x[1], w, padding=1, groups=2), y[1])


def test_rounding_errors_of_short_planes_grow_slowly():
    """Of random numbers, in blocks of many samples: within what is promised for a layer."""
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((20000, 8, 4, 7), np.float32) for _ in range(2))
    wanted = (x.astype(float) * y).sum((0, 2, 3))
    found = pyconv.conv2d_weight(x, (8, 1, 3, 3), y, padding=1, groups=8)[:, 0, 1, 1]
    assert np.linalg.norm(found - wanted) < 1e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize('taps', [5, 9, 31])
@pytest.mark.parametrize('positions', [4000, 40000])
def test_rounding_errors_of_a_long_row_grow_slowly(positions, taps):
    """Of one group a lane, where no position is summed by another lane."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 16, positions + taps - 1), np.float32)
    y = rng.standard_normal((1, 16, positions), np.float32)
    wanted = np.stack([(x[..., k:k + positions].astype(float) * y).sum((0, 2)) for k in range(taps)], -1)
    found = pyconv.conv1d_weight(x, (16, 1, taps), y, groups=16)[:, 0]
    assert np.linalg.norm(found - wanted) < 5e-7 * np.linalg.norm(wanted)  # half of what is promised for a layer


AT_THE_ENDS = """
import itertools, numpy as np, pyconv
from guarded import at_an_end
rng = np.random.default_rng(0)
for dtype, size, padding, groups, mode in itertools.product(
        ('f4', 'f8', 'i4', 'i8'), ((7, 7), (8, 14), (9, 3), (8, 19), (8, 31), (6, 540)), (0, 1, 4), (1, 3),
        ('zeros', 'constant', 'circular', 'replicate', 'reflect')):
    if padding >= min(size) and mode in ('circular', 'reflect'):
        continue
    settings = dict(padding=padding, groups=groups, padding_mode=mode)
    if mode == 'constant':
        settings['padding_value'] = 3
    x = rng.integers(-9, 9, (2, groups, *size)).astype(dtype)
    y = rng.integers(-9, 9, (2, groups, *(n + 2 * padding - 2 for n in size))).astype(dtype)
    wanted = pyconv.conv2d_weight(x, (groups, 1, 3, 3), y, **settings)
    w = rng.integers(-9, 9, wanted.shape).astype(dtype)
    forward, back = pyconv.conv2d(x, w, **settings), pyconv.conv2d_input(x.shape, w, y, **settings)
    for front in (False, True):
        cells, other = at_an_end(x, front), at_an_end(y, front)
        assert (pyconv.conv2d_weight(cells, wanted.shape, other, **settings) == wanted).all()
        assert (pyconv.conv2d(cells, w, **settings) == forward).all()
        assert (pyconv.conv2d_input(x.shape, w, other, **settings) == back).all()
"""


@guards_memory
def test_nothing_around_the_operands_is_read(run_python):
    run_python(AT_THE_ENDS)


@every_problem
def test_other_types_and_orders(problem):
    data = problem.integers(np.float64)
    wanted = maps(problem, *data[:3]).forward
    for dtype in (np.float16, np.int8, np.uint64, np.complex64):
        x, w = (part.astype(dtype) for part in (data.x, data.w))
        out = calls.forward(problem, x, w)
        assert np.array_equal(out.astype(complex), wanted.astype(out.dtype).astype(complex))
    x = calls.last(data.x, problem.rank)
    assert_equal(calls.forward(problem, x, data.w), wanted, np.float64)
    x, w = data.x[..., ::-1].copy()[..., ::-1], data.w[::-1].copy()[::-1]
    assert_equal(calls.forward(problem, x, w), wanted, np.float64)


@every_problem
def test_the_same_bits(problem, dtype):
    """In any batch, of a sample alone, with a bias that is zero, with the least scratch, and beside anything."""
    data = problem.floats(dtype)
    y, x = calls.forward(problem, data.x, data.w), calls.grad_input(problem, data.w, data.y)
    cells, other = (np.full((len(part) + 2, *part.shape[1:]), np.nan, dtype) for part in (data.x, data.y))
    cells[1:-1], other[1:-1] = data.x, data.y
    assert_same_bits(calls.forward(problem, cells[1:-1], data.w), y)
    assert_same_bits(calls.grad_input(problem, data.w, other[1:-1]), x)
    assert_same_bits(calls.forward(problem, data.x, data.w, 0 * data.b), y)
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    scratch = [np.full(size, np.nan, dtype) for size in (wants.finput, wants.fgrad_input)]
    assert_same_bits(calls.forward(problem, data.x, data.w, finput=scratch[0]), y)
    assert_same_bits(calls.grad_input(problem, data.w, data.y, fgrad_input=scratch[1]), x)
    assert_same_bits(calls.forward(problem, data.x[-1], data.w), y[-1])
    assert_same_bits(calls.grad_input(problem, data.w, data.y[-1]), x[-1])
    with pyconv.num_threads(4):
        assert_same_bits(calls.forward(problem, data.x, data.w), y)
        assert_same_bits(calls.grad_input(problem, data.w, data.y), x)


def test_phases_of_a_stride_do_not_go_by_rows_beside_matrix_products():
    """Of these, which of two ways is taken may follow from the batch; and rows sum in another order than either."""
    problem = P('phases', (16, 56), (11, 5), (256, 4), groups=4, stride=(2, 1), padding=(1, 0))
    data = problem.floats(np.float32)
    assert_same_bits(calls.grad_input(problem, data.w, data.y[:1])[0], calls.grad_input(problem, data.w, data.y)[0])


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('of_group', [1, 3])
@pytest.mark.parametrize('groups', [2, 64, 256])
def test_the_gradients_of_gradients_are_four_runs_for_any_number_of_groups(groups, of_group, transposed, monkeypatch):
    runs, plan = [], cpu.plan

    class Counted:
        def __init__(self, map, *settings):
            self.map, self.plan = map, plan(map, *settings)
            self.enough = self.plan.enough

        def run(self, *arrays, **threads):
            runs.append(self.map)
            self.plan.run(*arrays, **threads)

    monkeypatch.setattr(cpu, 'plan', Counted)
    channels = groups * of_group
    x, w = np.ones((1, channels, 5, 6), np.float32), np.ones((channels, of_group, 3, 3), np.float32)
    grads = pyconv.convolution_double_backward(
        x, w, None, x, w, x, 1, 1, 1, transposed, 0, groups, (True, True, True))
    assert [grad.shape for grad in grads] == [x.shape, x.shape, w.shape]
    there, back = ('grad_input', 'forward') if transposed else ('forward', 'grad_input')
    assert runs == [there, there, back, 'grad_weight']
