"""What Hopper does on its own while a kernel goes on, emulated: mbarriers, copies of boxes, products of warpgroups.

Everything happens as late as it may: a box lands when its mbarrier is waited for, a product reads its operands when its
group is; sums are poison until then. Both see shared memory through the asynchronous proxy: they must not meet what
ordinary stores and copies wrote before fence_async and a barrier. A wait that could never end is an error.
"""
import functools
import itertools
import struct

import numpy as np

from emulated_memory import ORIGIN, RAW, KernelError

TENSOR_MAP = struct.Struct('<6q80x')      # a mark; address, columns, rows, bytes from row to row, rows of a box
MARK = 0x70616d20726f736e
LINE = 128                                # bytes of a box's row, 8 chunks of 16
COLUMNS = 64, 128, 256                    # of the products that there are


def tensor_map(address, columns, rows, row, box_rows):
    """128 bytes, for a matrix of 16-bit elements; refused where the driver would refuse it."""
    wrong = address % 16 or row % 16 or not 0 < row < 1 << 40 or not 0 < box_rows <= 256
    if wrong or not 0 < columns <= 1 << 32 or not 0 < rows <= 1 << 32:
        raise KernelError(f'no tensor map of {rows} x {columns} at {address:#x}, rows of {row} bytes')
    return TENSOR_MAP.pack(MARK, address, columns, rows, row, box_rows)


def turned(address):
    """The 128-byte swizzle: the chunk's number changes with the number of the line."""
    return address ^ ((address >> 7 & 7) << 4)


def matrix_product(a, b, dtype):
    """The matrices a b of a by (..., row, k) and b by (..., column, k), both float64, in this dtype. Where an element
    stands in its matrix never changes it, though a BLAS sums some rows in another order than others: in float64 nothing
    of float32's sums is lost that rounding would not hide, and float64's own are not left to a BLAS."""
    if dtype == np.float64:
        return np.einsum('...mk,...nk->...mn', a, b)
    return np.matmul(a, b.swapaxes(-1, -2)).astype(dtype)


FIELDS = 0x3fff | 0x3fff << 16 | 0x3fff << 32 | 7 << 49 | 3 << 62       # start, leading and stride, base, swizzle


