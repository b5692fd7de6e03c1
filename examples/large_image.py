"""Filter a picture that does not fit the memory, and learn a blur from a photograph by its gradient, both with dask.

    python examples/large_image.py           half a minute; 600 MB of disk in the folder for temporary files
    python examples/large_image.py --quick   a small picture and few steps: does it run?

The picture is a wall of copies of a photograph that scikit-learn carries, written to disk as 8-bit numbers. As float32
it has 1.2 GB; the process may take 256 MB more than it has when filtering begins, and the system (Linux) sees to that:
the plain function cannot even read the picture. pyconv.dask reads it strip by strip, with the seams of the strips
around. Its edges meet as if the wall went on for ever, so each copy must come out as the photograph alone does, number
by number, and that is what is compared.

Then a kernel is learned, not given: of a photograph and a blurred copy of it, in 8 bits, the blur is what makes the
first into the second. The loss is the squared difference, its gradient to the kernel is conv2d_weight of photograph and
difference, and conjugate gradients step along it.
"""
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
from common import BARE, argument_parser, save, tidy
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image
from tqdm import tqdm
from tqdm.dask import TqdmCallback

import pyconv
from pyconv.dask import conv2d, conv2d_weight

MB = 2**20


def status(name):
    """Return a number of bytes that Linux tells of this process; None elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


@contextmanager
def memory_limit(size):
    """Let the process have that many bytes more than now, where the system can see to that; yield whether it does."""
    data = status("VmData")
    if data is None:
        yield False
        return
    import resource  # not everywhere

    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data + size, before[1]))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@contextmanager
def watched_memory():
    """Yield a list that gets (seconds, bytes of the process's own memory beyond the first) while the block runs."""
    seen, done, start, first = [], threading.Event(), time.perf_counter(), status("RssAnon")

    def watch():
        while not done.wait(0.02):
            seen.append((time.perf_counter() - start, (status("RssAnon") or 0) - (first or 0)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


class OnDisk:
    """An array in a .npy file, of which dask reads the parts that it needs; a NumPy memmap it would copy first."""

    def __init__(self, path):
        self.path, array = path, np.load(path, mmap_mode="r")
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __getitem__(self, place):
        return np.array(np.load(self.path, mmap_mode="r")[place])


def build_wall(path, photo, rows, columns):
    """Write the wall of copies of the photograph, one row after the other."""
    height, width, channels = photo.shape
    shape = rows * height, columns * width, channels
    wall = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    row = np.tile(photo, (1, columns, 1))
    for top in tqdm(range(0, shape[0], height), desc="the wall", unit=" rows"):
        wall[top:top + height] = row
    wall.flush()


def disc(radius):
    """Return a kernel of ones and zeros for each of three channels: what a lens makes of a point out of focus."""
    across = np.arange(-radius, radius + 1)
    return np.tile(np.hypot(across, across[:, None]) <= radius + 0.5, (3, 1, 1, 1)).astype(np.float32)


def filtered(picture, kernel, chunk):
    """The picture out of focus, in 8 bits, as a dask array in strips of so many rows: nothing is read yet."""
    pixels = da.from_array(picture, chunks=(chunk, *picture.shape[1:]), name=False)
    image = da.moveaxis(pixels, -1, 0)[None].astype(np.float32)
    # sums of whole numbers below 2**24 are exact, however the picture is cut
    sums = conv2d(image, kernel, padding="same", padding_mode="circular", groups=3)
    return da.moveaxis(da.rint(sums[0] / kernel[0].sum()).astype(np.uint8), 0, -1)


def filter_wall(folder, photo, rows, columns, kernel, chunk, limit):
    """Filter the wall within the limit, compare every copy with the photograph filtered alone; what was seen."""
    build_wall(folder / "wall.npy", photo, rows, columns)
    wall = OnDisk(folder / "wall.npy")
    blurred = np.lib.format.open_memmap(folder / "blurred.npy", "w+", np.uint8, wall.shape)
    print(f"the wall: {wall.shape[1]} x {wall.shape[0]} pixels, {4 * blurred.size / MB:.0f} MB as float32")
    with memory_limit(limit) as is_limited, watched_memory() as memory:
        if is_limited:
            try:
                pyconv.conv2d(np.moveaxis(wall[:], -1, 0).astype(np.float32), kernel, padding="same", groups=3)
                print(f"with {limit / MB:.0f} MB of memory more, conv2d of it all: done")
            except MemoryError:
                print(f"with {limit / MB:.0f} MB of memory more, conv2d of it all: MemoryError")
        memory.clear()
        with TqdmCallback(desc="filtering", unit=" tasks"), dask.config.set(num_workers=2):
            start = time.perf_counter()
            da.store(filtered(wall, kernel, chunk), blurred, lock=False)
            seconds = time.perf_counter() - start
    alone = filtered(photo, kernel, len(photo)).compute()
    height, width, _ = photo.shape
    different = sum(
        np.count_nonzero(blurred[top:top + height, left:left + width] != alone)
        for top in range(0, wall.shape[0], height) for left in range(0, wall.shape[1], width))
    most = max((size for _, size in memory), default=0)
    print(f"strip by strip: {seconds:.1f} s, at most {most / MB:.0f} MB; {different} of {blurred.size} numbers differ "
          "from those of the photograph filtered alone")
    return memory, wall[:2 * height, :2 * width], blurred[:2 * height, :2 * width].copy()


def shaken(size):
    """Return a blur as of a camera that was shaken: a bent line, which fades."""
    kernel, at = np.zeros((size, size)), np.linspace(0, 1, 400)
    down = (size - 1) * (0.2 + 0.6 * at)
    right = (size - 1) * (0.5 + 0.35 * np.sin(5 * at))
    for row, column, weight in zip(down, right, 1 - 0.7 * at):
        for near_row in (int(row), int(row) + 1):
            for near_column in (int(column), int(column) + 1):
                share = (1 - abs(row - near_row)) * (1 - abs(column - near_column))
                kernel[near_row, near_column] += weight * share
    return kernel[None, None] / kernel.sum()


def learn_kernel(sharp, blurred, shape, steps, true):
    """Find the kernel that makes one dask array into the other by conjugate gradients; losses and errors of the steps.

    The loss is the sum of (conv2d(sharp, kernel) - blurred)**2 / 2, its slope conv2d_weight(sharp, difference).
    """
    kernel, losses, errors = np.zeros(shape), [], []
    rest = blurred  # what the kernel does not explain yet
    slope = conv2d_weight(sharp, shape, rest).compute()
    direction, steep = slope, np.vdot(slope, slope)
    with tqdm(range(steps), desc="learning", unit=" steps") as bar:
        for _ in bar:
            change = conv2d(sharp, direction).persist()
            rate = steep / float((change**2).sum().compute())
            kernel = kernel + rate * direction
            rest = (rest - rate * change).persist()
            slope, loss = dask.compute(conv2d_weight(sharp, shape, rest), (rest**2).mean())
            steep, before = np.vdot(slope, slope), steep
            direction = slope + steep / before * direction
            losses.append(float(loss))
            errors.append(np.linalg.norm(kernel - true) / np.linalg.norm(true))
            bar.set_postfix(loss=f"{loss:.4f}", error=f"{errors[-1]:.3f}", refresh=False)
    return kernel, losses, errors


def learn_blur(photo, size, chunk, steps):
    """Blur the photograph, round it to 8 bits, and learn from both what the blur was."""
    true = shaken(size)
    image = np.moveaxis(photo, -1, 0)[:, None].astype(np.float64)  # three pictures of one channel
    blurred = np.rint(pyconv.conv2d(image, true))
    sharp = da.from_array(image, chunks=(3, 1, chunk, chunk))
    observed = da.from_array(blurred, chunks=conv2d(sharp, true).chunks)
    kernel, losses, errors = learn_kernel(sharp, observed, true.shape, steps, true)
    print(f"the blur: mean squared difference {losses[0]:.3f} at first, {losses[-1]:.3f} at last (rounding to 8 bits "
          f"alone makes {1 / 12:.3f}); the kernel's error {errors[0]:.3f} at first, {errors[-1]:.3f} at last")
    return true[0, 0], kernel[0, 0], losses, errors, np.moveaxis(blurred[:, 0], 0, -1).astype(np.uint8)


def draw(path, quick, wall, learned, photo, limit, size):
    """Save a picture of the filtered wall, the memory that it took, and the blur that was learned."""
    memory, before, after = wall
    true, kernel, losses, errors, blurred = learned
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1)
    left, right = above.subfigures(1, 2, width_ratios=(7, 5))
    for axes, image, title in zip(left.subplots(1, 2, subplot_kw=BARE), (before, after), ("A corner", "out of focus")):
        axes.imshow(image)
        axes.set_title(f"{title} of the wall" if image is before else title)
    axes = right.subplots()
    if any(used for _, used in memory):
        seconds, used = np.array(memory).T
        axes.fill_between(seconds, used / MB, color="#9dbcd4")
        axes.plot(seconds, used / MB, color="#12436d", linewidth=1.2)
    axes.axhline(limit / MB, color="#801650", linewidth=1.5)
    axes.text(0, limit / MB, "the limit", color="#801650", va="bottom")
    axes.axhline(size / MB, color="#3d3d3d", linewidth=1.5, linestyle="--")
    axes.text(0, size / MB, "the picture as float32", color="#3d3d3d", va="bottom")
    tidy(axes, "Memory while it is filtered", xlabel="seconds", ylabel="MB", ylim=(0, 1.15 * size / MB))

    first, second, third, fourth, fifth = below.subplots(1, 5, width_ratios=(3, 3, 2, 2, 4))
    for axes, image, title in ((first, photo, "A photograph"), (second, blurred, "blurred")):
        axes.imshow(image)
        axes.set(title=title, **BARE)
    reach = true.max()
    for axes, image, title in ((third, true, "The blur"), (fourth, kernel, "as learned")):
        axes.imshow(image, cmap="RdBu_r", vmin=-reach, vmax=reach)
        axes.set(title=title, xticks=[], yticks=[])
    steps = range(1, len(losses) + 1)
    fifth.plot(steps, losses, color="#12436d", linewidth=2, label="mean squared difference")
    fifth.plot(steps, errors, color="#f46a25", linewidth=2, label="the kernel's relative error")
    fifth.axhline(1 / 12, color="#3d3d3d", linewidth=1, linestyle="--", label="rounding alone")
    tidy(fifth, "Learning", xlabel="step", yscale="log")
    fifth.legend(frameon=False)
    save(figure, path, quick)


def main():
    parser = argument_parser("Filter a picture larger than memory; learn a blur by its gradient.", "large_image.png",
                             "a small picture, few steps: does it run?")
    parser.add_argument("--steps", type=int, default=60, help="of learning (default %(default)s)")
    arguments = parser.parse_args()
    rows, columns, chunk, limit, radius, size, steps = (
        (12, 4, 64, 96 * MB, 5, 9, 8) if arguments.quick else (24, 16, 64, 256 * MB, 12, 17, arguments.steps))
    china, flower = load_sample_image("china.jpg"), load_sample_image("flower.jpg")
    with tempfile.TemporaryDirectory() as folder:
        wall = filter_wall(Path(folder), china, rows, columns, disc(radius), chunk, limit)
    learned = learn_blur(flower, size, 160, steps)
    draw(arguments.output, arguments.quick, wall, learned, flower, limit, rows * columns * china.size * 4)
    print(f"picture {arguments.output}")


if __name__ == "__main__":
    main()
