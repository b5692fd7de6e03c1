"""CUDA devices: kernels compiled or kept, loaded once, launched without waiting; the driver's errors in words.

Everything happens in a device's primary context, the one that CUDA's runtime and so torch, CuPy and Numba use. The
caller's current context is the same after a call as before it.
"""

import ctypes
import functools
import sys
import threading
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyconv._driver import Arguments, Launcher
from pyconv._gpu import cubins
from pyconv._gpu.cubins import Compiled, Source

ROOT = Path(__file__).parents[2]  # a checkout, or where a wheel was installed
OLDEST = 7, 5  # capability: compilers of today know no chip before, and tiles take 64 KiB of shared memory
TENSOR_MAPS = 1024  # kept at once
EARLY, EARLY_DRIVER = (9, 0), (12, 3)  # kernels that begin early: chips have them, and drivers in captured graphs
# Kernels that do not: their blocks, of which few find room on a multiprocessor, would come side by side to the first
# ones that are free, while others have none. An H100 took up to 1.7 times as long.
SPREAD = frozenset(("gather", "gather_hopper", "correlate", "depthwise", "depthwise_weight"))
STATIC_LIMIT = 48 * 1024  # bytes of shared memory that a kernel may have without asking
# After these, every call of the process fails: the context is gone.
FATAL = frozenset(f"CUDA_ERROR_{name}" for name in (
    "ILLEGAL_ADDRESS", "LAUNCH_TIMEOUT", "ASSERT", "HARDWARE_STACK_ERROR", "ILLEGAL_INSTRUCTION", "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE", "INVALID_PC", "LAUNCH_FAILED", "ECC_UNCORRECTABLE", "NVLINK_UNCORRECTABLE",
    "CONTAINED", "TENSOR_MEMORY_LEAK", "EXTERNAL_DEVICE"))
RESTART = "no CUDA call works in this process any more: it must restart"
NOT_INITIALIZED = "CUDA_ERROR_NOT_INITIALIZED"
NO_GPU = "the NVIDIA driver finds no GPU; nvidia-smi lists those it has, CUDA_VISIBLE_DEVICES may hide them"
# The driver does not know this machine code.
FOREIGN = frozenset(f"CUDA_ERROR_{name}" for name in (
    "NO_BINARY_FOR_GPU", "INVALID_IMAGE", "UNSUPPORTED_PTX_VERSION", "INVALID_SOURCE", "UNSUPPORTED_DEVSIDE_SYNC"))


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """A kernel loaded on a device, ready to launch."""

    handle: int
    name: str
    threads: int
    shared: int
    arguments: int
    early: bool
    compiled: Compiled


# The driver, its absence, its errors

@functools.cache
def library() -> ctypes.CDLL:
    """The driver itself, without any package. OSError where there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def driver_version() -> tuple[int, int] | None:
    """The CUDA version that the installed driver serves; None without driver."""
    version = ctypes.c_int()
    try:
        library().cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return (version.value // 1000, version.value % 1000 // 10) if version.value else None  # 0: a library without driver


def install_command() -> str:
    """The command that installs the packages that go with the driver, and where, as far as it is known.

    It names no index: what is found there under pyconv's name is another package. The packages of CUDA 13 would be
    found before those of 12.
    """
    version, uninstall, extra = driver_version(), "", "cuda13"
    if version is not None and version[0] < 13:
        newer = [name for name in cubins.PARTS[13] if name in cubins.versions()]
        uninstall, extra = f"pip uninstall -y {' '.join(newer)} && " if newer else "", "cuda12"
    if (ROOT / "pyproject.toml").exists():
        return f"in pyconv's checkout, {uninstall}pip install -e \".[{extra}]\""
    return f"{uninstall}pip install \"PATH[{extra}]\", where PATH is pyconv's wheel or checkout"


@functools.cache
def _driver() -> Any:
    """cuda.bindings' driver module, initialised; RuntimeError with the remedy if there is no package, driver or GPU."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise RuntimeError(f"arrays on a GPU need packages that are missing ({error}): {install_command()}") from error
    if driver_version() is None:
        raise RuntimeError("no NVIDIA driver is installed here; nvidia-smi shows when there is one")
    status, = driver.cuInit(0)
    if status:
        if status.name == "CUDA_ERROR_NO_DEVICE":
            raise RuntimeError(NO_GPU)
        if status.name in FATAL or status.name == NOT_INITIALIZED:
            raise failure(driver, status, "start the NVIDIA driver")
        raise RuntimeError(f"the NVIDIA driver does not start ({status.name}); nvidia-smi says more")
    return driver


