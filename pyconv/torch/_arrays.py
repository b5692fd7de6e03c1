"""Tensors as arrays over the same memory, and new tensors for results."""

from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyconv._backend import gpu_room
from pyconv._integers import Shape
from pyconv._libraries import bfloat16_of, exchange_of, with_memory
from pyconv._memory import claim

EXCHANGE = exchange_of(Tensor)


def array_of(tensor: Tensor) -> Any:
    """The tensor's own memory as an array, a DeviceArray where it is a GPU's; of a lazily conjugated or negated tensor
    and of one without memory, whose elements are 0, a copy. A gradient is not recorded.
    """
    if tensor.is_cuda:
        return gpu_room("arrays").read("tensor", tensor.detach().resolve_conj().resolve_neg())
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = with_memory("a tensor", tensor)
    if tensor.dtype is torch.bfloat16:
        return _shared(tensor.detach().view(torch.int16)).view(bfloat16_of("tensor", tensor))
    return _shared(tensor)


def _shared(tensor: Tensor) -> Any:
    """Before NumPy 2.1 in a way that keeps torch from ever resizing the tensor."""
    return tensor.numpy(force=True) if EXCHANGE is None else np.from_dlpack(EXCHANGE(tensor))


def result_of(first: Tensor, shape: Shape, order: torch.memory_format) -> tuple[Tensor | None, Any]:
    """(a new tensor in the first operand's type and place, its array); none where a GPU's room makes it itself."""
    if order is not torch.contiguous_format:
        tensor = torch.empty(shape, dtype=first.dtype, device=first.device, memory_format=order)
    elif first.is_cuda:
        return None, None
    else:
        tensor = torch.empty_strided(shape, _steps(shape), dtype=first.dtype, device="cpu")  # faster than torch.empty
    if first.is_cuda or first.dtype is torch.bfloat16:
        array = array_of(tensor)
    else:
        array = _shared(tensor)
    if not first.is_cuda:
        claim(array)
    return tensor, array


@lru_cache(maxsize=256)
def _steps(shape: Shape) -> Shape:
    """The strides of a contiguous tensor."""
    return tuple(accumulate((max(size, 1) for size in shape[:0:-1]), mul, initial=1))[::-1]
