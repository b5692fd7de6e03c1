"""GPU arrays on their way through the public functions, over fakes whose memory is NumPy's. Nothing runs on a GPU."""
import pickle
import sys
from contextlib import contextmanager
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
    Numba,
    W,
    X,
    Y,
    backend,
    conv,
    frameworks,
    integers,
    maker,
    result_type,
)
from pyconv._gpu import arrays, dlpack, kinds
from pyconv._gpu.arrays import DeviceType
from pyconv._gpu.launches import aligned

KINDS = ['torch', 'cupy', 'interface', 'version 2', 'dlpack', 'old dlpack']

# values

LAYOUTS = {
    'contiguous': lambda a: a,
    'channels last': lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1),
    'backward': lambda a: np.ascontiguousarray(a[..., ::-1])[..., ::-1],
    'every other': lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    'broadcast': lambda a: np.lib.stride_tricks.as_strided(a, a.shape, (0, 0, *a.strides[2:])),
    'Fortran': np.asfortranarray,
}


@pytest.mark.parametrize('layout', LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize('kind', KINDS)
def test_strides_are_read_as_they_are(kind, layout, frameworks, backend):
    if kind == 'torch' and layout is LAYOUTS['backward']:
        pytest.skip('torch has no negative strides')
    x, w, gpu = layout(X), layout(W), maker(kind, frameworks)
    answer = pyconv.conv2d(gpu(x), gpu(w), gpu(B), **SETTINGS)
    assert type(answer) is result_type(kind, frameworks)
    assert answer.host.flags.c_contiguous
    assert (answer.host == pyconv.conv2d(x, w, B, **SETTINGS)).all()
    [run] = backend.runs
    assert (run.first.address, run.second.address) == (x.ctypes.data, w.ctypes.data)
    assert run.first.strides == tuple(step // 4 for step in x.strides)


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
@pytest.mark.parametrize('kind', KINDS)
def test_dtypes(kind, dtype, frameworks, backend):
    gpu = maker(kind, frameworks)
    answer = pyconv.conv2d(gpu(X.astype(dtype)), gpu(W.astype(dtype)), **SETTINGS)
    assert answer.host.dtype == dtype and (answer.host == pyconv.conv2d(X, W, **SETTINGS)).all()
    assert backend.plans == [('forward', dtype, 'auto', False, 0)]


def calls(x, w, y, b):
    """name -> a call of each function of arrays; 2-D arguments."""
    steps = (2, 1), 1, 1
    size, groups, mask = (2, 4, 6, 5), 2, (True, True, True)
    return {
        'conv2d': lambda: pyconv.conv2d(x, w, b, *steps, groups),
        'conv2d_input': lambda: pyconv.conv2d_input(size, w, y, *steps, groups),
        'conv2d_weight': lambda: pyconv.conv2d_weight(x, W.shape, y, *steps, groups),
        'conv_transpose2d': lambda: pyconv.conv_transpose2d(y, w, None, (2, 1), 1, (1, 0), groups, 1),
        'conv_bias': lambda: pyconv.conv_bias(y),
        'convolution': lambda: pyconv.convolution(x, w, b, *steps, False, 0, groups),
        'convolution_backward': lambda: pyconv.convolution_backward(y, x, w, *steps, False, 0, groups, mask),
        'transposed backward':
            lambda: pyconv.convolution_backward(x, y, w, *steps, True, (1, 0), groups, mask),
        'convolution_double_backward':
            lambda: pyconv.convolution_double_backward(x, w, b, y, w, x, *steps, False, 0, groups, mask),
        'nothing contributes':
            lambda: pyconv.convolution_double_backward(None, None, b, y, w, x, *steps, False, 0, groups, mask),
        'conv_jvp': lambda: pyconv.conv_jvp(x, w, x, w, b, *steps, groups),
        'unfold': lambda: pyconv.unfold(x, (3, 2), 1, 1, (2, 1)),
        'fold': lambda: pyconv.fold(pyconv.unfold(x, (3, 2), 1, 1, (2, 1)), (6, 5), (3, 2), 1, 1, (2, 1)),
        'columns': lambda: pyconv.conv2d_weight(
            None, W.shape, y, *steps, groups, finput=pyconv.unfold(x, (3, 2), 1, 1, (2, 1))),
        'backward from columns': lambda: pyconv.convolution_backward(
            y, None, w, *steps, False, 0, groups, (False, True, True),
            finput=pyconv.unfold(x, (3, 2), 1, 1, (2, 1)))[1:],
    }


@pytest.mark.parametrize('name', calls(X, W, Y, B))
@pytest.mark.parametrize('kind', ['torch', 'cupy', 'interface'])
def test_every_function(kind, name, frameworks):
    gpu = maker(kind, frameworks)
    answers, wanted = calls(*map(gpu, (X, W, Y, B)))[name](), calls(X, W, Y, B)[name]()
    for answer, array in zip(*((some if isinstance(some, tuple) else (some,)) for some in (answers, wanted))):
        assert type(answer) is result_type(kind, frameworks)
        assert answer.host.shape == array.shape and (answer.host == array).all()


def test_without_batch_axis_the_backend_sees_one(backend):
    gpu = [Interface(array) for array in (X[1], W, Y[1], B)]
    answers = (pyconv.conv2d(gpu[0], gpu[1], gpu[3], **SETTINGS),
               pyconv.conv2d_input(X.shape[1:], gpu[1], gpu[2], **SETTINGS),
               pyconv.conv2d_weight(gpu[0], W.shape, gpu[2], **SETTINGS))
    wanted = (pyconv.conv2d(X[1], W, B, **SETTINGS), pyconv.conv2d_input(X.shape[1:], W, Y[1], **SETTINGS),
              pyconv.conv2d_weight(X[1], W.shape, Y[1], **SETTINGS))
    for answer, array in zip(answers, wanted):
        assert answer.host.shape == array.shape and (answer.host == array).all()
    assert [run.first.ndim for run in backend.runs] == [run.out.ndim for run in backend.runs] == [4, 4, 4]
    backend.runs.clear()
    for x, y in ((X, Y), (X[1], Y[1])):
        columns = pyconv.unfold(Interface(x), (3, 2), 1, 1, (2, 1))
        pyconv.conv2d_weight(None, W.shape, Interface(y), **SETTINGS, finput=columns)
    assert [(run.first.ndim, run.second.ndim) for run in backend.runs] == [(3, 4), (3, 4)]


def test_nothing_to_sum_is_bias_or_zero(backend):
    gpu = Interface
    none, weight = np.empty((2, 0, 6, 5), 'f4'), np.empty((6, 0, 3, 2), 'f4')
    assert (pyconv.conv2d(gpu(none), gpu(weight), gpu(B)).host == B[:, None, None]).all()
    assert (pyconv.conv2d(gpu(none[0]), gpu(weight), gpu(B)).host == B[:, None, None]).all()
    assert (pyconv.conv2d_weight(gpu(X[:0]), W.shape, gpu(Y[:0]), **SETTINGS).host == 0).all()
    assert (pyconv.conv_bias(gpu(Y[:0])).host == 0).all()
    assert pyconv.conv2d(gpu(X[:0]), gpu(W), **SETTINGS).host.shape == Y[:0].shape
    assert not backend.runs


# what is read


@pytest.mark.parametrize('other', KINDS[:-1])  # the last is read-only
@pytest.mark.parametrize('kind', KINDS)
def test_operands_are_of_one_kind_and_the_others_of_any(kind, other, frameworks):
    gpu, foreign = maker(kind, frameworks), maker(other, frameworks)
    for more in ({}, {'out': foreign(np.empty_like(Y))}):
        answer = pyconv.conv2d(*map(gpu, (X, W, B)), **SETTINGS, finput=foreign(np.empty(300, 'f4')), **more)
        assert answer is more['out'] if more else type(answer) is result_type(kind, frameworks)
        assert (answer.host == pyconv.conv2d(X, W, B, **SETTINGS)).all()
    # what is neither torch's nor CuPy's counts as Numba's
    if result_type(kind, frameworks) is result_type(other, frameworks):
        assert (pyconv.conv2d(gpu(X), foreign(W), **SETTINGS).host == pyconv.conv2d(X, W, **SETTINGS)).all()
        return
    with pytest.raises(TypeError, match='^weight must be an array of the library of input, '):
        pyconv.conv2d(gpu(X), foreign(W), **SETTINGS)


def test_a_bfloat16_has_its_name_from_the_array(backend):
    def gpu(array):
        made = Interface(array.astype('f2'), typestr='<V2')
        made.dtype = 'bfloat16'
        return made
    out = gpu(Y)
    seen = []
    plan = SimpleNamespace(steps=lambda *_: ())
    backend.plan = lambda map, geometry, dtype, *rest, **more: seen.append(dtype) or plan
    assert pyconv.conv2d(gpu(X), gpu(W), **SETTINGS, out=out) is out
    assert seen == [arrays.DTYPES['bfloat16']] and str(seen[0]) == 'bfloat16'


def test_an_array_on_another_device(backend):
    x, w = Interface(X, device=1), Interface(W, device=1)
    out = Interface(np.empty_like(Y), device=1)
    assert pyconv.conv2d(x, w, **SETTINGS, out=out) is out
    assert backend.plans == [('forward', 'float32', 'auto', False, 1)]
    assert (out.host == pyconv.conv2d(X, W, **SETTINGS)).all()


class Both(Interface):
    """Has both protocols; the memory that DLPack tells of is `other`."""

    def __init__(self, array, other, version):
        super().__init__(array, version)
        self.other = other

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, *, stream, **keywords):
        return self.other.__dlpack__(**keywords)


def test_of_two_protocols_the_one_that_orders_work_is_asked():
    """__cuda_array_interface__ does so from version 3 on, DLPack does it always."""
    assert kinds.read('input', Both(X, X.copy(), 3)).address == X.ctypes.data
    both = Both(X, X.copy(), 2)
    assert kinds.read('input', both).address == both.other.ctypes.data


def test_foreign_arrays_in_main_memory_are_numpy_s(backend):
    assert isinstance(pyconv.conv2d(HostTensor(X), HostTensor(W), **SETTINGS), np.ndarray)
    assert not backend.plans


def test_dlpack_capsules():
    read_only = X.copy()
    read_only.flags.writeable = False
    assert not dlpack.read(DLPack(X)).read_only and dlpack.read(DLPack(read_only)).read_only
    assert dlpack.read(DLPack(X, 0)).read_only  # which says nothing of it
    tensor = dlpack.read(DLPack(X[:, 1:, ::2]))
    assert (tensor.address, tensor.shape, tensor.strides) == (X[:, 1:].ctypes.data, (2, 3, 3, 5), (120, 30, 10, 1))
    assert dlpack.read(DLPack(X.astype(int))).dtype == 'int64'
    assert dlpack.read(DLPack(X.astype(bool))).dtype == "DLPack's type of code 6, 8 bits, 1 lanes"
    before = sys.getrefcount(X)
    dlpack.read(DLPack(X))
    assert sys.getrefcount(X) == before


# what is missing


def test_the_driver_is_missed_in_words(monkeypatch, run_python):
    """Of an array that says where it lies, the device is asked for: on a machine that has no driver, or no package."""
    code = """if True:
        import sys, types, pyconv
        from pyconv._gpu import launch
        sys.modules['cuda'] = sys.modules['cuda.bindings'] = bindings
        launch.driver_version = lambda: version
        array = types.SimpleNamespace(__cuda_array_interface__={
            'version': 3, 'shape': (1, 1, 4), 'typestr': '<f4', 'data': (4096, False), 'strides': None})
        try:
            pyconv.conv1d(array, array)
        except RuntimeError as error:
            print(error)
        """
    package = "types.SimpleNamespace(driver=None)"
    assert run_python(code.replace('= bindings', f'= {package}').replace('version\n', 'None\n', 1)) == (
        'no NVIDIA driver is installed here; nvidia-smi shows when there is one\n')
    found = run_python(code.replace('= bindings', '= None').replace('version\n', '(13, 0)\n', 1))
    assert found.startswith('arrays on a GPU need packages that are missing (')
    assert found.endswith('): in pyconv\'s checkout, pip install -e ".[cuda13]"\n')


@pytest.mark.parametrize(('module', 'dtype', 'command'), [
    ('numba.cuda', 'float32', r'in .* pip install -e "\.\[cuda1[23]\]"'),
    ('ml_dtypes', 'bfloat16', 'pip install ml_dtypes')])
def test_a_package_for_new_arrays_is_missed_in_words(monkeypatch, module, dtype, command):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RuntimeError, match=rf'^new arrays on a GPU need a package that is missing \(.*\): {command}$'):
        kinds.KINDS[-1].new((2, 3), arrays.DTYPES[dtype], 0)


