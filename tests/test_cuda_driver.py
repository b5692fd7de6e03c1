"""Calls through the real cuda-bindings and Numba over a driver that runs nothing (stub_cuda.c): what they ask it to do,
in which order, and what its failures become. Needs no GPU; what kernels compute is not seen here.
"""
import json
import os
import re
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

import pyconv
from pyconv._gpu import cubins
from stub_cuda import COMPILER, built, has_compiler

HERE = Path(__file__).parent
SHAPES = (32, 128, 30, 30), (128, 128, 3, 3), (32, 128, 28, 28)  # whose product takes more than 48 KB of shared memory
STREAM, OTHER, THIRD = 0x5000, 0x6000, 0x7000
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
RESULT_BYTES = 4 * prod(SHAPES[2])
POISON = 700  # CUDA_ERROR_ILLEGAL_ADDRESS
RESTART = 'no CUDA call works in this process any more: it must restart'


# In a process of its own, where the stub is the driver

def planned(x, w, out, buffer):
    """The launches that a call on these arrays must make as its plan has them: all but the stream of what the stub
    notes. Their kernels are put into the cache: for the stub, a name and a number of arguments."""
    from pyconv import _cuda
    from pyconv import _geometries as geometries
    from pyconv._gpu import kinds
    from pyconv._gpu.launches import aligned

    geometry, _ = geometries.convolved(2, x.shape, w.shape, None, None, 1, 0, 1, 1)
    first, second, to, scratch = (kinds.read('operand', array) for array in (x, w, out, buffer))
    [(program, given)] = _cuda.plan('forward', geometry, first.dtype).steps(first, second, to, None, scratch)
    addresses = {**{word: array.address for word, array in given.items()}, 'scratch': aligned(scratch.address)}
    found = []
    for one in program.launches:
        source, threads, shared, blocks = one.kernel
        image = f'{source.name} {len(source.arguments)}\0'.encode()
        name = cubins.key(source, threads, blocks, 'sm_90a')
        cubins.store(name, cubins.Compiled(image, source.name, 32, 0, 0))
        values = list(one.arguments)
        for place, (base, offset) in one.places:
            values[place] = addresses[base] + offset
        found.append((source.name, 'grid {} {} {} block {} 1 1 shared {}'.format(*one.grid, threads, shared),
                      ' '.join(map(str, values))))
    return found


def observe():
    """Print what the driver is asked to do by calls, and the errors that its failures become."""
    import ctypes

    import numpy as np

    from gpu_fakes import Interface

    stub = ctypes.CDLL('libcuda.so.1')
    stub.stub_take.restype = ctypes.c_char_p
    hosts = [np.zeros(shape, 'f4') for shape in (*SHAPES, (4_000_000,))]
    seen = {}

    def call(name, streams=(None,) * 4, fails=('', 0), lend_out=True, **more):
        x, w, out, buffer = (Interface(host, stream=stream) for host, stream in zip(hosts, streams))
        stub.stub_take()
        stub.stub_fail(fails[0].encode(), fails[1])
        try:
            result = pyconv.conv2d(x, w, out=out if lend_out else None, finput=buffer, **more)
            said = '' if lend_out else result.__cuda_array_interface__['stream']
        except Exception as error:  # Numba's own too
            said = '\n'.join((type(error).__name__, str(error), *getattr(error, '__notes__', ())))
        finally:
            stub.stub_fail(b'', 0)
        seen[name] = stub.stub_take().decode().splitlines(), said

    seen['planned'] = planned(*map(Interface, hosts))
    call('first')
    call('again')
    seen['loaded'] = sorted({'numba', 'llvmlite', 'pyconv._gpu.ptx'} & set(sys.modules))
    call('named', stream=STREAM)
    call('of one stream', (STREAM,) * 4)
    call('of two streams', (STREAM, OTHER, STREAM, STREAM))
    call('of two streams, named', (STREAM, OTHER, THIRD, THIRD), stream=THIRD)
    call('no wait', (STREAM, OTHER, STREAM, STREAM), fails=('cuStreamWaitEvent', POISON))
    call('lost', fails=('cuPointerGetAttribute', POISON))
    call('not launched', fails=('cuLaunchKernel', POISON))
    call('new', lend_out=False)
    call('new, named', lend_out=False, stream=STREAM)
    call('refused', fails=('cuMemAlloc', 2), lend_out=False)
    call('poisoned', fails=('cuMemAlloc', POISON), lend_out=False)
    print(json.dumps(seen))


# Here

@pytest.fixture(scope='session')
def stub(tmp_path_factory):
    """The folder where the stub lies under the driver's name."""
    if sys.platform != 'linux':
        pytest.skip('the stub takes the place of libcuda.so.1, which is Linux\'s')
    if not {'cuda-bindings', 'numba-cuda'} <= set(cubins.versions()):
        pytest.skip('cuda-bindings and numba-cuda, which call the driver, are not installed')
    if not has_compiler():
        pytest.skip(f'no C compiler is here; that of this Python is {COMPILER[:1]}')
    return built(tmp_path_factory.mktemp('stub')).parent


