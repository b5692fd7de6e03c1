"""Arrays of other libraries in main memory: read where they lie through DLPack, and results given back as theirs.

No library is imported: an array of one has brought it along. What has no library of its own counts as NumPy's.
"""

import sys
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray


class Visitor(ndarray[Any, Any]):
    """An array of another library as NumPy sees it: the same memory. `owner` is what the caller knows.

    Of the operands only the first is one, and stands for the library that results belong to.
    """

    owner: Any = None


def library_of(value: Any) -> ModuleType | None:
    """The module whose from_dlpack makes arrays of the kind that `value` is; None for NumPy."""
    if isinstance(value, ndarray | list | tuple) or not hasattr(type(value), "__dlpack__"):
        return None
    if hasattr(type(value), "__array_namespace__"):
        return value.__array_namespace__()  # type: ignore[no-any-return]
    return _module_of(type(value))  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _module_of(kind: type) -> ModuleType | None:
    for base in kind.__mro__:
        module = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(module, "from_dlpack"):
            return module
    return None


def name_of(library: ModuleType | None) -> str:
    """As errors call it."""
    return "numpy" if library is None else library.__name__


def read(name: str, value: Any) -> NDArray[Any]:
    """The memory of an array that has __dlpack__; a gradient that it requires is not recorded.

    TypeError in the words of the argument `name` where NumPy cannot see what it holds.
    """
    if getattr(value, "requires_grad", False):
        value = value.detach()
    if hasattr(value, "is_neg") and value.is_neg():
        raise TypeError(f"{name} must hold its values as they are; got a tensor that resolve_neg would negate")
    try:
        if str(getattr(value, "dtype", "")).endswith("bfloat16"):
            return _bfloat16(name, value)
        return np.from_dlpack(value)
    except TypeError:
        raise
    except Exception as error:
        raise TypeError(f"{name} must be an array that NumPy can read; got {type(value).__name__}") from error


def _bfloat16(name: str, value: Any) -> NDArray[Any]:
    """NumPy has the type from ml_dtypes, and DLPack cannot bring it to NumPy: its bits come as integers."""
    library = library_of(value)
    try:
        dtype = import_module("ml_dtypes").bfloat16
    except ImportError as error:
        raise TypeError(
            f"{name} must have a dtype of NumPy where ml_dtypes is not installed; got {value.dtype}"
        ) from error
    return np.from_dlpack(value.view(library.uint16)).view(dtype)  # type: ignore[union-attr]


def visiting(array: NDArray[Any], owner: Any) -> Visitor:
    """The array as what NumPy sees of `owner`."""
    visitor = array.view(Visitor)
    visitor.owner = owner
    return visitor


def given_back(array: NDArray[Any], like: Any) -> Any:
    """A new C-contiguous array as one of the library and on the device of the operand `like`: the same memory."""
    library = library_of(like.owner) if type(like) is Visitor else None
    if library is None:
        return array
    bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    if hasattr(like.owner, "__array_namespace__"):
        found = library.from_dlpack(bits, device=like.owner.device)
    else:
        found = library.from_dlpack(bits)
    return found if bits is array else found.view(like.owner.dtype)
