# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""gather and correlate for 16-bit floats on Hopper, and gather for tf32: products by warpgroups (wgmma), weights by its
copy engine, which sees elements of 16 bits, whatever they are.

In the dialect. Four warps, a warpgroup, multiply 64 rows of the tile by all its BN columns; they start a product, which
reads both operands from shared memory, and go on. A stage is 128 bytes of the reduction, lines turned as copies with
the 128-byte swizzle turn them. In gather the weights are a box that one thread asks for and a mbarrier counts; all else
is copied by all threads as in `gemm`: no box covers strides, phases and padding at once, nor ends where a part of
correlate's positions ends. No roles: all warps run the same straight code, and what one thread does hangs on its `ok`.
"""

# Of a matrix in shared memory, whose address over 16 is added to the first number: what tells products where its
# elements are, and how far, over 16, a product's 16 elements of the reduction lie before the next product's. The number
# of the 128-byte swizzle; then the stride offset and the leading offset over 16.
# Lines along the reduction (K-major): from eight lines to the next eight; this form has no second, 1 by convention.
LINES_ALONG = 1 << 62 | 8 * 128 // 16 << 32 | 1 << 16, 2
# Lines across it, in panels of 64 columns (MN-major, a "transposed" operand): from eight lines to the next eight, and
# from a panel, of 64 lines, to the next.
LINES_ACROSS = 1 << 62 | 8 * 128 // 16 << 32 | 64 * 128 // 16 << 16, 16 * 128 // 16


def gather_hopper(
    weight_map, source, target, bias, flag, tiles_n, tiles_n_magic, tiles_n_shift, positions,
    px, px_magic, px_shift, py, py_magic, py_shift, pz, pz_magic, pz_shift,
    size_z, size_y, size_x, step_z, step_y, step_x, offset_z, offset_y, offset_x, tap_z, tap_y, tap_x,
    source_n, source_z, source_y, source_x, source_group,
    chunks, stages, inner, inner_magic, inner_shift, kx, kx_magic, kx_shift, ky, ky_magic, ky_shift, rows,
    target_n, target_channel, target_z, target_y, target_x, target_group, target_part, bias_row, bias_group,
    rx, rx_magic, rx_shift, ry, ry_magic, ry_shift, rz, rz_magic, rz_shift, row_z, row_y, row_x, bias_x,
    adjacent,
):
    """As gemm.gather; the weight is a matrix of (group, row) by (tap, channel), which the tensor map describes."""
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

    lane_row, lane_column, a_at, b_at = lanes()
    places, biases, full = tables(i32(base + STAGES * STAGE_BYTES))
    put_places()
    for i in unrolled(STAGES):
        mbarrier_init(i32(full + i * 8), 1, t == 0)
    fence_async()
    barrier()

    acc = registers()
    sum_stages(acc)
    let_next_begin()
    store_gathered(acc)


def sum_stages(acc):
    """The sums of the tile's products over all stages of the part.

    The products of a stage run while the next one is waited for. Once those of stage s have been started, all
    warpgroups wait until those of stage s - 1 have ended: its slot takes stage s + STAGES - 1.
    """
    AHEAD = STAGES - 1
    sums = zeros()
    for s in unrolled(AHEAD):
        copy_stage(i32(s), i32(s))
        commit()
    read: i32 = 0
    write: i32 = AHEAD
    if IN_BOXES:
        parity: i32 = 0
    for s in range(i32(stages)):
        wait(AHEAD - 1)
        fence_async()
        if IN_BOXES:
            mbarrier_wait(i32(full + read * 8), parity)
        barrier()
        multiply(i32(base + read * STAGE_BYTES), sums)
        wgmma_wait(1)
        barrier()
        copy_stage(i32(s + AHEAD), write)
        commit()
        if IN_BOXES:
            parity = select(read == STAGES - 1, i32(1 - parity), parity)
        read = following(read, 0, 1)
        write = following(write, 0, 1)
    found = wgmma_results(sums)
    for j in unrolled(NI):
        acc[0, j] = found[j * 4], found[j * 4 + 1], found[j * 4 + 2], found[j * 4 + 3]


def copy_stage(s, slot):
    """Copy the part's stage s of both operands, the weight IN_BOXES: there rows and elements beyond the end are zeros.

    Rows of the next group fill columns of the tile that nothing stores.
    """
    to_stage: i32 = base + slot * STAGE_BYTES
    if IN_BOXES:
        stage: i32 = part * i32(stages) + s
        more = s < i32(stages)
        mbarrier: i32 = full + slot * 8
        asks = more & (t == 0)
        mbarrier_expect(mbarrier, BN * LINE, asks)
        copy_box(i32(to_stage + BM * LINE), weight_map, i32(stage * (LINE // 2)), i32(group * rows + first_n), mbarrier,
                 asks)
        copy_source(stage, more, to_stage)
    else:
        copy_correlated(i32(first + s * DEPTH), to_stage)


def zeros():
    """The sums of a thread, BN / 2 of them, doubled up from four."""
    sums = registers()
    sums[0] = four()
    for i in unrolled(DOUBLINGS):
        sums[i + 1] = sums[i] + sums[i]
    return sums[DOUBLINGS]


def multiply_lines(slot, sums):
    """Start the products of a stage: four, 32 bytes of the reduction deep each."""
    first_a: i32 = slot + (warp >> 2) * (64 * LINE)
    first_b: i32 = slot + BM * LINE
    a: i64 = (first_a >> 4) + DESCRIPTOR
    b: i64 = (first_b >> 4) + DESCRIPTOR
    wgmma_fence()
    for step in unrolled(4):
        sums = wgmma(sums, i64(a + step * STEP), i64(b + step * STEP))
    wgmma_commit()
