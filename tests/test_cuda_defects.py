"""Defects planted in the kernels that are shipped, one at a time: the tests of the GPU would see each of them.

A defect changes the text that would be compiled. What must catch it is the comparison with the reference, or one of the
emulator's checks: of bounds, of poison, of races.

test_hopper does the same for the warpgroups' kernels. Not among the defects, since no result depends on it: that rows
of weights and of grad_output beyond the last, and stages beyond the last, are not copied. What they would bring is
multiplied into results that nobody stores.
"""
import re
from types import SimpleNamespace

import numpy as np
import pytest

import calls
import pyconv
from emulator import KernelError
from gpus import DISTINCT, WAYS, Emulated, take_tile
from problems import P, maps
from pyconv._gpu import tiles
from test_cuda import same

# Every part of a kernel has something to do: padding, strides, rows, channels, positions and taps that fill no tile, no
# chunk and no stage, more stages than the ring has.
PROBLEM = P('defects', (9, 13), (3, 3), (18, 20), padding=1, stride=(1, 2), dilation=(1, 2), batch=4)
DEEP = PROBLEM._replace(name='defects deep', channels=(50, 20), batch=8)  # of stages twice as long
# On the last ones, float64 and float16 have no tensor cores.
WITHOUT = [('float64', (8, 6)), ('float16', (7, 5))]
CHIPS = [*((way, (9, 0)) for way in DISTINCT if 'wgmma' not in way), *WITHOUT]
MMA = [chip for chip in CHIPS if chip not in (('float32', (9, 0)), *WITHOUT)]
PAIRS_OF_B = [chip for chip in MMA if not chip[0].startswith('float64')]
DOUBLES = [chip for chip in MMA if chip[0].startswith('float64')]


def fewer(match):
    """A ring of one stage less."""
    whole = int(match[2])
    return f'{match[1]}{whole - whole // 3}'


RESULT = r'(total\w* = |wanted\w*, |\], )'           # before a sum that is about to be stored
BOTH = {
    'the wait is for one stage too few': (CHIPS, r'wait\((\d)\)', lambda match: f'wait({int(match[1]) + 1})'),
    'no barrier between stages': (CHIPS, r'\n        barrier\(\)', ''),
    'the barrier comes before the wait': (CHIPS, r'(wait\(\d\))\n        (barrier\(\))', r'\2\n        \1'),
    'copies of the loop form no group': (CHIPS, r'\n        commit\(\)', ''),
    'the ring is read a stage too early': (CHIPS, r'(read\w* == base \+ )(\d+)', fewer),
    'the ring is written a stage too early': (CHIPS, r'(write\w* = i32\(base \+ )(\d+)', fewer),
    'the ring is written in another order': (CHIPS, r'(write\w* == base \+ )(\d+)', fewer),
    'padding is read': (CHIPS, r' & inside_in\d+\)', ')'),
    'two results have changed places along a row': (CHIPS, rf'{RESULT}acc_0_0\b', r'\1acc_0_1'),
    'two results have changed places along a column': (CHIPS, rf'{RESULT}acc_1_0\b', r'\1acc_0_0'),
    'all rows of a lane are its first': (
        CHIPS, r'(lane_row \+ |place\w* \+ )[1-9]\d*(\) \* 8| \* target_row)', r'\g<1>0\2'),
    'halves of a fragment have changed places': (
        PAIRS_OF_B, r'\((q_in\d+|high_in\d+|low_in\d+)(\[0\]), \1(\[1\])\)', r'(\1\3, \1\2)'),
    'rows of a fragment have changed places': (
        MMA, rf'{RESULT}acc_0_0\[0\]', r'\1acc_0_0[1]'),
    'parts are stored over each other': (CHIPS, r'part \* target_part', '0 * target_part'),
}
GATHER = {
    'chunks are copied to another place': (CHIPS, r'(chunk\w* \^ \(?)(line\w*(?: >> 1)?) & ([37])', r'\1(\2) + 1 & \3'),
    'chunks are read from another place': (
        CHIPS, r'((?:a_line|row|g)_in\d+(?: >> 1)?) & ([37])', r'(\1) + 1 & \2'),
    'positions beyond the last are read': (
        CHIPS, r'(cell_x_\d = select\([^,]*, )(\w+), i32\(-1073741824\)\)', r'\1\2, \2)'),
    'the reduction has no end': (CHIPS, r' & \(k_in\d+ < i32\(chunks\)\)', ''),
    'taps go the other way': (CHIPS, r'(dx_in\d+ = i32\()', r'\1-'),
    'taps go the other way for bounds alone': (CHIPS, r'cell_x_(\d) \+ dx_', r'cell_x_\1 - dx_'),
    'parts of the reduction are all the first': (CHIPS, r'part \* i32\(stages\)', '0 * i32(stages)'),
    'steps of a fragment have changed places': (DOUBLES, r'(of_a_in\d+ = \(?a_in\d+_0_0)\[0\]', r'\1[1]'),
}
CORRELATE = {
    'chunks are copied to another place': (
        CHIPS, r'(b_chunk \^ \(line_in\d+ >> 0) & ([37])', r'\1 + 1 & \2'),
    'chunks are read from another place': (
        CHIPS, r'(\^ \(\(lane & [37]\) >> 0) & ([37])|(a_at \+ \d+ \^) 2',
        lambda match: f'{match[1]} + 1 & {match[2]}' if match[1] else f'{match[3]} 0'),
    'positions beyond the last are read': (CHIPS, r' & \(p_in\d+ < end\)', ''),
    'taps go the other way': (CHIPS, r'offset_x \+ tx', 'offset_x - tx'),
}
FINISH = {
    'the last part is not summed': (CHIPS, r'i32\(parts - 1 - rounds', 'i32(parts - 2 - rounds'),
    'the first part is summed twice': (CHIPS, r'\((first\w*) \+ 0\) \* partial_part', r'(\1 - 1) * partial_part'),
}
# Of the tile for few rows, whose threads find the places of two lines each.
FEW = {
    'places are found for half of the lines': (r'of_tile_in(\d+) = i32\(t \+ 64\)', r'of_tile_in\1 = t'),
    'places are those of lines before': (r'(m_in\d+ = i32\(first_m \+ of_tile_in\d+)\)', r'\1 % 64)'),
}
DEFECTS = {'gather': BOTH | GATHER | {name: ([], *how) for name, how in FEW.items()}, 'correlate': BOTH | CORRELATE,
           'finish': FINISH}
