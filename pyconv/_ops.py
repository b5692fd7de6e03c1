"""The convolutions and their gradients: ask the geometry, ask the backend, run.

The arguments that all functions share are explained once, in the package's docstring. conv1d, conv2d and conv3d are
instances, one for each rank, of one body; so are the other functions with a rank in their name.
"""

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeVar

import numpy as np  # noqa: F401, the doctests' np
from numpy.typing import ArrayLike

from pyconv import _geometry as geometries
from pyconv._arguments import DType, check_flag, check_out, check_stream, exact_mask, operands
from pyconv._backend import Array
from pyconv._evaluate import (
    DEFAULTS,
    Named,
    Result,
    Settings,
    check_outs,
    check_settings,
    evaluate,
    no_out,
    sum_channels,
)
from pyconv._geometry import Geometry, check_shape, rank_of
from pyconv._integers import exact_shape
from pyconv._signatures import Conv, ConvInput, ConvTranspose, ConvWeight, Padding, Sizes

Function = TypeVar("Function", bound=Callable[..., Any])
AUTO = DEFAULTS.algorithm
Gradients = tuple[Array | None, Array | None, Array | None]


def _settings(
    finput: Any, fgrad_input: Any, algorithm: Any, allow_tf32: Any, stream: Any, accumulate: Any
) -> Settings:
    if finput is fgrad_input is stream is None and allow_tf32 is accumulate is False and algorithm is AUTO:
        return DEFAULTS
    return Settings(finput, fgrad_input, algorithm, allow_tf32, stream, accumulate)


def _single(
    geometry: Geometry, dtype: DType, result: Result, out: Any, named: Named, settings: Settings
) -> Any:
    if out is not None:
        out = check_out("out", out, result.shape, dtype, named)
    elif settings.accumulate:
        raise no_out("out")
    return evaluate(geometry, dtype, (result,), (out,), named, settings)[0]


def _convolve(
    rank: int | None, transposed: Any, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: Any, output_padding: Any, output_size: Any, out: Any, settings: Settings,
) -> Any:
    """Every forward; a rank of None is read from the weight."""
    dtype, (input, weight, bias) = operands(("input", "weight", "bias"), (input, weight), (bias,))
    check_settings(settings, dtype)
    geometry, shape = geometries.problem(
        transposed, rank or rank_of("weight", weight.shape), input.shape, weight.shape,
        None if bias is None else bias.shape, None, stride, padding, dilation, groups, output_padding, output_size,
    )
    named = (("input", input), ("weight", weight), ("bias", bias))
    result = Result(shape, (("grad_input" if transposed else "forward", input, weight),), bias)
    return _single(geometry, dtype, result, out, named, settings)


# --- one body, three ranks ---


def _instance(function: Function, name: str, rank: int) -> Function:
    """The function under its public name, its docstring written for its rank."""
    function.__name__ = function.__qualname__ = name
    sizes = {word: ", ".join([digit] * rank) for word, digit in (("twos", "2"), ("threes", "3"), ("fives", "5"))}
    function.__doc__ = str(function.__doc__).format(rank=rank, **sizes)
    return function


def _conv(rank: int) -> Conv:
    def conv(
        input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: SupportsIndex = 1, *, out: Array | None = None, accumulate: bool = False,
        finput: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
    ) -> Array:
        """Convolution over {rank} spatial axes, as in neural networks: the weight is not turned round.

            output[n, o, a] = bias[o] + sum over i and k of weight[o, i, k] * input[n, i, stride*a + dilation*k - lo]

        with a zero wherever the input has no such cell; with groups, i runs over the channels of o's own group.

        input: (batch, channels, *size); weight: (out channels, channels // groups, *kernel); bias: (out channels,).
        Returns (batch, out channels, *output size),
        output size = (size + lo + hi - dilation*(kernel-1) - 1) // stride + 1.
        What the size leaves over behind the last stride is not read.

        TypeError or ValueError: see the package.

        >>> input, weight = np.ones((1, 2, {fives})), np.ones((4, 2, {threes}))
        >>> conv{rank}d(input, weight, stride=2).shape
        (1, 4, {twos})
        """
        return _convolve(  # type: ignore[no-any-return]
            rank, False, input, weight, bias, stride, padding, dilation, groups, 0, None, out,
            _settings(finput, None, algorithm, allow_tf32, stream, accumulate),
        )

    return _instance(conv, f"conv{rank}d", rank)


