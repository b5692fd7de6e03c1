/* The way of a dense layer for a few samples, each of which meets all of the weight: it is read where it lies, once for
   four of them, for the others from a nearer cache. Sums are those of register tiles, channel after channel of a block
   and then block after block. Results lie sample by sample. See body.h for the macros. */

/* Scratch and panel are a pointer each: to source and to the weight. Behind the results are those of one block. */
static void NAME(layout_dense)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    layout->pitch = NAME(up)(work->part.rows);
    layout->scratch = layout->panel = (index_t)((sizeof(REAL *) + sizeof(REAL) - 1) / sizeof(REAL));
    layout->sums = layout->positions * layout->pitch;
    layout->result = 2 * layout->sums;
}

/* sum[sample] += products of weight `k` of each row of a vector. */
static inline __attribute__((always_inline)) void NAME(add_weight)(const int N, VECTOR *sum, VECTOR weight,
                                                                   const REAL *source, index_t apart, index_t k)
{
#pragma GCC unroll 4
    for (int s = 0; s < N; s++)
        sum[s] += (source[s * apart + k] - (VECTOR){0}) * weight;
}

/* How many weights from `first` on are to be summed before vectors of them begin at multiples of their size, if they
   then do so in every row. Else each would lie in two lines, the first of them for the second time, and where rows lie
   a power of two apart the lines of so many do not stay in L1 for that. */
static inline index_t NAME(to_vector)(const REAL *first, index_t pitch)
{
    const index_t over = (index_t)((uintptr_t)first / sizeof(REAL) % (uintptr_t)LANES);
    return pitch % LANES || !over ? 0 : LANES - over;
}

/* A vector of rows, each of which has its weights side by side, for N samples, `apart` from one another: squares of
   weights are turned in registers, which takes as long as the products of four samples in vectors of 16 lanes. */
static inline __attribute__((always_inline)) void NAME(sum_squares)(
    const int N, index_t depth, index_t head, const REAL *const *row, const REAL *source, index_t apart, REAL *result,
    index_t pitch, int accumulate)
{
    VECTOR sum[4];
#pragma GCC unroll 4
    for (int s = 0; s < N; s++)
        sum[s] = (VECTOR){0};
    for (index_t k = 0, end; k < depth; k = end) {
        const index_t at = k + LANES <= depth ? k : depth - LANES;
        VECTOR square[16];
        end = k == 0 && head > 0 ? head : k + LANES < depth ? k + LANES : depth;
        if (at < 0) {
            end = k + 1;
            for (int i = 0; i < LANES; i++)
                square[0][i] = row[i][k];
            NAME(add_weight)(N, sum, square[0], source, apart, k);
            continue;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            __builtin_prefetch(row[i] + at + TURNED_AHEAD, 0, 2);
            square[i] = LOAD(row[i] + at);
        }
        NAME(turn_square)(square);
        if (end - k == LANES) {
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                NAME(add_weight)(N, sum, square[i], source, apart, k + i);
        } else
            for (index_t i = k; i < end; i++)
                NAME(add_weight)(N, sum, square[i - at], source, apart, i);
    }
#pragma GCC unroll 4
    for (int s = 0; s < N; s++)
        NAME(store_sums)(1, &sum[s], result + s * pitch, accumulate);
}

/* C channels of weights whose rows lie side by side, for N samples: their sums are in L1. */
static inline __attribute__((always_inline)) void NAME(add_channels)(
    const int N, const int C, index_t rows, const REAL *weight, index_t next, const REAL *source, index_t apart,
    REAL *result, index_t pitch)
{
    index_t i = 0;
    for (; i + LANES <= rows; i += LANES) {
        VECTOR w[4];
#pragma GCC unroll 4
        for (int c = 0; c < C; c++) {
            w[c] = LOAD(weight + c * next + i);
            __builtin_prefetch(weight + (c + C) * next + i);
        }
#pragma GCC unroll 4
        for (int s = 0; s < N; s++) {
            VECTOR sum = LOAD(result + s * pitch + i);
#pragma GCC unroll 4
            for (int c = 0; c < C; c++)
                sum += (source[s * apart + c] - (VECTOR){0}) * w[c];
            STORE(result + s * pitch + i, sum);
        }
    }
    for (; i < rows; i++)
        for (int s = 0; s < N; s++)
            for (int c = 0; c < C; c++)
                result[s * pitch + i] += source[s * apart + c] * weight[c * next + i];
}

