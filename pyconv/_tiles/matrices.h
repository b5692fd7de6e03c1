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

/* Of a group's cells, how many are summed in one product: equal parts. What lacks of a part is zeros. */
static inline index_t NAME(summed_at_once)(const piece_t *piece)
{
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

/* Up to 32 rows by up to 32 positions: R by V registers of sums, of which the lower ones have `lower` rows. */
static inline __attribute__((always_inline)) void NAME(matrix_tile)(
    const int R, const int V, index_t rows, index_t lower, const REAL *weights, index_t steps, index_t taps, index_t once,
    const index_t *offset, const REAL *cells, index_t channel, REAL *to, index_t pitch, int accumulate)
{
    const REAL *below = weights + steps * taps * rows * once;
    const index_t width = once * (index_t)sizeof(REAL);
    const index_t apart = channel * (index_t)sizeof(REAL), line = pitch * (index_t)sizeof(REAL);
    if (accumulate) {
        LOAD_REGISTER(0, to, line);
        if (V > 1)
            LOAD_REGISTER(1, to + OF_REGISTER, line);
        if (R > 1)
            LOAD_REGISTER(2, to + OF_REGISTER * pitch, line);
        if (R > 1 && V > 1)
            LOAD_REGISTER(3, to + OF_REGISTER * pitch + OF_REGISTER, line);
    } else {
        CLEAR_REGISTER(0);
        CLEAR_REGISTER(1);
        CLEAR_REGISTER(2);
        CLEAR_REGISTER(3);
    }
    for (index_t s = 0; s < steps; s++, offset += once * taps)
        for (index_t t = 0; t < taps; t++, weights += rows * once, below += lower * once) {
            const REAL *from = cells + offset[t];
            LOAD_REGISTER(4, weights, width);
            if (R > 1)
                LOAD_REGISTER(5, below, width);
            LOAD_REGISTER(6, from, apart);
            ADD_PRODUCTS(0, 4, 6);
            if (R > 1)
                ADD_PRODUCTS(2, 5, 6);
            if (V > 1) {
                LOAD_REGISTER(7, from + OF_REGISTER, apart);
                ADD_PRODUCTS(1, 4, 7);
            }
            if (R > 1 && V > 1)
                ADD_PRODUCTS(3, 5, 7);
        }
    STORE_REGISTER(0, to, line);
    if (V > 1)
        STORE_REGISTER(1, to + OF_REGISTER, line);
    if (R > 1)
        STORE_REGISTER(2, to + OF_REGISTER * pitch, line);
    if (R > 1 && V > 1)
        STORE_REGISTER(3, to + OF_REGISTER * pitch + OF_REGISTER, line);
}

static void NAME(multiply_matrices)(const work_t *work, const void *panels, const index_t *offset, void *scratch,
                                  void *result, int accumulate)
{
    const part_t *part = &work->part;
    const layout_t *layout = &work->layout;
    const index_t once = NAME(summed_at_once)(work->piece), taps = NAME(all_taps)(work->piece);
    const index_t depth = NAME(depth)(work), steps = part->channels / once, positions = layout->positions;
    const index_t pitch = layout->pitch;
    REAL apart[2 * OF_REGISTER * 2 * OF_REGISTER];
    if (!depth) {
        for (index_t i = 0; !accumulate && i < part->groups * part->rows; i++)
            NAME(zero)(layout->cut ? positions : NAME(up)(positions), (REAL *)result + i * pitch);
        return;
    }
    for (index_t group = 0; group < part->groups; group++)
        for (index_t row = 0, same; row < part->rows; row += same) {
            const index_t left_rows = part->rows - row;
            const index_t rows = left_rows < 2 * OF_REGISTER ? left_rows : 2 * OF_REGISTER;
            same = left_rows / rows * rows;
            const REAL *cells = (const REAL *)scratch + group * layout->set;
            NAME(shape_registers)(rows, once);
            for (index_t q = 0; q < positions; q += 2 * OF_REGISTER) {
                const index_t left = positions - q;
                const int ends = layout->cut && left < 2 * OF_REGISTER;
                const index_t line = ends ? 2 * OF_REGISTER : pitch;
                for (index_t i = row; i < row + same; i += rows) {
                    const REAL *weights = (const REAL *)panels + (group * part->rows + i) * depth;
                    REAL *to = (REAL *)result + (group * part->rows + i) * pitch + q, *here = ends ? apart : to;
                    if (ends && accumulate)
                        for (index_t r = 0; r < rows; r++)
                            __builtin_memcpy(apart + r * line, to + r * pitch, left * sizeof(REAL));
#define TILE_OF(R, V)                                                                                                 \
    NAME(matrix_tile)(R, V, rows < OF_REGISTER ? rows : OF_REGISTER, rows - OF_REGISTER, weights, steps, taps, once, offset, cells + q,          \
                      layout->channel, here, line, accumulate)
                    if (rows > OF_REGISTER && left > OF_REGISTER) TILE_OF(2, 2);
                    else if (rows > OF_REGISTER) TILE_OF(2, 1);
                    else if (left > OF_REGISTER) TILE_OF(1, 2);
                    else TILE_OF(1, 1);
#undef TILE_OF
                    if (ends)
                        for (index_t r = 0; r < rows; r++)
                            __builtin_memcpy(to + r * pitch, apart + r * line, left * sizeof(REAL));
                }
            }
        }
    __asm__ volatile("tilerelease");
}
