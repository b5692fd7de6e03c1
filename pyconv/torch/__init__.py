"""Door: torch tensors. torch.nn's convolutions, differentiable as often as you like, as functions and as modules.

    conv1d, conv2d, conv3d                                  (input, weight, bias=None, stride=1, padding=0, dilation=1,
                                                             groups=1)
    conv_transpose1d, conv_transpose2d, conv_transpose3d    (input, weight, bias=None, stride=1, padding=0,
                                                             output_padding=0, groups=1, dilation=1)
    Conv1d, Conv2d, Conv3d,                                 torch.nn's modules over these functions
    ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
    replace, restore                                        (model): its convolutions become pyconv's; torch.nn's again

torch's signatures and values; every form of padding that the plain functions take works here too. All have keywords
more, which mean what they mean there: output_size=None, padding_mode="zeros", padding_value=0, algorithm="auto" and
allow_tf32=False. These two are for the gradients' products too.

>>> import torch
>>> import pyconv.torch
>>> image, weight = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3, requires_grad=True)
>>> pyconv.torch.conv2d(image, weight, padding="same").sum().backward()
>>> weight.grad.shape, weight.grad[0, 0, 1, 1].item()
(torch.Size([3, 2, 3, 3]), 25.0)

The convolution, its gradient to the input and its gradient to the weight are the three derivatives of one form linear
in each of input, weight and output. The derivatives of each are the other two, so that every order exists, in reverse
and in forward mode (torch.autograd.forward_ad, which torch has at one level only, and torch.func.jvp, also in itself)
and in any mixture of both. vmap makes one call of many, of inputs, weights and outputs in any combination: the vmapped
axis is folded into the batch, the channels or the groups. So torch.func's grad, vjp, jvp, jacrev, jacfwd, hessian and
vmap work, and is_grads_batched. A call saves only what a gradient that will be wanted reads (a frozen weight: not the
input), and the gradients of frozen arguments are not computed.

>>> losses = torch.func.vmap(lambda weight, image: pyconv.torch.conv2d(image, weight).sum(), (None, 0))
>>> of_samples = torch.func.vmap(torch.func.grad(lambda w, x: pyconv.torch.conv2d(x, w).sum()), (None, 0))
>>> losses(weight, torch.ones(8, 2, 5, 5)).shape, of_samples(weight, torch.ones(8, 2, 5, 5)).shape
(torch.Size([8]), torch.Size([8, 3, 2, 3, 3]))

Calls that torch.compile, torch.export, make_fx or torch.jit.trace see go to an operator of torch's, pyconv::map, with
sizes that may be symbols, in place of the Function that others go to; its gradients are operators too, and nothing need
be said. There torch.func's transforms work, except forward mode, whose tangents a compiler may lose: in a graph that
must be whole (fullgraph=True, torch.export) a RuntimeError says so; where torch.compile may break a graph it does that,
and the answer is right. An exported program, once made, has forward mode too. torch.fx.symbolic_trace is refused: its
proxies are no tensors. So are tensors on the device meta (torch's FakeTensors are served). A subclass of Tensor that
answers for torch's operators (__torch_dispatch__) is asked about pyconv::map, but where it comes as a gradient to
backward alone, which is read as it lies; of another subclass a plain Tensor comes out.

The modules are torch.nn's own classes with another forward, so that from the same seed they have torch.nn's weights,
and load and give its state_dicts. Their padding and padding_mode may be any.

>>> model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding_mode="circular", padding=1), torch.nn.ReLU())
>>> pyconv.torch.replace(model)
Sequential(
  (0): Conv2d(1, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), padding_mode=circular)
  (1): ReLU()
)
>>> type(model[0]) is pyconv.torch.Conv2d, type(pyconv.torch.restore(model)[0]) is torch.nn.Conv2d
(True, True)

torch.jit.script, the old torch.onnx.export (dynamo=False), the conversions of torch.ao and FlopCounterMode do not know
pyconv's modules: call restore(model) first.

Tensors are float16, bfloat16 (in main memory with the package ml_dtypes), float32, float64, complex64 or complex128;
all of one dtype and on one device. Complex gradients are torch's: conjugated. Nothing is copied on the way in or out,
save that in main memory a tensor that is neither contiguous nor channels_last is made contiguous inside, and that a
lazily conjugated or negated one is resolved. The memory stays torch's, which can resize it, from NumPy 2.1 on. A result
is channels_last where its first operand is, else contiguous; but the gradient to a weight is as the weight, of float32
and float64 in main memory, outside of torch.compile and torch.func (elsewhere it is contiguous, and autograd copies it
for a parameter that is channels_last). The number of threads is pyconv's, not torch's. Under torch.autocast input,
weight and bias are cast as torch's own convolutions cast them. Another kind of tensor is a TypeError; wrong shapes and
settings are refused in the plain functions' words.

On CUDA devices (run on an H100 on 2026-11-27, on no other GPU) work goes to torch's current stream, in backward to the
one that autograd makes current, and memory comes from torch's allocator; where there is none left, a MemoryError says
how much was wanted. float32 is IEEE float32, the gradients' products too, unless a call says allow_tf32=True:
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

from collections.abc import Callable

from torch import Tensor

from pyconv._ops import instance
from pyconv._settings import AUTO
from pyconv._signatures import Padding, Sizes
from pyconv.torch._call import convolve
from pyconv.torch._modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    replace,
    restore,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "replace",
    "restore",
]


def _conv(rank: int) -> Callable[..., Tensor]:
    axes = (None,) * rank  # torch.compile may make a symbol of an int in a closure, not of a length

    def conv(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: int = 1, *, output_size: Sizes | None = None, padding_mode: str = "zeros",
        padding_value: complex = 0, algorithm: str = AUTO, allow_tf32: bool = False,
    ) -> Tensor:
        """pyconv.conv{rank}d of tensors: input (batch, channels, *size), weight (out channels, channels // groups,
        *kernel), with {rank} spatial axes.
        """
        return convolve(
            len(axes), False, input, weight, bias, stride, padding, dilation, groups, 0, output_size, padding_mode,
            padding_value, algorithm, allow_tf32,
        )

    return instance(conv, f"conv{rank}d", rank)


def _conv_transpose(rank: int) -> Callable[..., Tensor]:
    axes = (None,) * rank  # as in _conv

    def conv_transpose(
        input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Padding = 0,
        output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
        padding_mode: str = "zeros", padding_value: complex = 0, algorithm: str = AUTO, allow_tf32: bool = False,
    ) -> Tensor:
        """pyconv.conv_transpose{rank}d of tensors: input (batch, channels, *size), weight (channels, out channels //
        groups, *kernel), with {rank} spatial axes.
        """
        return convolve(
            len(axes), True, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size,
            padding_mode, padding_value, algorithm, allow_tf32,
        )

    return instance(conv_transpose, f"conv_transpose{rank}d", rank)


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))
