"""Time pyconv beside torch on the layers of known networks, on the CPU.

    python benchmarks/cpu.py                              ResNet-50 at batch 8, float32 and float64: about ten minutes
    python benchmarks/cpu.py --networks all               every network of layers.py
    python benchmarks/cpu.py --networks tiny --quick      a look, nothing is written

Each row is one layer, one dtype and one of the three maps: forward, grad_input, grad_weight. First both libraries'
results are compared with torch's in float64 (relative Frobenius error; a row where pyconv's is over the limit is marked
with ! and the run ends with status 1); in float64 rows that is a comparison with torch itself. Then the two take turns
in this one process, with the same number of threads, on the same NCHW arrays, until the row's time is spent; which of
them begins alternates. The times are medians. Before each turn the process sleeps for some milliseconds, the time for
which OpenMP's threads spin after their work: else each library would pay for the other's. Short calls are timed in
blocks that begin with an untimed call.

Both sides are called as a user calls them, and allocate their results: torch through torch.nn.functional and
torch.ops.aten.convolution_backward with a mask for one gradient, pyconv through its plain functions. No workspace, no
`out=`. torch.set_num_threads and pyconv.set_num_threads get the same number. In two and three dimensions torch also
runs on copies of its operands in channels-last order, made beforehand: column "torch cl".

ratio is torch's time (NCHW) over pyconv's: above 1, pyconv is faster. "bound" is what the machine allows: the larger of
products over peak and bytes over bandwidth, as a share of pyconv's time. Products with padding are not counted; bytes
are those of both operands and the result, once each. The peak is the best rate of a 2048² matrix product in NumPy or
torch with as many threads, the bandwidth that of torch's copy of 256 MB (bytes read and bytes written), both in a
process of their own. They are proxies: an algorithm that saves multiplications, or operands that stay in the cache, may
pass 100 %. Both are measured before and after; a difference shows that something else was running.

The results go to benchmarks/results as JSON, with machine, threads, date, versions and command, and as a picture (see
picture.py, which can also draw it again).
"""

import argparse
import contextlib
import datetime
import io
import json
import math
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy
import torch

import pyconv
from layers import NETWORKS, Layer, Network
from picture import draw

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

MAPS = ("forward", "grad_input", "grad_weight")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# F(4×4) Winograd, which only runs when asked for, is allowed what it is documented to lose.
ERROR_LIMIT = {"float32": 1e-6, "float64": 1e-13}
ERROR_LIMIT_ON_REQUEST = {"float32": 5e-6, "float64": 1e-12}
BLOCK_SECONDS = 2e-3
PAUSE_SECONDS = 5e-3
LEAST_SAMPLES = 5
RESULTS = Path(__file__).parent / "results"


def parse_arguments():
    """The command line, with 'all' spelt out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=["resnet50"], choices=[*NETWORKS, "all"], metavar="NETWORK",
                        help=f"all, or some of {', '.join(NETWORKS)} (default: resnet50)")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--maps", nargs="+", default=list(MAPS), choices=MAPS)
    parser.add_argument("--threads", type=int, default=pyconv.get_num_threads(),
                        help="(default: what pyconv starts with, all cores or OMP_NUM_THREADS)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row (default: 3)")
    parser.add_argument("--algorithm", default="auto", help="pyconv's algorithm= (default: auto)")
    parser.add_argument("--output", type=Path, help="the JSON file, the picture goes beside it")
    parser.add_argument("--quick", action="store_true", help="0.1 s a row, written only where --output is given")
    arguments = parser.parse_args()
    if "all" in arguments.networks:
        arguments.networks = list(NETWORKS)
    if arguments.quick:
        arguments.seconds = 0.1
    elif arguments.output is None:
        arguments.output = RESULTS / f"cpu-{'-'.join(arguments.networks)}.json"
        if len(arguments.networks) == len(NETWORKS):
            arguments.output = RESULTS / "cpu-all.json"
    return arguments


# The calls


def torch_call(layer: Layer, map_name: str, input, weight, grad_output):
    """A function of no arguments that computes the map with torch."""
    rank = layer.rank
    if map_name == "forward":
        options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "groups": layer.groups}
        if layer.transposed:
            options["output_padding"] = layer.output_padding
        function = getattr(torch.nn.functional, f"conv_transpose{rank}d" if layer.transposed else f"conv{rank}d")
        return lambda: function(input, weight, None, **options)
    stride, padding, dilation = ([value] * rank for value in (layer.stride, layer.padding, layer.dilation))
    mask = [map_name == "grad_input", map_name == "grad_weight", False]
    backward, output_padding = torch.ops.aten.convolution_backward, [layer.output_padding] * rank
    wanted = mask.index(True)
    return lambda: backward(grad_output, input, weight, None, stride, padding, dilation, layer.transposed,
                            output_padding, layer.groups, mask)[wanted]


def pyconv_call(layer: Layer, map_name: str, input, weight, grad_output, algorithm: str):
    """A function of no arguments that computes the map with pyconv, on arrays that share the tensors' memory."""
    x, w, y = input.numpy(), weight.numpy(), grad_output.numpy()
    conv, conv_input, conv_weight = (getattr(pyconv, f"conv{layer.rank}d{kind}") for kind in ("", "_input", "_weight"))
    conv_transpose = getattr(pyconv, f"conv_transpose{layer.rank}d")
    options = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "groups": layer.groups}
    if algorithm != "auto":
        options["algorithm"] = algorithm
    if layer.transposed:
        return {
            "forward": lambda: conv_transpose(x, w, None, output_padding=layer.output_padding, **options),
            "grad_input": lambda: conv(y, w, None, **options),
            "grad_weight": lambda: conv_weight(y, w.shape, x, **options),
        }[map_name]
    return {
        "forward": lambda: conv(x, w, None, **options),
        "grad_input": lambda: conv_input(x.shape, w, y, **options),
        "grad_weight": lambda: conv_weight(x, w.shape, y, **options),
    }[map_name]


