/* The way that unrolls nothing: a vector holds channels of target, and each cell of source is broadcast from where it
   lies. Any stride and dilation reads alike, and no product with padding is made: positions that have the same taps
   are done together, box by box. See body.h for the macros. */

static void NAME(layout_broadcast)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    layout->cell = NAME(columns)(work);
    layout->scratch = (sizeof(REAL *) + NAME(depth)(work) * sizeof(NAME(product))) / sizeof(REAL);
    layout->panel = NAME(panel_rows)(work) * layout->cell;
    if (STARTS) { /* what sums begin with, and what makes that up, of each tap */
        layout->scratch += layout->cell;
        layout->panel += NAME(all_taps)(work->piece) * layout->cell;
    }
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

/* R positions by V vectors of channels stay in registers, as in `tile`: with 8 x 3 the products of one cell and tap are
   24 for 3 vectors of weights, which come from L2, and 8 broadcasts. Cells are asked for a tile ahead, results, which may
   be target's own, two: of few channels a tile takes less time than memory.
   WOVEN: the vector of channels is that of several groups, and each lane has the cell of its own group: one of the
   lanes that lie there, counted from the `first` of the group. See cells.h for what sums begin with. */
static inline __attribute__((always_inline)) void NAME(spread)(
    const int R, const int V, const int WOVEN, index_t products, const NAME(product) *product, const REAL *source,
    const index_t *cell, const REAL *ahead, const MASK *first, const REAL *start, const REAL *panel, REAL *result,
    const index_t *position, index_t pitch, int accumulate)
{
    VECTOR sum[24];
    const REAL *from[8];
#pragma GCC unroll 24
    for (int i = 0; i < R * V; i++) {
        sum[i] = STARTS ? LOAD(start + i % V * LANES) : (VECTOR){0};
        __builtin_prefetch(result + (position[i / V] + 2 * R) * pitch + i % V * LANES, 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        from[i] = source + cell[i];
    IN_TWOS
    for (index_t k = 0; k < products; k++) {
        const REAL *row = NAME(weights_of)(&product[k], panel, V);
        if (WOVEN) {
            const NAME(mask) lanes = *(const NAME(mask) *)first + product[k].channel;
#pragma GCC unroll 8
            for (int i = 0; i < R; i++)
                sum[i] += NAME(pick)(LOAD(from[i] + product[k].cell), lanes) * LOAD(row);
            continue;
        }
        if (R >= ROWS && CELL != 2) /* cells of two are in a patch, and so near */
            __builtin_prefetch(ahead + product[k].ahead);
        NAME(add_products)(R, V, sum, from, product[k].cell, row);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        NAME(store_sums)(V, sum + i * V, result + position[i] * pitch, accumulate);
}

#define SPREAD_AS(NAMED, R, V, WOVEN)                                                                                 \
    static __attribute__((noinline)) void NAMED(                                                                      \
        index_t products, const NAME(product) *product, const REAL *source, const index_t *cell, const REAL *ahead,   \
        const MASK *first, const REAL *start, const REAL *panel, REAL *result, const index_t *position,               \
        index_t pitch, int accumulate)                                                                                \
    {                                                                                                                 \
        NAME(spread)(R, V, WOVEN, products, product, source, cell, ahead, first, start, panel, result, position,      \
                     pitch, accumulate);                                                                              \
    }
#define SPREAD(R, V) SPREAD_AS(NAME(spread_##R##x##V), R, V, 0)
#define SPREAD_WOVEN(R) SPREAD_AS(NAME(spread_woven_##R), R, 1, 1)
typedef void (*NAME(spread_function))(index_t, const NAME(product) *, const REAL *, const index_t *, const REAL *,
                                      const MASK *, const REAL *, const REAL *, REAL *, const index_t *, index_t,
                                      int);

SPREAD_WOVEN(1) SPREAD_WOVEN(2) SPREAD_WOVEN(3) SPREAD_WOVEN(4)
SPREAD(1, 1) SPREAD(1, 2) SPREAD(2, 1) SPREAD(2, 2) SPREAD(3, 1) SPREAD(3, 2) SPREAD(4, 1) SPREAD(4, 2)
#if V4 >= 3
SPREAD(1, 3) SPREAD(2, 3) SPREAD(3, 3) SPREAD(4, 3)
#endif
#if ROWS == 8
SPREAD_WOVEN(8) SPREAD(8, 1) SPREAD(8, 2) SPREAD(8, 3)
#elif TALLER
SPREAD(8, 1) SPREAD(6, 2)
#endif

/* [positions][vectors - 1] */
static const NAME(spread_function) NAME(spreads)[TALLEST + 1][3] = {
#if V4 >= 3
    [1] = {NAME(spread_1x1), NAME(spread_1x2), NAME(spread_1x3)},
    [2] = {NAME(spread_2x1), NAME(spread_2x2), NAME(spread_2x3)},
    [3] = {NAME(spread_3x1), NAME(spread_3x2), NAME(spread_3x3)},
    [4] = {NAME(spread_4x1), NAME(spread_4x2), NAME(spread_4x3)},
#else
    [1] = {NAME(spread_1x1), NAME(spread_1x2)},
    [2] = {NAME(spread_2x1), NAME(spread_2x2)},
    [3] = {NAME(spread_3x1), NAME(spread_3x2)},
    [4] = {NAME(spread_4x1), NAME(spread_4x2)},
#endif
#if ROWS == 8
    [8] = {NAME(spread_8x1), NAME(spread_8x2), NAME(spread_8x3)},
#elif TALLER
    [6] = {[1] = NAME(spread_6x2)},
    [8] = {NAME(spread_8x1)},
#endif
};
/* [positions] */
static const NAME(spread_function) NAME(spreads_woven)[ROWS + 1] = {
    [1] = NAME(spread_woven_1), [2] = NAME(spread_woven_2), [3] = NAME(spread_woven_3), [4] = NAME(spread_woven_4),
#if ROWS == 8
    [8] = NAME(spread_woven_8),
#endif
};

#define LONGEST (ROWS == 8 ? 14 : 10) /* positions of a row that are done together */

/* N positions side by side by one vector of channels, T taps side by side, positions' cells S apart in units of taps':
   a cell is broadcast once for all positions that have it. Loads, which bind a lone vector, are S (N - 1) + 2 T for T N
   products. Sums are those of `spread`. */
static inline __attribute__((always_inline)) void NAME(spread_row)(
    const int N, const int T, const int S, const int WOVEN, index_t products, const NAME(product) *product,
    const REAL *cell, index_t step, index_t ahead, const MASK *first, const REAL *start, const REAL *panel,
    REAL *result, index_t pitch, int accumulate)
{
    VECTOR sum[LONGEST], weight[5];
#pragma GCC unroll 16
    for (int i = 0; i < N; i++) {
        sum[i] = STARTS ? LOAD(start) : (VECTOR){0};
        __builtin_prefetch(result + i * pitch, 1);
    }
    for (index_t k = 0, fetched = 0; k < products; k += T) {
        const REAL *at = cell + product[k].cell, *rows = NAME(weights_of)(&product[k], panel, 1);
#pragma GCC unroll 5
        for (int t = 0; t < T; t++)
            weight[t] = LOAD(rows + t * LANES);
        NAME(mask) lanes = {0};
        if (WOVEN)
            lanes = *(const NAME(mask) *)first + product[k].channel;
        __builtin_prefetch(at + ahead + fetched * step);
        __builtin_prefetch(at + ahead + (fetched + 1) * step);
        fetched = fetched < S * (N - 1) + T - 2 ? fetched + 2 : 0;
#pragma GCC unroll 32
        for (int j = 0; j < S * (N - 1) + T; j++) {
            VECTOR a;
            if (WOVEN)
                a = NAME(pick)(LOAD(at + j * step), lanes);
            else
                a = at[j * step] - (VECTOR){0};
#pragma GCC unroll 5
            for (int t = 0; t < T; t++)
                if (j >= t && (j - t) % S == 0 && (j - t) / S < N)
                    ADD_PRODUCT(sum[(j - t) / S], a, weight[t]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; i++)
        NAME(store_sums)(1, &sum[i], result + i * pitch, accumulate);
}

/* Rows of a box in parts as even as they can be. Where taps go backwards, so do positions. */
#define SPREAD_ROWS(NAMED, T, S, WOVEN)                                                                               \
    static void NAMED(NAME(walk) *box, index_t products, const NAME(product) *list, const REAL *source,               \
                      const MASK *first, const REAL *start, const REAL *panel, REAL *result, int accumulate)          \
    {                                                                                                                 \
        const axis_t *x = &box->work->piece->axis[2];                                                                 \
        const index_t n = box->axis[2].count, parts = (n + LONGEST - 1) / LONGEST, cell = box->work->layout.cell;     \
        const index_t step = x->tap_step * box->work->piece->source_stride[2], pitch = x->tap_step < 0 ? -cell : cell; \
        for (NAME(begin_walk)(box); box->left > 0;)                                                                   \
            for (index_t part = 0; part < parts; part++) {                                                            \
                const index_t here = n * (part + 1) / parts - n * part / parts;                                       \
                const index_t last = x->tap_step < 0 ? here - 1 : 0;                                                  \
                const index_t begin = NAME(next_cell)(box);                                                           \
                const REAL *from = source + begin - last * S * step;                                                  \
                REAL *to = result + (NAME(next_position)(box) + last) * cell;                                         \
                NAME(go_on)(box, here);                                                                               \
                const index_t ahead = NAME(next_cell)(box) - begin;                                                   \
                switch (here) {                                                                                       \
                    CASE(5, T, S, WOVEN) CASE(6, T, S, WOVEN) CASE(7, T, S, WOVEN) CASE(8, T, S, WOVEN)               \
                    CASE(9, T, S, WOVEN) CASE(10, T, S, WOVEN) MORE_CASES(T, S, WOVEN)                                \
                }                                                                                                     \
            }                                                                                                         \
    }
#define CASE(N, T, S, WOVEN)                                                                                          \
    case N:                                                                                                           \
        NAME(spread_row)(N, T, S, WOVEN, products, list, from, step, ahead, first, start, panel, to, pitch,           \
                         accumulate);                                                                                 \
        break;
#if LONGEST > 10
#define MORE_CASES(T, S, WOVEN)                                                                                       \
    CASE(11, T, S, WOVEN) CASE(12, T, S, WOVEN) CASE(13, T, S, WOVEN) CASE(14, T, S, WOVEN)
#else
#define MORE_CASES(T, S, WOVEN)
#endif
#define KERNEL(T, S)                                                                                                  \
    SPREAD_ROWS(NAME(spread_rows_##T##x##S), T, S, 0) SPREAD_ROWS(NAME(spread_rows_woven_##T##x##S), T, S, 1)
SHARED_CELLS(KERNEL)
#undef KERNEL
#undef SPREAD_ROWS
#undef CASE
#undef MORE_CASES

typedef void (*NAME(rows_function))(NAME(walk) *, index_t, const NAME(product) *, const REAL *, const MASK *,
                                    const REAL *, const REAL *, REAL *, int);
/* [whether groups are woven][which] */
#define KERNEL(T, S) NAME(spread_rows_##T##x##S),
#define WOVEN_KERNEL(T, S) NAME(spread_rows_woven_##T##x##S),
static const NAME(rows_function) NAME(spread_rows)[2][4] = {{SHARED_CELLS(KERNEL)}, {SHARED_CELLS(WOVEN_KERNEL)}};
#undef KERNEL
#undef WOVEN_KERNEL

/* The panel behind one in memory, which is wanted next, and how much of it is asked for. */
typedef struct {
    const char *panel;
    index_t size, asked, positions, done;
} NAME(next);

/* Ask for the next panel while n more of the positions are done: it may come from beyond L2, all of it at once. */
static inline void NAME(ask)(NAME(next) *next, index_t n)
{
    next->done += n;
    for (const index_t most = next->size * next->done / next->positions; next->asked < most; next->asked += 64)
        __builtin_prefetch(next->panel + next->asked, 0, 2);
}

#define TOGETHER 12 /* positions of tiles of four, six and eight that meet a panel one after the other */
#define PANELS_AT_ONCE (1 << 17) /* bytes of panels that a tile of positions meets before the next one: part of L2 */

/* Panels of columns that follow each other, from one column to another; the last one may be narrower. Behind all there
   is what cells of four channels have of each tap. */
typedef struct {
    index_t column, end;
    const REAL *panel, *of_taps;
} NAME(panels);

/* How many of the next positions meet each panel in turn: a tile's, or where the first of the panels is as wide as any
   several tiles', which take its weights from L2 once and leave narrower panels as many as their tiles are high. */
static inline index_t NAME(at_once)(index_t left, index_t vectors, int woven)
{
    if (TALLER && !woven && vectors == V4)
        return left < TOGETHER ? left : TOGETHER;
    return woven ? NAME(tall)(left) : NAME(taller)(left, vectors);
}

/* All positions of a box, some of them for each of some panels. */
static void NAME(multiply_box)(NAME(walk) *box, const NAME(panels) *panels, const index_t *offset, const REAL *source,
                               NAME(product) *list, REAL *result, int accumulate, NAME(next) *next)
{
    const work_t *work = box->work;
    const piece_t *piece = work->piece;
    const index_t products = NAME(list_products)(box, offset, list), pitch = work->layout.cell;
    const index_t depth = NAME(depth)(work), panel_rows = NAME(panel_rows)(work);
    const index_t before = work->part.channels * piece->panel_before;
    const int shared = NAME(shared_cells)(piece, box->axis[2].taps), woven = piece->woven > 0;
    const MASK *first = NAME(first_lanes)[piece->woven == 8 ? 3 : piece->woven / 2];
    index_t cell[TOGETHER], position[TOGETHER];
    REAL *start = NULL;
#if STARTS
    start = (REAL *)(list + depth);
    NAME(list_starts)(work, list, products, panels->of_taps, panels->column, panels->end, start);
#endif
    if (shared && box->axis[2].count > LONGEST / 2) {
        NAME(spread_rows)[woven][shared - 1](box, products, list, source, first, start, panels->panel + before * LANES,
                                             result, accumulate);
        return;
    }
    for (NAME(begin_walk)(box); box->left > 0;) {
        const index_t n = NAME(at_once)(box->left, NAME(panel)(work->part.rows - panels->column), woven);
        const REAL *panel = panels->panel;
        NAME(take)(box, (int)n, cell, position);
        if (panel_rows == depth) /* of several phases' rows, most are not this one's */
            NAME(ask)(next, n);
        for (index_t column = panels->column, wide; column < panels->end; column += wide) {
            const index_t vectors = NAME(panel)(work->part.rows - column);
            wide = vectors * LANES;
            for (index_t i = 0, high; i < n; i += high) {
                high = woven ? n : NAME(taller)(n - i, vectors);
                (woven ? NAME(spreads_woven)[high] : NAME(spreads)[high][vectors - 1])(
                    products, list, source, cell + i, source + (i + high < n ? cell[i + high] : NAME(next_cell)(box)),
                    first, start ? start + column : NULL, panel + before * wide, result + column, position + i, pitch,
                    accumulate);
            }
            panel += panel_rows * wide;
        }
    }
}

/* A block's positions under one tap after the other: where each box has a few positions, it would read all weights of its
   taps for these. Sums are kept in the result from tap to tap. */
static void NAME(multiply_taps)(const work_t *work, const NAME(panels) *panels, const index_t *offset, const REAL *source,
                                NAME(product) *list, REAL *result, int accumulate, NAME(next) *next)
{
    const axis_t *axis = work->piece->axis;
    NAME(walk) box = {.work = work};
    index_t tap[3];
    for (int a = 0; a < 3; a++)
        box.axis[a].count = work->block.extent[a];
    for (NAME(begin_walk)(&box); box.left > 0 && !accumulate; NAME(go_on)(&box, 1))
        NAME(zero)(panels->end - panels->column, result + NAME(next_position)(&box) * work->layout.cell + panels->column);
    for (tap[0] = 0; tap[0] < axis[0].taps; tap[0]++)
        for (tap[1] = 0; tap[1] < axis[1].taps; tap[1]++)
            for (tap[2] = 0; tap[2] < axis[2].taps; tap[2]++) {
                int met = 1;
                for (int a = 0; a < 3; a++) {
                    const NAME(reached) r = NAME(find_reached)(work, a, tap[a]);
                    met &= r.low < r.high;
                    box.axis[a] = (NAME(stretch)){r.low, r.high - r.low, tap[a], 1};
                }
                if (met)
                    NAME(multiply_box)(&box, panels, offset, source, list, result, 1, next);
            }
}

/* All boxes for some panels after the other, which so stay in L2. */
static void NAME(multiply_broadcast)(const work_t *work, const void *packed, const index_t *offset, void *scratch,
                                     void *result, int accumulate)
{
    const index_t *extent = work->block.extent, rows = work->part.rows;
    const index_t row = NAME(depth)(work) * (index_t)sizeof(REAL);
    const REAL *source = *(const REAL **)scratch;
    NAME(product) *list = (NAME(product) *)((const REAL **)scratch + 1);
    const index_t positions = work->block.samples * extent[0] * extent[1] * extent[2];
    const index_t panel_rows = NAME(panel_rows)(work);
    NAME(panels) panels = {0, 0, packed, (const REAL *)packed + panel_rows * NAME(columns)(work)};
    for (; panels.column < rows; panels.column = panels.end) {
        const index_t column = panels.column;
        do
            panels.end += NAME(panel)(rows - panels.end) * LANES;
        while (panels.end < rows && (panels.end - panels.column) * row < PANELS_AT_ONCE);
        const index_t size = (panels.end - panels.column) * row;
        NAME(next) next = {(const char *)panels.panel + size, size, 0, positions, 0};
        NAME(walk) box = {.work = work};
        if (work->piece->by_taps) {
            next.positions *= NAME(all_taps)(work->piece);
            NAME(multiply_taps)(work, &panels, offset, source, list, result, accumulate, &next);
        } else
            while (NAME(next_box)(&box))
                NAME(multiply_box)(&box, &panels, offset, source, list, result, accumulate, &next);
        panels.panel += (panels.end - column) * panel_rows;
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

/* Where target's channels lie last in memory, results lie as they do there. The next row is asked for: where other tasks
   have most of a cell's channels, the hardware does not follow. */
static void NAME(store_last)(const work_t *work, const REAL *result, const REAL *bias, REAL *target, int accumulate)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const index_t *stride = piece->target_stride, cell = work->layout.cell;
    const index_t rows = work->part.rows;
    target += NAME(first)(piece, block) + work->part.row;
    for (index_t s = 0; s < block->samples; s++)
        for (index_t z = 0; z < block->extent[0]; z++)
            for (index_t y = 0; y < block->extent[1]; y++)
                for (index_t x = 0; x < block->extent[2]; x++, result += cell) {
                    REAL *to = target + s * piece->target_batch + z * stride[0] + y * stride[1] + x * stride[2];
                    for (index_t i = 0; i < rows; i += OF_LINE)
                        __builtin_prefetch(to + stride[1] + i, 1);
                    NAME(store_channels)(to, result, bias ? bias + work->part.row : bias, rows, accumulate);
                }
}

/* The same where rows are the taps of channels, each at a cell of its own. */
static void NAME(store_taps_last)(const work_t *work, REAL *result, const REAL *bias, REAL *target, int accumulate)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const index_t *stride = piece->target_stride, rows = work->part.rows;
    index_t *place = (index_t *)(result + work->layout.sums); /* of each row */
    REAL *more = (REAL *)(place + rows);
    for (index_t i = 0, channel; i < rows; i++) {
        place[i] = NAME(row_at)(piece, work->part.row + i, &channel);
        more[i] = bias ? bias[channel] : 0;
    }
    for (index_t s = 0; s < block->samples; s++)
        for (index_t z = 0; z < block->extent[0]; z++)
            for (index_t y = 0; y < block->extent[1]; y++)
                for (index_t x = 0; x < block->extent[2]; x++, result += work->layout.cell) {
                    REAL *to = target + NAME(first)(piece, block) + s * piece->target_batch + z * stride[0]
                        + y * stride[1] + x * stride[2];
                    for (index_t i = 0; i < rows; i++)
                        to[place[i]] = accumulate ? result[i] + more[i] + to[place[i]] : result[i] + more[i];
                }
}

/* The results are turned, whole squares, and stored as those of the register tiles. */
static void NAME(store_broadcast)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                                  char *doubtful)
{
    const layout_t *layout = &work->layout;
    const index_t columns = layout->cell, *taps = work->piece->row_taps;
    REAL *turned = (REAL *)result + layout->sums;
    if (work->piece->target_channel == 1) {
        if (taps[0] * taps[1] * taps[2] == 1)
            NAME(store_last)(work, result, bias, target, accumulate);
        else
            NAME(store_taps_last)(work, result, bias, target, accumulate);
        return;
    }
    NAME(transpose)(turned, layout->pitch, result, columns, layout->pitch, columns, 0);
    NAME(store)(work, turned, bias, target, accumulate, doubtful);
}
