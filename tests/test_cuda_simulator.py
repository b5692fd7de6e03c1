"""The kernels without tiles under Numba's simulator, against the reference with ==.

Beyond what the emulator sees: every thread has values of its own, and runs to its next barrier before others get their
turn, where the emulator goes forward with all at once. So threads of one warp race too, a barrier that some threads do
not reach is an error, and nothing rests on how the emulator spreads values over threads. Where kernels have barriers a
thread is one of the operating system; blocks are a fourth of those that ship.
"""
import importlib.util

import pytest

from pyconv._gpu import configurations, launch, tiles

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec('numba_cuda') is None,
    reason=f'the compiler is not installed: {launch.install_command()}')

PROGRAM = '''
import re
import sys
import types
import numpy as np
import pytest
from pyconv._gpu import plain
plain.THREADS //= 4                 # before others read it
import calls, gpus, plan_runs, pyconv, simulated, test_cuda_padding
from calls import last
from problems import P, maps
from pyconv._gpu import tiles
from test_cuda import same
from test_cuda_padding import settings_of

gpus.EmulatedDevice = simulated.SimulatedDevice
gpu = gpus.Emulated(pytest.MonkeyPatch())
problem, dtype, rate, kernel = eval(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
tiles.DIRECT_RATE, tiles.LEAST_SPREAD = rate, 0
tiles.parts_of_correlate = lambda *_: 2
make = gpu.device.kernel
def spoiled(source, *settings):
    if source.name == kernel:
        text, count = re.subn(r'\\n +barrier\\(\\)', '', source.text, count=1)
        assert count == 1
        source = types.SimpleNamespace(name=source.name, arguments=source.arguments, text=text)
    return make(source, *settings)
gpu.device.kernel = spoiled

data = problem.integers(np.dtype('float64'))
wanted = maps(problem, data.x, data.w, data.y)
x, w, y, b = (gpu.upload(array, dtype) for array in (data.x, data.w, last(data.y, problem.rank), data.b))
if kernel in ('none', 'channel_sum'):
    same(gpu, pyconv.conv_bias(y), data.y.sum(axis=(0, *range(2, data.y.ndim))), dtype)
if kernel != 'channel_sum':
    same(gpu, calls.grad_weight(problem, gpu.upload(last(data.x, problem.rank), dtype), y), wanted.grad_weight, dtype)
if kernel != 'none':
    sys.exit('what lacks a barrier was right')
same(gpu, calls.forward(problem, x, w, b), wanted.forward + calls.per_channel(data.b, problem.rank), dtype)
same(gpu, calls.grad_input(problem, w, y), wanted.grad_input, dtype)
none = (gpu.empty(shape[:1] + (0,) + shape[2:], dtype) for shape in (problem.input_shape, problem.weight_shape))
same(gpu, calls.forward(problem, *none, b), 0 * wanted.forward + calls.per_channel(data.b, problem.rank), dtype)
settings = {name: value for name, value in problem.keywords.items() if name != 'groups'}
columns = pyconv.unfold(x, problem.kernel, **settings)
same(gpu, columns, pyconv.unfold(data.x, problem.kernel, **settings), dtype)
same(gpu, pyconv.fold(columns, problem.size, problem.kernel, **settings),
     pyconv.fold(pyconv.unfold(data.x, problem.kernel, **settings), problem.size, problem.kernel, **settings), dtype)
for mode in sys.argv[5].split():
    wanted, g = test_cuda_padding.wanted_of(problem, mode, data), plan_runs.geometry_of(problem, **settings_of(mode))
    for map, first, second, found in (('forward', data.x, data.w, wanted.forward), ('grad_input', data.y, data.w,
                                      wanted.grad_input), ('grad_weight', data.x, data.y, wanted.grad_weight)):
        same(gpu, plan_runs.run(gpu, map, g, first, second, found.shape, dtype), found, dtype)
print(*sorted(gpu.device.simulated))
'''
ASKED_FOR = {'direct', 'direct_weight', 'finish', 'channel_sum', 'unfold', 'fold', 'fill'}
OF_ONE_CHANNEL = {'depthwise', 'depthwise_weight'}
FOR_TILES = {'pack', 'unpack', 'pack_weight', 'clear_flag', 'scan'}


def simulate(run_python, problem, dtype, rate=1e9, without_barrier='none', modes=''):
    found = run_python(PROGRAM, problem, dtype, rate, without_barrier, modes, NUMBA_ENABLE_CUDASIM='1', timeout=300)
    return set(found.split())


@pytest.mark.parametrize(('problem', 'dtype', 'rate', 'kernels'), [
    ("P('1d', (5,), (2,), (2, 1), stride=2, padding=1)", 'float64', 1e9, ASKED_FOR),
    ("P('tiles', (2,), (2,), (4, 4), stride=2, padding=1, batch=1)", 'float32', 0.0, ASKED_FOR | FOR_TILES),
    ("P('depthwise', (4, 5), (3, 3), (2, 4), groups=2, padding=1, batch=1)", 'float16', 1e9,
     ASKED_FOR - {'direct_weight'} | OF_ONE_CHANNEL),
    ("P('side by side', (4, 5), (3, 3), (4, 4), groups=4, padding=1, batch=1)", 'float16', 1e9,
     ASKED_FOR - {'direct', 'direct_weight'} | OF_ONE_CHANNEL),
])
def test_against_the_reference(run_python, problem, dtype, rate, kernels):
    assert simulate(run_python, problem, dtype, rate) == kernels


def test_padding_modes(run_python):
    problem = "P('1d', (3,), (2,), (1, 2), padding=1)"
    assert simulate(run_python, problem, 'float32', 0.0, modes='reflect constant') >= {'pack', 'direct', 'adjoint'}


def test_all_kernels_are_simulated():
    assert ASKED_FOR | FOR_TILES | {'adjoint'} == set(configurations.SIMPLE)
    assert {one.source.name for one in configurations.of_strips(tiles.ELEMENTS['float32'])} == OF_ONE_CHANNEL


@pytest.mark.parametrize(('problem', 'kernel'), [
    ("P('tiles', (4,), (2,), (1, 4), padding=1)", 'direct_weight'),
    ("P('tiles', (4,), (2,), (1, 4), padding=1)", 'channel_sum'),
    ("P('depthwise', (4, 5), (3, 3), (2, 2), groups=2, padding=1, batch=1)", 'depthwise_weight'),
])
def test_a_missing_barrier_shows(run_python, problem, kernel):
    """The control: the same run, with one barrier less, must not end well."""
    with pytest.raises(AssertionError, match='should be'):
        simulate(run_python, problem, 'float32', 1e9, kernel)
