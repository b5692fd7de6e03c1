"""The primitives' PTX does what the emulator's primitives do: each runs the same lines of a kernel on the same memory.

All numbers of the GPU's tests come from the emulator, and what reaches the compiler is other text. A zero that is not
filled in, a rounding of another kind or a sum that begins elsewhere changes no opcode that could be counted.
"""
import importlib.util
import re
from types import SimpleNamespace

import numpy as np
import pytest

from emulated_device import ran
from emulator import KernelError
from ptx_warp import PTXError, Warp
from pyconv._gpu import launch

if importlib.util.find_spec('numba_cuda') is None:
    pytest.skip(f'the compiler is not installed: {launch.install_command()}', allow_module_level=True)

from pyconv._gpu import ptx  # noqa: E402

TURING, AMPERE, HOPPER = (7, 5), (8, 0), (9, 0)
SOME = 20  # of the 32 lanes are ok
# Ties of every kind, ranges' ends, denormals: of float32, float16, bfloat16 and tf32.
FLOATS = np.array([
    0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, -65536, 2049, 2051, -2049, 2**-24, 2**-25,
    3 * 2**-26, 2**-149, 1.00390625, 1.01171875, -1.00390625, 1 + 2**-11, 1 + 3 * 2**-11, -1 - 2**-11, 1 + 2**-12,
    np.finfo('f4').max, -np.finfo('f4').max, 2**-126, 3.3895314e38, 1 / 3, -1e-40, 1e-5], np.float32)
HALVES = FLOATS.clip(-60000, 60000).astype(np.float16)
BRAINS = (FLOATS.view(np.uint32) >> 16).astype(np.uint16)
WHOLE = {'i8': 'i1', 'u8': 'u1', 'i16': 'i2', 'u16': 'u2', 'i32': 'i4', 'u32': 'u4', 'i64': 'i8'}
WIDE = np.arange(32) * 0x0123456789abcdef - 2**62
INTEGERS = (np.arange(32) * 0x01234567 - 0x10000000).astype(np.int32)
SMALL = np.random.default_rng(0).integers(-4, 5, (2, 512))
PROLOGUE = ('ok = c > thread()', 'lane: i32 = thread()', 's = i32(shared_base() + thread() * 16)')
# Where a lane is not ok its address is none's: no access may be made.
AT = {size: tuple(f'{name} = select(ok, i64({array} + lane * {size}), i64(7))' for name, array in (
    ('from_a', 'a'), ('to_b', 'b'))) for size in (1, 2, 4, 8, 16)}


def as_ptx(lines, a, b, capability, c=SOME):
    """`b` after the lines, run as the PTX that they are compiled to."""
    text = '\n    '.join(['def kern(a, b, c):', *PROLOGUE, *lines]) + '\n'
    source = SimpleNamespace(name='kern', key=text, text=text, arguments=('a', 'b', 'c'))
    result, arrays = b.copy(), (1 << 34, 1 << 35)
    Warp(dict(zip(arrays, (a.view(np.uint8), result.view(np.uint8)))), (*arrays, c)).run(
        ptx.to_ptx(source, 32, 1, capability))
    return result


def emulated(lines, a, b, c=SOME):
    """The same by the emulator."""
    body = '\n'.join([*PROLOGUE, *lines]).replace(': i32 =', ' =')
    return ran(body, 32, (1, 1, 1), 4096, a=a, b=b.copy(), c=c)['b']


def same(wanted, found):
    """Bit for bit, but that a NaN is any NaN."""
    assert found.view(np.uint8).any()
    equal = wanted.view(f'u{wanted.itemsize}') == found.view(f'u{found.itemsize}')
    assert (equal | (is_nan(wanted) & is_nan(found))).all(), np.argwhere(~equal)


def is_nan(array):
    """Of bits of two bytes, those of bfloat16."""
    if array.dtype == np.uint16:
        return array & 0x7fff > 0x7f80
    return np.isnan(array.astype(float))


def zeros(dtype, count=32):
    return np.zeros(count, dtype)


def moved(kind, size, value='x'):
    return (*AT[size], f'x = load_{kind}(from_a, ok)', f'store_{kind}(to_b, ok, {value})')


