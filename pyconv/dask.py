"""Door: dask arrays. Convolution, its gradients and unfold over arrays in chunks, lazily, on any of dask's schedulers.

    conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
    conv1d_input, conv2d_input, conv3d_input, conv1d_weight, conv2d_weight, conv3d_weight, conv_bias, unfold

The plain functions' arguments, values, types and errors, without out, accumulate, scratch and what a GPU wants. Nothing
is computed before dask is asked to; wrong shapes, types and settings are refused at once.

>>> import dask.array as da
>>> import numpy as np
>>> import pyconv.dask
>>> image = da.ones((1, 1, 1000, 1000), chunks=(1, 1, 400, 400))
>>> blurred = pyconv.dask.conv2d(image, np.full((1, 1, 3, 3), 1 / 9), padding="same", padding_mode="reflect")
>>> blurred.chunks
((1,), (1,), (400, 400, 200), (400, 400, 200))
>>> round(float(blurred.mean()), 12)
1.0

input and grad_output are dask arrays of NumPy's arrays, in chunks along batch and space; all of their channels are in
one chunk. weight and bias are arrays, or dask arrays that are gathered to one chunk each.

A chunk of a result is one task. It reads of the chunks around it what its kernel meets, cut out where they lie, and
pads only at the edges of the whole array, so that the result is what the plain function would give of the whole array:
with numbers whose sums are exact the same numbers, with others the same up to the order of sums. A task needs memory
for what it reads, for that once more in one piece, and for its result. It runs on one thread: how many tasks run at
once is for dask to say.

What dask holds for a convolution is more than a chunk. A chunk waits in memory until its neighbours are there, wherever
these are computed: of an array in chunks along one axis, as strips of a picture, a dozen at most however long it is;
along two, a front of chunks right across the shorter side, however long the other is. Of one sample dask's own
scheduler holds, on one thread, up to four rows of chunks across that side and six chunks more; its order of tasks is
not pyconv's to say. `chunks` that end as much sooner than the input's as the kernel reaches beyond them, as (399, 400,
201) of (400, 400, 200) with three taps and a padding of 1, have no neighbours behind and halve it: of 12 by 12 chunks
14 instead of 32. Where that is too much, chunks that are strips, along one axis, have no front.

For a gradient to the weight no chunk waits. A task reads a chunk of grad_output and the chunks of the input that it
meets most of, and cuts edges off them for the tasks around it; the edges wait: of 12 by 12 chunks of 200 by 200, with
3 by 3 taps, 3.5 chunks are held in all, of 24 by 24 chunks of 40 by 40 it is 22. Where chunks of grad_output are other
parts of the picture than those of the input, much of a chunk is an edge.
On a cluster the workers share all of it: two workers, chunks of 2 MB, pictures of 5, 10 and 20 chunks in square (48,
191 and 763 MB): 16, 43 and 78 MB each for a convolution, up to 2, 2 and 15 for a gradient to the weight.

Chunks of a convolution's result are those of its input divided by the stride, in the other direction times the stride:
with a stride of 1 they are the input's own, but for what padding leaves over at the end. `chunks` asks for others, in
any form that dask takes, for the result's axes. Gradients to the weight are summed over blocks of grad_output, and
these sums over a tree of pairs, in the same order on every scheduler. Halves are summed in float32 and rounded once. A
chunk of columns holds as many numbers as the largest chunk of the input, of all positions a run in C order.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, reduce
from itertools import pairwise, product
from math import prod
from operator import getitem
from reprlib import repr as shown
from typing import Any, NamedTuple, SupportsIndex

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from numpy.typing import ArrayLike, DTypeLike

import pyconv
from pyconv import _geometries as geometries
from pyconv._arguments import check_flag, operands
from pyconv._chunks import (
    Axis,
    Chunks,
    Meeting,
    Piece,
    Reading,
    as_they_lie,
    bounds_of,
    cut,
    edges_of,
    joined,
    meetings,
    near_and_far,
    readings,
    returned,
    runs,
    split,
    taken,
)
from pyconv._dtypes import FLOAT32, DType
from pyconv._evaluate import Settings, checked, settings_of, written
from pyconv._geometry import Geometry, box
from pyconv._integers import Shape, exact_shape
from pyconv._ops import instance
from pyconv._padding import REPEATING
from pyconv._signatures import Padding, Sizes

__all__ = [
    "conv1d", "conv1d_input", "conv1d_weight", "conv2d", "conv2d_input", "conv2d_weight", "conv3d", "conv3d_input",
    "conv3d_weight", "conv_bias", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "unfold",
]

WEIGHT = {1: pyconv.conv1d_weight, 2: pyconv.conv2d_weight, 3: pyconv.conv3d_weight}
Index = tuple[int, ...]


# --- tasks ---


def convolved(pieces: list[Any], weight: Any, bias: Any, block: Any, settings: dict[str, Any]) -> Any:
    with pyconv.num_threads(1):
        return pyconv.convolution(joined(pieces, *block), weight, bias, output_padding=0, **settings)


def weight_gradient(
    sources: list[Any], grad_output: Any, met: list[Meeting], block: Any, settings: dict[str, Any]
) -> Any:
    """The sum of what cells, each of its source, give with the positions of grad_output that meet them."""
    shape, own, dtype, per_sample = block
    sums = np.zeros(shape, own)
    with pyconv.num_threads(1):
        for source, (_, cells, positions, size, pads) in zip(sources, met):
            x = joined([taken(source, cells)], [[(0, length) for length in size]], size, dtype)
            x = np.ascontiguousarray(x)  # a part of rows far apart is read over and over, which is slow
            samples = slice(*positions[0]) if per_sample else ...
            sums[samples] += WEIGHT[len(pads)](x, grad_output=taken(grad_output, positions), padding=pads, **settings)
    return sums


def with_edges(sources: list[Any], grad_output: Any, gradient: Callable[..., Any], edges: list[Any]) -> list[Any]:
    """Of each source and of grad_output the edges that other chunks meet, and what the whole ones give."""
    return [*map(edges_of, [*sources, grad_output], edges), gradient(sources, grad_output)]


def unfolded(pieces: list[Any], block: Any, settings: dict[str, Any]) -> Any:
    with pyconv.num_threads(1):
        return pyconv.unfold(joined(pieces, *block), **settings)


def added(parts: list[Any]) -> Any:
    return reduce(np.add, parts)


# --- graphs ---


class Graph:
    """The tasks of one result: first what they read of the source, each piece cut once, then what they make of it."""

    def __init__(self, kind: str, source: da.Array, others: Sequence[da.Array | None], *settings: Any) -> None:
        self.source, self.others = source, [other for other in others if other is not None]
        self.name = f"pyconv-{kind}-{tokenize(kind, source.name, [other.name for other in self.others], *settings)}"
        self.tasks: dict[Any, Any] = {}
        self.pieces: dict[Any, Any] = {}

    def blocks(self, axes: Sequence[list[Reading]], dtype: DType) -> Iterator[tuple[Index, Any, Any, Any]]:
        """Of every block its index, the keys of what it reads, the arguments of `joined` for these, and its padding."""
        for index in product(*(range(len(axis)) for axis in axes)):
            block = [axis[place] for axis, place in zip(axes, index)]
            pieces = list(product(*(axis.pieces for axis in block)))
            places = [[piece.place for piece in some] for some in pieces]
            shape = tuple(axis.length for axis in block)
            yield index, [self.piece(some) for some in pieces], (places, shape, dtype), [axis.pads for axis in block]

    def piece(self, pieces: Sequence[Piece]) -> Any:
        """The key of a piece of the source: of the chunk itself where that is all of it."""
        index, parts = tuple(piece.chunk for piece in pieces), tuple(piece.part for piece in pieces)
        chunk = (self.source.name, *index)
        if all(part == (0, sizes[at], 1) for part, sizes, at in zip(parts, self.source.chunks, index)):
            return chunk
        if (chunk, parts) not in self.pieces:
            key = (f"{self.name}-piece", len(self.pieces))
            self.tasks[key] = partial(cut, parts=parts), chunk
            self.pieces[chunk, parts] = key
        return self.pieces[chunk, parts]

    def weighed(self, y: da.Array, met: dict[Index, list[Meeting]], outside: Any, gradient: Any) -> Iterator[Any]:
        """The keys of what every chunk of y gives with chunks of the source and with padding, and with others' edges.

        A chunk is read by one task alone, which cuts the edges off that other chunks meet: these wait for their
        neighbours, it does not.
        """
        near, far, asked = near_and_far(met)
        part, edges = f"{self.name}-part", f"{self.name}-edges"
        for index, some in near.items():
            read, given = (f"{self.name}-read", *index), gradient(index, some)
            cuts = [(0, *one.chunk) for one in some] + [(1, *index)]
            parts = [list(asked.pop(name, ())) for name in cuts]
            sources = [(self.source.name, *one.chunk) if one.chunk else outside for one in some]
            self.tasks[read] = partial(with_edges, gradient=given, edges=parts), sources, (y.name, *index)
            self.tasks |= {(edges, *name): (getitem, read, at) for at, name in enumerate(cuts) if parts[at]}
            self.tasks[part, 0, *index] = getitem, read, -1
            yield part, 0, *index
        for index, some in far.items():
            if some:
                sources = [(edges, 0, *one.chunk) for one in some]
                self.tasks[part, 1, *index] = gradient(index, some), sources, (edges, 1, *index)
                yield part, 1, *index

    def sum_up(self, parts: dict[Index, Any], index: Index) -> None:
        """Make the chunk of that index the sum of what the keys stand for, by the places of their blocks.

        Pairs are added along one axis after another, the one of the fewest blocks first, the batch last: so dask goes
        along the longest axis, sample after sample, and what waits for its neighbours lies across that axis. The first
        number of a place is of no axis: it tells sums apart that are to be added in the end.
        """
        kind, first, *space = range(len(next(iter(parts))))
        blocks = {axis: max(place[axis] for place in parts) for axis in space}
        level = 0
        for axis in (*sorted(space, key=blocks.__getitem__), first, kind):
            while any(place[axis] for place in parts):
                pairs: dict[Index, list[Any]] = {}
                level += 1
                for place, key in parts.items():
                    pairs.setdefault((*place[:axis], place[axis] // 2, *place[axis + 1:]), []).append(key)
                parts = {place: (f"{self.name}-sum", *index, level, *place) if keys[1:] else keys[0]
                         for place, keys in pairs.items()}
                self.tasks |= {parts[place]: (added, keys) for place, keys in pairs.items() if keys[1:]}
        self.tasks[self.name, *index] = added, list(parts.values())

    def array(self, chunks: Chunks, dtype: DType) -> da.Array:
        sources: list[Any] = [self.source, *self.others]  # by its types an array of dask is no collection of dask
        graph = HighLevelGraph.from_collections(self.name, self.tasks, sources)
        return da.Array(graph, self.name, chunks, dtype=dtype)


def key_of(array: da.Array | None) -> Any:
    """Of an array's only chunk."""
    return None if array is None else (array.name, *(0,) * array.ndim)


