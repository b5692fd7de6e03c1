"""From checked arguments to arrays: check `out` and the buffers of every result, and only then allocate and run."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pyconv import _threads
from pyconv._arguments import channels_last, check_out, flat_buffer, ready, writing_place
from pyconv._backend import Array, cpu, cuda, gpu_room
from pyconv._dtypes import FLOAT32, FLOAT64, DType, is_integer, scratch_dtype
from pyconv._edges import is_far
from pyconv._geometry import BUFFERS, OUTS, ROLES, Geometry, alone, box, is_around_nothing, linear
from pyconv._integers import Shape
from pyconv._known import keep, look, orders_of, viewed
from pyconv._libraries import Visitor, check_target, given_back, placed, tell_of_writing
from pyconv._memory import empty, shares
from pyconv._outer import of_volumes
from pyconv._pieces import is_dense_layer, takes_last_weight
from pyconv._settings import DEFAULTS, Settings, written

Named = tuple[tuple[str, Array | None], ...]


# A map, its two operands in the order of arguments of a backend's plan, and whether the one in the role of x is a
# direction: a constant around x has none.
Term = tuple[str, Array, Array, bool]


class Result(NamedTuple):
    """One array that a call returns: the sum of its terms, plus bias along the channels.

    Where channel_axis is given it has no terms: it is the sum of the first operand over all axes but that one, which is
    the channels', or but those up to that one where the result has two axes.
    """

    shape: Shape
    terms: tuple[Term, ...] = ()
    bias: Array | None = None
    new: Callable[[], Any] | None = None  # makes it on a GPU, where that is not left to the operands' framework
    channel_axis: int | None = None


SUMS = 512  # channels that NumPy sums at a time
AT_ONCE = 2**20  # elements of samples that are written beside an `out` with gaps: fewer, and weights are packed often
LARGE = 2**16  # elements of a sample that is worth a run of its own
MAPS_OF_BUFFER = {name: tuple(map for map in BUFFERS if BUFFERS[map] == name) for name in BUFFERS.values()}


def plan_of(map: str, geometry: Geometry, dtype: DType, settings: Settings, device: int | None) -> Any:
    """The plan of the backend that the dtype belongs to; device is None in main memory."""
    if device is None:
        if settings.result is None:
            return cpu.plan(map, geometry, dtype, settings.algorithm)
        return cpu.plan(map, geometry, dtype, settings.algorithm, settings.result)
    return cuda().plan(
        map, alone(geometry), dtype, settings.algorithm, settings.result, allow_tf32=bool(settings.allow_tf32),
        device=device)


def scratch_minimum(name: str, geometry: Geometry, dtype: DType, settings: Settings, device: int | None) -> int:
    """The elements that a buffer of this name needs: one number for all of its maps."""
    return max(  # type: ignore[no-any-return]
        plan.scratch_minimum for plan in plans_of(name, geometry, dtype, settings, device)
    )


def plans_of(name: str, geometry: Geometry, dtype: DType, settings: Settings, device: int | None) -> list[Any]:
    """The plans that a buffer of this name serves; around a direction a constant is nothing."""
    maps = MAPS_OF_BUFFER[name]
    ways = [(map, geometry) for map in maps]
    if geometry.padding_mode == "constant":
        ways = [(map, linear(geometry)) for map in maps] + (ways if name == "finput" else [])
    return [plan_of(map, way, dtype, settings, device) for map, way in ways]


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
        outs[place] = check_out(name, given, shape, written(dtype, settings), named)
        named += ((name, outs[place]),)
    return outs


def evaluate_known(
    numbers: tuple[Any, ...], arrays: tuple[Any, ...], named: Named, out: Any
) -> tuple[Any, Any]:
    """The key of a call in main memory whose operands are read, with DEFAULTS as settings, and its result where one
    like it is known; each None where there is none. arrays: as _known has them. What is written to says nothing of it:
    `out` is checked as ever.
    """
    key, found = look(numbers, (), arrays, (None, None))
    if found is None:
        return key, None
    if out is not None:
        out = check_out("out", out, found.shape, found.dtype, named)
        if not cpu.is_ready(out, found.dtype):
            return None, None
        tell_of_writing(out)
    like = named[0][1]
    target = placed(out, like, found.shape, found.dtype)
    return key, delivered(
        found.run(*arrays, target, None), target, like)  # type: ignore[call-arg]


def evaluate_one(
    geometry: Geometry | None, dtype: DType, result: Result, out: Any, named: Named, settings: Settings, key: Any = None
) -> Any:
    """The one result of a call, to `out` where it is not None; `key` tells it from others, where it is kept. A sum of
    channels has no geometry."""
    if out is None and settings.accumulate:
        raise no_out("out")
    if not (dtype is FLOAT32 or dtype is FLOAT64 or isinstance(dtype, np.dtype)):
        return _evaluate_on_gpu(geometry, dtype, (result,), (out,), named, settings, True, key)[0]
    if out is not None:
        out = check_out("out", out, result.shape, written(dtype, settings), named)
    if geometry is None:
        tell_of_writing(out)
        return _sum_channels(named[0][1], result, dtype, out, settings)
    if settings is not DEFAULTS:
        named += (("out", out),)
    calls = _calls(geometry, dtype, result, out, named, settings, None)
    own = written(dtype, settings)
    if key is not None and calls and (out is None or key[4] is not None or cpu.is_ready(out, own)):
        orders, (map, first, _, is_tangent) = orders_of(key, geometry.rank), result.terms[0]
        stands_in = geometry.padding_mode == "constant" and first.size == 0  # another, which each call makes: see x_of
        if not stands_in and (orders is None or _takes_all(map, _summed(map, geometry, is_tangent), dtype, orders)):
            keep(key, calls[0][0], result.shape, own, orders, settings.accumulate)
    if type(out) is Visitor or settings is not DEFAULTS:
        tell_of_writing(out, settings.finput, settings.fgrad_input)
    if out is None and type(named[0][1]) is Visitor:
        out = placed(None, named[0][1], result.shape, own)
    return delivered(_run(geometry, dtype, result, calls, out, settings), out, named[0][1])


def evaluate(
    geometry: Geometry, dtype: DType, results: Sequence[Result | None], outs: Sequence[Any], named: Named,
    settings: Settings, key: Any = None,
) -> list[Any]:
    """The results; None for None. `outs` are checked already; `named` are the operands, the first of them not None.

    key: tells the call from others on a GPU, where it is kept.
    """
    if not isinstance(dtype, np.dtype):
        return _evaluate_on_gpu(geometry, dtype, results, outs, named, settings, False, key)
    if settings is not DEFAULTS:
        named += tuple(zip(OUTS[len(outs)], outs))
    work = [result and _calls(geometry, dtype, result, out, named, settings, None)
            for result, out in zip(results, outs)]
    if settings is not DEFAULTS or Visitor in map(type, outs):
        tell_of_writing(*outs, settings.finput, settings.fgrad_input)
    if type(named[0][1]) is Visitor:
        outs = [result and placed(out, named[0][1], result.shape, written(dtype, settings))
                for result, out in zip(results, outs)]
    return [
        None if result is None else _sum_channels(named[0][1], result, dtype, out, settings)
        if result.channel_axis is not None else delivered(
            _run(geometry, dtype, result, calls, out, settings), out, named[0][1])
        for result, calls, out in zip(results, work, outs)
    ]


def run_as_it_lies(
    map: str, geometry: Geometry, dtype: DType, first: Array, second: Array, bias: Array | None, out: Array
) -> bool:
    """Whether a plan takes these arrays as they are, and has summed them: most calls with the usual settings, or with a
    padding mode."""
    if geometry.padding_mode == "constant" or not first.size or not second.size:
        return False
    key = cpu.form((), (first, second, bias), (out, None), geometry.rank)
    if key is None:
        return False
    orders = orders_of(key, geometry.rank)
    if orders is not None:
        if not _takes_all(map, geometry, dtype, orders):
            return False
        geometry = _lying(map, geometry, orders)
        first, second, out = viewed(orders, first, second, out)
    cpu.plan(map, geometry, dtype).run(first, second, out, bias, threads=_threads.get_num_threads())
    return True


def _evaluate_on_gpu(
    geometry: Geometry | None, dtype: DType, results: Sequence[Result | None], outs: Sequence[Any], named: Named,
    settings: Settings, unchecked: bool, key: Any = None,
) -> Any:
    """The results; None for None. What a call like another needs not check again, torch may have changed.

    unchecked, of a single result: its `out` is as the user gave it, and `key` tells the call where it may be known.
    """
    leader = named[0][1]
    if unchecked:
        check_target("out", outs[0], leader)
    if settings.finput is not None or settings.fgrad_input is not None:
        check_target("finput", settings.finput, leader)
        check_target("fgrad_input", settings.fgrad_input, leader)
    return gpu_room("calls").evaluate(
        geometry, dtype, results, outs, named, settings, _calls, tell_of_writing, unchecked, key)


def _summed(map: str, geometry: Geometry, is_tangent: bool) -> Geometry:
    """The geometry of a term's plan: to a gradient with respect to x, or of a tangent, constant cells are nothing."""
    is_linear = geometry.padding_mode == "constant" and (is_tangent or map == "grad_input")
    return linear(geometry) if is_linear else geometry


