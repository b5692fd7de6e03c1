"""pyconv.jax: values, derivatives to the third order in both modes, vmap in every combination, errors, programs."""
import contextlib
import itertools
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip('jax', reason='jax is not installed')

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import doors  # noqa: E402
import pyconv  # noqa: E402
import pyconv.jax as door  # noqa: E402
from calls import assert_equal  # noqa: E402
from problems import SMALL, some  # noqa: E402
from pyconv import _forms, _settings  # noqa: E402
from pyconv import _geometries as geometries  # noqa: E402

NAMES = list(doors.FUNCTIONS.values())


@pytest.fixture(autouse=True)
def double():
    """float64 for this file alone, in all of JAX's threads."""
    before = jax.config.jax_enable_x64
    jax.config.update('jax_enable_x64', True)
    yield
    jax.config.update('jax_enable_x64', before)


# values


@pytest.mark.parametrize('problem', doors.PROBLEMS, ids=str)
def test_functions_and_their_gradients(problem):
    for name, (function, operands, wanted) in doors.cases(door, problem).items():
        cotangent, gradients = doors.gradients(problem, name)

        @jax.jit
        def both(cotangent, *operands, function=function):
            value, pull_back = jax.vjp(function, *operands)
            return value, pull_back(cotangent)

        value, pulled = both(cotangent, *operands)
        assert_equal(np.asarray(value), wanted, np.float64)
        for ours, theirs in zip(pulled, gradients, strict=True):
            assert_equal(np.asarray(ours), theirs, np.float64)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'complex64', 'complex128'])
def test_dtypes(dtype):
    [problem] = some('2d groups everything')
    data, dtype = problem.integers(np.float64, -1, 1), jnp.dtype(dtype)
    phase = 1 + 1j if dtype.kind == 'c' else 1  # no conjugate: a factor to each of the two is its square to the result
    wanted = doors.answers(problem, data).forward * phase**2
    x, w = (jnp.asarray(array * phase, dtype) for array in (data.x, data.w))
    assert np.array_equal(np.asarray(door.conv2d(x, w, **problem.keywords)), wanted.astype(dtype))
    value, pull_back = jax.vjp(lambda x: door.conv2d(x, w, **problem.keywords), x)
    [pulled] = pull_back(jnp.asarray(data.y, dtype))
    wanted = doors.answers(problem, data).grad_input * phase
    assert pulled.dtype == dtype and np.array_equal(np.asarray(pulled), wanted.astype(dtype))


def test_without_batch_axis():
    [problem] = some('2d groups everything')
    for name, (function, operands, wanted) in doors.cases(door, problem).items():
        if name in ('forward', 'transposed'):
            assert_equal(np.asarray(function(operands[0][1], *operands[1:])), wanted[1], np.float64)
    data, shape = problem.integers(), problem.input_shape[1:]
    ours = door.conv2d_input(shape, data.w, data.y[1], **problem.keywords)
    assert_equal(np.asarray(ours), pyconv.conv2d_input(shape, data.w, data.y[1], **problem.keywords), np.float64)
    ours = door.conv2d_weight(data.x[1], problem.weight_shape, data.y[1], **problem.keywords)
    wanted = pyconv.conv2d_weight(data.x[1], problem.weight_shape, data.y[1], **problem.keywords)
    assert_equal(np.asarray(ours), wanted, np.float64)


def test_output_size_and_algorithm():
    x, w = np.arange(2.0 * 36).reshape(1, 2, 6, 6) % 7, np.arange(18.0).reshape(1, 2, 3, 3) % 5
    for keywords in ({'output_size': 3, 'stride': 2}, {'algorithm': 'winograd'}, {'algorithm': 'gemm'}):
        assert_equal(np.asarray(door.conv2d(x, w, **keywords)), pyconv.conv2d(x, w, **keywords), np.float64)
    y = np.ones((1, 1, 4, 4))
    wanted = pyconv.conv_transpose2d(y, w, None, 2, output_size=10)
    assert_equal(np.asarray(door.conv_transpose2d(y, w, None, 2, output_size=10)), wanted, np.float64)


