/* Few channels in many groups, as in depthwise convolution: a lane is a group. A cell is a vector then, and so are a
   weight and a result; products are made lane by lane, from aligned memory, with nothing computed twice or in vain.
   In scratch lies the box of all cells that a block reads, whatever its stride. See body.h for the macros. */

#define FEW 4 /* cells that are taken one by one, as turning a square takes longer */

static inline index_t NAME(box)(const piece_t *piece, const block_t *block, int a)
{
    const axis_t *axis = &piece->axis[a];
    return axis->step * (block->extent[a] - 1) + 1 + (axis->taps - 1) * (axis->tap_step < 0 ? -axis->tap_step
                                                                                              : axis->tap_step);
}

/* The first cell of the box along an axis, seen from position 0 of the block under tap 0. */
static inline index_t NAME(back)(const axis_t *axis)
{
    return axis->tap_step < 0 ? axis->tap_step * (axis->taps - 1) : 0;
}

static void NAME(layout_direct)(work_t *work)
{
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    layout_t *layout = &work->layout;
    layout->axis[1] = NAME(box)(work->piece, block, 2) * LANES;
    layout->axis[0] = NAME(box)(work->piece, block, 1) * layout->axis[1];
    layout->batch = NAME(box)(work->piece, block, 0) * layout->axis[0];
    layout->channel = block->samples * layout->batch;
    layout->positions = block->samples * block->extent[0] * block->extent[1] * block->extent[2];
    layout->pitch = layout->positions * LANES;
    layout->scratch = part->channels * layout->channel;
    layout->panel = part->rows * NAME(depth)(work) * LANES;
    layout->result = layout->sums = part->rows * layout->pitch;
}

static void NAME(offsets_direct)(const work_t *work, index_t *offset)
{
    const axis_t *z = &work->piece->axis[0], *y = &work->piece->axis[1], *x = &work->piece->axis[2];
    const layout_t *layout = &work->layout;
    for (index_t c = 0; c < work->part.channels; c++)
        for (index_t tz = 0; tz < z->taps; tz++)
            for (index_t ty = 0; ty < y->taps; ty++)
                for (index_t tx = 0; tx < x->taps; tx++)
                    *offset++ = c * layout->channel + (z->tap_step * tz - NAME(back)(z)) * layout->axis[0]
                        + (y->tap_step * ty - NAME(back)(y)) * layout->axis[1]
                        + (x->tap_step * tx - NAME(back)(x)) * LANES;
}

/* LANES cells from `at` of each of `groups` planes, turned: vectors of lanes; of a cut square only the first `here`. */
static inline __attribute__((always_inline)) void NAME(load_square)(const REAL *at, index_t plane, index_t groups,
                                                                    index_t here, const REAL *limit, VECTOR *square)
{
    if (groups == LANES && limit - (at + (LANES - 1) * plane) >= LANES) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            square[i] = LOAD(at + i * plane);
    } else {
        REAL cut[16 * LANES] = {0};
        for (index_t i = 0; i < groups; i++)
            for (index_t j = 0; j < here; j++)
                cut[i * LANES + j] = at[i * plane + j];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            square[i] = LOAD(cut + i * LANES);
    }
    NAME(turn_square)(square);
}

/* n cells of each of `groups` planes, `step` apart -> n vectors; those of all groups may lie side by side. */
static inline void NAME(gather_apart)(const REAL *from, index_t step, index_t plane, index_t groups, index_t n,
                                      REAL *to)
{
    if (plane == 1 && groups == LANES)
        for (index_t q = 0; q < n; q++) {
            __builtin_prefetch(from + (q + 16) * step);
            STORE(to + q * LANES, LOAD(from + q * step));
        }
    else
        for (index_t q = 0; q < n; q++)
            for (index_t i = 0; i < LANES; i++)
                to[q * LANES + i] = i < groups ? from[i * plane + q * step] : 0;
}

/* n cells that lie side by side in each of `groups` planes -> n vectors, `width` of them side by side in scratch, then
   on at the next row. Reads up to a vector more, but not from `limit` on. */
