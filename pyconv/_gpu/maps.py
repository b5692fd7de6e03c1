"""The programs of the three maps: which operands are packed, which kernels take which pieces, in which order.

forward and grad_input sum over taps and the channels of a group (`Sums`), grad_weight over the positions of the batch
(`Correlation`). In tiles padding is a zero times a weight or a grad_output, right unless that is not finite: packing
sets a flag where it is so, the tiles then store nothing, and the direct kernels, launched behind them, begin to work.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from pyconv._geometry import Geometry
from pyconv._gpu import limits, padding, plain, planes, program, tiles, walks
from pyconv._gpu.launches import ALIGNMENT, Program, Ref
from pyconv._gpu.limits import divided
from pyconv._gpu.program import Flags, Layout, Operand, Packed, Target, Weight
from pyconv._gpu.tiles import Element, Tile
from pyconv._padding import REPEATING
from pyconv._pieces import ONE, Axes, Axis, disjoint_axes, has_padding, is_covered, is_disjoint, phases, undivided

MOST_GROUPS = 2**16 - 1  # of a grid's second axis


class Problem(NamedTuple):
    """What a plan is for; `way` is None where there are no tiles for the dtype."""

    device: Any
    map: str
    geometry: Geometry
    element: Element
    way: str | None
    algorithm: str
    crop: tuple[int, int, int] = (0, 0, 0)  # cells of the input before the geometry's first, where it has an edge

    @property
    def by_piece(self) -> bool:
        """Whether a row's taps are copied as one line, so that each piece needs a weight of its own."""
        return self.way is not None and bool(tiles.WAYS[self.way].wgmma)

    @property
    def splits(self) -> bool:
        """Whether operands are multiplied as two parts each: then infinity meets the zero of a low part."""
        return self.way in tiles.SPLITTING

    def on_hopper(self) -> "Problem":
        """The same in the way that is the fastest on a chip of capability 9.0."""
        g = self.geometry
        ins, outs = g.in_channels // g.groups, g.out_channels // g.groups
        rows, channels = (ins, outs) if self.map == "grad_input" else (outs, ins)
        kernel = "correlate" if self.map == "grad_weight" else "gather"
        taps = prod(g.kernel_size)
        pointwise = taps == prod(g.stride) == 1 and not any(g.padding)
        found = self.way and tiles.on_hopper(self.way, kernel, rows, channels, taps, pointwise)
        return self._replace(way=found)

    def tiled(self, rows: int, channels: int, pieces: int = 1) -> bool:
        """Whether groups of so many rows and channels are for tiles, which take so many launches."""
        g = self.geometry
        if self.map != "grad_input" and prod(padding.padded(g).input_size) > 4 * (
                prod(g.input_size) + prod(g.output_size)) and g.padding_mode != "zeros":
            return False  # taps so far apart that most of the packed places were read by none
        products = prod(g.output_size) * prod(g.kernel_size) * g.out_channels * g.in_channels // g.groups
        parts = self.element.parts
        return g.groups <= MOST_GROUPS and not tiles.is_direct(
            self.way, self.element.in_tiles, rows * parts, channels * parts, products * parts**2, pieces,
            "correlate" if self.map == "grad_weight" else "gather")

    def x(self, layout: Layout, base: str) -> Operand:
        """The convolution's input."""
        g, edge = self.geometry, padding.edge_of(self.geometry)
        if edge is None:
            return Operand(Ref(base), layout, g.input_size, g.in_channels // g.groups, g.groups)
        place = Ref(base) if self.algorithm == "columns" else Ref(base).at(
            sum(cells * step for cells, step in zip(self.crop, layout[2:5])))
        return Operand(place, layout, padding.padded(g).input_size, g.in_channels // g.groups, g.groups, edge)

    def y(self, layout: Layout, base: str) -> Operand:
        """The convolution's output."""
        g = self.geometry
        return Operand(Ref(base), layout, g.output_size, g.out_channels // g.groups, g.groups)


Layouts = tuple[Layout, Layout, Layout]  # of the first operand, the second, and the result


def build(problem: Problem, layouts: Layouts, bias_stride: int | None, accumulate: bool, samples: int) -> Program:
    """The launches of a map, which pack so many samples at a time."""
    limits.check_weight(problem.geometry, problem.element)
    made = Program(problem.device)
    g = problem.geometry
    if problem.map == "grad_input" and g.padding_mode not in REPEATING:
        g = g._replace(padding_mode="zeros")  # the gradients of places without a cell are dropped
    if g.padding_mode != "zeros":
        g, crop = padding.cropped(g)
        problem = problem._replace(crop=crop)
    problem = problem._replace(geometry=g)
    bias: Ref | int = 0 if bias_stride is None else Ref("bias")
    target = Target(Ref("out"), layouts[2], bias, bias_stride or 0, accumulate)
    work = Correlation if problem.map == "grad_weight" else Sums
    work(problem, made, layouts, target).build(samples)
    return made


def _packed(
    made: Program, problem: Problem, operand: Operand, samples: int, flags: Flags, space: Ref | None,
    clear: Ref | int = 0, count: int = 0,
) -> Packed:
    """The operand as tiles read it; flags are set where an element is spoiled, also if nothing is copied.

    `clear`: the first of so many flags to be cleared before; where it is one that the copying does not set, on the way.
    """
    by_copy = count == 1 and space is not None and not flags.some
    if not by_copy:
        program.clear(made, clear, problem.element, count)
    if flags.some and space is None:
        program.scan(made, operand, samples, problem.element, flags)
    return program.pack(made, operand, samples, problem.element, flags, space, clear if by_copy else 0)


def _parts_of_gather(axes: Axes, chunks: int) -> int:
    """Into how many parts a piece's sums over taps of so many chunks are cut."""
    positions, taps = prod(axis.positions for axis in axes), prod(axis.taps for axis in axes)
    return tiles.parts_of_gather(positions, -(-chunks * taps // 4))


class Sums:
    """forward and grad_input."""

    def __init__(self, problem: Problem, made: Program, layouts: Layouts, target: Target) -> None:
        w, self.edge, self.whole = layouts[1], padding.edge_of(problem.geometry), problem.geometry
        self.layouts = layouts
        self.folds = problem.map == "grad_input" and self.edge is not None
        if self.folds:  # all places first
            problem = problem._replace(geometry=padding.padded(problem.geometry))
        g = problem.geometry
        self.problem, self.made, self.target = problem, made, target
        self.element = problem.element.summed if self.folds else problem.element  # and what results are kept as
        ins, outs, is_forward = g.in_channels // g.groups, g.out_channels // g.groups, problem.map == "forward"
        self.source = (problem.x if is_forward else problem.y)(layouts[0], "first")
        rows, row, channel = (outs, w.outer, w.channel) if is_forward else (ins, w.channel, w.outer)
        self.weight = Weight(
            Ref("second"), w, row, channel, outs * w.outer, rows, self.source.channels, g.groups, g.kernel_size)
        self.size = g.output_size if is_forward else g.input_size
        self.definition = phases(problem.map, g)
        self.pieces = self.definition if self.edge is None else phases(problem.map, padding.padded(g))
        whole = len(self.pieces) == 1 and all(
            (axis.first, axis.every, axis.taps) == (0, 1, k) for axis, k in zip(self.pieces[0], g.kernel_size))
        self.by_piece = problem.by_piece and not whole
        apart = not is_forward and not self.folds and self.element.parts == 1 and is_disjoint(g)
        pieces = 1 if apart else len(self.pieces)
        self.tiled = problem.tiled(rows * prod(g.kernel_size) if apart else rows, self.source.channels, pieces)
        self.apart = apart and self.tiled
        self.flags = Flags()
        self.weight_space: Ref | None = None  # for a copy of the weight, where tiles cannot read it as it lies

    def build(self, samples: int) -> None:
        """All rows of the weight together, or as many at a time as a launch can count the results of in a sample."""
        weight, made = self.weight, self.made
        cells = (n + c for n, c in zip(self.whole.input_size, self.problem.crop)) if self.folds else (0,)
        of_row = max(prod(self.size), prod(cells))
        most = limits.most_planes(self.whole, of_row)
        start, scratch = made.scratch, made.scratch
        for run in limits.runs_of_rows(weight.groups, weight.rows, most):
            made.scratch = start  # what the rows before these left is free again
            _, groups, _, rows = run
            part = self if (groups, rows) == (weight.groups, weight.rows) else self._of_rows(*run)
            part._build(min(samples, limits.most_planes(self.whole, prod(self.source.size), rows * groups * of_row)))
            scratch = max(scratch, made.scratch)
        made.scratch = scratch

    def _of_rows(self, group: int, groups: int, row: int, rows: int) -> "Sums":
        """The same for some of the weight's rows."""
        weight, source, target = self.weight, self.source, self.target
        read, written = groups * source.channels, groups * rows
        ins, outs = (read, written) if self.problem.map == "forward" else (written, read)
        g = self.whole._replace(groups=groups, in_channels=ins, out_channels=outs)
        channel = group * weight.rows + row
        part = Sums(
            self.problem._replace(geometry=g), self.made, self.layouts,
            target._replace(place=target.place.at(channel * target.layout.channel), bias=target.bias_of(channel)))
        part.weight = part.weight._replace(place=weight.place.at(group * weight.group + row * weight.row))
        part.source = source._replace(
            place=source.place.at(group * source.channels * source.layout.channel), groups=groups)
        return part

    def _build(self, samples: int) -> None:
        """Go through the batch; the weight is packed once, behind the first samples, which clear its flag."""
        g, weight = self.problem.geometry, self.weight
        self.tiled = self.tiled and any(all(axis.taps for axis in axes) for axes in self.pieces)
        if self._by_planes():
            return
        pad = not self.apart and any(has_padding(axes) for axes in self.pieces)
        space = None
        if self.tiled:
            if pad or self.problem.splits:
                self.flags = Flags.of(self.made, min(samples, g.batch) if self.problem.splits else 0)
            read = [weight] if self.apart or not self.by_piece else [
                program.of_piece(weight, axes)[0] for axes in self.pieces]
            if self.flags.whole or not all(program.is_packed(part, self.problem.element) for part in read):
                self.weight_space = self.made.reserve(program.weight_bytes(weight, self.element))
            if not program.in_place(self.source, self.element):
                space = self.made.reserve(program.packed_bytes(self.source, min(samples, g.batch), self.element))
        places = self.target
        if self.folds:
            places = program.places(
                self.made, (min(samples, g.batch), g.in_channels, *g.input_size), self.target.last, self.element)
        self.partial_at = self.made.scratch
        leaves_cells = self.tiled and self.leaves_cells
        for first, count in limits.chunks_of_samples(g.batch, samples):
            source = self.source._replace(place=self.source.place.at(first * self.source.layout.outer))
            to = self.target._replace(place=self.target.place.at(first * self.target.layout.outer))
            target = places if self.folds else to
            if leaves_cells:
                self._fill_all(target, count)
                if target.accumulate:  # else cells would get the bias from tiles, or the direct kernel, as well
                    target = target._replace(bias=0, bias_stride=0)
            if self.tiled:
                flags, is_first = self.flags, first == 0
                packed = _packed(
                    self.made, self.problem, source, count, flags if flags.samples else Flags(), space,
                    flags.whole if is_first else flags.some if flags.samples else 0, flags.places - (not is_first))
                # the flag is for the whole weight
                if is_first and (flags.whole or self.apart or not self.by_piece):
                    self._pack_weight(weight, flags.whole)
                self._tiles(packed, target, count)
            if self.flags.whole or not self.tiled:
                self._whole(source, target, count)
            if self.folds:
                self._fold(places, to, count)

    def _by_planes(self) -> bool:
        """Make the whole batch's results from planes where they lie, if that can be: whether it can."""
        axes, source, element = self.pieces[0], self.source, self.element
        way = planes.way_of(self.problem.way, element)
        if way is None or not self.tiled or len(self.pieces) > 1 or self.folds or not planes.are_sums(
                source, self.weight, self.target, axes, element):
            return False
        if _parts_of_gather(axes, program.chunks_of(source.channels, element)) > 1:
            return False
        planes.sums(self.made, source, self.weight, self.target, self.problem.geometry.batch, way, element)
        return True

    @property
    def leaves_cells(self) -> bool:
        """Whether tiles do not write every cell of the target: some that no tap meets. Then all are filled before."""
        return not is_covered(self.problem.geometry) if self.apart else not all(
            axis.taps for axes in self.pieces for axis in axes)

    def _fold(self, places: Target, target: Target, samples: int) -> None:
        """The gradients of places to the cells that they are."""
        g, edge = self.whole, self.edge
        assert edge is not None
        crop = self.problem.crop
        sizes = (samples, g.in_channels, *(n + c for n, c in zip(g.input_size, crop)))
        program.adjoint(
            self.made, places.place, places.layout, self.problem.geometry.input_size, target, sizes, edge, crop,
            self.problem.element)

    def _tiles(self, source: Packed, target: Target, samples: int) -> None:
        if self.apart:
            self._apart(source, target, samples)
            return
        for axes in self.pieces:
            if all(axis.taps for axis in axes):
                self._gathered(source, target, axes, samples)

    def _whole(self, source: Operand, target: Target, samples: int) -> None:
        """By definition; where there is a flag, if it is set. Small phases of a stride in one launch."""
        g, pieces = self.problem.geometry, self.definition
        if not self.flags.whole and self.edge is None and walks.sums(
                self.made, self.problem.map, g, source, self.weight, target, samples, self.element):
            return
        results = samples * prod(self.size) * self.weight.rows * g.groups
        if len(pieces) > 1 and max(g.stride) <= limits.MOST and (
                self.flags.whole or results < (len(pieces) - 1) * tiles.BY_PHASE):
            pieces, stride = [undivided(g)], g.stride
        else:
            stride = None
        for axes in pieces:
            program.direct(self.made, source, self.weight, target, axes, samples, self.element, self.flags, stride)

    def _fill_all(self, target: Target, samples: int) -> None:
        """The bias or zeros in all cells, added where the target says so."""
        sizes = (samples, self.weight.rows * self.weight.groups, *self.size)
        program.fill(self.made, target, target.layout, sizes, self.element)

    def _pack_weight(self, weight: Weight, flag: Ref | int) -> None:
        if self.weight_space is not None:
            program.pack_weight(self.made, weight, self.problem.element, flag, self.weight_space)

    def _gathered(self, source: Packed, target: Target, axes: Axes, samples: int) -> None:
        weight, way = self.weight, self.problem.way
        assert way is not None
        if self.by_piece:
            weight, axes = program.of_piece(weight, axes)
            self._pack_weight(weight, 0)
        positions, parts = prod(axis.positions for axis in axes), _parts_of_gather(axes, source.chunks)
        partial = None
        if parts > 1:
            partial = Ref("scratch", self.partial_at)  # the same for every piece: one after the other
            size = parts * samples * positions * weight.rows * weight.groups * self.element.real_size
            self.made.scratch = max(self.made.scratch, self.partial_at + size)
        element = self.element
        tile = tiles.tile_of(way, element.in_tiles, (samples * positions, weight.rows * element.parts),
                             weight.groups * parts, apart=element.parts == 2)
        program.gather(
            self.made, source, weight, self.weight_space or weight.place, target, axes, samples, self.element, way,
            tile, parts, partial, self.flags)

    def _apart(self, source: Packed, target: Target, samples: int) -> None:
        """grad_input where no cell has two taps: one product, whose rows are the taps of a channel."""
        g = self.problem.geometry
        assert self.problem.way is not None
        way = self.problem.way.removeprefix("wgmma_")  # whose registers are full, as are those of a large tile
        weight = self.weight._replace(rows=self.weight.rows * prod(g.kernel_size), kernel=(1, 1, 1))
        axes = disjoint_axes(g)
        positions = samples * prod(axis.positions for axis in axes)
        tile = tiles.tile_of(way, self.element, (positions, weight.rows), weight.groups, apart=True)
        program.gather(
            self.made, source, weight, self.weight_space or weight.place, target, axes, samples,
            self.element, way, tile, 1, None, self.flags, g.kernel_size,
            [d * step for d, step in zip(g.dilation, target.layout[2:5])])


class Correlation:
    """grad_weight: parts of the positions, summed in order; or that of each sample."""

    def __init__(self, problem: Problem, made: Program, layouts: Layouts, target: Target) -> None:
        g = problem.geometry
        self.problem, self.made, self.target, self.element = problem, made, target, problem.element
        self.layouts = layouts
        self.x, self.y = problem.x(layouts[0], "first"), problem.y(layouts[1], "second")
        [self.axes] = phases("forward", g)
        [self.places] = [self.axes] if self.x.edge is None else phases("forward", padding.padded(g))
        self.positions, self.taps = prod(g.output_size), prod(g.kernel_size)
        self.most = limits.most_planes(g, prod(self.x.size), self.positions)

    def build(self, samples: int) -> None:
        """All samples together, or so many at a time that their parts stay in the cache until they are summed."""
        g, made = self.problem.geometry, self.made
        if not g.per_sample:
            self._build(samples)
            return
        of_sample = prod(self.target_size) * self.element.real_size
        chunk = min(samples, max(1, tiles.CACHED // of_sample), tiles.MOST_SAMPLES, self.most)
        start, most = made.scratch, made.scratch
        for first, count in limits.chunks_of_samples(g.batch, chunk):
            made.scratch = start  # what the samples before these left is free again
            part = Correlation(
                self.problem._replace(geometry=g._replace(batch=count)), made, self.layouts,
                self.target._replace(place=self.target.place.at(first * self.target.layout.sample)))
            part.x, part.y = (operand._replace(place=operand.place.at(first * operand.layout.outer))
                              for operand in (self.x, self.y))
            part._build(count)
            most = max(most, made.scratch)
        made.scratch = most

    @property
    def target_size(self) -> tuple[int, ...]:
        """Of a weight."""
        g = self.problem.geometry
        return (g.out_channels, g.in_channels // g.groups, *g.kernel_size)

    def _build(self, samples: int) -> None:
        """In tiles and, where a product with padding may not be sound, by definition if a flag says so."""
        made = self.made
        if not self.problem.tiled(self.y.channels, self.x.channels):
            self._by_definition(Flags())
            return
        flags = Flags()
        if has_padding(self.places) or self.problem.splits:
            flags = Flags.of(made, self.problem.geometry.batch if self.problem.geometry.per_sample else 0)
        before = made.scratch
        self._in_tiles(min(samples, self.most), flags)
        if flags.whole:
            after, made.scratch = made.scratch, before  # the tiles' scratch is free again
            self._by_definition(flags)
            made.scratch = max(made.scratch, after)

    def _as_read(self) -> tuple[Operand, Axes]:
        """x and the axes as tiles take them; columns are a 1 x 1 convolution."""
        if self.problem.algorithm != "columns":
            return self.x, self.places
        line = Axis(self.positions, self.positions, 1, 0, 0, 1)
        return self.x._replace(size=(1, 1, self.positions), channels=self.x.channels * self.taps, edge=None), (
            ONE, ONE, line)

    def _in_tiles(self, samples: int, flags: Flags) -> None:
        problem, g, made, element, y = self.problem, self.problem.geometry, self.made, self.element, self.y
        way, splits = problem.way, flags if problem.splits else Flags()
        assert way is not None
        x, axes = self._as_read()
        if self._by_planes(samples):
            return
        padded = program.chunks_of(x.channels, element) * 16 // element.size
        columns, rows = prod(axis.taps for axis in axes) * padded * element.parts, y.channels * element.parts
        tile = tiles.tile_of(way, element.in_tiles, (rows, columns), g.groups * tiles.NOMINAL_BLOCKS,
                             kernel="correlate")
        parts = self._parts("correlate", tile, rows, columns)
        blocks = -(-g.batch // parts.samples) if samples >= g.batch else max(samples // parts.samples, 1)
        most = blocks * parts.samples
        x_space, y_space = (
            None if program.in_place(operand, element, dense)
            else made.reserve(program.packed_bytes(operand, min(most, g.batch), element))
            for operand, dense in ((x, 0), (y, g.batch)))
        by_channel = (self.taps, 1) if problem.algorithm == "columns" else (1, padded)
        parted = Parted(made, problem, self.target, columns, *by_channel, element.parts == 2)
        # one run where samples have flags of their own: `build` gives no more of those than a launch takes
        for first, count in limits.chunks_of_samples(g.batch, most, parts.samples):
            from_x, from_y = (operand._replace(place=operand.place.at(first * operand.layout.outer))
                              for operand in (x, y))
            packed_x = _packed(made, problem, from_x, count, splits, x_space,
                               0 if first else flags.whole, flags.places)
            packed_y = _packed(made, problem, from_y, count, flags, y_space)
            slots = parts.count(count)
            program.correlate(
                made, packed_x, packed_y, parted.place(slots), axes, parts.arguments(count, self.positions),
                (rows, columns, g.groups, slots), element, way, tile)
            last = first + count == g.batch
            parted.finish(last, slots, flags if last else Flags(), 0)

    def _by_planes(self, samples: int) -> bool:
        """Multiply planes where they lie, if that can be: whether it can."""
        problem, g, x, y, element = self.problem, self.problem.geometry, self.x, self.y, self.element
        way = planes.way_of(problem.way, element)
        if way is None or g.per_sample or problem.algorithm == "columns" or not planes.are_products(
                x, y, self.axes, element):
            return False
        tile = tiles.tile_of(way, element, (y.channels, x.channels), tiles.NOMINAL_BLOCKS)
        parts = planes.evenly(self._parts("gather", tile, y.channels, x.channels), g.batch)
        parts = planes.short(parts, self.positions, way, x.channels * y.channels * element.part_size, g.batch)
        padded = program.chunks_of(x.channels, element) * 16 // element.size
        parted = Parted(self.made, problem, self.target, padded, 1, padded, False)
        most = max(samples // parts.samples, 1) * parts.samples
        for first, count in limits.chunks_of_samples(g.batch, most, parts.samples):
            slots = parts.count(count)
            from_x, from_y = (operand._replace(place=operand.place.at(first * operand.layout.outer))
                              for operand in (x, y))
            planes.products(
                self.made, from_x, from_y, parts, count, parted.place(slots), parted.row, way, element, tile)
            parted.finish(first + count == g.batch, slots, Flags(), 0)
        return True

    def _parts(self, kernel: str, tile: Tile, rows: int, columns: int) -> limits.Parts:
        """How the positions are cut for a product of so many rows and columns in each group."""
        way, groups = self.problem.way, self.problem.geometry.groups
        assert way is not None
        depth = tile.line // tiles.held(way, self.element.in_tiles).size
        blocks = -(-rows // tile.bm) * -(-columns // tile.bn) * groups
        size = rows * columns * groups * self.element.part_size
        return self._cut(lambda batch: tiles.parts_of_correlate(
            way, tile, kernel, blocks, batch * self.positions, depth, size), depth)

    def _cut(self, wanted: Callable[[int], int], multiple: int, positions: int = 0) -> limits.Parts:
        """As many parts as are wanted of a batch; of each sample alone as many as one of a nominal batch has.

        positions: of a sample, where they are not those of results.
        """
        g, of_sample = self.problem.geometry, positions or self.positions
        if not g.per_sample:
            return limits.cut(g.batch, of_sample, wanted(g.batch), multiple, self.most)
        parts = min(-(-wanted(tiles.NOMINAL_BATCH) // tiles.NOMINAL_BATCH), limits.GRID[2] // tiles.MOST_SAMPLES)
        return limits.cut(1, of_sample, parts, multiple, self.most)

    def _by_definition(self, flags: Flags) -> None:
        """A block for each element of the weight and part; where a flag is given, if it is set."""
        g, element, threads, x, y = self.problem.geometry, self.element, plain.THREADS, self.x, self.y
        rows = None if flags.whole or self.problem.algorithm == "columns" else walks.rows_of(g, element, x, y)
        if rows is not None:
            self._in_strips(rows)
            return
        axes = self.axes if x.edge is None else x.edge.placed(self.axes)
        elements, waits = g.out_channels * x.channels * self.taps, flags.whole != 0
        parts = self._cut(lambda batch: max(1, tiles.NOMINAL_BLOCKS // elements), threads)
        parted = Parted(
            self.made, self.problem, self.target, x.channels * self.taps * element.parts, self.taps, 1, False)
        for first, count in limits.chunks_of_samples(g.batch, self.most, parts.samples):
            slots = parts.count(count)
            blocks, turns = program.in_turns(elements, waits, slots)
            self.made.add(
                tiles.simple("direct_weight", element, mode=program.mode_of(x.edge), waits=waits), (blocks, slots),
                shared=threads * element.real_size, **turns, elements=elements,
                **program.edge_arguments(x.edge, element),
                x=x.place.at(first * x.layout.outer), y=y.place.at(first * y.layout.outer), target=parted.place(slots),
                flag=flags.some, **parts.arguments(count, self.positions), rounds=-(-parts.positions // threads),
                **divided(channels=x.channels, rows=y.channels), **program.taps_arguments(axes),
                **program.axes_arguments(axes), **self._reading(x.layout), y_n=y.layout.outer,
                y_row=y.layout.channel, y_z=y.layout.z, y_y=y.layout.y, y_x=y.layout.x, target_part=parted.size)
            parted.finish(first + count == g.batch, slots, flags, 1 if flags.whole else 0)

    def _in_strips(self, rows: walks.Rows) -> None:
        """Groups of one channel: a block for some rows and each part of the strips."""
        g, x, y = self.problem.geometry, self.x, self.y
        parts = self._cut(lambda _: rows.parts, rows.places, rows.strips)
        parted = Parted(self.made, self.problem, self.target, self.taps, self.taps, 1, False)
        for first, count in limits.chunks_of_samples(g.batch, self.most, parts.samples):
            slots = parts.count(count)
            # a buffer is lent for either order of channels, of which one has more parts
            parted.place(count * -(-rows.most // tiles.NOMINAL_BATCH) if g.per_sample else rows.most)
            from_x, from_y = (operand._replace(place=operand.place.at(first * operand.layout.outer))
                              for operand in (x, y))
            walks.products(self.made, rows, from_x, from_y, parts, count, parted.place(slots), parted.size,
                           self.element)
            parted.finish(first + count == g.batch, slots, Flags(), 0)

    def _reading(self, layout: Layout) -> dict[str, int]:
        """How direct_weight reads x: its cells, or the columns that unfold made of it."""
        found = program.strides(source=layout) | {"source_tap": 0, "read_z": 0, "read_y": 0, "read_x": 0}
        if self.problem.algorithm == "columns":
            _, height, width = self.problem.geometry.output_size
            found |= {"source_channel": layout.channel * self.taps, "source_tap": layout.channel,
                      "source_z": 0, "source_y": 0, "source_x": 0, "read_z": height * width * layout.x,
                      "read_y": width * layout.x, "read_x": layout.x}
        return found


class Parted:
    """The partial sums of a weight's gradient: parts that are summed in order, over all chunks of samples.

    A part is (out channels, columns), where tap t and channel c are column t * of_tap + c * of_channel. The first slot
    holds the running sum once a chunk is done; the parts of later chunks come behind it. Columns count the parts of
    complex numbers; where they are to be combined, each out channel has a row for its real and one for its imaginary
    part.
    """

    def __init__(
        self, made: Program, problem: Problem, target: Target, columns: int, of_channel: int, of_tap: int,
        combined: bool,
    ) -> None:
        self.made, self.problem, self.target = made, problem, target
        self.at, self.begun = made.scratch, 0
        element, (_, height, width) = problem.element, problem.geometry.kernel_size
        self.row, self.combined = columns * element.part_size, combined
        self.size = problem.geometry.out_channels * self.row * (2 if combined else 1)
        self.read = [self.row, *(step * element.real_size for step in (
            of_channel, height * width * of_tap, width * of_tap, of_tap))]

    def place(self, slots: int) -> Ref:
        """Where the parts of the next chunk go."""
        end = self.at + (self.begun + slots) * self.size
        self.made.scratch = max(self.made.scratch, -(-end // ALIGNMENT) * ALIGNMENT)
        return Ref("scratch", self.at + self.begun * self.size)

    def finish(self, last: bool, slots: int, flags: Flags, flag_value: int) -> None:
        """Sum what is there: to the target if the chunk is the last, else to the first slot."""
        g, partial = self.problem.geometry, Ref("scratch", self.at)
        samples = g.batch if g.per_sample else 1
        channels, rows = g.in_channels // g.groups, g.out_channels * (2 if self.combined and not last else 1)
        target = self.target if last else self.target._replace(place=partial)
        to: Sequence[int] = self.target.layout[:5] if last else self.read
        read = [self.row * 2, *self.read[1:]] if self.combined and last else self.read
        program.finish(
            self.made, target, (rows, channels, *g.kernel_size), to, partial, read, self.size,
            (self.begun + slots) // samples, self.problem.element, not last, flags, flag_value,
            samples if g.per_sample else 0, self.row if self.combined and last else 0)
        self.begun = 1
