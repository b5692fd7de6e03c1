"""What lies beyond the edge of an input, other than nothing: padding modes as the kernels' numbers.

A place of the padded input is a cell of the input, which repeats (circular), is mirrored (reflect) or ends in copies of
its last cells (replicate); or it holds a constant. The transposed way, gradients of places are added to their cells.
"""

import struct
from typing import NamedTuple

import numpy as np

from pyconv._dtypes import element
from pyconv._geometry import Geometry, Triple
from pyconv._piece import Axes


class Edge(NamedTuple):
    """A mode, its constant, the cells of an input and the places before the first of them, along each axis."""

    mode: str
    value: complex
    size: Triple
    low: Triple

    def periods(self) -> tuple[int, ...]:
        """After how many places the cells recur."""
        of_size = {"circular": lambda n: n, "reflect": lambda n: max(2 * (n - 1), 1)}.get(self.mode, lambda n: 1)
        return tuple(map(of_size, self.size))

    def placed(self, axes: Axes) -> Axes:
        """The axes of an input's places with none below 0 where cells recur, as they are divided by the period."""
        if self.mode not in ("circular", "reflect"):
            return axes
        return tuple(axis._replace(offset=axis.offset + -(-low // period) * period)
                     for axis, low, period in zip(axes, self.low, self.periods()))

    def turns(self, length: Triple) -> tuple[list[int], list[int]]:
        """How often kernels ask along each axis for a place of `length` that is a given cell, and the first's offset.

        In circular mode cell c lies at places c + first, c + first + period, ...; in reflect mode also at first - c
        and so on, asked for in between; in replicate mode the first and the last cell lie in the padding too.
        """
        counts, firsts = [], []
        for n, low, period, places in zip(self.size, self.low, self.periods(), length):
            first = low if self.mode == "replicate" else low % period - (period if low else 0)
            count = 1 + low + max(places - low - n, 0)
            if self.mode != "replicate" and count > 1:
                count = (places - 1 - first) // period + 1
                if self.mode == "reflect":
                    count = 2 * ((places - 1 - first + n - 1) // period + 1)
            counts.append(count)
            firsts.append(first)
        return counts, firsts


def cropped(g: Geometry) -> tuple[Geometry, Triple]:
    """The geometry of the input that a crop before the first place leaves, and the cells that it takes."""
    crop = tuple(max(-low, 0) for low in g.padding)
    return g._replace(
        input_size=tuple(max(n - c, 0) for n, c in zip(g.input_size, crop)),  # type: ignore[arg-type]
        padding=tuple(max(low, 0) for low in g.padding)), crop  # type: ignore[arg-type, return-value]


def padded(g: Geometry) -> Geometry:
    """The same convolution of all places that a tap can reach."""
    reach = tuple((y - 1) * s + (k - 1) * d + 1
                  for y, s, k, d in zip(g.output_size, g.stride, g.kernel_size, g.dilation))
    return g._replace(
        input_size=reach, padding=(0, 0, 0), padding_mode="zeros", padding_value=0)  # type: ignore[arg-type]


def edge_of(g: Geometry) -> Edge | None:
    """What lies around the input of a geometry that crops nothing."""
    return None if g.padding_mode == "zeros" else Edge(g.padding_mode, g.padding_value, g.input_size, g.padding)


def bits(value: complex, dtype: str, stored: bool = False) -> tuple[int, int]:
    """The parts of a constant of that dtype as kernels are given them: the bits of float32 or float64, or integers.

    stored: the bits that it has in memory, also of float16 and bfloat16.
    """
    if "int" in dtype:
        return int(element(value, np.dtype(dtype)).astype(np.int64)), 0
    parts = np.array([value.real, value.imag], np.float64)
    if dtype in ("float64", "complex128"):
        return struct.unpack("qq", parts.tobytes())
    parts = parts.astype(np.float16 if dtype == "float16" else np.float32)
    if stored and dtype == "float16":
        return int(parts.view(np.uint16)[0]), 0
    parts = parts.astype(np.float32)
    words = parts.view(np.uint32).astype(np.int64)
    if dtype == "bfloat16":
        words = (words + 0x7FFF + (words >> 16 & 1)) & 0xFFFF0000 if np.isfinite(value) else words
        words >>= 16 * stored
    return int(words[0]), int(words[1])
