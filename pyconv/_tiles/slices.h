/* Floats as sums of three brain floats, their slices of 8 bits each, which hold them exactly: of nine products of slices
   the three smallest are left out, of less than 2**-24 of the whole. A cell of scratch has a pair of channels, as of brain
   floats; each slice has an array of cells, and in panels registers of its own. What is read is seen (see seen_t): slices
   of numbers that are too small, too large or not finite are not to be trusted. See body.h for the macros. */

#define CHANNELS 16 /* that are unrolled as floats before they are sliced: a square is turned where they lie last */

/* The block's cells of some channels as they are sliced: those of an axis once, if all its taps then take fewer. */
static inline work_t NAME(once)(const work_t *work)
{
    work_t once = *work;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &work->piece->axis[a];
        const index_t extent = work->block.extent[a];
        if (NAME(beyond)(axis) <= extent * axis->taps / axis->streams - extent)
            once.block.shared |= 1 << a;
    }
    once.part.channels = work->part.channels < CHANNELS ? work->part.channels : CHANNELS;
    NAME(layout)(&once);
    return once;
}

static void NAME(layout_slices)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    const index_t cells = NAME(cells_of_part)(work);
    const work_t once = NAME(once)(work);
    layout->set = SLICES * cells * layout->channel;
    layout->scratch = layout->set + once.layout.set + SLICES * once.layout.channel + LANES;
    layout->panel = work->part.rows * SLICES * cells * NAME(all_taps)(work->piece);
}

/* The slices of a vector, each as the upper half of lanes; the first two are rounded. */
static inline __attribute__((always_inline)) void NAME(slice)(__m512 numbers, __m512i slices[SLICES])
{
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000);
    for (int i = 0; i < SLICES - 1; i++) {
        slices[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(numbers), half), upper);
        numbers = _mm512_sub_ps(numbers, _mm512_castsi512_ps(slices[i]));
    }
    slices[SLICES - 1] = _mm512_castps_si512(numbers);
}

typedef struct {
    __m512i least, greatest;
} NAME(seen);

static inline __attribute__((always_inline)) void NAME(look)(NAME(seen) *seen, __m512 numbers)
{
    const __m512i twice = _mm512_slli_epi32(_mm512_castps_si512(numbers), 1);
    seen->least = _mm512_min_epu32(seen->least, _mm512_sub_epi32(twice, _mm512_set1_epi32(1)));
    seen->greatest = _mm512_max_epu32(seen->greatest, twice);
}

static inline NAME(seen) NAME(nothing_seen)(void)
{
    return (NAME(seen)){_mm512_set1_epi32(-1), _mm512_setzero_si512()};
}

