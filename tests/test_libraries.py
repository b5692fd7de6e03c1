"""Arrays of other libraries in main memory: read in place, answered in kind, never mixed."""
import subprocess
import sys
import tracemalloc
from importlib import import_module

import numpy as np
import pytest

import pyconv
import reference

torch = pytest.importorskip('torch')
strict = pytest.importorskip('array_api_strict')
FakeTensorMode = import_module('torch._subclasses.fake_tensor').FakeTensorMode
TwoTensor = import_module('torch.testing._internal.two_tensor').TwoTensor
make_fx = import_module('torch.fx.experimental.proxy_tensor').make_fx

F32, F64 = np.float32, np.float64
SETTINGS = (1, 1, 1)  # stride, padding, dilation
MASK = (True, True, True)
RNG = np.random.default_rng(3)
X, W, Y, B = (RNG.integers(-3, 4, shape).astype(F64) for shape in ((2, 4, 5, 6), (6, 4, 3, 3), (2, 6, 5, 6), (6,)))


def needs_exchange():
    if np.lib.NumpyVersion(np.__version__) < '2.1.0':
        pytest.skip('before NumPy 2.1 torch cannot resize a tensor that NumPy has seen')


class Torch:
    name, array = 'torch', torch.Tensor
    asked = staticmethod(torch.from_numpy)

    @staticmethod
    def is_one(value):
        return type(value) is torch.Tensor and value.device.type == 'cpu'


class Strict:
    name, array = 'array_api_strict', type(strict.ones(1))
    asked = staticmethod(lambda array: strict.asarray(array, copy=False))

    @staticmethod
    def is_one(value):
        return type(value) is Strict.array and value.device == strict.Device('CPU_DEVICE')


class Library:
    """Somebody's own: nothing but DLPack, so that results are NumPy's."""
    name = 'numpy'

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    asked = classmethod(lambda cls, array: cls(array))

    @staticmethod
    def is_one(value):
        return type(value) is np.ndarray


LIBRARIES = [Torch, Strict, Library]


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def library(request):
    return request.param


X_TORCH, W_TORCH, X_STRICT, W_STRICT = Torch.asked(X), Torch.asked(W), Strict.asked(X), Strict.asked(W)


def numbers(value):
    """As NumPy's, the same memory."""
    return value if isinstance(value, np.ndarray) else np.from_dlpack(value)


CALLS = {
    'conv2d': (lambda x, w, b: pyconv.conv2d(x, w, b, *SETTINGS), (X, W, B)),
    'conv2d without bias': (lambda x, w: pyconv.conv2d(x, w, None, *SETTINGS), (X, W)),
    'conv2d_input': (lambda w, y: pyconv.conv2d_input(X.shape, w, y, *SETTINGS), (W, Y)),
    'conv2d_weight': (lambda x, y: pyconv.conv2d_weight(x, W.shape, y, *SETTINGS), (X, Y)),
    'conv_bias': (pyconv.conv_bias, (Y,)),
    'conv_transpose2d': (lambda y, w: pyconv.conv_transpose2d(y, w, None, 2), (Y, W)),
    'convolution': (lambda x, w, b: pyconv.convolution(x, w, b, *SETTINGS, False, 0, 1), (X, W, B)),
    'convolution_backward': (
        lambda y, x, w: pyconv.convolution_backward(y, x, w, *SETTINGS, False, 0, 1, MASK), (Y, X, W)),
    'convolution_double_backward': (
        lambda y, w, x, gx, gw: pyconv.convolution_double_backward(
            gx, gw, None, y, w, x, *SETTINGS, False, 0, 1, MASK), (Y, W, X, X, W)),
    'conv_jvp': (lambda x, w, t: pyconv.conv_jvp(x, w, t, None, None, *SETTINGS), (X, W, X)),
    'unfold': (lambda x: pyconv.unfold(x, 3), (X,)),
    'fold': (lambda columns: pyconv.fold(columns, (3, 3), 2), (np.ones((2, 8, 4)),)),
}


