"""How the tiles of forward and grad_input store their results: in pairs and fours where channels are neighbours in
memory and whole words, else one by one. The same bits everywhere, and no byte beside them.
"""
import re

import numpy as np
import pytest

import calls
from calls import per_channel
from emulator import KernelError
from gpus import WAYS, Emulated, rounded, take_tile
from problems import P, maps
from pyconv._gpu import program, tiles
from test_cuda_defects import plant
from test_cuda_semantics import bits

pytestmark = pytest.mark.usefixtures('tiles_alone')
AROUND = 7.0  # what memory holds beside the results
# Positions and rows fill no tile; of 20 rows words are whole, of 18 those of 16 bits are not, of 17 none.
ROWS = {rows: P(f'{rows} rows', (9, 13), (3, 3), (10, rows), padding=1, stride=(1, 2), batch=3)
        for rows in (17, 18, 20)}
GROUPS = P('groups', (5, 6), (1, 1), (32, 24), groups=2, batch=2)
LARGE = P('rows of two tiles', (7, 6), (1, 1), (16, 140), batch=4)
# Where results of (samples, *size, channels) begin in a line of elements, and how many lie from a cell to the next.
LAST = {'last': (0, 0), 'last from the second element on': (1, 0), 'last from the fifth element on': (4, 0),
        'last from the ninth element on': (8, 0), 'last, seven more channels': (0, 7), 'last, eight more': (8, 8)}
FIRST = ['first', 'first from the second element on', 'turned']
WAYS_HERE = ['float16', 'wgmma bfloat16', 'tf32', 'float32', 'float64']


def target_in(gpu, shape, dtype, where):
    """(memory, the results in it, their place in a NumPy array of the memory's size)"""
    samples, channels, *size = shape
    if where in LAST:
        first, beside = LAST[where]
        cell = channels + beside
        line, place = np.prod([samples, *size]) * cell + first, lambda array: np.moveaxis(
            array[first:].reshape(samples, *size, cell)[..., :channels], -1, 1)
    else:
        first = 1 if 'second' in where else 0
        step = -1 if where == 'turned' else 1
        line, place = np.prod(shape) + first, lambda array: array[first:].reshape(shape)[..., ::step]
    memory = gpu.upload(np.full(line, AROUND), dtype)
    return memory, memory.view(place), place


def check(gpu, problem, way, where, accumulate=False):
    """forward into that memory, all of which is compared."""
    dtype, keywords = WAYS[way]
    data = problem.integers(low=-2, high=2)
    memory, out, place = target_in(gpu, problem.output_shape, dtype, where)
    x, w, b = (gpu.upload(array, dtype) for array in (data.x, data.w, data.b))
    calls.forward(problem, x, w, b, out=out, accumulate=accumulate, **keywords)
    wanted = np.full(memory.shape, AROUND)
    place(wanted)[...] = maps(problem, *data[:3]).forward + per_channel(data.b, 2) + AROUND * accumulate
    assert np.array_equal(gpu.download(memory), rounded(wanted, dtype))


@pytest.fixture
def adjacent(monkeypatch):
    """What the plans say of their targets."""
    found, real = [], program.are_adjacent
    monkeypatch.setattr(program, 'are_adjacent', lambda *given: found.append(real(*given)) or found[-1])
    return found


@pytest.mark.parametrize('where', [*LAST, *FIRST])
@pytest.mark.parametrize('rows', ROWS)
@pytest.mark.parametrize('way', WAYS_HERE)
def test_where_results_lie(monkeypatch, adjacent, way, rows, where):
    """A word has four results of 16 bits, else two; the array begins at a multiple of 16 bytes or it does not count."""
    check(Emulated(monkeypatch), ROWS[rows], way, where)
    size = {'float16': 2, 'bfloat16': 2, 'float32': 4, 'float64': 8}[WAYS[way][0]]
    word = {2: 4, 4: 2, 8: 2}[size]
    first, beside = LAST.get(where, (0, 0))
    wanted = where in LAST and rows % word == 0 and (rows + beside) % word == 0 and first * size % 16 == 0
    assert adjacent[-1] == wanted                                 # before it those of workspaces


@pytest.mark.sparse
@pytest.mark.parametrize('where', ['last', 'last from the second element on', 'first'])
@pytest.mark.parametrize('way', WAYS_HERE)
def test_added_to_what_is_there_in_parts_and_groups(monkeypatch, way, where):
    """The partial sums too are stored in pairs where they are in whole words."""
    gpu = Emulated(monkeypatch)
    check(gpu, ROWS[20], way, where, accumulate=True)
    check(gpu, GROUPS, way, where)
    for size in (0, 1, 3):
        take_tile(monkeypatch, size)
        check(gpu, LARGE, way, where)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 3)
    for rows in ROWS:
        check(gpu, ROWS[rows], way, where)


@pytest.mark.parametrize('axis', [0, 1, 2])
def test_two_samples_lines_or_cells_between_words(monkeypatch, adjacent, axis):
    """Two more elements behind each of two: the second begins with no word."""
    gpu, problem = Emulated(monkeypatch), P('two', (2, 2), (1, 1), (8, 20), batch=2)
    shape = [2, 2, 2, 20]
    steps = np.cumprod([1, *shape[:0:-1]])[::-1]
    steps[:axis + 1] += 2 * 2**np.arange(axis, -1, -1)
    data = problem.integers(low=-2, high=2)
    memory = gpu.upload(np.full(steps[0] * 2, AROUND), 'float16')
    wanted = np.full(memory.shape, AROUND)

    def place(array):
        return np.moveaxis(np.lib.stride_tricks.as_strided(array, shape, steps * array.itemsize), -1, 1)

    place(wanted)[...] = maps(problem, *data[:3]).forward
    x, w = (gpu.upload(array, 'float16') for array in data[:2])
    calls.forward(problem, x, w, out=memory.view(place))
    assert np.array_equal(gpu.download(memory), wanted) and not adjacent[-1]


