/* The way that unrolls nothing: a vector holds channels of target, and each cell of source is broadcast from where it
   lies. Any stride and dilation reads alike, and no product with padding is made: positions that have the same taps
   are done together, box by box. See body.h for the macros. */

/* One product of every position in a box: its cell, seen from the position's, and its row of the panel. */
typedef struct {
    index_t cell, row;
} NAME(product);

/* Neighbouring positions of a block along one axis that have the same taps. */
typedef struct {
    index_t start, count, tap, taps;
} NAME(stretch);

/* Positions of a box, in the order in which they are done: x fastest, then y, z and the samples. */
typedef struct {
    const work_t *work;
    NAME(stretch) axis[3];
    index_t sample, at[3], left;
} NAME(walk);

/* Vectors of target's channels, and the positions that they are kept for: squares of both are turned at the end. */
static inline index_t NAME(columns)(const work_t *work)
{
    return NAME(up)(work->part.rows);
}

static void NAME(layout_broadcast)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    layout->scratch = (sizeof(REAL *) + NAME(depth)(work) * sizeof(NAME(product))) / sizeof(REAL);
    layout->cell = NAME(columns)(work);
    layout->panel = NAME(depth)(work) * layout->cell;
    layout->sums = layout->pitch * layout->cell;
    layout->result = 2 * layout->sums;
}

/* Here the cells lie in source, seen from that of the position under the first tap. */
static void NAME(offsets_broadcast)(const work_t *work, index_t *offset)
{
    const piece_t *piece = work->piece;
    index_t tap[3];
    for (index_t c = 0; c < work->part.channels; c++)
        for (tap[0] = 0; tap[0] < piece->axis[0].taps; tap[0]++)
            for (tap[1] = 0; tap[1] < piece->axis[1].taps; tap[1]++)
                for (tap[2] = 0; tap[2] < piece->axis[2].taps; tap[2]++) {
                    *offset = c * piece->source_channel;
                    for (int a = 0; a < 3; a++)
                        *offset += tap[a] * piece->axis[a].tap_step * piece->source_stride[a];
                    offset++;
                }
}

/* Scratch only tells where source is. */
static void NAME(unroll_broadcast)(const work_t *work, const void *source, const void *begin, const void *limit,
                                   void *scratch)
{
    (void)work, (void)begin, (void)limit;
    *(const void **)scratch = source;
}

/* [panels of columns][channel][tap][columns of a panel], filled up with zeros */
static void NAME(pack_broadcast)(const work_t *work, const void *weight, void *panels)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t rows = work->part.rows, depth = NAME(depth)(work), *stride = piece->weight_stride;
    REAL *to = panels;
    for (index_t column = 0, wide; column < rows; column += wide, to += depth * wide) {
        wide = NAME(panel)(rows - column) * LANES;
        const index_t here = rows - column < wide ? rows - column : wide;
        const REAL *from = (const REAL *)weight + (work->part.row + column) * piece->weight_row;
        REAL *next = to;
        if (here < wide)
            NAME(zero)(depth * wide, to);
        if (NAME(is_dense)(piece)) {
            NAME(transpose)(to, wide, from, piece->weight_row, here, depth, 0);
            continue;
        }
        for (index_t c = 0; c < work->part.channels; c++)
            for (index_t z = 0; z < axis[0].taps; z++)
                for (index_t y = 0; y < axis[1].taps; y++)
                    for (index_t x = 0; x < axis[2].taps; x++, next += wide) {
                        const REAL *cell = from + c * piece->weight_channel + z * stride[0] + y * stride[1]
                            + x * stride[2];
                        for (index_t i = 0; i < here; i++)
                            next[i] = cell[i * piece->weight_row];
                    }
    }
}

