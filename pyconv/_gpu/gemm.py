# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""The matrix products: `gather` for forward and grad_input, `correlate` for grad_weight, in `specialise`'s dialect.

Both keep a tile of BM x BN results in registers and bring their operands through shared memory by asynchronous copies
of 16 bytes (a chunk), STAGES deep. A stage is LINE bytes of the reduction, DEPTH elements: 64 bytes here, 128 in
`hopper`, which shares all that these say of positions, taps and results. Operands lie with the channels last, padded
with zeros to 16 bytes; there a chunk takes CHUNK of them: 8 where 16-bit floats become float32 as they are copied.

    gather      target[m, row] = sum over k of source[m, k] * weight[row, k],      m a position, k = (tap, channel)
    correlate   target[row, k] = sum over p of y[p, row] * x[p, k],                p a position, k = (tap, channel)

In gather, shared memory holds lines along the reduction, one of 64 bytes for each row of the tile; in correlate lines
along the tile, one for each position. `fragments` says how a warp reads and multiplies either. Strides are in bytes.
The reduction may be cut into parts (block_z), each of which writes a target of its own for `finish` to sum in order.

PLANES: correlate's results are those of `planes`, stored as results with a bias, and not sums for `finish`.

POINTWISE: there is one tap, under which position m reads the m-th of cells that lie one behind the other, so that no
copy has to look for a cell: plain products of matrices, of source or x (position, channel).
"""


def gather(
    source, weight, target, bias, flag, tiles_n, tiles_n_magic, tiles_n_shift, positions,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    size_z, size_y, size_x, step_z, step_y, step_x, offset_z, offset_y, offset_x, tap_z, tap_y, tap_x,
    source_n, source_z, source_y, source_x, source_group,
    chunks, stages, inner, inner_magic, inner_shift, kx, kx_magic, kx_shift, ky, ky_magic, ky_shift,
    rows, weight_row, weight_group, weight_z, weight_y, weight_x,
    target_n, target_channel, target_z, target_y, target_x, target_group, target_part, bias_row, bias_group,
    rx, rx_magic, rx_shift, ry, ry_magic, ry_shift, rz, rz_magic, rz_shift, row_z, row_y, row_x, bias_x, adjacent,
):
    """A position q reads cell step * q + offset + tap_* * tap along each axis, or zero where there is none.

    A row is a channel of the target or, where r* > 1, one of its rz * ry * rx cells beside the position's own: its
    taps, or the parts of a complex number, whose biases lie bias_x apart. Where `adjacent` is not 0, channels are
    neighbours in memory and pairs of words whole: see store_adjacent.
    """
    t, lane, warp, group, part, tile_m, tile_n, base = whereabouts()
    first_m: i32 = tile_m * BM
    first_n: i32 = tile_n * BN
    line, chunk, to = copied_chunk()
    cell_z = registers()
    cell_y = registers()
    cell_x = registers()
    cell = registers()
    there = registers()
    find_cells(cell_z, cell_y, cell_x, cell, there)
    weights = registers()
    wanted = registers()
    for i in unrolled(BN // COPIED):
        row: i32 = first_n + line + i * COPIED
        wanted[i] = row < i32(rows)
        weights[i] = i64(weight + group * weight_group + row * weight_row)

    lane_row, lane_column, a_at, b_at = lanes()
    acc = registers()
    clear(acc)
    from_stage: i32 = part * i32(stages)
    for s in unrolled(STAGES - 1):
        copy_gathered(i32(from_stage + s), s < i32(stages), i32(base + s * STAGE_BYTES))
        commit()
    read: i32 = base
    write: i32 = base + (STAGES - 1) * STAGE_BYTES
    for s in range(i32(stages)):
        wait(STAGES - 2)
        barrier()
        ahead: i32 = s + (STAGES - 1)
        copy_gathered(i32(from_stage + ahead), ahead < i32(stages), write)
        commit()
        multiply(read, i32(read + BM * LINE), acc)
        read = following(read, base, STAGE_BYTES)
        write = following(write, base, STAGE_BYTES)
    let_next_begin()
    wait(0)
    barrier()
    places, biases, besides = tables(base)
    put_places()
    barrier()
    store_gathered(acc)


def tables(first):
    """Where in shared memory put_places puts what."""
    return first, i32(first + BM * 8), i32(first + BM * 8 + BN * REAL)


def whereabouts():
    """A thread, its lane and warp; its block's group, part of the reduction and tile; where shared memory begins."""
    t: i32 = thread()
    tile_m: i32 = divide(block_x(), tiles_n_magic, tiles_n_shift)
    tile_n: i32 = block_x() - tile_m * i32(tiles_n)
    return t, i32(t & 31), i32(t >> 5), block_y(), block_z(), tile_m, tile_n, shared_base()


