"""Four spatial axes and more: the same definition, the same promises."""
import itertools

import numpy as np
import pytest

import plan_runs
import pyconv
import reference
from calls import assert_equal, assert_same_bits, per_channel, poisoned
from emulated_device import EmulatedArray
from gpus import Emulated
from problems import BY_NAME, MORE_AXES, P, expected, maps, some
from pyconv import _cuda
from pyconv._backend import cpu
from pyconv._geometries import convolved
from pyconv._geometry import ROLES
from pyconv._gpu import kinds, tiles
from pyconv._gpu.launches import ALIGNMENT
from test_cuda import same

every_problem = pytest.mark.parametrize('problem', MORE_AXES, ids=str)
ways = pytest.mark.parametrize('algorithm', ['auto', 'gemm', 'winograd'])
FEW = some('4d', '4d padded', '4d everything', '4d kernel nearly input', '4d depthwise', '4d many channels',
           '5d everything', '5d padded beyond')
ALL = (True, True, True)


def steps(problem, transposed=False):
    """The arguments from stride to groups of convolution and its kin."""
    if not transposed:
        return problem.stride, problem.padding, problem.dilation, False, 0, problem.groups
    padding, output_padding = problem.transposed_padding
    return problem.stride, padding, problem.dilation, True, output_padding, problem.groups


@ways
@every_problem
def test_convolution(problem, dtype, algorithm):
    data, wanted, more = problem.integers(dtype), expected(problem.name), {'algorithm': algorithm}
    tolerance = {'rtol': 0, 'atol': 0 if algorithm != 'winograd' else 1e-3}  # F(4, 3) has thirds of numbers below 2**14
    for x, w, bias, truth, transposed in ((data.x, data.w, data.b, wanted.forward, False),
                                          (data.y, data.w, data.c, wanted.grad_input, True)):
        answer = pyconv.convolution(x, w, bias, *steps(problem, transposed), **more)
        assert answer.dtype == dtype
        np.testing.assert_allclose(answer, truth + per_channel(bias, problem.rank), **tolerance)
        answer = pyconv.convolution(x[0], w, None, *steps(problem, transposed), **more)
        np.testing.assert_allclose(answer, truth[0], **tolerance)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@every_problem
def test_backward(problem, transposed, dtype):
    data, truth = problem.integers(dtype), expected(problem.name)
    grad_output, input_ = (data.x, data.y) if transposed else (data.y, data.x)
    found = pyconv.convolution_backward(grad_output, input_, data.w, *steps(problem, transposed), ALL)
    assert_equal(found[0], truth.forward if transposed else truth.grad_input, dtype)
    assert_equal(found[1], truth.grad_weight, dtype)
    assert_equal(found[2], reference.channel_sum(grad_output), dtype)


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@every_problem
def test_double_backward(problem, transposed, dtype):
    data, other = problem.integers(dtype), problem.integers(dtype, -2, 4)
    x, y, w = data.x, data.y, data.w
    crossed, turned = maps(problem, other.x, w, other.y), maps(problem, x, other.w, y)
    mixed = maps(problem, other.x, w, y), maps(problem, x, w, other.y)
    if transposed:
        found = pyconv.convolution_double_backward(
            other.y, other.w, data.c, x, w, y, *steps(problem, True), ALL)
        wanted = (crossed.grad_input + turned.grad_input + per_channel(data.c, problem.rank), turned.forward,
                  mixed[1].grad_weight)
    else:
        found = pyconv.convolution_double_backward(
            other.x, other.w, data.b, y, w, x, *steps(problem), ALL)
        wanted = (crossed.forward + turned.forward + per_channel(data.b, problem.rank), turned.grad_input,
                  mixed[0].grad_weight)
        tangent = pyconv.conv_jvp(x, w, other.x, other.w, data.b, *steps(problem)[:3], problem.groups)
        assert_equal(tangent, wanted[0], dtype)
    for one, truth in zip(found, wanted):
        assert_equal(one, truth, dtype)


