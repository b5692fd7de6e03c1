"""THE list of geometries: every behaviour test runs over PROBLEMS or a part of it, so a new flag is a new row here.

A row is one trilinear form (reference.py) in the words of the public functions: forward reads x and gives y, grad_input
reads y and gives x, and the transposed convolution that undoes it reads y and gives x as well.
Data are small integers, so that float32 is exact and answers are compared with ==.
"""
import math
import os
import zlib
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

import reference

# PYCONV_TEST_ALL=1: every test with all of its parameters, every kernel of the GPU compiled.
TEST_ALL = os.environ.get('PYCONV_TEST_ALL') == '1'


class Data(NamedTuple):
    """x and y with a batch axis, w, the bias b of forward and the bias c of the transposed convolution."""
    x: np.ndarray
    w: np.ndarray
    y: np.ndarray
    b: np.ndarray
    c: np.ndarray


class Problem(NamedTuple):
    """One geometry; channels are (in, out) of forward, all groups together."""
    name: str
    size: tuple
    kernel: tuple
    channels: tuple = (2, 3)
    groups: int = 1
    batch: int = 2
    stride: object = 1
    padding: object = 0
    dilation: object = 1
    output_padding: object = None  # for the transposed convolution; None: what the stride leaves over
    padding_mode: str = 'zeros'
    padding_value: int = 0

    def __str__(self):
        return self.name.replace(' ', '-')

    @property
    def rank(self):
        return len(self.size)

    def per_axis(self, value):
        return (value,) * self.rank if isinstance(value, int) else tuple(value)

    @property
    def pads(self):
        return reference.named_or_numeric_padding(
            self.padding, self.size, self.kernel, self.per_axis(self.stride), self.per_axis(self.dilation))

    @property
    def positions(self):
        return reference.output_size(
            self.size, self.kernel, self.per_axis(self.stride), self.pads, self.per_axis(self.dilation))

    @property
    def input_shape(self):
        return (self.batch, self.channels[0], *self.size)

    @property
    def weight_shape(self):
        return (self.channels[1], self.channels[0] // self.groups, *self.kernel)

    @property
    def output_shape(self):
        return (self.batch, self.channels[1], *self.positions)

    @property
    def mode(self):
        """The keywords that say what padded cells hold; none where that is nothing."""
        mode = {} if self.padding_mode == 'zeros' else {'padding_mode': self.padding_mode}
        return mode if self.padding_mode != 'constant' else {**mode, 'padding_value': self.padding_value}

    @property
    def keywords(self):
        """Of every public function that undoes nothing."""
        return {'stride': self.stride, 'padding': self.padding, 'dilation': self.dilation, 'groups': self.groups,
                **self.mode}

    @property
    def form(self):
        """Of the reference's maps."""
        padding = reference.Padding(self.padding_mode, self.padding_value, reference.kept(self.size, self.pads))
        return {'stride': self.per_axis(self.stride), 'lo': tuple(lo for lo, _ in self.pads),
                'dilation': self.per_axis(self.dilation), 'groups': self.groups,
                **({} if self.padding_mode == 'zeros' else {'padding': padding})}

    @property
    def transposed_padding(self):
        """(padding, output_padding) with which the transposed convolution of y has the size of x, in numbers."""
        stride, dilation = self.per_axis(self.stride), self.per_axis(self.dilation)
        zeros = (0,) * self.rank
        small = reference.transposed_size(self.positions, self.kernel, stride, self.pads, dilation, zeros)
        left = tuple(wanted - length for wanted, length in zip(self.size, small))
        if self.output_padding is None:
            return (self.padding if not isinstance(self.padding, str) else self.pads), left
        extra = self.per_axis(self.output_padding)
        pads = [(lo, hi + e - rest) for (lo, hi), e, rest in zip(self.pads, extra, left)]
        return (tuple(lo for lo, _ in pads) if all(lo == hi for lo, hi in pads) else pads), extra

    @property
    def transposed_keywords(self):
        """Of conv_transpose; a name for padding goes with output_size, as it would be ambiguous without."""
        keywords = {'stride': self.stride, 'dilation': self.dilation, 'groups': self.groups, **self.mode}
        if self.padding in ('same', 'same_lower'):
            return {**keywords, 'padding': self.padding, 'output_size': self.size}
        padding, output_padding = self.transposed_padding
        if isinstance(self.padding, str):
            padding = self.padding
        return {**keywords, 'padding': padding, 'output_padding': output_padding}

    @property
    def terms(self):
        """The most products that one element of forward, grad_input and grad_weight sums."""
        taps = math.prod(self.kernel)
        return (self.weight_shape[1] * taps, self.channels[1] // self.groups * taps,
                self.batch * math.prod(self.positions))

    def integers(self, dtype=np.float64, low=-3, high=3):
        """Data of small integers, the same for every dtype."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        shapes = (self.input_shape, self.weight_shape, self.output_shape, self.channels[1:], self.channels[:1])
        return Data(*(rng.integers(low, high, shape, endpoint=True).astype(dtype) for shape in shapes))

    def floats(self, dtype=np.float64, seed=0):
        """Data of normal floats."""
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode())])
        shapes = (self.input_shape, self.weight_shape, self.output_shape, self.channels[1:], self.channels[:1])
        return Data(*(rng.standard_normal(shape).astype(dtype) for shape in shapes))


class Expected(NamedTuple):
    """The three maps of a problem's integers, without bias."""
    forward: np.ndarray
    grad_input: np.ndarray
    grad_weight: np.ndarray


def maps(problem, x, w, y):
    """The reference's three maps of any arrays of the problem's shapes."""
    return Expected(
        reference.forward(x, w, problem.positions, **problem.form),
        reference.grad_input(w, y, problem.size, **problem.form),
        reference.grad_weight(x, y, problem.kernel, **problem.form),
    )


@cache
def expected(problem_name):
    """The three maps of a problem's integers, worked out once for all tests; read-only."""
    return read_only(maps(BY_NAME[problem_name], *BY_NAME[problem_name].integers()[:3]))


def whole(problem):
    """As `expected` for a problem that need not be in the list, once for its tests that follow each other."""
    padding = problem.padding
    return _whole(problem._replace(padding=tuple(padding) if isinstance(padding, list) else padding))


@lru_cache(maxsize=16)
def _whole(problem):
    return read_only(maps(problem, *problem.integers()[:3]))


def read_only(answers):
    for answer in answers:
        answer.flags.writeable = False
    return answers


P = Problem

BASIC = [
    P('1d', (9,), (3,)),
    P('2d', (6, 7), (3, 2)),
    P('3d', (4, 5, 6), (2, 3, 2)),
    P('1d one of everything', (1,), (1,), (1, 1), batch=1),
    P('2d one of everything', (1, 1), (1, 1), (1, 1), batch=1),
    P('3d one of everything', (1, 1, 1), (1, 1, 1), (1, 1), batch=1),
    P('1d batch 1', (11,), (4,), (3, 5), batch=1),
    P('2d batch 1', (8, 9), (3, 3), (3, 5), batch=1),
    P('3d batch 1', (4, 4, 5), (3, 3, 3), (3, 5), batch=1),
    P('2d batch 7', (5, 6), (3, 3), (3, 5), batch=7),
    P('1d kernel 1', (13,), (1,), (3, 5)),
    P('2d kernel 1', (6, 7), (1, 1), (5, 7)),
    P('3d kernel 1', (3, 4, 5), (1, 1, 1), (3, 2)),
    P('2d kernel 1 padded', (5, 4), (1, 1), (3, 5), padding=1),
    P('2d kernel 1 cropped', (7, 6), (1, 1), (3, 5), padding=((-1, -2), (-2, 0))),
    P('1d kernel is input', (9,), (9,), (3, 5)),
    P('2d kernel is input', (5, 6), (5, 6), (3, 4), batch=3),
    P('3d kernel is input', (3, 4, 2), (3, 4, 2), (2, 3), batch=3),
    P('2d fully connected', (12, 12), (12, 12), (9, 17), batch=5),
    P('2d fully connected kernel 1', (1, 1), (1, 1), (65, 33), batch=9),
    P('1d kernel above input', (4,), (9,), (3, 5), padding=5),
    P('2d kernel above input', (4, 5), (9, 7), (3, 5), padding=(4, 3)),
    P('2d kernel above input strided', (4, 3), (8, 7), (3, 5), padding=6, stride=(2, 3)),
    P('3d kernel above input', (2, 3, 1), (3, 5, 4), (2, 3), padding=(1, 2, 3)),
    P('2d row kernel', (6, 9), (1, 4), (3, 5), padding=(0, 2)),
    P('2d column kernel', (9, 6), (5, 1), (3, 5), padding=(2, 0)),
    P('2d even kernel', (7, 8), (4, 2), (3, 5), padding=(2, 1)),
    P('3d even kernel', (4, 5, 6), (2, 2, 4), (2, 3), padding=1),
]

STRIDES = [
    P('1d stride 2', (10,), (3,), (3, 5), stride=2),
    P('1d stride 3 rest 2', (12,), (4,), (3, 5), stride=3),
    P('1d stride above kernel', (17,), (2,), (3, 5), stride=5, padding=1),
    P('1d stride above input', (4,), (3,), (3, 5), stride=9, padding=1),
    P('1d stride far above input', (4,), (3,), (3, 5), stride=1000, padding=1),
    P('2d stride 2', (9, 10), (3, 3), (3, 5), stride=2, padding=1),
    P('2d stride 2 kernel 1', (9, 8), (1, 1), (5, 7), stride=2),
    P('2d stride 3 kernel 1 padded', (8, 9), (1, 1), (3, 5), stride=3, padding=1),
    P('2d stride 2 kernel 2', (8, 6), (2, 2), (3, 5), stride=2),
    P('2d stride per axis', (9, 11), (3, 3), (3, 5), stride=(1, 3), padding=1),
    P('2d stride per axis rest', (10, 7), (2, 3), (3, 5), stride=(3, 2)),
    P('2d stride above kernel', (11, 13), (2, 3), (3, 5), stride=(4, 5)),
    P('2d stride above input', (3, 5), (3, 3), (3, 5), stride=(7, 8), padding=1),
    P('2d stride 4 kernel 3', (13, 14), (3, 3), (2, 3), stride=4, padding=2),
    P('2d stride 4 kernel 7', (19, 18), (7, 7), (3, 4), stride=4, padding=3),
    P('2d stride 5 kernel 11 dilated', (29, 31), (11, 9), (2, 3), stride=(5, 3), dilation=(2, 3), padding=(9, 12)),
    P('2d stride 20', (70, 45), (23, 20), (1, 2), stride=20, padding=(3, 0)),
    P('3d stride 2', (5, 6, 7), (3, 3, 3), (2, 3), stride=2, padding=1),
    P('3d stride per axis', (5, 6, 7), (2, 3, 2), (2, 3), stride=(1, 2, 3), padding=(0, 1, 1)),
    P('3d stride above kernel', (7, 6, 8), (2, 1, 2), (2, 3), stride=(3, 4, 5)),
    P('2d first layer', (33, 35), (7, 7), (3, 16), stride=2, padding=3),
    P('2d patches', (32, 48), (16, 16), (3, 20), stride=16),
    P('2d patches rest', (37, 35), (16, 16), (3, 5), stride=16, padding=1),
    P('1d taps in two turns', (90,), (16,), (1, 64), stride=8, batch=3),
    P('1d taps in three turns', (102,), (11,), (1, 70), stride=4),
    P('1d taps in turns dilated', (80,), (5,), (1, 64), stride=6, dilation=2, batch=2),
    P('1d taps in turns in groups', (50,), (6,), (2, 130), stride=4, groups=2, batch=2),
    P('2d taps in turns along x', (3, 50), (1, 8), (1, 64), stride=(1, 4)),
    P('2d patches few channels', (24, 24), (8, 8), (1, 33), stride=8, batch=3),
    P('1d kernel nearly input', (40,), (38,), (3, 5), batch=3),
    P('2d kernel nearly input', (9, 8), (8, 7), (4, 6), groups=2, batch=2),
    P('2d kernel nearly input strided', (15, 9), (13, 8), (3, 5), stride=(2, 3), padding=((1, 0), (0, 1))),
]

DILATIONS = [
    P('1d dilation 2', (11,), (3,), (3, 5), dilation=2),
    P('1d dilation above input', (5,), (3,), (3, 5), dilation=4, padding=4),
    P('2d dilation 2', (9, 10), (3, 3), (3, 5), dilation=2, padding=2),
    P('2d dilation per axis', (9, 10), (3, 2), (3, 5), dilation=(1, 4), padding=(1, 2)),
    P('3d dilation', (6, 7, 6), (2, 3, 2), (2, 3), dilation=(3, 2, 1), padding=(1, 2, 0)),
    *(P(f'1d stride {s} dilation {d}', (29,), (4,), (3, 5), stride=s, dilation=d, padding=d)
      for s, d in ((2, 2), (2, 3), (2, 4), (3, 2), (3, 3), (4, 2), (4, 6), (6, 4), (6, 9))),
    P('2d stride 2 dilation 2', (12, 13), (3, 3), (3, 5), stride=2, dilation=2, padding=2),
    P('2d stride 4 dilation 6', (21, 22), (3, 3), (2, 3), stride=(4, 6), dilation=(6, 4), padding=5),
    P('2d stride 2 dilation 3', (13, 12), (3, 3), (3, 5), stride=2, dilation=3, padding=(3, 2)),
    P('3d stride 2 dilation 2', (7, 8, 9), (3, 2, 2), (2, 3), stride=2, dilation=(2, 1, 3), padding=2),
]

PADDINGS = [
    P('1d padding int', (8,), (3,), (3, 5), padding=2),
    P('1d padding tuple', (8,), (3,), (3, 5), padding=(2,)),
    P('1d padding pair', (8,), (3,), (3, 5), padding=((3, 1),)),
    P('1d padding far above kernel', (6,), (3,), (3, 5), padding=9),
    P('1d padding around one cell', (1,), (3,), (3, 5), padding=5),
    P('1d crop', (14,), (3,), (3, 5), padding=((-2, -3),)),
    P('1d crop above kernel', (19,), (3,), (3, 5), padding=((-7, -5),)),
    P('1d crop and pad', (11,), (4,), (3, 5), stride=2, padding=((-3, 4),)),
    P('1d pad and crop', (11,), (4,), (3, 5), stride=2, padding=((4, -3),)),
    P('2d padding int', (6, 5), (3, 3), (3, 5), padding=2),
    P('2d padding per axis', (6, 7), (3, 4), (3, 5), padding=(0, 2)),
    P('2d padding list', (6, 7), (3, 4), (3, 5), padding=[2, 1]),
    P('2d padding pairs', (6, 7), (3, 4), (3, 5), padding=((0, 2), (3, 1))),
    P('2d padding pairs strided', (7, 9), (3, 4), (3, 5), stride=(3, 2), padding=[(1, 0), (0, 3)]),
    P('2d padding far above kernel', (4, 3), (3, 3), (3, 5), padding=(7, 8)),
    P('2d padding far above kernel strided', (4, 3), (3, 3), (3, 5), padding=(7, 8), stride=2),
    P('2d crop', (9, 10), (3, 3), (3, 5), padding=((-1, -2), (-3, -1))),
    P('2d crop one axis', (9, 10), (3, 3), (3, 5), padding=((-1, -2), (2, 1)), stride=2),
    P('2d crop strided dilated', (15, 16), (3, 2), (3, 5), padding=((-4, 1), (2, -3)), stride=2, dilation=(2, 3)),
    P('2d crop of cells nobody reads', (12, 5), (2, 3), (3, 5), padding=((-5, -4), (0, 0))),
    P('3d padding per axis', (4, 3, 5), (3, 2, 3), (2, 3), padding=(1, 0, 2)),
    P('3d padding pairs', (4, 3, 5), (3, 2, 3), (2, 3), padding=((1, 0), (2, 1), (0, 3))),
    P('3d crop', (6, 5, 7), (2, 2, 3), (2, 3), padding=((-1, 0), (2, -2), (-1, -2))),
    P('1d valid', (8,), (3,), (3, 5), padding='valid'),
    P('1d same', (8,), (3,), (3, 5), padding='same'),
    P('1d same even kernel', (8,), (4,), (3, 5), padding='same'),
    P('1d same strided', (11,), (4,), (3, 5), padding='same', stride=3),
    P('1d same stride above kernel', (12,), (2,), (3, 5), padding='same', stride=5),
    P('1d same lower', (8,), (4,), (3, 5), padding='same_lower'),
    P('1d same lower strided', (10,), (4,), (3, 5), padding='same_lower', stride=3),
    P('1d causal', (8,), (4,), (3, 5), padding='causal'),
    P('1d causal dilated', (17,), (3,), (3, 5), padding='causal', dilation=4),
    P('1d causal strided', (17,), (3,), (3, 5), padding='causal', stride=2),
    P('1d full', (8,), (4,), (3, 5), padding='full'),
    P('2d valid', (6, 7), (3, 2), (3, 5), padding='valid'),
    P('2d same', (6, 7), (3, 5), (3, 5), padding='same'),
    P('2d same even kernel', (6, 7), (2, 4), (3, 5), padding='same'),
    P('2d same strided dilated', (9, 10), (3, 2), (3, 5), padding='same', stride=(2, 3), dilation=(1, 3)),
    P('2d same lower', (6, 7), (2, 4), (3, 5), padding='same_lower'),
    P('2d same lower strided dilated', (9, 10), (3, 2), (3, 5), padding='same_lower', stride=(2, 3), dilation=(1, 3)),
    P('2d causal', (6, 7), (3, 2), (3, 5), padding='causal', dilation=(1, 2)),
    P('2d full', (4, 5), (3, 2), (3, 5), padding='full'),
    P('2d full strided dilated', (5, 4), (3, 2), (3, 5), padding='full', stride=2, dilation=(2, 3)),
    P('3d same', (4, 5, 3), (3, 2, 3), (2, 3), padding='same'),
    P('3d same strided', (4, 5, 7), (3, 2, 3), (2, 3), padding='same', stride=(2, 1, 3)),
    P('3d same lower', (4, 5, 3), (2, 2, 4), (2, 3), padding='same_lower'),
    P('3d causal', (4, 5, 3), (2, 3, 2), (2, 3), padding='causal'),
    P('3d full', (3, 2, 4), (2, 3, 2), (2, 3), padding='full'),
]

GROUPS = [
    P('1d groups 2', (9,), (3,), (4, 6), groups=2),
    P('1d groups 3 strided dilated', (17,), (3,), (6, 9), groups=3, stride=2, dilation=2, padding=3),
    P('2d groups 2', (6, 7), (3, 3), (4, 6), groups=2, padding=1),
    P('2d groups of one in, three out', (6, 7), (3, 3), (5, 15), groups=5, padding=1),
    P('2d groups of three in, one out', (6, 7), (3, 3), (15, 5), groups=5, padding=1),
    P('2d groups of two in, three out strided', (9, 8), (3, 3), (8, 12), groups=4, padding=1, stride=2),
    P('2d groups of 4', (7, 9), (3, 3), (32, 32), groups=8, padding=1),
    P('2d groups of 4 strided', (8, 9), (3, 3), (32, 32), groups=8, padding=1, stride=2),
    P('2d groups of 9 in, 10 out', (6, 5), (3, 3), (27, 30), groups=3, padding=1),
    P('2d groups of 17', (5, 6), (3, 3), (34, 34), groups=2, padding=1),
    P('2d groups of 33 in, 5 out', (5, 6), (2, 2), (66, 10), groups=2),
    P('2d groups kernel 1', (5, 6), (1, 1), (12, 18), groups=6),
    P('2d groups kernel 1 strided', (5, 6), (1, 1), (12, 18), groups=3, stride=2),
    P('2d groups everything', (13, 15), (3, 2), (6, 4), groups=2, stride=(2, 3), dilation=(2, 1),
      padding=((3, -1), (0, 2))),
    P('3d groups everything', (6, 7, 5), (2, 3, 2), (4, 6), groups=2, stride=(2, 1, 3), dilation=(1, 2, 2),
      padding=((1, 0), (2, 1), (-1, 2))),
    P('1d depthwise', (21,), (4,), (7, 7), groups=7, padding=((3, 0),)),
    P('1d depthwise multiplier', (12,), (3,), (5, 10), groups=5, stride=2, padding=1),
    P('2d depthwise', (8, 9), (3, 3), (7, 7), groups=7, padding=1),
    P('2d depthwise kernel 1', (8, 9), (1, 1), (7, 7), groups=7),
    P('2d whole vectors kernel 1', (6, 7), (1, 1), (48, 37), batch=3),
    P('3d groups of whole vectors kernel 1', (2, 3, 5), (1, 1, 1), (32, 42), groups=2),
    P('2d depthwise kernel 5', (11, 9), (5, 5), (3, 3), groups=3, padding=2),
    P('2d depthwise kernel 7', (9, 17), (7, 7), (5, 5), groups=5, padding=3),
    P('2d depthwise strided', (9, 10), (3, 3), (17, 17), groups=17, padding=1, stride=2),
    P('2d depthwise stride 3', (11, 10), (5, 5), (5, 5), groups=5, padding=2, stride=3),
    P('2d depthwise dilated', (10, 11), (3, 3), (5, 5), groups=5, padding=2, dilation=2),
    P('2d depthwise strided dilated', (13, 12), (3, 3), (5, 5), groups=5, padding=3, dilation=3, stride=2),
    P('2d depthwise multiplier 2', (6, 7), (3, 3), (5, 10), groups=5, padding=1),
    P('2d depthwise multiplier 3 strided', (8, 7), (3, 2), (3, 9), groups=3, stride=2, padding='same'),
    P('2d depthwise uneven pads', (6, 7), (4, 3), (3, 3), groups=3, padding=((3, 0), (-1, 4))),
    P('2d depthwise kernel above input', (4, 5), (9, 7), (3, 3), groups=3, padding=(4, 3)),
    P('2d depthwise kernel above input strided', (3, 4), (7, 6), (3, 3), groups=3, padding=5, stride=(2, 3)),
    P('2d depthwise stride above kernel', (13, 14), (2, 3), (3, 3), groups=3, stride=(5, 4)),
    P('2d depthwise one channel', (19, 20), (3, 3), (1, 1), padding=1),
    P('2d depthwise kernel 5 strided', (12, 11), (5, 5), (18, 18), groups=18, padding=2, stride=2),
    P('2d depthwise kernel 7 of 20', (8, 9), (7, 7), (20, 20), groups=20, padding=3, batch=1),
    P('2d depthwise multiplier 2 of 17', (6, 7), (3, 3), (17, 34), groups=17, padding=1),
    P('2d depthwise of 16', (3, 37), (3, 3), (16, 16), groups=16, padding=1),
    P('3d depthwise of 19 strided', (5, 6, 7), (3, 2, 3), (19, 19), groups=19, padding=1, stride=(1, 2, 1), batch=1),
    P('2d depthwise many channels', (5, 5), (3, 3), (130, 130), groups=130, padding=1, batch=1),
    P('2d depthwise wide', (3, 411), (3, 3), (2, 2), groups=2, padding=1),
    P('2d depthwise wide strided', (3, 411), (3, 5), (2, 2), groups=2, padding=(1, 2), stride=2),
    P('3d depthwise', (4, 5, 6), (3, 3, 3), (5, 5), groups=5, padding=1),
    P('3d depthwise strided', (5, 6, 7), (3, 2, 3), (3, 6), groups=3, padding=1, stride=(2, 1, 2)),
    P('2d depthwise kernel 9', (11, 13), (9, 9), (18, 18), groups=18, padding=4, batch=1),
    P('2d depthwise kernel 16 along x', (5, 11), (4, 16), (3, 6), groups=3, padding=(2, 8)),
    P('2d depthwise large kernel', (7, 9), (17, 19), (17, 17), groups=17, padding=(8, 9), batch=1),
    P('2d depthwise kernel 9 one side', (6, 12), (3, 9), (5, 5), groups=5, padding=((1, 1), (9, -2))),
    P('1d depthwise kernel 31', (45,), (31,), (9, 9), groups=9, padding=15),
    P('3d depthwise kernel 8 along x', (3, 4, 9), (2, 3, 8), (4, 4), groups=4, padding=(1, 1, 5), batch=1),
    P('1d depthwise long kernel', (350,), (300,), (2, 2), groups=2, padding=20, batch=1),
]

# Channels and lengths on both sides of every register tile's edge.
CHANNELS = [
    *(P(f'2d channels {i} {o}', (5, 6), (3, 3), (i, o), padding=1)
      for i, o in ((1, 1), (1, 7), (2, 5), (3, 17), (5, 33), (7, 2), (17, 3), (33, 5), (33, 33), (17, 64), (64, 17),
                   (48, 49), (65, 8), (8, 9), (16, 16), (31, 32), (15, 63))),
    *(P(f'2d channels {i} {o} kernel 1', (7, 7), (1, 1), (i, o), batch=3)
      for i, o in ((1, 1), (2, 3), (3, 2), (7, 33), (33, 7), (17, 17), (64, 5), (5, 64), (49, 48))),
    *(P(f'2d channels {i} {o} strided', (7, 9), (3, 3), (i, o), padding=1, stride=2)
      for i, o in ((1, 33), (33, 1), (7, 17), (17, 7), (24, 25))),
    *(P(f'1d channels {i} {o}', (19,), (3,), (i, o), padding=1) for i, o in ((1, 17), (17, 1), (33, 7), (5, 5))),
    *(P(f'3d channels {i} {o}', (3, 4, 5), (3, 3, 3), (i, o), padding=1) for i, o in ((1, 9), (9, 1), (17, 7))),
]
LENGTHS = [
    P(f'1d length {length}', (length,), (3,), (3, 9), padding=1)
    for length in (*range(1, 10), 11, 13, 15, 16, 17, 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127,
                   128, 129, 143, 144, 145, 191, 193)
]
SQUARES = [
    P(f'2d {height} by {width}', (height, width), (3, 3), (5, 7), padding=pad, batch=batch)
    for height, width, pad, batch in (
        (1, 1, 1, 3), (1, 2, 1, 1), (2, 1, 1, 2), (2, 3, 1, 2), (4, 4, 1, 1), (3, 3, 0, 4), (4, 5, 0, 2), (7, 7, 1, 5),
        (8, 8, 0, 2), (13, 14, 1, 1), (14, 14, 1, 2), (15, 17, 2, 1), (9, 33, 0, 1), (33, 9, 1, 1))
]

LARGE = [
    P('1d long kernel', (700,), (300,), (3, 5), batch=1),
    P('1d long kernel dilated', (701,), (300,), (2, 3), dilation=2, padding='same', batch=1),
    P('1d long kernel strided', (650,), (300,), (2, 3), stride=7, padding=((150, 149),), batch=1),
    P('1d long', (3001,), (5,), (2, 3), padding=2),
    P('2d wide', (3, 420), (3, 3), (3, 5), padding=1),
    P('2d wide kernel 5', (3, 1031), (5, 5), (2, 3), padding=2, batch=1),
    P('2d wide strided', (5, 431), (3, 3), (3, 5), padding=1, stride=2),
    P('2d wide kernel 1', (3, 433), (1, 1), (5, 7)),
    P('2d wide kernel 7 strided', (7, 417), (7, 7), (3, 8), padding=3, stride=2, batch=1),
    P('2d wide dilated', (3, 409), (3, 3), (2, 3), padding=5, dilation=5),
    P('2d tall', (420, 3), (3, 3), (3, 5), padding=1, batch=1),
    P('2d image', (70, 71), (3, 3), (3, 4), padding=1, batch=3),
    P('2d image strided', (75, 74), (3, 3), (3, 4), padding=1, batch=3, stride=2),
    P('2d image kernel 1', (65, 66), (1, 1), (5, 6), batch=2),
    P('3d image', (9, 20, 21), (3, 3, 3), (2, 3), padding=1),
    P('2d 7 by 7 samples', (7, 7), (3, 3), (33, 17), padding=1, batch=6),
    P('2d 7 by 7 samples strided', (7, 7), (3, 3), (33, 17), padding=1, batch=6, stride=2),
    P('2d 7 by 7 samples kernel 1', (7, 7), (1, 1), (64, 33), batch=6),
    P('2d many input channels', (7, 7), (3, 3), (130, 24), padding=1),
    P('2d many output channels', (7, 7), (3, 3), (24, 130), padding=1),
    P('2d many channels', (5, 4), (3, 3), (132, 134), padding=1),
    P('2d many channels strided', (7, 5), (3, 3), (132, 34), padding=1, stride=2),
    P('2d many channels kernel 1', (5, 5), (1, 1), (515, 140)),
    P('2d many channels kernel 1 strided', (6, 5), (1, 1), (260, 270), stride=2),
    P('2d many channels kernel 5', (6, 6), (5, 5), (70, 40), padding=2, batch=1),
    P('1d many channels', (13,), (3,), (260, 150), padding=1),
    P('3d many channels', (3, 3, 4), (3, 3, 3), (66, 68), padding=1, batch=1),
    P('2d many groups', (5, 5), (3, 3), (128, 128), groups=32, padding=1),
]

# Seen from the transposed convolution; an output_padding of stride or more crops the far end of the forward.
TRANSPOSED = [
    P('1d transposed output padding', (15,), (3,), (3, 5), stride=3, padding=1),
    P('1d transposed output padding above stride', (18,), (3,), (3, 5), dilation=4, padding=((0, -3),),
      output_padding=3),
    P('2d transposed output padding above stride', (12, 16), (2, 3), (4, 6), groups=2, stride=(1, 2), dilation=(3, 4),
      padding=((1, -1), (2, -1)), output_padding=(2, 3)),
    P('2d transposed groups dilated', (10, 12), (3, 3), (6, 4), groups=2, stride=2, dilation=2, padding=1),
    P('2d transposed stride above kernel', (13, 16), (2, 2), (3, 5), stride=4),
    P('2d transposed kernel 4 stride 2', (12, 14), (4, 4), (3, 5), stride=2, padding=1),
    P('2d transposed kernel 2 stride 2', (12, 14), (2, 2), (5, 7), stride=2),
    P('2d transposed depthwise', (11, 12), (3, 3), (5, 5), groups=5, stride=2, padding=1),
    P('3d transposed groups dilated', (7, 8, 10), (2, 3, 2), (4, 6), groups=2, stride=2, dilation=(2, 1, 3),
      padding=((1, 1), (1, 1), (1, -1)), output_padding=(0, 1, 2)),
]

# What padded cells hold: each mode with each of these, whose pads go round more than once, are cropped on one side,
# meet a single cell, or are never read.
MODES = [
    P(f'{mode} {value} {p.name}'.replace(' 0', ''), *p[1:9], padding_mode=mode, padding_value=value)
    for mode, value in (('circular', 0), ('replicate', 0), ('reflect', 0), ('constant', -1), ('constant', 2))
    for p in (
        P('1d', (9,), (3,), padding=1),
        P('1d far', (4,), (3,), padding=((9, 11),)),
        P('1d far strided', (4,), (5,), (3, 5), padding=((9, 14),), stride=3),
        P('1d one cell', (1,), (3,), (3, 5), padding=3),
        P('1d two cells', (2,), (3,), (3, 5), padding=4, dilation=2),
        P('1d in front', (9,), (4,), (3, 5), padding=((5, 0),)),
        P('1d behind', (9,), (4,), (3, 5), padding=((0, 6),), stride=2),
        P('1d causal', (17,), (3,), (3, 5), padding='causal', dilation=4),
        P('1d stride 3 dilation 2', (17,), (4,), (3, 5), padding=5, stride=3, dilation=2),
        P('1d stride above kernel', (17,), (2,), (3, 5), padding=3, stride=5),
        P('1d cropped in front', (9,), (3,), (3, 5), padding=((-3, 8),)),
        P('1d cropped behind', (9,), (3,), (3, 5), padding=((7, -4),), stride=2),
        P('1d pads never read', (9,), (2,), (3, 5), padding=((0, 1),), stride=3),
        P('2d', (6, 7), (3, 3), (3, 5), padding=1),
        P('2d kernel 1 padded', (5, 4), (1, 1), (3, 5), padding=((2, 1), (0, 3))),
        P('2d stride 2', (9, 10), (3, 3), (3, 5), padding=1, stride=2),
        P('2d same strided dilated', (9, 10), (3, 2), (3, 5), padding='same', stride=(2, 3), dilation=(1, 3)),
        P('2d same lower even kernel', (6, 7), (2, 4), (3, 5), padding='same_lower'),
        P('2d full', (4, 5), (3, 2), (3, 5), padding='full'),
        P('2d one axis', (6, 7), (3, 3), (3, 5), padding=(0, 2)),
        P('2d far', (3, 2), (4, 5), (2, 3), padding=(7, 6)),
        P('2d cropped and padded', (7, 8), (3, 3), (3, 5), padding=((-2, 4), (5, -1))),
        P('2d cropped beside padded', (7, 8), (3, 2), (3, 5), padding=((-2, -1), (2, 3))),
        P('2d groups everything', (13, 15), (3, 2), (6, 4), groups=2, stride=(2, 3), dilation=(2, 1),
          padding=((3, 2), (0, 2))),
        P('2d depthwise', (8, 9), (3, 3), (7, 7), groups=7, padding=1),
        P('2d depthwise strided', (9, 10), (3, 3), (17, 17), groups=17, padding=1, stride=2),
        P('2d depthwise kernel 5 of 20', (8, 9), (5, 5), (20, 20), groups=20, padding=2, batch=1),
        P('2d depthwise multiplier 2', (6, 7), (3, 3), (5, 10), groups=5, padding=2),
        P('2d channels 33 33', (5, 6), (3, 3), (33, 33), padding=1),
        P('2d channels 17 64', (7, 6), (3, 3), (17, 64), padding=1, stride=2),
        P('2d many channels', (7, 5), (3, 3), (132, 34), padding=1),
        P('2d wide', (3, 420), (3, 3), (3, 5), padding=2),
        P('2d wide strided', (5, 431), (3, 5), (3, 5), padding=2, stride=2),
        P('2d image', (70, 71), (3, 3), (3, 4), padding=1, batch=3),
        P('2d 7 by 7 samples', (7, 7), (3, 3), (33, 17), padding=1, batch=6),
        P('3d', (4, 5, 6), (2, 3, 2), padding=1),
        P('3d groups everything', (6, 7, 5), (2, 3, 2), (4, 6), groups=2, stride=(2, 1, 3), dilation=(1, 2, 2),
          padding=((1, 0), (2, 1), (3, 2))),
        P('3d depthwise', (4, 5, 6), (3, 3, 3), (5, 5), groups=5, padding=2),
        P('3d cropped and padded', (5, 4, 6), (2, 2, 3), (2, 3), padding=((3, -2), (-1, 4), (0, 2)), stride=(1, 2, 1)),
    )
]

PROBLEMS = [*BASIC, *STRIDES, *DILATIONS, *PADDINGS, *GROUPS, *CHANNELS, *LENGTHS, *SQUARES, *LARGE, *TRANSPOSED]
EVERY = [*PROBLEMS, *MODES]

# For the functions without a rank in their name.
MORE_AXES = [
    P('4d', (3, 4, 3, 5), (2, 3, 2, 2)),
    P('4d one of everything', (1,) * 4, (1,) * 4, (1, 1), batch=1),
    P('4d padded', (3, 2, 4, 5), (3, 3, 3, 3), (3, 5), padding=1),
    P('4d kernel 1', (3, 4, 3, 5), (1,) * 4, (5, 7)),
    P('4d whole vectors kernel 1', (1, 2, 3, 3), (1,) * 4, (16, 18)),
    P('4d strided', (5, 4, 5, 6), (2, 3, 3, 2), (2, 3), stride=2, padding=(0, 1, 1, 0)),
    P('4d outer stride above kernel', (7, 3, 4, 5), (2, 2, 3, 1), (2, 3), stride=(3, 1, 2, 2)),
    P('4d dilated', (6, 3, 5, 6), (3, 2, 2, 3), (2, 3), dilation=(2, 1, 3, 1), padding=(1, 0, 2, 1)),
    P('4d everything', (5, 4, 6, 7), (2, 1, 3, 2), (4, 6), groups=2, stride=(2, 1, 1, 2), dilation=(3, 1, 2, 1),
      padding=((2, 0), (1, 1), (-1, 2), (0, 1))),
    P('4d padding far above kernel', (2, 2, 3, 4), (2, 2, 2, 3), (2, 3), padding=(4, 0, 1, 3), batch=1),
    P('4d cropped', (6, 3, 4, 5), (2, 2, 2, 2), (2, 3), padding=((-2, -1), (0, 0), (-1, 1), (0, -1))),
    P('4d cropped and padded', (5, 3, 5, 4), (3, 1, 3, 2), (4, 6), groups=2, stride=(1, 2, 1, 1),
      padding=((-2, 4), (3, -1), (1, 1), (4, -2))),
    P('4d same strided', (5, 4, 3, 6), (3, 2, 3, 3), (2, 3), stride=(2, 1, 2, 3), padding='same'),
    P('4d depthwise', (3, 3, 5, 6), (2, 2, 3, 3), (8, 8), groups=8, padding=1),
    P('4d kernel is input', (3, 2, 3, 4), (3, 2, 3, 4), (3, 4), batch=3),
    P('4d kernel nearly input', (4, 2, 7, 7), (3, 2, 6, 6), (4, 2)),
    P('4d patches', (4, 2, 6, 4), (2, 2, 3, 2), (3, 5), stride=(2, 2, 3, 2)),
    P('4d many channels', (3, 3, 6, 7), (3, 3, 3, 3), (40, 33), padding=1),
    P('4d volumes', (3, 9, 14, 13), (3, 3, 3, 3), (5, 6), padding=1, batch=1),
    P('4d many samples', (2, 2, 3, 3), (2, 1, 3, 2), (3, 4), padding=1, batch=9),
    P('5d', (3, 2, 3, 2, 4), (2, 2, 2, 1, 3), (2, 3)),
    P('5d everything', (4, 3, 3, 4, 5), (2, 3, 1, 2, 3), (4, 2), groups=2, stride=(2, 1, 1, 2, 1),
      dilation=(1, 2, 1, 1, 2), padding=((1, 0), (3, 2), (0, 0), (1, 1), (2, 1))),
    P('5d padded beyond', (1, 2, 2, 3, 3), (2, 2, 1, 2, 2), (1, 2), stride=(3, 2, 1, 1, 1), padding=(3, 2, 0, 1, 1)),
    P('6d', (2, 2, 2, 2, 2, 3), (2, 1, 2, 1, 2, 2), (2, 2), padding=(1, 0, 0, 1, 1, 0), batch=1),
]

# Where a block is some rows, or a part of one, what lies beyond the edges belongs to the blocks there.
ROWS = [
    P('replicate 2d rows', (83, 90), (3, 4), (3, 5), padding=((1, 3), (2, 1)), padding_mode='replicate'),
    P('reflect 2d rows', (83, 90), (3, 3), (5, 9), padding=((2, 3), (1, 4)), padding_mode='reflect'),
    P('reflect 2d depthwise rows', (60, 91), (5, 3), (20, 20), padding=(2, 1), groups=20, padding_mode='reflect'),
    P('replicate 2d many channels rows', (57, 58), (3, 3), (40, 24), padding=1, batch=1, padding_mode='replicate'),
    P('reflect 1d parts', (3001,), (5,), (8, 20), padding=((3, 4),), dilation=2, padding_mode='reflect'),
    P('replicate 3d rows', (3, 30, 40), (3, 3, 3), (4, 9), padding=1, padding_mode='replicate'),
    # The input is repeated very often.
    P('reflect 3d very far', (2, 1, 2), (3, 2, 3), (4, 6), groups=2, stride=(2, 1, 1), padding=6,
      padding_mode='reflect'),
    P('circular 2d very far', (2, 3), (3, 3), (3, 5), stride=2, padding=40, padding_mode='circular'),
    P('replicate 1d very far', (3,), (5,), (4, 6), padding=((900, 0),), dilation=2, padding_mode='replicate'),
]

BY_NAME = {problem.name: problem for problem in EVERY + ROWS + MORE_AXES}
assert len(BY_NAME) == len(EVERY + ROWS + MORE_AXES), 'every problem has its own name'


# What an emulated GPU does instead of some, which take it a launch for each of 400 phases or a stage for every 32 of
# 1188 terms: there are still more phases, taps or stages than elsewhere, and the same rests.
LESS = {name: BY_NAME[name]._replace(name=f'{name}, less', **changes) for name, changes in {
    '2d stride 20': {'size': (43, 9), 'kernel': (13, 4), 'stride': (10, 4)},
    '2d patches': {'size': (16, 24), 'kernel': (8, 8), 'stride': 8},
    '2d patches rest': {'size': (17, 11), 'kernel': (6, 5), 'stride': (6, 5)},
    '1d long kernel': {'size': (250,), 'kernel': (110,)},
    '1d long kernel dilated': {'size': (251,), 'kernel': (110,)},
    '1d long kernel strided': {'size': (260,), 'kernel': (110,), 'padding': ((55, 54),)},
    '1d depthwise long kernel': {'size': (150,), 'kernel': (110,)},
    '2d many input channels': {'kernel': (3, 1), 'padding': (1, 0)},
    '2d many output channels': {'kernel': (1, 3), 'padding': (0, 1)},
    '2d many channels': {'kernel': (3, 1), 'padding': (1, 0)},
    '2d many channels strided': {'kernel': (1, 3), 'padding': (0, 1)},
    '2d many channels kernel 1': {'channels': (260, 70)},
    '2d many channels kernel 5': {'kernel': (5, 1), 'padding': (2, 0)},
    '3d many channels': {'kernel': (3, 1, 2), 'padding': (1, 0, 1)},
    'reflect 2d many channels': {'kernel': (3, 1), 'padding': (1, 0)},
    'constant -1 2d many channels': {'kernel': (3, 1), 'padding': (1, 0)},
    '2d first layer': {'size': (21, 17)},
}.items()}
BY_NAME |= {problem.name: problem for problem in LESS.values()}


def some(*names):
    """The problems of these names."""
    return [BY_NAME[name] for name in names]


# One of each kind, for tests that do much to each.
VARIED = some(
    '1d', '2d', '3d', '2d kernel 1', '2d stride 2', '2d stride above kernel', '2d stride 2 dilation 3',
    '2d same strided dilated', '2d crop strided dilated', '2d padding far above kernel', '2d groups everything',
    '3d groups everything', '2d depthwise', '2d depthwise strided', '2d depthwise multiplier 2', '3d depthwise',
    '2d groups of 4', '2d channels 33 33', '2d channels 17 64', '2d 13 by 14', '2d first layer', '2d patches',
    '2d kernel nearly input',
    '2d fully connected', '2d many input channels', '2d many channels kernel 1', '2d 7 by 7 samples',
    '1d long kernel', '2d wide', '2d wide strided', '2d image', '2d many groups',
    '2d transposed output padding above stride',
)

VARIED_MODES = some(*(f'{mode} {name}' for mode in ('circular', 'replicate', 'reflect', 'constant -1') for name in (
    '1d far strided', '1d cropped behind', '2d', '2d same strided dilated', '2d groups everything',
    '2d depthwise strided', '2d channels 33 33', '3d groups everything')))

# Of every kind again, so small that a numerical derivative is soon there; they are no rows of PROBLEMS.
SMALL = [
    P('strided', (8,), (3,), (2, 2), batch=1, stride=3, padding=1),
    P('pairs', (4, 5), (2, 3), (1, 2), batch=1, padding=((-1, 2), (2, 0)), stride=(2, 1)),
    P('same', (3, 5), (2, 2), (1, 2), padding='same', stride=2),
    P('grouped dilated', (6,), (2,), (4, 6), groups=2, dilation=3, padding=1),
    P('depthwise', (3, 3), (2, 2), (2, 4), groups=2, padding=1),
    P('three axes', (3, 2, 3), (2, 2, 2), (1, 2), batch=1, stride=(2, 1, 1), padding=(1, 0, 1)),
    P('far output padding', (9,), (2,), (1, 2), dilation=4, padding=((0, -3),), output_padding=3),
    P('constant', (4, 3), (2, 2), (2, 1), padding=1, padding_mode='constant', padding_value=2),
    P('circular cropped', (5,), (3,), (2, 1), padding=((-1, 3),), padding_mode='circular'),
    P('replicate', (3, 4), (2, 2), (1, 2), stride=2, padding=(1, 2), padding_mode='replicate'),
    P('reflect grouped', (4,), (3,), (2, 2), groups=2, padding=2, padding_mode='reflect'),
]

# Positions side by side whose taps lie as far apart as they do, or half as far, and few channels: cells are shared.
SHARED_CELLS = [
    P('rows under 2 taps', (4, 31), (3, 2), (3, 4), batch=2),
    P('rows under 3 taps', (5, 46), (3, 3), (5, 4), padding=1, batch=2),
    P('rows under 3 taps at stride 2', (9, 41), (3, 3), (4, 3), padding=1, stride=2, batch=2),
    P('rows under 5 taps', (3, 33), (2, 5), (3, 4), padding=(0, 2), batch=2),
    P('rows under taps 3 apart', (65,), (3,), (3, 2), padding=3, stride=3, dilation=3, batch=2),
    P('rows in groups', (9, 17), (3, 3), (32, 16), padding=1, groups=4, batch=3),
    P('rows of two phases', (6, 49), (4, 4), (3, 4), padding=1, stride=2, batch=2),
]

# One channel of input for each of output, and rows of positions that fill vectors of some type and level: a last vector
# that begins with its row, blocks of rows, blocks side by side, and rows that no cell or not every tap is for.
FILLED = [
    P('filled 3 by 3', (6, 31), (3, 3), (5, 5), groups=5, padding=1),
    P('filled 5 by 5', (7, 28), (5, 5), (3, 3), groups=3, padding=2, batch=3),
    P('filled 7 by 7', (9, 46), (7, 7), (2, 2), groups=2, padding=3),
    P('filled, no padding', (8, 18), (3, 3), (3, 3), groups=3),
    P('filled, multiplier 2', (5, 32), (5, 5), (3, 6), groups=3, padding=2),
    P('filled, uneven padding', (6, 35), (3, 3), (2, 2), groups=2, padding=((3, 0), (0, 5))),
    P('filled, cropped', (9, 70), (5, 5), (2, 2), groups=2, padding=((-1, 2), (-3, -2))),
    P('filled, far beyond the edges', (2, 9), (3, 3), (2, 2), groups=2, padding=((5, 7), (8, 15))),
    P('filled, beside the image', (3, 8), (3, 3), (2, 2), groups=2, padding=((0, 1), (40, 3))),
    P('filled, many rows', (330, 16), (3, 3), (2, 2), groups=2, padding=1, batch=1),
    P('filled, blocks side by side', (7, 1030), (3, 3), (1, 1), padding=1, batch=1),
    P('filled, a narrower block with more rows at once', (16, 543), (3, 3), (2, 2), groups=2, padding=1, batch=1),
    P('filled, circular', (5, 31), (3, 3), (3, 3), groups=3, padding=((2, 1), (1, 3)), padding_mode='circular'),
    P('filled, replicate', (12, 32), (5, 5), (2, 4), groups=2, padding=2, padding_mode='replicate'),
    P('filled, reflect', (9, 46), (7, 7), (2, 2), groups=2, padding=3, padding_mode='reflect'),
    P('filled, replicate, rows with uneven edges', (6, 37), (3, 3), (3, 3), groups=3, padding=((2, 1), (1, 5)),
      padding_mode='replicate'),
    P('filled, reflect, many rows', (331, 33), (5, 5), (2, 2), groups=2, padding=((3, 4), (2, 5)), batch=2,
      padding_mode='reflect'),
    P('filled, replicate, blocks side by side', (4, 1024), (3, 3), (1, 1), padding=((1, 0), (0, 3)), batch=1,
      padding_mode='replicate'),
    P('filled, reflect, one channel to two', (9, 40), (3, 3), (1, 2), padding=1, padding_mode='reflect'),
    P('filled planes, reflect', (3, 5, 33), (1, 3, 3), (2, 2), groups=2, padding=(1, 1, 1), padding_mode='reflect'),
    P('filled, replicate, three edges', (8, 30), (3, 3), (3, 3), groups=3, padding=((1, 0), (1, 1)), batch=3,
      padding_mode='replicate'),
    P('filled, replicate, many rows, one channel to two', (330, 17), (3, 3), (2, 4), groups=2, padding=1, batch=1,
      padding_mode='replicate'),
    P('filled, replicate, one row', (1, 14), (3, 3), (3, 3), groups=3, padding=1, padding_mode='replicate'),
    P('filled, reflect, two rows', (2, 18), (3, 3), (3, 3), groups=3, padding=1, padding_mode='reflect'),
    P('filled, reflect, a vector and a position', (6, 17), (3, 3), (2, 2), groups=2, padding=1, padding_mode='reflect'),
    P('filled, reflect, cropped', (9, 26), (3, 3), (2, 2), groups=2, padding=((1, -1), (-2, 1)),
      padding_mode='reflect'),
    P('filled planes, replicate, cropped', (3, 4, 16), (1, 3, 3), (2, 2), groups=2, padding=((-1, 0), (1, 1), (1, 1)),
      padding_mode='replicate'),
    P('filled planes, reflect, cropped', (4, 5, 40), (1, 3, 3), (2, 2), groups=2, padding=((1, -2), (1, 0), (1, 1)),
      padding_mode='reflect'),
    P('filled, reflect, blocks side by side', (5, 1030), (3, 3), (1, 1), padding=1, batch=1, padding_mode='reflect'),
    P('filled, constant, cropped', (9, 24), (3, 3), (2, 2), groups=2, padding=((2, -1), (-1, 9)),
      padding_mode='constant', padding_value=2),
    P('filled, constant beside the image', (2, 3), (3, 3), (2, 2), groups=2, padding=((0, 6), (40, 4)),
      padding_mode='constant', padding_value=3),
    P('filled planes, circular', (3, 4, 31), (1, 3, 3), (2, 2), groups=2, padding=1, padding_mode='circular'),
    P('filled, one channel to two', (40, 64), (7, 7), (1, 2), padding=3),
    P('filled, five channels to one', (7, 33), (3, 3), (5, 1), padding=1, batch=3),
    P('filled, one channel to five', (12, 40), (5, 5), (1, 5), batch=2),
    P('filled, three channels to one in groups', (6, 31), (3, 3), (6, 2), groups=2, padding=1, batch=2),
    P('filled, nine channels to one, blocks side by side', (7, 1030), (3, 3), (9, 1), padding=1, batch=1),
    P('filled, four channels to one, constant', (9, 24), (3, 3), (4, 1), padding=((2, -1), (-1, 9)),
      padding_mode='constant', padding_value=2),
    P('filled, three channels to one, circular', (9, 40), (7, 7), (3, 1), padding=3, padding_mode='circular'),
    P('filled, one channel to four, replicate', (8, 33), (3, 3), (1, 4), padding=1, padding_mode='replicate'),
    P('filled, one channel to three, reflect', (9, 46), (7, 7), (1, 3), padding=3, padding_mode='reflect'),
    P('filled planes', (4, 5, 31), (1, 3, 3), (3, 3), groups=3, padding=(1, 1, 1), stride=(2, 1, 1)),
    P('filled planes, cropped', (5, 4, 16), (1, 5, 5), (2, 2), groups=2, padding=((-1, 1), (2, 2), (2, 2))),
]

# Depthwise, of more channels than the longest vector has: where these lie last, nothing is copied.
LAST = [
    P('last', (9, 22), (3, 3), (40, 40), groups=40, padding=1),
    P('last narrow', (7, 5), (3, 3), (19, 19), groups=19, padding=1),
    P('last strided', (15, 33), (3, 3), (33, 33), groups=33, stride=2, padding=1),
    P('last 5', (9, 13), (5, 5), (17, 17), groups=17, padding=2),
    P('last 5 strided', (21, 20), (5, 5), (16, 16), groups=16, stride=2, padding=2),
    P('last 7', (7, 7), (7, 7), (35, 35), groups=35, padding=3),
    P('last 7 wide', (8, 37), (7, 7), (20, 20), groups=20, padding=(3, 0)),
    P('last dilated', (12, 14), (3, 3), (24, 24), groups=24, padding=2, dilation=2),
    P('last not square', (9, 11), (2, 4), (31, 31), groups=31, stride=(1, 3), padding=((1, 0), (2, 1))),
    P('last cropped', (9, 12), (3, 3), (16, 16), groups=16, padding=((-1, 2), (3, -2))),
    P('last 3d', (4, 5, 9), (3, 3, 3), (18, 18), groups=18, padding=1),
    P('last 1d', (40,), (3,), (21, 21), groups=21, padding=1, batch=3),
    P('last kernel 1', (6, 7), (1, 1), (20, 20), groups=20),
    P('last in parts', (5, 12), (3, 3), (500, 500), groups=500, padding=1, batch=1),
    P('last without a cell', (3, 3), (3, 3), (16, 16), groups=16, padding=5),
]

# Groups of 2, 4 or 8 channels that lie last, each of which meets all of its group under three taps along x.
IN_TURNS = [
    P('turns of 2', (9, 22), (3, 3), (40, 40), groups=20, padding=1),
    P('turns of 4', (7, 13), (3, 3), (36, 36), groups=9, padding=1, batch=3),
    P('turns of 8', (8, 9), (3, 3), (40, 40), groups=5, padding=1, batch=2),
    P('turns of 2 narrow', (5, 3), (3, 3), (18, 18), groups=9, padding=1),
    P('turns of 4 strided', (15, 33), (3, 3), (20, 20), groups=5, stride=2, padding=1),
    P('turns of 8 strided', (11, 20), (3, 3), (16, 16), groups=2, stride=(2, 3), padding=(0, 2)),
    P('turns of 2 dilated', (12, 14), (3, 3), (24, 24), groups=12, padding=2, dilation=2),
    P('turns of 4 cropped', (9, 12), (3, 3), (16, 16), groups=4, padding=((-1, 2), (3, -2))),
    P('turns of 4 under more rows', (9, 11), (5, 3), (28, 28), groups=7, padding=(2, 1)),
    P('turns of 2 in planes', (4, 5, 9), (3, 3, 3), (18, 18), groups=9, padding=1),
    P('turns of 8 in lines', (40,), (3,), (24, 24), groups=3, padding=1, batch=3),
    P('turns of 2 in parts', (5, 12), (3, 3), (500, 500), groups=250, padding=1, batch=1),
    P('turns of 4 in parts', (4, 10), (3, 3), (520, 520), groups=130, padding=1, batch=2),
    P('turns of 4 without a cell', (3, 3), (3, 3), (16, 16), groups=4, padding=5),
]

# Small groups whose channels one vector holds together, 8 or 16 of them, where channels lie last.
WOVEN = [
    P('woven groups of 8', (9, 31), (3, 3), (32, 32), padding=1, groups=4, batch=2),
    P('woven groups of 4', (8, 17), (3, 3), (32, 32), padding=1, groups=8, batch=2),
    P('woven groups of 2', (7, 19), (3, 3), (32, 32), padding=1, groups=16, batch=2),
    P('woven at stride 2', (9, 41), (3, 3), (32, 32), padding=1, stride=2, groups=4, batch=2),
    P('woven phases', (6, 33), (4, 4), (32, 32), padding=1, stride=2, groups=4, batch=2),
    P('woven, dilated, off the edge', (9, 21), (3, 3), (16, 16), padding=((3, -1), (0, 5)), dilation=2, groups=4),
    P('woven under one tap', (5, 6), (1, 1), (32, 32), groups=4, batch=2),
    P('woven under many taps', (10, 26), (7, 9), (16, 16), padding=3, groups=2),
    P('woven lines', (50,), (5,), (16, 16), padding=2, groups=2, batch=3),
    P('woven under far more taps than positions', (17,), (16,), (32, 32), groups=16, batch=2),
    P('woven, two positions', (7, 6), (6, 6), (16, 16), groups=8, batch=3),
    P('woven volumes', (4, 5, 18), (2, 3, 3), (16, 16), padding=1, groups=4, batch=2),
    P('groups that are no whole vector', (6, 20), (3, 3), (24, 24), padding=1, groups=3, batch=2),
    P('groups of more rows than channels', (6, 20), (3, 3), (16, 32), padding=1, groups=4, batch=2),
]

# Strided, of so many channels that grad_input packs the weights of all phases at once, or of fewer cells than would
# read all taps.
PHASES = [
    P('phases of 2 by 2', (9, 8), (3, 3), (20, 140), padding=1, stride=2, batch=2),
    P('phases of 3 by 1', (7, 6), (5, 3), (33, 24), padding=2, stride=(3, 1), batch=2),
    P('phases of three axes', (4, 5, 6), (2, 3, 3), (19, 20), padding=(1, 0, 1), stride=(1, 2, 3), batch=2),
    P('phases of groups', (8, 7), (4, 3), (48, 40), padding=1, stride=2, groups=2, batch=2),
    P('phases under dilated taps', (11, 9), (3, 3), (24, 20), padding=2, stride=(3, 2), dilation=(2, 3), batch=2),
    P('fewer cells than phases', (5, 2), (3, 3), (20, 24), padding=(1, 3), stride=(1, 3), batch=2),
    P('fewer cells than phases on one side', (2, 9), (3, 5), (20, 24), padding=3, stride=(3, 4), batch=2),
]

# Those that a GPU goes through.
WHOLE = [*EVERY, *ROWS, *SHARED_CELLS, *FILLED, *LAST, *WOVEN, *MORE_AXES]
BY_NAME |= {problem.name: problem for problem in WHOLE + PHASES}
assert len(BY_NAME) == len([*WHOLE, *PHASES, *LESS]), 'every problem has its own name'

# Ordinary layers at a size that takes milliseconds, with enough work for several threads and several blocks; for
# random floats only, so they are no rows of PROBLEMS.
LAYERS = [
    P('3 by 3', (28, 28), (3, 3), (64, 64), padding=1),
    P('3 by 3 strided', (29, 28), (3, 3), (48, 64), padding=1, stride=2),
    P('1 by 1', (28, 28), (1, 1), (128, 64)),
    P('1 by 1 strided', (28, 28), (1, 1), (64, 128), stride=2),
    P('first', (96, 96), (7, 7), (3, 32), padding=3, stride=2),
    P('depthwise', (56, 56), (3, 3), (32, 32), groups=32, padding=1),
    P('depthwise strided', (57, 56), (5, 5), (32, 32), groups=32, padding=2, stride=2),
    P('grouped', (28, 28), (3, 3), (64, 64), groups=16, padding=1),
    P('7 by 7', (7, 7), (3, 3), (160, 192), padding=1, batch=4),
    P('7 by 7 strided', (7, 7), (3, 3), (40, 160), padding=1, stride=2, batch=3),
    P('patches', (64, 64), (16, 16), (3, 96), stride=16),
    P('fully connected', (12, 12), (12, 12), (64, 48), batch=8),
    P('sound', (2000,), (9,), (24, 32), padding='causal', dilation=4),
    P('volume', (12, 16, 18), (3, 3, 3), (12, 16), padding=1),
    P('upsampling', (32, 32), (4, 4), (24, 32), stride=2, padding=1),
    P('3 by 3 reflect', (56, 57), (3, 3), (32, 48), padding=1, padding_mode='reflect'),
    P('depthwise replicate', (56, 56), (5, 5), (32, 32), groups=32, padding=2, padding_mode='replicate'),
]
