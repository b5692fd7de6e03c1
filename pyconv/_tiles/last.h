/* Operands whose channels lie last in memory, for the ways that want rows of cells: the box that a block reads or
   writes is turned into a patch of its own, channel by channel, or from one. See body.h for the macros. */

/* Cells of source, or positions in target, along each axis: the first and how many. */
typedef struct {
    index_t first[3], count[3];
} NAME(region);

static NAME(region) NAME(source_region)(const piece_t *piece, const block_t *block)
{
    NAME(region) r;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        const index_t span = axis->tap_step * (axis->taps - 1), back = span < 0 ? span : 0;
        const index_t low = axis->step * block->start[a] * piece->tile[a] + axis->offset + back;
        const index_t high = low + axis->step * (block->extent[a] * piece->tile[a] - 1) + (span < 0 ? -span : span) + 1;
        const index_t end = high < axis->size ? high : axis->size;
        r.first[a] = low < 0 ? 0 : low < axis->size ? low : axis->size;
        r.count[a] = end > r.first[a] ? end - r.first[a] : 0;
    }
    return r;
}

static NAME(region) NAME(target_region)(const piece_t *piece, const block_t *block)
{
    NAME(region) r;
    for (int a = 0; a < 3; a++) {
        const index_t most = block->extent[a] * piece->tile[a];
        r.first[a] = block->start[a] * piece->tile[a];
        r.count[a] = piece->count[a] - r.first[a] < most ? piece->count[a] - r.first[a] : most;
    }
    return r;
}

/* Elements of the patch of the largest block, and some more: vectors are read beyond the end of rows. */
static index_t NAME(patch)(const work_t *work, int of_target)
{
    const piece_t *piece = work->piece;
    index_t n = work->part.groups * (of_target ? work->part.rows : work->part.channels) * work->block.samples;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        const index_t positions = work->block.extent[a] * piece->tile[a], span = axis->tap_step * (axis->taps - 1);
        const index_t cells = axis->step * (positions - 1) + (span < 0 ? -span : span) + 1;
        n *= of_target ? positions : cells < axis->size ? cells : axis->size;
    }
    return n + 8 * LANES;
}

/* How the patch is seen: where its row 0 of group 0 would begin if it were the whole operand. */
static REAL *NAME(see_patch)(const work_t *work, int of_target, const NAME(region) *r, REAL *patch, piece_t *seen)
{
    const part_t *part = &work->part;
    const index_t plane = r->count[1] * r->count[2], channel = r->count[0] * plane;
    const index_t stride[3] = {plane, r->count[2], 1};
    if (of_target) {
        seen->target_channel = channel;
        seen->target_group = part->rows * channel;
        seen->target_batch = part->groups * seen->target_group;
        patch -= work->block.sample * seen->target_batch + part->row * channel;
        for (int a = 0; a < 3; a++) {
            seen->target_stride[a] = stride[a];
            patch -= r->first[a] * stride[a];
        }
        return patch;
    }
    seen->source_channel = channel;
    seen->source_group = part->channels * channel;
    seen->source_batch = part->groups * seen->source_group;
    for (int a = 0; a < 3; a++) {
        seen->source_stride[a] = stride[a];
        seen->axis[a].offset = work->piece->axis[a].offset - r->first[a];
        seen->axis[a].size = r->count[a];
    }
    return patch - work->block.sample * seen->source_batch;
}

/* Both ways: rows of a region, of all channels at once; those that follow each other in memory together. */
static inline __attribute__((always_inline)) void NAME(turn_region)(
    REAL *operand, const NAME(region) *r, index_t samples, index_t batch, const index_t *stride, index_t channels,
    REAL *patch, const int inward, const int accumulate)
{
    const index_t all = r->count[0] * r->count[1] * r->count[2];
    index_t rows = r->count[1], n = r->count[2];
    if (stride[1] == n * stride[2]) {
        n *= rows;
        rows = 1;
    }
    for (index_t s = 0; s < samples; s++, patch += channels * all)
        for (index_t z = 0; z < r->count[0]; z++)
            for (index_t y = 0; y < rows; y++) {
                REAL *cells = operand + s * batch + (r->first[0] + z) * stride[0] + (r->first[1] + y) * stride[1]
                    + r->first[2] * stride[2];
                REAL *row = patch + (z * rows + y) * n;
                if (inward)
                    NAME(transpose)(row, all, cells, stride[2], n, channels, 0);
                else
                    NAME(transpose)(cells, stride[2], row, all, channels, n, accumulate);
            }
}

/* The block's box of an operand -> patch, where `operand` is not NULL; gives back where to read or write it from, which
   with `seen` stands for the operand. */
static void *NAME(turn_in)(const work_t *work, int of_target, const void *operand, void *patch, piece_t *seen)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    const NAME(region) r = of_target ? NAME(target_region)(piece, block) : NAME(source_region)(piece, block);
    if (operand && of_target)
        NAME(turn_region)((REAL *)operand + block->sample * piece->target_batch + part->row, &r, block->samples,
                          piece->target_batch, piece->target_stride, part->groups * part->rows, patch, 1, 0);
    else if (operand)
        NAME(turn_region)((REAL *)operand + block->sample * piece->source_batch, &r, block->samples,
                          piece->source_batch, piece->source_stride, part->groups * part->channels, patch, 1, 0);
    return NAME(see_patch)(work, of_target, &r, patch, seen);
}

/* target (+)= patch */
static void NAME(turn_out)(const work_t *work, void *patch, void *target, int accumulate)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    const NAME(region) r = NAME(target_region)(piece, block);
    REAL *to = (REAL *)target + block->sample * piece->target_batch + part->row;
    if (accumulate)
        NAME(turn_region)(to, &r, block->samples, piece->target_batch, piece->target_stride,
                          part->groups * part->rows, patch, 0, 1);
    else
        NAME(turn_region)(to, &r, block->samples, piece->target_batch, piece->target_stride,
                          part->groups * part->rows, patch, 0, 0);
}
