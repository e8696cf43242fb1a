"""Sentences about several runs: gates, labels, seeds, gains beyond the training row. Those about one run are in ``wording``."""

from __future__ import annotations

from collections.abc import Mapping

from olmo_sparsity.statistics.comparison import Comparison, ComparisonRow, main_rows
from olmo_sparsity.statistics.curve_comparison import ComparedCurves, ModelCurve
from olmo_sparsity.statistics.measurement import Lengths
from olmo_sparsity.statistics.summary import ROBUST_RATIO, Summary
from olmo_sparsity.statistics.wording import FRAGILE, REACHES_ZERO, SELECTION_ONLY, interval, verdict
from olmo_sparsity.statistics.wording_of_evidence import harm_words
from olmo_sparsity.statistics.wording_of_models import anchor_words, subject_names, subject_words


def gates_of_models_words(summaries: Mapping[str, Summary]) -> str:
    """Return which of several models, by name, passed the gates, in one or more sentences."""
    failed = [name for name, summary in summaries.items() if not summary.gate_passed]
    fragile = [name for name, summary in summaries.items() if summary.is_fragile]
    selecting = [name for name, summary in summaries.items() if summary.beyond_gate == "failed"]
    without = [name for name, summary in summaries.items() if summary.beyond_gate == "not-applicable"]
    sentences = [f"GATE FAILED at {', '.join(failed)}: no R(k) there." if failed else "The gate passed everywhere."]
    if fragile:
        sentences.append(f"R(k) is {FRAGILE} at {', '.join(fragile)}, where it misses low.")
    if selecting:
        words = SELECTION_ONLY.replace("the run shows", "these models show")
        sentences.append(f"GATE BEYOND THE TRAINING ROW not passed at {', '.join(selecting)}: {words}.")
    elif len(without) < len(summaries):
        where = "wherever it applies" if without else "everywhere"
        sentences.append(f"The gate beyond the training row passed {where}.")
    if without:
        sentences.append(
            f"The gate beyond the training row does not apply to {', '.join(without)}: none of their tokens lie beyond a known "
            "row, so nothing is said there about length generalization."
        )
    return " ".join(sentences)


def comparison_words(comparison: Comparison) -> list[str]:
    """Return what a comparison shows, a sentence each: which gates passed, and what is higher or lower than in the first
    measurement, of the long gain, the gain beyond the training row, and the headline of one selector at the smallest and the
    largest shown k."""
    first, *later = comparison.labels
    summaries = {subject.label: subject.summary for subject in comparison.subjects}
    sentences = [gates_of_models_words(summaries)]
    rows = _rows_of_verdict(comparison)
    for index, label in enumerate(later):
        clauses = []
        for row in rows:
            difference = row.differences[index]
            if difference is not None:
                where = "" if row.selector is None else f" of {row.selector}, k = {row.k}"
                name = row.words.removesuffix(", nats")
                clauses.append(f"{name}{where}: {verdict(difference)} ({interval(difference, 3)} nats)")
        pairing = "" if comparison.pairings[index].paired else ", on other windows"
        if len({summaries[name].unit for name in (first, label)}) > 1:
            pairing += ", where k counts something else"
        if clauses:
            sentences.append(f"{label} minus {first}{pairing}: {'; '.join(clauses)}.")
        elif not comparison.pairings[index].same_tokens:
            sentences.append(f"{label} and {first} have different tokenizers, so nothing in nats is compared.")
        else:
            sentences.append(f"{label} and {first} have no quantity in common.")
    return sentences + [f"{label}: {words}" for label, summary in summaries.items() if (words := harm_words(summary))]


def _rows_of_verdict(comparison: Comparison) -> list[ComparisonRow]:
    """Return the gains of all windows, and of the first selector that has a headline in nats the rows of its headline."""
    rows = main_rows(comparison)
    gains = [row for row in rows if row.quantity in ("long_gain_nats", "gain_beyond_nats")]
    for quantity in ("gain_over_random_nats", "real_minus_luck_nats", "gain_sparse_nats"):
        of_selectors = [row for row in rows if row.quantity == quantity and any(d is not None for d in row.differences)]
        if of_selectors:
            return gains + [row for row in of_selectors if row.selector == of_selectors[0].selector]
    return gains