def _takes_last(map: str, geometry: Geometry, dtype: DType, role: str) -> bool:
    """Whether a plan takes x, y or w with its channels last; one that is far (see _edges) takes copies in C order. The
    weight so only where it is not converted and nothing but a weight."""
    if role == "w" and not (dtype in (FLOAT32, FLOAT64) and takes_last_weight(map, geometry)):
        return False
    return map != "grad_input" or geometry.padding_mode == "zeros" or not is_far(of_volumes(geometry))


def _takes_all(map: str, geometry: Geometry, dtype: DType, lasts: Sequence[Any]) -> bool:
    """Whether a plan takes all of a map's arrays with their channels last that are not None here, of a dense layer's
    weight if the input's do so too."""
    found = {role: last is not None for role, last in zip(ROLES[map], lasts)}
    alike = found["x"] or not found["w"] or not is_dense_layer(map, geometry)
    return alike and all(not found[role] or _takes_last(map, geometry, dtype, role) for role in found)


def _lying(map: str, geometry: Geometry, lasts: Sequence[Any]) -> Geometry:
    """The geometry where the channels of those of a map's arrays lie last that are not None."""
    found = {role: last is not None for role, last in zip(ROLES[map], lasts)}
    return geometry._replace(x_last=found["x"], y_last=found["y"], w_last=found["w"])


