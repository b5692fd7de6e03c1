/* The part of the weight that a task has, where it does not lie in memory as a way reads and writes it: copied to a patch
   and from one, see patch.h. See body.h for the macros. */

/* Where element (row, channel) of a part of the weight lies; of complex numbers, the one that both belong to. */
static inline index_t NAME(weight_place)(const piece_t *piece, index_t group, index_t row, index_t channel, index_t z,
                                         index_t y)
{
    return group * piece->weight_group + row / piece->parts * piece->weight_row
        + channel / piece->parts * piece->weight_channel + z * piece->weight_stride[0] + y * piece->weight_stride[1];
}

/* Runs of weights that lie evenly in memory, as long as they can be: taps along x, all taps, those of all channels. */
typedef struct {
    index_t channels, planes, lines, n, along;
} NAME(weight_runs);

static inline NAME(weight_runs) NAME(find_weight_runs)(const work_t *work)
{
    const piece_t *piece = work->piece;
    const axis_t *axis = piece->axis;
    const index_t *stride = piece->weight_stride;
    NAME(weight_runs) r = {work->part.channels, axis[0].taps, axis[1].taps, axis[2].taps, stride[2]};
    if ((r.lines == 1 || stride[1] == r.n * r.along) && (r.planes == 1 || stride[0] == r.lines * r.n * r.along)) {
        r.n *= r.planes * r.lines;
        r.planes = r.lines = 1;
    }
    if (r.planes * r.lines * r.n == 1)
        r.along = piece->weight_channel;
    const int are_whole = CELL == 1 || !piece->several || CELL * (work->part.channel + r.channels) <= piece->several;
    if (piece->parts == 1 && are_whole && r.planes * r.lines == 1
        && piece->weight_channel == r.n * r.along) {
        r.n *= r.channels;
        r.channels = 1;
    }
    return r;
}

/* A walk over these runs in a part of the weight: `step` rows and channels at a time. */
#define EACH_RUN_OF_WEIGHTS(step)                                                                                     \
    const piece_t *piece = work->piece;                                                                               \
    const part_t *part = &work->part;                                                                                 \
    const NAME(weight_runs) r = NAME(find_weight_runs)(work);                                                         \
    const int stored = piece->stored[WEIGHT];                                                                         \
    const index_t taps = NAME(all_taps)(piece);                                                                       \
    for (index_t g = 0; g < part->groups; g++)                                                                        \
        for (index_t o = 0; o < part->rows; o += step)                                                                \
            for (index_t c = 0; c < r.channels; c += step)                                                            \
                for (index_t z = 0; z < r.planes; z++)                                                                \
                    for (index_t y = 0; y < r.lines; y++)

static void NAME(read_weight)(const work_t *work, const char *weight, REAL *patch)
{
    EACH_RUN_OF_WEIGHTS(1) {
        REAL *to = patch + (((g * part->rows + o) * part->channels + c) * taps) + (z * r.lines + y) * r.n;
        const index_t place = NAME(weight_place)(piece, g, part->row + o, c, z, y), imaginary = (o ^ c) & 1;
#if CELL > 1
        NAME(read_several)(stored, weight + place * NAME(size_of)(stored), piece->weight_channel / CELL,
                           NAME(channels_of)(piece, part->channel + c), r.along, r.n, 0, to);
        continue;
#endif
        if (piece->parts == 1) {
            NAME(read_row)(stored, weight + place * NAME(size_of)(stored), r.along, r.n, to);
            continue;
        }
        const REAL *numbers = (const REAL *)weight + place + imaginary;
        const REAL sign = imaginary && c & 1 ? -1 : 1;
        for (index_t x = 0; x < r.n; x++)
            to[x] = sign * numbers[x * r.along];
    }
}

static void NAME(write_weight)(const work_t *work, const REAL *patch, char *weight, int accumulate)
{
    EACH_RUN_OF_WEIGHTS(piece->parts) {
        const REAL *from = patch + (((g * part->rows + o) * part->channels + c) * taps) + (z * r.lines + y) * r.n;
        const index_t place = NAME(weight_place)(piece, g, part->row + o, c, z, y), row = part->channels * taps;
        if (piece->parts == 1) {
            NAME(write_row)(stored, from, r.n, weight + place * NAME(size_of)(stored), r.along, accumulate);
            continue;
        }
        for (index_t x = 0; x < r.n; x++) {
            REAL *to = (REAL *)weight + place + x * r.along;
            const REAL real = from[x] - from[row + taps + x], imaginary = from[taps + x] + from[row + x];
            to[0] = accumulate ? to[0] + real : real;
            to[1] = accumulate ? to[1] + imaginary : imaginary;
        }
    }
}
#undef EACH_RUN_OF_WEIGHTS
