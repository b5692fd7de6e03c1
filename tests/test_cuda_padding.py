"""Padding modes on the GPU: all maps, tiles and direct kernels, against NumPy's padding and the reference with ==."""
import numpy as np
import pytest

import plan_runs
import pyconv
import reference
from calls import last, per_channel
from gpus import WAYS, rounded
from problems import P, maps
from pyconv._gpu import tiles
from test_cuda import same

MODES = {'circular': 'wrap', 'replicate': 'edge', 'reflect': 'reflect', 'constant': 'constant'}
VALUE = -2
PROBLEMS = [
    P('1d', (6,), (3,), padding=1),
    P('2d', (5, 6), (3, 3), (3, 5), padding=1),
    P('2d uneven strided dilated', (6, 5), (3, 2), (4, 6), groups=2, padding=((3, 1), (0, 2)), stride=(2, 1),
      dilation=(2, 3)),
    P('2d more than once round', (3, 2), (3, 3), (2, 3), padding=((7, 6), (5, 9)), stride=(3, 1), batch=1),
    P('2d crop and pad', (7, 6), (3, 3), (3, 4), padding=((-2, 3), (2, 0)), batch=3),
    P('2d one cell', (1, 3), (3, 1), (2, 3), padding=(4, 1)),
    P('3d', (3, 4, 2), (2, 3, 2), (2, 3), padding=(1, 2, 1), stride=(1, 2, 1)),
    P('2d depthwise', (5, 7), (3, 3), (5, 5), groups=5, padding=1),
]
FEW = [PROBLEMS[i] for i in (1, 2, 4)]
every_mode = pytest.mark.parametrize('mode', MODES)
every_problem = pytest.mark.parametrize('problem', PROBLEMS, ids=str)
in_tiles = pytest.mark.parametrize('rate', [0.0, 1e9], ids=['tiles', 'direct'])


def padded(problem, x, mode, value=VALUE):
    """x, cropped and then padded by NumPy."""
    for axis, (lo, hi) in enumerate(problem.pads, 2):
        x = x[(slice(None),) * axis + (slice(max(-lo, 0), x.shape[axis] - max(-hi, 0)),)]
    pads = [(0, 0), (0, 0), *((max(lo, 0), max(hi, 0)) for lo, hi in problem.pads)]
    return np.pad(x, pads, MODES[mode], **({'constant_values': value} if mode == 'constant' else {}))


def wanted_of(problem, mode, data):
    """The three maps over the padded input, the gradient of each of its places added to the cell that it is."""
    x = padded(problem, data.x, mode)
    found = maps(problem._replace(size=x.shape[2:], padding=0), x, data.w, data.y)
    origin = padded(problem, np.arange(data.x.size).reshape(data.x.shape), mode, data.x.size)
    grad_input = np.zeros(data.x.size + 1, found.grad_input.dtype)
    np.add.at(grad_input, origin, found.grad_input)
    return found._replace(grad_input=grad_input[:-1].reshape(data.x.shape))


def settings_of(mode):
    return {'padding_mode': mode, 'padding_value': VALUE if mode == 'constant' else 0}


@every_problem
@every_mode
@in_tiles
def test_modes(gpu, problem, mode, rate, monkeypatch):
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    data = problem.integers()
    wanted, g = wanted_of(problem, mode, data), plan_runs.geometry_of(problem, **settings_of(mode))
    for map, first, second, result, bias in (
            ('forward', data.x, data.w, wanted.forward, data.b),
            ('grad_input', data.y, data.w, wanted.grad_input, data.c),
            ('grad_weight', data.x, data.y, wanted.grad_weight, None)):
        exact = result if bias is None else result + per_channel(bias, problem.rank)
        same(gpu, plan_runs.run(gpu, map, g, first, second, result.shape, 'float32', bias, least=True),
             exact, 'float32')
        same(gpu, plan_runs.run(gpu, map, g, first, second, result.shape, 'float32', accumulate=True),
             result + plan_runs.POISON, 'float32')


@pytest.mark.parametrize('problem', FEW, ids=str)
@every_mode
@pytest.mark.parametrize('way', ['float16', 'bfloat16', 'float64', 'tf32x3'])
def test_modes_in_other_ways(gpu, problem, mode, way, tiles_alone):
    dtype, keywords = WAYS[way]
    data = problem.integers(low=-2, high=2)
    wanted, g = wanted_of(problem, mode, data), plan_runs.geometry_of(problem, **settings_of(mode))
    for map, first, second, result in (
            ('forward', last(data.x, 2), data.w, wanted.forward),
            ('grad_input', last(data.y, 2), data.w, wanted.grad_input),
            ('grad_weight', last(data.x, 2), data.y, wanted.grad_weight)):
        same(gpu, plan_runs.run(gpu, map, g, first, second, result.shape, dtype, **keywords), result, dtype)


