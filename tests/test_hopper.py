"""Hopper's products without a Hopper: each defect that the emulator is there to see."""
import re
from types import SimpleNamespace

import numpy as np
import pytest

import gpus
import pyconv
from emulated_device import ran
from emulated_hopper import matrix_places, turned
from emulator import KernelError
from pyconv._gpu import tiles

pytestmark = pytest.mark.usefixtures('tiles_alone')
random = np.random.default_rng(11)


# The kernels, and a kernel with one defect

def of_map(gpu, map, dtype):
    """(what a map makes of seven stages, through a ring of four, of tf32 fourteen; what is right)"""
    if map == 'forward':
        x, w = random.integers(-3, 4, (2, 64, 20)), random.integers(-3, 4, (24, 64, 7))
        found = pyconv.conv1d(
            gpu.upload(x, dtype), gpu.upload(w, dtype), algorithm='wgmma', allow_tf32=dtype == 'float32')
        right = np.einsum('ncpk,ock->nop', np.lib.stride_tricks.sliding_window_view(x, 7, 2), w)
    else:               # two warpgroups have rows, three panels of columns are not zeros, and the last stage is half
        x, y = random.integers(-3, 4, (30, 24, 18)), random.integers(-3, 4, (30, 80, 14))
        found = pyconv.conv1d_weight(
            gpu.upload(x, dtype), (80, 24, 7), gpu.upload(y, dtype), padding=1, algorithm='wgmma')
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
        right = np.einsum('ncpk,nop->ock', np.lib.stride_tricks.sliding_window_view(padded, 7, 2), y)
    return gpu.download(found), gpus.rounded(right, dtype)


def made(monkeypatch, map, old='', new='', dtype='float16'):
    """As `of_map`, with `old` in the kernel's source replaced."""
    gpu = gpus.Emulated(monkeypatch)
    kernel, name = gpu.device.kernel, 'gather_hopper' if map == 'forward' else 'correlate'

    def planted(source, *rest):
        if source.name != name:
            return kernel(source, *rest)
        assert re.search(old, source.text), source.text
        text = re.sub(old, new, source.text)
        return kernel(SimpleNamespace(name=source.name, arguments=source.arguments, text=text), *rest)

    monkeypatch.setattr(gpu.device, 'kernel', planted)
    found = of_map(gpu, map, dtype)
    assert name in gpu.device.launched
    return found


MAPS = pytest.mark.parametrize('map', ['forward', 'grad_weight'])


@pytest.mark.parametrize(('map', 'dtype'), [
    ('forward', 'float16'), ('forward', 'bfloat16'), ('forward', 'float32'), ('grad_weight', 'float16'),
    ('grad_weight', 'bfloat16')])
def test_sound(monkeypatch, map, dtype):
    found, right = made(monkeypatch, map, dtype=dtype)
    assert (found == right).all()


