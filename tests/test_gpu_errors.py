"""Every error of GPU arrays with its whole text, none of them after an allocation; fakes whose memory is NumPy's."""
import ctypes
import re
from types import SimpleNamespace

import numpy as np
import pytest

import pyconv
from gpu_fakes import (  # noqa: F401, the fixtures
    SETTINGS,
    B,
    DLPack,
    HostTensor,
    Interface,
    W,
    X,
    Y,
    backend,
    conv,
    frameworks,
    integers,
    maker,
)
from pyconv._gpu import dlpack

STREAM = ("stream must be a stream's handle, an int of 0 to 2**64 - 1, or an object with __cuda_stream__, "
          'cuda_stream, ptr or handle; got')
MISALIGNED = np.zeros(4 * X.size + 2, 'u1')[2:].view('f4').reshape(X.shape)
MISALIGNED_TEXT = (f'input must be aligned to its elements; got address {MISALIGNED.ctypes.data} and strides '
                   f'{X.strides} in bytes')
NULL_TEXT = f'input must have memory for its elements; got address 0 and shape {X.shape}'
PROTOCOL = 'input must have a __cuda_array_interface__ with version, typestr, shape and data'
FOUR_AXES = np.ones((1, 1, 2, 3, 4, 9), 'f4')[..., ::2]
HALF = [Interface(array.astype('f2')) for array in (X, W)]


def freed(frameworks):
    """As after untyped_storage().resize_(0)."""
    tensor = frameworks.torch.Tensor(X)
    tensor.data_ptr = lambda: 0
    return tensor


def freed_view(frameworks):
    """The same of a part that does not begin where the memory did: torch names an address still."""
    tensor = frameworks.torch.Tensor(X)
    tensor.offset, tensor.freed = 1, True
    return tensor


class Entries:
    def __init__(self, entries):
        self.__cuda_array_interface__ = entries


class Unreadable:
    """As an array whose memory was given away."""

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError('deleted')


class Failing(DLPack):
    def __dlpack__(self, **keywords):
        raise BufferError('no more exports')


class Later(DLPack):
    """Answers in a version of DLPack that nobody asked for."""

    def __dlpack__(self, **keywords):
        capsule = super().__dlpack__(**keywords)
        ctypes.c_uint32.from_address(dlpack._pointer(capsule, b'dltensor_versioned')).value = 2
        return capsule


RULE = ('float16, bfloat16, float32, float64, complex64, complex128, int8, int16, int32, int64, uint8, uint16, uint32 '
        'or uint64')
