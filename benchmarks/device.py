"""What cuda.py asks of a GPU: its clock, its peaks, the host's time for a call, its name. Everything here needs one."""

import itertools
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import packages  # noqa: F401  before what may import NVIDIA's packages

import torch

import pyconv
import pyconv.torch
from harness import quartiles
from pyconv._gpu import cubins, launch

Call = Callable[[], Any]
SAMPLE_SECONDS = 2e-4  # the least that lies between two events; their resolution is half a microsecond
MOST_REPEATS = 20  # calls between two events: the driver's queue holds about a thousand launches
LEAST_SAMPLES = 3
CLOCK_HZ = 2e9  # of torch.cuda._sleep, which counts the chip's cycles; a fast chip's, so that it sleeps long enough


@contextmanager
def precision(tf32: bool, search: bool) -> Iterator[None]:
    """torch with or without TF32, and with or without a search for cuDNN's fastest kernel."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = tf32, tf32, search
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before


# The clock


def rotating(calls: Sequence[Call]) -> Call:
    """One call after the other, again and again: so that operands do not lie in the cache from the last time."""
    turns = itertools.cycle(calls)
    return lambda: next(turns)()


def host_time(call: Call, calls: int = 3) -> float:
    """Seconds that the host takes to put one call into the stream, once everything is compiled and found."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = (time.perf_counter() - start) / calls
    torch.cuda.synchronize()
    return seconds


def timed(call: Call, repeats: int, ahead: float) -> float:
    """Seconds of the device for one of several calls. It sleeps first, so that the host, which needs `ahead` seconds
    for them, has put all into the stream when the first begins: launching is not what is timed."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(ahead * CLOCK_HZ))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3 / repeats


def timed_by_host(call: Call, repeats: int, ahead: float) -> float:
    """Seconds for one of several calls as their caller waits for them: the host's and the device's together."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def interleaved(calls: Sequence[Call], seconds: float, clock=timed) -> tuple[list[float], list[list[float]], int]:
    """Median seconds of each call, their quartiles, and the number of samples; the calls take turns."""
    settings = []
    for call in calls:
        call()  # compiles, searches
        host = max(host_time(call), 1e-5)
        once = clock(call, 1, 2 * host)
        repeats = min(MOST_REPEATS, max(1, math.ceil(SAMPLE_SECONDS / once)))
        settings.append((call, repeats, 1.5 * host * repeats + 2e-5))
    samples: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + seconds
    order = list(range(len(calls)))
    while time.perf_counter() < deadline or len(samples[0]) < LEAST_SAMPLES:
        for index in order:
            samples[index].append(clock(*settings[index]))
        order.reverse()
    return [statistics.median(times) for times in samples], [quartiles(times) for times in samples], len(samples[0])


def graph_seconds(call: Call, calls: int = 20) -> float | None:
    """Seconds of the device for one of several calls that are replayed as a CUDA graph; None where none can be made."""
    try:
        graph = _graph(call, calls)
    except RuntimeError as error:
        print(f"no CUDA graph: {error}", file=sys.stderr)
        return None
    return statistics.median(timed(graph.replay, 5, 1e-3) for _ in range(9)) / calls


def _graph(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


# The limits


def measured_limits() -> dict[str, float]:
    """Flop per second of a large matrix product by kind, and bytes per second, read and written, of a large copy."""
    limits = {}
    for name, dtype, tf32, size in (
            ("float32", torch.float32, False, 8192), ("tf32", torch.float32, True, 8192),
            ("float64", torch.float64, False, 8192), ("float16", torch.float16, False, 8192),
            ("bfloat16", torch.bfloat16, False, 8192)):
        a, b = (torch.randn(size, size, dtype=dtype, device="cuda") for _ in range(2))
        with precision(tf32, True):
            limits[name] = 2 * size**3 / _best(lambda a=a, b=b: torch.matmul(a, b))
    limits["tf32x3"] = limits["tf32"] / 3
    source = torch.randn(1 << 29, device="cuda")
    to = torch.empty_like(source)
    limits["bandwidth"] = 2 * source.nbytes / _best(lambda: to.copy_(source))
    return limits


def _best(call: Call, seconds: float = 0.25) -> float:
    """The median, of no fewer than five: a peak that lasts, not the first one of a cool chip."""
    call()
    times, deadline = [], time.perf_counter() + seconds
    while time.perf_counter() < deadline or len(times) < 5:
        times.append(timed(call, 1, 1e-4))
    return statistics.median(times)


# The host's time for a call


@contextmanager
def counting(device: Any) -> Iterator[list[str]]:
    """The names of the kernels that the device launches inside."""
    names: list[str] = []
    launched = device.launch

    def count(launches: list[Any], stream: int) -> None:
        names.extend(kernel.name for kernel, *_ in launches)
        launched(launches, stream)

    device.launch = count
    try:
        yield names
    finally:
        del device.launch


def launches(call: Call) -> list[str]:
    """The kernels of one call, in order."""
    with counting(launch.device(torch.cuda.current_device())) as names:
        call()
    return names


def host_median(call: Call, calls: int = 100, rounds: int = 9) -> float:
    """Seconds of the host for one call: the median of several rounds, each begun with nothing in the stream."""
    call()
    return statistics.median(host_time(call, calls) for _ in range(rounds))


def overhead(size: int = 8, channels: int = 8) -> dict[str, Any]:
    """Microseconds of the host for one forward of a tiny layer, by who is called, and the kernels that it launches."""
    x = torch.randn(1, channels, size, size, device="cuda")
    w = torch.randn(channels, channels, 3, 3, device="cuda")
    out = torch.empty_like(x)
    wants = pyconv.workspace(x.shape, w.shape, padding=1, device="cuda")
    buffer = torch.empty(max(wants.finput, 1), device="cuda")
    device = launch.device(torch.cuda.current_device())

    def whole() -> Any:
        return pyconv.conv2d(x, w, None, padding=1)

    def given() -> Any:
        return pyconv.conv2d(x, w, None, padding=1, out=out, finput=buffer)

    with counting(device) as names:
        whole()
    made: list[tuple[Any, ...]] = []
    device.launch = lambda launches, stream: made.append((launches[-1:], stream))
    try:
        given()
    finally:
        del device.launch
    torch_call = torch.nn.functional.conv2d
    with precision(False, True), torch.no_grad():
        microseconds = {
            "torch": host_median(lambda: torch_call(x, w, None, padding=1)),
            "pyconv": host_median(whole),
            "pyconv, out and finput given": host_median(given),
            "pyconv.torch": host_median(lambda: pyconv.torch.conv2d(x, w, None, padding=1)),
            "one launch": host_median(lambda: device.launch(*made[-1])),
        }
    return {"microseconds": {name: seconds * 1e6 for name, seconds in microseconds.items()}, "kernels": names}


# The machine


def missing() -> str:
    """What a run on a GPU lacks here, in words; nothing where all is there."""
    if torch.cuda.is_available():
        return ""
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    lines = [f"torch {torch.__version__} must see a GPU; it is {built} and sees none", *launch.report()]
    return "\n".join([*lines, "python benchmarks/cuda.py --dry says what would run, without one"])


def described() -> dict[str, Any]:
    """The GPU, its driver, and the versions of what runs on it."""
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit", "--format=csv,noheader"]
    try:
        driver = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "processor": found.name, "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count, "memory": found.total_memory,
        "driver, clock, most clock, power limit": driver, "driver's CUDA": launch.driver_version(),
    }


def versions() -> dict[str, str]:
    """Of CUDA, cuDNN and pyconv's compiler."""
    return {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version()), **cubins.versions()}
