"""Door: PyTensor variables. Convolutions and their gradients as operations of a symbolic graph.

    conv1d, conv2d, conv3d                                  convolution
    conv1d_input, conv2d_input, conv3d_input                its gradient to the input
    conv1d_weight, conv2d_weight, conv3d_weight             its gradient to the weight
    conv_transpose1d, conv_transpose2d, conv_transpose3d    transposed convolution

Arguments and values are those of pyconv's functions of these names, without buffers; every form of padding and every
padding_mode. input_size and weight_size may also be symbolic vectors of a known length, such as image.shape.

>>> import numpy as np
>>> import pytensor
>>> import pytensor.tensor as pt
>>> import pyconv.pytensor
>>> image, weight = pt.tensor4("image", dtype="float64"), pt.tensor4("weight", dtype="float64")
>>> loss = pyconv.pytensor.conv2d(image, weight, padding="same").sum()
>>> gradient = pytensor.function([image, weight], pytensor.grad(loss, weight))
>>> gradient(np.ones((1, 2, 5, 5)), np.ones((3, 2, 3, 3)))[0, 0, 1, 1].item()
25.0

There is one Op, a derivative of one form linear in each of input, weight and output. Its own derivatives (pullback and
pushforward, of which grad, Lop, Rop, jacobian and hessian are made) are the same Op, so that every order of gradient
exists. The shape of a result is inferred without computing it.

Variables and NumPy arrays are of one dtype: float16, float32 or float64. Numbers of axes and of channels are
checked while the graph is built, as far as they are known, and of wholly known shapes all is, in the plain functions'
words; of what is not known, the compiled function says the same.

What PyTensor cannot do with them: complex gradients, so that complex arrays are a TypeError; float16 in its Numba mode,
which is its default, and compiling for JAX, PyTorch or MLX, all of which it refuses. Its Numba mode calls back into
Python, and warns that it does. vectorize_graph makes a loop of calls.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType, disconnected_type
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.basic import MakeVector
from pytensor.tensor.variable import TensorVariable

from pyconv import _geometries as geometries
from pyconv._forms import FACTORS, Door, Operands, Steps, along, computed, functions, pulled_back
from pyconv._geometry import MAPS, Geometry
from pyconv._integers import Shape, exact_ints, exact_shape
from pyconv._padding import ZEROS
from pyconv._settings import Settings
from pyconv._spread import exact_steps

__all__ = [
    "conv1d", "conv1d_input", "conv1d_weight", "conv2d", "conv2d_input", "conv2d_weight", "conv3d", "conv3d_input",
    "conv3d_weight", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
]


class Problem(NamedTuple):
    """A form whose shapes are not known yet: what a call of one of the functions says of it."""

    transposed: bool
    rank: int
    steps: Steps
    settings: Settings
    dtype: str
    output_padding: Any = 0
    output_size: Any = None
    names: tuple[str, str, str] = geometries.NAMES

    def along(self, role: str) -> "Problem":
        """The problem at a direction of that role; of x that is one around which a constant is nothing."""
        if role != "x" or self.settings.mode.name != "constant":
            return self
        return self._replace(settings=self.settings._replace(mode=ZEROS))

    def geometry(self, shapes: dict[str, Shape], bias: Shape | None = None) -> tuple[Geometry, Shape]:
        """The geometry, and the shape of a convolution's result, which `shapes` may leave out."""
        operand, result = ("y", "x") if self.transposed else ("x", "y")
        return geometries.problem(
            self.transposed, self.rank, shapes[operand], shapes["w"], bias, shapes.get(result), *self.steps,
            self.output_padding, self.output_size, self.names, self.settings.mode,
        )

    def result_shape(self, operand: Shape, weight: Shape, bias: Shape | None = None) -> Shape:
        """The shape of a convolution's result, transposed or not."""
        return self.geometry({"y" if self.transposed else "x": operand, "w": weight}, bias)[1]


