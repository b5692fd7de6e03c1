"""Door: JAX arrays. Convolutions and their gradients under jit, grad, jvp, vmap and what else JAX transforms.

    conv1d, conv2d, conv3d                                  convolution
    conv1d_input, conv2d_input, conv3d_input                its gradient to the input
    conv1d_weight, conv2d_weight, conv3d_weight             its gradient to the weight
    conv_transpose1d, conv_transpose2d, conv_transpose3d    transposed convolution

Arguments and values are those of pyconv's functions of these names, without buffers; every form of padding and every
padding_mode.

>>> import jax
>>> import jax.numpy as jnp
>>> import pyconv.jax
>>> image, weight = jnp.ones((1, 2, 5, 5)), jnp.ones((3, 2, 3, 3))
>>> loss = jax.jit(lambda weight: pyconv.jax.conv2d(image, weight, padding="same").sum())
>>> jax.grad(loss)(weight)[0, 0, 1, 1].item()
25.0

There is one primitive, a derivative of one form linear in each of input, weight and output. Its own derivatives are the
same primitive, so that grad, jvp, linearize, jacfwd and jacrev nest to any order, in any mix. vmap over any of its
operands is one call of it too: an axis of input and output goes to the batch, one of all three to the groups, one of
weight and output (or input) to their channels. Nothing is looped over.

Arrays are JAX's or NumPy's, of one dtype: float16, bfloat16, float32, complex64 and, where jax_enable_x64 is set,
float64 and complex128. Complex gradients follow JAX's convention, without conjugates. Shapes and settings are checked
while JAX traces, in the plain functions' words.

A compiled program calls pyconv through XLA's C interface of foreign functions: it reads XLA's memory and writes the
result there, without a copy. The handler, pyconv._xla, is a part of every build; without it this module is an
ImportError. A call of conv2d on five by five cells takes 14.5 microseconds, where adding one to an
array takes 5 and pyconv.conv2d 6 (one core of a Zen 4, medians of 3,000); the handler for Python callbacks that jaxlib
brings takes 23, and twice the memory of the result, jax.pure_callback 150. JAX may go on before the result is there, as
with functions of its own, and runs equal calls once, unused ones never. What fails in a program is an error of XLA's
that ends in pyconv's; Ctrl-C stays KeyboardInterrupt. The number of threads is pyconv's, and pyconv.set_num_threads
sets it: a block of pyconv.num_threads does not reach JAX's own threads.

A program can be exported and, with the package flatbuffers, serialised, its gradients too, for another process that
has imported pyconv.jax, of the same version of pyconv. JAX wants to hear that it cannot vouch for pyconv's part:

>>> from jax import export
>>> allowed = [export.DisabledSafetyCheck.custom_call("pyconv_derivative")]
>>> export.export(loss, disabled_checks=allowed)(weight).call(weight).item()
1014.0

In shard_map and pmap every device calls for its own part. Under jit alone an array that is sharded is gathered first,
and each device computes the whole. What JAX cannot do with these functions: sizes that are unknown while it traces and
arrays sharded over an explicit axis of a mesh (both a TypeError). On a GPU the arrays go to main memory and back, by
jax.pure_callback; that has not been tested, and such a program is not exported.
"""

import json
import sys
from functools import lru_cache, partial
from hashlib import sha256
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from pyconv._config import __version__
from pyconv._dtypes import native_dtype
from pyconv._forms import FACTORS, FLOATS, Door, Form, Operands, ShapedCalls, along, functions, pulled_back
from pyconv._geometry import Geometry
from pyconv._integers import Shape
from pyconv._settings import checked, settings_of

__all__ = [
    "conv1d", "conv1d_input", "conv1d_weight", "conv2d", "conv2d_input", "conv2d_weight", "conv3d", "conv3d_input",
    "conv3d_weight", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]

derivative: Any = Primitive("pyconv_derivative")
_program = jax.jit(lambda *factors, **keywords: derivative.bind(*factors, **keywords), static_argnames=("role", "form"))


@derivative.def_impl  # type: ignore[untyped-decorator]
def _evaluated(*factors: Any, **keywords: Any) -> Any:
    """A program of its own, in jax.disable_jit too, where a function of jit would be this call once again."""
    if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return _program(*factors, **keywords)
    with jax.disable_jit(False):
        return _program(*factors, **keywords)


