"""Complex and whole numbers on the GPU: tiles and direct kernels, against the reference with ==."""
import numpy as np
import pytest

import plan_runs
import reference
from calls import last, per_channel
from gpus import Emulated
from problems import maps, some
from pyconv import _cuda
from pyconv._gpu import kinds, tiles
from test_cuda import same
from test_cuda_padding import FEW as PADDED
from test_cuda_padding import settings_of, wanted_of

PROBLEMS = some('1d', '2d groups everything', '2d channels 33 33', '2d depthwise', '2d stride above kernel',
                '3d groups everything')
FEW = PROBLEMS[1:3]
COMPLEX = {'complex64': ('complex64', {}), 'complex128': ('complex128', {}),
           'tf32': ('complex64', {'allow_tf32': True}), 'tf32x3': ('complex64', {'algorithm': 'tf32x3'})}
in_tiles = pytest.mark.parametrize('rate', [0.0, 1e9], ids=['tiles', 'direct'])


def complex_data(problem, low=-2, high=2):
    real, imaginary = problem.integers(low=low, high=high), problem._replace(name=f'{problem.name} i').integers(
        low=low, high=high)
    return type(real)(*(a + 1j * b for a, b in zip(real, imaginary)))


def of_maps(data, wanted):
    """(map, operands, result, bias)"""
    return (('forward', data.x, data.w, wanted.forward, data.b),
            ('grad_input', data.y, data.w, wanted.grad_input, data.c),
            ('grad_weight', data.x, data.y, wanted.grad_weight, None))


def with_bias(result, bias):
    return result if bias is None else result + per_channel(bias, result.ndim - 2)


@pytest.mark.sparse
@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
@pytest.mark.parametrize('way', COMPLEX)
@in_tiles
def test_complex(gpu, problem, way, rate, monkeypatch):
    """With full and least scratch; channels last in memory; added to what is there."""
    if rate and way.startswith('tf32'):
        pytest.skip('a direct kernel knows no ways')
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    dtype, keywords = COMPLEX[way]
    data, g = complex_data(problem), plan_runs.geometry_of(problem)
    for map, first, second, result, bias in of_maps(data, maps(problem, *data[:3])):
        same(gpu, plan_runs.run(gpu, map, g, first, second, result.shape, dtype, bias, least=True, **keywords),
             with_bias(result, bias), dtype)
        if rate or way == 'complex64':
            read = last(first, problem.rank)
            same(gpu, plan_runs.run(gpu, map, g, read, second, result.shape, dtype, accumulate=True),
                 result + plan_runs.POISON, dtype)


@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('capability', [(7, 5), (9, 0)])
def test_complex_in_parts(monkeypatch, problem, capability):
    """Parts of a reduction, of the positions and of the batch; double precision with and without tensor cores."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 3)
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: 5)
    gpu = Emulated(monkeypatch, capability=capability)
    data, g = complex_data(problem), plan_runs.geometry_of(problem)
    for map, first, second, result, bias in of_maps(data, maps(problem, *data[:3])):
        for least in (False, True):
            same(gpu, plan_runs.run(gpu, map, g, first, second, result.shape, 'complex128', bias, least=least),
                 with_bias(result, bias), 'complex128')


@pytest.mark.parametrize('mode', ['reflect', 'constant'])
@pytest.mark.parametrize('dtype', ['complex64', 'int16'])
@in_tiles
def test_padding_modes(gpu, mode, dtype, rate, monkeypatch):
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    problem, result = PADDED[0], 'int32' if dtype == 'int16' else dtype
    data = complex_data(problem) if dtype == 'complex64' else problem.integers(np.int64)
    wanted, g = wanted_of(problem, mode, data), plan_runs.geometry_of(problem, **settings_of(mode))
    for map, first, second, found, bias in of_maps(data, wanted):
        same(gpu, plan_runs.run(gpu, map, g, first, second, found.shape, dtype, bias, result=result),
             with_bias(found, bias), result)


@pytest.mark.parametrize('dtype', ['complex64', 'int8'])
@in_tiles
def test_per_sample(gpu, dtype, rate, monkeypatch):
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    problem, result = FEW[0], 'int32' if dtype == 'int8' else dtype
    data = complex_data(problem) if dtype == 'complex64' else problem.integers(np.int64)
    wanted = np.stack([reference.grad_weight(data.x[n:n + 1], data.y[n:n + 1], problem.kernel, **problem.form)
                       for n in range(problem.batch)])
    g = plan_runs.geometry_of(problem, per_sample=True)
    same(gpu, plan_runs.run(gpu, 'grad_weight', g, data.x, data.y, wanted.shape, dtype, result=result), wanted, result)


@pytest.mark.parametrize('rate', [0.0, 1e9], ids=['tiles', 'direct'])
def test_complex_not_finite(gpu, rate, monkeypatch):
    """As products of the parts have it, in every operand."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    problem = some('2d channels 17 3')[0]
    for part in 'xwy':
        data = complex_data(problem, low=1, high=3)
        getattr(data, part)[(0,) * 4] = complex(2, np.inf)
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, *data[:3])
        for map, first, second, result, _ in of_maps(data, wanted):
            found = gpu.download(plan_runs.run(
                gpu, map, plan_runs.geometry_of(problem), first, second, result.shape, 'complex64'))
            assert np.array_equal(found.view(np.float32), result.astype(np.complex64).view(np.float32), equal_nan=True)


