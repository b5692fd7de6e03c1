"""The GPU's results on random floats: how far from float64 in each way to multiply, and the same bits however computed.

Emulated on any machine; with `-m gpu` on the real device.
"""
import math

import numpy as np
import pytest

import calls
import emulator
import pyconv
from gpus import DISTINCT, WAYS, Emulated, rounded, take_tile, tiles_of
from problems import P, Problem, maps
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
distinct_ways = pytest.mark.parametrize('way', DISTINCT)
KINDS = 'normal', 'non-negative'

# Relative error of a product: operands rounded to 11 bits, independently; three products of a split leave out the
# lowest, and what two parts of 11 bits do not hold of either operand. All other products are exact or rounded with
# the sum.
PRODUCTS = {'tf32': math.sqrt(2) * 2**-11, 'tf32x3': 3 * 2**-22}
DEPTH = {'tf32': 8, 'float16': 16, 'bfloat16': 16}  # products of a tensor core's instruction
STAGE = 16  # products that tf32x3 sums from zero
# Of the result itself: an error uniform within half a unit of the last place has its root mean square at 1/sqrt(3).
RESULTS = {'float16': 2**-11 / math.sqrt(3), 'bfloat16': 2**-8 / math.sqrt(3)}


def tolerance(way, terms):
    """The relative Frobenius error that so many terms may lead to.

    Sums: a rounding to nearest is off by at most half a unit of a partial sum that is no greater than the result, and
    such errors are independent of each other. Tensor cores cut off what does not fit, a unit at most in each
    instruction, always to the same side. Of tf32x3 that is a share of each stage's sum, and so of the result, however
    many there are: two instructions with the high parts' products cut off eight of them, the sum so far and the result,
    half a unit of 2**-23 each in the mean. What the small parts' lose is 2**-11 of it. The stages' sums are rounded.
    """
    way = way.removeprefix('wgmma ')  # the same products, of the same depth
    unit = 2**-53 if way == 'float64' else 2**-24
    if way == 'tf32x3':
        sums = 2 * 10 * unit + unit * math.sqrt(terms / STAGE)
    else:
        sums = 2 * unit * terms / DEPTH[way] if way in DEPTH else unit * math.sqrt(terms)
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


@pytest.mark.sparse
@pytest.mark.parametrize(('way', 'problem', 'kind'), [
    (way, problem, KINDS[(i + j) % 2]) for i, way in enumerate(WAYS) for j, problem in enumerate(LAYERS)], ids=str)
def test_relative_error(gpu, way, problem, kind, record_property):
    """Every way with every layer; each of them with both kinds of numbers."""
    pairs = prepared(problem, way, kind)
    errors = {}
    for name, found, wanted, terms in zip(NAMES, computed(gpu, problem, pairs, way), exact(problem, pairs),
                                          problem.terms):
        errors[name] = np.linalg.norm((found - wanted).ravel()) / np.linalg.norm(wanted.ravel())
        assert errors[name] <= tolerance(way, terms), (name, errors[name], tolerance(way, terms))
    record_property('errors', repr(errors))  # plain text goes between processes
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


@pytest.mark.parametrize('kind', KINDS)
def test_three_products_where_tensor_cores_cut_off(monkeypatch, kind):
    """Below float32's errors, however they cut off; ten times as large where they sum more than a stage's products."""
    gpu = Emulated(monkeypatch, races=False)
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    problem = Problem('64 channels', (8, 8), (3, 3), (64, 64), padding=1, batch=1)
    pair = prepared(problem, 'float32', kind)[0]
    wanted = calls.forward(problem, *pair, algorithm='gemm')

    def error(way):
        found = gpu.download(calls.forward(problem, *(gpu.upload(array, 'float32') for array in pair), **WAYS[way][1]))
        return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)

    def cutting_off():
        for more_bits in (0, 2):  # as the V100's, and as later ones
            monkeypatch.setattr(emulator.Executor, 'more_bits', more_bits)
            yield error('tf32x3')

    plain, rounding, cutting = error('float32'), error('tf32x3'), [*cutting_off()]
    monkeypatch.setitem(tiles.WAYS, 'tf32x3', tiles.WAYS['tf32x3']._replace(from_zero=False))
    monkeypatch.setattr(tiles, 'product', tiles.product.__wrapped__)
    _cuda.forget()
    drifting = max(cutting_off())
    _cuda.forget()
    print(f'{kind}: float32 {plain:.1e}, tf32x3 {rounding:.1e}, cut off {max(cutting):.1e}, without {drifting:.1e}')
    assert max(rounding, *cutting) < min(plain, tolerance('tf32x3', problem.terms[0]))
    assert drifting > max(5 * plain, tolerance('tf32x3', problem.terms[0]))


# The same bits


def same_bits(found, wanted):
    for name, one, other in zip(NAMES, found, wanted):
        assert one.tobytes() == other.tobytes(), f'{name}: {np.count_nonzero(one != other)} of {one.size} differ'


