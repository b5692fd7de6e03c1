"""The kernels that wait behind a product for a flag: few blocks, which go round over the results where it is set."""
import re

import numpy as np
import pytest

import calls
import plan_runs
from emulator import KernelError
from gpus import WAYS, Emulated
from problems import P, maps
from pyconv._gpu import plain, tiles
from test_cuda import same
from test_cuda_defects import plant
from test_cuda_limits import Planned
from test_cuda_per_sample import found_of, wanted_of
from test_nonfinite import without_zeros

# Results of forward and grad_input fill no whole number of blocks, nor these a whole number of turns.
PROBLEM = P('waiting', (9, 11), (3, 3), (5, 7), padding=1, batch=3)


@pytest.fixture(autouse=True)
def a_result_for_each_thread(monkeypatch):
    """Of finish, so that it takes two blocks."""
    monkeypatch.setattr(plain, 'SUMMED', 1)
    tiles.simple.cache_clear()
    yield
    tiles.simple.cache_clear()


FEW_BLOCKS = 1, 7, tiles.WAITING_BLOCKS
VALUES = np.nan, -np.inf, 1.0
FLAGGED = 'float16', 'float32', 'tf32x3', 'float64'


@pytest.fixture(params=FEW_BLOCKS)
def few_blocks(request, monkeypatch, tiles_alone):
    """As if so many blocks filled a chip twice."""
    monkeypatch.setattr(tiles, 'WAITING_BLOCKS', request.param)


def check(gpu, way, value):
    """All maps, with each operand spoiled that they look at, and the weight's gradient of each sample."""
    dtype, keywords = WAYS[way]
    data = without_zeros(PROBLEM.integers(low=-2, high=2))
    for part in 'xwy':
        spoiled = getattr(data, part).copy()
        spoiled[1, 2, 0, 1] = value
        each = data._replace(**{part: spoiled})
        with np.errstate(invalid='ignore'):
            wanted = maps(PROBLEM, *each[:3])
            of_samples = wanted_of(PROBLEM, each)
        x, w, y = (gpu.upload(array, dtype) for array in each[:3])
        if part != 'y':
            same(gpu, calls.forward(PROBLEM, x, w, **keywords), wanted.forward, dtype)
        if part != 'x':
            same(gpu, calls.grad_input(PROBLEM, w, y, **keywords), wanted.grad_input, dtype)
        if part != 'w':
            same(gpu, calls.grad_weight(PROBLEM, x, y, **keywords), wanted.grad_weight, dtype)
            same(gpu, found_of(gpu, PROBLEM, each, dtype, accumulate=True, **keywords), of_samples + plan_runs.POISON,
                 dtype)


@pytest.mark.sparse
@pytest.mark.parametrize(('few_blocks', 'way', 'value'), [
    (blocks, way, VALUES[(i + j) % 3]) for i, blocks in enumerate(FEW_BLOCKS) for j, way in enumerate(FLAGGED)],
    indirect=['few_blocks'])
def test_every_result_in_turns(gpu, few_blocks, way, value):
    """By definition where a value is not finite; tf32x3 has a flag for each sample. Any two of blocks, way and value
    meet."""
    check(gpu, way, value)


@pytest.mark.parametrize(('kernel', 'pattern', 'replacement'), [
    ('direct', r'turn \* abreast', '0 * abreast'), ('direct_weight', r'turn \* abreast', '0 * abreast'),
    ('direct', r'range\(i32\(turns\)', 'range((i32(turns) - 1)'),
    ('direct_weight', r'range\(i32\(turns\)', 'range((i32(turns) - 1)'),
    ('direct', r'i32\(whole \| load_i32\(some, True\)\)', 'i32(whole)'),
    ('direct', r'whole \| load_i32\(i64\(own', '0 * whole | load_i32(i64(own'),
    ('finish', r'turn \* abreast', '0 * abreast'), ('finish', r'range\(i32\(turns\)', 'range((i32(turns) - 1)'),
    ('finish', r'i32\(load_i32\(flag, True\) \| load_i32\(some, True\)\)', 'i32(load_i32(flag, True))'),
    ('finish', r'(needed\w* = ).*', r'\1i32(0)'), ('direct', r' & \(of_sample\w* != 0\)', ''),
    ('direct_weight', r'is_one\w* & \(t == 0\)', 't == 0')])
