"""What holds the layers that stay under 80 % of their bound: a table of classes, and results/README.md's section of it.

    python benchmarks/holds.py      names every row's class in results/cpu-all.json, and writes the section anew

Every layer, map and dtype belongs to the first class of CLASSES whose rule it meets; `held_by` of a row names it.
cpu.py writes that name too, so that after `cpu.py --networks all` the section is one command away. Its ranges and
numbers of rows are those of the file, its sentences those of the table: what a profile showed (perf record, one thread,
float32), what follows from sizes, or that neither was looked at.
"""

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import harness
from layers import Layer, layer_named

RECORD, README = harness.RESULTS / "cpu-all.json", harness.RESULTS / "README.md"
BEGIN, END = "<!-- written by benchmarks/holds.py -->", "<!-- the end of what holds.py writes -->"
SHARE = 0.8
FAR_APART = 200e-9
SWAPPED = {"forward": "grad_input", "grad_input": "forward", "grad_weight": "grad_weight"}


class Case(NamedTuple):
    """A map of a layer that is not transposed, at a batch and in a dtype."""

    layer: Layer
    batch: int
    map: str
    dtype: str

    @property
    def group_width(self) -> int:
        """Channels of the input in a group."""
        return self.layer.in_channels // self.layer.groups

    @property
    def fewest(self) -> int:
        """The smaller number of channels."""
        return min(self.layer.in_channels, self.layer.out_channels)

    @property
    def positions(self) -> int:
        """Of all samples' outputs."""
        return self.batch * math.prod(self.layer.output_size)

    @property
    def dense(self) -> bool:
        """Whether the kernel has more than one tap."""
        return max(self.layer.kernel) > 1

    @property
    def three_taps(self) -> bool:
        """Whether there are three along every axis, at stride 1."""
        return set(self.layer.kernel) == {3} and self.layer.stride == 1


class Class(NamedTuple):
    """A name, the rule for who belongs to it, and what holds it, in sentences."""

    name: str
    rule: Callable[[Case], bool]
    text: str