def _last_target(
    map: str, geometry: Geometry, dtype: DType, first: Array, out: Any, own: DType
) -> Array | None:
    """The view of `out` with its channels as the last axis where a plan writes it so: if it lies so in memory, or each
    of its samples does, as one of them alone would; a dense layer's weight only if the input does too."""
    c = ROLES[map][2]
    view = None if out is None else channels_last(np.asarray(out), geometry.rank, own, c != "w")
    if view is None or not _takes_last(map, geometry, dtype, c):
        return None
    alike = c != "w" or not is_dense_layer(map, geometry)
    return view if alike or channels_last(first, geometry.rank, dtype, True) is not None else None


def _laid(
    geometry: Geometry, dtype: DType, map: str, first: Array, second: Array, out: Any, settings: Settings
) -> tuple[Geometry, Array, Array]:
    """The geometry with the memory order of x and y, and the views of those whose channels lie last in memory."""
    def last_of(role: str, array: Array, may_copy: bool) -> Array | None:
        last = channels_last(array, geometry.rank, dtype, may_copy)
        return None if last is None or not _takes_last(map, geometry, dtype, role) else last

    a, b, c = ROLES[map]
    read, also = last_of(a, first, True), last_of(b, second, b != "w")
    target = _last_target(map, geometry, dtype, first, out, written(dtype, settings))
    if b == "w" and also is not None and (target if c == "x" else read) is None and is_dense_layer(map, geometry):
        also = None  # is copied to lie as the input does
    if read is None and also is None and target is None:
        return geometry, first, second
    laid = _lying(map, geometry, (read, also, target))
    return laid, first if read is None else read, second if also is None else also