def short_positions_words(lengths: Lengths) -> str:
    """Return in a few words how long the training rows were for the window, and which position IDs they carried."""
    if lengths.pose_method == "randpos":
        positions = "RandPos"
    elif lengths.num_chunks == 1:
        positions = "no PoSE"
    else:
        contents = lengths.pose_contents or "contiguous"
        positions = f"PoSE, {lengths.num_chunks} chunks" + (f", {contents}" if contents != "contiguous" else "")
    if not lengths.is_ceiling:
        return positions
    return f"ceiling, rows of {lengths.train_len}" + ("" if positions == "no PoSE" else f", {positions}")


def model_labels(compared: ComparedCurves) -> list[str]:
    """Return short distinct names of the models.

    These are the names of pretrained models, and the positions of others, with the name of the run where positions are the same.
    """
    names = subject_names([(model.curve.run, model.curve.setup) for model in compared.models])
    words = [
        short_positions_words(model.curve.lengths) if model.curve.setup.model is None else name
        for name, model in zip(names, compared.models, strict=True)
    ]
    return [
        word if words.count(word) == 1 else f"{model.curve.run} ({word})"
        for word, model in zip(words, compared.models, strict=True)
    ]


def curves_words(compared: ComparedCurves) -> str:
    """Return which runs or models the curves are of, and their anchors, in one sentence."""
    curves = [(seed.run, model.curve.setup) for model in compared.models for seed in model.seeds]
    listed = "; ".join(f"{subject_words(run, setup)}, {anchor_words(setup.anchor)}" for run, setup in curves)
    return f"{listed[0].upper()}{listed[1:]}."


def seeds_words(num_seeds: int) -> str:
    """Return over how many seeds a number is a mean, such as ``3 seeds``."""
    return "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"


def seed_intervals_words(num_seeds: int) -> str:
    """Return what the intervals of a mean over seeds include."""
    words = (
        f"means over {seeds_words(num_seeds)} of training; brackets: 95% t intervals that include the choice of the seed and "
        "of the documents"
    )
    return f"{words}; with two seeds they may cover as little as 88%" if num_seeds == 2 else words


def gain_beyond_lines(compared: ComparedCurves) -> list[str]:
    """Return what each model gains beyond the training row, a line each, with a heading; none where nothing lies beyond."""
    lines = []
    for label, model in zip(model_labels(compared), compared.models, strict=True):
        if model.gain_beyond_nats is not None:
            gain = interval(model.gain_beyond_nats, 4)
            lines.append(f"{label} ({seeds_words(len(model.seeds))}): {gain}{_share_words(model)}")
    if not lines:
        return []
    heading = f"gain beyond the training row, from {compared.row_len} to {compared.full_len} visible tokens, nats [95% interval]:"
    return [heading, *lines, *_warnings_of_shares(compared)]


def _share_words(model: ModelCurve) -> str:
    """Return the share of the ceiling's gain, as the end of a line; a model that loses has none."""
    if model.share_of_ceiling is None or model.gain_beyond_nats is None:
        return ""
    if model.gain_beyond_nats.is_below_zero:
        return ", a loss"
    return f", {interval(model.share_of_ceiling, 2)} of the ceiling's"


def _warnings_of_shares(compared: ComparedCurves) -> list[str]:
    warnings = []
    if compared.ceiling is not None and len(compared.models) > 1:
        if compared.shares_are_fragile:
            warnings.append(
                f"{FRAGILE}: the ceiling's gain is below {ROBUST_RATIO} standard errors, so the shares miss low"
            )
        elif all(model.share_of_ceiling is None for model in compared.models):
            gain = compared.ceiling.gain_beyond_nats
            reason = f"the interval of the ceiling's gain {REACHES_ZERO}"
            if gain is None or not gain.has_interval:
                reason = "the ceiling's gain has no interval"
            warnings.append(f"{reason}, so there are no shares of it")
    if any(len(model.seeds) == 1 for model in compared.models):
        warnings.append("intervals of models with 1 seed do not include what another seed would change")
    return warnings
