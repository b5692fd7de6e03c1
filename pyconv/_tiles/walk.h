/* Positions that have the same taps, box by box, and their products: what the ways go through that broadcast cells from
   where they lie. See body.h for the macros. */

/* One product of every position in a box: its cell, seen from the position's, where its row lies in a panel of one
   vector, in bytes, and a cell of later positions to ask for meanwhile, seen from the first of them. In woven groups the
   cell is that of the first channel of the first, and `channel` tells which one of each group it is. */
typedef struct {
    index_t cell;
    uint32_t row;
    union {
        int ahead, channel;
    };
} NAME(product);

#define ROW_AT(number) ((uint32_t)((number) * BYTES)) /* where the row of that number lies */

/* The product's row in a panel of so many vectors. */
static inline __attribute__((always_inline)) const REAL *NAME(weights_of)(const NAME(product) *product,
                                                                          const REAL *panel, int vectors)
{
    return (const REAL *)((const char *)panel + (index_t)product->row * vectors);
}

/* Neighbouring positions of a block along one axis that have the same taps. */
typedef struct {
    index_t start, count, tap, taps;
} NAME(stretch);

/* Positions of a box, in the order in which they are done: x fastest, then y, z and the samples. */
typedef struct {
    const work_t *work;
    NAME(stretch) axis[3];
    index_t sample, at[3], left;
} NAME(walk);

/* The taps under which a position has a cell: they follow each other. */
static inline void NAME(taps_of)(const axis_t *axis, index_t position, index_t *tap, index_t *taps)
{
    const index_t first = axis->step * position + axis->offset, back = axis->tap_step < 0 ? -axis->tap_step : 0;
    index_t low, high; /* before and behind the taps that have a cell */
    if (axis->taps <= 1 || axis->tap_step == 0) {
        low = 0;
        high = first >= 0 && first < axis->size ? axis->taps : 0;
    } else if (back) {
        low = first < axis->size ? 0 : (first - axis->size) / back + 1;
        high = first < 0 ? 0 : first / back + 1;
    } else {
        low = NAME(steps_to)(-first, axis->tap_step);
        high = NAME(steps_to)(axis->size - first, axis->tap_step);
    }
    high = high < axis->taps ? high : axis->taps;
    *tap = low < high ? low : 0;
    *taps = low < high ? high - low : 0;
}