ERRORS = {
    # places
    'host weight': (lambda f: conv(w=W), TypeError,
                    'weight must be on the device of input, cuda:0; got an array in main memory (ndarray)'),
    'host tensor': (lambda f: conv(w=HostTensor(W)), TypeError,
                    'weight must be on the device of input, cuda:0; got an array in main memory (HostTensor)'),
    'list': (lambda f: conv(b=[1.0] * 6), TypeError, 'bias must be on the device of input, cuda:0; got list'),
    'host input': (lambda f: conv(x=X), TypeError,
                   'weight must be in main memory, as input is; got an array on cuda:0'),
    'host input list': (lambda f: conv(x=X, w=W, b=f.torch.Tensor(B, 1)), TypeError,
                        'bias must be in main memory, as input is; got an array on cuda:1'),
    'other device': (lambda f: conv(w=f.torch.Tensor(W, 1)), TypeError,
                     'weight must be on the device of input, cuda:0; got cuda:1'),
    'host grad_output': (lambda f: pyconv.conv2d_input(X.shape, Interface(W), Y, **SETTINGS), TypeError,
                         'grad_output must be on the device of weight, cuda:0; got an array in main memory (ndarray)'),
    # libraries
    'weight of CuPy': (lambda f: conv(x=f.torch.Tensor(X), w=f.cupy.ndarray(W)), TypeError,
                       'weight must be an array of the library of input, torch; got cupy'),
    'bias of torch': (lambda f: conv(x=f.cupy.ndarray(X), w=f.cupy.ndarray(W), b=f.torch.Tensor(B)), TypeError,
                      'bias must be an array of the library of input, cupy; got torch'),
    'weight of DLPack': (lambda f: conv(x=f.torch.Tensor(X), w=DLPack(W)), TypeError,
                         'weight must be an array of the library of input, torch; got gpu_fakes'),
    'input of torch': (lambda f: pyconv.convolution_backward(
        Interface(Y), f.torch.Tensor(X), Interface(W), (2, 1), 1, 1, False, 0, 2, (True,) * 3), TypeError,
        'input must be an array of the library of grad_output, gpu_fakes; got torch'),
    'columns of CuPy': (lambda f: pyconv.conv2d_weight(
        None, (6, 4, 1, 1), f.torch.Tensor(integers(2, 6, 6, 5)), finput=f.cupy.ndarray(X.reshape(2, 4, 30))),
        TypeError, 'grad_output must be an array of the library of finput, cupy; got torch'),
    'none': (lambda f: pyconv.conv2d(Interface(X), None), TypeError, 'weight must be an array; got None'),
    # dtypes and forms
    'bools': (lambda f: conv(x=Interface(X.astype(bool))), TypeError, f'input must have dtype {RULE}; got |b1'),
    'bool tensor': (lambda f: conv(x=f.torch.Tensor(X.astype(bool))), TypeError,
                    f'input must have dtype {RULE}; got bool'),
    'byte order': (lambda f: conv(x=f.cupy.ndarray(X.astype('>f4'))), TypeError,
                   f'input must have dtype {RULE}; got >f4'),
    'mixed': (lambda f: conv(w=Interface(W.astype('f8'))), TypeError,
              'weight must have the dtype of input, float32; got float64'),
    'sparse': (lambda f: conv(x=f.torch.Tensor(X, layout='sparse_coo')), TypeError,
               'input must be a dense tensor; got sparse_coo'),
    'negated': (lambda f: conv(x=f.torch.Tensor(X, neg=True)), TypeError,
                'input must hold its values as they are; got a tensor that resolve_neg would negate'),
    'zeros without memory': (lambda f: conv(x=f.torch.Tensor(X, zeros=True)), TypeError,
                             'input must have memory for its elements; got a tensor of zeros without'),
    'version 1': (lambda f: conv(x=Interface(X, 1)), TypeError,
                  'input must have __cuda_array_interface__ of version 2 or 3; got version 1'),
    'mask': (lambda f: conv(x=Interface(X, mask=Interface(X))), TypeError,
             'input must have no mask; got a masked array'),
    'strides': (lambda f: conv(x=Interface(X, data=(4096, False), strides=(480, 120, 20, 6))), TypeError,
                'input must be aligned to its elements; got address 4096 and strides (480, 120, 20, 6) in bytes'),
    'address': (lambda f: conv(x=Interface(X, data=(4098, False), strides=(480, 120, 20, 4))), TypeError,
                'input must be aligned to its elements; got address 4098 and strides (480, 120, 20, 4) in bytes'),
    'address of DLPack': (lambda f: conv(x=DLPack(MISALIGNED)), TypeError,
                          MISALIGNED_TEXT),
    'address of a tensor': (lambda f: conv(x=f.torch.Tensor(MISALIGNED)), TypeError, MISALIGNED_TEXT),
    'address of CuPy': (lambda f: conv(x=f.cupy.ndarray(MISALIGNED)), TypeError, MISALIGNED_TEXT),
    'address of a contiguous array': (lambda f: conv(x=Interface(MISALIGNED)), TypeError, MISALIGNED_TEXT),
    'no address': (lambda f: conv(x=Interface(X, data=(None, False))), TypeError, NULL_TEXT),
    'address 0': (lambda f: conv(w=Interface(X, data=(0, False))), TypeError, NULL_TEXT.replace('input', 'weight')),
    'a tensor whose storage was freed': (lambda f: conv(x=freed(f)), TypeError, NULL_TEXT),
    'a part of one': (lambda f: conv(x=freed_view(f)), TypeError, NULL_TEXT),
    'address of no GPU': (lambda f: conv(w=Interface(W, device=None)), TypeError,
                          f'weight must lie in memory that the CUDA driver knows; got address {W.ctypes.data}'),
    # what protocols say
    'empty interface': (lambda f: conv(x=Entries({})), TypeError, f'{PROTOCOL}; got {{}}'),
    'interface of a wrong kind': (lambda f: conv(x=Entries([3])), TypeError, f'{PROTOCOL}; got [3]'),
    'version of a wrong kind': (lambda f: conv(x=Entries({'version': '3'})), TypeError,
                                f"{PROTOCOL}; got {{'version': '3'}}"),
    'too few strides': (lambda f: conv(x=Interface(X, strides=(4, 4))), TypeError,
                        f'input must have a stride for each axis; got shape {X.shape} and strides (4, 4) in bytes'),
    **{f'{name} that fails': (call, TypeError, f'{name} must have a __cuda_array_interface__ that can be read; got '
                              'Unreadable (deleted)')
       for name, call in (('input', lambda f: conv(x=Unreadable())), ('weight', lambda f: conv(x=X, w=Unreadable())),
                          ('out', lambda f: pyconv.conv2d(X, W, **SETTINGS, out=Unreadable())))},
    'a producer that fails': (lambda f: conv(x=Failing(X)), TypeError,
                              'input must be an array that DLPack can read; got Failing (no more exports)'),
    'a later DLPack': (lambda f: conv(w=Later(W)), TypeError, 'weight must be an array that DLPack can read; got Later '
                       '(its DLPack is of version 2.0, not 1 or older)'),
    'copy of DLPack': (lambda f: conv(x=DLPack(X, copies=True)), TypeError,
                       'input must give its own memory through DLPack; got a copy'),
    # shapes are the geometry's
    'shape': (lambda f: conv(b=Interface(B[:5])), ValueError, 'bias must have shape (6,); got shape (5,)'),
    **{f'{name} of four axes that are apart, from columns': (lambda f, y=y, w=w, out=out: pyconv.convolution_backward(
        Interface(y), None, Interface(w), 1, 0, 1, False, 0, 1, (False, True, False),
        finput=Interface(np.ones((1, w.size, y.size), 'f4')), out=(None, out, None)),
        ValueError, f'{name} must have cells that are evenly apart in memory, where it has more than three spatial '
        'axes and input is None on a GPU; got shape (1, 1, 2, 3, 4, 5) with strides (216, 216, 108, 36, 9, 2)')
       for name, y, w, out in (
           ('grad_output', FOUR_AXES, np.ones((1, 1, 1, 1, 1, 1), 'f4'), None),
           ('out[1]', np.ones((1, 1, 1, 1, 1, 1), 'f4'), FOUR_AXES.copy(), Interface(FOUR_AXES)))},
    # settings
    'winograd': (lambda f: conv(algorithm='winograd'), ValueError,
                 "algorithm must be one of 'auto', 'gemm', 'tf32x3' for float32 on a GPU; got 'winograd'"),
    'tf32x3': (lambda f: pyconv.conv2d(*HALF, **SETTINGS, algorithm='tf32x3'), ValueError,
               "algorithm must be one of 'auto', 'gemm', 'wgmma' for float16 on a GPU; got 'tf32x3'"),
    'wgmma': (lambda f: conv(algorithm='wgmma'), ValueError,
              "algorithm must be one of 'auto', 'gemm', 'tf32x3' for float32 on a GPU; got 'wgmma'"),
    'wgmma on the host': (lambda f: pyconv.conv2d(X, W, **SETTINGS, algorithm='wgmma'), ValueError,
                          "algorithm must be one of 'auto', 'gemm', 'winograd'; got 'wgmma'"),
    'tf32x3 on the host': (lambda f: pyconv.conv2d(X, W, **SETTINGS, algorithm='tf32x3'), ValueError,
                           "algorithm must be one of 'auto', 'gemm', 'winograd'; got 'tf32x3'"),
    'columns': (lambda f: conv(algorithm='columns'), ValueError,
                "algorithm must be one of 'auto', 'gemm', 'tf32x3' for float32 on a GPU; got 'columns'"),
    'allow_tf32': (lambda f: conv(allow_tf32=1), TypeError, 'allow_tf32 must be True or False; got 1'),
    'allow_tf32 on the host': (lambda f: pyconv.conv2d(X, W, **SETTINGS, allow_tf32=None), TypeError,
                               'allow_tf32 must be True or False; got None'),
    'stream': (lambda f: conv(stream='main'), TypeError, f"{STREAM} 'main'"),
    'stream bool': (lambda f: conv(stream=True), TypeError, f'{STREAM} True'),
    'stream negative': (lambda f: conv(stream=-1), ValueError, f'{STREAM} -1'),
    'stream of no handle': (lambda f: conv(stream=2**70), ValueError, f'{STREAM} {2**70}'),
    'stream float': (lambda f: pyconv.conv_bias(Interface(Y), stream=2.0), TypeError, f'{STREAM} 2.0'),
    'stream on the host': (lambda f: pyconv.conv2d(X, W, **SETTINGS, stream=5), ValueError,
                           'stream must be None for arrays in main memory; got 5'),
    **{f'{name} stream on the host': (call, ValueError, 'stream must be None for arrays in main memory; got 0')
       for name, call in (('bias', lambda f: pyconv.conv_bias(Y, stream=0)),
                          ('unfold', lambda f: pyconv.unfold(X, 2, stream=0)),
                          ('fold', lambda f: pyconv.fold(np.ones((4, 4)), 3, 2, stream=0)),
                          ('columns', lambda f: pyconv.conv2d_weight(
                              None, (3, 1, 2), np.ones((1, 3, 1, 1)), finput=np.ones((1, 2, 1)), stream=0)))},
    # out
    'host out': (lambda f: conv(out=np.empty_like(Y)), TypeError,
                 'out must be on the device of input, cuda:0; got an array in main memory (ndarray)'),
    'gpu out': (lambda f: pyconv.conv2d(X, W, **SETTINGS, out=f.torch.Tensor(Y)), TypeError,
                'out must be in main memory, as input is; got an array on cuda:0'),
    'gpu buffer': (lambda f: pyconv.conv2d(X, W, **SETTINGS, finput=f.torch.Tensor(Y, 1)), TypeError,
                   'finput must be in main memory, as input is; got an array on cuda:1'),
    'gpu out of columns': (lambda f: pyconv.unfold(X, 2, out=Interface(Y)), TypeError,
                           'out must be in main memory, as input is; got an array on cuda:0'),
    'gpu out of a bias': (lambda f: pyconv.conv_bias(Y, out=Interface(B.copy())), TypeError,
                          'out must be in main memory, as grad_output is; got an array on cuda:0'),
    'gpu out of columns given': (lambda f: pyconv.conv1d_weight(
        None, (3, 1, 2), np.ones((1, 3, 1)), finput=np.ones((1, 2, 1)), out=f.torch.Tensor(W)), TypeError,
        'out must be in main memory, as finput is; got an array on cuda:0'),
    'out elsewhere': (lambda f: conv(out=f.torch.Tensor(Y.copy(), 1)), TypeError,
                      'out must be on the device of input, cuda:0; got cuda:1'),
    'out dtype': (lambda f: conv(out=Interface(Y.astype('f8'))), TypeError,
                  'out must have dtype float32; got float64'),
    'out shape': (lambda f: conv(out=Interface(Y[0].copy())), ValueError,
                  f'out must have shape {Y.shape}; got shape {Y[0].shape}'),
    'out read-only': (lambda f: conv(out=Interface(Y.copy(), read_only=True)), ValueError,
                      'out must be writeable; got a read-only array'),
    'out of old DLPack': (lambda f: conv(out=DLPack(Y.copy(), 0)), ValueError,
                          'out must be writeable; got a read-only array'),
    'out over itself': (lambda f: conv(out=Interface(np.broadcast_to(Y[:1].copy(), Y.shape))), ValueError,
                        f'out must not overlap itself; got strides (0, {Y[0, 0].size}, {Y.shape[3]}, 1) in elements'),
    'out over input': (lambda f: pyconv.conv2d(*[Interface(X), Interface(integers(4, 4, 1, 1))], out=f.torch.Tensor(X)),
                       ValueError, 'out must not overlap input; got arrays with common bounds of memory'),
    'outs': (lambda f: pyconv.convolution_backward(
        Interface(Y), Interface(X), Interface(W), (2, 1), 1, 1, False, 0, 2, (True, True, True),
        out=(None, W.copy(), None)), TypeError,
        'out[1] must be on the device of grad_output, cuda:0; got an array in main memory (ndarray)'),
    # buffers
    'buffer on the host': (lambda f: conv(finput=np.ones(50, 'f4')), TypeError,
                           'finput must be on the device of input, cuda:0; got an array in main memory (ndarray)'),
    'buffer too small': (lambda f: conv(finput=Interface(np.ones(49, 'f4'))), ValueError,
                         'finput must have at least 50 elements; got 49'),
    'buffer dtype': (lambda f: conv(finput=Interface(np.ones(50))), TypeError,
                     'finput must have dtype float32 and have at least 50 elements; got float64'),
    'buffer with gaps': (
        lambda f: conv(finput=Interface(np.ones(100, 'f4')[::2])), ValueError,
        'finput must be contiguous and writeable, and have at least 50 elements; got strides (2,) in elements'),
    'buffer read-only': (
        lambda f: conv(finput=Interface(np.ones(50, 'f4'), read_only=True)), ValueError,
        'finput must be contiguous and writeable, and have at least 50 elements; got a read-only array'),
    'buffer over input': (
        lambda f: conv(finput=Interface(X)), ValueError,
        'finput must not overlap input, and have at least 50 elements; got arrays with common bounds of memory'),
    'grad buffer': (lambda f: pyconv.conv2d_input(
        X.shape, Interface(W), Interface(Y), **SETTINGS, fgrad_input=Interface(np.ones(1, 'f4'))), ValueError,
        'fgrad_input must have at least 50 elements; got 1'),
    # workspace
    'device': (lambda f: pyconv.workspace(X.shape, W.shape, device='gpu'), ValueError,
               "device must be 'cpu', 'cuda' or 'cuda:' and an index; got 'gpu'"),
    'device number': (lambda f: pyconv.workspace(X.shape, W.shape, device=0), TypeError,
                      "device must be 'cpu', 'cuda' or 'cuda:' and an index; got 0"),
    'workspace dtype': (lambda f: pyconv.workspace(X.shape, W.shape, dtype=bool, device='cuda'), TypeError,
                        f"dtype must be {RULE}; got <class 'bool'>"),
    'workspace no dtype': (lambda f: pyconv.workspace(X.shape, W.shape, dtype=None, device='cuda'), TypeError,
                           f'dtype must be {RULE}; got None'),
    'workspace allow_tf32': (lambda f: pyconv.workspace(X.shape, W.shape, allow_tf32=0), TypeError,
                             'allow_tf32 must be True or False; got 0'),
}


