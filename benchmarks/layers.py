"""The convolution layers that benchmarks/cpu.py and benchmarks/cuda.py time, by network.

Each network is built block by block as its paper or torchvision does, equal layers are then counted: `count` says how
often a layer occurs. Sizes are those of one training step on the usual images.
"""

import math
from collections import Counter
from typing import NamedTuple


class Layer(NamedTuple):
    """One convolution, or transposed convolution, without bias.

    Sizes and kernels have one int per spatial axis; so may the padding, where it is not the same along all.
    """

    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: int | tuple[int, ...] = 0
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    output_padding: int = 0

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.size)

    @property
    def pads(self) -> tuple[int, ...]:
        """The padding along each spatial axis."""
        return (self.padding,) * self.rank if isinstance(self.padding, int) else self.padding

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight: (out, in / groups, *kernel), transposed (in, out / groups, *kernel)."""
        first, second = self.out_channels, self.in_channels
        if self.transposed:
            first, second = second, first
        return (first, second // self.groups, *self.kernel)

    @property
    def output_size(self) -> tuple[int, ...]:
        """Size of the output along each spatial axis."""
        extents = [self.dilation * (k - 1) + 1 for k in self.kernel]
        if self.transposed:
            return tuple(
                (n - 1) * self.stride - 2 * pad + e + self.output_padding
                for n, e, pad in zip(self.size, extents, self.pads)
            )
        return tuple((n + 2 * pad - e) // self.stride + 1 for n, e, pad in zip(self.size, extents, self.pads))

    def flop(self, batch: int) -> int:
        """Multiplications and additions of each of the three maps; products with padding are not counted."""
        total = 2 * batch * self.in_channels * self.out_channels // self.groups
        for inner, outer, taps, pad in zip(self.size, self.output_size, self.kernel, self.pads):
            if self.transposed:  # forward of the other direction
                inner, outer = outer, inner
            total *= sum(
                0 <= position * self.stride - pad + tap * self.dilation < inner
                for position in range(outer) for tap in range(taps)
            )
        return total

    def elements(self, batch: int) -> int:
        """Numbers in input, weight and output together: each map reads two of the three and writes one."""
        total = math.prod(self.weight_shape)
        for channels, size in ((self.in_channels, self.size), (self.out_channels, self.output_size)):
            total += batch * channels * math.prod(size)
        return total

    def __str__(self) -> str:
        """A short label, with what is not plain at its end, as in '3×3 on 56×56, 64→128 /2'."""
        marks = [f"/{self.stride}"] if self.stride > 1 else []
        marks += [f"d{self.dilation}"] if self.dilation > 1 else []
        marks += [f"g{self.groups}"] if self.groups > 1 else []
        marks += ["T"] if self.transposed else []
        kernel, size = ("×".join(map(str, axis)) for axis in (self.kernel, self.size))
        return " ".join([f"{kernel} on {size}, {self.in_channels}→{self.out_channels}", *marks])


class Network(NamedTuple):
    """Distinct layers with their counts, and the batch they are timed at."""

    name: str
    batch: int
    layers: dict[Layer, int]


def _square(in_channels, out_channels, size, kernel, stride=1, padding=None, **options) -> Layer:
    """A 2-D layer; the padding, where not given, keeps the size at stride 1."""
    if padding is None:
        padding = options.get("dilation", 1) * (kernel - 1) // 2
    return Layer(in_channels, out_channels, (size, size), (kernel, kernel), stride, padding, **options)


def _residual(groups=1, group_width=64, grouped_only=False) -> list[Layer]:
    """ResNet-50 (stride in the 3×3 layer, as in torchvision), or ResNeXt with more groups, for 224² images."""
    layers = [_square(3, 64, 224, 7, 2)]
    channels, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = 64 << stage
        width = planes * group_width // 64 * groups
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers += [_square(channels, width, size, 1), _square(width, width, size, 3, stride, groups=groups)]
            if not block:
                layers.append(_square(channels, 4 * planes, size, 1, stride))
            size //= stride
            layers.append(_square(width, 4 * planes, size, 1))
            channels = 4 * planes
    return [layer for layer in layers if layer.groups > 1] if grouped_only else layers


def _vgg16() -> list[Layer]:
    layers, channels, size = [], 3, 224
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers.append(_square(channels, width, size, 3))
            channels = width
        size //= 2
    return layers


def _mobilenet_v2() -> list[Layer]:
    layers, channels, size = [_square(3, 32, 224, 3, 2)], 32, 112
    blocks = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, width, repeats, first_stride in blocks:
        for block in range(repeats):
            stride = 1 if block else first_stride
            hidden = channels * expansion
            if expansion > 1:
                layers.append(_square(channels, hidden, size, 1))
            layers.append(_square(hidden, hidden, size, 3, stride, groups=hidden))
            size //= stride
            layers.append(_square(hidden, width, size, 1))
            channels = width
    return [*layers, _square(320, 1280, 7, 1)]


def _dcgan() -> list[Layer]:
    """The generator for 64² images."""
    widths, size = (100, 512, 256, 128, 64, 3), 1
    layers = []
    for before, after in zip(widths, widths[1:]):
        stride, padding = (1, 0) if size == 1 else (2, 1)
        layers.append(_square(before, after, size, 4, stride, padding, transposed=True))
        size = 4 if size == 1 else 2 * size
    return layers


# DeepLab's backbone and pyramid.
_DILATED = [_square(256, 256, 28, 3, dilation=2), _square(512, 512, 28, 3, dilation=4)] + [
    _square(2048, 256, 28, 3, dilation=dilation) for dilation in (6, 12, 18)
]

# wav2vec's first layers, a temporal convolutional network, WaveNet's dilated pair, HiFi-GAN's upsampling.
_ONE_AXIS = [
    Layer(1, 512, (16000,), (10,), 5),
    Layer(512, 512, (3199,), (3,), 2),
    Layer(128, 128, (4096,), (3,), 1, 16, 16),
    Layer(64, 128, (16000,), (2,), 1, 0, 512),
    Layer(256, 256, (1024,), (31,), 1, 15, groups=256),
    Layer(512, 256, (32,), (16,), 8, 4, transposed=True),
]

# C3D, and the way down and up of a 3-D U-Net.
_THREE_AXES = [
    Layer(3, 64, (16, 112, 112), (3, 3, 3), 1, 1),
    Layer(64, 128, (16, 56, 56), (3, 3, 3), 1, 1),
    Layer(256, 256, (8, 28, 28), (3, 3, 3), 1, 1),
    Layer(512, 512, (2, 7, 7), (3, 3, 3), 1, 1),
    Layer(32, 64, (32, 32, 32), (3, 3, 3), 2, 1),
    Layer(64, 32, (16, 16, 16), (2, 2, 2), 2, transposed=True),
    Layer(32, 32, (16, 28, 28), (3, 3, 3), 1, 1, groups=32),
]

# The network of examples/lenet_mnist.py, its fully connected layers as convolutions, and LeNet-5.
_LENET = [
    _square(1, 32, 28, 3, padding=0),
    _square(32, 64, 26, 3, padding=0),
    _square(64, 256, 12, 12, padding=0),
    _square(256, 10, 1, 1),
    _square(1, 6, 28, 5),
    _square(6, 16, 14, 5, padding=0),
]

# AlexNet, ResNet, VGG, MobileNet, ViT-B/16, ConvNeXt.
_FIRST = [
    _square(3, 64, 224, 11, 4, 2),
    _square(3, 64, 224, 7, 2),
    _square(3, 64, 224, 3),
    _square(3, 32, 224, 3, 2),
    _square(3, 768, 224, 16, 16, 0),
    _square(3, 96, 224, 4, 4, 0),
]

# MobileNet-v3's and EfficientNet-B0's depthwise 5×5, Inception-v3's 1×7 and 7×1, a dilated ResNet's last block,
# ShuffleNet's groups (32 of 3 channels too), ResNeXt-101 32×32d, U-Net's way up, the first layers of small networks.
_OTHERS = [
    _square(120, 120, 28, 5, groups=120),
    _square(480, 480, 14, 5, groups=480),
    _square(672, 672, 14, 5, 2, groups=672),
    Layer(192, 192, (17, 17), (1, 7), 1, (0, 3)),
    Layer(192, 192, (17, 17), (7, 1), 1, (3, 0)),
    _square(64, 64, 64, 3, dilation=8),
    _square(240, 60, 28, 1, groups=3),
    _square(96, 96, 28, 3, groups=32),
    _square(256, 256, 28, 3, groups=8),
    _square(128, 64, 56, 2, 2, 0, transposed=True),
    _square(4, 8, 64, 3),
    _square(8, 8, 64, 3),
]

_TINY = [
    _square(1, 1, 5, 3),
    _square(8, 8, 8, 3),
    _square(3, 16, 32, 3),
    _square(16, 16, 4, 1),
    _square(16, 16, 8, 3, groups=16),
    Layer(4, 4, (16,), (3,), 1, 1),
    Layer(4, 4, (4, 4, 4), (3, 3, 3), 1, 1),
]


# Layers that the means leave out, as kernels were not made with them at hand, but for those of large kernels, of few
# channels and of spectrograms, which were looked at later: DenseNet, SqueezeNet, Inception-v3, EfficientNet, RegNet,
# RepLKNet, HRNet, WideResNet, YOLO, AlexNet;
_ELSEWHERE = [
    _square(128, 32, 14, 3),
    _square(480, 128, 14, 1),
    _square(16, 64, 55, 3),
    _square(48, 64, 35, 5),
    _square(288, 384, 35, 3, 2, 0),
    _square(40, 240, 28, 1),
    _square(144, 144, 56, 5, 2, groups=144),
    _square(168, 168, 28, 3, 2, groups=7),
    _square(128, 128, 28, 31, groups=128),
    _square(18, 18, 56, 3),
    _square(160, 160, 32, 3),
    _square(1024, 255, 13, 1),
    _square(64, 192, 27, 5),
    # a U-Net and its head, SRCNN, EDSR, a discriminator, FCN, DQN;
    _square(512, 256, 28, 3),
    _square(64, 2, 256, 1),
    _square(1, 64, 64, 9),
    _square(32, 1, 64, 5),
    _square(64, 3, 96, 3),
    _square(64, 128, 64, 4, 2, 1),
    _square(21, 21, 28, 16, 8, 4, transposed=True),
    _square(4, 32, 84, 8, 4, 0),
    _square(32, 64, 20, 4, 2, 0),
    # a text classifier, Demucs, a spectrogram, Conv-TasNet's decoder, an electrocardiogram, EEGNet;
    Layer(300, 100, (50,), (5,)),
    Layer(64, 128, (8192,), (8,), 4, 2),
    Layer(1, 402, (48000,), (400,), 160),
    Layer(512, 1, (3999,), (16,), 8, transposed=True),
    Layer(12, 64, (2048,), (16,), 1, 8),
    Layer(1, 8, (22, 512), (1, 64), 1, (0, 32)),
    # squeeze-and-excitation, a fully connected layer, filters of a colour image, pooling by its own weights;
    _square(960, 240, 1, 1),
    _square(240, 960, 1, 1),
    _square(256, 1024, 7, 7, 1, 0),
    _square(3, 3, 256, 3, groups=3),
    Layer(3, 3, (256, 256), (21, 1), 1, (10, 0), groups=3),
    _square(3, 3, 256, 1),
    _square(96, 96, 57, 3, 3, 0, groups=96),
    # V-Net, R(2+1)D, X3D, a scan's first layer.
    Layer(16, 16, (32, 32, 32), (5, 5, 5), 1, 2),
    Layer(64, 144, (8, 28, 28), (1, 3, 3), 1, (0, 1, 1)),
    Layer(108, 108, (8, 28, 28), (3, 3, 3), 1, 1, groups=108),
    Layer(1, 16, (48, 48, 48), (3, 3, 3), 1, 1),
]


def _network(name, batch, layers) -> Network:
    return Network(f"{name}, batch {batch}", batch, dict(Counter(layers)))


NETWORKS = {
    "resnet50": _network("ResNet-50", 8, _residual()),
    "vgg16": _network("VGG-16", 8, _vgg16()),
    "mobilenet_v2": _network("MobileNet-v2", 8, _mobilenet_v2()),
    "resnext50": _network("ResNeXt-50 grouped", 8, _residual(32, 4, grouped_only=True)),
    "convnext": _network("ConvNeXt depthwise", 8,
                         [_square(96 << i, 96 << i, 56 >> i, 7, groups=96 << i) for i in range(4)]),
    "dcgan": _network("DCGAN", 64, _dcgan()),
    "dilated": _network("Dilated", 2, _DILATED),
    "one_axis": _network("1-D", 8, _ONE_AXIS),
    "three_axes": _network("3-D", 2, _THREE_AXES),
    "lenet": _network("LeNet", 64, _LENET),
    "first": _network("First layers", 8, _FIRST),
    "others": _network("Others", 8, _OTHERS),
    "batch1": _network("ResNet-50", 1, _residual()),
    "tiny": _network("Tiny", 1, _TINY),
}
ELSEWHERE = {"elsewhere": _network("Elsewhere", 4, _ELSEWHERE)}


def layer_named(network: str, label: str) -> Layer:
    """The layer of one of NETWORKS, both by the names that a row has."""
    [found] = (one for one in NETWORKS.values() if one.name == network)
    return next(layer for layer in found.layers if str(layer) == label)


# Batches that fill a GPU, in the order in which cuda.py spends its time; MobileNet's depthwise layers stand alone too.
_GPU_BATCHES = {
    "resnet50": 64, "tiny": 1, "depthwise": 64, "convnext": 64, "first": 64, "dcgan": 256, "one_axis": 16,
    "three_axes": 8, "dilated": 8, "resnext50": 64, "lenet": 256, "others": 64, "batch1": 1, "mobilenet_v2": 64,
    "vgg16": 32,
}


def _gpu_networks() -> dict[str, Network]:
    depthwise = [layer for layer in _mobilenet_v2() if layer.groups > 1]
    networks = {**NETWORKS, "depthwise": _network("MobileNet-v2 depthwise", 64, depthwise)}
    return {
        key: Network(f"{networks[key].name.rpartition(', batch ')[0]}, batch {batch}", batch, networks[key].layers)
        for key, batch in _GPU_BATCHES.items()
    }


GPU_NETWORKS = _gpu_networks()
