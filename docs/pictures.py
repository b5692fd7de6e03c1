"""Draw the pictures of the documentation: python docs/pictures.py [FOLDER]. What they show is computed by pyconv."""

import sys
from itertools import product
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

import pyconv  # noqa: E402

TAPS = ["#0072b2", "#e69f00", "#009e73"]  # a colour for each tap of the weight
INK, PALE, HOT = "#222222", "#d9d9d9", "#d55e00"
SIZE, STRIDE, LO, KERNEL, OUTPUT = 7, 2, 1, 3, 4


def lines():
    """(a, k, cell) of every product of the small example: one spatial axis, stride 2, one cell of padding."""
    for a, k in product(range(OUTPUT), range(KERNEL)):
        cell = STRIDE * a + k - LO
        if 0 <= cell < SIZE:
            yield a, k, cell


def box(axes, x, y, text, face, edge=INK, size=10):
    axes.add_patch(plt.Rectangle((x - 0.4, y - 0.4), 0.8, 0.8, facecolor=face, edgecolor=edge, linewidth=1.2, zorder=3))
    axes.text(x, y, text, ha="center", va="center", fontsize=size, zorder=4)


def graph(axes, title, equation, shown, hot):
    """The lines between x and y, coloured by tap: those that `shown` picks in full, the others pale."""
    hot_lines = [line for line in lines() if shown(*line)]
    places = [STRIDE * a + (KERNEL - 1) / 2 - LO for a in range(OUTPUT)]
    for a, k, cell in lines():
        on = (a, k, cell) in hot_lines
        axes.plot([places[a], cell], [2.6, 0.4], color=TAPS[k] if on else PALE, linewidth=2.4 if on else 1.0,
                  zorder=2 if on else 1)
    for cell in range(SIZE):
        lit = any(line[2] == cell for line in hot_lines)
        box(axes, cell, 0, f"$x_{cell}$", HOT if hot == ("x", cell) else "white" if lit else "#f4f4f4")
    for cell in (-1, SIZE):
        axes.add_patch(plt.Rectangle((cell - 0.4, -0.4), 0.8, 0.8, facecolor="none", edgecolor=PALE, linestyle=":"))
    for a, place in enumerate(places):
        lit = any(line[0] == a for line in hot_lines)
        box(axes, place, 3, f"$y_{a}$", HOT if hot == ("y", a) else "white" if lit else "#f4f4f4")
    for k in range(KERNEL):
        lit = any(line[1] == k for line in hot_lines)
        edge = HOT if hot == ("w", k) else TAPS[k] if lit else PALE
        box(axes, 8.6, 0.5 + k, f"$w_{k}$", HOT if hot == ("w", k) else "white", edge)
        axes.plot([8.0, 8.2], [0.5 + k] * 2, color=TAPS[k] if lit else PALE, linewidth=4)
    axes.set_title(title, fontsize=12, loc="left")
    axes.text(-1.4, -1.15, equation, fontsize=11, ha="left")
    axes.set(xlim=(-1.6, 9.2), ylim=(-1.5, 3.6), aspect="equal")
    axes.axis("off")


def maps(folder):
    """The form as a graph, and what each of its derivatives sums."""
    figure, axes = plt.subplots(2, 2, figsize=(11, 6.4))
    graph(axes[0, 0], "The form: every line is one product", "$T=\\sum\\,y_a\\,w_k\\,x_{2a+k-1}$",
          lambda a, k, cell: True, None)
    graph(axes[0, 1], "forward: a cell of y", "$\\partial T/\\partial y_1=w_0x_1+w_1x_2+w_2x_3$",
          lambda a, k, cell: a == 1, ("y", 1))
    graph(axes[1, 0], "grad_input: a cell of x", "$\\partial T/\\partial x_3=w_2y_1+w_0y_2$",
          lambda a, k, cell: cell == 3, ("x", 3))
    graph(axes[1, 1], "grad_weight: a tap of w", "$\\partial T/\\partial w_2=y_0x_1+y_1x_3+y_2x_5$",
          lambda a, k, cell: k == 2, ("w", 2))
    save(figure, folder / "maps.png")


def scene(size=64):
    """A picture to filter: a disc, a square and stripes."""
    down, right = np.mgrid[:size, :size] / size
    picture = 0.8 * ((down - 0.35) ** 2 + (right - 0.33) ** 2 < 0.05)
    picture = np.where((abs(down - 0.68) < 0.2) & (abs(right - 0.72) < 0.16), 1.0, picture)
    return np.where((down > 0.6) & (right < 0.45), 0.5 + 0.5 * np.sign(np.sin(40 * (down + right))), picture)


def show(axes, array, title, signed=False):
    most = abs(array).max()
    axes.imshow(array, cmap="RdBu_r" if signed else "gray", vmin=-most if signed else 0, vmax=most)
    axes.set_title(title, fontsize=10)
    axes.set(xticks=[], yticks=[])


