/* The register tiles, and the loops that cover a block of results with them. See body.h for the macros. */

#define KEPT(V) (CELL == 2 && ROWS == 4 && (V) > 2 ? 2 : (V)) /* vectors of `many` that stay in registers for all rows of a tile */

/* Before a loop along the depth: it does two steps between two tests. AVX2's tiles of 12 sums then make 12 products in
   22 to 27 instructions instead of 26 to 31; where two threads share a core, how many it begins in a cycle is the limit.
   Tiles of 24 sums have more to do in a step, smaller ones less. */
#if ROWS == 8
#define IN_TWOS
#else
#define IN_TWOS _Pragma("GCC unroll 2")
#endif
/* As it begins, a tile asks for results: its own where a cache holds them or its depth takes longer than memory, else
   those of the tile behind it in the row. The 24 lines of eight rows come slower than products of any depth are made;
   they wait in L2, as L1 has cells and weights. */
#define SHALLOW (ROWS == 8 ? PTRDIFF_MAX : 32)
#define ASKED_LEVEL (ROWS == 8 ? 2 : 3) /* as __builtin_prefetch counts: 3 is L1 */
#define TALLER (ROWS == 4 && V4 == 3 && CELL == 1) /* there are taller tiles of few vectors: see `taller` */
#define TALLEST 8 /* most rows of one tile, on any level */

/* The same place, which the compiler does not know: it reads there anew. */
static inline __attribute__((always_inline)) const REAL *NAME(anew)(const REAL *place)
{
    __asm__("" : "+r"(place));
    return place;
}

/* sum[row][vector] += many[vector] * the element of each row of few at one place: of cells of several channels, few are
   these. A sum of two products takes a register of its own before it is added: of AVX2's 16 none is left for the third
   of 3 vectors, which is an operand in memory then. Where there are 16, sums of several rows are pinned, each to its own:
   compilers make one anew in that of a factor which no product needs any more, and then move sums, or run out. */
static inline __attribute__((always_inline)) void NAME(add_products)(
    const int R, const int V, VECTOR *sum, const REAL *const *row, index_t at, const REAL *many)
{
    const int pinned = ROWS == 4 && R > 1;
    VECTOR b[8];
#pragma GCC unroll 8
    for (int j = 0; j < KEPT(V); j++)
        b[j] = LOAD(many + j * LANES);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++) {
        const VECTOR a = row[i][at] - (VECTOR){0};
        if (KEPT(V) < V)
            many = NAME(anew)(many);
#pragma GCC unroll 8
        for (int j = 0; j < V; j++) {
            ADD_PRODUCT(sum[i * V + j], a, j < KEPT(V) ? b[j] : LOAD(many + j * LANES));
            if (pinned)
                IN_REGISTER(sum[i * V + j]);
        }
        if (pinned)
            HELD(a);
    }
    if (pinned)
#pragma GCC unroll 8
        for (int j = 0; j < KEPT(V); j++)
            HELD(b[j]);
}

/* to <- V vectors of sums (+ to); a product's underflow to -0 gives +0. */
static inline __attribute__((always_inline)) void NAME(store_sums)(const int V, const VECTOR *sum, REAL *to,
                                                                   int accumulate)
{
#pragma GCC unroll 8
    for (int j = 0; j < V; j++)
        STORE(to + j * LANES, sum[j] + (accumulate ? LOAD(to + j * LANES) : (VECTOR){0}));
}

/* Of R rows by V vectors of results, or of those `ahead` in their rows. */
static inline __attribute__((always_inline)) void NAME(ask_results)(const int R, const int V, const REAL *result,
                                                                    index_t ahead, index_t pitch)
{
#pragma GCC unroll 24
    for (int i = 0; i < R * V; i++)
        if (ahead)
            __builtin_prefetch(result + ahead + i / V * pitch + i % V * LANES, 1, ASKED_LEVEL);
        else
            __builtin_prefetch(result + i / V * pitch + i % V * LANES, 1);
}

