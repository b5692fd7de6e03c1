/* grad_weight of depthwise convolution of 3 x 3 taps where rows of positions fill vectors, whose lanes are neighbouring
   positions. Both operands are read where they lie: a tap has a vector of sums, and lanes that are no position's, or whose
   cell lies beside its row, are left out of it once for many rows. Cells that stand for others are copied, as rows.h does
   it, and so are those that vectors would read more than memory with. See body.h for the macros. */

/* Some rows of positions: row r meets, under row t of taps, row r + t of cells, if that lies in [top, bottom); there
   column c meets, under tap x, cell first + c + x of `size`. `cells` and `other` are where row 0 and column 0 begin; so far
   from them is what the next band reads. */
typedef struct {
    index_t rows, width, top, bottom, first, size, pitch, below, next_cells, next_other;
    const REAL *cells, *other;
} NAME(band);

/* Rows of positions of a band at most. */
static inline index_t NAME(rows_of_band)(const work_t *work)
{
    const index_t fit = NAME(rows_at_once)(work);
    return fit < SUMMED_APART ? fit : SUMMED_APART;
}

/* And those of grad_output that are copied at a time: rows that fill a vector are not. */
static inline index_t NAME(rows_copied)(const work_t *work)
{
    return work->block.extent[2] < LANES ? NAME(rows_of_band)(work) : 0;
}

/* result[group][row][tap][lane], taps in the order of their cells. In scratch lie three pointers (see unroll_ends), then
   what rows.h keeps there, then rows of grad_output that are copied; the panel tells where that is. */
static void NAME(layout_rows_turned)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_rows)(work);
    layout->scratch += (index_t)(2 * sizeof(REAL *) / sizeof(REAL)) + NAME(rows_copied)(work) * LANES;
    layout->result = layout->sums = layout->panel * LANES;
    layout->panel = (index_t)((sizeof(REAL *) + sizeof(REAL) - 1) / sizeof(REAL));
}

static void NAME(unroll_ends)(const work_t *work, const void *source, const void *begin, const void *limit,
                              void *scratch)
{
    const void **to = scratch;
    (void)work;
    to[0] = source;
    to[1] = begin;
    to[2] = limit;
}

/* The lanes [low, high) of a vector, as bits. */
static inline __attribute__((always_inline)) NAME(mask) NAME(lanes_between)(index_t low, index_t high)
{
#define FOUR(n) n, n, n, n
#define SIXTEEN(n) FOUR(n), FOUR(n), FOUR(n), FOUR(n)
    static const MASK run[] = {SIXTEEN(0), SIXTEEN(-1), SIXTEEN(0)};
#undef SIXTEEN
#undef FOUR
    low = low < 0 ? 0 : low < LANES ? low : LANES;
    high = high < 0 ? 0 : high < LANES ? high : LANES;
    return *(const NAME(mask) *)(run + 16 - low) & *(const NAME(mask) *)(run + 32 - high);
}

/* What rows [row, last) of cells add to the sums, in one vector of columns from `at` on. A cell is loaded for three rows of
   taps and so is a vector of grad_output, of which the last three stay in registers with the nine sums. What the
   next band reads is asked for, as much as is read: columns are gone down in no order that a processor foresees. */
static inline __attribute__((always_inline)) void NAME(sum_rows)(const NAME(band) *band, index_t row, index_t last,
                                                                 index_t at, VECTOR *sum)
{
    const index_t pitch = band->pitch, below = band->below;
    const REAL *cells = band->cells + row * pitch + at, *other = band->other + row * below + at;
    const REAL *next_cells = band->cells + band->next_cells + at * band->rows;
    const REAL *next_other = band->other + band->next_other + at * band->rows;
    if (row >= last)
        return;
    VECTOR y[3] = {LOAD(other - below), LOAD(other - 2 * below)};
    for (; row < last; row++, cells += pitch, other += below) {
        y[2] = y[1];
        y[1] = y[0];
        y[0] = LOAD(other);
        __builtin_prefetch(next_other);
        __builtin_prefetch(next_cells);
        next_other += LANES;
        next_cells += LANES;
#pragma GCC unroll 3
        for (int x = 0; x < 3; x++) {
            const VECTOR cell = LOAD(cells + x);
#pragma GCC unroll 3
            for (int t = 0; t < 3; t++)
                sum[3 * t + x] += y[t] * cell;
        }
    }
}

/* The same where some of the rows of positions that meet a row of cells are not there. */
static inline __attribute__((always_inline)) void NAME(sum_few_rows)(const NAME(band) *band, index_t row, index_t last,
                                                                     index_t at, VECTOR *sum)
{
    for (; row < last; row++) {
        const REAL *cells = band->cells + row * band->pitch + at;
#pragma GCC unroll 3
        for (int t = 0; t < 3; t++) {
            if (row < t || row - t >= band->rows)
                continue;
            const VECTOR y = LOAD(band->other + (row - t) * band->below + at);
#pragma GCC unroll 3
            for (int x = 0; x < 3; x++)
                sum[3 * t + x] += y * LOAD(cells + x);
        }
    }
}

