"""Winograd's algorithm, on every geometry that has tiles: as right, as reproducible and as robust as sums of products.

`auto` and `winograd` use it where it pays, which is where channels are many; here it is used wherever it is possible.
"""
import functools
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

import calls
import pyconv
import reference
import test_bits as bits
import test_nonfinite as nonfinite
from calls import assert_equal, assert_same_bits, last
from guarded import guards_memory
from problems import PROBLEMS, P, maps, whole
from pyconv import _blocks, _doubtful, _known, _pieces, _tiled, _ways
from pyconv._geometries import convolved

WAYS = (_blocks.GATHER_WINOGRAD, _blocks.CORRELATE_WINOGRAD)
TILE = _blocks.Tile(4, 16, 8, 3)


def ways(problem, algorithm):
    """How each map of the problem is worked on."""
    geometry = convolved(problem.rank, problem.input_shape, problem.weight_shape, None, None,
                         *problem.keywords.values())[0]
    return [_ways.choose(name, piece, geometry.groups, TILE, algorithm)[1].way
            for name in ('forward', 'grad_input', 'grad_weight') for piece in _pieces.pieces(name, geometry)]


def has_tiles(problem):
    return problem.per_axis(problem.stride)[-2:] in ((1,), (1, 1)) and 3 in problem.kernel[-2:]


TILED = [problem for problem in PROBLEMS if has_tiles(problem)] + [
    P('many tiles', (30, 29), (3, 3), (17, 40), padding=1),
    P('one row of many tiles', (1, 300), (1, 3), (9, 33), padding=(0, 2)),
    P('one column of many tiles', (300, 1), (3, 1), (5, 12), padding=(1, 0)),
    P('tiles of many channels', (5, 6), (3, 3), (140, 150), padding=1),
    P('tiles in planes', (5, 9, 11), (3, 3, 3), (9, 20), padding=1),
    P('tiles in planes far apart', (9, 8, 7), (2, 3, 3), (5, 6), padding=(1, 0, 2), dilation=(3, 1, 1)),
    P('tiles of two lattices along each axis', (28, 27), (3, 3), (9, 20), padding=2, dilation=2),
    P('tiles of three lattices and four', (23, 50), (3, 3), (10, 7), padding=(1, 4), dilation=(3, 4), batch=3),
    P('many lattices in strips', (20, 600), (3, 3), (4, 5), padding=(0, 7), dilation=(9, 15), batch=1),
    P('sixteen lattices of a row', (1, 300), (1, 3), (9, 33), padding=(0, 16), dilation=(1, 16)),
    P('lattices of a column', (90, 9), (3, 1), (9, 5), padding=(7, 0), dilation=(7, 2)),
    P('more lattices than positions', (9, 10), (3, 3), (5, 6), padding=3, dilation=6),
    P('lattices in planes', (5, 9, 11), (3, 3, 3), (4, 5), padding=2, dilation=2),
    P('lattices of what is all padding', (1, 18), (3, 1), (8, 9), padding=((6, -2), (1, 2)), dilation=(2, 1)),
    P('few tiles a row of many samples', (7, 7), (3, 3), (20, 18), padding=1, batch=11),
    P('three tiles a row', (10, 11), (3, 3), (7, 9), padding=((0, 1), (1, -1)), batch=7),
    P('one tile a row', (9, 4), (3, 3), (9, 8), padding=(1, 0), batch=5),
    P('few tiles a row of planes', (5, 8, 7), (3, 3, 3), (9, 20), padding=(1, 0, 1), batch=3),
    P('tiles in groups', (12, 13), (3, 3), (12, 18), groups=3, padding=((2, 0), (-1, 3)), batch=5),
]
every_problem = pytest.mark.parametrize('problem', TILED, ids=str)


@pytest.fixture(autouse=True)
def tiles_everywhere(monkeypatch):
    monkeypatch.setattr(_tiled, 'tiling_pays', lambda name, piece: True)
    monkeypatch.setattr(_pieces, 'is_swapped', lambda name, geometry: False)
    _known.forget()
    yield
    _known.forget()


def test_most_of_these_problems_have_tiles():
    """Else the rest of this file would say nothing."""
    counts = [sum(way in WAYS for way in ways(problem, 'auto')) for problem in TILED]
    assert sum(count == 3 for count in counts) >= 130


