"""How the kernels of groups of one channel go through an axis, and their launches; which there are, tiles says."""

from math import gcd, prod
from typing import NamedTuple

from pyconv._geometry import Geometry
from pyconv._gpu import limits, plain, single, tiles
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.layouts import blocks_for, five
from pyconv._gpu.limits import Parts, divided
from pyconv._gpu.operands import Operand, Weight
from pyconv._gpu.program import Target
from pyconv._gpu.single import Strips
from pyconv._gpu.tiles import Element

WIDE = 2**31  # bytes that a kernel's 32-bit strides cannot count


class Walk(NamedTuple):
    """An axis as strips of results go through it, see `depthwise`: of each residue of the lattice there are `each`."""

    positions: int
    size: int
    lattice: int
    each: int
    begin: int
    along: int
    first: int
    step: int
    tap: int

    def lines(self, of_strip: int) -> int:
        """The strips of so many results, of all residues."""
        return self.lattice * -(-self.each // of_strip)


class Walks(NamedTuple):
    """The walks of y and x, and what a kernel is compiled for."""

    y: Walk
    x: Walk
    strips: Strips

    @property
    def arguments(self) -> dict[str, int]:
        """What kernels are told of them."""
        found: dict[str, int] = {}
        for name, walk in (("y", self.y), ("x", self.x)):
            found |= {f"size_{name}": walk.size, f"p{name}": walk.positions, f"begin_{name}": walk.begin,
                      f"along_{name}": walk.along, f"first_{name}": walk.first, f"step_{name}": walk.step,
                      f"tap_{name}": walk.tap, **divided(**{f"lattice_{name}": walk.lattice})}
        return found


def _read(positions: int, size: int, step: int, offset: int, tap: int) -> Walk:
    """Results q that read cells step * q + offset + tap * t: those of a residue are so far apart that they share cells.
    """
    lattice = abs(tap) // gcd(step, tap)
    each = -(-positions // lattice)
    begin = lattice * (each - 1) if tap < 0 else 0  # where taps read backwards, the last comes first
    return Walk(positions, size, min(lattice, positions), each, begin, lattice if tap > 0 else -lattice,
                offset + step * begin, step, tap)


def _divided(cells: int, places: int, padding: int, stride: int) -> Walk:
    """Cells of grad_input that read, under tap t, place (q + padding - t) / stride: the last one first."""
    last = -(-(cells - 1 + padding) // stride) * stride
    return Walk(cells, places, 1, last - padding + 1, last - padding, -1, last // stride, 0, -1)


def of_map(map: str, g: Geometry, element: Element) -> Walks | None:
    """The walks of a map whose source has one channel in a group, if there is a kernel: for two axes, of which each
    cell that is there lies in memory."""
    is_flat = g.input_size[0] == g.output_size[0] == g.kernel_size[0] == 1 and g.padding[0] == 0
    if not is_flat or g.padding_mode != "zeros" or not prod(g.input_size + g.output_size):
        return None
    axes = list(zip(g.input_size, g.output_size, g.padding, g.stride, g.dilation))[1:]
    found = []
    for cells, places, padding, stride, dilation in axes:
        if map != "grad_input":
            walk, ratio = _read(places, cells, stride, -padding, dilation), (1, stride // gcd(stride, dilation))
        elif stride == 1:
            walk, ratio = _read(cells, places, 1, padding, -dilation), (1, 1)
        else:
            walk, ratio = _divided(cells, places, padding, stride), (stride, dilation)
        found.append((walk, ratio))
    (y, of_y), (x, of_x) = found
    strips = single.strips_of(element, g.kernel_size[1:], *of_y) if of_y == of_x else None
    return None if strips is None else Walks(y, x, strips)


def _fit(steps: dict[str, int]) -> bool:
    """Whether 32 bits hold a kernel's strides, but for those from a sample to the next, and those between taps."""
    return all(abs(step) * single.MOST_TAPS < WIDE for name, step in steps.items() if not name.endswith("_n"))


def sums(
    made: Program, map: str, g: Geometry, source: Operand, weight: Weight, target: Target, samples: int,
    element: Element,
) -> bool:
    """forward or grad_input of so many samples, if there is a kernel for it: whether there is."""
    walks, rows, to = of_map(map, g, element), weight.rows * weight.groups, target.layout
    steps = {"source_n": source.layout.outer, "source_channel": source.layout.channel, "target_n": to.outer,
             "target_row": to.channel, "weight_group": weight.group, "weight_row": weight.row,
             "bias_row": target.bias_stride}
    for name, layout in (("source", source.layout), ("target", to), ("weight", weight.layout)):
        steps |= {f"{name}_y": layout.y, f"{name}_x": layout.x}
    if walks is None or weight.channels > 1 or not _fit(steps):
        return False
    strips, columns = walks.strips, walks.x.lines(walks.strips.columns)
    turns = _turns(walks.y, strips.rows, samples * rows * columns)
    lines = walks.y.lines(strips.rows * turns), columns
    ordered = (*lines, rows) if target.last else (rows, *lines)
    sizes = {name: number for name, number in five((1, 1, *ordered)).items() if name[1] in "01"}
    count = prod(ordered)
    for first, some in limits.chunks_of_samples(samples, limits.GRID[1]):
        made.add(
            single.source("depthwise", element, strips, target.accumulate), (*blocks_for(count), some),
            source=source.place.at(first * source.layout.outer), weight=weight.place,
            target=target.place.at(first * to.outer), bias=target.bias, last=int(target.last), count=count, **sizes,
            **divided(rows=weight.rows), turns=turns, **walks.arguments, **steps)
    return True


def _turns(walk: Walk, rows: int, columns: int) -> int:
    """How many strips a thread takes one behind the other, of so many columns: what it works out before serves all."""
    strips = -(-walk.each // rows)
    most = min(single.TURNS, columns * walk.lines(rows) // (tiles.PACKING_BLOCKS * plain.THREADS))
    return max((turns for turns in range(1, most + 1) if strips % turns == 0), default=1)


class Rows(NamedTuple):
    """How grad_weight is cut: `abreast` rows for a block, `side` of them for a thread, loaded at once or not; strips
    of a sample, parts that fill the chip, and how many they are where that is most."""

    walks: Walks
    abreast: int
    side: int
    at_once: bool
    strips: int
    parts: int
    most: int

    @property
    def places(self) -> int:
        """Strips that a block takes at once."""
        return plain.THREADS * self.side // self.abreast


def _read_steps(x: Operand, y: Operand) -> dict[str, int]:
    return {"source_n": x.layout.outer, "source_channel": x.layout.channel, "source_y": x.layout.y,
            "source_x": x.layout.x, "y_n": y.layout.outer, "y_row": y.layout.channel, "y_y": y.layout.y,
            "y_x": y.layout.x}


def rows_of(g: Geometry, element: Element, x: Operand, y: Operand) -> Rows | None:
    """Those of grad_weight, if there is a kernel for it."""
    walks = of_map("grad_weight", g, element)
    if walks is None or x.channels > 1 or not _fit(_read_steps(x, y)):
        return None
    strips = walks.y.lines(walks.strips.rows) * walks.x.lines(walks.strips.columns)
    channels, side = g.out_channels, single.sides_of(element, walks.strips)
    if y.channels > 1 or channels % side:
        side = 1
    alone, together = ((*rows, single.parts_of_strips(channels, *rows)) for rows in (
        (1, 1), (single.abreast_of(element, channels, side), side)))
    is_last = all(abs(one.layout.channel) < abs(one.layout.x) for one in (x, y))
    abreast, side, parts = together if is_last else alone
    at_once = side > 1 and all(_are_side_by_side(one, side * element.size, element) for one in (x, y))
    return Rows(walks, abreast, side, at_once, strips, parts, max(alone[2], together[2]))


def _are_side_by_side(operand: Operand, size: int, element: Element) -> bool:
    """Whether channels of so many bytes can be loaded at once, whichever cell they are of."""
    layout = operand.layout
    steps = operand.place.offset, layout.outer, layout.y, layout.x
    return layout.aligned and layout.channel == element.size and not any(step % size for step in steps)


def products(
    made: Program, rows: Rows, x: Operand, y: Operand, parts: Parts, samples: int, target: Ref, part_bytes: int,
    element: Element,
) -> None:
    """The parts of grad_weight of so many samples, each (out channels, taps)."""
    walks, strips, channels = rows.walks, rows.walks.strips, y.channels * y.groups
    blocks = -(-channels // rows.abreast), parts.count(samples)
    made.add(
        single.source("depthwise_weight", element, strips, side=rows.side, at_once=rows.at_once), blocks,
        shared=single.shared_of_strips(element, strips.k, rows.side), blocks=single.blocks_of_strips(rows.at_once),
        x=x.place, y=y.place, target=target, abreast=rows.abreast, shift=(rows.abreast // rows.side).bit_length() - 1,
        **parts.arguments(samples, rows.strips), rounds=-(-parts.positions // rows.places),
        channels=channels, **walks.arguments, **_read_steps(x, y), target_part=part_bytes,
        **divided(rows=y.channels, lines_y=walks.y.lines(strips.rows), lines_x=walks.x.lines(strips.columns)))
