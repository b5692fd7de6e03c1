"""The rules of the house: who imports whom, what importing pyconv loads, what a public name owes its reader."""
import ast
import doctest
import inspect
import itertools
import pickle
import re
import subprocess
import sys
import tomllib
import typing
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

import conftest
import pyconv

PACKAGE = Path(pyconv.__file__).parent
FILES = sorted(PACKAGE.glob('*.py')) + sorted(PACKAGE.glob('*.pyx'))
GPU_FILES = sorted(PACKAGE.glob('_gpu/*.py'))
DOOR_FILES = sorted(PACKAGE.glob('[!_]*/*.py'))  # of doors that are folders
FRAMEWORKS = {'torch', 'jax', 'autograd', 'pytensor', 'dask', 'onnx', 'numba', 'cuda', 'cython', 'Cython', 'cupy',
              'scipy'}
DOORS = {'__init__', '__main__'} | {path.stem for path in FILES if not path.stem.startswith('_')}
DOORS |= {path.parent.name for path in DOOR_FILES}
PURE = {'_geometries', '_geometry', '_integers', '_padding', '_spread'}
FUNCTIONS = [name for name in pyconv.__all__ if inspect.isfunction(getattr(pyconv, name))]


def imports(path):
    """(module, name) of every import; of Cython, the lines that begin with import or from."""
    source = path.read_text()
    if path.suffix == '.pyx':
        lines = [line.strip() for line in source.splitlines()]
        source = '\n'.join(line for line in lines if line.startswith(('import ', 'from ')) and 'cimport' not in line)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f'{path.name} has a relative import'
            yield from ((node.module, alias.name) for alias in node.names)


def rooms(path):
    """The files of the package that it imports."""
    for module, name in imports(path):
        if module == 'pyconv' and name is not None and any((PACKAGE / file).exists() for file in (name, f'{name}.py')):
            yield name
        elif module.split('.')[0] == 'pyconv':
            yield (module.split('.') + ['__init__'])[1]


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_beyond_the_standard_library_only_numpy(path):
    allowed = {*sys.stdlib_module_names, 'pyconv'} | (set() if path.stem in PURE else {'numpy'})
    if path.stem in DOORS & FRAMEWORKS:
        allowed.add(path.stem)
    assert {module.split('.')[0] for module, _ in imports(path)} <= allowed


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.name)
def test_imports_go_downward(path):
    found = set(rooms(path))
    assert not found & (DOORS - {'__init__'}), 'a door is imported by nobody'
    if path.stem not in DOORS:
        assert '__init__' not in found, 'a room does not import the package'
    if path.stem in PURE:
        assert found <= PURE
    if path.suffix == '.pyx' or path.stem in ('_piece', '_pieces', '_blocking', '_phases', '_ways'):
        assert not found & {'_ops', '_columns', '_evaluate', '_arguments', '_threads', '_backend'}


@pytest.mark.parametrize('path', DOOR_FILES, ids=lambda path: f'{path.parent.name}/{path.name}')
def test_rooms_of_a_door(path):
    door = path.parent.name
    allowed = {*sys.stdlib_module_names, 'pyconv', 'numpy', door}
    assert {module.split('.')[0] for module, _ in imports(path)} <= allowed
    assert not (set(rooms(path)) - {door}) & DOORS, 'a door is imported by nobody'
    assert path.stem == '__init__' or not any(
        module == f'pyconv.{door}' for module, _ in imports(path)), 'a room does not import its door'


def test_every_folder_is_packaged():
    project = PACKAGE.parent / 'pyproject.toml'
    if not project.exists():
        pytest.skip('installed without its source')
    folders = {'.'.join(path.parent.relative_to(PACKAGE.parent).parts) for path in PACKAGE.rglob('*.py')}
    assert set(tomllib.loads(project.read_text())['tool']['setuptools']['packages']) == folders


@pytest.mark.parametrize('extra', ['cuda12', 'cuda13'])
def test_the_compiler_ends_at_what_was_tried(extra):
    """NumPy does not: no bound above for it."""
    project = PACKAGE.parent / 'pyproject.toml'
    if not project.exists():
        pytest.skip('installed without its source')
    needs = tomllib.loads(project.read_text())['project']['optional-dependencies'][extra]
    assert all(re.search(r'<|==', need) for need in needs) and not any('numpy' in need for need in needs)
    assert {re.match(r'[\w-]+', need)[0] for need in needs} >= {'numba', 'numba-cuda', 'cuda-toolkit'}


