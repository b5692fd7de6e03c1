/* Stride-1 convolutions of 3 taps along y, x or both as products in each frequency of small tiles: M + 2 frequencies an
   axis for M outputs. The transforms go one axis at a time through arrays in the first-level cache, so that y, x and
   both are the same code; z's taps stay in the depth. See winograd_lines.h for one axis, and body.h for the macros. */

#define SLACK (32 * LANES)                     /* that whole vectors may touch past their ends */
#define CELL_ROWS 256                          /* rows of cells that are transformed together at most */

/* A piece's tiles: what they are along y and x (M of winograd_lines.h), with how many outputs and frequencies; lattices,
   which tiles share, and tiles of a lattice along y: without end where there is one lattice, as its last block may have
   rows of tiles with no positions; and how far lone tiles' cells are from each other along x. */
typedef struct {
    index_t of_y, of_x, outputs_y, outputs_x, y, x, lattices_y, lattices_x, high, apart;
} NAME(tiling);

static inline NAME(tiling) NAME(tiling_of)(const piece_t *piece)
{
    const index_t y = piece->tile[1], x = piece->tile[2];
    const index_t lattices = piece->axis[1].tap_step, apart = piece->axis[2].tap_step;
    const index_t rows = lattices * SIZE(y), high = (piece->count[1] + rows - 1) / rows;
    return (NAME(tiling)){y, x, SIZE(y), SIZE(x), FREQUENCIES(y), FREQUENCIES(x), lattices, x < 0 ? 1 : apart,
                          lattices > 1 ? high : PTRDIFF_MAX, apart};
}

/* The row of positions that is output i of tiles in row y: one more is t->lattices_y rows on. */
static inline index_t NAME(row_of)(const NAME(tiling) *t, index_t y, index_t i)
{
    return (y % t->high * t->outputs_y + i) * t->lattices_y + y / t->high;
}

static inline index_t NAME(least)(index_t a, index_t b)
{
    return a < b ? a : b;
}

static inline index_t NAME(most)(index_t a, index_t b)
{
    return a > b ? a : b;
}

/* Source is transformed in chunks of `rows` by `columns` tiles of one plane of some `channels`. Along x, rows of cells
   become images: row i of every tile goes to image i, so that in an image whole vectors of tiles span its rows. What a
   tile shares with the next along y is read one row further on: images have an `extra` row where y is transformed. */
typedef struct {
    index_t channels, rows, columns, extra;
} NAME(chunks);

static NAME(chunks) NAME(find_chunks)(const NAME(tiling) *t, index_t rows, index_t columns)
{
    const index_t fitting = WORK / 4 / (t->outputs_y * t->x);
    index_t unit = LANES;
    while (unit % t->lattices_x)
        unit += LANES;
    const index_t widest = fitting < unit ? unit : fitting / unit * unit;
    NAME(chunks) c = {1, rows, NAME(least)(columns, widest), t->of_y > 1};
    const index_t row = t->outputs_y * t->x * c.columns;
    const index_t fit = NAME(least)(WORK / row, CELL_ROWS / t->outputs_y) - c.extra;
    if (fit < rows) {
        const index_t parts = (rows + fit - 1) / fit;
        c.rows = (rows + parts - 1) / parts;
        for (index_t even = c.rows; even <= fit && c.rows * columns % LANES; even++)
            if (even * columns % LANES == 0)
                c.rows = even; /* so that later chunks begin at a whole vector of scratch */
    }
    c.channels = WORK / (row * (c.rows + c.extra));
    return c;
}

/* The rows of cells of a chunk, image after image: where each is in a channel of source if its `kind` is not NOTHING or
   CONSTANT; which cells of a row exist there; and the `edge` ones beyond, as in beyond_cells. */
typedef struct {
    index_t count, at[CELL_ROWS], kind[CELL_ROWS];
    MASK exist[WORK / 4];
    index_t edge, cell[WORK / 4], from[WORK / 4];
    REAL constant;
} NAME(cell_rows);

