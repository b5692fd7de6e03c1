"""Groups of one channel: which kernels there are for strips of results, and which a problem takes. Data, and why."""

from functools import lru_cache
from typing import NamedTuple

from pyconv._gpu import depthwise, plain
from pyconv._gpu.specialise import Source
from pyconv._gpu.tiles import ELEMENTS, Element, functions_of


class Strips(NamedTuple):
    """What a kernel for groups of one channel is compiled for: k x k taps; of an axis cell i is read under tap t by the
    j-th of a thread's rows or columns of results where up * i = step * j + t."""

    k: int
    up: int
    step: int
    rows: int
    columns: int


# A thread's rows and columns of results, by (up, step). Images in networks have 7, 14, 28, 56 or 112 lines: no rest.
# Of 3 x 3 taps 36 cells serve 14 results, with 34 instructions for each in 16 bits and 31 in float32, of which 9
# multiply, and some 200 before a thread's first strip; grad_input of stride 2 has 15 for each. The direct kernels have
# 690 for a result, and a launch for each of the 4 phases of stride 2. All that is counted in machine code, not
# measured.
STRIP_COLUMNS = 2
STRIPS = {(1, 1): (7, STRIP_COLUMNS), (1, 2): (7, STRIP_COLUMNS), (2, 1): (14, STRIP_COLUMNS)}
STRIP_TAPS = 3, 5, 7
MOST_TAPS = max(STRIP_TAPS) * 2  # strides of a weight times so many are added in 32 bits
TURNS = 8  # strips of a thread at most
MOST_PARTS = 64  # of a weight's gradient, whose sum is predicted to take 7 µs
STRIP_BLOCKS = 528  # of it: twice those whose registers an H200 holds; more are predicted to gain nothing
# Where channels lie last a thread has several of them, if they fill its loads: of 3 x 3 taps in 16 bits four, which
# share 1250 instructions for 14 results of each, 22 for one, 9 of which multiply. A thread of one has 49, and loads of
# 2 bytes. All their blocks are on an H200 at once, two with 128 registers a multiprocessor.
SIDE_BYTES = 8  # of a thread's channels
SIDE_REGISTERS = 76  # of sums, places of columns and loaded results: with more, 128 do not hold the rest
SIDE_BLOCKS, MOST_SIDE_PARTS = 264, 132


def strips_of(element: Element, kernel: tuple[int, ...], up: int, step: int) -> Strips | None:
    """Those that there is a kernel for: whole numbers, complex ones and other kernels have the direct kernels alone."""
    found = STRIPS.get((up, step))
    if found is None or element.name not in ELEMENTS or element.parts > 1 or element.result or (
            kernel[0] not in STRIP_TAPS or kernel[0] != kernel[1]):
        return None
    return Strips(kernel[0], up, step, *found)


def sides_of(element: Element, strips: Strips) -> int:
    """How many neighbouring channels a thread has of a weight's gradient, where each is the only one of its group."""
    of_one = strips.k**2 + strips.rows * strips.columns * element.size / 4
    places = 2 * (strips.k + strips.step * (strips.columns - 1))
    return max(count for count in (1, 2, 4) if count == 1 or (
        count * element.size <= SIDE_BYTES and count * of_one + places <= SIDE_REGISTERS))


def abreast_of(element: Element, channels: int, side: int) -> int:
    """Rows of a weight's gradient that a block takes where channels lie last, so many in a thread: a sector of 32
    bytes; two where they are full and there are blocks enough."""
    sector = 32 // element.size
    return sector * 2 if side > 1 and channels // sector % 2 == channels % sector == 0 and (
        channels > 2 * sector) else sector


def parts_of_strips(channels: int, abreast: int, side: int) -> int:
    """Into how many parts the strips are cut: those that fill the chip, of blocks of so many rows."""
    blocks, most = (SIDE_BLOCKS, MOST_SIDE_PARTS) if side > 1 else (STRIP_BLOCKS, MOST_PARTS)
    return max(1, min(blocks // -(-channels // abreast), most))


def shared_of_strips(element: Element, k: int, side: int) -> int:
    """Bytes in which a block adds its threads' sums: a number of each thread for each warp, and 32 of every sum."""
    return (plain.THREADS // 32 * plain.THREADS + 32 * (side * k * k | 1)) * element.real_size


def blocks_of_strips(at_once: bool) -> int:
    """The blocks of a weight's gradient that registers are left for: channels loaded one by one take more of them."""
    return 2 if at_once else 1


@lru_cache(maxsize=512)
def source(
    kernel: str, element: Element, strips: Strips, accumulate: bool = False, side: int = 1, at_once: bool = False,
) -> Source:
    """'depthwise' or 'depthwise_weight'; `side`: how many channels a thread has; `at_once`: loads with one load."""
    multiply = depthwise.into_result if kernel == "depthwise" else depthwise.into_tap
    constants = functions_of(plain, depthwise) | element.arithmetic | {
        "multiply": multiply, "ABREAST": 64 // element.size if side > 1 else 32 // element.size,
        "THREADS": plain.THREADS, "REAL": element.real_size, "ACCUMULATE": accumulate, "SIDE": side,
        "AT_ONCE": at_once,
        **{name.upper(): number for name, number in strips._asdict().items()}}
    primitives = element.primitives() | {"load_side": f"load_{element.suffix}x{side}"}
    return Source(getattr(depthwise, kernel), constants, primitives)
