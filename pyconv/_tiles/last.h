/* The way of depthwise convolution where channels lie last: a lane is a channel, as in the direct way, but cells are
   read and results written where they lie. Positions that have the same taps are done together, box by box, so that no
   product with padding is made. See body.h for the macros. */

/* Positions of a box, in rows along x or, where the box is narrow, along y: how many, and from one to the next in source
   and in the result; how many channels there are. Along x, neighbouring cells are `column` apart in source; of a row's
   first position the first is cell `first`, and `size` of them are there. */
typedef struct {
    index_t rows, next_cell, next_result, count, step, apart, channels, column, first, size;
} NAME(lines);

/* Results lie as in target: they may be its own. Scratch tells where source is, and lists a box's taps. */
static void NAME(layout_last)(work_t *work)
{
    const index_t *extent = work->block.extent, depth = NAME(depth)(work);
    layout_t *layout = &work->layout;
    layout->cell = work->part.groups;
    layout->axis[1] = extent[2] * layout->cell;
    layout->axis[0] = extent[1] * layout->axis[1];
    layout->batch = extent[0] * layout->axis[0];
    layout->positions = extent[0] * extent[1] * extent[2];
    layout->pitch = 1;
    layout->scratch = (index_t)((sizeof(REAL *) + 2 * depth * sizeof(index_t)) / sizeof(REAL));
    layout->panel = NAME(up)(work->part.groups) * depth;
    layout->result = layout->sums = layout->batch;
}

/* The channels of a vector: the last one ends with them, whatever of it the one before has too. */
static inline index_t NAME(vector_at)(index_t channel, index_t channels)
{
    return channel + LANES <= channels ? channel : channels - LANES;
}

/* panel[vector of channels][tap][lane] */
static void NAME(pack_last)(const work_t *work, const void *weight, void *panel)
{
    work_t vector = *work;
    vector.part.groups = LANES;
    for (index_t channel = 0; channel < work->part.groups; channel += LANES)
        NAME(pack_direct)(&vector, (const REAL *)weight
                          + NAME(vector_at)(channel, work->part.groups) * work->piece->weight_group,
                          (REAL *)panel + channel * NAME(depth)(work));
}

/* All channels of some positions, then the next, row after row: what is read of source follows itself in memory. */
#define LAST_ROWS(K, S)                                                                                               \
    static void NAME(last_##K##x##S)(const NAME(lines) *lines, index_t taps, index_t depth, const index_t *offset,    \
                                     const index_t *row, const REAL *panel, const REAL *cells, REAL *result)          \
    {                                                                                                                 \
        for (index_t y = 0; y < lines->rows; y++, cells += lines->next_cell, result += lines->next_result)            \
            for (index_t x = 0, wide; x < lines->count; x += wide) {                                                  \
                wide = NAME(in_registers)(lines->count - x);                                                          \
                const index_t first = lines->first + S * x, read = S * (wide - 1) + K, left = lines->size - first;    \
                const index_t there[3] = {-first, left < read ? left : read, wide};                                   \
                const int whole = wide == 8 && (K == 1 || (first >= 0 && left >= read));                              \
                for (index_t channel = 0; channel < lines->channels; channel += LANES) {                              \
                    const index_t at = NAME(vector_at)(channel, lines->channels);                                     \
                    if (whole)                                                                                        \
                        POSITIONS(K, S, 0);                                                                           \
                    else                                                                                              \
                        POSITIONS(K, S, 1);                                                                           \
                }                                                                                                     \
            }                                                                                                         \
    }
#define POSITIONS(K, S, CUT)                                                                                          \
    NAME(direct)(8, K, S, CUT, there, taps, panel + channel * depth, offset, row, cells + x * lines->step + at,       \
                 lines->column, lines->step, result + x * lines->apart + at, lines->apart)
LAST_ROWS(1, 1) LAST_ROWS(3, 1) LAST_ROWS(3, 2) LAST_ROWS(5, 1) LAST_ROWS(5, 2) LAST_ROWS(7, 1)
#undef LAST_ROWS
#undef POSITIONS

typedef void (*NAME(last_function))(const NAME(lines) *, index_t, index_t, const index_t *, const index_t *,
                                    const REAL *, const REAL *, REAL *);
static const NAME(last_function) NAME(lasts)[] = {NAME(last_1x1), NAME(last_3x1), NAME(last_3x2),
                                                  NAME(last_5x1), NAME(last_5x2), NAME(last_7x1)};

