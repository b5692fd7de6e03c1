"""Hopper's larger products of float64: all maps, in every tile, and when they are chosen.

Emulated on any machine; with `-m gpu` on a real device of capability 9.0.
"""
import numpy as np
import pytest

import calls
import pyconv
from gpus import Emulated, Real, take_tile
from problems import P, maps
from pyconv import _cuda
from pyconv._gpu import launch, tiles
from test_cuda import same
from test_cuda_types import complex_data

# Padding, strides, rows, channels, positions and taps that fill no tile, no chunk and no stage
PROBLEM = P('doubles', (9, 13), (3, 3), (18, 20), padding=1, stride=(1, 2), dilation=(1, 2), batch=2)
every_shape = pytest.mark.parametrize('shape', [tiles.HOPPER_DOUBLE])


@pytest.fixture
def hopper(gpu):
    if isinstance(gpu, Real) and launch.device(0).capability != (9, 0):
        pytest.skip('this GPU is not of capability 9.0')
    return gpu


@every_shape
def test_all_maps(hopper, shape, monkeypatch, tiles_alone):
    """Exact, and of random numbers the same bits in either tile, in a reduction of several parts."""
    whole = PROBLEM.integers(np.dtype('float64'))
    broken = PROBLEM.floats()
    wanted = maps(PROBLEM, whole.x, whole.w, whole.y)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 3)
    bits = []
    for size in (0, 1):
        take_tile(monkeypatch, size)
        _cuda.forget()
        x, w, y = (hopper.upload(array, 'float64') for array in (whole.x, whole.w, whole.y))
        for found, exact in zip(calls.three_maps(PROBLEM, x, w, y, algorithm=shape),
                                (wanted.forward, wanted.grad_input, wanted.grad_weight)):
            same(hopper, found, exact, 'float64')
        x, w, y = (hopper.upload(array, 'float64') for array in (broken.x, broken.w, broken.y))
        found = calls.three_maps(PROBLEM, x, w, y, algorithm=shape)[:2]
        bits.append([hopper.download(array).tobytes() for array in found])
    assert bits[0] == bits[1]


def test_complex128(hopper, tiles_alone):
    x, w, y = (array.astype('complex128') for array in complex_data(PROBLEM)[:3])
    given = (hopper.upload(array, 'complex128') for array in (x, w, y))
    for found, wanted in zip(calls.three_maps(PROBLEM, *given, algorithm='m16n8k16'),
                             calls.three_maps(PROBLEM, x, w, y)):
        assert np.array_equal(hopper.download(found), wanted)


@every_shape
def test_on_another_chip(monkeypatch, shape):
    gpu = Emulated(monkeypatch, capability=(8, 0))
    x, w = (gpu.upload(array, 'float64') for array in PROBLEM.integers(np.dtype('float64'))[:2])
    with pytest.raises(ValueError, match=r"^algorithm must be 'auto' or 'gemm' on a GPU whose capability is not 9\.0; "
                                         rf"got '{shape}' and capability 8\.0$"):
        calls.forward(PROBLEM, x, w, algorithm=shape)


@pytest.mark.parametrize(('dtype', 'names', 'given'), [
    ('float32', "'tf32x3'", 'm16n8k16'), ('float64', "'m16n8k16'", 'wgmma')])
def test_of_another_dtype(monkeypatch, dtype, names, given):
    gpu = Emulated(monkeypatch)
    x, w = (gpu.upload(array, dtype) for array in PROBLEM.integers(np.dtype('float64'))[:2])
    with pytest.raises(ValueError, match=f"^algorithm must be one of 'auto', 'gemm', {names} for {dtype} on a GPU; "
                                         f"got '{given}'$"):
        calls.forward(PROBLEM, x, w, algorithm=given)


@pytest.mark.parametrize(('capability', 'algorithm', 'rows', 'shape'), [
    ((9, 0), 'auto', 33, 'm16n8k16'), ((9, 0), 'auto', 32, ''), ((9, 0), 'gemm', 33, ''), ((8, 0), 'auto', 33, '')])
def test_what_is_chosen(monkeypatch, tiles_alone, capability, algorithm, rows, shape):
    """Hopper's own product, but for few rows and by 'gemm', which takes that of Ampere."""
    gpu, asked = Emulated(monkeypatch, capability=capability), []
    real = gpu.device.kernel
    gpu.device.kernel = lambda source, *rest: asked.append(source.key) or real(source, *rest)
    x, w = (gpu.upload(np.ones(shape_), 'float64') for shape_ in ((2, 4, 3, 3), (rows, 4, 2, 2)))
    pyconv.conv2d(x, w, algorithm=algorithm)
    [product] = [key for key in asked if key.startswith("('gather'")]
    assert ("'mma_f64_m16n8k16'" in product) == bool(shape) and ("'mma_f64'" in product) != bool(shape)
