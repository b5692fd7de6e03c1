"""The weight's gradient of each sample on the GPU, against the reference with ==."""
import numpy as np
import pytest

import plan_runs
import reference
from gpus import WAYS
from problems import some
from pyconv._gpu import tiles
from test_cuda import same

PROBLEMS = some('1d', '2d groups everything', '2d channels 33 33', '2d depthwise', '2d batch 7', '3d', '2d wide')
FEW = PROBLEMS[1:3]


def wanted_of(problem, data):
    return np.stack([reference.grad_weight(data.x[n:n + 1], data.y[n:n + 1], problem.kernel, **problem.form)
                     for n in range(problem.batch)])


def found_of(gpu, problem, data, dtype, **settings):
    g = plan_runs.geometry_of(problem, per_sample=True)
    shape = (problem.batch, *problem.weight_shape)
    return plan_runs.run(gpu, 'grad_weight', g, data.x, data.y, shape, dtype, **settings)


@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
@pytest.mark.parametrize('rate', [0.0, 1e9], ids=['tiles', 'direct'])
def test_per_sample(gpu, problem, rate, monkeypatch):
    """With full and with least scratch, which takes samples one by one, and added to what is there."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    data = problem.integers()
    wanted = wanted_of(problem, data)
    same(gpu, found_of(gpu, problem, data, 'float32'), wanted, 'float32')
    same(gpu, found_of(gpu, problem, data, 'float32', accumulate=True, least=True),
         wanted + plan_runs.POISON, 'float32')


@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('way', ['float16', 'float64', 'tf32x3', 'wgmma float16'])
def test_in_other_ways_and_parts(gpu, problem, way, tiles_alone, monkeypatch):
    dtype, keywords = WAYS[way]
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: 3 * tiles.NOMINAL_BATCH)
    data = problem.integers(low=-2, high=2)
    same(gpu, found_of(gpu, problem, data, dtype, **keywords), wanted_of(problem, data), dtype)


@pytest.mark.parametrize('rate', [0.0, 1e9], ids=['tiles', 'direct'])
def test_bits_do_not_know_the_batch(gpu, rate, monkeypatch):
    """A sample's gradient has the bits that it has alone."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    problem = FEW[1]._replace(batch=5)
    data, one = problem.floats(), problem._replace(batch=1)
    whole = gpu.download(found_of(gpu, problem, data, 'float32'))
    alone = gpu.download(found_of(gpu, one, data._replace(x=data.x[3:4], y=data.y[3:4]), 'float32'))
    assert alone.tobytes() == whole[3].tobytes()


@pytest.mark.parametrize('way', ['float32', 'tf32x3'])
@pytest.mark.parametrize('part', 'xy')
def test_a_spoiled_sample_changes_no_other_s_bits(gpu, tiles_alone, way, part):
    """Where its products with padding, or of low parts, are not sound, it alone is made by definition."""
    problem, (dtype, keywords) = some('2d channels 17 64')[0]._replace(batch=4), WAYS[way]
    data = problem.floats(np.float32)
    clean = gpu.download(found_of(gpu, problem, data, dtype, **keywords))
    spoiled = getattr(data, part).copy()
    spoiled[1, -1, 0, 0] = np.inf
    data = data._replace(**{part: spoiled})
    found = gpu.download(found_of(gpu, problem, data, dtype, **keywords))
    others = [0, 2, 3]
    assert found[others].tobytes() == clean[others].tobytes()
    with np.errstate(invalid='ignore'):
        wanted = wanted_of(problem, data)[1]
    assert np.isinf(wanted).any() and np.array_equal(np.isinf(found[1]), np.isinf(wanted))
    assert np.array_equal(np.isnan(found[1]), np.isnan(wanted))


@pytest.mark.parametrize('cached', [1, tiles.CACHED])
def test_not_finite(gpu, cached, tiles_alone, monkeypatch):
    """A value that is not finite in one sample's padding reaches no other, in chunks of samples or all at once."""
    monkeypatch.setattr(tiles, 'CACHED', cached)
    problem = some('2d channels 17 64')[0]._replace(batch=3)
    data = problem.integers(low=1, high=3)
    data.y[1, 0, 0, 0] = np.inf
    with np.errstate(invalid='ignore'):
        wanted = wanted_of(problem, data)
    same(gpu, found_of(gpu, problem, data, 'float32', accumulate=True), wanted + plan_runs.POISON, 'float32')


def test_samples_of_many_parts_are_summed_in_turn(gpu, tiles_alone, monkeypatch):
    """So many at a time that their parts stay in the cache."""
    monkeypatch.setattr(tiles, 'CACHED', 2 * 33 * 33 * 9 * 4)
    problem = FEW[1]._replace(batch=5)
    data = problem.integers()
    same(gpu, found_of(gpu, problem, data, 'float32'), wanted_of(problem, data), 'float32')
    if hasattr(gpu, 'device'):
        assert gpu.device.launched.count('correlate') == 3
