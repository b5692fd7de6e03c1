"""Everything that speaks to a compiler: source text -> PTX -> machine code. What kernels call is in `primitives`."""

import builtins
import gc
import linecache
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any

from numba import cuda, types
from numba.core import errors
from numba.core.types import functions

from pyconv._gpu import sass
from pyconv._gpu.cubins import Compiled, Source
from pyconv._gpu.primitives import BEFORE_SM80, HOPPER, NEXT, PRIMITIVES

lowering = import_module("numba.cuda.lowering")  # of numba-cuda, in place of what Numba itself has by that name
typed_passes, untyped_passes = (import_module(f"numba.cuda.core.{kind}_passes") for kind in ("typed", "untyped"))
global_compiler_lock = import_module("numba.cuda.core.compiler_lock").global_compiler_lock


def _function(source: Source, capability: tuple[int, int]) -> Any:
    """The source text's function. Its globals are the primitives that chips of that capability have."""
    file = f"<pyconv kernel {source.name} {sha256(source.text.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = (len(source.text), None, source.text.splitlines(keepends=True), file)  # for tracebacks
    special = BEFORE_SM80 if capability < (8, 0) else HOPPER if capability == (9, 0) else {}
    namespace = {"__name__": __name__, **PRIMITIVES, **special}
    exec(builtins.compile(source.text, file, "exec"), namespace)
    return namespace[source.name]


def _add_line(error: Exception) -> None:
    """Note the kernel's line. numba-cuda does so for its own errors, not for Numba's, which refused calls end in."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = getattr(frame.f_locals.get("constraint"), "loc", None)
        if place is not None:
            line = linecache.getline(place.filename, place.line).strip()
            error.add_note(f"{place.filename}, line {place.line}: {line}")


def _find_singly_assigned_variable(self: Any) -> None:
    """As Numba's own, which looks through a whole block for each of its variables: half of the time of long kernels."""
    blocks = self.func_ir.blocks
    assigned = Counter(one.target.name for block in blocks.values() for one in block.find_insts(lowering.ir.Assign))
    used = set().union(*lowering.compute_use_defs(blocks).usemap.values())
    once = {name for name, count in assigned.items() if count == 1}
    self._singly_assigned_vars = once - used - lowering.must_use_alloca(blocks)
    self._blk_local_varmap = {}


def _type_calls_once() -> Callable[..., Any]:
    """A function's types as Numba finds them, which looks for them anew at each call: a fourth of the time."""
    own, known = functions.BaseFunction.get_call_type, {}

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        key = self, args, tuple(kws.items())
        if key not in known:
            known[key] = own(self, context, args, kws)
        return known[key]

    return get_call_type


def _leave_as_it_is(self: Any, state: Any) -> bool:
    """In place of what makes no difference to kernels, a sixth of the time: each assignment has a variable of its own,
    which LLVM does again, and what other programs call or write is found and replaced."""
    return False


@contextmanager
def _quick_numba() -> Iterator[None]:
    """Inside, Numba types and lowers in linear time, and Python, which would look through what Numba makes again and
    again, collects no garbage: another sixth. Others who compile wait. Where Numba has changed, it is left alone."""
    quick = {(lowering.Lower, _find_singly_assigned_variable.__name__): _find_singly_assigned_variable,
             (functions.BaseFunction, "get_call_type"): _type_calls_once(),
             **{(one, "run_pass"): _leave_as_it_is for one in (
                 untyped_passes.ReconstructSSA, untyped_passes.InlineClosureLikes, typed_passes.NopythonRewrites,
                 typed_passes.InlineOverloads)}}
    with global_compiler_lock:
        own = {place: vars(place[0])[place[1]] for place in quick if place[1] in vars(place[0])}
        for place in own:
            setattr(*place, quick[place])
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()
            for place, function in own.items():
                setattr(*place, function)