@pytest.mark.parametrize('dtype', [F32, F64], ids=['float32', 'float64'])
@pytest.mark.parametrize('name', CALLS)
def test_answers_in_kind(library, name, dtype):
    call, arrays = CALLS[name]
    arrays = [array.astype(dtype) for array in arrays]
    kept = [array.copy() for array in arrays]
    wanted, found = call(*arrays), call(*map(library.asked, arrays))
    wanted, found = (value if isinstance(value, tuple) else (value,) for value in (wanted, found))
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted):
        assert library.is_one(one)
        np.testing.assert_array_equal(numbers(one), other, strict=True)
    for array, before in zip(arrays, kept):
        np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize('name', CALLS)
def test_torch_can_resize_its_operands_and_results(name):
    needs_exchange()
    call, arrays = CALLS[name]
    operands = [torch.from_numpy(array).clone() for array in arrays]
    found = call(*operands)
    for tensor in (*operands, *(found if isinstance(found, tuple) else (found,))):
        assert tensor.untyped_storage().resizable()


def test_a_default_device_is_not_asked():
    x, w, b = (torch.from_numpy(array) for array in (X, W, B))
    wanted = pyconv.conv2d(X, W, B)
    with torch.device('meta'):
        found = pyconv.conv2d(x, w, b)
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.filterwarnings('ignore')
def test_a_mode_whose_tensors_have_no_memory():
    x, w = torch.from_numpy(X), torch.from_numpy(W)
    with FakeTensorMode(allow_non_fake_inputs=True):
        found = pyconv.conv2d(x, w)
    assert type(found) is torch.Tensor
    np.testing.assert_array_equal(found.numpy(), pyconv.conv2d(X, W))


