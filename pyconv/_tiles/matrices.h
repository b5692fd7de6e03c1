/* Products of matrices between registers of 16 rows of 64 bytes (AMX). A row of weights holds up to 16 cells of several
   channels each, under one tap; a row of cells, up to 16 positions of one of these: so a row of sums is one output
   channel at 16 positions. Four registers of sums, of 32 output channels by 32 positions, meet two of weights and two of
   cells, which are the other four: one register is loaded for each product, as fast as products are made.

   See body.h for the macros. */

#define OF_REGISTER 16 /* rows of a register, and cells or positions of a row */

/* The instructions, of which compilers do not know what they read and write. */
#define LOAD_REGISTER(which, from, apart)                                                                             \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #which : : "r"(from), "r"(apart) : "memory")
#define STORE_REGISTER(which, to, apart)                                                                              \
    __asm__ volatile("tilestored %%tmm" #which ", (%0,%1,1)" : : "r"(to), "r"(apart) : "memory")
#define CLEAR_REGISTER(which) __asm__ volatile("tilezero %tmm" #which)
#define ADD_PRODUCTS(sums, weights, cells)                                                                            \
    __asm__ volatile(PRODUCTS " %tmm" #cells ", %tmm" #weights ", %tmm" #sums)

#undef SLICES
#undef FEW
#ifdef SLICED
#define SLICES 3 /* of each number, which have arrays of their own (see slices.h) */
#define FEW 4    /* products of each that are summed at all positions before others: weights take 24 KB, half of L1 */
#else
#define SLICES 1
#define FEW 1000 /* all, but of very many taps */
#endif

/* Of a group's cells, how many are summed in one product: of a few it is one, under all taps of a row of them. */
static inline index_t NAME(summed_at_once)(const piece_t *piece)
{
    return piece->by_taps ? 1 : piece->summed;
}

/* The cells of a part of a group's channels: what lacks of those that are summed at once is zeros. */
static inline index_t NAME(cells_of_part)(const work_t *work)
{
    const index_t once = NAME(summed_at_once)(work->piece), channels = work->part.channels;
    return ((SLICES > 1 ? (channels + 1) / 2 : channels) + once - 1) / once * once;
}

/* Of the registers: the palette, the first row, bytes of a row and rows of each. */
typedef struct {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} NAME(shapes);

/* Sums of `rows` output channels in the registers 0 to 3, their weights in 4 and 5, cells in 6 and 7. */
static inline void NAME(shape_registers)(index_t rows, index_t depth)
{
    NAME(shapes) shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        const int lower = i == 2 || i == 3 || i == 5, sums = i < 4, cells = i > 5;
        const index_t upper = rows < OF_REGISTER ? rows : OF_REGISTER;
        const index_t of_rows = !lower ? upper : rows > OF_REGISTER ? rows - OF_REGISTER : 1;
        shapes.rows[i] = (uint8_t)(cells ? depth : of_rows);
        shapes.bytes[i] = (uint16_t)(sums || cells ? BYTES : depth * (index_t)sizeof(REAL));
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}

/* LOAD_REGISTER or STORE_REGISTER for R by V registers of sums, from `to` on. */
#define MOVE_SUMS(MOVE, R, V, to, pitch)                                                                              \
    do {                                                                                                              \
        const index_t line = (pitch) * (index_t)sizeof(REAL);                                                         \
        MOVE(0, to, line);                                                                                            \
        if ((V) > 1)                                                                                                  \
            MOVE(1, (to) + OF_REGISTER, line);                                                                        \
        if ((R) > 1)                                                                                                  \
            MOVE(2, (to) + OF_REGISTER * (pitch), line);                                                              \
        if ((R) > 1 && (V) > 1)                                                                                       \
            MOVE(3, (to) + OF_REGISTER * (pitch) + OF_REGISTER, line);                                                \
    } while (0)

/* R by V registers of sums, from `to` on: cleared, or what is there. */
static inline __attribute__((always_inline)) void NAME(begin_sums)(const int R, const int V, const REAL *to,
                                                                 index_t pitch, int accumulate)
{
    if (!accumulate) {
        CLEAR_REGISTER(0);
        CLEAR_REGISTER(1);
        CLEAR_REGISTER(2);
        CLEAR_REGISTER(3);
        return;
    }
    MOVE_SUMS(LOAD_REGISTER, R, V, to, pitch);
}

static inline __attribute__((always_inline)) void NAME(end_sums)(const int R, const int V, REAL *to, index_t pitch)
{
    MOVE_SUMS(STORE_REGISTER, R, V, to, pitch);
}

/* Call TILE(R, V) for so many rows and columns, 32 of either at most. */
#define CHOOSE_TILE(TILE, rows, columns)                                                                              \
    do {                                                                                                              \
        if ((rows) > OF_REGISTER && (columns) > OF_REGISTER)                                                          \
            TILE(2, 2);                                                                                               \
        else if ((rows) > OF_REGISTER)                                                                                \
            TILE(2, 1);                                                                                               \
        else if ((columns) > OF_REGISTER)                                                                             \
            TILE(1, 2);                                                                                               \
        else                                                                                                          \
            TILE(1, 1);                                                                                               \
    } while (0)

/* What all tiles have: of a row of weights so many steps, each of so many products, of so many rows of cells; where the
   first row of each product begins, `every` apart in the list of taps; how far the rows are from one to the next, and
   from those of one slice to the next one's. */
typedef struct {
    index_t steps, products, once, every, apart, slice;
    const index_t *offset;
} NAME(depths);

/* LOAD_REGISTER for one of two, or both. */
#define LOAD_UP_TO_TWO(N, which, other, from, next, apart)                                                            \
    do {                                                                                                              \
        LOAD_REGISTER(which, from, apart);                                                                            \
        if ((N) > 1)                                                                                                  \
            LOAD_REGISTER(other, next, apart);                                                                        \
    } while (0)
#define LOAD_ROWS(R, s) LOAD_UP_TO_TWO(R, 4, 5, rows + (s) * row_slice, below + (s) * row_slice, width)
#define LOAD_COLUMNS(V, s) LOAD_UP_TO_TWO(V, 6, 7, columns + (s) * slice, beside + (s) * slice, apart)
#define ADD_ALL(R, V)                                                                                                 \
    do {                                                                                                              \
        ADD_PRODUCTS(0, 4, 6);                                                                                        \
        if ((R) > 1)                                                                                                  \
            ADD_PRODUCTS(2, 5, 6);                                                                                    \
        if ((V) > 1)                                                                                                  \
            ADD_PRODUCTS(1, 4, 7);                                                                                    \
        if ((R) > 1 && (V) > 1)                                                                                       \
            ADD_PRODUCTS(3, 5, 7);                                                                                    \
    } while (0)

/* Sums += the products of R registers of rows and V of columns, of which the second ones are `below` and `beside`; of
   slices, which are so many bytes apart, all that count, in an order in which one operand of each is there. */
static inline __attribute__((always_inline)) void NAME(add_matrices)(
    const int R, const int V, const char *rows, const char *below, index_t row_slice, index_t width,
    const char *columns, const char *beside, index_t slice, index_t apart)
{
    LOAD_ROWS(R, 0);
#ifdef SLICED
    LOAD_COLUMNS(V, 2);
    ADD_ALL(R, V);
    LOAD_COLUMNS(V, 1);
    ADD_ALL(R, V);
    LOAD_ROWS(R, 1);
    ADD_ALL(R, V);
    LOAD_COLUMNS(V, 0);
    ADD_ALL(R, V);
    LOAD_ROWS(R, 2);
    ADD_ALL(R, V);
    LOAD_ROWS(R, 0);
#else
    LOAD_COLUMNS(V, 0);
#endif
    ADD_ALL(R, V);
}

/* Up to 32 rows by up to 32 positions, of all products those from `first` on before `end`. */
static inline __attribute__((always_inline)) void NAME(matrix_tile)(
    const int R, const int V, const NAME(depths) *d, index_t first, index_t end, index_t rows, const REAL *weights,
    const REAL *cells, REAL *to, index_t pitch, int accumulate)
{
    const index_t size = sizeof(REAL), width = d->once * size, slice = rows * width;
    const char *above = (const char *)weights + first * SLICES * slice;
    const index_t *offset = d->offset + first / d->products * d->products * d->once;
    NAME(begin_sums)(R, V, to, pitch, accumulate);
    for (index_t i = first, k = first % d->products; i < end; i++, above += SLICES * slice) {
        const char *columns = (const char *)(cells + offset[k * d->every]);
        NAME(add_matrices)(R, V, above, above + OF_REGISTER * width, slice, width, columns, columns + BYTES,
                           d->slice * size, d->apart * size);
        if (++k == d->products) {
            k = 0;
            offset += d->products * d->once;
        }
    }
    NAME(end_sums)(R, V, to, pitch);
}

/* The same where positions may end amid a register, behind which nothing may be written. Of slices what is there is
   added to sums that are made apart. */
static void NAME(multiply_tile)(const NAME(depths) *d, index_t first, index_t end, index_t rows, index_t positions,
                                const REAL *weights, const REAL *cells, REAL *to, index_t pitch, int accumulate, int cut)
{
    REAL sums[2 * OF_REGISTER * 2 * OF_REGISTER] __attribute__((aligned(BYTES)));
    const index_t most = cut ? positions : NAME(up)(positions), n = most < 2 * OF_REGISTER ? most : 2 * OF_REGISTER;
    const int adds = SLICES > 1 && accumulate, apart = adds || (cut && positions < 2 * OF_REGISTER);
    const index_t line = apart ? 2 * OF_REGISTER : pitch;
    REAL *here = apart ? sums : to;
    for (index_t r = 0; r < rows && apart && accumulate && !adds; r++)
        __builtin_memcpy(sums + r * line, to + r * pitch, n * sizeof(REAL));
#define TILE_OF(R, V) NAME(matrix_tile)(R, V, d, first, end, rows, weights, cells, here, line, accumulate && !adds)
    CHOOSE_TILE(TILE_OF, rows, positions);
#undef TILE_OF
    for (index_t r = 0; r < rows && apart; r++)
        NAME(store_run)(to + r * pitch, 1, sums + r * line, n, 0, adds);
}

/* Of 32 rows some products for all positions, then the next: their weights stay in L1 while cells come from L2. */
static void NAME(multiply_matrices)(const work_t *work, const void *panels, const index_t *offset, void *scratch,
                                    void *result, int accumulate)
{
    const part_t *part = &work->part;
    const layout_t *layout = &work->layout;
    const index_t positions = layout->positions, pitch = layout->pitch;
    if (!NAME(depth)(work)) {
        for (index_t i = 0; !accumulate && i < part->groups * part->rows; i++)
            NAME(zero)(layout->cut ? positions : NAME(up)(positions), (REAL *)result + i * pitch);
        return;
    }
    const index_t taps = NAME(all_taps)(work->piece), row_of_taps = work->piece->axis[2].taps;
    const index_t at_once = NAME(summed_at_once)(work->piece), once = work->piece->by_taps ? row_of_taps : at_once;
    const index_t cells = NAME(cells_of_part)(work), depth = SLICES * cells * taps;
    const NAME(depths) d = work->piece->by_taps
        ? (NAME(depths)){cells, taps / once, once, once, layout->stream, 0, offset}
        : (NAME(depths)){cells / once, taps, once, 1, layout->channel, cells * layout->channel, offset};
    const index_t all = d.steps * d.products, parts = (all + FEW - 1) / FEW, few = (all + parts - 1) / parts;
    for (index_t row = 0, high, same; row < part->rows; row += same) {
        const index_t left = part->rows - row;
        high = left < 2 * OF_REGISTER ? left : 2 * OF_REGISTER;
        same = left / high * high;
        NAME(shape_registers)(high, once);
        for (index_t i = row; i < row + same; i += high)
            for (index_t k = 0, end; k < all; k = end) {
                end = k + few < all ? k + few : all;
                for (index_t q = 0; q < positions; q += 2 * OF_REGISTER)
                    NAME(multiply_tile)(&d, k, end, high, positions - q, (const REAL *)panels + i * depth,
                                        (const REAL *)scratch + q, (REAL *)result + i * pitch + q, pitch,
                                        accumulate || k > 0, (int)layout->cut);
            }
    }
    __asm__ volatile("tilerelease");
}

/* Rows of results, of which the channels of a position lie side by side in target: squares are turned. Of `width` rows
   each one has their words. */
static void NAME(store_beside)(const work_t *work, const REAL *result, index_t rows, index_t width, char *target,
                               int accumulate)
{
    const piece_t *piece = work->piece;
    const index_t *extent = work->block.extent, *stride = piece->target_stride, pitch = work->layout.pitch;
    for (index_t s = 0; s < work->block.samples; s++)
        for (index_t z = 0; z < extent[0]; z++)
            for (index_t y = 0; y < extent[1]; y++) {
                const REAL *from = result + s * work->layout.batch + z * work->layout.axis[0] + y * work->layout.axis[1];
                REAL *to = (REAL *)target + (s * piece->target_batch + z * stride[0] + y * stride[1]) / width;
                if (accumulate)
                    NAME(transpose)(to, stride[2] / width, from, width * pitch, rows / width, extent[2], 1);
                else
                    NAME(transpose)(to, stride[2] / width, from, width * pitch, rows / width, extent[2], 0);
            }
}
