"""Tensors as arrays over the same memory, and new tensors for results."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyconv._backend import gpu_room
from pyconv._dtypes import bfloat16_of
from pyconv._integers import Shape, steps_of
from pyconv._libraries import exchange_of, with_memory
from pyconv._memory import claim

EXCHANGE = exchange_of(Tensor)
CPU = torch.device("cpu")


def array_of(name: str, tensor: Tensor) -> Any:
    """The tensor's own memory as an array, a DeviceArray where it is a GPU's; of a lazily conjugated or negated tensor
    and of one without memory, whose elements are 0, a copy. A gradient is not recorded.

    TypeError in the words of the argument `name` where it has no memory.
    """
    tensor = with_memory(name, tensor)
    if tensor.is_cuda:
        return gpu_room("kinds").read(name, tensor.detach().resolve_conj().resolve_neg())
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype is torch.bfloat16:
        return _shared(tensor.detach().view(torch.int16)).view(bfloat16_of(name, tensor.dtype))
    return _shared(tensor)


def known_on_gpu(
    exact: Any, names: tuple[str, ...], operands: tuple[Tensor | None, ...]
) -> tuple[Any, Tensor | None]:
    """The key of a call on CUDA tensors with one result, and that where a call like it is known: see _gpu.calls.

    exact: what tells the call from others but for its tensors; it begins with a geometry, as no plain function's does.
    Below autograd nothing is left to ask of them but how they lie, and whether they have memory.
    """
    key, results = gpu_room("calls").known_as_they_lie("torch", exact, names, operands, (), None, None)
    return key, None if results is None else results[0]


def _shared(tensor: Tensor) -> Any:
    """Before NumPy 2.1 in a way that keeps torch from ever resizing the tensor."""
    return tensor.numpy(force=True) if EXCHANGE is None else np.from_dlpack(EXCHANGE(tensor))


def result_of(first: Tensor, shape: Shape, order: torch.memory_format) -> tuple[Tensor, Any]:
    """(a new tensor of the first operand's type in main memory, its array). MemoryError where it has no room."""
    try:
        if order is not torch.contiguous_format:
            tensor = torch.empty(shape, dtype=first.dtype, device=CPU, memory_format=order)
        else:
            tensor = torch.empty_strided(shape, steps_of(shape), dtype=first.dtype, device=CPU)
    except RuntimeError as error:
        raise MemoryError(
            f"main memory must have {prod(shape) * first.element_size()} bytes free for a tensor of shape {shape}, "
            f"dtype {first.dtype}; got {type(error).__name__}") from error
    array = array_of("out", tensor) if first.dtype is torch.bfloat16 else _shared(tensor)
    claim(array)
    return tensor, array


def maker_of(first: Tensor, shape: Shape, order: torch.memory_format) -> Callable[[], Tensor] | None:
    """Makes a new tensor in the first operand's type and place; None where a GPU's room makes the like of it."""
    if order is torch.contiguous_format:
        return None
    return partial(torch.empty, shape, dtype=first.dtype, device=first.device, memory_format=order)
