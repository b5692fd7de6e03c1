"""GPU arrays: their types, where their memory lies, and what is asked of the frameworks that they are of; see kinds."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import numpy as np

from pyconv._gpu import launch, streams
from pyconv._integers import Shape


@dataclass(frozen=True, slots=True, eq=False)
class DeviceType:
    """A type of elements, and the bytes of one; one object for each, in DTYPES.

    No tuple: numpy.dtype makes an array's type of (type, length).
    """

    name: str
    size: int

    @staticmethod
    def named(name: str) -> "DeviceType":
        """The type of that name."""
        return DTYPES[name]

    def __reduce__(self) -> Any:
        return DeviceType.named, (self.name,)

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type as NumPy has it, which numpy.dtype asks for. TypeError where nothing brings it bfloat16."""
        if self.name != "bfloat16":
            return np.dtype(self.name)
        try:
            return np.dtype(import_module("ml_dtypes").bfloat16)  # type: ignore[no-any-return]
        except ImportError as error:
            raise TypeError("NumPy has bfloat16 where ml_dtypes is installed: pip install ml_dtypes") from error


DTYPES = {name: DeviceType(name, size) for name, size in (
    ("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8), ("complex64", 8), ("complex128", 16),
    *((f"{sign}int{8 * size}", size) for sign in ("", "u") for size in (1, 2, 4, 8)))}
COMPLEX = frozenset(dtype for name, dtype in DTYPES.items() if name.startswith("complex"))
NAMES_OF_TYPESTR = {np.dtype(name).str: name for name in DTYPES if name != "bfloat16"}
RULE = f"{', '.join(list(DTYPES)[:-1])} or {list(DTYPES)[-1]}"


On = tuple[int, Any]  # the handle of a stream, and what it was named by
Made = tuple[Any, int, Shape]  # a new array's owner, address, and strides in elements
Lie = tuple[list[Any], dict[str, int], int | None]  # forms; addresses by name; the stream that all of them name


@dataclass(slots=True, eq=False)
class DeviceArray:
    """Memory of a GPU in the shape of an array; never changed. A call reads some: no NamedTuple, which takes longer."""

    owner: Any  # the object that the caller knows, and that keeps the memory alive
    address: int  # of the element at index 0, ..., 0
    shape: Shape
    strides: Shape  # in elements
    dtype: DeviceType
    device: int
    kind: "Kind"
    read_only: bool = False
    after: int | None = None  # the stream that writes it, where a protocol names one that is not a framework's current

    def _replace(self, **changes: Any) -> "DeviceArray":
        """Another with these fields."""
        return replace(self, **changes)

    @property
    def size(self) -> int:
        """The number of elements."""
        return extent(self.shape, self.strides).size

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def merged(self, axes: int) -> "DeviceArray":
        """With so many axes behind the first two, if it can be: neighbours dense in memory are made one."""
        if self.ndim <= axes + 2:
            return self
        inner, place = [axis for axis in zip(self.shape[2:], self.strides[2:]) if axis[0] != 1], 0
        while place < len(inner) - 1 and len(inner) > axes:
            (outer, step), (length, along) = inner[place:place + 2]
            if step == along * length:
                inner[place:place + 2] = [(outer * length, along)]
            else:
                place += 1
        shape, steps = zip(*[(1, 0)] * (axes - len(inner)), *inner)
        return self._replace(shape=(*self.shape[:2], *shape), strides=(*self.strides[:2], *steps))

    def bounds(self) -> tuple[int, int]:
        """The first byte of all elements, and the one behind the last."""
        _, first, end, _ = extent(self.shape, self.strides)
        address, size = self.address, self.dtype.size
        return address + size * first, address + size * end


class Extent(NamedTuple):
    """What a shape and strides say of an array: the number of its elements; from its address the first of their places
    and the one behind the last, in elements; whether an element may lie on another."""

    size: int
    first: int
    end: int
    overlaps: bool


@lru_cache(maxsize=4096)
def extent(shape: Shape, strides: Shape) -> Extent:
    """The extent of an array with strides in elements."""
    size = prod(shape)
    if not size:
        return Extent(0, 0, 0, False)
    steps = [step * (length - 1) for step, length in zip(strides, shape)]
    span, overlaps = 1, False
    for step, length in sorted((abs(step), length) for step, length in zip(strides, shape) if length > 1):
        overlaps |= step < span  # a stride must step over all that the smaller strides span
        span += step * (length - 1)
    return Extent(size, sum(step for step in steps if step < 0), 1 + sum(step for step in steps if step > 0), overlaps)


class Kind:
    """The arrays of one framework."""

    library = ""  # as errors call it; of no name where there are several

    def read(self, name: str, value: Any) -> DeviceArray | None:
        """The array that `value` is; None where it is not of this kind, or lies in main memory.

        TypeError in the words of the argument `name` where it is of this kind, but of no use.
        """
        raise NotImplementedError

    def lie(self, names: Sequence[str], given: Sequence[Any], operands: int) -> Lie | None:
        """How arrays of this kind lie, None for None. None where one of them is of another kind, or no usual one: what
        `read` would refuse, and so many operands being followed by arrays that are written to, what check_target would,
        lies like none that has passed these. Raises what an array or the driver does."""
        return None

    def new(self, shape: Shape, dtype: DeviceType, device: int) -> Any:
        """A new C-contiguous array of the framework."""
        raise NotImplementedError

    def made(self, shape: Shape, dtype: DeviceType, device: int) -> Made:
        """What `new` gives."""
        return self.read_new(self.new(shape, dtype, device))

    def read_new(self, value: Any) -> Made:
        """A new array, as `read` has it."""
        array = self.read("out", value)
        assert array is not None
        return value, array.address, array.strides

    def stream(self, device: int) -> int:
        """The handle of the framework's current stream."""
        return streams.LEGACY

    def using(self, stream: int, device: int, named: Any) -> AbstractContextManager[Any]:
        """The framework with that stream as its current one: its allocator then gives memory in that stream's order.

        named: what the stream was named by, such as an object that destroys it when it dies itself.
        """
        return nullcontext()

    def lend(self, owner: Any, device: int, stream: int) -> None:
        """Tell the framework's allocator, if it can be told, that a stream uses the array, which is not its own."""

    def empty(
        self, shape: Shape, dtype: DeviceType, device: int, new: Callable[[], Any] | None = None, on: On | None = None
    ) -> Made:
        """A new array, C-contiguous unless `new` makes it. MemoryError where the framework has no memory for it.

        on: the stream in whose order it is given memory; None where that is the framework's current one.
        After a kernel that failed this is what fails first; other errors stay the framework's, that one with a note.
        """
        if on is not None and on[0] != self.stream(device):
            with self.using(on[0], device, on[1]):
                return self.empty(shape, dtype, device, new)
        try:
            return self.made(shape, dtype, device) if new is None else self.read_new(new())
        except Exception as error:
            if not _is_out_of_memory(error):
                if any(word in str(error) for word in ("CUDA error", "cudaError", *launch.FATAL)):
                    error.add_note(f"pyconv: where a kernel has failed, perhaps an earlier one, {launch.RESTART}")
                raise
            raise MemoryError(
                f"cuda:{device} must have {prod(shape) * dtype.size} bytes free for an array of shape {shape}, dtype "
                f"{dtype}; got {type(error).__name__}"
            ) from error


def checked_dtype(name: str, dtype: str) -> DeviceType:
    """The type of that name, if it is one that is computed in."""
    if dtype not in DTYPES:
        raise TypeError(f"{name} must have dtype {RULE}; got {dtype}")
    return DTYPES[dtype]


def _is_out_of_memory(error: Exception) -> bool:
    """torch's is a RuntimeError, CuPy's a MemoryError, Numba's an error of the driver with a code; without their caches
    of memory torch and CuPy raise what says of any failed call which it was."""
    words = "OUT_OF_MEMORY", "CUDA error: out of memory", "cudaErrorMemoryAllocation"
    return (
        isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        or any(word in str(error) for word in words))
