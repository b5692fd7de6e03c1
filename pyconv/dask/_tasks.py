"""Tasks: what a worker makes of a chunk or of a block, on one thread."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from pyconv._any_rank import convolution
from pyconv._columns import unfold
from pyconv._dtypes import DType
from pyconv._integers import Shape
from pyconv._ops import conv1d_weight, conv2d_weight, conv3d_weight
from pyconv._threads import num_threads
from pyconv.dask._chunks import Meeting, Part

WEIGHT = {1: conv1d_weight, 2: conv2d_weight, 3: conv3d_weight}


def cut(chunk: Any, parts: Sequence[Part]) -> Any:
    """A part of a chunk, for which the chunk itself need not be kept."""
    part = chunk[tuple(slice(*part) for part in parts)]
    return part if part.shape == chunk.shape else part.copy()


def edges_of(chunk: Any, edges: Sequence[tuple[Part, ...]]) -> dict[tuple[Part, ...], Any]:
    """Those parts of a chunk."""
    return {parts: cut(chunk, parts) for parts in edges}


def taken(source: Any, parts: tuple[Part, ...]) -> Any:
    """A part of a chunk, or of the edges that were cut of it."""
    return source[parts] if isinstance(source, dict) else source[tuple(slice(*part) for part in parts)]


def joined(pieces: list[Any], places: list[list[tuple[int, int]]], shape: Shape, dtype: DType) -> Any:
    """The block that the pieces make up."""
    if len(pieces) == 1 and pieces[0].shape == shape:
        return pieces[0]
    block = np.empty(shape, dtype)
    for piece, place in zip(pieces, places):
        block[tuple(slice(*axis) for axis in place)] = piece
    return block


def convolved(pieces: list[Any], weight: Any, bias: Any, block: Any, settings: dict[str, Any]) -> Any:
    with num_threads(1):
        return convolution(joined(pieces, *block), weight, bias, output_padding=0, **settings)


def weight_gradient(
    sources: list[Any], grad_output: Any, met: list[Meeting], block: Any, settings: dict[str, Any]
) -> Any:
    """The sum of what cells, each of its source, give with the positions of grad_output that meet them."""
    shape, own, dtype, per_sample = block
    sums = np.zeros(shape, own)
    with num_threads(1):
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
    with num_threads(1):
        return unfold(joined(pieces, *block), **settings)


def added(parts: list[Any]) -> Any:
    return reduce(np.add, parts)


def returned(pieces: list[Any], bias: Any, block: Any, rank: int) -> Any:
    """The sum of all pieces, each in its place, and of the bias."""
    places, shape, dtype = block
    sums = np.zeros(shape, dtype)
    if bias is not None:
        sums += bias.reshape(-1, *(1,) * rank)
    for piece, place in zip(pieces, places):
        alike = tuple(axis for axis, (first, stop) in enumerate(place) if stop - first < piece.shape[axis])
        sums[tuple(slice(*axis) for axis in place)] += piece.sum(alike, dtype=dtype, keepdims=True)
    return sums
