"""Arrays as people have them: every legal layout gives the same numbers, and no call changes its inputs."""
import hashlib

import numpy as np
import pytest

import calls
import pyconv
from calls import assert_equal, per_channel, poisoned
from problems import BY_NAME, VARIED, Problem, expected, some

FEW = some('1d', '2d', '3d', '2d stride 2', '2d kernel 1', '2d depthwise', '2d groups everything', '2d channels 33 33',
           '2d fully connected', '2d 13 by 14')


class Subclass(np.ndarray):
    """An array of another type."""


def frozen(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def gaps(array):
    """Every other element along every axis."""
    wide = np.full([2 * n + 1 for n in array.shape], np.nan, array.dtype)
    view = wide[tuple(slice(1, 2 * n, 2) for n in array.shape)]
    view[...] = array
    return view


def backwards(array):
    """Negative strides along every axis."""
    turn = (slice(None, None, -1),) * array.ndim
    return np.ascontiguousarray(array[turn])[turn]


def channels_last(array):
    last = min(1, array.ndim - 1)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, last, -1)), -1, last)


def misaligned(array):
    """One byte off."""
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    view = memory.view(array.dtype).reshape(array.shape)
    view[...] = array
    assert not view.flags.aligned
    return view


def in_the_middle(array):
    """A crop out of a larger array of NaN."""
    wide = np.full([n + 3 for n in array.shape], np.nan, array.dtype)
    view = wide[tuple(slice(1, n + 1) for n in array.shape)]
    view[...] = array
    return view


LAYOUTS = {
    'read-only': frozen, 'Fortran': np.asfortranarray, 'gaps': gaps, 'backwards': backwards,
    'channels last': channels_last, 'misaligned': misaligned, 'in the middle': in_the_middle,
    'big-endian': lambda array: array.astype(array.dtype.newbyteorder('>')),
    'little-endian': lambda array: array.astype(array.dtype.newbyteorder('<')),
    'big-endian, misaligned, read-only': lambda array: frozen(misaligned(array.astype(array.dtype.newbyteorder('>')))),
    'subclass': lambda array: array.view(Subclass),
    'Fortran subclass': lambda array: np.asfortranarray(array).view(Subclass),
    'swapped axes': lambda array: np.ascontiguousarray(array.swapaxes(0, -1)).swapaxes(0, -1),
    'memory map': lambda array: array.view(np.memmap),
}


def digest(*arrays):
    """Of the values, and of the memory around them."""
    bases = [array if not isinstance(array.base, np.ndarray) else array.base for array in arrays]
    return [hashlib.sha256(part.tobytes()).hexdigest() for part in (*arrays, *bases)]


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=list(LAYOUTS))
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_layouts(problem, layout, dtype):
    """Each operand alone in that layout, then all of them."""
    data, wanted = problem.integers(dtype), expected(problem.name)
    biased = wanted.forward + per_channel(data.b, problem.rank)
    back = wanted.grad_input + per_channel(data.c, problem.rank)
    for which in ('x', 'w', 'y', 'bc', 'xwybc'):
        x, w, y, b, c = (layout(getattr(data, name)) if name in which else getattr(data, name) for name in 'xwybc')
        before = digest(x, w, y, b, c)
        assert_equal(calls.forward(problem, x, w, b), biased, dtype)
        assert_equal(calls.grad_input(problem, w, y), wanted.grad_input, dtype)
        assert_equal(calls.grad_weight(problem, x, y), wanted.grad_weight, dtype)
        assert_equal(calls.transposed(problem, y, w, c), back, dtype)
        assert digest(x, w, y, b, c) == before


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=list(LAYOUTS))
def test_layouts_of_the_other_functions(layout, dtype):
    problem = BY_NAME['2d groups everything']
    data, wanted = problem.integers(dtype), expected(problem.name)
    x, w, y = layout(data.x), layout(data.w), layout(data.y)
    rest = (problem.stride, problem.padding, problem.dilation, False, 0, problem.groups, (True, True, True))
    for answer, exact in zip(pyconv.convolution_backward(y, x, w, *rest),
                             (wanted.grad_input, wanted.grad_weight, data.y.sum((0, 2, 3)))):
        assert_equal(answer, exact, dtype)
    assert_equal(pyconv.conv_bias(y), data.y.sum((0, 2, 3)), dtype)
    second = [layout(part[::-1].copy()) for part in (data.x, data.w, data.b)]
    plain = pyconv.convolution_double_backward(*(part[::-1].copy() for part in (data.x, data.w, data.b)), data.y,
                                               data.w, data.x, *rest)
    for answer, exact in zip(pyconv.convolution_double_backward(*second, y, w, x, *rest), plain):
        assert_equal(answer, exact, dtype)
    arguments = problem.kernel, problem.dilation, problem.padding, problem.stride
    columns = pyconv.unfold(data.x, *arguments)
    assert_equal(pyconv.unfold(x, *arguments), columns, dtype)
    assert_equal(pyconv.fold(layout(columns), problem.size, *arguments),
                 pyconv.fold(columns, problem.size, *arguments), dtype)


@pytest.mark.parametrize('problem', VARIED, ids=str)
def test_zero_strides(problem, dtype):
    """Broadcast operands: one number, one sample, one channel for all."""
    data = problem.integers(dtype)
    for part in ('x', 'w', 'y'):
        array = getattr(data, part)
        for small in (array[:1], array[:, :1], array[..., :1], array[(slice(0, 1),) * array.ndim]):
            wide = np.broadcast_to(small, array.shape)
            views = {name: getattr(data, name) for name in 'xwy'}
            copies = {**views, part: wide.copy()}
            views[part] = wide
            for answer, exact in zip(calls.three_maps(problem, **views), calls.three_maps(problem, **copies)):
                assert_equal(answer, exact, dtype)


