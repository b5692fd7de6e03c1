# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""CPU backend: the portable frame over the kernels in _tiles: which block when, on which thread, in which scratch.

A plan cuts a map into pieces (_pieces) and the pieces into blocks (_ways), those of a stride together (_phases). A
gathering map (forward, grad_input) works on a block of positions at a time: unroll some channels into scratch, multiply
them by packed weights, and when all channels are summed, store. grad_weight keeps a block of the weight as its result
and runs over the positions. Nothing here knows a real type or an instruction set: the kernels' table does.
"""

import logging
import os
from functools import lru_cache
from itertools import groupby
from math import prod

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from cython.parallel cimport prange, threadid
from libc.math cimport log2, sqrt
from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

cimport numpy as cnp
from pyconv import _blocks, _cells, _doubtful, _edges, _outer, _phases, _pieces, _rounding, _unfolding, _ways, _winograd
from pyconv._dtypes import element, scratch_dtype
from pyconv._geometry import whole_size
from pyconv._kernels cimport (
    FOLDED_CELLS, PANEL_TAPS, SOURCE, STORED_REAL, TARGET, WEIGHT, axis_t, block_t, index_t, kernels_t, layout_t,
    part_t, piece_t, pyconv_kernels, pyconv_kernels_of_cells, pyconv_kernels_of_slices, pyconv_level, pyconv_openmp,
    pyconv_second_level, pyconv_seconds, pyconv_take, seen_t, way_t, work_t)
from pyconv._libraries import Visitor
from pyconv._memory import empty
from pyconv._padding import MODES

cnp.import_array()

_log = logging.getLogger("pyconv")

cdef double PATIENCE = 0.05  # seconds between two looks for a signal
cdef index_t LINE = _blocks.LINE  # every array in scratch begins on one
cdef index_t LEAST_RUN = 16  # blocks of grad_weight whose sums are added up before they are added to others'
cdef index_t SMALL = 1 << 16  # bytes of scratch that are made without regard to pages
cdef index_t CHECKED = 1 << 16  # elements looked through for NaN and infinities at a time
cdef int SMALLEST = 142  # sum of exponents, as stored, of brain floats whose products of single bits are normal
cdef int LEAST_SLICED = 24, GREATEST = 254  # exponents of floats, as stored,
cdef int LEAST_OF_PRODUCT = 158, GREATEST_OF_SUM = 376  # and sums of two
cdef double TINY = 3e5  # products that a further thread must find to do
cdef int SUMS = 1024  # channels that are summed at a time
cdef int MOST_THREADS = 1024  # OpenMP ends the process where it cannot start a thread


# ---------------------------------------------------------------------------------------------------------------------
# Which kernels, how many threads

cdef int _level = 0  # row of the kernels' table in use
second_level = pyconv_second_level()  # bytes of a cache


def levels():
    """The instruction sets that this processor can run, best first."""
    names, which = [], 0
    while pyconv_level(which) != NULL:
        names.append(pyconv_level(which).decode())
        which += 1
    return names


def _choose_level():
    global _level
    wanted, known = os.environ.get("PYCONV_CPU_LEVEL", ""), levels()
    if wanted and wanted not in known:
        raise ImportError(f"PYCONV_CPU_LEVEL must be one of {", ".join(known)} on this processor; got {wanted}")
    _level = known.index(wanted) if wanted else 0


_choose_level()


def config():
    """What the backend runs with."""
    return {"level": levels()[_level], "levels": levels(), "openmp": bool(pyconv_openmp()),
            "threads": _process_threads}


cdef const kernels_t *_kernels(dtype):
    return pyconv_kernels(False, dtype.itemsize, _level)


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
            self.ask()
        return self.stop

    cdef void ask(self) noexcept with gil:
        """Apart from `look`: a function that has an object takes the GIL on its way out, on every thread."""
        try:
            PyErr_CheckSignals()
        except BaseException as error:
            self.error = error
            self.stop = 1

    cdef int settle(self) except -1:
        if self.error is not None:
            raise self.error
        return 0


include "_step.pxi"
include "_plan.pxi"
include "_run.pxi"
include "_call.pxi"


# ---------------------------------------------------------------------------------------------------------------------
# The backend's names

cdef int _process_threads = 1


def set_threads(int n):
    """The process-wide number of threads."""
    global _process_threads
    _process_threads = n


@lru_cache(maxsize=512)
def plan(map, geometry, dtype, algorithm="auto", result=None, exact=False):
    """The plan of a map ("forward", "grad_input", "grad_weight"); "columns": grad_weight from unfolded input."""
    result = dtype if result is None else result
    if map == "grad_input" and _edges.is_far(_outer.of_volumes(geometry)):
        return _unfolding.FarGradient(geometry, dtype, result, plan, unfold)
    return Plan(map, geometry, dtype, algorithm, result, exact)


def is_ready(cnp.ndarray array not None, cnp.dtype dtype not None):
    """Whether a plan can take the array as it is: C-contiguous, aligned, of this dtype, if of another object for it (as
    that of an array from another process is)."""
    return cnp.PyArray_CHKFLAGS(array, cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED) and (
        array.descr is dtype or cnp.PyArray_EquivTypes(array.descr, dtype))


def form(tuple numbers, tuple arrays, tuple written, rank=None):
    """What tells calls apart whose arrays a plan can take as they are, if those to be written meet no other; else None.

    numbers are followed by how each array lies: its shape, in a tuple of one where its channels lie last, as those of
    operands and of the result may where a rank is named. Only ints are taken for ints: 1.0 and True equal 1, and are no
    strides.
    """
    cdef list key = [numbers]
    cdef int type_number = -1, place = 0, axes = 0 if rank is None else rank
    for number in numbers:
        if not _is_exact(number, 2):
            return None
    for array in arrays + written:
        if array is None:
            key.append(None)
        elif not _is_number(array) or type_number not in (-1, cnp.PyArray_TYPE(array)):
            return None
        elif cnp.PyArray_ISCARRAY_RO(array):
            key.append(array.shape)
        elif axes > 0 and place in (0, 1, 3) and _is_last(array, axes):  # first, second and out
            key.append((array.shape,))
        else:
            return None
        if array is not None:
            type_number = cnp.PyArray_TYPE(array)
        place += 1
    for target in written:
        if target is None:
            continue
        if not cnp.PyArray_ISWRITEABLE(target) or cnp.PyArray_SIZE(target) == 0:
            return None
        for array in arrays:
            if array is not None and _meet(array, target):
                return None
        arrays = (*arrays, target)
    key.append(type_number)
    return tuple(key)


cdef bint _is_exact(number, int depth):
    """Whether it is an int, a string, None, or a tuple of such that is so deep at most."""
    if type(number) is tuple:
        for one in <tuple>number:
            if depth == 0 or not _is_exact(one, depth - 1):
                return False
        return True
    return type(number) is int or number is None or type(number) is str


cdef bint _is_number(array):
    """Whether it is an array of NumPy's own type, or what it sees of another library's, aligned, of numbers in native
    byte order, even of a type that another package has made, as bfloat16. Calls on those of no plan end with an error.
    """
    return ((type(array) is cnp.ndarray or type(array) is Visitor) and cnp.PyArray_ISBEHAVED_RO(array) and (
        cnp.PyArray_TYPE(array) < cnp.NPY_OBJECT or cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT16
        or cnp.PyTypeNum_ISUSERDEF(cnp.PyArray_TYPE(array))))


cdef bint _is_last(cnp.ndarray array, int rank):
    """Whether an array with `rank` spatial axes is dense, with its channels last in memory."""
    cdef int axes = cnp.PyArray_NDIM(array), channels = axes - rank - 1, i, axis
    cdef index_t step = cnp.PyArray_ITEMSIZE(array)
    for i in range(axes if channels >= 0 else 0):
        axis = channels if i == 0 else axes - i if axes - i > channels else axes - i - 1
        if cnp.PyArray_DIM(array, axis) != 1 and cnp.PyArray_STRIDE(array, axis) != step:
            return False
        step *= cnp.PyArray_DIM(array, axis)
    return channels >= 0 and step > 0


cdef bint _meet(cnp.ndarray one, cnp.ndarray other):
    """Whether the bounds of two dense arrays have memory in common."""
    return (_data(one) < _data(other) + cnp.PyArray_NBYTES(other)
            and _data(other) < _data(one) + cnp.PyArray_NBYTES(one))


cdef class Columns:
    """Which volume of the input is under which of an outer tap and position, and how long everything is."""

    cdef const kernels_t *kernels
    cdef piece_t piece
    cdef index_t outer_taps, taps, outer_positions, positions  # positions and what follows in elements
    cdef index_t volumes, volume, height, width
    cdef index_t depth, rows, blocks  # planes of a volume; of a plane rows that are summed at a time, and their blocks
    cdef bint is_part  # whether x is not all of the array
    cdef index_t before[3]  # cells in front of x, of an array of `height` and `width`
    cdef index_t size[2]  # bytes of an element of columns and of x
    cdef index_t[::1] met  # by (outer tap, outer position): the volume, -1 for none
    cdef index_t[::1] order, first  # places in `met` by volume, and where those of a volume begin

    def __cinit__(self, geometry, dtype, result):
        inner = _outer.of_volumes(geometry)
        real = scratch_dtype(dtype, result)
        _fill_piece(&self.piece, _pieces.whole_piece(inner))
        self.piece.parts = 2 if dtype.kind == "c" else 1
        self.piece.stored[SOURCE], self.piece.stored[TARGET] = _stored(dtype, real), _stored(result, real)
        self.size[0], self.size[1] = dtype.itemsize, result.itemsize
        self.kernels = pyconv_kernels(real.kind != "f", real.itemsize, _level)
        self.volumes, self.outer_taps, self.outer_positions = inner.volumes
        self.taps, self.positions = prod(inner.kernel_size), prod(inner.output_size)
        whole = whole_size(inner)
        self.volume, self.height, self.width = prod(whole), whole[1], whole[2]
        self.depth, self.rows = whole[0], max(1, FOLDED_CELLS // max(1, self.width))
        self.blocks = (self.height + self.rows - 1) // self.rows
        self.is_part = whole != inner.input_size
        for a in range(3):
            self.before[a] = inner.before[a]
        met = np.array([-1 if x is None else x for _, _, x in _outer.meetings(geometry)], np.intp)
        order = np.argsort(met, kind="stable")
        self.met, self.order = met, order
        self.first = np.searchsorted(met[order], np.arange(self.volumes + 1))

    cdef void unfold(self, index_t task, const char *cells, char *columns) noexcept nogil:
        """The positions of one outer position under one tap of one channel."""
        cdef index_t item = self.kernels.itemsize, place = task % self.outer_positions
        cdef index_t tap = task // self.outer_positions % self.taps, rest = task // self.outer_positions // self.taps
        cdef index_t volume = self.met[rest % self.outer_taps * self.outer_positions + place]
        cdef char *to = columns + task * self.positions * item
        if volume < 0:
            memset(to, 0, self.positions * item)
        else:
            volume += rest // self.outer_taps * self.volumes
            self.kernels.unfold_tap(&self.piece, tap, cells + volume * self.volume * item, to)

    cdef void fold(self, index_t task, const char *columns, char *cells, bint accumulate) noexcept nogil:
        """Some rows of one plane of a volume of one channel: what is x of them, some cells after the other."""
        cdef index_t plane = task // self.blocks, row = task % self.blocks * self.rows, first = 0, count
        cdef index_t rows = min(self.rows, self.height - row)
        cdef char *to = cells + (plane * self.height + row) * self.width * self.size[1]
        cdef index_t z = plane % self.depth - self.before[0], y = row - self.before[1]
        if not accumulate and self.is_part:  # what is not x of it
            memset(to, 0, rows * self.width * self.size[1])
        if y < 0:
            rows, to, y = rows + y, to - y * self.width * self.size[1], 0
        rows = min(rows, self.piece.axis[1].size - y)
        if rows <= 0 or not 0 <= z < self.piece.axis[0].size:
            return
        to += self.before[2] * self.size[1]
        while first < self.piece.axis[2].size:
            count = min(self.piece.axis[2].size - first, FOLDED_CELLS)
            self.fold_some(plane // self.depth, z, y, rows, first, count, columns,
                           to + first * self.size[1], accumulate)
            first += count

    cdef void fold_some(self, index_t volume, index_t z, index_t y, index_t rows, index_t first, index_t count,
                        const char *columns, char *to, bint accumulate) noexcept nogil:
        """Cells of x are written to or added to when all of their columns are summed."""
        cdef double apart[2 * FOLDED_CELLS]  # or of another type: complex128 is the largest
        cdef bint in_place = not accumulate and self.piece.stored[TARGET] == STORED_REAL
        cdef index_t parts = self.piece.parts, across = (self.width if in_place else count) * parts, row
        cdef index_t item = self.kernels.itemsize, pitch = self.outer_positions * self.positions, at, tap, place
        cdef index_t channel = volume // self.volumes
        cdef char *sums = to if in_place else <char *>apart
        volume %= self.volumes
        for row in range(rows):
            self.kernels.clear(count * parts, sums + row * across * item)
        for at in range(self.first[volume], self.first[volume + 1]):
            tap, place = self.order[at] // self.outer_positions, self.order[at] % self.outer_positions
            self.kernels.fold_rows(
                &self.piece, z, y, rows, first, count, columns + self.size[0] * (
                    (channel * self.outer_taps + tap) * self.taps * pitch + place * self.positions),
                pitch, sums, across)
        for row in range(0 if in_place else rows):
            self.kernels.write(self.piece.stored[TARGET], sums + row * across * item, count * parts,
                               to + row * self.width * self.size[1], 1, accumulate)


@lru_cache(maxsize=16)  # over many outer axes large ones
def columns_of(geometry, dtype, result):
    return Columns(geometry, dtype, result)


def unfold(geometry, input, columns, fold, accumulate=False, threads=None):
    """columns (batch, in_channels * taps, positions) <- input, or input (+)= the sum of columns."""
    if not fold and (input.dtype.name not in ("float32", "float64") or geometry.padding_mode != "zeros"):
        return _unfolding.unfold(geometry, input, columns)
    cdef Columns plan = columns_of(geometry, columns.dtype, input.dtype)
    cdef Watch watch = Watch()
    cdef index_t planes = geometry.batch * geometry.in_channels, task
    cdef char *cells = _data(input)
    cdef char *to = _data(columns)
    cdef bint adds = accumulate
    cdef int number = min(_process_threads if threads is None else threads, MOST_THREADS)
    if fold:
        planes *= plan.volumes * plan.depth * plan.blocks
        for task in prange(planes, nogil=True, num_threads=number, schedule="static"):
            if not watch.look():
                plan.fold(task, to, cells, adds)
    else:
        planes *= plan.outer_taps * plan.taps * plan.outer_positions
        for task in prange(planes, nogil=True, num_threads=number, schedule="static"):
            if not watch.look():
                plan.unfold(task, cells, to)
    watch.settle()


def touch(memory, index_t step, int threads):
    """Write to the first of so many bytes each, and to the last byte, of one run of memory."""
    cdef index_t size = memory.nbytes, places = _parts(size, step), place
    cdef Watch watch = Watch()
    cdef char *start = _data(memory)
    cdef int number = min(threads, MOST_THREADS, places)
    for place in prange(places, nogil=True, num_threads=number, schedule="static"):
        if not watch.look():
            start[place * step] = 0
    watch.settle()
    start[size - 1] = 0


def channel_sum(array, out, accumulate=False, threads=None):
    """out (channels,) (+)= the sum of array (batch, channels, positions) over the other two axes, some at a time."""
    cdef const kernels_t *kernels = _kernels(array.dtype)
    cdef index_t batch = array.shape[0], channels = array.shape[1], positions = array.shape[2], item = kernels.itemsize
    cdef Watch watch = Watch()
    cdef index_t c, n, first, count
    cdef char *cells = _data(array)
    cdef double[::1] totals = np.empty(min(channels, SUMS))
    cdef int number = min(_process_threads if threads is None else threads, MOST_THREADS)
    for first in range(0, channels, SUMS):
        count = min(channels - first, SUMS)
        for c in prange(count, nogil=True, num_threads=number, schedule="static"):
            totals[c] = 0
            for n in range(batch):
                if not watch.look():
                    totals[c] += kernels.sum(positions, cells + (n * channels + first + c) * positions * item)
        watch.settle()
        sums = np.asarray(totals)[:count].astype(array.dtype)
        if accumulate:
            out[first:first + count] += sums
        else:
            out[first:first + count] = sums
