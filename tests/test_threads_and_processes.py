"""Python threads, OpenMP threads, forked children, Ctrl-C, and every instruction set in a process of its own."""
import contextlib
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, per_channel, poisoned
from problems import LAYERS, VARIED, expected
from pyconv import _memory, _unfolding
from pyconv._backend import cpu
from pyconv._geometries import convolved

needs_fork = pytest.mark.skipif(not hasattr(os, 'fork'), reason='this system does not fork')
needs_signals = pytest.mark.skipif(sys.platform == 'win32', reason='this system sends no SIGINT to another process')
needs_tasks = pytest.mark.skipif(not Path('/proc/self/task').is_dir(), reason='this system does not list its threads')


def in_another_thread(action):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(action).result(timeout=60)


# The number of threads

def test_set_num_threads_is_process_wide():
    for count in (5, 1, 3):
        pyconv.set_num_threads(count)
        assert pyconv.get_num_threads() == count
        assert in_another_thread(pyconv.get_num_threads) == count
    in_another_thread(lambda: pyconv.set_num_threads(4))
    assert pyconv.get_num_threads() == 4


def test_num_threads_is_for_its_own_python_thread():
    pyconv.set_num_threads(3)
    with pyconv.num_threads(7):
        assert pyconv.get_num_threads() == 7
        assert in_another_thread(pyconv.get_num_threads) == 3
        with pyconv.num_threads(2):
            assert pyconv.get_num_threads() == 2
            pyconv.set_num_threads(6)
            assert pyconv.get_num_threads() == 2
        assert pyconv.get_num_threads() == 7
        assert in_another_thread(pyconv.get_num_threads) == 6
    assert pyconv.get_num_threads() == 6
    with contextlib.suppress(ZeroDivisionError), pyconv.num_threads(5):
        raise ZeroDivisionError
    assert pyconv.get_num_threads() == 6


def test_num_threads_of_eight_python_threads_at_once():
    barrier = threading.Barrier(8, timeout=30)

    def work(count):
        seen = []
        with pyconv.num_threads(count):
            for _ in range(50):
                barrier.wait()
                seen.append(pyconv.get_num_threads())
        return set(seen)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(1, 9), timeout=60)) == [{count} for count in range(1, 9)]


def test_a_block_may_be_entered_again():
    """Within itself, in several Python threads at once, and as a decorator."""
    pyconv.set_num_threads(4)
    block = pyconv.num_threads(3)
    for _ in range(2):
        with block, pyconv.num_threads(2), block:
            assert pyconv.get_num_threads() == 3
            assert in_another_thread(block(pyconv.get_num_threads)) == 3
            assert in_another_thread(pyconv.get_num_threads) == 4
        assert pyconv.get_num_threads() == 4


@pytest.mark.parametrize('wrong', [0, -1, 1.5, None, '2', True, 2**70])
def test_a_number_of_threads_is_a_positive_integer(wrong):
    before = pyconv.get_num_threads()
    with pytest.raises((ValueError, TypeError)):
        pyconv.set_num_threads(wrong)
    with pytest.raises((ValueError, TypeError)):
        with pyconv.num_threads(wrong):
            pass
    assert pyconv.get_num_threads() == before


COUNT = '''
import os, sys
import numpy as np
import pyconv
x, w = np.ones((4, 32, 60, 60), np.float32), np.ones((32, 32, 3, 3), np.float32)
def tasks():
    return len(os.listdir('/proc/self/task'))
before = tasks()
if len(sys.argv) > 1:
    pyconv.set_num_threads(int(sys.argv[1]))
with pyconv.num_threads(1):
    pyconv.conv2d(x, w)
alone = tasks()
pyconv.conv2d(x, w)
pyconv.conv2d_input(x.shape, w, pyconv.conv2d(x, w))
pyconv.conv2d_weight(x, w.shape, pyconv.conv2d(x, w))
print(pyconv.get_num_threads(), alone - before, tasks() - alone)
'''


@needs_tasks
@pytest.mark.parametrize('setting', ['1', '2', '3', '5'])
def test_omp_num_threads_is_honoured(setting, run_python):
    """As a number, and by the threads that a call really starts."""
    assert run_python(COUNT, OMP_NUM_THREADS=setting).split() == [setting, '0', str(int(setting) - 1)]


@needs_tasks
def test_set_num_threads_goes_before_the_environment(run_python):
    assert run_python(COUNT, '4', OMP_NUM_THREADS='2').split() == ['4', '0', '3']


