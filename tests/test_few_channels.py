"""Fewer channels than a vector has lanes, which lie last, and complex numbers: both are turned in parts of vectors."""
import sys

import numpy as np
import pytest

from problems import P
from test_channels_last import check

SIZES = (5,), (3, 37)  # of fewer cells than a vector has lanes, and of whole vectors and a few
FEW = [P(f'{n} channels and {18 - n}', size, (3,) * len(size), (n, 18 - n), padding=1, batch=2)
       for size in SIZES for n in range(1, 18)]
AT_AN_END = """
import itertools, sys
import numpy as np
import calls
from guarded import at_an_end
from test_few_channels import FEW
def there(array):
    lies = np.moveaxis(at_an_end(np.ascontiguousarray(np.moveaxis(array, 1, -1)), sys.argv[1] == 'True'), -1, 1)
    assert (lies == array).all()
    return lies
for problem, dtype in itertools.product(FEW, ('f4', 'f8', 'c8', 'c16')):
    data = problem.integers(np.dtype(dtype))
    x, y = there(data.x), there(data.y)
    to_x, to_y = there(data.x), there(data.y)
    for accumulate in (False, True):
        calls.forward(problem, x, data.w, out=to_y, accumulate=accumulate)
        calls.grad_input(problem, data.w, y, out=to_x, accumulate=accumulate)
        calls.grad_weight(problem, x, y)
"""


@pytest.mark.parametrize('problem', FEW, ids=str)
@pytest.mark.parametrize('dtype', ['float32', 'float64', 'complex64', 'complex128'])
def test_few_channels_in_either_order(problem, dtype):
    check(problem, np.dtype(dtype))


@pytest.mark.skipif(sys.platform == 'win32', reason='this system protects memory in another way')
@pytest.mark.parametrize('front', [False, True])
def test_nothing_beside_few_channels_is_touched(front, run_python):
    run_python(AT_AN_END, str(front))