ELSEWHERE = {
    'FakeTensor': lambda tensor: FakeTensorMode().from_tensor(tensor),
    'TwoTensor': lambda tensor: TwoTensor(tensor, tensor),
    'MaskedTensor': lambda tensor: torch.masked.masked_tensor(tensor, tensor > 0),
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', ['input', 'weight', 'bias', 'out', 'finput'])
@pytest.mark.parametrize('kind', ELSEWHERE)
def test_tensors_whose_values_lie_elsewhere_are_refused(kind, name):
    call = {'input': X, 'weight': W, 'bias': B, 'out': np.zeros((2, 6, 3, 4)), 'finput': np.zeros(10_000)}
    call = {key: torch.from_numpy(array) for key, array in call.items()}
    call[name] = ELSEWHERE[kind](call[name])
    text = f'^{name} must hold its values in its own memory .see pyconv.torch for other tensors.; got a {kind}$'
    with pytest.raises(TypeError, match=text):
        pyconv.conv2d(**call)


TRACES = {  # of a function, at X
    'make_fx': lambda function: make_fx(function)(X_TORCH),
    'make_fx early': lambda function: make_fx(function, pre_dispatch=True)(X_TORCH),
    'jit.trace': lambda function: torch.jit.trace(function, X_TORCH),
    'compile': lambda function: torch.compile(function, backend='aot_eager', fullgraph=True),
}
CALLS_OF_X = {
    'input': lambda x: pyconv.conv2d(x, W_TORCH),
    'bias': lambda x: pyconv.conv2d(X.tolist(), W.tolist(), x[0, 0, 0]),
    'out': lambda x: pyconv.conv2d(X, W[:4], padding=1, out=x),
    'finput': lambda x: pyconv.conv2d(X, W, finput=x.flatten()),
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', CALLS_OF_X)
@pytest.mark.parametrize('trace', ['make_fx', 'make_fx early', 'jit.trace'])
def test_tensors_that_torch_traces_are_refused(trace, name):
    text = f"^{name} must be outside of torch.jit.trace and make_fx, which take pyconv.torch's functions; got a tensor"
    with pytest.raises(TypeError, match=text):
        TRACES[trace](CALLS_OF_X[name])


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('backend', ['eager', 'aot_eager'])
def test_in_torch_compile_a_plain_function_is_to_be_disabled(backend):
    torch._dynamo.reset()
    text = 'input must be outside of torch.compile, which takes pyconv.torch.s functions, and plain ones as '
    with pytest.raises(TypeError, match=f'^{text}torch.compiler.disable.pyconv.conv2d.; got a tensor inside$'):
        torch.compile(lambda x: 2 * pyconv.conv2d(x + 1, W_TORCH), backend=backend)(X_TORCH)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=text):
        torch.compile(lambda x: 2 * pyconv.conv2d(x + 1, W_TORCH), backend=backend, fullgraph=True)(X_TORCH)
    disabled = torch.compiler.disable(pyconv.conv2d)
    found = torch.compile(lambda x: 2 * disabled(x + 1, W_TORCH), backend=backend)(X_TORCH)
    np.testing.assert_array_equal(found.numpy(), 2 * pyconv.conv2d(X + 1, W))


@pytest.mark.filterwarnings('ignore')
def test_where_torch_compile_is_switched_off_plain_functions_are_called():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(disable=True):
        found = torch.compile(lambda x: 2 * pyconv.conv2d(x + 1, W_TORCH), backend='eager')(X_TORCH)
    np.testing.assert_array_equal(found.numpy(), 2 * pyconv.conv2d(X + 1, W))


@pytest.mark.parametrize('transform', [torch.func.grad, torch.func.jacfwd])
def test_what_torch_transforms_may_use_plain_functions_of_other_tensors(transform):
    one = torch.ones((), dtype=torch.float64)
    found = transform(lambda scale: (scale * pyconv.conv2d(X_TORCH, W_TORCH)).sum())(one)
    np.testing.assert_allclose(found, pyconv.conv2d(X, W).sum(), rtol=1e-12)  # torch's sum in another order


def test_a_dual_tensor_is_not_written_to():
    with torch.autograd.forward_ad.dual_level():
        plain = torch.zeros(2, 6, 3, 4, dtype=torch.float64)
        dual = torch.autograd.forward_ad.make_dual(plain, torch.ones_like(plain))
        with pytest.raises(ValueError, match='^out must have no tangent, as none is worked out; got a dual tensor$'):
            pyconv.conv2d(X_TORCH, W_TORCH, out=dual)
        assert pyconv.conv2d(X_TORCH, W_TORCH, out=plain) is plain


@torch.library.custom_op('pyconv_tests::convolved', mutates_args=())
def convolved(x: torch.Tensor) -> torch.Tensor:
    return pyconv.conv2d(x, W_TORCH)


@convolved.register_fake
def _(x):
    return x.new_empty((2, 6, 3, 4))


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('trace', TRACES)
def test_an_operator_of_ones_own_may_call_plain_functions_wherever_torch_traces(trace):
    torch._dynamo.reset()
    found = TRACES[trace](lambda x: 2 * convolved(x))(X_TORCH)
    np.testing.assert_array_equal(found.numpy(), 2 * pyconv.conv2d(X, W))


@pytest.mark.parametrize('first', [0, 4096])
def test_memory_that_was_given_back_is_refused(first):
    flat = torch.ones(8192, dtype=torch.float64)
    w = flat[first:first + W.size].view(W.shape)
    flat.untyped_storage().resize_(0)
    with pytest.raises(TypeError, match='^weight must have memory of its own; got a Tensor without$'):
        pyconv.conv2d(torch.from_numpy(X), w)


@pytest.mark.parametrize('numpy', ['new', 'old'])
def test_zeros_without_memory_are_zeros(numpy, monkeypatch):
    if numpy == 'old':
        monkeypatch.setattr('pyconv._libraries.exchange_of', lambda kind: None)
    zeros = torch._efficientzerotensor((4, *X.shape[1:]), dtype=torch.float64)
    for x in (zeros, zeros[2:], zeros[:, :, 1:]):
        assert not pyconv.conv2d(x, torch.from_numpy(W)).any()


def test_a_result_of_torch_is_made_after_all_checks(monkeypatch):
    monkeypatch.setattr('pyconv._evaluate.placed', lambda *_: pytest.fail('a result was made'))
    x, w = torch.from_numpy(X), torch.from_numpy(W)
    with pytest.raises(ValueError, match='^finput must have at least'):
        pyconv.conv2d(x, w, finput=torch.ones(1, dtype=torch.float64))


def test_no_memory_for_a_result_of_torch():
    with pytest.raises(MemoryError):
        pyconv.conv1d(torch.ones(1, 1, 4), torch.ones(1, 1, 1), padding=2**44)


def test_unfold_of_a_part_answers_in_kind(library):
    found = pyconv.unfold(library.asked(X), 3, padding=((-1, 1), (0, -1)), padding_mode='circular')
    wanted = pyconv.unfold(X, 3, padding=((-1, 1), (0, -1)), padding_mode='circular')
    assert library.is_one(found)
    np.testing.assert_array_equal(numbers(found), wanted)


def test_the_definition(library):
    found = pyconv.conv2d(library.asked(X), library.asked(W), padding=1)
    wanted = reference.forward(X, W, (5, 6), (1, 1), (1, 1), (1, 1), 1)
    np.testing.assert_array_equal(numbers(found), wanted)


def test_strides_are_read_in_place(library):
    x, w = library.asked(X[:, ::2, ::-1][..., ::2]) if library is Strict else library.asked(X[:, ::2, :, ::2]), W[:, :2]
    wanted = pyconv.conv2d(numbers(x), w)
    np.testing.assert_array_equal(numbers(pyconv.conv2d(x, library.asked(w))), wanted)


@pytest.mark.parametrize('name', ['input', 'weight', 'bias', 'out'])
def test_arrays_of_dask_are_not_computed(name):
    dask = pytest.importorskip('dask.array')
    call = {'input': X, 'weight': W, 'bias': B, 'out': np.empty((2, 6, 3, 4))}
    lazy = dask.from_delayed(import_module('dask').delayed(pytest.fail)('computed'), call[name].shape, call[name].dtype)
    rule = 'main memory; got Array' if name == 'out' else "memory; got one of dask's, which pyconv.dask takes"
    with pytest.raises(TypeError, match=f'^{name} must be an array in {rule}$'):
        pyconv.conv2d(**call | {name: lazy})


@pytest.mark.parametrize('library', ['autograd', 'pytensor'])
def test_what_stands_for_an_array_names_its_room(library):
    pytest.importorskip(library)
    rule = f"^weight must be an array in memory; got one of {library}'s, which pyconv.{library} takes$"
    with pytest.raises(TypeError, match=rule):
        if library == 'autograd':
            import_module('autograd').grad(lambda w: pyconv.conv2d(X, w).sum())(W)
        else:
            pyconv.conv2d(X, import_module('pytensor.tensor').tensor4())


def test_of_channels_last_tensors():
    x = torch.from_numpy(X).contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(pyconv.conv2d(x, torch.from_numpy(W)).numpy(), pyconv.conv2d(X, W))


def test_another_memory_order_of_tensors_is_not_the_results():
    x, w = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (X_TORCH, W_TORCH))
    found = pyconv.conv2d(x, w)
    out = torch.empty_like(found, memory_format=torch.channels_last)
    assert found.is_contiguous() and pyconv.conv2d(x, w, out=out) is out and not out.is_contiguous()
    assert torch.equal(out, found)  # of small integers


