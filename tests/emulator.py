"""Runs the source of CUDA kernels on the CPU: every thread of every block at once, in lock step, in NumPy.

`run` executes the straight Python source that would be compiled for a GPU; its names are bound to the primitives below.
A value of a kernel is a NumPy scalar where it is uniform, else an array by (block, thread) with one row where all
blocks agree (a row of threads) or one column where all threads of a block do. i32 and i64 are carried as int64, as
Numba computes; u32 as uint32; literals are int64 and float64, as in Numba.

What it checks: bounds, alignment, poison for whatever was not written (see emulated_memory), divergent branches,
missing waits (a copy lands at the wait and not before), missing barriers, races, bank conflicts.

What it cannot see: speed, registers, coalescing, whether the compiler accepts the source; threads of one warp that race
each other (a missing warp barrier between a copy's wait and its other readers in the warp, say); a race that this grid
and these sizes do not have; the order of memory between launches in two streams; how tensor cores round sums (here
float32 sums in BLAS's order, or cut off as Executor.more_bits says); sums and products of two u32, which wrap here and
are 64 bits wide in Numba.
"""
import ast
import builtins
import functools
import linecache
import operator
from collections import defaultdict

import numpy as np

from emulated_hopper import Hopper, bound, matrix_product
from emulated_memory import ORIGIN, RAW, Again, Hazards, KernelError, Memory, Shared, blocks_of, wavefronts

__all__ = ['KernelError', 'Memory', 'bf16_of_bits', 'bits_of_bf16', 'run']


