/* The weight, and grad_weight's target and result, in Winograd's frequencies. See body.h for the macros. */

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

/* to[tap][pitch] <- n elements of a panel of `high` rows: element e is row e % high of channel e / high / z taps. They
   begin with element `first`; nothing from `limit` on is read. */
static void NAME(gather_taps)(const piece_t *piece, const NAME(taps) *taps, const REAL *weight, const REAL *limit,
                              index_t high, index_t first, index_t n, REAL *to, index_t pitch)
{
    const index_t z_taps = piece->axis[0].taps, span = taps->low + NAME(up)(taps->count);
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

/* Panels as pack_weight's, frequency after frequency, each rows * depth elements long. */
static void NAME(transform_weight)(const piece_t *piece, const void *weight, index_t row, index_t rows,
                                   index_t channels, void *panels)
{
    enum { MOST = 8 * BYTES / sizeof(REAL) };
    const NAME(tiling) t = NAME(tiles_of)(piece);
    const NAME(taps) taps = NAME(find_taps)(piece);
    const index_t depth = channels * piece->axis[0].taps, set = rows * depth, x_taps = piece->axis[2].taps;
    const REAL *from = (const REAL *)weight + row * piece->weight_row, *limit = from + 1;
    REAL cells[9 * MOST], half[18 * MOST], rest[36 * LANES], *to = panels;
    limit += (rows - 1) * piece->weight_row + (channels - 1) * piece->weight_channel;
    for (int a = 0; a < 3; a++)
        limit += piece->weight_stride[a] > 0 ? (piece->axis[a].taps - 1) * piece->weight_stride[a] : 0;
    while (rows > 0) {
        const index_t high = (index_t)1 << NAME(tall)(rows), all = depth * high;
        for (index_t e = 0, n; e < all; e += n) {
            n = all - e < LANES ? all - e : NAME(least)(MOST, (all - e) / LANES * LANES);
            const int few = n < LANES; /* a whole vector would reach into the next frequency */
            const index_t step = few ? LANES : set;
            REAL *out = few ? rest : to + e;
            NAME(gather_taps)(piece, &taps, from, limit, high, e, n, cells, MOST);
            if (t.y > 1)
                NAME(pass_taps)(t.m, 1, x_taps, n, NAME(spaced)(t.m, cells, 0, MOST, x_taps * MOST),
                                t.x > 1 ? NAME(spaced)(t.m, half, 0, MOST, x_taps * MOST)
                                        : NAME(spaced)(t.m, out, 0, 0, step));
            if (t.x > 1)
                NAME(pass_taps)(t.m, 1, t.y, n, NAME(spaced)(t.m, t.y > 1 ? half : cells, 0, x_taps * MOST, MOST),
                                NAME(spaced)(t.m, out, 0, t.x * step, step));
            for (index_t f = 0; few && f < t.y * t.x; f++)
                for (index_t i = 0; i < n; i++)
                    to[f * set + e + i] = rest[f * LANES + i];
        }
        to += all;
        from += high * piece->weight_row;
        rows -= high;
    }
}

/* cells[outputs y][cells x][wide] <- one row of `n` tiles of target, its channels as columns; zero where it ends. Rows
   are turned in whole vectors of cells while later rows of the piece follow, for what these read and write too much. */
static void NAME(turn_tiles)(const piece_t *piece, const REAL *target, index_t y, index_t x, index_t n, index_t here,
                             index_t wide, REAL *cells)
{
    const index_t *size = piece->tile, *stride = piece->target_stride, all = n * size[2], first = x * size[2];
    const index_t exist = NAME(least)(all, piece->count[2] - first);
    for (index_t row = y * size[1]; row < (y + 1) * size[1]; row++, cells += all * wide) {
        const REAL *from = target + row * stride[1] + first * stride[2];
        const index_t inside = row < piece->count[1] ? exist : 0;
        const index_t room = (piece->count[1] - 1 - row) * stride[1] + piece->count[2] - first;
        if (here < wide)
            NAME(clear)(cells, inside * wide);
        if (stride[2] == 1)
            NAME(transpose)(cells, wide, from, piece->target_channel, here,
                            inside > 0 && NAME(up)(inside) <= room ? NAME(up)(inside) : inside, 0);
        else
            for (index_t c = 0; c < here; c++)
                for (index_t q = 0; q < inside; q++)
                    cells[q * wide + c] = from[c * piece->target_channel + q * stride[2]];
        NAME(clear)(cells + inside * wide, (all - inside) * wide);
    }
}

/* As `turn`, for a piece whose tiles are transformed: frequencies of turned are `set` apart. */
static void NAME(transform_target)(const piece_t *piece, const block_t *block, const void *target, index_t columns,
                                   void *turned, index_t set)
{
    const NAME(tiling) t = NAME(tiles_of)(piece);
    REAL work[WORK + SLACK], *to = turned;
    for (index_t column = 0, wide; column < columns; column += wide) {
        wide = NAME(panel)(columns - column) * LANES;
        const index_t here = NAME(least)(wide, columns - column);
        const index_t fit = WORK / ((t.outputs_y + t.y) * t.outputs_x * wide);
        const index_t most = fit * t.outputs_x < LANES ? fit : fit * t.outputs_x / LANES * LANES / t.outputs_x;
        for (index_t line = 0; line < block->samples * block->extent[0] * block->extent[1]; line++) {
            const index_t y = line % block->extent[1], plane = line / block->extent[1];
            const REAL *from = (const REAL *)target + column * piece->target_channel
                + (block->sample + plane / block->extent[0]) * piece->target_batch
                + (block->start[0] + plane % block->extent[0]) * piece->target_stride[0];
            for (index_t x = 0, n; x < block->extent[2]; x += n, to += n * wide) {
                n = NAME(least)(most, block->extent[2] - x);
                const index_t cells = n * t.outputs_x * wide;
                REAL *half = t.y > 1 ? work + t.outputs_y * cells : work;
                NAME(turn_tiles)(piece, from, block->start[1] + y, block->start[2] + x, n, here, wide, work);
                if (t.y > 1)
                    NAME(pass_errors)(t.m, 1, 1, cells, NAME(spaced)(t.m, work, 0, 0, cells),
                                      t.x > 1 ? NAME(spaced)(t.m, half, 0, 0, cells)
                                              : NAME(spaced)(t.m, to, 0, 0, set));
                if (t.x > 1)
                    NAME(pass_errors)(t.m, t.y, n, wide, NAME(spaced)(t.m, half, cells, t.m * wide, wide),
                                      NAME(spaced)(t.m, to, t.x * set, wide, set));
            }
        }
    }
}

/* gradient[rows][taps][pitch] <- result of every frequency, these `set` apart. */
static void NAME(transform_gradient)(const piece_t *piece, const void *result, index_t set, index_t pitch,
                                     index_t rows, void *gradient)
{
    enum { MOST = 8 * BYTES / sizeof(REAL) };
    const NAME(tiling) t = NAME(tiles_of)(piece);
    const index_t y_taps = piece->axis[1].taps, x_taps = piece->axis[2].taps;
    REAL work[18 * MOST];
    for (index_t r = 0; r < rows; r++)
        for (index_t column = 0; column < pitch; column += MOST) {
            const index_t n = NAME(least)(MOST, pitch - column);
            const REAL *from = (const REAL *)result + r * pitch + column;
            REAL *to = (REAL *)gradient + r * y_taps * x_taps * pitch + column;
            if (t.x == 1) {
                NAME(pass_gradient)(t.m, 1, 1, n, NAME(spaced)(t.m, from, 0, 0, set),
                                    NAME(spaced)(t.m, to, 0, 0, pitch));
                continue;
            }
            if (t.y > 1)
                NAME(pass_gradient)(t.m, 1, t.x, n, NAME(spaced)(t.m, from, 0, set, t.x * set),
                                    NAME(spaced)(t.m, work, 0, MOST, t.x * MOST));
            NAME(pass_gradient)(t.m, 1, y_taps, n, t.y > 1 ? NAME(spaced)(t.m, work, 0, t.x * MOST, MOST)
                                                        : NAME(spaced)(t.m, from, 0, 0, set),
                                NAME(spaced)(t.m, to, 0, x_taps * pitch, pitch));
        }
}
