"""Which kernels there are: element types, ways to multiply, tiles; and which of them a problem takes. Data, and why.

Cycles and thresholds that are said to be measured are an H100's, over ResNet-50's layers at batch 64; others follow
from machine code.
"""

from collections.abc import Callable
from functools import lru_cache
from inspect import isfunction
from typing import Any, NamedTuple

from pyconv._gpu import arithmetic, fragments, gemm, hopper, packing, plain
from pyconv._gpu.specialise import Source

LINE = 64  # bytes of the reduction in a stage: two steps of a tensor core's product, and every type's chunks are four
PANEL = 128  # bytes of a line across the reduction, of those that warpgroups read


class Element(NamedTuple):
    """A dtype: its bytes, the type that sums (or the parts of complex ones) are kept in, and the dtype of results."""

    name: str
    size: int
    real: str
    result: str = ""  # '': the operands'

    @property
    def parts(self) -> int:
        """The real numbers that one is made of."""
        return 2 if self.name.startswith("complex") else 1

    @property
    def part_size(self) -> int:
        """The bytes of a part of a sum."""
        return 8 if self.real in ("f64", "i64") else 4

    @property
    def real_size(self) -> int:
        """The bytes of a sum."""
        return self.parts * self.part_size

    @property
    def result_size(self) -> int:
        """The bytes of a result."""
        return element(self.result or self.name).size

    @property
    def suffix(self) -> str:
        return SUFFIXES[self.name]

    @property
    def summed(self) -> "Element":
        """The same with results that are kept as sums are."""
        return self._replace(result=SUMS[self.real] if self.parts == 1 else self.name)

    @property
    def in_tiles(self) -> "Element":
        """What tiles multiply: the parts of complex numbers, two rows and two channels for one."""
        return self if self.parts == 1 else ELEMENTS[SUMS[self.real]]

    @property
    def arithmetic(self) -> dict[str, Callable[..., Any]]:
        """What its numbers are calculated with."""
        if self.parts == 2:
            return arithmetic.COMPLEX
        return arithmetic.WHOLE if self.real[0] == "i" else arithmetic.REAL

    def primitives(self) -> dict[str, str]:
        """The names of primitives."""
        result = SUFFIXES[self.result or self.name]
        stored = result.replace("u", "i")
        return {
            "load": f"load_{self.suffix}", "load_part": f"load_{self.suffix}",
            "load_result": f"load_{result}", "reload": f"reload_{result}", "reload_part": f"reload_{result}",
            "store": f"store_{stored}", "store_part": f"store_{stored}",
            "load_real": f"load_{self.real}", "reload_real": f"reload_{self.real}",
            "store_real": f"store_{self.real}", "real": self.real, "number": f"number_{self.real}",
            "shared": f"shared_{self.real}", "shared_part": f"shared_{self.real}",
            "put": f"put_{self.real}", "put_part": f"put_{self.real}",
            "shared_chunk": "shared_f64x2" if self.real == "f64" else "shared_f32x4",
            "load_bits": {2: "load_u16", 4: "load_i32", 8: "load_i64"}.get(self.size // self.parts, ""),
            "number_of_bits": "number_i64" if self.size // self.parts == 8 else "number_i32",
        }


SUFFIXES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "complex64": "f32",
            "complex128": "f64", **{f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u")
                                    for bits in (8, 16, 32, 64)}, "uint64": "i64"}
SUMS = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64"}
ELEMENTS = {
    name: Element(name, size, real)
    for name, size, real in (
        ("float16", 2, "f32"), ("bfloat16", 2, "f32"), ("float32", 4, "f32"), ("float64", 8, "f64"),
        ("complex64", 8, "f32"), ("complex128", 16, "f64"))
}
WHOLE = {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}


def element(dtype: str, result: str = "") -> Element:
    """The element for operands of a dtype and results of another, '' the same.

    Whole numbers are summed in as many bits as the result keeps, 32 or 64. Results of halves may be sums of theirs.
    """
    if dtype not in WHOLE:
        return ELEMENTS[dtype] if result in ("", dtype) else ELEMENTS[dtype]._replace(result=result)
    return Element(dtype, WHOLE[dtype], "i64" if WHOLE[result or dtype] == 8 else "i32", result)


