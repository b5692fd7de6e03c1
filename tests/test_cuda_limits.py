"""What the GPU's launches count in 32 bits: work of more than that is cut, or refused before anything is allocated.

Large problems are planned and not run: no launch may count 2**31 of anything, and together they must count all there
is. That a cut gives the same numbers is seen on small ones, under a limit that is as small.
"""
from itertools import product
from math import prod

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import last, per_channel
from emulated_device import EmulatedArray, EmulatedDevice
from gpus import Emulated
from problems import P, maps
from pyconv import _cuda
from pyconv import _geometries as geometries
from pyconv._gpu import launch, limits, tiles
from pyconv._gpu import maps as maps_of_gpu
from pyconv._gpu.arrays import DTYPES
from pyconv._gpu.launches import Launches, Program, Ref
from pyconv._gpu.layouts import Layout
from pyconv._gpu.program import Target, fill
from test_cuda import same
from test_identities import unrolled
from test_nonfinite import spoiled, without_zeros

COUNTED = ('count', 'positions', 'cells', 'rows', 'chunks', 'inner', 'channels', 'groups_padded', 'block_positions',
           'part_positions', 'stages', 'rounds', 'n0', 'n1', 'n2', 'n3')


class Planned:
    """Launches that were planned for a problem, and never run."""

    def __init__(self, monkeypatch, capability=(9, 0)):
        self.device = EmulatedDevice(capability=capability)
        monkeypatch.setattr(launch, 'device', lambda index: self.device)
        _cuda.forget()

    def __call__(self, map, x, w, dtype='float16', is_last=False, algorithm='auto', **settings):
        settings = {'stride': 1, 'padding': 0, 'dilation': 1, 'groups': 1, **settings}
        geometry, _ = geometries.convolved(len(w) - 2, x, w, None, None, **settings)
        plan = _cuda.plan(map, geometry, DTYPES[dtype], algorithm)
        x, w, y = in_order(geometry, plan.problem.element.size, is_last)
        layouts = {'forward': (x, w, y), 'grad_input': (y, w, x), 'grad_weight': (x, y, w)}[map]
        return countable(maps_of_gpu.build(plan.problem, layouts, None, False, geometry.batch).launches)