/* The taps of a box, and those that share their cells in the order of these: where each has its cell, seen from that of
   a position's first tap, and its row of the panel. Gives back how many. */
static index_t NAME(list_taps)(const NAME(walk) *box, int shares, index_t *offset, index_t *row)
{
    const axis_t *axis = box->work->piece->axis;
    const index_t *stride = box->work->piece->source_stride;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const int backwards = shares && axis[2].tap_step < 0;
    index_t taps = 0;
    for (index_t tz = z->tap; tz < z->tap + z->taps; tz++)
        for (index_t ty = y->tap; ty < y->tap + y->taps; ty++)
            for (index_t i = 0; i < x->taps; i++, taps++) {
                const index_t tx = backwards ? x->tap + x->taps - 1 - i : x->tap + i;
                offset[taps] = tz * axis[0].tap_step * stride[0] + ty * axis[1].tap_step * stride[1]
                    + tx * axis[2].tap_step * stride[2];
                row[taps] = (tz * axis[1].taps + ty) * axis[2].taps + tx;
            }
    return taps;
}

/* All positions of a box: of one sample. */
static void NAME(multiply_box_last)(NAME(walk) *box, int shares, const REAL *panel, const REAL *source,
                                    index_t *offset, REAL *result)
{
    const work_t *work = box->work;
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const layout_t *layout = &work->layout;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const index_t depth = NAME(depth)(work), down = axis[1].step * piece->source_stride[1];
    const index_t along = axis[2].step * piece->source_stride[2], channels = work->part.groups;
    const index_t taps = NAME(list_taps)(box, shares, offset, offset + depth);
    const index_t first = axis[2].step * work->block.start[2] + axis[2].offset + NAME(back)(&axis[2]);
    NAME(lines) lines = {y->count, down, layout->axis[1], x->count, along, layout->cell, channels,
                         piece->source_stride[2], first, axis[2].size};
    if (!shares && x->count < y->count)
        lines = (NAME(lines)){x->count, along, layout->cell, y->count, down, layout->axis[1], channels, 0, 0, 0};
    NAME(begin_walk)(box);
    source += NAME(next_cell)(box);
    result += y->start * layout->axis[1] + x->start * layout->cell;
    for (index_t i = 0; i < z->count; i++)
        NAME(lasts)[shares](&lines, taps, depth, offset, offset + depth, panel,
                            source + i * axis[0].step * piece->source_stride[0],
                            result + (z->start + i) * layout->axis[0]);
}

/* Box by box; of taps that share their cells, those that a position lacks along x are left out within. */
static void NAME(multiply_last)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                void *result, int accumulate)
{
    const axis_t *axis = work->piece->axis;
    const index_t *extent = work->block.extent, *start = work->block.start;
    const int shares = NAME(side_by_side)(&axis[2]);
    NAME(walk) box = {.work = work};
    NAME(stretch) *s = box.axis;
    (void)offset, (void)accumulate; /* the one channel is there */
    for (index_t z = 0; z < extent[0]; z += s[0].count) {
        s[0] = NAME(find_stretch)(&axis[0], start[0], z, extent[0]);
        for (index_t y = 0; y < extent[1]; y += s[1].count) {
            s[1] = NAME(find_stretch)(&axis[1], start[1], y, extent[1]);
            for (index_t x = 0; x < extent[2]; x += s[2].count) {
                s[2] = shares ? (NAME(stretch)){0, extent[2], 0, axis[2].taps}
                              : NAME(find_stretch)(&axis[2], start[2], x, extent[2]);
                NAME(multiply_box_last)(&box, shares, panel, *(const REAL **)scratch,
                                        (index_t *)((const REAL **)scratch + 1), result);
            }
        }
    }
}

/* target <- results + bias (+ target) */
static void NAME(store_in_last)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                                char *doubtful)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t *stride = piece->target_stride;
    REAL *to = (REAL *)target + NAME(first)(piece, block);
    (void)doubtful;
    for (index_t z = 0; z < block->extent[0]; z++)
        for (index_t y = 0; y < block->extent[1]; y++)
            for (index_t x = 0; x < block->extent[2]; x++)
                NAME(store_channels)(to + z * stride[0] + y * stride[1] + x * stride[2],
                                     (const REAL *)result + z * layout->axis[0] + y * layout->axis[1] + x * layout->cell,
                                     bias, work->part.groups, accumulate);
}
