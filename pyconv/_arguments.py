"""Array arguments: what is accepted, and its one form behind the door. Nothing here copies before all is checked."""

import sys
from collections.abc import Sequence
from functools import lru_cache
from math import inf, isfinite, nan
from numbers import Complex, Integral, Real
from re import fullmatch
from reprlib import repr as shown
from typing import Any

import numpy as np
from numpy import ndarray

from pyconv._backend import Array, cpu, gpu_room
from pyconv._dtypes import FLOAT32, FLOAT64, DType, is_integer, native_dtype, result_dtype
from pyconv._integers import Shape
from pyconv._libraries import check_target, check_tensors, library_of, name_of, plain, read, visiting
from pyconv._memory import empty
from pyconv._padding import MODES, ZEROS, Mode

ALGORITHMS = ("auto", "gemm", "winograd")
HOST = (ndarray, list, tuple)
TRACED = "autograd", "pytensor"  # whose arrays stand for others; pyconv has a room of that name for each
# Of floats, the least that rounds to infinity.
OVERFLOW = {"float16": 65520.0, "bfloat16": 2.0**128 - 2.0**119, "float32": 2.0**128 - 2.0**103,
            "complex64": 2.0**128 - 2.0**103}


def check_algorithm(algorithm: object, dtype: DType, allow_tf32: bool) -> None:
    """ValueError unless it is a name that arrays of that dtype have."""
    if not isinstance(dtype, np.dtype):
        gpu_room("arguments").check_algorithm(algorithm, dtype, allow_tf32)
        return
    able = ALGORITHMS[:2] if dtype.kind in "iu" else ALGORITHMS
    if not isinstance(algorithm, str) or algorithm not in able:
        whose = f" for {dtype} arrays" if able is not ALGORITHMS else ""
        raise ValueError(f"algorithm must be one of {', '.join(map(repr, able))}{whose}; got {shown(algorithm)}")


def device_argument(device: Any) -> int | None:
    """The index of the GPU that the argument `device` names, None for main memory; 'cuda' is 'cuda:0'."""
    match = fullmatch("(cpu)|cuda(?::([0-9]+))?", str(device))
    if match is None:
        error = ValueError if isinstance(device, str) else TypeError
        raise error(f"device must be 'cpu', 'cuda' or 'cuda:' and an index; got {shown(device)}")
    return None if match[1] else int(match[2] or 0)


def check_flag(name: str, value: object) -> None:
    """TypeError unless it is a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False; got {shown(value)}")


def check_stream(stream: Any, dtype: DType) -> None:
    """ValueError unless it is None, or the arrays are a GPU's, whose `operands` has checked it."""
    if isinstance(dtype, np.dtype) and stream is not None:
        raise ValueError(f"stream must be None for arrays in main memory; got {shown(stream)}")


def exact_mode(mode: Mode, dtype: DType) -> Mode:
    """What padded cells hold, from what the user says that they do."""
    name, value = mode
    if name is ZEROS.name and value is ZEROS.value:  # most calls: the number of a dtype takes a while to check
        return ZEROS
    if not isinstance(name, str) or name not in MODES:
        raise ValueError(f"padding_mode must be one of {', '.join(map(repr, MODES))}; got {shown(name)}")
    exact = _number("padding_value", value, dtype)
    if name != "constant" and exact != 0:
        raise ValueError(f"padding_value must be 0 where padding_mode is not 'constant'; got {shown(value)}")
    return ZEROS if name == "zeros" else Mode(str(name), exact)


@lru_cache(maxsize=256)
def _of_text(text: str) -> complex:
    """One complex number for each text."""
    return complex(text)


@lru_cache(maxsize=64)  # NumPy takes microseconds to name a dtype
def _numbers_of(dtype: DType) -> tuple[Any, str, int, int, float]:
    """Of the numbers that arrays of that dtype can hold: their kind, its name, the range of ints, where floats end."""
    if is_integer(dtype):
        info = np.iinfo(dtype.name)
        least, most = int(info.min), int(info.max)
        return Integral, f"an int from {least} to {most}", least, most, inf
    end = OVERFLOW.get(str(dtype), inf)
    return (Complex, "a number", 0, 0, end) if str(dtype).startswith("complex") else (Real, "a real number", 0, 0, end)


