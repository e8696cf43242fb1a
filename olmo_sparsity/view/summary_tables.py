"""The tables that ``summary`` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Optional

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.breakdowns import ClassSummary, DistanceShares
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import CONTEXTS
from olmo_sparsity.statistics.single.spectrum import REACHED, TOLERANCE, Spectra, Spectrum
from olmo_sparsity.statistics.single.summary import (
    FRACTIONS,
    SELECTION_QUANTITIES,
    WINDOW_QUANTITIES,
    SelectionSummary,
    Summary,
)
from olmo_sparsity.view.result_table import (
    Cell,
    Column,
    ResultTable,
    estimated,
    in_nats,
    keys,
    number,
    plain,
    recovered,
    rounded,
    words,
)
from olmo_sparsity.wording.captions import blind_caption, classes_caption, every_caption
from olmo_sparsity.wording.gates import gate_in_words
from olmo_sparsity.wording.selection import ALL_TOKENS, RANDOM, SELECTION_CAPTION
from olmo_sparsity.wording.spectrum import (
    MOST,
    families_shown,
    needed_words,
    spectrum_caption,
)
from olmo_sparsity.wording.units import all_tokens_words


def loss_table(summary: Summary) -> ResultTable:
    """Return mean losses and gains; without those of the training row where none is known or nothing lies beyond it."""
    rows = []
    for name, quantity in WINDOW_QUANTITIES.items():
        estimate = summary.of_windows(name)
        if quantity.is_loss and estimate is not None:
            label = f"{quantity.title}: {quantity.definition}" if quantity.definition else quantity.title
            rows.append((*words(label.format(row=summary.lengths.train_len)), estimated(estimate, 4)))
    return ResultTable("losses", (*keys("quantity"), *in_nats("mean")), tuple(rows))


def _quantity_cell(summary: Summary, selection: SelectionSummary, name: str) -> Cell:
    """Return the cell of one of ``SELECTION_QUANTITIES``."""
    value = selection.estimate(name)
    return recovered(summary, value) if name in FRACTIONS else estimated(value, SELECTION_QUANTITIES[name].digits)


def _token_columns(summary: Summary) -> tuple[Column, ...]:
    """Return the column of how many tokens J_k has; none where it is k."""
    return () if summary.unit == "token" else plain("tokens of J_k")


def _token_cells(summary: Summary, number: float) -> tuple[Cell, ...]:
    return (rounded(number, ".1f"),) if _token_columns(summary) else ()


def blind_table(summary: Summary) -> ResultTable:
    """Return the headline: selectors that do not see the target, at the shown k."""
    company = plain("R(k)", "D(k)", "D(k) random", "D(k) null context")
    columns = (
        *keys("selector", "k"),
        *_token_columns(summary),
        *plain("cost"),
        *in_nats("gain over random"),
        *company,
    )
    rows = []
    for name in summary.blind_selectors:
        for k in summary.shown_ks:
            entry, prediction = summary.at(name, "real", k), summary.prediction_recovered(name, k)
            of_d = (prediction.real, prediction.random, prediction.null)
            rows.append(
                (
                    *words(name, str(k)),
                    *_token_cells(summary, entry.mean_tokens),
                    number(entry.info.num_evaluations),
                    estimated(entry.gain_over_random_nats, 3),
                    recovered(summary, entry.recovered_fraction),
                    *(estimated(value, 2) for value in of_d),
                )
            )
    return ResultTable("blind", columns, tuple(rows), "selectors that do not see the target", blind_caption(summary))


def selection_table(summary: Summary) -> ResultTable:
    """Return what selection does, at the shown k: the selectors that see the target, then what selects nothing.

    Of `random` and of all tokens optimism must be 0.
    """
    gains = in_nats("sparse gain", "optimism", "corrected gain", "placebo")
    columns = (
        *keys("selector", "k"),
        *_token_columns(summary),
        *plain("cost"),
        *gains,
    )
    rows = []
    for name in (*summary.seeing_selectors, *(name for name in summary.selectors if name == RANDOM)):
        for k in summary.shown_ks:
            entry, null = summary.at(name, "real", k), summary.at(name, "null", k)
            rows.append(
                (
                    *words(name, str(k)),
                    *_token_cells(summary, entry.mean_tokens),
                    number(entry.info.num_evaluations),
                    *_selection_cells(
                        entry.gain_sparse_nats, entry.optimism_nats, entry.corrected_gain_nats, null.corrected_gain_nats
                    ),
                )
            )
    num_long_range = summary.lengths.num_long_range
    of_all = (summary.long_gain_nats, summary.optimism_all_nats, summary.corrected_gain_all_nats)
    rows.append(
        (
            *words(ALL_TOKENS, "all"),
            *_token_cells(summary, num_long_range),
            number(0),
            *_selection_cells(*of_all, summary.null_long_gain_nats),
        )
    )
    caption = " ".join(filter(None, (SELECTION_CAPTION, all_tokens_words(summary))))
    return ResultTable("selection", columns, tuple(rows), "what selection does", caption)


def _selection_cells(*values: Optional[Estimate]) -> tuple[Cell, ...]:
    """Return the cells of sparse gain, optimism, corrected gain and placebo."""
    return tuple(estimated(value, 3) for value in values)


def every_selection_table(summary: Summary) -> ResultTable:
    """Return one row a selector, context and k."""
    columns = (
        *keys("selector", "context", "k"),
        *_token_columns(summary),
        *(Column(quantity.title, quantity.unit) for quantity in SELECTION_QUANTITIES.values()),
    )
    rows = [
        (
            *words(selection.selector, selection.context, str(selection.k)),
            *_token_cells(summary, selection.mean_tokens),
            *(_quantity_cell(summary, selection, name) for name in SELECTION_QUANTITIES),
        )
        for selection in summary.selections
    ]
    return ResultTable("every k", columns, tuple(rows), "every k", every_caption(summary))


def every_table(measured: Measured) -> list[ResultTable]:
    """Return the tables that hold every number of a measurement, but for its losses and distances."""
    summary = measured.summary
    return [
        every_selection_table(summary),
        figure4_table(summary),
        class_table(measured.classes, summary),
        every_spectrum_table(measured.spectra, summary),
        class_spectrum_table(measured.spectra_of_classes, summary),
    ]


def spectrum_table(spectra: Spectra, summary: Summary) -> ResultTable:
    """Return the dependency spectrum at one tolerance: a row a family, the k that shares of the targets need, real and null."""
    contexts = [(context, share) for context in CONTEXTS for share in REACHED]
    columns = (
        *keys("family"),
        *plain(*(f"{share:.0%}{'' if context == 'real' else ', null context'}" for context, share in contexts)),
    )
    rows = []
    for family in families_shown(spectra, summary):
        cells = [needed(spectra, spectra.of(family, context), share) for context, share in contexts]
        rows.append((*words(family), *cells))
    title = f"dependency spectrum: k that is enough for a share of the targets, within {TOLERANCE:g} nats"
    return ResultTable("spectrum", columns, tuple(rows), title, spectrum_caption(spectra, summary))


def every_spectrum_table(spectra: Spectra, summary: Summary) -> ResultTable:
    """Return one row a family, context and tolerance: the share that needs none, and the k of more."""
    columns = (
        *keys("family", "context", "tolerance, nats"),
        *plain("share that needs none", *(f"{share:.0%}" for share in REACHED)),
    )
    rows = []
    for curve, spectrum in spectra.by_curve.items():
        names = words(curve.family, curve.context, f"{curve.tolerance_nats:g}")
        cells = (needed(spectra, spectrum, share) for share in REACHED)
        rows.append((*names, estimated(spectrum.none_needed, 3), *cells))
    return ResultTable(
        "every spectrum",
        columns,
        tuple(rows),
        "every dependency spectrum",
        spectrum_caption(spectra, summary, every=True),
    )


def class_spectrum_table(of_classes: Mapping[str, Spectra], summary: Summary) -> ResultTable:
    """Return one row a class of targets: the share that needs none, and the k of most, by family, in the real context."""
    families = families_shown(next(iter(of_classes.values())), summary)
    columns = (*keys("class of target"), *plain("share that needs none", *(f"{name}, {MOST:.0%}" for name in families)))
    rows = []
    for name, spectra in of_classes.items():
        of_families = [spectra.of(family) for family in families]
        none = None if of_families[0] is None else of_families[0].none_needed
        rows.append((*words(name), estimated(none, 2), *(needed(spectra, of, MOST) for of in of_families)))
    title = f"dependency spectrum by class of target, within {TOLERANCE:g} nats"
    return ResultTable("spectrum by class", columns, tuple(rows), title)


def needed(spectra: Spectra, spectrum: Optional[Spectrum], share: float) -> Cell:
    """Return a cell of the k that a share of the targets needs; more than every measured k is missing."""
    if spectrum is None:
        return Cell("-")
    k = spectrum.reaching(share)
    return Cell(needed_words(spectrum, share, spectra.max_k), k.value, k.low, k.high)


def figure4_table(summary: Summary) -> ResultTable:
    """Return correlation and slopes of Figure 4: one row a selector, context and k."""
    columns = (*keys("selector", "context", "k"), *plain("correlation", "OLS slope", "TLS slope"))
    rows = []
    for selection in summary.selections:
        fit = selection.figure4
        slopes = (estimated(value, 2) for value in (fit.correlation, fit.ols_slope, fit.tls_slope))
        rows.append((*words(selection.selector, selection.context, str(selection.k)), *slopes))
    return ResultTable("figure 4", columns, tuple(rows), "Figure 4")


def class_table(classes: list[ClassSummary], whole: Summary) -> ResultTable:
    """Return one row a class of targets, with the first selector of either kind at the smallest and the largest shown k.

    Args:
        classes: of ``by_class``.
        whole: the summary of all windows.
    """
    ks, blind, seeing = whole.end_ks, whole.blind_selectors[:1], whole.seeing_selectors[:1]
    columns = (
        *keys("class of target"),
        *plain("windows"),
        *in_nats("long gain"),
        *plain("gate"),
        *in_nats("same rule on null context", "other targets, null context"),
        *in_nats(*(f"{name} over random, k = {k}" for name in blind for k in ks)),
        *plain(*(f"{name} R({k})" for name in blind for k in ks)),
        *in_nats(*(f"{name} corrected gain, k = {k}" for name in seeing for k in ks)),
    )
    rows = []
    for entry in classes:
        summary, contrast = entry.summary, entry.contrast
        at_blind = [summary.at(name, "real", k) for name in blind for k in ks]
        at_seeing = [summary.at(name, "real", k) for name in seeing for k in ks]
        of_rule = (contrast.null_gain_nats, contrast.null_others_gain_nats) if contrast else (None, None)
        rows.append(
            (
                *words(entry.target_class),
                number(summary.num_windows),
                estimated(summary.long_gain_nats, 3),
                *words(gate_in_words(summary.gate)),
                *(estimated(gain, 3) for gain in of_rule),
                *(estimated(at.gain_over_random_nats, 3) for at in at_blind),
                *(recovered(summary, at.recovered_fraction) for at in at_blind),
                *(estimated(at.corrected_gain_nats, 3) for at in at_seeing),
            )
        )
    return ResultTable("classes", columns, tuple(rows), "kinds of dependency", classes_caption(whole, classes))


def distance_table(distances: Sequence[DistanceShares]) -> ResultTable:
    """Return one row a selector, context, k and bin of distances: the share of the chosen tokens that lies in it."""
    columns = (*keys("selector", "context", "k", "distance, tokens"), *plain("share", "share at random"))
    rows = [
        (
            *words(of.selector, of.context, str(of.k), f"{one.from_tokens} to {one.to_tokens}"),
            estimated(one.share, 3),
            rounded(one.uniform, ".3f"),
        )
        for of in distances
        for one in of.bins
    ]
    return ResultTable("distances", columns, tuple(rows), "distances of the chosen tokens to the target")
