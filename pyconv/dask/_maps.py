"""The maps in chunks: what each block of a result reads, and which task makes it."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from reprlib import repr as shown
from typing import Any, NamedTuple

import dask.array as da
import numpy as np

from pyconv._dtypes import FLOAT32, DType
from pyconv._geometry import Geometry, box
from pyconv._integers import Shape
from pyconv._padding import REPEATING
from pyconv._settings import Settings
from pyconv.dask._chunks import Axis, Chunks, Meeting, bounds_of, meetings, readings, split
from pyconv.dask._graph import Graph, Index, key_of, like_source, of_dtype, zeros
from pyconv.dask._tasks import convolved, returned, weight_gradient


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
