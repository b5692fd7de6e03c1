/* Columns that a caller asked for, and their sum. See body.h for the macros. */

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

/* The first position behind q whose cell, under the tap of an axis that is `shift` away, is `cell` or stands for it;
   their count where there is none. Beyond the edges, of modes that repeat cells, each is looked at. */
static inline index_t NAME(next_that_reads)(const piece_t *piece, int a, index_t shift, index_t cell, index_t q)
{
    const axis_t *axis = &piece->axis[a];
    const index_t n = piece->count[a], own = cell - shift, at = own % axis->step ? -1 : own / axis->step;
    index_t lo, hi;
    if (piece->edge <= EDGE_CONSTANT)
        return at > q && at < n ? at : n;
    NAME(valid)(axis, 0, n, shift, &lo, &hi);
    for (q++; q < n; q++) {
        if (q >= lo && q < hi) {
            if (at >= q && at < hi)
                return at;
            q = hi - 1;
        } else if (NAME(fold)(piece->edge, axis->step * q + shift, axis->size) == cell)
            return q;
    }
    return n;
}

/* sums, `step` apart, += columns, n numbers of so many `parts` of a cell. */
static inline void NAME(add_cells)(index_t step, index_t parts, const REAL *cells, index_t n, REAL *restrict sums)
{
    if (step == 1)
        for (index_t i = 0; i < n; i++)
            sums[i] += cells[i];
    else if (parts == 1)
        for (index_t i = 0; i < n; i++)
            sums[i * step] += cells[i];
    else
        for (index_t i = 0; i < n; i += parts)
            for (index_t p = 0; p < parts; p++)
                sums[i * step + p] += cells[i + p];
}

/* The same of columns in another type. */
static __attribute__((noinline)) void NAME(add_converted)(const piece_t *piece, const char *columns, index_t n,
                                                          REAL *sums)
{
    const int stored = piece->stored[SOURCE];
    const index_t step = piece->axis[2].step, size = NAME(size_of)(stored);
    REAL cells[CONVERTED];
    for (index_t first = 0; first < n; first += CONVERTED) {
        const index_t some = n - first < CONVERTED ? n - first : CONVERTED;
        NAME(read_row)(stored, columns + first * size, 1, some, cells);
        NAME(add_cells)(step, piece->parts, cells, some, sums + first * step);
    }
}

/* sums += columns[lo, hi), whose cells lie a step apart from the first of the sums on. */
static inline void NAME(add_columns)(const piece_t *piece, const char *columns, index_t lo, index_t hi, REAL *sums)
{
    const index_t parts = piece->parts, n = (hi - lo) * parts;
    if (piece->stored[SOURCE] != STORED_REAL)
        NAME(add_converted)(piece, columns + lo * parts * NAME(size_of)(piece->stored[SOURCE]), n, sums);
    else
        NAME(add_cells)(piece->axis[2].step, parts, (const REAL *)columns + lo * parts, n, sums);
}

/* sums of `count` cells += those of a row of columns whose cells, `shift` away, are among them. */
static inline void NAME(add_those_within)(const piece_t *piece, index_t shift, const char *columns, index_t count,
                                          REAL *sums)
{
    axis_t here = piece->axis[2];
    index_t lo, hi;
    here.size = count;
    NAME(valid)(&here, 0, piece->count[2], shift, &lo, &hi);
    if (hi > lo)
        NAME(add_columns)(piece, columns, lo, hi, sums + (here.step * lo + shift) * piece->parts);
}

/* Cells [first, first + count) of a row += one row of columns under a tap that is `shift` away. */
static void NAME(fold_columns)(const piece_t *piece, index_t shift, const char *columns, index_t first, index_t count,
                               REAL *sums)
{
    const axis_t *x = &piece->axis[2];
    const index_t n = piece->count[2], end = x->step * (n - 1) + shift + 1;
    index_t lo, hi;
    if (piece->edge == EDGE_CIRCULAR && x->step <= x->size) { /* round after round: each has a position */
        const index_t round = x->size, begin = shift % round;
        for (index_t at = shift - begin - (begin < 0 ? round : 0); at < end; at += round)
            NAME(add_those_within)(piece, shift - at - first, columns, count, sums);
        return;
    }
    NAME(add_those_within)(piece, shift - first, columns, count, sums);
    if (piece->edge <= EDGE_CONSTANT)
        return;
    NAME(valid)(x, 0, n, shift, &lo, &hi);
    for (index_t q = lo > 0 ? 0 : hi; q < n; q = q + 1 == lo ? hi : q + 1) {
        const index_t cell = NAME(fold)(piece->edge, x->step * q + shift, x->size) - first;
        if (cell >= 0 && cell < count)
            NAME(add_columns)(piece, columns, q, q + 1, sums + cell * piece->parts);
    }
}

/* Cells [first, first + count) of some rows of one plane, from row (cz, cy) on, += the sum of all columns that were read
   from them, taps in ascending order; `pitch` elements lie between the columns of two taps, `across` between two rows of
   sums. What lies together in memory, the columns of neighbouring rows under a tap, is read together. */
static void NAME(fold_rows)(const piece_t *piece, index_t cz, index_t cy, index_t rows, index_t first, index_t count,
                            const void *columns, index_t pitch, void *sums, index_t across)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t item = piece->parts * NAME(size_of)(piece->stored[SOURCE]), of_row = piece->count[2];
    for (index_t tz = 0; tz < z->taps; tz++)
        for (index_t ty = 0; ty < y->taps; ty++)
            for (index_t row = 0; row < rows; row++) {
                const index_t z_shift = z->offset + z->tap_step * tz, y_shift = y->offset + y->tap_step * ty;
                REAL *to = (REAL *)sums + row * across;
                for (index_t qz = -1; (qz = NAME(next_that_reads)(piece, 0, z_shift, cz, qz)) < piece->count[0];)
                    for (index_t qy = -1;
                         (qy = NAME(next_that_reads)(piece, 1, y_shift, cy + row, qy)) < piece->count[1];) {
                        const char *there = (const char *)columns + item * (
                            (tz * y->taps + ty) * x->taps * pitch + (qz * piece->count[1] + qy) * of_row);
                        for (index_t tx = 0; tx < x->taps; tx++)
                            NAME(fold_columns)(piece, x->offset + x->tap_step * tx, there + tx * pitch * item, first,
                                               count, to);
                    }
            }
}
