/* The way of depthwise convolution where channels lie last: a lane is a channel, as in the direct way, but cells are
   read and results written where they lie. Positions that have the same taps are done together, box by box, so that no
   product with padding is made. See body.h for the macros. */

/* Positions of a box, in rows along x or, where the box is narrow, along y: how many, and from one to the next in source
   and in the result; how many channels there are. Along x, neighbouring cells are `column` apart in source; of a row's
   first position the first is cell `first`, and `size` of them are there. */
typedef struct {
    index_t rows, next_cell, next_result, count, step, apart, channels, column, first, size;
} NAME(lines);

/* Those of a part: groups have one each, or as many in source as in target. */
static inline index_t NAME(channels_of)(const work_t *work)
{
    return work->part.groups * work->part.channels;
}

/* Channels of a result lie side by side, and it may be target's own where they do there too. Scratch tells where source
   is, and lists a box's taps. Vectors of less than all lanes are loaded whole from a result, from the last one too. */
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
    layout->panel = NAME(up)(NAME(channels_of)(work)) * depth;
    layout->sums = layout->batch;
    layout->result = layout->sums + LANES;
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

/* All channels of some positions, then the next, row after row: what is read of source follows itself in memory. What
   the next row reads and this one does not is asked for, S cells for each position of `fresh` rows, and where the next
   results go. Under three taps along x the last positions of a row are eight as well, of which some were done: that
   takes less time than fewer that are not whole, and writes the same again, as nothing is added to results here.
   `outer`: all but the K - 1 columns at either end, of eight positions, are there. */
