/* The way of depthwise convolution where rows of positions fill vectors: neither cells nor results are turned. Rows of
   cells are gone through from the top down, and each adds its products to the results of all rows that meet it, which
   stay in registers until the last of them has. See bands.h for how cells are read, and body.h for the macros. */

/* Vectors of results that registers hold of T rows, beside those of a row of cells and a weight. */
#if ROWS == 8
#define VECTORS_OF(T) (T == 7 ? 3 : 4)
#else
#define VECTORS_OF(T) (T == 5 ? 2 : 3)
#endif

/* A block is of one sample and one plane, and its rows fill a vector at least. */
static void NAME(layout_rows)(work_t *work)
{
    const part_t *part = &work->part;
    layout_t *layout = &work->layout;
    layout->axis[1] = work->block.extent[2];
    layout->axis[0] = layout->batch = layout->positions = work->block.extent[1] * layout->axis[1];
    layout->pitch = NAME(up)(layout->positions);
    layout->cell = 0;
    layout->scratch = NAME(reader_scratch)(work);
    layout->panel = part->groups * part->rows * NAME(depth)(work);
    layout->result = layout->sums = part->groups * part->rows * layout->pitch;
}

static void NAME(offsets_rows)(const work_t *work, index_t *offset)
{
    (void)work, (void)offset;
}

/* panel[group][row][channel][tap], taps in the order of their cells */
static void NAME(pack_rows)(const work_t *work, const void *weight, void *panel)
{
    const piece_t *piece = work->piece;
    const axis_t *y = &piece->axis[1], *x = &piece->axis[2];
    const part_t *part = &work->part;
    REAL *to = panel;
    for (index_t group = 0; group < part->groups; group++)
        for (index_t row = part->row; row < part->row + part->rows; row++)
            for (index_t channel = 0; channel < part->channels; channel++) {
                const REAL *from = (const REAL *)weight + group * piece->weight_group + row * piece->weight_row
                    + channel * piece->weight_channel;
                for (index_t j = 0; j < y->taps; j++)
                    for (index_t i = 0; i < x->taps; i++)
                        *to++ = from[(y->tap_step < 0 ? y->taps - 1 - j : j) * piece->weight_stride[1]
                                     + (x->tap_step < 0 ? x->taps - 1 - i : i) * piece->weight_stride[2]];
            }
}

/* Of a row's first vector of cells under the first of three taps, and of its last under the last: the lanes that are kept,
   and those that are not, as their cell lies beside the row. */
typedef struct {
    NAME(mask) first, last, before, behind;
} NAME(kept);

/* The same of vectors of columns from `first` and `last` on: all lanes of one that is not at that end of the row. */
static inline __attribute__((always_inline)) NAME(kept) NAME(find_kept)(const NAME(band) *band, index_t first,
                                                                        index_t last)
{
    const index_t before = -band->first - first, there = band->size - band->first - last - 2;
    return (NAME(kept)){NAME(lanes_between)(before, LANES), NAME(lanes_between)(0, there),
                        NAME(lanes_between)(0, before), NAME(lanes_between)(there, LANES)};
}

/* V vectors of cells under tap x of T, those from from[v] + x on; where ENDS are among them, with zeros put into them or
   what stands there, so far from `beside` as the band says. */
static inline __attribute__((always_inline)) void NAME(load_cells)(const int T, const int V, const int ENDS, const int x,
                                                                   const NAME(band) *band, const NAME(kept) *kept,
                                                                   const REAL *const *from,
                                                                   const NAME(three_taps) *loaded, const REAL *beside,
                                                                   VECTOR *cell)
{
#pragma GCC unroll 4
    for (int v = 0; v < V; v++)
        cell[v] = T == 3 ? NAME(under_tap)(x, from[v], loaded + v) : LOAD(from[v] + x);
    if (ENDS && x == 0)
        cell[0] = NAME(keep)(cell[0], kept->first);
    if (ENDS && x == T - 1)
        cell[V - 1] = NAME(keep)(cell[V - 1], kept->last);
    if (ENDS == CELLS_BESIDE && x == 0)
        cell[0] = NAME(put_in)(cell[0], beside + band->before, kept->before);
    if (ENDS == CELLS_BESIDE && x == T - 1)
        cell[V - 1] = NAME(put_in)(cell[V - 1], beside + band->behind, kept->behind);
}

