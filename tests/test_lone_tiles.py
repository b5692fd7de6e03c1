"""Images cut by how many cells their lattices have, one to three along each axis: the same results, bits and signs as
in one piece."""
import math
from itertools import product

import numpy as np
import pytest

import pyconv
import test_winograd as winograd
from calls import assert_equal
from problems import P
from pyconv import _blocks, _known, _lattices, _pieces, _winograd
from test_winograd_cut import parts_of

LONE = [
    P('two cells of each lattice', (8, 6), (3, 3), (3, 5), padding=(4, 3), dilation=(4, 3)),
    P('three cells of each lattice', (9, 6), (3, 3), (4, 20), padding=(3, 2), dilation=(3, 2), batch=3),
    P('one, two and three', (14, 15), (3, 3), (9, 33), padding=(8, 6), dilation=(8, 6)),
    P('two and one along x', (12, 19), (3, 3), (4, 9), padding=(6, 15), dilation=(6, 15), batch=1),
    P('many lattices', (70, 75), (3, 3), (5, 4), padding=(33, 31), dilation=(33, 31)),
    P('the widest step', (5, 300), (3, 3), (3, 4), padding=(2, 128), dilation=(2, 128), batch=1),
    P('one cell along y', (4, 30), (3, 3), (7, 8), padding=(4, 13), dilation=(4, 13)),
    P('one cell along x', (30, 4), (3, 3), (7, 8), padding=(13, 4), dilation=(13, 4)),
    P('lattices of a row', (7, 40), (1, 3), (9, 17), padding=(0, 18), dilation=(1, 18)),
    P('lattices of a column', (40, 7), (3, 1), (9, 17), padding=(18, 0), dilation=(18, 1)),
    P('lattices of a sequence', (50,), (3,), (8, 9), padding=21, dilation=21, batch=4),
    P('lone tiles of many channels', (6, 8), (3, 3), (140, 150), padding=(2, 3), dilation=(2, 3)),
    P('lone tiles in groups', (10, 13), (3, 3), (12, 18), groups=3, padding=(4, 5), dilation=(4, 5), batch=5),
]
CROPPED = [  # of which grad_input has padding
    P('lattices of some rows', (9, 40), (1, 3), (5, 17), padding=((-2, -1), (18, 18)), dilation=(1, 18)),
    P('lattices of some columns', (40, 9), (3, 1), (5, 17), padding=((18, 18), (-1, -3)), dilation=(18, 1)),
]
PADDED = [  # of which grad_input is cropped
    P('with rows of padding', (7, 9), (1, 3), (3, 5), padding=((20, 0), (4, 4)), dilation=(1, 4)),
    P('with columns of padding', (9, 7), (3, 1), (3, 5), padding=((4, 4), (1, 2)), dilation=(4, 1)),
]
NOT_LONE = [
    P('a cell more', (13, 12), (3, 3), (4, 5), padding=4, dilation=4),
    P('a smaller result', (8, 9), (3, 3), (4, 5), padding=(4, 3), dilation=4),
    P('without padding', (9, 9), (3, 3), (4, 5), dilation=3),
    P('apart', (9, 9), (3, 3), (4, 5), padding=3, dilation=3, stride=2),
    P('with depth', (2, 8, 8), (1, 3, 3), (4, 5), padding=(0, 4, 4), dilation=(1, 4, 4)),
    P('beside each other', (3, 3), (3, 3), (4, 5), padding=1),
    P('too wide', (1, 300), (1, 3), (4, 5), padding=(0, 129), dilation=(1, 129)),
    P('apart along the other axis', (9, 7), (3, 1), (3, 5), stride=(1, 2), padding=(4, 0), dilation=(4, 1)),
    P('apart along y', (7, 9), (1, 3), (3, 5), stride=(2, 1), padding=(0, 4), dilation=(1, 4)),
    P('of five taps', (8, 8), (3, 5), (4, 5), padding=(4, 8), dilation=4),
]
MAPS = 'forward', 'grad_input'
every_problem = pytest.mark.parametrize('problem', LONE + CROPPED + PADDED, ids=str)


@pytest.fixture
def lone_everywhere(monkeypatch):
    monkeypatch.setattr(_lattices, 'PAYS', math.inf)
    monkeypatch.setattr(_pieces, 'is_swapped', lambda name, geometry: False)
    _known.forget()
    yield
    _known.forget()


def lone(parts):
    return [piece for piece, _ in parts if _lattices.is_lone(piece)]


def places(piece):
    """Of every output: its element of a channel of target, and those of source that its taps read, by their weights."""
    found = {}
    steps, outputs = [], []
    for axis, n in zip(piece.axes, piece.tile):
        count = _winograd.of_frequency(piece).axes[len(steps)].positions
        steps.append([q + i * axis.tap_step for i in range(abs(n)) for q in range(count)] if n < 0 else
                     list(range(axis.positions)))
    for z in steps[0]:
        for y in steps[1]:
            outputs += [(z, y, x) for x in steps[2]]
    for position in outputs:
        read = {}
        for tap in np.ndindex(*(axis.taps for axis in piece.axes)):
            cells = [axis.step * q + axis.offset + axis.tap_step * t for axis, q, t in zip(piece.axes, position, tap)]
            if all(0 <= cell < axis.size for axis, cell in zip(piece.axes, cells)):
                weight = piece.weight.base + sum(t * s for t, s in zip(tap, piece.weight.axes))
                read[weight] = piece.source.base + sum(c * s for c, s in zip(cells, piece.source.axes))
        at = piece.target.base + sum(q * s for q, s in zip(position, piece.target.axes))
        assert at not in found
        found[at] = read
    return found


