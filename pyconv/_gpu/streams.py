"""CUDA streams as integer handles: which one a call runs on, and how one waits for another.

0 is the legacy default stream, 2 the default stream of the thread, as the driver numbers them; every other handle is
the address of a stream. Nothing here makes the host wait.
"""

import ctypes
from contextvars import ContextVar
from functools import cache, partial
from operator import index
from reprlib import repr as shown
from typing import Any

from pyconv._gpu import launch

LEGACY = 0
DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
RULE = ("be a stream's handle, an int of 0 to 2**64 - 1, or an object with __cuda_stream__, cuda_stream, ptr or "
        "handle")

# The stream that this thread's last call was given, from when its first operand is read; None where it was given none.
named: ContextVar[int | None] = ContextVar("named", default=None)


def normal(handle: int) -> int:
    """The handle; the legacy default stream has two, 0 and 1."""
    return LEGACY if handle == 1 else handle


def handle_of(stream: Any) -> int:
    """The handle of a stream of torch, CuPy, Numba, cuda.core, or the handle itself. TypeError or ValueError."""
    if type(stream) is int and 0 <= stream < 2**64:
        return normal(stream)
    handle = stream
    if hasattr(stream, "__cuda_stream__"):
        _, handle = stream.__cuda_stream__()
    else:
        for word in ("cuda_stream", "ptr", "handle"):
            if hasattr(stream, word):
                handle = getattr(stream, word)
                break
    handle = getattr(handle, "value", handle)  # of ctypes, where the null pointer is None
    if handle is None and stream is not None:
        return LEGACY
    try:
        number = int(handle) if handle is not stream else index(stream)
    except (TypeError, ValueError):
        raise TypeError(f"stream must {RULE}; got {shown(stream)}") from None
    if isinstance(stream, bool):
        raise TypeError(f"stream must {RULE}; got {stream}")
    if not 0 <= number < 2**64:
        raise ValueError(f"stream must {RULE}; got {shown(stream)}")
    return normal(number)


@cache
def _context(device: int) -> Any:
    """The device's primary context, which the frameworks use too; it is kept."""
    driver = launch._driver()
    found = launch.ask(driver, f"find GPU {device}", driver.cuDeviceGet, device)
    return launch.ask(driver, f"open a context on GPU {device}", driver.cuDevicePrimaryCtxRetain, found)


def device_of(address: int) -> int | None:
    """The device that memory belongs to; None where the driver does not know it.

    Asked without cuda.bindings: that of 12.9.6, 12.9.8, 13.2, 13.3.1 and 13.4.1 answers 0 whatever the device is.
    """
    driver, device = launch._driver(), ctypes.c_int()
    failed = launch.library().cuPointerGetAttribute(ctypes.byref(device), DEVICE_ORDINAL, ctypes.c_uint64(address))
    if not failed:
        return device.value
    status = driver.CUresult(failed)
    if status.name == "CUDA_ERROR_INVALID_VALUE":
        return None
    raise launch.failure(driver, status, "find the device of an array")


def current_device() -> int:
    """The device of this thread's current context, 0 where it has none: that of an array that has no memory."""
    status, device = launch._driver().cuCtxGetDevice()
    return 0 if int(status) else int(device)


def wait(stream: int, after: int, device: int) -> None:
    """Let what comes next on `stream` begin when all that is now on the stream `after` has ended."""
    driver = launch._driver()
    ask = partial(launch.ask, driver, "let a stream wait for another")
    ask(driver.cuCtxPushCurrent, _context(device))
    try:
        event = ask(driver.cuEventCreate, driver.CUevent_flags.CU_EVENT_DISABLE_TIMING.value)
        try:
            ask(driver.cuEventRecord, event, after)
            ask(driver.cuStreamWaitEvent, stream, event, 0)
        finally:
            driver.cuEventDestroy(event)  # what fails here has failed above, or does so in the next launch
    finally:
        driver.cuCtxPopCurrent()
