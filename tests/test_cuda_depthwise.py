"""Groups of one channel on the GPU: kernels whose taps are known when they are compiled, and what is left to others.

Emulated on any machine; with `-m gpu` on the real device what asks for no emulator.
"""
import re

import numpy as np
import pytest

import calls
import plan_runs
import pyconv
import reference
from emulator import KernelError
from gpus import DTYPES, Emulated
from problems import P, maps
from pyconv import _cuda
from pyconv._gpu import limits, tiles, walks
from pyconv._gpu import single as single_channels
from test_cuda import same
from test_cuda_defects import plant, without_each_barrier
from test_cuda_limits import Planned
from test_cuda_semantics import maps_far_apart

# Strips that are whole and strips that are not, along both axes; cells of taps on every side of the image, or none.
PROBLEMS = [
    P('3 by 3', (9, 11), (3, 3), (4, 4), groups=4, padding=1),
    P('whole strips', (14, 8), (3, 3), (17, 17), groups=17, padding=1),
    P('two rows of a channel', (16, 15), (3, 3), (3, 6), groups=3, padding=(1, 2)),
    P('stride 2', (16, 15), (3, 3), (3, 3), groups=3, padding=1, stride=2),
    P('stride 2, whole strips', (28, 16), (3, 3), (2, 2), groups=2, padding=1, stride=2),
    P('stride 2, uneven pads', (15, 18), (5, 5), (3, 3), groups=3, padding=((2, 1), (3, -1)), stride=2),
    P('stride 2, padding of its other phase', (16, 13), (5, 5), (3, 3), groups=3, padding=((1, 2), (4, 1)), stride=2),
    P('dilation 2', (17, 19), (3, 3), (2, 2), groups=2, padding=2, dilation=2),
    P('dilations above the positions', (17, 19), (5, 5), (2, 2), groups=2, padding=((-1, 2), (3, 3)), dilation=(4, 2)),
    P('stride and dilation 2', (17, 19), (3, 3), (2, 2), groups=2, padding=2, dilation=2, stride=2),
    P('stride 2 of dilation 4', (19, 18), (3, 3), (2, 2), groups=2, padding=3, dilation=4, stride=2),
    P('5 by 5', (11, 17), (5, 5), (3, 3), groups=3, padding=2),
    P('7 by 7', (17, 19), (7, 7), (2, 2), groups=2, padding=3),
    P('7 by 7, stride 2', (17, 20), (7, 7), (2, 2), groups=2, padding=3, stride=2),
    P('cropped', (17, 20), (3, 3), (2, 2), groups=2, padding=((-2, -1), (-1, 3)), stride=2),
    P('cropped, stride 1', (17, 20), (3, 3), (2, 2), groups=2, padding=((-3, 2), (1, -4))),
    P('one position', (5, 5), (5, 5), (2, 2), groups=2),
    P('beside the image', (4, 3), (3, 3), (2, 2), groups=2, padding=9),
    P('one channel', (9, 10), (3, 3), (1, 1), padding=1),
    P('an axis unlike the other', (30, 23), (3, 3), (2, 2), groups=2, padding=3, stride=(1, 2), dilation=(3, 4)),
    P('more sums than threads', (8, 7), (7, 7), (9, 9), groups=9, padding=3, batch=1),
]
INTO_ONE = [  # whose input gradients have several rows of a group
    P('three channels into one', (9, 10), (3, 3), (3, 1), padding=1),
    P('two channels into one of each group', (9, 10), (3, 3), (8, 4), groups=4, padding=1),
    P('three channels into one, stride 2', (16, 15), (3, 3), (6, 2), groups=2, padding=1, stride=2),
    P('four channels into one, 5 by 5', (11, 17), (5, 5), (4, 1), padding=2),
]
FEW = [PROBLEMS[place] for place in (1, 4, 6, 12)]
# grad_input sums over the rows of a channel; a stride has its own kernel for dilation 1
WHOLE = [problem for problem in PROBLEMS if problem.channels[0] == problem.channels[1] and (
    problem.stride == 1 or problem.dilation == 1)]
