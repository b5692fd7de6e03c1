"""Arrays of other libraries in main memory: read where they lie through DLPack, and results given back as theirs.

No library is imported: an array of one has brought it along. What has no library of its own counts as NumPy's.
"""

import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.typing import NDArray

from pyconv._dtypes import bfloat16_of
from pyconv._integers import steps_of
from pyconv._memory import claim


class Visitor(ndarray[Any, Any]):
    """An array of another library as NumPy sees it: the same memory. `owner` is what the caller knows.

    Of the operands only the first is one, and stands for the library that results belong to.
    """

    owner: Any = None


def library_of(value: Any) -> ModuleType | None:
    """The module whose from_dlpack makes arrays of the kind that `value` is; None for NumPy."""
    if isinstance(value, (ndarray, list, tuple)):
        return None
    kind: Any = type(value)
    return value.__array_namespace__() if _says_library(kind) else _module_of(kind)


@lru_cache(maxsize=64)
def _says_library(kind: type) -> bool:
    return hasattr(kind, "__dlpack__") and hasattr(kind, "__array_namespace__")


@lru_cache(maxsize=64)
def _module_of(kind: type) -> ModuleType | None:
    for base in kind.__mro__ if hasattr(kind, "__dlpack__") else ():
        module = sys.modules.get(base.__module__.partition(".")[0])
        if hasattr(module, "from_dlpack"):
            return module
    return None


def name_of(library: ModuleType | None) -> str:
    """As errors call it."""
    return "numpy" if library is None else library.__name__


@lru_cache(maxsize=64)
def answers_for_operators(kind: Any) -> bool:
    """Whether tensors of that class of torch's may have their values elsewhere than in their memory."""
    return kind.__torch_dispatch__ is not sys.modules["torch"].Tensor.__torch_dispatch__


@lru_cache(maxsize=4)
def _questions(torch: Any) -> tuple[Any, ...]:
    """What tells that torch compiles what is called, and what that it traces: without the way there, which takes
    longer. A torch that has not one of them is not asked.
    """
    def ask(path: str, *names: str) -> Any:
        try:
            question = attrgetter(path)(torch)
            return partial(question, *(attrgetter(name)(torch) for name in names)) if names else question
        except AttributeError:
            return bool

    return (
        ask("_C._dynamo.eval_frame.get_eval_frame_callback"), ask("_C._is_tracing"),
        ask("_C._dispatch_tls_is_dispatch_key_included", "_C.DispatchKey.PreDispatch"),
        ask("_C._len_torch_dispatch_stack"),
        [ask("_C._get_dispatch_mode", f"_C._TorchDispatchModeKey.{mode}") for mode in ("PROXY", "FUNCTIONAL")],
    )


def check_tensors(names: Sequence[str], values: Sequence[Any]) -> None:
    """TypeError where a tensor of torch has its values elsewhere than in its memory, or torch follows what is done
    with it: all that it would see of a call is that a result is made.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    found, tensor = None, torch.Tensor
    for name, value in zip(names, values):
        kind = type(value)
        if kind is tensor:
            found = found or name
        elif value is not None and isinstance(value, tensor):
            found = found or name
            if answers_for_operators(kind):  # type: ignore[arg-type]
                raise TypeError(
                    f"{name} must hold its values in its own memory (see pyconv.torch for other tensors); "
                    f"got a {kind.__name__}")
    if found is None:
        return
    compiled = torch.compiler.is_dynamo_compiling()  # asked in no other function: torch.compile answers True in this
    if not compiled:
        compiler, tracing, early, modes, followers = _questions(torch)
        compiled = compiler() not in (None, False) and not torch._dynamo.config.disable  # then torch runs it as it is
        if tracing() or early() or modes() and any(mode() is not None for mode in followers):
            raise TypeError(
                f"{found} must be outside of torch.jit.trace and make_fx, which take pyconv.torch's functions; "
                "got a tensor inside")
    if compiled:
        raise TypeError(
            f"{found} must be outside of torch.compile, which takes pyconv.torch's functions, and plain ones as "
            "torch.compiler.disable(pyconv.conv2d); got a tensor inside")


@lru_cache(maxsize=64)
def exchange_of(kind: Any) -> Any:
    """What numpy.from_dlpack asks for a torch tensor of that type; None where there is none, or NumPy would only read.

    It is torch's own function, in a third of the time of its method. Tensor.numpy is as fast, but torch can never
    resize the tensor afterwards.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not issubclass(kind, torch.Tensor) or np.lib.NumpyVersion(np.__version__) < "2.1.0":
        return None
    export: Any = getattr(torch._C, "_to_dlpack_versioned", None)
    if export is None or answers_for_operators(kind):
        return None
    own = None if _says_library(kind) else name_of(_module_of(kind))
    floats = torch.float32, torch.float64

    class Exchange:
        __slots__ = ("tensor",)

        dtypes = floats if own == "torch" else ()  # of the arrays that `plain` is asked for
        layout = torch.strided

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, max_version: Any, dl_device: Any, copy: Any) -> Any:
            return export(self.tensor)

    return Exchange


