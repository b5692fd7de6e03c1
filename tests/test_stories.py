"""The examples that tell stories: each runs in its short form, and its numbers are what it says they are."""
import inspect
import re
import sys

import numpy as np
import pytest

import pyconv
from test_examples import check_slopes


@pytest.mark.parametrize(('name', 'torch_s', 'more'), [('Momentum', 'SGD', {'momentum': 0.9}), ('Adam', 'Adam', {})])
def test_steps_are_torch_s(example, name, torch_s, more):
    torch = pytest.importorskip('torch')
    rng = np.random.default_rng(0)
    start, grads = rng.standard_normal((2, 3)), rng.standard_normal((4, 2, 3))
    ours, theirs = start.copy(), torch.tensor(start)
    optimizer = getattr(example('common'), name)([ours], 0.1)
    other = getattr(torch.optim, torch_s)([theirs], 0.1, **more)
    for grad in grads:
        optimizer.step([grad])
        theirs.grad = torch.tensor(grad)
        other.step()
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-12)  # a few roundings a step


def test_a_mosaic_is_read_row_by_row(example):
    tiles = np.arange(24.0).reshape(6, 2, 2)
    found = example('common').mosaic(tiles, 3)
    assert found.shape == (5, 8) and np.isnan(found[2]).all() and np.isnan(found[:, 2::3]).all()
    assert found[0, :5:3].tolist() == [0, 4] and found[4, 7] == 23 and found[3, 0] == 12


@pytest.mark.parametrize('name', [
    'custom_backward', 'double_backward', 'large_image', 'lenet_mnist', 'shift_and_binary', 'untied_autoencoder'])
def test_a_picture_says_that_it_is_of_the_short_form(example, monkeypatch, tmp_path, name):
    """Every example saves its picture by one function, which says so of those and of no other."""
    if name in ('custom_backward', 'double_backward'):
        pytest.importorskip('torch')
    module = example(name)
    assert 'savefig' not in inspect.getsource(module)
    for quick, title in ((True, '(short form)'), (False, '')):
        figure = module.Figure()
        module.save(figure, tmp_path / 'picture.png', quick)
        assert figure.get_suptitle() == title and (tmp_path / 'picture.png').stat().st_size


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


def test_shift_and_binary_runs(run_example):
    lines = run_example('shift_and_binary')
    rows = [re.search(r'loss (\S+) at first, (\S+) at last; accuracy [01]\.\d{4};', line) for line in lines[:4]]
    assert all(float(row[2]) < float(row[1]) - 0.1 for row in rows)
    assert sum('equal to' in line for line in lines) == 4 and not any('False' in line for line in lines)


@pytest.fixture
def quantised(example):
    return example('shift_and_binary')


@pytest.mark.parametrize('kind', ['FloatConv', 'ShiftConv', 'BinaryConv'])
def test_masters_gradients_are_straight_through(quantised, monkeypatch, kind):
    """At whole shifts and signs of size 1 rounding changes nothing; the gradients are the slopes without it."""
    rng = np.random.default_rng(0)
    layer = getattr(quantised, kind)(rng, (3, 2, 3, 3), np.float64, stride=2, **quantised.MINUS_ONE)
    for place, master in enumerate(layer.parameters[:-1]):
        if kind == 'ShiftConv' and place == 0:
            master[...] = rng.integers(-4, -1, master.shape)
        elif kind != 'FloatConv':
            master[...] = quantised.sign(master) * (1 - 1e-9)  # on this side of 1, whatever the direction
    monkeypatch.setattr(quantised, 'nearest', lambda x: x)
    monkeypatch.setattr(quantised, 'sign', lambda x: x)
    x, towards = rng.standard_normal((2, 2, 7, 7)), rng.standard_normal((2, 3, 5, 5))

    def loss():
        value = np.vdot(layer.forward(x, training=True), towards)
        layer.grad_x = layer.backward(towards)
        return value

    check_slopes(layer, loss, rng)
    direction = rng.standard_normal(x.shape)
    there = np.vdot(layer.forward(x + direction, training=True) - layer.forward(x, training=True), towards)
    assert there == pytest.approx(np.vdot(layer.grad_x, direction))  # linear in x, but for the padding's constant


def test_weights_are_what_they_are_called(quantised):
    rng = np.random.default_rng(0)
    shift, binary = (getattr(quantised, kind)(rng, (4, 3, 5, 5), np.float32) for kind in ('ShiftConv', 'BinaryConv'))
    mantissas, exponents = np.frexp(np.abs(shift.weight()))
    assert (mantissas == 0.5).all() and exponents.min() > quantised.LOWEST and exponents.max() <= quantised.HIGHEST + 1
    whole, _ = shift.in_whole_numbers(8)
    assert (whole == shift.weight() * 2.0**-quantised.LOWEST).all()
    m = binary.parameters[0]
    for channel, own in zip(binary.weight(), m):
        assert set(np.unique(channel)) <= {np.abs(own).mean(), -np.abs(own).mean()}
        assert ((channel > 0) == (own >= 0)).all()


def test_a_master_of_more_than_one_keeps_its_sign(quantised):
    layer = quantised.BinaryConv(np.random.default_rng(0), (1, 1, 1, 2), np.float64)
    layer.parameters[0][...] = [[[[3.0, -0.5]]]]
    [grad] = layer.grads_of_masters(np.array([[[[2.0, 4.0]]]]))
    # alpha 1.75; to alpha the mean of 2 and -4: -1
    assert grad.ravel().tolist() == [-1.0, 1.75 * 4 + 1]


def test_fixed_point_is_big_integers(quantised):
    """Also through layers that sum beyond 64 bits: both wrap there, so one layer is compared modulo 2**64."""
    rng = np.random.default_rng(0)
    network = quantised.DigitNetwork(quantised.ShiftConv)
    images = rng.random((2, 1, 28, 28), np.float32)
    found, wanted = (quantised.fixed_point_scores(network, images, 20, convolve)
                     for convolve in (pyconv.conv2d, quantised.big_conv2d))
    assert wanted.dtype == object and (found == wanted).all()
    floats = network.scores(images)  # the layers before read whole numbers of 2**-20
    np.testing.assert_allclose(found / 2.0**(20 - quantised.LOWEST), floats, atol=1e-4)
    x, weight = (rng.integers(-2**40, 2**40, shape) for shape in ((1, 2, 6, 6), (3, 2, 3, 3)))
    big = quantised.big_conv2d(x, weight, np.zeros(3, int), 1, 1)
    assert (np.abs(big) >= 2**63).any()
    assert (pyconv.conv2d(x, weight, padding=1) == (big + 2**63) % 2**64 - 2**63).all()


@pytest.mark.parametrize(('stride', 'padding'), [(1, 0), (2, 2), (1, 3)])
def test_bits_are_counted(quantised, stride, padding):
    rng = np.random.default_rng(0)
    x, weight = (quantised.sign(rng.standard_normal(shape)).astype(np.int8) for shape in ((2, 3, 8, 9), (4, 3, 3, 3)))
    settings = {**quantised.MINUS_ONE, 'stride': stride, 'padding': padding}
    found = quantised.count_bits(x, weight, **settings)
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=-1)
    assert (found == pyconv.conv2d(padded, weight, stride=stride)).all()
    assert (found == pyconv.conv2d(x, weight, **settings)).all()