# Whose channels lie side by side, four or two for a thread: also where they fill no block, or two sectors of 32 bytes.
SIDE = [
    P('20 side by side', (9, 11), (3, 3), (20, 20), groups=20, padding=1),
    P('64 side by side', (7, 12), (3, 3), (64, 64), groups=64, padding=(1, 0)),
    P('12 side by side, stride 2', (15, 18), (3, 3), (12, 12), groups=12, padding=((1, 2), (0, 1)), stride=2),
    P('8 side by side, stride and dilation 2', (17, 19), (3, 3), (8, 8), groups=8, padding=2, dilation=2, stride=2),
    P('6 side by side, 5 by 5', (11, 17), (5, 5), (6, 6), groups=6, padding=2),
    P('6 side by side, 5 by 5, stride 2', (12, 17), (5, 5), (6, 6), groups=6, padding=2, stride=2),
]
SIDES = {'float16': (4, 2), 'bfloat16': (4, 2), 'float32': (2, 1), 'float64': (1, 1)}  # of 3 x 3 taps, of 5 x 5
ORDERS = {'first': lambda array: array, 'last': lambda array: calls.last(array, array.ndim - 2)}
every_order = pytest.mark.parametrize('order', ORDERS)


def alone(monkeypatch, turned=False):
    """A GPU that has none of these kernels."""
    monkeypatch.setattr(single_channels, 'STRIPS', {})
    return Emulated(monkeypatch)


def uploaded(gpu, arrays, dtype, order='first'):
    return [gpu.upload(ORDERS[order](array), dtype) for array in arrays]


def launched(gpu, call):
    """What a call gives, and the kernels that it launches where they are emulated."""
    if isinstance(gpu, Emulated):
        gpu.device.launched.clear()
    found = call()
    return found, list(gpu.device.launched) if isinstance(gpu, Emulated) else None


def check(gpu, problem, dtype, order):
    """The three maps, each by its kernel."""
    data = problem.integers()
    wanted = maps(problem, *data[:3])
    x, w, y = uploaded(gpu, data[:3], dtype, order)
    b = gpu.upload(data.b, dtype)
    forward, grad_input, grad_weight = (launched(gpu, call) for call in (
        lambda: calls.forward(problem, x, w, b), lambda: calls.grad_input(problem, w, y),
        lambda: calls.grad_weight(problem, x, y)))
    assert forward[1] in (None, ['depthwise']) and grad_weight[1] in (None, ['depthwise_weight', 'finish'])
    assert grad_input[1] in (None, ['depthwise']) or problem not in WHOLE
    same(gpu, forward[0], wanted.forward + calls.per_channel(data.b, problem.rank), dtype)
    same(gpu, grad_input[0], wanted.grad_input, dtype)
    same(gpu, grad_weight[0], wanted.grad_weight, dtype)


@every_order
@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
def test_every_problem(gpu, problem, order):
    check(gpu, problem, 'float32', order)


@pytest.mark.sparse
@every_order
@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('dtype', [dtype for dtype in DTYPES if dtype != 'float32'])
def test_every_type(gpu, problem, dtype, order):
    check(gpu, problem, dtype, order)


@pytest.mark.parametrize('turned', [False, True])
@every_order
@pytest.mark.parametrize('problem', INTO_ONE, ids=str)
def test_several_rows_of_a_group(gpu, problem, order, turned):
    """Also where the weight lies so that rows of all groups are not evenly far apart."""
    _, w, y, *_ = data = problem.integers()
    wanted = maps(problem, *data[:3]).grad_input
    w, y = uploaded(gpu, (w, y), 'float32', order)
    if turned:
        w = gpu.upload(np.ascontiguousarray(data.w.transpose(1, 3, 0, 2)).transpose(2, 0, 3, 1), 'float32')
    found, names = launched(gpu, lambda: calls.grad_input(problem, w, y))
    assert names in (None, ['depthwise'])
    same(gpu, found, wanted, 'float32')


