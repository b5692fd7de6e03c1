"""convolution_backward with per_sample=True, over any number of axes: the loops' gradients, with ==."""
import os

import numpy as np
import pytest

import pyconv
import reference
import test_dtypes
from calls import assert_equal, assert_same_bits, last, poisoned
from plan_runs import geometry_of
from problems import BY_NAME, MORE_AXES, VARIED, VARIED_MODES, P, maps, some
from pyconv import _blocks, _pieces, _ways
from pyconv._gpu import tiles
from test_cuda import same
from test_dtypes import data_of, exactly, result_of
from test_identities import generic, linear

ALL = (True, True, True)
BUFFERS = 'finput', 'fgrad_input'
either = pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
HARD = some('1d', '2d stride 2 dilation 3', '2d depthwise', '3d groups everything', '4d everything', '5d padded beyond',
            'reflect 2d groups everything')
MODES = [P(f'4d {mode}', (3, 2, 4, 3), (2, 2, 3, 1), (2, 4), 2, 3, padding=((1, 2), (2, 0), (1, 1), (0, 2)),
           stride=(1, 2, 1, 1), padding_mode=mode, padding_value=3 * (mode == 'constant'))
         for mode in ('circular', 'replicate', 'reflect', 'constant')]
CUT = P('2d in several parts', (20, 20), (3, 3), (16, 16), batch=5, padding=1)
types = test_dtypes.dtype  # every type but float32 and float64, which `dtype` are here


def operands(data, transposed):
    """(grad_output, input, weight)"""
    return (data.x, data.y, data.w) if transposed else (data.y, data.x, data.w)


def truth(problem, data, transposed):
    """The three gradients, of each sample alone but for the first."""
    form = linear(problem) if transposed else problem
    wanted = maps(form, *data[:3])
    apart = reference.grad_weight(data.x, data.y, problem.kernel, **form.form, per_sample=True)
    grad_output = operands(data, transposed)[0]
    bias = np.stack([reference.channel_sum(grad_output[n:n + 1]) for n in range(problem.batch)])
    return wanted.forward if transposed else wanted.grad_input, apart, bias


def backward(problem, data, transposed, mask=ALL, **more):
    return pyconv.convolution_backward(
        *operands(data, transposed), *generic(problem, transposed), mask, per_sample=True, **problem.mode, **more)


def part_of(data, samples):
    """Those samples of x and y."""
    return data._replace(x=data.x[samples], y=data.y[samples])


def sizes_of(problem, transposed, **more):
    stride, padding, dilation, _, output_padding, groups = generic(problem, transposed)
    shape = problem.output_shape if transposed else problem.input_shape
    return pyconv.workspace(
        shape, problem.weight_shape, stride, padding, dilation, groups, transposed=transposed,
        output_padding=output_padding, per_sample=True, **problem.mode, **more)


@either
@pytest.mark.parametrize('problem', VARIED + VARIED_MODES + MORE_AXES + MODES, ids=str)
def test_every_problem(problem, transposed, dtype):
    """In every mask, with the least and the full scratch, in `out` and added to it; of one sample without its axis."""
    data = problem.integers(dtype)
    wanted = truth(problem, data, transposed)
    for bits in range(8):
        mask = [bool(bits >> place & 1) for place in range(3)]
        found = backward(problem, data, transposed, mask)
        for one, exact, asked in zip(found, wanted, mask):
            if asked:
                assert_equal(one, exact, dtype)
            else:
                assert one is None
    sizes = sizes_of(problem, transposed, dtype=dtype)
    outs = tuple(poisoned(exact.shape, dtype) for exact in wanted)
    for full in ('', '_minimum'):
        buffers = {name: poisoned(getattr(sizes, name + full), dtype) for name in BUFFERS}
        for times in (1, 2):
            found = backward(problem, data, transposed, out=outs, accumulate=times == 2, **buffers)
            for one, exact, out in zip(found, wanted, outs):
                assert one is out
                assert_equal(out, times * exact, dtype)
    whole = wanted[0][-1], wanted[1][-1], wanted[2][-1]
    for one, exact in zip(backward(problem, part_of(data, -1), transposed), whole):
        assert_equal(one, exact, dtype)


