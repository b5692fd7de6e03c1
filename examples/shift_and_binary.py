"""Convolutions without multiplications, trained on real digits: weights that are shifts with a sign, and binary ones.

    python examples/shift_and_binary.py      one or two minutes

A weight of a *shift* layer is sign * 2^shift with a whole shift: to multiply by it is to move bits. A weight of a
*binary* layer is +alpha or -alpha, with one alpha for each output channel. Both are learnt through masters, floats that
follow gradients and are rounded in each forward pass. Rounding has no slope of use; its gradient is taken as if it were
not there (straight through), and that of a sign where the master is at most 1. Let g be the gradient by the weight w:

    w = 2^round(shift) * sign(s)               to shift: g * w * log 2        to s: g * 2^round(shift)
    w = alpha * sign(m), alpha = mean |m|      to m: alpha * g + sign(m) * mean(g * sign(m))

In fixed point the trained shift network needs whole numbers alone: pyconv's sums of integers are those of Python's big
integers, bit for bit. Where inputs are binary too, a convolution counts the bits in which input and weight differ; but
what lies outside the image must then be -1 or +1 like any other cell, and padding_value=-1 says so, forward and
backward.
"""
import numpy as np
from common import Adam, argument_parser, load_digits, running_mean, save, tidy
from lenet_mnist import BatchNorm, Layer, Network, ReLU, guess, train
from matplotlib.figure import Figure

from pyconv import conv2d, conv2d_input, conv2d_weight, conv_bias, unfold

LOWEST, HIGHEST = -9, 0  # shifts
PLAIN = {"padding": 2}
MINUS_ONE = {"padding": 2, "padding_mode": "constant", "padding_value": -1}


def nearest(x):
    return np.rint(x)


def sign(x):
    """+1 or -1, of the type of x."""
    return np.where(x < 0, -1, 1).astype(x.dtype)


class FloatConv(Layer):
    """A convolution whose weight is made of `masters`, here of one: itself. The last parameter is the bias."""

    def __init__(self, rng, shape, dtype, **settings):
        initial = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        super().__init__(*(array.astype(dtype) for array in self.masters_of(initial)), np.zeros(len(initial), dtype))
        self.settings = settings

    def masters_of(self, initial):
        return [initial]

    def weight(self):
        return self.parameters[0]

    def grads_of_masters(self, grad_weight):
        return [grad_weight]

    def forward(self, x, training):
        self.x, self.w = x, self.weight()
        return conv2d(x, self.w, self.parameters[-1], **self.settings)

    def backward(self, grad):
        grad_weight = conv2d_weight(self.x, self.w.shape, grad, **self.settings)
        for array, new in zip(self.grads, (*self.grads_of_masters(grad_weight), conv_bias(grad))):
            array[...] = new
        return conv2d_input(self.x.shape, self.w, grad, **self.settings)


class ShiftConv(FloatConv):
    """The weight is 2^round(shift) * sign(s)."""

    def masters_of(self, initial):
        return [np.clip(np.log2(np.abs(initial)), LOWEST, HIGHEST), np.where(initial < 0, -0.1, 0.1)]

    def weight(self):
        shift, s, _ = self.parameters
        np.clip(shift, LOWEST, HIGHEST, out=shift)
        return np.exp2(nearest(shift)) * sign(s)

    def grads_of_masters(self, grad_weight):
        _, s, _ = self.parameters
        return [grad_weight * self.w * np.log(2), grad_weight * np.abs(self.w) * (np.abs(s) <= 1)]

    def in_whole_numbers(self, bits):
        """The weight times 2^-LOWEST, and the bias for inputs times 2^bits."""
        shift, s, bias = (np.asarray(array, np.float64) for array in self.parameters)
        weight = sign(s).astype(np.int64) << (nearest(shift).astype(np.int64) - LOWEST)
        return weight, np.rint(bias * 2.0**(bits - LOWEST)).astype(np.int64)