MAKERS = {'torch': (kinds.TORCH, 'empty_strided'), 'cupy': (kinds.CUPY, 'empty')}


@pytest.mark.parametrize('shape', [(2, 3, 4), ()])
@pytest.mark.parametrize('kind', MAKERS)
def test_a_new_array_is_what_reading_it_says(kind, shape, frameworks):
    kind, _ = MAKERS[kind]
    made = kind.made(shape, arrays.DTYPES['float32'], 0)
    read = kind.read('out', made[0])
    assert made == (read.owner, read.address, read.strides)
    assert (read.shape, read.dtype, read.device) == (shape, arrays.DTYPES['float32'], 0)


def test_a_new_array_of_cupy_s_is_made_on_its_device(frameworks, monkeypatch):
    """Whichever device is the current one."""
    current = [0]

    @contextmanager
    def on(device):
        current.append(device)
        yield
        current.pop()

    cupy = frameworks.cupy
    monkeypatch.setattr(cupy.cuda, 'Device', on)
    monkeypatch.setattr(cupy, 'empty', lambda shape, dtype: cupy.ndarray(np.empty(shape, dtype), current[-1]))
    for device in (1, 0, 1):
        owner, _, _ = kinds.CUPY.made((2, 3), arrays.DTYPES['float32'], device)
        assert owner.data.device_id == device and current == [0]