def _derive(role: str, form: Form, first: Any, second: Any) -> Any:
    """The primitive; in shard_map, of factors that vary over the same axes of the mesh."""
    over = [jax.typeof(factor).mat.varying for factor in (first, second)]
    if over[0] != over[1]:
        first, second = (jax.lax.pcast(factor, tuple((over[0] | over[1]) - own), to="varying")
                         for factor, own in zip((first, second), over))
    return derivative.bind(first, second, role=role, form=form)


@derivative.def_abstract_eval  # type: ignore[untyped-decorator]
def _result(first: Any, second: Any, *, role: str, form: Form) -> Any:
    for factor in (first, second):
        spec, axes = factor.sharding.spec, factor.mat
        if any(spec) or spec.unreduced or axes.unreduced:
            raise TypeError(
                "arrays must not be sharded over an explicit axis of a mesh (see jax.sharding.auto_axes) nor "
                f"unreduced; got {factor}"
            )
    nowhere = NamedSharding(first.sharding.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
    return first.update(shape=form.shape(role), weak_type=False, sharding=nowhere)


# --- in a compiled program ---

DIGEST = 64  # letters
TARGET = "pyconv_derivative"  # the handler's name in programs, and in DisabledSafetyCheck's of export


def _text(role: str, form: Form) -> str:
    """The derivative as a program keeps it, behind its digest: nothing in it is of this process."""
    return _sealed(json.dumps({
        "pyconv": __version__, "role": role, "dtype": form.dtype.name, "algorithm": form.settings.algorithm,
        "size": form.size, "value": repr(form.geometry.padding_value),  # JSON has no complex numbers
        "geometry": form.geometry._replace(padding_value=0)._asdict(),
    }))


def _sealed(text: str) -> str:
    return sha256(text.encode()).hexdigest() + text


@lru_cache(maxsize=1024)
def _read(text: bytes) -> tuple[str, Form, list[Shape]]:
    """The role, the form, and the shapes of operands and result; ValueError where another pyconv wrote it, or nobody:
    kernels trust a geometry, which is made of checked arguments."""
    digest, text = text[:DIGEST], text[DIGEST:]
    if digest != sha256(text).hexdigest().encode():
        raise ValueError("program must be as it was exported; got one whose call of pyconv has changed")
    found = json.loads(text)
    if found["pyconv"] != __version__:
        raise ValueError(f"program must be exported by pyconv {__version__}, as it runs here; got {found['pyconv']}")
    role, dtype, value = found["role"], native_dtype("program", jnp.dtype(found["dtype"])), complex(found["value"])
    fields: Any = {name: tuple(field) if type(field) is list else field for name, field in found["geometry"].items()}
    geometry = Geometry(**fields)._replace(padding_value=value if dtype.kind == "c" else value.real)
    settings = checked(settings_of(algorithm=sys.intern(found["algorithm"])), dtype)
    form = Form(geometry, tuple(found["size"]), dtype, settings)
    return role, form, [form.shape(name) for name in (*FACTORS[role], role)]


def _compute(text: bytes, first: Any, second: Any, out: Any) -> None:
    """What the handler calls: the derivative that the program asks for, into its result."""
    role, form, shapes = _read(text)
    arrays = first, second, out
    if [array.shape for array in arrays] != shapes or any(array.dtype != form.dtype for array in arrays):
        got = [f"{array.dtype} {array.shape}" for array in arrays]
        raise ValueError(f"program must call pyconv on arrays of {form.dtype}, of shapes {shapes}; got {got}")
    form.derivative(role, first, second, out)


def _lower(context: Any, first: Any, second: Any, *, role: str, form: Form) -> Any:
    return _custom_call(context, first, second, form=_text(role, form))


def _elsewhere(first: Any, second: Any, *, role: str, form: Form) -> Any:
    """The derivative on a platform that the handler is not of: arrays go to main memory and back."""
    def compute(first: Any, second: Any) -> Any:
        return form.derivative(role, np.asarray(first), np.asarray(second))

    result = jax.ShapeDtypeStruct(form.shape(role), form.dtype)  # type: ignore[no-untyped-call]
    return jax.pure_callback(compute, result, first, second)


_custom_call = jax.ffi.ffi_lowering(TARGET)  # of arrays in C order, which XLA makes where they are not
_handler = import_module("pyconv._xla").handler(_compute, [jnp.dtype(name) for name in FLOATS])
jax.ffi.register_ffi_target(TARGET, _handler, platform="cpu")
mlir.register_lowering(derivative, _lower, platform="cpu")
mlir.register_lowering(derivative, mlir.lower_fun(_elsewhere, multiple_results=False))


# --- derivatives ---


def _pulled_back(place: int, cotangent: Any, first: Any, second: Any, *, role: str, form: Form) -> Any:
    return pulled_back(_derive, place, role, form, cotangent, second if place == 0 else first)


def _along(place: int, tangent: Any, first: Any, second: Any, *, role: str, form: Form) -> Any:
    return along(_derive, place, role, form, tangent, second if place == 0 else first)


ad.defbilinear(  # type: ignore[no-untyped-call]
    derivative, partial(_pulled_back, 0), partial(_pulled_back, 1))
ad.defjvp(  # type: ignore[no-untyped-call]
    derivative, partial(_along, 0), partial(_along, 1))  # linear in x but for a constant around it


# --- vmap ---

# The first axes of the arrays, once channels are split: batch n, groups g, a group's channels of x (i) and of y (o).
INDICES = {"x": "ngi", "w": "goi", "y": "ngo"}


def _index(roles: set[str]) -> str:
    """The index that these arrays have and no other has: a mapped axis that only they have is more of it."""
    return next(index for index in "ngoi" if {role for role, own in INDICES.items() if index in own} == roles)


def _widened(form: Form, index: str, size: int) -> Form:
    """The form with an index so many times as long."""
    geometry = form.geometry
    fields = {"n": ("batch",), "g": ("groups", "in_channels", "out_channels"), "o": ("out_channels",),
              "i": ("in_channels",)}[index]
    return form._replace(geometry=geometry._replace(**{name: size * getattr(geometry, name) for name in fields}))


def _split(form: Form, role: str) -> tuple[int, ...]:
    """The shape of an array with its channels split into those of INDICES."""
    geometry, shape = form.geometry, form.shape(role)
    groups = geometry.groups
    if role == "w":
        return groups, shape[0] // groups, *shape[1:]
    return shape[0], groups, shape[1] // groups, *shape[2:]


def _vectorised(
    factors: tuple[Any, Any], mapped: tuple[int | None, int | None], *, role: str, form: Form
) -> tuple[Any, int]:
    """The primitive of factors with a mapped axis, and the place of that axis in its result."""
    names = FACTORS[role]
    [size, *_] = (factor.shape[axis] for factor, axis in zip(factors, mapped) if axis is not None)
    if size == 0:
        return jnp.zeros((0, *form.shape(role)), factors[0].dtype), 0
    index = _index({role, *(name for name, axis in zip(names, mapped) if axis is not None)})
    wide = _widened(form, index, size)
    merged = [
        factor if axis is None
        else jnp.moveaxis(
            jnp.moveaxis(factor, axis, 0).reshape(size, *_split(form, name)), 0, INDICES[name].index(index)
        ).reshape(wide.shape(name))
        for name, factor, axis in zip(names, factors, mapped)
    ]
    result, place = _derive(role, wide, *merged), INDICES[role].index(index)
    split = _split(form, role)
    apart = jnp.moveaxis(result.reshape(*split[:place], size, *split[place:]), place, 0)
    return apart.reshape(size, *form.shape(role)), 0


batching.primitive_batchers[derivative] = _vectorised


def _converted(array: Any) -> Any:
    return jnp.asarray(array) if isinstance(array, np.ndarray) else array


CALLS = ShapedCalls(_derive, Operands((jax.Array, np.ndarray), "a jax.Array or a numpy.ndarray", _converted))
(
    conv1d, conv2d, conv3d, conv1d_input, conv2d_input, conv3d_input, conv1d_weight, conv2d_weight, conv3d_weight,
    conv_transpose1d, conv_transpose2d, conv_transpose3d,
) = functions(Door(__name__, "JAX arrays", CALLS))
