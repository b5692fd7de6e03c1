"""Door: torch tensors. torch.nn.functional's six convolutions, differentiable as often as you like.

    conv1d, conv2d, conv3d                                  (input, weight, bias=None, stride=1, padding=0, dilation=1,
                                                             groups=1)
    conv_transpose1d, conv_transpose2d, conv_transpose3d    (input, weight, bias=None, stride=1, padding=0,
                                                             output_padding=0, groups=1, dilation=1)

torch's signatures and values; every form of padding that the plain functions take works here too. All have keywords
more, which mean what they mean there: output_size=None, padding_mode="zeros", padding_value=0, and allow_tf32=False.

>>> import torch
>>> import pyconv.torch
>>> image, weight = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3, requires_grad=True)
>>> pyconv.torch.conv2d(image, weight, padding="same").sum().backward()
>>> weight.grad.shape, weight.grad[0, 0, 1, 1].item()
(torch.Size([3, 2, 3, 3]), 25.0)

The convolution, its gradient to the input and its gradient to the weight are the three derivatives of one form linear
in each of input, weight and output. The derivatives of each are the other two, so that every order exists, in reverse
and in forward mode (torch.autograd.forward_ad, torch.func.jvp) and in any mixture of both. vmap makes one call of many,
of inputs, weights and outputs in any combination: the vmapped axis is folded into the batch, the channels or the
groups. So torch.func's grad, vjp, jvp, jacrev, jacfwd, hessian and vmap work, and is_grads_batched. A call saves only
what a gradient that will be wanted reads (a frozen weight: not the input), and the gradients of frozen arguments are
not computed.

>>> losses = torch.func.vmap(lambda weight, image: pyconv.torch.conv2d(image, weight).sum(), (None, 0))
>>> of_samples = torch.func.vmap(torch.func.grad(lambda w, x: pyconv.torch.conv2d(x, w).sum()), (None, 0))
>>> losses(weight, torch.ones(8, 2, 5, 5)).shape, of_samples(weight, torch.ones(8, 2, 5, 5)).shape
(torch.Size([8]), torch.Size([8, 3, 2, 3, 3]))

Tensors are float16, bfloat16 (in main memory with the package ml_dtypes), float32, float64, complex64 or complex128;
all of one dtype and on one device. Complex gradients are torch's: conjugated. Nothing is copied on the way in or out,
save that in main memory a tensor that is neither contiguous nor channels_last is made contiguous inside, and that a
lazily conjugated or negated one is resolved. A result is channels_last where its first operand is, else contiguous. The
number of threads is pyconv's, not torch's. Under torch.autocast input, weight and bias are cast as torch's own
convolutions cast them. Another kind of tensor is a TypeError; wrong shapes and settings are refused in the plain
functions' words.

On CUDA devices (not yet confirmed on a GPU) work goes to torch's current stream, in backward to the one that autograd
makes current, and memory comes from torch's allocator; where there is none left, a MemoryError says how much was
wanted. float32 is IEEE float32, the gradients' products too, unless a call says allow_tf32=True:
torch.backends.cudnn.allow_tf32 and fp32_precision are not read, because they allow it unasked (torch's convolutions
round float32 to 11 bits by default).

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
from typing import Any

import torch
from torch import Tensor

from pyconv import _geometry as geometries
from pyconv._arguments import check_flag, exact_mode
from pyconv._evaluate import DEFAULTS, Settings
from pyconv._padding import ZEROS, Mode
from pyconv._signatures import Padding, Sizes
from pyconv.torch._maps import Form, Map

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
DEVICES = ("cpu", "cuda")
CASTABLE = DTYPES[:3]  # what autocast casts
TF32 = Settings(allow_tf32=True)


def _check(name: str, tensor: Any, leader: Tensor) -> None:
    """TypeError unless it is a dense tensor on the leader's device and of its dtype."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
    device = tensor.device
    if device.type not in DEVICES or tensor.layout is not torch.strided:
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
    if tensor.dtype not in DTYPES:
        *others, last = map(str, DTYPES)
        raise TypeError(f"{name} must have dtype {', '.join(others)} or {last}; got {tensor.dtype}")
    if tensor.dtype is not leader.dtype:
        raise TypeError(f"{name} must have the dtype of input, {leader.dtype}; got {tensor.dtype}")


