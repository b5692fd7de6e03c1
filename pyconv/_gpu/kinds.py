"""Which objects are GPU arrays, and how new ones are made.

No framework is imported: an object of one has brought it along, so that it is looked up in sys.modules. KINDS are asked
in turn, and the first that knows an object reads it.

    torch       CUDA tensors, also those that require gradients (only their memory is used). New arrays are tensors on
                the same device, work goes to torch's current stream.
    CuPy        the same with cupy.ndarray.
    interface   anything else with __cuda_array_interface__ (version 2 or 3) or DLPack: Numba, JAX, cuda.core, ... New
                arrays are Numba device arrays: Numba is there in any case, and other libraries read them.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial
from importlib import import_module
from operator import index
from reprlib import repr as shown
from typing import Any, NamedTuple

import numpy as np

from pyconv._backend import cpu, has_interface_alone
from pyconv._gpu import dlpack, launch, streams
from pyconv._gpu.arrays import (
    COMPLEX,
    DTYPES,
    NAMES_OF_TYPESTR,
    DeviceArray,
    DeviceType,
    Kind,
    Lie,
    Made,
    checked_dtype,
)
from pyconv._integers import Shape, steps_of


@lru_cache(maxsize=4096)
def _in_torch(torch: Any, shape: Shape, dtype: DeviceType, device: int) -> tuple[Shape, Callable[[], Any]]:
    """The strides of a C-contiguous tensor, and what makes one."""
    strides = steps_of(shape)
    return strides, partial(
        torch.empty_strided, shape, strides, dtype=getattr(torch, dtype.name), device=torch.device("cuda", device))


@lru_cache(maxsize=64)
def _torch_stream(torch: Any, stream: int, device: int) -> Any:
    """A stream as torch has it, which need not have made it: the handle and no more, whoever destroys the stream."""
    if stream == streams.LEGACY:  # as the handle of an ExternalStream it would be a new stream of torch's pool
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(stream, device=device)


def _address_of(tensor: Any) -> int:
    """0 where the memory was given back; torch would still name an address elsewhere than at its beginning."""
    if tensor.storage_offset() and not tensor.untyped_storage().nbytes():
        return 0
    return tensor.data_ptr()  # type: ignore[no-any-return]


class TorchKind(Kind):
    """CUDA tensors of torch."""

    library = "torch"

    def __init__(self) -> None:
        self._dtypes: dict[Any, DeviceType] = {}  # by torch's own

    def read(self, name: str, value: Any) -> DeviceArray | None:
        """The tensor's own memory."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or not value.is_cuda:
            return None
        if value.layout is not torch.strided:
            raise TypeError(f"{name} must be a dense tensor; got {value.layout}")
        if value.is_neg():
            raise TypeError(f"{name} must hold its values as they are; got a tensor that resolve_neg would negate")
        if value._is_zerotensor():  # an address it has, but for the first of a storage
            raise TypeError(f"{name} must have memory for its elements; got a tensor of zeros without")
        dtype = self._dtypes.get(value.dtype)
        if dtype is None:
            dtype = self._dtypes[value.dtype] = checked_dtype(name, str(value.dtype).removeprefix("torch."))
        if dtype in COMPLEX and value.is_conj():
            raise TypeError(f"{name} must hold its values as they are; got a tensor that resolve_conj would conjugate")
        address, shape, strides = _address_of(value), tuple(value.shape), value.stride()
        if not address or address % dtype.size:
            _check_address(name, address, shape, strides, dtype)
        return DeviceArray(value, address, shape, strides, dtype, value.get_device(), self)

    def lie(self, names: Sequence[str], given: Sequence[Any], operands: int) -> Lie | None:
        """Of tensors that have passed check_tensors, in half the time of `read`."""
        torch: Any = sys.modules.get("torch")
        if torch is None:  # others' arrays have is_cuda too
            return None
        tensor, strided = torch.Tensor, torch.strided
        found: list[Any] = []
        addresses = {}
        for name, value in zip(names, given):
            if value is None:
                found.append(None)
                continue
            if (
                not isinstance(value, tensor) or not value.is_cuda or value.layout is not strided or value.is_neg()
                or value.is_conj() or value._is_zerotensor()
                or value.storage_offset() and not value.untyped_storage().nbytes()  # as in _address_of
            ):
                return None
            addresses[name] = address = value.data_ptr()
            found.append((  # 16 tells all alignments; a tensor whose memory was freed has address 0
                value.shape, value.stride(), value.get_device(), value.dtype, address & 15 if address else None))
        for value in given[operands:]:
            if value is not None and (
                    type(value) is not tensor or value.requires_grad or torch.autograd.forward_ad._current_level >= 0):
                return None
        return found, addresses, None

    def made(self, shape: Shape, dtype: DeviceType, device: int) -> Made:
        """From torch's caching allocator. Of a usual tensor only the address is asked for: it is as it was wanted."""
        torch: Any = sys.modules["torch"]
        strides, make = _in_torch(torch, shape, dtype, device)
        tensor = make()
        if type(tensor) is torch.Tensor and (address := tensor.data_ptr()):
            return tensor, address, strides
        return self.read_new(tensor)

    def stream(self, device: int) -> int:
        """torch.cuda.current_stream; the handle alone where torch gives it so, a twentieth of the work."""
        torch: Any = sys.modules["torch"]
        try:
            ask = torch._C._cuda_getCurrentRawStream
        except AttributeError:
            return streams.normal(torch.cuda.current_stream(device).cuda_stream)
        return streams.normal(ask(device))

    def using(self, stream: int, device: int, named: Any) -> AbstractContextManager[Any]:
        """torch.cuda.stream."""
        torch: Any = sys.modules["torch"]
        return torch.cuda.stream(_torch_stream(torch, stream, device))  # type: ignore[no-any-return]

    def lend(self, owner: Any, device: int, stream: int) -> None:
        """torch.Tensor.record_stream: freed memory is given to nobody while the stream has this work to do."""
        owner.record_stream(_torch_stream(sys.modules["torch"], stream, device))


