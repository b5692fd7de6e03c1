/* grad_weight by products of matrices, of brain floats: a register of source has 32 positions of 16 channels, one of
   target 16 channels of 16 pairs of positions, so that one of sums has 16 channels of either under one tap. As in
   matrices.h, four of sums meet two of each operand. Where source has no cell, and between rows of positions, both hold
   zeros. See body.h for the macros. */

#define AT_ONCE (2 * OF_REGISTER) /* positions of a product */
typedef uint16_t NAME(number) __attribute__((may_alias));

static inline index_t NAME(products_of)(const layout_t *layout)
{
    return (layout->positions + AT_ONCE - 1) / AT_ONCE;
}

/* Streams are counted in numbers, of which a cell of scratch has two. Behind a panel there is room for 16 channels of
   target as they lie. */
static void NAME(layout_numbers)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    const index_t streams = layout->channel / layout->stream, cells = work->block.samples * layout->batch;
    layout->stream = (cells + AT_ONCE - 1) / AT_ONCE * AT_ONCE + AT_ONCE;
    layout->channel = streams * layout->stream;
    layout->set = work->part.channels * layout->channel;
    layout->scratch = layout->set / 2 + LANES;
    layout->pitch = NAME(up)(work->part.rows);
    layout->panel = (layout->pitch + LANES) * NAME(products_of)(layout) * OF_REGISTER + LANES;
    layout->result = layout->sums = NAME(depth)(work) * layout->pitch;
}

/* Every second number of two vectors, from the first or the second on. */
static inline __m512i NAME(every_second)(int first)
{
    static const uint16_t even[32] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 32, 34, 36, 38, 40, 42,
                                      44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
    return _mm512_add_epi16(_mm512_loadu_si512(even), _mm512_set1_epi16((short)first));
}

/* The numbers of `some` of 32 places, each or every second one. */
static inline __attribute__((always_inline)) __m512i NAME(numbers_from)(const NAME(number) *from, const int step,
                                                                        __mmask32 some)
{
    if (step == 1)
        return _mm512_maskz_loadu_epi16(some, from);
    const uint64_t spread = _pdep_u64(some, 0x5555555555555555ull);
    return _mm512_permutex2var_epi16(_mm512_maskz_loadu_epi16((__mmask32)spread, from), NAME(every_second)(0),
                                     _mm512_maskz_loadu_epi16((__mmask32)(spread >> 32), from + 32));
}

/* to[0, n) <- numbers `step` apart, where they are among [lo, hi), else 0. Whole vectors are written. */
static inline void NAME(copy_numbers)(const NAME(number) *from, index_t step, index_t n, index_t lo, index_t hi,
                                      NAME(number) *to)
{
    for (index_t i = 0; i < n; i += AT_ONCE) {
        const index_t low = lo > i ? lo - i : 0, high = hi - i < AT_ONCE ? hi - i : AT_ONCE;
        const __mmask32 some = high > low ? (__mmask32)((~0ull << low) & ~(~0ull << high)) : 0;
        if (step == 1)
            _mm512_storeu_si512(to + i, NAME(numbers_from)(from + i, 1, some));
        else if (step == 2)
            _mm512_storeu_si512(to + i, NAME(numbers_from)(from + 2 * i, 2, some));
        else {
            _mm512_storeu_si512(to + i, _mm512_setzero_si512());
            for (index_t k = low; k < high; k++)
                to[i + k] = from[(i + k) * step];
        }
    }
}

/* The same of up to 32 channels that lie side by side, to rows `pitch` apart: squares of pairs of them are turned. */
static void NAME(copy_beside)(const NAME(number) *from, index_t step, index_t n, index_t lo, index_t hi, index_t channels,
                              NAME(number) *to, index_t pitch)
{
    const __mmask32 some = channels < AT_ONCE ? (1u << channels) - 1 : ~0u;
    for (index_t i = 0; i < n; i += AT_ONCE) {
        VECTOR half[2][16];
        for (int h = 0; h < 2; h++) {
#pragma GCC unroll 16
            for (int j = 0; j < 16; j++) {
                const index_t q = i + 16 * h + j;
                const int there = q >= lo && q < hi;
                half[h][j] = (VECTOR)_mm512_maskz_loadu_epi16(there ? some : 0, there ? from + q * step : from);
            }
            NAME(turn_square)(half[h]);
        }
        for (index_t c = 0; c < channels; c++)
            _mm512_storeu_si512(to + c * pitch + i, _mm512_permutex2var_epi16(
                (__m512i)half[0][c / 2], NAME(every_second)(c % 2), (__m512i)half[1][c / 2]));
    }
}

