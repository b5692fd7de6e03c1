/* Rows of an operand's cells, read to a patch or written from one: turned where channels lie last but not in the patch,
   converted where elements are of another type. See patch.h for what patches are, and body.h for the macros. */

/* An operand as it lies: bundles of `width` real channels side by side, from one to the next `apart`. Of cells
   of several channels a bundle is that of those `channels` that one has. */
typedef struct {
    char *at; /* the first cell of the first sample's first channel */
    const index_t *stride;
    index_t batch, bundles, width, apart;
    int stored, channels;
} NAME(operand);

static NAME(operand) NAME(operand_of)(const work_t *work, int which, char *at)
{
    const piece_t *piece = work->piece;
    const part_t *part = &work->part;
    const int source = which == SOURCE;
    const index_t channels = part->groups * (source ? part->channels : part->rows);
    const index_t row = source ? 0 : part->row;
    NAME(operand) o = {at, source ? piece->source_stride : piece->target_stride,
                       source ? piece->source_batch : piece->target_batch, 0, piece->parts,
                       source ? piece->source_channel : piece->target_channel, piece->stored[which], CELL};
    if (o.apart == piece->parts && (o.stored == STORED_REAL || CELL == 1)) {
        o.width = channels;
        o.at += row * NAME(size_of)(o.stored);
    } else
        o.at += row / piece->parts * o.apart * NAME(size_of)(o.stored);
    o.bundles = channels / o.width;
    o.at += work->block.sample * o.batch * NAME(size_of)(o.stored);
    return o;
}

#if CELL == 1

/* n cells whose channels lie side by side -> such cells, in the patch. */
static void NAME(read_beside)(const NAME(operand) *o, const char *from, index_t n, REAL *to)
{
    const index_t dense = o->stride[2] == o->width ? n : 1, step = o->stride[2] * NAME(size_of)(o->stored);
    for (index_t i = 0; i < n; i += dense, from += step, to += o->width)
        NAME(read_row)(o->stored, from, 1, dense * o->width, to);
}

/* And from there (+ what is there). */
static void NAME(write_beside)(const NAME(operand) *o, const REAL *from, index_t n, char *to, int accumulate)
{
    const index_t dense = o->stride[2] == o->width ? n : 1, step = o->stride[2] * NAME(size_of)(o->stored);
    for (index_t i = 0; i < n; i += dense, from += o->width, to += step)
        NAME(write_row)(o->stored, from, dense * o->width, to, 1, accumulate);
}

#define TURNED_AT_ONCE 64 /* channels of LANES cells: in the first-level cache */

/* n cells of another type, whose channels lie side by side, -> rows of the patch, `pitch` apart, if it READS; else these
   -> such cells (+ cells). */
static inline __attribute__((always_inline)) void NAME(turn_converted)(
    const int READS, const NAME(operand) *o, char *cells, index_t n, REAL *rows, index_t pitch, int accumulate)
{
    NAME(operand) some = *o;
    REAL turned[16 * TURNED_AT_ONCE];
    for (index_t i = 0; i < n; i += LANES)
        for (index_t c = 0; c < o->width; c += TURNED_AT_ONCE) {
            const index_t here = n - i < LANES ? n - i : LANES, left = o->width - c;
            char *at = cells + (i * o->stride[2] + c) * NAME(size_of)(o->stored);
            REAL *row = rows + c * pitch + i;
            some.width = left < TURNED_AT_ONCE ? left : TURNED_AT_ONCE;
            if (READS) {
                NAME(read_beside)(&some, at, here, turned);
                NAME(transpose)(row, pitch, turned, some.width, here, some.width, 0);
            } else {
                NAME(transpose)(turned, some.width, row, pitch, some.width, here, 0);
                NAME(write_beside)(&some, turned, here, at, accumulate);
            }
        }
}

static __attribute__((noinline)) void NAME(read_turned)(const NAME(operand) *o, const char *from, index_t n, REAL *to,
                                                        index_t pitch)
{
    NAME(turn_converted)(1, o, (char *)from, n, to, pitch, 0);
}

static __attribute__((noinline)) void NAME(write_turned)(const NAME(operand) *o, REAL *from, index_t n, char *to,
                                                         index_t pitch, int accumulate)
{
    NAME(turn_converted)(0, o, to, n, from, pitch, accumulate);
}

#endif

/* n cells of the first bundle -> rows of the patch, `pitch` apart. */
static inline void NAME(read_cells)(const NAME(operand) *o, const char *from, index_t n, REAL *to, index_t pitch)
{
#if CELL > 1
    (void)pitch;
    NAME(read_several)(o->stored, from, o->apart / CELL, o->channels, o->stride[2], n, 1, to);
#else
    if (o->width == 1)
        NAME(read_row)(o->stored, from, o->stride[2], n, to);
    else if (o->stored != STORED_REAL)
        NAME(read_turned)(o, from, n, to, pitch);
    else
        NAME(transpose)(to, pitch, (const REAL *)from, o->stride[2], n, o->width, 0);
#endif
}

/* What is beyond the edge: the parts of a number, or a cell of several channels, zeros where it has fewer. */
static inline void NAME(read_constant)(const piece_t *piece, int channels, REAL *constant)
{
    const char *value = (const char *)piece->edge_value;
#if CELL > 1
    NAME(read_several)(piece->stored[SOURCE], value, 0, channels, 1, 1, 1, constant);
#else
    (void)channels;
    NAME(read_row)(piece->stored[SOURCE], value, 1, piece->parts, constant);
#endif
}

/* A row of a source that may go on beyond the edges: `cells` is the row's cell 0, NULL where all of it is constant. */
static void NAME(read_edged)(const piece_t *piece, const NAME(operand) *o, const char *cells, index_t first, index_t n,
                             REAL *to, index_t pitch)
{
    const index_t step = o->stride[2] * NAME(size_of)(o->stored), size = cells ? piece->axis[2].size : 0;
    index_t low, high;
    REAL constant[2] = {0};
    NAME(cells_there)(first, n, size, &low, &high);
    if (piece->edge == EDGE_CONSTANT)
        NAME(read_constant)(piece, o->channels, constant);
    if (high > low)
        NAME(read_cells)(o, cells + (first + low) * step, high - low, to + low, pitch);
    for (index_t i = low > 0 ? 0 : high; i < n; i = i + 1 == low ? high : i + 1) {
        const index_t cell = cells ? NAME(fold)(piece->edge, first + i, size) : -1;
        if (cell >= 0)
            NAME(read_cells)(o, cells + cell * step, 1, to + i, pitch);
        else
            for (index_t c = 0; c < o->width; c++)
                to[c * pitch + i] = constant[c % piece->parts];
    }
}
