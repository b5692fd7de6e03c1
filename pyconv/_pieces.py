"""Geometry to pieces: a map as those that kernels run.

forward is one piece (step = stride). grad_input is one piece for each phase of the stride: cells that agree modulo the
stride read the same taps, and grad_output without gaps (step = 1), so nothing is scattered. grad_weight reads as
forward does. Standard library only.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

from pyconv._edges import NO_FOLDS, Folds, Stretch, folds, goes_round, stretches
from pyconv._geometry import Geometry, whole_size
from pyconv._piece import Axes, Axis, Piece, Strides, Triple, has_padding

MOST_LAST = 256  # output channels that lie last and are read position by position: of more these lie too far apart
WIDEST = 16  # lanes of the longest vector
MANY_SUMMED, MOST_TURNS = 64, 4  # of grad_input in turns: output channels of a group at least, and turns at most
TAPS = 512  # most taps of a piece: keeps a thread's scratch under its bound whatever the kernel size


class Operands(NamedTuple):
    """A map's operands as the geometry has them, all axes and all taps."""

    batch: int
    rows: int
    channels: int
    source: Strides
    target: Strides
    weight: Strides


def copied(map: str, g: Geometry) -> tuple[bool, bool, bool]:
    """Whether source, target and weight do not hold the real numbers that kernels want: blocks of them are copied."""
    reads, writes = (g.parts > 1 or converts for converts in g.converts)
    return (reads, reads, writes) if map == "grad_weight" else (reads, writes, reads)


def _dense(groups: int, channels: int, size: Triple, volumes: int, last: bool) -> Strides:
    plane, all_channels = prod(size) * volumes, groups * channels
    if last:
        inner = (size[1] * size[2] * all_channels, size[2] * all_channels, all_channels)
        return Strides(0, all_channels * plane, 1, inner, channels)
    return Strides(0, all_channels * plane, plane, (size[1] * size[2], size[2], 1), channels * plane)


def _of_parts(whole: Operands, parts: int) -> Operands:
    """Operands whose elements have so many parts: all of them count."""
    def scaled(x: Strides) -> Strides:
        base, batch, channel, axes, group = x
        return Strides(base * parts, batch * parts, channel * parts, tuple(s * parts for s in axes), group * parts)

    batch, rows, channels, *strides = whole
    return Operands(batch, rows * parts, channels * parts, *map(scaled, strides))


