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

/* Of a group's cells, how many are summed in one product: equal parts. What lacks of a part is zeros. Of a few cells it
   is one, under all taps of a row of them. */
static inline index_t NAME(summed_at_once)(const piece_t *piece)
{
    if (piece->by_taps)
        return 1;
    const index_t cells = (piece->several + CELL - 1) / CELL, parts = (cells + OF_REGISTER - 1) / OF_REGISTER;
    return (cells + parts - 1) / parts;
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

/* Sums += the products of R registers of rows and V of columns, of which the second ones are `below` and `beside`. */
static inline __attribute__((always_inline)) void NAME(add_matrices)(
    const int R, const int V, const void *rows, const void *below, index_t width, const void *columns, const void *beside,
    index_t apart)
{
    LOAD_REGISTER(4, rows, width);
    if (R > 1)
        LOAD_REGISTER(5, below, width);
    LOAD_REGISTER(6, columns, apart);
    ADD_PRODUCTS(0, 4, 6);
    if (R > 1)
        ADD_PRODUCTS(2, 5, 6);
    if (V > 1) {
        LOAD_REGISTER(7, beside, apart);
        ADD_PRODUCTS(1, 4, 7);
    }
    if (R > 1 && V > 1)
        ADD_PRODUCTS(3, 5, 7);
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
   first row of each product begins, `every` apart in the list of taps; and how far the rows are from one to the next. */
typedef struct {
    index_t steps, products, once, every, apart;
    const index_t *offset;
} NAME(depths);

/* Up to 32 rows by up to 32 positions; the lower register of weights has `rows` less those of the upper one. */
static inline __attribute__((always_inline)) void NAME(matrix_tile)(
    const int R, const int V, const NAME(depths) *d, index_t rows, const REAL *weights, const REAL *cells, REAL *to,
    index_t pitch, int accumulate)
{
    const index_t upper = R > 1 ? OF_REGISTER : rows, lower = rows - upper, *offset = d->offset;
    const REAL *below = weights + d->steps * d->products * upper * d->once;
    NAME(begin_sums)(R, V, to, pitch, accumulate);
    for (index_t s = 0; s < d->steps; s++, offset += d->once * d->products)
        for (index_t k = 0; k < d->products; k++, weights += upper * d->once, below += lower * d->once) {
            const REAL *first = cells + offset[k * d->every];
            NAME(add_matrices)(R, V, weights, below, d->once * (index_t)sizeof(REAL), first, first + OF_REGISTER,
                               d->apart * (index_t)sizeof(REAL));
        }
    NAME(end_sums)(R, V, to, pitch);
}

/* The same where positions may end amid a register, behind which nothing may be written. */
static void NAME(multiply_tile)(const NAME(depths) *d, index_t rows, index_t positions, const REAL *weights,
                                const REAL *cells, REAL *to, index_t pitch, int accumulate, int cut)
{
    REAL apart[2 * OF_REGISTER * 2 * OF_REGISTER];
    const int ends = cut && positions < 2 * OF_REGISTER;
    const index_t line = ends ? 2 * OF_REGISTER : pitch;
    REAL *here = ends ? apart : to;
    for (index_t r = 0; r < rows && ends && accumulate; r++)
        __builtin_memcpy(apart + r * line, to + r * pitch, positions * sizeof(REAL));
#define TILE_OF(R, V) NAME(matrix_tile)(R, V, d, rows, weights, cells, here, line, accumulate)
    CHOOSE_TILE(TILE_OF, rows, positions);
#undef TILE_OF
    for (index_t r = 0; r < rows && ends; r++)
        __builtin_memcpy(to + r * pitch, apart + r * line, positions * sizeof(REAL));
}

/* Some positions for all rows, then the next: their cells stay in L1 while weights come from L2, in their order. */
static void NAME(multiply_matrices)(const work_t *work, const void *panels, const index_t *offset, void *scratch,
                                    void *result, int accumulate)
{
    const part_t *part = &work->part;
    const layout_t *layout = &work->layout;
    const index_t depth = NAME(depth)(work), positions = layout->positions, pitch = layout->pitch;
    if (!depth) {
        for (index_t i = 0; !accumulate && i < part->groups * part->rows; i++)
            NAME(zero)(layout->cut ? positions : NAME(up)(positions), (REAL *)result + i * pitch);
        return;
    }
    const index_t taps = NAME(all_taps)(work->piece), row_of_taps = work->piece->axis[2].taps;
    const index_t cells = NAME(summed_at_once)(work->piece), once = work->piece->by_taps ? row_of_taps : cells;
    const NAME(depths) d = work->piece->by_taps
        ? (NAME(depths)){part->channels, taps / once, once, once, layout->stream, offset}
        : (NAME(depths)){part->channels / once, taps, once, 1, layout->channel, offset};
    for (index_t row = 0, high, same; row < part->rows; row += same) {
        const index_t left = part->rows - row;
        high = left < 2 * OF_REGISTER ? left : 2 * OF_REGISTER;
        same = left / high * high;
        NAME(shape_registers)(high, once);
        for (index_t q = 0; q < positions; q += 2 * OF_REGISTER)
            for (index_t i = row; i < row + same; i += high)
                NAME(multiply_tile)(&d, high, positions - q, (const REAL *)panels + i * depth, (const REAL *)scratch + q,
                                    (REAL *)result + i * pitch + q, pitch, accumulate, (int)layout->cut);
    }
    __asm__ volatile("tilerelease");
}