@every_problem
def test_columns(problem, dtype):
    data, (stride, lo, dilation, _) = problem.integers(dtype), problem.form.values()
    form = (problem.kernel, problem.positions, stride, lo, dilation)
    more = (problem.dilation, problem.padding, problem.stride)
    wanted = reference.unfold(data.x, *form)
    assert_equal(pyconv.unfold(data.x, problem.kernel, *more), wanted, dtype)
    columns = np.random.default_rng(5).integers(-3, 4, wanted.shape).astype(dtype)
    wanted = reference.fold(columns, problem.size, *form)
    assert_equal(pyconv.fold(columns, problem.size, problem.kernel, *more), wanted, dtype)
    assert_equal(pyconv.fold(columns[0], problem.size, problem.kernel, *more), wanted[0], dtype)


def three(problem, x, w, y, **more):
    """The three maps with a bias on the first and last."""
    grads = pyconv.convolution_backward(y, x, w, *steps(problem), (True, True, False), **more)
    return pyconv.convolution(x, w, None, *steps(problem), **more), *grads[:2]


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_the_bits_do_not_depend_on_threads_and_batch(problem, dtype):
    data = problem.floats(dtype)
    alone = [[part[0] for part in three(problem, data.x[n:n + 1], data.w, data.y[n:n + 1])[:2]]
             for n in range(problem.batch)]
    pyconv.set_num_threads(1)
    wanted = three(problem, data.x, data.w, data.y)
    for threads in (2, 3, 8):
        pyconv.set_num_threads(threads)
        for one, other in zip(three(problem, data.x, data.w, data.y), wanted):
            assert_same_bits(one, other)
    for n in range(problem.batch):
        for one, other in zip(alone[n], wanted):
            assert_same_bits(one, other[n])


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_scratch_and_out_of_the_caller(problem, dtype):
    data = problem.floats(dtype)
    wanted = three(problem, data.x, data.w, data.y)
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    for full in (False, True):
        number = (sizes.finput, sizes.fgrad_input) if full else (sizes.finput_minimum, sizes.fgrad_input_minimum)
        more = {'finput': poisoned(number[0], dtype), 'fgrad_input': poisoned(number[1], dtype)}
        for one, other in zip(three(problem, data.x, data.w, data.y, **more), wanted):
            assert_same_bits(one, other)
    out = tuple(poisoned(one.shape, dtype) for one in wanted[1:])
    found = pyconv.convolution_backward(
        data.y, data.x, data.w, *steps(problem), (True, True, False), out=(*out, None))
    for one, other, place in zip(found, wanted[1:], out):
        assert one is place
        assert_same_bits(one, other)


@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_numbers_that_are_not_finite_arrive_where_the_definition_puts_them(problem, value, dtype):
    for which, seed in itertools.product((0, 1, 2), range(2)):
        arrays = [array.copy() for array in problem.integers(dtype)[:3]]
        arrays[which].flat[np.random.default_rng(seed).integers(arrays[which].size)] = value
        with np.errstate(invalid='ignore'):
            truth = maps(problem, *arrays)
        for one, wanted in zip(three(problem, *arrays), truth):
            assert_equal(one, wanted, dtype)


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_channels_last(problem, dtype):
    data, truth = problem.integers(dtype), expected(problem.name)
    x, y = (np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) for array in (data.x, data.y))
    for one, wanted in zip(three(problem, x, data.w, y), truth):
        assert_equal(one, wanted, dtype)
    out = np.moveaxis(poisoned((problem.batch, *problem.positions, problem.channels[1]), dtype), -1, 1)
    assert pyconv.convolution(x, data.w, data.b, *steps(problem), out=out) is out
    np.testing.assert_array_equal(out, truth.forward + per_channel(data.b, problem.rank))


def test_nothing_in_the_batch(dtype):
    problem = BY_NAME['4d padded']
    data = problem.integers(dtype)
    found = three(problem, data.x[:0], data.w, data.y[:0])
    assert found[0].shape[0] == found[1].shape[0] == 0 and not found[2].any()


def test_as_many_axes_as_numpy_has(dtype):
    x, w = np.full((1, 1) + (1,) * 60, 3, dtype), np.full((2, 1) + (1,) * 60, 5, dtype)
    assert pyconv.convolution(x, w, None, 1, 0, 1, False, 0, 1).ravel().tolist() == [15, 15]
    assert pyconv.unfold(x, (1,) * 60).tolist() == [[[3]]]