def bits_of_bf16(values):
    """float32 -> bfloat16 bits, to nearest even; a NaN stays one."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7fff) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), bits >> np.uint32(16) | np.uint32(0x40), rounded).astype(np.uint16)


def bf16_of_bits(bits):
    return (np.asarray(bits, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_u32(x):
    """Bits of a u32, as a carrier of unsigned 32 bits; integers wrap."""
    x = np.asarray(x)
    return x if x.dtype == np.uint32 else x.astype(np.int64, copy=False).astype(np.uint32)


def integers(x):
    x = np.asarray(x)
    if x.dtype.kind not in 'iu':
        raise KernelError(f'an address must be an integer; got {x.dtype}')
    return x.astype(np.int64, copy=False)


def same(bits):
    return bits


# Raw values in memory -> values in registers, and back.
TYPES = {
    'f16': (2, lambda bits: bits.view(np.float16).astype(np.float32),
            lambda x: np.asarray(x, np.float32).astype(np.float16).view(np.uint16)),
    'bf16': (2, bf16_of_bits, lambda x: bits_of_bf16(np.asarray(x, np.float32))),
    'f32': (4, lambda bits: bits.view(np.float32), lambda x: np.asarray(x, np.float32).view(np.uint32)),
    'f64': (8, lambda bits: bits.view(np.float64), lambda x: np.asarray(x, np.float64).view(np.uint64)),
    'i32': (4, lambda bits: bits.view(np.int32).astype(np.int64), to_u32),
    'i64': (8, lambda bits: bits.view(np.int64), lambda x: np.asarray(x, np.int64).view(np.uint64)),
    **{f'{kind}{8 * size}': (size, functools.partial(lambda dtype, bits: bits.view(dtype).astype(np.int64),
                                                     f'{kind}{size}'),
                             functools.partial(lambda dtype, x: np.asarray(x, np.int64).astype(dtype), f'u{size}'))
       for kind, size in (('i', 1), ('u', 1), ('i', 2), ('u', 2), ('u', 4))},
    'b32': (4, same, to_u32),
}


def cast(dtype, carrier):
    narrows = dtype is not carrier

    def convert(x):
        if type(x) is not np.ndarray:
            if type(x) is np.int64 and dtype is np.int32 and -1 << 31 <= x < 1 << 31:    # most are: so made fast
                return x
            if not isinstance(x, np.generic):
                x = np.asarray(x)
        if dtype is np.uint32:
            return to_u32(x)[()]
        return x.astype(dtype).astype(carrier) if narrows else x.astype(carrier, copy=False)
    return convert


i32 = cast(np.int32, np.int64)


def select(ok, a, b):
    """An integer literal takes the type of the other value."""
    if a.dtype != b.dtype:
        if any(isinstance(x, np.int64) for x in (a, b)) and np.uint32 in (a.dtype, b.dtype):
            a, b = to_u32(a), to_u32(b)
        if a.dtype != b.dtype:
            raise KernelError(f'select must have two values of one type; got {a.dtype} and {b.dtype}')
    if np.ndim(ok) == 0:
        return a if ok else b
    return np.where(ok, a, b)


def divide(n, magic, shift):
    return i32((i32(n) * magic) >> shift)


def along(address, index, step):
    return integers(address) + i32(index) * i32(step)


# Of a float32: the exponent, which Inf and NaN have whole; half of the last bit that TF32 has; the bits that it has.
EXPONENT, HALF, KEPT = np.array([0x7f800000, 0x1000, 0xffffe000], np.uint32)


def round_tf32(x):
    """To 10 bits of mantissa, to nearest, ties away from zero; Inf and NaN as they are."""
    x = to_u32(x)
    exponent, rounded = x & EXPONENT, (x + HALF) & KEPT
    return rounded if exponent.max() < EXPONENT else np.where(exponent != EXPONENT, rounded, x)


def split_tf32(x):
    x = to_u32(x)
    high = round_tf32(x)
    low = round_tf32((x.view(np.float32) - high.view(np.float32)).view(np.uint32))
    exponent = high & EXPONENT
    return high, low if exponent.max() < EXPONENT else np.where(exponent != EXPONENT, low, np.uint32(0))


def pair(encode, first, second):
    """Two 16-bit floats as a word, the first its lower half."""
    low, high = (encode(x).astype(np.uint32) for x in (first, second))
    return i32(low | high << np.uint32(16))


# Products of elements of 32 and 64 bits: halves of 8 rows, and k / 4, the elements that a lane gives of a row.
WORDS = {'tf32': (2, 2), 'f64': (1, 1), 'f64_m16n8k16': (2, 4)}


def cut_off(products, total, more_bits):
    """total + the last axis of products as tensor cores sum that do not round: each addend is cut off at the last place
    that float32 has at the largest of them, or so many bits below it, then their sum at its own last place."""
    addends = np.concatenate([products, total[..., None]], -1)
    unit = np.ldexp(1.0, np.frexp(np.abs(addends).max(-1, keepdims=True))[1] - 24 - more_bits)
    exact = (np.trunc(addends / unit) * unit).sum(-1)
    found = exact.astype(np.float32)
    return np.where(np.abs(found) > np.abs(exact), np.nextafter(found, np.float32(0)), found)


PURE = {
    'i32': i32, 'u32': cast(np.uint32, np.uint32), 'i64': cast(np.int64, np.int64),
    'f32': cast(np.float32, np.float32), 'f64': cast(np.float64, np.float64),
    'select': select, 'divide': divide, 'along': along, 'round_tf32': round_tf32, 'split_tf32': split_tf32,
    'bits_f32': lambda x: to_u32(x).view(np.float32)[()],
    'number_f32': lambda x: to_u32(x).view(np.float32)[()], 'number_f64': lambda x: np.int64(x).view(np.float64),
    'number_i32': i32, 'number_i64': cast(np.int64, np.int64),
    'f32_bits': lambda x: np.asarray(x, np.float32).view(np.uint32)[()],
    **{f'pair_{kind}': functools.partial(pair, TYPES[kind][2]) for kind in ('f16', 'bf16')},
    'range': lambda *limits: map(np.int64, builtins.range(*map(operator.index, limits))),
    '__builtins__': {},
}


class Accumulators(tuple):
    """The registers of an mma's sums: those of one array, by (register, block, thread)."""

    def __new__(cls, sums):
        made = super().__new__(cls, sums)
        made.sums = sums
        return made