class Reading(NamedTuple):
    """Where a lane's results and operands lie, how a stage is multiplied, and how that reads a fragment of either."""

    lanes: Callable[..., Any]
    multiply: Callable[..., Any]
    fragment_a: Callable[..., Any] | None = None
    fragment_b: Callable[..., Any] | None = None


class Way(NamedTuple):
    """A way to multiply: how fragments are read in gather and in correlate, and what one acc[i, j] holds."""

    gather: Reading
    correlate: Reading
    zero: Callable[..., Any]
    fragment: tuple[int, int]  # rows and columns of the result that a warp's acc[i, j] covers
    inner: tuple[int, int]  # DOWN, ACROSS
    mma: str = ""
    operand: Callable[..., Any] | None = None
    parts: tuple[tuple[int, int], ...] = ((0, 0),)  # of both operands, whose products are summed in this order
    from_zero: bool = False  # whether tensor cores sum no more than a stage's products at once
    at_once: int = 1  # elements of a row that a lane gives to a product of float64
    wgmma: str = ""  # '' where kernels are gemm's and not hopper's


_MATRICES, _TRANSPOSED, _WORDS = (
    Reading(lanes, fragments.multiply_fragments, *readers) for lanes, *readers in (
        (fragments.lanes_of_matrices, fragments.matrices_a, fragments.matrices_b),
        (fragments.lanes_of_transposed, fragments.transposed_a, fragments.transposed_b),
        (fragments.lanes_of_words, fragments.words_a, fragments.words_b)))
_HALF = Way(_MATRICES, _TRANSPOSED, fragments.four, (16, 8), (2, 2), "mma_f16", fragments.as_loaded)
_TF32 = Way(_MATRICES, _WORDS, fragments.four, (16, 8), (2, 2), "mma_tf32", fragments.rounded)
_DOUBLES = Way(
    Reading(fragments.lanes_of_doubles, fragments.multiply_doubles, fragments.doubles_a, fragments.doubles_b),
    Reading(fragments.lanes_of_words, fragments.multiply_doubles, fragments.double_words_a, fragments.double_words_b),
    fragments.two, (8, 8), (1, 2), "mma_f64")
# Hopper's products of float64, of which a lane gives four elements of a row. Smaller ones, m16n8k4 and m16n8k8, took
# 1.1 to 1.3 times as long on an H100, but for gradients of weights 0.92 times.
HOPPER_DOUBLE = "m16n8k16"
_WARPGROUP = Reading(fragments.lanes_of_matrices, hopper.multiply_lines)
_HOPPER = _HALF._replace(gather=_WARPGROUP, correlate=_WARPGROUP)
WAYS = {
    "f16": _HALF,
    "bf16": _HALF._replace(mma="mma_bf16"),
    "tf32": _TF32,
    # all of a product but the low parts', 2**-22 of it
    "tf32x3": _TF32._replace(operand=fragments.split, parts=((0, 1), (1, 0), (0, 0)), from_zero=True),
    "wgmma_f16": _HOPPER._replace(wgmma="wgmma_f16"),
    "wgmma_bf16": _HOPPER._replace(mma="mma_bf16", wgmma="wgmma_bf16"),
    "wgmma_tf32": _TF32._replace(gather=_WARPGROUP, wgmma="wgmma_tf32"),
    "f64": _DOUBLES,
    f"f64_{HOPPER_DOUBLE}": _DOUBLES._replace(
        zero=fragments.four, fragment=(16, 8), inner=(2, 2), mma=f"mma_f64_{HOPPER_DOUBLE}", at_once=4),
    "fma": Way(Reading(fragments.lanes_of_scalars, fragments.multiply_scalars),
               Reading(fragments.lanes_of_runs, fragments.multiply_runs), fragments.one, (8, 4), (1, 1)),
}
# Ways whose products read lines along the reduction alone, of operands that were rounded as they were packed: weights'
# gradients, whose lines lie across it, are made without warpgroups.
ALONG = {"wgmma_tf32"}
# Where 'auto' takes Hopper's own products in place of those of older chips, as measured on an H100 over ResNet-50's
# layers: wgmma where gather has 256 rows and a reduction of 128, 1.1 to 1.6 times as fast, or 128 rows and a longer
# one, up to 1.2 times; in correlate, 1.1 to 2 times, unless it is pointwise and of few results, else up to 1.2 times;
# m16n8k16 everywhere, 1.3 times, but for few rows.
HOPPER_DEPTHS = {256: 128, 128: 512}
HOPPER_RESULTS = 2**14
# Of tf32, for which channels that lie last are copied too: how often each copied number is multiplied, and how many
# products a phase sums. From 576 times on an H100 took no longer in either order; 512 times took it 1.4 times as long
# with the channels last.
HOPPER_USES, HOPPER_DEPTH = 576, 512