class ResultShape(Op):
    """The shape of a convolution's result, from the shapes of input, weight and bias."""

    __props__ = ("problem",)

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __str__(self) -> str:
        return "pyconv.result_shape"

    def make_node(self, *shapes: Any) -> Any:
        return Apply(self, list(shapes), [pt.TensorType("int64", shape=shapes[0].type.shape)()])

    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Any) -> None:
        shapes = (tuple(map(int, shape)) for shape in inputs)
        output_storage[0][0] = np.array(self.problem.result_shape(*shapes), np.int64)

    def infer_shape(self, fgraph: Any, node: Any, input_shapes: Any) -> Any:
        return input_shapes[:1]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        return [disconnected_type()]


class Derivative(Op):
    """T's derivative with respect to a role, of the shape that its third input holds; see _forms."""

    __props__ = ("role", "problem")

    def __init__(self, role: str, problem: Problem) -> None:
        self.role, self.problem = role, problem

    def __str__(self) -> str:
        return f"pyconv.{MAPS[self.role]}"

    def make_node(self, *inputs: Any) -> Any:
        *_, shape = inputs
        return Apply(self, list(inputs), [pt.TensorType(self.problem.dtype, shape=_static(shape))()])

    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Any) -> None:
        first, second, sizes = inputs
        shape = tuple(map(int, sizes))
        shapes = dict(zip(FACTORS[self.role], (first.shape, second.shape)), **{self.role: shape})
        geometry, _ = self.problem.geometry(shapes)
        output_storage[0][0] = computed(
            self.role, geometry, shape, first, second, np.dtype(self.problem.dtype), self.problem.settings)

    def infer_shape(self, fgraph: Any, node: Any, input_shapes: Any) -> Any:
        return [[node.inputs[2][axis] for axis in range(node.outputs[0].type.ndim)]]

    def connection_pattern(self, node: Any) -> list[list[bool]]:
        return [[True], [True], [False]]

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        factors, [cotangent] = inputs[:2], cotangents
        return [
            *(pulled_back(partial(_derive, _shape(factor)), place, self.role, self.problem, cotangent,
                          factors[1 - place]) for place, factor in enumerate(factors)),
            disconnected_type(),
        ]

    def pushforward(self, inputs: Any, outputs: Any, tangents: Any) -> list[Any]:
        terms = [
            along(partial(_derive, inputs[2]), place, self.role, self.problem, tangent, inputs[1 - place])
            for place, tangent in enumerate(tangents[:2]) if not isinstance(tangent.type, DisconnectedType)
        ]
        return [sum(terms[1:], terms[0]) if terms else disconnected_type()]


def _derive(shape: Any, role: str, problem: Problem, first: Any, second: Any) -> Any:
    return Derivative(role, problem)(first, second, shape)


def _static(shape: Any) -> tuple[int | None, ...]:
    """What is known of a vector's entries."""
    if isinstance(shape, Constant):
        return tuple(map(int, shape.data))
    if shape.owner is not None and isinstance(shape.owner.op, MakeVector):
        return tuple(int(entry.data) if isinstance(entry, Constant) else None for entry in shape.owner.inputs)
    return (None,) * pt.get_vector_length(shape)


def _shape(variable: Any) -> Any:
    """The shape of a variable, as constants where it is known."""
    return _vector([variable.shape[axis] if size is None else size for axis, size in enumerate(variable.type.shape)])


def _vector(entries: Sequence[Any]) -> Any:
    """Sizes as a vector, in which what is known is a constant."""
    return pt.as_tensor_variable([pt.constant(entry, dtype="int64") if isinstance(entry, int) else entry.astype("int64")
                                  for entry in entries])


def _size(name: str, value: Any) -> Any:
    """input_size or weight_size as a vector."""
    if not isinstance(value, Variable):
        return _vector(exact_shape(name, value))
    vector = isinstance(value, TensorVariable) and value.type.ndim == 1 and value.type.dtype.startswith(("int", "uint"))
    if not vector or value.type.shape[0] is None:
        raise TypeError(f"{name} must be a sequence of ints or a vector of them of a known length; got {value.type}")
    return value.astype("int64")  # type: ignore[attr-defined]


