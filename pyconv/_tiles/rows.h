/* The way of depthwise convolution where rows of positions fill vectors: neither cells nor results are turned. Rows of
   cells are gone through from the top down, and each adds its products to the results of all rows that meet it, which
   stay in registers until the last of them has. See body.h for the macros. */

/* Vectors of results that registers hold of T rows, beside those of a row of cells and a weight. */
#if ROWS == 8
#define VECTORS_OF(T) (T == 7 ? 3 : 4)
#else
#define VECTORS_OF(T) (T == 5 ? 2 : 3)
#endif

#define LINES (1 << 14) /* bytes of the cells that are worked on at a time: part of L1 */

/* Scratch tells where source is, and holds some rows of a plane of cells, with zeros for the padding beside them; those
   beyond the edge are left out. From one to the next: */
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

/* Elements that these take at most: no more in a block that is smaller, of which more rows fit. */
static inline index_t NAME(scratch_of_rows)(const work_t *work)
{
    const index_t more = work->piece->axis[1].taps - 1, pitch = NAME(row_pitch)(work);
    const index_t all = (work->block.extent[1] + more) * pitch, least = 5 * more * pitch;
    const index_t most = least < LINES / (index_t)sizeof(REAL) ? LINES / (index_t)sizeof(REAL) : least;
    return all < most ? all : most;
}

/* A block is of one sample and one plane, and its rows fill a vector at least. */
static void NAME(layout_rows)(work_t *work)
{
    const part_t *part = &work->part;
    layout_t *layout = &work->layout;
    layout->axis[1] = work->block.extent[2];
    layout->axis[0] = layout->batch = layout->positions = work->block.extent[1] * layout->axis[1];
    layout->pitch = NAME(up)(layout->positions);
    layout->cell = 0;
    layout->scratch = NAME(scratch_of_rows)(work)
        + (index_t)((sizeof(REAL *) + NAME(row_pitch)(work) * sizeof(index_t)) / sizeof(REAL));
    layout->panel = part->groups * part->rows * NAME(depth)(work);
    layout->result = layout->sums = part->groups * part->rows * layout->pitch;
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

static void NAME(offsets_rows)(const work_t *work, index_t *offset)
{
    (void)work, (void)offset;
}

/* panel[group][row][tap], taps in the order of their cells */
static void NAME(pack_rows)(const work_t *work, const void *weight, void *panel)
{
    const piece_t *piece = work->piece;
    const axis_t *y = &piece->axis[1], *x = &piece->axis[2];
    const part_t *part = &work->part;
    REAL *to = panel;
    for (index_t group = 0; group < part->groups; group++)
        for (index_t row = part->row; row < part->row + part->rows; row++) {
            const REAL *from = (const REAL *)weight + group * piece->weight_group + row * piece->weight_row;
            for (index_t j = 0; j < y->taps; j++)
                for (index_t i = 0; i < x->taps; i++)
                    *to++ = from[(y->tap_step < 0 ? y->taps - 1 - j : j) * piece->weight_stride[1]
                                 + (x->tap_step < 0 ? x->taps - 1 - i : i) * piece->weight_stride[2]];
        }
}

/* What is added up of one plane: rows of cells that there are, and where results go; and what follows in source, which
   is asked for meanwhile. */
typedef struct {
    index_t top, bottom, pitch, rows, width, result_pitch, source_pitch;
    const REAL *cells, *next;
    REAL *result;
} NAME(plane);

/* V vectors of the positions of every row, those from at[v] on. Of T rows of results that wait, row t has had the
   products of T - 1 - t rows of taps less than all: sum[t][v] is that of the row of cells less t. A tap's vector of
   cells is loaded for T rows and a weight for V vectors, so loads are (2 V T + T T) for V T T products, those across two
   lines counted twice. */
static inline __attribute__((always_inline)) void NAME(go_down)(const int T, const int V, const NAME(plane) *plane,
                                                                const REAL *weight, const index_t *at)
{
    const index_t top = plane->top, bottom = plane->bottom, last = plane->rows + T - 1, pitch = plane->pitch;
    const index_t result_pitch = plane->result_pitch;
    const REAL *from[4], *next = plane->next;
    REAL *to[4];
    VECTOR sum[7 * 4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        from[v] = plane->cells + top * pitch + at[v];
        to[v] = plane->result + at[v];
    }
#pragma GCC unroll 28
    for (int i = 0; i < T * V; i++)
        sum[i] = (VECTOR){0};
    for (index_t row = 0; row < last; row++, next += plane->source_pitch) {
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            __builtin_prefetch(next + at[v], 0, 2);
        if (row >= top && row < bottom) {
#pragma GCC unroll 7
            for (int x = 0; x < T; x++) {
                VECTOR cell[4];
#pragma GCC unroll 4
                for (int v = 0; v < V; v++)
                    cell[v] = LOAD(from[v] + x);
#pragma GCC unroll 7
                for (int t = 0; t < T; t++) {
                    const REAL w = weight[t * T + x];
#pragma GCC unroll 4
                    for (int v = 0; v < V; v++)
                        sum[t * V + v] += w * cell[v];
                }
            }
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                from[v] += pitch;
        }
        if (row >= T - 1)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++, to[v - 1] += result_pitch)
                STORE(to[v], sum[(T - 1) * V + v]);
#pragma GCC unroll 28
        for (int i = T * V - 1; i >= 0; i--)
            sum[i] = i >= V ? sum[i - V] : (VECTOR){0};
    }
}

