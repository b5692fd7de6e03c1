/* grad_weight of few channels in many groups, a lane for a group: with the cells of direct.h, and grad_output turned to
   lanes as they are. See body.h for the macros. */

#define TAPS_AT_ONCE 9 /* that stay in registers */
#define STRIP 256      /* positions of a row that are summed there */

static void NAME(layout_direct_turned)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_direct)(work);
    layout->panel = work->part.rows * layout->pitch;
    layout->result = layout->sums = work->part.rows * NAME(depth)(work) * LANES;
}

/* turned[row][position][lane] <- target */
static void NAME(turn_direct)(const work_t *work, const void *target, void *turned)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    const NAME(runs) r = NAME(dense_runs)(work);
    REAL *to = turned;
    for (index_t row = part->row; row < part->row + part->rows; row++)
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++, to += r.run * LANES) {
                    const REAL *from = (const REAL *)target + row * piece->target_channel + NAME(first)(piece, block)
                        + s * piece->target_batch + z * piece->target_stride[0] + y * piece->target_stride[1];
                    /* the last cells of the last plane: nothing may be read behind them */
                    const REAL *limit = from + (part->groups - 1) * piece->target_group + r.run;
                    if (piece->target_stride[2] == 1)
                        NAME(gather_lanes)(from, piece->target_group, part->groups, r.run, limit, to, r.run, 0);
                    else
                        NAME(gather_apart)(from, piece->target_stride[2], piece->target_group, part->groups, r.run,
                                           to);
                }
}

/* N taps of one output channel stay in registers while a strip of a row of positions runs; strips are summed apart, so
   that rounding errors grow with one and with their number, not with the product. */
static inline __attribute__((always_inline)) void NAME(sum_taps)(const int N, index_t n, const index_t *offset,
                                                                 const REAL *cells, index_t step, const REAL *turned,
                                                                 REAL *result)
{
    VECTOR sum[TAPS_AT_ONCE];
#pragma GCC unroll 9
    for (int i = 0; i < N; i++)
        sum[i] = (VECTOR){0};
    for (index_t q = 0; q < n; q++, cells += step) {
        const VECTOR y = LOAD(turned + q * LANES);
#pragma GCC unroll 9
        for (int i = 0; i < N; i++)
            sum[i] += y * LOAD(cells + offset[i]);
    }
#pragma GCC unroll 9
    for (int i = 0; i < N; i++)
        STORE(result + i * LANES, LOAD(result + i * LANES) + sum[i]);
}

static void NAME(sum_taps_row)(index_t depth, index_t n, const index_t *offset, const REAL *cells, index_t step,
                               const REAL *turned, REAL *result)
{
    for (index_t k = 0, wide; k < depth; k += wide) {
        const index_t left = depth - k;
        wide = left <= TAPS_AT_ONCE ? left : left < 2 * TAPS_AT_ONCE ? (left + 1) / 2 : TAPS_AT_ONCE;
        switch (wide) {
#define CASE(N)                                                                                                       \
    case N:                                                                                                           \
        NAME(sum_taps)(N, n, offset + k, cells, step, turned, result + k * LANES);                                    \
        break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9)
#undef CASE
        }
    }
}

