"""Runs the PTX of straight-line kernels for one warp, by the PTX ISA: what the compiler is given, without a GPU.

A register is 32 lanes of bits; one that is read before it is written is an error, as is an access that leaves memory.
Written from the ISA (the registers of fragments: "Matrix Fragments for mma.m16n8k16" and its like, ldmatrix, cp.async,
cvt), not from pyconv's primitives or their emulator, which the tests compare with it. It has what those need.
"""
import operator
import re

import numpy as np

LANES = np.arange(32)
GROUP, PLACE = LANES // 4, LANES % 4  # groupID and threadID_in_group of the ISA
SHARED = 1024  # where shared memory begins
FLOATS = {'f16': np.float16, 'f32': np.float32, 'f64': np.float64}
OPERATORS = {'add': operator.add, 'sub': operator.sub, 'mul': operator.mul, 'and': operator.and_, 'or': operator.or_,
             'xor': operator.xor, 'shl': operator.lshift, 'shr': operator.rshift, 'lt': operator.lt, 'le': operator.le,
             'gt': operator.gt, 'ge': operator.ge, 'eq': operator.eq, 'ne': operator.ne}


class PTXError(Exception):
    """What the ISA leaves undefined, or this file does not know."""


def width(kind):
    return int(re.sub(r'\D', '', kind)) // 8


def numbers(bits, kind):
    """Lanes of bits as values of a type: b, u, s, f and their number of bits."""
    unsigned = bits.astype(f'u{width(kind)}')
    if kind in FLOATS:
        return unsigned.view(FLOATS[kind])
    return unsigned.view(f'i{width(kind)}') if kind[0] == 's' else unsigned


def bits_of(values, kind):
    made = np.asarray(values).astype(FLOATS.get(kind) or f'{"i" if kind[0] == "s" else "u"}{width(kind)}')
    return made.view(f'u{width(kind)}').astype(np.uint64)


def rounded(values, to, mode):
    """float32 to a smaller type: rn to nearest even, rna ties away from zero, rz towards zero. Bits."""
    keep = {'f16': 10, 'bf16': 7, 'tf32': 10}[to]
    if to == 'f16':
        with np.errstate(over='ignore'):
            found = values.astype(np.float16)
        if mode == 'rz':
            over = np.abs(found.astype(np.float32)) > np.abs(values)
            found = np.where(over, np.nextafter(found, np.float16(0)), found)
        return found.view(np.uint16).astype(np.uint64)
    raw, cut = values.view(np.uint32).astype(np.uint64), 23 - keep
    half = {'rn': (1 << cut - 1) - 1 + (raw >> np.uint64(cut) & np.uint64(1)).astype(int),
            'rna': np.full(32, 1 << cut - 1), 'rz': np.zeros(32, int)}[mode]
    found = np.where(np.isfinite(values), (raw + half.astype(np.uint64)) >> np.uint64(cut) << np.uint64(cut), raw)
    found = np.where(np.isnan(values), np.uint64(0x7fffffff), found)
    return found >> np.uint64(16) if to == 'bf16' else found


