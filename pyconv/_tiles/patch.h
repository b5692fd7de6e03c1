/* Operands that do not lie in memory as a way reads and writes them: the box of a block, or the part of the weight, is
   copied to a patch of its own, or from one. So are

     channels that lie last, for the ways that want rows of cells;
     elements of another type than is computed in, whose channels lie last in the patch too if the way wants them so;
     complex numbers, which are two real channels: (a + bi)(c + di) is the product of [[a, -b], [b, a]] and (c, d);
     cells beyond the edge of a source that has some there.

   See body.h for the macros. */

/* Cells of source, or positions in target, along each axis: the first and how many. */
typedef struct {
    index_t first[3], count[3];
} NAME(region);

/* Positions from the first to the last of so many tiles that lie side by side, and the first of tile `tile`. */
static inline index_t NAME(spanned)(const piece_t *piece, int a, index_t tiles)
{
    return piece->tile[a] < 0 ? tiles - (piece->tile[a] + 1) * piece->axis[a].tap_step : tiles * piece->tile[a];
}

static inline index_t NAME(first_of)(const piece_t *piece, int a, index_t tile)
{
    return piece->tile[a] < 0 ? tile : tile * piece->tile[a];
}

static NAME(region) NAME(source_region)(const piece_t *piece, const block_t *block)
{
    NAME(region) r;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        const index_t span = axis->tap_step * (axis->taps - 1), back = span < 0 ? span : 0;
        const index_t low = axis->step * NAME(first_of)(piece, a, block->start[a]) + axis->offset + back;
        const index_t positions = NAME(spanned)(piece, a, block->extent[a]);
        const index_t high = low + axis->step * (positions - 1) + (span < 0 ? -span : span) + 1;
        index_t least, most;
        NAME(window)(piece, a, &least, &most);
        r.first[a] = low < least ? least : low < most ? low : most;
        r.count[a] = (high < most ? high : most) - r.first[a];
        if (r.count[a] < 0)
            r.count[a] = 0;
    }
    return r;
}

static NAME(region) NAME(target_region)(const piece_t *piece, const block_t *block)
{
    NAME(region) r;
    for (int a = 0; a < 3; a++) {
        r.first[a] = NAME(first_of)(piece, a, block->start[a]);
        const index_t most = NAME(spanned)(piece, a, block->extent[a]), left = piece->count[a] - r.first[a];
        r.count[a] = left < 0 ? 0 : left < most ? left : most; /* of a lattice that has less of them none may be left */
    }
    return r;
}

/* The cells of target among such positions. */
static NAME(region) NAME(cells_of)(const piece_t *piece, const NAME(region) *positions)
{
    NAME(region) r;
    for (int a = 0; a < 3; a++) {
        const index_t low = positions->first[a] - piece->before[a], high = low + positions->count[a];
        const index_t cells = piece->count[a] - piece->before[a] - piece->behind[a];
        r.first[a] = low > 0 ? low : 0;
        r.count[a] = positions->count[a] ? (high < cells ? high : cells) - r.first[a] : 0;
    }
    return r;
}

/* So many times n, or more memory than there is: far beyond the edges there are more cells than a number holds. */
static inline index_t NAME(times)(index_t n, index_t count)
{
    const index_t most = (index_t)1 << 48;
    return count >= 0 && (double)n * (double)count < (double)most ? n * count : most;
}

/* Elements of the patch of the largest block, and some more: vectors are read beyond the end of rows. */
static index_t NAME(patch)(const work_t *work, int which)
{
    const piece_t *piece = work->piece;
    index_t n = work->part.groups * (which == SOURCE ? work->part.channels : work->part.rows);
    if (which == WEIGHT)
        return n * work->part.channels * NAME(all_taps)(piece) + 8 * LANES;
    n *= work->block.samples;
    for (int a = 0; a < 3; a++) {
        const axis_t *axis = &piece->axis[a];
        const index_t positions = NAME(spanned)(piece, a, work->block.extent[a]);
        const index_t span = axis->tap_step * (axis->taps - 1);
        const index_t cells = axis->step * (positions - 1) + (span < 0 ? -span : span) + 1;
        index_t low, high;
        NAME(window)(piece, a, &low, &high);
        n = NAME(times)(n, which == TARGET ? positions : cells < high - low ? cells : high - low);
    }
    return n + 8 * LANES;
}

