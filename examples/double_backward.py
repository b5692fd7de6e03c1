"""Gradients of gradients without a framework: train a WGAN by its gradient penalty, and multiply by a Hessian.

    python examples/double_backward.py      three minutes; it compares itself with torch, which it needs for that

The critic D of a WGAN must not be steep. So its loss gets a penalty, the mean of (|grad_x D(x)| - 1)^2 over samples x,
and what trains the critic is the gradient of that by its weights: the gradient of a function of a gradient. A product
of the Hessian with a vector v is another: the gradient by the weights of <v, gradient by the weights>.

Both are three walks through the layers, written here once, in `Network.second_gradients`:

    backward     from the gradient by the output to grad_x, and to those by the parameters
    forward      a scalar S of these gradients has gradients by them; `double_backward` takes them from layer to layer,
                 beginning with that by grad_x, and finds on the way those by the weights and by the layers' inputs
    backward     the gradients by the layers' inputs go on to the layers before, and to their weights

For a convolution, transposed or not, the first walk is `convolution_backward` and the second
`convolution_double_backward`; no layer needs more than a line for either. The penalty begins the second walk with
dS/dgrad_x and the Hessian's product with dS/dgrad_w = v.
"""
import time

import numpy as np
import torch
from common import BARE, Adam, argument_parser, load_digits, mosaic, running_mean, save, tidy
from matplotlib.figure import Figure
from tqdm import tqdm

import pyconv
from pyconv import convolution, convolution_backward, convolution_double_backward


class Conv:
    """A convolution, transposed or not, with bias. `first_axes` are those of the weight before its kernel's."""

    def __init__(self, first_axes, kernel, stride=1, padding=0, dilation=1, transposed=False):
        self.shape = (*first_axes, kernel, kernel)
        self.settings = ([stride] * 2, [padding] * 2, [dilation] * 2, transposed, [0] * 2, 1)  # pyconv's and torch's

    def draw_parameters(self, rng, dtype):
        [stride, _], *_, transposed, _, _ = self.settings
        channels, kernel = self.shape[:2], self.shape[2]
        out_channels, in_channels = reversed(channels) if transposed else channels
        taps = in_channels * kernel**2 / (stride**2 if transposed else 1)  # that an output's cell sums
        weight = rng.standard_normal(self.shape) / np.sqrt(taps)
        self.parameters = [weight.astype(dtype), np.zeros(out_channels, dtype)]
        self.grads = [np.zeros_like(array) for array in self.parameters]

    def forward(self, x):
        self.x = x
        return convolution(x, *self.parameters, *self.settings)

    def backward(self, grad, wanted):
        self.grad = grad
        grad_x, *grads = convolution_backward(grad, self.x, self.parameters[0], *self.settings, wanted)
        self.grads = [now if new is None else now + new for now, new in zip(self.grads, grads)]
        return grad_x

    def double_backward(self, to_grad_x, to_grads):
        """From the gradients of S by what `backward` returned: those by its `grad` and by x, and in grads by weight."""
        to_weight, to_bias = to_grads or (None, None)
        to_grad, to_x, by_weight = convolution_double_backward(
            to_grad_x, to_weight, to_bias, self.grad, self.parameters[0], self.x, *self.settings,
            (True, to_weight is not None, to_grad_x is not None),
        )
        if by_weight is not None:
            self.grads[0] = self.grads[0] + by_weight
        return to_grad, to_x

    def in_torch(self, x, parameters):
        return torch.convolution(x, *parameters, *self.settings)


class SmoothReLU:
    """(x + sqrt(x^2 + 1)) / 2. It is curved, so that the first walk's gradients depend on x in the third."""

    parameters = grads = ()

    def draw_parameters(self, rng, dtype):
        pass

    def forward(self, x):
        self.x, self.root = x, np.sqrt(x * x + 1)
        return (x + self.root) / 2

    def backward(self, grad, wanted):
        self.grad = grad
        return grad * (1 + self.x / self.root) / 2

    def double_backward(self, to_grad_x, to_grads):
        slope, curvature = (1 + self.x / self.root) / 2, 0.5 / self.root**3
        return to_grad_x * slope, to_grad_x * self.grad * curvature

    def in_torch(self, x, parameters):
        return (x + (x * x + 1).sqrt()) / 2


