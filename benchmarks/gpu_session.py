"""Everything that needs a GPU, in one command: build, environment, kernels, tests, sanitizer, benchmark.

    python benchmarks/gpu_session.py OUTPUT                        within nine and a half minutes
    python benchmarks/gpu_session.py OUTPUT --steps build compile benchmark --minutes 9 -- --networks vgg16

For a machine that is lent for minutes: each step has a time limit, is ended when it is reached, and leaves its output
in OUTPUT/NAME.txt; a step that fails does not stop the next. The end of what is printed says how each step ended, with
the last lines of each. What stands behind -- goes to benchmarks/cuda.py. OUTPUT gets no more than eight files.

On an H100 beside 16 cores the tests took 70 s, those of the device, which run alone, 30 s. Where a machine is lent for
less than all steps take, two calls run all to the end:

    --steps build environment compile tests device sanitizer
    --steps build compile benchmark

What an earlier call has built and compiled is there where the machine is still the same. Nothing is installed and
nothing fetched: pyconv is built in place for the Python that runs this; torch, cupy, numba-cuda with its compiler,
pytest, pytest-xdist and hypothesis must be there.
"""

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
PROBLEMS = "2d-stride-2 or 2d-groups-of-4 or 2d-crop-strided-dilated"
ALONE = "tests/test_cuda_device.py"  # which looks at what the device is doing
SANITIZED = f"real and (large_tiles or padding_modes) and ({PROBLEMS})"
FEWEST_SECONDS = 5  # a step with less than that is not begun


class Step(NamedTuple):
    """A command, its limit in seconds, and how many of its last lines are worth repeating."""

    name: str
    words: list[str]
    seconds: float
    lines: int


class Ended(NamedTuple):
    """How a step ended: its exit status, None where time ran out, and the seconds it took."""

    step: Step
    status: int | None
    seconds: float

    def __str__(self) -> str:
        how = {0: "passed", None: "out of time"}.get(self.status, f"failed with status {self.status}")
        return f"{self.step.name:12} {how} after {self.seconds:.0f} s"


def pytest_words(*more: str) -> list[str]:
    """The tests of the GPU; a file that does not load, for want of a package, keeps no other from running."""
    return [PYTHON, "-m", "pytest", "-m", "gpu", "-q", "--tb=short", "-p", "no:cacheprovider", "-rfE",
            "--continue-on-collection-errors", *more]


def steps(output: Path, more: list[str]) -> list[Step]:
    """All steps in order. The benchmark's own budget follows from what is left when it begins."""
    versions = ("torch cupy numba_cuda numba numpy cuda.bindings nvidia-nvvm nvidia-nvjitlink numba-cuda cuda-toolkit "
                "cuda-bindings cupy-cuda13x cython pytest hypothesis matplotlib").split()
    look = (
        "import importlib.metadata as m, sys; print(sys.version)\n"
        f"for name in {versions!r}:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: print(name, 'is not installed')\n"
        "import torch; print('torch', torch.__version__, torch.version.cuda, 'cuDNN', torch.backends.cudnn.version())\n"
        "from cuda.pathfinder import load_nvidia_dynamic_lib as found\n"
        "for name in ('nvvm', 'nvJitLink'):\n"
        "    try: print(name, found(name).abs_path)\n"
        "    except Exception as error: print(name, 'is not found:', str(error)[:300])")
    environment = f"nvidia-smi; {PYTHON} -c \"$LOOK\"; {PYTHON} -m pyconv"
    os.environ["LOOK"] = look
    build = [PYTHON, "setup.py", "build_ext", "--inplace"]
    return [
        Step("build", build if not built() else [PYTHON, "-c", "print('built before')"], 150, 2),
        Step("environment", ["sh", "-c", environment], 60, 34),
        Step("compile", [PYTHON, "benchmarks/planned.py"], 150, 8),
        Step("tests", pytest_words("-n", "auto", "--maxfail=60", "tests", "--deselect", ALONE), 180, 25),
        Step("device", pytest_words("--maxfail=25", "-s", ALONE), 90, 25),
        Step("sanitizer", [PYTHON, "tests/sanitize.py", "--seconds", "45", "-k", SANITIZED], 140, 12),
        Step("benchmark", [PYTHON, "benchmarks/cuda.py", "--no-picture", "--output", str(output / "cuda.json"), *more],
             600, 45),
    ]


def built() -> bool:
    """Whether the extension is there for this Python, newer than its sources."""
    extension = ROOT / "pyconv" / f"_cpu{sysconfig.get_config_var('EXT_SUFFIX')}"
    sources = [*ROOT.glob("pyconv/*.pyx"), *ROOT.glob("pyconv/_tiles/*")]
    return extension.exists() and extension.stat().st_mtime >= max(path.stat().st_mtime for path in sources)


def run(step: Step, output: Path, seconds: float, environment: dict[str, str]) -> Ended:
    """Run a step, all of whose processes end with it. It is asked to end first, so that it can write what it has."""
    start = time.monotonic()
    with open(output / f"{step.name}.txt", "w") as file:
        print(" ".join(step.words), file=file, flush=True)
        child = subprocess.Popen(step.words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        status: int | None = None
        try:
            status = child.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(timeout=8)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
    return Ended(step, status, time.monotonic() - start)


def last_lines(path: Path, count: int) -> str:
    """The end of a step's output, long lines cut; a bar's line begins anew with each carriage return."""
    lines = [line.split("\r")[-1][:200] for line in path.read_text(errors="replace").splitlines()]
    return "\n".join(line for line in lines[-count:] if line.strip())


def environment_of() -> dict[str, str]:
    """This checkout first, output as it comes, no colours; the toolkit that nvcc is part of, where none is named."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = {"CUDA_HOME": str(Path(nvcc).resolve().parents[1])} if Path(nvcc).exists() else {}
    return {**toolkit, **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1"}


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """The command line, and what stands behind --."""
    given, more = sys.argv[1:], []
    if "--" in given:
        place = given.index("--")
        given, more = given[:place], given[place + 1:]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path, help="the folder for what comes out, made where there is none")
    parser.add_argument("--steps", nargs="+", choices=[step.name for step in steps(Path(), [])], help="(default: all)")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all steps together (default: 9.5)")
    return parser.parse_args(given), more


def main() -> None:
    """Run the steps, say how each ended."""
    arguments, more = parse_arguments()
    deadline = time.monotonic() + 60 * arguments.minutes
    output = arguments.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    ended = []
    for step in steps(output, more):
        left = deadline - time.monotonic()
        if arguments.steps and step.name not in arguments.steps:
            continue
        if left < FEWEST_SECONDS:
            print(f"{step.name:12} not begun: no time is left")
            continue
        seconds = min(step.seconds, left)
        if step.name == "benchmark" and "--budget" not in more:
            step = step._replace(words=[*step.words, "--budget", str(max(1, int(seconds - 40)))])
        print(f"{step.name} ...", flush=True)
        ended.append(run(step, output, seconds, environment_of()))
        print(ended[-1], flush=True)
    for one in ended:
        print(f"\n--- {one.step.name} ---\n{last_lines(output / f'{one.step.name}.txt', one.step.lines)}")
    print("\n--- steps ---", *ended, sep="\n")
    sys.exit(any(one.status != 0 for one in ended))


if __name__ == "__main__":
    if importlib.util.find_spec("pyconv") is None:
        sys.path.insert(0, str(ROOT))
    main()