/* scratch[channel][stream] <- source's numbers. */
static void NAME(unroll_numbers)(const work_t *work, const void *source, const void *begin, const void *limit,
                                 void *scratch)
{
    (void)begin, (void)limit;
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t *stride = piece->source_stride, cells = block->samples * layout->batch;
    const index_t streams = layout->channel / layout->stream, step = piece->axis[2].step * stride[2];
    index_t extent[3], shift[3];
    for (int a = 0; a < 3; a++)
        extent[a] = NAME(cells)(piece, block, a);
    for (index_t j = 0; j < streams; j++) {
        NAME(shifts)(piece, block, j / (layout->streams[1] * layout->streams[2]),
                     j / layout->streams[2] % layout->streams[1], j % layout->streams[2], shift);
        const NAME(clip) clip = NAME(find_clip)(piece, block, shift, extent);
        const index_t *lo = clip.lo, *hi = clip.hi;
        const index_t together = piece->source_channel == 1 ? AT_ONCE : 1;
        for (index_t c = 0; c < work->part.channels; c += together) {
            const index_t left = work->part.channels - c, channels = left < together ? left : together;
            NAME(number) *to = (NAME(number) *)scratch + c * layout->channel + j * layout->stream;
            for (index_t s = 0; s < block->samples; s++)
                for (index_t z = 0; z < extent[0]; z++)
                    for (index_t y = 0; y < extent[1]; y++, to += extent[2]) {
                        const int there = z >= lo[0] && z < hi[0] && y >= lo[1] && y < hi[1];
                        const NAME(number) *from = (const NAME(number) *)source
                            + (block->sample + s) * piece->source_batch + c * piece->source_channel + clip.corner
                            + z * piece->axis[0].step * stride[0] + y * piece->axis[1].step * stride[1];
                        if (together > 1)
                            NAME(copy_beside)(from, step, extent[2], lo[2], there ? hi[2] : lo[2], channels, to,
                                              layout->channel);
                        else
                            NAME(copy_numbers)(from, step, extent[2], lo[2], there ? hi[2] : lo[2], to);
                    }
            for (index_t i = 0; i < channels; i++)
                __builtin_memset(to + i * layout->channel, 0, (layout->stream - cells) * sizeof(*to));
        }
    }
}

/* Up to 16 channels of target, `pitch` numbers apart: pairs of n positions are turned. */
static void NAME(turn_pairs)(const NAME(number) *from, index_t pitch, index_t channels, index_t n, REAL *to)
{
    for (index_t i = 0; i < n; i += AT_ONCE, to += OF_REGISTER * LANES) {
        const __mmask32 some = n - i < AT_ONCE ? (1u << (n - i)) - 1 : ~0u;
        VECTOR square[16];
#pragma GCC unroll 16
        for (int c = 0; c < 16; c++)
            square[c] = (VECTOR)_mm512_maskz_loadu_epi16(c < channels ? some : 0,
                                                         from + (c < channels) * (c * pitch + i));
        NAME(turn_square)(square);
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
            STORE(to + j * LANES, square[j]);
    }
}

/* to[pair of positions][channel] <- n positions from `first` on of up to 16 channels that lie side by side, where there
   are zeros. */
static void NAME(pair_beside)(const NAME(number) *from, index_t step, index_t first, index_t n, index_t channels,
                              REAL *to)
{
    const __mmask16 some = (__mmask16)((1u << channels) - 1);
    for (index_t q = 0; q < n; q++) {
        REAL *pair = to + (first + q) / 2 * LANES;
        const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, from + q * step));
        const __m512i half = (first + q) % 2 ? _mm512_slli_epi32(words, 16) : words;
        _mm512_storeu_si512(pair, _mm512_or_si512(_mm512_loadu_si512(pair), half));
    }
}

/* panel[16 channels of target][product][pair of positions][channel]; rows of positions that do not follow each other, or
   whose numbers do not, are laid out first. */