@pytest.mark.parametrize('name', MAKERS)
def test_what_is_made_instead_of_a_usual_new_array_is_read(name, frameworks, monkeypatch):
    class Other(result_type(name, frameworks)):
        pass

    other = Other(np.empty((3, 2), 'f4').T)
    kind, function = MAKERS[name]
    monkeypatch.setattr(getattr(frameworks, name), function, lambda *_, **__: other)
    assert kind.made((2, 3), arrays.DTYPES['float32'], 0) == (other, other.host.ctypes.data, (1, 2))


# out and buffers


@pytest.mark.parametrize('kind', ['torch', 'cupy', 'interface', 'dlpack'])
def test_out_of_any_kind_and_layout_is_written_in_place(kind, frameworks, backend):
    gpu, frameworks.full = maker(kind, frameworks), True  # so that nothing new is made
    wanted = pyconv.conv2d(X, W, B, **SETTINGS)
    for layout in (LAYOUTS['contiguous'], LAYOUTS['channels last'], LAYOUTS['every other'], np.asfortranarray):
        memory = layout(np.full_like(Y, np.nan))
        out = gpu(memory)
        assert pyconv.conv2d(Interface(X), Interface(W), Interface(B), **SETTINGS, out=out) is out
        assert (memory == wanted).all()
        assert backend.runs[-1].out.address == memory.ctypes.data


