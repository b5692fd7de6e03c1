"""pyconv.dask: values in all kinds of chunks, what is read and kept, schedulers, a worker that dies, and errors."""
import doctest
import os
import re
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

dask = pytest.importorskip('dask')
da = pytest.importorskip('dask.array')

from dask.callbacks import Callback  # noqa: E402

import pyconv  # noqa: E402
import pyconv.dask as door  # noqa: E402
import reference  # noqa: E402
from calls import assert_equal, per_channel  # noqa: E402
from problems import expected, some  # noqa: E402
from pyconv.dask import _graph, _maps, _tasks  # noqa: E402

CONV = {rank: getattr(door, f'conv{rank}d') for rank in (1, 2, 3)}
INPUT = {rank: getattr(door, f'conv{rank}d_input') for rank in (1, 2, 3)}
WEIGHT = {rank: getattr(door, f'conv{rank}d_weight') for rank in (1, 2, 3)}
TRANSPOSE = {rank: getattr(door, f'conv_transpose{rank}d') for rank in (1, 2, 3)}
PROBLEMS = some(
    '1d', '2d', '3d', '2d kernel 1', '2d stride 2', '2d stride above kernel', '2d stride 2 dilation 3',
    '2d same strided dilated', '2d crop strided dilated', '2d padding far above kernel', '2d groups everything',
    '3d groups everything', '2d depthwise strided', '2d kernel nearly input', '2d patches rest', '2d batch 7',
    '1d stride far above input', '1d crop above kernel', '1d padding around one cell', '1d same lower strided',
    '1d causal dilated', '2d full strided dilated', '1d transposed output padding above stride',
    '2d transposed groups dilated')
MODES = some(*(f'{mode} {name}' for mode in ('circular', 'replicate', 'reflect', 'constant -1') for name in (
    '1d far strided', '1d one cell', '1d cropped in front', '1d cropped behind', '2d same strided dilated', '2d far',
    '2d cropped and padded', '2d groups everything', '1d pads never read')), 'reflect 3d groups everything')


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler='synchronous'):
        yield


def uneven(size):
    """Chunks of an axis: one cell, then a third, then the rest."""
    first, second = min(size, 1), max(size - 1, 0) // 3
    return tuple(length for length in (first, second, size - first - second) if length) or (0,)


