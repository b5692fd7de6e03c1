"""Door: ONNX. Its convolutions as ops that run a model's nodes, and their attributes as arguments of the functions.

    ops                         Conv, ConvTranspose and ConvInteger for onnx.reference.ReferenceEvaluator
    conv_arguments              of conv1d, conv2d, conv3d and, with transposed=False and output_padding=0, convolution
    conv_transpose_arguments    of conv_transpose1d, conv_transpose2d, conv_transpose3d

Names, meanings and defaults of the attributes are those of the operators' documents; an attribute that a node does not
have is None, or left out. The onnx package is needed by ops alone:

>>> import numpy as np
>>> import pyconv.onnx
>>> image, weight = np.ones((1, 2, 7, 7)), np.ones((4, 2, 3, 3))
>>> attributes = {"auto_pad": "SAME_UPPER", "strides": [2, 2], "dilations": [1, 2]}
>>> pyconv.conv2d(image, weight, **pyconv.onnx.conv_arguments(weight.shape, **attributes)).shape
(1, 4, 4, 4)
"""

from collections.abc import Sequence
from functools import cache
from reprlib import repr as shown
from typing import Any, SupportsIndex

import numpy as np

from pyconv._any_rank import convolution
from pyconv._geometries import rank_of
from pyconv._integers import Shape, exact, exact_count, exact_shape, length_of

__all__ = ["conv_arguments", "conv_transpose_arguments", "ops"]

