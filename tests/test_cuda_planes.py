"""1x1 convolutions on the GPU of arrays whose channels are planes, which tiles read where they lie.

Emulated on any machine; with `-m gpu` on the real device, where what is launched is not looked at.
"""
import re

import numpy as np
import pytest

import calls
import pyconv
from emulator import KernelError
from gpus import DISTINCT, WAYS, Emulated, take_tile, tiles_of
from problems import P, maps
from pyconv import _cuda
from pyconv import _geometries as geometries
from pyconv._gpu import limits, planes, tiles
from pyconv._gpu.arrays import DTYPES
from pyconv._gpu.launches import Ref
from pyconv._gpu.layouts import Layout
from test_cuda import same
from test_cuda_defects import plant
from test_cuda_limits import Planned
from test_cuda_pointwise import check_maps, noted

# Cells, rows, channels and samples that fill no tile, no stage and no part; multiples of 16 bytes in every type.
PROBLEM = P('planes', (8, 11), (1, 1), (37, 21), batch=7)
PROBLEMS = [PROBLEM, P('planes 1d', (8,), (1,), (3, 2), batch=1), P('planes 3d', (2, 3, 4), (1, 1, 1), (72, 130))]
OWN = [way for way in DISTINCT if way != 'tf32x3']
IN_TILES = [(way, size) for way in OWN if not way.startswith('wgmma') for size in range(tiles_of(*WAYS[way]))]


# Of a weight's gradient: of three samples and of the one that is left; two of each sample.
PARTS = 3, 15


@pytest.fixture(autouse=True)
def in_parts(monkeypatch, tiles_alone):
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: PARTS[0])


def uploaded(gpu, data, dtype):
    return [gpu.upload(array, dtype) for array in data[:3]]


@pytest.mark.sparse
@pytest.mark.parametrize(('way', 'size'), IN_TILES)
def test_all_maps(gpu, way, size, monkeypatch):
    dtype, keywords = WAYS[way]
    take_tile(monkeypatch, size)
    launched = noted(gpu, 'PLANES') if isinstance(gpu, Emulated) else None
    for problem in PROBLEMS:
        check_maps(gpu, problem, dtype, **keywords)
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: PARTS[1])
    _cuda.forget()
    data = PROBLEM.integers()
    x, w, y = uploaded(gpu, data, dtype)
    same(gpu, calls.grad_weight(PROBLEM, x, y, **keywords), maps(PROBLEM, *data[:3]).grad_weight, dtype)
    if launched is not None:
        assert not {'pack', 'scan', 'direct'} & set(dict(launched))
        assert [name for name, of_planes in launched if of_planes] == ['correlate'] * 2 * len(PROBLEMS)
        assert ('gather', False) in launched


@pytest.mark.parametrize('way', ['float16', 'wgmma bfloat16', 'tf32', 'float32', 'float64'])
def test_bits(gpu, way, monkeypatch):
    """The same in any tile, any buffer and any part of the batch."""
    dtype, keywords = WAYS[way]
    problem, data = PROBLEM, PROBLEM.floats()
    wants = pyconv.workspace(
        problem.input_shape, problem.weight_shape, dtype=dtype, device='cuda', **keywords)
    found = []
    for size in (0, 1):
        take_tile(monkeypatch, size)
        _cuda.forget()
        for share in (None, 0, 0.4):
            x, w, y = uploaded(gpu, data, dtype)
            given = [{}] * 3
            if share is not None:
                sizes = [least + int(share * (full - least)) for full, least in (
                    (wants.finput, wants.finput_minimum), (wants.fgrad_input, wants.fgrad_input_minimum))]
                finput, fgrad_input = ({name: gpu.empty((length,), dtype)} for name, length in zip(
                    ('finput', 'fgrad_input'), sizes))
                given = [finput, fgrad_input, finput]
            made = (calls.forward(problem, x, w, **given[0], **keywords),
                    calls.grad_input(problem, w, y, **given[1], **keywords),
                    calls.grad_weight(problem, x, y, **given[2], **keywords))
            found.append([gpu.download(array).tobytes() for array in made][:2 + (not size)])
    assert all(one[:2] == found[0][:2] for one in found) and found[1] == found[2] == found[0]
    x, w, _ = uploaded(gpu, data._replace(x=data.x[5:]), dtype)
    part = gpu.download(calls.forward(problem._replace(batch=2), x, w, **keywords))
    assert found[0][0].endswith(part.tobytes())


