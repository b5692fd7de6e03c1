"""What the CPU promises, promised by the GPU: layouts, accumulation, buffers, NaN and infinity, bits.

Which problems and ways go through which kernels: `tiles_alone` leaves no product to the direct kernels.
"""
from functools import partial

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import last, per_channel
from emulated_device import EmulatedArray
from emulator import run
from gpus import DISTINCT, WAYS, Emulated, less, rounded, take_tile
from problems import BY_NAME, VARIED, P, expected, maps, some
from pyconv import _cuda
from pyconv._gpu import tiles
from pyconv._gpu.program import Program
from test_cuda import same
from test_nonfinite import spoiled, without_zeros

FEW = some('2d', '1d', '3d', '2d stride 2', '2d groups everything', '2d channels 33 33', '2d depthwise',
           '2d same strided dilated', '2d many channels kernel 1', '2d crop strided dilated')
few = pytest.mark.parametrize('problem', FEW, ids=str)
in_tiles = pytest.mark.parametrize('direct_rate', [0.0, tiles.DIRECT_RATE], ids=['tiles', 'auto'])


def upload(gpu, dtype, *arrays):
    return [None if array is None else gpu.upload(array, dtype) for array in arrays]


# --- layouts ---

LAYOUTS = {
    'channels last': last,
    'turned': lambda array, rank: np.ascontiguousarray(array[..., ::-1])[..., ::-1],
    'spread': lambda array, rank: np.repeat(np.repeat(array, 2, -1), 3, 1)[:, ::3, ..., ::2],
    'other order': lambda array, rank: np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1),
}


@few
@in_tiles
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_any_layout(gpu, problem, layout, dtype, direct_rate, monkeypatch):
    """Operands and results in layouts of all kinds, with the same numbers."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', direct_rate)
    problem = less(gpu, problem)
    lay, rank, data, wanted = LAYOUTS[layout], problem.rank, problem.integers(), expected(problem.name)
    x, w, y, b = upload(gpu, dtype, lay(data.x, rank), lay(data.w, rank), lay(data.y, rank), data.b)
    to_x, to_w, to_y = upload(gpu, dtype, lay(data.x * 0, rank), lay(data.w * 0, rank), lay(data.y * 0, rank))
    assert calls.forward(problem, x, w, b, out=to_y) is to_y
    assert calls.grad_input(problem, w, y, out=to_x) is to_x
    assert calls.grad_weight(problem, x, y, out=to_w) is to_w
    same(gpu, to_y, wanted.forward + per_channel(data.b, rank), dtype)
    same(gpu, to_x, wanted.grad_input, dtype)
    same(gpu, to_w, wanted.grad_weight, dtype)
    same(gpu, x, data.x, dtype)
    same(gpu, y, data.y, dtype)


@pytest.mark.parametrize('dtype', ['float32', 'float16', 'float64'])
def test_channels_last_is_read_where_it_lies(gpu, dtype, tiles_alone):
    """No operand is packed but the weight, and no result but the weight's is kept apart."""
    problem = P('tiles', (9, 10), (3, 3), (32, 64), padding=1)
    data = problem.integers()
    x, w, y = upload(gpu, dtype, last(data.x, 2), data.w, last(data.y, 2))
    for call in (lambda: calls.forward(problem, x, w), lambda: calls.grad_input(problem, w, y),
                 lambda: calls.grad_weight(problem, x, y)):
        if hasattr(gpu, 'device'):
            gpu.device.launched.clear()
        call()
        if hasattr(gpu, 'device'):
            assert 'pack' not in gpu.device.launched
    same(gpu, calls.forward(problem, x, w), maps(problem, *data[:3]).forward, dtype)


# cells of the transposed convolution that no tap meets: at the end, between taps, before the first one
LEAVING = [P('rest', (9, 7), (2, 2), (3, 5), stride=2), P('kernel 1', (9, 8), (1, 1), (5, 7), stride=2),
           P('gaps', (11, 13), (2, 3), (3, 5), stride=(4, 5)),
           P('rest padded', (10, 9), (3, 3), (3, 5), stride=4, padding=1),
           P('crop', (9, 8), (2, 2), (3, 5), stride=2, padding=((-1, 0), (0, -2)))]


