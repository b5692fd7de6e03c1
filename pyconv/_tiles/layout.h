/* Where the cells of a block lie in scratch. See body.h for the macros. */

/* How many steps reach `distance`, 0 where it is behind; without a sum that could be too large. */
static inline index_t NAME(steps_to)(index_t distance, index_t step)
{
    return distance > 0 ? (distance - 1) / step + 1 : 0;
}

/* The positions [lo, hi) of `count` from `start` whose cell step * (start + q) + shift lies in [0, size). */
static inline void NAME(valid)(const axis_t *axis, index_t start, index_t count, index_t shift, index_t *lo,
                               index_t *hi)
{
    const index_t first = axis->step * start + shift, last = axis->size - 1 - first;
    index_t low = first < 0 ? -first : 0, high = last < 0 ? 0 : last + 1;
    if (axis->step > 1) {
        low = NAME(steps_to)(low, axis->step);
        high = NAME(steps_to)(high, axis->step);
    }
    *lo = low < count ? low : count;
    *hi = high < *lo ? *lo : high < count ? high : count;
}

/* Of a row of n cells from `first` on: those [*low, *high) that are there. */
static inline void NAME(cells_there)(index_t first, index_t n, index_t size, index_t *low, index_t *high)
{
    *low = first >= 0 ? 0 : -first < n ? -first : n;
    *high = size - first < *low ? *low : size - first < n ? size - first : n;
}

/* The cell that stands for one beyond the edge of an axis; -1 where a constant does. Most need no division. */
static inline index_t NAME(fold)(int edge, index_t cell, index_t size)
{
    if (cell >= 0 && cell < size)
        return cell;
    if (edge == EDGE_CONSTANT)
        return -1;
    if (edge == EDGE_REPLICATE || size == 1)
        return cell < 0 ? 0 : size - 1;
    const index_t period = edge == EDGE_CIRCULAR ? size : 2 * (size - 1);
    if (cell < -period || cell >= 2 * period)
        cell %= period;
    cell += cell < 0 ? period : cell >= period ? -period : 0;
    return cell < size ? cell : period - cell;
}

/* How far an axis is read at all: its cells, or those and the ones beyond the edge that some position reaches. */
static inline void NAME(window)(const piece_t *piece, int a, index_t *low, index_t *high)
{
    const axis_t *axis = &piece->axis[a];
    const index_t span = axis->tap_step * (axis->taps - 1);
    *low = 0;
    *high = axis->size;
    if (piece->edge != EDGE_NONE) {
        *low = axis->offset + (span < 0 ? span : 0);
        *high = axis->step * (piece->count[a] - 1) + axis->offset + (span < 0 ? 0 : span) + 1;
    }
}

/* Whether some of a piece's positions lie beyond the edges of target. */
static inline int NAME(has_positions_beyond)(const piece_t *piece)
{
    const index_t *before = piece->before, *behind = piece->behind;
    return before[0] || before[1] || before[2] || behind[0] || behind[1] || behind[2];
}

/* The cell that is read for one: itself, the one that stands for it, or one of these. */
#define NOTHING (-1)
#define CONSTANT (-2)
static inline index_t NAME(cell_for)(const piece_t *piece, int a, index_t cell)
{
    const index_t size = piece->axis[a].size;
    index_t low, high;
    if (cell >= 0 && cell < size)
        return cell;
    NAME(window)(piece, a, &low, &high);
    if (cell < low || cell >= high)
        return NOTHING;
    return piece->edge == EDGE_CONSTANT ? CONSTANT : NAME(fold)(piece->edge, cell, size);
}

/* How often `unit` the last tap of a stream is from its first, and so how many positions beyond the block's own. */
static inline index_t NAME(reach)(const axis_t *axis)
{
    return (axis->taps + axis->streams - 1) / axis->streams - 1;
}

static inline index_t NAME(beyond)(const axis_t *axis)
{
    return (axis->unit < 0 ? -axis->unit : axis->unit) * NAME(reach)(axis);
}

/* The shift of stream `stream`: of its first tap, or of its last where later taps look further back. */
static inline index_t NAME(shift)(const axis_t *axis, index_t stream)
{
    return axis->offset + axis->tap_step * (stream + (axis->unit < 0 ? axis->streams * NAME(reach)(axis) : 0));
}