/* What other threads have seen of the same may be told meanwhile. */
static inline void NAME(tell)(const NAME(seen) *seen, seen_t *to)
{
    const uint32_t least = _mm512_reduce_min_epu32(seen->least), greatest = _mm512_reduce_max_epu32(seen->greatest);
    uint32_t known = __atomic_load_n(&to->least, __ATOMIC_RELAXED);
    while (least < known && !__atomic_compare_exchange_n(&to->least, &known, least, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    known = __atomic_load_n(&to->greatest, __ATOMIC_RELAXED);
    while (greatest > known
           && !__atomic_compare_exchange_n(&to->greatest, &known, greatest, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

/* Cells of a pair of channels, of each slice one vector. */
static inline __attribute__((always_inline)) void NAME(put_slices)(__m512 low, __m512 high, REAL *to, index_t pitch,
                                                                     __mmask16 some)
{
    __m512i first[SLICES], second[SLICES];
    NAME(slice)(low, first);
    NAME(slice)(high, second);
#pragma GCC unroll 3
    for (int i = 0; i < SLICES; i++)
        _mm512_mask_storeu_epi32(to + i * pitch, some,
                                 _mm512_or_si512(_mm512_srli_epi32(first[i], 16), second[i]));
}

/* to[0, n) <- cells of a pair of channels, or of one. Whole vectors are written. */
static void NAME(slice_cells)(const REAL *low, const REAL *high, index_t n, REAL *to, index_t pitch)
{
    for (index_t i = 0; i < n; i += LANES) {
        const __mmask16 some = n - i < LANES ? (__mmask16)((1u << (n - i)) - 1) : 0xffff;
        const __m512 first = _mm512_maskz_loadu_ps(some, low + i);
        const __m512 second = _mm512_maskz_loadu_ps(high ? some : 0, high ? high + i : low);
        NAME(put_slices)(first, second, to + i, pitch, 0xffff);
    }
}

/* The cells along an axis of a stream that some tap of it reads: from each of `count` places on, which begin with `first`
   and are `apart`, so many. Where taps share streams, some of these have fewer. */
typedef struct {
    index_t first, count, apart, cells;
} NAME(cells_read);

static inline NAME(cells_read) NAME(read_along)(const work_t *once, int a, index_t stream)
{
    const axis_t *axis = &once->piece->axis[a];
    const index_t extent = once->block.extent[a], apart = axis->unit < 0 ? -axis->unit : axis->unit;
    if (!(once->block.shared >> a & 1) || axis->streams == axis->taps)
        return (NAME(cells_read)){0, 1, 0, extent};
    const index_t more = (axis->taps - stream - 1) / axis->streams;
    const index_t first = axis->unit < 0 ? apart * (NAME(reach)(axis) - more) : 0;
    if (extent >= apart) /* one follows the other */
        return (NAME(cells_read)){first, 1, 0, extent + apart * more};
    return (NAME(cells_read)){first, more + 1, apart, extent};
}

/* Look at those of a stream of one channel, of all samples: not at others that lie there, of which some blocks have more,
   or the block that a sample is in would decide how it is summed. */
static void NAME(see_stream)(const work_t *once, index_t stream, const REAL *cells, index_t batch)
{
    const layout_t *layout = &once->layout;
    const index_t at[3] = {stream / (layout->streams[1] * layout->streams[2]),
                           stream / layout->streams[2] % layout->streams[1], stream % layout->streams[2]};
    const NAME(cells_read) along_z = NAME(read_along)(once, 0, at[0]), along_y = NAME(read_along)(once, 1, at[1]);
    NAME(cells_read) along_x = NAME(read_along)(once, 2, at[2]);
    index_t rows = along_y.cells;
    if (along_x.first == 0 && along_x.cells == layout->axis[1]) { /* rows follow each other */
        along_x.cells *= rows;
        rows = 1;
    }
    for (index_t s = 0; s < once->block.samples; s++) {
        NAME(seen) found = NAME(nothing_seen)();
        for (index_t i = 0; i < along_z.count * along_y.count * along_x.count; i++) {
            const index_t z = along_z.first + i / (along_y.count * along_x.count) * along_z.apart;
            const index_t y = along_y.first + i / along_x.count % along_y.count * along_y.apart;
            const index_t x = along_x.first + i % along_x.count * along_x.apart;
            for (index_t k = 0; k < along_z.cells * rows; k++) {
                const REAL *row = cells + s * batch + (z + k / rows) * layout->axis[0] + (y + k % rows) * layout->axis[1] + x;
                for (index_t q = 0; q < along_x.cells; q += LANES) {
                    const index_t left = along_x.cells - q;
                    const __mmask16 some = left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
                    NAME(look)(&found, _mm512_maskz_loadu_ps(some, row + q));
                }
            }
        }
        NAME(tell)(&found, &once->seen[1 + once->block.sample + s]);
    }
}

/* Where a stream of a block begins among the cells that are there once: along an axis where it has a tap of its own that
   these share, at that tap's. */
static inline index_t NAME(place_of_stream)(const work_t *work, const work_t *once, index_t stream)
{
    const layout_t *layout = &work->layout, *shared = &once->layout;
    const index_t pitch[3] = {shared->axis[0], shared->axis[1], 1};
    const index_t at[3] = {stream / (layout->streams[1] * layout->streams[2]),
                           stream / layout->streams[2] % layout->streams[1], stream % layout->streams[2]};
    index_t number = 0, within = 0;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &work->piece->axis[a];
        const index_t last = axis->unit < 0 ? NAME(reach)(axis) : 0;
        const int joins = (once->block.shared & ~work->block.shared) >> a & 1;
        if (joins)
            within += (at[a] / axis->streams - last) * axis->unit * pitch[a];
        number = number * shared->streams[a] + (joins ? at[a] % axis->streams : at[a]);
    }
    return number * shared->stream + within;
}

/* to[stream] <- the cells of all streams, of those that are there once. Whole vectors are written. */
static void NAME(copy_streams)(const work_t *work, const work_t *once, const REAL *cells, REAL *to)
{
    const layout_t *layout = &work->layout, *shared = &once->layout;
    const index_t streams = layout->streams[0] * layout->streams[1] * layout->streams[2];
    const index_t depth = NAME(cells)(work->piece, &work->block, 0), height = NAME(cells)(work->piece, &work->block, 1);
    const index_t n = layout->axis[1];
    for (index_t j = 0; j < streams; j++) {
        const REAL *from = cells + NAME(place_of_stream)(work, once, j);
        REAL *row = to + j * layout->stream;
        for (index_t s = 0; s < work->block.samples; s++)
            for (index_t z = 0; z < depth; z++)
                for (index_t y = 0; y < height; y++, row += n) {
                    const REAL *cell = from + s * shared->batch + z * shared->axis[0] + y * shared->axis[1];
                    for (index_t i = 0; i < n; i += LANES)
                        STORE(row + i, LOAD(cell + i));
                }
    }
}

/* The cells of a pair of channels, or of one, that are there once: to[slice] <- them, `pitch` apart, of streams and samples
   that begin so far from one another. */
static void NAME(slice_pair)(const work_t *once, const REAL *low, const REAL *high, index_t stream, index_t batch,
                             REAL *to, index_t pitch)
{
    const layout_t *layout = &once->layout;
    for (index_t j = 0; j < layout->channel / layout->stream; j++) {
        NAME(see_stream)(once, j, low + j * stream, batch);
        if (high)
            NAME(see_stream)(once, j, high + j * stream, batch);
        for (index_t s = 0; s < once->block.samples; s++) {
            const index_t at = j * stream + s * batch;
            NAME(slice_cells)(low + at, high ? high + at : NULL, layout->batch, to + j * layout->stream + s * layout->batch,
                              pitch);
        }
    }
}

/* Where the cells of a block's first sample begin in a channel that has them as they are to be sliced, in one run; -1
   where it has not. */
static inline index_t NAME(run_in_source)(const work_t *once)
{
    const piece_t *piece = once->piece;
    index_t extent[3], shift[3];
    NAME(shifts)(piece, &once->block, 0, 0, 0, shift);
    for (int a = 0; a < 3; a++)
        extent[a] = NAME(cells)(piece, &once->block, a);
    const NAME(clip) clip = NAME(find_clip)(piece, &once->block, shift, extent);
    int one = once->layout.channel == once->layout.stream && piece->source_stride[2] == 1 && piece->axis[2].step == 1;
    for (int a = 0; a < 3; a++)
        one = one && clip.lo[a] == 0 && clip.hi[a] == extent[a];
    one = one && (extent[1] == 1 || piece->axis[1].step * piece->source_stride[1] == extent[2])
        && (extent[0] == 1 || piece->axis[0].step * piece->source_stride[0] == extent[1] * extent[2]);
    return one ? once->block.sample * piece->source_batch + clip.corner : -1;
}

/* scratch[slice][pair of channels][stream]; behind these some channels' floats, and the slices of two that are copied. */
static void NAME(unroll_slices)(const work_t *work, const void *source, const void *begin, const void *limit,
                                void *scratch)
{
    const layout_t *layout = &work->layout;
    const index_t channels = work->part.channels, pairs = NAME(cells_of_part)(work), pitch = pairs * layout->channel;
    const index_t channel = work->piece->source_channel;
    work_t some = NAME(once)(work);
    const index_t of_channel = some.layout.channel, run = NAME(run_in_source)(&some);
    REAL *floats = (REAL *)scratch + layout->set, *sliced = floats + some.layout.set;
    const int copies = layout->channel / layout->stream != of_channel / some.layout.stream;
    const index_t apart = run < 0 ? of_channel : channel, batch = run < 0 ? some.layout.batch : work->piece->source_batch;
    for (index_t c = 0; c < channels; c += CHANNELS) {
        const REAL *from = (const REAL *)source + c * channel;
        some.part.channels = channels - c < CHANNELS ? channels - c : CHANNELS;
        if (run < 0)
            NAME(unroll)(&some, from, begin, limit, floats);
        for (index_t i = 0; i < some.part.channels; i += 2) {
            const REAL *low = (run < 0 ? floats : from + run) + i * apart;
            for (index_t ahead = i + 2 * AHEAD; ahead < i + 2 * AHEAD + 2 && run >= 0; ahead++)
                NAME(fetch)(work->piece, &work->block, from + ahead * channel, limit);
            REAL *to = (REAL *)scratch + (c + i) / 2 * layout->channel;
            NAME(slice_pair)(&some, low, i + 1 < some.part.channels ? low + apart : NULL, some.layout.stream, batch,
                             copies ? sliced : to, copies ? of_channel : pitch);
            for (int k = 0; k < SLICES && copies; k++)
                NAME(copy_streams)(work, &some, sliced + k * of_channel, to + k * pitch);
        }
    }
    for (index_t i = (channels + 1) / 2; i < pairs; i++)
        for (int k = 0; k < SLICES; k++)
            NAME(zero)(layout->channel, (REAL *)scratch + k * pitch + i * layout->channel);
}

/* to[slice][row][pair] <- up to 32 rows of up to so many pairs of channels, which lie side by side in a row. */
static void NAME(slice_rows)(const REAL *from, index_t pitch, index_t rows, index_t channels, index_t pairs, REAL *to,
                             NAME(seen) *seen)
{
    const __mmask16 some = (__mmask16)((1u << pairs) - 1);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    const index_t n = channels < 2 * pairs ? channels : 2 * pairs;
    const __mmask16 upper = n < 16 ? (__mmask16)((1u << n) - 1) : 0xffff;
    const __mmask16 lower = n > 16 ? (__mmask16)((1u << (n - 16)) - 1) : 0;
    for (index_t r = 0; r < rows; r++) {
        const REAL *row = from + r * pitch;
        const __m512 left = _mm512_maskz_loadu_ps(upper, row);
        const __m512 right = _mm512_maskz_loadu_ps(lower, row + (n > 16) * 16);
        NAME(look)(seen, left);
        NAME(look)(seen, right);
        NAME(put_slices)(_mm512_permutex2var_ps(left, even, right), _mm512_permutex2var_ps(left, odd, right),
                           to + r * pairs, rows * pairs, some);
    }
}

/* [rows of a tile][pairs summed at once][tap][slice][row][pair] */
static void NAME(pack_slices)(const work_t *work, const void *weight, void *panels)
{
    const piece_t *piece = work->piece;
    const part_t *part = &work->part;
    const index_t once = NAME(summed_at_once)(piece), taps = NAME(all_taps)(piece);
    NAME(seen) seen = NAME(nothing_seen)();
    REAL *to = panels, floats[2 * OF_REGISTER * 2 * OF_REGISTER];
    for (index_t row = 0, rows; row < part->rows; row += rows) {
        rows = part->rows - row < 2 * OF_REGISTER ? part->rows - row : 2 * OF_REGISTER;
        for (index_t c = 0; c < part->channels; c += 2 * once) {
            const char *from = (const char *)weight
                + PART * ((part->row + row) * piece->weight_row + c * piece->weight_channel);
            const index_t pitch = SLICES * rows * once;
            if (piece->weight_channel == 1) {
                for (index_t t = 0; t < taps; t++, to += pitch)
                    NAME(slice_rows)((const REAL *)from + NAME(tap_at)(piece, t), piece->weight_row, rows,
                                     part->channels - c, once, to, &seen);
                continue;
            }
            NAME(pack_register)(piece, from, rows, part->channels - c, 2 * once, to, pitch);
            for (index_t t = 0; t < taps; t++, to += pitch) {
                __builtin_memcpy(floats, to, rows * 2 * once * sizeof(REAL));
                NAME(slice_rows)(floats, 2 * once, rows, 2 * once, once, to, &seen);
            }
        }
    }
    NAME(tell)(&seen, work->seen);
}

/* As store, where channels lie last in squares. */
static void NAME(store_slices)(const work_t *work, void *results, const void *bias, void *target, int accumulate,
                               char *doubtful)
{
    const piece_t *piece = work->piece;
    const layout_t *layout = &work->layout;
    const index_t row = work->part.row, rows = work->part.rows;
    if (piece->target_channel != 1 || piece->target_stride[2] == 1 || layout->first) {
        NAME(store)(work, results, bias, target, accumulate, doubtful);
        return;
    }
    for (index_t i = 0; i < rows && bias; i++)
        for (index_t q = 0; q < layout->positions; q++)
            ((REAL *)results)[i * layout->pitch + q] += ((const REAL *)bias)[row + i];
    NAME(store_beside)(work, results, rows, 1, (char *)((REAL *)target + NAME(first)(piece, &work->block) + row), accumulate);
}
