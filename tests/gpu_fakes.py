"""GPU arrays whose memory is NumPy's, of each kind, and a backend that computes on them with the CPU's: no GPU."""
import ctypes
import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import pyconv
from pyconv._backend import cpu
from pyconv._dtypes import is_integer
from pyconv._gpu import streams
from pyconv._gpu.arrays import DeviceArray
from pyconv._gpu.launches import Step


def view(array):
    """The memory of a DeviceArray as a NumPy array."""
    low, high = array.bounds()
    memory = (ctypes.c_char * (high - low)).from_address(low) if high > low else b''
    strides = [step * array.dtype.size for step in array.strides]
    return np.ndarray(array.shape, array.dtype.name, memory, array.address - low if high > low else 0, strides)


class Program(NamedTuple):
    """Gives a function the arrays where they lie when it is run, and the stream."""

    scratch: int
    function: Any
    settings: dict
    arrays: dict
    places: dict

    def on(self, places):
        return self._replace(places=places)

    def run(self, addresses, stream):
        there = {word: array._replace(address=addresses[self.places[word].base] + self.places[word].offset)
                 for word, array in self.arrays.items()}
        self.function(**there, **self.settings, stream=stream)

    def then(self, others):
        return Programs([self, *others])


class Programs(list):
    """They run one after the other."""

    def run(self, addresses, stream):
        for program in self:
            program.run(addresses, stream)


def step(function, settings, **arrays):
    """A step of one program."""
    arrays = {word: array for word, array in arrays.items() if isinstance(array, DeviceArray)}
    scratch = int('scratch' in arrays)
    operands = {word: array for word, array in arrays.items() if word != 'scratch'}
    return Step(Program(scratch, function, settings, arrays, {}), operands)


class Plan:
    """One map, computed in float64; remembers how it was asked for."""

    scratch_minimum, scratch_size = 50, 200

    def __init__(self, backend, map, geometry, dtype, algorithm, allow_tf32, device):
        self.backend, self.map, self.geometry, self.algorithm = backend, map, geometry, algorithm
        self.asked = (map, dtype.name, algorithm, allow_tf32, device)
        backend.plans.append(self.asked)

    def steps(self, first, second, out, bias, scratch, accumulate):
        more = {'bias': bias, 'scratch': scratch}
        yield step(self.run, {'accumulate': accumulate}, first=first, second=second, out=out, **more)

    def run(self, first, second, out, bias=None, scratch=None, *, accumulate, stream):
        self.backend.runs.append(SimpleNamespace(
            map=self.map, first=first, second=second, out=out, bias=bias, scratch=scratch, accumulate=accumulate,
            stream=stream, plan=self.asked))
        factors = [np.ascontiguousarray(view(factor), np.float64) for factor in (first, second)]
        result = np.empty(out.shape)
        algorithm = self.algorithm if self.algorithm == 'columns' else 'gemm'
        plan = cpu.plan(self.map, self.geometry, np.dtype(float), algorithm)
        plan.run(*factors, result, None if bias is None else view(bias).astype(float), None, False, threads=1)
        view(out)[...] = result + (view(out) if accumulate else 0)
        if scratch is not None:
            rest = scratch.shape[0] - 256 // scratch.dtype.size  # it begins at a multiple of 256
            if rest > 0:
                view(scratch._replace(shape=(rest,)))[...] = 99 if is_integer(scratch.dtype) else np.nan


class Backend(ModuleType):
    """Stands for pyconv._cuda."""

    def __init__(self):
        super().__init__('pyconv._cuda')
        self.plans, self.runs, self.streams, self.decisions, self.known = [], [], [], {}, {}

    def plan(self, map, geometry, dtype, algorithm, result=None, *, allow_tf32, device):
        return Plan(self, map, geometry, dtype, algorithm, allow_tf32, device)

    def check_unfold(self, geometry):
        pass

    def check_channel_sum(self, array, axis):
        pass

    def unfold(self, geometry, input, columns, fold, accumulate=False):
        settings = {'geometry': geometry, 'fold': fold, 'accumulate': accumulate}
        yield step(self.unfolded, settings, input=input, columns=columns)

    def channel_sum(self, array, axis, out, accumulate=False):
        yield step(self.summed, {'axis': axis, 'accumulate': accumulate}, array=array, out=out)

    def fill(self, out, value, accumulate=False):
        yield step(self.filled, {'accumulate': accumulate}, out=out, value=value)

    def unfolded(self, geometry, input, columns, fold, accumulate, stream):
        self.streams.append(stream)
        source, target = (columns, input) if fold else (input, columns)
        pair = [np.ascontiguousarray(view(array), np.float64) for array in (input, columns)]
        cpu.unfold(geometry, *pair, fold, threads=1)
        view(target)[...] = pair[0 if fold else 1] + (view(target) if accumulate else 0)

    def summed(self, array, axis, out, accumulate, stream):
        self.streams.append(stream)
        total = view(array).sum(tuple(place for place in range(array.ndim) if place != axis))
        view(out)[...] = total + (view(out) if accumulate else 0)

    def filled(self, out, accumulate, stream, value=None):
        self.streams.append(stream)
        rest = (1,) * (out.ndim - 2)
        value = 0 if value is None else view(value).reshape(-1, *rest)
        view(out)[...] = value + (view(out) if accumulate else 0)