/* The taps under which a position has a cell: they follow each other. */
static inline void NAME(taps_of)(const axis_t *axis, index_t position, index_t *tap, index_t *taps)
{
    const index_t first = axis->step * position + axis->offset, back = axis->tap_step < 0 ? -axis->tap_step : 0;
    index_t low, high; /* before and behind the taps that have a cell */
    if (axis->taps <= 1 || axis->tap_step == 0) {
        low = 0;
        high = first >= 0 && first < axis->size ? axis->taps : 0;
    } else if (back) {
        low = first < axis->size ? 0 : (first - axis->size) / back + 1;
        high = first < 0 ? 0 : first / back + 1;
    } else {
        low = first < 0 ? (axis->tap_step - 1 - first) / axis->tap_step : 0;
        high = first < axis->size ? (axis->size - 1 - first) / axis->tap_step + 1 : 0;
    }
    high = high < axis->taps ? high : axis->taps;
    *tap = low < high ? low : 0;
    *taps = low < high ? high - low : 0;
}

/* The stretch of a block's positions that begins at `start`. */
static NAME(stretch) NAME(find_stretch)(const axis_t *axis, index_t first, index_t start, index_t extent)
{
    NAME(stretch) s = {start, 1, 0, 0};
    index_t tap, taps;
    NAME(taps_of)(axis, first + start, &s.tap, &s.taps);
    for (; start + s.count < extent; s.count++) {
        NAME(taps_of)(axis, first + start + s.count, &tap, &taps);
        if (tap != s.tap || taps != s.taps)
            break;
    }
    return s;
}

/* All products of a box; gives back how many. Where channels lie last, those of a tap follow each other, as their cells
   do: 9 taps of 8 positions are in 72 lines, for which a cache has no room where their distance is a power of 2. */
static index_t NAME(list_products)(const NAME(walk) *box, const index_t *offset, NAME(product) *list)
{
    const axis_t *axis = box->work->piece->axis;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const index_t taps = axis[0].taps * axis[1].taps * axis[2].taps, channels = box->work->part.channels;
    const int by_tap = box->work->piece->source_last || z->taps * y->taps * x->taps == 1; /* one order, if of one tap */
    const index_t at_once = by_tap ? channels : 1;
    NAME(product) *next = list;
    for (index_t first = 0; first < channels; first += at_once)
        for (index_t tz = z->tap; tz < z->tap + z->taps; tz++)
            for (index_t ty = y->tap; ty < y->tap + y->taps; ty++) {
                const index_t row = first * taps + (tz * axis[1].taps + ty) * axis[2].taps;
                if (by_tap)
                    for (index_t k = row + x->tap; k < row + x->tap + x->taps; k++)
                        for (index_t c = 0; c < channels; c++)
                            *next++ = (NAME(product)){offset[c * taps + k], c * taps + k};
                else
                    for (index_t k = row + x->tap; k < row + x->tap + x->taps; k++)
                        *next++ = (NAME(product)){offset[k], k};
            }
    return next - list;
}

static void NAME(begin_walk)(NAME(walk) *box)
{
    box->left = box->work->block.samples;
    box->sample = 0;
    for (int a = 0; a < 3; a++) {
        box->at[a] = box->axis[a].start;
        box->left *= box->axis[a].count;
    }
}

/* The cell of the next position under the first tap, seen from source. */
static inline index_t NAME(next_cell)(const NAME(walk) *box)
{
    const piece_t *piece = box->work->piece;
    const block_t *block = &box->work->block;
    index_t cell = (block->sample + box->sample) * piece->source_batch;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        cell += (axis->step * (block->start[a] + box->at[a]) + axis->offset) * piece->source_stride[a];
    }
    return cell;
}

