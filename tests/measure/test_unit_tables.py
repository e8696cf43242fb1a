"""The tables of a measurement of groups: words, sentences and blocks of the tiny run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from known_selectors import only_here as only_here
from tokenizers import Tokenizer

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.own_selectors import OwnSelector, names_of
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.units import group_numbers

FULL, M = 20, 12
SELECTORS = ["unmask-one", "kl", "random", "nearest", "mask-one", "greedy", "greedy-kl"]


def settings_of(config: Config, **changes: Any) -> Config:
    own = {"num_windows": 24, "k": [1, 2, 4], "selectors": SELECTORS, **changes}
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **own))


@pytest.fixture(scope="module")
def word_tables(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = settings_of(tiny_config, unit="word")
    return measure(config, tiny_run, out=tmp_path_factory.mktemp("units") / "words")


def rows_of(tables: Path, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(tables, table).to_pylist()
    return rows


def test_groups_of_the_tables_are_the_words(word_tables: Path, tiny_run: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_run / "tokenizer.json"))
    for window in rows_of(word_tables, "windows"):
        local = window["token_ids"][M:]
        for tokens, firsts in (
            (window["token_ids"], window["group_first"]),
            (window["null_token_ids"] + local, window["null_group_first"]),
        ):
            numbers = group_numbers(tokenizer, np.array([tokens]), num_long_range=M, unit="word")[0].tolist()
            assert firsts == [j for j in range(M) if j == 0 or numbers[j] != numbers[j - 1]]
            ends = [*firsts[1:], M]
            words = [tokenizer.decode(tokens[a:b]) for a, b in zip(firsts, ends, strict=True)]
            assert all(" " not in word.strip() for word in words)
            assert all(word.startswith(" ") for word in words[1:-1])


def test_every_number_is_of_the_tokens_that_the_tables_name(word_tables: Path, tiny_run: Path) -> None:
    model = load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu"))
    windows = {row["window_id"]: row for row in rows_of(word_tables, "windows")}
    num_whole = 0
    for row in rows_of(word_tables, "selections"):
        window = windows[row["window_id"]]
        is_null = row["context"] in ("null", "null-resampled")
        firsts = window["null_group_first" if is_null else "group_first"]
        bounds = list(zip(firsts, [end - 1 for end in [*firsts[1:], M]], strict=True))
        chosen = list(zip(row["group_first"], row["group_last"], strict=True))
        assert set(chosen) <= set(bounds)
        assert len(set(chosen)) == len(chosen) == min(4, len(bounds))
        assert row["positions"] == [j for first, last in chosen for j in range(first, last + 1)]
        assert row["distance_tokens"] == [FULL - j for j in row["positions"]]
        assert row["num_tokens"] == [sum(last - first + 1 for first, last in chosen[:k]) for k in row["k"]]
        assert len(row["scores"]) == len(bounds)
        num_whole += row["num_tokens"][-1] == M
        if row["window_id"] > 1 or "resampled" in row["context"]:
            continue
        tokens = window["null_token_ids"] + window["token_ids"][M:] if is_null else window["token_ids"]
        for number, loss in zip(row["num_tokens"], row["loss_sparse_nats"], strict=True):
            visible = set(row["positions"][:number]) | set(range(M, FULL))
            expected = reference.target_loss(model, tokens, list(range(FULL)), visible, window["target_id"])
            assert loss == pytest.approx(expected, abs=2e-5)
    assert num_whole > 0  # some windows have fewer than 4 words


@pytest.mark.usefixtures("only_here")
def test_words_without_a_score_are_chosen_last_whatever_windows_a_part_holds(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    """A window with fewer than k words shows all of them, though others of the part have more."""

    def some(window: Any) -> np.ndarray:
        return np.where(np.arange(M) < 4, np.arange(M) * 3 % 4 + 0.5, np.nan)

    names = names_of([OwnSelector(some)])
    together, alone = (
        measure(
            settings_of(tiny_config, unit="word", selectors=names, windows_per_part=per_part),
            tiny_run,
            out=tmp_path / str(per_part),
        )
        for per_part in (24, 1)
    )
    rows, num_unscored = rows_of(together, "selections"), []
    for row, of_one in zip(rows, rows_of(alone, "selections"), strict=True):
        assert row == {name: pytest.approx(of_one[name], abs=2e-5) if "nats" in name else of_one[name] for name in row}
    model = load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu"))
    windows = {row["window_id"]: row for row in rows_of(together, "windows")}
    for row in rows:
        window = windows[row["window_id"]]
        firsts = window["group_first" if row["context"] == "real" else "null_group_first"]
        scores = [-np.inf if score is None else score for score in row["scores"]]
        ranked = sorted(range(len(firsts)), key=lambda i: (-scores[i], -i))
        assert row["group_first"] == [firsts[i] for i in ranked[:4]]
        num_unscored.append((row["scores"].count(None), len(firsts)))
        tokens = window["token_ids"] if row["context"] == "real" else window["null_token_ids"] + window["token_ids"][M:]
        visible = set(row["positions"][: row["num_tokens"][0]]) | set(range(M, FULL))
        expected = reference.target_loss(model, tokens, list(range(FULL)), visible, window["target_id"])
        assert row["loss_sparse_nats"][0] == pytest.approx(expected, abs=2e-5)
    assert any(total < 4 and unscored for unscored, total in num_unscored)
    assert any(total > 4 and unscored > total - 4 for unscored, total in num_unscored)


def test_the_unit_is_part_of_the_setting(word_tables: Path, tiny_tables: Path) -> None:
    words, tokens = (read_json(folder / "manifest.json") for folder in (word_tables, tiny_tables))
    assert words["influence"]["unit"] == "word"
    assert words["run_id"] != tokens["run_id"]


def test_blocks_of_one_token_are_tokens(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    """Every column that both have is the same to the last bit."""
    changes = {
        "num_windows": 12,
        "selectors": [*SELECTORS, "gradient", "attention", "lasso"],
    }
    one, other = (
        measure(settings_of(tiny_config, unit=unit, **changes), tiny_run, out=tmp_path / unit.replace(":", ""))
        for unit in ("token", "block:1")
    )
    for table in ("windows", "selections"):
        tokens, blocks = (read_table(folder, table).to_pylist() for folder in (one, other))
        assert set(tokens[0]) <= set(blocks[0])
        for mine, of_blocks in zip(tokens, blocks, strict=True):
            assert {name: of_blocks[name] for name in mine} == mine
    assert [row["num_tokens"] for row in rows_of(other, "selections")] == [
        row["k"] for row in rows_of(one, "selections")
    ]


def test_default_folders_name_the_unit_and_more_blocks_than_there_are_is_a_mistake(tiny_config: Config) -> None:
    blocks = settings_of(tiny_config, unit="block:5", k=[1, 3])
    blocks.check_k()
    with pytest.raises(
        UserError, match=r"influence\.k = \[4\]: there are only 3 blocks of 5 among the M = 12 long-range"
    ):
        settings_of(tiny_config, unit="block:5", k=[1, 4]).check_k()
    settings_of(tiny_config, unit="sentence", k=[1, 12]).check_k()
