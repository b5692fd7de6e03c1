"""The rate at which the processor multiplies and adds in registers, which kernels pass only by making fewer products.

A loop of LLVM's, compiled for this processor, whose CHAINS independent sums never leave their vector registers: enough
to hide the latency of two multiply-adds a cycle, and few enough for the 16 registers of AVX2.
"""

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy

CHAINS = 12
ROUNDS = 1 << 16


def _vector_bytes() -> int:
    features = llvm.get_host_cpu_features()
    return 64 if features.get("avx512f") else 32 if features.get("avx") and features.get("fma") else 16


def _loop(dtype: str, lanes: int) -> str:
    """chains(to): ROUNDS times sum = sum * x + y for every chain, x and y lying at `to`, where the total goes then."""
    element = {"float32": "float", "float64": "double"}[dtype]
    vector, function = f"<{lanes} x {element}>", f"@llvm.fma.v{lanes}f{dtype.removeprefix('float')}"
    chains = range(CHAINS)
    return "\n".join([
        f"declare {vector} {function}({vector}, {vector}, {vector})",
        "define void @chains(ptr %to) {",
        "entry:",
        f"  %x = load {vector}, ptr %to, align 1",
        f"  %behind = getelementptr {vector}, ptr %to, i64 1",
        f"  %y = load {vector}, ptr %behind, align 1",
        "  br label %body",
        "body:",
        "  %round = phi i64 [0, %entry], [%next, %body]",
        *(f"  %sum{i} = phi {vector} [zeroinitializer, %entry], [%new{i}, %body]" for i in chains),
        *(f"  %new{i} = call {vector} {function}({vector} %sum{i}, {vector} %x, {vector} %y)" for i in chains),
        "  %next = add i64 %round, 1",
        f"  %more = icmp slt i64 %next, {ROUNDS}",
        "  br i1 %more, label %body, label %end",
        "end:",
        f"  %total0 = fadd {vector} %new0, zeroinitializer",
        *(f"  %total{i} = fadd {vector} %total{i - 1}, %new{i}" for i in chains[1:]),
        f"  store {vector} %total{CHAINS - 1}, ptr %to, align 1",
        "  ret void",
        "}"])


@contextlib.contextmanager
def compiled_chains(dtype: str, lanes: int) -> Iterator[Callable[[int], None]]:
    """The loop as a function of the address of its two vectors; it runs without Python's lock."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3)
    with llvm.create_mcjit_compiler(llvm.parse_assembly(_loop(dtype, lanes)), machine) as engine:
        engine.finalize_object()
        yield ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address("chains"))


def multiply_add_rate(dtype: str, threads: int, seconds: float = 1.0, vector: int | None = None) -> float:
    """Best flop per second of so many threads together; a multiply-add is two. vector: its bytes, else the longest."""
    lanes = (vector or _vector_bytes()) // numpy.dtype(dtype).itemsize
    best, calls, deadline = 0.0, 20, time.perf_counter() + seconds
    with compiled_chains(dtype, lanes) as chains, ThreadPoolExecutor(threads) as pool:

        def run(calls: int) -> None:
            room = numpy.full(2 * lanes, 0.5, dtype)
            for _ in range(calls):
                chains(room.ctypes.data)

        while time.perf_counter() < deadline:
            start = time.perf_counter()
            list(pool.map(run, [calls] * threads))
            best = max(best, 2 * threads * calls * ROUNDS * CHAINS * lanes / (time.perf_counter() - start))
    return best
