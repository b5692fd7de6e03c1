/* Weight to panels, results to target. See body.h for the macros. */

/* Whether the taps of a channel follow each other in memory. */
static inline int NAME(has_dense_taps)(const piece_t *piece)
{
    const axis_t *axis = piece->axis;
    const index_t *stride = piece->weight_stride, row = axis[2].taps, plane = row * axis[1].taps;
    return (axis[2].taps == 1 || stride[2] == 1) && (axis[1].taps == 1 || stride[1] == row)
        && (axis[0].taps == 1 || stride[0] == plane);
}

/* Whether the weights that a row multiplies follow each other in memory as the depth runs. */
static inline int NAME(is_dense)(const piece_t *piece)
{
    return NAME(has_dense_taps)(piece) && piece->weight_channel == NAME(all_taps)(piece);
}

/* Where a tap of a row lies, seen from the first. */
static inline index_t NAME(tap_at)(const piece_t *piece, index_t tap)
{
    const index_t row = piece->axis[2].taps, plane = row * piece->axis[1].taps, *stride = piece->weight_stride;
    return tap / plane * stride[0] + tap % plane / row * stride[1] + tap % row * stride[2];
}

/* How many weights of a row are turned at a time, which follow each other: all, the taps of a channel, or none. */
static inline index_t NAME(turned_at_once)(const piece_t *piece, index_t depth)
{
    const index_t taps = NAME(all_taps)(piece);
    if (NAME(is_dense)(piece))
        return depth;
    return 2 * taps > LANES && NAME(has_dense_taps)(piece) ? taps : 0;
}

/* Whether a row's channels follow each other in memory, and a channel's taps do not. */
static inline int NAME(has_channels_last)(const piece_t *piece)
{
    return piece->weight_channel == 1 && NAME(all_taps)(piece) > 1;
}

/* Elements that may be read from a row of a channel on, whose LANES rows have n weights each: up to the last of those, or
   of the part's first row in the next channel, if there is one behind them. */
static inline index_t NAME(readable)(const work_t *work, index_t channel, index_t row, index_t n)
{
    const piece_t *piece = work->piece;
    const index_t own = (LANES - 1) * piece->weight_row + n, next = piece->weight_channel - row * piece->weight_row;
    return channel + 1 < work->part.channels && piece->weight_row > 0 && next + n > own ? next + n : own;
}

#define TURNED_AHEAD (512 / (index_t)sizeof(REAL)) /* weights of a row between asking for them and turning them */

/* n weights of each of LANES rows, to[weight][row]: squares are turned in registers. SIDE rows lie side by side, the next
   ones `apart` from them. The last square is read whole if so much may be read, and if it is worth it. */
static inline __attribute__((always_inline)) void NAME(turn_rows)(
    const int SIDE, REAL *to, index_t pitch, index_t apart, const index_t *place, const REAL *from, index_t row_pitch,
    index_t n, index_t readable)
{
#define PLACE(k) (place ? to + place[k] : to + (k) * pitch)
    index_t k = 0;
    for (; 2 * (n - k) > LANES && (LANES - 1) * row_pitch + k + LANES <= readable; k += LANES) {
        VECTOR square[16];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            __builtin_prefetch(from + i * row_pitch + k + TURNED_AHEAD);
            square[i] = LOAD(from + i * row_pitch + k);
        }
        NAME(turn_square)(square);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
            for (int i = 0; i < LANES && k + j < n; i += SIDE)
                __builtin_memcpy(PLACE(k + j) + i / SIDE * apart, (const REAL *)&square[j] + i, SIDE * sizeof(REAL));
    }
    for (; k < n; k++)
        for (int i = 0; i < LANES; i++)
            PLACE(k)[i / SIDE * apart + i % SIDE] = from[i * row_pitch + k];
#undef PLACE
}

/* Rows of whole tiles that lie side by side in memory. Panels lie a power of two apart, of which a cache holds few lines:
   so many k are done at a time that each line is written as a whole. */