/* R rows by V vectors of results stay in registers while the depth runs: R * V accumulators, V vectors of `many` and
   one broadcast of `few`; with 8 x 3 that is 28 of AVX-512's 32 registers, and 24 independent chains hide the
   latency of the multiply-add many times over.
   PANEL: few is packed in panels [depth][PANEL], from row S of the first on, and many's row k begins at offset[k]
   (forward, grad_input).
   otherwise: few's row i begins at offset[i] and runs along the depth, many is a panel [depth][pitch] (grad_weight). */
static inline __attribute__((always_inline)) void NAME(tile)(
    const int R, const int V, const int PANEL, const int S, index_t depth, const REAL *few, const index_t *offset,
    const REAL *many, index_t many_pitch, REAL *result, index_t ahead, index_t pitch, int accumulate)
{
    VECTOR sum[24];
    const REAL *row[TALLEST];
    NAME(ask_results)(R, V, result, ahead, pitch);
#pragma GCC unroll 24
    for (int i = 0; i < R * V; i++)
        sum[i] = (VECTOR){0};
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        row[i] = few + (PANEL ? (S + i) / PANEL * PANEL * depth + (S + i) % PANEL : offset[i]);
    IN_TWOS
    for (index_t k = 0; k < depth; k++) {
        if (PANEL == 8) /* the panel of the next rows, which may come from beyond L2 */
            __builtin_prefetch(few + (depth + k) * R);
        NAME(add_products)(R, V, sum, row, PANEL ? k * PANEL : k, PANEL ? many + offset[k] : many + k * many_pitch);
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
        NAME(store_sums)(V, sum + i * V, result + i * pitch, accumulate);
}

#define TILE_AS(NAMED, R, V, PANEL)                                                                                   \
    static __attribute__((noinline)) void NAMED(                                                                      \
        index_t depth, const REAL *few, const index_t *offset, const REAL *many, index_t many_pitch, REAL *result,    \
        index_t ahead, index_t pitch, int accumulate)                                                                 \
    {                                                                                                                 \
        NAME(tile)(R, V, PANEL, 0, depth, few, offset, many, many_pitch, result, ahead, pitch, accumulate);           \
    }
#define TILE(R, V) TILE_AS(NAME(panel_##R##x##V), R, V, R) TILE_AS(NAME(rows_##R##x##V), R, V, 0)
typedef void (*NAME(tile_function))(index_t, const REAL *, const index_t *, const REAL *, index_t, REAL *, index_t,
                                    index_t, int);

TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4) TILE(1, 5) TILE(1, 6) TILE(1, 7) TILE(1, 8)
TILE(2, 1) TILE(2, 2) TILE(2, 3) TILE(2, 4)
TILE(3, 1) TILE(3, 2) TILE(3, 3)
TILE(4, 1) TILE(4, 2)
#if V4 >= 3
TILE(4, 3)
#endif
#if ROWS == 8
TILE(2, 5) TILE(2, 6) TILE(2, 7) TILE(2, 8)
TILE(3, 4) TILE(3, 5) TILE(3, 6) TILE(3, 7)
TILE(4, 4) TILE(4, 5) TILE(4, 6)
TILE(8, 1) TILE(8, 2) TILE(8, 3)
#endif

#if TALLER
TILE_AS(NAME(panel_8x1), 8, 1, ROWS) TILE_AS(NAME(rows_8x1), 8, 1, 0) TILE_AS(NAME(rows_6x2), 6, 2, 0)
static __attribute__((noinline)) void NAME(panel_12x2)( /* two of 6 x 2, of three panels of four rows */
    index_t depth, const REAL *few, const index_t *offset, const REAL *many, index_t many_pitch, REAL *result,
    index_t ahead, index_t pitch, int accumulate)
{
    NAME(tile)(6, 2, ROWS, 0, depth, few, offset, many, many_pitch, result, ahead, pitch, accumulate);
    NAME(tile)(6, 2, ROWS, 2, depth, few + ROWS * depth, offset, many, many_pitch, result + 6 * pitch, ahead, pitch,
               accumulate);
}
#endif

