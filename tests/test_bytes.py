"""Integers of 8 bits, and of 16 with a sign, into sums of 32, several channels at a time: four bytes where a processor
has an instruction for it, or two of 16 bits.

The answers are those of any other processor: exact modulo 2 ** 32. Operands fill their type, so that sums of four
products leave 16 bits and, of many channels, 32. The reference sums in float64, which holds all of them.
"""
import itertools
import logging
import re

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import last, per_channel
from plan_runs import geometry_of
from problems import P, maps
from pyconv import _cells, _known

PROBLEMS = [
    *(P(f'{ins} to {outs}', (6, 9), (3, 3), (ins, outs), padding=1)
      for ins, outs in ((3, 22), (4, 16), (5, 17), (6, 49), (7, 10), (22, 3), (33, 33), (64, 48))),
    *(P(f'{ins} to {outs} kernel 1', (7, 7), (1, 1), (ins, outs)) for ins, outs in ((21, 65), (64, 32), (67, 3))),
    *(P(f'groups of {ins} to {outs}', (5, 8), (2, 3), (3 * ins, 3 * outs), groups=3, padding=((1, 0), (-1, 2)))
      for ins, outs in ((4, 16), (9, 8), (16, 16), (3, 40))),
    P('stride 2', (13, 16), (3, 3), (10, 9), stride=2, padding=1),
    P('stride 3 and 2, dilation 2', (17, 19), (3, 4), (9, 20), stride=(3, 2), dilation=(2, 1), padding=3),
    P('stride above kernel', (17, 19), (2, 2), (16, 12), stride=3),
    P('no tap meets some cells', (11, 12), (2, 1), (10, 9), stride=(3, 2), dilation=3, padding=(1, 0)),
    P('16 taps side by side', (6, 23), (1, 16), (12, 12), padding=(0, 7)),
    P('17 taps side by side', (6, 23), (1, 17), (12, 12), padding=(0, 8)),
    P('5 by 5', (9, 11), (5, 5), (8, 16), padding=2),
    P('shared cells of three taps', (8, 30), (3, 3), (8, 16), padding=1),
    P('patches', (9, 9), (3, 3), (9, 16), stride=3),
    P('the size of the input', (4, 5), (4, 5), (24, 32)),
    P('far padding', (5, 4), (3, 3), (16, 5), padding=5),
    P('row', (57,), (5,), (14, 9), padding=2, dilation=3),
    P('planes', (4, 5, 7), (3, 2, 3), (8, 11), padding=1, stride=(1, 2, 1)),
    P('constant', (6, 7), (3, 3), (10, 17), padding=((2, 1), (0, 2)), padding_mode='constant', padding_value=100),
    *(P(f'{mode} at stride {stride}', (6, 7), (3, 3), (9, 16), padding=2, stride=stride, padding_mode=mode)
      for mode in ('circular', 'replicate', 'reflect') for stride in (1, 2)),
    P('reflect planes', (4, 5, 6), (3, 3, 3), (8, 8), padding=1, padding_mode='reflect'),
    P('sums beyond 32 bits', (3, 3), (3, 3), (15000, 4), batch=1),
]
TILED = [  # by Winograd's algorithm, where two channels are one cell of 16 bits
    P('tiles', (13, 22), (3, 3), (41, 36), padding=1),
    P('tiles along y', (14, 9), (3, 1), (96, 97), padding=(1, 0)),
    P('tiles of a row', (57,), (3,), (96, 97), padding=1),
    P('tiles of groups', (10, 12), (3, 3), (82, 72), groups=2, padding=1),
    P('tiles of planes', (4, 10, 10), (2, 3, 3), (48, 41), padding=1),
    P('tiles of phases', (19, 22), (6, 6), (64, 65), stride=2, padding=2),
    P('tiles and a constant', (12, 13), (3, 3), (45, 44), padding=((2, 1), (0, 2)), padding_mode='constant',
      padding_value=100),
    *(P(f'tiles and {mode}', (9, 10), (3, 3), (45, 33), padding=2, padding_mode=mode)
      for mode in ('circular', 'replicate', 'reflect')),
]
PROBLEMS += TILED
every_problem = pytest.mark.parametrize('problem', PROBLEMS, ids=str)
every_dtype = pytest.mark.parametrize('dtype', [np.int8, np.uint8, np.int16])
INTO = {'dtype': np.int32}  # without it, integers of 16 bits are summed in 64


