"""What a measurement says about the paper's claim, sentence by sentence."""

from __future__ import annotations

from typing import Optional

from olmo_sparsity.records.selectors import CONTROLS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measurement import SelectionKey
from olmo_sparsity.statistics.single.shown_ks import FEW
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary
from olmo_sparsity.wording.gates import EITHER_WAY, MAY_BE_GAP, SELECTION_ONLY, gap_words, row_has_words
from olmo_sparsity.wording.numbers import (
    NO_R_BESIDE,
    TOO_FEW_TO_TELL,
    against_zero,
    interval,
    no_interval_words,
    recovered_words,
)
from olmo_sparsity.wording.selection import BLIND
from olmo_sparsity.wording.setup import NULL_WORDS, foreign_words, row_words
from olmo_sparsity.wording.units import counted_of, units_of

MOST = 0.5  # of the long gain
FEW_WORDS = "at most a quarter of the long-range tokens"
CLAIM = "The paper claims that few tokens give back what the long context is worth, and that this explains length generalization."
NO_HEADLINE = f"No selector {BLIND} was measured, so there is no headline number."
NO_SEEING = "No selector that sees the target was measured, so there is no optimism to take off."
NO_EVIDENCE = "D is no evidence that the context helps."


def verdict_words(summary: Summary, first: Optional[str] = None) -> str:
    """Return what a measurement found in one sentence: whether the model gains from the long context, from beyond its training
    row, and whether few tokens, chosen without the target, give the gain back; it says no more than the intervals do.

    Args:
        summary: the numbers.
        first: as in ``evidence_sentences``.
    """
    if not summary.gate_passed:
        if summary.gate == "not-assessed":
            return f"Not shown: there are {TOO_FEW_TO_TELL} whether the model gains from the long context."
        reason = f"; {MAY_BE_GAP}" if summary.may_be_gap else ""
        return f"Not shown: these windows show no clear gain of the model from the long context{reason}."
    selector = first_blind(summary, first)
    return f"The model gains from the long context{_beyond_clause(summary)}; {_few_clause(summary, selector)}."


def _beyond_clause(summary: Summary) -> str:
    """Return whether the gain reaches beyond the training row, as a clause."""
    lengths = summary.lengths
    if lengths.train_len is None:
        return " (its training row is not known)"
    row = f"{row_words(lengths, 'its')} of {lengths.train_len} tokens"
    if summary.beyond_gate == "not-applicable":
        return f", none of which lies beyond {row}"
    if summary.beyond_gate_passed:
        return f", also from beyond {row}"
    return f", but no gain from beyond {row} is shown"


def _few_clause(summary: Summary, selector: Optional[str]) -> str:
    """Return whether few tokens give back the gain, against random ones and the null context, as a clause."""
    few, all_units = f"few {units_of(summary)}", f"{summary.lengths.num_long_range} long-range {units_of(summary)}"
    if selector is None:
        return f"whether {few} give the gain back is not shown without a selector {BLIND}"
    supports = _supports(summary, selector)
    reached = max(supports.values())
    if reached == 0:
        return f"it is not shown that {few} give the gain back"
    k = min(k for k, support in supports.items() if support == reached)
    amount = "most" if reached == 2 else "some"
    chosen = counted_of(summary, k) if summary.unit != "token" else f"{k} of the {all_units}"
    words = (
        f"{chosen}, chosen by {selector} without the target, give{'s' if k == 1 else ''} back {amount} of it, more than "
        f"{random_ones_words(k)}"
    )
    excess = summary.at(selector, "real", k).excess_gain_nats
    if excess is None:
        return words
    null = foreign_words(summary.null_context)
    return f"{words}{' and' if excess.is_above_zero else ', but not clearly'} more than under {null}"


def first_blind(summary: Summary, first: Optional[str]) -> Optional[str]:
    """Return ``first`` if it is a measured selector that does not see the target, else the first such one; None: there is none.

    Taking the best one afterwards would be a selection of its own.
    """
    blind = summary.blind_selectors
    return first if first in blind else next(iter(blind), None)


def evidence_sentences(summary: Summary, first: Optional[str] = None) -> list[str]:
    """Return what a measurement says about the paper's claim: five entries, of one or a few sentences each.

    They are the worth of the long context and of the null context; the headline; corrected gain; D(k); the conclusion, which
    says no more than the intervals do.

    Args:
        summary: the numbers.
        first: the selector of the headline, if it does not see the target; else the first measured one that does not is taken.
    """
    seeing, selector = summary.seeing_selectors, first_blind(summary, first)
    return [
        value_words(summary),
        blind_words(summary, selector) if selector else NO_HEADLINE,
        seeing_words(summary, seeing[0]) if seeing else NO_SEEING,
        prediction_words(summary, selector or next(iter(seeing), "random")),
        f"{CLAIM} {_sparsity_words(summary, selector)} {_generalization_words(summary)}",
    ]