#if ROWS == 8
/* The same of N taps side by side and positions a cell apart, of which fours share the columns that they read. */
#define SUM_SHARED(N)                                                                                                 \
    static void NAME(sum_shared_##N)(index_t n, const REAL *cells, const REAL *turned, REAL *result)                  \
    {                                                                                                                 \
        VECTOR sum[N] = {{0}};                                                                                        \
        index_t q = 0;                                                                                                \
        for (; q + 4 <= n; q += 4)                                                                                    \
            SOME_POSITIONS(4, N);                                                                                     \
        for (; q < n; q++)                                                                                            \
            SOME_POSITIONS(1, N);                                                                                     \
        _Pragma("GCC unroll 8")                                                                                       \
        for (int i = 0; i < N; i++)                                                                                   \
            STORE(result + i * LANES, LOAD(result + i * LANES) + sum[i]);                                             \
    }
#define SOME_POSITIONS(K, N)                                                                                          \
    do {                                                                                                              \
        VECTOR y[K];                                                                                                  \
        _Pragma("GCC unroll 4")                                                                                       \
        for (int i = 0; i < K; i++)                                                                                   \
            y[i] = LOAD(turned + (q + i) * LANES);                                                                    \
        NAME(share_columns)(N, K, 1, 0, NULL, y, cells + q * LANES, LANES, sum);                                      \
    } while (0)
SUM_SHARED(4) SUM_SHARED(5) SUM_SHARED(6) SUM_SHARED(7) SUM_SHARED(8)
#undef SUM_SHARED
#undef SOME_POSITIONS

typedef void (*NAME(sum_shared_function))(index_t, const REAL *, const REAL *, REAL *);
static const NAME(sum_shared_function) NAME(sums_shared)[] = { /* of 4 taps on */
    NAME(sum_shared_4), NAME(sum_shared_5), NAME(sum_shared_6), NAME(sum_shared_7), NAME(sum_shared_8)};
#endif

/* Whether the taps of a row are done by themselves: fewer leave too few sums in registers. */
static inline int NAME(is_wide_weight)(const axis_t *x)
{
    return x->taps >= (ROWS == 8 ? 6 : MANY_ALONG) && x->step == 1 && x->tap_step == 1;
}

/* Whole rows of taps, `depth` in all, one by one, over those of n positions from `start` on that have a cell under some
   tap. */
static void NAME(sum_wide_rows)(const work_t *work, index_t start, index_t n, index_t depth, const index_t *offset,
                                const REAL *cells, const REAL *turned, REAL *result)
{
    const axis_t *x = &work->piece->axis[2];
    index_t there[2];
    NAME(columns_there)(work, there);
    for (index_t row = 0; row < depth; row += x->taps)
        for (index_t t = 0, wide; t < x->taps; t += wide) {
            wide = NAME(in_registers)(x->taps - t);
            const index_t k = row + t, behind = there[1] - start - t, before = there[0] - start - t - wide + 1;
            const index_t low = before < 0 ? 0 : before, count = (behind < n ? behind : n) - low;
            if (count <= 0)
                continue;
#if ROWS == 8
            NAME(sums_shared)[wide - 4](count, cells + offset[k] + low * LANES, turned + low * LANES,
                                        result + k * LANES);
#else
            NAME(sum_taps_row)(wide, count, offset + k, cells + low * LANES, LANES, turned + low * LANES,
                               result + k * LANES);
#endif
        }
}

/* Taps [first, end) of n positions of row y from `start` on, where `cells` and `turned` begin. Where a channel has
   one plane of more taps than registers hold, rows of them that lie in the padding are left out. */
static inline __attribute__((always_inline)) void NAME(sum_strip)(
    const work_t *work, index_t y, index_t start, index_t n, index_t first, index_t end, const index_t *offset,
    const REAL *cells, const REAL *turned, REAL *result)
{
    const axis_t *axis = work->piece->axis, *x = &axis[2];
    if (NAME(has_one_plane)(work) && NAME(depth)(work) > TAPS_AT_ONCE) {
        index_t tap, taps;
        NAME(taps_of)(&axis[1], work->block.start[1] + y, &tap, &taps);
        first = first > tap * x->taps ? first : tap * x->taps;
        end = end < (tap + taps) * x->taps ? end : (tap + taps) * x->taps;
    }
    if (first >= end)
        return;
    if (NAME(is_wide_weight)(x))
        NAME(sum_wide_rows)(work, start, n, end - first, offset + first, cells, turned, result + first * LANES);
    else
        NAME(sum_taps_row)(end - first, n, offset + first, cells, x->step * LANES, turned, result + first * LANES);
}

/* result[row][k][lane] (+)= the products of a block: of several output channels a few taps at a time, whose cells stay in
   L1 for all of them. */
static void NAME(correlate_direct)(const work_t *work, const void *turned, const index_t *offset, void *scratch,
                                   void *result, int accumulate)
{
    const axis_t *axis = work->piece->axis;
    const index_t *extent = work->block.extent, rows = work->part.rows, depth = NAME(depth)(work);
    const index_t few = NAME(is_wide_weight)(&axis[2]) ? axis[2].taps : TAPS_AT_ONCE, at_once = rows > 1 ? few : depth;
    const layout_t *layout = &work->layout;
    if (!accumulate)
        NAME(zero)(layout->sums, result);
    for (index_t k = 0; k < depth; k += at_once) {
        const index_t end = depth - k < at_once ? depth : k + at_once;
        const REAL *from = turned;
        for (index_t s = 0; s < work->block.samples; s++)
            for (index_t z = 0; z < extent[0]; z++)
                for (index_t y = 0; y < extent[1]; y++, from += extent[2] * LANES) {
                    const REAL *cells = (const REAL *)scratch + s * layout->batch
                        + z * axis[0].step * layout->axis[0] + y * axis[1].step * layout->axis[1];
                    for (index_t x = 0, n; x < extent[2]; x += n) {
                        n = extent[2] - x < STRIP ? extent[2] - x : STRIP;
                        for (index_t row = 0; row < rows; row++)
                            NAME(sum_strip)(work, y, x, n, k, end, offset, cells + x * axis[2].step * LANES,
                                            from + row * layout->pitch + x * LANES,
                                            (REAL *)result + row * depth * LANES);
                    }
                }
    }
}

static void NAME(store_weight_direct)(const work_t *work, void *result, const void *bias, void *weight, int accumulate,
                                      char *doubtful)
{
    (void)doubtful;
    const piece_t *piece = work->piece;
    const part_t *part = &work->part;
    const axis_t *axis = piece->axis;
    const REAL *from = result;
    (void)bias;
    for (index_t row = part->row; row < part->row + part->rows; row++)
        for (index_t c = 0; c < part->channels; c++)
            for (index_t z = 0; z < axis[0].taps; z++)
                for (index_t y = 0; y < axis[1].taps; y++)
                    for (index_t x = 0; x < axis[2].taps; x++, from += LANES)
                        for (index_t lane = 0; lane < part->groups; lane++) {
                            REAL *at = (REAL *)weight + lane * piece->weight_group + row * piece->weight_row
                                + c * piece->weight_channel + z * piece->weight_stride[0]
                                + y * piece->weight_stride[1] + x * piece->weight_stride[2];
                            *at = accumulate ? *at + from[lane] : from[lane];
                        }
}
