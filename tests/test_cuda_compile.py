"""The GPU kernels' compiler, without a GPU: primitives become the instructions they name, what is compiled is kept."""
import contextlib
import functools
import gc
import importlib.util
import logging
import re
from hashlib import sha256
from types import SimpleNamespace

import pytest

from problems import TEST_ALL
from pyconv._gpu import launch

if importlib.util.find_spec('numba_cuda') is None:
    pytest.skip(f'the compiler is not installed: {launch.install_command()}', allow_module_level=True)

from numba.core.errors import TypingError  # noqa: E402
from numba.cuda import lowering  # noqa: E402

from pyconv._gpu import configurations, ptx, sass  # noqa: E402

QUICK = ptx._find_singly_assigned_variable

TURING, AMPERE, HOPPER = (7, 5), (8, 0), (9, 0)
ARGUMENTS = ('a', 'b', 'c')  # two global addresses, and a number that the compiler does not know
PROLOGUE = ('ok = c > thread()', 's = i32(shared_base() + thread() * 16)')


def kernel(*body, name='kern'):
    lines = [f'def {name}({", ".join(ARGUMENTS)}):', *(f'    {line}' for line in PROLOGUE + body)]
    text = '\n'.join(lines) + '\n'
    return SimpleNamespace(name=name, key=text, text=text, arguments=ARGUMENTS)


def opcodes(*body, capability=HOPPER):
    return all_opcodes([body], capability)[0]


def all_opcodes(bodies, capability):
    return read([ptx.compile(kernel(*body), 128, 1, capability).cubin for body in bodies], capability)


def read(cubins, capability):
    return [sass.opcodes(code) for code in sass.disassemble(cubins, 'sm_{0[0]}{0[1]}'.format(capability))]


def count(found, opcode):
    """How many instructions are that opcode, whatever modifiers follow."""
    return sum(number for name, number in found.items() if f'{name}.'.startswith(f'{opcode}.'))