/* Cells of a row along axis a: its positions and, where shared, those that later taps reach. */
static inline index_t NAME(cells)(const piece_t *piece, const block_t *block, int a)
{
    return block->extent[a] + (block->shared >> a & 1 ? NAME(beyond)(&piece->axis[a]) : 0);
}

static inline index_t NAME(all_taps)(const piece_t *piece)
{
    return piece->axis[0].taps * piece->axis[1].taps * piece->axis[2].taps;
}

/* Products that every output channel of a row of the part needs. */
static inline index_t NAME(depth)(const work_t *work)
{
    return work->part.channels * NAME(all_taps)(work->piece);
}

static void NAME(layout)(work_t *work)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    layout_t *layout = &work->layout;
    const index_t *extent = block->extent;
    layout->axis[1] = NAME(cells)(piece, block, 2);
    layout->axis[0] = layout->axis[1] * NAME(cells)(piece, block, 1);
    layout->batch = layout->axis[0] * NAME(cells)(piece, block, 0);
    layout->positions = (block->samples - 1) * layout->batch + (extent[0] - 1) * layout->axis[0]
        + (extent[1] - 1) * layout->axis[1] + extent[2];
    layout->stream = (block->samples * layout->batch + 2 * LANES - 1) / LANES * LANES + LANES;
    layout->channel = layout->stream;
    for (int a = 0; a < 3; a++) {
        layout->streams[a] = block->shared >> a & 1 ? piece->axis[a].streams : piece->axis[a].taps;
        layout->channel *= layout->streams[a];
    }
    layout->set = part->channels * layout->channel;
    layout->scratch = part->groups * layout->set + LANES;
    layout->pitch = NAME(up)(layout->positions);
    layout->cell = layout->cut = 0;
    layout->panel = part->groups * part->rows * NAME(depth)(work);
    layout->result = layout->sums = part->groups * part->rows * layout->pitch;
}

/* The same for grad_weight, whose results are rows of columns. */
static void NAME(layout_turned)(work_t *work)
{
    const part_t *part = &work->part;
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    layout->pitch = NAME(up)(part->rows);
    layout->panel = layout->positions * layout->pitch;
    layout->result = layout->sums = NAME(depth)(work) * layout->pitch;
}

/* A panel whose rows lie elsewhere, or behind this: where they begin, and how far apart they are. */
typedef struct {
    const REAL *first;
    index_t pitch, unused[6];
    REAL own[];
} NAME(rows_panel);

static void NAME(layout_few)(work_t *work)
{
    const part_t *part = &work->part;
    layout_t *layout = &work->layout;
    NAME(layout)(work);
    layout->pitch = part->rows;
    layout->panel = sizeof(NAME(rows_panel)) / sizeof(REAL) + part->groups * part->rows * layout->positions + LANES;
    layout->result = layout->sums = part->groups * NAME(depth)(work) * layout->pitch;
}

static void NAME(offsets)(const work_t *work, index_t *offset)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const layout_t *layout = &work->layout;
    const index_t pitch[3] = {layout->axis[0], layout->axis[1], 1};
    const index_t taps = piece->axis[0].taps * piece->axis[1].taps * piece->axis[2].taps;
    index_t tap[3], i = 0;
    for (tap[0] = 0; tap[0] < piece->axis[0].taps; tap[0]++)
        for (tap[1] = 0; tap[1] < piece->axis[1].taps; tap[1]++)
            for (tap[2] = 0; tap[2] < piece->axis[2].taps; tap[2]++) {
                index_t stream = 0, within = 0;
                for (int a = 0; a < 3; a++) {
                    const axis_t *axis = &piece->axis[a];
                    const index_t last = axis->unit < 0 ? NAME(reach)(axis) : 0;
                    if (block->shared >> a & 1)
                        within += (tap[a] / axis->streams - last) * axis->unit * pitch[a];
                    stream = stream * layout->streams[a] + tap[a] % layout->streams[a];
                }
                offset[i++] = stream * layout->stream + within;
            }
    for (; i < work->part.channels * taps; i++)
        offset[i] = offset[i - taps] + layout->channel;
}

static inline void NAME(shifts)(const piece_t *piece, const block_t *block, index_t z, index_t y, index_t x,
                                index_t shift[3])
{
    const index_t stream[3] = {z, y, x};
    for (int a = 0; a < 3; a++)
        shift[a] = block->shared >> a & 1 ? NAME(shift)(&piece->axis[a], stream[a])
                                          : piece->axis[a].offset + piece->axis[a].tap_step * stream[a];
}
