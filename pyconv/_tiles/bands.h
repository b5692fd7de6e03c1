/* Bands: some rows of positions and the rows of cells that they meet, where rows of positions fill vectors. Cells are read
   where they lie, and what stands for one beside a row is put into the vector at that end of it. Where the callers cannot
   do this, and where vectors would read more than memory, they are copied first. See body.h for the macros. */

#define LINES (1 << 14) /* bytes of the cells that are worked on at a time: part of L1 */

/* Row r of positions meets, under row t of taps, row r + t of cells, if that lies in [top, bottom); there column c meets,
   under tap x, cell first + c + x of `size`. Where row 0 and column 0 begin: `cells`, with `pitch` from a row to the next;
   `other` in grad_output or `result`, with `below`; and of the band that is next `next_cells`, in source with
   `next_pitch`, and `next_other`. */
typedef struct {
    index_t rows, width, top, bottom, first, size, pitch, next_pitch, below;
    const REAL *cells, *other, *next_cells, *next_other;
    REAL *result;
    int adds; /* to results that are there */
    index_t low, high; /* for grad_weight: columns of which whole vectors lie in the row with all cells */
    int has_ends; /* beside its rows lie other cells than what stands there */
    /* Of cells that stand for others, and are no copy: how they do; which of the plane's `height` rows row 0 is; where
       column 0 of the plane's own first row begins; and how far the cells that stand before a row and behind it are from
       column 0, or, of a constant, from `constant`. */
    int edge;
    index_t start, height, before, behind;
    const REAL *plane, *constant;
    /* Where target has positions beyond its edges, whose sums are added to cells of it, under three taps: the column
       that the one before a row is added to, and that of the one behind it, which meet the cells `before` and `behind`
       from column 0; the row of cells that the row of positions above meets, and that which the row beneath meets; -1
       where there are none. Whether rows are added to target's outermost: else to the next. */
    int to_outermost;
    index_t left, right, above, beneath;
} NAME(band);

/* From one row of a copy of cells to the next: */
static inline index_t NAME(row_pitch)(const work_t *work)
{
    return work->block.extent[2] + work->piece->axis[2].taps - 1;
}

/* And rows of positions that are done at a time. */
static inline index_t NAME(rows_at_once)(const work_t *work)
{
    const index_t more = work->piece->axis[1].taps - 1, most = work->block.extent[1];
    const index_t fit = LINES / (index_t)sizeof(REAL) / NAME(row_pitch)(work) - more;
    const index_t rows = fit < 4 * more ? 4 * more : fit;
    return rows < most ? rows : most;
}

/* Elements that a copy takes at most: no more in a block that is smaller, of which more rows fit. */
static inline index_t NAME(cells_copied)(const work_t *work)
{
    const index_t more = work->piece->axis[1].taps - 1, pitch = NAME(row_pitch)(work);
    const index_t all = (work->block.extent[1] + more) * pitch, least = 5 * more * pitch;
    const index_t most = least < LINES / (index_t)sizeof(REAL) ? LINES / (index_t)sizeof(REAL) : least;
    return all < most ? all : most;
}

/* Elements of a row that is nothing but the constant. */
static inline index_t NAME(constants)(const work_t *work)
{
    const index_t width = work->block.extent[2], taps = work->piece->axis[2].taps;
    return work->piece->edge == EDGE_CONSTANT ? (width < LANES ? LANES : width) + taps - 1 : 0;
}

/* The cell of one of the block's positions under the tap that is first in memory; positions are a cell apart. */
static inline index_t NAME(first_cell)(const work_t *work, int a, index_t position)
{
    const axis_t *axis = &work->piece->axis[a];
    return work->block.start[a] + position + axis->offset + NAME(back)(axis);
}

/* The plane of cells under the block's one of positions, negative where none is. */
static inline index_t NAME(plane_of)(const work_t *work)
{
    const axis_t *axis = &work->piece->axis[0];
    const index_t at = axis->step * work->block.start[0] + axis->offset;
    if (work->piece->edge != EDGE_NONE)
        return NAME(fold)(work->piece->edge, at, axis->size);
    return at < axis->size ? at : -1;
}

