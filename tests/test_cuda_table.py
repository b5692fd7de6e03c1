"""Types, padding modes and samples' gradients on the GPU through the public functions, against the same on the CPU."""
import numpy as np
import pytest

import calls
import pyconv
import test_dtypes
from gpus import Emulated
from problems import P, maps
from test_cuda import same
from test_cuda_padding import settings_of, wanted_of
from test_cuda_types import complex_data
from test_dtypes import addable, either, result_of, results, stored

PROBLEM = P('2d table', (6, 7), (3, 2), (4, 6), groups=2, padding=((2, 1), (1, 3)), stride=(2, 1))
CROPPED = P('2d table cropped', (7, 8), (3, 2), (3, 4), padding=((-2, 4), (3, -1)))


def data_of(problem, dtype):
    """(x, w, y, b, c) of that dtype, biases of the result's."""
    data = complex_data(problem) if dtype.startswith('complex') else problem.integers(low=0)
    result = 'int32' if dtype == 'uint8' else 'int64' if dtype == 'int16' else dtype
    return [part.astype(dtype) for part in data[:3]] + [part.astype(result) for part in data[3:]], result


@pytest.mark.parametrize('dtype', ['complex64', 'uint8', 'int16', 'uint64'])
@pytest.mark.parametrize('mode', ['zeros', 'replicate', 'constant'])
def test_every_function(gpu, dtype, mode):
    (x, w, y, b, c), result = data_of(PROBLEM, dtype)
    settings = settings_of(mode) if mode != 'constant' else {'padding_mode': mode, 'padding_value': 3}
    public = {'stride': PROBLEM.stride, 'padding': PROBLEM.padding}

    def found(upload):
        given = [upload(part, part.dtype.name) for part in (x, w, y, b, c)]
        to_x, to_w, to_y, to_b, to_c = given
        yield calls.forward(PROBLEM, to_x, to_w, to_b, **settings)
        yield calls.grad_input(PROBLEM, to_w, to_y, **settings)
        yield calls.grad_weight(PROBLEM, to_x, to_y, **settings)
        yield calls.grad_weight(PROBLEM, to_x, to_y, per_sample=True, **settings)
        yield calls.transposed(PROBLEM, to_y, to_w, to_c, **settings)
        yield pyconv.conv_bias(to_y)
        columns = pyconv.unfold(to_x, PROBLEM.kernel, **public, **settings)
        yield columns
        yield pyconv.fold(columns, PROBLEM.size, PROBLEM.kernel, **public, **settings)
        yield calls.grad_weight(PROBLEM, None, to_y, finput=columns, **settings)

    for on_gpu, on_cpu in zip(found(gpu.upload), found(lambda array, dtype: array), strict=True):
        same(gpu, on_gpu, on_cpu, on_cpu.dtype.name)


@pytest.mark.parametrize('mode', ['circular', 'reflect', 'constant'])
@pytest.mark.parametrize('accumulate', [False, True])
def test_cropped_on_one_side_and_padded_on_the_other(gpu, mode, accumulate):
    data, settings = CROPPED.integers(), settings_of(mode)
    wanted = wanted_of(CROPPED, mode, data)
    x, w, y, b, c = (gpu.upload(part, 'float32') for part in data)
    for call, given, result in ((calls.forward, (x, w, b), wanted.forward + calls.per_channel(data.b, 2)),
                                (calls.grad_input, (w, y), wanted.grad_input),
                                (calls.grad_weight, (x, y), wanted.grad_weight)):
        out = gpu.upload(np.full(result.shape, 2), 'float32')
        assert call(CROPPED, *given, out=out, accumulate=accumulate, **settings) is out
        same(gpu, out, result + 2 * accumulate, 'float32')


def check_results(gpu, problem, transposed, name, mode='zeros', **more):
    """Of the convolution, backward, double backward and jvp, against the definition."""
    problem = problem._replace(padding_mode=mode, padding_value=3 * (mode == 'constant'))
    dtype = np.dtype(name)
    result = np.dtype(more.get('dtype', result_of(dtype)))
    data, other = (test_dtypes.data_of(problem, dtype, seed, addable(dtype), result) for seed in (0, 1))

    def given(part):
        return gpu.upload(part, part.dtype.name)

    for found, exact in results(problem, transposed, data, other, given, **more):
        same(gpu, found, stored(exact, result), result.name)
        assert gpu.download(found).dtype == result or name == 'float16'  # which may come as float32


every_mode = pytest.mark.parametrize('mode', ['zeros', 'constant', 'circular', 'replicate', 'reflect'])
types = pytest.mark.parametrize('dtype', ['float16', 'complex64', 'int16'])