static inline void NAME(gather_lanes)(const REAL *from, index_t plane, index_t groups, index_t n, const REAL *limit,
                                      REAL *to, index_t width, index_t row_pitch)
{
    const index_t left = n % LANES <= FEW ? n % LANES : 0; /* behind the squares */
    index_t x = 0;
    for (index_t q = 0; q < n - left; q += LANES) {
        const index_t here = n - q < LANES ? n - q : LANES;
        VECTOR square[16];
        NAME(load_square)(from + q, plane, groups, here, limit, square);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            if (j == here)
                break;
            STORE(to + x * LANES, square[j]);
            if (++x == width) {
                x = 0;
                to += row_pitch;
            }
        }
    }
    for (index_t q = n - left; q < n; q++) {
        NAME(gather_apart)(from + q, 1, plane, groups, 1, to + x * LANES);
        if (++x == width) {
            x = 0;
            to += row_pitch;
        }
    }
}

/* The cells of a box beyond the edges of source: copies of those that stand for them, here or there, or the constant.
   `source` is cell 0 of the box's channel and sample; the box begins at cell `at`, and [lo, hi) of it is there. */
static void NAME(unroll_edges)(const work_t *work, const REAL *source, const index_t *at, const index_t *lo,
                               const index_t *hi, REAL *box)
{
    const piece_t *piece = work->piece;
    const layout_t *layout = &work->layout;
    const index_t pitch[3] = {layout->axis[0], layout->axis[1], LANES}, *stride = piece->source_stride;
    const index_t cells = layout->axis[1] / LANES;
    REAL value;
    index_t place[3], cell[3];
    __builtin_memcpy(&value, piece->edge_value, sizeof value);
    const VECTOR constant = value - (VECTOR){0};
    for (place[0] = 0; place[0] < layout->batch / pitch[0]; place[0]++)
        for (place[1] = 0; place[1] < pitch[0] / pitch[1]; place[1]++) {
            const int there = place[0] >= lo[0] && place[0] < hi[0] && place[1] >= lo[1] && place[1] < hi[1];
            const index_t from = there ? lo[2] : cells, to = there ? hi[2] : cells;
            for (place[2] = from > 0 ? 0 : to; place[2] < cells; place[2] += place[2] + 1 == from ? to - from + 1 : 1) {
                REAL *at_place = box + place[0] * pitch[0] + place[1] * pitch[1] + place[2] * LANES;
                const REAL *far = source, *near = box;
                int nothing = 0, here = 1;
                for (int a = 0; a < 3; a++) {
                    cell[a] = NAME(fold)(piece->edge, at[a] + place[a], piece->axis[a].size);
                    nothing |= cell[a] < 0;
                    here &= cell[a] - at[a] >= lo[a] && cell[a] - at[a] < hi[a];
                    far += cell[a] * stride[a];
                    near += (cell[a] - at[a]) * pitch[a];
                }
                if (nothing || here)
                    STORE(at_place, nothing ? constant : LOAD(near));
                else
                    NAME(gather_apart)(far, 1, piece->source_group, work->part.groups, 1, at_place);
            }
        }
}

static void NAME(unroll_direct)(const work_t *work, const void *source, const void *begin, const void *limit,
                                void *scratch)
{
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    const layout_t *layout = &work->layout;
    index_t at[3], lo[3], hi[3];
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        at[a] = axis->step * block->start[a] + axis->offset + NAME(back)(axis);
        NAME(cells_there)(at[a], NAME(box)(piece, block, a), axis->size, &lo[a], &hi[a]);
    }
    const index_t width = hi[2] - lo[2], pitch = piece->source_stride[1];
    const int inside = width * LANES == layout->axis[1] && (hi[1] - lo[1]) * layout->axis[1] == layout->axis[0]
        && (hi[0] - lo[0]) * layout->axis[0] == layout->batch;
    const int dense = width == pitch && piece->source_stride[2] == 1;
    (void)begin;
    for (index_t c = 0; c < part->channels; c++)
        for (index_t s = 0; s < block->samples; s++) {
            REAL *box = (REAL *)scratch + c * layout->channel + s * layout->batch;
            if (!inside && piece->edge == EDGE_NONE)
                NAME(zero)(layout->batch, box);
            for (index_t z = lo[0]; z < hi[0] && width > 0; z++)
                for (index_t y = lo[1]; y < hi[1]; y += dense ? hi[1] - lo[1] : 1) {
                    const REAL *from = (const REAL *)source + c * piece->source_channel
                        + (block->sample + s) * piece->source_batch + (at[0] + z) * piece->source_stride[0]
                        + (at[1] + y) * pitch + (at[2] + lo[2]) * piece->source_stride[2];
                    REAL *to = box + z * layout->axis[0] + y * layout->axis[1] + lo[2] * LANES;
                    if (piece->source_stride[2] == 1)
                        NAME(gather_lanes)(from, piece->source_group, part->groups,
                                           dense ? (hi[1] - lo[1]) * width : width, limit, to, width,
                                           layout->axis[1]);
                    else
                        NAME(gather_apart)(from, piece->source_stride[2], piece->source_group, part->groups, width, to);
                }
            if (!inside && piece->edge != EDGE_NONE)
                NAME(unroll_edges)(work, (const REAL *)source + c * piece->source_channel
                                   + (block->sample + s) * piece->source_batch, at, lo, hi, box);
        }
}

