"""The functions for any rank, transposed or not, and the derivatives of higher order: the weight tells the rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pyconv import _geometries as geometries
from pyconv._arguments import check_flag, exact_mask, operands
from pyconv._backend import Array, gpu_room
from pyconv._evaluate import Result, Term, check_outs, evaluate, evaluate_one
from pyconv._geometries import check_shape, rank_of
from pyconv._integers import exact_shape
from pyconv._known_on_gpu import known_or_read
from pyconv._ops import apart, convolve
from pyconv._outer import LAST
from pyconv._settings import Settings, checked, settings_of
from pyconv._signatures import Padding, Sizes
from pyconv._unfolding import of_columns

Gradients = tuple[Array | None, Array | None, Array | None]


def convolution(
    input: ArrayLike, weight: ArrayLike, bias: ArrayLike | None, stride: Sizes, padding: Padding, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: SupportsIndex, *, output_size: Sizes | None = None,
    out: Array | None = None, accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0,
    dtype: DTypeLike | None = None, finput: Array | None = None, fgrad_input: Array | None = None,
    algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
) -> Array:
    """conv1d, conv2d or conv3d, or where transposed their conv_transpose, after the number of the weight's axes.

    More than three spatial axes are served here and in the functions below, one volume of three after the other.
    output_padding must be 0 unless transposed; output_size is that of these functions.
    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> convolution(np.ones((1, 2, 5)), np.ones((4, 2, 3)), None, 1, 0, 1, False, 0, 1).shape
    (1, 4, 3)
    """
    return convolve(  # type: ignore[no-any-return]
        None, transposed, input, weight, bias, stride, padding, dilation, groups, output_padding, output_size, out,
        settings_of(
            finput, fgrad_input, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
        ),
    )


def _weight_term(transposed: bool, like_input: Any, like_output: Any, is_tangent: bool = False) -> Term:
    """grad_weight of two arrays in the roles of a convolution's input and output; transposed, the roles are swapped."""
    x, y = (like_output, like_input) if transposed else (like_input, like_output)
    return "grad_weight", x, y, is_tangent


def _directional(map: str, input: Any, weight: Any, to_input: Any, to_weight: Any) -> tuple[Term, ...]:
    """The terms of the derivative of map(input, weight) in the direction (to_input, to_weight), either of them None."""
    of_input = () if to_input is None else ((map, to_input, weight, True),)
    return of_input if to_weight is None else (*of_input, (map, input, to_weight, False))


def convolution_backward(
    grad_output: ArrayLike, input: ArrayLike | None, weight: ArrayLike, stride: Sizes, padding: Padding,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: SupportsIndex, output_mask: Sequence[bool], *,
    bias_sizes: Sequence[SupportsIndex] | None = None, per_sample: bool = False,
    out: Sequence[Array | None] | None = None, accumulate: bool = False, padding_mode: str = "zeros",
    padding_value: complex = 0, dtype: DTypeLike | None = None, finput: Array | None = None,
    fgrad_input: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
) -> Gradients:
    """(grad_input, grad_weight, grad_bias) of `convolution`; None, and not computed, where output_mask is False.

    The maps are those of conv2d_input, conv2d_weight and conv_bias; where transposed, grad_input is the convolution of
    grad_output, at the size of input. grad_output: as `convolution` returns it; with a transposed 'same' its size is
    taken as the output_size that was asked for. bias_sizes, if given, must be (out channels,). With per_sample=True the
    last two are the samples' own, (batch, *weight shape) and (batch, out channels), or of an input without batch axis
    those of its only sample.

    With input None, finput is no scratch but the columns that `unfold` gave of the input, as for conv2d_weight, for any
    number of axes and where not transposed; grad_input is then not to be had. Beyond three axes all padding counts as
    data, so that a NaN or Inf in grad_output meets what it holds; on a GPU the cells of grad_output, and of a weight's
    gradient to write to, must then be evenly apart in memory.

    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> input, weight, grad_output = np.ones((1, 2, 5)), np.ones((4, 2, 3)), np.ones((1, 4, 3))
    >>> settings = (1, 0, 1, False, 0, 1)
    >>> grads = convolution_backward(grad_output, input, weight, *settings, (True, False, True))
    >>> grads[0].shape, grads[1], grads[2]
    ((1, 2, 5), None, array([3., 3., 3., 3.]))
    >>> grads = convolution_backward(grad_output, input, weight, *settings, (False, True, True), per_sample=True)
    >>> grads[0], grads[1].shape, grads[2]
    (None, (1, 4, 2, 3), array([[3., 3., 3., 3.]]))
    """
    settings = settings_of(
        finput, fgrad_input, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
    )
    mask = exact_mask(output_mask)
    check_flag("per_sample", per_sample)
    if input is None and finput is not None:
        return _backward_of_columns(
            grad_output, weight, (stride, padding, dilation, groups), transposed, output_padding, mask, bias_sizes,
            per_sample, out, settings)
    names, back = ("grad_output", "input", "weight"), "forward" if transposed is True else "grad_input"
    targets = tuple(out) if isinstance(out, tuple | list) else ()
    numbers = ("convolution_backward", back, *map(int, mask), int(per_sample), bias_sizes, stride, padding, dilation,
               output_padding, groups)
    is_plain = type(transposed) is bool and (out is None or len(targets) == 3)
    found, key, native, (y, x, w) = known_or_read(
        None, numbers if is_plain else None, names, (grad_output, input, weight), 3, 0, targets, settings)
    if found is not None:
        return tuple(found)
    settings = checked(settings, native)
    rank = rank_of("weight", w.shape)
    sizes = None if bias_sizes is None else exact_shape("bias_sizes", bias_sizes)
    geometry, output_shape = geometries.problem(
        transposed, rank, x.shape, w.shape, sizes, y.shape, stride, padding, dilation, groups,
        output_padding, None, ("input", "weight", "bias_sizes"), settings.mode,
    )
    channel_axis = len(output_shape) - rank - 1
    weight_shape, bias_shape = w.shape, output_shape[channel_axis:channel_axis + 1]
    if per_sample:
        geometry, weight_shape = apart(geometry, w.shape, y)
        bias_shape = output_shape[:channel_axis + 1]
    results = (
        Result(x.shape, ((back, y, w, False),)),
        Result(weight_shape, (_weight_term(transposed, x, y),)),
        Result(bias_shape, channel_axis=channel_axis),
    )
    named = tuple(zip(names, (y, x, w)))
    wanted = tuple(result if wants else None for result, wants in zip(results, mask))
    outs = check_outs(out, tuple(result and result.shape for result in wanted), native, named, settings)
    return tuple(evaluate(geometry, native, wanted, outs, named, settings, key))


