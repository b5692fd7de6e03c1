# Part of _cpu.pyx: a step of a plan, which is a piece in blocks; what a thread works with; which block is a task's.

cdef struct step_t:
    piece_t piece
    const way_t *way
    block_t block  # of full size, at the origin
    index_t count[3]  # positions along the axes, or tiles of them
    index_t blocks[4]  # along samples, z, y, x
    index_t block_count
    index_t channels, depth_channels, depth_blocks  # of source in a group; summed at a time; and how often
    index_t taps
    index_t rows, row_block, row_blocks  # of target in a group
    index_t groups, group_block, group_blocks  # in all; those that one task does at once; and how often
    index_t batch, biases  # samples, and biases of a group
    index_t splits
    index_t scratch, panel, result  # elements: unrolled block; the other operand packed; results
    index_t packed  # where its packed weights begin
    index_t offsets, picked  # elements that the offsets of its taps take, and those of one of several steps
    index_t tasks
    double products
    index_t packs  # tasks of packing its weights, none where that would not save work
    int wave, accumulate
    int in_place  # rows of positions lie in target, or its patch, as they do in a result
    int anywhere  # and it does not matter how far apart they are, nor whether they are whole vectors
    int turns[3]  # source, target, weight do not lie in memory as the way wants them
    index_t lattices  # along y, each of which is a piece of its own to blocks whose operands have patches; else 1
    int folds  # what is beyond target's edges is added before it is stored: Winograd's tiles store it there themselves
    index_t patch[3]  # elements of the patches that stand for them
    index_t apart  # samples whose results are kept apart, in grad_weight
    int members  # steps from this one on that its tasks do, 0 where those of an earlier one do
    int by_groups  # all blocks of a share follow each other: a thread, whose tasks do, reads the weights that it packed
    int one_panel  # they have one panel of weights, those of the piece `whole`
    int shares  # they have the same cells unrolled, as of the piece `whole`
    index_t first[3]  # and a step's taps along an axis are, from this one on,
    index_t every[3]  # every so many of that piece's
    int paired  # the next step's positions lie between this one's along x: they are stored together
    int direct  # its results are vectors of lanes
    piece_t whole, both  # where it is paired, both pieces' target
    index_t interleaved  # and elements of both results


# What a thread works with: its scratch, and what it works on; the offsets are those of `channels` channels.
cdef struct desk_t:
    char *scratch
    char *panel
    index_t *offset
    char *result
    char *results  # of the first of several steps
    char *part
    char *recent  # the sums of a run of blocks
    char *interleaved  # two of the results of several steps
    char *patch[3]  # of source, of target, of the weight
    const piece_t *piece  # the step's, or
    piece_t lattice  # the lattice of it that the block is of
    piece_t seen  # with patches for operands
    work_t work
    index_t channels


