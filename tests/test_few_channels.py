"""Fewer channels than a vector has lanes, which lie last, and complex numbers: both are turned in parts of vectors."""

import numpy as np
import pytest

import calls
from calls import assert_equal
from guarded import guards_memory
from problems import P, maps, whole
from pyconv import _blocks
from test_channels_last import check
from test_ways import way_of

SIZES = (5,), (3, 37)  # of fewer cells than a vector has lanes, and of whole vectors and a few
FEW = [P(f'{n} channels and {18 - n}', size, (3,) * len(size), (n, 18 - n), padding=1, batch=2)
       for size in SIZES for n in range(1, 18)]
LENGTHS = [P(f'{n} positions to {outs}', (n + taps - 1,), (taps,), (9, outs), batch=2)
           for n in (*range(1, 36), 63, 77) for outs, taps in ((3, 1), (5, 1), (1, 3), (7, 3))]
# Of as many positions as few cells need to meet many output channels where these lie, in one row and in several.
LONG = [P(f'{n} positions to {outs}', (n + taps - 1,), (taps,), (groups, groups * outs), batch=2, groups=groups)
        for n in (1024, 1025, 1039, 3000) for outs, taps, groups in ((17, 1, 1), (21, 9, 1), (18, 16, 2))] + [
    P('4 x 4 cells', (41, 40), (4, 4), (1, 20), padding=((1, 2), (0, 3)), batch=3),
    P('3 x 3 cells at a stride', (70, 67), (3, 3), (1, 19), stride=2, dilation=(1, 2), batch=2),
    P('2 x 2 x 1 cells', (9, 12, 11), (2, 2, 1), (4, 34), padding=1)]
# Rows of which the first vectors and the last may have nothing but padding.
CUT = [P(f'{n} at stride {stride}, padding {pads}', (3, n), (3, 3), (9, 3), stride=stride, padding=((1, 1), pads))
       for n in (15, 16, 17, 31, 32, 33, 63, 64, 65) for stride in (1, 2) for pads in ((0, 0), (1, 1), (17, 40))]
AT_AN_END = """
import itertools, sys
import numpy as np
import calls
from guarded import at_an_end
from test_few_channels import CUT, FEW, LENGTHS, LONG
def there(array):
    lies = np.moveaxis(at_an_end(np.ascontiguousarray(np.moveaxis(array, 1, -1)), sys.argv[1] == 'True'), -1, 1)
    assert (lies == array).all()
    return lies
for problem, dtype in itertools.product(FEW, ('f4', 'f8', 'c8', 'c16')):
    data = problem.integers(np.dtype(dtype))
    x, y = there(data.x), there(data.y)
    to_x, to_y = there(data.x), there(data.y)
    for accumulate in (False, True):
        calls.forward(problem, x, data.w, out=to_y, accumulate=accumulate)
        calls.grad_input(problem, data.w, y, out=to_x, accumulate=accumulate)
        calls.grad_weight(problem, x, y)
for problem, dtype in itertools.product(LENGTHS + LONG, ('f4', 'f8')):
    data = problem.integers(np.dtype(dtype))
    x, y = (at_an_end(part, sys.argv[1] == 'True') for part in (data.x, data.y))
    assert (calls.grad_weight(problem, x, y) == calls.grad_weight(problem, data.x, data.y)).all()
for problem, dtype in itertools.product(CUT, ('f4', 'f8')):
    data = problem.integers(np.dtype(dtype))
    x, y = (at_an_end(part, sys.argv[1] == 'True') for part in (data.x, data.y))
    assert (calls.forward(problem, x, data.w) == calls.forward(problem, data.x, data.w)).all()
    assert (calls.grad_input(problem, data.w, y) == calls.grad_input(problem, data.w, data.y)).all()
    assert (calls.grad_weight(problem, x, data.y) == calls.grad_weight(problem, data.x, data.y)).all()
"""


@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'float64', 'complex64', 'complex128'])
def test_few_channels_in_either_order(problem, dtype):
    check(problem, np.dtype(dtype))


@pytest.mark.parametrize('problem', LENGTHS + LONG, ids=str)
def test_inner_products_of_any_length(problem, dtype):
    """The last vector has positions of the one before, which are not added again, whatever they hold."""
    data = problem.integers(dtype)
    assert_equal(calls.grad_weight(problem, data.x, data.y), whole(problem).grad_weight, dtype)
    for place in range(min(problem.output_shape[-1], 20 if problem in LENGTHS else 2)):
        x, y = data.x.copy(), np.abs(data.y) + 1
        x[0, -1, ..., place], y[1, 0, ..., -1 - place] = np.inf, -np.inf
        x[1] = np.abs(x[1]) + 1
        with np.errstate(invalid='ignore'):
            found, wanted = calls.grad_weight(problem, x, y), maps(problem, x, data.w, y).grad_weight
        assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize('problem', CUT, ids=str)
def test_rows_that_end_in_padding(problem, dtype):
    check(problem, dtype)


@pytest.mark.parametrize('outputs, size, kernel, stride, batch, is_few', [
    (3, 56, 3, 1, 1, True), (7, 28, 5, 1, 4, True), (3, 14, 9, 1, 16, True), (6, 7, 5, 1, 64, False),
    (7, 14, 9, 2, 32, False), (1, 7, 5, 1, 64, True), (3, 7, 1, 1, 64, True)])
def test_inner_products_are_of_long_rows(outputs, size, kernel, stride, batch, is_few):
    """Where images are small and most taps lie in the padding, few output channels are broadcast to as well."""
    problem = P('few', (size, size), (kernel, kernel), (32, outputs), stride=stride, padding=kernel // 2, batch=batch)
    way, _ = way_of(problem, 'grad_weight', _blocks.Tile(4, 16, 8, 3))
    assert (way in (_blocks.CORRELATE_FEW, _blocks.CORRELATE_FLAT)) == is_few
    way, _ = way_of(problem._replace(batch=batch - 1 or 1), 'grad_weight', _blocks.Tile(4, 16, 8, 3))
    assert (way in (_blocks.CORRELATE_FEW, _blocks.CORRELATE_FLAT)) == is_few


def test_many_output_channels_of_few_cells_stay_where_they_lie():
    """In tiles of eight rows, if they lie in rows of many positions."""
    layer = P('first layer', (128, 128), (4, 4), (1, 64), stride=2, padding=1)
    assert way_of(layer, 'grad_weight', _blocks.Tile(4, 16, 8, 3))[0] == _blocks.CORRELATE_FEW
    assert way_of(layer, 'grad_weight', _blocks.Tile(4, 8, 4, 3))[0] == _blocks.CORRELATE
    for other in (layer._replace(size=(56, 56)), layer._replace(channels=(2, 64)), layer._replace(channels=(1, 16))):
        assert way_of(other, 'grad_weight', _blocks.Tile(4, 16, 8, 3))[0] == _blocks.CORRELATE
    assert way_of(layer, 'grad_weight', _blocks.Tile(4, 16, 8, 3), x_last=True, y_last=True)[0] == _blocks.CORRELATE


@guards_memory
@pytest.mark.parametrize('front', [False, True])
def test_nothing_beside_few_channels_is_touched(front, run_python):
    run_python(AT_AN_END, str(front))
