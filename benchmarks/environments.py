"""How much faster pyconv is in one environment than in another, layer by layer: threads, instruction sets.

    OMP_NUM_THREADS=2 python benchmarks/environments.py OMP_NUM_THREADS=1
    OMP_NUM_THREADS=1 python benchmarks/environments.py PYCONV_CPU_LEVEL=avx2 --networks all --output FILE.json

Two processes, one in this environment and one in that with the variables that are given, take turns at every layer and
map of cpu.py, on the same numbers; results are written to arrays that are there (new memory is another matter). A row
has both times, medians of ROUNDS turns, and the second over the first. The means stand apart for rows that products
bind and rows that bytes bind in this environment, beside what registers multiply and memory copies in the two. --output
writes both to a file, with command, machine, date and versions.
"""

import argparse
import functools
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path
from typing import Any
from unittest.mock import patch

import packages  # noqa: F401  before what may import NVIDIA's packages

import harness
import pyconv
from cpu import DTYPES, copy_rate, surroundings
from harness import MAPS, duration
from layers import NETWORKS, Layer, Network
from peak import multiply_add_rate

ROUNDS = 5
VECTORS = {"avx512": 64, "avx2": 32}  # bytes


_call = functools.lru_cache(maxsize=3)(harness.call_with_out)


def seconds_of(layer: Layer, batch: int, map_name: str, dtype: str, seconds: float) -> float:
    """Of one call, in calls of so many seconds together."""
    return harness.seconds_of(_call(layer, batch, map_name, DTYPES[dtype]), seconds)


def limits() -> dict[str, float]:
    """Flop per second by dtype in vectors of this level, and bytes per second."""
    threads, vector = pyconv.get_num_threads(), VECTORS.get(os.environ.get("PYCONV_CPU_LEVEL", ""))
    return {**{dtype: multiply_add_rate(dtype, threads, vector=vector) for dtype in DTYPES},
            "bandwidth": copy_rate(threads)}


def process(variables: dict[str, str]) -> Pool:
    """A fresh process whose environment has these variables too."""
    with patch.dict(os.environ, variables):
        return multiprocessing.get_context("spawn").Pool(1)


def compare(
    pools: list[Pool], network: Network, arguments: argparse.Namespace, here: dict[str, float]
) -> Iterator[dict[str, Any]]:
    """The rows of a network that take as long as is asked for, printed as they come."""
    print(network.name)
    dtype = arguments.dtype
    for _, layer, map_name, _ in harness.work_of([network], [dtype], MAPS):
        task = layer, network.batch, map_name, dtype, arguments.seconds
        turns = [[pool.apply(seconds_of, task) for pool in pools] for _ in range(ROUNDS)]
        first, second = (statistics.median(times) for times in zip(*turns))
        if first < arguments.least:
            continue
        _, bound = harness.bound_of(layer, network.batch, DTYPES[dtype].itemsize, here[dtype], here["bandwidth"])
        print(f"  {layer!s:<34} {map_name:<11} {duration(first):>9} {duration(second):>9}"
              f" {second / first:5.2f} {bound}", flush=True)
        yield {**harness.named(network, layer, map_name, dtype), "seconds": first, "seconds_there": second,
               "ratio": second / first, "bound_by": bound}


def means_of(rows: list[dict[str, Any]], machine: dict[str, float]) -> list[dict[str, Any]]:
    """Of rows that products bind and of those that bytes bind, beside the machine's own ratio of these."""
    groups = {bound: sorted(row["ratio"] for row in rows if row["bound_by"] == bound) for bound in machine}
    return [{"bound_by": bound, "rows": len(found), "geometric_mean": statistics.geometric_mean(found),
             "least": found[0], "tenth": found[len(found) // 10], "machine": machine[bound]}
            for bound, found in groups.items() if found]


def mean_text(mean: dict[str, Any]) -> str:
    """One line of the summary."""
    return (f"{mean['bound_by']:<10} {mean['rows']:>3} rows, mean {mean['geometric_mean']:.2f}, "
            f"least {mean['least']:.2f}, tenth {mean['tenth']:.2f}; the machine {mean['machine']:.2f}")


def parse_arguments() -> argparse.Namespace:
    """The command line, with 'all' spelt out."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("variables", nargs="+", metavar="NAME=VALUE", help="of the second process's environment")
    parser.add_argument("--networks", nargs="+", default=["resnet50"], choices=[*NETWORKS, "all"], metavar="NETWORK")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--least", type=float, default=1e-3, help="seconds of a row that is shown (default: 0.001)")
    parser.add_argument("--seconds", type=float, default=0.05, help="time for each turn (default: 0.05)")
    parser.add_argument("--output", type=Path, help="a JSON file of the rows and means")
    arguments = parser.parse_args()
    if "all" in arguments.networks:
        arguments.networks = list(NETWORKS)
    return arguments


def main() -> None:
    """Compare, print, write."""
    arguments = parse_arguments()
    there = dict(variable.split("=", 1) for variable in arguments.variables)
    with process({}) as one, process(there) as other:
        here, beyond = one.apply(limits), other.apply(limits)
        rows = [row for key in arguments.networks for row in compare([one, other], NETWORKS[key], arguments, here)]
    machine = {bound: here[limit] / beyond[limit] for bound, limit in (
        ("products", arguments.dtype), ("bytes", "bandwidth"))}
    means = means_of(rows, machine)
    print(*map(mean_text, means), sep="\n")
    if arguments.output is not None:
        harness.write({**surroundings("environments.py"), "variables_there": there, "limits": here,
                       "limits_there": beyond, "rows": rows, "means": means}, arguments.output)


if __name__ == "__main__":
    main()