def test_a_loop_over_the_first_axis_says_the_same(dtype):
    """A rank lower, position by position."""
    problem = BY_NAME['4d padded']
    data = problem.integers(dtype)
    wanted = np.zeros(problem.output_shape, dtype)
    for a, k in itertools.product(range(problem.positions[0]), range(3)):
        if 0 <= a + k - 1 < problem.size[0]:
            wanted[:, :, a] += pyconv.conv3d(data.x[:, :, a + k - 1], data.w[:, :, k], padding=1)
    assert_equal(pyconv.convolution(data.x, data.w, None, 1, 1, 1, False, 0, 1), wanted, dtype)


# --- other types of elements ---

TYPES = {'float16': 'float16', 'bfloat16': 'bfloat16', 'complex64': 'complex64', 'complex128': 'complex128',
         'int8': 'int32', 'uint8': 'int32', 'int16': 'int64', 'uint64': 'uint64'}  # of operands, of results


@pytest.mark.parametrize('name', TYPES)
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_every_type_is_rounded_once(problem, name):
    """Whole numbers: their sums are exact in what is computed in, and so is what their rounding has to be."""
    if name == 'bfloat16':
        pytest.importorskip('ml_dtypes')
    dtype, result = np.dtype(name), np.dtype(TYPES[name])
    low = 0 if dtype.kind == 'u' else -2
    x, w, y, b, c = problem.integers(complex if dtype.kind == 'c' else np.float64, low, 3)
    if dtype.kind == 'c':
        x, w, y = x * (2 - 1j), w * (1 + 3j), y * 1j
    wanted = maps(problem, x, w, y)
    given = [array.astype(dtype) for array in (x, w, y)]
    found = pyconv.convolution(*given[:2], b.astype(result), *steps(problem))
    assert_equal(found, (wanted.forward + per_channel(b, problem.rank)).astype(result), result)
    for one, truth in zip(three(problem, *given), wanted):
        assert_equal(one, truth.astype(result), result)
    outs = np.full(problem.input_shape, 5, result), np.full(problem.weight_shape, 5, result)
    pyconv.convolution_backward(given[2], given[0], given[1], *steps(problem), (True, True, False),
                                out=(*outs, None), accumulate=True)
    for one, truth in zip(outs, wanted[1:]):
        assert_equal(one, (truth + 5).astype(result), result)


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_the_gradient_of_each_sample(problem, dtype):
    data = problem.integers(dtype)
    geometry = convolved(problem.rank, data.x.shape, data.w.shape, None, None, problem.stride, problem.pads,
                         problem.dilation, problem.groups)[0]._replace(per_sample=True)
    plan = cpu.plan('grad_weight', geometry, np.dtype(dtype))
    out = poisoned((problem.batch, *data.w.shape), dtype)
    plan.run(data.x, data.y, out)
    for n in range(problem.batch):
        assert_equal(out[n], maps(problem, data.x[n:n + 1], data.w, data.y[n:n + 1]).grad_weight, dtype)


# --- what padded volumes hold ---

MODES = {'circular': 'wrap', 'replicate': 'edge', 'reflect': 'reflect', 'constant': 'constant'}  # numpy.pad's names
PADDED = some('4d padded', '4d everything', '4d padding far above kernel', '4d depthwise', '4d many channels',
              '4d dilated', '5d everything', '5d padded beyond', '4d cropped', '4d cropped and padded')


def adjoint_of_pad(array, pads, size, mode):
    """What numpy.pad does, turned round: the gradients of padded cells added to the cells that they came from."""
    for axis, ((lo, hi), n) in enumerate(zip(pads, size), start=2):
        cells = np.pad(np.arange(n), (lo, hi), MODES[mode], **({'constant_values': -1} if mode == 'constant' else {}))
        array = np.moveaxis(array, axis, 0)
        summed = np.zeros((n, *array.shape[1:]), array.dtype)
        for cell, values in zip(cells, array):
            if cell >= 0:
                summed[cell] += values
        array = np.moveaxis(summed, 0, axis)
    return array


