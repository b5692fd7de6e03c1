"""Machine code: what it uses, and, for tests and for predictions of a kernel's speed, its words.

The words are nvdisasm's, of a wheel or on PATH.
"""

import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """`opcode` with its modifiers; `guard` the predicate before it, if any; `target` the place a branch goes to."""

    opcode: str
    guard: str
    operands: str
    target: int | None


class Loop(NamedTuple):
    """The instructions between one and a branch back to it, without those of the loops inside.

    `slots` counts all, also those that are never executed: they too take their turn.
    """

    own: Counter[str]
    inner: list["Loop"]
    slots: int

    @property
    def all(self) -> Counter[str]:
        """Once through it, and once through the loops inside."""
        return sum((loop.all for loop in self.inner), self.own.copy())


def sections(cubin: bytes) -> Iterator[tuple[str, bytes, int]]:
    """(name, contents, size) of the sections of a 64-bit ELF file."""
    start, = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + i * size) for i in range(count)]
    table = headers[names][4]
    for name, _, _, _, offset, length in headers:
        first = table + name
        yield cubin[first:cubin.index(b"\0", first)].decode(), cubin[offset:offset + length], length


def resources(cubin: bytes) -> dict[str, int]:
    """registers of a thread, bytes of static shared memory (with what a chip reserves besides), bytes of local memory
    of a thread (its stack, where spilled registers lie): of a file with one kernel."""
    found = {"registers": 0, "shared": 0, "local": 0}
    attributes = {0x2F: "registers", 0x11: "local", 0x12: "local"}  # register count, frame size, least stack size
    for name, contents, size in sections(cubin):
        if name.startswith(".nv.shared."):
            found["shared"] = size
        offset = 0
        while name == ".nv.info" and offset < len(contents):
            form, attribute, length = struct.unpack_from("<BBH", contents, offset)
            offset += 4
            if form == 4:  # the other forms have their value in place of the length
                if attribute in attributes:
                    value, = struct.unpack_from("<I", contents, offset + 4)  # after the function's symbol
                    found[attributes[attribute]] = max(found[attributes[attribute]], value)
                offset += length
    return found


_LINE = re.compile(
    r"^\s+/\*[0-9a-f]+\*/\s+\{?\s*(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>.*)", re.MULTILINE)
_BYTES = 16  # of an instruction


def disassemble(cubins: Sequence[bytes], architecture: str) -> list[list[Instruction]]:
    """The instructions of files with a kernel each, all for 'sm_90' or the like: nvdisasm takes the longer to start.

    RuntimeError where there is no nvdisasm.
    """
    from cuda.pathfinder import find_nvidia_binary_utility

    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        raise RuntimeError("nvdisasm is missing; pip install nvidia-cuda-nvdisasm")
    # .text.__* are what the assembler adds for shuffles on some chips, and no kernel calls
    codes = [next(code for name, code, _ in sections(cubin) if re.match(r"\.text\.(?!__)", name)) for cubin in cubins]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernels")
        path.write_bytes(b"".join(codes))
        asked = [tool, "-b", architecture.replace("sm_", "SM"), "-ndf", str(path)]
        run = subprocess.run(asked, capture_output=True, text=True, check=True)
    lines = _LINE.finditer(run.stdout)
    found, start = [], 0
    for code in codes:
        found.append([_instruction(line, start) for line in islice(lines, len(code) // _BYTES)])
        start += len(code)
    return found


def _instruction(line: re.Match[str], start: int) -> Instruction:
    """Of a line of nvdisasm's, in the kernel whose first instruction has that address."""
    target = re.search(r"\b0x([0-9a-f]+)\s*;?\s*$", line["rest"]) if line["opcode"].startswith("BRA") else None
    place = (int(target[1], 16) - start) // _BYTES if target else None
    return Instruction(line["opcode"], line["guard"] or "", line["rest"], place)


def opcodes(code: Sequence[Instruction]) -> Counter[str]:
    """How often each opcode is in the code, without what is never executed."""
    return Counter(part.opcode for part in code if part.guard != "!PT")


def loops(code: Sequence[Instruction]) -> list[Loop]:
    """The outermost loops. A branch to itself, where a kernel ends, is none."""
    last: dict[int, int] = {}
    for place, part in enumerate(code):
        if part.target is not None and part.target < place:
            last[part.target] = place

    def within(place: int, end: int) -> tuple[list[Instruction], list[Loop]]:
        own, inner = [], []
        while place < end:
            if last.get(place, end) < end:
                behind = last.pop(place) + 1
                parts, deeper = within(place, behind)
                inner.append(Loop(opcodes(parts), deeper, len(parts)))
                place = behind
            else:
                own.append(code[place])
                place += 1
        return own, inner

    return within(0, len(code))[1]
