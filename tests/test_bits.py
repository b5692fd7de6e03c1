"""The same bits: for any number of threads, in any batch, again and again.

The data are random floats, so that another order of summation shows.
"""
import numpy as np
import pytest

import calls
import pyconv
from calls import assert_same_bits, poisoned
from problems import LAYERS, VARIED, P

every_layer = pytest.mark.parametrize('problem', VARIED + LAYERS, ids=str)


def all_maps(problem, data):
    """The three maps and the transposed convolution, those that take a bias with it."""
    return (calls.forward(problem, data.x, data.w, data.b), calls.grad_input(problem, data.w, data.y),
            calls.grad_weight(problem, data.x, data.y), calls.transposed(problem, data.y, data.w, data.c),
            pyconv.conv_bias(data.y))


@every_layer
def test_any_number_of_threads(problem, dtype):
    data = problem.floats(dtype)
    with pyconv.num_threads(1):
        alone = all_maps(problem, data)
    for threads in (*range(2, 9), 40):  # in few blocks, in more and in many: see test_pieces
        with pyconv.num_threads(threads):
            for many, one in zip(all_maps(problem, data), alone):
                assert_same_bits(many, one)
    pyconv.set_num_threads(3)
    for many, one in zip(all_maps(problem, data), alone):
        assert_same_bits(many, one)


@every_layer
def test_a_sample_in_any_batch(problem, dtype):
    """Alone, without a batch axis, and in every position of batches of 1 to 9, among samples that are not finite."""
    full = problem._replace(batch=9).floats(dtype)
    xs, ys = full.x, full.y
    forwards = [calls.forward(problem, x, full.w, full.b) for x in xs]
    backs = [calls.grad_input(problem, full.w, y) for y in ys]
    for batch in (1, 2, 3, 5, 8, 9):
        for start in {0, 9 - batch}:
            part = slice(start, start + batch)
            answer = calls.forward(problem, xs[part], full.w, full.b)
            back = calls.grad_input(problem, full.w, ys[part])
            for index in range(batch):
                assert_same_bits(answer[index], forwards[start + index])
                assert_same_bits(back[index], backs[start + index])
    spoiled_x, spoiled_y = xs.copy(), ys.copy()
    spoiled_x[1::2], spoiled_y[1::2] = np.nan, np.inf
    answer = calls.forward(problem, spoiled_x, full.w, full.b)
    back = calls.grad_input(problem, full.w, spoiled_y)
    for index in range(0, 9, 2):
        assert_same_bits(answer[index], forwards[index])
        assert_same_bits(back[index], backs[index])


# whose blocks one number of threads, batch or size of scratch has unrolled, another not
BOTH_WAYS = [
    P('5 by 5', (14, 14), (5, 5), (24, 32), padding=2, batch=4),
    P('3 by 3 strided', (28, 28), (3, 3), (16, 32), padding=1, stride=2, batch=4),
    P('groups of three axes', (2, 4, 2), (3, 3, 3), (64, 12), padding=1, stride=2, groups=4, batch=5),
    P('few channels', (4, 9, 5), (3, 3, 3), (2, 9), padding=1, stride=2, batch=3),
]


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('problem', LAYERS + BOTH_WAYS, ids=str)
def test_numbers_beside_those_that_are_not_finite(problem, value, dtype):
    """What one weight, or one element of a gradient, that is not finite leaves numbers is the same in any call too."""
    data = problem.floats(dtype)
    data.w.flat[0] = data.y.flat[0] = value

    def maps(samples=slice(None), finput=None, fgrad_input=None):
        answer = calls.forward(problem, data.x[samples], data.w, finput=finput)
        back = calls.grad_input(problem, data.w, data.y[samples], fgrad_input=fgrad_input)
        return [np.where(np.isfinite(result), result, 0) for result in (answer, back)]

    def assert_as_before(found):
        for result, first in zip(found, before):
            assert_same_bits(result, first[:len(result)])

    with pyconv.num_threads(1):
        before = maps()
        assert_as_before(maps(slice(1)))
        sizes = pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
        for one, other in ((sizes.finput, sizes.fgrad_input), (sizes.finput_minimum, sizes.fgrad_input_minimum)):
            assert_as_before(maps(finput=np.empty(one, dtype), fgrad_input=np.empty(other, dtype)))
    for threads in (2, 4, 7):
        with pyconv.num_threads(threads):
            assert_as_before(maps())


@every_layer
def test_the_same_sample_many_times(problem, dtype):
    """Every position of a batch is treated alike, whichever thread and block it falls to."""
    data = problem._replace(batch=1).floats(dtype)
    repeated = data._replace(x=np.repeat(data.x, 7, 0), y=np.repeat(data.y, 7, 0))
    answer = calls.forward(problem, repeated.x, data.w, data.b)
    back = calls.grad_input(problem, data.w, repeated.y)
    for index in range(7):
        assert_same_bits(answer[index], answer[0])
        assert_same_bits(back[index], back[0])


@every_layer
def test_again_and_into_out(problem, dtype):
    data = problem.floats(dtype)
    once = all_maps(problem, data)
    for _ in range(3):
        for again, first in zip(all_maps(problem, data), once):
            assert_same_bits(again, first)
    outs = [poisoned(first.shape, dtype) for first in once]
    calls.forward(problem, data.x, data.w, data.b, out=outs[0])
    calls.grad_input(problem, data.w, data.y, out=outs[1])
    calls.grad_weight(problem, data.x, data.y, out=outs[2])
    calls.transposed(problem, data.y, data.w, data.c, out=outs[3])
    pyconv.conv_bias(data.y, out=outs[4])
    for again, first in zip(outs, once):
        assert_same_bits(again, first)


@pytest.mark.parametrize('problem', LAYERS, ids=str)
def test_where_the_arrays_lie(problem, dtype):
    """Any offset inside a cache line gives the same bits."""
    data = problem.floats(dtype)
    alone = all_maps(problem, data)
    for offset in (1, 3, 7):
        moved = []
        for part in data:
            memory = np.empty(part.size + offset, dtype)
            memory[offset:] = part.ravel()
            moved.append(memory[offset:].reshape(part.shape))
        for again, first in zip(all_maps(problem, type(data)(*moved)), alone):
            assert_same_bits(again, first)
