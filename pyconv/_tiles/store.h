/* Weight to panels, results to target. See body.h for the macros. */

static void NAME(pack_weight)(const piece_t *piece, const void *weight, index_t row, index_t rows, index_t channels,
                              void *panels)
{
    REAL *to = panels;
    while (rows > 0) {
        const index_t high = (index_t)1 << NAME(tall)(rows);
        for (index_t c = 0; c < channels; c++)
            for (index_t z = 0; z < piece->axis[0].taps; z++)
                for (index_t y = 0; y < piece->axis[1].taps; y++) {
                    const REAL *from = (const REAL *)weight + row * piece->weight_row + c * piece->weight_channel
                        + z * piece->weight_stride[0] + y * piece->weight_stride[1];
                    for (index_t x = 0; x < piece->axis[2].taps; x++, to += high, from += piece->weight_stride[2])
                        for (index_t i = 0; i < high; i++)
                            to[i] = from[i * piece->weight_row];
                }
        row += high;
        rows -= high;
    }
}

/* A run of positions that lie side by side in target, and the walk over the runs of a block. */
typedef struct {
    index_t run, rows, planes;
} NAME(runs);

static inline NAME(runs) NAME(find_runs)(const piece_t *piece, const block_t *block)
{
    NAME(runs) r = {block->extent[2], block->extent[1], block->extent[0]};
    if (piece->target_stride[2] == 1 && piece->target_stride[1] == r.run) {
        r.run *= r.rows;
        r.rows = 1;
        if (piece->target_stride[0] == r.run) {
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

static inline void NAME(store_run)(REAL *to, index_t step, const REAL *from, index_t n, REAL bias, int accumulate)
{
    if (accumulate)
        for (index_t q = 0; q < n; q++)
            to[q * step] += from[q] + bias;
    else if (step == 1)
        for (index_t q = 0; q < n; q++)
            to[q] = from[q] + bias;
    else
        for (index_t q = 0; q < n; q++)
            to[q * step] = from[q] + bias;
}

/* Where a row begins in target, and its channel: rows are channels, or the taps of channels (see piece_t). */
static inline index_t NAME(row_at)(const piece_t *piece, index_t row, index_t *channel)
{
    const index_t *taps = piece->row_taps, tap = row % (taps[0] * taps[1] * taps[2]);
    *channel = row / (taps[0] * taps[1] * taps[2]);
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

static void NAME(store)(const piece_t *piece, const block_t *block, void *result, index_t pitch, index_t row,
                        index_t rows, const void *bias, void *target, int accumulate)
{
    const NAME(runs) r = NAME(find_runs)(piece, block);
    const index_t first = NAME(first)(piece, block);
    index_t which;
    if (piece->turned) {
        NAME(store_turned)(piece, block, result, pitch, row, rows, bias, target, accumulate);
        return;
    }
    for (index_t i = 0; i < rows; i++) {
        const REAL *from = (const REAL *)result + i * pitch;
        REAL *channel = (REAL *)target + NAME(row_at)(piece, row + i, &which) + first;
        const REAL b = bias ? ((const REAL *)bias)[which] : 0;
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++, from += r.run)
                    NAME(store_run)(channel + s * piece->target_batch + z * piece->target_stride[0]
                                    + y * piece->target_stride[1], piece->target_stride[2], from, r.run, b, accumulate);
    }
}

static void NAME(compact)(const piece_t *piece, const block_t *block, const void *target, index_t columns,
                          void *compact, index_t pitch)
{
    const NAME(runs) r = NAME(find_runs)(piece, block);
    const index_t first = NAME(first)(piece, block), step = piece->target_stride[2];
    for (index_t i = 0; i < columns; i++) {
        REAL *to = (REAL *)compact + i * pitch;
        const REAL *channel = (const REAL *)target + i * piece->target_channel + first;
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++, to += r.run) {
                    const REAL *from = channel + s * piece->target_batch + z * piece->target_stride[0]
                        + y * piece->target_stride[1];
                    for (index_t q = 0; q < r.run; q++)
                        to[q] = from[q * step];
                }
    }
}
