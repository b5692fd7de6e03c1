# cython: language_level=3
"""The kernels' table and the machine, as C declares them (see _tiles/kernels.h and _tiles/host.h)."""

cdef extern from "_tiles/kernels.h" nogil:
    cdef enum:
        SOURCE, TARGET, WEIGHT, FOLDED_CELLS, PANEL_TAPS, STORED_REAL
    ctypedef ptrdiff_t index_t
    ctypedef struct axis_t:
        index_t size, step, offset, tap_step, taps, streams, unit
    ctypedef struct piece_t:
        axis_t axis[3]
        index_t count[3]
        index_t source_base, source_group, source_batch, source_channel
        index_t source_stride[3]
        index_t target_base, target_group, target_batch, target_channel
        index_t target_stride[3]
        index_t weight_base, weight_group, weight_row, weight_channel
        index_t weight_stride[3]
        index_t row_taps[3]
        index_t row_stride[3]
        index_t rows
        int turned, rows_by_tap
        index_t tile[3]
        int parts, edge, only_edges, source_last, folded
        int close[2]
        index_t several, woven, weight_woven
        index_t panel_taps, panel_before
        index_t every[3]
        int by_taps
        index_t summed
        index_t before[3]
        index_t behind[3]
        int stored[3]
        long long edge_value[2]
    ctypedef struct block_t:
        index_t sample, samples
        index_t start[3]
        index_t extent[3]
        int shared
    ctypedef struct part_t:
        index_t group, groups, row, rows, channel, channels
    ctypedef struct layout_t:
        index_t axis[2]
        index_t positions, batch, pitch, cell, first, cut
        index_t scratch, panel, result, sums
    ctypedef struct seen_t:
        unsigned int least, greatest
    ctypedef struct work_t:
        const piece_t *piece
        block_t block
        part_t part
        layout_t layout
        seen_t *seen
    ctypedef struct way_t:
        void (*layout)(work_t *) noexcept nogil
        void (*offsets)(const work_t *, index_t *) noexcept nogil
        void (*unroll)(const work_t *, const void *, const void *, const void *, void *) noexcept nogil
        void (*pack)(const work_t *, const void *, void *) noexcept nogil
        void (*multiply)(const work_t *, const void *, const index_t *, void *, void *, int) noexcept nogil
        void (*store)(const work_t *, void *, const void *, void *, int, char *) noexcept nogil
    ctypedef struct kernels_t:
        int itemsize, lanes, rows, vectors, cell
        way_t ways[1]
        index_t (*patch)(const work_t *, int) noexcept nogil
        void *(*turn_in)(const work_t *, int, const void *, void *, piece_t *) noexcept nogil
        void (*turn_out)(const work_t *, int, void *, void *, int) noexcept nogil
        void (*fold_patch)(const work_t *, void *, const void *) noexcept nogil
        void (*fold_result)(work_t *, void *, int) noexcept nogil
        void (*interleave)(const work_t *, const void *, const work_t *, const void *, const work_t *, void *,
                           int) noexcept nogil
        void (*clear)(index_t, void *) noexcept nogil
        void (*add)(index_t, const void *, void *) noexcept nogil
        double (*sum)(index_t, const void *) noexcept nogil
        int (*finite)(int, index_t, const void *, int) noexcept nogil
        void (*see)(index_t, const void *, seen_t *) noexcept nogil
        void (*unfold_tap)(const piece_t *, index_t, const void *, void *) noexcept nogil
        void (*fold_rows)(const piece_t *, index_t, index_t, index_t, index_t, index_t, const void *, index_t,
                          void *, index_t) noexcept nogil
        void (*write)(int, const void *, index_t, void *, index_t, int) noexcept nogil
    const char *pyconv_level(int)
    const kernels_t *pyconv_kernels(int, int, int)
    const kernels_t *pyconv_kernels_of_slices(int)
    const kernels_t *pyconv_kernels_of_cells(int, int, int)
    long pyconv_second_level()

cdef extern from "_tiles/host.h" nogil:
    int pyconv_openmp()
    double pyconv_seconds()
    index_t pyconv_take(index_t *next, index_t end)
