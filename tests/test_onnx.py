"""ONNX's attributes, against its own formulas and, where it is installed, against its reference."""
import doctest
import itertools
import math

import numpy as np
import pytest

import pyconv
import pyconv.onnx
import reference
from calls import CONV, TRANSPOSE

AUTO_PADS = ('NOTSET', 'VALID', 'SAME_UPPER', 'SAME_LOWER')


def split(total, auto_pad):
    """(begin, end), as the operators' documents say."""
    return (total // 2, total - total // 2) if auto_pad == 'SAME_UPPER' else (total - total // 2, total // 2)


def conv_pads(size, kernel, auto_pad, strides, dilations, pads):
    """(begin, end) of every axis."""
    if auto_pad == 'NOTSET':
        return list(zip(pads[:len(size)], pads[len(size):]))
    if auto_pad == 'VALID':
        return [(0, 0)] * len(size)
    outputs = [math.ceil(n / s) for n, s in zip(size, strides)]
    totals = [max((out - 1) * s + (k - 1) * d + 1 - n, 0)
              for out, s, k, d, n in zip(outputs, strides, kernel, dilations, size)]
    return [split(total, auto_pad) for total in totals]


def integers(*shape):
    return np.random.default_rng(shape).integers(-3, 4, shape).astype(np.float64)


CASES = [(size, kernel, strides, dilations)
         for size, kernel in (((9,), (3,)), ((8,), (4,)), ((1,), (2,)), ((7, 10), (3, 2)), ((6, 5, 7), (2, 3, 1)))
         for strides, dilations in itertools.product((1, 2, 3), (1, 2))]


def per_axis(value, rank):
    """Others along the other axes."""
    return [value + axis % 2 for axis in range(rank)]


@pytest.mark.parametrize('group', [1, 2])
@pytest.mark.parametrize('auto_pad', AUTO_PADS)
@pytest.mark.parametrize(('size', 'kernel', 'stride', 'dilation'), CASES)
def test_conv(size, kernel, stride, dilation, auto_pad, group):
    rank = len(size)
    strides, dilations = per_axis(stride, rank), per_axis(dilation, rank)
    pads = [3 + place for place in range(2 * rank)] if auto_pad == 'NOTSET' else None
    x, w, b = integers(2, 4, *size), integers(6, 4 // group, *kernel), integers(6)
    node = {'auto_pad': auto_pad, 'strides': strides, 'dilations': dilations, 'pads': pads, 'group': group,
            'kernel_shape': kernel}
    both = conv_pads(size, kernel, auto_pad, strides, dilations, pads)
    positions = reference.output_size(size, kernel, strides, both, dilations)
    if min(positions) < 1:
        with pytest.raises(ValueError, match='weight must span at most'):
            CONV[rank](x, w, b, **pyconv.onnx.conv_arguments(w.shape, **node))
        return
    if auto_pad.startswith('SAME'):
        assert positions == tuple(math.ceil(n / s) for n, s in zip(size, strides))
    found = CONV[rank](x, w, b, **pyconv.onnx.conv_arguments(w.shape, **node))
    wanted = reference.forward(x, w, positions, strides, [lo for lo, _ in both], dilations, group)
    np.testing.assert_array_equal(found, wanted + b.reshape(-1, *(1,) * rank), strict=True)


@pytest.mark.parametrize('group', [1, 2])
@pytest.mark.parametrize('extra', [None, 0, 1, 2, -1, -2, -3], ids=lambda extra: f'output-shape-{extra}')
@pytest.mark.parametrize('auto_pad', AUTO_PADS)
@pytest.mark.parametrize(('size', 'kernel', 'stride', 'dilation'), CASES[6:12] + CASES[18:])
def test_conv_transpose(size, kernel, stride, dilation, auto_pad, extra, group):
    """`extra`: how much larger output_shape is than input * stride, so that totals are odd and even."""
    rank = len(size)
    strides, dilations = per_axis(stride, rank), per_axis(dilation, rank)
    added = [max(s, d) - 1 for s, d in zip(strides, dilations)]
    pads = [place % 2 for place in range(2 * rank)] if auto_pad == 'NOTSET' else None
    shape = None if extra is None else [n * s + extra for n, s in zip(size, strides)]
    node = {'auto_pad': auto_pad, 'strides': strides, 'dilations': dilations, 'pads': pads, 'group': group,
            'output_padding': added, 'output_shape': shape}
    full = [s * (n - 1) + p + (k - 1) * d + 1 for s, n, p, k, d in zip(strides, size, added, kernel, dilations)]
    if shape is None and auto_pad.startswith('SAME'):
        shape = [n * s for n, s in zip(size, strides)]
    if shape is None:
        both = conv_pads(size, kernel, auto_pad, strides, dilations, pads)
        shape = [total - lo - hi for total, (lo, hi) in zip(full, both)]
    else:
        both = [split(total - n, auto_pad) for total, n in zip(full, shape)]
    if min(shape) < 1 or min(map(min, both)) < 0:
        pytest.skip('the documents have no padding for this shape')
    u, w, b = integers(2, 4, *size), integers(4, 6 // group, *kernel), integers(6)
    found = TRANSPOSE[rank](u, w, b, **pyconv.onnx.conv_transpose_arguments(w.shape, **node))
    wanted = reference.transposed(u, w, shape, strides, [lo for lo, _ in both], dilations, group)
    np.testing.assert_array_equal(found, wanted + b.reshape(-1, *(1,) * rank), strict=True)


def test_defaults():
    assert pyconv.onnx.conv_arguments((4, 2, 3)) == {
        'stride': (1,), 'padding': ((0, 0),), 'dilation': (1,), 'groups': 1}
    assert pyconv.onnx.conv_transpose_arguments((4, 2, 3)) == {
        'stride': (1,), 'padding': ((0, 0),), 'dilation': (1,), 'groups': 1, 'output_padding': (0,),
        'output_size': None}


def test_what_a_node_holds():
    """Bytes for strings, and zeros where an exporter writes all attributes."""
    arguments = pyconv.onnx.conv_arguments((4, 2, 3), auto_pad=b'SAME_LOWER', pads=[0, 0], strides=np.array([2]))
    assert arguments['padding'] == 'same_lower' and arguments['stride'] == (2,)


def test_pads_are_ignored_with_output_shape():
    arguments = pyconv.onnx.conv_transpose_arguments((4, 2, 3), pads=[5, 7], output_shape=[9])
    assert arguments['padding'] == 'same_lower' and arguments['output_size'] == (9,)
    arguments = pyconv.onnx.conv_transpose_arguments(
        (4, 2, 3), auto_pad='SAME_UPPER', pads=[5, 7], output_shape=[9])
    assert arguments['padding'] == 'same' and arguments['output_size'] == (9,)


@pytest.mark.parametrize('more', [{}, {'output_shape': [9]}])
def test_what_a_short_kernel_does_not_reach_lies_last(more):
    arguments = pyconv.onnx.conv_transpose_arguments((1, 1, 1), auto_pad='SAME_UPPER', strides=[3], **more)
    found = pyconv.conv_transpose1d(np.array([[[1., 2, 3]]]), np.ones((1, 1, 1)), **arguments)
    assert found.tolist() == [[[1, 0, 0, 2, 0, 0, 3, 0, 0]]]


CONV_NODE, TRANSPOSE_NODE = pyconv.onnx.conv_arguments, pyconv.onnx.conv_transpose_arguments
ERRORS = [
    ({'auto_pad': 'SAME'}, ValueError,
     "auto_pad must be one of 'NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'; got 'SAME'"),
    ({'auto_pad': b'\xff'}, ValueError,
     "auto_pad must be one of 'NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'; got b'\\xff'"),
    ({'auto_pad': 1}, TypeError, "auto_pad must be one of 'NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID'; got 1"),
    ({'auto_pad': 'VALID', 'pads': [0, 1, 0, 0]}, ValueError,
     "pads must be 0 where auto_pad is not 'NOTSET'; got [0, 1, 0, 0]"),
    ({'pads': [1, 1]}, ValueError, 'pads must be a sequence of 4 ints >= 0; got [1, 1]'),
    ({'pads': [0, 0, -1, 0]}, ValueError, 'pads must be a sequence of 4 ints >= 0; got [0, 0, -1, 0]'),
    ({'pads': 1}, TypeError, 'pads must be a sequence of 4 ints >= 0; got 1'),
    ({'strides': [2, 0]}, ValueError, 'strides must be a sequence of 2 ints >= 1; got [2, 0]'),
    ({'strides': 2}, TypeError, 'strides must be a sequence of 2 ints >= 1; got 2'),
    ({'strides': [2, 1.0]}, TypeError, 'strides must be a sequence of 2 ints >= 1; got [2, 1.0]'),
    ({'dilations': [1]}, ValueError, 'dilations must be a sequence of 2 ints >= 1; got [1]'),
    ({'group': 0}, ValueError, 'group must be an int >= 1; got 0'),
    ({'group': True}, TypeError, 'group must be an int >= 1; got True'),
    ({'kernel_shape': [3, 2]}, ValueError, 'kernel_shape must be that of the weight, (3, 3); got [3, 2]'),
    ({'kernel_shape': [3]}, ValueError, 'kernel_shape must be a sequence of 2 ints >= 1; got [3]'),
]
TRANSPOSE_ERRORS = [
    ({'output_padding': [1, -1]}, ValueError, 'output_padding must be a sequence of 2 ints >= 0; got [1, -1]'),
    ({'output_shape': [0, 3]}, ValueError, 'output_shape must be a sequence of 2 ints >= 1; got [0, 3]'),
    ({'output_shape': [1, 2, 3, 3]}, ValueError, 'output_shape must be a sequence of 2 ints >= 1; got [1, 2, 3, 3]'),
]


@pytest.mark.parametrize(('function', 'attributes', 'error', 'text'), [
    *((function, *row) for function in (CONV_NODE, TRANSPOSE_NODE) for row in ERRORS),
    *((TRANSPOSE_NODE, *row) for row in TRANSPOSE_ERRORS)], ids=lambda value: value if isinstance(value, str) else '')
def test_error(function, attributes, error, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        function((4, 2, 3, 3), **attributes)
    assert type(caught.value) is error and str(caught.value) == text


def test_errors_of_the_weight_s_shape():
    with pytest.raises(ValueError, match='^weight_shape must have'):
        CONV_NODE((4, 2))


def test_examples():
    pytest.importorskip('onnx')
    assert doctest.testmod(pyconv.onnx) == (0, 9)


@pytest.mark.parametrize('auto_pad', AUTO_PADS)
@pytest.mark.parametrize(('stride', 'dilation'), [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)])
def test_against_the_reference_of_onnx(auto_pad, stride, dilation):
    """Conv alone: the reference's ConvTranspose takes another part of the weight for a group, and pads by itself."""
    onnx = pytest.importorskip('onnx')
    evaluator = pytest.importorskip('onnx.reference').ReferenceEvaluator
    x, w, b = integers(2, 4, 9, 10), integers(6, 2, 3, 4), integers(6)
    node = {'auto_pad': auto_pad, 'strides': [stride, stride], 'dilations': [dilation, dilation], 'group': 2}
    if auto_pad == 'NOTSET':
        node['pads'] = [1, 2, 3, 0]
    wanted = evaluator(onnx.helper.make_node('Conv', ['x', 'w', 'b'], ['y'], **node)).run(
        None, {'x': x, 'w': w, 'b': b})[0]
    found = pyconv.conv2d(x, w, b, **pyconv.onnx.conv_arguments(w.shape, **node))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize('node', [
    {'strides': [2, 3], 'pads': [1, 0, 0, 1], 'output_padding': [1, 2]},
    {'strides': [2, 3], 'auto_pad': 'SAME_LOWER', 'output_shape': [9, 13]},
    {'strides': [2, 3], 'auto_pad': 'SAME_LOWER', 'output_shape': [10, 12]},
    {'strides': [2, 2], 'auto_pad': 'SAME_UPPER'}, {'strides': [2, 3], 'auto_pad': 'SAME_LOWER'},
    {'strides': [2, 2], 'auto_pad': 'SAME_UPPER', 'output_shape': [9, 9], 'output_padding': [1, 0]},
    {'strides': [1, 2], 'dilations': [2, 3], 'auto_pad': 'SAME_UPPER', 'output_shape': [7, 12]},
], ids=str)
def test_transposed_against_the_reference_of_onnx(node):
    """Without auto_pad that takes an output_shape for one without padding, and refuses it."""
    onnx = pytest.importorskip('onnx')
    evaluator = pytest.importorskip('onnx.reference').ReferenceEvaluator
    u, w = integers(2, 4, 5, 4), integers(4, 3, 3, 4)
    wanted = evaluator(onnx.helper.make_node('ConvTranspose', ['u', 'w'], ['v'], **node)).run(
        None, {'u': u, 'w': w})[0]
    found = pyconv.conv_transpose2d(u, w, **pyconv.onnx.conv_transpose_arguments(w.shape, **node))
    np.testing.assert_array_equal(found, wanted)


# ops


@pytest.fixture(scope='module')
def evaluator():
    """(a node or a model) -> its function of arrays by name, convolutions by pyconv."""
    reference_evaluator = pytest.importorskip('onnx.reference').ReferenceEvaluator

    def of(proto):
        made = reference_evaluator(proto, new_ops=pyconv.onnx.ops())
        return lambda **arrays: made.run(None, arrays)

    return of


def cases_of_onnx():
    """(node, inputs, outputs) of every node test that the package has for these operators, by name."""
    cases = {}
    for file in ('conv', 'convtranspose', 'convinteger'):
        module = pytest.importorskip(f'onnx.backend.test.case.node.{file}')
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, 'expect', lambda node, inputs, outputs, name: cases.update(
                {name: (node, inputs, outputs)}))
            [generator] = [value for value in vars(module).values()
                           if isinstance(value, type) and value.__module__ == module.__name__]
            for name, function in vars(generator).items():
                if name.startswith('export'):
                    function.__func__()
    return cases


NODE_TESTS = [
    'basic_conv_with_padding', 'basic_conv_without_padding', 'conv_with_strides_padding',
    'conv_with_strides_no_padding', 'conv_with_strides_and_asymmetric_padding', 'conv_with_autopad_same',
    'convtranspose', 'convtranspose_1d', 'convtranspose_3d', 'convtranspose_output_shape', 'convtranspose_pad',
    'convtranspose_kernel_shape', 'convtranspose_pads', 'convtranspose_dilations', 'convtranspose_autopad_same',
    'convtranspose_group_2', 'convtranspose_group_2_image_3', 'convinteger_without_padding',
    'convinteger_with_padding']


def test_node_tests_of_onnx(evaluator):
    """All that the package has, with its own tolerances; their numbers are small integers, but for float sums."""
    cases = cases_of_onnx()
    assert {f'test_{name}' for name in NODE_TESTS} <= set(cases)
    for name, (node, inputs, outputs) in cases.items():
        given = dict(zip((name for name in node.input if name), inputs))
        for found, wanted in zip(evaluator(node)(**given), outputs, strict=True):
            assert found.dtype == wanted.dtype and found.shape == wanted.shape, name
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-7, err_msg=name)


@pytest.mark.parametrize('rank', [1, 2, 3, 4])
def test_ops_of_any_rank_grouped_and_dilated(evaluator, rank):
    from onnx.helper import make_node

    size, kernel = (5, 4, 3, 4)[:rank], (2, 3, 1, 2)[:rank]
    strides, dilations = (2, 1, 2, 1)[:rank], (1, 2, 1, 2)[:rank]
    x, w, b = integers(2, 4, *size), integers(6, 2, *kernel), integers(6)
    node = {'group': 2, 'strides': strides, 'dilations': dilations, 'pads': [1] * rank + [2] * rank}
    pads = [(1, 2)] * rank
    positions = reference.output_size(size, kernel, strides, pads, dilations)
    [found] = evaluator(make_node('Conv', ['x', 'w', 'b'], ['y'], **node))(x=x, w=w, b=b)
    wanted = reference.forward(x, w, positions, strides, [1] * rank, dilations, 2)
    np.testing.assert_array_equal(found, wanted + b.reshape(-1, *(1,) * rank), strict=True)
    u, c = integers(2, 6, *size), integers(4)
    node['pads'] = [0] * (2 * rank)
    shape = reference.transposed_size(size, kernel, strides, [(0, 0)] * rank, dilations, (0,) * rank)
    [found] = evaluator(make_node('ConvTranspose', ['u', 'w', 'c'], ['v'], **node))(u=u, w=w, c=c)
    wanted = reference.transposed(u, w, shape, strides, [0] * rank, dilations, 2)
    np.testing.assert_array_equal(found, wanted + c.reshape(-1, *(1,) * rank), strict=True)


def test_a_model(evaluator, monkeypatch):
    """Its convolutions are pyconv's, one of them in a branch, and its other nodes the evaluator's."""
    from onnx import TensorProto, helper, numpy_helper

    x, w, v = (integers(*shape).astype(np.float32) for shape in ((1, 2, 6, 5), (3, 2, 3, 3), (3, 2, 2, 2)))
    branch = helper.make_graph([helper.make_node('ConvTranspose', ['h', 'v'], ['z'], strides=[2, 2])], 'branch', [],
                               [helper.make_tensor_value_info('z', TensorProto.FLOAT, None)])
    nodes = [helper.make_node('Conv', ['x', 'w'], ['a'], auto_pad='SAME_LOWER', strides=[2, 2]),
             helper.make_node('Relu', ['a'], ['h']),
             helper.make_node('If', ['yes'], ['y'], then_branch=branch, else_branch=branch)]
    graph = helper.make_graph(
        nodes, 'graph', [helper.make_tensor_value_info('x', TensorProto.FLOAT, ['n', 2, 6, 5])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, 'w'), numpy_helper.from_array(v, 'v'),
         numpy_helper.from_array(np.array(True), 'yes')])
    calls, convolution = [], pyconv.onnx.convolution
    monkeypatch.setattr(pyconv.onnx, 'convolution', lambda *arrays, **settings: (
        calls.append(settings['transposed']) or convolution(*arrays, **settings)))
    [found] = evaluator(helper.make_model(graph))(x=x)
    hidden = np.maximum(pyconv.conv2d(x, w, padding='same_lower', stride=2), 0)
    np.testing.assert_array_equal(found, pyconv.conv_transpose2d(hidden, v, stride=2), strict=True)
    assert calls == [False, True]