def on_a_picture(folder):
    """The three maps with one small filter."""
    x = scene()[None, None]
    w = np.array([[1.0, 2, 1], [0, 0, 0], [-1, -2, -1]])[None, None]
    y = pyconv.conv2d(x, w, padding=1)
    figure, axes = plt.subplots(1, 5, figsize=(12, 2.8))
    show(axes[0], x[0, 0], "x")
    show(axes[1], w[0, 0], "w", signed=True)
    show(axes[2], y[0, 0], "y = forward(x, w)", signed=True)
    show(axes[3], pyconv.conv2d_input(x.shape, w, y, padding=1)[0, 0], "grad_input(w, y)", signed=True)
    show(axes[4], pyconv.conv2d_weight(x, w.shape, y, padding=1)[0, 0], "grad_weight(x, y)", signed=True)
    save(figure, folder / "picture.png")


def spread(folder):
    """Which cells of x one cell of y reads, and gives its gradient to, under some settings."""
    settings = {
        "stride=1": {}, "stride=2": {"stride": 2}, "dilation=2": {"dilation": 2}, "padding=1": {"padding": 1},
    }
    figure, axes = plt.subplots(1, 4, figsize=(11, 3))
    w = np.arange(1.0, 10).reshape(1, 1, 3, 3)
    for place, (title, how) in zip(axes, settings.items()):
        y = np.zeros(pyconv.conv2d(np.ones((1, 1, 7, 7)), w, **how).shape)
        at = (0, 0) if "padding" in how else (1, 1)
        y[(0, 0, *at)] = 1
        x = pyconv.conv2d_input((1, 1, 7, 7), w, y, **how)[0, 0]
        place.imshow(np.where(x == 0, np.nan, x), cmap="YlOrRd", vmin=-3, vmax=12)
        for row, column in product(range(7), repeat=2):
            if x[row, column]:
                place.text(column, row, f"{x[row, column]:.0f}", ha="center", va="center", fontsize=9)
        place.set(xticks=np.arange(-0.5, 7), yticks=np.arange(-0.5, 7), xticklabels=[], yticklabels=[])
        place.grid(color=PALE)
        place.tick_params(length=0)
        place.set_title(f"{title}: y {y.shape[2]}×{y.shape[3]}, from y[{at[0]}, {at[1]}]", fontsize=10)
    save(figure, folder / "spread.png")


def padding_modes(folder):
    """A picture with 24 cells around it in every mode: a convolution with one tap of 1."""
    one = np.ones((1, 1, 1, 1))
    figure, axes = plt.subplots(1, 5, figsize=(12, 2.8))
    for place, mode in zip(axes, ("zeros", "constant", "circular", "replicate", "reflect")):
        value = {"padding_value": 0.6} if mode == "constant" else {}
        padded = pyconv.conv2d(scene()[None, None], one, padding=24, padding_mode=mode, **value)[0, 0]
        show(place, padded, f"'{mode}'" + (", padding_value=0.6" if value else ""))
        place.add_patch(plt.Rectangle((23.5, 23.5), 64, 64, fill=False, edgecolor=HOT, linewidth=1.5))
    save(figure, folder / "padding.png")


LAYERS = {
    "3×3, 64→64\n56×56, batch 8": ((8, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
    "1×1, 256→64\n56×56, batch 8": ((8, 256, 56, 56), (64, 256, 1, 1), {}),
    "7×7, stride 2, 3→64\n224×224, batch 8": ((8, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "3×3×3, 32→32\n16×28×28, batch 4": ((4, 32, 16, 28, 28), (32, 32, 3, 3, 3), {"padding": 1}),
}


def buffers(folder):
    """The columns that a layer unrolls to, beside the scratch that pyconv wants and needs."""
    figure, axes = plt.subplots(figsize=(9, 3.6))
    width = 0.2
    for place, (shape, weight, how) in enumerate(LAYERS.values()):
        with pyconv.num_threads(8):
            full = pyconv.workspace(shape, weight, **how)
        output = pyconv.convolution(np.ones(shape, np.float32), np.ones(weight, np.float32), None,
                                    how.get("stride", 1), how.get("padding", 0), 1, False, 0, 1).shape
        columns = shape[0] * np.prod(weight[1:]) * np.prod(output[2:])
        bars = {"columns of the batch": columns, "finput, full speed on 8 threads": full.finput,
                "fgrad_input, full speed on 8 threads": full.fgrad_input,
                "the least that works": max(full.finput_minimum, full.fgrad_input_minimum)}
        for step, (label, elements) in enumerate(bars.items()):
            axes.bar(place + (step - 1.5) * width, 4 * elements / 2**20, width, color=[PALE, *TAPS][step],
                     label=label if place == 0 else None)
    axes.set_yscale("log")
    axes.set_ylabel("MiB in float32")
    axes.set_xticks(range(len(LAYERS)), list(LAYERS), fontsize=8)
    axes.legend(fontsize=8, ncols=2)
    axes.set_ylim(top=axes.get_ylim()[1] * 6)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, folder / "buffers.png")


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_all(folder):
    """Draw every picture into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for draw in (maps, on_a_picture, spread, padding_modes, buffers):
        draw(folder)


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent / "pictures")