@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'float16'])
def test_added_to_what_is_there_and_in_mixed_orders(gpu, problem, dtype):
    """Each operand, and `out`, in an order of its own, some backwards or with gaps."""
    data = problem.integers()
    wanted = maps(problem, *data[:3])
    x, w, y = (gpu.upload(array, dtype) for array in (
        ORDERS['last'](data.x), np.ascontiguousarray(data.w[..., ::-1])[..., ::-1],
        np.repeat(data.y, 2, -1)[..., ::2]))
    for call, given, result in ((calls.forward, (x, w), wanted.forward), (calls.grad_input, (w, y), wanted.grad_input),
                                (calls.grad_weight, (x, y), wanted.grad_weight)):
        for order in ORDERS.values():
            out = gpu.upload(order(np.full(result.shape, 3)), dtype)
            assert call(problem, *given, out=out, accumulate=True) is out
            same(gpu, out, result + 3, dtype)


def of_all(gpu, problem, arrays, order='first', **more):
    x, w, y = uploaded(gpu, arrays, 'float32', order)
    return [gpu.download(one) for one in calls.three_maps(problem, x, w, y, **more)]


@every_order
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_the_bits_of_the_direct_kernels(monkeypatch, problem, order):
    """Of floats with denormals and zeros of both signs; where operands are not finite, NaN where NaN, and of a
    weight's gradient, which is summed in another order, what is not finite and what is."""
    rng = np.random.default_rng(5)
    data = [array * 2.0**rng.integers(-80, 3, array.shape) for array in problem.floats(np.float32)[:3]]
    found = of_all(Emulated(monkeypatch), problem, data, order)
    spoiled = [np.where(rng.random(array.shape) < 0.05, rng.choice([np.inf, -np.inf, np.nan], array.shape), array)
               for array in data]
    also = of_all(Emulated(monkeypatch), problem, spoiled, order)
    gpu = alone(monkeypatch)
    wanted, too = of_all(gpu, problem, data, order), of_all(gpu, problem, spoiled, order)
    assert 'depthwise' not in gpu.device.launched and 'direct' in gpu.device.launched
    for one, other in zip(found[:2], wanted[:2]):
        assert one.tobytes() == other.tobytes()
    for one, other in zip(also[:2], too[:2]):
        np.testing.assert_array_equal(one, other)
        assert not np.isfinite(one).all()
    for one, other in ((found[2], wanted[2]), (also[2], too[2])):
        np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
        # half a unit of the last place of float32, in each of the sum's terms, of either order
        scale = problem.terms[2] * 2**-23 * np.abs(data[0]).max() * np.abs(data[2]).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=scale)


@every_order
def test_bits_do_not_know_the_batch_nor_the_strips_of_a_thread(monkeypatch, order):
    """So large that a thread takes several strips; the same samples alone, where it takes one."""
    problem = P('strips one behind the other', (56, 56), (3, 3), (16, 16), groups=16, padding=1, batch=2)
    seen, real = [], walks._turns
    monkeypatch.setattr(walks, '_turns', lambda *given: seen.append(real(*given)) or seen[-1])
    monkeypatch.setattr(tiles, 'PACKING_BLOCKS', 1)
    gpu, data = Emulated(monkeypatch, races=False), problem.floats(np.float32)
    whole, again = (of_all(gpu, problem, data[:3], order) for _ in range(2))
    _cuda.forget()
    monkeypatch.setattr(tiles, 'PACKING_BLOCKS', 1056)
    one = problem._replace(batch=1)
    single = of_all(gpu, one, (data.x[1:], data.w, data.y[1:]), order)
    assert max(seen) == 8 and min(seen) == 1
    for place in range(3):
        assert whole[place].tobytes() == again[place].tobytes()
        assert place == 2 or whole[place][1:].tobytes() == single[place].tobytes()


def test_threads_that_share_a_column(monkeypatch):
    """Of 28 lines, or 28 of each residue, four strips for two threads."""
    monkeypatch.setattr(walks, '_turns', lambda *_: 2)
    gpu = Emulated(monkeypatch)
    for lines, dilation in ((28, 1), (56, 2)):
        check(gpu, P(f'{lines} lines', (lines, 5), (3, 3), (2, 2), groups=2, padding=dilation, dilation=dilation),
              'float32', 'first')


