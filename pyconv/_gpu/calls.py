"""Checked GPU arrays to the backend and back: the stream of a call, new arrays, and what the backend is given.

Below this every array of the roles x and y, and every array of columns, has a batch axis; weights are as they are.
Strides are any; nothing is copied here. What the backend makes of arrays that lie alike is kept (see decisions).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any, NamedTuple

from pyconv._backend import cpu, cuda
from pyconv._geometry import BUFFERS, Geometry, box, is_around_nothing
from pyconv._gpu import arguments, streams
from pyconv._gpu.arrays import TORCH, DeviceArray, DeviceType, Kind
from pyconv._gpu.decisions import KEPT, TARGETS, Decision, called, form, keep
from pyconv._gpu.launches import Step
from pyconv._integers import Shape

Call = tuple[Any, DeviceArray, DeviceArray, DeviceArray | None]  # plan, first, second, scratch
Named = Sequence[tuple[str, DeviceArray | None]]
Work = tuple[Decision, DeviceArray | None, Shape, Callable[[], Any] | None]  # what is done, target, shape, its maker


def in_order(stream: Any, arrays: Sequence[DeviceArray], run: Callable[..., Any], *given: Any) -> Any:
    """What `run` makes of what is given and the handle of the stream that a call on these arrays runs on; new ones it
    makes in its order.

    It is the one that the caller names; else the one that the first operand names (after which nothing has to wait for
    that operand); else the current stream of the first operand's framework. It waits, on the device, for every other
    stream that an array's protocol names; and where the caller names none, for the current streams of the other
    arrays' frameworks; these then wait for it, before they read what it writes or give memory that it reads to others.
    A caller who names a stream keeps the frameworks' streams in order with it, as in those frameworks: waiting here
    would break the capture of a graph. torch is told of it, so that its allocator waits.
    """
    leader = arrays[0]
    kind, device = leader.kind, leader.device
    now = kind.stream(device)
    handle = streams.handle_of(stream) if stream is not None else now if leader.after is None else leader.after
    if handle == now:  # most: then nothing has to wait for arrays of that framework
        for array in arrays:
            if array.kind is not kind or (array.after is not None and array.after != now):
                break
        else:
            return run(*given, handle)
    current = {array.kind: array.kind.stream(device) for array in arrays}
    found = {current[array.kind] if array.after is None and stream is None else array.after for array in arrays}
    others = [other for other in found if other is not None and other != handle]
    named = getattr(leader.owner, "stream", None) if stream is None and leader.after is not None else stream
    for other in others:
        streams.wait(handle, other, device)
    with ExitStack() as stack:
        for kind, now in current.items():
            if now != handle:
                stack.enter_context(kind.using(handle, device, named))
        results = run(*given, handle)
    if stream is None:
        for other in others:
            streams.wait(other, handle, device)
    else:
        for array in arrays:
            if current[array.kind] != handle:
                array.kind.lend(array, handle)
    return results


def _batched(array: DeviceArray, rank: int) -> DeviceArray:
    """With a batch axis in front of the channels and `rank` more axes."""
    if array.ndim > rank + 1:
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


def evaluate(
    geometry: Geometry, dtype: DeviceType, results: Sequence[Any], outs: Sequence[Any], named: Named, settings: Any,
    prepare: Callable[..., list[Call]], unchecked: bool, known: Any = None,
) -> list[Any]:
    """The arrays of the results, of the first operand's kind where no `out` is given; None for None.

    named: the operands, and the outs that are checked already. prepare: _evaluate's _calls, which checks the buffers
    too. unchecked, of a single result: its `out` is as the user gave it. Neither that nor a buffer is checked where
    what the call does is known, but for whether they meet another array. known: the key of evaluate_known, or None.
    """
    leader_name, leader = named[0]
    assert leader is not None
    lends = settings.finput is not None or settings.fgrad_input is not None
    own = dtype if settings.result is None else settings.result
    common = [geometry, dtype, own, leader.device, settings.algorithm, settings.allow_tf32, settings.accumulate]
    places: dict[str, int] = {}
    names: dict[int, str] = {}
    arrays = []
    for name, array in named:
        if array is None:
            common.append(None)
        else:
            places[name] = address = array.address
            common += array.shape, array.strides, address & 15
            names[id(array)] = name
            arrays.append(array)
    decisions = cuda().decisions
    work: list[Work | None] = []
    for result, out in zip(results, outs):
        if result is None:
            work.append(None)
            continue
        key = [*common, result.shape, result.bias is None]
        for map, first, second, direction in result.terms:
            key += map, names[id(first)], names[id(second)], direction
        written: list[tuple[str, DeviceArray]] = []
        if out is not None:
            if unchecked:
                out = arguments.beside("out", out, leader_name, leader)
                written.append(("out", out))
            else:
                arrays.append(out)
        if lends:
            written += _buffers(result, settings, leader_name, leader)
        for name, array in written:
            places[name] = array.address
            key += name, array.shape, array.strides, array.dtype, array.read_only
            arrays.append(array)
        found = tuple(key)
        decision = decisions.get(found)
        if decision is None or (written and decision.meet(places)):  # the latter is refused
            decision = keep(found, _decision(geometry, dtype, result, named, written, names, settings, prepare))
        work.append((decision, out, result.shape, result.new))
        if known is not None:
            _known(known, result.shape, own).decisions[_lies(out)] = decision
    return in_order(  # type: ignore[no-any-return]
        settings.stream, arrays, _launch, work, places, leader, own)


def _launch(
    work: Sequence[Work | None], places: dict[str, int], leader: DeviceArray, own: DeviceType, stream: int
) -> list[Any]:
    """The arrays of the results; None for None."""
    made = []
    for one in work:
        made.append(None if one is None else _result(*one, places, leader.kind, leader.device, own, stream))
    return made


def _result(
    decision: Decision, target: DeviceArray | None, shape: Shape, new: Callable[[], Any] | None,
    places: dict[str, int], kind: Kind, device: int, own: DeviceType, stream: int,
) -> Any:
    """The array of a result: its target, or one of that kind and of the type `own`.

    places: the addresses of the call's arrays, by name.
    """
    if target is None:
        target = kind.empty(shape, own, device, new)
    decision.run(places, target, stream)
    return target.owner


class Known(NamedTuple):
    """Of calls of one key: the shape and the type of the result, and what they do by how `out` lies."""

    shape: Shape
    dtype: DeviceType
    decisions: dict[Any, Decision]


def _known(key: Any, shape: Shape, dtype: DeviceType) -> Known:
    """What is known of that key, with room for a decision."""
    kept = cuda().known
    if len(kept) >= KEPT:
        kept.clear()
    known: Known = kept.setdefault(key, Known(shape, dtype, {}))
    if len(known.decisions) >= TARGETS:
        known.decisions.clear()
    return known


def _lies(out: DeviceArray | None) -> Any:
    """How an array lies that is written to."""
    return None if out is None else (out.shape, out.strides, out.dtype, out.read_only)


def evaluate_known(
    numbers: tuple[Any, ...], named: Named, out: Any, check: Callable[[str, Any, DeviceArray], None]
) -> tuple[Any, Any]:
    """The key of a call with the usual settings, and its result where a call like it is known; each None where there is
    none. The geometry is not asked for; `out`, as the user gave it, is checked as in other calls.

    check: raises where what torch says of `out` now forbids to write to it.
    """
    exact = cpu.form(numbers, (), ())
    if exact is None:
        return None, None
    leader_name, leader = named[0]
    assert leader is not None
    dtype = leader.dtype
    parts, arrays, places = [exact, dtype, leader.device], [], {}
    for name, array in named:
        if array is None:
            parts.append(None)
        else:
            places[name] = address = array.address
            parts += array.shape, array.strides, address & 15
            arrays.append(array)
    key = tuple(parts)
    found = cuda().known.get(key)
    if found is None:
        return key, None
    target = None
    if out is not None:
        check("out", out, leader)
        target = arguments.beside("out", out, leader_name, leader)
        places["out"] = target.address
        arrays.append(target)
    decision = found.decisions.get(_lies(target))
    if decision is None or (target is not None and decision.meet(places)):  # the latter is refused
        return key, None
    return key, in_order(
        None, arrays, _result, decision, target, found.shape, None, places, leader.kind, leader.device, found.dtype)


def evaluate_tensors(
    numbers: tuple[Any, ...], names: Sequence[str], given: Sequence[Any], out: Any,
    check: Callable[[str, Any, Any], None],
) -> tuple[Any, Any]:
    """As evaluate_known, of torch's tensors as the user gave them, which have passed check_tensors, the first of them
    on a GPU: what `operands` would refuse is no call that is known. No key where another is not."""
    exact = cpu.form(numbers, (), ())
    lie = None if exact is None else TORCH.lie(names, given)
    if lie is None:
        return None, None
    forms, places = lie
    key = (exact, *forms)
    found = cuda().known.get(key)
    if found is None:
        return key, None
    target, device = None, given[0].get_device()
    if out is not None:
        check("out", out, given[0])
        target = TORCH.read("out", out)
        if target is None or target.device != device:
            return key, None
        places["out"] = target.address
    decision = found.decisions.get(_lies(target))
    if decision is None or (target is not None and decision.meet(places)):  # the latter is refused
        return key, None
    if target is None:
        target = TORCH.empty(found.shape, found.dtype, device)
    decision.run(places, target, TORCH.stream(device))
    return key, target.owner


def _buffers(result: Any, settings: Any, leader_name: str, leader: DeviceArray) -> list[tuple[str, DeviceArray]]:
    """The buffers that a result's maps use, as the user gave them."""
    found: dict[str, DeviceArray] = {}
    for term in result.terms:
        name = BUFFERS[term[0]]
        buffer = settings.finput if name == "finput" else settings.fgrad_input
        if buffer is not None and name not in found:
            found[name] = arguments.beside(name, buffer, leader_name, leader)
    return list(found.items())


