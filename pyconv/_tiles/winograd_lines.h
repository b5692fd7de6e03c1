/* Winograd's transforms along one axis, F(2, 3) and F(4, 3): M outputs of 3 taps each by way of M + 2 cells and as many
   products. Whole vectors: LANES tiles, elements or columns at a time. See body.h for the macros.
   Where no cell is beside 2 or 3, the tile is lone: M is -2 or -3, and as many outputs take 3 or 5 products. */

#define WORK ((index_t)(16384 / sizeof(REAL))) /* elements of arrays in half of the first-level cache */
#define RUN_TILES (WORK / 64)                  /* tiles whose outputs are stored together at most */

/* What becomes of a line of vectors, with d the cells, g the taps, m the products and y the outputs of a tile:
     CELLS    B^T d, M + 2 to M + 2        TAPS     G g, 3 to M + 2
     OUTPUTS  A^T m, M + 2 to M            ERRORS   A y, M to M + 2        GRADIENT  G^T m, M + 2 to 3
   At M = 1, an axis that is not transformed, all of them would be the identity; a lone tile has the first three, with
   as many cells as outputs. */
#define CELLS 0
#define TAPS 1
#define OUTPUTS 2
#define ERRORS 3
#define GRADIENT 4
#define SIZE(M) ((M) < 0 ? -(M) : (M)) /* outputs */
#define FREQUENCIES(M) ((M) == 1 ? 1 : (M) < 0 ? -2 * (M) - 1 : (M) + 2)
#define FROM(KIND, M) \
    ((M) == 1 ? 1 : (KIND) == TAPS ? 3 : (KIND) == ERRORS || ((M) < 0 && (KIND) == CELLS) ? SIZE(M) : FREQUENCIES(M))
#define TO(KIND, M) ((M) == 1 ? 1 : (KIND) == GRADIENT ? 3 : (KIND) == OUTPUTS ? SIZE(M) : FREQUENCIES(M))

/* Sums of cells, or of weights: of pairs each half is one. Half of a sum of products: of whole numbers it is even. */
#if CELL == 2
typedef int16_t NAME(halves) __attribute__((vector_size(BYTES)));
#define PLUS(a, b) ((VECTOR)((NAME(halves))(a) + (NAME(halves))(b)))
#define MINUS(a, b) ((VECTOR)((NAME(halves))(a) - (NAME(halves))(b)))
#define HALF(sum) ((VECTOR)((NAME(mask))(sum) >> 1))
#else
#define PLUS(a, b) ((a) + (b))
#define MINUS(a, b) ((a) - (b))
#define HALF(sum) ((REAL)0.5 * (sum))
#endif

/* F(2, 3): points 0, 1, -1 and infinity. */
static inline __attribute__((always_inline)) void NAME(line_2)(const int KIND, const VECTOR *from, VECTOR *to)
{
    if (KIND == CELLS) {
        to[0] = MINUS(from[0], from[2]);
        to[1] = PLUS(from[2], from[1]);
        to[2] = MINUS(from[2], from[1]);
        to[3] = MINUS(from[3], from[1]);
    } else if (KIND == TAPS) {
        const VECTOR even = PLUS(from[0], from[2]); /* twice what is usual: half of a denormal number would lose a bit */
        to[0] = from[0];
        to[1] = PLUS(even, from[1]);
        to[2] = MINUS(even, from[1]);
        to[3] = from[2];
    } else if (KIND == OUTPUTS) {
        to[0] = from[0] + HALF(from[1] + from[2]);
        to[1] = from[3] + HALF(from[1] - from[2]);
    } else if (KIND == ERRORS) {
        to[0] = from[0];
        to[1] = from[0] + from[1];
        to[2] = from[0] - from[1];
        to[3] = from[1];
    } else {
        const VECTOR even = HALF(from[1] + from[2]);
        to[0] = from[0] + even;
        to[1] = HALF(from[1] - from[2]);
        to[2] = from[3] + even;
    }
}

/* Whether a transformed axis has tiles of 2 outputs: those of whole numbers are no others. */
#ifdef WHOLE
#define ARE_SMALL(m) 1
#else
#define ARE_SMALL(m) ((m) == 2)

/* F(4, 3): points 0, a, -a, b, -b and infinity. 3/4 and 3/2 about halve the errors of 1 and 2; they and the products of
   them are exact, and what G divides by is rounded once. */
