"""The examples that tell stories: each runs in its short form, and its numbers are what it says they are."""
import re

import numpy as np
import pytest

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