def zeros(shape: Shape, dtype: DType) -> da.Array:
    """As dask makes them, which has no types."""
    return da.zeros(shape, dtype=dtype)  # type: ignore[no-any-return]


def of_dtype(array: da.Array, dtype: DType) -> da.Array:
    """The array as dask converts it, which has no types."""
    return array.astype(dtype)  # type: ignore[no-any-return]


def like_source(source: da.Array, chunks: Chunks, rank: int) -> list[list[Reading]]:
    """What is read along batch and channels by blocks in these chunks."""
    lead = source.ndim - rank
    along = [*chunks[:lead - 1], source.shape[lead - 1:lead]]
    return [readings(as_they_lie, *axis) for axis in zip(source.chunks, along)]


# --- what is asked for ---


class Call(NamedTuple):
    """A checked call: the geometry of the whole arrays, the types of operands and results, and how to go about it."""

    geometry: Geometry
    shape: Shape
    dtype: DType
    own: DType
    settings: Settings

    @property
    def rank(self) -> int:
        return self.geometry.rank

    def local(self, **more: Any) -> dict[str, Any]:
        """The arguments of a task's own call, but for its padding."""
        g, rank = self.geometry, self.rank
        mode = {"padding_mode": "constant", "padding_value": g.padding_value} if g.padding_mode == "constant" else {}
        return {"stride": g.stride[-rank:], "dilation": g.dilation[-rank:], **mode, **more}

    def products(self, **more: Any) -> dict[str, Any]:
        """The same for a sum of products."""
        return self.local(
            groups=self.geometry.groups, algorithm=self.settings.algorithm, dtype=self.settings.result, **more)

    def axes(self, size: Shape) -> list[Axis]:
        """The spatial axes, with an x of this size."""
        g = self.geometry
        values = g.output_size, g.kernel_size, g.stride, g.dilation, g.padding
        rows = zip(size, *(value[-self.rank:] for value in values))
        return [Axis(n, m, k, s, d, p, g.padding_mode) for n, m, k, s, d, p in rows]

    def own_part(self) -> tuple[slice, ...]:
        """The part of an array that the geometry's x is."""
        return box(self.geometry)[-self.rank:]

    def chunks(self, asked: Any, source: da.Array, sizes: Sequence[Sequence[int]]) -> Chunks:
        """The chunks of a result: what was asked for, or the source's along batch and these along space."""
        if asked is None:
            lead = source.chunks[:source.ndim - self.rank - 1]
            return (*lead, self.shape[len(lead):len(lead) + 1], *map(split, sizes, self.shape[-self.rank:]))
        try:
            found = da.core.normalize_chunks(asked, self.shape, dtype=self.own)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"chunks must be what dask takes for an array of shape {self.shape}; got {shown(asked)}") from error
        if len(found[-self.rank - 1]) > 1:
            raise ValueError(f"chunks must keep all channels in one chunk; got {found}")
        return tuple(split(along, sum(along)) for along in found)

    def wide(self) -> "Call":
        """The same with halves as float32, for what is summed once more."""
        is_half = self.dtype.itemsize == 2 and self.settings.result is None
        return self._replace(dtype=FLOAT32, own=FLOAT32) if is_half else self