static inline __attribute__((always_inline)) void NAME(line_4)(const int KIND, const VECTOR *from, VECTOR *to)
{
    const REAL a = 0.75, b = 1.5, aa = a * a, bb = b * b;
    const REAL zero = 1 / (aa * bb), near = 1 / (2 * aa * (aa - bb)), far = 1 / (2 * bb * (bb - aa));
    VECTOR even_a, odd_a, even_b, odd_b;
    if (KIND == CELLS) {
        even_a = from[4] - bb * from[2], odd_a = a * (from[3] - bb * from[1]);
        even_b = from[4] - aa * from[2], odd_b = b * (from[3] - aa * from[1]);
        to[0] = aa * bb * from[0] + (from[4] - (aa + bb) * from[2]);
        to[5] = aa * bb * from[1] + (from[5] - (aa + bb) * from[3]);
    } else if (KIND == TAPS) {
        even_a = near * aa * from[2] + near * from[0], odd_a = near * a * from[1];
        even_b = far * bb * from[2] + far * from[0], odd_b = far * b * from[1];
        to[0] = zero * from[0];
        to[5] = from[2];
    } else if (KIND == ERRORS) {
        even_a = aa * from[2] + from[0], odd_a = a * aa * from[3] + a * from[1];
        even_b = bb * from[2] + from[0], odd_b = b * bb * from[3] + b * from[1];
        to[0] = from[0];
        to[5] = from[3];
    } else {
        even_a = from[1] + from[2], odd_a = from[1] - from[2];
        even_b = from[3] + from[4], odd_b = from[3] - from[4];
    }
    if (KIND == OUTPUTS) {
        to[0] = from[0] + (even_a + even_b);
        to[1] = b * odd_b + a * odd_a;
        to[2] = bb * even_b + aa * even_a;
        to[3] = b * bb * odd_b + (a * aa * odd_a + from[5]);
    } else if (KIND == GRADIENT) {
        even_a *= near, even_b *= far;
        to[0] = zero * from[0] + (even_a + even_b);
        to[1] = near * a * odd_a + far * b * odd_b;
        to[2] = aa * even_a + (bb * even_b + from[5]);
    } else {
        to[1] = even_a + odd_a;
        to[2] = even_a - odd_a;
        to[3] = even_b + odd_b;
        to[4] = even_b - odd_b;
    }
}

/* Two cells: y0 = d0 g1 + d1 g2 and y1 = d0 g0 + d1 g1 have d g1 in common, of d = d0 + d1. */
static inline __attribute__((always_inline)) void NAME(lone_2)(const int KIND, const VECTOR *from, VECTOR *to)
{
    if (KIND == CELLS) {
        to[0] = from[0] + from[1];
        to[1] = from[1];
        to[2] = from[0];
    } else if (KIND == TAPS) {
        to[0] = from[1];
        to[1] = from[2] - from[1];
        to[2] = from[0] - from[1];
    } else {
        to[0] = from[0] + from[1];
        to[1] = from[0] + from[2];
    }
}

/* Three cells: as polynomials, y is the middle of d0 + d1 t + d2 t^2 times g2 + g1 t + g0 t^2. Modulo t^4 - 1 only what
   is before and behind it falls together. That product is found at t = 1, at t = -1, and modulo t^2 + 1, where it is one
   of two complex numbers, by way of three of reals. */
static inline __attribute__((always_inline)) void NAME(lone_3)(const int KIND, const VECTOR *from, VECTOR *to)
{
    if (KIND == CELLS || KIND == TAPS) {
        const VECTOR even = from[0] + from[2];
        to[0] = even + from[1];
        to[1] = even - from[1];
    }
    if (KIND == CELLS) {
        to[4] = from[0] - from[2];
        to[3] = from[1];
        to[2] = to[4] + from[1];
    } else if (KIND == TAPS) {
        to[2] = from[2] - from[0];
        to[3] = to[2] + from[1];
        to[4] = from[1] - to[2];
    } else {
        const REAL half = 0.5, quarter = 0.25;
        const VECTOR odd = quarter * (from[0] - from[1]), imaginary = half * (from[2] + from[4]);
        to[0] = odd + imaginary;
        to[1] = quarter * (from[0] + from[1]) - half * (from[2] - from[3]);
        to[2] = odd - imaginary;
    }
}

#endif

static inline __attribute__((always_inline)) void NAME(line)(const int KIND, const int M, const VECTOR *from,
                                                             VECTOR *to)
{
    if (M == 1)
        to[0] = from[0];
    else if (ARE_SMALL(M))
        NAME(line_2)(KIND, from, to);
#ifndef WHOLE
    else if (M == 4)
        NAME(line_4)(KIND, from, to);
    else if (M == -2)
        NAME(lone_2)(KIND, from, to);
    else
        NAME(lone_3)(KIND, from, to);
#endif
}

/* Some arrays, `step` apart, of rows of lots: row r of lot l of the first begins at `at` + l * lot + r * row. After M
   arrays the step to the next is `turn` more. */
