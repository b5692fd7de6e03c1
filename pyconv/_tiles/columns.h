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

/* Places of an axis are told by their distance from its first cell. Beyond the edges they stand for the axis' cells over
   and over: those of a circular edge forwards, of one that reflects forwards and backwards by turns. */
static inline index_t NAME(turn_of)(const piece_t *piece, int a)
{
    const index_t size = piece->axis[a].size;
    return piece->edge == EDGE_CIRCULAR ? size : 2 * (size - 1);
}

static inline int NAME(repeats_ends)(const piece_t *piece, int a)
{
    return piece->edge == EDGE_REPLICATE || piece->axis[a].size == 1;
}

/* The first position from q on, of n, whose place is so far behind the beginning of a turn; n where there is none. */
static inline index_t NAME(next_in_turn)(index_t step, index_t shift, index_t behind, index_t turn, index_t q, index_t n)
{
    if (q >= n)
        return n;
    const index_t over = (step * q + shift - behind) % turn, pace = step % turn;
    index_t left = over > 0 ? turn - over : -over;
    if (left == 0 || pace == 0)
        return left ? n : q;
    for (index_t turns = 0; turns < pace && left / pace < n - q; turns++, left += turn)
        if (left % pace == 0)
            return q + left / pace;
    return n;
}

/* The first position behind q whose place, under the tap of an axis that is `shift` away, is `cell` or stands for it;
   their count where there is none. */
static inline index_t NAME(next_that_reads)(const piece_t *piece, int a, index_t shift, index_t cell, index_t q)
{
    const axis_t *axis = &piece->axis[a];
    const index_t n = piece->count[a], step = axis->step, size = axis->size, own = cell - shift;
    const index_t at = own >= 0 && own % step == 0 ? own / step : n;
    if (piece->edge <= EDGE_CONSTANT)
        return at > q && at < n ? at : n;
    q++;
    if (!NAME(repeats_ends)(piece, a)) {
        const index_t turn = NAME(turn_of)(piece, a), forwards = NAME(next_in_turn)(step, shift, cell, turn, q, n);
        if (piece->edge == EDGE_CIRCULAR || cell == 0 || cell == size - 1)
            return forwards;
        const index_t backwards = NAME(next_in_turn)(step, shift, -cell, turn, q, n);
        return forwards < backwards ? forwards : backwards;
    }
    const index_t inside = NAME(steps_to)(-shift, step), behind = NAME(steps_to)(size - shift, step);
    if (cell == 0 && q < inside)
        return q < n ? q : n;
    if (at >= q && at < n)
        return at;
    q = q > behind ? q : behind;
    return cell == size - 1 && q < n ? q : n;
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

/* sums, `step` apart, += columns [lo, hi). */
static inline void NAME(add_columns)(const piece_t *piece, index_t step, const char *columns, index_t lo, index_t hi,
                                     REAL *sums)
{
    const int stored = piece->stored[SOURCE];
    const index_t parts = piece->parts, size = NAME(size_of)(stored);
    REAL converted[CONVERTED];
    if (stored == STORED_REAL)
        NAME(add_cells)(step, parts, (const REAL *)columns + lo * parts, (hi - lo) * parts, sums);
    else
        for (index_t at = lo * parts; at < hi * parts; at += CONVERTED, sums += CONVERTED * step) {
            const index_t some = hi * parts - at < CONVERTED ? hi * parts - at : CONVERTED;
            NAME(read_row)(stored, columns + at * size, 1, some, converted);
            NAME(add_cells)(step, parts, converted, some, sums);
        }
}

/* sums of `count` cells += those of a row of columns whose places, `shift` away, are among them. */
static inline void NAME(add_those_within)(const piece_t *piece, index_t shift, const char *columns, index_t count,
                                          REAL *sums)
{
    axis_t here = piece->axis[2];
    index_t lo, hi;
    here.size = count;
    NAME(valid)(&here, 0, piece->count[2], shift, &lo, &hi);
    if (hi > lo)
        NAME(add_columns)(piece, here.step, columns, lo, hi, sums + (here.step * lo + shift) * piece->parts);
}

/* The same of those whose places stand for cells [low, high] backwards: cell + step * q = top. */
static inline void NAME(add_those_backwards)(const piece_t *piece, index_t top, const char *columns, index_t low,
                                             index_t high, REAL *sums)
{
    const index_t step = piece->axis[2].step, lo = NAME(steps_to)(top - high, step);
    index_t hi = low <= high && top >= low ? (top - low) / step + 1 : 0;
    hi = hi < piece->count[2] ? hi : piece->count[2];
    if (hi > lo)
        NAME(add_columns)(piece, -step, columns, lo, hi, sums + (top - step * lo) * piece->parts);
}

/* A cell += the sum of columns [lo, hi), which may be far more than others': of floats it is made in double. */
static void NAME(add_sum)(const piece_t *piece, const char *columns, index_t lo, index_t hi, REAL *cell)
{
#ifdef WHOLE
    REAL total[2] = {0, 0};
#else
    double total[2] = {0, 0};
#endif
    const int stored = piece->stored[SOURCE];
    const index_t parts = piece->parts, size = NAME(size_of)(stored);
    REAL cells[CONVERTED];
    for (index_t at = lo * parts; at < hi * parts; at += CONVERTED) {
        const index_t some = hi * parts - at < CONVERTED ? hi * parts - at : CONVERTED;
        NAME(read_row)(stored, columns + at * size, 1, some, cells);
        for (index_t i = 0; i < some; i += parts)
            for (index_t p = 0; p < parts; p++)
                total[p] += cells[i + p];
    }
    for (index_t p = 0; p < parts && lo < hi; p++)
        cell[p] += (REAL)total[p];
}

/* Cells [first, first + count) of a row += one row of columns under a tap that is `shift` away. */
static void NAME(fold_columns)(const piece_t *piece, index_t shift, const char *columns, index_t first, index_t count,
                               REAL *sums)
{
    const axis_t *x = &piece->axis[2];
    const index_t n = piece->count[2], size = x->size, parts = piece->parts;
    if (piece->edge <= EDGE_CONSTANT || NAME(repeats_ends)(piece, 2)) {
        index_t lo, hi;
        NAME(add_those_within)(piece, shift - first, columns, count, sums);
        if (piece->edge <= EDGE_CONSTANT)
            return;
        NAME(valid)(x, 0, n, shift, &lo, &hi);
        if (first == 0)
            NAME(add_sum)(piece, columns, 0, lo, sums);
        if (first + count == size)
            NAME(add_sum)(piece, columns, hi, n, sums + (count - 1) * parts);
        return;
    }
    const index_t turn = NAME(turn_of)(piece, 2), end = x->step * (n - 1) + shift + 1;
    if (x->step > turn) { /* most turns have no position */
        for (index_t q = 0; q < n; q++) {
            const index_t cell = NAME(fold)(piece->edge, x->step * q + shift, size) - first;
            if (cell >= 0 && cell < count)
                NAME(add_columns)(piece, x->step, columns, q, q + 1, sums + cell * parts);
        }
        return;
    }
    const index_t over = shift % turn, low = first > 1 ? first : 1;
    const index_t high = first + count < size - 1 ? first + count - 1 : size - 2;
    for (index_t at = shift - over - (over < 0 ? turn : 0); at < end; at += turn) {
        NAME(add_those_within)(piece, shift - at - first, columns, count, sums);
        if (piece->edge == EDGE_REFLECT)
            NAME(add_those_backwards)(piece, at + turn - shift - first, columns, low - first, high - first, sums);
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
