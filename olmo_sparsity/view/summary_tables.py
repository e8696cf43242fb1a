"""The tables that ``summary`` prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from olmo_sparsity.statistics.agreement import Agreement
from olmo_sparsity.statistics.breakdowns import ClassSummary
from olmo_sparsity.statistics.measurement import CONTEXTS
from olmo_sparsity.statistics.screening import ScreeningLoss
from olmo_sparsity.statistics.summary import Summary
from olmo_sparsity.statistics.wording import (
    BLIND_CAPTION,
    EVERY_CAPTION,
    SEEING_CAPTION,
    classes_caption,
    interval,
    recovered_words,
    smallest_k_words,
)

REFERENCE = "greedy"  # the selector whose choice the others are compared with, where it was measured


def loss_table(summary: Summary) -> Table:
    """Mean losses and gains; without those of the training row where none is known."""
    row = summary.lengths.train_len
    of_row = (
        (f"loss with the last {row} tokens, as many as a training row has", summary.loss_train_len_nats),
        (f"gain beyond the training row: loss with the last {row} - L_long", summary.gain_beyond_nats),
    )
    table = Table("quantity", "nats")
    for label, estimate in (
        ("L_short", summary.loss_short_nats),
        of_row[0],
        ("L_long", summary.loss_long_nats),
        ("long gain: L_short - L_long", summary.long_gain_nats),
        of_row[1],
        ("long gain, null context", summary.null_long_gain_nats),
        ("value of the content: real - null", summary.content_gain_nats),
    ):
        if estimate is not None:
            table.add_row(label, interval(estimate, 4))
    return table


def _overlap_columns(summary: Summary) -> list[str]:
    is_compared = REFERENCE in summary.selectors and len(summary.selectors) > 1
    return [f"overlap\nwith {REFERENCE}"] if is_compared else []


def _overlap_cells(summary: Summary, selector: str, *, k: int, pairs: list[Agreement]) -> list[str]:
    if not _overlap_columns(summary):
        return []
    pair = next((pair for pair in pairs if set(pair.selectors) == {selector, REFERENCE}), None)
    return ["-" if pair is None else interval(next(o.share for o in pair.overlap if o.k == k), 2)]


def blind_table(summary: Summary, pairs: list[Agreement]) -> Table:
    """The headline: selectors that do not see the target, at the smallest and the largest k.

    Args:
        summary: the numbers.
        pairs: the overlap with ``REFERENCE``.
    """
    table = Table(
        "selector", "cost", "k", "gain over\nrandom, nats", "R(k)", "D(k)", "D(k)\nrandom", "D(k)\nnull context",
        "D(k)\nmimicry", *_overlap_columns(summary),
        title="selectors that do not see the target", caption=BLIND_CAPTION,
    )  # fmt: skip
    for name in summary.blind_selectors:
        for k in summary.end_ks:
            entry, prediction = summary.at(name, "real", k), summary.prediction_recovered(name, k)
            company = (prediction.real, prediction.random, prediction.null, prediction.mimicry)
            table.add_row(
                name,
                str(entry.info.num_evaluations),
                str(k),
                interval(entry.gain_over_random_nats, 3),
                recovered_words(summary, entry.recovered_fraction),
                *(interval(value, 2) for value in company),
                *_overlap_cells(summary, name, k=k, pairs=pairs),
            )
    return table


def seeing_table(summary: Summary, pairs: list[Agreement]) -> Table:
    """Selectors that see the target, at the smallest and the largest k: what is left after luck.

    Args:
        summary: the numbers.
        pairs: the overlap with ``REFERENCE``.
    """
    table = Table(
        "selector", "cost", "k", "real minus\nluck, nats", "sparse gain,\nnats", "luck,\nnats", "R(k),\nincludes luck",
        *_overlap_columns(summary),
        title="selectors that see the target", caption=SEEING_CAPTION,
    )  # fmt: skip
    for name in summary.seeing_selectors:
        for k in summary.end_ks:
            entry = summary.at(name, "real", k)
            table.add_row(
                name,
                str(entry.info.num_evaluations),
                str(k),
                interval(entry.real_minus_luck_nats, 3),
                interval(entry.gain_sparse_nats, 3),
                interval(entry.luck_nats, 3),
                recovered_words(summary, entry.recovered_fraction),
                *_overlap_cells(summary, name, k=k, pairs=pairs),
            )
    return table


def screening_table(losses: list[ScreeningLoss], settings: dict[str, Any], *, every: bool) -> Table:
    """What screening lost: a row a screened selector at the largest k; with ``every`` at every k and in both contexts.

    Args:
        losses: of ``screening``.
        settings: the section ``influence`` of the manifest.
        every: print all rows.
    """
    table = Table(
        "selector", "context", "k", f"recall, {losses[0].num_windows} windows", "sparse gain lost, nats",
        caption=f"screened to {settings['screen']} candidates by {settings['screen_by']}; recall: share of the exact choice, "
        "measured on a random sample of the windows.",
    )  # fmt: skip
    largest = max(loss.k for loss in losses)
    for loss in losses:
        if every or (loss.k == largest and loss.context == "real"):
            numbers = (interval(loss.recall, 3), interval(loss.gain_lost_nats, 4))
            table.add_row(loss.selector, loss.context, str(loss.k), *numbers)
    return table


def every_selection_table(summary: Summary) -> Table:
    """One row a selector, context and k."""
    table = Table(
        "selector", "context", "k", "sparse gain, nats", "R(k)", "over random, nats", "excess gain, nats", "luck, nats",
        "real minus luck, nats", "D(k)",
        title="every k", caption=EVERY_CAPTION,
    )  # fmt: skip
    for selection in summary.selections:
        table.add_row(
            selection.selector,
            selection.context,
            str(selection.k),
            interval(selection.gain_sparse_nats, 3),
            recovered_words(summary, selection.recovered_fraction),
            interval(selection.gain_over_random_nats, 3),
            interval(selection.excess_gain_nats, 3),
            interval(selection.luck_nats, 3),
            interval(selection.real_minus_luck_nats, 3),
            interval(selection.prediction_recovered, 2),
        )
    return table


def figure4_table(summary: Summary) -> Table:
    """Correlation and slopes of Figure 4: one row a selector, context and k."""
    table = Table("selector", "context", "k", "correlation", "OLS slope", "TLS slope", title="Figure 4")
    for selection in summary.selections:
        fit = selection.figure4
        if selection.context in CONTEXTS:
            slopes = (interval(fit.correlation, 2), interval(fit.ols_slope, 2), interval(fit.tls_slope, 2))
            table.add_row(selection.selector, selection.context, str(selection.k), *slopes)
    return table


def effective_sparsity_table(summary: Summary) -> Table:
    """One row a selector and fraction of the long gain."""
    table = Table(
        "selector", "fraction", "smallest k",
        title="effective sparsity: the smallest measured k whose R(k) is at least this fraction",
        caption="Of a selector that sees the target it includes luck.",
    )  # fmt: skip
    for entry in summary.effective_sparsity:
        table.add_row(
            entry.selector,
            f"{entry.fraction:.0%}",
            smallest_k_words(entry.smallest_k, entry.max_k),
        )
    return table


def class_table(classes: list[ClassSummary], whole: Summary) -> Table:
    """One row a class of targets, with the first selector of either kind at the smallest and the largest k.

    Args:
        classes: of ``by_class``.
        whole: the summary of all windows.
    """
    ks, blind, seeing = whole.end_ks, whole.blind_selectors[:1], whole.seeing_selectors[:1]
    table = Table(
        "class of target", "windows", "long gain, nats", "gate", "same rule on\nnull context", "other targets,\nnull context",
        *(f"{name}, k = {k}\nover random, nats" for name in blind for k in ks),
        *(f"{name}\nR({k})" for name in blind for k in ks),
        *(f"{name}, k = {k}\nreal minus luck" for name in seeing for k in ks),
        title="kinds of dependency",
        caption=classes_caption(whole, len(classes)),
    )  # fmt: skip
    for entry in classes:
        summary, contrast = entry.summary, entry.contrast
        at_blind = [summary.at(name, "real", k) for name in blind for k in ks]
        at_seeing = [summary.at(name, "real", k) for name in seeing for k in ks]
        table.add_row(
            entry.target_class,
            str(summary.num_windows),
            interval(summary.long_gain_nats, 3),
            summary.gate if summary.long_gain_nats.has_interval else "too few",
            *(
                interval(gain, 3)
                for gain in ((contrast.null_gain_nats, contrast.null_others_gain_nats) if contrast else (None, None))
            ),
            *(interval(at.gain_over_random_nats, 3) for at in at_blind),
            *(recovered_words(summary, at.recovered_fraction) for at in at_blind),
            *(interval(at.real_minus_luck_nats, 3) for at in at_seeing),
        )
    return table


def agreement_table(pairs: list[Agreement]) -> Table:
    """One row for each two selectors, at the largest k."""
    table = Table("selectors", "", "k", "overlap", "by chance", "rank correlation", title="agreement between selectors")
    for pair in pairs:
        overlap = pair.overlap[-1]
        table.add_row(
            *pair.selectors,
            str(overlap.k),
            interval(overlap.share, 2),
            f"{overlap.chance:.2f}",
            interval(pair.rank_correlation, 2),
        )
    return table