def operands(layer: Layer, batch: int, dtype: torch.dtype):
    """Normal random input, weight and grad_output of one layer, always the same ones."""
    generator = torch.Generator().manual_seed(0)
    shapes = (
        (batch, layer.in_channels, *layer.size), layer.weight_shape, (batch, layer.out_channels, *layer.output_size)
    )
    return tuple(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)


def relative_error(result, reference: torch.Tensor) -> float:
    """Frobenius norm of the difference from a float64 reference over the reference's; inf for a wrong shape."""
    result = torch.as_tensor(result)
    if result.shape != reference.shape:
        return math.inf
    # torch's norm: NumPy's would start OpenBLAS' threads, which spin beside the ones that are timed.
    return float(torch.linalg.vector_norm(result.double() - reference) / torch.linalg.vector_norm(reference))


# The clock


def interleaved_medians(calls, seconds: float):
    """Median seconds of each call, their quartiles, and the number of samples; the calls take turns."""
    repeats = []
    for call in calls:
        start = time.perf_counter()
        call()
        repeats.append(max(1, math.ceil(BLOCK_SECONDS / (time.perf_counter() - start))))
    samples = [[] for _ in calls]
    deadline = time.perf_counter() + seconds
    order = list(range(len(calls)))
    while time.perf_counter() < deadline or len(samples[0]) < LEAST_SAMPLES:
        for index in order:
            samples[index].append(timed_block(calls[index], repeats[index]))
        order.reverse()
    return [statistics.median(times) for times in samples], [quartiles(times) for times in samples], len(samples[0])


def timed_block(call, repeats: int) -> float:
    """Seconds per call over a block of calls, once the other library's threads have gone to sleep."""
    time.sleep(PAUSE_SECONDS)
    if repeats > 1:
        call()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def quartiles(times):
    """First and third quartile."""
    first, _, third = statistics.quantiles(times, n=4)
    return [first, third]


def matrix_product_rate(threads: int, seconds: float = 1.5) -> dict[str, float]:
    """Best flop per second of a 2048² matrix product in NumPy and torch, by dtype."""
    torch.set_num_threads(threads)
    rates = dict.fromkeys(DTYPES, 0.0)
    for name, dtype in DTYPES.items():
        a, b = torch.rand(2, 2048, 2048, dtype=dtype)
        for product, x, y in ((numpy.matmul, a.numpy(), b.numpy()), (torch.matmul, a, b)):
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                start = time.perf_counter()
                product(x, y)
                rates[name] = max(rates[name], 2 * 2048**3 / (time.perf_counter() - start))
    return rates


def copy_rate(threads: int, seconds: float = 1.5) -> float:
    """Best bytes per second, read and written, of copying 256 MB."""
    torch.set_num_threads(threads)
    to, source = torch.zeros(2, 1 << 26)
    best, deadline = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        start = time.perf_counter()
        to.copy_(source)
        best = max(best, 2 * source.nbytes / (time.perf_counter() - start))
    return best