@lru_cache(maxsize=4096)
def _in_cupy(cupy: Any, shape: Shape, dtype: DeviceType) -> tuple[Shape, Callable[[], Any]]:
    """The strides of a C-contiguous array, and what makes one on the current device."""
    return steps_of(shape), partial(cupy.empty, shape, _numpy_dtype(dtype))


class CupyKind(Kind):
    """cupy.ndarray."""

    library = "cupy"

    def read(self, name: str, value: Any) -> DeviceArray | None:
        """The array's own memory."""
        cupy = sys.modules.get("cupy")
        if cupy is None or not isinstance(value, cupy.ndarray):
            return None
        known = NAMES_OF_TYPESTR.get(value.dtype.str)  # the name of a dtype takes NumPy 2 us
        dtype = DTYPES[known] if known else checked_dtype(
            name, value.dtype.name if value.dtype.isnative else str(value.dtype))
        strides = _in_elements(name, value.data.ptr, value.strides, dtype)
        _check_address(name, value.data.ptr, value.shape, strides, dtype)
        return DeviceArray(value, value.data.ptr, value.shape, strides, dtype, value.data.device_id, self)

    def lie(self, names: Sequence[str], given: Sequence[Any], operands: int) -> Lie | None:
        """Of arrays of no class derived from CuPy's, which may answer anything. Those without memory are left to
        `read`."""
        usual = getattr(sys.modules.get("cupy"), "ndarray", None)
        found: list[Any] = []
        addresses = {}
        for name, value in zip(names, given):
            if value is None:
                found.append(None)
                continue
            if type(value) is not usual:
                return None
            memory = value.data
            addresses[name] = address = memory.ptr
            if not address:
                return None
            found.append((value.shape, value.strides, value.dtype, memory.device_id, address & 15))
        return found, addresses, None

    def made(self, shape: Shape, dtype: DeviceType, device: int) -> Made:
        """From CuPy's memory pool. Of a usual array only the address is asked for, as of torch's."""
        cupy: Any = sys.modules["cupy"]
        strides, make = _in_cupy(cupy, shape, dtype)
        with cupy.cuda.Device(device):
            array = make()
        if type(array) is cupy.ndarray and (address := array.data.ptr):
            return array, address, strides
        return self.read_new(array)

    def stream(self, device: int) -> int:
        """cupy.cuda.get_current_stream."""
        return streams.normal(sys.modules["cupy"].cuda.get_current_stream(device).ptr)

    @contextmanager
    def using(self, stream: int, device: int, named: Any) -> Any:
        """CuPy's memory pool keeps one arena for each stream."""
        cuda = sys.modules["cupy"].cuda
        with cuda.Device(device), cuda.ExternalStream(stream, device):
            yield