/* Channels of a cell that lie side by side in the patch: all of them, where they lie last there. */
static inline index_t NAME(beside)(const work_t *work, int which)
{
    if (which == WEIGHT || !work->piece->close[which])
        return 1;
    return work->part.groups * (which == SOURCE ? work->part.channels : work->part.rows);
}

/* How the patch is seen: where its row 0 of group 0 would begin if it were the whole operand. */
static REAL *NAME(see_patch)(const work_t *work, int which, const NAME(region) *r, REAL *patch, piece_t *seen)
{
    const part_t *part = &work->part;
    seen->stored[which] = STORED_REAL;
    if (which == WEIGHT) {
        const axis_t *axis = work->piece->axis;
        seen->weight_stride[2] = 1;
        seen->weight_stride[1] = axis[2].taps;
        seen->weight_stride[0] = axis[1].taps * axis[2].taps;
        seen->weight_channel = axis[0].taps * seen->weight_stride[0];
        seen->weight_row = part->channels * seen->weight_channel;
        seen->weight_group = part->rows * seen->weight_row;
        return patch - part->row * seen->weight_row;
    }
    const index_t plane = r->count[1] * r->count[2], cells = r->count[0] * plane, beside = NAME(beside)(work, which);
    const index_t stride[3] = {plane * beside, r->count[2] * beside, beside};
    const index_t channel = work->piece->close[which] ? 1 : cells;
    if (which == TARGET) {
        seen->target_channel = channel;
        seen->target_group = part->rows * channel;
        seen->target_batch = part->groups * part->rows * cells;
        if (NAME(has_positions_beyond)(work->piece))
            seen->folded = EDGE_NONE; /* it has them too */
        patch -= work->block.sample * seen->target_batch + part->row * channel;
        for (int a = 0; a < 3; a++) {
            seen->target_stride[a] = stride[a];
            seen->before[a] = seen->behind[a] = 0;
            patch -= r->first[a] * stride[a];
        }
        return patch;
    }
    seen->source_channel = channel;
    seen->source_group = part->channels * channel;
    seen->source_batch = part->groups * part->channels * cells;
    for (int a = 0; a < 3; a++) {
        seen->source_stride[a] = stride[a];
        seen->axis[a].offset = work->piece->axis[a].offset - r->first[a];
        seen->axis[a].size = r->count[a];
    }
    return patch - work->block.sample * seen->source_batch;
}

/* The operand itself, of a source all of whose cells that the block reads are there. */
static void NAME(see_source)(const piece_t *piece, piece_t *seen)
{
    seen->stored[SOURCE] = piece->stored[SOURCE];
    seen->source_channel = piece->source_channel;
    seen->source_group = piece->source_group;
    seen->source_batch = piece->source_batch;
    for (int a = 0; a < 3; a++) {
        seen->source_stride[a] = piece->source_stride[a];
        seen->axis[a] = piece->axis[a];
    }
}

/* All rows of one channel, which may go on beyond the edges and whose cells lie side by side: whole vectors, with more
   than the row at their end, which is overwritten then. From the channel's cell 0 on, `there` cells are memory. */