@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('problem', PADDED, ids=str)
@pytest.mark.parametrize('accumulate', [False, True])
def test_padding_modes_of_the_plans(problem, mode, dtype, accumulate):
    """Every map, in the backend's own words; crops come first, as numpy.pad has none."""
    value = 2 if mode == 'constant' else 0
    crops = [slice(max(0, -lo), n - max(0, -hi)) for (lo, hi), n in zip(problem.pads, problem.size)]
    size = tuple(crop.stop - crop.start for crop in crops)
    pads = [(max(lo, 0), max(hi, 0)) for lo, hi in problem.pads]
    data = problem.integers(dtype)
    x = np.ascontiguousarray(data.x[(..., *crops)])
    more = {'constant_values': value} if mode == 'constant' else {}
    padded = np.pad(x, ((0, 0), (0, 0), *pads), MODES[mode], **more)
    form = {**problem.form, 'lo': (0,) * problem.rank}
    wanted = (reference.forward(padded, data.w, problem.positions, **form),
              adjoint_of_pad(reference.grad_input(data.w, data.y, padded.shape[2:], **form), pads, size, mode),
              reference.grad_weight(padded, data.y, problem.kernel, **form))
    geometry = convolved(problem.rank, x.shape, data.w.shape, None, None, problem.stride, pads, problem.dilation,
                         problem.groups)[0]._replace(padding_mode=mode, padding_value=value)
    for map, first, second, truth in zip(('forward', 'grad_input', 'grad_weight'), (x, data.y, x),
                                         (data.w, data.w, data.y), wanted):
        plan = cpu.plan(map, geometry, np.dtype(dtype))
        out = np.ones(truth.shape, dtype) if accumulate else poisoned(truth.shape, dtype)
        plan.run(first, second, out, None, poisoned(plan.scratch_minimum, dtype), accumulate, threads=2)
        assert_equal(out, truth + accumulate, dtype)
    settings = (problem.stride, pads, problem.dilation)
    mode = {'padding_mode': mode, 'padding_value': value}
    found = pyconv.convolution_backward(data.y, x, data.w, *settings, False, 0, problem.groups, ALL, **mode)
    assert_equal(pyconv.convolution(x, data.w, None, *settings, False, 0, problem.groups, **mode), wanted[0], dtype)
    assert_equal(found[0], wanted[1], dtype)
    assert_equal(found[1], wanted[2], dtype)
    settings = (problem.stride, problem.pads, problem.dilation)
    found = pyconv.convolution_backward(data.y, data.x, data.w, *settings, False, 0, problem.groups, ALL, **mode)
    assert_equal(pyconv.convolution(data.x, data.w, None, *settings, False, 0, problem.groups, **mode), wanted[0],
                 dtype)
    whole = np.zeros_like(data.x)
    whole[(..., *crops)] = wanted[1]
    assert_equal(found[0], whole, dtype)
    assert_equal(found[1], wanted[2], dtype)
    columns = pyconv.unfold(x, problem.kernel, problem.dilation, pads, problem.stride, **mode)
    form = (problem.kernel, problem.positions, *(form[word] for word in ('stride', 'lo', 'dilation')))
    assert_equal(columns, reference.unfold(padded, *form), dtype)
    back = adjoint_of_pad(reference.fold(columns, padded.shape[2:], *form), pads, size, mode['padding_mode'])
    assert_equal(pyconv.fold(columns, size, problem.kernel, problem.dilation, pads, problem.stride,
                             padding_mode=mode['padding_mode']), back, dtype)


# --- on a GPU ---


