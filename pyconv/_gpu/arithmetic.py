# mypy: ignore-errors
# ruff: noqa: F821, F841 (names are those of the dialect, and of the functions that are written in place)
"""What the kernels of `plain` calculate with, in the dialect of `specialise`: real, whole or complex numbers.

A complex number is a pair of real ones, in registers and, PART bytes apart, in memory. Sums of whole numbers wrap,
modulo 2 to the number of their bits.
"""

from typing import Any


def nothing():
    """Zero, as a sum begins."""
    return real(0)


def plus(a, b):
    """The sum."""
    return a + b


def times_plus(a, b, c):
    """a * b + c, rounded once."""
    return fma(a, b, c)


def chosen(ok, a, b):
    """a where ok, else b."""
    return select(ok, a, b)


def constant(part_0, part_1):
    """A number that was given as an argument: the bits of its parts."""
    return number(part_0)


REAL: dict[str, Any] = {
    function.__name__: function for function in (nothing, plus, times_plus, chosen, constant)}


def plus_whole(a, b):
    """The sum."""
    return real(a + b)


def times_plus_whole(a, b, c):
    """a * b + c."""
    return real(a * b + c)


def load_whole(address, ok):
    """An operand, as sums are kept."""
    return real(load_part(address, ok))


WHOLE: dict[str, Any] = {
    **REAL, "load": load_whole, "plus": plus_whole, "times_plus": times_plus_whole}


def nothing_twice():
    """Zero."""
    return real(0), real(0)


def plus_pairs(a, b):
    """The sum."""
    return a[0] + b[0], a[1] + b[1]


def plus_turned(a, b):
    """a + i * b."""
    return a[0] - b[1], a[1] + b[0]


def times_plus_pairs(a, b, c):
    """a * b + c, in four products."""
    return fma(a[0], b[0], fma(-a[1], b[1], c[0])), fma(a[0], b[1], fma(a[1], b[0], c[1]))


def chosen_pair(ok, a, b):
    """a where ok, else b."""
    return select(ok, a[0], b[0]), select(ok, a[1], b[1])


def constant_pair(part_0, part_1):
    """A number that was given as an argument."""
    return number(part_0), number(part_1)


def load_pair(address, ok):
    """An operand, or a result: either has the type of sums."""
    return load_part(address, ok), load_part(i64(address + PART), ok)


def reload_pair(address, ok):
    """What is added to."""
    return reload_part(address, ok), reload_part(i64(address + PART), ok)


def store_pair(address, ok, value):
    """A result or a sum."""
    store_part(address, ok, value[0])
    store_part(i64(address + PART), ok, value[1])


def shared_pair(address):
    """From shared memory."""
    return shared_part(address), shared_part(i32(address + PART))


def put_pair(address, ok, value):
    """To shared memory."""
    put_part(address, ok, value[0])
    put_part(i32(address + PART), ok, value[1])


COMPLEX: dict[str, Any] = {
    "nothing": nothing_twice, "plus": plus_pairs, "plus_turned": plus_turned, "times_plus": times_plus_pairs,
    "chosen": chosen_pair, "constant": constant_pair, "load": load_pair, "load_result": load_pair,
    "reload": reload_pair, "reload_real": reload_pair, "load_real": load_pair,
    "store": store_pair, "store_real": store_pair, "shared": shared_pair, "put": put_pair,
}
