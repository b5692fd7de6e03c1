"""Random geometries and random floats against torch in float64.

The tolerance is the standard bound of a sum of K products in any order, |error| <= K*eps*(|x|*|w|) with |x|*|w| the
same map of the absolute values, for ours and (in float64) once more for torch's.  A fast transform mixes neighbouring
positions, so the bound takes the largest |x|*|w| of its channel instead of the one of its position.
"""
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pyconv
from calls import CONV, INPUT, TRANSPOSE, WEIGHT

TORCH = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
TORCH_TRANSPOSE = {1: torch.nn.functional.conv_transpose1d, 2: torch.nn.functional.conv_transpose2d,
                   3: torch.nn.functional.conv_transpose3d}
LONGEST = {1: 60, 2: 17, 3: 8}
WIDEST_KERNEL = {1: 9, 2: 5, 3: 3}


@st.composite
def geometries(draw):
    """Sizes are chosen from what a user may say: the input is as long as the padded kernel needs, and some more."""
    rank = draw(st.integers(1, 3))

    def axes(values):
        return tuple(draw(values) for _ in range(rank))

    kernel = axes(st.integers(1, WIDEST_KERNEL[rank]))
    stride, dilation = axes(st.integers(1, 4)), axes(st.integers(1, 3))
    pads = tuple((draw(st.integers(-2, 4)), draw(st.integers(-2, 4))) for _ in range(rank))
    if draw(st.booleans()):
        pads = tuple((abs(lo), abs(lo)) for lo, _ in pads)
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, kernel)]
    least = [max(1, e - lo - hi, -lo, -hi) for e, (lo, hi) in zip(extent, pads)]
    size = tuple(low + draw(st.integers(0, max(0, LONGEST[rank] - low))) for low in least)
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5, 8]))
    most = max(1, 40 // groups) if draw(st.integers(0, 3)) == 0 else max(1, 9 // groups)
    channels = [groups * draw(st.integers(1, most)) for _ in range(2)]
    return {'rank': rank, 'size': size, 'kernel': kernel, 'stride': stride, 'dilation': dilation, 'pads': pads,
            'groups': groups, 'channels': channels, 'batch': draw(st.integers(1, 4)),
            'dtype': draw(st.sampled_from([np.float32, np.float64])), 'seed': draw(st.integers(0, 99))}


def torch_maps(case, x, w, y):
    """(forward, grad_input, grad_weight) in float64; without y, that of ones."""
    x, w = (torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (x, w))
    around = [amount for pair in reversed(case['pads']) for amount in pair]
    answer = TORCH[case['rank']](torch.nn.functional.pad(x, around), w, None, case['stride'], 0, case['dilation'],
                                 case['groups'])
    y = torch.ones_like(answer) if y is None else torch.from_numpy(y.astype(np.float64))
    return [a.detach().numpy() for a in (answer, *torch.autograd.grad(answer, (x, w), y))]


def assert_close(answer, wanted, absolute, terms, channel_axes):
    """absolute: the same map of the absolute values; its largest value is taken over all but the channel_axes."""
    assert answer.shape == wanted.shape
    others = tuple(axis for axis in range(answer.ndim) if axis not in channel_axes)
    scale = absolute.max(axis=others, keepdims=True)
    # + 2: the rounding of the result and of a bias
    bound = (terms + 2) * (np.finfo(answer.dtype).eps + np.finfo(np.float64).eps) * scale
    error = np.abs(answer.astype(np.float64) - wanted)
    assert (error <= bound).all(), f'{(error / np.maximum(bound, 1e-300)).max():.3g} times the bound'


@settings(max_examples=600)
@given(geometries())
def test_random_convolutions(case):
    rank, dtype = case['rank'], case['dtype']
    rng = np.random.default_rng(case['seed'])
    x = rng.standard_normal((case['batch'], case['channels'][0], *case['size'])).astype(dtype)
    shape = (case['channels'][1], case['channels'][0] // case['groups'], *case['kernel'])
    w = rng.standard_normal(shape).astype(dtype)
    outputs = torch_maps(case, x, w, None)[0].shape
    y = rng.standard_normal(outputs).astype(dtype)
    wanted, absolute = torch_maps(case, x, w, y), torch_maps(case, *map(np.abs, (x, w, y)))
    keywords = {'stride': case['stride'], 'padding': case['pads'], 'dilation': case['dilation'],
                'groups': case['groups']}
    taps = math.prod(case['kernel'])
    assert_close(CONV[rank](x, w, **keywords), wanted[0], absolute[0], taps * w.shape[1], (0, 1))
    assert_close(INPUT[rank](x.shape, w, y, **keywords), wanted[1], absolute[1],
                 taps * w.shape[0] // case['groups'], (0, 1))
    assert_close(WEIGHT[rank](x, w.shape, y, **keywords), wanted[2], absolute[2],
                 outputs[0] * math.prod(outputs[2:]), (0, 1))


@st.composite
def transposed_geometries(draw):
    """What torch's transposed convolution takes: equal pads, an output_padding below the stride or the dilation."""
    case = draw(geometries())
    rank = case['rank']
    extent = [d * (k - 1) + 1 for d, k in zip(case['dilation'], case['kernel'])]
    extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(case['stride'], case['dilation']))
    size = tuple(min(length, LONGEST[rank] // s + 1) for length, s in zip(case['size'], case['stride']))
    room = [(n - 1) * s + e + o - 1 for n, s, e, o in zip(size, case['stride'], extent, extra)]
    padding = tuple(draw(st.integers(0, min(4, left // 2))) for left in room)
    return {**case, 'size': size, 'padding': padding, 'output_padding': extra}


@settings(max_examples=300)
@given(transposed_geometries())
def test_random_transposed_convolutions(case):
    rank, dtype, groups = case['rank'], case['dtype'], case['groups']
    rng = np.random.default_rng(case['seed'])
    inputs, outputs = case['channels']
    u = rng.standard_normal((case['batch'], inputs, *case['size'])).astype(dtype)
    w = rng.standard_normal((inputs, outputs // groups, *case['kernel'])).astype(dtype)
    bias = rng.standard_normal(outputs).astype(dtype)
    arguments = (case['stride'], case['padding'], case['output_padding'], groups, case['dilation'])

    def of(u, w, bias, grad):
        parts = [torch.from_numpy(a.astype(np.float64)).requires_grad_() for a in (u, w, bias)]
        answer = TORCH_TRANSPOSE[rank](*parts, *arguments)
        grad = torch.ones_like(answer) if grad is None else torch.from_numpy(grad.astype(np.float64))
        return [a.detach().numpy() for a in (answer, *torch.autograd.grad(answer, parts, grad))]

    shape = of(u, w, bias, None)[0].shape
    grad = rng.standard_normal(shape).astype(dtype)
    wanted, absolute = of(u, w, bias, grad), of(*map(np.abs, (u, w, bias, grad)))
    taps, positions = math.prod(case['kernel']), math.prod(shape[2:])
    answer = TRANSPOSE[rank](u, w, bias, *arguments)
    assert_close(answer, wanted[0], absolute[0], taps * inputs // groups + 1, (0, 1))
    answers = pyconv.convolution_backward(grad, u, w, case['stride'], case['padding'], case['dilation'], True,
                                          case['output_padding'], groups, (True, True, True))
    for answer, exact, scale, terms in zip(answers, wanted[1:], absolute[1:], (
            taps * outputs // groups, case['batch'] * math.prod(case['size']), case['batch'] * positions)):
        assert_close(answer, exact, scale, terms, (0, 1)[:answer.ndim])
