"""python -m pyconv: what was built, and a test of every instruction set, which finds what is wrong."""
import subprocess
import sys
from types import SimpleNamespace

import pyconv
from pyconv import __main__ as report
from pyconv._backend import cpu

LEVELS = cpu.config()['levels']


def test_report(run_python):
    lines = run_python('import runpy; runpy.run_module("pyconv", run_name="__main__")').splitlines()
    assert lines[0].split() == ['pyconv', pyconv.__version__] and any(line.startswith('CUDA ') for line in lines)
    assert lines[-len(LEVELS):] == [f'self-test {level}: passed' for level in LEVELS]


def test_a_level_that_is_right(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['pyconv', '--level'])
    assert report.main() == 0 and capsys.readouterr().out == ''


def test_a_level_that_is_wrong(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['pyconv', '--level'])
    right = pyconv.conv2d_input
    monkeypatch.setattr(pyconv, 'conv2d_input', lambda *given: right(*given) + 1)
    monkeypatch.setattr(report, 'PROBLEMS', report.PROBLEMS[:1])
    assert report.main() == 1
    assert capsys.readouterr().out.splitlines() == [
        f'grad_input wrong: {dtype}, {report.PROBLEMS[0]}' for dtype in ('float32', 'float64')]


def test_one_level_that_fails_is_enough(monkeypatch, capsys):
    """Each is tested in a process of its own, that has it by the environment."""
    monkeypatch.setattr(sys, 'argv', ['pyconv'])
    for wrong in LEVELS:
        monkeypatch.setattr(subprocess, 'run', lambda command, env: SimpleNamespace(
            returncode=int(env['PYCONV_CPU_LEVEL'] == wrong)))
        assert report.main() == 1
        assert capsys.readouterr().out.splitlines()[-len(LEVELS):] == [
            f"self-test {level}: {'failed' if level == wrong else 'passed'}" for level in LEVELS]
