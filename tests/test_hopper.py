"""Hopper's products without a Hopper: what they compile to, and each defect that the emulator is there to see."""
import importlib.util
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


# The kernel, and the kernel with one defect

def forward(monkeypatch, old='', new='', dtype='float16'):
    """(what it makes of seven stages, through a ring of four; what is right) with `old` in its source replaced."""
    gpu = gpus.Emulated(monkeypatch)
    x, w = random.integers(-3, 4, (2, 64, 20)), random.integers(-3, 4, (24, 64, 7))
    kernel = gpu.device.kernel

    def planted(source, *rest):
        if source.name != 'gather_hopper':
            return kernel(source, *rest)
        assert re.search(old, source.text), source.text
        text = re.sub(old, new, source.text)
        return kernel(SimpleNamespace(name=source.name, arguments=source.arguments, text=text), *rest)

    monkeypatch.setattr(gpu.device, 'kernel', planted)
    found = gpu.download(pyconv.conv1d(gpu.upload(x, dtype), gpu.upload(w, dtype), algorithm='wgmma'))
    assert gpu.device.launched[-1] == 'gather_hopper'
    windows = np.lib.stride_tricks.sliding_window_view(x, 7, 2)
    return found, gpus.rounded(np.einsum('ncpk,ock->nop', windows, w), dtype)


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_sound(monkeypatch, dtype):
    found, right = forward(monkeypatch, dtype=dtype)
    assert (found == right).all()


LOOP = r'(?s)(for s in range.*?)'
DEFECTS = {
    'source not waited for': (r'wait\(1\)\n        fence', r'wait(2)\n        fence', 'has not waited for'),
    'no fence before products': (LOOP + r'fence_async\(\)', r'\1pass', 'without fence_async'),
    'no fence after mbarriers': (r'fence_async\(\)\n    barrier', r'barrier', 'must see the mbarrier'),
    'no barrier after mbarriers': (r'fence_async\(\)\n    barrier\(\)', 'fence_async()', 'since the last barrier'),
    'no barrier': (LOOP + r'barrier\(\)\n', r'\1pass\n', 'since the last barrier'),
    'box not waited for': (LOOP + r'mbarrier_wait\(.*?\)\n', r'\1pass\n', 'has not waited for'),
    'parity stays': (r'parity = select.*', 'pass', 'has not waited for'),
    'parity wrong': (r'parity = i32\(0\)', 'parity = i32(1)', 'has not waited for'),
    'too few bytes': (r'(mbarrier_expect\(\w+, )\d+', r'\g<1>4096', r'never ends.* -4096 bytes'),
    'too many bytes': (r'(mbarrier_expect\(\w+, )\d+', r'\g<1>16384', r'never ends.* 8192 bytes'),
    'too many arrivals expected': (r'(mbarrier_init\(.*), 1,', r'\1, 2,', 'never ends.* 1 arrivals'),
    'every thread asks': (r'& \(t == 0\)', '& (t < 2)', 'more arrivals'),
    'box of no arrival': (r'mbarrier_expect\(.*\)', 'pass', 'never ends.* 1 arrivals and -8192 bytes'),
    'products not waited for': (r'wgmma_wait\(1\)', 'wgmma_wait(2)', 'multiplies and has not waited for'),
    'no order of registers': (r'wgmma_fence\(\)', 'pass', 'needs wgmma_fence'),
    'no group': (r'wgmma_commit\(\)', 'pass', 'multiplies and has not|committed products'),
    'a slot further': (r'(write = i32\()2', r'\g<1>1', 'more arrivals'),
    'sums taken early': (r'wgmma_results_64\(sums\)', 'sums', 'ends before its products'),
    'another swizzle': (r'46116862\d+', str((2 << 62) - (1 << 64) | 64 << 32), None),
    'no swizzle': (r'46116862\d+', str(8 << 32 | 1 << 16), None),
    'lines further apart': (r'46116862\d+', str(1 << 62 | 32 << 32), None),
    'beyond the memory': (r'46116862\d+', str(1 << 62 | 4096 << 32), 'out of the'),
    'chunks as they come': (r'(chunk\w*) \^ line\w* & 7', r'\1', None),
    'another stage of the weight': (r'(weight_map, i32\(stage_\w+ \* )64', r'\g<1>32', None),
    'half of a chunk': (r'(weight_map, i32\(stage_\w+ \* )64', r'\g<1>60', 'multiple of 8 columns'),
    'not a tensor map': (r'(copy_box\(.*, )weight_map', r'\1source & -64', 'must be of a tensor map'),
}


@pytest.mark.parametrize('name', DEFECTS)
def test_defect(monkeypatch, name):
    old, new, words = DEFECTS[name]
    if words is None:
        found, right = forward(monkeypatch, old, new)
        assert not (found == right).all()
    else:
        with pytest.raises(KernelError, match=words):
            forward(monkeypatch, old, new)


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


def test_only_on_hopper(monkeypatch):
    gpu = gpus.Emulated(monkeypatch, capability=(8, 0))
    x, w = (gpu.upload(np.ones((8, 64, 8)), 'float16') for _ in range(2))
    with pytest.raises(ValueError, match=r"^algorithm must be 'auto' or 'gemm' on a GPU whose capability is not 9\.0; "
                                         r"got 'wgmma' and capability 8\.0$"):
        pyconv.conv1d(x, w, algorithm='wgmma')


# What is compiled

@pytest.mark.parametrize(('dtype', 'place'), [('float16', 0), ('bfloat16', 1), ('float16', 2)])
def test_code(dtype, place):
    if importlib.util.find_spec('numba_cuda') is None:
        pytest.skip('the compiler is not installed: pip install "pyconv[cuda13]"')
    from pyconv._gpu import ptx
    element = tiles.ELEMENTS[dtype]
    way = f'wgmma_{element.suffix}'
    tile = tiles.tiles(way, element)[place]
    source = tiles.product('gather', way, element, tile, False, False)
    text = ptx.to_ptx(source, tile.threads, tile.blocks, (9, 0))
    assert len(re.findall(r'\.param \.align 64 \.b8 gather_hopper_param_0\[128\]', text)) == 1
    code = ptx.compile(source, tile.threads, tile.blocks, (9, 0), 'a')
    assert code.registers <= 65536 // (tile.threads * tile.blocks) and code.local == 0
    assert tile.blocks * (tile.shared + 1024) <= 228 << 10
    found = ptx.opcodes(code.cubin)

    def count(opcode):
        return sum(number for name, number in found.items() if name.startswith(opcode))

    assert count(f'HGMMA.64x{tile.bn}x16.F32') == 4 and count('UTMALDG.2D') >= 1 and count('FENCE.VIEW.ASYNC') >= 1
    # one arrival for the products of a stage, one wait in the loop and one behind it: the compiler did not find that
    # the sums are touched between them, else it would have put them around each product
    assert count('WARPGROUP.ARRIVE') == 1 and count('WARPGROUP.DEPBAR') == 2
    assert not count('STL') and not count('LDL')
