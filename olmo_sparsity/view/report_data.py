"""What the report shows: the numbers and windows of a measurement, its tables, and the JSON that the page's scripts draw."""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Optional

from olmo_sparsity.errors import printable
from olmo_sparsity.records.selectors import SELECTORS, in_legend_order
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import CONTEXTS
from olmo_sparsity.statistics.single.summary import SelectionSummary
from olmo_sparsity.text.target_classes import CLASSES
from olmo_sparsity.view.as_json import Json, definition_columns, selection_json
from olmo_sparsity.view.excerpts import Choice, Excerpt, choose_windows, read_excerpts, shown_first
from olmo_sparsity.view.result_table import Item, ResultTable
from olmo_sparsity.view.summary_tables import (
    class_table,
    distance_table,
    every_selection_table,
    every_table,
    figure4_table,
    loss_table,
    screening_item,
    spectrum_table,
)
from olmo_sparsity.view.table_formats import csv_of
from olmo_sparsity.wording.gates import no_fraction_words
from olmo_sparsity.wording.tokens import token_words, unseen_words
from olmo_sparsity.wording.units import unit_words, units_of

NUM_WINDOWS = 200
NUM_LARGEST = 10
SEED = 0
MAX_SCORES = 1_000_000  # with more numbers than this, the page holds only the scores of the chosen positions
SCORE_STEPS = 99
OF_FIGURE4 = (
    "selector", "context", "k", "sees_target", "gain_sparse_nats", "recovered_fraction", "gain_over_random_nats",
    "excess_gain_nats", "optimism_nats", "corrected_gain_nats", "figure4",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What the report page shows of a measurement.

    Attributes:
        measured: its numbers.
        sample: a random sample of the windows, or all of them.
        largest: the windows with the largest long gains that are not in the sample; empty if the sample is all windows.
        seed: of the sample.
    """

    measured: Measured
    sample: list[Excerpt]
    largest: list[Excerpt]
    seed: int

    @property
    def has_all_windows(self) -> bool:
        """True if the sample is all windows."""
        return len(self.sample) == self.measured.summary.num_windows

    @property
    def has_all_scores(self) -> bool:
        """True if the page holds the scores of all positions, False if only those of the chosen ones."""
        num_windows, num_choices = len(self.sample) + len(self.largest), 2 * len(self.measured.measurement.selectors)
        return num_windows * num_choices * self.measured.summary.lengths.num_long_range <= MAX_SCORES


def read_report(measured: Measured, *, num_windows: int = NUM_WINDOWS, seed: int = SEED) -> Report:
    """Read the windows that the report shows of a measurement.

    Args:
        measured: its numbers.
        num_windows: windows to show; all, if there are no more.
        seed: of the random sample, if there are more.
    """
    sample, largest = choose_windows(measured.measurement, num_windows, num_largest=NUM_LARGEST, seed=seed)
    excerpts = read_excerpts(measured.tables, sample + largest)
    return Report(measured, excerpts[: len(sample)], excerpts[len(sample) :], seed)


def shown_tables(measured: Measured) -> dict[str, ResultTable]:
    """Return the tables behind the charts, by the names by which the page asks for them."""
    summary = measured.summary
    return {
        "every": every_selection_table(summary),
        "figure4": figure4_table(summary),
        "spectrum": spectrum_table(measured.spectra, summary),
        "classes": class_table(measured.classes, summary),
        "distances": distance_table([of for of in measured.distances if of.k == summary.end_ks[-1]]),
    }


def numbers_csv(measured: Measured) -> str:
    """Return every mean of the page with its interval, in the form of ``summary --csv``; that of each class and distance, too."""
    summary, classes = measured.summary, measured.classes
    of_screening = screening_item(measured, every=True)
    items: list[Item] = [
        loss_table(summary),
        *([] if of_screening is None else [of_screening]),
        *every_table(measured),
        *(replace(every_selection_table(of.summary), name=f"class {of.target_class}") for of in classes),
        distance_table(measured.distances),
    ]
    return csv_of(items, definition_columns(summary))


def page_json(report: Report) -> Json:
    """Return the JSON that the page's scripts draw."""
    measurement, summary = report.measured.measurement, report.measured.summary
    one, units, visibility = units_of(summary, 1), units_of(summary), summary.setup.visibility
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
        "summary": {
            "unit": summary.unit,
            "num_windows": summary.num_windows,
            "num_long_range": summary.lengths.num_long_range,
            "local_len": summary.lengths.local_len,
            "is_fragile": summary.is_fragile,
            "no_fraction": no_fraction_words(summary.gate),
            "selections": [_selection_json(of) for of in summary.selections if of.context in CONTEXTS],
        },
        "selectors": [
            {
                "name": name,
                "sees_target": measurement.selectors[name].sees_target,
                "control": SELECTORS[name].is_control,
                "words": SELECTORS[name].meaning.format(unit=one, units=units),
            }
            for name in in_legend_order(measurement.of_one_set)
        ],
        "class_words": {name: CLASSES.get(name, "") for name in sorted(measurement.windows["target_class"].unique())},
        "units": {"one": one, "many": units},
        "group_units": {"one": unit_words(summary.unit, "hidden", 1), "many": unit_words(summary.unit, "hidden")},
        "token_units": {"one": unit_words("token", visibility, 1), "many": unit_words("token", visibility)},
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
        "unseen": unseen_words(_texts_of(report)),
        "numbers": base64.b64encode(gzip.compress(numbers_csv(report.measured).encode(), mtime=0)).decode(),
    }


def _texts_of(report: Report) -> Iterator[str]:
    """Yield the texts of the tokens of all windows."""
    for excerpt in (*report.sample, *report.largest):
        yield from (*excerpt.token_texts, *excerpt.null_token_texts)


def _selection_json(selection: SelectionSummary) -> Json:
    """Return what Figure 4 says of a selection."""
    whole = selection_json(selection)
    return {name: whole[name] for name in OF_FIGURE4}


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
    for selector, optimism in excerpt.optimism_nats.items():
        selections[selector]["optimism"] = _rounded(optimism)
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
        "target": token_words(excerpt.target_text),
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


def _rounded(values: Iterable[Optional[float]]) -> list[Optional[float]]:
    return [None if value is None or not math.isfinite(value) else round(value, 4) for value in values]