static void NAME(pack_beside)(const REAL *from, index_t k_pitch, index_t rows, index_t depth, REAL *to)
{
    const index_t line = OF_LINE, most = line / ROWS > 1 ? line / ROWS : 1;
    for (index_t k = 0, n; k < depth; k += n, from += n * k_pitch) {
        n = depth - k < most ? depth - k : most;
        for (index_t i = 0; i < rows; i += ROWS)
            for (index_t j = 0; j < n; j++) {
                if (i % line == 0)
                    __builtin_prefetch(from + (AHEAD * most + j) * k_pitch + i);
                __builtin_memcpy(to + i * depth + (k + j) * ROWS, from + j * k_pitch + i, ROWS * sizeof(REAL));
            }
    }
}

#define MOST_ASKED 4096 /* weights of a channel: where rows are longer, most between those of its panel are not read */

/* A channel's rows are asked for ahead: they end too soon for the hardware to follow, and phases that are packed one by
   one read them in turn. */
static inline void NAME(ask_for_rows)(const piece_t *piece, const REAL *from, index_t columns)
{
    for (index_t i = 0; i < columns * piece->weight_row && i < MOST_ASKED; i += OF_LINE)
        __builtin_prefetch(from + AHEAD * piece->weight_channel + i);
}

/* A weight of each of SIDE rows, which often lie side by side: those of 1x1 for the input's gradient. */
static inline __attribute__((always_inline)) void NAME(copy_rows)(const index_t SIDE, REAL *to, const REAL *from,
                                                                  index_t row_pitch)
{
    if (row_pitch == 1)
        __builtin_memcpy(to, from, SIDE * sizeof(REAL));
    else {
#pragma GCC unroll 16
        for (index_t i = 0; i < SIDE; i++)
            to[i] = from[i * row_pitch];
    }
}

/* to[side][channel][tap][row] <- the weights of so many times SIDE rows, of all channels of a part: one by one, as they
   may lie anyhow. Taps are `pitch` elements from one another, sides `apart`. */
static inline __attribute__((always_inline)) void NAME(pack_any)(
    const index_t SIDE, const index_t sides, const work_t *work, const REAL *from, REAL *to, index_t pitch, index_t apart)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t *stride = piece->weight_stride;
    for (index_t c = 0; c < work->part.channels; c++, from += piece->weight_channel) {
        if (piece->weight_row < piece->weight_channel)
            NAME(ask_for_rows)(piece, from, sides * SIDE);
        for (index_t z = 0; z < axis[0].taps; z++)
            for (index_t y = 0; y < axis[1].taps; y++)
                for (index_t x = 0; x < axis[2].taps; x++, to += pitch) {
                    const REAL *cell = from + z * stride[0] + y * stride[1] + x * stride[2];
                    for (index_t side = 0; side < sides; side++)
                        NAME(copy_rows)(SIDE, to + side * apart, cell + side * SIDE * piece->weight_row, piece->weight_row);
                }
    }
}

/* `pack_any` of LANES rows whose channels lie last, SIDE of them side by side: squares of each tap are turned. */
static inline __attribute__((always_inline)) void NAME(pack_by_taps)(
    const int SIDE, const work_t *work, const REAL *from, REAL *to, index_t pitch, index_t apart)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t *stride = piece->weight_stride, taps = NAME(all_taps)(piece), n = work->part.channels;
    for (index_t z = 0; z < axis[0].taps; z++)
        for (index_t y = 0; y < axis[1].taps; y++)
            for (index_t x = 0; x < axis[2].taps; x++, to += pitch)
                NAME(turn_rows)(SIDE, to, taps * pitch, apart, NULL, from + z * stride[0] + y * stride[1] + x * stride[2],
                                piece->weight_row, n, (LANES - 1) * piece->weight_row + n);
}

#define TILES 4 /* of whole tiles' rows, so many at once */
static __attribute__((noinline)) void NAME(pack_any_tiles)(const work_t *work, const REAL *from, REAL *to, index_t apart)
{
    NAME(pack_any)(ROWS, TILES, work, from, to, ROWS, apart);
}

