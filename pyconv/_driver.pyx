# cython: language_level=3, nonecheck=True
"""Kernels put into a stream by the CUDA driver's own functions, with next to no Python between two launches.

What the driver answers is a number here; pyconv._gpu.launch says it in words. No CUDA is needed to build this.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum:
    MAP_WORDS = 16  # a tensor map is 128 bytes
    EARLY = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

ctypedef int (*get_t)(void **context) noexcept nogil
ctypedef int (*push_t)(void *context) noexcept nogil
ctypedef int (*launch_t)(
    void *kernel, unsigned int x, unsigned int y, unsigned int z, unsigned int threads, unsigned int rows,
    unsigned int planes, unsigned int shared, void *stream, void **arguments, void **extra) noexcept nogil

# The driver's CUlaunchAttribute, of 72 bytes, and CUlaunchConfig.
cdef struct attribute_t:
    int what
    int gap
    int value
    int beside
    int64_t rest[7]

cdef struct config_t:
    unsigned int grid[3]
    unsigned int threads[3]
    unsigned int shared
    void *stream
    attribute_t *attributes
    unsigned int count

ctypedef int (*launch_early_t)(config_t *config, void *kernel, void **arguments, void **extra) noexcept nogil


cdef class Arguments:
    """The arguments of a launch in memory as the driver reads them: 64-bit integers, before them perhaps a tensor map.

    They may be written anew for every launch, of one thread at a time.
    """

    cdef int64_t *words
    cdef void **pointers
    cdef readonly int count
    cdef readonly bint has_map

    def __cinit__(self, integers, bint has_map=False):
        """has_map: the first integer stands for a tensor map, which is still to be written. OverflowError beyond 64
        bits."""
        cdef int place
        self.count, self.has_map = len(integers), has_map
        self.words = <int64_t *>calloc(self.count + MAP_WORDS, sizeof(int64_t))
        self.pointers = <void **>calloc(self.count + 1, sizeof(void *))
        if self.words == NULL or self.pointers == NULL:
            raise MemoryError
        for place in range(self.count):
            self.word(place)[0] = 0 if has_map and place == 0 else integers[place]
            self.pointers[place] = self.word(place)

    def __dealloc__(self):
        free(self.words)
        free(self.pointers)

    cdef int64_t *word(self, int place) noexcept:
        """Where an argument begins."""
        return self.words + place + (MAP_WORDS - 1 if self.has_map and place > 0 else 0)

    def set_map(self, const int64_t[::1] map not None):
        """Write the tensor map."""
        if not self.has_map or map.shape[0] != MAP_WORDS:
            raise ValueError(f"map must be {MAP_WORDS} words of a launch that has one; got {map.shape[0]}")
        memcpy(self.words, &map[0], MAP_WORDS * sizeof(int64_t))

    def given(self):
        """The integers, and first the tensor map's bytes."""
        found = [self.word(place)[0] for place in range(self.count)]
        if self.has_map:
            found[0] = PyBytes_FromStringAndSize(<char *>self.words, MAP_WORDS * sizeof(int64_t))
        return found


cdef struct place_t:
    int64_t *at
    int64_t offset
    int base


cdef class Places:
    """Where arguments are addresses: so many bytes behind those of a call's arrays, which are known by words."""

    cdef place_t *places
    cdef int64_t *found
    cdef int count
    cdef tuple bases
    cdef list written

    def __cinit__(self, places):
        """places: (arguments, which of them, the array's word, bytes behind its address) of each."""
        cdef Arguments arguments
        cdef int i, place
        self.bases, self.written = tuple(dict.fromkeys(base for _, _, base, _ in places)), list(places)
        self.count = len(self.written)
        self.places = <place_t *>calloc(self.count + 1, sizeof(place_t))
        self.found = <int64_t *>calloc(len(self.bases) + 1, sizeof(int64_t))
        if self.places == NULL or self.found == NULL:
            raise MemoryError
        for i, (arguments, place, base, offset) in enumerate(self.written):
            if not 0 <= place < arguments.count:
                raise IndexError(f"a place must be one of {arguments.count} arguments; got {place}")
            self.places[i] = place_t(arguments.word(place), offset, self.bases.index(base))

    def __dealloc__(self):
        free(self.places)
        free(self.found)

    def write(self, dict addresses not None):
        """The addresses of one call's arrays, by their words."""
        cdef int i
        for i, base in enumerate(self.bases):
            self.found[i] = addresses[base]
        for i in range(self.count):
            self.places[i].at[0] = self.found[self.places[i].base] + self.places[i].offset


cdef class Launcher:
    """Launches in one device's context, by the addresses of the driver's functions.

    Where `early` is one, cuLaunchKernelEx, kernels that say so may begin while the one before them in the stream still
    runs: they wait by themselves until that has ended, as all that `ptx` makes for chips from capability 9.0 on do.
    """

    cdef get_t get_current
    cdef push_t push
    cdef get_t pop
    cdef launch_t launch
    cdef launch_early_t early
    cdef void *context

    def __cinit__(self, uintptr_t get_current, uintptr_t push, uintptr_t pop, uintptr_t launch, uintptr_t early,
                  uintptr_t context):
        self.get_current, self.push, self.pop = <get_t>get_current, <push_t>push, <get_t>pop
        self.launch, self.early, self.context = <launch_t>launch, <launch_early_t>early, <void *>context

    def __call__(self, launches, uintptr_t stream):
        """Put (kernel, grid, arguments) into the stream, in order. None, or the status that is no success and the
        launch that had it, -1 where it was the context. The caller's context is current afterwards as before."""
        cdef void *current = NULL
        cdef int status = self.get_current(&current), place = -1
        cdef bint elsewhere = current != self.context
        if status == 0 and elsewhere:
            status = self.push(self.context)
        if status != 0:
            return status, place
        try:
            for place, (kernel, grid, arguments) in enumerate(launches):
                status = self._one(kernel, grid, arguments, <void *>stream)
                if status != 0:
                    return status, place
        finally:
            if elsewhere:
                self.pop(&current)

    cdef int _one(self, kernel, tuple grid, Arguments arguments, void *stream) except? -1:
        cdef unsigned int x = grid[0], y = grid[1], z = grid[2], threads = kernel.threads, shared = kernel.shared
        cdef void *handle = <void *><uintptr_t>kernel.handle
        cdef int status
        if arguments.count != <int>kernel.arguments:
            raise TypeError(f"{kernel.name} must be given {kernel.arguments} arguments; got {arguments.count}")
        cdef bint comes_early = kernel.early and self.early != NULL
        cdef attribute_t allowed = attribute_t(EARLY, 0, 1)
        cdef config_t config = config_t([x, y, z], [threads, 1, 1], shared, stream, &allowed, 1)
        with nogil:  # the driver waits where its queue is full
            if comes_early:
                status = self.early(&config, handle, arguments.pointers, NULL)
            else:
                status = self.launch(handle, x, y, z, threads, 1, 1, shared, stream, arguments.pointers, NULL)
        return status
