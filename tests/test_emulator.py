"""The emulator: every primitive against its definition."""
import math

import numpy as np
import pytest

from emulated_device import EmulatedArray, ran
from emulated_hopper import matrix_product
from emulated_memory import blocks_of
from emulator import Executor, KernelError, Memory, bf16_of_bits, run

random = np.random.default_rng(7)


def computed(expression, out, *inputs, threads=64, **options):
    """out[t] = expression of a, b, c = inputs[i][t] by loads of their types."""
    kinds = {'int32': 'i32', 'float32': 'f32'}
    lines = ['t = i64(thread() + block_x() * 64)']
    lines += [f'{a} = load_{kinds[x.dtype.name]}(in_{a} + t * {x.itemsize}, True)' for a, x in zip('abc', inputs)]
    lines += [f'store_{kinds[out.name]}(out + t * {out.itemsize}, True, {expression})']
    named = {f'in_{name}': x for name, x in zip('abc', inputs)}
    size = inputs[0].size
    return ran('\n'.join(lines), threads, (size // threads, 1, 1), out=np.zeros(size, out), **named, **options)['out']


INT, FLOAT = np.dtype(np.int32), np.dtype(np.float32)
SPECIAL = np.array([0, -0., 1, np.inf, -np.inf, np.nan, 65520, 65519, 1e-8, 3e38, 1e-45, -2.5], np.float32)


def floats(n=640):
    """Of all magnitudes, with the special ones."""
    bits = random.integers(0, 1 << 32, n, dtype=np.uint32)
    bits[:SPECIAL.size] = SPECIAL.view(np.uint32)
    bits[-2:] = 0x7fffffff, 0xffffffff                     # NaNs that a carry would turn into zeros
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
    assert [len(index) for index, _ in blocks_of((5000, 1, 1), 32, 0)] == [2048, 2048, 904]


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
    assert (computed('i32(select(a < 5, u32(-a), 7))', INT, a) == np.where(a < 5, -a, 7)).all()
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
    low = computed('i32(split_tf32(f32_bits(a))[1])', INT, x)
    assert (low[~finite] == 0).all() and (low & 0x1fff == 0).all()


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


# Shared memory

def test_what_was_read_from_shared_memory_stays():
    body = '''
at = i32(shared_base() + thread() * 4)
put_f32(at, True, f32(thread()))
first = shared_f32(at)
put_f32(at, True, f32(thread() + 100))
store_f32(out + i64(block_x() * 32 + thread()) * 4, True, first)'''
    out = ran(body, grid=(2, 1, 1), shared=128, out=np.zeros((2, 32), np.float32))['out']
    assert (out == np.arange(32)).all()


def test_shared_places_that_begin_and_end_like_neighbours():
    """Bits of the thread's number change places: its first and last threads stay where they are."""
    body = '''
to = i32(shared_base() + (thread() & 28 | (thread() & 1) << 1 | thread() >> 1 & 1) * 4)
put_i32(to, True, thread())
barrier()
store_i32(out + i64(thread()) * 4, True, shared_i32(i32(shared_base() + thread() * 4)))
store_i32(out + i64(thread() + 32) * 4, True, shared_i32(to))'''
    out = ran(body, shared=128, out=np.zeros((2, 32), np.int32))['out']
    number = np.arange(32)
    assert (out == [number & 28 | (number & 1) << 1 | number >> 1 & 1, number]).all()


def test_shared_memory_starts_as_poison_and_is_each_blocks_own():
    body = '''
t = thread()
at = i32(shared_base() + t * 8)
store_f64(out + i64(block_x() * 64 + t) * 8, True, shared_f64(at))
put_f64(select(t < 30, at, i32(-7)), t < 30, f64(t + block_x() * 100))
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
    'f16': (16, a_half, b_half, np.float16),
    'bf16': (16, a_half, b_half, None),
    'tf32': (8, a_tf32, b_tf32, np.float32),
}


def products(kind, a, b, c):
    """c + a b by the primitive; two warps in each of two blocks."""
    k, place_a, place_b, dtype = MMA[kind]
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


@pytest.mark.parametrize(('dtype', 'k'), [(np.float32, 8), (np.float32, 16), (np.float64, 4), (np.float64, 16)])
def test_a_place_in_a_matrix_changes_no_bits(dtype, k):
    """As a sample's bits must not know its place in a batch. A BLAS may sum some rows in another order."""
    a, b = (random.standard_normal((64, n, k)) for n in (16, 8))
    if dtype == np.float32:
        a, b = (x.astype(np.float16).astype(np.float64) for x in (a, b))
    wanted = matrix_product(a, b, dtype)
    for shift in range(1, 16):
        assert (matrix_product(np.roll(a, shift, 1), b, dtype) == np.roll(wanted, shift, 1)).all()
        assert (matrix_product(a, np.roll(b, shift, 1), dtype) == np.roll(wanted, shift, 2)).all()


def test_mma_tf32_reads_19_bits():
    a, b, c = np.full((4, 16, 8), 1 + 2**-11 + 2**-10), np.ones((4, 8, 8)), np.zeros((4, 16, 8))
    assert (products('tf32', a, b, c) == 8 * (1 + 2**-10)).all()


@pytest.mark.parametrize(('more_bits', 'kept'), [(None, 6), (0, 0), (1, 4), (2, 6)])
@pytest.mark.parametrize('sign', [1, -1])
def test_mma_that_cuts_off(monkeypatch, more_bits, kept, sign):
    """1 and eight products of 1.5 * 2**-24, at which float32 has no place beside it; one more bit holds 2**-24."""
    monkeypatch.setattr(Executor, 'more_bits', more_bits)
    a, b, c = np.full((4, 16, 8), 1.5 * 2**-12), np.full((4, 8, 8), sign * 2**-12), np.full((4, 16, 8), float(sign))
    assert (products('tf32', a, b, c) == sign * (1 + kept * 2**-23)).all()
    a[:], b[:], c[:] = 2**-3, sign, sign * (1 + 3 * 2**-23)     # from 2 on the last place is 2**-22
    assert (products('tf32', a, b, c) == sign * (2 + (4 if more_bits is None else 2) * 2**-23)).all()


@pytest.mark.parametrize(('shape', 'm', 'k'), [
    ('', 8, 4), ('_m16n8k16', 16, 16)])
def test_mma_f64(shape, m, k):
    """Every fourth element along k is a lane's; of a the rows come first."""
    a, b, c = (random.standard_normal((4, *shape)) for shape in ((m, k), (k, 8), (m, 8)))
    of_a, of_b, of_c = m * k // 32, k // 4, m // 4
    loads = [', '.join(f'load_f64({name} + (t * {count} + {i}) * 8, True)' for i in range(count))
             for name, count in (('c', of_c), ('a', of_a), ('b', of_b))]
    body = f'c_ = ({loads[0]})\nc_ = mma_f64{shape}(c_, ({loads[1]}), ({loads[2]}))'
    body = '\n'.join(['t = i64(block_x() * 64 + thread())', body, *(
        f'store_f64(c + (t * {of_c} + {i}) * 8, True, c_[{i}])' for i in range(of_c))])
    rows = m // 8
    out = ran(body, 64, (2, 1, 1),
              a=gather(a, lambda lane, i: (lane // 4 + i % rows * 8, lane % 4 + i // rows * 4), of_a),
              b=gather(b, lambda lane, i: (lane % 4 + i * 4, lane // 4), of_b), c=gather(c, c_half, of_c))['c']
    assert np.allclose(scatter(out, c_half, (m, 8)), c + a @ b, rtol=0, atol=1e-13)


def test_mma_of_another_type():
    with pytest.raises(KernelError, match='sums of an mma must be float32; got float64'):
        ran('mma_f16((0.0, 0.0, 0.0, 0.0), (u32(0), u32(0), u32(0), u32(0)), (u32(0), u32(0)))')
    with pytest.raises(KernelError, match='sums of an mma must be float32; got float64'):
        ran('c = mma_f64_m16n8k16((0.0, 0.0, 0.0, 0.0), (0.0,) * 8, (0.0,) * 4)\n'
            'mma_f16(c, (u32(0), u32(0), u32(0), u32(0)), (u32(0), u32(0)))')
    with pytest.raises(KernelError, match='m16n8k16 must have 4, 8 and 4 registers of c, a and b; got 4, 2 and 1'):
        ran('mma_f64_m16n8k16((0.0, 0.0, 0.0, 0.0), (0.0, 0.0), 0.0)')


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