class BinaryConv(FloatConv):
    """The weight is alpha * sign(m); alpha is the mean size of a channel's masters."""

    def alpha(self):
        return np.abs(self.parameters[0]).mean((1, 2, 3), keepdims=True)

    def weight(self):
        return self.alpha() * sign(self.parameters[0])

    def grads_of_masters(self, grad_weight):
        m = self.parameters[0]
        to_alpha = (grad_weight * sign(m)).mean((1, 2, 3), keepdims=True)
        return [self.alpha() * grad_weight * (np.abs(m) <= 1) + np.where(m < 0, -1, 1) * to_alpha]


class Sign(Layer):
    """+1 where x is at least `threshold`, else -1; the gradient passes where x is within 1 of it."""

    def __init__(self, threshold=0):
        super().__init__()
        self.threshold = np.float32(threshold)

    def forward(self, x, training):
        self.x = x - self.threshold
        return sign(self.x)

    def backward(self, grad):
        return grad * (np.abs(self.x) <= 1)


class DigitNetwork(Network):
    def __init__(self, conv, binary_inputs=False, seed=0, dtype=np.float32):
        self.conv, self.binary_inputs = conv, binary_inputs
        super().__init__(seed, dtype)

    def build(self, rng, dtype):
        padding = MINUS_ONE if self.binary_inputs else PLAIN
        first, second = (self.conv(rng, shape, dtype, stride=2, **padding) for shape in ((16, 1, 5, 5), (32, 16, 5, 5)))
        last = self.conv(rng, (10, 32, 7, 7), dtype)
        if not self.binary_inputs:
            return [first, ReLU(), second, ReLU(), last]
        return [Sign(0.5), first, BatchNorm(16, dtype), Sign(), second, BatchNorm(32, dtype), Sign(), last]


KINDS = {  # and their colours
    "float weights": (lambda: DigitNetwork(FloatConv), "#3d3d3d"),
    "shift weights": (lambda: DigitNetwork(ShiftConv), "#12436d"),
    "binary weights": (lambda: DigitNetwork(BinaryConv), "#f46a25"),
    "binary weights and inputs": (lambda: DigitNetwork(BinaryConv, binary_inputs=True), "#801650"),
}


def fixed_point_scores(network, images, bits, convolve):
    """The shift network's scores, times 2^(bits - LOWEST), where layers read whole numbers of 2^-bits."""
    x = np.rint(images.astype(np.float64) * 2.0**bits).astype(np.int64)
    for layer in network.layers:
        if isinstance(layer, ReLU):
            # back to `bits` binary places, rounded to the nearest
            x = np.maximum(x + (1 << (-LOWEST - 1)) >> -LOWEST, 0)
        else:
            x = convolve(x, *layer.in_whole_numbers(bits), **layer.settings)
    return x[:, :, 0, 0]


def big_conv2d(x, weight, bias, stride=1, padding=0):
    """conv2d in Python's integers, which have no largest."""
    x, weight, bias = (np.asarray(array).astype(object) for array in (x, weight, bias))
    around = np.full((*x.shape[:2], *(size + 2 * padding for size in x.shape[2:])), 0, object)  # np.pad's 0 has 64 bits
    around[:, :, padding:around.shape[2] - padding, padding:around.shape[3] - padding] = x
    windows = np.lib.stride_tricks.sliding_window_view(around, weight.shape[2:], axis=(2, 3))
    windows = windows[:, :, ::stride, ::stride].transpose(0, 2, 3, 1, 4, 5)  # (batch, height, width, channels, kernel)
    columns = windows.reshape(*windows.shape[:3], -1)
    return (columns @ weight.reshape(len(weight), -1).T + bias).transpose(0, 3, 1, 2)