LOOP = r'(?s)(for s\w* in range.*?)'
DESCRIPTOR = r'46116862\d{11}'
BOTH = {
    'copies not waited for': (r'wait\(2\)\n        fence', r'wait(3)\n        fence', 'has not waited for'),
    'no fence before products': (LOOP + r'fence_async\(\)', r'\1pass', 'without fence_async'),
    'no barrier': (LOOP + r'barrier\(\)\n', r'\1pass\n', 'since the last barrier'),
    'no barrier behind products': (r'(wgmma_wait\(1\)\n +)barrier\(\)', r'\1pass', 'since the last barrier|multiplies'),
    'products not waited for': (r'wgmma_wait\(1\)', 'wgmma_wait(2)', 'multiplies and has not waited for'),
    'no order of registers': (r'wgmma_fence\(\)', 'pass', 'needs wgmma_fence'),
    'no group': (r'wgmma_commit\(\)', 'pass', 'multiplies and has not|committed products'),
    'sums taken early': (r'wgmma_results_\d+\((sums\w*)\)', r'\1', 'ends before its products'),
    'base of another pattern': (DESCRIPTOR, str(1 << 62 | 1 << 49 | 64 << 32), 'base offset'),
    'a bit too many': (DESCRIPTOR, str(1 << 62 | 1 << 46 | 64 << 32), 'mean nothing'),
    'beyond the memory': (DESCRIPTOR, str(1 << 62 | 512 << 16 | 0x3f80 << 32), 'out of the'),
    'rows of the other warpgroup': (r'\(warp >> 2\)', '(1 - (warp >> 2))', None),
    'chunks as they come': (r'(chunk\w*) \^ (?:line\w* & 7|\(line\w* >> 0 & 7\) << 0)', r'\1', None),
}
DEFECTS = {
    'no fence after mbarriers': (r'fence_async\(\)\n    barrier', r'barrier', 'must see the mbarrier'),
    'no barrier after mbarriers': (r'fence_async\(\)\n    barrier\(\)', 'fence_async()', 'since the last barrier'),
    'box not waited for': (LOOP + r'mbarrier_wait\(.*?\)\n', r'\1pass\n', 'has not waited for'),
    'parity stays': (r'parity\w* = select.*', 'pass', 'has not waited for'),
    'parity wrong': (r'(parity\w* = i32)\(0\)', r'\1(1)', 'has not waited for'),
    'too few bytes': (r'(mbarrier_expect\(\w+, )\d+', r'\g<1>4096', r'never ends.* -4096 bytes'),
    'too many bytes': (r'(mbarrier_expect\(\w+, )\d+', r'\g<1>16384', r'never ends.* 8192 bytes'),
    'too many arrivals expected': (r'(mbarrier_init\(.*), 1,', r'\1, 2,', 'never ends.* 1 arrivals'),
    'every thread asks': (r'& \(t == 0\)', '& (t < 2)', 'more arrivals'),
    'box of no arrival': (r'mbarrier_expect\(.*\)', 'pass', 'never ends.* 1 arrivals and -8192 bytes'),
    'a slot further': (r'(write\w* = i32\()3', r'\g<1>2', 'more arrivals'),
    'another swizzle': (DESCRIPTOR, str((2 << 62) - (1 << 64) | 64 << 32), 'start with its pattern'),
    'no swizzle': (DESCRIPTOR, str(8 << 32 | 64 << 16), None),
    'lines nearer': (DESCRIPTOR, str(1 << 62 | 32 << 32), 'two elements in one place'),
    'another stage of the weight': (r'(weight_map, i32\(stage_\w+ \* )64', r'\g<1>32', None),
    'half of a chunk': (r'(weight_map, i32\(stage_\w+ \* )64', r'\g<1>60', 'multiple of 8 columns'),
    'not a tensor map': (r'(copy_box\(.*, )weight_map', r'\1source & -64', 'must be of a tensor map'),
}
CORRELATE = {
    'a slot further': (r'(write\w* = i32\()3', r'\g<1>2', 'has not waited for'),
    'lines along the reduction': (r'_across\(', '(', 'copies asynchronously'),
    'offsets have changed places': (DESCRIPTOR, str(1 << 62 | 64 << 16 | 512 << 32), None),
    'another swizzle': (DESCRIPTOR, str((3 << 62) - (1 << 64) | 16 << 16 | 256 << 32), None),
    'panels nearer': (DESCRIPTOR, str(1 << 62 | 256 << 16 | 64 << 32), None),
    'panels in one place': (DESCRIPTOR, str(1 << 62 | 1 << 16 | 64 << 32), 'two elements in one place'),
    'every other eight lines': (DESCRIPTOR, str(1 << 62 | 512 << 16 | 128 << 32), 'copies asynchronously'),
    'products along the lines': (r'(i64\([ab]_in\d+ \+) 128\)', r'\1 2)', 'start with its pattern'),
    'a product twice': (r'(i64\([ab]_in\d+ \+) 128\)', r'\1 0)', None),
    'panels copied elsewhere': (r'( \+) 8192 (\+ line)', r'\1 16384 \2', 'wrote|copies asynchronously'),
    'a panel of the tap before': (r'off_x_1\)', 'off_x_0)', None),
    'positions beyond the last': (r' & \(p_in\d+ < end\) & inside', ' & inside', None),
    'padding is read': (r' & inside_in\d+\)', ')', None),
}
CASES = [(map, name) for map, own in (('forward', DEFECTS), ('grad_weight', CORRELATE)) for name in BOTH | own]


@pytest.mark.parametrize(('map', 'name'), CASES)
def test_defect(monkeypatch, map, name):
    old, new, words = (BOTH | (DEFECTS if map == 'forward' else CORRELATE))[name]
    if words is None:
        found, right = made(monkeypatch, map, old, new)
        assert not (found == right).all()
    else:
        with pytest.raises(KernelError, match=words):
            made(monkeypatch, map, old, new)