# what speaks to the compiler and to the driver
GPU_LIBRARIES = {'sass': {'cuda'}, 'cubins': {'cuda'}, 'ptx': {'numba', 'cuda'},
                 'primitives': {'numba', 'llvmlite'}, 'launch': {'cuda'}}


@pytest.mark.parametrize('path', GPU_FILES, ids=lambda path: f'_gpu/{path.name}')
def test_rooms_of_the_gpu(path):
    allowed = {*sys.stdlib_module_names, 'pyconv', 'numpy', *GPU_LIBRARIES.get(path.stem, ())}
    assert {module.split('.')[0] for module, _ in imports(path)} <= allowed
    shared = {'_gpu', '_integers', '_geometry', '_padding', '_piece', '_pieces', '_backend', '_dtypes'}
    assert set(rooms(path)) <= shared | ({'_driver'} if path.stem in ('launch', 'launches') else set())


def test_rooms_of_the_gpu_do_not_import_in_a_circle():
    no_circle({path.stem: set(gpu_rooms(path)) for path in GPU_FILES})


def gpu_rooms(path):
    """The files of the folder that it imports."""
    for module, name in imports(path):
        if module == 'pyconv._gpu':
            yield name
        elif module.startswith('pyconv._gpu.'):
            yield module.split('.')[2]


def test_nothing_imports_in_a_circle():
    no_circle({path.stem: set(rooms(path)) - {'__init__', '_gpu'} for path in FILES})


def no_circle(below):
    done = set()
    while below:
        free = {name for name, needs in below.items() if needs <= done}
        assert free, f'a circle among {sorted(below)}'
        done |= free
        below = {name: needs for name, needs in below.items() if name not in free}


def test_import_loads_no_framework():
    code = 'import sys, pyconv; print(*sorted({name.partition(".")[0] for name in sys.modules}))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=PACKAGE.parent, check=True)
    assert not set(run.stdout.split()) & FRAMEWORKS


def test_all_is_what_the_package_offers():
    assert sorted(pyconv.__all__) == pyconv.__all__
    rest = {name for name, value in vars(pyconv).items() if not name.startswith('_') and not inspect.ismodule(value)}
    assert rest | {'__version__'} == set(pyconv.__all__)
    listed = pyconv.__doc__
    assert all(name in listed for name in FUNCTIONS)


def test_version_is_said_once_more():
    project = PACKAGE.parent / 'pyproject.toml'
    if not project.exists():
        pytest.skip('installed without its source')
    assert tomllib.loads(project.read_text())['project']['version'] == pyconv.__version__


def test_an_index_is_told_of_the_pythons_that_were_tested():
    """Those of CONTRIBUTING.md's table of wheels, from the first that pip lets in."""
    source = PACKAGE.parent
    if not (source / 'pyproject.toml').exists():
        pytest.skip('installed without its source')
    project = tomllib.loads((source / 'pyproject.toml').read_text())['project']
    first, last = re.search(r'CPython 3\.(\d+) to 3\.(\d+)', (source / 'CONTRIBUTING.md').read_text()).groups()
    tested = re.findall(r'Python :: 3\.(\d+)', '\n'.join(project['classifiers']))
    assert tested == [str(minor) for minor in range(int(first), int(last) + 1)]
    assert project['requires-python'] == f'>=3.{first}'


@pytest.mark.parametrize('name', FUNCTIONS)
def test_public_function(name):
    function = getattr(pyconv, name)
    assert function.__name__ == function.__qualname__ == name
    assert pickle.loads(pickle.dumps(function)) is function
    signature, hints = inspect.signature(function), typing.get_type_hints(function)
    assert set(signature.parameters) | {'return'} == set(hints)
    assert len(str(signature)) < 1000, 'help shows it, with the names of types and not with what they stand for'
    assert '{' not in function.__doc__
    assert doctest.DocTestParser().get_examples(function.__doc__)


