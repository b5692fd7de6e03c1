"""What the benchmarks share: the calls of both libraries, the loop over rows, means, tables, the record's file."""

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy
import torch

import pyconv
from layers import Layer, Network

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

MAPS = ("forward", "grad_input", "grad_weight")
RESULTS = Path(__file__).parent / "results"
Work = tuple[Network, Layer, str, str]  # network, layer, map, dtype


# The command line


def parsed(parser: argparse.ArgumentParser, name_of: Callable[[argparse.Namespace], str]) -> argparse.Namespace:
    """The command line of a benchmark on the CPU; name_of says what the file of its results is called."""
    parser.add_argument("--threads", type=int, default=pyconv.get_num_threads(),
                        help="(default: what pyconv starts with, all cores or OMP_NUM_THREADS)")
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each row (default: 3)")
    parser.add_argument("--output", type=Path, help="the JSON file, pictures go beside it")
    parser.add_argument("--quick", action="store_true", help="0.1 s a row, written only where --output is given")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds = 0.1
    elif arguments.output is None:
        arguments.output = RESULTS / name_of(arguments)
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
    stride, padding, dilation = [layer.stride] * rank, list(layer.pads), [layer.dilation] * rank
    mask = [map_name == "grad_input", map_name == "grad_weight", False]
    backward, output_padding = torch.ops.aten.convolution_backward, [layer.output_padding] * rank
    wanted = mask.index(True)
    return lambda: backward(grad_output, input, weight, None, stride, padding, dilation, layer.transposed,
                            output_padding, layer.groups, mask)[wanted]


def pyconv_call(layer: Layer, map_name: str, x, w, y, new: Callable[[Any], Any] | None = None, **options):
    """A function of no arguments that computes the map with pyconv; x is the input, y the gradient to the output.

    new: makes an array to write to, like the one it is given; without it pyconv makes one, in C order.
    """
    conv, conv_input, conv_weight = (getattr(pyconv, f"conv{layer.rank}d{kind}") for kind in ("", "_input", "_weight"))
    conv_transpose = getattr(pyconv, f"conv_transpose{layer.rank}d")
    options |= {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation, "groups": layer.groups}

    def out(like) -> dict:
        return {} if new is None else {"out": new(like)}

    shapes = tuple(x.shape), tuple(w.shape)
    if layer.transposed:
        return {
            "forward": lambda: conv_transpose(x, w, None, output_padding=layer.output_padding, **out(y), **options),
            "grad_input": lambda: conv(y, w, None, **out(x), **options),
            "grad_weight": lambda: conv_weight(y, shapes[1], x, **out(w), **options),
        }[map_name]
    return {
        "forward": lambda: conv(x, w, None, **out(y), **options),
        "grad_input": lambda: conv_input(shapes[0], w, y, **out(x), **options),
        "grad_weight": lambda: conv_weight(x, shapes[1], y, **out(w), **options),
    }[map_name]


def seconds_of(call: Callable[[], Any], seconds: float) -> float:
    """Of one call, in calls of so many seconds together."""
    calls, start = 0, time.perf_counter()
    while calls == 0 or time.perf_counter() < start + seconds:
        call()
        calls += 1
    return (time.perf_counter() - start) / calls


def shapes_of(layer: Layer, batch: int) -> tuple[tuple[int, ...], ...]:
    """Of input, weight and grad_output."""
    return ((batch, layer.in_channels, *layer.size), layer.weight_shape,
            (batch, layer.out_channels, *layer.output_size))


def operands(layer: Layer, batch: int, dtype: torch.dtype, device: str = "cpu"):
    """Normal random input, weight and grad_output of one layer, always the same ones on one kind of device."""
    generator = torch.Generator(device).manual_seed(0)
    return tuple(torch.randn(shape, generator=generator, dtype=dtype, device=device)
                 for shape in shapes_of(layer, batch))


def channels_last(layer: Layer, arrays):
    """The operands in channels-last order, or None where torch has no such order."""
    orders = {2: torch.channels_last, 3: torch.channels_last_3d}
    if layer.rank not in orders:
        return None
    return [array.contiguous(memory_format=orders[layer.rank]) for array in arrays]


