"""What pyconv's CUDA backend would launch, without a GPU; and all of it compiled beforehand, on every core.

    python benchmarks/planned.py          compile what cuda.py and the tests on the GPU launch; minutes on 2 cores

A kernel is compiled when it is first launched, for seconds. Here every call goes its ordinary way, from the public
function to the launches, on placeholders in the place of arrays and on a device that only writes down what it is asked
for. Several processes then compile these kernels and put them into the cache on disk, where the real device finds them.
"""

import argparse
import contextlib
import math
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import packages  # noqa: F401  before what may import NVIDIA's packages

import pyconv
from harness import MAPS, Work, pyconv_call, shapes_of, work_of
from layers import GPU_NETWORKS
from pyconv import _cuda
from pyconv._dtypes import result_dtype
from pyconv._gpu import cubins, kinds, launch, tiles
from pyconv._gpu.arrays import DTYPES, DeviceArray, DeviceType, Kind
from pyconv._integers import Shape, steps_of
from rows import KINDS, default_networks

# Of the chip that the targets are set for, the H200; what plans ask of a device.
CAPABILITY, MULTIPROCESSORS = (9, 0), tiles.MULTIPROCESSORS
TESTS = Path(__file__).parents[1] / "tests"


class Wanted(NamedTuple):
    """A kernel as it is compiled; what its source is made of is told apart by the source's key."""

    source: Any
    threads: int
    blocks_per_sm: int


class Launching(NamedTuple):
    """A launch: its kernel, its blocks, and its arguments by name, of which a tensor map is its bytes."""

    kernel: Wanted
    grid: tuple[int, int, int]
    values: dict[str, Any]


class Launched(NamedTuple):
    """What one call would do: its launches in order, bytes of scratch and of results, and where scratch is."""

    launches: list[Launching]
    allocated: int
    scratch: range

    @property
    def names(self) -> list[str]:
        """Of the kernels."""
        return [str(one.kernel.source.name) for one in self.launches]


class Recorder:
    """Stands for a device: remembers the kernels that are asked for and the launches, and does nothing."""

    def __init__(self, capability: tuple[int, int] = CAPABILITY) -> None:
        self.capability, self.multiprocessors = capability, MULTIPROCESSORS
        self.kernels: dict[tuple[str, int, int], Wanted] = {}
        self.launched: list[Launching] = []
        self.allocated, self.scratch = 0, range(0)

    def kernel(self, source: Any, threads: int, shared: int, blocks_per_sm: int = 1) -> Wanted:
        """A handle: the kernel as it is compiled."""
        found = self.kernels[source.key, threads, blocks_per_sm] = Wanted(source, threads, blocks_per_sm)
        return found

    def tensor_map(self, *matrix: int) -> "array[int]":
        """Of no matrix."""
        return array("q", bytes(128))

    def launch(self, launches: list[Any], stream: int) -> None:
        """Written down."""
        self.launched += [Launching(handle, grid, dict(zip(handle.source.arguments, arguments.given())))
                          for handle, grid, arguments in launches]