class Network:
    def __init__(self, layers, seed, dtype=np.float32):
        self.layers, rng = layers, np.random.default_rng(seed)
        for layer in layers:
            layer.draw_parameters(rng, dtype)

    @property
    def parameters(self):
        return [array for layer in self.layers for array in layer.parameters]

    @property
    def grads(self):
        return [array for layer in self.layers for array in layer.grads]

    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def backward(self, grad, wanted=(True, True, True)):
        """Return the gradient by the network's input, and add those by the parameters to `grads`, as `wanted`."""
        for layer in reversed(self.layers):
            grad = layer.backward(grad, wanted)
        return grad

    def forget_gradients(self):
        for layer in self.layers:
            layer.grads = [np.zeros_like(array) for array in layer.parameters]

    def second_gradients(self, to_grad_x, to_grads=None):
        """Add to `grads` the gradients of S, of which those by grad_x and by the parameters' gradients are given."""
        to_inputs, to_grads = [], iter(to_grads) if to_grads else None
        for layer in self.layers:
            own = [next(to_grads) for _ in layer.parameters] if to_grads else None
            to_grad_x, to_x = layer.double_backward(to_grad_x, own)
            to_inputs.append(to_x)
        grad = None  # nothing goes to the critic's values themselves
        for layer, to_x in zip(reversed(self.layers), reversed(to_inputs)):
            back = None if grad is None else layer.backward(grad, (layer is not self.layers[0], True, True))
            grad = to_x if back is None else back if to_x is None else back + to_x

    def penalty(self, images, strength):
        """Return the mean of (|grad_x D| - 1)^2 and add its gradients, times `strength`, to `grads`."""
        values = self.forward(images)
        grad_x = self.backward(np.ones_like(values), (True, False, False))
        norms = np.sqrt(np.square(grad_x).sum((1, 2, 3), keepdims=True))
        self.second_gradients(grad_x * (2 * strength / len(images) * (norms - 1) / norms))
        return np.square(norms - 1).mean()

    def hessian_times(self, images, signs, vectors):
        """Return the Hessian of mean(signs * D(images)) by the parameters, times the vectors."""
        self.forward(images)
        self.backward(signs / len(images), (True, False, False))
        self.forget_gradients()
        self.second_gradients(None, vectors)
        return self.grads


def torch_penalty(network, tensors, images):
    """The gradients of Network.penalty by torch's autograd."""
    images = images.detach().requires_grad_()
    [grad_x] = torch.autograd.grad(torch_forward(network, tensors, images).sum(), images, create_graph=True)
    loss = (grad_x.square().sum((1, 2, 3)).sqrt() - 1).square().mean()
    return torch.autograd.grad(loss, tensors, materialize_grads=True)


def torch_hessian_times(network, tensors, images, signs, vectors):
    loss = (signs * torch_forward(network, tensors, images)).mean()
    grads = torch.autograd.grad(loss, tensors, create_graph=True)
    return torch.autograd.grad(grads, tensors, vectors, materialize_grads=True)


def torch_forward(network, tensors, x):
    tensors = iter(tensors)
    for layer in network.layers:
        x = layer.in_torch(x, [next(tensors) for _ in layer.parameters])
    return x


def critic_layers():
    return [Conv((32, 1), 4, stride=2, padding=1), SmoothReLU(), Conv((64, 32), 4, stride=2, padding=1), SmoothReLU(),
            Conv((1, 64), 7)]


def hourglass_layers():
    """A critic in whose middle a dilated transposed convolution makes 29x29 of 9x9."""
    return [Conv((32, 1), 4, stride=3, padding=1), SmoothReLU(),
            Conv((32, 16), 3, stride=3, dilation=2, transposed=True), SmoothReLU(),
            Conv((32, 16), 4, stride=2, padding=1), SmoothReLU(), Conv((1, 32), 14)]


def generator_layers():
    """Noise (64, 1, 1) to images. Stride 3 and a kernel of 3 with dilation 2 reach each cell once: 3a + 2k."""
    return [Conv((64, 64), 4, transposed=True), SmoothReLU(),
            Conv((64, 64), 3, stride=3, dilation=2, transposed=True), SmoothReLU(),
            Conv((64, 32), 4, stride=2, padding=1, transposed=True), SmoothReLU(),
            Conv((1, 32), 3, padding=1)]


def compare(layers, batch, repeats, rng):
    """Return {what: (worst relative difference in float64, pyconv's and torch's milliseconds in float32)}."""
    found = {}
    for dtype in (np.float64, np.float32):
        network = Network(layers, 0, dtype)
        images, signs = rng.random((batch, 1, 28, 28)).astype(dtype), np.sign(rng.standard_normal((batch, 1, 1, 1)))
        signs, vectors = signs.astype(dtype), [rng.standard_normal(a.shape).astype(dtype) for a in network.parameters]

        def penalty():
            network.forget_gradients()
            network.penalty(images, 1)
            return network.grads

        tensors = [torch.tensor(array, requires_grad=True) for array in network.parameters]
        there = [torch.tensor(images), torch.tensor(signs), [torch.tensor(array) for array in vectors]]
        for name, ours, theirs in (
            ("gradient penalty", penalty, lambda: torch_penalty(network, tensors, there[0])),
            ("Hessian times vector", lambda: network.hessian_times(images, signs, vectors),
             lambda: torch_hessian_times(network, tensors, *there)),
        ):
            if dtype is np.float64:
                found[name] = [worst_difference(ours(), theirs())]
            else:
                found[name] += [milliseconds(function, repeats) for function in (ours, theirs)]
    return found


