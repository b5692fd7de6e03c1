/* Cells of several of source's channels, in fewer bits each; a weight has as many, and their products are summed at once.

   Of 2, each has 16 bits, whatever it has in memory: products of 8 bits, or of 16 with a sign, are then exact modulo
   2**32, as are their sums: of the one pair whose sum is 2**31, -2**31 has the same bits.

   Of 4, each is a byte. The instruction wants bytes of source without a sign and those of the weight with one, or the
   other way round. So 128 is added to source's bytes, modulo 256, which is to take their sign or to give them one: zero
   is then ZEROS. What this adds to sums, the products with ZEROS, is the same wherever the same taps have a cell, and
   taken off there at the start: STARTS says whether sums begin with something.

   Registers for matrices (see matrices.h) multiply bytes as they are, whether both operands' have a sign or neither's, and
   pairs of brain floats, whose sums are floats.

   See body.h for the macros. */

#undef STARTS
#ifdef MATRIX
#define STARTS 0
#else
#define STARTS (CELL == 4)
#endif

#if CELL > 1

/* How many of a cell's channels there are: of channel `channel` of a group's cells. */
static inline int NAME(channels_of)(const piece_t *piece, index_t channel)
{
    return piece->several - CELL * channel < CELL ? (int)(piece->several - CELL * channel) : CELL;
}

#endif

#if CELL == 2 && !defined(WHOLE)

/* to[0, n) <- pairs of channels of 16 bits, or the last one alone, `apart` from one to the other, of cells `step` apart. */
static inline void NAME(read_several)(int stored, const char *from, index_t apart, int channels, index_t step, index_t n,
                                      int flipped, REAL *to)
{
    (void)stored, (void)flipped;
    typedef uint32_t pair __attribute__((may_alias));
    const uint16_t *low = (const uint16_t *)from, *high = low + apart;
    pair *pairs = (pair *)to;
    if (channels == 2 && apart == 1)
        for (index_t i = 0; i < n; i++)
            __builtin_memcpy(pairs + i, low + i * step, sizeof(*pairs));
    else if (channels == 2 && step == 1)
        for (index_t i = 0; i < n; i++)
            pairs[i] = low[i] | (uint32_t)high[i] << 16;
    else
        for (index_t i = 0; i < n; i++)
            pairs[i] = channels < 1 ? 0 : low[i * step] | (channels == 2 ? (uint32_t)high[i * step] << 16 : 0);
}

#elif CELL == 2

/* Cells of channels of a type: the first channel's are the lower bits, those of no second one are zero. A vector of them
   at a time, of which the last ends where the row does. Channels that lie side by side, with no others between those of
   two cells, are one row of numbers. */
#define READ_PAIRS(type, widened)                                                                                     \
    static inline __attribute__((always_inline)) void NAME(read_apart_##type)(                                        \
        const type *low, const type *high, index_t step, index_t n, REAL *to)                                         \
    {                                                                                                                 \
        for (index_t i = 0; i < n; i++)                                                                               \
            to[i] = (uint16_t)low[i * step] | (high ? (REAL)(uint16_t)high[i * step] << 16 : 0);                      \
    }                                                                                                                 \
    static inline __attribute__((always_inline)) VECTOR NAME(pairs_of_##type)(const type *low, const type *high)      \
    {                                                                                                                 \
        const VECTOR first = (VECTOR)widened(low) & 0xffff;                                                           \
        return high ? (VECTOR)(first | (VECTOR)widened(high) << 16) : first;                                          \
    }                                                                                                                 \
    static inline __attribute__((always_inline)) void NAME(read_row_##type)(const type *low, const type *high,        \
                                                                            index_t n, REAL *to)                      \
    {                                                                                                                 \
        for (index_t i = 0; i + LANES <= n; i += LANES)                                                               \
            STORE(to + i, NAME(pairs_of_##type)(low + i, high ? high + i : NULL));                                    \
        if (n % LANES && n > LANES)                                                                                   \
            STORE(to + n - LANES, NAME(pairs_of_##type)(low + n - LANES, high ? high + n - LANES : NULL));            \
        else if (n < LANES)                                                                                           \
            NAME(read_apart_##type)(low, high, 1, n, to);                                                             \
    }                                                                                                                 \
    static void NAME(read_pairs_##type)(const void *from, index_t apart, int channels, index_t step, index_t n,       \
                                        REAL *to)                                                                     \
    {                                                                                                                 \
        typedef int16_t half __attribute__((may_alias));                                                              \
        const type *low = from;                                                                                       \
        if (channels == 2 && apart == 1 && step == 2)                                                                 \
            for (index_t i = 0; i < 2 * n; i++)                                                                       \
                ((half *)to)[i] = (half)low[i];                                                                       \
        else if (channels == 2 && step == 1)                                                                          \
            NAME(read_row_##type)(low, low + apart, n, to);                                                           \
        else if (step == 1)                                                                                           \
            NAME(read_row_##type)(low, NULL, n, to);                                                                  \
        else                                                                                                          \
            NAME(read_apart_##type)(low, channels == 2 ? low + apart : NULL, step, n, to);                            \
    }
#if BYTES == 64
#define OF_INT8(place) _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(place)))
#define OF_UINT8(place) _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(place)))
#define OF_INT16(place) _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)(place)))
#else
#define OF_INT8(place) _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(place)))
#define OF_UINT8(place) _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(place)))
#define OF_INT16(place) _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(place)))
#endif
READ_PAIRS(int8_t, OF_INT8) READ_PAIRS(uint8_t, OF_UINT8) READ_PAIRS(int16_t, OF_INT16)
#undef OF_INT16
#undef OF_UINT8
#undef OF_INT8
#undef READ_PAIRS

/* to[0, n) <- pairs of channels, or the last one alone, `apart` from one to the other, of cells `step` apart. */
static inline void NAME(read_several)(int stored, const char *from, index_t apart, int channels, index_t step, index_t n,
                                      int flipped, REAL *to)
{
    (void)flipped;
    if (stored == STORED_INT8)
        NAME(read_pairs_int8_t)(from, apart, channels, step, n, to);
    else if (stored == STORED_UINT8)
        NAME(read_pairs_uint8_t)(from, apart, channels, step, n, to);
    else
        NAME(read_pairs_int16_t)(from, apart, channels, step, n, to);
}

#elif CELL == 4

#ifdef MATRIX
#define ZEROS ((REAL)0)
#else
#define ZEROS ((REAL)0x80808080)
#endif

/* to[0, n) <- `bytes` channels, `apart` from one to the next, of cells `step` apart; `flipped` for source's. */
static inline void NAME(read_several)(int stored, const char *from, index_t apart, int bytes, index_t step, index_t n,
                                      int flipped, REAL *to)
{
    (void)stored;
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

#if STARTS

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
            sum -= LOAD(of_taps + list[tap].row / BYTES * all + v);
        STORE(start + v, sum);
    }
}

#endif

#endif
