"""What compiling a kernel takes and gives, for those who hold it and import no compiler."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Source(Protocol):
    """A specialised kernel: the text of one Python function whose arguments are all 64-bit integers."""

    @property
    def name(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def arguments(self) -> Sequence[str]: ...


class Compiled(NamedTuple):
    """Machine code of one kernel, and what it takes: registers of a thread, bytes of static shared memory, and bytes of
    local memory of a thread, which is where spilled registers and dynamically indexed arrays lie."""

    cubin: bytes
    name: str
    registers: int
    shared: int
    local: int