class Interface:
    """Has __cuda_array_interface__ and nothing else; `device` and the rest are what it says of itself."""

    devices = {}  # by address, for those that are not on device 0

    def __init__(self, array, version=3, stream=None, read_only=False, device=0, **entries):
        self.host, self.shape, self.dtype = array, array.shape, array.dtype
        if device != 0:  # None: the driver knows no such memory
            self.devices[array.ctypes.data] = device
        self.entries = {'version': version, 'data': (array.ctypes.data, read_only), **entries}
        if version > 2:
            self.entries['stream'] = stream

    @property
    def __cuda_array_interface__(self):
        strides = None if self.host.flags.c_contiguous else self.host.strides
        return {'shape': self.host.shape, 'typestr': self.host.dtype.str, 'strides': strides, **self.entries}


class DLPack:
    """Has DLPack on a CUDA device and nothing else; with version 0, as of before max_version."""

    def __init__(self, array, version=1, copies=False):
        self.host, self.shape, self.dtype = array, array.shape, array.dtype
        self.old, self.copies, self.ready_on = version < 1, copies, []

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream=-1, **keywords):
        """-1: nothing is ordered, as of torch's tensors that are asked for no stream."""
        self.ready_on.append(stream)
        if self.old and keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        return self.host.__dlpack__(**keywords, **({'copy': True} if self.copies else {}))


class Numba(Interface):
    """What numba.cuda.device_array gives."""


class OutOfMemoryError(RuntimeError):
    """As torch's, no MemoryError."""


