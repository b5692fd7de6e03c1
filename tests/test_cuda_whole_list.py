"""The whole list of problems on a GPU: every problem in every way to multiply and every type, against the reference.

The emulator, whose seconds are dear, takes shares of the list elsewhere (test_cuda, test_cuda_padding, test_cuda_types,
test_more_axes) and here a few problems. On an H100 these, but for those of four axes and more, and others of a GPU's
tests, 2,110 in all, took 77 seconds in several processes. The list's more than 300 kernels take some minutes more to
compile one by one in the first run; benchmarks/planned.py compiles them beforehand on every core.
"""
import pytest

import gpus
from problems import VARIED, VARIED_MODES, WHOLE, Data, expected, maps, some
from pyconv import _cuda
from pyconv._dtypes import INTEGERS, result_dtype
from pyconv._gpu import launch, tiles
from pyconv._gpu.arrays import DTYPES
from test_cuda import check_maps_of, take_tiles_and_parts
from test_more_axes import check_on_a_gpu

# Dtype and keywords by name.
MORE_WAYS = {**{dtype: (dtype, {}) for dtype in ('complex64', 'complex128', *INTEGERS)},
             'tf32 of complex64': ('complex64', {'allow_tf32': True}),
             'tf32x3 of complex64': ('complex64', {'algorithm': 'tf32x3'})}
WAYS = {**gpus.WAYS, **MORE_WAYS}
LARGE = 'large tiles and parts'
LARGELY = VARIED + VARIED_MODES
ON_A_GPU = [pytest.param('real', problem, marks=pytest.mark.gpu, id=f'real-{problem}') for problem in WHOLE]
EMULATED = [pytest.param('emulated', problem, id=f'emulated-{problem}') for problem in some(
    '2d groups everything', 'constant -1 1d far strided', 'reflect 1d cropped behind', '5d padded beyond')]


def numbers(problem, dtype):
    """The problem's integers as that dtype can have them, and their three maps."""
    data = problem.integers()
    if dtype.startswith('complex'):
        others = problem._replace(name=f'{problem.name} i').integers(low=-2, high=2)
        data = Data(*(a + 1j * b for a, b in zip(data, others)))
    elif dtype.startswith('u'):
        data = problem.integers(low=0)
    else:
        return data, expected(problem.name)
    return data, maps(problem, *data[:3])


def tilings_of(gpu, problem, dtype, keywords):
    """As it is chosen, mostly direct kernels, which know no ways; tiles alone; of a part of the list the largest tiles.

    Integers have no tiles, and those of other types the emulator takes in test_cuda.
    """
    if dtype in INTEGERS or isinstance(gpu, gpus.Emulated):
        return ['auto']
    return ['auto'] * (not keywords) + ['tiles'] + [LARGE] * (problem in LARGELY)


def failure(gpu, problem, way, tiling):
    """What is wrong in that way, None where all is right."""
    dtype, keywords = WAYS[way]
    with pytest.MonkeyPatch.context() as patch:
        if tiling != 'auto':
            patch.setattr(tiles, 'DIRECT_RATE', 0.0)
        if tiling == LARGE:
            take_tiles_and_parts(patch)
        _cuda.forget()
        check = check_maps_of if problem.rank <= 3 else check_on_a_gpu
        try:
            check(gpu, problem, *numbers(problem, dtype), dtype, result_dtype(DTYPES[dtype], None).name, **keywords)
        except AssertionError as error:
            return str(error).partition('\n')[0]
        finally:
            _cuda.forget()


@pytest.mark.parametrize(('gpu', 'problem'), [*ON_A_GPU, *EMULATED], indirect=['gpu'])
def test_every_problem_in_every_type(gpu, problem):
    """Left out: what unsigned integers cannot hold in padded cells, ways of another chip, the largest tiles but for the
    varied problems. Integers of all sizes and other types of their sums are in test_cuda_types."""
    capability = launch.device(0).capability
    wrong = {}
    for way, (dtype, keywords) in WAYS.items():
        if dtype.startswith('u') and problem.padding_value < 0:
            continue
        if keywords.get('algorithm') in tiles.HOPPERS and capability != (9, 0):
            continue
        for tiling in tilings_of(gpu, problem, dtype, keywords):
            found = failure(gpu, problem, way, tiling)
            if found is not None:
                wrong[way, tiling] = found
    assert not wrong
