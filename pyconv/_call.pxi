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
        cdef part_t part
        while task >= step.packs:
            task = task - step.packs
            step += 1
        _part(step, task, &part)
        self.plan.kernels.pack_weight(&step.piece, self.weight_at(step, &part), part.row, part.rows, part.channels,
                                      self.panels_at(step, &part))

    cdef char *weight_at(self, const step_t *step, const part_t *part) noexcept nogil:
        """Row 0 of the part's first channel."""
        return self.weight + self.plan.kernels.itemsize * (
            step.piece.weight_base + part.group * step.weight_group + part.channel * step.piece.weight_channel)

    cdef char *source_at(self, const step_t *step, const part_t *part) noexcept nogil:
        return self.source + self.plan.kernels.itemsize * (
            step.piece.source_base + part.group * step.source_group + part.channel * step.piece.source_channel)

    cdef char *target_at(self, const step_t *step, index_t group) noexcept nogil:
        return self.target + self.plan.kernels.itemsize * (step.piece.target_base + group * step.target_group)

    cdef char *panels_at(self, const step_t *step, const part_t *part) noexcept nogil:
        """Packed panels lie by group, channels, rows."""
        return self.shared + self.plan.kernels.itemsize * (
            step.packed + (part.group * step.channels + part.channel) * step.taps * step.rows
            + part.row * part.channels * step.taps)

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
        """One block of positions, one block of rows, of one group or of several small ones."""
        cdef desk_t desk
        cdef part_t part
        cdef block_t block
        cdef index_t groups
        self.sit(step, thread, &desk)
        part.row = task % step.row_blocks * step.row_block
        part.rows = min(step.row_block, step.rows - part.row)
        part.group = _decode(step, task // step.row_blocks, &block) * step.group_block
        groups = min(part.group + step.group_block, self.plan.groups)
        while part.group < groups:
            self.gather_block(step, &part, &block, &desk)
            part.group += 1

    cdef void gather_block(self, step_t *step, part_t *part, const block_t *block, desk_t *desk) noexcept nogil:
        """The sum over all channels, then the store."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef char *panels = desk.panel
        cdef char *bias = NULL
        part.channel = 0
        while True:
            part.channels = min(step.depth_channels, step.channels - part.channel)
            self.unroll(step, part, block, desk)
            if self.has_shared and step.packs > 0:
                panels = self.panels_at(step, part)
            else:
                kernels.pack_weight(&step.piece, self.weight_at(step, part), part.row, part.rows, part.channels,
                                    panels)
            kernels.multiply(part.rows, desk.layout.positions, part.channels * step.taps, panels, desk.offset,
                             desk.scratch, desk.result, step.pitch, part.channel > 0)
            part.channel += step.depth_channels
            if part.channel >= step.channels:
                break
        if self.bias != NULL and not step.accumulate:
            bias = self.bias + kernels.itemsize * part.group * step.biases
        kernels.store(&step.piece, block, desk.result, step.pitch, part.row, part.rows, bias,
                      self.target_at(step, part.group), self.accumulate or step.accumulate)

    cdef void sit(self, const step_t *step, int thread, desk_t *desk) noexcept nogil:
        cdef index_t item = self.plan.kernels.itemsize
        desk.scratch = self.own + thread * self.plan.thread_scratch * item
        desk.panel = desk.scratch + step.scratch * item
        desk.offset = <index_t *>(desk.panel + step.panel * item)
        desk.result = <char *>desk.offset + step.offsets * item
        desk.part = desk.result + step.result * item
        desk.channels, desk.samples = 0, 0  # nothing is unrolled yet: no block has 0 samples

    cdef void unroll(self, const step_t *step, const part_t *part, const block_t *block,
                     desk_t *desk) noexcept nogil:
        """The block's source into scratch; its layout and offsets are made anew only when they change."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef bint same = desk.channels >= part.channels and desk.samples == block.samples
        cdef int a
        for a in range(3):
            same = same and desk.extent[a] == block.extent[a]
            desk.extent[a] = block.extent[a]
        if not same:
            kernels.layout(&step.piece, block, &desk.layout)
            kernels.offsets(&step.piece, block, &desk.layout, part.channels, desk.offset)
            desk.channels, desk.samples = part.channels, block.samples
        kernels.unroll(&step.piece, block, &desk.layout, self.source_at(step, part), self.source, self.source_end,
                       part.channels, desk.scratch)

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
        cdef part_t part
        self.sit(step, thread, &desk)
        _part(step, task // step.splits, &part)
        self.correlate_blocks(step, &part, task % step.splits, &desk,
                              self.partial_at(step, task // step.splits, task % step.splits))

    cdef void correlate_task(self, step_t *step, index_t task, int thread) noexcept nogil:
        """One part of the weight: its partial sums in ascending order, then the store."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef bint kept = step.splits > 1 and self.has_shared
        cdef desk_t desk
        cdef part_t part
        cdef index_t split
        self.sit(step, thread, &desk)
        _part(step, task, &part)
        if kept:
            desk.result = self.partial_at(step, task, 0)
        else:
            self.correlate_blocks(step, &part, 0, &desk, desk.result)
        for split in range(1, step.splits):
            if kept:
                desk.part = self.partial_at(step, task, split)
            else:
                self.correlate_blocks(step, &part, split, &desk, desk.part)
            kernels.add(part.channels * step.taps * step.pitch, desk.part, desk.result)
        kernels.store_weight(
            &step.piece, desk.result, step.pitch, part.rows, part.channels,
            self.weight_at(step, &part) + part.row * step.piece.weight_row * kernels.itemsize, self.accumulate)

    cdef void correlate_blocks(self, step_t *step, const part_t *part, index_t split, desk_t *desk,
                               char *result) noexcept nogil:
        """result <- the sum over one split of the blocks of positions."""
        cdef const kernels_t *kernels = self.plan.kernels
        cdef char *target = self.target_at(step, part.group) + part.row * step.piece.target_channel * kernels.itemsize
        cdef block_t block
        cdef index_t which, first = step.block_count * split // step.splits
        cdef index_t last = step.block_count * (split + 1) // step.splits
        cdef index_t depth = part.channels * step.taps, positions
        if first == last:
            kernels.clear(depth * step.pitch, result)
        for which in range(first, last):
            if self.watch.look():
                return
            _decode(step, which, &block)
            self.unroll(step, part, &block, desk)
            positions = desk.layout.positions
            if step.few:
                kernels.compact(&step.piece, &block, target, part.rows, desk.panel, positions)
                kernels.dot(depth, part.rows, positions, desk.offset, desk.scratch, desk.panel, positions, result,
                            step.pitch, which > first)
            else:
                kernels.turn(&step.piece, &block, target, part.rows, desk.panel)
                kernels.correlate(depth, part.rows, positions, desk.offset, desk.scratch, desk.panel, result,
                                  step.pitch, which > first)