def spread(register, how, kind):
    """A load where ok, stored everywhere: it gives zeros elsewhere."""
    size = int(kind.strip('biuf')) // 8
    return (*AT[size], f'x = {how}_{kind}(from_a, ok)',
            f'store_{register}(i64(b + lane * {int(register[1:]) // 8}), True, x)')


COPIED = ('copy{0}(s, from_a, ok)', 'commit()', 'wait(0)', 'barrier()')
WORDS = tuple(f'store_i32(i64(b + lane * 16 + {4 * i}), True, shared_b32(i32(s + {4 * i})))' for i in range(4))
CLEAR = tuple(f'put_b32(i32(s + {4 * i}), True, u32({i + 1}))' for i in range(4)) + ('barrier()',)
FILLED = AT[16] + tuple(line.format(16) for line in COPIED)


def product(kind, of_a, of_b, of_c):
    """An mma of fragments from a, 16 elements for each lane, and of sums that begin at numbers of the lane's own."""
    real, size = ('f64', 8) if kind.startswith('f64') else ('f32', 4)
    load = 'load_f64(i64(a + (lane * 16 + {}) * 8), True)' if size == 8 else (
        'u32(load_i32(i64(a + (lane * 16 + {}) * 4), True))')
    words = [load.format(i) for i in range(of_a + of_b)]
    first, second = (', '.join(some) for some in (words[:of_a], words[of_a:]))  # one is a number, more are a tuple
    sums = ', '.join(f'{real}(i32(lane * 5 + {i}))' for i in range(of_c))
    return (f'x = ({first})', f'y = ({second})', f'd = mma_{kind}(({sums}), x, y)', *(
        f'store_{real}(i64(b + (lane * {of_c} + {i}) * {size}), True, d[{i}])' for i in range(of_c)))


LOADED = [('f16', 'f32', HALVES), ('bf16', 'f32', BRAINS), ('f32', 'f32', FLOATS),
          ('f64', 'f64', FLOATS.astype('f8') / 3),
          *((name, 'i64', WIDE.view(kind)[:32]) for name, kind in WHOLE.items())]