def of_bytes(problem, dtype, extreme=False):
    """x, w and y that fill the type, or hold its ends and 0 alone; and biases of both ends' sums."""
    rng, info = np.random.default_rng(len(problem.name)), np.iinfo(dtype)
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    if extreme:
        parts = [rng.choice(np.array([info.min, 0, info.max, info.max], dtype), shape) for shape in shapes]
    else:
        parts = [rng.integers(info.min, info.max, shape, dtype, endpoint=True) for shape in shapes]
    limits = np.iinfo(np.int32)
    return *parts, *(rng.integers(limits.min, limits.max, n, np.int32) for n in problem.channels[::-1])


def modulo(array, bias=None):
    """Sums of float64 and a bias as 32 bits hold them."""
    whole = np.rint(array).astype(np.int64) + (0 if bias is None else bias.astype(np.int64))
    return whole.astype(np.int32)


def same(answer, wanted):
    assert answer.dtype == np.int32
    np.testing.assert_array_equal(answer, wanted)


def wants_them(name, problem, cell):
    return _cells.suits_cells(name, geometry_of(problem, padding_mode=problem.padding_mode), cell)


@pytest.mark.parametrize('cell', [2, 4])
@every_problem
def test_these_problems_want_them(problem, cell):
    assert wants_them('forward', problem, cell)
    few, folds = problem.name == '67 to 3 kernel 1', problem.padding_mode != 'zeros'
    assert wants_them('grad_input', problem, cell) != (few if cell == 2 else folds)


@pytest.mark.parametrize('extreme', [False, True], ids=['any', 'ends'])
@every_dtype
@every_problem
def test_exact(problem, dtype, extreme):
    """With a bias, added to what is there, into and from either order of memory."""
    x, w, y, b, c = of_bytes(problem, dtype, extreme)
    rank = problem.rank
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    forward, back = modulo(wanted.forward, per_channel(b, rank)), modulo(wanted.grad_input)
    for order in (np.ascontiguousarray, lambda array: last(array, rank)):
        same(calls.forward(problem, order(x), w, b, **INTO), forward)
        same(calls.grad_input(problem, w, order(y), **INTO), back)
        same(calls.transposed(problem, order(y), w, c, **INTO), modulo(wanted.grad_input, per_channel(c, rank)))
        to_y, to_x = order(np.full(y.shape, 7, np.int32)), order(np.full(x.shape, 7, np.int32))
        same(calls.forward(problem, x, w, b, out=to_y, accumulate=True, **INTO), forward + np.int32(7))
        same(calls.grad_input(problem, w, y, out=to_x, accumulate=True, **INTO), back + np.int32(7))


@every_dtype
@every_problem
def test_any_batch_threads_and_scratch(problem, dtype):
    x, w, y, *_ = of_bytes(problem._replace(batch=3), dtype)
    wanted = np.stack([calls.forward(problem, one, w, **INTO) for one in x])
    back = np.stack([calls.grad_input(problem, w, one, **INTO) for one in y])
    sizes = pyconv.workspace(x.shape, w.shape, **problem.keywords, dtype=dtype, result_dtype=np.int32)
    least = [np.full(max(1, size), 2 ** 31 - 1, np.int32)
             for size in (sizes.finput_minimum, sizes.fgrad_input_minimum)]
    for threads in (1, 2, 5):
        with pyconv.num_threads(threads):
            for first, second in ((None, None), least):
                same(calls.forward(problem, x, w, finput=first, **INTO), wanted)
                same(calls.grad_input(problem, w, y, fgrad_input=second, **INTO), back)