/* A function of its own, which leaves the sums in their registers. */
static const REAL *__attribute__((noinline)) NAME(find_row_beyond)(const NAME(band) *band, index_t row)
{
    return NAME(row_beyond)(band, row);
}

/* V vectors of the positions of every row, those from at[v] on. Of T rows of results that wait, row t has had the
   products of T - 1 - t rows of taps less than all: sum[t][v] is that of the row of cells less t. A tap's vector of
   cells is loaded for T rows and a weight for V vectors, so loads are (2 V T + T T) for V T T products, those across two
   lines counted twice. What follows in source is asked for meanwhile. A position beside target meets the cell at its end
   of a row, which is multiplied into the column that it is added to. */
static inline __attribute__((always_inline)) void NAME(go_down)(const int T, const int V, const int ENDS,
                                                                const NAME(band) *band, const REAL *weight,
                                                                const index_t *columns)
{
    const index_t top = band->top, bottom = band->bottom, last = band->rows + T - 1;
    const index_t pitch = band->pitch, next_pitch = band->next_pitch, below = band->below;
    const index_t before = band->before, behind = band->behind;
    const REAL *from[4], *line = band->cells, *next = band->next_cells;
    REAL *to = band->result;
    index_t at[4];
    NAME(kept) kept;
    NAME(mask) left, right; /* the columns that positions beside the row are added to */
    VECTOR sum[7 * 4];
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        at[v] = columns[v];
        from[v] = line + at[v];
    }
    if (ENDS)
        kept = NAME(find_kept)(band, at[0], at[V - 1]);
    if (ENDS == POSITIONS_BESIDE) {
        left = NAME(lane)(band->left - at[0]);
        right = NAME(lane)(band->right - at[V - 1]);
    }
#pragma GCC unroll 28
    for (int i = 0; i < T * V; i++)
        sum[i] = (VECTOR){0};
    for (index_t row = 0; row < last; row++, line += pitch, next += next_pitch) {
        const int is_there = row >= top && row < bottom;
        const REAL *here = ENDS == CELLS_BESIDE && !is_there ? NAME(find_row_beyond)(band, row) : line, *cells[4];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++, from[v - 1] += pitch) {
            __builtin_prefetch(next + at[v], 0, 2);
            cells[v] = ENDS == CELLS_BESIDE ? here + at[v] : from[v];
        }
        /* here is never NULL: unasked, GCC loads the weights of the next row ahead, to the stack */
        if (ENDS == CELLS_BESIDE ? here != NULL : is_there) {
            NAME(three_taps) loaded[4];
#pragma GCC unroll 4
            for (int v = 0; v < V && T == 3; v++)
                loaded[v] = NAME(load_three)(cells[v]);
#pragma GCC unroll 7
            for (int x = 0; x < T; x++) {
                VECTOR cell[4], beside = {0};
                NAME(load_cells)(T, V, ENDS, x, band, &kept, cells, loaded, ENDS ? NAME(beside_row)(band, here) : NULL, cell);
                if (ENDS == POSITIONS_BESIDE && x == 0)
                    beside = NAME(put_in)(beside, line + behind, right);
                if (ENDS == POSITIONS_BESIDE && x == T - 1)
                    beside = NAME(put_in)(beside, line + before, left);
#pragma GCC unroll 7
                for (int t = 0; t < T; t++) {
                    const REAL w = weight[t * T + x];
#pragma GCC unroll 4
                    for (int v = 0; v < V; v++)
                        sum[t * V + v] += w * cell[v];
                    if (ENDS == POSITIONS_BESIDE && x == 0)
                        sum[t * V + V - 1] += w * beside;
                    if (ENDS == POSITIONS_BESIDE && x == T - 1)
                        sum[t * V] += w * beside;
                }
            }
        }
        if (row >= T - 1) {
            VECTOR *done = sum + (T - 1) * V;
            if (band->adds) /* to all before one is stored: the last vector may have lanes of the one before */
#pragma GCC unroll 4
                for (int v = 0; v < V; v++)
                    done[v] += LOAD(to + at[v]);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                STORE(to + at[v], done[v]);
            to += below;
        }
