"""What packing kernels write, bit for bit, and the flags that they set, of every dtype, layout and place in a word."""
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from gpus import Emulated
from pyconv._gpu import limits, operands, padding, program, tiles
from pyconv._gpu.launches import Program, Ref
from pyconv._gpu.layouts import Layout
from pyconv._gpu.operands import Flags, Operand, Weight
from pyconv._gpu.padding import Edge

DTYPES = 'float16', 'bfloat16', 'float32', 'float64', 'complex64', 'complex128'
WORDS = {'float16': 'u2', 'bfloat16': 'u2', 'float32': 'u4', 'float64': 'u8', 'complex64': 'u4', 'complex128': 'u8'}
# bits of the least number whose double is not finite (of float16, which float32 holds, of infinity), NaN, -infinity
SPOILED = {2: (0x7c00, 0x7e00, 0xfc00), 4: (0x7f000000, 0x7fc00000, 0xff800000, 0xff000000),
           8: (0x7fe << 52, 0x7ff8 << 48, 0xfff << 52, 0xffe << 52)}
LARGEST = {2: 0x7bff, 4: 0x7effffff, 8: (0x7fe << 52) - 1}  # below it
BRAIN = (0x7f00, 0x7fc0, 0xff80, 0xff00), 0x7eff
every_dtype = pytest.mark.parametrize('dtype', DTYPES)


@pytest.fixture
def emulated(monkeypatch):
    return Emulated(monkeypatch)


def spoiled_bits(dtype):
    size = np.dtype(WORDS[dtype]).itemsize
    return BRAIN if dtype == 'bfloat16' else (SPOILED[size], LARGEST[size])


def numbers(shape, dtype):
    """Parts of finite numbers as bits, no two alike that are neighbours, negative zeros among them: (*shape, parts)."""
    element = tiles.ELEMENTS[dtype]
    word = np.dtype(WORDS[dtype])
    count = np.arange(prod(shape) * element.parts, dtype=np.uint64)
    top = np.uint64(1) << np.uint64(8 * word.itemsize - 1)
    bits = count * np.uint64(0x9e3779b97f4a7c15) >> np.uint64(64 - 8 * word.itemsize + 3)
    bits |= top * (count % np.uint64(2))
    return bits.astype(word).reshape(*shape, element.parts)


def on_gpu(gpu, bits, lay):
    """(address, strides in bytes but of the parts) of an array of bits that lies as the view of it that `lay` makes."""
    laid = lay(bits)
    low, _ = np.lib.array_utils.byte_bounds(laid) if hasattr(np.lib, 'array_utils') else np.byte_bounds(laid)
    owner = laid
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    address = gpu.memory.allocate(owner.nbytes)
    gpu.memory.view(address, owner.shape, owner.dtype)[...] = owner
    return address + laid.__array_interface__['data'][0] - owner.__array_interface__['data'][0], laid.strides[:-1]


LAYOUTS = {
    'first': lambda x: np.ascontiguousarray(x),
    'last': lambda x: np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -2)), -2, 1),
    'turned': lambda x: np.ascontiguousarray(x[:, ::-1, :, :, ::-1])[:, ::-1, :, :, ::-1],
    'spread': lambda x: np.repeat(np.repeat(x, 2, 1), 3, 3)[:, ::2, :, ::3],
}


def ran(gpu, dtype, make, address, space, samples=0):
    """(what a program left in so many bytes of scratch, the flags): `make(program, flags, space)` adds its launches."""
    made = Program(gpu.device)
    room, flags = made.reserve(space), Flags.of(made, samples)
    operands.clear(made, flags.whole, tiles.ELEMENTS[dtype], flags.places)
    make(made, flags, room)
    scratch = gpu.memory.allocate(made.scratch)
    made.on({'x': Ref('x'), 'scratch': Ref('scratch')}).run({'x': address, 'scratch': scratch}, 0)
    kept = gpu.memory.view(scratch + room.offset, (space,), np.uint8).copy()
    return kept, gpu.memory.view(scratch + flags.whole.offset, (flags.places,), np.int32).copy()