@either
@pytest.mark.parametrize('problem', HARD, ids=str)
def test_every_type(problem, transposed, types):
    data, result = data_of(problem, types), result_of(types)
    wanted = truth(problem, exactly(data), transposed)
    for one, exact in zip(backward(problem, data, transposed), wanted):
        test_dtypes.same(one, exact, result)
    data = data_of(problem, types, most=1)  # whose sums any of the types holds
    outs = tuple(np.ones(exact.shape, result) for exact in wanted)
    backward(problem, data, transposed, out=outs, accumulate=True)
    for one, exact in zip(outs, truth(problem, exactly(data), transposed)):
        test_dtypes.same(one, exact + 1, result)


@pytest.mark.parametrize('name', ['int32', 'int64'])
def test_integers_of_a_chosen_type(name):
    problem, dtype = BY_NAME['4d everything'], np.dtype('int16')
    data = data_of(problem, dtype)
    for one, exact in zip(backward(problem, data, False, dtype=name), truth(problem, exactly(data), False)):
        test_dtypes.same(one, exact, np.dtype(name))


@either
@pytest.mark.parametrize('problem', some('2d groups everything', '4d everything'), ids=str)
def test_any_layout(problem, transposed, dtype):
    data = problem.integers(dtype)
    wanted = truth(problem, data, transposed)
    data = data._replace(x=last(data.x, problem.rank), y=np.repeat(data.y, 2, -1)[..., ::2])
    outs = tuple(np.asfortranarray(np.ones(exact.shape, dtype)) for exact in wanted)
    for one, exact in zip(backward(problem, data, transposed, out=outs, accumulate=True), wanted):
        assert_equal(np.ascontiguousarray(one), exact + 1, dtype)


@either
@pytest.mark.parametrize('problem', HARD + some('2d fully connected') + [CUT], ids=str)
def test_the_bits_are_those_of_a_sample_alone_in_any_number_of_threads(problem, transposed, dtype):
    """And those of the gradient to the input are the ones that it has without per_sample."""
    data = problem.floats(dtype)
    pyconv.set_num_threads(1)
    wanted = backward(problem, data, transposed)
    rest = generic(problem, transposed)
    plain = pyconv.convolution_backward(*operands(data, transposed), *rest, (True, False, False), **problem.mode)
    assert_same_bits(wanted[0], plain[0])
    for threads in (2, 3, 8):
        pyconv.set_num_threads(threads)
        for one, other in zip(backward(problem, data, transposed), wanted):
            assert_same_bits(one, other)
    for n in range(problem.batch):
        for one, other in zip(backward(problem, part_of(data, slice(n, n + 1)), transposed), wanted):
            assert_same_bits(one[0], other[n])


def test_sums_that_are_cut_into_parts_are_among_them(dtype):
    [piece] = _pieces.pieces('grad_weight', geometry_of(CUT, batch=1))
    tile = _blocks.Tile(dtype.itemsize, 8, 4, 3, units=_blocks.UNITS_OF_SAMPLE)
    assert _ways.choose('grad_weight', piece, 1, tile, 'auto')[1].splits > 1


