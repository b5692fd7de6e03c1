/* grad_weight with cells that are broadcast, as in broadcast.h: vectors of target's channels for each channel and tap
   of source. No product with padding is made: taps that reach the same positions of a block are done together. See
   body.h for the macros. */

/* So many positions side by side, from a cell of source and a row of the turned target on. */
typedef struct {
    index_t cell;
    int row, count;
} NAME(chain);

/* What products are made of: the first cell, whether scratch has the cells, as many as positions, or source itself; and
   where the chains of positions are listed, no more than there are positions, and behind them channels and taps. */
typedef struct {
    const REAL *source;
    int unrolled;
    NAME(chain) *list;
} NAME(cells_read);

static index_t NAME(lists)(const work_t *work)
{
    return (work->layout.positions * sizeof(NAME(chain)) + NAME(depth)(work) * sizeof(index_t)) / sizeof(REAL);
}

static void NAME(layout_asking)(work_t *work)
{
    NAME(layout_turned)(work);
    work->layout.panel += sizeof(NAME(rows_panel)) / sizeof(REAL);
}

static void NAME(layout_correlate)(work_t *work)
{
    NAME(layout_asking)(work);
    work->layout.scratch = (index_t)(sizeof(void *) / sizeof(REAL)) + NAME(lists)(work);
}

/* Of a lone tap: cells that lie apart, as under a stride, are read by many panels of columns, so they are unrolled. */
static void NAME(layout_correlate_unrolled)(work_t *work)
{
    NAME(layout_asking)(work);
    work->layout.scratch += NAME(lists)(work);
}

/* Neighbouring taps from `start` that reach the same positions along one axis. */
static NAME(stretch) NAME(find_taps_reaching)(const work_t *work, int a, index_t start, NAME(reached) *reached)
{
    NAME(stretch) s = {start, 1, 0, 0};
    *reached = NAME(find_reached)(work, a, start);
    for (; start + s.count < work->piece->axis[a].taps; s.count++) {
        const NAME(reached) next = NAME(find_reached)(work, a, start + s.count);
        if (next.low != reached->low || next.high != reached->high)
            break;
    }
    return s;
}

/* The positions of a block that some taps reach; gives back in how many chains, and the step from cell to cell. */
static index_t NAME(list_chains)(const work_t *work, const NAME(reached) reached[3], int unrolled, NAME(chain) *list,
                                 index_t *along)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const NAME(reached) *z = &reached[0], *y = &reached[1], *x = &reached[2];
    index_t step[3], corner = block->sample * piece->source_batch, n = 0;
    const int count = (int)(x->high - x->low);
    for (int a = 0; a < 3; a++) {
        step[a] = piece->axis[a].step * piece->source_stride[a];
        corner += block->start[a] * step[a] + piece->axis[a].offset * piece->source_stride[a];
    }
    const int alone = block->extent[0] * block->extent[1] * block->extent[2] == 1; /* then samples are the positions */
    *along = unrolled ? 1 : alone ? piece->source_batch : step[2];
    for (index_t s = 0; s < block->samples && count > 0; s++)
        for (index_t i = z->low; i < z->high; i++)
            for (index_t j = y->low; j < y->high; j++) {
                const index_t row = s * layout->batch + i * layout->axis[0] + j * layout->axis[1] + x->low;
                const index_t cell = unrolled ? row : corner + s * piece->source_batch + i * step[0] + j * step[1]
                    + x->low * step[2];
                NAME(chain) *last = &list[n - 1];
                if (n && cell == last->cell + last->count * *along && row == last->row + last->count)
                    last->count += count;
                else
                    list[n++] = (NAME(chain)){cell, (int)row, count};
            }
    return n;
}

/* The channels and taps of a box of taps, numbered as in the result; gives back how many. Neighbours are done together:
   cells that lie side by side, also where channels lie last. */
