/* Winograd's F(2, 3) and F(4, 3): stride-1 convolutions of 3 taps along y, x or both as products in each frequency of
   small tiles. A tile of M outputs along an axis reads M + 2 cells and has M + 2 frequencies; an axis that is not
   transformed has tiles of one output, one cell and one frequency. Every transform runs one axis at a time over arrays
   that fit in the first-level cache, so it is the same code for y, for x and for both. See body.h for the macros. */

/* What a line of vectors becomes, with d cells, g taps, m products and y outputs of a tile:
     CELLS    B^T d, M + 2 to M + 2        TAPS     G g, 3 to M + 2
     OUTPUTS  A^T m, M + 2 to M            ERRORS   A y, M to M + 2        GRADIENT  G^T m, M + 2 to 3 */
#define CELLS 0
#define TAPS 1
#define OUTPUTS 2
#define ERRORS 3
#define GRADIENT 4
#define FROM(KIND, M) ((KIND) == TAPS ? 3 : (KIND) == ERRORS ? (M) : (M) + 2)
#define TO(KIND, M) ((KIND) == GRADIENT ? 3 : (KIND) == OUTPUTS ? (M) : (M) + 2)

#define WORK ((index_t)(49152 / sizeof(REAL))) /* elements of a transform's intermediate arrays */
#define SLACK (128 * LANES)                    /* that whole vectors may touch past the ends of these arrays */
#define RUN_TILES (WORK / 64)                  /* tiles whose outputs are stored together at most */
#define WEIGHT_AHEAD 8                         /* channels between asking for weights and reading them */
#define CELL_ROWS 256                          /* rows of cells that are transformed together at most */

/* F(2, 3): points 0, 1, -1 and infinity. */
static inline __attribute__((always_inline)) void NAME(line_2)(const int KIND, const VECTOR *from, VECTOR *to)
{
    if (KIND == CELLS) {
        to[0] = from[0] - from[2];
        to[1] = from[2] + from[1];
        to[2] = from[2] - from[1];
        to[3] = from[3] - from[1];
    } else if (KIND == TAPS) {
        const VECTOR even = (REAL)0.5 * (from[0] + from[2]);
        to[0] = from[0];
        to[1] = even + (REAL)0.5 * from[1];
        to[2] = even - (REAL)0.5 * from[1];
        to[3] = from[2];
    } else if (KIND == OUTPUTS) {
        to[0] = from[0] + (from[1] + from[2]);
        to[1] = from[3] + (from[1] - from[2]);
    } else if (KIND == ERRORS) {
        to[0] = from[0];
        to[1] = from[0] + from[1];
        to[2] = from[0] - from[1];
        to[3] = from[1];
    } else {
        const VECTOR even = (REAL)0.5 * (from[1] + from[2]);
        to[0] = from[0] + even;
        to[1] = (REAL)0.5 * (from[1] - from[2]);
        to[2] = from[3] + even;
    }
}

/* F(4, 3): points 0, a, -a, b, -b and infinity. With a = 3/4 and b = 3/2 the errors are about half of those with 1 and
   2, and a, b, their squares and the products of these are exact. */
static inline __attribute__((always_inline)) void NAME(line_4)(const int KIND, const VECTOR *from, VECTOR *to)
{
    const REAL a = 0.75, b = 1.5, aa = a * a, bb = b * b;
    const REAL zero = 1 / (aa * bb), near = 1 / (2 * aa * (aa - bb)), far = 1 / (2 * bb * (bb - aa));
    if (KIND == CELLS) {
        const VECTOR even_a = from[4] - bb * from[2], odd_a = a * (from[3] - bb * from[1]);
        const VECTOR even_b = from[4] - aa * from[2], odd_b = b * (from[3] - aa * from[1]);
        to[0] = aa * bb * from[0] + (from[4] - (aa + bb) * from[2]);
        to[1] = even_a + odd_a;
        to[2] = even_a - odd_a;
        to[3] = even_b + odd_b;
        to[4] = even_b - odd_b;
        to[5] = aa * bb * from[1] + (from[5] - (aa + bb) * from[3]);
    } else if (KIND == TAPS) {
        const VECTOR even_a = near * aa * from[2] + near * from[0], odd_a = near * a * from[1];
        const VECTOR even_b = far * bb * from[2] + far * from[0], odd_b = far * b * from[1];
        to[0] = zero * from[0];
        to[1] = even_a + odd_a;
        to[2] = even_a - odd_a;
        to[3] = even_b + odd_b;
        to[4] = even_b - odd_b;
        to[5] = from[2];
    } else if (KIND == OUTPUTS) {
        const VECTOR even_a = from[1] + from[2], odd_a = from[1] - from[2];
        const VECTOR even_b = from[3] + from[4], odd_b = from[3] - from[4];
        to[0] = from[0] + (even_a + even_b);
        to[1] = b * odd_b + a * odd_a;
        to[2] = bb * even_b + aa * even_a;
        to[3] = b * bb * odd_b + (a * aa * odd_a + from[5]);
    } else if (KIND == ERRORS) {
        const VECTOR even_a = aa * from[2] + from[0], odd_a = a * aa * from[3] + a * from[1];
        const VECTOR even_b = bb * from[2] + from[0], odd_b = b * bb * from[3] + b * from[1];
        to[0] = from[0];
        to[1] = even_a + odd_a;
        to[2] = even_a - odd_a;
        to[3] = even_b + odd_b;
        to[4] = even_b - odd_b;
        to[5] = from[3];
    } else {
        const VECTOR even_a = near * (from[1] + from[2]), odd_a = near * a * (from[1] - from[2]);
        const VECTOR even_b = far * (from[3] + from[4]), odd_b = far * b * (from[3] - from[4]);
        to[0] = zero * from[0] + (even_a + even_b);
        to[1] = odd_a + odd_b;
        to[2] = aa * even_a + (bb * even_b + from[5]);
    }
}