@pytest.mark.parametrize('limit', ['1', '2'])
def test_fewer_threads_than_asked_for_do_every_task(limit, run_python):
    """OpenMP may start fewer: those take what the others would have had."""
    assert run_python(LIMITED, OMP_THREAD_LIMIT=limit) == 'True True True\n'


LIMITED = '''
import numpy as np
import pyconv
rng = np.random.default_rng(0)
x, w, y = (rng.standard_normal(s).astype(np.float32) for s in ((5, 16, 40, 40), (24, 16, 3, 3), (5, 24, 38, 38)))
def maps(threads):
    with pyconv.num_threads(threads):
        return pyconv.conv2d(x, w), pyconv.conv2d_input(x.shape, w, y), pyconv.conv2d_weight(x, w.shape, y)
print(*(a.tobytes() == b.tobytes() for a, b in zip(maps(5), maps(1))))
'''


@needs_tasks
def test_small_sums_and_columns_are_made_by_one_thread(run_python):
    """A team of threads waits for all of its members, on a busy machine for milliseconds."""
    assert run_python(SMALL) == '0 True\n'


@needs_tasks
def test_many_small_samples_are_shared(run_python):
    """Gradients of each sample: of one a second thread would find too little to do."""
    assert run_python(SAMPLES) == 'False True\n'


SAMPLES = '''
import os
import numpy as np
import pyconv
before = len(os.listdir('/proc/self/task'))
pyconv.set_num_threads(4)
for samples in (1, 32):
    x = np.ones((samples, 16, 8, 8), np.float32)
    pyconv.conv2d_weight(x, (16, 16, 3, 3), x, padding=1, per_sample=True)
    print(len(os.listdir('/proc/self/task')) > before, end=' ' if samples == 1 else '\\n')
'''


SMALL = '''
import os
import numpy as np
import pyconv
tasks = lambda: len(os.listdir('/proc/self/task'))
before = tasks()
pyconv.set_num_threads(4)
def moves(*shape):
    x = np.ones(shape, np.float32)
    pyconv.conv_bias(x)
    pyconv.fold(pyconv.unfold(x, (3, 3)), shape[2:], (3, 3))
moves(2, 3, 16, 16)
few = tasks() - before
moves(2, 16, 256, 256)
print(few, tasks() - before > 0)
'''


@needs_tasks
@pytest.mark.parametrize('setting', ['OMP_PROC_BIND', 'OMP_PLACES'])
def test_openmp_may_bind_its_threads(setting, run_python):
    """Which leaves the first one CPU of those that the process may use."""
    count = 'import os; n = len(os.sched_getaffinity(0)); import pyconv; print(n, pyconv.get_num_threads())'
    usable, used = run_python(count, **{setting: 'cores' if setting == 'OMP_PLACES' else 'true'}).split()
    assert used == usable


def test_without_a_setting_there_is_at_least_one_thread(run_python):
    assert int(run_python('import pyconv; print(pyconv.get_num_threads())')) >= 1


def test_more_threads_than_anybody_has(run_python):
    """Hundreds are started or not as the work has it; what no machine has may be refused, but not tried."""
    assert run_python(MANY_THREADS) == 'done\n'


MANY_THREADS = '''
import numpy as np
import pyconv

x, w = np.ones((2, 24, 40, 40), np.float32), np.ones((24, 24, 3, 3), np.float32)
y = pyconv.conv2d(x, w)
back, gw = pyconv.conv2d_input(x.shape, w, y), pyconv.conv2d_weight(x, w.shape, y)
for count in (64, 300, 1000, 10**6, 2**31 - 1):
    try:
        context = pyconv.num_threads(count)
    except ValueError:
        assert count > 1000
        continue
    with context:
        assert (pyconv.conv2d(x, w) == y).all()
        assert (pyconv.conv2d_input(x.shape, w, y) == back).all()
        assert (pyconv.conv2d_weight(x, w.shape, y) == gw).all()
print('done')
'''


@pytest.mark.parametrize('products, most', [(3e4, 2), (2e7, 7), (1e9, 12)])
def test_any_number_of_threads_makes_few_plans(products, most):
    """A plan has blocks for two, for eight and for powers of two beyond, as many as there is work for."""
    channels = round((products / 9 / 14**2) ** 0.5)
    x, w = np.ones((1, channels, 14, 14), np.float32), np.ones((channels, channels, 3, 3), np.float32)
    geometry = convolved(2, x.shape, w.shape, None, None, 1, 1, 1, 1)[0]
    plan = cpu.plan('forward', geometry, x.dtype)
    for threads in (*range(1, 70), 128, 200, 1000, 5000, 2**31 - 1):
        plan.scratch_size(threads)
    assert most / 2 <= len(plan.others) <= most


