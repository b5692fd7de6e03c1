/* Results in rows, stored as far as there are positions. See body.h for the macros. */

/* to[0, n) <- from + bias (+ to), nothing beyond: vectors of the largest power of two that fits, of which the last ends at
   n, whatever of it the others wrote; so it is worked out before them. */
static inline __attribute__((always_inline)) void NAME(store_dense)(REAL *to, const REAL *from, index_t n, REAL bias,
                                                                    const int accumulate)
{
#define PARTS(W)                                                                                                      \
    if (W <= LANES && n >= W) {                                                                                       \
        typedef REAL part __attribute__((vector_size(W * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));           \
        part last = *(const part *)(from + n - W) + bias;                                                             \
        if (accumulate)                                                                                               \
            last += *(const part *)(to + n - W);                                                                      \
        for (; n > W; n -= W, to += W, from += W)                                                                     \
            *(part *)to = accumulate ? *(const part *)from + bias + *(const part *)to : *(const part *)from + bias;   \
        *(part *)(to + n - W) = last;                                                                                 \
        return;                                                                                                       \
    }
    PARTS(16)
    PARTS(8)
    PARTS(4)
    PARTS(2)
    if (n)
        *to = accumulate ? *from + bias + *to : *from + bias;
#undef PARTS
}

static inline void NAME(store_run)(REAL *to, index_t step, const REAL *from, index_t n, REAL bias, int accumulate)
{
    if (step == 1 && accumulate)
        NAME(store_dense)(to, from, n, bias, 1);
    else if (step == 1)
        NAME(store_dense)(to, from, n, bias, 0);
    else if (accumulate)
        for (index_t q = 0; q < n; q++)
            to[q * step] += from[q] + bias;
    else
#pragma GCC unroll 4 /* the loop alone is so short that its place in memory decides how fast it is */
        for (index_t q = 0; q < n; q++)
            to[q * step] = from[q] + bias;
}

/* to <- what a tile has summed apart, in rows of whole vectors, as far as there are positions (+ to). */
static inline void NAME(store_cut)(index_t rows, index_t positions, const REAL *apart, REAL *to, index_t pitch,
                                   int accumulate)
{
    for (index_t i = 0; i < rows; i++)
        NAME(store_run)(to + i * pitch, 1, apart + i * NAME(up)(positions), positions, 0, accumulate);
}
