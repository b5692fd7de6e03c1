"""A GPU for the tests of machines without one: memory, arrays and launches of pyconv's CUDA backend, emulated."""
import math
import weakref
from array import array
from typing import Any, NamedTuple

import numpy as np

from emulated_hopper import tensor_map
from emulator import KernelError, Memory, bf16_of_bits, bits_of_bf16, run
from pyconv._gpu.launch import Arguments

# bytes a block may have; else 99 KiB
SHARED_LIMITS = {(7, 5): 64 << 10, (8, 0): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10}


def stored_as(dtype):
    return np.dtype('uint16' if dtype == 'bfloat16' else dtype)


class EmulatedArray:
    """An array in emulated memory; strides in elements. The memory is freed with the array and all views of it."""

    def __init__(self, memory, address, shape, strides, dtype, read_only=False, owner=None):
        self.memory, self.address, self.dtype, self.read_only, self.owner = memory, address, dtype, read_only, owner
        self.shape, self.strides = tuple(shape), tuple(strides)

    def owning(self, allocation):
        weakref.finalize(self, self.memory.free, allocation).atexit = False
        return self

    @classmethod
    def empty(cls, memory, shape, dtype):
        """In C order, of poison."""
        strides = tuple(math.prod(shape[axis + 1:]) for axis in range(len(shape)))
        address = memory.allocate(math.prod(shape) * stored_as(dtype).itemsize)
        return cls(memory, address, shape, strides, dtype).owning(address)

    @classmethod
    def from_numpy(cls, memory, array, dtype=None, read_only=False):
        """The values of a NumPy array in its own layout, whatever its strides are; poison between them.

        `dtype` is a name; bfloat16 takes any float array and rounds it to nearest even.
        """
        dtype = dtype or array.dtype.name
        size = stored_as(dtype).itemsize
        steps = [step // array.itemsize for step in array.strides]
        ends = [step * (length - 1) * size for step, length in zip(steps, array.shape)] if array.size else []
        below = sum(end for end in ends if end < 0)
        span = sum(map(abs, ends)) + size if array.size else 0
        start = memory.allocate(span)
        made = cls(memory, start - below, array.shape, steps, dtype, read_only)
        made.stored()[...] = bits_of_bf16(np.asarray(array, np.float32)) if dtype == 'bfloat16' else array
        return made.owning(start)

    def stored(self):
        """A NumPy array on the same memory; of bfloat16 its bits."""
        dtype = stored_as(self.dtype)
        return self.memory.view(self.address, self.shape, dtype, [step * dtype.itemsize for step in self.strides])

    def to_numpy(self):
        """A copy of the values; bfloat16 as float32."""
        values = self.stored().copy()
        return bf16_of_bits(values) if self.dtype == 'bfloat16' else values

    def view(self, function):
        """What a NumPy view such as `lambda x: x.transpose(0, 2, 1)[::-1]` makes of it, on the same memory."""
        old = self.stored()
        new = function(old)
        assert isinstance(new, np.ndarray) and new.dtype == old.dtype
        shift = new.__array_interface__['data'][0] - old.__array_interface__['data'][0]
        strides = [step // new.itemsize for step in new.strides]
        return type(self)(self.memory, self.address + shift, new.shape, strides, self.dtype, self.read_only, self)

    def __dlpack_device__(self):
        """That of a GPU. With the protocol below alone it would be read by that, and not by its own kind."""
        return 2, 0

    @property
    def __cuda_array_interface__(self):
        stored = stored_as(self.dtype)
        return {'version': 3, 'shape': self.shape, 'typestr': '|V2' if self.dtype == 'bfloat16' else stored.str,
                'data': (self.address, self.read_only), 'strides': tuple(s * stored.itemsize for s in self.strides),
                'stream': None}


class Kernel(NamedTuple):
    source: Any
    threads: int
    shared: int


class EmulatedDevice:
    """What `pyconv._gpu.launch.device` gives, with kernels run at once by the emulator.

    `launched` names the kernels in order; `statistics` are the bank conflicts of the last one where they are asked for.
    """

    def __init__(self, memory=None, capability=(9, 0), multiprocessors=132, statistics=False, races=True):
        self.memory = memory or Memory()
        self.capability, self.multiprocessors = capability, multiprocessors
        self.shared_limit = SHARED_LIMITS.get(capability, 99 << 10)
        self.keep, self.races = statistics, races
        self.launched, self.statistics = [], {}

    @staticmethod
    def tensor_map(address, columns, rows, row, box_rows):
        return array('q', tensor_map(address, columns, rows, row, box_rows))

    @property
    def launches(self):
        return len(self.launched)

    def kernel(self, source, threads, shared, blocks_per_sm=1):
        if not 0 < threads <= 1024 or threads % 32:
            raise KernelError(f'threads must be whole warps, 1024 at most; got {threads}')
        if not 0 <= shared <= self.shared_limit:
            raise KernelError(f'shared must be at most {self.shared_limit} bytes; got {shared}')
        return Kernel(source, threads, shared)

    def launch(self, launches, stream):
        for kernel, grid, arguments in launches:
            self.run(kernel, grid, arguments)

    def run(self, kernel, grid, arguments):
        source, threads, shared = kernel
        if isinstance(arguments, Arguments):
            arguments = arguments.given()
        if isinstance(arguments[0], bytes):                      # a tensor map: in the kernel its address
            at = self.memory.allocate(len(arguments[0]))
            self.memory.view(at, (len(arguments[0]),), np.uint8)[:] = np.frombuffer(arguments[0], np.uint8)
            try:
                return self.run(kernel, grid, [at, *arguments[1:]])
            finally:
                self.memory.free(at)
        if len(arguments) != len(source.arguments):
            raise TypeError(f'{source.name} must be given {len(source.arguments)} arguments; got {len(arguments)}')
        if not (0 <= grid[0] < 1 << 31 and 0 <= grid[1] < 1 << 16 and 0 <= grid[2] < 1 << 16):
            raise KernelError(f'grid must be at most (2**31 - 1, 65535, 65535) blocks; got {tuple(grid)}')
        if 0 in grid:
            return
        self.statistics = run(self.memory, source.text, source.name, arguments, grid, threads, shared,
                              self.keep, self.races)
        self.launched.append(source.name)


def emulated_kind(memory, stream=0):
    """A kind for `pyconv._gpu.kinds.KINDS`: emulated arrays, each on device 0."""
    from pyconv._gpu.arrays import DTYPES, DeviceArray, Kind

    class EmulatedKind(Kind):
        def read(self, name, value):
            if not isinstance(value, EmulatedArray):
                return None
            return DeviceArray(value, value.address, value.shape, value.strides, DTYPES[value.dtype], 0, self,
                               value.read_only)

        def new(self, shape, dtype, device):
            return EmulatedArray.empty(memory, shape, dtype.name)

        def stream(self, device):
            return stream

    return EmulatedKind()


def ran(body, threads=32, grid=(1, 1, 1), shared=0, returns=False, races=True, **arguments):
    """Run lines of a kernel; arguments are integers and arrays (their address). The arrays afterwards, by name."""
    memory = Memory()
    arrays = {name: EmulatedArray.from_numpy(memory, value) for name, value in arguments.items()
              if isinstance(value, np.ndarray)}
    text = '\n'.join([f'def kernel({", ".join(arguments)}):', *(f'    {line}' for line in body.strip().splitlines())])
    values = [arrays[name].address if name in arrays else value for name, value in arguments.items()]
    statistics = run(memory, text, 'kernel', values, grid, threads, shared, returns, races)
    return statistics if returns else {name: array.to_numpy() for name, array in arrays.items()}
