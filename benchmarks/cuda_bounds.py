"""Predict what each target's layers take on an H200, from the launches that are planned and their machine code.

    python benchmarks/cuda_bounds.py                              print the tables
    python benchmarks/cuda_bounds.py --write                      and put them into benchmarks/results/cuda-predicted.md
    python benchmarks/cuda_bounds.py --launches resnet50 float16  print every launch of a network's layers instead

No GPU is needed, and no figure has been compared with one; launch_bounds.py says what a launch is predicted to take.
"""

import argparse
import datetime
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "tests"), str(HERE)]
import packages  # noqa: E402, F401  before what may import NVIDIA's packages

import compiled  # noqa: E402
import harness  # noqa: E402
import launch_bounds  # noqa: E402
import planned  # noqa: E402
from harness import MAPS, Work  # noqa: E402
from launch_bounds import START, Bound, Kernels  # noqa: E402
from layers import GPU_NETWORKS  # noqa: E402
from pyconv._gpu import configurations, cubins  # noqa: E402
from rows import DEPTHWISE_TARGET, KINDS, PUBLISHED, TARGETS, TINY_TARGET, TRIAL_TARGETS  # noqa: E402

PARTS = "product", "pack", "finish", "idle", "start"
PART_OF = {"pack": "pack", "pack_weight": "pack", "scan": "pack", "clear_flag": "pack", "finish": "finish",
           "fill": "finish", "unpack": "finish"}