/* LANES groups' rows of `depth` weights -> depth vectors, by squares; none is read behind those of the last group. */
static void NAME(pack_lanes)(const REAL *from, index_t group, index_t depth, REAL *to)
{
    const REAL *limit = from + (LANES - 1) * group + depth;
    for (index_t k = 0; k < depth; k += LANES) {
        if (depth >= LANES && depth - k < LANES)
            k = depth - LANES; /* some weights twice, in whole vectors */
        const index_t here = depth - k < LANES ? depth - k : LANES;
        VECTOR square[16];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            const REAL *row = from + i * group + k;
            square[i] = (VECTOR){0};
            if (limit - row >= LANES)
                square[i] = LOAD(row);
            else
                for (index_t j = 0; j < here; j++)
                    square[i][j] = row[j];
        }
        NAME(turn_square)(square);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
            if (j < here)
                STORE(to + (k + j) * LANES, square[j]);
    }
}

/* panel[row][k][lane] */
static void NAME(pack_direct)(const work_t *work, const void *weight, void *panel)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t *stride = piece->weight_stride, depth = NAME(depth)(work);
    REAL *to = panel;
    if (work->part.groups == LANES && NAME(is_dense)(piece)) {
        for (index_t row = work->part.row; row < work->part.row + work->part.rows; row++, to += depth * LANES)
            NAME(pack_lanes)((const REAL *)weight + row * piece->weight_row, piece->weight_group, depth, to);
        return;
    }
    for (index_t row = work->part.row; row < work->part.row + work->part.rows; row++)
        for (index_t c = 0; c < work->part.channels; c++)
            for (index_t z = 0; z < axis[0].taps; z++)
                for (index_t y = 0; y < axis[1].taps; y++)
                    for (index_t x = 0; x < axis[2].taps; x++)
                        for (index_t lane = 0; lane < LANES; lane++)
                            *to++ = lane >= work->part.groups ? 0
                                : ((const REAL *)weight)[lane * piece->weight_group + row * piece->weight_row
                                                         + c * piece->weight_channel + z * stride[0] + y * stride[1]
                                                         + x * stride[2]];
}

/* sum[0 .. N - 1] += the products of K taps, whose weights are in registers, of N positions S cells apart, with the
   columns that they share, `column` apart from `at` on, each of which is loaded once.
   CUT: 0, or which columns may be missing, of which there are [0] to [1] - 1 of `there`:
     OUTER  those that fewer than K taps meet, K - 1 at either end;
     ANY    all. */
#undef OUTER
#undef ANY
#define OUTER 1
#define ANY 2
static inline __attribute__((always_inline)) void NAME(share_columns)(
    const int N, const int K, const int S, const int CUT, const index_t *there, const VECTOR *weight, const REAL *at,
    index_t column, VECTOR *sum)
{
#pragma GCC unroll 22
    for (int j = 0; j < S * (N - 1) + K; j++) {
        if (CUT && ((CUT == ANY || j < K - 1) && j < there[0]))
            continue;
        if (CUT && ((CUT == ANY || j > S * (N - 1)) && j >= there[1]))
            continue;
        VECTOR cell = LOAD(at + j * column);
        IN_REGISTER(cell);
#pragma GCC unroll 7
        for (int t = 0; t < K; t++)
            if (j >= t && (j - t) % S == 0 && (j - t) / S < N)
                sum[(j - t) / S] += weight[t] * cell;
    }
}

