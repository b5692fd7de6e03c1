"""Time pyconv beside torch on the layers of known networks, on the CPU.

    python benchmarks/cpu.py                              ResNet-50 at batch 8, float32 and float64: about ten minutes
    python benchmarks/cpu.py --networks all               every network of layers.py but "elsewhere"
    python benchmarks/cpu.py --networks resnet50 vgg16 --dtype float32 --algorithm winograd
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
`out=`. torch.set_num_threads and pyconv.set_num_threads get the same number. In two and three dimensions both also run
on copies of their operands in channels-last order, of the weight too, made beforehand: columns "torch cl" and "pyconv
cl". torch then gives such results, pyconv writes to new arrays in that order.

ratio is torch's time (NCHW) over pyconv's: above 1, pyconv is faster. "bound" is what the machine allows: the larger of
products over peak and bytes over bandwidth, as a share of pyconv's time. Products with padding are not counted; bytes
are those of both operands and the result, once each. The peak is that of multiply-adds between registers with as many
threads (see peak.py), the bandwidth that of torch's copy of 256 MB (bytes read and bytes written), both in a process of
their own. An algorithm that saves multiplications, or operands that stay in the cache, may pass 100 %. Both limits are
measured before and after; a difference shows that something else was running, and the rows that are written have the
bounds of the higher ones. "apart" is how long a cache line takes to the other processor and back (see handover.py), the
longer of before and after the row: where that is several hundred nanoseconds, as it is at times on a virtual machine,
whatever two threads share takes longer.

`held_by` of a row names what holds it, a class of holds.py; run that after `--networks all`: it writes their list anew.
The results go to benchmarks/results as JSON, with machine, threads, date, versions and command, and as a picture (see
picture.py, which can also draw it again).
"""

import argparse
import contextlib
import functools
import io
import math
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Iterable, Iterator

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy
import torch

import harness
import holds
import pyconv
from handover import handover_seconds
from harness import MAPS, duration, quartiles
from layers import ELSEWHERE, NETWORKS, Layer, Network
from peak import multiply_add_rate
from picture import draw

DTYPES = {"float32": torch.float32, "float64": torch.float64}
# F(4×4) Winograd, which only runs when asked for, is allowed what it is documented to lose.
ERROR_LIMIT = {"float32": 1e-6, "float64": 1e-13}
ERROR_LIMIT_ON_REQUEST = {"float32": 5e-6, "float64": 1e-12}
BLOCK_SECONDS = 2e-3
PAUSE_SECONDS = 5e-3
LEAST_SAMPLES = 5


def parse_arguments():
    """The command line, with 'all' spelt out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=["resnet50"], choices=[*NETWORKS, *ELSEWHERE, "all"],
                        metavar="NETWORK",
                        help=f"all, or some of {', '.join([*NETWORKS, *ELSEWHERE])} (default: resnet50)")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--maps", nargs="+", default=list(MAPS), choices=MAPS)
    parser.add_argument("--algorithm", default="auto", help="pyconv's algorithm= (default: auto)")
    arguments = harness.parsed(parser, name_of)
    if "all" in arguments.networks:
        arguments.networks = list(NETWORKS)
    return arguments


def name_of(arguments) -> str:
    """The file's name: that of the algorithm, where one is asked for, or of the networks."""
    asked = arguments.networks if arguments.algorithm == "auto" else [arguments.algorithm]
    return f"cpu-{'all' if 'all' in asked else '-'.join(asked)}.json"


# The clock


def interleaved_samples(calls, seconds: float) -> list[list[float]]:
    """Seconds of each call, again and again; the calls take turns."""
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
    return samples


def interleaved_medians(calls, seconds: float):
    """Median seconds of each call, their quartiles, and the number of samples."""
    samples = interleaved_samples(calls, seconds)
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


def apart(threads: int) -> float | None:
    """Seconds of a handover between two processors, once OpenMP's threads have gone to sleep; none for one thread."""
    time.sleep(PAUSE_SECONDS)
    return handover_seconds() if threads > 1 else None


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
    """Flop per second by dtype, and bytes per second; in a fresh process, away from this one's threads and memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rates = {dtype: pool.apply(multiply_add_rate, (dtype, threads)) for dtype in DTYPES}
        return {**rates, "bandwidth": pool.apply(copy_rate, (threads,))}


# The rows


def bound_of(layer: Layer, batch: int, dtype: str, limits: dict[str, float], seconds: float) -> dict:
    """What a row says of its bound, which pyconv's time is compared with."""
    bound, bound_by = harness.bound_of(layer, batch, DTYPES[dtype].itemsize, limits[dtype], limits["bandwidth"])
    return {"bound_seconds": bound, "bound_by": bound_by, "share_of_bound": bound / seconds}