def _calls(
    geometry: Geometry, dtype: DType, result: Result, out: Any, named: Named, settings: Settings, device: int | None
) -> list[tuple[Any, Array, Array, Array | None]]:
    """(plan, first, second, scratch) of each term; a term over nothing at all adds nothing and has no plan."""
    calls = []
    for map, first, second, is_tangent in result.terms:
        laid = _summed(map, geometry, is_tangent)
        if laid.padding_mode != "zeros" and map != "grad_input":
            laid, first = x_of(geometry, first)
        if (first.size or is_around_nothing(laid)) and second.size and 0 not in result.shape:
            if device is None and settings.algorithm != "columns":
                laid, first, second = _laid(laid, dtype, map, first, second, out, settings)
            if device is None and settings.result is None:
                plan = cpu.plan(map, laid, dtype, settings.algorithm)
            else:
                plan = plan_of(map, laid, dtype, settings, device)
            scratch = None
            if settings is not DEFAULTS:
                name = BUFFERS[map]
                buffer = getattr(settings, name)
                if buffer is not None:
                    least = scratch_minimum(name, geometry, dtype, settings, device)
                    real = scratch_dtype(dtype, written(dtype, settings))
                    scratch = flat_buffer(name, buffer, real, least, named)
            calls.append((plan, first, second, scratch))
    return calls


def x_of(geometry: Geometry, array: Any) -> tuple[Geometry, Any]:
    """The array that is read: on a GPU the part that the geometry's x is. Where it has no cell, one of what is around
    it; on a GPU it has none, and nor has the geometry's x."""
    rank, on_gpu = geometry.rank, not isinstance(array, np.ndarray)
    size = array.shape[-rank:]
    if 0 in size and geometry.padding_mode == "constant":
        if on_gpu:
            return geometry._replace(input_size=(*geometry.input_size[:-rank], *size)), array
        shape = (*array.shape[:-rank], *geometry.input_size[-rank:])
        return geometry, np.full(shape, geometry.padding_value, array.dtype)
    return geometry, gpu_room("calls").part_of(array, box(geometry)[-rank:]) if on_gpu else array


def _run(
    geometry: Geometry, dtype: DType, result: Result, calls: list[Any] | None, out: Any, settings: Settings
) -> Array:
    own, accumulate = dtype if settings.result is None else settings.result, settings.accumulate
    bias = None if result.bias is None else ready(result.bias, own)
    if not calls:
        value = 0 if bias is None else bias.reshape(-1, *(1,) * geometry.rank)
        return _put(empty(result.shape, own) if out is None else np.asarray(out), value, accumulate)
    target = None
    if out is not None and not cpu.is_ready(out, own):
        map, first, _, is_tangent = result.terms[0]
        to_weight = map == "grad_weight"
        view = _last_target(map, _summed(map, geometry, is_tangent), dtype, first, out, own)
        if view is not None and cpu.is_ready(view, own):
            target = view
        elif out.ndim == geometry.rank + 2 + to_weight and (geometry.per_sample or not to_weight):
            lying = np.asarray(out) if view is None else view
            return _run_by_samples(dtype, own, bias, calls, lying, accumulate, to_weight)
    if target is None:
        target = writing_place(out, result.shape, own, accumulate)
    _run_terms(dtype, bias, calls, target, accumulate)
    return target


