/* Transposition in registers. See body.h for the macros. */

typedef MASK NAME(mask) __attribute__((vector_size(BYTES), aligned(sizeof(MASK)), may_alias));

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