# Python threads

def test_eight_python_threads_at_once():
    """Different problems, shared operands, their own numbers of threads."""
    data = [(problem, problem.integers(np.float32), expected(problem.name)) for problem in VARIED]
    barrier = threading.Barrier(8, timeout=60)

    def work(index):
        barrier.wait()
        with pyconv.num_threads(1 + index % 3):
            for step in range(2 * len(data)):
                problem, (x, w, y, b, _), wanted = data[(step * (index + 1) + index) % len(data)]
                out = poisoned(wanted.forward.shape, np.float32)
                calls.forward(problem, x, w, b, out=out)
                assert_equal(out, wanted.forward + per_channel(b, problem.rank), np.float32)
                assert_equal(calls.grad_input(problem, w, y), wanted.grad_input, np.float32)
                assert_equal(calls.grad_weight(problem, x, y), wanted.grad_weight, np.float32)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=120))


def test_eight_python_threads_on_one_problem_with_their_own_buffers():
    problem = LAYERS[0]
    data = problem.floats(np.float32)
    wanted = calls.three_maps(problem, data.x, data.w, data.y)
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords)

    def work(_):
        finput, fgrad_input = poisoned(wants.finput_minimum, np.float32), poisoned(wants.fgrad_input, np.float32)
        for _ in range(5):
            calls.assert_same_bits(calls.forward(problem, data.x, data.w, finput=finput), wanted[0])
            calls.assert_same_bits(calls.grad_input(problem, data.w, data.y, fgrad_input=fgrad_input), wanted[1])
            calls.assert_same_bits(calls.grad_weight(problem, data.x, data.y, finput=finput), wanted[2])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8), timeout=120))


RACE = '''
import threading
import numpy as np
import calls
from concurrent.futures import ThreadPoolExecutor
from problems import VARIED, expected

for problem in VARIED:
    expected(problem.name)
barrier = threading.Barrier(8, timeout=60)

def work(index):
    for problem in VARIED:  # all at the same
        barrier.wait()
        check(problem, np.dtype(np.float32))
    for problem in VARIED[index:] + VARIED[:index]:  # each at another
        check(problem, np.dtype(np.float64))

def check(problem, dtype):
    data = problem.integers(dtype)
    for answer, exact in zip(calls.three_maps(problem, data.x, data.w, data.y), expected(problem.name)):
        calls.assert_equal(answer, exact, dtype)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(8)))
print('done')
'''


def test_eight_python_threads_meet_every_problem_for_the_first_time(run_python):
    """In a new process, so that all of them want what nobody has prepared yet."""
    assert run_python(RACE, OMP_NUM_THREADS='2', OMP_WAIT_POLICY='passive') == 'done\n'


def test_the_gil_is_released():
    """Another Python thread goes on while a long call runs; processor time, so that other work does not count."""
    x, w = np.ones((2, 96, 128, 128), np.float32), np.ones((96, 96, 5, 5), np.float32)
    gaps, running = [], threading.Event()
    running.set()

    def watch():
        last = time.process_time()
        while running.is_set():
            time.sleep(0.001)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    with ThreadPoolExecutor(1) as pool, pyconv.num_threads(1):
        watcher = pool.submit(watch)
        time.sleep(0.05)
        start = time.process_time()
        pyconv.conv2d(x, w)
        took = time.process_time() - start
        running.clear()
        watcher.result(timeout=30)
    assert max(gaps) < max(0.5 * took, 0.05), f'the other thread stood still for {max(gaps):.3f} of {took:.3f} s'


