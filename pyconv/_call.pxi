# Part of _cpu.pyx: one run of a plan, block by block, on all threads.

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
    cdef int accumulate, threads, has_shared

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

    cdef bint is_finite(self, char *data, index_t size):
        cdef index_t part, parts = _parts(size, CHECKED)
        cdef int odd = 0
        cdef const kernels_t *kernels = self.plan.kernels
        for part in prange(parts, nogil=True, num_threads=min(self.threads, parts), schedule="static"):
            odd += not kernels.finite(min(CHECKED, size - part * CHECKED), data + part * CHECKED * kernels.itemsize)
        return odd == 0

    cdef int gather(self) except -1:
        """All waves, one after the other; the weights are packed before, for all threads, where there is room."""
        cdef index_t task, tasks
        cdef double products
        cdef int wave, i, threads
        if self.has_shared:
            self.pack()
        for wave in range(self.plan.waves):
            tasks, products = 0, 0
            for i in range(self.plan.count):
                if self.plan.steps[i].wave == wave:
                    tasks += self.plan.steps[i].tasks
                    products += self.plan.steps[i].products
            threads = _worth(self.threads, tasks, products)
            for task in prange(tasks, nogil=True, num_threads=threads, schedule="dynamic"):
                if not self.watch.look():
                    self.gather_any(wave, task, threadid())
            self.watch.settle()
        return 0

    cdef int pack(self) except -1:
        cdef index_t task, tasks = 0
        cdef int i
        for i in range(self.plan.count):
            tasks += self.plan.steps[i].packs
        for task in prange(tasks, nogil=True, num_threads=self.threads, schedule="dynamic"):
            if not self.watch.look():
                self.pack_any(task)
        return self.watch.settle()

    cdef void pack_any(self, index_t task) noexcept nogil:
        """One part of the weights of all steps: of which?"""
        cdef step_t *step = self.plan.steps
        cdef work_t work
        while task >= step.packs:
            task = task - step.packs
            step += 1
        work.piece = &step.piece
        _part(step, task, &work.part)
        step.way.pack(&work, self.weight_at(&work), self.panel_at(step, task))

    cdef char *panel_at(self, const step_t *step, index_t task) noexcept nogil:
        return self.shared + self.plan.kernels.itemsize * (step.packed + task * step.panel)

    cdef char *weight_at(self, const work_t *work) noexcept nogil:
        """Row 0 of the part's first group and channel."""
        return self.weight + self.plan.kernels.itemsize * (
            work.piece.weight_base + work.part.group * work.piece.weight_group
            + work.part.channel * work.piece.weight_channel)

    cdef char *source_at(self, const work_t *work) noexcept nogil:
        """The part's first channel."""
        return self.source + self.plan.kernels.itemsize * (
            work.piece.source_base + work.part.group * work.piece.source_group
            + work.part.channel * work.piece.source_channel)

    cdef char *target_at(self, const work_t *work) noexcept nogil:
        """Row 0 of the part's first group."""
        return self.target + self.plan.kernels.itemsize * (
            work.piece.target_base + work.part.group * work.piece.target_group)

    cdef void gather_any(self, int wave, index_t task, int thread) noexcept nogil:
        """Task number `task` of a wave: of which step?"""
        cdef int i
        for i in range(self.plan.count):
            if self.plan.steps[i].wave == wave:
                if task < self.plan.steps[i].tasks:
                    self.gather_task(&self.plan.steps[i], task, thread)
                    return
                task = task - self.plan.steps[i].tasks

    cdef void gather_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One block of positions, one part of the rows and groups: the sum over all channels, then the store."""
        cdef const way_t *way = step.way
        cdef desk_t desk
        cdef work_t *work = &desk.work
        cdef block_t block
        cdef char *bias = NULL
        cdef index_t parts = step.row_blocks * step.group_blocks, depth
        self.sit(step, thread, &desk)
        cdef char *panel = desk.panel
        _decode(step, task // parts, &block)
        cdef bint in_place = step.in_place and not self.accumulate and not step.accumulate and (
            block.samples == 1 and block.extent[2] % self.plan.kernels.lanes == 0)
        for depth in range(step.depth_blocks):
            _part(step, depth * parts + task % parts, &work.part)
            self.unroll(step, &block, &desk)
            if in_place:
                work.layout.pitch = step.piece.target_channel
                desk.result = self.target_at(work) + self.plan.kernels.itemsize * (
                    work.part.row * work.layout.pitch + block.sample * step.piece.target_batch + block.start[2])
            if self.has_shared and step.packs > 0:
                panel = self.panel_at(step, depth * parts + task % parts)
            else:
                way.pack(work, self.weight_at(work), panel)
            way.multiply(work, panel, desk.offset, desk.scratch, desk.result, depth > 0)
        if self.bias != NULL and not step.accumulate:
            bias = self.bias + self.plan.kernels.itemsize * work.part.group * step.biases
        if bias != NULL or not in_place:
            way.store(work, desk.result, bias, self.target_at(work), self.accumulate or step.accumulate, self.doubtful)

    cdef void sit(self, step_t *step, int thread, desk_t *desk) noexcept nogil:
        cdef index_t item = self.plan.kernels.itemsize
        desk.scratch = self.own + thread * self.plan.thread_scratch * item
        desk.panel = desk.scratch + step.scratch * item
        desk.offset = <index_t *>(desk.panel + step.panel * item)
        desk.result = <char *>desk.offset + step.offsets * item
        desk.part = desk.result + step.result * item
        desk.work.piece = &step.piece
        desk.work.block.samples, desk.channels = 0, 0  # no block has 0 samples

    cdef void unroll(self, const step_t *step, const block_t *block, desk_t *desk) noexcept nogil:
        """The block's source into scratch; the offsets are made anew only when it has another size."""
        cdef work_t *work = &desk.work
        cdef bint same = desk.channels >= work.part.channels and work.block.samples == block.samples
        cdef int a
        for a in range(3):
            same = same and work.block.extent[a] == block.extent[a]
        work.block = block[0]
        step.way.layout(work)
        if not same:
            step.way.offsets(work, desk.offset)
            desk.channels = work.part.channels
        step.way.unroll(work, self.source_at(work), self.source, self.source_end, desk.scratch)

    cdef int correlate(self) except -1:
        cdef index_t task
        cdef step_t *step
        cdef int i, threads
        for i in range(self.plan.count):
            step = &self.plan.steps[i]
            threads = _worth(self.threads, step.tasks * step.splits, step.products)
            if step.splits > 1 and self.has_shared:
                for task in prange(step.tasks * step.splits, nogil=True, num_threads=threads, schedule="dynamic"):
                    self.correlate_split(step, task, threadid())
                self.watch.settle()
            for task in prange(step.tasks, nogil=True, num_threads=threads, schedule="dynamic"):
                self.correlate_task(step, task, threadid())
            self.watch.settle()
        return 0

    cdef char *partial_at(self, const step_t *step, index_t task, index_t split) noexcept nogil:
        return self.shared + self.plan.kernels.itemsize * (task * step.splits + split) * step.result

    cdef void correlate_split(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One partial sum of one part of the weight, kept for correlate_task."""
        cdef desk_t desk
        self.sit(step, thread, &desk)
        _part(step, task // step.splits, &desk.work.part)
        self.correlate_blocks(step, task % step.splits, &desk,
                              self.partial_at(step, task // step.splits, task % step.splits))

    cdef void correlate_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One part of the weight: its partial sums in ascending order, then the store."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef bint kept = step.splits > 1 and self.has_shared
        cdef desk_t desk
        cdef index_t split
        self.sit(step, thread, &desk)
        _part(step, task, &desk.work.part)
        if kept:
            desk.result = self.partial_at(step, task, 0)
            desk.work.block = step.block
            step.way.layout(&desk.work)
        else:
            self.correlate_blocks(step, 0, &desk, desk.result)
        for split in range(1, step.splits):
            if kept:
                desk.part = self.partial_at(step, task, split)
            else:
                self.correlate_blocks(step, split, &desk, desk.part)
            kernels.add(desk.work.layout.sums, desk.part, desk.result)
        step.way.store(&desk.work, desk.result, NULL, self.weight_at(&desk.work), self.accumulate,
                       self.doubtful)

    cdef void correlate_blocks(self, step_t *step, index_t split, desk_t *desk, char *result) noexcept nogil:
        """result <- the sum over one split of the blocks of positions."""
        cdef work_t *work = &desk.work
        cdef block_t block
        cdef index_t which, first = step.block_count * split // step.splits
        cdef index_t last = step.block_count * (split + 1) // step.splits
        if first == last:
            work.block = step.block
            step.way.layout(work)
            self.plan.kernels.clear(work.layout.sums, result)
        for which in range(first, last):
            if self.watch.look():
                return
            _decode(step, which, &block)
            self.unroll(step, &block, desk)
            step.way.pack(work, self.target_at(work), desk.panel)
            step.way.multiply(work, desk.panel, desk.offset, desk.scratch, result, which > first)
