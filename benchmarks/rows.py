"""The rows of cuda.py: kinds of numbers with the errors allowed, one row's calls and times, means and targets."""

import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import packages  # noqa: F401  before what may import NVIDIA's packages

import torch

import device
import harness
from harness import duration
from layers import GPU_NETWORKS, Layer, Network


class Kind(NamedTuple):
    """A word of --dtypes: arrays of which dtype, pyconv's keywords, whether torch may use TF32; the error allowed.

    `trials` are pyconv's algorithms that nothing chooses until they were measured: timed beside its own choice.
    """

    dtype: str
    options: dict[str, Any]
    tf32: bool
    error_limit: float
    trials: tuple[str, ...] = ()

    def trials_of(self, capability: tuple[int, int]) -> list[str]:
        """Those that a chip has: all are Hopper's."""
        return list(self.trials) if capability == (9, 0) else []

    @property
    def torch_dtype(self) -> torch.dtype:
        """torch's name of the dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


# Independent roundings of both operands of each product to 11 bits: at most sqrt(2) * 2**-11 of a result's norm. Half
# types round the result alone, by at most 2**-11 and 2**-8. What tensor cores lose by truncating sums was measured by
# others, at some 1e-6 over thousands of products.
KINDS = {
    "float16": Kind("float16", {}, False, 2**-11, ("wgmma",)), "float32": Kind("float32", {}, False, 1e-6),
    "tf32": Kind("float32", {"allow_tf32": True}, True, math.sqrt(2) * 2**-11),
    "float64": Kind("float64", {}, False, 1e-13),
    "bfloat16": Kind("bfloat16", {}, False, 2**-8, ("wgmma",)),
    "tf32x3": Kind("float32", {"algorithm": "tf32x3"}, False, 1e-6),
}
# What is aimed at: geometric means of torch's time over pyconv's on an H200.
RESNET, TINY = (GPU_NETWORKS[key].name for key in ("resnet50", "tiny"))
TARGETS = {"float16": 0.7, "bfloat16": 0.7, "tf32": 0.7, "float32": 0.9, "float64": 1.5}
TRIAL_TARGETS = {"wgmma": 0.9}
DEPTHWISE_TARGET, TINY_TARGET = 1.5, 1.0
# An H200's published rates, in flop and bytes per second: for --dry alone.
PUBLISHED = {"float32": 67e12, "tf32": 495e12, "tf32x3": 165e12, "float64": 67e12, "float16": 990e12,
             "bfloat16": 990e12, "bandwidth": 4.8e12}
LIBRARIES = ("torch", "pyconv")
CACHED_BYTES, MOST_COPIES = 3 * 60e6, 24  # three times the H200's second cache


def default_networks() -> list[str]:
    """All but those whose layers are much like others', and what stands beside the networks."""
    return [name for name in GPU_NETWORKS if name not in ("batch1", "mobilenet_v2", "others", "vgg16")]


# The rows


def copies_for(size: int) -> int:
    """How many sets of operands of so many bytes are used in turn, so that none is found in the cache."""
    return max(1, min(MOST_COPIES, math.ceil(CACHED_BYTES / max(size, 1))))


def calls_on(
    layer: Layer, map_name: str, kind: Kind, arrays: Any, trials: Sequence[str], new: Callable[[Any], Any] | None
) -> list[Any]:
    """torch's call on these operands, pyconv's, and those of trials; new: as for pyconv_call."""
    algorithms = [kind.options, *({**kind.options, "algorithm": name} for name in trials)]
    return [harness.torch_call(layer, map_name, *arrays),
            *(harness.pyconv_call(layer, map_name, *arrays, new=new, **options) for options in algorithms)]