def test_samples_are_shared_among_threads_before_their_weights_are(dtype):
    """A part of a weight transforms all cells, or all of grad_output, once more. The order of sums is the same."""
    shape = (4, 16, 28, 28), (32, 16, 3, 3), (4, 32, 28, 28)
    x, w, y = (np.random.default_rng(seed).standard_normal(size).astype(dtype) for seed, size in enumerate(shape))
    problem = P('many channels', (28, 28), (3, 3), (16, 32), padding=1)
    [piece] = _pieces.pieces('grad_weight', geometry_of(problem, batch=1))
    tile = _blocks.Tile(dtype.itemsize, 8, 4, 3, 2, units=_blocks.UNITS_OF_SAMPLE)
    alone, among = (_ways.choose('grad_weight', piece, 1, tile._replace(samples=n), 'auto')[1] for n in (1, 2))
    assert alone.way == _blocks.CORRELATE_WINOGRAD and alone.channels * alone.rows < 16 * 32
    assert among == alone._replace(channels=16, rows=32)
    pyconv.set_num_threads(2)
    found = pyconv.conv2d_weight(x, w.shape, y, padding=1, per_sample=True)
    for n in range(4):
        single = pyconv.conv2d_weight(x[n:n + 1], w.shape, y[n:n + 1], padding=1, per_sample=True)
        assert_same_bits(single[0], found[n])


@pytest.mark.skipif(not os.path.exists('/proc/self/task'), reason='what threads there are is asked of Linux')
def test_and_several_threads_have_work(spawn):
    """OpenMP says of each thread in how large a team it is; that of the next loop is smaller, and then threads end."""
    child = spawn("""
import numpy as np, pyconv, test_per_sample as here
pyconv.set_num_threads(8)
problem = here.P('four large samples', (40, 40), (3, 3), (32, 32), batch=4, padding=1)
here.backward(problem, problem.floats(np.dtype('float32')), False, (False, True, False))
""", OMP_DISPLAY_AFFINITY='true', OMP_AFFINITY_FORMAT='one of %N')
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0 and errors.count('one of 8') >= 8, errors


@pytest.mark.parametrize('gap', ['behind a sample', 'behind a row', 'between channels', 'channels last'])
def test_sums_of_channels_with_gaps_are_those_of_a_sample_alone(gap, dtype):
    whole = np.random.default_rng(0).standard_normal((3, 6, 9, 8)).astype(dtype)
    y = {'behind a sample': whole[:, 2:], 'behind a row': whole[..., :7], 'between channels': whole[:, ::2],
         'channels last': last(whole, 2)}[gap]
    x, w = np.zeros((3, 1, *y.shape[2:]), dtype), np.zeros((y.shape[1], 1, 1, 1), dtype)

    def sums(n):
        mask = False, False, True
        return pyconv.convolution_backward(y[n], x[n], w, 1, 0, 1, False, 0, 1, mask, per_sample=True)[2]

    for n in range(3):
        assert_same_bits(sums(slice(n, n + 1))[0], sums(slice(None))[n])
    np.testing.assert_allclose(sums(slice(None)), y.astype(float).sum((2, 3)), rtol=0, atol=1e-5)


@pytest.mark.parametrize('accumulate', [False, True])
def test_a_sample_that_is_not_finite_leaves_the_others_as_they_are(accumulate, dtype):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3, 4, 20)).astype(dtype), rng.standard_normal((3, 2, 20)).astype(dtype)
    odd = y.copy()
    odd[0, 0, 0] = np.nan
    found = []
    for each in (y, odd):
        out = np.zeros((3, 2, 4, 3), dtype)
        pyconv.conv1d_weight(x, (2, 4, 3), each, padding=1, per_sample=True, out=out, accumulate=accumulate)
        found.append(out)
    assert np.isnan(found[1][0]).any() and not np.isnan(found[1][1:]).any()
    assert_same_bits(found[1][1:], found[0][1:])


@pytest.mark.parametrize('transposed', [False, True])
@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_a_weight_that_is_not_finite(transposed, value, dtype):
    """The gradient of the input, asked for with those of each sample, is that which is asked for without."""
    x, w, y = np.ones((6, 2, 5), dtype), np.ones((2, 2, 3), dtype), np.ones((6, 2, 5), dtype)
    w[0, 0, 0] = value
    found = [pyconv.convolution_backward(
        y, x, w, 1, 1, 1, transposed, 0, 1, (True, False, False), per_sample=each)[0] for each in (False, True)]
    assert not np.isfinite(found[0]).all()
    assert_same_bits(*found)


