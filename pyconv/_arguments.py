"""Array arguments: what is accepted, and its one form behind the door. Nothing here copies before all is checked."""

from collections.abc import Iterable, Sequence
from re import fullmatch
from reprlib import repr as shown
from typing import Any

import numpy as np
from numpy import ndarray

from pyconv._backend import Array, cpu, gpu_room
from pyconv._integers import Shape
from pyconv._memory import empty

ALGORITHMS = ("auto", "gemm", "winograd")
DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
DType = np.dtype[Any]


def native_dtype(name: str, dtype: DType) -> DType:
    """`dtype` in native byte order, if it is one that is computed in."""
    native = dtype.newbyteorder("=")
    if native not in DTYPES:
        raise TypeError(f"{name} must have dtype float32 or float64; got {dtype}")
    return DTYPES[DTYPES.index(native)]


def dtype_argument(dtype: Any) -> DType:
    """The dtype that the argument `dtype` names."""
    try:
        native = np.dtype("O" if dtype is None else dtype).newbyteorder("=")  # None is float64 to NumPy
    except TypeError:
        native = np.dtype("O")
    if native not in DTYPES:
        raise TypeError(f"dtype must be float32 or float64; got {shown(dtype)}")
    return DTYPES[DTYPES.index(native)]


def check_algorithm(algorithm: object, dtype: DType) -> None:
    """ValueError unless it is a name that arrays of that dtype have."""
    if not isinstance(dtype, np.dtype):
        gpu_room("arguments").check_algorithm(algorithm, dtype)
    elif not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(map(repr, ALGORITHMS))}; got {shown(algorithm)}")


def device_argument(device: Any) -> int | None:
    """The index of the GPU that the argument `device` names, None for main memory; 'cuda' is 'cuda:0'."""
    match = fullmatch("(cpu)|cuda(?::([0-9]+))?", str(device))
    if match is None:
        error = ValueError if isinstance(device, str) else TypeError
        raise error(f"device must be 'cpu', 'cuda' or 'cuda:' and an index; got {shown(device)}")
    return None if match[1] else int(match[2] or 0)


def check_flag(name: str, value: object) -> None:
    """TypeError unless it is a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False; got {shown(value)}")


def check_stream(stream: Any, dtype: DType) -> None:
    """TypeError or ValueError unless it is None, or a stream where the arrays are a GPU's."""
    if not isinstance(dtype, np.dtype):
        gpu_room("arguments").check_stream(stream)
    elif stream is not None:
        raise ValueError(f"stream must be None for arrays in main memory; got {shown(stream)}")


def exact_mask(output_mask: Any) -> tuple[bool, ...]:
    """Which of the three results are wanted."""
    rule = "be a sequence of 3 bools"
    if not isinstance(output_mask, list | tuple | ndarray):
        raise TypeError(f"output_mask must {rule}; got {shown(output_mask)}")
    if len(output_mask) != 3:
        raise ValueError(f"output_mask must {rule}; got {shown(output_mask)}")
    if not all(isinstance(wanted, bool | np.bool_) for wanted in output_mask):
        raise TypeError(f"output_mask must {rule}; got {shown(output_mask)}")
    return tuple(map(bool, output_mask))


def operands(
    names: Sequence[str], required: tuple[Any, ...], optional: tuple[Any, ...] = ()
) -> tuple[DType, tuple[Any, ...]]:
    """(dtype, the arrays): base-class ndarrays of one dtype, as they lie in memory; None only among the optional.

    Where one of them is a GPU array, all must be: then they are DeviceArrays, and dtype a DeviceType.
    """
    dtype = getattr(required[0], "dtype", None)
    if dtype is DTYPES[0] or dtype is DTYPES[1]:
        for value in required:
            if type(value) is not ndarray or value.dtype is not dtype:
                return _operands(names, required, optional)
        for value in optional:
            if value is not None and (type(value) is not ndarray or value.dtype is not dtype):
                return _operands(names, required, optional)
        return dtype, required + optional
    return _operands(names, required, optional)