@pytest.mark.parametrize('problem', FEW, ids=str)
@every_mode
@in_tiles
def test_columns(gpu, problem, mode, rate, monkeypatch):
    """unfold, fold, and grad_weight from columns."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    data = problem.integers()
    wanted, g = wanted_of(problem, mode, data), plan_runs.geometry_of(problem, **settings_of(mode))
    of_columns = plan_runs.columns_of(problem, **settings_of(mode))
    x = padded(problem, data.x, mode)
    form = {**{name: problem.form[name] for name in ('stride', 'dilation')}, 'lo': (0,) * problem.rank}
    columns = reference.unfold(x, problem.kernel, problem.positions, **form)
    written, summed = gpu.empty(columns.shape, 'float32'), gpu.empty(data.x.shape, 'float32')
    plan_runs.unfold(of_columns, gpu.upload(data.x, 'float32'), written)
    same(gpu, written, columns, 'float32')
    places = reference.fold(columns, x.shape[2:], problem.kernel, problem.positions, **form)
    origin = padded(problem, np.arange(data.x.size).reshape(data.x.shape), mode, data.x.size)
    cells = np.zeros(data.x.size + 1)
    np.add.at(cells, origin, places)
    plan_runs.unfold(of_columns, summed, written, fold=True)
    same(gpu, summed, cells[:-1].reshape(data.x.shape), 'float32')
    same(gpu, plan_runs.run(gpu, 'grad_weight', g, columns, data.y, data.w.shape, 'float32', algorithm='columns'),
         wanted.grad_weight, 'float32')


@in_tiles
@pytest.mark.parametrize('value', [0.3, 1 / 3, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1e-7])
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16', 'float32', 'float64'])
def test_a_constant_is_rounded_to_the_nearest_of_the_dtype(gpu, value, dtype, rate, monkeypatch):
    """As the cells beside it were, before it is multiplied: up, down, and a tie to the even."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    x, w = (gpu.upload(np.full((1, 1, 1, 1), cell), dtype) for cell in (1.0, 3.0))
    y = gpu.download(pyconv.conv2d(x, w, padding=1, padding_mode='constant', padding_value=value))
    exact = np.full((3, 3), rounded(3 * np.float64(rounded(value, dtype)), dtype), y.dtype)
    exact[1, 1] = 3
    assert (y[0, 0] == exact).all()


@pytest.mark.parametrize('mode', ['circular', 'constant'])
@in_tiles
def test_not_finite(gpu, mode, rate, monkeypatch):
    """A cell that is repeated is as infinite there; a constant meets a NaN of the weight, where zeros do not."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    problem = FEW[0]
    data = problem.integers(low=1, high=3)
    data.x[0, 0, 0, 0], data.w[1, 2, 0, 0], data.y[1, 0, 0, 0] = np.inf, np.nan, -np.inf
    with np.errstate(invalid='ignore'):
        wanted, g = wanted_of(problem, mode, data), plan_runs.geometry_of(problem, **settings_of(mode))
    for map, first, second, result in (
            ('forward', data.x, data.w, wanted.forward), ('grad_input', data.y, data.w, wanted.grad_input),
            ('grad_weight', data.x, data.y, wanted.grad_weight)):
        same(gpu, plan_runs.run(gpu, map, g, first, second, result.shape, 'float32'), result, 'float32')


@in_tiles
@pytest.mark.parametrize(('size', 'kernel', 'pads', 'stride', 'dtype'), [
    ((0,), (2,), ((1, 2),), 1, 'int8'), ((0, 4), (2, 3), ((3, 1), (1, 1)), 1, 'float32'),
    ((3, 0), (3, 2), ((0, 2), (-1, 5)), (1, 2), 'float32'),
    ((0, 2, 0), (1, 2, 2), ((1, 0), (1, 0), (3, 0)), 1, 'float16'),
    ((0, 2, 1, 3), (2, 1, 1, 2), ((2, 1), (0, 0), (0, 0), (1, 0)), 1, 'float32'),
    ((2, 2, 2, 0), (2, 2, 1, 2), ((1, 0), (0, 0), (0, 0), (2, 1)), 1, 'float32')], ids=str)
def test_no_cells_but_a_constant(gpu, size, kernel, pads, stride, dtype, rate, monkeypatch):
    """All that is read is the constant, as in main memory, where an input of zeros around one cell says what it is."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    x, w, rest = np.empty((2, 3, *size), dtype), np.ones((5, 3, *kernel), dtype), (stride, pads, 1, False, 0, 1)
    settings, mask = {'padding_mode': 'constant', 'padding_value': 2}, (True, True, False)
    steps = {'stride': stride, 'padding': pads, **settings}
    wanted = pyconv.convolution(x, w, None, *rest, **settings)
    y, columns = np.ones(wanted.shape, dtype), pyconv.unfold(x, kernel, **steps)
    assert wanted.any()
    on_gpu = [gpu.upload(array, dtype) for array in (x, w, y)]
    same(gpu, pyconv.convolution(*on_gpu[:2], None, *rest, **settings), wanted, wanted.dtype)
    found = pyconv.convolution_backward(*on_gpu[::-2], on_gpu[1], *rest, mask, **settings)
    for one, exact in zip(found, pyconv.convolution_backward(y, x, w, *rest, mask, **settings)[:2]):
        same(gpu, one, exact, exact.dtype)
    same(gpu, pyconv.unfold(on_gpu[0], kernel, **steps), columns, dtype)
    same(gpu, pyconv.fold(gpu.upload(columns, dtype), size, kernel, **steps), x.astype(wanted.dtype), wanted.dtype)
