"""Excerpts hold what the tables hold, with the words of the null context."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import DRAWS, SEES_TARGET, made_up_tables
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.statistics.single.measured_tokenizer import tokenizer_of
from olmo_sparsity.tables.reading import find_tables, read_table
from olmo_sparsity.tables.schemas import RESAMPLED
from olmo_sparsity.text.vocabulary import train_bpe
from olmo_sparsity.view.excerpts import Choice, Excerpt, excerpt_of_rows, optimism_of, read_excerpts


def test_foreign_tokens_have_their_words(tiny_tables: Path, tmp_path: Path) -> None:
    """Without a tokenizer beside the tables, as in a copy of them elsewhere, from windows that hold the same tokens."""
    tiny_tables = shutil.copytree(tiny_tables, tmp_path / "elsewhere")
    rows = read_table(tiny_tables, "windows").to_pylist()
    texts = {i: text for row in rows for i, text in zip(row["token_ids"], row["token_texts"], strict=True)}
    asked = [row["window_id"] for row in rows[::7]]
    excerpts = read_excerpts(tiny_tables, asked)
    assert [excerpt.window_id for excerpt in excerpts] == asked
    by_id = {row["window_id"]: row for row in rows}
    fields = [field.name for field in dataclasses.fields(Excerpt) if field.name in rows[0]]
    assert len(fields) == 13
    for excerpt in excerpts:
        row = by_id[excerpt.window_id]
        assert excerpt.null_token_texts == [texts.get(i, f"#{i}") for i in row["null_token_ids"]]
        assert all(getattr(excerpt, name) == row[name] for name in fields)
    known = [text for excerpt in excerpts for text in excerpt.null_token_texts if not text.startswith("#")]
    assert len(known) > 50 and len(set(known)) > 10


def test_tokens_have_their_words_from_the_tokenizer_beside_the_tables(tiny_run: Path, tiny_tables: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_run / "tokenizer.json"))

    def text_of(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=False))

    rows = {row["window_id"]: row for row in read_table(tiny_tables, "windows").to_pylist()}
    for excerpt in read_excerpts(tiny_tables, list(rows)):
        row = rows[excerpt.window_id]
        shown = [*excerpt.token_texts, excerpt.target_text]
        assert "".join(shown) == text_of([*row["token_ids"], row["target_id"]])
        assert "".join(excerpt.null_token_texts) == text_of(row["null_token_ids"])
        assert len(shown) == len(row["token_ids"]) + 1 and len(excerpt.null_token_texts) == len(row["null_token_ids"])


def test_another_tokenizer_beside_the_tables_is_not_used(tiny_run: Path, tiny_tables: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    tables = run / "influence" / tiny_tables.name
    assert tokenizer_of(tables) is not None
    train_bpe(["other words"] * 9, 300, eos_token="<|endoftext|>").save(str(run / "tokenizer.json"))
    assert tokenizer_of(tables) is None
    (row, *_) = read_table(tables, "windows").to_pylist()
    assert read_excerpts(tables, [row["window_id"]])[0].token_texts == row["token_texts"]


def test_selections_are_those_of_the_window(tmp_path: Path) -> None:
    folder = made_up_tables(tmp_path / "tables", num_documents=20)
    for excerpt in read_excerpts(folder, [17, 3]):
        rows = [row for row in read_table(folder, "selections").to_pylist() if row["window_id"] == excerpt.window_id]
        rows = [row for row in rows if row["context"] in ("real", "null")]
        assert excerpt.selections == {
            (row["selector"], row["context"]): Choice(
                row["positions"],
                [*range(1, len(row["positions"]) + 1)],
                row["scores"],
                row["k"],
                row["loss_sparse_nats"],
                row["gain_sparse_nats"],
            )
            for row in rows
        }
        assert len(rows) == 20
        (row,) = (row for row in rows if (row["selector"], row["context"]) == ("kl", "real"))
        assert excerpt.loss_at("kl", "real", k=0) == excerpt.loss_short_nats
        assert excerpt.loss_at("kl", "real", k=2) == row["loss_sparse_nats"][1]
        assert excerpt.loss_at("kl", "real", k=3) is None
    with pytest.raises(UserError, match="numbered 0 to 29"):
        read_excerpts(folder, [3, 30])


def test_optimism_is_the_mean_gain_and_cost_on_the_resampled_targets(tmp_path: Path) -> None:
    folder = made_up_tables(tmp_path / "tables", num_documents=20)
    (excerpt,) = read_excerpts(folder, [7])
    rows = [row for row in read_table(folder, "selections").to_pylist() if row["window_id"] == 7]
    assert set(excerpt.optimism_nats) == {name for name, sees in SEES_TARGET.items() if sees}
    for name, optimism in excerpt.optimism_nats.items():
        of_draws = [
            np.add(row["gain_sparse_nats"], row["kl_short_to_sparse_nats"])
            for row in rows
            if (row["selector"], row["context"]) == (name, "resampled")
        ]
        assert len(of_draws) == DRAWS
        expected = np.mean(of_draws, axis=0)
        assert optimism == pytest.approx(expected)
        assert excerpt.optimism_at(name, k=8) == pytest.approx(expected[2])
        assert excerpt.optimism_at(name, k=3) is None
    assert excerpt.optimism_at("kl", k=8) is None


def test_optimism_of_three_draws_is_their_mean() -> None:
    """Draws of the null context, of other selectors, and without a divergence do not count."""
    draws = [([0.1, 0.4], [0.01, 0.02]), ([0.2, 0.3], [0.03, 0.01]), ([0.9, 1.1], [0.05, 0.06])]
    row: dict[str, Any] = {"selector": "greedy", "context": "resampled", "sees_target": True, "k": [2, 4]}
    rows = [{**row, "gain_sparse_nats": gains, "kl_short_to_sparse_nats": costs} for gains, costs in draws]
    other = {**row, "gain_sparse_nats": [7.0, 8.0], "kl_short_to_sparse_nats": [9.0, 9.0]}
    others = [{**other, "context": "real"}, {**other, "context": RESAMPLED["null"]}, {**other, "sees_target": False}]
    optimism = optimism_of([*rows, *others, {**other, "kl_short_to_sparse_nats": None}])
    assert list(optimism) == ["greedy"]
    assert optimism["greedy"] == pytest.approx([1.29 / 3, 1.89 / 3])


def test_groups_have_a_rank_and_a_score_for_each_of_their_tokens() -> None:
    """Of the groups 0-1, 2-5, 6, 7-9 the third and the second are chosen; the largest score is below 0."""
    row = {
        "positions": [6, 2, 3, 4, 5], "group_first": [6, 2], "group_last": [6, 5], "scores": [0.5, None, 2.0, -3.0],
        "k": [1, 2], "loss_sparse_nats": [1.5, 1.25], "gain_sparse_nats": [0.5, 0.75],
    }  # fmt: skip
    choice = Choice.from_row(row, [0, 2, 6, 7], num_long_range=10)
    assert choice.ranks == [1, 2, 2, 2, 2]
    assert choice.scores == [0.5, 0.5, None, None, None, None, 2.0, -3.0, -3.0, -3.0]
    assert choice.largest_score == 3.0
    assert (choice.loss_at(2), choice.loss_at(3)) == (1.25, None)


def test_groups_of_each_context_have_their_scores() -> None:
    """The groups 0, 1-3, 4-5 of the window's own tokens, and 0-1, 2, 3-5 of those of its null context."""
    row = {
        "window_id": 3, "doc_id": "d", "source": "s", "start_token": 4, "target_class": "name", "token_texts": list("abcdefgh"),
        "token_ids": [*range(8)], "target_id": 9, "target_text": "i", "null_doc_id": "n", "null_token_ids": [*range(21, 27)],
        "loss_short_nats": 1.5, "loss_long_nats": 1.25, "null_loss_long_nats": 1.75, "gain_long_nats": 0.25,
        "null_gain_long_nats": -0.25, "group_first": [0, 1, 4], "null_group_first": [0, 2, 3],
    }  # fmt: skip
    chosen = {
        "selector": "kl", "sees_target": False, "scores": [5.0, 7.0, 6.0], "k": [1], "loss_sparse_nats": [1.0],
        "gain_sparse_nats": [0.5], "kl_short_to_sparse_nats": None,
    }  # fmt: skip
    selections = [
        {**chosen, "context": "real", "positions": [1, 2, 3], "group_first": [1], "group_last": [3]},
        {**chosen, "context": "null", "positions": [2], "group_first": [2], "group_last": [2]},
    ]
    excerpt = excerpt_of_rows(row, selections, tokenizer=None, texts={21: " p", 25: " q"})
    assert excerpt.selections["kl", "real"].scores == [5.0, 7.0, 7.0, 7.0, 6.0, 6.0]
    assert excerpt.selections["kl", "null"].scores == [5.0, 5.0, 7.0, 6.0, 6.0, 6.0]
    assert [excerpt.selections["kl", context].ranks for context in ("real", "null")] == [[1, 1, 1], [1]]
    assert excerpt.null_token_texts == [" p", "#22", "#23", "#24", " q", "#26"]
    assert ("".join(excerpt.token_texts), excerpt.target_text) == ("abcdefgh", "i")


def test_a_run_or_a_folder_of_tables(tiny_run: Path, tiny_tables: Path, tmp_path: Path) -> None:
    assert find_tables(tiny_tables) == tiny_tables
    assert find_tables(tiny_run) == tiny_tables
    with pytest.raises(UserError, match="no such folder"):
        find_tables(tmp_path / "nowhere")
    (tmp_path / "windows").mkdir()
    with pytest.raises(UserError, match="no influence folder"):
        find_tables(tmp_path)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (" a", " a"),
        ("\n", "↵"),
        ("\t", "→"),
        ("\x1b[31m", "\ufffd[31m"),
        ("\u202e", "\ufffd"),
        ("\u200b\u200c\u200d\u200e", "\ufffd\u200c\u200d\ufffd"),
        ("\u2028", "↵"),
        ("漢", "漢"),
    ],
)
def test_printable(text: str, seen: str) -> None:
    assert printable(text) == seen