def transformed(
    call: Call, map: str, source: da.Array, w: da.Array, b: da.Array | None, axes: list[Axis], chunks: Chunks
) -> da.Array:
    """forward or grad_input, in these chunks."""
    graph, rank = Graph(map, source, (w, b), call, chunks), call.rank
    read = [readings(axis.seen if map == "forward" else axis.reaching, *along)
            for axis, *along in zip(axes, source.chunks[-rank:], chunks[-rank:])]
    given = call.products(transposed=map != "forward")
    for index, keys, block, pads in graph.blocks([*like_source(source, chunks, rank), *read], call.dtype):
        task = partial(convolved, block=block, settings={**given, "padding": tuple(pads[-rank:])})
        graph.tasks[graph.name, *index] = task, keys, key_of(w), key_of(b)
    return graph.array(chunks, call.own)


def forward(call: Call, x: da.Array, w: da.Array, b: da.Array | None, asked: Any) -> da.Array:
    if 0 in call.shape:
        return zeros(call.shape, call.own)
    x = x[(..., *call.own_part())]
    axes = call.axes(x.shape[-call.rank:])
    firsts = [[-(-first // axis.stride) for first in bounds_of(along)]  # the first position at or behind each chunk
              for axis, along in zip(axes, x.chunks[-call.rank:])]
    sizes = [[stop - first for first, stop in pairwise(along)] for along in firsts]
    return transformed(call, "forward", x, w, b, axes, call.chunks(asked, x, sizes))


def grad_input(call: Call, y: da.Array, w: da.Array, b: da.Array | None, asked: Any) -> da.Array:
    if 0 in call.shape:
        return zeros(call.shape, call.own)
    g, rank = call.geometry, call.rank
    axes = call.axes(g.input_size[-rank:])
    chunks = call.chunks(asked, y, [[axis.stride * size for size in along]
                                    for axis, along in zip(axes, y.chunks[-rank:])])
    if g.padding_mode in REPEATING:
        return grad_repeated(call, y, w, b, axes, chunks)
    return transformed(call, "grad_input", y, w, b, axes, chunks)


def grad_repeated(
    call: Call, y: da.Array, w: da.Array, b: da.Array | None, axes: list[Axis], chunks: Chunks
) -> da.Array:
    """grad_input where padded cells stand for cells of x: that of x with its padding, added up where a cell recurs."""
    rank, wide = call.rank, call.wide()
    starts = [part.start for part in call.own_part()]
    padded = []
    for axis, start, along in zip(axes, starts, chunks[-rank:]):
        ends = [0, *(min(max(end - start + axis.low, 0), axis.span) for end in bounds_of(along)), axis.span]
        padded.append(tuple(size for first, stop in pairwise(ends) if first < stop
                            for size in split([max(along)], stop - first)))
    whole = transformed(
        wide, "grad_input", of_dtype(y, wide.dtype), of_dtype(w, wide.dtype), None,
        [axis._replace(size=axis.span, low=0) for axis in axes], (*chunks[:-rank], *padded))
    graph = Graph("returned", whole, (b,), call, chunks)
    read = [readings(partial(axis.returning, start), *along)
            for axis, start, *along in zip(axes, starts, padded, chunks[-rank:])]
    for index, keys, block, _ in graph.blocks([*like_source(whole, chunks, rank), *read], wide.own):
        task = partial(returned, block=block, rank=rank)
        graph.tasks[graph.name, *index] = task, keys, key_of(b)
    return of_dtype(graph.array(chunks, wide.own), call.own)


def grad_weight(call: Call, x: da.Array, y: da.Array, per_sample: bool) -> da.Array:
    rank, wide = call.rank, call.wide()
    x = of_dtype(x[(..., *call.own_part())], wide.dtype)
    y = of_dtype(y, wide.dtype)
    batch = y.chunks[:-rank - 1] if per_sample else ()
    graph = Graph("grad_weight", x, (y,), call, per_sample)
    size, outside = call.shape[len(batch):], np.full((1,) * x.ndim, call.geometry.padding_value, wide.dtype)
    given = wide.products(weight_size=size, per_sample=per_sample, padding_mode="zeros", padding_value=0)

    def gradient(index: Index, met: list[Meeting]) -> Any:
        shape = (*(along[place] for along, place in zip(batch, index)), *size)
        block = shape, wide.own, wide.dtype, bool(batch)
        return partial(weight_gradient, met=met, block=block, settings=given)

    parts: dict[Index, dict[Index, Any]] = {}
    for key in graph.weighed(y, meetings(call.axes(x.shape[-rank:]), x.chunks, y.chunks), outside, gradient):
        parts.setdefault(key[2:2 + len(batch)], {})[key[1:]] = key
    for place, keys in parts.items():
        graph.sum_up(keys, (*place, *(0,) * (rank + 2)))
    chunks = (*batch, *((size,) for size in call.shape[len(batch):]))
    return of_dtype(graph.array(chunks, wide.own), call.own)


# --- arguments ---


def dask_array(name: str, value: Any) -> da.Array:
    """The array without empty chunks; TypeError or ValueError unless it is a dask array that can be served."""
    if not isinstance(value, da.Array):
        raise TypeError(f"{name} must be a dask array; got {type(value).__name__}")
    if not isinstance(value._meta, np.ndarray):
        raise TypeError(f"{name} must be a dask array of NumPy's arrays; got {type(value._meta).__name__}")
    if any(size != size for size in value.shape):
        raise ValueError(f"{name} must have chunks of known sizes; got {value.chunks}")
    if any(0 in along and sum(along) for along in value.chunks):
        value = value.rechunk(tuple(split(along, sum(along)) for along in value.chunks))
    return value  # type: ignore[no-any-return]


def check_channels(name: str, array: da.Array, axis: int) -> None:
    if len(array.chunks[axis]) > 1:
        raise ValueError(
            f"{name} must have all channels in one chunk, as rechunk({{{array.ndim + axis}: -1}}) gives; "
            f"got chunks {array.chunks[axis]}")


def checked_operands(
    names: Sequence[str], arrays: Sequence[Any], bias: Any, settings: Settings
) -> tuple[DType, Settings, list[Any]]:
    """The type of the operands, the settings for it, and the operands and the bias as dask arrays."""
    for name, one in zip((*names, "bias"), (*arrays, bias)):
        if isinstance(one, da.Array) and isinstance(one._meta, np.ma.MaskedArray):
            raise TypeError(f"{name} must have no mask; got a masked array")
    given = [np.broadcast_to(np.zeros((), one.dtype), one.shape) if isinstance(one, da.Array) else one
             for one in (*arrays, bias)]
    dtype, found = operands((*names, "bias"), tuple(given[:-1]), (), (given[-1],), settings.result)
    settings = checked(settings, dtype)
    lazy = [one if isinstance(one, da.Array) else None if one is None else da.from_array(array, chunks=-1)
            for one, array in zip((*arrays, bias), found)]
    return dtype, settings, lazy


def convolve(
    rank: int, transposed: bool, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: Any, output_padding: Any, output_size: Any, settings: Settings, chunks: Any,
) -> da.Array:
    """Every forward."""
    names = ("input", "weight", "bias")
    dtype, settings, (input, weight, bias) = checked_operands(
        names[:2], (dask_array("input", input), weight), bias, settings)
    geometry, shape = geometries.problem(
        transposed, rank, input.shape, weight.shape, None if bias is None else bias.shape, None, stride, padding,
        dilation, groups, output_padding, output_size, names, settings.mode)
    check_channels("input", input, -rank - 1)
    call = Call(geometry, shape, dtype, written(dtype, settings), settings)
    map = grad_input if transposed else forward
    return map(call, input, weight.rechunk(-1), None if bias is None else bias.rechunk(-1), chunks)


def _conv(rank: int) -> Callable[..., da.Array]:
    def conv(
        input: da.Array, weight: ArrayLike | da.Array, bias: ArrayLike | da.Array | None = None, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, output_size: Sizes | None = None,
        padding_mode: str = "zeros", padding_value: complex = 0, dtype: DTypeLike | None = None,
        algorithm: str = "auto", chunks: Any = None,
    ) -> da.Array:
        """pyconv.conv{rank}d of a dask array: (batch, channels, *size) or without batch, in chunks along both.

        TypeError or ValueError: as pyconv.conv{rank}d's, and see the door.

        >>> conv{rank}d(da.ones((1, 2, {fives}), chunks=2), np.ones((4, 2, {threes})), stride=2).shape
        (1, 4, {twos})
        """
        settings = settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value, dtype=dtype)
        return convolve(
            rank, False, input, weight, bias, stride, padding, dilation, groups, 0, output_size, settings, chunks)

    return instance(conv, f"conv{rank}d", rank)


def _conv_input(rank: int) -> Callable[..., da.Array]:
    def conv_input(
        input_size: Sequence[SupportsIndex], weight: ArrayLike | da.Array, grad_output: da.Array, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, padding_mode: str = "zeros",
        padding_value: complex = 0, dtype: DTypeLike | None = None, algorithm: str = "auto", chunks: Any = None,
    ) -> da.Array:
        """pyconv.conv{rank}d_input of a dask array: the gradient of conv{rank}d with respect to its input.

        TypeError or ValueError: as pyconv.conv{rank}d_input's, and see the door.

        >>> grad_output = da.ones((1, 4, {twos}), chunks=4)
        >>> conv{rank}d_input((1, 2, {fives}), np.ones((4, 2, {threes})), grad_output, stride=2).shape
        (1, 2, {fives})
        """
        settings = settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value, dtype=dtype)
        size = exact_shape("input_size", input_size)
        native, settings, (w, y, _) = checked_operands(
            ("weight", "grad_output"), (weight, dask_array("grad_output", grad_output)), None, settings)
        geometry, _ = geometries.convolved(
            rank, size, w.shape, None, y.shape, stride, padding, dilation, groups, ("input_size", "weight", "bias"),
            settings.mode)
        check_channels("grad_output", y, -rank - 1)
        call = Call(geometry, size, native, written(native, settings), settings)
        return grad_input(call, y, w.rechunk(-1), None, chunks)

    return instance(conv_input, f"conv{rank}d_input", rank)