def check_on_a_gpu(gpu, problem, data, truth, name, result, **keywords):
    """The maps with a bias, transposed, of one sample, in the least scratch and added to what is there; results are of
    that type."""
    x, w, y, b, c = (gpu.upload(array, kind) for array, kind in zip(data, (name, name, name, result, result)))

    def check(found, wanted):
        same(gpu, found, wanted, result)

    check(pyconv.convolution(x, w, b, *steps(problem), **keywords), truth.forward + per_channel(data.b, problem.rank))
    check(pyconv.convolution(y, w, c, *steps(problem, True), **keywords),
          truth.grad_input + per_channel(data.c, problem.rank))
    check(pyconv.convolution(gpu.upload(data.x[0], name), w, None, *steps(problem), **keywords), truth.forward[0])
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=name, device='cuda',
                             **keywords)
    found = pyconv.convolution_backward(
        y, x, w, *steps(problem), ALL, finput=gpu.empty((sizes.finput_minimum,), name),
        fgrad_input=gpu.empty((sizes.fgrad_input_minimum,), name), **keywords)
    for one, wanted in zip(found, (*truth[1:], reference.channel_sum(data.y))):
        check(one, wanted)
    outs = gpu.upload(data.x * 0 + 5, result), gpu.upload(data.w * 0 + 5, result)
    pyconv.convolution_backward(
        y, x, w, *steps(problem), (True, True, False), out=(*outs, None), accumulate=True, **keywords)
    for one, wanted in zip(outs, truth[1:]):
        check(one, wanted + 5)


SMALL = some('4d', '4d everything', '4d same strided', '5d padded beyond')


@pytest.mark.parametrize('problem', SMALL, ids=str)
@pytest.mark.parametrize('name', ['float32', 'float16'])
def test_on_a_gpu(gpu, problem, name):
    """All problems and types on a real one: see test_cuda_whole_list."""
    check_on_a_gpu(gpu, problem, problem.integers(low=-1, high=1), expected_small(problem), name, name)


def expected_small(problem):
    return maps(problem, *problem.integers(low=-1, high=1)[:3])


@pytest.mark.parametrize(
    'mode', [{'padding_mode': name} for name in ('zeros', 'circular', 'replicate')]
    + [{'padding_mode': 'constant', 'padding_value': 2}], ids=lambda mode: mode['padding_mode'])
@pytest.mark.parametrize('problem', some('4d everything', '4d same strided', '5d padded beyond'), ids=str)
def test_columns_on_a_gpu(gpu, problem, mode):
    """As NumPy's, which are tested above: cropped, padded, summed into what is there, and of one sample."""
    x, settings = problem.integers().x, (problem.dilation, problem.padding, problem.stride)
    columns = pyconv.unfold(x, problem.kernel, *settings, **mode)
    same(gpu, pyconv.unfold(gpu.upload(x, 'float32'), problem.kernel, *settings, **mode), columns, 'float32')
    wanted = pyconv.fold(columns, problem.size, problem.kernel, *settings, **mode)
    columns, one, out = (gpu.upload(array, 'float64') for array in (columns, columns[0], np.full(wanted.shape, 3)))
    same(gpu, pyconv.fold(one, problem.size, problem.kernel, *settings, **mode), wanted[0], 'float64')
    pyconv.fold(columns, problem.size, problem.kernel, *settings, **mode, out=out, accumulate=True)
    same(gpu, out, wanted + 3, 'float64')


@pytest.mark.parametrize('rate', [0.0, 1e9], ids=['in tiles', 'directly'])
@pytest.mark.parametrize('problem', [*SMALL, *some('4d whole vectors kernel 1')], ids=str)
@pytest.mark.parametrize('name', ['float32', 'float16'])
def test_the_weight_gradient_from_columns_on_a_gpu(gpu, monkeypatch, problem, name, rate):
    """Of the batch, of one sample, of each, added to what is there, from arrays whose channels lie last."""
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    data, truth = problem.integers(low=-1, high=1), expected_small(problem)
    form = [problem.form[word] for word in ('stride', 'lo', 'dilation')]
    unfolded = reference.unfold(data.x, problem.kernel, problem.positions, *form)
    y, w, columns = (gpu.upload(array, name) for array in (data.y, data.w, unfolded))

    def grads(y, columns, **more):
        return pyconv.convolution_backward(
            y, None, w, *steps(problem), (False, True, True), finput=columns, **more)[1:]

    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(data.y, 1, -1)), -1, 1)
    for given in (y, gpu.upload(last, name)):
        for one, wanted in zip(grads(given, columns), (truth.grad_weight, reference.channel_sum(data.y))):
            same(gpu, one, wanted, name)
    of_samples = np.stack([maps(problem, data.x[n:n + 1], data.w, data.y[n:n + 1]).grad_weight
                           for n in range(problem.batch)])
    same(gpu, grads(y, columns, per_sample=True)[0], of_samples, name)
    y, columns = gpu.upload(data.y[0], name), gpu.upload(unfolded[0], name)
    out = gpu.upload(data.w * 0 + 5, name)
    assert grads(y, columns, out=(None, out, None))[0] is out
    same(gpu, out, of_samples[0], name)
    pyconv.convolution_backward(
        y, None, w, *steps(problem), (False, True, False), finput=columns, out=(None, out, None), accumulate=True)
    same(gpu, out, 2 * of_samples[0], name)


