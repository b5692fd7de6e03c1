"""What only the CPU's benchmarks have: the means of both orders, two environments, growth, the record, the peak."""
import contextlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import pyconv

FOLDER = Path(__file__).parents[1] / 'benchmarks'
if not FOLDER.is_dir():
    pytest.skip('installed without its source', allow_module_level=True)
sys.path.append(str(FOLDER))
import packages  # noqa: E402, F401  before torch

import call_costs  # noqa: E402
import cpu as cpu_benchmark  # noqa: E402
import environments  # noqa: E402
import growth  # noqa: E402
import handover  # noqa: E402
import harness  # noqa: E402
import layers  # noqa: E402
import peak  # noqa: E402

sys.path.remove(str(FOLDER))  # it has a file named cuda


@pytest.fixture
def same_threads():
    """Benchmarks set the number of threads of both libraries."""
    threads = torch.get_num_threads(), pyconv.get_num_threads()
    yield
    torch.set_num_threads(threads[0])
    pyconv.set_num_threads(threads[1])


def test_means_of_both_orders():
    rows = [{'dtype': 'float32', 'map': 'forward', 'pyconv_seconds': first, 'pyconv_channels_last_seconds': last}
            for first, last in ((4.0, 2.0), (1.0, 2.0), (2.0, 4.0), (3.0, None))]
    [means] = cpu_benchmark.order_means(rows)
    assert (means['layers'], means['least']) == (3, 0.5)
    assert means['geometric_mean'] == pytest.approx(0.5**(1 / 3))
    assert 'forward           3   0.79   0.50' in cpu_benchmark.means_text(cpu_benchmark.ORDER, [means])


def test_two_environments_take_turns(monkeypatch, tmp_path, capsys):
    class Process(contextlib.AbstractContextManager):
        def __init__(self, variables):
            self.variables = variables

        def __exit__(self, *error):
            pass

        def apply(self, function, arguments=()):
            speed = 1 if self.variables else 2
            if function is environments.limits:
                return {'float32': 3e9 * speed, 'bandwidth': 1e15}
            assert function(*arguments) > 0
            return 1e-3 / speed

    path, count = tmp_path / 'threads.json', 3 * len(layers.NETWORKS['tiny'].layers)
    monkeypatch.setattr(environments, 'process', Process)
    monkeypatch.setattr(sys, 'argv', ['environments.py', 'OMP_NUM_THREADS=1', '--networks', 'tiny', '--least', '0',
                                      '--seconds', '0', '--output', str(path)])
    environments.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == 'Tiny, batch 1' and said[-1] == f'written: {path}'
    assert all(line.endswith('1.00 ms  2.00 products') for line in said[1:1 + count])
    assert said[1 + count].endswith('mean 2.00, least 2.00, tenth 2.00; the machine 2.00')
    record = json.loads(path.read_text())
    assert record['variables_there'] == {'OMP_NUM_THREADS': '1'} and len(record['rows']) == count
    assert record['means'] == [{'bound_by': 'products', 'rows': count, 'geometric_mean': pytest.approx(2),
                                'least': pytest.approx(2), 'tenth': pytest.approx(2), 'machine': 2}]


def test_a_record_says_what_its_command_was(monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['cpu.py', '--quick'])
    monkeypatch.setenv('OMP_NUM_THREADS', '2')
    monkeypatch.delenv('PYCONV_CPU_LEVEL', raising=False)
    assert harness.described('cpu.py')['command'] == 'OMP_NUM_THREADS=2 python benchmarks/cpu.py --quick'


@pytest.mark.parametrize('words, name', [
    ('', 'cpu-resnet50.json'), ('--networks all', 'cpu-all.json'), ('--networks tiny first', 'cpu-tiny-first.json'),
    ('--networks tiny first --algorithm winograd', 'cpu-winograd.json')])
def test_where_results_go(monkeypatch, words, name):
    monkeypatch.setattr(sys, 'argv', ['cpu.py', *words.split()])
    assert cpu_benchmark.parse_arguments().output == harness.RESULTS / name
    monkeypatch.setattr(sys, 'argv', ['cpu.py', '--quick', *words.split()])
    assert cpu_benchmark.parse_arguments().output is None


def test_means_of_what_tiles_are_for():
    networks = [layers.NETWORKS['resnet50'], layers.NETWORKS['vgg16']]
    rows = [{**harness.named(network, layer, 'forward', 'float32'), 'ratio': 1.0 if number else 4.0,
             'pyconv_error': 1e-7 * number} for network in networks for number, layer in enumerate(
                 layer for layer in network.layers if layer.kernel == (3, 3))]
    [means] = cpu_benchmark.tiled_means(rows, networks)
    assert (means['layers'], means['least'], means['most']) == (12, 1, 4), 'as many as README says'
    assert means['geometric_mean'] == pytest.approx(4**(1 / 12)) and means['largest_error'] == pytest.approx(8e-7)
    assert 'forward          12   1.12   1.00   4.00  8.0e-07' in cpu_benchmark.means_text(cpu_benchmark.TILED, [means])