@pytest.mark.parametrize('dtype', ['float32', 'float16'])
@pytest.mark.parametrize('problem', LEAVING, ids=str)
@pytest.mark.parametrize('spoil', [None, np.nan, np.inf])
def test_a_bias_is_added_once_where_no_tap_meets_a_cell(gpu, problem, spoil, dtype, tiles_alone):
    """To what the target holds, also by the direct kernels that begin where a weight is not finite."""
    data = problem.integers()
    w, bias = data.w.copy(), np.arange(1.0, problem.channels[0] + 1)
    if spoil is not None:
        w[0, 0] = spoil
    alone = calls.transposed(problem, data.y, w)
    out = gpu.upload(np.full(alone.shape, 3.0), dtype)
    calls.transposed(problem, *upload(gpu, dtype, data.y, w, bias), out=out, accumulate=True)
    same(gpu, out, alone + per_channel(bias, problem.rank) + 3, dtype)


@pytest.mark.parametrize('problem', [*LEAVING, P('words', (8, 8), (1, 1), (4, 8), stride=2)], ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'float16', 'float64'])
@pytest.mark.parametrize('part', ['whole', 'samples', 'channels', 'second element'])
def test_cells_that_no_tap_meets_are_filled_at_once(gpu, problem, part, dtype, tiles_alone):
    """One launch for all phases without a tap; in words of 16 bytes, but of the target's own cells alone."""
    if not hasattr(gpu, 'device'):
        pytest.skip('the emulated device lists what is launched')
    data = problem.integers()
    w, y = upload(gpu, dtype, data.w, data.y)
    n, channels, *size = data.x.shape
    shape, place = {
        'whole': ((n, channels, *size), ...), 'samples': ((n + 2, channels, *size), slice(1, -1)),
        'channels': ((n, 2 * channels, *size), (slice(None), slice(None, None, 2))),
        'second element': ((data.x.size + 1,), slice(1, None))}[part]
    wanted = np.full(shape, 7.0)
    [whole] = upload(gpu, dtype, wanted)
    out = whole.view(lambda array: array[place].reshape(data.x.shape) if part == 'second element' else array[place])
    gpu.device.launched.clear()
    calls.grad_input(problem, w, y, out=out)
    assert gpu.device.launched.count('fill') == 1
    wanted[place] = maps(problem, *data[:3]).grad_input.reshape(wanted[place].shape)
    same(gpu, whole, wanted, dtype)


def test_zeros_are_filled_wherever_the_target_begins(gpu, tiles_alone):
    """Words of 16 bytes only from one on, in calls that differ in nothing else; of volumes too, one call's targets."""
    if not hasattr(gpu, 'device'):
        pytest.skip('only emulated memory lies at an address of choice')
    y, w, nothing, of_nothing = (gpu.upload(np.ones(shape), 'float32') for shape in (
        (2, 3, 4, 4), (3, 4, 1, 1), (2, 0, 8, 8), (4, 0, 1, 1)))
    zeros, sums = np.zeros((2, 2, 4, 8, 8))
    sums[..., ::2, ::2] = 3
    for wanted, function in ((sums, lambda out: pyconv.conv2d_input(out.shape, w, y, stride=2, out=out)),
                             (zeros, lambda out: pyconv.conv2d(nothing, of_nothing, out=out))):
        for first in (0, 1, 0):
            line = gpu.upload(np.full(520, 7.0), 'float32')
            function(line.view(lambda memory, first=first: memory[first:first + 512].reshape(2, 4, 8, 8)))
            same(gpu, line, np.pad(wanted.ravel(), (first, 8 - first), constant_values=7), 'float32')
    line = gpu.upload(np.full((2, 65), 7.0), 'float32')
    out = line.view(lambda memory: memory[:, :64].reshape(1, 1, 2, 4, 4, 4))
    y, x, w = (gpu.upload(np.ones(shape), 'float32') for shape in ((1, 1, 2, 2, 2, 2), out.shape, (1,) * 6))
    settings = (1, 2, 2, 2), 0, 1, False, 0, 1
    pyconv.convolution_backward(y, x, w, *settings, (True, False, False), out=(out, None, None))
    wanted = np.zeros((2, 4, 4, 4))
    wanted[:, ::2, ::2, ::2] = 1
    same(gpu, line, np.pad(wanted.reshape(2, 64), ((0, 0), (0, 1)), constant_values=7), 'float32')