def test_an_axis_of_one_cell_may_lie_anywhere(gpu):
    """Whatever its stride: NumPy calls such an array contiguous, and copies none."""
    rng = np.random.default_rng(0)
    given, columns = rng.integers(-3, 4, (1, 2, 3, 2, 4, 1)), gpu.upload(rng.integers(-3, 4, (1, 5, 24)), 'float32')
    w = gpu.empty((2, 5, 1, 1, 1, 1), 'float32')
    found = []
    for y in (np.moveaxis(given, -1, 4), given.reshape(1, 2, 3, 2, 1, 4)):
        y = gpu.upload(y, 'float32')
        found.append(gpu.download(pyconv.convolution_backward(
            y, None, w, 1, 0, 1, False, 0, 1, (False, True, False), finput=columns)[1]))
    np.testing.assert_array_equal(*found)
    assert found[0].any()


# --- halves on a GPU: what volumes add up is not rounded between ---

HALVES = {'float16': 2048, 'bfloat16': 256}  # the first number to which adding 1 does nothing
halves = pytest.mark.parametrize('name', HALVES)
ADDED = [P('4d added', (7, 1, 2, 3), (5, 1, 1, 2)), P('4d added in groups', (7, 2, 2, 2), (4, 2, 1, 1), (2, 4), 2),
         P('4d added between gaps', (9, 1, 3, 2), (3, 1, 2, 1), stride=(6, 1, 1, 1)),
         *(P(f'4d added {mode}', (5, 1, 3, 2), (4, 1, 1, 2), padding=((2, 1), (0, 0), (1, 1), (0, 0)),
             padding_mode=mode, padding_value=3 * (mode == 'constant')) for mode in ('circular', 'constant'))]


def large_and_ones(problem, large):
    """x, w, y and both biases of ones, but for a large number in the volume whose products are summed first."""
    data = [np.ones(array.shape) for array in problem.integers()]
    data[0][:, :, 0] = data[2][:, :, -1] = large
    return data


def check_halves(gpu, problem, name, accumulate, buffers, **keywords):
    """The maps and the transposed one, with buffers of these sizes, and with the samples' own gradients."""
    x, w, y, b, c = large_and_ones(problem, HALVES[name])
    mode = {'padding_mode': problem.padding_mode, 'padding_value': problem.padding_value}
    forward, grad_input, grad_weight = three(problem, x, w, y, **mode)  # of float64, on the CPU
    of_samples = np.stack([three(problem, x[n:n + 1], w, y[n:n + 1], **mode)[2] for n in range(problem.batch)])
    x, w, y, of_y, of_x = (gpu.upload(array, name) for array in (x, w, y, b, c))
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=name, device='cuda',
                             per_sample=True, **keywords)

    def check(found, exact):
        same(gpu, found, exact + 3 * accumulate, name)

    def out(exact):
        return gpu.upload(np.full(exact.shape, 3), name)

    lengths = {'full': (sizes.finput, sizes.fgrad_input), 'none': (0, 0),
               'least': (sizes.finput_minimum, sizes.fgrad_input_minimum)}
    for size in buffers:
        finput, fgrad_input = (gpu.empty((length,), name) for length in lengths[size])
        more = {**mode, **keywords, 'accumulate': accumulate, 'finput': finput, 'fgrad_input': fgrad_input}
        exact = forward + per_channel(b, 4)
        check(pyconv.convolution(x, w, of_y, *steps(problem), out=out(exact), **more), exact)
        outs = out(grad_input), out(grad_weight), None
        pyconv.convolution_backward(y, x, w, *steps(problem), (True, True, False), out=outs, **more)
        check(outs[0], grad_input)
        check(outs[1], grad_weight)
        outs = None, out(of_samples), None
        pyconv.convolution_backward(y, x, w, *steps(problem), (False, True, False), out=outs, per_sample=True, **more)
        check(outs[1], of_samples)
        if problem.padding_mode == 'zeros':
            exact = grad_input + per_channel(c, 4)
            check(pyconv.convolution(y, w, of_x, *steps(problem, True), out=out(exact), **more), exact)


