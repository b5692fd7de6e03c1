"""What only the benchmarks of the CPU have: the means of both orders, two environments, the record, the peak."""
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

import cpu as cpu_benchmark  # noqa: E402
import environments  # noqa: E402
import handover  # noqa: E402
import layers  # noqa: E402
import peak  # noqa: E402

sys.path.remove(str(FOLDER))  # it has a file named cuda


def test_means_of_both_orders():
    rows = [{'dtype': 'float32', 'map': 'forward', 'pyconv_seconds': first, 'pyconv_channels_last_seconds': last}
            for first, last in ((4.0, 2.0), (1.0, 2.0), (2.0, 4.0), (3.0, None))]
    [means] = cpu_benchmark.order_means(rows)
    assert (means['layers'], means['least']) == (3, 0.5)
    assert means['geometric_mean'] == pytest.approx(0.5**(1 / 3))
    assert 'forward           3   0.79   0.50' in cpu_benchmark.order_text([means])


def test_two_environments_take_turns(monkeypatch, capsys):
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

    monkeypatch.setattr(environments, 'process', Process)
    monkeypatch.setattr(sys, 'argv', ['environments.py', 'OMP_NUM_THREADS=1', '--networks', 'tiny', '--least', '0',
                                      '--seconds', '0'])
    environments.main()
    said = capsys.readouterr().out.splitlines()
    assert said[0] == 'Tiny, batch 1' and len(said) == 2 + 3 * len(layers.NETWORKS['tiny'].layers)
    assert all(line.endswith('1.00 ms  2.00 products') for line in said[1:-1])
    assert said[-1].endswith('mean 2.00, least 2.00, tenth 2.00; the machine 2.00')


def test_another_environment_is_that_of_its_process_alone():
    with environments.process({'PYCONV_CPU_LEVEL': 'portable'}) as there:
        assert there.apply(os.getenv, ('PYCONV_CPU_LEVEL',)) == 'portable'
    assert os.environ.get('PYCONV_CPU_LEVEL') != 'portable'


def test_the_record_of_the_cpu_is_written_and_drawn(monkeypatch, tmp_path, capsys):
    """All of a run but the machine's limits, of few samples."""
    path, threads = tmp_path / 'cpu.json', (torch.get_num_threads(), pyconv.get_num_threads())
    monkeypatch.setattr(cpu_benchmark, 'measured_limits', lambda threads: dict.fromkeys(
        ('float32', 'float64', 'bandwidth'), 1e10))
    monkeypatch.setattr(sys, 'argv', [
        'cpu.py', '--networks', 'tiny', '--maps', 'forward', '--dtype', 'float32', '--threads', '1', '--seconds', '0',
        '--output', str(path)])
    try:
        cpu_benchmark.main()
    finally:
        torch.set_num_threads(threads[0])
        pyconv.set_num_threads(threads[1])
    record = json.loads(path.read_text())
    [means] = record['order_means']
    assert means['layers'] == sum(row['pyconv_channels_last_seconds'] is not None for row in record['rows']) > 0
    assert all(row['right'] for row in record['rows']) and path.with_suffix('.png').stat().st_size > 1000
    assert 'pyconv / pyconv with channels last' in capsys.readouterr().out


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
    """No less than two misses of a cache; a millisecond would be a thread that has no processor."""
    assert 10e-9 < handover.handover_seconds() < 1e-3
