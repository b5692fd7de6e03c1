"""From a call of a user to one map: the checks, autocast, and the geometry."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled, _is_tracing, _len_torch_dispatch_stack

from pyconv import _geometries as geometries
from pyconv._arguments import check_algorithm, check_flag
from pyconv._backend import gpu_room
from pyconv._dtypes import FLOAT32
from pyconv._settings import AUTO, DEFAULTS, Settings
from pyconv._signatures import Padding, Sizes
from pyconv.torch._maps import Geometric, exact_mode_of, weight_order
from pyconv.torch._traced import traced

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
DEVICES = ("cpu", "cuda")
PLAIN = Tensor.__torch_dispatch__
CASTABLE = DTYPES[:3]  # what autocast casts


def _check(name: str, tensor: Any, leader: Tensor) -> None:
    """TypeError unless it is a dense tensor on the leader's device and of its dtype."""
    if (
        isinstance(tensor, Tensor) and tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested
        and (tensor.dtype in DTYPES if tensor is leader else leader.is_cpu and tensor.dtype is leader.dtype)
    ):
        return
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor; got {type(tensor).__name__}")
    if tensor.is_nested:
        raise TypeError(f"{name} must be one tensor of one shape; got a nested tensor")
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
    if not _is_any_autocast_enabled():
        return tensors
    kind = tensors[0].device.type if isinstance(tensors[0], Tensor) else "cpu"
    if kind not in DEVICES or not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return [
        tensor.to(dtype) if isinstance(tensor, Tensor) and tensor.device.type == kind and tensor.dtype in CASTABLE
        else tensor
        for tensor in tensors
    ]


def _settings(input: Tensor, algorithm: str, allow_tf32: bool) -> Settings:
    """How products are made. TypeError or ValueError where those of such tensors are not."""
    check_flag("allow_tf32", allow_tf32)
    if algorithm is not AUTO:  # the floats of main memory have the same ones
        dtype = FLOAT32 if input.is_cpu else gpu_room("arrays").DTYPES[str(input.dtype).removeprefix("torch.")]
        check_algorithm(algorithm, dtype, bool(allow_tf32))
    made = Settings(algorithm=algorithm, allow_tf32=bool(allow_tf32))
    return DEFAULTS if made == DEFAULTS else made


def _answer_for_operators(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether one of them is of a subclass that is asked about every operator."""
    return (
        type(input).__torch_dispatch__ is not PLAIN or type(weight).__torch_dispatch__ is not PLAIN
        or bias is not None and type(bias).__torch_dispatch__ is not PLAIN
    )


def convolve(
    rank: int, transposed: bool, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Sizes, padding: Padding,
    dilation: Sizes, groups: int, output_padding: Sizes, output_size: Sizes | None, padding_mode: str,
    padding_value: complex, algorithm: str, allow_tf32: bool,
) -> Tensor:
    """The convolution over `rank` axes that a user asks for, where transposed the transposed one.

    TypeError or ValueError where it cannot be had.
    """
    input, weight, bias = _autocast(input, weight, bias)
    _check("input", input, input)
    settings = DEFAULTS
    if algorithm is not AUTO or allow_tf32 is not False:
        settings = _settings(input, algorithm, allow_tf32)
    _check("weight", weight, input)
    if bias is not None:
        _check("bias", bias, input)
    if input.is_complex():  # torch forgets that a conjugate of a lazy conjugate has a direction
        input, weight = input.resolve_conj(), weight.resolve_conj()
    # Who traces, or stands between torch and its operators (torch.compile, torch.export, make_fx, torch.jit.trace), has
    # to meet an operator: it would take the result of a Function for a constant. No function may ask this, as
    # torch.compile would compile that one apart, to True. So has a subclass that answers for torch's operators: it may
    # have its values elsewhere than in its memory.
    if (
        torch.compiler.is_compiling() or _len_torch_dispatch_stack() or _is_tracing()
        or _answer_for_operators(input, weight, bias)
    ):
        return traced(
            rank, transposed, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size,
            padding_mode, padding_value, settings,
        )
    shapes = tuple(input.shape), tuple(weight.shape), None if bias is None else tuple(bias.shape)
    geometry, shape = geometries.problem(
        transposed, rank, *shapes, None, stride, padding, dilation, groups, output_padding, output_size,
        mode=exact_mode_of(padding_mode, padding_value, input.dtype),
    )
    x, y = (shape, shapes[0]) if transposed else (shapes[0], shape)
    form = Geometric(
        x, shapes[1], y, rank, geometry.groups, geometry, settings, transposed, weight_order(weight, rank))
    return form.call("grad_input" if transposed else "forward", input, weight, bias)