@halves
@pytest.mark.parametrize('accumulate', [False, True])
@pytest.mark.parametrize('problem', ADDED, ids=str)
def test_halves_are_rounded_once_on_a_gpu(gpu, problem, name, accumulate):
    """Emulated, what one of the types is added to in some of the buffers, the other is in the others."""
    buffers = ['least'] if accumulate == (name == 'float16') else ['full', 'none']
    check_halves(gpu, problem, name, accumulate, buffers if isinstance(gpu, Emulated) else ('full', 'least', 'none'))


@pytest.mark.parametrize(('problem', 'name'), [*zip(ADDED, HALVES)], ids=str)
@pytest.mark.parametrize(('capability', 'keywords'), [((9, 0), {}), ((9, 0), {'algorithm': 'wgmma'}), ((7, 5), {})],
                         ids=['tiles', 'wgmma', 'before sm_80'])
def test_halves_in_tiles_are_rounded_once(monkeypatch, tiles_alone, problem, name, capability, keywords):
    """The second problem's reductions are cut in parts."""
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 1 if problem is ADDED[0] else 3)
    check_halves(Emulated(monkeypatch, capability=capability), problem, name, True, ['least'], **keywords)


@pytest.mark.parametrize('rate', [0.0, 1e9], ids=['tiles', 'direct'])
@pytest.mark.parametrize('per_sample', [False, True])
@pytest.mark.parametrize('map', ['forward', 'grad_input', 'grad_weight'])
def test_the_scratch_of_halves_is_as_large_as_plans_say(monkeypatch, map, per_sample, rate):
    monkeypatch.setattr(tiles, 'DIRECT_RATE', rate)
    gpu, problem = Emulated(monkeypatch), P('4d of some size', (4, 6, 9, 9), (2, 2, 3, 3), (16, 24), 1, 3, padding=1)
    shapes = {'x': problem.input_shape, 'y': problem.output_shape, 'w': problem.weight_shape}
    given = [kinds.read('operand', gpu.empty(shapes[role], 'float16')) for role in ROLES[map]]
    if map == 'grad_weight' and per_sample:
        given[2] = kinds.read('out', gpu.empty((problem.batch, *problem.weight_shape), 'float16'))
    plan = _cuda.plan(map, plan_runs.geometry_of(problem, per_sample=per_sample), given[0].dtype)
    for size in (plan.scratch_minimum, plan.scratch_size):
        scratch = kinds.read('scratch', gpu.empty((size,), 'float16'))
        most = max(program.scratch for program, _ in plan.steps(*given, None, scratch))
        assert size == -(-(most + ALIGNMENT) // 2)


@halves
@pytest.mark.parametrize('problem', ADDED[:1], ids=str)
def test_the_bits_of_halves_on_a_gpu(gpu, problem, name):
    """Whatever the buffer and the batch."""
    data = problem.floats(np.float64)
    x, w, y = (gpu.upload(array, name) for array in data[:3])
    wanted = [gpu.download(one) for one in three(problem, x, w, y)]
    sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=name, device='cuda')
    least = {'finput': gpu.empty((sizes.finput_minimum,), name),
             'fgrad_input': gpu.empty((sizes.fgrad_input_minimum,), name)}
    for one, other in zip(three(problem, x, w, y, **least), wanted):
        assert_same_bits(gpu.download(one), other)
    for n in range(problem.batch):
        x, y = (gpu.upload(array[n:n + 1], name) for array in (data.x, data.y))
        for one, other in zip(three(problem, x, w, y)[:2], wanted):
            assert_same_bits(gpu.download(one)[0], other[n])


