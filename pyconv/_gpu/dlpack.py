"""An array's memory as its DLPack capsule describes it, read in place.

The capsule is not consumed: it keeps its name, so that it frees what the producer made for it when it dies. The memory
itself belongs to the array, which the caller holds.
"""

import ctypes
from typing import Any, NamedTuple

from pyconv._integers import Shape

VERSION = (1, 0)
LEGACY = 1  # the legacy default stream, as DLPack numbers it
GPU = (2, 13)  # kDLCUDA, kDLCUDAManaged
NAMES = {  # by code and bits
    (2, 16): "float16", (4, 16): "bfloat16", (2, 32): "float32", (2, 64): "float64", (5, 64): "complex64",
    (5, 128): "complex128", **{(code, bits): f"{sign}int{bits}" for code, sign in ((0, ""), (1, "u"))
                               for bits in (8, 16, 32, 64)}}
READ_ONLY, COPIED = 1, 2  # flags of version 1


class _Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):  # version 0's managed tensor begins with it
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


class Tensor(NamedTuple):
    """What a capsule says; strides of None are those of C order."""

    address: int
    shape: Shape
    strides: Shape | None
    dtype: str
    device: int
    read_only: bool
    copied: bool  # whether it is a copy, which dies with the capsule


def on_gpu(value: Any) -> bool:
    """Whether `value` offers memory of an NVIDIA GPU through DLPack."""
    try:
        return hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] in GPU
    except Exception:  # of a tensor without memory, say
        return False


def read(value: Any, stream: int = LEGACY) -> Tensor:
    """The memory of `value`, ready for work on the stream, as DLPack numbers it, which the producer lets wait for it:
    asked for no stream, torch would order nothing.

    Before version 1 nothing says whether an array may be written to: it is then taken as read-only. BufferError of a
    version after 1, which lies in memory in a way that is not known.
    """
    try:
        capsule = value.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError:  # of a producer older than max_version
        capsule = value.__dlpack__(stream=stream)
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major > VERSION[0]:
            raise BufferError(f"its DLPack is of version {managed.major}.{managed.minor}, not {VERSION[0]} or older")
        tensor, flags = managed.tensor, managed.flags
    else:
        tensor, flags = _Tensor.from_address(_pointer(capsule, b"dltensor")), READ_ONLY
    code, bits, lanes = tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes
    dtype = NAMES.get((code, bits), "") if lanes == 1 else ""
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset, tuple(tensor.shape[:tensor.ndim]),
        tuple(tensor.strides[:tensor.ndim]) if tensor.strides else None,
        dtype or f"DLPack's type of code {code}, {bits} bits, {lanes} lanes", tensor.device.index,
        bool(flags & READ_ONLY), bool(flags & COPIED),
    )
