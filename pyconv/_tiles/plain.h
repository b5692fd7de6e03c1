/* Whole arrays. See body.h for the macros. */

static void NAME(zero)(index_t n, void *to)
{
    for (index_t i = 0; i < n; i++)
        ((REAL *)to)[i] = 0;
}

static void NAME(add)(index_t n, const void *from, void *to)
{
    for (index_t i = 0; i < n; i++)
        ((REAL *)to)[i] += ((const REAL *)from)[i];
}

/* In float64 over vectors of at most 4096 partial sums: the error does not grow with n. */
static double NAME(sum)(index_t n, const void *from)
{
    const REAL *x = from;
    double total = 0;
    while (n > 0) {
        const index_t part = n < 4096 ? n : 4096;
        VECTOR sum[4] = {{0}};
        index_t i = 0;
        for (; i + 4 * LANES <= part; i += 4 * LANES)
#pragma GCC unroll 4
            for (int u = 0; u < 4; u++)
                sum[u] += LOAD(x + i + u * LANES);
        const VECTOR all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        for (int lane = 0; lane < LANES; lane++)
            total += all[lane];
        for (; i < part; i++)
            total += x[i];
        x += part;
        n -= part;
    }
    return total;
}

/* A product with zero is zero unless the factor is NaN or infinite. */
static int NAME(finite)(index_t n, const void *from)
{
    const REAL *x = from;
    VECTOR sum[4] = {{0}};
    REAL rest = 0;
    index_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++)
            sum[u] += LOAD(x + i + u * LANES) * 0;
    for (; i < n; i++)
        rest += x[i] * 0;
    const VECTOR all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int lane = 0; lane < LANES; lane++)
        rest += all[lane];
    return rest == 0;
}
