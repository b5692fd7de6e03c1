"""Winograd's results that are not finite: where a sample has them, and what the definition reads for each.

A result that is finite was made of finite numbers alone, so only the others may differ from the definition's. What one
position reads is a convolution of its own, of as many cells as taps; those of several positions are a batch of it.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyconv._dtypes import element
from pyconv._geometry import Geometry, Triple, alone, linear, whole_size
from pyconv._memory import shares
from pyconv._padding import REPEATING
from pyconv._pieces import takes_last_weight
from pyconv._unfolding import cells_read

Array = NDArray[Any]

# Position by position no more is made than an eighth of what the whole sample takes, or what is made at once: one costs
# so many products beside its own (Zen 3). Nor so many that their places would fill half a megabyte.
FEW, BESIDE, MOST = 8, 2**19, 2**15
AT_ONCE, CELLS = 16, 2**16  # positions, and the cells that they read, at a time
LOOKED_AT = 2**18  # positions of a channel at a time


class Windows(NamedTuple):
    """The problem of some positions, what they read, where its result belongs: channels by position, and which."""

    geometry: Geometry
    cells: Array
    channels: Array
    places: Array


def windows(map: str, g: Geometry, source: Array, result: Array) -> Iterator[Windows] | None:
    """The problems of all results of a sample that are not finite; None where it is better made again as a whole.

    The arrays are the sample's, flat: of x and y, or of the gradient to an input of y and x.
    """
    to_x = map == "grad_input"
    own, other = (g.in_channels, g.x_last), (g.out_channels, g.y_last)
    (read, source_last), (made, result_last) = (other, own) if to_x else (own, other)
    one = _of_window(map, g)
    if to_x and g.padding_mode in REPEATING or g.rank > 3 or g.w_last and not takes_last_weight(map, one):
        return None
    channels = result.reshape(-1, made).T if result_last else result.reshape(made, -1)
    places = _wrong(channels, _few(g, channels.shape[1]))
    if places is None:
        return None
    size, found = (g.output_size, g.input_size) if to_x else (whole_size(g), g.output_size)
    cells = np.moveaxis(source.reshape(*size, read), -1, 0) if source_last else source.reshape(read, *size)
    return _in_batches(map, g, one, cells, channels, places, found)


def _few(g: Geometry, positions: int) -> int:
    """How many of a sample's positions are made one by one."""
    products = g.out_channels * g.in_channels // g.groups * prod(g.kernel_size)
    return min(MOST, positions // FEW, max(AT_ONCE, positions * products // (FEW * (BESIDE + products))))


def _wrong(channels: Array, few: int) -> Array | None:
    """The positions at which a channel is not finite; None where they are more than a few."""
    found, count = [], 0
    for some in shares(channels.shape[1], LOOKED_AT):
        wrong = np.zeros(some.stop - some.start, np.bool_)
        for channel in channels:
            wrong |= ~np.isfinite(channel[some])
        count += int(np.count_nonzero(wrong))
        if count > few:
            return None
        found.append(np.flatnonzero(wrong) + some.start)
    return np.concatenate(found)


def _of_window(map: str, g: Geometry) -> Geometry:
    """What one position reads, or one cell in the gradient to an input."""
    ones: Triple = (1, 1, 1)
    kernel = g.kernel_size
    one = alone(linear(g))._replace(stride=ones, dilation=ones, x_last=g.w_last, y_last=g.w_last)
    if map == "grad_input":  # a cell amid padding, so that every tap reads it
        reach: Triple = tuple(k - 1 for k in kernel)  # type: ignore[assignment]
        return one._replace(input_size=ones, output_size=kernel, padding=reach)
    return one._replace(input_size=kernel, output_size=ones, padding=(0, 0, 0))


def _in_batches(
    map: str, g: Geometry, one: Geometry, cells: Array, channels: Array, places: Array, size: Triple
) -> Iterator[Windows]:
    """As many positions at a time as geometry alone decides: a last batch has its last position several times."""
    count = min(AT_ONCE, max(1, CELLS // (len(cells) * prod(g.kernel_size))))
    value = 0 if map == "grad_input" else g.padding_value
    for some in shares(len(places), count):
        at = places[np.minimum(np.arange(some.start, some.start + count), len(places) - 1)]
        axes = (_read(map, g, axis, along) for axis, along in enumerate(np.unravel_index(at, size)))
        a, b, c = (along.reshape(count, *[-1 if other == axis else 1 for other in range(3)])
                   for axis, along in enumerate(axes))
        read = np.where((a >= 0) & (b >= 0) & (c >= 0), cells[:, a, b, c], element(value, cells.dtype))
        read = np.moveaxis(read, 0, -1 if one.x_last else 1)
        yield Windows(one._replace(batch=count), np.ascontiguousarray(read), channels, at)


def _read(map: str, g: Geometry, axis: int, positions: Array) -> Array:
    """The cells of an axis that each position reads, tap by tap; -1 for padding. A gradient's taps go backwards."""
    if map == "grad_input":
        reach = g.dilation[axis] * np.arange(g.kernel_size[axis])[::-1] - g.padding[axis]
        places, left = np.divmod(positions[:, None] - reach, g.stride[axis])
        return np.where((left == 0) & (places >= 0) & (places < g.output_size[axis]), places, -1)
    cells = cells_read(g, axis, positions)
    return np.where(cells < 0, cells, cells + g.before[axis])
