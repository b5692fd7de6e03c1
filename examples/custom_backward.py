"""Your own backward pass of a convolution in torch, and scratch memory that is allocated once for a whole network.

    python examples/custom_backward.py      a minute; needs torch, and Linux to read the memory in use

torch computes the three gradients of every convolution by one function. Here it is yours to write:

    custom_convolution_backward(grad_output, input, weight, stride, padding, dilation, transposed, output_padding,
                                groups, output_mask) -> (grad_input, grad_weight, grad_bias)

The one below is pyconv's, with the gradients that torch has; `sign_symmetric_backward` is somebody's idea, which sends
the error back through the signs of the weights alone. A network learns digits with each of them.

What a convolution unrolls needs memory, finput and fgrad_input. `one_buffer` allocates it before the first step: one
array, as large as the layer with the greatest need wants it, serves all layers, forward and backward, as one call comes
after the other. The picture shows the memory that the process takes in each call of a training step beside torch's. A
call's scratch is what it takes beyond its results and gives back at its end.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from common import argument_parser, load_digits, running_mean, save, tidy
from matplotlib.figure import Figure
from torch.autograd.function import Function, once_differentiable
from tqdm import tqdm

import pyconv


def custom_convolution_backward(
    grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask, **scratch
):
    """The gradients by input, weight and bias; None where output_mask is False. scratch: finput and fgrad_input."""
    return pyconv.convolution_backward(
        grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask,
        **scratch,
    )


def sign_symmetric_backward(grad_output, input, weight, *settings, **scratch):
    """Somebody's own: the error goes back through the weights' signs, all of one size."""
    *settings, (wants_input, *wants_others) = settings
    sent = weight.sign() * weight.abs().mean()
    default = partial(custom_convolution_backward, grad_output, input, **scratch)
    grad_input, _, _ = default(sent, *settings, (wants_input, False, False))
    return grad_input, *default(weight, *settings, (False, *wants_others))[1:]


def torch_backward(grad_output, input, weight, *settings):
    """What torch's autograd calls."""
    *settings, mask = settings
    out_channels = weight.shape[1] * settings[5] if settings[3] else weight.shape[0]
    return torch.ops.aten.convolution_backward(grad_output, input, weight, [out_channels], *settings, mask)


class Convolution(Function):
    """A convolution by a layer's two functions."""

    @staticmethod
    def forward(ctx, input, weight, bias, layer):
        ctx.layer = layer
        ctx.save_for_backward(input, weight)
        return layer.convolution(input.detach(), weight.detach(), bias.detach(), *layer.settings)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output):
        layer, tensors = ctx.layer, (tensor.detach() for tensor in ctx.saved_tensors)
        return *layer.backward_function(grad_output, *tensors, *layer.settings, ctx.needs_input_grad[:3]), None


