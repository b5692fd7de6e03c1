"""Calls like one before: what they do is known by how their arrays lie, without asking for their geometry again.

It takes less than half of the time in Python, which is most of a small call. Kept is what is most common: the usual
settings, with buffers or without, numbers that are ints, NumPy's arrays that a plan takes as they are.
"""

from typing import Any, NamedTuple

from numpy import ndarray

from pyconv._backend import Array, Plan, cpu
from pyconv._dtypes import DType
from pyconv._integers import Shape
from pyconv._libraries import Visitor
from pyconv._memory import empty
from pyconv._threads import get_num_threads

KEPT = 1024
READ = (ndarray, Visitor)


class Known(NamedTuple):
    """What is done for all calls of one key: see Backend.form."""

    plan: Plan
    shape: Shape
    dtype: DType

    def run(
        self, first: Array, second: Array, bias: Array | None, out: Array | None, scratch: Array | None
    ) -> Array:
        """The result, in `out` where that is given; the operands in the order of a backend's plan."""
        target = empty(self.shape, self.dtype) if out is None else out
        if scratch is not None:
            scratch = self.plan.enough(scratch)
        self.plan.run(first, second, target, bias, scratch, threads=get_num_threads())
        return target


_known: dict[Any, Known] = {}


def look(
    usual: bool, numbers: tuple[Any, ...], arrays: tuple[Any, ...], written: tuple[Any, ...]
) -> tuple[Any, Known | None]:
    """The key of a call, and what is known of it; None where there is none.

    usual: whether its settings are. arrays: first, second and bias, in the order of a backend's plan. written: `out`
    and the buffer, each an array or None.
    """
    if not usual or type(arrays[0]) not in READ:  # torch.compile, which reads this, cannot read Cython's functions
        return None, None
    key = cpu.form(numbers, arrays, written)
    return key, _known.get(key)


def keep(key: Any, plan: Plan, shape: Shape, dtype: DType) -> None:
    """Calls of that key will find it."""
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = Known(plan, shape, dtype)


def forget() -> None:
    """Keep neither calls nor plans: for tests, which change what they follow from."""
    _known.clear()
    cpu.plan.cache_clear()  # type: ignore[attr-defined]