def without_warpgroups(way: str) -> str:
    """The way that makes the same products on older chips too."""
    return way.removeprefix("wgmma_")


def on_hopper(
    way: str, kernel: str, rows: int, channels: int, taps: int, pointwise: bool, uses: int, of_phase: int
) -> str:
    """What 'auto' takes on a chip of capability 9.0 for groups of so many rows and channels; gather multiplies each
    number of its source so many times, and sums so many products in each phase of a stride."""
    if way in ("f16", "bf16"):
        depth = channels * taps
        gains = any(rows >= least and depth >= deep for least, deep in HOPPER_DEPTHS.items())
        if kernel == "correlate":
            gains = rows >= 64 and (not pointwise or rows * depth > HOPPER_RESULTS)
    elif way == "tf32":
        gains = kernel == "gather" and rows >= 128 and uses >= HOPPER_USES and of_phase >= HOPPER_DEPTH
    else:
        return f"f64_{HOPPER_DOUBLE}" if way == "f64" and rows > 32 else way
    return f"wgmma_{way}" if gains else way


SPLITTING = {"tf32x3"}  # two parts of each operand: infinity meets the zero of a low part, in its sample alone
# Ways whose pointwise problems have kernels of their own, but for float64. On tensor cores these have 26 to 57 % fewer
# instructions in a stage, as three products of tf32 9 to 22 %, without tensor cores 5 to 13 %. What binds the others is
# predicted to be their products (f64), and bytes from the second-level cache (wgmma), by more than twice the issue.
POINTWISE = {"f16", "bf16", "tf32", "tf32x3", "fma"}
# Seconds that packing, waiting for a flag and tiles that do not fill the chip take of a small problem: so many that the
# benchmarks' tiny layers, of a single sample, keep the direct kernels, in which they are predicted to be faster.
SAVED = 40e-6
LAUNCH = 3e-6
MULTIPROCESSORS, CLOCK = 132, 1.755e9  # of an H200
# Bytes a second of operands; of parts, in the cache or not; seconds that finish waits for one: of an H100.
READING, BANDWIDTH, SUMMING = 3e12, 4e12, 7e-8
BY_PHASE = 2**20  # results for which dividing cells by the stride takes as long as the launch of another phase
DIRECT_RATE = 1.2  # Tflop/s of the direct kernels, predicted: some 30 instructions for each product of a thread


class Tile(NamedTuple):
    """BM x BN results of a block of wm x wn warps; `blocks` of them share a multiprocessor's registers.

    `line`: bytes of the reduction in a stage. `cycles`: what a stage of gather takes of a multiprocessor, `across` one
    of correlate: of an H100 where it was measured, else as benchmarks/cuda_bounds.py predicts it.
    """

    bm: int
    bn: int
    wm: int
    wn: int
    stages: int = 4
    blocks: int = 2
    line: int = LINE
    cycles: int = 0
    across: int = 0

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn

    @property
    def turned(self) -> "Tile":
        """The same with rows and columns in each other's place."""
        return self._replace(bm=self.bn, bn=self.bm, wm=self.wn, wn=self.wm)

    @property
    def shared(self) -> int:
        ring = self.stages * (self.bm + self.bn) * self.line
        # wgmma: the places of lines, the columns' biases, a mbarrier for each stage
        return ring if self.line == LINE else ring + self.bm * 8 + self.bn * 4 + self.stages * 8