def test_no_operand_and_no_result_is_copied(library):
    x, w = np.ones((4, 32, 64, 64)), np.ones((32, 32, 3, 3))
    sizes = pyconv.workspace(x.shape, w.shape, padding=1, dtype=F64)
    out, finput = np.empty(x.shape), np.empty(sizes.finput)
    call = [library.asked(array) for array in (x, w, out, finput)]
    pyconv.conv2d(*call[:2], padding=1, out=call[2], finput=call[3])
    tracemalloc.start()
    result = pyconv.conv2d(*call[:2], padding=1, out=call[2], finput=call[3])
    with_out, _ = tracemalloc.get_traced_memory()[1], tracemalloc.reset_peak()
    pyconv.conv2d(*call[:2], padding=1, finput=call[3])
    without = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result is call[2] and out[1, 1, 1, 1] == 32 * 9
    assert with_out < 1e5 and without < out.nbytes + 1e5


def test_out_of_any_library(library):
    for other in LIBRARIES:
        out = np.full((2, 6, 3, 4), np.nan)
        given = other.asked(out)
        assert pyconv.conv2d(library.asked(X), library.asked(W), out=given) is given
        np.testing.assert_array_equal(out, pyconv.conv2d(X, W))
    strided = np.full((2, 6, 3, 8), np.nan)
    given = library.asked(strided[..., ::2])
    assert pyconv.conv2d(X, W, out=given) is given
    np.testing.assert_array_equal(strided[..., ::2], pyconv.conv2d(X, W))
    assert np.isnan(strided[..., 1::2]).all()