@pytest.mark.parametrize('beside', [2, 4])
def test_phases_begin_between_words(monkeypatch, adjacent, beside):
    """Of grad_input: every other cell begins with a word of four, but of two more channels not the first of them."""
    gpu, problem = Emulated(monkeypatch), P('phases', (6, 8), (3, 3), (20, 8), padding=1, stride=2)
    monkeypatch.setitem(LAST, 'beside', (0, beside))
    data = problem.integers(low=-2, high=2)
    memory, out, place = target_in(gpu, problem.input_shape, 'float16', 'beside')
    calls.grad_input(problem, *(gpu.upload(array, 'float16') for array in (data.w, data.y)), out=out)
    wanted = np.full(memory.shape, AROUND)
    place(wanted)[...] = maps(problem, *data[:3]).grad_input
    assert np.array_equal(gpu.download(memory), wanted)
    assert adjacent[-4:] == ([True] * 4 if beside == 4 else [True, False, True, False])


@pytest.mark.parametrize('way', [way for way in WAYS if way != 'float64 m16n8k16'])
def test_the_same_bits_everywhere(monkeypatch, way):
    """Of numbers that have to be rounded, and with values that are not finite among them."""
    gpu, (dtype, keywords) = Emulated(monkeypatch), WAYS[way]
    data = ROWS[20].floats(np.float32)
    data.x[1, 2, 0, 1] = np.inf
    x, w, b = (gpu.upload(array, dtype) for array in (data.x * 1e3, data.w * 1e3, data.b))
    found = []
    for where in ('last', 'last from the second element on', 'first'):
        _, out, _ = target_in(gpu, ROWS[20].output_shape, dtype, where)
        calls.forward(ROWS[20], x, w, b, out=out, **keywords)
        found.append(np.ascontiguousarray(gpu.download(out)).tobytes())
    assert found[0] == found[1] == found[2]
    assert bits(gpu, out) == found[0]


LAST_AND_FIRST = 'last', 'first'
# After five stages copies are on their way to where the places of lines will be.
PLANTED = ROWS[20]._replace(channels=(32, 20))
DEFECTS = {
    'copies are not waited for': (r'\n    wait\(0\)', '', 'last', 'copy|flight|wait'),
    'places are written too early': ('    wait\\(0\\)\n    barrier\\(\\)', '    wait(0)', 'last', 'race'),
    'places are read too early': ('    barrier\\(\\)\n(    added)', '\\1', 'last', 'race'),
    'a row beyond the last is stored': (r' & \(left\w* > \d+\)', '', *LAST_AND_FIRST),
    'a position beyond the last is stored': (r' & \(m_in\d+ < i32\(positions\)\)', '', *LAST_AND_FIRST),
    'a lane keeps what the one beside it should have': (
        r'neighbour\((select\([^()]*\))\)', r'\1', *LAST_AND_FIRST),
    'words have changed places': (
        r'\(select\((is_odd\w*), (given\w*), (kept\w*)\), select\(\1, \3, \2\)\)', r'(\3, \2)', *LAST_AND_FIRST),
    'halves have changed places': (r'pair_f16\((\w+), (\w+)\)', r'pair_f16(\2, \1)', *LAST_AND_FIRST),
    'an odd lane has the columns of an even one': (r'\(lane & 1\) \* 6', '0', 'last', None),
    'columns of an odd lane begin at its own': (r'odd_in(\d+) \* 2', '0', 'first', None),
    'an odd lane has the lines of an even one': (r'odd_in(\d+) \* 8', '0', 'first', None),
    'the bias is that of the next channel': (r'added\w* = shared_f32\(i32\(biases \+ \(lane_column \+ 0\)',
                                             'added = shared_f32(i32(biases + (lane_column + 1)', 'last', None),
}


@pytest.mark.parametrize('defect', DEFECTS)
def test_defect(monkeypatch, defect):
    pattern, replacement, *places = DEFECTS[defect]
    places, words = (places, None) if set(places) == set(LAST_AND_FIRST) else (places[:1], places[1])
    for where in places:
        gpu = Emulated(monkeypatch)
        plant(gpu, 'gather', lambda text: re.sub(pattern, replacement, text))
        with pytest.raises((KernelError, AssertionError), match=words) as caught:
            check(gpu, PLANTED, 'float16', where)
        assert 'nothing to change' not in str(caught.value)


@pytest.mark.parametrize(('rows', 'where'), [
    (20, 'last from the second element on'), (20, 'last, seven more channels'), (18, 'last'), (20, 'first')])
def test_words_that_are_not_whole(monkeypatch, rows, where):
    """A plan that took them for whole would be found out."""
    monkeypatch.setattr(program, 'are_adjacent', lambda *_: True)
    with pytest.raises((KernelError, AssertionError)):
        check(Emulated(monkeypatch), ROWS[rows], 'float16', where)
