"""CUDA devices over a driver that only notes what it is asked: loading, launching, contexts, errors. Needs no GPU."""
import ctypes
import enum
import functools
import inspect
import re
import sys
import threading
import time
from array import array
from pathlib import Path
from types import SimpleNamespace

import pytest

import pyconv
from pyconv._driver import Places
from pyconv._gpu import configurations, cubins, launch, program, specialise, tiles

CALLER, PRIMARY = 0x111, 0x222
FACTS = {'COMPUTE_CAPABILITY_MAJOR': 8, 'COMPUTE_CAPABILITY_MINOR': 6, 'MULTIPROCESSOR_COUNT': 82}
Status = enum.IntEnum('Status', {'CUDA_SUCCESS': 0, **{f'CUDA_ERROR_{name}': number for name, number in {
    'INVALID_VALUE': 1, 'OUT_OF_MEMORY': 2, 'NOT_INITIALIZED': 3, 'NO_DEVICE': 100, 'INVALID_DEVICE': 101,
    'NO_BINARY_FOR_GPU': 209, 'INVALID_HANDLE': 400, 'ILLEGAL_ADDRESS': 700, 'LAUNCH_OUT_OF_RESOURCES': 701,
    'CONTEXT_IS_DESTROYED': 709, 'ASSERT': 710, 'MISALIGNED_ADDRESS': 716, 'LAUNCH_FAILED': 719, 'UNKNOWN': 999,
}.items()}})
Attribute = enum.Enum('Attribute', {f'CU_DEVICE_ATTRIBUTE_{name}': value for name, value in FACTS.items()})
NOTHING = {'cuInit', 'cuFuncSetAttribute'}  # what they give besides a status
KERNEL = 0x4E11  # the handle of every kernel
GIVEN = {  # of functions that are called by their addresses: the types of what they are given
    'cuCtxGetCurrent': [ctypes.POINTER(ctypes.c_void_p)], 'cuCtxPushCurrent_v2': [ctypes.c_void_p],
    'cuCtxPopCurrent_v2': [ctypes.POINTER(ctypes.c_void_p)],
    'cuLaunchKernel': [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3],
    'cuLaunchKernelEx': [ctypes.c_void_p] * 4}
SOURCE = SimpleNamespace(name='kern', key='kern of 3', text='def kern(a, b, c): ...\n', arguments=('a', 'b', 'c'))
COMPILED = cubins.Compiled(b'\x7fELF', 'kern', 40, 0, 0)


class Driver:
    """cuda.bindings.driver and the driver's own library, in as far as pyconv calls them: no synchronisation, for one,
    is there to be called."""

    CUdevice_attribute = Attribute
    CUresult = Status
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED='relaxed')
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES='dynamic')

    def __init__(self, gpus=1):
        self.gpus, self.contexts, self.mode, self.calls, self.fails = gpus, [CALLER], 'global', [], {}
        self.answers = {
            'cuDeviceGet': lambda index: index, 'cuDeviceGetAttribute': lambda attribute, device: attribute.value,
            'cuDeviceGetCount': lambda: self.gpus, 'cuDeviceGetName': lambda n, device: b'Some GPU'.ljust(n, b'\0'),
            'cuDevicePrimaryCtxRetain': lambda device: PRIMARY,
            'cuCtxPushCurrent': self.contexts.append, 'cuCtxPopCurrent': self.contexts.pop,
            'cuModuleLoadData': lambda code: ('module', code),
            'cuModuleGetFunction': lambda module, name: KERNEL, 'cuFuncSetAttribute': lambda *_: None,
            'cuThreadExchangeStreamCaptureMode': self.exchange,
            'cuInit': lambda flags: None, 'cuGetErrorString': lambda status: b'the words of the driver'}

        act = {'cuCtxGetCurrent': self.current, 'cuCtxPushCurrent_v2': self.contexts.append,
               'cuCtxPopCurrent_v2': lambda to: self.contexts.pop(), 'cuLaunchKernel': self.launched,
               'cuLaunchKernelEx': self.launched_early}
        self.library = SimpleNamespace(**{
            name: ctypes.CFUNCTYPE(ctypes.c_int, *types)(functools.partial(self.asked, name, act[name]))
            for name, types in GIVEN.items()})

    def asked(self, name, act, *given):
        """One of the library's functions: the status alone is its answer."""
        self.calls.append((name.removesuffix('_v2'), *given))
        if name not in self.fails:
            act(*given)
        return self.fails.get(name, 0)

    def current(self, to):
        to[0] = self.contexts[-1]

    def __getattr__(self, name):
        if name not in self.answers:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append((name, *arguments))
            if name in self.fails:
                return (self.fails[name],) if name in NOTHING else (self.fails[name], None)
            result = self.answers[name](*arguments)
            return (Status.CUDA_SUCCESS,) if name in NOTHING else (Status.CUDA_SUCCESS, result)
        return call

    def exchange(self, mode):
        before, self.mode = self.mode, mode
        return before

    def launched(self, *arguments):
        pointers = (ctypes.c_void_p * 3).from_address(arguments[9])
        self.values = [ctypes.c_int64.from_address(pointer).value for pointer in pointers]
        self.found = self.contexts[-1]

    def launched_early(self, config, kernel, arguments, extra):
        """As cuda.h has it: seven numbers, a gap, the stream, attributes of 72 bytes, how many of them."""
        grid_and_more = list((ctypes.c_uint * 7).from_address(config))
        stream, attributes = (ctypes.c_void_p * 2).from_address(config + 32)
        count = ctypes.c_uint.from_address(config + 48).value
        found = [(ctypes.c_uint.from_address(attributes + 72 * place).value,
                  ctypes.c_int.from_address(attributes + 72 * place + 8).value) for place in range(count)]
        self.early = *grid_and_more, stream, found, extra
        self.launched(*[None] * 9, arguments)

    def names(self):
        return [call[0] for call in self.calls]