def test_outs_of_functions_with_many_results(frameworks):
    frameworks.full = True
    gpu = [Interface(array) for array in (Y, X, W)]
    outs = tuple(frameworks.torch.Tensor(np.full_like(array, np.nan)) for array in (X, W, B))
    rest = (2, 1), 1, 1, False, 0, 2, (True, True, True)
    answers = pyconv.convolution_backward(*gpu, *rest, out=outs)
    assert all(answer is out for answer, out in zip(answers, outs))
    for out, wanted in zip(outs, pyconv.convolution_backward(Y, X, W, *rest)):
        assert (out.host == wanted).all()


def test_accumulate_adds_to_out(frameworks, backend):
    frameworks.full = True
    x, w, y, b = map(Interface, (X, W, Y, B))
    columns = pyconv.unfold(X, (3, 2), 1, 1, (2, 1))
    steps = (2, 1), 1, 1
    none, weight = (np.empty(shape, 'f4') for shape in ((2, 0, 6, 5), (6, 0, 3, 2)))
    bias_alone = np.broadcast_to(B[:, None, None], (2, 6, 4, 4))
    for call, wanted in (
            (lambda **more: pyconv.conv2d(x, w, b, **SETTINGS, **more), pyconv.conv2d(X, W, B, **SETTINGS)),
            (lambda **more: pyconv.conv_bias(y, **more), pyconv.conv_bias(Y)),
            (lambda **more: pyconv.conv_bias(Interface(Y[:0]), **more), 0 * B),
            (lambda **more: pyconv.fold(Interface(columns), (6, 5), (3, 2), 1, 1, (2, 1), **more),
             pyconv.fold(columns, (6, 5), (3, 2), 1, 1, (2, 1))),
            (lambda **more: pyconv.conv2d(Interface(none), Interface(weight), b, **more), bias_alone),
            (lambda **more: pyconv.conv2d_weight(Interface(X[:0]), W.shape, Interface(Y[:0]), **SETTINGS, **more),
             0 * W)):
        memory = np.ones(wanted.shape, 'f4')
        out = Interface(memory)
        for times in (1, 2):
            assert call(out=out, accumulate=True) is out
            assert (memory == 1 + times * wanted).all()
    memories = [np.ones_like(array) for array in (X, W, B)]
    pyconv.convolution_backward(y, x, w, *steps, False, 0, 2, (True,) * 3, out=tuple(map(Interface, memories)),
                                accumulate=True)
    for memory, wanted in zip(memories, pyconv.convolution_backward(Y, X, W, *steps, False, 0, 2, (True,) * 3)):
        assert (memory == 1 + wanted).all()


