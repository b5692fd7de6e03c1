"""The three maps as one operator of torch's, pyconv::map, for calls that torch.compile and its like trace.

The operator knows no geometry: sizes may be symbols while it is traced. It carries what the user said, so that its
kernel checks a call as every other is checked. It is registered piece by piece, and not by torch.library.custom_op, as
that one's autograd loses the tangents of forward mode without a word and refuses torch.func's transforms.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from pyconv import _geometries as geometries
from pyconv._geometry import ROLES
from pyconv._integers import Shape, exact, exact_count, exact_ints
from pyconv._padding import SAME, ZEROS, padding_rule
from pyconv._settings import Settings, settings_of
from pyconv.torch._maps import Form, Geometric, Map, exact_mode_of, order_of

LIBRARY = torch.library.Library("pyconv", "DEF")  # type: ignore[no-untyped-call]
LIBRARY.define(  # type: ignore[no-untyped-call]
    "map(str map, Tensor first, Tensor second, Tensor? bias, SymInt[]? size, SymInt groups, int rank, bool transposed, "
    "SymInt[] stride, str padding, SymInt[] pads, SymInt[] dilation, SymInt[] output_padding, str padding_mode, "
    "float[] padding_value, str algorithm, bool allow_tf32) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
OPERATOR = torch.ops.pyconv.map.default
RULES = {rank: padding_rule(rank) for rank in (1, 2, 3)}  # Dynamo warns of a cached function


@dataclass(slots=True, eq=False)
class Traced(Form):
    """A form by what the user said of it: the operator's arguments from `transposed` on."""

    said: tuple[Any, ...]

    def call(self, map: str, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """By the operator, which finds its derivatives again."""
        size = self.shape_of(ROLES[map][2])[-self.rank:]
        return OPERATOR(  # type: ignore[no-any-return]
            map, first, second, bias, list(size), self.groups, self.rank, *self.said)

    def evaluate(self, map: str, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        """By the operator, for which other levels of forward and reverse mode are still to come."""
        with torch._C._AutoDispatchBelowAutograd(), torch.enable_grad(), _set_fwd_grad_enabled(True):
            return self.call(map, first, second, bias)

    def of_direction(self) -> "Form":
        """The form without the constant."""
        *said, mode, _, algorithm, allow_tf32 = self.said
        how = algorithm, allow_tf32
        return replace(self, said=(*said, ZEROS.name, [0.0, 0.0], *how)) if mode == "constant" else self

    def conjugated(self) -> "Form":
        """The form with the constant's conjugate."""
        *said, (real, imaginary), algorithm, allow_tf32 = self.said
        return replace(self, said=(*said, [real, -imaginary], algorithm, allow_tf32)) if imaginary else self

    def folded(self, roles: str, count: int) -> "Form":
        """What the user would have said of tensors so large."""
        groups = self.groups * count if roles == "xwy" else self.groups
        return Traced(**self.folded_shapes(roles, count), rank=self.rank, groups=groups, said=self.said)


def traced(
    rank: int, transposed: bool, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any,
    dilation: Any, groups: Any, output_padding: Any, output_size: Any, padding_mode: Any, padding_value: Any,
    settings: Settings,
) -> Tensor:
    """A user's call as one of the operator."""
    if torch.compiler.is_compiling() and torch.autograd.forward_ad._current_level >= 0:
        raise RuntimeError(
            "forward mode must be outside of torch.compile and torch.export, which may lose its tangents; "
            "got a call that they trace inside of torch.func.jvp, jacfwd or torch.autograd.forward_ad.dual_level"
        )
    name, pads = padding, []
    if not isinstance(padding, str):
        name, pads = "", _flat(exact("padding", RULES[rank], padding, rank, 2), rank)
    parts = [padding_value.real, padding_value.imag] if isinstance(padding_value, complex) else [padding_value, 0.0]
    return OPERATOR(  # type: ignore[no-any-return]
        "grad_input" if transposed else "forward", input, weight, bias,
        None if output_size is None else _flat(exact_ints("output_size", output_size, rank, 1), rank),
        exact_count("groups", groups), rank, transposed, _flat(exact_ints("stride", stride, rank, 1), rank), name, pads,
        _flat(exact_ints("dilation", dilation, rank, 1), rank),
        _flat(exact_ints("output_padding", output_padding, rank, 0), rank), padding_mode, parts, settings.algorithm,
        settings.allow_tf32,
    )


def _flat(value: Any, rank: int) -> list[int]:
    """One number for each axis, or two where they are pairs."""
    if not isinstance(value, tuple):
        return [value] * rank
    return [number for entry in value for number in (entry if isinstance(entry, tuple) else (entry,))]


def _padding(name: str, pads: Sequence[int], rank: int) -> Any:
    """What _flat was made of."""
    if name or len(pads) == rank:
        return name or tuple(pads)
    return tuple(zip(pads[::2], pads[1::2]))


def _form(
    map: str, first: Shape, second: Shape, size: Sequence[int] | None, groups: int, rank: int, *said: Any
) -> Traced:
    """The form of a call of the operator on tensors of those shapes; without `size`, which only a user's call is, its
    result's is computed.
    """
    transposed, stride, padding, pads, dilation, output_padding, *_ = said
    a, b, c = ROLES[map]
    shapes = {a: tuple(first), b: tuple(second)}
    if size is None:
        shapes[c] = geometries.output_shape(
            transposed, rank, shapes[a], shapes[b], tuple(stride), _padding(padding, pads, rank), tuple(dilation),
            groups, tuple(output_padding))
    elif map == "grad_weight":
        shapes[c] = (shapes["y"][-rank - 1], shapes["x"][-rank - 1] // groups, *size)
    else:
        channels = shapes["w"][0] if map == "forward" else shapes["w"][1] * groups
        shapes[c] = (*shapes[a][:-rank - 1], channels, *size)
    return Traced(**shapes, rank=rank, groups=groups, said=said)


def _kernel(
    map: str, first: Tensor, second: Tensor, bias: Tensor | None, size: Sequence[int] | None, groups: int, rank: int,
    transposed: bool, stride: Any, padding: str, pads: Any, dilation: Any, output_padding: Any, padding_mode: str,
    padding_value: Sequence[float], algorithm: str, allow_tf32: bool,
) -> Tensor:
    """With all sizes known: the geometry, whose errors a user's call meets here if its sizes were symbols."""
    said = transposed, stride, padding, pads, dilation, output_padding
    form = _form(map, first.shape, second.shape, size, groups, rank, *said)
    value = complex(*padding_value) if first.is_complex() else padding_value[0]
    there, back = ("y", "x") if transposed else ("x", "y")
    given = None if size is None else form.shape_of(back)[-rank:]
    geometry, _ = geometries.problem(
        transposed, rank, form.shape_of(there), form.w, None if bias is None else tuple(bias.shape), None,
        tuple(stride), _padding(padding, pads, rank), tuple(dilation), groups,
        tuple(output_padding) if size is None or padding in SAME else 0, given,
        mode=exact_mode_of(padding_mode, value, first.dtype),
    )
    settings = settings_of(algorithm=sys.intern(algorithm), allow_tf32=allow_tf32)
    whole = Geometric(form.x, form.w, form.y, rank, groups, geometry, settings, transposed)
    return whole.evaluate(map, first, second, bias)


def _fake(map: str, first: Tensor, second: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """A result without memory."""
    form = _form(map, first.shape, second.shape, *rest)
    if bias is not None:
        geometries.check_shape("bias", tuple(bias.shape), form.shape_of(ROLES[map][2])[-form.rank - 1:-form.rank])
    order = torch.contiguous_format if map == "grad_weight" else order_of(first, form.rank)
    shape = form.shape_of(ROLES[map][2])
    return torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=order)


def _differentiable(map: str, first: Tensor, second: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    """On one level of autograd's, torch.func's or not: the dispatcher takes the levels one by one."""
    form = _form(map, first.shape, second.shape, *rest)
    with enable_single_level_autograd_function():
        return Map.apply_once(map, first, second, bias, form)  # type: ignore[no-any-return]


def _vmap(info: Any, in_dims: Any, map: str, first: Tensor, second: Tensor, bias: Tensor | None, *rest: Any) -> Any:
    """By the rule of the Function, of the shapes that one of many has."""
    _, *dims = in_dims[:4]
    inner = [shape if dim is None else shape[:dim] + shape[dim:][1:]
             for shape, dim in zip((first.shape, second.shape), dims)]
    return Map.vmap(info, (None, *dims, None), map, first, second, bias, _form(map, *inner, *rest))  # type: ignore


LIBRARY.impl("map", _kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
LIBRARY.impl("map", _differentiable, "Autograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("pyconv::map", _fake, lib=LIBRARY)
torch.library.register_vmap("pyconv::map", _vmap, lib=LIBRARY)
