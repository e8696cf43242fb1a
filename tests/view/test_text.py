"""Verdicts, cautions and the way in which numbers are written, on frames made by hand."""

from __future__ import annotations

import itertools
import re
from typing import Any, Optional

import numpy as np
import pandas as pd
import pytest

from olmo_sparsity.statistics.enough import few
from olmo_sparsity.statistics.quantities import COLUMNS
from olmo_sparsity.view.text import Answer, answers, caution, first_token_line, measured_line, number, percent

MANIFEST = {
    "run": "hand",
    "source": "novels",
    "split": "validation",
    "visibility": "hidden",
    "context": {"local_len": 8, "full_len": 24, "train_len": 12, "num_long_range": 16},
    "influence": {"unit": "token"},
}
SELECTORS = [
    {"selector": name, "sees_target": name == "unmask-one", "num_evaluations": 1}
    for name in ("unmask-one", "random", "kl", "nearest")
]
SIDES = {"above": (0.02, 0.06), "below": (-0.06, -0.02), "unclear": (-0.01, 0.05), "too few": (np.nan, np.nan)}
Interval = tuple[float, float]


def row(
    quantity: str, interval: Interval, selector: Optional[str] = None, k: Optional[int] = None, x: float = np.nan
) -> dict[str, Any]:
    low, high = interval
    value = 0.04 if np.isnan(low) else (low + high) / 2
    context = None if selector is None else "real"
    return {
        "quantity": quantity, "selector": selector, "context": context, "k": k, "x": x, "value": value, "low": low, "high": high,
        "n_windows": 2345, "n_documents": 678,
    }  # fmt: skip


def frame_of(
    rows: list[dict[str, Any]], *, num_units: float = 16, selectors: Any = SELECTORS, **manifest: Any
) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=COLUMNS).astype({"k": "Int64", "x": float, "group": object})
    for name in ("selector", "context", "group"):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    frame.attrs = {"manifest": {**MANIFEST, **manifest}, "num_units": num_units, "selectors": selectors}
    return frame


def measured(
    gate: str = "above",
    beyond: str = "above",
    share: dict[int, Interval] | None = None,
    over_random: Interval = (0.01, 0.03),
    excess: Interval = (0.02, 0.06),
    damping: Interval = (-0.01, 0.05),
    spectrum: dict[int, Interval] | None = None,
    of_random: Interval = (0.50, 0.60),
    **others: Any,
) -> pd.DataFrame:
    """A frame in which `kl` gives back ``share`` of the gain at each k, and suffices for ``spectrum`` of the targets."""
    share, spectrum = share or {1: (0.6, 0.8), 4: (0.7, 0.9)}, spectrum or {1: (0.6, 0.7), 4: (0.93, 0.97)}
    rows = [row("gate_gain_nats", SIDES[gate]), row("gain_beyond_nats", SIDES[beyond])]
    rows.append(row("long_gain_nats", (0.03, 0.07)))
    for k in share:
        rows += [row("gain_sparse_nats", (0.01, 0.02), name, k) for name in ("kl", "random")]
        rows += [row("recovered_fraction", share[k], "kl", k), row("recovered_fraction", (0.2, 0.24), "random", k)]
        rows += [row("gain_over_random_nats", over_random, "kl", k), row("excess_over_random_nats", excess, "kl", k)]
        rows += [row("gain_over_damping_nats", damping, "kl", k), row("expected_gain_nats", (0.01, 0.03), "kl", k)]
        rows.append(row("spectrum_share", spectrum.get(k, (0.6, 0.7)), "kl", k, x=0.05))
        rows += [row("spectrum_share", of_random, name, k, x=0.05) for name in ("random", "nearest")]
    rows.append(row("spectrum_share", (0.3, 0.4), "kl", 0, x=0.05))
    if gate != "above":
        rows = [of for of in rows if of["quantity"] != "recovered_fraction"]
    return frame_of(rows, **others)


