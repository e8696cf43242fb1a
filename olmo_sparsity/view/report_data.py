"""What the report shows of a measurement: the numbers, the tables, and windows with the tokens that one selector chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from olmo_sparsity.errors import printable
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.view.excerpts import choose_windows, read_excerpts, shown_first
from olmo_sparsity.view.one_window import ShownWindow, shown_window
from olmo_sparsity.view.result_table import ResultTable
from olmo_sparsity.view.summary_tables import (
    class_table,
    distance_table,
    every_selection_table,
    figure4_table,
    spectrum_table,
)
from olmo_sparsity.wording.tokens import token_words

NUM_WINDOWS = 20
NUM_LARGEST = 10
SEED = 0
HEAT_STEPS = 9  # shades of a score


@dataclass(frozen=True)
class Report:
    """What the report page shows of a measurement.

    Attributes:
        measured: its numbers.
        selector: whose choices and Figure 4 are shown.
        sample: a random sample of the windows, or all of them.
        largest: the windows with the largest long gains that are not in the sample; empty if the sample is all windows.
        seed: of the sample.
    """

    measured: Measured
    selector: str
    sample: list[ShownWindow]
    largest: list[ShownWindow]
    seed: int

    @property
    def has_all_windows(self) -> bool:
        """True if the sample is all windows."""
        return len(self.sample) == self.measured.summary.num_windows


def read_report(measured: Measured, *, num_windows: int = NUM_WINDOWS, seed: int = SEED) -> Report:
    """Read the windows that the report shows of a measurement.

    Args:
        measured: its numbers.
        num_windows: windows to show; all, if there are no more.
        seed: of the random sample, if there are more.
    """
    measurement, k = measured.measurement, measured.summary.end_ks[-1]
    sample, largest = choose_windows(measurement, num_windows, num_largest=NUM_LARGEST, seed=seed)
    selector = shown_first(measurement)
    shown = [
        shown_window(measurement, excerpt, selector=selector, context="real", k=k)
        for excerpt in read_excerpts(measured.tables, sample + largest)
    ]
    return Report(measured, selector, shown[: len(sample)], shown[len(sample) :], seed)


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


@dataclass(frozen=True)
class Token:
    """A long-range token as the page shows it: text, classes, its rank if it is visible, and words for a pointer.

    ``ends`` is True of the last token of a visible group, behind which the rank stands.
    """

    text: str
    classes: str
    rank: Optional[int]
    title: str
    ends: bool


def tokens_of(window: ShownWindow) -> list[Token]:
    """Return the long-range tokens of a window."""
    tokens, far, ranks = [], window.long_range_texts, window.ranks
    for position, text in enumerate(far):
        score = window.score(position)
        share = abs(score or 0.0) / window.choice.largest_score
        classes = f"token heat-{round(share * HEAT_STEPS)}" + (" against" if score is not None and score < 0 else "")
        distance = len(far) + window.local_len - position
        title = f"{distance} tokens before the target, score {'unknown' if score is None else format(score, '.3g')}"
        ends = ranks.get(position) != ranks.get(position + 1)
        words = token_words(text) if position in ranks else printable(text)
        tokens.append(Token(words, classes, ranks.get(position), title, ends))
    return tokens