def plain(value: Any) -> NDArray[Any] | None:
    """The memory of a tensor of torch, of float32 or float64 and in main memory, that has nothing else to be asked or
    done, as most have; else None."""
    exchange: Any = exchange_of(type(value))  # type: ignore[arg-type]
    if exchange is None:
        return None
    try:
        if (
            value.is_cpu and value.dtype in exchange.dtypes and value.layout is exchange.layout and not value.is_neg()
            and not value._is_zerotensor() and has_memory(value)
        ):
            return np.from_dlpack(exchange(value))
    except RuntimeError:  # of torch's, as there is no memory to see
        pass
    return None


def _is_transformed(value: Any) -> bool:
    """Whether it is a tensor that a transform of torch.func puts in the place of one."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor) and (
        torch._C._functorch.is_functorch_wrapped_tensor(value))


def read(name: str, value: Any) -> NDArray[Any]:
    """The memory of an array that has __dlpack__; a gradient that it requires is not recorded.

    TypeError in the words of the argument `name` where NumPy cannot see what it holds.
    """
    array = plain(value)
    if array is not None:
        return array
    if _is_transformed(value):
        raise TypeError(
            f"{name} must be outside of torch.func's transforms, which take pyconv.torch's functions; "
            "got a tensor inside")
    if getattr(value, "requires_grad", False):
        value = value.detach()
    if hasattr(value, "is_neg") and value.is_neg():
        raise TypeError(f"{name} must hold its values as they are; got a tensor that resolve_neg would negate")
    if hasattr(value, "is_conj") and value.is_conj():
        raise TypeError(f"{name} must hold its values as they are; got a tensor that resolve_conj would conjugate")
    exchange: Any = exchange_of(type(value))  # type: ignore[arg-type]
    try:
        if hasattr(value, "is_neg") and value.is_cpu and value.layout is sys.modules["torch"].strided:
            value = with_memory(name, value)
            if exchange is not None and value.dtype is not sys.modules["torch"].bfloat16:
                return np.from_dlpack(exchange(value))
        if str(getattr(value, "dtype", "")).endswith("bfloat16"):
            return _bfloat16(name, value)
        return np.from_dlpack(value)
    except Exception as error:
        if _is_traced(value):
            raise TypeError(
                f"{name} must be outside of jax.jit, jax.grad and their like, which take pyconv.jax's functions; "
                f"got a {type(value).__name__}") from None
        if isinstance(error, TypeError):
            raise
        raise TypeError(f"{name} must be an array that NumPy can read; got {type(value).__name__}") from error


def _is_traced(value: Any) -> bool:
    """Whether it stands for an array of JAX's that is not there."""
    jax: Any = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def with_memory(name: str, tensor: Any) -> Any:
    """The tensor; of one of zeros that torch keeps without memory, such as a tangent may be, a usual one.

    TypeError where its memory was given back, of which a view elsewhere than at the start has an address still.
    """
    if tensor._is_zerotensor():  # its storage has a size all the same
        return sys.modules["torch"].zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if has_memory(tensor) or not tensor.numel():
        return tensor
    raise TypeError(f"{name} must have memory of its own; got a {type(tensor).__name__} without")


def has_memory(tensor: Any) -> bool:
    """False where it has none, that was never there or was given back."""
    return bool(tensor.untyped_storage().nbytes() if tensor.storage_offset() else tensor.data_ptr())