static void NAME(turn_numbers)(const work_t *work, const void *target, void *panel)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t *stride = piece->target_stride, n = layout->positions, pitch = NAME(products_of)(layout) * AT_ONCE;
    const NAME(runs) r = NAME(find_runs)(piece, block, layout);
    const int lie = r.run == n && stride[2] == 1, beside = piece->target_channel == 1 && stride[2] > 1;
    const NAME(number) *first = (const NAME(number) *)target + NAME(first)(piece, block)
        + work->part.row * piece->target_channel;
    REAL *to = panel;
    NAME(number) *laid = (NAME(number) *)(to + layout->pitch / 2 * pitch);
    for (index_t row = 0; row < work->part.rows; row += LANES, to += LANES / 2 * pitch) {
        const index_t channels = work->part.rows - row < LANES ? work->part.rows - row : LANES;
        const NAME(number) *from = first + row * piece->target_channel;
        if (beside)
            NAME(zero)(LANES / 2 * pitch, to);
        for (index_t c = 0; c < (beside ? 1 : channels) && !lie; c++) {
            if (!beside)
                __builtin_memset(laid + c * pitch, 0, pitch * sizeof(*laid));
            for (index_t s = 0; s < block->samples; s++)
                for (index_t z = 0; z < r.planes; z++)
                    for (index_t y = 0; y < r.rows; y++) {
                        const NAME(number) *line = from + c * piece->target_channel + s * piece->target_batch
                            + z * stride[0] + y * stride[1];
                        const index_t at = s * layout->batch + z * layout->axis[0] + y * layout->axis[1];
                        if (beside)
                            NAME(pair_beside)(line, stride[2], at, r.run, channels, to);
                        else
                            NAME(copy_numbers)(line, stride[2], r.run, 0, r.run, laid + c * pitch + at);
                    }
        }
        if (!beside)
            NAME(turn_pairs)(lie ? from : laid, lie ? piece->target_channel : pitch, channels, n, to);
    }
}

/* Up to 32 channels of source by 32 of target, under one tap: R by V registers of sums. */
static inline __attribute__((always_inline)) void NAME(weight_tile)(
    const int R, const int V, index_t products, const NAME(number) *cells, index_t channel, const REAL *turned, REAL *to,
    index_t pitch, int accumulate)
{
    const REAL *beside = turned + products * OF_REGISTER * LANES;
    NAME(begin_sums)(R, V, to, pitch, accumulate);
    for (index_t k = 0; k < products; k++, cells += AT_ONCE) {
        const index_t at = k * OF_REGISTER * LANES;
        NAME(add_matrices)(R, V, (const char *)cells, (const char *)(cells + OF_REGISTER * channel), 0,
                           channel * (index_t)sizeof(*cells), (const char *)(turned + at), (const char *)(beside + at), 0,
                           (index_t)BYTES);
    }
    NAME(end_sums)(R, V, to, pitch);
}

/* result[channel of source][tap][channel of target] (+)= the products of a block. */
static void NAME(correlate_matrices)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                     void *result, int accumulate)
{
    const part_t *part = &work->part;
    const layout_t *layout = &work->layout;
    const index_t taps = NAME(all_taps)(work->piece), products = NAME(products_of)(layout), pitch = layout->pitch;
    for (index_t c = 0; c < part->channels; c += 2 * OF_REGISTER) {
        const index_t left = part->channels - c, high = left < 2 * OF_REGISTER ? left : 2 * OF_REGISTER;
        const NAME(number) *cells = (const NAME(number) *)scratch + c * layout->channel;
        NAME(shape_registers)(high, OF_REGISTER);
        for (index_t o = 0; o < pitch; o += 2 * LANES)
            for (index_t tap = 0; tap < taps; tap++) {
                REAL *to = (REAL *)result + (c * taps + tap) * pitch + o;
                const REAL *turned = (const REAL *)panel + o * products * OF_REGISTER;
#define TILE_OF(R, V)                                                                                                 \
    NAME(weight_tile)(R, V, products, cells + offset[tap], layout->channel, turned, to, taps * pitch, accumulate)
                CHOOSE_TILE(TILE_OF, high, pitch - o);
#undef TILE_OF
            }
    }
    __asm__ volatile("tilerelease");
}