def _operands(names: Sequence[str], required: tuple[Any, ...], optional: tuple[Any, ...]) -> tuple[DType, Any]:
    given = required + optional
    if any(map(_on_gpu, given)):
        return gpu_room("arguments").operands(names, required, optional)  # type: ignore[no-any-return]
    arrays = [
        None if value is None and place >= len(required) else _array(name, value)
        for place, (name, value) in enumerate(zip(names, given))
    ]
    present = [place for place, array in enumerate(arrays) if array is not None]
    leader = next((place for place in present if not isinstance(given[place], list | tuple)), present[0])
    dtype = native_dtype(names[leader], arrays[leader].dtype)  # type: ignore[union-attr]
    for place in present:
        name, array = names[place], arrays[place]
        if array.dtype.newbyteorder("=") == dtype:  # type: ignore[union-attr]
            continue
        if isinstance(given[place], list | tuple) and array.dtype.kind in "iuf":  # type: ignore[union-attr]
            arrays[place] = array.astype(dtype)  # type: ignore[union-attr]
            continue
        native_dtype(name, array.dtype)  # type: ignore[union-attr]
        raise TypeError(
            f"{name} must have the dtype of {names[leader]}, {dtype}; got {array.dtype}"  # type: ignore[union-attr]
        )
    return dtype, tuple(arrays)


def _on_gpu(value: Any) -> bool:
    """Whether its memory is a GPU's, as far as can be told without pyconv._gpu."""
    if isinstance(value, ndarray | list | tuple):
        return False
    if hasattr(type(value), "__dlpack_device__"):
        try:
            return value.__dlpack_device__()[0] in (2, 13)  # kDLCUDA, kDLCUDAManaged
        except Exception:  # of a tensor without memory, say
            return False
    return hasattr(value, "__cuda_array_interface__")


def _array(name: str, value: Any) -> Array:
    if value is None:
        raise TypeError(f"{name} must be an array; got None")
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(f"{name} must be an array or a nested list of equal lengths; got {shown(value)}") from None
    except Exception as error:
        raise TypeError(f"{name} must be an array that NumPy can read; got {type(value).__name__}") from error


def ready(array: Array, dtype: DType) -> Array:
    """The array itself where a backend can take it, else a copy that it can take."""
    return array if cpu.is_ready(array, dtype) else np.require(array, dtype, ["C", "A"])


def channels_last(array: Array, rank: int, dtype: DType) -> Array | None:
    """The view of an array with `rank` spatial axes that has the channels as its last axis, if it lies so in memory."""
    if cpu.is_ready(array, dtype) or array.ndim <= rank:
        return None
    view = np.moveaxis(array, -rank - 1, -1)
    return view if cpu.is_ready(view, dtype) else None


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


def check_out(
    name: str, out: Any, shape: Shape, dtype: DType, others: Iterable[tuple[str, Array | None]]
) -> Any:
    """`out`, as a DeviceArray where the operands are such; refused where it cannot hold the result.

    Overlap is judged by the bounds of memory alone: an exact answer can take exponential time. So two views that
    interleave without sharing an element are refused too.
    """
    if not isinstance(dtype, np.dtype):
        return gpu_room("arguments").check_out(name, out, shape, dtype, others)
    if not isinstance(out, ndarray):
        raise TypeError(f"{name} must be a NumPy array; got {type(out).__name__}")
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
    name: str, buffer: Any, dtype: DType, minimum: int, others: Iterable[tuple[str, Array | None]]
) -> Array | None:
    """The caller's scratch as flat memory; None for an empty array."""
    if not isinstance(dtype, np.dtype):
        return gpu_room("arguments").flat_buffer(name, buffer, dtype, minimum, others)
    if not isinstance(buffer, ndarray):
        raise TypeError(f"{name} must be a NumPy array; got {type(buffer).__name__}")
    if not buffer.size:
        return None
    need = f"have at least {minimum} elements"
    if buffer.dtype is not dtype and (buffer.dtype != dtype or not buffer.dtype.isnative):
        raise TypeError(f"{name} must have dtype {dtype} and {need}; got {buffer.dtype}")
    flags = buffer.flags
    if not (flags.forc and flags.behaved):
        raise ValueError(f"{name} must be contiguous, aligned and writeable, and {need}; got strides {buffer.strides}")
    if buffer.size < minimum:
        raise ValueError(f"{name} must {need}; got {buffer.size}")
    for other_name, other in others:
        if other is not None and np.may_share_memory(buffer, other):
            raise ValueError(
                f"{name} must not overlap {other_name}, and {need}; got arrays with common bounds of memory"
            )
    return np.asarray(buffer).reshape(-1, order="A")
