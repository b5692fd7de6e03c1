"""Every error with its whole text, none of them after an allocation."""
import tracemalloc

import numpy as np
import pytest

import pyconv

F32, F64 = np.float32, np.float64
X, W, Y, B = np.ones((1, 2, 5, 5)), np.ones((3, 2, 3, 3)), np.ones((1, 3, 3, 3)), np.ones(3)
COLUMNS = np.ones((1, 18, 9))
INT = 'must be an int >= 1 or a sequence of 2 such; got'
ZERO = 'must be an int >= 0 or a sequence of 2 such; got'
PADDING = ("padding must be an int >= 0, a sequence of 2 such or of 2 pairs (lo, hi) of ints, or one of 'valid', "
           "'same', 'same_lower', 'causal', 'full'; got")
SHAPE = 'must be a sequence of at most 64 ints >= 0; got'
DTYPES = ('float16, bfloat16, float32, float64, complex64, complex128, int8, int16, int32, int64, uint8, uint16, '
          'uint32 or uint64')
DTYPE = f'must have dtype {DTYPES}; got'


def conv(*arrays, **more):
    return lambda: pyconv.conv2d(*(arrays or (X, W)), **more)


def conv_input(size=X.shape, weight=W, grad_output=Y, *more, **keywords):
    return lambda: pyconv.conv2d_input(size, weight, grad_output, *more, **keywords)


def conv_weight(input=X, size=W.shape, grad_output=Y, *more, **keywords):
    return lambda: pyconv.conv2d_weight(input, size, grad_output, *more, **keywords)


def transpose(input=Y, weight=W, bias=None, **keywords):
    return lambda: pyconv.conv_transpose2d(input, weight, bias, **keywords)


def convolution(transposed=False, output_padding=0, weight=W):
    return lambda: pyconv.convolution(X, weight, None, 1, 0, 1, transposed, output_padding, 1)


def backward(mask=(True, True, True), grad_output=Y, **keywords):
    return lambda: pyconv.convolution_backward(grad_output, X, W, 1, 0, 1, False, 0, 1, mask, **keywords)


def from_columns(mask=(False, True, True), weight=W, grad_output=Y, transposed=False, output_padding=0, **keywords):
    more = {'finput': COLUMNS, **keywords}
    return lambda: pyconv.convolution_backward(
        grad_output, None, weight, 1, 0, 1, transposed, output_padding, 1, mask, **more)


def double(first=None, second=None, third=None, **keywords):
    mask = (True, True, True)
    return lambda: pyconv.convolution_double_backward(
        first, second, third, Y, W, X, 1, 0, 1, False, 0, 1, mask, **keywords)


def jvp(*tangents):
    return lambda: pyconv.conv_jvp(X, W, *tangents)


def read_only(shape):
    array = np.ones(shape)
    array.flags.writeable = False
    return array


class Unreadable:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError('no')


KINDS = [
    # arrays
    (conv(None, W), TypeError, 'input must be an array; got None'),
    (conv(X, None), TypeError, 'weight must be an array; got None'),
    (conv_input(weight=None), TypeError, 'weight must be an array; got None'),
    (conv_input(grad_output=None), TypeError, 'grad_output must be an array; got None'),
    (conv_weight(input=None), TypeError, 'input must be an array; got None'),
    (from_columns(finput=None), TypeError, 'input must be an array; got None'),
    (from_columns(transposed=True), TypeError, 'input must be an array where transposed is True; got None'),
    (from_columns(transposed=None), TypeError, 'transposed must be True or False; got None'),
    (from_columns(weight=None), TypeError, 'weight must be an array; got None'),
    (from_columns(grad_output=None), TypeError, 'grad_output must be an array; got None'),
    (from_columns(finput=COLUMNS.astype('f4')), TypeError,
     'finput must have the dtype of grad_output, float64; got float32'),
    (from_columns((True, True, False)), ValueError, 'output_mask[0] must be False where input is None; got True'),
    (from_columns(output_padding=1), ValueError, 'output_padding must be 0 where transposed is False; got 1'),
    (from_columns(finput=COLUMNS[:, 1:]), ValueError,
     'finput must have the shape (1, 18, 9) that unfold gives, where input is None; got shape (1, 17, 9)'),
    (from_columns(bias_sizes=(4,)), ValueError, 'bias_sizes must have shape (3,); got shape (4,)'),
    (from_columns(weight=W[:2]), ValueError,
     'grad_output must have 2 channels, axis 0 of weight; got shape (1, 3, 3, 3)'),
    (from_columns(out=(None, W, None)), ValueError,
     'out[1] must not overlap weight; got arrays with common bounds of memory'),
    (conv_weight(grad_output=None), TypeError, 'grad_output must be an array; got None'),
    (lambda: pyconv.conv_bias(None), TypeError, 'grad_output must be an array; got None'),
    (lambda: pyconv.unfold(None, 2), TypeError, 'input must be an array; got None'),
    (lambda: pyconv.fold(None, 3, 2), TypeError, 'input must be an array; got None'),
    (backward(grad_output=None), TypeError, 'grad_output must be an array; got None'),
    (conv(np.ma.masked_array(X, X > 0), W), TypeError, 'input must have no mask; got a masked array'),
    (conv_weight(grad_output=np.ma.masked_array(Y, Y > 1)), TypeError,
     'grad_output must have no mask; got a masked array'),
    (conv(X, W, np.ma.masked_array(B, True)), TypeError, 'bias must have no mask; got a masked array'),
    (conv(out=np.ma.masked_array(Y.copy(), True)), TypeError, 'out must have no mask; got a masked array'),
    (conv(Unreadable(), W), TypeError, 'input must be an array that NumPy can read; got Unreadable'),
    (conv([[1.0, 2.0], [3.0]], W), ValueError,
     'input must be an array or a nested list of equal lengths; got [[1.0, 2.0], [3.0]]'),
    # dtypes
    *((conv(X.astype(dtype), W.astype(dtype)), TypeError, f'input {DTYPE} {np.dtype(dtype)}')
      for dtype in ('O', '?', 'U3', 'S3', np.longdouble, np.clongdouble, 'M8[s]', 'm8[s]', 'V2', 'i4,i4')),
    (conv(X, W.astype(int)), TypeError, 'weight must have the dtype of input, float64; got int64'),
    (conv(X, W.astype(bool)), TypeError, f'weight {DTYPE} bool'),
    (conv(X, W.astype(F32)), TypeError, 'weight must have the dtype of input, float64; got float32'),
    (conv(X, W, B.astype(F32)), TypeError, 'bias must have the dtype of input, float64; got float32'),
    (conv_weight(X.astype(F32)), TypeError, 'grad_output must have the dtype of input, float32; got float64'),
    (double(X.astype(F32)), TypeError, 'grad_grad_input must have the dtype of grad_output, float64; got float32'),
    (conv([['1', '2']], W), TypeError, f'input {DTYPE} <U1'),
    (conv([[True]], W), TypeError, f'input {DTYPE} bool'),
    (conv('image', W), TypeError, f'input {DTYPE} <U5'),
    (conv({}, W), TypeError, f'input {DTYPE} object'),
    *((lambda dtype=dtype: pyconv.workspace(X.shape, W.shape, dtype=dtype), TypeError,
       f'dtype must be {DTYPES}; got {dtype!r}') for dtype in (bool, 'word', None, 'g')),
]