@either
def test_no_samples(transposed, dtype):
    problem = BY_NAME['4d padded']
    data = problem.integers(dtype)
    found = backward(problem, part_of(data, slice(0)), transposed)
    channels = problem.channels[0 if transposed else 1]
    assert [one.shape for one in found[1:]] == [(0, *problem.weight_shape), (0, channels)]


def test_tensors_give_tensors():
    torch = pytest.importorskip('torch')
    problem = BY_NAME['4d everything']
    data = problem.integers(np.float32)
    tensors = data._replace(**{name: torch.from_numpy(getattr(data, name)) for name in 'xwy'})
    for one, exact in zip(backward(problem, tensors, False), truth(problem, data, False)):
        assert type(one) is torch.Tensor
        assert_equal(one.numpy(), exact, np.float32)


# --- on a GPU ---


def uploaded(gpu, data, name):
    return data._replace(**{part: gpu.upload(getattr(data, part), name) for part in 'xwy'})


@either
@pytest.mark.parametrize('problem', HARD[2:], ids=str)
@pytest.mark.parametrize('name', ['float32', 'float16', 'complex64', 'int8'])
def test_on_a_gpu(gpu, problem, transposed, name):
    """With the least scratch, and added to what is there; and of one sample without its axis."""
    data = problem.integers(low=-1, high=1)
    wanted = truth(problem, data, transposed)
    result = {'int8': 'int32'}.get(name, name)
    sizes = sizes_of(problem, transposed, dtype=name, device='cuda')
    buffers = {word: gpu.empty((getattr(sizes, f'{word}_minimum'),), sizes.dtype.name) for word in BUFFERS}
    given = uploaded(gpu, data, name)
    for one, exact in zip(backward(problem, given, transposed, **buffers), wanted):
        same(gpu, one, exact, result)
    outs = tuple(gpu.upload(exact * 0 + 5, result) for exact in wanted)
    backward(problem, given, transposed, out=outs, accumulate=True)
    for one, exact in zip(outs, wanted):
        same(gpu, one, exact + 5, result)
    alone = uploaded(gpu, part_of(data, 0), name)
    for one, exact in zip(backward(problem, alone, transposed), (wanted[0][0], wanted[1][0], wanted[2][0])):
        same(gpu, one, exact, result)


def test_channels_that_lie_last_on_a_gpu(gpu):
    problem = BY_NAME['2d depthwise']._replace(batch=3)
    data = problem.integers(low=-1, high=1)
    wanted = truth(problem, data, False)
    given = uploaded(gpu, data._replace(y=last(data.y, problem.rank)), 'float32')
    for one, exact in zip(backward(problem, given, False), wanted):
        same(gpu, one, exact, 'float32')


def sums_of_samples(gpu, y):
    x, w = np.ones((len(y), 1, *y.shape[2:])), np.ones((y.shape[1], 1, 1, 1))
    y, x, w = (gpu.upload(array, 'float32') for array in (y, x, w))
    return pyconv.convolution_backward(y, x, w, 1, 0, 1, False, 0, 1, (False, False, True), per_sample=True)[2]


def test_sums_of_channels_on_a_gpu(gpu, monkeypatch):
    """More samples than a launch takes, each in several parts, whose number does not depend on the batch."""
    monkeypatch.setattr(tiles, 'MOST_SAMPLES', 2)
    rng = np.random.default_rng(3)
    y = rng.integers(-3, 4, (5, 2, 30, 40))
    same(gpu, sums_of_samples(gpu, y), y.sum((2, 3)), 'float32')
    y = rng.standard_normal((5, 16, 30, 40))
    assert gpu.download(sums_of_samples(gpu, y[3:4])).tobytes() == gpu.download(sums_of_samples(gpu, y))[3].tobytes()
