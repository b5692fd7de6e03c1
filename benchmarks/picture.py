"""Draw what benchmarks/cpu.py, kinds.py or cuda.py has written: a peer's time over pyconv's, layer by layer.

    python benchmarks/picture.py benchmarks/results/cpu-resnet50.json

One panel per map, one dot per layer and dtype on a logarithmic axis, networks one below the other; the numbers beside a
network's name are the geometric means over its distinct layers. Marks: /2 stride, d2 dilation, g2 groups, T transposed.
Of several networks there is a second picture, NAME-networks.png, of the means alone. Where pyconv was timed on
channels-last arrays too, NAME-channels-last.png shows these beside torch's, likewise.
"""

import json
import math
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402  after the choice of a backend that needs no screen

STYLES = {
    "float32": {"color": "tab:blue", "marker": "o"}, "float64": {"color": "tab:orange", "marker": "D"},
    "tf32": {"color": "tab:green", "marker": "^"}, "tf32x3": {"color": "tab:olive", "marker": "v"},
    "float16": {"color": "tab:red", "marker": "s"}, "bfloat16": {"color": "tab:purple", "marker": "P"},
}


def styles_of(record: dict) -> dict[str, dict]:
    """The styles of the dtypes that the record has."""
    found = {row["dtype"] for row in record["rows"]}
    return {dtype: style for dtype, style in STYLES.items() if dtype in found}


def lines_of(rows: list[dict]) -> dict[tuple[str, str | None], str]:
    """Label of each line of the picture, top down, by network and layer; the layer of a network's own line is None."""
    lines = {}
    for row in rows:
        lines[row["network"], None] = row["network"]
        count = f"  (×{row['count']})" if row["count"] > 1 else ""
        lines[row["network"], row["layer"]] = row["layer"] + count
    order = list(dict.fromkeys(network for network, _ in lines))
    return dict(sorted(lines.items(), key=lambda line: order.index(line[0][0])))


def draw_panel(panel, record: dict, map_name: str, places: dict[tuple[str, str | None], int]) -> None:
    """The dots of one map, and its means on the lines of the networks."""
    for dtype, style in styles_of(record).items():
        chosen = [row for row in record["rows"] if row["map"] == map_name and row["dtype"] == dtype]
        if chosen:
            panel.scatter([row["ratio"] for row in chosen], [places[row["network"], row["layer"]] for row in chosen],
                          s=22, label=dtype, zorder=3, **style)
    means: dict[str, list[str]] = {}
    for entry in record["summary"]:
        if entry["map"] == map_name and (entry["network"], None) in places:
            means.setdefault(entry["network"], []).append(f"{entry['dtype']} {entry['geometric_mean']:.2f}")
    for network, texts in means.items():
        here = places[network, None]
        panel.axhspan(here - 0.5, here + 0.5, color="0.92", zorder=2.5)
        size = 8 if len(texts) < 3 else 5
        panel.annotate("mean: " + ", ".join(texts), (0.5, here), xycoords=("axes fraction", "data"), fontsize=size,
                       ha="center", va="center", zorder=4)
    style_axis(panel, map_name)


def style_axis(panel, map_name: str) -> None:
    """The axis of ratios, which both pictures share."""
    panel.axvline(1, color="black", linewidth=1)
    panel.set_title(map_name)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
    panel.grid(linewidth=0.4, alpha=0.6)


