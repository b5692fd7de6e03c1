/* Cells and results of the products of matrices.h: cells are read as they are stored, several channels at a time, and
   results stored in their own type. See body.h for the macros. */

/* [rows of a tile][cells summed at once], then as pack_register. */
static void NAME(pack_matrices)(const work_t *work, const void *weight, void *panels)
{
    const piece_t *piece = work->piece;
    const part_t *part = &work->part;
    const index_t once = NAME(summed_at_once)(piece), taps = NAME(all_taps)(piece);
    const index_t width = piece->by_taps ? piece->axis[2].taps : 1;
    REAL *to = panels;
    for (index_t row = 0, rows; row < part->rows; row += rows) {
        rows = part->rows - row < 2 * OF_REGISTER ? part->rows - row : 2 * OF_REGISTER;
        for (index_t c = 0; c < part->channels; c += once, to += taps * rows * once) {
            const index_t channels = piece->several - (part->channel + c) * CELL;
            const char *from = (const char *)weight
                + PART * ((part->row + row) * piece->weight_row + c * piece->weight_channel);
            NAME(pack_register)(piece, from, rows, channels, once, to, rows * width * once);
        }
    }
}

/* Cells whose channels lie side by side, whole ones, in rows of an even number of them: as words that are turned. Other
   cells of the part hold zeros. */
static void NAME(unroll_words)(const work_t *work, const index_t extent[3], const char *source, REAL *scratch)
{
    piece_t piece = *work->piece;
    work_t words = *work;
    const index_t there = piece.several / CELL - work->part.channel, all = work->part.channels;
    piece.source_batch /= CELL;
    piece.source_channel = 1;
    for (int a = 0; a < 3; a++)
        piece.source_stride[a] /= CELL;
    words.piece = &piece;
    words.part.channels = there < all ? there : all;
    if (words.part.channels > 0)
        NAME(unroll_turned)(&words, extent, (const REAL *)source, scratch);
    for (index_t c = words.part.channels > 0 ? words.part.channels : 0; c < all; c++)
        NAME(zero)(work->layout.channel, scratch + c * work->layout.channel);
}

/* to[0, n) <- cells of up to `channels` channels, `apart` from one to the next, `step` from one place to the next. Whole
   vectors are written. */
static inline void NAME(read_places)(int stored, const char *from, index_t apart, int channels, index_t step, index_t n,
                                     REAL *to)
{
#define READ(step, channels)                                                                                          \
    for (index_t i = 0; i < n; i += LANES)                                                                            \
        STORE(to + i, NAME(cells_of_places)(from + PART * step * i, step, PART * apart, channels,                     \
                                            n - i < LANES ? n - i : LANES))
    if (step > 2)
        NAME(read_several)(stored, from, apart, channels, step, n, 0, to);
    else if (step == 2)
        READ(2, channels);
    else if (channels == CELL)
        READ(1, CELL);
    else
        READ(1, channels);
#undef READ
}

/* One stream of one cell's channels, as unroll_stream does. */
static void NAME(unroll_cells)(const piece_t *piece, const block_t *block, const NAME(clip) *clip,
                               const index_t extent[3], const char *source, int channels, REAL *to)
{
    const index_t n = extent[2], *lo = clip->lo, *hi = clip->hi, cell = piece->source_stride[2];
    const index_t row = piece->axis[1].step * piece->source_stride[1], step = piece->axis[2].step * cell;
    const index_t apart = piece->source_channel / CELL;
    const int stored = piece->stored[SOURCE], empty = lo[1] == hi[1] || lo[2] == hi[2] || channels < 1;
    const int joined = lo[2] == 0 && hi[2] == n && step == 1 && row == n;
    for (index_t s = 0; s < block->samples; s++)
        for (index_t z = 0; z < extent[0]; z++, to += extent[1] * n) {
            if (empty || z < lo[0] || z >= hi[0]) {
                NAME(clear)(to, extent[1] * n);
                continue;
            }
            const char *plane = source + PART * ((block->sample + s) * piece->source_batch + clip->corner
                + z * piece->axis[0].step * piece->source_stride[0]);
            NAME(clear)(to, lo[1] * n);
            if (joined)
                NAME(read_places)(stored, plane + PART * lo[1] * row, apart, channels, 1, (hi[1] - lo[1]) * n,
                                  to + lo[1] * n);
            for (index_t y = lo[1]; y < hi[1] && !joined; y++) {
                NAME(clear)(to + y * n, lo[2]);
                NAME(read_places)(stored, plane + PART * (y * row + lo[2] * step), apart, channels, step, hi[2] - lo[2],
                                  to + y * n + lo[2]);
                NAME(clear)(to + y * n + hi[2], n - hi[2]);
            }
            NAME(clear)(to + hi[1] * n, (extent[1] - hi[1]) * n);
        }
}

