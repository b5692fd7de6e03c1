"""Time pyconv's other kinds of convolution beside their peers, on the CPU: padding modes, types, samples, four axes.

    python benchmarks/kinds.py                               everything: about a quarter of an hour
    python benchmarks/kinds.py --groups padding --kinds reflect
    python benchmarks/kinds.py --quick                       a look, nothing is written

    padding      constant, circular, replicate and reflect, float32, each map: beside torch's copy of the padded input
                 and its convolution, and beside pyconv's own zeros
    complex      complex64 and complex128, each map: beside torch's
    integers     int8, uint8 and int16, forward: beside torch's integers as wide as the result, torch's quantised
                 convolution, whose result has 8 bits, onnxruntime's ConvInteger and QLinearConv, whose result has 32
                 and 8 bits, and pyconv's own float32
    halves       float16 and bfloat16, each map: beside torch's, and pyconv's own float32
    per_sample   the gradient to the weight of each sample: beside torch.func.vmap of torch.func.grad, which runs
                 forward too; beside Opacus' way, unfold and einsum; beside pyconv's summed gradient and the writing of
                 as many numbers as there are then
    four_axes    four spatial axes, each map: beside a sum of torch's conv3d

Each row is one layer, one kind and one map. First the results are compared with a reference from elsewhere: torch in
float64, four real convolutions in float64 for complex numbers, integers exactly (a row where pyconv's are wrong is
marked with ! and the run ends with status 1). Then pyconv and the peers take turns in this one process, as in cpu.py,
with as many threads each; the times are medians. Peers that are not installed, or that cannot do a row, are left out.

Every column of a peer is its time over pyconv's: above 1, pyconv is faster. "zeros a product" is pyconv's own time with
padding_mode='zeros', times the products that the mode makes over those that zeros make, which have no cell in the
padding: it should be at least 0.95. "sum and write" should be at least 0.91. A value below such a target is marked <.

--best takes the least times in place of medians: on a machine that others use as well, for a look at pyconv itself.
"""

import argparse
import functools
import statistics
from collections.abc import Callable
from typing import NamedTuple

import packages  # noqa: F401  before what may import NVIDIA's packages

import torch

import harness
import peers
import pyconv
from cpu import interleaved_samples, surroundings
from harness import MAPS, duration
from layers import Layer, Network
from picture import draw_kinds

MODES = ("constant", "circular", "replicate", "reflect")


class Group(NamedTuple):
    """Layers, kinds and maps that share their peers, and what makes a row of them."""

    network: Network
    kinds: tuple[str, ...]
    maps: tuple[str, ...]
    make: Callable[[Layer, int, str, str], peers.Job]
    peers: tuple[str, ...]


