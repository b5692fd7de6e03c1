"""Calls on GPU arrays like one before: what they launch is known by their numbers, their settings and how arrays lie.

That is all that results follow from, and all that a call is checked for but what may change: the stream, whether arrays
meet, what torch says of its tensors. These are asked for in every call. Where one of them is wrong, or nothing is known
by the key, the call goes the way of all others, which says so in words.
"""

from typing import Any

from numpy import ndarray

from pyconv._arguments import is_on_gpu, operands
from pyconv._backend import cpu, gpu_room, has_interface_alone
from pyconv._evaluate import DEFAULTS, Settings
from pyconv._geometry import OUTS
from pyconv._libraries import check_target, check_tensors, tell_of_writing

TORCH, INTERFACE, OTHER = "torch", "interface", "other"  # of the first two, arrays say themselves how they lie
BUFFERS = "finput", "fgrad_input"


def known_or_read(
    key: Any, numbers: tuple[Any, ...] | None, names: tuple[str, ...], given: tuple[Any, ...], needed: int, biases: int,
    outs: tuple[Any, ...], settings: Settings,
) -> tuple[list[Any] | None, Any, Any, tuple[Any, ...]]:
    """(None, key, dtype, arrays): the last two are what `operands` gives. Of a call on GPU arrays that is known the
    results come first, and the others are of no use.

    key: that of a call in main memory, which is given back; of others the one to keep them by, None where there is
    none. numbers: what tells the call from others beside its arrays and settings, None where it cannot; the first says
    which function it is. given: the operands, of which so many first ones are needed, and so many last ones biases.
    outs: as the user gave them, one for each result, or none at all.
    """
    is_tensor = getattr(given[0], "is_cuda", None)
    if key is None and numbers is not None and is_tensor is not False:
        kind = TORCH if is_tensor is True else _kind_of(given[0])
        if kind is not None:
            check_tensors(names, given)
        exact = kind and _exact(numbers, settings)
        if exact:
            all_names, written = names + OUTS[len(outs)], outs
            if settings is not DEFAULTS:
                all_names, written = all_names + BUFFERS, outs + settings[:2]
            arrays, calls, results = given + written, gpu_room("calls"), None
            if kind is not OTHER:
                key, results = calls.known_as_they_lie(kind, exact, all_names, arrays, len(given), settings.stream)
            if key is None and _may_be_written(written, given[0]):
                key, results = calls.known_arrays(exact, all_names, arrays, settings.stream)
            if results is not None:
                if written:
                    tell_of_writing(*written)
                return results, key, None, given
    last = len(given) - biases
    return None, key, *operands(
        names, given[:needed], given[needed:last], given[last:], settings.result, settings.stream)


def _kind_of(leader: Any) -> str | None:
    """Which kind of GPU array it is, where it is no tensor of torch's."""
    if type(leader) is ndarray:
        return None
    if has_interface_alone(type(leader)):  # type: ignore[arg-type]
        return INTERFACE
    return OTHER if is_on_gpu(leader) else None


def _exact(numbers: tuple[Any, ...], settings: Settings) -> Any:
    """The numbers and the settings, if they are what they seem to be: 1.0 and True equal 1."""
    if settings is not DEFAULTS:
        _, _, algorithm, allow_tf32, _, accumulate, mode, result = settings
        if type(allow_tf32) is not bool or type(accumulate) is not bool:
            return None
        numbers += (algorithm, +allow_tf32, +accumulate, *mode, result)
    return cpu.form(numbers, (), ())


def _may_be_written(targets: tuple[Any, ...], leader: Any) -> bool:
    """Whether torch says nothing against writing to any of them."""
    try:
        for target in targets:
            if target is not None:
                check_target("out", target, leader)
    except (TypeError, ValueError):
        return False
    return True
