"""Memory for kernels that run on the CPU: bounds, alignment, races and bank conflicts, all threads at once.

`Memory` is the device's, `Hazards` watches it during one launch, `Shared` is the shared memory of a batch of blocks.
An address is a byte address. Arrays of addresses have one entry per access; `Shared` takes them by (block, thread),
with one row instead where all blocks use the same, which is the usual case and costs the same for any number of blocks.
"""
import bisect
import mmap
import threading

import numpy as np

ORIGIN = 1 << 34          # no address fits into 32 bits
SPACE = 1 << 36
RED_ZONE = 4096
RAW = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}  # moved as they are
MANY = -1                 # in a table of readers: more than one thread


class KernelError(Exception):
    """A kernel does what a GPU would not forgive, or forgives without a promise."""


class Again(Exception):
    """Whether two threads meet in global memory needs every access of the launch noted, from its start."""


def sparse(nbytes):
    """Zeros that take no memory until they are touched, for sizes beyond the machine's."""
    if nbytes < 1 << 20:
        return np.zeros(nbytes, np.uint8)
    unreserved = getattr(mmap, 'MAP_NORESERVE', 0x4000)      # its value on Linux, where Python 3.11 has no name for it
    return np.frombuffer(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved), np.uint8)


class Memory:
    """Flat device memory. What is allocated is 0xff throughout, a NaN in every float type; nothing is used twice."""

    def __init__(self):
        self.bytes = sparse(SPACE)
        self.words = {width: self.bytes.view(raw) for width, raw in RAW.items()}
        self.starts, self.ends, self.top = [], [], ORIGIN
        self.lock = threading.RLock()             # held by whoever allocates, frees or runs a kernel

    def allocate(self, nbytes, align=256, at=None, poison=True):
        """Address of `nbytes` new bytes, a red zone away from all others.

        `at`: this many bytes behind the start of the memory, to reach far addresses; without `poison` the bytes are
        zeros that cost nothing until touched, for arrays larger than the machine.
        """
        with self.lock:
            start = self.reserve(nbytes, align, at)
        if poison:
            self.bytes[start - ORIGIN:start - ORIGIN + nbytes] = 0xff
        return start

    def reserve(self, nbytes, align, at):
        start = (self.top + RED_ZONE + align - 1) // align * align if at is None else ORIGIN + at
        if start + nbytes + RED_ZONE > ORIGIN + SPACE:
            raise MemoryError(f'the emulated memory ends at {ORIGIN + SPACE:#x}; got {nbytes} bytes at {start:#x}')
        i = bisect.bisect_left(self.starts, start)
        assert i == 0 or self.ends[i - 1] <= start, 'allocated already'
        assert i == len(self.starts) or start + nbytes <= self.starts[i], 'allocated already'
        self.starts.insert(i, start)
        self.ends.insert(i, start + nbytes)
        if at is None:
            self.top = start + nbytes
        return start

    def free(self, address):
        with self.lock:
            i = self.starts.index(address)
            end = self.ends[i]
            del self.starts[i], self.ends[i]
        first, last = -(-(address - ORIGIN) // mmap.PAGESIZE), (end - ORIGIN) // mmap.PAGESIZE
        if last > first:
            self.bytes.base.obj.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)

    def view(self, address, shape, dtype, strides=None):
        """A NumPy array that shares the memory; strides in bytes. It may leave its allocation: tests build it."""
        return np.ndarray(shape, dtype, self.bytes, address - ORIGIN, strides)

    def pieces(self, address, width):
        """(start of an allocation, its end, lowest, end of the highest access, which accesses) of all allocations met.

        Raises KernelError where an access is misaligned or leaves the live allocations.
        """
        if np.bitwise_or.reduce(address) & (width - 1):
            wrong = address[(address & (width - 1)) != 0][0]
            raise KernelError(f'global access of {width} bytes at {wrong:#x} is misaligned')
        low, high = int(address.min()), int(address.max()) + width
        i = bisect.bisect_right(self.starts, low) - 1
        if i >= 0 and high <= self.ends[i]:
            return [(self.starts[i], self.ends[i], low, high, slice(None))]
        owner = np.searchsorted(self.starts, address, side='right') - 1
        outside = (owner < 0) | (address + width > np.array([*self.ends, -1])[owner])
        if outside.any():
            wrong, count = int(address[outside][0]), int(outside.sum())
            raise KernelError(f'global access of {width} bytes at {wrong:#x} is out of bounds{self.near(wrong)} '
                              f'({count} of {address.size} accesses)')
        parts = [(i, owner == i) for i in np.unique(owner)]
        return [(self.starts[i], self.ends[i], int(address[part].min()), int(address[part].max()) + width, part)
                for i, part in parts]

    def near(self, address):
        """Words for the allocation that an address outside all of them probably meant."""
        if not self.starts:
            return ': nothing is allocated'
        i = min(range(len(self.starts)), key=lambda i: max(self.starts[i] - address, address - self.ends[i]))
        return f': the nearest allocation is {self.starts[i]:#x} to {self.ends[i]:#x}'


