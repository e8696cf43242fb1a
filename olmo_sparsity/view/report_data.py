"""What the report shows: the numbers and windows of a measurement, and the JSON that the page's scripts draw."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.errors import printable
from olmo_sparsity.records.selectors import MAIN_SELECTORS, SELECTORS, in_legend_order
from olmo_sparsity.statistics.breakdowns import ClassSummary, DistanceShares, by_class, by_distance, has_log_distances
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.model_setup import subject_name
from olmo_sparsity.statistics.summary import SelectionSummary, Summary, summarize
from olmo_sparsity.text.target_classes import CLASSES
from olmo_sparsity.view.as_json import (
    Json,
    class_json,
    definition_columns,
    distance_json,
    selection_json,
    summary_json,
)
from olmo_sparsity.view.excerpts import (
    Choice,
    Excerpt,
    choose_windows,
    read_excerpts,
    shown_first,
)
from olmo_sparsity.wording.captions import NO_PREDICTION
from olmo_sparsity.wording.gates import fragile_words, no_fraction_sentence, no_fraction_words
from olmo_sparsity.wording.units import unit_words

NUM_WINDOWS = 200
NUM_LARGEST = 10
SEED = 0
MAX_SCORES = 1_000_000  # with more numbers than this, the page holds only the scores of the chosen positions
SCORE_STEPS = 99


@dataclass(frozen=True)
class Report:
    """What the report page shows of a measurement.

    Attributes:
        measurement: its numbers, window by window.
        summary: its numbers over all windows.
        classes: the same by class of the target; without recovered fractions where the gate of all windows failed.
        distances: where the chosen tokens lie.
        sample: a random sample of the windows, or all of them.
        largest: the windows with the largest long gains that are not in the sample; empty if the sample is all windows.
        seed: of the sample.
    """

    measurement: Measurement
    summary: Summary
    classes: list[ClassSummary]
    distances: list[DistanceShares]
    sample: list[Excerpt]
    largest: list[Excerpt]
    seed: int

    @property
    def has_all_windows(self) -> bool:
        """True if the sample is all windows."""
        return len(self.sample) == self.summary.num_windows

    @property
    def has_all_scores(self) -> bool:
        """True if the page holds the scores of all positions, False if only those of the chosen ones."""
        num_windows, num_choices = len(self.sample) + len(self.largest), 2 * len(self.measurement.selectors)
        return num_windows * num_choices * self.summary.lengths.num_long_range <= MAX_SCORES


def read_report(tables: Path, *, num_windows: int = NUM_WINDOWS, seed: int = SEED) -> Report:
    """Read what the report shows from a finished influence folder.

    Args:
        tables: the folder.
        num_windows: windows to show; all, if there are no more.
        seed: of the random sample, if there are more.
    """
    measurement = load(tables)
    summary = summarize(measurement)
    sample, largest = choose_windows(measurement, num_windows, num_largest=NUM_LARGEST, seed=seed)
    excerpts = read_excerpts(tables, sample + largest)
    return Report(
        measurement=measurement,
        summary=summary,
        classes=by_class(measurement, summary),
        distances=by_distance(tables, measurement),
        sample=excerpts[: len(sample)],
        largest=excerpts[len(sample) :],
        seed=seed,
    )


def page_json(report: Report) -> Json:
    """Return the JSON that the page's scripts draw."""
    measurement, summary = report.measurement, report.summary
    one, units = unit_words(summary.unit, 1), unit_words(summary.unit)
    weight_of = dict(zip(measurement.windows["window_id"].tolist(), measurement.weights_W.tolist(), strict=True))
    windows = [
        {
            **_window_json(excerpt, group, all_scores=report.has_all_scores),
            "weight": float(f"{weight_of[excerpt.window_id]:.4g}"),
        }
        for group, excerpts in (("sample", report.sample), ("largest", report.largest))
        for excerpt in excerpts
    ]
    return {
        "subject": subject_name(summary.run, summary.setup),
        "summary": {
            **summary_json(summary),
            "no_fraction": no_fraction_words(summary.long_gain_nats),
            "selections": [_selection_json(e) for e in summary.selections],
        },
        "definition": definition_columns(summary),
        "classes": [_class_json(entry, summary) for entry in report.classes],
        "distances": [distance_json(shares) for shares in report.distances],
        "selectors": [
            {
                "name": name,
                "sees_target": measurement.selectors[name].sees_target,
                "num_evaluations": measurement.selectors[name].num_evaluations,
                "control": SELECTORS[name].is_control,
                "words": SELECTORS[name].meaning.format(unit=one, units=units),
            }
            for name in in_legend_order(measurement.selectors)
        ],
        "log_distances": has_log_distances(summary.lengths),
        "main_selectors": list(MAIN_SELECTORS),
        "class_words": {name: CLASSES.get(name, "") for name in sorted(measurement.windows["target_class"].unique())},
        # The selector whose choice among foreign tokens is the mimicry floor of D(k).
        "imitators": {
            name: summary.prediction_recovered(name, summary.end_ks[-1]).mimicry_selector
            for name in measurement.selectors
        },
        "words": {
            "no_fraction": no_fraction_sentence(summary.long_gain_nats),
            "no_prediction": NO_PREDICTION,
            "fragile": fragile_words(summary),
        },
        "units": {"one": one, "many": units},
        "ks": measurement.ks,
        "first_k": summary.end_ks[-1],
        "shown_first": shown_first(measurement),
        "score_steps": SCORE_STEPS,
        "all_scores": report.has_all_scores,
        "sample": {
            "seed": report.seed,
            "num_sample": len(report.sample),
            "num_largest": len(report.largest),
            "all": report.has_all_windows,
        },
        "windows": windows,
    }