SHAPES = [
    # ranks
    (conv(X[0, 0], W), ValueError,
     'input must have 4 axes (batch, channels, 2 spatial) or 3 without batch; got shape (5, 5)'),
    (conv(F64(1), W), ValueError,
     'input must have 4 axes (batch, channels, 2 spatial) or 3 without batch; got shape ()'),
    (conv(X, W[0]), ValueError,
     'weight must have 4 axes (channels, channels per group, 2 spatial); got shape (2, 3, 3)'),
    (convolution(weight=W[0, 0]), ValueError,
     'weight must have at least 3 axes (channels, channels per group, spatial); got shape (3, 3)'),
    (conv_input(size=(5, 5)), ValueError,
     'input_size must have 4 axes (batch, channels, 2 spatial) or 3 without batch; got shape (5, 5)'),
    (conv_weight(size=(3, 2, 3)), ValueError,
     'weight_size must have 4 axes (channels, channels per group, 2 spatial); got shape (3, 2, 3)'),
    (lambda: pyconv.conv_bias(F64(1)), ValueError,
     'grad_output must have at least 2 axes (batch, channels); got shape ()'),
    (lambda: pyconv.conv_bias(F64(1), batched=False), ValueError,
     'grad_output must have at least 1 axis (channels); got shape ()'),
    (lambda: pyconv.conv_bias(Y, batched=1), TypeError, 'batched must be True or False; got 1'),
    # channels and groups
    (conv(X[:, :1], W), ValueError,
     'input must have 2 channels, axis 1 of weight, 2, times groups, 1; got shape (1, 1, 5, 5)'),
    (conv(groups=3), ValueError,
     'input must have 6 channels, axis 1 of weight, 2, times groups, 3; got shape (1, 2, 5, 5)'),
    (conv(groups=2), ValueError, 'groups must divide axis 0 of weight, 3; got 2'),
    (conv_weight(groups=2), ValueError, 'groups must divide axis 0 of weight_size, 3; got 2'),
    (transpose(X), ValueError, 'input must have 3 channels, axis 0 of weight; got shape (1, 2, 5, 5)'),
    (conv_input(size=(1, 3, 5, 5)), ValueError,
     'input_size must have 2 channels, axis 1 of weight, 2, times groups, 1; got shape (1, 3, 5, 5)'),
    *((conv(groups=groups), error, f'groups must be an int >= 1; got {groups!r}')
      for groups, error in ((0, ValueError), (-1, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError),
                            ((1,), TypeError))),
    # bias
    *((conv(X, W, np.ones(shape)), ValueError, f'bias must have shape (3,); got shape {shape}')
      for shape in ((2,), (1,), (3, 1), (1, 3), (), (0,))),
    (transpose(bias=B), ValueError, 'bias must have shape (2,); got shape (3,)'),
    (backward(bias_sizes=(2,)), ValueError, 'bias_sizes must have shape (3,); got shape (2,)'),
    (double(None, None, np.ones(1)), ValueError, 'grad_grad_bias must have shape (3,); got shape (1,)'),
    # the other operands
    (conv_input(grad_output=np.ones((1, 3, 4, 3))), ValueError,
     'grad_output must have shape (1, 3, 3, 3); got shape (1, 3, 4, 3)'),
    (conv_weight(grad_output=Y[0]), ValueError, 'grad_output must have shape (1, 3, 3, 3); got shape (3, 3, 3)'),
    (conv_weight(X[0]), ValueError, 'grad_output must have shape (3, 3, 3); got shape (1, 3, 3, 3)'),
    (backward(grad_output=Y[..., :1]), ValueError, 'grad_output must have shape (1, 3, 3, 3); got shape (1, 3, 3, 1)'),
    (double(Y), ValueError, 'grad_grad_input must have shape (1, 2, 5, 5); got shape (1, 3, 3, 3)'),
    (double(None, Y), ValueError, 'grad_grad_weight must have shape (3, 2, 3, 3); got shape (1, 3, 3, 3)'),
    (jvp(Y, None), ValueError, 'input_tangent must have shape (1, 2, 5, 5); got shape (1, 3, 3, 3)'),
    (jvp(None, Y), ValueError, 'weight_tangent must have shape (3, 2, 3, 3); got shape (1, 3, 3, 3)'),
    (jvp(None, None, np.ones(1)), ValueError, 'bias_tangent must have shape (3,); got shape (1,)'),
    # kernels
    (conv(X, np.ones((3, 2, 3, 0))), ValueError,
     'weight must have at least one tap on every spatial axis; got shape (3, 2, 3, 0)'),
    (conv(X, np.ones((3, 2, 3, 6))), ValueError, 'weight must span at most the padded input, (5, 5); '
     'got a span of (3, 6), kernel (3, 6) with dilation (1, 1)'),
    (conv(dilation=(3, 1)), ValueError, 'weight must span at most the padded input, (5, 5); '
     'got a span of (7, 3), kernel (3, 3) with dilation (3, 1)'),
    (conv(padding=((0, 0), (-2, -1))), ValueError, 'weight must span at most the padded input, (5, 2); '
     'got a span of (3, 3), kernel (3, 3) with dilation (1, 1)'),
    (conv(X[..., :0], W), ValueError, 'weight must span at most the padded input, (5, 0); '
     'got a span of (3, 3), kernel (3, 3) with dilation (1, 1)'),
    (transpose(Y[..., :0]), ValueError,
     'input must have at least one cell on every spatial axis; got shape (1, 3, 3, 0)'),
    (transpose(Y[..., :1], padding=(0, 2)), ValueError,
     'padding must leave at least one output cell on every axis; got an output size of (5, -1)'),
    # sizes given
    *((conv_input(size), error, f'input_size {SHAPE} {size!r}')
      for size, error in ((5, TypeError), (None, TypeError), ('abc', TypeError), ((1, 2, 5.0, 5), TypeError),
                          ((1, 2, True, 5), TypeError), ((1, 2, -5, 5), ValueError))),
    (conv_input(size=list[int]), TypeError, f'input_size {SHAPE} list[int]'),
    (lambda: pyconv.workspace(list[int], W.shape), TypeError, f'input_shape {SHAPE} list[int]'),
    (lambda: pyconv.unfold(X, list[int]), TypeError, 'kernel_size must be an int >= 1, which means two axes, '
     'or a sequence of at least one such; got list[int]'),
    (conv_input(size=(1,) * 65), ValueError, f'input_size {SHAPE} (1, 1, 1, 1, 1, 1, ...)'),
    (conv_input(size=(1, 1, 1, 1, 5, 5)), ValueError, 'input_size must have 4 axes (batch, channels, 2 spatial) or 3 '
     'without batch; got shape (1, 1, 1, 1, 5, 5)'),
    (conv_weight(size=(3, 2, 3, None)), TypeError, f'weight_size {SHAPE} (3, 2, 3, None)'),
    (conv_weight(size=5), TypeError, f'weight_size {SHAPE} 5'),
    (lambda: pyconv.workspace(5, W.shape), TypeError, f'input_shape {SHAPE} 5'),
    (lambda: pyconv.workspace(X.shape, (2, 3)), ValueError,
     'weight_shape must have at least 3 axes (channels, channels per group, spatial); got shape (2, 3)'),
    (backward(bias_sizes=3), TypeError, f'bias_sizes {SHAPE} 3'),
]