def _number(name: str, value: Any, dtype: DType) -> complex:
    """A number that arrays of that dtype can hold, as Python's."""
    kind, rule, least, most, end = _numbers_of(dtype)

    def text() -> str:  # only where it is wanted: showing a value takes longer than checking it
        return f"{name} must be {rule} for {dtype} arrays; got {shown(value)}"

    plain: Any = value.item() if isinstance(value, np.generic | ndarray) and value.size == 1 else value
    if not isinstance(plain, kind) or isinstance(plain, bool):
        raise TypeError(text())
    if kind is Integral:
        if not least <= plain <= most:
            raise ValueError(text())
        return int(plain)
    try:
        exact: complex = float(plain) if kind is Real else complex(plain)
    except OverflowError:
        raise ValueError(text()) from None
    if any(isfinite(part) and abs(part) >= end for part in (exact.real, exact.imag)):
        raise ValueError(f"{name} must be in the range of {dtype}; got {shown(value)}")
    if kind is Complex:
        return _of_text(repr(exact)) if exact != exact else exact + 0
    return nan if exact != exact else exact + 0  # one NaN and one zero, as keys of caches


def exact_mask(output_mask: Any) -> tuple[bool, ...]:
    """Which of the three results are wanted."""
    if type(output_mask) is tuple and [*map(type, output_mask)] == [bool] * 3:  # most, in a third of the time
        return output_mask
    rule = "be a sequence of 3 bools"
    if not isinstance(output_mask, list | tuple | ndarray) or getattr(output_mask, "ndim", 1) == 0:
        raise TypeError(f"output_mask must {rule}; got {shown(output_mask)}")
    if len(output_mask) != 3:
        raise ValueError(f"output_mask must {rule}; got {shown(output_mask)}")
    if not all(isinstance(wanted, bool | np.bool_) for wanted in output_mask):
        raise TypeError(f"output_mask must {rule}; got {shown(output_mask)}")
    return tuple(map(bool, output_mask))


def operands(
    names: Sequence[str], required: tuple[Any, ...], optional: tuple[Any, ...] = (), biases: tuple[Any, ...] = (),
    wanted: Any = None, stream: Any = None,
) -> tuple[DType, tuple[Any, ...]]:
    """(dtype, the arrays): base-class ndarrays of one dtype, as they lie in memory; None only among what is optional.

    Biases, the last of them, have the result's dtype, which is `wanted` or what result_dtype makes of None.
    Where they are another library's, the first is a Visitor. Where one of them is a GPU array, all must be: then they
    are DeviceArrays, ready on `stream` if the call was given one, and dtype a DeviceType.
    """
    dtype = getattr(required[0], "dtype", None)
    if dtype is FLOAT32 or dtype is FLOAT64:
        for value in required:
            if type(value) is not ndarray or value.dtype is not dtype:
                return _operands(names, required, optional, biases, wanted, stream)
        others = optional + biases
        for value in others:
            if value is not None and (type(value) is not ndarray or value.dtype is not dtype):
                return _operands(names, required, optional, biases, wanted, stream)
        return dtype, required + others
    return _operands(names, required, optional, biases, wanted, stream)


def _operands(
    names: Sequence[str], required: tuple[Any, ...], optional: tuple[Any, ...], biases: tuple[Any, ...], wanted: Any,
    stream: Any,
) -> tuple[DType, Any]:
    given = required + optional + biases
    check_tensors(names, given)
    on_gpu = is_on_gpu(given[0])
    tensors = None if on_gpu else _plain_tensors(given, len(required))
    if tensors is not None:
        return tensors
    if on_gpu or any(map(is_on_gpu, given[1:])):
        return gpu_room("arguments").operands(  # type: ignore[no-any-return]
            names, required, optional, biases, wanted, stream)
    arrays: list[Any] = [
        None if value is None and place >= len(required) else _array(name, value)
        for place, (name, value) in enumerate(zip(names, given))
    ]
    present = [place for place, array in enumerate(arrays) if array is not None]
    leader = next((place for place in present if not isinstance(given[place], list | tuple)), present[0])
    _check_libraries(names, given, present, leader)
    whose_library = given[leader]
    first_bias = len(given) - len(biases)
    if leader >= first_bias and is_integer(arrays[leader].dtype):  # which does not say what the others are
        leader = present[0]
    found = arrays[leader].dtype
    lists = [arrays[place].dtype for place in present if place < first_bias]
    if isinstance(given[leader], list | tuple) and all(one.kind in "iufc" for one in lists):
        found = np.result_type(*lists)  # of lists alone
    dtype = native_dtype(names[leader], found)
    result = result_dtype(dtype, wanted)
    for place in present:
        own = result if place >= first_bias else dtype
        whose = "the result" if own is not dtype else names[leader]
        arrays[place] = _of_dtype(names[place], given[place], arrays[place], own, whose)
    if library_of(whose_library) is not None:
        arrays[0] = visiting(arrays[0], whose_library)
    return dtype, tuple(arrays)


