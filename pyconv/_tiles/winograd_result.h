/* Results of Winograd's frequencies to target. See body.h for the macros. */

/* Runs of outputs that lie side by side in target, of some tiles: where they begin there and among the outputs of a
   channel, their length, and how much may be written from there on because later runs follow without a gap. */
typedef struct {
    index_t count, to[4 * RUN_TILES], from[4 * RUN_TILES], length[4 * RUN_TILES], room[4 * RUN_TILES];
} NAME(tile_runs);

/* The n tiles from `tile`; outputs beyond the piece's are dropped. */
static void NAME(find_tile_runs)(const piece_t *piece, const block_t *block, index_t tile, index_t n, index_t from_row,
                                 NAME(tile_runs) *runs)
{
    const index_t *extent = block->extent, *stride = piece->target_stride, *size = piece->tile;
    index_t run, count = 0;
    for (index_t done = 0; done < n; done += run) {
        const index_t at = tile + done, x = at % extent[2], y = at / extent[2] % extent[1];
        const index_t plane = at / (extent[2] * extent[1]), z = block->start[0] + plane % extent[0];
        const index_t first_y = (block->start[1] + y) * size[1], first_x = (block->start[2] + x) * size[2];
        run = NAME(least)(extent[2] - x, n - done);
        for (index_t i = 0; i < NAME(least)(size[1], piece->count[1] - first_y); i++, count++) {
            runs->to[count] = (block->sample + plane / extent[0]) * piece->target_batch + z * stride[0]
                + (first_y + i) * stride[1] + first_x * stride[2];
            runs->from[count] = i * from_row + done * size[2];
            runs->length[count] = NAME(least)(run * size[2], piece->count[2] - first_x);
        }
    }
    for (index_t i = count; i-- > 0;) {
        const int follows = i + 1 < count && runs->to[i + 1] == runs->to[i] + runs->length[i];
        runs->room[i] = runs->length[i] + (follows ? runs->room[i + 1] : 0);
    }
    runs->count = count;
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

static inline void NAME(add_run)(REAL *to, const REAL *from, index_t n, REAL bias)
{
    if (n < LANES) {
        for (index_t q = 0; q < n; q++)
            to[q] += from[q] + bias;
        return;
    }
    const VECTOR last = LOAD(to + n - LANES) + (LOAD(from + n - LANES) + bias);
    for (index_t q = 0; q + LANES <= n; q += LANES)
        STORE(to + q, LOAD(to + q) + (LOAD(from + q) + bias));
    STORE(to + n - LANES, last);
}

static void NAME(store_runs)(const NAME(tile_runs) *runs, const REAL *outputs, REAL bias, REAL *target, index_t step,
                             int accumulate)
{
    for (index_t i = 0; i < runs->count; i++) {
        REAL *to = target + runs->to[i];
        const REAL *from = outputs + runs->from[i];
        if (step != 1)
            NAME(store_run)(to, step, from, runs->length[i], bias, accumulate);
        else if (accumulate)
            NAME(add_run)(to, from, runs->length[i], bias);
        else
            NAME(put_run)(to, from, runs->length[i], runs->room[i], bias);
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

/* target <- result (+ bias of the channel) (+ target). Samples whose values before that are not finite are doubtful. */
static void NAME(transform_result)(const piece_t *piece, const block_t *block, const void *result, index_t set,
                                  index_t pitch, index_t row, index_t rows, const void *bias, void *target,
                                   int accumulate, char *doubtful)
{
    const NAME(tiling) t = NAME(tiles_of)(piece);
    const index_t tiles = block->samples * block->extent[0] * block->extent[1] * block->extent[2];
    REAL work[WORK + SLACK] __attribute__((aligned(BYTES)));
    NAME(tile_runs) runs;
    for (index_t p = 0, n; p < tiles; p += n) {
        n = NAME(least)(RUN_TILES, tiles - p);
        const index_t whole = NAME(up)(n), half = t.y > 1 ? t.outputs_y * t.x * whole : 0;
        const index_t outputs = t.outputs_y * t.outputs_x * whole, most = WORK / (half + outputs);
        NAME(find_tile_runs)(piece, block, p, n, t.outputs_x * whole, &runs);
        for (index_t i = 0, some; i < rows; i += some) {
            some = NAME(least)(most, rows - i);
            REAL *out = work + some * half;
            const REAL *from = (const REAL *)result + i * pitch + p;
            if (t.y > 1)
                NAME(pass_outputs)(t.m, some, t.x, n, NAME(spaced)(t.m, from, pitch, set, t.x * set),
                                   NAME(spaced)(t.m, work, half, whole, t.x * whole));
            if (!NAME(join_outputs)(t.outputs_x, some * t.outputs_y, n,
                                    t.y > 1 ? NAME(spaced)(t.m, work, 0, t.x * whole, whole)
                                            : NAME(spaced)(t.m, from, 0, pitch, set),
                                    out, t.outputs_x * whole))
                NAME(doubt)(block, out, some * t.outputs_y, t.outputs_x * whole, p, n, t.outputs_x, doubtful);
            for (index_t k = 0; k < some; k++)
                NAME(store_runs)(&runs, out + k * outputs, bias ? ((const REAL *)bias)[row + i + k] : 0,
                                 (REAL *)target + (row + i + k) * piece->target_channel, piece->target_stride[2],
                                 accumulate);
        }
    }
}
