"""What the test files share as fixtures."""
import contextlib
import gc
import heapq
import importlib
import itertools
import logging
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from _pytest.runner import runtestprotocol

# Read when OpenMP and OpenBLAS are loaded: on a machine that others use too, threads that wait by spinning take the
# processor from those that they wait for, and a call of microseconds takes milliseconds.
os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')

import numpy as np  # noqa: E402

import gpus  # noqa: E402
import pyconv  # noqa: E402
from problems import TEST_ALL  # noqa: E402

hypothesis.settings.register_profile('pyconv', deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile('pyconv')


def parameters(items):
    """Of each of one test's items the values of its parameters by name, as text that tells them apart."""
    texts = {}                                           # of values, which items share
    return [{name: texts.setdefault(id(value), repr(value)) for name, value in item.callspec.params.items()}
            for item in items]


def meeting(items, alone=()):
    """Some of one test's items, in which every two values of its parameters that meet in one of all meet; those of a
    parameter that is `alone` are met once, with whatever."""
    shown = [set(itertools.combinations(sorted(pair for pair in values.items() if pair[0] not in alone), 2)).union(
        pair for pair in values.items() if pair[0] in alone) for values in parameters(items)]
    spread = random.Random(0).sample(range(len(items)), len(items)) if alone else range(len(items))
    kept, missing, queue = set(), set().union(*shown), [
        (-len(pairs), number, place) for place, (pairs, number) in enumerate(zip(shown, spread))]
    heapq.heapify(queue)
    while missing:
        _, number, place = heapq.heappop(queue)
        new = len(shown[place] & missing)                # no more than when it was put into the queue
        if queue and (-new, number, place) > queue[0]:
            heapq.heappush(queue, (-new, number, place))
        else:
            kept.add(place)
            missing -= shown[place]
    return [items[place] for place in sorted(kept)]


def in_turns(items, rows, columns):
    """Half of one test's items: each value of one parameter with every other of another's, and the next one with those
    between. Of a list of some that stand together, all."""
    numbers = [{value: number for number, value in enumerate(dict.fromkeys(values))} for values in (rows, columns)]
    if len(items) < len(numbers[0]) * len(numbers[1]):
        return items
    return [item for item, row, column in zip(items, rows, columns)      # the white squares of a chess board
            if (numbers[0][row] + numbers[1][column]) % 2 == 0]


def shown_by(items):
    """Those of one test's items that run: see `in_turns` where its parameters are a problem and something else, and
    `meeting` where they are more. A GPU, which is slow to emulate, does not meet each problem in every way, and a test
    that is `sparse` has each value of its parameters once."""
    values = parameters(items)
    names = [name for name in values[0] if len({each[name] for each in values}) > 1]
    if len(names) > 1 and items[0].get_closest_marker('sparse'):
        return meeting(items, alone=names)
    if 'problem' in names and items[0].path.name.startswith('test_cuda'):
        return meeting(items, alone={'problem'})
    if len(names) == 2 and 'problem' in names:
        return in_turns(items, *([each[name] for each in values] for name in sorted(names, key='problem'.__ne__)))
    return meeting(items) if len(names) > 2 else items


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Of a test with several parameters those cases that show most, unless it is marked `every`; but on a GPU, which is
    quick, all. A file's tests of one problem follow each other, so that what is planned for it is found again."""
    functions, all_run = {}, TEST_ALL or any('::' in argument for argument in config.args)  # or those that are named
    for item in items:
        if hasattr(item, 'callspec') and not (all_run or any(map(item.get_closest_marker, ('gpu', 'every')))):
            functions.setdefault((item.path, item.cls, item.originalname), []).append(item)
    left = set(itertools.chain(*functions.values())).difference(*map(shown_by, functions.values()))
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=list(left))

    def group(item):
        problem = item.callspec.params.get('problem') if hasattr(item, 'callspec') else None
        return (item.path, str(problem)) if problem else item

    places = {}
    for item in items:
        places.setdefault(group(item), len(places))
    items.sort(key=lambda item: places[group(item)])


