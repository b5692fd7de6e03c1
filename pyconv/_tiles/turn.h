/* Transposition, for grad_weight: target's channels become the vector axis, and results go back. See body.h. */

/* LANES x LANES in registers: stage w swaps the off-diagonal blocks of width w, for w = 1, 2, 4, ... */
static inline __attribute__((always_inline)) void NAME(turn_square)(VECTOR *rows)
{
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 4
    for (int w = 1; w < LANES; w *= 2) {
        NAME(mask) low, high;
#pragma GCC unroll 16
        for (int e = 0; e < LANES; e++) {
            low[e] = e & w ? LANES + e - w : e;
            high[e] = e & w ? LANES + e : e + w;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (!(i & w)) {
                const VECTOR a = rows[i], b = rows[i + w];
                rows[i] = __builtin_shuffle(a, b, low);
                rows[i + w] = __builtin_shuffle(a, b, high);
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

/* to[column][row] (+)= from[row][column]. */
static inline __attribute__((always_inline)) void NAME(transpose)(
    REAL *to, index_t to_pitch, const REAL *from, index_t from_pitch, index_t rows, index_t columns,
    const int accumulate)
{
    index_t i = 0, j = 0;
    for (; i + LANES <= rows; i += LANES) {
        for (j = 0; j + LANES <= columns; j += LANES) {
            VECTOR square[16];
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++)
                square[r] = LOAD(from + (i + r) * from_pitch + j);
            NAME(turn_square)(square);
#pragma GCC unroll 16
            for (int r = 0; r < LANES; r++) {
                if (accumulate)
                    square[r] += LOAD(to + (j + r) * to_pitch + i);
                STORE(to + (j + r) * to_pitch + i, square[r]);
            }
        }
        for (; j < columns; j++)
            for (int r = 0; r < LANES; r++)
                to[j * to_pitch + i + r] = from[(i + r) * from_pitch + j] + (accumulate ? to[j * to_pitch + i + r] : 0);
    }
    for (; i < rows; i++)
        for (j = 0; j < columns; j++)
            to[j * to_pitch + i] = from[i * from_pitch + j] + (accumulate ? to[j * to_pitch + i] : 0);
}

static void NAME(turn)(const piece_t *piece, const block_t *block, const void *target, index_t columns,
                       void *turned)
{
    const NAME(runs) r = NAME(find_runs)(piece, block);
    const index_t first = NAME(first)(piece, block), step = piece->target_stride[2];
    REAL *panel = turned;
    for (index_t column = 0, wide; column < columns; column += wide) {
        wide = NAME(panel)(columns - column) * LANES;
        const index_t here = columns - column < wide ? columns - column : wide;
        const REAL *channel = (const REAL *)target + column * piece->target_channel + first;
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++, panel += r.run * wide) {
                    const REAL *from = channel + s * piece->target_batch + z * piece->target_stride[0]
                        + y * piece->target_stride[1];
                    if (here < wide)
                        NAME(clear)(panel, r.run * wide);
                    if (step == 1)
                        NAME(transpose)(panel, wide, from, piece->target_channel, here, r.run, 0);
                    else
                        for (index_t i = 0; i < here; i++)
                            for (index_t q = 0; q < r.run; q++)
                                panel[q * wide + i] = from[i * piece->target_channel + q * step];
                }
    }
}

static void NAME(store_weight)(const piece_t *piece, const void *result, index_t pitch, index_t columns,
                               index_t channels, void *weight, int accumulate)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t taps = z->taps * y->taps * x->taps;
    const REAL *from = result;
    REAL *to = weight;
    if (piece->weight_channel == taps) {
        if (accumulate)
            NAME(transpose)(to, piece->weight_row, from, pitch, channels * taps, columns, 1);
        else
            NAME(transpose)(to, piece->weight_row, from, pitch, channels * taps, columns, 0);
        return;
    }
    for (index_t c = 0; c < channels; c++)
        for (index_t tz = 0; tz < z->taps; tz++)
            for (index_t ty = 0; ty < y->taps; ty++)
                for (index_t tx = 0; tx < x->taps; tx++, from += pitch)
                    for (index_t j = 0; j < columns; j++) {
                        REAL *at = to + j * piece->weight_row + c * piece->weight_channel
                            + tz * piece->weight_stride[0] + ty * piece->weight_stride[1]
                            + tx * piece->weight_stride[2];
                        *at = accumulate ? *at + from[j] : from[j];
                    }
}