static __attribute__((noinline)) void NAME(pack_any_columns)(const work_t *work, const REAL *from, index_t columns,
                                                             REAL *to, index_t wide)
{
    const index_t whole = columns / LANES * LANES, row = work->piece->weight_row;
    if (NAME(has_channels_last)(work->piece))
        for (index_t i = 0; i < whole; i += LANES)
            NAME(pack_by_taps)(LANES, work, from + i * row, to + i, wide, 0);
    else if (whole)
        NAME(pack_any)(LANES, whole / LANES, work, from, to, wide, LANES);
    if (whole < columns)
        NAME(pack_any)(columns - whole, 1, work, from + whole * work->piece->weight_row, to + whole, wide, 0);
}

/* [rows of a tile after rows of a tile][k][rows of the tile] */
static REAL *NAME(pack_one)(const work_t *work, const REAL *weight, REAL *to)
{
    const piece_t *piece = work->piece;
    const index_t channels = work->part.channels, depth = NAME(depth)(work), n = NAME(turned_at_once)(piece, depth);
    index_t row = work->part.row, rows = work->part.rows;
    for (; LANES % ROWS == 0 && n && rows >= LANES; row += LANES, rows -= LANES, to += LANES * depth)
        for (index_t c = 0; c * n < depth; c++)
            NAME(turn_rows)(ROWS < LANES ? ROWS : LANES /* where this is run, ROWS */, to + c * n * ROWS, ROWS, ROWS * depth,
                            NULL, weight + row * piece->weight_row + c * piece->weight_channel, piece->weight_row, n,
                            NAME(readable)(work, c, row - work->part.row, n));
    for (; LANES % ROWS == 0 && NAME(has_channels_last)(piece) && rows >= LANES; row += LANES, rows -= LANES) {
        NAME(pack_by_taps)(ROWS < LANES ? ROWS : LANES, work, weight + row * piece->weight_row, to, ROWS, ROWS * depth);
        to += LANES * depth;
    }
    if (depth == channels && piece->weight_row == 1) {
        const index_t whole = rows / ROWS * ROWS;
        NAME(pack_beside)(weight + row, piece->weight_channel, whole, depth, to);
        row += whole;
        rows -= whole;
        to += whole * depth;
    }
    for (; rows >= TILES * ROWS; row += TILES * ROWS, rows -= TILES * ROWS, to += TILES * ROWS * depth)
        NAME(pack_any_tiles)(work, weight + row * piece->weight_row, to, ROWS * depth);
    for (index_t high; rows > 0; row += high, rows -= high, to += high * depth) {
        high = NAME(tall)(rows);
        NAME(pack_any)(high, 1, work, weight + row * piece->weight_row, to, high, 0);
    }
    return to;
}

static void NAME(pack)(const work_t *work, const void *weight, void *panels)
{
    REAL *to = panels;
    for (index_t group = 0; group < work->part.groups; group++)
        to = NAME(pack_one)(work, (const REAL *)weight + group * work->piece->weight_group, to);
}

/* A run of positions that lie side by side in target and in the block's arrays, and the walk over the runs. */
typedef struct {
    index_t run, rows, planes;
} NAME(runs);

static inline NAME(runs) NAME(find_runs)(const piece_t *piece, const block_t *block, const layout_t *layout)
{
    NAME(runs) r = {block->extent[2], block->extent[1], block->extent[0]};
    if (piece->target_stride[2] == 1 && piece->target_stride[1] == r.run && layout->axis[1] == r.run) {
        r.run *= r.rows;
        r.rows = 1;
        if (piece->target_stride[0] == r.run && layout->axis[0] == r.run) {
            r.run *= r.planes;
            r.planes = 1;
        }
    }
    return r;
}

static inline index_t NAME(first)(const piece_t *piece, const block_t *block)
{
    index_t at = block->sample * piece->target_batch;
    for (int a = 0; a < 3; a++)
        at += block->start[a] * piece->target_stride[a];
    return at;
}