SETTINGS = [
    *((conv(**{name: value}), error, f'{name} {INT} {shown}')
      for name in ('stride', 'dilation')
      for value, error, shown in (
          (0, ValueError, '0'), ((1, 0), ValueError, '(1, 0)'), (-1, ValueError, '-1'), (1.0, TypeError, '1.0'),
          (float('nan'), TypeError, 'nan'), (True, TypeError, 'True'), ((1, True), TypeError, '(1, True)'),
          (None, TypeError, 'None'), ('1', TypeError, "'1'"), (b'11', TypeError, "b'11'"),
          ({1, 2}, TypeError, '{1, 2}'),
          ((1,), ValueError, '(1,)'), ((1, 1, 1), ValueError, '(1, 1, 1)'), ((), ValueError, '()'),
          (((1, 1), (1, 1)), TypeError, '((1, 1), (1, 1))'), (range(10**9), ValueError, 'range(0, 1000000000)'))),
    (lambda: pyconv.conv1d(X[0], W[0], stride=(1, 2)), ValueError,
     'stride must be an int >= 1 or a sequence of 1 such; got (1, 2)'),
    *((conv(padding=value), error, f'{PADDING} {shown}')
      for value, error, shown in (
          (-1, ValueError, '-1'), ((1, -1), ValueError, '(1, -1)'), ('SAME', ValueError, "'SAME'"),
          ((1,), ValueError, '(1,)'), (((1, 1),), ValueError, '((1, 1),)'), (((1, 1), 1), ValueError, '((1, 1), 1)'),
          (((1, 1), (1,)), ValueError, '((1, 1), (1,))'), (((1, 1), (1, 1.0)), TypeError, '((1, 1), (1, 1.0))'),
          (('same', 'same'), TypeError, "('same', 'same')"), (1.5, TypeError, '1.5'), (None, TypeError, 'None'),
          (False, TypeError, 'False'))),
    (conv(algorithm='fft'), ValueError, "algorithm must be one of 'auto', 'gemm', 'winograd'; got 'fft'"),
    (conv(algorithm='columns'), ValueError, "algorithm must be one of 'auto', 'gemm', 'winograd'; got 'columns'"),
    (conv_weight(algorithm=None), ValueError, "algorithm must be one of 'auto', 'gemm', 'winograd'; got None"),
    (backward(algorithm=1), ValueError, "algorithm must be one of 'auto', 'gemm', 'winograd'; got 1"),
    # the transposed convolution
    (transpose(output_padding=1), ValueError,
     'output_padding must be smaller than stride or dilation on every axis; got (1, 1)'),
    (transpose(stride=2, output_padding=(1, 2)), ValueError,
     'output_padding must be smaller than stride or dilation on every axis; got (1, 2)'),
    *((transpose(output_padding=value), error, f'output_padding {ZERO} {value!r}')
      for value, error in ((-1, ValueError), (0.0, TypeError), (False, TypeError), ((0,), ValueError))),
    (transpose(output_size=(5, 6)), ValueError, 'output_size must be from (5, 5) to (5, 5), axis by axis; got (5, 6)'),
    (transpose(stride=2, output_size=(6, 8)), ValueError,
     'output_size must be from (7, 7) to (8, 8), axis by axis; got (6, 8)'),
    (transpose(padding='same', output_size=6), ValueError,
     'output_size must be from (1, 1) to (5, 5), axis by axis; got (6, 6)'),
    (transpose(output_size=0), ValueError, f'output_size {INT} 0'),
    (transpose(output_size=5.0), TypeError, f'output_size {INT} 5.0'),
    (transpose(stride=2, output_padding=1, output_size=8), ValueError,
     'output_padding must be 0 where output_size is given; got (1, 1)'),
    (convolution(transposed=1), TypeError, 'transposed must be True or False; got 1'),
    (convolution(output_padding=1), ValueError, 'output_padding must be 0 where transposed is False; got 1'),
    (convolution(output_padding=-1), ValueError, f'output_padding {ZERO} -1'),
    # unfold and fold
    *((lambda value=value: pyconv.unfold(X, value), error, 'kernel_size must be an int >= 1, which means two axes, '
       f'or a sequence of at least one such; got {value!r}')
      for value, error in ((0, ValueError), ((), ValueError), ((1, 0), ValueError),
                           (2.0, TypeError), (None, TypeError))),
    (lambda: pyconv.unfold(X, 6), ValueError, 'kernel_size must span at most the padded input, (5, 5); '
     'got a span of (6, 6), kernel (6, 6) with dilation (1, 1)'),
    (lambda: pyconv.unfold(X, (1,) * 4), ValueError,
     'input must have 6 axes (batch, channels, 4 spatial) or 5 without batch; got shape (1, 2, 5, 5)'),
    (lambda: pyconv.unfold(X, (2,)), ValueError,
     'input must have 3 axes (batch, channels, 1 spatial) or 2 without batch; got shape (1, 2, 5, 5)'),
    (lambda: pyconv.fold(np.ones(4), 3, 2), ValueError,
     'input must have 3 axes (batch, channels * taps, positions) or 2 without batch; got shape (4,)'),
    (lambda: pyconv.fold(np.ones((5, 4)), 3, 2), ValueError,
     'input must have a multiple of the 4 taps on axis -2; got shape (5, 4)'),
    (lambda: pyconv.fold(np.ones((4, 5)), 3, 2), ValueError, 'input must have shape (4, 4); got shape (4, 5)'),
    (lambda: pyconv.fold(np.ones((4, 4)), (3,), 2), ValueError,
     'output_size must be an int >= 0 or a sequence of 2 such; got (3,)'),
    (lambda: pyconv.fold(np.ones((4, 4)), 1, 2), ValueError,
     'kernel_size must span at most the padded output_size, (1, 1); '
     'got a span of (2, 2), kernel (2, 2) with dilation (1, 1)'),
    # masks and threads
    *((backward(mask), error, f'output_mask must be a sequence of 3 bools; got {mask!r}')
      for mask, error in ((None, TypeError), ((True, True), ValueError), ((1, 0, 1), TypeError), (True, TypeError))),
    *((lambda call=call, n=n: call(n), error, f'n must be an int >= 1; got {n!r}')
      for call in (pyconv.set_num_threads, pyconv.num_threads)
      for n, error in ((0, ValueError), (-2, ValueError), (1.0, TypeError), (True, TypeError), (None, TypeError))),
]