def bound_again(rows: list[dict], networks: Iterable[Network], limits: dict[str, float]) -> list[dict]:
    """The rows with the bounds that other limits set."""
    layers = {(network.name, str(layer)): layer for network in networks for layer in network.layers}
    return [{**row, **bound_of(layers[row["network"], row["layer"]], row["batch"], row["dtype"], limits,
                               row["pyconv_seconds"])} for row in rows]


def time_row(
    arguments, limits: dict[str, float], network: Network, layer: Layer, map_name: str, dtype: str
) -> dict:
    """Check one layer's map against float64, time it, and return the row as data."""
    arrays = harness.operands(layer, network.batch, DTYPES[dtype])
    options = {} if arguments.algorithm == "auto" else {"algorithm": arguments.algorithm}
    calls = [harness.torch_call(layer, map_name, *arrays),
             harness.pyconv_call(layer, map_name, *(array.numpy() for array in arrays), **options)]
    reference = harness.torch_call(layer, map_name, *(array.double() for array in arrays))()
    turned = harness.channels_last(layer, arrays)
    if turned:
        of_numpy = [array.numpy() for array in turned]
        calls += [harness.torch_call(layer, map_name, *turned),
                  harness.pyconv_call(layer, map_name, *of_numpy, new=numpy.empty_like, **options)]
    errors = [harness.relative_error(call(), reference) for call in calls]
    del reference
    limit = (ERROR_LIMIT if arguments.algorithm == "auto" else ERROR_LIMIT_ON_REQUEST)[dtype]
    before = apart(arguments.threads)
    medians, spreads, samples = interleaved_medians(calls, arguments.seconds)
    after = apart(arguments.threads)
    return {
        **harness.named(network, layer, map_name, dtype),
        "torch_seconds": medians[0], "pyconv_seconds": medians[1], "ratio": medians[0] / medians[1],
        "torch_channels_last_seconds": medians[2] if turned else None,
        "pyconv_channels_last_seconds": medians[3] if turned else None,
        "torch_quartiles": spreads[0], "pyconv_quartiles": spreads[1], "samples": samples,
        **bound_of(layer, network.batch, dtype, limits, medians[1]),
        "held_by": holds.class_of(layer, network.batch, map_name, dtype).name,
        "torch_error": errors[0], "pyconv_error": max(errors[1::2]),
        "right": max(errors[1::2]) <= limit, "apart_seconds": max(before, after) if before and after else None,
    }


HEADING = (f"{'layer':36} {'map':11} {'torch cl':>10} {'torch':>10} {'pyconv cl':>10} {'pyconv':>10} {'ratio':>6} "
           f"{'bound':>11} {'error':>8} {'apart':>7}")


def row_text(row: dict) -> str:
    """One line of the table."""
    mark = "" if row["right"] else " !"
    columns = "torch_channels_last", "torch", "pyconv_channels_last", "pyconv"
    times = " ".join(f"{duration(row[f'{name}_seconds']):>10}" for name in columns)
    bound = f"{100 * row['share_of_bound']:.0f}% {row['bound_by'][:5]}"
    between = f"{1e9 * row['apart_seconds']:4.0f} ns" if row["apart_seconds"] else "-"
    return (f"{harness.label_of(row):36} {row['map']:11} {times} {row['ratio']:6.2f} {bound:>11} "
            f"{row['pyconv_error']:8.1e} {between:>7}{mark}")


