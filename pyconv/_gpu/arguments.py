"""GPU arrays as arguments: the counterparts of pyconv._arguments. Nothing here allocates or waits."""

from collections.abc import Sequence
from reprlib import repr as shown
from typing import Any

from pyconv._dtypes import is_integer, name_of, result_dtype
from pyconv._gpu import arrays, kinds, streams, tiles
from pyconv._gpu.arrays import DTYPES, DeviceArray, DeviceType
from pyconv._integers import Shape

Named = Sequence[tuple[str, DeviceArray | None]]


def operands(
    names: Sequence[str], required: tuple[Any, ...], optional: tuple[Any, ...] = (), biases: tuple[Any, ...] = (),
    wanted: Any = None, stream: Any = None,
) -> tuple[DeviceType, tuple[DeviceArray | None, ...]]:
    """(dtype, the arrays): of one kind, on one device, of one dtype, as they lie in memory; None only among what is
    optional.

    Biases, the last of them, have the result's dtype, which is `wanted` or what result_dtype makes of None.
    stream: what the call was given; its other arrays, which are read later, are asked for on it too.
    """
    streams.named.set(None if stream is None else streams.handle_of(stream))
    given = required + optional + biases
    if given[0] is None:
        raise _none(names[0])
    leader = kinds.read(names[0], given[0])
    if leader is None:
        raise not_in_main_memory(names, given)
    dtype, found = leader.dtype, [leader]
    needed, first_bias = len(required), len(given) - len(biases)
    for place in range(1, len(given)):
        name, value = names[place], given[place]
        if value is None:
            if place < needed:
                raise _none(name)
            found.append(None)  # type: ignore[arg-type]
            continue
        array = beside(name, value, names[0], leader)
        if array.kind is not leader.kind:
            raise TypeError(
                f"{name} must be an array of the library of {names[0]}, {_library(leader)}; got {_library(array)}")
        if place >= first_bias and is_integer(dtype):
            own = result_dtype(dtype, wanted)
            if array.dtype is not own:
                raise TypeError(f"{name} must have the dtype of the result, {own}; got {array.dtype}")
        elif array.dtype is not dtype:
            raise TypeError(f"{name} must have the dtype of {names[0]}, {dtype}; got {array.dtype}")
        found.append(array)
    return dtype, tuple(found)


def not_in_main_memory(names: Sequence[str], values: tuple[Any, ...]) -> TypeError:
    """What to raise where the first operand lies in main memory and another does not."""
    streams.named.set(None)  # of an earlier call, perhaps: it may be destroyed
    for name, value in zip(names, values):
        array = None if value is None else kinds.read(name, value)
        if array is not None:
            return TypeError(f"{name} must be in main memory, as {names[0]} is; got an array on cuda:{array.device}")
    return TypeError(f"{names[0]} must be an array that NumPy can read; got {type(values[0]).__name__}")


def _library(array: DeviceArray) -> str:
    """As errors call it."""
    return array.kind.library or type(array.owner).__module__.partition(".")[0]


def _none(name: str) -> TypeError:
    return TypeError(f"{name} must be an array; got None")


def beside(name: str, value: Any, leader_name: str, leader: DeviceArray) -> DeviceArray:
    """The array, if it is one on the leader's device; TypeError where it is not."""
    array = leader.kind.read(name, value) if type(value) is type(leader.owner) else None  # most are of one kind
    if array is None:
        array = kinds.read(name, value)
    if array is None:
        word = type(value).__name__
        got = f"an array in main memory ({word})" if hasattr(value, "shape") else word
        raise TypeError(f"{name} must be on the device of {leader_name}, cuda:{leader.device}; got {got}")
    if array.device != leader.device:
        raise TypeError(
            f"{name} must be on the device of {leader_name}, cuda:{leader.device}; got cuda:{array.device}"
        )
    return array