def packed(gpu, bits, dtype, groups=1, lay=LAYOUTS['first'], edge=None, size=None, **how):
    """What pack makes of (samples, channels, z, y, x): (samples, z, y, x, group, channel, part), and the flags."""
    element, (samples, channels, *cells, parts) = tiles.ELEMENTS[dtype], bits.shape
    address, steps = on_gpu(gpu, bits, lay)
    operand = Operand(Ref('x'), Layout(*steps), size or tuple(cells), channels // groups, groups, edge)
    found, flags = ran(
        gpu, dtype, lambda made, flags, room: operands.pack(made, operand, samples, element, flags, room, **how),
        address, operands.packed_bytes(operand, samples, element), samples)
    return found.view(bits.dtype).reshape(samples, *operand.size, groups, -1, parts), flags


def in_chunks(bits, groups):
    """What pack is to make: channels last, and zeros up to whole chunks."""
    samples, channels, *cells, parts = bits.shape
    per_chunk = 16 // (bits.itemsize * parts)
    wanted = np.zeros((samples, *cells, groups, -(-channels // groups // per_chunk) * per_chunk, parts), bits.dtype)
    wanted[..., :channels // groups, :] = np.moveaxis(bits, 1, -2).reshape(*wanted.shape[:-2], -1, parts)
    return wanted


@every_dtype
@pytest.mark.parametrize('lay', LAYOUTS)
@pytest.mark.parametrize(('channels', 'groups', 'cells'), [
    (1, 1, (1, 1, 300)), (3, 1, (1, 9, 15)), (8, 1, (1, 3, 43)), (13, 1, (2, 5, 7)), (15, 3, (1, 5, 27)),
    (32, 2, (3, 3, 3)), (70, 1, (1, 2, 3))], ids=str)
def test_pack(emulated, dtype, lay, channels, groups, cells):
    bits = numbers((2, channels, *cells), dtype)
    found, flags = packed(emulated, bits, dtype, groups, LAYOUTS[lay])
    assert (found == in_chunks(bits, groups)).all() and not flags.any()


@every_dtype
@pytest.mark.parametrize('rounds', [2, 3, 4])
def test_pack_of_several_chunks_a_thread(emulated, monkeypatch, dtype, rounds):
    """As of operands that fill the chip; the last of the rounds have no chunk."""
    monkeypatch.setattr(tiles, 'PACKING_BLOCKS', 1)
    monkeypatch.setattr(tiles, 'PACKED', rounds)
    bits = numbers((2, 65, 2, 9, 20), dtype)
    noted, run = [], emulated.device.run
    monkeypatch.setattr(emulated.device, 'run', lambda kernel, grid, given: (
        noted.append(dict(zip(kernel.source.arguments, given.given()))), run(kernel, grid, given)))
    found, flags = packed(emulated, bits, dtype)
    assert (found == in_chunks(bits, 1)).all() and not flags.any()
    assert [values['rounds'] for values in noted if 'rounds' in values] == [rounds]


@every_dtype
@pytest.mark.parametrize('mode', ['constant', 'reflect', 'replicate', 'circular'])
def test_pack_of_a_padded_source(emulated, dtype, mode):
    """The constant's own bits, also where it is one that float32 rounds; none in the channels that fill a chunk."""
    value = 0.3 - 0.7j if dtype.startswith('complex') else 0.3
    bits = numbers((2, 5, 2, 3, 4), dtype)
    found, _ = packed(emulated, bits, dtype, edge=Edge(mode, value, (2, 3, 4), (1, 2, 1)), size=(4, 6, 7))
    how = {'constant': 'constant', 'reflect': 'reflect', 'replicate': 'edge', 'circular': 'wrap'}[mode]
    around = [(0, 0), (0, 0), (1, 1), (2, 1), (1, 2), (0, 0)]
    wanted = np.pad(bits, around, mode=how)
    if mode == 'constant':
        beyond = np.pad(np.zeros(bits.shape, bool), around, constant_values=True)
        parts = np.array([value.real, value.imag][:bits.shape[-1]], np.float64)
        stored = {'float16': lambda: parts.astype(np.float16), 'bfloat16': lambda: np.array([0x3e9a], np.uint16),
                  'float32': lambda: parts.astype(np.float32), 'complex64': lambda: parts.astype(np.float32)}
        constant = stored.get(dtype, lambda: parts)().view(bits.dtype)
        wanted = np.where(beyond, constant, wanted)
    assert (found == in_chunks(wanted, 1)).all()


def test_numbers_that_are_rounded_on_the_way(emulated):
    """To tf32's ten bits behind the first, half of the last one away from zero; what is not finite stays so, and flags
    say what they say of the numbers as they were."""
    bits = numbers((2, 5, 1, 3, 4), 'float32')
    bits.reshape(-1)[:7] = [0x3f800fff, 0x3f801000, 0xbf801000, 0x7f800000, 0xff800000, 0x7fc00000, 0x007ff000]
    wanted = np.where(bits & 0x7f800000 == 0x7f800000, bits, bits + np.uint32(0x1000) & np.uint32(0xffffe000))
    found, flags = packed(emulated, bits, 'float32', rounded=True)
    assert (found == in_chunks(wanted, 1)).all() and flags.tolist() == [0, 1, 1, 0]
    whole = np.repeat(bits, 8, 1)[:, :12]    # which chunks are where channels lie last
    for lay in LAYOUTS:
        found, flags = packed(emulated, whole, 'float32', lay=LAYOUTS[lay], rounded=True)
        assert (found == in_chunks(np.repeat(wanted, 8, 1)[:, :12], 1)).all() and flags.tolist() == [0, 1, 1, 0]
    found, flags = weight_packed(emulated, bits, 'float32', 1, False, rounded=True)
    assert (found[:, 0, :, :5, 0] == wanted[..., 0].reshape(2, 5, 12).swapaxes(1, 2)).all() and flags.tolist() == [1]


def spoil(bits, place, value):
    made = bits.copy()
    made.reshape(-1)[place] = value
    return made


@every_dtype
@pytest.mark.parametrize('rounds', [1, 4])
def test_pack_sees_what_is_not_finite(emulated, monkeypatch, dtype, rounds):
    """Wherever it is in a thread's chunks, in its sample alone; the largest that is not spoiled is not."""
    monkeypatch.setattr(tiles, 'PACKING_BLOCKS', 1)
    monkeypatch.setattr(tiles, 'PACKED', rounds)
    spoiling, largest = spoiled_bits(dtype)
    bits = numbers((3, 9 if rounds == 1 else 33, 1, 2, 3), dtype)
    of_sample = bits[0].size
    for place in range(0, of_sample, 6 if bits.shape[-1] == 1 else 5):
        sample = place // 6 % 3
        made = spoil(bits, sample * of_sample + place, spoiling[place // 6 % len(spoiling)])
        _, flags = packed(emulated, made, dtype)
        assert flags.tolist() == [0, 1, *(int(one == sample) for one in range(3))]
    assert not packed(emulated, spoil(bits, 7, largest), dtype)[1].any()
    assert not packed(emulated, np.full_like(bits, largest), dtype)[1].any()


def weight_of(bits, groups, is_turned):
    """The weight of (out channels, channels of a group, z, y, x, part) for forward, or turned for grad_input."""
    out, channels, *kernel, parts = bits.shape
    return SimpleNamespace(rows=channels if is_turned else out // groups, kernel=tuple(kernel), parts=parts,
                           channels=out // groups if is_turned else channels)


@every_dtype
@pytest.mark.parametrize('is_turned', [False, True], ids=['forward', 'grad_input'])
@pytest.mark.parametrize('lay', ['first', 'last', 'spread'])
@pytest.mark.parametrize('shape', [(6, 5, 1, 1, 1), (10, 9, 1, 3, 3), (4, 3, 2, 3, 4), (34, 3, 1, 1, 7)], ids=str)
def test_pack_weight(emulated, dtype, is_turned, lay, shape, groups=2):
    bits = numbers(shape, dtype)
    found, flag = weight_packed(emulated, bits, dtype, groups, is_turned, LAYOUTS[lay])
    whole = weight_of(bits, groups, is_turned)
    turned = bits.reshape(groups, -1, *bits.shape[1:])
    turned = turned.swapaxes(1, 2) if is_turned else turned  # group, row, channel, z, y, x, part
    assert turned.shape[1:3] == (whole.rows, whole.channels)
    wanted = in_chunks(turned.reshape(-1, *turned.shape[2:]), 1).reshape(groups * whole.rows, -1, found.shape[-2],
                                                                        whole.parts)
    if whole.parts == 2:
        top = bits.dtype.type(1 << 8 * bits.itemsize - 1)
        existing = (np.arange(wanted.shape[-2]) < whole.channels)[:, None]
        minus = np.stack([wanted[..., 0], wanted[..., 1] ^ top], -1)
        assert (np.where(existing, found[:, 0], 0) == np.where(existing, minus, 0)).all()
        assert not (found[:, 0][..., whole.channels:, :] & ~top).any()  # zeros of either sign
        assert (found[:, 1] == wanted[..., ::-1]).all()
    else:
        assert (found[:, 0] == wanted).all()
    assert not flag.any()


def weight_packed(gpu, bits, dtype, groups, is_turned, lay=LAYOUTS['first'], **how):
    """((row of all groups, real or imaginary, tap, channel, part), the flag)."""
    element, whole = tiles.ELEMENTS[dtype], weight_of(bits, groups, is_turned)
    address, steps = on_gpu(gpu, bits, lay)
    row, channel = (steps[1], steps[0]) if is_turned else (steps[0], steps[1])
    weight = Weight(Ref('x'), Layout(*steps), row, channel, len(bits) // groups * steps[0], whole.rows,
                    whole.channels, groups, whole.kernel)
    found, flag = ran(
        gpu, dtype,
        lambda made, flags, room: operands.pack_weight(made, weight, element, flags.some, room, **how), address,
        operands.weight_bytes(weight, element))
    return found.view(bits.dtype).reshape(
        groups * whole.rows, element.parts, prod(whole.kernel), -1, whole.parts), flag


@every_dtype
def test_pack_weight_sees_what_is_not_finite(emulated, dtype):
    spoiling, largest = spoiled_bits(dtype)
    bits = numbers((3, 9, 1, 1, 2), dtype)
    for place in range(bits.size):
        _, flag = weight_packed(emulated, spoil(bits, place, spoiling[place % len(spoiling)]), dtype, 1, False)
        assert flag.tolist() == [1]
    assert weight_packed(emulated, np.full_like(bits, largest), dtype, 1, False)[1].tolist() == [0]


def scanned(gpu, bits, dtype, wide):
    """The flags of an operand that lies channels last, its cells so many channels apart."""
    element, (samples, channels, *cells, parts) = tiles.ELEMENTS[dtype], bits.shape
    room = np.full((samples, *cells, wide, parts), spoiled_bits(dtype)[0][0], bits.dtype)  # where nobody may look
    room[..., :channels, :] = np.moveaxis(bits, 1, -2)
    address, steps = on_gpu(gpu, np.moveaxis(room, -2, 1)[:, :channels], lambda x: x)
    operand = Operand(Ref('x'), Layout(*steps, True), tuple(cells), channels, 1)
    assert operands.in_place(operand, element)
    return ran(gpu, dtype, lambda made, flags, _: program.scan(made, operand, samples, element, flags), address, 256,
               samples)[1]


@every_dtype
@pytest.mark.parametrize('most', [limits.MOST, 20], ids=['', 'many launches'])
def test_scan_sees_what_is_not_finite(emulated, monkeypatch, dtype, most):
    """Every number of every chunk, and none but the operand's."""
    spoiling, largest = spoiled_bits(dtype)
    per_chunk = 16 // tiles.ELEMENTS[dtype].size
    monkeypatch.setattr(limits, 'boxes', lambda sizes, boxes=limits.boxes: with_most(most, lambda: list(boxes(sizes))))
    bits = numbers((3, 5 * per_chunk, 1, 2, 2), dtype)
    of_sample = bits[0].size
    for place in range(of_sample):
        sample = place % 3
        made = spoil(bits, sample * of_sample + place, spoiling[place % len(spoiling)])
        assert scanned(emulated, made, dtype, 7 * per_chunk).tolist() == [
            0, 1, *(int(one == sample) for one in range(3))]
    assert not scanned(emulated, np.full_like(bits, largest), dtype, 7 * per_chunk).any()


def with_most(most, call):
    before, limits.MOST = limits.MOST, most
    try:
        return call()
    finally:
        limits.MOST = before


def test_constants_are_given_as_they_are_stored():
    assert padding.bits(-0.1, 'float16', True) == (0xae66, 0) and padding.bits(np.inf, 'bfloat16', True)[0] == 0x7f80
    assert padding.bits(1 - 2j, 'complex64', True) == padding.bits(1 - 2j, 'complex64') == (0x3f800000, 0xc0000000)
