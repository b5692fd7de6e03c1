/* Bytes by fours: a cell holds four of source's channels, a weight as many, and their products are summed at once. The
   instruction wants bytes of source without a sign and those of the weight with one, or the other way round. So 128 is
   added to source's bytes, modulo 256, which is to take their sign or to give them one: zero is then ZEROS. What
   this adds to sums, the products with ZEROS, is the same wherever the same taps have a cell, and taken off there at the
   start. See body.h for the macros. */

#if QUADS

#define ZEROS ((REAL)0x80808080)

/* How many of a cell's channels there are: of channel `channel` of a group's cells. */
static inline int NAME(bytes_of)(const piece_t *piece, index_t channel)
{
    return piece->quads - 4 * channel < 4 ? (int)(piece->quads - 4 * channel) : 4;
}

/* to[0, n) <- `bytes` channels, `apart` from one to the next, of cells `step` apart; `flipped` for source's. */
static inline void NAME(read_quads)(const char *from, index_t apart, int bytes, index_t step, index_t n, int flipped,
                                    REAL *to)
{
    const REAL flip = flipped ? ZEROS : 0;
    const uint8_t *byte = (const uint8_t *)from;
    if (bytes == 4 && apart == 1)
        for (index_t i = 0; i < n; i++) {
            REAL all;
            __builtin_memcpy(&all, byte + i * step, sizeof(all));
            to[i] = all ^ flip;
        }
    else if (bytes == 4 && step == 1 && n <= LANES && 3 * apart + n <= BYTES) { /* as 3 x 3 taps: bytes of one vector */
        static const int count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
        const VECTOR place = *(const VECTOR *)count * 0x01010101 + (REAL)apart * 0x03020100;
        const __m512i all = _mm512_maskz_loadu_epi8(~0ull >> (BYTES - 3 * apart - n), from);
        _mm512_mask_storeu_epi32(to, (__mmask16)(0xffff >> (LANES - n)), (__m512i)(
            (VECTOR)_mm512_permutexvar_epi8((__m512i)place, all) ^ flip));
    } else if (bytes == 4 && step == 1)
        for (index_t i = 0; i < n; i++)
            to[i] = (byte[i] | (REAL)byte[apart + i] << 8 | (REAL)byte[2 * apart + i] << 16
                     | (REAL)byte[3 * apart + i] << 24) ^ flip;
    else
        for (index_t i = 0; i < n; i++) {
            REAL all = 0;
            for (int b = bytes - 1; b >= 0; b--)
                all = all << 8 | byte[b * apart + i * step];
            to[i] = all ^ flip;
        }
}

/* Of a panel of columns, what the products of each tap with ZEROS come to: [tap][columns of all panels]. */
static void NAME(sum_taps)(const work_t *work, const REAL *panel, index_t column, index_t wide, REAL *of_taps)
{
    const index_t channels = work->part.channels, taps = NAME(all_taps)(work->piece), all = NAME(up)(work->part.rows);
    for (index_t tap = 0; tap < taps; tap++)
        for (index_t v = 0; v < wide; v += LANES) {
            VECTOR sum = {0};
            for (index_t c = 0; c < channels; c++)
                ADD_PRODUCT(sum, ZEROS, LOAD(panel + (c * taps + tap) * wide + v));
            STORE(of_taps + tap * all + column + v, sum);
        }
}

/* What the sums of a box begin with, for some columns: less what its taps' products with ZEROS come to. */
static void NAME(list_starts)(const work_t *work, const NAME(product) *list, index_t products, const REAL *of_taps,
                              index_t column, index_t end, REAL *start)
{
    const index_t taps = work->part.channels ? products / work->part.channels : 0, all = NAME(up)(work->part.rows);
    for (index_t v = column; v < end; v += LANES) {
        VECTOR sum = {0};
        for (index_t tap = 0; tap < taps; tap++)
            sum -= LOAD(of_taps + list[tap].row * all + v);
        STORE(start + v, sum);
    }
}

#endif
