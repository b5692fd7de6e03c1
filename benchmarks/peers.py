"""What kinds.py times: for each kind of convolution pyconv's call, those of its peers, and a reference from elsewhere.

All calls take no arguments and allocate their results. torch's are those of a user of torch: where it has no function
for one gradient, its autograd's, of a graph that was built before and is kept, so that what it saves costs it nothing.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy
import torch
from torch.nn import functional

import harness
import pyconv
from layers import Layer

PADDING_VALUE = -1.0
ACCUMULATOR = {"int8": torch.int32, "uint8": torch.int32, "int16": torch.int64, "int16→int32": torch.int32}
Call = Callable[[], Any]


class Peer(NamedTuple):
    """Something else that does the work, or `scale` times which is as much work; `target`: the least ratio wanted."""

    call: Call
    scale: float = 1.0
    target: float | None = None


class Job(NamedTuple):
    """One row: pyconv's call, its peers by name, the right result, and by how much pyconv's may differ from it."""

    ours: Call
    peers: dict[str, Peer]
    reference: torch.Tensor
    limit: float


class Missing(Exception):
    """A peer, or pyconv, does not have this here."""


# What all kinds use


def error_of(result: Any, reference: torch.Tensor) -> float:
    """Relative Frobenius error; of integers the share of elements that differ; inf for a wrong shape."""
    if isinstance(result, torch.Tensor):
        result = result.detach().to(reference.dtype)
    else:
        wide = {torch.int64: numpy.int64, torch.complex128: numpy.complex128}.get(reference.dtype, numpy.float64)
        result = torch.from_numpy(numpy.asarray(result).astype(wide))
    if result.shape != reference.shape:
        return math.inf
    if reference.dtype == torch.int64:
        return float((result != reference).double().mean())
    return float(torch.linalg.vector_norm(result - reference) / torch.linalg.vector_norm(reference))


def autograd_call(forward: Callable[..., torch.Tensor], map_name: str, x, w, y) -> Call:
    """A map of torch's forward(x, w): its gradients are autograd's, by the graph of one run of forward."""
    if map_name == "forward":
        return lambda: forward(x, w)
    with torch.enable_grad():
        operands = x.detach(), w.detach()
        wanted = operands[map_name == "grad_weight"].requires_grad_()
        result = forward(*operands)
    return lambda: torch.autograd.grad(result, wanted, y, retain_graph=True)[0]


def products(layer: Layer, batch: int, all_cells: bool) -> int:
    """Products of each map: those with a cell of the input, or with cells of the padding too."""
    if not all_cells:
        return layer.flop(batch) // 2
    positions = layer.size if layer.transposed else layer.output_size
    return (batch * layer.in_channels * layer.out_channels // layer.groups
            * math.prod(n * k for n, k in zip(positions, layer.kernel)))


def arrays(*tensors: torch.Tensor) -> tuple:
    """The tensors as NumPy's arrays, of ml_dtypes' type where NumPy has none."""
    if tensors[0].dtype != torch.bfloat16:
        return tuple(tensor.numpy() for tensor in tensors)
    try:
        import ml_dtypes
    except ImportError:
        raise Missing("ml_dtypes is not installed") from None
    return tuple(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) for tensor in tensors)


# Padding


def padded_forward(layer: Layer, mode: str) -> Callable[..., torch.Tensor]:
    """torch's way to other paddings than zeros: a copy of the input with its padding, then a convolution without."""
    pads = [pad for pad in reversed(layer.pads) for _ in range(2)]
    options = {"value": PADDING_VALUE} if mode == "constant" else {}
    bare = layer._replace(padding=0)
    return lambda x, w: harness.torch_call(bare, "forward", functional.pad(x, pads, mode, **options), w, None)()


