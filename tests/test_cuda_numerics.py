"""The GPU's results on random floats: how far from float64 in each way to multiply, and the same bits however computed.

Emulated on any machine; with `-m gpu` on the real device.
"""
import math

import numpy as np
import pytest

import calls
import pyconv
from gpus import WAYS, rounded
from problems import Problem, maps
from pyconv import _cuda
from pyconv._gpu import tiles

LAYERS = [
    Problem('3 by 3 of the GPU', (14, 13), (3, 3), (32, 24), padding=1),
    Problem('1 by 1 of the GPU', (12, 11), (1, 1), (128, 64)),
    Problem('strided of the GPU', (15, 14), (3, 3), (16, 40), padding=1, stride=2, batch=3),
    Problem('grouped of the GPU', (10, 10), (3, 3), (32, 64), padding=1, groups=2),
    Problem('depthwise of the GPU', (14, 14), (3, 3), (16, 16), padding=1, groups=16),
    Problem('deep of the GPU', (5, 5), (3, 3), (160, 32), padding=1, batch=1),
    Problem('volume of the GPU', (5, 6, 7), (3, 3, 3), (8, 12), padding=1),
]
NAMES = ('forward', 'grad_input', 'grad_weight')
every_way = pytest.mark.parametrize('way', WAYS)
every_layer = pytest.mark.parametrize('problem', LAYERS, ids=str)

# Relative error of a product: operands rounded to 11 bits, independently; three products of a split leave out the
# lowest, and what two parts of 11 bits do not hold of either operand. All other products are exact or rounded with
# the sum.
PRODUCTS = {'tf32': math.sqrt(2) * 2**-11, 'tf32x3': 3 * 2**-22}
DEPTH = {'tf32': 8, 'tf32x3': 8, 'float16': 16, 'bfloat16': 16}  # products of a tensor core's instruction
# Of the result itself: an error uniform within half a unit of the last place has its root mean square at 1/sqrt(3).
RESULTS = {'float16': 2**-11 / math.sqrt(3), 'bfloat16': 2**-8 / math.sqrt(3)}


def tolerance(way, terms):
    """The relative Frobenius error that so many terms may lead to.

    Sums: a rounding to nearest is off by at most half a unit of a partial sum that is no greater than the result, and
    such errors are independent of each other. Tensor cores cut off what does not fit, a unit at most in each
    instruction, always to the same side.
    """
    way = way.removeprefix('wgmma ')  # the same products, of the same depth
    unit = 2**-53 if way == 'float64' else 2**-24
    steps = terms * (3 if way == 'tf32x3' else 1) / DEPTH.get(way, 1)
    sums = 2 * unit * steps if way in DEPTH else unit * math.sqrt(terms)
    return PRODUCTS.get(way, 0) + sums + RESULTS.get(way, 0)


def prepared(problem, way, kind):
    """Operands as the dtype holds them, in float64, of such a size that every result is about 1."""
    data, dtype = problem.floats(), WAYS[way][0]
    x, w, y = data.x, data.w, data.y
    if kind == 'non-negative':
        x, w, y = map(np.abs, (x, w, y))
    power = 1 if kind == 'non-negative' else 0.5
    scales = [terms**-power for terms in problem.terms]
    # forward is x * w, grad_input w * y, grad_weight x * y: each map gets a first operand of its own size
    pairs = (x * scales[0], w), (w * scales[1], y), (x * scales[2], y)
    return [[rounded(array, dtype).astype(np.float64) for array in pair] for pair in pairs]


def exact(problem, pairs):
    """The three maps in float64, each of its own pair."""
    (x, w), (w_in, y_in), (x_w, y_w) = pairs
    positions = (np.zeros(problem.output_shape), np.zeros(problem.input_shape), np.zeros(problem.weight_shape))
    return (maps(problem, x, w, positions[0]).forward, maps(problem, positions[1], w_in, y_in).grad_input,
            maps(problem, x_w, positions[2], y_w).grad_weight)


def computed(gpu, problem, pairs, way, layout=None, **more):
    """The three maps by the GPU, downloaded."""
    dtype, keywords = WAYS[way]
    turn = layout or (lambda array: array)
    functions = calls.forward, calls.grad_input, calls.grad_weight
    return [gpu.download(function(problem, *(gpu.upload(turn(array), dtype) for array in pair), **keywords, **more))
            for function, pair in zip(functions, pairs)]


