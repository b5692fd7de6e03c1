/* Matrices turned, in registers. See body.h for the macros. */

/* For stage w of a transposition: which lanes of two rows that are w apart make the new upper and the new lower row. */
#define UPPER(e, w) ((e) & (w) ? LANES + (e) - (w) : (e))
#define LOWER(e, w) ((e) & (w) ? LANES + (e) : (e) + (w))
static const MASK NAME(stage)[4][2][16] = {{OF_16(UPPER, 1), OF_16(LOWER, 1)},
                                           {OF_16(UPPER, 2), OF_16(LOWER, 2)},
                                           {OF_16(UPPER, 4), OF_16(LOWER, 4)},
                                           {OF_16(UPPER, 8), OF_16(LOWER, 8)}};
#undef UPPER
#undef LOWER

/* W x W blocks in registers, of which W vectors have LANES / W side by side: stage w swaps the off-diagonal blocks of
   width w, for w = 1, 2, 4, ... */
static inline __attribute__((always_inline)) void NAME(turn_blocks)(const int W, VECTOR *rows)
{
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
    for (int stage = 0; 1 << stage < W; stage++) {
        const int w = 1 << stage;
        const NAME(mask) upper = *(const NAME(mask) *)NAME(stage)[stage][0];
        const NAME(mask) lower = *(const NAME(mask) *)NAME(stage)[stage][1];
#pragma GCC unroll 16
        for (int i = 0; i < W; i++)
            if (!(i & w)) {
                const VECTOR a = rows[i], b = rows[i + w];
                rows[i] = __builtin_shuffle(a, b, upper);
                rows[i + w] = __builtin_shuffle(a, b, lower);
            }
    }
#else
    for (int block = 0; block < LANES; block += W)
        for (int i = 0; i < W; i++)
            for (int j = 0; j < i; j++) {
                const REAL swap = rows[i][block + j];
                rows[i][block + j] = rows[j][block + i];
                rows[j][block + i] = swap;
            }
#endif
}

static inline __attribute__((always_inline)) void NAME(turn_square)(VECTOR *rows)
{
    NAME(turn_blocks)((int)LANES, rows);
}

static inline __attribute__((always_inline)) void NAME(put)(REAL *to, REAL value, const int accumulate)
{
    *to = accumulate ? *to + value : value; /* no 0 is added: that would make 0 of -0, which blocks keep */
}

/* Elements of n that whole vectors take: the last ends with them, if it MAY take some once more and a fourth of it or
   more is new. */
static inline __attribute__((always_inline)) index_t NAME(in_vectors)(const int MAY, index_t n)
{
    const index_t rest = n % LANES;
    return n >= LANES && MAY && 4 * rest >= LANES ? n : n - rest;
}

/* W elements of each of LANES rows: vector i holds those of rows i, i + W, i + 2 W and so on side by side. A row whose
   place is lane `first` is read from `first` elements in front of it, which are earlier rows: there are as many at least.
*/
static inline __attribute__((always_inline)) void NAME(read_blocks)(const int W, const REAL *from, index_t pitch,
                                                                    VECTOR *block)
{
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
        block[i] = LOAD(from + i * pitch);
#pragma GCC unroll 8
        for (int first = W; first < LANES; first += W) {
            const NAME(mask) others = NAME(lanes)(0, 0, first), here = (NAME(mask))LOAD(from + (first + i) * pitch - first);
            block[i] = (VECTOR)(((NAME(mask))block[i] & others) | (here & ~others));
        }
    }
}

static inline void NAME(turn_one_by_one)(REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows,
                                         index_t columns, int accumulate)
{
    for (index_t i = 0; i < rows; i++)
        for (index_t j = 0; j < columns; j++)
            NAME(put)(to + j * to_pitch + i, from[i * from_pitch + j], accumulate);
}

/* to[column][row] (+)= from[row][column] of W columns, or of fewer but more than W / 2. W elements of each row are read;
   as rows do not overlap, what is read too much is the next row's, but for the last row, behind which may be no memory. */