def test_more_samples_than_a_grid_has_blocks(monkeypatch):
    monkeypatch.setattr(limits, 'GRID', (2**31 - 1, 2, 2**16 - 1))
    problem = FEW[0]._replace(batch=5, name='five samples')
    gpu, data = Emulated(monkeypatch), problem.integers()
    x, w, y = uploaded(gpu, data[:3], 'float32')
    wanted = maps(problem, *data[:3])
    for found, kernels, result in (
            (*launched(gpu, lambda: calls.forward(problem, x, w)), wanted.forward),
            (*launched(gpu, lambda: calls.grad_input(problem, w, y)), wanted.grad_input)):
        assert kernels == ['depthwise'] * 3
        same(gpu, found, result, 'float32')


@every_order
@pytest.mark.parametrize('most', [1, 5, 64])
def test_parts_of_a_weight_s_gradient(monkeypatch, order, most):
    monkeypatch.setattr(single_channels, 'MOST_PARTS', most)
    for problem in FEW[:3]:
        larger = problem._replace(batch=9, name=f'{problem.name}, nine samples')
        gpu, data = Emulated(monkeypatch), larger.integers()
        x, _, y = uploaded(gpu, data[:3], 'float32', order)
        same(gpu, calls.grad_weight(larger, x, y), maps(larger, *data[:3]).grad_weight, 'float32')


@every_order
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_a_weight_s_gradient_of_each_sample(gpu, order, dtype):
    """Of the bits that it has alone; the emulator would see writes beyond the least scratch."""
    problem = P('in several parts', (20, 130), (3, 3), (2, 2), groups=2, padding=1, batch=3)
    data, g = problem.floats(), plan_runs.geometry_of(problem, per_sample=True)
    shape = (3, *problem.weight_shape)
    x, y = (ORDERS[order](array) for array in (data.x, data.y))
    found = gpu.download(plan_runs.run(gpu, 'grad_weight', g, x, y, shape, dtype))
    least = gpu.download(plan_runs.run(gpu, 'grad_weight', g, x, y, shape, dtype, least=True))
    assert found.tobytes() == least.tobytes()
    for sample in range(3):
        one = plan_runs.geometry_of(problem._replace(batch=1), per_sample=True)
        single = gpu.download(plan_runs.run(
            gpu, 'grad_weight', one, x[sample:sample + 1], y[sample:sample + 1], (1, *shape[1:]), dtype))
        assert single.tobytes() == found[sample].tobytes()


def test_the_least_scratch_of_each_sample_serves_either_order(gpu):
    """Of 64 channels that lie last a sample has two parts, where they lie first one."""
    problem = P('least', (14, 70), (3, 3), (64, 64), groups=64, padding=1, batch=2)
    data, g = problem.integers(), plan_runs.geometry_of(problem, per_sample=True)
    wanted = reference.grad_weight(data.x, data.y, problem.kernel, **problem.form, per_sample=True)
    for order in ORDERS.values():
        same(gpu, plan_runs.run(gpu, 'grad_weight', g, order(data.x), order(data.y), wanted.shape, 'float32',
                                least=True), wanted, 'float32')


def test_parts_are_of_one_size(monkeypatch):
    """A block has no more strips than others, but for what fills none."""
    for batch in (1, 64):
        found = Planned(monkeypatch)(
            'grad_weight', (batch, 8, 112, 112), (8, 1, 3, 3), 'float32', padding=1, groups=8)
        [(_, values, grid)] = [one for one in found if one[0] == 'depthwise_weight']
        assert values['positions'] == batch * 16 * 56
        assert values['positions'] <= values['part_positions'] * grid[1] < values['positions'] + 256 * grid[1]


def test_a_lent_buffer_serves_either_order(gpu):
    """Channels that lie last have more parts: what `workspace` names holds them too."""
    problem = P('lent', (40, 40), (3, 3), (16, 16), groups=16, padding=1, batch=5)
    data = problem.integers()
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, device='cuda')
    wanted = maps(problem, *data[:3]).grad_weight
    for order in ORDERS:
        for size in (wants.finput, wants.finput_minimum):
            x, _, y = uploaded(gpu, data[:3], 'float32', order)
            same(gpu, calls.grad_weight(problem, x, y, finput=gpu.empty((size,), 'float32')), wanted, 'float32')


