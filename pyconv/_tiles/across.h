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

/* Lanes of two vectors of segments 2 * half long: the first and the second half of each segment. */
#define SEGMENT(e, half) ((e) / (half) % (2 * (half) > LANES ? 1 : LANES / (2 * (half))) * 2 * (half) + (e) % (half))
#define OF_SECOND(e, half) ((e) < LANES / 2 ? 0 : LANES)
#define FIRST_HALF(e, half) (SEGMENT(e, half) + OF_SECOND(e, half))
#define SECOND_HALF(e, half) (FIRST_HALF(e, half) + (half))
#define OF_16(f, w)                                                                                                   \
    {f(0, w), f(1, w), f(2, w), f(3, w), f(4, w), f(5, w), f(6, w), f(7, w), f(8, w), f(9, w), f(10, w), f(11, w),    \
     f(12, w), f(13, w), f(14, w), f(15, w)}
static const MASK NAME(halves)[4][2][16] = {{OF_16(FIRST_HALF, 1), OF_16(SECOND_HALF, 1)},
                                            {OF_16(FIRST_HALF, 2), OF_16(SECOND_HALF, 2)},
                                            {OF_16(FIRST_HALF, 4), OF_16(SECOND_HALF, 4)},
                                            {OF_16(FIRST_HALF, 8), OF_16(SECOND_HALF, 8)}};
#undef OF_16

#if defined(__GNUC__) && !defined(__clang__)
/* N vectors, of segments 2 << stage long, become half as many: each pair one with the sums of the halves of each segment,
   three instructions. */
static inline __attribute__((always_inline)) void NAME(add_halves)(const int N, const int stage, VECTOR *sum)
{
    const NAME(mask) first = *(const NAME(mask) *)NAME(halves)[stage][0];
    const NAME(mask) second = *(const NAME(mask) *)NAME(halves)[stage][1];
#pragma GCC unroll 12
    for (int i = 0; i < N; i += 2) {
        const VECTOR a = sum[i], b = sum[i + 1 < N ? i + 1 : i];
        sum[i / 2] = __builtin_shuffle(a, b, first) + __builtin_shuffle(a, b, second);
    }
}
#endif

/* to[i] <- the sum of the lanes of sum[i]; more is written, up to whole vectors. */
static inline __attribute__((always_inline)) void NAME(sum_lanes)(const int N, VECTOR *sum, REAL *to)
{
#if defined(__GNUC__) && !defined(__clang__)
#define VECTORS(segment) ((int)((N * (segment) + LANES - 1) / LANES))
    if (LANES >= 16)
        NAME(add_halves)(VECTORS(16), 3, sum);
    if (LANES >= 8)
        NAME(add_halves)(VECTORS(8), 2, sum);
    if (LANES >= 4)
        NAME(add_halves)(VECTORS(4), 1, sum);
    NAME(add_halves)(VECTORS(2), 0, sum);
#pragma GCC unroll 12
    for (int i = 0; i < VECTORS(1); i++)
        STORE(to + i * LANES, sum[i] + (VECTOR){0}); /* a product's underflow to -0 gives +0 */
#undef VECTORS
#else
    for (int i = 0; i < N; i++) {
        to[i] = 0;
        for (int lane = 0; lane < LANES; lane++)
            to[i] += sum[i][lane];
    }
#endif
}

/* A cell lies across two cache lines as a rule, and compilers load it anew for each product if it is not asked to stay. */
#if defined(__GNUC__) && defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v) (void)(v)
#endif

/* R channels of target by P positions stay in registers: a cell is loaded for R products and a weight for P. Of the
   positions n count, the others repeat the last one. */
static inline __attribute__((always_inline)) void NAME(across)(
    const int R, const int P, index_t taps, const NAME(product) *tap, index_t channels, const REAL *source,
    const index_t *cell, index_t ahead, const REAL *panel, index_t n, const index_t *position, REAL *result,
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
        const REAL *weight = panel + tap[k].row * channels * R;
        for (index_t c = 0; c < channels; c += LANES, weight += R * LANES) {
            VECTOR w[8];
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                w[r] = LOAD(weight + r * LANES);
#pragma GCC unroll 8
            for (int i = 0; i < P; i++) {
                VECTOR a = LOAD(from[i] + tap[k].cell + c);
                IN_REGISTER(a);
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

#define AT_ONCE(R) (SUMS / (R) < 8 ? SUMS / (R) : 8) /* positions */
#define ACROSS(R)                                                                                                     \
    static __attribute__((noinline)) void NAME(across_##R)(                                                           \
        index_t taps, const NAME(product) *tap, index_t channels, const REAL *source, const index_t *cell, index_t ahead, \
        const REAL *panel, index_t n, const index_t *position, REAL *result, int accumulate)           \
    {                                                                                                                 \
        NAME(across)(R, AT_ONCE(R), taps, tap, channels, source, cell, ahead, panel, n, position, result,             \
                     accumulate);                                                                                     \
    }
ACROSS(1) ACROSS(2) ACROSS(3) ACROSS(4) ACROSS(5) ACROSS(6) ACROSS(7)
typedef void (*NAME(across_function))(index_t, const NAME(product) *, index_t, const REAL *, const index_t *, index_t,
                                      const REAL *, index_t, const index_t *, REAL *, int);
/* [rows - 1] */
static const NAME(across_function) NAME(acrosses)[7] = {
    NAME(across_1), NAME(across_2), NAME(across_3), NAME(across_4), NAME(across_5), NAME(across_6), NAME(across_7)};

/* All positions of a box, whose taps are listed first. */
static void NAME(multiply_box_across)(NAME(walk) *box, const REAL *panel, const index_t *offset, const REAL *source,
                                      NAME(product) *list, REAL *result, int accumulate)
{
    const work_t *work = box->work;
    const axis_t *axis = work->piece->axis;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const index_t rows = work->part.rows, most = AT_ONCE(rows);
    index_t taps = 0, cell[8], position[8];
    for (index_t tz = z->tap; tz < z->tap + z->taps; tz++)
        for (index_t ty = y->tap; ty < y->tap + y->taps; ty++)
            for (index_t tx = x->tap; tx < x->tap + x->taps; tx++) {
                const index_t k = (tz * axis[1].taps + ty) * axis[2].taps + tx;
                list[taps++] = (NAME(product)){offset[k], (int)k, {0}};
            }
    for (NAME(begin_walk)(box); box->left > 0;) {
        const index_t n = box->left < most ? box->left : most;
        NAME(take)(box, (int)n, cell, position);
        for (index_t i = n; i < most; i++)
            cell[i] = cell[n - 1];
        NAME(acrosses)[rows - 1](taps, list, work->part.channels, source, cell, NAME(next_cell)(box) - cell[0], panel, n, position, result,
                                 accumulate);
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
#undef IN_REGISTER