def _conv_input(rank: int) -> ConvInput:
    def conv_input(
        input_size: Sequence[SupportsIndex], weight: ArrayLike, grad_output: ArrayLike, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, out: Array | None = None,
        accumulate: bool = False, fgrad_input: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False,
        stream: Any = None,
    ) -> Array:
        """The gradient of conv{rank}d with respect to its input; also the forward of a transposed convolution.

            <conv{rank}d(x, weight), grad_output> = <x, conv{rank}d_input(x.shape, weight, grad_output)>  for every x

        input_size: the whole shape of the input, (batch, channels, *size) or (channels, *size), since a stride forgets
        it. weight and grad_output: as conv{rank}d takes and returns them. Returns an array of shape input_size.

        TypeError or ValueError: see the package.

        >>> weight, grad_output = np.ones((4, 2, {threes})), np.ones((1, 4, {twos}))
        >>> grad_input = conv{rank}d_input((1, 2, {fives}), weight, grad_output, stride=2)
        >>> grad_input.shape, bool(grad_input.sum() == 8 * 3**{rank} * 2**{rank})
        ((1, 2, {fives}), True)
        """
        settings = _settings(None, fgrad_input, algorithm, allow_tf32, stream, accumulate)
        size = exact_shape("input_size", input_size)
        names = ("weight", "grad_output")
        dtype, (weight, grad_output) = operands(names, (weight, grad_output))
        check_settings(settings, dtype)
        geometry, _ = geometries.convolved(
            rank, size, weight.shape, None, grad_output.shape, stride, padding, dilation, groups,
            ("input_size", "weight", "bias"),
        )
        result = Result(size, (("grad_input", grad_output, weight),))
        named = tuple(zip(names, (weight, grad_output)))
        return _single(geometry, dtype, result, out, named, settings)  # type: ignore

    return _instance(conv_input, f"conv{rank}d_input", rank)


def _conv_weight(rank: int) -> ConvWeight:
    def conv_weight(
        input: ArrayLike | None, weight_size: Sequence[SupportsIndex], grad_output: ArrayLike, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, out: Array | None = None,
        accumulate: bool = False, finput: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False,
        stream: Any = None,
    ) -> Array:
        """The gradient of conv{rank}d with respect to its weight, summed over the batch.

            <conv{rank}d(input, w), grad_output> = <w, conv{rank}d_weight(input, w.shape, grad_output)>  for every w

        weight_size: the whole shape of the weight. input and grad_output: as conv{rank}d takes and returns them.
        Returns an array of shape weight_size; of a batch of 0 samples, zeros.

        With input None, finput is no scratch but the columns that `unfold` gave of the input with these settings:
        (batch, channels * taps, positions). Where a stride leaves the input's size open, a column cell counts as
        padding only if it is that for every size; the others meet a NaN or Inf in grad_output as what they hold, 0.

        TypeError or ValueError: see the package.

        >>> input, grad_output = np.ones((1, 2, {fives})), np.ones((1, 4, {twos}))
        >>> grad_weight = conv{rank}d_weight(input, (4, 2, {threes}), grad_output, stride=2)
        >>> grad_weight.shape, bool((grad_weight == 2**{rank}).all())
        ((4, 2, {threes}), True)
        """
        steps = (stride, padding, dilation, groups)
        settings = _settings(finput, None, algorithm, allow_tf32, stream, accumulate)
        size = exact_shape("weight_size", weight_size)
        if input is None and finput is not None:
            return _weight_of_columns(rank, size, grad_output, steps, out, settings)  # type: ignore[no-any-return]
        names = ("input", "grad_output")
        dtype, (input, grad_output) = operands(names, (input, grad_output))
        check_settings(settings, dtype)
        geometry, _ = geometries.convolved(
            rank, input.shape, size, None, grad_output.shape, *steps, ("input", "weight_size", "bias")
        )
        result = Result(size, (("grad_weight", input, grad_output),))
        named = tuple(zip(names, (input, grad_output)))
        return _single(geometry, dtype, result, out, named, settings)  # type: ignore[no-any-return]

    return _instance(conv_weight, f"conv{rank}d_weight", rank)


