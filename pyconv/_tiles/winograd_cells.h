/* Stride-1 convolutions of 3 taps along y, x or both as products in each frequency of small tiles: M + 2 frequencies an
   axis for M outputs. The transforms go one axis at a time through arrays in the first-level cache, so that y, x and
   both are the same code; z's taps stay in the depth. See winograd_lines.h for one axis, and body.h for the macros. */

#define SLACK (32 * LANES)                     /* that whole vectors may touch past their ends */
#define CELL_ROWS 256                          /* rows of cells that are transformed together at most */

/* A piece's tiles: `m` outputs of one along its transformed axes; outputs and frequencies along y and x, lattices, and
   tiles of a lattice along y: of a lone one without end, as its last block may have rows of tiles with no positions. */
typedef struct {
    index_t m, outputs_y, outputs_x, y, x, lattices_y, lattices_x, high;
} NAME(tiling);

static inline NAME(tiling) NAME(tiling_of)(const piece_t *piece)
{
    const index_t y = piece->tile[1], x = piece->tile[2], lattices = piece->axis[1].tap_step;
    const index_t rows = lattices * y, high = (piece->count[1] + rows - 1) / rows;
    return (NAME(tiling)){y > x ? y : x, y, x, y > 1 ? y + 2 : 1, x > 1 ? x + 2 : 1, lattices,
                          piece->axis[2].tap_step, lattices > 1 ? high : PTRDIFF_MAX};
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
    NAME(chunks) c = {1, rows, NAME(least)(columns, widest), t->y > 1};
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
    const index_t first = x * t->outputs_x + piece->axis[2].offset, plane = NAME(cell_for)(piece, 0, z);
    const index_t width = t->outputs_x * c->columns + (t->x - t->outputs_x) * t->lattices_x;
    const index_t *stride = piece->source_stride;
    __builtin_memcpy(&cells->constant, piece->edge_value, sizeof(cells->constant));
    cells->edge = cells->count = 0;
    for (index_t q = 0; q < t->outputs_x * (NAME(up)(c->columns) + t->lattices_x) + LANES; q++) {
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
                row = NAME(cell_for)(piece, 1, NAME(row_of)(t, y, r * t->outputs_y + i) + piece->axis[1].offset);
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

static __attribute__((noinline)) void NAME(part_cells)(
    index_t m, index_t lattices, const NAME(cell_rows) *rows, index_t channels, index_t columns, const REAL *source,
    index_t channel, const REAL *begin, const REAL *limit, const NAME(arrays) to)
{
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
    NAME(arrays) from = {images, n, area, image, columns - t->m * image};
    NAME(arrays) out = NAME(spaced)(to, layout->channel, layout->set, t->x * layout->set);
    NAME(part_cells)(t->outputs_x, t->lattices_x, rows, channels, columns, source, piece->source_channel, begin, limit,
                     t->y > 1 ? NAME(spaced)(images, n, columns, area)
                              : NAME(spaced)(to, layout->channel, to_row, layout->set));
    if (t->y > 1 && columns == to_row)
        NAME(pass_cells)(t->m, channels, t->x, image - columns, from, out);
    else if (t->y > 1) {
        from.lot = columns;
        out.lot = to_row;
        for (index_t k = 0; k < channels; k++, from.at += n, out.at += layout->channel)
            NAME(pass_cells)(t->m, image / columns - 1, t->x, columns, from, out);
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
    const index_t planes = block->extent[0] + (block->shared & 1 ? NAME(beyond)(axis) : 0);
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

/* Runs of outputs of some tiles that lie side by side in target: where they begin there and among the outputs of a
   channel, their length, and how much may be written from there on because later runs follow without a gap. With folds,
   a run is of cells: position q of its row is at from - first + q, where the run's tiles have [begin, end), and `again`
   is set where rows beyond the edges were stored to its cells before, or it is such a row and its cells were. */
typedef struct {
    index_t count, to[4 * RUN_TILES], from[4 * RUN_TILES], length[4 * RUN_TILES], room[4 * RUN_TILES];
    index_t first[4 * RUN_TILES], begin[4 * RUN_TILES], end[4 * RUN_TILES];
    int again[4 * RUN_TILES];
} NAME(tile_runs);

static inline index_t NAME(most)(index_t a, index_t b)
{
    return a > b ? a : b;
}

/* Whether a row of outputs, which may lie beyond the edge, is of cells that an earlier one is of too. */
static inline int NAME(is_again)(const piece_t *piece, index_t cell, index_t cells)
{
    for (index_t earlier = -piece->before[1]; earlier < 0 && earlier < cell; earlier++)
        if (NAME(fold)(piece->folded, earlier, cells) == NAME(fold)(piece->folded, cell, cells))
            return 1;
    return cell >= cells;
}

/* Those of the n tiles from `tile`, without the outputs beyond the piece's. */
static void NAME(find_tile_runs)(const piece_t *piece, const NAME(tiling) *t, const block_t *block, index_t tile,
                                 index_t n, index_t from_row, NAME(tile_runs) *runs)
{
    const index_t *extent = block->extent, *stride = piece->target_stride, *before = piece->before;
    const index_t rows = piece->count[1] - before[1] - piece->behind[1];
    const index_t last = piece->count[2] - piece->behind[2]; /* behind the cells of a row */
    index_t run, count = 0;
    for (index_t done = 0; done < n; done += run) {
        const index_t at = tile + done, x = at % extent[2], y = at / extent[2] % extent[1];
        const index_t plane = at / (extent[2] * extent[1]), z = block->start[0] + plane % extent[0];
        const index_t begin = (block->start[2] + x) * t->outputs_x;
        run = NAME(least)(extent[2] - x, n - done);
        const index_t end = NAME(least)(begin + run * t->outputs_x, piece->count[2]);
        const index_t first = NAME(least)(NAME(most)(begin, before[2]), end);
        for (index_t i = 0; i < t->outputs_y; i++, count++) {
            const index_t row = NAME(row_of)(t, block->start[1] + y, i);
            if (row >= piece->count[1])
                break;
            runs->to[count] = (block->sample + plane / extent[0]) * piece->target_batch + z * stride[0]
                + NAME(fold)(piece->folded, row - before[1], rows) * stride[1] + (first - before[2]) * stride[2];
            runs->from[count] = i * from_row + done * t->outputs_x + first - begin;
            runs->length[count] = NAME(most)(NAME(least)(end, last) - first, 0);
            runs->first[count] = first;
            runs->begin[count] = begin;
            runs->end[count] = end;
            runs->again[count] = piece->folded && NAME(is_again)(piece, row - before[1], rows);
        }
    }
    for (index_t i = count; i-- > 0;) {
        const int follows = i + 1 < count && runs->to[i + 1] == runs->to[i] + runs->length[i] && !runs->again[i + 1];
        runs->room[i] = runs->length[i] + (follows ? runs->room[i + 1] : 0);
    }
    runs->count = count;
}

/* Outputs of a run beyond the edges are added to those of the cells that stand for them; to target where an earlier run
   of the row stored these. `row` and `cells` are where position 0 and cell 0 would be. */
static inline void NAME(fold_run)(const piece_t *piece, index_t begin, index_t end, REAL *row, REAL *cells)
{
    const index_t before = piece->before[2], last = piece->count[2] - piece->behind[2];
    index_t q = begin < before ? begin : NAME(most)(begin, last);
    for (; q < end; q = q + 1 == before ? last : q + 1) {
        const index_t cell = NAME(fold)(piece->folded, q - before, last - before);
        *(cell + before < begin ? cells + cell * piece->target_stride[2] : row + before + cell) += row[q];
    }
}

/* to[0, n) <- from + bias, where `room` elements may be written; the last vector may do again what others did. */
static inline void NAME(put_run)(REAL *to, const REAL *from, index_t n, index_t room, REAL bias)
{
    index_t q = 0;
    for (; q < n && q + LANES <= room; q += LANES)
        STORE(to + q, LOAD(from + q) + bias);
    if (q < n && n >= LANES)
        STORE(to + n - LANES, LOAD(from + n - LANES) + bias);
    else
        for (; q < n; q++)
            to[q] = from[q] + bias;
}

/* to[0, n) += from + bias; the last vector is added before others change what it shares with them. */
static inline void NAME(add_run)(REAL *to, const REAL *from, index_t n, REAL bias)
{
    if (n < LANES) {
        NAME(store_run)(to, 1, from, n, bias, 1);
        return;
    }
    const VECTOR last = LOAD(to + n - LANES) + (LOAD(from + n - LANES) + bias);
    for (index_t q = 0; q + LANES <= n; q += LANES)
        STORE(to + q, LOAD(to + q) + (LOAD(from + q) + bias));
    STORE(to + n - LANES, last);
}

static void NAME(store_runs)(const piece_t *piece, const NAME(tile_runs) *runs, REAL *outputs, REAL bias, REAL *target,
                             int accumulate)
{
    const index_t step = piece->target_stride[2];
    for (index_t i = 0; i < runs->count; i++) {
        REAL *to = target + runs->to[i], *from = outputs + runs->from[i];
        const int adds = accumulate || runs->again[i];
        const REAL b = runs->again[i] ? 0 : bias;
        if (piece->folded)
            NAME(fold_run)(piece, runs->begin[i], runs->end[i], from - runs->first[i],
                           to - (runs->first[i] - piece->before[2]) * step);
        if (step != 1)
            NAME(store_run)(to, step, from, runs->length[i], b, adds);
        else if (adds)
            NAME(add_run)(to, from, runs->length[i], b);
        else
            NAME(put_run)(to, from, runs->length[i], runs->room[i], b);
    }
}

/* Mark the samples of the n tiles from `tile` on that have an output which is not finite. */
static void NAME(doubt)(const block_t *block, const REAL *out, index_t lines, index_t width, index_t tile, index_t n,
                        index_t outputs, char *doubtful)
{
    const index_t tiles = block->extent[0] * block->extent[1] * block->extent[2];
    for (index_t line = 0; line < lines; line++)
        for (index_t q = 0; q < n * outputs; q++)
            if (out[line * width + q] * 0 != 0)
                doubtful[block->sample + (tile + q / outputs) / tiles] = 1;
}

/* How many tiles from `tile` on are stored together: whole rows where these are folded, or the first of one, for the
   cells that stand for those before it must be among them. */
static index_t NAME(stored_together)(const piece_t *piece, const NAME(tiling) *t, index_t tile, index_t row)
{
    if (!piece->folded)
        return RUN_TILES / t->lattices_x * t->lattices_x;
    return row <= RUN_TILES ? RUN_TILES / row * row : NAME(least)(RUN_TILES, row - tile % row);
}

/* target <- result (+ bias of the channel) (+ target). Samples whose values before that are not finite are doubtful. */
static void NAME(transform_result)(const piece_t *piece, const block_t *block, const void *result, index_t set,
                                   index_t pitch, index_t row, index_t rows, const void *bias, void *target,
                                   int accumulate, char *doubtful)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const index_t tiles = block->samples * block->extent[0] * block->extent[1] * block->extent[2];
    REAL work[WORK + SLACK] __attribute__((aligned(BYTES)));
    NAME(tile_runs) runs;
    for (index_t p = 0, n; p < tiles; p += n) {
        n = NAME(least)(NAME(stored_together)(piece, &t, p, block->extent[2]), tiles - p);
        const index_t whole = NAME(up)(n), half = t.y > 1 ? t.outputs_y * t.x * whole : 0;
        const index_t outputs = t.outputs_y * t.outputs_x * whole, most = WORK / (half + outputs);
        NAME(find_tile_runs)(piece, &t, block, p, n, t.outputs_x * whole, &runs);
        for (index_t i = 0, some; i < rows; i += some) {
            some = NAME(least)(most, rows - i);
            REAL *out = work + some * half;
            const REAL *from = (const REAL *)result + i * pitch + p;
            if (t.y > 1)
                NAME(pass_outputs)(t.m, some, t.x, n, NAME(spaced)(from, pitch, set, t.x * set),
                                   NAME(spaced)(work, half, whole, t.x * whole));
            if (!NAME(join_outputs)(t.outputs_x, t.lattices_x, some * t.outputs_y, n,
                                    t.y > 1 ? NAME(spaced)(work, 0, t.x * whole, whole)
                                            : NAME(spaced)(from, 0, pitch, set), out, t.outputs_x * whole))
                NAME(doubt)(block, out, some * t.outputs_y, t.outputs_x * whole, p, n, t.outputs_x, doubtful);
            for (index_t k = 0; k < some; k++)
                NAME(store_runs)(piece, &runs, out + k * outputs, bias ? ((const REAL *)bias)[row + i + k] : 0,
                                 (REAL *)target + (row + i + k) * piece->target_channel, accumulate);
        }
    }
}
