/* Winograd's transforms of what has channels side by side: weight in panels, grad_weight's target and result. See
   winograd.h, and body.h for the macros. */

#define WEIGHT_AHEAD 8 /* channels between asking for weights and reading them */

/* Where the taps of an element of weight are, seen from its first: tap i at offset[i]. Where they are dense in memory
   from `low` on, the j-th there is tap order[j]. */
typedef struct {
    index_t count, low, offset[9], order[9];
    int dense;
} NAME(taps);

static NAME(taps) NAME(find_taps)(const piece_t *piece)
{
    const index_t x_taps = piece->axis[2].taps;
    NAME(taps) taps = {piece->axis[1].taps * x_taps, 0, {0}, {0}, 1};
    for (index_t i = 0; i < taps.count; i++) {
        taps.offset[i] = i / x_taps * piece->weight_stride[1] + i % x_taps * piece->weight_stride[2];
        taps.low = NAME(least)(taps.low, taps.offset[i]);
    }
    for (index_t i = 0; i < taps.count; i++) {
        taps.dense &= taps.offset[i] - taps.low < taps.count;
        if (taps.dense)
            taps.order[taps.offset[i] - taps.low] = i;
    }
    return taps;
}

/* to[order[j]][pitch] <- the j-th of T dense taps of LANES elements: squares of them are turned in registers. */
static inline __attribute__((always_inline)) void NAME(turn_taps)(const int T, const REAL *const *from,
                                                                  const NAME(taps) *taps, REAL *to, index_t pitch)
{
#pragma GCC unroll 5
    for (int j = 0; j < T; j += LANES) {
        VECTOR square[16];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            square[i] = LOAD(from[i] + taps->low + j);
        NAME(turn_square)(square);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            if (j + i < T)
                STORE(to + taps->order[j + i] * pitch, square[i]);
    }
}

/* to[tap][pitch] <- n elements of a panel of ROWS rows that lie side by side. */
static void NAME(copy_taps)(const piece_t *piece, const NAME(taps) *taps, const REAL *from, index_t n, REAL *to,
                            index_t pitch)
{
    for (index_t done = 0; done < n; done += ROWS, from += piece->weight_channel)
        for (index_t j = 0; j < taps->count; j++) {
            __builtin_prefetch(from + WEIGHT_AHEAD * piece->weight_channel + taps->offset[j]);
            __builtin_memcpy(to + j * pitch + done, from + taps->offset[j], ROWS * sizeof(REAL));
        }
}

/* to[tap][pitch] <- ROWS rows of LANES channels that lie side by side: squares are turned, of two taps where a vector has
   twice as many lanes. */
static void NAME(turn_channels)(const piece_t *piece, const NAME(taps) *taps, const REAL *from, REAL *to, index_t pitch)
{
    for (index_t j = 0; j < taps->count; j += LANES / ROWS) {
        const index_t next = j + 1 < taps->count ? j + 1 : j;
        VECTOR square[16];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            const REAL *row = from + i % ROWS * piece->weight_row + taps->offset[i < ROWS ? j : next];
            __builtin_prefetch(row + 2 * LANES);
            square[i] = LOAD(row);
        }
        NAME(turn_square)(square);
#pragma GCC unroll 16
        for (int c = 0; c < LANES; c++) {
            __builtin_memcpy(to + j * pitch + c * ROWS, &square[c], ROWS * sizeof(REAL));
            if (LANES > ROWS)
                __builtin_memcpy(to + next * pitch + c * ROWS, (const REAL *)&square[c] + ROWS % LANES, ROWS * sizeof(REAL));
        }
    }
}

/* to[tap][pitch] <- n elements of a panel of `high` rows: element e is row e % high of channel e / high / z taps. They
   begin with element `first`; nothing from `limit` on is read. */
static void NAME(gather_taps)(const piece_t *piece, const NAME(taps) *taps, const REAL *weight, const REAL *limit,
                              index_t high, index_t first, index_t n, REAL *to, index_t pitch)
{
    const index_t z_taps = piece->axis[0].taps, span = taps->low + NAME(up)(taps->count);
    if (z_taps == 1 && high == ROWS && (first | n) % ROWS == 0 && piece->weight_row == 1) {
        NAME(copy_taps)(piece, taps, weight + first / ROWS * piece->weight_channel, n, to, pitch);
        return;
    }
    if (z_taps == 1 && high == ROWS && (first | n) % (ROWS * LANES) == 0 && piece->weight_channel == 1
        && (LANES == ROWS || LANES == 2 * ROWS)) {
        for (index_t done = 0; done < n; done += ROWS * LANES)
            NAME(turn_channels)(piece, taps, weight + (first + done) / ROWS, to + done, pitch);
        return;
    }
    index_t row = first % high, z = first / high % z_taps, channel = first / high / z_taps;
    for (index_t done = 0; done < n; done += LANES) {
        const index_t some = NAME(least)(LANES, n - done);
        const REAL *from[16];
        int turns = taps->dense && some == LANES;
        for (index_t i = 0; i < some; i++, row++) {
            if (row == high) {
                row = 0;
                z = z + 1 < z_taps ? z + 1 : 0;
                channel += z == 0;
            }
            from[i] = weight + row * piece->weight_row + channel * piece->weight_channel
                + z * piece->weight_stride[0];
            turns &= limit - from[i] >= span;
            __builtin_prefetch(from[i] + WEIGHT_AHEAD * piece->weight_channel);
        }
        if (turns && taps->count == 9)
            NAME(turn_taps)(9, from, taps, to + done, pitch);
        else if (turns)
            NAME(turn_taps)(3, from, taps, to + done, pitch);
        else
            for (index_t j = 0; j < taps->count; j++)
                for (index_t i = 0; i < some; i++)
                    to[j * pitch + done + i] = from[i][taps->offset[j]];
    }
}