@pytest.fixture
def driver(monkeypatch):
    fake = Driver()
    monkeypatch.setitem(sys.modules, 'cuda.bindings', SimpleNamespace(driver=fake))
    monkeypatch.setattr(launch, 'driver_version', lambda: (12, 4))
    monkeypatch.setattr(launch, 'library', lambda: fake.library)
    cubins._compiler()                       # kept, and so of the versions that there are
    monkeypatch.setattr(cubins, 'versions', lambda: {})
    launch._driver.cache_clear()
    yield fake
    launch._driver.cache_clear()


@pytest.fixture
def device(driver, monkeypatch):
    monkeypatch.setattr(launch, '_compiled', lambda *_: COMPILED)
    return launch.Device(0)


@pytest.fixture
def kernel(device, driver):
    found = device.kernel(SOURCE, 128, 1000)
    driver.calls.clear()
    return found


def test_facts(device):
    assert (device.capability, device.multiprocessors) == ((8, 6), 82)
    assert device.name == 'Some GPU'


def old_gpu(monkeypatch, driver):
    driver.answers['cuDeviceGetAttribute'] = lambda attribute, device: attribute.value - 2


def test_a_chip_that_is_too_old(monkeypatch, driver):
    launch.device.cache_clear()
    assert launch.device(0).capability == (8, 6)
    launch.device.cache_clear()
    old_gpu(monkeypatch, driver)
    wanted = 'device must be a GPU of capability 7.5 or above; got GPU 0, Some GPU, of 6.4'
    with pytest.raises(RuntimeError, match=f'^{re.escape(wanted)}$'):
        launch.device(0)


def test_launch(device, driver, kernel):
    device.launch([(kernel, (5, 6, 7), launch.Arguments([2**63 - 1, -2**63, -1]))], 0x5713)
    [(_, function, *grid, threads, one, same, shared, stream, _, extra)] = [
        call for call in driver.calls if call[0] == 'cuLaunchKernel']
    assert (function, grid, threads, one, same, shared, stream, extra) == (
        KERNEL, [5, 6, 7], 128, 1, 1, 1000, 0x5713, None)
    assert driver.values == [2**63 - 1, -2**63, -1]


def new_device(driver, monkeypatch, version):
    """A chip of capability 9.0 under a driver of some CUDA version."""
    facts = {'COMPUTE_CAPABILITY_MAJOR': 9, 'COMPUTE_CAPABILITY_MINOR': 0, 'MULTIPROCESSOR_COUNT': 132}
    driver.answers['cuDeviceGetAttribute'] = lambda attribute, _: facts[
        attribute.name.removeprefix('CU_DEVICE_ATTRIBUTE_')]
    monkeypatch.setattr(launch, '_compiled', lambda *_: COMPILED)
    monkeypatch.setattr(launch, 'driver_version', lambda: version)
    return launch.Device(0)


def test_launch_while_the_kernel_before_it_runs(driver, monkeypatch):
    """Attribute 6, programmatic stream serialization, is on."""
    device = new_device(driver, monkeypatch, (12, 3))
    kernel = device.kernel(SOURCE, 128, 1000)
    device.launch([(kernel, (5, 6, 7), launch.Arguments([1, 2, 3]))], 0x5713)
    assert driver.early == (5, 6, 7, 128, 1, 1, 1000, 0x5713, [(6, 1)], None)
    assert [call[2] for call in driver.calls if call[0] == 'cuLaunchKernelEx'] == [KERNEL]
    assert (driver.values, driver.found) == ([1, 2, 3], PRIMARY)
    driver.fails = {'cuLaunchKernelEx': Status.CUDA_ERROR_INVALID_VALUE}
    with pytest.raises(RuntimeError, match='could not launch kern on a grid of 1 x 1 x 1 blocks of 128 threads'):
        device.launch([(kernel, (1, 1, 1), launch.Arguments([1, 2, 3]))], 0)
    driver.calls.clear()  # products need the whole chip
    for name in launch.SPREAD:
        monkeypatch.setattr(launch, '_compiled', lambda *_: COMPILED._replace(name=name))
        device.launch([(device.kernel(SOURCE, 128, len(name)), (1, 1, 1), launch.Arguments([1, 2, 3]))], 0)
    assert driver.names().count('cuLaunchKernel') == 5 and 'cuLaunchKernelEx' not in driver.names()


