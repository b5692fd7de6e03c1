"""Calls like one before: what they do is known by how their arrays lie, without asking for their geometry again.

It takes less than half of the time in Python, which is most of a small call. Kept is what is most common: numbers that
are ints, NumPy's arrays of one type that a plan takes as they are, in C order or with their channels last, with buffers
of that type or without.
"""

from typing import Any, NamedTuple

from numpy import ndarray

from pyconv import _phases
from pyconv._arguments import last_order
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
    orders: tuple[Shape | None, ...] | None  # see orders_of
    accumulate: bool

    def run(
        self, first: Array, second: Array, bias: Array | None, out: Array | None, scratch: Array | None
    ) -> Array:
        """The result, in `out` where that is given; the operands in the order of a backend's plan."""
        target = empty(self.shape, self.dtype) if out is None else out
        if scratch is not None:
            scratch = self.plan.enough(scratch)
        written = target
        if self.orders is not None:
            first, second, written = viewed(self.orders, first, second, target)
        self.plan.run(first, second, written, bias, scratch, self.accumulate, threads=get_num_threads())
        return target


def orders_of(key: Any, rank: int) -> tuple[Shape | None, ...] | None:
    """Of first, second and `out`: the axes in the order in which a plan takes them, None where that is their own; None
    where it is so of all. key: what a backend's `form` gave."""
    lies = key[1], key[2], key[4]
    found = tuple(last_order(len(one[0]), rank) if one and isinstance(one[0], tuple) else None for one in lies)
    return found if any(found) else None


def viewed(orders: tuple[Shape | None, ...], *arrays: Array) -> list[Array]:
    """The arrays with their axes in these orders."""
    return [array if order is None else array.transpose(order) for array, order in zip(arrays, orders)]


_known: dict[Any, Known] = {}


def look(
    numbers: tuple[Any, ...], settings: tuple[Any, ...] | None, arrays: tuple[Any, ...], written: tuple[Any, ...]
) -> tuple[Any, Known | None]:
    """The key of a call, and what is known of it; None where there is none.

    settings: what tells them from others; None where the call is not kept. arrays: first, second and bias, in the order
    of a backend's plan. written: `out` and the buffer, each an array or None. The first of numbers says which function
    it is, the second the rank, if that is known.
    """
    if settings is None or type(arrays[0]) not in READ:  # torch.compile, which reads this, cannot read Cython's
        return None, None
    key = cpu.form(numbers + settings if settings else numbers, arrays, written, numbers[1])
    return key, _known.get(key)


def keep(
    key: Any, plan: Plan, shape: Shape, dtype: DType, orders: tuple[Shape | None, ...] | None, accumulate: bool
) -> None:
    """Calls of that key will find it."""
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = Known(plan, shape, dtype, orders, accumulate)


def forget() -> None:
    """Keep neither calls nor plans: for tests, which change what they follow from."""
    _known.clear()
    cpu.plan.cache_clear()  # type: ignore[attr-defined]
    _phases.forget()
