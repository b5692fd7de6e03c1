"""Every kernel's machine code, in worker processes: what the tests of configurations and the predictions read."""
import ast
import functools
import gc
import pickle
import re
import time
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import NamedTuple

from pyconv._gpu import configurations, sass

# What a primitive is in machine code (sm_75 writes LDS.U.128 for LDS.128).
OPCODES = {
    'mma_f16': r'HMMA\.16816\.F32', 'mma_bf16': r'HMMA\.16816\.F32\.BF16', 'mma_tf32': r'HMMA\.1688\.F32\.TF32',
    'mma_f64': r'DMMA\.(884|8x8x4)',
    'mma_f64_m16n8k16': r'DMMA\.16x8x16',
    'fma': r'[FD]FMA', 'ldmatrix': r'LDSM\.16\.M88\.4',
    'ldmatrix_transposed': r'LDSM\.16\.MT88\.4', 'shared_f32x4': r'LDS(\.U)?\.128', 'shared_f64x2': r'LDS(\.U)?\.128',
    'shared_f64': r'LDS(\.U)?\.64', 'shared_b32': r'LDS(\.U)?', 'copy16': r'LDGSTS\.E\.BYPASS\.128',
    'commit': 'LDGDEPBAR', 'wait': r'DEPBAR\.LE', 'barrier': r'BAR\.SYNC.*',
    **{f'wgmma_{kind}_{n}{across}': rf'HGMMA\.64x{n}x16\.F32{suffix}' for n in (64, 128, 256)
       for kind, suffix in (('f16', ''), ('bf16', r'\.BF16')) for across in ('', '_across')},
    **{f'wgmma_tf32_{n}': rf'HGMMA\.64x{n}x8\.F32\.TF32' for n in (64, 128, 256)}}
# Chips before sm_80 copy through registers, at once.
OPCODES_BEFORE_SM80 = OPCODES | {'commit': None, 'wait': None} | dict.fromkeys(
    ('copy16', 'copy16_f16', 'copy16_bf16'), r'STS\.128')


class Code(NamedTuple):
    """Machine code for one capability: resources, how often each opcode is in it, its loops; whether it waits for the
    kernel before it ahead of all that touches memory, and lets the next one begin behind its last copy; whether the
    operands of a warpgroup's products lie across."""

    registers: int
    local: int
    opcodes: Counter
    loops: list
    waits_first: bool
    lets_late: bool
    across: set


class Made(NamedTuple):
    """A configuration's source text, its code by capability, seconds from source to code for the first of them."""

    text: str
    codes: dict
    seconds: float


@functools.cache
def by_name():
    return {configuration.name: configuration for configuration in configurations.all_kernels()}


def capabilities(configuration):
    """Those to compile for: not (8, 6) where (8, 0) has the same kernel."""
    found = configuration.capabilities
    return [one for one in found if one != (8, 6) or (8, 0) not in found]


def front_end_once(to_ptx, replaced):
    """`to_ptx` that is run once for all chips from sm_80 on, which get the same PTX but for the line that names them
    (see test_one_front_end_serves_several_chips); so do older ones, where no primitive is replaced for them. The rest
    of the way to machine code, on which chips differ, takes a sixth of the time. Of one text it is run once, too."""
    kept = {}

    def for_chip(source, threads, blocks, capability):
        is_other = capability < (8, 0) and bool(replaced & set(re.findall(r'\w+', source.text)))
        key = source.text, threads, blocks, is_other
        if key not in kept:
            kept[key] = to_ptx(source, threads, blocks, capability)
        return re.sub(r'(?m)^\.target sm_\d+', f'.target sm_{capability[0]}{capability[1]}', kept[key])
    return for_chip


def start_worker():
    """Warm up, so that a configuration's seconds are its own: Numba loads much of itself at its first kernel. Garbage
    is looked for after each group of kernels, and not while they are made, which took a fifteenth of the time."""
    gc.disable()
    from pyconv._gpu import primitives, ptx
    first = by_name()['clear_flag f32']
    ptx.compile(first.source, first.threads, first.blocks, (9, 0))
    ptx.to_ptx = front_end_once(ptx.to_ptx, set(primitives.BEFORE_SM80))


