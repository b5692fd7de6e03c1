"""Shape arithmetic: sizes counted instead of computed, huge numbers, cache keys. Errors are in test_errors.py."""
import itertools
from math import prod

import numpy as np
import pytest

from pyconv import _geometries as geometries
from pyconv._geometry import Geometry, alone, box, whole_size
from pyconv._padding import MODES as NAMES
from pyconv._padding import ZEROS, Mode


def convolved(size, kernel, stride=1, padding=0, dilation=1, groups=1, batch=(2,), channels=(2, 3),
              mode=ZEROS):
    """(geometry, output size) of a convolution."""
    inputs, outputs = channels
    geometry, shape = geometries.convolved(
        len(size), (*batch, inputs, *size), (outputs, inputs // groups, *kernel), None, None, stride, padding, dilation,
        groups, mode=mode)
    assert shape[:-len(size)] == (*batch, outputs)
    return geometry, shape[-len(size):]


def transposed(size, kernel, stride=1, padding=0, dilation=1, output_padding=0, output_size=None, grad_output=None,
               mode=ZEROS):
    """(geometry, output size) of a transposed convolution of 3 channels to 2."""
    grad_output = None if grad_output is None else (2, 2, *grad_output)
    geometry, shape = geometries.transposed(
        len(size), (2, 3, *size), (3, 2, *kernel), None, grad_output, stride, padding, dilation, 1, output_padding,
        output_size, mode=mode)
    assert shape[:2] == (2, 2)
    return geometry, shape[2:]


AXES = [
    (size, kernel, stride, dilation, lo, hi)
    for size, kernel, stride, dilation, lo, hi in itertools.product((1, 4, 7), (1, 2, 3), (1, 2, 3), (1, 2), (-1, 0, 2),
                                                                    (0, 1))
    if size + lo + hi >= dilation * (kernel - 1) + 1
]


@pytest.mark.parametrize('axis', AXES, ids=str)
def test_output_size_counts_the_positions_that_fit(axis):
    size, kernel, stride, dilation, lo, hi = axis
    fitting = [start for start in range(-lo, size + hi, stride) if start + dilation * (kernel - 1) < size + hi]
    geometry, output = convolved((size,), (kernel,), stride, ((lo, hi),), dilation)
    assert output == (len(fitting),)
    assert geometry.padding == (0, 0, lo)


@pytest.mark.parametrize('axis', AXES, ids=str)
def test_transposed_undoes_convolved(axis):
    size, kernel, stride, dilation, lo, hi = axis
    there, output = convolved((size,), (kernel,), stride, ((lo, hi),), dilation)
    rest = (size + lo + hi - dilation * (kernel - 1) - 1) % stride
    back, again = transposed(output, (kernel,), stride, ((lo, hi),), dilation, output_padding=rest)
    assert again == (size,)
    assert back == there
    assert transposed(output, (kernel,), stride, ((lo, hi),), dilation, output_size=size)[0] == there


@pytest.mark.parametrize('padding', ['same', 'same_lower'])
@pytest.mark.parametrize(('size', 'kernel', 'stride', 'dilation'),
                         list(itertools.product((1, 4, 7, 8), (1, 2, 3, 4), (1, 2, 3), (1, 2))))
def test_same(padding, size, kernel, stride, dilation):
    there, output = convolved((size,), (kernel,), stride, padding, dilation)
    assert output == (-(-size // stride),)
    missing = max((output[0] - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    assert there.padding[2] == (missing // 2 if padding == 'same' else -(-missing // 2))
    assert transposed(output, (kernel,), stride, padding, dilation, output_size=size) == (there, (size,))
    assert transposed(output, (kernel,), stride, padding, dilation, grad_output=(size,)) == (there, (size,))
    assert transposed(output, (kernel,), stride, padding, dilation)[1] == (output[0] * stride,)


@pytest.mark.parametrize(('padding', 'pairs'), [
    ('valid', [(0, 0), (0, 0)]), (1, [(1, 1), (1, 1)]), ((1, 2), [(1, 1), (2, 2)]),
    (((1, 2), (0, -1)), [(1, 2), (0, -1)]), ('causal', [(4, 0), (3, 0)]), ('full', [(4, 4), (3, 3)]),
])
def test_forms_of_padding(padding, pairs):
    geometry, output = convolved((9, 8), (3, 2), (2, 1), padding, (2, 3))
    assert (geometry, output) == convolved((9, 8), (3, 2), (2, 1), pairs, (2, 3))
    assert geometry.padding == (0, pairs[0][0], pairs[1][0])
    assert transposed((9, 8), (3, 2), (2, 1), padding, (2, 3)) == transposed((9, 8), (3, 2), (2, 1), pairs, (2, 3))


def test_one_axis_of_padding():
    assert convolved((5,), (2,), padding=(1,)) == convolved((5,), (2,), padding=1)
    assert convolved((5,), (2,), padding=((1, 2),))[1] == (7,)


def test_lifted_to_three_axes():
    geometry, _ = convolved((9,), (3,), 2, 1, 2, groups=2, batch=(4,), channels=(4, 6))
    assert geometry == Geometry(
        1, 4, 2, 4, 6, (1, 1, 9), (1, 1, 3), (1, 1, 4), (1, 1, 2), (1, 1, 2), (0, 0, 1), 'zeros')
    assert convolved((9,), (3,), batch=())[0].batch == 1


def test_transposed_size_with_a_large_output_padding():
    geometry, size = transposed((3, 3), (2, 2), 1, 1, 3, output_padding=(2, 0))
    assert size == (6, 4)
    assert geometry.output_size == (1, 3, 3) and geometry.input_size == (1, 6, 4)


def test_output_size_grows_the_far_end():
    for wanted in (9, 10, 11):
        geometry, size = transposed((4,), (3,), 3, 1, output_size=wanted + 1)
        assert size == (wanted + 1,)
        assert geometry.padding == (0, 0, 1)


@pytest.mark.parametrize(('wanted', 'same', 'same_lower'), [(11, 0, 0), (10, 0, 1), (9, 1, 1), (6, 2, 3), (12, 0, 0)])
def test_output_size_with_same_chooses_the_pads(wanted, same, same_lower):
    for padding, low in (('same', same), ('same_lower', same_lower)):
        geometry, size = transposed((4,), (2,), 3, padding, output_size=wanted)
        assert size == (wanted,) and geometry.padding == (0, 0, low)


def test_what_never_acts_is_one():
    geometry, _ = convolved((5, 5), (3, 1), (9, 2), 0, (1, 7))
    assert geometry.stride == (1, 1, 2) and geometry.dilation == (1, 1, 1)


# --- what padded cells hold ---

MODES = [Mode(name, 5 if name == 'constant' else 0) for name in NAMES if name != 'zeros']
every_mode = pytest.mark.parametrize('mode', MODES, ids=lambda mode: mode.name)


@every_mode
@pytest.mark.parametrize('axis', AXES, ids=str)
def test_a_mode_is_kept_where_something_outside_is_read(axis, mode):
    size, kernel, stride, dilation, lo, hi = axis
    try:
        geometry, output = convolved((size,), (kernel,), stride, ((lo, hi),), dilation, mode=mode)
    except ValueError as error:
        assert 'must keep a cell' in str(error) and size + min(lo, 0) < 1 and mode.name != 'constant'
        return
    plain, same = convolved((size,), (kernel,), stride, ((lo, hi),), dilation)
    assert output == same
    cells = [stride * a + dilation * k - lo for a in range(output[0]) for k in range(kernel)]
    if all(0 <= cell < size for cell in cells):
        assert geometry == plain
    else:
        assert (geometry.padding_mode, geometry.padding_value) == mode


@every_mode
@pytest.mark.parametrize(('lo', 'hi', 'start', 'length'), [
    (-2, 5, 2, 5), (4, -3, 0, 4), (2, 3, 0, 7), (-2, -1, 0, 7), (-2, 0, 0, 7), (0, -3, 0, 7)])
def test_where_an_axis_is_cropped_and_filled_the_part_that_is_left_is_x(mode, lo, hi, start, length):
    size = 7
    geometry, output = convolved((9, size), (1, 2), padding=((1, 1), (lo, hi)), mode=mode)
    plain, same = convolved((9, size), (1, 2), padding=((1, 1), (lo, hi)))
    assert output == same
    if mode.name in ('constant', 'replicate') or length == size:
        assert geometry == plain._replace(padding_mode=mode.name, padding_value=mode.value)
        assert box(geometry) == (slice(0, 1), slice(0, 9), slice(0, size))
    else:
        assert geometry.input_size == (1, 9, length) and geometry.padding == (0, 1, max(lo, 0))
        assert box(geometry) == (slice(0, 1), slice(0, 9), slice(start, start + length))
        assert whole_size(geometry) == (1, 9, size)
        assert alone(geometry) == geometry._replace(before=(0, 0, 0), behind=(0, 0, 0))


def test_a_constant_around_no_cell_is_a_cell():
    geometry, output = convolved((0,), (2,), padding=1, mode=Mode('constant', 3))
    assert output == (1,) and geometry.input_size == (1, 1, 1) and geometry.padding_value == 3
    assert convolved((0,), (2,), padding=1)[0].input_size == (1, 1, 0)


def test_what_is_transposed_drops_what_goes_back_to_a_constant():
    assert transposed((4,), (3,), 2, 1, mode=Mode('constant', 3)) == transposed((4,), (3,), 2, 1)
    assert transposed((4,), (3,), 2, 1, mode=Mode('circular'))[0].padding_mode == 'circular'


def test_columns_hold_their_padding():
    """In any mode but 'zeros' no cell of columns is padding."""
    plain = geometries.columns_of(1, (1, 4, 5), (3, 2, 2), (1, 3, 5), 1, 1, 1, 1)
    geometry = geometries.columns_of(1, (1, 4, 5), (3, 2, 2), (1, 3, 5), 1, 1, 1, 1, Mode('circular'))
    assert (plain.input_size, plain.padding) == ((1, 1, 4), (0, 0, 1))
    assert (geometry.input_size, geometry.padding, geometry.padding_mode) == ((1, 1, 6), (0, 0, 0), 'zeros')


HUGE = 2**60  # of which the channels of an axis make some more


def test_huge_numbers_are_legal_where_every_size_fits():
    assert convolved((5,), (1,), dilation=HUGE)[1] == (5,)
    assert convolved((5,), (3,), stride=HUGE)[1] == (1,)
    assert convolved((5,), (3,), stride=2**100)[0].stride == (1, 1, 1)
    assert convolved((5,), (2,), stride=HUGE, padding=((HUGE, 0),))[1] == (2,)
    assert convolved((5,), (2,), padding=((0, HUGE),), stride=HUGE)[1] == (2,)
    assert convolved((5,), (2,), dilation=HUGE, padding=((0, HUGE),))[1] == (5,)
    assert transposed((1,), (3,), stride=HUGE)[1] == (3,)


def exact(value):
    """Whether it is made of exact ints and strings alone."""
    return all(map(exact, value)) if isinstance(value, tuple) else type(value) in (int, str)


@pytest.mark.parametrize('kind', [np.int8, np.uint64, np.array, int])
def test_integers_of_every_kind_become_exact(kind):
    two = kind(2)
    for value in (two, [two, two], (two, two), np.array([2, 2])):
        geometry, _ = convolved((9, 9), (3, 3), value, value, value)
        assert exact(geometry[:Geometry._fields.index("padding_mode")])
        assert geometry == convolved((9, 9), (3, 3), 2, 2, 2)[0]
        hash(geometry)
    assert convolved((9, 9), (3, 3), padding=np.array([[1, 2], [2, 1]]))[1] == (10, 10)


@pytest.mark.parametrize('bad', [True, 1.0, np.True_, np.float64(1)])
@pytest.mark.parametrize('where', ['stride', 'padding', 'dilation', 'groups'])
def test_one_in_the_cache_lets_nothing_equal_pass(bad, where):
    convolved((9, 9), (3, 3), 1, 1, 1, 1)
    assert bad == 1 and hash(bad) == hash(1)
    for value in (bad, (1, bad), [bad, bad]):
        with pytest.raises(TypeError):
            convolved((9, 9), (3, 3), **{where: value})


def test_caches_are_bounded():
    caches = [value for value in vars(geometries).values()
              if hasattr(value, 'cache_info') and value.__module__ == geometries.__name__]
    assert len(caches) == 4
    assert all(cache.cache_info().maxsize == 1024 for cache in caches)


def test_unfolded_and_folded():
    geometry, shape = geometries.unfolded((2, 3, 8, 9), (3, 2), 2, 1, (2, 1))
    assert shape == (2, 18, prod(geometry.output_size)) and geometry.output_size == (1, 3, 9)
    assert geometry.groups == geometry.in_channels == geometry.out_channels == 3
    assert geometries.folded(shape, (8, 9), (3, 2), 2, 1, (2, 1)) == (geometry, (2, 3, 8, 9))
    assert geometries.folded(shape[1:], [8, 9], (3, 2), 2, 1, (2, 1))[1] == (3, 8, 9)


@pytest.mark.parametrize('axis', AXES, ids=str)
def test_columns_take_the_largest_input_that_a_tap_reaches(axis):
    size, kernel, stride, dilation, lo, hi = axis
    truth, output = convolved((size,), (kernel,), stride, ((lo, hi),), dilation, batch=(2,))
    found = geometries.columns_of(
        1, (2, 2 * kernel, *output), (3, 2, kernel), (2, 3, *output), stride, ((lo, hi),), dilation, 1)
    assert found._replace(input_size=truth.input_size) == truth
    cells = {stride * a + dilation * k - lo for a in range(output[0]) for k in range(kernel)}
    consistent = [n for n in range(50) if n + lo + hi >= dilation * (kernel - 1) + 1
                  and convolved((n,), (kernel,), stride, ((lo, hi),), dilation)[1] == output]
    assert size in consistent
    outside_always = {cell for cell in cells if all(not 0 <= cell < n for n in consistent)}
    assert {cell for cell in cells if not 0 <= cell < found.input_size[2]} == outside_always