class Placeholder:
    """An array without memory, at an address of its own."""

    free = 1 << 40

    def __init__(self, shape: Shape, dtype: DeviceType, strides: Shape | None = None) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.strides = steps_of(self.shape) if strides is None else strides
        self.address = Placeholder.free
        Placeholder.free += -(-math.prod(shape) * dtype.size // 512) * 512 + 512

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0  # CUDA's first: by this pyconv knows an array of a GPU

    def like(self) -> "Placeholder":
        """Another one of the same layout."""
        return Placeholder(self.shape, self.dtype, self.strides)


def channels_last(shape: Shape) -> Shape:
    """Strides, in elements, of an array with a batch axis and its channels last."""
    turned = steps_of((shape[0], *shape[2:], shape[1]))
    return (turned[0], turned[-1], *turned[1:-1])


def turned(array: Placeholder) -> Placeholder:
    """The same with its channels last."""
    return Placeholder(array.shape, array.dtype, channels_last(array.shape))


class PlaceholderKind(Kind):
    """Placeholders as arrays of a device."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def read(self, name: str, value: Any) -> DeviceArray | None:
        """A placeholder's shape and strides."""
        if not isinstance(value, Placeholder):
            return None
        return DeviceArray(value, value.address, value.shape, value.strides, value.dtype, 0, self)

    def new(self, shape: Shape, dtype: DeviceType, device: int) -> Placeholder:
        """Counted; scratch is what has a single axis."""
        made, size = Placeholder(shape, dtype), math.prod(shape) * dtype.size
        self.recorder.allocated += size
        if len(shape) == 1:
            self.recorder.scratch = range(made.address, made.address + size)
        return made


@contextlib.contextmanager
def recording(capability: tuple[int, int] = CAPABILITY) -> Iterator[Recorder]:
    """pyconv's device is a recorder inside, and placeholders are arrays on it."""
    recorder = Recorder(capability)
    before = launch.device, kinds.KINDS[:]
    launch.device = lambda index: recorder  # type: ignore[assignment]
    kinds.KINDS.insert(0, PlaceholderKind(recorder))
    _cuda.forget()
    try:
        yield recorder
    finally:
        launch.device, kinds.KINDS[:] = before
        _cuda.forget()


def recorded(recorder: Recorder, call: Callable[[], Any]) -> Launched:
    """What the call launches."""
    recorder.launched, recorder.allocated, recorder.scratch = [], 0, range(0)
    call()
    return Launched(recorder.launched, recorder.allocated, recorder.scratch)


# Which calls


def calls_of_row(
    work: Work, dtype: str, options: dict, trials: Iterable[str] = ()
) -> dict[str, Callable[[], Any]]:
    """The calls of a row of cuda.py on placeholders, by the order of arrays and, if any, the algorithm on trial."""
    network, layer, map_name, _ = work
    plain = [Placeholder(shape, DTYPES[dtype]) for shape in shapes_of(layer, network.batch)]
    orders: dict[str, tuple[Any, ...]] = {"channels first": (plain, None)}
    if layer.rank > 1:
        orders["channels last"] = [turned(array) for array in plain], Placeholder.like
    ways = {"": options, **{f", {name}": {**options, "algorithm": name} for name in trials}}
    return {f"{order}{way}": pyconv_call(layer, map_name, *arrays, new=new, **given)
            for order, (arrays, new) in orders.items() for way, given in ways.items()}


@contextlib.contextmanager
def forced(all_tiled: bool, large: bool) -> Iterator[None]:
    """As tests/test_cuda.py has it: nothing left to the direct kernels; large tiles and sums in parts throughout."""
    before = tiles.DIRECT_RATE, tiles.tile_of, tiles.parts_of_gather
    if all_tiled:
        tiles.DIRECT_RATE = 0.0
    if large:
        tiles.tile_of = lambda way, element, results, blocks, seconds=None, **how: (
            tiles.tiles(way, element, **how)[0])
        tiles.parts_of_gather = lambda positions, stages: 3
    _cuda.forget()
    try:
        yield
    finally:
        tiles.DIRECT_RATE, tiles.tile_of, tiles.parts_of_gather = before
        _cuda.forget()


def record_tests(capability: tuple[int, int] = CAPABILITY) -> None:
    """Make the calls of tests/test_cuda.py and test_cuda_whole_list.py, on problems that reach all of their kernels."""
    sys.path.insert(0, str(TESTS))
    import calls
    from gpus import WAYS
    from problems import MORE_AXES, VARIED, VARIED_MODES
    from test_cuda_whole_list import MORE_WAYS
    from test_more_axes import steps

    ways = [(dtype, options) for dtype, options in WAYS.values()
            if capability == CAPABILITY or options.get("algorithm") not in tiles.HOPPERS]
    for problem in VARIED:
        for dtype, options in ways:
            x, w, y = (Placeholder(shape, DTYPES[dtype]) for shape in (
                problem.input_shape, problem.weight_shape, problem.output_shape))
            for all_tiled, large in ((False, False), (True, False), (True, True)):
                with forced(all_tiled, large):
                    calls.three_maps(problem, x, w, y, **options)
                    if problem.rank > 1:
                        calls.three_maps(problem, turned(x), turned(w), turned(y), **options)
                    pyconv.convolution_double_backward(  # of two terms, the second is added
                        x.like(), w.like(), None, y, w, x, transposed=False, output_padding=0,
                        output_mask=(True, True, True), **problem.keywords, **options)
            pyconv.conv_bias(y)
            settings = {"dilation": problem.dilation, "padding": problem.padding, "stride": problem.stride}
            columns = pyconv.unfold(x, problem.kernel, **settings)
            pyconv.fold(columns, problem.size, problem.kernel, **settings)
    for all_tiled in False, True:
        with forced(all_tiled, large=all_tiled):
            for problem in VARIED + VARIED_MODES:
                for dtype, options in (*ways, *MORE_WAYS.values()):
                    if dtype.startswith("u") and problem.padding_value < 0:
                        continue
                    x, w, y = (Placeholder(shape, DTYPES[dtype]) for shape in (
                        problem.input_shape, problem.weight_shape, problem.output_shape))
                    calls.three_maps(problem, x, w, y, **options)
    reaching = "4d strided", "4d kernel is input", "4d cropped and padded", "4d kernel 1"
    for all_tiled in False, True:
        with forced(all_tiled, large=False):
            for problem in MORE_AXES:
                for dtype, options in (*ways, *MORE_WAYS.values()) if problem.name in reaching else ():
                    record_axes(problem, DTYPES[dtype], steps, options)


def record_axes(problem: Any, dtype: DeviceType, steps: Callable[..., Any], options: dict[str, Any]) -> None:
    """Make the calls of tests/test_more_axes.py on a problem of four axes and more."""
    result = result_dtype(dtype, None)
    x, w, y = (Placeholder(shape, dtype) for shape in (
        problem.input_shape, problem.weight_shape, problem.output_shape))
    c, b = (Placeholder((channels,), result) for channels in problem.channels)
    pyconv.convolution(x, w, b, *steps(problem), **options)
    pyconv.convolution(y, w, c, *steps(problem, True), **options)
    grads = pyconv.convolution_backward(y, x, w, *steps(problem), (True, True, True), **options)
    pyconv.convolution_backward(
        y, x, w, *steps(problem), (True, True, False), out=(*grads[:2], None), accumulate=True, **options)


# Compiling


def compile_one(wanted: Wanted, capability: tuple[int, int]) -> str:
    """Compile a kernel, or find it in the cache; its name."""
    launch._compiled(wanted.source, wanted.threads, wanted.blocks_per_sm, capability)
    return str(wanted.source.name)


def compile_all(kernels: Iterable[Wanted], capability: tuple[int, int], processes: int | None = None) -> list[str]:
    """Compile kernels side by side, those with most threads first; the errors, each with the kernel's name."""
    from pyconv._gpu import ptx  # noqa: F401  once, not in each of the processes that begin as copies of this one

    ordered = sorted(kernels, key=lambda wanted: -wanted.threads)
    errors = []
    with ProcessPoolExecutor(processes or os.cpu_count(), get_context("fork")) as pool:
        futures = {pool.submit(compile_one, wanted, capability): wanted for wanted in ordered}
        for future in as_completed(futures):
            try:
                future.result()
            except Exception as error:  # every other kernel is still worth having
                errors.append(f"{futures[future].source.name}: {type(error).__name__}: {error}")
    return errors


def main() -> None:
    """Find out what is launched, compile it, say how long that took."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--capability", type=int, nargs=2, help="of the chip (default: this machine's, else 9 0)")
    parser.add_argument("--processes", type=int, help="(default: one for each core)")
    arguments = parser.parse_args()
    capability = tuple(arguments.capability or _capability())
    start = time.perf_counter()
    with recording(capability) as recorder:
        record_tests(capability)
        for work in work_of((GPU_NETWORKS[name] for name in default_networks()), KINDS, MAPS):
            kind = KINDS[work[3]]
            for call in calls_of_row(work, kind.dtype, kind.options, kind.trials_of(capability)).values():
                call()
    planned = time.perf_counter()
    found = len(list(cubins.folder().glob("*.cubin"))) if cubins.folder().is_dir() else 0
    errors = compile_all(recorder.kernels.values(), capability, arguments.processes)
    print(f"{len(recorder.kernels)} kernels for sm_{capability[0]}{capability[1]}, planned in {planned - start:.0f} s, "
          f"compiled in {time.perf_counter() - planned:.0f} s, {found} files in the cache before")
    if errors:
        sys.exit("\n".join(errors))


def _capability() -> tuple[int, int]:
    """Of the GPU of this machine, asked in another process: one that has begun to use CUDA cannot be copied."""
    import subprocess

    code = "from pyconv._gpu import launch; print(*launch.device(0).capability)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return tuple(map(int, answer.stdout.split())) if answer.returncode == 0 else CAPABILITY  # type: ignore


if __name__ == "__main__":
    main()
