"""Door: torch tensors. torch.nn.functional's six convolutions, differentiable as often as you like.

    conv1d, conv2d, conv3d                                  (input, weight, bias=None, stride=1, padding=0, dilation=1,
                                                             groups=1)
    conv_transpose1d, conv_transpose2d, conv_transpose3d    (input, weight, bias=None, stride=1, padding=0,
                                                             output_padding=0, groups=1, dilation=1)

torch's signatures and values; every form of padding that the plain functions take works here too. All have a keyword
more, allow_tf32=False.

>>> import torch
>>> import pyconv.torch
>>> image, weight = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3, requires_grad=True)
>>> pyconv.torch.conv2d(image, weight, padding="same").sum().backward()
>>> weight.grad.shape, weight.grad[0, 0, 1, 1].item()
(torch.Size([3, 2, 3, 3]), 25.0)

Three autograd Functions, Forward, GradInput and GradWeight, are the three derivatives of one form linear in each of
input, weight and output. The derivatives of each are the other two, so that every order of gradient exists. A Function
saves only what a gradient that will be wanted reads (a frozen weight: not the input), and the gradients of frozen
arguments are not computed.

Tensors are float32 or float64, on CUDA devices also float16 or bfloat16; all of one dtype and on one device. Nothing is
copied on the way in or out, save that in main memory a tensor that is neither contiguous nor channels_last is made
contiguous inside. A result is channels_last where its first operand is, else contiguous. The number of threads is
pyconv's, not torch's. Forward mode and torch.func are not served. Another kind of tensor is a TypeError; wrong shapes
and settings are refused in the plain functions' words.

On CUDA devices (not yet confirmed on a GPU) work goes to torch's current stream, in backward to the one that autograd
makes current, and memory comes from torch's allocator; where there is none left, a MemoryError says how much was
wanted. Under torch.autocast("cuda") input, weight and bias are cast as torch's own convolutions cast them. float32 is
IEEE float32, the gradients' products too, unless a call says allow_tf32=True: torch.backends.cudnn.allow_tf32 and
fp32_precision are not read, because they allow it unasked (torch's convolutions round float32 to 11 bits by default).

The plain functions also serve an autograd Function of your own. This one sends the gradient back through other weights
than the forward's (feedback alignment):

>>> from torch.autograd.function import Function, once_differentiable
>>> class FeedbackConv(Function):
...     @staticmethod
...     def forward(ctx, input, weight, feedback):
...         ctx.save_for_backward(input, weight, feedback)
...         return torch.from_numpy(pyconv.conv2d(input.detach().numpy(), weight.detach().numpy(), padding=1))
...     @staticmethod
...     @once_differentiable
...     def backward(ctx, grad_output):
...         input, weight, feedback = (tensor.detach().numpy() for tensor in ctx.saved_tensors)
...         grad_input = pyconv.conv2d_input(input.shape, feedback, grad_output.numpy(), padding=1)
...         grad_weight = pyconv.conv2d_weight(input, weight.shape, grad_output.numpy(), padding=1)
...         return torch.from_numpy(grad_input), torch.from_numpy(grad_weight), None
>>> image, feedback = torch.ones(1, 2, 5, 5, requires_grad=True), torch.full((3, 2, 3, 3), 0.5)
>>> FeedbackConv.apply(image, weight, feedback).sum().backward()
>>> image.grad[0, 0, 2, 2].item()
13.5
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from pyconv import _geometry as geometries
from pyconv._arguments import check_flag
from pyconv._backend import gpu_room
from pyconv._evaluate import DEFAULTS, Result, Settings, evaluate
from pyconv._geometry import Geometry
from pyconv._integers import Shape
from pyconv._signatures import Padding, Sizes

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


DTYPES = {"cpu": (torch.float32, torch.float64),
          "cuda": (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
TF32 = Settings(allow_tf32=True)
ORDERS = {2: torch.channels_last, 3: torch.channels_last_3d}  # of tensors with a batch axis, by rank


class _Form(NamedTuple):
    """T(x, w, y) on one geometry, the shapes of x, w and y as tensors, with batch axis or without, and the rounding."""

    geometry: Geometry
    x_shape: Shape
    w_shape: Shape
    y_shape: Shape
    settings: Settings

    def derivative(self, map: str, shape: Shape, first: Tensor, second: Tensor, bias: Tensor | None = None) -> Tensor:
        """One map, in the order of arguments of a backend's plan, as a tensor over the memory of the arrays."""
        factors = _array(first), _array(second)
        result = Result(shape, ((map, *factors, False),), None if bias is None else _array(bias))
        order, out = ORDERS.get(first.ndim - 2, torch.contiguous_format), None
        has_order = first.ndim == self.geometry.rank + 2 and first.is_contiguous(memory_format=order)
        if map != "grad_weight" and has_order and not first.is_contiguous():
            out = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=order)
        outs = (None if out is None else _array(out),)
        named = (("first", factors[0]), ("second", factors[1]))
        [array] = evaluate(self.geometry, factors[0].dtype, (result,), outs, named, self.settings)
        if out is not None:
            return out
        return array if isinstance(array, Tensor) else torch.from_numpy(array)

    def channel_sum(self, tensor: Tensor) -> Tensor:
        """The sum over all axes but the channels'."""
        channels = tensor.ndim - self.geometry.rank - 1
        return tensor.sum([axis for axis in range(tensor.ndim) if axis != channels])