static inline __attribute__((always_inline)) void NAME(line)(const int KIND, const int M, const VECTOR *from,
                                                             VECTOR *to)
{
    if (M == 2)
        NAME(line_2)(KIND, from, to);
    else
        NAME(line_4)(KIND, from, to);
}

/* Arrays of a pass: array i of row r of lot l begins at `at` + l * lot + r * row + i % M * step + i / M * turn. */
typedef struct {
    REAL *at;
    index_t lot, row, step, turn;
} NAME(arrays);

/* One axis transformed: in every row, the n elements that lie at the same place of each array are a line. At most 6
   vectors of a line come in and 6 go out. Whole vectors, so up to a vector more of every array is overwritten. */
static inline __attribute__((always_inline)) void NAME(pass)(
    const int KIND, const int M, index_t lots, index_t rows, index_t n, const NAME(arrays) *from,
    const NAME(arrays) *to)
{
    const int inputs = FROM(KIND, M), outputs = TO(KIND, M);
    for (index_t l = 0; l < lots; l++)
        for (index_t r = 0; r < rows; r++) {
            const REAL *in = from->at + l * from->lot + r * from->row;
            REAL *out = to->at + l * to->lot + r * to->row;
            for (index_t p = 0; p < n; p += LANES) {
                VECTOR x[6], y[6];
#pragma GCC unroll 6
                for (int i = 0; i < inputs; i++)
                    x[i] = LOAD(in + i % M * from->step + i / M * from->turn + p);
                __asm__ volatile("" ::: "memory");
                NAME(line)(KIND, M, x, y);
#pragma GCC unroll 6
                for (int i = 0; i < outputs; i++)
                    STORE(out + i % M * to->step + i / M * to->turn + p, y[i]);
            }
        }
}

#define PASS(name, KIND)                                                                                              \
    static __attribute__((noinline)) void NAME(name)(index_t m, index_t lots, index_t rows, index_t n,                \
                                                     const NAME(arrays) from, const NAME(arrays) to)                  \
    {                                                                                                                 \
        if (m == 2)                                                                                                   \
            NAME(pass)(KIND, 2, lots, rows, n, &from, &to);                                                           \
        else                                                                                                          \
            NAME(pass)(KIND, 4, lots, rows, n, &from, &to);                                                           \
    }
PASS(pass_cells, CELLS) PASS(pass_taps, TAPS) PASS(pass_outputs, OUTPUTS) PASS(pass_errors, ERRORS)
PASS(pass_gradient, GRADIENT)
#undef PASS

/* Arrays `step` apart, however many there are. */
static inline NAME(arrays) NAME(spaced)(index_t m, const REAL *at, index_t lot, index_t row, index_t step)
{
    return (NAME(arrays)){(REAL *)at, lot, row, step, m * step};
}

/* Two vectors of cells to their even and their odd cells, and back. */
static inline __attribute__((always_inline)) void NAME(halve)(const int back, VECTOR *a, VECTOR *b)
{
#if defined(__GNUC__) && !defined(__clang__)
    NAME(mask) first, second;
#pragma GCC unroll 16
    for (int e = 0; e < LANES; e++) {
        first[e] = back ? e / 2 + e % 2 * LANES : 2 * e;
        second[e] = back ? first[e] + LANES / 2 : 2 * e + 1;
    }
    const VECTOR x = *a, y = *b;
    *a = __builtin_shuffle(x, y, first);
    *b = __builtin_shuffle(x, y, second);
#else
    REAL x[2 * LANES], y[2 * LANES];
    STORE(x, *a);
    STORE(x + LANES, *b);
    for (int e = 0; e < 2 * LANES; e++)
        if (back)
            y[e] = x[e / 2 + e % 2 * LANES];
        else
            y[e / 2 + e % 2 * LANES] = x[e];
    *a = LOAD(y);
    *b = LOAD(y + LANES);
#endif
}

