"""stride, padding, dilation and groups as the user gave them: made exact, and spread over the axes."""

from reprlib import repr as shown
from typing import Any, NamedTuple

from pyconv._integers import Ints, Shape, exact, exact_count, exact_ints, ints_rule
from pyconv._padding import SAME, ZEROS, Mode, Padding, numeric_pads, padding_rule

Given = tuple[Ints, Padding, Ints, int] | tuple[Ints, Padding, Ints, int, Mode]


class Spread(NamedTuple):
    """stride, dilation and groups spread over the axes of the problem; padding and its mode as the user gave them."""

    stride: Shape
    padding: Padding
    dilation: Shape
    groups: int
    mode: Mode = ZEROS


def exact_given(rank: int, stride: Any, padding: Any, dilation: Any, groups: Any, mode: Mode = ZEROS) -> Given:
    """The arguments in exact types, which tell one call from another; not yet checked."""
    if type(stride) is type(padding) is type(dilation) is type(groups) is int and mode is ZEROS:
        return stride, padding, dilation, groups
    if isinstance(padding, str):
        padding = str(padding)
    elif type(padding) is not int:
        padding = exact("padding", padding_rule(rank), padding, rank, 2)
    return (
        exact_ints("stride", stride, rank, 1), padding, exact_ints("dilation", dilation, rank, 1),
        groups if type(groups) is int else exact_count("groups", groups), *(() if mode is ZEROS else (mode,)),
    )


def on_axes(name: str, value: Ints, rank: int, least: int) -> Shape:
    """One number, or one for each axis, as one for each. ValueError where one is too small."""
    values = (value,) * rank if isinstance(value, int) else value
    if min(values) < least:
        raise ValueError(f"{name} must {ints_rule(rank, least)}; got {shown(value)}")
    return values


def sizes_of(name: str, value: Any, rank: int, least: int) -> Shape:
    """An argument of one int or one for each axis, made exact and checked."""
    return on_axes(name, exact_ints(name, value, rank, least), rank, least)


def spread_of(
    rank: int, stride: Ints, padding: Padding, dilation: Ints, groups: int, mode: Mode = ZEROS
) -> Spread:
    """The same, checked, for each axis."""
    exact_count("groups", groups)
    return Spread(
        on_axes("stride", stride, rank, 1), padding, on_axes("dilation", dilation, rank, 1), groups, mode
    )


def exact_steps(
    rank: int, stride: Any, padding: Any, dilation: Any, groups: Any
) -> tuple[Ints, Padding, Ints, int]:
    """The four made exact and checked, as far as that goes before any shape is known."""
    stride, padding, dilation, groups, *_ = exact_given(rank, stride, padding, dilation, groups)
    spread_of(rank, stride, padding, dilation, groups)
    if padding not in SAME:
        numeric_pads(padding, (1,) * rank)
    return stride, padding, dilation, groups