class Predicted(NamedTuple):
    """A call's launches with their bounds, by what they are for."""

    launches: list[tuple[str, planned.Launching, Bound]]

    @property
    def seconds(self) -> float:
        """Of all launches, one behind the other."""
        return sum(bound.total for *_, bound in self.launches)

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part; that of a launch is what it takes beyond its start."""
        found = dict.fromkeys(PARTS, 0.0)
        for name, one, bound in self.launches:
            kind = one.kernel.source.name
            found["idle" if launch_bounds.waits(one) else PART_OF.get(kind, "product")] += bound.total - START
            found["start"] += START
        return found


def calls(kernels: Kernels, recorder: planned.Recorder, work: Work) -> dict[str, Predicted]:
    """The calls of a row of cuda.py, by order and algorithm on trial."""
    kind, found = KINDS[work[3]], {}
    for name, call in planned.calls_of_row(work, kind.dtype, kind.options, kind.trials_of(recorder.capability)).items():
        made = planned.recorded(recorder, call)
        launches = [(kernels.of(one.kernel), one) for one in made.launches]
        found[name] = Predicted([(known.configuration.name, one, launch_bounds.bound(known, one, made.scratch))
                                 for known, one in launches])
    return found


def share(work: Work, seconds: float) -> float:
    """The least time by the published rates over that predicted."""
    network, layer, _, dtype = work
    least, _ = harness.bound_of(layer, network.batch, KINDS[dtype].torch_dtype.itemsize, PUBLISHED[dtype],
                                PUBLISHED["bandwidth"])
    return least / seconds


# The tables


class Summed(NamedTuple):
    """A map of a network: seconds of all its layers, the geometric mean of their shares of the bound, the parts."""

    seconds: float
    share: float
    parts: dict[str, float]


def summed(kernels: Kernels, recorder: planned.Recorder, key: str, dtype: str) -> dict[str, dict[str, Summed]]:
    """Of each order and algorithm each map."""
    network, found = GPU_NETWORKS[key], {}  # type: ignore[var-annotated]
    for work in harness.work_of([network], [dtype], MAPS):
        for name, predicted in calls(kernels, recorder, work).items():
            found.setdefault(name, {}).setdefault(work[2], []).append((work, predicted))
    return {name: {map_name: Summed(
        sum(network.layers[work[1]] * one.seconds for work, one in each),
        statistics.geometric_mean(share(work, one.seconds) for work, one in each),
        {part: sum(network.layers[work[1]] * one.parts[part] for work, one in each) for part in PARTS},
    ) for map_name, each in maps.items()} for name, maps in found.items()}


def target_rows(
    kernels: Kernels, recorder: planned.Recorder
) -> Iterator[tuple[str, float, str, str, dict[str, Summed]]]:
    """(what a target is for, the target, dtype and algorithm, order, the maps)."""
    for key, what in (("resnet50", "ResNet-50"), ("depthwise", "depthwise")):
        for dtype, target in TARGETS.items():
            for name, maps in summed(kernels, recorder, key, dtype).items():
                order, _, trial = name.partition(", ")
                if what == "depthwise" and trial:
                    continue  # by definition, as what is chosen
                aim = DEPTHWISE_TARGET if what == "depthwise" else TRIAL_TARGETS.get(trial, target)
                yield what, aim, f"{dtype} {trial}".strip(), {"channels first": "NCHW"}.get(order, order), maps


def merged(lines: list[tuple[str, str, str]]) -> list[str]:
    """Lines of (before, a dtype, behind), one for those that tell dtypes apart and nothing else."""
    found: dict[tuple[str, str], list[str]] = {}
    for before, dtype, behind in lines:
        found.setdefault((before, behind), []).append(dtype)
    return [f"| {before} | {', '.join(dtypes)} | {behind} |" for (before, behind), dtypes in found.items()]


def largest(parts: dict[str, float]) -> str:
    """The part that takes most, and its share."""
    part = max(parts, key=lambda name: parts[name])
    return f"{part} {parts[part] / sum(parts.values()):.0%}"


def milliseconds(seconds: float) -> str:
    """With one digit behind the point, of less than one with two."""
    return f"{seconds * 1e3:.1f}" if seconds >= 1e-3 else f"{seconds * 1e3:.2f}"


def target_tables(kernels: Kernels) -> tuple[str, str]:
    """What each target's maps are predicted to take; and which part of that is whose."""
    brief, long = [], []
    with planned.recording(launch_bounds.H200) as recorder:
        for what, target, dtype, order, maps in target_rows(kernels, recorder):
            cells = [f"{milliseconds(one.seconds)} ms, {one.share:.0%}" for one in maps.values()]
            held = ", ".join(largest(one.parts) for one in maps.values())
            brief.append((f"{what} ≥ {target}", dtype, " | ".join([order, *cells, held, "no"])))
            for map_name, one in maps.items():
                shares = [f"{one.parts[part] / one.seconds:.0%}" for part in PARTS]
                long.append((what, dtype, " | ".join([order, map_name, milliseconds(one.seconds), *shares])))
        tiny = GPU_NETWORKS["tiny"]
        for order in ("channels first", "channels last"):
            found = [[calls(kernels, recorder, work)[order] for work in harness.work_of([tiny], ["float32"], [map_name])
                      if order == "channels first" or work[1].rank > 1] for map_name in MAPS]
            cells = [f"{min(spread):.0f} to {max(spread):.0f} µs" for spread in (
                [1e6 * one.seconds for one in each] for each in found)]
            launches = max(len(one.launches) for each in found for one in each)
            brief.append((f"tiny ≥ {TINY_TARGET}", "float32", " | ".join([
                {"channels first": "NCHW"}.get(order, order), *cells, f"at most {launches} launches", "no"])))
    heads = "target: torch / pyconv", "dtype", "order", *MAPS, "held by (of each map)", "measured"
    parts = "of", "dtype", "order", "map", "ms", *PARTS
    return ("\n".join([f"| {' | '.join(heads)} |", "|---|---|---|--:|--:|--:|---|---|", *merged(brief)]),
            "\n".join([f"| {' | '.join(parts)} |", "|---|---|---|---|--:|--:|--:|--:|--:|--:|", *merged(long)]))


