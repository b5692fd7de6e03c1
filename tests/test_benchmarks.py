"""The benchmarks' parts that need no clock and no GPU: layers, statistics, tables, pictures, the plan of a dry run."""
import contextlib
import functools
import json
import math
import re
import runpy
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import compiled
import gpus
import sanitize
from problems import TEST_ALL, VARIED, VARIED_MODES, WHOLE
from pyconv._gpu import configurations, launch, packing, sass, tiles

FOLDER = Path(__file__).parents[1] / 'benchmarks'
if not FOLDER.is_dir():
    pytest.skip('installed without its source', allow_module_level=True)
sys.path.append(str(FOLDER))
import packages  # noqa: E402, F401  before torch

import gpu_session  # noqa: E402
import harness  # noqa: E402
import launch_bounds  # noqa: E402
import layers  # noqa: E402
import picture  # noqa: E402
import planned  # noqa: E402
import rows as gpu_rows  # noqa: E402

sys.path.remove(str(FOLDER))  # it has a file named cuda


def made_up(network='ResNet-50, batch 64', layer='1×1 on 7×7, 8→8', dtype='float16', map='forward', seconds=1e-4,
            ratio=1.0, turned=2.0, depthwise=False, **more):
    return {'network': network, 'layer': layer, 'count': 2, 'batch': 64, 'map': map, 'dtype': dtype, 'flop': 10**9,
            'elements': 10**6, 'torch_seconds': ratio * seconds, 'pyconv_seconds': seconds, 'ratio': ratio,
            'torch_channels_last_seconds': turned and turned * seconds,
            'pyconv_channels_last_seconds': turned and seconds, 'ratio_channels_last': turned,
            'bound_seconds': seconds / 2, 'bound_by': 'products', 'share_of_bound': 0.5, 'share_of_peak': 0.25,
            'pyconv_error': 1e-7, 'torch_error': 1e-7, 'right': True, 'depthwise': depthwise, 'trials': {}, **more}


def test_networks_of_the_gpu():
    networks = layers.GPU_NETWORKS
    assert {network.batch for network in networks.values()} == {1, 8, 16, 32, 64, 256}
    assert networks['resnet50'].name == 'ResNet-50, batch 64' and networks['resnet50'].layers == layers.NETWORKS[
        'resnet50'].layers
    assert sum(networks['resnet50'].layers.values()) == 53
    assert all(layer.groups == layer.in_channels for layer in networks['depthwise'].layers)
    assert len({network.name for network in networks.values()}) == len(networks)
    assert set(layers.NETWORKS) <= set(networks), 'those of the CPU'
    others = set(layers.NETWORKS['others'].layers)
    assert not any(others & set(network.layers) for key, network in layers.NETWORKS.items() if key != 'others')


def test_work_is_network_by_network():
    tiny = layers.GPU_NETWORKS['tiny']
    work = harness.work_of([tiny], ('float16', 'tf32'), ('forward',))
    assert [row[3] for row in work] == ['float16'] * 7 + ['tf32'] * 7
    assert [row[1] for row in work[:7]] == list(tiny.layers)


def test_rows_end_at_the_deadline_and_keep_what_was_timed(capsys, monkeypatch):
    tiny = layers.GPU_NETWORKS['tiny']
    work = harness.work_of([tiny], ('float16',), harness.MAPS)
    monkeypatch.setattr(harness, 'tqdm', None)
    rows = []
    now = iter([0, 1, 2, 3, 4])
    monkeypatch.setattr(time, 'monotonic', lambda: next(now))
    given = iter([{'a': 1}, None, {'a': 2}])
    assert harness.run_rows(work, 'heading', lambda *_: next(given), str, 2.5, rows) is rows
    assert rows == [{'a': 1}, {'a': 2}]
    said = capsys.readouterr().out
    assert 'out of time: 18 rows are left out, from Tiny, batch 1, float16 on' in said and "{'a': 2}  [3/21]" in said


def test_means():
    [entry] = harness.summarise([made_up(ratio=1.0), made_up(ratio=4.0, layer='other', seconds=3e-4)])
    assert entry['geometric_mean'] == pytest.approx(2) and (entry['least'], entry['most']) == (1, 4)
    assert entry['ratio_of_total_time'] == pytest.approx((1 + 12) / 4)
    assert '2.00' in harness.summary_text([entry])


def test_targets():
    rows = [made_up(ratio=0.5), made_up(ratio=1.0, layer='other', turned=None),
            made_up(network='Tiny, batch 1', dtype='tf32x3', ratio=1.2, turned=None),
            made_up(network='3-D, batch 8', dtype='float64', ratio=1.4, depthwise=True),
            made_up(network='VGG-16, batch 32', ratio=9.0), made_up(dtype='tf32x3', ratio=0.1)]
    found = {(entry['what'], entry['dtype']): entry for entry in gpu_rows.verdicts(rows)}
    assert set(found) == {('ResNet-50, batch 64', 'float16'), ('Tiny, batch 1', 'tf32x3'), ('depthwise', 'float64')}
    resnet = found['ResNet-50, batch 64', 'float16']
    assert resnet['mean'] == pytest.approx(math.sqrt(0.5)) and resnet['met'] and resnet['layers'] == 2
    assert resnet['mean_channels_last'] == pytest.approx(2)
    assert found['Tiny, batch 1', 'tf32x3']['met'] and not found['depthwise', 'float64']['met']
    text = gpu_rows.verdicts_text(list(found.values()))
    assert text.count('met') == 2 and text.count('missed') == 1


