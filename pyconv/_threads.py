"""How many threads a call uses: one number for the process, and one for a context that asks for its own."""

import ctypes
import os
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any

from pyconv._backend import cpu
from pyconv._integers import exact_count

CELLS = 2**18  # that a further thread must find to copy or to add
MOST = 2**31 - 1  # what the backend's int holds; it starts no thread that finds nothing to do


def _first_number() -> int:
    """OMP_NUM_THREADS (the first of a nested list), or as many as the CPUs that the process may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return min(int(asked), MOST)
    try:  # OpenMP's own count: where it binds threads, as OMP_PROC_BIND asks, this one has but the first of the CPUs
        return int(ctypes.CDLL(getattr(cpu, "__file__", "")).omp_get_num_procs())
    except (OSError, AttributeError):
        pass
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _exact_number(n: int) -> int:
    count = exact_count("n", n)
    if count > MOST:
        raise ValueError(f"n must be at most {MOST}; got {count}")
    return count


_process = _first_number()
_forked = False
_asked: ContextVar[tuple[int, ...]] = ContextVar("pyconv_threads", default=())  # by the blocks around, innermost last


def _keep_to_one() -> None:
    # gcc's OpenMP waits for ever in a child that was forked after a parallel region
    global _process, _forked
    _process, _forked = 1, True
    cpu.set_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_to_one)
cpu.set_threads(_process)


def set_num_threads(n: int) -> None:
    """Set the number of threads that every call of this process uses, except inside a `num_threads` block.

    It starts as OMP_NUM_THREADS or, without it, as the number of CPUs that the process may use, and is kept apart
    from OpenMP's own number. It changes the speed, never a bit of a result. A forked child keeps to one thread.
    TypeError or ValueError unless n is an int from 1 to 2**31 - 1.

    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    """
    global _process
    count = _exact_number(n)
    if not _forked:
        _process = count
        cpu.set_threads(count)


def get_num_threads() -> int:
    """The number of threads that a call made here and now uses.

    >>> with num_threads(1):
    ...     get_num_threads()
    1
    """
    asked = _asked.get()
    return 1 if _forked else asked[-1] if asked else _process


def worth(cells: int) -> int:
    """As many threads as find enough to do where cells are copied or added, and nothing is multiplied."""
    return max(1, min(get_num_threads(), cells // CELLS))


class num_threads(ContextDecorator):
    """A context manager: calls in its block use n threads, in this Python thread or asyncio task alone.

    It may be entered any number of times, and stand above a function as its decorator. TypeError or ValueError unless n
    is an int from 1 to 2**31 - 1.

    >>> with num_threads(3):
    ...     get_num_threads()
    3
    """

    def __init__(self, n: int) -> None:
        self._count = _exact_number(n)

    def __enter__(self) -> None:
        _asked.set((*_asked.get(), self._count))

    def __exit__(self, *error: Any) -> None:
        _asked.set(_asked.get()[:-1])