def copied_chunk():
    """(line, chunk, where to in a stage) of a thread, which copies it of every COPIED-th line of either operand."""
    COPIED = THREADS // (LINE // 16)
    chunk: i32 = t & (LINE // 16 - 1)
    line: i32 = t >> (2 if LINE == 64 else 3)
    return line, chunk, i32(line * LINE + ((chunk ^ turn(line)) << 4))


def turn(line):
    """What a line's chunks are permuted by, so that a chunk of eight neighbouring lines fills the 32 banks once.

    Two lines of 64 bytes fill them; for lines of 128 bytes this is how Hopper's copies and products see them too.
    """
    return ((line >> 1) & 3) if LINE == 64 else (line & 7)


def find_cells(cell_z, cell_y, cell_x, cell, there):
    """For each line that a thread copies the cell that the first tap reads, and its address; far outside if none is.

    If POINTWISE, the address, and whether there is such a position.
    """
    for i in unrolled(BM // COPIED):
        m: i32 = first_m + line + i * COPIED
        if POINTWISE:
            there[i] = m < i32(positions)
            cell[i] = i64(source + group * source_group + m * source_x)
        else:
            n, qz, qy, qx = position(m)
            cell_z[i] = i32(qz * step_z + offset_z)
            cell_y[i] = i32(qy * step_y + offset_y)
            cell_x[i] = i32(qx * step_x + offset_x)
            cell[i] = i64(source + group * source_group + n * source_n + cell_z[i] * source_z + cell_y[i] * source_y
                          + cell_x[i] * source_x)
            cell_x[i] = select(m < i32(positions), cell_x[i], i32(OUTSIDE))


def following(slot, first, step):
    """The slot of the ring behind this one: they lie, or count, a step apart."""
    return select(slot == first + (STAGES - 1) * step, first, i32(slot + step))


def clear(acc):
    """Zeros."""
    for i in unrolled(MI):
        for j in unrolled(NI):
            acc[i, j] = zero()


def tap_of(k):
    """(tap's z, y, x, bytes from the tap's first channel) of the k-th chunk of (tap, channel)."""
    tap: i32 = 0 if POINTWISE else divide(k, inner_magic, inner_shift)
    zy: i32 = divide(tap, kx_magic, kx_shift)
    z: i32 = divide(zy, ky_magic, ky_shift)
    return z, i32(zy - z * i32(ky)), i32(tap - zy * i32(kx)), i32((k - tap * i32(inner)) * CHUNK)


def copy_source(stage, more, slot):
    """Copy a stage of the source; beyond the end of the reduction, and where there is no cell, zeros.

    Gives the tap of the thread's chunk, the bytes from its first channel, and whether there is such a chunk.
    """
    k: i32 = stage * (LINE // 16) + chunk
    z, y, x, channel = tap_of(k)
    some = more & (k < i32(chunks))
    dz: i32 = z * i32(tap_z)
    dy: i32 = y * i32(tap_y)
    dx: i32 = x * i32(tap_x)
    of_tap: i64 = dz * source_z + dy * source_y + dx * source_x + channel
    for i in unrolled(BM // COPIED):
        if POINTWISE:
            inside = there[i]
        else:
            inside = (u32(cell_z[i] + dz) < u32(size_z)) & (u32(cell_y[i] + dy) < u32(size_y)) & (
                u32(cell_x[i] + dx) < u32(size_x))
        copy16(i32(slot + to + i * COPIED * LINE), cell[i] + of_tap, some & inside)
    return z, y, x, channel, some


def copy_gathered(stage, more, slot):
    """Copy a stage of both operands."""
    z, y, x, channel, some = copy_source(stage, more, slot)
    of_weight: i64 = z * weight_z + y * weight_y + x * weight_x + channel
    for i in unrolled(BN // COPIED):
        copy16(i32(slot + BM * LINE + to + i * COPIED * LINE), weights[i] + of_weight, some & wanted[i])


def row_of(at):
    """(channel, bytes from its group's first cell, which of the cells along x) of a row."""
    if ROWS_ARE_CHANNELS:
        channel: i32 = at
        beside: i64 = channel * target_channel
        along: i32 = 0
    else:
        zy: i32 = divide(at, rx_magic, rx_shift)
        rest: i32 = divide(zy, ry_magic, ry_shift)
        channel: i32 = divide(rest, rz_magic, rz_shift)
        along: i32 = at - zy * rx
        beside: i64 = channel * target_channel + (rest - channel * rz) * row_z + (zy - rest * ry) * row_y + (
            along * row_x)
    return channel, beside, along


def put_places():
    """Where the tile's lines and columns lie in the target, and the columns' biases, in shared memory for all threads:
    each finds one column's and some lines'. 0 is the place of a line that is not stored.

    A line is a position, a column a row. Where a flag says that the weight is not finite no line is stored; if
    BY_SAMPLE, nor is one of a sample whose own flag is set: the second behind it is the first sample's.
    """
    for i in unrolled(-(-BM // THREADS)):
        of_tile: i32 = t + i * THREADS
        m: i32 = first_m + of_tile
        n, z, y, x = position(m)
        of_line: i64 = (target + part * target_part + group * target_group + n * target_n + z * target_z
                        + y * target_y + x * target_x)
        stored = (of_tile < BM) & (m < i32(positions)) & (load_i32(flag, flag != 0) == 0)
        if BY_SAMPLE:
            of_sample = load_i32(i64(flag + (n + 2) * 4), stored & (flag != 0))
            stored = stored & (of_sample == 0)
        put_i64(i32(places + of_tile * 8), of_tile < BM, select(stored, of_line, i64(0)))
    at: i32 = first_n + t
    channel, beside, along = row_of(at)
    of_column = load_result(bias + group * bias_group + channel * bias_row + along * bias_x,
                            (bias != 0) & (t < BN) & (at < i32(rows)))
    put(i32(biases + t * REAL), t < BN, of_column)
    if not ROWS_ARE_CHANNELS:
        put_i64(i32(besides + t * 8), t < BN, beside)


def store_gathered(acc):
    """The tile and its bias to the target."""
    total = registers()
    for column in unrolled(len(COLUMNS)):
        added = shared(i32(biases + (lane_column + COLUMNS[column]) * REAL))
        for line in unrolled(len(ROWS)):
            total[line, column] = result_of(acc, line, column) + added
    if IN_PAIRS:
        if adjacent != 0:
            store_adjacent(total, i32(i32(rows) - first_n))
        elif AS_HALVES:
            store_halves(total)
        else:
            store_each(total)
    else:
        store_each(total)


def result_of(acc, line, column):
    """A lane's result in one of its lines and columns."""
    return acc[line, column] if DOWN * ACROSS == 1 else (
        acc[line // DOWN, column // ACROSS][line % DOWN * ACROSS + column % ACROSS])


def store_each(total):
    """Result by result, wherever they lie."""
    beside = registers()
    before = registers()
    AT_ONCE = 2  # that are added to, since a load takes long; more of them would take the registers of sums
    for column in unrolled(len(COLUMNS)):
        if ROWS_ARE_CHANNELS:
            beside[column] = i64(COLUMNS[column] * target_channel)
        else:
            beside[column] = shared_i64(i32(besides + (lane_column + COLUMNS[column]) * 8))
    left: i32 = i32(rows) - first_n - lane_column
    from_first: i64 = (first_n + lane_column) * target_channel if ROWS_ARE_CHANNELS else 0
    for line in unrolled(len(ROWS)):
        place = shared_i64(i32(places + (lane_row + ROWS[line]) * 8))
        start: i64 = place + from_first
        for first in unrolled(0, len(COLUMNS), AT_ONCE):
            if ACCUMULATE:
                for column in unrolled(first, first + AT_ONCE):
                    before[column] = reload(i64(start + beside[column]), (place != 0) & (left > COLUMNS[column]))
            for column in unrolled(first, first + AT_ONCE):
                value = total[line, column] + before[column] if ACCUMULATE else total[line, column]
                store(i64(start + beside[column]), (place != 0) & (left > COLUMNS[column]), value)


def store_adjacent(total, room):
    """Pairs of columns that are neighbours in memory, of which there is room for so many; AS_HALVES fours, which a lane
    has in turns with another, so that four lanes store whole sectors of 32 bytes in each of eight lines."""
    column: i32 = lane_column + (lane & 1) * 6 if AS_HALVES else lane_column
    left: i32 = room - column
    for line in unrolled(len(ROWS)):
        place = place_of_line(line)
        start: i64 = place + (first_n + column) * RESULT
        for c in unrolled(0, len(COLUMNS), 4 if AS_HALVES else 2):
            if AS_HALVES:
                first, second = four_columns(
                    pair(total[line, c], total[line, c + 1]), pair(total[line, c + 2], total[line, c + 3]))
            else:
                first = total[line, c]
                second = total[line, c + 1]
            store_pair(i64(start + COLUMNS[c] * RESULT), (place != 0) & (left > COLUMNS[c]), first, second)


def place_of_line(line):
    """Where a lane's line begins in the target, 0 if nowhere: as put_places left it, or that of a row's plane."""
    if PLANES:
        row: i32 = tile_m * BM + lane_row + ROWS[line]
        place = select(row < i32(rows), i64(target + group * target_group + row * target_row), i64(0))
    else:
        place = shared_i64(i32(places + (lane_row + ROWS[line]) * 8))
    return place


def store_halves(total):
    """16-bit results, one by one: a lane has four columns of every other line, so that eight lanes store whole sectors
    where it is lines that are neighbours in memory."""
    odd: i32 = lane & 1
    column: i32 = lane_column - odd * 2
    left: i32 = i32(rows) - first_n - column
    for line in unrolled(0, len(ROWS), 2):
        place = shared_i64(i32(places + (lane_row + ROWS[line] + odd * 8) * 8))
        start: i64 = place + (first_n + column) * target_channel
        for c in unrolled(0, len(COLUMNS), 2):
            first, second = four_columns(
                pair(total[line, c], total[line, c + 1]), pair(total[line + 1, c], total[line + 1, c + 1]))
            for k in unrolled(4):
                value = first if k < 2 else second
                store_half(i64(start + (COLUMNS[c] + k) * target_channel), (place != 0) & (left > COLUMNS[c] + k),
                           i32(value >> (k % 2 * 16)))


def four_columns(a, b):
    """The four neighbouring columns, in two words, that this lane and the one beside it have of a in an even lane, of b
    in an odd one."""
    is_odd = (lane & 1) != 0
    kept = select(is_odd, b, a)
    given = neighbour(select(is_odd, a, b))
    return select(is_odd, given, kept), select(is_odd, kept, given)


def correlate(
    x, y, target, tiles_n, tiles_n_magic, tiles_n_shift, stages,
    positions, block_positions, cuts, cuts_magic, cuts_shift, part_positions,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    size_z, size_y, size_x, step_z, step_y, step_x, offset_z, offset_y, offset_x, tap_z, tap_y, tap_x,
    source_n, source_z, source_y, source_x, source_group, y_position, y_group, row_chunks,
    chunks, inner, inner_magic, inner_shift, kx, kx_magic, kx_shift, ky, ky_magic, ky_shift,
    rows, target_row, target_group, target_part, bias, bias_row,
):
    """Positions are those of grad_output, whose cells lie y_position bytes apart; for parts see plain.range_of."""
    t, lane, warp, group, part, tile_m, tile_n, base = whereabouts()

    a_from = registers()
    a_wanted = registers()
    b_from = registers()
    b_wanted = registers()
    off_z = registers()
    off_y = registers()
    off_x = registers()
    a_chunk, a_line, b_chunk, b_line = find_chunks(a_from, a_wanted, b_from, b_wanted, off_z, off_y, off_x)
    first, end = range_of(part)

    lane_row, lane_column, a_at, b_at = lanes()
    acc = registers()
    sum_correlated(acc)
    let_next_begin()
    if PLANES:
        first_n: i32 = tile_n * BN
        store_planes(acc)
    else:
        store_correlated(acc)


def sum_correlated(acc):
    """The sums of the tile's products over all stages of the part; with wgmma `hopper.sum_stages` stands for it."""
    clear(acc)
    for s in unrolled(STAGES - 1):
        copy_correlated(i32(first + s * DEPTH), i32(base + s * STAGE_BYTES))
        commit()
    read: i32 = base
    write: i32 = base + (STAGES - 1) * STAGE_BYTES
    for s in range(i32(stages)):
        wait(STAGES - 2)
        barrier()
        copy_correlated(i32(first + (s + (STAGES - 1)) * DEPTH), write)
        commit()
        multiply(read, i32(read + BM * LINE), acc)
        read = following(read, base, STAGE_BYTES)
        write = following(write, base, STAGE_BYTES)


def find_chunks(a_from, a_wanted, b_from, b_wanted, off_z, off_y, off_x):
    """Of each panel of y's tile and of x's the chunk that a thread copies: where it comes from, whether it is wanted,
    and its tap. Gives both chunks' places in a line, and the first lines that they are of.

    A panel is as wide as its lines, A_LINE or B_LINE bytes, and DEPTH of them high: here a whole tile, in `hopper` one
    of 128 bytes. A thread copies a chunk of every A_COPIED-th line of y's, and of every B_COPIED-th of x's.
    """
    A_COPIED = THREADS * 16 // A_LINE
    B_COPIED = THREADS * 16 // B_LINE
    A_PANELS = BM * SIZE // A_LINE
    B_PANELS = BN * SIZE // B_LINE
    a_chunk: i32 = t % (A_LINE // 16)
    b_chunk: i32 = t % (B_LINE // 16)
    for j in unrolled(A_PANELS):
        row_chunk: i32 = tile_m * (BM * SIZE // 16) + a_chunk + j * (A_LINE // 16)
        a_wanted[j] = row_chunk < i32(row_chunks)
        a_from[j] = i64(y + group * y_group + row_chunk * CHUNK)
    for j in unrolled(B_PANELS):
        k: i32 = tile_n * (BN * SIZE // 16) + b_chunk + j * (B_LINE // 16)
        tz, ty, tx, channel = tap_of(k)
        b_wanted[j] = k < i32(chunks)
        off_z[j] = i32(offset_z + tz * tap_z)
        off_y[j] = i32(offset_y + ty * tap_y)
        off_x[j] = i32(offset_x + tx * tap_x)
        b_from[j] = i64(x + group * source_group + off_z[j] * source_z + off_y[j] * source_y + off_x[j] * source_x
                        + channel)
    return a_chunk, i32(t // (A_LINE // 16)), b_chunk, i32(t // (B_LINE // 16))


def copy_correlated(p0, slot):
    """Copy DEPTH positions of both operands; beyond the part's end, and where there is no cell, zeros.

    The exclusive or keeps the fragments' loads, which go down the lines, free of bank conflicts (see fragments).
    """
    for i in unrolled(DEPTH // A_COPIED):
        p: i32 = p0 + a_line + i * A_COPIED
        line: i32 = a_line + i * A_COPIED
        for j in unrolled(A_PANELS):
            copy16(i32(slot + j * DEPTH * A_LINE + line * A_LINE + ((a_chunk ^ twist(line, A_TWIST)) << 4)),
                   a_from[j] + p * y_position, a_wanted[j] & (p < end))
    for i in unrolled(DEPTH // B_COPIED):
        p: i32 = p0 + b_line + i * B_COPIED
        line: i32 = b_line + i * B_COPIED
        if POINTWISE:
            cell: i64 = p * source_x
        else:
            n, qz, qy, qx = position(p)
            cz: i32 = qz * i32(step_z)
            cy: i32 = qy * i32(step_y)
            cx: i32 = qx * i32(step_x)
            cell: i64 = n * source_n + cz * source_z + cy * source_y + cx * source_x
        for j in unrolled(B_PANELS):
            inside = True if POINTWISE else (
                u32(cz + off_z[j]) < u32(size_z)) & (u32(cy + off_y[j]) < u32(size_y)) & (
                u32(cx + off_x[j]) < u32(size_x))
            copy16(i32(slot + BM * LINE + j * DEPTH * B_LINE + line * B_LINE + ((b_chunk ^ twist(line, B_TWIST)) << 4)),
                   b_from[j] + cell, b_wanted[j] & (p < end) & inside)


def store_correlated(acc):
    """The tile to its place in the part's target, a lane's neighbouring columns at once: rows there begin at multiples
    of 16 bytes."""
    first_row: i32 = tile_m * BM + lane_row
    column: i32 = tile_n * BN + lane_column
    left: i32 = i32(chunks) * PER_CHUNK - column
    place: i64 = target + part * target_part + group * target_group + first_row * target_row + column * REAL
    for line in unrolled(len(ROWS)):
        start: i64 = place + ROWS[line] * target_row
        for c in unrolled(0, len(COLUMNS), ACROSS):
            to: i64 = start + COLUMNS[c] * REAL
            wanted = (first_row + ROWS[line] < i32(rows)) & (left > COLUMNS[c])
            if ACROSS == 2:
                store_reals(to, wanted, result_of(acc, line, c), result_of(acc, line, c + 1))
            else:
                store_real(to, wanted, result_of(acc, line, c))


def store_planes(acc):
    """The tile and its bias: rows are planes of the target, columns their cells."""
    total = registers()
    for line in unrolled(len(ROWS)):
        row: i32 = tile_m * BM + lane_row + ROWS[line]
        added = load_result(i64(bias + row * bias_row), (bias != 0) & (row < i32(rows)))
        for column in unrolled(len(COLUMNS)):
            total[line, column] = result_of(acc, line, column) + added
    store_adjacent(total, i32(i32(chunks) * PER_CHUNK - first_n))


def twist(line, bits):
    """What the chunks of a line are permuted by: (down, mask, up) say by which of the bits of its number.

    Fragments of 16-bit elements span eight lines, others four, of two chunks each. Of short lines several fill the
    banks once; every chunk stays in its line.
    """
    return ((line >> bits[0]) & bits[1]) << bits[2]
