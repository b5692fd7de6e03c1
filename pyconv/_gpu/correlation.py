"""The programs of grad_weight: sums over the positions of the batch, in parts that are summed in order."""

from collections.abc import Sequence
from math import prod

from pyconv._gpu import limits, operands, padding, plain, planes, program, tiles, walks
from pyconv._gpu.launches import ALIGNMENT, Program, Ref
from pyconv._gpu.layouts import Layout, axes_arguments, edge_arguments, in_turns, mode_of, strides, taps_arguments
from pyconv._gpu.limits import divided
from pyconv._gpu.operands import Flags, Operand
from pyconv._gpu.problem import Layouts, Problem, as_tiles_read, thinned
from pyconv._gpu.program import Target
from pyconv._gpu.tiles import Summing, Tile
from pyconv._piece import ONE, Axes, Axis, has_padding
from pyconv._pieces import phases


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
            return (self.x, self.places) if self.x.edge is not None else thinned(self.x, self.places)
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
        padded = operands.chunks_of(x.channels, element) * 16 // element.size
        columns, rows = prod(axis.taps for axis in axes) * padded * element.parts, y.channels * element.parts
        tile = tiles.tile_of(
            way, element.in_tiles, (rows, columns), g.groups * tiles.NOMINAL_BLOCKS, kernel="correlate",
            seconds=lambda tile: self._seconds(self._summing("correlate", tile, rows, columns)))
        parts = self._parts("correlate", tile, rows, columns)
        blocks = -(-g.batch // parts.samples) if samples >= g.batch else max(samples // parts.samples, 1)
        most = blocks * parts.samples
        x_space, y_space = (
            None if operands.in_place(operand, element, dense)
            else made.reserve(operands.packed_bytes(operand, min(most, g.batch), element))
            for operand, dense in ((x, 0), (y, g.batch)))
        by_channel = (self.taps, 1) if problem.algorithm == "columns" else (1, padded)
        parted = Parted(made, problem, self.target, columns, *by_channel, element.parts == 2)
        # one run where samples have flags of their own: `build` gives no more of those than a launch takes
        for first, count in limits.chunks_of_samples(g.batch, most, parts.samples):
            from_x, from_y = (operand._replace(place=operand.place.at(first * operand.layout.outer))
                              for operand in (x, y))
            packed_x = as_tiles_read(made, problem, from_x, count, splits, x_space,
                               0 if first else flags.whole, flags.places)
            packed_y = as_tiles_read(made, problem, from_y, count, flags, y_space)
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
        padded = operands.chunks_of(x.channels, element) * 16 // element.size
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

    def _summing(self, kernel: str, tile: Tile, rows: int, columns: int) -> Summing:
        """A product of so many rows and columns in each group, over the batch or, where each sample has its own
        gradient, over a nominal one."""
        g, element, way = self.problem.geometry, self.element, self.problem.way
        assert way is not None
        positions = (tiles.NOMINAL_BATCH if g.per_sample else g.batch) * self.positions
        return Summing(
            way, tile, kernel, -(-rows // tile.bm) * -(-columns // tile.bn) * g.groups, positions,
            tile.line // tiles.held(way, element.in_tiles).size,
            positions * (g.in_channels + g.out_channels) * element.size, rows * columns * g.groups * element.part_size)

    def _seconds(self, product: Summing) -> float:
        """What it takes in as many parts as are best."""
        return product.seconds(tiles.parts_of_correlate(product))

    def _parts(self, kernel: str, tile: Tile, rows: int, columns: int) -> limits.Parts:
        """How the positions are cut for a product of so many rows and columns in each group."""
        product = self._summing(kernel, tile, rows, columns)
        return self._cut(tiles.parts_of_correlate(product), product.depth)

    def _cut(self, wanted: int, multiple: int, positions: int = 0) -> limits.Parts:
        """As many parts as are wanted of a batch; of each sample alone as many as one of a nominal batch has.

        positions: of a sample, where they are not those of results.
        """
        g, of_sample = self.problem.geometry, positions or self.positions
        if not g.per_sample:
            return limits.cut(g.batch, of_sample, wanted, multiple, self.most)
        parts = min(-(-wanted // tiles.NOMINAL_BATCH), limits.GRID[2] // tiles.MOST_SAMPLES)
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
        parts = self._cut(max(1, tiles.NOMINAL_BLOCKS // elements), threads)
        parted = Parted(
            self.made, self.problem, self.target, x.channels * self.taps * element.parts, self.taps, 1, False)
        for first, count in limits.chunks_of_samples(g.batch, self.most, parts.samples):
            slots = parts.count(count)
            blocks, turns = in_turns(elements, waits, slots)
            self.made.add(
                tiles.simple("direct_weight", element, mode=mode_of(x.edge), waits=waits), (blocks, slots),
                shared=threads * element.real_size, **turns, elements=elements,
                **edge_arguments(x.edge, element),
                x=x.place.at(first * x.layout.outer), y=y.place.at(first * y.layout.outer), target=parted.place(slots),
                flag=flags.some, **parts.arguments(count, self.positions), rounds=-(-parts.positions // threads),
                **divided(channels=x.channels, rows=y.channels), **taps_arguments(axes),
                **axes_arguments(axes), **self._reading(x.layout), y_n=y.layout.outer,
                y_row=y.layout.channel, y_z=y.layout.z, y_y=y.layout.y, y_x=y.layout.x, target_part=parted.size)
            parted.finish(first + count == g.batch, slots, flags, 1 if flags.whole else 0)

    def _in_strips(self, rows: walks.Rows) -> None:
        """Groups of one channel: a block for some rows and each part of the strips."""
        g, x, y = self.problem.geometry, self.x, self.y
        if g.per_sample or g.batch > self.most:
            parts = self._cut(rows.parts, rows.places, rows.strips)
        else:  # wherever samples end
            parts = limits.cut(1, g.batch * rows.strips, rows.parts, rows.places, 1)._replace(samples=g.batch)
        parted = Parted(self.made, self.problem, self.target, self.taps, self.taps, 1, False)
        for first, count in limits.chunks_of_samples(g.batch, self.most, parts.samples):
            slots = parts.count(count)
            # a buffer is lent for any order of channels, of which one has more parts
            parted.place(count * -(-rows.most // tiles.NOMINAL_BATCH) if g.per_sample else rows.most)
            from_x, from_y = (operand._replace(place=operand.place.at(first * operand.layout.outer))
                              for operand in (x, y))
            walks.products(self.made, rows, from_x, from_y, parts, count, parted.place(slots), parted.size,
                           self.element)
            parted.finish(first + count == g.batch, slots, Flags(), 0)

    def _reading(self, layout: Layout) -> dict[str, int]:
        """How direct_weight reads x: its cells, or the columns that unfold made of it."""
        found = strides(source=layout) | {"source_tap": 0, "read_z": 0, "read_y": 0, "read_x": 0}
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
