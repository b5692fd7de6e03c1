"""Pieces in parts, of which one has whole tiles and the others none: the same results, bits and signs as any piece."""
import math

import numpy as np
import pytest

import pyconv
import test_winograd as winograd
from problems import P
from pyconv import _blocks, _known, _phases, _pieces, _tiled
from pyconv._geometries import convolved

CUT = [problem for problem in winograd.TILED if problem.name not in ('many tiles', 'tiles of many channels')] + [
    P('a tile and one more', (3, 3), (3, 3), (4, 5), padding=1),
    P('a tile and one more of a row', (6, 7), (3, 3), (8, 9), padding=(1, 0)),
    P('five and four of each lattice', (28, 28), (3, 3), (4, 20), padding=6, dilation=6),
    P('less than one of each lattice', (10, 11), (3, 3), (4, 20), padding=4, dilation=(2, 4)),
]
every_problem = pytest.mark.parametrize('problem', CUT, ids=str)


def has_whole_tiles(piece):
    return all(n == 1 or 0 < axis.positions and axis.positions % (n * axis.tap_step) == 0
               for axis, n in zip(piece.axes, piece.tile))


@pytest.fixture
def cut_everywhere(monkeypatch):
    monkeypatch.setattr(_tiled, 'tiling_pays', lambda name, piece: has_whole_tiles(piece))
    monkeypatch.setattr(_tiled, 'CUT_PAYS', math.inf)
    monkeypatch.setattr(_pieces, 'is_swapped', lambda name, geometry: False)
    _known.forget()
    yield
    _known.forget()


def parts_of(name, problem, algorithm='auto'):
    """The pieces of a map, and their ways."""
    geometry, _ = convolved(problem.rank, problem.input_shape, problem.weight_shape, None, None,
                            *problem.keywords.values())
    return _phases.choose_all(name, _pieces.pieces(name, geometry), geometry.groups, winograd.TILE, algorithm)


def positions_of(piece):
    """Each position's place in target."""
    return np.stack(np.meshgrid(*(axis.start + axis.lattice * np.arange(axis.positions) for axis in piece.axes),
                                indexing='ij'), -1).reshape(-1, 3)


@every_problem
@pytest.mark.parametrize('algorithm', ['auto', 'winograd'])
def test_parts_have_every_position_once(problem, algorithm, cut_everywhere):
    for name, size in (('forward', problem.output_shape[2:]), ('grad_input', problem.size)):
        parts = parts_of(name, problem, algorithm)
        if any(piece.turned for piece, _ in parts):  # positions are samples
            continue
        found = np.concatenate([positions_of(piece) for piece, _ in parts])
        assert len(found) == len(np.unique(found, axis=0)) == math.prod(size)
        assert all(blocking.way == _blocks.GATHER_WINOGRAD for piece, blocking in parts if max(piece.tile) > 1)
        assert all(map(has_whole_tiles, (piece for piece, _ in parts)))


def test_most_of_these_problems_are_cut(cut_everywhere):
    """Else the rest of this file would say nothing."""
    counts = [len(parts_of(name, problem)) for name in ('forward', 'grad_input') for problem in CUT]
    assert sum(n > 1 for n in counts) >= 100 and sum(n == 3 for n in counts) >= 40


@pytest.mark.parametrize('channels, size, dilation, is_cut', [
    ((256, 256), 28, 6, True), ((2048, 256), 28, 6, True), ((64, 64), 56, 12, True),  # five and four of each lattice
    ((256, 256), 28, 4, False), ((256, 256), 28, 2, False), ((256, 64), 65, 6, False),  # tiles pay for all of them
    ((256, 256), 28, 9, False), ((256, 256), 7, 1, False), ((8, 8), 28, 6, False)])
def test_where_that_pays(channels, size, dilation, is_cut):
    """As measured, of layers with taps far apart."""
    layer = P('layer', (size, size), (3, 3), channels, padding=dilation, dilation=dilation, batch=1)
    for name in ('forward', 'grad_input'):
        assert len(parts_of(name, layer)) == (3 if is_cut else 1)
        assert len(parts_of(name, layer, 'gemm')) == 1
    assert len(parts_of('grad_weight', layer)) == 1


@every_problem
def test_exact_for_small_integers(problem, dtype, cut_everywhere):
    winograd.test_small_tiles_are_exact_for_small_integers(problem, dtype)


@every_problem
def test_bits(problem, dtype, cut_everywhere):
    winograd.test_bits(problem, dtype)


@every_problem
def test_any_buffer(problem, dtype, cut_everywhere):
    winograd.test_any_buffer(problem, dtype)


@pytest.mark.parametrize('problem', winograd.LATTICES, ids=str)
@pytest.mark.parametrize('copied', winograd.COPIED, ids=str)
def test_of_what_is_copied(problem, copied, cut_everywhere):
    winograd.test_lattices_of_what_is_copied(problem, copied)


@pytest.mark.parametrize('channels, size, dilation', [(256, 28, 6), (64, 129, 16)])
def test_both_ways_are_told(channels, size, dilation, caplog):
    """Of 129 positions too, which have the blocks of 130 where these are not cut."""
    x, w = np.zeros((1, channels, size, size), np.float32), np.zeros((channels, channels, 3, 3), np.float32)
    with caplog.at_level('DEBUG', 'pyconv'):
        pyconv.conv2d(x, w, padding=dilation, dilation=dilation)
    assert ': Winograd F(2, 3), ' in caplog.messages[0]
