/* grad_weight of depthwise convolution of 3 x 3 taps where rows of positions fill vectors, whose lanes are neighbouring
   positions. Both operands are read where they lie: a tap has a vector of sums, and lanes that are no position's, or whose
   cell lies beside its row, are left out of it once for many rows. Of cells that stand for others, a row's ends are put
   into its vectors, where no more than one is beside either end. See bands.h for how cells are read, and body.h for the
   macros. */

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

/* result[group][row][tap][lane], taps in the order of their cells. Behind what a reader has in scratch lie the rows of
   grad_output that are copied; the panel tells where that is. */
static void NAME(layout_rows_turned)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_rows)(work);
    layout->scratch += NAME(rows_copied)(work) * LANES;
    layout->result = layout->sums = layout->panel * LANES;
    layout->panel = (index_t)((sizeof(REAL *) + sizeof(REAL) - 1) / sizeof(REAL));
}

/* Lanes of a vector of columns whose cell is before its row, and those whose cell is behind it: none but under the first
   and the last tap. */
typedef struct {
    NAME(mask) before, behind;
} NAME(ends);

/* The cells of a row under tap x, the ends of the row put in if it HAS some. */
static inline __attribute__((always_inline)) VECTOR NAME(cells_under)(
    const int HAS, const int x, const REAL *cells, const NAME(three_taps) *loaded, const REAL *before,
    const REAL *behind, const NAME(ends) *ends)
{
    const VECTOR cell = NAME(under_tap)(x, cells, loaded);
    if (!HAS || x == 1)
        return cell;
    return NAME(put_in)(NAME(keep)(cell, ~(x == 0 ? ends->before : ends->behind)), x == 0 ? before : behind,
                        x == 0 ? ends->before : ends->behind);
}

/* What rows [row, last) of cells add to the sums, in one vector of columns from `at` on, whose ends are put in if it HAS
   some. A cell is loaded for three rows of taps and so is a vector of grad_output, of which the last three stay in
   registers with the nine sums. What the next band reads is asked for, as much as is read: columns are gone down in no
   order that a processor foresees. */
static inline __attribute__((always_inline)) void NAME(sum_rows)(const int HAS, const NAME(band) *band, index_t row,
                                                                 index_t last, index_t at, const NAME(ends) *ends,
                                                                 VECTOR *sum)
{
    const index_t pitch = band->pitch, below = band->below, step = band->edge > EDGE_CONSTANT ? pitch : 0;
    const REAL *line = band->cells + row * pitch, *cells = line + at, *other = band->other + row * below + at;
    const REAL *beside = NAME(beside_row)(band, line), *before = beside + band->before, *behind = beside + band->behind;
    const REAL *next_cells = band->next_cells + at * band->rows, *next_other = band->next_other + at * band->rows;
    if (row >= last)
        return;
    VECTOR y[3] = {LOAD(other - below), LOAD(other - 2 * below)};
    for (; row < last; row++, cells += pitch, other += below, before += step, behind += step) {
        y[2] = y[1];
        y[1] = y[0];
        y[0] = LOAD(other);
        __builtin_prefetch(next_other);
        __builtin_prefetch(next_cells);
        next_other += LANES;
        next_cells += LANES;
        const NAME(three_taps) loaded = NAME(load_three)(cells);
#pragma GCC unroll 3
        for (int x = 0; x < 3; x++) {
            const VECTOR cell = NAME(cells_under)(HAS, x, cells, &loaded, before, behind, ends);
#pragma GCC unroll 3
            for (int t = 0; t < 3; t++)
                sum[3 * t + x] += y[t] * cell;
        }
    }
}

/* The same where some of the rows of positions that meet a row of cells are not there, or that row is not. */
static inline __attribute__((always_inline)) void NAME(sum_few_rows)(const int EDGED, const int HAS,
                                                                     const NAME(band) *band, index_t row, index_t last,
                                                                     index_t at, const NAME(ends) *ends, VECTOR *sum)
{
    for (; row < last; row++) {
        const int is_there = !EDGED || (row >= band->top && row < band->bottom);
        const REAL *line = is_there ? band->cells + row * band->pitch : NAME(row_beyond)(band, row), *cells = line + at;
        const REAL *beside = NAME(beside_row)(band, line), *before = beside + band->before;
        const REAL *behind = beside + band->behind;
        const NAME(three_taps) loaded = NAME(load_three)(cells);
#pragma GCC unroll 3
        for (int t = 0; t < 3; t++) {
            if (row < t || row - t >= band->rows)
                continue;
            const VECTOR y = LOAD(band->other + (row - t) * band->below + at);
#pragma GCC unroll 3
            for (int x = 0; x < 3; x++)
                sum[3 * t + x] += y * NAME(cells_under)(HAS, x, cells, &loaded, before, behind, ends);
        }
    }
}

/* sums += of all rows, in the columns [at, end), whose cells are all there, or in ONE vector of columns, of which some may
   not be, or, if cells are EDGED, are the row's ends that are put in, and of which those before lane `own` are another's.
   */