/* out[frequency][step] <- n elements of taps[tap][pitch]. */
static void NAME(transform_taps)(const NAME(tiling) *t, index_t n, const REAL *taps, index_t pitch, REAL *out,
                                 index_t step)
{
    REAL half[18 * 8 * LANES]; /* what gather_taps gathered at most, along y */
    const index_t x_taps = t->x > 1 ? 3 : 1;
    if (t->y > 1)
        NAME(pass_taps)(t->of_y, 1, x_taps, n, NAME(spaced)(taps, 0, pitch, x_taps * pitch),
                        t->x > 1 ? NAME(spaced)(half, 0, pitch, x_taps * pitch) : NAME(spaced)(out, 0, 0, step));
    if (t->x > 1)
        NAME(pass_taps)(t->of_x, 1, t->y, n, NAME(spaced)(t->y > 1 ? half : taps, 0, x_taps * pitch, pitch),
                        NAME(spaced)(out, 0, t->x * step, step));
}

/* Panels as pack_weight's, frequency after frequency, each rows * depth elements long, with as many between as lie
   `apart`. */
static void NAME(transform_weight)(const piece_t *piece, const void *weight, index_t row, index_t rows,
                                   index_t channels, void *panels, index_t apart)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const NAME(taps) taps = NAME(find_taps)(piece);
    const index_t depth = channels * piece->axis[0].taps, set = rows * depth + apart, most = 8 * LANES;
    const REAL *from = (const REAL *)weight + row * piece->weight_row;
    const REAL *limit = from + (rows - 1) * piece->weight_row + (channels - 1) * piece->weight_channel + 1;
    REAL gathered[9 * 8 * LANES], rest[36 * LANES], *to = panels;
    for (int a = 0; a < 3; a++)
        limit += piece->weight_stride[a] > 0 ? (piece->axis[a].taps - 1) * piece->weight_stride[a] : 0;
    while (rows > 0) {
        const index_t high = NAME(tall)(rows), all = depth * high;
        for (index_t e = 0, n; e < all; e += n) {
            n = all - e < LANES ? all - e : NAME(least)(most, (all - e) / LANES * LANES);
            NAME(gather_taps)(piece, &taps, from, limit, high, e, n, gathered, most);
            if (n >= LANES) {
                NAME(transform_taps)(&t, n, gathered, most, to + e, set);
                continue;
            }
            NAME(transform_taps)(&t, n, gathered, most, rest, LANES);
            for (index_t f = 0; f < t.y * t.x; f++)
                for (index_t i = 0; i < n; i++)
                    to[f * set + e + i] = rest[f * LANES + i];
        }
        to += all;
        from += high * piece->weight_row;
        rows -= high;
    }
}

/* cells[outputs y][cells x][LANES] <- one row of n tiles of target, `here` channels as columns; zero where it ends.
   Rows are turned in whole vectors of cells while later cells of the piece follow, for these are read as well; where
   channels lie last, a cell's are a vector, if so many are here. */
static void NAME(turn_tiles)(const piece_t *piece, const NAME(tiling) *t, const REAL *target, index_t y, index_t x,
                             index_t n, index_t here, REAL *cells)
{
    const index_t *stride = piece->target_stride, all = n * t->outputs_x, first = x * t->outputs_x;
    const index_t exist = NAME(least)(all, piece->count[2] - first);
    for (index_t i = 0; i < t->outputs_y; i++, cells += all * LANES) {
        const index_t row = NAME(row_of)(t, y, i);
        const REAL *from = target + row * stride[1] + first * stride[2];
        const index_t inside = row < piece->count[1] ? exist : 0;
        const index_t room = (piece->count[1] - 1 - row) * stride[1] + piece->count[2] - first;
        if (here < LANES)
            NAME(clear)(cells, inside * LANES);
        if (stride[2] == 1)
            NAME(transpose)(cells, LANES, from, piece->target_channel, here,
                            inside > 0 && NAME(up)(inside) <= room ? NAME(up)(inside) : inside, 0);
        else if (piece->target_channel == 1 && here == LANES)
            for (index_t q = 0; q < inside; q++)
                STORE(cells + q * LANES, LOAD(from + q * stride[2]));
        else
            for (index_t c = 0; c < here; c++)
                for (index_t q = 0; q < inside; q++)
                    cells[q * LANES + c] = from[c * piece->target_channel + q * stride[2]];
        NAME(clear)(cells + inside * LANES, (all - inside) * LANES);
    }
}

