"""The columns of groups of tokens, row by row, against their definitions: words, sentences and blocks.

The windows hold several short sentences; all lengths differ, and some windows have fewer groups than the largest k.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import (
    DRAWN_LABELS,
    SEES_TARGET,
    Definition,
    assert_forward_selection,
    assert_same_row,
    choices,
    expected_evaluations,
    expected_scores,
    kl,
    tokens_under,
)
from tokenizers import Tokenizer

from olmo_sparsity.config import Config
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.selectors import ALL_SELECTORS, LASSO_ALPHA
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.units import group_numbers

LOCAL, FULL, M = 4, 19, 15
KS, SEED, NUM_WINDOWS, MASKS = [1, 3], 3, 4, 12
UNITS = ("word", "sentence", "block:4")
WORDS = ["a", "the", "of", "and", "to", "in", "was", "it", "red", "cat"]


@pytest.fixture(scope="module")
def config(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("sentences") / "text.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(12):
            sentences = [" ".join(rng.choice(WORDS, rng.integers(1, 5))).capitalize() for _ in range(30)]
            file.write(json.dumps({"text": ". ".join(sentences) + "."}) + "\n")
    influence = dataclasses.replace(
        tiny_config.influence,
        local_len=LOCAL,
        full_len=FULL,
        data=str(path),
        num_windows=NUM_WINDOWS,
        seed=SEED,
        k=KS,
        selectors=list(ALL_SELECTORS),
        resampled_draws=1,
        lasso_masks=MASKS,
    )
    return dataclasses.replace(tiny_config, influence=influence)


@pytest.fixture(scope="module")
def measured(config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tables of each unit."""
    out = tmp_path_factory.mktemp("units")
    return {
        name: measure(
            dataclasses.replace(config, influence=dataclasses.replace(config.influence, unit=name)),
            tiny_run,
            out=out / name.replace(":", "-"),
        )
        for name in UNITS
    }


@pytest.fixture(scope="module")
def definition(tiny_run: Path) -> Definition:
    return Definition(load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu")), LOCAL)


@pytest.fixture(scope="module")
def tokenizer(tiny_run: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_run / "tokenizer.json"))


def rows_of(tables: Path, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(tables, table).to_pylist()
    return rows


def groups_of(tokens: list[int], unit: str, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the positions of each group; which token a word or sentence takes is tested in tests/text."""
    numbers = group_numbers(tokenizer, np.array([tokens]), num_long_range=M, unit=unit)[0].tolist()
    return [[j for j in range(M) if numbers[j] == i] for i in range(max(numbers) + 1)]


UNIT = pytest.mark.parametrize("name", UNITS)


@UNIT
def test_windows(name: str, measured: dict[str, Path], definition: Definition, tokenizer: Tokenizer) -> None:
    windows = rows_of(measured[name], "windows")
    assert len(windows) == NUM_WINDOWS
    numbers = []
    for window in windows:
        tokens, target = tokens_under(window, "real"), window["target_id"]
        real, null = (groups_of(tokens_under(window, context), name, tokenizer) for context in ("real", "null"))
        numbers.append(len(real))
        p_short, p_all = definition.log_q(tokens, [[], range(M)])
        p_all_null = definition.log_q(tokens_under(window, "null"), [range(M)])[0]
        race = np.random.default_rng([SEED, DRAWN_LABELS, window["window_id"], 0]).standard_exponential(len(p_short))
        label = int(np.argmin(race / np.exp(p_short)))
        expected = {
            "group_first": [positions[0] for positions in real],
            "null_group_first": [positions[0] for positions in null],
            "loss_short_nats": -p_short[target],
            "loss_short_no_gap_nats": -p_short[target],  # without an anchor the gap makes no difference
            "loss_long_nats": -p_all[target],
            "gain_long_nats": p_all[target] - p_short[target],
            "null_loss_long_nats": -p_all_null[target],
            "null_gain_long_nats": p_all_null[target] - p_short[target],
            "kl_short_nats": kl(p_all, p_short),
            "null_kl_short_nats": kl(p_all_null, p_short),
            "resampled_target_ids": [label],
            "resampled_loss_short_nats": [-p_short[label]],
            "resampled_loss_long_nats": [-p_all[label]],
            "kl_short_to_long_nats": kl(p_short, p_all),
            "entropy_short_nats": -(np.exp(p_short) * p_short).sum(),
        }  # the other columns are about the window, whatever its groups, and tested in test_table_columns
        assert_same_row({column: window[column] for column in expected}, expected)
    if name == "sentence":
        assert min(numbers) < max(KS) and len(set(numbers)) > 1
    else:
        assert max(numbers) > 3 and (name == "block:4" or len(set(numbers)) > 1)


@UNIT
def test_selections(name: str, measured: dict[str, Path], definition: Definition, tokenizer: Tokenizer) -> None:
    rows = iter(rows_of(measured[name], "selections"))
    for window in rows_of(measured[name], "windows"):
        groups = {context: groups_of(tokens_under(window, context), name, tokenizer) for context in ("real", "null")}
        for selector, context, draw, choice in choices(
            window, definition, selectors=ALL_SELECTORS, seed=SEED, groups=groups
        ):
            row, members = next(rows), choice.members
            scores = row["scores"]
            if selector in ("greedy", "greedy-kl"):
                assert_forward_selection(selector, choice, scores, max(KS))
                expected_I = np.array(scores, dtype=float)
            else:
                expected_I = expected_scores(selector, choice, lasso_masks=MASKS, lasso_alpha=LASSO_ALPHA)
            best = sorted(range(len(members)), key=lambda i, scores=scores: (-scores[i], -i))[: max(KS)]
            sets = [best[:k] for k in KS]
            losses = choice.losses(sets)
            positions = [j for i in best for j in members[i]]
            expected = {
                "window_id": window["window_id"],
                "doc_id": window["doc_id"],
                "selector": selector,
                "context": context,
                "draw": draw,
                "sees_target": SEES_TARGET[selector],
                "num_evaluations": expected_evaluations(selector, len(members), max_k=max(KS), lasso_masks=MASKS),
                "positions": positions,
                "distance_tokens": [FULL - j for j in positions],
                "group_first": [members[i][0] for i in best],
                "group_last": [members[i][-1] for i in best],
                "scores": expected_I.tolist(),
                "k": KS,
                "num_tokens": [sum(len(members[i]) for i in chosen) for chosen in sets],
                "loss_sparse_nats": losses,
                "gain_sparse_nats": choice.losses([[]])[0] - losses,
                "kl_sparse_nats": None if "resampled" in context else choice.divergences(sets),
                "kl_short_to_sparse_nats": choice.costs_of_showing(sets) if "resampled" in context else None,
            }
            assert_same_row(row, expected)
    assert next(rows, None) is None