@pytest.mark.parametrize(('call', 'error', 'text'), ERRORS.values(), ids=ERRORS)
def test_error(call, error, text, frameworks, backend):
    frameworks.full = True  # nothing is allocated before it
    with pytest.raises((TypeError, ValueError)) as caught:
        call(frameworks)
    assert type(caught.value) is error
    assert str(caught.value) == text
    assert not backend.runs


@pytest.mark.parametrize('kind', ['torch', 'cupy', 'interface'])
def test_no_memory_says_how_much_was_wanted(kind, frameworks):
    gpu, frameworks.full = maker(kind, frameworks), True
    for _ in range(2):
        with pytest.raises(MemoryError) as caught:
            pyconv.conv2d(gpu(X), gpu(W), **SETTINGS)
        got = 'OutOfMemoryError' if kind == 'torch' else 'MemoryError'
        assert str(caught.value) == (
            f'cuda:0 must have {Y.nbytes} bytes free for an array of shape {Y.shape}, dtype float32; got {got}')


@pytest.mark.parametrize(('kind', 'text'), [
    ('torch', 'CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported'),
    ('cupy', 'cudaErrorMemoryAllocation: out of memory'),
    ('interface', '[2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY')])
def test_no_memory_where_no_cache_of_it_is_asked(kind, text, frameworks, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(text)

    gpu = maker(kind, frameworks)
    monkeypatch.setattr(frameworks.torch, 'empty_strided', fail)
    frameworks.cupy.empty = frameworks.numba.device_array = fail
    with pytest.raises(MemoryError, match=f'^cuda:0 must have {Y.nbytes} bytes free .*; got RuntimeError$') as caught:
        pyconv.conv2d(gpu(X), gpu(W), **SETTINGS)
    assert not hasattr(caught.value, '__notes__')


def test_other_errors_of_an_allocator_are_its_own(frameworks, monkeypatch):
    monkeypatch.setattr(frameworks.torch, 'empty_strided', lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        pyconv.conv2d(frameworks.torch.Tensor(X), frameworks.torch.Tensor(W), **SETTINGS)


@pytest.mark.parametrize(('text', 'noted'), [
    ('[700] Call to cuMemAlloc results in CUDA_ERROR_ILLEGAL_ADDRESS', True),  # Numba's
    ('CUDA error: an illegal memory access was encountered', True),  # torch's
    ('cudaErrorIllegalAddress: an illegal memory access was encountered', True),  # CuPy's
    ('an error of its own', False)])
def test_an_allocation_after_a_kernel_that_failed(text, noted, frameworks, monkeypatch):
    class AcceleratorError(RuntimeError):
        pass

    def fail(*_, **__):
        raise AcceleratorError(text)

    monkeypatch.setattr(frameworks.torch, 'empty_strided', fail)
    with pytest.raises(AcceleratorError, match=re.escape(text)) as caught:
        pyconv.conv2d(frameworks.torch.Tensor(X), frameworks.torch.Tensor(W), **SETTINGS)
    assert getattr(caught.value, '__notes__', []) == noted * [
        'pyconv: where a kernel has failed, perhaps an earlier one, no CUDA call works in this process any more: it '
        'must restart']


@pytest.fixture
def given():
    """The arrays of a call by name."""
    return {key: Interface(array) for key, array in (
        ('input', X), ('weight', W), ('out', np.empty_like(Y)), ('finput', np.empty(5000, 'f4')))}


@pytest.mark.parametrize('name', ['input', 'out', 'finput'])
def test_tensors_that_torch_traces_are_refused_in_known_calls_too(name, given, frameworks, backend):
    tracing = []
    frameworks.torch._C = SimpleNamespace(_is_tracing=lambda: bool(tracing))
    for one in ('input', 'weight') if name == 'input' else (name,):
        given[one] = frameworks.torch.Tensor(given[one].host)
    pyconv.conv2d(**given, **SETTINGS)
    tracing.append(True)
    runs = len(backend.runs)
    with pytest.raises(TypeError, match=f'^{name} must be outside of torch.jit.trace and make_fx, which take pyconv'):
        pyconv.conv2d(**given, **SETTINGS)
    assert len(backend.runs) == runs


@pytest.mark.parametrize('name', ['out', 'finput'])
def test_what_requires_a_gradient_is_not_written_to_and_autograd_knows_of_all_else(name, given, frameworks, backend):
    tensor = given[name] = frameworks.torch.Tensor(given[name].host)
    for count in (1, 2):
        pyconv.conv2d(**given, **SETTINGS)
        assert tensor.writes == count
    tensor.requires_grad = True
    with pytest.raises(ValueError, match=f'^{name} must require no gradient, of which none is recorded; got a tensor'):
        pyconv.conv2d(**given, **SETTINGS)
    assert tensor.writes == 2