class Executor:
    """The primitives that need to know a batch of blocks: who the threads are, their memory, their warps."""

    def __init__(self, memory, hazards, index, block, threads, shared_bytes, races, statistics):
        self.memory, self.hazards, self.counts = memory, hazards, statistics
        self.shape = len(index), threads
        self.lanes = np.arange(threads)[None]
        self.who = index * threads + self.lanes
        self.block = [i if len(i) > 1 else np.repeat(i, threads, 1) for i in block]      # uniform they must not look
        self.shared = Shared(len(index), threads, shared_bytes, races)
        self.groups, self.issued, self.fragments, self.widened, self.fronts = [], [], {}, {}, {}
        self.hopper = Hopper(self, {
            'f16': TYPES['f16'][1], 'bf16': TYPES['bf16'][1],
            'tf32': lambda raw: (raw.view(np.uint32) & KEPT).view(np.float32)})

    def namespace(self, wanted):
        """The wanted ones of all names that a kernel may use."""
        return PURE | bound(self, primitives(), wanted) | self.hopper.namespace(wanted)

    def thread(self):
        return self.lanes

    def block_index(self, axis):
        return self.block[axis]

    def barrier(self):
        self.shared.barrier()

    def shared_base(self):
        return np.int64(Shared.BASE)

    def let_next_begin(self):
        """Here kernels run one after the other."""

    def row(self, x):
        """A value by (block or one row for all, thread)."""
        x = np.asarray(x)
        return x if x.ndim == 2 and x.shape[1] == self.shape[1] else np.broadcast_to(
            x, (x.shape[0] if x.ndim else 1, self.shape[1]))

    def where(self, ok):
        """`ok` as bools; None where it holds everywhere."""
        ok = np.asarray(ok)
        ok = ok if ok.dtype == bool else ok != 0
        return None if np.count_nonzero(ok) == ok.size else self.row(ok)

    def spread(self, value):
        """By (block, thread)."""
        return value if value.shape == self.shape else np.broadcast_to(value, self.shape)

    def chosen(self, ok, *values):
        """Each value flat, of the threads where ok, which is by (block, thread)."""
        return [self.spread(value).ravel() if ok is None else self.spread(value)[ok] for value in values]

    def read_global(self, width, address, ok):
        """Raw values by (block, thread), 0 where not ok."""
        ok = None if ok is None else self.spread(ok)
        address, = self.chosen(ok, integers(address))
        if address.size == 0:
            return np.zeros(self.shape, RAW[width])
        if self.hazards:
            self.hazards.load(address, width, self.chosen(ok, self.who)[0] if self.hazards.exact else None)
        else:
            self.memory.pieces(address, width)
        values = self.memory.words[width].take((address - ORIGIN) // width)
        if ok is None:
            return values.reshape(self.shape)
        out = np.zeros(self.shape, RAW[width])
        out[ok] = values
        return out

    def load(self, width, decode, address, ok):
        values = decode(self.read_global(width, address, self.where(ok)))
        return values.flat[0] if np.ndim(address) == np.ndim(ok) == 0 else values  # uniform, and so fit for a branch

    def store(self, width, encode, address, ok, value):
        ok = self.where(ok)
        address, who, values = self.chosen(None if ok is None else self.spread(ok), integers(address), self.who,
                                           encode(value))
        if address.size and self.hazards:
            self.hazards.store(address, width, who, values)
        elif address.size:
            self.memory.pieces(address, width)
            self.memory.words[width][(address - ORIGIN) // width] = values

    def load_words(self, address, ok):
        chunks = self.read_global(16, address, self.where(ok))
        words = chunks.view(np.int32).reshape(*self.shape, 4).astype(np.int64)
        return tuple(np.ascontiguousarray(words[..., i]) for i in range(4))

    def load_side(self, width, decode, count, address, ok):
        """So many numbers, one behind the other."""
        raw = self.read_global(width * count, address, self.where(ok)).view(RAW[width]).reshape(*self.shape, count)
        return tuple(decode(np.ascontiguousarray(raw[..., i])) for i in range(count))

    def store_words(self, address, ok, *words):
        """In halves, which compare as bits where two threads write one place."""
        self.check_whole(16, address, ok)
        for half in (0, 1):
            self.store_pair(4, to_u32, integers(address) + 8 * half, ok, *words[2 * half:2 * half + 2])

    def store_pair(self, width, encode, address, ok, first, second):
        """Two values at once, of 4 or 8 bytes."""
        self.check_whole(2 * width, address, ok)
        first, second = (self.spread(encode(self.row(value))) for value in (first, second))
        if width == 4:
            self.store(8, same, address, ok, np.stack([first, second], -1).view(np.uint64)[..., 0])
        else:
            for place, value in enumerate((first, second)):
                self.store(width, same, integers(address) + width * place, ok, value)

    def check_whole(self, width, address, ok):
        """Bounds and alignment of a store that is made in several."""
        where = self.where(ok)
        chosen, = self.chosen(None if where is None else self.spread(where), integers(address))
        if chosen.size:
            self.memory.pieces(chosen, width)

    def neighbour(self, value):
        """The value of the lane whose number has another last bit."""
        return self.spread(self.row(value))[:, self.lanes[0] ^ 1]

    def units(self, name, width, address, ok=None):
        units = self.shared.units(self.row(integers(address)), width, ok)
        if self.counts is not None:
            alike = 1 if units.shape[0] > 1 or ok is not None and ok.shape[0] > 1 else self.shape[0]
            access = units.tobytes(), width, None if ok is None else ok.tobytes()
            if access not in self.fronts:
                self.fronts[access] = np.array(wavefronts(units, width, ok))
            self.counts[name] += self.fronts[access] * alike
        return units

    def load_shared(self, name, width, decode, address):
        return decode(self.shared.load(self.units(name, width, address), width))

    def load_vector(self, name, dtype, address):
        chunks = self.shared.load(self.units(name, 16, address), 16)
        values = chunks.view(dtype).reshape(*self.shape, -1)
        return tuple(np.ascontiguousarray(values[..., i]) for i in range(values.shape[2]))

    def put(self, name, width, encode, address, ok, value):
        ok = self.where(ok)
        if ok is not None and not np.count_nonzero(ok):
            return
        units = self.units(name, width, address, ok)
        self.shared.check_write(units, width, ok)
        self.shared.store(units, width, self.spread(encode(value)), ok)

    def copy(self, width, kind, target, source, ok):
        """Of half as many bytes where they are 16-bit floats of some kind, to become float32."""
        units = self.units(f'copy{width}', width, target)
        ok = self.where(ok)
        address, = self.chosen(None if ok is None else self.spread(ok), integers(source))
        if address.size:
            self.memory.pieces(address, width // 2 if kind else width)
        self.shared.check_write(units, width, in_flight=True)
        self.issued.append((width, kind, units, source, ok))

    def commit(self):
        self.groups.append(self.issued)
        self.issued = []

    def wait(self, n):
        while len(self.groups) > n:
            for width, kind, units, source, ok in self.groups.pop(0):
                values = self.read_global(width // 2 if kind else width, source, ok)
                if kind:
                    values = TYPES[kind][1](values.view(np.uint16)).view(RAW[width])
                self.shared.store(units, width, values)
                self.shared.arrive(units, width)

    def matrices(self, name, address):
        """Four 8 x 8 matrices of 16 bits per warp by (block, warp, matrix, row, 16-bit word)."""
        chunks = self.shared.load(self.units(name, 16, address), 16)
        return chunks.view(np.uint16).reshape(self.shape[0], -1, 4, 8, 8)

    def ldmatrix(self, address):
        words = self.matrices('ldmatrix', address).view(np.uint32)
        return tuple(words[:, :, i].reshape(self.shape) for i in range(4))

    def ldmatrix_transposed(self, address):
        halves = self.matrices('ldmatrix_transposed', address).swapaxes(3, 4)
        words = np.ascontiguousarray(halves).view(np.uint32)
        return tuple(words[:, :, i].reshape(self.shape) for i in range(4))

    def wide(self, x):
        """In float64; kept for a while, as a register meets many others."""
        kept = self.widened.get(id(x))
        if kept is None:
            if len(self.widened) > 64:
                self.widened.clear()
            kept = self.widened[id(x)] = x, x.astype(np.float64)
        return kept[1]

    def fma(self, a, b, c):
        """float32: exact product, one sum in float64, then float32: rounded twice, which is rarely seen (where the
        float64 is a tie of float32 that the exact sum is not). float64: product and sum are rounded each."""
        kind = a.dtype
        if kind != b.dtype or kind != c.dtype or kind.char not in 'fd':
            raise KernelError(f'fma must have values of one float type; got {a.dtype}, {b.dtype} and {c.dtype}')
        if kind.char == 'd':
            return a * b + c
        return (self.wide(a) * self.wide(b) + c).astype(np.float32)

    def fragment(self, kind, registers, build):
        """Operand matrices of the warps; kept for a while, as one fragment meets many others."""
        key = kind, *map(id, registers)
        if len(self.fragments) > 64:
            self.fragments.clear()
        if key not in self.fragments:
            self.fragments[key] = registers, build([self.row(x) for x in registers])
        return self.fragments[key][1]

    more_bits = None     # a number: tensor cores cut float32 sums off, see cut_off

    def multiply(self, c, a, b, dtype):
        """c + a b of every warp: a by (block, warp, row, k), b by (block, warp, column, k), both float64, c the
        registers of sums, of this dtype."""
        # Register 2 * half + i of lane 4 * g + t is row 8 * half + g and column 2 * t + i.
        wrong = [x.dtype for x in c if x.dtype != dtype]
        if wrong:
            raise KernelError(f'sums of an mma must be {np.dtype(dtype)}; got {wrong[0]}')
        sums = c.sums if isinstance(c, Accumulators) else np.stack([self.spread(self.row(x)) for x in c])
        sums = sums.reshape(-1, 2, self.shape[0], self.shape[1] // 32, 8, 4)
        if self.more_bits is not None and dtype == np.float32:
            rows = a.reshape(*a.shape[:2], -1, 8, 1, 1, a.shape[3])
            terms = rows * b.reshape(*b.shape[:2], 1, 1, 4, 2, b.shape[3])
            terms = np.broadcast_to(terms.transpose(2, 5, 0, 1, 3, 4, 6), (*sums.shape, terms.shape[-1]))
            total = cut_off(terms, sums, self.more_bits)
        else:
            product = matrix_product(a, b, dtype)
            product = product.reshape(*product.shape[:2], -1, 8, 4, 2)
            total = np.add(sums, product.transpose(2, 5, 0, 1, 3, 4), order='C')
        return Accumulators(total.reshape(len(c), *self.shape))

    def mma_half(self, kind, c, a, b):
        """m16n8k16 of 16-bit floats, two in a register: a by (row half, g, k half, t, i), b by (g, k half, t, i)."""
        def assemble(*halves):
            def build(registers):
                height = max(len(x) for x in registers)
                out = np.empty((height, self.shape[1] // 32, halves[0], 8, 2, 4, 2))
                for r, x in enumerate(registers):
                    pairs = np.ascontiguousarray(to_u32(x)).view(np.uint16).reshape(len(x), -1, 8, 4, 2)
                    out[:, :, r % halves[0], :, r // halves[0]] = (
                        pairs.view(np.float16) if kind == 'f16' else bf16_of_bits(pairs))
                return out.reshape(height, -1, 8 * halves[0], 16)
            return build
        return self.multiply(c, self.fragment(kind, a, assemble(2)), self.fragment(kind, b, assemble(1)), np.float32)

    def mma_words(self, kind, c, a, b):
        """a by (row half, g, k / 4, t), b by (g, k / 4, t). Of float32 the hardware may read the upper 19 bits only:
        here it reads no more."""
        def assemble(halves):
            def build(registers):
                height = max(len(x) for x in registers)
                out = np.empty((height, self.shape[1] // 32, halves, 8, depth, 4))
                for r, x in enumerate(registers):
                    read = (to_u32(x) & KEPT).view(np.float32) if kind == 'tf32' else x
                    out[:, :, r % halves, :, r // halves] = np.reshape(read, (len(x), -1, 8, 4))
                return out.reshape(height, -1, 8 * halves, 4 * depth)
            return build
        tall, depth = WORDS[kind]
        a, b = (x if isinstance(x, tuple) else (x,) for x in (a, b))
        if (len(c), len(a), len(b)) != (2 * tall, tall * depth, depth):
            raise KernelError(f'mma_{kind} must have {2 * tall}, {tall * depth} and {depth} registers of c, a and b; '
                              f'got {len(c)}, {len(a)} and {len(b)}')
        a, b = self.fragment(f'{kind}a', a, assemble(tall)), self.fragment(f'{kind}b', b, assemble(1))
        return self.multiply(c, a, b, np.float32 if kind == 'tf32' else np.float64)


@functools.cache
def primitives():
    """(method of Executor, its first arguments) by name."""
    names = {name: (getattr(Executor, name),) for name in (
        'commit', 'wait', 'fma', 'ldmatrix', 'ldmatrix_transposed', 'thread', 'barrier', 'shared_base',
        'let_next_begin', 'neighbour')}
    names |= {f'block_{axis}': (Executor.block_index, i) for i, axis in enumerate('xyz')}
    names |= {f'copy{width}': (Executor.copy, width, '') for width in (4, 8, 16)}
    names |= {f'copy16_{kind}': (Executor.copy, 16, kind) for kind in ('f16', 'bf16')}
    names |= {f'mma_{kind}': (Executor.mma_half, kind) for kind in ('f16', 'bf16')}
    names |= {f'mma_{kind}': (Executor.mma_words, kind) for kind in WORDS}
    for name in ('f16', 'bf16', 'f32', 'f64', 'i8', 'u8', 'i16', 'u16', 'i32', 'u32', 'i64'):
        names[f'load_{name}'] = names[f'reload_{name}'] = Executor.load, *TYPES[name][:2]
        names[f'store_{name}'] = Executor.store, TYPES[name][0], TYPES[name][2]
    names |= {f'load_{name}x{count}': (Executor.load_side, *TYPES[name][:2], count)
              for name, count in (('f16', 2), ('f16', 4), ('bf16', 2), ('bf16', 4), ('f32', 2))}
    names |= {'load_b32x4': (Executor.load_words,), 'store_b32x4': (Executor.store_words,)}
    for name in ('b32', 'f32', 'f64'):
        names[f'store_{name}x2'] = Executor.store_pair, *TYPES[name][::2]
    for name in ('f32', 'f64', 'b32', 'i32', 'i64'):
        names[f'shared_{name}'] = Executor.load_shared, f'shared_{name}', *TYPES[name][:2]
        names[f'put_{name}'] = Executor.put, f'put_{name}', TYPES[name][0], TYPES[name][2]
    names['shared_f32x4'] = Executor.load_vector, 'shared_f32x4', np.float32
    names['shared_f64x2'] = Executor.load_vector, 'shared_f64x2', np.float64
    return names


def typed(tree):
    """Literals get the types that Numba gives them, and x += y makes a new value instead of changing the old one's: the
    tree is changed; the typed literals by the names that stand for them."""
    kinds, literals, nodes = {int: np.int64, float: np.float64}, {}, [tree]

    def instead(node):
        if type(node) is ast.Constant and type(node.value) in kinds:
            name = f'__literal_{len(literals)}'
            literals[name] = kinds[type(node.value)](node.value)
            return ast.copy_location(ast.Name(name, ast.Load()), node)
        if type(node) is ast.AugAssign:
            before = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
            value = ast.copy_location(ast.BinOp(before, node.op, node.value), node)
            node = ast.copy_location(ast.Assign([node.target], value), node)
        if type(node) is not ast.Name:
            nodes.append(node)
        return node

    while nodes:
        node = nodes.pop()
        for field in node._fields:
            part = getattr(node, field, None)
            if type(part) is list:
                part[:] = map(instead, part)
            elif isinstance(part, ast.expr):
                setattr(node, field, instead(part))
    return literals


@functools.lru_cache(maxsize=4096)
def compiled(text, name):
    """(code, the names that it uses, its typed literals by name, the name of its file in tracebacks)"""
    tree = ast.parse(text)
    literals = typed(tree)
    file = f'<kernel {name} {hash(text) & 0xffffffff:08x}>'
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    code = compile(tree, file, 'exec')
    used = {name for function in code.co_consts if hasattr(function, 'co_names') for name in function.co_names}
    return code, used, literals, file


def explain(error, file):
    """The error of a kernel in words, with the line of its source."""
    text = str(error)
    if isinstance(error, ValueError) and 'truth value' in text:
        text = 'branch on a value that differs between threads: use select, or the ok of a load or store'
    elif isinstance(error, TypeError) and 'integer scalar' in text:
        text = 'loop count that differs between threads'
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    where = f' (line {line}: {linecache.getline(file, line).strip()})' if line else ''
    return KernelError(f'{text or type(error).__name__}{where}')


MEETING = set()      # kernels that wrote near what they had read, and so do again


def run(memory, source_text, name, arguments, grid, threads, shared_bytes=0, statistics=False, races=True):
    """Run kernel `name` of the source over the grid; arguments are integers.

    Returns, with `statistics`, the mean number of wavefronts per phase of each primitive that touches shared memory: 1
    where there are no bank conflicts. Raises KernelError, which names the line of the kernel. Without `races` neither
    races nor missing barriers are looked for; data that was not waited for is still poison.
    """
    assert threads % 32 == 0, 'threads must be whole warps'
    code, used, literals, file = compiled(source_text, name)
    arguments = [np.int64(operator.index(argument)) for argument in arguments]
    for exact in (False, True)[source_text in MEETING:]:
        hazards = Hazards(memory, exact) if races else None
        counts = defaultdict(lambda: np.zeros(2, np.int64)) if statistics else None
        try:
            for index, block in blocks_of(grid, threads, shared_bytes):
                executor = Executor(memory, hazards, index, block, threads, shared_bytes, races, counts)
                names = executor.namespace(used) | literals
                exec(code, names)
                with memory.lock, np.errstate(over='ignore', invalid='ignore', under='ignore', divide='raise'):
                    names[name](*arguments)
                executor.hopper.end()
        except Again:
            MEETING.add(source_text)
            continue
        except KernelError as error:
            raise explain(error, file) from None
        except Exception as error:
            raise explain(error, file) from error
        return {name: wave / phases for name, (wave, phases) in (counts or {}).items() if phases}
