"""Checked GPU arrays to the backend and back: the stream of a call, new arrays, and what the backend is given.

Below this every array of the roles x and y, and every array of columns, has a batch axis; weights are as they are.
Strides are any; nothing is copied here. What the backend makes of arrays that lie alike is kept (see decisions).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

from pyconv._backend import cuda
from pyconv._geometry import BUFFERS, OUTS, Geometry, alone, box, is_around_nothing, whole_size
from pyconv._gpu import arguments, streams
from pyconv._gpu.arrays import DeviceArray, DeviceType, Kind
from pyconv._gpu.decisions import KEPT, Decision, Part, Work, called, form, keep, lie_of, meet
from pyconv._gpu.kinds import CUPY, INTERFACE, TORCH
from pyconv._gpu.launches import Step
from pyconv._integers import Shape

Call = tuple[Any, DeviceArray, DeviceArray, DeviceArray | None]  # plan, first, second, scratch
Named = Sequence[tuple[str, DeviceArray | None]]
Tell = Callable[..., None]  # torch is told of what is written to before any launch: a later one may fail
Outcome = tuple[Any, list[Any] | None]  # the key of a call, and its results; each None where there is none
KINDS: dict[str, Kind] = {"torch": TORCH, "cupy": CUPY, "interface": INTERFACE}  # whose arrays say how they lie


class Known(NamedTuple):
    """What calls of one key do; of each result, None where none is wanted; the names of the arrays that take part."""

    decision: Decision
    work: Sequence[Work | None]
    names: frozenset[str]


class Begun(NamedTuple):
    """The key of a call, but for how the arrays lie that are written to: only whether they are given."""

    key: tuple[Any, ...]

    def with_written(self, arrays: Mapping[str, DeviceArray], names: Sequence[str]) -> tuple[Any, ...]:
        """The whole key; names: of the arrays that are written to and take part."""
        return self, *[(form(arrays[name]), arrays[name].read_only) for name in names]


def in_order(stream: Any, arrays: Sequence[DeviceArray], run: Callable[..., Any], *given: Any) -> Any:
    """What `run` makes of what is given, of the handle of the stream that a call on these arrays runs on and of what
    Kind.empty is given as `on`.

    It is the one that the caller names; else the one that the first operand names (after which nothing has to wait for
    that operand); else the current stream of the first operand's framework. It waits, on the device, for every other
    stream that an array's protocol names; and where the caller names none, for the current streams of the other
    arrays' frameworks; these then wait for it, before they read what it writes or give memory that it reads to others.
    A caller who names a stream keeps the frameworks' streams in order with it, as in those frameworks: waiting here
    would break the capture of a graph. torch is told of it, so that its allocator waits.
    Where `run` fails, some of its launches may be in the stream: then all of that is done too.
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
            return run(*given, handle, None)
    current = {kind: kind.stream(device) for kind in {array.kind for array in arrays}}
    found = {current[array.kind] if array.after is None and stream is None else array.after for array in arrays}
    others = [other for other in found if other is not None and other != handle]
    named = getattr(leader.owner, "stream", None) if stream is None and leader.after is not None else stream
    for other in others:
        streams.wait(handle, other, device)
    if stream is not None:
        for array in arrays:
            if current[array.kind] != handle:
                array.kind.lend(array.owner, device, handle)
        return run(*given, handle, (handle, named))
    try:
        return run(*given, handle, (handle, named))
    finally:
        for other in others:
            streams.wait(other, handle, device)


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
    geometry: Geometry | None, dtype: DeviceType, results: Sequence[Any], outs: Sequence[Any], named: Named,
    settings: Any, prepare: Callable[..., list[Call]], tell: Tell, unchecked: bool, known: Any = None,
) -> list[Any]:
    """The arrays of the results, of the first operand's kind where no `out` is given; None for None.

    named: the operands. prepare: _evaluate's _calls, which checks the buffers too. tell: tell_of_writing. unchecked, of
    a single result: its `out` is as the user gave it. Neither that nor a buffer is checked where what the call does is
    decided, but for whether they meet another array. known: what the call will be known by, or None.
    """
    leader_name, leader = named[0]
    assert leader is not None
    own = dtype if settings.result is None else settings.result
    targets, operands, out_names = list(outs), {name for name, _ in named}, OUTS[len(outs)]
    if not unchecked:
        named = (*named, *zip(out_names, outs))
    key = [geometry, dtype, own, leader.device, settings.algorithm, settings.allow_tf32, settings.accumulate]
    for _, array in named:
        key.append(None if array is None else (array.shape, array.strides, array.address & 15))
    names = {id(array): name for name, array in named if array is not None}
    for result in results:
        key.append(result and (
            result.shape, result.bias is None, result.channel_axis,
            *[(map, names[id(first)], names[id(second)], direction) for map, first, second, direction in result.terms]))
    written: list[tuple[str, DeviceArray]] = []
    if unchecked and outs[0] is not None:
        targets = [arguments.beside("out", outs[0], leader_name, leader)]
        written.append(("out", targets[0]))
    written += _buffers(results, settings, leader_name, leader)
    for name, array in written:
        key += name, array.shape, array.strides, array.dtype, array.read_only
    arrays = {name: array for name, array in (*named, *written) if array is not None}
    found, addresses = tuple(key), _addresses(arrays)
    written_to = [name for name in arrays if name not in operands]
    decision = cuda().decisions.get(found)
    if decision is None or meet(decision.apart, addresses):  # the latter is refused
        decision = keep(found, _decision(
            geometry, dtype, results, named, written, written_to, names, settings, prepare, own))
    work = [result and (name, result.shape, result.new, None if target is None else lie_of(target))
            for name, result, target in zip(out_names, results, targets)]
    if known is not None:
        if type(known) is Begun:
            _keep(known, written_to)
            known = known.with_written(arrays, written_to)
        _keep(known, Known(decision, work, frozenset(arrays)))
    tell(*outs, settings.finput, settings.fgrad_input)
    return in_order(  # type: ignore[no-any-return]
        settings.stream, tuple(arrays.values()), decision.run, work, _owners(arrays), addresses, leader.kind)


