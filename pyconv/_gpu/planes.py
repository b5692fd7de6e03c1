"""1x1 convolutions of arrays whose channels are planes, cells one behind the other: tiles read these where they lie.

forward and grad_input are, of each sample, products whose reduction goes across the planes; `correlate` makes these,
with channels in the place of positions and samples in that of groups:

    target[sample, row, cell] = sum over channels of weight[channel, row] * source[sample, channel, cell]

A weight's gradient is one along them; `gather` makes that, with rows in the place of positions, channels in that of
rows, and samples in that of taps:

    target[row, channel] = sum over samples and cells of y[sample, row, cell] * x[sample, channel, cell]
"""

from collections.abc import Sequence
from math import prod

from pyconv._gpu import limits, operands, tiles
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.layouts import Layout, axes_arguments, taps_arguments
from pyconv._gpu.limits import divided
from pyconv._gpu.operands import Operand, Weight
from pyconv._gpu.program import Target
from pyconv._gpu.tiles import Element, Tile
from pyconv._piece import ONE, Axes, Axis
from pyconv._pieces import reads_each_cell

MOST_SAMPLES = 2**16 - 1  # of a grid's second axis


def way_of(way: str | None, element: Element) -> str | None:
    """The way in which planes are multiplied: none of what operands are split or converted for, nor warpgroups'."""
    if way is None or element.parts > 1 or way in tiles.SPLITTING or tiles.held(way, element) != element:
        return None
    return tiles.without_warpgroups(way)


def are_planes(place: Ref, layout: Layout, size: Sequence[int], element_size: int) -> bool:
    """Whether an array's channels are planes that begin and end at multiples of 16 bytes, which 32 bits count."""
    cells, step = 1, layout[2:5]
    for n, along in zip(size[::-1], step[::-1]):
        if n > 1 and along != cells * element_size:
            return False
        cells *= n
    return layout.aligned and cells * element_size < 2**31 and not any(
        number % 16 or number < 0 for number in (place.offset, cells * element_size, layout.channel, layout.outer))


# --- forward and grad_input ---


def turned(weight: Weight) -> Weight:
    """The weight with its rows in the place of channels: each line holds a channel's."""
    return weight._replace(row=weight.channel, channel=weight.row, rows=weight.channels, channels=weight.rows)


def are_sums(source: Operand, weight: Weight, target: Target, axes: Axes, element: Element) -> bool:
    """Whether a piece of forward or grad_input can be made here."""
    result = element.result_size
    return (
        weight.groups == 1 and source.edge is None and not target.accumulate and result == element.size
        and reads_each_cell(axes)
        and are_planes(source.place, source.layout, source.size, element.size)
        and are_planes(target.place, target.layout, source.size, result))


