"""The annotated signatures that the instances of one body for rank 1, 2 and 3 share."""

from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex

from numpy.typing import ArrayLike, DTypeLike

from pyconv._backend import Array

Sizes = SupportsIndex | Sequence[SupportsIndex]
Padding = str | SupportsIndex | Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]]


class Conv(Protocol):
    """conv1d, conv2d, conv3d."""

    __name__: str

    def __call__(
        self, input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, output_size: Sizes | None = None,
        out: Array | None = None, accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, finput: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array: ...


class ConvInput(Protocol):
    """conv1d_input, conv2d_input, conv3d_input."""

    __name__: str

    def __call__(
        self, input_size: Sequence[SupportsIndex], weight: ArrayLike, grad_output: ArrayLike, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, out: Array | None = None,
        accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, fgrad_input: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array: ...


class ConvWeight(Protocol):
    """conv1d_weight, conv2d_weight, conv3d_weight."""

    __name__: str

    def __call__(
        self, input: ArrayLike | None, weight_size: Sequence[SupportsIndex], grad_output: ArrayLike,
        stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *,
        per_sample: bool = False, out: Array | None = None, accumulate: bool = False, padding_mode: str = "zeros",
        padding_value: complex = 0, dtype: DTypeLike | None = None, finput: Array | None = None,
        algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
    ) -> Array: ...


class ConvTranspose(Protocol):
    """conv_transpose1d, conv_transpose2d, conv_transpose3d."""

    __name__: str

    def __call__(
        self, input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Sizes = 1,
        padding: Padding = 0, output_padding: Sizes = 0, groups: SupportsIndex = 1, dilation: Sizes = 1, *,
        output_size: Sizes | None = None, out: Array | None = None, accumulate: bool = False,
        padding_mode: str = "zeros", padding_value: complex = 0, dtype: DTypeLike | None = None,
        fgrad_input: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
    ) -> Array: ...
