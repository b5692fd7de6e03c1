"""What lies around an input: how many cells on each side of every axis, and what they hold."""

from functools import lru_cache
from reprlib import repr as shown
from typing import NamedTuple

from pyconv._integers import Shape

Padding = int | str | Shape | tuple[tuple[int, int], ...]
Pads = tuple[tuple[int, int], ...]

PADDINGS = ("valid", "same", "same_lower", "causal", "full")
SAME = ("same", "same_lower")
MODES = ("zeros", "constant", "circular", "replicate", "reflect")
REPEATING = MODES[2:]  # the modes in which several places are one cell


class Mode(NamedTuple):
    """What the padded cells hold: nothing ('zeros'), `value` ('constant'), or what cells of the input hold."""

    name: str = "zeros"
    value: complex = 0


ZEROS = Mode()


def held(mode: str, cell: int, size: int) -> int | None:
    """Which cell of an axis a cell is or, beyond its edges, stands for; None where there is nothing or a constant."""
    if 0 <= cell < size:
        return cell
    if mode == "circular":
        return cell % size
    if mode == "replicate":
        return min(max(cell, 0), size - 1)
    if mode == "reflect":
        turn = cell % max(1, 2 * (size - 1))
        return min(turn, 2 * (size - 1) - turn)
    return None


@lru_cache(maxsize=64)
def padding_rule(rank: int) -> str:
    """What the argument `padding` must be."""
    return (
        f"be an int >= 0, a sequence of {rank} such or of {rank} pairs (lo, hi) of ints, "
        f"or one of {', '.join(map(repr, PADDINGS))}"
    )


def split(total: int, name: str) -> tuple[int, int]:
    """`total` cells of padding, the odd one behind for 'same' and in front for 'same_lower'."""
    small, large = total // 2, total - total // 2
    return (small, large) if name == "same" else (large, small)


def numeric_pads(padding: Padding, spans: Shape) -> Pads:
    """(lo, hi) on each axis, for every padding that does not depend on the input's size."""
    rank = len(spans)
    if padding == "valid":
        return ((0, 0),) * rank
    if padding == "causal":
        return tuple((span - 1, 0) for span in spans)
    if padding == "full":
        return tuple((span - 1, span - 1) for span in spans)
    if not isinstance(padding, str):
        pads = (padding,) * rank if isinstance(padding, int) else padding
        if all(isinstance(pad, tuple) for pad in pads):
            return pads  # type: ignore[return-value]
        if all(isinstance(pad, int) and pad >= 0 for pad in pads):
            return tuple((pad, pad) for pad in pads)  # type: ignore[misc]
    raise ValueError(f"padding must {padding_rule(rank)}; got {shown(padding)}")


def all_pads(padding: Padding, size: Shape, spans: Shape, stride: Shape) -> Pads:
    """(lo, hi) on each axis of an input of this size."""
    if padding in SAME:
        totals = ((-(-n // s) - 1) * s + span - n for n, span, s in zip(size, spans, stride))
        return tuple(split(max(total, 0), str(padding)) for total in totals)
    return numeric_pads(padding, spans)


def repeated_part(mode: Mode, size: int, pads: tuple[int, int], last: int) -> tuple[int, int, int]:
    """How many cells are before the part of an axis that fills its padding, in it and behind; `last` is the last read.

    Negative padding crops before anything is padded. That tells where one side is cropped and the other padded: there
    the part that is left is what goes round or is mirrored. Elsewhere all of the axis will do.
    """
    low, high = pads
    left = size + min(low, 0) + min(high, 0)
    if (low <= 0 and last < size) or (mode.name == "replicate" and left > 0):
        return 0, size, 0
    return max(-low, 0), left, max(-high, 0)
