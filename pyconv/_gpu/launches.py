"""Launches as they are kept: a kernel, a grid, and arguments of which some are places in a call's operands.

A call only writes its operands' addresses among the arguments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pyconv._driver import Arguments, Places
from pyconv._gpu import limits, plain
from pyconv._gpu.arrays import DeviceArray
from pyconv._gpu.specialise import Source

ALIGNMENT = 256


class Ref(NamedTuple):
    """A place in one of the operands or in scratch."""

    base: str
    offset: int = 0

    def at(self, more: int) -> "Ref":
        """The place so many bytes further on."""
        return Ref(self.base, self.offset + more)


class Matrix(NamedTuple):
    """A matrix of 16-bit elements as Hopper copies it, in boxes of 64 columns and so many rows."""

    place: Ref
    columns: int
    rows: int
    row: int  # the bytes from one to the next
    box_rows: int


class Launch(NamedTuple):
    """A kernel with its settings (threads of a block, bytes of shared memory, blocks on a multiprocessor), the grid,
    and the arguments: integers, of which some are places in operands, or the first a matrix."""

    kernel: tuple[Source, int, int, int]
    grid: tuple[int, int, int]
    arguments: list[int]
    places: list[tuple[int, Ref]]
    matrix: Matrix | None

    def on(self, arrays: Mapping[str, Ref]) -> "Launch":
        """It with its places in these arrays."""
        places = [(place, arrays[ref.base].at(ref.offset)) for place, ref in self.places]
        if self.matrix is None:
            return self._replace(places=places)
        base, offset = self.matrix.place
        return self._replace(places=places, matrix=self.matrix._replace(place=arrays[base].at(offset)))


class Launches:
    """Launches on a device, their places in arrays that are known by a call's words.

    The memory of their arguments is used again, by one call at a time; calls of several threads at once have one each.
    """

    def __init__(self, device: Any, launches: Sequence[Launch]) -> None:
        self.device, self.launches = device, launches
        self.free: list[tuple[Any, ...]] = []

    def then(self, others: Sequence["Launches"]) -> "Launches":
        """These and then others on the same device, as if of one program."""
        return Launches(self.device, [*self.launches, *(launch for one in others for launch in one.launches)])

    def run(self, addresses: dict[str, int], stream: int) -> None:
        """Launch them; a kernel that is not loaded yet is compiled, or found where it is kept, before the first."""
        try:
            made = self.free.pop()
        except IndexError:
            made = self._made()
        places, matrices, launches = made
        places.write(addresses)
        for arguments, base, offset, *matrix in matrices:
            arguments.set_map(self.device.tensor_map(addresses[base] + offset, *matrix))
        self.device.launch(launches, stream)
        self.free.append(made)

    def _made(self) -> tuple[Places, list[Any], list[Any]]:
        """The places among arguments that a call writes addresses to, those for tensor maps, and the launches."""
        places, matrices, launches = [], [], []
        for kernel, grid, integers, refs, matrix in self.launches:
            arguments = Arguments(integers, matrix is not None)
            places += [(arguments, place, *ref) for place, ref in refs]
            if matrix is not None:
                matrices.append((arguments, *matrix.place, *matrix[1:]))
            launches.append((self.device.kernel(*kernel), grid, arguments))
        return Places(places), matrices, launches


class Step(NamedTuple):
    """A program, and the arrays that it runs on, but for scratch, by its words for them."""

    program: "Program"
    arrays: dict[str, DeviceArray]

    @classmethod
    def of(cls, program: "Program", **arrays: DeviceArray | None) -> "Step":
        """Without those that are None."""
        return cls(program, {word: array for word, array in arrays.items() if array is not None})

    def in_scratch(self, array: DeviceArray, size: int) -> "Step":
        """It with that array, of so many bytes, at the beginning of its scratch; size: a multiple of ALIGNMENT."""
        made, rest = Program(self.program.device), {
            word: other for word, other in self.arrays.items() if other is not array}
        places = {word: Ref(word if word in rest else "scratch") for word in self.arrays}
        made.launches += self.program.on({**places, "scratch": Ref("scratch", size)}).launches
        made.scratch = size + self.program.scratch
        return Step(made, rest)


class Program:
    """Launches in order, and the scratch that they share."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.launches: list[Launch] = []
        self.scratch = 0

    def reserve(self, size: int) -> Ref:
        """A part of the scratch."""
        place = Ref("scratch", self.scratch)
        self.scratch += -(-size // ALIGNMENT) * ALIGNMENT
        return place

    def add(
        self, kernel: Source, grid: Sequence[int], /, *, threads: int = plain.THREADS, shared: int = 0,
        blocks: int = 1, **values: Any,
    ) -> None:
        """Launch a kernel; a value may be a Ref or a Matrix. Nothing where the grid is empty."""
        if not all(grid):
            return
        x, y, z = (*grid, 1, 1)[:3]
        limits.check_counts(kernel, (x, y, z), values)
        arguments = [values[name] for name in kernel.arguments]
        matrix, places = arguments[0] if type(arguments[0]) is Matrix else None, []
        for place, value in enumerate(arguments):
            if type(value) is Ref:
                places.append((place, value))
                arguments[place] = 0
        if matrix is not None:
            arguments[0] = 0
        self.launches.append(Launch((kernel, threads, shared, blocks), (x, y, z), arguments, places, matrix))

    def on(self, arrays: Mapping[str, Ref]) -> Launches:
        """Its launches on arrays that are known by other words: each is a place in another's memory."""
        return Launches(self.device, [one.on(arrays) for one in self.launches])


def aligned(address: int) -> int:
    """The first address from that one on at which scratch may begin: there have to be ALIGNMENT bytes more."""
    return -(-address // ALIGNMENT) * ALIGNMENT
