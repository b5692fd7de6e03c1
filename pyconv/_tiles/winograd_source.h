/* Source in Winograd's frequencies. See body.h for the macros. */

/* A piece's tiles: outputs m of one along its transformed axes; outputs and frequencies along y and x. */
typedef struct {
    index_t m, outputs_y, outputs_x, y, x;
} NAME(tiling);

static inline NAME(tiling) NAME(tiles_of)(const piece_t *piece)
{
    const index_t y = piece->tile[1], x = piece->tile[2];
    return (NAME(tiling)){y > x ? y : x, y, x, y > 1 ? y + 2 : 1, x > 1 ? x + 2 : 1};
}

static inline index_t NAME(least)(index_t a, index_t b)
{
    return a < b ? a : b;
}

/* How source is taken to its frequencies: chunks of `samples` by `planes` by `rows` by `columns` tiles of `channels`.
   Rows of cells are transformed along x into `images`, row i of every tile into image i, so that in an image whole
   vectors of tiles span its rows. Rows that two tiles share are in two images where a chunk has several planes (images
   = frequencies); else what the second tile has of them is read one row of tiles further on (images = outputs, of one
   row more: `extra`). */
typedef struct {
    index_t channels, samples, planes, rows, columns, images, extra;
} NAME(chunks);

static NAME(chunks) NAME(find_chunks)(const NAME(tiling) *t, const index_t extent[3], index_t samples)
{
    const index_t planes = samples * extent[0], tiles = extent[1] * extent[2];
    const index_t widest = WORK / 4 / (t->outputs_y * t->x) / LANES * LANES;
    NAME(chunks) c = {1, 1, 1, extent[1], NAME(least)(extent[2], widest), t->outputs_y, 0};
    const int whole = c.columns == extent[2], waste = 2 * NAME(up)(tiles) >= 3 * tiles;
    if (whole && (t->y == 1 || (planes > 1 && waste)))
        c.images = t->y;
    c.extra = c.images < t->y;
    const index_t row = c.images * t->x * c.columns;
    const index_t fit = NAME(least)(WORK / row, CELL_ROWS / c.images) - c.extra;
    if (fit < extent[1]) {
        const index_t parts = (extent[1] + fit - 1) / fit;
        c.rows = (extent[1] + parts - 1) / parts;
        for (index_t even = c.rows; even <= fit; even++)
            if (even * extent[2] % LANES == 0) { /* later chunks begin at whole vectors of scratch */
                c.rows = even;
                break;
            }
    } else if (whole && !c.extra) {
        c.planes = NAME(least)(extent[0], fit / extent[1]);
        c.samples = c.planes < extent[0] ? 1 : NAME(least)(samples, fit / (extent[1] * extent[0]));
    }
    c.channels = WORK / (row * c.samples * c.planes * (c.rows + c.extra));
    return c;
}

/* The rows of cells of one chunk, where each begins in a channel of source; and which cells of a row exist. */
typedef struct {
    index_t count, at[CELL_ROWS];
    MASK exists[WORK / 4];
} NAME(cell_rows);

#define NOWHERE ((index_t)1 << (8 * sizeof(index_t) - 2)) /* no row */

/* `chunk` counts samples, planes and tiles along y, and cells along x. */
static void NAME(find_rows)(const piece_t *piece, const NAME(tiling) *t, const NAME(chunks) *c, const block_t *chunk,
                            index_t z_shift, NAME(cell_rows) *rows)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t first = chunk->start[2] + x->offset, cells = t->outputs_x * c->columns + t->x - t->outputs_x;
    for (index_t q = 0; q < t->outputs_x * NAME(up)(c->columns) + LANES; q++)
        rows->exists[q] = first + q >= 0 && first + q < x->size && q < cells ? -1 : 0;
    rows->count = 0;
    for (index_t i = 0; i < c->images; i++)
        for (index_t s = 0; s < chunk->samples; s++)
            for (index_t q = 0; q < chunk->extent[0]; q++)
                for (index_t r = 0; r < chunk->extent[1] + c->extra; r++) {
                    const index_t cell_z = z->step * (chunk->start[0] + q) + z_shift;
                    const index_t cell_y = (chunk->start[1] + r) * t->outputs_y + i + y->offset;
                    const int found = cell_z >= 0 && cell_z < z->size && cell_y >= 0 && cell_y < y->size
                        && (r < chunk->extent[1] || i < 2);
                    rows->at[rows->count++] = !found ? NOWHERE
                        : (chunk->sample + s) * piece->source_batch + cell_z * piece->source_stride[0]
                            + cell_y * piece->source_stride[1] + first;
                }
}