@pytest.mark.parametrize('types', ['uu', 'ui', 'iu', 'ii'])
def test_conv_integer(evaluator, types):
    """Extreme values, each type of both operands, a zero point for each output channel; padding is the zero point."""
    from onnx.helper import make_node

    limits = [np.iinfo({'i': np.int8, 'u': np.uint8}[kind]) for kind in types]
    x, w = (np.random.default_rng(0).choice([info.min, info.max], shape).astype(info.dtype)
            for info, shape in zip(limits, ((2, 4, 7, 6), (6, 2, 3, 2))))
    x_zero, w_zero = (info.dtype.type(info.max - 3) for info in limits)
    zeros = np.arange(6).astype(w.dtype)
    node = make_node('ConvInteger', ['x', 'w', 'p', 'q'], ['y'], group=2, pads=[1, 0, 2, 1], strides=[1, 2])
    wide, wide_w = x.astype(int) - int(x_zero), w.astype(int)
    positions = reference.output_size((7, 6), (3, 2), (1, 2), [(1, 2), (0, 1)], (1, 1))
    for given, centred in ((zeros, wide_w - zeros.reshape(-1, 1, 1, 1)), (w_zero, wide_w - int(w_zero))):
        [found] = evaluator(node)(x=x, w=w, p=x_zero, q=given)
        wanted = reference.forward(wide, centred, positions, (1, 2), (1, 0), (1, 1), 2)
        np.testing.assert_array_equal(found, wanted.astype(np.int32), strict=True)
    node = make_node('ConvInteger', ['x', 'w'], ['y'], group=2)
    wanted = pyconv.conv2d(x.astype(np.int32), w.astype(np.int32), groups=2, dtype=np.int32)
    np.testing.assert_array_equal(evaluator(node)(x=x, w=w)[0], wanted, strict=True)


