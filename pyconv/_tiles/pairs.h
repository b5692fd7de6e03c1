/* The two phases of a stride of 2 along x: their results, made one after the other, are interleaved and stored together
   as rows without gaps. See body.h for the macros. */

/* Where row `row` of a block's results and its positions (s, z, y, 0) lie. `direct` results are vectors of lanes; others
   lie in rows, or those of all rows side by side, `cell` apart. */
static inline index_t NAME(result_at)(const work_t *work, int direct, index_t row, index_t s, index_t z, index_t y)
{
    const index_t *extent = work->block.extent;
    const layout_t *layout = &work->layout;
    const index_t position = s * layout->batch + z * layout->axis[0] + y * layout->axis[1];
    if (direct)
        return row * layout->pitch + ((s * extent[0] + z) * extent[1] + y) * extent[2] * LANES;
    return layout->cell ? position * layout->cell : row * layout->pitch + position;
}

/* to <- n positions of a with n of b between them, `wide` vectors each. */
static inline void NAME(interleave_vectors)(const REAL *a, const REAL *b, index_t n, index_t wide, REAL *to)
{
    for (index_t q = 0; q < n; q++)
        for (index_t from = 0; from < 2; from++)
            for (index_t i = 0; i < wide; i++, to += LANES)
                STORE(to, LOAD((from ? b : a) + (q * wide + i) * LANES));
}

/* to <- even's first position, odd's first, even's second ... of every row; `whole` is the block of both. */
static void NAME(interleave)(const work_t *even, const void *even_result, const work_t *odd, const void *odd_result,
                             const work_t *whole, void *to, int direct)
{
    const index_t cell = direct ? LANES : even->layout.cell;
    const index_t rows = direct ? even->part.rows : cell ? 1 : even->part.groups * even->part.rows;
    const index_t *extent = even->block.extent, n = odd->block.extent[2], rest = extent[2] - n;
    for (index_t row = 0; row < rows; row++)
        for (index_t s = 0; s < even->block.samples; s++)
            for (index_t z = 0; z < extent[0]; z++)
                for (index_t y = 0; y < extent[1]; y++) {
                    const REAL *a = (const REAL *)even_result + NAME(result_at)(even, direct, row, s, z, y);
                    const REAL *b = (const REAL *)odd_result + NAME(result_at)(odd, direct, row, s, z, y);
                    REAL *both = (REAL *)to + NAME(result_at)(whole, direct, row, s, z, y);
                    if (cell) {
                        NAME(interleave_vectors)(a, b, n, cell / LANES, both);
                        if (rest > 0)
                            __builtin_memcpy(both + 2 * n * cell, a + n * cell, cell * sizeof(REAL));
                        continue;
                    }
                    for (index_t q = 0; q < n; q++) {
                        both[2 * q] = a[q];
                        both[2 * q + 1] = b[q];
                    }
                    if (rest > 0)
                        both[2 * n] = a[n];
                }
}