def test_no_kernel_comes_early_under_a_driver_whose_graphs_do_not_know_that(driver, monkeypatch):
    device = new_device(driver, monkeypatch, (12, 2))
    device.launch([(device.kernel(SOURCE, 128, 1000), (5, 6, 7), launch.Arguments([1, 2, 3]))], 0)
    assert driver.values == [1, 2, 3] and 'cuLaunchKernelEx' not in driver.names()


def test_launches_of_a_program_ask_once_for_the_context(device, driver, kernel):
    driver.contexts[:] = [CALLER]
    device.launch([(kernel, (x, 1, 1), launch.Arguments([x, 2, 3])) for x in (5, 6)], 0)
    assert driver.names() == ['cuCtxGetCurrent', 'cuCtxPushCurrent', *['cuLaunchKernel'] * 2, 'cuCtxPopCurrent']
    assert [call[2] for call in driver.calls if call[0] == 'cuLaunchKernel'] == [5, 6]


def test_launch_with_a_tensor_map(device, driver, kernel):
    arguments = launch.Arguments([0, 5, -6], has_map=True)
    arguments.set_map(array('q', range(16)))
    device.launch([(kernel, (1, 1, 1), arguments)], 0)
    assert driver.values == [0, 5, -6]
    [call] = [call for call in driver.calls if call[0] == 'cuLaunchKernel']
    pointer = ctypes.c_void_p.from_address(call[10]).value
    assert list((ctypes.c_int64 * 18).from_address(pointer)) == [*range(16), 5, -6]
    assert arguments.given() == [array('q', range(16)).tobytes(), 5, -6]


def test_what_arguments_do_not_have_cannot_be_written():
    plain, mapped = launch.Arguments([1, 2]), launch.Arguments([0, 5], has_map=True)
    for arguments, words in ((plain, 16), (mapped, 15)):
        with pytest.raises(ValueError, match=f'^map must be 16 words of a launch that has one; got {words}$'):
            arguments.set_map(array('q', range(words)))
    for place in (-1, 2):
        with pytest.raises(IndexError, match=f'^a place must be one of 2 arguments; got {place}$'):
            Places([(plain, place, 'x', 0)])
    assert (plain.given(), mapped.given()) == ([1, 2], [bytes(128), 5])


def test_places_behind_a_map():
    """The second argument of a launch that has one is the word behind it."""
    mapped, plain = launch.Arguments([0, 5, 6], has_map=True), launch.Arguments([7])
    Places([(mapped, 2, 'x', 8), (plain, 0, 'y', -1), (mapped, 1, 'y', 2**40)]).write({'y': 1, 'x': 2, 'z': 3})
    assert (mapped.given(), plain.given()) == ([bytes(128), 2**40 + 1, 10], [0])
    with pytest.raises(KeyError, match='y'):
        Places([(plain, 0, 'y', 0)]).write({'x': 2})


def test_a_tensor_map_is_encoded_once(device, driver):
    def name(kind, word):
        setattr(driver, f'CUtensorMap{kind}', SimpleNamespace(**{f'CU_TENSOR_MAP_{word}': word}))

    for kind, word in (('DataType', 'DATA_TYPE_UINT16'), ('Interleave', 'INTERLEAVE_NONE'),
                       ('Swizzle', 'SWIZZLE_128B'), ('L2promotion', 'L2_PROMOTION_L2_128B'),
                       ('FloatOOBfill', 'FLOAT_OOB_FILL_NONE')):
        name(kind, word)
    driver.cuuint32_t = driver.cuuint64_t = int
    found = []
    driver.answers['cuTensorMapEncodeTiled'] = lambda *_: found.append(driver.contexts[-1]) or SimpleNamespace(
        opaque=range(16))
    for _ in range(2):
        assert device.tensor_map(4096, 72, 30, 144, 64) == array('q', range(16))
    assert (found, driver.contexts) == ([PRIMARY], [CALLER])
    [call] = [call for call in driver.calls if call[0] == 'cuTensorMapEncodeTiled']
    assert call == ('cuTensorMapEncodeTiled', 'DATA_TYPE_UINT16', 2, 4096, [72, 30], [144], [64, 64], [1, 1],
                    'INTERLEAVE_NONE', 'SWIZZLE_128B', 'L2_PROMOTION_L2_128B', 'FLOAT_OOB_FILL_NONE')