static inline __attribute__((always_inline)) void NAME(columns_in_blocks)(
    const int W, REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows, index_t columns,
    int accumulate)
{
    const index_t readable = columns == W ? rows : rows - 1;
    const index_t taken = NAME(in_vectors)(!accumulate, readable);
    for (index_t i = 0; i < taken; i += LANES) {
        const index_t top = NAME(vector_at)(i, taken);
        VECTOR block[16];
        NAME(read_blocks)(W, from + top * from_pitch, from_pitch, block);
        NAME(turn_blocks)(W, block);
#pragma GCC unroll 16
        for (int j = 0; j < W; j++) {
            if (j >= columns)
                break;
            REAL *at = to + j * to_pitch + top;
            if (accumulate)
                block[j] += LOAD(at);
            STORE(at, block[j]);
        }
    }
    NAME(turn_one_by_one)(to + taken, to_pitch, from + taken * from_pitch, from_pitch, rows - taken, columns, accumulate);
}

/* The same of W rows, or of fewer but more than W / 2, and whole vectors of columns. Of fewer, row 0 stands in for each
   that is not there; what is written of a column are its first W / 2 elements and its last, some of them twice. */
static inline __attribute__((always_inline)) void NAME(rows_in_blocks)(
    const int W, REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows, index_t columns,
    int accumulate)
{
    for (index_t j = 0; j < columns; j += LANES) {
        const index_t left = NAME(vector_at)(j, columns);
        VECTOR block[16];
#pragma GCC unroll 16
        for (int i = 0; i < W; i++)
            block[i] = LOAD(from + (i < rows ? i : 0) * from_pitch + left);
        NAME(turn_blocks)(W, block);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            const REAL *column = (const REAL *)&block[i % W] + i / W * W;
            REAL *at = to + (left + i) * to_pitch;
            if (accumulate)
                for (index_t k = 0; k < rows; k++)
                    at[k] += column[k];
            else {
                __builtin_memcpy(at, column, W / 2 * sizeof(REAL));
                __builtin_memcpy(at + rows - W / 2, column + rows - W / 2, W / 2 * sizeof(REAL));
            }
        }
    }
}

#define MOST_BESIDE 4 /* columns: K of them take K (K - 1) instructions a vector of rows */

/* Lanes of two vectors, those of the second numbered from LANES on. */
static inline __attribute__((always_inline)) VECTOR NAME(merge)(VECTOR a, VECTOR b, NAME(mask) lanes)
{
#if defined(__GNUC__) && !defined(__clang__)
    return __builtin_shuffle(a, b, lanes);
#else
    VECTOR merged;
    for (int e = 0; e < LANES; e++)
        merged[e] = lanes[e] < LANES ? a[lanes[e]] : b[lanes[e] - LANES];
    return merged;
#endif
}

/* Vector j of K: where it SPREADS, from vectors that have K numbers side by side, every K-th; else one of those. */
static inline __attribute__((always_inline)) VECTOR NAME(merge_beside)(const int K, const int SPREADS, const int j,
                                                                       const VECTOR *from)
{
    VECTOR merged = from[0];
#pragma GCC unroll 4
    for (int v = 1; v < K; v++) {
        NAME(mask) lanes;
#pragma GCC unroll 16
        for (int e = 0; e < LANES; e++) {
            const int at = SPREADS ? K * e + j : j * (int)LANES + e;
            const int which = SPREADS ? at / (int)LANES : at % K, lane = SPREADS ? at % (int)LANES : at / K;
            lanes[e] = which == v ? LANES + lane : v == 1 ? lane : e;
        }
        merged = NAME(merge)(merged, from[v], lanes);
    }
    return merged;
}

/* to[column][row] (+)= from[row][column] of K columns that lie side by side, as the channels of an image do, and
   where it SPREADS are to lie `pitch` apart; else of K rows that lie so and are to lie side by side. Of the others there
   are n, which fill vectors. */
static inline __attribute__((always_inline)) void NAME(turn_beside)(const int K, const int SPREADS, REAL *to,
                                                                    const REAL *from, index_t pitch, index_t n,
                                                                    int accumulate)
{
    for (index_t i = 0; i < n; i += LANES) {
        const index_t first = NAME(vector_at)(i, n);
        VECTOR read[MOST_BESIDE];
#pragma GCC unroll 4
        for (int v = 0; v < K; v++)
            read[v] = LOAD(from + (SPREADS ? first * K + v * LANES : v * pitch + first));
#pragma GCC unroll 4
        for (int v = 0; v < K; v++) {
            VECTOR turned = NAME(merge_beside)(K, SPREADS, v, read);
            REAL *at = to + (SPREADS ? v * pitch + first : first * K + v * LANES);
            if (accumulate)
                turned += LOAD(at);
            STORE(at, turned);
        }
    }
}