static void NAME(find_rows)(const piece_t *piece, const NAME(tiling) *t, const NAME(chunks) *c, index_t sample,
                            index_t z, index_t y, index_t rows, index_t x, NAME(cell_rows) *cells)
{
    const int lone = t->of_x < 0; /* then all of its cells exist, the first of each under the second tap */
    const index_t first = lone ? x + piece->axis[2].offset + t->apart : x * t->outputs_x + piece->axis[2].offset;
    const index_t width = lone ? 0 : t->outputs_x * c->columns + (t->x - t->outputs_x) * t->lattices_x;
    const index_t offset = piece->axis[1].offset + (t->of_y < 0 ? piece->axis[1].tap_step : 0);
    const index_t *stride = piece->source_stride, plane = NAME(cell_for)(piece, 0, z);
    __builtin_memcpy(&cells->constant, piece->edge_value, sizeof(cells->constant));
    cells->edge = cells->count = 0;
    for (index_t q = 0; !lone && q < t->outputs_x * (NAME(up)(c->columns) + t->lattices_x) + LANES; q++) {
        const index_t cell = q < width ? NAME(cell_for)(piece, 2, first + q) : NOTHING;
        cells->exist[q] = cell >= 0 && cell == first + q ? -1 : 0;
        if (cell == NOTHING || cells->exist[q])
            continue;
        cells->cell[cells->edge] = q;
        cells->from[cells->edge++] = cell == CONSTANT ? FAR : cell - first;
    }
    for (index_t i = 0; i < t->outputs_y; i++)
        for (index_t r = 0; r < rows + c->extra; r++, cells->count++) {
            index_t row = NOTHING;
            if (r < rows || i < 2)
                row = NAME(cell_for)(piece, 1, NAME(row_of)(t, y, r * t->outputs_y + i) + offset);
            cells->kind[cells->count] = plane == NOTHING || row == NOTHING ? NOTHING : NAME(least)(plane, row);
            cells->at[cells->count] = sample + plane * stride[0] + row * stride[1] + first;
        }
}

/* Those of the cells beyond the edge that are in some vectors of a row, the first of which begins at cell `from`; gives
   back whether there are any. */
static inline int NAME(find_beyond)(const NAME(cell_rows) *rows, index_t from, int vectors, NAME(beyond_cells) *beyond)
{
    int i = 0;
    *beyond = (NAME(beyond_cells)){{0}, rows->cell, rows->from, rows->constant};
    for (int j = 0; j <= vectors; j++) {
        while (i < rows->edge && rows->cell[i] < from + j * LANES)
            i++;
        beyond->first[j] = i;
    }
    return beyond->first[vectors] > beyond->first[0];
}

/* What these vectors have of a row of constants. */
static void NAME(take_constants)(const NAME(cell_rows) *rows, const NAME(beyond_cells) *beyond, index_t from,
                                 int vectors, REAL *to)
{
    for (int q = 0; q < vectors * LANES; q++)
        to[q] = rows->exist[from + q] ? rows->constant : 0;
    for (int i = beyond->first[0]; i < beyond->first[vectors]; i++)
        to[rows->cell[i] - from] = rows->constant;
}

/* The rows of some channels along x, their last vectors first: what spills from a row is overwritten by the next. Where
   whole vectors would reach outside the source, and in rows of constants, cells are taken one by one. */
static inline __attribute__((always_inline)) void NAME(part_rows)(
    const int M, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source, index_t channel,
    const REAL *begin, const REAL *limit, const NAME(arrays) *to)
{
    const int vectors = M == 1 ? 1 : M + 1, outputs = TO(CELLS, M);
    const index_t ahead = AHEAD * channel;
    for (index_t p = (columns - 1) / LANES * LANES; p >= 0; p -= LANES) {
        NAME(beyond_cells) beyond;
        NAME(mask) exist[5], every[5];
        REAL edge[5 * LANES];
        const int edged = NAME(find_beyond)(rows, M * p, vectors, &beyond);
#pragma GCC unroll 5
        for (int j = 0; j < vectors; j++) {
            exist[j] = *(const NAME(mask) *)(rows->exist + M * p + j * LANES);
            every[j] = ~(NAME(mask)){0};
        }
        for (index_t k = 0; k < channels; k++)
            for (index_t r = 0; r < rows->count; r++) {
                REAL *out = to->at + k * to->lot + r * to->row + p;
                const index_t row = k * channel + rows->at[r], at = row + M * p;
                for (int q = 0; q < M * LANES; q += 64 / (int)sizeof(REAL))
                    __builtin_prefetch(source + at + ahead + q);
                if (rows->kind[r] == NOTHING) {
#pragma GCC unroll 6
                    for (int i = 0; i < outputs; i++)
                        STORE(out + i * to->step, (VECTOR){0});
                } else if (rows->kind[r] == CONSTANT) {
                    NAME(take_constants)(rows, &beyond, M * p, vectors, edge);
                    NAME(part)(M, 0, edge, every, &beyond, source + row, out, to->step);
                } else if (at < begin - source || at + vectors * LANES > limit - source) {
                    for (int q = 0; q < vectors * LANES; q++)
                        edge[q] = rows->exist[M * p + q] ? source[at + q] : 0;
                    NAME(part)(M, 1, edge, exist, &beyond, source + row, out, to->step);
                } else if (edged)
                    NAME(part)(M, 1, source + at, exist, &beyond, source + row, out, to->step);
                else
                    NAME(part)(M, 0, source + at, exist, &beyond, source + row, out, to->step);
            }
    }
}

