"""finput and fgrad_input: their six rules, the workspace query, and what a call allocates."""
import itertools
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import calls
import pyconv
import reference
from calls import assert_equal, assert_same_bits, peak_of, poisoned
from problems import BY_NAME, EVERY, LAYERS, MORE_AXES, TEST_ALL, VARIED, VARIED_MODES, Problem, expected, some
from pyconv import _evaluate, _geometries, _known, _settings
from pyconv._padding import Mode

TWO_MEGABYTES = 2 * 2**20
FEW = some('2d', '2d stride 2', '2d groups everything', '2d depthwise', '2d channels 33 33', '2d many input channels',
           '2d many channels kernel 1', '2d 7 by 7 samples', '1d long kernel', '3d groups everything',
           'reflect 2d channels 33 33', 'circular 2d depthwise strided', 'constant 2 2d groups everything',
           'replicate 1d cropped behind', 'circular 1d cropped behind') + LAYERS
MAPS = ('forward', 'grad_input', 'grad_weight', 'transposed')
every_map = pytest.mark.parametrize('name', MAPS)


def workspace(problem, dtype, transposed=False):
    if not transposed:
        return pyconv.workspace(problem.input_shape, problem.weight_shape, **problem.keywords, dtype=dtype)
    padding, output_padding = problem.transposed_padding
    return pyconv.workspace(problem.output_shape, problem.weight_shape, problem.stride, padding, problem.dilation,
                            problem.groups, transposed=True, output_padding=output_padding, dtype=dtype, **problem.mode)


def role(problem, name, dtype):
    """(the buffer's keyword, elements of full speed, elements at least)."""
    wants = workspace(problem, dtype, name == 'transposed')
    if name in ('forward', 'grad_weight'):
        return 'finput', wants.finput, wants.finput_minimum
    return 'fgrad_input', wants.fgrad_input, wants.fgrad_input_minimum


def operands(name, data):
    return {'forward': (data.x, data.w, data.b), 'grad_input': (data.w, data.y), 'grad_weight': (data.x, data.y),
            'transposed': (data.y, data.w, data.c)}[name]


def call(problem, name, data, **more):
    return getattr(calls, name)(problem, *operands(name, data), **more)


def test_workspace_names_elements_of_the_dtype(dtype):
    turned = [False, True] if dtype == np.float32 else [True, False]
    for problem, transposed in itertools.product(EVERY, [False, True]) if TEST_ALL else zip(
            EVERY, itertools.cycle(turned)):
        wants = workspace(problem, dtype, transposed)
        assert np.dtype(wants.dtype) == dtype
        assert tuple(wants) == (wants.finput, wants.fgrad_input, wants.finput_minimum, wants.fgrad_input_minimum,
                                wants.dtype)
        for full, least in ((wants.finput, wants.finput_minimum), (wants.fgrad_input, wants.fgrad_input_minimum)):
            assert type(full) is int and type(least) is int
            assert 0 <= least <= full, problem.name
            assert least * dtype.itemsize <= TWO_MEGABYTES, problem.name


@pytest.mark.parametrize('x, w, settings', [
    ((1, 64, 55, 55), (512, 64, 11, 11), {'stride': 11, 'padding': 5}),
    ((4, 128, 56, 56), (256, 128, 8, 8), {'stride': 8, 'padding': 2}),
    ((1, 256, 384), (512, 256, 128), {'stride': 128, 'padding': 63}),
    ((2, 64, 12, 12, 12), (256, 64, 4, 4, 4), {'stride': 4, 'padding': 1}),
    ((1, 512, 14, 14), (512, 512, 3, 3), {'stride': 2, 'padding': 1})], ids=lambda value: str(value).replace(' ', ''))
def test_weights_of_many_phases_take_little_of_a_buffer(x, w, settings, dtype):
    """Where they are packed for all phases at once."""
    assert pyconv.workspace(x, w, **settings, dtype=dtype).fgrad_input_minimum * dtype.itemsize <= TWO_MEGABYTES


@pytest.mark.parametrize('operands', [np.int8, np.int32, np.uint64])
def test_workspace_is_that_of_the_sums_that_are_asked_for(operands):
    x, w = np.ones((1, 8, 439), operands), np.ones((16, 8, 3), operands)
    for sums in (np.int32, np.int64):
        wants = pyconv.workspace(x.shape, w.shape, padding=1, dtype=operands, result_dtype=sums)
        assert wants.dtype == sums
        pyconv.conv1d(x, w, None, 1, 1, dtype=sums, finput=np.empty(wants.finput_minimum, sums))