def test_outs_must_not_overlap_each_other():
    arena = np.empty(X.size + W.size, 'f4')
    outs = Interface(arena[:X.size].reshape(X.shape)), Interface(arena[X.size - 1:-1].reshape(W.shape)), None
    with pytest.raises(ValueError) as caught:
        pyconv.convolution_backward(*map(Interface, (Y, X, W)), (2, 1), 1, 1, False, 0, 2, (True,) * 3, out=outs)
    assert str(caught.value) == 'out[1] must not overlap out[0]; got arrays with common bounds of memory'


@pytest.mark.parametrize('shape', [(50,), (200,), (1000,), (5, 10, 2)])
def test_a_buffer_is_flat_memory(shape, backend):
    memory = np.full(shape, np.nan, 'f4')
    for layout in (memory, memory.T, memory[::-1]):
        answer = conv(finput=Interface(layout))
        assert (answer.host == pyconv.conv2d(X, W, **SETTINGS)).all()
        scratch = backend.runs[-1].scratch
        assert (scratch.shape, scratch.strides) == ((memory.size,), (1,))
        assert 0 <= scratch.address - memory.ctypes.data < 256 and scratch.address % 256 == 0


def test_none_and_an_empty_buffer_leave_it_to_the_plan(backend):
    for buffer in (None, Interface(np.empty((3, 0), 'f4'))):
        conv(finput=buffer)
        assert backend.runs[-1].scratch is None


def test_one_buffer_for_both_roles(backend):
    memory = np.empty(50, 'f4')
    shared = Interface(memory)
    pyconv.convolution_backward(*map(Interface, (Y, X, W)), (2, 1), 1, 1, False, 0, 2, (True, True, False),
                                finput=shared, fgrad_input=shared)
    assert [run.scratch.address for run in backend.runs] == [aligned(memory.ctypes.data)] * 2


def test_a_buffer_over_out_is_refused():
    arena = np.empty(Y.size + 60, 'f4')
    with pytest.raises(ValueError) as caught:
        conv(out=Interface(arena[:Y.size].reshape(Y.shape)), finput=Interface(arena[Y.size - 1:]))
    assert str(caught.value) == ('finput must not overlap out, and have at least 50 elements; '
                                 'got arrays with common bounds of memory')
    conv(out=Interface(arena[:Y.size].reshape(Y.shape)), finput=Interface(arena[Y.size:]))