def test_no_samples_and_no_mapped_ones():
    w = jnp.ones((3, 2, 3, 3))
    assert door.conv2d(jnp.ones((0, 2, 5, 5)), w).shape == (0, 3, 3, 3)
    gradient = jax.grad(lambda w: door.conv2d(jnp.ones((0, 2, 5, 5)), w).sum())(w)
    assert_equal(np.asarray(gradient), np.zeros((3, 2, 3, 3)), np.float64)
    assert jax.vmap(door.conv2d)(jnp.ones((0, 1, 2, 5, 5)), jnp.ones((0, 3, 2, 3, 3))).shape == (0, 1, 3, 3, 3)


# derivatives


# function, problem, order
CHECKED = [
    *(('forward', problem, 3 if problem.name == 'constant' else 2) for problem in SMALL[1::3]),
    *(('transposed', problem, 2) for problem in SMALL[::3]),
    *((name, SMALL[7], 2) for name in ('input', 'weight')),
]


@pytest.mark.parametrize(('name', 'problem', 'order'), CHECKED, ids=str)
def test_derivatives(name, problem, order):
    function, operands, _ = doors.cases(door, problem, problem.floats())[name]
    # a central difference of step 1e-4 errs by 1e-8 times a third derivative of some hundreds at most
    check_grads(jax.jit(function), operands, order, modes=('fwd', 'rev'), atol=1e-5, rtol=1e-5)


def test_hessian_and_its_product_with_a_vector():
    problem = SMALL[1]
    data = problem.floats()

    def loss(w):
        return (door.conv2d(data.x, w, **problem.keywords) ** 4).sum()

    hessian = jax.jit(jax.jacfwd(jax.grad(loss)))(data.w)
    for other in (jax.jacrev(jax.grad(loss)), jax.jacrev(jax.jacfwd(loss))):
        other = jax.jit(other)(data.w)
        np.testing.assert_allclose(hessian, other, rtol=1e-12, atol=1e-10)  # sums of some ten products of up to 100
    vector = np.ones_like(data.w)
    product = jax.jvp(jax.grad(loss), (data.w,), (vector,))[1]
    np.testing.assert_allclose(product, np.tensordot(hessian, vector, vector.ndim), rtol=1e-12, atol=1e-10)


def test_linear_transpose_and_linearize():
    problem = SMALL[0]
    data = problem.integers()
    to_input = jax.linear_transpose(lambda x: door.conv1d(x, data.w, **problem.keywords), data.x)
    assert_equal(np.asarray(to_input(data.y)[0]), doors.answers(problem, data).grad_input, np.float64)
    value, push = jax.linearize(lambda w: door.conv1d(data.x, w, **problem.keywords), data.w)
    assert_equal(np.asarray(push(data.w)), np.asarray(value), np.float64)


# vmap


def stacked(operands, axes, rng):
    """Three of each operand that has a mapped axis, along it."""
    return [operand if axis is None else
            np.stack([operand, *(rng.integers(-3, 4, operand.shape).astype(float) for _ in range(2))], axis)
            for operand, axis in zip(operands, axes)]


@pytest.mark.parametrize('problem', some('1d', '2d groups everything', 'constant -1 2d groups everything'), ids=str)
@pytest.mark.parametrize('name', NAMES)
def test_vmap(problem, name):
    function, operands, wanted = doors.cases(door, problem)[name]
    plain = doors.cases(pyconv, problem)[name].function
    rng = np.random.default_rng(0)
    for axes in ((0, None), (None, 1), (-1, 1)):
        axes += ((0 if axes[0] == 0 else None),) * (len(operands) - 2)
        given = stacked(operands, axes, rng)
        out = 2 if axes[0] is None else 0
        answer = jax.jit(jax.vmap(function, axes, out))(*given)
        for sample in range(3):
            alone = [array if axis is None else np.take(array, sample, axis) for array, axis in zip(given, axes)]
            assert_equal(np.take(np.asarray(answer), sample, out), plain(*alone), np.float64)


def test_vmaps_nest():
    [problem] = some('2d groups everything')
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-3, 4, (2, 3, *shape)).astype(float) for shape in (problem.input_shape, problem.weight_shape))
    conv = partial(door.conv2d, **problem.keywords)
    answer = jax.jit(jax.vmap(jax.vmap(conv, (0, None)), (None, 0)))(x[0], w[:, 0])
    every = jax.jit(jax.vmap(jax.vmap(conv)))(x, w)
    for a, b in itertools.product(range(2), range(3)):
        assert_equal(np.asarray(answer[a, b]), pyconv.conv2d(x[0, b], w[a, 0], **problem.keywords), np.float64)
        assert_equal(np.asarray(every[a, b]), pyconv.conv2d(x[a, b], w[a, b], **problem.keywords), np.float64)