def _autocast(*tensors: Any) -> Sequence[Any]:
    """The tensors as torch's own convolutions take them under autocast: all but float64 in the dtype that it names."""
    kind = tensors[0].device.type if isinstance(tensors[0], Tensor) else "cpu"
    if kind not in DEVICES or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return [
        tensor.to(dtype) if isinstance(tensor, Tensor) and tensor.device.type == kind and tensor.dtype in CASTABLE
        else tensor
        for tensor in tensors
    ]


class _Name(str):
    """A dtype as the plain functions' checks know it: by its name."""

    @property
    def name(self) -> str:
        return self


def _mode(padding_mode: Any, padding_value: Any, dtype: torch.dtype) -> Mode:
    if padding_mode is ZEROS.name and padding_value is ZEROS.value:
        return ZEROS
    name: Any = _Name(str(dtype).removeprefix("torch."))
    return exact_mode(Mode(padding_mode, padding_value), name)


def _convolve(
    rank: int, transposed: bool, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    dilation: Sizes, groups: int, output_padding: Sizes, output_size: Sizes | None, padding_mode: str,
    padding_value: complex, allow_tf32: bool,
) -> Tensor:
    check_flag("allow_tf32", allow_tf32)
    input, weight, bias = _autocast(input, weight, bias)
    _check("input", input, input)
    _check("weight", weight, input)
    if bias is not None:
        _check("bias", bias, input)
    shapes = tuple(input.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape)
    geometry, shape = geometries.problem(
        transposed, rank, *shapes, None, stride, padding, dilation, groups, output_padding, output_size,
        mode=_mode(padding_mode, padding_value, input.dtype),
    )
    x, y = (shape, shapes[0]) if transposed else (shapes[0], shape)
    form = Form(geometry, x, shapes[1], y, TF32 if allow_tf32 else DEFAULTS)
    return Map.apply(  # type: ignore[no-any-return]
        "grad_input" if transposed else "forward", input, weight, bias, form)


def conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, output_size: Sizes | None = None, padding_mode: str = "zeros",
    padding_value: complex = 0, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv1d of tensors: input (batch, channels, size), weight (out channels, channels // groups, kernel)."""
    return _convolve(
        1, False, input, weight, bias, stride, padding, dilation, groups, 0, output_size, padding_mode, padding_value,
        allow_tf32,
    )


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, output_size: Sizes | None = None, padding_mode: str = "zeros",
    padding_value: complex = 0, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv2d of tensors: as conv1d, with two spatial axes."""
    return _convolve(
        2, False, input, weight, bias, stride, padding, dilation, groups, 0, output_size, padding_mode, padding_value,
        allow_tf32,
    )


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    dilation: Sizes = 1, groups: int = 1, *, output_size: Sizes | None = None, padding_mode: str = "zeros",
    padding_value: complex = 0, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv3d of tensors: as conv1d, with three spatial axes."""
    return _convolve(
        3, False, input, weight, bias, stride, padding, dilation, groups, 0, output_size, padding_mode, padding_value,
        allow_tf32,
    )


def conv_transpose1d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
    padding_mode: str = "zeros", padding_value: complex = 0, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv_transpose1d of tensors: weight (channels, out channels // groups, kernel)."""
    return _convolve(
        1, True, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size, padding_mode,
        padding_value, allow_tf32,
    )


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
    padding_mode: str = "zeros", padding_value: complex = 0, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv_transpose2d of tensors: as conv_transpose1d, with two spatial axes."""
    return _convolve(
        2, True, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size, padding_mode,
        padding_value, allow_tf32,
    )


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
    padding_mode: str = "zeros", padding_value: complex = 0, allow_tf32: bool = False,
) -> Tensor:
    """pyconv.conv_transpose3d of tensors: as conv_transpose1d, with three spatial axes."""
    return _convolve(
        3, True, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size, padding_mode,
        padding_value, allow_tf32,
    )
