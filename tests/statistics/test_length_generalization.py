"""How far tasks generalize in length, on planted tables: each number from the rows that it is of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

import pytest
from planted_answers import LOCAL, ROWS, Right, answers

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.length_generalization import (
    furthest_lengths,
    num_learned,
    of_encodings,
    of_methods,
    of_sparsity_alone,
    reaches_further,
    read_generalization,
    task_runs,
)
from olmo_sparsity.statistics.synthetic import Accuracy, Setting, read_accuracies


def test_a_run_has_learned_where_it_answers_prompts_as_in_training(tmp_path: Path) -> None:
    """Of the training lengths, 4 to 8, and k up to K_train only: here 8 tokens, k = 2; all else is wrong."""
    folders = [
        answers(tmp_path / f"seed{seed}", lambda length, k, place, n=n: n if (length, k) == (8, 2) else 0,
                training_seed=seed, training_seconds=90.0, validation_loss_nats=0.25, ended_by="stop_loss",
                lengths=(2, 8, 16, 80))
        for seed, n in ((6, 18), (5, 19))
    ]  # fmt: skip
    first, second = task_runs(folders)
    assert (first.seed, first.run, first.accuracy_within, first.has_learned) == (5, "seed5", 0.95, True)
    assert (second.seed, second.run, second.accuracy_within, second.has_learned) == (6, "seed6", 0.9, False)
    assert (first.steps, first.minutes, first.validation_loss_nats, first.ended_by) == (70, 1.5, 0.25, "stop_loss")
    assert (first.setting, first.num_parameters) == (LOCAL, 9000)
    assert num_learned([first, second]) == {LOCAL: (1, 2)}


def test_of_places_inside_and_beyond_the_row_inside_decides(tmp_path: Path) -> None:
    in_row = answers(
        tmp_path / "row", lambda length, k, place: ROWS * (place == "inside"), places=("inside", "beyond"), lengths=(8,)
    )
    assert [one.accuracy_within for one in task_runs([in_row])] == [1.0]


def accuracy(length: int, mean: float, bounds: Optional[tuple[float, float]], *seeds: float, **keys: Any) -> Accuracy:
    right = Estimate(mean, *(bounds or ()))
    return Accuracy(keys.pop("setting", LOCAL), length, keys.pop("k", 2), right, right, seeds or (mean,), **keys)


def test_the_furthest_length_ends_before_the_first_that_fails() -> None:
    """At 40 tokens the mean fails; that it is high again at 80 does not count."""
    own = [
        accuracy(80, 1.0, (1.0, 1.0), 1.0, 1.0),
        accuracy(8, 1.0, (0.96, 1.0), 1.0, 1.0),
        accuracy(16, 0.95, (0.9, 0.99), 0.9, 1.0),
        accuracy(40, 0.9, (0.8, 0.97), 0.85, 0.95),
    ]
    (found,) = furthest_lengths(own)
    assert (found.length, found.low, found.high, found.of_seeds, found.longest) == (16, 8, 80, (8, 80), 80)
    assert found.fails_at is None
    (never,) = furthest_lengths([accuracy(8, 0.5, (0.4, 0.6), 0.5), accuracy(16, 1.0, (1.0, 1.0), 1.0)])
    assert (never.length, never.low, never.high, never.fails_at, never.of_seeds) == (None, None, None, 8, (None,))


def test_an_accuracy_without_an_interval_may_be_anything() -> None:
    """At 16 tokens there is none; at 40 the accuracy is too low."""
    own = [accuracy(8, 1.0, (0.97, 1.0)), accuracy(16, 0.5, None), accuracy(40, 0.6, (0.5, 0.7))]
    (found,) = furthest_lengths(own)
    assert (found.length, found.low, found.high, found.fails_at, found.longest) == (8, 8, 16, 40, 40)
    (unknown,) = furthest_lengths([accuracy(8, 1.0, None), accuracy(16, 0.5, None)])
    assert (unknown.length, unknown.low, unknown.high, unknown.fails_at) == (8, None, 16, None)
    (far,) = furthest_lengths([accuracy(80, 1.0, (1.0, 1.0))])
    assert reaches_further(far, found) and not reaches_further(far, unknown) and not reaches_further(unknown, found)


def test_one_holds_further_where_the_intervals_of_the_lengths_do_not_touch() -> None:
    (far,) = furthest_lengths(
        [accuracy(8, 1.0, (1.0, 1.0)), accuracy(16, 1.0, (0.94, 1.0)), accuracy(40, 0.9, (0.8, 1.0))]
    )
    (near,) = furthest_lengths([accuracy(8, 0.94, (0.9, 0.94))])
    (close,) = furthest_lengths([accuracy(8, 0.94, (0.9, 0.96))])
    assert [(of.low, of.length, of.high) for of in (far, near, close)] == [
        (8, 16, 40), (None, None, None), (None, None, 8),
    ]  # fmt: skip
    assert [of.fails_at for of in (far, near, close)] == [None, 8, None]
    assert reaches_further(far, near) and not reaches_further(far, close)
    assert not reaches_further(near, far) and not reaches_further(near, near)


def test_all_evaluations_of_runs_are_read_and_a_setting_has_learned_with_all_of_its_seeds(tmp_path: Path) -> None:
    plain = [
        answers(tmp_path / f"{seed}", lambda length, k, place, n=n: n, training_seed=seed)
        for seed, n in ((5, 20), (6, 1))
    ]
    shorter = dataclasses.replace(LOCAL, train_lengths=(4, 6))
    learned = answers(tmp_path / "learned", lambda length, k, place: ROWS, setting=shorter, lengths=(6,))
    found = read_generalization([*plain, learned])
    assert [(run.seed, run.has_learned) for run in found.runs] == [(5, True), (6, False), (5, True)]
    assert (found.has_learned(LOCAL), found.has_learned(shorter)) == (False, True)
    assert [(one.setting, one.k) for one in found.furthest] == [
        (setting, k) for setting in (LOCAL, shorter) for k in (2, 3)
    ]


def test_settings_that_differ_in_locality_or_spread_are_no_seeds_of_one_model(tmp_path: Path) -> None:
    right: Right = lambda length, k, place: ROWS  # noqa: E731
    folders = [
        answers(tmp_path / f"{number}", right, setting=dataclasses.replace(LOCAL, **keys))
        for number, keys in enumerate(({}, {"locality": None}, {"spread": 1}))
    ]
    assert len({one.setting for one in read_accuracies(folders)}) == 3
    again = answers(tmp_path / "again", right)
    with pytest.raises(UserError) as error:
        read_accuracies([folders[0], again])
    assert str(error.value) == f"{again}: the same setting and seed as {folders[0]}; give one of them"


def test_each_setting_is_in_the_figures_that_compare_it() -> None:
    """Parity of K_train 2 and 4 compares sparsity; the one of the K_train with a scratchpad is its twin, too."""
    base = Setting("parity", False, "pose", 2, (4, 8), 128)
    steps = dataclasses.replace(base, scratchpad=True, positions="predicted")
    larger = dataclasses.replace(base, max_sparsity=4)
    ordinary = dataclasses.replace(base, num_chunks=1)
    text = dataclasses.replace(base, background="text")
    placed = dataclasses.replace(base, locality=4)
    none = dataclasses.replace(ordinary, position_embedding="none")
    scaled = dataclasses.replace(ordinary, rope_scaling="yarn")
    everything = [steps, base, larger, ordinary, text, placed, none, scaled]
    assert of_sparsity_alone(everything) == [base, larger, text]
    assert of_sparsity_alone([steps, base, ordinary]) == []
    assert of_sparsity_alone([base]) == [base]
    assert of_sparsity_alone([base, dataclasses.replace(steps, task="variables")]) == [base]
    assert of_methods(everything, "parity") == [steps, base, ordinary]
    assert of_methods([base, larger], "parity") == []
    of_four = dataclasses.replace(base, modulus=4)  # beside steps of the parity: no twin of theirs
    assert of_methods([steps, base, of_four], "parity") == [steps, base]
    assert of_sparsity_alone([steps, base, of_four]) == [of_four]
    with_steps = dataclasses.replace(none, scratchpad=True)
    assert of_methods([with_steps, none, base], "parity") == [with_steps, base]
    assert of_encodings(everything) == [base, ordinary, none, scaled]
    modulo = dataclasses.replace(ordinary, modulus=8)
    shorter = dataclasses.replace(base, train_lengths=(4, 6))
    assert of_encodings([larger, shorter, modulo, base, ordinary]) == []  # the first without PoSE is alone
    assert of_encodings([larger, shorter, base, ordinary, modulo]) == [base, ordinary]
    assert of_encodings([base, larger]) == of_encodings([ordinary]) == []
    variables = dataclasses.replace(steps, task="variables")
    alone = dataclasses.replace(variables, scratchpad=False, positions="shifted", position_embedding="absolute")
    other = dataclasses.replace(alone, max_sparsity=3)
    assert of_methods([*everything, variables, alone, other], "variables") == [variables, alone]
    assert of_methods([alone, other], "variables") == [alone, other]