def test_outs_of_a_tuple(library):
    outs = [np.full(shape, np.nan) for shape in (X.shape, W.shape)]
    given = tuple(map(library.asked, outs))
    found = pyconv.convolution_backward(Y, X, W, *SETTINGS, False, 0, 1, MASK, out=(*given, None))
    assert found[0] is given[0] and found[1] is given[1] and type(found[2]) is np.ndarray
    wanted = pyconv.convolution_backward(Y, X, W, *SETTINGS, False, 0, 1, MASK)
    for one, other in zip(outs, wanted):
        np.testing.assert_array_equal(one, other)


def test_scratch_of_any_library(library):
    sizes = pyconv.workspace(X.shape, W.shape, padding=1, dtype=F64)
    finput, fgrad_input = (library.asked(np.full(size, np.nan)) for size in (sizes.finput, sizes.fgrad_input))
    found = pyconv.convolution_backward(
        Y, X, W, *SETTINGS, False, 0, 1, MASK, finput=finput, fgrad_input=fgrad_input)
    for one, other in zip(found, pyconv.convolution_backward(Y, X, W, *SETTINGS, False, 0, 1, MASK)):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(numbers(finput)).any(), 'it is used'


def test_columns_of_any_library(library):
    columns = library.asked(pyconv.unfold(X, 3, padding=1))
    found = pyconv.conv2d_weight(None, W.shape, library.asked(Y), padding=1, finput=columns)
    assert library.is_one(found)
    np.testing.assert_array_equal(numbers(found), pyconv.conv2d_weight(X, W.shape, Y, padding=1))


OF_TARGETS = {  # the least that each function writes to `out`, and to scratch
    'conv2d': lambda **more: pyconv.conv2d(X, W, padding=1, **more),
    'conv2d finput': lambda out: pyconv.conv2d(X, W, padding=1, finput=out),
    'conv2d_input fgrad_input': lambda out: pyconv.conv2d_input(X.shape, W, Y, padding=1, fgrad_input=out),
    'conv_jvp': lambda **more: pyconv.conv_jvp(X, W, X, None, None, *SETTINGS, **more),
    'conv_bias': lambda **more: pyconv.conv_bias(Y, **more),
    'unfold': lambda **more: pyconv.unfold(X, 1, **more),
    'fold': lambda **more: pyconv.fold(X.reshape(2, 4, 30), (5, 6), 1, **more),
    'convolution_backward': lambda **more: pyconv.convolution_backward(
        Y, X, W, *SETTINGS, False, 0, 1, (False, True, False), **more)[1],
    'convolution_backward fgrad_input': lambda out: pyconv.convolution_backward(
        Y, X, W, *SETTINGS, False, 0, 1, MASK, fgrad_input=out),
    'convolution_backward bias': lambda **more: pyconv.convolution_backward(
        Y, X, W, *SETTINGS, False, 0, 1, (False, False, True), **more)[2],
    'convolution_double_backward': lambda **more: pyconv.convolution_double_backward(
        X, None, None, Y, W, X, *SETTINGS, False, 0, 1, (True, False, False), **more)[0],
}
PLACES = {'convolution_backward': 1, 'convolution_backward bias': 2, 'convolution_double_backward': 0}