def sums(
    made: Program, source: Operand, weight: Weight, target: Target, samples: int, way: str, element: Element,
) -> None:
    """forward or grad_input of so many samples."""
    lines = turned(weight)
    packed = weight.place
    if not operands.is_packed(lines, element):
        packed = made.reserve(operands.weight_bytes(lines, element))
        operands.pack_weight(made, lines, element, 0, packed)
    cells, size = prod(source.size), element.size
    tile = tiles.tile_of(way, element, (weight.rows, cells), samples, kernel="planes")
    tiles_n, row_chunks = -(-cells // tile.bn), operands.chunks_of(weight.rows, element)
    for first, count in limits.chunks_of_samples(samples, MOST_SAMPLES):
        made.add(
            tiles.product("correlate", way, element, tile, False, False, planes=True),
            (-(-weight.rows // tile.bm) * tiles_n, count, 1), threads=tile.threads, shared=tile.shared,
            blocks=tile.blocks, x=source.place.at(first * source.layout.outer), y=packed,
            target=target.place.at(first * target.layout.outer), bias=target.bias, bias_row=target.bias_stride,
            **divided(tiles_n=tiles_n), stages=-(-weight.channels * size // tile.line),
            **limits.Parts(1, 1, weight.channels).arguments(1, weight.channels), source_x=source.layout.channel,
            source_group=source.layout.outer, y_position=row_chunks * 16, y_group=0, row_chunks=row_chunks,
            chunks=cells * size // 16, rows=weight.rows, target_row=target.layout.channel,
            target_group=target.layout.outer, target_part=0, source_n=0, source_z=0, source_y=0, **divided(inner=1),
            **axes_arguments((ONE, ONE, ONE)), **taps_arguments((ONE, ONE, ONE)))


# --- grad_weight ---


def are_products(x: Operand, y: Operand, axes: Axes, element: Element) -> bool:
    """Whether a weight's gradient can be made here."""
    return x.groups == 1 and x.edge is None and reads_each_cell(axes) and all(
        are_planes(one.place, one.layout, one.size, element.size) for one in (x, y))


def evenly(parts: limits.Parts, batch: int) -> limits.Parts:
    """Blocks of as many samples, or of up to half as many, so that none has fewer, if there are such."""
    fewer = range(parts.samples, (parts.samples - 1) // 2, -1)
    return parts._replace(samples=next((samples for samples in fewer if batch % samples == 0), parts.samples))


def short(parts: limits.Parts, positions: int, way: str, part_bytes: int, batch: int) -> limits.Parts:
    """Blocks that are cut so that no part has more positions than are summed well; see tiles.parts_of_correlate."""
    longest, blocks = tiles.LONGEST.get(way, tiles.LONGEST_ON_TENSOR_CORES), parts._replace(cuts=1).count(batch)
    most = min(tiles.MOST_OF_PARTS // (part_bytes * blocks), tiles.MOST_SHORT // blocks)
    return parts._replace(cuts=max(parts.cuts, min(-(-parts.samples * positions // longest), most)))


def products(
    made: Program, x: Operand, y: Operand, parts: limits.Parts, samples: int, target: Ref, row_bytes: int, way: str,
    element: Element, tile: Tile,
) -> None:
    """The parts of grad_weight of so many samples, each (out channels, channels): blocks of samples, each cut alike
    into whole stages, and a last block of fewer samples."""
    of_block = parts.samples
    whole, rest = divmod(samples, of_block)
    rows, inner, part_bytes = y.channels, prod(x.size) * element.size // 16, y.channels * row_bytes
    tiles_n = -(-x.channels // tile.bn)
    for first, count, each in ((0, whole, of_block), (whole, 1, rest)):
        if not count or not each:
            continue
        done, axes = first * of_block, (Axis(1, each, 1, 0, 1, each), ONE, ONE._replace(positions=rows, size=rows))
        made.add(
            tiles.product("gather", way, element, tile, True, False),
            (-(-y.channels // tile.bm) * tiles_n, count, parts.cuts), threads=tile.threads, shared=tile.shared,
            blocks=tile.blocks, source=y.place.at(done * y.layout.outer), weight=x.place.at(done * x.layout.outer),
            target=target.at(first * parts.cuts * part_bytes), bias=0, flag=0, **divided(tiles_n=tiles_n),
            positions=y.channels, **axes_arguments(axes), **taps_arguments(axes), source_n=0,
            source_z=y.layout.outer, source_y=0, source_x=y.layout.channel, source_group=each * y.layout.outer,
            chunks=each * inner, stages=-(-each * inner * 16 // (tile.line * parts.cuts)),
            **divided(inner=inner), rows=x.channels, weight_row=x.layout.channel,
            weight_group=each * x.layout.outer, weight_z=x.layout.outer, weight_y=0, weight_x=0, target_n=0,
            target_channel=element.part_size, target_z=0, target_y=0, target_x=row_bytes,
            target_group=parts.cuts * part_bytes, target_part=part_bytes, bias_row=0, bias_group=0,
            **divided(rz=1, ry=1, rx=1), row_z=0, row_y=0, row_x=0, bias_x=0, adjacent=1)