#pragma GCC unroll 28
        for (int i = T * V - 1; i >= 0; i--)
            sum[i] = i >= V ? sum[i - V] : (VECTOR){0};
    }
}

/* Functions of their own, as registers are then shared out for each. */
#define DOWN(T, V, ENDS)                                                                                              \
    static void __attribute__((noinline)) NAME(go_down_##T##_##V##_##ENDS)(                                           \
        const NAME(band) *band, const REAL *weight, const index_t *at)                                                \
    {                                                                                                                 \
        NAME(go_down)(T, V, ENDS, band, weight, at);                                                                  \
    }
#define DOWN_ENDS(V) DOWN(3, V, NO_ENDS) DOWN(3, V, ZEROS_BESIDE) DOWN(3, V, CELLS_BESIDE) DOWN(3, V, POSITIONS_BESIDE)
DOWN_ENDS(1) DOWN_ENDS(2) DOWN_ENDS(3) DOWN(5, 1, NO_ENDS) DOWN(5, 2, NO_ENDS)
#if ROWS == 8
DOWN_ENDS(4) DOWN(5, 3, NO_ENDS) DOWN(5, 4, NO_ENDS) DOWN(7, 1, NO_ENDS) DOWN(7, 2, NO_ENDS) DOWN(7, 3, NO_ENDS)
#endif
#undef DOWN_ENDS
#undef DOWN

typedef void (*NAME(down_function))(const NAME(band) *, const REAL *, const index_t *);
#define OF(T, V, ENDS) NAME(go_down_##T##_##V##_##ENDS)
#if ROWS == 8
#define OF_THREE(ENDS) {OF(3, 1, ENDS), OF(3, 2, ENDS), OF(3, 3, ENDS), OF(3, 4, ENDS)}
#else
#define OF_THREE(ENDS) {OF(3, 1, ENDS), OF(3, 2, ENDS), OF(3, 3, ENDS)}
#endif
/* Of 3, 5 and 7 taps, of which only 3 are not copied; of what is put in; of vectors. */
static const NAME(down_function) NAME(downs)[3][4][4] = {
    {OF_THREE(NO_ENDS), OF_THREE(ZEROS_BESIDE), OF_THREE(CELLS_BESIDE), OF_THREE(POSITIONS_BESIDE)},
#if ROWS == 8
    {{OF(5, 1, NO_ENDS), OF(5, 2, NO_ENDS), OF(5, 3, NO_ENDS), OF(5, 4, NO_ENDS)}},
    {{OF(7, 1, NO_ENDS), OF(7, 2, NO_ENDS), OF(7, 3, NO_ENDS)}},
#else
    {{OF(5, 1, NO_ENDS), OF(5, 2, NO_ENDS)}},
#endif
};
#undef OF_THREE
#undef OF

/* Of a row of positions above target or beneath it, which meets one row of cells, under one row of weights: its sums are
   added to a row of results, if both are in the band, whose own cells' products are there. The last
   vector has lanes of the one before, and so is read before that is stored. */
