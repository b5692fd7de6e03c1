"""The geometry of one problem, which every plan and kernel is made from, and what follows from it alone."""

from typing import NamedTuple

from pyconv._padding import ZEROS

Triple = tuple[int, int, int]

ROLES = {"forward": ("x", "w", "y"), "grad_input": ("y", "w", "x"), "grad_weight": ("x", "y", "w")}  # operands, result
MAPS = {roles[2]: map for map, roles in ROLES.items()}  # by the role of their result
OUTS = (), ("out",), (), ("out[0]", "out[1]", "out[2]")  # what errors call each `out` of so many results
BUFFERS = {"forward": "finput", "grad_input": "fgrad_input", "grad_weight": "finput"}  # that a map has for scratch


class Geometry(NamedTuple):
    """The trilinear form T(x, w, y): cell (a, k) reads x at stride * a + dilation * k - padding.

    x: (batch, in_channels, *input_size); y: (batch, out_channels, *output_size);
    w: (out_channels, in_channels // groups, *kernel_size); three axes, or more where the problem has more.
    `padding` is the leading pad alone and may be negative.
    A stride over a single output position and the dilation of a single tap never act, and are 1 here.
    Outside x, `padding_mode` says what is read: nothing ('zeros'), padding_value ('constant'), or the cell at
    c mod n ('circular'), the nearest ('replicate'), or mirrored at the outermost cells ('reflect'). It is 'zeros'
    where nothing outside is read. Where one side of an axis is cropped and the other filled from what is left, x is
    `box` of the array that the user knows; an axis of no cells has one, which holds padding_value as all others.
    """

    rank: int
    batch: int
    groups: int
    in_channels: int
    out_channels: int
    input_size: Triple
    kernel_size: Triple
    output_size: Triple
    stride: Triple
    dilation: Triple
    padding: Triple
    padding_mode: str = "zeros"
    padding_value: complex = 0
    before: Triple = (0, 0, 0)  # cells of the user's array in front of x, along each axis
    behind: Triple = (0, 0, 0)  # and behind it
    per_sample: bool = False  # grad_weight has a batch axis
    volumes: Triple = (1, 1, 1)  # that x, w and y have of each channel: see _outer
    x_last: bool = False  # whether the channels of x lie last in memory
    y_last: bool = False
    w_last: bool = False  # likewise the input channels of w, where a map takes it so: see takes_last_weight
    parts: int = 1  # real numbers of an element
    converts: tuple[bool, bool] = (False, False)  # whether operands, results are of a type that is not computed in
    cell: int = 1  # channels of what is read that are one cell
    summed: int = 0  # cells that one product of matrices sums, of which there are a multiple; 0 of other products


def linear(geometry: Geometry) -> Geometry:
    """The geometry of the maps' derivatives with respect to x: those of constant cells are nothing."""
    return geometry._replace(padding_mode=ZEROS.name, padding_value=ZEROS.value)


def whole_size(geometry: Geometry) -> Triple:
    """The size of the array that x is, or is `box` of."""
    return tuple(map(sum, zip(geometry.before, geometry.input_size, geometry.behind)))  # type: ignore[return-value]


def box(geometry: Geometry) -> tuple[slice, ...]:
    """The part of the user's array that x is, along each of the geometry's axes."""
    return tuple(slice(start, start + length) for start, length in zip(geometry.before, geometry.input_size))


def alone(geometry: Geometry) -> Geometry:
    """The geometry where x is an array of its own."""
    nothing: Triple = (0,) * len(geometry.input_size)  # type: ignore[assignment]
    return geometry._replace(before=nothing, behind=nothing)


def is_around_nothing(geometry: Geometry) -> bool:
    """Whether x has no cell, and what is read is the constant around it."""
    return geometry.padding_mode == "constant" and 0 in geometry.input_size