/* The stretch of a block's positions that begins at `start`. */
static NAME(stretch) NAME(find_stretch)(const axis_t *axis, index_t first, index_t start, index_t extent)
{
    NAME(stretch) s = {start, 1, 0, 0};
    index_t tap, taps;
    NAME(taps_of)(axis, first + start, &s.tap, &s.taps);
    for (; start + s.count < extent; s.count++) {
        NAME(taps_of)(axis, first + start + s.count, &tap, &taps);
        if (tap != s.tap || taps != s.taps)
            break;
    }
    return s;
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

/* The next box of the block, if there is one; before the first, no stretch has a position. */
static int NAME(next_box)(NAME(walk) *box)
{
    const block_t *block = &box->work->block;
    NAME(stretch) *s = box->axis;
    int a = 2;
    if (s[0].count == 0)
        a = -1;
    else {
        while (a >= 0 && s[a].start + s[a].count == block->extent[a])
            a--;
        if (a < 0)
            return 0;
        s[a] = NAME(find_stretch)(&box->work->piece->axis[a], block->start[a], s[a].start + s[a].count, block->extent[a]);
    }
    while (++a < 3)
        s[a] = NAME(find_stretch)(&box->work->piece->axis[a], block->start[a], 0, block->extent[a]);
    return 1;
}

/* Numbers of taps side by side, and of steps of theirs that positions are apart, for which kernels broadcast a cell once
   for all positions that have it. */
#define SHARED_CELLS(KERNEL) KERNEL(2, 1) KERNEL(3, 1) KERNEL(5, 1) KERNEL(3, 2)

/* Which of these kernels is for so many taps along x, counted from 1; 0 where none is. */
static inline int NAME(sharing)(const piece_t *piece, index_t taps)
{
    const axis_t *x = &piece->axis[2];
    const index_t step = x->tap_step < 0 ? -x->tap_step : x->tap_step;
    int which = 0;
#define IS_FOR(T, S)                                                                                                  \
    which++;                                                                                                          \
    if (taps == T && x->step == S * step)                                                                             \
        return which;
    SHARED_CELLS(IS_FOR)
#undef IS_FOR
    return 0;
}

/* The same for a box; 0 too where there is more than one vector of channels. */
static inline int NAME(shared_cells)(const piece_t *piece, index_t taps)
{
    return piece->rows <= LANES ? NAME(sharing)(piece, taps) : 0;
}

/* What to ask for at the c-th of so many channels of a tap, whose first cell is `cell`, where channels lie last: each
   position has lines of its own. */
static inline int NAME(ahead)(const piece_t *piece, index_t cell, index_t c, index_t channels)
{
    const index_t step = piece->axis[2].step * piece->source_stride[2], line = c / ROWS * OF_LINE;
    return (int)(line < channels ? cell + c % ROWS * step + line : cell);
}

/* All products of a box where channels lie last: those of a tap follow each other, as their cells do: 9 taps of 8
   positions are in 72 lines, for which a cache has no room where their distance is a power of 2. Taps that share cells
   stay together. Gives back how many. */
static index_t NAME(list_by_tap)(const NAME(walk) *box, const index_t *offset, NAME(product) *list)
{
    const piece_t *piece = box->work->piece;
    const axis_t *axis = piece->axis;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const index_t taps = axis[0].taps * axis[1].taps * axis[2].taps, channels = box->work->part.channels;
    const index_t group = NAME(shared_cells)(piece, x->taps) ? x->taps : 1;
    NAME(product) *next = list;
    for (index_t tz = z->tap; tz < z->tap + z->taps; tz++)
        for (index_t ty = y->tap; ty < y->tap + y->taps; ty++) {
            const index_t row = (tz * axis[1].taps + ty) * axis[2].taps;
            for (index_t k = row + x->tap; k < row + x->tap + x->taps; k += group)
                for (index_t c = 0; c < channels; c++)
                    for (index_t t = k; t < k + group; t++)
                        *next++ = piece->woven
                            ? (NAME(product)){offset[t], ROW_AT(c * taps + t), {.channel = (int)c}}
                            : (NAME(product)){offset[c * taps + t], ROW_AT(c * taps + t),
                                              {NAME(ahead)(piece, offset[t], c, channels)}};
        }
    return next - list;
}

/* All products of a box; gives back how many. Each channel has those of the first, as far behind as it lies. Of many
   channels each cell of a position is in a line of its own, and all positions' are near the last one's, which is asked
   for; where positions have lines of their own, each is asked for under one of the taps that share it. */
static index_t NAME(list_products)(const NAME(walk) *box, const index_t *offset, NAME(product) *list)
{
    const piece_t *piece = box->work->piece;
    const axis_t *axis = piece->axis;
    const NAME(stretch) *z = &box->axis[0], *y = &box->axis[1], *x = &box->axis[2];
    const index_t step = axis[2].step * piece->source_stride[2], line = OF_LINE;
    const int taps = (int)(axis[0].taps * axis[1].taps * axis[2].taps), channels = (int)box->work->part.channels;
    NAME(product) *next = list;
    if (piece->source_last)
        return NAME(list_by_tap)(box, offset, list);
    for (index_t tz = z->tap; tz < z->tap + z->taps; tz++)
        for (index_t ty = y->tap; ty < y->tap + y->taps; ty++) {
            const index_t row = (tz * axis[1].taps + ty) * axis[2].taps + x->tap;
            for (index_t k = row; k < row + x->taps; k++) {
                const index_t position = step < line ? ROWS - 1 : (k - row) % ROWS;
                *next++ = (NAME(product)){offset[k], ROW_AT(k), {(int)(offset[k] + position * step)}};
            }
        }
    const index_t each = next - list;
    for (int c = 1; c < channels; c++) {
        const index_t apart = c * piece->source_channel;
        for (index_t i = 0; i < each; i++, next++)
            *next = (NAME(product)){list[i].cell + apart, list[i].row + ROW_AT(c * taps), {(int)(list[i].ahead + apart)}};
    }
    return next - list;
}

static void NAME(begin_walk)(NAME(walk) *box)
{
    box->left = box->work->block.samples;
    box->sample = 0;
    for (int a = 0; a < 3; a++) {
        box->at[a] = box->axis[a].start;
        box->left *= box->axis[a].count;
    }
}

/* The cell of the next position under the first tap, seen from source. */
static inline index_t NAME(next_cell)(const NAME(walk) *box)
{
    const piece_t *piece = box->work->piece;
    const block_t *block = &box->work->block;
    index_t cell = (block->sample + box->sample) * piece->source_batch;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        cell += (axis->step * (block->start[a] + box->at[a]) + axis->offset) * piece->source_stride[a];
    }
    return cell;
}

/* Its number among the block's. */
static inline index_t NAME(next_position)(const NAME(walk) *box)
{
    const layout_t *layout = &box->work->layout;
    return box->sample * layout->batch + box->at[0] * layout->axis[0] + box->at[1] * layout->axis[1] + box->at[2];
}

/* How many of the next n positions lie side by side. */
static inline index_t NAME(run)(const NAME(walk) *box, index_t n)
{
    const index_t left = box->axis[2].start + box->axis[2].count - box->at[2];
    return n < left ? n : left;
}

/* Go on behind n positions of a row. */
static inline void NAME(go_on)(NAME(walk) *box, index_t n)
{
    box->left -= n;
    box->at[2] += n;
    for (int a = 2; a >= 0 && box->at[a] == box->axis[a].start + box->axis[a].count; a--) {
        box->at[a] = box->axis[a].start;
        if (a > 0)
            box->at[a - 1]++;
        else
            box->sample++;
    }
}

/* Of the next n positions: the cell under the first tap, seen from source, and the number among the block's. */
static inline void NAME(take)(NAME(walk) *box, int n, index_t *cell, index_t *position)
{
    const piece_t *piece = box->work->piece;
    const index_t step = piece->axis[2].step * piece->source_stride[2];
    for (index_t i = 0, run; i < n; i += run) {
        const index_t from = NAME(next_cell)(box), place = NAME(next_position)(box);
        run = NAME(run)(box, n - i);
        for (index_t q = 0; q < run; q++) {
            cell[i + q] = from + q * step;
            position[i + q] = place + q;
        }
        NAME(go_on)(box, run);
    }
}