def tile_table(kernels: Kernels) -> str:
    """Of each tile product: a stage, and a block's prologue and epilogue, in cycles of a multiprocessor's units."""
    units = "math", "issue", "shared", "L2"
    heads = (
        "kernel", "registers", "blocks (by)", "warps", *units, "binds", "of peak", "Tflop/s", "in flight", "beside")
    rows = [f"| {' | '.join(heads)} |", "|---|--:|---|--:|--:|--:|--:|--:|---|--:|--:|--:|--:|"]
    for configuration in configurations.all_kernels():
        tile = configuration.tile
        if tile is None or launch_bounds.H200 not in configuration.capabilities or (
                configuration.way not in launch_bounds.PRODUCTS):
            continue
        name, _, rest = configuration.name.partition(" ")
        if name == "gather" and rest.endswith(("partial", "accumulate")):
            continue  # the same loop
        found = kernels.of(planned.Wanted(configuration.source, configuration.threads, configuration.blocks))
        cycles, limit = found.stage, min(found.fit, key=lambda name: found.fit[name])
        binds, blocks = max(cycles, key=lambda unit: cycles[unit]), found.fit[limit]
        products = tile.bm * tile.bn * (tile.line // configuration.element.size)
        rate = 2 * products / cycles[binds] * launch_bounds.MULTIPROCESSORS * launch_bounds.CLOCK / 1e12
        rows.append("| " + " | ".join([
            configuration.name.removesuffix(" partial"), str(found.code.registers), f"{blocks} ({limit})",
            str(blocks * tile.threads // 32), *(f"{cycles[unit]:.0f}" for unit in units), binds,
            f"{cycles['math'] / cycles[binds]:.0%}", f"{rate:.0f}",
            f"{launch_bounds.ahead(configuration) * blocks * cycles[binds]:.0f}",
            f"{found.beside(1)['issue']:.0f}"]) + " |")
    return "\n".join(rows)


def print_launches(kernels: Kernels, key: str, dtype: str) -> None:
    """Every launch of a network's layers, with what each unit takes of it."""
    with planned.recording(launch_bounds.H200) as recorder:
        for work in harness.work_of([GPU_NETWORKS[key]], [dtype], MAPS):
            for order, predicted in calls(kernels, recorder, work).items():
                seconds = predicted.seconds
                print(f"\n{work[1]}, {work[2]}, {order}: {harness.duration(seconds)}, {share(work, seconds):.0%}")
                for name, one, bound in predicted.launches:
                    units = ", ".join(f"{unit} {harness.duration(time)}" for unit, time in bound.seconds.items())
                    print(f"  {name:30} {one.grid!s:16} {harness.duration(bound.total):>9} {bound.binds:8} {units}")


PAGE = """# What the targets' layers take on an H200: predicted, not measured

`python benchmarks/cuda_bounds.py --write`, {date}, code for sm_90 by {versions}.

Nothing here was measured on a GPU. This page follows from the launches that each call makes (their grids and arguments,
as planned without a GPU), from the machine code of their kernels, and from published rates. It has no times of cuDNN,
and so no ratios to torch: `benchmarks/cuda.py` measures both. What stands beside each target is the predicted time, and
the share of what the chip allows (the larger of products over the published rate and bytes over 4.8 TB/s, over the
predicted time): a target of 0.7 can be met only where cuDNN stays below the share / 0.7 of what the chip allows.

## Targets

ms: all 53 layers of ResNet-50 at batch 64, MobileNet-v2's 17 depthwise layers at batch 64. Share: the geometric mean
over distinct layers. Tiny: from the least to the greatest of the seven calls, what the device takes for them.

{brief}

*product*: gather, correlate, and direct kernels that compute. *pack*: copies into the order of tiles, and looking for
infinities. *finish*: sums of parts, cells that no tap meets, and phases' results to their places. *idle*: direct
kernels, and the sums of their parts, that wait behind a product with padding for a flag that says that an operand was
not finite, and do nothing if it was.
*start*: 3 µs for each launch, as `pyconv/_gpu/tiles.py` assumes it.

A tiny call takes 9 µs of the host's Python with one launch and 11 with four (measured without a GPU, to a driver that
does nothing, see docs/gpu.md; the driver's own time comes on top). What torch takes for
it beside an H200 is unknown, and so is whether the target is met.

{findings}

## What a launch is taken to need

{model}

The published rates are those of NVIDIA's data sheet of the H200 and of the CUDA Programming Guide for capability 9.0;
`benchmarks/launch_bounds.py` names each, and where others measured it. Assumed beyond these: code outside of loops runs
once; a multiprocessor's blocks overlap perfectly; the first-level cache keeps what neighbouring results read again;
stores of different instructions are not joined before the second-level cache.

## Where the time goes

{parts}

## Tiles

Cycles of a multiprocessor for a block's round of the loop over stages (64 bytes of the reduction, 128 with wgmma and
m16n8k16), by unit; the largest binds, and math over it is the share of the unit's peak. "in flight" is how many cycles
pass, at that rate, between the start of a copy and the wait for it: some 700 hide a miss. "beside" are the cycles of
the schedulers for what is outside of that loop: a block's prologue and its storing of results, as where channels are
neighbours in memory.

{tiles}
"""

FINDINGS = """## What to look at first

As planned on 2026-11-24, by predicted gain; `--launches resnet50 float16` and the like print every figure.

1. **Packing is what bytes allow, and is there at all.** Weights are packed in every call, 5 µs of 512×512×3×3, and
   three channels on 224×224 take 29 µs where bytes take 15, since a position takes three divisions for its one chunk.
   Products that read NCHW themselves would be first.
2. **The first layer's input gradients** still take a sixth of what all layers take in float32, 2.6 ms NCHW: of 16 rows
   3 are filled. Half as many rows, and lanes that lie 16 by 2, would save a fourth of it; four phases in one product,
   which all read the same cells, more. The larger products of float64 (m16n8k4 and others) have no tile for few rows.
3. **Weight gradients of few rows** are held up by the divisions that find cells, eight for a thread and stage.

Mended on that day: these input gradients took 9.1 ms in float32, 11.2 in float64 and 1.2 in float16, in tiles of 64
rows; in one of 128 positions and 16 rows they take 2.6, 2.9 and 0.6. Forward from 64 channels to 3 (3×3 on 64×64) took
0.59 ms in float32 and takes 0.19, in float16 0.10 and 0.06; its weight gradient, in a tile of 16×128, 0.82 and 0.40 in
float32. Products of 64 rows are in tiles of 128×64, which are predicted to reach 81 % in 16 bits and tf32, where 64×64
reach 61 %, held up by the second-level cache, and 78 % in float32, where these reach 62 %. A call takes the tiles whose
stages are predicted to take least.

Mended the day before: depthwise layers took 3.3 to 9.6 ms in kernels that had close to 700 instructions for nine
products, and a block for each tap of a weight's gradient, which read one element of each sector where channels lie
last. With taps known when they are compiled, and strips of 14 or 28 results that share cells, they take 0.30 to 0.80.
In 16 bits instructions hold most layers, 34 for a result, of which 9 multiply, 10 find addresses, 4 tell whether a cell
or a result is there and 4 convert, and 49 for a position of a weight's gradient; in float32 and float64 memory holds
them, forward and for input gradients. The starts of launches are 7 to 23 % of it, a weight's gradient has two.

Storing one tile of 128×128 took some 3000 cycles of the schedulers beside its loop, in a wide address and a store of 2
bytes for each result, and takes 1800, where channels lie side by side 1250: places are found once, and two neighbours
are stored at once, four of 16 bits. `finish` behind a flag looks at it first: it took up to 18 µs to do nothing.

Direct kernels that wait for a flag have at most 1056 blocks, which take turns if it is set, and take 4 µs each where
they took 94 behind a forward product of 57 µs (3×3 on 56×56, 64→64, float16) and 6.6 ms behind a weight gradient of 58
µs (3×3 on 7×7, 512→512), 82 % of all weight gradients in float16 NCHW. A thread of `pack` copies up to four chunks of
16 bytes, as bits, where it had 300 instructions for 4 elements: in float16 16 for an element in place of 75, `scan` 6
in place of 105, and of ResNet-50's NCHW forward packing took 2.3 ms and takes 0.8. Cells that no tap meets are filled
in one launch, zeros in words of 16 bytes, where three took 130 µs behind a product of 31. The first layer's input
gradients were left to direct kernels that were taken to make 4 Tflop/s where 1.2 are predicted.

The products alone: 474 Tflop/s with mma.sync, all that it is taken to make; 767 with wgmma, 81 % of its peak, held by
the second-level cache. The page before this one took that to give 24 bytes a cycle and multiprocessor, and so 469 at
most; a matrix product that others measured on an H100 had 34, and the theoretical rate is 38.8."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict what the targets' layers take on an H200.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/cuda-predicted.md")
    parser.add_argument("--launches", nargs=2, metavar=("NETWORK", "DTYPE"), help="print a network's launches instead")
    asked = parser.parse_args()
    compiled.start_worker()
    kernels = Kernels()
    if asked.launches:
        print_launches(kernels, *asked.launches)
        return
    brief, parts = target_tables(kernels)
    made = [brief, parts, tile_table(kernels)]
    print("\n\n".join(made))
    if asked.write:
        versions = ", ".join(f"{name} {number}" for name, number in cubins.versions().items())
        model = (launch_bounds.__doc__ or "").partition("\n\n")[2].strip()
        page = PAGE.format(date=datetime.date.today(), versions=versions, model=model, findings=FINDINGS, brief=brief,
                           parts=parts, tiles=made[2])
        (HERE / "results" / "cuda-predicted.md").write_text(page)


if __name__ == "__main__":
    main()
