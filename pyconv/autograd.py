"""Door: HIPS autograd. Convolutions and their gradients, differentiable in both modes as often as you like.

    conv1d, conv2d, conv3d                                  convolution
    conv1d_input, conv2d_input, conv3d_input                its gradient to the input
    conv1d_weight, conv2d_weight, conv3d_weight             its gradient to the weight
    conv_transpose1d, conv_transpose2d, conv_transpose3d    transposed convolution

Arguments and values are those of pyconv's functions of these names, without buffers; every form of padding and every
padding_mode.

>>> import autograd
>>> import autograd.numpy as np
>>> import pyconv.autograd
>>> image, weight = np.ones((1, 2, 5, 5)), np.ones((3, 2, 3, 3))
>>> loss = lambda weight: np.sum(pyconv.autograd.conv2d(image, weight, padding="same"))
>>> autograd.grad(loss)(weight)[0, 0, 1, 1].item()
25.0

There is one primitive, a derivative of one form linear in each of input, weight and output. Its own derivatives, in
reverse mode (grad, jacobian, hessian) and in forward mode (make_jvp), are the same primitive, so that both nest to any
order. Only the gradients of what autograd traces are computed.

Arrays are NumPy's, of one dtype: float16, bfloat16, float32, float64, complex64 or complex128. Complex gradients follow
autograd's convention, without conjugates. Another kind of array is a TypeError; wrong shapes and settings are refused
in the plain functions' words.

What autograd cannot do: it has no vmap, so that jacobian and hessian call once for each element of the result; and it
does not see what is written into an array, so that there is no `out`.
"""

from functools import partial
from typing import Any

import numpy as np
from autograd.extend import defjvp, defvjp, primitive
from autograd.numpy.numpy_boxes import ArrayBox

from pyconv._backend import Array
from pyconv._forms import FACTORS, Door, Form, Operands, ShapedCalls, along, functions, pulled_back

__all__ = [
    "conv1d", "conv1d_input", "conv1d_weight", "conv2d", "conv2d_input", "conv2d_weight", "conv3d", "conv3d_input",
    "conv3d_weight", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]


def _exact(array: Any, shape: tuple[int, ...], form: Form) -> Array:
    """A factor, which may be a direction or a gradient that someone else made, as the form has it."""
    array = np.asarray(array)
    if array.shape != shape:
        raise ValueError(f"a gradient or direction must have shape {shape}, that of what it is of; got {array.shape}")
    if np.iscomplexobj(array) and form.dtype.kind != "c":
        raise TypeError(f"a gradient or direction must be real for {form.dtype} arrays; got {array.dtype}")
    return array.astype(form.dtype, copy=False)  # type: ignore[no-any-return]


@primitive  # type: ignore[untyped-decorator]
def derivative(role: str, form: Form, first: Any, second: Any) -> Array:
    """T's derivative with respect to that role; see _forms."""
    shapes = map(form.shape, FACTORS[role])
    return form.derivative(role, *(_exact(factor, shape, form) for factor, shape in zip((first, second), shapes)))


def _pull_back(place: int, _: Any, role: str, form: Form, *factors: Any) -> Any:
    return lambda gradient: pulled_back(derivative, place, role, form, gradient, factors[1 - place])


def _along(place: int, direction: Any, _: Any, role: str, form: Form, *factors: Any) -> Any:
    return along(derivative, place, role, form, direction, factors[1 - place])


defvjp(derivative, partial(_pull_back, 0), partial(_pull_back, 1), argnums=(2, 3))
defjvp(derivative, partial(_along, 0), partial(_along, 1), argnums=(2, 3))

CALLS = ShapedCalls(derivative, Operands((np.ndarray, ArrayBox), "a numpy.ndarray", lambda array: array))
(
    conv1d, conv2d, conv3d, conv1d_input, conv2d_input, conv3d_input, conv1d_weight, conv2d_weight, conv3d_weight,
    conv_transpose1d, conv_transpose2d, conv_transpose3d,
) = functions(Door(__name__, "NumPy arrays, which autograd may trace", CALLS))
