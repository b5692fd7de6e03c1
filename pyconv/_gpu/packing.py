# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""Kernels in the dialect of `specialise` that copy operands as tiles read them, and look whether they are finite.

Tiles read chunks: 16 bytes of neighbouring channels. A thread reads a chunk's elements as bits, WIDTH bytes at a time,
of which it makes four words that it stores at once; no number is converted. All strides are in bytes.
"""


SCANNED = 4  # chunks that a thread of scan looks at


def pack(
    source, packed, flag, own, own_n, clean, cells, channels, chunks, chunks_magic, chunks_shift, row_chunks,
    beside, rounds, across, across_magic, across_shift,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    source_n, source_channel, source_z, source_y, source_x,
    size_z, size_y, size_x, offset_z, offset_y, offset_x, period_z, period_z_magic, period_z_shift,
    period_y, period_y_magic, period_y_shift, period_x, period_x_magic, period_x_shift, part_0, part_1,
):
    """packed[cell, group, channel] = source, zero for channel >= channels.

    2 ** beside threads copy neighbouring chunks of a cell, the threads behind them those of the next cell: a warp reads
    whole sectors where cells are neighbours in memory, and stores whole ones. Each goes on to the chunk that lies as
    many further, so many rounds. The grid has one axis, as there may be many of either: `across` blocks of cells for
    each run of chunks.

    Where a flag is given and an element is spoiled, the flag becomes 1, and so does its sample's own. Its blocks run in
    any order, so they cannot clear the flag that they set; but `clean`, where it is given, is a flag that later
    launches set, and becomes 0: the launches of a stream run one after the other.

    But for MODE 'zeros', what is packed are the places of the padded source, the first of which reads cell offset. If
    ROUNDED, numbers are rounded to tf32; if WHOLE, the source's chunks lie as they will, and are there.
    """
    t: i32 = thread()
    store_i32(clean, (clean != 0) & (t == 0) & (block_x() == 0), i32(0))
    cell, first = place_of_thread()
    n, z, y, x = position(cell)
    if MODE != "zeros":
        z, z_met = met(i32(z + offset_z), size_z, period_z, period_z_magic, period_z_shift)
        y, y_met = met(i32(y + offset_y), size_y, period_y, period_y_magic, period_y_shift)
        x, x_met = met(i32(x + offset_x), size_x, period_x, period_x_magic, period_x_shift)
    there = z_met & y_met & x_met if MODE == "constant" else True
    place: i64 = source + n * source_n + z * source_z + y * source_y + x * source_x
    to: i64 = packed + (i64(cell) * row_chunks + first) * 16
    seen: i32 = i32(0)
    for k in range(i32(rounds)):
        chunk: i32 = first + (k << beside)
        group: i32 = divide(chunk, chunks_magic, chunks_shift)
        channel: i32 = (chunk - group * i32(chunks)) * (16 // SIZE)
        inside = (cell < i32(cells)) & (chunk < i32(row_chunks))
        of_chunk: i64 = place + (group * channels + channel) * source_channel
        if WHOLE:
            words = load_b32x4(of_chunk, inside)
        else:
            words = chunk_of(of_chunk, source_channel, select(inside, i32(channels - channel), i32(0)), there, part_0,
                             part_1)
        kept = rounded(words) if ROUNDED else words
        store_b32x4(i64(to + ((k << beside) * 16)), inside, kept[0], kept[1], kept[2], kept[3])
        seen = exceeding(seen, words)
    spoiled = (flag != 0) & ((seen & TOP) != 0)
    store_i32(flag, spoiled, i32(1))
    store_i32(i64(own + n * own_n), spoiled, i32(1))


def unpack(
    packed, target, bias, bias_row, cells, row_chunks, beside, rounds, across, across_magic, across_shift,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift, size_z, size_y, size_x,
    start_z, start_y, start_x, lattice_z, lattice_z_magic, lattice_z_shift, lattice_y, lattice_y_magic, lattice_y_shift,
    lattice_x, lattice_x_magic, lattice_x_shift, target_n, target_channel, target_z, target_y, target_x,
):
    """target = packed[cell, channel], of whole chunks: as `pack`, the other way.

    If DIVIDED, what is packed are the cells of a lattice, so many of them; the others get the bias of their channel.
    """
    t: i32 = thread()
    cell, first = place_of_thread()
    n, z, y, x = position(cell)
    to: i64 = target + n * target_n + z * target_z + y * target_y + x * target_x
    there = cell < i32(cells)
    at: i64 = i64(cell)
    if DIVIDED:
        z, z_met = of_lattice(i32(z - start_z), lattice_z, lattice_z_magic, lattice_z_shift, size_z)
        y, y_met = of_lattice(i32(y - start_y), lattice_y, lattice_y_magic, lattice_y_shift, size_y)
        x, x_met = of_lattice(i32(x - start_x), lattice_x, lattice_x_magic, lattice_x_shift, size_x)
        there = there & z_met & y_met & x_met
        at: i64 = ((i64(n) * size_z + z) * size_y + y) * size_x + x
    place: i64 = packed + (at * row_chunks + first) * 16
    for k in range(i32(rounds)):
        chunk: i32 = first + (k << beside)
        channel: i32 = chunk * (16 // SIZE)
        inside = (cell < i32(cells)) & (chunk < i32(row_chunks))
        words = load_b32x4(i64(place + ((k << beside) * 16)), inside & there)
        if DIVIDED:
            room: i32 = select(inside & (bias != 0), i32(16 // SIZE), i32(0))
            others = chunk_of(i64(bias + channel * bias_row), bias_row, select(there, i32(0), room), True, 0, 0)
            words = (select(there, words[0], others[0]), select(there, words[1], others[1]),
                     select(there, words[2], others[2]), select(there, words[3], others[3]))
        store_chunk(i64(to + channel * target_channel), target_channel, inside, words)


def of_lattice(distance, lattice, magic, shift, size):
    """(which of a lattice's cells lies so far behind the first, whether there is one)."""
    found: i32 = divide(select(distance > 0, distance, i32(0)), magic, shift)
    return found, (found * lattice == distance) & (found < size)


def store_chunk(address, step, wanted, words):
    """A chunk's elements, whose bits the four words are, so far apart."""
    for part in unrolled(16 // WIDTH):
        to: i64 = address + part // PARTS * step + part % PARTS * WIDTH
        if WIDTH == 8:
            store_b32x2(to, wanted, words[2 * part], words[2 * part + 1])
        elif WIDTH == 4:
            store_i32(to, wanted, words[part])
        else:
            store_i16(to, wanted, i32(words[part // 2] >> (part % 2 * 16)))


def place_of_thread():
    """(cell, the first of its chunks) that a thread copies."""
    block: i32 = divide(block_x(), across_magic, across_shift)
    cell: i32 = (block_x() - block * i32(across)) * (THREADS >> beside) + (t >> beside)
    return cell, i32(((block * i32(rounds)) << beside) + (t & ((1 << beside) - 1)))


def chunk_of(address, step, room, there, part_0, part_1):
    """The four words of a chunk's elements, of which so many exist; zeros behind them, and constants if not there."""
    words = registers()
    here: i64 = address
    for part in unrolled(16 // WIDTH):
        exists = part // PARTS < room
        found = load_bits(i64(here + part % PARTS * WIDTH), exists & there)
        if MODE == "constant":
            of_part = part_1 if part % PARTS else part_0
            found = select(there | (room <= part // PARTS), found, number_of_bits(of_part))
        if WIDTH == 8:
            words[2 * part]: i32 = found
            words[2 * part + 1]: i32 = found >> 32
        else:
            words[part] = found
        if part % PARTS == PARTS - 1:
            here: i64 = here + step
    if WIDTH == 2:
        for word in unrolled(4):
            words[word]: i32 = words[2 * word] | (words[2 * word + 1] << 16)
    return words[0], words[1], words[2], words[3]


def rounded(words):
    """Four numbers of float32 to the bits of tf32."""
    return (i32(round_tf32(u32(words[0]))), i32(round_tf32(u32(words[1]))), i32(round_tf32(u32(words[2]))),
            i32(round_tf32(u32(words[3]))))


def exceeding(seen, words):
    """`seen`, with bits of TOP set if a word has numbers that are spoiled: not finite, or so large that their double is
    not, as their high part of tf32 may not be either.

    Of a number's bits but the sign those of its exponent are the highest, and TO_TOP is what carries into TOP the
    least that is spoiled; so two halves of a word are looked at together. Of 8 bytes the second word has the exponent.
    """
    if WIDTH == 8:
        found: i32 = seen | ((words[1] & MAGNITUDE) + TO_TOP) | ((words[3] & MAGNITUDE) + TO_TOP)
    else:
        found: i32 = (seen | ((words[0] & MAGNITUDE) + TO_TOP) | ((words[1] & MAGNITUDE) + TO_TOP)
                      | ((words[2] & MAGNITUDE) + TO_TOP) | ((words[3] & MAGNITUDE) + TO_TOP))
    return found


def pack_weight(
    weight, packed, flag, count, channels, chunks, rows_inside, inner, inner_magic, inner_shift,
    taps, taps_magic, taps_shift, kx, kx_magic, kx_shift, ky, ky_magic, ky_shift, rows, rows_magic, rows_shift,
    weight_group, weight_row, weight_channel, weight_z, weight_y, weight_x,
):
    """packed[group, row, tap, channel] = weight, zero for channel >= channels; the flag as in `pack`.

    A thread copies a chunk. Neighbours are those of the next tap, and behind the last tap those of the next of `inner`
    chunks or, where they lie nearer to each other and `rows_inside` is not 0, of as many rows of all groups.

    A complex weight is two rows of as many pairs: (re, -im), whose product with (re, im) is real, and (im, re).
    """
    i: i32 = block_x() * THREADS + thread()
    inside = i < i32(count)
    line: i32 = divide(i, taps_magic, taps_shift)
    tap: i32 = i - line * i32(taps)
    outer: i32 = divide(line, inner_magic, inner_shift)
    rest: i32 = line - outer * i32(inner)
    chunk: i32 = select(rows_inside != 0, outer, rest)
    row: i32 = select(rows_inside != 0, rest, outer)
    group: i32 = divide(row, rows_magic, rows_shift)
    zy: i32 = divide(tap, kx_magic, kx_shift)
    z: i32 = divide(zy, ky_magic, ky_shift)
    channel: i32 = chunk * (16 // SIZE)
    place: i64 = (
        weight + group * weight_group + (row - group * i32(rows)) * weight_row + channel * weight_channel
        + z * weight_z + (zy - z * i32(ky)) * weight_y + (tap - zy * i32(kx)) * weight_x)
    words = chunk_of(place, weight_channel, select(inside, i32(channels - channel), i32(0)), True, 0, 0)
    to: i64 = packed + ((i64(row) * PARTS * taps + tap) * chunks + chunk) * 16
    if PARTS == 2:
        below: i64 = to + taps * chunks * 16
        if WIDTH == 8:
            store_b32x4(to, inside, words[0], words[1], words[2], i32(words[3] ^ TOP))
            store_b32x4(below, inside, words[2], words[3], words[0], words[1])
        else:
            store_b32x4(to, inside, words[0], i32(words[1] ^ TOP), words[2], i32(words[3] ^ TOP))
            store_b32x4(below, inside, words[1], words[0], words[3], words[2])
    else:
        kept = rounded(words) if ROUNDED else words
        store_b32x4(to, inside, kept[0], kept[1], kept[2], kept[3])
    seen = exceeding(i32(0), words)
    store_i32(flag, (flag != 0) & ((seen & TOP) != 0), i32(1))


def scan(source, flag, own, own_n, count, last, n0, m0, s0, n1, m1, s1, n2, m2, s2, n3, m3, s3,
         stride_0, stride_1, stride_2, stride_3, stride_4):
    """The flags as in `pack`, of an operand that lies in chunks, `last` of them along the last of five axes.

    A thread looks at SCANNED of these, n0 apart, whose places take but an addition.
    """
    i: i32 = block_x() * THREADS + thread()
    a, b, c, d, e = five(i)
    place: i64 = source + a * stride_0 + b * stride_1 + c * stride_2 + d * stride_3 + e * stride_4
    end: i32 = select(i < i32(count), i32(last - e), i32(0))
    seen: i32 = i32(0)
    for k in unrolled(SCANNED):
        words = load_b32x4(i64(place + k * n0 * stride_4), k * i32(n0) < end)
        seen = exceeding(seen, words)
    spoiled = (seen & TOP) != 0
    store_i32(flag, spoiled, i32(1))
    store_i32(i64(own + a * own_n), spoiled, i32(1))


def clear_flag(flag, count):
    """So many flags = 0."""
    i: i32 = block_x() * THREADS + thread()
    store_i32(i64(flag + i * 4), i < i32(count), i32(0))