/* Of the next n positions: the cell under the first tap, seen from source, and the number among the block's. */
static inline void NAME(take)(NAME(walk) *box, int n, index_t *cell, index_t *position)
{
    const piece_t *piece = box->work->piece;
    const layout_t *layout = &box->work->layout;
    const index_t end = box->axis[2].start + box->axis[2].count, step = piece->axis[2].step * piece->source_stride[2];
    box->left -= n;
    for (index_t i = 0, run; i < n; i += run) {
        const index_t from = NAME(next_cell)(box), *at = box->at;
        const index_t place = box->sample * layout->batch + at[0] * layout->axis[0] + at[1] * layout->axis[1] + at[2];
        run = n - i < end - box->at[2] ? n - i : end - box->at[2]; /* the rest of a row */
        for (index_t q = 0; q < run; q++) {
            cell[i + q] = from + q * step;
            position[i + q] = place + q;
        }
        box->at[2] += run;
        for (int a = 2; a >= 0 && box->at[a] == box->axis[a].start + box->axis[a].count; a--) {
            box->at[a] = box->axis[a].start;
            if (a > 0)
                box->at[a - 1]++;
            else
                box->sample++;
        }
    }
}

/* R positions by V vectors of channels stay in registers, as in `tile`: with 8 x 3 the products of one cell and tap are
   24 for 3 vectors of weights, which come from L2, and 8 broadcasts. Cells `ahead` are those of the next positions: of
   many channels each is in a line of its own, which no processor expects. */
