"""An autoencoder whose decoder is a convolution's gradient, with weights of its own, trained on real digits.

    python examples/untied_autoencoder.py      half a minute

    encode    y = relu(conv2d(x, w_f, b, stride=4))
    decode    r = conv2d_input(x.shape, w_b, y, stride=4)        loss = sum of (r - x)^2 / 2

`conv2d_input` is the gradient of conv2d to its input; it takes any weight of the right shape. Here it is a layer: it
undoes the shape of the encoder and knows nothing of w_f. A layer needs gradients, and those of a gradient need nothing
new. pyconv's functions are the three derivatives of one form that is linear in each of its three arrays,

    T(x, w, y) = sum of y[n, o, a] * w[o, i, k] * x[n, i, s*a + k]

    conv2d = dT/dy (x, w)        conv2d_input = dT/dx (w, y)        conv2d_weight = dT/dw (x, y)

so the gradient by one of a function's two arrays is the function for the third, with the gradient by its result in the
place that the result has. The confusing part is the places' names, which are those of the encoder's:

                      encoder y = conv2d(x, w_f)              decoder r = conv2d_input(x.shape, w_b, y)
    input             x                                       grad_r   the large image is what comes *back*
    grad_output       grad_y                                  y        the small one is what went *in*
    by the weight     conv2d_weight(x, w_f.shape, grad_y)     conv2d_weight(grad_r, w_b.shape, y)
    by what went in   conv2d_input(x.shape, w_f, grad_y)      conv2d(grad_r, w_b)

So grad_w_b is conv2d_weight with the gradient as its input and the input as its grad_output. Where both images have as
many channels and pixels no shape tells whether they were swapped; the test of the gradients does.

Four decoders are compared. `learned` w_b follows its gradient, `decayed` as well while both weights also shrink a
little in each step, `fixed` w_b keeps its random values and the encoder learns through them, which is feedback
alignment, and `tied` is w_b = w_f, one array with the sum of both gradients. But for the last, nothing tells w_b and
w_f to become alike. The picture shows the angle between them, as papers on feedback alignment do.
"""
import numpy as np
from common import BARE, Momentum, argument_parser, load_digits, mosaic, running_mean, save, tidy
from matplotlib.figure import Figure
from tqdm import tqdm

from pyconv import conv2d, conv2d_input, conv2d_weight, conv_bias

KINDS = {"learned": "#12436d", "decayed": "#28a197", "fixed": "#f46a25", "tied": "#801650"}  # and their colours


class Autoencoder:
    """parameters are w_f, b and, where it learns on its own, w_b; `loss` leaves their gradients in `grads`."""

    def __init__(self, kind, seed, channels=32, kernel=8, stride=4, padding=2, dtype=np.float32):
        rng, shape = np.random.default_rng(seed), (channels, 1, kernel, kernel)
        self.kind, self.settings = kind, {"stride": stride, "padding": padding}
        self.w_f, w_b = (rng.standard_normal((2, *shape)) * 0.3 / kernel).astype(dtype)
        self.w_b = {"tied": self.w_f, "fixed": w_b / np.float32(0.3)}.get(kind, w_b)  # what cannot grow begins at 1
        self.b = np.zeros(channels, dtype)
        self.learns_w_b = kind in ("learned", "decayed")
        self.parameters = [self.w_f, self.b] + [self.w_b] * self.learns_w_b

    def encode(self, x):
        return np.maximum(conv2d(x, self.w_f, self.b, **self.settings), 0)

    def decode(self, y, size):
        return conv2d_input(size, self.w_b, y, **self.settings)

    def loss(self, x):
        """Return half the squared error per image."""
        y = self.encode(x)
        r = self.decode(y, x.shape)
        grad_r = (r - x) / len(x)
        grad_w_b = conv2d_weight(grad_r, self.w_b.shape, y, **self.settings)
        grad_y = conv2d(grad_r, self.w_b, **self.settings) * (y > 0)
        grad_w_f = conv2d_weight(x, self.w_f.shape, grad_y, **self.settings)
        if self.kind == "tied":
            grad_w_f += grad_w_b
        self.grads = [grad_w_f, conv_bias(grad_y)] + [grad_w_b] * self.learns_w_b
        return np.square(r - x).sum(dtype=np.float64) / 2 / len(x)

    def angles(self):
        """The angle between w_f and w_b in degrees, of each channel: a channel may scale one up and the other down."""
        pairs = [w.reshape(len(w), -1) / np.sqrt(np.square(w).sum((1, 2, 3)))[:, None] for w in (self.w_f, self.w_b)]
        return np.degrees(np.arccos(np.clip(np.einsum("ck,ck->c", *pairs), -1, 1)))


