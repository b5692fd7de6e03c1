"""How long a cache line takes from one processor to another and back: what two threads pay for what they share.

Two threads pass a number to and fro. Processors that share a cache need some 80 ns; those of two sockets, or of two
parts of a socket that have caches of their own, several hundred. A virtual machine may be moved from one to the other
while it runs. Loops of LLVM's, which run without Python's lock.
"""

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy

ROUNDS = 2000
LOOP = """
define void @pass(ptr %at, i64 %first, i64 %last) {
entry:
  br label %turn
turn:
  %awaited = phi i64 [%first, %entry], [%next, %passed]
  br label %wait
wait:
  %seen = load atomic i64, ptr %at acquire, align 8
  %here = icmp eq i64 %seen, %awaited
  br i1 %here, label %passed, label %wait
passed:
  %answer = add i64 %awaited, 1
  store atomic i64 %answer, ptr %at release, align 8
  %next = add i64 %awaited, 2
  %more = icmp slt i64 %next, %last
  br i1 %more, label %turn, label %end
end:
  ret void
}"""


def handover_seconds(times: int = 3, rounds: int = ROUNDS) -> float:
    """The best of some times, each the mean of so many round trips; it needs two processors."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(opt=3)
    with llvm.create_mcjit_compiler(llvm.parse_assembly(LOOP), machine) as engine, ThreadPoolExecutor(2) as pool:
        engine.finalize_object()
        turns = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            engine.get_function_address("pass"))
        return min(_once(turns, pool, rounds) for _ in range(times))


def _once(turns, pool: ThreadPoolExecutor, rounds: int) -> float:
    number = numpy.zeros(1, numpy.int64)
    other = pool.submit(turns, number.ctypes.data, 1, 2 * rounds)
    start = time.perf_counter()
    turns(number.ctypes.data, 0, 2 * rounds)
    seconds = time.perf_counter() - start
    other.result()
    assert number[0] == 2 * rounds
    return seconds / rounds
