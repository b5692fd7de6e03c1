# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""The kernels without tiles, in the dialect of `specialise`: columns, sums, and convolution by its definition.

`direct` and `direct_weight` make every product of the definition and no other, one result or one block of threads at a
time: for groups of few channels, and wherever a value that is not finite meets padding. All strides are in bytes.
"""


THREADS = 256


def position(m):
    """(sample, z, y, x) of the m-th position."""
    zyx: i32 = divide(m, px_magic, px_shift)
    zy: i32 = divide(zyx, py_magic, py_shift)
    n: i32 = divide(zy, pz_magic, pz_shift)
    return n, i32(zy - n * i32(pz)), i32(zyx - zy * i32(py)), i32(m - zyx * i32(px))


def fill(
    target, bias, count, bias_stride, n0, m0, s0, n1, m1, s1, n2, m2, s2, n3, m3, s3,
    stride_0, stride_1, stride_2, stride_3, stride_4,
):
    """target = bias of its channel (axis 1), or 0 where there is none."""
    i: i32 = block_x() * THREADS + thread()
    inside = i < i32(count)
    a, b, c, d, e = five(i)
    value = load_result(i64(bias + b * bias_stride), inside & (bias != 0))
    keep(i64(target + a * stride_0 + b * stride_1 + c * stride_2 + d * stride_3 + e * stride_4), inside, value)


def five(i):
    """The five indices of the i-th element; n0 .. n3 are the sizes of the last axis, the one before it, and so on."""
    i0: i32 = divide(i, m0, s0)
    i1: i32 = divide(i0, m1, s1)
    i2: i32 = divide(i1, m2, s2)
    i3: i32 = divide(i2, m3, s3)
    return i3, i32(i2 - i3 * i32(n3)), i32(i1 - i2 * i32(n2)), i32(i0 - i1 * i32(n1)), i32(i - i0 * i32(n0))


def keep(address, ok, value):
    """Store, or add to what is there."""
    if ACCUMULATE:
        there = reload(address, ok)
        both = plus(value, there)
        store(address, ok, both)
    else:
        store(address, ok, value)


SUMMED = 4  # results of a thread of finish


def finish(
    partial, target, bias, flag, some, own, own_n, own_sample, flag_value, turns, abreast, count, last, parts,
    partial_part, n0, m0, s0, n1, m1, s1, n2, m2, s2, n3, m3, s3,
    partial_0, partial_1, partial_2, partial_3, partial_4, stride_0, stride_1, stride_2, stride_3, stride_4,
    bias_1, bias_2, bias_3, bias_4, partial_sample, target_sample, partial_row,
):
    """target = the sum of the parts, in order, and the bias, if the flags (0 where there are none) have that value.

    A sample's flags are the one of all and its own. If COMBINED, of complex numbers, what was summed are the products
    of an operand's real part and, in the row below, of its imaginary part with the other operand. If WAITS, that value
    is 1, and nothing is done but to look at two flags (`some`: whether any sample's is set) where none is: see direct.

    A thread sums SUMMED results, n0 apart, of the `last` that lie along the last axis: their places take but an
    addition, and it waits for all their loads at once.
    """
    sample: i32 = block_y()
    if WAITS:
        needed: i32 = load_i32(flag, True) | load_i32(some, True)
        for turn in range(i32(turns) * needed):
            sum_parts(i32((block_x() + turn * abreast) * THREADS + thread()))
    else:
        sum_parts(i32(block_x() * THREADS + thread()))


def sum_parts(i):
    """The results of the i-th thread."""
    total = registers()
    other = registers()
    wanted = registers()
    a, b, c, d, e = five(i)
    is_one = u32(i) < u32(count)  # the last turn may reach so far that an i32 is negative
    flagged = (flag != 0) & is_one
    spoiled: i32 = load_i32(flag, flagged) | load_i32(i64(own + a * own_n + sample * own_sample), flagged)
    end: i32 = select(is_one & (spoiled == flag_value), i32(last - e), i32(0))
    place: i64 = (partial + sample * partial_sample + a * partial_0 + b * partial_1 + c * partial_2 + d * partial_3
                  + e * partial_4)
    to: i64 = (target + sample * target_sample + a * stride_0 + b * stride_1 + c * stride_2 + d * stride_3
               + e * stride_4)
    of_bias: i64 = bias + b * bias_1 + c * bias_2 + d * bias_3 + e * bias_4
    for k in unrolled(SUMMED):
        wanted[k] = k * i32(n0) < end
    sum_along(place, total, wanted)
    if COMBINED:
        sum_along(i64(place + partial_row), other, wanted)
    for k in unrolled(SUMMED):
        added = load_result(i64(of_bias + k * n0 * bias_4), wanted[k] & (bias != 0))
        value = plus(plus_turned(total[k], other[k]), added) if COMBINED else plus(total[k], added)
        keep(i64(to + k * n0 * stride_4), wanted[k], value)


def sum_along(place, total, wanted):
    """Of each of a thread's results the sum of its parts, TOGETHER loaded at once; where more parts will follow, it
    goes to the first one's place."""
    TOGETHER = 8 if REAL == 4 else 4
    for k in unrolled(SUMMED):
        total[k] = reload_real(i64(place + k * n0 * partial_4), wanted[k])
    rounds: i32 = (parts - 1) // TOGETHER
    for turn in range(rounds):
        add_parts(i32(turn * TOGETHER + 1), TOGETHER, place, total, wanted)
    for part in range(i32(parts - 1 - rounds * TOGETHER)):
        add_parts(i32(rounds * TOGETHER + part + 1), 1, place, total, wanted)


def add_parts(first, count, place, total, wanted):
    """So many parts from the first on, in order."""
    more = registers()
    for part in unrolled(count):
        at: i64 = place + (first + part) * partial_part
        for k in unrolled(SUMMED):
            more[part, k] = load_real(i64(at + k * n0 * partial_4), wanted[k])
    for part in unrolled(count):
        for k in unrolled(SUMMED):
            total[k] = plus(total[k], more[part, k])


def direct(
    source, weight, target, bias, flag, some, own, own_n, turns, abreast, count, channels, kz, ky, kx,
    rows, rows_magic, rows_shift, n0, m0, s0, n1, m1, s1, n2, m2, s2, n3, m3, s3,
    size_z, size_y, size_x, step_z, step_y, step_x, offset_z, offset_y, offset_x, tap_z, tap_y, tap_x,
    source_n, source_channel, source_z, source_y, source_x,
    weight_group, weight_row, weight_channel, weight_z, weight_y, weight_x,
    target_n, target_row, target_z, target_y, target_x, bias_row,
    taps_z, taps_y, taps_x, every_z, every_y, every_x, inverse_z, inverse_y, inverse_x,
    period_z, period_z_magic, period_z_shift, period_y, period_y_magic, period_y_shift,
    period_x, period_x_magic, period_x_shift, part_0, part_1,
):
    """A thread sums a result over the channels of its group and the taps that have a cell (see met).

    If DIVIDED, a cell's own taps are every so many from the first on: k* of them at most.

    If WAITS, only where a flag is set, that of all or the sample's own (`some`: whether any sample's is): then what the
    tiles did not store is made here, in `turns` of so many blocks `abreast`.
    """
    if WAITS:
        whole: i32 = load_i32(flag, True)
        needed: i32 = whole | load_i32(some, True)
        for turn in range(i32(turns) * needed):
            sum_result(i32((block_x() + turn * abreast) * THREADS + thread()), whole)
    else:
        sum_result(i32(block_x() * THREADS + thread()), 1)


def sum_result(i, whole):
    """The i-th result; if WAITS, where `whole` or the flag of its sample says so."""
    if CHANNELS_LAST:
        n, qz, qy, qx, row = five(i)
    else:
        n, row, qz, qy, qx = five(i)
    inside = u32(i) < u32(count)  # the last turn may reach so far that an i32 is negative
    if WAITS:
        of_sample: i32 = whole | load_i32(i64(own + n * own_n), inside)
        inside = inside & (of_sample != 0)
    group: i32 = divide(row, rows_magic, rows_shift)
    from_source: i64 = source + n * source_n + group * channels * source_channel
    from_weight: i64 = weight + group * weight_group + (row - group * rows) * weight_row
    total = nothing()
    at_z: i32 = qz * step_z + offset_z
    at_y: i32 = qy * step_y + offset_y
    at_x: i32 = qx * step_x + offset_x
    if DIVIDED:
        first_z = first_tap(at_z, inverse_z, period_z, period_z_magic, period_z_shift)
        first_y = first_tap(at_y, inverse_y, period_y, period_y_magic, period_y_shift)
        first_x = first_tap(at_x, inverse_x, period_x, period_x_magic, period_x_shift)
    for c in range(i32(channels)):
        for z in range(i32(kz)):
            tz: i32 = first_z + z * every_z if DIVIDED else z
            cz, z_met = met(i32(at_z + tz * tap_z), size_z, period_z, period_z_magic, period_z_shift)
            for y in range(i32(ky)):
                ty: i32 = first_y + y * every_y if DIVIDED else y
                cy, y_met = met(i32(at_y + ty * tap_y), size_y, period_y, period_y_magic, period_y_shift)
                zy_met = inside & z_met & y_met
                if DIVIDED:
                    zy_met = zy_met & (tz < taps_z) & (ty < taps_y)
                from_row: i64 = from_source + c * source_channel + cz * source_z + cy * source_y
                from_tap: i64 = from_weight + c * weight_channel + tz * weight_z + ty * weight_y
                for x in range(i32(kx)):
                    tx: i32 = first_x + x * every_x if DIVIDED else x
                    cx, x_met = met(i32(at_x + tx * tap_x), size_x, period_x, period_x_magic, period_x_shift)
                    there = zy_met & x_met & (tx < taps_x) if DIVIDED else zy_met & x_met
                    is_made = inside if MODE == "constant" else there
                    cell = load(i64(from_row + cx * source_x), there)
                    of_weight = load(i64(from_tap + tx * weight_x), is_made)
                    if MODE == "constant":
                        beyond = constant(part_0, part_1)
                        cell = chosen(there, cell, beyond)
                    more = times_plus(cell, of_weight, total)
                    total = chosen(is_made, more, total)
    added = load_result(i64(bias + row * bias_row), inside & (bias != 0))
    total = plus(total, added)
    keep(i64(target + n * target_n + row * target_row + qz * target_z + qy * target_y + qx * target_x), inside, total)


def first_tap(place, inverse, period, magic, shift):
    """The first tap under which a place becomes a multiple of the period, where the dilation has that inverse."""
    positive: i32 = select(place > 0, place, i32(0))
    times: i32 = (positive - divide(positive, magic, shift) * period) * inverse
    return i32(times - divide(times, magic, shift) * period)


def met(place, size, period, magic, shift):
    """(the cell at a place along an axis, whether there is one).

    If DIVIDED, cells lie at multiples of the period, which is a stride: all phases of grad_input at once. Else it is
    what follows from the padding mode; places are not negative where cells recur with a period.
    """
    if DIVIDED:
        cell: i32 = divide(select(place > 0, place, i32(0)), magic, shift)
        there = (cell * period == place) & (u32(cell) < u32(size))
    elif MODE == "circular" or MODE == "reflect":
        rest: i32 = place - divide(place, magic, shift) * period
        cell: i32 = select(rest < size, rest, i32(period - rest))
        there = True
    elif MODE == "replicate":
        cell: i32 = select(place < 0, i32(0), select(place < size, place, i32(size - 1)))
        there = True
    else:
        cell: i32 = place
        there = u32(place) < u32(size)
    return cell, there


def direct_weight(
    x, y, target, flag, turns, abreast, elements, positions, block_positions, cuts, cuts_magic, cuts_shift,
    part_positions, rounds, channels, channels_magic, channels_shift,
    rows, rows_magic, rows_shift, kx, kx_magic, kx_shift, ky, ky_magic, ky_shift, kz, kz_magic, kz_shift,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    size_z, size_y, size_x, step_z, step_y, step_x, offset_z, offset_y, offset_x, tap_z, tap_y, tap_x,
    source_n, source_channel, source_z, source_y, source_x, source_tap, read_z, read_y, read_x,
    y_n, y_row, y_z, y_y, y_x, target_part,
    period_z, period_z_magic, period_z_shift, period_y, period_y_magic, period_y_shift,
    period_x, period_x_magic, period_x_shift, part_0, part_1,
):
    """A block sums one element of the weight over a part of the positions that have its cell; a tree of fixed shape.

    If WAITS, only where the flag is set: then it sums one behind the other, in `turns` of so many blocks `abreast`.

    x is read at read_* * q + source_* * cell + source_tap * tap: its cells, or columns of it.
    """
    t: i32 = thread()
    base: i32 = shared_base()
    part: i32 = block_y()
    if WAITS:
        for turn in range(i32(turns) * load_i32(flag, True)):
            sum_element(i32(block_x() + turn * abreast))
    else:
        sum_element(i32(block_x()))


def sum_element(element):
    """The part's sum of an element of the weight; of one beyond the last, which the last turn may have, nothing."""
    taps_zy: i32 = divide(element, kx_magic, kx_shift)
    tx: i32 = element - taps_zy * kx
    taps_z: i32 = divide(taps_zy, ky_magic, ky_shift)
    ty: i32 = taps_zy - taps_z * ky
    row_channel: i32 = divide(taps_z, kz_magic, kz_shift)
    tz: i32 = taps_z - row_channel * kz
    row: i32 = divide(row_channel, channels_magic, channels_shift)
    group: i32 = divide(row, rows_magic, rows_shift)
    channel: i32 = row_channel - row * channels + group * channels
    z0: i32 = offset_z + tz * tap_z
    y0: i32 = offset_y + ty * tap_y
    x0: i32 = offset_x + tx * tap_x
    tap: i32 = (tz * ky + ty) * kx + tx
    from_x: i64 = x + channel * source_channel + tap * source_tap
    is_one = u32(element) < u32(elements) if WAITS else True
    first, end = range_of(part)
    total = nothing()
    for k in range(i32(rounds)):
        p: i32 = first + k * THREADS + t
        wanted = is_one & (p < end)
        n, qz, qy, qx = position(p)
        cz, z_met = met(i32(qz * step_z + z0), size_z, period_z, period_z_magic, period_z_shift)
        cy, y_met = met(i32(qy * step_y + y0), size_y, period_y, period_y_magic, period_y_shift)
        cx, x_met = met(i32(qx * step_x + x0), size_x, period_x, period_x_magic, period_x_shift)
        there = wanted & z_met & y_met & x_met
        is_made = wanted if MODE == "constant" else there
        of_x = load(i64(from_x + n * source_n + cz * source_z + cy * source_y + cx * source_x
                        + qz * read_z + qy * read_y + qx * read_x), there)
        of_y = load(i64(y + n * y_n + row * y_row + qz * y_z + qy * y_y + qx * y_x), is_made)
        if MODE == "constant":
            beyond = constant(part_0, part_1)
            of_x = chosen(there, of_x, beyond)
        more = times_plus(of_x, of_y, total)
        total = chosen(is_made, more, total)
    whole = tree(total)
    store_real(i64(target + part * target_part + i64(element) * REAL), is_one & (t == 0), whole)


def range_of(part):
    """The positions of a part. Blocks of samples are cut alike; a block's last part and the last block may be short."""
    block: i32 = divide(part, cuts_magic, cuts_shift)
    block_end: i32 = select((block + 1) * block_positions < positions, i32((block + 1) * block_positions),
                            i32(positions))
    first: i32 = block * block_positions + (part - block * cuts) * part_positions
    return first, select(first + part_positions < block_end, i32(first + part_positions), block_end)


def tree(value):
    """The sum over the block's threads, in thread 0: halves onto halves.

    What each reads in the end is its own, so that another tree may follow.
    """
    at: i32 = base + t * REAL
    put(at, True, value)
    for step in unrolled(8):
        HALF = THREADS >> (step + 1)
        barrier()
        own = shared(at)
        other = shared(i32(base + ((t + HALF) & (THREADS - 1)) * REAL))
        total_of_two = plus(own, other)
        barrier()
        put(at, t < HALF, total_of_two)
    return shared(at)


def channel_sum(
    source, target, positions, block_positions, cuts, cuts_magic, cuts_shift, part_positions, rounds,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    source_n, source_channel, source_z, source_y, source_x, target_part,
):
    """A block sums a part of one channel."""
    t: i32 = thread()
    base: i32 = shared_base()
    channel: i32 = block_x()
    part: i32 = block_y()
    first, end = range_of(part)
    total = nothing()
    for k in range(i32(rounds)):
        p: i32 = first + k * THREADS + t
        n, z, y, x = position(p)
        more = load(i64(source + n * source_n + channel * source_channel + z * source_z + y * source_y
                        + x * source_x), p < end)
        total = plus(total, more)
    whole = tree(total)
    store_real(i64(target + part * target_part + channel * REAL), t == 0, whole)


def unfold(
    source, columns, count, px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    kx, kx_magic, kx_shift, ky, ky_magic, ky_shift, kz, kz_magic, kz_shift, channels, channels_magic, channels_shift,
    size_z, size_y, size_x, step_z, step_y, step_x, offset_z, offset_y, offset_x, tap_z, tap_y, tap_x,
    source_n, source_channel, source_z, source_y, source_x, columns_n, columns_channel, columns_row,
    columns_position, period_z, period_z_magic, period_z_shift, period_y, period_y_magic, period_y_shift,
    period_x, period_x_magic, period_x_shift, part_0, part_1,
):
    """columns[n, channel and tap, position] = the cell of the source, or zero, or the constant of the padding."""
    i: i32 = block_x() * THREADS + thread()
    inside = i < i32(count)
    taps, qz, qy, qx = position(i)
    zy: i32 = divide(taps, kx_magic, kx_shift)
    z: i32 = divide(zy, ky_magic, ky_shift)
    channel_n: i32 = divide(z, kz_magic, kz_shift)
    n: i32 = divide(channel_n, channels_magic, channels_shift)
    cz, z_met = met(i32(qz * step_z + offset_z + (z - channel_n * kz) * tap_z), size_z, period_z, period_z_magic,
                    period_z_shift)
    cy, y_met = met(i32(qy * step_y + offset_y + (zy - z * ky) * tap_y), size_y, period_y, period_y_magic,
                    period_y_shift)
    cx, x_met = met(i32(qx * step_x + offset_x + (taps - zy * kx) * tap_x), size_x, period_x, period_x_magic,
                    period_x_shift)
    there = inside & z_met & y_met & x_met
    channel: i32 = channel_n - n * channels
    value = load(i64(source + n * source_n + channel * source_channel + cz * source_z + cy * source_y + cx * source_x),
                 there)
    if MODE == "constant":
        beyond = constant(part_0, part_1)
        value = chosen(there, value, beyond)
    tap: i32 = taps - channel_n * (kz * ky * kx)
    store(i64(columns + n * columns_n + channel * columns_channel + tap * columns_row
              + ((qz * py + qy) * px + qx) * columns_position), inside, value)


def fold(
    columns, target, count, n0, m0, s0, n1, m1, s1, n2, m2, s2, n3, m3, s3, kz, ky, kx,
    step_z, step_z_magic, step_z_shift, step_y, step_y_magic, step_y_shift, step_x, step_x_magic, step_x_shift,
    offset_z, offset_y, offset_x, tap_z, tap_y, tap_x, pz, py, px,
    columns_n, columns_channel, columns_row, columns_position, target_n, target_channel, target_z, target_y, target_x,
):
    """target's cell = (or +=) the sum, in the order of taps, of the columns that were read from it."""
    i: i32 = block_x() * THREADS + thread()
    inside = i < i32(count)
    n, channel, cz, cy, cx = five(i)
    total = nothing()
    for z in range(i32(kz)):
        dz: i32 = cz - offset_z - z * tap_z
        qz: i32 = divide(select(dz > 0, dz, i32(0)), step_z_magic, step_z_shift)
        z_there = inside & (qz * step_z == dz) & (qz < pz)
        for y in range(i32(ky)):
            dy: i32 = cy - offset_y - y * tap_y
            qy: i32 = divide(select(dy > 0, dy, i32(0)), step_y_magic, step_y_shift)
            y_there = z_there & (qy * step_y == dy) & (qy < py)
            for x in range(i32(kx)):
                dx: i32 = cx - offset_x - x * tap_x
                qx: i32 = divide(select(dx > 0, dx, i32(0)), step_x_magic, step_x_shift)
                there = y_there & (qx * step_x == dx) & (qx < px)
                tap: i32 = (z * ky + y) * kx + x
                more = load(i64(columns + n * columns_n + channel * columns_channel + tap * columns_row
                                + ((qz * py + qy) * px + qx) * columns_position), there)
                total = plus(total, more)
    keep(i64(target + n * target_n + channel * target_channel + cz * target_z + cy * target_y + cx * target_x),
         inside, total)


def adjoint(
    partial, target, bias, count, bias_stride, n0, m0, s0, n1, m1, s1, n2, m2, s2, n3, m3, s3,
    partial_n, partial_channel, partial_z, partial_y, partial_x, target_n, target_channel, target_z, target_y, target_x,
    begin_z, begin_y, begin_x, size_z, size_y, size_x, length_z, length_y, length_x,
    first_z, first_y, first_x, turns_z, turns_y, turns_x, period_z, period_y, period_x,
):
    """target's cell = the sum of the places of a padded input that are that cell, and the bias. See padding.Edge.turns.

    Places lie `length` long in `partial`; cells before `begin` are cropped.
    """
    i: i32 = block_x() * THREADS + thread()
    inside = i < i32(count)
    if CHANNELS_LAST:
        n, cz, cy, cx, channel = five(i)
    else:
        n, channel, cz, cy, cx = five(i)
    of_channel: i64 = partial + n * partial_n + channel * partial_channel
    total = nothing()
    for z in range(i32(turns_z)):
        pz, z_there = turned(i32(cz - begin_z), i32(z), size_z, length_z, first_z, period_z)
        for y in range(i32(turns_y)):
            py, y_there = turned(i32(cy - begin_y), i32(y), size_y, length_y, first_y, period_y)
            for x in range(i32(turns_x)):
                px, x_there = turned(i32(cx - begin_x), i32(x), size_x, length_x, first_x, period_x)
                more = load_real(i64(of_channel + pz * partial_z + py * partial_y + px * partial_x),
                                 inside & z_there & y_there & x_there)
                total = plus(total, more)
    added = load_result(i64(bias + channel * bias_stride), inside & (bias != 0))
    total = plus(total, added)
    keep(i64(target + n * target_n + channel * target_channel + cz * target_z + cy * target_y + cx * target_x), inside,
         total)


def turned(cell, turn, size, length, first, period):
    """(a place along an axis, whether there is one and it is this cell)."""
    if MODE == "replicate":
        in_front = turn <= first
        place: i32 = select(turn == 0, i32(cell + first), select(in_front, i32(turn - 1), i32(turn + size - 1)))
        is_cell = (turn == 0) | (cell == select(in_front, i32(0), i32(size - 1)))
    elif MODE == "reflect":
        back: i32 = turn & 1
        place: i32 = first + (turn >> 1) * period + select(back == 1, i32(0 - cell), cell)
        is_cell = (back == 0) | ((cell > 0) & (cell < size - 1))
    else:
        place: i32 = first + turn * period + cell
        is_cell = True
    return place, is_cell & (u32(cell) < u32(size)) & (u32(place) < u32(length))