/* N positions stay in registers while the depth runs: 8, for the latency of the multiply-add twice over. They are `step`
   apart in source and `apart` in the result. K taps that lie side by side share their columns, see above, where K > 1;
   K = 1: any taps, any step.
   row: of the panel, the one of each tap; NULL where they are in order.
   CUT: as above; of ANY there may be fewer positions too, [2]. */
static inline __attribute__((always_inline)) void NAME(direct)(
    const int N, const int K, const int S, const int CUT, const index_t *there, index_t depth, const REAL *panel,
    const index_t *offset, const index_t *row, const REAL *cells, index_t column, index_t step, REAL *result,
    index_t apart)
{
    VECTOR sum[8];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
        sum[i] = (VECTOR){0};
    for (index_t k = 0; k < depth; k += K) {
        const int backwards = K > 1 && offset[k + K - 1] < offset[k];
        const REAL *at = cells + offset[backwards ? k + K - 1 : k];
        VECTOR weight[7];
#pragma GCC unroll 7
        for (int t = 0; t < K; t++) {
            const index_t tap = backwards ? k + K - 1 - t : k + t;
            weight[t] = LOAD(panel + (row ? row[tap] : tap) * LANES);
        }
        if (K == 1)
#pragma GCC unroll 8
            for (int i = 0; i < N; i++, at += step) {
                if (CUT == ANY && i >= there[2])
                    break;
                sum[i] += weight[0] * LOAD(at);
            }
        else
            NAME(share_columns)(N, K, S, CUT, there, weight, at, column, sum);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) {
        if (CUT == ANY && i >= there[2])
            break;
        STORE(result + i * apart, sum[i]);
    }
}

/* Of how many taps along x and more those of a row are done by themselves: where there are 32 registers fives of them share
   columns, as a vector of 64 bytes is loaded in a cycle and multiplied in one; else there is less to win. */
#define MANY_ALONG (ROWS == 8 ? 8 : 16)

/* The same of N neighbouring positions under rows of `taps` taps side by side, but for taps whose columns all lie in the
   padding. Column 0 is that of the first position under the first tap; columns [there[0], there[1]) are no padding, where
   either may be less than 0 or more than are read. */
static inline __attribute__((always_inline)) void NAME(direct_wide)(
    const int N, index_t depth, index_t taps, const index_t *there, const REAL *panel, const index_t *offset,
    const REAL *cells, REAL *result)
{
    const int backwards = offset[1] < offset[0];
    const index_t first = backwards ? taps - 1 : 0, along = backwards ? -LANES : LANES;
    const index_t low = there[0] >= N ? there[0] - N + 1 : 0, high = there[1] < taps ? there[1] : taps;
    VECTOR sum[8];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
        sum[i] = (VECTOR){0};
    for (index_t k = 0; k < depth; k += taps) {
        const REAL *at = cells + offset[k + first], *own = panel + (k + first) * LANES;
        index_t t = low;
        for (; ROWS == 8 && t + 5 <= high; t += 5) {
            VECTOR weight[5];
#pragma GCC unroll 5
            for (int i = 0; i < 5; i++)
                weight[i] = LOAD(own + (t + i) * along);
            NAME(share_columns)(N, 5, 1, 0, NULL, weight, at + t * LANES, LANES, sum);
        }
        for (; t < high; t++) {
            const VECTOR weight = LOAD(own + t * along);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++)
                sum[i] += weight * LOAD(at + (t + i) * LANES);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++)
        STORE(result + i * LANES, sum[i]);
}

/* How many of a row's positions come next: parts as even as they can be. */
static inline index_t NAME(in_registers)(index_t left)
{
    return left <= 8 ? left : left < 16 ? (left + 1) / 2 : 8;
}

/* Rows of n positions, `next` apart, under rows of `taps` taps; `there`: see direct_wide. */
#define DIRECT_ROWS(K, S)                                                                                             \
    static void NAME(direct_##K##x##S)(index_t rows, index_t next, index_t n, index_t depth, index_t taps,            \
                                       const index_t *there, const REAL *panel, const index_t *offset,                \
                                       const REAL *cells, index_t step, REAL *result)                                 \
    {                                                                                                                 \
        for (index_t x = 0, wide; x < n; x += wide) {                                                                 \
            const index_t ahead[2] = {there[0] - x, there[1] - x};                                                    \
            wide = NAME(in_registers)(n - x);                                                                         \
            switch (wide) {                                                                                           \
                CASE(1, K, S) CASE(2, K, S) CASE(3, K, S) CASE(4, K, S) CASE(5, K, S) CASE(6, K, S) CASE(7, K, S)     \
                CASE(8, K, S)                                                                                         \
            }                                                                                                         \
        }                                                                                                             \
    }