/* A row of a copy: it begins with cell `first` of the axis, and [low, high) of it are there. Where source has cells
   beyond its edges, which cell each other place holds, -1 for the constant. Of a patch, all are there. */
typedef struct {
    index_t first, low, high;
    const index_t *cell;
} NAME(row_cells);

/* How a block's cells are read: its first group's plane, NULL where none is; the memory that may be read; where cells are
   copied to, and whether that is ready, as it is from the first copy of a block on; and what scratch has behind all this.
   */
typedef struct {
    const REAL *source, *begin, *limit;
    int is_ready;
    index_t *beside;
    REAL *cells, *constant, *rest;
    NAME(row_cells) line;
} NAME(reader);

/* Bytes of scratch before the copy of cells, which begins with a cache line: three pointers and a row of indices. */
static inline index_t NAME(before_copy)(const work_t *work)
{
    const size_t least = 3 * sizeof(REAL *) + NAME(row_pitch)(work) * sizeof(index_t);
    return (index_t)((least + 63) / 64 * 64);
}

/* Elements of scratch that a reader takes. */
static inline index_t NAME(reader_scratch)(const work_t *work)
{
    return NAME(before_copy)(work) / (index_t)sizeof(REAL) + NAME(cells_copied)(work) + NAME(constants)(work);
}

/* Scratch begins with three pointers. */
static void NAME(unroll_ends)(const work_t *work, const void *source, const void *begin, const void *limit,
                              void *scratch)
{
    const void **to = scratch;
    (void)work;
    to[0] = source;
    to[1] = begin;
    to[2] = limit;
}

static NAME(reader) NAME(open_reader)(const work_t *work, void *scratch)
{
    const piece_t *piece = work->piece;
    const REAL **ends = scratch;
    const index_t at = NAME(plane_of)(work);
    NAME(reader) reader = {NULL, ends[1], ends[2], 0, (index_t *)(ends + 3), NULL, NULL, NULL, {0}};
    if (at >= 0)
        reader.source = ends[0] + work->block.sample * piece->source_batch + at * piece->source_stride[0];
    reader.cells = (REAL *)((char *)scratch + NAME(before_copy)(work));
    reader.constant = reader.cells + NAME(cells_copied)(work);
    reader.rest = reader.constant + NAME(constants)(work);
    for (index_t i = 0; i < NAME(constants)(work); i++)
        __builtin_memcpy(reader.constant + i, piece->edge_value, sizeof(REAL));
    return reader;
}

/* Neighbouring numbers as they are: what is added changes none of them, nor the sign of zero. */
static inline __attribute__((always_inline)) void NAME(copy_run)(REAL *to, const REAL *from, index_t n)
{
    NAME(store_dense)(to, from, n, (REAL)-0.0, 0);
}

/* The band's rows of cells, to where zeros lie beside them. */
static void NAME(copy_plane)(const NAME(row_cells) *line, const NAME(band) *band, const REAL *source, index_t step,
                             REAL *to)
{
    const REAL *from = source + (band->start + band->top) * step + line->first + line->low;
    for (index_t row = band->top; row < band->bottom; row++, from += step)
        NAME(copy_run)(to + row * band->pitch + line->low, from, line->high - line->low);
}

/* The same with what stands for the cells beyond; of no plane, all of it is the constant. */
static void NAME(copy_edged)(const NAME(row_cells) *line, NAME(band) *band, index_t rows, const REAL *source, index_t step,
                             REAL *to)
{
    const index_t low = line->low, high = line->high;
    band->top = 0;
    band->bottom = rows;
    for (index_t row = 0; row < rows; row++, to += band->pitch) {
        const index_t at = source ? NAME(fold)(band->edge, band->start + row, band->height) : -1;
        if (at < 0) {
            for (index_t i = 0; i < band->pitch; i++)
                to[i] = *band->constant;
            continue;
        }
        const REAL *from = source + at * step;
        if (high > low)
            NAME(copy_run)(to + low, from + line->first + low, high - low);
        for (index_t i = low > 0 ? 0 : high; i < band->pitch; i = i + 1 == low ? high : i + 1)
            to[i] = line->cell[i] < 0 ? *band->constant : from[line->cell[i]];
    }
}