CLASSES = (
    Class("Tiny", lambda case: case.layer.flop(case.batch) < 10**6, """
        The call itself: a convolution of 1×1×1×1 takes 2 µs where one like it, of NumPy arrays in C order, went before;
        the bound is less than that."""),
    Class("Depthwise, weight gradients",
          lambda case: case.group_width == 1 < case.layer.groups and case.map == "grad_weight", """
        Vectors hold one cell of many channels: cells are turned from rows to lanes in registers, of which the bound
        knows nothing. On 7×7 images with 7×7 kernels the columns of taps that lie in the padding are multiplied as
        well, though not the rows. Where channels lie last, those of three taps along x copy nothing and wait for
        memory."""),
    Class("Depthwise by rows", lambda case: case.group_width == 1 < case.layer.groups and (
        case.layer.stride == case.layer.dilation == 1 and case.layer.size[-1] >= 16), """
        Where rows fill vectors (16 positions and more), forward and grad_input go by rows: 7×7 on 28×28 at 85 % of the
        rate of multiply-adds, of which an eighth is a last vector that has some positions again and a seventeenth rows
        beyond the edge; 3×3 on 56×56 and 112×112 wait for memory. Where channels lie last they copy nothing and wait
        for memory too; a bias, or adding to `out`, takes another pass over the results."""),
    Class("Depthwise by channels", lambda case: case.group_width == 1 < case.layer.groups, """
        Narrower rows, strides and dilations hold one cell of many channels in a vector: cells are turned from rows to
        lanes in registers and back, 31 % of the profile of a 3×3 input gradient at stride 2 (192 channels on 28×28), of
        which the bound knows nothing. On 7×7 images with 7×7 kernels the columns of taps that lie in the padding are
        multiplied as well."""),
    Class("Groups of 2 to 8 channels", lambda case: case.layer.groups > 1 and case.group_width <= 8, """
        They are turned as depthwise ones are, whose vectors hold one cell of many channels. Where the channels lie
        last, one vector holds as many groups as fill it, and each lane picks its own group's cell: a shuffle for each
        load. At a stride of 2 it waits for memory: a position's line of the cache is one of the 16 that its 256
        channels take, and tasks of other groups read the others. Groups of another size, and weight gradients, do
        without."""),
    Class("Groups of 16 and more channels", lambda case: case.layer.groups > 1, """
        Of 16, one vector of channels: a tile of 8×1 has a load for each multiply-add. Rows of positions under 2, 3 or 5
        taps share the cells that they broadcast, in all three maps (weight gradients 222 GFLOP/s of one thread's 246 on
        14×14); the columns of positions at the edges and larger steps do not. Where channels lie last, weight gradients
        at stride 2 take twice the time: as of smaller groups, a position's line of the cache has channels of other
        tasks' groups. Of 32, on 7×7, the register tile of two vectors is 85 to 87 % of the profile, packing weights and
        storing results are 4 to 11 %. 1×1 of 80 channels a group to 20 are matrix products; listing cells is 13 % of
        forward."""),
    Class("Kernels as large as the image",
          lambda case: case.dense and case.layer.kernel == case.layer.size and not any(case.layer.pads), """
        LeNet's 12×12 and DCGAN's first layer: matrix products of 64 rows, in which each weight is used 64 times.
        Packing the weights is 22 to 26 % of the profile of 12×12, forward and grad_input, and unrolling or storing what
        lies in another order 6 to 9 %; of DCGAN's packing is 18 to 25 % and the other 16 to 21 %. In the gradient to
        the weight storing the result, which is turned, is 29 and 22 %."""),
    Class("First layers, forward", lambda case: case.layer.in_channels <= 3 and case.map == "forward", """
        The output is far larger than the input and new memory: clearing its pages is 1.3 ms of each 25 MB, 28 % of the
        profile of 3×3 from 3 channels to 64. 27 to 48 products for each result leave little to hide the store behind.
        11×11, 7×7 and 16×16 have more: there (7×7 at stride 2) the register tile is 93 % of the profile and unrolling
        cells 7 %; what holds the tile was not measured."""),
    Class("First layers, input gradients", lambda case: case.layer.in_channels <= 3 and case.map == "grad_input", """
        Gradients to one or three channels, DCGAN's last layer among them. A register tile of one row is limited by
        its loads; so were three rows, which were tiles of two and of one when these rows were measured. They are one
        tile since, which takes 0.80 to 0.87 of the time (Zen 4). The phases of the stride share the unrolled cells.
        Unrolling is 42 % of the profile of 3×3 at stride 1, 10 to 12 % of 7×7 at stride 2. Where channels lie last,
        vectors hold channels and results are inner products: 7×7 /2 from 64 channels takes 0.73 of the time that it
        takes where they lie first, 3×3 /2 from 32 1.2 times as long, for which adding up lanes and storing three
        numbers a position are a third."""),
    Class("First layers, weight gradients", lambda case: case.layer.in_channels <= 3, """
        What is read of the output's gradient, 103 MB of 3×3 from 3 channels to 64, is used for few products: it is
        turned to vectors, 36 % of the profile of that layer and 10 % of 7×7 at stride 2, and of 3×3 read three times,
        once for each row of taps, with nine products for each vector. Whether the sums, which are the rest, wait for it
        was not measured."""),
    Class("Few channels", lambda case: case.dense and case.fewest < 16, """
        LeNet-5's 6 channels to 16: the input's gradient has six rows of results: tiles of 4×6, 4×4, 2×7, 2×6 and 4×3
        share the work, and unrolling is 26 % of the profile. The weight's gradient takes rows of ten positions in tiles
        of four channels and of two; forward is a tile of one vector of channels, whose taps share cells, 92 % of its
        profile: why these two stay below was not measured. Of 3×3 from 8 channels to 8 unrolling is 18 % of the
        profile, and turning cells 18 % of that of the weight's gradient."""),
    Class("A few positions under many weights",
          lambda case: math.prod(case.layer.weight_shape) >= 10**4 * case.positions, """
        ResNet's last layers at a batch of one, and 3×3×3 on 2×7×7. Weights are read from memory, packed, and read again
        from L3 for fewer than 50 positions (3×3×3: 196). Packing is 23 % of the profile of 3×3 at stride 2 forward and
        51 % of its input's gradient, 12 and 25 % of 3×3×3; 3×3 at stride 1, where one vector of positions or less is
        left to a tile of Winograd's, transforms weights for 33 %. Looking whether operands or results are finite is 6
        to 11 % of all these, and storing the weight's gradient, which is turned, 16 to 24 %. 1×1 layers were not
        profiled."""),
    Class("Strided 1×1, input gradients",
          lambda case: not case.dense and case.layer.stride > 1 and case.map == "grad_input", """
        Three cells of four hold zeros, which are written and not computed: storing is 21 % of the profile of 256→512 on
        56×56, listing cells 9 %."""),
    Class("Strided 1×1, forward and weight gradients", lambda case: not case.dense and case.layer.stride > 1, """
        Every other cell of every other row is read, so half of each line of the cache is read for nothing. In forward
        unrolling these cells is 16 % of the profile of 256→512 on 56×56 and storing 7 %; in the weight's gradient
        turning them is 8 % and the tile the rest, whose wait for memory was not measured."""),
    Class("1×1 of at most 32 channels", lambda case: not case.dense and case.fewest <= 32, """
        MobileNet's: with so few channels to sum over, or to sum to, a product is not much more than reading and
        writing. forward of 16→96 on 112×112 writes 38 MB of new memory, clearing whose pages is 35 % of the profile. In
        its weight's gradient turning cells from rows to lanes is half the profile."""),
    Class("1×1, weight gradients larger than what they read", lambda case: not case.dense and (
        case.map == "grad_weight" and 2 * math.prod(case.layer.weight_shape) > case.layer.elements(case.batch)), """
        The result is made in scratch, turned, and stored, a few rows at a time."""),
    Class("1×1, weight gradients", lambda case: not case.dense and case.map == "grad_weight", """
        Sums over positions. Cells are turned from rows to lanes, 23 % of the profile of 64→256 on 56×56; where a turned
        cell meets more channels that is likely less. The register tile is the rest, a quarter of it tiles of 8×2 in
        place of 8×3."""),
    Class("1×1, forward and input gradients", lambda case: not case.dense, """
        And matrix products. In a loop of its own the register tile reaches 95 % of the peak, cells 784 apart and its
        weights from L2; within a layer of 1024 channels on 14×14 87 %, of 2048 on 7×7 less: sums are taken up again
        every 128 channels (256 on few cells), and weights come from L3. Listing cells takes 4 to 6 % beside it, packing
        weights 2 to 6 %. Where positions fill vectors, of which most lie across two lines, a tile reaches 83 %. forward
        of 64→256 on 56×56 writes 26 MB of new memory: clearing pages is 11 % of its profile."""),
    Class("Dilated layers without tiles",
          lambda case: case.three_taps and case.layer.dilation > max(1, min(case.layer.size) // 7), """
        On 28×28 from dilation 6 on Winograd's tiles would make more products than they save; since this run forward and
        grad_input go by lone tiles at dilation 12 and 18, in 0.69 to 0.93 of the time (Zen 4, one thread). Before, the
        register tile was 89 to 94 % of the profile at dilation 12. Positions that reach the same taps are 6, 16 and 6
        of a row at dilation 6, 12, 4 and 12 at dilation 12, 10, 8 and 10 at dilation 18, which tiles of eight do not
        divide: likely, not measured. Packing 19 MB of weights (2048 channels) is 3 to 6 %."""),
    Class("Dilated layers", lambda case: case.three_taps and case.layer.dilation > 1, """
        Three taps go through Winograd's tiles on the lattices of the dilation."""),
    Class("3×3 on 7×7", lambda case: case.three_taps and max(case.layer.size) <= 7, """
        7×7 takes 16 of Winograd's tiles, 256 products in place of 361, so that products alone would allow 1.4 times the
        bound. They are 81 to 84 % of the profile (77 % of the weight's gradient): 16 matrix products of 512 by 512
        channels for 128 tiles of eight samples, whose transformed weights, 17 MB, come from beyond L2. Transforming
        weights is 9 % (a tenth to a fifth in other runs), storing the weight's gradient 8 %. Rows of tiles fill a
        quarter or an eighth of the vectors that are transformed."""),
    Class("3×3 at stride 1", lambda case: case.three_taps, """
        And 3×3×3. They go through Winograd's tiles, which save more products than the bound knows of. Of their profile
        products are 65 to 85 %, at 85 to 90 % of the rate of multiply-adds. On 14×14 a row of tiles fills a half of the
        vectors that are transformed."""),
    Class("Other kernels at stride 1", lambda case: case.layer.stride == 1, """
        Two taps at dilation 512: a matrix product of 128 and 256 numbers a result. Unrolling the cells is 13 % of the
        profile forward and 22 % of the input's gradient; forward writes 63 MB of new memory, clearing whose pages is 5
        %. In the weight's gradient turning cells is 15 %. Of 1×7 and 7×1 on 17×17 the register tile is 96 % and more,
        of the weight's gradient 90 %, where turning is 7 %; what holds the tile there was not measured."""),
    Class("Kernels as large as their stride", lambda case: set(case.layer.kernel) == {case.layer.stride}, """
        Transposed, 2×2×2 and 2×2 at stride 2. Each of the eight or four phases of forward has one tap, so 64 or 128
        products for a result; storing the results, every other cell of a row, is 38 and 22 % of its profile. In the
        gradients the register tile is 90 to 94 %, and what holds it was not measured."""),
    Class("Strided kernels, forward", lambda case: case.map == "forward", """
        And the input's gradient of transposed ones. Nine tenths and more of the profile are the register tile itself
        (3×3 at stride 2 on 28×28, 4×4 on 8×8, 3×3×3 on 32×32×32, 16 taps at stride 8, where packing is 7 %). Why it
        stays below the peak was not measured; that weights, 2.4 MB and more from 256 channels on, come from beyond L2
        is likely."""),
    Class("Strided kernels, input gradients", lambda case: case.map == "grad_input", """
        And forward of transposed ones. Each phase of the stride is a convolution of its own, of 3×3 with 1, 2 or 4
        taps, of 4×4 with 4, of 16 with 2: fewer products before a result is stored. Register tiles of two vectors are
        92 % of the profile of 3×3 on 28×28, 96 % of 4×4 on 8×8, and 82 % of 3×3×3, where storing every other cell is 10
        %. Of 16 taps at stride 8 packing is 15 %, as each weight meets 32 positions of each sample."""),
    Class("Strided kernels, weight gradients", lambda case: True, """
        Turning cells from rows to lanes is 3 to 8 % of the profile, the register tile 87 to 96 %. That sums over few
        positions are short, 49 to 784 of each sample in ResNet-50, is likely to hold it; it was not measured."""),
)


def class_of(layer: Layer, batch: int, map_name: str, dtype: str) -> Class:
    """The first class whose rule it meets; a transposed layer is the map of the plain one that it undoes."""
    if layer.transposed:
        layer, map_name = layer._replace(
            in_channels=layer.out_channels, out_channels=layer.in_channels, size=layer.output_size, transposed=False,
            output_padding=0), SWAPPED[map_name]
    case = Case(layer, batch, map_name, dtype)
    return next(one for one in CLASSES if one.rule(case))


def class_of_row(row: dict) -> Class:
    """That of a row of cpu.py's."""
    return class_of(layer_named(row["network"], row["layer"]), row["batch"], row["map"], row["dtype"])


def bullet(one: Class, rows: list[dict]) -> str:
    """A class with the range of its rows' shares, and how many of them are low; nothing where it has no rows."""
    shares = [row["share_of_bound"] for row in rows if row["held_by"] == one.name]
    if not shares:
        return ""
    low = sum(share < SHARE for share in shares)
    found = f"({100 * min(shares):.0f} to {100 * max(shares):.0f} %; {low} of {len(shares)} rows under 80 %)."
    return filled(f"- **{one.name}** {found} {one.text}", "  ")


def filled(text: str, indent: str = "") -> str:
    """The text in lines of at most 120 characters."""
    return textwrap.fill(" ".join(text.split()), 120, subsequent_indent=indent, break_on_hyphens=False)


def limits_text(limits: dict[str, float]) -> str:
    """What the machine can."""
    return (f"{limits['float32'] / 1e9:.0f} GFLOP/s in float32, {limits['float64'] / 1e9:.0f} in float64, "
            f"{limits['bandwidth'] / 1e9:.0f} GB/s")


def section(record: dict) -> str:
    """What README.md has between the two marks."""
    rows = record["rows"]
    low = sum(row["share_of_bound"] < SHARE for row in rows)
    apart = sum((row["apart_seconds"] or 0) > FAR_APART for row in rows)
    head = (f"`cpu-all.json` is of `{record['command']}` on {record['date'][:10]}, {record['threads']} threads: "
            f"{limits_text(record['limits'])} when it began and {limits_text(record['limits_after'])} at its end. "
            f"{low} of its {len(rows)} rows are under 80 % of their bound; {apart} met more than "
            f"{1e9 * FAR_APART:.0f} ns of `apart_seconds`. Classes in the order in which a row is looked for in them:")
    bullets = [text for text in (bullet(one, rows) for one in CLASSES) if text]
    return "\n".join([BEGIN, filled(head), "", *bullets, END])


def with_section(readme: str, record: dict) -> str:
    """The text with a new section between the marks."""
    before, _, rest = readme.partition(BEGIN)
    return before + section(record) + rest.partition(END)[2]


def main(record_path: Path = RECORD, readme_path: Path = README) -> None:
    """Name the classes of the record's rows, and write the section."""
    record = json.loads(record_path.read_text())
    for row in record["rows"]:
        row["held_by"] = class_of_row(row).name
    harness.write(record, record_path)
    readme_path.write_text(with_section(readme_path.read_text(), record))
    print(f"written: {readme_path}")


if __name__ == "__main__":
    main()
