"""The convolutions and their gradients: ask the geometry, ask the backend, run.

The arguments that all functions share are explained once, in the package's docstring. conv1d, conv2d and conv3d are
instances, one for each rank, of one body; so are the other functions with a rank in their name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeVar

import numpy as np  # noqa: F401, the doctests' np
from numpy.typing import ArrayLike, DTypeLike

from pyconv import _geometries as geometries
from pyconv._arguments import check_flag, operands
from pyconv._backend import Array
from pyconv._evaluate import Result, evaluate_known, evaluate_one
from pyconv._geometries import rank_of
from pyconv._geometry import Geometry
from pyconv._integers import exact_shape
from pyconv._known import READ, look
from pyconv._known_on_gpu import known_or_read
from pyconv._settings import DEFAULTS, Settings, checked, settings_of, told
from pyconv._signatures import Conv, ConvInput, ConvTranspose, ConvWeight, Padding, Sizes

Function = TypeVar("Function", bound=Callable[..., Any])


def convolve(
    rank: int | None, transposed: Any, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any,
    groups: Any, output_padding: Any, output_size: Any, out: Any, settings: Settings,
) -> Any:
    """Every forward; a rank of None is read from the weight."""
    map = "grad_input" if transposed is True else "forward"
    numbers = (map, rank, stride, padding, dilation, groups, output_padding, output_size)
    written = (out, settings.fgrad_input if transposed is True else settings.finput)
    of_settings = told(settings) if type(input) in READ and type(transposed) is bool else None
    key, found = look(numbers, of_settings, (input, weight, bias), written)
    if found is not None:
        return found.run(input, weight, bias, *written)
    names = ("input", "weight", "bias")
    results, key, dtype, (input, weight, bias) = known_or_read(
        key, numbers if type(transposed) is bool else None, names, (input, weight, bias), 2, 1,
        () if out is None else (out,), settings)
    if results is not None:
        return results[0]
    named = (("input", input), ("weight", weight), ("bias", bias))
    if key is None and settings is DEFAULTS and type(transposed) is bool:
        key, result = evaluate_known(numbers, (input, weight, bias), named, out)
        if result is not None:
            return result
    settings = checked(settings, dtype)
    geometry, shape = geometries.problem(
        transposed, rank or rank_of("weight", weight.shape), input.shape, weight.shape,
        None if bias is None else bias.shape, None, stride, padding, dilation, groups, output_padding, output_size,
        names, settings.mode,
    )
    term = map, input, weight, False
    return evaluate_one(geometry, dtype, Result(shape, (term,), bias), out, named, settings, key)


# --- one body, three ranks ---


def instance(function: Function, public: str, rank: int, **words: str) -> Function:
    """The function under its public name, its docstring written for its rank with these words."""
    function.__name__ = function.__qualname__ = public
    sizes = {word: ", ".join([digit] * rank) for word, digit in (("twos", "2"), ("threes", "3"), ("fives", "5"))}
    axes = "axis" if rank == 1 else "axes"
    function.__doc__ = str(function.__doc__).format(rank=rank, axes=axes, **sizes, **words)
    return function


def _conv(rank: int) -> Conv:
    def conv(
        input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Sizes = 1, padding: Padding = 0,
        dilation: Sizes = 1, groups: SupportsIndex = 1, *, output_size: Sizes | None = None, out: Array | None = None,
        accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, finput: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array:
        """Convolution over {rank} spatial {axes}, as in neural networks: the weight is not turned round.

            output[n, o, a] = bias[o] + sum over i and k of weight[o, i, k] * input[n, i, stride*a + dilation*k - lo]

        where the input has no such cell, padding_mode says what is read, by default nothing; with groups, i runs over
        the channels of o's own group.

        input: (batch, channels, *size); weight: (out channels, channels // groups, *kernel); bias: (out channels,).
        Returns (batch, out channels, *output size),
        output size = (size + lo + hi - dilation*(kernel-1) - 1) // stride + 1.
        What the size leaves over behind the last stride is not read, unless output_size asks for one position more on
        that axis, as ceil_mode does in torch's pooling: the far end then grows by padded cells. Such a position must
        start in the input or its leading pad. The gradients tell from the size of grad_output.

        Other arguments, TypeError and ValueError: see help(pyconv).

        >>> input, weight = np.ones((1, 2, {fives})), np.ones((4, 2, {threes}))
        >>> conv{rank}d(input, weight, stride=2).shape
        (1, 4, {twos})
        """
        return convolve(  # type: ignore[no-any-return]
            rank, False, input, weight, bias, stride, padding, dilation, groups, 0, output_size, out,
            settings_of(
                finput, None, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
            ),
        )

    return instance(conv, f"conv{rank}d", rank)


def _conv_input(rank: int) -> ConvInput:
    def conv_input(
        input_size: Sequence[SupportsIndex], weight: ArrayLike, grad_output: ArrayLike, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, out: Array | None = None,
        accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, fgrad_input: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array:
        """The gradient of conv{rank}d with respect to its input; also the forward of a transposed convolution.

            <conv{rank}d(x, weight), grad_output> = <x, conv{rank}d_input(x.shape, weight, grad_output)>  for every x

        (padding_mode 'constant' adds what does not depend on x, whose gradient is that of 'zeros').
        input_size: the whole shape of the input, (batch, channels, *size) or (channels, *size), since a stride forgets
        it. weight and grad_output: as conv{rank}d takes and returns them. Returns an array of shape input_size.

        Other arguments, TypeError and ValueError: see help(pyconv).

        >>> weight, grad_output = np.ones((4, 2, {threes})), np.ones((1, 4, {twos}))
        >>> grad_input = conv{rank}d_input((1, 2, {fives}), weight, grad_output, stride=2)
        >>> grad_input.shape, bool(grad_input.sum() == 8 * 3**{rank} * 2**{rank})
        ((1, 2, {fives}), True)
        """
        settings = settings_of(
            None, fgrad_input, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
        )
        steps = (stride, padding, dilation, groups)
        size: Any = tuple(input_size) if isinstance(input_size, tuple) else input_size  # a tensor's is no plain tuple
        numbers = ("input_size", rank, size, *steps)
        arrays = grad_output, weight, None
        key, found = look(numbers, told(settings) if type(grad_output) in READ else None, arrays, (out, fgrad_input))
        if found is not None:
            return found.run(*arrays, out, fgrad_input)  # type: ignore[arg-type]
        size = exact_shape("input_size", size)
        numbers = ("input_size", rank, size, *steps)
        names = ("weight", "grad_output")
        results, key, native, (w, y) = known_or_read(
            key, numbers, names, (weight, grad_output), 2, 0,
            () if out is None else (out,), settings)
        if results is not None:
            return results[0]  # type: ignore[no-any-return]
        named = tuple(zip(names, (w, y)))
        if key is None and settings is DEFAULTS:
            key, known = evaluate_known(numbers, (y, w, None), named, out)
            if known is not None:
                return known  # type: ignore[no-any-return]
        settings = checked(settings, native)
        geometry, _ = geometries.convolved(
            rank, size, w.shape, None, y.shape, *steps, ("input_size", "weight", "bias"), settings.mode
        )
        result = Result(size, (("grad_input", y, w, False),))
        return evaluate_one(geometry, native, result, out, named, settings, key)  # type: ignore[no-any-return]

    return instance(conv_input, f"conv{rank}d_input", rank)


def _conv_weight(rank: int) -> ConvWeight:
    def conv_weight(
        input: ArrayLike | None, weight_size: Sequence[SupportsIndex], grad_output: ArrayLike, stride: Sizes = 1,
        padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, per_sample: bool = False,
        out: Array | None = None, accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, finput: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array:
        """The gradient of conv{rank}d with respect to its weight, summed over the batch unless per_sample.

            <conv{rank}d(input, w), grad_output> = <w, conv{rank}d_weight(input, w.shape, grad_output)>  for every w

        weight_size: the whole shape of the weight. input and grad_output: as conv{rank}d takes and returns them.
        Returns an array of shape weight_size; of a batch of 0 samples, zeros. With per_sample=True the samples' own
        gradients, (batch, *weight_size), or of an input without batch axis weight_size.

        With input None, finput is no scratch but the columns that `unfold` gave of the input with these settings:
        (batch, channels * taps, positions). Where a stride leaves the input's size open, a column cell counts as
        padding only if it is that for every size; the others meet a NaN or Inf in grad_output as what they hold, 0.
        In any padding_mode but 'zeros', which has to be named again, the columns hold what the padding does.

        Other arguments, TypeError and ValueError: see help(pyconv).

        >>> input, grad_output = np.ones((1, 2, {fives})), np.ones((1, 4, {twos}))
        >>> grad_weight = conv{rank}d_weight(input, (4, 2, {threes}), grad_output, stride=2)
        >>> grad_weight.shape, bool((grad_weight == 2**{rank}).all())
        ((4, 2, {threes}), True)
        """
        steps = (stride, padding, dilation, groups)
        check_flag("per_sample", per_sample)
        settings = settings_of(
            finput, None, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
        )
        size: Any = tuple(weight_size) if isinstance(weight_size, tuple) else weight_size
        name = "weight_size of each sample" if per_sample else "weight_size"
        numbers = (name, rank, size, *steps)
        arrays = input, grad_output, None
        key, found = look(numbers, told(settings) if type(input) in READ else None, arrays, (out, finput))
        if found is not None:
            return found.run(*arrays, out, finput)  # type: ignore[arg-type]
        size = exact_shape("weight_size", size)
        if input is None and finput is not None:
            return _weight_of_columns(  # type: ignore[no-any-return]
                rank, size, grad_output, steps, per_sample, out, settings
            )
        names = ("input", "grad_output")
        numbers = (name, rank, size, *steps)
        results, key, native, (x, y) = known_or_read(
            key, numbers, names, (input, grad_output), 2, 0,
            () if out is None else (out,), settings)
        if results is not None:
            return results[0]  # type: ignore[no-any-return]
        named = tuple(zip(names, (x, y)))
        if key is None and settings is DEFAULTS and not per_sample:
            key, known = evaluate_known(numbers, (x, y, None), named, out)
            if known is not None:
                return known  # type: ignore[no-any-return]
        settings = checked(settings, native)
        geometry, _ = geometries.convolved(
            rank, x.shape, size, None, y.shape, *steps, ("input", "weight_size", "bias"), settings.mode
        )
        if per_sample:
            geometry, size = apart(geometry, size, y)
        result = Result(size, (("grad_weight", x, y, False),))
        return evaluate_one(geometry, native, result, out, named, settings, key)  # type: ignore[no-any-return]

    return instance(conv_weight, f"conv{rank}d_weight", rank)


def apart(geometry: Geometry, size: Any, grad_output: Any) -> tuple[Geometry, Any]:
    """The geometry of a grad_weight that is not summed over the batch, and its shape."""
    return geometry._replace(per_sample=True), (*grad_output.shape[:-geometry.rank - 1], *size)


def _weight_of_columns(
    rank: int, size: Any, grad_output: Any, steps: Any, per_sample: Any, out: Any, settings: Settings
) -> Any:
    names = ("finput", "grad_output")
    dtype, (columns, grad_output) = operands(names, (settings.finput, grad_output), stream=settings.stream)
    settings = checked(settings, dtype)
    geometry = geometries.columns_of(rank, columns.shape, size, grad_output.shape, *(*steps, settings.mode))
    if per_sample:
        geometry, size = apart(geometry, size, grad_output)
    result = Result(size, (("grad_weight", columns, grad_output, False),))
    named = tuple(zip(names, (columns, grad_output)))
    return evaluate_one(geometry, dtype, result, out, named, settings._replace(finput=None, algorithm="columns"))


def _conv_transpose(rank: int) -> ConvTranspose:
    def conv_transpose(
        input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None = None, stride: Sizes = 1, padding: Padding = 0,
        output_padding: Sizes = 0, groups: SupportsIndex = 1, dilation: Sizes = 1, *, output_size: Sizes | None = None,
        out: Array | None = None, accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
        dtype: DTypeLike | None = None, fgrad_input: Array | None = None, algorithm: str = "auto",
        allow_tf32: bool = False, stream: Any = None,
    ) -> Array:
        """Transposed convolution over {rank} spatial {axes}: the gradient of conv{rank}d to its input, as a layer.

            <conv{rank}d(x, weight), input> = <x, conv_transpose{rank}d(input, weight)>  for every x of the output shape

        input: (batch, channels, *size); weight: (channels, out channels // groups, *kernel); bias: (out channels,).
        Returns (batch, out channels, *output size),
        output size = (size - 1)*stride - lo - hi + dilation*(kernel-1) + 1 + output_padding.

        output_padding, smaller than stride or dilation, grows the far end. output_size names the spatial size instead:
        with numbers as padding it implies output_padding; with 'same' or 'same_lower' it chooses the pads, as ONNX
        does, and is size * stride where it is not given. Mind that groups comes before dilation, as in torch.

        Other arguments, TypeError and ValueError: see help(pyconv).

        >>> input, weight = np.ones((1, 4, {twos})), np.ones((4, 2, {threes}))
        >>> conv_transpose{rank}d(input, weight, stride=2).shape
        (1, 2, {fives})
        """
        return convolve(  # type: ignore[no-any-return]
            rank, True, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size, out,
            settings_of(
                None, fgrad_input, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
            ),
        )

    return instance(conv_transpose, f"conv_transpose{rank}d", rank)


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv1d_input, conv2d_input, conv3d_input = map(_conv_input, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_conv_weight, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))


def conv_bias(
    grad_output: ArrayLike, *, batched: bool = True, out: Array | None = None, accumulate: bool = False,
    dtype: DTypeLike | None = None, stream: Any = None,
) -> Array:
    """The gradient of every convolution with respect to its bias: the sum over all axes but the channels'.

    grad_output: (batch, channels, ...), or (channels, ...) where batched is False, which no shape tells: without it
    axis 1 is summed to. Returns (channels,).
    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> conv_bias(np.ones((2, 3, 4, 4)))
    array([32., 32., 32.])
    """
    settings = settings_of(stream=stream, accumulate=accumulate, dtype=dtype)
    numbers = ("conv_bias", int(batched)) if type(batched) is bool else None
    results, key, native, (y,) = known_or_read(
        None, numbers, ("grad_output",), (grad_output,), 1, 0,
        () if out is None else (out,), settings)
    if results is not None:
        return results[0]  # type: ignore[no-any-return]
    settings = checked(settings, native)
    axis = geometries.channel_axis(y.shape, batched)
    result = Result(y.shape[axis:axis + 1], channel_axis=axis)
    return evaluate_one(None, native, result, out, (("grad_output", y),), settings, key)  # type: ignore[no-any-return]