/* As unroll, of source as it is stored, or of a patch, whose cells are those of registers. */
static void NAME(unroll_matrices)(const work_t *work, const void *source, const void *begin, const void *limit,
                                  void *scratch)
{
    const piece_t *piece = work->piece;
    const layout_t *layout = &work->layout;
    index_t extent[3], shift[3];
    if (piece->stored[SOURCE] == STORED_REAL) {
        NAME(unroll)(work, source, begin, limit, scratch);
        return;
    }
    for (int a = 0; a < 3; a++)
        extent[a] = NAME(cells)(piece, &work->block, a);
    const index_t *stride = piece->source_stride;
    if (piece->source_channel == CELL && piece->several % CELL == 0 && piece->source_batch % CELL == 0
        && stride[0] % CELL == 0 && stride[1] % CELL == 0 && stride[2] % CELL == 0) {
        NAME(unroll_words)(work, extent, source, scratch);
        return;
    }
    for (index_t j = 0; j < layout->streams[0] * layout->streams[1] * layout->streams[2]; j++) {
        NAME(shifts)(piece, &work->block, j / (layout->streams[1] * layout->streams[2]),
                     j / layout->streams[2] % layout->streams[1], j % layout->streams[2], shift);
        const NAME(clip) clip = NAME(find_clip)(piece, &work->block, shift, extent);
        for (index_t c = 0; c < work->part.channels; c++)
            NAME(unroll_cells)(piece, &work->block, &clip, extent,
                               (const char *)source + PART * c * piece->source_channel,
                               NAME(channels_of)(piece, work->part.channel + c),
                               (REAL *)scratch + c * layout->channel + j * layout->stream);
    }
}

#ifdef WHOLE

/* Whole numbers are stored as they are. */
static inline VECTOR NAME(pair_of)(VECTOR low, VECTOR high)
{
    (void)high;
    return low;
}

static void NAME(store_brains)(const REAL *from, index_t n, char *to, int step)
{
    (void)from, (void)n, (void)to, (void)step;
}

#else

/* As to_brain, of a vector: the lower bits of each lane. */
static inline __m512i NAME(brains_of)(VECTOR numbers)
{
    const __m512i bits = (__m512i)numbers, upper = _mm512_srli_epi32(bits, 16), one = _mm512_set1_epi32(1);
    const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(upper, one));
    const __mmask16 odd = _mm512_cmp_ps_mask((__m512)numbers, (__m512)numbers, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    return _mm512_mask_or_epi32(rounded, odd, upper, _mm512_set1_epi32(0x40));
}

/* Brain floats of two vectors, side by side. */
static inline VECTOR NAME(pair_of)(VECTOR low, VECTOR high)
{
    return (VECTOR)_mm512_or_si512(NAME(brains_of)(low), _mm512_slli_epi32(NAME(brains_of)(high), 16));
}

/* to[0, n) <- from, rounded: each or, of a lane's two halves the lower one, every second place is written. */
static void NAME(store_brains)(const REAL *from, index_t n, char *to, int step)
{
    for (index_t i = 0; i < n; i += LANES) {
        const __mmask16 some = n - i < LANES ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
        const __m512i brains = NAME(brains_of)((VECTOR)_mm512_maskz_loadu_ps(some, from + i));
        if (step == 1)
            _mm256_mask_storeu_epi16(to + 2 * i, some, _mm512_cvtepi32_epi16(brains));
        else
            _mm512_mask_storeu_epi16(to + 4 * i, _pdep_u32(some, 0x55555555u), brains);
    }
}

#endif

/* As store, into numbers as they are stored. */
static void NAME(store_matrices)(const work_t *work, void *results, const void *bias, void *target, int accumulate,
                                 char *doubtful)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t *stride = piece->target_stride, row = work->part.row, rows = work->part.rows;
    const int stored = piece->stored[TARGET], converts = stored != STORED_REAL;
    const int even = (row | rows | piece->target_batch | stride[0] | stride[1] | stride[2]) % 2 == 0;
    const int beside = piece->target_channel == 1 && stride[2] > 1 && (!converts || (even && !accumulate));
    if (!converts && !beside) {
        NAME(store)(work, results, bias, target, accumulate, doubtful);
        return;
    }
    const NAME(runs) r = NAME(find_runs)(piece, block, layout);
    char *first = (char *)target + (NAME(first)(piece, block) + row * piece->target_channel) * NAME(size_of)(stored);
    for (index_t i = 0; i < rows; i++) {
        REAL *result = (REAL *)results + i * layout->pitch;
        for (index_t q = 0; bias && q < layout->positions; q++)
            result[q] += ((const REAL *)bias)[row + i];
        for (index_t s = 0; s < block->samples && !beside; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++) {
                    const REAL *from = result + s * layout->batch + z * layout->axis[0] + y * layout->axis[1];
                    char *to = first + NAME(size_of)(stored) * (
                        i * piece->target_channel + s * piece->target_batch + z * stride[0] + y * stride[1]);
                    if (stride[2] <= 2 && !accumulate)
                        NAME(store_brains)(from, r.run, to, (int)stride[2]);
                    else
                        NAME(write_row)(stored, from, r.run, to, stride[2], accumulate);
                }
    }
    for (index_t i = 0; i < rows && beside && converts; i += 2) { /* pairs of numbers are one */
        REAL *low = (REAL *)results + i * layout->pitch, *high = low + layout->pitch;
        for (index_t q = 0; q < layout->positions; q += LANES)
            STORE(low + q, NAME(pair_of)(LOAD(low + q), LOAD(high + q)));
    }
    if (beside)
        NAME(store_beside)(work, results, rows, converts ? 2 : 1, first, accumulate);
}