def of_target(name):
    """(a tensor that the call can write to, the call with it)."""
    call = OF_TARGETS[name]
    shape = (20_000,) if name.endswith('put') else call().shape
    target = torch.zeros(shape, dtype=torch.float64)
    if name in PLACES:
        return target, lambda: call(out=tuple(target if place == PLACES[name] else None for place in range(3)))
    return target, lambda: call(out=target)


@pytest.mark.parametrize('name', OF_TARGETS)
def test_autograd_knows_of_what_is_written(name):
    target, call = of_target(name)
    loss, before = (torch.ones(target.shape, dtype=torch.float64, requires_grad=True) * target).sum(), target._version
    call()
    assert target.any() and target._version == before + 1
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        loss.backward()


@pytest.mark.parametrize('name', OF_TARGETS)
def test_what_requires_a_gradient_is_not_written_to(name):
    target, call = of_target(name)
    text = 'must require no gradient, of which none is recorded; got a tensor that does$'
    target.requires_grad_()
    with pytest.raises(ValueError, match=text):
        call()
    assert not target.any()
    with torch.no_grad():
        call()
    assert target.any()


def test_a_refused_call_is_no_writing():
    out, finput = torch.zeros(2, 6, 3, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match='^finput must'):
        pyconv.conv2d(X, W, out=out, finput=finput)
    assert out._version == finput._version == 0


def test_in_inference_mode_torch_counts_no_writing():
    with torch.inference_mode():
        out = torch.zeros(2, 6, 3, 4, dtype=torch.float64)
        assert pyconv.conv2d(X, W, out=out) is out
    np.testing.assert_array_equal(out.numpy(), pyconv.conv2d(X, W))


def test_what_has_no_library_goes_with_numpy():
    found = pyconv.conv2d(Library(X), W, Library(B))
    np.testing.assert_array_equal(found, pyconv.conv2d(X, W, B))


def test_lists_go_with_any_library(library):
    for x, w in ((X.tolist(), library.asked(W)), (library.asked(X), W.tolist())):
        found = pyconv.conv2d(x, w)
        assert library.is_one(found)
        np.testing.assert_array_equal(numbers(found), pyconv.conv2d(X, W))


def test_batches_of_nothing(library):
    found = pyconv.conv2d(library.asked(X[:0]), library.asked(W))
    assert library.is_one(found) and numbers(found).shape == (0, 6, 3, 4)


def test_devices_of_a_library():
    device = strict.Device('device1')
    x, w = strict.asarray(X, device=device), strict.asarray(W, device=device)
    assert pyconv.conv2d(x, w).device == device


def test_a_gradient_that_a_tensor_requires_is_not_recorded():
    x, w = torch.from_numpy(X).requires_grad_(), torch.nn.Parameter(torch.from_numpy(W))
    found = pyconv.conv2d(x, w)
    assert type(found) is torch.Tensor and not found.requires_grad
    np.testing.assert_array_equal(found.numpy(), pyconv.conv2d(X, W))


def test_a_subclass_of_a_tensor_is_answered_with_a_tensor():
    class Named(torch.Tensor):
        pass

    found = pyconv.conv2d(torch.from_numpy(X).as_subclass(Named), torch.from_numpy(W))
    assert type(found) is torch.Tensor


class NoCpu:
    """An array that nobody can read."""
    def __dlpack__(self, **keywords):
        raise BufferError('no')

    def __dlpack_device__(self):
        return 1, 0


def read_only(library):
    array = np.ones((2, 6, 3, 4))
    array.flags.writeable = False
    return library.asked(array)


