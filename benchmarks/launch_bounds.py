"""What binds a launch on an H200, from its machine code, its grid and its arguments: predicted, without a GPU.

A launch takes at least as long as the busiest of these, and START seconds more from the one before it:

    math      a block's products over what a multiprocessor's unit makes in a cycle
    issue     the instructions of its warps over 4 schedulers; integer ones take a unit two cycles (see PIPES)
    shared    wavefronts of 128 bytes between shared memory and registers; of the kernels of groups of one channel also
              those between the first-level cache and registers
    L2        bytes that the second-level cache moves, in whole sectors of 32
    latency   how often a warp waits for memory, where the blocks beside it are too few to fill the time
    memory    bytes of operands and results, once each; not those in scratch that half of the second-level cache holds

The first three and latency count whole blocks: the multiprocessor that has most of them ends last.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import compiled
from planned import Launching, Wanted
from pyconv._gpu import configurations, single, tiles
from pyconv._gpu.sass import Loop

H200 = (9, 0)
# 132 multiprocessors; the clock that H100's theoretical rates are given for. Registers, shared memory and threads of a
# multiprocessor: CUDA Programming Guide, capability 9.0.
MULTIPROCESSORS, CLOCK, SCHEDULERS = tiles.MULTIPROCESSORS, tiles.CLOCK, 4
REGISTERS, SHARED, THREADS = 65536, 228 << 10, 2048
# NVIDIA's data sheet of the H200. Of the cache the same as H100's: 50 MB, 5120 bytes a cycle, of which a matrix product
# that others measured on an H100 (672 Tflop/s, tiles of 128 x 256, no multicast) must have had 4500; and of a
# multiprocessor no more than 64.
BANDWIDTH, L2_BYTES, L2_MOST, L2_SIZE = 4.8e12, 5120, 64, 50e6
LATENCY, NEAR = 700, 40  # cycles to wait for memory, and for what the first-level cache has
START = tiles.LAUNCH
SECTOR = 32
# Products a cycle: HMMA (mma.sync) on 16 bits 1024, on tf32 512, HGMMA (wgmma) twice that, DMMA of 16 rows 128, of 8
# rows 64, FFMA 128. Others measured 62 % of wgmma's rate with mma.sync; half is assumed here, and of DMMA.8x8x4, which
# Ampere has too.
PRODUCTS = {"f16": 1024, "bf16": 1024, "tf32": 512, "tf32x3": 512, "f64": 64, "fma": 128,
            f"f64_{tiles.HOPPER_DOUBLE}": 128, "wgmma_f16": 2048, "wgmma_bf16": 2048, "wgmma_tf32": 1024}
# 4 for each LDSM.x4, LDS.128 and LDGSTS.128 of a warp, 2 for LDS.64, 1 for LDS: the data must go to each lane's
# registers, also where lanes read the same 16 bytes.
WAVEFRONTS = {r"LDSM\.16\.MT?88\.4": 4, r"(LDS|STS)\.128": 4, r"(LDS|STS)\.64": 2, r"(LDS|STS)(\.U?16)?": 1,
              r"LDGSTS\.E\.BYPASS\.128": 4, r"SHFL.*": 1}
# Units that take a warp's instruction in two cycles, 64 lanes of a multiprocessor each (CUDA Programming Guide,
# throughput of arithmetic instructions, capability 9.0).
PIPES = (r"IMAD.*", r"(IADD3|LOP3|ISETP|SEL|SHF|LEA|PRMT|VIADD|VIMNMX|IMNMX|FSETP|FSEL|FMNMX|F2FP|P2R|R2P|PLOP3).*")
# What is once in a round of the last loop.
INNERMOST = {"direct": r"[FD]FMA", "direct_weight": r"[FD]FMA", "finish": r"[FD]ADD",
             "pack": r"STG\.E\.128", "unpack": r"LDG\.E\.128\.CONSTANT"}


STRIPS = "depthwise", "depthwise_weight"


@functools.cache
def made(name: str, **given: int) -> compiled.Made:
    """What the compiler makes of a kernel for an H200, once for all that ask."""
    return compiled.make([name], [H200], **given)[name]


class Kernel:
    """A kernel, compiled when its code is first asked for."""

    def __init__(self, configuration: configurations.Configuration) -> None:
        self.configuration = configuration

    @property
    def made(self) -> compiled.Made:
        """What the compiler makes of it."""
        return made(self.configuration.name)

    @property
    def code(self) -> compiled.Code:
        """For an H200."""
        return self.made.codes[H200]

    @functools.cached_property
    def fit(self) -> dict[str, int]:
        """Blocks that each of a multiprocessor's means suffices for."""
        threads, tile = self.configuration.threads, self.configuration.tile
        return {"registers": REGISTERS // (-(-self.code.registers // 8) * 8 * threads),
                "shared memory": SHARED // (1024 + (tile.shared if tile else 0)), "threads": THREADS // threads}

    @functools.cached_property
    def whole(self) -> Loop:
        """The code outside of loops, as if it were a loop around them."""
        return outside(self.code)

    @functools.cached_property
    def stage(self) -> dict[str, float]:
        """Cycles that a stage of a tile takes of a multiprocessor's units, and of the cache's share for it."""
        tile, way, name = self.configuration.tile, self.configuration.way, self.configuration.name
        assert tile is not None
        warps, products = tile.threads // 32, tile.bm * tile.bn * (tile.line // self.configuration.element.size)
        moved = per_stage(self.made, wavefronts)
        if way.startswith("wgmma"):  # what each warpgroup reads of both operands, and what gather's copy engine writes
            lines = tile.bm + warps // 4 * tile.bn + (tile.bn if name.startswith("gather") else 0)
            moved += lines * tile.line / 128 / warps
        return {
            "math": products * (3 if way == "tf32x3" else 1) / PRODUCTS[way],
            "issue": per_stage(self.made, issue) * warps / SCHEDULERS,
            "shared": moved * warps,
            "L2": (tile.bm + tile.bn) * tile.line / (L2_BYTES / MULTIPROCESSORS),
        }

    @functools.cache
    def beside(self, adjacent: int) -> dict[str, float]:
        """Cycles that what is outside of a block's loops takes, where results are stored in that way."""
        whole = self.whole
        if "if adjacent" in self.made.text:
            whole = outside(made(self.configuration.name, adjacent=adjacent).codes[H200])
        warps = self.configuration.threads // 32
        return {"issue": issue(whole) * warps / SCHEDULERS, "shared": wavefronts(whole) * warps}


@functools.cache
def by_source() -> dict[tuple[str, int, int], configurations.Configuration]:
    """Configurations by what a launch knows of its kernel; of those that are the same text the first."""
    return {(one.source.key, one.threads, one.blocks): one for one in reversed(list(configurations.all_kernels()))}


class Kernels:
    """Those of launches."""

    def __init__(self) -> None:
        self._found: dict[str, Kernel] = {}

    def of(self, wanted: Wanted) -> Kernel:
        """The kernel that is launched."""
        configuration = by_source()[wanted.source.key, wanted.threads, wanted.blocks_per_sm]
        if configuration.name not in self._found:
            self._found[configuration.name] = Kernel(configuration)
        return self._found[configuration.name]


# What a block does


def outside(code: compiled.Code) -> Loop:
    """What is in no loop, as if it were one around them."""
    own = code.opcodes - sum((loop.all for loop in code.loops), Counter())
    return Loop(own, code.loops, sum(own.values()) - own["NOP"])


def issue(part: Loop) -> float:
    """Cycles of a scheduler that a warp's instructions take."""
    return max(part.slots, *(2 * compiled.number(part.own, pipe) for pipe in PIPES))


def wavefronts(part: Loop) -> float:
    """Of a warp."""
    return sum(compiled.number(part.own, pattern) * each for pattern, each in WAVEFRONTS.items())


def loads_and_stores(part: Loop) -> float:
    """Of a warp, from and to global memory."""
    return compiled.number(part.own, r"(LDG|STG)\b.*")


def lines(found: Kernel, one: Launching) -> int:
    """Lines of 128 bytes that a warp of depthwise or depthwise_weight reads or writes at once."""
    last, side = one.values.get("last", 0) or one.values.get("abreast", 0) > 1, 1
    if one.kernel.source.name == "depthwise_weight":
        side = one.values["abreast"] >> one.values["shift"]
    return max(1, 32 * found.configuration.element.size * (side if last else single.STRIP_COLUMNS) // 128)


def per_stage(made: compiled.Made, count: Callable[[Loop], float]) -> float:
    """A count over a stage's instructions: those of the loop, and those of a loop inside as often as it goes round."""
    loop = compiled.stage_loop(made.codes[H200])
    total = float(count(loop))
    source = compiled.stage_of(made.text)[1]
    counting = [inner for inner in loop.inner if compiled.number(inner.own, compiled.OPCODES["fma"])]
    for inner, (rounds, calls) in zip(counting, source if counting else ()):
        total += count(inner) * rounds * calls["fma"] / compiled.number(inner.own, compiled.OPCODES["fma"])
    return total


def ahead(configuration: configurations.Configuration) -> int:
    """Stages between the start of a copy and the wait for it."""
    assert configuration.tile is not None
    # with wgmma the slot that products are still reading waits as well
    return configuration.tile.stages - (2 if configuration.way.startswith("wgmma") else 1)


def rounds_of(one: Launching) -> list[int]:
    """How often each of a kernel's nested loops goes round, the outermost first."""
    values, name = one.values, one.kernel.source.name
    if name in ("direct", "direct_weight"):
        loops = ("channels", "kz", "ky", "kx") if name == "direct" else ("rounds",)
        return [0] * waits(one) + [values[loop] for loop in loops]
    if name in ("pack", "unpack", *STRIPS):
        return [values["turns" if name == "depthwise" else "rounds"]]
    return [0] * waits(one) + [values["parts"] - 1] if name == "finish" else []


def waits(one: Launching) -> bool:
    """Whether a kernel does nothing but wait for a flag: no data that anyone times is spoiled."""
    name = one.kernel.source.name
    return one.values["flag"] != 0 if name in ("direct", "direct_weight") else (
        name == "finish" and one.values["flag_value"] == 1)


def of_block(found: Kernel, one: Launching) -> dict[str, float]:
    """Cycles that a block takes of a multiprocessor's units, alone; of latency all that its warps wait."""
    if found.configuration.tile is not None:
        stages = one.values["stages"]
        beside = found.beside(one.values.get("adjacent", 0))
        units = {unit: stages * found.stage[unit] + beside.get(unit, 0) for unit in ("math", "issue", "shared")}
        return units | {"latency": LATENCY * (1 + stages / ahead(found.configuration))}
    warps = one.kernel.threads // 32
    rounds = rounds_of(one)
    times, unrolled = nest(found, rounds)
    waits = math.prod(rounds) / unrolled * (NEAR if one.kernel.source.name == "direct" else LATENCY) if rounds else 0
    moved = times(wavefronts)
    if one.kernel.source.name in STRIPS:
        moved += times(loads_and_stores) * lines(found, one)
    return {"issue": times(issue) * warps / SCHEDULERS, "shared": moved * warps,
            "latency": LATENCY + waits}


def nest(found: Kernel, rounds: list[int]) -> tuple[Callable[[Callable[[Loop], float]], float], int]:
    """What counts over all of a warp's instructions, and how many rounds of the last loop the compiler made one.

    What it left of that loop behind it, in the loop around it, counts as rounds and not as part of that one.
    """
    parts, marker = [found.whole], INNERMOST.get(found.configuration.name.partition(" ")[0], "")
    for _ in rounds:
        parts.append(max(parts[-1].inner, key=lambda loop: compiled.number(loop.all, marker)))
    unrolled = max(1, compiled.number(parts[-1].own, marker)) if rounds else 1

    def times(count: Callable[[Loop], float]) -> float:
        if not rounds:
            return count(parts[0])
        last, total, often = count(parts[-1]) / unrolled, 0.0, 1
        for part, number in zip(parts, rounds):
            total += often * max(0.0, count(part) - last * compiled.number(part.own, marker))
            often *= number
        return total + often * last

    return times, unrolled


# What a launch reads and writes


def accesses(found: Kernel, one: Launching) -> list[tuple[Any, int]]:
    """(address, bytes) of each operand and result, once."""
    values, element = one.values, found.configuration.element
    size, name = element.size, one.kernel.source.name
    if name in ("pack", "pack_weight"):
        chunks = values["cells"] * values["row_chunks"] if name == "pack" else values["count"]
        return [(values["source" if name == "pack" else "weight"],
                 chunks // values["chunks"] * values["channels"] * size), (values["packed"], chunks * 16)]
    if name == "unpack":
        size_of_cell = values["row_chunks"] * 16
        lattice = values["cells"] // math.prod(values[f"p{axis}"] for axis in "zyx") * math.prod(
            values[f"size_{axis}"] for axis in "zyx")
        return [(values["packed"], lattice * size_of_cell), (values["target"], values["cells"] * size_of_cell)]
    if found.configuration.tile is not None:
        return of_product(found, one)
    if name in ("direct", "direct_weight"):
        return [] if waits(one) else of_definition(found, one)
    if name in STRIPS:
        return of_strips(found, one)
    if name == "finish":
        count = values["count"] // values["n0"] * values["last"] * one.grid[1] * (not waits(one))
        return [(values["partial"], count * values["parts"] * element.real_size), (values["target"], count * size)]
    if name == "scan":
        return [(values["source"], values["count"] // values["n0"] * values["last"] * 16)]
    word, each = {"fill": ("target", size), "clear_flag": ("flag", 4)}[name]
    return [(values[word], values["count"] * each)]


def counts(found: Kernel, one: Launching) -> tuple[list[int], list[int]]:
    """Positions and taps along each axis. Of tiles taps along z are what is left of the reduction."""
    values = one.values
    if "pz" in values:
        positions = [values[f"p{axis}"] for axis in "zyx"]
    else:  # direct's results, whose channels are the last or the second axis
        shift = found.configuration.name.split().count("last")
        positions = [values[f"n{place + shift}"] for place in (2, 1, 0)]
    inner = values["ky"], values["kx"]
    outer = values["kz"] if "kz" in values else values["chunks"] // (values["inner"] * math.prod(inner))
    return positions, [outer, *inner]


def cells_read(found: Kernel, one: Launching) -> int:
    """Of a channel of one sample, by all positions under all taps: no more than there are."""
    return math.prod(min(one.values[f"size_{axis}"], each * taps)
                     for axis, each, taps in zip("zyx", *counts(found, one)))


def of_product(found: Kernel, one: Launching) -> list[tuple[Any, int]]:
    """Of gather or correlate: its source, the other operand, the results."""
    values, groups, parts = one.values, one.grid[1], one.grid[2]
    if is_of_planes(found):  # of samples, which are groups
        of_sample = groups * values["chunks"] * 16
        return [(values["x"], of_sample * values["positions"]),
                (values["y"], values["positions"] * values["row_chunks"] * 16),
                (values["target"], of_sample * values["rows"])]
    samples = values["positions"] // math.prod(counts(found, one)[0])
    source = samples * cells_read(found, one) * groups * values["inner"] * 16
    if "y" in values:
        return [(values["x"], source), (values["y"], values["positions"] * groups * values["row_chunks"] * 16),
                (values["target"], parts * values["target_part"])]
    element = found.configuration.element
    results = groups * values["rows"] * values["positions"]
    return [(values["source"], source), (values.get("weight"), groups * values["rows"] * values["chunks"] * 16),
            (values["target"], results * (parts * element.part_size if "partial" in found.configuration.name
                                          else element.size))]


def is_of_planes(found: Kernel) -> bool:
    """Whether correlate's results are planes."""
    return found.configuration.name.endswith(" planes")


def of_definition(found: Kernel, one: Launching) -> list[tuple[Any, int]]:
    """Of direct or direct_weight: its source, the other operand, the results."""
    values, size = one.values, found.configuration.element.size
    positions, taps = map(math.prod, counts(found, one))
    if one.kernel.source.name == "direct":
        samples = values["count"] // math.prod(values[f"n{place}"] for place in range(4))
        rows, first = values["count"] // (samples * positions), "source"
        others = {"weight": rows * values["channels"] * taps, "target": values["count"]}
    else:
        samples, rows, first = values["positions"] // positions, one.grid[0] // (values["channels"] * taps), "x"
        others = {"y": values["positions"] * rows, "target": one.grid[0] * one.grid[1]}
    source = samples * cells_read(found, one) * rows // values["rows"] * values["channels"]
    return [(values[word], count * size) for word, count in {first: source, **others}.items()]


def strips(found: Kernel) -> tuple[int, int, int]:
    """Of depthwise or depthwise_weight: taps along an axis; rows of results and of cells."""
    words = found.configuration.name.split()
    k = next((int(word[0]) for word in words if re.fullmatch(r"\dx\d", word)), 3)
    up, step = 1 + ("divided" in words), 1 + ("strided" in words)
    rows, _ = single.STRIPS[up, step]
    return k, rows, (k - 1 + step * (rows - 1)) // up + 1


def of_strips(found: Kernel, one: Launching) -> list[tuple[Any, int]]:
    """Of depthwise or depthwise_weight: its source, the other operand, the results."""
    values, element = one.values, found.configuration.element
    k, results = strips(found)[0], values["py"] * values["px"]
    cells = math.prod(min(values[f"size_{axis}"], values[f"p{axis}"] * k) for axis in "yx")
    if one.kernel.source.name == "depthwise":
        samples, first, second = one.grid[1], "source", "target"
        rows = values["n0"] if values["last"] else values["count"] // (values["n0"] * values["n1"])
        others = {"weight": rows * k * k * element.size}
    else:
        samples, first, second = values["positions"] // (values["lines_y"] * values["lines_x"]), "x", "y"
        rows, others = values["channels"], {"target": one.grid[1] * values["target_part"]}
    return [(values[word], size) for word, size in {
        first: samples * rows // values["rows"] * cells * element.size,
        second: samples * rows * results * element.size, **others}.items()]


def strips_through_cache(found: Kernel, one: Launching) -> float:
    """Cells that strips share which lie one below the other are read again from there; where channels lie first, the
    columns of a strip are stored one behind the other, each a part of every sector."""
    k, rows, cells = strips(found)
    source, results, other = (size for _, size in of_strips(found, one))
    step, up = 1 + ("strided" in found.configuration.name), 1 + ("divided" in found.configuration.name)
    if one.kernel.source.name == "depthwise" and not one.values["last"]:
        results *= single.STRIP_COLUMNS
    return source * cells / (rows * step / up) + results + other


def stored_at_once(found: Kernel, one: Launching) -> tuple[int, list[int]]:
    """Of what a warp of a tile stores at once: how many neighbouring lines, and which of their columns."""
    name, across = found.configuration.name.split(), tiles.WAYS[found.configuration.way].inner[1]
    halves = found.configuration.element.size == 2 and "partial" not in name
    if is_of_planes(found) and across == 2:
        return 8, [*range(16 if halves else 8)]
    if name[0] == "correlate":
        run = 16 // found.configuration.element.part_size  # without tensor cores: of runs of a chunk a column at a time
        high = min(8, found.configuration.tile.bm // found.configuration.tile.wm // run)
        runs, pair = range(0, 32 // high * run, run), range(1 + is_of_planes(found))
        return (8, [*range(8)]) if across == 2 else (high, [first + beside for first in runs for beside in pair])
    if across == 1 or {"apart", "accumulate"} & set(name):
        return 8, [*range(0, 4 * across, across)]
    if one.values["adjacent"]:
        return 8, [*range(16 if halves else 8)]
    return (16, [0, 4]) if halves else (8, [*range(0, 8, 2)])


def sectors(along: int, across: int, lines: int, columns: list[int]) -> int:
    """Those that results fall into, for the bytes from a line to the next and from a column to the next."""
    return len({(line * along + column * across) // SECTOR for line in range(lines) for column in columns})


def through_cache(found: Kernel, one: Launching) -> float:
    """Bytes between the multiprocessors and the second-level cache."""
    values, tile = one.values, found.configuration.tile
    if tile is None:
        if one.kernel.source.name == "direct_weight" and not waits(one):  # every block reads both operands
            return one.grid[0] * values["positions"] * float(sum(
                min(SECTOR, abs(values[step])) for step in ("source_x", "y_x")))
        if one.kernel.source.name in STRIPS:
            return strips_through_cache(found, one)
        return sum(size for _, size in accesses(found, one))
    tiles_n, size = values["tiles_n"], found.configuration.element.in_tiles.size
    if "y" in values:
        rows, columns = values["rows"], values["chunks"] * 16 // size
        element = found.configuration.element
        along, across = values["target_row"], element.size if is_of_planes(found) else element.part_size
    else:
        rows, columns = values["positions"], values["rows"]
        along, across = values["target_x"], values["target_channel"]
    lines, at_once = stored_at_once(found, one)
    copied = (rows * tiles_n + columns * (one.grid[0] // tiles_n)) * values["stages"] * tile.line
    stored = rows * columns * sectors(along, across, lines, at_once) * SECTOR / (lines * len(at_once))
    return float(math.prod(one.grid[1:]) * (copied + stored))


class Bound(NamedTuple):
    """Seconds of a launch by unit."""

    seconds: dict[str, float]

    @property
    def binds(self) -> str:
        """The unit that is busy longest."""
        return max(self.seconds, key=lambda unit: self.seconds[unit])

    @property
    def total(self) -> float:
        """From the end of the launch before."""
        return START + self.seconds[self.binds]


def bound(found: Kernel, one: Launching, scratch: range) -> Bound:
    """What a launch takes of each unit."""
    blocks = math.prod(one.grid)
    most = -(-blocks // MULTIPROCESSORS)  # of one multiprocessor
    seconds = {unit: most * cycles / CLOCK for unit, cycles in of_block(found, one).items()}
    seconds["latency"] /= min(most, *found.fit.values())
    moved = through_cache(found, one)
    seconds["L2"] = max(moved / L2_BYTES, most * moved / blocks / L2_MOST) / CLOCK
    seconds["memory"] = sum(
        size for address, size in accesses(found, one) if address not in scratch or size > L2_SIZE / 2) / BANDWIDTH
    return Bound(seconds)