@pytest.mark.parametrize('kind', ['normal', 'non-negative'])
@every_layer
@every_way
def test_relative_error(gpu, way, problem, kind, record_property):
    pairs = prepared(problem, way, kind)
    errors = {}
    for name, found, wanted, terms in zip(NAMES, computed(gpu, problem, pairs, way), exact(problem, pairs),
                                          problem.terms):
        errors[name] = np.linalg.norm((found - wanted).ravel()) / np.linalg.norm(wanted.ravel())
        assert errors[name] <= tolerance(way, terms), (name, errors[name], tolerance(way, terms))
    record_property('errors', errors)
    print(f'{way}, {problem}, {kind}: ' + ', '.join(f'{name} {error:.2e}' for name, error in errors.items()))


def test_each_way_rounds_where_it_says(gpu):
    """tf32 rounds operands, and only when it is allowed; three products take that back."""
    problem = LAYERS[1]
    pairs = prepared(problem, 'float32', 'normal')
    wanted = exact(problem, pairs)[0]
    errors = {way: np.linalg.norm(computed(gpu, problem, pairs, way)[0] - wanted) / np.linalg.norm(wanted)
              for way in ('float32', 'tf32', 'tf32x3')}
    assert 2**-14 < errors['tf32'] < 2**-10, errors
    assert errors['float32'] < 2**-20 and errors['tf32x3'] < 2**-20, errors


# The same bits


def same_bits(found, wanted):
    for name, one, other in zip(NAMES, found, wanted):
        assert one.tobytes() == other.tobytes(), f'{name}: {np.count_nonzero(one != other)} of {one.size} differ'


@pytest.mark.parametrize('problem', LAYERS[:4:2], ids=str)
@every_way
def test_same_bits_in_any_buffer(gpu, way, problem):
    dtype, keywords = WAYS[way]
    pairs = prepared(problem, way, 'normal')
    wanted = computed(gpu, problem, pairs, way)
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype, device='cuda',
                             **keywords)
    sizes = ((wants.finput, wants.finput_minimum), (wants.fgrad_input, wants.fgrad_input_minimum))
    for share in (0, 0.5, 1.5):
        buffers = [gpu.empty((least + int(share * (full - least)),), dtype) for full, least in sizes]
        functions = (calls.forward, 'finput', 0), (calls.grad_input, 'fgrad_input', 1), (calls.grad_weight, 'finput', 0)
        found = [gpu.download(function(problem, *(gpu.upload(array, dtype) for array in pair),
                                       **{name: buffers[place]}, **keywords))
                 for (function, name, place), pair in zip(functions, pairs)]
        same_bits(found, wanted)


@pytest.mark.parametrize('problem', LAYERS[:2], ids=str)
@every_way
def test_same_bits_in_any_tile(gpu, way, problem, monkeypatch):
    """A larger batch may take larger tiles, so the tile must not decide in which order a result is summed."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    pairs = prepared(problem, way, 'normal')
    found = []
    for size in (0, 1):
        monkeypatch.setattr(tiles, 'tile_of', lambda way, element, *_, size=size: tiles.tiles(way, element)[size])
        _cuda.plan.cache_clear()
        found.append(computed(gpu, problem, pairs, way)[:2])
    same_bits(*found)


@pytest.mark.parametrize('problem', LAYERS[:1], ids=str)
@every_way
def test_same_bits_at_any_place_in_a_batch(gpu, way, problem):
    larger = problem._replace(batch=5)
    pairs = prepared(larger, way, 'normal')
    wanted = computed(gpu, larger, pairs, way)
    for sample in range(5):
        alone = [(pairs[0][0][sample:sample + 1], pairs[0][1]), (pairs[1][0], pairs[1][1][sample:sample + 1]), pairs[2]]
        found = computed(gpu, problem._replace(batch=1), alone[:2], way)
        same_bits(found, [whole[sample:sample + 1] for whole in wanted[:2]])


@pytest.mark.parametrize('problem', LAYERS[:3:2], ids=str)
@every_way
def test_same_bits_with_channels_last(gpu, way, problem):
    """Where the channels fill whole chunks nothing is copied on the way in, grad_output of a weight's gradient too."""
    def last(array):
        return np.ascontiguousarray(np.moveaxis(array, 1, -1)).transpose(0, array.ndim - 1, *range(1, array.ndim - 1))

    pairs = prepared(problem, way, 'normal')
    same_bits(computed(gpu, problem, pairs, way, last), computed(gpu, problem, pairs, way))