def test_another_environment_is_that_of_its_process_alone():
    with environments.process({'PYCONV_CPU_LEVEL': 'portable'}) as there:
        assert there.apply(os.getenv, ('PYCONV_CPU_LEVEL',)) == 'portable'
    assert os.environ.get('PYCONV_CPU_LEVEL') != 'portable'


def test_the_record_of_the_cpu_is_written_and_drawn(monkeypatch, tmp_path, capsys, same_threads):
    """All of a run but the machine's limits, of few samples; of these the higher ones are the rows' bounds."""
    path, rates = tmp_path / 'cpu.json', iter((1e10, 2e10))
    monkeypatch.setattr(cpu_benchmark, 'measured_limits', lambda threads: {
        'float32': next(rates), 'float64': 1e10, 'bandwidth': 1e12})
    monkeypatch.setattr(sys, 'argv', [
        'cpu.py', '--networks', 'tiny', '--maps', 'forward', '--dtype', 'float32', '--threads', '1', '--seconds', '0',
        '--output', str(path)])
    cpu_benchmark.main()
    record = json.loads(path.read_text())
    [means] = record['order_means']
    assert means['layers'] == sum(row['pyconv_channels_last_seconds'] is not None for row in record['rows']) > 0
    assert all(row['bound_seconds'] == max(row['flop'] / 2e10, 4 * row['elements'] / 1e12) for row in record['rows'])
    assert all(row['right'] for row in record['rows']) and path.with_suffix('.png').stat().st_size > 1000
    assert 'pyconv / pyconv with channels last' in capsys.readouterr().out


def test_the_record_of_calls_is_written(monkeypatch, tmp_path, capsys, same_threads):
    path = tmp_path / 'calls.json'
    monkeypatch.setattr(call_costs, 'PLANNED', call_costs.LAYERS[:1])
    monkeypatch.setattr(call_costs, 'SHAPES', 2)
    monkeypatch.setattr(sys, 'argv', ['call_costs.py', '--threads', '1', '--seconds', '0', '--output', str(path)])
    call_costs.main()
    record = json.loads(path.read_text())
    assert [row['map'] for row in record['rows']] == 2 * list(harness.MAPS)
    ways = ['torch', 'pyconv', 'out', 'constant', 'channels last', 'tensors']
    assert [list(row['seconds']) for row in record['rows'][:2]] == [[*ways, 'pyconv.torch'], ways]
    assert all(row['right'] and min(row['seconds'].values()) > 0 for row in record['rows'])
    assert all(row['least_seconds'] <= row['median_seconds'] <= row['most_seconds'] for row in record['planning'])
    assert 'pyconv.torch' in capsys.readouterr().out and len(record['planning']) == 3


def test_growth_is_written(monkeypatch, tmp_path, capsys, same_threads):
    path = tmp_path / 'growth.json'
    monkeypatch.setattr(growth, 'kinds', lambda size: {'1×1': layers.Layer(4, 8, (size, size), (1, 1))})
    monkeypatch.setattr(growth, 'ROUNDS', 3)
    monkeypatch.setattr(harness, 'seconds_of', lambda call, seconds: float(call().size))
    monkeypatch.setattr(sys, 'argv', ['growth.py', '--output', str(path)])
    growth.main()
    rows = json.loads(path.read_text())['rows']
    assert [(row['batch'], row['size']) for row in rows[:7]] == [(1, 28)] + [(n, 28) for n in growth.BATCHES] + [
        (1, size) for size in growth.SIZES]
    assert {row['map']: row['seconds_per_position'] for row in rows[:14]} == {'forward': 8, 'grad_input': 4}
    assert all(row['buffer_bytes'] > 0 for row in rows) and len(rows) == 21
    assert capsys.readouterr().out.count('   1.00   1.00   1.00   1.00   1.00   1.00   ') == 2


def test_a_wrong_call_is_marked(monkeypatch):
    """Of any way but torch's."""
    right = call_costs.time_row(call_costs.LAYERS[1], 'grad_weight', 0)
    ways = call_costs.calls_of(call_costs.LAYERS[1], 'grad_weight')
    monkeypatch.setattr(call_costs, 'calls_of', lambda *_: {**ways, 'out': lambda: torch.ones(8, 8, 3, 3)})
    wrong = call_costs.time_row(call_costs.LAYERS[1], 'grad_weight', 0)
    assert right['right'] and not wrong['right']
    assert call_costs.row_text(wrong).endswith(' !') and not call_costs.row_text(right).endswith(' !')


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
@pytest.mark.parametrize('lanes', [2, 8])
def test_the_peak_counts_what_its_loop_does(dtype, lanes):
    """From 0, times 1 and plus 1: each chain ends at the number of its multiply-adds, exactly."""
    room = np.ones(2 * lanes, dtype)
    with peak.compiled_chains(dtype, lanes) as chains:
        chains(room.ctypes.data)
    assert (room[:lanes] == peak.ROUNDS * peak.CHAINS).all() and (room[lanes:] == 1).all()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason='two threads pass a number to and fro')
def test_a_handover_takes_a_moment():
    """No less than two misses of a cache; a millisecond would be a thread that has no processor. So few rounds at
    a time, so often, that where others use the processors too, some go by while both threads have theirs."""
    assert 10e-9 < handover.handover_seconds(times=300, rounds=10) < 1e-3