class Frameworks:
    """Modules in the place of torch, cupy and numba.cuda; allocations fail while `full`."""

    def __init__(self):
        self.full, self.current, self.entered = False, 0, []
        self.torch, self.cupy, self.numba = self._torch(), self._cupy(), self._numba()

    def _empty(self, shape, dtype, error=MemoryError):
        if self.full:
            raise error('CUDA out of memory')
        return np.full(shape, np.nan, dtype)

    @contextmanager
    def _using(self, stream):
        self.entered.append(stream)
        yield

    def _torch(self):
        module, frameworks = ModuleType('torch'), self

        class Tensor:
            is_cuda, layout, requires_grad, writes, offset, freed = True, 'strided', False, 0, 0, False

            def __init__(self, host, device=0, neg=False, layout='strided', zeros=False):
                self.host, self.device, self.layout = host, SimpleNamespace(index=device, type='cuda'), layout
                self.shape, self.dtype, self.neg, self.zeros = host.shape, f'torch.{host.dtype}', neg, zeros
                self.lent = []

            def is_conj(self):
                return False

            def is_neg(self):
                return self.neg

            def _is_zerotensor(self):
                return self.zeros

            def record_stream(self, stream):
                self.lent.append(stream)

            def get_device(self):
                return self.device.index

            def data_ptr(self):
                return self.host.ctypes.data

            def storage_offset(self):
                return self.offset

            def untyped_storage(self):
                return SimpleNamespace(nbytes=lambda: 0 if self.freed else self.host.nbytes)

            def stride(self):
                return tuple(step // self.host.itemsize for step in self.host.strides)

            def __dlpack_device__(self):
                return 2, self.device.index

        module.Tensor, module.strided = Tensor, 'strided'
        def increment_version(tensor):
            tensor.writes += 1

        module.is_grad_enabled = lambda: True
        module.autograd = SimpleNamespace(
            graph=SimpleNamespace(increment_version=increment_version), forward_ad=SimpleNamespace(_current_level=-1))
        module.compiler = SimpleNamespace(is_dynamo_compiling=lambda: False)
        module.device = lambda kind, index: index
        for name in ('float16', 'float32', 'float64'):
            setattr(module, name, f'torch.{name}')
        module.empty_strided = lambda shape, steps, dtype, device: Tensor(
            frameworks._empty(shape, dtype.removeprefix('torch.'), OutOfMemoryError), device)
        module.cuda = SimpleNamespace(
            current_stream=lambda device: SimpleNamespace(cuda_stream=frameworks.current),
            ExternalStream=self._external, stream=frameworks._using,
            default_stream=lambda device: f'default of {device}')
        return module

    @staticmethod
    def _external(handle, device):
        """As torch's, which takes 0 for no handle and gives a stream of its own pool."""
        assert handle, 'a new stream'
        return handle

    def _cupy(self):
        module, frameworks = ModuleType('cupy'), self

        class ndarray:
            def __init__(self, host, device=0):
                self.host, self.shape, self.dtype, self.strides = host, host.shape, host.dtype, host.strides
                self.data = SimpleNamespace(ptr=host.ctypes.data, device_id=device)

            def __dlpack_device__(self):
                return 2, self.data.device_id

        module.ndarray = ndarray
        module.empty = lambda shape, dtype: ndarray(frameworks._empty(shape, dtype))
        module.cuda = SimpleNamespace(
            Device=nullcontext, get_current_stream=lambda device: SimpleNamespace(ptr=frameworks.current),
            ExternalStream=lambda handle, device: frameworks._using(handle))
        return module

    def _numba(self):
        module, frameworks = ModuleType('numba.cuda'), self

        class Gpus:
            def __getitem__(self, device):
                return nullcontext()

        def device_array(shape, dtype, stream):
            made = Numba(frameworks._empty(shape, dtype), stream=stream.handle if stream else None)
            made.stream = stream
            return made

        class Stream:
            def __init__(self, handle):
                self.handle = handle

        module.gpus, module.device_array, module.external_stream = Gpus(), device_array, Stream
        return module


class HostTensor:
    """Offers DLPack and NumPy's protocol, and lies in main memory."""

    def __init__(self, array):
        self.host, self.shape = array, array.shape

    def __dlpack_device__(self):
        return 1, 0

    def __array__(self, dtype=None, copy=None):
        return self.host


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    """Stands for pyconv._cuda; the driver knows the device of every address."""
    backend = Backend()
    monkeypatch.setitem(sys.modules, 'pyconv._cuda', backend)
    monkeypatch.setattr(Interface, 'devices', {})
    monkeypatch.setattr(streams, 'device_of', lambda address: Interface.devices.get(address, 0))
    monkeypatch.setattr(streams, 'current_device', lambda: 0)
    return backend


@pytest.fixture(autouse=True)
def frameworks(monkeypatch):
    frameworks = Frameworks()
    for name in ('torch', 'cupy'):
        monkeypatch.setitem(sys.modules, name, getattr(frameworks, name))
    monkeypatch.setitem(sys.modules, 'numba.cuda', frameworks.numba)
    return frameworks


@pytest.fixture
def waits(monkeypatch):
    """(stream, the stream that it waits for, device)."""
    waits = []
    monkeypatch.setattr(streams, 'wait', lambda *call: waits.append(call))
    return waits


def integers(*shape, dtype='float32'):
    return np.random.default_rng(0).integers(-3, 4, shape).astype(dtype)


X, W, B = integers(2, 4, 6, 5), integers(6, 2, 3, 2), integers(6)
SETTINGS = {'stride': (2, 1), 'padding': 1, 'groups': 2}
Y = integers(*pyconv.conv2d(X, W, **SETTINGS).shape)
def maker(kind, frameworks):
    """From NumPy arrays to GPU arrays over the same memory."""
    return {'torch': frameworks.torch.Tensor, 'cupy': frameworks.cupy.ndarray, 'interface': Interface,
            'version 2': lambda array: Interface(array, 2), 'dlpack': DLPack,
            'old dlpack': lambda array: DLPack(array, 0)}[kind]


def result_type(kind, frameworks):
    return {'torch': frameworks.torch.Tensor, 'cupy': frameworks.cupy.ndarray}.get(kind, Numba)


def conv(x=None, w=None, b=None, **more):
    return pyconv.conv2d(Interface(X) if x is None else x, Interface(W) if w is None else w, b, **SETTINGS, **more)