# body: what it compiles to, from that capability on
MATRICES = 'q = ldmatrix(s)'
CASES = [
    ('store_i32(b, ok, thread())', {'S2R': 1, 'STG.E': 1}, TURING),
    ('store_i32(b, ok, i32(block_x() + block_y() + block_z()))', {'STG.E': 1}, TURING),
    ('store_i32(b, ok, u32(a) + i32(c))', {'STG.E': 1}, TURING),
    ('store_f64(b, ok, f64(c) + i64(a))', {'I2F.F64.S64': 2, 'DADD': 1}, TURING),
    ('store_f32(b, ok, f32(i32(c)))', {'STG.E': 1}, TURING),
    ('barrier()', {'BAR.SYNC': 1}, TURING),
    ('store_i32(b, c > 5, select(ok, i32(c), 7))', {'SEL': 1, 'BRA': 1}, TURING),  # the only branch is after the end
    ('store_i32(b, ok, divide(thread(), a, c))', {'STG.E': 1}, TURING),
    ('store_i32(along(b, thread(), i32(c)), ok, 1)', {'IMAD.WIDE': 1, 'STG.E': 1}, TURING),
    ('x = load_f32(a, ok)\nstore_f32(b, ok, fma(x, x, x))', {'FFMA': 1, 'LDG.E.CONSTANT': 1, 'STG.E': 1}, TURING),
    ('x = load_f64(a, ok)\nstore_f64(b, ok, fma(x, x, x))', {'DFMA': 1, 'LDG.E.64.CONSTANT': 1, 'STG.E.64': 1},
     TURING),
    ('store_f16(b, ok, load_f16(a, ok) + 1)', {'LDG.E.U16.CONSTANT': 1, 'HADD2.F32': 1, 'STG.E.U16': 1}, TURING),
    ('store_bf16(b, ok, load_bf16(a, ok) + 1)', {'LDG.E.U16.CONSTANT': 1, 'STG.E.U16': 1}, TURING),
    ('store_bf16(b, ok, load_f32(a, ok))', {'F2FP.BF16': 1, 'LDG.E.CONSTANT': 1, 'STG.E.U16': 1}, AMPERE),
    ('store_i32(b, ok, load_i32(a, ok))', {'LDG.E.CONSTANT': 1, 'STG.E': 1}, TURING),
    *((f'store_{name}(b, ok, reload_{name}(b, ok) + 1)',
       {f'LDG.E{wide}': 1, f'LDG.E{wide}.CONSTANT': 0, f'STG.E{wide}': 1}, TURING)
      for name, wide in (('f16', '.U16'), ('bf16', '.U16'), ('f32', ''), ('f64', '.64'))),
    *((f'store_{kept}(b, ok, load_{name}(a, ok))\nstore_{kept}(b, ok, reload_{name}(b, ok))',
       {f'LDG.E{loaded}.CONSTANT': 1, f'LDG.E{loaded}': 2, f'STG.E{stored}': 2}, TURING)
      for name, kept, loaded, stored in (
          ('i8', 'i8', '.S8', '.U8'), ('u8', 'i8', '.U8', '.U8'), ('i16', 'i32', '.S16', ''),
          ('u16', 'i16', '.U16', '.U16'), ('i32', 'i32', '', ''), ('u32', 'i64', '', '.64'),
          ('i64', 'i64', '.64', '.64'))),
    *((f'store_{name}(b, ok, number_{name}(c))', {'STG.E': 1}, TURING) for name in ('f32', 'f64', 'i32', 'i64')),
    ('put_i32(s, ok, i32(c))\nstore_i32(b, ok, shared_i32(s))', {'STS': 1, 'LDS': 1}, TURING),
    ('put_i64(s, ok, c)\nstore_i64(b, ok, shared_i64(s))', {'STS.64': 1, 'LDS.64': 1}, AMPERE),
    ('put_f32(s, ok, f32(c))\nstore_f32(b, ok, shared_f32(s))', {'STS': 1, 'LDS': 1}, TURING),
    ('put_f64(s, ok, f64(c))\nstore_f64(b, ok, shared_f64(s))', {'STS.64': 1, 'LDS.64': 1}, AMPERE),
    ('put_b32(s, ok, u32(c))\nstore_i32(b, ok, shared_b32(s))', {'STS': 1, 'LDS': 1}, TURING),
    ('q = shared_f32x4(s)\nstore_f32(b, ok, q[0] + q[1] + q[2] + q[3])', {'LDS.128': 1, 'LDS': 1, 'FADD': 3}, AMPERE),
    ('q = shared_f64x2(s)\nstore_f64(b, ok, q[0] + q[1])', {'LDS.128': 1, 'LDS': 1, 'DADD': 1}, AMPERE),
    ('q = load_b32x4(a, ok)\nstore_b32x4(b, ok, q[3], q[2], q[1], q[0])',
     {'LDG.E.128.CONSTANT': 1, 'LDG': 1, 'STG.E.128': 1, 'STG': 1}, AMPERE),
    ('store_b32x2(b, ok, i32(a), i32(c))', {'STG.E.64': 1, 'STG': 1}, TURING),
    ('x = load_f32(a, ok)\nstore_f32x2(b, ok, x, f32(1))', {'STG.E.64': 1, 'STG': 1}, TURING),
    ('x = load_f64(a, ok)\nstore_f64x2(b, ok, x, f64(1))', {'STG.E.128': 1, 'STG': 1}, TURING),
    *((f'x = load_f32(a, ok)\nstore_i32(b, ok, pair_{kind}(x, f32(c)))', {opcode: 1, 'F2F': 0}, AMPERE)
      for kind, opcode in (('f16', 'F2FP'), ('bf16', 'F2FP.BF16'))),
    ('store_i32(b, ok, neighbour(thread()))', {'SHFL.BFLY': 1, 'STG.E': 1}, TURING),
    ('copy4(s, a, ok)', {'LDGSTS.E': 1, 'LDG': 0, 'STS': 0}, AMPERE),
    ('copy8(s, a, ok)', {'LDGSTS.E.64': 1, 'LDG': 0, 'STS': 0}, AMPERE),
    ('copy16(s, a, ok)', {'LDGSTS.E.BYPASS.128': 1, 'LDG': 0, 'STS': 0}, AMPERE),
    *((f'q = load_{kind}x{n}(a, ok)\nstore_f32(b, ok, {" + ".join(f"q[{i}]" for i in range(n))})',
       {f'LDG.E{wide}.CONSTANT': 1}, TURING) for kind, n, wide in (
           ('f16', 2, ''), ('f16', 4, '.64'), ('bf16', 2, ''), ('bf16', 4, '.64'), ('f32', 2, '.64'))),
    ('let_next_begin()', {'PREEXIT': 1}, HOPPER),
    ('copy16(s, a, ok)\ncommit()\nwait(3)', {'LDGDEPBAR': 1, 'DEPBAR.LE': 1}, AMPERE),
    (f'{MATRICES}\nstore_i32(b, ok, q[0] + q[1] + q[2] + q[3])', {'LDSM.16.M88.4': 1}, TURING),
    ('q = ldmatrix_transposed(s)\nstore_i32(b, ok, q[0] + q[1] + q[2] + q[3])', {'LDSM.16.MT88.4': 1}, TURING),
    *((f'{MATRICES}\nx = f32(c)\nd = mma_{kind}((x, x, x, x), q, (q[0], q[1]))\n'
       'store_f32(b, ok, d[0] + d[1] + d[2] + d[3])', {opcode: 1}, AMPERE)
      for kind, opcode in (('f16', 'HMMA.16816.F32'), ('bf16', 'HMMA.16816.F32.BF16'), ('tf32', 'HMMA.1688.F32.TF32'))),
    ('x = f64(c)\nd = mma_f64((x, x), x, x)\nstore_f64(b, ok, d[0] + d[1])', {'DMMA': 1}, AMPERE),
    (f'x = f64(c)\nd = mma_f64_m16n8k16((x, x, x, x), ({"x, " * 8}), (x, x, x, x))\n'
     'store_f64(b, ok, d[0] + d[1] + d[2] + d[3])', {'DMMA.16x8x16': 1}, HOPPER),
    ('store_i32(b, ok, round_tf32(f32_bits(load_f32(a, ok))))', {'STG.E': 1}, AMPERE),
    ('h, l = split_tf32(u32(a))\nstore_f32(b, ok, bits_f32(h) * bits_f32(l))', {'FADD': 1, 'FSETP': 1}, AMPERE),
]