def padding(layer: Layer, batch: int, map_name: str, mode: str) -> Job:
    """A padding mode in float32, beside torch's copy, and beside zeros for each product that is made."""
    x, w, y = harness.operands(layer, batch, torch.float32)
    forward = padded_forward(layer, mode)
    options = {"padding_mode": mode} | ({"padding_value": PADDING_VALUE} if mode == "constant" else {})
    more = products(layer, batch, True) / products(layer, batch, False)
    return Job(
        harness.pyconv_call(layer, map_name, *arrays(x, w, y), **options),
        {"torch pad + conv": Peer(autograd_call(forward, map_name, x, w, y)),
         "zeros a product": Peer(harness.pyconv_call(layer, map_name, *arrays(x, w, y)), more, 1 / 1.05)},
        autograd_call(forward, map_name, x.double(), w.double(), y.double())(), 1e-6)


# Types


def complex_reference(layer: Layer, map_name: str, x, w, y) -> torch.Tensor:
    """The map without a conjugate, from four real ones in float64."""
    def real(p: str, q: str) -> torch.Tensor:
        first, second = (lambda z: getattr(z, p).double()), (lambda z: getattr(z, q).double())
        weight = second(w) if map_name == "forward" else first(w)
        return harness.torch_call(layer, map_name, first(x), weight, second(y))()

    return torch.complex(real("real", "real") - real("imag", "imag"), real("real", "imag") + real("imag", "real"))


def complex_numbers(layer: Layer, batch: int, map_name: str, dtype: str) -> Job:
    """A complex type beside torch's, whose autograd conjugates: its operands are conjugated before."""
    x, w, y = harness.operands(layer, batch, getattr(torch, dtype))

    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return harness.torch_call(layer, "forward", a, b, None)()

    theirs = (x, w) if map_name == "forward" else (x.conj().resolve_conj(), w.conj().resolve_conj())
    return Job(harness.pyconv_call(layer, map_name, *arrays(x, w, y)),
               {"torch": Peer(autograd_call(forward, map_name, *theirs, y))},
               complex_reference(layer, map_name, x, w, y), 1e-6 if dtype == "complex64" else 1e-13)


def halves(layer: Layer, batch: int, map_name: str, dtype: str) -> Job:
    """float16 or bfloat16 beside torch's and pyconv's own float32; a result is rounded once."""
    x, w, y = harness.operands(layer, batch, getattr(torch, dtype))
    wide = x.float(), w.float(), y.float()
    return Job(
        harness.pyconv_call(layer, map_name, *arrays(x, w, y)),
        {"torch": Peer(harness.torch_call(layer, map_name, x, w, y)),
         "own float32": Peer(harness.pyconv_call(layer, map_name, *arrays(*wide)))},
        harness.torch_call(layer, map_name, *(array.double() for array in wide))(),
        1e-6 + (2**-11 if dtype == "float16" else 2**-8))