/* A row of cells to M arrays `apart` from each other, d by d: cells that a tile shares with the next of its lattice are
   then d elements further on. */
static inline __attribute__((always_inline)) void NAME(deal_row)(
    const int M, index_t d, const MASK *exist, index_t columns, const REAL *source, index_t at, const REAL *begin,
    const REAL *limit, REAL *dealt, index_t apart)
{
    const index_t cells = M * (columns + d) + LANES;
    const REAL *from = source + at;
    REAL edge[WORK / 2];
    if (at < begin - source || at + cells > limit - source) {
        for (index_t q = 0; q < cells; q++)
            edge[q] = exist[q] ? from[q] : 0;
        from = edge;
    }
    for (index_t q = 0; q < columns + d; q += d)
        for (int j = 0; j < M; j++)
            for (index_t e = 0; e < d; e += SOME) {
                const index_t cell = M * q + j * d + e;
                *(NAME(few) *)(dealt + j * apart + q + e) = (NAME(few))(
                    *(const NAME(few_mask) *)(from + cell) & *(const NAME(few_mask) *)(exist + cell));
            }
}

/* As part_rows where d > 1 lattices lie side by side. Some rows are dealt together: what was just stored is slow to
   load again elsewhere. */
static inline __attribute__((always_inline)) void NAME(part_dealt)(
    const int M, index_t d, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source,
    index_t channel, const REAL *begin, const REAL *limit, const NAME(arrays) *to)
{
    const int outputs = TO(CELLS, M);
    const index_t apart = columns + d + LANES, most = NAME(least)(8, WORK / (M * apart)), all = channels * rows->count;
    REAL dealt[WORK];
    for (index_t first = 0, some; first < all; first += some) {
        some = NAME(least)(most, all - first);
        for (index_t i = 0; i < some; i++) {
            const index_t k = (first + i) / rows->count, r = (first + i) % rows->count;
            const index_t at = k * channel + rows->at[r];
            for (index_t q = 0; q < M * columns; q += 64 / (int)sizeof(REAL))
                __builtin_prefetch(source + at + AHEAD * channel + q);
            if (rows->kind[r] != NOTHING)
                NAME(deal_row)(M, d, rows->exist, columns, source, at, begin, limit, dealt + i * M * apart, apart);
        }
        for (index_t i = 0; i < some; i++) {
            const index_t k = (first + i) / rows->count, r = (first + i) % rows->count;
            const REAL *from = dealt + i * M * apart;
            REAL *out = to->at + k * to->lot + r * to->row;
            for (index_t p = 0; p < columns; p += LANES) {
                VECTOR x[6], y[6] = {{0}};
                if (rows->kind[r] != NOTHING) {
#pragma GCC unroll 6
                    for (int j = 0; j < outputs; j++)
                        x[j] = LOAD(from + j % M * apart + p + j / M * d);
                    NAME(line)(CELLS, M, x, y);
                }
#pragma GCC unroll 6
                for (int j = 0; j < outputs; j++)
                    STORE(out + j * to->step + p, y[j]);
            }
        }
    }
}

#ifndef WHOLE

/* As part_rows of lone tiles, the cells of which lie `apart`: vectors of each. No row is beyond the edge. */
static inline __attribute__((always_inline)) void NAME(part_lone)(
    const int M, index_t apart, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source,
    index_t channel, const REAL *limit, const NAME(arrays) *to)
{
    const index_t ahead = AHEAD * channel;
    for (index_t p = (columns - 1) / LANES * LANES; p >= 0; p -= LANES)
        for (index_t k = 0; k < channels; k++)
            for (index_t r = 0; r < rows->count; r++) {
                const REAL *from = source + k * channel + rows->at[r] + p;
                REAL *out = to->at + k * to->lot + r * to->row + p;
                VECTOR x[3], y[5];
#pragma GCC unroll 3
                for (int j = 0; j < SIZE(M); j++) {
                    const REAL *cells = from + j * apart;
                    REAL edge[LANES] = {0};
                    __builtin_prefetch(cells + ahead);
                    if (LANES > limit - cells) {
                        __builtin_memcpy(edge, cells, NAME(least)(LANES, columns - p) * sizeof(REAL));
                        cells = edge;
                    }
                    x[j] = LOAD(cells);
                }
                NAME(line)(CELLS, M, x, y);
                for (int j = 0; j < FREQUENCIES(M); j++)
                    STORE(out + j * to->step, y[j]);
            }
}

#endif