static inline __attribute__((always_inline)) void NAME(sum_columns)(const int ONE, const int EDGED,
                                                                    const NAME(band) *band, index_t at, index_t end,
                                                                    index_t own, REAL *sums)
{
    const int HAS = ONE && EDGED;
    const index_t top = band->top, bottom = band->bottom, rows = band->rows < bottom ? band->rows : bottom;
    const index_t from = top > 2 ? top : bottom < 2 ? bottom : 2, to = rows < from ? from : rows;
    const index_t begin = EDGED ? 0 : top, all = EDGED ? band->rows + 2 : bottom;
    const index_t cell = band->first + at, most = band->width - at, there = band->size - cell;
    NAME(ends) ends;
    if (HAS)
        ends = (NAME(ends)){NAME(lane)(-1 - cell), NAME(lane)(there - 2)};
    VECTOR sum[9];
#pragma GCC unroll 9
    for (int i = 0; i < 9; i++)
        sum[i] = (VECTOR){0};
    for (index_t c = at; c == at || (!ONE && c < end); c += LANES) {
        NAME(sum_few_rows)(EDGED, HAS, band, begin, from, c, &ends, sum);
        NAME(sum_rows)(HAS, band, from, to, c, &ends, sum);
        NAME(sum_few_rows)(EDGED, HAS, band, to, all, c, &ends, sum);
    }
#pragma GCC unroll 3
    for (int x = 0; x < 3; x++) {
        const index_t low = EDGED || own > -cell - x ? own : -cell - x;
        const index_t high = EDGED || most < there - x ? most : there - x;
        NAME(mask) lanes = {0};
        if (ONE)
            lanes = NAME(lanes_between)(low, high);
#pragma GCC unroll 3
        for (int t = 0; t < 3; t++) {
            REAL *total = sums + (3 * t + x) * LANES;
            STORE(total, LOAD(total) + (ONE ? (VECTOR)((NAME(mask))sum[3 * t + x] & lanes) : sum[3 * t + x]));
        }
    }
}

/* All columns: vectors all of whose cells are there some at once, the others one by one; the last ends with the row,
   whatever of it the one before has too. */
static inline __attribute__((always_inline)) void NAME(sum_strips)(const int EDGED, const NAME(band) *band, REAL *sums)
{
    const index_t width = band->width, last = width - LANES;
    for (index_t at = 0, wide; at < width; at += wide) {
        const index_t left = band->high - at, column = last < 0 || at < last ? at : last;
        if (at < band->low || left <= 0) {
            wide = LANES;
            NAME(sum_columns)(1, EDGED, band, column, 0, at - column, sums);
        } else {
            const index_t apart = band->rows < SUMMED_APART ? SUMMED_APART / band->rows * LANES : LANES;
            wide = apart < left ? apart : left;
            NAME(sum_columns)(0, EDGED, band, at, at + wide, 0, sums);
        }
    }
}

/* A function of its own: within its caller it takes a tenth to a fifth longer. */
static void __attribute__((noinline)) NAME(sum_edged_strips)(const NAME(band) *band, REAL *sums)
{
    NAME(sum_strips)(1, band, sums);
}

/* sums += of a band. At most SUMMED_APART positions of a lane are summed in registers, and those of many columns apart
   from those of other bands: rounding errors grow with the three numbers, not with their product. */
static void NAME(sum_band)(const NAME(band) *band, REAL *sums)
{
    VECTOR own[9] __attribute__((aligned(64))); /* what is read again soon must not lie across two lines */
    const int few = band->width <= 2 * LANES;
    for (int i = 0; i < 9 && !few; i++) /* as vectors: they are read as such at once */
        own[i] = (VECTOR){0};
    if (band->edge == EDGE_NONE)
        NAME(sum_strips)(0, band, few ? sums : (REAL *)own);
    else
        NAME(sum_edged_strips)(band, few ? sums : (REAL *)own);
    for (int i = 0; i < 9 && !few; i++)
        STORE(sums + i * LANES, LOAD(sums + i * LANES) + own[i]);
}

/* Of rows that fill less than a vector, whose last ends behind grad_output: a copy of them. */
static void NAME(copy_other)(NAME(band) *band, REAL *copy)
{
    for (index_t row = 0; row < band->rows; row++)
        NAME(copy_run)(copy + row * LANES, band->other + row * band->below, band->width);
    band->other = copy;
    band->below = LANES;
}

/* The products of all groups of some rows from `start` on. Behind the rows of all groups but the last there is memory that
   vectors may read. */
static void NAME(correlate_some)(const work_t *work, index_t start, index_t most, const REAL *other, NAME(reader) *reader,
                                 REAL *sums)
{
    const piece_t *piece = work->piece;
    const index_t rows = work->part.rows, groups = work->part.groups, next = piece->target_group;
    NAME(band) band = NAME(band_of)(work, reader, start, most), copied, dense;
    const index_t there = band.size - band.first - 2, below = band.below;
    const int is_read = piece->edge == EDGE_NONE || NAME(has_near_ends)(&band);
    const int follows = band.width >= LANES || next + band.width >= LANES;
    band.low = band.first < 0 ? NAME(up)(-band.first) : 0;
    band.high = (there < band.width ? there : band.width) / LANES * LANES;
    for (index_t group = 0; group < groups; group++, sums += rows * 9 * LANES) {
        NAME(band) *own = NAME(read_band)(work, reader, group, 0, is_read, &band, &copied);
        for (index_t row = 0; row < rows; row++) {
            own->other = other + group * next + row * piece->target_channel + start * below;
            own->next_other = own->other + (groups == 1 ? band.rows * below : next);
            const int is_copied = !follows || (own->width < LANES && group + 1 == groups);
            if (is_copied) {
                dense = *own;
                NAME(copy_other)(&dense, reader->rest);
            }
            NAME(sum_band)(is_copied ? &dense : own, sums + row * 9 * LANES);
        }
    }
}

static void NAME(correlate_in_rows)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                    void *result, int accumulate)
{
    const index_t most = NAME(rows_of_band)(work);
    const REAL *other = *(const REAL *const *)panel + NAME(first)(work->piece, &work->block)
        + work->part.row * work->piece->target_channel;
    NAME(reader) reader = NAME(open_reader)(work, scratch);
    (void)offset;
    if (!accumulate)
        NAME(zero)(work->layout.sums, result);
    for (index_t y = 0; y < work->block.extent[1]; y += most)
        NAME(correlate_some)(work, y, most, other, &reader, result);
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