def _run_terms(dtype: DType, bias: Array | None, calls: list[Any], target: Array, accumulate: bool) -> None:
    threads = _threads.get_num_threads()
    for plan, first, second, scratch in calls:
        plan.run(  # which frees what is enough for it before the next plan asks
            ready(first, dtype), ready(second, dtype), target, bias, plan.enough(scratch), accumulate, threads=threads)
        bias, accumulate = None, True


def _run_by_samples(
    dtype: DType, own: DType, bias: Array | None, calls: list[Any], out: Array, accumulate: bool, to_weight: bool
) -> Array:
    """The same where `out` has gaps; a weight's gradient is that of each sample."""
    for share, target in written_by_samples(out, own, accumulate):
        _run_terms(dtype, bias, [
            (plan.of_batch(len(target)), first[share], second[share] if to_weight else second, scratch)
            for plan, first, second, scratch in calls], target, accumulate)
        del target  # before the next
    return out


def written_by_samples(out: Array, own: DType, accumulate: bool) -> Iterator[tuple[slice, Array]]:
    """Samples of an array with gaps, and where to write them: large ones in place if these have none, else so many as
    take little memory, which are then copied there."""
    size = out[0].size
    for share in shares(len(out), 1 if size >= LARGE and cpu.is_ready(out[0], own) else AT_ONCE // size):
        part = out[share]
        target = writing_place(part, part.shape, own, accumulate)
        yield share, target
        if target is not part:
            part[...] = target
        del target


def _put(target: Array, value: Any, accumulate: bool) -> Array:
    with np.errstate(all="ignore"):
        if accumulate:
            target += value
        else:
            target[...] = value
    return target


def delivered(target: Array, out: Any, like: Any) -> Any:
    """`out`, holding what `target` holds; where there is no out, `target` in the library of the operand `like`."""
    if out is None:
        return given_back(target, like)
    if target is not out and not np.may_share_memory(out, target):
        np.asarray(out)[...] = target
    return out.owner if type(out) is Visitor else out


def _sum_channels(array: Any, result: Result, dtype: DType, out: Any, settings: Settings) -> Any:
    """The sum of an array in main memory that the result says, into `out` where it is not None; torch was told of it.
    """
    own, shape = written(dtype, settings), result.shape
    assert result.channel_axis is not None
    out = placed(out, array, shape, own)
    target = writing_place(out, shape, own, settings.accumulate)
    if array.size:
        with np.errstate(all="ignore"):
            _sum_into(target, array, result.channel_axis, dtype, settings.accumulate)
    else:
        _put(target, 0, settings.accumulate)
    return delivered(target, out, array)


def _sum_into(target: Array, array: Array, axis: int, dtype: DType, accumulate: bool) -> None:
    """target <- the sum of the array over all axes but target's, the last of which is this one; or added to it."""
    is_real, shape = dtype in (FLOAT32, FLOAT64), target.shape
    if is_real and cpu.is_ready(array, dtype):
        columns = array.reshape(-1, target.size, prod(array.shape[axis + 1:]))
        cpu.channel_sum(columns, target.reshape(-1), accumulate, threads=_threads.worth(array.size))
        return
    if is_real and len(shape) == 2 and shape[0] > 1:  # each sample as it would be alone, where it may lie in one piece
        for n in range(shape[0]):
            _sum_into(target[n:n + 1], array[n:n + 1], axis, dtype, accumulate)
        return
    # NumPy sums any layout and type without a copy, if more slowly
    others = tuple(place for place in range(array.ndim) if not axis - len(shape) < place <= axis)
    wide = target.dtype if is_integer(dtype) else np.dtype(np.complex128 if dtype.kind == "c" else np.float64)
    last = tuple(range(-len(others), 0))
    given = np.moveaxis(np.asarray(array), others, last)
    channels = min(shape[-1], SUMS)
    for share in product(*map(shares, shape, (SUMS // channels, channels)[-len(shape):])):
        sums = given[share].sum(last, dtype=wide)
        target[share] = sums + target[share] if accumulate else sums  # rounded once
