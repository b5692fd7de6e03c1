"""Calls on GPU arrays like one before: what they launch is known by their numbers, their settings and how arrays lie.

That is all that results follow from, and all that a call is checked for but what may change: the stream, whether arrays
meet, what torch says of its tensors. These are asked for in every call. Where one of them is wrong, or nothing is known
by the key, the call goes the way of all others, which says so in words.

torch's tensors, CuPy's arrays, and arrays that have __cuda_array_interface__ alone say how they lie in one look. Of
others the operands are read first, once and as in every call, for DLPack has an array handed over, which does
something; and what is written to is read when a call like this has been seen to go well, and only if it takes part in
that.
"""

import sys
from typing import Any

import numpy as np

from pyconv._arguments import is_on_gpu, operands
from pyconv._backend import cpu, gpu_room, has_interface_alone
from pyconv._geometry import OUTS
from pyconv._libraries import check_target, check_tensors, tell_of_writing
from pyconv._settings import DEFAULTS, Settings

# Of all but the last, arrays say themselves how they lie.
TORCH, CUPY, INTERFACE, OTHER = "torch", "cupy", "interface", "other"
BUFFERS = Settings._fields[:2]


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
    exact, last = None, len(given) - biases
    if key is None and numbers is not None and (is_tensor := getattr(given[0], "is_cuda", None)) is not False:
        kind = TORCH if is_tensor is True else _kind_of(given[0])
        if kind is not None:
            exact = _exact(numbers, settings)
    if exact is not None:
        all_names, written, calls = names + OUTS[len(outs)], outs, gpu_room("calls")
        if settings is not DEFAULTS:
            all_names, written = all_names + BUFFERS, outs + settings[:2]
        if kind is TORCH:
            check_tensors(names, given)
        if kind is not OTHER:
            key, results = calls.known_as_they_lie(
                kind, exact, all_names, given, written, settings.stream, tell_of_writing)
            if results is not None:
                return results, key, None, given
    dtype, arrays = operands(
        names, given[:needed], given[needed:last], given[last:], settings.result, settings.stream)
    on_gpu = exact is not None and not isinstance(dtype, np.dtype)
    if on_gpu and key is None and _may_be_written(written, given[0]):
        key, results = calls.known_arrays(exact, all_names, arrays, written, settings.stream, tell_of_writing)
        return results, key, dtype, arrays
    return None, key, dtype, arrays


def _kind_of(leader: Any) -> str | None:
    """Which kind of GPU array it is, where it is no tensor of torch's."""
    if type(leader) is np.ndarray:
        return None
    if has_interface_alone(type(leader)):  # type: ignore[arg-type]
        return INTERFACE
    if type(leader) is getattr(sys.modules.get("cupy"), "ndarray", None):
        return CUPY
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
    except Exception:  # torch's own too, as of sparse tensors: what is wrong before it is said before it
        return False
    return True