def _conv_weight(rank: int) -> Callable[..., da.Array]:
    def conv_weight(
        input: da.Array, weight_size: Sequence[SupportsIndex], grad_output: da.Array, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, per_sample: bool = False,
        padding_mode: str = "zeros", padding_value: complex = 0, dtype: DTypeLike | None = None,
        algorithm: str = "auto",
    ) -> da.Array:
        """pyconv.conv{rank}d_weight of dask arrays: the gradient of conv{rank}d with respect to its weight.

        One chunk, or with per_sample=True one for each chunk of grad_output's batch.
        TypeError or ValueError: as pyconv.conv{rank}d_weight's, and see the door.

        >>> image, grad_output = da.ones((1, 2, {fives}), chunks=2), da.ones((1, 4, {twos}), chunks=4)
        >>> conv{rank}d_weight(image, (4, 2, {threes}), grad_output, stride=2).shape
        (4, 2, {threes})
        """
        check_flag("per_sample", per_sample)
        settings = settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value, dtype=dtype)
        size = exact_shape("weight_size", weight_size)
        names = ("input", "grad_output")
        native, settings, (x, y, _) = checked_operands(
            names, (dask_array("input", input), dask_array("grad_output", grad_output)), None, settings)
        geometry, _ = geometries.convolved(
            rank, x.shape, size, None, y.shape, stride, padding, dilation, groups, ("input", "weight_size", "bias"),
            settings.mode)
        for name, array in zip(names, (x, y)):
            check_channels(name, array, -rank - 1)
        shape = (*y.shape[:-rank - 1], *size) if per_sample else size
        return grad_weight(Call(geometry, shape, native, written(native, settings), settings), x, y, bool(per_sample))

    return instance(conv_weight, f"conv{rank}d_weight", rank)


