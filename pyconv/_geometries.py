"""All shape arithmetic and all shape errors: every number a call needs, checked once, in Python integers.

With Ke = dilation * (kernel - 1) + 1 on each axis,

    convolution              output = (input + lo + hi - Ke) // stride + 1, or with output_size one more
    transposed convolution   output = (input - 1) * stride - lo - hi + Ke + output_padding

(V. Dumoulin, F. Visin, A guide to convolution arithmetic for deep learning, 2016). 'same' pads as ONNX's SAME_UPPER and
'same_lower' as its SAME_LOWER. A 1-D or 2-D problem is a 3-D one whose leading axes have size 1, one of more axes keeps
them (see _outer); the transposed convolution is the map grad_input on the geometry that it undoes.

There is one public function per role. Each makes its arguments exact (see _integers) and then asks a bounded cache.
"""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from reprlib import repr as shown
from typing import Any, TypeVar

from pyconv._geometry import Geometry, Triple
from pyconv._integers import Ints, Shape, exact, exact_ints, length_of
from pyconv._padding import REPEATING, SAME, ZEROS, Mode, Pads, all_pads, numeric_pads, repeated_part, split
from pyconv._spread import Given, Spread, exact_given, on_axes, sizes_of, spread_of

Known = tuple[Any, ...]  # a shape in which a size that is not known is None
Cached = TypeVar("Cached", bound=Callable[..., object])

LARGEST = 2**63 - 1
NAMES = ("input", "weight", "bias")


# --- one axis after the other ---


def _spans(kernel: Shape, dilation: Shape) -> Shape:
    return tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation))


