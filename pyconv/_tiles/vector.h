/* Vectors of any instruction set. See body.h for the macros. */

#define LANES ((index_t)(BYTES / sizeof(REAL)))
#define OF_LINE ((index_t)(64 / sizeof(REAL))) /* elements of a line of the cache */
typedef REAL NAME(vector) __attribute__((vector_size(BYTES), aligned(sizeof(REAL)), may_alias));
#define VECTOR NAME(vector)
#define LOAD(p) (*(const VECTOR *)(p))
#define STORE(p, v) (*(VECTOR *)(p) = (v))

/* What is multiplied several times lies across two cache lines as a rule, and compilers load it anew for each product if
   it is not asked to stay in its register, as sums are too (see tile.h); HELD: until now. */
#undef IN_REGISTER
#undef HELD
#if defined(__GNUC__) && defined(__x86_64__)
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#define HELD(v) __asm__("" : : "v"(v))
#else
#define IN_REGISTER(v) (void)(v)
#define HELD(v) (void)(v)
#endif

/* sum += a cell, or a vector of cells, times a vector of weights */
#undef ADD_PRODUCT
#if CELL == 1 || defined(MATRIX) /* whose products are others */
#define ADD_PRODUCT(sum, cell, weight) ((sum) += (cell) * (weight))
#elif CELL == 2 && BYTES == 64
#define ADD_PRODUCT(sum, cell, weight)                                                                                \
    ((sum) = (VECTOR)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)((cell) - (VECTOR){0}), (__m512i)(weight)))
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

/* Where the vector begins that holds element i of n: the last one ends with them, whatever of it the one before has too.
*/
static inline index_t NAME(vector_at)(index_t i, index_t n)
{
    return i + LANES <= n ? i : n - LANES;
}

/* The lanes of a vector at positions q, q + 1, ... that lie in [lo, hi): all bits set, as the others are clear. */
static inline __attribute__((always_inline)) NAME(mask) NAME(lanes)(index_t q, index_t lo, index_t hi)
{
    static const MASK count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const NAME(mask) lane = *(const NAME(mask) *)count;
    const index_t low = lo - q < 0 ? 0 : lo - q, high = hi - q < LANES ? hi - q : LANES;
    return (lane >= (MASK)low) & (lane < (MASK)high);
}

/* A table's row of 16 lanes e: f(e, w). */
#define OF_16(f, w)                                                                                                   \
    {f(0, w), f(1, w), f(2, w), f(3, w), f(4, w), f(5, w), f(6, w), f(7, w), f(8, w), f(9, w), f(10, w), f(11, w),    \
     f(12, w), f(13, w), f(14, w), f(15, w)}

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
