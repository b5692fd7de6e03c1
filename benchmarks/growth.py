"""How time and scratch memory grow with the batch and with the image: per position they should stay as they are.

    OMP_NUM_THREADS=2 python benchmarks/growth.py

Each kind of layer on one image of 28×28, on more of them and on larger ones, all three maps, results written to arrays
that are there. Sizes of one kind and map take turns, ROUNDS times; a row has the median time of a position of the
output, and the bytes of the buffer that a call may be given so that it allocates nothing. Caches hold less of what is
larger, and threads share little of what is small. --output writes the rows to a file, with command, machine and date.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy
import torch

import harness
import pyconv
from cpu import surroundings
from harness import MAPS
from layers import Layer
from pyconv._geometry import BUFFERS

ROUNDS = 5
BATCHES, SIZES = (4, 16, 64), (56, 112, 224)  # of images of 28×28, and of one image


def kinds(size: int) -> dict[str, Layer]:
    """One layer of each kind that is worked on in a way of its own."""
    image = size, size
    return {
        "3×3": Layer(64, 64, image, (3, 3), padding=1),
        "3×3 /2": Layer(64, 128, image, (3, 3), 2, padding=1),
        "1×1": Layer(256, 64, image, (1, 1)),
        "5×5, groups of 16": Layer(64, 64, image, (5, 5), padding=2, groups=4),
        "depthwise 3×3": Layer(64, 64, image, (3, 3), padding=1, groups=64),
        "7×7 /2 from 3": Layer(3, 64, image, (7, 7), 2, padding=3),
    }


def buffer_bytes(layer: Layer, batch: int, map_name: str) -> int:
    """Of the buffer that a call of the map may be given."""
    (*shapes, _), dtype = harness.shapes_of(layer, batch), numpy.dtype(numpy.float32)
    sizes = pyconv.workspace(*shapes, layer.stride, layer.padding, layer.dilation, layer.groups, dtype=dtype)
    return dtype.itemsize * getattr(sizes, BUFFERS[map_name])


def rows_of(kind: str, map_name: str, seconds: float) -> list[dict[str, Any]]:
    """One for each batch and size."""
    found = [(1, 28), *((batch, 28) for batch in BATCHES), *((1, size) for size in SIZES)]
    layers = [kinds(size)[kind] for _, size in found]
    calls, scratch = ([of(layer, batch, map_name, *more) for layer, (batch, _) in zip(layers, found)]
                      for of, *more in ((harness.call_with_out, torch.float32), (buffer_bytes,)))
    times = zip(*([harness.seconds_of(call, seconds) for call in calls] for _ in range(ROUNDS)))
    return [{"kind": kind, "map": map_name, "batch": batch, "size": size, "buffer_bytes": held,
             "seconds_per_position": statistics.median(turns) / batch / math.prod(layer.output_size)}
            for (batch, size), layer, held, turns in zip(found, layers, scratch, times)]


def row_text(rows: list[dict[str, Any]]) -> str:
    """Those of a kind and map in one line: the first's time, the others' over it, and the buffers of all."""
    first, *others = (row["seconds_per_position"] for row in rows)
    held = " ".join(f"{row['buffer_bytes'] >> 10:>5}" for row in rows)
    return (f"{rows[0]['kind']:<18} {rows[0]['map']:<12} {1e9 * first:7.1f} "
            f"{' '.join(f'{other / first:6.2f}' for other in others)}   {held}")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.1, help="time for each turn (default: 0.1)")
    parser.add_argument("--output", type=Path, help="a JSON file of the rows")
    arguments = parser.parse_args()
    torch.set_num_threads(pyconv.get_num_threads())
    print(f"{'layer':<18} {'map':<12} {'ns':>7} {' '.join(f'n={batch:<4}' for batch in BATCHES)} "
          f"{' '.join(f'{size:>6}' for size in SIZES)}   KB of the buffers")
    rows = []
    for kind in kinds(28):
        for map_name in MAPS:
            rows += rows_of(kind, map_name, arguments.seconds)
            print(row_text(rows[-1 - len(BATCHES) - len(SIZES):]), flush=True)
    if arguments.output is not None:
        harness.write({**surroundings("growth.py"), "rows": rows}, arguments.output)


if __name__ == "__main__":
    main()