def to_ptx(source: Source, threads: int, blocks_per_sm: int, capability: tuple[int, int]) -> str:
    """The PTX of one entry of that name with 64-bit parameters alone, for blocks of `threads` threads, with no more
    registers than leave room for `blocks_per_sm` blocks on a multiprocessor.

    A first parameter whose name ends in _map is a tensor map, 128 bytes, and in the kernel its address.
    """
    signature = types.void(*[types.int64] * len(source.arguments))
    try:
        with _quick_numba():
            text, _ = cuda.compile(
                _function(source, capability), signature, device=False, abi="numba", cc=capability, output="ptx",
                launch_bounds=(threads, blocks_per_sm))
    except errors.TypingError as error:
        _add_line(error)
        raise
    mangled = re.search(r"\.entry\s+([\w$]+)", text)
    assert mangled is not None
    # Numba's environment, which no kernel reads, bears a number that differs from one compilation to the next
    text = re.sub(r"(?m)^\.common .*NumbaEnv.*;\n", "", text)
    text = text.replace(mangled[1], source.name)
    return _with_tensor_map(text, f"{source.name}_param_0") if source.arguments[0].endswith("_map") else text


def _with_tensor_map(text: str, parameter: str) -> str:
    """The PTX with 128 bytes, aligned as copies want them, in place of a 64-bit parameter, whose value is its address.

    Numba has no such parameter; and a copy of it elsewhere would need a fence before the copy engine may read it.
    """
    text, declared = re.subn(
        rf"\.param \.[bu]64 {parameter}(?=[,\s])", f".param .align 64 .b8 {parameter}[128]", text)
    text, read = re.subn(
        rf"ld\.param\.[bu]64\s+(%\w+), \[{parameter}\];", rf"mov.b64 \1, {parameter}; cvta.param.u64 \1, \1;",
        text)
    assert declared == 1 and read  # it may be read more than once
    return text


def assemble(ptx: str, architecture: str) -> bytes:
    """The machine code of PTX, for 'sm_90' and the like. RuntimeError with the assembler's words if it refuses."""
    from cuda.bindings import nvjitlink

    text = ptx.encode()
    link = nvjitlink.create(2, [f"-arch={architecture}", "-O3"])
    try:
        nvjitlink.add_data(link, nvjitlink.InputType.PTX, text, len(text), "pyconv")
        nvjitlink.complete(link)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(link))
        nvjitlink.get_linked_cubin(link, cubin)
        return bytes(cubin)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(link))
        nvjitlink.get_error_log(link, log)
        words = log.decode(errors="replace").strip("\0 \n")
        raise RuntimeError(f"the CUDA linker made no code for {architecture}: {words or error}") from error
    finally:
        nvjitlink.destroy(link)


def _early(text: str) -> str:
    """A kernel that may be launched while the one before it in the stream still runs.

    First of all it waits until that one has ended and what it wrote can be read. It lets the next one come where it
    says so itself, else at once; the next one's blocks find room when all of its own have come to that place or ended.
    Launched the ordinary way it waits for nothing.
    """
    wait, let = "griddepcontrol.wait;\n", "griddepcontrol.launch_dependents;"
    before, brace, body = text.partition("\n{\n")
    body = body.replace(NEXT, let) if NEXT in body else f"{let}\n{body}"
    return f"{before}{brace}{wait}{body}"


def compile(
    source: Source, threads: int, blocks_per_sm: int, capability: tuple[int, int], variant: str = "",
) -> Compiled:
    """Compile a kernel for blocks of `threads` threads, at least `blocks_per_sm` of them on a multiprocessor at once.

    variant: 'a' for code that uses, and is bound to, the features of one architecture (sm_90a).
    RuntimeError if there is no code for that capability; Numba's TypingError and the like for a wrong kernel.
    """
    architecture = f"sm_{capability[0]}{capability[1]}"
    ptx = to_ptx(source, threads, blocks_per_sm, capability)
    if capability >= (9, 0):
        ptx = _early(ptx)
    if variant:
        ptx = re.sub(rf"\.target\s+{architecture}\b", f".target {architecture}{variant}", ptx)
    cubin = assemble(ptx, architecture + variant)
    return Compiled(cubin, source.name, **sass.resources(cubin))