def call_with_out(layer: Layer, batch: int, map_name: str, dtype: torch.dtype) -> Callable[[], Any]:
    """A function of no arguments that computes the map of `operands` with pyconv into an array that is there."""
    x, w, y = (array.numpy() for array in operands(layer, batch, dtype))
    out = numpy.empty_like({"forward": y, "grad_input": x, "grad_weight": w}[map_name])
    call = pyconv_call(layer, map_name, x, w, y, lambda _: out)
    call()
    return call


def relative_error(result, reference: torch.Tensor) -> float:
    """Frobenius norm of the difference from a float64 reference over the reference's; inf for a wrong shape."""
    result = torch.as_tensor(result)
    if result.shape != reference.shape:
        return math.inf
    # torch's norm: NumPy's would start OpenBLAS' threads, which spin beside the ones that are timed.
    return float(torch.linalg.vector_norm(result.double() - reference) / torch.linalg.vector_norm(reference))


def bound_of(layer: Layer, batch: int, itemsize: int, rate: float, bandwidth: float) -> tuple[float, str]:
    """Seconds that the machine needs at least, and for what: products at `rate` flop per second, or bytes."""
    return max((layer.flop(batch) / rate, "products"), (layer.elements(batch) * itemsize / bandwidth, "bytes"))


def quartiles(times):
    """First and third quartile."""
    first, _, third = statistics.quantiles(times, n=4)
    return [first, third]


# The rows


def work_of(networks: Iterable[Network], dtypes: Iterable[str], maps: Iterable[str]) -> list[Work]:
    """Every row to be timed, in order."""
    return [(network, layer, map_name, dtype) for network in networks for dtype in dtypes for layer in network.layers
            for map_name in maps]


def run_rows(
    work: list[Work], heading: str, time_row: Callable[..., dict | None], row_text: Callable[[dict], str],
    deadline: float = math.inf, rows: list[dict] | None = None,
) -> list[dict]:
    """Time every row into `rows`, printing each as it comes, none where it is None.

    No row begins after the deadline, of time.monotonic.
    """
    bar = tqdm(total=len(work), unit="row", dynamic_ncols=True, disable=None) if tqdm else None
    say = tqdm.write if tqdm else print
    rows, shown = [] if rows is None else rows, None
    with bar or contextlib.nullcontext():
        for number, (network, layer, map_name, dtype) in enumerate(work, 1):
            if time.monotonic() > deadline:
                say(f"\nout of time: {len(work) - number + 1} rows are left out, from {network.name}, {dtype} on")
                break
            if shown != (network, dtype):
                shown = (network, dtype)
                say(f"\n{network.name}, {dtype}\n{heading}")
            row = time_row(network, layer, map_name, dtype)
            if row is not None:
                rows.append(row)
                say(row_text(row) if tqdm else f"{row_text(row)}  [{number}/{len(work)}]")
            if bar:
                bar.update()
    return rows


def named(network: Network, layer: Layer, map_name: str, dtype: str) -> dict:
    """What every row says of itself."""
    return {
        "network": network.name, "layer": str(layer), "count": network.layers[layer], "batch": network.batch,
        "map": map_name, "dtype": dtype, "flop": layer.flop(network.batch), "elements": layer.elements(network.batch),
    }


def label_of(row: dict) -> str:
    """The layer, and how often its network has it."""
    return f"{row['layer']} ×{row['count']}" if row["count"] > 1 else row["layer"]


def duration(seconds: float | None) -> str:
    """Seconds in a readable unit; nothing for none."""
    if seconds is None:
        return ""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


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
        lines.append(f"{entry['network']:28} {entry['dtype']:8} {entry['map']:11}"
                     f"{entry['geometric_mean']:11.2f} {entry['geometric_mean_by_count']:10.2f} "
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


def described(script: str) -> dict:
    """What every record begins with: command, date, versions."""
    variables = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "PYCONV_CPU_LEVEL") if name in os.environ]
    return {
        "command": " ".join([*variables, f"python benchmarks/{script}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), **versions("pyconv", "numpy", "torch")},
    }


def versions(*names: str) -> dict[str, str]:
    """Of those of the packages that were imported."""
    return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}


def write(record: dict, path: Path) -> None:
    """The record as JSON, in a folder that is made where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    print(f"\nwritten: {path}")


def end(rows: list[dict]) -> None:
    """Exit with status 1 where a row's result was wrong."""
    wrong = sum(not row["right"] for row in rows)
    if wrong:
        sys.exit(f"the error of every row must stay below the limit; got {wrong} rows marked with !")