def check_target(name: str, value: Any, operand: Any) -> None:
    """TypeError or ValueError where what is written to a tensor of torch would be lost, or a gradient would.

    operand: the first of the call. Where it is torch's, check_tensors has asked whether torch follows the call.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return
    if type(value) is not torch.Tensor or not isinstance(getattr(operand, "owner", operand), torch.Tensor):
        check_tensors((name,), (value,))
    if value._is_zerotensor():
        raise TypeError(f"{name} must have memory of its own; got a tensor of zeros without")
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(f"{name} must require no gradient, of which none is recorded; got a tensor that does")
    forward_mode = torch.autograd.forward_ad
    if forward_mode._current_level >= 0 and forward_mode.unpack_dual(value).tangent is not None:
        raise ValueError(f"{name} must have no tangent, as none is worked out; got a dual tensor")


def tell_of_writing(*targets: Any) -> None:
    """Let torch know of tensors that are written to: autograd may have saved what they held."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return
    tensor, tell = torch.Tensor, torch.autograd.graph.increment_version
    for target in targets:
        if type(target) is tensor:
            tell(target)
        elif target is not None and isinstance(owner := getattr(target, "owner", target), tensor):
            tell(owner)


def _bfloat16(name: str, value: Any) -> NDArray[Any]:
    """NumPy has the type from ml_dtypes, and DLPack cannot bring it to NumPy: its bits come as integers."""
    library, dtype = library_of(value), bfloat16_of(name, value.dtype)
    return np.from_dlpack(value.view(library.uint16)).view(dtype)  # type: ignore[union-attr]


def visiting(array: NDArray[Any], owner: Any) -> Visitor:
    """The array as what NumPy sees of `owner`."""
    visitor = array.view(Visitor)
    visitor.owner = owner
    return visitor


def placed(out: Any, like: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """`out`, or a new one of torch's where there is none and the operand `like` is torch's; else None.

    torch can resize a tensor, and write to it as the `out` of its own functions, only where it owns the memory.
    TypeError where results of that type cannot be given back.
    """
    if out is not None or type(like) is not Visitor:
        return out
    if exchange_of(type(like.owner)) is None:  # type: ignore[arg-type]
        _check_kept(like, dtype)
        return None
    torch: Any = sys.modules["torch"]
    try:
        tensor = torch.empty_strided(shape, steps_of(shape), dtype=_torch_dtype(dtype), device="cpu")
    except RuntimeError:  # no memory, which NumPy says as a MemoryError
        return None
    exchange: Any = exchange_of(type(tensor))  # type: ignore[arg-type]
    if exchange is None or torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # of a mode, without memory
        return None
    array = np.from_dlpack(exchange(tensor)) if dtype.kind != "V" else read("out", tensor)
    claim(array)
    return visiting(array, tensor)


def _check_kept(like: Visitor, dtype: np.dtype[Any]) -> None:
    """TypeError where the operand's library makes another type of that: JAX int32 of int64, as long as its setting
    jax_enable_x64 is off."""
    if dtype == like.dtype or dtype.kind not in "iu":
        return
    kept = read("out", given_back(np.zeros(1, dtype), like)).dtype
    if kept != dtype:
        library = name_of(library_of(like.owner))
        raise TypeError(f"dtype must be one that {library} keeps as it is, for a result that it is given; got {dtype}, "
                        f"of which it makes {kept}")


@lru_cache(maxsize=64)
def _torch_dtype(dtype: np.dtype[Any]) -> Any:
    """torch's of that name, which NumPy takes a microsecond to say."""
    return getattr(sys.modules["torch"], dtype.name)


def given_back(array: NDArray[Any], like: Any) -> Any:
    """A new C-contiguous array as one of the library and on the device of the operand `like`: the same memory."""
    library = library_of(like.owner) if type(like) is Visitor else None
    if library is None:
        return array
    bits = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    if hasattr(like.owner, "__array_namespace__"):
        found = library.from_dlpack(bits, device=like.owner.device)
    else:
        found = library.from_dlpack(bits)
    return found if bits is array else found.view(like.owner.dtype)