@halves
@pytest.mark.parametrize('accumulate', [False, True])
@pytest.mark.parametrize('mode', ['zeros', 'circular'])
def test_folded_halves_are_rounded_once_on_a_gpu(gpu, name, accumulate, mode):
    kernel, settings = (5, 1, 2, 1), {'padding': (1, 0, 0, 0), 'padding_mode': mode}
    columns = np.ones((2, 3 * 10, 5 * 1 * 1 * 2))
    columns.reshape(2, 3, 5, 2, 5, 2)[:, :, :1] = columns.reshape(2, 3, 5, 2, 5, 2)[..., -1:, :] = HALVES[name]
    wanted = pyconv.fold(columns, (7, 1, 2, 2), kernel, **settings)
    out = gpu.upload(np.full(wanted.shape, 3), name)
    pyconv.fold(gpu.upload(columns, name), (7, 1, 2, 2), kernel, **settings, out=out, accumulate=accumulate)
    same(gpu, out, wanted + 3 * accumulate, name)


@halves
@pytest.mark.parametrize('accumulate', [False, True])
def test_the_sum_of_halves_that_lie_apart_is_rounded_once_on_a_gpu(monkeypatch, name, accumulate):
    """Of all samples, and of each."""
    gpu, y = Emulated(monkeypatch), np.zeros((2, 3, 5, 3, 3, 4, 5))
    y[..., 0, 0, 0] = 1
    y[:, :, 0, 0, 0, 0, 0] = HALVES[name]
    whole, size = gpu.upload(y, name), (2, 3, 5, 2, 2, 3, 4)
    part = EmulatedArray(whole.memory, whole.address, size, [step // y.itemsize for step in y.strides], whole.dtype)
    held = y[tuple(map(slice, size))]
    for axes, out in (((0, 2, 3, 4, 5, 6), np.full(3, 3)), ((2, 3, 4, 5, 6), np.full((2, 3), 3))):
        to = gpu.upload(out, name)
        plan_runs.now(_cuda.channel_sum(kinds.read('operand', part), 1, kinds.read('out', to), accumulate))
        same(gpu, to, held.sum(axes) + 3 * accumulate, name)


def test_the_sum_of_channels_that_lie_apart_on_a_gpu(monkeypatch):
    """Its axes cannot be made fewer: it goes volume by volume."""
    gpu = Emulated(monkeypatch)
    y = np.random.default_rng(3).integers(-3, 4, (2, 3, 4, 3, 3, 4, 5))
    whole, size = gpu.upload(y, 'float32'), (2, 3, 3, 2, 2, 3, 4)
    part = EmulatedArray(whole.memory, whole.address, size, [step // y.itemsize for step in y.strides], whole.dtype)
    wanted = y[tuple(map(slice, size))].sum(axis=(0, 2, 3, 4, 5, 6))
    same(gpu, pyconv.conv_bias(part), wanted, 'float32')


@pytest.mark.parametrize('pads', [(1, -1), (-1, 1)], ids=str)
def test_gradient_of_a_weight_all_of_whose_cells_are_padding(pads, dtype):
    """One volume, which is padding: its plan takes x and y in their own places, whatever the others' plan does."""
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-3, 4, (2, channels, 1, 2, 3, 3)).astype(dtype) for channels in (16, 18))
    wanted = np.broadcast_to(3 * y.sum((0, 2, 3, 4, 5))[:, None], (18, 16)).reshape(18, 16, 1, 1, 1, 1)
    out = np.ones_like(wanted)
    for keywords in ({}, {'out': (None, out, None), 'accumulate': True}):
        found = pyconv.convolution_backward(
            y, x, np.zeros_like(wanted), 1, (pads, *((0, 0),) * 3), 1, False, 0, 1, (False, True, False),
            padding_mode='constant', padding_value=3, **keywords)[1]
        assert_equal(found, wanted + bool(keywords), dtype)
