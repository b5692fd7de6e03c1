/* The outputs of Winograd's tiles, stored: those of a row of tiles along x, in runs that lie side by side in target. See
   winograd_lines.h for one axis, and body.h for the macros. */

/* Runs of outputs of some tiles that lie side by side in target: where they begin there and among the outputs of a
   channel, their length, and how much may be written from there on because later runs follow without a gap. With folds,
   a run is of cells: position q of its row is at from - first + q, where the run's tiles have [begin, end), and `again`
   is set where rows beyond the edges were stored to its cells before, or it is such a row and its cells were. */
#define MOST_RUNS (9 * RUN_TILES) /* of lone tiles of 3 by 3 outputs, each of them in a run of its own */
typedef struct {
    index_t count, to[MOST_RUNS], from[MOST_RUNS], length[MOST_RUNS], room[MOST_RUNS];
    index_t first[MOST_RUNS], begin[MOST_RUNS], end[MOST_RUNS];
    int again[MOST_RUNS];
} NAME(tile_runs);

/* Whether a row of outputs, which may lie beyond the edge, is of cells that an earlier one is of too. */
static inline int NAME(is_again)(const piece_t *piece, index_t cell, index_t cells)
{
    for (index_t earlier = -piece->before[1]; earlier < 0 && earlier < cell; earlier++)
        if (NAME(fold)(piece->folded, earlier, cells) == NAME(fold)(piece->folded, cell, cells))
            return 1;
    return cell >= cells;
}

/* Those of the n tiles from `tile`, without the outputs beyond the piece's. */
static void NAME(find_tile_runs)(const piece_t *piece, const NAME(tiling) *t, const block_t *block, index_t tile,
                                 index_t n, index_t from_row, NAME(tile_runs) *runs)
{
    const index_t *extent = block->extent, *stride = piece->target_stride, *before = piece->before;
    const index_t rows = piece->count[1] - before[1] - piece->behind[1];
    const index_t last = piece->count[2] - piece->behind[2]; /* behind the cells of a row */
    const int lone = t->of_x < 0; /* then there is a run of each output of the tiles */
    const index_t wide = lone ? 1 : t->outputs_x, parts = lone ? t->outputs_x : 1, from_part = from_row / parts;
    index_t run, count = 0;
    for (index_t done = 0; done < n; done += run) {
        const index_t at = tile + done, x = at % extent[2], y = at / extent[2] % extent[1];
        const index_t plane = at / (extent[2] * extent[1]), z = block->start[0] + plane % extent[0];
        run = NAME(least)(extent[2] - x, n - done);
        for (index_t i = 0; i < t->outputs_y * parts; i++, count++) {
            const index_t row = NAME(row_of)(t, block->start[1] + y, i / parts), part = i % parts;
            const index_t begin = (block->start[2] + x) * wide + part * t->apart;
            const index_t end = NAME(least)(begin + run * wide, piece->count[2]);
            const index_t first = NAME(least)(NAME(most)(begin, before[2]), end);
            if (row >= piece->count[1])
                break;
            runs->to[count] = (block->sample + plane / extent[0]) * piece->target_batch + z * stride[0]
                + NAME(fold)(piece->folded, row - before[1], rows) * stride[1] + (first - before[2]) * stride[2];
            runs->from[count] = i * from_part + done * wide + first - begin;
            runs->length[count] = NAME(most)(NAME(least)(end, last) - first, 0);
            runs->first[count] = first;
            runs->begin[count] = begin;
            runs->end[count] = end;
            runs->again[count] = piece->folded && NAME(is_again)(piece, row - before[1], rows);
        }
    }
    for (index_t i = count; i-- > 0;) {
        const int follows = i + 1 < count && runs->to[i + 1] == runs->to[i] + runs->length[i] && !runs->again[i + 1];
        runs->room[i] = runs->length[i] + (follows ? runs->room[i + 1] : 0);
    }
    runs->count = count;
}

/* Outputs of a run beyond the edges are added to those of the cells that stand for them; to target where an earlier run
   of the row stored these. `row` and `cells` are where position 0 and cell 0 would be. */
static inline void NAME(fold_run)(const piece_t *piece, index_t begin, index_t end, REAL *row, REAL *cells)
{
    const index_t before = piece->before[2], last = piece->count[2] - piece->behind[2];
    index_t q = begin < before ? begin : NAME(most)(begin, last);
    for (; q < end; q = q + 1 == before ? last : q + 1) {
        const index_t cell = NAME(fold)(piece->folded, q - before, last - before);
        *(cell + before < begin ? cells + cell * piece->target_stride[2] : row + before + cell) += row[q];
    }
}

/* to[0, n) <- from + bias, where `room` elements may be written; the last vector may do again what others did. */
static inline void NAME(put_run)(REAL *to, const REAL *from, index_t n, index_t room, REAL bias)
{
    index_t q = 0;
    for (; q < n && q + LANES <= room; q += LANES)
        STORE(to + q, LOAD(from + q) + bias);
    if (q < n && n >= LANES)
        STORE(to + n - LANES, LOAD(from + n - LANES) + bias);
    else
        for (; q < n; q++)
            to[q] = from[q] + bias;
}

