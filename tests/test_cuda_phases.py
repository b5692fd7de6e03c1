"""grad_input by its definition: all phases of a stride in one launch, or one after the other, to the same bits."""
import numpy as np
import pytest

import calls
from gpus import Emulated
from problems import P, maps
from pyconv import _cuda
from pyconv._gpu import limits, tiles
from pyconv._piece import Axis
from test_cuda import same

PROBLEMS = [
    P('1d stride 2', (9,), (3,), (3, 2), stride=2, padding=1),
    P('2d dilations that share no factor with the stride', (12, 11), (3, 4), (2, 4), stride=(4, 5), dilation=(3, 2),
      padding=(2, 1), groups=2),
    P('2d dilations that share one', (17, 11), (3, 3), (2, 3), stride=(4, 2), dilation=(6, 2),
      padding=((3, 1), (0, 3))),
    P('2d cropped', (12, 9), (2, 3), (2, 3), stride=(3, 2), padding=((-3, 1), (-1, 2))),
    P('2d gaps', (9, 9), (2, 1), (3, 2), stride=(4, 3)),
    P('3d', (4, 5, 6), (2, 3, 2), (2, 2), stride=(2, 1, 3), padding=(1, 1, 0)),
]


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(tiles, 'DIRECT_RATE', 1e9)
    return Emulated(monkeypatch)


def test_the_taps_that_are_tried_are_those_that_have_a_place():
    """Of strides that share a factor with the dilation, or whose square 32 bits do not hold, all taps."""
    for stride, dilation, taps in ((1, 1, 3), (2, 1, 3), (5, 3, 11), (7, 30, 4), (4, 6, 3), (6, 6, 2), (46341, 2, 2)):
        found = limits.own_taps((Axis(9, 9, 1, 0, -dilation, taps),) * 3, (stride,) * 3)
        every, inverse = found['every_y'], found['inverse_y']
        for cell in range(2 * min(stride, 50)):
            first = cell % stride * inverse % stride
            tried = [tap for tap in range(first, first + found['ky'] * every, every) if tap < found['taps_y']]
            having = [tap for tap in range(taps) if (cell - dilation * tap) % stride == 0]
            assert set(having) <= set(tried) and (every == 1 or having == tried)
            assert cell % stride * inverse < 2**31


@pytest.mark.parametrize('problem', PROBLEMS, ids=str)
def test_phases(gpu, problem, monkeypatch):
    """Small integers exactly; floats, negative zeros among them, and sums that are added to, bit for bit."""
    data, floats, found = problem.integers(), problem.floats(np.float32), []
    wanted = maps(problem, *data[:3]).grad_input
    bias = np.full(problem.channels[0], -0.0, 'f4')
    for launches, results in ((1, 2**40), (int(np.prod(problem.stride)), 0)):
        monkeypatch.setattr(tiles, 'BY_PHASE', results)
        gpu.device.launched.clear()
        _cuda.forget()
        same(gpu, calls.grad_input(problem, *(gpu.upload(array, 'float32') for array in (data.w, data.y))), wanted,
             'float32')
        assert gpu.device.launched == ['direct'] * launches
        operands = [gpu.upload(array, 'float32') for array in (floats.y, floats.w, bias)]
        out = gpu.upload(np.full(data.x.shape, -0.0), 'float32')
        calls.transposed(problem, *operands, out=out)
        calls.transposed(problem, *operands, out=out, accumulate=True)
        found.append(gpu.download(out).tobytes())
    assert found[0] == found[1]