def overlaps(intervals, low, high):
    return any(low < end and start < high for start, end in intervals)


def merge(intervals, low, high):
    """Add low..high to a list of intervals that do not touch each other."""
    apart = []
    for start, end in intervals:
        if start <= low and high <= end:
            return
        if high < start or end < low:
            apart.append((start, end))
        else:
            low, high = min(low, start), max(high, end)
    apart.append((low, high))
    intervals[:] = apart


class Hazards:
    """Two threads that meet in global memory within one launch, where no order between them is promised.

    A thread may write what it alone has read, but not read what it has written: loads go through the read-only cache.
    Writers are noted exactly, by 2 bytes (an allocation in which a launch touches single bytes, by bytes: it must touch
    them alone). Readers are many and rarely matter: only intervals of them are noted, and
    where a write comes near one, the launch is run again, `exact`. Nothing need be taken back: what was written until
    then no thread had read, and none may read it after the write.
    """

    def __init__(self, memory, exact):
        self.memory, self.exact = memory, exact
        self.read, self.written, self.readers, self.writers = {}, {}, {}, {}

    @staticmethod
    def table(tables, start, end, width):
        """The thread + 1 that touched each 2 bytes of an allocation, 0 for none, with a row for each `width` bytes."""
        if width == 1:
            if (start, 1) not in tables:
                tables[start, 1] = sparse((end - start) * 4).view(np.int32)[:, None]
            return tables[start, 1]
        if start not in tables:
            tables[start] = sparse((-(-(end - start) // 16)) * 32).view(np.int32)
        return tables[start].reshape(-1, width // 2)

    def load(self, address, width, threads):
        for start, end, low, high, part in self.memory.pieces(address, width):
            merge(self.read.setdefault(start, []), low, high)
            meets = overlaps(self.written.get(start, ()), low, high)
            if meets and not self.exact:
                raise Again
            if not self.exact:
                continue
            cells, mine = (address[part] - start) // width, threads[part][:, None] + 1
            if meets:
                writer = self.table(self.writers, start, end, width).take(cells, 0)
                self.refuse(writer != 0, address[part], mine, writer, 'reads', 'writes')
            table = self.table(self.readers, start, end, width)
            prior = table.take(cells, 0)
            table[cells] = mine
            others = (table.take(cells, 0) != mine) | ((prior != 0) & (prior != mine))
            table[cells[others.any(1)]] = MANY

    def store(self, address, width, threads, values):
        """Store raw values; equal values may be written by several threads."""
        words, at = self.memory.words[width], (address - ORIGIN) // width
        for start, end, low, high, part in self.memory.pieces(address, width):
            meets = overlaps(self.read.get(start, ()), low, high)
            if meets and not self.exact:
                raise Again
            merge(self.written.setdefault(start, []), low, high)
            cells, mine = (address[part] - start) // width, threads[part][:, None] + 1
            if meets:
                reader = self.table(self.readers, start, end, width).take(cells, 0)
                self.refuse((reader != 0) & (reader != mine), address[part], mine, reader, 'writes', 'reads')
            table = self.table(self.writers, start, end, width)
            writer = table.take(cells, 0)
            table[cells] = mine
            changed = (words[at[part]] != values[part])[:, None]
            self.refuse((writer != 0) & (writer != mine) & changed, address[part], mine, writer, 'writes', 'writes')
        words[at] = values
        lost = words[at] != values
        if np.count_nonzero(lost):
            raise KernelError(f'race in global memory at {address[lost][0]:#x}: thread {threads[lost][0]} and another '
                              'write different values at once')

    @staticmethod
    def refuse(wrong, address, mine, other, does, did):
        if np.count_nonzero(wrong):
            i, j = np.argwhere(wrong)[0]
            who = 'several threads' if other[i, j] == MANY else f'thread {other[i, j] - 1}'
            raise KernelError(f'race in global memory at {address[i]:#x}: thread {mine[i, 0] - 1} {does} what {who} '
                              f'{did} in the same launch')


class Shared:
    """Shared memory of a batch of blocks, and what warps may not do in it between two barriers.

    A word's stamp is the barriers so far times 64 plus the warp that touched it last, IN_FLIGHT + warp while an
    asynchronous copy is on its way there. Reads are logged and stamped only when a write follows before the barrier.
    """
    BASE = 1024                  # where it starts: not 0, so that a forgotten shared_base() shows
    IN_FLIGHT = 1 << 30
    MULTIPLYING = 1 << 29        # a product of a warpgroup is under way that reads it
    SEVERAL = 63

    def __init__(self, blocks, threads, nbytes, races):
        self.blocks, self.nbytes, self.races = blocks, nbytes, races
        self.stride = -(-nbytes // 16) * 16
        self.words = {width: np.empty(0, raw) for width, raw in RAW.items()}
        poison = np.full(blocks * self.stride, 0xff, np.uint8)
        self.words = {width: poison.view(raw).reshape(blocks, -1) for width, raw in RAW.items()} if nbytes else {}
        self.warps = (np.arange(threads, dtype=np.int32) >> 5)[None]
        self.mine = self.warps.T                  # their stamps, as a column
        self.written = np.full((1, self.stride // 4), -1, np.int32)
        self.read = self.written.copy()
        self.unfenced = self.written >= 0         # written since the last fence_async
        self.epoch, self.log = 0, []

    def units(self, address, width, ok=None):
        """Addresses in units of `width` bytes from the start of a block's memory; 0 where not ok."""
        offset = address - self.BASE
        if ok is not None:
            offset = np.where(ok, offset, 0)
        bits = int(np.bitwise_or.reduce(offset, None))       # of all, and so no less than any of them
        if self.nbytes < width or bits < 0 or bits > self.nbytes - width < offset.max():
            wrong = int(offset.min() if offset.min() < 0 else offset.max())
            raise KernelError(f'shared access of {width} bytes at byte {wrong} is out of the {self.nbytes} bytes '
                              'of the block')
        if bits & (width - 1):
            wrong = int(offset[(offset & (width - 1)) != 0][0])
            raise KernelError(f'shared access of {width} bytes at byte {wrong} is misaligned')
        return offset >> width.bit_length() - 1

    def load(self, units, width):
        """Raw values of all threads by (block, thread)."""
        if self.races:
            self.check_read(units, width)
        if units.shape[0] == 1:
            at = neighbours(units[0])
            return self.words[width][:, at].copy() if isinstance(at, slice) else self.words[width].take(at, 1)
        return self.words[width].ravel().take(units + self.rows(width))

    def store(self, units, width, values, ok=None):
        """Store raw values; `check_write` is the caller's, at the time that counts."""
        if len(units) == 1 and (ok is None or len(ok) == 1):
            words = self.words[width]
            at = slice(None), neighbours(units[0] if ok is None else units[0, ok[0]])
            values = values if ok is None else values[:, neighbours(np.flatnonzero(ok[0]))]
        else:
            words, at = self.words[width].reshape(-1), units + self.rows(width)
            if ok is not None:
                ok = np.broadcast_to(ok, at.shape)
                at, values = at[ok], values[ok]
        words[at] = values
        if width < 16 and self.races and np.count_nonzero(words[at] != values):
            raise KernelError('race in shared memory: one store writes different values to one word')

    def rows(self, width):
        return np.arange(self.blocks)[:, None] * (self.stride // width)

    def barrier(self):
        self.epoch += 64
        self.mine = self.warps.T + self.epoch
        self.log.clear()

    def reach(self, height):
        """One row of each table for all blocks, or one for each from the first access on in which they differ."""
        if height > len(self.written):
            self.stamp_reads()
            self.written, self.read, self.unfenced = (
                table.repeat(height, 0) for table in (self.written, self.read, self.unfenced))

    def at(self, units, width, blocks=None):
        """Rows of the tables of stamps for units by (block, any); `blocks`: of these alone."""
        self.reach(units.shape[0])
        rows = np.arange(len(self.written))[:, None]
        if blocks is not None and len(self.written) > 1:
            rows = blocks[:, None]
        return (units + rows * (self.stride // width)).ravel()

    def cells(self, units, width, ok):
        """Rows of the tables of stamps that accesses mean, and their warps' stamps as a column."""
        self.reach(max(units.shape[0], 1 if ok is None else ok.shape[0]))
        if len(self.written) == 1:
            return (units[0], self.mine) if ok is None else (units[0, ok[0]], self.mine[ok[0]])
        rows = np.arange(len(self.written))[:, None] * (self.stride // width)
        cells, warps = np.broadcast_arrays(units + rows, self.warps)
        if ok is not None:
            ok = np.broadcast_to(ok, cells.shape)
            return cells[ok], warps[ok][:, None] + self.epoch
        return cells.ravel(), warps.ravel()[:, None] + self.epoch

    def check_read(self, units, width):
        cells, mine = self.cells(units, width, None)
        stamps = self.written.reshape(-1, width // 4).take(cells, 0)
        if stamps.max() >= self.epoch:
            self.refuse((stamps >= self.epoch) & (stamps != mine), cells, width, mine, stamps, 'reads', 'wrote')
        self.log.append((cells, width, mine))

    def stamp_reads(self):
        for cells, width, mine in self.log:
            table = self.read.reshape(-1, width // 4)
            prior = table.take(cells, 0)
            table[cells] = mine
            others = (table.take(cells, 0) != mine) | ((prior >= self.epoch) & (prior != mine))
            if np.count_nonzero(others):
                row, column = np.nonzero(others)
                table[cells[row], column] = self.epoch + self.SEVERAL
        self.log.clear()

    def check_write(self, units, width, ok=None, in_flight=False):
        """Note a write, or the start of an asynchronous one; raises KernelError where another warp is in the way."""
        if not self.races:
            return
        self.stamp_reads()
        cells, mine = self.cells(units, width, ok)
        table = self.written.reshape(-1, width // 4)
        for stamps, did in ((table, 'wrote'), (self.read.reshape(-1, width // 4), 'read')):
            stamps = stamps.take(cells, 0)
            if stamps.size and stamps.max() >= self.epoch:
                self.refuse((stamps >= self.epoch) & (stamps != mine), cells, width, mine, stamps, 'writes', did)
        new = mine - self.epoch + self.IN_FLIGHT if in_flight else mine
        table[cells] = new
        if not in_flight:
            self.unfenced.reshape(-1, width // 4)[cells] = True
        stamps = table.take(cells, 0)
        self.refuse(stamps != new, cells, width, mine, stamps, 'writes', 'wrote')

    def arrive(self, units, width):
        """An asynchronous copy has ended: from now on a write of this warp since the last barrier."""
        if self.races:
            cells, mine = self.cells(units, width, None)
            self.written.reshape(-1, width // 4)[cells] = mine
            self.unfenced.reshape(-1, width // 4)[cells] = True

    # What the asynchronous proxy does, in units of 16 bytes: no thread's, so that any access since the barrier is in
    # its way.

    def check_free(self, units, width, blocks, warp):
        """A box is on its way there."""
        if self.races:
            self.stamp_reads()
            if len(blocks) < self.blocks:
                self.reach(self.blocks)
            cells, mine = self.at(units, width, blocks), np.full((1, 1), self.epoch + warp)
            mine = mine.repeat(len(cells), 0)
            for table, did in ((self.written, 'wrote'), (self.read, 'read')):
                stamps = table.reshape(-1, width // 4)[cells]
                self.refuse(stamps >= self.epoch, cells, width, mine, stamps, 'copies a box to', did)
            self.written.reshape(-1, width // 4)[cells] = self.IN_FLIGHT + warp

    def land(self, units, blocks, values):
        """A box has arrived: whoever has waited may read it."""
        self.words[16][blocks[:, None], units] = values
        if self.races:
            cells = self.at(units, 16, blocks)
            self.written.reshape(-1, 4)[cells], self.unfenced.reshape(-1, 4)[cells] = -1, False

    def begin_multiplying(self, units):
        """A product may read there from now on."""
        cells = self.at(units, 16)
        stamps = self.written.reshape(-1, 4)[cells]
        mine = np.full((len(cells), 1), self.epoch)
        self.refuse(stamps >= self.epoch, cells, 16, mine, stamps, 'multiplies', 'wrote')
        if self.unfenced.reshape(-1, 4)[cells].any():
            raise KernelError('a product reads what was written without fence_async')
        self.read.reshape(-1, 4)[cells] = self.MULTIPLYING

    def end_multiplying(self, units):
        """Its warps have read, and others know at the next barrier."""
        self.read.reshape(-1, 4)[self.at(units, 16)] = self.epoch + self.SEVERAL

    def refuse(self, wrong, cells, width, mine, stamps, does, did):
        if not np.count_nonzero(wrong):        # several times faster than any()
            return
        i, j = np.argwhere(wrong)[0]
        byte = int(cells[i]) % (self.stride // width) * width + 4 * int(j)
        warp, stamp = int(mine[i, 0]) - self.epoch, int(stamps[i, j])
        who = 'several warps' if stamp % 64 == self.SEVERAL else f'warp {stamp % 64}'
        when = f'{did} since the last barrier'
        if self.MULTIPLYING <= stamp < self.IN_FLIGHT:
            who, when = 'a warpgroup', 'multiplies and has not waited for'
        if stamp >= self.IN_FLIGHT:
            who, when = f'warp {stamp - self.IN_FLIGHT}', 'copies asynchronously and has not waited for'
        raise KernelError(f'race in shared memory at byte {byte}: warp {warp} {does} what {who} {when}')


def neighbours(places):
    """These places as a slice where each is behind the one before, which is copied much faster."""
    first, count = int(places[0]) if len(places) else 0, len(places)
    if count and places[-1] == first + count - 1 and np.count_nonzero(places[1:] - places[:-1] == 1) == count - 1:
        return slice(first, first + count)
    return places


def wavefronts(units, width, ok=None):
    """(wavefronts, phases) of an access: 32 banks of 4 bytes serve 128 bytes at once, to 128 / width lanes a phase.

    Lanes that name the same word are served together; a phase without conflicts is one wavefront.
    """
    lanes = 128 // width
    if ok is not None:
        units = np.where(ok, units, -1)
    groups = np.sort(units.reshape(-1, lanes), 1)
    distinct = (groups >= 0) & (np.diff(groups, axis=1, prepend=-1) != 0)
    bank = (np.arange(len(groups))[:, None] * lanes + groups % lanes)[distinct]
    degree = np.bincount(bank, minlength=groups.size).reshape(groups.shape).max(1)
    return int(degree.sum()), int((degree > 0).sum())


def blocks_of(grid, threads, shared_bytes):
    """The blocks of a grid in batches of about 64k threads and 64 MiB shared memory: (x, y, z) columns each."""
    total = grid[0] * grid[1] * grid[2]
    size = max(1, min(65536 // threads, (64 << 20) // max(shared_bytes, 1)))
    for first in range(0, total, size):
        index = np.arange(first, min(first + size, total))[:, None]
        yield index, (index % grid[0], index // grid[0] % grid[1], index // grid[0] // grid[1])
