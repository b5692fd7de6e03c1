"""What README.md and the docstrings show is what happens."""
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import pyconv

README = Path(__file__).parents[1] / 'README.md'
MODULES = ['pyconv'] + [f'pyconv.{module.name}' for module in pkgutil.iter_modules(pyconv.__path__)
                        if module.name != '__main__']
MODULES += [f'pyconv.torch.{path.stem}' for path in sorted(Path(pyconv.__file__).parent.glob('torch/_[!_]*.py'))]


def test_readme():
    failed, tried = doctest.testfile(str(README), module_relative=False)
    assert tried > 30 and not failed


@pytest.mark.filterwarnings('ignore:Numba will use object mode')
@pytest.mark.parametrize('name', MODULES)
def test_docstrings(name):
    door = '.'.join(name.split('.')[:2])
    if door in ('pyconv.torch', 'pyconv.jax', 'pyconv.autograd', 'pyconv.pytensor'):
        pytest.importorskip(door.removeprefix('pyconv.'))
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed


def test_readme_shows_the_commands_and_every_function():
    """The two commands stand alone on their lines, so that they can be copied and found."""
    text = README.read_text()
    lines = text.splitlines()
    assert lines.count("pip install -e '.[examples]' && python examples/lenet_mnist.py") == 1
    assert lines.count("pip install -e '.[test]' && pytest -n auto") == 1
    functions = {name for name in pyconv.__all__ if name.islower() and '1d' not in name and '3d' not in name}
    assert {name for name in functions if name not in text} == {'__version__'}