typedef struct {
    REAL *at;
    index_t lot, row, step, turn;
} NAME(arrays);

static inline NAME(arrays) NAME(spaced)(const REAL *at, index_t lot, index_t row, index_t step)
{
    return (NAME(arrays)){(REAL *)at, lot, row, step, 0};
}

/* Loads stay before, so that GCC keeps in a register what is used twice instead of loading it twice. */
#define LOADED __asm__ volatile("" ::: "memory")

/* Lines across arrays: in every row, the n elements at the same places. At most 6 vectors come in and 6 go out. Whole
   vectors, so up to a vector more of every row is overwritten. */
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
                    x[i] = LOAD(in + i * from->step + i / SIZE(M) * from->turn + p);
                LOADED;
                NAME(line)(KIND, M, x, y);
#pragma GCC unroll 6
                for (int i = 0; i < outputs; i++)
                    STORE(out + i * to->step + p, y[i]);
            }
        }
}

#ifdef WHOLE
#define PASS_LONE(KIND)
#else
#define PASS_LONE(KIND)                                                                                              \
    else if ((KIND) <= OUTPUTS && m == -2)                                                                            \
        NAME(pass)(KIND, -2, lots, rows, n, &from, &to);                                                              \
    else if ((KIND) <= OUTPUTS && m == -3)                                                                            \
        NAME(pass)(KIND, -3, lots, rows, n, &from, &to);
#endif
#define PASS(name, KIND)                                                                                              \
    static __attribute__((noinline)) void NAME(name)(index_t m, index_t lots, index_t rows, index_t n,                \
                                                     const NAME(arrays) from, const NAME(arrays) to)                  \
    {                                                                                                                 \
        if (ARE_SMALL(m))                                                                                             \
            NAME(pass)(KIND, 2, lots, rows, n, &from, &to);                                                           \
        PASS_LONE(KIND)                                                                                              \
        else                                                                                                          \
            NAME(pass)(KIND, 4, lots, rows, n, &from, &to);                                                           \
    }
PASS(pass_cells, CELLS) PASS(pass_taps, TAPS) PASS(pass_outputs, OUTPUTS) PASS(pass_errors, ERRORS)
PASS(pass_gradient, GRADIENT)
#undef PASS
#undef PASS_LONE

/* Two vectors of cells to their even and their odd cells; and back. */
static inline __attribute__((always_inline)) void NAME(halve)(const int back, VECTOR *a, VECTOR *b)
{
#if defined(__GNUC__) && !defined(__clang__)
    NAME(mask) first, second;
#pragma GCC unroll 16
    for (int e = 0; e < LANES; e++) {
        first[e] = back ? e / 2 + e % 2 * LANES : 2 * e;
        second[e] = first[e] + (back ? LANES / 2 : 1);
    }
    const VECTOR x = *a, y = *b;
    *a = __builtin_shuffle(x, y, first);
    *b = __builtin_shuffle(x, y, second);
#else
    const VECTOR both[2] = {*a, *b};
    for (int e = 0; e < LANES; e++) {
        const int first = back ? e / 2 + e % 2 * LANES : 2 * e, second = first + (back ? LANES / 2 : 1);
        (*a)[e] = both[first / LANES][first % LANES];
        (*b)[e] = both[second / LANES][second % LANES];
    }
#endif
}

/* M vectors of consecutive cells to vector j: cells j, j + M, ...; and back. */
static inline __attribute__((always_inline)) void NAME(deal)(const int back, const int M, VECTOR *v)
{
    if (M == 2) {
        NAME(halve)(back, &v[0], &v[1]);
    } else if (M == 4 && back) {
        NAME(halve)(1, &v[0], &v[2]);
        NAME(halve)(1, &v[1], &v[3]);
        NAME(halve)(1, &v[0], &v[1]);
        NAME(halve)(1, &v[2], &v[3]);
    } else if (M == 4) {
        NAME(halve)(0, &v[0], &v[1]);
        NAME(halve)(0, &v[2], &v[3]);
        NAME(halve)(0, &v[0], &v[2]);
        NAME(halve)(0, &v[1], &v[3]);
    }
}

/* Some elements at a time, where they are moved in runs that are often shorter than a vector. */
#define SOME ((index_t)(16 / sizeof(REAL)))
typedef REAL NAME(few) __attribute__((vector_size(16), aligned(sizeof(REAL)), may_alias));
typedef MASK NAME(few_mask) __attribute__((vector_size(16), aligned(sizeof(MASK)), may_alias));

/* Lanes 1, 2, ... of a, and after the last lane `lane` of b. */
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

#define FAR PTRDIFF_MIN /* the place of what no cell of source holds */