_STORED = {name: place for place, name in enumerate((
    "", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"))}


def _stored(dtype, real):
    """How kernels call a type that they do not compute in; 0 for one whose bits are those of the real type."""
    if dtype.kind == "c" or dtype == real or (dtype.kind in "iu" and dtype.itemsize == real.itemsize):
        return 0
    return _STORED[dtype.name]


cdef void _fill_piece(piece_t *piece, found) except *:
    cdef int a
    for a in range(3):
        axis = found.axes[a]
        piece.axis[a] = axis_t(axis.size, axis.step, axis.offset, axis.tap_step, axis.taps, axis.streams, axis.unit)
        piece.count[a] = axis.positions
        piece.source_stride[a] = found.source.axes[a]
        piece.target_stride[a] = found.target.axes[a]
        piece.weight_stride[a] = found.weight.axes[a]
        piece.row_taps[a], piece.row_stride[a] = found.row_taps[a]
        piece.tile[a] = found.tile[a]
        piece.before[a], piece.behind[a] = found.folds[a]
    piece.source_base, piece.source_batch, piece.source_channel = found.source[:3]
    piece.target_base, piece.target_batch, piece.target_channel = found.target[:3]
    piece.weight_base, piece.weight_row, piece.weight_channel = found.weight[:3]
    piece.source_group, piece.target_group, piece.weight_group = (
        found.source.group, found.target.group, found.weight.group)
    piece.turned, piece.parts, piece.rows = found.turned, found.parts, found.rows
    piece.rows_by_tap = found.rows_by_tap
    piece.source_last, piece.woven, piece.weight_woven = found.source_last, found.woven, found.weight_woven
    piece.several = found.several
    piece.edge, piece.folded = MODES.index(found.edge), MODES.index(found.folded)


cdef inline index_t _parts(index_t n, index_t size) noexcept nogil:
    return (n + size - 1) // size


cdef inline index_t _up(index_t n, index_t multiple) noexcept nogil:
    return _parts(n, multiple) * multiple


cdef inline int _worth(int threads, index_t tasks, double products) noexcept nogil:
    """How many of the threads find enough to do."""
    return <int>max(1, min(min(threads, tasks), min(products / TINY, MOST_THREADS)))


cdef int TASKS = _blocks.TASKS
cdef double TASK = _blocks.TASK
cdef index_t FEW_SETS = _blocks.FEW_SETS


cdef inline int _tasks(int threads, double products) noexcept nogil:
    """How many blocks a call should have at least for so many threads: for two, few large ones, which read less anew
    and find the weights in the cache of the thread that packed them. Powers of two, so that there are few plans."""
    cdef int tasks = 2 if threads <= 2 else TASKS
    cdef double most = min(min(threads, MOST_THREADS), products / TASK)
    while tasks < most and threads > 2:
        tasks *= 2
    return tasks


cdef index_t _decode(const step_t *step, index_t which, block_t *block) noexcept nogil:
    """The which-th block of a step, the last one of an axis, or of a lattice of it, cut to what is left; gives back
    which part it is for."""
    cdef int a
    cdef index_t rest = which, lattices, count, blocks, number
    block[0] = step.block
    for a in range(2, -1, -1):
        lattices = step.lattices if a == 1 else 1
        count, blocks = step.count[a] // lattices, step.blocks[a + 1] // lattices
        number = rest % step.blocks[a + 1]
        block.start[a] = number % blocks * step.block.extent[a]
        block.extent[a] = min(step.block.extent[a], count - block.start[a])
        block.start[a] += number // blocks * count
        rest //= step.blocks[a + 1]
    block.sample = rest % step.blocks[0] * step.block.samples
    block.samples = min(step.block.samples, step.batch - block.sample)
    return rest // step.blocks[0]


cdef void _see_lattice(const step_t *step, block_t *block, desk_t *desk) noexcept nogil:
    """Of a step whose lattices are seen one by one, the lattice along y that a block's tiles lie in as the piece, and
    the block as one of it: position q of lattice l is position l + lattices * q of the step's piece, and so are the
    cells that it reads."""
    cdef piece_t *piece = &desk.lattice
    if step.lattices == 1:
        return
    cdef index_t steps = step.lattices, high = step.count[1] // steps, number = block.start[1] // high
    cdef index_t first = number + step.piece.axis[1].offset, shift = first // steps, cell
    if first < shift * steps:
        shift -= 1
    cell = first - shift * steps
    piece[0] = step.piece
    piece.count[1] = _parts(max(0, piece.count[1] - number), steps)
    piece.axis[1].tap_step, piece.axis[1].offset = 1, shift
    piece.axis[1].size = _parts(max(0, piece.axis[1].size - cell), steps)
    piece.source_base += cell * piece.source_stride[1]
    piece.target_base += number * piece.target_stride[1]
    piece.source_stride[1] *= steps
    piece.target_stride[1] *= steps
    block.start[1] -= number * high
    desk.piece, desk.seen = piece, piece[0]


cdef void _part(const step_t *step, index_t task, part_t *part) noexcept nogil:
    """The task-th part of the weight: rows first, then groups, then channels."""
    part.row = task % step.row_blocks * step.row_block
    part.rows = min(step.row_block, step.rows - part.row)
    part.group = task // step.row_blocks % step.group_blocks * step.group_block
    part.groups = min(step.group_block, step.groups - part.group)
    part.channel = task // step.row_blocks // step.group_blocks * step.depth_channels
    part.channels = min(step.depth_channels, step.channels - part.channel)


cdef void _pick(const step_t *step, const step_t *member, index_t channels, const index_t *offset,
                index_t *to) noexcept nogil:
    """to[channel][tap] <- the offsets of a member's taps, among those of the piece that the step has unrolled."""
    cdef const axis_t *axis = &step.whole.axis[0]
    cdef const axis_t *own = &member.piece.axis[0]
    cdef index_t c, z, y, x, plane, row
    for c in range(channels):
        for z in range(own[0].taps):
            plane = c * axis[0].taps + member.first[0] + z * member.every[0]
            for y in range(own[1].taps):
                row = plane * axis[1].taps + member.first[1] + y * member.every[1]
                for x in range(own[2].taps):
                    to[0] = offset[row * axis[2].taps + member.first[2] + x * member.every[2]]
                    to += 1


cdef unsigned int NOTHING = 0xffffffff  # the least of numbers where there are none: see seen_t


cdef inline int _exponent(unsigned int twice) noexcept nogil:
    return <int>(twice >> 24)


cdef inline int _least_exponent(const seen_t *seen) noexcept nogil:
    """As stored, 256 where there is none."""
    return <int>((<unsigned long long>seen.least + 1) >> 24)


cdef bint _keeps_slices(const seen_t *one, const seen_t *other) noexcept nogil:
    """Whether no slice of such numbers is too small to be normal, and what sums of their products lose where they are
    is less than 2**-26 of the smallest product."""
    return min(_least_exponent(one), _least_exponent(other)) >= LEAST_SLICED and (
        _least_exponent(one) + _least_exponent(other) >= LEAST_OF_PRODUCT)


cdef bint _may_overflow(const seen_t *one, const seen_t *other, double summed) noexcept nogil:
    """Whether a slice, or the sum of so many products of such numbers, may not be finite where the definition's is."""
    cdef int first = _exponent(one.greatest), second = _exponent(other.greatest)
    return max(first, second) >= GREATEST or first + second + log2(max(1, summed)) >= GREATEST_OF_SUM


cdef part_t _most(const step_t *step) noexcept nogil:
    """The largest part of the weight that a task works with."""
    return part_t(0, step.group_block, 0, min(step.row_block, step.rows), 0, step.depth_channels)
