"""What the tests of every differentiating door share: its four functions on a problem, and what they give."""
import doctest
import inspect
import pickle
import typing

import numpy as np
import pytest

import pyconv
from calls import per_channel
from problems import expected, maps, some
from reference import channel_sum

PROBLEMS = some(
    '1d', '2d kernel 1', '2d same strided dilated', '2d padding far above kernel', '2d groups everything',
    '3d groups everything', '2d channels 33 33', '2d transposed output padding above stride',
    'circular 2d same strided dilated', 'replicate 1d cropped behind', 'reflect 2d groups everything',
    'constant -1 1d cropped behind',
)
FUNCTIONS = {
    'conv{}d': 'forward', 'conv{}d_input': 'input', 'conv{}d_weight': 'weight', 'conv_transpose{}d': 'transposed',
}


class Case(typing.NamedTuple):
    """A function of arrays alone, its operands, and what it gives."""
    function: object
    operands: tuple
    wanted: np.ndarray


def answers(problem, data):
    """The three maps of these data."""
    return maps(problem, data.x, data.w, data.y)


def cases(door, problem, data=None, wanted=None):
    """The four functions of a door, by the ends of their names, with bias where there is one."""
    if data is None:
        data, wanted = problem.integers(np.float64), expected(problem.name)
    wanted = wanted or answers(problem, data)
    rank = problem.rank
    conv, conv_input, conv_weight, transposed = (getattr(door, name.format(rank)) for name in FUNCTIONS)
    return {
        'forward': Case(lambda x, w, b: conv(x, w, b, **problem.keywords), (data.x, data.w, data.b),
                        wanted.forward + per_channel(data.b, rank)),
        'input': Case(lambda w, y: conv_input(problem.input_shape, w, y, **problem.keywords), (data.w, data.y),
                      wanted.grad_input),
        'weight': Case(lambda x, y: conv_weight(x, problem.weight_shape, y, **problem.keywords), (data.x, data.y),
                       wanted.grad_weight),
        'transposed': Case(lambda y, w, c: transposed(y, w, c, **problem.transposed_keywords),
                           (data.y, data.w, data.c), wanted.grad_input + per_channel(data.c, rank)),
    }


def gradients(problem, name):
    """What the cotangent of these data is pulled back to by the function of that name, for each of its operands."""
    data, wanted = problem.integers(np.float64), expected(problem.name)
    if name == 'forward':
        return data.y, (wanted.grad_input, wanted.grad_weight, channel_sum(data.y))
    direction = answers(problem._replace(padding_value=0), data).forward  # around a direction a constant is nothing
    if name == 'weight':
        return data.w, (wanted.grad_input, wanted.forward)
    if name == 'input':
        weight = answers(problem._replace(padding_value=0), data).grad_weight
        return data.x, (weight, direction)
    weight = answers(problem._replace(padding_value=0), data).grad_weight
    return data.x, (direction, weight, channel_sum(data.x))


def check_functions(door, arrays):
    """A public function has the signature and order of arguments of the plain one, as far as it goes, and a doctest."""
    assert sorted(door.__all__) == door.__all__ and len(door.__all__) == 12
    for name in door.__all__:
        function, plain = getattr(door, name), getattr(pyconv, name)
        assert function.__name__ == function.__qualname__ == name
        assert pickle.loads(pickle.dumps(function)) is function
        parameters = inspect.signature(function).parameters
        assert set(parameters) | {'return'} == set(typing.get_type_hints(function))
        theirs = inspect.signature(plain).parameters
        assert [word for word in theirs if word in parameters] == list(parameters)
        assert all(parameters[word].default == theirs[word].default for word in parameters)
        assert '{' not in function.__doc__ and arrays in function.__doc__ and name in door.__doc__
    tried = sum(len(test.examples) for test in doctest.DocTestFinder().find(door))
    assert doctest.testmod(door) == (0, tried) and tried >= 12 * 4


def wrong_calls(door):
    """(a wrong call of the door, the same of the plain functions): their errors read the same."""
    x, w, b = np.ones((1, 2, 5)), np.ones((3, 2, 2)), np.ones(3)
    y = np.ones((1, 3, 4))
    changes = [
        {'weight': np.ones((3, 2, 2, 2))}, {'weight': np.ones((3, 1, 2))}, {'bias': np.ones(2)}, {'stride': 0},
        {'padding': -1}, {'padding': 'reflect'}, {'dilation': 9}, {'groups': 2}, {'stride': 1.5}, {'groups': True},
        {'weight': np.ones((3, 2, 2), np.float32)}, {'padding_mode': 'mirror'}, {'algorithm': 'fft'},
        {'padding_value': 1}, {'padding_mode': 'constant', 'padding_value': 1j}, {'output_size': 9},
        {'bias': np.ones(3, np.float32)}, {'weight': np.ma.masked_array(w, w > 0)},
    ]
    for change in changes:
        arguments = {'input': x, 'weight': w, 'bias': b, **change}
        yield (lambda call=arguments: door.conv1d(**call)), (lambda call=arguments: pyconv.conv1d(**call))
    for name, arguments in (
        ('conv_transpose1d', (y, np.ones((2, 3, 2)))), ('conv_transpose1d', (y, w, None, 1, 0, 1)),
        ('conv1d_input', ((1, 2, 7), w, y)), ('conv1d_input', ((1, -2, 5), w, y)), ('conv1d_weight', (x, (3, 1, 2), y)),
        ('conv1d_weight', (x, 3, y)),
    ):
        yield (lambda name=name, arguments=arguments: getattr(door, name)(*arguments),
               lambda name=name, arguments=arguments: getattr(pyconv, name)(*arguments))


def check_errors(door):
    """Shapes and settings are refused in the words of the plain functions."""
    for ours, plain in wrong_calls(door):
        with pytest.raises((TypeError, ValueError)) as wanted:
            plain()
        with pytest.raises(wanted.type) as error:
            ours()
        assert str(error.value) == str(wanted.value)