def check_whole_numbers(network, images):
    """Print whether sums of pyconv's are those of big integers, also where they wrap around."""
    for bits in (8, 32):
        found = fixed_point_scores(network, images, bits, conv2d)
        wanted = fixed_point_scores(network, images, bits, big_conv2d)
        print(f"fixed point with {bits} binary places: equal to big integers {(found == wanted).all()}")
    # one layer alone, with too many places for its accumulator
    layer, x = network.layers[0], np.rint(images * 2.0**30).astype(np.int64)
    weight, bias = layer.in_whole_numbers(30)
    found = conv2d(x.astype(np.int32), weight.astype(np.int32), dtype=np.int32, **layer.settings)
    wanted = big_conv2d(x, weight, 0 * bias, **layer.settings)
    wrapped = (wanted + 2**31) % 2**32 - 2**31
    print(f"sums beyond int32 wrap around: {(wanted != wrapped).mean():.0%} of them, equal to big integers modulo 2^32 "
          f"{(found == wrapped).all()}")


def count_bits(x, weight, stride, padding, **mode):
    """The convolution of arrays of +1 and -1 by counting the bits in which they differ: taps - 2 * differing bits."""
    columns = unfold(x, weight.shape[2:], padding=padding, stride=stride, **mode)  # (batch, taps, positions)
    ours, theirs = (np.packbits(array > 0, axis=1) for array in (columns, weight.reshape(len(weight), -1)))
    ones = np.array([number.bit_count() for number in range(256)])
    differing = ones[ours[:, None] ^ theirs[:, :, None]].sum(2)
    sizes = [(size + 2 * padding - kernel) // stride + 1 for size, kernel in zip(x.shape[2:], weight.shape[2:])]
    return (columns.shape[1] - 2 * differing).reshape(len(x), len(weight), *sizes)


def check_bits(network, images):
    """Print whether the binary layers count bits."""
    network.scores(images)
    layer = network.layers[4]
    x, weight = layer.x.astype(np.int8), sign(layer.parameters[0]).astype(np.int8)
    counted = count_bits(x, weight, **layer.settings)
    equal, with_zeros = (conv2d(x, weight, **settings) == counted
                         for settings in (layer.settings, {"stride": 2, **PLAIN}))
    print(f"binary sums by counting bits: equal to conv2d's {equal.all()}; had it padded with zeros, "
          f"{with_zeros.mean():.0%} of them")


def draw(path, quick, networks, histories, accuracies, by_places):
    """Save a picture of the losses, the accuracies, what was learnt as weights, and the accuracy in fixed point."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    (losses, bars, fixed), (shifts, masters, signs) = figure.subplots(2, 3)
    for (kind, values), (_, colour) in zip(histories.items(), KINDS.values()):
        losses.plot(running_mean(values, 51), color=colour, label=kind)
    tidy(losses, "Training loss (cross entropy)", xlabel="step", yscale="log", xlim=(0, len(values)))
    losses.legend(frameon=False, fontsize=8)

    drawn = bars.bar(range(len(accuracies)), accuracies.values(), color=[colour for _, colour in KINDS.values()])
    bars.bar_label(drawn, fmt="{:.1%}")
    tidy(bars, "Accuracy on test digits", ylim=(0, 1.1), xlabel="weights, and inputs")
    bars.set_xticks(range(len(accuracies)), ["float", "shift", "binary", "binary,\nbinary"])

    places, values = zip(*by_places.items())
    fixed.plot(places, values, "o-", color=KINDS["shift weights"][1], label="fixed point")
    fixed.axhline(accuracies["shift weights"], color="grey", linestyle="--", label="floats")
    tidy(fixed, "Shift network in whole numbers", xlabel="binary places of a layer's inputs", ylabel="accuracy")
    fixed.legend(frameon=False)

    draw_weights(networks, shifts, masters, signs)
    save(figure, path, quick)


def draw_weights(networks, shifts, masters, signs):
    """Draw on three axes what became of the second layer's weights."""
    weight = networks["shift weights"].layers[2].weight().ravel()
    steps = np.arange(LOWEST, HIGHEST + 1)
    for side, colour in ((1, "#12436d"), (-1, "#28a197")):
        counts = [(weight == side * 2.0**step).sum() for step in steps]
        shifts.bar(steps + 0.2 * side, counts, 0.4, color=colour, label="plus" if side > 0 else "minus")
    tidy(shifts, "Shifts of the second layer", xlabel="shift")
    shifts.legend(frameon=False)

    layer = networks["binary weights"].layers[2]
    reach = np.quantile(np.abs(layer.parameters[0]), 0.995)
    masters.hist(layer.parameters[0].ravel(), 60, range=(-reach, reach), color="#f46a25", alpha=0.6,
                 label="float masters")
    for side in (1, -1):
        masters.hist(side * layer.alpha().ravel(), 12, color="#3d3d3d", weights=np.full(32, 10),
                     label="±alpha of 32 channels (×10)" if side > 0 else None)
    tidy(masters, "Binary weights of the second layer", xlabel="value", ylim=(0, 1.25 * masters.get_ylim()[1]))
    masters.legend(frameon=False, fontsize=8)

    changed = {kind: flips(network) for kind, network in networks.items()}
    drawn = signs.bar(range(len(changed)), changed.values(), color=[colour for _, colour in KINDS.values()])
    signs.bar_label(drawn, fmt="{:.1%}")
    tidy(signs, "Signs of the second layer that changed", ylim=(0, 1.15 * max(changed.values()) + 1e-9))
    signs.set_xticks(range(len(changed)), ["float", "shift", "binary", "binary,\nbinary"])


def second_weight(network):
    return [layer for layer in network.layers if isinstance(layer, FloatConv)][1].weight()


def flips(network):
    """The share of the second layer's weights whose sign is another than before training."""
    fresh = DigitNetwork(network.conv, network.binary_inputs)
    return (sign(second_weight(network)) != sign(second_weight(fresh))).mean()


def main():
    parser = argument_parser("Learn digits with weights that are shifts with a sign, or binary.",
                             "shift_and_binary.png", "400 digits, two epochs, 200 to test: does it run?")
    parser.add_argument("--epochs", type=int, default=8, help="passes over the digits (default %(default)s)")
    arguments = parser.parse_args()
    training, (test_images, test_labels) = load_digits()
    epochs, batch = arguments.epochs, 32
    if arguments.quick:
        training, epochs, batch = [array[:400] for array in training], 2, 20
        test_images, test_labels = test_images[:200], test_labels[:200]
    networks, histories, accuracies = {}, {}, {}
    for kind, (make, _) in KINDS.items():
        networks[kind] = network = make()
        optimizer = Adam(network.parameters, 0.005)
        histories[kind] = train(network, *training, 0, epochs, batch, kind, optimizer)
        accuracies[kind] = np.mean(guess(network, test_images) == test_labels)
        first, last = np.mean(histories[kind][:5]), np.mean(histories[kind][-20:])
        print(f"{kind:26} loss {first:.4f} at first, {last:.4f} at last; "
              f"accuracy {accuracies[kind]:.4f}; {flips(network):.1%} of the second layer's signs changed")
    shifted, binary = networks["shift weights"], networks["binary weights and inputs"]
    check_whole_numbers(shifted, test_images[:2])
    check_bits(binary, test_images[:8])
    by_places = {}
    for bits in (1, 2, 3, 4, 6, 8, 12):
        scores = fixed_point_scores(shifted, test_images, bits, conv2d)
        by_places[bits] = np.mean(scores.argmax(1) == test_labels)
    print("accuracy in fixed point:", ", ".join(f"{value:.4f} ({bits})" for bits, value in by_places.items()))
    draw(arguments.output, arguments.quick, networks, histories, accuracies, by_places)
    print(f"picture {arguments.output}")


if __name__ == "__main__":
    main()
