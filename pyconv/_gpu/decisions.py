"""What a call does, decided once for arrays that lie alike and kept: its programs, and where in its arrays they work.

From an address follows only where that is, and whether arrays meet; from a stream nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyconv import _geometry
from pyconv._backend import cuda
from pyconv._gpu.arrays import DeviceArray, On
from pyconv._gpu.launches import ALIGNMENT, Launches, Ref, Step, aligned
from pyconv._integers import Shape

KEPT = 1024
TARGETS = 64  # of a decision: how its result was wanted to lie
BUFFERS = frozenset(_geometry.BUFFERS.values())
Apart = list[tuple[str, str, int, int]]  # one, another, between which bounds of their distance they meet


class Decision:
    """The launches of one result, for each of the strides and alignments that it was wanted with.

    steps: gives the programs for a target. known: the call's arrays, whose owners are their names; of their addresses
    only differences count. written: the names of those that must meet no other: `out`, and the buffer.
    """

    def __init__(
        self, steps: Callable[[DeviceArray], Iterable[Step]], known: Mapping[str, DeviceArray],
        written: Sequence[str] = (),
    ) -> None:
        self._steps, self._known = steps, known
        self._launches: dict[tuple[Shape, int], tuple[list[Launches], Shape | None]] = {}
        self.apart = apart(known, written)
        buffers = [name for name in written if name in BUFFERS and known[name].size]
        self._buffer = (buffers[0], _span(known[buffers[0]])[0]) if buffers else None

    def run(self, addresses: dict[str, int], target: DeviceArray, stream: int, on: On | None) -> None:
        """Launch it on arrays at these addresses, the target's as that of "out"; where no buffer is lent, scratch is a
        new array of the target's kind and type. on: as for Kind.empty.
        """
        lie = target.strides, target.address & 15
        found = self._launches.get(lie)
        if found is None:
            if len(self._launches) >= TARGETS:
                self._launches.clear()
            found = self._launches[lie] = self._made_for(target)
        launches, shape = found
        if shape is not None:
            if self._buffer is None:
                scratch = target.kind.empty(shape, target.dtype, target.device, None, on)
                addresses["scratch"] = aligned(scratch.address)
            else:
                name, first = self._buffer
                addresses["scratch"] = aligned(addresses[name] + first)
        for one in launches:
            one.run(addresses, stream)

    def _made_for(self, target: DeviceArray) -> tuple[list[Launches], Shape | None]:
        """The launches of each program, and the shape of the scratch that these share; None where they need none."""
        known: dict[str, DeviceArray] = {**self._known, "out": target}
        found, scratch = [], 0
        for program, arrays in self._steps(target._replace(owner="out")):
            places = {word: Ref(array.owner, array.address - known[array.owner].address)
                      for word, array in arrays.items()}
            found.append(program.on({**places, "scratch": Ref("scratch")}))
            scratch = max(scratch, program.scratch)
        return found, (-(-(scratch + ALIGNMENT) // target.dtype.size),) if scratch else None


def _span(array: DeviceArray) -> tuple[int, int]:
    """The bounds of an array's memory, behind its address."""
    low, high = array.bounds()
    return low - array.address, high - array.address


def apart(arrays: Mapping[str, DeviceArray], written: Sequence[str]) -> Apart:
    """Where arrays that are written to would meet others; one buffer may be lent twice."""
    spans = {name: _span(array) for name, array in arrays.items() if array.size}
    found = []
    for name in (name for name in written if name in spans):
        low, high = spans.pop(name)
        found += [(name, other, low - end, high - first) for other, (first, end) in spans.items()
                  if name not in BUFFERS or other not in BUFFERS]
    return found


def meet(distances: Apart, addresses: Mapping[str, int]) -> bool:
    """Whether arrays at these addresses do."""
    for name, other, least, most in distances:
        if least < addresses[other] - addresses[name] < most:
            return True
    return False


def keep(key: Any, decision: Decision) -> Decision:
    """The decision, which calls of that key will find; it holds all that the decision follows from."""
    decisions = cuda().decisions
    if len(decisions) >= KEPT:
        decisions.clear()
    decisions[key] = decision
    return decision


def form(array: DeviceArray) -> Any:
    """How an array lies, as far as programs tell."""
    return array.shape, array.strides, array.dtype, array.device, array.address & 15


def called(array: DeviceArray, name: str) -> DeviceArray:
    """The array with its name as owner: a decision keeps no memory alive."""
    return array._replace(owner=name)