static void NAME(read_edged_channel)(const piece_t *piece, const REAL *channel, const index_t *stride, index_t there,
                                     const NAME(region) *r, REAL *to)
{
    const index_t n = r->count[2], first = r->first[2], size = piece->axis[2].size;
    REAL constant;
    index_t low, high;
    __builtin_memcpy(&constant, piece->edge_value, sizeof(constant));
    NAME(cells_there)(first, n, size, &low, &high);
    for (index_t z = 0; z < r->count[0]; z++) {
        const index_t cz = NAME(fold)(piece->edge, r->first[0] + z, piece->axis[0].size);
        for (index_t y = 0; y < r->count[1]; y++, to += n) {
            const index_t cy = NAME(fold)(piece->edge, r->first[1] + y, piece->axis[1].size);
            const index_t row = cz * stride[0] + cy * stride[1], from = row + first + low;
            if (cz < 0 || cy < 0) {
                for (index_t i = 0; i < n; i++)
                    to[i] = constant;
                continue;
            }
            if (from + NAME(up)(high - low) <= there)
                for (index_t i = 0; i < high - low; i += LANES)
                    STORE(to + low + i, LOAD(channel + from + i));
            else
                __builtin_memcpy(to + low, channel + from, (high - low) * sizeof(REAL));
            for (index_t i = low > 0 ? 0 : high; i < n; i = i + 1 == low ? high : i + 1) {
                const index_t cell = NAME(fold)(piece->edge, first + i, size);
                to[i] = cell < 0 ? constant : channel[row + cell];
            }
        }
    }
}

/* Every row of a region -> patch, where so many channels lie `beside` one another. */
static void NAME(read_region)(const work_t *work, NAME(operand) *o, const NAME(region) *r, int edged, index_t beside,
                              REAL *patch)
{
    const piece_t *piece = work->piece;
    const index_t all = r->count[0] * r->count[1] * r->count[2], size = NAME(size_of)(o->stored), *stride = o->stride;
    index_t rows = r->count[1], n = r->count[2];
    if (!edged && stride[1] == n * stride[2]) { /* those that follow each other in memory together */
        n *= rows;
        rows = 1;
    }
    const int plain = edged && o->width == 1 && o->stored == STORED_REAL && stride[2] == 1;
    const index_t own =
        (piece->axis[0].size - 1) * stride[0] + (piece->axis[1].size - 1) * stride[1] + piece->axis[2].size;
    const index_t width = beside > 1 ? beside : o->width, bundles = beside > 1 ? 1 : o->bundles;
    for (index_t s = 0; s < work->block.samples; s++)
        for (index_t b = 0; b < bundles; b++, patch += width * all) {
#if CELL > 1
            o->channels = NAME(channels_of)(piece, work->part.channel + b % work->part.channels);
#endif
            if (plain) {
                const index_t there = own + (b + 1 < o->bundles ? o->apart : 0);
                NAME(read_edged_channel)(piece, (const REAL *)o->at + s * o->batch + b * o->apart, stride, there, r,
                                         patch);
                continue;
            }
            for (index_t z = 0; z < r->count[0]; z++)
                for (index_t y = 0; y < rows; y++) {
                    const char *from = o->at + (s * o->batch + b * o->apart) * size;
                    REAL *to = patch + (z * rows + y) * n * beside;
                    if (!edged) {
                        from += ((r->first[0] + z) * stride[0] + (r->first[1] + y) * stride[1]
                                 + r->first[2] * stride[2]) * size;
#if CELL == 1
                        if (beside > 1 && o->width == 1) { /* from rows of channels */
                            NAME(transpose)(to, beside, (const REAL *)from, o->apart, beside, n, 0);
                            continue;
                        }
                        if (beside > 1) {
                            NAME(read_beside)(o, from, n, to);
                            continue;
                        }
#endif
                        NAME(read_cells)(o, from, n, to, all);
                        continue;
                    }
                    const index_t cz = NAME(fold)(piece->edge, r->first[0] + z, piece->axis[0].size);
                    const index_t cy = NAME(fold)(piece->edge, r->first[1] + y, piece->axis[1].size);
                    from += (cz * stride[0] + cy * stride[1]) * size;
                    NAME(read_edged)(piece, o, cz < 0 || cy < 0 ? NULL : from, r->first[2], n, to, all);
                }
        }
}

static int NAME(is_edged)(const piece_t *piece, const NAME(region) *r)
{
    int edged = 0;
    for (int a = 0; a < 3; a++)
        edged |= r->first[a] < 0 || r->first[a] + r->count[a] > piece->axis[a].size;
    return edged && r->count[0] && r->count[1] && r->count[2];
}

/* The block's box of an operand, or the part of the weight -> patch, where `operand` is not NULL; gives back where to
   read or write it from, which with `seen` stands for the operand. That is the operand itself where only cells beyond
   the edge would need a patch, and the block reads none. */
