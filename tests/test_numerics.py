"""float32 is within 1e-6 relative Frobenius error of float64 on ordinary layers.

Normal data let errors cancel; data without negative numbers do not, and show a long sum that runs in one go.
"""
import numpy as np
import pytest
import torch

import calls
import pyconv
from problems import Problem

LAYERS = [
    Problem('resnet stem', (224, 224), (7, 7), (3, 64), batch=1, stride=2, padding=3),
    Problem('resnet 56', (56, 56), (3, 3), (64, 64), batch=2, padding=1),
    Problem('resnet 56 kernel 1', (56, 56), (1, 1), (256, 64), batch=4),
    Problem('resnet 28 kernel 1 strided', (56, 56), (1, 1), (256, 512), batch=1, stride=2),
    Problem('resnet 14', (14, 14), (3, 3), (256, 256), batch=2, padding=1),
    Problem('resnet 14 strided', (28, 28), (3, 3), (128, 256), batch=2, stride=2, padding=1),
    Problem('resnet 7', (7, 7), (3, 3), (512, 512), batch=2, padding=1),
    Problem('resnet 7 kernel 1', (7, 7), (1, 1), (2048, 512), batch=2),
    Problem('vgg 224', (224, 224), (3, 3), (16, 16), batch=1, padding=1),
    Problem('depthwise', (112, 112), (3, 3), (32, 32), batch=4, groups=32, padding=1),
    Problem('depthwise strided', (112, 112), (5, 5), (32, 32), batch=4, groups=32, stride=2, padding=2),
    Problem('resnext', (28, 28), (3, 3), (256, 256), batch=2, groups=32, padding=1),
    Problem('dilated', (60, 60), (3, 3), (64, 64), batch=1, dilation=4, padding=4),
    Problem('sound', (16000,), (9,), (16, 16), batch=2, padding=4),
    Problem('volume', (16, 32, 32), (3, 3, 3), (16, 32), batch=2, padding=1),
    Problem('fully connected', (12, 12), (12, 12), (64, 256), batch=32),
    Problem('patches', (224, 224), (16, 16), (3, 192), batch=2, stride=16),
]
CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def in_float64(problem, x, w, y):
    """torch's maps; every layer here has one int for padding."""
    x, w, y = (torch.from_numpy(part.astype(np.float64)) for part in (x, w, y))
    x.requires_grad_(), w.requires_grad_()
    answer = CONV[problem.rank](x, w, None, problem.stride, problem.padding, problem.dilation, problem.groups)
    return [part.detach().numpy() for part in (answer, *torch.autograd.grad(answer, (x, w), y))]


@pytest.mark.parametrize('kind', ['normal', 'non-negative'])
@pytest.mark.parametrize('problem', LAYERS, ids=str)
def test_relative_error(problem, kind):
    data = problem.floats(np.float32)
    parts = [data.x, data.w, data.y]
    if kind == 'non-negative':
        parts = [np.abs(part) for part in parts]
    wanted = in_float64(problem, *parts)
    errors = {name: np.linalg.norm((answer - exact).ravel()) / np.linalg.norm(exact.ravel())
              for name, answer, exact in zip(('forward', 'grad_input', 'grad_weight'),
                                             calls.three_maps(problem, *parts), wanted)}
    assert max(errors.values()) <= 1e-6, errors


@pytest.mark.parametrize('problem', LAYERS[1:3], ids=str)
def test_conv_bias_of_many_positions(problem):
    y = np.abs(problem.floats(np.float32).y)
    y = np.tile(y, (8, 1, 1, 1))
    exact = y.sum((0, 2, 3), dtype=np.float64)
    error = np.linalg.norm(pyconv.conv_bias(y) - exact) / np.linalg.norm(exact)
    assert error <= 1e-6
