"""Graphs of tasks: what a block's task reads of its source's chunks, and the arrays that dask makes of them."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from operator import getitem
from typing import Any

import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from pyconv._dtypes import DType
from pyconv._integers import Shape
from pyconv.dask._chunks import Chunks, Meeting, Piece, Reading, as_they_lie, near_and_far, readings
from pyconv.dask._tasks import added, cut, with_edges

Index = tuple[int, ...]


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
    """As dask makes them, which has no types; where there are none, in one chunk: dask finds no others."""
    return da.zeros(shape, dtype=dtype, chunks="auto" if all(shape) else shape)  # type: ignore[no-any-return]


def of_dtype(array: da.Array, dtype: DType) -> da.Array:
    """The array as dask converts it, which has no types."""
    return array.astype(dtype)  # type: ignore[no-any-return]


def like_source(source: da.Array, chunks: Chunks, rank: int) -> list[list[Reading]]:
    """What is read along batch and channels by blocks in these chunks."""
    lead = source.ndim - rank
    along = [*chunks[:lead - 1], source.shape[lead - 1:lead]]
    return [readings(as_they_lie, *axis) for axis in zip(source.chunks, along)]