@either
@every_mode
@types
def test_derivatives(gpu, transposed, dtype, mode):
    check_results(gpu, PROBLEM, transposed, dtype, mode)


@either
@every_mode
@types
def test_four_axes(gpu, transposed, dtype, mode):
    problem = P('4d table', (3, 2, 4, 3), (2, 2, 3, 1), (4, 2), groups=2, padding=(1, 1, 2, 0), stride=(2, 1, 1, 2))
    check_results(gpu, problem, transposed, dtype, mode)


@pytest.mark.parametrize('channels', [(1, 1), (3, 4)], ids=str)
@either
def test_launches_do_not_grow_with_the_groups(monkeypatch, transposed, channels):
    """Those of double backward, as on the CPU the runs of plans: see test_unusual."""
    gpu, launched = Emulated(monkeypatch), []
    for groups in (2, 7):
        sizes = *((2, groups * count, 4, 4) for count in channels), (groups * channels[1], channels[0], 3, 3)
        x, y, w = (gpu.upload(np.ones(size), 'float32') for size in sizes)
        x, y = (y, x) if transposed else (x, y)
        before = gpu.device.launches
        pyconv.convolution_double_backward(
            x, w, None, y, w, x, 1, 1, 1, transposed, 0, groups, (True, True, True))
        launched.append(gpu.device.launched[before:])
    assert launched[0] == launched[1] and launched[0]


def test_without_a_batch_axis(gpu):
    """The gradient of its one sample has no batch axis either."""
    (x, w, y, *_), _ = data_of(PROBLEM, 'float32')
    x, y = x[0], y[0]
    wanted = calls.grad_weight(PROBLEM, x, y, per_sample=True)
    assert wanted.shape == PROBLEM.weight_shape
    same(gpu, calls.grad_weight(PROBLEM, gpu.upload(x, 'float32'), gpu.upload(y, 'float32'), per_sample=True), wanted,
         'float32')


@either
@pytest.mark.parametrize(('dtype', 'chosen'), [('int16', 'int32'), ('int8', 'int64'), ('uint64', 'int32')])
def test_whole_numbers_are_summed_as_asked(gpu, transposed, dtype, chosen):
    """All that a call returns."""
    check_results(gpu, PROBLEM, transposed, dtype, dtype=chosen)


def test_the_functions_with_a_rank_sum_whole_numbers_as_asked(gpu):
    """dtype= chooses the result, and so the bias; the default is int64."""
    (x, w, y, b, _), _ = data_of(PROBLEM, 'int16')
    wanted = maps(PROBLEM, *(part.astype(np.int64) for part in (x, w, y)))
    x, w, y, narrow = (gpu.upload(part, kind) for part, kind in (
        (x, 'int16'), (w, 'int16'), (y, 'int16'), (b, 'int32')))
    for found, exact in ((calls.forward(PROBLEM, x, w, narrow, dtype='int32'),
                          wanted.forward + calls.per_channel(b, PROBLEM.rank)),
                         (calls.grad_input(PROBLEM, w, y, dtype='int32'), wanted.grad_input),
                         (calls.grad_weight(PROBLEM, x, y, dtype='int32'), wanted.grad_weight),
                         (calls.transposed(PROBLEM, y, w, dtype='int32'), wanted.grad_input)):
        same(gpu, found, exact, 'int32')
        assert gpu.download(found).dtype == np.int32
    with pytest.raises(TypeError, match='bias must have the dtype of the result, int64; got int32'):
        calls.forward(PROBLEM, x, w, narrow)


def test_workspace_of_modes_and_samples(gpu):
    """What it says is enough."""
    data = CROPPED.integers()
    x, w, y = (gpu.upload(part, 'float32') for part in data[:3])
    shapes = CROPPED.input_shape, CROPPED.weight_shape
    for settings, call in (({'padding_mode': 'circular'}, lambda **more: calls.grad_input(CROPPED, w, y, **more)),
                           ({'per_sample': True}, lambda **more: calls.grad_weight(CROPPED, x, y, **more))):
        sizes = pyconv.workspace(*shapes, padding=CROPPED.padding, device='cuda', **settings)
        name = 'finput' if 'per_sample' in settings else 'fgrad_input'
        wanted = gpu.download(call(**settings))
        for size in (getattr(sizes, name), getattr(sizes, f'{name}_minimum')):
            same(gpu, call(**settings, **{name: gpu.empty((size,), 'float32')}), wanted, 'float32')