/* M vectors of consecutive cells to vector j: cells j, j + M, ...; and back. */
static inline __attribute__((always_inline)) void NAME(deal)(const int back, const int M, VECTOR *v)
{
    if (M == 2) {
        NAME(halve)(back, &v[0], &v[1]);
    } else if (back) {
        NAME(halve)(1, &v[0], &v[2]);
        NAME(halve)(1, &v[1], &v[3]);
        NAME(halve)(1, &v[0], &v[1]);
        NAME(halve)(1, &v[2], &v[3]);
    } else {
        NAME(halve)(0, &v[0], &v[1]);
        NAME(halve)(0, &v[2], &v[3]);
        NAME(halve)(0, &v[0], &v[2]);
        NAME(halve)(0, &v[1], &v[3]);
    }
}

/* Lanes 1, 2, ... of a, and lane `lane` of b in place of the one after the last. */
static inline __attribute__((always_inline)) VECTOR NAME(follow)(VECTOR a, VECTOR b, const int lane)
{
#if defined(__GNUC__) && !defined(__clang__)
    NAME(mask) next;
#pragma GCC unroll 16
    for (int e = 0; e < LANES; e++)
        next[e] = e < LANES - 1 ? e + 1 : LANES + lane;
    return __builtin_shuffle(a, b, next);
#else
    for (int e = 0; e < LANES - 1; e++)
        a[e] = a[e + 1];
    a[LANES - 1] = b[lane];
    return a;
#endif
}

/* LANES tiles along x: M vectors of their own cells, and one that begins with the two that the last shares with the
   next. Cells that do not exist are zero. With M = 1 cells are copied. */
static inline __attribute__((always_inline)) void NAME(part)(const int M, const REAL *cells,
                                                             const NAME(mask) *exists, REAL *to, index_t step)
{
    VECTOR x[6], y[6];
#pragma GCC unroll 5
    for (int j = 0; j <= M; j++)
        x[j] = (VECTOR)((NAME(mask))LOAD(cells + j * LANES) & exists[j]);
    __asm__ volatile("" ::: "memory");
    if (M == 1) {
        STORE(to, x[0]);
        return;
    }
    const VECTOR next = x[M];
    NAME(deal)(0, M, x);
    x[M] = NAME(follow)(x[0], next, 0);
    x[M + 1] = NAME(follow)(x[1], next, 1);
    NAME(line)(CELLS, M, x, y);
#pragma GCC unroll 6
    for (int i = 0; i < M + 2; i++)
        STORE(to + i * step, y[i]);
}

/* Rows of n tiles: their products along x to outputs side by side. Answers whether all are finite, which zero times
   their sum tells; lanes past n do not count. With M = 1 products are outputs. */
static inline __attribute__((always_inline)) int NAME(join)(const int M, index_t rows, index_t n,
                                                            const NAME(arrays) *from, REAL *to, index_t to_row)
{
    const int inputs = M == 1 ? 1 : M + 2;
    VECTOR none = {0};
    REAL total = 0;
    for (index_t r = 0; r < rows; r++)
        for (index_t p = 0; p < n; p += LANES) {
            const REAL *in = from->at + r * from->row + p;
            VECTOR x[6], y[6];
#pragma GCC unroll 6
            for (int i = 0; i < inputs; i++)
                x[i] = LOAD(in + i * from->step);
            __asm__ volatile("" ::: "memory");
            if (M == 1)
                y[0] = x[0];
            else {
                NAME(line)(OUTPUTS, M, x, y);
                NAME(deal)(1, M, y);
            }
#pragma GCC unroll 4
            for (int j = 0; j < M; j++) {
                STORE(to + r * to_row + M * p + j * LANES, y[j]);
                if (p + LANES > n)
                    y[j] = (VECTOR)((NAME(mask))y[j] & NAME(lanes)(M * p + j * LANES, 0, M * n));
                none += 0 * y[j];
            }
        }
    for (int lane = 0; lane < LANES; lane++)
        total += none[lane];
    return total == 0;
}

static __attribute__((noinline)) int NAME(join_outputs)(index_t m, index_t rows, index_t n, const NAME(arrays) from,
                                                        REAL *to, index_t to_row)
{
    return m == 1 ? NAME(join)(1, rows, n, &from, to, to_row)
        : m == 2 ? NAME(join)(2, rows, n, &from, to, to_row) : NAME(join)(4, rows, n, &from, to, to_row);
}
