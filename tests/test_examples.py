"""The examples run, and the gradients that they write out by hand are those of their loss."""
import re

import numpy as np
import pytest


@pytest.fixture(scope='module')
def lenet(example):
    return example('lenet_mnist')


def test_quick_run_learns_and_draws(run_example):
    lines = run_example('lenet_mnist')
    first, last = map(float, re.search(r'^loss (\S+) at first, (\S+) at last', lines[0]).groups())
    assert last < first
    assert re.fullmatch(r'test accuracy [01]\.\d{4}', lines[-1])


def test_torch_trains_the_same_network(lenet):
    """From one seed the three ways of computing take the same steps, up to rounding."""
    torch = pytest.importorskip('torch')
    import pyconv.torch

    (images, labels), _ = lenet.load_digits()
    networks = [lenet.Network(0), lenet.TorchNetwork(0, torch, torch.nn.functional.conv2d),
                lenet.TorchNetwork(0, torch, pyconv.torch.conv2d)]
    losses = [lenet.train(network, images[:96], labels[:96], 0, 1, 32, 'test') for network in networks]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-4)
    # a pixel of the background ties in its window, and a tie may fall otherwise in torch: scores, not their gradients
    scores = [np.asarray(network.scores(images[:8])) for network in networks]
    np.testing.assert_allclose(scores[1:], [scores[0]] * 2, rtol=1e-2, atol=1e-2)


def test_the_split_holds_out_a_fifth_of_each_class(lenet):
    (images, labels), (test_images, test_labels) = lenet.load_digits()
    assert images.shape == (4000, 1, 28, 28) and test_images.shape == (1000, 1, 28, 28)
    assert (np.bincount(labels) == 400).all() and (np.bincount(test_labels) == 100).all()
    assert images.min() == 0 and images.max() == 1
    again, _ = lenet.load_digits()
    assert (again[0] == images).all() and (again[1] == labels).all()


def test_shifts_move_whole_digits(lenet):
    images = np.zeros((200, 1, 28, 28), np.float32)
    images[:, :, 14, 14] = 1
    shifted = lenet.shift_randomly(images, np.random.default_rng(0))
    _, channel, down, right = np.nonzero(shifted)
    assert shifted.shape == images.shape and len(down) == 200 and not channel.any()
    assert set(down) == set(right) == {12, 13, 14, 15, 16}


def test_gradients_are_the_slope_of_the_loss(lenet):
    rng = np.random.default_rng(1)
    network = lenet.Network(0, dtype=np.float64)
    images, labels = rng.random((6, 1, 28, 28)), rng.integers(0, 10, 6)
    assert len(network.parameters) == 10
    check_slopes(network, lambda: network.loss(images, labels), rng)


def check_slopes(network, loss, rng):
    """Each parameter array moves a little along a random direction; the loss must follow its gradient."""
    loss()
    gradients = [gradient.copy() for gradient in network.grads]
    assert len(gradients) == len(network.parameters)
    step = 1e-6
    for parameter, gradient in zip(network.parameters, gradients):
        here, direction = parameter.copy(), rng.standard_normal(parameter.shape)
        direction /= np.linalg.norm(direction)
        sides = []
        for sign in (1, -1):
            parameter[...] = here + sign * step * direction
            sides.append(loss())
        parameter[...] = here
        # rounding: 1e-16 * loss / step; curvature and the kinks of ReLU and MaxPool: of the order of step
        slope = (sides[0] - sides[1]) / (2 * step)
        assert slope == pytest.approx(np.vdot(gradient, direction), rel=1e-5, abs=1e-8)