#define OF_SAMPLES(N)                                                                                                 \
    static __attribute__((noinline)) void NAME(sum_squares_of_##N)(                                                   \
        index_t depth, index_t head, const REAL *const *row, const REAL *source, index_t apart, REAL *result,         \
        index_t pitch, int accumulate)                                                                                \
    {                                                                                                                 \
        NAME(sum_squares)(N, depth, head, row, source, apart, result, pitch, accumulate);                             \
    }                                                                                                                 \
    static __attribute__((noinline)) void NAME(add_channels_of_##N)(                                                  \
        index_t depth, index_t rows, const REAL *weight, index_t next, const REAL *source, index_t apart,             \
        REAL *result, index_t pitch)                                                                                  \
    {                                                                                                                 \
        index_t c = 0;                                                                                                \
        for (; c + 4 <= depth; c += 4)                                                                                \
            NAME(add_channels)(N, 4, rows, weight + c * next, next, source + c, apart, result, pitch);                \
        for (; c < depth; c++)                                                                                        \
            NAME(add_channels)(N, 1, rows, weight + c * next, next, source + c, apart, result, pitch);                \
    }
OF_SAMPLES(1) OF_SAMPLES(2) OF_SAMPLES(4)
#undef OF_SAMPLES

/* The samples that are done at once, of so many that are left. */
static inline index_t NAME(samples_at_once)(index_t left)
{
    return left >= 4 ? 4 : left >= 2 ? 2 : 1;
}

static void NAME(meet_rows)(const work_t *work, const REAL *weight, const REAL *source, REAL *result, int accumulate)
{
    const piece_t *piece = work->piece;
    const index_t rows = work->part.rows, depth = work->part.channels, pitch = work->layout.pitch;
    const index_t apart = piece->source_stride[2], samples = work->layout.positions;
    for (index_t i = 0; i < rows; i += LANES) {
        const REAL *row[16];
        for (index_t j = 0; j < LANES; j++) /* the last row stands in for those that are not there */
            row[j] = weight + (i + j < rows ? i + j : rows - 1) * piece->weight_row;
        for (index_t s = 0, some; s < samples; s += some) {
            const REAL *x = source + s * apart;
            REAL *to = result + s * pitch + i;
            some = NAME(samples_at_once)(samples - s);
            (some == 4 ? NAME(sum_squares_of_4) : some == 2 ? NAME(sum_squares_of_2) : NAME(sum_squares_of_1))(
                depth, NAME(to_vector)(row[0], piece->weight_row), row, x, apart, to, pitch, accumulate);
        }
    }
}

static void NAME(meet_channels)(const work_t *work, const REAL *weight, const REAL *source, REAL *result,
                                int accumulate)
{
    const piece_t *piece = work->piece;
    const index_t rows = work->part.rows, depth = work->part.channels, pitch = work->layout.pitch;
    const index_t apart = piece->source_stride[2], samples = work->layout.positions;
    REAL *sums = accumulate ? result + work->layout.sums : result;
    NAME(zero)(work->layout.sums, sums);
    for (index_t s = 0, some; s < samples; s += some) {
        some = NAME(samples_at_once)(samples - s);
        (some == 4 ? NAME(add_channels_of_4) : some == 2 ? NAME(add_channels_of_2) : NAME(add_channels_of_1))(
            depth, rows, weight, piece->weight_channel, source + s * apart, apart, sums + s * pitch, pitch);
    }
    if (accumulate)
        NAME(add)(work->layout.sums, sums, result);
    else /* 0, which makes 0 of -0 */
        for (index_t i = 0; i < work->layout.sums; i += LANES)
            STORE(result + i, LOAD(result + i) + (VECTOR){0});
}

static void NAME(multiply_dense)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                 void *result, int accumulate)
{
    const REAL *weight = *(const REAL *const *)panel + work->part.row * work->piece->weight_row;
    const REAL *source = *(const REAL *const *)scratch + work->block.start[2] * work->piece->source_stride[2];
    (void)offset;
    if (work->piece->weight_row == 1)
        NAME(meet_channels)(work, weight, source, result, accumulate);
    else
        NAME(meet_rows)(work, weight, source, result, accumulate);
}

/* target <- results + bias (+ target) */
static void NAME(store_samples)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                                char *doubtful)
{
    const piece_t *piece = work->piece;
    const index_t row = work->part.row, rows = work->part.rows;
    (void)doubtful;
    for (index_t s = 0; s < work->layout.positions; s++) {
        const REAL *from = (const REAL *)result + s * work->layout.pitch;
        REAL *to = (REAL *)target + NAME(first)(piece, &work->block) + s * piece->target_stride[2] + row;
        index_t channel;
        for (index_t i = 0; i < rows; i++) {
            REAL value = from[i];
            if (bias) {
                NAME(row_at)(piece, row + i, &channel);
                value += ((const REAL *)bias)[channel];
            }
            NAME(put)(to + i, value, accumulate);
        }
    }
}