def _weight_of_columns(rank: int, size: Any, grad_output: Any, steps: Any, out: Any, settings: Settings) -> Any:
    names = ("finput", "grad_output")
    dtype, (columns, grad_output) = operands(names, (settings.finput, grad_output))
    check_settings(settings, dtype)
    geometry = geometries.columns_of(rank, columns.shape, size, grad_output.shape, *steps)
    result = Result(size, (("grad_weight", columns, grad_output),))
    named = tuple(zip(names, (columns, grad_output)))
    return _single(geometry, dtype, result, out, named, settings._replace(finput=None, algorithm="columns"))


def _conv_transpose(rank: int) -> ConvTranspose:
    def conv_transpose(
        input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Sizes = 1, padding: Padding = 0,
        output_padding: Sizes = 0, groups: SupportsIndex = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
        out: Array | None = None, accumulate: bool = False, fgrad_input: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array:
        """Transposed convolution over {rank} spatial axes: the gradient of conv{rank}d to its input, as a layer.

            <conv{rank}d(x, weight), input> = <x, conv_transpose{rank}d(input, weight)>  for every x of the output shape

        input: (batch, channels, *size); weight: (channels, out channels // groups, *kernel); bias: (out channels,).
        Returns (batch, out channels, *output size),
        output size = (size - 1)*stride - lo - hi + dilation*(kernel-1) + 1 + output_padding.

        output_padding, smaller than stride or dilation, grows the far end. output_size names the spatial size instead:
        with numbers as padding it implies output_padding; with 'same' or 'same_lower' it chooses the pads, as ONNX
        does, and is size * stride where it is not given. Mind that groups comes before dilation, as in torch.

        TypeError or ValueError: see the package.

        >>> input, weight = np.ones((1, 4, {twos})), np.ones((4, 2, {threes}))
        >>> conv_transpose{rank}d(input, weight, stride=2).shape
        (1, 2, {fives})
        """
        return _convolve(  # type: ignore[no-any-return]
            rank, True, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size, out,
            _settings(None, fgrad_input, algorithm, allow_tf32, stream, accumulate),
        )

    return _instance(conv_transpose, f"conv_transpose{rank}d", rank)


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv1d_input, conv2d_input, conv3d_input = map(_conv_input, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_conv_weight, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))


# --- any rank ---


def conv_bias(
    grad_output: ArrayLike, *, batched: bool = True, out: Array | None = None, accumulate: bool = False,
    stream: Any = None,
) -> Array:
    """The gradient of every convolution with respect to its bias: the sum over all axes but the channels'.

    grad_output: (batch, channels, ...), or (channels, ...) where batched is False. Returns (channels,).
    TypeError or ValueError: see the package.

    >>> conv_bias(np.ones((2, 3, 4, 4)))
    array([32., 32., 32.])
    """
    dtype, (grad_output,) = operands(("grad_output",), (grad_output,))
    check_stream(stream, dtype)
    check_flag("accumulate", accumulate)
    axis = geometries.channel_axis(grad_output.shape, batched)
    if out is not None:
        out = check_out("out", out, grad_output.shape[axis:axis + 1], dtype, (("grad_output", grad_output),))
    elif accumulate:
        raise no_out("out")
    return sum_channels(grad_output, axis, dtype, out, stream, accumulate)  # type: ignore[no-any-return]


def convolution(
    input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, stride: Sizes, padding: Padding, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: SupportsIndex, *, out: Array | None = None,
    accumulate: bool = False, finput: Array | None = None, fgrad_input: Array | None = None, algorithm: str = "auto",
    allow_tf32: bool = False, stream: Any = None,
) -> Array:
    """conv1d, conv2d or conv3d, or where transposed their conv_transpose, after the number of the weight's axes.

    output_padding must be 0 unless transposed. TypeError or ValueError: see the package.

    >>> convolution(np.ones((1, 2, 5)), np.ones((4, 2, 3)), None, 1, 0, 1, False, 0, 1).shape
    (1, 4, 3)
    """
    return _convolve(  # type: ignore[no-any-return]
        None, transposed, input, weight, bias, stride, padding, dilation, groups, output_padding, None, out,
        _settings(finput, fgrad_input, algorithm, allow_tf32, stream, accumulate),
    )


def _weight_term(transposed: bool, like_input: Any, like_output: Any) -> tuple[str, Array, Array]:
    """grad_weight of two arrays in the roles of a convolution's input and output; transposed, the roles are swapped."""
    return ("grad_weight", like_output, like_input) if transposed else ("grad_weight", like_input, like_output)