def _conv_transpose(rank: int) -> Callable[..., da.Array]:
    def conv_transpose(
        input: da.Array, weight: ArrayLike | da.Array, bias: ArrayLike | da.Array | None = None, stride: Sizes = 1,
        padding: Padding = 0, output_padding: Sizes = 0, groups: SupportsIndex = 1, dilation: Sizes = 1, *,
        output_size: Sizes | None = None, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, algorithm: str = "auto", chunks: Any = None,
    ) -> da.Array:
        """pyconv.conv_transpose{rank}d of a dask array: (batch, channels, *size) or without batch, in chunks.

        TypeError or ValueError: as pyconv.conv_transpose{rank}d's, and see the door.

        >>> conv_transpose{rank}d(da.ones((1, 4, {twos}), chunks=4), np.ones((4, 2, {threes})), stride=2).shape
        (1, 2, {fives})
        """
        settings = settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value, dtype=dtype)
        return convolve(rank, True, input, weight, bias, stride, padding, dilation, groups, output_padding,
                        output_size, settings, chunks)

    return instance(conv_transpose, f"conv_transpose{rank}d", rank)


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv1d_input, conv2d_input, conv3d_input = map(_conv_input, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_conv_weight, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))


def conv_bias(grad_output: da.Array, *, batched: bool = True, dtype: DTypeLike | None = None) -> da.Array:
    """pyconv.conv_bias of a dask array: its sum over all axes but the channels'.

    TypeError or ValueError: as pyconv.conv_bias's, and see the door.

    >>> conv_bias(da.ones((2, 3, 4, 4), chunks=(1, 3, 2, 2))).compute()
    array([32., 32., 32.])
    """
    array = dask_array("grad_output", grad_output)
    native, settings, _ = checked_operands(("grad_output",), (array,), None, settings_of(dtype=dtype))
    axis = geometries.channel_axis(array.shape, batched)
    own, others = written(native, settings), tuple(place for place in range(array.ndim) if place != axis)
    wide = FLOAT32 if native.itemsize == 2 and settings.result is None else own
    return of_dtype(array.sum(others, dtype=wide), own)