def trial(name, seconds, turned):
    return {name: {'seconds': seconds, 'channels_last_seconds': turned, 'error': 0}}


def test_targets_are_met_in_both_orders():
    [entry] = gpu_rows.verdicts([made_up(ratio=0.8, turned=0.6)])
    assert entry['mean'] > entry['target'] > entry['mean_channels_last'] and not entry['met']


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_wgmma_has_a_target_of_its_own(dtype):
    """0.9 of torch in both orders, whatever pyconv's own choice takes."""
    rows = [made_up(dtype=dtype, ratio=0.5, turned=0.75, trials=trial('wgmma', 5e-5, 1e-4)),
            made_up(dtype=dtype, layer='other', ratio=0.5, turned=0.75, trials=trial('wgmma', 5e-5, None))]
    own, hopper = gpu_rows.verdicts(rows)
    assert (own['what'], own['target'], own['met']) == ('ResNet-50, batch 64', 0.7, False)
    assert (hopper['what'], hopper['target'], hopper['met']) == ('ResNet-50, batch 64, wgmma', 0.9, False)
    assert hopper['mean'] == pytest.approx(1) and hopper['mean_channels_last'] == pytest.approx(0.75)
    assert gpu_rows.KINDS[dtype].trials == ('wgmma',)


def test_trials_beside_what_is_chosen():
    rows = [made_up(dtype='float64', trials=trial('m16n8k8', 5e-5, 2e-4)),
            made_up(dtype='float64', layer='other', trials=trial('m16n8k8', 8e-4, None)), made_up()]
    [entry] = gpu_rows.trial_means(rows)
    assert (entry['algorithm'], entry['map'], entry['layers']) == ('m16n8k8', rows[0]['map'], 2)
    wanted = math.sqrt(rows[0]['pyconv_seconds'] / 5e-5 * rows[1]['pyconv_seconds'] / 8e-4)
    assert entry['mean'] == pytest.approx(wanted) and entry['mean_channels_last'] == pytest.approx(0.5)
    assert f"m16n8k8   {entry['map']}" in gpu_rows.trials_text([entry])
    assert gpu_rows.KINDS['bfloat16'].trials_of((9, 0)) == ['wgmma']
    assert not gpu_rows.KINDS['bfloat16'].trials_of((8, 0))


def test_a_result_is_right_by_the_limit_or_beside_torch():
    kind = gpu_rows.KINDS['float32']
    assert gpu_rows.is_right([1e-7, 9e-7], kind) and gpu_rows.is_right([2e-6, 2.9e-6, 1e-6], kind)
    assert not gpu_rows.is_right([2e-6, 1e-6, 3.1e-6], kind)
    assert not gpu_rows.is_right([1e-7, math.nan], kind)


def test_small_operands_are_copied_so_that_the_cache_does_not_hold_them():
    assert gpu_rows.copies_for(10**9) == 1 and gpu_rows.copies_for(1) == 24
    assert gpu_rows.copies_for(50 * 10**6) * 50 * 10**6 >= 3 * 60e6


def test_ratios_and_shares():
    found = gpu_rows.ratios([[4.0, 2.0, 8.0], [3.0, 1.0, 9.0]], [[1, 2]] * 6)
    assert (found['ratio'], found['ratio_channels_last']) == (2, 3)
    assert gpu_rows.ratios([[4.0, 2.0]], [[1, 2]] * 2)['ratio_channels_last'] is None
    found = gpu_rows.of_trials(['wgmma'], [[4.0, 2.0, 8.0], [3.0, 1.0, 9.0]], [[0, 0, 0.1], [0, 0, 0.2]])
    assert found == {'wgmma': {'seconds': 8, 'channels_last_seconds': 9, 'error': 0.2}}
    layer = layers.Layer(2, 2, (4,), (1,))  # 32 multiplications and additions, 20 numbers
    found = gpu_rows.shares(layer, 1, gpu_rows.KINDS['float16'], 4.0, {'float16': 8.0, 'bandwidth': 20.0}, 'float16')
    assert found == {'bound_seconds': 4.0, 'bound_by': 'products', 'share_of_bound': 1.0, 'share_of_peak': 1.0}


def test_a_row_is_a_line():
    for row in (made_up(), made_up(turned=None, right=False)):
        line = gpu_rows.row_text(row)
        assert '\n' not in line and line.endswith(' !') is (not row['right'])
        assert len(line) <= len(gpu_rows.HEADING) + 2