@pytest.mark.parametrize('way', ['float16', 'bfloat16', 'tf32', 'float32'])
def test_bits_of_arrays_that_are_packed(gpu, way, monkeypatch):
    """Those of results and gradients of inputs: of float64 a lane's elements are others."""
    dtype, keywords = WAYS[way]
    found = []
    for can in (planes.are_planes, lambda *_: False):
        monkeypatch.setattr(planes, 'are_planes', can)
        _cuda.forget()
        arrays = uploaded(gpu, PROBLEM.floats(), dtype)
        found.append([gpu.download(array).tobytes() for array in calls.three_maps(PROBLEM, *arrays, **keywords)[:2]])
    assert found[0] == found[1]


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_bias_and_out(gpu, dtype, monkeypatch):
    """Into planes that lie apart, some samples at a time; what lies between them stays."""
    monkeypatch.setattr(planes, 'MOST_SAMPLES', 2)
    data = PROBLEM.integers()
    bias = np.arange(1.0, 1 + PROBLEM.channels[1])
    x, w, _ = uploaded(gpu, data, dtype)
    wanted = maps(PROBLEM, *data[:3]).forward
    wide = np.full((wanted.shape[0], wanted.shape[1] + 2, *wanted.shape[2:]), 7.0)
    whole = gpu.upload(wide, dtype)
    out = whole.view(lambda memory: memory[:, 1:-1]) if isinstance(gpu, Emulated) else whole[:, 1:-1]
    calls.forward(PROBLEM, x, w, gpu.upload(bias, dtype), out=out)
    wide[:, 1:-1] = wanted + bias[:, None, None]
    same(gpu, whole, wide, dtype)


@pytest.mark.parametrize(('problem', 'keywords', 'taken'), [
    (PROBLEM, {}, [True, True, True]), (PROBLEM, {'algorithm': 'tf32x3'}, [False] * 3),
    (PROBLEM._replace(size=(5, 7)), {}, [False] * 3),                              # no multiple of 16 bytes
    (PROBLEM._replace(padding=1), {}, [False] * 3), (PROBLEM._replace(stride=2), {}, [False] * 3),
    (PROBLEM._replace(kernel=(1, 3), padding=(0, 1)), {}, [False] * 3),
    (PROBLEM._replace(channels=(36, 20), groups=2), {}, [False] * 3)], ids=str)
def test_which_problems_are(monkeypatch, problem, keywords, taken):
    gpu = Emulated(monkeypatch)
    launched = noted(gpu, 'PLANES')
    check_maps(gpu, problem, 'float32', **keywords)
    assert ([('correlate', True)] * 2 == [one for one in launched if one[1]]) == taken[0]
    assert ('pack' not in dict(launched)) == taken[2]


def test_other_layouts_are_packed(monkeypatch):
    """Rows that lie apart, an array that begins at no multiple of 16 bytes, and what is added to."""
    gpu, data = Emulated(monkeypatch), PROBLEM.integers()
    wanted = maps(PROBLEM, *data[:3])
    x, w, y = uploaded(gpu, data, 'float32')
    launched = noted(gpu, 'PLANES')
    apart = gpu.upload(np.zeros((7, 37, 8, 12)), 'float32').view(lambda memory: memory[..., :11])
    apart.stored()[...] = data.x
    same(gpu, calls.forward(PROBLEM, apart, w), wanted.forward, 'float32')
    same(gpu, calls.grad_weight(PROBLEM, apart, y), wanted.grad_weight, 'float32')
    line = gpu.upload(np.zeros(data.x.size + 1), 'float32').view(lambda memory: memory[1:].reshape(data.x.shape))
    line.stored()[...] = data.x
    same(gpu, calls.forward(PROBLEM, line, w), wanted.forward, 'float32')
    out = gpu.upload(np.ones(wanted.forward.shape), 'float32')
    calls.forward(PROBLEM, x, w, out=out, accumulate=True)
    same(gpu, out, wanted.forward + 1, 'float32')
    assert not any(of_planes for _, of_planes in launched) and 'pack' in dict(launched)