/* Vectors of a row, which fills one: the last ends with it, whatever of it the one before has too. */
#define GO_DOWN(T)                                                                                                    \
    static void NAME(go_down_##T)(const NAME(plane) *plane, const REAL *weight)                                       \
    {                                                                                                                 \
        const index_t vectors = (plane->width + LANES - 1) / LANES;                                                   \
        const index_t parts = (vectors + VECTORS_OF(T) - 1) / VECTORS_OF(T);                                          \
        for (index_t part = 0; part < parts; part++) {                                                                \
            const index_t first = vectors * part / parts, wide = vectors * (part + 1) / parts - first;                \
            index_t at[4];                                                                                            \
            for (index_t v = 0; v < wide; v++)                                                                        \
                at[v] = first + v == vectors - 1 ? plane->width - LANES : (first + v) * LANES;                        \
            switch (wide) {                                                                                           \
                CASE(T, 1) CASE(T, 2) CASE(T, 3) CASE(T, 4)                                                           \
            }                                                                                                         \
        }                                                                                                             \
    }
#define CASE(T, V)                                                                                                    \
    case V:                                                                                                           \
        if (V <= VECTORS_OF(T))                                                                                       \
            NAME(go_down)(T, V, plane, weight, at);                                                                   \
        break;
GO_DOWN(3) GO_DOWN(5)
#if ROWS == 8
GO_DOWN(7)
#endif
#undef GO_DOWN
#undef CASE

/* A row of scratch: it begins with cell `first` of the axis, and [low, high) of it are there. Where source has cells
   beyond its edges, which cell each other place holds, -1 for the constant. Of a patch, all are there, and the constant
   is none. */
typedef struct {
    index_t first, low, high;
    const index_t *cell;
    REAL constant;
} NAME(row_cells);

/* Rows from cell y on to where zeros lie beside them. */
static void NAME(copy_plane)(const piece_t *piece, const NAME(row_cells) *line, const NAME(plane) *plane,
                             const REAL *source, index_t y, REAL *to)
{
    const REAL *from = source + (y + plane->top) * piece->source_stride[1] + line->first + line->low;
    for (index_t row = plane->top; row < plane->bottom; row++, from += piece->source_stride[1])
        NAME(store_dense)(to + row * plane->pitch + line->low, from, line->high - line->low, 0, 0);
}

/* The same with what stands for the cells beyond; of no plane, all of it is the constant. */
static void NAME(copy_edged)(const piece_t *piece, const NAME(row_cells) *line, NAME(plane) *plane, const REAL *source,
                             index_t y, index_t rows, REAL *to)
{
    const index_t low = line->low, high = line->high;
    plane->top = 0;
    plane->bottom = rows;
    for (index_t row = 0; row < rows; row++, to += plane->pitch) {
        const index_t at = source ? NAME(fold)(piece->edge, y + row, piece->axis[1].size) : -1;
        if (at < 0) {
            for (index_t i = 0; i < plane->pitch; i++)
                to[i] = line->constant;
            continue;
        }
        const REAL *from = source + at * piece->source_stride[1];
        if (high > low)
            NAME(store_dense)(to + low, from + line->first + low, high - low, 0, 0);
        for (index_t i = low > 0 ? 0 : high; i < plane->pitch; i = i + 1 == low ? high : i + 1)
            to[i] = line->cell[i] < 0 ? line->constant : from[line->cell[i]];
    }
}

/* The products of one group's plane of cells, for each of its rows of the weight. */
static void NAME(multiply_plane)(const work_t *work, NAME(plane) *plane, const REAL *weight, REAL *result)
{
    const index_t depth = NAME(depth)(work), taps = work->piece->axis[1].taps;
    for (index_t row = 0; row < work->part.rows; row++, weight += depth) {
        plane->result = result + row * work->layout.pitch;
        if (taps == 3)
            NAME(go_down_3)(plane, weight);
        else if (taps == 5)
            NAME(go_down_5)(plane, weight);
#if ROWS == 8
        else
            NAME(go_down_7)(plane, weight);
#endif
    }
}

/* What rows of positions read, of which `most` are done at a time -> `cells`: of the plane that begins at `source`, NULL
   where there is none, but the padding. */
static NAME(plane) NAME(find_plane)(const work_t *work, const NAME(row_cells) *line, index_t start, index_t most,
                                    const REAL *source, REAL *cells)
{
    const piece_t *piece = work->piece;
    const index_t step = piece->source_stride[1], y = NAME(first_cell)(work, 1, start);
    const index_t left = work->block.extent[1] - start;
    const index_t here = left < most ? left : most, rows = here + piece->axis[1].taps - 1;
    NAME(plane) plane = {0, 0, NAME(row_pitch)(work), here, work->block.extent[2], work->layout.axis[1], step, cells,
                         source ? source + (y + rows) * step + line->first : cells, NULL};
    NAME(cells_there)(y, rows, piece->axis[1].size, &plane.top, &plane.bottom);
    if (piece->edge != EDGE_NONE)
        NAME(copy_edged)(piece, line, &plane, source, y, rows, cells);
    else if (source)
        NAME(copy_plane)(piece, line, &plane, source, y, cells);
    else
        plane.top = plane.bottom = 0;
    return plane;
}

/* The cells of a group's plane in source, NULL where the block meets none. */
static inline const REAL *NAME(source_plane)(const work_t *work, const REAL *source, index_t group)
{
    const index_t at = NAME(plane_of)(work);
    return at < 0 ? NULL : source + group * work->piece->source_group + work->block.sample * work->piece->source_batch
        + at * work->piece->source_stride[0];
}

static NAME(row_cells) NAME(find_row_cells)(const work_t *work, index_t *cell)
{
    const piece_t *piece = work->piece;
    const index_t n = NAME(row_pitch)(work), size = piece->axis[2].size;
    NAME(row_cells) line = {NAME(first_cell)(work, 2, 0), 0, 0, cell, 0};
    NAME(cells_there)(line.first, n, size, &line.low, &line.high);
    __builtin_memcpy(&line.constant, piece->edge_value, sizeof(REAL));
    for (index_t i = 0; i < n && piece->edge != EDGE_NONE; i++)
        cell[i] = NAME(fold)(piece->edge, line.first + i, size);
    return line;
}

static void NAME(multiply_rows)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                void *result, int accumulate)
{
    const index_t rows = work->part.rows, weights = rows * NAME(depth)(work), most = NAME(rows_at_once)(work);
    const REAL *source = *(const REAL **)scratch;
    index_t *beside = (index_t *)((const REAL **)scratch + 1);
    REAL *cells = (REAL *)(beside + NAME(row_pitch)(work));
    const NAME(row_cells) line = NAME(find_row_cells)(work, beside);
    (void)offset, (void)accumulate; /* the one channel is there */
    NAME(zero)(NAME(scratch_of_rows)(work), cells);
    for (index_t group = 0; group < work->part.groups; group++) {
        const REAL *from = NAME(source_plane)(work, source, group);
        REAL *to = (REAL *)result + group * rows * work->layout.pitch;
        for (index_t y = 0; y < work->block.extent[1]; y += most) {
            NAME(plane) plane = NAME(find_plane)(work, &line, y, most, from, cells);
            NAME(multiply_plane)(work, &plane, (const REAL *)panel + group * weights, to + y * work->layout.axis[1]);
        }
    }
}
