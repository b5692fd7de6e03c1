/* Vectors of any instruction set, and transposition in registers. See body.h for the macros. */

#define LANES ((index_t)(BYTES / sizeof(REAL)))
typedef REAL NAME(vector) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(vector)
#define LOAD(p) (*(const VECTOR *)(p))
#define STORE(p, v) (*(VECTOR *)(p) = (v))

/* What is multiplied several times lies across two cache lines as a rule, and compilers load it anew for each product if
   it is not asked to stay. */
#undef IN_REGISTER
#if defined(__GNUC__) && defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else
#define IN_REGISTER(v) (void)(v)
#endif

/* sum += a cell, or a vector of cells, times a vector of weights */
#undef ADD_PRODUCT
#if CELL == 1
#define ADD_PRODUCT(sum, cell, weight) ((sum) += (cell) * (weight))
#elif CELL == 2
#define ADD_PRODUCT(sum, cell, weight)                                                                                \
    ((sum) += (VECTOR)_mm256_madd_epi16((__m256i)((cell) - (VECTOR){0}), (__m256i)(weight)))
#elif WEIGHT_IS_SIGNED
#define ADD_PRODUCT(sum, cell, weight)                                                                                \
    ((sum) = (VECTOR)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)((cell) - (VECTOR){0}), (__m512i)(weight)))
#else
#define ADD_PRODUCT(sum, cell, weight)                                                                                \
    ((sum) = (VECTOR)_mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(weight), (__m512i)((cell) - (VECTOR){0})))
#endif

static inline index_t NAME(up)(index_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

typedef MASK NAME(mask) __attribute__((vector_size(BYTES), aligned(sizeof(MASK)), may_alias));

/* For stage w of a transposition: which lanes of two rows that are w apart make the new upper and the new lower row. */
#define UPPER(e, w) ((e) & (w) ? LANES + (e) - (w) : (e))
#define LOWER(e, w) ((e) & (w) ? LANES + (e) : (e) + (w))
#define OF_16(f, w)                                                                                                   \
    {f(0, w), f(1, w), f(2, w), f(3, w), f(4, w), f(5, w), f(6, w), f(7, w), f(8, w), f(9, w), f(10, w), f(11, w),    \
     f(12, w), f(13, w), f(14, w), f(15, w)}
static const MASK NAME(stage)[4][2][16] = {{OF_16(UPPER, 1), OF_16(LOWER, 1)},
                                           {OF_16(UPPER, 2), OF_16(LOWER, 2)},
                                           {OF_16(UPPER, 4), OF_16(LOWER, 4)},
                                           {OF_16(UPPER, 8), OF_16(LOWER, 8)}};
#undef UPPER
#undef LOWER

/* The first lane of each lane's group, where these have 1, 2, 4 or 8 lanes. */
#define FIRST(e, w) ((e) / (w) * (w))
static const MASK NAME(first_lanes)[4][16] = {OF_16(FIRST, 1), OF_16(FIRST, 2), OF_16(FIRST, 4), OF_16(FIRST, 8)};
#undef FIRST

/* Any lanes of a vector. */
static inline __attribute__((always_inline)) VECTOR NAME(pick)(VECTOR from, NAME(mask) lanes)
{
#if defined(__GNUC__) && !defined(__clang__)
    return __builtin_shuffle(from, lanes);
#else
    VECTOR picked = from;
    for (int i = 0; i < LANES; i++)
        picked[i] = from[lanes[i]];
    return picked;
#endif
}

/* LANES x LANES in registers: stage w swaps the off-diagonal blocks of width w, for w = 1, 2, 4, ... */
static inline __attribute__((always_inline)) void NAME(turn_square)(VECTOR *rows)
{
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
    for (int stage = 0; 1 << stage < LANES; stage++) {
        const int w = 1 << stage;
        const NAME(mask) upper = *(const NAME(mask) *)NAME(stage)[stage][0];
        const NAME(mask) lower = *(const NAME(mask) *)NAME(stage)[stage][1];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & w)) {
                const VECTOR a = rows[i], b = rows[i + w];
                rows[i] = __builtin_shuffle(a, b, upper);
                rows[i + w] = __builtin_shuffle(a, b, lower);
            }
    }
#else
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < i; j++) {
            const REAL swap = rows[i][j];
            rows[i][j] = rows[j][i];
            rows[j][i] = swap;
        }
#endif
}

static inline __attribute__((always_inline)) void NAME(put)(REAL *to, REAL value, const int accumulate)
{
    *to = accumulate ? *to + value : value; /* no 0 is added: -0 would be another number of the rest than of squares */
}

/* Elements up to i of n are turned: where the next square of LANES begins. That is at i; at the end so that it ends with
   them, if it MAY turn some once more and a fourth of it or more is new; n where the rest is moved one by one. */
static inline __attribute__((always_inline)) index_t NAME(square_at)(const int MAY, index_t i, index_t n)
{
    if (i + LANES <= n)
        return i;
    return MAY && n >= LANES && 4 * (n - i) >= LANES ? n - LANES : n;
}

/* to[column][row] (+)= from[row][column]; what is added may be so but once. */
static inline __attribute__((always_inline)) void NAME(transpose)(
    REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows, index_t columns,
    const int accumulate)
{
    index_t i = 0;
    for (index_t top; (top = NAME(square_at)(!accumulate, i, rows)) < rows; i = top + LANES) {
        index_t j = 0;
        for (index_t left; (left = NAME(square_at)(!accumulate, j, columns)) < columns; j = left + LANES) {
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
        for (; j < columns; j++)
            for (int r = 0; r < LANES; r++)
                NAME(put)(to + j * to_pitch + top + r, from[(top + r) * from_pitch + j], accumulate);
    }
    for (; i < rows; i++)
        for (index_t j = 0; j < columns; j++)
            NAME(put)(to + j * to_pitch + i, from[i * from_pitch + j], accumulate);
}