@pytest.fixture
def sides(monkeypatch):
    """How many channels a thread has in each kernel of a weight's gradient that is planned, and whether it loads them
    at once; the last as it is launched."""
    found, real = [], single_channels.source

    def depthwise(kernel, *given, side=1, at_once=False, **more):
        if kernel == 'depthwise_weight':
            found.append((side, at_once))
        return real(kernel, *given, side=side, at_once=at_once, **more)
    monkeypatch.setattr(single_channels, 'source', depthwise)
    _cuda.forget()
    return found


@pytest.mark.sparse
@pytest.mark.parametrize('problem', SIDE, ids=str)
@pytest.mark.parametrize('dtype', DTYPES)
def test_channels_side_by_side(gpu, sides, problem, dtype):
    check(gpu, problem, dtype, 'last')
    strided = problem.kernel == (5, 5) and problem.stride == 2
    side = 1 if strided else SIDES[dtype][problem.kernel[0] > 3]
    assert sides[-1] == (side, side > 1)


@pytest.mark.parametrize('problem', SIDE[::2], ids=str)
@pytest.mark.parametrize('dtype', ['float16', 'float32'])
def test_padding_multiplies_nothing_side_by_side(gpu, problem, dtype):
    """NaN in the corners of one operand, which meets no other beside the image nor beyond the last strip."""
    data = [array.astype(np.float64) for array in problem.integers()[:3]]
    for place in (0, 2):
        x, w, y = (array.copy() for array in data)
        spoiled = (x, w, y)[place]
        spoiled[:, ::2, 0, 0] = spoiled[:, 1::3, -1, -1] = np.nan
        wanted = maps(problem, x, w, y).grad_weight
        assert 0 < np.isnan(wanted).sum() < wanted.size
        x, y = (gpu.upload(ORDERS['last'](array), dtype) for array in (x, y))
        same(gpu, calls.grad_weight(problem, x, y), wanted, dtype)


@pytest.mark.parametrize(('channels', 'view', 'side'), [
    (20, lambda a: a[:, :20], (4, True)), (18, lambda a: a[:, :18], (1, False)), (20, lambda a: a[:, 1:21], (4, False)),
    (20, lambda a: a[:, 19::-1], (4, False)), (20, lambda a: a[:, :20, :, ::-1], (4, True)),
    (20, lambda a: a[:, :40:2], (4, False))])
def test_what_lies_side_by_side(monkeypatch, sides, channels, view, side):
    """Loaded at once are neighbours, at multiples of their bytes; those of a thread are not more than there are."""
    problem = SIDE[0]._replace(channels=(channels, channels), groups=channels)
    gpu, data = Emulated(monkeypatch), problem.integers()
    x, y = (gpu.upload(ORDERS['last'](np.full((len(array), 40, *array.shape[2:]), 99)), 'float16').view(view)
            for array in (data.x, data.y))
    for array, values in ((x, data.x), (y, data.y)):
        array.stored()[...] = values
    same(gpu, calls.grad_weight(problem, x, y), maps(problem, *data[:3]).grad_weight, 'float16')
    assert sides[-1] == side


@pytest.mark.parametrize('steps', [66, 68])
def test_cells_at_multiples_of_what_is_loaded(monkeypatch, sides, steps):
    """64 channels of 66 or of 68: of the former every other cell of a line lies at half a load, and no line does."""
    gpu, problem, data = Emulated(monkeypatch), SIDE[1], SIDE[1].integers()
    x = gpu.upload(ORDERS['last'](np.full((len(data.x), steps, *data.x.shape[2:]), 99)), 'float16').view(
        lambda a: a[:, :64])
    x.stored()[...] = data.x
    y = gpu.upload(ORDERS['last'](data.y), 'float16')
    same(gpu, calls.grad_weight(problem, x, y), maps(problem, *data[:3]).grad_weight, 'float16')
    assert sides[-1] == (4, steps == 68)