@pytest.mark.parametrize(('line', 'words'), [
    ('mbarrier_wait(s, 0)', 'no mbarrier was made there'),
    ('mbarrier_init(i32(s + t * 8), 1, t == 0)', 'the same for all threads'),
    ('mbarrier_init(s, 1, True)', 'made by one thread'),
    ('mbarrier_init(s, 1, t == 0); barrier(); mbarrier_wait(s, 0)', 'never ends'),
    ('mbarrier_init(s, 1, t == 0); barrier(); mbarrier_wait(s, 2)', 'parity must be 0 or 1'),
    ('wgmma_fence(); wgmma_f16_64((f32(0),) , i64(0), i64(0))', 'whole warpgroups and 32 sums'),
    ('wgmma_fence(); wgmma_f16_64(' + '(f32(0), f32(0)) + ' * 15 + '(f32(0), f32(0)), i64(t), i64(0))',
     'the same for all threads of a warpgroup'),
    ('wgmma_fence(); wgmma_f16_64(' + '(f64(0), f32(0)) + ' * 15 + '(f32(0), f32(0)), i64(64), i64(64))',
     'sums of a wgmma must be float32'),
])
def test_wrong_uses(line, words):
    with pytest.raises(KernelError, match=words):
        ran(f't = thread(); s = shared_base()\n{line}', 128, shared=4096, x=np.zeros(4))