static void NAME(add_row_beyond)(const NAME(band) *band, index_t row, index_t result, const REAL *weight)
{
    const index_t width = band->width;
    if (row < band->top || row >= band->bottom || result < 0 || result >= band->rows)
        return;
    const REAL *line = band->cells + row * band->pitch;
    REAL *to = band->result + result * band->below, *to_last = to;
    VECTOR last = LOAD(to);
    for (index_t first = 0; first < width; first += LANES) {
        const index_t at = first + LANES < width ? first : width - LANES;
        const REAL *from = line + at;
        const NAME(kept) kept = NAME(find_kept)(band, at, at);
        const NAME(three_taps) loaded = NAME(load_three)(from);
        VECTOR sum = LOAD(to + at);
#pragma GCC unroll 3
        for (int x = 0; x < 3; x++) {
            VECTOR cell;
            NAME(load_cells)(3, 1, ZEROS_BESIDE, x, band, &kept, &from, &loaded, NULL, &cell);
            sum += weight[x] * cell;
        }
        if (band->left >= 0)
            sum += weight[2] * NAME(put_in)((VECTOR){0}, line + band->before, NAME(lane)(band->left - at));
        if (band->right >= 0)
            sum += weight[0] * NAME(put_in)((VECTOR){0}, line + band->behind, NAME(lane)(band->right - at));
        STORE(to_last, last);
        last = sum;
        to_last = to + at;
    }
    STORE(to_last, last);
}

/* The products of one channel's band of cells, for each of its rows of the weight. Of the vectors of a row, which fills
   one, the last ends with it, whatever of it the one before has too. */
static void NAME(multiply_band)(const work_t *work, NAME(band) *band, const REAL *weight, REAL *result)
{
    const index_t taps = work->piece->axis[1].taps, width = band->width, vectors = (width + LANES - 1) / LANES;
    const index_t most = taps == 3 ? VECTORS_OF(3) : taps == 5 ? VECTORS_OF(5) : VECTORS_OF(7);
    const index_t parts = (vectors + most - 1) / most;
    const int before = band->has_ends && band->first < 0;
    const int behind = band->has_ends && band->first + width + taps - 1 > band->size;
    for (index_t row = 0; row < work->part.rows; row++, weight += NAME(depth)(work)) {
        band->result = result + row * work->layout.pitch;
        for (index_t part = 0; part < parts; part++) {
            const index_t first = vectors * part / parts, wide = vectors * (part + 1) / parts - first;
            const int has_ends = (before && part == 0) || (behind && part == parts - 1);
            const int has_more = (band->left >= 0 && part == 0) || (band->right >= 0 && part == parts - 1);
            const int of_cells = band->edge != EDGE_NONE ? CELLS_BESIDE : has_ends ? ZEROS_BESIDE : NO_ENDS;
            const int ends = has_more ? POSITIONS_BESIDE : of_cells;
            index_t at[4];
            for (index_t v = 0; v < wide; v++)
                at[v] = first + v == vectors - 1 ? width - LANES : (first + v) * LANES;
            NAME(downs)[taps / 2 - 1][ends][wide - 1](band, weight, at);
        }
        NAME(add_row_beyond)(band, band->above, band->above - band->to_outermost, weight + 2 * taps);
        NAME(add_row_beyond)(band, band->beneath, band->beneath - (band->to_outermost ? 1 : 2), weight);
    }
}

static void NAME(multiply_rows)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                void *result, int accumulate)
{
    const index_t rows = work->part.rows, weights = rows * NAME(depth)(work), most = NAME(rows_at_once)(work);
    const index_t taps = NAME(depth)(work) / work->part.channels;
    NAME(reader) reader = NAME(open_reader)(work, scratch);
    (void)offset;
    for (index_t y = 0; y < work->block.extent[1]; y += most) {
        NAME(band) band = NAME(band_of)(work, &reader, y, most), copied;
        const int is_read = work->piece->axis[2].taps == 3 && NAME(has_near_ends)(&band);
        band.below = work->layout.axis[1];
        for (index_t group = 0; group < work->part.groups; group++)
            for (index_t channel = 0; channel < work->part.channels; channel++) {
                band.adds = accumulate || channel > 0;
                NAME(band) *own = NAME(read_band)(work, &reader, group, channel, is_read, &band, &copied);
                NAME(multiply_band)(work, own, (const REAL *)panel + group * weights + channel * taps,
                                    (REAL *)result + group * rows * work->layout.pitch + y * band.below);
            }
    }
}