def train(network, images, steps, batch, seed):
    """Gradient descent. Return the losses and, before the first step and after each, the angles."""
    rng = np.random.default_rng(seed)
    optimizer = Momentum(network.parameters, 0.004)
    decay = 0.03 * (network.kind == "decayed")
    losses, angles = [], [network.angles()]
    for step in tqdm(range(steps), desc=f"w_b {network.kind}", unit=" steps"):
        losses.append(network.loss(images[rng.integers(0, len(images), batch)]))
        grads = [grad + decay * array if array.ndim == 4 else grad  # biases are not weights
                 for array, grad in zip(network.parameters, network.grads)]
        optimizer.step(grads, min((step + 1) / 100, 1 - step / steps))
        angles.append(network.angles())
    return losses, np.array(angles)


def draw(path, quick, networks, histories, images):
    """Save a picture of losses, angles, some pairs of kernels and some digits with their reconstructions."""
    figure = Figure(figsize=(11, 8), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2.4))
    left, right = above.subplots(1, 2)
    for kind, (losses, angles) in histories.items():
        left.plot(running_mean(losses), color=KINDS[kind], label=f"w_b {kind}")
        if kind != "tied":
            low, middle, high = np.percentile(angles, (10, 50, 90), axis=1)
            right.fill_between(range(len(angles)), low, high, color=KINDS[kind], alpha=0.15, linewidth=0)
            right.plot(middle, color=KINDS[kind], label=f"w_b {kind}")
    right.axhline(90, color="grey", linewidth=0.8, linestyle="--", label="at random")
    tidy(left, "Loss of an image", xlabel="step", yscale="log", xlim=(0, len(losses)))
    tidy(right, "Angle between w_f and w_b (degrees)", xlabel="step", xlim=(0, len(losses)), ylim=(0, 115),
         yticks=range(0, 91, 15))
    left.legend(frameon=False)
    right.legend(frameon=False, ncols=2, loc="upper right", title="median channel, and 10 to 90 %")

    first, second, last = below.subplots(1, 3, subplot_kw=BARE, width_ratios=(1, 1, 1.25))
    for axes, kind in ((first, "learned"), (second, "fixed")):
        axes.imshow(in_pairs(networks[kind]), cmap="RdBu_r", vmin=-1, vmax=1)
        axes.set_title(f"w_f over w_b ({kind}), the nearest pairs", fontsize=10)
    rows = [images] + [network.decode(network.encode(images), images.shape) for network in networks.values()]
    last.imshow(mosaic(np.concatenate(rows)[:, 0], len(images)), cmap="gray_r", vmin=0, vmax=1)
    last.set_yticks(np.arange(len(rows)) * 29 + 14, ["digit", *networks])
    last.tick_params(length=0)
    save(figure, path, quick)


def in_pairs(network, columns=8, rows=3):
    """An image of the kernels whose w_f and w_b are nearest, each over its partner, each by its largest element."""
    nearest = np.argsort(network.angles())[:rows * columns]
    kernels = np.stack([network.w_f[nearest, 0], network.w_b[nearest, 0]])
    kernels /= np.abs(kernels).max((2, 3), keepdims=True)
    ordered = kernels.reshape(2, rows, columns, *kernels.shape[2:]).swapaxes(0, 1).reshape(-1, *kernels.shape[2:])
    return mosaic(ordered, columns)


def main():
    parser = argument_parser("Train autoencoders whose decoder is conv2d_input.", "untied_autoencoder.png",
                             "a few steps: does it run?")
    parser.add_argument("--steps", type=int, default=1500, help="of gradient descent (default %(default)s)")
    arguments = parser.parse_args()
    (images, _), (test_images, _) = load_digits()
    steps = 150 if arguments.quick else arguments.steps
    networks, histories = {}, {}
    for kind in KINDS:
        networks[kind] = Autoencoder(kind, seed=0)
        histories[kind] = train(networks[kind], images, steps, 32, seed=0)
    print("w_b          loss at first   at last   of test digits     median angle at first   at last")
    for kind, (losses, angles) in histories.items():
        middle = np.median(angles, axis=1)
        print(f"{kind:10} {losses[0]:15.2f} {np.mean(losses[-20:]):9.2f} {networks[kind].loss(test_images):16.2f}"
              f" {middle[0]:25.1f} {middle[-1]:9.1f}")
    draw(arguments.output, arguments.quick, networks, histories, test_images[:10])
    print(f"picture {arguments.output}")


if __name__ == "__main__":
    main()