def test_gradients_of_each_sample_and_of_an_ensemble():
    [problem] = some('2d groups everything')
    data = problem.integers()

    def loss(w, x, y):
        return (door.conv2d(x, w, **problem.keywords) * y).sum()

    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(data.w, data.x, data.y)
    wanted = pyconv.conv2d_weight(data.x, problem.weight_shape, data.y, **problem.keywords, per_sample=True)
    assert_equal(np.asarray(each), wanted, np.float64)
    members = jnp.stack([data.w, 2 * data.w])
    ensemble = jax.vmap(loss, (0, None, None))
    together = jax.jit(jax.grad(lambda members: ensemble(members, data.x, data.y).sum()))(members)
    assert_equal(np.asarray(together), np.stack([wanted.sum(0)] * 2), np.float64)


def test_vmap_is_one_call(monkeypatch):
    calls, evaluate = [], _forms.evaluate
    monkeypatch.setattr(_forms, 'evaluate', lambda *rest: calls.append(rest[0]) or evaluate(*rest))
    x, w = jnp.ones((4, 2, 3, 5)), jnp.ones((4, 2, 3, 2))
    for axes in ((0, None), (None, 0), (0, 0)):
        jax.vmap(door.conv1d, axes)(x if axes[0] == 0 else x[0], w if axes[1] == 0 else w[0]).block_until_ready()
    assert [(geometry.batch, geometry.groups, geometry.out_channels) for geometry in calls] == [
        (8, 1, 2), (2, 1, 8), (2, 4, 8)]


# what JAX builds with them


@pytest.mark.parametrize('name', NAMES)
def test_without_jit(name):
    """Each call is a program of its own, as those of JAX's own primitives are then."""
    [problem] = some('2d groups everything')
    function, operands, _ = doors.cases(door, problem)[name]

    def slopes(*operands):
        value, pull_back = jax.vjp(function, *operands)
        batched = jax.vmap(lambda first: function(first, *operands[1:]))(jnp.stack([operands[0]] * 2))
        return value, batched, pull_back(value), jax.jvp(function, operands, operands)

    wanted = jax.jit(slopes)(*operands)
    with jax.disable_jit():
        found = slopes(*operands)
        assert jax.config.jax_disable_jit
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_equal(np.asarray(ours), np.asarray(theirs), np.float64)


def test_control_flow_and_checkpoint():
    x, w = jnp.ones((1, 2, 6)), jnp.ones((2, 2, 3)) / 4

    def step(x, _):
        return door.conv1d(x, w, padding=1), None

    def loss(x, step):
        return jax.lax.scan(step, x, None, 3)[0].sum()

    plain = jax.grad(loss)(x, step)
    assert np.array_equal(plain, jax.jit(jax.grad(jax.checkpoint(loss, static_argnums=1)), static_argnums=1)(x, step))
    wanted = np.ones((1, 2, 6))
    for _ in range(3):
        wanted = pyconv.conv1d_input((1, 2, 6), np.asarray(w), wanted, padding=1)
    assert_equal(np.asarray(plain), wanted, np.float64)
    chosen = jax.jit(lambda x: jax.lax.cond(x.sum() > 0, lambda: door.conv1d(x, w), lambda: -door.conv1d(x, w)))(-x)
    assert np.array_equal(chosen, door.conv1d(x, w))