def checked(
    layer: Layer, map_name: str, kind: Kind, sets: list[Any], turned: list[Any], trials: Sequence[str] = ()
) -> list[list[float]]:
    """The errors of torch, pyconv and trials, in C order and, where there is such an order, channels last."""
    with device.precision(False, False):
        reference = harness.torch_call(layer, map_name, *(array.double() for array in sets[0]))()
    with device.precision(kind.tf32, True):
        return [[harness.relative_error(call(), reference)
                 for call in calls_on(layer, map_name, kind, arrays, trials, poisoned)]
                for arrays in (sets[0], *turned[:1])]


def poisoned(like: torch.Tensor) -> torch.Tensor:
    """A tensor that must be written: new memory may still hold torch's result, which is right."""
    return torch.full_like(like, math.nan)


def calls_of(
    layer: Layer, map_name: str, kind: Kind, sets: list[Any], turned: list[Any], trials: Sequence[str]
) -> list[list[Any]]:
    """The calls of torch, pyconv and trials in C order, then channels last; each uses its sets of operands in turn."""
    orders = [(sets, None), (turned, torch.empty_like)]
    return [[device.rotating(turn) for turn in zip(*(
        calls_on(layer, map_name, kind, arrays, trials, new) for arrays in given))] for given, new in orders if given]


def time_row(
    seconds: float, limits: dict[str, float], network: Network, layer: Layer, map_name: str, dtype: str
) -> dict[str, Any] | None:
    """Check one layer's map against float64, time it, and return the row as data."""
    kind = KINDS[dtype]
    first = harness.operands(layer, network.batch, kind.torch_dtype, "cuda")
    count = 1 if network.name == TINY else copies_for(sum(array.nbytes for array in first))
    sets = [first, *([array.clone() for array in first] for _ in range(count - 1))]
    turned = [arrays for arrays in (harness.channels_last(layer, arrays) for arrays in sets) if arrays is not None]
    trials = kind.trials_of(torch.cuda.get_device_capability())
    errors = checked(layer, map_name, kind, sets, turned, trials)
    calls = calls_of(layer, map_name, kind, sets, turned, trials)
    more = {}
    with device.precision(kind.tf32, True):
        in_turn = [call for order in calls for call in order]
        if network.name == TINY:
            found, spreads, samples = device.interleaved(in_turn, seconds, device.timed_by_host)
            more = {f"{name}_graph_seconds": device.graph_seconds(call) for name, call in zip(LIBRARIES, in_turn)}
        else:
            found, spreads, samples = device.interleaved(in_turn, seconds)
        kernels = device.launches(in_turn[1])
    medians = [found[at:at + len(calls[0])] for at in range(0, len(found), len(calls[0]))]
    return {
        **harness.named(network, layer, map_name, dtype), "depthwise": is_depthwise(layer),
        "timed": "call" if network.name == TINY else "device", "samples": samples, "kernels": kernels, **more,
        **ratios(medians, spreads), **shares(layer, network.batch, kind, medians[0][1], limits, dtype),
        "torch_error": errors[0][0], "pyconv_error": max(order[1] for order in errors),
        "trials": of_trials(trials, medians, errors), "right": all(is_right(order, kind) for order in errors),
    }


def of_trials(
    trials: Sequence[str], medians: list[list[float]], errors: list[list[float]]
) -> dict[str, dict[str, float | None]]:
    """Of each trial its seconds in both orders, where both were timed, and its greatest error."""
    return {name: {"seconds": medians[0][place], "error": max(order[place] for order in errors),
                   "channels_last_seconds": medians[1][place] if len(medians) > 1 else None}
            for place, name in enumerate(trials, 2)}


def is_depthwise(layer: Layer) -> bool:
    """Whether each channel is convolved by itself."""
    return layer.groups == layer.in_channels > 1


def is_right(errors: Sequence[float], kind: Kind) -> bool:
    """Whether all errors but torch's, the first, are in the limit or at most one and a half times that; no NaN is."""
    return all(error <= max(kind.error_limit, 1.5 * errors[0]) for error in errors[1:])


