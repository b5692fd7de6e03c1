"""The emulator: every defect of a kernel that it is there to see, planted once."""
import numpy as np
import pytest

from emulated_device import EmulatedArray, ran
from emulator import KernelError, Memory, run

random = np.random.default_rng(7)


# Global memory

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
    address, view = array.address, array.view(lambda x: x[5:])
    del array
    run(memory, 'def k(x):\n    load_f32(x, True)', 'k', [address], (1, 1, 1), 32)
    del view
    with pytest.raises(KernelError, match='out of bounds'):
        run(memory, 'def k(x):\n    load_f32(x, True)', 'k', [address], (1, 1, 1), 32)


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
    'store_f32(out, t == 5, f32(5))\nstore_f32(out, t == 37, f32(37))',
    'load_f32(out + i64(t >> 1) * 4, True)\nstore_f32(out + i64(t >> 1) * 4, (t & 1) == 1, f32(5))',
])
def test_threads_that_meet_in_global_memory(line):
    with pytest.raises(KernelError, match='race in global memory'):
        ran(f't = i64(block_x() * 32 + thread())\n{line}', grid=(2, 1, 1), out=np.zeros(65, np.float32))


def test_threads_that_meet_in_global_memory_peacefully():
    body = '''
t = i64(block_x() * 32 + thread())
store_f32(same, True, f32(3))
store_f32(same, t == 17, f32(3))
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
    ('x = 1 if load_f32(out + (thread() & 3) * 4, True) > 0 else 2', 'branch on a value that differs'),
    ('x = thread() > 3 and n > 2', 'branch on a value that differs'),
    ('for i in range(thread()): barrier()', 'loop count that differs'),
    ('print(n)', "name 'print' is not defined"),
])
@pytest.mark.parametrize('blocks', [1, 2])
def test_divergence(line, words, blocks):
    with pytest.raises(KernelError, match=words):
        ran(line, grid=(blocks, 1, 1), out=np.zeros(4, np.float32), n=3)


# Bank conflicts

@pytest.mark.parametrize(('line', 'degree'), [
    ('shared_f32(s + t * 4)', 1), ('shared_f32(s + t * 8)', 2), ('shared_f32(s + t * 128)', 32),
    ('shared_f32(s + (t & 0) * 4)', 1), ('shared_f32(s + (t & 1) * 128)', 2), ('shared_f64(s + t * 8)', 1),
    ('shared_f64(s + t * 16)', 2), ('shared_f32x4(s + t * 16)', 1), ('shared_f32x4(s + t * 32)', 2),
    ('shared_f64x2(s + (t & 7) * 128)', 8), ('ldmatrix(s + t * 80)', 1), ('ldmatrix(s + t * 64)', 4),
    ('ldmatrix(s + t * 64 + ((t >> 1 & 3) ^ (t & 1)) * 16)', 1.0), ('put_f32(s + t * 132, True, f32(0))', 1),
    ('put_f32(s + t * 128, t < 5, f32(0))', 5), ('put_f64(s + t * 128 + block_x() * 8, t < 20, 0.0)', 10),
    ('put_f64(s + t * 8, t < 3, 0.0)', 1), ('copy16(s + t * 64, x, True)', 4),
    ('shared_f32(s + ((t ^ block_x()) & 31) * 8)', 2),
    ('shared_f32(s + t * 128); shared_f32(s + (t ^ block_x()) * 4)', 16.5),
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
    'of several warps': 'shared_f32(s + (t & 31) * 4); {} put_f32(s + (t & 31) * 4, t > 31, f32(t))',
    'of some blocks': 'put_f32(s + t * 4, block_x() == 1, f32(t)); {} shared_f32(s + (t ^ 32) * 4)',
    'of blocks that differ': 'shared_f32(s + t * 4); {} put_f32(s + (t ^ block_x() * 32) * 4, True, f32(t))',
    'of blocks that read': 'shared_f32(s + t * 4); shared_f32(s + (t & 0) + block_x() * 0); {} '
                           'put_f32(s + (t ^ block_x() * 32) * 4, (t ^ block_x() * 32) > 0, f32(t))',
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