@pytest.mark.sparse
@pytest.mark.parametrize('problem', LAYERS[:2], ids=str)
@distinct_ways
def test_same_bits_in_any_tile(gpu, way, problem, monkeypatch):
    """A larger batch may take larger tiles, so the tile must not decide in which order a result is summed."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    pairs = prepared(problem, way, 'normal')
    found = []
    for size in range(tiles_of(*WAYS[way]) if problem is LAYERS[0] else 2):
        take_tile(monkeypatch, size)
        _cuda.forget()
        found.append(computed(gpu, problem, pairs[:2], way))
    for one in found[1:]:
        same_bits(found[0], one)


@pytest.mark.sparse
@pytest.mark.parametrize('problem', LAYERS[:1], ids=str)
@distinct_ways
def test_same_bits_at_any_place_in_a_batch(gpu, way, problem):
    larger = problem._replace(batch=3 if isinstance(gpu, Emulated) else 5)
    (x, w), (w_in, y), _ = prepared(larger, way, 'normal')
    wanted = computed(gpu, larger, [(x, w), (w_in, y)], way)
    for sample in range(larger.batch):
        alone = [(x[sample:sample + 1], w), (w_in, y[sample:sample + 1])]
        found = computed(gpu, problem._replace(batch=1), alone, way)
        same_bits(found, [whole[sample:sample + 1] for whole in wanted])


# By each way of packing and storing: copied or read in place, in one part or several, cells of taps that lie apart.
SPOILED = {
    'packed': (P('packed', (8, 8), (3, 3), (18, 20), padding=1, batch=3), False, 1),
    'in place': (P('in place', (8, 8), (3, 3), (16, 32), padding=1, batch=3), True, 1),
    'parts': (P('parts', (4, 4), (3, 3), (32, 32), padding=1, batch=3), False, 2),
    'strided': (P('strided', (9, 10), (3, 3), (16, 16), padding=1, stride=2, batch=3), False, 1),
    'apart': (P('apart', (8, 8), (2, 2), (16, 16), stride=2, batch=3), False, 1),
    'parts in place': (P('parts in place', (4, 4), (3, 3), (32, 32), padding=1, batch=3), True, 3),
}


@pytest.mark.sparse
@pytest.mark.parametrize(('name', 'value'), [
    *((name, np.inf) for name in SPOILED), *(('packed', value) for value in (np.nan, 2.0**127, np.finfo('f4').max))])
def test_a_spoiled_sample_changes_no_other(gpu, monkeypatch, name, value):
    """tf32x3: what one sample holds decides how that sample is computed, in any batch and buffer, and no other."""
    problem, is_last, parts = SPOILED[name]
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 0.0)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: parts)
    data, order = problem.floats(np.float32), channels_last if is_last else np.ascontiguousarray
    x, y = data.x.copy(), data.y.copy()
    place = 0 if parts > 1 else 1
    x[place, -1, 0, 1] = y[place, -1, -1, 0] = value
    keywords = {'algorithm': 'tf32x3'}

    def both(some, buffers=({}, {})):
        w, (a, b) = gpu.upload(data.w, 'float32'), (gpu.upload(order(array), 'float32') for array in some)
        return (gpu.download(calls.forward(problem, a, w, **buffers[0], **keywords)),
                gpu.download(calls.grad_input(problem, w, b, **buffers[1], **keywords)))

    clean, found = both((data.x, data.y)), both((x, y))
    wants = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, device='cuda', **keywords)
    least = both((x, y), [
        {name: gpu.empty((size,), 'float32'), 'out': gpu.upload(np.zeros(result.shape), 'float32'), 'accumulate': True}
        for name, size, result in (('finput', wants.finput_minimum, y), ('fgrad_input', wants.fgrad_input_minimum, x))])
    with np.errstate(all='ignore'):
        wanted = exact(problem, [(x.astype('f8'), data.w), (data.w, y.astype('f8')), (x * 0, y * 0)])[:2]
    for one, two, three, number in zip(clean, found, least, wanted):
        others = [sample for sample in range(3) if sample != place]
        assert (one[others] == two[others]).all()
        np.testing.assert_array_equal(two, three)
        # what is summed in float32 is off by some 1e-6; a product lost, or an infinity misplaced, by far more
        with np.errstate(over='ignore'):
            np.testing.assert_allclose(two, number.astype(np.float32), rtol=1e-4, atol=1e-4)
    alone = both((x[place:place + 1], y[place:place + 1]))
    assert [array[place:place + 1].tobytes() for array in found] == [array.tobytes() for array in alone]


@pytest.mark.parametrize('part', 'xwy')
def test_the_largest_numbers_in_three_products(gpu, part, tiles_alone):
    """tf32 rounds them to infinity, and infinity times the zero of a low part is NaN: float32's own results instead."""
    problem = P('largest', (4, 5), (1, 1), (16, 16))
    parts = {name: np.zeros_like(array, np.float32) for name, array in zip('xwy', problem.floats())}
    for name, array in parts.items():
        array.flat[::17] = np.finfo('f4').max if name == part else 1
    x, w, y = (gpu.upload(array, 'float32') for array in parts.values())
    for found, wanted in zip(calls.three_maps(problem, x, w, y, algorithm='tf32x3'),
                             calls.three_maps(problem, *parts.values())):
        assert np.array_equal(gpu.download(found), wanted)


def channels_last(array):
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)).transpose(0, array.ndim - 1, *range(1, array.ndim - 1))


@pytest.mark.sparse
@pytest.mark.parametrize('problem', LAYERS[:3:2], ids=str)
@distinct_ways
def test_same_bits_with_channels_last(gpu, way, problem):
    """Where the channels fill whole chunks nothing is copied on the way in, grad_output of a weight's gradient too."""
    pairs = prepared(problem, way, 'normal')
    same_bits(computed(gpu, problem, pairs, way, channels_last), computed(gpu, problem, pairs, way))