static void *NAME(turn_in)(const work_t *work, int which, const void *operand, void *patch, piece_t *seen)
{
    const piece_t *piece = work->piece;
    NAME(region) r = {{0}, {0}};
    if (which == WEIGHT) {
        if (operand)
            NAME(read_weight)(work, operand, patch);
        return NAME(see_patch)(work, which, &r, patch, seen);
    }
    r = which == TARGET ? NAME(target_region)(piece, &work->block) : NAME(source_region)(piece, &work->block);
    const int edged = which == SOURCE && NAME(is_edged)(piece, &r);
    if (which == SOURCE && piece->only_edges && !edged) {
        NAME(see_source)(piece, seen);
        return (void *)operand;
    }
    if (operand) {
        NAME(operand) o = NAME(operand_of)(work, which, (char *)operand);
        NAME(read_region)(work, &o, &r, edged, NAME(beside)(work, which), patch);
    }
    return NAME(see_patch)(work, which, &r, patch, seen);
}

/* A plane of positions, each of `width` elements, in rows `pitch` apart: those beyond the edges of target are added to
   the cells that stand for them, along one axis after the other. */
static void NAME(fold_plane)(const piece_t *piece, const NAME(region) *r, index_t width, index_t pitch, REAL *plane)
{
    for (int a = 2; a > 0; a--) {
        const index_t cells = piece->count[a] - piece->before[a] - piece->behind[a], apart = a == 2 ? width : pitch;
        const index_t lines = a == 2 ? r->count[1] : 1, n = a == 2 ? width : r->count[2] * width;
        const index_t first = r->first[a] - piece->before[a], count = r->count[a];
        index_t low, high;
        NAME(cells_there)(first, count, cells, &low, &high);
        for (index_t i = low > 0 ? 0 : high; i < count; i = i + 1 == low ? high : i + 1) {
            const REAL *from = plane + i * apart;
            REAL *to = plane + (NAME(fold)(piece->folded, first + i, cells) - first) * apart;
            for (index_t line = 0; line < lines && n == 1; line++)
                to[line * pitch] += from[line * pitch];
            for (index_t line = 0; line < lines && n > 1; line++, from += pitch, to += pitch)
                NAME(add)(n, from, to);
        }
    }
}

/* Where the cells of target begin in a box of such positions. */
static inline index_t NAME(into_box)(const piece_t *piece, const NAME(region) *r, const NAME(region) *cells)
{
    index_t at = 0;
    for (int a = 0; a < 3; a++)
        at = at * r->count[a] + cells->first[a] + piece->before[a] - r->first[a];
    return at;
}

/* The same for a direct result, whose cells are moved together. */
static void NAME(fold_direct)(const work_t *work, const NAME(region) *r, const NAME(region) *cells, REAL *result)
{
    const index_t planes = work->part.rows * work->block.samples * r->count[0], pitch = r->count[2] * LANES;
    const index_t row = cells->count[2] * LANES;
    const REAL *from = result + NAME(into_box)(work->piece, r, cells) * LANES;
    REAL *to = result;
    for (index_t i = 0; i < planes; i++, from += r->count[1] * pitch) {
        NAME(fold_plane)(work->piece, r, LANES, pitch, result + i * r->count[1] * pitch);
        for (index_t y = 0; y < cells->count[1]; y++, to += row)
            __builtin_memmove(to, from + y * pitch, row * sizeof(REAL));
    }
}

/* And for results that lie in rows or with channels side by side. */
static void NAME(fold_layout)(const work_t *work, const NAME(region) *r, REAL *result)
{
    const layout_t *layout = &work->layout;
    const index_t width = layout->cell ? layout->cell : 1, rows = work->part.groups * work->part.rows;
    for (index_t i = 0; i < (layout->cell ? 1 : rows); i++)
        for (index_t s = 0; s < work->block.samples; s++)
            for (index_t z = 0; z < r->count[0]; z++)
                NAME(fold_plane)(work->piece, r, width, layout->axis[1] * width,
                                 result + i * layout->pitch + (s * layout->batch + z * layout->axis[0]) * width);
}