def test_picture_of_a_made_up_record(tmp_path):
    rows = [made_up(network=network, layer=layer, dtype=dtype, map=map, ratio=ratio)
            for network in ('ResNet-50, batch 64', 'Tiny, batch 1') for layer in ('a', 'b')
            for ratio, dtype in enumerate(gpu_rows.KINDS, 1) for map in harness.MAPS]
    record = {'machine': {'processor': 'a GPU'}, 'versions': {'torch': '0', 'pyconv': '0', 'cudnn': '0'},
              'date': '2000-01-01T00:00:00', 'rows': rows, 'summary': harness.summarise(rows),
              'summary_channels_last': harness.summarise(gpu_rows.turned_rows(rows))}
    (tmp_path / 'cuda.json').write_text(json.dumps(record))
    picture.draw(json.loads((tmp_path / 'cuda.json').read_text()), tmp_path / 'cuda.png')
    assert {path.name for path in tmp_path.glob('*.png')} == {
        'cuda.png', 'cuda-networks.png', 'cuda-channels-last.png', 'cuda-channels-last-networks.png'}


def test_channels_last_rows_take_the_place_of_the_others():
    [row] = gpu_rows.turned_rows([made_up(), made_up(turned=None)])
    assert (row['ratio'], row['torch_seconds'], row['share_of_bound']) == (2.0, 2e-4, 0.5)


def test_every_kind_and_map_can_be_planned():
    work = harness.work_of([layers.GPU_NETWORKS['tiny']], gpu_rows.KINDS, harness.MAPS)
    from pyconv._gpu import kinds, launch
    before = launch.device, list(kinds.KINDS)
    with planned.recording() as recorder:
        for row in work:
            kind = gpu_rows.KINDS[row[3]]
            assert not kind.trials_of((8, 0))
            trials = kind.trials_of(recorder.capability)
            calls = planned.calls_of_row(row, kind.dtype, kind.options, trials)
            assert list(calls) == [order + way for order in ('channels first', 'channels last')[:1 + (row[1].rank > 1)]
                                   for way in ('', *(f', {name}' for name in trials))]
            for call in calls.values():
                assert planned.recorded(recorder, call).names
    assert (launch.device, kinds.KINDS) == before
    assert {wanted.source.name for wanted in recorder.kernels.values()} >= {'gather', 'correlate', 'direct', 'pack'}


def test_the_tests_of_the_gpu_can_be_planned(monkeypatch):
    import problems
    monkeypatch.setattr(problems, 'VARIED', problems.VARIED[::8])
    monkeypatch.setattr(problems, 'VARIED_MODES', problems.VARIED_MODES[::8])
    monkeypatch.setattr(problems, 'MORE_AXES', problems.some('4d kernel 1'))
    with planned.recording() as recorder:
        planned.record_tests()
    names = {wanted.source.name for wanted in recorder.kernels.values()}
    assert names >= {'gather', 'correlate', 'direct', 'direct_weight', 'pack', 'pack_weight', 'finish', 'fill', 'scan',
                     'unfold', 'fold', 'channel_sum', 'clear_flag', 'adjoint'}
    assert len({key for key in recorder.kernels if 'gather' in key[0][:10]}) >= 12, 'six ways, two tiles'


@pytest.mark.parametrize('capability', [(8, 0), (8, 9)])
def test_the_tests_of_another_chip_can_be_planned(capability, monkeypatch):
    """Without the ways that it lacks, which the tests skip there."""
    import problems
    monkeypatch.setattr(problems, 'VARIED', problems.VARIED[:2])
    monkeypatch.setattr(problems, 'VARIED_MODES', [])
    monkeypatch.setattr(problems, 'MORE_AXES', [])
    with planned.recording(capability) as recorder:
        planned.record_tests(capability)
    assert recorder.kernels
    monkeypatch.setattr(launch, 'device', lambda index: recorder)
    for way, has in (('float16', True), ('wgmma float16', False), (None, True)):
        node = SimpleNamespace(callspec=SimpleNamespace(params={'way': way})) if way else SimpleNamespace()
        with contextlib.nullcontext() if has else pytest.raises(pytest.skip.Exception, match='wgmma is of capability'):
            gpus.skip_what_the_chip_lacks(SimpleNamespace(node=node))


def test_compiling_goes_on_after_an_error(monkeypatch):
    pytest.importorskip('numba')
    done = [planned.Wanted(SimpleNamespace(name=name), 32, 1) for name in 'abc']

    def compile_one(wanted, capability):
        if wanted.source.name == 'b':
            raise ValueError('no')

    monkeypatch.setattr(planned, 'ProcessPoolExecutor', InThisProcess)
    monkeypatch.setattr(planned, 'compile_one', compile_one)
    assert planned.compile_all(done, (9, 0)) == ['b: ValueError: no']


class InThisProcess:
    def __init__(self, *_):
        pass

    def __enter__(self):
        from concurrent.futures import ThreadPoolExecutor
        return ThreadPoolExecutor(1)

    def __exit__(self, *_):
        pass


@pytest.fixture
def run_script(monkeypatch):
    """Run a benchmark as Python runs a file, in this process, which has all that it imports."""
    def run(name, *words):
        monkeypatch.setattr(sys, 'argv', [name, *words])
        monkeypatch.syspath_prepend(FOLDER)
        runpy.run_path(str(FOLDER / name), run_name='__main__')
    return run


