"""How much faster pyconv is in one environment than in another, layer by layer: threads, instruction sets.

    OMP_NUM_THREADS=2 python benchmarks/environments.py OMP_NUM_THREADS=1
    OMP_NUM_THREADS=1 python benchmarks/environments.py PYCONV_CPU_LEVEL=avx2 --networks all

Two processes, one in this environment and one in that with the variables that are given, take turns at every layer and
map of cpu.py, on the same numbers; results are written to arrays that are there (new memory is another matter). A row
has both times, medians of ROUNDS turns, and the second over the first. The means stand apart for rows that products
bind and rows that bytes bind in this environment, beside what registers multiply and memory copies in the two.
"""

import argparse
import functools
import multiprocessing
import os
import statistics
import time
from multiprocessing.pool import Pool
from unittest.mock import patch

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy

import harness
import pyconv
from cpu import DTYPES, copy_rate
from harness import MAPS, duration
from layers import NETWORKS, Layer
from peak import multiply_add_rate

ROUNDS = 5
VECTORS = {"avx512": 64, "avx2": 32}  # bytes


@functools.lru_cache(maxsize=3)
def _call(layer: Layer, batch: int, map_name: str, dtype: str):
    x, w, y = (array.numpy() for array in harness.operands(layer, batch, DTYPES[dtype]))
    out = numpy.empty_like({"forward": y, "grad_input": x, "grad_weight": w}[map_name])
    call = harness.pyconv_call(layer, map_name, x, w, y, lambda _: out)
    call()
    return call


def seconds_of(layer: Layer, batch: int, map_name: str, dtype: str, seconds: float) -> float:
    """Of one call, in calls of so many seconds together."""
    call, calls, start = _call(layer, batch, map_name, dtype), 0, time.perf_counter()
    while calls == 0 or time.perf_counter() < start + seconds:
        call()
        calls += 1
    return (time.perf_counter() - start) / calls


def limits() -> dict[str, float]:
    """Flop per second by dtype in vectors of this level, and bytes per second."""
    threads, vector = pyconv.get_num_threads(), VECTORS.get(os.environ.get("PYCONV_CPU_LEVEL", ""))
    return {**{dtype: multiply_add_rate(dtype, threads, vector=vector) for dtype in DTYPES},
            "bandwidth": copy_rate(threads)}


def process(variables: dict[str, str]) -> Pool:
    """A fresh process whose environment has these variables too."""
    with patch.dict(os.environ, variables):
        return multiprocessing.get_context("spawn").Pool(1)


def mean_text(name: str, found: list[float]) -> str:
    """One line of the summary."""
    return (f"{name:<10} {len(found):>3} rows, mean {statistics.geometric_mean(found):.2f}, "
            f"least {min(found):.2f}, tenth {sorted(found)[len(found) // 10]:.2f}")


def main() -> None:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("variables", nargs="+", metavar="NAME=VALUE", help="of the second process's environment")
    parser.add_argument("--networks", nargs="+", default=["resnet50"], choices=[*NETWORKS, "all"], metavar="NETWORK")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--least", type=float, default=1e-3, help="seconds of a row that is shown (default: 0.001)")
    parser.add_argument("--seconds", type=float, default=0.05, help="time for each turn (default: 0.05)")
    arguments = parser.parse_args()
    networks = [NETWORKS[key] for key in (NETWORKS if "all" in arguments.networks else arguments.networks)]
    there = dict(variable.split("=", 1) for variable in arguments.variables)
    ratios: dict[str, list[float]] = {"products": [], "bytes": []}
    with process({}) as one, process(there) as other:
        here, beyond = one.apply(limits), other.apply(limits)
        for network in networks:
            print(network.name)
            for _, layer, map_name, dtype in harness.work_of([network], [arguments.dtype], MAPS):
                task = layer, network.batch, map_name, dtype, arguments.seconds
                turns = [[pool.apply(seconds_of, task) for pool in (one, other)] for _ in range(ROUNDS)]
                first, second = (statistics.median(times) for times in zip(*turns))
                if first < arguments.least:
                    continue
                _, bound = harness.bound_of(
                    layer, network.batch, DTYPES[dtype].itemsize, here[dtype], here["bandwidth"])
                ratios[bound].append(second / first)
                print(f"  {layer!s:<34} {map_name:<11} {duration(first):>9} {duration(second):>9}"
                      f" {second / first:5.2f} {bound}", flush=True)
    for bound, limit in (("products", arguments.dtype), ("bytes", "bandwidth")):
        if ratios[bound]:
            print(mean_text(bound, ratios[bound]) + f"; the machine {here[limit] / beyond[limit]:.2f}")


if __name__ == "__main__":
    main()