/* All rows of some channels along x, their last vectors first: what spills from a row is overwritten by the next. */
static inline __attribute__((always_inline)) void NAME(part_rows)(
    const int M, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source, index_t channel,
    const REAL *begin, const REAL *limit, const NAME(arrays) *to)
{
    const int outputs = M == 1 ? 1 : M + 2, span = (M + 1) * LANES;
    for (index_t p = (columns - 1) / LANES * LANES; p >= 0; p -= LANES) {
        const MASK *found = rows->exists + M * p;
        NAME(mask) exists[5];
        REAL edge[5 * LANES];
#pragma GCC unroll 5
        for (int j = 0; j <= M; j++)
            exists[j] = *(const NAME(mask) *)(found + j * LANES);
        for (index_t k = 0; k < channels; k++)
            for (index_t r = 0; r < rows->count; r++) {
                REAL *out = to->at + k * to->lot + r * to->row + p;
                const REAL *cells = source + k * channel + rows->at[r] + M * p;
                if (rows->at[r] == NOWHERE) {
#pragma GCC unroll 6
                    for (int i = 0; i < outputs; i++)
                        STORE(out + i * to->step, (VECTOR){0});
                    continue;
                }
                if (cells < begin || limit - cells < span) {
                    for (int q = 0; q < span; q++)
                        edge[q] = found[q] ? cells[q] : 0;
                    cells = edge;
                }
                NAME(part)(M, cells, exists, out, to->step);
            }
    }
}

static __attribute__((noinline)) void NAME(part_cells)(
    index_t m, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source, index_t channel,
    const REAL *begin, const REAL *limit, const NAME(arrays) to)
{
    if (m == 1)
        NAME(part_rows)(1, rows, channels, columns, source, channel, begin, limit, &to);
    else if (m == 2)
        NAME(part_rows)(2, rows, channels, columns, source, channel, begin, limit, &to);
    else
        NAME(part_rows)(4, rows, channels, columns, source, channel, begin, limit, &to);
}

/* One chunk: along x to images (or to scratch), along y to scratch. */
static void NAME(transform_chunk)(const piece_t *piece, const layout_t *layout, const NAME(tiling) *t,
                                  const NAME(chunks) *c, const NAME(cell_rows) *rows, index_t channels,
                                  const REAL *source, const REAL *begin, const REAL *limit, index_t columns,
                                  REAL *to, index_t to_row)
{
    REAL images[WORK + SLACK] __attribute__((aligned(BYTES)));
    const index_t n = rows->count * columns, image = n / c->images, area = NAME(up)(channels * n + LANES);
    NAME(arrays) from = NAME(spaced)(t->m, images, n, area, image);
    NAME(arrays) out = NAME(spaced)(t->m, to, layout->channel, layout->set, t->x * layout->set);
    NAME(part_cells)(t->outputs_x, rows, channels, columns, source, piece->source_channel, begin, limit,
                     t->y > 1 ? NAME(spaced)(t->m, images, n, columns, area)
                              : NAME(spaced)(t->m, to, layout->channel, to_row, layout->set));
    if (t->y == 1)
        return;
    if (c->extra)
        from.turn = columns;
    if (columns == to_row) {
        NAME(pass_cells)(t->m, channels, t->x, image - c->extra * columns, from, out);
        return;
    }
    from.lot = columns;
    out.lot = to_row;
    for (index_t k = 0; k < channels; k++, from.at += n, out.at += layout->channel)
        NAME(pass_cells)(t->m, image / columns - c->extra, t->x, columns, from, out);
}

/* As `unroll`, for a piece whose tiles are transformed: frequencies of scratch are layout->set apart. Strips of columns
   come from the right, so that what spills from a row of tiles is overwritten by the next row's strip to the left. */
static void NAME(transform_source)(const piece_t *piece, const block_t *block, const layout_t *layout,
                                   const void *source, const void *begin, const void *limit, index_t channels,
                                   void *scratch)
{
    const NAME(tiling) t = NAME(tiles_of)(piece);
    const index_t extent[3] = {
        block->extent[0] + (block->shared & 1 ? NAME(beyond)(&piece->axis[0]) : 0), block->extent[1],
        block->extent[2]};
    const NAME(chunks) c = NAME(find_chunks)(&t, extent, block->samples);
    NAME(cell_rows) rows;
    index_t shift[3];
    for (index_t j = 0; j < layout->streams[0]; j++)
        for (index_t x = (extent[2] - 1) / c.columns * c.columns; x >= 0; x -= c.columns)
            for (index_t s = 0; s < block->samples; s += c.samples)
                for (index_t z = 0; z < extent[0]; z += c.planes)
                    for (index_t y = 0; y < extent[1]; y += c.rows) {
                        const block_t chunk = {
                            block->sample + s, NAME(least)(c.samples, block->samples - s),
                            {block->start[0] + z, block->start[1] + y, (block->start[2] + x) * t.outputs_x},
                            {NAME(least)(c.planes, extent[0] - z), NAME(least)(c.rows, extent[1] - y), 0}, 0};
                        REAL *to = (REAL *)scratch + j * layout->stream
                            + ((s * extent[0] + z) * extent[1] + y) * extent[2] + x;
                        NAME(shifts)(piece, block, j, 0, 0, shift);
                        NAME(find_rows)(piece, &t, &c, &chunk, shift[0], &rows);
                        for (index_t k = 0; k < channels; k += c.channels)
                            NAME(transform_chunk)(piece, layout, &t, &c, &rows, NAME(least)(c.channels, channels - k),
                                                  (const REAL *)source + k * piece->source_channel, begin, limit,
                                                  NAME(least)(c.columns, extent[2] - x), to + k * layout->channel,
                                                  extent[2]);
                    }
}