def dtype_argument(dtype: Any) -> DeviceType:
    """The type that the argument `dtype` names."""
    name = name_of(dtype)
    if name not in DTYPES:
        raise TypeError(f"dtype must be {arrays.RULE}; got {shown(dtype)}")
    return DTYPES[name]


def check_algorithm(algorithm: Any, dtype: DeviceType, allow_tf32: bool) -> None:
    """ValueError unless arrays of that type have it: of float32 warpgroups multiply but tf32."""
    names = ("auto", "gemm", *tiles.MORE_ALGORITHMS.get(dtype.name, ()))
    if dtype.name == "float32" and not allow_tf32:
        names = tuple(name for name in names if name != "wgmma")
    if not isinstance(algorithm, str) or algorithm not in names:
        raise ValueError(
            f"algorithm must be one of {', '.join(map(repr, names))} for {dtype} on a GPU; got {shown(algorithm)}"
        )


def overlapped(array: DeviceArray, others: Named) -> str | None:
    """The name of the first of the others whose bounds of memory meet the array's."""
    low, high = array.bounds()
    for name, other in others:
        if other is not None:
            bottom, top = other.bounds()
            if bottom < high and low < top and low < high and bottom < top:
                return name
    return None


def check_out(name: str, out: Any, shape: Shape, dtype: DeviceType, others: Named) -> DeviceArray:
    """The array to write to; refused where it cannot hold the result. The first of the others says which device."""
    leader_name, leader = others[0]
    assert leader is not None
    array = beside(name, out, leader_name, leader)
    check_place(name, array, shape, dtype, others)
    return array


def check_place(name: str, array: DeviceArray, shape: Shape, dtype: DeviceType, others: Named) -> None:
    """TypeError or ValueError where the array cannot hold the result."""
    if array.dtype is not dtype:
        raise TypeError(f"{name} must have dtype {dtype}; got {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}; got shape {array.shape}")
    if array.read_only:
        raise ValueError(f"{name} must be writeable; got a read-only array")
    if arrays.extent(shape, array.strides).overlaps:
        raise ValueError(f"{name} must not overlap itself; got strides {array.strides} in elements")
    other = overlapped(array, others)
    if other is not None:
        raise ValueError(f"{name} must not overlap {other}; got arrays with common bounds of memory")


def flat_buffer(name: str, buffer: Any, dtype: DeviceType, minimum: int, others: Named) -> DeviceArray | None:
    """The caller's scratch as flat memory; None for an empty array."""
    leader_name, leader = others[0]
    assert leader is not None
    array = beside(name, buffer, leader_name, leader)
    if not array.size:
        return None
    need = f"have at least {minimum} elements"
    if array.dtype is not dtype:
        raise TypeError(f"{name} must have dtype {dtype} and {need}; got {array.dtype}")
    low, high = array.bounds()
    if array.read_only or high - low != array.size * dtype.size or arrays.extent(array.shape, array.strides).overlaps:
        got = "a read-only array" if array.read_only else f"strides {array.strides} in elements"
        raise ValueError(f"{name} must be contiguous and writeable, and {need}; got {got}")
    if array.size < minimum:
        raise ValueError(f"{name} must {need}; got {array.size}")
    other = overlapped(array, others)
    if other is not None:
        raise ValueError(f"{name} must not overlap {other}, and {need}; got arrays with common bounds of memory")
    return array._replace(address=low, shape=(array.size,), strides=(1,))


def check_along_one_axis(name: str, array: DeviceArray, rank: int) -> None:
    """ValueError where its spatial axes cannot be seen as one, along which cells are evenly apart."""
    inner = array._replace(shape=(1, 1, *array.shape[-rank:]), strides=(0, 0, *array.strides[-rank:]))
    if inner.merged(1).ndim > 3:
        raise ValueError(
            f"{name} must have cells that are evenly apart in memory, where it has more than three spatial axes and "
            f"input is None on a GPU; got shape {array.shape} with strides {array.strides}")
