"""Sentences about several models: each number stands where the sentence says it does; no two of the numbers are alike."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import pytest
from numbered import numbered
from planted_gains import made_up

from olmo_sparsity.records.measured import Anchor
from olmo_sparsity.statistics.inside_and_beyond import InsideAndBeyond, Twin
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import ComparedSubject, Comparison, ComparisonRow
from olmo_sparsity.statistics.several.hypothesis import (
    THIRDS,
    Analysis,
    Contrasts,
    Hypothesis,
    SparsityAndGain,
    ThirdOfTargets,
)
from olmo_sparsity.statistics.several.subjects import Pairing
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.wording.comparison import differences_sentences, pairing_words
from olmo_sparsity.wording.curves import seed_intervals_words
from olmo_sparsity.wording.hypothesis import gain_sentence, hypothesis_sentences, matched_words, share_sentence
from olmo_sparsity.wording.hypothesis import measured_words as hypothesis_words
from olmo_sparsity.wording.inside_and_beyond import evaluated_words, setting_sentence, twin_sentences

POSE, CEILING = (
    Setting("parity", False, "pose", 2, (3, row), 14, num_chunks=chunks) for chunks, row in ((3, 6), (1, 12))
)


@pytest.fixture
def values() -> Iterator[int]:
    return itertools.count(11)


def entry(values: Iterator[int], **changes: Any) -> SparsityAndGain:
    thirds = tuple(ThirdOfTargets(third, *(numbered(values) for _ in range(6))) for third in THIRDS)
    contrasts = Contrasts(*(numbered(values) for _ in range(5)))
    found = SparsityAndGain(Analysis("as planned"), "pose", "pose", False, 1234, thirds, contrasts)
    return dataclasses.replace(found, **changes)


def written(estimate: Optional[Estimate], digits: int) -> str:
    assert estimate is not None
    return f"{estimate.mean:.{digits}f} [{estimate.mean - 0.25:.{digits}f}, {estimate.mean + 0.25:.{digits}f}]"


def test_the_gain_of_sparse_reactions_is_that_of_each_context(values: Iterator[int]) -> None:
    of = entry(values)
    real, null, difference = (
        written(estimate, 4)
        for estimate in (of.contrasts.gain_nats, of.contrasts.null_gain_nats, of.contrasts.real_minus_null_nats)
    )
    assert gain_sentence(of, "foreign text") == (
        "pose: targets whose reaction is sparse gain more from beyond the training row than targets whose reaction is as large "
        f"and dense. Sparse minus dense: {difference} nats more than under foreign text (real {real}, foreign {null})."
    )


def test_shares_of_the_ceiling_are_of_dense_middle_and_sparse_targets(values: Iterator[int]) -> None:
    of = entry(values, sparsity_from="ceiling")
    dense, middle, sparse = (written(third.share_of_ceiling, 2) for third in of.thirds)
    assert [third.third for third in of.thirds] == ["dense", "middle", "sparse"]
    assert share_sentence(of) == (
        "pose: it reaches a larger share of the ceiling's gain where the reaction is sparse. Its share of the ceiling's gain is "
        f"{dense}, {middle}, {sparse} (dense, middle, sparse); sparse minus dense {written(of.contrasts.share_of_ceiling, 2)}."
    )
    without = dataclasses.replace(of, contrasts=dataclasses.replace(of.contrasts, share_of_ceiling=None))
    assert share_sentence(without) == (
        "pose: the ceiling does not gain from all of these targets, so there is no share of its gain."
    )


UNCLEAR, BELOW, ABOVE, NONE = (-0.1, 0.3), (-0.3, -0.1), (0.1, 0.3), (None, None)
MORE, LESS = (
    f": targets whose reaction is sparse gain {which} from beyond the training row than targets whose reaction is as large and "
    "dense"
    for which in ("more", "less")
)
NOT_SHOWN = (
    ": it is not shown that targets whose reaction is sparse gain more from beyond the training row than dense ones. "
)
TOO_FEW = ": there are too few documents to tell sparse from dense reactions. "


@pytest.mark.parametrize(
    ("real", "over_null", "words"),
    [
        (ABOVE, ABOVE, f"{MORE}. "),
        (ABOVE, UNCLEAR, f"{MORE}, but not clearly by more than under foreign text. "),
        (ABOVE, BELOW, f"{MORE}, but by less than under foreign text. "),
        (UNCLEAR, ABOVE, NOT_SHOWN),
        (UNCLEAR, BELOW, NOT_SHOWN),
        (BELOW, ABOVE, f"{LESS}. "),  # under foreign text they lose still more
        (BELOW, BELOW, f"{LESS}. "),
        (ABOVE, NONE, TOO_FEW),
        (NONE, NONE, TOO_FEW),
    ],
)
def test_sparse_reactions_gain_more_only_where_the_gain_itself_shows_it(
    real: tuple[Optional[float], Optional[float]],
    over_null: tuple[Optional[float], Optional[float]],
    words: str,
    values: Iterator[int],
) -> None:
    of = entry(values)
    gain, difference = Estimate(0.1, *real, 0.05), Estimate(0.1, *over_null, 0.05)
    contrasts = dataclasses.replace(of.contrasts, gain_nats=gain, real_minus_null_nats=difference)
    assert words in gain_sentence(dataclasses.replace(of, contrasts=contrasts), "foreign text")


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (ABOVE, ": it reaches a larger share of the ceiling's gain where the reaction is sparse. "),
        (BELOW, ": it reaches a smaller share of the ceiling's gain where the reaction is sparse. "),
        (
            UNCLEAR,
            ": it is not shown that it reaches a larger share of the ceiling's gain where the reaction is sparse. ",
        ),
        (NONE, TOO_FEW),
    ],
)
def test_the_share_follows_its_own_difference(
    bounds: tuple[Optional[float], Optional[float]], words: str, values: Iterator[int]
) -> None:
    """All other numbers are clearly above 0."""
    of = entry(values)
    contrasts = dataclasses.replace(of.contrasts, share_of_ceiling=Estimate(0.1, *bounds, 0.05))
    assert words in share_sentence(dataclasses.replace(of, contrasts=contrasts))


HIDDEN = ModelSetup(model=None, visibility="hidden", anchor=None, anchor_check=None)


def test_what_a_hypothesis_is_about(values: Iterator[int]) -> None:
    own, by_ceiling = entry(values, is_same_run=True), entry(values, sparsity_from="ceiling", is_same_run=True)
    found = Hypothesis(
        HIDDEN, 8, 20, 1500, 60, {"pose": 3, "ceiling": 1}, (), "ceiling", (own, by_ceiling), (), "document"
    )
    assert list(hypothesis_sentences(found)) == [
        gain_sentence(own, "foreign text"),
        "Sparsity and gain are of one run, so its noise is in both; train further seeds, and name them with --run, to separate "
        "them.",
        share_sentence(by_ceiling),
        "Sparsity and the ceiling's gain are of one run, so its noise is in both; train further seeds of the ceiling, and name "
        "them with --run, to separate them.",
    ]
    assert hypothesis_words(found) == (
        "1,500 targets of 60 documents; gain: loss with the last 8 tokens, as many as a training row has, minus loss with 20; "
        "visibility hidden (a hidden token is seen by no one); no anchor. Models: pose (3 seeds), ceiling (1 seed); brackets: "
        "95% intervals that include the documents and the seeds of models with 3 or more."
    )
    alone = dataclasses.replace(found, models={"pose": 1}, pretrained=("pose",), ceiling=None, main=(own,))
    assert list(hypothesis_sentences(alone)) == [
        gain_sentence(own, "foreign text"),
        "Sparsity and gain are of one pretrained model, which has no further seeds, so its noise is in both.",
        "Without a ceiling there is no share: in any model sparse reactions may gain more.",
    ]
    assert "last 8 tokens, as many as a training row has (stated for pose), minus loss with 20; " in hypothesis_words(
        alone
    )
    several = (entry(values), dataclasses.replace(by_ceiling, is_same_run=False))
    assert list(hypothesis_sentences(dataclasses.replace(found, main=several))) == [
        gain_sentence(several[0], "foreign text"),
        share_sentence(several[1]),
    ]
    few = dataclasses.replace(found, models={"pose": 2, "ceiling": 1})
    assert hypothesis_words(few).endswith("95% intervals that include the documents.")
    assert matched_words(own) == (
        "thirds of 1,234 targets that are alike in the size of the reaction, the distance of the chosen token and the entropy "
        "of the short prediction"
    )
    alone = dataclasses.replace(own, analysis=Analysis("reaction alone", matched=("reaction",)))
    assert matched_words(alone) == "thirds of 1,234 targets that are alike in the size of the reaction"
    gaining = dataclasses.replace(own, analysis=Analysis("others", matched=("gaining", "distance")))
    assert matched_words(gaining) == (
        "thirds of 1,234 targets that are alike in the size of the reactions of the runs that gain and the distance of the "
        "chosen token"
    )
    unmatched = dataclasses.replace(own, analysis=Analysis("not matched", matched=()))
    assert matched_words(unmatched) == "thirds of 1,234 targets"


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summarize(made_up(60, 0.5))


def test_what_two_measurements_have_in_common_names_the_first_before_the_second(summary: Summary) -> None:
    lengths = dataclasses.replace(summary.lengths, train_len=8)
    setup = dataclasses.replace(summary.setup, visibility="hidden", anchor=Anchor(1, "<s>"))
    one = dataclasses.replace(summary, lengths=lengths, setup=setup, null_context="document", estimand="given")
    other = dataclasses.replace(
        one,
        lengths=dataclasses.replace(lengths, train_len=14),
        setup=dataclasses.replace(setup, visibility="contextual", anchor=Anchor(2, "<t>")),
        null_context="shuffled",
        estimand="targets",
    )
    said = pairing_words(one, other, Pairing(False, True, False, False, (1090, 61), 47))
    assert said.startswith(
        "NOT PAIRED: 1,090 and 61 windows that are not the same; 47 documents are in both, and intervals"
    )
    for expected in (
        "the texts differ, the tokenizer is the same, so a difference in nats may be one of the texts",
        "the lengths differ, so long gains belong to different contexts",
        "means over given windows and over targets are not the same quantity",
        'the first token differs (anchor "<s>", anchor "<t>")',
        "visibility differs (hidden, contextual)",
        "training rows have 8 and 14 tokens",
        "the null context differs (document, shuffled)",
    ):
        assert expected in said
    other_tokens = pairing_words(
        one, dataclasses.replace(one, null_context="shuffled"), Pairing(False, False, False, True, (9, 8), 0)
    )
    assert other_tokens == (
        "NOT PAIRED: 9 and 8 windows that are not the same; 0 documents are in both, and intervals are wider than with the same "
        "windows; the tokenizers differ, so that nothing in nats is compared; each mean is over its own given windows, so the "
        "means are not the same quantity; the null context differs (document, shuffled), so the long gain under it and the "
        "excess gain are other quantities"
    )
    targets = dataclasses.replace(one, estimand="targets")
    unlike = Pairing(False, True, True, True, (9, 8), 0)
    assert pairing_words(targets, targets, unlike).endswith("than with the same windows")
    assert pairing_words(targets, one, unlike).endswith(
        "; means over given windows and over targets are not the same quantity"
    )
    both = Pairing(True, True, True, True, (1090, 1090), 47)
    assert pairing_words(one, one, both) == "paired, window by window: both hold the same 1,090 windows"
    unknown = dataclasses.replace(one, lengths=dataclasses.replace(lengths, train_len=None))
    assert "only one of them has a known training row" in pairing_words(one, unknown, both)
    of_units = pairing_words(dataclasses.replace(one, unit="word"), one, both)
    assert "NOT THE SAME SETTING: k counts words in one and tokens in the other" in of_units


@pytest.mark.parametrize(
    ("same_tokens", "words"),
    [
        (True, "b and a have no quantity in common."),
        (False, "b and a have different tokenizers, so nothing in nats is compared."),
    ],
)
def test_what_cannot_be_compared_in_nats_is_said(summary: Summary, same_tokens: bool, words: str) -> None:
    subjects = tuple(ComparedSubject(label, Path(label), None, summary) for label in ("a", "b"))
    row = ComparisonRow("long gain, nats", "long_gain_nats", None, None, (Estimate(0.1), Estimate(0.2)), (None,), True)
    pairing = Pairing(False, same_tokens, False, True, (9, 8), 0)
    assert differences_sentences(Comparison(subjects, (pairing,), (row,))) == [words]


def test_differences_are_of_the_first_selector_that_has_them_of_each_later_measurement(summary: Summary) -> None:
    """Three measurements; the second has other units and windows. Of attention no difference is known."""

    def row(quantity: str, selector: Optional[str], k: Optional[int], *means: Optional[float]) -> ComparisonRow:
        differences = tuple(None if mean is None else Estimate(mean, mean - 0.1, mean + 0.1) for mean in means)
        name = quantity.replace("_nats", ", nats").replace("_", " ")
        return ComparisonRow(name, quantity, selector, k, (), differences, True)

    rows = (
        row("long_gain_nats", None, None, 0.3, -0.3),
        row("gain_over_random_nats", "attention", 1, None, None),
        row("gain_over_random_nats", "kl", 1, 0.05, None),
        row("gain_over_random_nats", "kl", 4, -0.25, 0.25),
        row("gain_over_random_nats", "greedy-kl", 1, 0.7, 0.7),
        row("corrected_gain_nats", "unmask-one", 1, 0.8, 0.8),
    )
    words = dataclasses.replace(summary, unit="word")
    of_labels = zip("abc", (summary, words, summary), strict=True)
    subjects = tuple(ComparedSubject(label, Path(label), None, of) for label, of in of_labels)
    pairings = tuple(Pairing(paired, True, True, True, (9, 9), 0) for paired in (False, True))
    assert differences_sentences(Comparison(subjects, pairings, rows)) == [
        "b minus a, on other windows, where k counts something else: long gain: higher (0.300 [0.200, 0.400] nats); gain over "
        "random of kl, k = 1: no clear difference (0.050 [-0.050, 0.150] nats); gain over random of kl, k = 4: lower (-0.250 "
        "[-0.350, -0.150] nats).",
        "c minus a: long gain: lower (-0.300 [-0.400, -0.200] nats); gain over random of kl, k = 4: higher (0.250 [0.150, 0.350] "
        "nats).",
    ]
    assert (
        "unmask-one, k = 1: higher (0.800"
        in differences_sentences(Comparison(subjects, pairings, (*rows[:2], rows[-1])))[0]
    )
    beyond = row("gain_beyond_nats", None, None, -0.1, 0.5)
    other_gains = [row(quantity, None, None, 0.9, 0.9) for quantity in ("null_long_gain_nats", "content_gain_nats")]
    sparse = [row("gain_sparse_nats", "kl", k, 0.6 + k / 10, -0.4) for k in (1, 2)]
    recovered = row("recovered_fraction", "kl", 1, 0.75, 0.75)
    assert differences_sentences(
        Comparison(subjects, pairings, (rows[0], beyond, *other_gains, recovered, *sparse))
    ) == [
        "b minus a, on other windows, where k counts something else: long gain: higher (0.300 [0.200, 0.400] nats); gain beyond: "
        "no clear difference (-0.100 [-0.200, 0.000] nats); gain sparse of kl, k = 1: higher (0.700 [0.600, 0.800] nats); gain "
        "sparse of kl, k = 2: higher (0.800 [0.700, 0.900] nats).",
        "c minus a: long gain: lower (-0.300 [-0.400, -0.200] nats); gain beyond: higher (0.500 [0.400, 0.600] nats); gain "
        "sparse of kl, k = 1: lower (-0.400 [-0.500, -0.300] nats); gain sparse of kl, k = 2: lower (-0.400 [-0.500, -0.300] "
        "nats).",
    ]


def cell(
    k: int, difference: Optional[Estimate], beyond_minus_trained: Optional[Estimate] = None, **changes: Any
) -> Any:
    rest = (Estimate(0.9, 0.8, 0.95, 0.1), Estimate(0.7, 0.6, 0.75, 0.1), difference, beyond_minus_trained)
    found = InsideAndBeyond(POSE, 12, k, (0, 1, 2), (1.0,) * 3, (0.5,) * 3, (0, 1), (0, 1), *rest)
    return dataclasses.replace(found, **changes)


EQUAL, LOWER, MUCH_LOWER = (
    Estimate(0.01, -0.02, 0.03, 0.1),
    Estimate(-0.06, -0.1, -0.01, 0.1),
    Estimate(-0.4, -0.5, -0.3, 0.1),
)
HIGHER, UNCLEAR, FEW = Estimate(0.2, 0.1, 0.3, 0.1), Estimate(0.04, -0.02, 0.11, 0.1), Estimate(0.25, None, None, None)


def test_accuracies_beyond_the_row_are_compared_with_those_inside_and_at_the_largest_k_of_training() -> None:
    cells = [cell(1, EQUAL), cell(2, Estimate(0.02, -0.03, 0.04, 0.1)), cell(5, UNCLEAR, MUCH_LOWER)]
    twin = Twin(6, 1280, tuple(cells), (), ())
    expected = (
        "PoSE, trained to 6 tokens: accuracy beyond the row minus inside it, k = 1: equal to within 0.05 (0.010 [-0.020, 0.030]);"
        " k = 2: equal to within 0.05 (0.020 [-0.030, 0.040]). Beyond the row, k = 5, more values than training had, minus k = 2:"
        " lower by more than 0.05 (-0.400 [-0.500, -0.300]). This is as predicted."
    )
    assert setting_sentence(cells, twin) == expected
    longer = [dataclasses.replace(one, length=24) for one in cells]
    both = dataclasses.replace(twin, cells=(*cells, *longer))
    assert list(twin_sentences(both)) == [
        expected.replace("to 6 tokens:", f"to 6 tokens, prompts of {length} tokens:") for length in (12, 24)
    ]
    other = dataclasses.replace(longer[0], setting=dataclasses.replace(longer[0].setting, train_lengths=(3, 9)))
    alone = list(
        twin_sentences(dataclasses.replace(twin, cells=(*cells, other)))
    )  # not both were evaluated at both lengths
    assert [sentence.partition(":")[0] for sentence in alone] == [
        "PoSE, trained to 6 tokens, prompts of 12 tokens", "PoSE, trained to 9 tokens, prompts of 24 tokens",
    ]  # fmt: skip
    assert evaluated_words(both) == (
        "Parity: 1,280 sequences of each k and place, prompts of 12, 24 tokens without the query; inside: the planted values lie "
        "in the last 6, beyond: before these. Models: PoSE, trained to 6 tokens (3 seeds); brackets: 95% intervals over sequences"
        " and seeds. Differences are of the seeds with an accuracy of at least 0.9 inside the row; of k that training did not "
        "have, of all."
    )


def test_where_only_larger_k_were_evaluated_it_is_said() -> None:
    cells = [cell(k, None) for k in (3, 5)]
    assert setting_sentence(cells, Twin(6, 10, tuple(cells), (), ())) == (
        "PoSE, trained to 6 tokens: accuracy beyond the row minus inside it, no k of training was evaluated. The prediction is "
        "neither shown nor refuted."
    )


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (EQUAL, "equal to within 0.05"),
        (LOWER, "lower"),
        (MUCH_LOWER, "lower by more than 0.05"),
        (HIGHER, "higher"),
        (UNCLEAR, "not shown to differ, nor to be equal"),
        (FEW, "too few sequences to tell"),
        (None, "too few seeds have learned it"),
    ],
)
def test_each_difference_has_its_words(difference: Optional[Estimate], words: str) -> None:
    cells = [cell(1, difference)]
    assert f"minus inside it, k = 1: {words} (" in setting_sentence(cells, Twin(6, 10, tuple(cells), (), ()))


@pytest.mark.parametrize(
    ("difference", "larger", "words"),
    [
        (EQUAL, MUCH_LOWER, "This is as predicted."),
        (MUCH_LOWER, MUCH_LOWER, "This is against the prediction."),
        (EQUAL, EQUAL, "This is against the prediction."),
        (EQUAL, LOWER, "The prediction is neither shown nor refuted."),
        (UNCLEAR, MUCH_LOWER, "The prediction is neither shown nor refuted."),
    ],
)
def test_the_prediction_is_of_pose_alone(difference: Estimate, larger: Estimate, words: str) -> None:
    cells = [cell(2, difference), cell(5, None, larger)]
    assert setting_sentence(cells, Twin(6, 10, tuple(cells), (), ())).endswith(f" {words}")
    ordinary = [dataclasses.replace(one, setting=CEILING) for one in cells]
    said = setting_sentence(ordinary, Twin(6, 10, tuple(ordinary), (), ()))
    assert said.startswith("without PoSE, trained to 12 tokens: ") and "predict" not in said


OF_SEEDS = " of training; brackets: 95% t intervals that include the choice of the seed and of the documents"
OF_TWO = "; with two seeds they may cover as little as 88%"


@pytest.mark.parametrize(("num_seeds", "words"), [(2, f"2 seeds{OF_SEEDS}{OF_TWO}"), (3, f"3 seeds{OF_SEEDS}")])
def test_few_seeds_are_said_to_be_few(num_seeds: int, words: str) -> None:
    assert seed_intervals_words(num_seeds) == f"means over {words}"