@pytest.mark.parametrize(('current', 'calls'), [
    (PRIMARY, ['cuCtxGetCurrent', 'cuLaunchKernel']),
    (CALLER, ['cuCtxGetCurrent', 'cuCtxPushCurrent', 'cuLaunchKernel', 'cuCtxPopCurrent']),
    (0, ['cuCtxGetCurrent', 'cuCtxPushCurrent', 'cuLaunchKernel', 'cuCtxPopCurrent']),
])
@pytest.mark.parametrize('fails', [{}, {'cuLaunchKernel': Status.CUDA_ERROR_INVALID_VALUE}], ids=['', 'fails'])
def test_context_is_as_before(device, driver, kernel, current, calls, fails):
    driver.contexts[:], driver.fails = [current], fails
    if fails:
        with pytest.raises(RuntimeError):
            device.launch([(kernel, (1, 1, 1), launch.Arguments([1, 2, 3]))], 0)
    else:
        device.launch([(kernel, (1, 1, 1), launch.Arguments([1, 2, 3]))], 0)
        assert driver.found == PRIMARY
    assert driver.contexts == [current]
    assert [name for name in driver.names() if name != 'cuGetErrorString'] == calls


@pytest.mark.parametrize('grid', [(0, 1, 1), (1, 0), (0,)])
def test_empty_grid(grid):
    made = program.Program(None)
    made.add(SOURCE, grid, a=1, b=2, c=3)
    assert not made.launches


def test_wrong_arguments(device, driver, kernel):
    with pytest.raises(TypeError, match='^kern must be given 3 arguments; got 2$'):
        device.launch([(kernel, (1, 1, 1), launch.Arguments([1, 2]))], 0)
    with pytest.raises(OverflowError):
        device.launch([(kernel, (1, 1, 1), launch.Arguments([1, 2, 2**63]))], 0)
    for grid, arguments in (((1, 1, 1), None), (None, launch.Arguments([1, 2, 3]))):
        with pytest.raises((AttributeError, TypeError), match='None'):
            device.launch([(kernel, grid, arguments)], 0)
    with pytest.raises(AttributeError, match='None'):
        Places([(None, 0, 'x', 0)])
    assert 'cuLaunchKernel' not in driver.names()


@pytest.mark.parametrize(('shared', 'asked'), [(49152, []), (49153, [49153]), (101376, [101376])])
def test_much_shared_memory_is_asked_for(device, driver, shared, asked):
    device.kernel(SOURCE, 128, shared)
    assert [call[2:] for call in driver.calls if call[0] == 'cuFuncSetAttribute'] == [('dynamic', n) for n in asked]


@pytest.mark.parametrize('fails', ['', 'cuModuleLoadData', 'cuModuleGetFunction', 'cuFuncSetAttribute'])
def test_loading_leaves_the_caller_as_before(device, driver, fails):
    modes = []
    load = driver.answers['cuModuleLoadData']
    driver.answers['cuModuleLoadData'] = lambda code: modes.append((driver.mode, driver.contexts[-1])) or load(code)
    if fails:
        driver.fails = {fails: Status.CUDA_ERROR_UNKNOWN}
        with pytest.raises(RuntimeError, match='^could not load the kernel kern of 4 bytes: CUDA_ERROR_UNKNOWN: the '
                                               'words of the driver$'):
            device.kernel(SOURCE, 128, 60000)
    else:
        device.kernel(SOURCE, 128, 60000)
    assert modes == [('relaxed', PRIMARY)] * (fails != 'cuModuleLoadData')
    assert (driver.contexts, driver.mode) == ([CALLER], 'global')


