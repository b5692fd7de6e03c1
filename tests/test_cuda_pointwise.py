"""Plain products of matrices on the GPU: which problems take the pointwise kernels, and weights read where they lie.

Emulated on any machine; with `-m gpu` on the real device, where what is launched is not looked at.
"""
import re

import numpy as np
import pytest

import calls
from calls import last
from emulator import KernelError
from gpus import DISTINCT, IN_TILES, WAYS, Emulated, take_tile
from problems import P, maps
from pyconv import _cuda
from pyconv._gpu import program, tiles
from test_cuda import same
from test_cuda_defects import plant
from test_cuda_types import complex_data

CHANNELS = P('pointwise', (5, 7), (1, 1), (112, 80), groups=2, batch=3)  # of groups, a reduction that fills no stage
PROBLEMS = [
    CHANNELS, P('pointwise odd', (5, 7), (1, 1), (17, 5), batch=3), P('pointwise 1d', (13,), (1,), (8, 24)),
    P('pointwise 3d', (3, 3, 5), (1, 1, 1), (16, 8)), P('pointwise one cell', (1, 1), (1, 1), (65, 33), batch=9),
    P('pointwise one of each', (1, 1), (1, 1), (1, 1), batch=1)]
OWN = [way for way in DISTINCT if not way.startswith(('float64', 'wgmma'))]  # with pointwise kernels


def noted(gpu, constant='POINTWISE'):
    """A list of (kernel, whether that constant of it is set) of what is launched from now on."""
    found, real = [], gpu.device.kernel

    def kernel(source, *settings):
        found.append((source.name, f"'{constant}': True" in source.key))
        return real(source, *settings)
    gpu.device.kernel = kernel
    return found


def products(found):
    return [pointwise for name, pointwise in found if name in ('gather', 'gather_hopper', 'correlate')]


def first(array, rank):
    return array


def turned(array, rank):
    """As channels last, where what is first and the channels have changed roles."""
    return last(array.swapaxes(0, 1), rank).swapaxes(0, 1)


def spread(array, rank):
    """Channels last, a row between samples, in float16: to be read in place, but not one cell behind the other."""
    whole = np.full((array.shape[0], array.shape[2] + 1, *array.shape[3:], array.shape[1]), np.nan, np.float16)
    whole[:, 1:] = np.moveaxis(array, 1, -1)
    return np.moveaxis(whole[:, 1:], -1, 1)


def check_maps(gpu, problem, dtype, lay=first, **keywords):
    """All maps against the reference, bits of results."""
    data = problem.integers()
    wanted = maps(problem, *data[:3])
    x, w, y = (gpu.upload(lay(array, problem.rank), dtype) for array in data[:3])
    found = calls.three_maps(problem, x, w, y, **keywords)
    for one, exact in zip(found, (wanted.forward, wanted.grad_input, wanted.grad_weight)):
        same(gpu, one, exact, dtype)


@pytest.mark.sparse
@pytest.mark.parametrize(('way', 'size', 'problem'), [
    (way, size, problem) for way, size in IN_TILES for problem in PROBLEMS[:2 if size > 1 else None]], ids=str)
def test_all_maps(gpu, problem, way, size, tiles_alone, monkeypatch):
    """In one part and several, channels first and last; emulated, few channels are first in one tile, last in one."""
    dtype, keywords = WAYS[way]
    take_tile(monkeypatch, size)
    lays = first, last
    if isinstance(gpu, Emulated) and problem not in PROBLEMS[:2]:
        lays = [lays[(size + PROBLEMS.index(problem)) % 2]]
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 3 if size else 1)
    launched = noted(gpu) if isinstance(gpu, Emulated) else None
    for lay in lays:
        check_maps(gpu, problem, dtype, lay, **keywords)
    if launched is not None:
        assert set(products(launched)) == ({False, True} if way == 'wgmma tf32' else {way in OWN})   # its weights' too


@pytest.mark.parametrize(('problem', 'expected'), [
    (P('padded', (5, 4), (1, 1), (8, 16), padding=1), [False, False, False]),
    (P('padded behind', (5, 4), (1, 1), (8, 16), padding=((0, 1), (0, 0))), [False, False, False]),
    (P('cropped', (7, 6), (1, 1), (8, 16), padding=((0, -2), (0, 0))), [False, False, False]),
    (P('shifted', (5, 4), (1, 1), (8, 16), padding=((1, -1), (0, 0))), [False, False, False]),
    (P('strided', (9, 8), (1, 1), (8, 16), stride=2), [True, True, True]),     # of which no other cells are packed
    (P('strided and padded', (5, 4), (1, 1), (8, 16), stride=(2, 1), padding=((0, 4), (0, 0))), [False, False, False]),
    (P('of two taps', (5, 4), (1, 2), (8, 16), padding=((0, 0), (0, 1))), [False, False, False]),
    (P('taps apart', (6, 4), (3, 2), (8, 16), stride=(3, 2)), [False, True, False])], ids=str)
