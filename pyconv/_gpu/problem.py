"""What a program is for: the problem, its operands, and whether tiles take it."""

from math import prod
from typing import Any, NamedTuple

from pyconv._geometry import Geometry
from pyconv._gpu import operands, padding, program, tiles
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.layouts import Layout
from pyconv._gpu.operands import Flags, Operand, Packed
from pyconv._gpu.tiles import Element
from pyconv._piece import Axes

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

    @property
    def rounds(self) -> bool:
        """Whether operands are rounded as they are packed, so that tiles read none where it lies."""
        return self.way in tiles.ALONG

    def on_hopper(self) -> "Problem":
        """The same in the way that is the fastest on a chip of capability 9.0."""
        g = self.geometry
        ins, outs = g.in_channels // g.groups, g.out_channels // g.groups
        rows, channels = (ins, outs) if self.map == "grad_input" else (outs, ins)
        kernel = "correlate" if self.map == "grad_weight" else "gather"
        taps = prod(g.kernel_size)
        pointwise = taps == prod(g.stride) == 1 and not any(g.padding)
        if self.way is None or self.way == "tf32" and self.element.parts > 1:
            return self
        steps = prod(step for step, k in zip(g.stride, g.kernel_size) if k > 1)  # cells to each position, or phases
        uses, of_phase = (rows * taps, channels * taps // steps) if self.map == "grad_input" else (
            rows * taps // steps, channels * taps)
        return self._replace(way=tiles.on_hopper(self.way, kernel, rows, channels, taps, pointwise, uses, of_phase))

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


def thinned(operand: Operand, axes: Axes) -> tuple[Operand, Axes]:
    """The operand without the cells that positions step over along an axis that has one tap, and the axes that read it:
    a strided 1 x 1 convolution copies none but the cells it reads."""
    place, layout, found = operand.place, operand.layout, []
    for name, axis in zip("zyx", axes):
        if axis.taps == 1 < axis.step and axis.reached(0) == (0, axis.positions):
            along = getattr(layout, name)
            place, layout = place.at(axis.offset * along), layout._replace(**{name: axis.step * along})
            axis = axis._replace(size=axis.positions, step=1, offset=0)
        found.append(axis)
    z, y, x = (axis.size for axis in found)
    return operand._replace(place=place, layout=layout, size=(z, y, x)), tuple(found)


def as_tiles_read(
    made: Program, problem: Problem, operand: Operand, samples: int, flags: Flags, space: Ref | None,
    clear: Ref | int = 0, count: int = 0,
) -> Packed:
    """The operand as tiles read it; flags are set where an element is spoiled, also if nothing is copied.

    `clear`: the first of so many flags to be cleared before; where it is one that the copying does not set, on the way.
    """
    by_copy = count == 1 and space is not None and not flags.some
    if not by_copy:
        operands.clear(made, clear, problem.element, count)
    if flags.some and space is None:
        program.scan(made, operand, samples, problem.element, flags)
    return operands.pack(
        made, operand, samples, problem.element, flags, space, clear if by_copy else 0, problem.rounds)
