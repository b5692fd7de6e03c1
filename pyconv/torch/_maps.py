"""The three maps of one form as one autograd Function, closed under reverse mode, forward mode and vmap."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._C._functorch import unwrap_if_dead
from torch.autograd import Function, forward_ad
from torch.autograd.forward_ad import _set_fwd_grad_enabled, unpack_dual

from pyconv._arguments import exact_mode
from pyconv._evaluate import Result, evaluate, run_as_it_lies
from pyconv._geometry import MAPS, ROLES, Geometry, linear
from pyconv._integers import Shape
from pyconv._padding import ZEROS, Mode
from pyconv._settings import DEFAULTS, Settings
from pyconv.torch._arrays import array_of, known_on_gpu, maker_of, result_of

ORDERS = {2: torch.channels_last, 3: torch.channels_last_3d}  # of tensors with a batch axis, by rank

# What the user calls tensors in these roles, of a convolution and of a transposed one.
NAMES = (
    {"x": "input", "w": "weight", "y": "grad_output"},
    {"x": "grad_output", "w": "weight", "y": "input"},
)

# A vmapped axis of as many as `count`: the roles that have it say which number of the geometry it multiplies.
FOLDS = {
    "xy": ("batch",),
    "wy": ("out_channels",),
    "xw": ("in_channels",),
    "xwy": ("groups", "in_channels", "out_channels"),
}


class _Name(str):
    """A dtype as the plain functions' checks know it: by its name."""

    @property
    def name(self) -> str:
        return self


def exact_mode_of(padding_mode: Any, padding_value: Any, dtype: torch.dtype) -> Mode:
    """What padded cells hold, for tensors of that dtype."""
    if padding_mode is ZEROS.name and padding_value is ZEROS.value:
        return ZEROS
    name: Any = _Name(str(dtype).removeprefix("torch."))
    return exact_mode(Mode(padding_mode, padding_value), name)


