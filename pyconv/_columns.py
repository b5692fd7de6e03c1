"""unfold and fold, which write the columns of an input and sum them up again; workspace: how much scratch helps."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from pyconv import _dtypes, _threads
from pyconv import _geometries as geometries
from pyconv._arguments import check_flag, check_out, device_argument, operands, ready, writing_place
from pyconv._backend import Array, cpu, gpu_room
from pyconv._dtypes import DType, dtype_argument, is_integer, scratch_dtype
from pyconv._evaluate import MAPS_OF_BUFFER, delivered, no_out, plans_of, written_by_samples, x_of
from pyconv._geometries import rank_of
from pyconv._geometry import Geometry
from pyconv._integers import Shape, exact_shape
from pyconv._libraries import placed, tell_of_writing
from pyconv._settings import Settings, checked, settings_of, written
from pyconv._signatures import Padding, Sizes


def unfold(
    input: ArrayLike, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0, stride: Sizes = 1, *,
    out: Array | None = None, padding_mode: str = "zeros", padding_value: complex = 0, stream: Any = None,
) -> Array:
    """The columns of an input: for each output position what the kernel's taps see there, zeros where that is nothing.

        conv2d(input, weight) = weight.reshape(out channels, -1) @ unfold(input, weight.shape[2:]), reshaped

    input: (batch, channels, *size). Returns (batch, channels * taps, positions), channels before taps, both in C order.
    The length of kernel_size is the number of spatial axes; an int means two. Mind the order of the settings.
    Columns of integers have their dtype.

    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> unfold(np.arange(4.0).reshape(1, 4), (2,))
    array([[0., 1., 2.],
           [1., 2., 3.]])
    """
    settings = settings_of(stream=stream, padding_mode=padding_mode, padding_value=padding_value)
    dtype, (x,) = operands(("input",), (input,), stream=stream)
    settings = checked(settings, dtype)
    geometry, shape = geometries.unfolded(x.shape, kernel_size, dilation, padding, stride, settings.mode)
    return _moved(geometry, x, shape, dtype, out, settings, fold=False)  # type: ignore[no-any-return]


def fold(
    input: ArrayLike, output_size: Sizes, kernel_size: Sizes, dilation: Sizes = 1, padding: Padding = 0,
    stride: Sizes = 1, *, out: Array | None = None, accumulate: bool = False, padding_mode: str = "zeros",
    padding_value: complex = 0, dtype: DTypeLike | None = None, stream: Any = None,
) -> Array:
    """The sum of columns: each value back to the cell that `unfold` reads it from, dropped where that is none.

        <unfold(x, kernel_size), columns> = <x, fold(columns, output_size, kernel_size)>  for every x

    input: (batch, channels * taps, positions). Returns (batch, channels, *output_size); output_size and the rest are
    the size and the settings that unfold was given. Integers are summed in `dtype`, to which columns are converted.

    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> fold(np.ones((2, 3)), (4,), (2,))
    array([[1., 2., 2., 1.]])
    """
    settings = settings_of(
        stream=stream, accumulate=accumulate, padding_mode=padding_mode, padding_value=padding_value, dtype=dtype)
    native, (columns,) = operands(("input",), (input,), stream=stream)
    settings = checked(settings, native)
    geometry, shape = geometries.folded(
        columns.shape, output_size, kernel_size, dilation, padding, stride, settings.mode)
    return _moved(geometry, columns, shape, native, out, settings, fold=True)  # type: ignore[no-any-return]


def _moved(
    geometry: Geometry, source: Array, shape: Shape, dtype: DType, out: Any, settings: Settings, fold: bool
) -> Any:
    own, accumulate = written(dtype, settings) if fold else dtype, settings.accumulate
    if out is not None:
        out = check_out("out", out, shape, own, (("input", source),))
    elif accumulate:
        raise no_out("out")
    tell_of_writing(out)
    like = source
    if not fold:
        geometry, source = x_of(geometry, source)
    if not isinstance(dtype, np.dtype):
        return gpu_room("calls").unfold(geometry, source, shape, out, fold, settings.stream, accumulate, own)
    out = placed(out, like, shape, own)
    threads = _threads.worth(max(source.size, prod(shape)))

    def move(geometry: Geometry, source: Array, target: Array) -> None:
        cells, columns = (target, source) if fold else (source, target)
        cpu.unfold(geometry, cells, columns, fold, accumulate, threads=threads)

    if not (source.size and prod(shape)):
        target = writing_place(out, shape, own, accumulate)
        target[...] = target if accumulate else 0
    elif out is not None and out.ndim == (geometry.rank + 2 if fold else 3) and not cpu.is_ready(out, own):
        target = np.asarray(out)
        for share, part in written_by_samples(target, own, accumulate):
            move(geometry._replace(batch=len(part)), ready(source[share], dtype), part)
            del part  # before the next
    else:
        target = writing_place(out, shape, own, accumulate)
        move(geometry, ready(source, dtype), target)
    return delivered(target, out, like)


class Workspace(NamedTuple):
    """Elements of `dtype`: what full speed wants with the present number of threads, and the least that works.

    dtype is the real type that products are made in, see the table of types in the package; for a GPU it is the
    operands', and no dtype of NumPy, but one to numpy.dtype and numpy.empty, with its name as name and str().
    """

    finput: int
    fgrad_input: int
    finput_minimum: int
    fgrad_input_minimum: int
    dtype: DType


def workspace(
    input_shape: Sequence[SupportsIndex], weight_shape: Sequence[SupportsIndex], stride: Sizes = 1,
    padding: Padding = 0, dilation: Sizes = 1, groups: SupportsIndex = 1, *, transposed: bool = False,
    output_padding: Sizes = 0, output_size: Sizes | None = None, dtype: DTypeLike = np.float32,
    result_dtype: DTypeLike | None = None, algorithm: str = "auto", padding_mode: str = "zeros",
    padding_value: complex = 0, per_sample: bool = False, device: Any = "cpu", allow_tf32: bool = False,
) -> Workspace:
    """How large finput and fgrad_input should be for a convolution and all of its gradients.

    The larger the buffer the faster, up to the first two numbers; a buffer of at least the minimum gives the same bits.
    On the CPU a buffer for one batch serves every smaller one.
    dtype is the operands'; result_dtype and per_sample are what the calls are given as dtype and per_sample.
    For GPU arrays: device='cuda' or 'cuda:1' and so on, allow_tf32 as in the calls, dtype also float16 or 'bfloat16'.
    Other arguments, TypeError and ValueError: see help(pyconv).

    >>> sizes = workspace((8, 3, 32, 32), (16, 3, 3, 3), padding="same")
    >>> sizes.finput >= sizes.finput_minimum, sizes.fgrad_input >= sizes.fgrad_input_minimum
    (True, True)
    """
    place = device_argument(device)
    shape, weight = exact_shape("input_shape", input_shape), exact_shape("weight_shape", weight_shape)
    native = dtype_argument(dtype) if place is None else gpu_room("arguments").dtype_argument(dtype)
    settings = checked(settings_of(
        algorithm=algorithm, allow_tf32=allow_tf32, padding_mode=padding_mode, padding_value=padding_value), native)
    own = _dtypes.result_dtype(native, result_dtype, "result_dtype")
    settings = settings._replace(result=own) if is_integer(native) else settings
    real = scratch_dtype(native, own)
    check_flag("per_sample", per_sample)
    geometry, output_shape = geometries.problem(
        transposed, rank_of("weight_shape", weight), shape, weight, None, None, stride, padding, dilation, groups,
        output_padding, output_size, ("input_shape", "weight_shape", "bias"), settings.mode,
    )
    if 0 in (*shape, *weight, *output_shape):
        return Workspace(0, 0, 0, 0, real)
    asked = [geometry, geometry._replace(per_sample=True)] if per_sample else [geometry]
    plans = [[plan for one in asked for plan in plans_of(name, one, native, settings, place)]
             for name in MAPS_OF_BUFFER]
    if place is None:
        threads = _threads.get_num_threads()
        full = [max(plan.scratch_size(threads) for plan in some) for some in plans]
    else:
        full = [max(plan.scratch_size for plan in some) for some in plans]
    least = [max(plan.scratch_minimum for plan in some) for some in plans]
    return Workspace(full[0], full[1], least[0], least[1], real)