def _timed(*found: tuple[Any, ...]) -> tuple[Tile, ...]:
    """Tiles with their cycles and, where they are others, those of correlate."""
    return tuple(tile._replace(cycles=cycles, across=(*across, cycles)[0]) for tile, cycles, *across in found)


# Of 16 bits and TF32 a warp of 64 x 64 results keeps 128 of them in each lane's registers, half of the 255 that two
# blocks of four warps leave it: what it reads of shared memory serves most products. Without tensor cores, and where
# three products of tf32 are made, it has 64 x 32. The small tile of 32 x 32 a warp is for grids that would not fill the
# chip. With float64 a result takes two registers, so that 32 x 32 is all a warp can keep; three products of tf32 need
# the registers of one block.
# Shared memory holds two of the largest tile's 96 KB on chips of capability 9.0, one on others: there the bound on
# registers serves nothing, and no register spills for it.
# MIDDLE, of as large warps, is for 64 rows where SMALL is held up by copies or by what its warps read. FEW is for
# few rows, where most of 64 are multiplied in vain, in correlate turned, to 16 x 128; its two warps copy 16 lines at
# once, as many as the weight has.
LARGE, SMALL, FEW = Tile(128, 128, 2, 4), Tile(64, 64, 2, 2), Tile(128, 16, 2, 1)
MIDDLE = Tile(128, 64, 2, 2, blocks=3)
# Stages of 128 bytes, of which there are three: half as many waits for copies, and for the block's other warps.
_LONG = {"stages": 3, "line": 128}
TILES: dict[str, tuple[Tile, ...]] = {
    **{way: _timed((Tile(128, 128, 2, 2, **_LONG), 1600, 2400), (SMALL._replace(**_LONG), 500, 760),
                   (MIDDLE._replace(**_LONG), 860), (FEW._replace(**_LONG), 480, 970))
       for way in ("f16", "bf16", "tf32")},
    "fma": _timed((LARGE, 3650, 3600), (SMALL, 910, 930), (MIDDLE, 1550, 1400), (FEW, 475, 500)),
    "tf32x3": _timed((LARGE._replace(blocks=1), 1864), (SMALL, 644), (FEW, 422)),
    "f64": _timed((Tile(128, 64, 4, 2), 1130), (SMALL, 566), (FEW, 316)),
    # whose operands want aligned groups of registers, for which those of two blocks are too few
    f"f64_{HOPPER_DOUBLE}": _timed((Tile(128, 64, 4, 2, blocks=1, **_LONG), 1450, 1600),
                                   (SMALL._replace(**_LONG), 670, 850))}
# In hopper's kernels warpgroups of four warps lie one above the other. A multiprocessor's tensor cores make 2048
# products of 16 bits a cycle, so that those of a stage, 64 deep, of the first tile take 1024; on an H100 one took 1560
# where a block had 36 stages, and 2500 where it had 8, since a block that is alone waits for its first copies and for
# its stores. The last tile is for weights' gradients of 64 rows. Those of correlate, whose threads copy both operands,
# take longer.
_WARPGROUPS = _timed((Tile(128, 256, 8, 1, blocks=1, line=128), 1267, 2200),
                     (Tile(128, 128, 8, 1, stages=3, line=128), 845, 1400),
                     (Tile(128, 64, 8, 1, line=128), 634, 880),
                     (Tile(64, 256, 4, 1, blocks=1, line=128), 1060, 1550))
TILES |= {"wgmma_f16": _WARPGROUPS, "wgmma_bf16": _WARPGROUPS, "wgmma_tf32": _WARPGROUPS[:3]}
DOUBLE_FMA = tuple(tile._replace(blocks=1) for tile in TILES["f64"])