def _decision(
    geometry: Geometry, dtype: DeviceType, result: Any, named: Named, written: Sequence[tuple[str, DeviceArray]],
    names: Mapping[int, str], settings: Any, prepare: Callable[..., list[Call]],
) -> Decision:
    """What is done for a result; names: by the arrays' id. TypeError or ValueError where its out or a buffer cannot
    serve."""
    leader = named[0][1]
    assert leader is not None
    if written and written[0][0] == "out":
        arguments.check_place(*written[0], result.shape, dtype if settings.result is None else settings.result, named)
        named = (*named, written[0])
    known = {name: called(array, name) for name, array in (*named, *written) if array is not None}
    terms = tuple((map, known[names[id(first)]], known[names[id(second)]], direction)
                  for map, first, second, direction in result.terms)
    result = result._replace(terms=terms, bias=None if result.bias is None else known[names[id(result.bias)]])
    calls = [
        (plan, first, second, None if scratch is None else called(scratch, BUFFERS[map]))
        for (plan, first, second, scratch), (map, *_) in zip(
            prepare(geometry, dtype, result, None, named, settings, leader.device), terms)]
    steps = partial(_steps, geometry, result, calls, settings.algorithm == "columns", settings.accumulate)
    return Decision(steps, known, [name for name, _ in written])