@every_dtype
def test_four_axes(dtype):
    rng, info = np.random.default_rng(4), np.iinfo(dtype)
    form = {'stride': (1, 2, 1, 1), 'dilation': (1, 1, 1, 1), 'groups': 1}
    x, w = (rng.integers(info.min, info.max, shape, dtype) for shape in ((2, 9, 3, 4, 5, 4), (10, 9, 2, 2, 3, 2)))
    wanted = reference.forward(x.astype(float), w.astype(float), lo=(0, 1, 1, 0), positions=(2, 3, 5, 3), **form)
    same(pyconv.convolution(x, w, None, form['stride'], (0, 1, 1, 0), 1, False, 0, 1, **INTO), modulo(wanted))


@every_dtype
def test_arrays_that_lie_anyhow(dtype):
    """Views with steps, of either sign, and memory that begins at any byte."""
    problem = PROBLEMS[2]
    x, w, y, b, _ = of_bytes(problem, dtype)
    wanted, back = calls.forward(problem, x, w, b, **INTO), calls.grad_input(problem, w, y, **INTO)
    for change in (lambda a: np.flip(np.flip(a).copy()), lambda a: np.repeat(a, 2, -1)[..., ::2],
                   lambda a: np.frombuffer(b'?' + a.tobytes(), dtype, offset=1).reshape(a.shape), np.asfortranarray):
        same(calls.forward(problem, change(x), change(w), b, **INTO), wanted)
        same(calls.grad_input(problem, change(w), change(y), **INTO), back)


AT_THE_END = """
import itertools, numpy as np, pyconv
from guarded import at_an_end
rng = np.random.default_rng(0)
for dtype, front in itertools.product((np.int8, np.uint8, np.int16), (False, True)):
    for x, w, form in (
            ((2, 5, 7, 9), (17, 5, 3, 3), dict(padding=1)), ((1, 8, 7, 7), (16, 8, 1, 1), {}),
            ((1, 13, 6, 6), (9, 13, 1, 1), {}), ((1, 68, 6, 6), (68, 68, 1, 1), {}),
            ((1, 16, 5, 19), (16, 8, 1, 16), dict(padding=(0, 8), groups=2)),
            ((1, 3, 30, 30), (32, 3, 7, 7), dict(stride=2, padding=3)), ((2, 9, 4, 4), (24, 9, 4, 4), {})):
        x, w = (rng.integers(0, 100, shape).astype(dtype) for shape in (x, w))
        form['dtype'] = np.int32
        wanted = pyconv.conv2d(x, w, **form)
        assert (pyconv.conv2d(at_an_end(x, front), at_an_end(w, front), **form) == wanted).all()
        y = wanted.astype(dtype)
        wanted = pyconv.conv2d_input(x.shape, w, y, **form)
        assert (pyconv.conv2d_input(x.shape, at_an_end(w, front), at_an_end(y, front), **form) == wanted).all()
"""


def test_nothing_around_operands_is_read(run_python):
    run_python(AT_THE_END)


def at_once(dtype):
    """How many channels of that type this processor sums at once, in the instruction set that it is told to use."""
    try:
        with open('/proc/cpuinfo') as file:
            flags = next((line.split() for line in file if line.startswith('flags')), [])
    except OSError:
        flags = []
    level = pyconv._backend.cpu.config()['level']
    if level in ('amx', 'avx512'):
        several = {'avx512_vnni', 'avx512vbmi'} <= set(flags) and dtype != np.uint16
        return 1 if not several else 4 if np.dtype(dtype).itemsize == 1 else 2
    return 2 if level == 'avx2' and dtype != np.uint16 else 1


def way_of_cells(dtype):
    """What a product of cells of several channels is called, of groups of more than a few."""
    of_matrices = pyconv._backend.cpu.config()['level'] == 'amx' and np.dtype(dtype).itemsize == 1
    return 'product of matrices' if of_matrices else MANY


MANY = 'matrix product of several channels'


def ways(caplog, call):
    """Which ways a call went that is planned anew."""
    caplog.clear()
    caplog.set_level(logging.DEBUG, 'pyconv')
    pyconv._backend.cpu.plan.cache_clear()
    _known.forget()
    call()
    said = [record.getMessage().rpartition(': ')[2] for record in caplog.records]
    return set(itertools.chain.from_iterable(re.split(r', (?=[a-z])', line) for line in said))


