/* Source to scratch: the cells of a block are taken where its layout has them. See body.h for the macros. */

#define AHEAD 2 /* channels between asking for cells and unrolling them */
#define CLIPS 50 /* streams whose clips are found for all channels at once: those of 7 x 7 taps, and any more in turn */

/* to[0, n) <- from; whole vectors, so up to a vector more of `to` is overwritten; reads stop at `limit`. */
static inline void NAME(copy)(REAL *to, const REAL *from, index_t n, const REAL *limit)
{
    index_t i = 0;
    const index_t safe = limit - from >= n + LANES ? n : n - LANES + 1;
    for (; i < safe; i += LANES)
        STORE(to + i, LOAD(from + i));
    for (; i < n; i++)
        to[i] = from[i];
}

static inline void NAME(clear)(REAL *to, index_t n)
{
    for (index_t i = 0; i < n; i += LANES)
        STORE(to + i, (VECTOR){0});
}

/* One row of a stream: n positions, of which [lo, hi) have a cell. Later rows overwrite what spills. */
static inline void NAME(unroll_row)(REAL *to, const REAL *from, index_t n, index_t lo, index_t hi, index_t step,
                                    const REAL *limit)
{
    NAME(clear)(to, lo);
    from += step * lo;
    if (step == 1)
        NAME(copy)(to + lo, from, hi - lo, limit);
    else
        for (index_t q = 0; q < hi - lo; q++)
            to[lo + q] = from[step * q];
    NAME(clear)(to + hi, n - hi);
}

/* LANES cells, each or every second one from `from` on. */
static inline __attribute__((always_inline)) VECTOR NAME(cells_from)(const REAL *from, const int step)
{
#if defined(__GNUC__) && !defined(__clang__)
    static const MASK even[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    if (step == 2)
        return __builtin_shuffle(LOAD(from), LOAD(from + LANES), *(const NAME(mask) *)even);
    return LOAD(from);
#else
    VECTOR cells;
    for (int i = 0; i < LANES; i++)
        cells[i] = from[i * step];
    return cells;
#endif
}

/* Of one stream: its first cell seen from its channel, the positions that have a cell; where in a row the first and the
   last vector with such positions begin, and the lanes of these. */
typedef struct {
    index_t corner, lo[3], hi[3], first, last;
    NAME(mask) first_lanes, last_lanes;
    int whole; /* rows follow each other in source as in scratch */
} NAME(clip);

/* Rows of n positions of step 1 or 2: whole vectors, masked at the ends of what has a cell, and zeros. */
static inline __attribute__((always_inline)) void NAME(unroll_rows)(
    REAL *to, const REAL *from, index_t rows, index_t pitch, index_t n, const NAME(clip) *clip, const int step)
{
    const index_t first = clip->first, last = clip->last;
    const NAME(mask) first_lanes = clip->first_lanes, last_lanes = clip->last_lanes;
    for (index_t r = 0; r < rows; r++, to += n, from += pitch) {
        NAME(clear)(to, first);
        STORE(to + first, (VECTOR)((NAME(mask))NAME(cells_from)(from + step * first, step) & first_lanes));
        for (index_t q = first + LANES; q < last; q += LANES)
            STORE(to + q, NAME(cells_from)(from + step * q, step));
        if (last > first)
            STORE(to + last, (VECTOR)((NAME(mask))NAME(cells_from)(from + step * last, step) & last_lanes));
        NAME(clear)(to + last + LANES, n - last - LANES);
    }
}

static inline NAME(clip) NAME(find_clip)(const piece_t *piece, const block_t *block, const index_t shift[3],
                                         const index_t extent[3])
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t n = extent[2];
    NAME(clip) c;
    for (int a = 0; a < 3; a++)
        NAME(valid)(&piece->axis[a], block->start[a], extent[a], shift[a], &c.lo[a], &c.hi[a]);
    c.first = c.lo[2] / LANES * LANES;
    c.last = (c.hi[2] - 1) / LANES * LANES;
    c.first_lanes = NAME(lanes)(c.first, c.lo[2], c.hi[2]);
    c.last_lanes = NAME(lanes)(c.last, c.lo[2], c.hi[2]);
    c.corner = (z->step * block->start[0] + shift[0]) * piece->source_stride[0]
        + (y->step * block->start[1] + shift[1]) * piece->source_stride[1]
        + (x->step * block->start[2] + shift[2]) * piece->source_stride[2];
    c.whole = x->step == 1 && c.lo[2] == 0 && c.hi[2] == n && y->step * piece->source_stride[1] == n;
    return c;
}

/* One stream of one channel: all rows of the block, each clipped to the cells that exist. */
static void NAME(unroll_stream)(const piece_t *piece, const block_t *block, const NAME(clip) *clip,
                                const index_t extent[3], const REAL *source, const REAL *begin, const REAL *limit,
                                REAL *to)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t n = extent[2], *lo = clip->lo, *hi = clip->hi;
    const index_t row = y->step * piece->source_stride[1], corner = clip->corner;
    for (index_t s = 0; s < block->samples; s++)
        for (index_t q = 0; q < extent[0]; q++, to += extent[1] * n) {
            const REAL *plane = source + (block->sample + s) * piece->source_batch + corner
                + q * z->step * piece->source_stride[0];
            if (q < lo[0] || q >= hi[0] || lo[1] == hi[1] || lo[2] == hi[2]) {
                NAME(clear)(to, extent[1] * n);
                continue;
            }
            NAME(clear)(to, lo[1] * n);
            if (clip->whole)
                NAME(copy)(to + lo[1] * n, plane + lo[1] * row, (hi[1] - lo[1]) * n, limit);
            else if (x->step <= 2 && plane + lo[1] * row + x->step * clip->first >= begin
                     && limit - plane >= (hi[1] - 1) * row + x->step * (clip->last + LANES)) {
                if (x->step == 1)
                    NAME(unroll_rows)(to + lo[1] * n, plane + lo[1] * row, hi[1] - lo[1], row, n, clip, 1);
                else
                    NAME(unroll_rows)(to + lo[1] * n, plane + lo[1] * row, hi[1] - lo[1], row, n, clip, 2);
            }
            else
                for (index_t r = lo[1]; r < hi[1]; r++)
                    NAME(unroll_row)(to + r * n, plane + r * row, n, lo[2], hi[2], x->step, limit);
            NAME(clear)(to + hi[1] * n, (extent[1] - hi[1]) * n);
        }
}