def measured_limits(threads: int) -> dict[str, float]:
    """Flop per second by dtype, and bytes per second.

    In a fresh process, since OpenBLAS takes its number of threads when it is loaded.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return {**pool.apply(matrix_product_rate, (threads,)), "bandwidth": pool.apply(copy_rate, (threads,))}


def bound_of(layer: Layer, batch: int, dtype: str, limits: dict[str, float]) -> tuple[float, str]:
    """Seconds that the machine needs at least, and for what."""
    itemsize = DTYPES[dtype].itemsize
    return max((layer.flop(batch) / limits[dtype], "products"),
               (layer.elements(batch) * itemsize / limits["bandwidth"], "bytes"))


# The rows


def channels_last(layer: Layer, arrays):
    """The operands in channels-last order, or None where torch has no such order or it is the same."""
    orders = {2: torch.channels_last, 3: torch.channels_last_3d}
    if layer.rank not in orders:
        return None
    return [array.contiguous(memory_format=orders[layer.rank]) for array in arrays]


def time_row(network: Network, layer: Layer, map_name: str, dtype: str, arguments, limits: dict[str, float]) -> dict:
    """Check one layer's map against float64, time it, and return the row as data."""
    arrays = operands(layer, network.batch, DTYPES[dtype])
    calls = [torch_call(layer, map_name, *arrays), pyconv_call(layer, map_name, *arrays, arguments.algorithm)]
    reference = torch_call(layer, map_name, *(array.double() for array in arrays))()
    errors = [relative_error(call(), reference) for call in calls]
    del reference
    turned = channels_last(layer, arrays)
    if turned:
        calls.append(torch_call(layer, map_name, *turned))
    limit = (ERROR_LIMIT if arguments.algorithm == "auto" else ERROR_LIMIT_ON_REQUEST)[dtype]
    medians, spreads, samples = interleaved_medians(calls, arguments.seconds)
    bound, bound_by = bound_of(layer, network.batch, dtype, limits)
    return {
        "network": network.name, "layer": str(layer), "count": network.layers[layer], "batch": network.batch,
        "map": map_name, "dtype": dtype, "flop": layer.flop(network.batch), "elements": layer.elements(network.batch),
        "torch_seconds": medians[0], "pyconv_seconds": medians[1], "ratio": medians[0] / medians[1],
        "torch_channels_last_seconds": medians[2] if turned else None,
        "torch_quartiles": spreads[0], "pyconv_quartiles": spreads[1], "samples": samples,
        "bound_seconds": bound, "bound_by": bound_by, "share_of_bound": bound / medians[1],
        "torch_error": errors[0], "pyconv_error": errors[1],
        "right": errors[1] <= limit,
    }


HEADING = (f"{'layer':36} {'map':11} {'torch cl':>10} {'torch':>10} {'pyconv':>10} {'ratio':>6} {'bound':>11} "
           f"{'error':>8}")


def row_text(row: dict) -> str:
    """One line of the table."""
    label = f"{row['layer']} ×{row['count']}" if row["count"] > 1 else row["layer"]
    mark = "" if row["right"] else " !"
    turned = row["torch_channels_last_seconds"]
    times = (duration(time) if time else "" for time in (turned, row["torch_seconds"], row["pyconv_seconds"]))
    bound = f"{100 * row['share_of_bound']:.0f}% {row['bound_by'][:5]}"
    return (f"{label:36} {row['map']:11} {' '.join(f'{time:>10}' for time in times)} {row['ratio']:6.2f} {bound:>11} "
            f"{row['pyconv_error']:8.1e}{mark}")