def value_words(summary: Summary) -> str:
    """Return what the long context is worth, what that of the null context, and what the gap costs, in one or two sentences."""
    gain, null_gain, lengths = summary.long_gain_nats, summary.null_long_gain_nats, summary.lengths
    harm = ", so it does harm" if null_gain.is_below_zero else ""
    worth = (
        f"Seeing all {lengths.num_long_range} long-range tokens in addition to the {lengths.local_len} local ones is worth "
        f"{interval(gain, 3)} nats, {against_zero(gain)}; the null context in their place "
        f"({NULL_WORDS[summary.null_context]}) is worth {interval(null_gain, 3)} nats{harm}."
    )
    return " ".join(filter(None, (worth, gap_words(summary))))


def blind_words(summary: Summary, selector: str) -> str:
    """Return what a selector that does not see the target finds, in one sentence that treats the smallest and the largest
    shown k alike: gain over random, also under the null context, and R(k), also of random, where the gate passed."""
    clauses = []
    for k in summary.end_ks:
        entry, chosen = summary.at(selector, "real", k), counted_of(summary, k)
        over, gain = entry.gain_over_random_nats, f"{chosen} gain{'s' if k == 1 else ''}"
        null, random = _entry(summary, selector, "null", k=k), _entry(summary, "random", "real", k=k)
        gained = (
            f"{gain} {interval(entry.gain_sparse_nats, 3)} nats"
            if over is None
            else f"{gain} {interval(over, 3)} nats over {random_ones_words(k)}"
        )
        if over is not None and null is not None:
            gained += f" (null context: {interval(null.gain_over_random_nats, 3)})"
        if entry.recovered_fraction is not None:
            gained += f", R({k}) = {recovered_words(summary, entry.recovered_fraction)}"
            gained += "" if random is None else f" (random: {interval(random.recovered_fraction)})"
        clauses.append(gained)
    words = f"Chosen by {selector}, which does not see the target, {'; '.join(clauses)}"
    said = f"{words}." if summary.gate_passed else f"{words}; no R(k) is shown, since the gate did not pass."
    return " ".join(filter(None, (said, harm_words(summary))))


def harm_words(summary: Summary) -> str:
    """Return in one sentence that random choices raise the loss, where they do, else nothing: the gain over them is then more
    than what is gained.

    So it is in a model that lacks its first token: it rests attention on the first of the window, which random choices hide.
    """
    entries = (_entry(summary, "random", "real", k=k) for k in summary.end_ks)
    gains = [(entry.k, entry.gain_sparse_nats) for entry in entries if entry is not None]
    harms = [f"k = {k}: {interval(gain, 3)} nats" for k, gain in gains if gain is not None and gain.is_below_zero]
    if not harms:
        return ""
    losses = "; ".join(harms)
    return (
        f"Random choices raise the loss ({losses}), so the gain over random is more than what the choice itself gains."
    )


def random_ones_words(k: int) -> str:
    """Return ``a random one``, ``8 random ones``."""
    return "a random one" if k == 1 else f"{k} random ones"


def seeing_words(summary: Summary, selector: str) -> str:
    """Return what a selector that sees the target gains, and how much of it is optimism, in one sentence that treats the
    smallest and the largest shown k alike."""
    clauses = []
    for k in summary.end_ks:
        entry = summary.at(selector, "real", k)
        gained = f"{counted_of(summary, k)} gain{'s' if k == 1 else ''} {interval(entry.gain_sparse_nats, 3)} nats"
        corrected, null = entry.corrected_gain_nats, _entry(summary, selector, "null", k=k)
        if corrected is None:
            clauses.append(f"{gained}, of which an unknown part is optimism")
            continue
        placebo = "" if null is None else f" (null context: {interval(null.corrected_gain_nats, 3)})"
        clauses.append(
            f"{gained}, of which {interval(entry.optimism_nats, 3)} is optimism: a corrected gain of {interval(corrected, 3)} "
            f"nats{placebo}, {against_zero(corrected)}"
        )
    return f"Chosen by {selector}, which sees the target, {'; '.join(clauses)}."


