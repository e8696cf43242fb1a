"""The tables that ``summary`` prints."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from olmo_sparsity.statistics.agreement import Agreement
from olmo_sparsity.statistics.breakdowns import ClassSummary
from olmo_sparsity.statistics.screening import ScreeningLoss
from olmo_sparsity.statistics.summary import Summary
from olmo_sparsity.statistics.wording import interval, smallest_k_words

REFERENCE = "greedy"  # the selector whose choice the others are compared with, where it was measured


def loss_table(summary: Summary) -> Table:
    """Mean losses and long gains."""
    table = Table("quantity", "nats")
    for label, estimate in (
        ("L_short", summary.loss_short_nats),
        ("L_long", summary.loss_long_nats),
        ("long gain: L_short - L_long", summary.long_gain_nats),
        ("long gain, null context (foreign text)", summary.null_long_gain_nats),
        ("value of the content: real - null", summary.content_gain_nats),
    ):
        table.add_row(label, interval(estimate, 4))
    return table


def selector_table(summary: Summary, pairs: list[Agreement]) -> Table:
    """One row a selector, at the smallest and the largest k; ``pairs`` gives the overlap with ``REFERENCE``."""
    first, last = summary.ks[0], summary.ks[-1]
    is_compared = REFERENCE in summary.selectors and len(summary.selectors) > 1
    table = Table(
        "selector", "sees\ntarget", "cost", f"R({first})", f"R({last})", f"R({last})\nnull context",
        f"sparse gain\nk = {last}, nats", f"excess gain\nk = {last}, nats", f"gain over random\nk = {first}, nats",
        f"real minus luck\nk = {last}, nats",
        *([f"overlap with\n{REFERENCE}, k = {last}"] if is_compared else []),
        caption="cost: evaluations of the model for the scores of one window. excess: real minus null context. over random: "
        "minus the same quantity of `random`.",
    )  # fmt: skip
    for name in summary.selectors:
        at_first, at_last = summary.at(name, "real", first), summary.at(name, "real", last)
        cells = [
            name,
            "yes" if at_last.info.sees_target else "no",
            str(at_last.info.num_evaluations),
            interval(at_first.recovered_fraction, 2),
            interval(at_last.recovered_fraction, 2),
            interval(summary.at(name, "null", last).recovered_fraction, 2),
            interval(at_last.gain_sparse_nats, 3),
            interval(at_last.excess_gain_nats, 3),
            interval(at_first.gain_over_random_nats, 3),
            interval(at_last.real_minus_luck_nats, 3),
        ]
        if is_compared:
            pair = next((pair for pair in pairs if set(pair.selectors) == {name, REFERENCE}), None)
            cells.append("-" if pair is None else interval(pair.overlap[-1].share, 2))
        table.add_row(*cells)
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
        "selector", "context", "k", "sparse gain, nats", "R(k)", "over random, nats", "excess gain, nats",
        "real minus luck, nats",
        "correlation", "OLS slope", "TLS slope", title="every k; correlation and slopes are those of Figure 4",
    )  # fmt: skip
    for selection in summary.selections:
        table.add_row(
            selection.selector,
            selection.context,
            str(selection.k),
            interval(selection.gain_sparse_nats, 3),
            interval(selection.recovered_fraction, 2),
            interval(selection.gain_over_random_nats, 3),
            interval(selection.excess_gain_nats, 3),
            interval(selection.real_minus_luck_nats, 3),
            interval(selection.figure4.correlation, 2),
            interval(selection.figure4.ols_slope, 2),
            interval(selection.figure4.tls_slope, 2),
        )
    return table


def effective_sparsity_table(summary: Summary) -> Table:
    """One row a selector and fraction of the long gain."""
    table = Table(
        "selector", "fraction", "smallest k",
        title="effective sparsity: the smallest measured k that recovers this fraction of the long gain",
    )  # fmt: skip
    for entry in summary.effective_sparsity:
        table.add_row(
            entry.selector,
            f"{entry.fraction:.0%}",
            smallest_k_words(entry.smallest_k, entry.max_k),
        )
    return table


def class_table(classes: list[ClassSummary]) -> Table:
    """One row a class of targets, with R(k) of each selector at the largest k."""
    selectors, last = classes[0].summary.selectors, classes[0].summary.ks[-1]
    table = Table(
        "class of target", "windows", "long gain, nats", "gate",
        *(f"R({last})\n{name}" for name in selectors),
        title="kinds of dependency",
    )  # fmt: skip
    for entry in classes:
        summary = entry.summary
        table.add_row(
            entry.target_class,
            str(summary.num_windows),
            interval(summary.long_gain_nats, 3),
            summary.gate,
            *(interval(summary.at(name, "real", last).recovered_fraction, 1) for name in selectors),
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
