"""``olmo-sparsity synth summary`` of runs that were evaluated by length: numbers under their labels, words as intervals allow."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, Optional

import pytest
from planted_answers import answers
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.length_generalization import (
    Furthest,
    Generalization,
    TaskRun,
    read_generalization,
)
from olmo_sparsity.statistics.synthetic import Accuracy, Setting
from olmo_sparsity.view.synth_summary import table_of_lengths, table_of_runs
from olmo_sparsity.wording.length_generalization import generalization_sentences
from olmo_sparsity.wording.synthetic_tasks import accuracy_lines

PARITY = Setting("parity", False, "pose", 2, (4, 8), 128)
STEPS = Setting("parity", True, "predicted", 3, (4, 8), 128)
MANY = 80  # sequences: enough to show an accuracy of 0.95


def runs_of(
    folder: Path, furthest: dict[Setting, dict[int, Optional[int]]], *, num_rows: int = MANY, **lengths: tuple[int, ...]
) -> list[Path]:
    """Return two seeds of each setting, all right up to a length by k (None: none right), all wrong beyond.

    ``lengths`` are those evaluated, by ``synthetic.positions``, where they are not the same for all.
    """
    folders = []
    for number, (setting, by_k) in enumerate(furthest.items()):
        for seed in (0, 1):
            folders.append(
                answers(
                    folder / f"run{number}-seed{seed}" / "synthetic" / "tables",
                    lambda length, k, place, by_k=by_k: num_rows * (length <= (by_k[k] or 0)),
                    setting=setting, ks=by_k, lengths=lengths.get(setting.positions, (8, 16, 80)), num_rows=num_rows,
                    training_seed=seed, training_seconds=61.0, validation_loss_nats=0.01, run=f"run{number}-seed{seed}",
                    ended_by="stop_loss",
                )
            )  # fmt: skip
    return folders


def found(folder: Path, furthest: dict[Setting, dict[int, Optional[int]]], **evaluated: Any) -> Generalization:
    return read_generalization(runs_of(folder, furthest, **evaluated))


def test_the_command_prints_the_runs_and_how_far_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    folders = runs_of(tmp_path, {PARITY: {2: 16, 3: None}})
    named = [word for folder in folders for word in ("--run", str(folder.parents[1]))]
    result = CliRunner().invoke(app, ["synth", "summary", *named])
    assert result.exit_code == 0, result.output
    for words in (
        "run0-seed1",
        "stop_loss",
        "every k up to it to 16 tokens, larger k to none at most, further in 2 of 2 seeds",
        "learned",
    ):
        assert words in result.output
    printed = json.loads(CliRunner().invoke(app, ["synth", "summary", *named, "--json"]).output)
    assert [(run["seed"], run["minutes"], run["accuracy_within"]) for run in printed["runs"]] == [
        (seed, 61 / 60, 1.0) for seed in (0, 1)
    ]
    assert [(one["k"], one["length"], one["of_seeds"]) for one in printed["furthest"]] == [
        (2, 16, [16, 16]), (3, None, [None, None]),
    ]  # fmt: skip
    markdown = CliRunner().invoke(app, ["synth", "summary", *named, "--md"]).output
    assert "| 1 | 70 | stop\\_loss | 1.0 | 0.0100 | 1.000 | learned |" in markdown


def test_the_tables_have_each_number_under_its_name(tmp_path: Path) -> None:
    shown = found(tmp_path, {PARITY: {2: 80, 3: 8}})
    runs = table_of_runs(shown.runs)
    (first, _) = (dict(zip((column.name for column in runs.columns), row, strict=True)) for row in runs.rows)
    assert {name: cell.text for name, cell in first.items() if name not in ("trained", "run")} == {
        "seed": "0", "steps": "70", "ended by": "stop_loss", "minutes": "1.0", "held-out loss": "0.0100",
        "accuracy within": "1.000", "task": "learned",
    }  # fmt: skip
    lengths = table_of_lengths(shown)
    assert [[cell.text for cell in row[1:]] for row in lengths.rows] == [
        ["2", "at least 80", "at least 80, at least 80"],
        ["3", "8", "8, 8"],
    ]


def test_sparsity_is_shown_where_every_trained_k_holds_further_than_every_larger_one(tmp_path: Path) -> None:
    wider = dataclasses.replace(PARITY, max_sparsity=1, train_lengths=(4, 16))
    (shown,) = generalization_sentences(found(tmp_path / "a", {PARITY: {2: 80, 3: 16}}))
    assert shown.startswith(
        "That k up to K_train holds further than larger k: shown in 1 of 1 settings. Accuracy of at least 0.95: parity, "
    )
    assert (
        "K_train = 2: every k up to it to at least 80 tokens, larger k to 16 at most, further in 2 of 2 seeds" in shown
    )
    (several,) = generalization_sentences(found(tmp_path / "e", {PARITY: {1: 80, 2: 16, 3: 8, 4: None}}))
    assert "K_train = 2: every k up to it to 16 tokens, larger k to 8 at most" in several  # the worst of each, or best
    (crossing,) = generalization_sentences(found(tmp_path / "f", {PARITY: {1: 80, 2: 8, 3: 16, 4: None}}))
    assert "every k up to it to 8 tokens, larger k to 16 at most, further in 0 of 2 seeds" in crossing
    assert "larger k: not shown. " in crossing  # k = 1 holds further than both larger k, k = 2 does not
    (equal,) = generalization_sentences(found(tmp_path / "b", {PARITY: {2: 16, 3: 16}}))
    assert "larger k: not shown. " in equal and "further in 0 of 2 seeds" in equal
    (unlearned,) = generalization_sentences(found(tmp_path / "c", {PARITY: {2: None, 3: None}}))
    assert "larger k: not shown. " in unlearned and "K_train = 2: not learned by every seed" in unlearned
    assert (
        generalization_sentences(found(tmp_path / "g", {PARITY: {1: None, 2: None}})) == []
    )  # no larger k was evaluated
    assert generalization_sentences(found(tmp_path / "d", {wider: {2: 8, 3: 8}})) == []


@pytest.mark.parametrize(
    ("coupled", "shifted", "pose", "decides", "first"),
    [
        (80, 16, 8, "shown", "RoPE with PoSE"),
        (16, 16, 8, "not shown", "RoPE with PoSE"),
        (8, 16, 16, "no, a baseline holds further", "not shown"),
        (16, 80, 8, "no, a baseline holds further", "RoPE with PoSE"),
        (80, 16, None, "shown", "not shown"),
        (None, 16, 8, "not shown", "RoPE with PoSE"),
    ],
)
def test_methods_that_have_not_learned_are_named_and_never_ranked(
    tmp_path: Path, coupled: Optional[int], shifted: int, pose: Optional[int], decides: str, first: str
) -> None:
    ways = {"predicted": coupled, "shifted": shifted, "pose": pose}
    settings = {
        dataclasses.replace(STEPS, positions=positions): {2: length, 3: length} for positions, length in ways.items()
    }
    (sentence,) = generalization_sentences(found(tmp_path, settings))
    assert f"that coupling holds further than every baseline that has learned: {decides}; " in sentence
    assert f"the baseline that breaks first: {first}. " in sentence
    ranked, _, unranked = sentence.partition(" Not learned by every seed, so not ranked: ")
    names = {"predicted": "Predictive Position Coupling", "shifted": "absolute, random shift", "pose": "RoPE with PoSE"}
    for positions, length in ways.items():
        assert (names[positions] in unranked) == (length is None)
        if length is not None:
            assert f"{names[positions]} to {'at least 80' if length == 80 else length} tokens" in ranked


def test_who_holds_to_its_own_longest_length_is_not_ranked_below_who_was_evaluated_further(tmp_path: Path) -> None:
    """Coupling to at least 200 tokens, the shift to at least 100; where the shift fails at 150, between 100 and 150."""
    coupled, shifted = STEPS, dataclasses.replace(STEPS, positions="shifted")
    holds = {coupled: {3: 200}, shifted: {3: 100}}
    (censored,) = generalization_sentences(found(tmp_path / "a", holds, predicted=(8, 100, 200), shifted=(8, 50, 100)))
    assert "that coupling holds further than every baseline that has learned: not shown; " in censored
    assert "Predictive Position Coupling to at least 200 tokens; absolute, random shift to at least 100" in censored
    for name, longest, verdict in (("b", 150, "shown"), ("c", 149, "not shown")):
        (fails,) = generalization_sentences(
            found(tmp_path / name, {**holds, coupled: {3: longest}}, predicted=(8, longest, 200), shifted=(8, 100, 150))
        )
        assert f"than every baseline that has learned: {verdict}; " in fails
        assert f"Predictive Position Coupling to {longest} tokens; absolute, random shift to 100 tokens" in fails


def test_without_intervals_nothing_is_shown_to_hold_further(tmp_path: Path) -> None:
    """Of 49 sequences accuracies have no interval; of 80 they do."""
    by_k: dict[Setting, dict[int, Optional[int]]] = {PARITY: {2: 80, 3: 8}}
    few, enough = (
        generalization_sentences(found(tmp_path / f"{num_rows}", by_k, num_rows=num_rows))[0] for num_rows in (49, MANY)
    )
    assert "larger k: not shown. " in few and "further in 2 of 2 seeds" in few
    assert (
        "every k up to it to at least 80 [none, at least 80] tokens, larger k to 8 [none, at least 80] at most" in few
    )
    assert "larger k: shown in 1 of 1 settings. " in enough


def test_sums_of_different_moduli_are_ranked_apart(tmp_path: Path) -> None:
    """Coupling holds further than the baseline of the parity, and not as far as that of the sum modulo 4."""
    shifted = dataclasses.replace(STEPS, positions="shifted")
    sums = [dataclasses.replace(one, modulus=4) for one in (STEPS, shifted)]
    parity, modulo = generalization_sentences(
        found(tmp_path, {STEPS: {3: 16}, sums[0]: {3: 8}, shifted: {3: 8}, sums[1]: {3: 80}})
    )
    assert parity == (
        "Parity with a scratchpad, k = 3: that coupling holds further than every baseline that has learned: shown; the baseline "
        "that breaks first: not shown. Accuracy of at least 0.95: Predictive Position Coupling to 16 tokens; absolute, random "
        "shift to 8 tokens."
    )
    assert modulo == (
        "Sum modulo 4 with a scratchpad, k = 3: that coupling holds further than every baseline that has learned: no, a baseline "
        "holds further; the baseline that breaks first: not shown. Accuracy of at least 0.95: absolute, random shift to at least "
        "80 tokens; Predictive Position Coupling to 8 tokens."
    )


def task_run(setting: Setting, seed: int, accuracy: Optional[float]) -> TaskRun:
    return TaskRun(setting, seed, f"run{seed}", 9000, 70, None, None, None, accuracy)


def furthest(setting: Setting, k: int, *of_seeds: Optional[int], **ends: Any) -> Furthest:
    """Return how far a setting holds: as far as the first seed does, without uncertainty unless ``low`` or ``high`` is given."""
    length = of_seeds[0]
    high = ends.get("high", length)
    fails_at = None if high == 250 else (high or 0) + 1
    return Furthest(setting, k, length, ends.get("low", length), high, fails_at, of_seeds, longest=250)


def sentences_of(*found: Furthest, unlearned: tuple[Setting, ...] = (), num_seeds: int = 3) -> list[str]:
    """Return the sentences of runs whose seeds have all learned the task, but for the last seed of some settings."""
    runs = [
        task_run(setting, seed, 0.94 if setting in unlearned and seed == num_seeds - 1 else 0.95)
        for setting in dict.fromkeys(one.setting for one in found)
        for seed in range(num_seeds)
    ]
    return generalization_sentences(Generalization(tuple(runs), found))


def test_sentences_tell_settings_apart_that_differ_in_what_their_names_leave_out() -> None:
    none, chunks = (
        dataclasses.replace(PARITY, **change) for change in ({"position_embedding": "none"}, {"num_chunks": 4})
    )
    holds = [furthest(one, k, length, length) for one in (PARITY, none, chunks) for k, length in ((2, 16), (3, 8))]
    ends = re.findall(r"parity, K_train = 2, (.*?): every k", sentences_of(*holds, num_seeds=2)[0])
    assert ends == ["RoPE with PoSE, chunks 2", "no positions (NoPE), chunks 2", "RoPE with PoSE, chunks 4"]
    longer = dataclasses.replace(STEPS, train_lengths=(4, 9))
    moved = dataclasses.replace(STEPS, max_position=256)
    steps = [furthest(one, 3, length, length) for one, length in ((STEPS, 16), (moved, 8), (longer, 24))]
    shown = sentences_of(*steps, num_seeds=2)
    assert [sentence.partition(", k = 3: ")[0] for sentence in shown] == [
        f"Parity with a scratchpad, prompts of 4 to {longest} tokens" for longest in (8, 9)
    ]
    assert (
        "Coupling, positions below 128 to 16 tokens; Predictive Position Coupling, positions below 256 to 8" in shown[0]
    )
    assert "Predictive Position Coupling to 24 tokens." in shown[1]


def test_settings_that_differ_in_what_their_words_leave_out_are_told_apart() -> None:
    """Only where another of the table has the same words."""
    changes: list[dict[str, Any]] = [{}, {"train_lengths": (4, 9)}, {"num_chunks": 4}]
    settings = [dataclasses.replace(PARITY, **change) for change in changes]
    plain = "parity without a scratchpad, positions pose, K_train = 2"
    runs = [task_run(setting, 0, 0.95) for setting in [*settings, STEPS]]
    rows = table_of_runs(runs).rows
    assert [row[1].text for row in rows][:-1] == [
        f"{plain}, prompts of 4 to {longest} tokens, chunks {chunks}" for longest, chunks in ((8, 2), (9, 2), (8, 4))
    ]
    assert rows[-1][1].text == "parity with a scratchpad, positions predicted, K_train = 3"
    moved = dataclasses.replace(PARITY, max_position=256)
    found = Generalization((), (furthest(PARITY, 2, 8), furthest(moved, 2, 16)))
    assert [row[0].text for row in table_of_lengths(found).rows] == [
        f"{plain}, positions below {most}" for most in (128, 256)
    ]


def test_a_k_that_holds_at_no_length_is_the_nearest() -> None:
    (sentence,) = sentences_of(
        furthest(PARITY, 1, 64, 64, 64), furthest(PARITY, 2, None, 9, 9), furthest(PARITY, 3, 8, 8, 8)
    )
    assert sentence.endswith("every k up to it to none tokens, larger k to 8 at most, further in 2 of 3 seeds.")


def test_settings_are_counted_and_compared_seed_by_seed_in_sparsity() -> None:
    """In the first setting one seed holds further at k = 1 and 2 than at 3 and 4, in the second two do."""
    other = dataclasses.replace(PARITY, max_sparsity=4, background="text", modulus=3)
    third = dataclasses.replace(PARITY, max_sparsity=5)
    (sentence,) = sentences_of(
        furthest(PARITY, 1, 64, 100, 32), furthest(PARITY, 2, 40, 24, 250, low=20, high=250),
        furthest(PARITY, 3, None, 9, 33, high=16), furthest(PARITY, 4, 8, 24, 12, low=None, high=12),
        furthest(other, 4, 10, 10, 10, high=30), furthest(other, 5, 9, 8, 11, high=25), furthest(third, 5, 77, 77, 77),
        furthest(third, 6, 7, 7, 7), unlearned=(third,),
    )  # fmt: skip
    assert sentence == (
        "That k up to K_train holds further than larger k: shown in 1 of 2 settings. Accuracy of at least 0.95: parity, K_train "
        "= 2: every k up to it to 40 [20, at least 250] tokens, larger k to 8 [none, 12] at most, further in 1 of 3 seeds; sum "
        "modulo 3 in text, K_train = 4: every k up to it to 10 [10, 30] tokens, larger k to 9 [9, 25] at most, further in 2 of 3 "
        "seeds; parity, K_train = 5: not learned by every seed."
    )


def test_methods_are_compared_at_their_own_k() -> None:
    """Other k, and settings that are not compared hold in another order; so does K_train = 2."""
    coupled, shifted, pose = (
        dataclasses.replace(STEPS, task="variables", positions=of) for of in ("predicted", "shifted", "pose")
    )
    fewer = [dataclasses.replace(of, max_sparsity=2) for of in (coupled, shifted)]
    found = [
        furthest(coupled, 3, 64), furthest(shifted, 3, 40), furthest(pose, 3, 9),
        furthest(coupled, 2, 7), furthest(shifted, 2, 11), furthest(pose, 2, 99),
        furthest(dataclasses.replace(shifted, background="text"), 3, 99),
        furthest(dataclasses.replace(shifted, locality=4), 3, 98),
        furthest(fewer[0], 2, 12), furthest(fewer[1], 2, 20), furthest(fewer[0], 3, 251), furthest(fewer[1], 3, 252),
    ]  # fmt: skip
    assert sentences_of(*found) == [
        "Variable assignment, k = 3: that coupling holds further than every baseline that has learned: shown; the baseline that "
        "breaks first: RoPE with PoSE. Accuracy of at least 0.95: Predictive Position Coupling to 64 tokens; absolute, random "
        "shift to 40 tokens; RoPE with PoSE to 9 tokens.",
        "Variable assignment, k = 2: that coupling holds further than every baseline that has learned: no, a baseline holds "
        "further; the baseline that breaks first: not shown. Accuracy of at least 0.95: absolute, random shift to 20 tokens; "
        "Predictive Position Coupling to 12 tokens.",
    ]
    sums = [dataclasses.replace(STEPS, positions=positions, modulus=8) for positions in ("predicted", "coupled")]
    (parity,) = sentences_of(furthest(sums[0], 3, 64), furthest(sums[1], 3, 250))
    assert parity.startswith(
        "Sum modulo 8 with a scratchpad, k = 3: that coupling holds further than every baseline that "
    )
    assert "learned: not shown; the baseline that breaks first: not shown. " in parity  # there is none
    assert "position coupling, true IDs given to at least 250 tokens; Predictive" in parity


def test_encodings_are_compared_at_k_train_where_several_have_learned() -> None:
    ordinary = dataclasses.replace(PARITY, num_chunks=1)
    randpos = dataclasses.replace(PARITY, positions="randpos")
    found = [
        furthest(ordinary, 1, 250), furthest(ordinary, 2, 40, low=30), furthest(ordinary, 3, 64),
        furthest(randpos, 1, 8), furthest(randpos, 2, 12, high=29), furthest(randpos, 3, 250),
    ]  # fmt: skip
    start = "Encodings of positions, parity without a scratchpad, k = 2: the one that holds further than every other: "
    assert sentences_of(*found)[-1] == (
        f"{start}RoPE without PoSE. Accuracy of at least 0.95: RoPE without PoSE to 40 [30, 40] tokens; RoPE with RandPos to 12 "
        "[12, 29] tokens."
    )
    assert sentences_of(*found, unlearned=(randpos,))[-1] == (
        f"{start}not shown. Accuracy of at least 0.95: RoPE without PoSE to 40 [30, 40] tokens. Not learned by every seed, so "
        "not ranked: RoPE with RandPos."
    )
    assert sentences_of(*found, unlearned=(randpos, ordinary))[-1] == (
        f"{start}not shown. Accuracy of at least 0.95: none. Not learned by every seed, so not ranked: RoPE without PoSE; RoPE "
        "with RandPos."
    )


def test_an_encoding_is_named_where_it_holds_further_than_every_other(tmp_path: Path) -> None:
    ordinary = dataclasses.replace(PARITY, num_chunks=1)
    none = dataclasses.replace(ordinary, position_embedding="none")
    randpos = dataclasses.replace(PARITY, positions="randpos")
    sentences = generalization_sentences(
        found(tmp_path / "a", {PARITY: {2: 8}, ordinary: {2: None}, none: {2: 80}, randpos: {2: 16}})
    )
    assert sentences[-1] == (
        "Encodings of positions, parity without a scratchpad, k = 2: the one that holds further than every other: no positions "
        "(NoPE). Accuracy of at least 0.95: no positions (NoPE) to at least 80 tokens; RoPE with RandPos to 16 tokens; RoPE "
        "with PoSE to 8 tokens. Not learned by every seed, so not ranked: RoPE without PoSE."
    )
    equal = generalization_sentences(found(tmp_path / "b", {PARITY: {2: 16}, ordinary: {2: 16}}))[-1]
    assert "the one that holds further than every other: not shown. " in equal


def test_accuracies_are_listed_by_setting_and_k_as_far_as_each_was_evaluated() -> None:
    wider = dataclasses.replace(PARITY, max_sparsity=4, train_lengths=(6, 12))

    def one(
        setting: Setting, length: int, k: int, value: float, *, seeds: int, place: Optional[str] = None
    ) -> Accuracy:
        return Accuracy(
            setting, length, k, Estimate(value, value - 0.125, value + 0.0625), Estimate(0.5), (0.5,) * seeds, place
        )

    lines = accuracy_lines(
        [
            one(PARITY, 8, 2, 0.75, seeds=1), one(wider, 12, 4, 0.5, seeds=2, place="beyond"),
            one(PARITY, 16, 1, 0.25, seeds=1), one(PARITY, 16, 2, 0.375, seeds=1), one(PARITY, 8, 8, 0.125, seeds=1),
        ]
    )  # fmt: skip
    assert lines[0].endswith("K_train = 2: accuracy by length (training: 4 to 8 tokens; 1 seed)")
    assert lines[1:4] == [
        "  k = 1: 16: 0.25 [0.12, 0.31]",
        "  k = 2: 8: 0.75 [0.62, 0.81]; 16: 0.38 [0.25, 0.44]",
        "  k = 8: 8: 0.12 [0.00, 0.19]",
    ]
    assert lines[4].endswith("K_train = 4: accuracy by length (training: 6 to 12 tokens; 2 seeds)")
    assert lines[5:] == ["  k = 4: 12 beyond: 0.50 [0.38, 0.56]"]