def in_order(g, size, is_last):
    """The layouts of x, w and y, the first and the last with their channels last or not."""
    def dense(channels, inner):
        plane = prod(inner) * size
        if is_last:
            return Layout(channels * plane, size, *(channels * size * prod(inner[a + 1:]) for a in range(3)), True)
        return Layout(channels * plane, plane, *(size * prod(inner[a + 1:]) for a in range(3)), True)

    w = in_order(g, size, False)[1] if is_last else dense(g.in_channels // g.groups, g.kernel_size)
    return dense(g.in_channels, g.input_size), w, dense(g.out_channels, g.output_size)


def countable(launches):
    """[(name, values by name, grid)] of launches that count nothing beyond 32 bits on grids that the driver takes."""
    found = []
    for one in launches:
        source, values = one.kernel[0], dict(zip(one.kernel[0].arguments, one.arguments))
        beyond = {name: values[name] for name in COUNTED if values.get(name, 0) > 2**31 - 2**13}
        assert not beyond, (source.name, beyond)
        assert one.grid[0] < 2**31 and max(one.grid[1:]) < 2**16, (source.name, one.grid)
        found.append((source.name, values, one.grid))
    return found


@pytest.fixture
def planned(monkeypatch):
    return Planned(monkeypatch)


def total(launches, kernel):
    return sum(values['count'] for name, values, _ in launches if name == kernel)


def scanned(launches):
    return sum(values['count'] // values['n0'] * values['last'] * 8 for name, values, _ in launches if name == 'scan')


# --- cuts that change nothing ---

@pytest.mark.parametrize(
    'sizes', [(5, 4, 3, 2, 2), (1, 1, 1, 1, 50), (3, 1, 40, 1, 1), (2, 11, 1, 1, 1), (0, 3, 1, 1, 1)])
def test_boxes_hold_each_element_once(sizes, monkeypatch):
    monkeypatch.setattr(limits, 'MOST', 10)
    found = []
    for first, box in limits.boxes(sizes):
        assert prod(box) <= 10
        found += product(*(range(start, start + count) for start, count in zip(first, box)))
    assert sorted(found) == sorted(product(*map(range, sizes))) and len(found) == prod(sizes)


@pytest.fixture
def small_boxes(monkeypatch):
    """As if a launch could count to 50 where it goes through elements one by one."""
    real, most = limits.boxes, limits.MOST

    def cut(sizes):
        limits.MOST = 50
        try:
            return list(real(sizes))
        finally:
            limits.MOST = most

    monkeypatch.setattr(limits, 'boxes', cut)


CUT = P('cut', (7, 9), (3, 3), (16, 24), padding=1, batch=3)


@pytest.mark.parametrize('order', [lambda array, rank: array, last], ids=['first', 'last'])
@pytest.mark.parametrize('accumulate', [False, True])
@pytest.mark.parametrize('algorithm', ['gemm', 'tf32x3'])
def test_elements_in_many_launches(monkeypatch, small_boxes, order, accumulate, algorithm):
    """finish with parts and a bias, fill, scan: the same numbers, and a NaN is seen wherever it is."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 2)
    gpu, data = Emulated(monkeypatch), without_zeros(CUT.integers(low=-2, high=2))
    y = spoiled(data.y, (np.nan,), 1, corners=False)
    x = data.x.copy()
    x[-1] = spoiled(x[-1], (np.inf,), 1, corners=False)
    with np.errstate(invalid='ignore'):
        wanted = maps(CUT, x, data.w, y)
    x, w, b = (gpu.upload(array, 'float32') for array in (order(x, 2), data.w, data.b))
    for found, exact in ((lambda **more: calls.forward(CUT, x, w, b, **more), wanted.forward + per_channel(data.b, 2)),
                         (lambda **more: calls.grad_weight(CUT, x, gpu.upload(order(y, 2), 'float32'), **more),
                          wanted.grad_weight)):
        before = np.arange(exact.size).reshape(exact.shape) % 7 * float(accumulate)
        out = gpu.upload(order(before, 2), 'float32')
        found(out=out, accumulate=accumulate, algorithm=algorithm)
        same(gpu, out, before + exact, 'float32')


def test_nothing_but_a_bias_in_many_launches(monkeypatch, small_boxes):
    gpu = Emulated(monkeypatch)
    x, w = gpu.empty((2, 0, 9, 10), 'float32'), gpu.empty((3, 0, 1, 1), 'float32')
    b = gpu.upload(np.arange(3.0), 'float32')
    same(gpu, pyconv.conv2d(x, w, b), np.broadcast_to(np.arange(3.0)[:, None, None], (2, 3, 9, 10)), 'float32')
    assert len(gpu.device.launched) == 12


# --- large problems, planned ---

def test_scan_counts_channels(planned):
    """Of operands that are not copied every element is looked at, a thread at four chunks of eight: more than the cells
    that other launches count."""
    launches = planned('grad_weight', (134, 64, 512, 512), (64, 64, 3, 3), is_last=True, padding=1)
    assert scanned(launches) == 134 * 64 * 512 * 512
    launches = planned('grad_weight', (1, 40, 8192, 8192), (16, 40, 3, 3), is_last=True, padding=1)
    assert scanned(launches) == 16 * 8192 * 8192


@pytest.mark.parametrize(('first', 'at_once'), [(0, 8), (2, 1)], ids=['words', 'elements'])
@pytest.mark.parametrize('shape', [(1, 2, 40000, 40000), (1, 1, 50000, 50000), (3, 1, 30000, 30000)])
def test_fill_of_large_samples(monkeypatch, shape, first, at_once):
    """In words of 16 bytes where they are aligned."""
    gpu, noted = Emulated(monkeypatch), []
    monkeypatch.setattr(Launches, 'run', lambda self, *_: noted.extend(self.launches))
    strides = tuple(prod(shape[a + 1:]) for a in range(4))
    out = EmulatedArray(gpu.memory, (1 << 40) + first, shape, strides, 'float16')
    channels = shape[1]
    x, w = gpu.empty((shape[0], 0, *shape[2:]), 'float16'), gpu.empty((channels, 0, 1, 1), 'float16')
    assert pyconv.conv2d(x, w, out=out) is out
    assert total(countable(noted), 'fill') * at_once == prod(shape)


@pytest.mark.parametrize(('offset', 'steps', 'count'), [
    (0, (32, 4, 16, 16, 8), 4), (16, (32, 4, 16, 16, 8), 4), (24, (32, 4, 16, 16, 8), 16), (0, (32, 4, 32, 16, 8), 4),
    (0, (8, 16, 32, 32, 4), 4), (0, (48, 4, 16, 16, 8), 16), (0, (-32, 4, 16, 16, 8), 16), (0, (32, 16, 16, 4, 8), 4)])
def test_where_zeros_are_filled_in_words(offset, steps, count):
    """Of (2, 2, 1, 2, 2) cells of 4 bytes: where they are dense in any order, and begin with a word."""
    for sizes, wanted in (((2, 2, 1, 2, 2), count), ((1, 1, 1, 1, 1), 1), ((1, 1, 1, 1, 0), None)):
        made, layout = Program(None), Layout(*steps, True)
        fill(made, Target(Ref('out', offset), layout, 0, 0, False), layout, sizes, tiles.ELEMENTS['float32'])
        found = [launch.arguments[launch.kernel[0].arguments.index('count')] for launch in made.launches]
        assert found == ([] if wanted is None else [wanted])


@pytest.mark.parametrize('is_last', [False, True])
@pytest.mark.parametrize('map', ['forward', 'grad_input'])
@pytest.mark.parametrize(('channels', 'groups', 'launched'), [
    ((64, 64), 1, [5] * 12 + [4]), ((64, 64), 32, [2] * 16), ((120, 120), 4, [5] * 24)])
def test_samples_of_many_results(planned, map, channels, groups, launched, is_last):
    """As many channels at a time as a launch can count the results of."""
    launches = planned(map, (2, channels[0], 20000, 20000), (channels[1], channels[0] // groups, 3, 3),
                       is_last=is_last, padding=1, groups=groups)
    found = [values['rows'] for name, values, _ in launches if name == 'gather']
    assert found == [rows for rows in launched for _ in range(2)]


@pytest.mark.parametrize(('x', 'w', 'dtype'), [
    ((2, 1, 40000, 40000), (1, 1, 12, 12), 'float16'), ((3, 1, 30000, 30000), (8, 1, 9, 9), 'float32'),
    ((3, 8, 10**9), (1, 8, 2112), 'float16'), ((300, 1, 30000, 30000), (1, 1, 2, 2), 'float16')])
@pytest.mark.parametrize('capability', [(9, 0), (7, 5)])
def test_parts_of_large_samples(monkeypatch, x, w, dtype, capability):
    """A part of a weight's gradient is of as many samples as a launch can count, and all parts are of all positions."""
    launches = Planned(monkeypatch, capability)('grad_weight', x, w, dtype, padding=1)
    positions = x[0] * prod(n - k + 3 for n, k in zip(x[2:], w[2:]))
    kernels = {name for name, _, _ in launches} & {'correlate', 'direct_weight'}
    assert kernels
    for kernel in kernels:
        assert sum(values['positions'] for name, values, _ in launches if name == kernel) == positions


@pytest.mark.parametrize('kernel', ['tiles', 'direct'])
def test_parts_that_a_launch_can_count(monkeypatch, kernel):
    """The same gradient where a launch can take no more than two samples."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0 if kernel == 'tiles' else 1e9)
    gpu, problem = Emulated(monkeypatch), CUT._replace(size=(16, 16), batch=7)
    data = problem.integers()
    x, y = gpu.upload(data.x, 'float32'), gpu.upload(data.y, 'float32')
    monkeypatch.setattr(limits, 'MOST', 2 * 16 * 16)
    monkeypatch.setattr(limits, 'check_weight', lambda *_: None)
    monkeypatch.setattr(tiles, 'NOMINAL_BLOCKS', 1)
    same(gpu, calls.grad_weight(problem, x, y), maps(problem, *data[:3]).grad_weight, 'float32')
    assert gpu.device.launched.count('correlate' if kernel == 'tiles' else 'direct_weight') == 4
    same(gpu, pyconv.conv_bias(y), data.y.sum((0, 2, 3)), 'float32')
    assert gpu.device.launched.count('channel_sum') == 4


CIRCULAR = P('circular', (7, 9), (3, 3), (16, 24), padding=((-1, 2), (2, 1)), batch=3, padding_mode='circular')
VARIED = {
    'one group': CUT, 'two groups': CUT._replace(groups=2), 'eight groups': CUT._replace(channels=(8, 24), groups=8),
    'depthwise': CUT._replace(channels=(24, 24), groups=24), 'strided': CUT._replace(stride=2),
    'apart': CUT._replace(kernel=(2, 2), stride=2, padding=0), 'circular': CIRCULAR}


@pytest.mark.sparse
@pytest.mark.parametrize('kernel', ['tiles', 'direct'])
@pytest.mark.parametrize(('order', 'accumulate'), [(lambda array, rank: array, False), (last, True)],
                         ids=['first', 'last and accumulate'])
@pytest.mark.parametrize('name', VARIED)
def test_channels_that_a_launch_can_count(monkeypatch, name, order, accumulate, kernel):
    """The same results where a launch can take no more than five channels of a sample."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0 if kernel == 'tiles' else 1e9)
    monkeypatch.setattr(limits, 'most_planes', lambda *_: 5)
    gpu, problem = Emulated(monkeypatch), VARIED[name]
    data = problem.integers()
    wanted = maps(problem, *data[:3])
    x, w, y, b, c = (gpu.upload(order(array, 2) if array.ndim == 4 else array, 'float32') for array in (
        data.x, data.w, data.y, data.b, data.c))
    forward, grad_input = (exact + per_channel(bias, 2) for exact, bias in (
        (wanted.forward, data.b), (wanted.grad_input, data.c)))
    for call, exact in ((lambda **more: calls.forward(problem, x, w, b, **more), forward),
                        (lambda **more: calls.transposed(problem, y, w, c, **more), grad_input)):
        before = np.arange(exact.size).reshape(exact.shape) % 7 * float(accumulate)
        out = gpu.upload(order(before, 2), 'float32')
        gpu.device.launched.clear()
        call(out=out, accumulate=accumulate)
        same(gpu, out, before + exact, 'float32')
        assert len(gpu.device.launched) >= exact.shape[1] / 5


@pytest.mark.parametrize('accumulate', [False, True])
@pytest.mark.parametrize('name', ['one group', 'strided', 'circular'])
def test_columns_that_a_launch_can_count(monkeypatch, name, accumulate):
    problem = VARIED[name]
    public, form = unrolled(problem)
    x = problem.integers().x
    columns = reference.unfold(x, problem.kernel, problem.positions, **form)
    folded = reference.fold(columns, problem.size, problem.kernel, problem.positions, **form)
    for planes, launches in ((1, 3 * 16), (5, 3 * 4), (32, 2)):
        monkeypatch.setattr(limits, 'most_planes', lambda *_, planes=planes: planes)
        gpu = Emulated(monkeypatch)
        same(gpu, pyconv.unfold(gpu.upload(x, 'float32'), **public), columns, 'float32')
        assert gpu.device.launched == ['unfold'] * launches
        out = gpu.upload(np.ones(x.shape), 'float32')
        pyconv.fold(gpu.upload(columns, 'float32'), problem.size, **public, out=out, accumulate=accumulate)
        same(gpu, out, folded + accumulate, 'float32')
        assert gpu.device.launched.count('fold') == launches


FAR = {
    'stride': ((1, 4, 10), (4, 4, 3), {'stride': 2**32, 'padding': ((0, 2**32),)}),
    'padding': ((1, 4, 10), (4, 4, 3), {'padding': ((2**32, 2 - 2**32),)}),
    'cropped': ((1, 4, 10), (4, 4, 3), {'padding': ((-2**32, 2**32 + 2),)}),
    'dilation': ((1, 4, 10), (4, 4, 2), {'dilation': 2**30, 'padding': ((0, 2**30),)}),
    'together': ((1, 4, 10), (4, 4, 2), {'stride': 2**30 + 1, 'dilation': 2**29, 'padding': ((2**29, 2**30),)}),
}
FAR_ERROR = ('stride, padding and dilation must keep all taps within 2**30 cells of the input on a GPU; got stride '
             '({},), padding ({},) and dilation ({},)')
direct_and_tiles = pytest.mark.parametrize('channels', [4, 64], ids=['direct', 'tiles'])


def far_calls(x, w, y, shapes, settings):
    """The three maps; input and weight have those shapes."""
    return (lambda: pyconv.conv1d(x, w, **settings), lambda: pyconv.conv1d_input(shapes[0], w, y, **settings),
            lambda: pyconv.conv1d_weight(x, shapes[1], y, **settings))


@direct_and_tiles
@pytest.mark.parametrize('name', FAR)
def test_taps_far_beyond_the_input(monkeypatch, name, channels):
    """What 32 bits cannot tell from a cell inside is refused, before anything is allocated."""
    gpu, ((batch, _, size), (_, _, taps), settings) = Emulated(monkeypatch), FAR[name]
    shapes = (batch, channels, size), (channels, channels, taps)
    x, w = map(np.ones, shapes)
    operands = [gpu.upload(array, 'float32') for array in (x, w, pyconv.conv1d(x, w, **settings))]
    monkeypatch.setattr(EmulatedArray, 'empty', None)
    [(low, _)], wanted = settings['padding'], (settings.get('stride', 1), settings.get('dilation', 1))
    for call in far_calls(*operands, shapes, settings):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == FAR_ERROR.format(wanted[0], low, wanted[1])


@direct_and_tiles
@pytest.mark.parametrize('settings', [
    {'stride': 2**31 - 3, 'padding': ((0, 2**31),)}, {'padding': ((2**30 - 1, 2 - 2**30),)},
    {'padding': ((1 - 2**30, 2**30),)}, {'dilation': 2**28, 'padding': 2**29, 'stride': 2**29 - 7},
], ids=['stride', 'padding', 'cropped', 'together'])
def test_taps_as_far_as_they_may_be(monkeypatch, settings, channels):
    gpu, rng, shapes = Emulated(monkeypatch), np.random.default_rng(0), ((2, channels, 10), (channels, channels, 3))
    x, w = (rng.integers(-3, 4, shape).astype(float) for shape in shapes)
    y = rng.integers(-3, 4, pyconv.conv1d(x, w, **settings).shape).astype(float)
    operands = [gpu.upload(array, 'float64') for array in (x, w, y)]
    for call, exact in zip(far_calls(*operands, shapes, settings), far_calls(x, w, y, shapes, settings)):
        same(gpu, call(), exact(), 'float64')


@pytest.mark.parametrize('map', ['forward', 'grad_input', 'grad_weight'])
@pytest.mark.parametrize(('x', 'w'), [
    ((1, 2200000, 1, 1), (64, 2200000, 1, 1)), ((2, 64, 1, 1), (2200000, 64, 1, 1)),
    ((1, 4 << 20, 3, 3), (4, 4 << 20, 3, 3))])
def test_millions_of_channels(planned, map, x, w):
    assert 'pack' in [name for name, _, _ in planned(map, x, w)]


def untouched(gpu, *shape, dtype='float16'):
    """An array of any size, that nothing may read."""
    return EmulatedArray(gpu.memory, 1 << 40, shape, [prod(shape[a + 1:]) for a in range(len(shape))], dtype)


@pytest.mark.parametrize(('out', 'channels', 'taps', 'dtype'), [
    (47000, 47000, 1, 'float16'), (65536, 65536, 1, 'float16'), (65536, 32769, 1, 'float32'), (1, 2**29, 1, 'float64'),
    (2, 2**26, 9, 'float32')])
def test_large_weights_are_refused(monkeypatch, out, channels, taps, dtype):
    """By every map, before anything is allocated."""
    gpu = Emulated(monkeypatch)
    monkeypatch.setattr(EmulatedArray, 'empty', None)
    x, y = untouched(gpu, 8, channels, taps, dtype=dtype), untouched(gpu, 8, out, 1, dtype=dtype)
    w = untouched(gpu, out, channels, taps, dtype=dtype)
    for call in (lambda: pyconv.conv1d(x, w), lambda: pyconv.conv1d_input(x.shape, w, y),
                 lambda: pyconv.conv1d_weight(x, w.shape, y)):
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == (
            'weight must have fewer than 2**31 elements, and 2**31 bytes for each channel, on a GPU; got shape '
            f'{w.shape}')


@pytest.mark.parametrize('map', ['forward', 'grad_input', 'grad_weight'])
def test_weights_as_large_as_they_may_be(planned, map):
    for is_last in (False, True):
        assert planned(map, (8, 46000, 1, 1), (46000, 46000, 1, 1), is_last=is_last)
        assert planned(map, (8, 4096, 30, 30), (8192, 4096, 5, 5), 'float32', is_last=is_last, padding=2)


CHANNEL_ERROR = ('a channel of a sample must have fewer than 2**31 cells, results and columns on a GPU; got shapes {} '
                 'and {}')


@pytest.mark.parametrize(('call', 'text'), [
    (lambda array: pyconv.conv2d(array(1, 8, 60000, 60000), array(4, 8, 3, 3)),
     CHANNEL_ERROR.format((8, 60000, 60000), (4, 59998, 59998))),
    (lambda array: pyconv.conv_transpose2d(array(1, 8, 100, 100), array(8, 1024, 3, 3), stride=500),
     CHANNEL_ERROR.format((1024, 49503, 49503), (8, 100, 100))),
    (lambda array: pyconv.conv2d_weight(array(1, 1, 60000, 60000), (1, 1, 3, 3), array(1, 1, 59998, 59998)),
     CHANNEL_ERROR.format((1, 60000, 60000), (1, 59998, 59998))),
    (lambda array: pyconv.unfold(array(1, 8, 20000, 20000), 3),
     CHANNEL_ERROR.format((8, 20000, 20000), (8, 19998, 19998))),
    (lambda array: pyconv.fold(array(1, 72, 399920004), (20000, 20000), 3),
     CHANNEL_ERROR.format((8, 20000, 20000), (8, 19998, 19998))),
    (lambda array: pyconv.unfold(array(8, 10), (3,), padding=((2**30, 2 - 2**30),)),
     FAR_ERROR.format(1, 2**30, 1)),
    (lambda array: pyconv.conv_bias(array(1, 8, 60000, 60000)),
     'grad_output must have fewer than 2**31 channels, and fewer than 2**31 cells in one sample, on a GPU; got shape '
     '(1, 8, 60000, 60000)'),
    (lambda array: pyconv.conv_bias(array(2**31, 1), batched=False),
     'grad_output must have fewer than 2**31 channels, and fewer than 2**31 cells in one sample, on a GPU; got shape '
     '(2147483648, 1)'),
], ids=['forward', 'transposed', 'weight', 'unfold', 'fold', 'far columns', 'bias', 'channels of bias'])
def test_errors_come_before_anything_is_allocated(monkeypatch, call, text):
    gpu = Emulated(monkeypatch)
    monkeypatch.setattr(EmulatedArray, 'empty', None)
    with pytest.raises(ValueError) as caught:
        call(lambda *shape: untouched(gpu, *shape))
    assert str(caught.value) == text


@pytest.mark.parametrize('map', ['forward', 'grad_input', 'grad_weight'])
def test_the_plan_of_a_large_batch_is_soon_made(planned, monkeypatch, map):
    """What one sample at a time needs is not found out by going through the batch."""
    added, real = [], Program.add
    monkeypatch.setattr(Program, 'add', lambda *given, **values: added.append(1) or real(*given, **values))
    assert planned(map, (10**6, 64, 6, 6), (64, 64, 3, 3), padding=1)
    assert len(added) < 2000


@pytest.mark.parametrize('dtype', ['float16', 'float32'])
@pytest.mark.parametrize('of_group', [1, 3])
@pytest.mark.parametrize('map', ['forward', 'grad_input', 'grad_weight'])
def test_launches_do_not_grow_in_number_with_the_groups(map, of_group, dtype, planned):
    """Those of a double backward are these maps', the first of them twice. Of many groups of several channels, arrays
    may be packed first."""
    counts = [len(planned(map, (2, channels, 9, 8), (channels, of_group, 3, 3), dtype, padding=1, groups=groups))
              for groups in (2, 64, 256, 1024) for channels in (groups * of_group,)]
    assert counts == counts[:1] * 4 if of_group == 1 else counts[2] == counts[3] <= 6
