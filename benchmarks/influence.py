"""Times the influence engine against other tools and against the machine's peak, in one run: ``make bench``.

For each size of model, every method computes the loss of each single unmasking of the same windows, with the same threads
and weights, in turn and several times. Prints medians, their spread, ratios, and the share of the measured peak of a matrix
product; writes ``table.json`` and figures. With ``--run``, also reports what screening and bf16 change in the numbers of a
trained model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Optional

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.influence_methods import (
    SIZES,
    Method,
    Operations,
    count_operations,
    fastest_captum,
    make_problem,
    masked_definition,
    methods,
    random_model,
)
from benchmarks.influence_precision import compare_precisions, open_run
from benchmarks.results import check_results, mistakes_in_one_line
from benchmarks.timing import timed_in_turn
from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.losses import single_losses, target_losses
from olmo_sparsity.model.devices import device_name, has_bf16_units
from olmo_sparsity.model.olmo import OLMoWithPositions

PEAK_CUBE = {"cpu": 2048, "cuda": 8192}  # side of the matrices whose product gives the peak
SCALES = {"M": (16, 32, 64, 128, 256), "L": (16, 32, 64, 128, 256), "k": (1, 4, 16, 64), "windows": (1, 2, 4, 8)}
# The methods whose operations are counted: (which count, which peak).
COUNTED = {
    "compact, fp32": ("needed", "peak fp32"),
    "compact, bf16": ("needed", "peak bf16"),
    "plain, fp32": ("rows", "peak fp32"),
    "masked, fp32, all logits": ("masked", "peak fp32"),
}


@dataclass(frozen=True)
class Comparison:
    """All methods at one size.

    Attributes:
        size: name of the size.
        num_parameters: of the model.
        local_len: L.
        num_long_range: M.
        vocab_size: V.
        num_windows: W.
        batch_tokens: tokens of a forward pass.
        seconds: of each method, every repeat.
        difference_nats: of each method, the largest distance of a loss from the definition; None: not comparable.
        operations: of all single unmaskings.
        peak_per_second: operations per second of a large matrix product, by precision.
    """

    size: str
    num_parameters: int
    _: KW_ONLY
    local_len: int
    num_long_range: int
    vocab_size: int
    num_windows: int
    batch_tokens: int
    seconds: dict[str, list[float]]
    difference_nats: dict[str, Optional[float]]
    operations: Operations
    peak_per_second: dict[str, float]

    def share_of_peak(self, method: str) -> Optional[float]:
        """Return the share of the measured peak that a method reaches; None where its operations are not counted."""
        if method not in COUNTED:
            return None
        count, peak = COUNTED[method]
        return getattr(self.operations, count) / median(self.seconds[method]) / self.peak_per_second[peak]


@dataclass(frozen=True)
class Scaling:
    """Seconds against one length, and the exponent: the slope of their logarithms."""

    values: list[int]
    seconds: list[float]
    exponent: float


def _peaks(device: torch.device) -> dict[str, Method]:
    cube = PEAK_CUBE[device.type]
    wide = torch.randn(cube, cube, device=device)
    peaks: dict[str, Method] = {"peak fp32": lambda: wide @ wide}
    if has_bf16_units(device):
        low = wide.bfloat16()
        peaks["peak bf16"] = lambda: low @ low
    return peaks


def compare(name: str, device: torch.device, *, repeats: int, slow_peers: bool) -> Comparison:
    """Time every method at one size, interleaved, and compare its losses with the definition.

    Args:
        name: of the size.
        device: where to run.
        repeats: how often each method is timed.
        slow_peers: include the peers that take minutes.
    """
    size = SIZES[name]
    problem = make_problem(size, device)
    calls, peaks = methods(problem, slow_peers=slow_peers), _peaks(device)
    definition_WM = masked_definition(problem)
    difference_nats: dict[str, Optional[float]] = {}
    for method, call in calls.items():  # which also warms each method up
        losses = call()
        difference_nats[method] = None
        if isinstance(losses, torch.Tensor):
            known = ~losses.isnan()
            difference_nats[method] = float((losses - definition_WM.to(losses.device))[known].abs().max())
    seconds = timed_in_turn({**calls, **peaks}, repeats=repeats, device=device)
    return Comparison(
        name,
        sum(parameter.numel() for parameter in problem.olmo.parameters()),
        local_len=size.local_len,
        num_long_range=size.num_long_range,
        vocab_size=size.vocab_size,
        num_windows=size.num_windows,
        batch_tokens=problem.exact.batch_tokens,
        peak_per_second={key: 2 * PEAK_CUBE[device.type] ** 3 / median(seconds.pop(key)) for key in peaks},
        seconds=seconds,
        difference_nats=difference_nats,
        operations=count_operations(size),
    )


def comparison_table(comparison: Comparison) -> Table:
    """Return the table of one size, one row per method."""
    captum = fastest_captum(comparison.seconds)
    peaks = ", ".join(f"{key} {value / 1e9:,.0f} GFLOP/s" for key, value in comparison.peak_per_second.items())
    counts = dataclasses.asdict(comparison.operations)
    operations = ", ".join(f"{key} {value / 1e9:,.1f}" for key, value in counts.items())
    table = Table(
        "method", "median s", "min - max", "times the fastest captum", "share of peak", "max difference, nats",
        title=f"{comparison.size}: {comparison.num_parameters / 1e6:.1f}M parameters, L {comparison.local_len}, "
        f"M {comparison.num_long_range}, {comparison.num_windows} windows",
        caption=f"{peaks}; operations, GFLOP: {operations}; passes of {comparison.batch_tokens} tokens",
    )  # fmt: skip
    for method, seconds in comparison.seconds.items():
        share, difference = comparison.share_of_peak(method), comparison.difference_nats[method]
        table.add_row(
            method,
            f"{median(seconds):.3f}",
            f"{min(seconds):.3f} - {max(seconds):.3f}",
            f"{captum / median(seconds):.2f}",
            "-" if share is None else f"{share:.2f}",
            "another quantity" if difference is None else f"{difference:.1e}",
        )
    return table


def _scaling_call(name: str, value: int, *, model: OLMoWithPositions, vocab_size: int) -> Method:
    """Return a call that measures with one of M, L, k and the number of windows set to ``value``."""
    sizes = {"M": 64, "L": 64, "k": 1, "windows": 64 if name == "k" else 1, name: value}
    device, num_windows = model.transformer.wte.weight.device, sizes["windows"]
    tokens_WT = torch.randint(1, vocab_size, (num_windows, sizes["L"] + sizes["M"]), device=device)
    targets_W = tokens_WT[:, 0]
    evaluator = make_evaluator(model, InfluenceConfig(), full_len=tokens_WT.shape[1], local_len=sizes["L"])
    all_positions_WM = torch.arange(sizes["M"], device=device).expand(num_windows, -1)
    if name != "k":
        return partial(single_losses, evaluator, tokens_WT, targets_W=targets_W, candidates_WJ=all_positions_WM)
    return partial(
        target_losses,
        evaluator,
        tokens_WT,
        targets_W=targets_W,
        visible_WNS=all_positions_WM[:, None, :value],
    )


def measure_scaling(repeats: int, device: torch.device) -> dict[str, Scaling]:
    """Time the 5M model's single unmaskings against M, L and windows, and one set of k per window against k."""
    size = SIZES["5M"]
    model = random_model(size.model, size.vocab_size, full_len=512, device=device)
    results = {}
    for name, values in SCALES.items():
        calls = {value: _scaling_call(name, value, model=model, vocab_size=size.vocab_size) for value in values}
        for call in calls.values():
            call()
        times = timed_in_turn(calls, repeats=repeats, device=device)
        medians = [median(times[value]) for value in values]
        exponent = float(np.polyfit(np.log(values), np.log(medians), 1)[0])
        results[name] = Scaling(list(values), medians, exponent)
    return results


