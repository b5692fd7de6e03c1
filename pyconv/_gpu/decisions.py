"""What a call does, decided once for arrays that lie alike and kept: its programs, and where in its arrays they work.

From an address follows only where that is, and whether arrays meet; from a stream nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pyconv import _geometry
from pyconv._backend import cuda
from pyconv._gpu.arrays import DeviceArray, DeviceType, Kind, On
from pyconv._gpu.launches import ALIGNMENT, Launches, Ref, Step, aligned
from pyconv._integers import Shape

KEPT = 1024
TARGETS = 64  # of a decision: how its results were wanted to lie
SCRATCH = "scratch"
BUFFERS = frozenset(_geometry.BUFFERS.values())
Lie = tuple[Any, ...]  # of each result in turn its strides, and its address modulo 16
# A result: its name, its shape, what makes it, and how its `out` lies, if it has one
Work = tuple[str, Shape, Callable[[], Any] | None, Lie | None]
Apart = list[tuple[str, str, int, int]]  # one, another, between which bounds of their distance they meet


class Part(NamedTuple):
    """A result of a call: its name and shape, what gives the programs for an array like it, and the name of the buffer
    that is lent for it."""

    name: str
    shape: Shape
    steps: Callable[[DeviceArray], Iterable[Step]]
    buffer: str | None = None


class Decision:
    """The launches of a call, for each of the ways that its results were wanted to lie.

    known: the call's arrays, whose owners are their names; of their addresses only differences count. written: the
    names of those that must meet no other. dtype, device: of the results, and of scratch.
    """

    def __init__(
        self, parts: Sequence[Part], known: Mapping[str, DeviceArray], dtype: DeviceType, device: int,
        written: Sequence[str] = (),
    ) -> None:
        self.dtype, self.device, self.apart = dtype, device, apart(known, written)
        self._parts, self._known = parts, known
        self._launches: dict[Lie, tuple[Launches | None, Shape | None]] = {}
        lent = dict.fromkeys(part.buffer for part in parts if part.buffer is not None)
        self._lent = [(_scratch(name), name, _span(known[name])[0]) for name in lent]

    def run(
        self, work: Sequence[Work | None], owners: Mapping[str, Any], addresses: dict[str, int], kind: Kind,
        stream: int, on: On | None,
    ) -> list[Any]:
        """The arrays of the results, None for None: those that are given, or new ones of that kind, all of which are
        made before anything is launched.

        addresses: of the call's arrays, by name; owners: of those that are given. Results that are lent no buffer share
        scratch, a new array too: in a stream one waits for the other. on: as for Kind.empty.
        """
        made: list[Any] = []
        lie: Lie = ()
        for one in work:
            if one is None:
                made.append(None)
                continue
            name, shape, new, lies = one
            if lies is None:
                owner, addresses[name], strides = kind.empty(shape, self.dtype, self.device, new, on)
                lies = strides, addresses[name] & 15
            else:
                owner = owners[name]
            made.append(owner)
            lie += lies
        found = self._launches.get(lie)
        if found is None:
            if len(self._launches) >= TARGETS:
                self._launches.clear()
            found = self._launches[lie] = self._made_for(lie, kind)
        launches, scratch = found
        for word, name, first in self._lent:
            addresses[word] = aligned(addresses[name] + first)
        if scratch is not None:
            held, address, _ = kind.empty(scratch, self.dtype, self.device, None, on)
            addresses[SCRATCH] = aligned(address)
        if launches is not None:
            launches.run(addresses, stream)
        return made

    def _made_for(self, lie: Lie, kind: Kind) -> tuple[Launches | None, Shape | None]:
        """The launches, and the shape of the new scratch that they share; None where there are none, or need none."""
        found, size = [], 0
        for part, strides, address in zip(self._parts, lie[::2], lie[1::2]):
            target = DeviceArray(part.name, address, part.shape, strides, self.dtype, self.device, kind)
            known: dict[str, DeviceArray] = {**self._known, part.name: target}
            for program, arrays in part.steps(target):
                places = {word: Ref(array.owner, array.address - known[array.owner].address)
                          for word, array in arrays.items()}
                found.append(program.on({**places, SCRATCH: Ref(_scratch(part.buffer))}))
                size = max(size, program.scratch if part.buffer is None else 0)
        launches = found[0].then(found[1:]) if found else None
        return launches, (-(-(size + ALIGNMENT) // self.dtype.size),) if size else None


def _scratch(buffer: str | None) -> str:
    """What scratch in that buffer is called, or new scratch."""
    return SCRATCH if buffer is None else f"{SCRATCH} in {buffer}"


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


def lie_of(array: DeviceArray) -> Lie:
    """That of a result."""
    return array.strides, array.address & 15


def form(array: DeviceArray) -> Any:
    """How an array lies, as far as programs tell."""
    return array.shape, array.strides, array.dtype, array.device, array.address & 15


def called(array: DeviceArray, name: str) -> DeviceArray:
    """The array with its name as owner: a decision keeps no memory alive."""
    return array._replace(owner=name)