@pytest.mark.parametrize('problem', FEW, ids=str)
def test_nested_lists_take_the_other_operand_s_dtype(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name)
    biased = wanted.forward + per_channel(data.b, problem.rank)
    assert_equal(calls.forward(problem, data.x.tolist(), data.w, data.b.tolist()), biased, dtype)
    assert_equal(calls.forward(problem, data.x, data.w.astype(int).tolist(), data.b), biased, dtype)
    assert_equal(calls.grad_input(problem, data.w, data.y.tolist()), wanted.grad_input, dtype)
    assert_equal(calls.grad_input(problem, data.w.tolist(), data.y), wanted.grad_input, dtype)
    assert_equal(calls.grad_weight(problem, data.x.tolist(), data.y), wanted.grad_weight, dtype)
    assert_equal(calls.grad_weight(problem, data.x, data.y.tolist()), wanted.grad_weight, dtype)
    assert_equal(calls.transposed(problem, data.y.tolist(), data.w), wanted.grad_input, dtype)


def test_one_array_in_every_role(dtype):
    problem = Problem('one array', (5, 5), (5, 5), (3, 3), batch=3, padding=2)
    a = problem.integers(dtype).x
    before = digest(a)
    copies = a.copy(), a.copy()
    assert_equal(pyconv.conv2d(a, a, padding=2), pyconv.conv2d(*copies, padding=2), dtype)
    assert_equal(pyconv.conv2d_input(a.shape, a, a, padding=2),
                 pyconv.conv2d_input(a.shape, *copies, padding=2), dtype)
    assert_equal(pyconv.conv2d_weight(a, a.shape, a, padding=2),
                 pyconv.conv2d_weight(copies[0], a.shape, copies[1], padding=2), dtype)
    assert_equal(pyconv.conv_transpose2d(a, a, padding=2), pyconv.conv_transpose2d(*copies, padding=2), dtype)
    answers = pyconv.convolution_double_backward(a, a, None, a, a, a, 1, 2, 1, False, 0, 1, (True,) * 3)
    parts = [a.copy() for _ in range(5)]
    for answer, exact in zip(answers, pyconv.convolution_double_backward(
            parts[0], parts[1], None, *parts[2:], 1, 2, 1, False, 0, 1, (True,) * 3)):
        assert_equal(answer, exact, dtype)
    assert digest(a) == before


@pytest.mark.parametrize('problem', VARIED, ids=str)
def test_inputs_are_never_changed(problem, dtype):
    """Neither by the maps nor by the functions made of them."""
    data = problem.integers(dtype)
    before = digest(*data)
    rest = (problem.stride, problem.padding, problem.dilation, False, 0, problem.groups, (True, True, True))
    calls.three_maps(problem, data.x, data.w, data.y)
    calls.transposed(problem, data.y, data.w, data.c)
    pyconv.convolution_backward(data.y, data.x, data.w, *rest)
    pyconv.convolution_double_backward(data.x, data.w, data.b, data.y, data.w, data.x, *rest)
    pyconv.conv_bias(data.y)
    pyconv.unfold(data.x, problem.kernel, problem.dilation, problem.padding, problem.stride)
    assert digest(*data) == before


@pytest.mark.parametrize('layout', ['gaps', 'Fortran', 'backwards', 'misaligned', 'big-endian', 'in the middle',
                                    'subclass', 'swapped axes'])
@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight', 'transposed'])
def test_out_in_another_layout(name, layout, dtype):
    """Filled with the right numbers, or refused untouched; the memory around it stays either way."""
    problem = BY_NAME['2d stride 2']
    data, answers = problem.integers(dtype), expected(problem.name)
    given = {'forward': (data.x, data.w), 'grad_input': (data.w, data.y), 'grad_weight': (data.x, data.y),
             'transposed': (data.y, data.w)}[name]
    wanted = getattr(answers, {'transposed': 'grad_input'}.get(name, name))
    out = LAYOUTS[layout](poisoned(wanted.shape, dtype))
    base = out if not isinstance(out.base, np.ndarray) else out.base
    outside = base.nbytes - out.nbytes
    before = base.tobytes()
    try:
        assert getattr(calls, name)(problem, *given, out=out) is out
    except (ValueError, TypeError) as error:
        assert str(error).startswith('out must ')
        assert base.tobytes() == before
    else:
        assert (out == wanted).all()
        if outside and layout != 'misaligned':
            assert np.count_nonzero(np.isnan(base)) == base.size - out.size


@pytest.mark.parametrize('name', ['forward', 'grad_input', 'grad_weight', 'transposed'])
def test_out_that_cannot_be_written(name, dtype):
    problem = BY_NAME['2d stride 2']
    data, answers = problem.integers(dtype), expected(problem.name)
    given = {'forward': (data.x, data.w), 'grad_input': (data.w, data.y), 'grad_weight': (data.x, data.y),
             'transposed': (data.y, data.w)}[name]
    wanted = getattr(answers, {'transposed': 'grad_input'}.get(name, name))
    other = np.float64 if dtype == np.float32 else np.float32
    for out in (frozen(poisoned(wanted.shape, dtype)), poisoned(wanted.shape, other), poisoned(wanted.shape[1:], dtype),
                poisoned((*wanted.shape[:-1], wanted.shape[-1] + 1), dtype), wanted.tolist(),
                np.broadcast_to(poisoned((), dtype), wanted.shape)):
        with pytest.raises((ValueError, TypeError), match='^out must '):
            getattr(calls, name)(problem, *given, out=out)
