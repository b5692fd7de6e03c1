/* Winograd's cells where a row has few tiles, as of images of 7x7: a vector then has those of several rows, and along y
   those of several planes and samples too. See winograd_cells.h for wider rows, and body.h for the macros. */

#define NARROW_TILES (LANES / 4) /* of a row at most: with more, vectors of one row lose less than half of their lanes */
#define NARROW_ROWS 128          /* rows of cells that are transformed together at most */
#define NARROW_SPAN (LANES + 4)  /* elements from where a row begins that are read */

/* Rows of cells, of some rows of tiles: in image j the j-th of every tile. Where each begins in one channel; what lies
   beside the plane is in zeros. Which cells exist, of vectors of several rows:
   of their own, and of those from the second tile on. Then the rows that are the first and the last in memory, and room
   for copies where whole vectors would read what is not in source. */
typedef struct {
    index_t each, count; /* rows of an image, and in all */
    const REAL *row[NARROW_ROWS + 16];
    MASK exist[8 * 16];
    REAL zeros[NARROW_SPAN];
    const REAL *first, *last, *copied[NARROW_ROWS + 16];
    REAL copies[NARROW_ROWS * NARROW_SPAN];
} NAME(narrow_rows);

static inline int NAME(is_narrow)(const piece_t *piece, const block_t *block)
{
    return piece->edge == EDGE_NONE && piece->tile[1] > 1 && piece->tile[2] > 1 && piece->axis[2].tap_step == 1
        && block->extent[2] <= NARROW_TILES;
}

/* Tiles that a row has room for in a vector: a power of two. */
static inline index_t NAME(slots)(index_t columns)
{
    return columns > 2 ? 4 : columns;
}

/* Of `each` rows of tiles from `line` on. No axis of a piece in tiles has a step. */
static void NAME(find_narrow)(const piece_t *piece, const NAME(tiling) *t, const block_t *block, index_t planes,
                              index_t shift, const REAL *source, index_t line, index_t each, NAME(narrow_rows) *rows)
{
    const index_t *extent = block->extent, *stride = piece->source_stride;
    const index_t first = block->start[2] * t->outputs_x + piece->axis[2].offset;
    const index_t own = t->outputs_x * NAME(slots)(extent[2]), set = t->outputs_x * LANES;
    rows->each = each;
    rows->count = 0;
    rows->first = rows->last = NULL;
    NAME(zero)(NARROW_SPAN, rows->zeros);
    for (index_t e = 0; e < 2 * set; e++)
        rows->exist[e] = NAME(cell_for)(piece, 2, first + e % set % own + e / set * t->outputs_x) >= 0 ? -1 : 0;
    for (index_t j = 0; j < t->y; j++)
        for (index_t l = line; l < line + each; l++, rows->count++) {
            const index_t plane = l / extent[1] % planes, sample = block->sample + l / extent[1] / planes;
            const index_t y = NAME(row_of)(t, block->start[1] + l % extent[1], j) + piece->axis[1].offset;
            const index_t z = block->start[0] + plane + shift;
            const REAL *row = source + sample * piece->source_batch + z * stride[0] + y * stride[1] + first;
            rows->row[rows->count] = rows->zeros;
            if (NAME(cell_for)(piece, 1, y) < 0 || NAME(cell_for)(piece, 0, z) < 0)
                continue;
            rows->row[rows->count] = row;
            rows->first = rows->first && rows->first < row ? rows->first : row;
            rows->last = rows->last > row ? rows->last : row;
        }
    for (int i = 0; i < 16; i++) /* of the last vector */
        rows->row[rows->count + i] = rows->copied[rows->count + i] = rows->zeros;
}

/* The rows of the channel, with copies of what lies in source of those that whole vectors would read more of. */
static const REAL *const *NAME(in_source)(NAME(narrow_rows) *rows, const REAL *begin, const REAL *limit)
{
    if (rows->first == NULL || (rows->first >= begin && limit - rows->last >= NARROW_SPAN))
        return rows->row;
    for (index_t r = 0; r < rows->count; r++) {
        const REAL *row = rows->row[r];
        REAL *copy = rows->copies + r * NARROW_SPAN;
        rows->copied[r] = row == rows->zeros ? row : copy;
        for (index_t q = 0; row != rows->zeros && q < NARROW_SPAN; q++)
            copy[q] = row + q >= begin && row + q < limit ? row[q] : 0;
    }
    return rows->copied;
}

static void NAME(go_to_next_channel)(NAME(narrow_rows) *rows, index_t channel)
{
    for (index_t r = 0; r < rows->count; r++)
        rows->row[r] += rows->row[r] == rows->zeros ? 0 : channel;
    if (rows->first != NULL) {
        rows->first += channel;
        rows->last += channel;
    }
}

/* The first n lanes of two vectors side by side. */
static inline __attribute__((always_inline)) VECTOR NAME(firsts)(VECTOR a, VECTOR b, const int n)
{
#if defined(__GNUC__) && !defined(__clang__)
    NAME(mask) lane;
#pragma GCC unroll 16
    for (int e = 0; e < LANES; e++)
        lane[e] = e < n ? e : e - n + LANES;
    return __builtin_shuffle(a, b, lane);
#else
    for (int e = n; e < LANES; e++)
        a[e] = b[e - n];
    return a;
#endif
}