PADDINGS = {"NOTSET": None, "SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}
Attribute = Sequence[SupportsIndex] | None


def _ints(name: str, value: Any, count: int, least: int, default: int) -> Shape:
    """An attribute of so many integers."""
    if value is None:
        return (default,) * count
    rule = f"be a sequence of {count} ints >= {least}"
    if length_of(value) is None:
        raise TypeError(f"{name} must {rule}; got {shown(value)}")
    found: Shape = exact(name, rule, value, count)
    if min(found) < least:
        raise ValueError(f"{name} must {rule}; got {shown(value)}")
    return found


def _auto_pad(value: Any) -> str:
    """Its name; a node holds it as bytes."""
    name = value.decode("ascii", "replace") if isinstance(value, bytes) else value
    if not isinstance(name, str) or name not in PADDINGS:
        error = ValueError if isinstance(name, str) else TypeError
        raise error(f"auto_pad must be one of {', '.join(map(repr, PADDINGS))}; got {shown(value)}")
    return name


def _common(
    weight_shape: Any, auto_pad: Any, dilations: Any, group: Any, kernel_shape: Any, pads: Any, strides: Any
) -> tuple[int, dict[str, Any]]:
    """The rank, and what both operators have."""
    shape = exact_shape("weight_shape", weight_shape)
    rank = rank_of("weight_shape", shape)
    kernel = _ints("kernel_shape", kernel_shape, rank, 1, 1)
    if kernel_shape is not None and kernel != shape[2:]:
        raise ValueError(f"kernel_shape must be that of the weight, {shape[2:]}; got {shown(kernel_shape)}")
    padding, found = PADDINGS[_auto_pad(auto_pad)], _ints("pads", pads, 2 * rank, 0, 0)
    if padding is not None and any(found):
        raise ValueError(f"pads must be 0 where auto_pad is not 'NOTSET'; got {shown(pads)}")
    return rank, {
        "stride": _ints("strides", strides, rank, 1, 1),
        "padding": padding or tuple(zip(found[:rank], found[rank:])),
        "dilation": _ints("dilations", dilations, rank, 1, 1),
        "groups": exact_count("group", group),
    }


def conv_arguments(
    weight_shape: Sequence[SupportsIndex], *, auto_pad: str | bytes = "NOTSET", dilations: Attribute = None,
    group: SupportsIndex = 1, kernel_shape: Attribute = None, pads: Attribute = None, strides: Attribute = None,
) -> dict[str, Any]:
    """stride, padding, dilation and groups for the convolution that a Conv node stands for.

    pads: the leading pads of all axes, then the trailing ones. auto_pad 'SAME_UPPER' and 'SAME_LOWER' make the output's
    size ceil(input's / stride), an odd cell of padding last or first; they and 'VALID' go with no pads, or with zeros.
    kernel_shape must be that of the weight. TypeError or ValueError otherwise, in the attribute's name.

    >>> conv_arguments((4, 2, 3, 3), pads=[0, 1, 2, 3], strides=[2, 2], group=2)
    {'stride': (2, 2), 'padding': ((0, 2), (1, 3)), 'dilation': (1, 1), 'groups': 2}
    """
    return _common(weight_shape, auto_pad, dilations, group, kernel_shape, pads, strides)[1]


def conv_transpose_arguments(
    weight_shape: Sequence[SupportsIndex], *, auto_pad: str | bytes = "NOTSET", dilations: Attribute = None,
    group: SupportsIndex = 1, kernel_shape: Attribute = None, output_padding: Attribute = None,
    output_shape: Attribute = None, pads: Attribute = None, strides: Attribute = None,
) -> dict[str, Any]:
    """stride, padding, output_padding, groups, dilation and output_size for the node's conv_transpose.

    With output_shape, the spatial sizes, pads are ignored, as ONNX has it: of the padding that gives this shape an odd
    cell goes last with auto_pad 'SAME_UPPER' and first otherwise. Without, 'SAME_UPPER' and 'SAME_LOWER' make the
    output's size input's * stride. Where the kernel is shorter than the stride there is nothing to pad, and what no
    cell reaches lies last, as onnxruntime has it with output_shape; the operator's text would put half of it first.
    The other attributes: as in conv_arguments.

    >>> arguments = conv_transpose_arguments((4, 2, 3), output_shape=[9], strides=[2])
    >>> arguments["padding"], arguments["output_padding"], arguments["output_size"]
    ('same_lower', (0,), (9,))
    """
    ignored = output_shape is not None
    rank, arguments = _common(
        weight_shape, auto_pad, dilations, group, kernel_shape, None if ignored else pads, strides
    )
    arguments["output_padding"] = _ints("output_padding", output_padding, rank, 0, 0)
    arguments["output_size"] = _ints("output_shape", output_shape, rank, 1, 1) if ignored else None
    if ignored and arguments["padding"] != "same":
        arguments["padding"] = "same_lower"
    return arguments


def _convolution(transposed: bool, input: Any, weight: Any, bias: Any, attributes: dict[str, Any], **more: Any) -> Any:
    """What a node makes of its inputs."""
    given = {name: value for name, value in attributes.items() if value is not None}
    if transposed:
        return convolution(input, weight, bias, transposed=True, **conv_transpose_arguments(weight.shape, **given))
    arguments = conv_arguments(weight.shape, **given)
    return convolution(input, weight, bias, transposed=False, output_padding=0, **arguments, **more)


def _centred(name: str, values: Any, zero_point: Any, per_channel: int | None) -> Any:
    """8-bit integers less their zero point, one number or, where it may be so, one for each channel; as int32."""
    if values.dtype not in (np.int8, np.uint8):
        raise TypeError(f"{name} must have dtype int8 or uint8; got {values.dtype}")
    numbers = values.astype(np.int32)
    if zero_point is None:
        return numbers
    zeros = np.asarray(zero_point)
    if zeros.dtype != values.dtype:
        raise TypeError(f"{name}_zero_point must have the dtype of {name}, {values.dtype}; got {zeros.dtype}")
    if zeros.size == 1:
        return numbers - np.int32(zeros.item())
    if zeros.shape != (per_channel,):
        several = "" if per_channel is None else f" or shape ({per_channel},)"
        raise ValueError(f"{name}_zero_point must have one element{several}; got shape {zeros.shape}")
    return numbers - zeros.astype(np.int32).reshape(-1, *(1,) * (values.ndim - 1))


@cache
def ops() -> list[type]:
    """The operators Conv, ConvTranspose and ConvInteger, for ReferenceEvaluator(model, new_ops=ops()).

    They run the nodes of a model, of any number of spatial axes, as this library's `convolution`; the evaluator runs
    the others. Tensors have the types that the library's functions take. ConvInteger takes 8-bit integers, each
    operand and its zero point of one type, makes int32 of them less their zero points, so that padding holds the zero
    point, and sums in int32, modulo 2**32.
    ImportError without the onnx package; TypeError or ValueError in the words of the library where a node is wrong.

    >>> [op.__name__ for op in ops()]
    ['Conv', 'ConvTranspose', 'ConvInteger']
    """
    from onnx.reference.op_run import OpRun  # here, because the attributes alone do not need it

    class Node(OpRun):
        op_domain = ""

        def run(self, *inputs: Any, **context: Any) -> Any:
            """The evaluator's, which puts words of its own before a TypeError, without what was wrong."""
            try:
                return super().run(*inputs, **context)  # type: ignore[no-untyped-call]
            except TypeError as error:
                if isinstance(error.__cause__, TypeError):
                    raise error.__cause__ from None
                raise

    class Conv(Node):
        def _run(self, input: Any, weight: Any, bias: Any = None, **attributes: Any) -> tuple[Any]:
            return (_convolution(False, input, weight, bias, attributes),)

    class ConvTranspose(Node):
        def _run(self, input: Any, weight: Any, bias: Any = None, **attributes: Any) -> tuple[Any]:
            return (_convolution(True, input, weight, bias, attributes),)

    class ConvInteger(Node):
        def _run(
            self, input: Any, weight: Any, x_zero_point: Any = None, w_zero_point: Any = None, **attributes: Any
        ) -> tuple[Any]:
            input = _centred("x", input, x_zero_point, None)
            weight = _centred("w", weight, w_zero_point, weight.shape[0])
            return (_convolution(False, input, weight, None, attributes, dtype=np.int32),)

    return [Conv, ConvTranspose, ConvInteger]