/* Cells of some vectors of a row that are beyond the edge: for vector j those from first[j] to first[j + 1], each with
   its place in the row and with that of the cell that stands for it, or FAR, where the constant is. */
typedef struct {
    int first[6];
    const index_t *cell, *from;
    REAL constant;
} NAME(beyond_cells);

/* LANES tiles along x: M vectors of their own cells, and one that begins with the two that the last shares with the
   next. Cells that do not exist are zero; EDGED: in place of some there are others of the row. */
static inline __attribute__((always_inline)) void NAME(part)(
    const int M, const int EDGED, const REAL *cells, const NAME(mask) *exist, const NAME(beyond_cells) *beyond,
    const REAL *row, REAL *to, index_t step)
{
    static const MASK count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int vectors = M == 1 ? 1 : M + 1, outputs = TO(CELLS, M);
    VECTOR x[6], y[6];
#pragma GCC unroll 5
    for (int j = 0; j < vectors; j++) {
        x[j] = (VECTOR)((NAME(mask))LOAD(cells + j * LANES) & exist[j]);
        for (int i = EDGED ? beyond->first[j] : 0; EDGED && i < beyond->first[j + 1]; i++) {
            const REAL value = beyond->from[i] == FAR ? beyond->constant : row[beyond->from[i]];
            const NAME(mask) lane = *(const NAME(mask) *)count == (MASK)(beyond->cell[i] % LANES);
            x[j] = (VECTOR)((NAME(mask))x[j] | ((NAME(mask))(value - (VECTOR){0}) & lane));
        }
    }
    if (M > 1) {
        const VECTOR next = x[M];
        NAME(deal)(0, M, x);
        x[M] = NAME(follow)(x[0], next, 0);
        x[M + 1] = NAME(follow)(x[1], next, 1);
    }
    NAME(line)(CELLS, M, x, y);
#pragma GCC unroll 6
    for (int i = 0; i < outputs; i++)
        STORE(to + i * step, y[i]);
}

/* Rows of n tiles of d lattices: products along x to outputs side by side, of lone tiles to vectors of each output.
   Answers whether all of them are finite: then zero times their sum is zero. Lanes past n do not count. */
static inline __attribute__((always_inline)) int NAME(join)(const int M, index_t d, index_t rows, index_t n,
                                                            const NAME(arrays) *from, REAL *to, index_t to_row)
{
    const int inputs = FROM(OUTPUTS, M);
    const index_t apart = NAME(up)(n) + LANES;
    REAL dealt[4 * (RUN_TILES + 2 * LANES)];
    VECTOR none = {0};
    REAL total = 0;
    for (index_t r = 0; r < rows; r++, to += to_row) {
        for (index_t p = 0; p < n; p += LANES) {
            VECTOR x[6], y[6];
#pragma GCC unroll 6
            for (int i = 0; i < inputs; i++)
                x[i] = LOAD(from->at + r * from->row + i * from->step + p);
            LOADED;
            NAME(line)(OUTPUTS, M, x, y);
#pragma GCC unroll 4
            for (int j = 0; j < SIZE(M); j++) {
                if (M < 0)
                    STORE(to + j * NAME(up)(n) + p, y[j]);
                else if (d > 1)
                    STORE(dealt + j * apart + p, y[j]);
                none += 0 * (p + LANES > n ? (VECTOR)((NAME(mask))y[j] & NAME(lanes)(p, 0, n)) : y[j]);
            }
            if (d > 1 || M < 0)
                continue;
            NAME(deal)(1, M, y);
#pragma GCC unroll 4
            for (int j = 0; j < M; j++)
                STORE(to + M * p + j * LANES, y[j]);
        }
        for (index_t q = 0; d > 1 && q < n; q += d)
            for (int j = 0; j < M; j++)
                for (index_t e = 0; e < d; e += SOME)
                    *(NAME(few) *)(to + M * q + j * d + e) = *(const NAME(few) *)(dealt + j * apart + q + e);
    }
    for (int lane = 0; lane < LANES; lane++)
        total += none[lane];
    return total == 0;
}

static __attribute__((noinline)) int NAME(join_outputs)(index_t m, index_t d, index_t rows, index_t n,
                                                        const NAME(arrays) from, REAL *to, index_t to_row)
{
#ifndef WHOLE
    if (m == -2)
        return NAME(join)(-2, 1, rows, n, &from, to, to_row);
    if (m == -3)
        return NAME(join)(-3, 1, rows, n, &from, to, to_row);
#endif
    return m == 1 ? NAME(join)(1, 1, rows, n, &from, to, to_row)
        : ARE_SMALL(m) ? NAME(join)(2, d, rows, n, &from, to, to_row) : NAME(join)(4, d, rows, n, &from, to, to_row);
}
