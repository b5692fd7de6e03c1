"""What is added to out goes through Winograd's tiles as well, where no sum of theirs can be other than finite."""
import ml_dtypes
import numpy as np
import pytest

import calls
import pyconv
from calls import assert_same_bits, poisoned
from problems import P

LAYERS = [
    P('plane', (12, 21), (3, 3), (64, 48), padding=1, batch=3),
    P('row', (90,), (3,), (64, 48), padding=1, batch=3),
    P('planes', (4, 8, 10), (3, 3, 3), (64, 48), padding=1, batch=2),
    P('groups', (14, 14), (3, 3), (96, 96), padding=1, groups=2, batch=2),
    *(P(mode, (12, 21), (3, 3), (64, 48), padding=1, batch=3, padding_mode=mode, padding_value=2)
      for mode in ('constant', 'circular', 'replicate', 'reflect'))]
TYPES = ['float32', 'float64', 'complex64', 'float16', 'bfloat16']
LARGE = {'float32': 1e20, 'float64': 1e160}     # whose products are finite nowhere
every_layer = pytest.mark.parametrize('problem', LAYERS, ids=str)
every_algorithm = pytest.mark.parametrize('algorithm', ['auto', 'winograd'])


def three(problem, x, w, y, **more):
    """Each map as a function of settings, the shape of its result, and what its buffer is called."""
    return {
        'forward': (lambda **own: calls.forward(problem, x, w, **more, **own), problem.output_shape, 'finput'),
        'grad_input': (lambda **own: calls.grad_input(problem, w, y, **more, **own), problem.input_shape,
                       'fgrad_input'),
        'grad_weight': (lambda **own: calls.grad_weight(problem, x, y, **more, **own), problem.weight_shape, 'finput')}


def floats(problem, dtype):
    """x, w, y whose results are no whole numbers."""
    return [part.astype(getattr(ml_dtypes, dtype, dtype)) for part in problem.floats(np.dtype('float64'))[:3]]


@every_layer
@every_algorithm
@pytest.mark.parametrize('name', TYPES)
def test_the_same_sums(problem, algorithm, name):
    """Added to zeros: those of tiles, whatever the scratch."""
    x, w, y = floats(problem, name)
    sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords, dtype=x.dtype, algorithm=algorithm)
    for map, (call, shape, buffer) in three(problem, x, w, y, algorithm=algorithm).items():
        plain = call()
        if name == 'float32':
            other = three(problem, x, w, y, algorithm='gemm')[map][0]()
            assert not np.array_equal(plain, other)
        for size in getattr(sizes, buffer), getattr(sizes, f'{buffer}_minimum'):
            out = np.zeros(shape, x.dtype)
            assert call(out=out, accumulate=True, **{buffer: poisoned(size, sizes.dtype)}) is out
            assert np.array_equal(out, plain)


@every_layer
@every_algorithm
@pytest.mark.parametrize('odd', ['large', np.inf, np.nan])
def test_a_sample_that_tiles_are_not_for_changes_no_other(problem, algorithm, odd, dtype):
    """Its results are 'gemm's."""
    x, w, y = floats(problem, dtype.name)
    odd_x, odd_y = x.copy(), y.copy()
    odd_x[1, 5].flat[3] = odd_y[1, 5].flat[3] = LARGE[dtype.name] if odd == 'large' else odd
    for map in ('forward', 'grad_input'):
        found = []
        for first, last, how in ((x, y, algorithm), (odd_x, odd_y, algorithm), (odd_x, odd_y, 'gemm')):
            call, shape, _ = three(problem, first, w, last, algorithm=how)[map]
            found.append(np.random.default_rng(0).standard_normal(shape).astype(dtype))
            call(out=found[-1], accumulate=True)
        plain, out, gemm = found
        assert_same_bits(out[::2], plain[::2])
        np.testing.assert_array_equal(out[1], gemm[1])


@every_layer
@every_algorithm
@pytest.mark.parametrize('odd', ['large', np.inf, np.nan])
@pytest.mark.parametrize('part', 'xwy')
def test_sums_of_what_tiles_are_not_for(problem, algorithm, odd, part, dtype):
    """'gemm's wherever a weight or the sum over a batch has it: finite where the definition is."""
    x, w, y = parts = floats(problem, dtype.name)
    parts['xwy'.index(part)].flat[7] = LARGE[dtype.name] if odd == 'large' else odd
    for map, (call, shape, _) in three(problem, x, w, y, algorithm=algorithm).items():
        if part not in {'forward': 'w', 'grad_input': 'w', 'grad_weight': 'xy'}[map]:
            continue
        held = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        out, other = held.copy(), held.copy()
        call(out=out, accumulate=True)
        three(problem, x, w, y, algorithm='gemm')[map][0](out=other, accumulate=True)
        np.testing.assert_array_equal(out, other)