def unfold(
    input: da.Array, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1, *,
    padding_mode: str = "zeros", padding_value: complex = 0,
) -> da.Array:
    """pyconv.unfold of a dask array: the columns (batch, channels * taps, positions), in chunks along the positions.

    TypeError or ValueError: as pyconv.unfold's, and see the door.

    >>> unfold(da.arange(4, chunks=2).reshape(1, 4), (2,)).compute()
    array([[0, 1, 2],
           [1, 2, 3]])
    """
    dtype, settings, (x, _) = checked_operands(
        ("input",), (dask_array("input", input),), None,
        settings_of(padding_mode=padding_mode, padding_value=padding_value))
    geometry, shape = geometries.unfolded(x.shape, kernel_size, dilation, padding, stride, settings.mode)
    call = Call(geometry, shape, dtype, dtype, settings)
    check_channels("input", x, -call.rank - 1)
    if 0 in shape:
        return zeros(shape, dtype)
    kernel = geometry.kernel_size[-call.rank:]
    most = prod(max(along) for along in x.chunks[-call.rank:]) // prod(kernel)
    x = x[(..., *call.own_part())]
    positions = runs(geometry.output_size[-call.rank:], most)
    chunks = (*x.chunks[:-call.rank - 1], shape[-2:-1], tuple(map(prod, product(*positions))))
    graph, count = Graph("unfold", x, (), call, chunks), len(chunks[-1])
    read = [readings(axis.seen, *along)
            for axis, *along in zip(call.axes(x.shape[-call.rank:]), x.chunks[-call.rank:], positions)]
    blocks = graph.blocks([*like_source(x, chunks[:-1], call.rank), *read], dtype)
    for place, (index, keys, block, pads) in enumerate(blocks):
        given = call.local(kernel_size=kernel, padding=tuple(pads[-call.rank:]))
        key = (graph.name, *index[:-call.rank], place % count)
        graph.tasks[key] = partial(unfolded, block=block, settings=given), keys
    return graph.array(chunks, dtype)