def prediction_words(summary: Summary, selector: str) -> str:
    """Return D(k) of a selector with the numbers that belong beside it, in a few sentences.

    R(k) is one of them; of a selector that does not see the target, ``blind_words`` has it. Without `random` there is no D(k).
    """
    no_prediction = f"D(k), the share of the model's reaction that k {units_of(summary)} reproduce, is not shown:"
    if selector == "random":
        return f"{no_prediction} only random was measured."
    if "random" not in summary.selectors:
        return f"{no_prediction} random was not measured beside it."
    found = {k: summary.prediction_recovered(selector, k) for k in summary.end_ks}
    if any(of.real is None for of in found.values()):
        return f"{no_prediction} the long context does not change the model's prediction."
    clauses = []
    for k, of in found.items():
        beside = [("random", of.random), ("null context", of.null)]
        company = [f"{name} {interval(value)}" for name, value in beside if value is not None]
        recovered = summary.at(selector, "real", k).recovered_fraction
        if summary.sees_target(selector) and recovered is not None:
            company.append(f"R({k}) with its optimism {recovered_words(summary, recovered)}")
        clauses.append(f"D({k}) = {interval(of.real)} ({', '.join(company)})")
    words = [f"Of the model's reaction to the long context, useful or not, {selector} reproduces {'; '.join(clauses)}."]
    if any(of.null is None for of in found.values()):
        words.append("D under the null context was not measured.")
    if not summary.gate_passed:
        words.append(NO_R_BESIDE)
    words.append(no_interval_words("D(k)", summary.num_documents))
    return " ".join(sentence for sentence in [*words, NO_EVIDENCE] if sentence)


def _entry(summary: Summary, selector: str, context: str, *, k: int) -> Optional[SelectionSummary]:
    """Return the entry of one selector, context and k; None where it was not measured."""
    key = SelectionKey(selector, context, k)
    return next((entry for entry in summary.selections if entry.key == key), None)


# --- the conclusion


def _sparsity_words(summary: Summary, selector: Optional[str]) -> str:
    """Return whether few tokens, or entries, give back the long gain, as far as one selector blind to the target shows it."""
    few = f"few {units_of(summary)}"
    if summary.gate == "not-assessed":
        return f"Here there are {TOO_FEW_TO_TELL} whether there is a long gain that {few} could give back."
    if summary.may_be_gap:
        return f"Here {MAY_BE_GAP}, so it is not shown that there is one that {few} could give back."
    if not summary.gate_passed:
        return (
            f"These windows do not show a long gain that {few} could give back, which is no proof that there is none."
        )
    if selector is None:
        return f"Without a selector {BLIND}, it is not shown whether {few} do so."
    clauses = [_share_words(summary, summary.at(selector, "real", k)) for k in summary.ks_of_few]
    said = f"Here (visibility {summary.setup.visibility}, chosen by {selector}) {'; '.join(clauses)}."
    return f"{said} {_verdict_words(summary, selector)}"


def _share_words(summary: Summary, entry: SelectionSummary) -> str:
    """Return how much of the long gain a choice gives back, and whether more than a random one, as a clause."""
    chosen, num_long_range = (
        counted_of(summary, entry.k),
        summary.lengths.num_long_range,
    )
    of_all = "one" if entry.k == 1 else str(entry.k)
    if entry.k == summary.ks_of_few[0]:
        of_all += f" of the {num_long_range} long-range {units_of(summary)}"
    if summary.unit != "token":
        of_all = f"{chosen} ({entry.mean_tokens:.1f} of the {num_long_range} long-range tokens on average)"
    amount = _amount_words(entry.recovered_fraction, is_fragile=summary.is_fragile)
    over = entry.gain_over_random_nats
    words = f"{of_all} give{'s' if entry.k == 1 else ''} back {amount}"
    if over is None:
        return words
    more = "less" if over.is_below_zero else "more" if over.is_above_zero else "not clearly more"
    return f"{words} and {more} than {random_ones_words(entry.k)}"


def _amount_words(recovered: Optional[Estimate], *, is_fragile: bool) -> str:
    """Return how much of the long gain an R(k) stands for. A fragile one misses low, so it is not said to be a small part."""
    if recovered is None or recovered.bounds is None:
        return "an unknown share of the long gain"
    low, high = recovered.bounds
    if low > 1:
        return "more than the whole long gain"
    if low > MOST:
        return "more than half of the long gain"
    if high < MOST and not is_fragile:
        return "less than half of the long gain"
    return "some of the long gain" if low > 0 else "an unclear share of the long gain"


