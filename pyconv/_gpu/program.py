"""A plan's launches for operands that lie in memory in a certain way: what is multiplied and summed, and where.

A program is made once for every geometry and layout. Sizes and strides here are in bytes.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from pyconv._geometry import Geometry
from pyconv._gpu import limits, packing, plain, tiles
from pyconv._gpu.launches import Matrix, Program, Ref
from pyconv._gpu.layouts import (
    Layout,
    axes_arguments,
    blocks_for,
    edge_arguments,
    first_tap,
    five,
    in_turns,
    mode_of,
    numbered,
    strides,
    tap_strides,
    taps_arguments,
)
from pyconv._gpu.limits import divided
from pyconv._gpu.operands import Flags, Operand, Packed, Weight, are_dense
from pyconv._gpu.padding import Edge
from pyconv._gpu.tiles import Element, Tile
from pyconv._piece import Axes
from pyconv._pieces import reads_each_cell


class Target(NamedTuple):
    """A result of (batch, rows of all groups, z, y, x), its bias, and whether it is added to."""

    place: Ref
    layout: Layout
    bias: Ref | int
    bias_stride: int
    accumulate: bool

    def of(self, axes: Axes) -> tuple[Ref, Layout]:
        """The cells that a piece writes."""
        z, y, x = (axis.lattice * stride for axis, stride in zip(axes, self.layout[2:5]))
        start = sum(axis.start * stride for axis, stride in zip(axes, self.layout[2:5]))
        return self.place.at(start), Layout(self.layout.outer, self.layout.channel, z, y, x)

    def bias_of(self, channel: int) -> Ref | int:
        """The bias of a channel."""
        return self.bias_at(channel * self.bias_stride)

    def bias_at(self, distance: int) -> Ref | int:
        """What lies so many bytes behind the first bias, if there is one."""
        return self.bias.at(distance) if isinstance(self.bias, Ref) else self.bias

    @property
    def last(self) -> bool:
        """Whether neighbouring channels lie nearer to each other than neighbouring cells."""
        return abs(self.layout.channel) < abs(self.layout.x)


def fill(program: Program, target: Target, layout: Layout, sizes: Sequence[int], element: Element) -> None:
    """The bias, or zeros, in all cells; zeros in words of 16 bytes where the cells are whole ones and leave no gaps.

    A thread's time is that of finding its cell, and so not a matter of bytes.
    """
    if target.bias == 0:
        if target.accumulate:
            return
        ordered = sorted(((step, n) for step, n in zip(layout[:5], sizes) if n > 1), reverse=True)
        steps, counts = zip(*ordered, (element.size, 1))
        is_whole = layout.aligned and target.place.offset % 16 == prod(sizes) * element.size % 16 == 0
        if is_whole and are_dense(counts, steps):
            sizes, element = (prod(sizes) * element.size // 16, 1, 1, 1, 1), tiles.ELEMENTS["complex128"]
            layout = Layout(element.size, 0, 0, 0, 0)
    for first, box in limits.boxes(sizes):
        program.add(
            tiles.simple("fill", element, target.accumulate), blocks_for(prod(box)),
            target=target.place.at(limits.distance(first, layout)), bias=target.bias_of(first[1]), count=prod(box),
            bias_stride=target.bias_stride, **five(box), **numbered("stride", layout[:5]))


def finish(
    program: Program, target: Target, sizes: Sequence[int], to: Sequence[int], partial: Ref, read: Sequence[int],
    part_bytes: int, parts: int, element: Element, running: bool = False, flags: Flags = Flags(), flag_value: int = 0,
    samples: int = 0, partial_row: int = 0,
) -> None:
    """Sum the parts to the target over five axes: `to` and `read` are its strides and those of a part.

    `running`: the target keeps the type of sums, since more parts will follow. `samples`: so many targets, one behind
    the other, each of as many parts; where it is 0 the first axis are the samples. `partial_row`: where the parts are
    products of the parts of complex numbers, from those of an operand's real part to those of its imaginary one.
    """
    waits = flag_value == 1 and not running  # a running sum is one of more positions than a launch can count
    sizes, to, read, of_bias = limits.nearest_last(sizes, to, read, target.bias_stride)
    for first, box in limits.boxes(sizes):
        *others, last = box
        threads = (*others, -(-last // plain.SUMMED))
        blocks, turns = in_turns(*blocks_for(prod(threads)), waits, samples or 1)
        program.add(
            tiles.simple("finish", element, target.accumulate and not running, running, combined=partial_row > 0,
                         waits=waits),
            (blocks, samples or 1), **turns, partial_row=partial_row, partial_sample=parts * part_bytes,
            target_sample=target.layout.sample, partial=partial.at(limits.distance(first, read)),
            target=target.place.at(limits.distance(first, to)), flag=flags.whole, some=flags.some,
            flag_value=flag_value, bias=0 if running else target.bias_at(limits.distance(first, of_bias)),
            count=prod(threads), last=last, parts=parts, partial_part=part_bytes, **five(threads),
            **numbered("partial", read), **numbered("stride", to),
            **{f"bias_{place}": step for place, step in enumerate(of_bias) if place},
            **(flags._replace(step=0) if samples else flags).of_samples(first[0]),
            own_sample=flags.step if samples else 0)


def direct(
    program: Program, source: Operand, weight: Weight, target: Target, axes: Axes, samples: int, element: Element,
    flags: Flags = Flags(), stride: tuple[int, int, int] | None = None,
) -> None:
    """A piece of forward or grad_input by its definition; where there are flags, of the samples for which they are set.

    With a stride, `axes` are those of all of grad_input, whose places are its multiples of grad_output's cells.
    """
    rows = weight.rows * weight.groups
    positions = tuple(axis.positions for axis in axes)
    sizes = (samples, *positions, rows) if target.last else (samples, rows, *positions)
    place, layout = target.of(axes)
    edge = source.edge
    if edge is not None:
        axes = edge.placed(axes)
    taps = limits.own_taps(axes, stride)
    inner = dict(zip(("weight_z", "weight_y", "weight_x"), tap_strides(weight.layout[2:5], axes)))
    waits = flags.whole != 0
    blocks, turns = in_turns(*blocks_for(prod(sizes)), waits)
    program.add(
        tiles.simple("direct", element, target.accumulate, last=target.last, divided=stride is not None,
                     mode=mode_of(edge), waits=waits),
        (blocks,), **turns,
        source=source.place, weight=weight.place.at(first_tap(weight.layout[2:5], axes)), target=place,
        bias=target.bias, flag=flags.whole, some=flags.some, **flags.of_samples(), count=prod(sizes),
        channels=weight.channels, **divided(rows=weight.rows), **taps,
        **five(sizes), **axes_arguments(axes), **strides(source=source.layout), weight_group=weight.group,
        weight_row=weight.row, weight_channel=weight.channel, **inner, bias_row=target.bias_stride,
        target_row=layout.channel, **{f"target_{n}": s for n, s in zip("nzyx", layout[:1] + layout[2:5])},
        **edge_arguments(edge, element, stride or (1, 1, 1)))


def is_pointwise(axes: Axes, source: Packed, samples: int) -> bool:
    """Whether position m of so many samples reads the m-th of cells that lie one behind the other, by one tap."""
    return reads_each_cell(axes) and are_dense(
        (samples, *(axis.size for axis in axes)), (source.outer, source.z, source.y, source.x))


def gather(
    program: Program, source: Packed, weight: Weight, packed_weight: Ref, target: Target, axes: Axes, samples: int,
    element: Element, way: str, tile: Tile, parts: int, partial: Ref | None, flags: Flags,
    cells: tuple[int, int, int] = (1, 1, 1), steps: Sequence[int] = (0, 0, 0),
) -> None:
    """A piece of forward or grad_input as a product of tiles, and the sum of its parts.

    Of each channel there are as many rows as `cells`, which lie `steps` bytes apart in the target.
    """
    positions, taps = tuple(axis.positions for axis in axes), prod(axis.taps for axis in axes)
    total, channels = samples * prod(positions), weight.rows * weight.groups
    weight = weight._replace(rows=weight.rows * element.parts)
    rows, real = weight.rows * weight.groups, element.in_tiles
    if element.result:
        real = real.summed
    if element.parts == 2 and partial is None:
        cells, steps = (1, 1, 2), (0, 0, element.part_size)
    pointwise = is_pointwise(axes, source, samples)
    inner_chunks = source.chunks * tiles.held(way, real).size // real.size
    chunks = taps * inner_chunks
    of_tap = source.chunks * 16
    inner = (weight.kernel[1] * weight.kernel[2] * of_tap, weight.kernel[2] * of_tap, of_tap)
    of_row = prod(weight.kernel) * of_tap
    place, layout = target.of(axes)
    part_bytes = total * rows * element.part_size
    if partial is not None:
        place, layout = partial, _of_parts(target, rows, positions, element)
    tiles_n = -(-weight.rows // tile.bn)
    program.add(
        tiles.product("gather", way, real, tile, partial is not None, target.accumulate and partial is None,
                      prod(cells) > 1, pointwise),
        (-(-total // tile.bm) * tiles_n, weight.groups, parts), threads=tile.threads, shared=tile.shared,
        blocks=tile.blocks, source=source.place, weight=packed_weight.at(first_tap(inner, axes)),
        weight_map=Matrix(packed_weight, of_row // 2, rows, of_row, tile.bn), target=place,
        bias=target.bias if partial is None else 0, flag=flags.whole if partial is None else 0,
        **divided(tiles_n=tiles_n), positions=total, **axes_arguments(axes), source_n=source.outer,
        source_z=source.z, source_y=source.y, source_x=source.x, source_group=source.group, chunks=chunks,
        stages=-(-chunks * 16 // (tile.line * parts)),
        **divided(inner=inner_chunks), **taps_arguments(axes), rows=weight.rows, weight_row=of_row,
        weight_group=weight.rows * of_row,
        **dict(zip(("weight_z", "weight_y", "weight_x"), tap_strides(inner, axes))), target_n=layout.outer,
        target_channel=layout.channel, target_z=layout.z, target_y=layout.y, target_x=layout.x,
        target_group=weight.rows // prod(cells) * layout.channel, target_part=part_bytes, bias_row=target.bias_stride,
        bias_group=weight.rows // prod(cells) * target.bias_stride, **divided(rz=cells[0], ry=cells[1], rx=cells[2]),
        **dict(zip(("row_z", "row_y", "row_x"), steps)), bias_x=steps[2] if element.parts == 2 else 0,
        adjacent=int(are_adjacent(place, layout, target.layout.aligned or partial is not None, (samples, *positions),
                                  weight.rows, real if partial is None else real.summed)))
    if partial is not None:
        to, read = target.of(axes), layout._replace(channel=layout.channel * element.parts)
        finish(program, target._replace(place=to[0]), (samples, channels, *positions), to[1][:5], partial, read[:5],
               part_bytes, parts, element, flags=flags)


def _of_parts(target: Target, rows: int, positions: Sequence[int], element: Element) -> Layout:
    """How a part of a sum lies: in the target's order, so that both are read and stored in whole sectors."""
    size, (z, y, x) = element.part_size, positions
    cell, channel = (rows * size, size) if target.last or element.parts > 1 else (size, z * y * x * size)
    return Layout(rows * z * y * x * size, channel, y * x * cell, x * cell, cell)