def test_several_devices(run_python):
    run_python("""if True:
        import jax, numpy as np, pyconv, pyconv.jax as door
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        x, w = np.arange(160.).astype('f').reshape(4, 2, 20) % 5, np.ones((3, 2, 3), 'f')
        want = pyconv.conv1d(x, w)
        loss = lambda conv: lambda x, w: (conv(x, w) ** 2).sum()
        grads = jax.grad(loss(door.conv1d), (0, 1))(x, w)
        mesh = jax.make_mesh((2,), ('a',), axis_types=(AxisType.Auto,))
        sharded = jax.device_put(x, NamedSharding(mesh, P('a')))
        for function in (door.conv1d, jax.jit(door.conv1d)):
            assert np.array_equal(function(sharded, jax.device_put(w, NamedSharding(mesh, P()))), want)
        parts = jax.pmap(door.conv1d, in_axes=(0, None))(x.reshape(2, 2, 2, 20), w)
        assert np.array_equal(np.asarray(parts).reshape(want.shape), want)
        for check in (True, False):
            conv = jax.shard_map(door.conv1d, mesh=mesh, in_specs=(P('a'), P()), out_specs=P('a'), check_vma=check)
            assert np.array_equal(conv(x, w), want)
            assert all(map(np.array_equal, jax.grad(loss(conv), (0, 1))(x, w), grads))
        mesh = jax.make_mesh((2,), ('a',), axis_types=(AxisType.Explicit,))
        with jax.set_mesh(mesh):
            sharded = jax.device_put(x, NamedSharding(mesh, P('a')))
            try:
                door.conv1d(sharded, w)
            except TypeError as error:
                assert str(error) == ('arrays must not be sharded over an explicit axis of a mesh (see '
                                      'jax.sharding.auto_axes) nor unreduced; got float32[4@a,2,20]'), error
            else:
                raise AssertionError
            assert np.array_equal(jax.sharding.auto_axes(door.conv1d, out_sharding=P('a'))(sharded, w), want)
    """, XLA_FLAGS='--xla_force_host_platform_device_count=2')


# errors and signatures


def test_signatures_and_docstrings():
    doors.check_functions(door, 'JAX arrays')


def test_errors_are_the_plain_functions():
    doors.check_errors(door)


def test_errors_come_while_tracing():
    x, w = jnp.ones((1, 2, 5)), jnp.ones((3, 2, 7))
    with pytest.raises(ValueError) as error:
        jax.eval_shape(door.conv1d, x, w)
    assert str(error.value) == ('weight must span at most the padded input, (5,); '
                                'got a span of (7,), kernel (7,) with dilation (1,)')
    assert jax.eval_shape(door.conv1d, x, w[..., :2]).shape == (1, 3, 4)


@pytest.mark.parametrize(('arguments', 'text'), [
    (([[1.0]], 0), 'input must be a jax.Array or a numpy.ndarray; got list'),
    ((np.ones((1, 2, 5)), None), 'weight must be a jax.Array or a numpy.ndarray; got NoneType'),
    ((np.ones((1, 2, 5), int), 0),
     'input must have dtype float16, bfloat16, float32, float64, complex64 or complex128; got int64'),
], ids=['list', 'none', 'integers'])
def test_kinds_that_are_refused(arguments, text):
    with pytest.raises(TypeError) as error:
        door.conv1d(*arguments)
    assert str(error.value) == text


@pytest.mark.parametrize('transform', ['jit', 'grad', 'vmap', 'eval_shape'])
@pytest.mark.parametrize('name', ['input', 'weight', 'bias', 'out'])
def test_the_plain_functions_name_this_door(transform, name):
    arrays = {'input': np.ones((1, 2, 5)), 'weight': np.ones((3, 2, 3)), 'bias': np.ones(3), 'out': np.ones((1, 3, 3))}

    def plain(traced):
        return pyconv.conv1d(**{**arrays, name: traced}).sum()

    array = jnp.asarray(arrays[name])
    with pytest.raises(TypeError) as caught:
        if transform == 'eval_shape':
            jax.eval_shape(plain, array)
        else:
            getattr(jax, transform)(plain)(array)
    rule = "outside of jax.jit, jax.grad and their like, which take pyconv.jax's functions"
    assert re.fullmatch(rf'{name} must be {rule}; got a \w*Tracer', str(caught.value))


def test_unknown_sizes_are_refused():
    shape = jax.ShapeDtypeStruct(export.symbolic_shape('b, 2, 5'), np.float32)
    with pytest.raises(TypeError) as error:
        export.export(jax.jit(door.conv1d))(shape, jax.ShapeDtypeStruct((3, 2, 2), np.float32))
    assert str(error.value) == 'input must have a known size on every axis; got shape (b, 2, 5)'


# compiled programs