/* Where a row begins in target, and its channel: rows are channels, or the taps of channels (see piece_t). */
static inline index_t NAME(row_at)(const piece_t *piece, index_t row, index_t *channel)
{
    const index_t *taps = piece->row_taps, all = taps[0] * taps[1] * taps[2], tap = all == 1 ? 0 : row % all;
    if (piece->rows_by_tap) {
        *channel = row % (piece->rows / all);
        return row;
    }
    *channel = all == 1 ? row : row / all;
    return *channel * piece->target_channel + tap / (taps[1] * taps[2]) * piece->row_stride[0]
        + tap / taps[2] % taps[1] * piece->row_stride[1] + tap % taps[2] * piece->row_stride[2];
}

/* A block whose target keeps the rows side by side: bias first, then all rows turned at once. */
static void NAME(store_turned)(const piece_t *piece, const block_t *block, REAL *result, index_t pitch, index_t row,
                               index_t rows, const REAL *bias, REAL *target, int accumulate)
{
    REAL *to = target + row + NAME(first)(piece, block);
    index_t channel;
    for (index_t i = 0; bias && i < rows; i++) {
        NAME(row_at)(piece, row + i, &channel);
        for (index_t q = 0; q < block->extent[2]; q++)
            result[i * pitch + q] += bias[channel];
    }
    if (accumulate)
        NAME(transpose)(to, piece->target_stride[2], result, pitch, rows, block->extent[2], 1);
    else
        NAME(transpose)(to, piece->target_stride[2], result, pitch, rows, block->extent[2], 0);
}

static void NAME(store)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                        char *doubtful)
{
    (void)doubtful;
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t row = work->part.row, rows = work->part.groups * work->part.rows;
    const NAME(runs) r = NAME(find_runs)(piece, block, layout);
    const index_t first = NAME(first)(piece, block), next = layout->axis[1];
    const index_t below = piece->target_stride[1], step = piece->target_stride[2];
    index_t which;
    if (piece->turned) {
        NAME(store_turned)(piece, block, result, layout->pitch, row, rows, bias, target, accumulate);
        return;
    }
    for (index_t i = 0; i < rows; i++) {
        const REAL *from = (const REAL *)result + i * layout->pitch + layout->first;
        REAL *channel = (REAL *)target + NAME(row_at)(piece, row + i, &which) + first;
        const REAL b = bias ? ((const REAL *)bias)[which] : 0;
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++) {
                const REAL *run = from + s * layout->batch + z * layout->axis[0];
                REAL *to = channel + s * piece->target_batch + z * piece->target_stride[0];
                for (index_t y = 0; y < r.rows; y++, run += next, to += below)
                    NAME(store_run)(to, step, run, r.run, b, accumulate);
            }
    }
}

/* compact[columns][positions] <- target, with zeros where the layout has cells without a position; where they are one run
   of target they stay there. */
static void NAME(compact)(const work_t *work, const void *target, void *panel)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    NAME(rows_panel) *compact = panel;
    const NAME(runs) r = NAME(find_runs)(piece, block, layout);
    const index_t first = NAME(first)(piece, block) + work->part.row * piece->target_channel;
    const index_t step = piece->target_stride[2];
    const int gaps = layout->positions != block->samples * r.planes * r.rows * r.run;
    if (layout->positions == r.run && step == 1) {
        *compact = (NAME(rows_panel)){(const REAL *)target + first, piece->target_channel, {0}};
        return;
    }
    *compact = (NAME(rows_panel)){compact->own, layout->positions, {0}};
    for (index_t i = 0; i < work->part.groups * work->part.rows; i++) {
        REAL *to = compact->own + i * layout->positions;
        const REAL *channel = (const REAL *)target + i * piece->target_channel + first;
        if (gaps)
            NAME(zero)(layout->positions, to);
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++) {
                    const REAL *from = channel + s * piece->target_batch + z * piece->target_stride[0]
                        + y * piece->target_stride[1];
                    REAL *row = to + s * layout->batch + z * layout->axis[0] + y * layout->axis[1];
                    if (step == 1)
                        NAME(store_dense)(row, from, r.run, 0, 0);
                    else
                        for (index_t q = 0; q < r.run; q++)
                            row[q] = from[q * step];
                }
    }
}
