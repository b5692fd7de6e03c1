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

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any, SupportsIndex

import dask.array as da
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pyconv import _geometries as geometries
from pyconv._arguments import check_flag, operands
from pyconv._dtypes import FLOAT32, DType
from pyconv._integers import exact_shape
from pyconv._ops import instance
from pyconv._settings import Settings, checked, settings_of, written
from pyconv._signatures import Padding, Sizes
from pyconv.dask._chunks import readings, runs, split
from pyconv.dask._graph import Graph, like_source, of_dtype, zeros
from pyconv.dask._maps import Call, forward, grad_input, grad_weight
from pyconv.dask._tasks import unfolded

__all__ = [
    "conv1d", "conv1d_input", "conv1d_weight", "conv2d", "conv2d_input", "conv2d_weight", "conv3d", "conv3d_input",
    "conv3d_weight", "conv_bias", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "unfold",
]


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