def test_arrays_are_xlas_own(monkeypatch):
    seen, evaluate = [], _forms.evaluate
    monkeypatch.setattr(_forms, 'evaluate', lambda geometry, dtype, results, outs, named, *rest: seen.append(
        (*(factor for _, factor in named), *outs)) or evaluate(geometry, dtype, results, outs, named, *rest))
    x, w = jnp.ones((1, 2, 5)), jnp.ones((3, 2, 3))
    y = jax.jit(door.conv1d)(x, w).block_until_ready()
    [arrays] = seen
    assert [array.ctypes.data for array in arrays] == [array.unsafe_buffer_pointer() for array in (x, w, y)]
    assert [array.flags.writeable for array in arrays] == [False, False, True]
    assert all(array.flags.c_contiguous and array.flags.aligned for array in arrays)


def test_operands_in_another_order_and_given_away():
    x, w = np.arange(30.).reshape(1, 3, 10) % 7, np.arange(18.).reshape(2, 3, 3) % 5
    turned = jax.jit(lambda x, w: door.conv1d(x.transpose(2, 1, 0), w.T[..., ::-1]).T)
    wanted = pyconv.conv1d(x, w[:, :, ::-1])
    assert_equal(np.asarray(turned(x.transpose(2, 1, 0).copy(), w.T.copy())), wanted.T, np.float64)
    given = jnp.asarray(x[:, :2])  # as large as the result, which may take its place
    answer = jax.jit(partial(door.conv1d, padding='same'), donate_argnums=0)(given, w[:, :2])
    assert given.is_deleted()
    assert_equal(np.asarray(answer), pyconv.conv1d(x[:, :2], w[:, :2], padding='same'), np.float64)


def test_equal_calls_are_one_and_unused_ones_none(monkeypatch):
    calls, evaluate = [], _forms.evaluate
    monkeypatch.setattr(_forms, 'evaluate', lambda *rest: calls.append(rest[0]) or evaluate(*rest))

    @jax.jit
    def program(x, w):
        door.conv1d(x, w, padding=1)

        def step(sum, _):
            return sum + door.conv1d(x, w) - 2 * door.conv1d(x, w), None

        return jax.lax.scan(step, jnp.zeros((1, 3, 3)), None, 5)[0]

    assert_equal(np.asarray(program(np.ones((1, 2, 5)), np.ones((3, 2, 3)))), np.full((1, 3, 3), -30.), np.float64)
    assert len(calls) == 1


@pytest.mark.parametrize(('dtype', 'value'), [
    (np.float64, np.inf), (np.float64, np.nan), (np.float32, -1.5), (np.complex128, 1 - 2j)])
def test_what_is_around(dtype, value):
    x, w = np.ones((1, 1, 4), dtype), np.ones((1, 1, 2), dtype)
    keywords = {'padding': 1, 'padding_mode': 'constant', 'padding_value': value}
    assert np.array_equal(door.conv1d(x, w, **keywords), pyconv.conv1d(x, w, **keywords), equal_nan=True)


def test_programs_in_several_threads():
    x, w = np.ones((2, 8, 64, 64)), np.ones((8, 8, 3, 3))
    program = jax.jit(lambda x, w, factor: door.conv2d(factor * door.conv2d(x, w, padding=1), w, padding=1))
    wanted = pyconv.conv2d(pyconv.conv2d(x, w, padding=1), w, padding=1)

    def run(factor):
        return all(np.array_equal(program(x, w, factor), factor * wanted) for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(16)))


def test_float64_within_a_block():
    jax.config.update('jax_enable_x64', False)
    with jax.enable_x64(True):
        x, w = jnp.ones((1, 2, 5)), jnp.ones((3, 2, 3))
        assert_equal(np.asarray(jax.jit(door.conv1d)(x, w)), np.full((1, 3, 3), 6.), np.float64)


def test_an_error_within_a_program(monkeypatch):
    program, x, w = jax.jit(door.conv1d), jnp.ones((1, 2, 5)), jnp.ones((3, 2, 3))
    wanted, kind = program(x, w), MemoryError('no room')

    def fail(*rest):
        raise kind

    with monkeypatch.context() as patch, contextlib.ExitStack() as later:
        later.callback(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        patch.setattr(_forms, 'evaluate', fail)
        with pytest.raises(Exception, match='MemoryError: no room'):
            program(x, w).block_until_ready()
        kind = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):  # and not XLA's error alone, which a loop may go on after
            for _ in range(5):   # what a signal raises while garbage is collected, Python loses: Ctrl-C once more
                with contextlib.suppress(Exception):
                    program(x, w).block_until_ready()
                for _ in range(100):    # it comes from another thread
                    time.sleep(0.01)
    assert np.array_equal(program(x, w), wanted)


