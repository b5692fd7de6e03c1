"""No two lanes of a phase meet in one bank of shared memory: every kernel's accesses, counted in the emulator."""
import numpy as np
import pytest

import calls
import pyconv
from gpus import IN_TILES, WAYS, Emulated, take_tile
from problems import LESS, some
from pyconv._gpu import tiles

# What each kernel does to shared memory; in correlate, ldmatrix turns elements of 16 bits alone.
ACCESSES = {
    'gather': {'float32': 'shared_f32x4', 'float64': 'shared_f64x2', None: 'ldmatrix'},  # and the places of results
    'correlate': {'float32': 'shared_f32x4', 'float64': 'shared_f64', 'tf32': 'shared_b32', 'tf32x3': 'shared_b32',
                  None: 'ldmatrix_transposed'},
}

WITHOUT = {('float64', (8, 6)): 'shared_f64x2', ('float16', (7, 5)): 'shared_f32x4'}  # tensor cores


def counted(monkeypatch, capability=(9, 0)):
    """A GPU, and a list of (kernel, wavefronts per phase of each primitive) of its launches."""
    gpu = Emulated(monkeypatch, capability=capability, statistics=True, races=False)
    found, run = [], gpu.device.run

    def and_count(kernel, *rest):
        run(kernel, *rest)
        found.append((kernel.source.name, gpu.device.statistics))

    gpu.device.run = and_count
    return gpu, found


PROBLEMS = [*some('2d stride 2 dilation 3'), LESS['2d many channels kernel 1'], LESS['2d first layer']]


@pytest.mark.sparse
@pytest.mark.parametrize(('way', 'size', 'capability', 'problem'), [
    (way, size, capability, problem)
    for way, size, capability in [*((way, size, (9, 0)) for way, size in IN_TILES),
                                  *((way, size, capability) for way, capability in WITHOUT for size in range(4))]
    for problem in PROBLEMS[:1 if size > 1 else 2 if size or way != 'float32' else 3]], ids=str)
def test_tiles(monkeypatch, way, capability, size, problem):
    dtype, keywords = WAYS[way]
    keywords = keywords or {'algorithm': 'gemm'}  # in that way, whatever is the fastest
    gpu, found = counted(monkeypatch, capability)
    monkeypatch.setattr(tiles, 'is_direct', lambda *_: False)
    take_tile(monkeypatch, size)
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    calls.three_maps(problem, *(gpu.upload(np.ones(shape), dtype) for shape in shapes), **keywords)
    assert {count for _, statistics in found for count in statistics.values()} == {1}
    counts = {kernel: set(statistics) for kernel, statistics in found}
    if 'wgmma' in way:      # the tensor cores read for themselves
        assert counts['gather_hopper'] == {'copy16', 'put_f32', 'shared_f32', 'put_i64', 'shared_i64'}
        assert counts['correlate'] == {'copy16'} | ({ACCESSES['correlate']['tf32']} if 'tf32' in way else set())
        return
    for kernel, names in ACCESSES.items():
        access = WITHOUT.get((way, capability), names.get(way.partition(' m16')[0], names[None]))
        real = 'f64' if dtype == 'float64' else 'f32'
        places = {f'{how}_{kind}' for how in ('put', 'shared') for kind in ('i64', real)}
        assert counts[kernel] == {'copy16', access} | (places if kernel == 'gather' else set())


@pytest.mark.sparse
@pytest.mark.parametrize('way', WAYS)
def test_other_kernels(monkeypatch, way):
    """Layout changes, and sums by a tree."""
    dtype, keywords = WAYS[way]
    gpu, found = counted(monkeypatch)
    monkeypatch.setattr(tiles, 'is_direct', lambda *_: True)
    for problem in some('2d depthwise', '2d depthwise kernel 7', '2d depthwise uneven pads'):
        for turn in (np.asarray, lambda array: calls.last(array, 2)):
            x, y = (gpu.upload(turn(np.ones(shape)), dtype) for shape in (problem.input_shape, problem.output_shape))
            calls.grad_weight(problem, x, y, **keywords)
    pyconv.conv_bias(y)
    monkeypatch.undo()
    kernels = {kernel for kernel, statistics in found if statistics}
    assert kernels == {'direct_weight', 'channel_sum', 'depthwise_weight'}
    assert {count for _, statistics in found for count in statistics.values()} == {1}
