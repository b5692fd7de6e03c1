# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""CPU backend: the portable frame over the kernels in _tiles: which block when, on which thread, in which scratch.

A plan cuts a map into pieces (_pieces) and the pieces into blocks (_blocking). A gathering map (forward, grad_input)
works on a block of positions at a time: unroll some channels into scratch, multiply them by packed weights, and when
all channels are summed, store. grad_weight keeps a block of the weight as its result and runs over the positions.
Nothing here knows a real type or an instruction set: the kernels' table does.
"""

import os
from functools import lru_cache
from math import prod

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from cython.parallel cimport prange, threadid
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free

cimport numpy as cnp
from pyconv import _blocking, _pieces
from pyconv._kernels cimport (
    axis_t, block_t, index_t, kernels_t, layout_t, piece_t, pyconv_kernels, pyconv_openmp, pyconv_seconds)

cnp.import_array()

cdef double PATIENCE = 0.05  # seconds between two looks for a signal
cdef index_t LINE = 64  # bytes: every array in scratch begins on a cache line
cdef index_t CHECKED = 1 << 16  # elements looked through for NaN and infinities at a time
cdef double TINY = 3e5  # products that a further thread must find to do


# ---------------------------------------------------------------------------------------------------------------------
# Which kernels, how many threads

cdef int _level = 0  # row of the kernels' table in use


def levels():
    """The instruction sets that this processor can run, best first."""
    names, which = [], 0
    while pyconv_kernels(4, which) != NULL:
        names.append(pyconv_kernels(4, which).level.decode())
        which += 1
    return names


def _choose_level():
    global _level
    wanted, known = os.environ.get('PYCONV_CPU_LEVEL', ''), levels()
    if wanted and wanted not in known:
        raise ImportError(f"PYCONV_CPU_LEVEL must be one of {', '.join(known)} on this processor; got {wanted}")
    _level = known.index(wanted) if wanted else 0


_choose_level()


def config():
    """What the backend runs with."""
    return {'level': levels()[_level], 'levels': levels(), 'openmp': bool(pyconv_openmp()),
            'threads': _process_threads}


cdef const kernels_t *_kernels(dtype):
    return pyconv_kernels(dtype.itemsize, _level)


cdef inline char *_data(array) noexcept:
    return <char *>cnp.PyArray_DATA(<cnp.ndarray>array)


cdef class Watch:
    """Looks for signals (Ctrl-C) on the calling thread while the parallel part of a call runs."""

    cdef object error
    cdef int stop
    cdef double last

    def __cinit__(self):
        self.last = pyconv_seconds()

    cdef int look(self) noexcept nogil:
        """Whether to stop; the first thread is the one that called, and the only one that may look."""
        cdef double now
        if self.stop or threadid() != 0:
            return self.stop
        now = pyconv_seconds()
        if now - self.last > PATIENCE:
            self.last = now
            with gil:
                try:
                    PyErr_CheckSignals()
                except BaseException as error:
                    self.error = error
                    self.stop = 1
        return self.stop

    cdef int settle(self) except -1:
        if self.error is not None:
            raise self.error
        return 0


# ---------------------------------------------------------------------------------------------------------------------
# A step: one piece with its blocks

cdef struct step_t:
    piece_t piece
    block_t block  # of full size, at the origin
    index_t blocks[4]  # along samples, z, y, x
    index_t block_count
    index_t channels, depth_channels, depth_blocks  # of source in a group; summed at a time; and how often
    index_t taps
    index_t rows, row_block, row_blocks  # of target in a group
    index_t source_group, target_group, weight_group
    index_t splits
    index_t scratch, result, panel, pitch  # elements: unrolled block; its results; packed weights or turned target
    index_t packed  # where its packed weights begin
    index_t offsets  # elements that the offsets of its taps take
    index_t group_block  # small groups that one task does
    index_t tasks
    int wave, accumulate, few, packs


# A part of the weight: some rows (target's channels) and some of source's channels of one group.
cdef struct part_t:
    index_t group, row, rows, channel, channels


# What a thread works with: its scratch, and the layout of what was unrolled last.
cdef struct desk_t:
    char *scratch
    char *panel
    index_t *offset
    char *result
    char *part
    layout_t layout
    index_t channels, samples
    index_t extent[3]


cdef void _fill_piece(piece_t *piece, found) except *:
    cdef int a
    for a in range(3):
        axis = found.axes[a]
        piece.axis[a] = axis_t(axis.size, axis.step, axis.offset, axis.tap_step, axis.taps, axis.streams, axis.unit)
        piece.count[a] = axis.count
        piece.source_stride[a] = found.source.axes[a]
        piece.target_stride[a] = found.target.axes[a]
        piece.weight_stride[a] = found.weight.axes[a]
    piece.source_base, piece.source_batch, piece.source_channel = found.source[:3]
    piece.target_base, piece.target_batch, piece.target_channel = found.target[:3]
    piece.weight_base, piece.weight_row, piece.weight_channel = found.weight[:3]


cdef inline index_t _parts(index_t n, index_t size) noexcept nogil:
    return (n + size - 1) // size


cdef inline index_t _up(index_t n, index_t multiple) noexcept nogil:
    return _parts(n, multiple) * multiple


cdef index_t _decode(const step_t *step, index_t which, index_t batch, block_t *block) noexcept nogil:
    """The which-th block of a step, the last one of an axis cut to what is left; gives back what is above blocks."""
    cdef int a
    cdef index_t rest = which
    block[0] = step.block
    for a in range(2, -1, -1):
        block.start[a] = rest % step.blocks[a + 1] * step.block.extent[a]
        block.extent[a] = min(step.block.extent[a], step.piece.count[a] - block.start[a])
        rest //= step.blocks[a + 1]
    block.sample = rest % step.blocks[0] * step.block.samples
    block.samples = min(step.block.samples, batch - block.sample)
    return rest // step.blocks[0]


cdef void _part(const step_t *step, index_t task, part_t *part) noexcept nogil:
    """The task-th part of the weight: rows first, then channels, then groups."""
    part.row = task % step.row_blocks * step.row_block
    part.rows = min(step.row_block, step.rows - part.row)
    part.channel = task // step.row_blocks % step.depth_blocks * step.depth_channels
    part.channels = min(step.depth_channels, step.channels - part.channel)
    part.group = task // step.row_blocks // step.depth_blocks


# ---------------------------------------------------------------------------------------------------------------------
# Plans

cdef class Plan:
    """One map of one geometry in one dtype: its steps, its kernels, and the scratch it needs."""

    cdef const kernels_t *kernels
    cdef step_t *steps
    cdef int count, waves
    cdef int gathers
    cdef index_t batch, groups, thread_scratch, shared_scratch, least_scratch
    cdef double products
    cdef object map, geometry, dtype, exact, columns
    cdef readonly index_t scratch_minimum

    def __cinit__(self, map, geometry, dtype, columns=False, exact=False):
        self.kernels = _kernels(dtype)
        self.map, self.geometry, self.dtype, self.columns = map, geometry, dtype, columns
        self.gathers = map != 'grad_weight'
        self.batch, self.groups = geometry.batch, geometry.groups
        self.exact = None if exact or not _pieces.touches_padding(map, geometry) else ()
        if columns:
            found = _pieces.exact_column_pieces(geometry) if exact else _pieces.column_pieces(geometry)
        else:
            found = _pieces.exact_pieces(map, geometry) if exact else _pieces.pieces(map, geometry)
        self.steps = <step_t *>calloc(max(1, len(found)), sizeof(step_t))
        if self.steps == NULL:
            raise MemoryError
        self.count = len(found)
        for i, piece in enumerate(found):
            self._prepare(&self.steps[i], piece)
        self._measure()

    def __dealloc__(self):
        free(self.steps)

    cdef void _prepare(self, step_t *step, piece) except *:
        """Fill in one step: its blocks, and the elements of scratch that a thread needs for it."""
        geometry = self.geometry
        tile = _blocking.Tile(self.kernels.itemsize, self.kernels.lanes, self.kernels.rows, self.kernels.vectors)
        target_channels = geometry.in_channels if self.map == 'grad_input' else geometry.out_channels
        cdef index_t line = LINE // self.kernels.itemsize
        cdef layout_t layout
        cdef int a
        choose = _blocking.gather_blocking if self.gathers else _blocking.correlate_blocking
        step.rows = target_channels // self.groups
        blocking = choose(piece, self.batch, self.groups, step.rows, tile)
        _fill_piece(&step.piece, piece)
        step.wave, step.accumulate = piece.wave, piece.accumulate
        step.few = not self.gathers and step.rows < self.kernels.lanes // 2
        step.channels, step.taps = piece.channels, prod(axis.taps for axis in piece.axes)
        step.depth_channels = blocking.channels
        step.depth_blocks = max(1, _parts(step.channels, blocking.channels))
        step.row_block, step.row_blocks = blocking.rows, _parts(step.rows, blocking.rows)
        step.source_group = step.channels * step.piece.source_channel
        step.target_group = step.rows * step.piece.target_channel
        step.weight_group = geometry.out_channels // self.groups * (geometry.in_channels // self.groups) * prod(
            geometry.kernel_size)
        step.block.samples, step.block.shared = blocking.samples, blocking.shared
        step.blocks[0] = _parts(self.batch, step.block.samples)
        step.block_count = step.blocks[0]
        for a in range(3):
            step.block.extent[a] = blocking.extent[a]
            step.blocks[a + 1] = _parts(step.piece.count[a], blocking.extent[a])
            step.block_count *= step.blocks[a + 1]
        step.splits = max(1, min(blocking.splits, step.block_count))
        self.kernels.layout(&step.piece, &step.block, &layout)
        step.scratch = _up(layout.channel * step.depth_channels + self.kernels.lanes, line)
        cdef index_t depth = step.depth_channels * step.taps
        if self.gathers:
            step.pitch = _up(layout.positions, self.kernels.lanes)
            step.result = _up(step.row_block * step.pitch, line)
            step.panel = _up(depth * min(step.row_block, step.rows), line)
            step.group_block = blocking.groups
            step.packs = step.taps > 0 and step.block_count > 1
            step.tasks = step.block_count * step.row_blocks * _parts(self.groups, step.group_block)
        else:
            step.pitch = step.row_block if step.few else _up(step.row_block, self.kernels.lanes)
            step.result = _up(depth * step.pitch, line)
            step.panel = _up((layout.positions + self.kernels.lanes) * step.pitch, line)
            step.tasks = step.depth_blocks * step.row_blocks * self.groups
        self.products += <double>self.batch * prod(axis.count for axis in piece.axes) * step.taps * step.channels * (
            step.rows * self.groups)

    cdef void _measure(self) except *:
        """Scratch of the whole call: a thread's own, and what the threads share."""
        cdef index_t line = LINE // self.kernels.itemsize, own, packed, i
        cdef step_t *step
        cdef index_t pointers = sizeof(index_t) // self.kernels.itemsize
        for i in range(self.count):
            step = &self.steps[i]
            step.offsets = _up(step.depth_channels * step.taps * pointers, line)
            own = step.scratch + step.result + step.panel + step.offsets
            self.waves = max(self.waves, step.wave + 1)
            if self.gathers:
                packed = self.groups * step.rows * step.channels * step.taps
            else:
                own += step.result if step.splits > 1 else 0
                packed = step.tasks * step.splits * step.result if step.splits > 1 else 0
            if self.gathers:
                step.packed = self.shared_scratch
                self.shared_scratch += _up(packed, line)
            else:  # one step after the other
                self.shared_scratch = max(self.shared_scratch, _up(packed, line))
            self.thread_scratch = max(self.thread_scratch, own)
        self.scratch_minimum = self.thread_scratch + line

    def scratch_size(self, threads):
        """Elements that full speed wants on so many threads."""
        return self.shared_scratch + threads * self.thread_scratch + LINE // self.kernels.itemsize

    cdef int _threads(self, index_t asked) noexcept:
        cdef double worth = self.products / TINY
        return <int>max(1, min(asked, <index_t>min(worth, 1e6)))

    def run(self, first, second, out, bias=None, scratch=None, accumulate=False, threads=None):
        """out <- the map of (first, second), plus bias, or added to out; see _backend for the operands."""
        cdef Call call = Call.__new__(Call)
        call.watch = Watch()
        call.plan = self
        call.source = _data(first)
        call.source_end = call.source + <index_t>first.nbytes
        call.weight = _data(second if self.gathers else out)
        call.target = _data(out if self.gathers else second)
        call.bias = NULL if bias is None else _data(bias)
        call.accumulate = accumulate
        call.threads = self._threads(_process_threads if threads is None else threads)
        if scratch is None:
            scratch = np.empty(self.scratch_size(call.threads), self.dtype)
        call.place(_data(scratch), scratch.size)
        # a padded zero must not meet a NaN or infinity: that factor is the weight, or grad_weight's grad_output, which
        # shows in the (smaller) result unless that is added to
        cdef bint early = self.gathers or accumulate
        if early and self.exact is not None and not call.is_finite(_data(second), second.size):
            return self._exactly(first, second, out, bias, scratch, accumulate, call.threads)
        if self.gathers:
            call.gather()
        else:
            call.correlate()
        if not early and self.exact is not None and not call.is_finite(_data(out), out.size):
            return self._exactly(first, second, out, bias, scratch, accumulate, call.threads)

    def _exactly(self, first, second, out, bias, scratch, accumulate, threads):
        """Again without a padded product, for operands that are not all finite."""
        if not self.exact:
            self.exact = (Plan(self.map, self.geometry, self.dtype, self.columns, True),)
        exact = self.exact[0]
        exact.run(first, second, out, bias, scratch if scratch.size >= exact.scratch_minimum else None, accumulate,
                  threads)