class Warp:
    """Arrays of bytes by their global address, a kernel's parameters, and what 32 threads do."""

    def __init__(self, arrays, parameters, shared=4096):
        self.arrays, self.parameters = arrays, parameters
        self.shared = {SHARED: np.full(shared, 0xff, np.uint8)}
        self.registers, self.copies, self.groups = {}, [], []

    def run(self, text):
        body = re.sub(r'//.*', '', text[text.index('.entry'):])
        body = body[body.index('{') + 1:]
        for statement in body.split(';'):
            statement = statement.lstrip('} \n\t').removeprefix('{').strip()  # of scopes, whose names are declared anew
            if statement.startswith('.reg'):
                for name in re.findall(r'(?<![.%\w])\w+(?!<)', statement.split(None, 2)[2]):
                    self.registers.pop(name, None)
            elif statement and not statement.startswith('ret'):
                self.step(statement)

    def step(self, statement):
        guard, op, rest = re.fullmatch(r'(?:@(!?[%\w]+)\s+)?([\w.:]+)\s*(.*)', statement, re.S).groups()
        active = np.ones(32, bool)
        if guard:
            active = self.get(guard.lstrip('!')).astype(bool) ^ guard.startswith('!')
        operands = [part.strip() for part in re.findall(r'\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*', rest)]
        name, *kinds = op.split('.')
        getattr(self, f'do_{name}', self.arithmetic)(op, kinds, operands, active)

    # --- operands ---

    def get(self, operand):
        """Bits of each lane."""
        if operand.startswith('{'):
            low, high = (self.get(part) for part in self.group(operand))
            return low | high << np.uint64(16)
        if operand == 'pyconv_shared':
            return np.full(32, SHARED, np.uint64)
        if operand == '%tid.x':
            return LANES.astype(np.uint64)
        if operand.startswith('%ctaid'):
            return np.zeros(32, np.uint64)
        if re.fullmatch(r'0[fd][0-9A-Fa-f]+', operand):
            return np.full(32, int(operand[2:], 16), np.uint64)
        if re.fullmatch(r'-?(0x[0-9a-fA-F]+|\d+)', operand):
            return np.full(32, int(operand, 0) % 2**64, np.uint64)
        if operand not in self.registers:
            raise PTXError(f'{operand} is read before it is written')
        return self.registers[operand]

    def put(self, operand, bits, active):
        if not active.all():
            bits = np.where(active, bits, self.get(operand))
        self.registers[operand] = np.asarray(bits).astype(np.uint64) * np.ones(32, np.uint64)

    @staticmethod
    def group(operand):
        return re.findall(r'[^{},\s]+', operand)

    def address(self, operand):
        register, offset = re.fullmatch(r'\[([%\w]+)(?:\+(-?\d+))?\]', operand).groups()
        return self.get(register).astype(np.int64) + int(offset or 0)

    def place(self, space, address, size):
        """(memory, index of the first byte)."""
        for start, memory in (self.shared if space == 'shared' else self.arrays).items():
            if start <= address <= start + len(memory) - size and address % size == 0:
                return memory, int(address) - start
        raise PTXError(f'{space} access of {size} bytes at {address:#x}')

    def read(self, space, address, size):
        memory, at = self.place(space, address, size)
        return int.from_bytes(memory[at:at + size].tobytes(), 'little')

    def write(self, space, address, size, value):
        memory, at = self.place(space, address, size)
        memory[at:at + size] = np.frombuffer(int(value).to_bytes(size, 'little'), np.uint8)

    # --- memory ---

    def do_ld(self, op, kinds, operands, active):
        if kinds[0] == 'param':
            value = self.parameters[int(re.search(r'(\d+)\]', operands[1])[1])]
            self.put(operands[0], np.full(32, value % 2**(8 * width(kinds[1])), np.uint64), active)
            return
        targets, size, address = self.group(operands[0]), width(kinds[-1]), self.address(operands[1])
        for lane in LANES[active]:
            self.place(kinds[0], address[lane], size * len(targets))
        for i, target in enumerate(targets):
            found = [self.read(kinds[0], address[lane] + i * size, size) if active[lane] else 0 for lane in LANES]
            found = np.array(found, np.uint64)
            if kinds[-1][0] == 's':  # whose sign goes on in a wider register
                found = numbers(found, kinds[-1]).astype(np.int64).view(np.uint64)
            self.put(target, found, active)

    def do_st(self, op, kinds, operands, active):
        values, size = [self.get(one) for one in self.group(operands[1])], width(kinds[-1])
        address = self.address(operands[0])
        for lane in LANES[active]:
            self.place(kinds[0], address[lane], size * len(values))
            for i, value in enumerate(values):
                self.write(kinds[0], address[lane] + i * size, size, int(value[lane]) % 2**(8 * size))

    def do_cp(self, op, kinds, operands, active):
        if kinds[1] == 'commit_group':
            self.groups.append(self.copies)
            self.copies = []
        elif kinds[1] == 'wait_group':
            while len(self.groups) > int(operands[0]):
                for to, of, size, given in self.groups.pop(0):
                    value = 0 if not given else self.read('global', of, given)
                    self.place('shared', to, size)
                    self.write('shared', to, size, value)
        else:
            assert kinds[1:] in (['cg', 'shared', 'global'], ['ca', 'shared', 'global'])
            to, of = self.address(operands[0]), self.address(operands[1])
            size, given = int(operands[2]), self.get(operands[3])
            if size not in ((16,) if kinds[1] == 'cg' else (4, 8, 16)) or (given > size).any():
                raise PTXError(op)
            self.copies += [(to[lane], of[lane], size, int(given[lane])) for lane in LANES[active]]

    def do_bar(self, *_):
        """One warp runs in step."""

    def do_ldmatrix(self, op, kinds, operands, active):
        rows = [self.read('shared', address, 16) for address in self.address(operands[1])]
        words = np.array([[row >> 16 * i & 0xffff for i in range(8)] for row in rows], np.uint64).reshape(4, 8, 8)
        for matrix, target in zip(words, self.group(operands[0])):
            matrix = matrix.T if 'trans' in kinds else matrix
            self.put(target, matrix[GROUP, 2 * PLACE] | matrix[GROUP, 2 * PLACE + 1] << np.uint64(16), active)

    # --- tensor cores ---

    def do_mma(self, op, kinds, operands, active):
        shape, types = kinds[2], kinds[5:]
        d, *groups = map(self.group, operands)
        a, b, c = ([self.get(x) for x in group] for group in groups)
        kind, (m, _, k) = types[1], map(int, re.findall(r'\d+', shape))
        left, right = np.zeros((m, k)), np.zeros((k, 8))
        if kind in ('f16', 'bf16'):
            assert shape == 'm16n8k16'
            for i in range(8):
                left[GROUP + 8 * (i // 2 % 2), 2 * PLACE + i % 2 + 8 * (i // 4)] = half(a[i // 2], i % 2, kind)
            for i in range(4):
                right[2 * PLACE + i % 2 + 8 * (i // 2), GROUP] = half(b[i // 2], i % 2, kind)
        else:      # of tf32 the upper 19 bits; of m8n8k4 each lane has one element, there is no row 8
            bits, word, tall = (0xffffe000, 'f32', 2) if kind == 'tf32' else (2**64 - 1, 'f64', m // 8)
            assert (len(d), len(a), len(b)) == (2 * tall, tall * k // 4, k // 4)
            for i, register in enumerate(a):
                left[GROUP + 8 * (i % tall), PLACE + 4 * (i // tall)] = numbers(register & np.uint64(bits), word)
            for i, register in enumerate(b):
                right[PLACE + 4 * i, GROUP] = numbers(register & np.uint64(bits), word)
        product = left @ right
        for i, (target, addend) in enumerate(zip(d, c)):
            sums = product[GROUP + 8 * (i // 2), 2 * PLACE + i % 2] + numbers(addend, types[0])
            self.put(target, bits_of(sums, types[0]), active)

    # --- all else ---

    def do_shfl(self, op, kinds, operands, active):
        """Whole warps that exchange with the lane whose number differs in some bits."""
        value, mask, clamp, lanes = map(self.get, operands[1:])
        assert kinds == ['sync', 'bfly', 'b32'] and active.all() and (clamp == 31).all()
        assert (lanes & np.uint64(2**32 - 1) == 2**32 - 1).all()
        self.put(operands[0], value[LANES ^ mask.astype(int)], active)

    def do_mov(self, op, kinds, operands, active):
        value = self.get(operands[1])
        if operands[0].startswith('{'):
            for part in self.group(operands[0]):
                self.put(part, value & np.uint64(0xffff), active)
                value = value >> np.uint64(16)
        else:
            self.put(operands[0], value, active)

    def do_selp(self, op, kinds, operands, active):
        a, b, p = map(self.get, operands[1:])
        self.put(operands[0], np.where(p.astype(bool), a, b), active)

    def do_setp(self, op, kinds, operands, active):
        a, b = (numbers(self.get(x), kinds[1]) for x in operands[1:])
        self.put(operands[0], OPERATORS[kinds[0]](a, b), active)

    def do_testp(self, op, kinds, operands, active):
        value = numbers(self.get(operands[1]), kinds[1])
        self.put(operands[0], {'finite': np.isfinite, 'notanumber': np.isnan}[kinds[0]](value), active)

    def do_bfe(self, op, kinds, operands, active):
        value, start, length = map(self.get, operands[1:])
        self.put(operands[0], value >> start & (np.uint64(1) << length) - np.uint64(1), active)

    def do_cvt(self, op, kinds, operands, active):
        *mode, to, of = kinds
        if to in ('f16x2', 'bf16x2'):                # of two, the first in the upper half
            high, low = (rounded(numbers(self.get(x), of), to[:-2], mode[0]) for x in operands[1:])
            self.put(operands[0], high << np.uint64(16) | low, active)
        elif of == 'f32' and to in ('f16', 'bf16', 'tf32'):
            self.put(operands[0], rounded(numbers(self.get(operands[1]), 'f32'), to, mode[0]), active)
        else:
            self.put(operands[0], bits_of(numbers(self.get(operands[1]), of), to), active)

    def do_mad(self, op, kinds, operands, active):
        assert kinds == ['wide', 's32']
        a, b = (numbers(self.get(x), 's32').astype(np.int64) for x in operands[1:3])
        self.put(operands[0], bits_of(a * b + numbers(self.get(operands[3]), 's64'), 's64'), active)

    def do_fma(self, op, kinds, operands, active):
        a, b, c = (numbers(self.get(x), kinds[-1]) for x in operands[1:])
        exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
        self.put(operands[0], bits_of(exact, kinds[-1]), active)

    def arithmetic(self, op, kinds, operands, active):
        name, kind = op.split('.')[0], kinds[-1]
        if name not in OPERATORS:
            raise PTXError(f'{op} is not known here')
        a, b = (numbers(self.get(x), kind) for x in operands[1:3])
        if 'wide' in kinds:
            a, b, kind = a.astype(np.int64), b.astype(np.int64), f'{kind[0]}64'
        if name in ('shl', 'shr'):
            b = numbers(self.get(operands[2]), 'u32').astype(a.dtype)
        with np.errstate(all='ignore'):
            self.put(operands[0], bits_of(OPERATORS[name](a, b), kind), active)


def half(register, place, kind):
    """A 16-bit float of two in a register."""
    word = (register >> np.uint64(16 * place) & np.uint64(0xffff)).astype(np.uint16)
    if kind == 'f16':
        return word.view(np.float16).astype(float)
    return (word.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(float)