#define LAST_ROWS(K, S)                                                                                               \
    static void NAME(last_##K##x##S)(const NAME(lines) *lines, index_t taps, index_t depth, const index_t *offset,    \
                                     const index_t *row, const REAL *panel, const REAL *cells, REAL *result)          \
    {                                                                                                                 \
        const index_t last = taps > 0 ? offset[taps - 1] : 0;                                                         \
        const index_t lowest = taps > 0 && offset[0] > last ? offset[0] : last;                                       \
        const index_t down = taps > K && K > 1 ? offset[K] - offset[0] : 0, apart = down < 0 ? -down : down;          \
        const index_t fresh = apart > 0 && apart < lines->next_cell ? S : 1;                                          \
        for (index_t y = 0; y < lines->rows; y++, cells += lines->next_cell, result += lines->next_result)            \
            for (index_t x = 0, wide; x < lines->count; x += wide) {                                                  \
                wide = NAME(in_registers)(lines->count - x);                                                          \
                if (K == 3 && wide < 8 && lines->count >= 8) {                                                        \
                    wide = 8;                                                                                         \
                    x = x + 8 < lines->count ? x : lines->count - 8;                                                  \
                }                                                                                                     \
                const index_t first = lines->first + S * x, read = S * (wide - 1) + K, left = lines->size - first;    \
                const index_t there[3] = {-first, left < read ? left : read, wide};                                   \
                const int whole = wide == 8 && (K == 1 || (first >= 0 && left >= read));                              \
                const int outer = wide == 8 && -first < K && left > S * 7;                                            \
                const REAL *below = cells + lowest + lines->next_cell + x * lines->step;                              \
                const REAL *next = result + (x + wide) * lines->apart;                                                \
                for (index_t channel = 0; channel < lines->channels; channel += LANES) {                              \
                    const index_t at = NAME(vector_at)(channel, lines->channels);                                     \
                    for (index_t i = 0; i < wide; i++) {                                                              \
                        for (index_t r = 0; r < fresh; r++)                                                           \
                            for (index_t c = 0; c < S; c++)                                                           \
                                __builtin_prefetch(below + at + i * lines->step - c * lines->column - r * apart);     \
                        __builtin_prefetch(next + i * lines->apart + at, 1);                                          \
                    }                                                                                                 \
                    if (whole)                                                                                        \
                        POSITIONS(K, S, 0);                                                                           \
                    else if (outer)                                                                                   \
                        POSITIONS(K, S, OUTER);                                                                       \
                    else                                                                                              \
                        POSITIONS(K, S, ANY);                                                                         \
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

/* rows of target <- results + bias (+ target) */
static void NAME(store_in_rows)(const work_t *work, const REAL *result, const REAL *bias, REAL *to, int accumulate)
{
    const piece_t *piece = work->piece;
    const index_t groups = work->part.groups, cell = work->layout.cell;
    const NAME(runs) r = NAME(dense_runs)(work);
    for (index_t channel = 0; channel < groups; channel += LANES, to += LANES * piece->target_group) {
        const REAL *from = result + channel;
        const index_t here = groups - channel < LANES ? groups - channel : LANES;
        VECTOR more = {0};
        for (index_t i = 0; bias && i < here; i++)
            more[i] = bias[channel + i];
        for (index_t z = 0; z < r.planes; z++)
            for (index_t y = 0; y < r.rows; y++, from += r.run * cell)
                NAME(scatter_lanes)(from, cell, r.run, more, to + z * piece->target_stride[0]
                                    + y * piece->target_stride[1], piece->target_stride[2], piece->target_group, here,
                                    accumulate);
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
    if (piece->target_group != 1) {
        NAME(store_in_rows)(work, result, bias, to, accumulate);
        return;
    }
    for (index_t z = 0; z < block->extent[0]; z++)
        for (index_t y = 0; y < block->extent[1]; y++)
            for (index_t x = 0; x < block->extent[2]; x++)
                NAME(store_channels)(to + z * stride[0] + y * stride[1] + x * stride[2],
                                     (const REAL *)result + z * layout->axis[0] + y * layout->axis[1] + x * layout->cell,
                                     bias, work->part.groups, accumulate);
}

/* grad_weight: sums[vector of channels][tap][turn][lane], of the weight: in turn k channel c of a group of source meets
   channel c ^ k of target, so that in as many turns as there are channels each meets all. Behind them those of some
   positions, which are summed apart so that rounding errors grow with them and with their number, not with the product
   of both. */
#define SUMMED_APART 64 /* positions */

static void NAME(layout_last_turned)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_last)(work);
    layout->sums = layout->panel;
    layout->result = 2 * layout->sums;
    layout->panel = (index_t)((sizeof(REAL *) + sizeof(REAL) - 1) / sizeof(REAL)); /* where target is */
}

static void NAME(see_last)(const work_t *work, const void *target, void *panel)
{
    (void)work;
    *(const void **)panel = target;
}

/* Some neighbouring positions of one row: of the first, the cell under the first tap along x is cell `first` of `size`;
   `step` and `every` are the distances of positions and taps in cells, and `column` that of cells in source. What the
   next row reads is asked for, so far ahead in source and in target: at a stride two cells of two rows, which this row
   does not read, unless rows are SHORT, so that they are soon read. */
#define SHORT 16 /* cells */
typedef struct {
    index_t count, first, size, step, every, column, apart, next_cell, next_other;
} NAME(span);

/* Lanes e ^ k of a vector, which takes one instruction without a list of lanes where k is 1, 2, 3 or 4. */
static inline __attribute__((always_inline)) VECTOR NAME(exchange)(const int k, VECTOR v)
{
    NAME(mask) lanes;
#pragma GCC unroll 16
    for (int e = 0; e < LANES; e++)
        lanes[e] = (e ^ k) % LANES;
    if (k == 0)
        return v;
    v = NAME(pick)(v, lanes);
    IN_REGISTER(v);
    return v;
}

#define TURNS(W) ((W) < 4 ? (W) : 4)       /* whose sums are in registers at the same time */
#define KEPT_CELLS(W) (ROWS == 8 && (W) < 4) /* whether there are registers for the cells of three taps too */

/* R rows of three taps stay in registers while positions go by, in turns from `from` on of groups of W channels: up to 24
   sums hide the latency of the multiply-add. CUT: a tap that has no cell is left out. SHARE: two of a position's
   three cells are those of the one before, and stay. */
static inline __attribute__((always_inline)) void NAME(sum_span)(
    const int R, const int W, const int from, const int CUT, const int SHARE, const NAME(span) *span,
    const index_t *offset, const REAL *cells, const REAL *other, const index_t *row, REAL *sums)
{
    const index_t next = span->every * span->column, along = span->step * span->column;
    const index_t up = R > 1 ? offset[R - 1] - offset[R - 2] : 0; /* to the row of taps before */
    const int K = TURNS(W);
    VECTOR sum[24], x[9];
#define PLACE(i) (sums + ((row[(i) / (3 * K)] + (i) / K % 3) * W + from + (i) % K) * LANES)
#define IS_THERE(q, t)                                                                                                \
    (!CUT || (span->first + (q) * span->step + (t) * span->every >= 0 &&                                              \
              span->first + (q) * span->step + (t) * span->every < span->size))
#pragma GCC unroll 24
    for (int i = 0; i < 3 * R * K; i++)
        sum[i] = LOAD(PLACE(i));
    if (SHARE) {
#pragma GCC unroll 9
        for (int i = 0; i < 3 * R; i++)
            x[i] = i % 3 > 0 && IS_THERE(0, i % 3 - 1) ? LOAD(cells + offset[i / 3] + (i % 3 - 1) * next) : (VECTOR){0};
    }
    for (index_t q = 0; q < span->count; q++, cells += along, other += span->apart) {
        const REAL *below = cells + offset[R - 1] + span->next_cell;
        VECTOR y[4] = {NAME(exchange)(from, LOAD(other))};
#pragma GCC unroll 3
        for (int k = 1; k < K; k++)
            y[k] = NAME(exchange)(k, y[0]);
        __builtin_prefetch(other + span->next_other);
        __builtin_prefetch(below + next);
        if (span->step > 1 && span->size > SHORT) {
            __builtin_prefetch(below + 2 * next);
            __builtin_prefetch(below - up + next);
            __builtin_prefetch(below - up + 2 * next);
        }
#pragma GCC unroll 3
        for (int t = 0; t < 3; t++) {
            const int is_there = IS_THERE(q, t);
#pragma GCC unroll 3
            for (int r = 0; r < R; r++) {
                if (SHARE && t < 2)
                    x[3 * r + t] = x[3 * r + t + 1];
                else if (is_there)
                    x[3 * r + t] = LOAD(cells + offset[r] + t * next);
            }
            if (!is_there)
                continue;
#pragma GCC unroll 3
            for (int r = 0; r < R; r++) {
                if (SHARE || (K > 1 && ROWS == 8))
                    IN_REGISTER(x[3 * r + t]);
#pragma GCC unroll 4
                for (int k = 0; k < K; k++)
                    sum[(3 * r + t) * K + k] += x[3 * r + t] * y[k];
            }
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < 3 * R * K; i++)
        STORE(PLACE(i), sum[i]);
#undef IS_THERE
#undef PLACE
}

#define SUM_SPAN(R, W)                                                                                                \
    static void NAME(sum_span_##R##_of_##W)(const NAME(span) *span, index_t channels, index_t depth,                  \
                                            const index_t *offset, const REAL *cells, const REAL *other,              \
                                            const index_t *row, REAL *sums)                                           \
    {                                                                                                                 \
        const index_t last = span->first + (span->count - 1) * span->step + 2 * span->every;                          \
        const int whole = span->first >= 0 && last < span->size;                                                      \
        const int share = KEPT_CELLS(W) && span->step == 1 && span->every == 1;                                       \
        for (index_t channel = 0; channel < channels; channel += LANES, sums += LANES * depth) {                      \
            const index_t at = NAME(vector_at)(channel, channels);                                                    \
            SUMS_OF(R, W, 0);                                                                                         \
            if (W > TURNS(W))                                                                                         \
                SUMS_OF(R, W, W - TURNS(W));                                                                          \
        }                                                                                                             \
    }
#define SUMS_OF(R, W, FROM)                                                                                           \
    (!share ? (whole ? SUMS(R, W, FROM, 0, 0) : SUMS(R, W, FROM, 1, 0))                                               \
            : (whole ? SUMS(R, W, FROM, 0, KEPT_CELLS(W)) : SUMS(R, W, FROM, 1, KEPT_CELLS(W))))
#define SUMS(R, W, FROM, CUT, SHARE)                                                                                  \
    NAME(sum_span)(R, W, FROM, CUT, SHARE, span, offset, cells + at, other + at, row, sums)
SUM_SPAN(1, 1) SUM_SPAN(2, 1) SUM_SPAN(3, 1) SUM_SPAN(1, 2) SUM_SPAN(2, 2) SUM_SPAN(1, 4)
#if ROWS == 8
SUM_SPAN(3, 2) SUM_SPAN(2, 4) SUM_SPAN(1, 8) SUM_SPAN(2, 8)
#endif
#undef SUM_SPAN
#undef SUMS_OF
#undef SUMS

typedef void (*NAME(sum_span_function))(const NAME(span) *, index_t, index_t, const index_t *, const REAL *,
                                        const REAL *, const index_t *, REAL *);
/* [channels of a group: 1, 2, 4, 8][rows of taps - 1]: none where there are not registers for their sums, or lanes */
static const NAME(sum_span_function) NAME(sum_spans)[4][3] = {
    {NAME(sum_span_1_of_1), NAME(sum_span_2_of_1), NAME(sum_span_3_of_1)},
#if ROWS == 8
    {NAME(sum_span_1_of_2), NAME(sum_span_2_of_2), NAME(sum_span_3_of_2)},
    {NAME(sum_span_1_of_4), NAME(sum_span_2_of_4)},
    {NAME(sum_span_1_of_8), NAME(sum_span_2_of_8)}
#else
    {NAME(sum_span_1_of_2), NAME(sum_span_2_of_2)},
    {NAME(sum_span_1_of_4)}
#endif
};

/* How many of a row's positions are summed at a time: few, whose cells are then met by other rows of taps and by other
   channels of the same lines in L1; where all that are left have little, these, as sums are loaded and stored each time. */
static inline index_t NAME(in_span)(index_t left, index_t channels)
{
    const index_t bytes = left * channels * (index_t)sizeof(REAL);
    return left <= 16 && bytes <= 3 << 14 ? left : NAME(in_registers)(left);
}

/* All taps of one row of positions, whose rows of taps that have cells are listed: where in source and in the panel. */
static void NAME(sum_row)(const work_t *work, index_t rows, const index_t *offset, const index_t *row,
                          const REAL *source, const REAL *other, REAL *sums)
{
    const axis_t *x = &work->piece->axis[2];
    const index_t column = work->piece->source_stride[2], apart = work->piece->target_stride[2];
    const index_t down = work->piece->axis[1].step * work->piece->source_stride[1];
    const index_t channels = NAME(channels_of)(work), depth = NAME(depth)(work), of_group = work->part.channels;
    const NAME(sum_span_function) *sum_span = NAME(sum_spans)[of_group == 8 ? 3 : of_group / 2];
    const index_t fit = (ROWS == 8 ? 8 : 4) / TURNS(of_group), most = fit < 3 ? fit : 3; /* rows of taps in registers */
    for (index_t q = 0, wide; q < work->block.extent[2]; q += wide) {
        wide = NAME(in_span)(work->block.extent[2] - q, channels);
        const index_t first = x->step * (work->block.start[2] + q) + x->offset;
        const NAME(span) span = {wide, first, x->size, x->step, x->tap_step, column, apart, down,
                                 work->piece->target_stride[1]};
        const REAL *cells = source + first * column, *y = other + q * apart;
        for (index_t r = 0, some; r < rows; r += some) {
            some = rows - r < most ? rows - r : most;
            sum_span[some - 1](&span, channels, depth, offset + r, cells, y, row + r, sums);
        }
    }
}

/* The rows of taps that a row of positions has: where the first cell of each plane's row lies, and its first tap. */
static index_t NAME(rows_of_taps)(const work_t *work, index_t z, index_t y, index_t *offset, index_t *row)
{
    const axis_t *axis = work->piece->axis;
    const index_t *start = work->block.start, *stride = work->piece->source_stride;
    index_t tap[2], taps[2], rows = 0;
    NAME(taps_of)(&axis[0], start[0] + z, &tap[0], &taps[0]);
    NAME(taps_of)(&axis[1], start[1] + y, &tap[1], &taps[1]);
    for (index_t tz = tap[0]; tz < tap[0] + taps[0]; tz++)
        for (index_t ty = tap[1]; ty < tap[1] + taps[1]; ty++, rows++) {
            offset[rows] = (axis[0].step * (start[0] + z) + axis[0].offset + tz * axis[0].tap_step) * stride[0]
                + (axis[1].step * (start[1] + y) + axis[1].offset + ty * axis[1].tap_step) * stride[1];
            row[rows] = (tz * axis[1].taps + ty) * axis[2].taps;
        }
    return rows;
}

static void NAME(correlate_last)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                 void *result, int accumulate)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const REAL *source = *(const REAL **)scratch + block->sample * piece->source_batch;
    const REAL *other = *(const REAL *const *)panel + NAME(first)(piece, block);
    const index_t *extent = block->extent, depth = NAME(depth)(work), sums = work->layout.sums;
    index_t *lists = (index_t *)((const REAL **)scratch + 1), left = SUMMED_APART;
    REAL *whole = result, *apart = whole + sums;
    (void)offset;
    if (!accumulate)
        NAME(zero)(sums, whole);
    NAME(zero)(sums, apart);
    for (index_t z = 0; z < extent[0]; z++)
        for (index_t y = 0; y < extent[1]; y++) {
            const index_t rows = NAME(rows_of_taps)(work, z, y, lists, lists + depth);
            NAME(sum_row)(work, rows, lists, lists + depth, source,
                          other + z * piece->target_stride[0] + y * piece->target_stride[1], apart);
            left -= extent[2];
            if (left <= 0 || (z == extent[0] - 1 && y == extent[1] - 1)) {
                NAME(add)(sums, apart, whole);
                NAME(zero)(sums, apart);
                left = SUMMED_APART;
            }
        }
}

/* weight (+)= sums: of channels that two vectors have, once. */
static void NAME(store_weight_last)(const work_t *work, void *result, const void *bias, void *weight, int accumulate,
                                    char *doubtful)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t channels = NAME(channels_of)(work), depth = NAME(depth)(work), of_group = work->part.channels;
    (void)bias, (void)doubtful;
    for (index_t channel = 0; channel < channels; channel++) {
        const index_t vector = channel / LANES * LANES, lane = channel - NAME(vector_at)(vector, channels);
        const index_t own = channel % of_group;
        const REAL *from = (const REAL *)result + vector * depth + lane;
        REAL *cell = (REAL *)weight + channel / of_group * piece->weight_group + own * piece->weight_channel;
        for (index_t z = 0; z < axis[0].taps; z++)
            for (index_t y = 0; y < axis[1].taps; y++)
                for (index_t x = 0; x < axis[2].taps; x++)
                    for (index_t turn = 0; turn < of_group; turn++, from += LANES) {
                        REAL *at = cell + (own ^ turn) * piece->weight_row + z * piece->weight_stride[0]
                            + y * piece->weight_stride[1] + x * piece->weight_stride[2];
                        *at = accumulate ? *at + *from : *from;
                    }
    }
}