@pytest.fixture(scope='session')
def seen(stub):
    """What `observe` prints: of each call the notes of the stub, and the error or the stream of the result."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(('NUMBA', 'CUDA'))}
    run = subprocess.run(
        [sys.executable, '-c', 'import test_cuda_driver; test_cuda_driver.observe()'], cwd=stub, text=True, timeout=120,
        capture_output=True, env={
            **inherited, 'PYTHONPATH': os.pathsep.join([str(Path(pyconv.__file__).parents[1]), str(HERE)]),
            'LD_LIBRARY_PATH': os.pathsep.join([str(stub), *filter(None, [os.environ.get('LD_LIBRARY_PATH')])]),
            'PYCONV_CACHE_DIR': str(stub / 'cache')})
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def launches(seen, stream):
    """As the stub notes those that are planned, on a stream."""
    return [f'cuLaunchKernel {name} {shape} stream {stream} arguments {values}'
            for name, shape, values in seen['planned']]


def test_a_first_call_loads_each_kernel_once_before_it_launches(seen):
    """Loading is no part of a graph that the caller captures."""
    loads = dict.fromkeys(f'cuModuleLoadData {name} mode {RELAXED}' for name, *_ in seen['planned'])
    assert seen['first'] == [[*loads, *launches(seen, 0)], ''] and len(loads) > 1
    assert seen['loaded'] == [], 'kernels that are kept need no compiler'


@pytest.mark.parametrize(('name', 'stream'), [('again', 0), ('named', STREAM), ('of one stream', STREAM)])
def test_a_later_call_does_nothing_but_launch(seen, name, stream):
    """On the stream that is named, or that its arrays name; nothing waits, nothing is allocated."""
    assert seen[name] == [launches(seen, stream), '']


def waits(number, stream, other):
    return [f'cuEventRecord {number} on {other}', f'cuStreamWaitEvent {stream} for {number}']


def test_streams_wait_for_each_other_on_the_device(seen):
    """The call's for what wrote its arrays; then theirs for what it reads and writes."""
    notes, said = seen['of two streams']
    assert notes == [*waits(1, STREAM, OTHER), *launches(seen, STREAM), *waits(2, OTHER, STREAM)] and said == ''


def test_a_named_stream_is_not_waited_for(seen):
    """Its order is the caller's; it waits for those that arrays name."""
    notes, said = seen['of two streams, named']
    assert said == '' and notes in [
        [*waits(1, THIRD, first), *waits(2, THIRD, second), *launches(seen, THIRD)]
        for first, second in ((STREAM, OTHER), (OTHER, STREAM))]


@pytest.mark.parametrize(('name', 'stream', 'named'), [('new', 0, None), ('new, named', STREAM, STREAM)])
def test_a_result_is_allocated_before_it_is_launched(seen, name, stream, named):
    """By Numba; what it asks besides does not wait either."""
    notes, said = seen[name]
    run = [re.sub(r'arguments.*', '', note) for note in launches(seen, stream)]
    assert [re.sub(r'arguments.*', '', note) for note in notes] == [f'cuMemAlloc {RESULT_BYTES}', *run]
    assert said == named


def test_a_refused_allocation_names_its_bytes(seen):
    """Numba frees what waits for that, and asks again."""
    notes, said = seen['refused']
    assert said == (f'MemoryError\ncuda:0 must have {RESULT_BYTES} bytes free for an array of shape {SHAPES[2]}, dtype '
                    'float32; got CudaAPIError') and set(notes) <= {'cuMemFree'}


@pytest.mark.parametrize(('name', 'text'), [
    ('no wait', 'could not let a stream wait for another'), ('lost', 'could not find the device of an array'),
    ('not launched', 'could not launch .* on a grid of .* bytes')])
def test_a_poisoned_context_says_that_the_process_must_restart(seen, name, text):
    pattern = (f'RuntimeError\n{text}: a kernel of this process, perhaps an earlier one, has failed '
               rf'\(CUDA_ERROR_ILLEGAL_ADDRESS\); {RESTART}')
    assert re.fullmatch(pattern, seen[name][1])


def test_numba_s_error_of_a_poisoned_context_has_that_note(seen):
    assert seen['poisoned'][1].endswith(f'\npyconv: where a kernel has failed, perhaps an earlier one, {RESTART}')


def test_what_calls_cost_is_measured_over_it(stub):
    script = HERE.parent / 'benchmarks' / 'gpu_call_costs.py'
    if not script.exists():
        pytest.skip('installed without its source')
    run = subprocess.run([sys.executable, script, '--quick'], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    _, columns, *rows = (re.split(' {2,}| µs +', line.strip()) for line in run.stdout.splitlines())
    assert columns == ['out', 'bias', 'buffer', 'new']
    assert [row[0] for row in rows] == ['NumPy', 'torch', 'CuPy', 'interface', 'DLPack']
    assert all(len(row) == 9 and min(map(float, row[1:])) > 0 for row in rows)