def pytest_collection_finish():
    """Fifty thousand tests and the libraries that they use stay to the end: looking for garbage among them, again and
    again, took a fifteenth of the time. Nor does pytest add its handlers to some sixty loggers of those libraries in
    every test, which it does to those that do not hand on what they are told."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    for name in logging.root.manager.loggerDict:
        logging.getLogger(name).propagate = True


RUN = 32      # tests that a worker process is sent at once: they follow each other, and so use what others have planned


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A run of tests to each worker process that has none left. xdist's own sends thousands of quick ones, with slow
    ones behind them, for which the other processes waited at the end."""
    from xdist.scheduler import LoadScheduling

    class InRuns(LoadScheduling):
        def check_schedule(self, node, duration=0):
            if node.shutting_down:
                return
            if not self.pending:
                node.shutdown()
            elif len(self.node2pending[node]) <= 2:  # the last of them waits to know the next
                self._send_tests(node, RUN)

    if config.getvalue('dist') == 'load' and config.option.maxschedchunk is None:
        config.option.maxschedchunk = RUN
        return InRuns(config, log)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Worker processes tell pytest's own what became of a test, not that it began and was made ready: of fifty thousand
    tests, most of which take a few milliseconds, that took a third of the time."""
    if not hasattr(item.config, 'workerinput'):
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == 'call' or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(params=[np.float32, np.float64], ids=['float32', 'float64'])
def dtype(request):
    return np.dtype(request.param)


@pytest.fixture(autouse=True)
def threads_as_before():
    """No test leaves another number of threads behind."""
    before = pyconv.get_num_threads()
    yield
    pyconv.set_num_threads(before)


@pytest.fixture(params=['emulated', pytest.param('real', marks=pytest.mark.gpu)])
def gpu(request, monkeypatch):
    """A GPU: the emulator, and the real one."""
    if request.param == 'emulated':
        return gpus.Emulated(monkeypatch)
    missing = gpus.real_gpu()
    if missing:
        pytest.skip(missing)
    real = gpus.Real()
    gpus.skip_what_the_chip_lacks(request)
    return real


@pytest.fixture
def tiles_alone(monkeypatch):
    """No product is left to the GPU's direct kernels."""
    from pyconv._gpu import tiles
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)


def end(child):
    """Kill a child and what it forked; what they had written."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    return child.communicate()


@pytest.fixture
def spawn(tmp_path):
    """Start Python code in a process of its own that imports this pyconv and these tests' modules."""
    children = []

    def start(code, *arguments, **environment):
        paths = [str(Path(pyconv.__file__).parents[1]), str(Path(__file__).parent)]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith('OMP_')}
        child = subprocess.Popen(
            [sys.executable, '-c', code, *map(str, arguments)], cwd=tmp_path, text=True,
            env={**inherited, 'PYTHONPATH': os.pathsep.join(paths), **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        children.append(child)
        return child

    yield start
    for child in children:
        if not child.stdout.closed:
            end(child)


@pytest.fixture
def run_python(spawn):
    """Run Python code in a process of its own to its end; a hang or a non-zero exit is a failure."""
    def run(code, *arguments, timeout=60, **environment):
        child = spawn(code, *arguments, **environment)
        try:
            output, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            output, errors = end(child)
            pytest.fail(f'no end after {timeout} seconds; output: {output}; errors: {errors}')
        assert child.returncode == 0, f'exit {child.returncode}; output: {output}; errors: {errors}'
        return output
    return run


EXAMPLES = Path(__file__).parents[1] / 'examples'
# an example finds its neighbours as a script does, in its own folder
SCRIPT = ('import runpy, sys; from pathlib import Path; del sys.argv[0]; '
          'sys.path.insert(0, str(Path(sys.argv[0]).parent)); runpy.run_path(sys.argv[0], run_name="__main__")')


@pytest.fixture
def replan(monkeypatch):
    """Change what choices and plans follow from: none is kept of before, nor afterwards."""
    def change(module, **values):
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
        pyconv._known.forget()
    yield change
    pyconv._known.forget()


@pytest.fixture(scope='session')
def example():
    """Import an example by its name."""
    def load(name):
        sys.path.insert(0, str(EXAMPLES))
        try:
            return importlib.import_module(name)
        finally:
            sys.path.remove(str(EXAMPLES))
    return load


@pytest.fixture
def run_example(run_python, tmp_path):
    """Run an example's short form; return the lines that it prints, when its picture is one."""
    def run(name, *arguments):
        picture = tmp_path / 'picture.png'
        # one thread: on a busy machine two wait for each other
        output = run_python(SCRIPT, EXAMPLES / f'{name}.py', '--quick', '--output', picture, *arguments,
                            timeout=240, OMP_NUM_THREADS='1')
        assert picture.read_bytes().startswith(b'\x89PNG') and picture.stat().st_size > 20_000
        return output.splitlines()
    return run