def _directional(map: str, input: Any, weight: Any, to_input: Any, to_weight: Any) -> tuple[tuple[str, Any, Any], ...]:
    """The terms of the derivative of map(input, weight) in the direction (to_input, to_weight), either of them None."""
    of_input = () if to_input is None else ((map, to_input, weight),)
    return of_input if to_weight is None else (*of_input, (map, input, to_weight))


def convolution_backward(
    grad_output: ArrayLike, input: ArrayLike, weight: ArrayLike, stride: Sizes, padding: Padding, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: SupportsIndex, output_mask: Sequence[bool], *,
    bias_sizes: Sequence[SupportsIndex] | None = None, out: Sequence[Array | None] | None = None,
    accumulate: bool = False, finput: Array | None = None, fgrad_input: Array | None = None, algorithm: str = "auto",
    allow_tf32: bool = False, stream: Any = None,
) -> Gradients:
    """(grad_input, grad_weight, grad_bias) of `convolution`; None, and not computed, where output_mask is False.

    The maps are those of conv2d_input, conv2d_weight and conv_bias; where transposed, grad_input is the convolution of
    grad_output, at the size of input. grad_output: as `convolution` returns it; with a transposed 'same' its size is
    taken as the output_size that was asked for. bias_sizes, if given, must be (out channels,).

    TypeError or ValueError: see the package.

    >>> input, weight, grad_output = np.ones((1, 2, 5)), np.ones((4, 2, 3)), np.ones((1, 4, 3))
    >>> grads = convolution_backward(grad_output, input, weight, 1, 0, 1, False, 0, 1, (True, False, True))
    >>> grads[0].shape, grads[1], grads[2]
    ((1, 2, 5), None, array([3., 3., 3., 3.]))
    """
    settings = _settings(finput, fgrad_input, algorithm, allow_tf32, stream, accumulate)
    mask = exact_mask(output_mask)
    names = ("grad_output", "input", "weight")
    dtype, (grad_output, input, weight) = operands(names, (grad_output, input, weight))
    check_settings(settings, dtype)
    rank = rank_of("weight", weight.shape)
    sizes = None if bias_sizes is None else exact_shape("bias_sizes", bias_sizes)
    geometry, output_shape = geometries.problem(
        transposed, rank, input.shape, weight.shape, sizes, grad_output.shape, stride, padding, dilation, groups,
        output_padding, None, ("input", "weight", "bias_sizes"),
    )
    channel_axis = len(output_shape) - rank - 1
    results = (
        Result(input.shape, (("forward" if transposed else "grad_input", grad_output, weight),)),
        Result(weight.shape, (_weight_term(transposed, input, grad_output),)),
        Result(output_shape[channel_axis:channel_axis + 1], ()),
    )
    named = tuple(zip(names, (grad_output, input, weight)))
    wanted = tuple(result if wants else None for result, wants in zip(results, mask))
    outs = check_outs(out, tuple(result and result.shape for result in wanted), dtype, named, settings)
    grad_input, grad_weight, _ = evaluate(geometry, dtype, (*wanted[:2], None), outs, named, settings)
    grad_bias = None
    if mask[2]:
        grad_bias = sum_channels(grad_output, channel_axis, dtype, outs[2], settings.stream, settings.accumulate)
    return grad_input, grad_weight, grad_bias