HUGE = [
    (conv(dilation=2**62), ValueError, 'weight must span at most the padded input, (5, 5); '
     'got a span of (9223372036854775809, 9223372036854775809), kernel (3, 3) with dilation '
     '(4611686018427387904, 4611686018427387904)'),
    (conv(padding=2**62), ValueError, 'output must have at most 2**63 - 1 elements; '
     'got shape (1, 3, 9223372036854775811, 9223372036854775811)'),
    (conv(padding=2**62, stride=2**62), ValueError,
     'padding must keep every axis within 2**63 - 1 cells; got 4611686018427387904'),
    (conv(padding=((-2**70, 2**70), (0, 0))), ValueError, 'padding must keep every axis within 2**63 - 1 cells; '
     'got ((-1180591620717411303424, 1180591620717411303424), (0, 0))'),
    (transpose(stride=2**62), ValueError, 'output must have at most 2**63 - 1 elements; '
     'got shape (1, 2, 9223372036854775811, 9223372036854775811)'),
    (transpose(dilation=2**62), ValueError, 'output must have at most 2**63 - 1 elements; '
     'got shape (1, 2, 9223372036854775811, 9223372036854775811)'),
    (conv_input(size=(1, 2, 2**40, 2**40)), ValueError,
     'grad_output must have shape (1, 3, 1099511627774, 1099511627774); got shape (1, 3, 3, 3)'),
    (lambda: pyconv.workspace((1, 2, 2**40, 2**40), W.shape), ValueError,
     'input_shape must have at most 2**63 - 1 elements; got shape (1, 2, 1099511627776, 1099511627776)'),
    (lambda: pyconv.unfold(np.broadcast_to(F64(1), (1, 1, 2**40)), (2**39,)), ValueError,
     'columns must have at most 2**63 - 1 elements; got shape (1, 549755813888, 549755813889)'),
]

