"""The examples that tell stories: each runs in its short form, and its numbers are what it says they are."""
import re
import sys

import numpy as np
import pytest

import pyconv
from test_examples import check_slopes


def test_double_backward_runs(run_example):
    pytest.importorskip('torch')
    lines = run_example('double_backward')
    rows = [re.fullmatch(r'(gradient penalty|Hessian times vector), .* (\S+) +\S+ +\S+', line) for line in lines]
    assert [float(row[2]) < 1e-11 for row in rows if row] == [True] * 4


@pytest.mark.parametrize('kind', ['critic_layers', 'hourglass_layers'])
def test_second_gradients_are_those_of_torch(example, kind):
    """A gradient sums at most 1e5 products, each rounded by 2**-53: 1e-11 of the largest has room for all."""
    pytest.importorskip('torch')
    double_backward = example('double_backward')
    found = double_backward.compare(getattr(double_backward, kind)(), 3, 1, np.random.default_rng(0))
    assert set(found) == {'gradient penalty', 'Hessian times vector'}
    for difference, *times in found.values():
        assert difference < 1e-11 and min(times) > 0


def test_a_hessian_is_symmetric(example):
    pytest.importorskip('torch')
    double_backward = example('double_backward')
    rng = np.random.default_rng(0)
    network = double_backward.Network(double_backward.hourglass_layers(), 0, np.float64)
    images, signs = rng.random((2, 1, 28, 28)), np.array([1.0, -1]).reshape(2, 1, 1, 1)
    u, v = ([rng.standard_normal(array.shape) for array in network.parameters] for _ in range(2))
    products = [network.hessian_times(images, signs, vectors) for vectors in (u, v)]
    sides = [sum(np.vdot(*pair) for pair in zip(*both)) for both in zip(products, (v, u))]
    assert sides[0] == pytest.approx(sides[1], rel=1e-11) and abs(sides[0]) > 1e-3


def test_untied_autoencoder_runs(run_example):
    rows = [line.split() for line in run_example('untied_autoencoder')[1:-1]]
    assert [row[0] for row in rows] == ['learned', 'decayed', 'fixed', 'tied']
    for _, first, last, test, first_angle, last_angle in rows:
        assert float(last) < float(first) / 2 and float(test) < float(first) / 2
        assert float(last_angle) < float(first_angle) - 15 or float(first_angle) == 0


# the second has as many channels and pixels on both sides: no shape tells conv2d_weight's two images apart
@pytest.mark.parametrize('sizes', [{}, {'channels': 1, 'kernel': 3, 'stride': 1, 'padding': 1}], ids=len)
@pytest.mark.parametrize('kind', ['learned', 'decayed', 'fixed', 'tied'])
def test_gradients_of_the_autoencoder(example, kind, sizes):
    network = example('untied_autoencoder').Autoencoder(kind, 3, **sizes, dtype=np.float64)
    assert len(network.parameters) == (2 if kind in ('fixed', 'tied') else 3)
    rng = np.random.default_rng(0)
    images = rng.random((2, 1, 12, 12))
    check_slopes(network, lambda: network.loss(images), rng)


def test_custom_backward_runs(run_example):
    pytest.importorskip('torch')
    if sys.platform != 'linux':
        pytest.skip('reads the memory in use from /proc')
    lines = run_example('custom_backward')
    scratch = {line[:40].strip(): float(line.split(' MB')[-2].split()[-1]) for line in lines if ' MB ' in line[40:]}
    assert len(scratch) == 3 and scratch['pyconv, one buffer, float32'] < 1
    assert sum(re.search(r'accuracy [01]\.\d{4}$', line) is not None for line in lines) == 3


@pytest.fixture
def custom_backward(example):
    pytest.importorskip('torch')
    return example('custom_backward')


def gradients(network, images):
    """Those of a step of the network by its parameters."""
    torch = pytest.importorskip('torch')
    loss = network(images).square().mean()
    return [grad.numpy() for grad in torch.autograd.grad(loss, list(network.parameters()))]


def test_custom_backward_is_torch_s_unless_changed(custom_backward):
    torch = pytest.importorskip('torch')
    torch.manual_seed(0)
    network, images = custom_backward.image_network().double(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    wanted = gradients(network, images)
    custom_backward.use_pyconv(network)
    found = gradients(network, images)
    # eight layers, sums of at most 1152 products each, of numbers rounded by 2**-53
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() < 1e-11 * np.abs(other).max()
    custom_backward.use_pyconv(network, buffer=custom_backward.one_buffer(network, images).fill_(np.nan))
    assert all((one == other).all() for one, other in zip(gradients(network, images), found, strict=True))


def test_the_buffer_is_what_the_greatest_layer_wants(custom_backward):
    torch = pytest.importorskip('torch')
    network = custom_backward.image_network()
    sizes = custom_backward.buffer_sizes(network, torch.zeros(2, 3, 16, 16))
    assert len(sizes) == 8
    one = pyconv.workspace((2, 64, 4, 4), (128, 32, 3, 3), padding=1, groups=2)
    alone = custom_backward.Conv(64, 128, 3, padding=1, groups=2)
    [size] = custom_backward.buffer_sizes(custom_backward.with_relus(alone), torch.zeros(2, 64, 4, 4))
    assert size == max(one.finput, one.fgrad_input)
    assert custom_backward.one_buffer(network, torch.zeros(2, 3, 16, 16)).shape == (max(sizes),)


def test_sign_symmetric_backward(custom_backward):
    """Small integers: the input's gradient meets the signs, the weight's does not."""
    torch = pytest.importorskip('torch')
    rng = np.random.default_rng(0)
    grad_output, input, weight = (torch.from_numpy(rng.integers(-3, 4, shape).astype(np.float32))
                                  for shape in ((2, 4, 5, 5), (2, 3, 5, 5), (4, 3, 3, 3)))
    rest = [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    weight *= weight.numel() / weight.abs().sum()  # a mean of 1
    found = custom_backward.sign_symmetric_backward(grad_output, input, weight, *rest, (True, True, True))
    wanted = custom_backward.torch_backward(grad_output, input, weight.sign(), *rest, (True, True, True))
    assert torch.allclose(found[0], wanted[0], rtol=1e-5) and all(map(torch.equal, found[1:], wanted[1:]))
    masked = custom_backward.sign_symmetric_backward(grad_output, input, weight, *rest, (False, True, False))
    assert masked[0] is masked[2] is None and torch.equal(masked[1], wanted[1])