def _backward_of_columns(
    grad_output: Any, weight: Any, steps: tuple[Any, ...], transposed: Any, output_padding: Any, mask: tuple[bool, ...],
    bias_sizes: Any, per_sample: Any, out: Any, settings: Settings,
) -> Gradients:
    """convolution_backward where finput holds the columns of an input that is None."""
    if transposed is True:
        raise TypeError("input must be an array where transposed is True; got None")
    if mask[0]:
        raise ValueError("output_mask[0] must be False where input is None; got True")
    names = ("grad_output", "finput", "weight")
    native, (y, columns, w) = operands(names, (grad_output, settings.finput, weight), stream=settings.stream)
    settings = checked(settings, native)
    rank = rank_of("weight", w.shape)
    geometries.check_plain(transposed, output_padding, rank)
    geometry = geometries.columns_of(rank, columns.shape, w.shape, y.shape, *(*steps, settings.mode, "weight"))
    check_shape("bias_sizes", None if bias_sizes is None else exact_shape("bias_sizes", bias_sizes), w.shape[:1])
    axis = len(y.shape) - rank - 1
    weight_shape, bias_shape = w.shape, y.shape[axis:axis + 1]
    if per_sample:
        geometry, weight_shape = apart(geometry, w.shape, y)
        bias_shape = y.shape[:axis + 1]
    on_gpu = not isinstance(native, np.dtype)
    if rank > LAST and not on_gpu:  # products of columns are those of a convolution of 1 x 1, wherever they were read
        geometry = of_columns(geometry)._replace(batch=geometry.batch, per_sample=geometry.per_sample)
    wanted = (
        None,
        Result(weight_shape, (_weight_term(False, columns, y),)) if mask[1] else None,
        Result(bias_shape, channel_axis=axis) if mask[2] else None,
    )
    named = tuple(zip(names, (y, columns, w)))
    outs = check_outs(out, tuple(result and result.shape for result in wanted), native, named, settings)
    if rank > LAST and on_gpu and mask[1]:
        for name, array in (("grad_output", y), ("out[1]", outs[1])):
            if array is not None:
                gpu_room("arguments").check_along_one_axis(name, array, rank)
    return tuple(evaluate(geometry, native, wanted, outs, named, settings._replace(finput=None, algorithm="columns")))