def ratios(medians: list[list[float]], spreads: list[list[float]]) -> dict[str, Any]:
    """Times and ratios of a row: torch, pyconv, and both with the channels last where that was timed."""
    (torch_seconds, seconds, *_), turned = medians[0], medians[1] if len(medians) > 1 else None
    return {
        "torch_seconds": torch_seconds, "pyconv_seconds": seconds, "ratio": torch_seconds / seconds,
        "torch_channels_last_seconds": turned and turned[0], "pyconv_channels_last_seconds": turned and turned[1],
        "ratio_channels_last": turned and turned[0] / turned[1],
        "torch_quartiles": spreads[0], "pyconv_quartiles": spreads[1],
    }


def shares(
    layer: Layer, batch: int, kind: Kind, seconds: float, limits: dict[str, float], dtype: str
) -> dict[str, Any]:
    """Of the peak and of the bound."""
    itemsize = kind.torch_dtype.itemsize
    bound, bound_by = harness.bound_of(layer, batch, itemsize, limits[dtype], limits["bandwidth"])
    return {"bound_seconds": bound, "bound_by": bound_by, "share_of_bound": bound / seconds,
            "share_of_peak": layer.flop(batch) / limits[dtype] / seconds}


HEADING = (f"{'layer':32} {'map':11} {'torch cl':>9} {'pyconv cl':>9} {'ratio':>5} {'torch':>9} {'pyconv':>9} "
           f"{'ratio':>5} {'peak':>4} {'bound':>9} {'error':>7}")


def row_text(row: dict[str, Any]) -> str:
    """One line of the table."""
    turned, plain = ((row[f"torch{order}_seconds"], row[f"pyconv{order}_seconds"]) for order in ("_channels_last", ""))
    last = "" if row["ratio_channels_last"] is None else f"{row['ratio_channels_last']:.2f}"
    bound = f"{100 * row['share_of_bound']:.0f}% {row['bound_by'][:5]}"
    last_times, times = (" ".join(f"{duration(time):>9}" for time in pair) for pair in (turned, plain))
    return (f"{harness.label_of(row):32} {row['map']:11} {last_times} {last:>5} {times} {row['ratio']:5.2f} "
            f"{100 * row['share_of_peak']:3.0f}% {bound:>9} {row['pyconv_error']:7.1e}{'' if row['right'] else ' !'}")


def guarded(failures: list[str], row: Any, *work: Any) -> dict[str, Any] | None:
    """The row, or None where it raises, which is written down; a device that fails altogether ends the run."""
    try:
        return row(*work)
    except Exception as error:  # the other rows are still worth having
        network, layer, map_name, dtype = work
        failures.append(f"{network.name}, {layer}, {map_name}, {dtype}: {type(error).__name__}: {error}")
        print(f"failed: {failures[-1]}", file=sys.stderr)
    torch.cuda.empty_cache()
    torch.cuda.synchronize()  # raises where the context is gone
    return None


# The means