@pytest.mark.parametrize('name', ['torch', 'array_api_strict'])
def test_a_dtype_of_the_arrays_own_library(name):
    library = pytest.importorskip(name)
    for dtype in ('float32', 'float64', 'complex64', 'int8', 'uint8'):
        x, w = library.ones((1, 2, 9), dtype=getattr(library, dtype)), library.ones((3, 2, 3))
        wants = pyconv.workspace(x.shape, w.shape, dtype=x.dtype)
        assert wants == pyconv.workspace(x.shape, w.shape, dtype=dtype)
    x, w = (array.astype(np.int8) for array in (np.ones((1, 2, 9)), np.ones((3, 2, 3))))
    sums = pyconv.conv1d(*map(library.asarray, (x, w)), dtype=library.int64)
    assert sums.dtype == library.int64
    assert pyconv.workspace(x.shape, w.shape, dtype=library.int8, result_dtype=library.int64).dtype == np.int64
    with pytest.raises(TypeError, match=r'^dtype must be float16, .*; got .*bool$'):
        pyconv.workspace(x.shape, w.shape, dtype=library.bool)
    with pytest.raises(TypeError, match=r'^dtype must be int32 or int64 for int8 arrays; got .*float32$'):
        pyconv.conv1d(x, w, dtype=library.float32)


def test_bfloat16_by_its_name_alone(monkeypatch):
    """In a process that has not yet imported what brings it, and in one that cannot."""
    pytest.importorskip('ml_dtypes')
    code = "import pyconv; print(pyconv.workspace((1, 2, 9), (3, 2, 3), dtype='bfloat16').dtype)"
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.stdout == 'float32\n', run.stderr
    monkeypatch.setitem(sys.modules, 'ml_dtypes', None)
    text = 'dtype must be a dtype of NumPy where ml_dtypes is not installed; got bfloat16'
    with pytest.raises(TypeError) as caught:
        pyconv.workspace((1, 2, 9), (3, 2, 3), dtype='bfloat16')
    assert str(caught.value) == text


def test_scratch_serves_directions_around_which_a_constant_is_nothing(monkeypatch):
    """A derivative of one convolution runs plans of both modes in one finput."""
    asked = []
    monkeypatch.setattr(_evaluate, 'plan_of', lambda map, geometry, *rest: asked.append((map, geometry.padding_mode)))
    geometry, _ = _geometries.convolved(1, (1, 2, 9), (3, 2, 3), None, None, 1, 1, 1, 1, mode=Mode('constant', 1))
    for name, maps in (('finput', ('forward', 'grad_weight')), ('fgrad_input', ('grad_input',))):
        asked.clear()
        _evaluate.plans_of(name, geometry, np.dtype(float), _settings.DEFAULTS, None)
        modes = ('constant', 'zeros') if name == 'finput' else ('zeros',)
        assert set(asked) == set(itertools.product(maps, modes))