def convolution_double_backward(
    grad_grad_input: ArrayLike | None, grad_grad_weight: ArrayLike | None, grad_grad_bias: ArrayLike | None,
    grad_output: ArrayLike, weight: ArrayLike, input: ArrayLike, stride: Sizes, padding: Padding, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: SupportsIndex, output_mask: Sequence[bool], *,
    out: Sequence[Array | None] | None = None, accumulate: bool = False, padding_mode: str = "zeros",
    padding_value: complex = 0, dtype: DTypeLike | None = None, finput: Array | None = None,
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

    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> input, weight, grad_output = np.ones((1, 2, 5)), np.ones((4, 2, 3)), np.ones((1, 4, 3))
    >>> grads = convolution_double_backward(
    ...     input, None, None, grad_output, weight, input, 1, 0, 1, False, 0, 1, (True, True, False))
    >>> grads[0].sum(), grads[1].sum(), grads[2]
    (np.float64(72.0), np.float64(0.0), None)
    """
    settings = settings_of(
        finput, fgrad_input, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
    )
    mask = exact_mask(output_mask)
    names = ("grad_output", "weight", "input", "grad_grad_input", "grad_grad_weight", "grad_grad_bias")
    there, back = ("grad_input", "forward") if transposed is True else ("forward", "grad_input")
    targets = tuple(out) if isinstance(out, tuple | list) else ()
    numbers = ("convolution_double_backward", back, *map(int, mask), stride, padding, dilation, output_padding, groups)
    is_plain = type(transposed) is bool and (out is None or len(targets) == 3)
    found, key, native, arrays = known_or_read(
        None, numbers if is_plain else None, names,
        (grad_output, weight, input, grad_grad_input, grad_grad_weight, grad_grad_bias), 3, 1, targets, settings)
    if found is not None:
        return tuple(found)
    settings = checked(settings, native)
    y, w, x, to_input, to_weight, to_bias = arrays
    geometry, output_shape = geometries.problem(
        transposed, rank_of("weight", w.shape), x.shape, w.shape,
        None if to_bias is None else to_bias.shape, y.shape, stride, padding, dilation, groups,
        output_padding, None, ("input", "weight", "grad_grad_bias"), settings.mode,
    )
    check_shape("grad_grad_input", None if to_input is None else to_input.shape, x.shape)
    check_shape("grad_grad_weight", None if to_weight is None else to_weight.shape, w.shape)
    results = (
        Result(output_shape, _directional(there, x, w, to_input, to_weight), to_bias),
        Result(x.shape, () if to_weight is None else ((back, y, to_weight, False),)),
        Result(w.shape, () if to_input is None else (_weight_term(transposed, to_input, y, True),)),
    )
    named = tuple(zip(names, arrays))
    wanted = tuple(result if wants else None for result, wants in zip(results, mask))
    outs = check_outs(out, tuple(result and result.shape for result in wanted), native, named, settings)
    return tuple(evaluate(geometry, native, wanted, outs, named, settings, key))


def conv_jvp(
    input: ArrayLike, weight: ArrayLike, input_tangent: ArrayLike | None, weight_tangent: ArrayLike | None,
    bias_tangent: ArrayLike | None = None, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1,
    groups: SupportsIndex = 1, *, output_size: Sizes | None = None, out: Array | None = None,
    accumulate: bool = False, padding_mode: str = "zeros", padding_value: complex = 0, dtype: DTypeLike | None = None,
    finput: Array | None = None, algorithm: str = "auto", allow_tf32: bool = False, stream: Any = None,
) -> Array:
    """The derivative of a convolution in the direction of the tangents (forward mode).

        conv(input_tangent, weight) + conv(input, weight_tangent) + bias_tangent

    A tangent may be None, which is zero; the weight's axes decide the rank. Returns an array of the output's shape.

    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> input, weight = np.ones((1, 2, 5)), np.ones((4, 2, 3))
    >>> float(conv_jvp(input, weight, input, 2 * weight)[0, 0, 0])
    18.0
    """
    settings = settings_of(
        finput, None, algorithm, allow_tf32, stream, accumulate, padding_mode, padding_value, dtype
    )
    names = ("input", "weight", "input_tangent", "weight_tangent", "bias_tangent")
    numbers = ("conv_jvp", stride, padding, dilation, groups, output_size)
    found, key, native, arrays = known_or_read(
        None, numbers, names, (input, weight, input_tangent, weight_tangent, bias_tangent), 2, 1,
        () if out is None else (out,), settings)
    if found is not None:
        return found[0]  # type: ignore[no-any-return]
    settings = checked(settings, native)
    x, w, to_input, to_weight, to_bias = arrays
    geometry, shape = geometries.convolved(
        rank_of("weight", w.shape), x.shape, w.shape, None if to_bias is None else to_bias.shape, None,
        stride, padding, dilation, groups, ("input", "weight", "bias_tangent"),
        settings.mode, output_size,
    )
    check_shape("input_tangent", None if to_input is None else to_input.shape, x.shape)
    check_shape("weight_tangent", None if to_weight is None else to_weight.shape, w.shape)
    result = Result(shape, _directional("forward", x, w, to_input, to_weight), to_bias)
    return evaluate_one(  # type: ignore[no-any-return]
        geometry, native, result, out, tuple(zip(names, arrays)), settings, key
    )