def turned_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that were timed with the channels last, in the place of the others."""
    return [
        {**row, "ratio": row["ratio_channels_last"], "torch_seconds": row["torch_channels_last_seconds"],
         "pyconv_seconds": row["pyconv_channels_last_seconds"],
         "share_of_bound": row["bound_seconds"] / row["pyconv_channels_last_seconds"]}
        for row in rows if row["ratio_channels_last"] is not None
    ]


def aims(row: dict[str, Any]) -> Iterator[tuple[str, float, float, float | None]]:
    """(what a target is set for, the target, torch's time over pyconv's, that with the channels last) of a row."""
    ratios = row["ratio"], row["ratio_channels_last"]
    if row["network"] == RESNET and row["dtype"] in TARGETS:
        yield RESNET, TARGETS[row["dtype"]], *ratios
        for name, trial in row["trials"].items():
            if name in TRIAL_TARGETS:
                last = trial["channels_last_seconds"]
                yield (f"{RESNET}, {name}", TRIAL_TARGETS[name], row["torch_seconds"] / trial["seconds"],
                       last and row["torch_channels_last_seconds"] / last)
    elif row["network"] == TINY:
        yield TINY, TINY_TARGET, *ratios
    if row["depthwise"] and row["network"] != TINY:
        yield "depthwise", DEPTHWISE_TARGET, *ratios


def means_of(pairs: Sequence[tuple[float, float | None]]) -> dict[str, Any]:
    """Geometric means of ratios in C order and with the channels last, None where there are none."""
    turned = [last for _, last in pairs if last is not None]
    return {"layers": len(pairs), "mean": statistics.geometric_mean(first for first, _ in pairs),
            "mean_channels_last": statistics.geometric_mean(turned) if turned else None}


def verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means over what a target is set for, beside the target, which must be met in both orders of arrays."""
    groups: dict[tuple[str, str, str, float], list[tuple[float, float | None]]] = {}
    for row in rows:
        for what, target, *pair in aims(row):
            groups.setdefault((what, row["dtype"], row["map"], target), []).append((pair[0], pair[1]))
    found = []
    for (what, dtype, map_name, target), pairs in groups.items():
        means = means_of(pairs)
        met = all(means[key] is None or means[key] >= target for key in ("mean", "mean_channels_last"))
        found.append({"what": what, "dtype": dtype, "map": map_name, "target": target, **means, "met": met})
    return found


def verdicts_text(found: list[dict[str, Any]]) -> str:
    """The targets as a table."""
    lines = [f"{'targets: torch / pyconv':26} {'dtype':9} {'map':11} {'layers':>6} {'NCHW':>6} {'cl':>6} {'target':>6}"]
    for entry in found:
        lines.append(f"{entry['what']:26} {entry['dtype']:9} {entry['map']:11} {means_text(entry)} "
                     f"{entry['target']:6.2f} {'met' if entry['met'] else 'missed'}")
    return "\n".join(lines)


def means_text(entry: dict[str, Any]) -> str:
    """How many layers, and the means in both orders."""
    last = "" if entry["mean_channels_last"] is None else f"{entry['mean_channels_last']:.2f}"
    return f"{entry['layers']:6} {entry['mean']:6.2f} {last:>6}"


def trial_means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Geometric means of the time of what pyconv chooses over that of an algorithm on trial: above 1 that is faster."""
    groups: dict[tuple[str, str, str, str], list[tuple[float, float | None]]] = {}
    for row in rows:
        for name, trial in row["trials"].items():
            last = trial["channels_last_seconds"]
            groups.setdefault((row["network"], row["dtype"], name, row["map"]), []).append((
                row["pyconv_seconds"] / trial["seconds"], last and row["pyconv_channels_last_seconds"] / last))
    return [{"network": network, "dtype": dtype, "algorithm": name, "map": map_name, **means_of(pairs)}
            for (network, dtype, name, map_name), pairs in groups.items()]


def trials_text(found: list[dict[str, Any]]) -> str:
    """The trials as a table."""
    lines = [f"{'trials: pyconv / trial':24} {'dtype':9} {'algorithm':9} {'map':11} {'layers':>6} "
             f"{'NCHW':>6} {'cl':>6}"]
    return "\n".join(lines + [f"{entry['network']:24} {entry['dtype']:9} {entry['algorithm']:9} {entry['map']:11} "
                              f"{means_text(entry)}" for entry in found])


def limits_text(limits: dict[str, float]) -> str:
    """The peaks, readable."""
    rates = [f"{limits[name] / 1e12:.1f} Tflop/s {name}" for name in KINDS]
    return ", ".join([*rates, f"{limits['bandwidth'] / 1e12:.2f} TB/s"])


def overhead_text(found: dict[str, Any]) -> str:
    """The host's time for a call, by who is called."""
    lines = [f"the host's time for a tiny forward of {len(found['kernels'])} kernels ({', '.join(found['kernels'])}):"]
    return "\n".join(lines + [f"    {name:30} {time:7.1f} µs" for name, time in found["microseconds"].items()])
