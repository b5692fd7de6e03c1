"""What the doors of differentiating frameworks share: a call's trilinear form, and the functions over a framework.

A door brings one function of its framework, derive(role, form, first, second): the derivative of T(x, w, y) with
respect to the role 'x', 'w' or 'y', at the other two in the order of FACTORS. It is linear in each of the two, and its
own derivatives are derive of other roles, so that nothing else needs a rule for any order of gradient.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, SupportsIndex, TypeVar

import numpy as np

from pyconv import _geometries as geometries
from pyconv._arguments import check_mask
from pyconv._backend import Array
from pyconv._dtypes import DType, native_dtype
from pyconv._evaluate import Result, evaluate
from pyconv._geometry import MAPS, ROLES, Geometry, linear
from pyconv._integers import Shape, exact_shape
from pyconv._ops import instance
from pyconv._settings import Settings, checked, settings_of
from pyconv._signatures import Padding, Sizes

Function = TypeVar("Function", bound=Callable[..., Any])

Steps = tuple[Any, Any, Any, Any]  # stride, padding, dilation, groups
FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
FACTORS = {roles[2]: roles[:2] for roles in ROLES.values()}  # of T's derivative with respect to a role


class Form(NamedTuple):
    """T(x, w, y) on one geometry; x and y have a batch axis."""

    geometry: Geometry
    size: Shape  # x's spatial axes, of which the geometry's may be a part
    dtype: DType
    settings: Settings

    def shape(self, role: str) -> Shape:
        """The shape of x, w or y."""
        geometry, rank = self.geometry, len(self.size)
        if role == "x":
            return geometry.batch, geometry.in_channels, *self.size
        if role == "y":
            return geometry.batch, geometry.out_channels, *geometry.output_size[-rank:]
        return geometry.out_channels, geometry.in_channels // geometry.groups, *geometry.kernel_size[-rank:]

    def along(self, role: str) -> "Form":
        """The form at a direction of that role; of x that is one around which a constant is nothing."""
        if role != "x" or self.geometry.padding_mode != "constant":
            return self
        return self._replace(geometry=linear(self.geometry))

    def derivative(self, role: str, first: Array, second: Array, out: Array | None = None) -> Array:
        """T's derivative with respect to that role, as an array."""
        return computed(role, self.geometry, self.shape(role), first, second, self.dtype, self.settings, out)


def computed(
    role: str, geometry: Geometry, shape: Shape, first: Array, second: Array, dtype: DType, settings: Settings,
    out: Array | None = None,
) -> Array:
    """T's derivative with respect to that role, of that shape; x and y may be without batch axis."""
    result = Result(shape, ((MAPS[role], first, second, False),))
    named = (("first", first), ("second", second))
    [array] = evaluate(geometry, dtype, (result,), (out,), named, settings)
    return array  # type: ignore[no-any-return]


Derive = Callable[[str, Any, Any, Any], Any]


def along(derive: Derive, place: int, role: str, form: Any, direction: Any, other: Any) -> Any:
    """The derivative of derive(role, form, first, second) along a direction of its factor in that place.

    form: a Form, or what a door has in its stead, with a method `along`.
    """
    factors = (direction, other) if place == 0 else (other, direction)
    return derive(role, form.along(FACTORS[role][place]), *factors)


def pulled_back(derive: Derive, place: int, role: str, form: Any, cotangent: Any, other: Any) -> Any:
    """The gradient to the factor in that place, from that to the result; `other` is the other factor."""
    target = FACTORS[role][place]
    at = {role: cotangent, FACTORS[role][1 - place]: other}
    return derive(target, form.along(role), *(at[factor] for factor in FACTORS[target]))


class Calls(Protocol):
    """What a door does behind its functions; the arguments are the user's, not yet checked."""

    def convolve(
        self, transposed: bool, rank: int, input: Any, weight: Any, bias: Any, steps: Steps,
        output_padding: Any, output_size: Any, settings: Settings,
    ) -> Any: ...

    def grad_input(
        self, rank: int, input_size: Any, weight: Any, grad_output: Any, steps: Steps, settings: Settings
    ) -> Any: ...

    def grad_weight(
        self, rank: int, input: Any, weight_size: Any, grad_output: Any, steps: Steps, settings: Settings
    ) -> Any: ...


