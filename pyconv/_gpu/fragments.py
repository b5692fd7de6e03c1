# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""How a warp reads its operands from a stage and multiplies them. In the dialect of `specialise`.

A block's warps share its tile as WM x WN; a warp's part is WTM x WTN results, kept in acc[i, j]. `lanes` gives the row
and column of a lane's first result and the byte offsets at which it starts to read either operand; its other results
lie ROWS[i] and COLUMNS[j] away, and those of one acc[i, j] 8 rows (DOWN) and 1 column (ACROSS) apart.

The layouts of fragments are those of the PTX ISA (mma.m16n8k16, m16n8k8, m8n8k4; ldmatrix): with g = lane // 4 and
r = lane % 4, a lane holds of a 16 x 8 result rows g and g + 8 and columns 2r and 2r + 1. Of float64 it holds of either
operand every fourth element along the reduction, and of a the row below before the next of them.
"""


def four():
    """The accumulator of a 16 x 8 fragment."""
    return real(0), real(0), real(0), real(0)


def two():
    """That of an 8 x 8 fragment of float64."""
    return f64(0), f64(0)


def one():
    """That of no tensor core."""
    return real(0)


# --- lines along the reduction: chunk c of line n lies at n * LINE + 16 (c ^ turn(n)), see gemm.turn ---


def lanes_of_matrices():
    """ldmatrix: lanes 0..15 name the lines of a 16-row fragment's first 16 bytes, 16..31 those of its second."""
    g: i32 = lane >> 2
    a_line: i32 = (warp % WM) * WTM + (lane & 15)
    b_line: i32 = (warp // WM) * WTN + (lane & 7) + ((lane >> 4) << 3)
    a: i32 = a_line * LINE + (((lane >> 4) ^ turn(a_line)) << 4)
    b: i32 = b_line * LINE + ((((lane >> 3) & 1) ^ turn(b_line)) << 4)
    return i32((warp % WM) * WTM + g), i32((warp // WM) * WTN + (lane & 3) * 2), a, b


def matrices_a(slot, step, i):
    """The operand of 16 rows; a step's chunks are the first's with bits 5 and 6 of the address turned."""
    return ldmatrix(i32(slot + (a_at ^ (step * 32)) + i * 16 * LINE))


def matrices_b(slot, step, j):
    """Those of two neighbouring fragments."""
    return ldmatrix(i32(slot + (b_at ^ (step * 32)) + j * 8 * LINE))


def as_loaded(q):
    """16-bit operands, two in a register; in one part, as are those that are rounded."""
    return (q,)


def rounded(q):
    """float32 rounded to the 10 bits of mantissa that tensor cores read."""
    return ((round_tf32(q[0]), round_tf32(q[1]), round_tf32(q[2]), round_tf32(q[3])),)


def split(q):
    """Four floats as sums of a high and a low part of 10 bits each."""
    h0, l0 = split_tf32(q[0])
    h1, l1 = split_tf32(q[1])
    h2, l2 = split_tf32(q[2])
    h3, l3 = split_tf32(q[3])
    return (h0, h1, h2, h3), (l0, l1, l2, l3)


def multiply_fragments(slot_a, slot_b, acc):
    """Tensor cores: a stage's steps of 32 bytes; of each the products of those PARTS of both operands, in order.

    FROM_ZERO: a result's products of two steps are summed from zero, those of both steps part by part, and the sum is
    added by the units that round. Tensor cores may cut off what does not fit, always towards zero: a long sum then
    drifts, and what is small beside it loses most.
    """
    a = registers()
    b = registers()
    TOGETHER = 2 if FROM_ZERO else 1
    for first in unrolled(0, LINE // 32, TOGETHER):
        for step in unrolled(first, first + TOGETHER):
            for i in unrolled(MI):
                raw = fragment_a(slot_a, step, i)
                a[step, i] = operand(raw)
        for j in unrolled(0, NI, 2):
            for step in unrolled(first, first + TOGETHER):
                raw = fragment_b(slot_b, step, j)
                b[step] = operand(raw)
            for i in unrolled(MI):
                for beside in unrolled(2):
                    total = zero() if FROM_ZERO else acc[i, j + beside]
                    for which in unrolled(len(PARTS)):
                        for step in unrolled(first, first + TOGETHER):
                            q = b[step][PARTS[which][1]]
                            total = mma(total, a[step, i][PARTS[which][0]], (q[2 * beside], q[2 * beside + 1]))
                    acc[i, j + beside] = added(acc[i, j + beside], total) if FROM_ZERO else total


def added(a, b):
    """The sum of two accumulators."""
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


def lanes_of_doubles():
    """float64: of line g a lane reads its chunk r, of lines of 128 bytes chunks 2r and 2r + 1, free of bank conflicts.

    Which element a product takes to be which does not matter, so long as both operands agree.
    """
    g: i32 = lane >> 2
    chunk: i32 = (lane & 3) * (LINE // 64)
    a_line: i32 = (warp % WM) * WTM + g
    b_line: i32 = (warp // WM) * WTN + g
    return (a_line, i32((warp // WM) * WTN + (lane & 3) * 2), i32(a_line * LINE + ((chunk ^ turn(a_line)) << 4)),
            i32(b_line * LINE + ((chunk ^ turn(b_line)) << 4)))


def doubles_a(slot, pair, i):
    """Two elements of rows i."""
    return shared_chunk(i32(slot + (a_at ^ (pair * 16)) + i * 8 * LINE))


def doubles_b(slot, pair, j):
    """Two elements of columns j."""
    return shared_chunk(i32(slot + (b_at ^ (pair * 16)) + j * 8 * LINE))


def multiply_doubles(slot_a, slot_b, acc):
    """float64 tensor cores: a product takes AT_ONCE elements of a lane, whose other lanes' are four times as many."""
    a = registers()
    b = registers()
    for pair in unrolled(DEPTH // 8):
        for i in unrolled(MI * DOWN):
            a[pair, i] = fragment_a(slot_a, pair, i)
    for j in unrolled(NI):
        for pair in unrolled(DEPTH // 8):
            b[pair] = fragment_b(slot_b, pair, j)
        for first in unrolled(0, DEPTH // 4, AT_ONCE):
            of_b = tuple(b[k // 2][k % 2] for k in unrolled(first, first + AT_ONCE))
            for i in unrolled(MI):
                of_a = tuple(a[k // 2, i * DOWN + h][k % 2]
                             for k in unrolled(first, first + AT_ONCE) for h in unrolled(DOWN))
                acc[i, j] = mma(acc[i, j], of_a, of_b)


def lanes_of_scalars():
    """No tensor core: 8 x 4 lanes; a lane has every 8th row and every 4th column of its warp's part."""
    row: i32 = (warp % WM) * WTM + (lane & 7)
    column: i32 = (warp // WM) * WTN + (lane >> 3)
    return row, column, i32(row * 64 + (((row >> 1) & 3) << 4)), i32(column * 64 + (((column >> 1) & 3) << 4))


def multiply_scalars(slot_a, slot_b, acc):
    """Chunk by chunk: MI chunks of a wait in registers for one of b after the other. Unrolled: minutes to compile."""
    a = registers()
    for c in range(4):
        for i in unrolled(MI):
            a[i] = shared_chunk(i32(slot_a + (a_at ^ (c * 16)) + i * 512))
        for j in unrolled(NI):
            b = shared_chunk(i32(slot_b + (b_at ^ ((c ^ (j % 2 * 2)) * 16)) + j * 256))
            for e in unrolled(PER_CHUNK):
                for i in unrolled(MI):
                    acc[i, j] = fma(a[i][e], b[e], acc[i, j])


# --- lines along the tile: chunk c of line n lies at n * line + 16 (c ^ twist(n)), see gemm.twist ---


def lanes_of_transposed():
    """16-bit: ldmatrix turns blocks of 8 lines x 8 elements. Lane l names line l % 8 of matrix l / 8."""
    g: i32 = lane >> 2
    row: i32 = (warp % WM) * WTM
    column: i32 = (warp // WM) * WTN
    a: i32 = ((lane & 7) + ((lane >> 4) << 3)) * A_LINE
    b: i32 = ((lane & 7) + (((lane >> 3) & 1) << 3)) * B_LINE
    return i32(row + g), i32(column + (lane & 3) * 2), a, b


def transposed_a(slot, step, i):
    """A step is 16 lines; chunks of 8 rows are those of (warp, i, lane / 8 % 2)."""
    chunk: i32 = (warp % WM) * (WTM // 8) + ((lane >> 3) & 1) + i * 2
    return ldmatrix_transposed(i32(slot + a_at + step * 16 * A_LINE + ((chunk ^ twist(lane & 7, A_TWIST)) << 4)))


def transposed_b(slot, step, j):
    """Those of (warp, j, lane / 16)."""
    chunk: i32 = (warp // WM) * (WTN // 8) + (lane >> 4) + j
    return ldmatrix_transposed(i32(slot + b_at + step * 16 * B_LINE + ((chunk ^ twist(lane & 7, B_TWIST)) << 4)))


def lanes_of_words():
    """32 and 64 bits: a lane reads element g of line r, one by one, as ldmatrix turns 16-bit elements alone."""
    g: i32 = lane >> 2
    r: i32 = lane & 3
    row: i32 = (warp % WM) * WTM + g
    return row, i32((warp // WM) * WTN + r * 2), i32(r * A_LINE), i32(r * B_LINE)


def word(first, element, bits):
    """The offset of an element of the line at `first`, whose number is lane % 4 modulo 4."""
    return i32(first + (((element >> PER_CHUNK // 2) ^ twist(lane & 3, bits)) << 4)
               + (element & (PER_CHUNK - 1)) * SIZE)


def words_a(slot, step, i):
    """A step is 8 lines. Rows g and g + 8 of lines r and r + 4."""
    at = word(i32(slot + a_at + step * 8 * A_LINE), i32(lane_row + i * 16), A_TWIST)
    below = word(i32(slot + a_at + step * 8 * A_LINE), i32(lane_row + i * 16 + 8), A_TWIST)
    return shared_b32(at), shared_b32(below), shared_b32(i32(at + 4 * A_LINE)), shared_b32(i32(below + 4 * A_LINE))


def words_b(slot, step, j):
    """Columns g of lines r and r + 4, of two neighbouring fragments."""
    column: i32 = (warp // WM) * WTN + (lane >> 2) + j * 8
    at = word(i32(slot + b_at + step * 8 * B_LINE), column, B_TWIST)
    beside = word(i32(slot + b_at + step * 8 * B_LINE), i32(column + 8), B_TWIST)
    return shared_b32(at), shared_b32(i32(at + 4 * B_LINE)), shared_b32(beside), shared_b32(i32(beside + 4 * B_LINE))


def double_words_a(slot, pair, i):
    """Row g of two of the lines r, r + 4, ..."""
    first: i32 = slot + a_at + pair * 8 * A_LINE
    row: i32 = lane_row + i * 8
    return shared_f64(word(first, row, A_TWIST)), shared_f64(word(i32(first + 4 * A_LINE), row, A_TWIST))


def double_words_b(slot, pair, j):
    """Column g of these."""
    first: i32 = slot + b_at + pair * 8 * B_LINE
    column: i32 = (warp // WM) * WTN + (lane >> 2) + j * 8
    return shared_f64(word(first, column, B_TWIST)), shared_f64(word(i32(first + 4 * B_LINE), column, B_TWIST))


def lanes_of_runs():
    """No tensor core: LANES x 32 / LANES; a lane has runs of a chunk's elements, as far apart as there are lanes."""
    a: i32 = (warp % WM) * WTM // PER_CHUNK + (lane & (LANES - 1))
    b: i32 = (warp // WM) * WTN // PER_CHUNK + (lane >> LANE_BITS)
    return i32(a * PER_CHUNK), i32(b * PER_CHUNK), a, b


def multiply_runs(slot_a, slot_b, acc):
    """Line by line, four at a time: an outer product of the chunks that a lane reads of either operand's line."""
    a = registers()
    BESIDE = 32 // LANES
    for four in range(DEPTH // 4):
        line_a: i32 = slot_a + four * 4 * A_LINE
        line_b: i32 = slot_b + four * 4 * B_LINE
        for line in unrolled(4):
            for i in unrolled(MI // PER_CHUNK):
                a[i] = shared_chunk(i32(line_a + line * A_LINE + (((a_at + i * LANES) ^ twist(line, A_TWIST)) << 4)))
            for j in unrolled(NI // PER_CHUNK):
                b = shared_chunk(i32(line_b + line * B_LINE + (((b_at + j * BESIDE) ^ twist(line, B_TWIST)) << 4)))
                for e in unrolled(PER_CHUNK):
                    for i in unrolled(MI):
                        acc[i, j * PER_CHUNK + e] = fma(
                            a[i // PER_CHUNK][i % PER_CHUNK], b[e], acc[i, j * PER_CHUNK + e])