def test_defect(monkeypatch, tiles_alone, kernel, pattern, replacement):
    """Turns over the same results, a turn too few, an exit that does not look at samples, samples that are taken for
    spoiled or not, and elements beyond the last."""
    monkeypatch.setattr(tiles, 'WAITING_BLOCKS', 1 if kernel == 'finish' else 7)
    gpu = Emulated(monkeypatch)

    def changed(text):
        return re.sub(pattern, replacement, text) + '\n'         # not all that are called finish wait

    plant(gpu, kernel, changed)
    with pytest.raises((KernelError, AssertionError)) as caught:
        check(gpu, 'float32', np.nan)
        check_sound_samples(gpu)
        check(gpu, 'tf32x3', np.nan)
    assert 'nothing to change' not in str(caught.value)


def check_sound_samples(gpu):
    """A spoiled sample changes no other's bits."""
    dtype, keywords = WAYS['tf32x3']
    data = PROBLEM.floats(np.float32)
    spoiled = data.x.copy()
    spoiled[1, 2, 0, 1] = np.inf
    w = gpu.upload(data.w, dtype)
    clean, found = (gpu.download(calls.forward(PROBLEM, gpu.upload(x, dtype), w, **keywords))
                    for x in (data.x, spoiled))
    assert np.array_equal(clean[[0, 2]].view('u4'), found[[0, 2]].view('u4'))
    assert not np.array_equal(clean[1], found[1])


def test_sound_samples_keep_their_bits(gpu, few_blocks):
    check_sound_samples(gpu)


@pytest.mark.parametrize('dtype', ['float16', 'float32'])
@pytest.mark.parametrize('size', [7, 56])
def test_few_blocks_wait(monkeypatch, size, dtype):
    """Of layers of ResNet-50; all of them where nothing is waited for, as in groups of a channel under kernels not
    square."""
    planned = Planned(monkeypatch)
    channels = 512 * 7 // size
    for groups in (1, channels):
        for map_name in ('forward', 'grad_input', 'grad_weight'):
            pad = 1 if groups == 1 else 2
            found = planned(map_name, (64, channels, size, size), (channels, channels // groups, 3, 1 + 2 * pad), dtype,
                            padding=(1, pad), groups=groups)
            [(name, values, grid)] = [one for one in found if one[0] in ('direct', 'direct_weight')]
            work = values['elements'] * grid[1] if name == 'direct_weight' else -(-values['count'] // 256)
            waits = groups == 1
            assert grid[0] * grid[1] <= tiles.WAITING_BLOCKS if waits else grid[0] * grid[1] == work
            assert values['turns'] * values['abreast'] * grid[1] >= work and grid[0] == values['abreast']
            for _, values, grid in (one for one in found if one[0] == 'finish' and one[1]['flag_value'] == 1):
                assert waits and map_name == 'grad_weight' and grid[0] == values['abreast'] <= tiles.WAITING_BLOCKS
                assert (values['turns'] - 1) * grid[0] * 256 < values['count'] <= values['turns'] * grid[0] * 256


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_which_layers_the_direct_kernels_take(monkeypatch, dtype):
    """Of groups of a channel that have no kernels of their own, and of one small sample; not the first layers of large
    networks, whatever the batch."""
    planned = Planned(monkeypatch)

    def kernels(*call, **settings):
        return {name for name, _, _ in planned(*call, dtype, **settings)}

    for batch in (1, 64):
        first = kernels('grad_input', (batch, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3)
        assert 'gather' in first
        assert kernels('forward', (batch, 32, 112, 112), (32, 1, 3, 3), padding=1, groups=32) == {'depthwise'}
        assert kernels('forward', (batch, 32, 112, 112), (32, 1, 1, 3), groups=32) == {'direct'}
        assert kernels('forward', (batch, 3, 16, 16), (16, 3, 3, 3), padding=1) == {'direct'}