@pytest.mark.parametrize('name, problem', [
    *product(MAPS, LONE), *product(MAPS[:1], CROPPED), *product(MAPS[1:], PADDED)], ids=str)
def test_parts_make_every_product_once(name, problem, lone_everywhere):
    parts = parts_of(name, problem)
    assert lone(parts) and all(blocking.way == _blocks.GATHER_WINOGRAD for piece, blocking in parts
                               if _lattices.is_lone(piece))
    [(whole, _)] = parts_of(name, problem, 'gemm')
    made = {}
    for piece, _ in parts:
        here = places(piece)
        assert not made.keys() & here.keys()
        made.update(here)
    assert made == places(whole)


@pytest.mark.parametrize('name, problem', [
    *product(MAPS, NOT_LONE), *product(MAPS[:1], PADDED), *product(MAPS[1:], CROPPED)], ids=str)
def test_what_has_none(name, problem, lone_everywhere):
    assert not lone(parts_of(name, problem))


@every_problem
def test_nor_has_the_gradient_of_the_weight(problem, lone_everywhere):
    assert not lone(parts_of('grad_weight', problem))


@pytest.mark.parametrize('channels, size, dilation, has_them', [
    ((2048, 256), 28, 12, True), ((2048, 256), 28, 18, True), ((256, 256), 65, 36, True), ((64, 64), 16, 8, True),
    ((256, 256), 28, 24, False), ((16, 16), 32, 16, False), ((256, 1024), 20, 8, False)])
def test_where_that_pays(channels, size, dilation, has_them):
    """As measured."""
    layer = P('layer', (size, size), (3, 3), channels, padding=dilation, dilation=dilation, batch=1)
    for name in MAPS:
        assert bool(lone(parts_of(name, layer))) is has_them
        assert not lone(parts_of(name, layer, 'gemm'))


@every_problem
def test_exact_for_small_integers(problem, dtype, lone_everywhere):
    """The transforms multiply by a half and a quarter only."""
    winograd.test_small_tiles_are_exact_for_small_integers(problem, dtype)


@every_problem
def test_bits(problem, dtype, lone_everywhere):
    winograd.test_bits(problem, dtype)


@every_problem
def test_any_buffer(problem, dtype, lone_everywhere):
    winograd.test_any_buffer(problem, dtype)


@every_problem
@pytest.mark.parametrize('copied', winograd.COPIED, ids=str)
def test_of_what_is_copied(problem, copied, lone_everywhere):
    winograd.test_lattices_of_what_is_copied(problem, copied)


@every_problem
@pytest.mark.parametrize('value', [np.nan, -np.inf], ids=str)
def test_not_finite(problem, value, lone_everywhere):
    winograd.test_not_finite(problem, value)


@pytest.mark.parametrize('problem', LONE[:4], ids=str)
def test_added_to_what_is_there(problem, dtype, lone_everywhere):
    winograd.test_added_to_what_is_there(problem, dtype)


@pytest.mark.parametrize('size, tap_step', [(8, 4), (9, 3)])
def test_what_only_a_transform_makes_infinite(size, tap_step, lone_everywhere):
    """Sums of two large cells leave float32 where no sum of the definition does."""
    x, w = np.zeros((2, 3, size, size), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    x[1] = 3e38
    w[:, :, 1, 1] = 0.25
    keywords = {'padding': tap_step, 'dilation': tap_step}
    sums = pyconv.conv2d(x, w, algorithm='gemm', **keywords)
    assert_equal(pyconv.conv2d(x, w, **keywords), sums, np.dtype(np.float32))


@pytest.mark.parametrize('channels, size, dilation', [(64, 16, 8), (128, 28, 12), (256, 9, 3), (64, 65, 24)])
def test_errors_stay_those_of_sums(channels, size, dilation):
    """Relative Frobenius errors against float64: within 1e-6, and at most a half above those of sums."""
    problem = P('layer', (size, size), (3, 3), (channels, channels), padding=dilation, dilation=dilation)
    assert lone(parts_of('forward', problem))
    data, exact = problem.floats(np.float32), problem.floats()
    x, w, y = (part.astype(np.float32).astype(float) for part in exact[:3])
    keywords = {'padding': dilation, 'dilation': dilation}

    def errors(algorithm):
        found = (pyconv.conv2d(data.x, data.w, **keywords, algorithm=algorithm),
                 pyconv.conv2d_input(data.x.shape, data.w, data.y, **keywords, algorithm=algorithm))
        rights = (pyconv.conv2d(x, w, **keywords, algorithm='gemm'),
                  pyconv.conv2d_input(x.shape, w, y, **keywords, algorithm='gemm'))
        return [np.linalg.norm(one - right) / np.linalg.norm(right) for one, right in zip(found, rights)]
    tiles, sums = errors('auto'), errors('gemm')
    assert max(tiles) <= 1e-6 and all(tile <= 1.5 * of_sum for tile, of_sum in zip(tiles, sums))


def test_they_are_told(caplog):
    x, w = np.zeros((1, 256, 28, 28), np.float32), np.zeros((256, 256, 3, 3), np.float32)
    with caplog.at_level('DEBUG', 'pyconv'):
        pyconv.conv2d(x, w, padding=14, dilation=14)
        pyconv.conv2d(x[:, :, :, :26], w, padding=13, dilation=(13, 13))
        pyconv.conv2d(np.zeros((1, 64, 129, 129), np.float32), w[:64, :64], padding=43, dilation=43)
    assert [message.rpartition(': ')[2] for message in caplog.messages] == ['lone tiles'] * 3