#define TURN_BESIDE(COUNT, SPREADS)                                                                                   \
    static __attribute__((noinline)) void NAME(turn_##COUNT##_beside)(REAL *to, const REAL *from, index_t pitch,      \
                                                                      index_t count, index_t n, int accumulate)       \
    {                                                                                                                 \
        if (count == 2)                                                                                               \
            NAME(turn_beside)(2, SPREADS, to, from, pitch, n, accumulate);                                            \
        else if (count == 3)                                                                                          \
            NAME(turn_beside)(3, SPREADS, to, from, pitch, n, accumulate);                                            \
        else                                                                                                          \
            NAME(turn_beside)(4, SPREADS, to, from, pitch, n, accumulate);                                            \
    }
TURN_BESIDE(columns, 1) TURN_BESIDE(rows, 0)
#undef TURN_BESIDE

/* Of fewer columns, or rows, than a vector has lanes: in the narrowest blocks; one of them, and in vectors of two lanes
   any, element by element. */
#define TURN_FEW(COUNT, TURN)                                                                                         \
    static __attribute__((noinline)) void NAME(turn_few_##COUNT)(                                                      \
        REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows, index_t columns,              \
        int accumulate)                                                                                               \
    {                                                                                                                 \
        if (COUNT > 8 && LANES >= 16)                                                                                 \
            NAME(TURN)(16, to, to_pitch, from, from_pitch, rows, columns, accumulate);                                \
        else if (COUNT > 4 && LANES >= 8)                                                                             \
            NAME(TURN)(8, to, to_pitch, from, from_pitch, rows, columns, accumulate);                                 \
        else if (COUNT > 2 && LANES >= 4)                                                                             \
            NAME(TURN)(4, to, to_pitch, from, from_pitch, rows, columns, accumulate);                                 \
        else if (COUNT == 2 && LANES >= 4)                                                                            \
            NAME(TURN)(2, to, to_pitch, from, from_pitch, rows, columns, accumulate);                                 \
        else                                                                                                          \
            NAME(turn_one_by_one)(to, to_pitch, from, from_pitch, rows, columns, accumulate);                         \
    }
TURN_FEW(columns, columns_in_blocks) TURN_FEW(rows, rows_in_blocks)
#undef TURN_FEW

/* to[column][row] (+)= from[row][column]; what is added may be so but once. */
static inline __attribute__((always_inline)) void NAME(transpose)(
    REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows, index_t columns,
    const int accumulate)
{
    const index_t tall = NAME(in_vectors)(!accumulate, rows), wide = NAME(in_vectors)(!accumulate, columns);
    for (index_t i = 0; i < tall; i += LANES)
        for (index_t j = 0; j < wide; j += LANES) {
            const index_t top = NAME(vector_at)(i, tall), left = NAME(vector_at)(j, wide);
            VECTOR square[16];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                square[r] = LOAD(from + (top + r) * from_pitch + left);
            NAME(turn_square)(square);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) {
                if (accumulate)
                    square[r] += LOAD(to + (left + r) * to_pitch + top);
                STORE(to + (left + r) * to_pitch + top, square[r]);
            }
        }
    if (tall == 0 && rows > 1 && rows <= MOST_BESIDE && to_pitch == rows)
        NAME(turn_rows_beside)(to, from, from_pitch, rows, wide, accumulate);
    else if (tall < rows)
        NAME(turn_few_rows)(to + tall, to_pitch, from + tall * from_pitch, from_pitch, rows - tall, wide, accumulate);
    if (wide == 0 && columns > 1 && columns <= MOST_BESIDE && from_pitch == columns) {
        NAME(turn_columns_beside)(to, from, to_pitch, columns, tall, accumulate);
        NAME(turn_one_by_one)(to + tall, to_pitch, from + tall * from_pitch, from_pitch, rows - tall, columns, accumulate);
    } else if (wide < columns)
        NAME(turn_few_columns)(to + wide * to_pitch, to_pitch, from + wide, from_pitch, rows, columns - wide,
                               accumulate);
}