def duration(seconds: float) -> str:
    """Seconds in a readable unit."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def run_rows(arguments, limits: dict[str, float]) -> list[dict]:
    """Time every row, printing each as it comes."""
    work = [
        (NETWORKS[key], layer, map_name, dtype)
        for key in arguments.networks
        for dtype in arguments.dtype
        for layer in NETWORKS[key].layers
        for map_name in arguments.maps
    ]
    bar = tqdm(total=len(work), unit="row", dynamic_ncols=True, disable=None) if tqdm else None
    say = tqdm.write if tqdm else print
    rows, shown = [], None
    with bar or contextlib.nullcontext():
        for number, (network, layer, map_name, dtype) in enumerate(work, 1):
            if shown != (network, dtype):
                shown = (network, dtype)
                say(f"\n{network.name}, {dtype}\n{HEADING}")
            rows.append(time_row(network, layer, map_name, dtype, arguments, limits))
            say(row_text(rows[-1]) if tqdm else f"{row_text(rows[-1])}  [{number}/{len(work)}]")
            if bar:
                bar.update()
    return rows


def summarise(rows: list[dict]) -> list[dict]:
    """Means over each network, dtype and map: over distinct layers, over all layers, and of the summed time."""
    groups: dict[tuple, list[dict]] = {}
    for row in rows:
        groups.setdefault((row["network"], row["dtype"], row["map"]), []).append(row)
    if len({row["network"] for row in rows}) > 1:
        distinct = {(row["layer"], row["batch"], row["dtype"], row["map"]): row for row in rows}
        for (_, _, dtype, map_name), row in distinct.items():
            groups.setdefault(("all", dtype, map_name), []).append(row)
    return [
        {
            "network": network, "dtype": dtype, "map": map_name,
            "geometric_mean": statistics.geometric_mean(row["ratio"] for row in group),
            "geometric_mean_by_count": statistics.geometric_mean(
                row["ratio"] for row in group for _ in range(row["count"])
            ),
            "ratio_of_total_time": sum(row["count"] * row["torch_seconds"] for row in group)
            / sum(row["count"] * row["pyconv_seconds"] for row in group),
            "least": min(row["ratio"] for row in group), "most": max(row["ratio"] for row in group),
            "geometric_mean_of_bound": statistics.geometric_mean(row["share_of_bound"] for row in group),
        }
        for (network, dtype, map_name), group in groups.items()
    ]


def summary_text(summary: list[dict]) -> str:
    """The means as a table."""
    lines = [f"{'torch / pyconv':44} {'distinct layers':>15} {'all layers':>10} {'total time':>10} {'least':>6} "
             f"{'bound':>6}"]
    for entry in summary:
        lines.append(f"{entry['network']:28} {entry['dtype']} {entry['map']:11}"
                     f"{entry['geometric_mean']:12.2f} {entry['geometric_mean_by_count']:10.2f} "
                     f"{entry['ratio_of_total_time']:10.2f} {entry['least']:6.2f} "
                     f"{100 * entry['geometric_mean_of_bound']:5.0f}%")
    return "\n".join(lines)


# The record


def processor_name() -> str:
    """The processor's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        return subprocess.check_output(["sysctl", "-n", "machdep.cpu.brand_string"], text=True).strip()
    return platform.processor()


def describe(arguments, limits: dict[str, float]) -> dict:
    """What the numbers depend on."""
    configuration = io.StringIO()
    with contextlib.redirect_stdout(configuration):
        pyconv.show_config()
    return {
        "command": " ".join(["python benchmarks/cpu.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor_name(), "architecture": platform.machine(), "system": platform.system(),
            "cores": os.cpu_count(), "load_average": os.getloadavg()[0],
        },
        "threads": arguments.threads,
        "seconds_per_row": arguments.seconds,
        "algorithm": arguments.algorithm,
        "versions": {
            "python": platform.python_version(),
            **{module.__name__: module.__version__ for module in (pyconv, numpy, torch)},
        },
        "configuration": configuration.getvalue().splitlines(),
        "limits": limits,
    }


def main() -> None:
    """Measure, print, write."""
    arguments = parse_arguments()
    limits = measured_limits(arguments.threads)
    torch.set_num_threads(arguments.threads)
    pyconv.set_num_threads(arguments.threads)
    record = describe(arguments, limits)
    rates = [f"{limits[name] / 1e9:.0f} GFLOP/s {name}" for name in DTYPES] + [f"{limits['bandwidth'] / 1e9:.0f} GB/s"]
    print(f"{record['machine']['processor']}, {arguments.threads} threads; {', '.join(rates)}")
    with torch.no_grad():
        record["rows"] = run_rows(arguments, limits)
    record["summary"] = summarise(record["rows"])
    record["limits_after"] = measured_limits(arguments.threads)
    print(f"\n{summary_text(record['summary'])}")
    if arguments.output is not None:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        draw(record, arguments.output.with_suffix(".png"))
        print(f"\nwritten: {arguments.output} and {arguments.output.with_suffix('.png').name}")
    wrong = sum(not row["right"] for row in record["rows"])
    if wrong:
        sys.exit(f"the error of every row must stay below the limit; got {wrong} rows marked with !")


if __name__ == "__main__":
    main()