#define CASE(N, K, S)                                                                                                 \
    case N:                                                                                                           \
        for (index_t y = 0; y < rows; y++) {                                                                          \
            const REAL *at = cells + y * next + x * step;                                                             \
            REAL *to = result + (y * n + x) * LANES;                                                                  \
            if (K > 0)                                                                                                \
                NAME(direct)(N, K, S, 0, NULL, depth, panel, offset, NULL, at, LANES, step, to, LANES);               \
            else                                                                                                      \
                NAME(direct_wide)(N, depth, taps, ahead, panel, offset, at, to);                                      \
        }                                                                                                             \
        break;
DIRECT_ROWS(1, 1) DIRECT_ROWS(3, 1) DIRECT_ROWS(3, 2) DIRECT_ROWS(5, 1) DIRECT_ROWS(5, 2) DIRECT_ROWS(7, 1)
DIRECT_ROWS(0, 1)
#undef DIRECT_ROWS
#undef CASE

typedef void (*NAME(direct_function))(index_t, index_t, index_t, index_t, index_t, const index_t *, const REAL *,
                                      const index_t *, const REAL *, index_t, REAL *);
static const NAME(direct_function) NAME(directs)[] = {NAME(direct_1x1), NAME(direct_3x1), NAME(direct_3x2),
                                                      NAME(direct_5x1), NAME(direct_5x2), NAME(direct_7x1),
                                                      NAME(direct_0x1)};

/* Which of the others has all taps along x side by side; 0, for any taps, where none has. */
static inline int NAME(side_by_side)(const axis_t *x)
{
    static const index_t taps[] = {3, 3, 5, 5, 7}, step[] = {1, 2, 1, 2, 1};
    if (x->tap_step == 1 || x->tap_step == -1)
        for (int i = 0; i < 5; i++)
            if (x->taps == taps[i] && x->step == step[i])
                return i + 1;
    return 0;
}

/* Whether a row of taps is done by itself. */
static inline int NAME(is_wide)(const axis_t *x)
{
    return x->taps >= MANY_ALONG && x->step == 1 && (x->tap_step == 1 || x->tap_step == -1);
}

/* Whether a position's taps are those of one plane, some of which may lie in the padding. */
static inline int NAME(has_one_plane)(const work_t *work)
{
    const axis_t *axis = work->piece->axis;
    return NAME(depth)(work) == axis[1].taps * axis[2].taps && work->piece->edge == EDGE_NONE;
}

/* Which columns of a block's box are no padding. */
static inline void NAME(columns_there)(const work_t *work, index_t there[2])
{
    const axis_t *x = &work->piece->axis[2];
    const index_t box = NAME(box)(work->piece, &work->block, 2);
    there[0] = 0;
    there[1] = box;
    if (work->piece->edge == EDGE_NONE)
        NAME(cells_there)(x->step * work->block.start[2] + x->offset + NAME(back)(x), box, x->size, &there[0],
                          &there[1]);
}

/* One plane of positions; where a channel has one plane of taps, rows of taps that lie in the padding are left out. */
static void NAME(direct_plane)(const work_t *work, const REAL *panel, const index_t *offset, const REAL *cells,
                               REAL *result)
{
    const axis_t *y = &work->piece->axis[1], *x = &work->piece->axis[2];
    const index_t *extent = work->block.extent, pitch = y->step * work->layout.axis[1];
    const NAME(direct_function) direct_rows = NAME(directs)[NAME(is_wide)(x) ? 6 : NAME(side_by_side)(x)];
    const int one_plane = NAME(has_one_plane)(work);
    index_t there[2];
    NAME(stretch) rows = {0, extent[1], 0, NAME(depth)(work) / x->taps};
    NAME(columns_there)(work, there);
    for (index_t i = 0; i < extent[1]; i += rows.count) {
        if (one_plane)
            rows = NAME(find_stretch)(y, work->block.start[1], i, extent[1]);
        direct_rows(rows.count, pitch, extent[2], rows.taps * x->taps, x->taps, there,
                    panel + rows.tap * x->taps * LANES, offset + rows.tap * x->taps, cells + i * pitch,
                    x->step * LANES, result + i * extent[2] * LANES);
    }
}