def test_workspace_defaults_to_float32():
    wants = pyconv.workspace((2, 64, 30, 30), (64, 64, 3, 3))
    assert wants == pyconv.workspace((2, 64, 30, 30), (64, 64, 3, 3), 1, 0, 1, 1, dtype=np.float32)
    assert np.dtype(wants.dtype) == np.float32


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('batch, spatial, weight, keywords', [
    (8, (7, 7), (512, 512, 3, 3), {'padding': 1}),
    (1, (7, 7), (4096, 512, 7, 7), {}),
    (1, (9, 9), (2048, 2048, 3, 3), {}),
    (64, (224, 224), (64, 64, 3, 3), {'padding': 1}),
    (2, (3000,), (512, 512, 301), {'padding': 150}),
    (1, (4096, 4096), (64, 3, 31, 31), {'stride': 4}),
    (1, (8, 8), (8192, 8192, 1, 1), {'stride': 2}),
    (1, (8, 8), (4096, 4096, 1, 1), {}),
    (1, (2, 1000000), (1, 1, 1, 5), {'padding': (0, 2)}),
    (1, (64, 64), (1024, 1, 31, 31), {'groups': 1024, 'padding': 15}),
    (1, (40000,), (1, 1, 20000), {}),
    (1, (64, 64, 64), (64, 64, 5, 5, 5), {'stride': 2}),
    (1, (32, 32), (256, 8, 3, 3), {'groups': 32, 'dilation': 3, 'padding': 3}),
    (2, (500,), (256, 256, 3), {'padding': 1}),
    (2, (3599,), (64, 1024, 3), {'padding': 1}),
    (4, (28, 28), (256, 256, 3, 3), {'padding': 1, 'algorithm': 'winograd'}),
    (8, (56, 112), (1600, 2, 3, 3), {'groups': 16, 'padding': 3}),
    (8, (56, 56), (12800, 1, 1, 1), {'groups': 128, 'stride': 2, 'padding': 1}),
    (1, (112, 112), (64, 512, 3, 3), {'stride': 2, 'padding': 1}),
    (8, (224, 224), (256, 640, 3, 3), {'stride': 2, 'padding': 1}),
    (1, (81, 226), (32, 200, 3, 3), {'groups': 32, 'padding': 1, 'algorithm': 'winograd'}),
    (2, (11, 40, 40), (64, 64, 3, 3, 3), {'padding': (0, 1, 1), 'algorithm': 'winograd'}),
    (2, (33, 40, 40), (64, 64, 25, 3, 3), {'padding': (0, 1, 1)}),
    (1, (70, 90, 88), (353, 19, 11, 3, 3), {'algorithm': 'winograd'}),
])
def test_the_minimum_is_at_most_two_megabytes(batch, spatial, weight, keywords, transposed, dtype):
    """Weights of hundreds of megabytes are transformed panel by panel; a long row is cut."""
    channels = weight[0] if transposed else weight[1] * keywords.get('groups', 1)
    wants = pyconv.workspace((batch, channels, *spatial), weight, **keywords, transposed=transposed, dtype=dtype)
    assert max(wants.finput_minimum, wants.fgrad_input_minimum) * dtype.itemsize <= TWO_MEGABYTES


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('kernel, stride, groups', [(3, 1, 1), (3, 2, 1), (1, 1, 1), (1, 2, 1), (7, 2, 1), (3, 1, 32),
                                                    (3, 2, 32), (5, 1, 8), (4, 4, 1)])
