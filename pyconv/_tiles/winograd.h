/* Winograd's algorithm as a way of working: as register tiles, with the arrays of one frequency after the other. See
   body.h for the macros. */

#include "winograd_lines.h"
#include "winograd_cells.h"
#include "winograd_narrow.h"
#include "winograd_runs.h"
#include "winograd_panels.h"

/* The piece that the products of one frequency are: along the transformed axes a position has one tap. */
static inline work_t NAME(of_frequency)(const work_t *work, piece_t *piece)
{
    work_t one = *work;
    *piece = *work->piece;
    piece->axis[1].taps = piece->axis[2].taps = 1;
    one.piece = piece;
    return one;
}

static inline index_t NAME(frequencies)(const work_t *work)
{
    const NAME(tiling) t = NAME(tiling_of)(work->piece);
    return t.y * t.x;
}

/* Between two frequencies, or they would all fall into the same sets of a cache where a power of two lies between. */
#define APART 32

/* The layout of one frequency, with scratch for all of them; gives back how many there are. */
static index_t NAME(layout_frequencies)(work_t *work, void (*layout_one)(work_t *))
{
    piece_t piece;
    work_t one = NAME(of_frequency)(work, &piece);
    const index_t frequencies = NAME(frequencies)(work);
    layout_one(&one);
    work->layout = one.layout;
    work->layout.set += APART;
    work->layout.scratch = frequencies * work->layout.set + LANES;
    return frequencies;
}

/* A panel. A task that packs its own weights notes here where they lie, not NULL: it then packs some rows at a time and
   multiplies them while they are in L2. */
typedef struct {
    const REAL *weight;
    REAL *packed;
    index_t unused[6]; /* so that what is packed begins at a line */
} NAME(frequencies_panel);

/* Elements of such rows, and of cells that each of these runs reads again: of more than stay in L2 beside them all rows
   are packed at once. */
#define ROWS_TOGETHER ((index_t)((1 << 18) / sizeof(REAL)))
#define CELLS_NEAR ((index_t)((3 << 18) / sizeof(REAL)))

static void NAME(layout_winograd)(work_t *work)
{
    layout_t *layout = &work->layout;
    const index_t frequencies = NAME(layout_frequencies)(work, NAME(layout));
    layout->panel = frequencies * (layout->panel + APART) + sizeof(NAME(frequencies_panel)) / sizeof(REAL);
    layout->result = layout->sums = frequencies * (layout->result + APART);
}

/* For grad_weight the gradient of all taps comes behind the sums. */
static void NAME(layout_winograd_turned)(work_t *work)
{
    layout_t *layout = &work->layout;
    const index_t frequencies = NAME(layout_frequencies)(work, NAME(layout_turned));
    layout->panel = frequencies * (layout->panel + APART);
    layout->sums = frequencies * (layout->result + APART);
    layout->result = layout->sums + NAME(depth)(work) * layout->pitch;
}

static void NAME(offsets_winograd)(const work_t *work, index_t *offset)
{
    piece_t piece;
    const work_t one = NAME(of_frequency)(work, &piece);
    NAME(offsets)(&one, offset);
}

static void NAME(unroll_winograd)(const work_t *work, const void *source, const void *begin, const void *limit,
                                  void *scratch)
{
    void (*transform)(const piece_t *, const block_t *, const layout_t *, const void *, const void *, const void *,
                      index_t, void *) = NAME(is_narrow)(work->piece, &work->block) ? NAME(transform_narrow)
                                                                                    : NAME(transform_source);
    transform(work->piece, &work->block, &work->layout, source, begin, limit, work->part.channels, scratch);
}

static void NAME(pack_winograd)(const work_t *work, const void *weight, void *panel)
{
    NAME(frequencies_panel) *own = panel;
    *own = (NAME(frequencies_panel)){work->block.samples > 0 ? weight : NULL, (REAL *)(own + 1), {0}};
    if (own->weight == NULL)
        NAME(transform_weight)(work->piece, weight, work->part.row, work->part.rows, work->part.channels, own->packed,
                               APART);
}