/* sums += of all rows, in the columns [at, end), whose cells are all there, or in ONE vector of columns, of which some may
   not be, and of which those before lane `own` are another's. */
static inline __attribute__((always_inline)) void NAME(sum_columns)(const int ONE, const NAME(band) *band, index_t at,
                                                                    index_t end, index_t own, REAL *sums)
{
    const index_t top = band->top, bottom = band->bottom, rows = band->rows < bottom ? band->rows : bottom;
    const index_t from = top > 2 ? top : bottom < 2 ? bottom : 2, to = rows < from ? from : rows;
    VECTOR sum[9];
#pragma GCC unroll 9
    for (int i = 0; i < 9; i++)
        sum[i] = (VECTOR){0};
    for (index_t c = at; c == at || (!ONE && c < end); c += LANES) {
        NAME(sum_few_rows)(band, top, from, c, sum);
        NAME(sum_rows)(band, from, to, c, sum);
        NAME(sum_few_rows)(band, to, bottom, c, sum);
    }
#pragma GCC unroll 3
    for (int x = 0; x < 3; x++) {
        const index_t cell = band->first + at + x, most = band->width - at, there = band->size - cell;
        NAME(mask) lanes = {0};
        if (ONE)
            lanes = NAME(lanes_between)(own > -cell ? own : -cell, most < there ? most : there);
#pragma GCC unroll 3
        for (int t = 0; t < 3; t++) {
            REAL *total = sums + (3 * t + x) * LANES;
            STORE(total, LOAD(total) + (ONE ? (VECTOR)((NAME(mask))sum[3 * t + x] & lanes) : sum[3 * t + x]));
        }
    }
}

/* All columns: vectors all of whose cells are there some at once, the others one by one; the last ends with the row,
   whatever of it the one before has too. */
static inline __attribute__((always_inline)) void NAME(sum_strips)(const NAME(band) *band, REAL *sums)
{
    const index_t width = band->width, last = width - LANES, there = band->size - band->first - 2;
    const index_t low = band->first < 0 ? NAME(up)(-band->first) : 0;
    const index_t high = (there < width ? there : width) / LANES * LANES;
    for (index_t at = 0, wide; at < width; at += wide) {
        const index_t left = high - at, column = last < 0 || at < last ? at : last;
        if (at < low || left <= 0) {
            wide = LANES;
            NAME(sum_columns)(1, band, column, 0, at - column, sums);
        } else {
            const index_t apart = band->rows < SUMMED_APART ? SUMMED_APART / band->rows * LANES : LANES;
            wide = apart < left ? apart : left;
            NAME(sum_columns)(0, band, at, at + wide, 0, sums);
        }
    }
}

/* sums += of a band. At most SUMMED_APART positions of a lane are summed in registers, and those of many columns apart
   from those of other bands: rounding errors grow with the three numbers, not with their product. */
static void NAME(sum_band)(const NAME(band) *band, REAL *sums)
{
    VECTOR own[9] __attribute__((aligned(64))); /* what is read again soon must not lie across two lines */
    const int few = band->width <= 2 * LANES;
    for (int i = 0; i < 9 && !few; i++) /* as vectors: they are read as such at once */
        own[i] = (VECTOR){0};
    NAME(sum_strips)(band, few ? sums : (REAL *)own);
    for (int i = 0; i < 9 && !few; i++)
        STORE(sums + i * LANES, LOAD(sums + i * LANES) + own[i]);
}

/* Whether vectors may read the cells of a band where they lie: what they read more is memory between `begin` and `limit`.
   */
static inline int NAME(may_read)(const NAME(band) *band, const REAL *begin, const REAL *limit)
{
    const index_t wide = (band->width < LANES ? LANES : band->width) + 2;
    return band->top >= band->bottom || (band->cells + band->top * band->pitch >= begin
                                         && band->cells + (band->bottom - 1) * band->pitch + wide <= limit);
}

/* Of rows that fill less than a vector, whose last ends behind grad_output: a copy of them. */
static void NAME(copy_other)(NAME(band) *band, REAL *copy)
{
    for (index_t row = 0; row < band->rows; row++)
        NAME(store_dense)(copy + row * LANES, band->other + row * band->below, band->width, 0, 0);
    band->other = copy;
    band->below = LANES;
}

/* Where rows are copied to, which is made ready for the first of a block: seldom is one copied. */
typedef struct {
    int is_ready;
    index_t *beside;
    REAL *cells, *other;
    NAME(row_cells) line;
} NAME(copies);

