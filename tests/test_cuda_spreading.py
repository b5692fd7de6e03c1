"""Results of a stride's phases, which are made channels last and copied to their places, and strided operands of which
no cell is copied that no tap reads.

Emulated on any machine; with `-m gpu` on the real device, where what is launched is not looked at.
"""
import numpy as np
import pytest

import calls
import pyconv
from calls import last, per_channel
from gpus import WAYS, Emulated
from problems import P, maps
from pyconv import _cuda
from pyconv._gpu import tiles
from test_cuda import same
from test_cuda_semantics import LAYOUTS, bits
from test_cuda_types import complex_data
from test_nonfinite import spoiled, without_zeros

pytestmark = pytest.mark.usefixtures('tiles_alone')
PROBLEMS = [
    P('phases', (9, 10), (3, 3), (16, 5), stride=2, padding=1, batch=3),
    P('phases along x', (5, 11), (3, 3), (8, 9), stride=(1, 3), padding=1),
    P('phases of groups', (6, 7), (3, 4), (32, 12), stride=2, groups=2, padding=(1, 2)),
    P('phases, some without a tap', (9, 11), (2, 3), (8, 5), stride=(3, 4), padding=1),
    P('one phase', (9, 7), (1, 1), (16, 7), stride=2, batch=3),
    P('one phase, cells before it', (10, 13), (1, 1), (8, 6), stride=(2, 4), padding=((1, 0), (2, 1))),
    P('one phase behind the edge', (8, 9), (1, 1), (8, 6), stride=(3, 2), padding=((-1, 0), (0, -1))),
    P('phases 1d', (13,), (3,), (24, 4), stride=2, padding=1),
    P('one phase 3d', (3, 5, 6), (1, 1, 1), (8, 4), stride=(2, 1, 3)),
]
LEAVING = PROBLEMS[3:7] + PROBLEMS[8:]
# One tap along an axis: positions that step over cells, and those of an edge that lack theirs
STRIDED = [
    P('strided', (9, 8), (1, 1), (12, 20), stride=2, batch=3), P('strided along y', (9, 8), (1, 3), (9, 7), stride=2),
    P('strided groups', (7, 11), (1, 1), (32, 24), stride=(3, 4), groups=2),
    P('strided padded', (7, 8), (1, 1), (8, 9), stride=2, padding=1),
    P('strided and cropped', (11, 10), (1, 2), (8, 9), stride=(3, 2), padding=((-2, 0), (0, -1))),
    P('strided 3d', (4, 5, 7), (1, 3, 1), (8, 4), stride=2), P('strided 1d', (11,), (1,), (17, 16), stride=3)]


def in_ways(problems, several):
    """(problem, way): some problems in every way, the others in what differs most in how numbers are kept."""
    return [(problem, way) for problem in problems
            for way in (WAYS if problem in several else ('float16', 'float64', 'wgmma tf32'))]


def spread_from(monkeypatch, size):
    """Results of so many bytes and more are copied to their places."""
    monkeypatch.setattr(tiles, 'LEAST_SPREAD', size)
    _cuda.forget()


@pytest.fixture(autouse=True)
def however_small(monkeypatch):
    spread_from(monkeypatch, 0)


def check_launched(gpu, call, copied, filled=0):
    """How many launches copy what has been made, where the emulated device lists them, and how many fill cells."""
    if hasattr(gpu, 'device'):
        gpu.device.launched.clear()
    found = call()
    if hasattr(gpu, 'device'):
        assert [gpu.device.launched.count(name) for name in ('unpack', 'fill')] == [copied, filled]
    return found


@pytest.mark.parametrize(('problem', 'way'), in_ways(PROBLEMS, (PROBLEMS[0], PROBLEMS[4])), ids=str)
def test_phases(gpu, problem, way, monkeypatch):
    """Integers exactly, a bias everywhere once, nothing beside the results; floats to the bits of what is written at
    once. Cells without a tap are filled in scratch, but where one phase has all taps."""
    dtype, keywords = WAYS[way]
    data, floats = problem.integers(low=-2, high=2), problem.floats(np.float32)
    w, y, c = (gpu.upload(array, dtype) for array in (data.w, data.y, data.c))
    wanted = np.full((problem.batch + 1, *data.x.shape[1:]), 7.0)
    whole = gpu.upload(wanted, dtype)
    out = whole.view(lambda array: array[1:]) if hasattr(gpu, 'device') else whole[1:]
    check_launched(gpu, lambda: calls.transposed(problem, y, w, c, out=out, **keywords), 1, problem is PROBLEMS[3])
    wanted[1:] = maps(problem, *data[:3]).grad_input + per_channel(data.c, problem.rank)
    same(gpu, whole, wanted, dtype)
    w, y, c = (gpu.upload(array, dtype) for array in (floats.w, floats.y, floats.c))
    spread = calls.transposed(problem, y, w, c, **keywords)
    spread_from(monkeypatch, 2**62)
    found = check_launched(gpu, lambda: calls.transposed(problem, y, w, c, **keywords), 0, problem in LEAVING)
    assert bits(gpu, spread) == bits(gpu, found)