static __attribute__((noinline)) void NAME(part_cells)(
    const NAME(tiling) *t, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source,
    index_t channel, const REAL *begin, const REAL *limit, const NAME(arrays) to)
{
    const index_t m = t->of_x, lattices = t->lattices_x;
#ifndef WHOLE
    if (m == -2) {
        NAME(part_lone)(-2, t->apart, rows, channels, columns, source, channel, limit, &to);
        return;
    }
    if (m == -3) {
        NAME(part_lone)(-3, t->apart, rows, channels, columns, source, channel, limit, &to);
        return;
    }
#endif
    if (lattices > 1 && ARE_SMALL(m))
        NAME(part_dealt)(2, lattices, rows, channels, columns, source, channel, begin, limit, &to);
    else if (lattices > 1)
        NAME(part_dealt)(4, lattices, rows, channels, columns, source, channel, begin, limit, &to);
    else if (m == 1)
        NAME(part_rows)(1, rows, channels, columns, source, channel, begin, limit, &to);
    else if (ARE_SMALL(m))
        NAME(part_rows)(2, rows, channels, columns, source, channel, begin, limit, &to);
    else
        NAME(part_rows)(4, rows, channels, columns, source, channel, begin, limit, &to);
}

/* One chunk: along x to images (or to scratch), along y to scratch, where rows of tiles are `to_row` apart. */
static void NAME(transform_chunk)(const piece_t *piece, const layout_t *layout, const NAME(tiling) *t,
                                  const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source,
                                  const REAL *begin, const REAL *limit, REAL *to, index_t to_row)
{
    REAL images[WORK + SLACK] __attribute__((aligned(BYTES)));
    const index_t n = rows->count * columns, image = n / t->outputs_y, area = NAME(up)(channels * n + LANES);
    NAME(arrays) from = {images, n, area, image, columns - t->outputs_y * image};
    const index_t shared = t->of_y > 1 ? columns : 0; /* of the last row, which only the one before it reads */
    NAME(arrays) out = NAME(spaced)(to, layout->channel, layout->set, t->x * layout->set);
    NAME(part_cells)(t, rows, channels, columns, source, piece->source_channel, begin, limit,
                     t->y > 1 ? NAME(spaced)(images, n, columns, area)
                              : NAME(spaced)(to, layout->channel, to_row, layout->set));
    if (t->y > 1 && columns == to_row)
        NAME(pass_cells)(t->of_y, channels, t->x, image - shared, from, out);
    else if (t->y > 1) {
        from.lot = columns;
        out.lot = to_row;
        for (index_t k = 0; k < channels; k++, from.at += n, out.at += layout->channel)
            NAME(pass_cells)(t->of_y, (image - shared) / columns, t->x, columns, from, out);
    }
}

/* As `unroll`, for a piece with tiles: scratch of each frequency is layout->set after the one before. Strips of columns
   come from the right, so that what spills from a row of tiles is overwritten by the next row's strip to the left. */
static void NAME(transform_source)(const piece_t *piece, const block_t *block, const layout_t *layout,
                                   const void *source, const void *begin, const void *limit, index_t channels,
                                   void *scratch)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const NAME(chunks) c = NAME(find_chunks)(&t, block->extent[1], block->extent[2]);
    const axis_t *axis = &piece->axis[0];
    const index_t planes = NAME(cells)(piece, block, 0);
    const index_t lines = layout->streams[0] * block->samples * planes, *extent = block->extent;
    NAME(cell_rows) rows;
    index_t shift[3];
    for (index_t x = (extent[2] - 1) / c.columns * c.columns; x >= 0; x -= c.columns)
        for (index_t line = 0; line < lines; line++) {
            const index_t stream = line / (block->samples * planes), sample = line / planes % block->samples;
            NAME(shifts)(piece, block, stream, 0, 0, shift);
            const index_t z = axis->step * (block->start[0] + line % planes) + shift[0];
            for (index_t y = 0, some; y < extent[1]; y += some) {
                const index_t row = block->start[1] + y, left = NAME(least)(extent[1] - y, t.high - row % t.high);
                some = NAME(least)(c.rows, left);
                REAL *to = (REAL *)scratch + stream * layout->stream
                    + (line % (block->samples * planes) * extent[1] + y) * extent[2] + x;
                NAME(find_rows)(piece, &t, &c, (block->sample + sample) * piece->source_batch, z, row, some,
                                block->start[2] + x, &rows);
                for (index_t k = 0; k < channels; k += c.channels)
                    NAME(transform_chunk)(piece, layout, &t, &rows, NAME(least)(c.channels, channels - k),
                                          NAME(least)(c.columns, extent[2] - x),
                                          (const REAL *)source + k * piece->source_channel, begin, limit,
                                          to + k * layout->channel, extent[2]);
            }
        }
}