@pytest.mark.parametrize('dtype', ['float16', 'float32'])
def test_which_problems_are(monkeypatch, tiles_alone, problem, expected, dtype):
    """forward, grad_input, grad_weight: by one tap every cell of the source, in order."""
    gpu = Emulated(monkeypatch)
    launched = noted(gpu)
    check_maps(gpu, problem, dtype)
    assert products(launched) == expected


def test_what_lies_apart_is_none(monkeypatch, tiles_alone):
    """Unless it is packed, as correlate's grad_output is."""
    gpu = Emulated(monkeypatch)
    launched = noted(gpu)
    check_maps(gpu, CHANNELS, 'float16', spread)
    assert [name for name, _ in launched if name in ('pack', 'gather', 'correlate')] == [
        'gather', 'gather', 'pack', 'correlate'] and not any(products(launched))
    launched.clear()
    one = CHANNELS._replace(batch=1)
    check_maps(gpu, one, 'float16', spread)       # a sample alone is dense
    assert all(products(launched))


@pytest.mark.parametrize('way', OWN)
def test_same_bits_as_any_other_kernel(gpu, way, tiles_alone, monkeypatch):
    """So that what a sample's bits are does not hang on how the others lie."""
    dtype, keywords = WAYS[way]
    data, found = CHANNELS.floats(), []
    for chosen in (program.is_pointwise, lambda *_: False):
        monkeypatch.setattr(program, 'is_pointwise', chosen)
        _cuda.forget()
        x, w, y = (gpu.upload(array, dtype) for array in data[:3])
        found.append([gpu.download(array).tobytes() for array in calls.three_maps(CHANNELS, x, w, y, **keywords)])
    assert found[0] == found[1]


# Weights

KERNELS = P('weight', (6, 5), (2, 3), (16, 24))
APART = KERNELS._replace(name='taps apart', stride=(2, 3))


@pytest.mark.parametrize(('way', 'problem', 'lay', 'packs'), [
    *((way, CHANNELS, lay, [way == 'wgmma tf32', True]) for way in WAYS for lay in (first, last)),
    *((way, KERNELS, last, [False, True]) for way in ('float16', 'wgmma bfloat16', 'float64', 'tf32x3')),
    ('float16', KERNELS, first, [True, True]),
    *(('float16', problem, turned, [True, False]) for problem in (CHANNELS._replace(groups=1), APART)),
    ('float16', KERNELS._replace(padding=1), last, [False, True]),
    ('float16', KERNELS._replace(channels=(18, 24)), last, [True, True])])  # no whole chunks
def test_a_weight_that_lies_as_tiles_read_it_is_not_packed(monkeypatch, tiles_alone, way, problem, lay, packs):
    """packs: in forward and in grad_input. Where what is not finite matters, it is looked for in either case."""
    dtype, keywords = WAYS[way]
    gpu, data = Emulated(monkeypatch), problem.integers()
    wanted, launched = maps(problem, *data[:3]), noted(gpu)
    x, w, y = (gpu.upload(lay(array, 2), dtype) for array in data[:3])
    for call, operands, exact, packed in ((calls.forward, (x, w), wanted.forward, packs[0]),
                                          (calls.grad_input, (w, y), wanted.grad_input, packs[1])):
        launched.clear()
        same(gpu, call(problem, *operands, **keywords), exact, dtype)
        assert ('pack_weight' in dict(launched)) == packed
        assert packed or 'scan' in dict(launched) or not (way == 'tf32x3' or problem.padding == 1)


@pytest.mark.parametrize(('problem', 'way', 'lay'), [
    (P('one channel in of each group', (3, 3), (1, 1), (3, 48), groups=3), 'tf32x3', first),
    (P('one channel in, cropped', (5, 5), (1, 1), (2, 64), groups=2, padding=((-1, -1), (-1, -1))), 'float16', first),
    (P('one channel in, phases of one tap', (12, 9), (3, 1), (2, 64), groups=2, stride=(2, 1)),
     'wgmma float16', lambda array, *_: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 0, -1)), -1, 0))])
@pytest.mark.parametrize('value', [1, np.nan])
def test_every_group_of_a_weight_in_place_is_looked_at(monkeypatch, tiles_alone, problem, way, lay, value):
    """Of groups of one row lines are as far apart as groups are: an axis of one tells no distance."""
    dtype, keywords = WAYS[way]
    gpu, data = Emulated(monkeypatch), problem.integers()
    data.w[-1, 0, 0, 0] = value
    launched = noted(gpu)
    w, y = gpu.upload(lay(data.w, 2), dtype), gpu.upload(data.y, dtype)
    same(gpu, calls.grad_input(problem, w, y, **keywords), maps(problem, *data[:3]).grad_input, dtype)
    assert 'scan' in dict(launched)


