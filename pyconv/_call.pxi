# Part of _cpu.pyx: one run of a plan, block by block, on all threads.

cdef enum job_t:
    CHECK_CELLS, PACK_PARTS, GATHER_BLOCKS, CORRELATE_SPLIT, CORRELATE_PART


cdef class Call:
    """One run of a plan: where its operands and its scratch are."""

    cdef Watch watch
    cdef Plan plan
    cdef char *source
    cdef char *source_end
    cdef char *weight
    cdef char *target
    cdef char *bias
    cdef char *own
    cdef char *shared
    cdef char *doubtful  # of each sample, whether its result is not to be trusted
    cdef seen_t *seen  # by a plan that slices floats, of the weight and of each sample
    cdef char *checked  # what is looked through for NaN and infinities
    cdef seen_t *parts_seen  # of its parts, where that is asked for
    cdef index_t checked_size, checked_item
    cdef index_t packs  # tasks that pack weights
    cdef int checked_type, checks_small
    cdef int accumulate, threads, has_shared, wave, odd
    cdef index_t *places  # of grad_weight's terms (see _outer): bytes from source and from target to their volumes,
    cdef index_t terms  # of so many; NULL where the operands have one volume

    cdef int place(self, char *scratch, index_t size) except -1:
        """Divide scratch: what is shared, if a thread's own still fits beside it, then as many threads as it allows."""
        cdef index_t item = self.plan.kernels.itemsize
        cdef index_t lost = (LINE - <uintptr_t>scratch % LINE) % LINE // item
        cdef index_t left = size - lost
        self.shared = scratch + lost * item
        self.has_shared = left >= self.plan.shared_scratch + self.plan.thread_scratch
        if self.has_shared:
            left -= self.plan.shared_scratch
        self.own = self.shared + (self.plan.shared_scratch * item if self.has_shared else 0)
        self.threads = <int>max(1, min(self.threads, left // max(1, self.plan.thread_scratch)))
        return 0

    cdef int each(self, job_t job, step_t *step, index_t tasks, int threads) except -1:
        """Every task of a job, on so many threads: one is not worth what a team of one costs, some microseconds."""
        cdef index_t task
        cdef int first
        cdef char *taken
        if threads > 1:
            taken = <char *>calloc(threads, LINE)  # how many of each thread's tasks were, a cache line each
            if taken == NULL:
                raise MemoryError
            for first in prange(threads, nogil=True, num_threads=threads, schedule="static", chunksize=1):
                self.take_tasks(job, step, tasks, threads, first, taken)
            free(taken)
        else:
            with nogil:
                for task in range(tasks):
                    self.do(job, step, task, 0)
        return self.watch.settle()

    cdef void take_tasks(self, job_t job, step_t *step, index_t tasks, int threads, int first,
                         char *taken) noexcept nogil:
        """A thread's own tasks, then those that others have not come to. Its own are neighbours and the same in every
        call: what it reads and writes is in its caches, which may be far from another's."""
        cdef index_t begin, count, task
        cdef int i, owner
        for i in range(threads):
            owner = (first + i) % threads
            begin = tasks * owner // threads
            count = tasks * (owner + 1) // threads - begin
            while True:
                task = pyconv_take(<index_t *>(taken + owner * LINE), count)
                if task >= count:
                    break
                self.do(job, step, begin + task, threadid())

    cdef void do(self, job_t job, step_t *step, index_t task, int thread) noexcept nogil:
        if self.watch.look():
            return
        if job == CHECK_CELLS:
            self.check_cells(task)
        elif job == PACK_PARTS:
            self.pack_parts(task, thread)
        elif job == GATHER_BLOCKS:
            self.gather_any(task, thread)
        elif job == CORRELATE_SPLIT:
            self.correlate_split(step, task, thread)
        else:
            self.correlate_task(step, task, thread)

    cdef int is_finite(self, cnp.ndarray array, int stored, int small=False) except -1:
        """Whether an operand or a result is, whose elements are of that type; or so small that Winograd's sums are."""
        cdef index_t parts
        self.checked, self.checked_type, self.checks_small, self.odd = _data(array), stored, small, False
        self.checked_item = cnp.PyArray_ITEMSIZE(array) if stored else self.plan.kernels.itemsize
        self.checked_size = cnp.PyArray_NBYTES(array) // self.checked_item
        parts = _parts(self.checked_size, CHECKED)
        self.each(CHECK_CELLS, NULL, parts, <int>min(self.threads, parts))
        return not self.odd

    cdef seen_t range_of(self, cnp.ndarray array):
        """Of the numbers of an operand, floats or brain floats."""
        cdef seen_t found
        cdef index_t i, parts
        self.checked, self.checked_item, self.checked_size = _data(array), cnp.PyArray_ITEMSIZE(array), array.size
        parts = _parts(self.checked_size, CHECKED)
        room = np.empty((parts, 2), np.uint32)
        room[:] = NOTHING, 0
        self.parts_seen = <seen_t *>_data(room)
        self.each(CHECK_CELLS, NULL, parts, <int>min(self.threads, parts))
        found.least, found.greatest = NOTHING, 0
        for i in range(parts):
            found.least = min(found.least, self.parts_seen[i].least)
            found.greatest = max(found.greatest, self.parts_seen[i].greatest)
        self.parts_seen = NULL
        return found

    cdef void check_cells(self, index_t part) noexcept nogil:
        cdef seen_t seen
        if self.parts_seen != NULL:
            self.plan.kernels.see(min(CHECKED, self.checked_size - part * CHECKED),
                                  self.checked + part * CHECKED * self.checked_item, self.parts_seen + part)
        elif self.plan.flushes and self.checks_small:
            seen.least, seen.greatest = NOTHING, 0
            self.plan.kernels.see(min(CHECKED, self.checked_size - part * CHECKED),
                                  self.checked + part * CHECKED * self.checked_item, &seen)
            if _least_exponent(&seen) < self.checks_small:
                self.odd = True
        elif not self.plan.kernels.finite(self.checked_type, min(CHECKED, self.checked_size - part * CHECKED),
                                        self.checked + part * CHECKED * self.checked_item, self.checks_small):
            self.odd = True

    cdef int gather(self) except -1:
        """All waves, one after the other; the weights are packed before, for all threads, where there is room."""
        cdef index_t tasks = 0
        cdef double products
        cdef int i
        if self.has_shared:
            for i in range(self.plan.count):
                tasks = max(tasks, self.plan.steps[i].packs)
            self.packs = tasks
            self.each(PACK_PARTS, NULL, tasks, <int>min(self.threads, tasks))
        for self.wave in range(self.plan.waves):
            tasks, products = 0, 0
            for i in range(self.plan.count):
                if self.plan.steps[i].wave == self.wave:
                    tasks += self.plan.steps[i].tasks
                    products += self.plan.steps[i].products
            self.each(GATHER_BLOCKS, NULL, tasks, _worth(self.threads, tasks, products))
        return 0

    cdef void pack_parts(self, index_t task, int thread) noexcept nogil:
        """One share of the weights, for all steps: most read the same cache lines, if not the same taps. In the order
        in which they lie, so that of a few blocks a thread packs what it is to read, as far as it can."""
        cdef desk_t desk
        cdef step_t *step
        cdef index_t place, parts, part
        cdef int i
        for i in range(self.plan.count):
            step = &self.plan.steps[i]
            parts = step.row_blocks * step.group_blocks
            self.sit(step, thread, &desk)
            for place in range(step.packs * task // self.packs, step.packs * (task + 1) // self.packs):
                part = place % step.depth_blocks * parts + place // step.depth_blocks
                _part(step, part, &desk.work.part)
                self.pack(step, &desk, self.panel_at(step, part))

    cdef void pack(self, const step_t *step, desk_t *desk, char *panel) noexcept nogil:
        """panel <- the part's weights."""
        cdef const piece_t *piece = &step.whole if step.one_panel else &step.piece
        cdef char *weight = self.weight_at(piece, &desk.work.part)
        if step.one_panel:
            desk.work.piece = piece
        if step.turns[2]:
            weight = self.turn_in(step, desk, WEIGHT, weight)
        step.way.pack(&desk.work, weight, panel)

    cdef char *packed(self, const step_t *step, index_t part, desk_t *desk) noexcept nogil:
        """The part's weights, packed before or here."""
        if self.has_shared and step.packs > 0:
            return self.panel_at(step, part)
        self.pack(step, desk, desk.panel)
        return desk.panel

    cdef char *panel_at(self, const step_t *step, index_t task) noexcept nogil:
        """The weights of a part: those of the next channels follow, which are wanted next."""
        cdef index_t parts = step.row_blocks * step.group_blocks
        cdef index_t place = task % parts * step.depth_blocks + task // parts
        return self.shared + self.plan.kernels.itemsize * (step.packed + place * step.panel)

    cdef char *weight_at(self, const piece_t *piece, const part_t *part) noexcept nogil:
        """Row 0 of the part's first group and channel."""
        return self.weight + self.plan.size[WEIGHT] * (
            piece.weight_base + part.group * piece.weight_group
            + part.channel // piece.parts * piece.weight_channel)

    cdef char *source_at(self, const piece_t *piece, const part_t *part) noexcept nogil:
        """Cell 0 of the part's first channel."""
        return self.source + self.plan.size[SOURCE] * (
            piece.source_base + part.group * piece.source_group
            + part.channel // piece.parts * piece.source_channel)

    cdef char *target_at(self, const piece_t *piece, const part_t *part) noexcept nogil:
        """Row 0 of the part's first group."""
        return self.target + self.plan.size[TARGET] * (piece.target_base + part.group * piece.target_group)

    cdef char *turn_in(self, const step_t *step, desk_t *desk, int operand, char *data) noexcept nogil:
        """The block's box of an operand, or its part of the weight, as a patch that stands for it, if it needs one."""
        cdef work_t whole = desk.work
        whole.piece = desk.piece
        return <char *>self.plan.kernels.turn_in(&whole, operand, data, desk.patch[operand], &desk.seen)

    cdef void store(self, const step_t *step, desk_t *desk, char *bias, int accumulate, bint in_place) noexcept nogil:
        """target (+)= the result of a gathering map, which may be in its patch."""
        cdef char *target = self.target_at(desk.piece, &desk.work.part)
        cdef char *patch
        if not step.turns[1]:
            if step.folds:
                self.plan.kernels.fold_result(&desk.work, desk.result, step.direct)
            step.way.store(&desk.work, desk.result, bias, target, accumulate, self.doubtful)
            desk.work.layout.first = 0
            return
        patch = self.turn_in(step, desk, TARGET, NULL)
        if bias != NULL or not in_place:
            step.way.store(&desk.work, desk.result, NULL if step.folds else bias, patch, False, self.doubtful)
        if step.folds:
            self.fold(step, desk, bias)
        self.turn_out(step, desk, TARGET, target, accumulate)

    cdef void fold(self, const step_t *step, desk_t *desk, char *bias) noexcept nogil:
        """The patch of target += what is beyond its edges, at the cells that stand for it, and the bias."""
        cdef work_t whole = desk.work
        whole.piece = desk.piece
        self.plan.kernels.fold_patch(&whole, desk.patch[TARGET], bias)

    cdef void turn_out(self, const step_t *step, desk_t *desk, int operand, char *data,
                       int accumulate) noexcept nogil:
        """operand (+)= its patch."""
        cdef work_t whole = desk.work
        whole.piece = desk.piece
        self.plan.kernels.turn_out(&whole, operand, desk.patch[operand], data, accumulate)

    cdef void gather_any(self, index_t task, int thread) noexcept nogil:
        """Task number `task` of the wave: of which step?"""
        cdef int i
        for i in range(self.plan.count):
            if self.plan.steps[i].wave == self.wave:
                if task < self.plan.steps[i].tasks:
                    self.gather_task(&self.plan.steps[i], task, thread)
                    return
                task = task - self.plan.steps[i].tasks

    cdef void gather_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One block of positions, one part of the rows and groups: the sum over all channels, then the store."""
        cdef desk_t desk, own
        cdef block_t block, seen
        cdef char *bias = NULL
        cdef index_t parts = step.row_blocks * step.group_blocks, share, place
        cdef bint in_place = False
        cdef int i
        if step.by_groups:
            share, place = task // step.block_count, task % step.block_count
        else:
            share, place = task % parts, task // parts
        self.sit(step, thread, &desk)
        _decode(step, place, &block)
        _see_lattice(step, &block, &desk)
        if step.shares:
            self.gather_shared(step, share, &block, &desk)
        elif step.one_panel:
            self.gather_together(step, share, &block, &desk)
        elif step.members == 1:
            in_place = self.gather_block(step, share, &block, &desk)
        else:
            for i in range(step.members):
                own = desk
                if self.see(step, i, &block, &own):
                    seen, own.work.block = own.work.block, desk.work.block
                    self.gather_block(step + i, share, &seen, &own)
            _part(step, share, &desk.work.part)
        if self.bias != NULL and not step.accumulate and not (self.accumulate and self.is_filled(step)):
            bias = self.bias + self.plan.kernels.itemsize * desk.work.part.group * step.biases
        if step.members > 1:
            self.store_members(step, &block, &desk, bias)
        elif bias != NULL or not in_place or step.turns[1]:
            self.store(step, &desk, bias, self.accumulate or step.accumulate, in_place)

    cdef bint is_filled(self, const step_t *step) noexcept nogil:
        """Whether a step without taps was at its positions before it: that alone adds the bias to what is there."""
        return step.wave > 0 and self.plan.steps[0].wave == 0

    cdef bint see(self, step_t *step, int i, const block_t *block, desk_t *desk) noexcept nogil:
        """Member i of a step: its piece, its result, and what it has of the block; whether that is anything."""
        cdef bint some = True
        cdef int a
        desk.piece = desk.work.piece = &step[i].piece
        desk.work.block = block[0]
        desk.work.block.shared = step[i].block.shared
        for a in range(3):
            desk.work.block.extent[a] = max(0, min(block.extent[a], step[i].count[a] - block.start[a]))
            some = some and desk.work.block.extent[a] > 0
        desk.result = desk.results + i * step.result * self.plan.kernels.itemsize
        return some

    cdef void gather_together(self, step_t *step, index_t share, const block_t *block, desk_t *desk) noexcept nogil:
        """As gather_block for all members of a step, whose weights are packed once."""
        cdef index_t parts = step.row_blocks * step.group_blocks, depth
        cdef desk_t own
        cdef block_t seen
        cdef char *panel
        cdef int i
        for depth in range(step.depth_blocks):
            _part(step, depth * parts + share, &desk.work.part)
            panel = self.packed(step, depth * parts + share, desk)
            for i in range(step.members):
                own = desk[0]
                if self.see(step, i, block, &own):
                    seen = own.work.block
                    self.unroll(step + i, &seen, &own, 0)
                    step.way.multiply(&own.work, panel, own.offset, own.scratch, own.result, depth > 0)

    cdef void gather_shared(self, step_t *step, index_t share, const block_t *block, desk_t *desk) noexcept nogil:
        """As gather_block for all members of a step, whose cells are unrolled once."""
        cdef index_t item = self.plan.kernels.itemsize, parts = step.row_blocks * step.group_blocks, depth
        cdef index_t *picked = desk.offset + step.offsets * item // <index_t>sizeof(index_t)
        cdef layout_t cells
        cdef char *panel
        cdef int i
        for depth in range(step.depth_blocks):
            _part(step, depth * parts + share, &desk.work.part)
            desk.piece, desk.work.piece = &step.piece, &step.whole
            self.unroll(step, block, desk, 0)
            cells = desk.work.layout
            for i in range(step.members):
                if not self.see(step, i, block, desk):
                    continue
                if step.direct:  # results lie as the block, cells as those of all
                    step.way.layout(&desk.work)
                    desk.work.layout.axis[0], desk.work.layout.axis[1] = cells.axis[0], cells.axis[1]
                    desk.work.layout.batch = cells.batch
                _pick(step, &step[i], desk.work.part.channels, desk.offset, picked)
                panel = self.packed(&step[i], depth * parts + share, desk)
                step.way.multiply(&desk.work, panel, picked, desk.scratch, desk.result, depth > 0)
            desk.work.layout = cells

    cdef void store_members(self, step_t *step, const block_t *block, desk_t *desk, char *bias) noexcept nogil:
        """target (+)= the results of all members of a step."""
        cdef desk_t other
        cdef bint own
        cdef int i
        for i in range(step.members):
            if i > 0 and step[i - 1].paired or not self.see(step, i, block, desk):
                continue
            own = step.direct or not step.shares
            if own:
                step.way.layout(&desk.work)
            if step[i].paired:
                other = desk[0]
                if self.see(step, i + 1, block, &other) and own:
                    step.way.layout(&other.work)
                self.store_both(&step[i], desk, &other, bias)
            else:
                self.store(&step[i], desk, bias, self.accumulate, False)

    cdef void store_both(self, const step_t *step, desk_t *desk, const desk_t *other, char *bias) noexcept nogil:
        """target (+)= the results of two steps, as of one block without gaps."""
        cdef work_t whole = desk.work
        whole.piece = &step.both
        whole.block.start[2], whole.block.shared = 2 * desk.work.block.start[2], 0
        whole.block.extent[2] = desk.work.block.extent[2] + other.work.block.extent[2]
        step.way.layout(&whole)
        self.plan.kernels.interleave(&desk.work, desk.result, &other.work, other.result, &whole, desk.interleaved,
                                     step.direct)
        step.way.store(&whole, desk.interleaved, bias, self.target_at(&step.piece, &whole.part), self.accumulate,
                       self.doubtful)

    cdef bint gather_block(self, const step_t *step, index_t share, const block_t *block, desk_t *desk) noexcept nogil:
        """The results of one block for a part of the rows and groups: the sum over all channels; whether in place."""
        cdef const way_t *way = step.way
        cdef work_t *work = &desk.work
        cdef index_t parts = step.row_blocks * step.group_blocks, depth
        cdef char *panel
        cdef bint in_place = False
        for depth in range(step.depth_blocks):
            _part(step, depth * parts + share, &work.part)
            self.unroll(step, block, desk, 0)
            in_place = self.place_result(step, desk)
            panel = self.packed(step, depth * parts + share, desk)
            way.multiply(work, panel, desk.offset, desk.scratch, desk.result, depth > 0)
        return in_place

    cdef bint place_result(self, const step_t *step, desk_t *desk) noexcept nogil:
        """Have the block's results written where they belong in target or its patch, if they lie there as they do."""
        cdef work_t *work = &desk.work
        cdef const block_t *block = &work.block
        cdef const piece_t *piece = desk.piece
        cdef char *target = self.target_at(piece, &work.part)
        if not step.in_place or not step.turns[1] and (self.accumulate or step.accumulate):
            return False
        if step.turns[1]:
            target = self.turn_in(step, desk, TARGET, NULL)
            piece = &desk.seen
        if not step.anywhere and not self.is_run(piece, work):
            return False
        work.layout.cut = work.layout.cell == 0 and work.layout.positions % self.plan.kernels.lanes != 0
        work.layout.pitch, work.layout.cell = piece.target_channel, piece.target_stride[2]
        if step.anywhere:
            work.layout.batch = piece.target_batch
            work.layout.axis[0], work.layout.axis[1] = piece.target_stride[0], piece.target_stride[1]
        desk.result = target + self.plan.kernels.itemsize * (
            work.part.row * piece.target_channel + block.sample * piece.target_batch
            + block.start[0] * piece.target_stride[0] + block.start[1] * piece.target_stride[1]
            + block.start[2] * piece.target_stride[2])
        return True

    cdef bint is_run(self, const piece_t *piece, const work_t *work) noexcept nogil:
        """Whether the results of a block lie in target as in the block's arrays, in whole vectors. Those of several
        samples wait in these where target's would meet in few sets of a cache."""
        cdef index_t plane = work.block.extent[1] * work.block.extent[2], along = work.layout.positions
        cdef index_t x = piece.target_stride[2], volume = work.block.extent[0] * plane
        cdef bint dense = work.block.samples == 1  # else the samples must follow each other
        if work.layout.cell > 0:
            along = work.part.rows
            dense = dense or volume * x == piece.target_batch and x * self.plan.kernels.itemsize % FEW_SETS != 0
        return dense and work.layout.positions == work.block.samples * volume and (
            work.layout.cell == 0 or along % self.plan.kernels.lanes == 0) and (
            work.block.extent[0] == 1 or plane * x == piece.target_stride[0]) and (
            work.block.extent[0] * work.block.extent[1] == 1 or work.block.extent[2] * x == piece.target_stride[1])

    cdef void sit(self, step_t *step, int thread, desk_t *desk) noexcept nogil:
        cdef index_t item = self.plan.kernels.itemsize
        desk.scratch = self.own + thread * self.plan.thread_scratch * item
        desk.panel = desk.scratch + step.scratch * item
        desk.offset = <index_t *>(desk.panel + step.panel * item)
        desk.result = <char *>desk.offset + (step.offsets + step.picked) * item
        desk.results, desk.part = desk.result, desk.result + step.result * item
        desk.interleaved = desk.result + step.members * step.result * item
        desk.patch[0] = desk.interleaved + step.interleaved * item
        if not self.plan.gathers:
            desk.recent = desk.part + (step.result * item if step.splits > 1 else 0)
            desk.patch[0] = desk.recent + (step.result * item if self.plan.sums_runs() else 0)
        desk.patch[1] = desk.patch[0] + step.patch[0] * item
        desk.patch[2] = desk.patch[1] + step.patch[1] * item
        desk.piece = desk.work.piece = &step.piece
        if step.turns[0] or step.turns[1] or step.turns[2]:
            desk.seen = step.piece
            desk.work.piece = &desk.seen
        desk.work.block.samples, desk.channels = 0, 0  # no block has 0 samples
        desk.work.layout.first = 0
        desk.work.seen = self.seen

    cdef void unroll(self, const step_t *step, const block_t *block, desk_t *desk, index_t place) noexcept nogil:
        """The block's source into scratch, `place` bytes from the first volume; the offsets are made anew only when it
        has another size."""
        cdef work_t *work = &desk.work
        cdef bint same = desk.channels >= work.part.channels and work.block.samples == block.samples
        cdef char *source = self.source_at(desk.piece, &work.part) + place
        cdef char *patch
        cdef int a
        for a in range(3):
            same = same and work.block.extent[a] == block.extent[a]
        work.block = block[0]
        step.way.layout(work)
        if not step.turns[0]:
            if not same:
                self.find_offsets(step, desk)
            step.way.unroll(work, source, self.source, self.source_end, desk.scratch)
            return
        patch = self.turn_in(step, desk, SOURCE, source)
        self.find_offsets(step, desk)  # patches differ in their strides
        if patch == source:
            step.way.unroll(work, source, self.source, self.source_end, desk.scratch)
        else:
            step.way.unroll(work, patch, desk.patch[0], desk.patch[0] + step.patch[0] * self.plan.kernels.itemsize,
                            desk.scratch)

    cdef void find_offsets(self, const step_t *step, desk_t *desk) noexcept nogil:
        step.way.offsets(&desk.work, desk.offset)
        desk.channels = desk.work.part.channels

    cdef int correlate(self) except -1:
        cdef step_t *step
        cdef int i, threads
        for i in range(self.plan.count):
            step = &self.plan.steps[i]
            threads = _worth(self.threads, step.tasks * step.splits, step.products)
            if self.keeps(step):
                self.each(CORRELATE_SPLIT, step, step.tasks * step.splits, threads)
            self.each(CORRELATE_PART, step, step.tasks, threads)
        return 0

    cdef bint keeps(self, const step_t *step) noexcept nogil:
        """Whether partial sums are made by tasks of their own: else by the one that adds them up."""
        return step.splits > 1 and step.apart == 1 and self.has_shared

    cdef char *partial_at(self, const step_t *step, index_t task, index_t split) noexcept nogil:
        return self.shared + self.plan.kernels.itemsize * (task * step.splits + split) * step.result

    cdef void correlate_split(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One partial sum of one part of the weight, kept for correlate_task."""
        cdef desk_t desk
        self.sit(step, thread, &desk)
        _part(step, task // step.splits, &desk.work.part)
        self.correlate_blocks(step, 0, task % step.splits, &desk,
                              self.partial_at(step, task // step.splits, task % step.splits))

    cdef void correlate_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One part of the weight: its partial sums in ascending order, then the store."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef bint kept = self.keeps(step)
        cdef desk_t desk
        cdef index_t split, parts = step.tasks // step.apart, sample = task // parts
        cdef char *weight
        self.sit(step, thread, &desk)
        _part(step, task % parts, &desk.work.part)
        weight = self.weight_at(&step.piece, &desk.work.part) + sample * self.plan.weights * self.plan.size[WEIGHT]
        if kept:
            desk.result = self.partial_at(step, task, 0)
            desk.work.block = step.block
            step.way.layout(&desk.work)
        elif not self.correlate_blocks(step, sample, 0, &desk, desk.result):
            return
        for split in range(1, step.splits):
            if kept:
                desk.part = self.partial_at(step, task, split)
            elif not self.correlate_blocks(step, sample, split, &desk, desk.part):
                return
            kernels.add(desk.work.layout.sums, desk.part, desk.result)
        if not step.turns[2]:
            step.way.store(&desk.work, desk.result, NULL, weight, self.accumulate, self.doubtful)
            return
        step.way.store(&desk.work, desk.result, NULL, self.turn_in(step, &desk, WEIGHT, NULL), False, self.doubtful)
        self.turn_out(step, &desk, WEIGHT, weight, self.accumulate)

    cdef bint correlate_blocks(self, step_t *step, index_t sample, index_t split, desk_t *desk,
                               char *result) noexcept nogil:
        """result <- the sum over one split of the blocks of positions, of all terms and of the batch or from one sample
        on; whether it was not stopped before. Many are summed in runs, about as many as each has blocks: rounding
        errors grow with the two numbers, not with their product."""
        cdef work_t *work = &desk.work
        cdef block_t block
        cdef char *target
        cdef const index_t *place = NULL
        cdef index_t blocks = step.block_count * max(1, self.terms), which, first = blocks * split // step.splits
        cdef index_t last = blocks * (split + 1) // step.splits, done = 0
        cdef index_t run = max(LEAST_RUN, <index_t>sqrt(<double>(last - first)))
        cdef char *sums = desk.recent if self.plan.sums_runs() and last - first > 2 * run else result
        if first == last:
            work.block = step.block
            step.way.layout(work)
            self.plan.kernels.clear(work.layout.sums, result)
        for which in range(first, last):
            if self.watch.look():
                return False
            _decode(step, which % step.block_count, &block)
            block.sample += sample
            _see_lattice(step, &block, desk)
            if self.places != NULL:
                place = self.places + which // step.block_count * 2
            self.unroll(step, &block, desk, 0 if place == NULL else place[0])
            target = self.target_at(desk.piece, &work.part) + (0 if place == NULL else place[1])
            if step.turns[1]:
                target = self.turn_in(step, desk, TARGET, target)
            step.way.pack(work, target, desk.panel)
            step.way.multiply(work, desk.panel, desk.offset, desk.scratch, sums,
                              which > first if sums == result else done % run > 0)
            done += 1
            if sums != result and (done % run == 0 or which + 1 == last):
                if done == run:
                    self.plan.kernels.clear(work.layout.sums, result)
                self.plan.kernels.add(work.layout.sums, sums, result)
        return True