class Operands(NamedTuple):
    """What a door takes as an array: its types, their names, what makes one of them of all, and the dtypes."""

    kinds: tuple[type, ...]
    rule: str
    convert: Callable[[Any], Any]
    dtypes: tuple[str, ...] = FLOATS

    def read(self, settings: Settings, **operands: Any) -> tuple[DType, Settings, list[Any]]:
        """Their dtype, the settings for it, and the arrays. Only a bias may be None."""
        arrays: list[Any] = []
        leader = next(iter(operands))
        for name, value in operands.items():
            if value is None and name == "bias":
                arrays.append(None)
                continue
            if not isinstance(value, self.kinds):
                raise TypeError(f"{name} must be {self.rule}; got {type(value).__name__}")
            check_mask(name, value)
            array = self.convert(value)
            arrays.append(array)
            if _name(array.dtype) not in self.dtypes:
                *others, last = self.dtypes
                raise TypeError(f"{name} must have dtype {', '.join(others)} or {last}; got {array.dtype}")
            if _name(array.dtype) != _name(arrays[0].dtype):
                raise TypeError(f"{name} must have the dtype of {leader}, {arrays[0].dtype}; got {array.dtype}")
        dtype = native_dtype(leader, np.dtype(arrays[0].dtype))
        return dtype, checked(settings, dtype), arrays


@lru_cache(maxsize=64)
def _name(dtype: Any) -> str:
    """A dtype's name, which NumPy takes several microseconds to say."""
    return str(getattr(dtype, "name", dtype))


class ShapedCalls(NamedTuple):
    """The calls of a framework whose arrays know their shapes when a function is called."""

    derive: Derive
    operands: Operands

    def _read(self, settings: Settings, **operands: Any) -> tuple[DType, Settings, list[Any]]:
        dtype, settings, arrays = self.operands.read(settings, **operands)
        for name, array in zip(operands, arrays):
            if array is not None and not all(isinstance(size, int) for size in array.shape):
                raise TypeError(f"{name} must have a known size on every axis; got shape {array.shape}")
        return dtype, settings, arrays

    def convolve(
        self, transposed: bool, rank: int, input: Any, weight: Any, bias: Any, steps: Steps,
        output_padding: Any, output_size: Any, settings: Settings,
    ) -> Any:
        dtype, settings, (input, weight, bias) = self._read(settings, input=input, weight=weight, bias=bias)
        geometry, shape = geometries.problem(
            transposed, rank, tuple(input.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape),
            None, *steps, output_padding, output_size, mode=settings.mode,
        )
        size = (shape if transposed else tuple(input.shape))[-rank:]
        form = Form(geometry, size, dtype, settings)
        result = self.derive("x" if transposed else "y", form, _batched(input, rank), weight)
        if bias is not None:
            result = result + bias.reshape((bias.shape[0], *(1,) * rank))
        return result if len(shape) == rank + 2 else result[0]

    def grad_input(
        self, rank: int, input_size: Any, weight: Any, grad_output: Any, steps: Steps, settings: Settings
    ) -> Any:
        shape = exact_shape("input_size", input_size)
        dtype, settings, (weight, grad_output) = self._read(settings, weight=weight, grad_output=grad_output)
        geometry, _ = geometries.convolved(
            rank, shape, tuple(weight.shape), None, tuple(grad_output.shape), *steps,
            ("input_size", "weight", "bias"), settings.mode,
        )
        form = Form(geometry, shape[-rank:], dtype, settings)
        result = self.derive("x", form, _batched(grad_output, rank), weight)
        return result if len(shape) == rank + 2 else result[0]

    def grad_weight(
        self, rank: int, input: Any, weight_size: Any, grad_output: Any, steps: Steps, settings: Settings
    ) -> Any:
        shape = exact_shape("weight_size", weight_size)
        dtype, settings, (input, grad_output) = self._read(settings, input=input, grad_output=grad_output)
        geometry, _ = geometries.convolved(
            rank, tuple(input.shape), shape, None, tuple(grad_output.shape), *steps,
            ("input", "weight_size", "bias"), settings.mode,
        )
        form = Form(geometry, tuple(input.shape)[-rank:], dtype, settings)
        return self.derive("w", form, _batched(input, rank), _batched(grad_output, rank))


def _batched(array: Any, rank: int) -> Any:
    """An array with a batch axis."""
    return array if array.ndim == rank + 2 else array[None]


# --- the functions of a door: one body, three ranks ---


class Door(NamedTuple):
    """A door's name, its framework's word for arrays, its calls, and how a doctest reads a result's shape."""

    name: str
    arrays: str
    calls: Calls
    shape: str = "shape"