@pytest.mark.parametrize(('value', 'name'), [
    (1e20, 'float32'), (np.inf, 'float32'), (1.4e308 + 1.4e308j, 'complex128'), (complex(1, np.nan), 'complex64')])
def test_padding_that_tiles_are_not_for(value, name):
    problem = LAYERS[0]._replace(padding_mode='constant', padding_value=value)
    x, w, y = floats(problem, name)
    out, other = (np.ones(problem.output_shape, name) for _ in range(2))
    calls.forward(problem, x, w, out=out, accumulate=True)
    calls.forward(problem, x, w, out=other, accumulate=True, algorithm='gemm')
    np.testing.assert_array_equal(out, other)


@every_algorithm
@pytest.mark.parametrize('odd', [None, 1])
def test_gradients_of_each_sample(algorithm, odd, dtype):
    problem = LAYERS[0]
    x, w, y = floats(problem, dtype.name)
    if odd is not None:
        x[odd, 3, 2, 2] = np.inf
    wanted = calls.grad_weight(problem, x, y, per_sample=True, algorithm=algorithm)
    out, gemm = np.zeros_like(wanted), np.zeros_like(wanted)
    calls.grad_weight(problem, x, y, per_sample=True, algorithm=algorithm, out=out, accumulate=True)
    calls.grad_weight(problem, x, y, per_sample=True, algorithm='gemm', out=gemm, accumulate=True)
    for n in range(problem.batch):
        np.testing.assert_array_equal(out[n], (gemm if n == odd else wanted)[n])


def test_what_out_holds_may_be_anything(dtype):
    problem = LAYERS[0]
    x, w, y = floats(problem, dtype.name)
    out = np.zeros(problem.output_shape, dtype)
    out[0, 0, 0, :3] = np.nan, np.inf, -np.inf
    held = out.copy()
    calls.forward(problem, x, w, out=out, accumulate=True)
    assert_same_bits(out, held + calls.forward(problem, x, w))


@every_layer
@pytest.mark.parametrize('name', ['float16', 'bfloat16'])
def test_sixteen_bits_are_rounded_once(problem, name):
    """What out holds and the float32 sum of tiles, added and then rounded."""
    x, w, y = floats(problem, name)
    # 'auto' sums these without tiles where the processor has products of matrices
    has_matrices = pyconv._backend.cpu.config()['level'] == 'amx'
    more = {'algorithm': 'winograd'} if name == 'bfloat16' and has_matrices else {}
    sums = three(problem, *(part.astype(np.float32) for part in (x, w, y)), **more)
    for map, (call, shape, _) in three(problem, x, w, y, **more).items():
        held = (10 * np.random.default_rng(0).standard_normal(shape)).astype(x.dtype)
        out = held.copy()
        call(out=out, accumulate=True)
        assert np.array_equal(out, (held.astype(np.float32) + sums[map][0]()).astype(x.dtype))


@pytest.mark.parametrize('map', ['forward', 'grad_input', 'each sample'])
def test_runs_of_samples(map, dtype):
    """Some of each kind side by side, at both ends."""
    problem = LAYERS[0]._replace(batch=7)
    odd, found = [0, 1, 4], []
    for spoiled, algorithm in ((False, 'auto'), (True, 'auto'), (True, 'gemm')):
        x, w, y = floats(problem, dtype.name)
        for n in odd if spoiled else ():
            x[n, 2, 1, 1] = y[n, 2, 1, 1] = LARGE[dtype.name]
        more = {'algorithm': algorithm, **({'per_sample': True} if map == 'each sample' else {})}
        call, shape, buffer = three(problem, x, w, y, **more)['grad_weight' if map == 'each sample' else map]
        out = np.ones((7, *shape) if map == 'each sample' else shape, dtype)
        sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords, dtype=dtype, per_sample=map == 'each sample')
        call(out=out, accumulate=True, **{buffer: poisoned(getattr(sizes, f'{buffer}_minimum'), dtype)})
        found.append(out)
    plain, out, gemm = found
    for n in range(7):
        np.testing.assert_array_equal(out[n], (gemm if n in odd else plain)[n])