@every_problem
def test_small_tiles_are_exact_for_small_integers(problem, dtype):
    """F(2, 3) multiplies by halves only."""
    data, wanted = problem.integers(dtype), whole(problem)
    for actual, right in zip(calls.three_maps(problem, data.x, data.w, data.y), wanted):
        assert_equal(actual, right, dtype)
    with_bias = calls.forward(problem, data.x, data.w, data.b)
    assert_equal(with_bias, wanted.forward + calls.per_channel(data.b, problem.rank), dtype)
    assert_equal(calls.transposed(problem, data.y, data.w), wanted.grad_input, dtype)


@every_problem
def test_large_tiles_are_near(problem, dtype):
    """F(4, 3): some ten roundings of its transforms, each on sums up to a dozen times the result."""
    data = problem.floats(dtype)
    limit = 60 * np.finfo(dtype).eps
    wanted = maps(problem, *(part.astype(float) for part in data[:3]))
    for actual, right in zip(calls.three_maps(problem, data.x, data.w, data.y, algorithm='winograd'), wanted):
        scale = np.linalg.norm(right) or 1
        assert np.linalg.norm(actual - right) <= limit * scale


LATTICES = [problem for problem in TILED if max(problem.per_axis(problem.dilation)[-2:]) > 1]
# Orders and types of which blocks are copied first, and so are of one lattice along y.
COPIED = {
    'float32 last': lambda part: last(part.astype(np.float32), part.ndim - 2),
    'float64 last': lambda part: last(part, part.ndim - 2),
    **{name: functools.partial(np.asarray, dtype=name)
       for name in ('float16', ml_dtypes.bfloat16, 'int8', 'complex64')}}