def failure(driver: Any, status: Any, wanted: str) -> Exception:
    """The exception for a status that is not success. wanted: what was asked for, in words that follow 'to'."""
    name = status.name
    if name == "CUDA_ERROR_OUT_OF_MEMORY":
        return MemoryError(f"the GPU has no memory left to {wanted}")
    if name in FATAL:
        return RuntimeError(
            f"could not {wanted}: a kernel of this process, perhaps an earlier one, has failed ({name}); {RESTART}")
    if name == "CUDA_ERROR_CONTEXT_IS_DESTROYED":
        return RuntimeError(f"could not {wanted}: the GPU's context was destroyed, as by a reset of the device, and "
                            f"all kernels and arrays with it ({name}); restart the process")
    if name == NOT_INITIALIZED:
        return RuntimeError(f"could not {wanted}: CUDA does not work in a forked child; start processes with "
                            "multiprocessing.set_start_method('spawn')")
    if name in FOREIGN:
        return RuntimeError(
            f"could not {wanted} ({name}): the driver does not take the compiler's code; install a newer driver, or "
            f"the compiler that goes with this one: {install_command()}")
    text = driver.cuGetErrorString(status)[1]
    remedy = "; a stream must exist on the GPU of the arrays" if name == "CUDA_ERROR_INVALID_HANDLE" else ""
    return RuntimeError(f"could not {wanted}: {name}: {text.decode() if text else 'unknown'}{remedy}")


def ask(driver: Any, wanted: str, function: Any, *arguments: Any) -> Any:
    """The result of one of the driver's functions; its failure as an exception."""
    status, *results = function(*arguments)
    if status:
        raise failure(driver, status, wanted)
    return results[0] if results else None


# Devices