def test_without_a_gpu_it_says_what_is_missing(run_script):
    if torch.cuda.is_available():
        pytest.skip('this machine has a GPU')
    with pytest.raises(SystemExit, match='must see a GPU(?s:.)*--dry'):
        run_script('cuda.py', '--quick')


def test_dry_run(run_script, capsys):
    run_script('cuda.py', '--dry', '--networks', 'tiny', '--dtypes', 'float16', 'tf32x3')
    said = capsys.readouterr().out
    assert '42 rows, ' in said and 'gather' in said


def sanitizer(status, *lines):
    return sanitize.verdict('racecheck', status, '\n'.join(lines), 12.3)


def test_the_sanitizers_verdict():
    found = 'collecting ... collected 12 items / 3 deselected / 9 selected'
    passed = '\n'.join([found, *('test_cuda.py::test_every_way[real-float32-1d] PASSED [ 11%]' for _ in range(9))])
    race = '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'
    assert sanitizer(0, passed, race) == (
        True, 'racecheck: passed, 9 tests in 12 s; RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)')
    assert sanitizer(0, passed, '========= ERROR SUMMARY: 0 errors')[0]
    for status, *lines in ((0, passed), (0, race), (86, passed, race), (None, passed, race), (1, passed, race),
                           (5, race), (0, passed, race.replace(' 0 hazards', ' 2 hazards')),
                           (0, passed, '========= ERROR SUMMARY: 3 errors'),
                           (0, passed, race.replace('(0 errors', '(1 errors'))):
        assert not sanitizer(status, *lines)[0]


def test_the_sanitizers_verdict_on_several_summaries():
    """Of several processes, and of what was not printed; the order in which they come does not matter."""
    passed, none, some, more = 'collected 1 item\na PASSED', *(f'========= ERROR SUMMARY: {rest}' for rest in (
        '0 errors', '34 errors', '14 errors were not printed. Use --print-limit option to adjust the number of printed '
        'errors'))
    assert sanitizer(0, passed, none, none) == (True, 'racecheck: passed, 1 tests in 12 s; ERROR SUMMARY: 0 errors')
    for summaries in ((some, none), (none, some)):
        assert sanitizer(0, passed, *summaries) == (
            False, 'racecheck: failed, exit status 0; 1 of 1 tests passed in 12 s; ERROR SUMMARY: 34 errors')
    assert sanitizer(86, passed, some, more) == (
        False, f'racecheck: failed, it found something; 1 of 1 tests passed in 12 s; {some[10:]}; {more[10:]}')
    assert not sanitizer(0, passed, more)[0]
    assert not sanitizer(0, passed, more.replace('14', '0'))[0], 'no total'


def test_the_sanitizers_time_runs_out():
    """What had passed until then is counted."""
    code = 'import time\nprint("collected 12 items\\na PASSED\\nb PASSED", flush=True)\ntime.sleep(60)'
    status, output = sanitize.run([sys.executable, '-c', code], 3, None)
    assert sanitizer(status, output) == (
        False, 'racecheck: out of time after 12 s; 2 of 12 tests had passed; no summary')
    assert sanitize.run([sys.executable, '-c', 'print(5); raise SystemExit(86)'], 60, None) == (86, '5\n')


@functools.cache
def collected(chosen):
    """The tests that run under the sanitizer, in their order."""
    words = [*sanitize.words_for_pytest(chosen), '--collect-only', '-qq']
    found = subprocess.run(words, capture_output=True, text=True, env=sanitize.environment_of('memcheck'))
    return re.findall(r'(test_\w+)\[real-(.+)\]$', found.stdout, re.MULTILINE)


def test_the_sanitizer_goes_through_the_whole_list():
    """First a few problems, of each all ways before the next; then those of the list that differ most, then the rest.
    """
    found = collected(sanitize.CHOSEN['all'])
    few = collected(sanitize.CHOSEN['few'])
    assert found[:len(few)] == few and len(few) > len(gpus.WAYS) * len(sanitize.PROBLEMS) // 2
    phases = [test == 'test_phases' for test, _ in few]
    assert sum(phases) == 6 and phases == sorted(phases), 'those of a stride come behind the others'
    places = [next(place for place, name in enumerate(sanitize.PROBLEMS) if name in problem) for _, problem in few[:-6]]
    assert places == sorted(places)
    assert {test for test, _ in found[len(few):]} == {'test_every_problem_in_every_type'}
    listed = [problem for _, problem in found[len(few):]]
    varied = {str(problem) for problem in VARIED + VARIED_MODES}
    assert set(listed) == {str(problem) for problem in WHOLE} and set(listed[:len(varied)]) == varied


def test_the_sanitizer_is_told_which_kernels(tmp_path):
    """With a program in its place that prints what it is given."""
    program = tmp_path / 'compute-sanitizer'
    program.write_text('#!/bin/sh\necho "  --kernel-regex arg  which kernels"\n')
    program.chmod(0o755)
    words = sanitize.command(str(program), 'memcheck', 'some')
    named = {after for word, after in zip(words, words[1:]) if word == '--kernel-regex'}
    assert {'kns=adjoint', 'kns=gather'} <= named and words[-2:] == ['-k', 'some']
    assert named == {f'kns={one.source.name}' for one in configurations.all_kernels()}
    program.write_text('#!/bin/sh\nexit 0\n')
    assert not sanitize.options(str(program), 'memcheck')