def _support(summary: Summary, entry: SelectionSummary) -> int:
    """Return what a choice shows: 2, that few tokens give back most of the long gain; 1, that they give back some; 0, nothing.

    They are few, gain more than as many at random, and give back more than half of the long gain, or more than nothing.
    """
    recovered, over = entry.recovered_fraction, entry.gain_over_random_nats
    is_better = over is not None and over.is_above_zero
    if not (is_better and _are_few(summary, entry) and recovered is not None and recovered.low is not None):
        return 0
    return 2 if recovered.low > MOST else int(recovered.low > 0)


def _supports(summary: Summary, selector: str) -> dict[int, int]:
    """Return what the choices of a selector show, by each k of conclusions about few."""
    return {k: _support(summary, summary.at(selector, "real", k)) for k in summary.ks_of_few}


def _are_few(summary: Summary, entry: SelectionSummary) -> bool:
    return entry.mean_tokens <= FEW * summary.lengths.num_long_range


def _verdict_words(summary: Summary, selector: str) -> str:
    """Return what follows from the choices of one selector, whether the text matters, and which other selectors show more."""
    supports = _supports(summary, selector)
    reached = max(supports.values())
    ks = [k for k, support in supports.items() if support == reached]
    few = f"Few {units_of(summary)} (k = {' and '.join(map(str, ks))}, {FEW_WORDS})"
    if reached == 0:
        words = [_nothing_shown_words(summary, selector)]
    elif reached == 1:
        words = [f"{few} give back some of the long gain, but not clearly most of it."]
    else:
        words = [f"{few} give back most of the long gain."]
    if reached:
        words += dict.fromkeys(warning for k in ks if (warning := _null_warning(summary, selector, k=k)))
    others = (name for name in summary.blind_selectors if name not in CONTROLS)
    more = [name for name in others if max(_supports(summary, name).values()) > reached]
    if more:
        words.append(f"The table has selectors that show more: {', '.join(more)}.")
    return " ".join(words)


def _nothing_shown_words(summary: Summary, selector: str) -> str:
    """Return why no choice of a selector shows that few tokens give back some of the long gain."""
    entries, units = (
        [summary.at(selector, "real", k) for k in summary.ks_of_few],
        units_of(summary),
    )
    if not any(_are_few(summary, entry) for entry in entries):
        return f"These are not few {units} ({FEW_WORDS}), so nothing is shown about few."
    if any(entry.gain_over_random_nats is None for entry in entries):
        return f"Without random, it is not shown that it matters which {units} these are."
    return f"So it is not shown that few {units} ({FEW_WORDS}) give back the long gain, which is no proof that none do."


def _null_warning(summary: Summary, selector: str, *, k: int) -> str:
    """Return that a gain over random need not be information, where the null context gives it as well; else nothing.

    Visible tokens may merely flatten an overconfident prediction.
    """
    excess, null = summary.at(selector, "real", k).excess_gain_nats, _entry(summary, selector, "null", k=k)
    if excess is None or null is None or null.gain_over_random_nats is None:
        return "No null context stands beside this gain, so it may be no information."
    if not excess.is_above_zero:
        return (
            f"At k = {k} the choice under the null context gains not clearly less (real minus null {interval(excess, 3)} nats), "
            "so this gain need not come from what the text says."
        )
    if null.gain_over_random_nats.is_above_zero:
        return (
            f"At k = {k} the choice gains over random under the null context, too: not all of this need be information."
        )
    return ""


def _generalization_words(summary: Summary) -> str:
    """Return what the measurement shows about length generalization."""
    gain, row, full = summary.gain_beyond_nats, summary.lengths.train_len, summary.lengths.full_len
    a_row = row_words(summary.lengths)
    if row is None:
        return "Without a known training row, nothing is shown about length generalization."
    if gain is None or summary.beyond_gate == "not-applicable":
        words = row_has_words(summary.lengths)
        return f"{words[0].upper()}{words[1:]}: {SELECTION_ONLY}."
    worth = (
        f"All {full} tokens are worth {interval(gain, 3)} nats more than the last {row}, as many as {a_row} has "
        f"({EITHER_WAY})"
    )
    if summary.beyond_gate_passed:
        return (
            f"{worth}: the model generalizes in length, but whether it does so because few {units_of(summary)} are enough "
            "is not shown."
        )
    if summary.beyond_gate == "not-assessed":
        return f"{worth}, {against_zero(gain)}."
    return f"{worth}, {against_zero(gain)}: {SELECTION_ONLY}."