static inline __attribute__((always_inline)) void NAME(spread)(
    const int R, const int V, index_t products, const NAME(product) *product, const REAL *source, const index_t *cell,
    const REAL *ahead, const REAL *panel, REAL *result, const index_t *position, index_t pitch, int accumulate)
{
    VECTOR sum[24];
    const REAL *from[8];
#pragma GCC unroll 24
    for (int i = 0; i < R * V; i++) {
        sum[i] = (VECTOR){0};
        __builtin_prefetch(result + position[i / V] * pitch + i % V * LANES, 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        from[i] = source + cell[i];
    for (index_t k = 0; k < products; k++) {
        if (R == ROWS)
            __builtin_prefetch(ahead + product[k].cell);
        NAME(add_products)(R, V, sum, from, product[k].cell, panel + product[k].row * V * LANES);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        NAME(store_sums)(V, sum + i * V, result + position[i] * pitch, accumulate);
}

#define SPREAD(R, V)                                                                                                  \
    static __attribute__((noinline)) void NAME(spread_##R##x##V)(                                                     \
        index_t products, const NAME(product) *product, const REAL *source, const index_t *cell, const REAL *ahead,   \
        const REAL *panel, REAL *result, const index_t *position, index_t pitch, int accumulate)                      \
    {                                                                                                                 \
        NAME(spread)(R, V, products, product, source, cell, ahead, panel, result, position, pitch, accumulate);       \
    }
typedef void (*NAME(spread_function))(index_t, const NAME(product) *, const REAL *, const index_t *, const REAL *,
                                      const REAL *, REAL *, const index_t *, index_t, int);

SPREAD(1, 1) SPREAD(1, 2) SPREAD(2, 1) SPREAD(2, 2) SPREAD(4, 1) SPREAD(4, 2)
#if V4 >= 3
SPREAD(1, 3) SPREAD(2, 3) SPREAD(4, 3)
#endif
#if ROWS == 8
SPREAD(8, 1) SPREAD(8, 2) SPREAD(8, 3)
#endif

/* [log2 positions][vectors - 1] */
static const NAME(spread_function) NAME(spreads)[4][3] = {
#if V4 >= 3
    {NAME(spread_1x1), NAME(spread_1x2), NAME(spread_1x3)},
    {NAME(spread_2x1), NAME(spread_2x2), NAME(spread_2x3)},
    {NAME(spread_4x1), NAME(spread_4x2), NAME(spread_4x3)},
#else
    {NAME(spread_1x1), NAME(spread_1x2)},
    {NAME(spread_2x1), NAME(spread_2x2)},
    {NAME(spread_4x1), NAME(spread_4x2)},
#endif
#if ROWS == 8
    {NAME(spread_8x1), NAME(spread_8x2), NAME(spread_8x3)},
#endif
};

/* All positions of a box for one panel of columns. */
static void NAME(multiply_box)(NAME(walk) *box, index_t wide, const REAL *panel, const index_t *offset,
                               const REAL *source, NAME(product) *list, REAL *result, int accumulate)
{
    const index_t products = NAME(list_products)(box, offset, list), pitch = box->work->layout.cell;
    const index_t step = box->work->piece->axis[2].step * box->work->piece->source_stride[2];
    index_t cell[8], position[8];
    for (NAME(begin_walk)(box); box->left > 0;) {
        const int tall = NAME(tall)(box->left);
        NAME(take)(box, 1 << tall, cell, position);
        const REAL *ahead = source + NAME(next_cell)(box) + (ROWS - 1) * step;
        NAME(spreads)[tall][wide - 1](products, list, source, cell, ahead, panel, result, position, pitch, accumulate);
    }
}

/* All boxes for one panel after the other, which so stays in L2. */
static void NAME(multiply_broadcast)(const work_t *work, const void *panels, const index_t *offset, void *scratch,
                                     void *result, int accumulate)
{
    const axis_t *axis = work->piece->axis;
    const index_t *start = work->block.start, *extent = work->block.extent, rows = work->part.rows;
    const REAL *source = *(const REAL **)scratch, *panel = panels;
    NAME(product) *list = (NAME(product) *)((const REAL **)scratch + 1);
    NAME(walk) box = {.work = work};
    NAME(stretch) *z = &box.axis[0], *y = &box.axis[1], *x = &box.axis[2];
    for (index_t column = 0, wide; column < rows; column += wide * LANES) {
        wide = NAME(panel)(rows - column);
        for (index_t i = 0; i < extent[0]; i += z->count) {
            *z = NAME(find_stretch)(&axis[0], start[0], i, extent[0]);
            for (index_t j = 0; j < extent[1]; j += y->count) {
                *y = NAME(find_stretch)(&axis[1], start[1], j, extent[1]);
                for (index_t k = 0; k < extent[2]; k += x->count) {
                    *x = NAME(find_stretch)(&axis[2], start[2], k, extent[2]);
                    NAME(multiply_box)(&box, wide, panel, offset, source, list, (REAL *)result + column, accumulate);
                }
            }
        }
        panel += NAME(depth)(work) * wide * LANES;
    }
}

/* to[0, n) <- from + bias (+ to) */
static inline void NAME(store_channels)(REAL *to, const REAL *from, const REAL *bias, index_t n, int accumulate)
{
    for (index_t i = 0; i < n; i++) {
        const REAL sum = bias ? from[i] + bias[i] : from[i] + 0;
        to[i] = accumulate ? sum + to[i] : sum;
    }
}

/* Where target's channels lie last in memory, results lie as they do there. */
static void NAME(store_last)(const work_t *work, const REAL *result, const REAL *bias, REAL *target, int accumulate)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const index_t *stride = piece->target_stride, cell = work->layout.cell;
    REAL *to = target + NAME(first)(piece, block) + work->part.row;
    for (index_t s = 0; s < block->samples; s++)
        for (index_t z = 0; z < block->extent[0]; z++)
            for (index_t y = 0; y < block->extent[1]; y++)
                for (index_t x = 0; x < block->extent[2]; x++, result += cell)
                    NAME(store_channels)(to + s * piece->target_batch + z * stride[0] + y * stride[1] + x * stride[2],
                                         result, bias ? bias + work->part.row : bias, work->part.rows, accumulate);
}

/* The results are turned, whole squares, and stored as those of the register tiles. */
static void NAME(store_broadcast)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                                  char *doubtful)
{
    const layout_t *layout = &work->layout;
    const index_t columns = layout->cell, *taps = work->piece->row_taps;
    REAL *turned = (REAL *)result + layout->sums;
    if (work->piece->target_channel == 1 && taps[0] * taps[1] * taps[2] == 1) {
        NAME(store_last)(work, result, bias, target, accumulate);
        return;
    }
    NAME(transpose)(turned, layout->pitch, result, columns, layout->pitch, columns, 0);
    NAME(store)(work, turned, bias, target, accumulate, doubtful);
}