#define BOTH(R, V) {NAME(panel_##R##x##V), NAME(rows_##R##x##V)}
/* [rows][vectors - 1][panel or rows] */
static const NAME(tile_function) NAME(tiles)[13][8][2] = {
    [1] = {BOTH(1, 1), BOTH(1, 2), BOTH(1, 3), BOTH(1, 4), BOTH(1, 5), BOTH(1, 6), BOTH(1, 7), BOTH(1, 8)},
#if ROWS == 8
    [2] = {BOTH(2, 1), BOTH(2, 2), BOTH(2, 3), BOTH(2, 4), BOTH(2, 5), BOTH(2, 6), BOTH(2, 7), BOTH(2, 8)},
    [3] = {BOTH(3, 1), BOTH(3, 2), BOTH(3, 3), BOTH(3, 4), BOTH(3, 5), BOTH(3, 6), BOTH(3, 7)},
    [4] = {BOTH(4, 1), BOTH(4, 2), BOTH(4, 3), BOTH(4, 4), BOTH(4, 5), BOTH(4, 6)},
    [8] = {BOTH(8, 1), BOTH(8, 2), BOTH(8, 3)},
#else
    [2] = {BOTH(2, 1), BOTH(2, 2), BOTH(2, 3), BOTH(2, 4)},
    [3] = {BOTH(3, 1), BOTH(3, 2), BOTH(3, 3)},
    [4] = {BOTH(4, 1), BOTH(4, 2),
#if V4 >= 3
           BOTH(4, 3)
#endif
    },
#endif
#if TALLER
    [6] = {[1] = {NULL, NAME(rows_6x2)}},
    [8] = {BOTH(8, 1)},
    [12] = {[1] = {NAME(panel_12x2), NULL}},
#endif
};

/* Rows of the next tile: 8, 4, then what is left, so that no row is ever padding. */
static inline index_t NAME(tall)(index_t rows)
{
    return rows >= 8 && ROWS == 8 ? 8 : rows >= 4 ? 4 : rows;
}

/* The same for a tile of so many vectors. Four rows by two are eight sums, which two threads of one core are too few for,
   and four rows by one are too few for one thread: each product waits for the sum before. So there are taller tiles. */
static inline index_t NAME(taller)(index_t rows, index_t vectors)
{
    if (TALLER && vectors == 2 && (rows == 6 || rows > 8))
        return 6;
    return TALLER && vectors == 1 && rows >= 8 ? 8 : NAME(tall)(rows);
}

/* Vectors of the next tile: the widest, but the last two share what is left evenly (a tile of 8 x 1 wastes loads). */
static inline index_t NAME(wide)(index_t tall, index_t left)
{
    static const int most[9] = {[1] = V1, [2] = V2, [3] = V3, [4] = V4, [8] = V8};
    const index_t most_here = most[tall];
    return left <= most_here ? left : left < 2 * most_here ? (left + 1) / 2 : most_here;
}

/* Ask for a share of the cells that the next tile reads, where they come from beyond L2: vectors from `at` on. */
static inline void NAME(fetch_ahead)(const REAL *at, const index_t *offset, index_t depth, index_t vectors)
{
    for (index_t k = 0; k < depth; k++)
        for (index_t i = 0; i < vectors * LANES; i += OF_LINE)
            __builtin_prefetch(at + offset[k] + i);
}

/* Rows of the next tile, where the tiles of all these rows were to be `tall`: those of packed rows are whole panels. */
static inline index_t NAME(next_rows)(index_t rows, index_t tall, index_t vectors, int in_rows)
{
    if (!TALLER || tall < ROWS)
        return tall;
    return in_rows || vectors != 2 ? NAME(taller)(rows, vectors) : rows >= 3 * ROWS ? 3 * ROWS : tall;
}

/* Some positions for all rows, then the next: what they read of scratch stays in L1 while the panels pass by. Weights
   that are not in panels lie in rows `row_pitch` apart; then what the k-th one meets is `offset[1]` behind the last.
   FETCHED: cells come from memory; KEPT_NEAR: results never lie in target, where multiply has some; cut: rows end within
   a vector, behind which nothing may be written. */
