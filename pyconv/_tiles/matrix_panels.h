/* Weights of the products of matrices.h, read as they are stored, several channels at a time. See body.h for the macros.
*/

#define PART ((index_t)sizeof(REAL) / CELL) /* bytes of a channel in a cell */

/* Channels of the places that are `there`, each or every second one, as words. */
static inline __attribute__((always_inline)) __m512i NAME(words_of_places)(const char *from, const int step,
                                                                         __mmask16 there)
{
    if (CELL == 1)
        return _mm512_maskz_loadu_epi32(there, from);
    const uint32_t spread = step == 2 ? _pdep_u32(there, 0x55555555u) : there;
    if (CELL == 2 && step == 1)
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from));
    if (CELL == 2)
        return _mm512_maskz_loadu_epi16(spread, from);
    if (step == 1)
        return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(there, from));
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi8(spread, from));
}

/* Cells of up to 16 places: up to `channels` channels, each `apart` bytes from the one before. Nothing but these places
   is read. */
static inline __attribute__((always_inline)) VECTOR NAME(cells_of_places)(const char *from, const int step,
                                                                        index_t apart, int channels, index_t n)
{
    const __mmask16 there = (__mmask16)((1u << n) - 1);
    __m512i cells = _mm512_setzero_si512();
    if (CELL == 1)
        return (VECTOR)NAME(words_of_places)(from, step, channels > 0 ? there : 0);
#pragma GCC unroll 4
    for (int b = CELL - 1; b >= 0; b--) {
        const __mmask16 some = b < channels ? there : 0;
        const char *place = b < channels ? from + b * apart : from;
        const __m512i one = NAME(words_of_places)(place, step, some);
        cells = _mm512_or_si512(_mm512_slli_epi32(cells, 8 * PART), one);
    }
    return (VECTOR)cells;
}

/* Up to 16 places of a run of weights, under one another in memory, of some cells: to[place] <- a row of cells. */
static inline __attribute__((always_inline)) void NAME(turn_cells)(const char *from, index_t apart, index_t channels,
                                                                 index_t cells, index_t n, REAL *const *to)
{
    for (index_t first = 0; first < cells; first += 16) {
        const index_t n_cells = cells - first < 16 ? cells - first : 16;
        VECTOR square[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            const index_t c = first + i, left = i < n_cells ? channels - c * CELL : 0;
            square[i] = NAME(cells_of_places)(left > 0 ? from + c * CELL * apart : from, 1, apart, (int)left, n);
        }
        NAME(turn_square)(square);
        for (index_t j = 0; j < n; j++)
            _mm512_mask_storeu_epi32(to[j] + first, (__mmask16)((1u << n_cells) - 1), (__m512i)square[j]);
    }
}

/* One row of weights under one tap, of channels that lie anyhow. */
static inline void NAME(read_weights)(const char *from, index_t apart, index_t channels, index_t cells, REAL *to)
{
    char *bytes = (char *)to;
    const index_t n = channels < cells * CELL ? channels : cells * CELL;
    if (apart == PART)
        __builtin_memcpy(bytes, from, n * PART);
    else
        for (index_t c = 0; c < n; c++)
            __builtin_memcpy(bytes + c * PART, from + c * apart, PART);
    __builtin_memset(bytes + n * PART, 0, (cells * CELL - n) * PART);
}

/* to[tap][row][cell] <- the weights of up to 32 rows under dense taps, where these lie side by side in a channel, or in a
   register's rows; `pitch` from tap to tap. */
static void NAME(pack_squares)(const piece_t *piece, const char *from, index_t rows, index_t channels, index_t cells,
                               REAL *to, index_t pitch)
{
    const index_t taps = NAME(all_taps)(piece), apart = PART * piece->weight_channel / CELL;
    const index_t at_once = piece->weight_row == taps ? rows : 1, run = at_once * taps;
    REAL *place[16];
    for (index_t r = 0; r < rows; r += at_once, from += PART * piece->weight_row)
        for (index_t first = 0; first < run; first += 16) {
            const index_t n = run - first < 16 ? run - first : 16;
            for (index_t j = 0; j < n; j++)
                place[j] = to + (first + j) % taps * pitch + (r + (first + j) / taps) * cells;
            NAME(turn_cells)(from + PART * first, apart, channels, cells, n, place);
        }
}

/* The same of taps that lie anyhow; where taps of a row are summed at once, to[tap of a column][row][tap of a row]. */
static void NAME(pack_taps)(const piece_t *piece, const char *from, index_t rows, index_t channels, index_t cells,
                            REAL *to, index_t pitch)
{
    const index_t taps = NAME(all_taps)(piece), width = piece->by_taps ? piece->axis[2].taps : 1;
    for (index_t r = 0; r < rows; r++, from += PART * piece->weight_row)
        for (index_t t = 0; t < taps; t++)
            NAME(read_weights)(from + PART * NAME(tap_at)(piece, t), PART * piece->weight_channel / CELL, channels, cells,
                               to + t / width * pitch + (r * width + t % width) * cells);
}

/* Of up to 32 rows and the channels that are summed at once, as above. */
static void NAME(pack_register)(const piece_t *piece, const char *from, index_t rows, index_t channels, index_t cells,
                                REAL *to, index_t pitch)
{
    if (NAME(has_dense_taps)(piece) && piece->weight_channel != CELL && !piece->by_taps)
        NAME(pack_squares)(piece, from, rows, channels, cells, to, pitch);
    else
        NAME(pack_taps)(piece, from, rows, channels, cells, to, pitch);
}