CASES = {
    **{f'{how}_{kind}': (spread(register, how, kind), array, zeros(register[0] + str(int(register[1:]) // 8)), TURING)
       for how in ('load', 'reload') for kind, register, array in LOADED},
    **{f'load_{kind}x{count}': (
        (AT[array.itemsize * count][0], f'q = load_{kind}x{count}(from_a, ok)',
         *(f'store_f32(i64(b + (lane * {count} + {i}) * 4), True, q[{i}])' for i in range(count))),
        np.tile(array, count), zeros('f4', 32 * count), TURING)
       for kind, array, counts in (('f16', HALVES, (2, 4)), ('bf16', BRAINS, (2, 4)), ('f32', FLOATS, (2,)))
       for count in counts},
    **{f'store_{kind}': (('x = load_i64(i64(a + lane * 8), True)', AT[int(WHOLE[kind][1])][1],
                          f'store_{kind}(to_b, ok, x)'), WIDE, zeros(WHOLE[kind]), TURING)
       for kind in ('i8', 'i16', 'i64')},
    **{f'number_{kind}': (('x = load_i64(i64(a + lane * 8), True)',
                           f'store_{kind}(i64(b + lane * 8), True, number_{kind}(x))'), array, zeros(array.dtype),
                          TURING)
       for kind, array in (('i32', WIDE), ('i64', WIDE), ('f64', FLOATS.astype('f8')),
                           ('f32', FLOATS.view('u4').astype('i8')))},
    **{f'shared_{kind}': ((f'put_{kind}(i32(s), True, {kind}(-1))', f'x = load_{kind}(i64(a + lane * 8), True)',
                           f'put_{kind}(s, ok, x)', 'barrier()',
                           f'store_{kind}(i64(b + lane * 8), True, shared_{kind}(s))'), WIDE, zeros('i8'), TURING)
       for kind in ('i32', 'i64')},
    'store_f16': (('x = load_f32(i64(a + lane * 4), True)', AT[2][1], 'store_f16(to_b, ok, x)'), FLOATS, zeros('f2'),
                  TURING),
    'store_f16 of the others': (('x = load_f32(i64(a + 124 - lane * 4), True)', AT[2][1], 'store_f16(to_b, ok, x)'),
                                FLOATS, zeros('f2'), TURING),
    'store_bf16': (('x = load_f32(i64(a + lane * 4), True)', AT[2][1], 'store_bf16(to_b, ok, x)'), FLOATS, zeros('u2'),
                   TURING),
    'store_bf16 of the others': (('x = load_f32(i64(a + 124 - lane * 4), True)', AT[2][1], 'store_bf16(to_b, ok, x)'),
                                 FLOATS, zeros('u2'), TURING),
    'store_f32': (moved('f32', 4), FLOATS, zeros('f4'), TURING),
    'store_f64': (moved('f64', 8), FLOATS.astype('f8') / 3, zeros('f8'), TURING),
    'store_i32': (moved('i32', 4), INTEGERS, zeros('i4'), TURING),
    'load_b32x4': ((*AT[16], 'q = load_b32x4(from_a, ok)',
                    *(f'store_i32(i64(b + lane * 16 + {4 * i}), True, q[{i}])' for i in range(4))),
                   np.arange(1, 129, dtype='i4'), zeros('i4', 128), TURING),
    'store_b32x4': ((AT[16][1], 'x = load_i32(i64(a + lane * 4), True)',
                     'store_b32x4(to_b, ok, x, i32(x ^ 5), 7, lane)'), INTEGERS, zeros('i4', 128), TURING),
    'store_b32x2': ((AT[8][1], 'x = load_i32(i64(a + lane * 4), True)', 'store_b32x2(to_b, ok, x, i32(x ^ 5))'),
                    INTEGERS, zeros('i4', 64), TURING),
    **{f'store_f{8 * size}x2': ((AT[2 * size][1], f'x = load_f{8 * size}(i64(a + lane * {size}), True)',
                                 f'store_f{8 * size}x2(to_b, ok, x, f{8 * size}(lane))'), array,
                                zeros(array.dtype, 64), TURING)
       for size, array in ((4, FLOATS), (8, FLOATS.astype('f8') / 3))},
    **{f'pair_{kind}': (('x = load_f32(i64(a + lane * 4), True)', 'y = load_f32(i64(a + 124 - lane * 4), True)',
                         f'store_i32(i64(b + lane * 4), True, pair_{kind}(x, y))'), FLOATS, zeros(held, 64), AMPERE)
       for kind, held in (('f16', 'f2'), ('bf16', 'u2'))},
    'neighbour': (('x = load_i32(i64(a + lane * 4), True)', 'store_i32(i64(b + lane * 4), True, neighbour(x))'),
                  INTEGERS, zeros('i4'), TURING),
    'fma': (('x = load_f32(i64(a + lane * 4), True)', 'store_f32(i64(b + lane * 4), True, fma(x, x, f32(-1)))'),
            np.float32(1) + np.arange(32, dtype='f4') * np.float32(2**-13), zeros('f4'), TURING),
    'fma f64': (('x = load_f64(i64(a + lane * 8), True)', 'store_f64(i64(b + lane * 8), True, fma(x, x, f64(-1)))'),
                np.arange(32.0), zeros('f8'), TURING),
    'select divide casts': (
        ('x = load_i32(i64(a + lane * 4), True)', 'y: i32 = select(ok, divide(i32(x & 0x7fffffff), 2863311531, 33), x)',
         'store_i32(i64(b + lane * 4), True, i32(y + u32(block_x() + block_y() + block_z()) + i64(c)))'),
        INTEGERS, zeros('i4'), TURING),
    'along': (('x = load_i32(i64(a + lane * 4), True)',
               'store_i64(i64(b + lane * 8), True, along(i64(i64(lane) << 40), x, i32(x - c)))'),
              INTEGERS, zeros('i8'), TURING),
    'round_tf32': (('x = load_i32(i64(a + lane * 4), True)',
                    'store_f32(i64(b + lane * 4), True, bits_f32(round_tf32(u32(x))))'), FLOATS, zeros('f4'), AMPERE),
    'split_tf32': (('x = f32_bits(load_f32(i64(a + lane * 4), True))', 'high, low = split_tf32(x)',
                    'store_f32(i64(b + lane * 8), True, bits_f32(high))',
                    'store_f32(i64(b + lane * 8 + 4), True, bits_f32(low))'), FLOATS, zeros('f4', 64), AMPERE),
    'shared_f32': (('put_f32(i32(s), True, f32(-1))', 'put_f32(s, ok, load_f32(i64(a + lane * 4), True))', 'barrier()',
                    'store_f32(i64(b + lane * 4), True, shared_f32(s))'), FLOATS, zeros('f4'), TURING),
    'shared_f64': (('put_f64(i32(s), True, f64(-1))', 'put_f64(s, ok, load_f64(i64(a + lane * 8), True))', 'barrier()',
                    'store_f64(i64(b + lane * 8), True, shared_f64(s))'), FLOATS.astype('f8'), zeros('f8'), TURING),
    **{f'copy{size}': ((*CLEAR, *AT[size], *(line.format(size) for line in COPIED), *WORDS),
                       (np.arange(1, 129) * 0x01010101 % 2**31).astype('i4'), zeros('i4', 128), TURING)
       for size in (4, 8, 16)},
    'the wait is for all but the last': (
        (*CLEAR, AT[16][0], 'copy16(s, from_a, ok)', 'commit()', 'commit()', 'wait(1)', 'barrier()', *WORDS),
        (np.arange(1, 129) * 3).astype('i4'), zeros('i4', 128), AMPERE),
    'shared_f32x4': ((*FILLED, 'q = shared_f32x4(i32(s ^ 16))',
                      *(f'store_f32(i64(b + lane * 16 + {4 * i}), True, q[{i}])' for i in range(4))),
                     np.arange(128, dtype='f4'), zeros('f4', 128), TURING),
    'shared_f64x2': ((*FILLED, 'q = shared_f64x2(i32(s ^ 16))',
                      *(f'store_f64(i64(b + lane * 16 + {8 * i}), True, q[{i}])' for i in range(2))),
                     np.arange(64, dtype='f8'), zeros('f8', 64), TURING),
    **{name: ((*FILLED, f'q = {name}(i32(s ^ 48))',
               *(f'store_i32(i64(b + lane * 16 + {4 * i}), True, q[{i}])' for i in range(4))),
              np.arange(1, 257).astype('u2').view('i4'), zeros('i4', 128), TURING)
       for name in ('ldmatrix', 'ldmatrix_transposed')},
    'mma_f16': (product('f16', 4, 2, 4), SMALL.astype('f2').ravel().view('i4'), zeros('f4', 128), AMPERE),
    'mma_bf16': (product('bf16', 4, 2, 4), (SMALL.astype('f4').view('u4') >> 16).astype('u2').ravel().view('i4'),
                 zeros('f4', 128), AMPERE),
    'mma_tf32': (product('tf32', 4, 2, 4), SMALL[0].astype('f4').view('i4'), zeros('f4', 128), AMPERE),
    'mma_f64': (product('f64', 1, 1, 2), SMALL[0].astype('f8'), zeros('f8', 64), AMPERE),
    'mma_f64_m16n8k16': (product('f64_m16n8k16', 8, 4, 4), SMALL[0].astype('f8'), zeros('f8', 128), HOPPER),
}
CAPABILITIES = pytest.mark.parametrize('capability', [TURING, AMPERE, HOPPER], ids='sm_{0[0]}{0[1]}'.format)


@CAPABILITIES
@pytest.mark.parametrize('name', CASES)
def test_primitive(name, capability):
    lines, a, b, since = CASES[name]
    if capability >= since:
        c = 32 if lines[:len(FILLED)] == FILLED else SOME
        same(emulated(lines, a, b, c), as_ptx(lines, a, b, capability, c))


@pytest.mark.parametrize(('kind', 'array'), [('f16', HALVES), ('bf16', BRAINS)])
def test_copies_that_widen(kind, array):
    """Of chips before sm_80 alone: every number, those that are not finite too, and zeros where a lane is not ok."""
    lines = (*CLEAR, *AT[8], f'copy16_{kind}(s, from_a, ok)', *COPIED[1:], *WORDS)
    a, b = np.tile(array, 4), zeros('f4', 128)
    same(emulated(lines, a, b), as_ptx(lines, a, b, TURING))


@pytest.mark.parametrize('lines', [
    ('x = load_f32(i64(a + 128 + lane * 4), True)', 'store_f32(i64(b + lane * 4), True, x)'),
    ('store_f32(i64(b + 4 + lane * 4), True, f32(1))',), ('store_f32(i64(b + 2 + lane * 4), ok, f32(1))',)])
def test_what_the_warp_refuses(lines):
    a, b = FLOATS, zeros('f4')
    for run in (lambda: ran('\n'.join(PROLOGUE + lines).replace(': i32', ''), a=a, b=b, c=SOME),
                lambda: as_ptx(lines, a, b, HOPPER)):
        with pytest.raises((KernelError, PTXError)):
            run()


def test_every_primitive_is_run():
    words = set(re.findall(r'\w+', '\n'.join([*PROLOGUE, *(line for lines, *_ in CASES.values() for line in lines)])))
    assert set(ptx.PRIMITIVES) - words == {'let_next_begin'}, 'of which machine code alone shows anything'


# The texts that nothing here runs, by the ISA, with the arguments of the primitive as $0, $1, ... A boolean comes last
# and guards; the sums of a wgmma are added to (scale-d true, its scales 1), and both operands are transposed or none.
GUARD = r'setp.ne.s32 p, ${}, 0; @p '
HOPPERS = {
    'fence_async()': 'fence.proxy.async.shared::cta;',
    'mbarrier_init(i32($0), i32($1), $2 != 0)': GUARD.format(2) + 'mbarrier.init.shared::cta.b64 [$0], $1;',
    'mbarrier_expect(i32($0), i32($1), $2 != 0)':
        GUARD.format(2) + 'mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;',
    'mbarrier_wait(i32($0), i32($1))':
        'again: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra.uni again;',
    'copy_box(i32($0), $1, i32($2), i32($3), i32($4), $5 != 0)':
        GUARD.format(5) + 'cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes '
                          '[$0], [$1, {$2, $3}], [$4];',
    'wgmma_fence()': 'wgmma.fence.sync.aligned;', 'wgmma_commit()': 'wgmma.commit_group.sync.aligned;',
    'wgmma_wait(1)': 'wgmma.wait_group.sync.aligned 1;',
}


def traced(call, count=6):
    """The text of a primitive's own lines, its registers named by the kernel's arguments that they hold."""
    names = [f'p{i}' for i in range(count)]
    text = f'def kern({", ".join(names)}):\n    {call.replace("$", "p")}\n    store_i32(p0, p1 > 0, 0)\n'
    made = ptx.to_ptx(SimpleNamespace(name='kern', key=text, text=text, arguments=names), 128, 1, HOPPER)
    held = {register: f'${i}' for register, i in re.findall(r'ld\.param\.u\d+\s+(%\w+), \[kern_param_(\d)', made)}
    copies = r'(?:cvt\.u32\.u64|setp\.ne\.s64|selp\.u32)\s+(%\w+), (?:1, 0, )?(%\w+)'
    for target, source in re.findall(copies, made):
        held[target] = held.get(source, source)
    own = re.findall(r'// begin inline asm\s+(.*?)\s*// end inline asm', made, re.S)[0]
    return re.sub(r'%\w+', lambda match: held.get(match[0], match[0]), own)


@pytest.mark.parametrize('call', HOPPERS)
def test_hopper_s_texts(call):
    assert re.sub(r'^\{ (\.reg \.pred p; )?|\s*\}$', '', traced(call)) == HOPPERS[call]


@pytest.mark.parametrize(('kind', 'depth', 'across', 'turned'), [
    ('f16', 16, '', ', 0, 0'), ('f16', 16, '_across', ', 1, 1'), ('bf16', 16, '', ', 0, 0'),
    ('bf16', 16, '_across', ', 1, 1'), ('tf32', 8, '', '')])
def test_products_of_a_warpgroup(kind, depth, across, turned):
    """64 x 64: 32 sums of each thread, in and out in the same registers."""
    call = f'd = wgmma_{kind}_64{across}(({", ".join(f"f32(p{i} + {i})" for i in range(4)) + ", f32(1)" * 28}), p4, p5)'
    text = traced(call)
    sums = re.fullmatch(
        r'\{ \.reg \.pred p; setp\.eq\.u32 p, 0, 0; wgmma\.mma_async\.sync\.aligned\.m64n64'
        rf'k{depth}\.f32\.{kind}\.{kind} \{{(.*)\}}, \$4, \$5, p, 1, 1{turned}; \}}', text)[1].split(', ')
    assert len(set(sums)) == 32