static inline __attribute__((always_inline)) void NAME(multiply_one)(
    index_t rows, index_t positions, index_t depth, const REAL *panel, int in_rows, index_t row_pitch,
    const index_t *offset, const REAL *scratch, REAL *to, index_t pitch, int accumulate, int cut, const int FETCHED,
    const int KEPT_NEAR)
{
    const index_t vectors = (positions + LANES - 1) / LANES, each = in_rows ? row_pitch : depth;
    REAL apart[24 * LANES];
    index_t row[TALLEST];
    for (int i = 0; in_rows && i < TALLEST; i++)
        row[i] = i * row_pitch;
    while (rows > 0) {
        const index_t tall = NAME(tall)(rows), same = tall == ROWS ? rows / tall * tall : tall;
        for (index_t done = 0, wide; done < vectors; done += wide) {
            wide = NAME(wide)(tall, vectors - done);
            const int ends = cut && done + wide == vectors;
            for (index_t i = 0, high; i < same; i += high) {
                high = NAME(next_rows)(same - i, tall, wide, in_rows);
                const index_t first = depth * i / same, last = depth * (i + high) / same;
                if (FETCHED)
                    NAME(fetch_ahead)(scratch + (done + wide) * LANES, offset + first, last - first, wide);
                REAL *here = to + i * pitch + done * LANES;
                NAME(tiles)[high][wide - 1][in_rows](
                    depth, panel + i * each, in_rows ? row : offset, scratch + done * LANES,
                    in_rows && depth > 1 ? offset[1] : 0, ends ? apart : here,
                    KEPT_NEAR || depth >= SHALLOW || ends ? 0 : wide * LANES, ends ? wide * LANES : pitch,
                    !ends && accumulate);
                if (ends)
                    NAME(store_cut)(high, positions - done * LANES, apart, here, pitch, accumulate);
            }
        }
        panel += same * each;
        to += same * pitch;
        rows -= same;
    }
}

/* Group after group. */
static void NAME(multiply)(const work_t *work, const void *panels, const index_t *offset, void *scratch,
                           void *result, int accumulate)
{
    const part_t *part = &work->part;
    const index_t depth = NAME(depth)(work);
    for (index_t group = 0; group < part->groups; group++)
        NAME(multiply_one)(part->rows, work->layout.positions, depth,
                           (const REAL *)panels + group * part->rows * depth, 0, 0, offset,
                           (const REAL *)scratch + group * work->layout.set,
                           (REAL *)result + group * part->rows * work->layout.pitch, work->layout.pitch, accumulate,
                           (int)work->layout.cut, 0, 0);
}

/* Vectors of the next panel of turned columns: as `wide` for the tallest tile. */
#define WIDEST (ROWS == 8 ? V8 : V4)
static inline index_t NAME(panel)(index_t columns)
{
    return NAME(wide)(ROWS, (columns + LANES - 1) / LANES);
}

/* R rows by C columns of inner products along the positions: vectors of partial sums, added up at the end in a fixed
   order. U vectors of positions at a time keep enough independent chains where R * C is small. The last vector ends with
   the positions, without those that others had; fewer than a vector are added one by one. */