static void NAME(multiply_direct)(const work_t *work, const void *panel, const index_t *offset, void *scratch,
                                  void *result, int accumulate)
{
    const index_t *extent = work->block.extent, depth = NAME(depth)(work);
    const layout_t *layout = &work->layout;
    REAL *to = result;
    (void)accumulate; /* all channels are there at once */
    for (index_t row = 0; row < work->part.rows; row++)
        for (index_t s = 0; s < work->block.samples; s++)
            for (index_t z = 0; z < extent[0]; z++, to += extent[1] * extent[2] * LANES)
                NAME(direct_plane)(work, (const REAL *)panel + row * depth * LANES, offset, (const REAL *)scratch
                                   + s * layout->batch + z * work->piece->axis[0].step * layout->axis[0], to);
}

/* The runs of results, which lie side by side although the cells that they come from may not. */
static inline NAME(runs) NAME(dense_runs)(const work_t *work)
{
    layout_t dense = work->layout;
    dense.axis[1] = work->block.extent[2];
    dense.axis[0] = work->block.extent[1] * dense.axis[1];
    return NAME(find_runs)(work->piece, &work->block, &dense);
}

/* n vectors, `pitch` apart, -> n cells, `step` apart, of each of `groups` planes; those of all groups may lie side by
   side. */
static inline void NAME(scatter_lanes)(const REAL *from, index_t pitch, index_t n, VECTOR bias, REAL *to, index_t step,
                                       index_t plane, index_t groups, int accumulate)
{
    if (plane == 1 && groups == LANES) {
        for (index_t q = 0; q < n; q++, to += step) {
            VECTOR sum = LOAD(from + q * pitch) + bias;
            __builtin_prefetch(to + 16 * step, 1);
            if (accumulate)
                sum += LOAD(to);
            STORE(to, sum);
        }
        return;
    }
    if (n <= FEW) {
        for (index_t q = 0; q < n; q++) {
            const VECTOR sum = LOAD(from + q * pitch) + bias;
            for (index_t i = 0; i < groups; i++)
                to[i * plane + q * step] = sum[i] + (accumulate ? to[i * plane + q * step] : 0);
        }
        return;
    }
    const int whole = groups == LANES && step == 1 && !accumulate;
    for (index_t q = 0; q < n; q += LANES) {
        if (whole && n >= LANES && n - q < LANES)
            q = n - LANES; /* some cells twice, in whole vectors */
        const index_t here = n - q < LANES ? n - q : LANES;
        VECTOR square[16];
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++)
            square[i] = bias + (i < here ? LOAD(from + (q + i) * pitch) : (VECTOR){0});
        NAME(turn_square)(square);
        if (whole && here == LANES)
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                STORE(to + i * plane + q, square[i]);
        else
            for (index_t i = 0; i < groups; i++)
                NAME(store_run)(to + i * plane + q * step, step, (const REAL *)&square[i], here, 0, accumulate);
    }
}

static void NAME(store_direct)(const work_t *work, void *result, const void *bias, void *target, int accumulate,
                               char *doubtful)
{
    (void)doubtful;
    const piece_t *piece = work->piece;
    const block_t *block = &work->block;
    const part_t *part = &work->part;
    const NAME(runs) r = NAME(dense_runs)(work);
    const REAL *from = result;
    const index_t channels = piece->target_group / piece->target_channel;
    for (index_t row = part->row; row < part->row + part->rows; row++) {
        REAL *to = (REAL *)target + row * piece->target_channel + NAME(first)(piece, block);
        VECTOR more = {0};
        for (index_t i = 0; bias && i < part->groups; i++)
            more[i] = ((const REAL *)bias)[i * channels + row];
        for (index_t s = 0; s < block->samples; s++)
            for (index_t z = 0; z < r.planes; z++)
                for (index_t y = 0; y < r.rows; y++, from += r.run * LANES)
                    NAME(scatter_lanes)(from, LANES, r.run, more, to + s * piece->target_batch + z * piece->target_stride[0]
                                        + y * piece->target_stride[1], piece->target_stride[2], piece->target_group,
                                        part->groups, accumulate);
    }
}