@pytest.mark.parametrize('problem', [SIDE[0], SIDE[2]], ids=str)
def test_bits_do_not_know_where_channels_lie(monkeypatch, sides, problem):
    """Side by side at a multiple of what is loaded, one element off it, and each at twice the distance."""
    gpu, data, found = Emulated(monkeypatch), problem.floats(), []
    channels = problem.channels[0]
    for view in (lambda a: a[:, :channels], lambda a: a[:, 1:channels + 1], lambda a: a[:, :2 * channels:2]):
        x, y = (gpu.upload(ORDERS['last'](np.zeros((len(array), 40, *array.shape[2:]))), 'float32').view(view)
                for array in (data.x, data.y))
        for array, values in ((x, data.x), (y, data.y)):
            array.stored()[...] = values
        found.append(gpu.download(calls.grad_weight(problem, x, y)).tobytes())
    assert found[0] == found[1] == found[2]
    assert [at_once for _, at_once in sides[-3:]] == [True, False, False]


SIDE_DEFECTS = {
    'the channel beside is the first': (r'(number_in\d+_1 = found_in\d+)\[1\]', r'\1[0]'),
    'cells of the channel beside': (r'(cell_in\d+_1 = found_in\d+)\[1\]', r'\1[0]'),
    'threads of one channel': (r't \* 4 & ', 't & '),
    'no gaps between the sums of lanes': (r'(gaps_in\d+ = i32\().*', r'\g<1>0)'),
    'a half too many': (r'i32\(abreast\) <= 8\b', 'i32(abreast) <= 16'),
    'cells that are not there': (r'is_cell_in\d+ & is_result', 'is_result'),
    'results that are not there': (r'(is_product_in\d+ = is_cell_in\d+) & is_result_\d_\d', r'\1'),
}


@pytest.mark.parametrize('defect', SIDE_DEFECTS)
def test_defects_side_by_side(monkeypatch, defect):
    gpu = Emulated(monkeypatch)
    plant(gpu, 'depthwise_weight', lambda text: re.sub(*SIDE_DEFECTS[defect], text))
    with pytest.raises((KernelError, AssertionError)) as caught:
        test_padding_multiplies_nothing_side_by_side(gpu, SIDE[0], 'float16')
    assert 'nothing to change' not in str(caught.value)


@pytest.mark.parametrize(('channels', 'size', 'blocks', 'parts'), [
    (32, 112, 2, 128), (144, 56, 9, 28), (192, 28, 6, 38), (960, 7, 30, 8)])
