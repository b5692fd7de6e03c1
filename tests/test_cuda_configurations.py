"""Every kernel that pyconv may ask for compiles, without a GPU, to the machine code that it was written for."""
import functools
import importlib.util
import itertools
import math
import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

import calls
import compiled
import plan_runs
import pyconv
from compiled import OPCODES, OPCODES_BEFORE_SM80, number
from emulated_device import SHARED_LIMITS
from gpus import WAYS, Emulated, take_tile, tiles_of
from problems import TEST_ALL, P, some
from pyconv import _cuda
from pyconv._gpu import configurations, kinds, launch, single, tiles

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec('numba_cuda') is None,
    reason=f'the compiler is not installed: {launch.install_command()}')
ALL = compiled.by_name()
MULTIPLYING = 'depthwise', 'depthwise_weight', 'direct', 'direct_weight'       # without tiles


def some_of_all():
    """Strips of 3 x 3 taps of float32, whose instructions are counted, and of the rest whichever shows most that is new
    for its size, so many that the smallest and the largest tile of each way are in one of them, and any two other words
    of a name, or a way and one, together."""
    counted = [name for name in ALL if re.fullmatch(r'depthwise(_weight)? f32( strided| divided)?( x2)?', name)]
    shows, sizes = ({name: of(name) for name in ALL} for of in (shown, size_of))
    missing, found = set().union(*shows.values()), []
    while missing:
        best = counted.pop() if counted else max(
            ALL, key=lambda name: (len(shows[name] & missing) / sizes[name], '5x5' not in name))
        found.append(best)
        missing -= shows[best]
    return found


def size_of(name):
    """About the seconds that a kernel takes to compile: most for a thread's sums, or the products of a strip."""
    one = ALL[name]
    if one.tile:
        return 1 + one.tile.bm * one.tile.bn / one.tile.threads / 32
    kernel, *words = as_another(name).split()
    taps = next((int(word[0]) ** 2 for word in words if re.fullmatch(r'(.)x\1', word)), 9)
    return {'depthwise': 2, 'depthwise_weight': 3}.get(kernel, 0.3) * (1 + taps / 25)


def shown(name):
    """What a configuration is an example of: its kernel with its numbers, and any two words else of its name, or a way
    and one. A tile is a parameter of either product's text, and one of them shows it, where it is the smallest or the
    largest; numbers that are not multiplied are alike if they are alike to read and to keep."""
    one, alike = ALL[name], as_another(name)
    kernel, number, *words = alike.split()
    if one.tile:
        way, multiplied = multiplied_as(name)
        words = [way, kernel, *(word for word in words if not word[0].isdigit())]
        own = {(kernel, one.way), (kernel, way, multiplied)}
        if one.tile in extremes(way, multiplied):
            own.add((way, multiplied, one.tile))
    else:
        kind = one.element.parts, one.element.size == 2, one.element.name in tiles.WHOLE
        words, own = [kind, kernel, *words], {(kernel, number if kernel in MULTIPLYING else kind)}
    return own | set(itertools.combinations(words, 2))


@functools.cache
def extremes(way, multiplied):
    """Of the tiles in which numbers are multiplied so, the one of the fewest sums in a thread and the one of the most.
    """
    found = {one.tile for name, one in ALL.items() if one.tile and multiplied_as(name) == (way, multiplied)}
    ordered = sorted(found, key=lambda tile: (tile.bm * tile.bn / tile.threads, tile.bm, tile.bn))
    return ordered[0], ordered[-1]


def as_another(name):
    """The kernel of float16 in the place of one of bfloat16, where that multiplies: they differ in how a number is
    read, multiplied and kept, which one of each kernel and way shows. So do strips of 7 x 7 taps for 5 x 5."""
    if not (ALL[name].tile or name.startswith('depthwise')):
        return name
    alike = name.replace('bf16', 'f16')
    return alike.replace('5x5', '7x7') if alike.replace('5x5', '7x7') in ALL else alike


def multiplied_as(name):
    """How a tile multiplies what; one by one, 16-bit floats are multiplied as float32."""
    one = ALL[as_another(name)]
    return one.way, one.element if one.way != 'fma' or one.element.size > 2 else tiles.ELEMENTS['float32']