SMALL, LAST = 1, 3  # numbers of tiles
CASES = [(kernel, defect, *chip, SMALL) for kernel, defects in DEFECTS.items()
         for defect, (chips, _, _) in defects.items() for chip in chips]
CASES += [(kernel, defect, *chip, LAST)
          for kernel, chip, defects in (('gather', ('float16', (9, 0)), BOTH), ('correlate', ('float32', (9, 0)), BOTH),
                                        ('correlate', ('float16', (9, 0)), CORRELATE))
          for defect in [*(FEW if kernel == 'gather' else ()), *(name for name in defects if chip in defects[name][0])]]


def plant(gpu, kernel, change):
    """Launches of that kernel run a changed text."""
    real = gpu.device.kernel

    def changed(source, *settings):
        if source.name == kernel:
            text = change(source.text)
            assert text != source.text, 'there is nothing to change'
            source = SimpleNamespace(name=source.name, key='', arguments=source.arguments, text=text)
        return real(source, *settings)
    gpu.device.kernel = changed


def check(gpu, way, kernel):
    """One map that the kernel is of, in tiles and several parts, against the reference."""
    dtype, keywords = WAYS[way]
    problem = DEEP if way in ('float16', 'tf32') and gpu.device.capability >= (8, 0) else PROBLEM
    data = problem.integers(np.dtype('float64'), low=-2, high=2)
    x, w, y = (gpu.upload(array, dtype) for array in (data.x, data.w, data.y))
    wanted = maps(problem, data.x, data.w, data.y)
    if kernel == 'correlate':
        same(gpu, calls.grad_weight(problem, x, y, **keywords), wanted.grad_weight, dtype)
    else:
        same(gpu, calls.forward(problem, x, w, **keywords), wanted.forward, dtype)


@pytest.fixture
def prepared(monkeypatch):
    """A GPU of that capability, all work in tiles of that number and in two parts."""
    monkeypatch.setattr(tiles, 'is_direct', lambda *_: False)
    monkeypatch.setattr(tiles, 'parts_of_gather', lambda *_: 2)
    monkeypatch.setattr(tiles, 'parts_of_correlate', lambda *_: 2)

    def made(capability, size=SMALL):
        take_tile(monkeypatch, size)
        return Emulated(monkeypatch, capability=capability)
    return made


@pytest.mark.parametrize(('kernel', 'size'), [
    (kernel, size) for kernel in ('gather', 'correlate') for size in (SMALL, LAST)])
@pytest.mark.parametrize(('way', 'capability'), CHIPS)
def test_no_defect(prepared, kernel, size, way, capability):
    check(prepared(capability, size), way, kernel)


@pytest.mark.sparse
@pytest.mark.parametrize(('kernel', 'defect', 'way', 'capability', 'size'), CASES)
def test_defect(prepared, kernel, defect, way, capability, size):
    gpu = prepared(capability, size)
    _, pattern, replacement = DEFECTS[kernel][defect]
    plant(gpu, kernel, lambda text: re.sub(pattern, replacement, text))
    with pytest.raises((KernelError, AssertionError)) as caught:
        check(gpu, way, kernel)
    assert 'nothing to change' not in str(caught.value)


def without_each_barrier(prepare, kernel, run):
    """(how many barriers the kernel has, those without which `run(gpu)` on a new `prepare()` shows no race)."""
    unseen, count, number = [], 1, 0
    while number < count:
        gpu = prepare()

        def without(text):
            nonlocal count
            places = [match.span() for match in re.finditer(r'\n    barrier\(\)', text)]
            count = len(places)
            start, end = places[number]                                  # noqa: B023 (called in this round)
            return text[:start] + text[end:]

        plant(gpu, kernel, without)
        try:
            run(gpu)
            unseen.append(number)
        except KernelError as error:
            assert 'race in shared memory' in str(error)
        number += 1
    return count, unseen


@pytest.mark.parametrize('kernel', ['direct_weight', 'channel_sum'])
def test_every_barrier_is_needed(prepared, monkeypatch, kernel):
    """Of the kernels without stages: without any one of their barriers, some warps race."""
    data = PROBLEM.integers(np.dtype('float64'))

    def prepare():
        gpu = prepared((9, 0))
        if kernel == 'direct_weight':
            monkeypatch.setattr(tiles, 'is_direct', lambda *_: True)
        return gpu

    def run(gpu):
        x, y = (gpu.upload(array, 'float32') for array in (data.x, data.y))
        pyconv.conv_bias(y) if kernel == 'channel_sum' else calls.grad_weight(PROBLEM, x, y)

    count, unseen = without_each_barrier(prepare, kernel, run)
    assert count > 0 and not unseen