def test_a_padded_call_is_four_launches(gpu, tiles_alone):
    """The flag that the weight's values set is cleared on the way."""
    if not hasattr(gpu, 'device'):
        pytest.skip('the emulated device lists what is launched')
    problem = P('padded', (9, 10), (3, 3), (32, 64), padding=1)
    x, w, y = upload(gpu, 'float32', *problem.integers()[:3])
    for call, names in ((lambda: calls.forward(problem, x, w), ['pack', 'pack_weight', 'gather', 'direct']),
                        (lambda: calls.grad_input(problem, w, y), ['pack', 'pack_weight', 'gather', 'direct']),
                        (lambda: calls.grad_weight(problem, x, y),
                         ['pack', 'pack', 'correlate', 'finish', 'direct_weight', 'finish'])):
        gpu.device.launched.clear()
        call()
        assert gpu.device.launched == names


@pytest.mark.parametrize('first', [1, 4, 8])
@pytest.mark.parametrize('dtype', ['float32', 'float16', 'float64'])
def test_channels_last_from_an_odd_place_on(gpu, dtype, first, tiles_alone):
    """Some of more channels: strides of whole chunks from a first element that is none's first, in and out."""
    problem = P('odd place', (7, 6), (3, 3), (16, 24), padding=1)
    data = problem.integers(low=-2, high=2)

    def some(array):
        channels = array.shape[1]
        wide = np.full((array.shape[0], *array.shape[2:], 48), np.nan)
        wide[..., first:first + channels] = np.moveaxis(array, 1, -1)
        wide = gpu.upload(wide, dtype)
        if hasattr(gpu, 'device'):
            return wide.view(lambda x: np.moveaxis(x[..., first:first + channels], -1, 1))
        return wide[..., first:first + channels].movedim(-1, 1)

    wanted = maps(problem, *data[:3])
    x, [w], y = some(data.x), upload(gpu, dtype, data.w), some(data.y)
    same(gpu, calls.forward(problem, x, w, out=some(data.y * 0)), wanted.forward, dtype)
    same(gpu, calls.grad_input(problem, w, y, out=some(data.x * 0)), wanted.grad_input, dtype)
    same(gpu, calls.grad_weight(problem, x, y), wanted.grad_weight, dtype)


def test_one_plan_serves_layouts_and_addresses_in_turn(gpu, tiles_alone):
    """Results are stored in the layout of each, and only what lies at whole chunks is read where it is."""
    if not hasattr(gpu, 'device'):
        pytest.skip('only emulated memory lies at an address of choice')
    problem = P('in turn', (3, 4), (3, 3), (8, 8), padding=1, batch=1)
    data, dtype = problem.integers(low=-2, high=2), 'float32'
    wanted = maps(problem, *data[:3])
    x, w = upload(gpu, dtype, data.x, data.w)
    for to in (data.y * 0, last(data.y * 0, 2)):
        same(gpu, calls.forward(problem, x, w, out=gpu.upload(to, dtype)), wanted.forward, dtype)
    for every in (1, 2):
        b = gpu.upload(np.repeat(data.b, every)[::every], dtype)
        same(gpu, calls.forward(problem, x, w, b), wanted.forward + per_channel(data.b, 2), dtype)

    def from_element(array, first):
        line = gpu.upload(np.zeros(array.size + first), dtype)
        shape = np.moveaxis(array, 1, -1).shape
        found = line.view(lambda memory: np.moveaxis(memory[first:].reshape(shape), -1, 1))
        found.stored()[...] = array
        return found

    aligned = from_element(data.x, 0)
    for first in (0, 1):  # elements of 4 bytes, chunks of 16
        same(gpu, calls.forward(problem, from_element(data.x, first), w), wanted.forward, dtype)
        same(gpu, calls.grad_weight(problem, aligned, from_element(data.y, first)), wanted.grad_weight, dtype)


@few
def test_unbatched_and_broadcast(gpu, problem):
    problem = less(gpu, problem)
    data, wanted = problem.integers(), expected(problem.name)
    x, w, y = upload(gpu, 'float32', data.x[-1], data.w, data.y[-1])
    same(gpu, calls.forward(problem, x, w), wanted.forward[-1], 'float32')
    same(gpu, calls.grad_input(problem, w, y), wanted.grad_input[-1], 'float32')
    alone = reference.grad_weight(data.x[-1:], data.y[-1:], problem.kernel, **problem.form)
    same(gpu, calls.grad_weight(problem, x, y), alone, 'float32')
    if hasattr(gpu, 'device'):  # torch's expand gives the same strides of 0
        spread = gpu.upload(data.x[:1], 'float32').view(lambda x: np.broadcast_to(x, problem.input_shape))
        same(gpu, calls.forward(problem, spread, w), np.repeat(wanted_of(problem, data), problem.batch, 0), 'float32')