def convolution_double_backward(
    grad_grad_input: ArrayLike | None, grad_grad_weight: ArrayLike | None, grad_grad_bias: ArrayLike | None,
    grad_output: ArrayLike, weight: ArrayLike, input: ArrayLike, stride: Sizes, padding: Padding, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: SupportsIndex, output_mask: Sequence[bool], *,
    out: Sequence[Array | None] | None = None, accumulate: bool = False, finput: Array | None = None,
    fgrad_input: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
) -> Gradients:
    """The gradients of `convolution_backward` with respect to (grad_output, input, weight).

    They are those of <grad_grad_input, grad_input> + <grad_grad_weight, grad_weight> + <grad_grad_bias, grad_bias>:
    with the convolution linear in input, weight and bias,

        to grad_output   conv(grad_grad_input, weight) + conv(input, grad_grad_weight) + grad_grad_bias
        to input         conv_input(grad_grad_weight, grad_output)
        to weight        conv_weight(grad_grad_input, grad_output)

    Each grad_grad_* may be None. None, and not computed, where output_mask is False; zeros where nothing contributes.
    Mind the order: weight comes before input.

    TypeError or ValueError: see the package.

    >>> input, weight, grad_output = np.ones((1, 2, 5)), np.ones((4, 2, 3)), np.ones((1, 4, 3))
    >>> grads = convolution_double_backward(
    ...     input, None, None, grad_output, weight, input, 1, 0, 1, False, 0, 1, (True, True, False))
    >>> grads[0].sum(), grads[1].sum(), grads[2]
    (np.float64(72.0), np.float64(0.0), None)
    """
    settings = _settings(finput, fgrad_input, algorithm, allow_tf32, stream, accumulate)
    mask = exact_mask(output_mask)
    names = ("grad_output", "weight", "input", "grad_grad_input", "grad_grad_weight", "grad_grad_bias")
    dtype, arrays = operands(
        names, (grad_output, weight, input), (grad_grad_input, grad_grad_weight, grad_grad_bias)
    )
    check_settings(settings, dtype)
    grad_output, weight, input, to_input, to_weight, to_bias = arrays
    geometry, output_shape = geometries.problem(
        transposed, rank_of("weight", weight.shape), input.shape, weight.shape,
        None if to_bias is None else to_bias.shape, grad_output.shape, stride, padding, dilation, groups,
        output_padding, None, ("input", "weight", "grad_grad_bias"),
    )
    check_shape("grad_grad_input", None if to_input is None else to_input.shape, input.shape)
    check_shape("grad_grad_weight", None if to_weight is None else to_weight.shape, weight.shape)
    there, back = ("grad_input", "forward") if transposed else ("forward", "grad_input")
    results = (
        Result(output_shape, _directional(there, input, weight, to_input, to_weight), to_bias),
        Result(input.shape, () if to_weight is None else ((back, grad_output, to_weight),)),
        Result(weight.shape, () if to_input is None else (_weight_term(transposed, to_input, grad_output),)),
    )
    named = tuple(zip(names, arrays))
    wanted = tuple(result if wants else None for result, wants in zip(results, mask))
    outs = check_outs(out, tuple(result and result.shape for result in wanted), dtype, named, settings)
    return tuple(evaluate(geometry, dtype, wanted, outs, named, settings))  # type: ignore[return-value]


def conv_jvp(
    input: ArrayLike, weight: ArrayLike, input_tangent: ArrayLike | None, weight_tangent: ArrayLike | None,
    bias_tangent: ArrayLike | None = None, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1,
    groups: SupportsIndex = 1, *, out: Array | None = None, accumulate: bool = False, finput: Array | None = None,
    algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
) -> Array:
    """The derivative of a convolution in the direction of the tangents (forward mode).

        conv(input_tangent, weight) + conv(input, weight_tangent) + bias_tangent

    A tangent may be None, which is zero; the weight's axes decide the rank. Returns an array of the output's shape.

    TypeError or ValueError: see the package.

    >>> input, weight = np.ones((1, 2, 5)), np.ones((4, 2, 3))
    >>> float(conv_jvp(input, weight, input, 2 * weight)[0, 0, 0])
    18.0
    """
    settings = _settings(finput, None, algorithm, allow_tf32, stream, accumulate)
    names = ("input", "weight", "input_tangent", "weight_tangent", "bias_tangent")
    dtype, arrays = operands(names, (input, weight), (input_tangent, weight_tangent, bias_tangent))
    check_settings(settings, dtype)
    input, weight, to_input, to_weight, to_bias = arrays
    geometry, shape = geometries.convolved(
        rank_of("weight", weight.shape), input.shape, weight.shape, None if to_bias is None else to_bias.shape, None,
        stride, padding, dilation, groups, ("input", "weight", "bias_tangent"),
    )
    check_shape("input_tangent", None if to_input is None else to_input.shape, input.shape)
    check_shape("weight_tangent", None if to_weight is None else to_weight.shape, weight.shape)
    result = Result(shape, _directional("forward", input, weight, to_input, to_weight), to_bias)
    return _single(  # type: ignore[no-any-return]
        geometry, dtype, result, out, tuple(zip(names, arrays)), settings
    )