def test_all_blocks_are_on_the_chip_at_once(monkeypatch, channels, size, blocks, parts):
    """Of MobileNet-v2's layers at batch 64, each of which takes as many strips as the others."""
    found = Planned(monkeypatch)('grad_weight', (64, channels, size, size), (channels, 1, 3, 3), is_last=True,
                                 padding=1, groups=channels)
    [(_, values, grid)] = [one for one in found if one[0] == 'depthwise_weight']
    assert grid[:2] == (blocks, parts) and values['shift'] == (values['abreast'] // 4).bit_length() - 1
    places = 256 >> values['shift']
    assert values['positions'] <= parts * values['rounds'] * places < values['positions'] + (parts + 1) * places


@pytest.mark.parametrize(('problem', 'dtype', 'mode', 'maps_of'), [
    (P('3 by 5', (9, 9), (3, 5), (2, 2), groups=2, padding=1), 'float32', {}, (0, 1, 2)),
    (P('strides', (9, 9), (3, 3), (2, 2), groups=2, padding=1, stride=(1, 2)), 'float32', {}, (0, 1, 2)),
    (P('stride 3', (11, 11), (3, 3), (2, 2), groups=2, padding=1, stride=3), 'float32', {}, (0, 1, 2)),
    (P('of volumes', (4, 5, 6), (3, 3, 3), (2, 2), groups=2, padding=1), 'float32', {}, (0, 1, 2)),
    (P('no plane', (1, 9, 9), (1, 3, 3), (2, 2), groups=2, padding=1, stride=(3, 1, 1)), 'float32', {}, (0, 1, 2)),
    (P('two planes', (2, 9, 9), (1, 3, 3), (2, 2), groups=2, padding=(0, 1, 1), stride=(2, 1, 1)), 'float32', {},
     (0, 1, 2)),
    (P('of lines', (16,), (3,), (2, 2), groups=2, padding=1), 'float32', {}, (0, 1, 2)),
    (P('two channels', (9, 9), (3, 3), (4, 4), groups=2, padding=1), 'float32', {}, (0, 1, 2)),
    (P('a mode', (9, 9), (3, 3), (2, 2), groups=2, padding=1), 'float32', {'padding_mode': 'reflect'}, (0, 1, 2)),
    (P('complex', (9, 9), (3, 3), (2, 2), groups=2, padding=1), 'complex64', {}, (0, 1, 2)),
    (P('whole', (9, 9), (3, 3), (2, 2), groups=2, padding=1), 'int32', {}, (0, 1, 2)),
    (P('dilated', (11, 11), (3, 3), (2, 2), groups=2, padding=2, stride=2, dilation=3), 'float32', {}, (1,)),
], ids=str)
def test_what_is_left_to_the_direct_kernels(monkeypatch, problem, dtype, mode, maps_of):
    gpu, data = Emulated(monkeypatch), problem.integers()
    x, w, y = uploaded(gpu, data[:3], dtype)
    for place, (call, given) in enumerate(((calls.forward, (x, w)), (calls.grad_input, (w, y)),
                                           (calls.grad_weight, (x, y)))):
        _, kernels = launched(gpu, lambda call=call, given=given: call(problem, *given, **mode))
        own = any(name.startswith('depthwise') for name in kernels)
        assert own == (place not in maps_of)
        assert own or any(name.startswith('direct') for name in kernels)


@pytest.mark.parametrize('axis', range(4))
@pytest.mark.parametrize('role', 'xwy')
def test_neighbours_far_apart(monkeypatch, role, axis):
    """32 bits hold no stride but that of samples, and of a weight's gradient, which is summed elsewhere, none."""
    gpu, problem = Emulated(monkeypatch, races=False), P('far', (2, 2), (3, 3), (2, 2), groups=2, padding=1)
    for name, run, out, exact in maps_far_apart(gpu, problem, role, axis):
        _, kernels = launched(gpu, run)
        same(gpu, out, exact, 'float32')
        near = axis == (1 if role == 'w' else 0) or role == name == 'w'
        assert any(kernel.startswith('depthwise') for kernel in kernels) == near


def test_what_waits_behind_tiles_is_direct(monkeypatch, tiles_alone):
    """These kernels look at no flag: all would be summed again."""
    gpu, problem = Emulated(monkeypatch), PROBLEMS[0]
    calls.three_maps(problem, *uploaded(gpu, problem.integers()[:3], 'float32'))
    assert {'direct', 'direct_weight'} <= set(gpu.device.launched)
    assert not {'depthwise', 'depthwise_weight'} & set(gpu.device.launched)


def test_strides_that_32_bits_do_not_hold():
    assert walks._fit({'source_n': 2**40, 'weight_y': 2**31 // 14 - 1, 'target_x': -2**20})
    assert not walks._fit({'source_n': 4, 'weight_y': 2**31 // 14 + 1})
    assert not walks._fit({'target_x': -2**31})


# Defects planted one at a time: (kernel, pattern, replacement).
DEFECTS = {
    'cells that are not there are multiplied': (
        'depthwise', r'select\(is_cell_in\d+, more_in(\d+)', r'select(True, more_in\1'),
    'a column of cells is never beyond': ('depthwise', r'(is_column_0 = ).*', r'\1u32(0) == u32(0)'),
    'a row of cells is never beyond': ('depthwise', r'(is_row_in\d+ = ).*', r'\1u32(0) == u32(0)'),
    'the nearest cell is not looked for': ('depthwise', r'(low_in\d+ = i32\()select\((\w+) < .*', r'\1\2)'),
    'results beyond the last column': ('depthwise', r'(is_result_1 = inside & \().*', r'\1u32(0) == u32(0))'),
    'results beyond the last line': ('depthwise', r'(is_line = ).*', r'\1u32(0) == u32(0)'),
    'threads beyond the last': ('depthwise', r'inside = own < i32\(count\)', 'inside = own < i32(count + 1)'),
    'a row too few': ('depthwise', r'residue_y \* i32\(step_y\) \+ i32\(first_y\)', r'i32(first_y) + 1'),
    'all channels are the first': ('depthwise', r'divide\(row, rows_magic, rows_shift\)', 'divide(row, 0, rows_shift)'),
    'two taps have changed places': ('depthwise', r', of_tap_0_1, ', ', of_tap_1_0, '),
    'no bias': ('depthwise', r' \+ added', ' + f32(0)'),
    'parts read on': ('depthwise_weight', r' & \(place < end\)', ''),
    'numbers beyond the last line': ('depthwise_weight', r'(is_result_\d_0 = is_x_in\d+_0) & .*', r'\1'),
    'numbers beyond the last column': (
        'depthwise_weight', r'(is_x_in\d+_\d = is_place & \().*', r'\1u32(0) == u32(0))'),
    'cells that are not there, of a weight': ('depthwise_weight', r'is_cell_in\d+ & is_result', 'is_result'),
    'rows beyond the last': ('depthwise_weight', r'i32\(select\(behind_in\d+ < .*', 'i32(abreast)'),
    'a warp too few': ('depthwise_weight', r'(mine_in\d+ \* 256 \+ lane_in\d+ \+ )224', r'\g<1>192'),
    'halves that are too few': ('depthwise_weight', r'i32\(abreast\) <= (8|4|2|1)\b', 'i32(abreast) < 0'),
    'parts over each other': ('depthwise_weight', r'part \* target_part', '0 * target_part'),
}


@pytest.mark.parametrize('defect', DEFECTS)
def test_defects(monkeypatch, defect):
    """Each is seen in one of the problems, of floats that are finite or of such as are not."""
    kernel, pattern, replacement = DEFECTS[defect]
    gpu = Emulated(monkeypatch)
    plant(gpu, kernel, lambda text: re.sub(pattern, replacement, text))
    with pytest.raises((KernelError, AssertionError)) as caught:
        for problem in (*FEW[:3], PROBLEMS[2], PROBLEMS[0]):
            for order in ORDERS:
                check_with_nan(gpu, problem, order)
    assert 'nothing to change' not in str(caught.value)


def check_with_nan(gpu, problem, order):
    """Integers, of which some in each operand's corners are NaN."""
    data = [array.astype(np.float64) for array in problem.integers()]
    wanted = maps(problem, *data[:3])
    for spoils in ('', 'w', 'y'):
        x, w, y = (array.copy() for array in data[:3])
        for name, array in (('w', w), ('y', y)):
            if name in spoils:
                array[..., 0, 0] = array[-1, ..., -1] = np.nan
        wanted = maps(problem, x, w, y)
        given = uploaded(gpu, (x, w, y), 'float32', order)
        b = gpu.upload(data[3], 'float32')
        same(gpu, calls.forward(problem, *given[:2], b), wanted.forward + calls.per_channel(data[3], 2), 'float32')
        if problem in WHOLE:
            same(gpu, calls.grad_input(problem, *given[1:]), wanted.grad_input, 'float32')
        same(gpu, calls.grad_weight(problem, given[0], given[2]), wanted.grad_weight, 'float32')


def test_every_barrier_is_needed(monkeypatch):
    """Of 7 x 7 taps, whose halves are of several warps to the end: within one the emulator sees no race."""
    problem = FEW[3]
    data = problem.integers()

    def run(gpu):
        x, _, y = uploaded(gpu, data[:3], 'float32')
        calls.grad_weight(problem, x, y)

    count, unseen = without_each_barrier(lambda: Emulated(monkeypatch), 'depthwise_weight', run)
    assert count == 2 * 7 + 4 and not unseen