@pytest.mark.parametrize('dtype', ['complex64', 'complex128'])
@pytest.mark.parametrize('problem', [PROBLEMS[0], PROBLEMS[4]], ids=str)
def test_phases_of_complex_numbers(gpu, problem, dtype):
    data = complex_data(problem)
    w, y = gpu.upload(data.w, dtype), gpu.upload(data.y, dtype)
    if not hasattr(gpu, 'device'):
        pytest.skip('a real GPU is given real numbers by these tests')
    found = check_launched(gpu, lambda: calls.grad_input(problem, w, y), 1)
    same(gpu, found, maps(problem, *data[:3]).grad_input, dtype)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_results_in_any_order(gpu, layout):
    """Those whose channels are neighbours are written at once; others are copied wherever they lie."""
    problem, rank, lay = PROBLEMS[0], 2, LAYOUTS[layout]
    data = problem.integers()
    w, y = gpu.upload(data.w, 'float32'), gpu.upload(lay(data.y, rank), 'float32')
    out = gpu.upload(lay(data.x * 0, rank), 'float32')
    check_launched(gpu, lambda: calls.grad_input(problem, w, y, out=out), layout in ('turned', 'spread'))
    same(gpu, out, maps(problem, *data[:3]).grad_input, 'float32')


@pytest.mark.parametrize('change', [{'channels': (9, 5)}, {'stride': (2, 1)}, {'padding_mode': 'reflect'},
                                    {'kernel': (2, 2), 'size': (8, 10), 'padding': 0}],
                         ids=['no whole chunks', 'neighbours along x', 'padding mode', 'disjoint taps'])
def test_what_is_written_at_once(gpu, change):
    problem = PROBLEMS[0]._replace(name=f'at once {change}', **change)
    data = problem.integers()
    w, y = gpu.upload(data.w, 'float32'), gpu.upload(data.y, 'float32')
    found = check_launched(gpu, lambda: calls.grad_input(problem, w, y), 0)
    same(gpu, found, maps(problem, *data[:3]).grad_input, 'float32')


def test_small_results_are_written_at_once(gpu, monkeypatch):
    """And so is what is added to the result, where halves would be rounded twice."""
    problem = PROBLEMS[0]
    data = problem.integers()
    w, y = gpu.upload(data.w, 'float16'), gpu.upload(data.y, 'float16')
    bytes_of_results = data.x.size * 2
    for least, copied in ((bytes_of_results, 1), (bytes_of_results + 1, 0)):
        spread_from(monkeypatch, least)
        found = check_launched(gpu, lambda: calls.grad_input(problem, w, y), copied)
    spread_from(monkeypatch, 0)
    check_launched(gpu, lambda: calls.grad_input(problem, w, y, out=found, accumulate=True), 0)
    same(gpu, found, 2 * maps(problem, *data[:3]).grad_input, 'float16')


@pytest.mark.parametrize('way', ['float16', 'float32', 'tf32x3'])
@pytest.mark.parametrize('problem', [PROBLEMS[0], PROBLEMS[3], PROBLEMS[4]], ids=str)
def test_not_finite(gpu, problem, way):
    """The direct kernels write behind the copy, with the least scratch too."""
    dtype, keywords = WAYS[way]
    data = without_zeros(problem.integers(low=-2, high=2))
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype, device='cuda',
                             **keywords)
    for part in 'wy':
        parts = {name: getattr(data, name) for name in 'xwy'}
        parts[part] = spoiled(parts[part], (np.inf, np.nan), 1, corners=part == 'w')
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, *parts.values()).grad_input
        w, y = gpu.upload(parts['w'], dtype), gpu.upload(parts['y'], dtype)
        for size in (wants.fgrad_input_minimum, wants.fgrad_input):
            same(gpu, calls.grad_input(problem, w, y, fgrad_input=gpu.empty((size,), dtype), **keywords), wanted, dtype)


