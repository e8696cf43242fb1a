"""The summary of a model that was trained with several seeds: means over the seeds, and each seed beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import bounded, estimates_of_model
from olmo_sparsity.statistics.several.comparison import HEADLINE
from olmo_sparsity.statistics.several.subjects import same_windows, warn_of_sources
from olmo_sparsity.statistics.several.trained_models import TrainedModel, same_model
from olmo_sparsity.statistics.single.measurement import SAME_WINDOWS, Measurement, load
from olmo_sparsity.statistics.single.summary import (
    QUANTITIES,
    SELECTION_QUANTITIES,
    WINDOW_QUANTITIES,
    SelectionSummary,
    Summary,
    summarize,
    summary_of_numbers,
)
from olmo_sparsity.statistics.single.sums import (
    BASELINES,
    Key,
    SelectionNumber,
    gain_from,
    gains_from_baselines,
    quantities_of,
    sums_by_unit,
)
from olmo_sparsity.tables.reading import list_finished, newest_finished, read_manifest

# Keys of the section ``influence`` that no number depends on.
EXECUTION_KEYS = ("path", "batch_tokens", "windows_per_part")
# The range that the interval of a quantity does not leave, by its name; the correlation is that of Figure 4.
RANGES = {
    **{name: (quantity.least, quantity.most) for name, quantity in QUANTITIES.items()},
    "correlation": (-1.0, 1.0),
}


@dataclass(frozen=True)
class SeedSummary:
    """The numbers of a model over the seeds of its training.

    Attributes:
        model: its runs and their seeds.
        tables: the influence folder of each run.
        mean: the numbers of the mean model, with intervals that include the seed (``statistics.intervals.seeds``); the gates
            follow from them. Of a model with one seed, the numbers of that run.
        of_seeds: the numbers of each run.
    """

    model: TrainedModel
    tables: tuple[Path, ...]
    mean: Summary
    of_seeds: tuple[Summary, ...]

    @property
    def num_seeds(self) -> int:
        """Number of seeds."""
        return len(self.of_seeds)


@dataclass(frozen=True)
class SeedRow:
    """One number of a model.

    Attributes:
        words: the number and its unit, for readers.
        quantity: its name.
        selector: the selector; None for a number of all windows.
        context: the context; None for a number of all windows.
        k: number of unmasked tokens; None for a number of all windows.
        mean: the mean over the seeds; None where there is none, such as R(k) where the gate did not pass.
        of_seeds: the number of each seed.
    """

    words: str
    quantity: str
    selector: Optional[str]
    context: Optional[str]
    k: Optional[int]
    mean: Optional[Estimate]
    of_seeds: tuple[Optional[Estimate], ...]


def seed_rows(numbers: SeedSummary, *, every: bool) -> list[SeedRow]:
    """Return the rows of a table over the seeds.

    These are the numbers of all windows; of selectors that do not see the target R(k) and the gain over random; of selectors that
    see it the corrected gain.

    Args:
        numbers: of the model.
        every: also give every k, not only the shown ones, and D(k) with what belongs beside it: that of `random`
            and under the null context.
    """
    mean = numbers.mean
    summaries = (mean, *numbers.of_seeds)
    rows = []
    for name, quantity in WINDOW_QUANTITIES.items():
        if quantity.is_compared and (name != "gain_beyond_nats" or mean.beyond_gate != "not-applicable"):
            values = [summary.of_windows(name) for summary in summaries]
            rows.append(SeedRow(quantity.header, name, None, None, None, values[0], tuple(values[1:])))
    for selection in mean.selections:
        if every or selection.k in mean.shown_ks:
            rows += _rows_of_selection(selection, numbers.of_seeds, every=every)
    return rows


def _rows_of_selection(selection: SelectionSummary, of_seeds: Sequence[Summary], *, every: bool) -> list[SeedRow]:
    names = {}
    if selection.context == "real":
        names = {name: SELECTION_QUANTITIES[name].header for name in HEADLINE[selection.info.sees_target]}
    if every:
        names["prediction_recovered"] = "D(k)" + ("" if selection.context == "real" else f", {selection.context}")
    return [
        SeedRow(
            words,
            name,
            selector=selection.selector,
            context=selection.context,
            k=selection.k,
            mean=selection.estimate(name),
            of_seeds=tuple(summary.at(*selection.key).estimate(name) for summary in of_seeds),
        )
        for name, words in names.items()
        if (selection.selector, name) != ("random", "gain_over_random_nats")
    ]


def summarize_seeds(model: TrainedModel, tables: Sequence[Path], *, measurements: Sequence[Measurement]) -> SeedSummary:
    """Return the numbers of a model from the measurements of its runs.

    Args:
        model: its runs.
        tables: the influence folder of each.
        measurements: what they hold; all of the same windows, selectors and k.

    Raises:
        UserError: the measurements are not of the same windows, selectors and k.
    """
    first = measurements[0]
    for run, other in zip(model.runs[1:], measurements[1:], strict=True):
        if not same_windows(first, other) or first.keys != other.keys:
            raise UserError(
                f"{model.runs[0]} and {run} were not measured on the same windows with the same selectors and k; measure both "
                "with the same options of `olmo-sparsity influence`"
            )
    of_seeds = tuple(summarize(measurement) for measurement in measurements)
    mean = of_seeds[0]
    if len(of_seeds) > 1:
        mean = summary_of_numbers(first, _numbers_of_mean(measurements))
        mean = replace(
            mean,
            overlap_percent=_mean_overlap(of_seeds),
            selections=tuple(_with_mean_tokens(entry, of_seeds) for entry in mean.selections),
        )
    return SeedSummary(model, tuple(tables), mean, of_seeds)


def _mean_overlap(of_seeds: Sequence[Summary]) -> Optional[float]:
    """Return the mean share of windows that share text with training; None where it is not known of some seed."""
    shares = [summary.overlap_percent for summary in of_seeds]
    return None if None in shares else float(np.mean(np.array(shares, dtype=np.float64)))


def _with_mean_tokens(entry: SelectionSummary, of_seeds: Sequence[Summary]) -> SelectionSummary:
    """Return an entry of the mean model with the mean number of tokens of the seeds, each of which has its own choice."""
    return replace(entry, mean_tokens=float(np.mean([of.at(*entry.key).mean_tokens for of in of_seeds])))


def _numbers_of_mean(measurements: Sequence[Measurement]) -> dict[Key, Optional[Estimate]]:
    """Return the numbers of the mean model.

    Seeds may differ in one of the two losses of a gate and agree in the lower one. The interval of the gain from the lower one
    does not show that, so its lower end is the lowest of those from either loss: a gate passes only where it would with both.
    """
    numbers = estimates_of_model(
        [sums_by_unit(measurement) for measurement in measurements],
        lambda totals: quantities_of(totals, measurements[0].keys) | gains_from_baselines(totals),
    )
    for name, losses in BASELINES.items():
        of_baselines = [number for loss in losses if (number := numbers.get(gain_from(loss))) is not None]
        lows = [number.low for number in of_baselines if number.low is not None]
        gain = numbers.get(name)
        if gain is not None and gain.low is not None:
            numbers[name] = replace(gain, low=min(gain.low, *lows))
    for key, number in numbers.items():
        ends = RANGES.get(key.name if isinstance(key, SelectionNumber) else key)
        if ends is not None and number is not None:
            numbers[key] = bounded(number, least=ends[0], most=ends[1])
    return numbers


def read_seeds(runs: Sequence[Path]) -> SeedSummary:
    """Read the newest measurement that all runs of one model have, and summarize it.

    Raises:
        UserError: the runs differ in more than the seed of training, or have no measurement with the same settings.
    """
    model = same_model(runs)
    tables = _matching_tables(model.runs)
    measurements = [load(folder) for folder in tables]
    warn_of_sources(dict(zip(tables, measurements, strict=True)))
    return summarize_seeds(model, tables, measurements=measurements)


def _settings(tables: Path) -> Any:
    """Return what must be equal for measurements of several seeds to be one: text, windows, settings, training steps."""
    manifest = read_manifest(tables)
    influence = {key: value for key, value in manifest["influence"].items() if key not in EXECUTION_KEYS}
    return (
        influence,
        [manifest.get("visibility", "hidden"), manifest.get("anchor")],
        {name: entry["sha256"] for name, entry in manifest.get("own_selectors", {}).items()},
        manifest["checkpoint"]["step"],
        [manifest[key] for key in (*SAME_WINDOWS, "context")],
    )


def _matching_tables(runs: Sequence[Path]) -> list[Path]:
    """Return a folder of each run: the newest one of the first run, and those of the others with the same settings."""
    newest_finished(runs[0])  # says that nothing was measured
    for tables in reversed(list_finished(runs[0])):
        settings = _settings(tables)
        others = [
            next((folder for folder in reversed(list_finished(run)) if _settings(folder) == settings), None)
            for run in runs[1:]
        ]
        found = [folder for folder in others if folder is not None]
        if len(found) == len(others):
            return [tables, *found]
    raise UserError(
        f"{', '.join(map(str, runs))}: these runs have no measurement with the same windows and settings; measure each with "
        "the same options of `olmo-sparsity influence`"
    )