def test_layouts_of_matrices():
    """Of the four swizzles; lines of 16 bytes have chunks at the leading distance."""
    start = 2048
    for mode, width in ((1, 128), (2, 64), (3, 32)):
        descriptor = start >> 4 | (8 * width >> 4) << 32 | (mode if mode < 2 else mode - 4) << 62
        places = matrix_places(descriptor, 64)
        lines = start + np.arange(64)[:, None] * width + np.arange(2) * 16
        assert sorted(places.ravel()) == sorted((lines ^ ((lines >> 7 & width // 16 - 1) << 4)).ravel())
    assert (matrix_places(start >> 4 | 64 << 32 | 1 << 62, 64) == turned(
        start + np.arange(64)[:, None] * 128 + np.arange(2) * 16)).all()
    plain = matrix_places(start >> 4 | (256 >> 4) << 32 | (4096 >> 4) << 16, 16)
    assert plain[9].tolist() == [start + 256 + 16, start + 256 + 16 + 4096]


# Of matrices across the reduction: the swizzle's number and the bits that it turns; elements from a chunk to the next
# within a panel, which has so many, from a panel to the next, from a line to the next, from eight lines to the next.
# The first three are the examples of the PTX ISA (9.7.16.5.1.2.1.3, "MN-Major ... bf16 type"), the last two what
# CUTLASS (mma_traits_sm90_gmma.hpp) says of 128 bytes: ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO)), T = 8.
ACROSS = [(0, 0, (8, 1), 64, 8, 128), (3, 1, (8, 2), 128, 16, 256), (2, 3, (8, 4), 256, 32, 512),
          (1, 7, (8, 8), 512, 64, 1024), (1, 7, (8, 8), 4096, 64, 512)]


@pytest.mark.parametrize(('mode', 'mask', 'chunks', 'panel', 'line', 'eight'), ACROSS)
def test_layouts_of_matrices_across(mode, mask, chunks, panel, line, eight):
    start, (step, width) = 2048, chunks
    leading, stride = (eight, panel) if mode == 0 else (panel, eight)
    descriptor = start >> 4 | leading // 8 << 16 | stride // 8 << 32 | (mode if mode < 2 else mode - 4) << 62
    for k, chunk in np.ndindex(16, 2 * width):
        element = chunk % width * step + chunk // width * panel + k % 8 * line + k // 8 * eight
        place = start + 2 * element
        wanted = place ^ ((place >> 7 & mask) << 4)
        assert matrix_places(descriptor, 16 * width, across=True)[k, chunk] == wanted


@pytest.mark.parametrize(('descriptor', 'words'), [
    (1 << 62 | 1 << 49 | 64 << 32 | 512 << 16, 'the base offset of a descriptor must be 0'),
    *((1 << 62 | 1 << bit | 64 << 32 | 512 << 16, 'bits that mean nothing') for bit in (14, 15, 30, 46, 48, 52, 61)),
    (1 << 62 | 64 << 32 | 512 << 16 | 2, 'start with its pattern; got 0x20'),
    (1 << 62 | 64 << 32 | 512 << 16 | 8, 'start with its pattern; got 0x80'),
    (1 << 62 | 64 << 32 | 1 << 16, 'two elements in one place'),
    (1 << 62 | 0 << 32 | 512 << 16, 'two elements in one place'),
])
def test_invalid_descriptors(descriptor, words):
    assert matrix_places(1 << 62 | 64 << 32 | 512 << 16, 128, across=True).size == 16 * 16
    with pytest.raises(KernelError, match=words):
        matrix_places(descriptor, 128, across=True)


def test_only_on_hopper(monkeypatch):
    gpu = gpus.Emulated(monkeypatch, capability=(8, 0))
    x, w = (gpu.upload(np.ones((8, 64, 8)), 'float16') for _ in range(2))
    with pytest.raises(ValueError, match=r"^algorithm must be 'auto' or 'gemm' on a GPU whose capability is not 9\.0; "
                                         r"got 'wgmma' and capability 8\.0$"):
        pyconv.conv1d(x, w, algorithm='wgmma')
    x, w = (gpu.upload(np.ones((8, 64, 8)), 'float32') for _ in range(2))
    with pytest.raises(ValueError, match=r"^algorithm must be 'auto', 'gemm' or 'tf32x3' on a GPU whose capability is "
                                         r"not 9\.0; got 'wgmma' and capability 8\.0$"):
        pyconv.conv1d(x, w, algorithm='wgmma', allow_tf32=True)


@pytest.mark.parametrize(('rows', 'channels', 'kernel', 'stride', 'takes'), [
    (128, 64, 3, 1, (True, True)), (128, 56, 3, 1, (False, False)), (112, 64, 3, 1, (False, False)),
    (576, 512, 1, 1, (True, True)), (572, 512, 1, 1, (False, False)), (576, 512, 1, 2, (True, True)),
    (256, 220, 3, 2, (True, False)), (252, 228, 3, 2, (False, True))])
def test_when_tf32_is_left_to_warpgroups(monkeypatch, rows, channels, kernel, stride, takes):
    """Forward and for inputs, of real numbers, where what is copied is used often, and each phase of a stride sums
    much; never for weights."""
    gpu = gpus.Emulated(monkeypatch)
    asked, gpu.device.launch = [], lambda *_: None
    gpu.device.kernel = lambda source, *_: asked.append((source.name, "'ROUNDED': True" in source.key))
    size, small = (5, 5), (5 // stride + (stride > 1), 5 // stride + (stride > 1))
    x, y = gpu.empty((1, channels, *size), 'float32'), gpu.empty((1, rows, *small), 'float32')
    w, turned = (gpu.empty((*sizes, kernel, kernel), 'float32') for sizes in ((rows, channels), (channels, rows)))
    grad, steps = gpu.empty((1, channels, *small), 'float32'), (stride, kernel // 2)
    for call, wanted in ((lambda: pyconv.conv2d(x, w, None, *steps, allow_tf32=True), takes[0]),
                         (lambda: pyconv.conv2d_input(
                             (1, rows, *size), turned, grad, *steps, allow_tf32=True), takes[1]),
                         (lambda: pyconv.conv2d_weight(x, w.shape, y, *steps, allow_tf32=True), False),
                         (lambda: pyconv.conv2d(x, w, None, *steps), False)):
        asked.clear()
        call()
        rounds = {rounded for name, rounded in asked if name in ('pack', 'pack_weight')}
        assert rounds == {wanted} and ('gather_hopper' in dict(asked)) == wanted


def test_float32_has_warpgroups_but_as_tf32(monkeypatch):
    gpu = gpus.Emulated(monkeypatch)
    x, w = (gpu.upload(np.ones((8, 64, 8)), 'float32') for _ in range(2))
    for allowed in (False, np.False_):
        with pytest.raises(ValueError, match="^algorithm must be one of 'auto', 'gemm', 'tf32x3' for float32 on a GPU; "
                                             "got 'wgmma'$"):
            pyconv.conv1d(x, w, algorithm='wgmma', allow_tf32=allowed)


@pytest.mark.parametrize(('rows', 'columns', 'chosen'), [
    (64, 576, (64, 256)), (64, 129, (64, 256)), (64, 128, (128, 128)), (129, 65, (128, 128)), (512, 64, (128, 64)),
    (256, 2304, (128, 256)), (8, 8, (128, 64))])
def test_few_rows_of_grad_weight_take_low_tiles(rows, columns, chosen):
    """A wide tile copies less for each product."""
    tile = tiles.tile_of('wgmma_f16', tiles.ELEMENTS['float16'], (rows, columns), tiles.NOMINAL_BLOCKS, 'correlate')
    assert (tile.bm, tile.bn) == chosen