@pytest.mark.parametrize('problem', [PROBLEMS[0], PROBLEMS[4]], ids=str)
def test_bits_know_neither_batch_nor_buffer(gpu, problem):
    problem = problem._replace(name=f'{problem}, 4 samples', batch=4)
    floats = problem.floats(np.float32)
    w, y = gpu.upload(floats.w, 'float16'), gpu.upload(floats.y, 'float16')
    wants = pyconv.workspace(
        problem.input_shape, problem.weight_shape, **problem.keywords, dtype='float16', device='cuda')
    whole = calls.grad_input(problem, w, y)
    for size, runs in ((wants.fgrad_input_minimum, 4), (wants.fgrad_input, 1)):
        found = check_launched(gpu, lambda: calls.grad_input(
            problem, w, y, fgrad_input=gpu.empty((size,), 'float16')), runs)
        assert bits(gpu, found) == bits(gpu, whole)
    alone = calls.grad_input(problem, w, gpu.upload(floats.y[3:], 'float16'))
    assert bits(gpu, alone) == gpu.download(whole)[3].tobytes()


@pytest.mark.parametrize('lay', [lambda array, rank: array, last], ids=['first', 'last'])
@pytest.mark.parametrize(('problem', 'way'), in_ways(STRIDED, STRIDED[:2]), ids=str)
def test_strided(gpu, problem, way, lay):
    """forward and grad_weight, whose operands are copied without the cells that no tap reads; some are not finite."""
    dtype, keywords = WAYS[way]
    data = without_zeros(problem.integers(low=-2, high=2))
    for x in (data.x, spoiled(data.x, (np.inf, np.nan), 1, corners=False)):
        with np.errstate(invalid='ignore'):
            wanted = maps(problem, x, *data[1:3])
        operands = gpu.upload(lay(x, problem.rank), dtype), gpu.upload(data.w, dtype), gpu.upload(data.y, dtype)
        same(gpu, calls.forward(problem, *operands[:2], **keywords), wanted.forward, dtype)
        same(gpu, calls.grad_weight(problem, operands[0], operands[2], **keywords), wanted.grad_weight, dtype)


@pytest.mark.parametrize('way', ['float32', 'float16', 'wgmma float16', 'wgmma tf32'])
def test_a_first_cell_that_begins_at_no_multiple_of_16_bytes(monkeypatch, way):
    """Of channels that lie last, every other cell does, and the first one read does not: it is packed."""
    (dtype, keywords), gpu = WAYS[way], Emulated(monkeypatch)
    problem = P('cropped in front', (10, 12), (1, 1), (8, 9), stride=2, padding=((0, 0), (-1, 0)))
    data, pitch = problem.integers(low=-2, high=2), 12 if dtype == 'float16' else 10          # elements of a cell
    cells = np.full((*data.x.shape[:1], *problem.size, pitch), 7.0)
    cells[..., :8] = np.moveaxis(data.x, 1, -1)
    x = gpu.upload(cells, dtype).view(lambda cells: np.moveaxis(cells[..., :8], -1, 1))
    w, y = gpu.upload(data.w, dtype), gpu.upload(data.y, dtype)
    wanted = maps(problem, *data[:3])
    same(gpu, calls.forward(problem, x, w, **keywords), wanted.forward, dtype)
    same(gpu, calls.grad_weight(problem, x, y, **keywords), wanted.grad_weight, dtype)


@pytest.mark.parametrize('problem, cells', [(STRIDED[0], (5, 4)), (STRIDED[1], (5, 8)), (STRIDED[2], (3, 3)),
                                            (STRIDED[3], (7, 8))], ids=str)
def test_cells_that_no_tap_reads_are_not_copied(problem, cells, monkeypatch):
    """Along an axis with one tap; where positions lack their cells all are copied."""
    gpu, data = Emulated(monkeypatch), problem.integers()
    x, w, y = (gpu.upload(array, 'float32') for array in (data.x, data.w, data.y))
    copied, real = [], gpu.device.launch

    def launch(launches, stream):
        copied.extend(dict(zip(kernel.source.arguments, arguments.given()))['cells']
                      for kernel, _, arguments in launches if kernel.source.name == 'pack')
        return real(launches, stream)
    gpu.device.launch = launch
    calls.forward(problem, x, w)
    calls.grad_weight(problem, x, y)
    assert copied[:2] == [problem.batch * np.prod(cells)] * 2
