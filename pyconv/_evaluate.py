"""From checked arguments to arrays: check `out` and the buffers of every result, and only then allocate and run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pyconv import _threads
from pyconv._arguments import (
    DType,
    channels_last,
    check_algorithm,
    check_flag,
    check_out,
    check_stream,
    flat_buffer,
    ready,
    writing_place,
)
from pyconv._backend import Array, cpu, cuda, gpu_room
from pyconv._geometry import Geometry
from pyconv._integers import Shape

Named = tuple[tuple[str, Array | None], ...]


class Result(NamedTuple):
    """One array that a call returns: the sum of its terms (map, first, second), plus bias along the channels."""

    shape: Shape
    terms: tuple[tuple[str, Array, Array], ...]
    bias: Array | None = None


class Settings(NamedTuple):
    """How a call goes about its geometry: the scratch that the caller lends, and how products are made."""

    finput: Any = None
    fgrad_input: Any = None
    algorithm: str = "auto"
    allow_tf32: bool = False
    stream: Any = None
    accumulate: bool = False  # add the results to what their `out` holds


DEFAULTS = Settings()
MAPS_OF_BUFFER = {"finput": ("forward", "grad_weight"), "fgrad_input": ("grad_input",)}


def check_settings(settings: Settings, dtype: DType) -> None:
    """TypeError or ValueError unless arrays of that dtype can be treated so; the buffers are checked in their turn."""
    if settings is not DEFAULTS:
        check_algorithm(settings.algorithm, dtype)
        check_flag("allow_tf32", settings.allow_tf32)
        check_flag("accumulate", settings.accumulate)
        check_stream(settings.stream, dtype)


def plan_of(map: str, geometry: Geometry, dtype: DType, settings: Settings, device: int | None) -> Any:
    """The plan of the backend that the dtype belongs to; device is None in main memory."""
    if device is None:
        return cpu.plan(map, geometry, dtype, settings.algorithm)
    return cuda().plan(
        map, geometry, dtype, settings.algorithm, allow_tf32=bool(settings.allow_tf32), device=device
    )


def scratch_minimum(name: str, geometry: Geometry, dtype: DType, settings: Settings, device: int | None) -> int:
    """The elements that a buffer of this name needs: one number for all of its maps."""
    return max(  # type: ignore[no-any-return]
        plan_of(map, geometry, dtype, settings, device).scratch_minimum for map in MAPS_OF_BUFFER[name]
    )


def no_out(name: str) -> ValueError:
    """What to raise where a result has nothing to be added to."""
    return ValueError(f"{name} must be given where accumulate is True; got None")


def check_outs(
    out: Any, shapes: Sequence[Shape | None], dtype: DType, named: Named, settings: Settings
) -> Sequence[Any]:
    """One checked `out` or None for each result; a shape of None stands for a result that is masked."""
    if out is None:
        if settings.accumulate and any(shape is not None for shape in shapes):
            raise no_out("out")
        return (None,) * len(shapes)
    if not isinstance(out, tuple | list):
        raise TypeError(f"out must be a tuple of {len(shapes)} arrays or None; got {type(out).__name__}")
    if len(out) != len(shapes):
        raise ValueError(f"out must be a tuple of {len(shapes)} arrays or None; got {len(out)} of them")
    outs = list(out)
    for place, (given, shape) in enumerate(zip(out, shapes)):
        name = f"out[{place}]"
        if given is None:
            if settings.accumulate and shape is not None:
                raise no_out(name)
            continue
        if shape is None:
            raise ValueError(f"{name} must be None where output_mask is False; got an array")
        outs[place] = check_out(name, given, shape, dtype, named)
        named += ((name, outs[place]),)
    return outs


def evaluate(
    geometry: Geometry, dtype: DType, results: Sequence[Result | None], outs: Sequence[Any], named: Named,
    settings: Settings,
) -> list[Any]:
    """The results; None for None. `outs` are checked already; `named` are the operands, the first of them not None."""
    if settings is not DEFAULTS:
        named += tuple((f"out[{place}]" if len(outs) > 1 else "out", out) for place, out in enumerate(outs))
    device = None if isinstance(dtype, np.dtype) else named[0][1].device
    work = [result and _calls(geometry, dtype, result, out, named, settings, device)
            for result, out in zip(results, outs)]
    if device is not None:
        from_columns = settings.algorithm == "columns"
        return gpu_room("calls").evaluate(
            geometry, results, work, outs, named[0][1], settings.stream, from_columns, bool(settings.accumulate)
        )
    return [
        None if result is None else _run(geometry, dtype, result, calls, out, bool(settings.accumulate))
        for result, calls, out in zip(results, work, outs)
    ]


def _laid(
    geometry: Geometry, dtype: DType, map: str, first: Array, second: Array, out: Any
) -> tuple[Geometry, Array, Array]:
    """The geometry with the memory order of x and y, and the views of those whose channels lie last in memory."""
    rank = geometry.rank
    read = channels_last(first, rank, dtype)
    also = channels_last(second, rank, dtype) if map == "grad_weight" else None
    written = None if out is None or map == "grad_weight" else channels_last(np.asarray(out), rank, dtype)
    if read is None and also is None and written is None:
        return geometry, first, second
    x, y = {"forward": (read, written), "grad_input": (written, read), "grad_weight": (read, also)}[map]
    geometry = geometry._replace(x_last=x is not None, y_last=y is not None)
    return geometry, first if read is None else read, second if also is None else also


def _calls(
    geometry: Geometry, dtype: DType, result: Result, out: Any, named: Named, settings: Settings, device: int | None
) -> list[tuple[Any, Array, Array, Array | None]]:
    """(plan, first, second, scratch) of each term; a term over nothing at all adds nothing and has no plan."""
    calls = []
    for map, first, second in result.terms:
        if first.size and second.size and 0 not in result.shape:
            laid = geometry
            if device is None and settings.algorithm != "columns":
                laid, first, second = _laid(geometry, dtype, map, first, second, out)
            if device is None:
                plan = cpu.plan(map, laid, dtype, settings.algorithm)
            else:
                plan = plan_of(map, geometry, dtype, settings, device)
            scratch = None
            if settings is not DEFAULTS:
                name = "fgrad_input" if map == "grad_input" else "finput"
                buffer = getattr(settings, name)
                if buffer is not None:
                    least = scratch_minimum(name, geometry, dtype, settings, device)
                    scratch = flat_buffer(name, buffer, dtype, least, named)
                    if device is None:
                        scratch = plan.enough(scratch)
            calls.append((plan, first, second, scratch))
    return calls


def _run(
    geometry: Geometry, dtype: DType, result: Result, calls: list[Any] | None, out: Any, accumulate: bool
) -> Any:
    bias = None if result.bias is None else ready(result.bias, dtype)
    target = None
    if calls and out is not None and result.terms[0][0] != "grad_weight":
        target = channels_last(np.asarray(out), geometry.rank, dtype)
    if target is None:
        target = writing_place(out, result.shape, dtype, accumulate)
    if calls:
        threads = _threads.get_num_threads()
        for plan, first, second, scratch in calls:
            plan.run(ready(first, dtype), ready(second, dtype), target, bias, scratch, accumulate, threads=threads)
            bias, accumulate = None, True
    else:
        _put(target, 0 if bias is None else bias.reshape(-1, *(1,) * geometry.rank), accumulate)
    return delivered(target, out)


def _put(target: Array, value: Any, accumulate: bool) -> None:
    if accumulate:
        target += value
    else:
        target[...] = value


def delivered(target: Array, out: Any) -> Any:
    """`out`, holding what `target` holds; `target` itself where there is no out."""
    if out is None:
        return target
    if not np.may_share_memory(out, target):
        np.asarray(out)[...] = target
    return out


def sum_channels(array: Array, axis: int, dtype: DType, out: Any, stream: Any, accumulate: bool) -> Any:
    """The sum over all axes but one, into `out` where it is not None; added to it where accumulate."""
    if not isinstance(dtype, np.dtype):
        return gpu_room("calls").sum_channels(array, axis, out, stream, bool(accumulate))
    channels = array.shape[axis]
    target = writing_place(out, (channels,), dtype, accumulate)
    if not array.size:
        _put(target, 0, accumulate)
    elif not cpu.is_ready(array, dtype):  # NumPy sums any layout without a copy, if more slowly
        others = tuple(place for place in range(array.ndim) if place != axis)
        _put(target, np.asarray(array).sum(others, dtype=np.float64), accumulate)
    else:
        batch = array.shape[0] if axis else 1
        columns = array.reshape(batch, channels, array.size // (batch * channels))
        sums = np.empty_like(target) if accumulate else target
        cpu.channel_sum(columns, sums, threads=_threads.get_num_threads())
        if accumulate:
            target += sums
    return delivered(target, out)