def _square(channels: int, size: int, kernel: int = 3, groups: int = 1) -> Layer:
    return Layer(channels, channels, (size, size), (kernel, kernel), 1, kernel // 2, groups=groups)


_FIRST = Layer(3, 64, (224, 224), (7, 7), 2, 3)
_STAGES = [_square(64 << stage, 56 >> stage) for stage in range(4)]
_DEPTHWISE = [_square(144, 56, groups=144), _square(576, 14, groups=576)]
_OTHER_RANKS = [Layer(128, 128, (4096,), (3,), 1, 1), Layer(64, 64, (8, 28, 28), (3, 3, 3), 1, 1)]
_POINTWISE = [Layer(256, 64, (56, 56), (1, 1)), Layer(512, 2048, (7, 7), (1, 1))]
_FOUR = [Layer(16, 16, (8, 8, 16, 16), (3, 3, 3, 3), 1, 1), Layer(1, 16, (16, 16, 16, 16), (3, 3, 3, 3), 1, 1),
         Layer(32, 32, (6, 6, 12, 12), (3, 3, 3, 3), 2, 1)]
_FEW = [Layer(16, 32, (28, 28), (3, 3), 1, 1), _square(64, 28), _square(256, 7), _square(512, 7),
        _square(144, 28, groups=144)]


def _groups(tiny: bool) -> dict[str, Group]:
    """Every group, or with one small layer each."""
    def of(layers: list[Layer], batch: int, name: str) -> Network:
        small = [Layer(4, 4, (4,) * layers[0].rank, (3,) * layers[0].rank, 1, 1)]
        return Network(f"{name}, batch {batch}", batch, dict.fromkeys(small if tiny else layers, 1))

    every = [_FIRST, *_STAGES, _square(64, 28, 5), *_DEPTHWISE, *_OTHER_RANKS]
    real = ("float32", "float64")
    padding = of(every, 8, "padding modes, float32")
    return {
        "padding": Group(padding, MODES, MAPS, peers.padding, ("torch pad + conv", "zeros a product")),
        "complex": Group(of([_FIRST, *_STAGES, *_DEPTHWISE, *_OTHER_RANKS[:1], *_POINTWISE[:1]], 8, "complex numbers"),
                         ("complex64", "complex128"), MAPS, peers.complex_numbers, ("torch",)),
        "integers": Group(of([*every, *_POINTWISE], 8, "integers"), tuple(peers.ACCUMULATOR), ("forward",),
                          peers.integers, ("torch integers", "torch quantised", "onnxruntime ConvInteger",
                                           "onnxruntime QLinearConv", "own float32")),
        "halves": Group(of([*every, *_POINTWISE], 8, "halves"), ("float16", "bfloat16"), MAPS, peers.halves,
                        ("torch", "own float32")),
        "per_sample": Group(of([*_FEW, *_STAGES[:1]], 32, "gradients of each sample"), real, ("grad_weight",),
                            peers.per_sample, ("torch vmap(grad)", "Opacus' way", "sum and write")),
        "four_axes": Group(of(_FOUR, 2, "four axes"), real, MAPS, peers.four_axes, ("torch conv3d, summed",)),
    }


def parse_arguments():
    """The command line."""
    names = list(_groups(False))
    kinds = list(dict.fromkeys(kind for group in _groups(False).values() for kind in group.kinds))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", nargs="+", default=names, choices=names)
    parser.add_argument("--kinds", nargs="+", default=kinds, choices=kinds, metavar="KIND",
                        help=f"some of {', '.join(kinds)} (default: all)")
    parser.add_argument("--maps", nargs="+", default=list(MAPS), choices=MAPS)
    parser.add_argument("--best", action="store_true", help="least times in place of medians")
    parser.add_argument("--tiny", action="store_true", help="one small layer for each group")
    return harness.parsed(parser, lambda _: "kinds.json")


def time_row(arguments, group: Group, network: Network, layer: Layer, map_name: str, kind: str) -> dict | None:
    """Check and time one row; None, with a line that says why, where it cannot be."""
    try:
        job = group.make(layer, network.batch, map_name, kind)
    except peers.Missing as reason:
        print(f"{layer} {kind} is left out: {reason}")
        return None
    error = peers.error_of(job.ours(), job.reference)
    samples = interleaved_samples([job.ours, *(peer.call for peer in job.peers.values())], arguments.seconds)
    ours, *theirs = (min(times) if arguments.best else statistics.median(times) for times in samples)
    return {
        "group": network.name, "layer": str(layer), "batch": network.batch, "map": map_name, "kind": kind,
        "products": peers.products(layer, network.batch, network.name.startswith("padding")),
        "pyconv_seconds": ours, "samples": len(samples[0]), "error": error, "right": error <= job.limit,
        "peers": {
            name: {"seconds": seconds, "ratio": peer.scale * seconds / ours, "target": peer.target}
            for (name, peer), seconds in zip(job.peers.items(), theirs)
        },
    }


def heading_of(group: Group) -> str:
    """The names of the columns."""
    return f"{'layer':32} {'map':11} {'kind':11} {'pyconv':>10} " + " ".join(
        f"{name:>{width_of(name)}}" for name in group.peers) + "    error"


def width_of(name: str) -> int:
    """Of a peer's column."""
    return max(9, len(name))


def row_text(group: Group, row: dict) -> str:
    """One line of the table."""
    cells = []
    for name in group.peers:
        peer = row["peers"].get(name)
        below = peer and peer["target"] and peer["ratio"] < peer["target"]
        text = f"{peer['ratio']:.2f}{'<' if below else ' '}" if peer else ""
        cells.append(f"{text:>{width_of(name)}}")
    mark = "" if row["right"] else " !"
    return (f"{row['layer']:32} {row['map']:11} {row['kind']:11} {duration(row['pyconv_seconds']):>10} "
            f"{' '.join(cells)} {row['error']:8.1e}{mark}")


def summarise(rows: list[dict]) -> list[dict]:
    """For each group, map, kind and peer: the geometric mean of the ratios, the least of them, and where that is."""
    found: dict[tuple, list[tuple[float, str, float | None]]] = {}
    for row in rows:
        for name, peer in row["peers"].items():
            found.setdefault((row["group"], name, row["kind"], row["map"]), []).append(
                (peer["ratio"], row["layer"], peer["target"]))
    return [
        {"group": group, "peer": name, "kind": kind, "map": map_name, "layers": len(ratios),
         "geometric_mean": statistics.geometric_mean(ratio for ratio, *_ in ratios),
         "least": min(ratios)[0], "where": min(ratios)[1], "target": ratios[0][2],
         "below_target": sum(target is not None and ratio < target for ratio, _, target in ratios)}
        for (group, name, kind, map_name), ratios in found.items()
    ]


def summary_text(summary: list[dict]) -> str:
    """The means as a table."""
    lines = [f"{'peer / pyconv':52} {'kind':11} {'map':11} {'mean':>5} {'least':>6}  where"]
    for entry in summary:
        missed = f", {entry['below_target']} of {entry['layers']} below" if entry["target"] else ""
        lines.append(f"{entry['group'] + ': ' + entry['peer']:52} {entry['kind']:11} {entry['map']:11} "
                     f"{entry['geometric_mean']:5.2f} {entry['least']:6.2f}  {entry['where']}{missed}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, write."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    pyconv.set_num_threads(arguments.threads)
    record = {**surroundings("kinds.py"), "threads": arguments.threads, "seconds_per_row": arguments.seconds,
              "times": "least" if arguments.best else "medians", "rows": []}
    print(f"{record['machine']['processor']}, {arguments.threads} threads")
    with torch.no_grad():
        for name, group in _groups(arguments.tiny).items():
            kinds = [kind for kind in group.kinds if kind in arguments.kinds]
            maps = [map_name for map_name in group.maps if map_name in arguments.maps]
            if name in arguments.groups:
                harness.run_rows(
                    harness.work_of([group.network], kinds, maps), heading_of(group),
                    functools.partial(time_row, arguments, group), functools.partial(row_text, group),
                    rows=record["rows"])
    record["versions"] |= harness.versions("onnxruntime")  # a row that has it as a peer imports it
    record["summary"] = summarise(record["rows"])
    print(f"\n{summary_text(record['summary'])}")
    if arguments.output is not None:
        harness.write(record, arguments.output)
        draw_kinds(record, arguments.output.with_suffix(".png"))
    harness.end(record["rows"])


if __name__ == "__main__":
    main()