def wanted_of(problem, data):
    return reference.forward(data.x[:1], data.w, problem.positions, **problem.form)


# --- accumulation ---

@few
@in_tiles
@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_accumulate(gpu, problem, dtype, direct_rate, monkeypatch):
    """Every map adds its result and its bias to what out holds, once."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', direct_rate)
    problem = less(gpu, problem)
    data, wanted, rank = problem.integers(), expected(problem.name), problem.rank
    x, w, y, b, c = upload(gpu, dtype, *data)
    public = {name: value for name, value in problem.keywords.items() if name != 'groups'}
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    columns = reference.unfold(data.x, problem.kernel, problem.positions, **form)
    folded = reference.fold(columns, problem.size, problem.kernel, problem.positions, **form)
    [columns] = upload(gpu, dtype, columns)
    for call, exact in (
            (lambda **more: calls.forward(problem, x, w, b, **more), wanted.forward + per_channel(data.b, rank)),
            (lambda **more: calls.transposed(problem, y, w, c, **more), wanted.grad_input + per_channel(data.c, rank)),
            (lambda **more: calls.grad_weight(problem, x, y, **more), wanted.grad_weight),
            (lambda **more: pyconv.conv_bias(y, **more), reference.channel_sum(data.y)),
            (lambda **more: pyconv.fold(columns, problem.size, problem.kernel, **public, **more), folded)):
        before = np.random.default_rng(0).integers(-9, 10, exact.shape)
        [out] = upload(gpu, dtype, before)
        assert call(out=out, accumulate=True) is out
        same(gpu, out, before + exact, dtype)


# --- the other functions ---

@pytest.mark.parametrize('problem', VARIED[::2], ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'float64', 'bfloat16'])
def test_transposed_columns_and_bias(gpu, problem, dtype):
    problem = less(gpu, problem)
    data, wanted, rank = problem.integers(low=-2, high=2), expected_small(problem), problem.rank
    x, w, y, c = upload(gpu, dtype, data.x, data.w, data.y, data.c)
    same(gpu, calls.transposed(problem, y, w, c), wanted.grad_input + per_channel(data.c, rank), dtype)
    same(gpu, pyconv.conv_bias(y), reference.channel_sum(data.y), dtype)
    public = {name: value for name, value in problem.keywords.items() if name != 'groups'}
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    columns = pyconv.unfold(x, problem.kernel, **public)
    exact = reference.unfold(data.x, problem.kernel, problem.positions, **form)
    same(gpu, columns, exact, dtype)
    same(gpu, pyconv.fold(columns, problem.size, problem.kernel, **public),
         reference.fold(exact, problem.size, problem.kernel, problem.positions, **form), dtype)
    same(gpu, calls.grad_weight(problem, None, y, finput=columns), wanted.grad_weight, dtype)


def expected_small(problem):
    return maps(problem, *problem.integers(low=-2, high=2)[:3])


@few
@in_tiles
def test_backward_double_backward_and_direction(gpu, problem, direct_rate, monkeypatch):
    """Several terms into one array: accumulation, against the same functions on the CPU."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', direct_rate)
    problem = less(gpu, problem)
    data, settings = problem.integers(), (problem.stride, problem.pads, problem.dilation)
    host = [part.astype(np.float64) for part in data]
    x, w, y, b = upload(gpu, 'float64', *host[:4])
    rest = False, 0, problem.groups, (True, True, True)
    for found, wanted in ((pyconv.convolution_backward(y, x, w, *settings, *rest),
                           pyconv.convolution_backward(host[2], host[0], host[1], *settings, *rest)),
                          (pyconv.convolution_double_backward(x, w, b, y, w, x, *settings, *rest),
                           pyconv.convolution_double_backward(host[0], host[1], host[3], host[2], host[1], host[0],
                                                              *settings, *rest))):
        for one, exact in zip(found, wanted, strict=True):
            same(gpu, one, exact, 'float64')
    keywords = problem.keywords
    same(gpu, pyconv.conv_jvp(x, w, x, w, b, **keywords),
         pyconv.conv_jvp(host[0], host[1], host[0], host[1], host[3], **keywords), 'float64')


@few
def test_empty_batch(gpu, problem):
    data = problem.integers()
    x, w, y, b = upload(gpu, 'float32', data.x[:0], data.w, data.y[:0], data.b)
    same(gpu, calls.forward(problem, x, w, b), data.y[:0], 'float32')
    same(gpu, calls.grad_input(problem, w, y), data.x[:0], 'float32')
    same(gpu, calls.grad_weight(problem, x, y), data.w * 0, 'float32')


