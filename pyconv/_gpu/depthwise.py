# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""The kernels of groups of one channel, in the dialect of `specialise`: their taps are known when they are compiled.

A thread has a strip of ROWS x COLUMNS results, whose taps share cells. Along an axis the J-th result, of those that
have a residue of the lattice, is residue + begin + along * J, and reads under tap t the cell residue * step + first +
tap * i where UP * i = STEP * J + t (see walks). A cell's number is loaded once. Where there is no cell the nearest is
loaded, and multiplied by nothing. Products are in the order of taps: the bits are those of `plain.direct`.
"""


def depthwise(
    source, weight, target, bias, last, count, n0, m0, s0, n1, m1, s1, rows, rows_magic, rows_shift, turns,
    size_y, size_x, py, px, lattice_y, lattice_y_magic, lattice_y_shift, lattice_x, lattice_x_magic, lattice_x_shift,
    begin_y, begin_x, along_y, along_x, first_y, first_x, step_y, step_x, tap_y, tap_x,
    source_n, source_channel, source_y, source_x, weight_group, weight_row, weight_y, weight_x,
    target_n, target_row, target_y, target_x, bias_row,
):
    """forward or grad_input of a sample: `turns` strips a thread; lanes lie along rows where `last` says so, else x."""
    own: i32 = block_x() * THREADS + thread()
    inside = own < i32(count)
    i: i32 = select(inside, own, i32(0))
    i0: i32 = divide(i, m0, s0)
    i1: i32 = divide(i0, m1, s1)
    in_0: i32 = i - i0 * i32(n0)
    in_1: i32 = i0 - i1 * i32(n1)
    row: i32 = select(last == 1, in_0, i1)
    line_y, residue_y = of_lattice(select(last == 1, i1, in_1), lattice_y, lattice_y_magic, lattice_y_shift)
    line_x, residue_x = of_lattice(select(last == 1, in_1, in_0), lattice_x, lattice_x_magic, lattice_x_shift)
    group: i32 = divide(row, rows_magic, rows_shift)
    from_weight = along(along(weight, group, weight_group), row - group * i32(rows), weight_row)
    of_tap = registers()
    for y in unrolled(K):
        for x in unrolled(K):
            of_tap[y, x] = load(along(from_weight, 1, i32(y * weight_y + x * weight_x)), True)
    n: i32 = block_y()
    from_source = along(i64(source + n * source_n), group, source_channel)
    from_column = registers()
    is_column = registers()
    columns_of(line_x, residue_x)
    to_target = along(i64(target + n * target_n), row, target_row)
    to_column = registers()
    is_result = registers()
    for v in unrolled(COLUMNS):
        to_x: i32 = residue_x + i32(begin_x) + i32(along_x) * (line_x * COLUMNS + v)
        is_result[v] = inside & (u32(to_x) < u32(px))
        to_column[v] = along(to_target, to_x, target_x)
    added = load_result(i64(bias + row * bias_row), inside & (bias != 0))
    total = registers()
    for turn in range(i32(turns)):
        strip: i32 = line_y * i32(turns) + turn
        for j in unrolled(ROWS):
            for v in unrolled(COLUMNS):
                total[j, v] = nothing()
        through_cells(strip, residue_y)
        for j in unrolled(ROWS):
            to_y: i32 = residue_y + i32(begin_y) + i32(along_y) * (strip * ROWS + j)
            is_line = u32(to_y) < u32(py)
            for v in unrolled(COLUMNS):
                value = plus(total[j, v], added)
                keep(along(to_column[v], to_y, target_y), is_line & is_result[v], value)


def of_lattice(number, lattice, magic, shift):
    """(which of its strips, the residue): neighbours are of different residues."""
    line: i32 = divide(number, magic, shift)
    return line, i32(number - line * i32(lattice))


def columns_of(line, residue):
    """Where a strip's columns of cells begin, and whether they are there."""
    first: i32 = residue * i32(step_x) + i32(first_x) + line * i32(COLUMNS * STEP // UP * tap_x)
    for x in unrolled((K - 1 + STEP * (COLUMNS - 1)) // UP + 1):
        at: i32 = first + i32(x * tap_x)
        is_column[x] = u32(at) < u32(size_x)
        cell = nearest(at, i32(size_x - 1))
        from_column[x] = along(from_source, cell, source_x)


def through_cells(strip, residue):
    """The products of a strip's cells, row by row, of each of the thread's channels."""
    first: i32 = residue * i32(step_y) + i32(first_y) + strip * i32(ROWS * STEP // UP * tap_y)
    cell = registers()
    for y in unrolled((K - 1 + STEP * (ROWS - 1)) // UP + 1):
        at: i32 = first + i32(y * tap_y)
        is_row = u32(at) < u32(size_y)
        cell_y = nearest(at, i32(size_y - 1))
        for x in unrolled((K - 1 + STEP * (COLUMNS - 1)) // UP + 1):
            load_channels(cell, along(from_column[x], cell_y, source_y), source_channel)
            is_cell = is_row & is_column[x]
            for j in unrolled(ROWS):
                TY = UP * y - STEP * j
                for v in unrolled(COLUMNS):
                    TX = UP * x - STEP * v
                    if min(TY, TX) >= 0 and max(TY, TX) < K:
                        multiply(cell, is_cell, j, v, TY, TX)


def load_channels(number, address, step):
    """Those of a thread's channels: with one load if AT_ONCE, else a step from each to the next."""
    if AT_ONCE:
        found = load_side(address, True)
        for c in unrolled(SIDE):
            number[c] = found[c]
    else:
        for c in unrolled(SIDE):
            number[c] = load(address if c == 0 else along(address, c, step), True)


def nearest(place, most):
    """The place, or the nearest to it from 0 to the most."""
    low: i32 = select(place < most, place, most)
    return select(low > 0, low, i32(0))


def into_result(cell, is_cell, j, v, ty, tx):
    """A product of forward or grad_input."""
    more = times_plus(cell[0], of_tap[ty, tx], total[j, v])
    total[j, v] = chosen(is_cell, more, total[j, v])


def depthwise_weight(
    x, y, target, abreast, shift, positions, block_positions, cuts, cuts_magic, cuts_shift, part_positions, rounds,
    channels, rows, rows_magic, rows_shift, lines_x, lines_x_magic, lines_x_shift, lines_y, lines_y_magic,
    lines_y_shift, size_y, size_x, py, px, lattice_y, lattice_y_magic, lattice_y_shift,
    lattice_x, lattice_x_magic, lattice_x_shift, begin_y, begin_x, along_y, along_x, first_y, first_x,
    step_y, step_x, tap_y, tap_x, source_n, source_channel, source_y, source_x, y_n, y_row, y_y, y_x, target_part,
):
    """A block sums all taps of `abreast` rows, over a part of the strips: SIDE of them in a thread, 2 ** shift
    threads side by side.

    Several channels of a thread are each a group's only one. Where their numbers are, and which products there are, is
    worked out once for them; and they are loaded at once if they lie side by side, at multiples of their bytes. Whether
    they do changes no bit.

    A thread keeps the sums of its rows' taps; then those of 8 threads are added, and of the 32 sums of each tap that
    are left, lane by lane, halves onto halves until there is one for each row: always in one order.
    """
    t: i32 = thread()
    base: i32 = shared_base()
    part: i32 = block_y()
    own: i32 = block_x() * i32(abreast) + (t * SIDE & i32(abreast - 1))
    is_own = own < i32(channels)
    row: i32 = select(is_own, own, i32(0))
    group: i32 = divide(row, rows_magic, rows_shift)
    from_x = along(x, group, source_channel)
    from_y = along(y, row, y_row)
    first, end = range_of(part)
    total = registers()
    for c in unrolled(SIDE):
        for ty in unrolled(K):
            for tx in unrolled(K):
                total[c, ty, tx] = nothing()
    from_column = registers()
    is_column = registers()
    result = registers()
    is_result = registers()
    for k in range(i32(rounds)):
        place: i32 = first + k * (THREADS >> i32(shift)) + (t >> i32(shift))
        is_place = is_own & (place < end)
        p: i32 = select(is_place, place, i32(0))
        lines: i32 = divide(p, lines_x_magic, lines_x_shift)
        n: i32 = divide(lines, lines_y_magic, lines_y_shift)
        line_y, residue_y = of_lattice(i32(lines - n * i32(lines_y)), lattice_y, lattice_y_magic, lattice_y_shift)
        line_x, residue_x = of_lattice(i32(p - lines * i32(lines_x)), lattice_x, lattice_x_magic, lattice_x_shift)
        from_source: i64 = from_x + n * source_n
        columns_of(line_x, residue_x)
        results_of(i64(from_y + n * y_n), is_place)
        through_cells(line_y, residue_y)
    of_block()


def results_of(from_sample, is_place):
    """The strip's numbers of grad_output, and whether they are there, row by row."""
    number = registers()
    from_results = registers()
    is_x = registers()
    for v in unrolled(COLUMNS):
        at_x: i32 = residue_x + i32(begin_x) + i32(along_x) * (line_x * COLUMNS + v)
        read_x = nearest(at_x, i32(px - 1))
        is_x[v] = is_place & (u32(at_x) < u32(px))
        from_results[v] = along(from_sample, read_x, y_x)
    for j in unrolled(ROWS):
        at_y: i32 = residue_y + i32(begin_y) + i32(along_y) * (line_y * ROWS + j)
        is_y = u32(at_y) < u32(py)
        read_y = nearest(at_y, i32(py - 1))
        for v in unrolled(COLUMNS):
            is_result[j, v] = is_x[v] & is_y
            load_channels(number, along(from_results[v], read_y, y_y), y_row)
            for c in unrolled(SIDE):
                result[c, j, v] = number[c]


def into_tap(cell, is_cell, j, v, ty, tx):
    """A product of grad_weight, of each channel."""
    is_product = is_cell & is_result[j, v]
    for c in unrolled(SIDE):
        more = times_plus(cell[c], result[c, j, v], total[c, ty, tx])
        total[c, ty, tx] = chosen(is_product, more, total[c, ty, tx])


def of_block():
    """The sums of the block's threads, which are of the same rows where they agree modulo 2 ** shift: to the target.

    As many of a thread's sums at a time as the block has warps, each of which adds those of one: their rows' taps one
    behind the other, as the target has them. A lane's are an odd number of places from the next one's, for the sake of
    the banks; a place between them is nobody's, and what it holds is not stored.
    """
    WARPS = THREADS // 32
    SUMS = SIDE * K * K
    PITCH = SUMS + 1 - SUMS % 2
    left: i32 = base + WARPS * THREADS * REAL
    lane: i32 = t & 31
    warp: i32 = t >> 5
    for begun in unrolled(0, SUMS, WARPS):
        COUNT = min(WARPS, SUMS - begun)
        for s in unrolled(COUNT):
            Q = begun + s
            put(i32(base + (s * THREADS + t) * REAL), True, total[Q // (K * K), Q // K % K, Q % K])
        barrier()
        mine: i32 = select(warp < COUNT, warp, i32(COUNT - 1))
        some = shared(i32(base + (mine * THREADS + lane) * REAL))
        for s in unrolled(1, WARPS):
            other = shared(i32(base + (mine * THREADS + lane + 32 * s) * REAL))
            some = plus(some, other)
        put(i32(left + (lane * PITCH + begun + mine) * REAL), warp < COUNT, some)
        barrier()
    for step in unrolled(5):
        HALF = (16 >> step) * PITCH
        for k in unrolled(-(-HALF // THREADS)):
            number: i32 = k * THREADS + t
            at: i32 = select(number < HALF, i32(left + number * REAL), i32(base + t * REAL))
            own_sum = shared(at)
            half = shared(i32(at + HALF * REAL))
            both = plus(own_sum, half)
            put(at, (number < HALF) & (i32(abreast) <= (16 >> step) * SIDE), both)
        if step < 4:  # what a thread stores it has added itself
            barrier()
    first_row: i32 = block_x() * i32(abreast)
    behind: i32 = i32(channels) - first_row
    rows_left: i32 = select(behind < i32(abreast), behind, i32(abreast))
    for k in unrolled(-(-K * K * ABREAST // THREADS)):
        number: i32 = k * THREADS + t
        is_sum = number < rows_left * (K * K)
        gaps: i32 = number // SUMS * (PITCH - SUMS)
        whole = shared(select(is_sum, i32(left + (number + gaps) * REAL), i32(base + t * REAL)))
        store_real(i64(target + part * target_part + (first_row * (K * K) + number) * REAL), is_sum, whole)