/* The same of cells that stand for others, or that may not be read where they lie. */
static void NAME(copy_cells)(const work_t *work, NAME(copies) *to, index_t start, index_t most, const REAL *source,
                             NAME(band) *band)
{
    if (!to->is_ready) {
        to->line = NAME(find_row_cells)(work, to->beside);
        NAME(zero)(NAME(scratch_of_rows)(work), to->cells);
        to->is_ready = 1;
    }
    const NAME(plane) plane = NAME(find_plane)(work, &to->line, start, most, source, to->cells);
    band->top = plane.top;
    band->bottom = plane.bottom;
    band->cells = plane.cells;
    band->pitch = plane.pitch;
    if (work->piece->edge != EDGE_NONE) {
        band->first = 0;
        band->size = plane.pitch;
    }
}

/* The products of all groups of some rows from `start` on. Behind the rows of all groups but the last there is memory that
   vectors may read. */
static void NAME(correlate_some)(const work_t *work, index_t start, index_t most, const REAL *other,
                                 const void *scratch, NAME(copies) *to, REAL *sums)
{
    const piece_t *piece = work->piece;
    const REAL *const *ends = (const REAL *const *)scratch, *begin = ends[1], *limit = ends[2];
    const REAL *source = NAME(source_plane)(work, ends[0], 0);
    const index_t y = NAME(first_cell)(work, 1, start), left = work->block.extent[1] - start, rows = work->part.rows;
    const index_t groups = work->part.groups, next = piece->target_group, width = work->block.extent[2];
    const int moves = !source || piece->edge != EDGE_NONE, follows = width >= LANES || next + width >= LANES;
    NAME(band) shape = {left < most ? left : most, width, 0, 0, NAME(first_cell)(work, 2, 0), piece->axis[2].size,
                        piece->source_stride[1], piece->target_stride[1], piece->source_group, next, NULL, NULL};
    NAME(cells_there)(y, shape.rows + 2, piece->axis[1].size, &shape.top, &shape.bottom);
    if (groups == 1) {
        shape.next_cells = shape.rows * shape.pitch;
        shape.next_other = shape.rows * shape.below;
    }
    for (index_t group = 0; group < groups; group++, sums += rows * 9 * LANES) {
        NAME(band) band = shape;
        const REAL *from = source ? source + group * piece->source_group : NULL;
        band.cells = moves ? NULL : from + y * band.pitch + band.first;
        if (moves || !NAME(may_read)(&band, begin, limit))
            NAME(copy_cells)(work, to, start, most, from, &band);
        for (index_t row = 0; row < rows; row++) {
            NAME(band) own = band;
            own.other = other + group * next + row * piece->target_channel + start * own.below;
            if (!follows || (width < LANES && group + 1 == groups))
                NAME(copy_other)(&own, to->other);
            NAME(sum_band)(&own, sums + row * 9 * LANES);
        }
    }
}

static void NAME(correlate_in_rows)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                    void *result, int accumulate)
{
    const index_t most = NAME(rows_of_band)(work);
    const REAL *other = *(const REAL *const *)panel + NAME(first)(work->piece, &work->block)
        + work->part.row * work->piece->target_channel;
    index_t *beside = (index_t *)((const REAL **)scratch + 3);
    REAL *cells = (REAL *)(beside + NAME(row_pitch)(work));
    NAME(copies) to = {0, beside, cells, cells + NAME(scratch_of_rows)(work), {0}};
    (void)offset;
    if (!accumulate)
        NAME(zero)(work->layout.sums, result);
    for (index_t y = 0; y < work->block.extent[1]; y += most)
        NAME(correlate_some)(work, y, most, other, scratch, &to, result);
}

/* weight (+)= the sums of the lanes. */
static void NAME(store_weight_rows)(const work_t *work, void *result, const void *bias, void *weight, int accumulate,
                                    char *doubtful)
{
    const piece_t *piece = work->piece;
    const part_t *part = &work->part;
    const int up = piece->axis[1].tap_step < 0, back = piece->axis[2].tap_step < 0;
    const REAL *from = result;
    REAL total[9 + 16];
    (void)bias, (void)doubtful;
    for (index_t group = 0; group < part->groups; group++)
        for (index_t row = part->row; row < part->row + part->rows; row++, from += 9 * LANES) {
            REAL *to = (REAL *)weight + group * piece->weight_group + row * piece->weight_row;
            VECTOR sum[9];
#pragma GCC unroll 9
            for (int i = 0; i < 9; i++)
                sum[i] = LOAD(from + i * LANES);
            NAME(sum_lanes)(9, sum, total);
            for (int i = 0; i < 9; i++) {
                const int y = i / 3, x = i % 3;
                REAL *at = to + (up ? 2 - y : y) * piece->weight_stride[1] + (back ? 2 - x : x) * piece->weight_stride[2];
                *at = accumulate ? *at + total[i] : total[i];
            }
        }
}
