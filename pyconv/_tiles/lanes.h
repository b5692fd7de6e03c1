/* Some lanes of a vector, and sums of the lanes of several at once. See body.h for the macros. */

/* The lanes [low, high) of a vector, as bits. */
static inline __attribute__((always_inline)) NAME(mask) NAME(lanes_between)(index_t low, index_t high)
{
#define FOUR(n) n, n, n, n
#define SIXTEEN(n) FOUR(n), FOUR(n), FOUR(n), FOUR(n)
    static const MASK run[] = {SIXTEEN(0), SIXTEEN(-1), SIXTEEN(0)};
#undef SIXTEEN
#undef FOUR
    low = low < 0 ? 0 : low < LANES ? low : LANES;
    high = high < 0 ? 0 : high < LANES ? high : LANES;
    return *(const NAME(mask) *)(run + 16 - low) & *(const NAME(mask) *)(run + 32 - high);
}

/* The lane, if there is one of that number. */
static inline __attribute__((always_inline)) NAME(mask) NAME(lane)(index_t number)
{
    return NAME(lanes_between)(number, number + 1);
}

/* Those lanes of a vector, and zeros. */
static inline __attribute__((always_inline)) VECTOR NAME(keep)(VECTOR cells, NAME(mask) lanes)
{
    return (VECTOR)((NAME(mask))cells & lanes);
}

/* Lanes of two vectors of segments 2 * half long: the first and the second half of each segment. */
#define SEGMENT(e, half) ((e) / (half) % (2 * (half) > LANES ? 1 : LANES / (2 * (half))) * 2 * (half) + (e) % (half))
#define OF_SECOND(e, half) ((e) < LANES / 2 ? 0 : LANES)
#define FIRST_HALF(e, half) (SEGMENT(e, half) + OF_SECOND(e, half))
#define SECOND_HALF(e, half) (FIRST_HALF(e, half) + (half))
static const MASK NAME(half_lanes)[4][2][16] = {{OF_16(FIRST_HALF, 1), OF_16(SECOND_HALF, 1)},
                                                {OF_16(FIRST_HALF, 2), OF_16(SECOND_HALF, 2)},
                                                {OF_16(FIRST_HALF, 4), OF_16(SECOND_HALF, 4)},
                                                {OF_16(FIRST_HALF, 8), OF_16(SECOND_HALF, 8)}};
#undef OF_16 /* vector.h's */

#if defined(__GNUC__) && !defined(__clang__)
/* N vectors, of segments 2 << stage long, become half as many: each pair one with the sums of the halves of each segment,
   three instructions. */
static inline __attribute__((always_inline)) void NAME(add_halves)(const int N, const int stage, VECTOR *sum)
{
    const NAME(mask) first = *(const NAME(mask) *)NAME(half_lanes)[stage][0];
    const NAME(mask) second = *(const NAME(mask) *)NAME(half_lanes)[stage][1];
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