static NAME(row_cells) NAME(find_row_cells)(const work_t *work, index_t *cell)
{
    const piece_t *piece = work->piece;
    const index_t n = NAME(row_pitch)(work), size = piece->axis[2].size;
    NAME(row_cells) line = {NAME(first_cell)(work, 2, 0), 0, 0, cell};
    NAME(cells_there)(line.first, n, size, &line.low, &line.high);
    for (index_t i = 0; i < n && piece->edge != EDGE_NONE; i++)
        cell[i] = NAME(fold)(piece->edge, line.first + i, size);
    return line;
}

/* A band of the plane that begins at `source`, NULL where there is none but the padding, of a copy of its cells. */
static void NAME(copy_band)(const work_t *work, NAME(reader) *reader, const REAL *source, NAME(band) *band)
{
    const index_t step = band->pitch, rows = band->rows + work->piece->axis[1].taps - 1;
    if (!reader->is_ready) {
        reader->line = NAME(find_row_cells)(work, reader->beside);
        NAME(zero)(NAME(cells_copied)(work), reader->cells);
        reader->is_ready = 1;
    }
    band->has_ends = 0;
    band->cells = reader->cells;
    band->pitch = NAME(row_pitch)(work);
    if (band->edge != EDGE_NONE) {
        NAME(copy_edged)(&reader->line, band, rows, source, step, reader->cells);
        band->edge = EDGE_NONE;
        band->first = 0;
        band->size = band->pitch;
    } else if (source)
        NAME(copy_plane)(&reader->line, band, source, step, reader->cells);
}

/* The row of cells that stands for one beyond the plane. */
static inline __attribute__((always_inline)) const REAL *NAME(row_beyond)(const NAME(band) *band, index_t row)
{
    const index_t at = NAME(fold)(band->edge, band->start + row, band->height);
    return at < 0 ? band->constant : band->plane + at * band->pitch;
}

/* From where the cells that stand before a row and behind it are as far as the band says. */
static inline const REAL *NAME(beside_row)(const NAME(band) *band, const REAL *row)
{
    return band->edge > EDGE_CONSTANT ? row : band->constant;
}

/* A vector of cells and the two behind it, of which vectors from the second and the third on are made. Where it has 64 bytes
   it lies across two cache lines as a rule, for which a processor takes several cycles: so one is loaded, and not three. */
#if BYTES == 64 && defined(__GNUC__) && !defined(__clang__)
#define SHIFTS 1
#else
#define SHIFTS 0
#endif
typedef struct {
    VECTOR cells, behind;
} NAME(three_taps);

static inline __attribute__((always_inline)) NAME(three_taps) NAME(load_three)(const REAL *cells)
{
    if (SHIFTS)
        return (NAME(three_taps)){LOAD(cells), {cells[LANES], cells[LANES + 1]}};
    return (NAME(three_taps)){{0}, {0}};
}

/* The cells under tap x, those from cells + x on. */
static inline __attribute__((always_inline)) VECTOR NAME(under_tap)(const int x, const REAL *cells,
                                                                    const NAME(three_taps) *loaded)
{
#if SHIFTS
    NAME(mask) lanes;
    for (int i = 0; i < LANES; i++)
        lanes[i] = i + x;
    return x == 0 ? loaded->cells : __builtin_shuffle(loaded->cells, loaded->behind, lanes);
#else
    (void)loaded;
    return LOAD(cells + x);
#endif
}

/* A vector with one cell in these lanes, where it has zeros. */
static inline __attribute__((always_inline)) VECTOR NAME(put_in)(VECTOR cells, const REAL *cell, NAME(mask) lanes)
{
    MASK bits;
    __builtin_memcpy(&bits, cell, sizeof(bits));
    return (VECTOR)((NAME(mask))cells | (lanes & bits));
}

/* Whether vectors may read the cells of a band where they lie: what they read more is memory. No row lies before the one
   above it. */
static inline int NAME(may_read)(const work_t *work, const NAME(band) *band, const NAME(reader) *reader)
{
    const index_t wide = (band->width < LANES ? LANES : band->width) + work->piece->axis[2].taps - 1;
    const int reaches_out = band->top > 0 || band->bottom < band->rows + work->piece->axis[1].taps - 1;
    const int is_any = band->edge > EDGE_CONSTANT && reaches_out; /* row of the plane may stand for one beyond it */
    const REAL *first = is_any ? band->plane : band->cells + band->top * band->pitch;
    const index_t rows = is_any ? band->height : band->bottom - band->top;
    return rows <= 0 || (first >= reader->begin && first + (rows - 1) * band->pitch + wide <= reader->limit);
}

