"""The backend contract, and which array belongs to which backend.

A backend is a module with the names of `Backend`. NumPy arrays belong to `cpu`. All arrays that reach a backend are
checked: C-contiguous, aligned, in native byte order, of the plan's dtypes, not empty, `out` overlapping nothing.

GPU arrays belong to `cuda()`, of the same names with other arguments: pyconv._gpu.arrays.DeviceArray with any strides
for arrays, DeviceType for dtype, device= and allow_tf32= to plan; what would run gives programs, which are kept.
"""

import sys
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from pyconv._geometry import Geometry

Array = NDArray[Any]


class Plan(Protocol):
    """One map on one geometry for one dtype; holds no array and serves any number of concurrent calls.

    Scratch is of the real type that products are made in: float32 for halves and complex64, float64 for complex128, the
    result's for integers.
    """

    @property
    def scratch_minimum(self) -> int:
        """Elements of scratch that a call needs."""

    def scratch_size(self, threads: int) -> int:
        """Elements of scratch that full speed wants."""

    def enough(self, scratch: Array | None) -> Array | None:
        """The scratch, or new one where it is too small for this plan."""

    def of_batch(self, batch: int) -> "Plan":
        """The plan of so many samples."""

    def run(
        self, first: Array, second: Array, out: Array, bias: Array | None = None, scratch: Array | None = None,
        accumulate: bool = False, *, threads: int | None = None,
    ) -> None:
        """out = map(first, second) + bias, added to what `out` holds where accumulate.

        forward: x, w -> y. grad_input: y, w -> x. grad_weight: x (or the columns), y -> w's gradient.
        """


class Backend(Protocol):
    """What a backend offers; plans come from a bounded cache."""

    def plan(
        self, map: str, geometry: Geometry, dtype: np.dtype[Any], algorithm: str = "auto",
        result: np.dtype[Any] | None = None,
    ) -> Plan:
        """The plan of 'forward', 'grad_input' or 'grad_weight'; out and bias have the dtype `result`, where given.

        With geometry.per_sample, out of grad_weight is (batch, *weight shape).
        """

    def is_ready(self, array: Array, dtype: np.dtype[Any]) -> bool:
        """Whether a plan can take the array as it is: C-contiguous, aligned, its dtype equal to this one."""

    def form(
        self, numbers: tuple[Any, ...], arrays: tuple[Any, ...], written: tuple[Any, ...], rank: int | None = None,
    ) -> Any:
        """What tells calls apart whose arrays a plan takes as they are: the numbers, and of every array how it lies.

        That is its shape; where a rank is named, in a tuple of one for an operand or a result whose channels lie last.
        arrays: first, second and bias, any objects, as the user gave them, and so are the numbers; written: out and a
        buffer. None where a number is no int, text, None or tuple of such, where a plan cannot take an array as it is,
        and where one that is to be written meets another: such calls ask for their plan each time.
        """

    def unfold(
        self, geometry: Geometry, input: Array, columns: Array, fold: bool, accumulate: bool = False, *,
        threads: int | None = None,
    ) -> None:
        """columns <- input, or with fold input <- the sum of the columns, or that added to it."""

    def channel_sum(
        self, array: Array, out: Array, accumulate: bool = False, *, threads: int | None = None,
    ) -> None:
        """out <- the sum over axes 0 and 2 of (batch, channels, positions), or that added to it."""

    def touch(self, memory: Array, step: int, threads: int) -> None:
        """Write to the first of so many bytes each, and to the last byte, of memory that nobody has written to yet."""

    def set_threads(self, threads: int) -> None:
        """The number of threads of a call that names none."""

    def config(self) -> dict[str, Any]:
        """level, levels (what the processor has, best first), openmp, threads."""


cpu = cast(Backend, import_module("pyconv._cpu"))


def cuda() -> Any:
    """The backend of GPU arrays, imported with the first of them."""
    return sys.modules.get("pyconv._cuda") or import_module("pyconv._cuda")


@lru_cache(maxsize=64)
def has_interface_alone(kind: Any) -> bool:
    """Whether arrays of that class say where their memory on a GPU is by __cuda_array_interface__, and in no other way.
    """
    return (hasattr(kind, "__cuda_array_interface__") and not issubclass(kind, np.ndarray | list | tuple)
            and not any(hasattr(kind, other) for other in ("__dlpack__", "__dlpack_device__", "is_cuda")))


@cache
def gpu_room(name: str) -> Any:
    """pyconv._gpu.name: 'arguments' and 'calls' do for GPU arrays what _arguments and _evaluate do for NumPy's."""
    return import_module(f"pyconv._gpu.{name}")