def equal(length):
    """Chunks of so many cells."""
    return lambda size: (length,) * (size // length) + ((size % length,) if size % length else ())


def lazy(array, rank, chunks=uneven):
    """The array in chunks along batch and space."""
    batch, (channels, *size) = array.shape[:-rank - 1], array.shape[-rank - 1:]
    return da.from_array(array, chunks=(*map(chunks, batch), (channels,), *map(chunks, size)))


def computed(result, wanted, dtype=np.float64):
    """Says before it computes what it computes."""
    found = result.compute()
    assert result.shape == wanted.shape and result.dtype == dtype
    assert all(size for along in result.chunks for size in along)
    assert_equal(found, wanted, dtype)


def test_examples():
    assert doctest.testmod(door).failed == 0


# values


@pytest.mark.parametrize('problem', [*PROBLEMS, *MODES], ids=str)
def test_maps(problem):
    data, wanted, rank = problem.integers(), expected(problem.name), problem.rank
    x, y = lazy(data.x, rank), lazy(data.y, rank, lambda size: equal(-(-size // 2))(size))
    computed(CONV[rank](x, data.w, data.b, **problem.keywords), wanted.forward + per_channel(data.b, rank))
    computed(INPUT[rank](x.shape, data.w, y, **problem.keywords), wanted.grad_input)
    computed(WEIGHT[rank](x, data.w.shape, y, **problem.keywords), wanted.grad_weight)
    transposed = TRANSPOSE[rank](y, data.w, data.c, **problem.transposed_keywords)
    computed(transposed, wanted.grad_input + per_channel(data.c, rank))
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    columns = door.unfold(x, problem.kernel, problem.dilation, problem.padding, problem.stride, **problem.mode)
    computed(columns, reference.unfold(data.x, problem.kernel, problem.positions, **form))


@pytest.mark.parametrize('problem', some('2d groups everything', 'reflect 2d groups everything'), ids=str)
def test_without_batch_axis(problem):
    data, wanted = problem.integers(), expected(problem.name)
    x, y = lazy(data.x[-1], 2), lazy(data.y[-1], 2)
    computed(door.conv2d(x, data.w, data.b, **problem.keywords), wanted.forward[-1] + per_channel(data.b, 2))
    computed(door.conv2d_input(x.shape, data.w, y, **problem.keywords), wanted.grad_input[-1])
    alone = reference.grad_weight(data.x[-1:], data.y[-1:], problem.kernel, **problem.form)
    for per_sample in (False, True):
        found = door.conv2d_weight(x, data.w.shape, y, per_sample=per_sample, **problem.keywords)
        computed(found, alone)
    computed(door.conv_bias(y, batched=False), reference.channel_sum(data.y[-1:]))


def test_gradients_of_each_sample_and_of_the_bias():
    [problem] = some('2d batch 7')
    data = problem.integers()
    x, y = lazy(data.x, 2), lazy(data.y, 2, equal(2))
    found = door.conv2d_weight(x, data.w.shape, y, per_sample=True, **problem.keywords)
    assert found.chunks[0] == y.chunks[0]
    computed(found, reference.grad_weight(data.x, data.y, problem.kernel, per_sample=True, **problem.form))
    computed(door.conv_bias(y), reference.channel_sum(data.y))


def at_random(rng, size):
    """Chunks of an axis, cut at up to three places."""
    ends = sorted({0, size, *rng.integers(0, size + 1, 3).tolist()})
    return tuple(stop - first for first, stop in pairwise(ends)) or (0,)


@pytest.mark.parametrize('seed', range(40))
def test_weight_gradients_of_chunks_at_random(seed):
    """Chunks of grad_output that have nothing to do with the input's; numbers whose sums are exact."""
    rng = np.random.default_rng(seed)
    rank, groups, per_sample = int(rng.integers(1, 4)), int(rng.integers(1, 3)), bool(rng.integers(2))
    x = rng.integers(-4, 5, (3, 2 * groups, *rng.integers(1, 14 - 2 * rank, rank))).astype(float)
    mode = rng.choice(['zeros', 'constant', 'circular', 'replicate', 'reflect'])
    kernel, stride, dilation = (rng.integers(1, 4, rank).tolist() for _ in range(3))
    pads = [(int(low), int(high) + dilation[axis] * (kernel[axis] - 1))
            for axis, (low, high) in enumerate(rng.integers(0, 4, (rank, 2)))]
    settings = {'stride': stride, 'padding': pads, 'dilation': dilation, 'groups': groups, 'padding_mode': mode,
                'padding_value': -2 if mode == 'constant' else 0}
    weight = np.ones((3 * groups, 2, *kernel))
    plainly = getattr(pyconv, f'conv{rank}d_weight')
    y = rng.integers(-4, 5, getattr(pyconv, f'conv{rank}d')(x, weight, **settings).shape).astype(float)
    lazy_x, lazy_y = (lazy(array, rank, partial(at_random, rng)) for array in (x, y))
    found = WEIGHT[rank](lazy_x, weight.shape, lazy_y, per_sample=per_sample, **settings)
    computed(found, plainly(x, weight.shape, y, per_sample=per_sample, **settings))


@pytest.mark.parametrize('mode', ['zeros', 'circular'])
@pytest.mark.parametrize(('dtype', 'result'), [
    ('float16', 'float16'), ('float32', 'float32'), ('complex64', 'complex64'), ('int8', 'int32'), ('int32', 'int64'),
    ('uint64', 'uint64'), ('bfloat16', 'bfloat16'), ('>f4', 'float32')])
def test_types(dtype, result, mode):
    if dtype == 'bfloat16':
        dtype = result = pytest.importorskip('ml_dtypes').bfloat16
    rng = np.random.default_rng(0)
    shapes = (2, 2, 9, 8), (3, 2, 3, 3), (2, 3, 9, 8), (3,)
    x, w, y, b = (rng.integers(0, 3, shape).astype(dtype) for shape in shapes)
    b = b.astype(result)
    settings = {'padding': 1, 'padding_mode': mode}
    lazy_x, lazy_y = lazy(x, 2), lazy(y, 2)
    computed(door.conv2d(lazy_x, w, b, **settings), pyconv.conv2d(x, w, b, **settings), result)
    computed(door.conv2d_input(x.shape, w, lazy_y, **settings), pyconv.conv2d_input(x.shape, w, y, **settings), result)
    computed(door.conv2d_weight(lazy_x, w.shape, lazy_y, **settings),
             pyconv.conv2d_weight(x, w.shape, y, **settings), result)
    computed(door.conv_bias(lazy_y), pyconv.conv_bias(y), result)
    columns = pyconv.unfold(x, (3, 3), **settings)
    computed(door.unfold(lazy_x, (3, 3), **settings), columns, columns.dtype)


def test_halves_are_rounded_once():
    """2048 + 1 is 2048 in float16; of six such pairs, one in each chunk, the sum is 12294, which rounds to 12296."""
    y = np.array([2048, 1] * 6, np.float16).reshape(1, 1, 12)
    x, lazy_y, once = np.ones_like(y), lazy(y, 1, equal(2)), np.float16(12296)
    assert door.conv1d_weight(lazy(x, 1), (1, 1, 1), lazy_y).compute() == once
    assert door.conv_bias(lazy_y).compute() == once
    # one cell of x, for which eleven padded ones stand
    settings = {'padding': ((5, 6),), 'padding_mode': 'replicate'}
    assert door.conv1d_input((1, 1, 1), x[..., :1], lazy_y, **settings).compute() == once


def test_nothing_is_multiplied_where_nothing_is():
    """A NaN in the weight stays away from outputs whose tap meets no cell, at the edge of the whole array alone."""
    x, w = np.ones((1, 1, 9, 9)), np.ones((1, 1, 3, 3))
    w[..., 0, 1] = np.nan
    for function, plain in ((door.conv2d, pyconv.conv2d), (door.conv_transpose2d, pyconv.conv_transpose2d)):
        computed(function(lazy(x, 2), w, padding=1), plain(x, w, padding=1))


def test_dask_weights_and_lists():
    x, w, b = np.arange(24.0).reshape(1, 2, 12), np.arange(12.0).reshape(2, 2, 3), np.array([1.0, -1.0])
    wanted = pyconv.conv1d(x, w, b)
    computed(door.conv1d(lazy(x, 1), da.from_array(w, chunks=1), da.from_array(b, chunks=1)), wanted)
    computed(door.conv1d(lazy(x, 1), w.astype(int).tolist(), [1, -1]), wanted)
    computed(door.conv1d_input(x.shape, da.from_array(w, chunks=2), lazy(wanted, 1)),
             pyconv.conv1d_input(x.shape, w, wanted))


def test_a_constant_around_nothing_and_arrays_of_nothing():
    w = np.ones((3, 2, 3))
    settings = {'padding': 2, 'padding_mode': 'constant', 'padding_value': 2}
    empty = np.ones((2, 2, 0))
    computed(door.conv1d(da.from_array(empty), w, **settings), pyconv.conv1d(empty, w, **settings))
    nobody = np.ones((0, 2, 8))
    for lazily, plainly in (
        (door.conv1d(da.from_array(nobody), w), pyconv.conv1d(nobody, w)),
        (door.conv1d_input((0, 2, 8), w, da.ones((0, 3, 6))), np.ones((0, 2, 8))),
        (door.conv1d_weight(da.from_array(nobody), w.shape, da.ones((0, 3, 6))), np.zeros((3, 2, 3))),
        (door.unfold(da.from_array(nobody), (3,)), pyconv.unfold(nobody, (3,))),
    ):
        assert lazily.shape == plainly.shape
        np.testing.assert_array_equal(lazily.compute(), plainly)
    nobody = da.ones((0, 2, 100, 100), chunks=(1, 2, 50, 100))          # more than the few that dask has in one chunk
    for w, image in ((np.ones((3, 2, 3, 3)), nobody), (np.ones((0, 2, 3, 3)), da.ones((4, 2, 100, 100)))):
        assert door.conv2d(image, w).compute().shape == (len(image), len(w), 98, 98)
    assert door.unfold(nobody, (3, 3)).compute().shape == (0, 18, 98 * 98)


def test_empty_chunks_are_passed_over():
    x, w = da.ones((1, 1, 9), chunks=(1, 1, (0, 4, 0, 5))), np.ones((1, 1, 3))
    assert 0 in x.chunks[2]
    computed(door.conv1d(x, w, padding=1), pyconv.conv1d(np.ones((1, 1, 9)), w, padding=1))
    found = door.conv1d_weight(x, (1, 1, 1), x)
    assert found.compute() == 9


# chunks and tasks


def test_chunks_of_results():
    x, w = da.ones((5, 1, 100, 90), chunks=(2, 1, 32, 64)), np.ones((1, 1, 3, 3))
    assert door.conv2d(x, w, padding=1).chunks == x.chunks
    assert door.conv2d(x, w, padding='causal').chunks == x.chunks
    halved = door.conv2d(x, w, padding=1, stride=2)
    assert halved.chunks == ((2, 2, 1), (1,), (16, 16, 16, 2), (32, 13))
    assert door.conv_transpose2d(halved, w, stride=2, padding=1, output_padding=1).chunks == x.chunks
    assert door.conv2d_input(x.shape, w, halved, padding=1, stride=2).chunks == x.chunks
    halved = door.conv1d(da.ones((1, 1, 15), chunks=(1, 1, 5)), np.ones((1, 1, 1)), stride=2)
    assert halved.chunks[2] == (3, 2, 3)  # of the cells 0, 2 and 4, of 6 and 8, and so on
    far = door.conv2d(x, w, padding=((0, 0), (0, 200)))  # of the last chunk there is no more than of others
    assert far.chunks[2:] == ((32, 32, 32, 2), (64, 26, 64, 64, 64, 6))


@pytest.mark.parametrize('mode', ['zeros', 'reflect', 'constant'])
def test_chunks_that_are_asked_for(mode):
    x, w = np.arange(2.0 * 3 * 17 * 11).reshape(2, 3, 17, 11) % 7, np.arange(2.0 * 3 * 9).reshape(2, 3, 3, 3) % 5
    settings = {'padding': (2, 1), 'stride': (1, 2), 'padding_mode': mode}
    wanted = pyconv.conv2d(x, w, **settings)
    y = door.conv2d(lazy(x, 2), w, chunks=(1, -1, 5, (2, 0, 4)), **settings)
    assert y.chunks == ((1, 1), (2,), (5, 5, 5, 4), (2, 4))
    computed(y, wanted)
    back = door.conv2d_input(x.shape, w, lazy(wanted, 2), chunks=4, **settings)
    assert back.chunks == ((2,), (3,), (4, 4, 4, 4, 1), (4, 4, 3))
    computed(back, pyconv.conv2d_input(x.shape, w, wanted, **settings))


def test_padding_that_recurs_is_in_chunks_too(monkeypatch):
    """The gradient to 12 cells and 1200 of padding is never in one piece."""
    sizes, convolved = [], _tasks.convolved

    def recorded(*arguments, **settings):
        result = convolved(*arguments, **settings)
        sizes.append(result.shape[-1])
        return result

    monkeypatch.setattr(_maps, 'convolved', recorded)
    y, settings = da.ones((1, 1, 1210), chunks=(1, 1, 4)), {'padding': 600, 'padding_mode': 'circular'}
    found = door.conv1d_input((1, 1, 12), np.ones((1, 1, 3)), y, **settings)
    computed(found, pyconv.conv1d_input((1, 1, 12), np.ones((1, 1, 3)), np.ones((1, 1, 1210)), **settings))
    assert max(sizes) == 4 and sum(sizes) == 1212


def test_columns_are_runs_of_positions():
    """No more numbers in a chunk than the largest chunk of the input has, unless a single position has more."""
    x = np.arange(7.0 * 8 * 9).reshape(1, 1, 7, 8, 9)
    for chunk in (2, 4, 9):
        found = door.unfold(lazy(x, 3, equal(chunk)), (2, 2, 2))
        assert max(found.chunks[2]) * 8 <= max(chunk**3, 8)
        computed(found, pyconv.unfold(x, (2, 2, 2)))


def test_a_task_reads_its_neighbours_seams_alone(monkeypatch):
    """The pieces that are cut of other chunks are as thick as half the kernel, and each is cut once."""
    x, cuts = lazy(np.ones((1, 1, 60, 60)), 2, equal(20)), []
    monkeypatch.setattr(_graph, 'cut', lambda chunk, parts: cuts.append(parts) or _tasks.cut(chunk, parts))
    door.conv2d(x, np.ones((1, 1, 5, 5)), padding=2).compute()
    assert all(2 in [stop - start for start, stop, _ in parts[2:]] for parts in cuts)
    assert len(cuts) == 2 * 12 + 4 * 4  # two seams for each of 12 borders, and four corners at each of 4 crossings


def test_a_piece_does_not_keep_its_chunk():
    assert _tasks.cut(np.ones((4, 4)), [(0, 1, 1), (0, 4, 1)]).base is None


def test_nothing_is_computed_before_it_is_asked_for():
    def refuse(block):
        raise AssertionError('computed')

    x = da.ones((1, 1, 40, 40), chunks=(1, 1, 10, 10)).map_blocks(refuse, dtype=np.float64, meta=np.ones(()))
    y = door.conv2d(x, np.ones((1, 1, 3, 3)), padding=1, padding_mode='circular')
    door.conv2d_input(x.shape, np.ones((1, 1, 3, 3)), y, padding=1, padding_mode='circular')
    weight = door.conv2d_weight(x, (1, 1, 3, 3), y, padding=1)
    with pytest.raises(AssertionError, match='computed'):
        weight.compute()


def test_weight_gradients_are_summed_over_a_tree():
    x = da.ones((1, 1, 300), chunks=(1, 1, 1))
    found = door.conv1d_weight(x, (1, 1, 1), x)
    sums = [task for task in found.dask.layers[found.name].values() if task[0] is _tasks.added]
    assert max(len(task[1]) for task in sums) == 2 and len(sums) == 299 + 1
    assert found.compute() == 300


def size_of(result):
    """The bytes of an array, or of all arrays in a list or a dictionary."""
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, list) else None
    return getattr(result, 'nbytes', 0) if parts is None else sum(map(size_of, parts))


class Held(Callback):
    """The most bytes of arrays that dask's own scheduler held at once."""

    def _start(self, graph):
        self.most, self.sizes = 0, {}

    def _posttask(self, key, result, graph, state, worker):
        self.sizes[key] = size_of(result)
        self.most = max(self.most, sum(self.sizes.get(held, 0) for held in state['cache']))


@pytest.mark.parametrize(('name', 'samples'), [('conv2d', 1), ('conv2d_input', 1), ('conv2d_weight', 3)])
@pytest.mark.parametrize('blocks', [(3, 40), (40, 3), (12, 12)], ids=str)
def test_chunks_wait_across_the_shorter_side_alone(name, blocks, samples):
    """Of one sample, however long it is: less than four rows of chunks, and six more."""
    size, chunks = (samples, 1, *(20 * count for count in blocks)), (1, 1, 20, 20)
    x, y = (da.random.default_rng(seed).random(size, chunks=chunks) for seed in (0, 1))
    weight = np.ones((1, 1, 3, 3))
    result = {'conv2d': lambda: door.conv2d(x, weight, padding=1).sum(),
              'conv2d_input': lambda: door.conv2d_input(size, weight, y, padding=1).sum(),
              'conv2d_weight': lambda: door.conv2d_weight(x, weight.shape, y, padding=1)}[name]()
    with Held() as held:
        result.compute()
    assert held.most < (4 * min(blocks) + 6) * 20 * 20 * 8


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('mode', ['zeros', 'constant', 'circular'])
def test_edges_alone_wait_for_a_weight_gradient(mode, stride):
    """Of 288 chunks less than eight: the two of a task, and edges, each a hundredth of a chunk."""
    x, y = (da.random.default_rng(seed).random((1, 1, 12 * edge, 12 * edge), chunks=(1, 1, edge, edge))
            for seed, edge in enumerate((100, 100 // stride)))
    with Held() as held:
        door.conv2d_weight(x, (1, 1, 3, 3), y, padding=1, stride=stride, padding_mode=mode).compute()
    assert held.most < 8 * 100 * 100 * 8


def test_a_task_runs_on_one_thread(monkeypatch):
    pyconv.set_num_threads(2)
    threads = []
    for place, name in ((_tasks, 'convolution'), (_tasks, 'unfold'), (_tasks.WEIGHT, 1)):
        plain = place[name] if name == 1 else getattr(place, name)

        def recorded(*arguments, plain=plain, **settings):
            threads.append(pyconv.get_num_threads())
            return plain(*arguments, **settings)

        monkeypatch.setitem(place, name, recorded) if name == 1 else monkeypatch.setattr(place, name, recorded)
    x = da.ones((1, 1, 4), chunks=4)
    dask.compute(door.conv1d(x, np.ones((1, 1, 3))), door.unfold(x, (3,)), door.conv1d_weight(x, (1, 1, 1), x))
    assert threads == [1] * 4 and pyconv.get_num_threads() == 2  # the columns are two chunks


def test_equal_calls_have_equal_names():
    x, w = da.ones((1, 1, 40), chunks=(1, 1, 10)), np.ones((1, 1, 3))
    assert door.conv1d(x, w).name == door.conv1d(x, w.copy()).name
    names = {door.conv1d(x, w).name, door.conv1d(x, 2 * w).name, door.conv1d(x + 1, w).name,
             door.conv1d(x, w, chunks=(1, 1, 20)).name, door.conv1d(x, w, algorithm='gemm').name,
             door.conv1d(x, w, np.ones(1)).name, door.conv1d(x, w, dilation=2).name}
    assert len(names) == 7


# schedulers

def peak():
    """The most memory that this process ever had, in bytes. (ru_maxrss counts what its parent had, too.)"""
    status = Path('/proc/self/status')
    if not status.exists():
        pytest.skip('only Linux says what memory a process had')
    return int(re.search(r'VmHWM:\s*(\d+) kB', status.read_text())[1]) * 1024


def sums_of_picture(size, compute):
    """Of every pixel filtered, of the gradients to the weight and to the picture: in strips of 128 rows, of 2 MB."""
    image = da.ones((1, 1, size, 4096), dtype=np.float32, chunks=(1, 1, 128, 4096))
    image = image.map_blocks(np.array)  # da.ones repeats one number
    weight = np.ones((1, 1, 3, 3), np.float32)
    settings = {'padding': 1, 'padding_mode': 'circular'}
    arrays = (door.conv2d(image, weight, **settings), door.conv2d_weight(image, weight.shape, image, **settings),
              door.conv2d_input(image.shape, weight, image, **settings))
    return [float(compute(array.sum(dtype=np.float64))) for array in arrays]


IN_THREADS = '''
import test_dask

def compute(array):
    return array.compute(scheduler='threads', num_workers=2)

test_dask.sums_of_picture(1024, compute)
before = test_dask.peak()
assert test_dask.sums_of_picture(8192, compute) == [9 * 8192 * 4096] * 3
print(test_dask.peak() - before)
'''


def test_memory_is_bounded_by_the_chunk(run_python):
    """A picture of 128 MB, two tasks at once: chunk, block and result of each, and chunks that wait for neighbours."""
    peak()
    assert int(run_python(IN_THREADS, timeout=120)) < 64 * 2**20


@pytest.mark.parametrize('scheduler', ['threads', 'processes'])
def test_schedulers_of_dask(scheduler):
    [problem] = some('reflect 2d groups everything')
    data, wanted = problem.integers(), expected(problem.name)
    y = door.conv2d(lazy(data.x, 2), data.w, **problem.keywords)
    weight = door.conv2d_weight(lazy(data.x, 2), data.w.shape, lazy(data.y, 2), **problem.keywords)
    for found, answer in zip(dask.compute(y, weight, scheduler=scheduler, num_workers=2), wanted[::2]):
        assert_equal(found, answer, np.float64)


@pytest.fixture(scope='module')
def cluster():
    """Three worker processes on this machine."""
    distributed = pytest.importorskip('distributed')
    # that a dead worker does not answer is found out by waiting so long, by default for half a minute
    with dask.config.set({'distributed.comm.timeouts.connect': '5s'}):
        with distributed.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster:
            with distributed.Client(cluster) as client:
                yield client


def test_on_a_cluster(cluster):
    [problem] = some('2d groups everything')
    data, wanted = problem.integers(), expected(problem.name)
    x, y = lazy(data.x, 2), lazy(data.y, 2)
    lazily = (door.conv2d(x, data.w, **problem.keywords), door.conv2d_input(x.shape, data.w, y, **problem.keywords),
              door.conv2d_weight(x, data.w.shape, y, **problem.keywords))
    for found, answer in zip(cluster.gather(cluster.compute(lazily)), wanted):
        assert_equal(found, answer, np.float64)


def test_memory_of_a_worker_is_bounded_by_the_chunk(cluster):
    """Less than the third of the picture that a worker has to do with, 64 MB."""
    peak()
    sums_of_picture(1024, lambda array: array.compute(scheduler=cluster))
    before = cluster.run(peak)
    assert sums_of_picture(12288, lambda array: array.compute(scheduler=cluster)) == [9 * 12288 * 4096] * 3
    after = cluster.run(peak)
    assert len(after) == 3 and all(after[worker] - before[worker] < 48 * 2**20 for worker in after)


def test_a_worker_that_is_killed_half_way(cluster, tmp_path):
    """It takes with it what it has computed; the others compute that again."""
    import distributed

    gate = tmp_path / 'open'

    def wait_at_the_gate(block, block_info=None):
        if block_info[0]['chunk-location'] == (0, 0, 7, 2):
            distributed.secede()  # the worker does other tasks meanwhile
            while not gate.exists():
                time.sleep(0.01)
        return block

    image = np.random.default_rng(0).integers(-3, 4, (1, 2, 80, 60)).astype(float)
    weight = np.random.default_rng(1).integers(-3, 4, (3, 2, 5, 3)).astype(float)
    settings = {'padding': 'same', 'padding_mode': 'reflect'}
    x = da.from_array(image, chunks=(1, 2, 10, 20)).map_blocks(wait_at_the_gate, dtype=float, meta=np.ones(()))
    y = door.conv2d(x, weight, **settings)
    futures = cluster.compute((y, door.conv2d_weight(x, weight.shape, y, **settings)))
    deadline, held = time.monotonic() + 30, {}
    while sum(held.values()) < 20:  # of 24 chunks; four wait for the one behind the gate
        assert time.monotonic() < deadline
        time.sleep(0.01)
        held = {worker: sum(key[0] == y.name for key in keys) for worker, keys in cluster.has_what().items()}
    before = cluster.run(os.getpid)
    os.kill(before[max(held, key=held.get)], signal.SIGKILL)
    gate.touch()
    found_y, found_weight = cluster.gather(futures)
    wanted = pyconv.conv2d(image, weight, **settings)
    assert_equal(found_y, wanted, np.float64)
    assert_equal(found_weight, pyconv.conv2d_weight(image, weight.shape, wanted, **settings), np.float64)
    assert set(cluster.run(os.getpid).values()) != set(before.values())


# errors

class Foreign:
    """What the chunks of another library are like, as dask knows them."""

    shape, ndim, dtype = (0, 0, 0), 3, np.dtype('f8')

    def __array_function__(self, *call):
        return self

    def __array_ufunc__(self, *call):
        return self

    def __getitem__(self, where):
        return self


X, W = da.ones((2, 4, 9), chunks=(1, 4, 3)), np.ones((4, 4, 3))
ERRORS = [
    (lambda: door.conv1d(np.ones((2, 4, 9)), W), TypeError, 'input must be a dask array; got ndarray'),
    (lambda: door.conv1d_input((2, 4, 9), W, W), TypeError, 'grad_output must be a dask array; got ndarray'),
    (lambda: door.conv1d(X.rechunk((2, (1, 3), 9)), W), ValueError,
     'input must have all channels in one chunk, as rechunk({1: -1}) gives; got chunks (1, 3)'),
    (lambda: door.conv1d_weight(X, (4, 4, 1), X.rechunk((2, 2, 9))), ValueError,
     'grad_output must have all channels in one chunk, as rechunk({1: -1}) gives; got chunks (2, 2)'),
    (lambda: door.unfold(X.rechunk((2, 2, 9)), (3,)), ValueError,
     'input must have all channels in one chunk, as rechunk({1: -1}) gives; got chunks (2, 2)'),
    (lambda: door.conv1d(X[X[:, 0, 0] > 0], W), ValueError,
     'input must have chunks of known sizes; got ((nan, nan), (4,), (3, 3, 3))'),
    (lambda: door.conv1d(X, W, chunks=2), ValueError,
     'chunks must keep all channels in one chunk; got ((2,), (2, 2), (2, 2, 2, 1))'),
    (lambda: door.conv1d(X, W, chunks=(1, 6, 5, 3)), ValueError,
     'chunks must be what dask takes for an array of shape (2, 4, 7); got (1, 6, 5, 3)'),
    (lambda: door.conv1d_input((2, 4, 9), W, door.conv1d(X, W), chunks='some'), ValueError,
     "chunks must be what dask takes for an array of shape (2, 4, 9); got 'some'"),
    (lambda: door.conv1d(X, W, chunks=object), TypeError, None),
    (lambda: door.conv1d(da.Array(X.dask, X.name, X.chunks, meta=Foreign()), W), TypeError,
     "input must be a dask array of NumPy's arrays; got Foreign"),
    (lambda: door.conv1d(da.ma.masked_array(X, X > 0), W), TypeError, 'input must have no mask; got a masked array'),
    (lambda: door.conv1d(X, da.ma.masked_array(da.ones(W.shape), True)), TypeError,
     'weight must have no mask; got a masked array'),
    (lambda: door.conv1d(X, W, np.ma.masked_array(np.ones(4), True)), TypeError,
     'bias must have no mask; got a masked array'),
    (lambda: door.conv1d(X, W.astype(np.float32)), TypeError,
     'weight must have the dtype of input, float64; got float32'),
    (lambda: door.conv1d(X.astype(bool), W), TypeError, None),
    (lambda: door.conv1d(X, W, np.ones(3)), ValueError, 'bias must have shape (4,); got shape (3,)'),
    (lambda: door.conv1d(X, np.ones((4, 3, 3))), ValueError,
     'input must have 3 channels, axis 1 of weight, 3, times groups, 1; got shape (2, 4, 9)'),
    (lambda: door.conv1d(X, W, stride=0), ValueError, None),
    (lambda: door.conv1d(X, W, padding_mode='mirror'), ValueError, None),
    (lambda: door.conv1d(X, W, algorithm='fft'), ValueError, None),
    (lambda: door.conv1d(X, W, dtype=np.int32), TypeError, None),
    (lambda: door.conv1d_weight(X, (4, 4, 3), X), ValueError,
     'grad_output must have shape (2, 4, 7); got shape (2, 4, 9)'),
    (lambda: door.conv1d_weight(X, (4, 4, 3), X, per_sample=1), TypeError, 'per_sample must be True or False; got 1'),
    (lambda: door.conv_transpose1d(X, W, output_padding=1), ValueError, None),
    (lambda: door.conv_bias(X, batched=2), TypeError, 'batched must be True or False; got 2'),
    (lambda: door.unfold(X, (0,)), ValueError, None),
]


@pytest.mark.parametrize(('call', 'error', 'text'), ERRORS)
def test_error(call, error, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert type(caught.value) is error and ' must ' in str(caught.value)
    assert text is None or str(caught.value) == text


@pytest.mark.parametrize('dtype', ['int8', 'float16', 'float32'])
def test_results_of_an_empty_batch_have_the_plain_functions_types(dtype):
    x, w, y = (np.ones(shape, dtype) for shape in ((0, 2, 5), (3, 2, 2), (0, 3, 4)))
    for name, given in (('conv1d', (x, w)), ('conv1d_input', (x.shape, w, y)), ('conv_transpose1d', (y, w)),
                        ('unfold', (x, 2))):
        plain = getattr(pyconv, name)(*given)
        lazy = getattr(pyconv.dask, name)(*(da.from_array(one) if one is x or one is y else one for one in given))
        assert lazy.dtype == plain.dtype == lazy.compute().dtype, name
        assert lazy.shape == plain.shape