COMMON = 'stride padding dilation groups'
SUMS = 'out accumulate padding_mode padding_value dtype'
WAYS = 'algorithm allow_tf32 stream'
FORWARD = f'{SUMS} finput {WAYS}'
BACK = f'{SUMS} fgrad_input {WAYS}'
BOTH = f'{SUMS} finput fgrad_input {WAYS}'
GENERIC = 'stride padding dilation transposed output_padding groups'
ORDERS = {
    'conv{}d': f'input weight bias {COMMON} | output_size {FORWARD}',
    'conv{}d_input': f'input_size weight grad_output {COMMON} | {BACK}',
    'conv{}d_weight': f'input weight_size grad_output {COMMON} | per_sample {FORWARD}',
    'conv_transpose{}d': f'input weight bias stride padding output_padding groups dilation | output_size {BACK}',
    'convolution': f'input weight bias {GENERIC} | output_size {BOTH}',
    'convolution_backward': f'grad_output input weight {GENERIC} output_mask | bias_sizes per_sample {BOTH}',
    'convolution_double_backward': 'grad_grad_input grad_grad_weight grad_grad_bias grad_output weight input '
                                   f'{GENERIC} output_mask | {BOTH}',
    'conv_jvp': f'input weight input_tangent weight_tangent bias_tangent {COMMON} | output_size {FORWARD}',
    'conv_bias': 'grad_output | batched out accumulate dtype stream',
    'unfold': 'input kernel_size dilation padding stride | out padding_mode padding_value stream',
    'fold': f'input output_size kernel_size dilation padding stride | {SUMS} stream',
    'workspace': f'input_shape weight_shape {COMMON} | transposed output_padding output_size dtype '
                 'result_dtype algorithm padding_mode padding_value per_sample device allow_tf32',
}


@pytest.mark.parametrize(('name', 'order'), [
    (name.format(rank), order) for name, order in ORDERS.items() for rank in ((1, 2, 3) if '{}' in name else ('',))
])
def test_orders_of_arguments(name, order):
    parameters = inspect.signature(getattr(pyconv, name)).parameters.values()
    words = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    named = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    assert f'{" ".join(words)} | {" ".join(named)}' == order


def test_lines_and_files_stay_short():
    for path in [*FILES, *GPU_FILES, *DOOR_FILES, *PACKAGE.glob('*.pxi')]:
        lines = path.read_text().splitlines()
        assert max(map(len, lines), default=0) <= 120, path.name
        assert len(lines) <= 600, path.name


def cases(file='test_maps.py', marks=(), **values):
    """Items of a test, of every choice of its parameters' values."""
    return [SimpleNamespace(callspec=SimpleNamespace(params=dict(zip(values, chosen))), path=Path(file),
                            get_closest_marker=marks.__contains__)
            for chosen in itertools.product(*values.values())]


def shown(items):
    return [item.callspec.params for item in conftest.shown_by(items)]


def test_every_two_values_of_a_test_s_parameters_meet():
    """In fewer of its items than there are, whichever are left out beforehand."""
    items = cases(dtype=[float, int], rank=[1, 2, 3], groups=['1', '2', '4'], gpu=['emulated'])
    for some in (items, items[::2], items[:1]):
        found = conftest.shown_by(some)
        pairs, kept = ({pair for item in of for pair in itertools.combinations(item.callspec.params.items(), 2)}
                       for of in (some, found))
        assert kept == pairs and len(found) <= 10


@pytest.mark.parametrize('others', [{'dtype': [float, int]}, {'gpu': ['emulated'], 'way': 'abcde'}])
def test_a_problem_meets_every_other_value_in_turns(others):
    """And each value every other problem, all of them where the problem is all that varies."""
    found = shown(cases(problem=range(9), **others))
    (name, values), problems = list(others.items())[-1], {}
    for chosen in found:
        problems.setdefault(chosen[name], []).append(chosen['problem'])
    assert problems == {value: list(range(place % 2, 9, 2)) for place, value in enumerate(values)}
    assert len(shown(cases(problem=range(9), gpu=['emulated']))) == 9
    assert len(shown(cases(problem=range(9), way='abcde')[1:])) == 44, 'of a list of some'


def test_an_emulated_gpu_meets_each_problem_and_every_two_values_else():
    items = cases('test_cuda_maps.py', problem=range(9), way='abcde', size=[0, 1, 2], gpu=['emulated'])
    found = shown(items)
    assert {(one['way'], one['size']) for one in found} == {*itertools.product('abcde', range(3))}
    assert {one['problem'] for one in found} == {*range(9)} and len(found) <= 18
    assert max(Counter(one['problem'] for one in found).values()) <= 4, 'in all ways'


def test_each_value_of_a_sparse_test_is_met():
    found = shown(cases(marks=['sparse'], problem=range(9), way='abcde', size=[0, 1, 2]))
    assert [len({one[name] for one in found}) for name in ('problem', 'way', 'size')] == [9, 5, 3]
    assert len(found) <= 10
