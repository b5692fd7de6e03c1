"""Checked GPU arrays to the backend and back: the stream of a call, new arrays, and what the backend is given.

Below this every array of the roles x and y, and every array of columns, has a batch axis; weights are as they are.
Strides are any; nothing is copied here.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from math import prod
from typing import Any

from pyconv._backend import cuda
from pyconv._geometry import Geometry, box
from pyconv._gpu import streams
from pyconv._gpu.arrays import DeviceArray, DeviceType, Kind
from pyconv._integers import Shape

NOTHING = nullcontext()
Call = tuple[Any, DeviceArray, DeviceArray, DeviceArray | None]  # plan, first, second, scratch


def ordered(
    stream: Any, leader: DeviceArray, others: Sequence[DeviceArray]
) -> tuple[int, AbstractContextManager[Any]]:
    """The handle of the stream that a call runs on, and a context in which new arrays are made in its order.

    It is the one that the caller names; else the one that the first operand names (after which nothing has to wait for
    that operand); else the current stream of the first operand's framework. It waits, on the device, for every other
    stream that an array's protocol names; and where the caller names none, for the current streams of the other
    arrays' frameworks. A caller who names a stream keeps the frameworks' streams in order with it, as in those
    frameworks: waiting here would break the capture of a graph.
    """
    kind, device = leader.kind, leader.device
    arrays = [leader, *others]
    if stream is None:
        for array in arrays:
            if array.kind is not kind or array.after is not None:
                break
        else:
            return kind.stream(device), NOTHING
    current = {array.kind: array.kind.stream(device) for array in arrays}
    if stream is not None:
        handle = streams.handle_of(stream)
    else:
        handle = current[kind] if leader.after is None else leader.after
    for after in {_after(array, current, stream is None) for array in arrays} - {None, handle}:
        streams.wait(handle, after, device)  # type: ignore[arg-type]
    return handle, _using([kind for kind, now in current.items() if now != handle], handle, device)


@contextmanager
def _using(kinds: Sequence[Kind], stream: int, device: int) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(kind.using(stream, device))
        yield


def _after(array: DeviceArray, current: dict[Any, int], frameworks_too: bool) -> int | None:
    if array.after is not None:
        return array.after
    return current[array.kind] if frameworks_too else None


def _batched(array: DeviceArray, rank: int) -> DeviceArray:
    """With a batch axis in front of the channels and `rank` more axes."""
    if len(array.shape) > rank + 1:
        return array
    step = array.shape[0] * array.strides[0]
    return array._replace(shape=(1, *array.shape), strides=(step, *array.strides))


def part_of(array: DeviceArray, part: tuple[slice, ...]) -> DeviceArray:
    """The array with its last axes cut to slices."""
    lead = array.ndim - len(part)
    ranges = [range(*cut.indices(n)) for cut, n in zip(part, array.shape[lead:])]
    first = sum(cells.start * step for cells, step in zip(ranges, array.strides[lead:]))
    return array._replace(
        address=array.address + first * array.dtype.size, shape=(*array.shape[:lead], *map(len, ranges)))


def _place(out: DeviceArray | None, shape: Shape, leader: DeviceArray, dtype: DeviceType) -> DeviceArray:
    return leader.kind.empty(shape, dtype, leader.device) if out is None else out


def evaluate(
    geometry: Geometry, results: Sequence[Any], work: Sequence[list[Call] | None], outs: Sequence[DeviceArray | None],
    leader: DeviceArray, stream: Any, from_columns: bool, accumulate: bool, dtype: DeviceType,
) -> list[Any]:
    """The arrays of the results, of that dtype, of the leader's kind where no `out` is given; None for None.

    Where accumulate, each is added to what its `out` holds.
    """
    others = [out for out in outs if out is not None]
    for result, calls in zip(results, work):
        if result is not None:
            if result.bias is not None:
                others.append(result.bias)
            for _, first, second, scratch in calls or ():
                others += (first, second) if scratch is None else (first, second, scratch)
    handle, context = ordered(stream, leader, others)
    found: list[Any] = []
    with context:
        for result, calls, out in zip(results, work, outs):
            if result is None:
                found.append(None)
                continue
            target = leader.kind.empty(result.shape, dtype, leader.device) if out is None else out
            _run(geometry, result, calls, target, handle, from_columns, accumulate)
            found.append(target.owner)
    return found


def _run(
    geometry: Geometry, result: Any, calls: list[Call] | None, target: DeviceArray, stream: int, from_columns: bool,
    accumulate: bool,
) -> None:
    rank, bias = geometry.rank, result.bias
    map = result.terms[0][0] if result.terms else ""
    to_weight, written = map == "grad_weight", target
    if not to_weight or geometry.per_sample:
        written = _batched(target, rank + to_weight)
    if calls and map == "grad_input" and geometry.padding_mode not in ("zeros", "constant"):
        part = box(geometry, result.shape[-rank:])
        if part is not None:  # cropped cells get the bias
            cuda().fill(written, 0 if bias is None else bias, accumulate, stream=stream)
            written, bias, accumulate = part_of(written, part), None, True
    if calls:
        for plan, first, second, scratch in calls:
            first = _batched(first, 1 if from_columns else rank)
            if to_weight:
                second = _batched(second, rank)
            plan.run(first, second, written, bias, scratch, accumulate, stream=stream)
            bias, accumulate = None, True
    elif target.size:
        cuda().fill(written, 0 if bias is None else bias, accumulate, stream=stream)


def sum_channels(
    array: DeviceArray, axis: int, out: DeviceArray | None, stream: Any, accumulate: bool, dtype: DeviceType
) -> Any:
    """The sum over all axes but one, of that dtype, added to what `out` holds where accumulate."""
    if array.size:
        cuda().check_channel_sum(array, axis)
    handle, context = ordered(stream, array, () if out is None else (out,))
    with context:
        target = _place(out, (array.shape[axis],), array, dtype)
        if array.size:
            cuda().channel_sum(array, axis, target, accumulate, stream=handle)
        elif target.size:
            cuda().fill(target, 0, accumulate, stream=handle)
        return target.owner


def unfold(
    geometry: Geometry, source: DeviceArray, shape: Shape, out: DeviceArray | None, fold: bool, stream: Any,
    accumulate: bool, dtype: DeviceType,
) -> Any:
    """The columns of `source`, or with fold the input whose columns it sums, added to `out` where accumulate.

    The result is of that dtype.
    """
    if source.size and prod(shape):
        cuda().check_unfold(geometry)
    handle, context = ordered(stream, source, () if out is None else (out,))
    with context:
        target = _place(out, shape, source, dtype)
        if source.size and target.size:
            input, columns = (target, source) if fold else (source, target)
            input, columns = _batched(input, geometry.rank), _batched(columns, 1)
            part = box(geometry, input.shape[-geometry.rank:])
            if part is not None:  # cropped cells have no columns
                cuda().fill(input, 0, accumulate, stream=handle)
                input, accumulate = part_of(input, part), True
            cuda().unfold(geometry, input, columns, fold, accumulate, stream=handle)
        elif target.size:
            cuda().fill(target, 0, accumulate, stream=handle)
        return target.owner