def _known(*shapes: Any) -> bool:
    return all(None not in shape for shape in shapes)


OPERANDS = Operands(
    (TensorVariable, np.ndarray), "a TensorVariable or a numpy.ndarray", pt.as_tensor_variable,
    ("float16", "float32", "float64"),
)


class SymbolicCalls:
    """The calls of a framework whose arrays may not know their shapes when a function is called."""

    def convolve(
        self, transposed: bool, rank: int, input: Any, weight: Any, bias: Any, steps: Steps,
        output_padding: Any, output_size: Any, settings: Settings,
    ) -> Any:
        dtype, settings, (input, weight, bias) = OPERANDS.read(settings, input=input, weight=weight, bias=bias)
        if output_size is not None:
            output_size = exact_ints("output_size", output_size, rank, 1)
        problem = Problem(
            transposed, rank, exact_steps(rank, *steps), settings, dtype.name,
            exact_ints("output_padding", output_padding, rank, 0), output_size,
        )
        operands = [input, weight] + ([] if bias is None else [bias])
        known = [operand.type.shape for operand in operands]
        geometries.check_known(
            rank, problem.steps[3], ("weight", known[1]), {"y" if transposed else "x": ("input", known[0])}, *known[2:])
        if _known(*known):
            sizes: Sequence[Any] = problem.result_shape(*known)
        else:
            shape: Any = ResultShape(problem)(*(_shape(operand) for operand in operands))
            sizes = [shape[axis] if size is None else size
                     for axis, size in enumerate(self._known_sizes(problem, input, weight))]
        result = _derive(_vector(sizes), "x" if transposed else "y", problem, input, weight)
        return result if bias is None else result + bias[(slice(None), *(None,) * rank)]

    def _known_sizes(self, problem: Problem, input: Any, weight: Any) -> list[int | None]:
        """Those of a result's batch and channels, where the operands know theirs."""
        out, per_group = weight.type.shape[:2]
        channels = out if not problem.transposed else None if per_group is None else per_group * problem.steps[3]
        return [*input.type.shape[:-problem.rank - 1], channels, *(None,) * problem.rank]

    def grad_input(
        self, rank: int, input_size: Any, weight: Any, grad_output: Any, steps: Steps, settings: Settings
    ) -> Any:
        shape = _size("input_size", input_size)
        dtype, settings, (weight, grad_output) = OPERANDS.read(settings, weight=weight, grad_output=grad_output)
        problem = Problem(False, rank, exact_steps(rank, *steps), settings, dtype.name,
                          names=("input_size", "weight", "bias"))
        return self._gradient("x", problem, grad_output, weight, shape)

    def grad_weight(
        self, rank: int, input: Any, weight_size: Any, grad_output: Any, steps: Steps, settings: Settings
    ) -> Any:
        shape = _size("weight_size", weight_size)
        dtype, settings, (input, grad_output) = OPERANDS.read(settings, input=input, grad_output=grad_output)
        problem = Problem(False, rank, exact_steps(rank, *steps), settings, dtype.name,
                          names=("input", "weight_size", "bias"))
        return self._gradient("w", problem, input, grad_output, shape)

    def _gradient(self, role: str, problem: Problem, first: Any, second: Any, shape: Any) -> Any:
        shapes = dict(zip(FACTORS[role], (first.type.shape, second.type.shape)), **{role: _static(shape)})
        input_name, weight_name, _ = problem.names
        geometries.check_known(
            problem.rank, problem.steps[3], (weight_name, shapes["w"]),
            {"x": (input_name, shapes["x"]), "y": ("grad_output", shapes["y"])})
        if _known(*shapes.values()):
            problem.geometry(shapes)
        return _derive(shape, role, problem, first, second)


(
    conv1d, conv2d, conv3d, conv1d_input, conv2d_input, conv3d_input, conv1d_weight, conv2d_weight, conv3d_weight,
    conv_transpose1d, conv_transpose2d, conv_transpose3d,
) = functions(Door(__name__, "PyTensor variables", SymbolicCalls(), "type.shape"))