static inline __attribute__((always_inline)) void NAME(inner)(
    const int R, const int C, const int U, index_t positions, const REAL *scratch, const index_t *offset,
    const REAL *compact, index_t compact_pitch, REAL *result, index_t pitch, int accumulate)
{
    VECTOR sum[16];
    REAL sums[16 + 16]; /* whole vectors are written */
    index_t q = 0;
#pragma GCC unroll 16
    for (int i = 0; i < R * C * U; i++)
        sum[i] = (VECTOR){0};
    for (; q + U * LANES <= positions; q += U * LANES)
#pragma GCC unroll 4
        for (int u = 0; u < U; u++)
#pragma GCC unroll 8
            for (int i = 0; i < R; i++) {
                VECTOR x = LOAD(scratch + offset[i] + q + u * LANES);
                IN_REGISTER(x);
#pragma GCC unroll 4
                for (int j = 0; j < C; j++)
                    sum[(u * R + i) * C + j] += x * LOAD(compact + j * compact_pitch + q + u * LANES);
            }
#pragma GCC unroll 16
    for (int i = R * C; i < R * C * U; i++) /* the positions that went at a time */
        sum[i % (R * C)] += sum[i];
    for (; q < positions && positions >= LANES; q = q + LANES < positions ? q + LANES : positions) {
        const index_t at = q + LANES < positions ? q : positions - LANES;
        const NAME(mask) there = NAME(lanes_between)(q - at, LANES);
        VECTOR y[4];
#pragma GCC unroll 4
        for (int j = 0; j < C; j++)
            y[j] = NAME(keep)(LOAD(compact + j * compact_pitch + at), there);
#pragma GCC unroll 8
        for (int i = 0; i < R; i++) {
            const VECTOR x = NAME(keep)(LOAD(scratch + offset[i] + at), there);
#pragma GCC unroll 4
            for (int j = 0; j < C; j++)
                sum[i * C + j] += x * y[j];
        }
    }
    NAME(sum_lanes)(R * C, sum, sums);
#pragma GCC unroll 8
    for (int i = 0; i < R; i++)
#pragma GCC unroll 4
        for (int j = 0; j < C; j++) {
            REAL value = sums[i * C + j], *at = result + i * pitch + j;
            for (index_t rest = q; rest < positions; rest++)
                value += scratch[offset[i] + rest] * compact[j * compact_pitch + rest];
            *at = accumulate ? *at + value : value;
        }
}

/* Tiles of 16 sums at most: of 4 rows by 4 columns, which have 8 loads for 16 products, or of 8 by 2. */
static void NAME(dot_one)(index_t rows, index_t columns, index_t positions, const index_t *offset,
                          const REAL *scratch, const REAL *compact, index_t compact_pitch, REAL *result,
                          index_t pitch, int accumulate)
{
    for (index_t j = 0, wide; j < columns; j += wide) {
        const REAL *y = compact + j * compact_pitch;
        wide = columns - j >= 4 && ROWS == 8 ? 4 : columns - j >= 2 ? 2 : 1;
        for (index_t i = 0, step; i < rows; i += step) {
            REAL *at = result + i * pitch + j;
            const index_t left = rows - i;
            step = left >= 4 && ROWS == 8 && left != 5 ? (left >= 8 && wide < 4 ? 8 : 4) : left >= 3 ? 3 : 1;
#define INNER(R, C, U)                                                                                                \
    NAME(inner)(R, C, U, positions, scratch, offset + i, y, compact_pitch, at, pitch, accumulate)
/* R rows, and as many positions at a time as suit four columns, two and one */
#define INNER_OF(R, OF_FOUR, OF_TWO, OF_ONE)                                                                          \
    do {                                                                                                              \
        if (ROWS == 8 && wide == 4)                                                                                   \
            INNER(R, 4, OF_FOUR);                                                                                     \
        else if (wide == 2)                                                                                           \
            INNER(R, 2, OF_TWO);                                                                                      \
        else                                                                                                          \
            INNER(R, 1, OF_ONE);                                                                                      \
    } while (0)
            if (ROWS == 8 && step == 8) {
                if (wide == 2)
                    INNER(8, 2, 1);
                else
                    INNER(8, 1, 1);
            } else if (ROWS == 8 && step == 4)
                INNER_OF(4, 1, 1, 2);
            else if (step == 3)
                INNER_OF(3, 1, 1, 2);
            else
                INNER_OF(1, 2, 4, 4);
#undef INNER_OF
#undef INNER
        }
    }
}

static void NAME(dot)(const work_t *work, const void *panel, const index_t *offset, void *scratch, void *result,
                      int accumulate)
{
    const NAME(rows_panel) *compact = panel;
    const part_t *part = &work->part;
    const index_t depth = NAME(depth)(work);
    for (index_t group = 0; group < part->groups; group++)
        NAME(dot_one)(depth, part->rows, work->layout.positions, offset,
                      (const REAL *)scratch + group * work->layout.set,
                      compact->first + group * part->rows * compact->pitch, compact->pitch,
                      (REAL *)result + group * depth * part->rows, part->rows, accumulate);
}