def make(names, chips=None, **given):
    """Configurations by name, compiled for these chips or for all that they are for; as if the kernel knew what is
    given of the arguments that it asks whether they are 0: without the code of the other cases."""
    from pyconv._gpu import ptx
    made, compiled = {}, defaultdict(list)
    for name in names:
        one = by_name()[name]
        text = one.source.text
        for argument, value in given.items():
            text = re.sub(rf'\bif {argument} != 0', f'if {value} != 0', text)
        source = SimpleNamespace(name=one.source.name, arguments=one.source.arguments, text=text)
        seconds = []
        for capability in chips or reversed(capabilities(one)):
            start = time.process_time()
            variant = 'a' if capability == (9, 0) else ''        # as launch.py has it
            code = ptx.compile(source, one.threads, one.blocks, capability, variant)
            seconds.append(time.process_time() - start)
            compiled[f'sm_{capability[0]}{capability[1]}{variant}'].append((name, capability, code))
        made[name] = Made(text, {}, seconds[0])
    for architecture, found in compiled.items():
        codes = sass.disassemble([code.cubin for _, _, code in found], architecture)
        for (name, capability, code), words in zip(found, codes):
            order = re.findall(r'ACQBULK|PREEXIT|(?:LD|ST|ATOM|RED|UTMA)(?!C)\w*', ' '.join(w.opcode for w in words))
            made[name].codes[capability] = Code(
                code.registers, code.local, sass.opcodes(words), sass.loops(words), order[0] == 'ACQBULK',
                'LDGSTS' in order and 'LDGSTS' not in order[order.index('PREEXIT'):] if 'PREEXIT' in order else False,
                {'.tnspA.tnspB' in word.operands for word in words if word.opcode.startswith('HGMMA')})
    return made


def make_once(names, folder):
    """The path of the file that what `make` gives is in, or will be in where another process is at it."""
    path = folder / f'{names[0].replace(" ", "_")}.made'
    try:
        path.with_suffix('.begun').touch(exist_ok=False)
    except FileExistsError:
        return path
    try:
        made = make(names)
    except Exception:                    # one's fault is not the others'
        made = {name: made_or_refused(name) for name in names}
    path.with_suffix('.part').write_bytes(pickle.dumps(made))
    gc.collect()
    return path.with_suffix('.part').rename(path)


def made_or_refused(name):
    try:
        return make([name])[name]
    except Exception as error:
        return error


@functools.lru_cache(maxsize=4)
def made_once(path):
    """What `make` gave in one of the processes."""
    end = time.monotonic() + 600
    while not path.exists():
        assert time.monotonic() < end, f'{path} was begun and not ended'
        time.sleep(0.05)
    return pickle.loads(path.read_bytes())


def calls(body):
    """(how often each primitive is called in the statements, the loops among them as (rounds, calls))"""
    own, inner = Counter(), []
    for statement in body:
        if isinstance(statement, ast.For):
            count, = statement.iter.args
            inner.append((ast.literal_eval(count), calls(statement.body)[0]))
        else:
            own += Counter(node.func.id for node in ast.walk(statement) if isinstance(node, ast.Call))
    return own, inner


@functools.lru_cache(maxsize=256)
def stage_of(text):
    """`calls` of the loop over stages, the one loop of a product's kernel."""
    [function] = ast.parse(text).body
    [loop] = [statement for statement in function.body if isinstance(statement, ast.For)]
    return calls(loop.body)


def stage_loop(code):
    """The machine code's loop over stages: the one that waits at a barrier."""
    [loop] = [loop for loop in code.loops if number(loop.own, OPCODES['barrier'])]
    return loop


def number(opcodes, pattern):
    return sum(count for opcode, count in opcodes.items() if re.fullmatch(pattern, opcode))
