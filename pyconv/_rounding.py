"""Sums of halves that are added up in several steps: which part of a result is kept in float32 at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyconv._geometry import Geometry
from pyconv._memory import shares

Array = NDArray[Any]
Part = tuple[Geometry, Array, Array, Array, Array | None]

AT_ONCE = 2**18  # results, if these are of so many channels:
CHANNELS = 8  # fewer do not fill a register tile


def parts(map: str, g: Geometry, first: Array, second: Array, out: Array, bias: Array | None) -> Iterator[Part]:
    """The problem, its operands, the part of `out` that is its result, and its bias, of some channels of a sample after
    the others; of the weight's gradient the whole."""
    if map == "grad_weight":
        yield g, first, second, out, bias
        return
    to_x = map == "grad_input"
    count, last = (g.in_channels, g.x_last) if to_x else (g.out_channels, g.y_last)
    cells = out.size // (g.batch * count)
    some = _channels(g, count, max(CHANNELS, AT_ONCE // cells), g.y_last if to_x else g.x_last)
    for sample, result in zip(first.reshape(g.batch, -1), out.reshape(g.batch, -1)):
        if some == count:
            yield g._replace(batch=1), sample, second, result, bias
            continue
        channels = result.reshape(cells, count).T if last else result.reshape(count, cells)
        for own in shares(count, some):
            yield (*_part(to_x, g, sample, second, own), channels[own], None if bias is None else bias[own])


def _channels(g: Geometry, count: int, most: int, source_last: bool) -> int:
    """How many of them at a time: whole groups where there are several, whose source must then lie in one piece."""
    if g.groups == 1:
        return min(most, count)
    return count if source_last else min(count, max(1, most * g.groups // count) * count // g.groups)


def _part(to_x: bool, g: Geometry, sample: Array, weight: Array, own: slice) -> tuple[Geometry, Array, Array]:
    """The problem of some channels of one sample's result, and its operands."""
    name, last, other = ("in_channels", "x_last", "out_channels") if to_x else ("out_channels", "y_last", "in_channels")
    part = g._replace(batch=1, **{name: own.stop - own.start, last: False})
    if g.groups == 1:
        return part, sample, np.ascontiguousarray(weight[:, own] if to_x else weight[own])
    of_group = getattr(g, name) // g.groups
    groups = slice(own.start // of_group, own.stop // of_group)
    number = groups.stop - groups.start
    part = part._replace(groups=number, **{other: getattr(g, other) // g.groups * number})
    return part, sample.reshape(g.groups, -1)[groups], weight.reshape(g.groups, -1)[groups]