@pytest.mark.parametrize('threads', [1, 2])
def test_no_task_waits_for_the_gil(threads):
    """Once a call's tasks have begun, and this Python thread keeps the GIL, they get through what is left to do. Tried
    again where that is little, and where the machine has them wait for so long that they look for signals, for which
    they want it."""
    x, w = np.ones((16, 64, 36, 36), np.float32), np.ones((64, 64, 3, 3), np.float32)
    before = sys.getswitchinterval()

    def get_through():
        out = np.zeros((16, 64, 34, 34), np.float32)
        some = out.reshape(-1)[::4099]  # so few that NumPy, which looks at them, keeps the GIL
        assert len(some) < 500
        call = pool.submit(pyconv.conv2d, x, w, out=out)
        while not call.done() and some.max() == 0:
            time.sleep(1e-5)  # the call has the GIL until its tasks begin, and between the look at the weight and them
        left, end = np.count_nonzero(some) < len(some) // 2, time.perf_counter() + 0.5
        while time.perf_counter() < end and some.min() == 0:
            pass
        done = some.min() > 0
        call.result()
        return left and done

    pyconv.set_num_threads(threads)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pyconv.conv2d, x, w).result()  # is planned
        try:
            sys.setswitchinterval(100)  # seconds after which a thread must give it away
            assert any(get_through() for _ in range(100))
        finally:
            sys.setswitchinterval(before)


@pytest.mark.parametrize('threads', [1, 2, 3])
@pytest.mark.parametrize('size', [1 << 22, (1 << 22) + 1, 9 << 20])
def test_new_memory_is_touched(size, threads):
    """At its first byte, so that no huge page is left out, and at its last, which may lie in one more."""
    memory = np.ones(size, np.uint8)
    with pyconv.num_threads(threads):
        _memory.claim(memory)
    assert np.flatnonzero(memory == 0).tolist() == sorted({*range(0, size, _memory.PAGE), size - 1})


def test_new_memory_is_touched_without_the_gil():
    """This Python thread gets it while another's new memory is touched, and finds a part of that done at most."""
    pool, begun, before = ThreadPoolExecutor(1), threading.Event(), sys.getswitchinterval()
    memory = np.empty(256 << 20, np.uint8)
    with pool, pyconv.num_threads(1):
        touching = pool.submit(lambda: begun.set() or _memory._touch(memory))
        try:
            sys.setswitchinterval(100)  # seconds after which a thread must give it away
            begun.wait()
            assert not touching.done()
        finally:
            sys.setswitchinterval(before)


# Forked children

FORK = '''
import os, signal, sys, threading
import numpy as np
import pyconv

x = np.random.default_rng(0).standard_normal((4, 32, 40, 40)).astype(np.float32)
w = np.random.default_rng(1).standard_normal((32, 32, 3, 3)).astype(np.float32)

def maps():
    y = pyconv.conv2d(x, w, padding=1)
    return [y, pyconv.conv2d_input(x.shape, w, y, padding=1), pyconv.conv2d_weight(x, w.shape, y, padding=1)]

pyconv.set_num_threads(4)
if sys.argv[1] == 'thread':  # the parallel region belongs to another Python thread
    thread = threading.Thread(target=maps)
    thread.start()
    thread.join()
wanted = maps()
for generation in range(2):
    child = os.fork()
    if child:
        pid, status = os.waitpid(child, 0)
        assert [a.tobytes() for a in maps()] == [a.tobytes() for a in wanted], 'the parent goes on'
        sys.exit(os.waitstatus_to_exitcode(status))
    assert [a.tobytes() for a in maps()] == [a.tobytes() for a in wanted], 'the child computes'
    with pyconv.num_threads(3):
        maps()
    pyconv.set_num_threads(2)
    assert [a.tobytes() for a in maps()] == [a.tobytes() for a in wanted], 'the child computes with threads asked for'
print('done')
'''

POOL = '''
import multiprocessing
import numpy as np
import pyconv

def work(seed):
    x = np.random.default_rng(seed).standard_normal((2, 16, 30, 30))
    w = np.random.default_rng(0).standard_normal((16, 16, 3, 3))
    return pyconv.conv2d(x, w, padding=1).tobytes()

if __name__ == '__main__':
    pyconv.set_num_threads(2)
    wanted = [work(seed) for seed in range(6)]
    with multiprocessing.get_context('fork').Pool(3) as pool:
        assert pool.map(work, range(6)) == wanted
    print('done')
'''


@needs_fork
@pytest.mark.parametrize('first', ['main', 'thread'])
def test_a_forked_child_after_a_parallel_region(first, run_python):
    """And a child of the child; a hang is a failure."""
    assert run_python(FORK, first, timeout=30) == 'done\n'


@needs_fork
def test_a_pool_of_forked_children(run_python):
    assert run_python(POOL, timeout=30) == 'done\n'


# Ctrl-C

