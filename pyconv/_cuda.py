"""Backend: NVIDIA GPUs. The three maps as launches of Numba kernels on the caller's stream.

Rooms beside this file, in `_gpu`: `tiles` (which kernels there are and which a problem takes), `gemm`, `fragments` and
`plain` (the kernels), `program` (their launches and arguments), `arrays` (what a GPU array is), `launch` (devices, the
cache of compiled kernels), `ptx` (everything that speaks to the compiler).

A result is a sum in an order that one sample's geometry and the dtype decide (for a weight's gradient, the batch too):
no atomic operations, the same bits in every run.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from pyconv._geometry import Geometry
from pyconv._gpu import launch, plain, program, tiles
from pyconv._gpu.arrays import DeviceArray, DeviceType
from pyconv._gpu.program import ALIGNMENT, MOST, Layout, Operand, Program, Ref, Target, Weight, divided
from pyconv._pieces import Axes, Axis, disjoint_axes, has_padding, is_covered, is_disjoint, phases, undivided

CACHED = 1024
_NOWHERE = Layout(0, 0, 0, 0, 0)


def lifted(array: DeviceArray, rank: int) -> Layout:
    """An array's strides in bytes with three spatial axes; those of axes of one element do not matter and are 0."""
    size = array.dtype.size
    steps = [step * size if length > 1 else 0 for step, length in zip(array.strides, array.shape)]
    if array.shape[1] == 1:
        steps[1] = size  # one channel may count as lying first or last
    outer, channel, *inner = steps
    z, y, x = [0] * (3 - rank) + inner
    return Layout(outer, channel, z, y, x, array.address % 16 == 0)


