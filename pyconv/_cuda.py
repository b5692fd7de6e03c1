"""Backend: NVIDIA GPUs. The three maps as launches of Numba kernels on the caller's stream.

Rooms beside this file, in `_gpu`: `maps` (what the three maps launch, in which order), `tiles` (which kernels there are
and which a problem takes), `gemm`, `fragments`, `plain` and `depthwise` (the kernels), `program` and, for groups of one
channel, `walks` (what each is given), `launches`, `limits` (what a launch can count), `arrays` (what a GPU array is),
`launch` (devices, the cache of compiled kernels), `ptx` (everything that speaks to the compiler). Nothing here
launches: `decisions` keeps programs and runs them.

A result is a sum in an order that one sample's geometry and the dtype decide (for a weight's gradient, the batch too):
no atomic operations, the same bits in every run.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from math import prod
from typing import Any

from pyconv._geometry import ROLES, Geometry
from pyconv._gpu import launch, limits, maps, padding, program, tiles
from pyconv._gpu.arrays import DTYPES, DeviceArray, DeviceType
from pyconv._gpu.launches import ALIGNMENT, Program, Ref, Step
from pyconv._gpu.layouts import Layout
from pyconv._gpu.problem import Problem
from pyconv._gpu.program import Target
from pyconv._integers import Shape
from pyconv._outer import LAST, Term, beyond, meetings, of_padding, of_volumes, terms_of_results, volumes
from pyconv._padding import REPEATING
from pyconv._pieces import phases

CACHED = 1024
PROGRAMS = 64  # of a plan
decisions: dict[Any, Any] = {}  # what is kept of calls: see pyconv._gpu.decisions
known: dict[Any, Any] = {}  # the way to these of calls with the usual settings: see pyconv._gpu.calls


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
        self, map: str, geometry: Geometry, dtype: DeviceType, algorithm: str, result: DeviceType, allow_tf32: bool,
        device: int,
    ) -> None:
        element, gpu = tiles.element(dtype.name, result.name), launch.device(device)
        way = tiles.way_of(element.in_tiles, algorithm, allow_tf32, gpu.capability)
        if way in tiles.ALONG and map == "grad_weight":
            way = tiles.without_warpgroups(way)
        self.problem = Problem(gpu, map, geometry, element, way, algorithm)
        if algorithm == "auto" and gpu.capability == (9, 0):
            self.problem = self.problem.on_hopper()
        self._programs: dict[Any, Program] = {}
        alone = self.problem
        if map != "grad_weight" or geometry.per_sample:  # which for the least scratch need not go through the batch
            alone = alone._replace(geometry=geometry._replace(batch=1))
        # Arrays in C order need the most scratch: where they do not begin at multiples of 16 bytes they are packed, and
        # where they do, planes may need more for the weight, or for parts of a sum.
        orders = [self._contiguous(aligned) for aligned in (False, True)[:1 + (prod(geometry.kernel_size) == 1)]]
        self.scratch_minimum, self.scratch_size = (
            max(self._elements(maps.build(problem, layouts, None, False, samples).scratch) for layouts in orders)
            for problem, samples in ((alone, 1), (self.problem, geometry.batch)))

    def _elements(self, size: int) -> int:
        return -(-(size + ALIGNMENT) // self.problem.element.size) if size else 0

    def steps(
        self, first: DeviceArray, second: DeviceArray, out: DeviceArray, bias: DeviceArray | None = None,
        scratch: DeviceArray | None = None, accumulate: bool = False,
    ) -> Iterator[Step]:
        """out = map(first, second) + bias, added to what `out` holds where accumulate."""
        # all that a program depends on, since the geometry says the shapes
        key = (first.strides, second.strides, out.strides, first.address % 16, second.address % 16, out.address % 16,
               None if bias is None else bias.strides[0], accumulate, None if scratch is None else scratch.shape[0])
        found = self._programs.get(key)
        if found is None:
            if len(self._programs) >= PROGRAMS:
                self._programs.clear()
            found = self._programs[key] = self._fitting((first, second, out), bias, accumulate, scratch)
        yield Step.of(found, first=first, second=second, out=out, bias=bias)

    def _fitting(
        self, operands: tuple[DeviceArray, DeviceArray, DeviceArray], bias: DeviceArray | None, accumulate: bool,
        scratch: DeviceArray | None,
    ) -> Program:
        """The program whose scratch fits, of as many samples at a time as that allows."""
        problem = self.problem
        rank = problem.geometry.rank
        *given, to = operands
        own = 0  # from a sample's weight to the next one's
        if problem.geometry.per_sample and problem.map == "grad_weight":
            own, to = to.strides[0] * to.dtype.size, to._replace(shape=to.shape[1:], strides=to.strides[1:])
        first, second, out = (lifted(array.merged(axes), axes) for array, axes in zip(
            (*given, to), (1 if problem.algorithm == "columns" else rank, rank, rank)))
        out = out._replace(sample=own)
        bias_stride = None if bias is None else bias.strides[0] * bias.dtype.size

        def build(samples: int) -> Program:
            return maps.build(problem, (first, second, out), bias_stride, accumulate, samples)

        def fits(made: Program) -> bool:
            return scratch is None or self._elements(made.scratch) <= scratch.shape[0]

        low, high = 1, problem.geometry.batch
        found = build(high)
        if fits(found):
            return found
        while high - low > 1:
            samples = (low + high) // 2
            low, high = (samples, high) if fits(build(samples)) else (low, samples)
        return build(low)

    def _contiguous(self, aligned: bool) -> tuple[Layout, Layout, Layout]:
        """The layouts of arrays in C order."""
        g, element = self.problem.geometry, self.problem.element
        def dense(array: str, size: int) -> Layout:
            channels, inner = {"x": (g.in_channels, g.input_size), "y": (g.out_channels, g.output_size),
                               "w": (g.in_channels // g.groups, g.kernel_size)}[array]
            plane = prod(inner) * size
            return Layout(channels * plane, plane, inner[1] * inner[2] * size, inner[2] * size, size, aligned)

        first, second, out = ROLES[self.problem.map]
        result = element.result or element.name
        layouts = dense(first, element.size), dense(second, element.size), dense(out, DTYPES[result].size)
        if self.problem.algorithm == "columns":
            cells = prod(g.output_size) * element.size
            layouts = Layout(g.in_channels * prod(g.kernel_size) * cells, cells, 0, 0, element.size), *layouts[1:]
        return layouts


class Volumes:
    """A plan of more than three spatial axes: its terms are maps of three, run on volumes of the arrays.

    A volume of the result is `summed` before the next one is begun.
    """

    def __init__(
        self, map: str, geometry: Geometry, result: DeviceType, of_three: Callable[[Geometry, DeviceType], Plan],
    ) -> None:
        self.map, self.geometry = map, geometry
        inner, padding = of_volumes(geometry), None if map == "grad_input" else of_padding(geometry)
        self.plans = [  # strides say how volumes lie
            None if g is None else of_three(g._replace(volumes=(1, 1, 1)), sums_of(result)) for g in (inner, padding)]
        sizes = {"x": (inner.batch, inner.in_channels, *inner.input_size),
                 "y": (inner.batch, inner.out_channels, *inner.output_size),
                 "w": (inner.batch if inner.per_sample else 1, inner.out_channels, inner.in_channels // inner.groups,
                       *inner.kernel_size)}
        self.sums = bytes_of_sums(result, sizes[ROLES[map][2]]) // result.size  # elements of scratch
        least = ALIGNMENT // result.size if self.sums else 0
        self.scratch_minimum, self.scratch_size = (
            self.sums + max(least, *(getattr(plan, name) for plan in self.plans if plan is not None))
            for name in ("scratch_minimum", "scratch_size"))

    def steps(
        self, first: DeviceArray, second: DeviceArray, out: DeviceArray, bias: DeviceArray | None = None,
        scratch: DeviceArray | None = None, accumulate: bool = False,
    ) -> Iterator[Step]:
        """out = map(first, second) + bias, added to what `out` holds where accumulate."""
        lead = 3 if self.map == "grad_weight" and self.geometry.per_sample else 2
        if scratch is not None:
            scratch = scratch._replace(shape=(scratch.shape[0] - self.sums,))
        for number, of_volume in enumerate(terms_of_results(self.map, self.geometry)):
            adders = [partial(self._add, term, first, second, scratch) for term in of_volume]
            yield from summed(volume(out, number, lead), adders, bias, accumulate)

    def _add(
        self, term: Term, first: DeviceArray, second: DeviceArray, scratch: DeviceArray | None, to: DeviceArray,
        bias: DeviceArray | None, accumulate: bool,
    ) -> Iterator[Step]:
        plan = self.plans[term.x is None]
        assert plan is not None
        a, b = (volume(array, getattr(term, role) or 0) for role, array in zip(ROLES[self.map], (first, second)))
        return plan.steps(a, b, to, bias, scratch, accumulate)


# Writes its part of a sum, with the bias of each channel, to an array, or adds it there
Adder = Callable[[DeviceArray, DeviceArray | None, bool], Iterator[Step]]


def sums_of(result: DeviceType) -> DeviceType:
    """What several parts of a result are added up in: halves in float32, others as they are."""
    return DTYPES["float32"] if result.name in ("float16", "bfloat16") else result


def bytes_of_sums(result: DeviceType, shape: Shape) -> int:
    """The scratch that sums of a result of that shape take, where they are of another type."""
    sums = sums_of(result)
    return 0 if sums is result else -(-prod(shape) * sums.size // ALIGNMENT) * ALIGNMENT


def summed(
    target: DeviceArray, adders: Sequence[Adder], bias: DeviceArray | None = None, accumulate: bool = False
) -> Iterator[Step]:
    """target <- the bias and what the adders add up, added to it where accumulate; halves are rounded once.

    Their sums are in scratch, which all programs of a result share, in front of what an adder needs of it.
    """
    size = bytes_of_sums(target.dtype, target.shape)
    if not adders:
        yield from fill(target, 0 if bias is None else bias, accumulate)
    elif not size:
        for add in adders:
            yield from add(target, bias, accumulate)
            bias, accumulate = None, True
    else:
        steps = tuple(prod(target.shape[axis + 1:]) for axis in range(target.ndim))
        sums = target._replace(address=0, strides=steps, dtype=sums_of(target.dtype))
        for place, add in enumerate(adders):
            for step in add(sums, None, place > 0):
                yield step.in_scratch(sums, size)
        yield rounded(sums, size, target, bias, accumulate)


def rounded(
    sums: DeviceArray, size: int, target: DeviceArray, bias: DeviceArray | None, accumulate: bool
) -> Step:
    """target <- the sums, so many bytes at the beginning of scratch, and the bias of each channel (axis 1)."""
    made, element = Program(launch.device(target.device)), tiles.element(target.dtype.name)
    made.reserve(size)
    sizes = target.shape + (1,) * (5 - target.ndim)
    read, to = ([step * array.dtype.size for step in array.strides + (0,) * (5 - array.ndim)]
                for array in (sums, target))
    place: Ref | int = 0 if bias is None else Ref("bias")
    step = 0 if bias is None else bias.strides[0] * bias.dtype.size
    runs = limits.chunks_of_samples(sizes[0], tiles.MOST_SAMPLES) if len(sizes) > 5 else [(0, 0)]
    for first, samples in runs:  # of samples' own weights, where these are the results
        results = Target(Ref("out", first * to[0]), Layout(0, 0, 0, 0, 0, sample=to[0]), place, step, accumulate)
        program.finish(made, results, sizes[-5:], to[-5:], Ref("scratch", first * read[0]), read[-5:], read[0], 1,
                       element, samples=samples)
    return Step.of(made, out=target, bias=bias)


def volume(array: DeviceArray, number: int, lead: int = 2) -> DeviceArray:
    """The volume of that number: the last three axes, behind the first two or three."""
    address = array.address
    for length, step in zip(array.shape[lead:-LAST][::-1], array.strides[lead:-LAST][::-1]):
        number, at = divmod(number, length or 1)  # an axis of no cells has one, which is not read
        address += at * step * array.dtype.size
    shape, strides = (axes[:lead] + axes[-LAST:] for axes in (array.shape, array.strides))
    return array._replace(address=address, shape=shape, strides=strides)


@lru_cache(maxsize=CACHED)
def plan(
    map: str, geometry: Geometry, dtype: DeviceType, algorithm: str = "auto", result: DeviceType | None = None, *,
    allow_tf32: bool = False, device: int = 0,
) -> "Plan | Volumes":
    """The plan of 'forward', 'grad_input' or 'grad_weight'; with algorithm 'columns' of grad_weight from columns.

    dtype: of the operands; result: of out and bias (None: the same).
    """
    def of_three(geometry: Geometry, result: DeviceType) -> Plan:
        return Plan(map, geometry, dtype, algorithm, result, allow_tf32, device)

    own = result or dtype
    if algorithm == "columns" and geometry.rank > LAST:
        geometry = _along_one_axis(geometry)
    return of_three(geometry, own) if geometry.rank <= LAST else Volumes(map, geometry, own, of_three)


def _along_one_axis(g: Geometry) -> Geometry:
    """The problem that grad_weight from columns is wherever they were read: positions side by side, and taps."""
    one, none, taps, positions = (1, 1, 1), (0, 0, 0), prod(g.kernel_size), prod(g.output_size)
    return g._replace(
        rank=1, input_size=(1, 1, positions + taps - 1), kernel_size=(1, 1, taps), output_size=(1, 1, positions),
        stride=one, dilation=one, padding=none, before=none, behind=none, padding_mode="zeros", padding_value=0)


def forget() -> None:
    """Keep neither plans nor decisions: for tests, which change what they follow from."""
    plan.cache_clear()
    decisions.clear()
    known.clear()


def check_unfold(geometry: Geometry) -> int:
    """How many channels of samples unfold or fold takes in a launch. ValueError where that is none."""
    geometry = of_volumes(geometry)
    of_columns = prod(geometry.kernel_size) * prod(geometry.output_size)
    places = 0 if geometry.padding_mode == "zeros" else prod(padding.padded(geometry).input_size)
    return limits.most_planes(geometry, of_columns, prod(geometry.input_size), places)


def unfold(
    geometry: Geometry, input: DeviceArray, columns: DeviceArray, fold: bool, accumulate: bool = False
) -> Iterator[Step]:
    """columns <- input, or with fold input <- the sum of the columns, added to it where accumulate.

    With more than three spatial axes volume by volume.
    """
    if geometry.rank > LAST:
        found: list[list[Adder]] = [[] for _ in range(volumes(geometry)[0])]  # of each volume of the input
        for number, of_x, part in _columns_of_volumes(geometry, columns):
            if not fold:
                yield from unfold(of_x, volume(input, number or 0), part, False)
            elif number is not None:
                found[number].append(partial(_fold, of_x, part))
        for number, adders in enumerate(found if fold else []):
            yield from summed(volume(input, number), adders, None, accumulate)
        return
    made = Program(launch.device(input.device))
    element = tiles.element(*(array.dtype.name for array in ((columns, input) if fold else (input, columns))))
    mode = geometry.padding_mode
    has_edge = mode in REPEATING if fold else mode != "zeros"
    g, crop = padding.cropped(geometry) if has_edge else (geometry, (0, 0, 0))
    edge = padding.edge_of(g) if has_edge else None
    cells, rows = lifted(input, geometry.rank), lifted(columns, 1)
    [axes] = phases("forward", padding.padded(g) if fold and edge is not None else g)
    most = check_unfold(geometry)
    begin = Ref("input", sum(c * step for c, step in zip(crop, cells[2:5])))
    if fold and edge is not None:
        length = padding.padded(g).input_size
        places = program.places(
            made, (max(1, min(most // g.in_channels, g.batch)), min(most, g.in_channels), *length), False,
            element.real_size)
    of_channel = rows.channel * prod(g.kernel_size) * g.volumes[1]
    for sample, count, channel, channels in limits.runs_of_rows(g.batch, g.in_channels, most):
        some = g._replace(in_channels=channels)
        at = sample * cells.outer + channel * cells.channel
        x, y = Ref("input", at), Ref("columns", sample * rows.outer + channel * of_channel)
        if not fold:
            program.unfold(made, some, axes, count, begin.at(at), cells, y, rows, element, edge)
        elif edge is None:
            program.fold(made, some, axes, count, x, cells, y, rows, element, accumulate)
        else:
            program.fold(made, padding.padded(some), axes, count, places.place, places.layout, y, rows, element.summed,
                         False)
            sizes = (count, channels, *geometry.input_size)
            program.adjoint(made, places.place, places.layout, length, Target(x, cells, 0, 0, accumulate), sizes, edge,
                            crop, element)
    yield Step.of(made, input=input, columns=columns)


def _fold(
    geometry: Geometry, columns: DeviceArray, input: DeviceArray, _: DeviceArray | None, accumulate: bool
) -> Iterator[Step]:
    return unfold(geometry, input, columns, True, accumulate)


def _columns_of_volumes(
    geometry: Geometry, columns: DeviceArray
) -> Iterator[tuple[int | None, Geometry, DeviceArray]]:
    """Of each outer tap and position: the volume of x that they meet, the problem on it, its part of the columns."""
    inner, padding = of_volumes(geometry), beyond(geometry)
    taps, positions = prod(inner.kernel_size), prod(inner.output_size)
    for w, y, x in meetings(geometry):
        steps = w * taps * columns.strides[1] + y * positions * columns.strides[2]
        yield x, padding if x is None else inner, columns._replace(address=columns.address + steps * columns.dtype.size)


def check_channel_sum(array: DeviceArray, axis: int) -> DeviceArray:
    """The array with a batch axis, and with as few axes behind the channels as it lies in. ValueError if too large."""
    found = array if axis else array._replace(shape=(1, *array.shape), strides=(0, *array.strides))
    found = found.merged(LAST)
    if max(found.shape[1], prod(found.shape[2:])) > limits.MOST:
        raise ValueError(
            "grad_output must have fewer than 2**31 channels, and fewer than 2**31 cells in one sample, on a GPU; got "
            f"shape {array.shape}")
    return found


def channel_sum(
    array: DeviceArray, axis: int, out: DeviceArray, accumulate: bool = False
) -> Iterator[Step]:
    """out <- the sum over all axes but one, in parts of a fixed tree; added to it where accumulate.

    Where out is (batch, channels), of each sample alone.
    Of more than three axes behind the channels that are not dense, volume by volume.
    """
    array = check_channel_sum(array, axis)
    if array.ndim > LAST + 2:
        yield from summed(out, [partial(_sum_volume, volume(array, number))
                                for number in range(prod(array.shape[2:-LAST]))], None, accumulate)
        return
    made, element = Program(launch.device(array.device)), tiles.element(array.dtype.name, out.dtype.name)
    layout = lifted(array, array.ndim - 2)
    size = (1,) * (5 - array.ndim) + array.shape[2:]
    own, channel = (steps * out.dtype.size for steps in (0, *out.strides)[-2:])
    program.channel_sum(
        made, array.shape[:2], size, layout, Layout(channel, 0, 0, 0, 0, sample=own), element, accumulate, out.ndim > 1)
    yield Step.of(made, source=array, out=out)


def _sum_volume(
    array: DeviceArray, out: DeviceArray, _: DeviceArray | None, accumulate: bool
) -> Iterator[Step]:
    return channel_sum(array, 1, out, accumulate)


def fill(out: DeviceArray, value: DeviceArray | int, accumulate: bool = False) -> Iterator[Step]:
    """out <- 0, or the value of each channel (axis 1); added to it where accumulate."""
    if out.ndim > LAST + 2:
        for number in range(prod(out.shape[2:-LAST])):
            yield from fill(volume(out, number), value, accumulate)
        return
    made, element = Program(launch.device(out.device)), tiles.element(out.dtype.name)
    outer, inner = (*out.shape, 1)[:2], out.shape[2:]
    layout = lifted(out if out.ndim > 1 else out._replace(shape=outer, strides=(*out.strides, 1)), len(inner))
    sizes = (*outer, *(1,) * (3 - len(inner)), *inner)
    step, bias, values = 0, 0, None  # type: int, Ref | int, DeviceArray | None
    if isinstance(value, DeviceArray):
        step, bias, values = value.strides[0] * out.dtype.size, Ref("bias"), value
    program.fill(made, Target(Ref("out"), layout, bias, step, accumulate), layout, sizes, element)
    yield Step.of(made, out=out, bias=values)
