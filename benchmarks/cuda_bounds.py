"""Predict what binds the main loop of each tile product on an H200: from its machine code, without a GPU.

    python benchmarks/cuda_bounds.py              print the table
    python benchmarks/cuda_bounds.py --write      and put it into benchmarks/results/cuda-predicted.md

A block's round of the loop over stages (64 bytes of the reduction, 128 with wgmma) needs a multiprocessor's units for
so many cycles:

    math      its products over what the unit makes in a cycle: HMMA (mma.sync) on 16 bits 1024, on tf32 512, HGMMA
              (wgmma) 2048, DMMA of 16 rows 128, of 8 rows 64, FFMA 128. Others measured 62 % of wgmma's rate with
              mma.sync; half is assumed here, and of DMMA.8x8x4, which Ampere has too
    issue     instructions in the loop's machine code times warps, over 4 schedulers (FFMA is among them: one a cycle)
    shared    wavefronts of 128 bytes: 4 for each LDSM.x4, LDS.128 and LDGSTS.128 of a warp, 2 for LDS.64, 1 for LDS;
              of wgmma what each warpgroup reads of both operands, and what gather's copy engine writes. Lanes that read
              the same 16 bytes are counted as often as they read: the data must go to each lane's registers
    L2        the bytes that the stage copies, at 24 bytes a cycle and multiprocessor (5.5 TB/s, as others measured on
              H100): no block's copies go through the first-level cache

The largest of the four binds; math over it is the predicted share of the unit's peak. Beyond these the prediction knows
no latency: "in flight" is how many cycles pass, at the bound's rate, between the start of a copy and the wait for it;
some 700 hide a miss. Prologue and epilogue are left out; so are waves of blocks.

What this means for the targets: no tile of 16-bit floats is predicted above 469 Tflop/s, half of the peak, with wgmma,
and above 352 with mma.sync, since the second-level cache binds. So 0.9 of cuDNN with wgmma can be met only in layers
where cuDNN stays below 521 Tflop/s, 55 % of the peak, and 0.7 with mma.sync only where it stays below 503.
"""

import argparse
import datetime
import sys
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:1] = [str(HERE.parent), str(HERE.parent / "tests")]  # not this folder, whose cuda.py would hide CUDA's

import compiled  # noqa: E402
from pyconv._gpu import cubins, tiles  # noqa: E402

MULTIPROCESSORS, CLOCK = 132, 1.755e9  # boost under load
SCHEDULERS, REGISTERS, SHARED, THREADS = 4, 65536, 228 << 10, 2048
L2_BYTES = 5.5e12 / MULTIPROCESSORS / CLOCK
PRODUCTS = {"f16": 1024, "bf16": 1024, "tf32": 512, "tf32x3": 512, "f64": 64, "fma": 128,
            **{f"f64_{shape}": 128 for shape in tiles.HOPPER_DOUBLES},
            "wgmma_f16": 2048, "wgmma_bf16": 2048}
WAVEFRONTS = {r"LDSM\.16\.MT?88\.4": 4, r"LDS\.128": 4, r"LDS\.64": 2, r"LDS": 1, r"LDGSTS\.E\.BYPASS\.128": 4}
H200 = (9, 0)
UNITS = "math", "issue", "shared", "L2"


class Bound(NamedTuple):
    """Cycles of a block's stage by unit; blocks that fit on a multiprocessor, and what limits them."""

    cycles: dict[str, float]
    registers: int
    blocks: int
    limit: str
    tile: tiles.Tile
    products: int
    ahead: int  # stages between a copy's start and the wait for it

    @property
    def binds(self) -> str:
        return max(self.cycles, key=lambda unit: self.cycles[unit])

    @property
    def share(self) -> float:
        return self.cycles["math"] / self.cycles[self.binds]

    @property
    def rate(self) -> float:
        """Tflop/s of the chip."""
        return 2 * self.products / self.cycles[self.binds] * MULTIPROCESSORS * CLOCK / 1e12

    @property
    def in_flight(self) -> float:
        """Cycles between a copy's start and the wait for it."""
        return self.ahead * self.blocks * self.cycles[self.binds]