def _steps(
    geometry: Geometry, result: Any, calls: Sequence[Call], from_columns: bool, accumulate: bool, target: DeviceArray
) -> Iterator[Step]:
    """The programs of a result, written to the target or added to it."""
    rank, bias = geometry.rank, result.bias
    map = result.terms[0][0] if result.terms else ""
    to_weight, written = map == "grad_weight", target
    if not to_weight or geometry.per_sample:
        written = _batched(target, rank + to_weight)
    if calls and map == "grad_input" and geometry.padding_mode not in ("zeros", "constant"):
        part = box(geometry, result.shape[-rank:])
        if part is not None:  # cropped cells get the bias
            yield from cuda().fill(written, 0 if bias is None else bias, accumulate)
            written, bias, accumulate = part_of(written, part), None, True
    for plan, first, second, scratch in calls:
        first = _batched(first, 1 if from_columns else rank)
        if to_weight:
            second = _batched(second, rank)
        yield from plan.steps(first, second, written, bias, scratch, accumulate)
        bias, accumulate = None, True
    if target.size and not calls:
        yield from cuda().fill(written, 0 if bias is None else bias, accumulate)


def sum_channels(
    array: DeviceArray, axis: int, shape: Shape, out: DeviceArray | None, stream: Any, accumulate: bool,
    dtype: DeviceType,
) -> Any:
    """As _evaluate's, of that dtype, added to what `out` holds where accumulate."""
    def steps(array: DeviceArray, target: DeviceArray) -> Iterator[Step]:
        if array.size:
            yield from cuda().channel_sum(array, axis, target, accumulate)
        elif target.size:
            yield from cuda().fill(target, 0, accumulate)

    def decide() -> Decision:
        if array.size:
            cuda().check_channel_sum(array, axis)
        known = called(array, "source")
        return Decision(partial(steps, known), {"source": known})

    key = "sum_channels", axis, accumulate, dtype, form(array)
    return _alone(key, decide, array, shape, out, stream, dtype)


def unfold(
    geometry: Geometry, source: DeviceArray, shape: Shape, out: DeviceArray | None, fold: bool, stream: Any,
    accumulate: bool, dtype: DeviceType,
) -> Any:
    """The columns of `source`, or with fold the input whose columns it sums, added to `out` where accumulate.

    The result is of that dtype.
    """
    def steps(source: DeviceArray, target: DeviceArray) -> Iterator[Step]:
        adds = accumulate
        if (source.size or is_around_nothing(geometry)) and target.size:
            input, columns = (target, source) if fold else (source, target)
            input, columns = _batched(input, geometry.rank), _batched(columns, 1)
            part = box(geometry, input.shape[-geometry.rank:])
            if part is not None:  # cropped cells have no columns
                yield from cuda().fill(input, 0, adds)
                input, adds = part_of(input, part), True
            yield from cuda().unfold(geometry, input, columns, fold, adds)
        elif target.size:
            yield from cuda().fill(target, 0, adds)

    def decide() -> Decision:
        if (source.size or is_around_nothing(geometry)) and prod(shape):
            cuda().check_unfold(geometry)
        known = called(source, "source")
        return Decision(partial(steps, known), {"source": known})

    key = "fold" if fold else "unfold", geometry, shape, accumulate, dtype, form(source)
    return _alone(key, decide, source, shape, out, stream, dtype)


def _alone(
    key: Any, decide: Callable[[], Decision], source: DeviceArray, shape: Shape, out: DeviceArray | None, stream: Any,
    dtype: DeviceType,
) -> Any:
    """The result, of that shape, of a call that has one operand."""
    decision = cuda().decisions.get(key) or keep(key, decide())
    return in_order(
        stream, (source,) if out is None else (source, out), _result, decision, out, shape, None,
        {"source": source.address}, source.kind, source.device, dtype)
