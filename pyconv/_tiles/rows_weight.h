/* grad_weight of depthwise convolution of 3 x 3 taps where rows of positions fill vectors, whose lanes are neighbouring
   positions. Both operands are read where they lie: a tap has a vector of sums, and lanes that are no position's, or whose
   cell lies beside its row, are left out of it once for many rows. Of cells that stand for others, a row's ends are put
   into its vectors, where no more than one is beside either end. Else they are copied, as rows.h does it, and so are
   cells that vectors would read more than memory with. See body.h for the macros. */

/* Some rows of positions: row r meets, under row t of taps, row r + t of cells, if that lies in [top, bottom); there
   column c meets, under tap x, cell first + c + x of `size`. Columns [low, high) are vectors all of whose cells lie in
   the row. `cells` and `other` are where row 0 and column 0 begin; so far from them is what the next band reads. */
typedef struct {
    index_t rows, width, top, bottom, first, size, low, high, pitch, below, next_cells, next_other;
    const REAL *cells, *other;
    /* Of cells that stand for others, and are no copy: how; which row of the plane's `height` row 0 is; where the plane
       begins, less what `cells` is more; where, from there, those are that stand before a row and behind it. */
    int edge;
    index_t start, height, before, behind;
    const REAL *plane, *constant;
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

/* And cells of a row that holds the constant alone. */
static inline index_t NAME(constants)(const work_t *work)
{
    const index_t width = work->block.extent[2];
    return work->piece->edge == EDGE_CONSTANT ? (width < LANES ? LANES : width) + 2 : 0;
}

/* result[group][row][tap][lane], taps in the order of their cells. In scratch lie three pointers (see unroll_ends), then
   what rows.h keeps there, then rows of grad_output that are copied, then constants; the panel tells where that is. */
static void NAME(layout_rows_turned)(work_t *work)
{
    layout_t *layout = &work->layout;
    NAME(layout_rows)(work);
    layout->scratch += (index_t)(2 * sizeof(REAL *) / sizeof(REAL)) + NAME(rows_copied)(work) * LANES
        + NAME(constants)(work);
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

/* Lanes of a vector of columns whose cell is before its row, and those whose cell is behind it: none but under the first
   and the last tap. */
typedef struct {
    NAME(mask) before, behind;
} NAME(ends);

/* The cells of a row under tap x, the ends of the row put in. */
static inline __attribute__((always_inline)) VECTOR NAME(cells_under)(const int x, const REAL *cells, const REAL *before,
                                                                      const REAL *behind, const NAME(ends) *ends)
{
    const NAME(mask) lanes = x == 0 ? ends->before : ends->behind;
    MASK bits;
    if (x == 1)
        return LOAD(cells + 1);
    __builtin_memcpy(&bits, x == 0 ? before : behind, sizeof(bits));
    return (VECTOR)(((NAME(mask))LOAD(cells + x) & ~lanes) | (lanes & bits));
}

/* Row `row` of cells, and if cells are EDGED, the row that stands for it beyond the plane. */
static inline __attribute__((always_inline)) const REAL *NAME(cells_of_row)(const int EDGED, const NAME(band) *band,
                                                                            index_t row)
{
    if (!EDGED || (row >= band->top && row < band->bottom))
        return band->cells + row * band->pitch;
    const index_t at = NAME(fold)(band->edge, band->start + row, band->height);
    return at < 0 ? band->constant : band->plane + at * band->pitch;
}

/* What rows [row, last) of cells add to the sums, in one vector of columns from `at` on, whose ends are put in if it HAS
   some. A cell is loaded for three rows of taps and so is a vector of grad_output, of which the last three stay in
   registers with the nine sums. What the next band reads is asked for, as much as is read: columns are gone down in no
   order that a processor foresees. */
static inline __attribute__((always_inline)) void NAME(sum_rows)(const int HAS, const NAME(band) *band, index_t row,
                                                                 index_t last, index_t at, const NAME(ends) *ends,
                                                                 VECTOR *sum)
{
    const index_t pitch = band->pitch, below = band->below, step = band->edge == EDGE_CONSTANT ? 0 : pitch;
    const REAL *line = band->cells + row * pitch, *cells = line + at, *other = band->other + row * below + at;
    const REAL *before = step ? line + band->before : band->constant, *behind = step ? line + band->behind : before;
    const REAL *next_cells = band->cells + band->next_cells + at * band->rows;
    const REAL *next_other = band->other + band->next_other + at * band->rows;
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
#pragma GCC unroll 3
        for (int x = 0; x < 3; x++) {
            const VECTOR cell = HAS ? NAME(cells_under)(x, cells, before, behind, ends) : LOAD(cells + x);
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
        const REAL *line = NAME(cells_of_row)(EDGED, band, row), *cells = line + at;
        const int is_constant = band->edge == EDGE_CONSTANT;
        const REAL *before = is_constant ? band->constant : line + band->before;
        const REAL *behind = is_constant ? band->constant : line + band->behind;
#pragma GCC unroll 3
        for (int t = 0; t < 3; t++) {
            if (row < t || row - t >= band->rows)
                continue;
            const VECTOR y = LOAD(band->other + (row - t) * band->below + at);
#pragma GCC unroll 3
            for (int x = 0; x < 3; x++)
                sum[3 * t + x] += y * (HAS ? NAME(cells_under)(x, cells, before, behind, ends) : LOAD(cells + x));
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
        ends = (NAME(ends)){NAME(lanes_between)(-1 - cell, -cell), NAME(lanes_between)(there - 2, there - 1)};
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

/* Whether vectors may read the cells of a band where they lie: what they read more is memory between `begin` and `limit`.
   */
static inline int NAME(may_read)(const NAME(band) *band, const REAL *begin, const REAL *limit)
{
    const index_t wide = (band->width < LANES ? LANES : band->width) + 2;
    const int edged = band->edge != EDGE_NONE; /* rows beyond the plane may be any of it */
    const REAL *first = edged ? band->plane : band->cells + band->top * band->pitch;
    const index_t rows = edged ? band->height : band->bottom - band->top;
    return rows <= 0 || (first >= begin && first + (rows - 1) * band->pitch + wide <= limit);
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
    REAL *cells, *other, *constant;
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
        band->edge = EDGE_NONE;
        band->first = 0;
        band->size = plane.pitch;
    }
}

/* Some rows of positions from `start` on, `most` at a time, of any group: where none of its rows is said. */
static NAME(band) NAME(band_of)(const work_t *work, index_t start, index_t most, const REAL *constant)
{
    const piece_t *piece = work->piece;
    const index_t left = work->block.extent[1] - start, rows = left < most ? left : most;
    const index_t y = NAME(first_cell)(work, 1, start), first = NAME(first_cell)(work, 2, 0), size = piece->axis[2].size;
    const index_t width = work->block.extent[2], there = size - first - 2;
    NAME(band) band = {.rows = rows, .width = width, .first = first, .size = size,
                       .low = first < 0 ? NAME(up)(-first) : 0, .high = (there < width ? there : width) / LANES * LANES,
                       .pitch = piece->source_stride[1], .below = piece->target_stride[1],
                       .next_cells = piece->source_group, .next_other = piece->target_group,
                       .edge = piece->edge, .start = y, .height = piece->axis[1].size, .constant = constant};
    NAME(cells_there)(y, rows + 2, band.height, &band.top, &band.bottom);
    if (work->part.groups == 1) {
        band.next_cells = rows * band.pitch;
        band.next_other = rows * band.below;
    }
    if (piece->edge > EDGE_CONSTANT) {
        band.before = NAME(fold)(piece->edge, -1, size) - first;
        band.behind = NAME(fold)(piece->edge, size, size) - first;
    }
    return band;
}

/* The products of all groups of some rows from `start` on. Behind the rows of all groups but the last there is memory that
   vectors may read. */
static void NAME(correlate_some)(const work_t *work, index_t start, index_t most, const REAL *other,
                                 const void *scratch, NAME(copies) *to, REAL *sums)
{
    const piece_t *piece = work->piece;
    const REAL *const *ends = (const REAL *const *)scratch, *begin = ends[1], *limit = ends[2];
    const REAL *source = NAME(source_plane)(work, ends[0], 0);
    const index_t rows = work->part.rows, groups = work->part.groups, next = piece->target_group;
    NAME(band) band = NAME(band_of)(work, start, most, to->constant), moved, dense;
    const int is_near = band.first >= -1 && band.first + band.width + 1 <= band.size;
    const int moves = !source || (piece->edge != EDGE_NONE && !is_near);
    const int follows = band.width >= LANES || next + band.width >= LANES;
    for (index_t group = 0; group < groups; group++, sums += rows * 9 * LANES) {
        const REAL *from = source ? source + group * piece->source_group : NULL;
        NAME(band) *own = &band;
        band.plane = moves ? NULL : from + band.first;
        band.cells = moves ? NULL : band.plane + band.start * band.pitch;
        if (moves || !NAME(may_read)(&band, begin, limit)) {
            moved = band;
            own = &moved;
            NAME(copy_cells)(work, to, start, most, from, own);
        }
        for (index_t row = 0; row < rows; row++) {
            own->other = other + group * next + row * piece->target_channel + start * own->below;
            const int is_copied = !follows || (own->width < LANES && group + 1 == groups);
            if (is_copied) {
                dense = *own;
                NAME(copy_other)(&dense, to->other);
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
    index_t *beside = (index_t *)((const REAL **)scratch + 3);
    REAL *cells = (REAL *)(beside + NAME(row_pitch)(work));
    REAL *copied = cells + NAME(scratch_of_rows)(work), *constant = copied + NAME(rows_copied)(work) * LANES;
    NAME(copies) to = {0, beside, cells, copied, constant, {0}};
    (void)offset;
    if (!accumulate)
        NAME(zero)(work->layout.sums, result);
    for (index_t i = 0; i < NAME(constants)(work); i++)
        __builtin_memcpy(constant + i, work->piece->edge_value, sizeof(REAL));
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
