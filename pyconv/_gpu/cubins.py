"""Compiled kernels and the folder that keeps them, for processes that come later; no compiler is imported here."""

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

log = logging.getLogger("pyconv")
PARTS = {  # of the compiler, CUDA's own packages in two versions: what makes PTX, what makes machine code of it
    12: ("nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12"), 13: ("nvidia-nvvm", "nvidia-nvjitlink")}
# All that has a part in what machine code comes out.
COMPILERS = ("numba-cuda", "numba", "llvmlite", "cuda-bindings", *PARTS[13], *PARTS[12])


class Source(Protocol):
    """A specialised kernel: the text of one Python function whose arguments are all 64-bit integers, but for a first
    one whose name ends in _map: a tensor map.

    `key` names all that the text follows from, but for the files of the kernels themselves.
    """

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def arguments(self) -> Sequence[str]: ...


class Compiled(NamedTuple):
    """Machine code of one kernel, and what it takes: registers of a thread; bytes of static shared memory, with what
    the chip reserves; bytes of local memory of a thread, where spilled registers lie."""

    cubin: bytes
    name: str
    registers: int
    shared: int
    local: int


@functools.cache
def versions() -> dict[str, str]:
    """The versions of the compiler's packages that are installed."""
    found = {}
    for package in COMPILERS:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def toolkit() -> list[list[str | int]]:
    """Which libraries of an installed CUDA toolkit stand in for NVIDIA's packages where these are missing: path, size
    and time of change. They are found as numba-cuda and cuda.bindings find them."""
    found: list[list[str | int]] = []
    for place, library in enumerate(("nvvm", "nvJitLink")):
        if any(parts[place] in versions() for parts in PARTS.values()):
            continue
        try:
            from cuda.pathfinder import load_nvidia_dynamic_lib

            path = Path(load_nvidia_dynamic_lib(library).abs_path or "").resolve()
            facts = path.stat()
        except (ImportError, OSError, RuntimeError):  # then there will be nothing to compile with
            continue
        found.append([str(path), facts.st_size, facts.st_mtime_ns])
    return found


@functools.cache
def _compiler() -> str:
    """What a key says of kernels and compiler: files, packages, the Python whose bytecode is translated.

    The files are all of this folder: a list of those that have a part in a kernel could be out of date.
    """
    files = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return json.dumps([hashlib.sha256(b"".join(files)).hexdigest(), versions(), toolkit(), sys.version_info[:2],
                       platform.machine()])


def key(source: Source, threads: int, blocks_per_sm: int, architecture: str) -> str:
    """A name for what `compile` would make of these: it changes when anything changes that the result depends on."""
    parts = [_compiler(), source.name, source.key, list(source.arguments), threads, blocks_per_sm, architecture]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def folder() -> Path:
    """Where compiled kernels are kept: PYCONV_CACHE_DIR, or pyconv in the user's folder for caches."""
    asked = os.environ.get("PYCONV_CACHE_DIR")
    if asked:
        return Path(asked).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base or Path.home() / "AppData" / "Local", "pyconv", "cache")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pyconv")


_warned: set[str] = set()


def _cannot(error: Exception) -> None:
    """Warn, once for a folder, that nothing is kept there."""
    try:
        place = str(folder())
    except RuntimeError:
        place = "the user's home, which is unknown"
    if place not in _warned:
        _warned.add(place)
        log.warning("compiled CUDA kernels are not kept for the next process in %s: %s", place, error)


def load(name: str) -> Compiled | None:
    """What was stored under a key; None if nothing was, or nothing that can be read whole."""
    try:
        content = (folder() / f"{name}.cubin").read_bytes()
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError) as error:
        _cannot(error)
        return None
    digest, payload = content[:32], content[32:]
    header, _, cubin = payload.partition(b"\n")
    try:
        if hashlib.sha256(payload).digest() == digest:
            return Compiled(cubin, **json.loads(header))
    except (TypeError, ValueError):  # whole, but of another layout
        pass
    log.warning("%s is damaged: that kernel is compiled again", folder() / f"{name}.cubin")
    return None


def store(name: str, compiled: Compiled) -> None:
    """Keep it under a key: a file that appears whole or not at all. Where that is impossible, one warning is logged."""
    facts = {field: value for field, value in compiled._asdict().items() if field != "cubin"}
    payload = json.dumps(facts).encode() + b"\n" + compiled.cubin
    try:
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        number, temporary = tempfile.mkstemp(dir=place)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, place / f"{name}.cubin")
        except BaseException:
            os.unlink(temporary)
            raise
    except (OSError, RuntimeError) as error:
        _cannot(error)
