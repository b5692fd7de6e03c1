/* The way of one tap under which a block's positions are one run of source: its cells are multiplied where they lie. Only
   where whole vectors would read beyond source are they copied first. See body.h for the macros. */

/* Scratch: where the cells begin, and for copied ones where each channel does. */
typedef struct {
    const REAL *cells;
    const index_t *offset;
} NAME(flat);

static void NAME(layout_flat)(work_t *work)
{
    NAME(layout)(work);
    work->layout.scratch += (sizeof(NAME(flat)) + work->part.channels * sizeof(index_t)) / sizeof(REAL) + LANES;
}

static void NAME(offsets_flat)(const work_t *work, index_t *offset)
{
    for (index_t c = 0; c < work->part.channels; c++)
        offset[c] = c * work->piece->source_channel;
}

static void NAME(unroll_flat)(const work_t *work, const void *source, const void *begin, const void *limit,
                              void *scratch)
{
    (void)begin;
    const block_t *block = &work->block;
    const index_t channels = work->part.channels, pitch = work->piece->source_channel;
    const index_t n = block->extent[0] * block->extent[1] * block->extent[2], *stride = work->piece->source_stride;
    const REAL *first = (const REAL *)source + block->sample * work->piece->source_batch + block->start[0] * stride[0]
        + block->start[1] * stride[1] + block->start[2];
    NAME(flat) *flat = scratch;
    *flat = (NAME(flat)){first, NULL};
    if ((const REAL *)limit - first >= (channels - 1) * pitch + NAME(up)(n))
        return;
    index_t *offset = (index_t *)(flat + 1);
    REAL *copies = (REAL *)(offset + channels);
    *flat = (NAME(flat)){copies, offset};
    for (index_t c = 0; c < channels; c++) {
        offset[c] = c * work->layout.stream;
        NAME(copy)(copies + offset[c], first + c * pitch, n, limit);
    }
}

static void NAME(multiply_flat)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                void *result, int accumulate)
{
    const NAME(flat) *flat = scratch;
    NAME(multiply_one)(work->part.rows, work->layout.positions, work->part.channels, panel,
                       flat->offset ? flat->offset : offset, flat->cells, result, work->layout.pitch, accumulate, 1);
}