/* to[0, n) += from + bias; the last vector is added before others change what it shares with them. */
static inline void NAME(add_run)(REAL *to, const REAL *from, index_t n, REAL bias)
{
    if (n < LANES) {
        NAME(store_run)(to, 1, from, n, bias, 1);
        return;
    }
    const VECTOR last = LOAD(to + n - LANES) + (LOAD(from + n - LANES) + bias);
    for (index_t q = 0; q + LANES <= n; q += LANES)
        STORE(to + q, LOAD(to + q) + (LOAD(from + q) + bias));
    STORE(to + n - LANES, last);
}

static void NAME(store_runs)(const piece_t *piece, const NAME(tile_runs) *runs, REAL *outputs, REAL bias, REAL *target,
                             int accumulate)
{
    const index_t step = piece->target_stride[2];
    for (index_t i = 0; i < runs->count; i++) {
        REAL *to = target + runs->to[i], *from = outputs + runs->from[i];
        const int adds = accumulate || runs->again[i];
        const REAL b = runs->again[i] ? 0 : bias;
        if (piece->folded)
            NAME(fold_run)(piece, runs->begin[i], runs->end[i], from - runs->first[i],
                           to - (runs->first[i] - piece->before[2]) * step);
        if (step != 1)
            NAME(store_run)(to, step, from, runs->length[i], b, adds);
        else if (adds)
            NAME(add_run)(to, from, runs->length[i], b);
        else
            NAME(put_run)(to, from, runs->length[i], runs->room[i], b);
    }
}

/* Mark the samples of the n tiles from `tile` on that have an output which is not finite. */
static void NAME(doubt)(const block_t *block, const REAL *out, index_t lines, index_t width, index_t tile, index_t n,
                        index_t outputs, char *doubtful)
{
    const index_t tiles = block->extent[0] * block->extent[1] * block->extent[2];
    for (index_t line = 0; line < lines; line++)
        for (index_t q = 0; q < n * outputs; q++)
            if (out[line * width + q] * 0 != 0)
                doubtful[block->sample + (tile + q / outputs) / tiles] = 1;
}

/* How many tiles from `tile` on are stored together: whole rows where these are folded, or the first of one, for the
   cells that stand for those before it must be among them. */
static index_t NAME(stored_together)(const piece_t *piece, const NAME(tiling) *t, index_t tile, index_t row)
{
    if (!piece->folded)
        return RUN_TILES / t->lattices_x * t->lattices_x;
    return row <= RUN_TILES ? RUN_TILES / row * row : NAME(least)(RUN_TILES, row - tile % row);
}

/* target <- result (+ bias of the channel) (+ target). Samples whose values before that are not finite are doubtful. */
static void NAME(transform_result)(const piece_t *piece, const block_t *block, const void *result, index_t set,
                                   index_t pitch, index_t row, index_t rows, const void *bias, void *target,
                                   int accumulate, char *doubtful)
{
    const NAME(tiling) t = NAME(tiling_of)(piece);
    const index_t tiles = block->samples * block->extent[0] * block->extent[1] * block->extent[2];
    const index_t wide = t.of_x < 0 ? 1 : t.outputs_x; /* outputs of a tile side by side */
    REAL work[WORK + SLACK] __attribute__((aligned(BYTES)));
    NAME(tile_runs) runs;
    for (index_t p = 0, n; p < tiles; p += n) {
        n = NAME(least)(NAME(stored_together)(piece, &t, p, block->extent[2]), tiles - p);
        const index_t whole = NAME(up)(n), half = t.y > 1 ? t.outputs_y * t.x * whole : 0;
        const index_t outputs = t.outputs_y * t.outputs_x * whole, most = WORK / (half + outputs);
        NAME(find_tile_runs)(piece, &t, block, p, n, t.outputs_x * whole, &runs);
        for (index_t i = 0, some; i < rows; i += some) {
            some = NAME(least)(most, rows - i);
            REAL *out = work + some * half;
            const REAL *from = (const REAL *)result + i * pitch + p;
            if (t.y > 1)
                NAME(pass_outputs)(t.of_y, some, t.x, n, NAME(spaced)(from, pitch, set, t.x * set),
                                   NAME(spaced)(work, half, whole, t.x * whole));
            if (!NAME(join_outputs)(t.of_x, t.lattices_x, some * t.outputs_y, n,
                                    t.y > 1 ? NAME(spaced)(work, 0, t.x * whole, whole)
                                            : NAME(spaced)(from, 0, pitch, set), out, t.outputs_x * whole))
                NAME(doubt)(block, out, some * outputs / (wide * whole), wide * whole, p, n, wide, doubtful);
            for (index_t k = 0; k < some; k++)
                NAME(store_runs)(piece, &runs, out + k * outputs, bias ? ((const REAL *)bias)[row + i + k] : 0,
                                 (REAL *)target + (row + i + k) * piece->target_channel, accumulate);
        }
    }
}
