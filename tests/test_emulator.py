"""The emulator: every primitive against its definition, and every defect that it is there to see, planted once."""
import math
import time

import numpy as np
import pytest
from emulated_device import EmulatedArray, EmulatedDevice
from emulated_memory import ORIGIN
from emulator import KernelError, Memory, bf16_of_bits, run

random = np.random.default_rng(7)


def ran(body, threads=32, grid=(1, 1, 1), shared=0, returns=False, races=True, **arguments):
    """Run lines of a kernel; arguments are integers and arrays (their address). The arrays afterwards, by name."""
    memory = Memory()
    arrays = {name: EmulatedArray.from_numpy(memory, value) for name, value in arguments.items()
              if isinstance(value, np.ndarray)}
    text = '\n'.join([f'def kernel({", ".join(arguments)}):', *(f'    {line}' for line in body.strip().splitlines())])
    values = [arrays[name].address if name in arrays else value for name, value in arguments.items()]
    statistics = run(memory, text, 'kernel', values, grid, threads, shared, returns, races)
    return statistics if returns else {name: array.to_numpy() for name, array in arrays.items()}


def computed(expression, out, *inputs, threads=64, **options):
    """out[t] = expression of a, b, c = inputs[i][t] by loads of their types."""
    kinds = {'int32': 'i32', 'float32': 'f32', 'float64': 'f64', 'float16': 'f16', 'uint32': 'i32'}
    lines = ['t = i64(thread() + block_x() * 64)']
    lines += [f'{name} = load_{kinds[x.dtype.name]}(in_{name} + t * {x.itemsize}, True)' for name, x in zip('abc', inputs)]
    lines += [f'store_{kinds[out.name]}(out + t * {out.itemsize}, True, {expression})']
    named = {f'in_{name}': x for name, x in zip('abc', inputs)}
    size = inputs[0].size
    return ran('\n'.join(lines), threads, (size // threads, 1, 1), out=np.zeros(size, out), **named, **options)['out']


INT, FLOAT, DOUBLE = np.dtype(np.int32), np.dtype(np.float32), np.dtype(np.float64)
SPECIAL = np.array([0, -0., 1, np.inf, -np.inf, np.nan, 65520, 65519, 1e-8, 3e38, 1e-45, -2.5], np.float32)


def floats(n=640):
    """Of all magnitudes, with the special ones."""
    bits = random.integers(0, 1 << 32, n, dtype=np.uint32)
    bits[:SPECIAL.size] = SPECIAL.view(np.uint32)
    bits[SPECIAL.size:2 * SPECIAL.size] = random.integers(0, 256, SPECIAL.size) << 16 | 0x3f808000       # ties
    return bits.view(np.float32)


# What a value is

def test_integers_wrap_where_they_are_cast_and_not_before():
    a = random.integers(-2**31, 2**31, 128).astype(np.int32)
    wide = a.astype(object) * 3 + 5                        # Python's integers have no end
    wrapped = np.array([(int(x) + 2**31) % 2**32 - 2**31 for x in wide], np.int32)
    assert (computed('i32(a * 3 + 5)', INT, a) == wrapped).all()
    high = np.array([int(x) >> 4 for x in wide]).astype(np.int32)
    assert (computed('i32((a * 3 + 5) >> 4)', INT, a) == high).all()
    assert (computed('select(u32(a) < u32(7), 1, 0)', INT, a) == (a.view(np.uint32) < 7)).all()


def test_literals_have_the_types_of_the_compiler():
    a = floats(64)
    with np.errstate(all='ignore'):
        assert np.array_equal(computed('f32(a * 0.1)', FLOAT, a), (a.astype(np.float64) * 0.1).astype(np.float32), True)


def test_augmented_assignment_leaves_other_names_alone():
    a = np.arange(64, dtype=np.int32)
    memory = Memory()
    out = EmulatedArray.empty(memory, (64,), 'float32')
    text = 'def k(out):\n    p = i64(thread())\n    q = p\n    q += 7\n    store_i32(out + p * 4, True, q - p)'
    run(memory, text, 'k', [out.address], (1, 1, 1), 64)
    assert (out.stored().view(np.int32) == 7).all() and a[5] == 5


def test_where_a_thread_is():
    body = '''
at = (((block_z() * 3 + block_y()) * 5 + block_x()) * 32 + thread()) * 4
store_i32(out + i64(at), True, block_z() * 1000000 + block_y() * 10000 + block_x() * 100 + thread())'''
    out = ran(body, grid=(5, 3, 2), out=np.zeros((2, 3, 5, 32), np.int32))['out']
    z, y, x, t = np.indices(out.shape)
    assert (out == z * 1000000 + y * 10000 + x * 100 + t).all()


def test_many_blocks_come_in_batches():
    out = ran('store_i32(out + i64(block_x() * 32 + thread()) * 4, True, block_x())', grid=(5000, 1, 1),
              out=np.zeros((5000, 32), np.int32))['out']
    assert (out == np.arange(5000)[:, None]).all()


# Arithmetic

def test_divide():
    n = np.concatenate([random.integers(0, 2**31, 125), [0, 1, 2**31 - 1]]).astype(np.int32)
    for d in (1, 2, 3, 7, 10, 641, 65537, 2**30 + 1, 2**31 - 1):
        shift = 31 + math.ceil(math.log2(d))
        magic = -(-2**shift // d)
        assert (computed(f'divide(a, {magic}, {shift})', INT, n) == n // d).all()


def test_fma_rounds_once():
    a = np.full(64, 1 + 2**-12, np.float32)
    c = np.full(64, -1 - 2**-11, np.float32)
    assert (computed('fma(a, a, b)', FLOAT, a, c) == 2**-24).all()
    assert (computed('a * a + b', FLOAT, a, c) == 0).all()
    with pytest.raises(KernelError, match='one float type'):
        computed('fma(a, a, 1.0)', FLOAT, a)


def test_select():
    a = np.arange(64, dtype=np.int32)
    assert (computed('select(a < 5, a, -a)', INT, a) == np.where(a < 5, a, -a)).all()
    with pytest.raises(KernelError, match='one type; got float32 and int64'):
        computed('f32(select(a < 5, f32(a), 0))', FLOAT, a)


def test_round_and_split_tf32():
    x = floats()
    finite = np.isfinite(x)
    values = x[finite].astype(np.float64)
    fraction, exponent = np.frexp(values)                  # 1 + 10 bits of mantissa; below 2**-126 the step is fixed
    step = 2.0 ** (np.maximum(exponent, -125) - 11)
    rounded = np.trunc(values / step + np.copysign(0.5, values)) * step
    with np.errstate(over='ignore', invalid='ignore'):
        high = computed('bits_f32(round_tf32(f32_bits(a)))', FLOAT, x)
        assert (high[finite] == rounded.astype(np.float32)).all()
        assert np.array_equal(high[~finite], x[~finite], True)
        both = computed('bits_f32(split_tf32(f32_bits(a))[0]) + bits_f32(split_tf32(f32_bits(a))[1])', FLOAT, x)
    usual = finite & (abs(x) > 1e-30) & (abs(x) < 1e38)
    assert (abs(both[usual].astype(np.float64) - x[usual]) <= abs(x[usual]) * 2.0**-21).all()
    assert (computed('i32(split_tf32(f32_bits(a))[1])', INT, x)[~finite] == 0).all()


# Global memory

@pytest.mark.parametrize('name', ['f16', 'bf16'])
def test_half_precision_is_rounded_to_nearest_even(name):
    x = floats()
    out = ran(f'store_{name}(out + i64(thread() * 2), True, load_f32(x + i64(thread() * 4), True))', x.size, x=x,
              out=np.zeros(x.size, np.uint16))['out']
    decode = bf16_of_bits if name == 'bf16' else lambda bits: bits.astype(np.uint16).view(np.float16)
    with np.errstate(invalid='ignore'):
        grid = decode(np.arange(0x7f80 + 1 if name == 'bf16' else 0x7c00 + 1)).astype(np.float64)
        grid[-1] = 2 * grid[-2] - grid[-3]                         # where infinity begins, for distances
        place = np.searchsorted(grid, abs(x.astype(np.float64))).clip(1, grid.size - 1)
        below, above = abs(x) - grid[place - 1], grid[place] - abs(x)
        nearest = np.where((below < above) | ((below == above) & (place % 2 == 1)), place - 1, place)
    nan = np.isnan(x)
    assert (out[~nan] & 0x7fff == nearest[~nan]).all() and (out >> 15 == x.view(np.uint32) >> 31)[~nan].all()
    assert np.isnan(decode(out)[nan]).all()
    back = ran(f'store_f32(out + i64(thread() * 4), True, load_{name}(x + i64(thread() * 2), True))', x.size, x=out,
               out=np.zeros(x.size, np.float32))['out']
    assert np.array_equal(back, decode(out), True)


def test_masked_access_is_none():
    body = '''
t = thread()
value = load_f64(x + i64(select(t < 5, t * 8, 1 << 60)), t < 5)
store_f64(out + i64(select(t < 9, t * 8, 3)), t < 9, value)'''
    out = ran(body, x=np.arange(5.) + 1, out=np.full(9, 7.))['out']
    assert out.tolist() == [1, 2, 3, 4, 5, 0, 0, 0, 0]


@pytest.mark.parametrize(('line', 'words'), [
    ('load_f32(x + i64(t * 4) + 4, True)', r'0x\w+80 is out of bounds: the nearest allocation is .*\(1 of 32'),
    ('load_f32(x - 4 + i64(t * 4), True)', 'out of bounds'),
    ('store_f32(x + i64(t * 4) + 4, True, f32(0))', 'out of bounds'),
    ('copy16(shared_base() + t * 16, x + i64(t * 16), True)', 'out of bounds'),
    ('load_f32(i32(x + t * 4), True)', 'out of bounds'),
    ('load_f32(u32(x + t * 4), True)', 'out of bounds'),
    ('load_f64(x + i64(t) * 4, True)', 'misaligned'),
    ('load_f16(x + 1, True)', 'misaligned'),
    ('store_f64(x + 4, t == 0, 1.0)', 'misaligned'),
    ('copy8(shared_base() + t * 8, x + 4, True)', 'global access of 8 bytes at .* misaligned'),
    ('copy16(shared_base() + t * 8, x, True)', 'shared access of 16 bytes at byte 8 is misaligned'),
    ('copy16(shared_base() + t * 32, x, True)', 'out of the 512 bytes'),
    ('put_f32(shared_base() + t * 17, True, f32(0))', 'out of the 512|misaligned'),
    ('put_f32(i32(t * 4), True, f32(0))', 'byte -1024 is out of'),
    ('shared_f32x4(shared_base() + t * 4)', 'misaligned'),
    ('ldmatrix(shared_base() + t * 16 + 16)', 'out of'),
    ('shared_f32(f32(0))', 'address must be an integer'),
])
def test_wrong_addresses(line, words):
    with pytest.raises(KernelError, match=words) as error:
        ran(f't = thread()\n{line}', shared=512, x=np.zeros(32, np.float32))
    assert f'line 3: {line}' in str(error.value)


def test_freed_memory_is_out_of_bounds_and_new_memory_poison():
    memory = Memory()
    array = EmulatedArray.from_numpy(memory, np.ones(1 << 18, np.float32))
    other = EmulatedArray.empty(memory, (32,), 'bfloat16')
    assert np.isnan(other.to_numpy()).all()
    memory.free(array.allocation)
    with pytest.raises(KernelError, match='out of bounds'):
        run(memory, 'def k(x):\n    load_f32(x, True)', 'k', [array.address], (1, 1, 1), 32)


def test_offsets_beyond_31_bits():
    memory = Memory()
    x = memory.allocate(20 << 30, at=8 << 30, poison=False)
    far = (1 << 32) + 12345
    memory.view(x + 4 * far, (32,), np.float32)[:] = np.arange(32)
    out = EmulatedArray.empty(memory, (32,), 'float32')
    text = '''def k(x, out, far):
    t = thread()
    store_f32(out + i64(t * 4), True, load_f32(x + (i64(t) + far) * 4, True))'''
    run(memory, text, 'k', [x, out.address, far], (1, 1, 1), 32)
    assert (out.to_numpy() == np.arange(32)).all()
    run(memory, text.replace('i64(t) + far', 'i32(t + far)'), 'k', [x, out.address, far], (1, 1, 1), 32)
    assert (out.to_numpy() == 0).all()


@pytest.mark.parametrize('line', [
    'store_f32(out, True, f32(block_x()))', 'store_f32(out, True, f32(thread()))',
    'store_f32(out + i64(t * 4), True, f32(0))\nstore_f32(out + i64(t * 4 + 4), block_x() == 1, f32(1))',
    'store_f32(out + i64(t * 4), True, load_f32(out + i64(t * 4 + 4), True))',
    'store_f32(out + i64(t * 4), True, f32(0))\nload_f32(out + 4, True)',
    'store_f32(out + i64(t * 4), True, f32(0))\nload_f32(out + i64(t * 4), True)',
    'store_f64(out + i64(t * 8), t < 32, 0.0)\nload_f32(out + i64(t * 4), True)',
])
def test_threads_that_meet_in_global_memory(line):
    with pytest.raises(KernelError, match='race in global memory'):
        ran(f't = i64(block_x() * 32 + thread())\n{line}', grid=(2, 1, 1), out=np.zeros(65, np.float32))


def test_threads_that_meet_in_global_memory_peacefully():
    body = '''
t = i64(block_x() * 32 + thread())
store_f32(same, True, f32(3))
store_f16(halves + t * 2, True, load_f16(halves + t * 2, True) + f32(1))
store_f32(other + t * 8, True, load_f32(other + t * 8 + 4, True))'''
    out = ran(body, grid=(2, 1, 1), same=np.zeros(1, np.float32), halves=np.arange(64, dtype=np.float16),
              other=np.arange(128, dtype=np.float32))
    assert out['same'] == 3 and (out['halves'] == np.arange(1, 65)).all()
    assert (out['other'] == np.repeat(np.arange(1, 128, 2), 2)).all()


# Branches

@pytest.mark.parametrize(('line', 'words'), [
    ('if thread() < 4: barrier()', 'branch on a value that differs'),
    ('if block_x() < 1: barrier()', 'branch on a value that differs'),
    ('x = 1 if load_f32(out, True) > 0 else 2', 'branch on a value that differs'),
    ('x = thread() > 3 and n > 2', 'branch on a value that differs'),
    ('for i in range(thread()): barrier()', 'loop count that differs'),
    ('print(n)', "name 'print' is not defined"),
])
@pytest.mark.parametrize('blocks', [1, 2])
def test_divergence(line, words, blocks):
    with pytest.raises(KernelError, match=words):
        ran(line, grid=(blocks, 1, 1), out=np.zeros(4, np.float32), n=3)


# Shared memory

def test_shared_memory_starts_as_poison_and_is_each_blocks_own():
    body = '''
t = thread()
at = i32(shared_base() + t * 8)
store_f64(out + i64(block_x() * 64 + t) * 8, True, shared_f64(at))
put_f64(at, t < 30, f64(t + block_x() * 100))
store_f64(out + i64(block_x() * 64 + 32 + t) * 8, True, shared_f64(at))'''
    out = ran(body, grid=(2, 1, 1), shared=256, out=np.zeros((2, 2, 32)))['out']
    assert np.isnan(out[:, 0]).all() and np.isnan(out[:, 1, 30:]).all()
    assert (out[:, 1, :30] == np.arange(30) + np.array([[0], [100]])).all()


@pytest.mark.parametrize('across', ['i32(t * 16)', 'i32((t ^ (block_x() & 1)) * 16)'])
def test_wide_loads_and_narrow_stores(across):
    body = f'''
t = thread()
at = i32(shared_base() + {across})
put_f32(at, True, f32(t)); put_f32(at + 4, True, f32(t + 100))
put_b32(at + 8, True, f32_bits(f32(-t))); put_f32(at + 12, True, f32(block_x()))
q = shared_f32x4(at)
d = shared_f64x2(at)
put_f64(at + 8, True, d[0])
to = out + i64(block_x() * 32 + t) * 24
store_f32(to, True, q[0]); store_f32(to + 4, True, q[1]); store_f32(to + 8, True, q[2]); store_f32(to + 12, True, q[3])
store_f32(to + 16, True, bits_f32(shared_b32(at + 8))); store_f32(to + 20, True, shared_f32(at + 12))'''
    out = ran(body, grid=(3, 1, 1), shared=512, out=np.zeros((3, 32, 6), np.float32))['out']
    t, block = np.arange(32), np.arange(3)[:, None]
    for place, value in enumerate((t, t + 100, -t, block, t, t + 100)):
        assert (out[..., place] == value).all(), place


@pytest.mark.parametrize('width', [4, 8, 16])
def test_copies_land_when_their_group_is_waited_for(width):
    body = f'''
t = thread()
here = i32(shared_base() + t * {width})
from_ = x + i64(t) * {width}
copy{width}(here, from_, True)
commit()
copy{width}(here + {32 * width}, select(t < 7, from_, 5), t < 7)
commit()
wait(2)
store_i32(out + i64(t) * 4, True, shared_b32(here))
wait(1)
store_i32(out + 128 + i64(t) * 4, True, shared_b32(here))
store_i32(out + 256 + i64(t) * 4, True, shared_b32(here + {32 * width}))
wait(0)
store_i32(out + 384 + i64(t) * 4, True, shared_b32(here + {32 * width}))'''
    x = random.integers(0, 1 << 30, (32, width // 4)).astype(np.int32)
    out = ran(body, shared=64 * width, races=False, x=x, out=np.zeros((4, 32), np.int32))['out']
    assert (out[0] == -1).all() and (out[1] == x[:, 0]).all() and (out[2] == -1).all()
    assert (out[3] == np.where(np.arange(32) < 7, x[:, 0], 0)).all()


def test_copies_keep_every_bit():
    body = '''
t = thread()
copy16(shared_base() + t * 16, x + i64(t * 16), True)
commit()
wait(0)
d = shared_f64x2(shared_base() + t * 16)
store_f64(out + i64(t * 16), True, d[0]); store_f64(out + i64(t * 16 + 8), True, d[1])'''
    x = random.integers(0, 1 << 32, 128, dtype=np.uint32) | np.uint32(0x7f800000)          # NaNs of every kind
    out = ran(body, shared=512, x=x.view(np.float64), out=np.zeros(64))['out']
    assert (out.view(np.uint32) == x).all()


# Tensor cores: where the PTX manual says that element i of a lane's fragment lies

def a_half(lane, i):
    return lane // 4 + (8 if i in (2, 3, 6, 7) else 0), lane % 4 * 2 + i % 2 + (8 if i >= 4 else 0)


def b_half(lane, i):
    return lane % 4 * 2 + i % 2 + (8 if i >= 2 else 0), lane // 4


def a_tf32(lane, i):
    return lane // 4 + (8 if i in (1, 3) else 0), lane % 4 + (4 if i >= 2 else 0)


def b_tf32(lane, i):
    return lane % 4 + 4 * i, lane // 4


def c_half(lane, i):
    return lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2


def gather(matrices, place, elements):
    """(warp, lane, element) of matrices by (warp, row, column)."""
    return np.stack([[matrix[place(lane, i)] for lane in range(32) for i in range(elements)] for matrix in matrices]
                    ).reshape(len(matrices), 32, elements)


def scatter(fragments, place, shape):
    out = np.full((len(fragments), *shape), np.nan)
    for matrix, fragment in zip(out, fragments):
        for lane in range(32):
            for i, value in enumerate(fragment[lane]):
                matrix[place(lane, i)] = value
    return out


MMA = {
    'f16': (16, a_half, b_half, np.float16, np.uint32),
    'bf16': (16, a_half, b_half, None, np.uint32),
    'tf32': (8, a_tf32, b_tf32, np.float32, np.uint32),
}


def products(kind, a, b, c):
    """c + a b by the primitive; two warps in each of two blocks."""
    k, place_a, place_b, dtype, _ = MMA[kind]
    parts = []
    for matrices, place, count in ((a, place_a, 16 * k // 32), (b, place_b, 8 * k // 32)):
        values = gather(matrices, place, count).astype(np.float32)
        raw = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype is None else values.astype(dtype)
        parts.append(np.ascontiguousarray(raw).view(np.int32))
    body = f'''
t = i64(block_x() * 64 + thread())
p = a + t * 16
q = b + t * 8
r = c + t * 16
fa = (load_i32(p, True), load_i32(p + 4, True), load_i32(p + 8, True), load_i32(p + 12, True))
fb = (u32(load_i32(q, True)), u32(load_i32(q + 4, True)))
fc = (load_f32(r, True), load_f32(r + 4, True), load_f32(r + 8, True), load_f32(r + 12, True))
fc = mma_{kind}(fc, fa, fb)
store_f32(r, True, fc[0]); store_f32(r + 4, True, fc[1]); store_f32(r + 8, True, fc[2]); store_f32(r + 12, True, fc[3])
'''
    out = ran(body, 64, (2, 1, 1), a=parts[0], b=parts[1], c=gather(c, c_half, 4).astype(np.float32))['c']
    return scatter(out, c_half, (16, 8))


@pytest.mark.parametrize('kind', MMA)
def test_mma(kind):
    k = MMA[kind][0]
    a, b, c = (random.integers(-9, 10, (4, *shape)) for shape in ((16, k), (k, 8), (16, 8)))
    assert (products(kind, a, b, c) == c + a @ b).all()


def test_mma_tf32_reads_19_bits():
    a, b, c = np.full((4, 16, 8), 1 + 2**-11 + 2**-10), np.ones((4, 8, 8)), np.zeros((4, 16, 8))
    assert (products('tf32', a, b, c) == 8 * (1 + 2**-10)).all()


def test_mma_f64():
    a, b, c = (random.standard_normal((4, *shape)) for shape in ((8, 4), (4, 8), (8, 8)))
    body = '''
t = i64(block_x() * 64 + thread()) * 8
fc = (load_f64(c + 2 * t, True), load_f64(c + 2 * t + 8, True))
fc = mma_f64(fc, load_f64(a + t, True), load_f64(b + t, True))
store_f64(c + 2 * t, True, fc[0]); store_f64(c + 2 * t + 8, True, fc[1])'''
    out = ran(body, 64, (2, 1, 1), a=gather(a, lambda lane, i: (lane // 4, lane % 4), 1),
              b=gather(b, lambda lane, i: (lane % 4, lane // 4), 1), c=gather(c, c_half, 2))['c']
    assert np.allclose(scatter(out, c_half, (8, 8)), c + a @ b, rtol=0, atol=1e-14)


def test_mma_of_another_type():
    with pytest.raises(KernelError, match='sums of an mma must be float32; got float64'):
        ran('mma_f16((0.0, 0.0, 0.0, 0.0), (u32(0), u32(0), u32(0), u32(0)), (u32(0), u32(0)))')


@pytest.mark.parametrize('transposed', [False, True])
@pytest.mark.parametrize('which', ['', ' ^ (block_x() * 3)'])
def test_ldmatrix(transposed, which):
    """Lane 8 m + r names row r of matrix m; lane l gets elements 2 (l % 4) and the next of row l / 4."""
    name = 'ldmatrix_transposed' if transposed else 'ldmatrix'
    body = f'''
t = thread()
copy16(i32(shared_base() + t * 16), x + i64(t * 16), True)
commit()
wait(0)
barrier()
q = {name}(i32(shared_base() + ((t * 7 + 3 & 63){which}) * 16))
to = out + i64(block_x() * 64 + t) * 16
store_i32(to, True, q[0]); store_i32(to + 4, True, q[1]); store_i32(to + 8, True, q[2]); store_i32(to + 12, True, q[3])
'''
    x = random.integers(0, 1 << 16, (64, 8)).astype(np.uint16)
    out = ran(body, 64, (2, 1, 1), shared=1024, x=x, out=np.zeros((2, 64, 4), np.int32))['out']
    for block in range(2):
        for warp in range(2):
            for m in range(4):
                lanes = 32 * warp + 8 * m + np.arange(8)
                matrix = x[(lanes * 7 + 3 & 63) ^ (3 * block if which else 0)]
                matrix = matrix.T if transposed else matrix
                for lane in range(32):
                    pair = matrix[lane // 4, lane % 4 * 2:][:2].astype(np.int64)
                    assert out[block, 32 * warp + lane, m].view(np.uint32) == pair[0] | pair[1] << 16


# Bank conflicts

@pytest.mark.parametrize(('line', 'degree'), [
    ('shared_f32(s + t * 4)', 1), ('shared_f32(s + t * 8)', 2), ('shared_f32(s + t * 128)', 32),
    ('shared_f32(s + (t & 0) * 4)', 1), ('shared_f32(s + (t & 1) * 128)', 2), ('shared_f64(s + t * 8)', 1),
    ('shared_f64(s + t * 16)', 2), ('shared_f32x4(s + t * 16)', 1), ('shared_f32x4(s + t * 32)', 2),
    ('shared_f64x2(s + (t & 7) * 128)', 8), ('ldmatrix(s + t * 80)', 1), ('ldmatrix(s + t * 64)', 4),
    ('ldmatrix(s + t * 64 + ((t >> 1 & 3) ^ (t & 1)) * 16)', 1.0), ('put_f32(s + t * 132, True, f32(0))', 1),
    ('put_f32(s + t * 128, t < 5, f32(0))', 5), ('put_f64(s + t * 128 + block_x() * 8, t < 20, 0.0)', 10),
    ('copy16(s + t * 64, x, True)', 4), ('shared_f32(s + ((t ^ block_x()) & 31) * 8)', 2),
])
def test_bank_conflicts(line, degree):
    found = ran(f't = thread()\ns = shared_base()\n{line}', grid=(2, 1, 1), shared=8192, returns=True,
                x=np.zeros(4, np.float32))
    assert list(found.values()) == [degree]


# Barriers

RACES = {
    'read after write': 'put_f32(s + t * 4, True, f32(t)); {} shared_f32(s + (t ^ 32) * 4)',
    'write after read': 'shared_f32(s + (t ^ 32) * 4); {} put_f32(s + t * 4, True, f32(t))',
    'write after write': 'put_f32(s + t * 4, True, f32(t)); {} put_f32(s + (t ^ 32) * 4, True, f32(t))',
    'of wide reads': 'shared_f32x4(s + (t & 15) * 16); {} put_f32(s + t * 4, t < 3, f32(t))',
    'of some blocks': 'put_f32(s + t * 4, block_x() == 1, f32(t)); {} shared_f32(s + (t ^ 32) * 4)',
    'of blocks that differ': 'shared_f32(s + (t & 31) * 4); {} put_f32(s + (t ^ block_x() * 32) * 4, True, f32(t))',
    'after a wait': 'copy4(s + t * 4, x, True); commit(); wait(0); {} shared_f32(s + (t ^ 32) * 4)',
    'before a copy': 'shared_f32(s + (t ^ 32) * 4); {} copy4(s + t * 4, x, True)',
}


@pytest.mark.parametrize('name', RACES)
@pytest.mark.parametrize('blocks', [1, 2])
def test_missing_barrier(name, blocks):
    body = 't = thread(); s = shared_base()\n' + RACES[name]
    options = {'threads': 64, 'grid': (2 if 'block' in name else blocks, 1, 1), 'shared': 256, 'x': np.zeros(4)}
    ran(body.format('barrier();'), **options)
    with pytest.raises(KernelError, match=r'race in shared memory at byte \d+: warp . (reads|writes) what (several '
                                          r'warps|warp .) (wrote|read) since the last barrier'):
        ran(body.format(''), **options)


@pytest.mark.parametrize('line', [
    'copy4(s + t * 4, x, True); commit(); barrier(); shared_f32(s + (t ^ 32) * 4)',
    'copy4(s + t * 4, x, True); commit(); shared_f32(s + t * 4)',
    'copy4(s + t * 4, x, True); wait(0); shared_f32(s + t * 4)',
    'copy4(s + t * 4, x, True); commit(); put_f32(s + t * 4, True, f32(0))',
    'copy4(s + t * 4, x, True); commit(); barrier(); copy4(s + t * 4, x, True)',
])
def test_touching_a_copy_in_flight(line):
    with pytest.raises(KernelError, match='copies asynchronously and has not waited for'):
        ran(f't = thread(); s = shared_base()\n{line}', 64, shared=256, x=np.zeros(4))


@pytest.mark.parametrize('line', ['put_f32(s, t < 32, f32(t))', 'put_f32(s, True, f32(7))'])
def test_one_store_that_meets_itself(line):
    with pytest.raises(KernelError, match='race in shared memory'):
        ran(f't = thread(); s = shared_base()\n{line}', 64, shared=256)


# A whole kernel: y = x w^T by tiles of 32 x 16, three stages of 32 products

def pipeline():
    load = '''
{0}if loaded < steps:
{0}    copy16(i32(to + write), from0, m0 + row < m)
{0}    copy16(i32(to + write + 1024), from1, m0 + row + 16 < m)
{0}    copy16(i32(to + write + 2048), from2, n0 + row < n)
{0}    from0 += 64; from1 += 64; from2 += 64; loaded += 1; write += 3072
{0}    if write == 9216: write = i32(0)
{0}commit()'''
    lines = '''def gemm(x, w, y, m, n, k):
    t = thread(); lane = i32(t & 31); warp = i32(t >> 5); s = shared_base()
    m0 = i32(block_x() * 32); n0 = i32(block_y() * 16); row = i32(t >> 2); chunk = i32(t & 3)
    to = i32(s + row * 64 + (chunk ^ (row >> 1 & 3)) * 16)
    from0 = i64(x + (i64(m0 + row) * k + chunk * 8) * 2); from1 = i64(from0 + 32 * k)
    from2 = i64(w + (i64(n0 + row) * k + chunk * 8) * 2)
    zero = f32(0); c0 = (zero, zero, zero, zero); c1 = c0
    steps = i32(k // 32); loaded = i32(0); write = i32(0); read = i32(0)
    ra = i32(warp * 16 + (lane & 15)); rb = i32((lane & 7) + (lane >> 4) * 8)''' + 2 * load.format('    ') + '''
    for step in range(steps):
        wait(1)
        barrier()''' + load.format('        ')
    for half in (0, 2):
        lines += f'''
        a = ldmatrix(i32(s + read + ra * 64 + (({half} + (lane >> 4)) ^ (ra >> 1 & 3)) * 16))
        b = ldmatrix(i32(s + read + 2048 + rb * 64 + (({half} + (lane >> 3 & 1)) ^ (rb >> 1 & 3)) * 16))
        c0 = mma_f16(c0, a, (b[0], b[1])); c1 = mma_f16(c1, a, (b[2], b[3]))'''
    lines += '''
        read += 3072
        if read == 9216: read = i32(0)
    wait(0)'''
    for i in range(8):
        lines += f'''
    r = i32(m0 + warp * 16 + {i // 2 % 2 * 8} + (lane >> 2)); c = i32(n0 + {i // 4 * 8 + i % 2} + (lane & 3) * 2)
    store_f32(y + (i64(r) * n + c) * 4, (r < m) & (c < n), c{i // 4}[{i % 4}])'''
    return lines


def gemm(old='', new='', **options):
    """(what the kernel makes of it, what is right, bank conflicts) with `old` in its source replaced by `new`."""
    memory, (m, n, k) = Memory(), (70, 40, 160)
    x, w = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    arrays = [EmulatedArray.from_numpy(memory, x), EmulatedArray.from_numpy(memory, w),
              EmulatedArray.empty(memory, (m, n), 'float32')]
    assert old in pipeline()
    found = run(memory, pipeline().replace(old, new), 'gemm', [*(a.address for a in arrays), m, n, k], (3, 3, 1), 64,
                9216, **options)
    return arrays[2].to_numpy(), x.astype(np.float32) @ w.astype(np.float32).T, found


def test_pipeline():
    out, right, found = gemm(statistics=True)
    assert (out == right).all() and found == {'copy16': 1, 'ldmatrix': 1}


def test_pipeline_with_defects():
    with pytest.raises(KernelError, match=r'ldmatrix|has not waited for'):
        gemm('wait(1)', 'wait(2)')
    assert np.isnan(gemm('wait(1)', 'wait(2)', races=False)[0]).any()
    with pytest.raises(KernelError, match='since the last barrier'):
        gemm('        barrier()\n', '')
    with pytest.raises(KernelError, match='out of bounds'):
        gemm('n0 + row < n)', 'True)')
    with pytest.raises(KernelError, match='out of bounds'):
        gemm('(c < n)', '(c < n + 1)')
    with pytest.raises(KernelError, match='branch'):
        gemm('if loaded < steps', 'if m0 < m')
    out, right, found = gemm(' ^ (row >> 1 & 3)) * 16', ') * 16', statistics=True)
    assert found['copy16'] == 1 and not (out == right).all()
    both, right, found = gemm('>> 1 & 3)', '>> 1 & 0)', statistics=True)
    assert (both == right).all() and found['ldmatrix'] == 4
    out, right, _ = gemm('    wait(0)', "    barrier()")
    assert (out == right).all()


def test_missing_zero_fill_shows():
    """Where rows beyond the edge are not written at all, poison reaches the sums."""
    body = '''
t = thread()
put_f32(shared_base() + t * 4, t < 20, f32(1))
store_f32(out + i64(t * 4), True, shared_f32(shared_base() + t * 4))'''
    out = ran(body, shared=128, out=np.zeros(32, np.float32))['out']
    assert np.isnan(out[20:]).all() and (out[:20] == 1).all()


# Device and arrays

@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
@pytest.mark.parametrize('view', [
    lambda x: x, lambda x: x.transpose(0, 2, 1), lambda x: x[::-1, :, ::2], lambda x: x[1:1], lambda x: x[..., 3:1:-1],
    lambda x: np.broadcast_to(x[:1], (3, *x.shape[1:])),
])
def test_arrays(dtype, view):
    memory = Memory()
    values = view(np.arange(2 * 3 * 4).reshape(2, 3, 4).astype('float64' if dtype == 'float64' else 'float32'))
    array = EmulatedArray.from_numpy(memory, values.astype(dtype) if dtype == 'float16' else values, dtype)
    assert array.shape == values.shape and array.address % 2 == 0 and array.address >= ORIGIN
    assert np.array_equal(array.to_numpy(), values)
    again = EmulatedArray.from_numpy(memory, np.arange(24, dtype=np.float32).reshape(2, 3, 4), 'bfloat16').view(view)
    assert np.array_equal(again.to_numpy(), values) and again.strides == tuple(s // values.itemsize
                                                                             for s in values.strides)
    interface = array.__cuda_array_interface__
    assert interface['shape'] == values.shape and interface['data'] == (array.address, False)


class Source:
    name, arguments = 'fill', ('out', 'n')
    text = 'def fill(out, n):\n    t = thread()\n    store_i32(out + i64(t * 4), t < n, t)'


def test_device():
    device = EmulatedDevice(capability=(8, 0), multiprocessors=108)
    out = EmulatedArray.empty(device.memory, (20,), 'float32')
    handle = device.kernel(Source, 32, 0)
    device.launch(handle, (1, 1, 1), 0, [out.address, 20])
    assert (out.stored().view(np.int32) == np.arange(20)).all()
    assert device.launched == ['fill'] and device.launches == 1
    assert (device.shared_limit, EmulatedDevice(device.memory).shared_limit) == (163 * 1024, 227 * 1024)
    for wrong in (lambda: device.kernel(Source, 33, 0), lambda: device.kernel(Source, 32, 164 * 1024),
                  lambda: device.kernel(Source, 32, 82 * 1024, 2), lambda: device.launch(handle, (1, 65536, 1), 0, [0, 0]),
                  lambda: device.launch(handle, (1, 1, 1), 0, [0])):
        with pytest.raises(KernelError):
            wrong()


def test_launches_are_fast():
    """A test-suite makes thousands of them."""
    start = time.perf_counter()
    for _ in range(20):
        gemm()
    assert time.perf_counter() - start < 10