def integer_operands(layer: Layer, batch: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and weight over what is common to a type and to the quantised one of weights; never -128, as these."""
    generator = torch.Generator().manual_seed(0)
    low, high = {torch.int8: (-127, 128), torch.uint8: (0, 128), torch.int16: (-2**15, 2**15)}[dtype]
    x, w, _ = (torch.randint(low, high, shape, generator=generator).to(dtype)
               for shape in harness.shapes_of(layer, batch))
    return x, w


def unit_of(exact: torch.Tensor) -> float:
    """What one of an 8-bit result stands for, so that the largest is 127."""
    return float(exact.abs().max()) / 127


def quantised_call(layer: Layer, x: torch.Tensor, w: torch.Tensor, unit: float) -> Call:
    """torch's quantised convolution of 8-bit operands, to 8 bits, of which each is so many units."""
    if layer.rank not in (2, 3) or x.dtype not in (torch.int8, torch.uint8):
        raise Missing(f"torch quantises no convolution of {layer.rank} axes and {x.dtype}")
    warnings.filterwarnings("ignore", message=".*quantize.*are deprecated", category=UserWarning)
    zero = 128 if x.dtype == torch.int8 else 0
    input = torch._make_per_tensor_quantized_tensor((x.int() + zero).to(torch.uint8), 1.0, zero)
    weight = torch._make_per_tensor_quantized_tensor(w.to(torch.int8), 1.0, 0)
    numbers = [layer.stride] * layer.rank, list(layer.pads), [layer.dilation] * layer.rank
    names = torch.ops.quantized
    pack, conv = ((names.conv2d_prepack, names.conv2d) if layer.rank == 2 else (names.conv3d_prepack, names.conv3d))
    try:
        packed = pack(weight, None, *numbers, layer.groups)
        conv(input, packed, unit, 128)
    except RuntimeError as error:
        raise Missing(f"torch: {str(error).splitlines()[0][:100]}") from None
    return lambda: conv(input, packed, unit, 128)


def runtime_call(layer: Layer, x: torch.Tensor, w: torch.Tensor, unit: float | None = None) -> Call:
    """onnxruntime's ConvInteger, of 8-bit operands to 32 bits, on as many threads as torch has.

    With a unit its QLinearConv, to 8 bits: that many units each, zero points 0, operands of scale 1. Beside both types
    of input its weight is int8, as the runtime's own quantiser has it.
    """
    if x.dtype not in (torch.int8, torch.uint8):
        raise Missing(f"onnxruntime convolves no {x.dtype}")
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise Missing(f"{error.name} is not installed") from None
    kind = onnx.TensorProto.INT8 if x.dtype == torch.int8 else onnx.TensorProto.UINT8
    if unit is None:
        operator, result, constants = "ConvInteger", onnx.TensorProto.INT32, {"w": w.numpy()}
    else:
        one, zero = numpy.float32(1), x.numpy().dtype.type(0)
        operator, result, constants = "QLinearConv", kind, {
            "x scale": one, "x zero": zero, "w": w.to(torch.int8).numpy(), "w scale": one, "w zero": numpy.int8(0),
            "y scale": numpy.float32(unit), "y zero": zero}
    node = onnx.helper.make_node(
        operator, ["x", *constants], ["y"], kernel_shape=list(layer.kernel), strides=[layer.stride] * layer.rank,
        pads=layer.pads * 2, dilations=[layer.dilation] * layer.rank, group=layer.groups)
    graph = onnx.helper.make_graph(
        [node], "one", [onnx.helper.make_tensor_value_info("x", kind, list(x.shape))],
        [onnx.helper.make_tensor_value_info("y", result, None)],
        [onnx.numpy_helper.from_array(numpy.asarray(array), name) for name, array in constants.items()])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 10)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    options.add_session_config_entry("session.force_spinning_stop", "1")  # else its threads spin beside the next peer
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        session.run(None, {"x": x.numpy()})
    except Exception as error:  # its own classes, which have no common one
        raise Missing(f"onnxruntime: {str(error).splitlines()[0][:100]}") from None
    return lambda: session.run(None, {"x": x.numpy()})[0]


def integers(layer: Layer, batch: int, map_name: str, kind: str) -> Job:
    """A type of integers beside torch's integers of the result's type, its quantised way, and onnxruntime's two."""
    dtype, result = getattr(torch, kind.partition("→")[0]), ACCUMULATOR[kind]
    x, w = integer_operands(layer, batch, dtype)
    exact = harness.torch_call(layer, map_name, x.double(), w.double(), None)()  # its sums stay below 2**53
    reference = exact.to(torch.int64)
    if result == torch.int32:
        reference = (reference + 2**31) % 2**32 - 2**31
    wide = x.to(result), w.to(result)
    peers = {"torch integers": Peer(harness.torch_call(layer, map_name, *wide, None))}
    unit = unit_of(exact)
    for name, make in (("torch quantised", lambda: quantised_call(layer, x, w, unit)),
                       ("onnxruntime ConvInteger", lambda: runtime_call(layer, x, w)),
                       ("onnxruntime QLinearConv", lambda: runtime_call(layer, x, w, unit))):
        try:
            peers[name] = Peer(make())
        except Missing:
            continue
    peers["own float32"] = Peer(harness.pyconv_call(layer, map_name, *arrays(x.float(), w.float()), None))
    options = {"dtype": "int32"} if "→" in kind else {}
    return Job(harness.pyconv_call(layer, map_name, *arrays(x, w), None, **options), peers, reference, 0.0)


# Gradients of each sample


