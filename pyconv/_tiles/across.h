/* The way of few channels of target where source's lie last in memory: a vector holds channels of source, read from where
   they lie, and results are inner products across them. Nothing is turned, and no product with padding is made. Results
   lie as those of broadcast cells. See body.h for the macros. */

#define SUMS (ROWS == 8 ? 24 : 12) /* that registers hold beside the weights of all rows and a cell */

static void NAME(layout_across)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_broadcast)(work);
    layout->cell = work->part.rows;
    layout->panel = NAME(depth)(work) * layout->cell;
    layout->sums = layout->pitch * layout->cell;
    layout->result = 2 * layout->sums;
}

/* Those of the part's first channel: vectors of the others follow them. */
static void NAME(offsets_across)(const work_t *work, index_t *offset)
{
    const axis_t *axis = work->piece->axis;
    const index_t *stride = work->piece->source_stride;
    for (index_t z = 0; z < axis[0].taps; z++)
        for (index_t y = 0; y < axis[1].taps; y++)
            for (index_t x = 0; x < axis[2].taps; x++)
                *offset++ = z * axis[0].tap_step * stride[0] + y * axis[1].tap_step * stride[1]
                    + x * axis[2].tap_step * stride[2];
}

/* panel[tap][vector of channels][row][lane] */
static void NAME(pack_across)(const work_t *work, const void *weight, void *panel)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t rows = work->part.rows, *stride = piece->weight_stride;
    REAL *to = panel;
    for (index_t z = 0; z < axis[0].taps; z++)
        for (index_t y = 0; y < axis[1].taps; y++)
            for (index_t x = 0; x < axis[2].taps; x++)
                for (index_t c = 0; c < work->part.channels; c += LANES)
                    for (index_t row = 0; row < rows; row++, to += LANES) {
                        const REAL *from = (const REAL *)weight + (work->part.row + row) * piece->weight_row
                            + c * piece->weight_channel + z * stride[0] + y * stride[1] + x * stride[2];
                        for (index_t lane = 0; lane < LANES; lane++)
                            to[lane] = from[lane * piece->weight_channel];
                    }
}

/* R channels of target by P positions stay in registers: a cell is loaded for R products and a weight for P. Of the
   positions n count, the others repeat the last one. ASKS: the next ones' cells are asked for. */
static inline __attribute__((always_inline)) void NAME(across)(
    const int R, const int P, const int ASKS, index_t taps, const NAME(product) *tap, index_t channels,
    const REAL *source, const index_t *cell, index_t ahead, const REAL *panel, index_t n, const index_t *position, REAL *result,
    int accumulate)
{
    VECTOR sum[24];
    const REAL *from[8];
    REAL sums[24 + 16];
#pragma GCC unroll 24
    for (int i = 0; i < R * P; i++)
        sum[i] = (VECTOR){0};
#pragma GCC unroll 8
    for (int i = 0; i < P; i++)
        from[i] = source + cell[i];
    for (index_t k = 0; k < taps; k++) {
        const REAL *weight = panel + tap[k].row / BYTES * channels * R;
        for (index_t c = 0; c < channels; c += LANES, weight += R * LANES) {
            VECTOR w[8];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                w[r] = LOAD(weight + r * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < P; i++) {
                VECTOR a = LOAD(from[i] + tap[k].cell + c);
                IN_REGISTER(a);
                if (ASKS)
                    __builtin_prefetch(from[i] + tap[k].cell + c + ahead);
#pragma GCC unroll 8
                for (int r = 0; r < R; r++)
                    sum[i * R + r] += a * w[r];
            }
        }
    }
    NAME(sum_lanes)(R * P, sum, sums);
    if (n == P && position[P - 1] == position[0] + P - 1 && !accumulate) {
        __builtin_memcpy(result + position[0] * R, sums, P * R * sizeof(REAL));
        return;
    }
    for (int i = 0; i < P && i < n; i++) {
        REAL *to = result + position[i] * R;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
            to[r] = sums[i * R + r] + (accumulate ? to[r] : 0);
    }
}

/* Positions at a time. A lone tap's cells of a few lines are one run, which the processor follows by itself, but not in
   eight steps of their size: 64 channels of 4 bytes took twice as long in those. */
#define AT_ONCE(R) (SUMS / (R) < 8 ? SUMS / (R) : 8)
#define IN_RUNS(R) (SUMS / (R) < 4 ? SUMS / (R) : 4)
#define RUN_CELL 256 /* bytes of such a cell at most */
#define ACROSS(R, NAME_OF, P, ASKS)                                                                                   \
    static __attribute__((noinline)) void NAME(NAME_OF##_##R)(                                                         \
        index_t taps, const NAME(product) *tap, index_t channels, const REAL *source, const index_t *cell,            \
        index_t ahead, const REAL *panel, index_t n, const index_t *position, REAL *result, int accumulate)           \
    {                                                                                                                 \
        NAME(across)(R, P(R), ASKS, taps, tap, channels, source, cell, ahead, panel, n, position, result,            \
                     accumulate);                                                                                     \
    }