@every_dtype
@pytest.mark.parametrize('kernel', [(2, 1, 1, 2), (2, 1, 2, 2), (2, 2, 2, 2)])
@pytest.mark.parametrize('channels', [(4, 20), (5, 20), (9, 8)])
def test_a_constant_before_the_first_of_four_axes(channels, kernel, dtype):
    """Volumes of padding have the cells of the others, however few products three axes of the kernel make."""
    problem = P('volumes of a constant', (3, 2, 4, 3), kernel, channels, padding=((1, 1), (0, 0), (0, 1), (0, 0)),
                padding_mode='constant', padding_value=3)
    x, w, y, *_ = of_bytes(problem, dtype)
    wanted = maps(problem, *(part.astype(float) for part in (x, w, y)))
    settings = 1, problem.padding, 1, False, 0, 1
    mode = {'padding_mode': 'constant', 'padding_value': 3}
    same(pyconv.convolution(x, w, None, *settings, **mode, **INTO), modulo(wanted.forward))
    grad_x, grad_w, _ = pyconv.convolution_backward(y, x, w, *settings, (True, True, False), **mode, **INTO)
    same(grad_x, modulo(wanted.grad_input))
    same(grad_w, modulo(wanted.grad_weight))


@pytest.mark.parametrize(('channels', 'result', 'several'), [
    ((16, 16), np.int32, True), ((16, 16), np.int64, False), ((2, 3), np.int32, False)])
@pytest.mark.parametrize('dtype', [np.int8, np.uint8, np.int16, np.uint16])
def test_which_way(dtype, channels, result, several, caplog):
    """Sums of 64 bits are done as those of float64, few weights as those of other integers."""
    way = way_of_cells(dtype) if several and at_once(dtype) > 1 else 'matrix product'
    problem = P('any', (8, 8), (3, 3), channels)
    x, w, y, *_ = of_bytes(problem, dtype)
    wanted = {way}, {way}
    if result is np.int64:
        reals = [part.astype(float) for part in (x, w, y)]
        wanted = (ways(caplog, lambda: calls.forward(problem, *reals[:2])),
                  ways(caplog, lambda: calls.grad_input(problem, *reals[1:])))
    assert ways(caplog, lambda: calls.forward(problem, x, w, dtype=result)) == wanted[0]
    assert ways(caplog, lambda: calls.grad_input(problem, w, y, dtype=result)) == wanted[1]


@pytest.mark.parametrize(('value', 'dtype', 'channels', 'are_exact'), [
    (-128, np.int8, 3640, True), (-128, np.int8, 3641, False), (255, np.uint8, 910, True), (255, np.uint8, 911, False),
    (-2 ** 15, np.int16, 64, False)])
def test_tiles_are_exact(value, dtype, channels, are_exact, caplog):
    """Of so many channels, where all numbers are as large as can be, what tiles halve nearly fills 32 bits."""
    x, w = np.full((1, channels, 4, 4), value, dtype), np.full((24, channels, 3, 3), value, dtype)
    taps = pyconv.conv2d(np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3)), padding=1)
    wanted = modulo(np.broadcast_to(channels * value ** 2 * taps, (1, 24, 4, 4)))
    went = ways(caplog, lambda: same(pyconv.conv2d(x, w, padding=1, **INTO), wanted))
    several = at_once(dtype)
    assert went == {'Winograd F(2, 3)' if are_exact and several == 2 else
                    way_of_cells(dtype) if several > 1 else 'matrix product'}
    assert 'Winograd' not in str(ways(caplog, lambda: pyconv.conv2d(x, w, padding=1, algorithm='gemm', **INTO)))


@pytest.mark.skipif(at_once(np.int8) != 2, reason='these processors sum pairs of 16 bits')
@pytest.mark.parametrize('problem', TILED, ids=str)
def test_problems_of_tiles(problem, caplog):
    x, w, y, *_ = of_bytes(problem, np.int8)
    went = ways(caplog, lambda: calls.forward(problem, x, w)) | ways(caplog, lambda: calls.grad_input(problem, w, y))
    assert 'Winograd F(2, 3)' in went
