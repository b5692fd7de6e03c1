"""What a call on a GPU's arrays costs in Python, beside one on NumPy's: over a driver that does nothing, without a GPU.

    python benchmarks/gpu_call_costs.py            half a minute; on Linux, with a C compiler
    python benchmarks/gpu_call_costs.py --quick    a look

The driver is that of the tests, tests/stub_cuda.c, and so are the arrays, tests/gpu_fakes.py; their memory is NumPy's.
Each row is a kind of arrays, each column a call that is like one before, of 3x3 taps of 8 channels on 8x8 in float32,
which is one launch: into an array that is there, with a bias too, with a buffer too, and with a new result. The columns
of a row and NumPy's row take turns; the times are medians, beside each what it is of NumPy's in that column.

    NumPy        all of a call on one thread, its products too
    torch        CPU tensors of torch's, read as CUDA ones are
    CuPy         a fake of its array with the attributes that are asked for; the fake's new one is NumPy's
    interface    __cuda_array_interface__ alone, in a dict that is kept; new arrays are Numba's
    DLPack       DLPack alone, as NumPy hands it over; new arrays are Numba's
"""

import argparse
import ctypes
import sys
import tempfile
from operator import attrgetter
from pathlib import Path
from typing import Any

import packages  # noqa: F401  before what may import NVIDIA's packages

import numpy
import torch

import harness
import pyconv
from cpu import interleaved_medians
from planned import TESTS
from pyconv._gpu import cubins, kinds, launch

sys.path.append(str(TESTS))
import gpu_fakes  # noqa: E402
from stub_cuda import built  # noqa: E402

COLUMNS = ("out", "bias", "buffer", "new")
SHAPES = (1, 8, 8, 8), (8, 8, 3, 3), (8,), (1, 8, 8, 8), (1 << 16,)  # x, weight, bias, out, buffer


class Interface(gpu_fakes.Interface):
    """Says always the same."""

    def __init__(self, host: Any) -> None:
        super().__init__(host)
        self.said = super().__cuda_array_interface__

    __cuda_array_interface__ = property(attrgetter("said"))


def of_the_stub(source: Any, threads: int, blocks: int, capability: tuple[int, int]) -> cubins.Compiled:
    """A kernel as the stub loads it: its name and the number of its arguments."""
    return cubins.Compiled(f"{source.name} {len(source.arguments)}\0".encode(), source.name, 32, 0, 0)


def take_for_cuda() -> None:
    """From now on torch's tensors say that they are on its first GPU, by functions of torch's that take as long."""
    torch.Tensor.is_cuda, torch.Tensor.get_device = True, torch.Tensor.storage_offset
    torch._C._cuda_getCurrentRawStream = int
    in_torch, on_cpu = kinds._in_torch, torch.device("cpu")

    def of_main_memory(*wanted):
        strides, make = in_torch(*wanted)
        make.keywords["device"] = on_cpu
        return strides, make

    kinds._in_torch = of_main_memory


def uploads() -> dict[str, Any]:
    """What makes arrays of NumPy's, by name."""
    cupy = sys.modules["cupy"] = gpu_fakes.Frameworks().cupy
    return {"NumPy": numpy.asarray, "torch": torch.from_numpy, "CuPy": cupy.ndarray, "interface": Interface,
            "DLPack": gpu_fakes.DLPack}


def calls_of(kind: Any) -> list[Any]:
    """The calls of the columns, each made once."""
    x, w, b, out, buffer = (kind(numpy.zeros(shape, "f4")) for shape in SHAPES)
    calls = [
        lambda: pyconv.conv2d(x, w, None, 1, 1, out=out),
        lambda: pyconv.conv2d(x, w, b, 1, 1, out=out),
        lambda: pyconv.conv2d(x, w, None, 1, 1, out=out, finput=buffer),
        lambda: pyconv.conv2d(x, w, None, 1, 1),
    ]
    for call in calls:
        call()
    return calls


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="0.1 s a row instead of 3")
    seconds = 0.1 if parser.parse_args().quick else 3.0
    with tempfile.TemporaryDirectory() as folder:
        stub = ctypes.CDLL(built(Path(folder)))  # the driver of all that ask for one by its name
    stub.stub_note(0)
    launch._compiled = of_the_stub
    pyconv.set_num_threads(1)
    makers = uploads()
    numpy_calls = calls_of(makers["NumPy"])
    take_for_cuda()
    print(f"{harness.processor_name()}, one thread, a call\n{'':12}" + "".join(f"{name:>20}" for name in COLUMNS))
    for name, kind in makers.items():
        times, _, _ = interleaved_medians(numpy_calls + calls_of(kind), seconds)
        pairs = zip(times[len(COLUMNS):], times)
        print(f"{name:12}" + "".join(f"{harness.duration(own):>13} {own / base:6.2f}" for own, base in pairs),
              flush=True)


if __name__ == "__main__":
    main()