def test_errors_of_ops(evaluator):
    from onnx.helper import make_node

    x, w = np.ones((1, 2, 5, 5), np.uint8), np.ones((3, 2, 3, 3), np.uint8)
    node = make_node('ConvInteger', ['x', 'w', 'p', 'q'], ['y'])
    for p, q, text in (
        (np.ones(2, np.uint8), w[0, 0, 0, 0], r'x_zero_point must have one element; got shape (2,)'),
        (x[0, 0, 0, 0], np.ones(2, np.uint8), r'w_zero_point must have one element or shape (3,); got shape (2,)'),
    ):
        with pytest.raises(ValueError) as caught:
            evaluator(node)(x=x, w=w, p=p, q=q)
        assert str(caught.value) == text
    wide, byte = np.ones((1, 2, 5, 5)), np.uint8(1)
    for given, text in (
        ({'x': wide}, 'x must have dtype int8 or uint8; got float64'),
        ({'x': x.astype(np.int16)}, 'x must have dtype int8 or uint8; got int16'),
        ({'w': w.astype(np.float32)}, 'w must have dtype int8 or uint8; got float32'),
        ({'w': w > 0}, 'w must have dtype int8 or uint8; got bool'),
        ({'p': np.float32(0.5)}, 'x_zero_point must have the dtype of x, uint8; got float32'),
        ({'q': np.ones(3, np.int8)}, 'w_zero_point must have the dtype of w, uint8; got int8'),
    ):
        with pytest.raises(TypeError) as caught:
            evaluator(node)(**{'x': x, 'w': w, 'p': byte, 'q': byte, **given})
        assert str(caught.value) == text
    with pytest.raises(TypeError, match='^weight must have the dtype of input, float64; got float32$'):
        evaluator(make_node('Conv', ['x', 'w'], ['y']))(x=wide, w=w.astype(np.float32))
    with pytest.raises(ValueError, match='^pads must be a sequence of 4 ints >= 0; got'):
        evaluator(make_node('Conv', ['x', 'w'], ['y'], pads=[1, 1]))(x=x * 1.0, w=w * 1.0)