/* result (+)= the products of some rows, which `panel` has, in every frequency. */
static void NAME(multiply_frequencies)(const work_t *work, index_t row, index_t rows, const REAL *panel,
                                       const index_t *offset, const REAL *scratch, REAL *result, int accumulate)
{
    piece_t piece;
    const work_t one = NAME(of_frequency)(work, &piece);
    const layout_t *layout = &work->layout;
    const index_t depth = NAME(depth)(&one), set = work->part.rows * layout->pitch + APART;
    result += row * layout->pitch;
    for (index_t f = 0; f < NAME(frequencies)(work); f++)
        NAME(multiply_one)(rows, layout->positions, depth, panel + f * (rows * depth + APART), 0, 0, offset,
                           scratch + f * layout->set, result + f * set, layout->pitch, accumulate, 0, 0, 1);
}

static void NAME(multiply_winograd)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                    void *result, int accumulate)
{
    const NAME(frequencies_panel) *own = panel;
    const part_t *part = &work->part;
    const index_t frequencies = NAME(frequencies)(work), depth = part->channels * work->piece->axis[0].taps;
    const index_t most = own->weight == NULL || frequencies * work->layout.set > CELLS_NEAR
        ? part->rows : NAME(most)(ROWS_TOGETHER / (frequencies * depth) / ROWS, 1) * ROWS;
    for (index_t row = 0, rows; row < part->rows; row += rows) {
        rows = NAME(least)(most, part->rows - row);
        if (own->weight != NULL)
            NAME(transform_weight)(work->piece, own->weight, part->row + row, rows, part->channels, own->packed, APART);
        NAME(multiply_frequencies)(work, row, rows, own->packed, offset, scratch, result, accumulate);
    }
}

static void NAME(store_winograd)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                                 char *doubtful)
{
    const part_t *part = &work->part;
    NAME(transform_result)(work->piece, &work->block, result, part->rows * work->layout.pitch + APART,
                           work->layout.pitch, part->row, part->rows, bias, target, accumulate, doubtful);
}

#ifndef WHOLE

static void NAME(turn_winograd)(const work_t *work, const void *target, void *turned)
{
    const part_t *part = &work->part;
    NAME(transform_target)(work->piece, &work->block, (const REAL *)target + part->row * work->piece->target_channel,
                           part->rows, turned, work->layout.positions * work->layout.pitch + APART);
}

static void NAME(correlate_one)(index_t rows, index_t columns, index_t positions, const REAL *panel,
                                const index_t *offset, const REAL *scratch, REAL *result, index_t pitch,
                                int accumulate)
{
    for (index_t column = 0, wide; column < columns; column += wide * LANES) {
        wide = NAME(panel)(columns - column);
        for (index_t row = 0; row < rows;) {
            const index_t tall = NAME(taller)(rows - row, wide);
            NAME(tiles)[tall][wide - 1][1](positions, scratch, offset + row, panel, wide * LANES,
                                           result + row * pitch + column, 0, pitch, accumulate);
            row += tall;
        }
        panel += wide * LANES * positions;
    }
}

static void NAME(correlate_winograd)(const work_t *work, const void *turned, const index_t *offset,
                                     void *scratch, void *result, int accumulate)
{
    piece_t piece;
    const work_t one = NAME(of_frequency)(work, &piece);
    const layout_t *layout = &work->layout;
    const index_t depth = NAME(depth)(&one);
    for (index_t f = 0; f < NAME(frequencies)(work); f++)
        NAME(correlate_one)(depth, work->part.rows, layout->positions,
                            (const REAL *)turned + f * (layout->positions * layout->pitch + APART), offset,
                            (const REAL *)scratch + f * layout->set,
                            (REAL *)result + f * (depth * layout->pitch + APART), layout->pitch, accumulate);
}

static void NAME(store_weight_winograd)(const work_t *work, void *result, const void *bias, void *weight,
                                        int accumulate, char *doubtful)
{
    piece_t piece;
    const work_t one = NAME(of_frequency)(work, &piece);
    const index_t depth = NAME(depth)(&one), pitch = work->layout.pitch;
    REAL *gradient = (REAL *)result + work->layout.sums;
    NAME(transform_gradient)(work->piece, result, depth * pitch + APART, pitch, depth, gradient);
    NAME(store_weight)(work, gradient, bias, weight, accumulate, doubtful);
}

#endif