def test_nothing_but_the_bias(gpu):
    x, w, b = upload(gpu, 'float32', np.ones((2, 0, 5, 6)), np.ones((3, 0, 3, 3)), np.arange(3.0))
    same(gpu, pyconv.conv2d(x, w, b), np.broadcast_to(np.arange(3.0)[:, None, None], (2, 3, 3, 4)), 'float32')
    same(gpu, pyconv.conv2d(x, w), np.zeros((2, 3, 3, 4)), 'float32')


@pytest.mark.parametrize('channels', [1, 3])
def test_a_bias_that_is_broadcast(gpu, channels):
    """Its stride is 0: of one value for all channels, alone and added to a sum."""
    one = gpu.upload(np.array([5.0]), 'float32')
    b = one.view(lambda a: np.broadcast_to(a, channels)) if hasattr(gpu, 'device') else one.expand(channels)
    for ins in (0, 2):
        x, w = upload(gpu, 'float32', np.ones((2, ins, 5, 6)), np.ones((channels, ins, 3, 3)))
        same(gpu, pyconv.conv2d(x, w, b), np.full((2, channels, 3, 4), 9.0 * ins + 5), 'float32')


# --- NaN and infinity ---

@pytest.mark.sparse
@pytest.mark.parametrize('problem', FEW[::2], ids=str)
@pytest.mark.parametrize('way', DISTINCT)
def test_not_finite(gpu, problem, way, tiles_alone):
    """Exactly where the definition puts them, in every operand in turn; the rest are the same integers."""
    dtype, keywords = WAYS[way]
    problem = less(gpu, problem)
    data = without_zeros(problem.integers(low=-2, high=2))
    for part, values in zip('xwy', ((np.inf, -np.inf, np.nan), (np.inf, np.nan), (-np.inf, np.nan))):
        parts = {name: getattr(data, name) for name in 'xwy'}
        parts[part] = spoiled(parts[part], values, 1, corners=part == 'w')
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, *parts.values())
        x, w, y = upload(gpu, dtype, *parts.values())
        if part in 'xw':
            same(gpu, calls.forward(problem, x, w, **keywords), wanted.forward, dtype)
        if part in 'wy':
            same(gpu, calls.grad_input(problem, w, y, **keywords), wanted.grad_input, dtype)
        if part in 'xy':
            same(gpu, calls.grad_weight(problem, x, y, **keywords), wanted.grad_weight, dtype)


@pytest.mark.parametrize('order', [lambda array, rank: array, last], ids=['first', 'last'])
def test_a_nan_is_seen_in_every_channel(gpu, order, tiles_alone):
    """A thread looks at every eighth channel of a block of 32: in grad_output beside padding, and in the weight."""
    problem = P('channels', (3, 3), (3, 3), (8, 36), padding=1, batch=1)
    data = without_zeros(problem.integers(low=-2, high=2))
    x, w = upload(gpu, 'float32', order(data.x, 2), data.w)
    for channel in (0, 8, 16, 24, 31, 32, 35):
        y, kernel = data.y.copy(), data.w.copy()
        y[0, channel, 0, 0] = kernel[channel, 7, 0, 0] = np.nan
        same(gpu, calls.grad_weight(problem, x, *upload(gpu, 'float32', order(y, 2))),
             maps(problem, data.x, data.w, y).grad_weight, 'float32')
        same(gpu, calls.forward(problem, x, *upload(gpu, 'float32', kernel)),
             maps(problem, data.x, kernel, data.y).forward, 'float32')


@pytest.mark.parametrize('way', ['float32', 'tf32x3'])
def test_a_spoiled_weight_is_so_for_every_run_of_samples(gpu, way, tiles_alone):
    """With the least scratch the samples come one by one, and only the first run looks at the weight."""
    dtype, keywords = WAYS[way]
    problem = P('one by one', (3, 4), (3, 3), (4, 8), padding=1, batch=3)
    data = without_zeros(problem.integers(low=-2, high=2))
    data.w[0, 0, 0, 0] = np.nan
    x, w, y = upload(gpu, dtype, *data[:3])
    wants = pyconv.workspace(
        problem.input_shape, problem.weight_shape, **problem.keywords, device='cuda', **keywords)
    wanted = maps(problem, *data[:3])
    same(gpu, calls.forward(problem, x, w, finput=gpu.empty((wants.finput_minimum,), dtype), **keywords),
         wanted.forward, dtype)
    same(gpu, calls.grad_input(problem, w, y, fgrad_input=gpu.empty((wants.fgrad_input_minimum,), dtype), **keywords),
         wanted.grad_input, dtype)


