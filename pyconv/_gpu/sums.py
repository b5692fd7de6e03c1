"""The programs of forward and grad_input: sums over taps and the channels of a group, in tiles or by definition."""

from math import prod

from pyconv._gpu import limits, operands, padding, planes, program, spreading, tiles, walks
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.operands import Flags, Operand, Packed, Weight
from pyconv._gpu.problem import Layouts, Problem, as_tiles_read, thinned
from pyconv._gpu.program import Target
from pyconv._gpu.spreading import Spread
from pyconv._piece import Axes, has_padding
from pyconv._pieces import disjoint_axes, is_covered, is_disjoint, phases, undivided


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
        apart = not is_forward and not self.folds and self.element.parts == 1 and is_disjoint(g)
        pieces = 1 if apart else len(self.pieces)
        self.tiled = problem.tiled(rows * prod(g.kernel_size) if apart else rows, self.source.channels, pieces)
        self.apart = apart and self.tiled
        if self.apart and problem.way is not None:  # wgmma's registers are full, as are those of a large tile
            self.problem = problem._replace(way=tiles.without_warpgroups(problem.way))
        self.by_piece = self.problem.by_piece and not whole
        if is_forward and self.tiled and self.edge is None:
            self.source, axes = thinned(self.source, self.definition[0])
            self.definition = self.pieces = [axes]
        self.flags = Flags()
        self.spread: Spread | None = None
        self.fills = False  # all cells before tiles write theirs
        self.space: Ref | None = None  # of the packed source
        # the weight, or each piece's own, where tiles read it, and the pieces that do
        self.read: list[tuple[Weight, Ref, list[Axes]]] = []

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
        part.source = part.source._replace(
            place=part.source.place.at(group * source.channels * source.layout.channel))
        return part

    def _build(self, samples: int) -> None:
        """Go through the batch; the weight is packed once, behind the first samples, which clear its flag."""
        g = self.problem.geometry
        self.tiled = self.tiled and any(all(axis.taps for axis in axes) for axes in self.pieces)
        if self._by_planes():
            return
        samples = min(samples, g.batch)
        if self.tiled:
            self._reserve(samples)
        places = self.target
        if self.folds:
            places = program.places(
                self.made, (samples, g.in_channels, *g.input_size), self.target.last, self.element.real_size)
        self.partial_at = self.made.scratch
        for first, count in limits.chunks_of_samples(g.batch, samples):
            source = self.source._replace(place=self.source.place.at(first * self.source.layout.outer))
            to = self.target._replace(place=self.target.place.at(first * self.target.layout.outer))
            target = places if self.folds else to
            if self.tiled:
                target = self._in_tiles(source, target, count, first == 0)
            if self.flags.whole or not self.tiled:
                self._whole(source, target, count)
            if self.folds:
                self._fold(places, to, count)

    def _reserve(self, samples: int) -> None:
        """Room for flags, and for what tiles read and write elsewhere than where it lies, of so many samples."""
        weight, pieces = self.weight, [axes for axes in self.pieces if all(axis.taps for axis in axes)]
        pad = not self.apart and any(has_padding(axes) for axes in self.pieces)
        if pad or self.problem.splits:
            self.flags = Flags.of(self.made, samples if self.problem.splits else 0)
        if not self.folds and not self.apart:
            self.spread = spreading.of(self.made, pieces, self.target, (samples, *self._size), self.element)
        self.fills = self.leaves_cells
        if self.spread is not None:
            pieces, self.fills = self.spread.pieces, self.fills and self.spread.lattice is None
        parts = [(weight, pieces)] if self.apart or not self.by_piece else [
            (own, [taken]) for own, taken in (operands.of_piece(weight, axes) for axes in pieces)]
        self.read = [
            (part, part.place if operands.is_packed(part, self.problem.element) and not self.problem.rounds
             else self.made.reserve(operands.weight_bytes(part, self.element)), taken) for part, taken in parts]
        if self.problem.rounds or not operands.in_place(self.source, self.element):
            self.space = self.made.reserve(operands.packed_bytes(self.source, samples, self.element))

    @property
    def _size(self) -> tuple[int, ...]:
        """Of a sample's results: rows of all groups, z, y, x."""
        return (self.weight.rows * self.weight.groups, *self.size)

    def _in_tiles(self, source: Operand, target: Target, samples: int, is_first: bool) -> Target:
        """So many samples in tiles; the target for what the direct kernels add to it or write in its place."""
        flags, spread = self.flags, self.spread
        written = target if spread is None else spread.target
        if self.fills:
            self._fill_all(written, samples)
            if target.accumulate:  # else cells would get the bias from tiles, or the direct kernel, as well
                target = written = target._replace(bias=0, bias_stride=0)
        packed = as_tiles_read(
            self.made, self.problem, source, samples, flags if flags.samples else Flags(), self.space,
            flags.whole if is_first else flags.some if flags.samples else 0, flags.places - (not is_first))
        if is_first:
            self._read_weight(flags.whole)
        self._tiles(packed, written, samples)
        if spread is not None:
            spreading.copy(self.made, spread, target, (samples, *self._size), self.element)
        return target

    def _by_planes(self) -> bool:
        """Make the whole batch's results from planes where they lie, if that can be: whether it can."""
        axes, source, element = self.pieces[0], self.source, self.element
        way = planes.way_of(self.problem.way, element)
        if way is None or not self.tiled or len(self.pieces) > 1 or self.folds or not planes.are_sums(
                source, self.weight, self.target, axes, element):
            return False
        if _parts_of_gather(axes, operands.chunks_of(source.channels, element)) > 1:
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
        for weight, place, pieces in self.read:
            for axes in pieces:
                self._gathered(source, target, axes, samples, weight, place)

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
        program.fill(self.made, target, target.layout, (samples, *self._size), self.element)

    def _read_weight(self, flag: Ref | int) -> None:
        """Copy what tiles cannot read as it lies; set the flag, if there is one, where any of it is not finite."""
        for weight, place, _ in self.read:
            if place != weight.place:
                operands.pack_weight(self.made, weight, self.problem.element, flag, place, self.problem.rounds)
            elif flag:
                apart = weight.row if weight.rows > 1 else weight.group  # an axis of one tells no distance
                layout = weight.layout._replace(outer=apart, channel=weight.channel)
                lines, flags = Operand(place, layout, weight.kernel, weight.channels, 1), Flags(flag, flag, flag)
                program.scan(self.made, lines, weight.groups * weight.rows, self.problem.element, flags)

    def _gathered(
        self, source: Packed, target: Target, axes: Axes, samples: int, weight: Weight, place: Ref
    ) -> None:
        """One piece, by the weight that is its own or the whole one."""
        way = self.problem.way
        assert way is not None
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
            self.made, source, weight, place, target, axes, samples, self.element, way, tile, parts, partial,
            self.flags)

    def _apart(self, source: Packed, target: Target, samples: int) -> None:
        """grad_input where no cell has two taps: one product, whose rows are the taps of a channel."""
        g = self.problem.geometry
        way = self.problem.way
        assert way is not None
        weight = self.weight._replace(rows=self.weight.rows * prod(g.kernel_size), kernel=(1, 1, 1))
        axes = disjoint_axes(g)
        positions = samples * prod(axis.positions for axis in axes)
        tile = tiles.tile_of(way, self.element, (positions, weight.rows), weight.groups, apart=True)
        program.gather(
            self.made, source, weight, self.read[0][1], target, axes, samples, self.element, way, tile, 1, None,
            self.flags, g.kernel_size,
            [d * step for d, step in zip(g.dilation, target.layout[2:5])])
