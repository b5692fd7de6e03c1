"""What lies beyond the edge of an input: which cells stand for padded ones, and stretches of them that run alike."""

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from pyconv._geometry import Geometry
from pyconv._padding import REPEATING

ON_ONE_CELL = 8  # most padded cells of a stretch that all stand for one: a block has to hold them
STRETCHES = 100  # most that a grad_input has
FOLDED = 512  # most cells of the smallest block that holds those that padded ones stand for
Folds = tuple[tuple[int, int], ...]
NO_FOLDS: Folds = ((0, 0),) * 3


class Stretch(NamedTuple):
    """Neighbouring cells from `first` on; the i-th is cell `start + slope * i` of the input."""

    first: int
    length: int
    start: int
    slope: int


def goes_round(g: Geometry) -> bool:
    """Whether grad_input is circular itself: cell and tap leave grad_output's place alone, modulo the size of both."""
    return g.padding_mode == "circular" and g.input_size == g.output_size and all(s == 1 for s in g.stride)


def stretches(g: Geometry, a: int) -> list[Stretch]:
    """The cells of the input, and behind them those beyond the edges of axis a whose gradient is the input's."""
    size, (low, high) = g.input_size[a], _reach(g, a)
    found = [Stretch(0, size, 0, 1)]
    if g.padding_mode in REPEATING and not goes_round(g):
        for first, end in ((low, min(0, high)), (max(size, low), high)):
            found += beyond(g.padding_mode, first, end, size)
    return found


def _reach(g: Geometry, a: int) -> tuple[int, int]:
    """The first cell that a tap reaches along an axis, and the one behind the last."""
    low = -g.padding[a]
    return low, g.stride[a] * (g.output_size[a] - 1) + g.dilation[a] * (g.kernel_size[a] - 1) + low + 1


def _beyond_edges(g: Geometry, a: int) -> tuple[int, int]:
    """How many cells before and behind axis a a tap reaches."""
    low, high = _reach(g, a)
    return max(0, -low), max(0, high - g.input_size[a])


def folds(g: Geometry) -> Folds:
    """How many cells before and behind each axis grad_input has worked out with its own, block by block, and added to
    those that they stand for; none where that may be cells of another block or another phase of the stride, nor before
    and behind planes: blocks of several planes are dearer than what those of padded ones take."""
    found = [(0, 0)]
    for a in (1, 2):
        found.append(_beyond_edges(g, a))
        if any(found[a]) and g.stride[a] > 1:
            return NO_FOLDS
    within = prod(min(size + sum(fold), 1 + sum(map(held_in, fold))) for size, fold in zip(g.input_size, found))
    return tuple(found) if g.padding_mode in ("replicate", "reflect") and within <= FOLDED else NO_FOLDS


@lru_cache(maxsize=1024)
def is_far(g: Geometry) -> bool:
    """Whether the padding that grad_input gathers repeats the input so often that its stretches would be too many."""
    if g.padding_mode not in REPEATING or goes_round(g):
        return False
    number, folded = 1, folds(g)
    for a, size in enumerate(g.input_size):
        if not any(folded[a]):
            length = ON_ONE_CELL if g.padding_mode == "replicate" else max(1, size - (g.padding_mode == "reflect"))
            number *= 1 + sum(-(-cells // length) for cells in _beyond_edges(g, a))
    return number > STRETCHES


def held_in(fold: int) -> int:
    """How many cells a block at the edge must have at least to hold those that so many beyond it stand for."""
    return 2 * fold + 1 if fold else 0


def beyond(mode: str, first: int, end: int, size: int, on_one_cell: int = ON_ONE_CELL) -> Iterator[Stretch]:
    """Padded cells [first, end): circular repeats the input, reflect turns round at its ends without repeating them."""
    if mode == "replicate" or (mode == "reflect" and size == 1):
        edge = 0 if first < 0 else size - 1
        for at in range(first, end, on_one_cell):
            count = min(on_one_cell, end - at)
            yield Stretch(at, count, edge, int(count == 1))
        return
    length = size if mode == "circular" else size - 1
    while first < end:
        turn = first // length
        stop = min(end, (turn + 1) * length)
        slope = -1 if mode == "reflect" and turn % 2 else 1
        start = first - turn * length if slope == 1 else (turn + 1) * length - first
        yield Stretch(first, stop - first, start, slope if stop - first > 1 else 1)
        first = stop
