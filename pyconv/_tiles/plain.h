/* Whole arrays, and columns that a caller asked for. See body.h for the macros. */

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

/* One plane (channel of a sample) under one tap: columns[position] <- the cell, or zero. */
static void NAME(unfold_tap)(const piece_t *piece, index_t tap, const void *plane, void *columns)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t z_shift = z->offset + z->tap_step * (tap / (x->taps * y->taps));
    const index_t y_shift = y->offset + y->tap_step * (tap / x->taps % y->taps);
    const index_t x_shift = x->offset + x->tap_step * (tap % x->taps);
    REAL *to = columns;
    index_t lo, hi;
    NAME(valid)(x, 0, piece->count[2], x_shift, &lo, &hi);
    for (index_t qz = 0; qz < piece->count[0]; qz++)
        for (index_t qy = 0; qy < piece->count[1]; qy++, to += piece->count[2]) {
            const index_t iz = z->step * qz + z_shift, iy = y->step * qy + y_shift;
            const int inside = iz >= 0 && iz < z->size && iy >= 0 && iy < y->size;
            const REAL *from = (const REAL *)plane + iz * piece->source_stride[0] + iy * piece->source_stride[1]
                + x_shift;
            for (index_t q = 0; q < piece->count[2]; q++)
                to[q] = inside && q >= lo && q < hi ? from[x->step * q] : 0;
        }
}

/* Row (cz, cy) of one plane += the sum of all columns that were read from it, taps in ascending order; `pitch` elements
   lie between the columns of two taps. */
static void NAME(fold_row)(const piece_t *piece, index_t cz, index_t cy, const void *columns, index_t pitch, void *row)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    REAL *to = row;
    for (index_t tz = 0; tz < z->taps; tz++)
        for (index_t ty = 0; ty < y->taps; ty++) {
            const index_t fz = cz - z->offset - z->tap_step * tz, fy = cy - y->offset - y->tap_step * ty;
            if (fz < 0 || fz % z->step || fz / z->step >= piece->count[0] || fy < 0 || fy % y->step
                || fy / y->step >= piece->count[1])
                continue;
            for (index_t tx = 0; tx < x->taps; tx++) {
                const index_t shift = x->offset + x->tap_step * tx;
                const REAL *from = (const REAL *)columns + ((tz * y->taps + ty) * x->taps + tx) * pitch
                    + (fz / z->step * piece->count[1] + fy / y->step) * piece->count[2];
                index_t lo, hi;
                NAME(valid)(x, 0, piece->count[2], shift, &lo, &hi);
                for (index_t q = lo; q < hi; q++)
                    to[x->step * q + shift] += from[q];
            }
        }
}