class Device:
    """One GPU: what it has, and the kernels loaded on it."""

    def __init__(self, index: int):
        self.index = index
        self._driver = driver = _driver()
        self._ask = functools.partial(ask, driver)
        status, self._device = driver.cuDeviceGet(min(index, 2**31 - 1))  # those of arrays are there
        if status:
            if status.name == "CUDA_ERROR_INVALID_DEVICE":
                raise ValueError(f"device must be a GPU that the driver finds; got 'cuda:{index}'")
            raise failure(driver, status, f"find GPU {index}")
        attribute = driver.CUdevice_attribute
        self.capability = (self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                           self._attribute(attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR))
        self.multiprocessors = self._attribute(attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
        self._kernels: dict[tuple[str, int, int, int], Kernel] = {}  # as many as configurations that are shipped
        self._tensor_maps: dict[tuple[int, ...], array[int]] = {}  # to encode one takes as long as a launch
        self._lock = threading.Lock()

    def _attribute(self, attribute: Any) -> int:
        return int(self._ask(f"read {attribute.name}", self._driver.cuDeviceGetAttribute, attribute, self._device))

    @property
    def name(self) -> str:
        """The GPU's name, as NVIDIA sells it."""
        name: bytes = self._ask("read a GPU's name", self._driver.cuDeviceGetName, 128, self._device)
        return name.split(b"\0")[0].decode()

    @functools.cached_property
    def _context(self) -> Any:
        return self._ask(f"open a context on GPU {self.index}", self._driver.cuDevicePrimaryCtxRetain, self._device)

    @functools.cached_property
    def _launcher(self) -> Launcher:
        def address(name: str) -> int:
            return ctypes.cast(getattr(library(), name), ctypes.c_void_p).value or 0

        names = "cuCtxGetCurrent", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2", "cuLaunchKernel"
        get_current, push, pop, kernel = map(address, names)
        early = address("cuLaunchKernelEx") if (driver_version() or (0, 0)) >= EARLY_DRIVER else 0
        return Launcher(get_current, push, pop, kernel, early, int(self._context))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """The primary context is current inside, and what was current before is so again after."""
        self._ask(f"use GPU {self.index}", self._driver.cuCtxPushCurrent, self._context)
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent()

    def kernel(self, source: Source, threads: int, shared: int, blocks_per_sm: int = 1) -> Kernel:
        """The kernel for blocks of `threads` threads and `shared` bytes of dynamic shared memory, at least
        `blocks_per_sm` of which find registers on a multiprocessor: loaded before, kept on disk, or compiled now."""
        wanted = (source.key, threads, shared, blocks_per_sm)
        found = self._kernels.get(wanted)
        if found is None:
            with self._lock:
                found = self._kernels.get(wanted)
                if found is None:
                    compiled = _compiled(source, threads, blocks_per_sm, self.capability)
                    found = self._kernels[wanted] = self._load(compiled, threads, shared, len(source.arguments))
        return found

    def _load(self, compiled: Compiled, threads: int, shared: int, arguments: int) -> Kernel:
        driver, wanted = self._driver, f"load the kernel {compiled.name} of {len(compiled.cubin)} bytes"
        with self._current():
            # a caller who captures a graph forbids what loading does; here it is no part of the graph
            relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            before = self._ask(wanted, driver.cuThreadExchangeStreamCaptureMode, relaxed)
            try:
                module = self._ask(wanted, driver.cuModuleLoadData, compiled.cubin)
                function = self._ask(wanted, driver.cuModuleGetFunction, module, compiled.name.encode())
                if shared > STATIC_LIMIT:
                    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    self._ask(wanted, driver.cuFuncSetAttribute, function, limit, shared)
            finally:
                driver.cuThreadExchangeStreamCaptureMode(before)
        early = self.capability >= EARLY and compiled.name not in SPREAD
        return Kernel(int(function), compiled.name, threads, shared, arguments, early, compiled)

    def tensor_map(self, address: int, columns: int, rows: int, row: int, box_rows: int) -> "array[int]":
        """How Hopper finds boxes of 64 columns and `box_rows` rows in a matrix of 16-bit elements at an address, whose
        rows lie `row` bytes apart: zeros outside of it, lines of 128 bytes turned with the 128-byte swizzle."""
        wanted = address, columns, rows, row, box_rows
        found = self._tensor_maps.get(wanted)
        if found is None:
            if len(self._tensor_maps) >= TENSOR_MAPS:
                self._tensor_maps.clear()
            found = self._tensor_maps[wanted] = self._encode(*wanted)
        return found

    def _encode(self, address: int, columns: int, rows: int, row: int, box_rows: int) -> "array[int]":
        driver = self._driver
        long, short = driver.cuuint64_t, driver.cuuint32_t
        with self._current():
            made = self._ask(
                "describe a matrix", driver.cuTensorMapEncodeTiled,
                driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, address, [long(columns), long(rows)],
                [long(row)], [short(64), short(box_rows)], [short(1), short(1)],
                driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
                driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return array("q", array("Q", map(int, made.opaque)).tobytes())

    def launch(self, launches: Sequence[tuple[Kernel, tuple[int, int, int], Arguments]], stream: int) -> None:
        """Put kernels on grids into the stream (its handle as an int) and return; nothing waits.

        The driver copies the arguments before it returns. TypeError for a wrong number of them.
        """
        failed = self._launcher(launches, stream)
        if failed is None:
            return
        number, place = failed
        wanted = f"use GPU {self.index}"
        if place >= 0:
            kernel, (x, y, z), _ = launches[place]
            wanted = (f"launch {kernel.name} on a grid of {x} x {y} x {z} blocks of {kernel.threads} threads and "
                      f"{kernel.shared} bytes")
        raise failure(self._driver, self._driver.CUresult(number), wanted)


def _compiled(source: Source, threads: int, blocks_per_sm: int, capability: tuple[int, int]) -> Compiled:
    """From the cache, or compiled and put there."""
    variant = "a" if capability == (9, 0) else ""  # wgmma is bound to Hopper, and code runs where it is compiled
    architecture = f"sm_{capability[0]}{capability[1]}{variant}"
    name = cubins.key(source, threads, blocks_per_sm, architecture)
    found = cubins.load(name)
    if found is None:
        start = time.perf_counter()
        try:
            from pyconv._gpu import ptx
        except ImportError as error:
            raise RuntimeError(
                f"compiling a kernel needs packages that are missing ({error}): {install_command()}") from error
        found = ptx.compile(source, threads, blocks_per_sm, capability, variant)
        cubins.log.info("compiled %s for %s in %.1f s", source.name, architecture, time.perf_counter() - start)
        cubins.store(name, found)
    return found


@functools.cache
def device(index: int) -> Device:
    """The GPU of that number, as the driver counts them. ValueError where there is none; RuntimeError, with the remedy,
    if CUDA does not work here."""
    found = Device(index)
    if found.capability < OLDEST:
        raise RuntimeError(f"device must be a GPU of capability {_dotted(OLDEST)} or above; got GPU {index}, "
                           f"{found.name}, of {_dotted(found.capability)}")
    return found


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


# For python -m pyconv

def report() -> list[str]:
    """Which GPUs and compilers there are, or what is missing and how to get it. Never raises."""
    version, found = driver_version(), cubins.versions()
    if version is None:
        if "numba-cuda" not in found:
            return [f"no NVIDIA driver, so no GPU; with one, {install_command()}"]
        return ["no NVIDIA driver, so no GPU", _of_compiler((max(cubins.PARTS), 0), found)]
    lines = [f"driver for CUDA {version[0]}.{version[1]}"]
    try:
        driver = _driver()
        count = ask(driver, "count the GPUs", driver.cuDeviceGetCount)
        lines += [] if count else [NO_GPU]
        for index in range(count):
            gpu = Device(index)
            lines.append(f"GPU {index}: {gpu.name}, capability {_dotted(gpu.capability)}, "
                         f"{gpu.multiprocessors} multiprocessors")
            if gpu.capability < OLDEST:
                lines[-1] += f": too old, kernels are for {_dotted(OLDEST)} and above"
    except Exception as error:  # whatever a driver answers, the report is about it
        lines.append(str(error))
    return [*lines, _of_compiler(version, found)]


def _of_compiler(version: tuple[int, int], found: dict[str, str]) -> str:
    """Which compiler there is, or what is missing for a driver of that version."""
    if version[0] < min(cubins.PARTS):
        return f"the driver is older than every compiler for kernels: install one for CUDA {min(cubins.PARTS)} or newer"
    if "numba-cuda" not in found:
        return f"no compiler for kernels: {install_command()}"
    major = min(version[0], max(cubins.PARTS))
    major = next((number for number, parts in sorted(cubins.PARTS.items(), reverse=True) if parts[0] in found), major)
    if version[0] < major:
        return f"the compiler is for CUDA {major}: install a newer driver than this, or {install_command()}"
    missing = [name for name in cubins.PARTS[major] if name not in found]
    installed = [str(path) for path, *_ in cubins.toolkit()] if missing else []
    if len(installed) < len(missing):
        return f"numba-cuda lacks {' and '.join(missing)}, and no CUDA toolkit is found: {install_command()}"
    return "compiler: " + ", ".join([*(f"{name} {number}" for name, number in found.items()), *installed])
