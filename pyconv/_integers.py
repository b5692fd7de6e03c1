"""Integer arguments made exact: ints, and tuples of them, that no bool, float or array hides behind.

True == 1 == 1.0 share an entry of a cache, so this comes before every cache.
"""

import operator
from collections.abc import Mapping, Set
from functools import lru_cache
from itertools import accumulate
from reprlib import repr as shown
from typing import Any

Shape = tuple[int, ...]
Ints = int | Shape
MOST_AXES = 64  # of an array of NumPy's


def ints_rule(count: int, least: int) -> str:
    """What an argument of exact_ints must be."""
    return f"be an int >= {least} or a sequence of {count} such"


def length_of(value: Any) -> int | None:
    """The length of a sequence; None for what is none, a 0-d array among it."""
    if type(value) is tuple or type(value) is list:  # most: the classes below take a while to ask
        return len(value)
    unordered = isinstance(value, str | bytes | bytearray | Mapping | Set)
    if unordered or isinstance(value, type) or not hasattr(value, "__getitem__") or not getattr(value, "ndim", 1):
        return None
    try:
        return len(value)
    except (TypeError, ValueError):  # list[int] has no length, and who has a negative one no usual one
        return None


def _exact(value: Any, *counts: int) -> Any:
    """An int as an exact int; where counts are given, a sequence of so many as a tuple of such, nested if more follow.

    TypeError for a bool, a float and whatever else is no integer; ValueError for another count.
    """
    if type(value) is int or (counts and _is_exact_tuple(value) and len(value) == counts[0]):
        return value
    length = length_of(value) if counts else None
    if length is None:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    if length != counts[0]:
        raise ValueError
    return tuple([_exact(entry, *counts[1:]) for entry in value])


def _is_exact_tuple(value: Any) -> bool:
    """Whether the value is what _exact would make of it: this saves most calls the way through it."""
    if type(value) is not tuple:
        return False
    for entry in value:
        if type(entry) is not int:
            return False
    return True


def exact(name: str, rule: str, value: Any, *counts: int) -> Any:
    """`value` through _exact; its errors name the argument and the rule."""
    try:
        return _exact(value, *counts)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} must {rule}; got {shown(value)}") from None


def exact_ints(name: str, value: Any, count: int, least: int) -> Ints:
    """An int, or a tuple of `count` ints; their range is checked behind the cache."""
    if type(value) is int or (_is_exact_tuple(value) and len(value) == count):
        return value  # type: ignore[no-any-return]
    return exact(name, ints_rule(count, least), value, count)  # type: ignore[no-any-return]


def exact_count(name: str, value: Any) -> int:
    """An int >= 1."""
    count: int = exact(name, "be an int >= 1", value)
    if count < 1:
        raise ValueError(f"{name} must be an int >= 1; got {count}")
    return count


def exact_shape(name: str, value: Any) -> Shape:
    """A whole shape, as `input_size` or `weight_size`: a sequence of ints >= 0."""
    if isinstance(value, tuple):
        value = tuple(value)  # a tensor's is of a class of its own
    if _is_exact_tuple(value) and 0 < len(value) <= MOST_AXES and min(value) >= 0:
        return value  # type: ignore[no-any-return]
    rule = f"be a sequence of at most {MOST_AXES} ints >= 0"
    length = length_of(value)
    if length is None:
        raise TypeError(f"{name} must {rule}; got {shown(value)}")
    sizes: Shape = exact(name, rule, value, min(length, MOST_AXES))
    if min(sizes, default=0) < 0:
        raise ValueError(f"{name} must {rule}; got {shown(value)}")
    return sizes


@lru_cache(maxsize=1024)
def steps_of(shape: Shape) -> Shape:
    """The strides, in elements, of an array of that shape in C order."""
    return tuple(accumulate((max(size, 1) for size in shape[:0:-1]), operator.mul, initial=1))[::-1] if shape else ()
