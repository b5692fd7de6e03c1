"""Time pyconv beside torch (cuDNN) on the layers of known networks, on a GPU.

    python benchmarks/cuda.py                             ResNet-50 at batch 64 and more, every dtype: eight minutes
    python benchmarks/cuda.py --networks resnet50 --dtypes float16
    python benchmarks/cuda.py --networks tiny --quick     a look, nothing is written
    python benchmarks/cuda.py --dry                       without a GPU: what each row would launch, and its bound

Each row is one layer, one dtype and one of the three maps: forward, grad_input, grad_weight. dtypes are float32 (IEEE;
torch with allow_tf32 off for cuDNN and matrix products), tf32 (both allowed), tf32x3 (pyconv's algorithm, beside
torch's IEEE float32), float64, float16 and bfloat16. First both libraries' results are compared with torch's in float64
on the same rounded operands (relative Frobenius error; a row where pyconv's is over the limit and over one and a half
times torch's is marked with ! and the run ends with status 1). Then the two take turns in this one process, each on
arrays in C order (NCHW) and, in two and three dimensions, on arrays with the channels last ("cl"; the result then too),
until the row's time is spent. The times are medians. torch.backends.cudnn.benchmark is on: the first call of each row,
which is not timed, searches for cuDNN's fastest kernel.

Times are the device's, by CUDA events: the device sleeps before each sample, so that the host has put the calls into
the stream when the first begins. Operands that fit the cache are kept in several copies, used in turn. The tiny layers
are timed as their caller waits for them, the host's time included ("call"), and once more as replayed CUDA graphs.
Both sides allocate their results, from torch's allocator.

On a chip of capability 9.0, 16-bit floats are timed with algorithm="wgmma" in the same turns, in both orders: "trials"
is the time of what pyconv chooses over that. It has a target of its own. A target is met where it is met in both
orders.

ratio is torch's time over pyconv's: above 1, pyconv is faster. "peak" is pyconv's rate of products as a share of what a
large torch matrix product of that dtype reaches here; products with padding are not counted, tf32x3's peak is a third
of tf32's. "bound" is what the machine allows: the larger of products over peak and bytes over the bandwidth of a large
copy, as a share of pyconv's time; bytes are those of both operands and the result, once each.

The kernels are compiled beforehand, one process for each core. No row begins after --budget seconds; networks come in
the order of the list, so that what is left out is at its end. The results go to benchmarks/results as JSON, with
machine, driver, versions and date, and as pictures (see picture.py, which can also draw them again).
"""

import argparse
import functools
import importlib.util
import signal
import sys
import time
from pathlib import Path
from typing import Any

import packages  # noqa: F401  before what may import NVIDIA's packages

import torch

import device
import harness
import planned
from harness import MAPS, RESULTS, Work, duration
from layers import GPU_NETWORKS
from rows import (
    HEADING,
    KINDS,
    PUBLISHED,
    default_networks,
    guarded,
    limits_text,
    overhead_text,
    row_text,
    time_row,
    trial_means,
    trials_text,
    turned_rows,
    verdicts,
    verdicts_text,
)