class Plan:
    """One map on one geometry for one dtype on one device; holds no array and serves any number of concurrent calls."""

    def __init__(
        self, map: str, geometry: Geometry, dtype: DeviceType, algorithm: str, allow_tf32: bool, device: int
    ) -> None:
        self.map, self.geometry, self.algorithm = map, geometry, algorithm
        self.element = tiles.ELEMENTS[dtype.name]
        self.device = launch.device(device)
        self.dtype, self.index = dtype, device
        self.way = tiles.way_of(self.element, algorithm, allow_tf32, self.device.capability)
        self.program = lru_cache(maxsize=64)(self._program)
        contiguous = self._contiguous()
        self.scratch_minimum = self._elements(self._program(contiguous, None, False, 1).scratch)
        self.scratch_size = self._elements(self._program(contiguous, None, False, geometry.batch).scratch)

    def _elements(self, size: int) -> int:
        return -(-(size + ALIGNMENT) // self.element.size) if size else 0

    def run(
        self, first: DeviceArray, second: DeviceArray, out: DeviceArray, bias: DeviceArray | None = None,
        scratch: DeviceArray | None = None, accumulate: bool = False, *, stream: int,
    ) -> None:
        """out = map(first, second) + bias, added to what `out` holds where accumulate."""
        layouts = tuple(self._layout(array, place) for place, array in enumerate((first, second, out)))
        bias_stride = None if bias is None else bias.strides[0] * self.element.size
        made = self._fitting(layouts, bias_stride, accumulate, scratch)
        if made.scratch and scratch is None:
            scratch = out.kind.empty((self._elements(made.scratch),), self.dtype, self.index)
        addresses = {"first": first.address, "second": second.address, "out": out.address}
        if bias is not None:
            addresses["bias"] = bias.address
        if scratch is not None:
            addresses["scratch"] = aligned(scratch)
        made.run(addresses, stream)

    def _fitting(self, layouts: Any, bias_stride: int | None, accumulate: bool, scratch: DeviceArray | None) -> Program:
        """The program whose scratch fits: of as many samples at a time as that allows."""
        made = self.program(layouts, bias_stride, accumulate, self.geometry.batch)
        if scratch is None or self._elements(made.scratch) <= scratch.shape[0]:
            return made
        low, high = 1, self.geometry.batch
        while high - low > 1:
            samples = (low + high) // 2
            made = self.program(layouts, bias_stride, accumulate, samples)
            low, high = (samples, high) if self._elements(made.scratch) <= scratch.shape[0] else (low, samples)
        return self.program(layouts, bias_stride, accumulate, low)

    # --- operands ---

    def _layout(self, array: DeviceArray, place: int) -> Layout:
        """The strides of an operand, all of which have two axes before the spatial ones."""
        return lifted(array, 1 if self.algorithm == "columns" and place == 0 else self.geometry.rank)

    def _contiguous(self) -> tuple[Layout, Layout, Layout]:
        """The layouts of arrays in C order, which need the most scratch."""
        g, size = self.geometry, self.element.size
        def dense(channels: int, inner: Sequence[int]) -> Layout:
            plane = prod(inner) * size
            return Layout(channels * plane, plane, inner[1] * inner[2] * size, inner[2] * size, size)

        x, y = dense(g.in_channels, g.input_size), dense(g.out_channels, g.output_size)
        w = dense(g.in_channels // g.groups, g.kernel_size)
        if self.algorithm == "columns":
            cells = prod(g.output_size) * size
            x = Layout(g.in_channels * prod(g.kernel_size) * cells, cells, 0, 0, size)
        return {"forward": (x, w, y), "grad_input": (y, w, x), "grad_weight": (x, y, w)}[self.map]

    def _x(self, layout: Layout, base: str) -> Operand:
        g = self.geometry
        return Operand(Ref(base), layout, g.input_size, g.in_channels // g.groups, g.groups)

    def _y(self, layout: Layout, base: str) -> Operand:
        g = self.geometry
        return Operand(Ref(base), layout, g.output_size, g.out_channels // g.groups, g.groups)

    # --- programs ---

    def _program(self, layouts: Any, bias_stride: int | None, accumulate: bool, samples: int) -> Program:
        made = Program(self.device)
        if self.map == "grad_weight":
            self._weight_program(made, layouts, accumulate, samples)
        else:
            bias = Ref("bias") if bias_stride is not None else 0
            target = Target(Ref("out"), layouts[2], bias, bias_stride or 0, accumulate)
            self._summed_program(made, layouts, target, samples)
        return made

    def _summed_program(self, made: Program, layouts: Any, target: Target, samples: int) -> None:
        """forward and grad_input: sums over taps and the channels of a group."""
        g = self.geometry
        ins, outs, w = g.in_channels // g.groups, g.out_channels // g.groups, layouts[1]
        if self.map == "forward":
            source, rows, row, channel = self._x(layouts[0], "first"), outs, w.outer, w.channel
        else:
            source, rows, row, channel = self._y(layouts[0], "first"), ins, w.channel, w.outer
        weight = Weight(Ref("second"), w, row, channel, outs * w.outer, rows, source.channels, g.groups, g.kernel_size)
        pieces = phases(self.map, g)
        work = [axes for axes in pieces if all(axis.taps for axis in axes)]
        apart = self.map == "grad_input" and is_disjoint(g)
        tiled = self.way is not None and g.groups < 2**16 and not tiles.is_direct(
            self.way, self.element, rows * prod(g.kernel_size) if apart else rows, source.channels)
        apart = apart and tiled
        by_phase = not tiled and len(pieces) <= tiles.MOST_PHASES
        pad = not apart and any(has_padding(axes) for axes in pieces)
        size = g.output_size if self.map == "forward" else g.input_size
        most = MOST // max(prod(source.size), rows * g.groups * prod(size))
        if not most:
            raise ValueError(f"input must have fewer than 2**31 cells and results in one sample; got {g}")
        flag: Ref | int = made.reserve(4) if tiled and work and (pad or self.splits) else 0
        space = packed_weight = None
        if tiled and work:
            packed_weight = made.reserve(program.weight_bytes(weight, self.element))
            program.clear(made, flag, self.element)
            program.pack_weight(made, weight, self.element, flag, packed_weight)
            if not program.in_place(source, self.element):
                space = made.reserve(program.packed_bytes(source, min(samples, most, g.batch), self.element))
        partial_at = made.scratch
        for first, count in program.chunks_of_samples(g.batch, min(samples, most)):
            from_here = source._replace(place=source.place.at(first * source.layout.outer))
            to_here = target._replace(place=target.place.at(first * target.layout.outer))
            if tiled and work:
                packed = self._packed(made, from_here, count, flag if self.splits else 0, space)
            if apart:
                assert packed_weight is not None
                self._apart(made, packed, weight, packed_weight, to_here, count, flag)
            for axes in pieces:
                if not all(axis.taps for axis in axes):
                    if by_phase or tiled and not apart:
                        self._fill(made, to_here, axes, count)
                    continue
                if tiled and not apart:
                    assert packed_weight is not None
                    self._tiled(made, packed, weight, packed_weight, to_here, axes, count, flag, partial_at)
                elif by_phase:
                    program.direct(made, from_here, weight, to_here, axes, count, self.element)
            if flag or not (tiled or by_phase):
                axes, stride = (undivided(g), g.stride) if self.map == "grad_input" else (pieces[0], None)
                program.direct(made, from_here, weight, to_here, axes, count, self.element, flag, stride)

    def _fill(self, made: Program, target: Target, axes: Axes, samples: int) -> None:
        """The bias or zeros in the cells of a piece."""
        place, layout = target.of(axes)
        rows = self.geometry.out_channels if self.map == "forward" else self.geometry.in_channels
        sizes = (samples, rows, *(axis.positions for axis in axes))
        program.fill(made, target._replace(place=place), layout, sizes, self.element)

    def _apart(
        self, made: Program, source: program.Packed, weight: Weight, packed_weight: Ref, target: Target, samples: int,
        flag: Ref | int,
    ) -> None:
        """grad_input where no cell has two taps: one product, whose rows are the taps of a channel."""
        g = self.geometry
        if not is_covered(g):
            self._fill(made, target, tuple(Axis(n, n, 1, 0, 0, 1) for n in g.input_size), samples)
        axes = disjoint_axes(g)
        weight = weight._replace(rows=weight.rows * prod(g.kernel_size), kernel=(1, 1, 1))
        results = samples * prod(g.output_size), weight.rows
        tile = tiles.tile_of(self.way, self.element, results, weight.groups)
        program.gather(
            made, source, weight, packed_weight, target, axes, samples, self.element, self.way, tile, 1, None, flag,
            g.kernel_size, [d * stride for d, stride in zip(g.dilation, target.layout[2:5])])

    @property
    def splits(self) -> bool:
        """Whether operands are multiplied as two parts each: then infinity meets the zero of a low part."""
        return self.way == "tf32x3"

    def _packed(
        self, made: Program, operand: Operand, samples: int, flag: Ref | int, space: Ref | None
    ) -> program.Packed:
        """The operand as tiles read it; a flag is set where an element is not finite, also if nothing is copied."""
        if flag and space is None:
            program.scan(made, operand, samples, self.element, flag)
        return program.pack(made, operand, samples, self.element, flag, space)

    def _tiled(
        self, made: Program, source: program.Packed, weight: Weight, packed_weight: Ref, target: Target, axes: Axes,
        samples: int, flag: Ref | int, partial_at: int,
    ) -> None:
        assert self.way is not None
        positions = prod(axis.positions for axis in axes)
        stages = -(-source.chunks * prod(axis.taps for axis in axes) // 4)
        parts = tiles.parts_of_gather(positions, stages)
        partial = None
        if parts > 1:
            partial = Ref("scratch", partial_at)  # the same for every piece: one after the other
            size = parts * samples * positions * weight.rows * weight.groups * self.element.real_size
            made.scratch = max(made.scratch, partial_at + size)
        tile = tiles.tile_of(self.way, self.element, (samples * positions, weight.rows), weight.groups * parts)
        program.gather(
            made, source, weight, packed_weight, target, axes, samples, self.element, self.way, tile, parts, partial,
            flag)

    def _weight_program(self, made: Program, layouts: Any, accumulate: bool, samples: int) -> None:
        """grad_weight: sums over the positions of the batch, in parts."""
        g = self.geometry
        x, y = self._x(layouts[0], "first"), self._y(layouts[1], "second")
        [axes] = phases("forward", g)
        target = Target(Ref("out"), layouts[2], 0, 0, accumulate)
        most = MOST // max(prod(g.input_size), prod(g.output_size))
        if not most:
            raise ValueError(f"input must have fewer than 2**31 cells in one sample; got {g}")
        if self.way is None or g.groups >= 2**16 or tiles.is_direct(self.way, self.element, y.channels, x.channels):
            self._direct_weight(made, x, y, axes, target, most, 0)
            return
        flag: Ref | int = made.reserve(4) if has_padding(axes) or self.splits else 0
        program.clear(made, flag, self.element)
        before = made.scratch
        self._tiled_weight(made, x, y, axes, target, min(samples, most), flag)
        if flag:
            after, made.scratch = made.scratch, before  # the tiles' scratch is free again
            self._direct_weight(made, x, y, axes, target, most, flag)
            made.scratch = max(made.scratch, after)

    def _tiled_weight(
        self, made: Program, x: Operand, y: Operand, axes: Axes, target: Target, samples: int, flag: Ref | int
    ) -> None:
        g, element, way = self.geometry, self.element, self.way
        assert way is not None
        of_sample, taps = prod(g.output_size), prod(g.kernel_size)
        real = element.real_size
        if self.algorithm == "columns":  # a 1 x 1 convolution of them
            x = x._replace(size=(1, 1, of_sample), channels=x.channels * taps)
            axes = (Axis(1, 1, 1, 0, 0, 1), Axis(1, 1, 1, 0, 0, 1), Axis(of_sample, of_sample, 1, 0, 0, 1))
        taps_read = prod(axis.taps for axis in axes)
        chunks = program.chunks_of(x.channels, element)
        columns = taps_read * chunks * 16 // element.size
        tile = tiles.tile_of(way, element, (y.channels, columns), g.groups * tiles.NOMINAL_BLOCKS)
        count_m, count_n = -(-y.channels // tile.bm), -(-columns // tile.bn)
        depth = tiles.LINE // element.size
        parts = program.cut(
            g.batch, of_sample, tiles.parts_of_correlate(count_m * count_n * g.groups, g.batch * of_sample, depth),
            depth)
        blocks = -(-g.batch // parts.samples) if samples >= g.batch else max(samples // parts.samples, 1)
        most = blocks * parts.samples
        x_space, y_space = (
            None if program.in_place(operand, element, dense)
            else made.reserve(program.packed_bytes(operand, min(most, g.batch), element))
            for operand, dense in ((x, 0), (y, g.batch)))
        sums = _Sums(made, self, target, g.out_channels * columns * real)
        if x.channels * taps_read == y.channels == 0:
            return
        read = (columns * real, real, *(chunks * 16 // element.size * real * n for n in (
            g.kernel_size[1] * g.kernel_size[2], g.kernel_size[2], 1)))
        if self.algorithm == "columns":
            plane = g.kernel_size[1] * g.kernel_size[2] * real
            read = (columns * real, taps * real, plane, g.kernel_size[2] * real, real)
        for first, count in program.chunks_of_samples(g.batch, most, parts.samples):
            from_y = y._replace(place=y.place.at(first * y.layout.outer))
            from_x = x._replace(place=x.place.at(first * x.layout.outer))
            packed_x = self._packed(made, from_x, count, flag if self.splits else 0, x_space)
            packed_y = self._packed(made, from_y, count, flag, y_space)
            slots = parts.count(count)
            program.correlate(made, packed_x, packed_y, sums.place(slots), axes, parts.arguments(count, of_sample),
                              (y.channels, columns, g.groups, slots), element, way, tile)
            last = first + count == g.batch
            sums.finish(last, slots, read, flag if last else 0, 0)

    def _direct_weight(
        self, made: Program, x: Operand, y: Operand, axes: Axes, target: Target, most: int, flag: Ref | int
    ) -> None:
        """By definition: a block for each element of the weight and part; where a flag is given, if it is set."""
        g, element, threads = self.geometry, self.element, plain.THREADS
        of_sample, elements, real = prod(g.output_size), g.out_channels * x.channels * prod(g.kernel_size), 0
        real = element.real_size
        parts = program.cut(g.batch, of_sample, max(1, tiles.NOMINAL_BLOCKS // elements), threads)
        sums = _Sums(made, self, target, elements * real)
        plane = g.kernel_size[1] * g.kernel_size[2] * real
        read = (x.channels * g.kernel_size[0] * plane, g.kernel_size[0] * plane, plane, g.kernel_size[2] * real, real)
        for first, count in program.chunks_of_samples(g.batch, most, parts.samples):
            slots = parts.count(count)
            made.add(
                tiles.simple("direct_weight", element), (elements, slots), shared=threads * real,
                x=x.place.at(first * x.layout.outer), y=y.place.at(first * y.layout.outer), target=sums.place(slots),
                flag=flag, **parts.arguments(count, of_sample), rounds=-(-parts.positions // threads),
                **divided(channels=x.channels, rows=y.channels), **program.taps_arguments(axes),
                **program.axes_arguments(axes), **self._reading(x.layout), y_n=y.layout.outer, y_row=y.layout.channel,
                y_z=y.layout.z, y_y=y.layout.y, y_x=y.layout.x, target_part=sums.size)
            sums.finish(first + count == g.batch, slots, read, flag, 1 if flag else 0)

    def _reading(self, layout: Layout) -> dict[str, int]:
        """How direct_weight reads x: its cells, or the columns that unfold made of it."""
        found = program.strides(source=layout) | {"source_tap": 0, "read_z": 0, "read_y": 0, "read_x": 0}
        if self.algorithm == "columns":
            _, height, width = self.geometry.output_size
            found |= {"source_channel": layout.channel * prod(self.geometry.kernel_size), "source_tap": layout.channel,
                      "source_z": 0, "source_y": 0, "source_x": 0, "read_z": height * width * layout.x,
                      "read_y": width * layout.x, "read_x": layout.x}
        return found


class _Sums:
    """The partial sums of a weight's gradient: parts that are summed in order, over all chunks of samples.

    The first slot holds the running sum once a chunk is done; the parts of later chunks come behind it.
    """

    def __init__(self, made: Program, plan: Plan, target: Target, size: int) -> None:
        self.made, self.plan, self.target, self.size = made, plan, target, size
        self.at, self.begun = made.scratch, 0

    def place(self, slots: int) -> Ref:
        """Where the parts of the next chunk go."""
        end = self.at + (self.begun + slots) * self.size
        self.made.scratch = max(self.made.scratch, -(-end // ALIGNMENT) * ALIGNMENT)
        return Ref("scratch", self.at + self.begun * self.size)

    def finish(self, last: bool, slots: int, read: Sequence[int], flag: Ref | int, flag_value: int) -> None:
        """Sum what is there: to the target if the chunk is the last, else to the first slot."""
        g, partial = self.plan.geometry, Ref("scratch", self.at)
        sizes = (g.out_channels, g.in_channels // g.groups, *g.kernel_size)
        target = self.target if last else self.target._replace(place=partial)
        program.finish(
            self.made, target, sizes, self.target.layout[:5] if last else read, partial, read, self.size,
            self.begun + slots, self.plan.element, not last, flag, flag_value)
        self.begun = 1


@lru_cache(maxsize=CACHED)
def plan(
    map: str, geometry: Geometry, dtype: DeviceType, algorithm: str = "auto", *, allow_tf32: bool = False,
    device: int = 0,
) -> Plan:
    """The plan of 'forward', 'grad_input' or 'grad_weight'; with algorithm 'columns' of grad_weight from columns."""
    return Plan(map, geometry, dtype, algorithm, allow_tf32, device)


def unfold(geometry: Geometry, input: DeviceArray, columns: DeviceArray, fold: bool, *, stream: int) -> None:
    """columns <- input, or with fold input <- the sum of the columns."""
    made = Program(launch.device(input.device))
    element, [axes] = tiles.ELEMENTS[input.dtype.name], phases("forward", geometry)
    cells, rows = lifted(input, geometry.rank), lifted(columns, 1)
    of_columns = geometry.in_channels * prod(geometry.kernel_size) * prod(geometry.output_size)
    most = MOST // max(of_columns, geometry.in_channels * prod(geometry.input_size))
    if not most:
        raise ValueError(f"input must have fewer than 2**31 columns and cells in one sample; got {geometry}")
    for first, count in program.chunks_of_samples(geometry.batch, most):
        x, y = Ref("input", first * cells.outer), Ref("columns", first * rows.outer)
        (program.fold if fold else program.unfold)(made, geometry, axes, count, x, cells, y, rows, element)
    made.run({"input": input.address, "columns": columns.address}, stream)


def channel_sum(array: DeviceArray, axis: int, out: DeviceArray, *, stream: int) -> None:
    """out <- the sum over all axes but one, in parts of a fixed tree."""
    made, element = Program(launch.device(array.device)), tiles.ELEMENTS[array.dtype.name]
    if axis == 0:
        array = array._replace(shape=(1, *array.shape), strides=(0, *array.strides))
    array = _merged(array)
    layout = lifted(array, array.ndim - 2)
    size = (1,) * (5 - array.ndim) + array.shape[2:]
    program.channel_sum(made, array.shape[:2], size, layout, out.strides[0] * element.size, element)
    scratch = out.kind.empty((-(-(made.scratch + ALIGNMENT) // element.size),), out.dtype, out.device)
    made.run({"source": array.address, "out": out.address, "scratch": aligned(scratch)}, stream)


def _merged(array: DeviceArray) -> DeviceArray:
    """The array with at most 3 axes behind the first two: neighbours that follow each other in memory are made one."""
    shape, steps = list(array.shape), list(array.strides)
    place = 2
    while place < len(shape) - 1 and len(shape) > 5:
        if steps[place] == steps[place + 1] * shape[place + 1]:
            shape[place:place + 2], steps[place:place + 2] = [shape[place] * shape[place + 1]], [steps[place + 1]]
        else:
            place += 1
    if len(shape) > 5:
        raise ValueError(f"grad_output must have at most 3 spatial axes; got shape {array.shape}")
    return array._replace(shape=tuple(shape), strides=tuple(steps))


def fill(out: DeviceArray, value: DeviceArray | int, *, stream: int) -> None:
    """out <- 0, or the value of each channel (axis 1)."""
    made, element = Program(launch.device(out.device)), tiles.ELEMENTS[out.dtype.name]
    outer, inner = (*out.shape, 1)[:2], out.shape[2:]
    layout = lifted(out if out.ndim > 1 else out._replace(shape=outer, strides=(*out.strides, 1)), len(inner))
    sizes = (*outer, *(1,) * (3 - len(inner)), *inner)
    addresses, bias, step = {"out": out.address}, 0, 0
    if isinstance(value, DeviceArray):
        addresses["bias"], step = value.address, value.strides[0] * element.size
    for first, count in program.chunks_of_samples(sizes[0], max(1, MOST // prod(sizes[1:]))):
        program.fill(made, Target(Ref("out", first * layout.outer), layout, Ref("bias") if step else bias, step, False),
                     layout, (count, *sizes[1:]), element)
    made.run(addresses, stream)


def aligned(scratch: DeviceArray) -> int:
    """The first address in a buffer at which a program's scratch may begin."""
    return -(-scratch.address // ALIGNMENT) * ALIGNMENT
