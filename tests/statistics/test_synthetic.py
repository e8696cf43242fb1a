"""Accuracies from made-up tables: each number from the columns of the rows, no two of which are alike."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_sequences import SETTING, written_answers

from olmo_sparsity.measure.synthetic_accuracy import Cell, _answer_rows
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import (
    Accuracy,
    predicted_accuracy,
    read_accuracies,
)
from olmo_sparsity.synthetic.evaluation import Responses
from olmo_sparsity.wording.synthetic_tasks import (
    accuracy_lines,
    encoding_words,
    learned_words,
    method_words,
    positions_words,
    setting_words,
    task_words,
)

NUM = 60
CELLS = [(8, 2), (8, 3), (16, 2)]


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def responses(num: int = NUM) -> Responses:
    """Responses of two tokens, of which some have wrong tokens, some wrong position IDs, some both."""
    true_WK, true_ids_WK = np.tile([[3, 4]], (num, 1)), np.tile([[9, 10]], (num, 1))
    tokens_WK, ids_WK = true_WK.copy(), true_ids_WK.copy()
    tokens_WK[: num // 4, 1] = 5
    ids_WK[num // 6 : num // 2, 0] = 1
    return Responses(tokens_WK=tokens_WK, true_tokens_WK=true_WK, ids_WK=ids_WK, true_ids_WK=true_ids_WK)


def test_a_right_token_at_a_wrong_position_is_no_right_response(tmp_path: Path) -> None:
    """From responses to rows, accuracies and lines: 1/4 have wrong tokens, 1/2 wrong tokens or positions."""
    rows, seeds = [], []
    for number, (length, k) in enumerate(CELLS):
        rows += _answer_rows(Cell(length, k, None, number * NUM), np.arange(NUM), responses(), predicted=True)
    for seed in (5, 6):
        changed = [{**row, "right": row["right"] and (seed == 5 or row["window_id"] % 3 > 0)} for row in rows]
        seeds.append(written_answers(tmp_path / f"seed{seed}", changed, seed=seed))
    assert [row["tokens_right"] for row in rows[:NUM]] == [w >= NUM // 4 for w in range(NUM)]
    assert [row["positions_right"] for row in rows[:NUM]] == [not NUM // 6 <= w < NUM // 2 for w in range(NUM)]
    assert [row["right"] for row in rows[:NUM]] == [w >= NUM // 2 for w in range(NUM)]
    assert rows[0]["response_ids"].tolist() == [3, 5] and rows[0]["true_ids"].tolist() == [3, 4]
    row = rows[NUM // 4]
    assert row["response_positions"].tolist() == [1, 10] and row["true_positions"].tolist() == [9, 10]
    accuracies = read_accuracies(seeds)
    assert [(one.length, one.k, one.place) for one in accuracies] == [(*cell, None) for cell in CELLS]
    for one in accuracies:
        assert value(one.tokens_right) == 0.75 and one.of_seeds == (0.5, pytest.approx(1 / 3))
        assert value(one.right) == pytest.approx(5 / 12)
    title, *lines = accuracy_lines(accuracies)
    assert title.endswith("K_train = 3: accuracy by length (training: 4 to 9 tokens; 2 seeds)")
    assert [line.partition(" [")[0] for line in lines] == ["  k = 2: 8: 0.42", "  k = 3: 8: 0.42"]
    assert "; 16: 0.42" in lines[0] and "16" not in lines[1]


def test_no_two_methods_have_the_same_name() -> None:
    methods: dict[tuple[str, str], tuple[int, ...]] = {
        ("pose", "rope"): (1, 2), ("pose", "none"): (1,), ("randpos", "rope"): (2,),
        ("randpos", "absolute"): (2,), ("shifted", "absolute"): (2,),
        ("coupled", "absolute"): (2,), ("predicted", "absolute"): (2,),
    }  # fmt: skip
    settings = [
        dataclasses.replace(SETTING, positions=positions, position_embedding=embedding, num_chunks=num_chunks)
        for (positions, embedding), all_num_chunks in methods.items()
        for num_chunks in all_num_chunks
    ]
    for words in (setting_words, encoding_words):
        assert len({words(setting) for setting in settings}) == len(settings) == 8


@pytest.mark.parametrize(
    ("changes", "positions"),
    [
        ({}, "pose"),
        ({"num_chunks": 1}, "ordinary"),
        ({"positions": "randpos"}, "randpos with rope"),
        ({"positions": "randpos", "position_embedding": "absolute"}, "randpos with absolute"),
        ({"position_embedding": "none"}, "none"),
        ({"positions": "coupled", "position_embedding": "absolute", "num_chunks": 1}, "coupled"),
        ({"rope_scaling": "yarn", "rope_factor": 2.5}, "pose, YaRN by 2.5"),
        ({"rope_scaling": "linear"}, "pose, position interpolation by the length over that of training"),
    ],
)
def test_a_setting_names_how_positions_are_given_and_embedded(changes: dict[str, Any], positions: str) -> None:
    plain = dataclasses.replace(SETTING, position_embedding="rope", modulus=2, background="noise")
    words = setting_words(dataclasses.replace(plain, **changes))
    assert words == f"parity without a scratchpad, positions {positions}, K_train = 3"


@pytest.mark.parametrize(
    ("changes", "encoding", "positions"),
    [
        ({"num_chunks": 2}, "RoPE with PoSE", "PoSE"),
        ({"num_chunks": 1}, "RoPE without PoSE", "without PoSE"),
        ({"position_embedding": "none"}, "no positions (NoPE)", "no positions (NoPE)"),
        ({"positions": "randpos"}, "RoPE with RandPos", "randpos"),
        ({"positions": "randpos", "position_embedding": "absolute"}, "absolute with RandPos", "randpos"),
        ({"positions": "coupled", "position_embedding": "absolute"}, "position coupling, true IDs given", "coupled"),
        ({"positions": "predicted", "position_embedding": "absolute"}, "Predictive Position Coupling", "predicted"),
        ({"positions": "shifted", "position_embedding": "absolute"}, "absolute, random shift", "shifted"),
        ({"rope_scaling": "yarn", "rope_factor": 2.0}, "RoPE with PoSE, YaRN by 2", "PoSE"),
        (
            {"num_chunks": 1, "rope_scaling": "linear"},
            "RoPE without PoSE, position interpolation by the length over that of training",
            "without PoSE",
        ),
    ],
)
def test_a_method_is_named_by_its_encoding(changes: dict[str, Any], encoding: str, positions: str) -> None:
    setting = dataclasses.replace(SETTING, **{"position_embedding": "rope", **changes})
    assert (encoding_words(setting), positions_words(setting)) == (encoding, positions)
    assert method_words(setting) == f"{encoding}, no scratchpad"
    assert method_words(dataclasses.replace(setting, scratchpad=True)) == encoding


def test_the_task_its_places_and_the_seeds_that_have_learned_it() -> None:
    local = dataclasses.replace(SETTING, locality=12, spread=2, position_embedding="rope", scratchpad=True)
    assert setting_words(local) == (
        "sum modulo 4 in text with a scratchpad, positions pose, K_train = 3, planted within 12, 2 apart"
    )
    assert setting_words(dataclasses.replace(local, locality=None)).endswith(", planted anywhere, 2 apart")
    assert setting_words(dataclasses.replace(local, spread=1)).endswith(", planted within 12, 1 apart")
    assert task_words(dataclasses.replace(SETTING, task="variables", modulus=2, background="noise")) == "variables"
    assert [learned_words(learned, 3) for learned in (0, 1, 2, 3)] == [
        " (not learned)", " (learned by 1 of 3 seeds)", " (learned by 2 of 3 seeds)", "",
    ]  # fmt: skip


@pytest.mark.parametrize(("length", "k", "expected"), [(9, 3, 1.0), (10, 3, None), (9, 4, None), (4, 1, 1.0)])
def test_the_theory_speaks_of_lengths_and_k_of_training(length: int, k: int, expected: float | None) -> None:
    one = Estimate(0.5)
    assert predicted_accuracy(Accuracy(SETTING, length, k, one, one, (0.5,))) == expected