class Conv(torch.nn.Module):
    """A convolution, transposed or not, whose forward and backward are functions that `use` can change."""

    def __init__(self, in_channels, out_channels, kernel, stride=1, padding=0, dilation=1, transposed=False,
                 output_padding=0, groups=1):
        super().__init__()
        self.settings = (*([number] * 2 for number in (stride, padding, dilation)), transposed, [output_padding] * 2,
                         groups)
        channels = (in_channels, out_channels // groups) if transposed else (out_channels, in_channels // groups)
        taps = in_channels // groups * kernel**2 / (stride**2 if transposed else 1)  # that an output's cell sums
        self.weight = torch.nn.Parameter(torch.randn(*channels, kernel, kernel) * (2 / taps)**0.5)
        self.bias = torch.nn.Parameter(torch.zeros(out_channels))
        self.convolution, self.backward_function = torch.convolution, torch_backward

    def forward(self, input):
        return Convolution.apply(input, self.weight, self.bias, self)


def convolutions(network):
    return [layer for layer in network if isinstance(layer, Conv)]


def use(network, convolution, backward_function):
    for layer in convolutions(network):
        layer.convolution, layer.backward_function = convolution, backward_function


def use_pyconv(network, backward_function=custom_convolution_backward, buffer=None):
    scratch = {"finput": buffer, "fgrad_input": buffer}
    use(network, partial(pyconv.convolution, **scratch), partial(backward_function, **scratch))


def buffer_sizes(network, input):
    """The elements that full speed wants in each layer, forward and backward; a forward pass tells the shapes."""
    sizes = []
    with torch.no_grad():
        for layer in network:
            if isinstance(layer, Conv):
                *settings, transposed, output_padding, groups = layer.settings
                workspace = pyconv.workspace(
                    input.shape, layer.weight.shape, *settings, groups, transposed=transposed,
                    output_padding=output_padding, dtype=str(input.dtype).removeprefix("torch."),
                )
                sizes.append(max(workspace.finput, workspace.fgrad_input))
            input = layer(input)
    return sizes


def one_buffer(network, input):
    """Scratch for all layers and both roles. It is written to, so that the system hands the memory out now."""
    return torch.ones(max(buffer_sizes(network, input)), dtype=input.dtype)


def with_relus(*layers):
    parts = [part for layer in layers for part in (layer, torch.nn.ReLU())]
    return torch.nn.Sequential(*parts[:-1])


def image_network():
    """Images to images: strided, dilated, grouped and transposed layers, as segmentation has them."""
    return with_relus(
        Conv(3, 32, 3, padding=1), Conv(32, 64, 3, stride=2, padding=1), Conv(64, 64, 3, padding=2, dilation=2),
        Conv(64, 128, 3, stride=2, padding=1), Conv(128, 128, 3, padding=1, groups=4),
        Conv(128, 64, 4, stride=2, padding=1, transposed=True),
        Conv(64, 32, 3, stride=2, padding=2, dilation=2, transposed=True, output_padding=1), Conv(32, 3, 3, padding=1),
    )


def digit_network():
    return with_relus(Conv(1, 16, 5, stride=2), Conv(16, 32, 3, stride=2), Conv(32, 64, 5), Conv(64, 10, 1))


def megabytes(name):
    """VmRSS, the memory of this process, or VmHWM, the most since it was last asked to forget that."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def measured(function, walk, rows):
    """The function; each call appends (walk, memory at most, scratch) to the rows."""
    def call(*arguments):
        Path("/proc/self/clear_refs").write_text("5")  # forget the most
        results = function(*arguments)
        most, after = megabytes("VmHWM"), megabytes("VmRSS")
        rows.append((walk, most, max(0.0, most - after)))
        return results
    return call


def measure(way, dtype, size, batch):
    """Run training steps; return the calls of the last, in megabytes since before the step, and the time of a step."""
    torch.manual_seed(0)
    dtype = getattr(torch, dtype)
    network, images = image_network().to(dtype), torch.randn(batch, 3, size, size, dtype=dtype)

    def step():
        for parameter in network.parameters():
            parameter.grad = None
        network(images).square().mean().backward()

    if way != "torch":
        use_pyconv(network)
    step()  # what libraries load and keep is not counted
    start = megabytes("VmRSS")
    if way == "buffer":
        use_pyconv(network, buffer=one_buffer(network, images))
    times, rows = [], []
    for _ in range(3):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    layer = convolutions(network)[0]
    use(network, measured(layer.convolution, "forward", rows), measured(layer.backward_function, "backward", rows))
    step()
    return {"rows": [(walk, most - start, scratch) for walk, most, scratch in rows], "milliseconds": 1000 * min(times)}


def measure_apart(dtype, size, batch):
    """Every way of computing, measured in a process of its own, whose allocator gives back what is freed."""
    run = subprocess.run(
        [sys.executable, __file__, "--measure", dtype, str(size), str(batch)], check=True, text=True,
        stdout=subprocess.PIPE, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
    )
    return json.loads(run.stdout)


def learn_digits(digits, backward_function, steps, batch=50):
    """Train on digits; return the losses and the accuracy on the test's digits. None is torch's own backward."""
    (images, labels), (test_images, test_labels) = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in digits]
    torch.manual_seed(0)
    network = digit_network()
    if backward_function is not None:
        use_pyconv(network, backward_function, one_buffer(network, images[:batch]))
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    rng, losses = np.random.default_rng(0), []
    for _ in tqdm(range(steps), desc=getattr(backward_function, "__name__", "torch"), unit=" steps"):
        chosen = rng.integers(0, len(images), batch)
        loss = torch.nn.functional.cross_entropy(network(images[chosen])[:, :, 0, 0], labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        guesses = torch.cat([network(part)[:, :, 0, 0].argmax(1) for part in test_images.split(batch)])
    return losses, (guesses == test_labels).float().mean().item()


WAYS = {"torch": ("torch", "#f46a25"), "pyconv": ("pyconv, allocated in each call", "#28a197"),
        "buffer": ("pyconv, one buffer", "#12436d")}


def draw(path, quick, found, learnt):
    """Save a picture of each call's memory and scratch, and of the losses."""
    figure = Figure(figsize=(12, 7.6), layout="constrained")
    above, below = figure.subfigures(2, 1)
    upper, lower = above.subplots(1, len(found), squeeze=False)[0], below.subplots(1, len(found) + 1)
    for (dtype, ways), top, bottom in zip(found.items(), upper, lower):
        for place, (way, result) in enumerate(ways.items()):
            label, colour = WAYS[way]
            walks, most, scratch = zip(*result["rows"])
            places = np.arange(len(walks))
            top.step(places, most, where="mid", color=colour, label=label)
            bottom.bar(places + 0.27 * (place - 1), scratch, 0.27, color=colour)
        layers = len(walks) // 2
        names = [f"{number}" for number in (*range(1, layers + 1), *range(layers, 0, -1))]
        for axes, title in ((top, f"Memory in use, {dtype} (MB)"), (bottom, f"Scratch, {dtype} (MB)")):
            tidy(axes, title, ylim=(0, None), xlabel="forward through the layers, and backward")
            axes.set_xticks(places, names)
            axes.grid(visible=False, axis="x")
    above.legend(*upper[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(WAYS), frameon=False)
    axes = lower[-1]
    for (name, (losses, accuracy)), colour, style in zip(learnt.items(), ("#f46a25", "#12436d", "#801650"), "-:-"):
        axes.plot(running_mean(losses), style, color=colour, linewidth=2, label=f"{name} ({accuracy:.1%})")
    tidy(axes, "Loss on digits (and accuracy)", xlabel="step", yscale="log")
    axes.legend(frameon=False)
    save(figure, path, quick)


def main():
    parser = argument_parser("A backward pass of one's own, and one buffer for a network.", "custom_backward.png",
                             "small images and a few steps: does it run?")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)  # the example calls itself
    arguments = parser.parse_args()
    if arguments.measure:
        dtype, *numbers = arguments.measure
        print(json.dumps({way: measure(way, dtype, *map(int, numbers)) for way in WAYS}))
        return
    if sys.platform != "linux":
        raise SystemExit("custom_backward.py must run on Linux, whose /proc says how much memory is in use")
    size, batch, steps = (32, 2, 10) if arguments.quick else (128, 8, 240)

    images = torch.zeros(batch, 3, size, size)
    sizes = [4 * elements / 2**20 for elements in buffer_sizes(image_network(), images)]
    print(f"one float32 buffer for {len(sizes)} layers: {max(sizes):.1f} MB; a buffer for each: {sum(sizes):.1f} MB")
    print(f"{'':40} memory at most   scratch at most   milliseconds a step")
    dtypes = ("float32",) if arguments.quick else ("float32", "float64")
    found = {dtype: measure_apart(dtype, size, batch) for dtype in dtypes}
    for dtype, ways in found.items():
        for way, result in ways.items():
            _, most, scratch = zip(*result["rows"])
            print(f"{WAYS[way][0] + ', ' + dtype:40} {max(most):11.1f} MB {max(scratch):14.1f} MB"
                  f" {result['milliseconds']:21.1f}")

    digits, learnt = load_digits(), {}
    for name, function in (("torch's backward", None), ("pyconv's", custom_convolution_backward),
                           ("sign-symmetric", sign_symmetric_backward)):
        learnt[name] = learn_digits(digits, function, steps)
        print(f"{name:20} loss {statistics.mean(learnt[name][0][-10:]):.4f} at last, accuracy {learnt[name][1]:.4f}")
    draw(arguments.output, arguments.quick, found, learnt)
    print(f"picture {arguments.output}")


if __name__ == "__main__":
    main()