def by_dtype_and_map(rows: Iterable[dict]) -> Iterator[tuple[dict, list[dict]]]:
    """The rows of each dtype and map, behind what the means of these begin with."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        groups.setdefault((row["dtype"], row["map"]), []).append(row)
    for (dtype, map_name), found in groups.items():
        yield {"dtype": dtype, "map": map_name, "layers": len(found)}, found


def order_means(rows: list[dict]) -> list[dict]:
    """Geometric means of pyconv's time in NCHW order over that with channels last, of each dtype and map."""
    means = []
    turned = (row for row in rows if row["pyconv_channels_last_seconds"] is not None)
    for head, found in by_dtype_and_map(turned):
        ratios = [row["pyconv_seconds"] / row["pyconv_channels_last_seconds"] for row in found]
        means.append({**head, "geometric_mean": statistics.geometric_mean(ratios), "least": min(ratios)})
    return means


def is_tiled(layer: Layer) -> bool:
    """Whether it is a 3×3 layer at stride 1 of 64 and more channels, such as Winograd's tiles are for."""
    return layer.kernel == (3, 3) and (layer.stride, layer.dilation, layer.groups) == (1, 1, 1) and (
        min(layer.in_channels, layer.out_channels) >= 64)


def tiled_means(rows: list[dict], networks: Iterable[Network]) -> list[dict]:
    """Geometric means of torch's time over pyconv's of those layers, and the largest error, of each dtype and map."""
    tiled = {(network.name, str(layer)) for network in networks for layer in network.layers if is_tiled(layer)}
    means = []
    for head, found in by_dtype_and_map(row for row in rows if (row["network"], row["layer"]) in tiled):
        ratios = [row["ratio"] for row in found]
        means.append({**head, "geometric_mean": statistics.geometric_mean(ratios), "least": min(ratios),
                      "most": max(ratios), "largest_error": max(row["pyconv_error"] for row in found)})
    return means


ORDER, TILED = "pyconv / pyconv with channels last", "torch / pyconv, 3×3, 64 channels"
COLUMNS = {"geometric_mean": ("mean", "6.2f"), "least": ("least", "6.2f"), "most": ("most", "6.2f"),
           "largest_error": ("error", "8.1e")}  # of such means: what stands above, and the format


def means_text(title: str, means: list[dict]) -> str:
    """Such means as a table, with the columns that they have."""
    shown = [(key, *COLUMNS[key]) for key in COLUMNS if any(key in entry for entry in means)]
    lines = [f"{title:34} {'layers':>7}" + "".join(f" {name:>{int(form[0])}}" for _, name, form in shown)]
    for entry in means:
        lines.append(f"{entry['dtype']:22} {entry['map']:11} {entry['layers']:7}"
                     + "".join(f" {entry[key]:{form}}" for key, _, form in shown))
    return "\n".join(lines)


# The record


def surroundings(script: str) -> dict:
    """The command, the versions, the machine, and what pyconv runs with."""
    configuration = io.StringIO()
    with contextlib.redirect_stdout(configuration):
        pyconv.show_config()
    return {
        **harness.described(script),
        "machine": {
            "processor": harness.processor_name(), "architecture": platform.machine(), "system": platform.system(),
            "cores": os.cpu_count(), "load_average": os.getloadavg()[0],
        },
        "configuration": configuration.getvalue().splitlines(),
    }


def describe(arguments, limits: dict[str, float]) -> dict:
    """What the numbers depend on."""
    return {
        **surroundings("cpu.py"),
        "threads": arguments.threads,
        "seconds_per_row": arguments.seconds,
        "algorithm": arguments.algorithm,
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
    networks = [(NETWORKS | ELSEWHERE)[key] for key in arguments.networks]
    work = harness.work_of(networks, arguments.dtype, arguments.maps)
    with torch.no_grad():
        record["rows"] = harness.run_rows(work, HEADING, functools.partial(time_row, arguments, limits), row_text)
    record["limits_after"] = measured_limits(arguments.threads)
    best = {name: max(limit, record["limits_after"][name]) for name, limit in limits.items()}
    record["rows"] = bound_again(record["rows"], networks, best)
    record["summary"] = harness.summarise(record["rows"])
    record["order_means"] = order_means(record["rows"])
    record["tiled_means"] = tiled_means(record["rows"], networks)
    print("", harness.summary_text(record["summary"]), means_text(ORDER, record["order_means"]),
          means_text(TILED, record["tiled_means"]), sep="\n\n")
    if arguments.output is not None:
        harness.write(record, arguments.output)
        draw(record, arguments.output.with_suffix(".png"))
    harness.end(record["rows"])


if __name__ == "__main__":
    main()