@pytest.mark.parametrize('problem', LATTICES, ids=str)
@pytest.mark.parametrize('copied', COPIED, ids=str)
def test_lattices_of_what_is_copied(problem, copied):
    """As right as in rows of float32; results of 16 bits are rounded once. And a cell that is no number is where the
    definition puts it, in results that lie last too."""
    data, made = problem.integers(), COPIED[copied]
    x, w, y = map(made, data[:3])
    found = calls.three_maps(problem, x, w, y)
    for actual, right in zip(found, whole(problem)):
        assert np.array_equal(actual, right.astype(actual.dtype))
    if copied == 'int8':
        return
    spoiled = data.x.copy()
    spoiled[(-1, 0, *(n // 2 for n in problem.size))] = np.nan
    out = made(np.zeros(problem.output_shape))
    with np.errstate(invalid='ignore'):
        calls.forward(problem, made(spoiled), w, out=out)
    right = reference.forward(spoiled, data.w, problem.positions, **problem.form)
    assert np.array_equal(out.astype(complex), right.astype(out.dtype).astype(complex), equal_nan=True)


@pytest.mark.parametrize('copied', COPIED, ids=str)
def test_lattices_of_what_is_copied_have_tiles(copied, caplog, monkeypatch):
    """Where neighbours have: bytes do where the processor sums two products at once, and no registers for matrices have
    these types."""
    monkeypatch.undo()  # as users have it
    x, w = COPIED[copied](np.zeros((1, 64, 28, 28))), COPIED[copied](np.zeros((64, 64, 3, 3)))
    with caplog.at_level('DEBUG', 'pyconv'):
        for dilation in (1, 2):
            pyconv.conv2d(x, w, dilation=dilation, padding=dilation)
    names = [record.getMessage().rpartition(': ')[2] for record in caplog.records]
    assert names[0] == names[1] and (names[0] in ('Winograd F(2, 3)', 'product of matrices') or copied == 'int8')


@every_problem
def test_bits(problem, dtype):
    bits.test_any_number_of_threads(problem, dtype)
    bits.test_a_sample_in_any_batch(problem, dtype)
    bits.test_again_and_into_out(problem, dtype)


@every_problem
def test_any_buffer(problem, dtype):
    data = problem.floats(dtype)
    for algorithm in ('auto', 'winograd'):
        alone = calls.three_maps(problem, data.x, data.w, data.y, algorithm=algorithm)
        sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype,
                                 algorithm=algorithm)
        for room in (sizes[:2], sizes[2:4]):
            finput, fgrad_input = (calls.poisoned(max(1, n), dtype) for n in room)
            assert_same_bits(calls.forward(problem, data.x, data.w, finput=finput, algorithm=algorithm), alone[0])
            assert_same_bits(calls.grad_input(problem, data.w, data.y, fgrad_input=fgrad_input, algorithm=algorithm),
                             alone[1])
            assert_same_bits(calls.grad_weight(problem, data.x, data.y, finput=finput, algorithm=algorithm), alone[2])


@pytest.mark.parametrize('algorithm', ['auto', 'winograd'])
@pytest.mark.parametrize('channels, size, dilation, batch', [
    (64, 56, 1, 2), (128, 28, 2, 3), (256, 14, 1, 5), (512, 7, 1, 8)])
def test_blocks_are_narrow_where_scratch_is_scarce(channels, size, dilation, batch, algorithm, dtype):
    """Large blocks, of megabytes for four threads, are faster; in the least scratch, of 2 MB, small ones make the same
    bits."""
    problem = P('layer', (size, size), (3, 3), (channels, channels), padding=dilation, dilation=dilation, batch=batch)
    data = problem.floats(dtype)
    with pyconv.num_threads(4):
        sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype,
                                 algorithm=algorithm)
    for full, least in (sizes[::2][:2], sizes[1::2][:2]):
        assert least * dtype.itemsize <= 2 << 20 < full * dtype.itemsize
    alone = calls.three_maps(problem, *data[:3], algorithm=algorithm)
    for part in range(4):  # the least, and more in which some threads have room for large blocks
        finput, fgrad_input = (calls.poisoned(least + (full - least) * part // 4, dtype)
                               for full, least in (sizes[::2][:2], sizes[1::2][:2]))
        assert_same_bits(calls.forward(problem, data.x, data.w, finput=finput, algorithm=algorithm), alone[0])
        assert_same_bits(calls.grad_input(problem, data.w, data.y, fgrad_input=fgrad_input, algorithm=algorithm),
                         alone[1])
        assert_same_bits(calls.grad_weight(problem, data.x, data.y, finput=finput, algorithm=algorithm), alone[2])


@pytest.mark.parametrize('algorithm', ['auto', 'winograd'])
@pytest.mark.parametrize('channels', [(48, 200), (64, 64), (19, 353)], ids=str)
def test_zeros_that_are_left_of_smaller_numbers_have_the_same_signs(channels, algorithm, dtype):
    """How much of a weight's gradient a task does is not to be seen in results that underflow."""
    problem = P('underflow', (8, 8), (3, 3), channels, padding=1)
    tiny = np.finfo(dtype).smallest_subnormal ** 0.5
    x, w, y = (part * tiny for part in problem.floats(dtype)[:3])
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype,
                             algorithm=algorithm)
    answers = []
    for threads, elements in ((1, 0), (2, 0), (2, sizes.finput_minimum), (3, 0), (4, 0), (8, 0)):
        with pyconv.num_threads(threads):
            scratch = calls.poisoned(elements, dtype)
            answers.append(calls.grad_weight(problem, x, y, finput=scratch, algorithm=algorithm))
    assert (answers[0] == 0).any()
    for other in answers[1:]:
        assert_same_bits(other, answers[0])


@pytest.mark.parametrize(('problem', 'value'), [
    (problem, value) for turn, problem in enumerate(TILED) for value in (np.nan, (-1)**turn * np.inf)], ids=str)
def test_not_finite(problem, value):
    """Only what the definition reaches, although a tile mixes its cells."""
    nonfinite.test_in_one_operand(problem, (value,))


@every_problem
def test_numbers_beside_what_is_not_finite_keep_their_bits(problem, dtype, monkeypatch):
    """What is made again is what the definition reaches, and no more; of a gradient that padding repeats, the sample.
    """
    monkeypatch.setattr(_doubtful, 'FEW', 1)             # however much of the sample it is
    monkeypatch.setattr(_doubtful, 'BESIDE', 0)
    data = problem.floats(dtype)
    for name, call, (first, second) in (('forward', calls.forward, (data.x, data.w)),
                                        ('grad_input', calls.grad_input, (data.w, data.y))):
        spoilt = data.x if name == 'forward' else data.y
        before = call(problem, first, second)
        spoilt[-1].flat[spoilt[-1].size // 2] = np.inf
        found, wanted = call(problem, first, second), call(problem, first, second, algorithm='gemm')
        kept = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(found), kept)
        np.testing.assert_array_equal(found[~kept], wanted[~kept])
        if name == 'forward' or problem.padding_mode in ('zeros', 'constant'):
            assert_same_bits(found[kept], before[kept])


BESIDE = P('beside', (40, 30), (3, 3), (32, 33), padding=1, batch=3)


@pytest.mark.parametrize(('orders', 'kind'), [
    ('xyw', 'float32'), ('xyw', 'float64'), ('', 'float16'), ('x', 'bfloat16'), ('y', 'complex64'), ('w', 'float32')])
def test_only_what_reads_it_is_made_again(orders, kind):
    """With channels in either order, of every kind of numbers, with a bias, on threads and with the least scratch."""
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    data, made = BESIDE.floats('complex64' if kind == 'complex64' else 'float64'), []
    x, w, y, b = (part.astype(dtype) for part in data[:4])
    x, y, w = (last(part, 2) if name in orders else part for name, part in zip('xyw', (x, y, w)))
    sizes = pyconv.workspace(x.shape, w.shape, padding=1, dtype=dtype)
    buffers = [{name: np.empty(size, np.float64 if kind == 'float64' else np.float32)} for name, size in (
        ('finput', sizes.finput_minimum), ('fgrad_input', sizes.fgrad_input_minimum))]
    for value, threads in ((0, 1), (np.nan, 1), (np.nan, 3)):
        x[1, 5, 17, 12] = y[1, 6, 39, 0] = value or x[1, 5, 17, 12]
        with pyconv.num_threads(threads):
            made.append((calls.forward(BESIDE, x, w, b, **buffers[0]), calls.grad_input(BESIDE, w, y, **buffers[1])))
    for before, spoilt, again in zip(*made):
        away = np.isfinite(spoilt.astype(complex)).all(axis=1)
        assert np.count_nonzero(~away) == (9 if before.shape[1] == 33 else 4) and away[0].all() and away[2].all()
        for sample, keeps in zip((0, 1, 2), away):
            assert_same_bits(spoilt[sample][:, keeps], before[sample][:, keeps])
        assert_same_bits(again, spoilt)


def test_many_results_that_are_not_finite_are_made_with_the_whole_sample():
    data = BESIDE.floats(np.float32)
    data.x[1, 3, :12] = np.nan
    found, wanted = (calls.forward(BESIDE, data.x, data.w, algorithm=name) for name in ('auto', 'gemm'))
    assert_same_bits(found[1], wanted[1])
    assert (found[0] != wanted[0]).any()


@pytest.mark.parametrize('every', [1, 10])
def test_looking_for_what_is_not_finite_takes_little_memory(every):
    """Of an image of a million positions, of which one is spoiled, or a tenth."""
    x, w = np.zeros((1, 16, 1024, 1024), np.float32), np.ones((16, 16, 3, 3), np.float32)
    out = np.zeros_like(x)
    buffer = np.empty(pyconv.workspace(x.shape, w.shape, padding=1).finput, np.float32)
    pyconv.conv2d(x, w, padding=1, out=out, finput=buffer)
    x[0, 0, 5, 5] = np.nan
    if every > 1:
        x[0, 0, ::every] = np.nan
    tracemalloc.start()
    pyconv.conv2d(x, w, padding=1, out=out, finput=buffer)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 1 << 20


def test_positions_that_cost_more_than_the_sample_are_made_with_it():
    """Of few channels, whose products are few: eighteen positions in 3600 would cost more than an eighth of them."""
    data = P('few channels', (60, 60), (3, 3), (8, 8), padding=1, batch=1).floats(np.float32)
    data.x[0, 3, 30, 30] = data.x[0, 3, 30, 40] = np.nan
    found, wanted = (pyconv.conv2d(data.x, data.w, padding=1, algorithm=name) for name in ('auto', 'gemm'))
    assert_same_bits(found, wanted)


def test_what_only_a_transform_makes_infinite_in_one_tile():
    x, w = np.zeros((1, 3, 30, 30), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    x[:, :, 11:13, 11:13], w[:, :, 1, 1] = 3e38, 0.25
    assert_equal(pyconv.conv2d(x, w, padding=1), pyconv.conv2d(x, w, padding=1, algorithm='gemm'),
                 np.dtype(np.float32))


def test_what_only_a_transform_makes_infinite():
    """Sums of two large cells leave float32 where no sum of the definition does."""
    x, w = np.zeros((2, 3, 9, 9), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    x[1] = 3e38
    w[:, :, 1, 1] = 0.25
    for algorithm in ('auto', 'winograd'):
        assert_equal(pyconv.conv2d(x, w, padding=1, algorithm=algorithm),
                     pyconv.conv2d(x, w, padding=1, algorithm='gemm'), np.dtype(np.float32))


def test_denormal_numbers_are_kept(dtype):
    """Weights of one bit, and of all bits, below the smallest normal number: F(2, 3) never halves an operand."""
    problem = P('denormal', (12, 13), (3, 3), (8, 9), padding=1)
    data, least = problem.integers(dtype), np.nextafter(dtype.type(0), dtype.type(1))
    wanted = maps(problem, *(part.astype(float) for part in data[:3]))
    large = dtype.type(1) / np.finfo(dtype).tiny
    forward = calls.forward(problem, data.x * large, data.w * least)
    assert_equal(forward, (wanted.forward * (large * least)).astype(dtype), dtype)
    grad_input = calls.grad_input(problem, data.w * least, data.y * large)
    assert_equal(grad_input, (wanted.grad_input * (large * least)).astype(dtype), dtype)


@pytest.mark.parametrize('algorithm', ['auto', 'winograd'])
@pytest.mark.parametrize('size', [9, 10, 11, 12])
def test_cells_that_nothing_reads_change_nothing(size, algorithm, dtype):
    """A tile that sticks out over the last output does not see what lies there."""
    problem = P('cropped', (size, size), (3, 3), (4, 5), padding=((0, -1), (1, -2)))
    data = problem.floats(dtype)
    spoiled = data.x.copy()
    spoiled[..., -1, :] = spoiled[..., -2:] = 1e20
    for before, after in zip(calls.three_maps(problem, data.x, data.w, data.y, algorithm=algorithm)[::2],
                             calls.three_maps(problem, spoiled, data.w, data.y, algorithm=algorithm)[::2]):
        assert_same_bits(after, before)


@pytest.mark.parametrize('algorithm', ['auto', 'winograd', 'gemm'])
def test_scratch_stays_small_where_operands_are_not_finite(algorithm, dtype):
    """At most two megabytes beside the caller's buffers."""
    problem = P('not finite', (14, 14), (3, 3), (160, 160), padding=1, batch=4)
    data = problem.floats(dtype)
    for part in data[:3]:
        part.flat[5] = np.nan
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, padding=1, dtype=dtype, algorithm=algorithm)
    finput, fgrad_input = (np.empty(n, dtype) for n in sizes[2:4])
    outs = [np.empty_like(part) for part in (data.y, data.x, data.w)]
    tracemalloc.start()
    calls.forward(problem, data.x, data.w, out=outs[0], finput=finput, algorithm=algorithm)
    calls.grad_input(problem, data.w, data.y, out=outs[1], fgrad_input=fgrad_input, algorithm=algorithm)
    calls.grad_weight(problem, data.x, data.y, out=outs[2], finput=finput, algorithm=algorithm)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 2 << 20


@pytest.mark.parametrize('problem', TILED[-7:], ids=str)
def test_added_to_what_is_there(problem, dtype):
    """The double backward sums two forwards: an infinity that a transform made could not be taken back."""
    data, other = problem.integers(dtype), problem.integers(dtype, -2, 2)
    more = problem.keywords
    actual, _, _ = pyconv.convolution_double_backward(
        other.x, other.w, None, data.y, data.w, data.x, more['stride'], more['padding'], more['dilation'], False, 0,
        more['groups'], (True, False, False))
    wanted = maps(problem, other.x, data.w, data.y).forward + maps(problem, data.x, other.w, data.y).forward
    assert_equal(actual, wanted, dtype)


@pytest.mark.parametrize('shape, weight, dilation, groups, algorithm, name', [
    ((1, 64, 28, 28), (64, 64, 3, 3), 1, 1, 'auto', 'Winograd F(2, 3)'),
    ((1, 64, 28, 28), (64, 64, 3, 3), 1, 1, 'winograd', 'Winograd F(4, 3)'),
    ((1, 64, 28, 28), (64, 64, 3, 3), 1, 1, 'gemm', 'matrix product'),
    ((1, 64, 28, 28), (64, 64, 3, 3), 4, 1, 'auto', 'Winograd F(2, 3)'),
    ((1, 64, 28, 28), (64, 64, 3, 3), 4, 1, 'winograd', 'Winograd F(4, 3)'),
    ((1, 64, 28, 28), (64, 64, 3, 3), 12, 1, 'auto', 'matrix product'),
    ((1, 64, 28, 28), (64, 1, 3, 3), 1, 64, 'auto', 'direct'),
    ((1, 64, 28, 28), (64, 64, 5, 5), 1, 1, 'winograd', 'matrix product'),
])
def test_the_logger_tells_what_was_chosen(shape, weight, dilation, groups, algorithm, name, caplog, monkeypatch):
    monkeypatch.undo()  # as users have it
    with caplog.at_level('DEBUG', 'pyconv'):
        for _ in range(2):
            pyconv.conv2d(np.zeros(shape), np.zeros(weight), None, 1, dilation, dilation, groups, algorithm=algorithm)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1 and messages[0].startswith('forward in float64') and messages[0].endswith(': ' + name)


@pytest.mark.every
@pytest.mark.parametrize('is_rectified', [False, True], ids=['normal', 'rectified'])
@pytest.mark.parametrize('channels, size, batch', [(64, 28, 1), (128, 14, 2), (256, 7, 2), (256, 4, 1)])
def test_errors_stay_those_of_sums(channels, size, batch, is_rectified):
    """Relative Frobenius errors against float64: those of F(2, 3) within 1e-6, and at most a tenth above those of sums,
    where positions are few, or a third if no cell is below zero; of a weight's gradient, whose sums are short there,
    twice, and 2.4 times. F(4, 3) is within 2e-6."""
    problem = P('layer', (size, size), (3, 3), (channels, channels), padding=1, batch=batch)
    data, exact = problem.floats(np.float32), problem.floats()
    if is_rectified:
        data, exact = (parts._replace(x=np.maximum(parts.x, 0)) for parts in (data, exact))
    rights = calls.three_maps(problem, *(part.astype(np.float32).astype(float) for part in exact[:3]), algorithm='gemm')

    def errors(algorithm):
        actual = calls.three_maps(problem, *data[:3], algorithm=algorithm)
        return [np.linalg.norm(one - right) / np.linalg.norm(right) for one, right in zip(actual, rights)]
    sums, tiles, larger = map(errors, ('gemm', 'auto', 'winograd'))
    assert max(tiles) <= 1e-6 and max(larger) <= 2e-6
    most = (1.4, 1.15, 2.4) if is_rectified else (1.15, 1.15, 2)
    assert all(tile <= more * of_sum for tile, of_sum, more in zip(tiles, sums, most))


AT_AN_END = """
import itertools, numpy as np, pyconv
from guarded import at_an_end
from pyconv import _tiled
_tiled.tiling_pays = lambda name, piece: True
rng, masks = np.random.default_rng(0), ((True, False, False), (False, True, False))
sizes = (4, 4), (7, 7), (12, 11), (14, 16), (7, 33), (33,), (5, 7, 7)
for size, batch, dtype, algorithm in itertools.product(sizes, (1, 3), ('f4', 'f8'), ('auto', 'winograd')):
    x, w = (rng.standard_normal(n).astype(dtype) for n in ((batch, 4, *size), (5, 4, *(3,) * len(size))))
    def maps(x, w, y=None):
        forward = pyconv.convolution(x, w, None, 1, 1, 1, False, 0, 1, algorithm=algorithm)
        return [forward, *(pyconv.convolution_backward(
            forward if y is None else y, x, w, 1, 1, 1, False, 0, 1, mask, algorithm=algorithm)[mask.index(True)]
            for mask in masks)]
    wanted = maps(x, w)
    for front in (False, True):
        found = maps(*(at_an_end(array, front) for array in (x, w, wanted[0])))
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted)), (size, batch, dtype, algorithm, front)
"""


@guards_memory
def test_nothing_around_the_operands_is_read(run_python):
    run_python(AT_AN_END)