def _selection_json(selection: SelectionSummary) -> Json:
    """The page has the cost of a selector once, in ``selectors``."""
    return {key: value for key, value in selection_json(selection).items() if key != "num_evaluations"}


def _class_json(entry: ClassSummary, whole: Summary) -> Json:
    """The page draws no effective sparsity and no Figure 4 of a class.

    Where the gate of all windows failed, no class has an R(k).
    """
    selections = [_selection_json(selection) for selection in entry.summary.selections]
    for selection in selections:
        del selection["figure4"]
    reason = no_fraction_words((entry.summary if whole.gate_passed else whole).long_gain_nats)
    return {**class_json(entry), "no_fraction": reason, "selections": selections, "effective_sparsity": None}


def _window_json(excerpt: Excerpt, group: str, *, all_scores: bool) -> Json:
    """``group``: ``sample`` or ``largest``."""
    selections: dict[str, Any] = {}
    for (selector, context), choice in excerpt.selections.items():
        selections.setdefault(selector, {})[context] = {
            "positions": choice.positions,
            "ranks": choice.ranks,
            "loss": _rounded(choice.loss_sparse_nats),
            "gain": _rounded(choice.gain_sparse_nats),
            **_scores_json(choice, all_scores=all_scores),
        }
    for selector, luck in excerpt.luck_nats.items():
        selections[selector]["luck"] = _rounded(luck)
    losses = ("loss_short_nats", "loss_long_nats", "null_loss_long_nats", "gain_long_nats", "null_gain_long_nats")
    return {
        "id": excerpt.window_id,
        "doc": excerpt.doc_id,
        "source": printable(excerpt.source),
        "start": excerpt.start_token,
        "group": group,
        "class": excerpt.target_class,
        "tokens": [printable(text) for text in excerpt.token_texts],
        "null_tokens": [printable(text) for text in excerpt.null_token_texts],
        "null_doc": excerpt.null_doc_id,
        "target": printable(excerpt.target_text),
        **dict(zip(losses, _rounded(getattr(excerpt, name) for name in losses), strict=True)),
        "selections": selections,
    }


def _scores_json(choice: Choice, *, all_scores: bool) -> Json:
    """Return the scores in whole steps, of which ``SCORE_STEPS`` make ``score_scale``, the largest absolute score of the window.

    A score is None where screening or the page leaves it out.
    """
    scale, chosen = choice.largest_score, set(choice.positions)
    return {
        "scores": [
            round(score / scale * SCORE_STEPS) if score is not None and (all_scores or position in chosen) else None
            for position, score in enumerate(choice.scores)
        ],
        "score_scale": float(f"{scale:.3g}"),
    }


def _rounded(values: Iterable[Optional[float]], digits: int = 4) -> list[Optional[float]]:
    return [None if value is None or not math.isfinite(value) else round(value, digits) for value in values]