LONG = '''
import os, signal, sys, threading, time
import numpy as np
import pyconv

what = sys.argv[1]
ones = lambda *shape: np.ones(shape, np.float32)
if what == 'depthwise':
    x, w = ones(16, 64, 32, 32, 32), ones(64, 1, 15, 15, 15)
    call = lambda: pyconv.conv3d(x, w, padding=7, groups=64)
elif what == 'depthwise_weight':
    x = ones(16, 64, 32, 32, 32)
    call = lambda: pyconv.conv3d_weight(x, (64, 1, 15, 15, 15), x, padding=7, groups=64)
else:
    x, w = ones(16, 1024, 28, 28), ones(1024, 1024, 5, 5)
    call = {'forward': lambda: pyconv.conv2d(x, w, padding=2),
            'grad_input': lambda: pyconv.conv2d_input(x.shape, w, x, padding=2),
            'grad_weight': lambda: pyconv.conv2d_weight(x, w.shape, x, padding=2),
            'transposed': lambda: pyconv.conv_transpose2d(x[:10], w, stride=2),
            'double_backward': lambda: pyconv.convolution_double_backward(
                x, w, None, x, w, x, 1, 2, 1, False, 0, 1, (True, True, True))}[what]
pyconv.conv2d(ones(1, 1, 8, 8), ones(1, 1, 3, 3))  # whatever happens once has happened
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sent = []

def press(start, threads):
    while time.process_time() - start < 0.2 * threads:  # until the call is well under way
        time.sleep(0.01)
    sent.append(time.process_time())
    os.kill(os.getpid(), signal.SIGINT)

for threads in (1, 2):
    pyconv.set_num_threads(threads)
    threading.Thread(target=press, args=(time.process_time(), threads), daemon=True).start()
    try:
        call()
        print('finished', flush=True)
        os._exit(1)
    except KeyboardInterrupt:
        print((time.process_time() - sent[-1]) / threads)
    answer = pyconv.conv2d(ones(1, 1, 3, 3), ones(1, 1, 3, 3))
    assert answer.item() == 9, 'pyconv works after an interrupt'
'''


@needs_signals
@pytest.mark.parametrize('what', ['forward', 'grad_input', 'grad_weight', 'depthwise', 'depthwise_weight',
                                  'transposed', 'double_backward'])
def test_ctrl_c_is_answered_within_half_a_second(what, run_python):
    """With one thread and two, of processor time, so that other work does not count. The call takes seconds when left
    alone."""
    seconds = [float(word) for word in run_python(LONG, what).split()]
    assert len(seconds) == 2 and max(seconds) < 0.5


@pytest.mark.parametrize('mode', ['zeros', 'circular', 'replicate', 'reflect'])
def test_columns_that_numpy_moves_take_no_longer_than_ctrl_c_may_wait(mode):
    """NumPy keeps Ctrl-C waiting, and with its add.at all other Python threads too."""
    x = np.ones((1, 16, 320, 320), np.float16)
    start = time.process_time()
    columns = pyconv.unfold(x, (3, 3), padding=1, padding_mode=mode)
    folded = pyconv.fold(columns, x.shape[2:], (3, 3), padding=1, padding_mode=mode)
    assert time.process_time() - start < 0.5
    assert np.count_nonzero(columns) == folded.sum(dtype=np.float64)


@pytest.mark.parametrize('at_once', [1, 20, 100])
def test_columns_are_moved_a_few_planes_at_a_time(at_once, monkeypatch):
    monkeypatch.setattr(_unfolding, 'AT_ONCE', at_once)
    x = np.random.default_rng(0).integers(-9, 10, (2, 5, 4, 3)).astype(np.int16)
    columns = pyconv.unfold(x, (3, 2), padding=((3, 1), (5, 0)), padding_mode='reflect')
    weight = np.eye(30, dtype=np.int16).reshape(30, 5, 3, 2)
    settings = dict(padding=((3, 1), (5, 0)), padding_mode='reflect')
    assert np.array_equal(columns, pyconv.conv2d(x, weight, **settings).reshape(columns.shape))
    folded = pyconv.fold(columns, (4, 3), (3, 2), **settings)
    assert np.array_equal(folded, pyconv.conv2d_input(x.shape, weight, columns.reshape(2, 30, 6, 7), **settings))


# Instruction sets

LEVELS = {
    'portable': set(),
    'avx2': {'avx2', 'fma'},
    'avx512': {'avx2', 'fma', 'avx512f', 'avx512bw', 'avx512dq', 'avx512vl'},
    'amx': {'avx512_vnni', 'avx512vbmi', 'amx_tile', 'amx_int8', 'amx_bf16'},
}