def test_a_platform_without_handler():
    geometry, _ = geometries.convolved(1, (1, 2, 5), (3, 2, 3), None, None, 1, 0, 1, 1)
    form = _forms.Form(geometry, (5,), np.dtype(np.float64), _settings.DEFAULTS)
    x, w = np.arange(10.).reshape(1, 2, 5), np.arange(18.).reshape(3, 2, 3)
    answer = jax.jit(partial(door._elsewhere, role='y', form=form))(x, w)
    assert_equal(np.asarray(answer), pyconv.conv1d(x, w), np.float64)


ALLOWED = [export.DisabledSafetyCheck.custom_call('pyconv_derivative')]


def test_a_program_in_another_process(tmp_path, run_python):
    pytest.importorskip('flatbuffers', reason='flatbuffers is not installed')
    x, w = np.arange(100.).reshape(1, 4, 5, 5) % 7, np.arange(72.).reshape(2, 4, 3, 3) % 5
    keywords = {'padding': 'same', 'padding_mode': 'constant', 'padding_value': 2}
    loss = jax.jit(lambda x, w: (door.conv2d(x, w, **keywords) ** 2).sum())
    (tmp_path / 'program').write_bytes(export.export(loss, disabled_checks=ALLOWED)(x, w).serialize(vjp_order=2))
    np.savez(tmp_path / 'data', x=x, w=w)
    run_python(f"""if True:
        import jax, numpy as np, pyconv
        from jax import export
        jax.config.update('jax_enable_x64', True)
        program = export.deserialize(open({str(tmp_path / 'program')!r}, 'rb').read()).call
        x, w = np.load({str(tmp_path / 'data.npz')!r}).values()
        try:
            program(x, w)
        except jax.errors.JaxRuntimeError as error:
            assert 'No FFI handler registered for pyconv_derivative' in str(error), error
        else:
            raise AssertionError
        import pyconv.jax
        keywords = {keywords!r}
        y = pyconv.conv2d(x, w, **keywords)
        assert program(x, w) == (y ** 2).sum()
        gradient = jax.grad(program, 1)(x, w)
        assert np.array_equal(gradient, pyconv.conv2d_weight(x, w.shape, 2 * y, **keywords))
        again = jax.grad(lambda w: (jax.grad(program, 1)(x, w) * w).sum())(w)  # of what is quadratic in w
        assert np.array_equal(again, 2 * gradient)
    """)


@pytest.mark.parametrize(('before', 'after', 'is_sealed', 'text'), [
    (f'"pyconv": "{pyconv.__version__}"', '"pyconv": "9.9"', True,
     f'program must be exported by pyconv {pyconv.__version__}, as it runs here; got 9.9'),
    ('"batch": 1', '"batch": 2', True,
     'program must call pyconv on arrays of float32, of shapes [(2, 2, 5), (3, 2, 2), (2, 3, 4)]; '
     "got ['float32 (1, 2, 5)', 'float32 (3, 2, 2)', 'float32 (1, 3, 4)']"),
    ('"dtype": "float32"', '"dtype": "float16"', True,
     'program must call pyconv on arrays of float16, of shapes [(1, 2, 5), (3, 2, 2), (1, 3, 4)]; '
     "got ['float32 (1, 2, 5)', 'float32 (3, 2, 2)', 'float32 (1, 3, 4)']"),
    ('"input_size": [1, 1, 5]', '"input_size": [1, 1, 9]', False,
     'program must be as it was exported; got one whose call of pyconv has changed'),
], ids=['version', 'shapes', 'dtype', 'changed'])
def test_a_program_that_is_refused(monkeypatch, before, after, is_sealed, text):
    sealed = door._sealed
    monkeypatch.setattr(door, '_sealed', lambda whole: (
        sealed(whole.replace(before, after)) if is_sealed else sealed(whole).replace(before, after)))
    with pytest.raises(Exception, match=re.escape(f'ValueError: {text}')):
        x, w = (np.ones(shape, np.float32) for shape in ((1, 2, 5), (3, 2, 2)))
        jax.jit(lambda x, w: door.conv1d(x, w))(x, w).block_until_ready()