def _addresses(arrays: Mapping[str, DeviceArray]) -> dict[str, int]:
    return {name: array.address for name, array in arrays.items()}


def _owners(arrays: Mapping[str, DeviceArray]) -> dict[str, Any]:
    return {name: array.owner for name, array in arrays.items()}


def _keep(key: Any, known: Known | list[str]) -> None:
    """Calls of that key will find it; the key holds all that it follows from, and how each array lies. Of one that is
    Begun that is the names of those arrays that are written to and take part."""
    kept = cuda().known
    if len(kept) >= KEPT:
        kept.clear()
    kept[key] = known


def known_as_they_lie(
    word: str, exact: Any, names: Sequence[str], operands: tuple[Any, ...], written: tuple[Any, ...], stream: Any,
    tell: Tell,
) -> Outcome:
    """The key of a call on arrays of one kind, and its results where a call like it is known: the geometry is not asked
    for, and no array is read before. What would be refused is no call that is known.

    word: which of KINDS. exact: what tells the call from others but for its arrays. written: the `out` of each result,
    if there is any, and buffers. In these and the operands None stands for what there is not. No key where an array is
    no usual one, or a stream has to wait.
    """
    kind = KINDS[word]
    given = operands + written
    try:
        lie = kind.lie(names, given, len(operands))
    except Exception:  # an array's own or the driver's, which `read` says in words if the array takes part
        return None, None
    if lie is None:
        return None, None
    forms, addresses, named = lie
    key = (exact, *forms)
    found = cuda().known.get(key)
    if found is None or meet(found.decision.apart, addresses):  # the latter is refused
        return key, None
    device = found.decision.device
    now = kind.stream(device)
    handle = streams.handle_of(stream) if stream is not None else now if named is None else named
    if named is not None and handle != named:
        return None, None
    on = None if handle == now else (handle, getattr(given[0], "stream", None) if stream is None else stream)
    if on is not None and stream is not None:
        for name, array in zip(names, given):
            if name in found.names:
                kind.lend(array, device, handle)
    owners = {}
    if written:
        tell(*written)
        owners = dict(zip(names[len(operands):], written))
    return key, found.decision.run(found.work, owners, addresses, kind, handle, on)


def known_arrays(
    exact: Any, names: Sequence[str], operands: tuple[DeviceArray | None, ...], written: tuple[Any, ...], stream: Any,
    tell: Tell,
) -> Outcome:
    """As known_as_they_lie, of GPU arrays of any kinds. The operands are read; of what is written to, which has passed
    check_target, only what takes part in calls like this is: DLPack has arrays handed over."""
    begun = Begun((exact, *[None if array is None else form(array) for array in operands],
                   *[value is None for value in written]))
    kept = cuda().known
    parts = kept.get(begun)
    if parts is None:
        return begun, None
    arrays = {name: array for name, array in zip(names, operands) if array is not None}
    leader, given = arrays[names[0]], dict(zip(names[len(operands):], written))
    try:
        for name in parts:
            arrays[name] = arguments.beside(name, given[name], names[0], leader)
    except Exception:  # as above
        return begun, None
    found, addresses = kept.get(begun.with_written(arrays, parts)), _addresses(arrays)
    if found is None or meet(found.decision.apart, addresses):  # the latter is refused
        return begun, None
    tell(*written)
    return begun, in_order(
        stream, tuple(arrays.values()), found.decision.run, found.work, _owners(arrays), addresses, leader.kind)


def _buffers(
    results: Sequence[Any], settings: Any, leader_name: str, leader: DeviceArray
) -> list[tuple[str, DeviceArray]]:
    """The buffers that the results' maps use, as the user gave them."""
    if settings.finput is None and settings.fgrad_input is None:
        return []
    found: dict[str, DeviceArray] = {}
    for name in [BUFFERS[term[0]] for result in results if result is not None for term in result.terms]:
        buffer = getattr(settings, name)
        if buffer is not None and name not in found:
            found[name] = arguments.beside(name, buffer, leader_name, leader)
    return list(found.items())