@pytest.mark.parametrize('way', WAYS)
def test_denormals_are_kept(gpu, way, tiles_alone):
    dtype, keywords = WAYS[way]
    if 'tf32' in way:
        pytest.skip('TF32 reads 10 bits of a denormal')
    problem = BY_NAME['2d channels 33 33']
    data = problem.integers()
    tiny = {'float16': 2.0**-24, 'bfloat16': 2.0**-133, 'float32': 2.0**-149, 'float64': 2.0**-1074}[dtype] * 64
    wanted = maps(problem, *data[:3])
    x, w, y = upload(gpu, dtype, data.x * tiny, data.w, data.y)
    same(gpu, calls.forward(problem, x, w, **keywords), wanted.forward * tiny, dtype)
    same(gpu, calls.grad_weight(problem, x, y, **keywords), wanted.grad_weight * tiny, dtype)


# --- the same bits ---

def bits(gpu, array):
    return gpu.download(array).tobytes()


# Few positions under a reduction long enough to be cut; emulated, a shorter one is.
DEEP = P('deep', (4, 4), (3, 3), (256, 16), padding=1)


@pytest.mark.sparse
@pytest.mark.parametrize('problem', [*FEW[1::2], DEEP], ids=str)
@pytest.mark.parametrize('way', DISTINCT)
def test_bits_of_a_sample_know_neither_batch_nor_buffer(gpu, problem, way, tiles_alone, monkeypatch):
    dtype, keywords = WAYS[way]
    if problem is DEEP and isinstance(gpu, Emulated):
        problem = DEEP._replace(channels=(40, 16))
        monkeypatch.setattr(tiles, 'parts_of_gather', lambda positions, stages: 2 if stages > 4 else 1)
    problem = problem._replace(batch=3)
    data = problem.floats()
    x, w, y = upload(gpu, dtype, *data[:3])
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype, device='cuda',
                             **keywords)
    forward, grad_input = calls.forward(problem, x, w, **keywords), calls.grad_input(problem, w, y, **keywords)
    grad_weight = calls.grad_weight(problem, x, y, **keywords)
    for finput, fgrad_input in ((wants.finput_minimum, wants.fgrad_input_minimum),
                                (wants.finput_minimum * 2, wants.fgrad_input_minimum * 2)):
        finput, fgrad_input = ({name: gpu.empty((size,), dtype)} for name, size in
                               (('finput', finput), ('fgrad_input', fgrad_input)))
        assert bits(gpu, calls.forward(problem, x, w, **finput, **keywords)) == bits(gpu, forward)
        assert bits(gpu, calls.grad_input(problem, w, y, **fgrad_input, **keywords)) == bits(gpu, grad_input)
        assert bits(gpu, calls.grad_weight(problem, x, y, **finput, **keywords)) == bits(gpu, grad_weight)
    alone = upload(gpu, dtype, data.x[2:3], data.y[2:3])
    assert bits(gpu, calls.forward(problem, alone[0], w, **keywords)) == gpu.download(forward)[2].tobytes()
    assert bits(gpu, calls.grad_input(problem, w, alone[1], **keywords)) == gpu.download(grad_input)[2].tobytes()


def test_the_least_scratch_takes_samples_one_by_one(gpu, tiles_alone):
    """So that it does not grow with the batch; and the most does no more than the batch wants."""
    problem = P('batch', (9, 10), (3, 3), (12, 20), padding=1)
    sizes = [pyconv.workspace((batch, *problem.input_shape[1:]), problem.weight_shape, padding=1, device='cuda')
             for batch in (1, 8, 64)]
    assert sizes[0].finput_minimum >= sizes[0].finput * 0.99
    assert sizes[1].fgrad_input_minimum == sizes[2].fgrad_input_minimum
    assert sizes[2].finput > 7 * sizes[1].finput_minimum


def test_a_plan_is_made_once(gpu):
    problem = BY_NAME['2d']
    x, w = upload(gpu, 'float32', *problem.integers()[:2])
    for _ in range(2):
        before = _cuda.plan.cache_info().misses
        calls.forward(problem, x, w)
    assert _cuda.plan.cache_info().misses == before


