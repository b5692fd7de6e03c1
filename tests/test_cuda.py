"""Every problem on the GPU: each way to multiply, all maps, against the reference with ==.

Emulated on any machine; with `-m gpu` on the real device, where test_cuda_whole_list goes through all of the list in
every type. Results are exact integers, rounded once by the dtype.
"""
import itertools
import zlib

import numpy as np
import pytest

import calls
import pyconv
from calls import per_channel
from gpus import DISTINCT, IN_TILES, WAYS, Emulated, less, rounded, take_tile
from problems import MODES, PROBLEMS, TEST_ALL, VARIED, P, expected, maps, some
from pyconv._gpu import tiles

every_way = pytest.mark.parametrize('way', WAYS)


def same(gpu, found, wanted, dtype):
    """Exactly the wanted numbers, as that dtype holds them."""
    actual, wanted = gpu.download(found), rounded(wanted, dtype)
    assert actual.shape == wanted.shape
    wrong = ~((actual == wanted) | (np.isnan(actual) & np.isnan(wanted)))
    assert not wrong.any(), (
        f'{np.count_nonzero(wrong)} of {wrong.size} differ, first at {np.argwhere(wrong)[0].tolist()}: '
        f'{actual[wrong][:5]} should be {wanted[wrong][:5]}')


def check_maps(gpu, problem, dtype, **keywords):
    problem = less(gpu, problem)
    check_maps_of(gpu, problem, problem.integers(), expected(problem.name), dtype, dtype, **keywords)


def check_maps_of(gpu, problem, data, wanted, dtype, results, **keywords):
    """The three maps with everything given and the least scratch, and with nothing given; results are of that dtype.

    Emulated, a map is run once, the next in the other way; in which the first is, differs by problem.
    """
    x, w, y = (gpu.upload(array, dtype) for array in data[:3])
    b = gpu.upload(data.b, results)
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype, device='cuda',
                             **keywords)
    runs = ((wanted.forward + per_channel(data.b, problem.rank), calls.forward, (x, w, b), 'finput',
             wants.finput_minimum),
            (wanted.grad_input, calls.grad_input, (w, y), 'fgrad_input', wants.fgrad_input_minimum),
            (wanted.grad_weight, calls.grad_weight, (x, y), 'finput', wants.finput_minimum))
    for number, (result, call, operands, name, size) in enumerate(runs, zlib.crc32(problem.name.encode())):
        for is_given in (number % 2,) if isinstance(gpu, Emulated) else (True, False):
            given = {'out': gpu.empty(result.shape, results), name: gpu.empty((size,), dtype)} if is_given else {}
            found = call(problem, *operands, **given, **keywords)
            assert found is given.get('out', found)
            same(gpu, found, result, results)


def take_tiles_and_parts(monkeypatch, size=0):
    take_tile(monkeypatch, size)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda positions, stages: 3)


# Of eight problems two, or of four, one on tensor cores and one without them; and the others.
RUN = {0, 3, 4, 7} if TEST_ALL else {0, 5}
IN_TURNS = [*zip(PROBLEMS, itertools.cycle(['tf32', 'float32']))]
SOME, OTHERS = ([pair for i, pair in enumerate(IN_TURNS) if (i % 8 in RUN) is chosen] for chosen in (True, False))


@pytest.mark.parametrize(('problem', 'way'), SOME, ids=str)
def test_problems_in_tiles(gpu, problem, way, tiles_alone):
    dtype, keywords = WAYS[way]
    check_maps(gpu, problem, dtype, **keywords)


@pytest.mark.parametrize('gpu', [pytest.param('real', marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize(('problem', 'way'), OTHERS, ids=str)
def test_the_other_problems_in_tiles(gpu, problem, way, tiles_alone):
    """Where a problem takes milliseconds, so that every one is done there."""
    dtype, keywords = WAYS[way]
    check_maps(gpu, problem, dtype, **keywords)


@pytest.mark.parametrize('problem', MODES[::9], ids=str)
def test_padding_modes_in_tiles(gpu, problem, tiles_alone):
    check_maps(gpu, problem, 'float32')


@pytest.mark.sparse
@pytest.mark.parametrize('problem', VARIED[1::4], ids=str)
@every_way
def test_every_way(gpu, problem, way):
    dtype, keywords = WAYS[way]
    check_maps(gpu, problem, dtype, **keywords)


@pytest.mark.sparse
@pytest.mark.parametrize(('way', 'size', 'problem'), [
    (way, size, problem) for way, size in IN_TILES for problem in VARIED[::16 if size else 8] if size != 1], ids=str)
def test_large_tiles_and_parts(gpu, problem, way, size, tiles_alone, monkeypatch):
    """And in the tiles for 64 rows and for few."""
    dtype, keywords = WAYS[way]
    take_tiles_and_parts(monkeypatch, size)
    check_maps(gpu, problem, dtype, **keywords)


@pytest.mark.parametrize('problem', [
    P('2d patches of 24 channels', (6, 9), (2, 3), (24, 20), stride=(2, 3), batch=2), *some('2d stride 2 kernel 2')],
    ids=str)
@pytest.mark.parametrize('size', range(2))
@pytest.mark.parametrize('way', [way for way in DISTINCT if 'wgmma' not in way])
def test_input_gradient_of_taps_that_do_not_overlap(gpu, problem, way, size, tiles_alone, monkeypatch):
    """All taps of a channel are rows of one product, in tiles of their own."""
    dtype, keywords = WAYS[way]
    take_tile(monkeypatch, size)
    data = problem.integers()
    w, y = (gpu.upload(array, dtype) for array in (data.w, data.y))
    same(gpu, calls.grad_input(problem, w, y, **keywords), maps(problem, *data[:3]).grad_input, dtype)
