"""Axes beyond the last three: loops over volumes, each a problem of three axes. Standard library only.

A volume is what the last three axes span; an array holds one for each index of its outer axes and each channel. T is a
sum over outer positions a and taps k, and each of its terms is the T of three axes on volume a of y, volume k of w and
the volume of x that tap k meets at position a.
"""

from collections.abc import Iterator
from itertools import groupby, product
from math import prod
from operator import attrgetter
from typing import NamedTuple

from pyconv._geometry import MAPS, Geometry, whole_size
from pyconv._integers import Shape
from pyconv._padding import held

LAST = 3
RESULTS = tuple(MAPS[role] for role in "xwy")


class Term(NamedTuple):
    """The number of a volume of x, of w and of y, and whether the result's volume has had a term before.

    x is None for a volume of padding that holds a constant.
    """

    x: int | None
    w: int
    y: int
    adds: bool


def of_volumes(g: Geometry) -> Geometry:
    """The problem of three axes that every term is."""
    if g.rank <= LAST:
        return g
    sizes = {name: getattr(g, name)[-LAST:]
             for name in (
                 "input_size", "kernel_size", "output_size", "stride", "dilation", "padding", "before", "behind")}
    inner = g._replace(rank=LAST, volumes=volumes(g), **sizes)
    return inner if _reads_outside(inner) else inner._replace(padding_mode="zeros", padding_value=0)


def _reads_outside(g: Geometry) -> bool:
    return any(lo > 0 or s * (y - 1) + d * (k - 1) - lo >= n for n, k, y, s, d, lo in zip(
        g.input_size, g.kernel_size, g.output_size, g.stride, g.dilation, g.padding))


def of_padding(g: Geometry) -> Geometry | None:
    """The problem of three axes that a term is whose volume of x is padding, if there are such terms."""
    return beyond(g) if g.rank > LAST and g.padding_mode == "constant" else None


def beyond(g: Geometry) -> Geometry:
    """The problem of three axes on a volume of x that is padding."""
    inner = of_volumes(g)
    reach = inner.stride[0] * (inner.output_size[0] - 1) + inner.dilation[0] * (inner.kernel_size[0] - 1)
    return inner._replace(
        padding_mode=g.padding_mode, padding_value=g.padding_value, padding=(reach + 1, *inner.padding[1:]))


def volumes(g: Geometry) -> tuple[int, int, int]:
    """How many x, or the array that it is a part of, w and y have of each channel."""
    return prod(whole_size(g)[:-LAST]), prod(g.kernel_size[:-LAST]), prod(g.output_size[:-LAST])


def _cell(g: Geometry, taps: Shape, positions: Shape) -> int | None:
    """The number of the volume of x that outer taps meet at outer positions."""
    number = 0
    axes = zip(g.input_size, g.stride, g.dilation, g.padding, g.before, whole_size(g), taps, positions)
    for n, s, d, lo, before, whole, k, a in axes:
        cell = held(g.padding_mode, s * a + d * k - lo, n)
        if cell is None:
            return None
        number = number * whole + before + cell
    return number


def meetings(g: Geometry) -> Iterator[tuple[int, int, int | None]]:
    """The numbers of volumes of w, of y and of x that meet, tap by tap; no number where x has none there."""
    for w, taps in enumerate(product(*map(range, g.kernel_size[:-LAST]))):
        for y, positions in enumerate(product(*map(range, g.output_size[:-LAST]))):
            yield w, y, _cell(g, taps, positions)


def terms(map: str, g: Geometry) -> Iterator[Term]:
    """The terms of a map, in the order of their sum."""
    result = RESULTS.index(map)
    had = bytearray(volumes(g)[result])
    constant = g.padding_mode == "constant" and map != "grad_input"
    for w, y, x in meetings(g):
        if x is not None or constant:
            at = (x, w, y)[result]
            assert at is not None
            yield Term(x, w, y, bool(had[at]))
            had[at] = 1


def terms_of_results(map: str, g: Geometry) -> list[list[Term]]:
    """The terms of each volume of the result, in the order of their sum."""
    result = RESULTS.index(map)
    found: list[list[Term]] = [[] for _ in range(volumes(g)[result])]
    for term in terms(map, g):
        at = term[result]
        assert at is not None
        found[at].append(term)
    return found


def stored_together(map: str, g: Geometry, joins: bool) -> Iterator[list[Term]]:
    """The terms one by one or, where joins, those of grad_weight in lists of all that have one volume of w."""
    if not joins:
        return ([term] for term in terms(map, g))
    return (list(of_w) for _, of_w in groupby(terms(map, g), key=attrgetter("w")))


def is_covered(map: str, g: Geometry) -> bool:
    """Whether every volume of the result has a term: along each axis, every cell, tap or position has."""
    result = RESULTS.index(map)
    if g.padding_mode == "constant" and map != "grad_input":
        return True
    for n, whole, taps, positions, s, d, lo in zip(
        g.input_size[:-LAST], whole_size(g), g.kernel_size, g.output_size, g.stride, g.dilation, g.padding
    ):
        met = ((held(g.padding_mode, s * a + d * k - lo, n), k, a) for k in range(taps) for a in range(positions))
        if len({one[result] for one in met if one[0] is not None}) < (whole, taps, positions)[result]:
            return False
    return True