def _array(tensor: Tensor) -> Any:
    """The tensor's own memory as an array, a DeviceArray where it is a GPU's."""
    plain = tensor.detach().resolve_neg()
    return gpu_room("arrays").read("tensor", plain) if plain.is_cuda else plain.numpy()


def _save(ctx: Any, first: Tensor, second: Tensor, form: _Form) -> None:
    """Keep of two factors what the other's gradient reads."""
    needs_first, needs_second, *_ = ctx.needs_input_grad
    ctx.save_for_backward(first if needs_second else None, second if needs_first else None)
    ctx.form = form


class Forward(Function):
    """y = dT/dy(x, w) + bias: the convolution."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, form: _Form) -> Tensor:
        _save(ctx, x, w, form)
        return form.derivative("forward", form.y_shape, x, w, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, w), form = ctx.saved_tensors, ctx.form
        needs_x, needs_w, needs_bias, _ = ctx.needs_input_grad
        return (
            GradInput.apply(grad, w, None, form) if needs_x else None,  # type: ignore[no-untyped-call]
            GradWeight.apply(x, grad, form) if needs_w else None,  # type: ignore[no-untyped-call]
            form.channel_sum(grad) if needs_bias else None,
            None,
        )


class GradInput(Function):
    """x = dT/dx(y, w) + bias: the gradient to a convolution's input, and the transposed convolution."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, w: Tensor, bias: Tensor | None, form: _Form) -> Tensor:
        _save(ctx, y, w, form)
        return form.derivative("grad_input", form.x_shape, y, w, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (y, w), form = ctx.saved_tensors, ctx.form
        needs_y, needs_w, needs_bias, _ = ctx.needs_input_grad
        return (
            Forward.apply(grad, w, None, form) if needs_y else None,  # type: ignore[no-untyped-call]
            GradWeight.apply(grad, y, form) if needs_w else None,  # type: ignore[no-untyped-call]
            form.channel_sum(grad) if needs_bias else None,
            None,
        )


class GradWeight(Function):
    """w = dT/dw(x, y): the gradient to the weight of either."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, form: _Form) -> Tensor:
        _save(ctx, x, y, form)
        return form.derivative("grad_weight", form.w_shape, x, y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x, y), form = ctx.saved_tensors, ctx.form
        needs_x, needs_y, _ = ctx.needs_input_grad
        return (
            GradInput.apply(y, grad, None, form) if needs_x else None,  # type: ignore[no-untyped-call]
            Forward.apply(x, grad, None, form) if needs_y else None,  # type: ignore[no-untyped-call]
            None,
        )


def _check(name: str, tensor: Any, leader: Tensor) -> None:
    """TypeError unless it is a dense tensor on the leader's device and of its dtype."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
    device = tensor.device
    if device.type not in DTYPES or tensor.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense tensor on the CPU or a CUDA GPU; got {tensor.layout} on {device}")
    if device != leader.device:
        if device.type == "cpu":
            raise TypeError(
                f"{name} must be on the device of input, {leader.device}; got an array in main memory "
                f"({type(tensor).__name__})"
            )
        if leader.device.type == "cpu":
            raise TypeError(f"{name} must be in main memory, as input is; got an array on {device}")
        raise TypeError(f"{name} must be on the device of input, {leader.device}; got {device}")
    if tensor.dtype not in DTYPES[device.type]:
        *others, last = map(str, DTYPES[device.type])
        raise TypeError(f"{name} must have dtype {', '.join(others)} or {last}; got {tensor.dtype}")
    if tensor.dtype is not leader.dtype:
        raise TypeError(f"{name} must have the dtype of input, {leader.dtype}; got {tensor.dtype}")


def _autocast(*tensors: Any) -> Sequence[Any]:
    """The tensors as torch's own convolutions take them under autocast: all but float64 in the dtype that it names.

    In main memory autocast's half types are none that is computed in, so that it has no effect there.
    """
    input = tensors[0]
    if not isinstance(input, Tensor) or not input.is_cuda or not torch.is_autocast_enabled("cuda"):
        return tensors
    dtype, castable = torch.get_autocast_dtype("cuda"), (torch.float16, torch.bfloat16, torch.float32)
    return [
        tensor.to(dtype) if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.dtype in castable else tensor
        for tensor in tensors
    ]


def _settings(allow_tf32: Any) -> Settings:
    check_flag("allow_tf32", allow_tf32)
    return TF32 if allow_tf32 else DEFAULTS


def _shapes(input: Any, weight: Any, bias: Any) -> tuple[Shape, Shape, Shape | None]:
    """The shapes of three checked tensors."""
    _check("input", input, input)
    _check("weight", weight, input)
    if bias is None:
        return tuple(input.shape), tuple(weight.shape), None
    _check("bias", bias, input)
    return tuple(input.shape), tuple(weight.shape), tuple(bias.shape)


def _conv(
    rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding, dilation: Sizes,
    groups: int, allow_tf32: bool,
) -> Tensor:
    settings = _settings(allow_tf32)
    input, weight, bias = _autocast(input, weight, bias)
    shapes = _shapes(input, weight, bias)
    geometry, y_shape = geometries.convolved(rank, *shapes, None, stride, padding, dilation, groups)
    form = _Form(geometry, shapes[0], shapes[1], y_shape, settings)
    return Forward.apply(input, weight, bias, form)  # type: ignore[no-any-return, no-untyped-call]


def _conv_transpose(
    rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    output_padding: Sizes, groups: int, dilation: Sizes, allow_tf32: bool,
) -> Tensor:
    settings = _settings(allow_tf32)
    input, weight, bias = _autocast(input, weight, bias)
    shapes = _shapes(input, weight, bias)
    geometry, x_shape = geometries.transposed(rank, *shapes, None, stride, padding, dilation, groups, output_padding)
    form = _Form(geometry, x_shape, shapes[1], shapes[0], settings)
    return GradInput.apply(input, weight, bias, form)  # type: ignore[no-any-return, no-untyped-call]


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv1d of tensors: input (batch, channels, size), weight (out channels, channels // groups, kernel)."""
    return _conv(1, input, weight, bias, stride, padding, dilation, groups, allow_tf32)


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv2d of tensors: as conv1d, with two spatial axes."""
    return _conv(2, input, weight, bias, stride, padding, dilation, groups, allow_tf32)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv3d of tensors: as conv1d, with three spatial axes."""
    return _conv(3, input, weight, bias, stride, padding, dilation, groups, allow_tf32)


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv_transpose1d of tensors: weight (channels, out channels // groups, kernel)."""
    return _conv_transpose(1, input, weight, bias, stride, padding, output_padding, groups, dilation, allow_tf32)


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv_transpose2d of tensors: as conv_transpose1d, with two spatial axes."""
    return _conv_transpose(2, input, weight, bias, stride, padding, output_padding, groups, dilation, allow_tf32)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv_transpose3d of tensors: as conv_transpose1d, with three spatial axes."""
    return _conv_transpose(3, input, weight, bias, stride, padding, output_padding, groups, dilation, allow_tf32)