def test_each_configuration_is_loaded_once(device, driver):
    driver.answers['cuModuleLoadData'] = lambda code: time.sleep(0.02) or 'module'
    same = SimpleNamespace(**vars(SOURCE))
    found = []
    threads = [threading.Thread(target=lambda: found.append(device.kernel(same, 128, 0))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert driver.names().count('cuModuleLoadData') == 1
    assert len({id(kernel) for kernel in found}) == 1
    for settings in ((256, 0), (128, 16), (128, 0, 2)):
        assert device.kernel(SOURCE, *settings) is not found[0]
    assert driver.names().count('cuModuleLoadData') == 4


def test_two_threads_may_run_one_program():
    """While both are in its launches, each has arguments of its own; later calls use their memory again."""
    both, seen = threading.Barrier(2), []

    def launched(launches, stream):
        both.wait(10)
        seen.append((stream, [(kernel, grid, arguments.given()) for kernel, grid, arguments in launches]))
        both.wait(10)

    device = SimpleNamespace(kernel=lambda *wanted: wanted[1:], launch=launched)
    made = program.Program(device)
    made.add(SOURCE, (5, 6), threads=64, a=3, b=program.Ref('x', 8), c=program.Ref('y'))
    made.add(SOURCE, (7,), threads=32, a=program.Ref('y', 5), b=4, c=program.Ref('y'))
    one = made.on({'x': program.Ref('first', 16), 'y': program.Ref('out')})
    for _ in range(2):
        threads = [threading.Thread(target=one.run, args=({'first': 1000 * i, 'out': i}, i)) for i in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == [
        (i, [((64, 0, 1), (5, 6, 1), [3, 1000 * i + 24, i]), ((32, 0, 1), (7, 1, 1), [i + 5, 4, i])])
        for i in (1, 1, 2, 2)]
    assert len(one.free) == 2


def test_programs_that_follow_are_launched_together():
    seen = []
    device = SimpleNamespace(kernel=lambda *wanted: wanted[1:], launch=lambda launches, stream: seen.append(
        (stream, [(grid, arguments.given()) for _, grid, arguments in launches])))
    first, second = program.Program(device), program.Program(device)
    first.add(SOURCE, (5,), a=1, b=program.Ref('x', 8), c=program.Ref('scratch'))
    second.add(SOURCE, (6,), a=2, b=program.Ref('x', 16), c=program.Ref('scratch'))
    one = first.on({'x': program.Ref('out[0]'), 'scratch': program.Ref('scratch')})
    other = second.on({'x': program.Ref('out[1]', 4), 'scratch': program.Ref('scratch in finput')})
    one.then([other]).run({'out[0]': 1000, 'out[1]': 2000, 'scratch': 256, 'scratch in finput': 512}, 7)
    assert seen == [(7, [((5, 1, 1), [1, 1008, 256]), ((6, 1, 1), [2, 2020, 512])])]


# Errors

INSTALL = 'in pyconv\'s checkout, pip install -e ".[cuda{}]"'
LAUNCH = 'launch kern on a grid of 3 x 1 x 1 blocks of 128 threads and 1000 bytes'
RESTART = ('a kernel of this process, perhaps an earlier one, has failed ({}); no CUDA call works in this process any '
           'more: it must restart')
FORKED = "CUDA does not work in a forked child; start processes with multiprocessing.set_start_method('spawn')"


@pytest.mark.parametrize(('status', 'error', 'text'), [
    ('OUT_OF_MEMORY', MemoryError, f'the GPU has no memory left to {LAUNCH}'),
    *((name, RuntimeError, f'could not {LAUNCH}: ' + RESTART.format(f'CUDA_ERROR_{name}'))
      for name in ('ILLEGAL_ADDRESS', 'ASSERT', 'MISALIGNED_ADDRESS', 'LAUNCH_FAILED')),
    ('CONTEXT_IS_DESTROYED', RuntimeError, f"could not {LAUNCH}: the GPU's context was destroyed, as by a reset of the "
     'device, and all kernels and arrays with it (CUDA_ERROR_CONTEXT_IS_DESTROYED); restart the process'),
    ('NOT_INITIALIZED', RuntimeError, f'could not {LAUNCH}: {FORKED}'),
    ('NO_BINARY_FOR_GPU', RuntimeError,
     f"could not {LAUNCH} (CUDA_ERROR_NO_BINARY_FOR_GPU): the driver does not take the compiler's code; install a "
     f'newer driver, or the compiler that goes with this one: {INSTALL.format(12)}'),
    *((name, RuntimeError, f'could not {LAUNCH}: CUDA_ERROR_{name}: the words of the driver{remedy}')
      for name, remedy in (('INVALID_VALUE', ''), ('LAUNCH_OUT_OF_RESOURCES', ''),
                           ('INVALID_HANDLE', '; a stream must exist on the GPU of the arrays'))),
])
def test_launch_that_fails(device, driver, kernel, status, error, text):
    driver.fails = {'cuLaunchKernel': Status[f'CUDA_ERROR_{status}']}
    with pytest.raises(error) as caught:
        device.launch([(kernel, (3, 1, 1), launch.Arguments([1, 2, 3]))], 0)
    assert str(caught.value) == text


def test_no_memory_for_a_context(driver, monkeypatch):
    monkeypatch.setattr(launch, '_compiled', lambda *_: COMPILED)
    driver.fails = {'cuDevicePrimaryCtxRetain': Status.CUDA_ERROR_OUT_OF_MEMORY}
    with pytest.raises(MemoryError, match='^the GPU has no memory left to open a context on GPU 0$'):
        launch.Device(0).kernel(SOURCE, 32, 0)


def test_no_memory_for_a_kernel(device, driver):
    driver.fails = {'cuModuleLoadData': Status.CUDA_ERROR_OUT_OF_MEMORY}
    with pytest.raises(MemoryError, match='^the GPU has no memory left to load the kernel kern of 4 bytes$'):
        device.kernel(SOURCE, 32, 0)


# What may be missing

def nothing_missing(monkeypatch, driver):
    pass


def no_package(monkeypatch, driver):
    monkeypatch.setitem(sys.modules, 'cuda.bindings', None)


def no_driver(monkeypatch, driver):
    monkeypatch.setattr(launch, 'driver_version', lambda: None)


def no_gpu(monkeypatch, driver):
    driver.fails = {'cuInit': Status.CUDA_ERROR_NO_DEVICE}


def no_start(monkeypatch, driver):
    driver.fails = {'cuInit': Status.CUDA_ERROR_UNKNOWN}


def poisoned(monkeypatch, driver):
    driver.fails = {'cuInit': Status.CUDA_ERROR_ILLEGAL_ADDRESS}


def forked(monkeypatch, driver):
    driver.fails = {'cuInit': Status.CUDA_ERROR_NOT_INITIALIZED}


def no_answer(monkeypatch, driver):
    driver.fails = {'cuDeviceGetAttribute': Status.CUDA_ERROR_UNKNOWN}


@pytest.mark.parametrize(('miss', 'text'), [
    (no_package, rf'arrays on a GPU need packages that are missing \(.*\): {re.escape(INSTALL.format(12))}'),
    (no_driver, r'no NVIDIA driver is installed here; nvidia-smi shows when there is one'),
    (no_gpu, r'the NVIDIA driver finds no GPU; nvidia-smi lists those it has, CUDA_VISIBLE_DEVICES may hide them'),
    (no_start, r'the NVIDIA driver does not start \(CUDA_ERROR_UNKNOWN\); nvidia-smi says more'),
    (poisoned, re.escape('could not start the NVIDIA driver: ' + RESTART.format('CUDA_ERROR_ILLEGAL_ADDRESS'))),
    (forked, re.escape(f'could not start the NVIDIA driver: {FORKED}')),
    (no_answer, r'could not read CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: CUDA_ERROR_UNKNOWN: the words of .*'),
])
def test_missing(driver, monkeypatch, miss, text):
    miss(monkeypatch, driver)
    with pytest.raises(RuntimeError, match=f'^{text}$'):
        launch.Device(0)


@pytest.mark.parametrize('index', [7, 2**40])
def test_no_such_gpu(driver, index):
    driver.fails = {'cuDeviceGet': Status.CUDA_ERROR_INVALID_DEVICE}
    shape = (1, 2, 5, 5), (2, 2, 3, 3)
    with pytest.raises(ValueError, match=f"^device must be a GPU that the driver finds; got 'cuda:{index}'$"):
        pyconv.workspace(*shape, device=f'cuda:{index}')
    assert ctypes.c_int(driver.calls[-1][1]).value == driver.calls[-1][1], 'an int of C'


def test_no_compiler(driver, monkeypatch, tmp_path):
    monkeypatch.setenv('PYCONV_CACHE_DIR', str(tmp_path))
    monkeypatch.setitem(sys.modules, 'pyconv._gpu.ptx', None)
    monkeypatch.delattr('pyconv._gpu.ptx', raising=False)
    with pytest.raises(RuntimeError, match=rf'^compiling a kernel needs .* \(.*\): {re.escape(INSTALL.format(12))}$'):
        launch.Device(0).kernel(SOURCE, 128, 0)


GPU_LINE = 'GPU 0: Some GPU, capability 8.6, 82 multiprocessors'
NUMBA = {'numba-cuda': '0.30.4', 'nvidia-cuda-nvcc-cu12': '12.9.86', 'nvidia-nvjitlink-cu12': '12.9.86'}
NUMBA_LINE = 'compiler: numba-cuda 0.30.4, nvidia-cuda-nvcc-cu12 12.9.86, nvidia-nvjitlink-cu12 12.9.86'
NUMBA_13 = {'numba-cuda': '0.30.4', 'nvidia-nvvm': '13.0.88', 'nvidia-nvjitlink': '13.0.88'}
NO_GPU = 'the NVIDIA driver finds no GPU; nvidia-smi lists those it has, CUDA_VISIBLE_DEVICES may hide them'
LACKS = f'numba-cuda lacks {{}}, and no CUDA toolkit is found: {INSTALL}'
TOO_OLD = 'the driver is older than every compiler for kernels: install one for CUDA 12 or newer'


def driver_13(monkeypatch, driver):
    monkeypatch.setattr(launch, 'driver_version', lambda: (13, 0))


def driver_11(monkeypatch, driver):
    monkeypatch.setattr(launch, 'driver_version', lambda: (11, 8))


def no_gpus(monkeypatch, driver):
    driver.gpus = 0


def no_count(monkeypatch, driver):
    driver.fails = {'cuDeviceGetCount': Status.CUDA_ERROR_UNKNOWN}


@pytest.mark.parametrize(('version', 'versions', 'command'), [
    (None, {}, 'pip install {}[cuda13]"'),
    ((13, 0), NUMBA_13, 'pip install {}[cuda13]"'),
    ((12, 4), {}, 'pip install {}[cuda12]"'),
    ((12, 4), NUMBA_13, 'pip uninstall -y nvidia-nvvm nvidia-nvjitlink && pip install {}[cuda12]"'),
], ids=str)
def test_how_to_install_from_a_checkout_and_from_a_wheel(monkeypatch, tmp_path, version, versions, command):
    """What a wheel installed lies in no checkout, and an index has another package of pyconv's name."""
    monkeypatch.setattr(launch, 'driver_version', lambda: version)
    monkeypatch.setattr(cubins, 'versions', lambda: versions)
    monkeypatch.setattr(launch, 'ROOT', tmp_path)
    assert launch.install_command() == command.format('"PATH') + ", where PATH is pyconv's wheel or checkout"
    (tmp_path / 'pyproject.toml').touch()
    assert launch.install_command() == "in pyconv's checkout, " + command.format('-e ".')


@pytest.mark.parametrize(('miss', 'versions', 'lines'), [
    (nothing_missing, NUMBA, ['driver for CUDA 12.4', GPU_LINE, NUMBA_LINE]),
    (nothing_missing, {}, ['driver for CUDA 12.4', GPU_LINE, f'no compiler for kernels: {INSTALL.format(12)}']),
    (nothing_missing, {'numba-cuda': '0.30.4', 'nvidia-nvvm': '13.0.88'}, [
        'driver for CUDA 12.4', GPU_LINE,
        'the compiler is for CUDA 13: install a newer driver than this, or in pyconv\'s checkout, '
        'pip uninstall -y nvidia-nvvm && pip install -e ".[cuda12]"']),
    (no_driver, {}, [f'no NVIDIA driver, so no GPU; with one, {INSTALL.format(13)}']),
    *((no_driver, versions, ['no NVIDIA driver, so no GPU', line]) for versions, line in (
        (NUMBA, NUMBA_LINE), ({'numba-cuda': '0.30.4'}, LACKS.format('nvidia-nvvm and nvidia-nvjitlink', 13)))),
    (nothing_missing, {'numba-cuda': '0.30.4'}, [
        'driver for CUDA 12.4', GPU_LINE, LACKS.format('nvidia-cuda-nvcc-cu12 and nvidia-nvjitlink-cu12', 12)]),
    (driver_13, NUMBA_13, ['driver for CUDA 13.0', GPU_LINE,
                           'compiler: numba-cuda 0.30.4, nvidia-nvvm 13.0.88, nvidia-nvjitlink 13.0.88']),
    (driver_13, NUMBA, ['driver for CUDA 13.0', GPU_LINE, NUMBA_LINE]),
    *((driver_13, {name: number for name, number in NUMBA_13.items() if name not in without},
       ['driver for CUDA 13.0', GPU_LINE, LACKS.format(' and '.join(without), 13)])
      for without in (['nvidia-nvvm'], ['nvidia-nvjitlink'], ['nvidia-nvvm', 'nvidia-nvjitlink'])),
    *((driver_11, versions, ['driver for CUDA 11.8', GPU_LINE, TOO_OLD]) for versions in ({}, NUMBA, NUMBA_13)),
    (old_gpu, NUMBA, ['driver for CUDA 12.4', 'GPU 0: Some GPU, capability 6.4, 80 multiprocessors: too old, kernels '
                      'are for 7.5 and above', NUMBA_LINE]),
    (no_gpu, NUMBA, ['driver for CUDA 12.4', NO_GPU, NUMBA_LINE]),
    (no_gpus, NUMBA, ['driver for CUDA 12.4', NO_GPU, NUMBA_LINE]),
    (no_count, NUMBA, ['driver for CUDA 12.4', 'could not count the GPUs: CUDA_ERROR_UNKNOWN: the words of the driver',
                       NUMBA_LINE]),
    (no_answer, NUMBA, ['driver for CUDA 12.4', 'could not read CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: '
                        'CUDA_ERROR_UNKNOWN: the words of the driver', NUMBA_LINE]),
])
def test_report(driver, monkeypatch, miss, versions, lines):
    monkeypatch.setattr(cubins, 'versions', lambda: versions)
    monkeypatch.setattr(cubins, 'toolkit', list)
    miss(monkeypatch, driver)
    assert launch.report() == lines


@pytest.mark.parametrize(('versions', 'found', 'line'), [
    ({'numba-cuda': '0.30.4'}, ['/cuda/nvvm.so', '/cuda/nvJitLink.so'],
     'compiler: numba-cuda 0.30.4, /cuda/nvvm.so, /cuda/nvJitLink.so'),
    ({'numba-cuda': '0.30.4', 'nvidia-nvjitlink': '13.0.88'}, ['/cuda/nvvm.so'],
     'compiler: numba-cuda 0.30.4, nvidia-nvjitlink 13.0.88, /cuda/nvvm.so'),
    ({'numba-cuda': '0.30.4'}, ['/cuda/nvvm.so'], LACKS.format('nvidia-nvvm and nvidia-nvjitlink', 13))], ids=str)
def test_report_of_an_installed_toolkit(driver, monkeypatch, versions, found, line):
    monkeypatch.setattr(cubins, 'versions', lambda: versions)
    monkeypatch.setattr(cubins, 'toolkit', lambda: [[path, 1, 2] for path in found])
    driver_13(monkeypatch, driver)
    assert launch.report()[-1] == line


def test_report_loads_no_compiler(run_python):
    code = 'import sys; from pyconv._gpu import launch; assert launch.report(); print(*sys.modules)'
    assert not {'numba', 'llvmlite', 'torch', 'pyconv._gpu.ptx'} & set(run_python(code).split())


# Where compiled kernels are kept, and under which name

@pytest.mark.parametrize(('platform', 'environment', 'folder'), [
    ('linux', {'PYCONV_CACHE_DIR': '/asked', 'XDG_CACHE_HOME': '/xdg'}, '/asked'),
    ('linux', {'PYCONV_CACHE_DIR': '~/asked', 'HOME': '/home/me'}, '/home/me/asked'),
    ('linux', {'XDG_CACHE_HOME': '/xdg'}, '/xdg/pyconv'),
    ('linux', {'HOME': '/home/me'}, '/home/me/.cache/pyconv'),
    ('win32', {'LOCALAPPDATA': '/local'}, '/local/pyconv/cache'),
])
def test_folder(monkeypatch, platform, environment, folder):
    monkeypatch.setattr(sys, 'platform', platform)
    for name in ('PYCONV_CACHE_DIR', 'XDG_CACHE_HOME', 'LOCALAPPDATA'):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cubins.folder().as_posix() == folder


def test_names_differ_with_all_that_matters(monkeypatch):
    other = SimpleNamespace(**{**vars(SOURCE), 'key': SOURCE.key + '#'})
    wanted = [(SOURCE, 128, 1, 'sm_90'), (SOURCE, 256, 1, 'sm_90'), (SOURCE, 128, 2, 'sm_90'),
              (SOURCE, 128, 1, 'sm_80'), (other, 128, 1, 'sm_90')]
    names = [cubins.key(*each) for each in wanted + wanted]
    assert len(set(names)) == len(wanted)
    cubins._compiler.cache_clear()
    monkeypatch.setattr(cubins, 'versions', lambda: {'numba-cuda': '99'})
    assert cubins.key(*wanted[0]) not in names
    cubins._compiler.cache_clear()


BARE = {'numba-cuda': '0.30.4'}
WHEELS = BARE | {'nvidia-nvvm': '13.0.88', 'nvidia-nvjitlink': '13.0.88'}


@pytest.mark.parametrize(('packages', 'kernels'), [
    (BARE, 4), (BARE | {'nvidia-nvvm': '13.0.88'}, 4), (WHEELS, 1), (BARE | {'nvidia-cuda-nvcc-cu12': '12.9.86'}, 4)])
def test_names_differ_with_an_installed_toolkit(monkeypatch, tmp_path, packages, kernels):
    """Where packages do not stand before it: with its place, with what lies there, and where there is none."""
    def load(library):
        if home is None:
            raise RuntimeError('not found')
        return SimpleNamespace(abs_path=str(home / f'lib{library}.so'))

    monkeypatch.setattr(cubins, 'versions', lambda: packages)
    monkeypatch.setitem(sys.modules, 'cuda.pathfinder', SimpleNamespace(load_nvidia_dynamic_lib=load))
    names = set()
    for number in ('12.4', '12.9'):
        (tmp_path / number).mkdir()
        for library in ('nvvm', 'nvJitLink'):
            (tmp_path / number / f'lib{library}.so').write_text('code')
    for folder, text in (('12.4', 'code'), ('12.9', 'code'), ('12.9', 'newer code'), (None, '')):
        home = folder and tmp_path / folder
        if home:
            (home / 'libnvJitLink.so').write_text(text)
        cubins._compiler.cache_clear()
        names.add(cubins.key(SOURCE, 128, 1, 'sm_90'))
    cubins._compiler.cache_clear()
    assert len(names) == kernels


def test_names_differ_with_every_file_that_a_kernel_is_made_of(monkeypatch):
    """Those of the functions that kernels are written in, and of what writes, chooses, compiles and keeps them."""
    functions = {value for made in configurations.all_kernels() for value in (made.source._made_of[0],
                 *made.source._made_of[1].values()) if inspect.isfunction(value)}
    files = {Path(inspect.getsourcefile(function)).resolve() for function in functions}
    assert {path.stem for path in files} >= {'gemm', 'hopper', 'plain', 'fragments'}
    files |= {Path(module.__file__).resolve() for module in (cubins, specialise, tiles)}
    files |= {Path(cubins.__file__).with_name(f'{name}.py').resolve() for name in ('primitives', 'ptx')}
    real, changed, names = Path.read_bytes, None, set()
    monkeypatch.setattr(Path, 'read_bytes', lambda path: real(path) + b'#' * (path.resolve() == changed))
    for changed in (None, *files):
        cubins._compiler.cache_clear()
        names.add(cubins.key(SOURCE, 128, 1, 'sm_90'))
    cubins._compiler.cache_clear()
    assert len(names) == 1 + len(files)