ZEROS = torch._efficientzerotensor((2, 6, 3, 4), dtype=torch.float64)
ERRORS = [
    (lambda: pyconv.conv2d(X_TORCH, W_STRICT), TypeError,
     'weight must be an array of the library of input, torch; got array_api_strict'),
    (lambda: pyconv.conv2d(X_STRICT, W_TORCH), TypeError,
     'weight must be an array of the library of input, array_api_strict; got torch'),
    (lambda: pyconv.conv2d(X, W_TORCH), TypeError,
     'weight must be an array of the library of input, numpy; got torch'),
    (lambda: pyconv.conv2d(X_TORCH, W), TypeError,
     'weight must be an array of the library of input, torch; got numpy'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, B), TypeError,
     'bias must be an array of the library of input, torch; got numpy'),
    (lambda: pyconv.conv2d(X_TORCH, torch.nn.Conv2d(2, 6, 3)), TypeError,
     'weight must be an array of the library of input, torch; got Conv2d'),
    (lambda: pyconv.conv2d(X.tolist(), W_TORCH, Strict.asked(B)), TypeError,
     'bias must be an array of the library of weight, torch; got array_api_strict'),
    (lambda: pyconv.conv2d(X.tolist(), W_STRICT, strict.asarray(B, device=strict.Device('device1'))), TypeError,
     "bias must be on the device of weight, array_api_strict.Device('CPU_DEVICE'); "
     "got array_api_strict.Device('device1')"),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH.float()), TypeError,
     'weight must have the dtype of input, float64; got float32'),
    (lambda: pyconv.conv2d(X_TORCH > 0, W_TORCH > 0), TypeError,
     'input must have dtype float16, bfloat16, float32, float64, complex64, complex128, int8, int16, int32, int64, '
     'uint8, uint16, uint32 or uint64; got bool'),
    (lambda: pyconv.conv2d(X_TORCH.to_sparse(), W_TORCH), TypeError,
     'input must be an array that NumPy can read; got Tensor'),
    (lambda: pyconv.conv2d(X_TORCH.to('meta'), W_TORCH), TypeError,
     'input must be an array that NumPy can read; got Tensor'),
    (lambda: pyconv.conv2d(X_TORCH, torch._neg_view(W_TORCH)), TypeError,
     'weight must hold its values as they are; got a tensor that resolve_neg would negate'),
    (lambda: pyconv.conv2d((X_TORCH + 1j).conj(), W_TORCH + 1j), TypeError,
     'input must hold its values as they are; got a tensor that resolve_conj would conjugate'),
    (lambda: pyconv.conv2d(NoCpu(), W), TypeError, 'input must be an array that NumPy can read; got NoCpu'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, out=torch.ones(2)), TypeError,
     'out must have dtype float64; got float32'),
    (lambda: pyconv.conv2d(X_STRICT, W_STRICT, out=read_only(Strict)), ValueError,
     'out must be writeable; got a read-only array'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, out=torch.ones(1, 1, dtype=torch.float64).expand(2, 6, 3, 4)),
     ValueError, 'out must not overlap itself; got strides (0, 0, 0, 0)'),
    (lambda: pyconv.conv2d(X_TORCH, Torch.asked(W[:4, :, :1, :1].copy()), out=X_TORCH), ValueError,
     'out must not overlap input; got arrays with common bounds of memory'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, out=NoCpu()), TypeError,
     'out must be an array that NumPy can read; got NoCpu'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, out=ZEROS), TypeError,
     'out must have memory of its own; got a tensor of zeros without'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, finput=ZEROS), TypeError,
     'finput must have memory of its own; got a tensor of zeros without'),
    (lambda: pyconv.conv2d(X_TORCH, W_TORCH, finput=5), TypeError,
     'finput must be an array in main memory; got int'),
]


@pytest.mark.parametrize(('call', 'error', 'text'), ERRORS, ids=lambda value: value if isinstance(value, str) else '')
def test_error(call, error, text):
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    assert type(caught.value) is error and str(caught.value) == text


TYPES = {'int8': 'int32', 'uint8': 'int32', 'int16': 'int64', 'uint16': 'int64', 'int32': 'int64', 'uint32': 'int64',
         'int64': 'int64', 'uint64': 'uint64', 'float16': 'float16', 'complex64': 'complex64',
         'complex128': 'complex128'}  # of operands, and of the result and the bias


