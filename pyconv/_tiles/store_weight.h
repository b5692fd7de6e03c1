/* Results of grad_weight, rows of columns, to the weight. See body.h for the macros. */

/* to[column][i] (+)= from[i][column], i < n: a few rows of the weight at a time, each to its end, as memory likes it. */
static void NAME(store_columns)(REAL *to, index_t to_pitch, const REAL *from, index_t pitch, index_t n, index_t columns,
                                int accumulate)
{
    for (index_t j = 0; j < columns; j += LANES) {
        const index_t here = columns - j < LANES ? columns - j : LANES;
        if (accumulate)
            NAME(transpose)(to + j * to_pitch, to_pitch, from + j, pitch, n, here, 1);
        else
            NAME(transpose)(to + j * to_pitch, to_pitch, from + j, pitch, n, here, 0);
    }
}

static void NAME(store_one)(const piece_t *piece, const REAL *from, index_t pitch, index_t columns, index_t channels,
                            REAL *to, int accumulate)
{
    const axis_t *z = &piece->axis[0], *y = &piece->axis[1], *x = &piece->axis[2];
    const index_t taps = z->taps * y->taps * x->taps, row = piece->weight_row;
    if (piece->weight_channel == taps) {
        NAME(store_columns)(to, row, from, pitch, channels * taps, columns, accumulate);
        return;
    }
    if (row == 1 && taps == 1) {
        for (index_t c = 0; c < channels; c++)
            NAME(store_run)(to + c * piece->weight_channel, 1, from + c * pitch, columns, 0, accumulate);
        return;
    }
    const index_t beside = NAME(has_channels_last)(piece) ? channels : 1; /* of a tap in a row of the weight */
    for (index_t c = 0; c < channels; c += beside)
        for (index_t tz = 0; tz < z->taps; tz++)
            for (index_t ty = 0; ty < y->taps; ty++)
                for (index_t tx = 0; tx < x->taps; tx++, from += pitch)
                    NAME(store_columns)(to + c * piece->weight_channel + tz * piece->weight_stride[0]
                                        + ty * piece->weight_stride[1] + tx * piece->weight_stride[2],
                                        row, from, taps * pitch, beside, columns, accumulate);
}

static void NAME(store_weight)(const work_t *work, void *result, const void *bias, void *weight, int accumulate,
                               char *doubtful)
{
    (void)doubtful;
    const part_t *part = &work->part;
    (void)bias;
    for (index_t group = 0; group < part->groups; group++)
        NAME(store_one)(work->piece, (const REAL *)result + group * NAME(depth)(work) * work->layout.pitch,
                        work->layout.pitch, part->rows, part->channels,
                        (REAL *)weight + part->row * work->piece->weight_row + group * work->piece->weight_group,
                        accumulate);
}