def test_offsets_beyond_32_bits(gpu, tiles_alone):
    """Samples that lie 3 * 2**31 bytes apart in one array: a view of strides, so that nothing is that large."""
    if not hasattr(gpu, 'device'):
        pytest.skip('the emulated memory is virtual; the real test is one of its own')
    problem, far = P('far', (6, 7), (3, 3), (8, 8), padding=1), 3 << 31
    data, memory = problem.integers(), gpu.memory
    start = memory.allocate(far + (1 << 20), poison=False)
    x = type(gpu.upload(data.x, 'float32'))(
        memory, start, data.x.shape, (far // 4, *(step // 4 for step in data.x.astype('f4').strides[1:])), 'float32')
    x.stored()[...] = data.x
    w, y = upload(gpu, 'float32', data.w, data.y)
    wanted = expected_of(problem, data)
    same(gpu, calls.forward(problem, x, w), wanted.forward, 'float32')
    same(gpu, calls.grad_weight(problem, x, y), wanted.grad_weight, 'float32')
    calls.grad_input(problem, w, y, out=x)
    same(gpu, x, wanted.grad_input, 'float32')


def expected_of(problem, data):
    return maps(problem, *data[:3])


def far_apart(memory, array, axis):
    """An array whose neighbours along one axis lie 3 * 2**31 bytes apart; those along the others are dense, channels
    last. Nothing else is stored between them."""
    order = sorted(set(range(array.ndim)) - {axis, 1}) + [1] * (axis != 1)
    strides, step = [0] * array.ndim, 1
    for place in reversed(order):
        strides[place], step = step, step * array.shape[place]
    strides[axis] = FAR // 4
    start = memory.allocate(FAR * (array.shape[axis] - 1) + 4 * step, poison=False)
    found = EmulatedArray(memory, start, array.shape, strides, 'float32')
    found.stored()[...] = array
    return found.owning(start)


def maps_far_apart(gpu, problem, role, axis):
    """(operand of the result, the call, its out, what is expected) of each map, x, w or y being far apart."""
    data = problem.integers()
    wanted = expected_of(problem, data)

    def placed(name, array):
        return far_apart(gpu.memory, array, axis) if name == role else gpu.upload(array, 'float32')

    x, w, y = (placed(name, getattr(data, name)) for name in 'xwy')
    for call, operands, name, exact in ((calls.forward, (x, w), 'y', wanted.forward),
                                        (calls.grad_input, (w, y), 'x', wanted.grad_input),
                                        (calls.grad_weight, (x, y), 'w', wanted.grad_weight)):
        out = placed(name, np.full(exact.shape, np.nan))
        yield name, partial(call, problem, *operands, out=out), out, exact


FAR = 3 << 31


@pytest.mark.parametrize('axis', range(4))
@pytest.mark.parametrize('role', 'xwy')
@in_tiles
def test_every_stride_is_64_bits_wide(monkeypatch, role, axis, direct_rate):
    """Of each operand and result along each axis in turn."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 1e9 * direct_rate)
    gpu, problem = Emulated(monkeypatch), P('far', (4, 5), (3, 3), (4, 4), padding=1)
    for _, compute, out, exact in maps_far_apart(gpu, problem, role, axis):
        assert compute() is out
        same(gpu, out, exact, 'float32')


@in_tiles
def test_parts_lie_64_bits_apart(monkeypatch, direct_rate):
    """Of a result that is summed in parts: the same sums where a part begins 3 * 2**31 bytes behind the other."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', direct_rate)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 2)
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: 3)
    monkeypatch.setattr(tiles, 'NOMINAL_BLOCKS', 4 * 8 * 12 * 9)
    gpu, problem, real = Emulated(monkeypatch), P('far', (9, 11), (3, 3), (8, 12), padding=1, batch=3), Program.add

    def spread(self, kernel, grid, /, **values):
        values |= {name: FAR for name in ('target_part', 'partial_part') if name in values}
        real(self, kernel, grid, **values)

    monkeypatch.setattr(Program, 'add', spread)
    start = gpu.memory.allocate(6 * FAR, poison=False)
    scratch = EmulatedArray(gpu.memory, start, (6 * FAR // 4,), (1,), 'float32')
    data, wanted = problem.integers(), expected_of(problem, problem.integers())
    x, w, y = upload(gpu, 'float32', *data[:3])
    same(gpu, calls.forward(problem, x, w, finput=scratch), wanted.forward, 'float32')
    same(gpu, calls.grad_input(problem, w, y, fgrad_input=scratch), wanted.grad_input, 'float32')
    same(gpu, calls.grad_weight(problem, x, y, finput=scratch), wanted.grad_weight, 'float32')
    assert gpu.device.launched.count('finish') == (1 if direct_rate else 4)


def test_a_packed_array_of_more_than_2_to_32_bytes(monkeypatch):
    """The last of its blocks alone: what is packed is made up of one element again and again."""
    gpu, noted, length = Emulated(monkeypatch), [], (1 << 26) + 16
    monkeypatch.setattr(gpu.device, 'run', lambda *launch: noted.append(launch))
    x, w = gpu.upload(np.array([[[3.0]]]), 'float16'), gpu.upload(np.ones((16, 64, 1)), 'float16')
    x = x.view(lambda x: np.broadcast_to(x, (1, 64, length)))
    scratch = gpu.memory.allocate(length * 64 * 2 + (1 << 20), poison=False)
    monkeypatch.setattr(EmulatedArray, 'empty', lambda memory, shape, dtype: EmulatedArray(
        memory, scratch, shape, [int(np.prod(shape[a + 1:])) for a in range(len(shape))], dtype))
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    pyconv.conv1d(x, w)
    [((source, threads, shared), grid, given)] = [one for one in noted if one[0].source.name == 'pack']
    arguments = given.given()
    assert grid == ((1 << 19) + 1, 1, 1)
    text = source.text.replace('block_x()', f'(block_x() + {1 << 19})')
    run(gpu.memory, text, source.name, arguments, (1, 1, 1), threads, shared)
    packed = arguments[list(source.arguments).index('packed')]
    found = gpu.memory.view(packed, (length, 64), np.float16)
    assert (found[-16:] == 3).all() and not found[:64].any() and not found[-64:-16].any()


def test_rounding_is_to_nearest_even(gpu):
    """Of float16 results, once, whatever the sum: 2049 is a tie between 2048 and 2050."""
    x, w = upload(gpu, 'float16', np.array([[[2048.0, 2048, 2050]]]), np.array([[[1.0]]]))
    b = gpu.upload(np.array([1.0]), 'float16')
    same(gpu, pyconv.conv1d(x, w, b), rounded([[[2048.0, 2048, 2052]]], 'float16'), 'float16')


@pytest.mark.parametrize(('capability', 'dtype', 'algorithm', 'allow_tf32', 'way'), [
    ((7, 5), 'float32', 'auto', True, 'fma'), ((7, 5), 'float64', 'auto', False, 'fma'),
    ((7, 5), 'float16', 'auto', False, 'fma'), ((8, 0), 'float64', 'auto', False, 'f64'),
    ((8, 6), 'float64', 'auto', False, 'fma'), ((12, 0), 'float64', 'gemm', False, 'fma'),
    ((9, 0), 'float32', 'auto', False, 'fma'), ((9, 0), 'float32', 'auto', True, 'tf32'),
    ((9, 0), 'float32', 'tf32x3', False, 'tf32x3'), ((9, 0), 'float32', 'gemm', False, 'fma'),
    ((8, 9), 'bfloat16', 'auto', True, 'bf16'), ((10, 0), 'float16', 'gemm', False, 'f16'),
    ((9, 0), 'float16', 'auto', False, 'f16'), ((9, 0), 'float16', 'wgmma', False, 'wgmma_f16'),
    ((9, 0), 'float32', 'wgmma', True, 'wgmma_tf32'),
])
def test_the_way_that_a_chip_multiplies(capability, dtype, algorithm, allow_tf32, way):
    assert tiles.way_of(tiles.ELEMENTS[dtype], algorithm, allow_tf32, capability) == way


@pytest.mark.parametrize(('capability', 'dtype'), [((7, 5), 'float32'), ((7, 5), 'float16'), ((8, 6), 'float16')])
def test_large_tiles_of_chips_that_hold_one(monkeypatch, tiles_alone, capability, dtype):
    """Shared memory, 64 and 99 KiB, holds one block where registers hold two."""
    gpu, problem = Emulated(monkeypatch, capability=capability), BY_NAME['2d channels 33 33']
    take_tile(monkeypatch, 0)
    data, wanted = problem.integers(low=-1, high=1), maps(problem, *problem.integers(low=-1, high=1)[:3])
    x, w, y = upload(gpu, dtype, *data[:3])
    same(gpu, calls.forward(problem, x, w), wanted.forward, dtype)
    same(gpu, calls.grad_weight(problem, x, y), wanted.grad_weight, dtype)
    assert {'gather', 'correlate'} <= set(gpu.device.launched)
