"""The programs of the three maps: which operands are packed, which kernels take which pieces, in which order.

In tiles padding is a zero times a weight or a grad_output, right unless that is not finite: packing sets a flag where
it is so, the tiles then store nothing, and the direct kernels, launched behind them, begin to work.
"""

from pyconv._gpu import limits, padding
from pyconv._gpu.correlation import Correlation
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.problem import Layouts, Problem
from pyconv._gpu.program import Target
from pyconv._gpu.sums import Sums
from pyconv._padding import REPEATING


def build(problem: Problem, layouts: Layouts, bias_stride: int | None, accumulate: bool, samples: int) -> Program:
    """The launches of a map, which pack so many samples at a time."""
    limits.check_weight(problem.geometry, problem.element)
    made = Program(problem.device)
    g = problem.geometry
    if problem.map == "grad_input" and g.padding_mode not in REPEATING:
        g = g._replace(padding_mode="zeros")  # the gradients of places without a cell are dropped
    if g.padding_mode != "zeros":
        g, crop = padding.cropped(g)
        problem = problem._replace(crop=crop)
    problem = problem._replace(geometry=g)
    bias: Ref | int = 0 if bias_stride is None else Ref("bias")
    target = Target(Ref("out"), layouts[2], bias, bias_stride or 0, accumulate)
    work = Correlation if problem.map == "grad_weight" else Sums
    work(problem, made, layouts, target).build(samples)
    return made
