"""The types of elements: those that are computed in, those of their sums, and those of the scratch that they need.

bfloat16 is ml_dtypes', known by its name: that package is imported only where another library's arrays or a name ask
for the type.
"""

from functools import lru_cache
from importlib import import_module
from reprlib import repr as shown
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

DType = np.dtype[Any]
Kind = TypeVar("Kind", bound=Any)  # of dtypes: NumPy's or a GPU's
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INTEGERS = tuple(sign + f"int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
NAMES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", *INTEGERS)
RULE = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
_NATIVE = {name: np.dtype(name) for name in NAMES if name != "bfloat16"}
_NUMBERED = {dtype.num: dtype for dtype in _NATIVE.values()}
_SUMS: dict[str, DType] = dict.fromkeys(INTEGERS, np.dtype(np.int64)) | {
    "int8": np.dtype(np.int32), "uint8": np.dtype(np.int32), "uint64": np.dtype(np.uint64)}
_COMPUTED: dict[str, DType] = {"float16": FLOAT32, "bfloat16": FLOAT32, "complex64": FLOAT32, "complex128": FLOAT64}


def _native(dtype: DType) -> DType | None:
    """The one object for a dtype in native byte order; None where it is none that is computed in."""
    native = _NUMBERED.get(dtype.num)  # NumPy takes a microsecond to name a dtype
    if native is not None:
        return native
    return np.dtype(dtype.type) if dtype.name == "bfloat16" else _NATIVE.get(dtype.name)


def native_dtype(name: str, dtype: DType) -> DType:
    """`dtype` in native byte order, if it is one that is computed in."""
    native = _native(dtype)
    if native is None:
        raise TypeError(f"{name} must have dtype {RULE}; got {dtype}")
    return native


def name_of(dtype: Any) -> str:
    """What an argument names: a name itself, or that of a dtype of NumPy, ml_dtypes or another library."""
    if dtype is None:  # which is float64 to NumPy
        return ""
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return str(dtype).rpartition(".")[2]  # as torch.float32 has it


def dtype_argument(dtype: Any) -> DType:
    """The dtype of operands that the argument `dtype` names."""
    name = name_of(dtype)
    if name not in NAMES:
        raise TypeError(f"dtype must be {RULE}; got {shown(dtype)}")
    return bfloat16_of("dtype", dtype, "be a dtype of NumPy") if name == "bfloat16" else _NATIVE[name]


def bfloat16_of(name: str, dtype: Any, rule: str = "have a dtype of NumPy") -> DType:
    """The type that NumPy has from ml_dtypes, for what the argument `name` calls `dtype`."""
    try:
        return np.dtype(import_module("ml_dtypes").bfloat16)  # type: ignore[no-any-return]
    except ImportError as error:
        raise TypeError(f"{name} must {rule} where ml_dtypes is not installed; got {dtype}") from error


@lru_cache(maxsize=64)
def is_integer(dtype: Any) -> bool:
    """Whether it is a type of integers, of NumPy or of a GPU."""
    return dtype.name in _SUMS


def result_dtype(dtype: Kind, wanted: Any, argument: str = "dtype") -> Kind:
    """What products of a dtype are summed in and returned as: of integers what is wanted, or else what is usual."""
    if not is_integer(dtype):
        if wanted is not None:
            raise TypeError(f"{argument} must be None for {dtype} arrays; got {shown(wanted)}")
        return dtype
    if wanted is None:
        return _like(dtype, _SUMS[dtype.name])
    able = ("int32", "int64", *(("uint64",) if dtype.name == "uint64" else ()))
    name = name_of(wanted)
    if name not in able:
        names = f"{', '.join(able[:-1])} or {able[-1]}"
        raise TypeError(f"{argument} must be {names} for {dtype} arrays; got {shown(wanted)}")
    return _like(dtype, _NATIVE[name])


def _like(dtype: Kind, native: Any) -> Kind:
    """The type of that name as NumPy has it, or as a GPU does: what `dtype` is."""
    like: Kind = native if isinstance(dtype, np.dtype) else dtype.named(native.name)
    return like


@lru_cache(maxsize=64)
def scratch_dtype(dtype: DType, result: DType) -> DType:
    """The elements of finput and fgrad_input: the real type that products are made in, or an integer result's type."""
    return _COMPUTED.get(dtype.name, result) if isinstance(dtype, np.dtype) else dtype


def element(value: complex, dtype: DType) -> NDArray[Any]:
    """A number as a 0-d array: equal numbers share a place in caches, so an integer may come as complex."""
    if isinstance(value, complex) and dtype.kind != "c":
        value = value.real
    return np.array(int(value.real) if is_integer(dtype) else value, dtype)