def finish(figure, record: dict, panels, path: Path) -> None:
    """Legend, captions, file."""
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, fontsize=9)
    order = ", channels last" if record.get("channels_last") else ""
    figure.supxlabel(f"torch's time / pyconv's time{order}: right of the line pyconv is faster", fontsize=10)
    machine, versions = record["machine"], record["versions"]
    where = f"{record['threads']} threads" if "threads" in record else f"cuDNN {versions['cudnn']}"
    what = f"{where}, torch {versions['torch']}, pyconv {versions['pyconv']}, {record['date'][:10]}"
    figure.suptitle(f"{machine['processor'].replace('(R)', '')}, {what}", x=0.99, ha="right", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_networks(record: dict, path: Path) -> None:
    """Write the picture of the means: a dot each, on a line from the least to the greatest ratio of the layers."""
    networks = list(dict.fromkeys(entry["network"] for entry in record["summary"]))
    maps = list(dict.fromkeys(entry["map"] for entry in record["summary"]))
    styles = styles_of(record)
    gap = 0.34 if len(styles) < 3 else 0.8 / len(styles)
    shifts = [gap * (place - (len(styles) - 1) / 2) for place in range(len(styles))]
    height = 0.36 if len(styles) < 3 else 0.15 * len(styles)
    figure, panels = pyplot.subplots(1, len(maps), sharex=True, sharey=True, squeeze=False, layout="constrained",
                                     figsize=(2.4 + 2.8 * len(maps), 1.5 + height * len(networks)))
    for panel, map_name in zip(panels[0], maps):
        for shift, (dtype, style) in zip(shifts, styles.items()):
            chosen = [entry for entry in record["summary"] if (entry["map"], entry["dtype"]) == (map_name, dtype)]
            places = [networks.index(entry["network"]) + shift for entry in chosen]
            means = [entry["geometric_mean"] for entry in chosen]
            panel.hlines(places, [entry["least"] for entry in chosen], [entry["most"] for entry in chosen],
                         color=style["color"], linewidth=1, alpha=0.6)
            label = f"{dtype}: mean, least to greatest" if len(styles) < 3 else dtype  # more would reach the caption
            panel.scatter(means, places, s=24, label=label, zorder=3, **style)
            for mean, place in zip(means, places):
                panel.annotate(f"{mean:.2f}", (mean, place), xytext=(5, 1), textcoords="offset points", fontsize=7)
        style_axis(panel, map_name)
    panels[0][0].set_yticks(range(len(networks)), networks, fontsize=9)
    panels[0][0].set_ylim(len(networks) - 0.4, -0.6)
    finish(figure, record, panels[0], path)


def draw(record: dict, path: Path) -> None:
    """Write the picture of a record; of several networks a second one, of channels-last rows another."""
    turned = [{**row, "ratio": row["ratio_channels_last"]} for row in record["rows"] if row.get("ratio_channels_last")]
    if turned and not record.get("channels_last"):
        draw({**record, "rows": turned, "summary": record["summary_channels_last"], "channels_last": True},
             path.with_name(f"{path.stem}-channels-last.png"))
    if len({row["network"] for row in record["rows"]}) > 1:
        draw_networks(record, path.with_name(f"{path.stem}-networks.png"))
    lines = lines_of(record["rows"])
    places = {line: place for place, line in enumerate(lines)}
    maps = list(dict.fromkeys(row["map"] for row in record["rows"]))
    figure, panels = pyplot.subplots(
        1, len(maps), sharex=True, sharey=True, squeeze=False, layout="constrained",
        figsize=(3.6 + 3.0 * len(maps), 1.6 + 0.21 * len(lines)),
    )
    for panel, map_name in zip(panels[0], maps):
        draw_panel(panel, record, map_name, places)
    first = panels[0][0]
    first.set_yticks(list(places.values()), list(lines.values()), fontsize=8)
    for (_, layer), label in zip(lines, first.get_yticklabels()):
        label.set_fontweight("normal" if layer else "bold")
    first.set_ylim(len(lines) - 0.4, -0.6)
    finish(figure, record, panels[0], path)


def draw_kinds(record: dict, path: Path) -> None:
    """Write the picture of what kinds.py measured: for each group a panel for each of its peers, and a legend."""
    groups: dict[str, list[dict]] = {}
    for row in record["rows"]:
        groups.setdefault(row["group"], []).append(row)
    peers = {group: list(dict.fromkeys(name for row in rows for name in row["peers"]))
             for group, rows in groups.items()}
    heights = [max(2.4, 0.9 + 0.25 * len({row["layer"] for row in rows})) for rows in groups.values()]
    columns = max(map(len, peers.values()), default=1)
    figure, panels = pyplot.subplots(
        len(groups), columns + 1, squeeze=False, layout="constrained", height_ratios=heights,
        width_ratios=[1] * columns + [0.4], figsize=(4 + 3 * columns, 1 + sum(heights)))
    for (group, rows), line in zip(groups.items(), panels):
        for panel, peer in zip(line, peers[group]):
            draw_peer(panel, rows, peer)
            panel.set_yticklabels([] if panel is not line[0] else [text.get_text() for text in panel.get_yticklabels()])
        for panel in line[len(peers[group]):]:
            panel.set_axis_off()
        line[0].set_title(f"{group}: {peers[group][0]}", x=1, ha="right", fontsize=10)
        line[len(peers[group])].legend(*line[0].get_legend_handles_labels(), fontsize=7, loc="center left")
    versions, machine = record["versions"], record["machine"]
    figure.suptitle(f"{machine['processor']}, {record['threads']} threads, torch {versions['torch']}, "
                    f"pyconv {versions['pyconv']}, {record['date'][:10]}", x=0.99, ha="right", fontsize=10)
    figure.supxlabel("the peer's time / pyconv's time: right of the black line pyconv is faster; dashed: the target",
                     fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw_peer(panel, rows: list[dict], peer: str) -> None:
    """The ratios to one peer: a line for each layer, a colour for each kind, a marker for each map."""
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    markers = {"forward": "o", "grad_input": "<", "grad_weight": "s"}
    for row in rows:
        label = f"{row['kind']}, {row['map']}"
        known = panel.get_legend_handles_labels()[1]
        number = kinds.index(row["kind"])
        found = row["peers"].get(peer, {"ratio": math.nan, "target": None})
        place = layers.index(row["layer"]) + 0.7 * ((number + 0.5) / len(kinds) - 0.5)
        panel.scatter(found["ratio"], place, s=14, color=f"C{number}", marker=markers[row["map"]], zorder=3,
                      label=None if label in known else label)
        if found["target"]:
            panel.axvline(found["target"], color="black", linewidth=1, linestyle="--")
    style_axis(panel, peer)
    panel.title.set_fontsize(10)
    panel.set_yticks(range(len(layers)), layers, fontsize=8)
    panel.set_ylim(len(layers) - 0.5, -0.5)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        found = json.loads(Path(name).read_text())
        (draw if "summary" in found and "network" in found["rows"][0] else draw_kinds)(
            found, Path(name).with_suffix(".png"))