class InterfaceKind(Kind):
    """Numba's device arrays, and every other object that says where its memory is."""

    _stream: ContextVar[tuple[int, Any]] = ContextVar("stream", default=(streams.LEGACY, None))

    def read(self, name: str, value: Any) -> DeviceArray | None:
        """By the protocol that says in which order the object was written, if there is one that does."""
        try:
            given = getattr(value, "__cuda_array_interface__", None)
        except Exception as error:  # a producer's own
            raise TypeError(f"{name} must have a __cuda_array_interface__ that can be read; got {type(value).__name__} "
                            f"({error})") from error
        interface = None if given is None else _interface(name, given)
        if (interface is None or interface.version < 3) and dlpack.on_gpu(value):
            return self._from_dlpack(name, value)
        return None if interface is None else self._from_interface(name, value, interface)

    def lie(self, names: Sequence[str], given: Sequence[Any], operands: int) -> Lie | None:
        """Of arrays that have this protocol alone, and all name one stream or none."""
        found: list[Any] = []
        addresses = {}
        written_on = set()
        for name, value in zip(names, given):
            if value is None:
                found.append(None)
                continue
            if not has_interface_alone(type(value)):  # type: ignore[arg-type]
                return None
            entries = value.__cuda_array_interface__
            address, read_only = entries["data"]
            laid = cpu.form((entries["typestr"], entries["shape"], entries.get("strides"), entries["version"]), (), ())
            written_on.add(entries.get("stream"))
            is_usual = type(address) is int and type(read_only) is bool and entries.get("mask") is None
            if laid is None or not is_usual or not address or entries["typestr"] not in NAMES_OF_TYPESTR:
                return None
            addresses[name] = address
            found.append((laid, read_only, streams.device_of(address), address & 15))
        [stream, *others] = written_on
        if others or not (stream is None or type(stream) is int):
            return None
        return found, addresses, None if stream is None else streams.normal(stream)

    def _from_interface(self, name: str, value: Any, interface: "Interface") -> DeviceArray:
        version, typestr, shape, address, read_only, steps, stream, masked = interface
        if version < 2:
            raise TypeError(f"{name} must have __cuda_array_interface__ of version 2 or 3; got version {version}")
        if masked:
            raise TypeError(f"{name} must have no mask; got a masked array")
        if typestr in NAMES_OF_TYPESTR:
            dtype = DTYPES[NAMES_OF_TYPESTR[typestr]]
        else:
            named = str(getattr(value, "dtype", typestr))  # bfloat16 has no typestr of its own
            dtype = checked_dtype(name, named if named == "bfloat16" else typestr)
        if steps is not None and len(steps) != len(shape):
            raise TypeError(f"{name} must have a stride for each axis; got shape {shape} and strides {steps} in bytes")
        strides = steps_of(shape) if steps is None else _in_elements(name, address, steps, dtype)
        _check_address(name, address, shape, strides, dtype)
        device = streams.device_of(address) if address else streams.current_device()
        if device is None:
            raise TypeError(f"{name} must lie in memory that the CUDA driver knows; got address {address}")
        after = None if stream is None else streams.normal(stream)
        return DeviceArray(value, address, shape, strides, dtype, device, self, read_only, after)

    def _from_dlpack(self, name: str, value: Any) -> DeviceArray:
        stream = streams.named.get() or streams.LEGACY
        try:
            tensor = dlpack.read(value, stream or dlpack.LEGACY)
        except MemoryError:
            raise
        except Exception as error:  # a producer's own
            raise TypeError(
                f"{name} must be an array that DLPack can read; got {type(value).__name__} ({error})") from error
        if tensor.copied:
            raise TypeError(f"{name} must give its own memory through DLPack; got a copy")
        dtype = checked_dtype(name, tensor.dtype)
        strides = steps_of(tensor.shape) if tensor.strides is None else tensor.strides
        _check_address(name, tensor.address, tensor.shape, strides, dtype)
        return DeviceArray(
            value, tensor.address, tensor.shape, strides, dtype, tensor.device, self, tensor.read_only, stream
        )

    def new(self, shape: Shape, dtype: DeviceType, device: int) -> Any:
        """A Numba device array that names the stream on which it is written, and keeps it alive."""
        cuda = _package("numba.cuda", launch.install_command())
        handle, named = self._stream.get()
        with cuda.gpus[device]:
            stream: Any = cuda.external_stream(handle) if handle else 0
            if handle and type(named) is type(stream):
                stream = named
            elif handle:
                stream.named = named
            return cuda.device_array(shape, _numpy_dtype(dtype), stream=stream)

    @contextmanager
    def using(self, stream: int, device: int, named: Any) -> Any:
        """The stream that new arrays name."""
        token = self._stream.set((stream, named))
        try:
            yield
        finally:
            self._stream.reset(token)