def test_a_weight_from_an_odd_place_on_is_packed(monkeypatch, tiles_alone):
    gpu, data = Emulated(monkeypatch), CHANNELS.integers()
    x, launched = gpu.upload(data.x, 'float16'), noted(gpu)
    for start in (0, 1, 8):                     # elements of 2 bytes, chunks of 16
        line = gpu.upload(np.zeros(data.w.size + start), 'float16')
        w = line.view(lambda memory, start=start: memory[start:].reshape(data.w.shape))
        w.stored()[...] = data.w
        launched.clear()
        same(gpu, calls.forward(CHANNELS, x, w), maps(CHANNELS, *data[:3]).forward, 'float16')
        assert ('pack_weight' in dict(launched)) == (start == 1)


@pytest.mark.parametrize(('groups', 'part'), [
    (1, lambda array: array[:, :16]), (1, lambda array: array[::2, :16]), (40, lambda array: array[:, :16]),
    (1, lambda array: np.broadcast_to(array[:, :1], array.shape)),
    (1, lambda array: np.broadcast_to(array[:1], array.shape))])
def test_a_weight_of_parts_of_another_is_packed(monkeypatch, tiles_alone, part, groups):
    """Its rows do not follow each other, or its groups, or its channels."""
    gpu, whole = Emulated(monkeypatch), np.random.default_rng(3).integers(-4, 5, (40, 32, 1, 1))
    w = gpu.upload(whole, 'float16').view(part)
    problem = CHANNELS._replace(channels=(w.shape[1] * groups, w.shape[0]), groups=groups)
    data, launched = problem.integers(), noted(gpu)
    wanted = maps(problem, data.x, part(whole), data.y).forward
    same(gpu, calls.forward(problem, gpu.upload(data.x, 'float16'), w), wanted, 'float16')
    assert 'pack_weight' in dict(launched)


@pytest.mark.parametrize('dtype', ['complex64', 'complex128'])
def test_complex_numbers(gpu, dtype, tiles_alone):
    """Whose weights are packed as two rows of real numbers."""
    data = complex_data(CHANNELS)
    for lay in (first, last):
        given = (gpu.upload(lay(array, 2), dtype) for array in data[:3])
        for found, wanted in zip(calls.three_maps(CHANNELS, *given), calls.three_maps(CHANNELS, *data[:3])):
            same(gpu, found, wanted, dtype)


# Defects planted in the pointwise kernels

GATHER = {
    'positions beyond the last are read': (r'(there_\d+ = m\w* <) i32\(positions\)', r'\1 i32(positions + 8)'),
    'the reduction has no end': (r' & \(k_in\d+ < i32\(chunks\)\)', ''),
    'all groups read the first': (r'group \* source_group', '0 * source_group'),
    'positions lie elsewhere': (r'(m\w*) \* source_x', r'(\1 ^ 1) * source_x'),
}
CORRELATE = {
    "x is read beyond the part's end": (r'(b_wanted_\d+) & \(p_in\d+ < end\)', r'\1'),
    "y is read beyond the part's end": (r'(a_wanted_\d) & \(p_in\d+ < end\)', r'\1'),
    'all groups read the first': (r'group \* source_group', '0 * source_group'),
    'positions lie elsewhere': (r'(p_in\d+) \* source_x', r'(\1 ^ 1) * source_x'),
}


@pytest.mark.parametrize('way', OWN)
@pytest.mark.parametrize(('kernel', 'defect'), [
    (kernel, defect) for kernel, found in (('gather', GATHER), ('correlate', CORRELATE)) for defect in found])
def test_defect(monkeypatch, tiles_alone, kernel, defect, way):
    """Of arrays that are read where they lie, with channels that fill no stage."""
    dtype, keywords = WAYS[way]
    gpu, data = Emulated(monkeypatch), CHANNELS.integers()
    wanted = maps(CHANNELS, *data[:3])
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: 2)
    plant(gpu, kernel, lambda text: re.sub(*(GATHER if kernel == 'gather' else CORRELATE)[defect], text))
    x, w, y = (gpu.upload(last(array, 2), dtype) for array in data[:3])
    with pytest.raises((KernelError, AssertionError)) as caught:
        if kernel == 'gather':
            same(gpu, calls.forward(CHANNELS, x, w, **keywords), wanted.forward, dtype)
        else:
            same(gpu, calls.grad_weight(CHANNELS, x, y, **keywords), wanted.grad_weight, dtype)
    assert 'nothing to change' not in str(caught.value)