MODES = "padding_mode must be one of 'zeros', 'constant', 'circular', 'replicate', 'reflect'; got"
BYTES = X.astype('i1')
ONE = 'must keep a cell on every axis whose padding'


def integers(of=np.int8, bias=None, **more):
    return lambda: pyconv.conv2d(X.astype(of), W.astype(of), bias, **more)


def valued(value, dtype=float, mode='constant'):
    return lambda: pyconv.conv2d(X.astype(dtype), W.astype(dtype), padding_mode=mode, padding_value=value)


PADDING_MODES = [
    *((call(padding_mode=mode), ValueError, f'{MODES} {mode!r}')
      for call in (conv, conv_input, conv_weight, transpose, backward, double)
      for mode in ('zero', None, 1, ('circular', 'zeros'))),
    (lambda: pyconv.unfold(X, 3, padding_mode='wrap'), ValueError, f"{MODES} 'wrap'"),
    (lambda: pyconv.fold(np.ones((4, 4)), 3, 2, padding_mode='wrap'), ValueError, f"{MODES} 'wrap'"),
    (lambda: pyconv.conv_jvp(X, W, X, W, padding_mode='wrap'), ValueError, f"{MODES} 'wrap'"),
    (lambda: pyconv.workspace(X.shape, W.shape, padding_mode='wrap'), ValueError, f"{MODES} 'wrap'"),
    *((valued(1, mode=mode), ValueError, "padding_value must be 0 where padding_mode is not 'constant'; got 1")
      for mode in ('zeros', 'circular', 'replicate', 'reflect')),
    *((valued(value), TypeError, f'padding_value must be a real number for float64 arrays; got {value!r}')
      for value in ('1', None, True, np.True_, 1j, [1.0], np.ones(2))),
    *((valued(value, of), ValueError, f'padding_value must be in the range of {np.dtype(of)}; got {value!r}')
      for value, of in ((1e39, 'f4'), (-65520, 'f2'), (1e39j, 'F'))),
    (lambda: pyconv.convolution_backward(Y, X, W, 1, 0, 1, False, 0, 1, np.array(True)), TypeError,
     'output_mask must be a sequence of 3 bools; got array(True)'),
    (valued(10**400), ValueError,
     'padding_value must be a real number for float64 arrays; got 100000000000000000...0000000000000000000'),
    *((valued(value, 'F'), TypeError, f'padding_value must be a number for complex64 arrays; got {value!r}')
      for value in ('1', None, False)),
    *((valued(value, 'i1'), error, f'padding_value must be an int from -128 to 127 for int8 arrays; got {value!r}')
      for value, error in ((128, ValueError), (-129, ValueError), (1.0, TypeError), (True, TypeError))),
    (valued(-1, 'u8'), ValueError,
     'padding_value must be an int from 0 to 18446744073709551615 for uint64 arrays; got -1'),
    (conv(np.ones((1, 2, 0, 5)), W, padding=3, padding_mode='circular'), ValueError,
     f"input {ONE} 'circular' fills; got size (0, 5)"),
    (conv(padding=((-3, 9), (9, -6)), padding_mode='reflect'), ValueError,
     f"input {ONE} 'reflect' fills; got size (5, 5)"),
    (conv(padding=((-5, 9), (0, 0)), padding_mode='replicate'), ValueError,
     f"input {ONE} 'replicate' fills; got size (5, 5)"),
    (conv_input((1, 2, 0, 5), grad_output=Y, padding=((2, 3), (0, 0)), padding_mode='replicate'), ValueError,
     f"input_size {ONE} 'replicate' fills; got size (0, 5)"),
    (transpose(Y, padding=((-9, 17), (0, 0)), padding_mode='replicate', stride=(7, 1)), ValueError,
     f"output {ONE} 'replicate' fills; got size (9, 5)"),
    (lambda: pyconv.unfold(np.ones((1, 2, 0)), (2,), padding=1, padding_mode='replicate'), ValueError,
     f"input {ONE} 'replicate' fills; got size (0,)"),
]