EVERY_PROBLEM = '''
import numpy as np
import calls, pyconv
from problems import FILLED, PROBLEMS, maps

for problem in PROBLEMS + FILLED:
    data = problem.integers()
    wanted = maps(problem, data.x, data.w, data.y)
    for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
        data = problem.integers(dtype)
        try:
            for answer, exact in zip(calls.three_maps(problem, data.x, data.w, data.y), wanted):
                calls.assert_equal(answer, exact, dtype)
        except AssertionError as error:
            raise AssertionError(f'{problem.name}, {dtype}') from error
print(pyconv.show_config() or '')
'''


def lacks(level):
    """What this processor does not have of a level, as far as the system tells."""
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        return set() if level == 'portable' else {'a list of what the processor has'}
    flags = {word for line in lines if line.startswith(('flags', 'Features')) for word in line.split()}
    if level == 'amx' and LEVELS[level] <= flags and level not in cpu.config()['levels']:
        return {'a compiler, or a system, that knows them'}
    return LEVELS[level] - flags


def setting(level, threads):
    """The environment of a process on that level."""
    return {'PYCONV_CPU_LEVEL': level, 'OMP_NUM_THREADS': threads, 'OMP_WAIT_POLICY': 'passive'}


@pytest.mark.parametrize('level', LEVELS)
def test_every_problem_on_every_instruction_set(level, run_python):
    if missing := lacks(level):
        pytest.skip(f'the processor has no {", ".join(sorted(missing))}')
    output = run_python(EVERY_PROBLEM, timeout=120, **setting(level, '2'))
    assert re.search(rf'\blevel\W+{level}\b', output), output


@pytest.mark.parametrize('level', LEVELS)
def test_bits_on_every_instruction_set(level, run_python):
    """Invariance of bits is a promise of each level, not only of the one in use."""
    if missing := lacks(level):
        pytest.skip(f'the processor has no {", ".join(sorted(missing))}')
    run_python(BITS, timeout=120, **setting(level, '1'))


@pytest.mark.parametrize('level', LEVELS)
def test_every_type_and_algorithm_on_every_other_instruction_set(level, run_python):
    """Half of their own tests along two axes once more, but for those of buffers and bits, of large problems, of
    float64, which the tests above have, and of integers that are read as others are. AMX is for some types alone."""
    if missing := lacks(level):
        pytest.skip(f'the processor has no {", ".join(sorted(missing))}')
    if level == cpu.config()['level']:
        pytest.skip('all tests run on it')
    same_but_for_cells = {level, cpu.config()['level']} == {'avx512', 'amx'}
    names = ('bytes', 'dtypes') if same_but_for_cells else ('dtypes', 'winograd')
    files = (Path(__file__).with_name(f'test_{name}.py') for name in names)
    run_python(TYPES_AND_ALGORITHMS, OF_CELLS if same_but_for_cells else 'not uint32', *files,
               timeout=600, **setting(level, '1'), PYTEST_ADDOPTS='')


OF_CELLS = '(int8 or bfloat16)'


TYPES_AND_ALGORITHMS = '''
import sys, zlib, pytest


class Half:
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if zlib.crc32(item.name.encode()) % 2]


some = ('not narrow and not test_bits and not any_buffer and not (same_bits and (tiles or winograd and not channels))'
        ' and not (test_not_finite and inf) and not (float64 and not complex)'
        ' and not 1d and not 3d and not int16 and ')
sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', some + sys.argv[1], *sys.argv[2:]], plugins=[Half()]))
'''


BITS = '''
import numpy as np
import calls, pyconv
from problems import FILLED, LAYERS, VARIED

for problem in VARIED + LAYERS + FILLED:
    for dtype in (np.float32, np.float64):
        data = problem.floats(dtype)
        one = calls.three_maps(problem, data.x, data.w, data.y)
        with pyconv.num_threads(3):
            for many, alone in zip(calls.three_maps(problem, data.x, data.w, data.y), one):
                calls.assert_same_bits(many, alone)
        calls.assert_same_bits(calls.forward(problem, data.x[-1], data.w), one[0][-1])
        calls.assert_same_bits(calls.grad_input(problem, data.w, data.y[-1]), one[1][-1])
'''


def test_an_unknown_instruction_set_is_refused(spawn):
    child = spawn('import pyconv', PYCONV_CPU_LEVEL='abacus')
    _, errors = child.communicate(timeout=60)
    assert child.returncode != 0
    assert 'PYCONV_CPU_LEVEL must ' in errors and 'abacus' in errors