@pytest.mark.parametrize(('dtype', 'name'), [
    ('float16', 'float16'), (np.float16, 'float16'), (np.dtype('f4'), 'float32'), ('f8', 'float64'),
    ('bfloat16', 'bfloat16'), ('torch.bfloat16', 'bfloat16'), (arrays.DTYPES['bfloat16'], 'bfloat16'),
    (float, 'float64'), ('complex64', 'complex64'), ('complex128', 'complex128'), ('int8', 'int8'),
    ('uint64', 'uint64'),
], ids=str)
def test_workspace_of_a_gpu(dtype, name, backend):
    for device, index in (('cuda', 0), ('cuda:3', 3)):
        backend.plans.clear()
        wants = pyconv.workspace(X.shape, W.shape, **SETTINGS, dtype=dtype, device=device, allow_tf32=True)
        assert wants[:4] == (200, 200, 50, 50) and str(wants.dtype) == wants.dtype.name == name
        assert {plan[1:] for plan in backend.plans} == {(name, 'auto', True, index)}
        assert np.dtype(wants.dtype).name == np.empty(3, wants.dtype).dtype.name == name
        assert pickle.loads(pickle.dumps(wants)) == wants


def test_a_buffer_of_a_gpu_has_the_operands_dtype(backend):
    """Of every type, where main memory takes the type that products are made in."""
    for dtype in arrays.DTYPES.values():
        wants = pyconv.workspace(X.shape, W.shape, **SETTINGS, dtype=dtype, device='cuda')
        assert wants.dtype == dtype and type(wants.dtype) is DeviceType
    x, w = (Interface(array.astype('i1')) for array in (X, W))
    out = Interface(np.empty(Y.shape, 'i4'))
    pyconv.conv2d(x, w, **SETTINGS, out=out, finput=Interface(np.empty(200, 'i1')))
    assert (out.host == pyconv.conv2d(X, W, **SETTINGS)).all() and backend.runs[-1].scratch.dtype.name == 'int8'


def test_numpy_has_no_bfloat16_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, 'ml_dtypes', None)
    with pytest.raises(TypeError):
        np.empty(3, arrays.DTYPES['bfloat16'])
    with pytest.raises(TypeError, match='^NumPy has bfloat16 where ml_dtypes is installed: pip install ml_dtypes$'):
        arrays.DTYPES['bfloat16'].dtype


def test_settings_reach_the_plan(backend):
    conv(algorithm='tf32x3', allow_tf32=True)
    columns = pyconv.unfold(Interface(X), (3, 2), 1, 1, (2, 1))
    pyconv.conv2d_weight(None, W.shape, Interface(Y), **SETTINGS, finput=columns, allow_tf32=True, stream=64)
    assert backend.plans == [('forward', 'float32', 'tf32x3', True, 0), ('grad_weight', 'float32', 'columns', True, 0)]
    assert backend.runs[-1].stream == 64


# imports


def test_numpy_arrays_load_nothing_of_this(run_python):
    loaded = run_python('''
import sys
import numpy as np, pyconv
pyconv.conv2d(np.ones((1, 1, 3, 3)), np.ones((1, 1, 2, 2)), [1.0], out=np.empty((1, 1, 2, 2)), allow_tf32=True)
pyconv.workspace((1, 1, 3, 3), (1, 1, 2, 2))
print([name for name in sys.modules if name.startswith(('pyconv._gpu', 'pyconv._cuda'))])
import pyconv._gpu.calls, pyconv._gpu.arguments
print([name for name in sys.modules if name.partition('.')[0] in ('torch', 'cupy', 'numba', 'cuda', 'jax')])
''')
    assert loaded.split('\n')[:2] == ['[]', '[]']


def test_kinds_are_asked_in_turn(monkeypatch):
    class Emulated(arrays.Kind):
        def read(self, name, value):
            if isinstance(value, Interface):
                return kinds.InterfaceKind().read(name, value)._replace(kind=self)

        def new(self, shape, dtype, device):
            return Interface(np.empty(shape, dtype.name))

    monkeypatch.setattr(kinds, 'KINDS', [Emulated(), *kinds.KINDS])
    assert type(conv()) is Interface