TYPES = [
    *((conv(dtype=dtype), TypeError, f'dtype must be None for float64 arrays; got {dtype!r}')
      for dtype in (np.float64, 'int32', 0)),
    (integers('F', dtype='int64'), TypeError, "dtype must be None for complex64 arrays; got 'int64'"),
    *((integers(dtype=dtype), TypeError, f'dtype must be int32 or int64 for int8 arrays; got {dtype!r}')
      for dtype in ('int8', np.uint64, float, 'word')),
    (integers(np.uint64, dtype=np.float32), TypeError,
     "dtype must be int32, int64 or uint64 for uint64 arrays; got <class 'numpy.float32'>"),
    *((call, TypeError, "dtype must be int32 or int64 for int8 arrays; got 'int16'") for call in (
        lambda: pyconv.conv2d_input(X.shape, W.astype('i1'), Y.astype('i1'), dtype='int16'),
        lambda: pyconv.conv2d_weight(BYTES, W.shape, Y.astype('i1'), dtype='int16'),
        lambda: pyconv.conv_transpose2d(Y.astype('i1'), W.astype('i1'), dtype='int16'),
        lambda: pyconv.conv_bias(BYTES, dtype='int16'),
        lambda: pyconv.fold(np.ones((4, 4), 'i1'), 3, 2, dtype='int16'))),
    (lambda: pyconv.workspace(X.shape, W.shape, result_dtype='int32'), TypeError,
     "result_dtype must be None for float32 arrays; got 'int32'"),
    (lambda: pyconv.workspace(X.shape, W.shape, dtype='i1', result_dtype='i2'), TypeError,
     "result_dtype must be int32 or int64 for int8 arrays; got 'i2'"),
    (integers(bias=B.astype('i1')), TypeError, 'bias must have the dtype of the result, int32; got int8'),
    (integers(bias=B.astype('i4'), dtype='int64'), TypeError,
     'bias must have the dtype of the result, int64; got int32'),
    (integers(np.int16, bias=B.astype('i4')), TypeError, 'bias must have the dtype of the result, int64; got int32'),
    (integers(bias=[1.0, 2.0, 3.0]), TypeError, 'bias must have the dtype of the result, int32; got float64'),
    (integers(bias=[1, 2, 2**31]), ValueError, 'bias must hold integers that int32 can hold; got [1, 2, 2147483648]'),
    (conv(np.ones((1, 1, 1, 2), np.float16), [[[[1, 70000.]]]]), ValueError,
     'weight must hold numbers in the range of float16; got [[[[1, 70000.0]]]]'),
    (conv([[[[1e39, float('inf')]]]], np.ones((1, 1, 1, 1), np.complex64)), ValueError,
     'input must hold numbers in the range of complex64; got [[[[1e+39, inf]]]]'),
    (conv([[[[complex(float('inf'), 1e39)]]]], np.ones((1, 1, 1, 1), np.complex64)), ValueError,
     'input must hold numbers in the range of complex64; got [[[[(inf+1e+39j)]]]]'),
    (conv(BYTES, [[[[1, 200]]]]), ValueError, 'weight must hold integers that int8 can hold; got [[[[1, 200]]]]'),
    (conv(BYTES, W.astype('u1')), TypeError, 'weight must have the dtype of input, int8; got uint8'),
    (conv(X, [[[[1j]]]]), TypeError, 'weight must have the dtype of input, float64; got complex128'),
    (conv([[[1, 2]]], [['a']]), TypeError, f'weight {DTYPE} <U1'),
    (integers(out=np.ones(Y.shape, 'i1')), TypeError, 'out must have dtype int32; got int8'),
    (integers(algorithm='winograd'), ValueError,
     "algorithm must be one of 'auto', 'gemm' for int8 arrays; got 'winograd'"),
    (lambda: pyconv.workspace(X.shape, W.shape, dtype='u8', algorithm='winograd'), ValueError,
     "algorithm must be one of 'auto', 'gemm' for uint64 arrays; got 'winograd'"),
    *((conv_weight(per_sample=value), TypeError, f'per_sample must be True or False; got {value!r}')
      for value in (1, None, 'yes')),
    (lambda: pyconv.workspace(X.shape, W.shape, per_sample=1), TypeError,
     'per_sample must be True or False; got 1'),
    (backward(per_sample=1), TypeError, 'per_sample must be True or False; got 1'),
    (conv_weight(per_sample=True, out=np.ones(W.shape)), ValueError,
     'out must have shape (1, 3, 2, 3, 3); got shape (3, 2, 3, 3)'),
    (backward(per_sample=True, out=(None, np.ones(W.shape), None)), ValueError,
     'out[1] must have shape (1, 3, 2, 3, 3); got shape (3, 2, 3, 3)'),
    (backward(per_sample=True, out=(np.ones(X.shape), np.ones((1, *W.shape)), np.ones(3)), accumulate=True),
     ValueError, 'out[2] must have shape (1, 3); got shape (3,)'),
    (backward(per_sample=True, out=(None, None, np.ones((1, 3))), accumulate=True), ValueError,
     'out[0] must be given where accumulate is True; got None'),
]

