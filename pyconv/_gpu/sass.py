"""Machine code in words, by nvdisasm (of a wheel or on PATH): for tests and for predictions of a kernel's speed."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """`opcode` with its modifiers; `guard` the predicate before it, if any; `target` the label of a branch."""

    opcode: str
    guard: str
    operands: str
    target: str


class Loop(NamedTuple):
    """The instructions between a label and a branch back to it, without those of the loops inside.

    `slots` counts all, also those that are never executed: they too take their turn.
    """

    own: Counter[str]
    inner: list["Loop"]
    slots: int

    @property
    def all(self) -> Counter[str]:
        """Once through it, and once through the loops inside."""
        return sum((loop.all for loop in self.inner), self.own.copy())


_LINE = re.compile(
    r"^(?:(?P<label>\.L\w+):|\s+/\*[0-9a-f]+\*/\s+\{?\s*(?:@(?P<guard>!?U?P\w+)\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)(?P<rest>.*))", re.MULTILINE)


def disassemble(cubin: bytes) -> list[Instruction | str]:
    """Instructions, and labels as strings, in their order. RuntimeError where there is no nvdisasm."""
    from cuda.pathfinder import find_nvidia_binary_utility

    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        raise RuntimeError("nvdisasm is missing; pip install nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        run = subprocess.run([tool, "-c", "-ndf", str(path)], capture_output=True, text=True, check=True)
    found: list[Instruction | str] = []
    for match in _LINE.finditer(run.stdout):
        if match["label"]:
            found.append(match["label"])
            continue
        target = re.search(r"`\((\.L\w+)\)", match["rest"])
        found.append(Instruction(match["opcode"], match["guard"] or "", match["rest"], target[1] if target else ""))
    return found


def opcodes(code: Sequence[Instruction | str]) -> Counter[str]:
    """How often each opcode is in the code, without what is never executed."""
    return Counter(part.opcode for part in code if isinstance(part, Instruction) and part.guard != "!PT")


def loops(code: Sequence[Instruction | str]) -> list[Loop]:
    """The outermost loops. A branch to itself, where a kernel ends, is none."""
    label = {part: place for place, part in enumerate(code) if isinstance(part, str)}
    last: dict[int, int] = {}
    for place, part in enumerate(code):
        if isinstance(part, Instruction) and part.opcode.startswith("BRA") and part.target:
            first = label[part.target]
            if first < place - 1:
                last[first] = max(place, last.get(first, 0))

    def within(start: int, end: int) -> tuple[list[Instruction | str], list[Loop]]:
        own: list[Instruction | str] = []
        inner = []
        place = start
        while place < end:
            if place in last and last[place] < end:
                parts, deeper = within(place + 1, last[place] + 1)
                inner.append(Loop(opcodes(parts), deeper, sum(isinstance(part, Instruction) for part in parts)))
                place = last[place] + 1
            else:
                own.append(code[place])
                place += 1
        return own, inner

    return within(0, len(code))[1]