def _decision(
    geometry: Geometry | None, dtype: DeviceType, results: Sequence[Any], named: Named,
    written: Sequence[tuple[str, DeviceArray]], written_to: Sequence[str], names: Mapping[int, str], settings: Any,
    prepare: Callable[..., list[Call]], own: DeviceType,
) -> Decision:
    """What is done for the results, which are of type `own`; names: by the arrays' id. TypeError or ValueError where a
    buffer, or an `out` that is among what is written and so not yet checked, cannot serve."""
    leader = named[0][1]
    assert leader is not None
    if written and written[0][0] == "out":
        arguments.check_place(*written[0], results[0].shape, own, named)
        named = (*named, written[0])
    known = {name: called(array, name) for name, array in (*named, *written) if array is not None}
    lent = [name for name, array in written if array.size]  # an operand too may be called finput
    parts = []
    for name, result in zip(OUTS[len(results)], results):
        if result is not None:
            steps = _steps_of(geometry, dtype, result, named, known, names, settings, prepare)
            buffers = [BUFFERS[term[0]] for term in result.terms if BUFFERS[term[0]] in lent]
            parts.append(Part(name, result.shape, steps, buffers[0] if buffers else None))
    return Decision(parts, known, own, leader.device, written_to)


def _steps_of(
    geometry: Geometry | None, dtype: DeviceType, result: Any, named: Named, known: Mapping[str, DeviceArray],
    names: Mapping[int, str], settings: Any, prepare: Callable[..., list[Call]],
) -> Callable[[DeviceArray], Iterator[Step]]:
    """What gives the programs of a result."""
    leader_name, leader = named[0]
    assert leader is not None
    if result.channel_axis is not None:
        if leader.size:
            cuda().check_channel_sum(leader, result.channel_axis)
        return partial(_sums, known[leader_name], result.channel_axis, settings.accumulate)
    assert geometry is not None
    terms = tuple((map, known[names[id(first)]], known[names[id(second)]], direction)
                  for map, first, second, direction in result.terms)
    result = result._replace(terms=terms, bias=None if result.bias is None else known[names[id(result.bias)]])
    calls = [
        (plan, first, second, None if scratch is None else called(scratch, BUFFERS[map]))
        for (plan, first, second, scratch), (map, *_) in zip(
            prepare(geometry, dtype, result, None, named, settings, leader.device), terms)]
    return partial(_steps, geometry, result, calls, settings.algorithm == "columns", settings.accumulate)


def _steps(
    geometry: Geometry, result: Any, calls: Sequence[Call], from_columns: bool, accumulate: bool, target: DeviceArray
) -> Iterator[Step]:
    """The programs of a result, written to the target or added to it."""
    rank, bias = geometry.rank, result.bias
    map = result.terms[0][0] if result.terms else ""
    to_weight, written = map == "grad_weight", target
    if not to_weight or geometry.per_sample:
        written = _batched(target, rank + to_weight)
    if calls and map == "grad_input" and geometry.input_size != whole_size(geometry):  # cropped cells get the bias
        yield from cuda().fill(written, 0 if bias is None else bias, accumulate)
        written, bias, accumulate = part_of(written, box(geometry)[-rank:]), None, True
    for plan, first, second, scratch in calls:
        first = _batched(first, 1 if from_columns else rank)
        if to_weight:
            second = _batched(second, rank)
        yield from plan.steps(first, second, written, bias, scratch, accumulate)
        bias, accumulate = None, True
    if target.size and not calls:
        yield from cuda().fill(written, 0 if bias is None else bias, accumulate)


def _sums(array: DeviceArray, axis: int, accumulate: bool, target: DeviceArray) -> Iterator[Step]:
    """The programs of a bias's gradient, written to the target or added to it."""
    if array.size:
        yield from cuda().channel_sum(array, axis, target, accumulate)
    elif target.size:
        yield from cuda().fill(target, 0, accumulate)


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
            if fold and geometry.input_size != whole_size(geometry):  # cropped cells have no columns
                yield from cuda().fill(input, 0, adds)
                input, adds = part_of(input, box(geometry)[-geometry.rank:]), True
            yield from cuda().unfold(alone(geometry), input, columns, fold, adds)
        elif target.size:
            yield from cuda().fill(target, 0, adds)

    def decide() -> Decision:
        if (source.size or is_around_nothing(geometry)) and prod(shape):
            cuda().check_unfold(geometry)
        known = called(source, "source")
        return Decision([Part("out", shape, partial(steps, known))], {"source": known}, dtype, source.device)

    key = "fold" if fold else "unfold", geometry, shape, accumulate, dtype, form(source)
    return _alone(key, decide, source, shape, out, stream)


def _alone(
    key: Any, decide: Callable[[], Decision], source: DeviceArray, shape: Shape, out: DeviceArray | None, stream: Any
) -> Any:
    """The result, of that shape, of a call that has one operand."""
    decision = cuda().decisions.get(key) or keep(key, decide())
    arrays = {"source": source} if out is None else {"source": source, "out": out}
    work = "out", shape, None, None if out is None else lie_of(out)
    [found] = in_order(
        stream, tuple(arrays.values()), decision.run, [work], _owners(arrays), _addresses(arrays), source.kind)
    return found