@pytest.mark.parametrize(('kernel', 'pattern', 'replacement'), [
    ('correlate', r'(b_wanted_\d) & \(p_in\d+ < end\)', r'\1'),                    # channels beyond the last
    ('correlate', r'group \* source_group', '0 * source_group'),                  # all samples read the first
    ('correlate', r'group \* target_group', '0 * target_group'),
    ('correlate', r'(row\w*) \* bias_row', r'0 * bias_row'),
    ('correlate', r'(left\w* = )i32\(room\w* -', r'\1i32(8 + room -'),              # cells beyond the last
    ('gather', r'group \* weight_group', '0 * weight_group'), ('gather', r'(z\w*) \* weight_z', r'0 * weight_z')])
def test_defect(monkeypatch, kernel, pattern, replacement):
    gpu, data = Emulated(monkeypatch), PROBLEM.integers()
    plant(gpu, kernel, lambda text: re.sub(pattern, replacement, text))
    x, w, y = uploaded(gpu, data, 'float32')
    bias, wanted = np.arange(1.0, 22), maps(PROBLEM, *data[:3])
    with pytest.raises((KernelError, AssertionError)) as caught:
        same(gpu, calls.forward(PROBLEM, x, w, gpu.upload(bias, 'float32')), wanted.forward + bias[:, None, None],
             'float32')
        same(gpu, calls.grad_weight(PROBLEM, x, y), wanted.grad_weight, 'float32')
    assert 'nothing to change' not in str(caught.value)


@pytest.mark.parametrize(('batch', 'samples', 'found'), [
    (64, 3, 2), (64, 2, 2), (64, 4, 4), (64, 1, 1), (66, 5, 3), (67, 5, 5), (67, 2, 1), (1, 1, 1), (10, 7, 5)])
def test_blocks_of_as_many_samples(batch, samples, found):
    assert planes.evenly(limits.Parts(samples, 1, 0), batch).samples == found


@pytest.mark.parametrize(('way', 'parts', 'positions', 'size', 'batch', 'cuts'), [
    ('fma', limits.Parts(1, 1, 0), 3136, 64 * 64 * 4, 64, 2), ('f16', limits.Parts(1, 1, 0), 3136, 64 * 64 * 4, 64, 1),
    ('f16', limits.Parts(20, 1, 0), 3136, 64 * 64 * 4, 64, 2), ('fma', limits.Parts(1, 3, 0), 3136, 64 * 64 * 4, 64, 3),
    ('fma', limits.Parts(1, 1, 0), 3136, 2**20, 64, 1), ('fma', limits.Parts(1, 1, 0), 3136, 2**30, 64, 1)])
def test_parts_are_short(way, parts, positions, size, batch, cuts):
    """But for what they would take of memory."""
    assert planes.short(parts, positions, way, size, batch).cuts == cuts


@pytest.mark.parametrize(('cells', 'size', 'taken'), [(2**29 - 4, 4, True), (2**29, 4, False), (2**30, 2, False)])
def test_planes_that_32_bits_do_not_count_are_packed(cells, size, taken):
    layout = Layout(0, cells * size, 0, 0, size, True)
    assert planes.are_planes(Ref('first'), layout, (1, 1, cells), size) == taken


@pytest.mark.parametrize(('x', 'w', 'padding'), [
    ((130, 8, 1024, 1024), (8, 8, 1, 1), 0), ((1, 8, 12000, 12000), (8, 8, 1, 1), 0),
    ((140, 3, 1024, 1024), (6, 3, 3, 3), 1), ((65537, 16, 28, 73), (24, 16, 1, 1), 0)])
def test_no_more_parts_than_a_launch_counts(monkeypatch, x, w, padding):
    """Of sums so long that parts of them would be too many."""
    monkeypatch.undo()
    launches = Planned(monkeypatch)('grad_weight', x, w, 'float32', padding=padding)
    assert launches and all(number < 2**16 for _, _, grid in launches for number in grid[1:])


def test_nor_of_single_samples(monkeypatch):
    monkeypatch.undo()
    Planned(monkeypatch)
    settings = {'stride': 1, 'padding': 1, 'dilation': 1, 'groups': 1}
    geometry, _ = geometries.convolved(2, (3000, 3, 224, 224), (64, 3, 3, 3), None, None, **settings)
    plan = _cuda.plan('grad_weight', geometry._replace(per_sample=True), DTYPES['float32'], 'auto')
    assert 0 < plan.scratch_minimum <= plan.scratch_size