SMALL = np.ones(4)
OUTS = [
    (conv(out=[]), TypeError, 'out must be an array in main memory; got list'),
    (conv(out=Y.astype(F32)), TypeError, 'out must have dtype float64; got float32'),
    (conv(out=np.ones((1, 3, 3, 4))), ValueError, 'out must have shape (1, 3, 3, 3); got shape (1, 3, 3, 4)'),
    (conv(out=read_only(Y.shape)), ValueError, 'out must be writeable; got a read-only array'),
    (conv(out=np.lib.stride_tricks.as_strided(SMALL, Y.shape, (8, 0, 0, 8))), ValueError,
     'out must not overlap itself; got strides (8, 0, 0, 8)'),
    (lambda: pyconv.conv2d(X, np.ones((2, 2, 1, 1)), out=X), ValueError,
     'out must not overlap input; got arrays with common bounds of memory'),
    (lambda: pyconv.conv_bias(Y, out=Y[0, :, 0, 0]), ValueError,
     'out must not overlap grad_output; got arrays with common bounds of memory'),
    (lambda: pyconv.unfold(X, 1, out=X.reshape(1, 2, 25)), ValueError,
     'out must not overlap input; got arrays with common bounds of memory'),
    (backward(out=X), TypeError, 'out must be a tuple of 3 arrays or None; got ndarray'),
    (backward(out=(None, None)), ValueError, 'out must be a tuple of 3 arrays or None; got 2 of them'),
    (backward((True, False, True), out=(None, np.ones(W.shape), None)), ValueError,
     'out[1] must be None where output_mask is False; got an array'),
    (backward(out=(X, None, None)), ValueError,
     'out[0] must not overlap input; got arrays with common bounds of memory'),
    (conv(accumulate=True), ValueError, 'out must be given where accumulate is True; got None'),
    (conv_weight(accumulate=True), ValueError, 'out must be given where accumulate is True; got None'),
    (lambda: pyconv.conv_bias(Y, accumulate=True), ValueError, 'out must be given where accumulate is True; got None'),
    (lambda: pyconv.fold(np.ones((4, 4)), 3, 2, accumulate=True), ValueError,
     'out must be given where accumulate is True; got None'),
    (backward(accumulate=True), ValueError, 'out must be given where accumulate is True; got None'),
    (backward((True, True, False), out=(np.ones(X.shape), None, None), accumulate=True), ValueError,
     'out[1] must be given where accumulate is True; got None'),
    (conv(accumulate=1), TypeError, 'accumulate must be True or False; got 1'),
    (lambda: pyconv.conv_bias(Y, accumulate=None), TypeError, 'accumulate must be True or False; got None'),
    (lambda: pyconv.fold(np.ones((4, 4)), 3, 2, accumulate='no'), TypeError,
     "accumulate must be True or False; got 'no'"),
    (double(out=(None, np.ones(3), None)), ValueError, 'out[1] must have shape (1, 2, 5, 5); got shape (3,)'),
]


@pytest.mark.parametrize(('call', 'error', 'text'), KINDS + SHAPES + SETTINGS + HUGE + PADDING_MODES + TYPES + OUTS,
                         ids=lambda value: value[:60] if isinstance(value, str) else '')
def test_error(call, error, text):
    for _ in range(2):  # a cache that kept a failure would show in the second
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert type(caught.value) is error
        assert str(caught.value) == text


@pytest.mark.parametrize('log', [57, 60])
def test_a_result_for_which_there_can_be_no_memory(log):
    """Of fewer bytes than 2**63, and of more, which NumPy calls a ValueError."""
    for call, size in ((lambda: pyconv.conv1d(X[:, :1, 0], W[:1, :1, 0], padding=2**log), 2**(log + 1) + 3),
                       (lambda: pyconv.unfold(X[:1, :1, 0], (1,), padding=2**log), 2**(log + 1) + 5)):
        with pytest.raises(MemoryError, match=rf'shape \(1, 1, {size}\) and data type float64$'):
            call()