def floats(text: str) -> list[float]:
    return [float(of) for of in re.findall(r"-?\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize(
    ("side", "verdict"), [("above", "YES"), ("below", "NO"), ("unclear", "NO"), ("too few", "TOO FEW DOCUMENTS")]
)
def test_the_long_context_helps_only_if_the_whole_interval_is_above_zero(side: str, verdict: str) -> None:
    frame = measured(gate=side, beyond=side)
    found = answers(frame)
    assert [answer.verdict for answer in found[:2]] == [verdict, verdict]
    value, low, high = 0.04, *SIDES[side]
    expected = [value] if np.isnan(low) else [round((low + high) / 2, 3), low, high]
    assert floats(found[0].number) == pytest.approx(expected)
    assert not (side != "above" and any(answer.verdict == "YES" for answer in found))


def test_sentences_of_the_four_outcomes_differ() -> None:
    assert len({answers(measured(gate=side))[0].sentence for side in SIDES}) == 4


def test_without_a_known_training_row_nothing_is_said_of_what_lies_beyond() -> None:
    frame = measured()
    frame = frame[frame["quantity"] != "gain_beyond_nats"]
    answer = answers(frame)[1]
    assert (answer.verdict, answer.number) == ("DOES NOT APPLY", "")


RECOVERED, GAINS = ((0.51, 0.7), (0.45, 0.7), (0.2, 0.3)), (SIDES["above"], SIDES["unclear"], SIDES["below"])


@pytest.mark.parametrize(("share", "over_random", "excess"), itertools.product(RECOVERED, GAINS, GAINS))
def test_few_tokens_are_enough_on_average_only_if_three_intervals_say_so(
    share: Interval, over_random: Interval, excess: Interval
) -> None:
    """They give back half of the gain, choosing them beats random tokens, and by more than on foreign text."""
    is_enough = share[0] > 0.5 and over_random[0] > 0 and excess[0] > 0
    answer = answers(measured(share={1: share}, over_random=over_random, excess=excess))[2]
    assert answer.verdict == ("YES" if is_enough else "NO")
    assert floats(answer.number) == pytest.approx([round(50 * sum(share)), *(round(100 * end) for end in share)], abs=1)


def of_k(answer: Answer) -> float:
    return floats(answer.sentence)[0]


def test_the_answer_is_of_the_smallest_k_that_is_enough_and_never_of_many_tokens() -> None:
    shares = {1: (0.1, 0.3), 2: (0.55, 0.7), 4: (0.7, 0.9), 8: (0.9, 0.99)}
    answer = answers(measured(share=shares))[2]
    assert (of_k(answer), answer.verdict) == (2, "YES")
    only_many = {1: (0.1, 0.3), 4: (0.3, 0.45), 8: (0.9, 0.99)}
    answer = answers(measured(share=only_many))[2]
    assert (of_k(answer), answer.verdict) == (4, "NO")
    alone = answers(measured(share={8: (0.9, 0.99)}, spectrum={8: (0.95, 0.99)}))[2:]
    assert [answer.verdict for answer in alone] == ["DOES NOT APPLY"] * 2


@pytest.mark.parametrize(
    ("share", "of_random", "verdict"),
    [
        ((0.91, 0.95), (0.5, 0.6), "YES"),
        ((0.89, 0.95), (0.5, 0.6), "NO"),  # of nine in ten, perhaps
        ((0.91, 0.95), (0.89, 0.92), "NO"),  # random tokens are as good
        ((np.nan, np.nan), (np.nan, np.nan), "TOO FEW DOCUMENTS"),
    ],
)
def test_few_tokens_are_enough_target_by_target(share: Interval, of_random: Interval, verdict: str) -> None:
    answer = answers(measured(spectrum={1: share, 4: share}, of_random=of_random))[3]
    assert answer.verdict == verdict


def test_what_random_tokens_reach_is_said_beside_the_answer() -> None:
    on_average, of_targets = answers(measured())[2:]
    assert 22 in floats(on_average.sentence)
    assert {55, 35} <= set(floats(of_targets.sentence))  # random, and without any


@pytest.mark.parametrize("gate", ["below", "unclear"])
def test_without_a_gain_no_question_about_few_tokens_is_answered(gate: str) -> None:
    frame = measured(gate=gate)
    assert [answer.verdict for answer in answers(frame)[2:]] == ["DOES NOT APPLY"] * 2
    assert not floats(caution(frame, few(frame)[0]))


def test_selectors_that_see_the_target_answer_nothing() -> None:
    seeing = [{**of, "sees_target": of["selector"] not in ("random", "nearest")} for of in SELECTORS]
    assert [answer.verdict for answer in answers(measured(selectors=seeing))[2:]] == ["DOES NOT APPLY"] * 2


def test_means_over_seeds_have_no_answer_target_by_target() -> None:
    frame = measured()
    assert len(answers(frame[frame["quantity"] != "spectrum_share"])) == 3


def test_the_caution_holds_both_controls_with_their_intervals() -> None:
    texts = set()
    for side in ("above", "below", "unclear"):
        frame = measured(damping=SIDES[side], excess=(0.02, 0.08))
        texts.add(re.sub(r"-?[\d.]+", "", caution(frame, few(frame)[0])))
        middle = sum(SIDES[side]) / 2
        assert floats(caution(frame, few(frame)[0])) == pytest.approx([middle, *SIDES[side], 0.05, 0.02, 0.08])
    assert len(texts) == 3


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ((0.0714, 0.0629, 0.0801, 3), "0.071 [0.063, 0.080]"),
        ((-0.00049, -0.0106, 0.00962, 2), "0.00 [-0.01, 0.01]"),
        ((1.5,), "1.50"),
        ((-2.0, np.nan, np.nan, 0), "-2"),
    ],
)
def test_numbers(given: tuple[float, ...], written: str) -> None:
    assert number(*given) == written