def worst_difference(ours, theirs):
    """The largest difference between two lists of arrays, each relative to its own largest element."""
    pairs = [(one, other.numpy()) for one, other in zip(ours, theirs, strict=True)]
    return max(np.abs(one - other).max() / max(np.abs(other).max(), 1e-300) for one, other in pairs)


def milliseconds(function, repeats):
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1000 * np.median(times[1:])


def train(images, steps, batch, seed=0):
    """Train a WGAN with gradient penalty; return the critic's estimates, the penalties and some images that it drew."""
    rng = np.random.default_rng(seed)
    critic, generator = Network(critic_layers(), seed), Network(generator_layers(), seed + 1)
    optimizers = {network: Adam(network.parameters, 1e-3, (0.5, 0.9)) for network in (critic, generator)}

    def step(network):
        optimizers[network].step(network.grads)
        network.forget_gradients()

    distances, penalties = [], []
    for _ in tqdm(range(steps), desc="WGAN", unit=" steps"):
        for _ in range(3):
            real = images[rng.integers(0, len(images), batch)]
            fake = generator.forward(noise(rng, batch))
            shares = rng.random((batch, 1, 1, 1), dtype=np.float32)
            values = critic.forward(np.concatenate([real, fake]))
            signs = np.repeat(np.float32([-1, 1]), batch)[:, None, None, None] / batch
            critic.backward(signs, (True, True, True))
            critic_penalty = critic.penalty(real + shares * (fake - real), strength=10)
            step(critic)
        distances.append(-np.vdot(signs, values))
        penalties.append(critic_penalty)
        values = critic.forward(generator.forward(noise(rng, batch)))
        generator.backward(critic.backward(np.full_like(values, -1 / batch), (True, False, False)))
        step(generator)
    return distances, penalties, generator.forward(noise(rng, 48))[:, 0]


def noise(rng, batch):
    return rng.standard_normal((batch, 64, 1, 1), dtype=np.float32)


def draw(path, quick, distances, penalties, drawn, real, rows):
    """Save a picture of the training, of what the generator draws, and of the times."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    axes = above.subplots(1, 3)
    for plot, values, title in ((axes[0], distances, "The critic's estimate of the distance"),
                                (axes[1], penalties, "Gradient penalty")):
        plot.plot(values, color="#9dbcd4", linewidth=0.8, label="of each step")
        plot.plot(running_mean(values), color="#12436d", linewidth=2, label="mean of 25 steps")
        tidy(plot, title, xlabel="step of the generator", xlim=(0, max(1, len(values) - 1)))
        plot.legend(frameon=False)
    axes[1].set_yscale("log")
    images = np.concatenate([mosaic(real, 8), np.full((2, 8 * 29 - 1), np.nan), mosaic(drawn, 8)])
    axes[2].set(title=f"Digits ({len(real) // 8} rows), and what is drawn", **BARE)
    axes[2].imshow(images, cmap="gray_r", vmin=0, vmax=1)

    plot, places = below.subplots(), np.arange(len(rows))[::-1]
    for shift, which, label, colour in ((0.2, 1, "NumPy and pyconv", "#12436d"), (-0.2, 2, "torch", "#f46a25")):
        times = [row[which] for row in rows.values()]
        plot.bar_label(plot.barh(places + shift, times, 0.38, color=colour, label=label), fmt="%.1f", padding=3)
    plot.set_yticks(places, rows)
    tidy(plot, "Time of one evaluation (milliseconds)", xlim=(0, 1.15 * max(max(row[1:]) for row in rows.values())))
    plot.legend(frameon=False)
    save(figure, path, quick)


def main():
    parser = argument_parser("Train a WGAN by its gradient penalty with NumPy and pyconv.", "double_backward.png",
                             "a few steps and small batches: does it run?")
    parser.add_argument("--steps", type=int, default=1000, help="of the generator (default %(default)s)")
    arguments = parser.parse_args()
    batch, repeats = (8, 1) if arguments.quick else (64, 15)
    print(f"threads: pyconv {pyconv.get_num_threads()}, torch {torch.get_num_threads()}; a batch of {batch}")
    print(f"{'':45} difference from torch's   milliseconds, torch's")
    rows = {}
    for kind, layers in (("convolutions", critic_layers()), ("dilated transposed", hourglass_layers())):
        for what, row in compare(layers, batch, repeats, np.random.default_rng(0)).items():
            rows[f"{what}, {kind}"] = row
            print(f"{what + ', ' + kind:45} {row[0]:20.1e} {row[1]:16.1f} {row[2]:8.1f}")
    (images, _), _ = load_digits()
    steps = 3 if arguments.quick else arguments.steps
    distances, penalties, drawn = train(images, steps, 8 if arguments.quick else 32)
    print(f"the critic's distance {np.max(distances):.3f} at most, {np.mean(distances[-20:]):.3f} at last")
    draw(arguments.output, arguments.quick, distances, penalties, drawn, images[:16, 0], rows)
    print(f"picture {arguments.output}")


if __name__ == "__main__":
    main()