def _output_sizes(
    input_name: str, size: Shape, kernel_name: str, kernel: Shape, spread: Spread, asked: bool = False
) -> tuple[Shape, Shape, Pads]:
    """(output size, the largest that may be asked for, pads) of a convolution.

    Where a stride leaves cells over behind the last position, one more may be asked for, if it starts before the
    trailing pad (ceil_mode in torch's pooling).
    """
    spans = _spans(kernel, spread.dilation)
    pads = all_pads(spread.padding, size, spans, spread.stride)
    padded = tuple(n + lo + hi for n, (lo, hi) in zip(size, pads))
    output = tuple((n - span) // s + 1 for n, span, s in zip(padded, spans, spread.stride))
    most = output if not asked else tuple(
        y + ((n - span) % s > 0 and y * s < x + lo)
        for y, n, span, s, x, (lo, _) in zip(output, padded, spans, spread.stride, size, pads)
    )
    if any(y < 1 for y in most):
        raise ValueError(
            f"{kernel_name} must span at most the padded {input_name}, {padded}; "
            f"got a span of {spans}, kernel {kernel} with dilation {spread.dilation}"
        )
    return output, most, pads


def _is_between(least: Shape, sizes: Shape, most: Shape) -> bool:
    """Whether every size is in its range, and some position."""
    return len(sizes) == len(least) and all(max(a, 1) <= b <= c for a, b, c in zip(least, sizes, most))


def _lifted(values: Shape, lead: int) -> Triple:
    return ((lead,) * (3 - len(values)) + values)  # type: ignore[return-value]


def _geometry(
    name: str, batch: int, channels: tuple[int, int], input_size: Shape, kernel: Shape, output_size: Shape,
    spread: Spread, pads: Pads,
) -> Geometry:
    """The geometry, once every array is countable and every cell has a 64-bit address. `name` is that of x."""
    in_channels, out_channels = channels
    shapes = {
        name: (batch, in_channels, *input_size),
        "weight": (out_channels, in_channels // spread.groups, *kernel),
        "input" if name == "output" else "output": (batch, out_channels, *output_size),
    }
    for role, shape in shapes.items():
        if prod(size or 1 for size in shape) > LARGEST:
            raise ValueError(f"{role} must have at most 2**63 - 1 elements; got shape {shape}")
    stride = tuple(s if y > 1 else 1 for s, y in zip(spread.stride, output_size))
    dilation = tuple(d if k > 1 else 1 for d, k in zip(spread.dilation, kernel))
    low = tuple(lo for lo, _ in pads)
    behind_axis = max(1, *channels) * prod(n or 1 for n in input_size)  # elements that a step along an axis goes over
    for n, k, y, s, d, lo in zip(input_size, kernel, output_size, stride, dilation, low):
        behind_axis //= n or 1
        reach = max(y - 1, 0) * s + (k - 1) * d
        places = max(reach, abs(lo), abs(reach - lo)) + 3 * n + 1  # kernels look as far beyond them
        if places * behind_axis > LARGEST:
            raise ValueError(f"padding must keep every axis within 2**63 - 1 cells; got {spread.padding!r}")
    mode = spread.mode
    before = behind = (0,) * len(kernel)
    if mode is not ZEROS:
        reach = zip(output_size, stride, kernel, dilation, low)
        last = tuple((y - 1) * s + (k - 1) * d - lo for y, s, k, d, lo in reach)
        if all(lo <= 0 and end < n for lo, end, n in zip(low, last, input_size)):
            mode = ZEROS
    if mode.name == "constant":
        input_size = tuple(n or 1 for n in input_size)  # a cell of what is around it
    if mode.name in REPEATING:
        before, lengths, behind = zip(*(repeated_part(mode, *axis) for axis in zip(input_size, pads, last)))
        if min(lengths) < 1:
            raise ValueError(
                f"{name} must keep a cell on every axis whose padding {mode.name!r} fills; got size {input_size}")
        low, input_size = tuple(map(sum, zip(low, before))), lengths
    return Geometry(
        len(kernel), batch, spread.groups, in_channels, out_channels, _lifted(input_size, 1), _lifted(kernel, 1),
        _lifted(output_size, 1), _lifted(stride, 1), _lifted(dilation, 1), _lifted(low, 0), *mode,
        _lifted(before, 0), _lifted(behind, 0))


# --- axes and channels ---


def rank_of(name: str, shape: Shape) -> int:
    """The number of spatial axes of a weight of this shape."""
    if len(shape) < 3:
        raise ValueError(f"{name} must have at least 3 axes (channels, channels per group, spatial); got shape {shape}")
    return len(shape) - 2


def _batch_of(name: str, shape: Shape, rank: int) -> Shape:
    """(batch,), or () where the array has no batch axis."""
    if len(shape) not in (rank + 1, rank + 2):
        raise ValueError(
            f"{name} must have {rank + 2} axes (batch, channels, {rank} spatial) or {rank + 1} without batch; "
            f"got shape {shape}"
        )
    return shape[: len(shape) - rank - 1]


def channel_axis(shape: Shape, batched: Any) -> int:
    """The axis of a convolution's output that counts channels."""
    if not isinstance(batched, bool):
        raise TypeError(f"batched must be True or False; got {shown(batched)}")
    if len(shape) < 1 + batched:
        axes = "2 axes (batch, channels)" if batched else "1 axis (channels)"
        raise ValueError(f"grad_output must have at least {axes}; got shape {shape}")
    return int(batched)


def _check_weight(name: str, shape: Shape, rank: int, groups: int) -> None:
    if len(shape) != rank + 2:
        raise ValueError(
            f"{name} must have {rank + 2} axes (channels, channels per group, {rank} spatial); got shape {shape}"
        )
    if 0 in shape[2:]:
        raise ValueError(f"{name} must have at least one tap on every spatial axis; got shape {shape}")
    if shape[0] is not None and shape[0] % groups:
        raise ValueError(f"groups must divide axis 0 of {name}, {shape[0]}; got {groups}")


def _check_channels(
    name: str, shape: Shape, rank: int, weight_name: str, weight_shape: Known, groups: int | None = None
) -> None:
    """As many as axis 0 of the weight has, or, given groups, as they have of its axis 1 each."""
    channels = weight_shape[0] if groups is None else weight_shape[1] * groups
    if shape[-rank - 1] != channels:
        source = f"axis 0 of {weight_name}" if groups is None else (
            f"axis 1 of {weight_name}, {weight_shape[1]}, times groups, {groups}")
        raise ValueError(f"{name} must have {channels} channels, {source}; got shape {shape}")


def check_shape(name: str, shape: Shape | None, expected: Shape) -> None:
    """ValueError unless the shape, where there is one, is the expected one."""
    if shape is not None and shape != expected:
        raise ValueError(f"{name} must have shape {expected}; got shape {shape}")


def check_known(
    rank: int, groups: int, weight: tuple[str, Known], operands: dict[str, tuple[str, Known]],
    bias_shape: Known | None = None,
) -> None:
    """ValueError where the numbers of axes or channels, as far as they are known, are no call's.

    operands: by their role, x or y, names and shapes; a bias is added to a result of the other.
    """
    weight_name, weight_shape = weight
    _check_weight(weight_name, weight_shape, rank, groups)
    out, per_group = weight_shape[:2]
    channels = {"x": per_group and per_group * groups, "y": out}
    for role, (name, shape) in operands.items():
        _batch_of(name, shape, rank)
        if None not in (channels[role], shape[-rank - 1]):
            _check_channels(name, shape, rank, weight_name, weight_shape, groups if role == "x" else None)
    if bias_shape is not None:
        expected = channels["x" if "y" in operands else "y"]
        if len(bias_shape) != 1 or None not in (expected, *bias_shape):
            check_shape("bias", bias_shape, (expected,))


# --- the roles ---

_cached: Callable[[Cached], Cached] = lru_cache(maxsize=1024)  # type: ignore[assignment]


def convolved(
    rank: int, input_shape: Shape, weight_shape: Shape, bias_shape: Shape | None, grad_output_shape: Shape | None,
    stride: Any, padding: Any, dilation: Any, groups: Any,
    names: tuple[str, str, str] = NAMES, mode: Mode = ZEROS, output_size: Any = None,
) -> tuple[Geometry, Shape]:
    """A convolution, and the shape of its output; the shapes of bias and grad_output are checked where not None.

    The size of grad_output, where given, stands for output_size.
    """
    given = exact_given(rank, stride, padding, dilation, groups, mode)
    if output_size is not None:
        output_size = exact_ints("output_size", output_size, rank, 1)
    return _convolved(rank, input_shape, weight_shape, bias_shape, grad_output_shape, given, names, output_size)


@_cached
def _convolved(
    rank: int, input_shape: Shape, weight_shape: Shape, bias_shape: Shape | None, grad_output_shape: Shape | None,
    given: Given, names: tuple[str, str, str], output_size: Ints | None,
) -> tuple[Geometry, Shape]:
    input_name, weight_name, bias_name = names
    spread = spread_of(rank, *given)
    _check_weight(weight_name, weight_shape, rank, spread.groups)
    batch = _batch_of(input_name, input_shape, rank)
    in_channels, out_channels = weight_shape[1] * spread.groups, weight_shape[0]
    _check_channels(input_name, input_shape, rank, weight_name, weight_shape, spread.groups)
    check_shape(bias_name, bias_shape, (out_channels,))
    size, kernel = input_shape[-rank:], weight_shape[2:]
    wanted = None if output_size is None else on_axes("output_size", output_size, rank, 1)
    asked = wanted is not None or grad_output_shape is not None
    output, most, pads = _output_sizes(input_name, size, weight_name, kernel, spread, asked)
    if wanted is not None and not _is_between(output, wanted, most):
        raise ValueError(f"output_size must be from {output} to {most}, axis by axis; got {wanted}")
    if grad_output_shape is not None and _is_between(output, grad_output_shape[-rank:], most):
        wanted = grad_output_shape[-rank:]
    output = wanted or output
    axes = zip(output, spread.stride, _spans(kernel, spread.dilation), size, pads)
    pads = tuple((lo, max(hi, (y - 1) * s + span - n - lo)) for y, s, span, n, (lo, hi) in axes)
    output_shape = (*batch, out_channels, *output)
    check_shape("grad_output", grad_output_shape, output_shape)
    channels = in_channels, out_channels
    return _geometry(input_name, prod(batch), channels, size, kernel, output, spread, pads), output_shape


def transposed(
    rank: int, input_shape: Shape, weight_shape: Shape, bias_shape: Shape | None, grad_output_shape: Shape | None,
    stride: Any, padding: Any, dilation: Any, groups: Any, output_padding: Any = 0,
    output_size: Any = None, names: tuple[str, str, str] = NAMES, mode: Mode = ZEROS,
) -> tuple[Geometry, Shape]:
    """The geometry that a transposed convolution undoes, and the shape of its output.

    With 'same' the size of grad_output, where given, stands for output_size: the call that made it chose it freely.
    """
    given = exact_given(rank, stride, padding, dilation, groups, mode)
    output_padding = exact_ints("output_padding", output_padding, rank, 0)
    if output_size is not None:
        output_size = exact_ints("output_size", output_size, rank, 1)
    return _transposed(
        rank, input_shape, weight_shape, bias_shape, grad_output_shape, given, output_padding, output_size, names
    )


@_cached
def _transposed(
    rank: int, input_shape: Shape, weight_shape: Shape, bias_shape: Shape | None, grad_output_shape: Shape | None,
    given: Given, output_padding: Ints, output_size: Ints | None,
    names: tuple[str, str, str],
) -> tuple[Geometry, Shape]:
    input_name, weight_name, bias_name = names
    spread = spread_of(rank, *given)
    if spread.mode.name == "constant":  # what goes back to a constant is dropped, as to nothing
        spread = spread._replace(mode=ZEROS)
    _check_weight(weight_name, weight_shape, rank, spread.groups)
    batch = _batch_of(input_name, input_shape, rank)
    out_channels, in_channels = weight_shape[0], weight_shape[1] * spread.groups
    _check_channels(input_name, input_shape, rank, weight_name, weight_shape)
    check_shape(bias_name, bias_shape, (in_channels,))
    size, kernel = input_shape[-rank:], weight_shape[2:]
    if 0 in size:
        raise ValueError(f"{input_name} must have at least one cell on every spatial axis; got shape {input_shape}")
    wanted = None if output_size is None else on_axes("output_size", output_size, rank, 1)
    if grad_output_shape is not None and spread.padding in SAME:
        _batch_of("grad_output", grad_output_shape, rank)
        wanted = grad_output_shape[-rank:]
    added = on_axes("output_padding", output_padding, rank, 0)
    output, pads = _transposed_size(size, kernel, spread, added, wanted)
    output_shape = (*batch, in_channels, *output)
    check_shape("grad_output", grad_output_shape, output_shape)
    channels = in_channels, out_channels
    return _geometry("output", prod(batch), channels, output, kernel, size, spread, pads), output_shape


def _transposed_size(
    size: Shape, kernel: Shape, spread: Spread, added: Shape, wanted: Shape | None
) -> tuple[Shape, Pads]:
    """(output size, pads) of a transposed convolution; `added` is output_padding, `wanted` output_size."""
    steps = tuple(map(max, spread.stride, spread.dilation))
    if any(extra >= step for extra, step in zip(added, steps)):
        raise ValueError(f"output_padding must be smaller than stride or dilation on every axis; got {added}")
    spans = _spans(kernel, spread.dilation)
    full = tuple((n - 1) * s + span for n, s, span in zip(size, spread.stride, spans))
    if spread.padding in SAME:
        output = wanted or tuple(n * s for n, s in zip(size, spread.stride))
        totals = (n + extra - m for n, extra, m in zip(full, added, output))
        pads = tuple(split(max(total, 0), str(spread.padding)) for total in totals)
        least = (1,) * len(size)
    else:
        pads = numeric_pads(spread.padding, spans)
        least = full = tuple(n - lo - hi for n, (lo, hi) in zip(full, pads))
        output = wanted or tuple(map(sum, zip(least, added)))
        if wanted and any(added):
            raise ValueError(f"output_padding must be 0 where output_size is given; got {added}")
    most = tuple(n + step - 1 for n, step in zip(full, steps))
    if wanted and not all(a <= b <= c for a, b, c in zip(least, wanted, most)):
        raise ValueError(f"output_size must be from {least} to {most}, axis by axis; got {wanted}")
    if any(y < 1 for y in output):
        raise ValueError(f"padding must leave at least one output cell on every axis; got an output size of {output}")
    return output, pads


def problem(
    is_transposed: Any, rank: int, input_shape: Shape, weight_shape: Shape, bias_shape: Shape | None,
    grad_output_shape: Shape | None, stride: Any, padding: Any, dilation: Any, groups: Any, output_padding: Any,
    output_size: Any = None, names: tuple[str, str, str] = NAMES, mode: Mode = ZEROS,
) -> tuple[Geometry, Shape]:
    """`transposed` where is_transposed, else `convolved`."""
    if is_transposed is True:
        return transposed(
            rank, input_shape, weight_shape, bias_shape, grad_output_shape, stride, padding, dilation, groups,
            output_padding, output_size, names, mode)
    check_plain(is_transposed, output_padding, rank)
    return convolved(
        rank, input_shape, weight_shape, bias_shape, grad_output_shape, stride, padding, dilation, groups, names, mode,
        output_size)


def check_plain(is_transposed: Any, output_padding: Any, rank: int) -> None:
    """TypeError or ValueError unless it is no transposed convolution, and has no output_padding."""
    if is_transposed is not False:
        raise TypeError(f"transposed must be True or False; got {shown(is_transposed)}")
    if type(output_padding) is not int or output_padding:
        if any(sizes_of("output_padding", output_padding, rank, 0)):
            raise ValueError(f"output_padding must be 0 where transposed is False; got {shown(output_padding)}")


def output_shape(
    is_transposed: bool, rank: int, input_shape: Shape, weight_shape: Shape, stride: Any, padding: Any, dilation: Any,
    groups: Any, output_padding: Any,
) -> Shape:
    """`problem`'s second answer alone, of sizes that may be a compiler's symbols: no cache and no limits."""
    spread = spread_of(rank, *exact_given(rank, stride, padding, dilation, groups))
    _check_weight("weight", weight_shape, rank, spread.groups)
    batch, size, kernel = _batch_of("input", input_shape, rank), input_shape[-rank:], weight_shape[2:]
    if is_transposed:
        _check_channels("input", input_shape, rank, "weight", weight_shape)
        added = sizes_of("output_padding", output_padding, rank, 0)
        output, _ = _transposed_size(size, kernel, spread, added, None)
        return *batch, weight_shape[1] * spread.groups, *output
    _check_channels("input", input_shape, rank, "weight", weight_shape, spread.groups)
    if spread.padding in SAME and 0 not in size:  # what it comes to, whatever the kernel spans
        return *batch, weight_shape[0], *(-(-n // s) for n, s in zip(size, spread.stride))
    return *batch, weight_shape[0], *_output_sizes("input", size, "weight", kernel, spread)[0]


def columns_of(
    rank: int, columns_shape: Shape, weight_size: Shape, grad_output_shape: Shape, stride: Any, padding: Any,
    dilation: Any, groups: Any, mode: Mode = ZEROS, weight_name: str = "weight_size",
) -> Geometry:
    """The geometry of grad_weight when the columns stand for an input whose size is not known.

    A stride forgets up to stride - 1 trailing cells of the input. The largest size that agrees with grad_output is
    taken, as far as a tap reaches: then a column cell counts as padding only if it is padding for every such input.
    In any mode but 'zeros' no cell does: there the geometry is that of an input that has the padding in it.
    """
    given = exact_given(rank, stride, padding, dilation, groups, mode)
    return _columns_of(rank, columns_shape, weight_size, grad_output_shape, given, weight_name)


@_cached
def _columns_of(
    rank: int, columns_shape: Shape, weight_size: Shape, grad_output_shape: Shape,
    given: Given, weight_name: str,
) -> Geometry:
    spread = spread_of(rank, *given)
    _check_weight(weight_name, weight_size, rank, spread.groups)
    batch = _batch_of("grad_output", grad_output_shape, rank)
    output, kernel = grad_output_shape[-rank:], weight_size[2:]
    out_channels, in_channels = weight_size[0], weight_size[1] * spread.groups
    _check_channels("grad_output", grad_output_shape, rank, weight_name, weight_size)
    expected = (*batch, in_channels * prod(kernel), prod(output))
    if columns_shape != expected:
        raise ValueError(
            f"finput must have the shape {expected} that unfold gives, where input is None; got shape {columns_shape}"
        )
    spans = _spans(kernel, spread.dilation)
    ends = tuple((y - 1) * s + span for y, s, span in zip(output, spread.stride, spans))
    if spread.padding in SAME:
        size = tuple(y * s for y, s in zip(output, spread.stride))
        pads = all_pads(spread.padding, size, spans, spread.stride)
    else:
        pads = numeric_pads(spread.padding, spans)
        size = tuple(end - lo - hi + s - 1 for end, (lo, hi), s in zip(ends, pads, spread.stride))
    if min(output) < 1 or min(size) < 0:
        raise ValueError(f"grad_output must have a size that some input gives; got shape {grad_output_shape}")
    reached = tuple(max(min(n, end - lo), 0) for n, end, (lo, _) in zip(size, ends, pads))
    if spread.mode is not ZEROS:
        reached, pads = ends, ((0, 0),) * rank
    return _geometry("input", prod(batch), (in_channels, out_channels), reached, kernel, output, spread, pads)


def _exact_kernel(kernel_size: Any) -> Shape:
    """kernel_size of unfold and fold; its length is the rank, and an int means two axes."""
    rule = "be an int >= 1, which means two axes, or a sequence of at least one such"
    kernel = exact("kernel_size", rule, kernel_size, length_of(kernel_size) or 2)
    sizes: Shape = (kernel, kernel) if isinstance(kernel, int) else kernel
    if min(sizes, default=0) < 1:
        raise ValueError(f"kernel_size must {rule}; got {shown(kernel_size)}")
    return sizes


def unfolded(
    input_shape: Shape, kernel_size: Any, dilation: Any, padding: Any, stride: Any, mode: Mode = ZEROS
) -> tuple[Geometry, Shape]:
    """The geometry whose columns unfold writes, and their shape."""
    kernel = _exact_kernel(kernel_size)
    given = exact_given(len(kernel), stride, padding, dilation, 1, mode)
    return _unfolded(input_shape, kernel, given, "input")


@_cached
def _unfolded(
    input_shape: Shape, kernel: Shape, given: Given, input_name: str
) -> tuple[Geometry, Shape]:
    rank = len(kernel)
    spread = spread_of(rank, *given)
    batch = _batch_of(input_name, input_shape, rank)
    channels, size = input_shape[-rank - 1], input_shape[-rank:]
    output, _, pads = _output_sizes(input_name, size, "kernel_size", kernel, spread)
    spread = spread._replace(groups=max(channels, 1))
    geometry = _geometry(input_name, prod(batch), (channels, channels), size, kernel, output, spread, pads)
    columns_shape = (*batch, channels * prod(kernel), prod(output))
    if prod(columns_shape) > LARGEST:
        raise ValueError(f"columns must have at most 2**63 - 1 elements; got shape {columns_shape}")
    return geometry, columns_shape


def folded(
    columns_shape: Shape, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any,
    mode: Mode = ZEROS,
) -> tuple[Geometry, Shape]:
    """The geometry whose columns fold sums, and the shape of the sum."""
    kernel = _exact_kernel(kernel_size)
    rank = len(kernel)
    size = sizes_of("output_size", output_size, rank, 0)
    if len(columns_shape) not in (2, 3):
        raise ValueError(
            "input must have 3 axes (batch, channels * taps, positions) or 2 without batch; "
            f"got shape {columns_shape}"
        )
    channels, odd = divmod(columns_shape[-2], prod(kernel))
    if odd:
        raise ValueError(
            f"input must have a multiple of the {prod(kernel)} taps on axis -2; got shape {columns_shape}"
        )
    shape = (*columns_shape[:-2], channels, *size)
    given = exact_given(rank, stride, padding, dilation, 1, mode)
    geometry, expected = _unfolded(shape, kernel, given, "output_size")
    check_shape("input", columns_shape, expected)
    return geometry, shape
