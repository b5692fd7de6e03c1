/* grad_weight with cells that are broadcast, as in broadcast.h: vectors of target's channels for each channel and tap
   of source. No product with padding is made: taps that reach the same positions of a block are done together. See
   body.h for the macros. */

/* For grad_weight a product of every channel and tap is a position: its cell, and its row of the turned target. Behind
   them come the channels and taps that they are products of. */
static void NAME(layout_correlate)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_turned)(work);
    layout->scratch = (sizeof(REAL *) + layout->positions * sizeof(NAME(product)) + NAME(depth)(work) * sizeof(index_t))
        / sizeof(REAL);
}

/* The positions of a block along one axis that have a cell under a tap. */
typedef struct {
    index_t low, high;
} NAME(reached);

static inline NAME(reached) NAME(find_reached)(const work_t *work, int a, index_t tap)
{
    const axis_t *axis = &work->piece->axis[a];
    const index_t shift = axis->offset + axis->tap_step * tap;
    NAME(reached) r;
    NAME(valid)(axis, work->block.start[a], work->block.extent[a], shift, &r.low, &r.high);
    return r;
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

/* The positions of a block that some taps reach; gives back how many. */
static index_t NAME(list_positions)(const work_t *work, const NAME(reached) reached[3], NAME(product) *list)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const NAME(reached) *z = &reached[0], *y = &reached[1], *x = &reached[2];
    index_t step[3], corner = block->sample * piece->source_batch;
    NAME(product) *next = list;
    for (int a = 0; a < 3; a++) {
        step[a] = piece->axis[a].step * piece->source_stride[a];
        corner += block->start[a] * step[a] + piece->axis[a].offset * piece->source_stride[a];
    }
    for (index_t s = 0; s < block->samples; s++)
        for (index_t i = z->low; i < z->high; i++)
            for (index_t j = y->low; j < y->high; j++) {
                const index_t cell = corner + s * piece->source_batch + i * step[0] + j * step[1];
                const index_t row = s * layout->batch + i * layout->axis[0] + j * layout->axis[1];
                for (index_t k = x->low; k < x->high; k++)
                    *next++ = (NAME(product)){cell + k * step[2], (int)(row + k), {(int)(cell + k * step[2])}};
            }
    return next - list;
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

/* All columns of a box of taps that reach the same positions. */
static void NAME(correlate_box)(const work_t *work, const NAME(stretch) box[3], const NAME(reached) reached[3],
                                const REAL *panel, const index_t *offset, void *scratch, REAL *result, int accumulate)
{
    const layout_t *layout = &work->layout;
    const REAL *source = *(const REAL **)scratch;
    NAME(product) *list = (NAME(product) *)((const REAL **)scratch + 1);
    index_t *row = (index_t *)(list + layout->positions), cell[8];
    const index_t positions = NAME(list_positions)(work, reached, list), rows = NAME(list_rows)(work, box, row);
    for (index_t column = 0, wide; column < work->part.rows; column += wide * LANES) {
        wide = NAME(panel)(work->part.rows - column);
        for (index_t i = 0; i < rows;) {
            const int tall = NAME(tall)(rows - i);
            for (int j = 0; j < 1 << tall; j++)
                cell[j] = offset[row[i + j]];
            const index_t next = i + ((index_t)1 << tall);
            NAME(spreads)[tall][wide - 1](positions, list, source, cell, source + offset[row[next < rows ? next : i]],
                                          NULL, panel, result + column, row + i, layout->pitch, accumulate);
            i = next;
        }
        panel += layout->positions * wide * LANES;
    }
}

static void NAME(correlate)(const work_t *work, const void *turned, const index_t *offset, void *scratch,
                            void *result, int accumulate)
{
    const axis_t *axis = work->piece->axis;
    NAME(reached) reached[3];
    NAME(stretch) box[3];
    for (index_t z = 0; z < axis[0].taps; z += box[0].count) {
        box[0] = NAME(find_taps_reaching)(work, 0, z, &reached[0]);
        for (index_t y = 0; y < axis[1].taps; y += box[1].count) {
            box[1] = NAME(find_taps_reaching)(work, 1, y, &reached[1]);
            for (index_t x = 0; x < axis[2].taps; x += box[2].count) {
                box[2] = NAME(find_taps_reaching)(work, 2, x, &reached[2]);
                NAME(correlate_box)(work, box, reached, turned, offset, scratch, result, accumulate);
            }
        }
    }
}
