"""Times what each control adds to a measurement: ``python -m benchmarks.controls --run runs/demo``.

The same windows are measured with more and more controls, in turn and several times, in one process. The first stage is the real
context alone, with every selector of the configuration; each further stage adds one control. Prints medians, their spread, and
the cost of each stage in multiples of the first. Of a selector's k = 1 the labels drawn in place of the target cost no forward
pass of their own: the losses of all labels are read from the same predictions. Larger sets J_k are chosen anew for each label and
cost one each.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.results import mistakes_in_one_line
from benchmarks.timing import timed_in_turn
from olmo_sparsity.config import Config, InfluenceConfig
from olmo_sparsity.config.files import load_config
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import batches_of_contexts, measure_context, measure_windows
from olmo_sparsity.measure.setup.opened_model import open_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.records.selectors import CONTROLS
from olmo_sparsity.text.null_contexts import draw_null_contexts

Stage = Callable[[], object]


def stages(
    evaluator: Evaluator, batches: dict[str, WindowBatch], *, settings: InfluenceConfig, draws: int
) -> dict[str, Stage]:
    """Return the stages by name, each with everything that the one before it measures.

    Args:
        evaluator: the model.
        batches: the same windows under every context.
        settings: which selectors and k.
        draws: labels drawn in place of the target in the last stage.
    """

    def real_context(measured: InfluenceConfig) -> None:
        log_p_short_WV = short_log_probs(evaluator, batches["real"].tokens_WT)
        predictions = Predictions(
            evaluator,
            batches["real"],
            log_p_short_WV=log_p_short_WV,
            num_lasso_masks=measured.lasso_masks,
            with_kl=True,
        )
        measure_context(WindowScores(predictions, max_k=max(measured.k)), measured)

    def with_null_context(num_draws: int) -> None:
        measured = dataclasses.replace(settings, resampled_draws=num_draws)
        measure_windows(evaluator, batches, settings=measured, train_len=None)

    blind = [name for name in settings.selectors if name not in CONTROLS]
    without_blind = dataclasses.replace(settings, selectors=blind)
    return {
        "real context, without random and nearest": partial(real_context, without_blind),
        "+ random and nearest": partial(real_context, settings),
        "+ null context, mimicry floor, exact optimism at k = 1": partial(with_null_context, 0),
        **{f"+ resampled target, {i} of {draws}": partial(with_null_context, i) for i in range(1, draws + 1)},
    }


def time_stages(calls: dict[str, Stage], *, repeats: int, device: torch.device) -> dict[str, list[float]]:
    """Return the seconds of each stage, every repeat; the stages run in turn, once more before to warm up."""
    for call in calls.values():
        call()
    return timed_in_turn(calls, repeats=repeats, device=device)


def table_of(seconds: dict[str, list[float]], title: str) -> Table:
    """Return the table of stages: medians, spread, and multiples of the first stage."""
    table = Table("what is measured", "median s", "min - max", "times the first", "added", title=title)
    first = previous = median(next(iter(seconds.values())))
    for name, values in seconds.items():
        middle = median(values)
        table.add_row(
            name,
            f"{middle:.3f}",
            f"{min(values):.3f} - {max(values):.3f}",
            f"{middle / first:.2f}",
            f"{(middle - previous) / first:+.2f}",
        )
        previous = middle
    return table


@mistakes_in_one_line()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/demo"), help="a trained run")
    parser.add_argument("--num-windows", type=int, default=256, help="windows in each call")
    parser.add_argument("--repeats", type=int, default=7, help="how often each stage is timed")
    arguments = parser.parse_args()
    config: Config = load_config(
        arguments.run / "config.yaml", [f"influence.num_windows={arguments.num_windows}", "influence.k=[1,2,4,8]"]
    )
    settings, lengths = config.influence, config.measured_lengths
    opened = open_model(config, arguments.run)
    windows = opened.windows(config.influence)
    null_contexts = draw_null_contexts(windows, lengths.num_long_range, kind=settings.null_context, seed=settings.seed)
    window_ids_W = np.arange(len(windows))
    batches = batches_of_contexts(
        null_contexts, window_ids_W, seed=settings.seed, device=opened.device, tokenizer=opened.tokenizer
    )
    calls = stages(opened.evaluator(settings), batches, settings=settings, draws=max(1, settings.resampled_draws))
    seconds = time_stages(calls, repeats=arguments.repeats, device=opened.device)
    title = (
        f"{arguments.run.name}: {len(windows)} windows, L {lengths.local_len}, M {lengths.num_long_range}, k 1, 2, 4, 8"
    )
    console = Console(width=120)
    console.print(f"{device_name(opened.device)}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    console.print(f"selectors: {', '.join(settings.selectors)}")
    console.print(table_of(seconds, title))


if __name__ == "__main__":
    main()
