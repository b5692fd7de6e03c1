"""All kernels that there are, each as it is compiled, and the chips that may ask for it: what tests compile."""

from collections.abc import Iterator
from itertools import product as every
from typing import NamedTuple

from pyconv._gpu import plain, planes, single, tiles
from pyconv._gpu.specialise import Source
from pyconv._padding import REPEATING

CAPABILITIES = (7, 5), (8, 0), (8, 6), (9, 0)  # one of each kind that `way_of` tells apart
MODES = (*REPEATING, "constant")


def _sets(*flags: str) -> list[tuple[str, ...]]:
    """Every set of the flags."""
    return [tuple(flag for flag, wanted in zip(flags, which) if wanted)
            for which in every((False, True), repeat=len(flags))]


# The kernels of `plain` and `packing`, with each set of flags that they are asked for with; a mode is a flag too.
SIMPLE: dict[str, list[tuple[str, ...]]] = {
    **{name: [()] for name in ("clear_flag", "channel_sum", "scan")},
    "pack_weight": [(), ("rounded",)],
    "pack": [*((*flags, *mode) for flags in _sets("rounded") for mode in ((), *((mode,) for mode in MODES))),
             ("rounded", "whole")],
    "unfold": [(), *((mode,) for mode in MODES)],
    "unpack": [(), ("divided",)],
    "direct_weight": [(*flags, *mode) for flags in _sets("waits") for mode in ((), *((mode,) for mode in MODES))],
    **{name: _sets("partial", "accumulate") for name in ("fold", "fill")},
    "finish": _sets("partial", "waits", "accumulate"),
    "adjoint": [(*flags, mode) for flags in _sets("partial", "accumulate", "last") for mode in REPEATING],
    "direct": [*_sets("partial", "waits", "accumulate", "last", "divided"),
               *((*flags, mode) for flags in _sets("partial", "waits", "accumulate", "last") for mode in MODES)]}


# Whole numbers have no tiles, and so none of what packs for them; these stand for all pairs of operands and results.
NO_TILES = {"pack", "unpack", "pack_weight", "clear_flag", "scan", "fill partial"}
PAIRS = ("int8", "int32"), ("int64", "int64")


class Configuration(NamedTuple):
    """A kernel as it is compiled, and the chips that may ask for it. `tile` is None, and `way` '', for `plain`'s."""

    name: str
    source: Source
    threads: int
    blocks: int
    way: str
    element: tiles.Element
    tile: tiles.Tile | None
    capabilities: tuple[tuple[int, int], ...]


def ways_of(element: tiles.Element, capability: tuple[int, int]) -> set[str]:
    """The ways in which products of a dtype are made, whatever a call asks for."""
    algorithms = [name for name in ("auto", "gemm", *tiles.MORE_ALGORITHMS[element.name])
                  if capability == (9, 0) or name not in tiles.HOPPERS]
    found = {tiles.way_of(element, algorithm, tf32, capability) for algorithm, tf32 in every(algorithms, (False, True))}
    return {way for way in found if way is not None}


def of_strips(number: tiles.Element) -> Iterator[Configuration]:
    """The kernels of groups of one channel: 3 x 3 taps and stride 1 where their names say no more."""
    for k, ((up, step), _) in every(single.STRIP_TAPS, single.STRIPS.items()):
        strips = single.strips_of(number, (k, k), up, step)
        assert strips is not None
        words = [number.suffix, *[f"{k}x{k}"] * (k > 3), *["divided"] * (up > 1), *["strided"] * (step > 1)]
        kinds = [("depthwise", False, 1, False), ("depthwise", True, 1, False)]
        side = single.sides_of(number, strips)
        if up == 1:
            kinds += [("depthwise_weight", False, 1, False), *(
                ("depthwise_weight", False, side, at_once) for at_once in (True, False) if side > 1)]
        for kernel, accumulate, side, at_once in kinds:
            name = " ".join([kernel, *words, *["accumulate"] * accumulate, *[f"x{side}"] * (side > 1),
                             *["apart"] * (side > 1 and not at_once)])
            made = single.source(kernel, number, strips, accumulate, side, at_once)
            blocks = single.blocks_of_strips(at_once)
            yield Configuration(name, made, plain.THREADS, blocks, "", number, None, CAPABILITIES)


