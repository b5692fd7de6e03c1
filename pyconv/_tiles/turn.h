/* Results and operands whose channels are the vector axis: grad_weight's. See body.h for the macros. */

static void NAME(turn)(const piece_t *piece, const block_t *block, const void *target, index_t columns,
                       void *turned)
{
    const NAME(runs) r = NAME(find_runs)(piece, block);
    const index_t first = NAME(first)(piece, block), step = piece->target_stride[2];
    REAL *panel = turned;
    for (index_t column = 0, wide; column < columns; column += wide) {
        wide = NAME(panel)(columns - column) * LANES;
        const index_t here = columns - column < wide ? columns - column : wide;
        const REAL *channel = (const REAL *)target + column * piece->target_channel + first;
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++, panel += r.run * wide) {
                    const REAL *from = channel + s * piece->target_batch + z * piece->target_stride[0]
                        + y * piece->target_stride[1];
                    if (here < wide)
                        NAME(clear)(panel, r.run * wide);
                    if (piece->turned)
                        for (index_t q = 0; q < r.run; q++)
                            for (index_t i = 0; i < here; i++)
                                panel[q * wide + i] = from[q * step + i];
                    else if (step == 1)
                        NAME(transpose)(panel, wide, from, piece->target_channel, here, r.run, 0);
                    else
                        for (index_t i = 0; i < here; i++)
                            for (index_t q = 0; q < r.run; q++)
                                panel[q * wide + i] = from[i * piece->target_channel + q * step];
                }
    }
}

static void NAME(store_weight)(const piece_t *piece, const void *result, index_t pitch, index_t columns,
                               index_t channels, void *weight, int accumulate)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t taps = z->taps * y->taps * x->taps;
    const REAL *from = result;
    REAL *to = weight;
    if (piece->weight_channel == taps) {
        if (accumulate)
            NAME(transpose)(to, piece->weight_row, from, pitch, channels * taps, columns, 1);
        else
            NAME(transpose)(to, piece->weight_row, from, pitch, channels * taps, columns, 0);
        return;
    }
    for (index_t c = 0; c < channels; c++)
        for (index_t tz = 0; tz < z->taps; tz++)
            for (index_t ty = 0; ty < y->taps; ty++)
                for (index_t tx = 0; tx < x->taps; tx++, from += pitch)
                    for (index_t j = 0; j < columns; j++) {
                        REAL *at = to + j * piece->weight_row + c * piece->weight_channel
                            + tz * piece->weight_stride[0] + ty * piece->weight_stride[1]
                            + tx * piece->weight_stride[2];
                        *at = accumulate ? *at + from[j] : from[j];
                    }
}