def test_a_row_has_digits_of_its_own() -> None:
    assert number(pd.Series(row("recovered_fraction", (0.8512, 0.9822)))) == "0.92 [0.85, 0.98]"
    assert number(pd.Series(row("gain_sparse_nats", (0.0512, 0.0622)))) == "0.057 [0.051, 0.062]"
    assert percent(pd.Series(row("recovered_fraction", (0.8512, 0.9822)))) == "92% [85, 98]"


def test_what_was_measured_is_one_line_with_its_numbers() -> None:
    frame = measured()
    line = measured_line(frame.attrs["manifest"], frame)
    assert "\n" not in line
    for part in ("hand", "novels", "2,345", "678", "8 local", "16 earlier", "12"):
        assert part in line
    model = {
        "name": "someone/Small-7M", "revision": "abc", "weights_sha256": "0", "architecture": "X", "num_parameters": 7,
        "dtype": "float32", "max_position": 64, "tokenizer_sha256": "1",
    }  # fmt: skip
    assert "someone/Small-7M" in measured_line({**MANIFEST, "model": model}, frame)


def test_the_gain_of_blending_is_beside_that_of_choosing() -> None:
    assert floats(answers(measured())[2].sentence)[-1] == 40  # 0.02 of 0.05 nats, in percent


@pytest.mark.parametrize(
    ("unit", "visibility", "word"),
    [("word", "hidden", "words"), ("block:4", "hidden", "blocks of 4"), ("token", "contextual", "entries")],
)
def test_k_counts_what_was_unmasked(unit: str, visibility: str, word: str) -> None:
    answer = answers(measured(influence={"unit": unit}, visibility=visibility))[2]
    assert f"16 {word}" in answer.sentence


@pytest.mark.parametrize(
    ("chosen", "lower_with", "warns"),
    [("bos", "none", True), ("none", "bos", True), ("bos", "bos", False), ("bos", None, False)],
)
def test_a_better_first_token_is_said(chosen: str, lower_with: Optional[str], warns: bool) -> None:
    check = {"chosen": chosen, "text": "<s>", "lower_with": {"short": None, "long": lower_with}}
    line = first_token_line({"fit": {"anchor": check}})
    assert bool(line) == warns
    assert ("<s>" in line) == (warns and chosen == "none")
    assert not first_token_line({})