/* A vector of rows of N cells, as many as it has room for. */
static inline __attribute__((always_inline)) VECTOR NAME(rows_together)(const int N, const REAL *const *row,
                                                                       index_t from)
{
    VECTOR part[8];
#pragma GCC unroll 8
    for (int i = 0; i < LANES / N; i++)
        part[i] = LOAD(row[i] + from);
#pragma GCC unroll 3
    for (int n = N; n < LANES; n *= 2)
#pragma GCC unroll 4
        for (int i = 0; i < LANES / n / 2; i++)
            part[i] = NAME(firsts)(part[2 * i], part[2 * i + 1], n);
    return part[0];
}

/* `each` rows of `columns` tiles along x, in vectors of rows with room for SLOTS of them. As in `part`, those after the
   first M vectors have the cells that tiles share. */
static inline __attribute__((always_inline)) void NAME(part_narrow)(
    const int M, const int SLOTS, index_t columns, index_t each, const REAL *const *row, const MASK *exist, REAL *to,
    index_t step)
{
    const int outputs = TO(CELLS, M), of_vector = LANES / (M * SLOTS);
    for (index_t r = 0; r < each; r += LANES / SLOTS, to += LANES / SLOTS * columns) {
        VECTOR x[8], y[6];
#pragma GCC unroll 8
        for (int j = 0; j < 2 * M; j++)
            x[j] = NAME(keep)(NAME(rows_together)(M * SLOTS, row + r + j % M * of_vector, j / M * M),
                              *(const NAME(mask) *)(exist + j * LANES));
        NAME(deal)(0, M, x);
        NAME(deal)(0, M, x + M);
        NAME(line)(CELLS, M, x, y);
#pragma GCC unroll 6
        for (int i = 0; i < outputs; i++)
            if (columns == SLOTS)
                STORE(to + i * step, y[i]);
            else
#pragma GCC unroll 16
                for (int e = 0; e < LANES / SLOTS; e++)
                    __builtin_memcpy(to + i * step + e * columns, (const REAL *)&y[i] + e * SLOTS, SLOTS * sizeof(REAL));
    }
}

/* The rows of some channels along x, to the images of each frequency. */
static inline __attribute__((always_inline)) void NAME(part_images)(
    const int M, const int SLOTS, index_t columns, index_t channels, index_t channel, NAME(narrow_rows) *rows,
    const REAL *begin, const REAL *limit, const NAME(arrays) *to)
{
    for (index_t k = 0; k < channels; k++, NAME(go_to_next_channel)(rows, channel)) {
        const REAL *const *row = NAME(in_source)(rows, begin, limit);
        for (index_t j = 0; j * rows->each < rows->count; j++)
            NAME(part_narrow)(M, SLOTS, columns, rows->each, row + j * rows->each, rows->exist,
                              to->at + k * to->lot + j * to->row, to->step);
    }
}

static __attribute__((noinline)) void NAME(part_any_images)(
    const NAME(tiling) *t, index_t columns, index_t channels, index_t channel, NAME(narrow_rows) *rows,
    const REAL *begin, const REAL *limit, const NAME(arrays) to)
{
#define PART(M, SLOTS)                                                                                                \
    if (SLOTS <= NARROW_TILES && t->of_x == M && NAME(slots)(columns) == SLOTS)                                       \
        NAME(part_images)(M, SLOTS <= NARROW_TILES ? SLOTS : 1, columns, channels, channel, rows, begin, limit, &to)
    PART(2, 1);
    PART(2, 2);
    PART(2, 4);
#ifndef WHOLE
    PART(4, 1);
    PART(4, 2);
    PART(4, 4);
#endif
#undef PART
}

/* Of one stream. Of rows of tiles that do not fit into the images at once, whole vectors are transformed at a time. */
static void NAME(transform_stream)(const piece_t *piece, const NAME(tiling) *t, const block_t *block,
                                   const layout_t *layout, index_t planes, index_t shift, const REAL *source,
                                   const REAL *begin, const REAL *limit, index_t channels, REAL *to)
{
    REAL images[WORK + SLACK] __attribute__((aligned(BYTES)));
    const index_t columns = block->extent[2], lines = block->samples * planes * block->extent[1];
    const index_t fit = WORK / (t->y * t->x) - LANES; /* elements of an image, behind which a vector may be written */
    const index_t most = NAME(least)(fit / columns, NARROW_ROWS / t->y) / LANES * LANES;
    NAME(narrow_rows) rows;
    for (index_t line = 0, some; line < lines; line += some) {
        some = NAME(least)(most, lines - line);
        const index_t n = some * columns, together = fit / n;
        NAME(find_narrow)(piece, t, block, planes, shift, source, line, some, &rows);
        for (index_t k = 0, of; k < channels; k += of) {
            of = NAME(least)(together, channels - k);
            const index_t image = of * n + LANES;
            NAME(part_any_images)(t, columns, of, piece->source_channel, &rows, begin, limit,
                                  NAME(spaced)(images, n, image, t->y * image));
            NAME(pass_cells)(t->of_y, of, t->x, n, NAME(spaced)(images, n, t->y * image, image),
                             NAME(spaced)(to + line * columns + k * layout->channel, layout->channel, layout->set,
                                          t->x * layout->set));
        }
    }
}

/* As transform_source. */
static void NAME(transform_narrow)(const piece_t *piece, const block_t *block, const layout_t *layout,
                                   const void *source, const void *begin, const void *limit, index_t channels,
                                   void *scratch)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const index_t planes = NAME(cells)(piece, block, 0);
    index_t shift[3];
    for (index_t stream = 0; stream < layout->streams[0]; stream++) {
        NAME(shifts)(piece, block, stream, 0, 0, shift);
        NAME(transform_stream)(piece, &t, block, layout, planes, shift[0], source, begin, limit, channels,
                               (REAL *)scratch + stream * layout->stream);
    }
}
