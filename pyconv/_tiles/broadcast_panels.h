/* Panels of weights for the way of broadcast.h: vectors of target's channels, channel after channel of source, tap after
   tap. See body.h for the macros. */

/* Vectors of target's channels, and the positions that they are kept for: squares of both are turned at the end. */
static inline index_t NAME(columns)(const work_t *work)
{
    return NAME(up)(work->part.rows);
}

/* Rows of a panel: the piece's own, or those of all phases of a stride, each with its own behind those of earlier ones. */
static inline index_t NAME(panel_rows)(const work_t *work)
{
    return work->piece->panel_taps ? work->part.channels * work->piece->panel_taps : NAME(depth)(work);
}

/* Where a panel has the taps of phases: phase after phase, all channels of one. The row of the first channel's, and how
   many a channel has. */
static void NAME(place_taps)(const work_t *work, index_t *row, index_t *each)
{
    const axis_t *axis = work->piece->axis;
    const index_t *every = work->piece->every;
    index_t next = 0;
    for (index_t first_z = 0; first_z < every[0]; first_z++)
        for (index_t first_y = 0; first_y < every[1]; first_y++)
            for (index_t first_x = 0; first_x < every[2]; first_x++) {
                index_t tap[PANEL_TAPS], taps = 0;
                for (index_t z = first_z; z < axis[0].taps; z += every[0])
                    for (index_t y = first_y; y < axis[1].taps; y += every[1])
                        for (index_t x = first_x; x < axis[2].taps; x += every[2])
                            tap[taps++] = (z * axis[1].taps + y) * axis[2].taps + x;
                for (index_t t = 0; t < taps; t++) {
                    row[tap[t]] = next + t;
                    each[tap[t]] = taps;
                }
                next += work->part.channels * taps;
            }
}

/* The weights of some columns in squares, of all taps at a time, for the phases of a stride; or side by side. */
static void NAME(pack_phases)(const work_t *work, const REAL *from, index_t column, index_t columns, REAL *to,
                              index_t wide)
{
    const piece_t *piece = work->piece;
    const index_t taps = NAME(all_taps)(piece);
    index_t place[PANEL_TAPS], each[PANEL_TAPS];
    NAME(place_taps)(work, place, each);
    for (index_t t = 0; t < taps; t++) {
        place[t] *= wide;
        each[t] *= wide;
    }
    for (index_t c = 0; c < work->part.channels; c++, from += piece->weight_channel) {
        index_t i = 0;
        NAME(ask_for_rows)(piece, from, columns);
        for (index_t t = 0; t < taps && piece->weight_row == 1; t++, i = columns)
            __builtin_memcpy(to + place[t], from + NAME(tap_at)(piece, t), columns * sizeof(REAL));
        for (; i + LANES <= columns; i += LANES)
            NAME(turn_rows)(LANES, to + i, 0, 0, place, from + i * piece->weight_row, piece->weight_row, taps,
                            NAME(readable)(work, c, column + i, taps));
        for (index_t t = 0; t < taps; t++) {
            for (index_t j = i; j < columns; j++)
                to[place[t] + j] = from[j * piece->weight_row + t];
            place[t] += each[t];
        }
    }
}

/* to[channel][tap][column] <- the weights of some columns in squares, of n weights of a row at a time. */
static void NAME(pack_columns)(const work_t *work, const REAL *from, index_t column, index_t columns, index_t n, REAL *to,
                               index_t wide)
{
    const piece_t *piece = work->piece;
    const index_t depth = NAME(depth)(work), row = piece->weight_row;
    for (index_t c = 0; c * n < depth; c++, from += piece->weight_channel, to += n * wide) {
        index_t i = 0;
        if (n < depth)
            NAME(ask_for_rows)(piece, from, columns);
        for (; i + LANES <= columns; i += LANES)
            NAME(turn_rows)(LANES, to + i, wide, 0, NULL, from + i * row, row, n, NAME(readable)(work, c, column + i, n));
        for (index_t k = 0; k < n; k++)
            for (index_t j = i; j < columns; j++)
                to[k * wide + j] = from[j * row + k];
    }
}

/* [panels of columns][channel][tap][columns of a panel], of the phases of a stride one after the other in each panel;
   filled up with zeros; woven groups side by side in the one panel of theirs. */
static void NAME(pack_broadcast)(const work_t *work, const void *weight, void *panels)
{
    const piece_t *piece = work->piece;
    const index_t rows = work->part.rows, depth = NAME(depth)(work), n = NAME(turned_at_once)(piece, depth);
    REAL *to = panels;
    for (index_t column = 0, wide; column < rows; column += wide, to += depth * wide) {
        wide = NAME(panel)(rows - column) * LANES;
        const index_t here = rows - column < wide ? rows - column : wide;
        const REAL *from = (const REAL *)weight + (work->part.row + column) * piece->weight_row;
        const index_t together = piece->woven ? piece->woven : here;
        if (here < wide)
            NAME(zero)(depth * wide, to);
        for (index_t lane = 0; lane < here; lane += together, from += piece->weight_woven)
            if (piece->every[0])
                NAME(pack_phases)(work, from, column, together, to + lane, wide);
            else if (n)
                NAME(pack_columns)(work, from, column, together, n, to + lane, wide);
            else
                NAME(pack_any_columns)(work, from, together, to + lane, wide);
#if STARTS
        NAME(sum_taps)(work, to, column, wide, (REAL *)panels + depth * NAME(columns)(work));
#endif
    }
}