static inline void NAME(zero_rows)(REAL *to, index_t pitch, index_t rows, index_t n)
{
    for (index_t i = 0; i < rows; i++)
        for (index_t q = 0; q < n; q++)
            to[i * pitch + q] = 0;
}

/* The same where the channels of a cell lie side by side: rows of cells are turned, all channels at once. */
static void NAME(unroll_turned)(const work_t *work, const index_t extent[3], const REAL *source, REAL *scratch)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t channels = work->part.groups * work->part.channels;
    const index_t *stride = piece->source_stride, pitch = layout->channel;
    const index_t streams = layout->streams[0] * layout->streams[1] * layout->streams[2];
    index_t shift[3], lo[3], hi[3], at[3];
    for (index_t j = 0; j < streams; j++) {
        REAL *to = scratch + j * layout->stream;
        NAME(shifts)(piece, block, j / (layout->streams[1] * layout->streams[2]),
                     j / layout->streams[2] % layout->streams[1], j % layout->streams[2], shift);
        for (int a = 0; a < 3; a++) {
            NAME(valid)(&piece->axis[a], block->start[a], extent[a], shift[a], &lo[a], &hi[a]);
            at[a] = piece->axis[a].step * block->start[a] + shift[a];
        }
        index_t n = extent[2], rows = extent[1];
        if (lo[1] + lo[2] == 0 && hi[1] == rows && hi[2] == n
            && piece->axis[1].step * stride[1] == n * piece->axis[2].step * stride[2]) { /* they are one run of cells */
            n *= rows;
            hi[2] = n;
            rows = 1;
        }
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < extent[0]; z++)
                for (index_t y = 0; y < rows; y++, to += n) {
                    const int inside = z >= lo[0] && z < hi[0] && y >= lo[1] && y < hi[1];
                    const index_t low = inside ? lo[2] : n, high = inside ? hi[2] : n;
                    const REAL *from = source + (block->sample + s) * piece->source_batch
                        + (at[0] + z * piece->axis[0].step) * stride[0]
                        + (at[1] + y * piece->axis[1].step) * stride[1]
                        + (at[2] + low * piece->axis[2].step) * stride[2];
                    NAME(zero_rows)(to, pitch, channels, low);
                    NAME(transpose)(to + low, pitch, from, piece->axis[2].step * stride[2], high - low, channels, 0);
                    NAME(zero_rows)(to + high, pitch, channels, n - high);
                }
    }
}

/* Ask for the block's cells of one channel ahead of their use: the hardware does not follow from channel to channel.
   Rows are asked for one by one where most of what lies between them is not read. */
static inline void NAME(fetch)(const piece_t *piece, const block_t *block, const REAL *source, const REAL *limit)
{
    const axis_t *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t rows = y->step * (block->extent[1] - 1) + 1, cells = x->step * block->extent[2];
    const index_t row = piece->source_stride[1];
    const int apart = rows > 1 && 2 * cells < row;
    const index_t times = apart ? rows : 1, n = apart || rows == 1 ? cells : rows * row;
    const REAL *from = source + block->sample * piece->source_batch
        + block->start[0] * piece->axis[0].step * piece->source_stride[0]
        + block->start[1] * y->step * row + block->start[2] * x->step;
    for (index_t s = 0; s < block->samples; s++, from += piece->source_batch)
        for (index_t r = 0; r < times; r++)
            for (index_t i = 0; i < n && from + r * row + i < limit; i += OF_LINE)
                __builtin_prefetch(from + r * row + i);
}

static void NAME(unroll)(const work_t *work, const void *source, const void *begin, const void *limit, void *scratch)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    REAL *to = scratch;
    index_t extent[3], shift[3];
    NAME(clip) clips[CLIPS];
    for (int a = 0; a < 3; a++)
        extent[a] = NAME(cells)(piece, block, a);
    if (piece->source_channel == 1 && piece->source_stride[2] > 1) {
        NAME(unroll_turned)(work, extent, source, scratch);
        return;
    }
    for (index_t c = 0; c < work->part.groups * work->part.channels; c++) {
        const REAL *from = (const REAL *)source + c * piece->source_channel;
        index_t stream = 0;
        NAME(fetch)(piece, block, from + AHEAD * piece->source_channel, limit);
        for (index_t jz = 0; jz < layout->streams[0]; jz++)
            for (index_t jy = 0; jy < layout->streams[1]; jy++)
                for (index_t jx = 0; jx < layout->streams[2]; jx++, stream++, to += layout->stream) {
                    NAME(clip) *clip = &clips[stream < CLIPS ? stream : CLIPS - 1];
                    if (c == 0 || stream >= CLIPS - 1) {
                        NAME(shifts)(piece, block, jz, jy, jx, shift);
                        *clip = NAME(find_clip)(piece, block, shift, extent);
                    }
                    NAME(unroll_stream)(piece, block, clip, extent, from, begin, limit, to);
                }
    }
}
