"""Runs the kernels of `plain` and `depthwise` in Numba's simulator: a process of its own, NUMBA_ENABLE_CUDASIM=1.

A thread runs to its next barrier before others get their turn, where the emulator goes forward with all at once; a
barrier that some threads do not reach is an error. The text is that which would be compiled; its primitives work here
on one thread's values, Python integers and NumPy floats, in the emulator's memory. Products of tiles need whole warps
at once and stay the emulator's.
"""
import functools
import threading

import numpy as np
from numba import config, cuda
from numba.cuda.simulator import kernel as simulator

from emulated_device import EmulatedDevice
from emulated_memory import ORIGIN
from emulator import TYPES

assert config.ENABLE_CUDASIM
threading.stack_size(256 << 10)    # a block's threads are many, and stacks of this size are used again


def wrapped(bits, is_signed):
    def cast(x):
        x = int(x) & (1 << bits) - 1
        return x - (1 << bits) if is_signed and x >> bits - 1 else x
    return cast


def fma(a, b, c):
    assert type(a) is type(b) is type(c)
    return type(a)(np.float64(a) * np.float64(b) + np.float64(c))


def select(ok, a, b):
    return a if ok else b


def as_float(dtype):
    return lambda bits: np.int64(bits).view(dtype) if dtype == 'f8' else np.uint32(bits & 0xffffffff).view(dtype)


def along(place, index, step):
    return int(place) + wrapped(32, True)(index) * wrapped(32, True)(step)


def divide(n, magic, shift):
    return wrapped(32, True)((wrapped(32, True)(n) * magic) >> shift)


PURE = {'i32': wrapped(32, True), 'u32': wrapped(32, False), 'i64': wrapped(64, True), 'f32': np.float32,
        'f64': np.float64, 'number_f32': as_float('f4'),
        'number_f64': as_float('f8'), 'number_i32': wrapped(32, True), 'number_i64': int, 'select': select,
        'divide': divide, 'fma': fma, 'along': along, 'range': range, 'shared_base': lambda: 0}


def primitives(memory):
    """The names of a kernel. `cuda` among them is what the simulator replaces by the running thread's own."""
    names = {'cuda': cuda, **PURE}
    names['thread'] = lambda: names['cuda'].threadIdx.x
    names['barrier'] = lambda: names['cuda'].syncthreads()
    for axis in 'xyz':
        names[f'block_{axis}'] = lambda axis=axis: getattr(names['cuda'].blockIdx, axis)
    for kind in ('f16', 'bf16', 'f32', 'f64', 'i8', 'u8', 'i16', 'u16', 'i32', 'u32', 'i64'):
        names[f'load_{kind}'], names[f'store_{kind}'] = global_memory(memory, *TYPES[kind])
        names[f'reload_{kind}'] = names[f'load_{kind}']
    for kind, count in (('f16', 2), ('f16', 4), ('bf16', 2), ('bf16', 4), ('f32', 2)):
        names[f'load_{kind}x{count}'] = side_by_side(memory, names[f'load_{kind}'], TYPES[kind][0], count)
    names['load_b32x4'], names['store_b32x4'] = chunks(memory, names['load_i32'], names['store_i32'])
    for kind in ('f32', 'f64', 'b32', 'i32', 'i64'):
        names[f'shared_{kind}'], names[f'put_{kind}'] = shared_memory(names, *TYPES[kind])
    return names


def number(values):
    """One value as a kernel holds it."""
    value = values[0]
    return int(value) if value.dtype.kind in 'iu' else value


def global_memory(memory, width, decode, encode):
    words = memory.words[width]
    zero = number(decode(np.zeros(1, words.dtype)))

    def place(address):
        places = np.array([address])
        memory.pieces(places, width)
        return (places - ORIGIN) // width

    def load(address, ok):
        return number(decode(words[place(address)])) if ok else zero

    def store(address, ok, value):
        if ok:
            words[place(address)] = encode(np.array([value]))
    return load, store


def side_by_side(memory, load_one, width, count):
    def load(address, ok):
        if ok:
            memory.pieces(np.array([address]), width * count)
        return tuple(load_one(address + width * i, ok) for i in range(count))
    return load


def chunks(memory, load_word, store_word):
    def load(address, ok):
        if ok:
            memory.pieces(np.array([address]), 16)
        return tuple(load_word(address + 4 * i, ok) for i in range(4))

    def store(address, ok, *words):
        if ok:
            memory.pieces(np.array([address]), 16)
        for i, word in enumerate(words):
            store_word(address + 4 * i, ok, word)
    return load, store


def shared_memory(names, width, decode, encode):
    dtype = np.dtype(f'uint{8 * width}')

    def words():
        return names['cuda'].shared.array(0, dtype)

    def load(address):
        assert address % width == 0
        return number(decode(words()[address // width:][:1].copy()))

    def put(address, ok, value):
        assert address % width == 0
        if ok:
            words()[address // width] = encode(np.array([value]))[0]
    return load, put


class ThreadInTurn(simulator.BlockThread):
    """A thread that goes on to its next barrier, or to its end, when it is its turn, and then gives the turn on."""

    def __init__(self, *settings):
        super().__init__(*settings)
        self.turn, self.after, self.ended = closed(), None, False

    def run(self):
        self.turn.acquire()
        super().run()
        self.ended = True
        self.after.release()

    def syncthreads(self):
        self.after.release()
        self.turn.acquire()
        if self.abort:
            raise RuntimeError('another thread has failed')


def closed():
    """A lock that waits for a release."""
    lock = threading.Lock()
    lock.acquire()
    return lock


def run_in_turns(self, place, *arguments):
    """In the place of the simulator's own, which asks all threads again and again whether they wait. A block begins
    with shared memory that nobody has written. Without barriers a thread's turn is all of it, and one does for all."""
    def until_the_end(turn):
        thread = threading.current_thread()
        for at in turn:
            thread.threadIdx = simulator.Dim3(*at)
            self._f(*arguments)

    simulator._get_kernel_context().shared._dynshared.fill(-1)
    places = list(np.ndindex(*self._block_dim))
    turns = [[one] for one in places] if 'barrier' in self._f.__code__.co_names else [places]
    threads = [ThreadInTurn(functools.partial(until_the_end, turn), self, place, turn[0], self._debug)
               for turn in turns]
    mine = closed()
    for thread, after in zip(threads, [*(thread.turn for thread in threads[1:]), mine]):
        thread.after = after
        thread.start()
    while not threads[0].ended:
        threads[0].turn.release()
        mine.acquire()
        failed = next((thread.exception for thread in threads if thread.exception), None)
        if failed or len({thread.ended for thread in threads}) > 1:
            for thread in threads:
                thread.abort = True
                if not thread.ended:
                    thread.after = mine
                    thread.turn.release()
                    mine.acquire()
            assert failed, 'some threads do not reach a barrier'
            raise failed[0].with_traceback(failed[1])


simulator.BlockManager.run = run_in_turns


class SimulatedDevice(EmulatedDevice):
    """An emulated device whose kernels without tiles run in the simulator; `simulated` are their names."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.simulated = set()

    def run(self, kernel, grid, arguments):
        source, threads, shared = kernel
        if source.name in ('gather', 'correlate') or 0 in grid:
            super().run(kernel, grid, arguments)
            return
        names = primitives(self.memory)
        exec(compile(source.text, f'<kernel {source.name}>', 'exec'), names)
        self.simulated.add(source.name)
        with np.errstate(all='ignore'):
            cuda.jit(names[source.name])[tuple(grid), threads, 0, shared](*arguments.given())