/* One row of tiles of `here` channels: turned, along y, and along x to LANES columns of a panel of `wide`. */
static void NAME(transform_line)(const piece_t *piece, const NAME(tiling) *t, const REAL *target, index_t y, index_t x,
                                 index_t n, index_t here, index_t wide, REAL *to, index_t set)
{
    REAL work[WORK + SLACK] __attribute__((aligned(BYTES)));
    const index_t fit = WORK / (LANES * (t->outputs_y + t->y)), d = t->lattices_x;
    const index_t most = fit / LANES * LANES / t->outputs_x / d * d;
    for (index_t done = 0, some; done < n; done += some) {
        some = NAME(least)(most, n - done);
        const index_t cells = some * t->outputs_x * LANES;
        REAL *half = t->y > 1 ? work + t->outputs_y * cells : work, *out = to + done * wide;
        NAME(turn_tiles)(piece, t, target, y, x + done, some, here, work);
        if (t->y > 1 && t->x > 1)
            NAME(pass_errors)(t->of_y, 1, 1, cells, NAME(spaced)(work, 0, 0, cells), NAME(spaced)(half, 0, 0, cells));
        else if (t->y > 1)
            NAME(pass_errors)(t->of_y, 1, some, LANES, NAME(spaced)(work, 0, LANES, cells),
                              NAME(spaced)(out, 0, wide, set));
        for (index_t i = 0; t->x > 1 && i < d; i++)
            NAME(pass_errors)(t->of_x, t->y, some / d, LANES,
                              NAME(spaced)(half + i * LANES, cells, d * t->outputs_x * LANES, d * LANES),
                              NAME(spaced)(out + i * wide, t->x * set, d * wide, set));
    }
}

/* As `turn`, for a piece with tiles: turned of each frequency is `set` after the one before. A vector of channels after
   the other: of more, memory would be read in too many places at a time. */
static void NAME(transform_target)(const piece_t *piece, const block_t *block, const void *target, index_t columns,
                                   void *turned, index_t set)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const index_t *extent = block->extent, lines = block->samples * extent[0] * extent[1];
    REAL *panel = turned;
    for (index_t first = 0, wide; first < columns; first += wide, panel += lines * extent[2] * wide) {
        wide = NAME(panel)(columns - first) * LANES;
        for (index_t column = first; column < first + wide; column += LANES)
            for (index_t line = 0; line < lines; line++) {
                const index_t plane = line / extent[1];
                const REAL *from = (const REAL *)target + column * piece->target_channel
                    + (block->sample + plane / extent[0]) * piece->target_batch
                    + (block->start[0] + plane % extent[0]) * piece->target_stride[0];
                NAME(transform_line)(piece, &t, from, block->start[1] + line % extent[1], block->start[2], extent[2],
                                     NAME(least)(LANES, NAME(most)(columns - column, 0)), wide,
                                     panel + line * extent[2] * wide + column - first, set);
            }
    }
}

/* gradient[rows][taps][pitch] <- result of every frequency, each `set` after the one before. */
static void NAME(transform_gradient)(const piece_t *piece, const void *result, index_t set, index_t pitch,
                                     index_t rows, void *gradient)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const index_t y_taps = piece->axis[1].taps, x_taps = piece->axis[2].taps, most = 8 * LANES;
    REAL half[18 * 8 * LANES];
    for (index_t r = 0; r < rows; r++)
        for (index_t column = 0; column < pitch; column += most) {
            const index_t n = NAME(least)(most, pitch - column);
            const REAL *from = (const REAL *)result + r * pitch + column;
            REAL *to = (REAL *)gradient + r * y_taps * x_taps * pitch + column;
            if (t.y > 1)
                NAME(pass_gradient)(t.of_y, 1, t.x, n, NAME(spaced)(from, 0, set, t.x * set),
                                    t.x > 1 ? NAME(spaced)(half, 0, most, t.x * most) : NAME(spaced)(to, 0, 0, pitch));
            if (t.x > 1)
                NAME(pass_gradient)(t.of_x, 1, y_taps, n, t.y > 1 ? NAME(spaced)(half, 0, t.x * most, most)
                                                               : NAME(spaced)(from, 0, 0, set),
                                    NAME(spaced)(to, 0, x_taps * pitch, pitch));
        }
}
