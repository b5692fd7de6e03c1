"""Chips before sm_80, which have no asynchronous copies and compute without tensor cores: emulated on any machine.

16-bit floats become float32 as they are copied into shared memory, where they are multiplied and summed as such.
"""
import numpy as np
import pytest

import calls
from calls import last
from gpus import Emulated, less, rounded, take_tile
from problems import BY_NAME, VARIED, P, maps
from pyconv import _cuda
from pyconv._gpu import tiles
from test_cuda import same

HALVES = ['float16', 'bfloat16']
LAYERS = [P('layer', (9, 8), (3, 3), (36, 20), padding=1, groups=2), P('long', (4, 4), (3, 3), (40, 24), padding=1),
          P('1 by 1', (7, 6), (1, 1), (40, 72))]
every_half = pytest.mark.parametrize('dtype', HALVES)


def before_sm80(monkeypatch):
    return Emulated(monkeypatch, capability=(7, 5))


def three_maps(gpu, problem, data, dtype, channels_last=False):
    laid = (last(array, problem.rank) if channels_last else array for array in data[:3])
    return calls.three_maps(problem, *(gpu.upload(array, dtype) for array in laid))


def check_maps(gpu, problem, data, dtype, channels_last=False):
    wanted = maps(problem, *data[:3])
    for found, exact in zip(three_maps(gpu, problem, data, dtype, channels_last),
                            (wanted.forward, wanted.grad_input, wanted.grad_weight)):
        same(gpu, found, exact, dtype)


@pytest.mark.parametrize('dtype', [*HALVES, 'float32', 'float64'])
def test_tiles_are_chosen(monkeypatch, dtype):
    gpu, problem = before_sm80(monkeypatch), BY_NAME['2d many channels strided']
    check_maps(gpu, problem, problem.integers(low=-1, high=1), dtype)
    assert {'gather', 'correlate'} <= set(gpu.device.launched)


@pytest.mark.parametrize(('size', 'problem'), [
    (size, problem) for size in range(4) for problem in ([] if size > 1 else VARIED[1::5]) + LAYERS], ids=str)
@every_half
def test_all_maps(monkeypatch, tiles_alone, problem, size, dtype):
    """In one part and several, channels first and last."""
    gpu = before_sm80(monkeypatch)
    problem = less(gpu, problem)
    take_tile(monkeypatch, size)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 3 if size else 1)
    check_maps(gpu, problem, problem.integers(low=-1, high=1), dtype, size == 1)


@pytest.mark.parametrize('problem', [*LAYERS, BY_NAME['2d stride 2 kernel 2']], ids=str)
@pytest.mark.parametrize('size', range(3))
def test_all_maps_in_float64(monkeypatch, tiles_alone, problem, size):
    """As on chips of 8.6, which have no tensor cores for it either."""
    gpu = Emulated(monkeypatch, capability=(8, 6))
    take_tile(monkeypatch, size)
    check_maps(gpu, problem, problem.integers(), 'float64', size == 1)


@pytest.mark.parametrize('problem', LAYERS, ids=str)
@every_half
def test_bits_are_those_of_float32_rounded_once(monkeypatch, tiles_alone, problem, dtype):
    """Numbers of 16 bits are float32's too, and summed in the same order."""
    gpu = before_sm80(monkeypatch)
    data = [rounded(array, dtype) for array in problem.floats()[:3]]
    wanted = [rounded(gpu.download(found), dtype) for found in three_maps(gpu, problem, data, 'float32')]
    for found, exact in zip(three_maps(gpu, problem, data, dtype), wanted):
        assert np.array_equal(gpu.download(found), exact)


@every_half
def test_same_bits_of_a_sample_in_any_batch_and_tile(monkeypatch, tiles_alone, dtype):
    gpu, problem = before_sm80(monkeypatch), LAYERS[0]._replace(batch=3)
    data, found = problem.floats(), []
    for size in range(4):
        take_tile(monkeypatch, size)
        _cuda.forget()
        found += [gpu.download(array) for array in three_maps(gpu, problem, data, dtype)[:2]]
    alone = three_maps(gpu, problem._replace(batch=1), [data.x[2:], data.w, data.y[2:]], dtype)
    for first, *others, last_of_all in zip(*(found[size:size + 2] for size in range(0, 8, 2)), alone):
        assert {first.tobytes()} == {other.tobytes() for other in others}
        assert first[2:].tobytes() == gpu.download(last_of_all).tobytes()