/* Of the positions beyond target's edges, of which there is one at most on each side (see in_rows of _depthwise.py), the
   columns that they are added to, and the rows of cells that they meet. There is one before target if it meets the first
   cell under the last tap, and one behind it if it meets the last cell under the first tap. */
static void NAME(find_positions_beside)(const work_t *work, NAME(band) *band, index_t start)
{
    const piece_t *piece = work->piece;
    const index_t *count = piece->count, *at = work->block.start, top = band->start - at[1] - start; /* of target's row 0 */
    band->left = band->right = band->above = band->beneath = -1;
    if (piece->folded == EDGE_NONE || NAME(has_positions_beyond)(piece)) /* of which results are folded */
        return;
    if (top >= -1)
        band->above = -band->start;
    if (top + count[1] < band->height)
        band->beneath = band->height - 1 - band->start;
    if (at[2] == 0 && band->first >= -1) {
        band->left = NAME(fold)(piece->folded, -1, count[2]);
        band->before = -band->first;
    }
    if (at[2] + band->width == count[2] && band->first + band->width < band->size) {
        band->right = NAME(fold)(piece->folded, count[2], count[2]) - at[2];
        band->behind = band->size - 1 - band->first;
    }
    band->to_outermost = NAME(fold)(piece->folded, -1, count[1]) == 0;
}

/* Some rows of positions from `start` on, `most` at a time, of any group: where none of its rows is said. */
static NAME(band) NAME(band_of)(const work_t *work, const NAME(reader) *reader, index_t start, index_t most)
{
    const piece_t *piece = work->piece;
    const index_t left = work->block.extent[1] - start, rows = left < most ? left : most;
    const index_t first = NAME(first_cell)(work, 2, 0), size = piece->axis[2].size, width = work->block.extent[2];
    NAME(band) band = {.rows = rows, .width = width, .first = first, .size = size, .pitch = piece->source_stride[1],
                       .next_pitch = piece->source_stride[1], .below = piece->target_stride[1], .edge = piece->edge,
                       .start = NAME(first_cell)(work, 1, start), .height = piece->axis[1].size,
                       .constant = reader->constant};
    if (reader->source || piece->edge != EDGE_NONE)
        NAME(cells_there)(band.start, rows + piece->axis[1].taps - 1, band.height, &band.top, &band.bottom);
    if (piece->edge > EDGE_CONSTANT) {
        band.before = NAME(fold)(piece->edge, -1, size) - first;
        band.behind = NAME(fold)(piece->edge, size, size) - first;
    }
    NAME(find_positions_beside)(work, &band, start);
    return band;
}

/* Whether under three taps a row has cells beside none but its first position and its last. */
static inline int NAME(has_near_ends)(const NAME(band) *band)
{
    return band->first >= -1 && band->first + band->width + 1 <= band->size;
}

/* A band's cells in one channel of a group, where they lie or, if they are not to be READ there or may not be, copied:
   then the band is a `copied` one. */
static NAME(band) *NAME(read_band)(const work_t *work, NAME(reader) *reader, index_t group, index_t channel,
                                   int is_read, NAME(band) *band, NAME(band) *copied)
{
    const piece_t *piece = work->piece;
    const index_t plane = group * piece->source_group + channel * piece->source_channel;
    const REAL *source = reader->source ? reader->source + plane : NULL;
    band->plane = band->cells = band->next_cells = reader->cells;
    if (source) {
        band->plane = source + band->first;
        band->cells = band->plane + band->start * band->pitch;
        const int many = work->part.channels > 1;
        const index_t next = many ? piece->source_channel : piece->source_group;
        band->next_cells = band->cells + (many || work->part.groups > 1 ? next : band->rows * band->pitch);
    }
    band->has_ends = source != NULL;
    if (source ? is_read && NAME(may_read)(work, band, reader) : band->edge == EDGE_NONE)
        return band;
    *copied = *band;
    NAME(copy_band)(work, reader, source, copied);
    return copied;
}