def test_errors_of_calls_on_the_host_are_not_memchecks(tmp_path):
    """cuda-bindings asks the driver for functions that it lacks; only memcheck knows the option, where it is known."""
    program = tmp_path / 'compute-sanitizer'
    program.write_text('#!/bin/sh\necho "  --report-api-errors arg (=explicit)   which errors of calls"\n')
    program.chmod(0o755)
    given = {tool: ' '.join(sanitize.command(str(program), tool, 'some')) for tool in sanitize.TOOLS}
    assert '--report-api-errors no' in given['memcheck']
    assert not any('--report-api-errors' in given[tool] for tool in ('racecheck', 'synccheck'))
    program.write_text('#!/bin/sh\necho "  --report-all arg"\n')
    assert sanitize.options(str(program), 'memcheck') == []


@pytest.mark.parametrize('chosen', [sanitize.CHOSEN['few'], gpu_session.SANITIZED])
def test_every_problem_that_is_named_is_run(chosen):
    names = set(re.findall(r'\w+-[\w-]+|every_way|large_tiles|padding_modes', chosen))
    found = [f'{test} {problem}' for test, problem in collected(chosen)]
    assert len(names) > 2 and all(any(name in one for one in found) for name in names)


def test_a_result_that_is_not_written_is_wrong(monkeypatch):
    layer, kind = layers.Layer(2, 2, (4, 4), (1, 1)), gpu_rows.KINDS['float32']
    arrays = harness.operands(layer, 1, torch.float32)
    monkeypatch.setattr(harness, 'pyconv_call', lambda *_, new, **more: lambda: new(arrays[2]))
    orders = gpu_rows.checked(layer, 'forward', kind, [arrays], [arrays], ['gemm'])
    assert len(orders) == 2
    for theirs, ours, trial in orders:
        assert theirs < 1e-6 and math.isnan(ours) and math.isnan(trial)
        assert not gpu_rows.is_right([theirs, 0, trial], kind) and not gpu_rows.is_right([theirs, ours, 0], kind)


# Predictions


def loop(inner, slots, **own):
    return sass.Loop(Counter(own), inner, slots)


@pytest.mark.parametrize('name', ['pack', 'unpack', 'scan', 'pack_weight'])
@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
def test_packing_takes_no_more_instructions_than_bytes(name, dtype):
    """Where a thread of pack or unpack copies four chunks: as many as an H200 issues while its memory moves the
    elements; a tenth more, for what memory does not reach of its rate. No shared memory, whole chunks at once."""
    pytest.importorskip('numba_cuda')
    element = tiles.ELEMENTS[dtype]
    kernel = launch_bounds.Kernel(compiled.by_name()[f'{name} {element.suffix}'])
    chunks = {'pack': 4, 'unpack': 4, 'scan': packing.SCANNED, 'pack_weight': 1}[name]
    times, _ = launch_bounds.nest(kernel, [chunks] if name in ('pack', 'unpack') else [])
    a_byte = launch_bounds.MULTIPROCESSORS * 4 * launch_bounds.CLOCK * 32 / launch_bounds.BANDWIDTH
    assert times(launch_bounds.issue) <= a_byte * chunks * 16 * (1 if name == 'scan' else 2) * 1.1
    opcodes = kernel.code.opcodes
    assert kernel.code.local == 0 and not any(word.startswith(('BAR', 'LDS', 'STS')) for word in opcodes)
    if name == 'scan':  # of float64 the halves that have an exponent
        assert opcodes['LDG.E.128.CONSTANT'] == (0 if dtype == 'float64' else chunks)
    elif name == 'unpack':
        assert opcodes['LDG.E.128.CONSTANT'] >= 1 and not opcodes['STG.E.128']
    else:
        assert opcodes['STG.E.128'] >= 1 and opcodes['STG.E'] <= 3


@pytest.mark.parametrize(('name', 'most'), [
    ('fma f32 64x64', 1.2), ('fma f32 128x64', 1.2), ('fma f32 128x16', 1.2), ('tf32x3 128x16', 1.03)])
def test_tiles_are_chosen_by_what_a_stage_takes(name, most):
    """Of those whose instructions or shared memory may bind; what was measured is a little more than is predicted."""
    pytest.importorskip('numba_cuda')
    kernel = launch_bounds.Kernel(compiled.by_name()[f'gather {name}'])
    assert 0.97 <= kernel.configuration.tile.cycles / max(kernel.stage.values()) <= most


def test_no_stage_takes_less_than_its_products_and_copies():
    """By the rates that the predictions take of an H200."""
    for one in configurations.all_kernels():
        if one.tile is not None and launch_bounds.H200 in one.capabilities:
            products = one.tile.bm * one.tile.bn * one.tile.line // one.element.size * (3 if one.way == 'tf32x3' else 1)
            copied = (one.tile.bm + one.tile.bn) * one.tile.line
            least = max(products / launch_bounds.PRODUCTS[one.way],
                        copied * launch_bounds.MULTIPROCESSORS / launch_bounds.L2_BYTES)
            assert least - 1 <= one.tile.cycles <= 2 * least, one.name