def held(way: str, element: Element) -> Element:
    """The element as shared memory holds it: 16-bit floats that no tensor core multiplies are float32 there."""
    return element._replace(size=4) if way == "fma" and element.size == 2 else element


def tiles(way: str, element: Element, kernel: str = "gather", apart: bool = False) -> tuple[Tile, ...]:
    """The tiles of a kernel; `apart`: those whose registers hold what rows that are cells of a channel take too."""
    found = DOUBLE_FMA if way == "fma" and element.size == 8 else TILES[way]
    if kernel == "planes":  # whose biases take registers that LARGE has not, without tensor cores
        return tuple(tile for tile in tiles(way, element, "correlate") if way != "fma" or tile[:4] != LARGE[:4])
    if kernel == "correlate":
        return tuple(tile.turned if tile[:4] == FEW[:4] else tile for tile in found
                     if way == "fma" or tile[:4] != MIDDLE[:4])
    return tuple(tile for tile in found if not apart or tile.bm * tile.bn <= SMALL.bm * SMALL.bn)


def _constants(kernel: str, way_name: str, operand: Element, tile: Tile) -> dict[str, Any]:
    way, element = WAYS[way_name], held(way_name, operand)
    wtm, wtn = tile.bm // tile.wm, tile.bn // tile.wn
    per_chunk, (down, across), (high, wide) = 16 // element.size, way.inner, way.fragment
    if (way_name, kernel) == ("fma", "correlate"):  # runs of a chunk's elements
        high = min(high, wtm // per_chunk)
        wide = 32 // high
        rows = tuple(i // per_chunk * high * per_chunk + i % per_chunk for i in range(wtm // high))
        columns = tuple(j // per_chunk * wide * per_chunk + j % per_chunk for j in range(wtn // wide))
    else:
        rows = tuple(i * high + h * 8 for i in range(wtm // high) for h in range(down))
        columns = tuple(j * wide + v for j in range(wtn // wide) for v in range(across))
    lines = {name: PANEL if way.wgmma else n * element.size for name, n in (("A", tile.bm), ("B", tile.bn))}
    return {
        "BM": tile.bm, "BN": tile.bn, "WM": tile.wm, "WN": tile.wn, "WTM": wtm, "WTN": wtn,
        "MI": wtm // high, "NI": wtn // wide, "LANES": high, "LANE_BITS": high.bit_length() - 1,
        "STAGES": tile.stages, "THREADS": tile.threads, "LINE": tile.line,
        **{f"{name}_LINE": line for name, line in lines.items()},
        **{f"{name}_TWIST": _twist(line // 16, element) for name, line in lines.items()},
        "STAGE_BYTES": (tile.bm + tile.bn) * tile.line, "OUTSIDE": OUTSIDE, "SIZE": element.size,
        "PER_CHUNK": per_chunk, "CHUNK": per_chunk * operand.size,
        "DEPTH": tile.line // element.size, "REAL": element.real_size,
        "ROWS": rows, "COLUMNS": columns, "DOWN": down, "ACROSS": across,
        "DOUBLINGS": (tile.bn // 8).bit_length() - 1, "IN_BOXES": kernel == "gather",
        **dict(zip(("DESCRIPTOR", "STEP"), hopper.LINES_ALONG if kernel == "gather" else hopper.LINES_ACROSS)),
        "BY_SAMPLE": way_name in SPLITTING, "PARTS": way.parts, "FROM_ZERO": way.from_zero, "AT_ONCE": way.at_once,
        "zero": way.zero, "operand": way.operand,
        **getattr(way, kernel)._asdict(),
    }


def _twist(chunks: int, element: Element) -> tuple[int, int, int]:
    """The bits by which gemm.twist turns lines of so many chunks."""
    chunks = min(chunks, 8)
    return (8 // chunks).bit_length() - 1, chunks - 1 if element.size == 2 else chunks // 2 - 1, int(element.size > 2)


def functions_of(*modules: Any) -> dict[str, Any]:
    return {name: value for module in modules for name, value in vars(module).items() if isfunction(value)}


@lru_cache(maxsize=512)
def product(
    kernel: str, way: str, element: Element, tile: Tile, partial: bool, accumulate: bool, apart: bool = False,
    pointwise: bool = False, planes: bool = False,
) -> Source:
    """'gather' or 'correlate' for a way, an element and a tile; `planes`: see there.

    `partial`: the results are parts of a sum; `apart`: rows are cells of a channel, at places that take registers;
    `pointwise`: position m reads the m-th of the source's cells, by one tap, which only some ways make use of.
    """
    wgmma, kept = WAYS[way].wgmma, element.summed if partial else element
    in_pairs, width = planes or WAYS[way].inner[1] == 2 and not accumulate and not apart, kept.result_size
    constants = functions_of(plain, fragments, gemm, hopper) | element.arithmetic
    constants |= _constants(kernel, way, element, tile) | {
        "ACCUMULATE": accumulate, "ROWS_ARE_CHANNELS": not apart, "RESULT": width, "IN_PAIRS": in_pairs,
        "AS_HALVES": in_pairs and width == 2, "PLANES": planes,
        "POINTWISE": planes or pointwise and has_pointwise(way, element)}
    constants = {name: value for name, value in constants.items() if value is not None}
    primitives = kept.primitives() | {
        "mma": WAYS[way].mma, "pair": f"pair_{element.suffix}", "store_half": "store_i16",
        "store_pair": "store_b32x2" if width == 2 else f"store_{kept.real}x2", "store_reals": f"store_{kept.real}x2"}
    if held(way, element) != element:
        primitives["copy16"] = f"copy16_{element.suffix}"
    if wgmma:
        across = "" if kernel == "gather" else "_across"
        primitives |= {"wgmma": f"{wgmma}_{tile.bn}{across}", "wgmma_results": f"wgmma_results_{tile.bn}"}
        constants["sum_correlated"] = hopper.sum_stages
        if kernel == "gather":
            return Source(hopper.gather_hopper, constants, primitives)
    return Source(getattr(gemm, kernel), constants, primitives)


# Kernels that store operands or sums, whatever results are.
NO_RESULTS = {"pack", "pack_weight", "clear_flag", "scan", "unfold", "channel_sum", "direct_weight"}


@lru_cache(maxsize=512)
def simple(
    kernel: str, element: Element, accumulate: bool = False, partial: bool = False, last: bool = False,
    divided: bool = False, mode: str = "zeros", combined: bool = False, waits: bool = False, rounded: bool = False,
    whole: bool = False,
) -> Source:
    """A kernel of `plain` or `packing`, for a padding mode; `waits`: its work is done only if a flag is set; `rounded`:
    what is packed is rounded to tf32; `whole`: and was in chunks before."""
    if kernel in NO_RESULTS:
        element = element._replace(result="")
    constants = functions_of(plain, packing) | element.arithmetic | _bits(element) | {
        "THREADS": plain.THREADS, "SCANNED": packing.SCANNED, "SUMMED": plain.SUMMED,
        "SIZE": element.size, "REAL": element.real_size, "PART": element.part_size,
        "PARTS": element.parts,
        "ACCUMULATE": accumulate, "CHANNELS_LAST": last, "DIVIDED": divided, "MODE": mode,
        "COMBINED": combined, "WAITS": waits, "ROUNDED": rounded, "WHOLE": whole,
    }
    room = packing if hasattr(packing, kernel) else plain
    return Source(getattr(room, kernel), constants, (element.summed if partial else element).primitives())


def _bits(element: Element) -> dict[str, int]:
    """How packing sees a number: its bytes; of a word the bits but the sign, what carries the least number whose double
    is not finite, or of float16 that is not itself, into the sign's place, and that place. Of 16 bits two are a word.
    """
    to_top = {"float16": 0x04000400, "bfloat16": 0x01000100}.get(
        element.name, 0x00200000 if element.real == "f64" else 0x01000000)
    top = 0x80008000 if element.size == 2 else 0x80000000
    return {"WIDTH": element.size // element.parts, "MAGNITUDE": top ^ 0xFFFFFFFF, "TO_TOP": to_top, "TOP": top}


HOPPERS = {"wgmma", HOPPER_DOUBLE}  # algorithms of capability 9.0 alone
MORE_ALGORITHMS: dict[str, tuple[str, ...]] = {  # than 'auto' and 'gemm', of a dtype
    "float16": ("wgmma",), "bfloat16": ("wgmma",), "float32": ("tf32x3", "wgmma"), "complex64": ("tf32x3",),
    "float64": (HOPPER_DOUBLE,), "complex128": (HOPPER_DOUBLE,)}
FLOAT64_TENSOR_CORES = {(8, 0), (9, 0), (10, 0)}  # at full rate; other chips emulate them, slower than their units


def way_of(element: Element, algorithm: str, allow_tf32: bool, capability: tuple[int, int]) -> str | None:
    """The way that products of a dtype are made in; None of whole numbers, which have none but the direct kernels.

    ValueError for Hopper's own on another chip.
    """
    if algorithm in HOPPERS:
        if capability != (9, 0):
            more = (name for name in MORE_ALGORITHMS[element.name] if name not in HOPPERS)
            *names, last = "auto", "gemm", *more
            raise ValueError(
                f"algorithm must be {', '.join(map(repr, names))} or {last!r} on a GPU whose capability is not 9.0; "
                f"got {algorithm!r} and capability {capability[0]}.{capability[1]}")
        return f"f64_{algorithm}" if algorithm == HOPPER_DOUBLE else (
            f"wgmma_{element.suffix if element.size == 2 else 'tf32'}")
    if element.real[0] == "i":
        return None
    if capability < (8, 0):
        return "fma"
    if element.size == 2:
        return element.suffix
    if element.size == 8:
        return "f64" if capability in FLOAT64_TENSOR_CORES else "fma"
    return algorithm if algorithm == "tf32x3" else "tf32" if allow_tf32 else "fma"


def has_pointwise(way: str, element: Element) -> bool:
    """Whether pointwise problems have kernels of their own."""
    return way in POINTWISE and element.size < 8


def is_direct(
    way: str | None, element: Element, rows: int, channels: int, products: int, pieces: int = 1,
    kernel: str = "gather",
) -> bool:
    """Whether the direct kernel, one launch, is faster than tiles, whose operands have to be packed by others.

    Of a batch of 64, products in tiles, of which a group's rows and channels may fill but a small part, have to save
    more than SAVED seconds, and LAUNCH for each piece but one.
    """
    if way is None:
        return True
    per_chunk = 16 // element.size
    filled = channels / (-(-channels // per_chunk) * per_chunk)
    rate = max(filled * rows * rate_of(way, element, tile) / (-(-rows // across) * across)
               for tile in tiles(way, element, kernel) for across in [tile.bn if kernel == "gather" else tile.bm])
    least = (SAVED + (pieces - 1) * LAUNCH) * 1e12
    return 2 * products * 64 * (rate - DIRECT_RATE) <= least * rate * DIRECT_RATE


def rate_of(way: str, element: Element, tile: Tile) -> float:
    """Tflop/s that a full tile is predicted to reach."""
    products = tile.bm * tile.bn * tile.line // held(way, element).size
    return 2 * products * MULTIPROCESSORS * CLOCK / tile.cycles / 1e12


def tile_of(
    way: str, element: Element, results: tuple[int, int], blocks: int, kernel: str = "gather", apart: bool = False,
    seconds: Callable[[Tile], float] | None = None,
) -> Tile:
    """The tile of which the blocks (`blocks` for groups and parts) of one multiprocessor are predicted to take least,
    or which takes least `seconds`.

    In each a result is summed in one order. 'planes' are made by correlate, with reductions as short as gather's.
    """
    def cycles(tile: Tile) -> int:
        count = -(-results[0] // tile.bm) * -(-results[1] // tile.bn) * blocks
        return -(-count // MULTIPROCESSORS) * (tile.across if kernel == "correlate" else tile.cycles)
    return min(tiles(way, element, kernel, apart), key=seconds or cycles)


def parts_of_gather(positions: int, stages: int) -> int:
    """Into how many parts a reduction is cut: for one sample's few positions under a long reduction. Four parts, which
    more multiprocessors share where there is one sample, took 1.2 times as long as two of 64.

    Of one sample's geometry alone, so that neither batch nor chip decide in which order a result is summed.
    """
    return 2 if positions <= 64 and stages >= 128 or positions <= 256 and stages >= 256 else 1


OUTSIDE = -(2**30)  # a cell that no tap can bring inside: taps reach less than 2**30 cells
MOST_SAMPLES = 4096  # whose own gradients are summed in one launch: a grid counts 2**16 - 1 parts
NOMINAL_BATCH = 32  # by which the gradients of single samples are cut, whatever their number
CACHED = 2**25  # bytes of partial sums that are still in the second-level cache when they are summed
# Bytes of results from which on those of a stride's phases, which lie between one another, are written channels last
# and then copied: parts of sectors took an H100 1.2 to 2.9 us a megabyte, a copy takes 1.
LEAST_SPREAD = 2**22
PACKED = 4  # chunks that a thread of pack or unpack copies at most
PACKING_BLOCKS = 1056  # that fill an H200 before a thread of pack copies more than one: eight a multiprocessor
NOMINAL_BLOCKS = 264  # what fills an H200 (132 multiprocessors) twice; fixed, so that all chips sum in one order
# Blocks of a launch that waits for a flag, which is mostly unset. An H200 holds half of them at once (4 of 256 threads
# with 64 registers on a multiprocessor): they are gone after two waits, and fill the chip twice where the flag is set.
WAITING_BLOCKS = 4 * NOMINAL_BLOCKS


# Positions that a part sums one after the other at most, and bytes of parts that this may cost. Of 3136, float32
# without tensor cores had an error of 1.0e-6 on an H100, of 25,000 2.0e-6; tensor cores cut off what they add, and had
# one of 5e-4 where a part had 700,000.
LONGEST = {"fma": 2**11}
LONGEST_ON_TENSOR_CORES, MOST_OF_PARTS = 2**15, 2**26
MOST_SHORT = 2**10  # parts that this may make: a plan lists the launches of each, where a buffer holds but one


class Summing(NamedTuple):
    """A product over the positions of a batch, in blocks of a tile for each part: 'correlate' or, of planes, 'gather'.

    `read` bytes of operands; `kept` bytes of a part.
    """

    way: str
    tile: Tile
    kernel: str
    blocks: int
    positions: int
    depth: int
    read: int
    kept: int

    @property
    def together(self) -> int:
        """Blocks of a multiprocessor that hide each other's waits."""
        return min(self.tile.blocks, 2)

    def seconds(self, parts: int) -> float:
        """Until the last multiprocessor has its last block, but all operands are read; and until parts are summed."""
        cycles = self.together * (self.tile.cycles if self.kernel == "gather" else self.tile.across)
        rounds = -(-self.blocks * parts // (self.together * MULTIPROCESSORS)) * -(
            -self.positions // (parts * self.depth))
        return max(rounds * cycles / CLOCK, self.read / READING) + parts * (2 * self.kept / BANDWIDTH + SUMMING)


def parts_of_correlate(product: Summing) -> int:
    """Into how many parts the positions are cut: those that take least. No part has too many positions, none fewer than
    8 stages."""
    way, tile, _, blocks, positions, depth, _, kept = product
    filling = {max(1, waves * product.together * MULTIPROCESSORS // blocks) for waves in range(1, 9)}
    short = min(-(-positions // LONGEST.get(way, LONGEST_ON_TENSOR_CORES)), MOST_OF_PARTS // max(kept, 1), MOST_SHORT)
    return max(1, min(max(min(sorted(filling), key=product.seconds), short), positions // (8 * depth)))