TORCH, CUPY, INTERFACE = TorchKind(), CupyKind(), InterfaceKind()
KINDS: list[Kind] = [TORCH, CUPY, INTERFACE]


def read(name: str, value: Any) -> DeviceArray | None:
    """The GPU array that `value` is, None where it is none. TypeError in the words of the argument `name`."""
    for kind in KINDS:
        array = kind.read(name, value)
        if array is not None:
            return array
    return None


class Interface(NamedTuple):
    """What __cuda_array_interface__ says, with strides in bytes."""

    version: int
    typestr: str
    shape: Shape
    address: int
    read_only: bool
    strides: Shape | None
    stream: int | None
    masked: bool


def _interface(name: str, given: Any) -> Interface:
    """The entries of __cuda_array_interface__. TypeError where one is missing, or of another kind."""
    try:
        address, read_only = given["data"]
        strides, stream = given.get("strides"), given.get("stream")
        return Interface(
            index(given["version"]), str(given["typestr"]), tuple(map(index, given["shape"])), index(address or 0),
            bool(read_only), None if strides is None else tuple(map(index, strides)),
            None if stream is None else int(stream), given.get("mask") is not None)
    except Exception as error:
        rule = "have a __cuda_array_interface__ with version, typestr, shape and data"
        raise TypeError(f"{name} must {rule}; got {shown(given)}") from error


def _in_elements(name: str, address: int, steps: Shape, dtype: DeviceType) -> Shape:
    """Strides of bytes in elements. TypeError where one is none of whole elements."""
    if any([step % dtype.size for step in steps]):
        raise _misaligned(name, address, steps)
    return tuple([step // dtype.size for step in steps])


def _check_address(name: str, address: int, shape: Shape, strides: Shape, dtype: DeviceType) -> None:
    """TypeError where elements cannot lie at the address: a tensor whose storage was freed has 0."""
    if address % dtype.size:
        raise _misaligned(name, address, tuple(step * dtype.size for step in strides))
    if not address and 0 not in shape:
        raise TypeError(f"{name} must have memory for its elements; got address 0 and shape {shape}")


def _misaligned(name: str, address: int, steps: Shape) -> TypeError:
    return TypeError(
        f"{name} must be aligned to its elements; got address {address} and strides {tuple(steps)} in bytes")


def _numpy_dtype(dtype: DeviceType) -> np.dtype[Any]:
    if dtype.name == "bfloat16":
        _package("ml_dtypes", "pip install ml_dtypes")
    return dtype.dtype


def _package(name: str, command: str) -> Any:
    """A module that new arrays are made with. RuntimeError with the command that installs it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise RuntimeError(f"new arrays on a GPU need a package that is missing ({error}): {command}") from error