def named_kernel(monkeypatch, name, code=None):
    """A kernel of that name, as if its code were this."""
    found = launch_bounds.Kernel(compiled.by_name()[name])
    if code is not None:
        monkeypatch.setattr(launch_bounds.Kernel, 'whole', code)
    return found


def test_rounds_of_nested_loops_are_counted(monkeypatch):
    """The last loop was made one of four rounds with three left behind it, in the loop around it."""
    last = loop([], 40, FFMA=4)
    code = loop([loop([loop([], 1), loop([last], 37, FFMA=3)], 5)], 100)
    times, unrolled = launch_bounds.nest(named_kernel(monkeypatch, 'direct f32', code), [2, 3, 9])
    assert unrolled == 4 and times(lambda part: part.slots) == 100 + 2 * 5 + 2 * 3 * (37 - 30) + 2 * 3 * 9 * 10
    times, _ = launch_bounds.nest(named_kernel(monkeypatch, 'direct f32', code), [0, 3, 9])
    assert times(lambda part: part.slots) == 100
    times, unrolled = launch_bounds.nest(named_kernel(monkeypatch, 'scan f32', code), [])
    assert unrolled == 1 and times(lambda part: part.slots) == 100


def test_integer_instructions_take_two_cycles():
    assert launch_bounds.issue(loop([], 10, **{'IADD3': 2, 'LOP3.LUT': 3, 'FFMA': 5})) == 10
    assert launch_bounds.issue(loop([], 10, **{'IADD3.X': 4, 'LOP3.LUT': 3, 'FFMA': 3})) == 14
    assert launch_bounds.wavefronts(loop([], 9, **{'LDS.128': 2, 'LDS': 1, 'STS.64': 3, 'LDG.E': 9})) == 15


def test_sectors_of_a_warps_results():
    """Eight lines of four columns, two apart: of 2 bytes channels first, and last with 64 channels; of 4 bytes."""
    steps = (2, 2 * 6272), (128, 2), (4, 2 * 12544)
    assert [launch_bounds.sectors(*each, 8, [0, 2, 4, 6]) for each in steps] == [4, 8, 4]


def launched(map_name, layer, dtype='float16', order='channels last', batch=4):
    """A call's launches, each with its kernel, and where scratch is."""
    network, kernels = layers.Network('made up', batch, {layer: 1}), launch_bounds.Kernels()
    with planned.recording() as recorder:
        made = planned.recorded(recorder, planned.calls_of_row((network, layer, map_name, dtype), dtype, {})[order])
    return {kernels.of(one.kernel).configuration.name: (kernels.of(one.kernel), one) for one in made.launches}, made


SQUARE = layers.Layer(64, 128, (28, 28), (1, 1))
IN, WEIGHT, OUT = 2 * 4 * 64 * 784, 2 * 64 * 128, 2 * 4 * 128 * 784


@pytest.mark.parametrize('order, map_name, wanted', [
    (order, *each) for order in ('channels first', 'channels last') for each in (
        ('forward', (IN, WEIGHT, OUT)), ('grad_input', (OUT, WEIGHT, IN)), ('grad_weight', {IN, OUT, 2 * WEIGHT}))])