def least_elements(call):
    """How many elements a call says its buffer must have; the message is checked."""
    with pytest.raises(ValueError) as caught:
        call(np.ones(1))
    name, *_, least, elements, got, one = str(caught.value).split()
    assert str(caught.value) == f'{name} must have at least {least} elements; got 1' and int(least) > 1
    return int(least)


@pytest.mark.parametrize(('name', 'call'), [
    ('finput', lambda **more: pyconv.conv2d(X, W, **more)),
    ('finput', lambda **more: pyconv.conv2d_weight(X, W.shape, Y, **more)),
    ('fgrad_input', lambda **more: pyconv.conv2d_input(X.shape, W, Y, **more)),
    ('fgrad_input', lambda **more: pyconv.conv_transpose2d(Y, W, **more)),
    ('finput', lambda **more: backward(**more)()),
    ('fgrad_input', lambda **more: backward(**more)()),
    ('finput', lambda **more: pyconv.conv_jvp(X, W, X, W, **more)),
], ids=lambda value: value if isinstance(value, str) else '')
def test_buffer_errors(name, call):
    least = least_elements(lambda buffer: call(**{name: buffer}))
    need = f'have at least {least} elements'
    for buffer, error, text in (
        ([1.0], TypeError, f'{name} must be an array in main memory; got list'),
        (np.ones(least, F32), TypeError, f'{name} must have dtype float64 and {need}; got float32'),
        (np.ones(2 * least)[::2], ValueError,
         f'{name} must be contiguous, aligned and writeable, and {need}; got strides (16,)'),
        (read_only(least), ValueError,
         f'{name} must be contiguous, aligned and writeable, and {need}; got a read-only array'),
        (np.frombuffer(bytearray(8 * least + 1), F64, least, 1), ValueError,
         f'{name} must be contiguous, aligned and writeable, and {need}; got an unaligned array'),
    ):
        with pytest.raises(error) as caught:
            call(**{name: buffer})
        assert str(caught.value) == text


def test_a_buffer_has_the_type_that_is_computed_in():
    for dtype, wanted in (('f2', 'float32'), ('F', 'float32'), ('D', 'float64'), ('i1', 'int32'), ('u8', 'uint64')):
        x, w = X.astype(dtype), W.astype(dtype)
        least = least_elements(lambda buffer: pyconv.conv2d(x, w, finput=buffer.astype(wanted)))
        with pytest.raises(TypeError) as caught:
            pyconv.conv2d(x, w, finput=np.ones(1000, 'i2'))
        assert str(caught.value) == f'finput must have dtype {wanted} and have at least {least} elements; got int16'


def test_buffer_over_an_operand_or_out():
    arena = np.ones(100_000)
    x, y = arena[:50].reshape(X.shape), arena[50:77].reshape(Y.shape)
    least = least_elements(lambda buffer: pyconv.conv2d(X, W, finput=buffer))
    for input, out, other in ((x, None, 'input'), (X, y, 'out')):
        with pytest.raises(ValueError) as caught:
            pyconv.conv2d(input, W, out=out, finput=arena)
        assert str(caught.value) == (f'finput must not overlap {other}, and have at least {least} elements; '
                                     'got arrays with common bounds of memory')


def test_columns_of_another_shape():
    columns = pyconv.unfold(X, 3)
    with pytest.raises(ValueError) as caught:
        pyconv.conv2d_weight(None, W.shape, Y, finput=columns[0])
    assert str(caught.value) == ('finput must have the shape (1, 18, 9) that unfold gives, where input is None; '
                                 'got shape (18, 9)')
    with pytest.raises(ValueError) as caught:
        pyconv.conv2d_weight(None, W.shape, np.ones((1, 3, 1, 1)), padding=2, finput=np.ones((1, 18, 1)))
    assert str(caught.value) == 'grad_output must have a size that some input gives; got shape (1, 3, 1, 1)'


def test_nothing_is_allocated_before_an_error():
    large = np.ones((1, 8, 512, 512))
    weight, grad_output = np.ones((8, 8, 3, 3)), np.ones((1, 8, 510, 510))
    turned = large.transpose(0, 1, 3, 2)  # would have to be copied
    calls = [
        lambda: pyconv.conv2d(turned, weight, np.ones(7)),
        lambda: pyconv.conv2d(turned, weight, finput=np.ones(1)),
        lambda: pyconv.conv2d(turned, weight, algorithm='fast'),
        lambda: pyconv.conv2d(turned, weight, out=np.ones(1)),
        lambda: pyconv.conv2d_weight(turned, weight.shape, grad_output, 2),
        lambda: pyconv.convolution_backward(
            grad_output, turned, weight, 1, 0, 1, False, 0, 1, (True, True, True), finput=np.ones(1)),
        lambda: pyconv.unfold(turned, 513),
        lambda: pyconv.conv2d(turned, weight, padding_mode='constant', padding_value='1'),
        lambda: pyconv.conv2d(turned, weight, padding=((-600, 601), (0, 0)), padding_mode='circular'),
        lambda: pyconv.conv2d(turned, weight, dtype='int32'),
        lambda: pyconv.conv2d_weight(turned, weight.shape, grad_output, per_sample=True, out=np.ones(1)),
    ]
    for call in calls:
        tracemalloc.start()
        try:
            with pytest.raises((TypeError, ValueError)):
                call()
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()