def are_adjacent(
    place: Ref, layout: Layout, is_aligned: bool, sizes: Sequence[int], rows: int, element: Element,
) -> bool:
    """Whether channels of a target of (samples, z, y, x) are neighbours in memory, and whole words of what tiles store
    of them at once: two results, four of 16 bits. `is_aligned`: the array begins at a multiple of 16."""
    word = max(8, 2 * element.result_size)
    steps = [place.offset, rows * element.result_size, *(
        step for step, n in zip((layout.outer, *layout[2:5]), sizes) if n > 1)]
    return is_aligned and layout.channel == element.result_size and not any(step % word for step in steps)


def scan(program: Program, operand: Operand, samples: int, element: Element, flags: Flags) -> None:
    """Set the flags where an element of the operand, which tiles read in place, is spoiled."""
    outer, _, *steps = operand.layout[:5]
    chunks = operand.groups * operand.channels * element.size // 16
    for first, (*others, last) in limits.boxes((samples, *operand.size, chunks)):
        box = (*others, -(-last // packing.SCANNED))
        program.add(
            tiles.simple("scan", element), blocks_for(prod(box)), last=last,
            source=operand.place.at(limits.distance(first, (outer, *steps, 16))), flag=flags.some,
            **flags.of_samples(first[0]), count=prod(box), **five(box), **numbered("stride", (outer, *steps, 16)))


def correlate(
    program: Program, x: Packed, y: Packed, partial: Ref, axes: Axes, positions: dict[str, int],
    sizes: tuple[int, int, int, int], element: Element, way: str, tile: Tile,
) -> None:
    """The parts of grad_weight as products of tiles: (rows, columns) for each of (groups, parts)."""
    rows, columns, groups, parts = sizes
    tiles_n = -(-columns // tile.bn)
    row = columns * element.part_size
    own, held = element.in_tiles, tiles.held(way, element.in_tiles)
    x_chunks, row_chunks = (operand.chunks * held.size // own.size for operand in (x, y))
    pointwise = is_pointwise(axes, x, positions["positions"] // prod(axis.positions for axis in axes))
    program.add(
        tiles.product("correlate", way, own, tile, True, False, pointwise=pointwise),
        (-(-rows // tile.bm) * tiles_n, groups, parts), threads=tile.threads, shared=tile.shared,
        blocks=tile.blocks, x=x.place, y=y.place, target=partial, **divided(tiles_n=tiles_n),
        stages=-(-positions["part_positions"] * held.size // tile.line),
        **positions, **axes_arguments(axes), source_n=x.outer, source_z=x.z, source_y=x.y, source_x=x.x,
        source_group=x.group, y_position=y.x, y_group=y.group, row_chunks=row_chunks,
        chunks=x_chunks * prod(axis.taps for axis in axes), **divided(inner=x_chunks), **taps_arguments(axes),
        rows=rows, target_row=row, target_group=rows * row, target_part=groups * rows * row, bias=0, bias_row=0)


def columns_arguments(g: Geometry, rows: Layout) -> dict[str, int]:
    """Where columns (batch, channels * taps, positions) lie; outer taps (see _outer) are others of the channel's."""
    return {"columns_n": rows.outer, "columns_channel": rows.channel * prod(g.kernel_size) * g.volumes[1],
            "columns_row": rows.channel, "columns_position": rows.x}


def unfold(
    program: Program, g: Geometry, axes: Axes, samples: int, x: Ref, cells: Layout, y: Ref, rows: Layout,
    element: Element, edge: Edge | None = None,
) -> None:
    """The columns of so many samples."""
    axes = axes if edge is None else edge.placed(axes)
    count = samples * g.in_channels * prod(g.kernel_size) * prod(g.output_size)
    program.add(
        tiles.simple("unfold", element, mode=mode_of(edge)), blocks_for(count), source=x, columns=y, count=count,
        **edge_arguments(edge, element),
        **divided(channels=g.in_channels), **taps_arguments(axes), **axes_arguments(axes), **strides(source=cells),
        **columns_arguments(g, rows))


def fold(
    program: Program, g: Geometry, axes: Axes, samples: int, x: Ref, cells: Layout, y: Ref, rows: Layout,
    element: Element, accumulate: bool,
) -> None:
    """The sums of the columns of so many samples, added to x where accumulate."""
    sizes = (samples, g.in_channels, *g.input_size)
    settings = {name: value for name, value in axes_arguments(axes).items() if name[:5] not in ("size_", "step_")}
    program.add(
        tiles.simple("fold", element, accumulate), blocks_for(prod(sizes)), columns=y, target=x, count=prod(sizes),
        **five(sizes), **{f"k{name}": axis.taps for name, axis in zip("zyx", axes)}, **settings,
        **divided(**{f"step_{name}": axis.step for name, axis in zip("zyx", axes)}), **columns_arguments(g, rows),
        **strides(target=cells))


def places(program: Program, sizes: Sequence[int], last: bool, size: int) -> Target:
    """Room for results of (samples, channels, z, y, x), of so many bytes each: all places of a padded input, say."""
    samples, channels, z, y, x = sizes
    cell = size * (channels if last else 1)
    layout = Layout(channels * z * y * x * size, size if last else z * y * x * cell, y * x * cell, x * cell, cell, True)
    return Target(program.reserve(samples * layout.outer), layout, 0, 0, False)


def adjoint(
    program: Program, partial: Ref, read: Layout, length: tuple[int, int, int], target: Target,
    sizes: Sequence[int], edge: Edge, begin: Sequence[int], element: Element,
) -> None:
    """The sums over the places of a padded input, `length` long, to the cells of (samples, channels, z, y, x)."""
    samples, channels, *cells = sizes
    turns, first = edge.turns(length)
    ordered = (samples, *cells, channels) if target.last else sizes
    by_axis = {"begin": begin, "size": edge.size, "length": length, "first": first, "turns": turns,
               "period": edge.periods()}
    program.add(
        tiles.simple("adjoint", element, target.accumulate, last=target.last, mode=edge.mode), blocks_for(prod(sizes)),
        partial=partial, target=target.place, bias=target.bias, count=prod(sizes), bias_stride=target.bias_stride,
        **five(ordered), **strides(partial=read, target=target.layout),
        **{f"{name}_{axis}": value for name, values in by_axis.items() for axis, value in zip("zyx", values)})


def channel_sum(
    program: Program, outer: Sequence[int], size: Sequence[int], layout: Layout, to: Layout,
    element: Element, accumulate: bool, apart: bool,
) -> None:
    """The sum of each channel of (batch, channels, *size) to "out", added to it where accumulate.

    apart: of each sample alone, in parts whose number does not depend on the batch.
    """
    batch, channels = outer
    most, wanted = limits.MOST // prod(size), max(1, tiles.NOMINAL_BLOCKS // channels)
    parts = limits.cut(batch, prod(size), wanted, plain.THREADS, most)
    if apart:
        parts = limits.cut(1, prod(size), -(-wanted // tiles.NOMINAL_BATCH), plain.THREADS, most)
        most = min(most, tiles.MOST_SAMPLES)
    part = channels * element.real_size

    def summed(first: int, at: Ref, slots: int, samples: int) -> None:
        target = Target(Ref("out", first * to.sample), to, 0, 0, accumulate)
        finish(program, target, (channels, 1, 1, 1, 1), to[:5], at, (element.real_size, 0, 0, 0, 0), part, slots,
               element, samples=samples)

    total = parts.count(batch)
    partial = program.reserve(total * part)
    done = 0
    for first, count in limits.chunks_of_samples(batch, most, parts.samples):
        slots = parts.count(count)
        program.add(
            tiles.simple("channel_sum", element), (channels, slots), shared=plain.THREADS * element.real_size,
            source=Ref("source", first * layout.outer), target=partial.at(done * part),
            **parts.arguments(count, prod(size)), rounds=-(-parts.positions // plain.THREADS),
            **divided(pz=size[0], py=size[1], px=size[2]), **strides(source=layout), target_part=part)
        if apart:
            summed(first, partial.at(done * part), parts.cuts, count)
        done += slots
    if not apart:
        summed(0, partial, total, 0)