def functions(door: Door) -> list[Callable[..., Any]]:
    """conv, conv_input, conv_weight and conv_transpose, each for one, two and three axes."""
    bodies = _conv, _conv_input, _conv_weight, _conv_transpose
    return [body(door, rank) for body in bodies for rank in (1, 2, 3)]


def _instance(function: Function, door: Door, name: str, rank: int) -> Function:
    """The function under its public name in the door, its docstring written for its rank."""
    function.__module__ = door.name
    return instance(function, name, rank, name=name, door=door.name, arrays=door.arrays, shape=door.shape)


def _conv(door: Door, rank: int) -> Callable[..., Any]:
    def conv(
        input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1,
        groups: SupportsIndex = 1, *, output_size: Sizes | None = None, padding_mode: str = "zeros",
        padding_value: complex = 0, algorithm: str = "auto",
    ) -> Any:
        """pyconv.{name} of {arrays}: weight (out channels, channels // groups, *kernel).

        >>> import numpy as np
        >>> import {door}
        >>> input, weight = np.ones((1, 2, {fives})), np.ones((4, 2, {threes}))
        >>> {door}.{name}(input, weight, stride=2).{shape}
        (1, 4, {twos})
        """
        return door.calls.convolve(
            False, rank, input, weight, bias, (stride, padding, dilation, groups), 0, output_size,
            settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value),
        )

    return _instance(conv, door, f"conv{rank}d", rank)


def _conv_input(door: Door, rank: int) -> Callable[..., Any]:
    def conv_input(
        input_size: Sequence[SupportsIndex], weight: Any, grad_output: Any, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: SupportsIndex = 1, *, padding_mode: str = "zeros", padding_value: complex = 0,
        algorithm: str = "auto",
    ) -> Any:
        """pyconv.{name} of {arrays}: the gradient of conv{rank}d to an input of the whole shape input_size.

        >>> import numpy as np
        >>> import {door}
        >>> weight, grad_output = np.ones((4, 2, {threes})), np.ones((1, 4, {twos}))
        >>> {door}.{name}((1, 2, {fives}), weight, grad_output, stride=2).{shape}
        (1, 2, {fives})
        """
        return door.calls.grad_input(
            rank, input_size, weight, grad_output, (stride, padding, dilation, groups),
            settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value),
        )

    return _instance(conv_input, door, f"conv{rank}d_input", rank)


def _conv_weight(door: Door, rank: int) -> Callable[..., Any]:
    def conv_weight(
        input: Any, weight_size: Sequence[SupportsIndex], grad_output: Any, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: SupportsIndex = 1, *, padding_mode: str = "zeros", padding_value: complex = 0,
        algorithm: str = "auto",
    ) -> Any:
        """pyconv.{name} of {arrays}: the gradient of conv{rank}d to a weight of the whole shape weight_size.

        >>> import numpy as np
        >>> import {door}
        >>> input, grad_output = np.ones((1, 2, {fives})), np.ones((1, 4, {twos}))
        >>> {door}.{name}(input, (4, 2, {threes}), grad_output, stride=2).{shape}
        (4, 2, {threes})
        """
        return door.calls.grad_weight(
            rank, input, weight_size, grad_output, (stride, padding, dilation, groups),
            settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value),
        )

    return _instance(conv_weight, door, f"conv{rank}d_weight", rank)


def _conv_transpose(door: Door, rank: int) -> Callable[..., Any]:
    def conv_transpose(
        input: Any, weight: Any, bias: Any = None, stride: Sizes = 1, padding: Padding = 0, output_padding: Sizes = 0,
        groups: SupportsIndex = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
        padding_mode: str = "zeros", padding_value: complex = 0, algorithm: str = "auto",
    ) -> Any:
        """pyconv.{name} of {arrays}: weight (channels, out channels // groups, *kernel).

        >>> import numpy as np
        >>> import {door}
        >>> input, weight = np.ones((1, 4, {twos})), np.ones((4, 2, {threes}))
        >>> {door}.{name}(input, weight, stride=2).{shape}
        (1, 2, {fives})
        """
        return door.calls.convolve(
            True, rank, input, weight, bias, (stride, padding, dilation, groups), output_padding, output_size,
            settings_of(algorithm=algorithm, padding_mode=padding_mode, padding_value=padding_value),
        )

    return _instance(conv_transpose, door, f"conv_transpose{rank}d", rank)