@dataclass(slots=True, eq=False)
class Form:
    """T(x, w, y): the shapes of x, w and y as tensors, with batch axis or without. A way to compute its maps adds how.

    `call` is what a user's call and every derivative go through, `evaluate` what is left below autograd.
    """

    x: Shape
    w: Shape
    y: Shape
    rank: int
    groups: int

    def call(self, map: str, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """map(first, second) + bias, differentiably."""
        raise NotImplementedError

    def evaluate(self, map: str, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        """map(first, second) + bias."""
        raise NotImplementedError

    def of_direction(self) -> "Form":
        """The form in which x is a direction: a constant around it has no derivative."""
        raise NotImplementedError

    def conjugated(self) -> "Form":
        """The form in which x is conjugated: so is a constant around it."""
        raise NotImplementedError

    def folded(self, roles: str, count: int) -> "Form":
        """The form whose tensors hold `count` of this one's where their role is one of these; all have a batch axis."""
        raise NotImplementedError

    def shape_of(self, role: str) -> Shape:
        """The shape of x, w or y."""
        return getattr(self, role)  # type: ignore[no-any-return]

    def channel_axis(self, role: str) -> int:
        """The axis of x or y that counts channels: 0 where there is no batch axis."""
        return len(self.shape_of(role)) - self.rank - 1

    def to_bias(self, role: str, grad: Tensor) -> Tensor:
        """The gradient to a bias that was added to the map's result: the sum over all axes but the channels'."""
        channels = self.channel_axis(role)
        return grad.sum([axis for axis in range(grad.ndim) if axis != channels])

    def shape_with_batch(self, role: str) -> Shape:
        """The shape of x, w or y, with a batch of 1 where it has no batch axis."""
        shape = self.shape_of(role)
        return shape if role == "w" or self.channel_axis(role) else (1, *shape)

    def folded_shapes(self, roles: str, count: int) -> dict[str, Shape]:
        """The shapes of a folded form."""
        shapes = {role: self.shape_with_batch(role) for role in "xwy"}
        for role in roles:
            (axis, _), shape = self.place(roles, role), shapes[role]
            shapes[role] = (*shape[:axis], shape[axis] * count, *shape[axis + 1:])
        return shapes

    def place(self, roles: str, role: str) -> tuple[int, int]:
        """(axis, parts): the vmapped axis goes behind the first axis of `axis` seen as (parts, the rest)."""
        if roles == "xy":
            return 0, 1
        parts = 1 if roles == "xwy" or (roles, role) == ("xw", "w") else self.groups
        return int(role != "w" or roles == "xw"), parts


@dataclass(slots=True, eq=False)
class Geometric(Form):
    """A form on one geometry, as a call that is made now knows it, the rounding, and what the user calls x and y.

    w_order: that of w, in which its gradient is written too, where it may be: autograd copies one that lies otherwise.
    A folded form knows none.
    """

    geometry: Geometry
    settings: Settings
    transposed: bool
    w_order: torch.memory_format = torch.contiguous_format

    def call(self, map: str, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """By the Function; what torch.compile calls beside its graphs, it is kept from tracing all the way down."""
        apply = Map.apply
        if get_eval_frame_callback() is not None:
            apply = torch.compiler.disable(apply)  # type: ignore[no-untyped-call]
        return apply(map, first, second, bias, self)  # type: ignore[no-any-return]

    def evaluate(self, map: str, first: Tensor, second: Tensor, bias: Tensor | None) -> Tensor:
        """One map, in the order of arguments of a backend's plan, as a tensor over the memory of the arrays."""
        a, b, c = ROLES[map]
        names, shape, key = NAMES[self.transposed], self.shape_of(c), None
        if first.is_cuda:
            exact = (
                self.geometry, map, shape, self.transposed, self.settings.allow_tf32, self.settings.algorithm)
            key, found = known_on_gpu(exact, (names[a], names[b], "bias"), (first, second, bias))
            if found is not None:
                return found
        factors = array_of(names[a], first), array_of(names[b], second)
        added = None if bias is None else array_of("bias", bias)
        order = self.w_order if c == "w" else order_of(first, self.rank)
        dtype = factors[0].dtype
        if isinstance(dtype, np.dtype):
            tensor, out = result_of(first, shape, order)
            if self.settings is DEFAULTS and run_as_it_lies(map, self.geometry, dtype, *factors, added, out):
                return tensor
        result = Result(shape, ((map, *factors, False),), added)
        named = (names[a], factors[0]), (names[b], factors[1]), ("bias", added)
        if isinstance(dtype, np.dtype):
            evaluate(self.geometry, dtype, (result,), (out,), named, self.settings)
            return tensor
        result = result._replace(new=maker_of(first, shape, order))
        [found] = evaluate(self.geometry, dtype, (result,), (None,), named, self.settings, key)
        return found  # type: ignore[no-any-return]

    def of_direction(self) -> "Form":
        """The form without the constant."""
        if self.geometry.padding_mode != "constant":
            return self
        return replace(self, geometry=linear(self.geometry))

    def conjugated(self) -> "Form":
        """The form with the constant's conjugate."""
        value = self.geometry.padding_value
        if not value.imag:
            return self
        return replace(self, geometry=self.geometry._replace(padding_value=value.conjugate()))

    def folded(self, roles: str, count: int) -> "Form":
        """The same geometry with some numbers multiplied."""
        numbers = {name: getattr(self.geometry, name) * count for name in FOLDS[roles]}
        geometry = self.geometry._replace(**numbers)
        x, w, y = map(self.folded_shapes(roles, count).__getitem__, "xwy")
        return Geometric(x, w, y, self.rank, geometry.groups, geometry, self.settings, self.transposed)


def order_of(tensor: Tensor, rank: int) -> torch.memory_format:
    """channels_last where a tensor is that and not contiguous too; a result in the role of x or y has that of the first
    operand."""
    order = ORDERS.get(rank)
    if order is None or tensor.ndim != rank + 2 or tensor.is_contiguous():
        return torch.contiguous_format
    return order if tensor.is_contiguous(memory_format=order) else torch.contiguous_format


def weight_order(weight: Tensor, rank: int) -> torch.memory_format:
    """`order_of` a weight whose gradient can be written so: see takes_last_weight; else contiguous. Below torch.func's
    transforms a weight does not tell."""
    is_written = weight.is_cpu and (weight.dtype is torch.float32 or weight.dtype is torch.float64)
    return order_of(weight, rank) if is_written and not _are_functorch_transforms_active() else torch.contiguous_format


def _fold(tensor: Tensor, shape: Shape, axis: int, parts: int) -> Tensor:
    """(count, *shape) with the first axis inside another."""
    count, before, after = tensor.shape[0], shape[:axis], shape[axis + 1:]
    apart = tensor.reshape(count, *before, parts, shape[axis] // parts, *after)
    return apart.movedim(0, axis + 1).reshape(*before, count * shape[axis], *after)


def _unfold(tensor: Tensor, count: int, axis: int, parts: int) -> Tensor:
    """(count, *shape) from what _fold makes of it."""
    before, size, after = tensor.shape[:axis], tensor.shape[axis], tensor.shape[axis + 1:]
    apart = tensor.reshape(*before, parts, count, size // (parts * count), *after)
    return apart.movedim(axis + 1, 0).reshape(count, *before, size // count, *after)


class Map(Function):
    """result = map(first, second) + bias, of a form linear in each of x, w and y: the map names the role of the result.

    The derivatives of each of the three maps are the other two, so that every order exists.
    """

    @classmethod
    def apply(cls, map: str, first: Tensor, second: Tensor, bias: Tensor | None, form: Form) -> Any:
        """As torch's, without reading the signature of `forward` at every call (10 us)."""
        if _are_functorch_transforms_active():
            return super().apply(map, first, second, bias, form)  # type: ignore[no-untyped-call]
        first, second = unwrap_if_dead(first), unwrap_if_dead(second)
        bias = None if bias is None else unwrap_if_dead(bias)
        if _is_followed(first, second, bias):
            return cls.apply_once(map, first, second, bias, form)
        return form.evaluate(map, first, second, bias)

    @classmethod
    def apply_once(cls, *args: Any) -> Any:
        """On one level alone."""
        return super(Function, cls).apply(*args)  # type: ignore[misc]

    @staticmethod
    def forward(map: str, first: Tensor, second: Tensor, bias: Tensor | None, form: Form) -> Tensor:
        level = _level_of_autograd()
        if level:
            return _batched_by_autograd(level, map, first, second, bias, form)
        return form.evaluate(map, first, second, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep of two factors what the other's gradient reads; forward mode keeps nothing beyond the call."""
        ctx.map, first, second, _, ctx.form = inputs
        _, needs_first, needs_second, *_ = ctx.needs_input_grad
        ctx.save_for_backward(first if needs_second else None, second if needs_first else None)
        ctx.save_for_forward(first, second)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 5
        (first, second), (a, b, c) = ctx.saved_tensors, ROLES[ctx.map]
        _, needs_first, needs_second, needs_bias, _ = ctx.needs_input_grad
        form = ctx.form.of_direction() if c == "x" else ctx.form.conjugated()
        return (
            None,
            _other(a, {b: second.conj(), c: grad}, form) if needs_first else None,
            _other(b, {a: first.conj(), c: grad}, form) if needs_second else None,
            form.to_bias(c, grad) if needs_bias else None,
            None,
        )

    @staticmethod
    def jvp(
        ctx: Any, _map: None, to_first: Tensor | None, to_second: Tensor | None, to_bias: Tensor | None, _form: None
    ) -> Tensor:
        """In the directions that are not None, of which there is one.

        torch has forward mode off here, on all levels, so that those outside of this one would lose their tangents
        (pytorch issue 197867). It is put on again, and the factors are freed of their tangents on this level alone.
        """
        form, terms = ctx.form, []
        with _set_fwd_grad_enabled(True):
            first, second = (unpack_dual(factor).primal for factor in ctx.saved_tensors)  # type: ignore
            if to_first is not None:
                of_x = form.of_direction() if ROLES[ctx.map][0] == "x" else form
                terms.append(of_x.call(ctx.map, to_first, second))
            if to_second is not None:
                terms.append(form.call(ctx.map, first, to_second))
            if to_bias is not None:
                role = ROLES[ctx.map][2]
                along = to_bias.reshape(-1, *(1,) * form.rank)
                terms.append(along.expand(form.shape_of(role)) if not terms else along)
            return sum(terms[1:], terms[0])  # type: ignore[no-any-return]

    @staticmethod
    def vmap(
        info: Any, in_dims: Sequence[int | None], map: str, first: Tensor, second: Tensor, bias: Tensor | None,
        form: Form,
    ) -> tuple[Tensor, int]:
        """One call over the vmapped axis: it is folded into the batch, the channels or the groups."""
        count, (a, b, c) = info.batch_size, ROLES[map]
        _, *dims, bias_dim, _ = in_dims
        if not count:  # one call of the sums over none, which are zeros, and none of its result
            given = [tensor if dim is None or tensor is None else tensor.sum(dim)
                     for tensor, dim in zip((first, second, bias), (*dims, bias_dim))]
            return form.call(map, *given)[None][:0], 0  # type: ignore[arg-type]
        batched = {role for role, dim in zip((a, b), dims) if dim is not None} | {c}
        roles = "".join(role for role in "xwy" if role in batched)
        tensors = {a: first, b: second}
        inside = bias if bias_dim is None and roles == "xy" else None
        if len(roles) == 1:
            result = form.call(map, first, second)[None]
        else:
            for (role, tensor), dim in zip(tensors.items(), dims):
                shape = form.shape_with_batch(role)
                if dim is None:
                    tensors[role] = tensor.reshape(shape)
                else:
                    tensors[role] = _fold(tensor.movedim(dim, 0), shape, *form.place(roles, role))
            result = form.folded(roles, count).call(map, tensors[a], tensors[b], inside)
            result = _unfold(result, count, *form.place(roles, c)).reshape(count, *form.shape_of(c))
        if bias is not None and inside is None:
            lead = bias[None] if bias_dim is None else bias.movedim(bias_dim, 0)
            ones = (1,) * form.channel_axis(c), (1,) * form.rank
            result = result + lead.reshape(lead.shape[0], *ones[0], lead.shape[1], *ones[1])
        return result, 0


def _other(role: str, values: dict[str, Tensor], form: Form) -> Any:
    """The map whose result has that role, of the tensors in the other two."""
    first, second, _ = ROLES[MAPS[role]]
    return form.call(MAPS[role], values[first], values[second])


def _is_followed(first: Tensor, second: Tensor, bias: Tensor | None) -> bool:
    """Whether a Function has anything to do, outside of torch.func: a gradient to record, a tangent to look for, or
    what autograd has batched. Where it has not, it takes 4 us to find that."""
    return (
        torch.is_grad_enabled() and (
            first.requires_grad or second.requires_grad or bias is not None and bias.requires_grad)
        or forward_ad._current_level >= 0 or _level_of_autograd() > 0
    )


def _level_of_autograd() -> int:
    """How many vmaps of torch.autograd's own this is in (is_grads_batched, gradcheck)."""
    level: int = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


def _batched_by_autograd(
    level: int, map: str, first: Tensor, second: Tensor, bias: Tensor | None, form: Form
) -> Tensor:
    """One map of tensors that torch.autograd's own vmap has batched (is_grads_batched, gradcheck).

    Functions are not told of that one: its innermost level is taken off and put on again here.
    """
    torch._C._vmapmode_decrement_nesting()
    try:
        bare = [None if tensor is None else torch._remove_batch_dim(tensor, level, 1, 0)
                for tensor in (first, second, bias)]
        dims = [0 if tensor is not None and len(tensor) > 1 else None for tensor in bare]
        info = SimpleNamespace(batch_size=max(len(tensor) for tensor in bare if tensor is not None))
        given: Any = [tensor if tensor is None or dim == 0 else tensor[0] for tensor, dim in zip(bare, dims)]
        if info.batch_size == 1:
            return form.call(map, *given)
        result, _ = Map.vmap(info, (None, *dims, None), map, *given, form)  # type: ignore[call-arg]
    finally:
        torch._C._vmapmode_increment_nesting()
    return torch._add_batch_dim(result.contiguous(), 0, level)