def unrolled_gradients(layer: Layer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Opacus' way: the columns of the input, a product for each sample, and of groups what is on the diagonal."""
    columns = functional.unfold(x, layer.kernel, layer.dilation, layer.pads, layer.stride)
    batch, groups = x.shape[0], layer.groups
    found = torch.einsum("noq,npq->nop", y.reshape(batch, layer.out_channels, -1), columns)
    found = found.view(batch, groups, layer.out_channels // groups, groups, layer.in_channels // groups, *layer.kernel)
    return torch.einsum("ngrg...->ngr...", found).reshape(batch, *layer.weight_shape)


def per_sample(layer: Layer, batch: int, map_name: str, dtype: str) -> Job:
    """Each sample's gradient beside torch.func's, Opacus' way, and pyconv's summed one with as much written."""
    x, w, y = harness.operands(layer, batch, getattr(torch, dtype))
    shape = (batch, *layer.weight_shape)

    def product(weight, input, grad):
        return (harness.torch_call(layer, "forward", input[None], weight, None)() * grad[None]).sum()

    every = torch.func.vmap(torch.func.grad(product), in_dims=(None, 0, 0))
    summed = harness.pyconv_call(layer, map_name, *arrays(x, w, y))
    single = [harness.torch_call(layer, map_name, *(array.double() for array in (x[i:i + 1], w, y[i:i + 1])))()
              for i in range(batch)]
    return Job(
        harness.pyconv_call(layer, map_name, *arrays(x, w, y), per_sample=True),
        {"torch vmap(grad)": Peer(lambda: every(w, x, y)),
         "Opacus' way": Peer(lambda: unrolled_gradients(layer, x, y)),
         "sum and write": Peer(lambda: (summed(), torch.empty(shape, dtype=x.dtype).fill_(0)), 1, 1 / 1.1)},
        torch.stack(single), 1e-6 if dtype == "float32" else 1e-13)


# Four axes


def summed_forward(layer: Layer) -> Callable[..., torch.Tensor]:
    """A convolution of four axes as torch can make it: three, for each tap of the first, whose cells join the batch."""
    inner = layer._replace(size=layer.size[1:], kernel=layer.kernel[1:], padding=layer.pads[1:])
    size, positions = layer.size[0], layer.output_size[0]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        total = x.new_zeros((x.shape[0], positions, layer.out_channels, *inner.output_size))
        cells = x.movedim(2, 1)
        for tap in range(layer.kernel[0]):
            shift = tap * layer.dilation - layer.pads[0]
            first = max(0, -(shift // layer.stride))
            last = min(positions, (size - 1 - shift) // layer.stride + 1)
            if first < last:
                read = cells[:, first * layer.stride + shift:(last - 1) * layer.stride + shift + 1:layer.stride]
                part = harness.torch_call(inner, "forward", read.flatten(0, 1), w[:, :, tap], None)()
                total[:, first:last] += part.unflatten(0, (x.shape[0], last - first))
        return total.movedim(1, 2)

    return forward


def four_axes(layer: Layer, batch: int, map_name: str, dtype: str) -> Job:
    """A convolution of four axes beside a sum of torch's of three."""
    x, w, y = harness.operands(layer, batch, getattr(torch, dtype))
    a, b, c = arrays(x, w, y)
    sizes = layer.stride, layer.padding, layer.dilation, False, 0, layer.groups
    mask = [map_name == "grad_input", map_name == "grad_weight", False]

    def ours():
        if map_name == "forward":
            return pyconv.convolution(a, b, None, *sizes)
        return pyconv.convolution_backward(c, a, b, *sizes, mask)[mask.index(True)]

    try:
        pyconv.convolution(numpy.ones((1, 1, 1, 1, 1, 1)), numpy.ones((1, 1, 1, 1, 1, 1)), None, 1, 0, 1, False, 0, 1)
    except ValueError:
        raise Missing("this pyconv has no more than three axes") from None
    forward = summed_forward(layer)
    return Job(ours, {"torch conv3d, summed": Peer(autograd_call(forward, map_name, x, w, y))},
               autograd_call(forward, map_name, x.double(), w.double(), y.double())(),
               1e-6 if dtype == "float32" else 1e-13)
