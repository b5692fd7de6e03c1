"""Plans of the GPU's backend, run as they are: for what a geometry says and tests ask for without a public function."""
import numpy as np

from pyconv import _cuda
from pyconv import _geometries as geometries
from pyconv._gpu import arrays, kinds
from pyconv._gpu.launches import Ref, aligned

POISON = 7  # what `out` holds where a plan adds to it


def geometry_of(problem, **fields):
    """The problem's geometry with some fields replaced."""
    made, _ = geometries.convolved(
        problem.rank, problem.input_shape, problem.weight_shape, None, None, problem.stride, problem.padding,
        problem.dilation, problem.groups)
    return made._replace(**fields)


def columns_of(problem, **fields):
    """The geometry whose columns unfold writes."""
    channels = problem.channels[0]
    alone = problem._replace(channels=(channels, channels), groups=channels)
    return geometry_of(alone, **fields)


def launch(gpu, map, geometry, first, second, out, bias=None, accumulate=False, algorithm='auto', least=False,
           **settings):
    """A plan's program on arrays of the GPU."""
    read = [None if array is None else kinds.read('operand', array) for array in (first, second, out, bias)]
    plan = _cuda.plan(map, geometry, read[0].dtype, algorithm, read[2].dtype, **settings)
    scratch = None
    if least and plan.scratch_minimum:
        scratch = kinds.read('scratch', gpu.empty((plan.scratch_minimum,), read[0].dtype.name))
    now(plan.steps(*read, scratch, accumulate), scratch)


def now(steps, scratch=None):
    """Launch programs on their arrays; the scratch that all of them share is made where none is lent."""
    steps = list(steps)
    size = max((program.scratch for program, _ in steps), default=0)
    if size and scratch is None:
        some = next(iter(steps[0].arrays.values()))
        scratch = kinds.read('scratch', some.kind.empty((size + 256,), arrays.DTYPES['int8'], some.device)[0])
    for program, given in steps:
        addresses = {word: array.address for word, array in given.items()}
        if program.scratch:
            addresses['scratch'] = aligned(scratch.address)
        program.on({word: Ref(word) for word in addresses}).run(addresses, 0)


def run(gpu, map, geometry, first, second, shape, dtype, bias=None, accumulate=False, result=None, **settings):
    """What a plan makes of NumPy's operands; added to an array of POISON where accumulate."""
    result = result or dtype
    out = gpu.upload(np.full(shape, POISON), result) if accumulate else gpu.empty(shape, result)
    first, second = (gpu.upload(array, dtype) for array in (first, second))
    launch(gpu, map, geometry, first, second, out, None if bias is None else gpu.upload(bias, result), accumulate,
           **settings)
    return out


def unfold(geometry, input, columns, fold=False, accumulate=False):
    """columns <- input, or with fold input <- the sums of columns; arrays of the GPU."""
    now(_cuda.unfold(geometry, *(kinds.read('operand', array) for array in (input, columns)), fold, accumulate))