MADE = {name: ALL[name] for name in (ALL if TEST_ALL else some_of_all())}
PAIRS = [(name, capability) for name, configuration in MADE.items()
         for capability in compiled.capabilities(configuration)]
TOGETHER = 12                           # kernels that a process makes at a time: nvdisasm starts once for them
ASKING = some('2d stride 2', '2d channels 16 16', '2d stride above kernel')         # for every kernel
OTHERS = some('2d', '2d channels 17 17 kernel 1', '2d same strided dilated', '2d groups of 4')
# Of one channel in a group: every kernel of `depthwise`.
SINGLE = [P(f'2d depthwise of {k}, stride {stride}', (9, 8), (k, k), (4, 4), groups=4, padding=1, stride=stride)
          for k in single.STRIP_TAPS for stride in (1, 2)]
PATCHES = P('2d patches of 16 channels', (4, 4), (2, 2), (16, 16), stride=2)    # read in place
PLANES = P('2d planes', (4, 4), (1, 1), (16, 16))
PHASES = [P('2d phases of 16 channels', (4, 4), (3, 3), (16, 4), stride=2, padding=1),
          P('2d one phase of 16 channels', (4, 4), (1, 1), (16, 4), stride=2)]          # of which no other has cells
PRODUCTS = [(name, capability) for name, capability in PAIRS if ALL[name].tile]
REGISTERS = 65536                       # of a multiprocessor
MATRIX_PRODUCTS = {'mma_f16': 16 * 8 * 16, 'mma_bf16': 16 * 8 * 16, 'mma_tf32': 16 * 8 * 8, 'mma_f64': 8 * 8 * 4,
                   'mma_f64_m16n8k16': 16 * 8 * 16}


def label(value):
    names = {0: 'large', 1: 'second', 2: 'third', 3: 'fourth'}
    return names[value] if isinstance(value, int) else value if isinstance(value, str) else f'sm_{value[0]}{value[1]}'


@functools.cache
def twins():
    """Each configuration's first that is the same kernel: float32 and float64 keep parts of a sum as they keep results.
    """
    first = {}
    return {name: first.setdefault((one.source.key, one.threads, one.blocks), name) for name, one in ALL.items()}