cdef class Call:
    """One run of a plan: where its operands and its scratch are."""

    cdef Watch watch
    cdef Plan plan
    cdef char *source
    cdef char *source_end
    cdef char *weight
    cdef char *target
    cdef char *bias
    cdef char *own
    cdef char *shared
    cdef int accumulate, threads, has_shared

    cdef int place(self, char *scratch, index_t size) except -1:
        """Divide scratch: what is shared, if a thread's own still fits beside it, then as many threads as it allows."""
        cdef index_t item = self.plan.kernels.itemsize
        cdef index_t lost = (LINE - <uintptr_t>scratch % LINE) % LINE // item
        cdef index_t left = size - lost
        self.shared = scratch + lost * item
        self.has_shared = left >= self.plan.shared_scratch + self.plan.thread_scratch
        if self.has_shared:
            left -= self.plan.shared_scratch
        self.own = self.shared + (self.plan.shared_scratch * item if self.has_shared else 0)
        self.threads = <int>max(1, min(self.threads, left // max(1, self.plan.thread_scratch)))
        return 0

    cdef bint is_finite(self, char *data, index_t size):
        cdef index_t part, parts = _parts(size, CHECKED)
        cdef int odd = 0
        cdef const kernels_t *kernels = self.plan.kernels
        for part in prange(parts, nogil=True, num_threads=min(self.threads, parts), schedule='static'):
            odd += not kernels.finite(min(CHECKED, size - part * CHECKED), data + part * CHECKED * kernels.itemsize)
        return odd == 0

    cdef int gather(self) except -1:
        """All waves, one after the other; the weights are packed before, for all threads, where there is room."""
        cdef index_t task, tasks
        cdef int wave, i
        for i in range(self.plan.count if self.has_shared else 0):
            self.pack(&self.plan.steps[i])
        for wave in range(self.plan.waves):
            tasks = 0
            for i in range(self.plan.count):
                if self.plan.steps[i].wave == wave:
                    tasks += self.plan.steps[i].tasks
            for task in prange(tasks, nogil=True, num_threads=self.threads, schedule='dynamic'):
                if not self.watch.look():
                    self.gather_any(wave, task, threadid())
            self.watch.settle()
        return 0

    cdef int pack(self, step_t *step) except -1:
        cdef index_t task, tasks = self.plan.groups * step.depth_blocks * step.row_blocks
        if not step.packs:
            return 0
        for task in prange(tasks, nogil=True, num_threads=self.threads, schedule='dynamic'):
            if not self.watch.look():
                self.pack_task(step, task)
        return self.watch.settle()

    cdef void pack_task(self, step_t *step, index_t task) noexcept nogil:
        cdef part_t part
        _part(step, task, &part)
        self.plan.kernels.pack_weight(&step.piece, self.weight_at(step, &part), part.row, part.rows, part.channels,
                                      self.panels_at(step, &part))

    cdef char *weight_at(self, const step_t *step, const part_t *part) noexcept nogil:
        """Row 0 of the part's first channel."""
        return self.weight + self.plan.kernels.itemsize * (
            step.piece.weight_base + part.group * step.weight_group + part.channel * step.piece.weight_channel)

    cdef char *source_at(self, const step_t *step, const part_t *part) noexcept nogil:
        return self.source + self.plan.kernels.itemsize * (
            step.piece.source_base + part.group * step.source_group + part.channel * step.piece.source_channel)

    cdef char *target_at(self, const step_t *step, const part_t *part) noexcept nogil:
        return self.target + self.plan.kernels.itemsize * (
            step.piece.target_base + part.group * step.target_group + part.row * step.piece.target_channel)

    cdef char *panels_at(self, const step_t *step, const part_t *part) noexcept nogil:
        """Packed panels lie by group, channels, rows."""
        return self.shared + self.plan.kernels.itemsize * (
            step.packed + (part.group * step.channels + part.channel) * step.taps * step.rows
            + part.row * part.channels * step.taps)

    cdef void gather_any(self, int wave, index_t task, int thread) noexcept nogil:
        """Task number `task` of a wave: of which step?"""
        cdef int i
        for i in range(self.plan.count):
            if self.plan.steps[i].wave == wave:
                if task < self.plan.steps[i].tasks:
                    self.gather_task(&self.plan.steps[i], task, thread)
                    return
                task = task - self.plan.steps[i].tasks

    cdef void gather_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One block of positions, one block of rows, of one group or of several small ones."""
        cdef desk_t desk
        cdef part_t part
        cdef block_t block
        cdef index_t groups
        self.sit(step, thread, &desk)
        part.row = task % step.row_blocks * step.row_block
        part.rows = min(step.row_block, step.rows - part.row)
        part.group = _decode(step, task // step.row_blocks, self.plan.batch, &block) * step.group_block
        groups = min(part.group + step.group_block, self.plan.groups)
        while part.group < groups:
            self.gather_block(step, &part, &block, &desk)
            part.group += 1

    cdef void gather_block(self, step_t *step, part_t *part, const block_t *block, desk_t *desk) noexcept nogil:
        """The sum over all channels, then the store."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef char *panels = desk.panel
        cdef char *bias = NULL
        part.channel = 0
        while True:
            part.channels = min(step.depth_channels, step.channels - part.channel)
            self.unroll(step, part, block, desk)
            if self.has_shared and step.packs:
                panels = self.panels_at(step, part)
            else:
                kernels.pack_weight(&step.piece, self.weight_at(step, part), part.row, part.rows, part.channels,
                                    panels)
            kernels.multiply(part.rows, desk.layout.positions, part.channels * step.taps, panels, desk.offset,
                             desk.scratch, desk.result, step.pitch, part.channel > 0)
            part.channel += step.depth_channels
            if part.channel >= step.channels:
                break
        if self.bias != NULL and not step.accumulate:
            bias = self.bias + kernels.itemsize * (part.group * step.rows + part.row)
        kernels.store(&step.piece, block, desk.result, step.pitch, part.rows, bias, self.target_at(step, part),
                      self.accumulate or step.accumulate)

    cdef void sit(self, const step_t *step, int thread, desk_t *desk) noexcept nogil:
        cdef index_t item = self.plan.kernels.itemsize
        desk.scratch = self.own + thread * self.plan.thread_scratch * item
        desk.panel = desk.scratch + step.scratch * item
        desk.offset = <index_t *>(desk.panel + step.panel * item)
        desk.result = <char *>desk.offset + step.offsets * item
        desk.part = desk.result + step.result * item
        desk.channels = 0

    cdef void unroll(self, const step_t *step, const part_t *part, const block_t *block,
                     desk_t *desk) noexcept nogil:
        """The block's source into scratch; its layout and offsets are made anew only when they change."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef bint same = desk.channels >= part.channels and desk.samples == block.samples
        cdef int a
        for a in range(3):
            same = same and desk.extent[a] == block.extent[a]
            desk.extent[a] = block.extent[a]
        if not same:
            kernels.layout(&step.piece, block, &desk.layout)
            kernels.offsets(&step.piece, block, &desk.layout, part.channels, desk.offset)
            desk.channels, desk.samples = part.channels, block.samples
        kernels.unroll(&step.piece, block, &desk.layout, self.source_at(step, part), self.source, self.source_end,
                       part.channels, desk.scratch)

    cdef int correlate(self) except -1:
        cdef index_t task
        cdef step_t *step
        cdef int i
        for i in range(self.plan.count):
            step = &self.plan.steps[i]
            if step.splits > 1 and self.has_shared:
                for task in prange(step.tasks * step.splits, nogil=True, num_threads=self.threads, schedule='dynamic'):
                    self.correlate_split(step, task, threadid())
                self.watch.settle()
            for task in prange(step.tasks, nogil=True, num_threads=self.threads, schedule='dynamic'):
                self.correlate_task(step, task, threadid())
            self.watch.settle()
        return 0

    cdef char *partial_at(self, const step_t *step, index_t task, index_t split) noexcept nogil:
        return self.shared + self.plan.kernels.itemsize * (task * step.splits + split) * step.result

    cdef void correlate_split(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One partial sum of one part of the weight, kept for correlate_task."""
        cdef desk_t desk
        cdef part_t part
        self.sit(step, thread, &desk)
        _part(step, task // step.splits, &part)
        self.correlate_blocks(step, &part, task % step.splits, &desk,
                              self.partial_at(step, task // step.splits, task % step.splits))

    cdef void correlate_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One part of the weight: its partial sums in ascending order, then the store."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef bint kept = step.splits > 1 and self.has_shared
        cdef desk_t desk
        cdef part_t part
        cdef index_t split
        self.sit(step, thread, &desk)
        _part(step, task, &part)
        if kept:
            desk.result = self.partial_at(step, task, 0)
        else:
            self.correlate_blocks(step, &part, 0, &desk, desk.result)
        for split in range(1, step.splits):
            if kept:
                desk.part = self.partial_at(step, task, split)
            else:
                self.correlate_blocks(step, &part, split, &desk, desk.part)
            kernels.add(part.channels * step.taps * step.pitch, desk.part, desk.result)
        kernels.store_weight(
            &step.piece, desk.result, step.pitch, part.rows, part.channels,
            self.weight_at(step, &part) + part.row * step.piece.weight_row * kernels.itemsize, self.accumulate)

    cdef void correlate_blocks(self, step_t *step, const part_t *part, index_t split, desk_t *desk,
                               char *result) noexcept nogil:
        """result <- the sum over one split of the blocks of positions."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef char *target = self.target_at(step, part)
        cdef block_t block
        cdef index_t which, first = step.block_count * split // step.splits
        cdef index_t last = step.block_count * (split + 1) // step.splits
        cdef index_t depth = part.channels * step.taps, positions
        if first == last:
            kernels.clear(depth * step.pitch, result)
        for which in range(first, last):
            if self.watch.look():
                return
            _decode(step, which, self.plan.batch, &block)
            self.unroll(step, part, &block, desk)
            positions = desk.layout.positions
            if step.few:
                kernels.compact(&step.piece, &block, target, part.rows, desk.panel, positions)
                kernels.dot(depth, part.rows, positions, desk.offset, desk.scratch, desk.panel, positions, result,
                            step.pitch, which > first)
            else:
                kernels.turn(&step.piece, &block, target, part.rows, desk.panel)
                kernels.correlate(depth, part.rows, positions, desk.offset, desk.scratch, desk.panel, result,
                                  step.pitch, which > first)


# ---------------------------------------------------------------------------------------------------------------------
# The backend's names

cdef int _process_threads = 1


def set_threads(int n):
    """The process-wide number of threads."""
    global _process_threads
    _process_threads = n


@lru_cache(maxsize=512)
def plan(map, geometry, dtype, algorithm='auto'):
    """The plan of a map ('forward', 'grad_input', 'grad_weight'); 'columns': grad_weight from unfolded input."""
    return Plan(map, geometry, dtype, algorithm == 'columns')


def unfold(geometry, input, columns, fold, threads=None):
    """columns (batch, in_channels * taps, positions) <- input, or input <- the sum of columns."""
    cdef const kernels_t *kernels = _kernels(input.dtype)
    cdef Watch watch = Watch()
    cdef piece_t piece
    found = _pieces.pieces('forward', geometry._replace(groups=geometry.in_channels, out_channels=geometry.in_channels))
    cdef index_t item = kernels.itemsize, planes = geometry.batch * geometry.in_channels, task
    cdef index_t plane = prod(geometry.input_size) * item, column = columns.nbytes // max(1, planes)
    cdef char *cells = _data(input)
    cdef char *taps = _data(columns)
    cdef int number = _process_threads if threads is None else threads
    cdef index_t depth = geometry.input_size[0], height = geometry.input_size[1], width = geometry.input_size[2] * item
    cdef int a
    _fill_piece(&piece, found[0])
    for a in range(3):
        piece.axis[a].taps = geometry.kernel_size[a]
    if fold:
        for task in prange(planes * depth * height, nogil=True, num_threads=number, schedule='static'):
            if not watch.look():
                kernels.fold_row(&piece, task // height % depth, task % height,
                                 taps + task // height // depth * column, cells + task * width)
    else:
        for task in prange(planes, nogil=True, num_threads=number, schedule='static'):
            if not watch.look():
                kernels.unfold_plane(&piece, cells + task * plane, taps + task * column)
    watch.settle()


def channel_sum(array, out, threads=None):
    """out (channels,) <- the sum of array (batch, channels, positions) over the other two axes."""
    cdef const kernels_t *kernels = _kernels(array.dtype)
    cdef index_t batch = array.shape[0], channels = array.shape[1], positions = array.shape[2], item = kernels.itemsize
    cdef index_t c, n
    cdef char *cells = _data(array)
    cdef double[::1] totals = np.zeros(channels)
    cdef int number = _process_threads if threads is None else threads
    for c in prange(channels, nogil=True, num_threads=number, schedule='static'):
        for n in range(batch):
            totals[c] += kernels.sum(positions, cells + (n * channels + c) * positions * item)
    out[...] = np.asarray(totals)