def of_planes(number: tiles.Element, chips: dict[tuple[int, int], set[str]]) -> Iterator[Configuration]:
    """The products whose results are planes."""
    for way in sorted(set().union(*chips.values())):
        if planes.way_of(way, number) != way:
            continue
        able = tuple(chip for chip in CAPABILITIES if way in chips[chip])
        kind = f"{way} {number.suffix}" if way == "fma" else way
        for tile in tiles.tiles(way, number, "planes"):
            made = tiles.product("correlate", way, number, tile, False, False, planes=True)
            name = f"correlate {kind} {tile.bm}x{tile.bn} planes"
            yield Configuration(name, made, tile.threads, tile.blocks, way, number, tile, able)


def all_kernels() -> Iterator[Configuration]:
    """Every kernel that there is, some of which are the same text: what tests compile."""
    for number in (*tiles.ELEMENTS.values(), *(tiles.element(*pair) for pair in PAIRS)):
        is_whole = number.name in tiles.WHOLE
        label = number.name.replace("complex", "c") if number.parts == 2 else number.suffix
        for kernel, flags in ((kernel, flags) for kernel, sets in SIMPLE.items() for flags in sets):
            if is_whole and ("waits" in flags or NO_TILES & {kernel, " ".join([kernel, *flags])}):
                continue
            if "rounded" in flags and number.name != "float32":
                continue
            mode = "".join(flag for flag in flags if flag in MODES) or "zeros"
            if "waits" in flags and mode != "zeros" and number.name not in ("float32", "complex64"):
                continue  # padded operands have no padding in tiles: only products that split wait
            own = tiles.element(number.result or number.name) if kernel == "fill" else number
            made = tiles.simple(kernel, own, **{flag: True for flag in flags if flag != mode}, mode=mode)
            name = " ".join([kernel, label, *flags])
            able: tuple[tuple[int, int], ...] = ((9, 0),) if "rounded" in flags else CAPABILITIES
            yield Configuration(name, made, plain.THREADS, 1, "", number, None, able)
        if number.parts == 2:
            for accumulate in (False, True):
                made = tiles.simple("finish", number, accumulate, combined=True)
                name = f"finish {label}{' accumulate' * accumulate} combined"
                yield Configuration(name, made, plain.THREADS, 1, "", number, None, CAPABILITIES)
        if number.parts == 2 or is_whole:
            continue
        yield from of_strips(number)
        chips = {chip: ways_of(number, chip) for chip in CAPABILITIES}
        yield from of_planes(number, chips)
        # halves that volumes add up are float32; other sums are results too
        added = ("partial accumulate",) if number.size == 2 else ()
        for kernel, flag in (*(("gather", flag) for flag in ("", "partial", "accumulate", *added)),
                             ("correlate", "partial")):
            for way in sorted(set().union(*chips.values())):
                if kernel == "correlate" and way in tiles.ALONG:
                    continue
                able = tuple(chip for chip in CAPABILITIES if way in chips[chip])
                placed = [(tile, False) for tile in tiles.tiles(way, number, kernel)]
                if kernel == "gather" and (flag != "partial" or added) and not tiles.WAYS[way].wgmma:
                    placed += [(tile, True) for tile in tiles.tiles(way, number, apart=True)]
                for (tile, apart), pointwise in every(placed, (False, True)[:1 + tiles.has_pointwise(way, number)]):
                    made = tiles.product(
                        kernel, way, number, tile, "partial" in flag, "accumulate" in flag, apart, pointwise)
                    kind = f"{way} {label}" if way == "fma" else way
                    words = [kernel, kind, f"{tile.bm}x{tile.bn}", *["apart"] * apart, *["pointwise"] * pointwise, flag]
                    name = " ".join(words).strip()
                    yield Configuration(name, made, tile.threads, tile.blocks, way, number, tile, able)