def _plain_tensors(given: tuple[Any, ...], needed: int) -> tuple[DType, Any] | None:
    """As `operands`, where all are torch's tensors in main memory, of one type of floats; else None."""
    first = plain(given[0])
    if first is None:
        return None
    dtype = first.dtype
    arrays: list[Any] = [visiting(first, given[0])]
    for place in range(1, len(given)):
        array = plain(given[place])
        if array is not None and array.dtype is dtype:
            arrays.append(array)
        elif given[place] is None and place >= needed:
            arrays.append(None)
        else:
            return None
    return dtype, tuple(arrays)


def _check_libraries(names: Sequence[str], given: tuple[Any, ...], present: list[int], leader: int) -> None:
    """TypeError unless all that are no lists are of one library, and on one of its devices."""
    wanted = library_of(given[leader])
    for place in present:
        if isinstance(given[place], list | tuple):
            continue
        library = library_of(given[place])
        if library is not wanted:
            is_array = library is not None or isinstance(given[place], ndarray)
            raise TypeError(
                f"{names[place]} must be an array of the library of {names[leader]}, {name_of(wanted)}; "
                f"got {name_of(library) if is_array else type(given[place]).__name__}"
            )
        if library is not None:
            device, other = (getattr(array, "device", None) for array in (given[leader], given[place]))
            if other != device:
                raise TypeError(f"{names[place]} must be on the device of {names[leader]}, {device}; got {other}")


def _of_dtype(name: str, given: Any, array: Any, dtype: DType, whose: str) -> Array:
    """The array, if it has that dtype in any byte order, or is a nested list whose numbers it can hold."""
    if array.dtype is dtype or array.dtype.newbyteorder("=") == dtype:
        return array  # type: ignore[no-any-return]
    kinds = "iu" if is_integer(dtype) else "iufc" if dtype.kind == "c" else "iuf"
    if isinstance(given, list | tuple) and array.dtype.kind in kinds:
        with np.errstate(over="ignore"):
            made = array.astype(dtype)
        if is_integer(dtype) and (made != array).any():
            raise ValueError(f"{name} must hold integers that {dtype} can hold; got {shown(given)}")
        if not is_integer(dtype) and any(
                (np.isinf(part(made)) & ~np.isinf(part(array))).any() for part in (np.real, np.imag)):
            raise ValueError(f"{name} must hold numbers in the range of {dtype}; got {shown(given)}")
        return made  # type: ignore[no-any-return]
    native_dtype(name, array.dtype)
    raise TypeError(f"{name} must have the dtype of {whose}, {dtype}; got {array.dtype}")


def is_on_gpu(value: Any) -> bool:
    """Whether its memory is a GPU's, as far as can be told without pyconv._gpu."""
    if isinstance(value, HOST):
        return False
    on_gpu = getattr(value, "is_cuda", None)
    if isinstance(on_gpu, bool):  # of a tensor of torch, which says so faster than by DLPack
        return on_gpu
    if hasattr(type(value), "__dlpack_device__"):
        try:
            return value.__dlpack_device__()[0] in (2, 13)  # kDLCUDA, kDLCUDAManaged
        except Exception:  # of a tensor without memory, say
            return False
    try:
        return hasattr(value, "__cuda_array_interface__")
    except Exception:  # of a property, which pyconv._gpu tells in words
        return True


def check_mask(name: str, value: Any) -> None:
    """TypeError where some elements of an array of NumPy's are not to be read."""
    masked: Any = sys.modules.get("numpy.ma")  # which every masked array has brought along
    if masked is not None and isinstance(value, masked.MaskedArray) and value.mask is not masked.nomask:
        raise TypeError(f"{name} must have no mask; got a masked array")


def _array(name: str, value: Any) -> Array:
    if value is None:
        raise TypeError(f"{name} must be an array; got None")
    if not isinstance(value, HOST) and hasattr(type(value), "__dlpack__"):
        return read(name, value)
    if hasattr(value, "__dask_graph__"):  # NumPy would compute all of it
        raise TypeError(f"{name} must be an array in memory; got one of dask's, which pyconv.dask takes")
    check_mask(name, value)
    library = type(value).__module__.partition(".")[0]
    if library in TRACED:
        raise TypeError(f"{name} must be an array in memory; got one of {library}'s, which pyconv.{library} takes")
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must be an array or a nested list of equal lengths; got {shown(value)}") from None
    except Exception as error:
        raise TypeError(f"{name} must be an array that NumPy can read; got {type(value).__name__}") from error


def ready(array: Array, dtype: DType) -> Array:
    """The array itself where a backend can take it, else a copy that it can take."""
    return array if cpu.is_ready(array, dtype) else np.require(array, dtype, ["C", "A"])


