"""The examples run, and the gradients that they write out by hand are those of their loss."""
import re

import numpy as np
import pytest

import pyconv


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


def test_the_article_is_rerun(run_example):
    torch = pytest.importorskip('torch')
    lines = run_example('lenet_mnist', '--torch', '--seeds', '2')
    is_there = torch.cuda.is_available()
    assert lines.count('torch finds no GPU here: this is the CPU alone') == (not is_there)
    rows = {row[1]: [float(number) for number in row[2].split()]
            for line in lines if (row := re.fullmatch(r'(\S.*?)  +([\d. ]+\d)', line))}
    assert [name for name in rows if name.endswith('cpu')] == ["torch's convolution, cpu", "pyconv.torch's, cpu"]
    assert len(rows) == (5 if is_there else 3)
    for first, second, mean, seconds in rows.values():
        assert mean == pytest.approx((first + second) / 2, abs=1e-4) and seconds > 0
    assert [line.split()[-4:] for line in lines if line.startswith('the article: ')] == [
        ['0.9920', '33.72', '(another', "machine's)"], ['0.9910', '76.49', '(another', "machine's)"]]
    assert 'by hand in the article: -0.0010 in accuracy, 2.27 times torch\'s time' in lines
    [found] = [re.search(r'cpu: (\S+) \(.* span (\S+)\), (\S+) times', line) for line in lines
               if line.startswith('pyconv.torch on cpu')]
    theirs, ours = rows["torch's convolution, cpu"], rows["pyconv.torch's, cpu"]
    gap, span, ratio = map(float, found.groups())
    assert gap == pytest.approx(ours[2] - theirs[2], abs=2e-4)
    assert span == pytest.approx(abs(theirs[0] - theirs[1]), abs=2e-4)
    rounded = 0.005  # as the seconds are, and the ratio
    low, high = (ours[3] - rounded) / (theirs[3] + rounded), (ours[3] + rounded) / (theirs[3] - rounded)
    assert low - rounded <= ratio <= high + rounded


@pytest.mark.parametrize(('is_there', 'asked', 'wanted'), [
    (True, None, ['cpu', 'cuda']), (False, None, ['cpu']), (True, 'cpu', ['cpu']), (True, 'cuda', ['cuda'])])
def test_devices(lenet, monkeypatch, capsys, is_there, asked, wanted):
    torch = pytest.importorskip('torch')
    threads = []
    monkeypatch.setattr(torch, 'set_num_threads', threads.append)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: is_there)
    assert lenet.devices(torch, asked) == wanted
    assert ('torch finds no GPU' in capsys.readouterr().out) == (not is_there)
    kinds = lenet.torch_kinds(asked)
    assert threads == [pyconv.get_num_threads()]
    assert [name.split(', ')[1] for name in kinds] == [kind.keywords['device'] for kind in kinds.values()] == [
        device for device in wanted for _ in range(2)]
    rounds = torch.backends.cudnn.allow_tf32
    assert [kind.keywords['conv2d'].keywords for kind in list(kinds.values())[1::2]] == [
        {'allow_tf32': rounds}] * len(wanted)


def test_a_device_that_is_not_there(lenet, monkeypatch):
    torch = pytest.importorskip('torch')
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    with pytest.raises(SystemExit, match='^--device must be one that torch finds; got cuda$'):
        lenet.devices(torch, 'cuda')


def test_torch_trains_where_it_is_told_to(lenet, monkeypatch):
    """On torch's device without memory, in want of a GPU: but for moves to it, no operation has a tensor elsewhere."""
    torch = pytest.importorskip('torch')
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen, moves = set(), {torch.ops.aten.lift_fresh.default, torch.ops.aten._to_copy.default}  # from_numpy; to

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            places = {leaf.device.type for leaf in tree_leaves((args, kwargs, result)) if torch.is_tensor(leaf)}
            assert places == {'meta'} or function in moves, function
            seen.add(function)
            return result

    monkeypatch.setattr(torch.Tensor, 'item', lambda loss: 0.5)  # there is no number there
    network = lenet.TorchNetwork(0, torch, torch.nn.functional.conv2d, 'meta')
    images, labels = np.zeros((8, 1, 28, 28), np.float32), np.zeros(8, int)
    with Watched():
        assert lenet.train(network, images, labels, 0, 1, 4, 'test') == [0.5] * 2
    assert {torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default,
            torch.ops.aten.add_.Tensor} <= seen
    assert all(tensor.is_meta for tensor in (*network.tensors, *network.parameters, *network.averages, *network.grads))


@pytest.mark.parametrize(('device', 'waits'), [('cpu', 0), ('cuda', 1)])
def test_the_clock_waits_for_a_gpu(lenet, monkeypatch, device, waits):
    torch = pytest.importorskip('torch')
    calls = []
    monkeypatch.setattr(torch.cuda, 'synchronize', lambda: calls.append(1))
    network = lenet.TorchNetwork(0, torch, torch.nn.functional.conv2d)
    network.device = device
    network.wait()
    assert len(calls) == waits


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
