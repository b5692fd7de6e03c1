# Part of _cpu.pyx: a plan, its steps, and the scratch that they need.


cdef class Plan:
    """One map of one geometry in one dtype: its steps, its kernels, and the scratch it needs."""

    cdef const kernels_t *kernels
    cdef step_t *steps
    cdef int count, waves
    cdef int gathers, swapped, gapped, tiled
    cdef int adds, fills  # a step adds to what others stored; one clears what they write to, or adds the bias there
    cdef int looped, covered  # there are axes beyond three; and every volume of the result has a term (see _outer)
    cdef int joins  # and all terms of a volume are summed before it is stored
    cdef index_t groups, thread_scratch, shared_scratch
    cdef index_t most_tasks
    cdef double products, summed  # of a result
    cdef object map, geometry, dtype, result, real, algorithm, chosen
    cdef bint around_finite  # what is beyond the edges, where that is a constant
    cdef bint in_doubles  # integers of 64 bits are summed as such
    cdef bint flushes  # products of what is too small to be normal, and such sums: these samples are for another plan
    cdef bint slices  # floats: what these then read must be looked at
    cdef bint checks  # for operands that are not finite, which the exact plan is for
    cdef index_t least_scratch
    cdef Plan padding  # of the terms whose volume of x is padding, if there are such
    cdef int tasks  # how many blocks it should have at least
    cdef readonly dict others  # the same for other numbers of threads, by how many, and for scarce scratch at 0
    cdef bint is_exact, whole
    cdef index_t minimum  # see scratch_minimum; 0 while it is not known
    cdef int stored[3]  # the types of source, target and weight
    cdef index_t size[3]  # bytes that a stride counts in them
    cdef index_t weights  # elements of a weight, as strides count them

    def __cinit__(self, map, geometry, dtype, algorithm, result, exact=False, tasks=0, narrow=False, of_padding=False):
        self.whole = whole = scratch_dtype(dtype, result).kind != "f"
        # a plan of padding adds to what another one makes in whole numbers
        self.in_doubles = whole and not of_padding and _cells.suits_doubles(map, geometry, dtype, result)
        geometry = self._of_types(map, geometry, dtype, result, algorithm == "auto" and not exact)
        if whole and algorithm != "columns":
            is_tiled = algorithm != "gemm" and _cells.tiles_are_exact(map, geometry, dtype, self.in_doubles)
            algorithm = "auto" if is_tiled else "gemm"
        self.map, self.geometry, self.dtype, self.result, self.algorithm = map, geometry, dtype, result, algorithm
        self.chosen = set()
        self.gathers = map != "grad_weight"
        self.tasks = tasks or _tasks(_process_threads, 0)
        self.others, self.is_exact = {}, exact
        self.looped, self.covered = geometry.rank > _outer.LAST, _outer.is_covered(map, geometry)
        padding = None if map == "grad_input" else _outer.of_padding(geometry)
        if padding is not None:
            self.padding = Plan(map, padding, dtype, "gemm", result, exact, self.tasks, of_padding=True)
        self.joins = self.looped and not self.gathers and geometry.converts[1] and padding is None
        self.adds = self.looped and not self.joins
        geometry = _outer.of_volumes(geometry)
        self.around_finite = self.gathers or self.geometry.padding_mode != "constant" or bool(
            np.isfinite(element(self.geometry.padding_value, dtype)))
        tile = _blocks.Tile(
            self.kernels.itemsize, self.kernels.lanes, self.kernels.rows, self.kernels.vectors, self.tasks, narrow,
            second_level=second_level, slices=3 if self.slices else 1)
        if geometry.per_sample and not self.gathers:
            tile = tile._replace(
                units=_blocks.UNITS_OF_SAMPLE, samples=1 if narrow else max(1, min(geometry.batch, self.tasks)))
        choices = None
        if not exact or self.gathers and algorithm != "columns":
            choices = self._choose(geometry, tile, False)
            if exact:
                choices = _phases.unpadded(choices, self.groups, tile)
        if choices is None:
            choices = self._choose(geometry, tile, True)
        self.slices = self.slices and any(blocking.way == _blocks.GATHER_SLICES for _, blocking in choices)
        padded = algorithm == "columns" or any(
            blocking.way in _blocks.PADDED for piece, blocking in choices if piece.channels)
        self.checks = not exact and not whole and _pieces.touches_padding(map, geometry) and padded
        self._take_steps(choices)
        _log.debug("%s in %s, %s: %s", map, dtype, geometry, ", ".join(sorted(self.chosen)))
        if self.padding is not None and self.padding.gapped:
            self.gapped = True
        if (self.gapped or (self.tiled and not self.gathers)) and not whole:
            self.checks = True
        self._measure()

    def __dealloc__(self):
        free(self.steps)

    cdef object _of_types(self, map, geometry, dtype, result, bint may_flush):
        """The kernels, and what they read and write of these types; gives back the geometry that says so."""
        cdef int i
        self.real = scratch_dtype(dtype, result)
        reads, writes = _stored(dtype, self.real), _stored(result, self.real)
        if self.in_doubles:
            reads, writes = _STORED[dtype.name], _STORED[result.name]
        self.kernels = pyconv_kernels(self.whole and not self.in_doubles, self.real.itemsize, _level)
        cdef const kernels_t *sliced = NULL
        if may_flush and not reads and not writes and dtype.kind == "f" and self.real.itemsize == 4:
            sliced = pyconv_kernels_of_slices(_level)
        self.slices = sliced != NULL and map != "grad_weight"
        if self.slices:
            self.kernels = sliced
        geometry = geometry._replace(parts=2 if dtype.kind == "c" else 1, converts=(reads > 0, writes > 0))
        if not self.whole and not may_flush:
            geometry = geometry._replace(cell=1, summed=0)
        elif self.real.itemsize == 4 and reads:
            geometry = self._of_cells(map, geometry, reads)
        self.flushes = not self.whole and self.kernels.rows == _cells.OF_REGISTER
        types = (reads, reads, writes) if map == "grad_weight" else (reads, writes, reads)
        for i in range(3):
            self.stored[i] = types[i]
            self.size[i] = (result if types[i] == writes else dtype).itemsize if types[i] else self.kernels.itemsize
        self.weights = geometry.out_channels * geometry.in_channels // geometry.groups
        self.weights *= prod(geometry.kernel_size) * geometry.volumes[1] * geometry.parts
        return geometry

    cdef object _of_cells(self, map, geometry, int stored):
        """The kernels for cells of several channels, where they pay; gives back the geometry that says so."""
        cdef const kernels_t *kernels
        cdef int other
        for other in range(2):
            kernels = pyconv_kernels_of_cells(stored, _level, other)
            if kernels == NULL:
                return geometry
            if kernels.rows == _cells.OF_REGISTER and map == "grad_weight":
                if not self.whole and _cells.weights_suit_matrices(geometry):
                    self.kernels = kernels
                    return geometry
                continue
            if kernels.rows == _cells.OF_REGISTER:
                summed = geometry.summed if geometry.cell > 1 else _cells.summed_at_once(map, geometry, kernels.cell)
                suits = summed > 0
            else:
                summed, suits = 0, geometry.cell > 1 or _cells.suits_cells(map, geometry, kernels.cell)
            if suits:  # a plan of padding has those of the plan that it is for
                self.kernels = kernels
                return geometry._replace(cell=kernels.cell, summed=summed)
        return geometry

    cdef void _take_steps(self, choices) except *:
        """A step for every piece and its blocks, then what several of them share."""
        cdef int i
        self.steps = <step_t *>calloc(max(1, len(choices)), sizeof(step_t))
        if self.steps == NULL:
            raise MemoryError
        self.count = len(choices)
        for i, (piece, blocking) in enumerate(choices):
            self._prepare(&self.steps[i], piece, blocking)
        for i in range(self.count):
            if self.steps[i].paired:
                self._pair(&self.steps[i], &self.steps[i + 1])
        for i in range(self.count):
            if self.steps[i].members > 1:
                self._lead(&self.steps[i], [piece for piece, _ in choices[i:i + self.steps[i].members]])

    cdef object _choose(self, geometry, tile, bint tap_by_tap):
        """The pieces of the map, or of its taps, each with its blocks; groups are those of the pieces from then on."""
        cdef bint may_exchange = self.padding is None
        map, columns = self.map, self.algorithm == "columns"
        algorithm = "gemm" if self.flushes else self.algorithm
        if columns:
            found = _pieces.exact_column_pieces(geometry) if tap_by_tap else _pieces.column_pieces(geometry)
        elif tap_by_tap:
            found = _pieces.exact_pieces(map, geometry)
        else:
            found = _pieces.pieces(map, geometry, may_exchange, tile.lanes)
        self.swapped = any(piece.swapped or piece.exchanged for piece in found)
        self.groups = geometry.groups
        woven = 1 if self.whole else _pieces.groups_of_vector(map, geometry, found, tile.lanes)
        if woven > 1:
            found, self.groups = [_pieces.weave(piece, woven) for piece in found], self.groups // woven
        if tap_by_tap or woven > 1 or columns:
            chosen = _phases.choose_all(map, found, self.groups, tile, algorithm)
        else:
            chosen = _phases.choose_rounded(map, geometry, found, self.groups, tile, algorithm, may_exchange)
        if geometry.w_last:
            return [(_pieces.with_last_weight(piece, geometry), blocking) for piece, blocking in chosen]
        return chosen

    cdef void _pair(self, step_t *step, const step_t *other) except *:
        """The results of two steps are interleaved."""
        cdef work_t work
        step.both = step.piece
        step.both.target_stride[2] = step.piece.target_stride[2] // 2
        step.both.count[2] = step.piece.count[2] + other.piece.count[2]
        work.piece, work.block, work.part = &step.both, step.block, _most(step)
        work.block.extent[2], work.block.shared = 2 * step.block.extent[2], 0
        step.way.layout(&work)
        step.interleaved = _up(work.layout.result, LINE // self.kernels.itemsize)

    cdef void _lead(self, step_t *step, pieces) except *:
        """The tasks of a step do the blocks of those after it as well, and its scratch serves all."""
        cdef index_t line = LINE // self.kernels.itemsize, integers = sizeof(index_t) // self.kernels.itemsize
        cdef step_t *other
        cdef work_t work
        cdef int i, a
        for i in range(1, step.members):
            other = step + i
            step.scratch, step.panel = max(step.scratch, other.scratch), max(step.panel, other.panel)
            step.result, step.offsets = max(step.result, other.result), max(step.offsets, other.offsets)
            step.interleaved = max(step.interleaved, other.interleaved)
            step.products += other.products
            self.most_tasks -= other.tasks
            other.tasks = other.products = 0
        if not step.shares and not step.one_panel:
            return
        whole = _phases.together(pieces) if step.shares else _phases.of_all_taps(pieces)
        _fill_piece(&step.whole, whole)
        work.piece, work.block, work.part = &step.whole, step.block, _most(step)
        step.way.layout(&work)
        if step.one_panel:
            step.panel = _up(work.layout.panel, line)
            self._share_panel(step, pieces)
            return
        step.scratch, step.result = _up(work.layout.scratch, line), _up(work.layout.result, line)
        step.picked = step.offsets
        step.offsets = _up(step.depth_channels * prod(axis.taps for axis in whole.axes) * integers, line)
        for i in range(step.members):
            for a in range(3):
                step[i].first[a] = whole.axes[a].offset - pieces[i].axes[a].offset
                step[i].every[a] = -pieces[i].axes[a].tap_step

    cdef void _share_panel(self, step_t *step, pieces) except *:
        """The members of a step have one panel: which part of it is whose."""
        cdef int i, a
        firsts = [tuple(axis.first for axis in piece.axes) for piece in pieces]
        taps = prod(step.whole.axis[a].taps for a in range(3))
        assert taps <= PANEL_TAPS and not step.turns[2]
        for a in range(3):
            step.whole.every[a] = min(pieces[0].axes[a].every, step.whole.axis[a].taps)
        for i in range(step.members):
            assert step[i].depth_channels == step.depth_channels
            step[i].piece.panel_taps = taps
            step[i].piece.panel_before = sum(step[j].taps for j in range(step.members) if firsts[j] < firsts[i])
            if i > 0:
                step[i].packs = 0

    cdef void _prepare(self, step_t *step, piece, blocking) except *:
        """Fill in one step: its blocks, and the elements of scratch that a thread needs for it."""
        geometry = self.geometry
        self.tiled = self.tiled or piece.tile != (1, 1, 1)
        self.chosen.add(_ways.name_of(piece, blocking))
        _fill_piece(&step.piece, piece)
        step.piece.by_taps, step.piece.summed = blocking.by_taps, blocking.summed
        step.way = &self.kernels.ways[blocking.way]
        step.wave, step.accumulate = piece.wave, piece.accumulate
        self.adds = self.adds or piece.accumulate
        self.fills = self.fills or piece.wave == 0
        step.rows, step.row_block, step.row_blocks = piece.rows, blocking.rows, _parts(piece.rows, blocking.rows)
        step.groups, step.group_block = self.groups, blocking.groups
        step.group_blocks = _parts(step.groups, step.group_block)
        step.channels, step.taps = piece.channels, prod(axis.taps for axis in piece.axes)
        step.depth_channels, step.depth_blocks = blocking.channels, max(1, _parts(piece.channels, blocking.channels))
        step.batch = piece.batch
        step.biases = (geometry.in_channels if self.map == "grad_input" else geometry.out_channels) // self.groups
        step.biases *= geometry.parts
        step.apart = geometry.batch if geometry.per_sample and not self.gathers else 1
        step.paired, step.direct = blocking.paired, blocking.way == _blocks.GATHER_DIRECT
        step.members, step.shares, step.one_panel = blocking.members, blocking.shares, blocking.one_panel
        self._turn(step, piece, blocking.way)
        step.anywhere = blocking.way in (_blocks.GATHER_LAST, _blocks.GATHER_ROWS)
        step.by_groups = blocking.way in (_blocks.GATHER_DIRECT, _blocks.GATHER_ROWS)  # all rows in a share
        row_by_row, of_channels = (piece.target.axes[2] == 1, piece.target.channel == 1)
        if step.turns[1]:
            row_by_row, of_channels = not step.piece.close[TARGET], step.piece.close[TARGET]  # so patches lie
        elif piece.patched[1]:  # of another type
            row_by_row = of_channels = False
        step.in_place = step.members == 1 and not piece.turned and piece.folds == _blocks.NO_FOLDS and all(
            n == 1 for n, _ in piece.row_taps) and (
            blocking.way == _blocks.GATHER_LAST and of_channels or blocking.way == _blocks.GATHER_ROWS
            or step.group_block == 1 and (
                blocking.way == _blocks.GATHER_BROADCAST and of_channels and step.depth_blocks == 1
                or row_by_row and blocking.way in (
                    _blocks.GATHER, _blocks.GATHER_FLAT, _blocks.GATHER_MATRICES, _blocks.GATHER_SLICES)))
        self._divide(step, piece, blocking)
        self._count_elements(step, prod(blocking.extent) * blocking.samples)
        self.summed = max(self.summed, <double>step.channels * step.taps * geometry.volumes[1])
        step.products = prod(axis.positions for axis in piece.axes)
        step.products *= <double>step.batch * step.apart * step.rows * self.groups * max(1, step.taps * step.channels)
        self.products += step.products
        self.most_tasks += step.tasks * step.splits

    cdef void _turn(self, step_t *step, piece, way) except *:
        """Which operands are read and written through patches."""
        cdef int i
        edged = piece.edge != "zeros" and step.taps > 0 and way not in (
            _blocks.GATHER_DIRECT, _blocks.GATHER_ROWS, _blocks.CORRELATE_DIRECT, _blocks.CORRELATE_ROWS,
            _blocks.GATHER_WINOGRAD, _blocks.CORRELATE_WINOGRAD)  # these fill edges from within
        reads_last = [_blocks.reads_source_last(way, piece, self.kernels.itemsize),
                      _blocks.reads_last(way, piece.target)]
        lie_last = [piece.source_last, piece.target_last]
        into_last = [not last and wants for last, wants in zip(lie_last, (  # from rows, where a way reads nothing else
            way in (_blocks.GATHER_LAST, _blocks.CORRELATE_LAST), way == _blocks.CORRELATE_LAST))]
        # one way reads and writes numbers as they are stored
        patched = [copied and way != _blocks.GATHER_MATRICES for copied in piece.patched]
        if way == _blocks.CORRELATE_MATRICES:
            patched[:2] = False, False
        source = step.taps > 0 and (patched[0] or into_last[0] or lie_last[0] and not reads_last[0])
        step.turns[0], step.piece.only_edges = source or edged, edged and not source
        stores_folds = way == _blocks.GATHER_WINOGRAD and max(piece.folds[2]) <= _blocks.FOLDED_TILES
        in_result = stores_folds or way == _blocks.GATHER_DIRECT or not (  # need what is beyond the edges no patch?
            way == _blocks.GATHER_WINOGRAD or piece.turned or piece.target.channel == 1)
        turns_anyway = way == _blocks.CORRELATE_WINOGRAD and (  # grad_output, to vectors of its channels
            self.kernels.itemsize * piece.target.axes[2] < _blocks.FAR_POSITIONS) and (
            source or piece.lattices == 1)  # else no operand's patch would show the lattice
        step.turns[1] = patched[1] or piece.folds != _blocks.NO_FOLDS and not in_result or into_last[1] or (
            lie_last[1] and not turns_anyway and not reads_last[1])
        step.turns[2] = patched[2] and step.taps > 0
        for i in range(2):  # patches of channels that lie last
            step.piece.close[i] = into_last[i] or patched[i] and lie_last[i] and reads_last[i]
        step.lattices = piece.lattices
        assert step.lattices == 1 or step.turns[0] or step.turns[1], "a lattice is seen through patches"
        step.folds = piece.folds != _blocks.NO_FOLDS and (step.turns[1] or not stores_folds)
        for i in range(3):
            step.piece.stored[i] = self.stored[i]
        if piece.edge == "constant":
            value = element(self.geometry.padding_value, self.dtype).tobytes()
            memcpy(step.piece.edge_value, <const char *>value, len(value))

    cdef void _divide(self, step_t *step, piece, blocking) except *:
        """Its blocks, and its tasks: parts of the result."""
        cdef index_t lattices
        cdef int a
        tiles = _winograd.of_frequency(piece)
        step.block.samples, step.block.shared = blocking.samples, blocking.shared
        step.blocks[0] = _parts(step.batch, step.block.samples)
        step.block_count = step.blocks[0]
        for a in range(3):
            step.block.extent[a] = blocking.extent[a]
            step.count[a] = tiles.axes[a].positions
            lattices = step.lattices if a == 1 else 1
            step.blocks[a + 1] = lattices * _parts(step.count[a] // lattices, blocking.extent[a])
            step.block_count *= step.blocks[a + 1]
        step.tasks = step.row_blocks * step.group_blocks * (step.block_count if self.gathers else step.depth_blocks)
        step.tasks *= step.apart
        step.splits = max(1, min(blocking.splits, step.block_count))
        step.packs = 0
        if self.gathers and step.taps > 0 and step.block_count > 1 and not self.swapped:
            step.packs = step.row_blocks * step.group_blocks * step.depth_blocks

    cdef void _count_elements(self, step_t *step, index_t positions) except *:
        """Of the arrays that a thread needs for it, each rounded up to whole cache lines."""
        cdef index_t line = LINE // self.kernels.itemsize, integers = sizeof(index_t) // self.kernels.itemsize
        cdef work_t work
        cdef int operand
        work.piece, work.block, work.part = &step.piece, step.block, _most(step)
        step.way.layout(&work)
        step.scratch, step.result = _up(work.layout.scratch, line), _up(work.layout.result, line)
        step.panel = _up(work.layout.panel, line)
        step.offsets = _up(step.depth_channels * step.taps * integers, line)
        for operand in range(3):
            step.patch[operand] = _up(self.kernels.patch(&work, operand), line) if step.turns[operand] else 0
        # grad_weight multiplies the cells that lie between two rows of positions by zeros, and those behind the last
        # position where these are taken many at a time
        if not self.gathers and (work.layout.positions != positions or self.flushes):
            self.gapped = True

    cdef void _measure(self) except *:
        """Scratch of the whole call: a thread's own, and what the threads share."""
        cdef index_t own, i
        cdef step_t *step
        for i in range(self.count):
            step = &self.steps[i]
            own = step.scratch + step.panel + max(1, step.members) * step.result + step.offsets + step.picked
            own += step.interleaved + step.patch[0] + step.patch[1] + step.patch[2]
            self.waves = max(self.waves, step.wave + 1)
            if self.gathers:
                step.packed = self.shared_scratch
                self.shared_scratch += step.packs * step.panel
            elif step.splits > 1:  # one step after the other, in the same memory
                own += step.result
                if step.apart == 1:  # else they would grow with the batch, whose samples are enough to share
                    self.shared_scratch = max(self.shared_scratch, step.tasks * step.splits * step.result)
            if self.sums_runs():
                own += step.result
            self.thread_scratch = max(self.thread_scratch, own)
        self.least_scratch = self.thread_scratch + LINE // self.kernels.itemsize
        if self.padding is not None:
            self.least_scratch = max(self.least_scratch, self.padding.least_scratch)

    cdef bint sums_runs(self) noexcept nogil:
        """Whether sums of many blocks are made in runs: not of tiles, whose blocks may be smaller in less scratch, with
        the sums in the same order."""
        return not self.gathers and not self.tiled

    cdef Plan of_tasks(self, int tasks):
        """The same in at least so many blocks, where there is work for them: of grad_weight only tiles' sums are in the
        same order."""
        return self if tasks == self.tasks or not (self.gathers or self.tiled) else self._other(tasks)

    cdef Plan narrow(self):
        """The same in as little scratch as there may be."""
        return self._other(0) if self.tiled or self.slices else self.of_tasks(TASKS)

    cdef Plan _other(self, int tasks):
        cdef Plan other = self.others.get(tasks)
        if other is None:
            other = Plan(self.map, self.geometry, self.dtype, self.algorithm, self.result, self.is_exact,
                         tasks or TASKS, tasks == 0)
            self.others[tasks] = other
        return other

    @property
    def scratch_minimum(self):
        """Elements that one thread needs, for what is added to out as well: the same for any number of threads, and no
        less than for a smaller batch. Where samples are not summed it is what one of them needs."""
        if self.minimum == 0:
            summed = not self.gathers and not self.geometry.per_sample
            batch = self.geometry.batch
            most = _blocks.power_of_two(batch) if summed else 1
            if batch != most:
                self.minimum = self.of_batch(most).scratch_minimum
                return self.minimum
            least = self.narrow().least_scratch
            if self.tiled or self.flushes or self.slices:
                other = plan(self.map, self.geometry, self.dtype, "gemm", self.result)
                least = max(least, other.scratch_minimum)
            self.minimum = least if batch == 1 else max(least, self.of_batch(batch // 2).scratch_minimum)
        return self.minimum

    def of_batch(self, batch):
        """The plan of so many samples."""
        return plan(self.map, self.geometry._replace(batch=batch), self.dtype, self.algorithm, self.result,
                    self.is_exact)

    def scratch_size(self, threads):
        """Elements that full speed wants on so many threads, and of batches of lower powers of two, whose tiles may
        want more."""
        size = max(self.scratch_minimum, self.of_tasks(_tasks(threads, self.products)).own_scratch(threads))
        fewer = _blocks.power_of_two(self.geometry.batch) // 2
        return max(size, self.of_batch(fewer).scratch_size(threads)) if self.tiled and fewer else size

    cpdef index_t own_scratch(self, int threads):
        """The same, for what is not added to out."""
        cdef index_t own = self.shared_scratch + threads * self.thread_scratch + LINE // self.kernels.itemsize
        return own if self.padding is None else max(own, self.padding.own_scratch(threads))

    cdef index_t wanted_scratch(self, int threads):
        """Below it narrow blocks are better: large ones of tiles leave other threads without scratch."""
        return self.own_scratch(_worth(threads, self.most_tasks, self.products)) if self.tiled else self.least_scratch

    cdef object new_scratch(self, int threads):
        """As much, of a call of its own; a small one makes it without a function of Python's."""
        cdef cnp.npy_intp size = self.own_scratch(threads)
        if size < SMALL // self.kernels.itemsize:
            return cnp.PyArray_EMPTY(1, &size, (<cnp.dtype>self.real).num, 0)
        return empty(size, self.real)

    def enough(self, scratch):
        """The scratch, or where that was given but is too small for this plan, the least that is not."""
        if scratch is None or scratch.size >= self.scratch_minimum:
            return scratch
        return empty(self.scratch_minimum, self.real)

    def run(self, first, second, out, bias=None, scratch=None, accumulate=False, threads=None):
        """out <- the map of (first, second), plus bias, or added to out; see _backend for the operands."""
        cdef int number = _process_threads if threads is None else threads
        cdef Plan fitting = self.of_tasks(_tasks(number, self.products))
        if scratch is not None and scratch.size < fitting.wanted_scratch(number):
            fitting = self.narrow()
            if scratch.size < fitting.least_scratch and self.geometry.batch > 1:
                return _apart(self, first, second, out, bias, scratch, accumulate, number)
        _work(fitting, first, second, out, bias, scratch, accumulate, number)