def channels_last(array: Array, rank: int, dtype: DType, may_copy: bool = False) -> Array | None:
    """The view of an array with `rank` spatial axes that has the channels as its last axis, if it lies so in memory.

    may_copy: or if each sample lies so, if not all together; `ready` then copies the view, in its order. The layout has
    a say in the order of the sums, and one sample of a batch would be read in place.
    """
    if cpu.is_ready(array, dtype) or array.ndim <= rank:
        return None
    view = array.transpose(last_order(array.ndim, rank))
    if cpu.is_ready(view, dtype):
        return view
    of_samples = may_copy and array.ndim == rank + 2 and len(array) > 1
    if of_samples and cpu.is_ready(view[:1], dtype) and not cpu.is_ready(array[:1], dtype):
        return view
    return None


@lru_cache(maxsize=64)
def last_order(axes: int, rank: int) -> Shape:
    """The order of axes that has the channels behind `rank` spatial ones; numpy.moveaxis takes most of a small call."""
    channels = axes - rank - 1
    return *range(channels), *range(channels + 1, axes), channels


def writing_place(out: Any, shape: Shape, dtype: DType, accumulate: bool = False) -> Array:
    """Where a backend writes: `out` itself where it can, else a new array; one with what it holds where accumulate."""
    if out is not None and cpu.is_ready(out, dtype):
        return np.asarray(out)
    return np.array(out, dtype, order="C") if accumulate else empty(shape, dtype)


def _overlaps_itself(array: Array) -> bool:
    """Whether an element may lie on another: some stride does not step over all that the smaller strides span."""
    span = array.itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(array.strides, array.shape) if size > 1):
        if step < span:
            return array.size > 0
        span += step * (size - 1)
    return False


def _in_main_memory(name: str, value: Any, leader_name: str) -> Array:
    """A NumPy array itself, another library's as a Visitor. The leader is an operand that lies in main memory."""
    if isinstance(value, ndarray):
        check_mask(name, value)
        return value
    if is_on_gpu(value):
        raise gpu_room("arguments").not_in_main_memory((leader_name, name), (None, value))
    if hasattr(type(value), "__dlpack__"):
        return visiting(read(name, value), value)
    raise TypeError(f"{name} must be an array in main memory; got {type(value).__name__}")


def check_out(
    name: str, out: Any, shape: Shape, dtype: DType, others: Sequence[tuple[str, Array | None]]
) -> Any:
    """`out`, as a DeviceArray where the operands are such, as a Visitor where it is another library's; refused where it
    cannot hold the result.

    Overlap is judged by the bounds of memory alone: an exact answer can take exponential time. So two views that
    interleave without sharing an element are refused too.
    """
    check_target(name, out, others[0][1])
    if not isinstance(dtype, np.dtype):
        return gpu_room("arguments").check_out(name, out, shape, dtype, others)
    out = _in_main_memory(name, out, others[0][0])
    if out.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"{name} must have dtype {dtype}; got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got shape {out.shape}")
    if not out.flags.writeable:
        raise ValueError(f"{name} must be writeable; got a read-only array")
    if not out.flags.c_contiguous and _overlaps_itself(out):
        raise ValueError(f"{name} must not overlap itself; got strides {out.strides}")
    for other_name, other in others:
        if other is not None and np.may_share_memory(out, other):
            raise ValueError(f"{name} must not overlap {other_name}; got arrays with common bounds of memory")
    return out


def flat_buffer(
    name: str, buffer: Any, dtype: DType, minimum: int, others: Sequence[tuple[str, Array | None]]
) -> Array | None:
    """The caller's scratch as flat memory; None for an empty array."""
    if not isinstance(dtype, np.dtype):  # then _evaluate has asked
        return gpu_room("arguments").flat_buffer(name, buffer, dtype, minimum, others)
    check_target(name, buffer, others[0][1])
    buffer = _in_main_memory(name, buffer, others[0][0])
    if not buffer.size:
        return None
    need = f"have at least {minimum} elements"
    if buffer.dtype is not dtype and (buffer.dtype != dtype or not buffer.dtype.isnative):
        raise TypeError(f"{name} must have dtype {dtype} and {need}; got {buffer.dtype}")
    flags = buffer.flags
    if not (flags.forc and flags.behaved):
        odd = "a read-only array" if not flags.writeable else "an unaligned array" if not flags.aligned else None
        got = odd or f"strides {buffer.strides}"
        raise ValueError(f"{name} must be contiguous, aligned and writeable, and {need}; got {got}")
    if buffer.size < minimum:
        raise ValueError(f"{name} must {need}; got {buffer.size}")
    for other_name, other in others:
        if other is not None and np.may_share_memory(buffer, other):
            raise ValueError(
                f"{name} must not overlap {other_name}, and {need}; got arrays with common bounds of memory"
            )
    return np.asarray(buffer).reshape(-1, order="A")