static index_t NAME(list_rows)(const work_t *work, const NAME(stretch) box[3], index_t *list)
{
    const axis_t *axis = work->piece->axis;
    const index_t taps = axis[0].taps * axis[1].taps * axis[2].taps, channels = work->part.channels;
    const int by_tap = work->piece->source_channel == 1 || box[0].count * box[1].count * box[2].count == 1;
    const index_t at_once = by_tap ? channels : 1;
    index_t *next = list;
    for (index_t first = 0; first < channels; first += at_once)
        for (index_t z = box[0].start; z < box[0].start + box[0].count; z++)
            for (index_t y = box[1].start; y < box[1].start + box[1].count; y++) {
                const index_t row = first * taps + (z * axis[1].taps + y) * axis[2].taps;
                for (index_t k = row + box[2].start; k < row + box[2].start + box[2].count; k++)
                    if (by_tap)
                        for (index_t c = 0; c < channels; c++)
                            *next++ = c * taps + k;
                    else
                        *next++ = k;
            }
    return next - list;
}

/* R channels and taps by V vectors of columns stay in registers while all chains of positions go by, as in `spread`, but
   no step looks up where a cell lies. */
static inline __attribute__((always_inline)) void NAME(spread_chains)(
    const int R, const int V, index_t chains, const NAME(chain) *chain, index_t step, const REAL *source,
    const index_t *cell, const REAL *ahead, const REAL *panel, REAL *result, const index_t *position, index_t pitch,
    int accumulate)
{
    VECTOR sum[24];
    const REAL *from[8];
#pragma GCC unroll 24
    for (int i = 0; i < R * V; i++)
        sum[i] = (VECTOR){0};
    for (const NAME(chain) *end = chain + chains; chain < end; chain++) {
        const REAL *row = panel + chain->row * V * LANES, *next = ahead + chain->cell;
#pragma GCC unroll 8
        for (int i = 0; i < R; i++)
            from[i] = source + cell[i] + chain->cell;
        IN_TWOS
        for (index_t left = chain->count, k = 0; left > 0; left--, k += step, row += V * LANES) {
            if (R >= ROWS)
                __builtin_prefetch(next + k);
            NAME(add_products)(R, V, sum, from, k, row);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        NAME(store_sums)(V, sum + i * V, result + position[i] * pitch, accumulate);
}

#define CHAINS(R, V)                                                                                                  \
    static __attribute__((noinline)) void NAME(chains_##R##x##V)(                                                     \
        index_t chains, const NAME(chain) *chain, index_t step, const REAL *source, const index_t *cell,              \
        const REAL *ahead, const REAL *panel, REAL *result, const index_t *position, index_t pitch, int accumulate)   \
    {                                                                                                                 \
        NAME(spread_chains)(R, V, chains, chain, step, source, cell, ahead, panel, result, position, pitch,           \
                            accumulate);                                                                              \
    }
typedef void (*NAME(chain_function))(index_t, const NAME(chain) *, index_t, const REAL *, const index_t *,
                                     const REAL *, const REAL *, REAL *, const index_t *, index_t, int);

CHAINS(1, 1) CHAINS(1, 2) CHAINS(2, 1) CHAINS(2, 2) CHAINS(3, 1) CHAINS(3, 2) CHAINS(4, 1) CHAINS(4, 2)
#if V4 >= 3
CHAINS(1, 3) CHAINS(2, 3) CHAINS(3, 3) CHAINS(4, 3)
#endif
#if ROWS == 8
CHAINS(8, 1) CHAINS(8, 2) CHAINS(8, 3)
#elif TALLER
CHAINS(8, 1) CHAINS(6, 2)
#endif

/* [channels and taps][vectors - 1] */
static const NAME(chain_function) NAME(chains)[TALLEST + 1][3] = {
#if V4 >= 3
    [1] = {NAME(chains_1x1), NAME(chains_1x2), NAME(chains_1x3)},
    [2] = {NAME(chains_2x1), NAME(chains_2x2), NAME(chains_2x3)},
    [3] = {NAME(chains_3x1), NAME(chains_3x2), NAME(chains_3x3)},
    [4] = {NAME(chains_4x1), NAME(chains_4x2), NAME(chains_4x3)},
#else
    [1] = {NAME(chains_1x1), NAME(chains_1x2)},
    [2] = {NAME(chains_2x1), NAME(chains_2x2)},
    [3] = {NAME(chains_3x1), NAME(chains_3x2)},
    [4] = {NAME(chains_4x1), NAME(chains_4x2)},
#endif
#if ROWS == 8
    [8] = {NAME(chains_8x1), NAME(chains_8x2), NAME(chains_8x3)},
#elif TALLER
    [6] = {[1] = NAME(chains_6x2)},
    [8] = {NAME(chains_8x1)},
#endif
};

#define BESIDE_NEXT (3 << 17) /* bytes of turned target that leave room in L2 for the cells of the next block */

/* All columns of a box of taps that reach the same positions. Tiles of most rows ask for the cells of the next one, or,
   where those of a position lie side by side and so in the same lines, for those behind the positions, which are the next
   block's where positions are one run. */
static void NAME(correlate_box)(const work_t *work, const NAME(stretch) box[3], const NAME(reached) reached[3],
                                const REAL *panel, const index_t *offset, const NAME(cells_read) *cells, REAL *result,
                                int accumulate)
{
    const layout_t *layout = &work->layout;
    const REAL *source = cells->source;
    index_t *row = (index_t *)(cells->list + layout->positions), cell[TALLEST], step;
    const index_t chains = NAME(list_chains)(work, reached, cells->unrolled, cells->list, &step);
    const index_t rows = NAME(list_rows)(work, box, row);
    const int in_order = work->piece->source_channel == 1 && !cells->unrolled
        && layout->positions * work->part.rows * (index_t)sizeof(REAL) <= BESIDE_NEXT;
    for (index_t column = 0, wide; column < work->part.rows; column += wide * LANES) {
        wide = NAME(panel)(work->part.rows - column);
        for (index_t i = 0; i < rows;) {
            const index_t tall = NAME(taller)(rows - i, wide), next = i + tall;
            for (index_t j = 0; j < tall; j++)
                cell[j] = offset[row[i + j]];
            const index_t ahead = column == 0 && in_order ? cell[0] + layout->positions * step
                                                          : offset[row[next < rows ? next : i]];
            NAME(chains)[tall][wide - 1](chains, cells->list, step, source, cell, source + ahead, panel, result + column,
                                         row + i, layout->pitch, accumulate);
            i = next;
        }
        panel += layout->positions * wide * LANES;
    }
}

/* Rows of target that are turned next, so many of them and so far apart, which kernels of few products for each of its
   numbers ask for as they multiply: at each position for that of one row, in turns. To ask for all of a block at once is to
   wait for them. It pays, as measured, for so many channels under taps that share a cell with each of their neighbours. */
#define ASK_IN_TURN(C, S) (ROWS == 8 && (C) <= 4 && (S) == 1)
typedef struct {
    const REAL *from;
    index_t pitch, rows;
} NAME(asked);

/* The share of a vector of columns, from `column` on, to which parts [begin, end) of `all` work belong; of columns that lie
   side by side one. */
static inline NAME(asked) NAME(share)(const NAME(rows_panel) *turned, index_t column, index_t begin, index_t end,
                                      index_t all)
{
    const index_t first = LANES * begin / all, rows = LANES * end / all - first;
    if (turned->pitch == 1)
        return (NAME(asked)){turned->first, 0, 1};
    return (NAME(asked)){turned->first + (column + first) * turned->pitch, turned->pitch, rows > 0 ? rows : 1};
}

/* Rows of positions whose taps share cells. Cells are numbered, as far apart as taps, from that of a row's first position
   under the first tap: source has those from `low` to `high`. At step m the S cells from S m on are met, S being how
   many a position goes on by: tap r + S i has cell S m + r with position m - i. From step `begin` to `end` all of these
   products are there, before and behind some, from `first` to `last`. */
typedef struct {
    index_t count[3], cell[3], position[3]; /* samples, planes, rows: how many, and how far apart in source and panel */
    index_t positions, low, high, first, begin, end, last;
    index_t step, channel, wide; /* from a cell to the next tap's and the next channel's; a position to the next's */
} NAME(rows);

/* The T taps of a row for C channels: C T sums stay in registers while all rows of positions run. Each cell is broadcast
   once for all taps that meet it: C S + 1 loads for C T products, where tiles of one vector want 9 for 8. */
static inline __attribute__((always_inline)) void NAME(correlate_row)(
    const int C, const int T, const int S, const NAME(rows) *rows, const REAL *source, const REAL *panel,
    const NAME(asked) *asked, REAL *result, index_t taps, index_t pitch, int accumulate)
{
    VECTOR sum[24], many[5];
    const REAL *ask = asked->from, *const last = ask + asked->rows * asked->pitch;
#pragma GCC unroll 24
    for (int i = 0; i < C * T; i++)
        sum[i] = (VECTOR){0};
    for (index_t s = 0; s < rows->count[0]; s++)
        for (index_t z = 0; z < rows->count[1]; z++)
            for (index_t y = 0; y < rows->count[2]; y++) {
                const REAL *cell = source + s * rows->cell[0] + z * rows->cell[1] + y * rows->cell[2];
                const index_t at = s * rows->position[0] + z * rows->position[1] + y * rows->position[2];
                const index_t first = at / rows->wide; /* of the row's positions */
                const REAL *row = panel + at;
                for (index_t m = rows->first; m < rows->last; m++) {
                    if (m == rows->begin && m < rows->end) {
#pragma GCC unroll 5
                        for (int i = 1; i <= (T - 1) / S; i++)
                            many[i] = LOAD(row + (m - i) * rows->wide);
                        for (; m < rows->end; m++) {
                            if (ASK_IN_TURN(C, S)) {
                                __builtin_prefetch(ask + first + m, 0, 2);
                                ask += asked->pitch;
                                ask = ask == last ? asked->from : ask;
                            }
                            many[0] = LOAD(row + m * rows->wide);
#pragma GCC unroll 16
                            for (int j = 0; j < C * S; j++) {
                                const VECTOR a = cell[j / S * rows->channel + (S * m + j % S) * rows->step] - (VECTOR){0};
#pragma GCC unroll 5
                                for (int t = j % S; t < T; t += S)
                                    sum[j / S * T + t] += a * many[t / S];
                            }
#pragma GCC unroll 5
                            for (int i = (T - 1) / S; i > 0; i--)
                                many[i] = many[i - 1];
                        }
                    }
#pragma GCC unroll 5
                    for (int t = 0; t < T; t++) {
                        const index_t here = S * m + t % S, position = m - t / S;
                        if (here < rows->low || here >= rows->high || position < 0 || position >= rows->positions)
                            continue;
#pragma GCC unroll 8
                        for (int c = 0; c < C; c++)
                            sum[c * T + t] += cell[c * rows->channel + here * rows->step] * LOAD(row + position * rows->wide);
                    }
                }
            }
#pragma GCC unroll 24
    for (int i = 0; i < C * T; i++)
        NAME(store_sums)(1, &sum[i], result + (i / T * taps + i % T) * pitch, accumulate);
}

#define CORRELATE_ROW(C, T, S)                                                                                        \
    static __attribute__((noinline)) void NAME(correlate_row_##C##x##T##x##S)(                                        \
        const NAME(rows) *rows, const REAL *source, const REAL *panel, const NAME(asked) *asked, REAL *result,        \
        index_t taps, index_t pitch, int accumulate)                                                                  \
    {                                                                                                                 \
        NAME(correlate_row)(C, T, S, rows, source, panel, asked, result, taps, pitch, accumulate);                    \
    }
typedef void (*NAME(row_function))(const NAME(rows) *, const REAL *, const REAL *, const NAME(asked) *, REAL *,
                                   index_t, index_t, int);

#define KERNEL(T, S) CORRELATE_ROW(1, T, S) CORRELATE_ROW(2, T, S) CORRELATE_ROW(3, T, S)
SHARED_CELLS(KERNEL)
#undef KERNEL
CORRELATE_ROW(4, 2, 1) CORRELATE_ROW(4, 3, 1) CORRELATE_ROW(4, 3, 2)
#if ROWS == 8
CORRELATE_ROW(4, 5, 1) CORRELATE_ROW(8, 2, 1) CORRELATE_ROW(8, 3, 1) CORRELATE_ROW(8, 3, 2)
#endif
#undef CORRELATE_ROW

/* By channels and which: none where sums would not fit registers. */
#define ROW(C, T, S) NAME(correlate_row_##C##x##T##x##S)
#define KERNEL_1(T, S) ROW(1, T, S),
#define KERNEL_2(T, S) ROW(2, T, S),
#define KERNEL_3(T, S) ROW(3, T, S),
static const struct {
    index_t channels;
    NAME(row_function) which[4];
} NAME(correlate_rows)[] = {
#if ROWS == 8
    {8, {ROW(8, 2, 1), ROW(8, 3, 1), NULL, ROW(8, 3, 2)}},
    {4, {ROW(4, 2, 1), ROW(4, 3, 1), ROW(4, 5, 1), ROW(4, 3, 2)}},
#else
    {4, {ROW(4, 2, 1), ROW(4, 3, 1), NULL, ROW(4, 3, 2)}},
#endif
    {3, {SHARED_CELLS(KERNEL_3)}},
    {2, {SHARED_CELLS(KERNEL_2)}},
    {1, {SHARED_CELLS(KERNEL_1)}},
};
#undef ROW
#undef KERNEL_1
#undef KERNEL_2
#undef KERNEL_3
#undef SHARED_CELLS

/* Every row of taps in two boxes of theirs, for all channels and the vector of columns from `column` on, of a panel `wide`
   columns wide. */
static void NAME(correlate_sharing)(const work_t *work, int which, const NAME(stretch) box[2],
                                    const NAME(reached) reached[2], const NAME(rows_panel) *turned, index_t column,
                                    const REAL *panel, index_t wide, const index_t *offset, const REAL *source,
                                    REAL *result, int accumulate)
{
    const piece_t *piece = work->piece;
    const layout_t *layout = &work->layout;
    const axis_t *axis = piece->axis, *x = &axis[2];
    const index_t taps = axis[0].taps * axis[1].taps * x->taps, s = x->step / x->tap_step;
    const index_t *start = work->block.start, shift = x->step * start[2] + x->offset, end = x->size - shift;
    NAME(rows) rows = {
        .count = {work->block.samples, reached[0].high - reached[0].low, reached[1].high - reached[1].low},
        .cell = {piece->source_batch, axis[0].step * piece->source_stride[0], axis[1].step * piece->source_stride[1]},
        .position = {layout->batch * wide, layout->axis[0] * wide, layout->axis[1] * wide},
        .positions = work->block.extent[2],
        .low = NAME(steps_to)(-shift, x->tap_step),
        .high = NAME(steps_to)(end, x->tap_step),
        .step = x->tap_step * piece->source_stride[2], .channel = piece->source_channel, .wide = wide};
    const index_t whole = (x->taps - 1) / s, after = (rows.low + s - 1) / s, until = (rows.high + s - 1) / s;
    rows.first = rows.low / s;
    rows.begin = after > whole ? after : whole;
    rows.end = rows.high / s < rows.positions ? rows.high / s : rows.positions;
    rows.last = until < rows.positions + whole ? until : rows.positions + whole;
    source += work->block.sample * piece->source_batch + shift * piece->source_stride[2];
    for (int a = 0; a < 2; a++) {
        source += (axis[a].step * (start[a] + reached[a].low) + axis[a].offset) * piece->source_stride[a];
        panel += reached[a].low * rows.position[a + 1];
    }
    for (index_t c = 0, i = 0; c < work->part.channels; c += NAME(correlate_rows)[i].channels) {
        while (NAME(correlate_rows)[i].channels > work->part.channels - c || !NAME(correlate_rows)[i].which[which])
            i++;
        const index_t at_once = NAME(correlate_rows)[i].channels;
        for (index_t z = box[0].start; z < box[0].start + box[0].count; z++)
            for (index_t y = box[1].start; y < box[1].start + box[1].count; y++) {
                const index_t tap = z * axis[1].taps + y, row = c * taps + tap * x->taps, all = taps / x->taps;
                const index_t begin = c * all + tap * at_once;
                const NAME(asked) asked = NAME(share)(turned, column, begin, begin + at_once, work->part.channels * all);
                NAME(correlate_rows)[i].which[which](&rows, source + offset[row], panel, &asked,
                                                     result + row * layout->pitch, taps, layout->pitch, accumulate);
            }
    }
}

/* The same for all columns. */
static void NAME(correlate_columns)(const work_t *work, int which, const NAME(stretch) box[2],
                                    const NAME(reached) reached[2], const NAME(rows_panel) *turned,
                                    const index_t *offset, const REAL *source, REAL *result, int accumulate)
{
    const REAL *panel = turned->own;
    for (index_t column = 0, wide; column < work->part.rows; column += wide) {
        wide = NAME(panel)(work->part.rows - column) * LANES;
        for (index_t i = 0; i < wide; i += LANES)
            NAME(correlate_sharing)(work, which, box, reached, turned, column + i, panel + i, wide, offset, source,
                                    result + column + i, accumulate);
        panel += work->layout.positions * wide;
    }
}

/* The next box along one axis, at tap `at` or, of few channels, at position `at`: its taps and the positions that all of
   them reach. Gives back how many taps, or positions, it takes. */
static index_t NAME(take_box)(const work_t *work, int a, index_t at, int few, NAME(stretch) *box, NAME(reached) *reached)
{
    if (few) {
        const NAME(stretch) s = NAME(find_stretch)(&work->piece->axis[a], work->block.start[a], at, work->block.extent[a]);
        *box = (NAME(stretch)){s.tap, s.taps, 0, 0};
        *reached = (NAME(reached)){at, at + s.count};
        return s.count;
    }
    *box = NAME(find_taps_reaching)(work, a, at, reached);
    return box->count;
}

/* By how taps share cells, where they do: see `sharing`. */
static inline int NAME(shares_cells)(const work_t *work)
{
    const index_t channels = work->part.channels;
    const int may = work->part.rows <= LANES || (channels > 1 && channels < ROWS);
    return may ? NAME(sharing)(work->piece, work->piece->axis[2].taps) : 0;
}

/* Boxes of taps have rows for a tile where channels are many; of few the positions are cut, so that all taps of most
   positions are together. One channel's taps that share cells are too few sums for the latency of the multiply-add: where
   there are more vectors than one, tiles have more. */
static void NAME(correlate_cells)(const work_t *work, const NAME(rows_panel) *turned, const index_t *offset,
                                  const NAME(cells_read) *cells, REAL *result, int accumulate)
{
    const axis_t *axis = work->piece->axis;
    const index_t channels = work->part.channels, *extent = work->block.extent;
    const int shared = NAME(shares_cells)(work);
    const int few = !shared && channels < ROWS;
    index_t end[3], at[3];
    NAME(reached) reached[3];
    NAME(stretch) box[3];
    for (int a = 0; a < 3; a++)
        end[a] = few ? extent[a] : axis[a].taps;
    if (few && !accumulate)
        NAME(zero)(work->layout.sums, result);
    for (at[0] = 0; at[0] < end[0];) {
        at[0] += NAME(take_box)(work, 0, at[0], few, &box[0], &reached[0]);
        for (at[1] = 0; at[1] < end[1];) {
            at[1] += NAME(take_box)(work, 1, at[1], few, &box[1], &reached[1]);
            if (shared) {
                NAME(correlate_columns)(work, shared - 1, box, reached, turned, offset, cells->source, result, accumulate);
                continue;
            }
            for (at[2] = 0; at[2] < end[2];) {
                at[2] += NAME(take_box)(work, 2, at[2], few, &box[2], &reached[2]);
                NAME(correlate_box)(work, box, reached, turned->own, offset, cells, result, few || accumulate);
            }
        }
    }
}

static void NAME(correlate)(const work_t *work, const void *turned, const index_t *offset, void *scratch,
                            void *result, int accumulate)
{
    const NAME(cells_read) cells = {*(const REAL **)scratch, 0, (NAME(chain) *)((const REAL **)scratch + 1)};
    NAME(correlate_cells)(work, turned, offset, &cells, result, accumulate);
}

static void NAME(correlate_unrolled)(const work_t *work, const void *turned, const index_t *offset, void *scratch,
                                     void *result, int accumulate)
{
    const index_t lists = work->layout.scratch - NAME(lists)(work);
    const NAME(cells_read) cells = {scratch, 1, (NAME(chain) *)((REAL *)scratch + lists)};
    NAME(correlate_cells)(work, turned, offset, &cells, result, accumulate);
}
