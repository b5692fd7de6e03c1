/* The ways of one tap under which a block's positions are one run of source: its cells are multiplied where they lie. Only
   where whole vectors would read beyond source are they copied first. So are weights that lie row by row, if one block
   alone wants them. See body.h for the macros. */

/* Scratch: where the cells begin, and for copied ones where each channel does. */
typedef struct {
    const REAL *cells;
    const index_t *offset;
} NAME(flat);

static void NAME(layout_flat)(work_t *work)
{
    NAME(layout)(work);
    work->layout.panel += sizeof(NAME(rows_panel)) / sizeof(REAL);
    work->layout.scratch += (sizeof(NAME(flat)) + work->part.channels * sizeof(index_t)) / sizeof(REAL) + LANES;
}

static void NAME(offsets_flat)(const work_t *work, index_t *offset)
{
    for (index_t c = 0; c < work->part.channels; c++)
        offset[c] = c * work->piece->source_channel;
}

/* The first cell of a block, whose positions are those of source. */
static inline const REAL *NAME(first_of_run)(const work_t *work, const void *source)
{
    const block_t *block = &work->block;
    const index_t *stride = work->piece->source_stride;
    return (const REAL *)source + block->sample * work->piece->source_batch + block->start[0] * stride[0]
        + block->start[1] * stride[1] + block->start[2];
}

static void NAME(unroll_flat)(const work_t *work, const void *source, const void *begin, const void *limit,
                              void *scratch)
{
    (void)begin;
    const block_t *block = &work->block;
    const index_t channels = work->part.channels, pitch = work->piece->source_channel;
    const index_t n = block->extent[0] * block->extent[1] * block->extent[2];
    const REAL *first = NAME(first_of_run)(work, source);
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

/* No block is at hand where weights are packed for all; of packed ones the panel says NULL. */
static void NAME(pack_flat)(const work_t *work, const void *weight, void *panel)
{
    const piece_t *piece = work->piece;
    NAME(rows_panel) *flat = panel;
    if (work->block.samples > 0 && piece->weight_channel == 1)
        *flat = (NAME(rows_panel)){(const REAL *)weight + work->part.row * piece->weight_row, piece->weight_row, {0}};
    else {
        *flat = (NAME(rows_panel)){NULL, 0, {0}};
        NAME(pack)(work, weight, flat->own);
    }
}

static void NAME(multiply_flat)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                void *result, int accumulate)
{
    const NAME(flat) *flat = scratch;
    const NAME(rows_panel) *weights = panel;
    const index_t rows = work->part.rows, positions = work->layout.positions, depth = work->part.channels;
    const int in_rows = weights->first != NULL;
    offset = flat->offset ? flat->offset : offset;
    NAME(multiply_one)(rows, positions, depth, in_rows ? weights->first : weights->own, in_rows, weights->pitch,
                       offset, flat->cells, result, work->layout.pitch, accumulate, (int)work->layout.cut, 1, 0);
}

/* grad_weight: a block's cells and those of target are a run each, and are multiplied where they lie. Scratch is one
   pointer, to where source begins, and so is a panel, to target. */
static void NAME(layout_few_flat)(work_t *work)
{
    NAME(layout_few)(work);
    work->layout.scratch = work->layout.panel = (index_t)((sizeof(REAL *) + sizeof(REAL) - 1) / sizeof(REAL));
}

static void NAME(dot_flat)(const work_t *work, const void *panel, const index_t *offset, void *scratch, void *result,
                           int accumulate)
{
    const piece_t *piece = work->piece;
    const part_t *part = &work->part;
    const REAL *source = NAME(first_of_run)(work, *(const REAL *const *)scratch);
    const REAL *target = *(const REAL *const *)panel + NAME(first)(piece, &work->block)
        + part->row * piece->target_channel;
    NAME(dot_one)(part->channels, part->rows, work->layout.positions, offset, source, target, piece->target_channel,
                  result, part->rows, accumulate);
}