WHOLE = [('int8', 'int32'), ('uint8', 'int32'), ('int16', 'int64'), ('uint16', 'int32'), ('int32', 'int64'),
         ('uint32', 'int64'), ('uint32', 'int32'), ('int64', 'int64'), ('int64', 'int32'), ('uint64', 'uint64'),
         ('int8', 'int64')]


def whole_data(problem, dtype):
    """Numbers of all sizes, as Python's integers."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(5)
    shapes = [part.shape for part in problem.integers()[:3]]
    return [np.array(rng.integers(limits.min, limits.max, shape, dtype, endpoint=True), object) for shape in shapes]


def wrapped(values, dtype):
    """Python's integers modulo 2 to the number of bits."""
    bits = 8 * np.dtype(dtype).itemsize
    return np.array([int(v) % 2**bits for v in values.ravel()], np.uint64).astype(f'u{bits // 8}').view(dtype).reshape(
        values.shape)


@pytest.mark.parametrize('problem', some('1d', '2d groups everything', '2d depthwise strided'), ids=str)
@pytest.mark.parametrize(('dtype', 'result'), WHOLE)
def test_whole_numbers(gpu, problem, dtype, result):
    """Against Python's integers modulo 2 to the number of the result's bits."""
    x, w, y = whole_data(problem, dtype)
    bias = np.arange(7, 7 + problem.channels[1])
    wanted = [wrapped(found, result) for found in products(problem, x, w, y)]
    g = plan_runs.geometry_of(problem)
    x, w, y = (part.astype(dtype) for part in (x, w, y))
    found = plan_runs.run(gpu, 'forward', g, x, w, wanted[0].shape, dtype, bias, accumulate=True, result=result)
    same(gpu, found, wanted[0] + (per_channel(bias, problem.rank) + plan_runs.POISON).astype(result), result)
    same(gpu, plan_runs.run(gpu, 'grad_input', g, y, w, wanted[1].shape, dtype, result=result), wanted[1], result)
    same(gpu, plan_runs.run(gpu, 'grad_weight', g, x, y, wanted[2].shape, dtype, result=result, least=True), wanted[2],
         result)


def products(problem, x, w, y):
    """The reference's maps of Python's integers: of 64 bits in unsigned arithmetic, which is that modulo 2**64."""
    return maps(problem, *(np.array([int(v) % 2**64 for v in part.ravel()], np.uint64).reshape(part.shape)
                           for part in (x, w, y)))


@pytest.mark.parametrize(('dtype', 'result'), [('complex64', 'complex64'), ('int8', 'int32'), ('uint16', 'int64')])
def test_columns_and_sums(gpu, dtype, result):
    """unfold keeps the type; fold and channel_sum have that of results."""
    problem = FEW[0]
    data = complex_data(problem) if dtype == 'complex64' else problem.integers(low=0)
    form = {name: value for name, value in problem.form.items() if name != 'groups'}
    columns = reference.unfold(data.x, problem.kernel, problem.positions, **form)
    g = plan_runs.columns_of(problem)
    x, written, summed = gpu.upload(data.x, dtype), gpu.empty(columns.shape, dtype), gpu.empty(data.x.shape, result)
    plan_runs.unfold(g, x, written)
    same(gpu, written, columns, dtype)
    plan_runs.unfold(g, summed, written, fold=True)
    same(gpu, summed, reference.fold(columns, problem.size, problem.kernel, problem.positions, **form), result)
    out = gpu.empty(data.b.shape, result)
    plan_runs.now(_cuda.channel_sum(kinds.read('operand', gpu.upload(data.y, dtype)), 1, kinds.read('out', out)))
    same(gpu, out, reference.channel_sum(data.y), result)
    plan_runs.now(_cuda.fill(kinds.read('out', summed), kinds.read('bias', gpu.upload(data.c, result))))
    same(gpu, summed, np.broadcast_to(per_channel(data.c, problem.rank), data.x.shape), result)