def test_bytes_of_a_product(order, map_name, wanted):
    """Both operands and the result once; of a weight's gradient the parts, in float32."""
    found, made = launched(map_name, SQUARE, order=order)
    [product] = [pair for name, pair in found.items() if name.startswith(('gather', 'correlate'))]
    sizes = [size for _, size in launch_bounds.accesses(*product)]
    if map_name != 'grad_weight':
        assert sizes == list(wanted)
        return
    (_, parts), (_, result) = launch_bounds.accesses(*found['finish f16'])
    count = found['finish f16'][1].values['parts']
    assert count > 1 and {*sizes[:2], sizes[2] // count} == wanted and sizes[2] % count == 0
    assert (parts, result) == (sizes[2], WEIGHT) and launch_bounds.accesses(*product)[2][0] in made.scratch


def test_bytes_of_packing_and_of_what_is_idle():
    padded = layers.Layer(60, 128, (28, 28), (3, 3), 1, 1)
    found, made = launched('forward', padded, order='channels first')
    (_, read), (place, written) = launch_bounds.accesses(*found['pack f16'])
    assert (read, written) == (2 * 4 * 60 * 784, IN) and place in made.scratch
    assert launch_bounds.accesses(*found['direct f16 waits']) == []
    assert launch_bounds.rounds_of(found['direct f16 waits'][1]) == [0, 60, 1, 3, 3]
    found, _ = launched('grad_weight', padded)
    kernel, one = found['finish f16 waits']
    assert launch_bounds.rounds_of(one) == [0, one.values['parts'] - 1]
    assert [size for _, size in launch_bounds.accesses(kernel, one)] == [0, 0]
    assert not launch_bounds.waits(found['finish f16'][1])
    depthwise = layers.Layer(32, 32, (56, 56), (3, 5), 2, 1, groups=32)
    for order, name in (('channels first', 'direct f16'), ('channels last', 'direct f16 last')):
        found, _ = launched('forward', depthwise, order=order, batch=16)
        assert [size for _, size in launch_bounds.accesses(*found[name])] == [
            2 * 16 * 32 * 56**2, 2 * 32 * 15, 2 * 16 * 32 * 28 * 27]
        assert launch_bounds.rounds_of(found[name][1]) == [1, 1, 3, 5]


STRIPED = layers.Layer(32, 32, (56, 56), (3, 3), 2, 1, groups=32)
LARGE, SMALL, TAPS = 2 * 16 * 32 * 56**2, 2 * 16 * 32 * 28**2, 2 * 32 * 9


@pytest.mark.parametrize(('map_name', 'name', 'wanted', 'again', 'stored'), [
    ('forward', 'depthwise f16 strided', (LARGE, SMALL, TAPS), 15 / 14, 1),
    ('grad_input', 'depthwise f16 divided', (SMALL, LARGE, TAPS), 8 / 7, 1),
    ('grad_weight', 'depthwise_weight f16 strided', (LARGE, SMALL, None), 15 / 14, 0)])
@pytest.mark.parametrize('order', ['channels first', 'channels last'])
def test_bytes_of_strips(map_name, name, wanted, again, stored, order):
    """Operands and results once; through the cache cells of strips one below the other again, and of channels first
    results twice, a column of each thread behind the other."""
    found, made = launched(map_name, STRIPED, order=order, batch=16)
    kernel, one = found[name + ' x4' * (map_name == 'grad_weight' and order == 'channels last')]
    sizes = [size for _, size in launch_bounds.accesses(kernel, one)]
    parts = one.grid[1] * 32 * 9 * 4
    source, results, other = (size or parts for size in wanted)
    assert sizes == [source, results, other]
    if map_name == 'grad_weight':
        assert launch_bounds.accesses(kernel, one)[2][0] in made.scratch
    twice = 1 + stored * (order == 'channels first')
    assert launch_bounds.through_cache(kernel, one) == pytest.approx(source * again + twice * results + other)
    assert launch_bounds.rounds_of(one) == [one.values['turns' if stored else 'rounds']]


@pytest.mark.parametrize('dtype', ['float16', 'float32', 'float64'])
def test_lines_that_a_warp_reads_at_once(dtype):
    """32 neighbours of channels that lie last, of a weight's gradient 8 bytes each; of columns every other."""
    size = tiles.ELEMENTS[dtype].size
    for order, lines in (('channels first', 32 * 2 * size / 128), ('channels last', 32 * size / 128)):
        for map_name in ('forward', 'grad_weight'):
            found, _ = launched(map_name, STRIPED, dtype, order, batch=16)
            [(kernel, one)] = [pair for name, pair in found.items() if name.startswith('depthwise')]
            side_by_side = map_name == 'grad_weight' and order == 'channels last'
            assert launch_bounds.lines(kernel, one) == (2 if side_by_side else max(1, lines))


@pytest.mark.parametrize(('map_name', 'dtype', 'order', 'wanted'), [
    ('forward', 'float16', 'channels last', 2), ('forward', 'float16', 'channels first', 2),
    ('forward', 'float32', 'channels last', 8), ('forward', 'float32', 'channels first', 8),
    ('grad_weight', 'float16', 'channels last', 4), ('grad_weight', 'float32', 'channels last', 16)])
def test_bytes_that_a_result_takes_in_the_cache(map_name, dtype, order, wanted):
    """Whole sectors but for what no tensor core has multiplied, which is stored one by one: with the channels last four
    neighbours at once, of grad_weight single ones, four apart."""
    found, _ = launched(map_name, SQUARE, dtype, order)
    [(kernel, one)] = [(kernel, one) for kernel, one in found.values() if kernel.configuration.tile]
    lines, columns = launch_bounds.stored_at_once(kernel, one)
    element = kernel.configuration.element
    of_row = element.size if launch_bounds.is_of_planes(kernel) else element.part_size
    along, across = ('target_row', of_row) if 'y' in one.values else ('target_x', one.values['target_channel'])
    touched = launch_bounds.sectors(one.values[along], across, lines, columns)
    assert touched * launch_bounds.SECTOR / (lines * len(columns)) == wanted


def test_a_launch_takes_what_its_busiest_unit_does(monkeypatch):
    """Blocks are whole, and each multiprocessor has its own; scratch that the cache holds is no traffic of memory."""
    found, made = launched('forward', SQUARE, batch=64)
    kernel, one = found['gather f16 128x128 pointwise']
    monkeypatch.setattr(launch_bounds.Kernel, 'fit', {'registers': 2})
    monkeypatch.setattr(launch_bounds.Kernel, 'stage', dict.fromkeys(('math', 'issue', 'shared', 'L2'), 17550.0))
    monkeypatch.setattr(launch_bounds.Kernel, 'beside', lambda self, adjacent: {'issue': 17.55 * adjacent})
    blocks, stages = math.prod(one.grid), one.values['stages']
    bound = launch_bounds.bound(kernel, one, made.scratch)
    most = -(-blocks // 132)
    assert bound.seconds['math'] == pytest.approx(most * stages * 1e-5) and bound.binds == 'issue'
    assert bound.seconds['issue'] == pytest.approx(most * (stages * 1e-5 + 1e-8))
    assert bound.total == pytest.approx(bound.seconds['issue'] + tiles.LAUNCH)
    assert bound.seconds['memory'] == pytest.approx((16 * (IN + OUT) + WEIGHT) / 4.8e12)
    weight, _ = launch_bounds.accesses(kernel, one)[1]
    assert launch_bounds.bound(kernel, one, range(weight, weight + 1)).seconds['memory'] == pytest.approx(
        16 * (IN + OUT) / 4.8e12)


def test_every_launch_of_a_network_is_predicted(run_script, monkeypatch, capsys):
    """In this process, where other tests have some of the kernels compiled; of a network of one of its layers."""
    pytest.importorskip('numba_cuda')
    monkeypatch.setattr(compiled, 'start_worker', lambda: None)  # this one goes on
    if not TEST_ALL:
        tiny = layers.GPU_NETWORKS['tiny']
        monkeypatch.setitem(layers.GPU_NETWORKS, 'tiny', tiny._replace(layers=dict(list(tiny.layers.items())[2:3])))
    try:
        run_script('cuda_bounds.py', '--launches', 'tiny', 'float32')
    except RuntimeError as error:
        if 'nvdisasm is missing' in str(error):
            pytest.skip('nvdisasm is missing')
        raise
    assert sys.path[:3] == [str(FOLDER.parent), str(FOLDER.parent / 'tests'), str(FOLDER)]
    said = capsys.readouterr().out
    calls = [line for line in said.splitlines() if line.endswith('%')]
    assert len(calls) == 3 * (7 + 6 if TEST_ALL else 1 + 1) and 'direct f32 ' in said and 'gather' in said


def test_each_target_stands_in_the_results():
    page = (FOLDER / 'results' / 'cuda-predicted.md').read_text()
    for dtype, target in gpu_rows.TARGETS.items():
        for order in ('NCHW', 'channels last'):
            for what, aim in (('ResNet-50', target), ('depthwise', gpu_rows.DEPTHWISE_TARGET)):
                [line] = re.findall(rf'(?m)^\| {what} ≥ {aim} \| (?:\w+, )*{dtype}(?:, \w+)* \| {order} \| .*', page)
                assert line.endswith('| no |')
    assert page.count('≥ 0.9 | float16 wgmma, bfloat16 wgmma |') == 2


# The session on a lent machine


def session_step(tmp_path, code, seconds):
    step = gpu_session.Step('a', [sys.executable, '-c', code], seconds, 2)
    ended = gpu_session.run(step, tmp_path, seconds, gpu_session.environment_of())
    return ended, gpu_session.last_lines(tmp_path / 'a.txt', 2)


def test_a_step_leaves_its_output_and_status(tmp_path):
    ended, said = session_step(tmp_path, 'import sys; print("bar\\rone"); print("two"); sys.exit(3)', 60)
    assert ended.status == 3 and said == 'one\ntwo' and 'failed with status 3' in str(ended)
    ended, said = session_step(tmp_path, 'print("fine")', 60)
    assert ended.status == 0 and said.endswith('fine') and 'passed' in str(ended)


def test_a_step_ends_with_its_children_when_time_is_out(tmp_path):
    code = ('import subprocess, sys, time\nprint("begun", flush=True)\n'
            'subprocess.run([sys.executable, "-c", "import time; time.sleep(60)"])')
    ended, said = session_step(tmp_path, code, 2)
    assert ended.status is None and ended.seconds < 30 and 'begun' in (tmp_path / 'a.txt').read_text()
    assert 'out of time' in str(ended)


def test_the_session_runs_its_steps_and_leaves_few_files(tmp_path):
    command = [sys.executable, FOLDER / 'gpu_session.py', tmp_path / 'out', '--steps', 'benchmark',
               '--minutes', '2', '--', '--networks', 'tiny', '--dry']
    run = subprocess.run(command, capture_output=True, text=True)
    said = run.stdout.splitlines()
    assert said[-1].startswith('benchmark    passed') and '--- steps ---' in said, run.stdout + run.stderr
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {'benchmark.txt'}
    assert '126 rows' in (tmp_path / 'out' / 'benchmark.txt').read_text()


def test_no_more_files_than_come_back(tmp_path):
    assert len(gpu_session.steps(tmp_path, [])) + 1 <= 8


def test_the_session_runs_every_test_of_the_gpu(request, tmp_path):
    """Of those that this run of pytest has collected."""
    [words] = [step.words for step in gpu_session.steps(tmp_path, []) if step.name == 'tests']
    given = [gpu_session.ROOT / word for word in words if word.startswith('tests')]
    files = {item.path for item in request.session.items if item.get_closest_marker('gpu')}
    assert all(any(path.is_relative_to(one) for one in given) for path in files), files