def _of_cells(whole: Operands, cell: int, summed: int) -> Operands:
    """Operands of which so many channels are one cell, and there are a multiple of so many cells."""
    source, weight = (x._replace(channel=cell * x.channel) for x in (whole.source, whole.weight))
    return whole._replace(channels=-(-whole.channels // (cell * summed)) * summed, source=source, weight=weight)


def _operands(map: str, g: Geometry) -> Operands:
    ins, outs, kernel = g.in_channels // g.groups, g.out_channels // g.groups, prod(g.kernel_size) * g.volumes[1]
    inner = (g.kernel_size[1] * g.kernel_size[2], g.kernel_size[2], 1)
    x = _dense(g.groups, ins, whole_size(g), g.volumes[0], g.x_last)
    x = x._replace(base=sum(n * s for n, s in zip(g.before, x.axes)))
    y = _dense(g.groups, outs, g.output_size, g.volumes[2], g.y_last)
    if is_swapped(map, g):
        w = Strides(0, kernel, ins * kernel, inner, outs * ins * kernel)
        return Operands(ins, g.batch, outs, w, x._replace(batch=x.channel, channel=x.batch), y)
    if map == "grad_input":
        whole = Operands(g.batch, ins, outs, y, x, Strides(0, kernel, ins * kernel, inner, outs * ins * kernel))
    else:
        batch = 1 if map == "grad_weight" and g.per_sample else g.batch
        whole = Operands(batch, outs, ins, x, y, Strides(0, ins * kernel, kernel, inner, outs * ins * kernel))
    return _of_cells(whole, g.cell, max(1, g.summed)) if g.cell > 1 else _of_parts(whole, g.parts)


def takes_last_weight(map: str, g: Geometry) -> bool:
    """Whether a map can read or write a weight whose input channels lie last: not one whose taps become rows in
    grad_input, nor one that changes places with the source there; one of a dense layer, if the input's lie last too."""
    if is_dense_layer(map, g):
        return g.groups == 1
    return g.rank <= 3 and not (is_swapped(map, g) or _has_taps_for_rows(map, g))


def with_last_weight(piece: Piece, g: Geometry) -> Piece:
    """A piece of such a weight, made for one in C order, from which every choice follows."""
    if not any(piece.weight.axes):  # of a dense layer: all channels of all cells, in whichever order
        return piece
    kernel, ins, weight = prod(g.kernel_size), g.in_channels // g.groups, piece.weight
    batch, channel = (1 if stride == kernel else stride for stride in (weight.batch, weight.channel))
    axes = tuple(ins * stride for stride in weight.axes)
    return piece._replace(weight=Strides(ins * weight.base, batch, channel, axes, weight.group))


def _forward_axes(g: Geometry, a: int) -> list[Axis]:
    return [Axis(g.output_size[a], g.input_size[a], g.stride[a], -g.padding[a], g.dilation[a], g.kernel_size[a])]


def _phase(g: Geometry, a: int, phase: int, cells: Stretch) -> Axis:
    """Every stride-th cell of a stretch from `phase` on: which taps reach them, and from where in grad_output."""
    stride, dilation, reach = g.stride[a], g.dilation[a], cells.first + phase + g.padding[a]
    every = stride // gcd(stride, dilation)
    first = next((k for k in range(min(every, g.kernel_size[a])) if (reach - dilation * k) % stride == 0), None)
    taps = 0 if first is None else -(-(g.kernel_size[a] - first) // every)
    axis = Axis(
        -(-(cells.length - phase) // stride), g.output_size[a], 1,
        0 if first is None else (reach - dilation * first) // stride, -dilation * every // stride, taps,
        start=cells.start + cells.slope * phase, lattice=cells.slope * stride, first=first or 0, every=every)
    return axis if cells.first == 0 else axis.met()


def is_swapped(map: str, g: Geometry) -> bool:
    """Whether grad_input reads the weight and takes grad_output for weights: where positions are far fewer than taps.

    T is symmetric enough for that: the taps are then the output's positions, the samples are the weight's channels, and
    the rows are the samples. Rows are few in a small batch, so it has to save much; the batch itself has no say.
    """
    return map == "grad_input" and all(d == 1 or k == 1 for d, k in zip(g.dilation, g.kernel_size)) and (
        prod(-(-k // s) for k, s in zip(g.kernel_size, g.stride)) >= 8 * prod(g.output_size)) and (
        not is_dense_layer(map, g) and not is_disjoint(g) and g.padding_mode == "zeros" and not _is_copied(g))


def _swapped_axes(g: Geometry, a: int) -> list[Axis]:
    return [Axis(g.input_size[a], g.kernel_size[a], 1, g.padding[a], -g.stride[a], g.output_size[a])]


def _met_phases(g: Geometry, a: int, cells: Stretch) -> list[int]:
    """The phases of the stride that some tap reaches, and one of those that none does, which may be many."""
    stride, dilation, first = g.stride[a], g.dilation[a], cells.first + g.padding[a]
    taps = range(min(stride // gcd(stride, dilation), g.kernel_size[a]))
    count = min(stride, cells.length)
    met = {phase for phase in ((dilation * k - first) % stride for k in taps) if phase < count}
    none = next((phase for phase in range(count) if phase not in met), None)
    return sorted(met if none is None else met | {none})


def _grad_input_axes(
    g: Geometry, a: int, fold: tuple[int, int] = (0, 0), may_omit: bool = False
) -> list[list[Axis]]:
    """The phases of the stride; then those of cells beyond the edges, list after list to be added to the input's.

    With folds, those are positions of the same axis. Phases without taps may be omitted, but for one.
    """
    if any(fold):
        low, high = fold
        return [[_phase(g, a, 0, Stretch(-low, low + g.input_size[a] + high, 0, 1))]]
    found = []
    for cells in stretches(g, a):
        phases = [_phase(g, a, phase, cells) for phase in (
            _met_phases(g, a, cells) if may_omit else range(min(g.stride[a], cells.length)))]
        found += [phases] if cells.slope else [[phase] for phase in phases]  # those of one cell one after the other
    return found


def _reads_edges(map: str, g: Geometry) -> bool:
    """Whether the source has cells beyond its edge."""
    return map != "grad_input" or goes_round(g)


def read_channels(map: str, g: Geometry) -> int:
    """Channels of source in a group."""
    return (g.out_channels if map == "grad_input" else g.in_channels) // g.groups


def _is_copied(g: Geometry) -> bool:
    return any(copied("forward", g))


def _place(axes: Axes, map: str, g: Geometry, wave: int, accumulate: bool, **changes: Any) -> Piece:
    """The piece of a map that has these axes, but for what changes in the map's operands."""
    batch, rows, channels, source, target, weight = _operands(map, g)._replace(**changes)
    return Piece(
        axes, batch, rows, channels, source,
        target._replace(base=target.base + sum(x.start * s for x, s in zip(axes, target.axes)),
                        axes=tuple(x.lattice * s for x, s in zip(axes, target.axes))),
        weight._replace(base=sum(x.first * s for x, s in zip(axes, weight.axes)),
                        axes=tuple(x.every * s for x, s in zip(axes, weight.axes))),
        wave, accumulate, swapped=is_swapped(map, g), patched=copied(map, g), parts=g.parts,
        several=read_channels(map, g) if g.cell > 1 else 0,
        edge=g.padding_mode if _reads_edges(map, g) else "zeros")


def _flat(piece: Piece) -> Piece:
    """The same piece with neighbouring axes made one where its positions read all their cells, each its own."""
    axes, source, target = list(piece.axes), piece.source.axes, piece.target.axes
    for a in (1, 0):
        outer, inner = axes[a], axes[2]
        if all(axes[b].positions == 1 for b in range(a + 1, 2)) and all(
                (x.positions, x.step, x.offset, x.taps) == (x.size, 1, 0, 1) for x in (outer, inner)) and (
                source[a] == inner.size * source[2] and target[a] == inner.size * target[2]) and (
                piece.row_taps == ((1, 0),) * 3 and not piece.turned):
            axes[2] = inner._replace(positions=outer.positions * inner.positions, size=outer.size * inner.size)
            axes[a] = Axis(1, 1, 1, 0, 0, 1)
    return piece._replace(axes=tuple(axes))


def _boxes(axes: Axes) -> Iterator[Axes]:
    """The axes with their taps cut so that a piece has at most TAPS of them, the last axes kept whole the longest."""
    most = TAPS
    cut = []
    for axis in reversed(axes):
        cut.append(axis.within(max(1, min(most, axis.taps))))
        most //= max(1, axis.taps)
    yield from product(*reversed(cut))


def pieces(map: str, g: Geometry, may_exchange: bool = True, lanes: int = WIDEST) -> list[Piece]:
    """The pieces of a map, in waves: those of one wave can run at the same time, wave after wave.

    A piece without taps clears its positions: it leads where some cells of grad_input meet no tap. Where x is a part of
    an array, others follow that clear what is around it. grad_weight's operands may not change places (see is_by_rows,
    which looks at the lanes of a vector) where another plan takes turns with this one.
    """
    if is_dense_layer(map, g):
        return [_dense_layer(map, g)]
    if map == "grad_weight" and may_exchange and is_by_rows(g, lanes):
        return [_by_rows(g)]
    if _has_taps_for_rows(map, g):
        return _in_turns(g) if is_in_turns(g) else _disjoint(g)
    found, waves = [], 0
    beyond = _folds(map, g)
    options = [_options(map, g, a, fold) for a, fold in enumerate(beyond)]
    fill = any(not axis.taps for lists in options for axis in lists[0])
    for number, stretch in enumerate(product(*options)):
        before = waves
        for axes in product(*stretch):
            if not all(axis.taps for axis in axes):
                continue
            for wave, box in enumerate(_boxes(axes), start=before + 1):
                adds = (number > 0 or wave > before + 1) and map != "grad_weight"
                piece = _place(box, map, g, wave, adds)
                found.append(_flat(piece) if beyond == NO_FOLDS else piece._replace(
                    folded=g.padding_mode, folds=beyond))
                waves = max(waves, wave)
    if fill:
        return [_fill(map, g), *found]
    around = _around(g) if map == "grad_input" else ()
    return found + [_place(axes, map, g, wave, False, channels=0) for wave, axes in enumerate(around, start=waves + 1)]


def _folds(map: str, g: Geometry) -> Folds:
    return folds(g) if map == "grad_input" else NO_FOLDS


def _options(map: str, g: Geometry, a: int, fold: tuple[int, int] = (0, 0)) -> list[list[Axis]]:
    """The pieces of an axis, in lists whose members write different cells; the first writes all that there are."""
    if map == "grad_input" and not is_swapped(map, g):
        return _grad_input_axes(g, a, fold, True)
    return [_swapped_axes(g, a) if map == "grad_input" else _forward_axes(g, a)]


def phases(map: str, g: Geometry) -> list[Axes]:
    """The axes of forward, or of each phase of grad_input, with all their taps in one box."""
    return list(product(*(_grad_input_axes(g, a)[0] if map == "grad_input" else _forward_axes(g, a)
                          for a in range(3))))


def undivided(g: Geometry) -> Axes:
    """All cells of grad_input: under tap t, cell q reads place q + padding - dilation * t; grad_output is there at
    multiples of the stride."""
    return tuple(Axis(cells, places, 1, p, -d, k) for cells, places, p, d, k in zip(
        g.input_size, g.output_size, g.padding, g.dilation, g.kernel_size))


def reads_each_cell(axes: Axes) -> bool:
    """Whether position m reads the m-th cell of source, by one tap."""
    return all(axis.positions == axis.size and (axis.step, axis.offset, axis.taps) == (1, 0, 1) for axis in axes)


def groups_of_vector(map: str, g: Geometry, pieces: list[Piece], lanes: int) -> int:
    """How many small groups one vector holds where channels lie last: of a cell, all of their channels lie together."""
    width, outs = g.in_channels // g.groups, g.out_channels // g.groups
    able = map != "grad_weight" and g.x_last and g.y_last and g.padding_mode == "zeros" and not _is_copied(g) and (
        lanes >= 8 and 1 < width == outs < lanes and lanes % width == 0 and g.groups % (lanes // width) == 0)
    plain = all(not piece.turned and not piece.swapped and piece.row_taps == ((1, 0),) * 3 for piece in pieces)
    return lanes // width if able and plain else 1


def weave(piece: Piece, groups: int) -> Piece:
    """The piece with so many groups as one, of all their rows; none of these reads another group's channels."""
    source, target, weight = (
        strides._replace(group=groups * strides.group) for strides in (piece.source, piece.target, piece.weight))
    return piece._replace(
        rows=groups * piece.rows, source=source, target=target, weight=weight, woven=piece.channels,
        weight_woven=piece.weight.group)


def _cleared(starts: Iterable[int], sizes: Iterable[int]) -> Axes:
    return tuple(Axis(n, 0, 1, 0, 0, 0, start) for start, n in zip(starts, sizes))


def _fill(map: str, g: Geometry) -> Piece:
    to_x = map == "grad_input"
    axes = _cleared((-n for n in g.before), whole_size(g)) if to_x else _cleared((0, 0, 0), g.output_size)
    return _place(axes, map, g, 0, False, channels=0)


def _around(g: Geometry) -> Iterator[Axes]:
    """What of an array is not x, in boxes: what is before and behind it along the first axis, and so on in the rest."""
    starts, sizes = [-n for n in g.before], list(whole_size(g))
    for a, n in enumerate(g.input_size):
        for start, count in ((-g.before[a], g.before[a]), (n, g.behind[a])):
            starts[a], sizes[a] = start, count
            if count:
                yield _cleared(starts, sizes)
        starts[a], sizes[a] = 0, n


def is_dense_layer(map: str, g: Geometry) -> bool:
    """Whether the kernel covers the input: one position, each cell under its own tap, as in a fully connected layer.
    Input and weight have their channels last both, or neither."""
    return g.kernel_size == g.input_size and g.output_size == (1, 1, 1) and not any(g.padding) and all(
        d == 1 or k == 1 for d, k in zip(g.dilation, g.kernel_size)) and not (
        g.x_last and g.groups > 1 or (g.per_sample and map == "grad_weight") or _is_copied(g)) and (
        g.x_last == g.w_last and g.volumes == (1, 1, 1))


def _dense_layer(map: str, g: Geometry) -> Piece:
    """Cells become channels and samples become positions: matrix products, whose operands are turned block by block."""
    taps, rows, channels = prod(g.kernel_size), g.out_channels // g.groups, g.in_channels // g.groups
    x = Strides(0, 0, 1, (0, 0, g.in_channels * taps), channels * taps)
    y = Strides(0, 0, 1, (0, 0, g.out_channels), rows)
    one = Axis(1, 1, 1, 0, 0, 1)
    axes = (one, one, Axis(g.batch, g.batch, 1, 0, 0, 1))
    weight = Strides(0, channels * taps, 1, (0, 0, 0), rows * channels * taps)
    if map != "grad_input":
        return Piece(axes, 1, rows, channels * taps, x, y, weight, 1, False, turned=True)
    weight = weight._replace(batch=1, channel=channels * taps)
    x = x._replace(channel=taps)
    return Piece(axes, 1, channels * taps, rows, y, x, weight, 1, False, ((1, 0), (1, 0), (taps, 1)), g.x_last, True)


def is_by_rows(g: Geometry, lanes: int = WIDEST) -> bool:
    """Whether grad_weight has rows of input channels, and reads grad_output.

    They lie side by side in a weight of one tap, which is then stored row by row, where output channels have to be
    turned. But then the input is turned to vectors, and not grad_output: an element of the weight gains, as measured,
    three quarters of what a cell of more channels costs. Of a batch, the next power of two decides: see _of_batches.
    Where channels lie last no operand is turned, but the fewer are copied to vectors, and the weight is turned as ever;
    up to half a vector of output channels would be too few for vectors, however they lie.
    """
    batch = 1 if g.per_sample else 1 << (g.batch - 1).bit_length()
    ins, outs, positions = g.in_channels // g.groups, g.out_channels // g.groups, batch * prod(g.output_size)
    few = g.x_last and outs <= lanes // 2
    pays = few or (g.x_last == g.y_last or g.out_channels == 1) and 4 * positions * (ins - outs) < 3 * ins * outs
    return pays and g.kernel_size == g.stride == g.volumes == (1, 1, 1) and g.input_size == g.output_size and (
        ins % WIDEST == 0 and not any(g.padding)) and not (
        g.x_last and g.out_channels > MOST_LAST or _is_copied(g) or is_dense_layer("grad_weight", g))


def _by_rows(g: Geometry) -> Piece:
    whole = _operands("grad_weight", g)
    return _flat(_place(
        tuple(_forward_axes(g, a)[0] for a in range(3)), "grad_weight", g, 1, False, rows=whole.channels,
        channels=whole.rows, source=whole.target, target=whole.source,
        weight=whole.weight._replace(batch=whole.weight.channel, channel=whole.weight.batch)))._replace(exchanged=True)


def is_disjoint(g: Geometry) -> bool:
    """Whether no two taps of any positions meet in a cell, and none falls outside the input."""
    return g.kernel_size != (1, 1, 1) and not has_padding(tuple(_forward_axes(g, a)[0] for a in range(3))) and all(
        y == 1 or s > d * (k - 1) for y, s, d, k in zip(g.output_size, g.stride, g.dilation, g.kernel_size)) and (
        not _is_copied(g) and g.volumes == (1, 1, 1))


def _disjoint(g: Geometry) -> list[Piece]:
    """grad_input as one matrix product whose rows are the taps of a channel, stored cell by cell."""
    whole = _operands("grad_input", g)
    kernel = prod(g.kernel_size)
    piece = _place(disjoint_axes(g), "grad_input", g, 1, False)
    piece = piece._replace(
        rows=whole.rows * kernel,
        weight=Strides(0, 1, whole.rows * kernel, (0, 0, 0), whole.weight.group),
        row_taps=tuple((k, d * s) for k, d, s in zip(g.kernel_size, g.dilation, whole.target.axes)))
    return [piece] if is_covered(g) else [_fill("grad_input", g), piece]


def _has_taps_for_rows(map: str, g: Geometry) -> bool:
    """Whether the pieces are grad_input's matrix products whose rows are taps, of which none lies in the padding. Where
    input channels lie last, but for a few, phases of the stride write vectors of them, while such rows would be turned.
    """
    few = not g.x_last or g.in_channels < WIDEST
    return map == "grad_input" and (is_disjoint(g) and few or is_in_turns(g))


def disjoint_axes(g: Geometry) -> Axes:
    """The positions of grad_output, each at the first cell of its own that it writes."""
    return tuple(Axis(n, n, 1, 0, 0, 1, -p, s) for n, p, s in zip(g.output_size, g.padding, g.stride))


def is_covered(g: Geometry) -> bool:
    """Whether the cells of disjoint taps are all there are: those of one position, or of neighbours."""
    return not any(g.padding) and all(
        n == k * y and (s == k or y == 1) and (d == 1 or k == 1)
        for n, k, s, y, d in zip(g.input_size, g.kernel_size, g.stride, g.output_size, g.dilation))


def _apart(g: Geometry) -> int:
    """How many neighbouring taps along x no two positions have in the same cell: at stride 8, undilated, 8."""
    return (g.stride[2] - 1) // g.dilation[2] + 1


def is_in_turns(g: Geometry) -> bool:
    """Whether grad_input has taps for rows, as `_disjoint`, in a few turns of as many as do not meet: along one axis,
    without padding, where a group has one input channel, so that a phase of the stride would have one row."""
    channels = g.in_channels // g.groups, g.out_channels // g.groups
    return channels[0] == 1 and channels[1] >= MANY_SUMMED and g.kernel_size[:2] == g.stride[:2] == (1, 1) and (
        1 < _apart(g) < g.kernel_size[2] <= MOST_TURNS * _apart(g) and g.output_size[2] > 1) and (
        not has_padding(tuple(_forward_axes(g, a)[0] for a in range(3)))) and (
        not _is_copied(g) and g.volumes == (1, 1, 1))


def _in_turns(g: Geometry) -> list[Piece]:
    """Each turn's products are added to what is there: to cells that are cleared first, as no turn meets all cells."""
    whole, kernel = _operands("grad_input", g), g.kernel_size[2]
    step, found = g.dilation[2] * whole.target.axes[2], [_fill("grad_input", g)]
    for turn, first in enumerate(range(0, kernel, _apart(g))):
        piece, taps = _place(disjoint_axes(g), "grad_input", g, turn + 1, True), min(_apart(g), kernel - first)
        found.append(piece._replace(
            rows=taps, row_taps=((1, 0), (1, 0), (taps, step)),
            target=piece.target._replace(base=piece.target.base + first * step),
            weight=Strides(first, 1, kernel, (0, 0, 0), whole.weight.group)))
    return found


def _taps(map: str, g: Geometry) -> Iterator[Axes]:
    """The axes, with one tap each, of everything that a map sums."""
    only = Axis.clipped if map == "grad_input" or g.padding_mode == "zeros" else Axis.alone
    for stretch in product(*(_options(map, g, a) for a in range(3))):
        yield from product(*([only(axis, tap) for axis in axes for tap in range(axis.taps)] for axes in stretch))


def exact_pieces(map: str, g: Geometry) -> list[Piece]:
    """The same map with no padded product at all: tap by tap, over the positions that have a cell.

    For operands with NaN or infinities, where a padded zero would multiply them.
    """
    summed = map != "grad_weight"
    return ([_fill(map, g)] if summed else []) + [
        _place(axes, map, g, wave + 1, summed) for wave, axes in enumerate(_taps(map, g))
        if not summed or all(axis.positions for axis in axes)]


def touches_padding(map: str, g: Geometry) -> bool:
    """Whether the pieces multiply padding: some position of some tap lacks its cell."""
    if (map == "grad_input" and is_dense_layer(map, g)) or _has_taps_for_rows(map, g):
        return False
    if _reads_edges(map, g) and g.padding_mode != "zeros":
        return False
    return any(has_padding((axis,)) for a, fold in enumerate(_folds(map, g))
               for axes in _options(map, g, a, fold) for axis in axes)


def whole_piece(g: Geometry) -> Piece:
    """forward with all taps in one piece: what unfold and fold read."""
    return _place(tuple(_forward_axes(g, a)[0] for a in range(3)), "forward", g, 0, False)


def column_pieces(g: Geometry) -> list[Piece]:
    """grad_weight from columns (batch, in_channels * taps, positions): a 1 x 1 convolution of them."""
    whole = _operands("grad_weight", g)
    rows, positions = whole.channels * prod(g.kernel_size), prod(g.output_size) * g.parts
    source = Strides(0, g.groups * rows // g.parts * positions, positions, whole.target.axes,
                     rows // g.parts * positions)
    axes = tuple(Axis(n, n, 1, 0, 0, 1) for n in g.output_size)
    return [_flat(_place(axes, "grad_weight", g, 1, False, channels=rows, source=source, weight=Strides(
        0, rows, g.parts, (0, 0, 0), whole.rows // g.parts * rows)))._replace(edge="zeros")]


def exact_column_pieces(g: Geometry) -> list[Piece]:
    """As `exact_pieces`, from columns: a tap's padded positions are left out."""
    whole = _operands("grad_weight", g)
    taps, positions = prod(g.kernel_size), prod(g.output_size) * g.parts
    columns = Strides(0, g.in_channels * taps * positions, taps * positions, whole.target.axes,
                      whole.channels // g.parts * taps * positions)
    found = []
    for tap, axes in enumerate(_taps("grad_weight", g)):
        read = tuple(a._replace(size=n, step=1, offset=a.start, tap_step=0) for a, n in zip(axes, g.output_size))
        found.append(_place(read, "grad_weight", g, tap + 1, False, source=columns._replace(base=tap * positions)))
    return found