BODIES = [body for body, _, _ in CASES]
TOGETHER = 10                           # bodies that are disassembled at once, since nvdisasm takes long to start


@functools.cache
def opcodes_of_cases(first, capability):
    bodies = [body for body, _, since in CASES[first:first + TOGETHER] if since <= capability]
    return dict(zip(bodies, all_opcodes([body.splitlines() for body in bodies], capability)))


@pytest.mark.parametrize(('body', 'expected', 'since'), CASES, ids=[case[0].partition('\n')[0] for case in CASES])
@pytest.mark.parametrize('capability', [TURING, *[AMPERE] * TEST_ALL, HOPPER], ids='sm_{0[0]}{0[1]}'.format)
def test_primitive(body, expected, since, capability):
    if capability < since:
        return  # the chip has no such instruction
    found = opcodes_of_cases(BODIES.index(body) // TOGETHER * TOGETHER, capability)[body]
    numbers = {opcode: count(found, opcode) for opcode in expected}
    assert numbers == expected, found


def test_every_primitive_is_tried():
    words = set(re.findall(r'\w+', '\n'.join([*PROLOGUE, *(body for body, _, _ in CASES)])))
    assert set(ptx.PRIMITIVES) <= words


@pytest.mark.parametrize('capability', [TURING, HOPPER])
def test_no_access_where_not_ok(capability):
    body = [line for case, _, since in CASES for line in case.splitlines() if since <= capability]
    text = ptx.to_ptx(kernel(*body), 128, 1, capability)
    accesses = re.findall(r'(@p )?(?:ld\.global|st\.global|st\.shared)', text)
    assert len(accesses) > 20
    assert all(accesses)
    assert '@p ld.global.nc' in text
    assert len(re.findall(r'ld\.global\.[bsu]', text)) == sum('reload' in line for line in body)


# Chips before sm_80

@pytest.mark.parametrize(('size', 'width'), [(4, ''), (8, '.64'), (16, '.128')])
def test_copies_before_sm_80_are_made_at_once(size, width):
    body = f'copy{size}(s, a, ok)', 'commit()', 'wait(1)'
    found = opcodes(*body, capability=TURING)
    assert count(found, f'STS{width}') == 1
    assert sum(number for name, number in found.items() if name.replace('.U', '').startswith(f'LDG.E{width}.C')) == 1
    assert not [opcode for opcode in found if opcode.startswith(('LDGSTS', 'LDGDEPBAR', 'DEPBAR'))]
    text = ptx.to_ptx(kernel(*body), 128, 1, TURING)
    assert re.search(r'@p ld\.global\.nc\S* .*; st\.shared', text)  # zeros are stored where nothing is loaded


@pytest.mark.parametrize('kind', ['f16', 'bf16'])
def test_copies_that_widen(kind):
    found = opcodes(f'copy16_{kind}(s, a, ok)', capability=TURING)
    assert count(found, 'STS.128') == count(found, 'LDG.E.64.CONSTANT') == 1
    assert count(found, 'HADD2.F32') == (4 if kind == 'f16' else 0)
    assert not count(found, 'F2F')


def test_bfloat16_is_rounded_by_hand_before_sm_80():
    found = opcodes('store_bf16(b, ok, load_f32(a, ok))', capability=TURING)
    assert not count(found, 'F2FP')
    assert count(found, 'STG.E.U16') == 1


# What the optimiser may do

@pytest.mark.parametrize(('between', 'loads'), [
    ('pass', 1), ('x = f32(x + mma_f64((f64(c), f64(c)), f64(c), f64(c))[0])', 1), ('x += load_f32(a, ok)', 1),
    ('barrier()', 2), ('wait(0)', 2), ('copy4(s, a, ok)', 2), ('put_f32(s, ok, x)', 2)])
def test_shared_memory_is_read_again_after(between, loads):
    assert count(opcodes('x = shared_f32(s)', between, 'store_f32(b, ok, x + shared_f32(s))'), 'LDS') == loads


@pytest.mark.parametrize('between', ['barrier()', 'wait(0)'])
def test_matrices_are_read_again_after(between):
    assert count(opcodes('q = ldmatrix(s)', between, 'r = ldmatrix(s)', 'store_i32(b, ok, q[0] + r[0])'), 'LDSM') == 2


def test_arithmetic_that_nobody_reads_is_dropped():
    assert not count(opcodes('q = ldmatrix(s)', 'x = f32(0)', 'mma_f16((x, x, x, x), q, (q[0], q[1]))'), 'HMMA')


# Numba

# Numba's own takes the square of their number.
@pytest.mark.parametrize('name', ['gather f64 64x64', 'direct f16'])
def test_lowering_in_linear_time_finds_what_numba_finds(monkeypatch, name):
    """Of the variables of a whole kernel; and Numba's own is in its place again afterwards."""
    one = next(one for one in configurations.all_kernels() if one.name == name)
    own, quick, found = vars(lowering.Lower)[QUICK.__name__], QUICK, []

    def both(self):
        own(self)
        found.append((self._singly_assigned_vars, len(self._blk_local_varmap)))
        quick(self)
        found.append((self._singly_assigned_vars, len(self._blk_local_varmap)))

    both.__name__ = quick.__name__
    monkeypatch.setattr(ptx, quick.__name__, both)
    ptx.to_ptx(one.source, one.threads, one.blocks, HOPPER)
    (variables, before), (same, after) = found
    assert variables == same and len(variables) > 100 and before == after == 0
    assert vars(lowering.Lower)[quick.__name__] is own


@pytest.mark.parametrize('name', [
    'direct c64 last', 'adjoint i8 reflect', 'finish f64 accumulate', 'depthwise f32'])
def test_what_is_quicker_makes_the_same_code(monkeypatch, name):
    """And Python collects garbage again, what is Numba's is in its place."""
    one = next(one for one in configurations.all_kernels() if one.name == name)
    places = (ptx.functions.BaseFunction, 'get_call_type'), (ptx.untyped_passes.ReconstructSSA, 'run_pass')
    before = [vars(place)[name] for place, name in places]
    quick = ptx.to_ptx(one.source, one.threads, one.blocks, HOPPER)
    assert gc.isenabled() and [vars(place)[name] for place, name in places] == before
    monkeypatch.setattr(ptx, '_quick_numba', contextlib.nullcontext)
    assert ptx.to_ptx(one.source, one.threads, one.blocks, HOPPER) == quick


# Wrong kernels

@pytest.mark.parametrize('number', ['c', 'i32(2)', '-1'])
def test_wait_for_a_number_that_is_not_written_out(number):
    with pytest.raises(TypingError, match='wait must be given a literal n >= 0') as caught:
        ptx.compile(kernel(f'wait({number})'), 128, 1, HOPPER)
    assert re.fullmatch(r'<pyconv kernel kern \w+>, line 4: (.*)', caught.value.__notes__[0])[1] == f'wait({number})'


@pytest.mark.parametrize(('body', 'message'), [
    ('select(ok, i32(c), c)', 'select must be given two values of one type; got int32 and int64'),
    ('fma(f32(1), f32(1), f64(1))', 'fma must be given three f32 or three f64; got float32, float32 and float64'),
])
def test_mixed_types(body, message):
    with pytest.raises(TypingError, match=message):
        ptx.compile(kernel(body), 128, 1, HOPPER)


def test_tensor_cores_before_sm_80():
    with pytest.raises(RuntimeError, match=r'the CUDA linker made no code for sm_75: .*requires \.target sm_80'):
        opcodes('x = f64(c)', 'd = mma_f64((x, x), x, x)', 'store_f64(b, ok, d[0])', capability=TURING)


# Code and its resources

def test_entry():
    text = ptx.to_ptx(kernel(), 96, 3, HOPPER)
    assert re.findall(r'\.entry (\w+)', text) == ['kern']
    assert re.findall(r'\.param \.(\w+)', text) == ['u64'] * len(ARGUMENTS)
    assert re.search(r'\.maxntid 96\b', text)
    assert '.minnctapersm 3' in text


def test_architecture_variant():
    assert b'sm_90a' in ptx.compile(kernel(), 128, 1, HOPPER, 'a').cubin
    assert b'sm_90a' not in ptx.compile(kernel(), 128, 1, HOPPER).cubin


def test_resources():
    body = [f'x{i} = shared_f32(i32(s + {512 * i}))' for i in range(60)] + ['barrier()']
    body += [f'put_f32(i32(s + {512 * i}), ok, x{59 - i})' for i in range(60)]
    free, tight = (ptx.compile(kernel(*body), 1024, blocks, AMPERE) for blocks in (1, 2))
    assert 32 < free.registers <= 64
    assert tight.registers <= 32
    assert free.local == free.shared == 0
    assert tight.local == 4 * count(read([tight.cubin], AMPERE)[0], 'STL') > 0


def test_numpy_without_row_stack(run_python):
    run_python(
        'import numpy; vars(numpy).pop("row_stack", None)\n'
        'from types import SimpleNamespace as Source; from pyconv._gpu import ptx\n'
        'source = Source(name="k", text="def k(a):\\n    store_i32(a, True, 1)\\n", arguments=("a",))\n'
        'ptx.compile(source, 32, 1, (9, 0))')


# Kept on disk

@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / 'cache'
    monkeypatch.setenv('PYCONV_CACHE_DIR', str(place))
    return place


@pytest.fixture
def compilations(monkeypatch):
    """The names of the kernels that are compiled."""
    names, real = [], ptx.compile
    monkeypatch.setattr(ptx, 'compile', lambda source, *rest: names.append(source.name) or real(source, *rest))
    return names


SOURCE = kernel('store_i32(a, ok, 1)')
OTHER = kernel('store_i32(a, ok, 2)', name='other')
ANOTHER_PROCESS = f'''
import sys
from types import SimpleNamespace
from pyconv._gpu import launch
source = SimpleNamespace(name='kern', key={SOURCE.key!r}, text={SOURCE.text!r}, arguments={ARGUMENTS!r})
found = launch._compiled(source, 128, 1, (9, 0))
print(len(found.cubin), found.registers, *(sorted({{'numba', 'llvmlite', 'pyconv._gpu.ptx'}} & set(sys.modules))))
'''


def test_another_process_imports_no_compiler(folder, run_python, caplog):
    caplog.set_level(logging.INFO, 'pyconv')
    found = launch._compiled(SOURCE, 128, 1, HOPPER)
    message, = (record.getMessage() for record in caplog.records)
    assert float(re.fullmatch(r'compiled kern for sm_90a in (\d+\.\d) s', message)[1]) < 60
    facts = run_python(ANOTHER_PROCESS, PYCONV_CACHE_DIR=str(folder)).split()
    assert facts == [str(len(found.cubin)), str(found.registers)]


def test_what_was_kept_is_what_was_compiled(folder, compilations):
    first, second = (launch._compiled(SOURCE, 128, 1, HOPPER) for _ in range(2))
    assert first == second
    assert compilations == ['kern']


def other_layout(content):
    """As another version of this file might have written it, under the same key."""
    payload = b'{"name": "kern", "registers": 1}\nabc'
    return sha256(payload).digest() + payload


@pytest.mark.parametrize('damage', [
    other_layout, lambda b: b[:-1], lambda b: b[:20], lambda b: b'', lambda b: b[:-9] + bytes([~b[-9] & 255]) + b[-8:]])
def test_damaged_file(folder, compilations, caplog, damage):
    first = launch._compiled(SOURCE, 128, 1, HOPPER)
    path, = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert [launch._compiled(SOURCE, 128, 1, HOPPER) for _ in range(2)] == [first, first]
    assert compilations == ['kern'] * 2
    assert [record.getMessage() for record in caplog.records] == [f'{path} is damaged: that kernel is compiled again']


def test_no_place_to_keep(tmp_path, monkeypatch, compilations, caplog):
    (tmp_path / 'file').touch()
    monkeypatch.setenv('PYCONV_CACHE_DIR', str(tmp_path / 'file' / 'cache'))
    for source in (SOURCE, OTHER):
        assert launch._compiled(source, 128, 1, HOPPER).name == source.name
    assert compilations == ['kern', 'other']
    message, = (record.getMessage() for record in caplog.records)
    place = tmp_path / 'file' / 'cache'
    assert message.startswith(f'compiled CUDA kernels are not kept for the next process in {place}: ')


def test_two_processes_at_once(folder, spawn):
    children = [spawn(ANOTHER_PROCESS, PYCONV_CACHE_DIR=str(folder)) for _ in range(2)]
    outputs = {child.communicate(timeout=60)[0] for child in children}
    assert [child.returncode for child in children] == [0, 0]
    assert len({output.split()[0] for output in outputs}) == 1
    assert [path.suffix for path in folder.iterdir()] == ['.cubin']
