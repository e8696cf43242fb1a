"""What the evidence says about the paper's claim: the numbers of the summary, and no more than its intervals allow."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import pytest
from made_up import CONTEXTUAL
from planted_gains import made_up

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import MIN_RATIO_DOCUMENTS
from olmo_sparsity.statistics.single.measurement import NullContext
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary, beyond_gate_of, summarize
from olmo_sparsity.wording.captions import blind_caption, every_caption
from olmo_sparsity.wording.evidence import (
    CLAIM,
    NO_EVIDENCE,
    NO_HEADLINE,
    NO_SEEING,
    blind_words,
    evidence_sentences,
    prediction_words,
    seeing_words,
    value_words,
    verdict_words,
)
from olmo_sparsity.wording.gates import (
    MAY_BE_GAP,
    NO_LONG_GAIN,
    SELECTION_ONLY,
    beyond_gate_words,
    gap_words,
    gate_sentences,
    gate_words,
    gates_not_passed,
)
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.selection import selection_words
from olmo_sparsity.wording.setup import NULL_WORDS

CLEAR, UNCLEAR, LOSS = (
    Estimate(0.05, 0.02, 0.08, 0.015),
    Estimate(0.05, 0.0, 0.1, 0.03),
    Estimate(-0.05, -0.08, -0.02, 0.02),
)
HALF = Estimate(0.6, 0.5001, 0.7, 0.05)  # an R(k) that lies above a half


@pytest.fixture(scope="module")
def passed() -> Summary:
    return summarize(made_up(200, long_gain=0.5))


@pytest.fixture(scope="module")
def failed() -> Summary:
    return summarize(made_up(200, long_gain=0.0))


def only(*selectors: str, num_documents: int = 200) -> Summary:
    """Return the summary of some selectors alone."""
    return summarize(made_up(num_documents, long_gain=0.5).restrict_selectors({name: name for name in selectors}))


def planted(
    summary: Summary, selector: str, *, k: Optional[int] = None, context: str = "real", **values: Any
) -> Summary:
    """Return a summary with these values of a selector, at one k or at all."""

    def changed(entry: SelectionSummary) -> SelectionSummary:
        is_meant = (entry.selector, entry.context) == (selector, context) and k in (None, entry.k)
        return dataclasses.replace(entry, **values) if is_meant else entry

    return dataclasses.replace(summary, selections=tuple(map(changed, summary.selections)))


def without(summary: Summary, context: str) -> Summary:
    """Return a summary without the entries of a context."""
    return dataclasses.replace(summary, selections=tuple(e for e in summary.selections if e.context != context))


def with_row(summary: Summary, row: Optional[int], gain: Optional[Estimate]) -> Summary:
    """Return a summary of rows of so many tokens, beyond which the gain is this."""
    lengths = dataclasses.replace(summary.lengths, train_len=row)
    return dataclasses.replace(
        summary, lengths=lengths, gain_beyond_nats=gain, beyond_gate=beyond_gate_of(gain, lengths)
    )


def clear(summary: Summary, recovered: Estimate = HALF, **values: Any) -> Summary:
    """Return a summary whose `kl` gains clearly over random at k = 1, and has this R(1), and nothing clear at k = 4."""
    nothing = {"gain_over_random_nats": UNCLEAR, "recovered_fraction": Estimate(0.1, -0.1, 0.3)}
    null = planted(planted(summary, "kl", k=4, **nothing), "kl", context="null", gain_over_random_nats=UNCLEAR)
    return planted(null, "kl", k=1, **{"gain_over_random_nats": CLEAR, "recovered_fraction": recovered, **values})


def conclusion(summary: Summary) -> str:
    *_, last = evidence_sentences(summary)
    assert last.startswith(f"{CLAIM} ")
    return last.removeprefix(f"{CLAIM} ")


# --- the verdict


def test_the_verdict_says_what_both_gates_and_the_choice_show(passed: Summary) -> None:
    shown = planted(with_row(clear(passed), 12, CLEAR), "kl", k=1, excess_gain_nats=CLEAR)
    beyond, few = verdict_words(shown).split("; ")
    assert beyond == "The model gains from the long context, also from beyond its training row of 12 tokens"
    assert few == (
        "1 of the 12 long-range tokens, chosen by kl without the target, gives back most of it, more than a random one and more "
        "than under foreign text."
    )
    assert verdict_words(with_row(shown, 12, UNCLEAR)).startswith(
        "The model gains from the long context, but no gain from beyond its training row of 12 tokens is shown; "
    )
    assert "(its training row is not known)" in verdict_words(with_row(shown, None, None))
    stated = dataclasses.replace(shown, lengths=dataclasses.replace(shown.lengths, train_len_is_stated=True))
    assert "also from beyond the stated training row of 12 tokens" in verdict_words(stated)
    assert "none of which lies beyond its training row of 20" in verdict_words(with_row(shown, 20, CLEAR))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"excess_gain_nats": UNCLEAR},
            "most of it, more than a random one, but not clearly more than under foreign text.",
        ),
        ({"excess_gain_nats": None}, "most of it, more than a random one."),
        ({"recovered_fraction": Estimate(0.6, 0.5, 0.7)}, "gives back some of it, more than a random one"),
        ({"recovered_fraction": Estimate(0.3, 0.0, 0.6)}, "; it is not shown that few tokens give the gain back."),
        ({"gain_over_random_nats": UNCLEAR}, "; it is not shown that few tokens give the gain back."),
        ({"gain_over_random_nats": None}, "; it is not shown that few tokens give the gain back."),
    ],
)
def test_the_verdict_says_no_more_than_the_intervals(
    passed: Summary, values: dict[str, Optional[Estimate]], words: str
) -> None:
    of = planted(clear(passed), "kl", k=1, **{"excess_gain_nats": CLEAR, **values})
    assert words in verdict_words(of)


def test_the_verdict_calls_only_text_of_another_document_foreign(passed: Summary) -> None:
    of = planted(clear(passed), "kl", k=1, excess_gain_nats=CLEAR)
    assert verdict_words(of).endswith(" and more than under foreign text.")
    shuffled = dataclasses.replace(of, null_context="shuffled")
    assert verdict_words(shuffled).endswith(" and more than under the null context.")


def test_the_verdict_without_a_gain(passed: Summary, failed: Summary) -> None:
    assert verdict_words(failed) == "Not shown: these windows show no clear gain of the model from the long context."
    assert "too few" in verdict_words(only("kl", num_documents=49))
    assert MAY_BE_GAP in verdict_words(dataclasses.replace(passed, gate="failed", long_gain_nats=CLEAR))
    assert verdict_words(only("unmask-one", "random")).endswith(
        "; whether few tokens give the gain back is not shown without a selector that does not see the target."
    )


# --- the gates


def test_the_gates_in_short_leave_their_numbers_to_the_sentences(passed: Summary, failed: Summary) -> None:
    assert gate_words(passed, short=True) == "Gate passed: the mean long gain is clearly above 0."
    assert gate_words(failed, short=True) == f"GATE FAILED: {NO_LONG_GAIN}."
    few = only("kl", num_documents=49)
    too_few = "not assessed: fewer than 50 documents are too few for an interval"
    assert (few.gate, few.beyond_gate) == ("not-assessed", "not-assessed")
    assert gate_words(few) == f"Gate {too_few}, so no recovered fraction is shown."
    assert gate_words(few, short=True) == f"Gate {too_few}."
    for short in (False, True):
        assert beyond_gate_words(few, short=short) == f"Gate beyond the training row {too_few}."
    assert gates_not_passed(few) == [f"Gate {too_few}", f"Gate beyond the training row {too_few}"]
    assert not any(
        "FAILED" in words or SELECTION_ONLY in words for words in (*gate_sentences(few), *evidence_sentences(few))
    )
    for summary in (passed, failed, few):
        assert "nats" not in gate_words(summary, short=True) + beyond_gate_words(summary, short=True)


def test_the_gate_has_no_minus_0(failed: Summary) -> None:
    gain = Estimate(0.0123, -0.00004, 0.02)
    words = gate_words(dataclasses.replace(failed, long_gain_nats=gain, gate_gain_nats=gain))
    assert "+0.0123 nats, 95% interval [+0.0000, +0.0200]" in words


@pytest.mark.parametrize(
    ("row", "gain", "words"),
    [
        (None, None, "The gate beyond the training row does not apply: no training row of this model is known."),
        (
            20,
            CLEAR,
            "The gate beyond the training row does not apply: a training row has all 20 tokens, so nothing lies beyond it.",
        ),
        (8, CLEAR, "Gate beyond the training row passed: it is the same gate, since"),
        (8, UNCLEAR, "GATE BEYOND THE TRAINING ROW FAILED: it is the same gate, since"),
        (14, CLEAR, "Gate beyond the training row passed: the mean gain beyond the training row is clearly above 0."),
        (
            14,
            UNCLEAR,
            "GATE BEYOND THE TRAINING ROW FAILED: the windows show no clear gain of this model from more tokens than",
        ),
    ],
)
def test_the_gate_beyond_the_row_in_short(
    passed: Summary, row: Optional[int], gain: Optional[Estimate], words: str
) -> None:
    assert beyond_gate_words(with_row(passed, row, gain), short=True).startswith(words)


# --- one to four


def test_there_are_five_sentences_in_their_order(passed: Summary) -> None:
    value, blind, seeing, prediction, last = evidence_sentences(passed)
    assert value == value_words(passed)
    assert blind == blind_words(passed, "kl")
    assert seeing == seeing_words(passed, "unmask-one")
    assert prediction == prediction_words(passed, "kl")
    assert last == f"{CLAIM} {conclusion(passed)}"


@pytest.mark.parametrize("names", [("kl",), ("random",), ("unmask-one",), ("unmask-one", "random"), ("kl", "random")])
@pytest.mark.parametrize("num_documents", [20, 200])
def test_there_are_five_whatever_was_measured(names: tuple[str, ...], num_documents: int) -> None:
    sentences = evidence_sentences(only(*names, num_documents=num_documents))
    assert len(sentences) == 5 and all(sentence.endswith(".") for sentence in sentences)
    for unfinished in ("None", "  ", "..", " -,", "= -", "()", " - "):
        assert unfinished not in " ".join(sentences)


def test_a_long_gain_that_may_be_the_cost_of_the_gap_is_not_said_to_be_given_back(passed: Summary) -> None:
    said = conclusion(dataclasses.replace(passed, gate="failed", gate_gain_nats=UNCLEAR))
    assert said.startswith(f"Here {MAY_BE_GAP}, so it is not shown that there is one that few tokens could give back.")


def test_the_value_of_the_long_context(passed: Summary) -> None:
    words = value_words(passed)
    assert "all 12 long-range tokens in addition to the 8 local ones" in words
    assert f"{interval(passed.long_gain_nats, 3)} nats, clearly above 0" in words
    assert interval(passed.null_long_gain_nats, 3) in words and words.endswith(
        f"nats, so it does harm. {gap_words(passed)}"
    )
    harmless = dataclasses.replace(passed, null_long_gain_nats=Estimate(-0.1, -0.2, 0.1))
    assert "harm" not in value_words(harmless)


@pytest.mark.parametrize("kind", NULL_WORDS)
def test_the_value_names_the_null_context(passed: Summary, kind: NullContext) -> None:
    summary = dataclasses.replace(passed, null_context=kind)
    assert f"the null context in their place ({NULL_WORDS[kind]}) is worth" in value_words(summary)


def test_a_selector_that_does_not_see_the_target_is_described_alike_at_both_ends(
    passed: Summary, failed: Summary
) -> None:
    words = blind_words(passed, "kl")
    for k, chosen, ones in ((1, "one token gains", "a random one"), (4, "4 tokens gain", "4 random ones")):
        entry, random = passed.at("kl", "real", k), passed.at("random", "real", k)
        over, null = entry.gain_over_random_nats, passed.at("kl", "null", k).gain_over_random_nats
        assert over is not None and null is not None
        assert f"{chosen} {interval(over, 3)} nats over {ones} (null context: {interval(null, 3)}), " in words
        recovered = f"R({k}) = {interval(entry.recovered_fraction)} (random: {interval(random.recovered_fraction)})"
        assert recovered in words
    words = blind_words(failed, "kl")
    assert "R(1)" not in words and "R(4)" not in words and "no R(k) is shown, since the gate did not pass" in words


def test_without_random_or_null_context_there_is_no_number_of_theirs(passed: Summary) -> None:
    alone = only("kl")
    words = blind_words(alone, "kl")
    assert f"one token gains {interval(alone.at('kl', 'real', 1).gain_sparse_nats, 3)} nats, R(1) = " in words
    assert "random" not in words and "null" not in words
    assert "null context" not in blind_words(without(passed, "null"), "kl")


def test_a_fragile_recovered_fraction_is_marked_in_the_headline(passed: Summary) -> None:
    fragile = dataclasses.replace(passed, is_fragile=True)
    assert f"R(1) = {interval(passed.at('kl', 'real', 1).recovered_fraction)} fragile" in blind_words(fragile, "kl")


def test_the_headline_is_of_the_selector_that_the_page_shows_first(passed: Summary) -> None:
    others = tuple(dataclasses.replace(e, selector="attention") for e in passed.selections if e.selector == "kl")
    both = dataclasses.replace(passed, selections=(*others, *passed.selections))
    assert evidence_sentences(both)[1] == blind_words(both, "kl")
    assert evidence_sentences(both, "attention")[1] == blind_words(both, "attention")
    for not_blind in ("unmask-one", "random", "not-measured"):
        assert evidence_sentences(both, not_blind)[1] == blind_words(both, "kl")


def test_one_k_is_said_once(passed: Summary) -> None:
    one = dataclasses.replace(passed, selections=tuple(e for e in passed.selections if e.k == 4))
    for sentence in evidence_sentences(one)[1:]:
        assert "one token" not in sentence and "R(1)" not in sentence and "D(1)" not in sentence
    assert blind_words(one, "kl").count("4 tokens gain") == seeing_words(one, "unmask-one").count("4 tokens gain") == 1


def test_optimism_is_taken_off_a_selector_that_sees_the_target(passed: Summary) -> None:
    words = seeing_words(passed, "unmask-one")
    for k in (1, 4):
        entry = passed.at("unmask-one", "real", k)
        for estimate in (entry.gain_sparse_nats, entry.optimism_nats, entry.corrected_gain_nats):
            assert interval(estimate, 3) in words
        placebo = passed.at("unmask-one", "null", k).corrected_gain_nats
        assert f"(null context: {interval(placebo, 3)})" in words
    assert "R(" not in words
    unknown = planted(passed, "unmask-one", optimism_nats=None, corrected_gain_nats=None)
    assert seeing_words(unknown, "unmask-one").count("of which an unknown part is optimism") == 2


def test_a_kind_of_selector_that_was_not_measured_is_named() -> None:
    assert evidence_sentences(only("kl", "random"))[2] == NO_SEEING
    assert prediction_words(only("random"), "random").endswith("is not shown: only random was measured.")
    seeing = only("unmask-one", "random")
    assert evidence_sentences(seeing)[1] == NO_HEADLINE
    assert evidence_sentences(seeing)[2] == seeing_words(seeing, "unmask-one")
    assert "Without a selector that does not see the target, it is not shown whether few tokens do so." in conclusion(
        seeing
    )


def test_d_is_never_without_its_company(passed: Summary, failed: Summary) -> None:
    words = prediction_words(passed, "kl")
    for k in (1, 4):
        of = passed.prediction_recovered("kl", k)
        assert f"D({k}) = {interval(of.real)} (random {interval(of.random)}, null context {interval(of.null)})" in words
    assert words.endswith(NO_EVIDENCE) and "not measured" not in words and "gate" not in words
    assert "No R(k) stands beside it, since the gate did not pass." in prediction_words(failed, "kl")


def test_d_of_too_few_documents_says_why_it_has_no_interval(passed: Summary) -> None:
    assert passed.num_documents < MIN_RATIO_DOCUMENTS
    words = f"D(k): too few documents for an interval ({passed.num_documents}; it takes 300)."
    enough = dataclasses.replace(passed, num_documents=MIN_RATIO_DOCUMENTS)
    for written in (lambda summary: prediction_words(summary, "kl"), blind_caption, every_caption):
        assert words in written(passed) and "too few documents" not in written(enough)


def test_d_of_a_selector_that_sees_the_target_has_its_recovered_fraction(passed: Summary, failed: Summary) -> None:
    """No other sentence has it."""
    words = prediction_words(passed, "unmask-one")
    for k in (1, 4):
        recovered = interval(passed.at("unmask-one", "real", k).recovered_fraction)
        assert f"R({k}) with its optimism {recovered})" in words
    assert "R(1)" not in prediction_words(failed, "unmask-one")


def test_what_is_missing_beside_d_is_named(passed: Summary) -> None:
    assert "D under the null context was not measured." in prediction_words(without(passed, "null"), "kl")
    for k in (1, 4):  # missing at one of both k is missing
        kept = [e for e in passed.selections if e.key != ("kl", "null", k)]
        words = prediction_words(dataclasses.replace(passed, selections=tuple(kept)), "kl")
        assert words.count("was not measured.") == 1 and "D under the null context was not measured." in words
    for summary, reason in (
        (only("kl"), "random was not measured beside it."),
        (only("random"), "only random was measured."),
        (planted(passed, "kl", prediction_recovered=None), "the long context does not change the model's prediction."),
    ):
        words = evidence_sentences(summary)[3]
        assert words.endswith(f"is not shown: {reason}") and "D(1)" not in words


# --- the conclusion


def test_few_that_give_back_most_are_said_to_do_so(passed: Summary) -> None:
    words = conclusion(clear(passed))
    assert words.startswith(
        "Here (visibility hidden, chosen by kl) one of the 12 long-range tokens gives back more than half of "
    )
    assert (
        "the long gain and more than a random one. Few tokens" in words
    )  # 4 of 12 are not few, so nothing is said of them
    sixteen = conclusion(dataclasses.replace(clear(passed), num_units=16.0))
    assert "; 4 give back less than half of the long gain and not clearly more than 4 random ones." in sixteen
    without_one = tuple(entry for entry in passed.selections if entry.k != 1)
    from_four = conclusion(dataclasses.replace(passed, selections=without_one, num_units=16.0))
    assert ", chosen by kl) 4 of the 12 long-range tokens give back" in from_four
    assert "Few tokens (k = 1, at most a quarter of the long-range tokens) give back most of the long gain." in words
    assert "null context" not in words and "The table" not in words


@pytest.mark.parametrize(
    ("low", "high", "amount", "verdict"),
    [
        (1.01, 1.2, "more than the whole long gain", "give back most of the long gain."),
        (1.0, 1.2, "more than half of the long gain", "give back most of the long gain."),
        (0.51, 0.7, "more than half of the long gain", "give back most of the long gain."),
        (0.5, 0.7, "some of the long gain", "give back some of the long gain, but not clearly most of it."),
        (0.01, 0.5, "some of the long gain", "give back some of the long gain, but not clearly most of it."),
        (0.01, 0.49, "less than half of the long gain", "give back some of the long gain, but not clearly most of it."),
        (0.0, 0.49, "less than half of the long gain", "which is no proof that none do."),
        (0.0, 0.6, "an unclear share of the long gain", "which is no proof that none do."),
        (None, None, "an unknown share of the long gain", "which is no proof that none do."),
    ],
)
def test_the_words_follow_the_interval_of_the_recovered_fraction(
    passed: Summary, low: Optional[float], high: Optional[float], amount: str, verdict: str
) -> None:
    words = conclusion(clear(passed, Estimate(0.4, low, high)))
    assert f"one of the 12 long-range tokens gives back {amount} and more than a random one" in words
    assert verdict in words


def test_a_fragile_fraction_is_not_said_to_be_small(passed: Summary) -> None:
    """It misses low: the truth may lie above its interval."""
    fragile = dataclasses.replace(clear(passed, Estimate(0.3, 0.1, 0.4)), is_fragile=True)
    assert "gives back some of the long gain and more" in conclusion(fragile)
    assert "less than half" not in conclusion(fragile)


@pytest.mark.parametrize(
    ("over", "words", "is_shown"),
    [
        (CLEAR, "more than a random one", True),
        (UNCLEAR, "not clearly more than a random one", False),
        (LOSS, "less than a random one", False),
    ],
)
def test_few_must_gain_more_than_random_ones(passed: Summary, over: Estimate, words: str, is_shown: bool) -> None:
    said = conclusion(clear(passed, gain_over_random_nats=over))
    assert f"more than half of the long gain and {words}." in said
    assert ("give back most of the long gain." in said) == is_shown
    assert ("So it is not shown that few tokens" in said) != is_shown


def test_many_are_not_few(passed: Summary) -> None:
    """3 of the 12 long-range tokens are at most a quarter of them, 4 are not."""
    shown = clear(passed)
    assert "give back most" in conclusion(planted(shown, "kl", k=1, mean_tokens=3.0))
    many = conclusion(planted(shown, "kl", k=1, mean_tokens=3.1))
    assert "give back most" not in many
    assert (
        "These are not few tokens (at most a quarter of the long-range tokens), so nothing is shown about few." in many
    )


def test_one_few_choice_is_enough_to_say_that_nothing_is_shown_about_few(passed: Summary) -> None:
    """Of groups k = 1 and 4 may both be up to a quarter of all groups, and have more than a quarter of the tokens."""
    of_16 = dataclasses.replace(clear(passed), num_units=16.0, unit="word")
    unclear = planted(of_16, "kl", k=1, gain_over_random_nats=UNCLEAR, mean_tokens=2.9)
    not_shown = "So it is not shown that few words (at most a quarter of the long-range tokens) give back the long gain"
    for few, many in ((1, 4), (4, 1)):
        one = planted(planted(unclear, "kl", k=few, mean_tokens=3.0), "kl", k=many, mean_tokens=3.1)
        assert not_shown in conclusion(one) and "These are not few" not in conclusion(one)
        none = planted(one, "kl", k=few, mean_tokens=3.2)
        assert not_shown not in conclusion(none) and "These are not few words" in conclusion(none)


def test_without_random_no_choice_is_said_to_matter() -> None:
    words = conclusion(only("kl"))
    assert "Without random, it is not shown that it matters which tokens these are." in words
    assert "random one" not in words and "Few tokens" not in words


def test_where_random_choices_raise_the_loss_the_gain_over_them_is_not_taken_for_a_gain(passed: Summary) -> None:
    assert "raise the loss" not in blind_words(passed, "kl")
    harmed = planted(passed, "random", k=4, gain_sparse_nats=Estimate(-0.5, -0.6, -0.4, 0.05))
    words = blind_words(harmed, "kl")
    assert words.endswith(
        "Random choices raise the loss (k = 4: -0.500 [-0.600, -0.400] nats), so the gain over random is more than what the "
        "choice itself gains."
    )
    both = planted(harmed, "random", k=1, gain_sparse_nats=Estimate(-0.2, -0.3, -0.125, 0.05))
    at_1 = planted(both, "random", k=4, gain_sparse_nats=CLEAR)
    losses = ("k = 1: -0.200 [-0.300, -0.125] nats", "k = 4: -0.500 [-0.600, -0.400] nats")
    assert f"Random choices raise the loss ({'; '.join(losses)}), so" in blind_words(both, "kl")
    assert f"Random choices raise the loss ({losses[0]}), so" in blind_words(at_1, "kl")
    barely = planted(passed, "random", k=4, gain_sparse_nats=Estimate(-0.5, -1.1, 0.1, 0.3))
    assert "raise the loss" not in blind_words(barely, "kl")


def test_the_same_verdict_at_both_ends_names_both(passed: Summary) -> None:
    summary = clear(passed)
    both = planted(summary, "kl", k=4, mean_tokens=3.0, gain_over_random_nats=CLEAR, recovered_fraction=HALF)
    said = dataclasses.replace(both, num_units=16.0)
    assert "Few tokens (k = 1 and 4, at most a quarter" in conclusion(said)
    assert "; 1 of the 12 long-range tokens, chosen by kl" in verdict_words(said)  # the fewest that show as much


def test_conclusions_are_of_the_largest_k_that_is_few_and_headlines_of_the_largest_shown(passed: Summary) -> None:
    """Of 20 tokens 5 are a quarter: k = 1, 4 and 8 are shown, and 4 is the largest of which conclusions about few are."""
    more = [
        dataclasses.replace(e, k=k, mean_tokens=float(k))
        for e in passed.selections
        for k in ((2, 8, 16) if e.k == 4 else ())
    ]
    lengths = dataclasses.replace(passed.lengths, num_long_range=20)
    all_ks = dataclasses.replace(passed, selections=(*passed.selections, *more), num_units=20.0, lengths=lengths)
    assert (all_ks.ks, all_ks.shown_ks) == ([1, 2, 4, 8, 16], [1, 4, 8])
    nothing = {"gain_over_random_nats": UNCLEAR, "recovered_fraction": Estimate(0.1, -0.1, 0.3)}
    shown = planted(planted(all_ks, "kl", **nothing), "kl", context="null", gain_over_random_nats=UNCLEAR)
    for k in (2, 4, 8, 16):
        shown = planted(shown, "kl", k=k, gain_over_random_nats=CLEAR, recovered_fraction=HALF)
    said = conclusion(shown)
    assert "Few tokens (k = 4, at most a quarter of the long-range tokens) give back most of the long gain." in said
    assert "chosen by kl) one of the 20 long-range tokens gives back" in said
    assert "; 4 give back more than half of the long gain and more than 4 random ones. Few" in said
    assert "; 4 of the 20 long-range tokens, chosen by kl without the target, give back most of it" in verdict_words(
        shown
    )
    for words in (blind_words(shown, "kl"), seeing_words(shown, "unmask-one")):
        assert "one token gains" in words and "; 8 tokens gain" in words
        assert "2 tokens gain" not in words and "4 tokens gain" not in words
    words = prediction_words(shown, "kl")
    assert "D(1) = " in words and "D(8) = " in words and "D(2)" not in words and "D(4)" not in words
    of_8_alone = planted(planted(shown, "kl", k=4, **nothing), "kl", k=2, **nothing)
    assert "So it is not shown that few tokens" in conclusion(of_8_alone)
    assert "; it is not shown that few tokens give the gain back." in verdict_words(of_8_alone)
    # Of 64 tokens 16 are a quarter; k = 4 stands between the smallest and the largest, of which conclusions are.
    lengths = dataclasses.replace(lengths, num_long_range=64)
    of_64 = dataclasses.replace(planted(shown, "kl", k=16, **nothing), num_units=64.0, lengths=lengths)
    assert of_64.shown_ks == [1, 4, 16] and "So it is not shown that few tokens" in conclusion(of_64)


def test_a_gain_that_the_null_context_gives_as_well_need_not_be_information(passed: Summary) -> None:
    shown = clear(passed)
    null_too = planted(shown, "kl", k=1, context="null", gain_over_random_nats=CLEAR)
    assert "At k = 1 the choice gains over random under the null context, too" in conclusion(null_too)
    both = planted(null_too, "kl", k=4, mean_tokens=3.0, gain_over_random_nats=CLEAR, recovered_fraction=HALF)
    both = planted(both, "kl", k=4, excess_gain_nats=Estimate(0.0, -0.1, 0.1))
    words = conclusion(dataclasses.replace(both, num_units=16.0))
    assert "At k = 1 the choice gains over random under the null context, too" in words
    assert "At k = 4 the choice under the null context gains not clearly less" in words
    as_much = planted(shown, "kl", k=1, excess_gain_nats=Estimate(0.125, -0.25, 0.5))
    assert "gains not clearly less (real minus null 0.125 [-0.250, 0.500] nats), so" in conclusion(as_much)
    for lacking in (without(shown, "null"), without(dataclasses.replace(both, num_units=16.0), "null")):
        assert conclusion(lacking).count("No null context stands beside this gain") == 1
    nothing = planted(as_much, "kl", k=1, gain_over_random_nats=UNCLEAR)
    assert "null" not in conclusion(nothing)  # there is nothing to doubt


def test_selectors_that_show_more_are_named(passed: Summary) -> None:
    shown, weak = clear(passed), clear(passed, Estimate(0.3, 0.1, 0.4))
    others = tuple(dataclasses.replace(e, selector="attention") for e in shown.selections if e.selector == "kl")
    both = dataclasses.replace(weak, selections=(*weak.selections, *others))
    assert "The table has selectors that show more: attention." in conclusion(both)
    assert "show more" not in evidence_sentences(both, "attention")[4]


def test_controls_are_not_said_to_show_more(passed: Summary) -> None:
    """Where the nearest tokens are enough nothing was chosen."""
    shown, weak = clear(passed), clear(passed, Estimate(0.3, 0.1, 0.4))

    def of(name: str) -> tuple[SelectionSummary, ...]:
        return tuple(dataclasses.replace(e, selector=name) for e in shown.selections if e.selector == "kl")

    both = dataclasses.replace(weak, selections=(*weak.selections, *of("nearest")))
    assert "nearest" in both.blind_selectors and "show more" not in conclusion(both)
    three = dataclasses.replace(weak, selections=(*weak.selections, *of("nearest"), *of("attention")))
    assert "The table has selectors that show more: attention." in conclusion(three)
    alone = tuple(e for e in shown.selections if e.selector == "random")  # beside it nearest is that of the headline
    assert "chosen by nearest" in conclusion(dataclasses.replace(shown, selections=(*of("nearest"), *alone)))


def test_a_failed_gate_is_no_proof_of_absence(failed: Summary) -> None:
    words = conclusion(failed)
    assert words.startswith(
        "These windows do not show a long gain that few tokens could give back, which is no proof that"
    )
    assert "Few tokens" not in words
    few = conclusion(only("kl", "random", num_documents=49))
    assert few.startswith("Here there are too few documents to tell whether there is a long gain")
    assert "do not show" not in few and "from too few documents to tell it from 0" in few


def test_units_are_named(passed: Summary) -> None:
    shown = planted(clear(dataclasses.replace(passed, unit="sentence")), "kl", k=1, mean_tokens=2.5)
    words = conclusion(shown)
    assert (
        "one sentence (2.5 of the 12 long-range tokens on average) gives back more than half of the long gain" in words
    )
    assert "Few sentences (k = 1, at most a quarter of the long-range tokens) give back most" in words
    assert "one sentence gains" in evidence_sentences(shown)[1] and "4 sentences gain" in evidence_sentences(shown)[2]


def test_the_definition_of_visible_is_named(passed: Summary) -> None:
    contextual = dataclasses.replace(passed, setup=ModelSetup.from_manifest(CONTEXTUAL))
    assert conclusion(contextual).startswith("Here (visibility contextual, chosen by kl)")


@pytest.mark.parametrize(
    ("row", "gain", "words"),
    [
        (None, None, "Without a known training row, nothing is shown about length generalization."),
        (20, CLEAR, f"A training row has all 20 tokens: {SELECTION_ONLY}."),
        (64, CLEAR, f"A training row has 64 tokens, more than the 20 of a window: {SELECTION_ONLY}."),
        (
            14,
            CLEAR,
            "the model generalizes in length, but whether it does so because few tokens are enough is not shown.",
        ),
        (
            8,
            CLEAR,
            "the model generalizes in length, but whether it does so because few tokens are enough is not shown.",
        ),
        (14, UNCLEAR, f"whichever has the lower loss), not clearly different from 0: {SELECTION_ONLY}."),
        (14, LOSS, f"whichever has the lower loss), clearly below 0: {SELECTION_ONLY}."),
    ],
)
def test_what_is_said_about_length_generalization(
    passed: Summary, failed: Summary, row: Optional[int], gain: Optional[Estimate], words: str
) -> None:
    for summary in (passed, failed):
        said = conclusion(with_row(summary, row, gain))
        assert said.endswith(words) and ("generalizes" in said) == (gain is CLEAR and row in (8, 14))
        cited = (
            f"All 20 tokens are worth {interval(gain, 3)} nats more than the last {row}, as many as a training row has"
        )
        assert (cited in said) == (row in (8, 14))


# --- what selection does


@pytest.mark.parametrize("off", [CLEAR, LOSS])
def test_an_optimism_of_random_choices_on_either_side_of_0_is_named(passed: Summary, off: Estimate) -> None:
    held = dataclasses.replace(planted(passed, "random", optimism_nats=UNCLEAR), optimism_all_nats=UNCLEAR)
    assert "the intervals of their optimism hold 0, as they must" in selection_words(held)
    words = selection_words(planted(held, "random", k=4, optimism_nats=off))
    assert "the interval of the optimism of random at k = 4 does not hold 0." in words and "as they must" not in words
    all_tokens = selection_words(dataclasses.replace(held, optimism_all_nats=off))
    assert "the interval of the optimism of all tokens does not hold 0." in all_tokens


def test_an_optimism_without_an_interval_is_not_said_to_hold_0(passed: Summary) -> None:
    unknown = Estimate(0.05)
    held = dataclasses.replace(planted(passed, "random", optimism_nats=unknown), optimism_all_nats=UNCLEAR)
    assert "All tokens select nothing, and the interval of their optimism holds 0, as it must." in selection_words(held)
    one = planted(held, "random", k=4, optimism_nats=UNCLEAR)
    assert "Random and all tokens select nothing, and the intervals of their optimism hold 0" in selection_words(one)
    none = selection_words(dataclasses.replace(held, optimism_all_nats=unknown))
    assert "select nothing" not in none and "hold" not in none


def test_a_placebo_above_0_is_named(passed: Summary) -> None:
    """The corrected gain under the null context; under the real one it is what a measurement hopes for."""
    held = planted(passed, "random", context="null", corrected_gain_nats=UNCLEAR)
    for name in held.seeing_selectors:
        held = planted(held, name, context="null", corrected_gain_nats=LOSS)
        held = planted(held, name, corrected_gain_nats=CLEAR)
    assert "placebo" not in selection_words(held)
    selector = held.seeing_selectors[0]
    above = planted(held, selector, k=4, context="null", corrected_gain_nats=CLEAR)
    words = selection_words(planted(above, "random", k=1, context="null", corrected_gain_nats=CLEAR))
    assert (
        f"The placebo of {selector} at k = 4, random at k = 1 is above 0, so not all of the corrected gain need"
        in words
    )


def test_calibration_is_the_entropy_minus_the_loss(passed: Summary) -> None:
    calibrated = dataclasses.replace(passed, calibration_nats=Estimate(0.1234, -0.2345, 0.3456, 0.1))
    assert "its entropy minus its loss is 0.123 [-0.234, 0.346] nats." in selection_words(calibrated)