#define WIDTHS(R) ACROSS(R, across, AT_ONCE, 1) ACROSS(R, across_run, IN_RUNS, 0)
WIDTHS(1) WIDTHS(2) WIDTHS(3)
#if ROWS == 8
WIDTHS(4) WIDTHS(5) WIDTHS(6) WIDTHS(7)
#endif
#undef WIDTHS
#undef ACROSS
typedef void (*NAME(across_function))(index_t, const NAME(product) *, index_t, const REAL *, const index_t *, index_t,
                                      const REAL *, index_t, const index_t *, REAL *, int);
/* [in runs][rows - 1] */
static const NAME(across_function) NAME(acrosses)[2][7] = {
#if ROWS == 8
    {NAME(across_1), NAME(across_2), NAME(across_3), NAME(across_4), NAME(across_5), NAME(across_6), NAME(across_7)},
    {NAME(across_run_1), NAME(across_run_2), NAME(across_run_3), NAME(across_run_4), NAME(across_run_5),
     NAME(across_run_6), NAME(across_run_7)}
#else /* half a vector has fewer than four */
    {NAME(across_1), NAME(across_2), NAME(across_3)}, {NAME(across_run_1), NAME(across_run_2), NAME(across_run_3)}
#endif
};

/* All positions of a box, whose taps are listed first. */
static void NAME(multiply_box_across)(NAME(walk) *box, const REAL *panel, const index_t *offset, const REAL *source,
                                      NAME(product) *list, REAL *result, int accumulate)
{
    const work_t *work = box->work;
    const axis_t *axis = work->piece->axis;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const index_t rows = work->part.rows, step = work->piece->axis[2].step * work->piece->source_stride[2];
    const int in_runs = NAME(all_taps)(work->piece) == 1 && step * (index_t)sizeof(REAL) <= RUN_CELL;
    const index_t most = in_runs ? IN_RUNS(rows) : AT_ONCE(rows);
    index_t taps = 0, cell[8], position[8];
    for (index_t tz = z->tap; tz < z->tap + z->taps; tz++)
        for (index_t ty = y->tap; ty < y->tap + y->taps; ty++)
            for (index_t tx = x->tap; tx < x->tap + x->taps; tx++) {
                const index_t k = (tz * axis[1].taps + ty) * axis[2].taps + tx;
                list[taps++] = (NAME(product)){offset[k], ROW_AT(k), {0}};
            }
    for (NAME(begin_walk)(box); box->left > 0;) {
        const index_t n = box->left < most ? box->left : most;
        NAME(take)(box, (int)n, cell, position);
        for (index_t i = n; i < most; i++)
            cell[i] = cell[n - 1];
        NAME(acrosses)[in_runs][rows - 1](taps, list, work->part.channels, source, cell, NAME(next_cell)(box) - cell[0],
                                          panel, n, position, result, accumulate);
    }
}

static void NAME(multiply_across)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                  void *result, int accumulate)
{
    const REAL *source = *(const REAL **)scratch;
    NAME(walk) box = {.work = work};
    while (NAME(next_box)(&box))
        NAME(multiply_box_across)(&box, panel, offset, source, (NAME(product) *)((const REAL **)scratch + 1), result,
                                  accumulate);
}

/* target <- results + bias (+ target), R side by side in both. */
static inline __attribute__((always_inline)) void NAME(store_few)(const int R, const work_t *work, const REAL *result,
                                                                  const REAL *bias, REAL *target, int accumulate)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const index_t *stride = piece->target_stride;
    REAL more[8];
    for (int r = 0; r < R; r++)
        more[r] = bias ? bias[work->part.row + r] : 0;
    for (index_t s = 0; s < block->samples; s++)
        for (index_t z = 0; z < block->extent[0]; z++)
            for (index_t y = 0; y < block->extent[1]; y++) {
                REAL *to = target + NAME(first)(piece, block) + work->part.row + s * piece->target_batch + z * stride[0]
                    + y * stride[1];
                for (index_t x = 0; x < block->extent[2]; x++, to += stride[2], result += R)
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++)
                        to[r] = accumulate ? result[r] + more[r] + to[r] : result[r] + more[r];
            }
}

static void NAME(store_across)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                               char *doubtful)
{
    if (work->piece->target_channel != 1) {
        NAME(store_broadcast)(work, result, bias, target, accumulate, doubtful);
        return;
    }
#define CASE(R)                                                                                                       \
    case R:                                                                                                           \
        NAME(store_few)(R, work, result, bias, target, accumulate);                                                   \
        break;
    switch (work->part.rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
    }
#undef CASE
}
#undef SUMS