/* A result, whose block is that of the cells then. */
static void NAME(fold_result)(work_t *work, void *result, int direct)
{
    const piece_t *piece = work->piece;
    const NAME(region) r = NAME(target_region)(piece, &work->block), cells = NAME(cells_of)(piece, &r);
    layout_t *layout = &work->layout;
    if (direct)
        NAME(fold_direct)(work, &r, &cells, result);
    else
        NAME(fold_layout)(work, &r, result);
    for (int a = 0; a < 3; a++) {
        if (!direct)
            layout->first += (cells.first[a] + piece->before[a] - r.first[a]) * (a < 2 ? layout->axis[a] : 1);
        work->block.start[a] = cells.first[a];
        work->block.extent[a] = cells.count[a];
    }
}

/* A patch of target, to which the bias is added too. */
static void NAME(fold_patch)(const work_t *work, void *patch, const void *bias)
{
    const NAME(region) r = NAME(target_region)(work->piece, &work->block);
    const index_t channels = work->part.groups * work->part.rows, plane = r.count[1] * r.count[2];
    REAL *cell = patch;
    for (index_t s = 0; s < work->block.samples; s++)
        for (index_t c = 0; c < channels; c++)
            for (index_t z = 0; z < r.count[0]; z++, cell += plane) {
                NAME(fold_plane)(work->piece, &r, 1, r.count[2], cell);
                for (index_t k = 0; bias && k < plane; k++)
                    cell[k] += ((const REAL *)bias)[work->part.row + c];
            }
}

/* target, or the weight (+)= patch */
static void NAME(turn_out)(const work_t *work, int which, void *patch, void *operand, int accumulate)
{
    const piece_t *piece = work->piece;
    if (which == WEIGHT) {
        NAME(write_weight)(work, patch, operand, accumulate);
        return;
    }
    const NAME(region) r = NAME(target_region)(piece, &work->block), in = NAME(cells_of)(piece, &r);
    const NAME(operand) o = NAME(operand_of)(work, which, operand);
    const index_t pitch[2] = {r.count[1] * r.count[2], r.count[2]}, all = r.count[0] * pitch[0];
    const index_t size = NAME(size_of)(o.stored), *stride = o.stride;
    /* of a row: between the outputs of lone tiles are those of others */
    const index_t parts = piece->tile[2] < 0 ? -piece->tile[2] : 1;
    index_t rows = in.count[1], n = parts > 1 ? work->block.extent[2] : in.count[2];
    if (stride[1] == n * stride[2] && pitch[1] == n) {
        n *= rows;
        rows = 1;
    }
    const index_t beside = NAME(beside)(work, which);
    REAL *from = (REAL *)patch + NAME(into_box)(piece, &r, &in) * beside;
    for (index_t s = 0; s < work->block.samples; s++)
        for (index_t b = 0; b < o.bundles; b++, from += o.width * all)
            for (index_t z = 0; z < in.count[0]; z++)
                for (index_t y = 0; y < rows * parts; y++) {
                    const index_t x = y % parts * piece->axis[2].tap_step;
                    char *to = o.at + (s * o.batch + b * o.apart + (in.first[0] + z) * stride[0]
                                       + (in.first[1] + y / parts) * stride[1] + (in.first[2] + x) * stride[2]) * size;
                    REAL *row = from + (z * pitch[0] + y / parts * pitch[1] + x) * beside;
                    if (o.width == 1)
                        NAME(write_row)(o.stored, row, n, to, stride[2], accumulate);
#if CELL == 1
                    else if (beside > 1)
                        NAME(write_beside)(&o, row, n, to, accumulate);
                    else if (o.stored != STORED_REAL)
                        NAME(write_turned)(&o, row, n, to, all, accumulate);
#endif
                    else if (accumulate)
                        NAME(transpose)((REAL *)to, stride[2], row, all, o.width, n, 1);
                    else
                        NAME(transpose)((REAL *)to, stride[2], row, all, o.width, n, 0);
                }
}