def test_scratch_does_not_grow_with_the_batch_or_the_image(kernel, stride, groups, transposed, dtype):
    """Two megabytes a thread and some copies of the weights; blocks may fit the row, up to a length."""
    weight = (32, 32 // groups, kernel, kernel)
    bound = pyconv.get_num_threads() * TWO_MEGABYTES + 64 * dtype.itemsize * np.prod(weight)

    def wants(batch, *lengths):
        return np.max([pyconv.workspace((batch, 32, length, length), weight, stride, kernel // 2, 1, groups,
                                        transposed=transposed, dtype=dtype)[:4] for length in lengths], axis=0)
    assert (wants(4096, 128) <= wants(64, 128)).all()
    assert (wants(1, 2**18, 2**20, 2**22) <= 1.25 * wants(1, 2**10, 2**12, 2**14, 2**16)).all()
    assert wants(64, 8, 100, 128, 1000, 1024, 2**16, 2**20).max() * dtype.itemsize <= bound


@every_map
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_the_size_of_the_buffer_changes_no_bit(problem, name, dtype):
    """From the minimum to three times full speed, on one thread and on three, poisoned, and guarded on both sides."""
    data = problem.floats(dtype)
    alone = call(problem, name, data)
    guard = 1000
    for threads in (1, 3):
        with pyconv.num_threads(threads):
            keyword, full, least = role(problem, name, dtype)
            for size in sorted({max(least, 1), least + 1, least + 17, (least + full) // 2 + 1, full + 1, 3 * full + 5}):
                memory = poisoned(size + 2 * guard, dtype)
                memory[:guard] = memory[-guard:] = 12345
                again = call(problem, name, data, out=poisoned(alone.shape, dtype),
                             **{keyword: memory[guard:-guard]})
                assert_same_bits(again, alone)
                assert (memory[:guard] == 12345).all() and (memory[-guard:] == 12345).all()


@every_map
@pytest.mark.parametrize('problem', LAYERS, ids=str)
def test_the_minimum_is_the_same_for_any_number_of_threads(problem, name, dtype):
    """A buffer that was made for one number serves every other."""
    wants = []
    for threads in (1, 3, 40):
        _known.forget()
        pyconv.set_num_threads(threads)
        wants.append(role(problem, name, dtype)[2])
    assert len(set(wants)) == 1


@pytest.mark.parametrize('spatial, weight, keywords', [
    ((32, 32), (32, 64, 3, 3), {'groups': 4, 'padding': 1}),
    ((56, 56), (2, 16, 5, 5), {'padding': 2, 'padding_mode': 'replicate'}),
    ((14, 14), (6, 8, 3, 3), {'groups': 2, 'padding': 1}),
    ((1000,), (16, 16, 7), {'padding': 3, 'padding_mode': 'circular'}),
    ((4096,), (32, 4, 7), {'stride': 2, 'padding': 3}),
    ((7, 7), (64, 64, 3, 3), {'padding': 1, 'algorithm': 'winograd'}),
    ((9, 9), (48, 1, 3, 3), {'groups': 48, 'padding': 1}),
    ((5, 5), (40, 8, 5, 5), {}),
    ((2, 2), (3, 700, 1, 1), {}),
    ((6, 6, 6), (8, 8, 3, 3, 3), {'padding': 1, 'per_sample': True}),
], ids=str)
def test_a_buffer_for_a_batch_serves_every_smaller_one(spatial, weight, keywords, dtype):
    """Also the least, and that of full speed for one thread; of what sums no samples the least is that of one."""
    channels, sizes = weight[1] * keywords.get('groups', 1), []
    with pyconv.num_threads(1):
        for batch in range(1, 40):
            sizes.append(pyconv.workspace((batch, channels, *spatial), weight, **keywords, dtype=dtype)[:4])
    finput, fgrad_input, finput_least, fgrad_input_least = np.transpose(sizes)
    assert (np.diff(finput_least) >= 0).all()
    assert (np.diff(fgrad_input_least) == 0).all()
    assert (np.maximum.accumulate(finput_least) <= finput).all() and (fgrad_input_least <= fgrad_input).all()


@pytest.mark.parametrize('size, channels, algorithm', [(14, 256, 'auto'), (28, 128, 'winograd'), (7, 64, 'winograd')])
def test_full_speed_of_a_batch_is_that_of_smaller_ones(size, channels, algorithm, dtype):
    """Blocks of tiles may be larger where there are fewer samples."""
    def wants(batch):
        return np.array(pyconv.workspace((batch, channels, size, size), (channels, channels, 3, 3), 1, 1, dtype=dtype,
                                         algorithm=algorithm)[:2])
    for batch in (3, 9, 33):
        assert all((wants(batch) >= wants(1 << fewer)).all() for fewer in range(batch.bit_length()))


def test_the_least_of_samples_is_enough_for_all(dtype):
    """What is asked for per_sample serves the convolution itself too."""
    settings = {'groups': 2, 'padding': ((0, 4), (12, 12)), 'dilation': (1, 6), 'padding_mode': 'constant'}
    x, w = np.ones((7, 12, 30, 1), dtype), np.ones((64, 6, 3, 3), dtype)
    sizes = pyconv.workspace(x.shape, w.shape, **settings, per_sample=True, dtype=dtype)
    finput = np.empty(sizes.finput_minimum, dtype)
    y = pyconv.conv2d(x, w, **settings, finput=finput)
    for per_sample in (False, True):
        pyconv.conv2d_weight(x, w.shape, y, **settings, finput=finput, per_sample=per_sample)


@pytest.mark.parametrize('shape, weight, padding, dilation', [
    ((48, 1, 5, 5), (40, 1, 5, 5), 0, 1), ((15, 8, 7, 7), (16, 8, 3, 3), 1, 1), ((17, 3, 9), (8, 3, 3), 1, 1),
    ((33, 700, 2, 2), (33, 700, 2, 2), 0, 1), ((23, 4, 40), (2, 4, 5), 2, 1),
    ((13, 16, 4, 4, 4), (24, 16, 3, 3, 3), 1, 1), ((9, 32, 9, 10), (32, 32, 3, 3), 6, 6),
], ids=str)
def test_a_sum_over_any_batch_fits_the_least(shape, weight, padding, dilation, dtype):
    """Blocks are chosen for a batch of a power of two: in any other they are no larger."""
    rank = len(shape) - 2
    rng = np.random.default_rng(0)
    for batch in range(1, shape[0] + 1):
        x = rng.standard_normal((batch, *shape[1:])).astype(dtype)
        sizes = [n + 2 * padding - dilation * (k - 1) for n, k in zip(shape[2:], weight[2:])]
        y = rng.standard_normal((batch, weight[0], *sizes)).astype(dtype)
        settings = {'padding': padding, 'dilation': dilation}
        conv_weight = partial(getattr(pyconv, f'conv{rank}d_weight'), x, weight, y, **settings)
        scratch = np.empty(pyconv.workspace(x.shape, weight, **settings, dtype=dtype).finput_minimum, dtype)
        assert_same_bits(conv_weight(finput=scratch), conv_weight())


@every_map
@pytest.mark.parametrize('problem', VARIED + VARIED_MODES, ids=str)
def test_the_minimum_is_enough_and_exact(problem, name, dtype):
    keyword, _, least = role(problem, name, dtype)
    answers = expected(problem.name)
    wanted = {'forward': answers.forward, 'grad_input': answers.grad_input, 'grad_weight': answers.grad_weight,
              'transposed': answers.grad_input}[name]
    data = problem.integers(dtype)._replace(b=None, c=None)
    for poison in (np.nan, np.inf, 1e30, 0):
        assert_equal(call(problem, name, data, **{keyword: np.full(max(least, 1), poison, dtype)}), wanted, dtype)


@every_map
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_none_and_empty_buffers_are_allocated_inside(problem, name, dtype):
    data = problem.floats(dtype)
    alone = call(problem, name, data)
    keyword = role(problem, name, dtype)[0]
    for empty in (None, np.empty(0, dtype), np.empty((3, 0, 2), dtype)):
        assert_same_bits(call(problem, name, data, **{keyword: empty}), alone)


@every_map
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_too_small_a_buffer_says_how_many_elements(problem, name, dtype):
    data = problem.floats(dtype)
    keyword, _, least = role(problem, name, dtype)
    for size in {1, least // 2, least - 1}:
        if 0 < size < least:
            out = poisoned(call(problem, name, data).shape, dtype)
            with pytest.raises(ValueError, match=rf'^{keyword} must .*{least}.*; got '):
                call(problem, name, data, out=out, **{keyword: np.empty(size, dtype)})
            assert np.isnan(out).all()


@every_map
@pytest.mark.parametrize('problem', FEW, ids=str)
def test_a_buffer_over_an_operand_or_out_is_refused(problem, name, dtype):
    data = problem.floats(dtype)
    alone = call(problem, name, data)
    keyword, full, _ = role(problem, name, dtype)
    given = operands(name, data)
    for index, shared in enumerate((*given, alone)):
        memory = np.zeros(shared.size + full + 1, dtype)
        memory[:shared.size] = shared.ravel()
        view = memory[:shared.size].reshape(shared.shape)
        parts = [view if i == index else part for i, part in enumerate(given)]
        more = {'out': view} if index == len(given) else {}
        with pytest.raises(ValueError, match=f'^{keyword} must '):
            getattr(calls, name)(problem, *parts, **more, **{keyword: memory[shared.size - 1:]})
        assert_same_bits(view, shared)
        assert_same_bits(getattr(calls, name)(problem, *parts, **more, **{keyword: memory[shared.size:]}), alone)


@every_map
def test_out_over_an_operand_is_refused(name, dtype):
    problem = Problem('same shapes', (5, 5), (5, 5), (3, 3), batch=3, padding=2)  # x, w and y are all (3, 3, 5, 5)
    data = problem.floats(dtype)
    before = data.x.copy(), data.w.copy(), data.y.copy()
    for shared in operands(name, data):
        if shared.ndim == 4:
            with pytest.raises(ValueError, match='^out must not overlap'):
                call(problem, name, data, out=shared)
    for now, then in zip((data.x, data.w, data.y), before):
        assert_same_bits(now, then)


@every_map
def test_one_arena_for_operands_out_and_scratch(name, dtype):
    """Neighbours in one piece of memory do not overlap."""
    problem = BY_NAME['2d channels 33 33']
    data = problem.floats(dtype)
    alone = call(problem, name, data)
    keyword, full, _ = role(problem, name, dtype)
    arena = poisoned(sum(part.size for part in data) + alone.size + full, dtype)
    start, parts = 0, []
    for part in (*data, alone):
        parts.append(arena[start:start + part.size].reshape(part.shape))
        parts[-1][...] = part
        start += part.size
    parts[-1].fill(np.nan)
    moved = type(data)(*parts[:-1])
    assert call(problem, name, moved, out=parts[-1], **{keyword: arena[start:]}) is parts[-1]
    assert_same_bits(parts[-1], alone)


@every_map
def test_a_buffer_is_flat_memory(name, dtype):
    problem = BY_NAME['2d many input channels']
    data = problem.floats(dtype)
    alone = call(problem, name, data)
    keyword, full, _ = role(problem, name, dtype)
    assert_same_bits(call(problem, name, data, **{keyword: poisoned((full // 4 + 1, 2, 2), dtype)}), alone)


@every_map
def test_a_buffer_of_another_kind_is_refused(name, dtype):
    problem = BY_NAME['2d many input channels']
    data = problem.floats(dtype)
    keyword, full, _ = role(problem, name, dtype)
    other = np.float64 if dtype == np.float32 else np.float32
    frozen = np.empty(full, dtype)
    frozen.flags.writeable = False
    for buffer in (np.empty(2 * full, other), np.empty(full, dtype).byteswap().view(dtype.newbyteorder()), frozen,
                   np.empty(2 * full, np.int32), [0.0] * full):
        with pytest.raises((ValueError, TypeError), match=f'^{keyword} must '):
            call(problem, name, data, **{keyword: buffer})


@every_map
def test_a_buffer_with_gaps_keeps_its_gaps(name, dtype):
    """Right or refused, but the elements in between belong to somebody else."""
    problem = BY_NAME['2d many input channels']
    data = problem.floats(dtype)
    alone = call(problem, name, data)
    keyword, full, _ = role(problem, name, dtype)
    memory = np.full(2 * full, 7, dtype)
    try:
        assert_same_bits(call(problem, name, data, **{keyword: memory[::2]}), alone)
    except ValueError as error:
        assert str(error).startswith(f'{keyword} must ')
    assert (memory[1::2] == 7).all()


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
def test_one_buffer_for_a_whole_network_and_both_roles(transposed, dtype):
    shared = poisoned(max(max(workspace(p, dtype, transposed)[:2]) for p in VARIED), dtype)
    for problem in VARIED:
        data, answers = problem.integers(dtype), expected(problem.name)
        padding, output_padding = problem.transposed_padding if transposed else (problem.padding, 0)
        grad_output, input_, grad_input = (
            (data.x, data.y, answers.forward) if transposed else (data.y, data.x, answers.grad_input))
        both = pyconv.convolution_backward(
            grad_output, input_, data.w, problem.stride, padding, problem.dilation, transposed, output_padding,
            problem.groups, (True, True, False), finput=shared, fgrad_input=shared)
        assert_equal(both[0], grad_input, dtype)
        assert_equal(both[1], answers.grad_weight, dtype)
        answer = pyconv.convolution(input_, data.w, None, problem.stride, padding, problem.dilation, transposed,
                                    output_padding, problem.groups, finput=shared, fgrad_input=shared)
        assert_equal(answer, answers.grad_input if transposed else answers.forward, dtype)


# Arrays of a megabyte and more, so that a hidden copy of any of them shows.
BIG = [
    Problem('3 by 3', (60, 60), (3, 3), (48, 40), padding=1, batch=3),
    Problem('3 by 3 strided', (90, 92), (3, 3), (32, 48), padding=1, batch=2, stride=2),
    Problem('1 by 1', (60, 60), (1, 1), (48, 40), batch=3),
    Problem('1 by 1 strided', (91, 90), (1, 1), (32, 96), batch=2, stride=2),
    Problem('depthwise', (80, 80), (3, 3), (32, 32), groups=32, padding=1, batch=3),
    Problem('depthwise strided', (120, 121), (3, 3), (32, 32), groups=32, padding=1, batch=2, stride=2),
    Problem('grouped dilated', (60, 60), (3, 3), (48, 48), groups=6, padding=2, dilation=2, batch=3),
    Problem('volume', (24, 30, 30), (3, 3, 3), (12, 14), padding=1),
    Problem('sound', (30000,), (5,), (8, 12), padding='same'),
    Problem('large weights', (14, 14), (3, 3), (256, 256), padding=1),
]


@every_map
@pytest.mark.parametrize('problem', BIG, ids=str)
def test_nothing_of_array_size_is_allocated(problem, name):
    data = problem.floats(np.float32)
    out = np.empty_like(call(problem, name, data))
    keyword, full, least = role(problem, name, np.float32)
    for size in (full, least):
        given = {'out': out, keyword: np.empty(max(size, 1), np.float32)}
        peak = peak_of(partial(call, problem, name, data, **given))
        assert peak < 16 * 1024, f'{peak} bytes with a buffer of {size} elements'


def test_an_allocation_would_show():
    """NumPy tells tracemalloc about its data: without `out` the same call shows the output."""
    problem = BIG[0]
    data = problem.floats(np.float32)
    assert peak_of(lambda: calls.forward(problem, data.x, data.w)) > data.y.nbytes


@pytest.mark.parametrize('taps, padding, bad, allocates', [
    (3, 1, 0, False), (22, 3, 0, False), (3, 1, np.inf, True), (23, 3, 0, True)])
def test_halves_allocate_only_where_the_help_says_so(taps, padding, bad, allocates):
    """With a weight that is not finite or of more than 512 taps they are added up in several steps, in a megabyte."""
    problem = Problem('halves', (100, 100), (taps, taps), (32, 32), groups=32, padding=padding, batch=1)
    data = problem.integers(np.float16)
    data.w[3, 0, 1, 1] += bad
    for name in ('forward', 'grad_input'):
        out = np.empty_like(data.y if name == 'forward' else data.x)
        keyword, full, _ = role(problem, name, np.float16)
        peak = peak_of(partial(call, problem, name, data, out=out, **{keyword: np.empty(full, np.float32)}))
        assert (peak > out.nbytes) == allocates and peak < (2 * 2**20 if allocates else 16 * 1024)


def backward_arguments(problem, transposed):
    """(grad_output, weight, input, bias, from stride to mask, the buffers of full speed)."""
    data = problem.floats(np.float32)
    wants = workspace(problem, np.float32, transposed)
    buffers = {'finput': np.empty(max(wants.finput, 1), np.float32),
               'fgrad_input': np.empty(max(wants.fgrad_input, 1), np.float32)}
    padding, output_padding = problem.transposed_padding if transposed else (problem.padding, 0)
    rest = (problem.stride, padding, problem.dilation, transposed, output_padding, problem.groups, (True,) * 3)
    roles = (data.x, data.w, data.y, data.c) if transposed else (data.y, data.w, data.x, data.b)
    return *roles, rest, buffers


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('problem', BIG, ids=str)
def test_backward_allocates_nothing_of_array_size(problem, transposed):
    grad_output, weight, input_, bias, rest, buffers = backward_arguments(problem, transposed)
    out = np.empty_like(input_), np.empty_like(weight), np.empty_like(bias)
    peak = peak_of(lambda: pyconv.convolution_backward(grad_output, input_, weight, *rest, out=out, **buffers))
    assert peak < 16 * 1024, f'{peak} bytes'


@pytest.mark.parametrize('transposed', [False, True], ids=['plain', 'transposed'])
@pytest.mark.parametrize('problem', BIG, ids=str)
def test_double_backward_allocates_nothing_of_array_size(problem, transposed):
    grad_output, weight, input_, bias, rest, buffers = backward_arguments(problem, transposed)
    out = np.empty_like(grad_output), np.empty_like(input_), np.empty_like(weight)
    arguments = input_.copy(), weight.copy(), bias, grad_output, weight, input_, *rest
    peak = peak_of(lambda: pyconv.convolution_double_backward(*arguments, out=out, **buffers))
    assert peak < 16 * 1024, f'{peak} bytes'


RESIDENT = '''
import resource, sys
import numpy as np
import pyconv

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == 'darwin' else 1024)

kernel, stride, groups = map(int, sys.argv[1:])
keywords = {'stride': stride, 'padding': kernel // 2, 'groups': groups}
x = np.ones((4, 24, 288, 288), np.float32)
w = np.ones((24, 24 // groups, kernel, kernel), np.float32)
y = np.ones_like(pyconv.conv2d(x, w, **keywords))
back, gw = np.ones_like(x), np.ones_like(w)
for n in (1, 4):  # the first round brings in the code and the threads
    before = most()
    pyconv.conv2d(x[:n], w, **keywords, out=y[:n])
    pyconv.conv2d_input(x[:n].shape, w, y[:n], **keywords, out=back[:n])
    pyconv.conv2d_weight(x[:n], w.shape, y[:n], **keywords, out=gw)
    print(most() - before)
'''


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='asks the operating system for the resident set')
@pytest.mark.parametrize('kernel, stride, groups', [(3, 1, 1), (3, 2, 1), (1, 2, 1), (3, 1, 24), (5, 2, 4)])
def test_scratch_stays_small_in_the_operating_system_s_eyes(kernel, stride, groups, run_python):
    """Memory that C allocates counts too: one sample's columns are 8 MB at the least here, x is 32 MB."""
    first, rest = map(int, run_python(RESIDENT, kernel, stride, groups, OMP_NUM_THREADS='2').split())
    assert first < 16 * 2**20  # two threads' scratch, weights, partials, the code itself
    assert rest < 4 * 2**20


COLUMNS = [p for p in EVERY if not isinstance(p.padding, str)]  # without the input, a name says nothing


@pytest.mark.parametrize('problem', COLUMNS, ids=str)
def test_columns_are_reused_by_name(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name).grad_weight
    columns = pyconv.unfold(data.x, problem.kernel, problem.dilation, problem.padding, problem.stride, **problem.mode)
    before = columns.copy()
    for _ in range(2):
        assert_equal(calls.grad_weight(problem, None, data.y, finput=columns), wanted, dtype)
    out = poisoned(wanted.shape, dtype)
    assert calls.grad_weight(problem, None, data.y, finput=columns, out=out) is out
    assert_equal(out, wanted, dtype)
    assert_same_bits(columns, before)
    alone = calls.grad_weight(problem, data.x[-1], data.y[-1])
    assert_equal(calls.grad_weight(problem, None, data.y[-1], finput=columns[-1]), alone, dtype)
    apart = reference.grad_weight(data.x, data.y, problem.kernel, **problem.form, per_sample=True)
    assert_equal(calls.grad_weight(problem, None, data.y, finput=columns, per_sample=True), apart, dtype)


@pytest.mark.parametrize(
    'problem', [p for p in VARIED + VARIED_MODES + MORE_AXES if not isinstance(p.padding, str)], ids=str)
def test_columns_are_reused_over_any_number_of_axes(problem, dtype):
    data, wanted = problem.integers(dtype), expected(problem.name).grad_weight
    columns = pyconv.unfold(data.x, problem.kernel, problem.dilation, problem.padding, problem.stride, **problem.mode)
    before = columns.copy()

    def backward(y, columns, mask, **more):
        return pyconv.convolution_backward(
            y, None, data.w, problem.stride, problem.padding, problem.dilation, False, 0, problem.groups, mask,
            finput=columns, **problem.mode, **more)

    sums = reference.channel_sum(data.y)
    none, weight, bias = backward(data.y, columns, (False, True, True), bias_sizes=sums.shape)
    assert none is None
    assert_equal(weight, wanted, dtype)
    assert_equal(bias, sums, dtype)
    assert backward(data.y, columns, (False, False, True))[1] is None
    out = np.ones(wanted.shape, dtype)
    found = backward(data.y, columns, (False, True, False), out=(None, out, None), accumulate=True)
    assert found[0] is found[2] is None and found[1] is out
    assert_equal(out, wanted + 1, dtype)
    alone = reference.grad_weight(data.x, data.y, problem.kernel, **problem.form, per_sample=True)
    assert_equal(backward(data.y, columns, (False, True, False), per_sample=True)[1], alone, dtype)
    assert_equal(backward(data.y[-1], columns[-1], (False, True, False))[1], alone[-1], dtype)
    assert_same_bits(columns, before)


@pytest.mark.parametrize('rank', [1, 2, 3, 4, 5])
def test_padding_in_columns_meets_what_is_not_finite_beyond_three_axes(rank):
    """There all that columns hold counts as data; with less axes padding meets nothing, as elsewhere."""
    x, w = np.ones((1, 1) + (3,) * rank), np.ones((1, 1) + (3,) * rank)
    y = np.ones(x.shape)
    y[(0, 0) + (0,) * rank] = np.nan  # of the taps, those that are 0 on some axis see padding there
    columns = pyconv.unfold(x, w.shape[2:], 1, 1)
    found = pyconv.convolution_backward(y, None, w, 1, 1, 1, False, 0, 1, (False, True, False), finput=columns)[1]
    assert np.isnan(found).sum() == (2 ** rank if rank <= 3 else 3 ** rank)


def test_columns_have_to_be_there_and_to_fit(dtype):
    problem = BY_NAME['2d stride 2']
    data = problem.integers(dtype)
    columns = pyconv.unfold(data.x, problem.kernel, problem.dilation, problem.padding, problem.stride)
    with pytest.raises((TypeError, ValueError)):
        calls.grad_weight(problem, None, data.y)
    for wrong in (columns[:, :-1], columns[:, :, :-1], columns[:-1], columns.ravel()[:-1], np.empty(0, dtype),
                  columns.astype(np.float32 if dtype == np.float64 else np.float64)):
        with pytest.raises((TypeError, ValueError)):
            calls.grad_weight(problem, None, data.y, finput=wrong)
    with pytest.raises((TypeError, ValueError)):
        calls.forward(problem, None, data.w, finput=columns)


def test_a_buffer_given_without_asking_is_never_trusted(dtype):
    """Columns of another input lie in finput; as the input is there, they count for nothing."""
    problem = BY_NAME['2d stride 2']
    data = problem.integers(dtype)
    columns = pyconv.unfold(data.x + 1, problem.kernel, problem.dilation, problem.padding, problem.stride)
    columns = np.tile(columns.ravel(), 1 + workspace(problem, dtype).finput // columns.size)
    assert_equal(calls.grad_weight(problem, data.x, data.y, finput=columns), expected(problem.name).grad_weight, dtype)
    assert_equal(calls.forward(problem, data.x, data.w, finput=columns), expected(problem.name).forward, dtype)