def draw_methods(comparisons: list[Comparison], path: Path) -> None:
    """Draw the methods, one panel per size."""
    figure, axes = plt.subplots(
        1, len(comparisons), figsize=(4.6 * len(comparisons), 3.6), layout="constrained", squeeze=False
    )
    for axis, comparison in zip(axes[0], comparisons, strict=True):
        seconds = comparison.seconds
        captum = fastest_captum(seconds)
        names = sorted(seconds, key=lambda name: -median(seconds[name]))
        medians = [median(seconds[name]) for name in names]
        low = [m - min(seconds[name]) for m, name in zip(medians, names, strict=True)]
        high = [max(seconds[name]) - m for m, name in zip(medians, names, strict=True)]
        colors = ["#0072B2" if name.startswith(("compact", "screened")) else "#999999" for name in names]
        axis.barh(names, medians, xerr=[low, high], color=colors, error_kw={"linewidth": 0.8})
        for i, value in enumerate(medians):
            axis.annotate(
                f"{captum / value:.1f}x",
                (value + high[i], i),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axis.set_xlim(0, 1.2 * max(map(max, seconds.values())))
        axis.set_xlabel("seconds (median, min to max)")
        axis.set_title(f"{comparison.size}: {comparison.num_parameters / 1e6:.1f}M parameters", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.suptitle(
        "All single unmaskings of the same windows; right of each bar: times as fast as captum with all logits, at its best",
        fontsize=9,
    )
    _save(figure, path)


def draw_scaling(scaling: dict[str, Scaling], path: Path) -> None:
    """Draw the cost against each length."""
    figure, axis = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
    looks = zip(("#0072B2", "#D55E00", "#009E73", "#CC79A7"), "osD^", strict=True)
    for (name, result), (color, marker) in zip(scaling.items(), looks, strict=True):
        label = f"{name}: exponent {result.exponent:.2f}"
        axis.loglog(result.values, result.seconds, marker=marker, color=color, label=label)
    axis.set_xlabel("M, L (the other 64), k, or windows (M = L = 64)")
    axis.set_ylabel("seconds")
    axis.legend(fontsize=7)
    axis.set_title("Cost of the 5M model's single unmaskings; for k: of 64 sets", fontsize=9)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    plt.close(figure)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", action="append", choices=SIZES, help="size of model, repeatable; default: all")
    parser.add_argument("--repeats", type=int, default=5, help="how often each method is timed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--run", type=Path, help="a trained run, for the recall of screening and the error of bf16")
    parser.add_argument("--num-windows", type=int, default=1000, help="windows of --run")
    parser.add_argument("--fast", action="store_true", help="skip what is slow: single captum passes, inseq, scaling")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of table and figures")
    return parser.parse_args()


@mistakes_in_one_line()
def main() -> None:
    arguments = _arguments()
    device = torch.device(arguments.device)
    console = Console(width=160)
    pictures = [f"{name}{suffix}" for name in ("methods", "scaling") for suffix in (".png", ".pdf")]
    check_results(arguments.out, "table.json", *pictures)
    opened = None
    if arguments.run is not None:  # before the timings, which take long
        threads = torch.get_num_threads()
        opened = open_run(arguments.run, arguments.num_windows)
        torch.set_num_threads(threads)  # a run may ask for others
    arguments.out.mkdir(parents=True, exist_ok=True)
    console.print(f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    if not has_bf16_units(device):
        console.print("this device has no units for bf16: methods in bf16 are not timed")
    comparisons = []
    for name in arguments.size or SIZES:
        comparisons.append(compare(name, device, repeats=arguments.repeats, slow_peers=not arguments.fast))
        console.print(comparison_table(comparisons[-1]))
    draw_methods(comparisons, arguments.out / "methods")
    scaling = None if arguments.fast else measure_scaling(arguments.repeats, device)
    if scaling is not None:
        exponents = ", ".join(f"{name}^{result.exponent:.2f}" for name, result in scaling.items())
        console.print(f"cost grows with {exponents}")
        draw_scaling(scaling, arguments.out / "scaling")
    trained = None if opened is None else compare_precisions(*opened)
    if trained is not None:
        console.print_json(json.dumps(trained))
    table = {
        "device": device_name(device),
        "sizes": [dataclasses.asdict(comparison) for comparison in comparisons],
        "scaling": None if scaling is None else {name: dataclasses.asdict(scaling[name]) for name in scaling},
        "trained": trained,
    }
    (arguments.out / "table.json").write_text(json.dumps(table, indent=2))
    console.print(f"{arguments.out}: table.json, methods.png{'' if scaling is None else ', scaling.png'}")


if __name__ == "__main__":
    main()