def per_stage(made: compiled.Made, loop: Any, count: Any) -> float:
    """A count over a stage's instructions: those of the loop, and those of a loop inside as often as it goes round."""
    total = float(count(loop))
    source = compiled.stage_of(made.text)[1]
    counting = [inner for inner in loop.inner if compiled.number(inner.own, compiled.OPCODES["fma"])]
    for inner, (rounds, calls) in zip(counting, source if counting else ()):
        total += count(inner) * rounds * calls["fma"] / compiled.number(inner.own, compiled.OPCODES["fma"])
    return total


def predict(configuration: tiles.Configuration, made: compiled.Made) -> Bound:
    tile, way = configuration.tile, configuration.way
    assert tile is not None
    code = made.codes[H200]
    loop = compiled.stage_loop(code)
    warps, bytes_copied = tile.threads // 32, (tile.bm + tile.bn) * tile.line
    products = tile.bm * tile.bn * (tile.line // configuration.element.size)
    wavefronts = per_stage(made, loop, lambda part: sum(
        compiled.number(part.own, pattern) * each for pattern, each in WAVEFRONTS.items()))
    if way.startswith("wgmma"):
        lines = tile.bm + warps // 4 * tile.bn + (tile.bn if configuration.name.startswith("gather") else 0)
        wavefronts += lines * tile.line / 128 / warps
    cycles = {
        "math": products * (3 if way == "tf32x3" else 1) / PRODUCTS[way],
        "issue": per_stage(made, loop, lambda part: part.slots) * warps / SCHEDULERS,
        "shared": wavefronts * warps,
        "L2": bytes_copied / L2_BYTES,
    }
    fit = {"registers": REGISTERS // (-(-code.registers // 8) * 8 * tile.threads),
           "shared memory": SHARED // (tile.shared + 1024), "threads": THREADS // tile.threads}
    limit = min(fit, key=lambda name: fit[name])
    # with wgmma the slot that products are still reading waits as well
    ahead = tile.stages - (2 if way.startswith("wgmma") else 1)
    return Bound(cycles, code.registers, fit[limit], limit, tile, products, ahead)


def table() -> str:
    heads = "kernel", "registers", "blocks (by)", "warps", *UNITS, "binds", "of peak", "Tflop/s", "in flight"
    rows = [f"| {' | '.join(heads)} |", "|---|--:|---|--:|--:|--:|--:|--:|---|--:|--:|--:|"]
    compiled.start_worker()
    wanted = [one for one in tiles.configurations() if one.tile and H200 in one.capabilities and one.way in PRODUCTS
              and not (one.name.startswith("gather") and one.name.endswith(("partial", "accumulate")))]  # the same loop
    made = compiled.make([one.name for one in wanted], [H200])
    for configuration in wanted:
        bound = predict(configuration, made[configuration.name])
        cycles = " | ".join(f"{bound.cycles[unit]:.0f}" for unit in UNITS)
        rows.append(
            f"| {configuration.name.removesuffix(' partial')} | {bound.registers} | {bound.blocks} ({bound.limit}) | "
            f"{bound.blocks * bound.tile.threads // 32} | {cycles} | {bound.binds} | {bound.share:.0%} | "
            f"{bound.rate:.0f} | {bound.in_flight:.0f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict what binds each tile product on an H200.")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/cuda-predicted.md")
    asked = parser.parse_args()
    found = table()
    print(found)
    if asked.write:
        versions = ", ".join(f"{name} {number}" for name, number in cubins.versions().items())
        explained = (__doc__ or "").partition("A block's round")
        text = (
            "# Tile products on an H200: predicted, not confirmed by a GPU\n\n"
            f"`python benchmarks/cuda_bounds.py --write`, {datetime.date.today()}, code for sm_90 by {versions}.\n\n"
            f"{explained[1]}{explained[2].rstrip()}\n\n{found}\n")
        (HERE / "results" / "cuda-predicted.md").write_text(text)


if __name__ == "__main__":
    main()
