"""The documentation: its examples do what the pages say, its pictures are there, nothing public is left out."""
import ast
import html
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyconv

DOCS = Path(__file__).parents[1] / 'docs'
PACKAGE = Path(pyconv.__file__).parent
PAGES = sorted(path for path in DOCS.rglob('*.md') if '_build' not in path.parts)
DOORS = {path.stem if path.name != '__init__.py' else path.parent.name: path  # a door is a file or a folder
         for path in (*PACKAGE.glob('[!_]*.py'), *PACKAGE.glob('[!_]*/__init__.py'))}


def module_of(name):
    spec = importlib.util.spec_from_file_location(f'docs_{name}', DOCS / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = module_of('build')


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_examples(page):
    reason = build.missing(page)
    if reason:
        pytest.skip(reason)
    assert not build.run_examples(page)


def test_examples_that_fail_are_seen(tmp_path, capsys):
    page = tmp_path / 'page.md'
    page.write_text('```python\n>>> 1 + 1\n3\n\n```\n')
    assert build.run_examples(page) == 1
    assert 'Expected:\n    3' in capsys.readouterr().out


def test_sphinx_has_nothing_to_warn_of(tmp_path):
    """Whatever a docstring holds, `as_rest` makes reST of it."""
    pytest.importorskip('sphinx')
    pytest.importorskip('myst_parser')
    pytest.importorskip('furo')
    run = subprocess.run([sys.executable, '-m', 'sphinx', '-W', '--keep-going', '-q', '-b', 'html', DOCS, tmp_path],
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    reference = (tmp_path / 'reference.html').read_text()
    assert all(f'id="pyconv.{name}"' in reference for name in pyconv.__all__ if name != '__version__')
    for name, path in DOORS.items():
        page, tree = (tmp_path / 'frameworks' / f'{name}.html').read_text(), ast.parse(path.read_text())
        assert ast.get_docstring(tree).splitlines()[0] in html.unescape(page), name
        offered = next(ast.literal_eval(line.value) for line in tree.body
                       if isinstance(line, ast.Assign) and line.targets[0].id == '__all__')
        lacking = build.missing(DOCS / 'frameworks' / f'{name}.md')
        if lacking:
            assert 'What it offers is left out here' in page, name
        else:
            assert all(f'id="pyconv.{name}.{member}"' in page for member in offered), name


def test_a_page_of_no_door_is_an_error(tmp_path):
    """It said so in a sentence, which nobody read when a door became a folder."""
    pytest.importorskip('sphinx')
    pytest.importorskip('myst_parser')
    pytest.importorskip('furo')
    (tmp_path / 'index.md').write_text('# page\n\n```{door} nowhere\n```\n')
    run = subprocess.run([sys.executable, '-m', 'sphinx', '-W', '-q', '-c', DOCS, '-b', 'html', tmp_path,
                          tmp_path / 'built'], capture_output=True, text=True)
    assert run.returncode and 'door must be a file or a folder in pyconv; got nowhere' in run.stderr


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    targets = re.findall(r'\]\(([^)#:]+)\)', page.read_text())
    assert all((page.parent / target).exists() for target in targets)


@pytest.mark.parametrize('page', [*PAGES, *DOCS.parent.glob('*.md')], ids=lambda page: page.stem)
def test_paths_that_are_named_are_there(page):
    """But those with a NAME to choose and what the build writes."""
    named = re.findall(r'`((?:pyconv|tests|docs|examples|benchmarks)/[\w./]+)`', page.read_text())
    assert all((DOCS.parent / path).exists() for path in named if not re.search('NAME|^docs/_build', path))


ROOT = DOCS.parent
RAN = r'run on an H100 on (\d{4}-\d\d-\d\d), on no other GPU'


def words_of(path):
    return ' '.join(path.read_text().split())


@pytest.mark.parametrize('path', [
    'README.md', 'CHANGELOG.md', 'docs/index.md', 'docs/gpu.md', 'docs/determinism.md', 'docs/frameworks/other.md',
    'docs/frameworks/torch.md', 'pyconv/__init__.py', 'pyconv/torch/__init__.py'])
def test_what_is_said_of_gpus_is_marked(path):
    """Which one has run it, and when: in the same words, the same day everywhere, for another run changes them all."""
    dates = set(re.findall(RAN, words_of(ROOT / path)))
    assert len(dates) == 1 and dates == set(re.findall(RAN, words_of(ROOT / 'docs/gpu.md')))


@pytest.mark.parametrize('path', [
    *PAGES, *ROOT.glob('*.md'), *DOORS.values(), PACKAGE / '__init__.py', *ROOT.glob('examples/*.py')],
    ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_says_that_no_gpu_has_run_it(path):
    assert not re.search(r'(?i)\b(no gpu|none) has (run|been|confirmed|shown)|until a gpu', words_of(path))
    assert set(re.findall(r'on an H100 on (\d{4}-\d\d-\d\d)', words_of(path))) <= set(
        re.findall(RAN, words_of(DOCS / 'gpu.md')))


def test_pictures(tmp_path):
    """Each is drawn by the script, lies in the repository and is shown on a page."""
    pytest.importorskip('matplotlib')
    module_of('pictures').draw_all(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (DOCS / 'pictures').iterdir()}
    assert drawn == set(re.findall(r'\(pictures/([^)]+)\)', ''.join(page.read_text() for page in PAGES)))
    assert all(path.stat().st_size > 10_000 for path in tmp_path.iterdir())


def test_every_public_name_and_door_has_its_place():
    reference = (DOCS / 'reference.md').read_text()
    named = re.findall(r'auto(?:function|class):: (\w+)', reference)
    assert sorted(named) == sorted(set(pyconv.__all__) - {'__version__'})
    assert {'torch', 'jax', 'autograd', 'pytensor', 'dask', 'onnx'} <= set(DOORS)
    pages = {path.stem: path.read_text() for path in (DOCS / 'frameworks').glob('*.md')}
    assert {name for name in pages if f'```{{door}} {name}\n' in pages[name]} == set(DOORS)
    index = (DOCS / 'index.md').read_text().splitlines()
    assert {str(page.relative_to(DOCS).with_suffix('')) for page in PAGES} - {'index'} <= set(index)


def test_the_example_of_a_backend_passes_the_self_test(run_python):
    """In place of the CPU's own, which is not loaded."""
    code = ('import runpy, sys; sys.argv = sys.argv[1:]\n'
            'try:\n    runpy.run_path(sys.argv[0], run_name="__main__")\n'
            'except SystemExit as end:\n    assert not end.code\n'
            'import pyconv; pyconv.show_config()')
    lines = run_python(code, DOCS / 'with_backend.py', DOCS / 'numpy_backend.py').splitlines()
    assert lines[0] == 'the self-test passed'
    assert 'level    numpy (of numpy)' in lines