@pytest.fixture(scope='session')
def pool(request, tmp_path_factory):
    """name -> the file of what `compiled.make` gives: of all configurations that the selected tests need, the longest
    first.

    pytest's own worker processes have one folder for it, where what one of them has begun is not begun by others.
    """
    wanted = {twins()[item.callspec.params['name']]: None for item in request.session.items        # in one order
              if 'made' in getattr(item, 'fixturenames', ()) and 'name' in item.callspec.params}
    order = sorted(wanted, key=lambda name: (
        ALL[name].tile is None, ALL[name].way != 'tf32x3', ALL[name].blocks, -ALL[name].threads))
    processors = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    beside = int(os.environ.get('PYTEST_XDIST_WORKER_COUNT', 1))
    folder = tmp_path_factory.getbasetemp()
    if 'PYTEST_XDIST_WORKER' in os.environ:
        folder = folder.parent
    with ProcessPoolExecutor(
            max(1, processors // beside), multiprocessing.get_context('spawn'), compiled.start_worker) as executor:
        groups = [order[start:start + TOGETHER] for start in range(0, len(order), TOGETHER)]
        yield {name: path for group in groups for path in [executor.submit(compiled.make_once, group, folder)]
               for name in group}
        executor.shutdown(cancel_futures=True)


@pytest.fixture
def made(pool, name):
    first = twins()[name]
    found = compiled.made_once(pool[first].result())[first]
    if isinstance(found, Exception):
        raise found
    return found


@needs_compiler
@pytest.mark.parametrize(('name', 'capability'), PAIRS, ids=label)
def test_registers(made, name, capability):
    """As few as leave room for its blocks, and none of them spilled; it waits first where it may come early."""
    code, configuration = made.codes[capability], ALL[name]
    assert 0 < code.registers <= min(255, REGISTERS // (configuration.threads * configuration.blocks))
    assert code.local == 0 == number(code.opcodes, r'(LDL|STL)\b.*')
    # From 9.0 on it may be launched while the kernel before it still runs, and lets the next one come.
    is_early = capability >= launch.EARLY
    assert code.waits_first == is_early == number(code.opcodes, 'PREEXIT')
    assert code.lets_late == (is_early and configuration.tile is not None)


@needs_compiler
@pytest.mark.parametrize(('name', 'capability'), PRODUCTS, ids=label)
def test_stage(made, name, capability):
    """A round of the loop over stages has the instructions of its source, and no more of them."""
    own, inner = compiled.stage_of(made.text)
    found = compiled.stage_loop(made.codes[capability])
    names = OPCODES if capability >= (8, 0) else OPCODES_BEFORE_SM80
    loops = [loop.all for loop in found.inner if number(loop.all, OPCODES['fma'])]       # not one that only waits
    if len(loops) < len(inner):          # all its rounds one after another
        [(rounds, body)] = inner
        own, inner = own + type(own)({call: count * rounds for call, count in body.items()}), []
    assert len(loops) == len(inner)
    for machine, source, most in [(found.own, own, 1), *((a, b, n) for a, (n, b) in zip(loops, inner))]:
        for patterns in {names[call] for call in source if names.get(call)}:
            wanted = sum(count for call, count in source.items() if names.get(call) == patterns)
            times = number(machine, patterns) / wanted
            assert times >= 1 and most % times == 0, (patterns, wanted, machine)      # loops may be unrolled in part
    if 'copy_box' in own:        # behind a branch, since one thread asks for it
        assert number(made.codes[capability].opcodes, r'UTMALDG\.2D.*')
    for pattern in (r'LDL.*', r'STL.*', r'I?[FD]2[IF].*', r'MUFU.*'):
        assert not number(found.all, pattern)


@needs_compiler
@pytest.mark.parametrize('name', [name for name in MADE if ALL[name].tile])
def test_products(made, name):
    """The source multiplies as often as the tile needs, each operand's chunks are copied once."""
    configuration = ALL[name]
    tile, way, held = configuration.tile, configuration.way, tiles.held(configuration.way, configuration.element)
    depth = tile.line // held.size
    own, inner = compiled.stage_of(made.text)
    total = own + sum((type(own)({call: n * count for call, count in body.items()}) for n, body in inner), type(own)())
    products = tile.bm * tile.bn * depth * (3 if way == 'tf32x3' else 1)
    lines = tile.bm + tile.bn
    if way == 'fma':
        assert total['fma'] * tile.threads == products
    elif way.startswith('wgmma'):
        calls = total[f'{way}_{tile.bn}'] + total[f'{way}_{tile.bn}_across']
        assert calls * 64 * tile.bn * 32 // held.size * tile.threads // 128 == products        # 32 bytes deep
        lines -= tile.bn if 'copy_box' in total else 0             # which the copy engine fetches
    else:
        mma = tiles.WAYS[way].mma
        assert total[mma] * MATRIX_PRODUCTS[mma] * tile.threads // 32 == products
    if way == 'tf32x3':         # a sum from zero is added once in a stage; splitting takes a subtraction
        additions = number(compiled.stage_loop(made.codes[9, 0]).all, 'FADD')
        assert additions == total['split_tf32'] + tile.bm * tile.bn // tile.threads
    copy = 'copy16' if held == configuration.element else f'copy16_{held.suffix}'
    assert total[copy] * tile.threads == lines * tile.line // 16
    assert total['wait'] == total['commit'] == 1
    assert total['barrier'] == (2 if way.startswith('wgmma') else 1)      # before products and behind those before


@needs_compiler
@pytest.mark.parametrize('name', [name for name in MADE if ALL[name].way.startswith('wgmma')])
def test_products_of_a_warpgroup(made, name):
    """Four in a stage, of operands that lie across in correlate; gather's weight comes in boxes. One arrival for them,
    one wait in the loop and one behind it: the compiler did not find that the sums are touched between them, else it
    would have put them around each product."""
    found, is_gather = made.codes[9, 0], name.startswith('gather')
    assert number(found.opcodes, rf'HGMMA\.64x{ALL[name].tile.bn}x(16|8)\.F32.*') == 4
    assert found.across == {not is_gather}
    assert number(found.opcodes, r'FENCE\.VIEW\.ASYNC.*') >= 1
    assert (number(found.opcodes, r'UTMALDG\.2D.*') >= 1) == is_gather
    assert number(found.opcodes, r'WARPGROUP\.ARRIVE.*') == 1 and number(found.opcodes, r'WARPGROUP\.DEPBAR.*') == 2


STRIPS = [name for name in MADE if name.startswith('depthwise')]
# Instructions of the loop over strips, of 3 x 3 taps, for each result, or number of grad_output.
MOST = {'depthwise': 35, 'depthwise strided': 50, 'depthwise divided': 16, 'depthwise_weight': 51,
        'depthwise_weight strided': 68, 'depthwise_weight x2': 29, 'depthwise_weight strided x2': 35,
        'depthwise_weight x4': 23, 'depthwise_weight strided x4': 29, 'depthwise_weight x2 apart': 33,
        'depthwise_weight strided x2 apart': 43, 'depthwise_weight x4 apart': 31,
        'depthwise_weight strided x4 apart': 42}


@needs_compiler
@pytest.mark.parametrize('name', STRIPS)
def test_strips(made, name):
    """A strip's cells are loaded once, a thread's channels together or apart, all products made without a branch, in
    not many more instructions than these."""
    kernel, _, *flags = name.split()
    k = next((int(flag[0]) for flag in flags if flag[1] == 'x'), 3)
    up, step = 1 + ('divided' in flags), 1 + ('strided' in flags)
    side = next((int(flag[1]) for flag in flags if flag[0] == 'x'), 1)
    rows, columns = single.STRIPS[up, step]
    cells = [(k - 1 + step * (each - 1)) // up + 1 for each in (rows, columns)]
    [loop] = made.codes[9, 0].loops
    assert not loop.inner and number(loop.own, r'BRA.*') == 1
    assert number(loop.own, OPCODES['fma']) == rows * columns * side * k * k // up**2
    given = rows * columns if kernel == 'depthwise_weight' or 'accumulate' in flags else 0
    loads = side if 'apart' in flags else 1
    assert number(loop.own, r'LDG\..*') == loads * (math.prod(cells) + given)
    of_result = loop.slots / (rows * columns * side)
    if k == 3 and 'accumulate' not in flags and 'f64' not in name:
        assert of_result <= MOST[' '.join([kernel, *flags])], of_result


# Tensor cores' results, but those of rows that are cells of a channel, or that are added to what is there.
STORED = [name for name, one in MADE.items() if one.tile and one.way != 'fma' and not {'apart', 'accumulate'} & set(
    name.split())]


@needs_compiler
@pytest.mark.parametrize('name', STORED)
def test_stores(made, name):
    """Each result once in a wide store, two of them in one or four of 16 bits, and once one by one where another way
    than gather's to memory may be; correlate has no other."""
    one, found = ALL[name], made.codes[9, 0].opcodes
    results = one.tile.bm * one.tile.bn // one.tile.threads
    size = one.element.size if one.element.size > 2 or 'partial' not in name else 4
    wide, narrow = ('128', r'\.64') if size == 8 else ('64', '' if size == 4 else r'\.U16')
    assert number(found, rf'STG\.E\.{wide}') == results // (4 if size == 2 else 2)
    assert number(found, rf'STG\.E{narrow}') == (0 if name.startswith('correlate') else results)


@needs_compiler
@pytest.mark.parametrize('name', MADE)
def test_seconds(made, name):
    """A few seconds, at the first use on a machine: processor time, so that other work does not count."""
    assert made.seconds < 30


@needs_compiler
def test_a_tensor_map_is_an_argument_by_itself():
    """A kernel gets it as it is, at an address that is a multiple of 64."""
    from pyconv._gpu import ptx
    one = next(configuration for name, configuration in ALL.items() if name.startswith('gather wgmma_f16'))
    text = ptx.to_ptx(one.source, one.threads, one.blocks, (9, 0))
    assert len(re.findall(r'\.param \.align 64 \.b8 gather_hopper_param_0\[128\]', text)) == 1


@needs_compiler
@pytest.mark.parametrize('name', ['correlate f16 64x64', 'gather fma f32 64x64', 'direct f64', 'pack bf16'])
def test_one_front_end_serves_several_chips(name):
    from pyconv._gpu import ptx
    one = next(configuration for configuration in ALL.values() if configuration.name.startswith(name))
    first, second = (ptx.to_ptx(one.source, one.threads, one.blocks, chip) for chip in ((8, 0), (9, 0)))
    assert '.target sm_80' in first
    assert first.replace('.target sm_80', '.target sm_90') == second


@pytest.mark.parametrize('capability', [(8, 0), (9, 0)], ids=label)
def test_shared_memory_holds_the_blocks_that_registers_are_left_for(capability):
    """A block takes a kilobyte more than it asks for, and may have all of a multiprocessor's but that of one block."""
    fits = {one.name: one.blocks * (one.tile.shared + 1024) <= SHARED_LIMITS[capability] + 1024
            for one in ALL.values() if one.tile is not None and capability in one.capabilities}
    # an A100 holds one block of 128 x 128 in stages of 128 bytes, and two of 128 x 64
    alone = {name for name in fits if capability == (8, 0) and any(size in name for size in ('128x128', '128x64'))
             and name.split()[1] in ('f16', 'bf16', 'tf32')}
    assert fits and {name for name, fit in fits.items() if not fit} == alone


@pytest.mark.parametrize(('way', 'dtype', 'results', 'chosen'), [
    ('fma', 'float32', (10**6, 3), (128, 16)), ('fma', 'float32', (10**6, 32), (128, 16)),
    ('fma', 'float32', (10**6, 33), (128, 16)), ('fma', 'float32', (10**6, 64), (128, 64)),
    ('fma', 'float32', (10**6, 128), (128, 64)), ('fma', 'float32', (100, 64), (128, 16)),
    ('f16', 'float16', (10**6, 16), (128, 16)), ('f16', 'float16', (10**6, 17), (128, 64)),
    ('f16', 'float16', (10**6, 64), (128, 64)), ('f16', 'float16', (10**6, 128), (128, 128)),
    ('tf32', 'float32', (10**6, 192), (128, 64)), ('tf32', 'float32', (10**6, 256), (128, 128)),
    ('f16', 'float16', (100, 16), (128, 16)), ('bf16', 'bfloat16', (64, 576), (128, 16)),
    ('tf32', 'float32', (256, 64), (128, 16)), ('f16', 'float16', (10**6, 65), (128, 128)),
    ('f64', 'float64', (10**6, 3), (128, 16)), ('f64', 'float64', (10**6, 48), (128, 16)),
    ('f64_m16n8k16', 'float64', (10**6, 3), (64, 64)), ('wgmma_f16', 'float16', (10**6, 3), (128, 64))])
def test_the_tile_that_is_predicted_to_take_least(way, dtype, results, chosen):
    """Of few rows the one that they fill most of; of few blocks the quickest."""
    element = tiles.ELEMENTS[dtype]
    assert tiles.tile_of(way, element, results, 1)[:2] == chosen
    if chosen == (128, 16) and results[0] > results[1]:
        across = tiles.tile_of(way, element, results[::-1], 1, kernel='correlate')[:2]
        assert across == ((64, 64) if results[0] < 10**6 and way != 'fma' else (16, 128))
    assert tiles.tile_of(way.removeprefix('wgmma_'), element, results, 1, apart=True)[:2] in ((64, 64), (128, 16))


@pytest.mark.parametrize('kernel', ['gather', 'correlate'])
@pytest.mark.parametrize(('way', 'rows', 'direct'), [
    ('f64', 1, False), ('f64', 16, False), ('f64_m16n8k16', 1, True), ('f64_m16n8k16', 2, False)])
def test_few_rows_that_are_left_to_the_direct_kernels(kernel, way, rows, direct):
    """Of 64 channels: a tile of 16 rows is faster, one of 64 of which most are none is not."""
    assert tiles.is_direct(way, tiles.ELEMENTS['float64'], rows, 64, 10**7, 1, kernel) == direct


def test_names_are_distinct():
    assert len(ALL) == len(list(configurations.all_kernels()))


# An A100 multiplies in no way that an H100 does not, in the same tiles: it is asked for the first of them.
SIZES = [(size, capability) for capability in configurations.CAPABILITIES for size in range(4)
         if size == 0 or capability == (9, 0) or capability != (8, 0) and (TEST_ALL or size == 3)]


@pytest.mark.parametrize(('size', 'capability'), SIZES, ids=label)
def test_nothing_else_is_asked_for(monkeypatch, capability, size):
    """Every kernel of some problems' programs is one of the configurations, and all that chips with float64 tensor
    cores may ask for are among them; those without tiles, which are every chip's, are asked for once."""
    gpu = Emulated(monkeypatch, capability=capability)
    asked = set()
    gpu.device.kernel = lambda source, threads, shared, blocks=1: asked.add((source.key, threads, blocks))
    gpu.device.launch = lambda *_: None
    monkeypatch.setattr(_cuda.Plan, 'steps', also_otherwise(_cuda.Plan.steps))
    monkeypatch.setattr(tiles, 'LEAST_SPREAD', 0)
    take_tile(monkeypatch, size)
    ways = [*WAYS.values(), ('complex64', {}), ('complex64', {'algorithm': 'tf32x3'}), ('complex128', {})]
    without_tiles = size == 0 and capability == (9, 0)
    problems = [*([*ASKING, *OTHERS, *SINGLE, *PHASES] if without_tiles else ASKING[::2]), PATCHES, PLANES]
    for problem, (dtype, keywords) in itertools.product(problems, ways):
        if others_ask_too(problem, dtype, keywords, capability, size):
            continue
        in_parts, directly = [(1, False), (3, False)], [(1, True)]
        for parts, direct in directly if problem in SINGLE else in_parts if size else in_parts + directly:
            monkeypatch.setattr(tiles, 'is_direct', lambda way, *_, direct=direct: direct or way is None)
            monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_, parts=parts: parts)
            monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_, parts=parts: parts)
            _cuda.forget()
            padding = {}, WAYS['tf32x3'][1], WAYS['wgmma tf32'][1]
            has_modes = parts == 1 and keywords in padding and problem is ASKING[0]
            modes = configurations.MODES if without_tiles and has_modes else ()
            everything(gpu, problem, dtype, keywords, modes, without_tiles)
    for problem, types in itertools.product(ASKING[::2], configurations.PAIRS if without_tiles else ()):
        of_whole_numbers(gpu, problem, *types)
    known = {(one.source.key, one.threads, one.blocks): one.name for one in ALL.values()}
    assert asked <= set(known)
    if capability in ((8, 0), (9, 0)):
        expected = {key for key, name in known.items() if capability in ALL[name].capabilities and (
            without_tiles if ALL[name].tile is None else ALL[name].tile in tiles.tiles(
                ALL[name].way, ALL[name].element, 'planes' if 'planes' in name else name.partition(' ')[0],
                'apart' in name)[size:size + 1])}
        assert not {known[key] for key in expected - asked}


def others_ask_too(problem, dtype, keywords, capability, size):
    """Whether nothing is asked for here, in the tile of that number, that is not asked for elsewhere."""
    if size and ('complex' in dtype or size >= tiles_of(dtype, keywords)):
        return True
    if keywords.get('algorithm') in tiles.HOPPERS and capability != (9, 0):
        return True
    if problem in (*SINGLE, *PHASES) and keywords:
        return True
    if problem in OTHERS and (keywords or dtype not in ('float32', 'float16')):
        return True
    return capability == (8, 6) and dtype not in ('float64', 'complex128')         # all else is an A100's


def everything(gpu, problem, dtype, keywords, modes, without_tiles):
    """Calls that ask for every kernel, or all in tiles, in both layouts and in those padding modes; nothing is run."""
    for last in (False, True):
        beside = 1 if problem is PATCHES else 0
        x, w, y = (laid_out(gpu, shape, dtype, last, beside) for shape in (
            problem.input_shape, problem.weight_shape, problem.output_shape))
        calls.forward(problem, x, w, gpu.empty(problem.weight_shape[:1], dtype), out=y, **keywords)
        calls.grad_input(problem, w, y, out=x, **keywords)
        calls.grad_weight(problem, x, y, out=w, **keywords)
        if last and problem in SINGLE:  # every other channel, which none can load at once
            samples, channels, *size = problem.output_shape
            apart = laid_out(gpu, (samples, 2 * channels, *size), dtype, last).view(lambda array: array[:, ::2])
            calls.grad_weight(problem, x, apart, out=w, **keywords)
        transposed = calls.transposed(problem, y, w, gpu.empty(problem.input_shape[1:2], dtype), **keywords)
        assert transposed.shape == x.shape
        if without_tiles:
            pyconv.conv_bias(y)
            settings = {name: value for name, value in problem.keywords.items() if name != 'groups'}
            columns = pyconv.unfold(x, problem.kernel, **settings)
            pyconv.fold(columns, problem.size, problem.kernel, **settings)
        plans(gpu, problem, modes, (x, w, y), (x, w, y), keywords)
        if dtype in ('float16', 'bfloat16'):  # the sums of volumes
            sums = [laid_out(gpu, array.shape, 'float32', last) for array in (x, w, y)]
            plans(gpu, problem, ('zeros', *modes), (x, w, y), sums, keywords)


def plans(gpu, problem, modes, given, made, keywords):
    """All maps and columns in those padding modes; arrays of the operands' type, and of the results'."""
    (x, w, y), (to_x, to_w, to_y) = given, made
    bias = gpu.empty(to_x.shape[1:2], to_x.dtype)
    for mode in modes:
        g, of_columns = (of(problem, padding_mode=mode) for of in (plan_runs.geometry_of, plan_runs.columns_of))
        plan_runs.launch(gpu, 'forward', g, x, w, to_y, **keywords)
        plan_runs.launch(gpu, 'grad_input', g, y, w, to_x, bias, **keywords)
        plan_runs.launch(gpu, 'grad_weight', g, x, y, to_w, **keywords)
        shape = (problem.batch, x.shape[1] * math.prod(problem.kernel), math.prod(problem.positions))
        columns = gpu.empty(shape, x.dtype)
        plan_runs.unfold(of_columns, x, columns)
        for accumulate in (False, True):
            plan_runs.unfold(of_columns, to_x, columns, True, accumulate)


def of_whole_numbers(gpu, problem, dtype, result):
    """As `everything`."""
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    for last in (False, True):
        given, made = ([laid_out(gpu, shape, kind, last) for shape in shapes] for kind in (dtype, result))
        plans(gpu, problem, ('zeros', *configurations.MODES), given, made, {})
        summed = gpu.empty(problem.weight_shape[:1], result)
        for accumulate in (False, True):
            plan_runs.now(
                _cuda.channel_sum(kinds.read('operand', given[2]), 1, kinds.read('out', summed), accumulate))
            bias = kinds.read('bias', gpu.empty(made[0].shape[1:2], result))
            plan_runs.now(_cuda.fill(kinds.read('out', made[0]), bias, accumulate))


def laid_out(gpu, shape, dtype, last, beside=0):
    """An array; where its channels lie last, with so many rows before each sample that are not its own."""
    if not last:
        return gpu.empty(shape, dtype)
    samples, channels, *size = shape
    whole = gpu.empty((samples, size[0] + beside, *size[1:], channels), dtype)
    return whole.view(lambda array: np.moveaxis(array[:, beside:], -1, 1))


def also_otherwise(steps):
    """Plan.steps as it is asked for them, adding to the result, and with the least scratch."""
    def both(self, first, second, out, bias=None, scratch=None, accumulate=False):
        least = kinds.read('scratch', out.kind.empty((self.scratch_minimum,), out.dtype, out.device)[0])
        yield from steps(self, first, second, out, bias, scratch)
        yield from steps(self, first, second, out, bias, least, True)
    return both
