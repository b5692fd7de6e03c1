"""What a call costs: pyconv beside torch on layers so small that little else is left, and the planning of a new shape.

    OMP_NUM_THREADS=2 python benchmarks/call_costs.py           a minute
    python benchmarks/call_costs.py --quick                     a look, nothing is written

Each row is one layer in float32 at a batch of one, and one of the three maps. The ways to call take turns in this one
process, as in cpu.py; the times are medians:

    torch             torch.nn.functional, torch.ops.aten.convolution_backward
    pyconv            NumPy's arrays in C order
    out               the same, written to an array that is there
    constant          NumPy's arrays amid a constant, 0, which is a setting as any other and gives the same result
    channels last     NumPy's arrays, the results new ones, in channels-last order
    tensors           torch's tensors, given to the plain functions
    pyconv.torch      torch's tensors, given to that door, without a gradient: forward alone

First the results of all are compared with torch's in float64. Then the first call of a shape is timed beside the next
ones, at sizes that this process has not seen; what it takes longer is planning. Of SHAPES such sizes there are the
median, the least and the most.
"""

import argparse
import statistics
import time

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy
import torch

import harness
import pyconv
import pyconv.torch
from cpu import ERROR_LIMIT, interleaved_medians, surroundings
from harness import MAPS, duration
from layers import Layer

LAYERS = [Layer(1, 1, (1, 1), (1, 1)), Layer(8, 8, (16, 16), (3, 3), 1, 1)]
PLANNED = [*LAYERS, Layer(64, 64, (56, 56), (3, 3), 1, 1), Layer(256, 512, (28, 28), (1, 1), 2),
           Layer(512, 512, (14, 14), (3, 3), 2, 1), Layer(192, 192, (28, 28), (3, 3), 1, 1, groups=192)]
SHAPES = 15
NEXT_CALLS = 5


def calls_of(layer: Layer, map_name: str) -> dict:
    """The ways to call, by name; each a function of no arguments."""
    tensors = harness.operands(layer, 1, torch.float32)
    turned = harness.channels_last(layer, tensors)
    x, w, y = (tensor.numpy() for tensor in tensors)
    out = numpy.empty_like({"forward": y, "grad_input": x, "grad_weight": w}[map_name])
    calls = {
        "torch": harness.torch_call(layer, map_name, *tensors),
        "pyconv": harness.pyconv_call(layer, map_name, x, w, y),
        "out": harness.pyconv_call(layer, map_name, x, w, y, lambda _: out),
        "constant": harness.pyconv_call(layer, map_name, x, w, y, padding_mode="constant"),
        "channels last": harness.pyconv_call(
            layer, map_name, turned[0].numpy(), w, turned[2].numpy(), numpy.empty_like),
        "tensors": harness.pyconv_call(layer, map_name, *tensors),
    }
    if map_name == "forward":
        calls["pyconv.torch"] = lambda: pyconv.torch.conv2d(tensors[0], tensors[1], padding=layer.padding)
    return calls


def time_row(layer: Layer, map_name: str, seconds: float) -> dict:
    """Check one map of one layer, time all ways to call it, and return the row as data."""
    calls = calls_of(layer, map_name)
    doubles = [tensor.double() for tensor in harness.operands(layer, 1, torch.float32)]
    reference = harness.torch_call(layer, map_name, *doubles)()
    error = max(harness.relative_error(call(), reference) for name, call in calls.items() if name != "torch")
    medians, _, samples = interleaved_medians(list(calls.values()), seconds)
    return {"layer": str(layer), "map": map_name, "seconds": dict(zip(calls, medians)), "samples": samples,
            "error": error, "right": error <= ERROR_LIMIT["float32"]}


def planning(layer: Layer, map_name: str) -> dict:
    """What the first call of a shape takes longer than the next ones: of several sizes, larger by 1, 2, 3 and so on."""
    longer = []
    for more in range(1, SHAPES + 1):
        grown = layer._replace(size=tuple(n + more for n in layer.size))
        arrays = (tensor.numpy() for tensor in harness.operands(grown, 1, torch.float32))
        call = harness.pyconv_call(grown, map_name, *arrays)
        first, *others = (seconds_of(call) for _ in range(1 + NEXT_CALLS))
        longer.append(first - statistics.median(others))
    return {"layer": str(layer), "map": map_name, "median_seconds": statistics.median(longer),
            "least_seconds": min(longer), "most_seconds": max(longer)}


def seconds_of(call) -> float:
    """Of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row_text(row: dict) -> str:
    """One line for a row: each way to call and its time."""
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in row["seconds"].items())
    return f"{row['layer']:24} {row['map']:11} {times}{'' if row['right'] else ' !'}"


def planning_text(row: dict) -> str:
    """One line for the first call of a layer's shapes."""
    times = " ".join(f"{duration(row[f'{name}_seconds']):>10}" for name in ("median", "least", "most"))
    return f"{row['layer']:36} {row['map']:11} {times}"


def main() -> None:
    """Measure, print, write."""
    arguments = harness.parsed(argparse.ArgumentParser(description=__doc__.partition("\n")[0]), lambda _: "calls.json")
    torch.set_num_threads(arguments.threads)
    pyconv.set_num_threads(arguments.threads)
    record = {**surroundings("call_costs.py"), "threads": arguments.threads, "seconds_per_row": arguments.seconds,
              "rows": [], "planning": []}
    print(f"{record['machine']['processor']}, {arguments.threads} threads")
    with torch.no_grad():
        for layer in LAYERS:
            for map_name in MAPS:
                record["rows"].append(time_row(layer, map_name, arguments.seconds))
                print(row_text(record["rows"][-1]), flush=True)
        print(f"\n{'the first call of a shape: longer by':48} {'median':>10} {'least':>10} {'most':>10}")
        for layer in PLANNED:
            for map_name in MAPS:
                record["planning"].append(planning(layer, map_name))
                print(planning_text(record["planning"][-1]), flush=True)
    if arguments.output is not None:
        harness.write(record, arguments.output)
    harness.end(record["rows"])


if __name__ == "__main__":
    main()
