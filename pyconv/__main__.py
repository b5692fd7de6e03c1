"""Door: python -m pyconv prints the configuration, GPUs too, and tests every instruction set that this processor has.

The three maps of a handful of geometries are compared, with ==, with loops over their definition. The data are small
integers, which float32 adds without rounding. The exit status is 1 where something differs.
"""

import itertools
import os
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np

import pyconv
from pyconv._backend import Array, cpu
from pyconv._gpu import launch

DTYPES = (np.float32, np.float64)


class Problem(NamedTuple):
    """A 2-D geometry with equal settings on both axes."""

    batch: int
    channels: tuple[int, int]
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1


PROBLEMS = (
    Problem(2, (3, 5), (9, 11), (3, 3), padding=1),
    Problem(1, (17, 50), (9, 13), (3, 3), padding=1),
    Problem(2, (33, 20), (7, 10), (1, 1)),
    Problem(2, (4, 6), (12, 9), (3, 2), stride=2, padding=1),
    Problem(1, (5, 3), (13, 12), (3, 3), stride=3, padding=3, dilation=2),
    Problem(2, (8, 8), (9, 20), (3, 3), padding=1, groups=8),
    Problem(2, (12, 8), (10, 9), (3, 3), stride=2, padding=2, dilation=2, groups=4),
)


def differences(problem: Problem, dtype: Any) -> list[str]:
    """The names of the maps that differ from their definition."""
    rng = np.random.default_rng(0)
    inputs, outputs = problem.channels
    settings = (problem.stride, problem.padding, problem.dilation, problem.groups)
    x = rng.integers(-3, 4, (problem.batch, inputs, *problem.size)).astype(dtype)
    w = rng.integers(-3, 4, (outputs, inputs // problem.groups, *problem.kernel)).astype(dtype)
    bias = rng.integers(-3, 4, outputs).astype(dtype)
    output = pyconv.conv2d(x, w, bias, *settings)
    y = rng.integers(-3, 4, output.shape).astype(dtype)
    found = (output, pyconv.conv2d_input(x.shape, w, y, *settings), pyconv.conv2d_weight(x, w.shape, y, *settings))
    expected = definition(problem, x, w, y)
    expected[0][...] += bias[:, None, None]
    names = ("forward", "grad_input", "grad_weight")
    return [name for name, a, b in zip(names, found, expected) if not np.array_equal(a, b)]


def definition(problem: Problem, x: Array, w: Array, y: Array) -> tuple[Array, Array, Array]:
    """The derivatives of T(x, w, y) by y, x and w: loops over everything but the channels of a group."""
    forward, grad_input, grad_weight = np.zeros_like(y), np.zeros_like(x), np.zeros_like(w)
    inputs, outputs = (np.arange(n).reshape(problem.groups, -1) for n in problem.channels)
    for n, g in itertools.product(range(problem.batch), range(problem.groups)):
        i, o = inputs[g], outputs[g]
        for a, k in itertools.product(np.ndindex(y.shape[2:]), np.ndindex(w.shape[2:])):
            cell = tuple(problem.stride * p + problem.dilation * q - problem.padding for p, q in zip(a, k))
            if all(0 <= c < size for c, size in zip(cell, problem.size)):
                forward[(n, o, *a)] += w[(o, slice(None), *k)] @ x[(n, i, *cell)]
                grad_input[(n, i, *cell)] += y[(n, o, *a)] @ w[(o, slice(None), *k)]
                grad_weight[(o, slice(None), *k)] += np.outer(y[(n, o, *a)], x[(n, i, *cell)])
    return forward, grad_input, grad_weight


def test_level() -> int:
    """Test the level in use; the number of problems with a difference."""
    failures = 0
    for problem, dtype in itertools.product(PROBLEMS, DTYPES):
        wrong = differences(problem, dtype)
        if wrong:
            failures += 1
            print(f"{' and '.join(wrong)} wrong: {np.dtype(dtype)}, {problem}")
    return failures


def main() -> int:
    """Print the configuration, then test each level in a process of its own: it is chosen at import."""
    if sys.argv[1:] == ["--level"]:
        return min(test_level(), 1)
    pyconv.show_config()
    print(*(f"{'CUDA':8} {line}" for line in launch.report()), sep="\n", flush=True)
    failed = 0
    for level in cpu.config()["levels"]:
        environment = {**os.environ, "PYCONV_CPU_LEVEL": level}
        status = subprocess.run([sys.executable, "-m", "pyconv", "--level"], env=environment).returncode
        print(f"self-test {level}: {'failed' if status else 'passed'}", flush=True)
        failed += bool(status)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
