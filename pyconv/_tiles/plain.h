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

/* A product with zero is zero unless the factor is NaN or infinite: as is what is not `small`, from 2^32 on in float32
   and from 2^256 in float64, times as much as makes it so. */
static int NAME(finite)(index_t n, const void *from, int small)
{
    const REAL *x = from;
#ifdef WHOLE
    const REAL factor = 1;
    (void)small;
#else
    const REAL factor = (REAL)(!small ? 1 : sizeof(REAL) == 4 ? 0x1p96 : 0x1p768);
#endif
    VECTOR sum[4] = {{0}};
    REAL rest = 0;
    index_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
#pragma GCC unroll 4
        for (int u = 0; u < 4; u++)
            sum[u] += LOAD(x + i + u * LANES) * factor * 0;
    for (; i < n; i++)
        rest += x[i] * factor * 0;
    const VECTOR all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (int lane = 0; lane < LANES; lane++)
        rest += all[lane];
    return rest == 0;
}