@pytest.mark.parametrize('dtype', TYPES)
def test_every_type_of_torch(dtype):
    x, w, b = abs(X).astype(dtype), abs(W).astype(dtype), B.astype(TYPES[dtype])
    found = pyconv.conv2d(*map(torch.from_numpy, (x, w, b)))
    assert type(found) is torch.Tensor and str(found.dtype) == f'torch.{TYPES[dtype]}'
    np.testing.assert_array_equal(found.numpy(), pyconv.conv2d(x, w, b), strict=True)


def test_bfloat16_of_torch():
    pytest.importorskip('ml_dtypes')
    x, w = torch.from_numpy(X).bfloat16(), torch.from_numpy(W).bfloat16()
    found = pyconv.conv2d(x, w, padding=1)
    assert found.dtype == torch.bfloat16
    np.testing.assert_array_equal(
        found.double().numpy(), torch.from_numpy(pyconv.conv2d(X, W, padding=1)).bfloat16().double().numpy())
    out = torch.full((2, 6, 5, 6), torch.nan, dtype=torch.bfloat16)
    assert pyconv.conv2d(x, w, padding=1, out=out) is out and torch.equal(out, found)
    assert pyconv.conv_bias(found).dtype == torch.bfloat16
    assert torch.equal(pyconv.unfold(x, 1), x.reshape(2, 4, 30))


def test_bfloat16_comes_and_goes_as_bits():
    from pyconv import _libraries
    dtypes = pytest.importorskip('ml_dtypes')
    tensor = torch.tensor([[1.0, -2.5, 3e38]], dtype=torch.bfloat16)
    array = _libraries.read('input', tensor)
    assert array.dtype == dtypes.bfloat16 and array.tolist() == [[1.0, -2.5, float(tensor[0, 2])]]
    tensor[0, 1] = 7.0
    assert array[0, 1] == 7.0, 'the same memory'
    back = _libraries.given_back(array.copy(), _libraries.visiting(array, tensor))
    assert back.dtype == torch.bfloat16 and torch.equal(back, tensor)


def test_bfloat16_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ml_dtypes', None)
    with pytest.raises(TypeError) as caught:
        pyconv.conv2d(X_TORCH.bfloat16(), W_TORCH.bfloat16())
    assert str(caught.value) == (
        'input must have a dtype of NumPy where ml_dtypes is not installed; got torch.bfloat16')


def test_results_that_jax_would_make_shorter_are_refused():
    """Integers of 64 bits, unless its own setting allows them."""
    jax = pytest.importorskip('jax')
    x = np.full((1, 1, 3, 3), 32767, np.int16)
    given, settings = jax.numpy.asarray(x), (1, 0, 1, False, 0, 1)
    calls = [lambda a: pyconv.conv2d(a, a), lambda a: pyconv.conv_bias(a), lambda a: pyconv.fold(a[0], (1, 3), (1, 1)),
             lambda a: pyconv.conv2d_weight(a, a.shape, a[..., :1, :1], per_sample=True),
             lambda a: pyconv.convolution_backward(a[..., :1, :1], a, a, *settings, MASK)[0]]
    for call in calls:
        with pytest.raises(TypeError) as caught:
            call(given)
        assert str(caught.value) == ('dtype must be one that jax.numpy keeps as it is, for a result that it is given; '
                                     'got int64, of which it makes int32')
    found = pyconv.conv2d(given, given, dtype='int32')
    assert isinstance(found, jax.Array) and found.dtype == np.int32
    with jax.enable_x64(True):
        for call in calls:
            found = call(jax.numpy.asarray(x))
            assert isinstance(found, jax.Array) and found.dtype == np.int64
            np.testing.assert_array_equal(np.asarray(found), call(x))


def test_no_library_is_imported():
    code = ('import sys, array_api_strict as xp, pyconv; before = set(sys.modules); '
            'x = xp.ones((1, 1, 5)); pyconv.conv1d(x, xp.ones((1, 1, 3)), out=xp.ones((1, 1, 3))); '
            'print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))')
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert not set(run.stdout.split()) & {'torch', 'jax', 'cupy', 'numba', 'ml_dtypes'}