def matrix_places(descriptor, lines, across=False):
    """Shared addresses of the chunks that a descriptor means, 16 elements of the reduction deep; by (..., line, chunk).

    Along the reduction (K-major) `lines` lines of 2 chunks; across it (MN-major) 16 lines of `lines` elements. Refused
    where the ISA leaves open what is meant: a pattern of the swizzle that does not start where the base offset says, or
    a place that stands for two elements.
    """
    descriptor = np.asarray(descriptor, np.int64)[..., None, None]
    start, leading, stride = ((descriptor >> shift & 0x3fff) << 4 for shift in (0, 16, 32))
    swizzle = descriptor >> 62 & 3
    if (descriptor & ~np.int64(FIELDS - (1 << 64))).any():
        raise KernelError('a descriptor has bits that mean nothing')
    if (descriptor >> 49 & 7).any():
        raise KernelError('the base offset of a descriptor must be 0')
    width = np.select([swizzle == mode for mode in range(4)], [16, 128, 64, 32])
    if (start % (8 * width) >= (16 if across else width))[swizzle > 0].any():
        raise KernelError(f'a matrix must start with its pattern; got {int(start.flat[0]):#x}')
    if across:
        line, chunk = np.arange(16)[:, None], np.arange(lines // 8)
        of_panel, of_eight = np.where(swizzle == 0, stride, leading), np.where(swizzle == 0, leading, stride)
        address = chunk // (width // 16) * of_panel + chunk % (width // 16) * 16 + line // 8 * of_eight
    else:
        line, chunk = np.arange(lines)[:, None], np.arange(2)
        address = chunk * np.where(swizzle == 0, leading, 16) + line // 8 * stride
    address = address + start + line % 8 * width
    mask = np.select([swizzle == mode for mode in range(4)], [0, 7, 3, 1])
    places = address ^ ((address >> 7 & mask) << 4)
    flat = np.sort(places.reshape(-1, places.shape[-2] * places.shape[-1]), 1)
    if (flat[:, 1:] == flat[:, :-1]).any():
        raise KernelError('a descriptor has two elements in one place')
    return places


class Mbarrier:
    """By block: its phase, what this phase still lacks, and the boxes that will come."""

    def __init__(self, blocks, count):
        self.count = count
        self.phase, self.bytes = np.zeros(blocks, np.int64), np.zeros(blocks, np.int64)
        self.arrivals = np.full(blocks, count)
        self.boxes = []


class Sums(tuple):
    """The registers of a wgmma's sums: views of `registers` by (register, block, thread), true in `matrix` by (block,
    warpgroup, row, column) while products are under way."""

    def __new__(cls, matrix, registers):
        made = super().__new__(cls, registers)
        made.matrix, made.registers = matrix, registers
        return made


class Hopper:
    """The primitives, for a batch of blocks; `executor` knows threads and memories."""

    def __init__(self, executor, decoders):
        self.executor, self.shared, self.shape = executor, executor.shared, executor.shape
        self.decoders, self.mbarriers = decoders, {}
        self.fenced, self.started, self.groups = False, [], []

    def namespace(self, wanted):
        """The wanted ones of their names."""
        return bound(self, primitives(), wanted)

    def end(self):
        """What a kernel must not leave behind."""
        if self.started or self.groups:
            raise KernelError('the kernel ends before its products')
        if any(mbarrier.boxes for mbarrier in self.mbarriers.values()):
            raise KernelError('the kernel ends before its copies of boxes')

    def fence_async(self):
        self.shared.unfenced[:] = False

    # mbarriers

    def mbarrier(self, address, ok=None, made=True):
        """The mbarrier that all threads name, and how many threads of each block do so where ok."""
        place = int(np.asarray(address).flat[0])
        if (np.asarray(address) != place).any():
            raise KernelError('a mbarrier must be the same for all threads')
        units = self.shared.units(np.full((1, self.shape[1]), place), 8)
        count = np.broadcast_to(np.asarray(True if ok is None else ok), self.shape).sum(1)
        if made and place not in self.mbarriers:
            raise KernelError('no mbarrier was made there')
        if made and self.shared.races and count.any():
            self.shared.check_read(units, 8)
        return place, units, count

    def mbarrier_init(self, address, arrivals, ok):
        place, units, count = self.mbarrier(address, ok, made=False)
        if not (count == 1).all():
            raise KernelError('a mbarrier must be made by one thread')
        self.shared.check_write(units, 8, np.broadcast_to(ok, self.shape))
        self.mbarriers[place] = Mbarrier(self.shape[0], int(arrivals))

    def mbarrier_expect(self, address, nbytes, ok):
        place, _, count = self.mbarrier(address, ok)
        mbarrier = self.mbarriers[place]
        if (count > mbarrier.arrivals).any():
            raise KernelError('more arrivals than a phase of the mbarrier has, and nobody waited for its end')
        mbarrier.arrivals -= count
        mbarrier.bytes += count * int(nbytes)

    def mbarrier_wait(self, address, parity):
        place, _, _ = self.mbarrier(address)
        mbarrier = self.mbarriers[place]
        if np.size(parity) != 1 or parity not in (0, 1):
            raise KernelError(f'parity must be 0 or 1; got {parity}')
        waits = (mbarrier.phase & 1) == parity
        if not waits.any():
            return                                              # that phase ended earlier
        for box in mbarrier.boxes:
            mbarrier.bytes[box[0]] -= self.land(*box)
        mbarrier.boxes.clear()
        missing = waits & ((mbarrier.arrivals != 0) | (mbarrier.bytes != 0))
        if missing.any():
            block = int(np.argmax(missing))
            raise KernelError(f'the wait never ends: the phase lacks {mbarrier.arrivals[block]} arrivals and '
                              f'{mbarrier.bytes[block]} bytes')
        mbarrier.phase[waits] += 1
        mbarrier.arrivals[waits] = mbarrier.count

    # boxes

    def copy_box(self, target, tensor_map, column, row, address, ok):
        ok = np.broadcast_to(ok, self.shape)
        if not ok.any():
            return
        place, units, _ = self.mbarrier(address, ok)
        if self.shared.races and self.shared.unfenced.reshape(-1, 2)[self.shared.at(units, 8)].any():
            raise KernelError('the copy engine must see the mbarrier: fence_async and a barrier are missing')
        found = self.executor.read_global(16, np.asarray(tensor_map) + np.arange(self.shape[1]) % 3 * 16, None)
        mark, start, columns, rows, step, box_rows = TENSOR_MAP.unpack(found[0, :3].tobytes().ljust(128, b'\0'))
        if mark != MARK or np.size(tensor_map) != 1 or int(tensor_map) % 64:
            raise KernelError('a box must be of a tensor map, aligned to 64 bytes')
        line, chunk = np.arange(box_rows)[:, None], np.arange(8)
        for thread in np.flatnonzero(ok.any(0)):
            blocks = np.flatnonzero(ok[:, thread])
            to, x, y = (np.broadcast_to(value, self.shape)[blocks, thread, None, None] for value in (
                target, column, row))
            if (to % LINE).any() or (x % 8).any():
                raise KernelError('a box must lie at a multiple of 128 bytes, and begin at a multiple of 8 columns')
            inside = (x + chunk * 8 >= 0) & (x + chunk * 8 < columns) & (y + line >= 0) & (y + line < rows)
            source = np.where(inside, start + (y + line) * step + (x + chunk * 8) * 2, start)
            self.executor.memory.pieces(source[inside], 16) if inside.any() else None
            places = turned(to + line * LINE + chunk * 16).reshape(len(blocks), -1)
            units = self.shared.units(places, 16)
            self.shared.check_free(units, 16, blocks, int(thread) >> 5)
            self.mbarriers[place].boxes.append((blocks, thread, source, inside, units))

    def land(self, blocks, thread, source, inside, units):
        """A box arrives; its bytes."""
        executor = self.executor
        if executor.hazards and inside.any():
            who = np.broadcast_to(executor.who[blocks, thread, None, None], source.shape)
            executor.hazards.load(source[inside], 16, who[inside])
        values = np.where(inside, executor.memory.words[16].take((source - ORIGIN) // 16), 0)
        self.shared.land(units, blocks, values.reshape(len(blocks), -1).astype(RAW[16]))
        return units.shape[1] * 16

    # products

    def wgmma_fence(self):
        self.fenced = True

    def wgmma(self, kind, columns, across, sums, a, b):
        if not self.fenced:
            raise KernelError('the first product of a group needs wgmma_fence')
        if self.shape[1] % 128 or len(sums) != columns // 2:
            raise KernelError(f'wgmma needs whole warpgroups and {columns // 2} sums')
        if not isinstance(sums, Sums):
            sums = self.begun(columns, sums)
        sums.registers[...] = np.nan
        operands = [self.operand(descriptor, lines, across) for descriptor, lines in ((a, 64), (b, columns))]
        if self.shared.races:
            for units in operands:
                self.shared.begin_multiplying(units.reshape(units.shape[0], -1))
        self.started.append((kind, across, sums, *operands))
        return sums

    def begun(self, columns, sums):
        """Sums in the registers of a warpgroup: 4 j + 2 h + v of thread 32 w + 4 g + r is row 16 w + 8 h + g, column
        8 j + 2 r + v."""
        blocks, threads = self.shape
        registers = np.empty((columns // 2, blocks, threads), np.float32)
        for register, value in zip(registers, sums):
            if np.asarray(value).dtype != np.float32:
                raise KernelError(f'sums of a wgmma must be float32; got {np.asarray(value).dtype}')
            register[...] = value
        matrix = registers.reshape(columns // 8, 2, 2, blocks, -1, 4, 8, 4).transpose(3, 4, 5, 1, 6, 0, 7, 2)
        return Sums(np.ascontiguousarray(matrix).reshape(blocks, -1, 64, columns), registers)

    def operand(self, descriptor, lines, across):
        """16-byte units by (block or one for all, warpgroup or one for all, line, chunk)."""
        found = self.executor.row(descriptor).reshape(-1, self.shape[1] // 128, 128)
        if (found != found[..., :1]).any():
            raise KernelError('a descriptor must be the same for all threads of a warpgroup')
        found = found[..., 0]
        if (found == found[:, :1]).all():
            found = found[:, :1]
        places = matrix_places(found, lines, across)
        return self.shared.units(places.reshape(len(places), -1), 16).reshape(places.shape)

    def values(self, kind, across, units):
        """What lies there by (block, warpgroup or one for all, row or column of the result, 16 or, of tf32, 8)."""
        flat = units.reshape(len(units), -1)
        raw = self.shared.words[16].ravel().take(flat + self.shared.rows(16)).view(np.uint16)
        found = self.decoders[kind](raw).astype(np.float64).reshape(len(raw), *units.shape[1:3], -1)
        return found.swapaxes(2, 3) if across else found

    def wgmma_commit(self):
        self.groups.append(self.started)
        self.started, self.fenced = [], False

    def wgmma_wait(self, n):
        ended = []
        while len(self.groups) > n:
            for kind, across, sums, a, b in self.groups.pop(0):
                rows, columns = (self.values(kind, across, units) for units in (a, b))
                sums.matrix += matrix_product(rows, columns, np.float32)
                ended += [a, b]
        under_way = [product for group in [*self.groups, self.started] for product in group]
        if self.shared.races:
            for units in ended:
                self.shared.end_multiplying(units.reshape(units.shape[0], -1))
            for *_, a, b in under_way:
                for units in (a, b):
                    self.shared.begin_multiplying(units.reshape(units.shape[0], -1))

    def wgmma_results(self, sums):
        self.wgmma_wait(0)
        if not isinstance(sums, Sums) or self.started:
            raise KernelError('there must be sums of committed products to wait for')
        blocks, columns = self.shape[0], sums.matrix.shape[3]
        matrix = sums.matrix.reshape(blocks, -1, 4, 2, 8, columns // 8, 4, 2).transpose(5, 3, 7, 0, 1, 2, 4, 6)
        sums.registers[...] = matrix.reshape(sums.registers.shape)
        return tuple(sums.registers)


def bound(executor, found, wanted):
    """The wanted names of those found, (method, its first arguments) by name, as calls of that executor's."""
    return {name: functools.partial(method, executor, *given) for name in wanted & found.keys()
            for method, *given in [found[name]]}


@functools.cache
def primitives():
    """(method of Hopper, its first arguments) by name."""
    names = {name: (getattr(Hopper, name),) for name in (
        'fence_async', 'mbarrier_init', 'mbarrier_expect', 'mbarrier_wait', 'copy_box', 'wgmma_fence', 'wgmma_commit',
        'wgmma_wait')}
    for n in COLUMNS:
        names[f'wgmma_tf32_{n}'] = Hopper.wgmma, 'tf32', n, False
        for kind, across in itertools.product(('f16', 'bf16'), (False, True)):
            names[f'wgmma_{kind}_{n}{"_across" * across}'] = Hopper.wgmma, kind, n, across
        names[f'wgmma_results_{n}'] = (Hopper.wgmma_results,)
    return names