def parse_arguments() -> argparse.Namespace:
    """The command line, with 'all' spelt out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=default_networks(), choices=[*GPU_NETWORKS, "all"],
                        metavar="NETWORK", help=f"all, or some of {', '.join(GPU_NETWORKS)}")
    parser.add_argument("--dtypes", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--maps", nargs="+", default=list(MAPS), choices=MAPS)
    parser.add_argument("--seconds", type=float, default=0.06, help="time for each row's samples (default: 0.06)")
    parser.add_argument("--budget", type=float, default=450, help="seconds after which no row begins (default: 450)")
    parser.add_argument("--output", type=Path, help="the JSON file, the pictures go beside it")
    parser.add_argument("--no-picture", action="store_true", help="leave the drawing to picture.py, elsewhere")
    parser.add_argument("--quick", action="store_true", help="0.01 s a row, written only where --output is given")
    parser.add_argument("--dry", action="store_true", help="without a GPU: plan every row, time nothing")
    arguments = parser.parse_args()
    if "all" in arguments.networks:
        arguments.networks = list(GPU_NETWORKS)
    if arguments.quick:
        arguments.seconds = 0.01
    elif arguments.output is None:
        arguments.output = RESULTS / "cuda.json"
    return arguments


# The runs


def dry(works: list[Work]) -> None:
    """Plan every row on placeholders: kernels in order, memory allocated, and the bound by the published rates."""
    shown = None
    with planned.recording() as recorder:
        for work in works:
            network, layer, map_name, dtype = work
            if shown != (network, dtype):
                shown = (network, dtype)
                print(f"\n{network.name}, {dtype}")
            kind = KINDS[dtype]
            bound, bound_by = harness.bound_of(
                layer, network.batch, kind.torch_dtype.itemsize, PUBLISHED[dtype], PUBLISHED["bandwidth"])
            trials = kind.trials_of(recorder.capability)
            for order, call in planned.calls_of_row(work, kind.dtype, kind.options, trials).items():
                found = planned.recorded(recorder, call)
                print(f"{layer!s:32} {map_name:11} {order:24} {found.allocated / 1e6:9.1f} MB {duration(bound):>9} "
                      f"{bound_by[:5]}  {' '.join(found.names)}")
    print(f"\n{len(works)} rows, {len(recorder.kernels)} kernels; times are bounds by an H200's published rates")


def measure(arguments: argparse.Namespace, works: list[Work], record: dict[str, Any]) -> None:
    """Fill the record; what is there when time runs out or something fails stays there."""
    deadline = time.monotonic() + arguments.budget
    record |= {"machine": device.described(), "seconds_per_row": arguments.seconds, "rows": [], "failures": []}
    record["versions"] |= device.versions()
    record["limits"] = device.measured_limits()
    print(f"{record['machine']['processor']}, cuDNN {record['versions']['cudnn']}; {limits_text(record['limits'])}")
    record["overhead"] = device.overhead()
    print(overhead_text(record["overhead"]), flush=True)
    row = functools.partial(guarded, record["failures"], functools.partial(
        time_row, arguments.seconds, record["limits"]))
    with torch.no_grad():
        harness.run_rows(works, HEADING, row, row_text, deadline, record["rows"])
    record["limits_after"] = device.measured_limits()


def conclude(record: dict[str, Any], works: list[Work], arguments: argparse.Namespace) -> None:
    """Means, targets, files, status."""
    rows = record.get("rows", [])
    record["left_out"] = len(works) - len(rows)
    if rows:
        record["summary"] = harness.summarise(rows)
        record["summary_channels_last"] = harness.summarise(turned_rows(rows))
        record["targets"] = verdicts(rows)
        record["trials"] = trial_means(rows)
        print(f"\n{harness.summary_text(record['summary'])}\n\n{trials_text(record['trials'])}\n\n"
              f"{verdicts_text(record['targets'])}")
    if arguments.output is not None:
        harness.write(record, arguments.output)
        if rows and not arguments.no_picture and importlib.util.find_spec("matplotlib"):
            from picture import draw

            draw(record, arguments.output.with_suffix(".png"))


def main() -> None:
    """Measure, print, write."""
    arguments = parse_arguments()
    works = harness.work_of((GPU_NETWORKS[key] for key in arguments.networks), arguments.dtypes, arguments.maps)
    if arguments.dry:
        dry(works)
        return
    missing = device.missing()
    if missing:
        sys.exit(missing)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a time limit from outside still leaves the results
    record = harness.described("cuda.py")
    try:
        measure(arguments, works, record)
    finally:
        conclude(record, works, arguments)
    harness.end(record["rows"])
    if record["failures"]:
        sys.exit(f"every row must run; got {len(record['failures'])} that failed")


if __name__ == "__main__":
    main()
