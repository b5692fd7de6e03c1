/* Results and operands whose channels are the vector axis: grad_weight's. See body.h for the macros. */

/* One row of positions, a panel's columns side by side. What follows it in memory, the next row or the next block's first,
   is asked for, of channels that lie in rows if that `asks`. */
static inline void NAME(turn_row)(const piece_t *piece, const REAL *from, index_t n, index_t columns, index_t wide,
                                  REAL *to, int asks)
{
    const index_t step = piece->target_stride[2], line = OF_LINE;
    for (index_t i = 0; i < columns && step == 1 && asks; i++)
        for (index_t q = 0; q < n; q += line)
            __builtin_prefetch(from + i * piece->target_channel + n + q, 0, 2);
    if (piece->target_channel == 1)
        for (index_t q = 0; q < n; q++) {
            index_t i = 0;
            for (; i < columns; i += line)
                __builtin_prefetch(from + (n + q) * step + i, 0, 2);
            for (i = 0; i + LANES <= columns; i += LANES)
                STORE(to + q * wide + i, LOAD(from + q * step + i));
            for (; i < columns; i++)
                to[q * wide + i] = from[q * step + i];
        }
    else if (step == 1)
        NAME(transpose)(to, wide, from, piece->target_channel, columns, n, 0);
    else
        for (index_t i = 0; i < columns; i++)
            for (index_t q = 0; q < n; q++)
                to[q * wide + i] = from[i * piece->target_channel + q * step];
}

/* turned[panels of columns][positions][columns of a panel] <- target. The panel says where the next block's columns are, or
   where this one's are if they do not follow them. */
static void NAME(turn)(const work_t *work, const void *target, void *turned)
{
    NAME(rows_panel) *whole = turned;
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t columns = work->part.rows;
    const NAME(runs) r = NAME(find_runs)(piece, block, layout);
    const index_t first = NAME(first)(piece, block) + work->part.row * piece->target_channel;
    const int gaps = layout->positions != block->samples * r.planes * r.rows * r.run;
    const index_t next = block->samples > 1 ? block->samples * piece->target_batch : layout->positions == r.run ? r.run : 0;
    const axis_t *x = &piece->axis[2];
    const int asks = !NAME(shares_cells)(work) || !ASK_IN_TURN(work->part.channels, x->step / x->tap_step);
    REAL *panel = whole->own;
    *whole = (NAME(rows_panel)){(const REAL *)target + first + next, piece->target_channel, {0}};
    for (index_t column = 0, wide; column < columns; column += wide, panel += layout->positions * wide) {
        wide = NAME(panel)(columns - column) * LANES;
        const index_t here = columns - column < wide ? columns - column : wide;
        const REAL *channel = (const REAL *)target + column * piece->target_channel + first;
        if (here < wide || gaps)
            NAME(zero)(layout->positions * wide, panel);
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++)
                    NAME(turn_row)(piece, channel + s * piece->target_batch + z * piece->target_stride[0]
                                   + y * piece->target_stride[1], r.run, here, wide,
                                   panel + (s * layout->batch + z * layout->axis[0] + y * layout->axis[1]) * wide, asks);
    }
}
