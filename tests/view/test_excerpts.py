"""What is read of a window is what its tables say, the words of its null context among it."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.tables.reading import find_tables, read_table
from olmo_sparsity.view.excerpts import loss_at, printable, read_excerpts


def test_foreign_tokens_have_their_words(tiny_tables: Path) -> None:
    rows = read_table(tiny_tables, "windows").to_pylist()
    texts = {i: text for row in rows for i, text in zip(row["token_ids"], row["token_texts"], strict=True)}
    asked = [row["window_id"] for row in rows[::7]]
    found = read_excerpts(tiny_tables, asked)
    assert [one["window_id"] for one in found] == asked
    by_id = {row["window_id"]: row for row in rows}
    for one in found:
        assert one["null_token_texts"] == [texts.get(i, f"#{i}") for i in by_id[one["window_id"]]["null_token_ids"]]
    known = [text for one in found for text in one["null_token_texts"] if not text.startswith("#")]
    assert len(known) > 50 and len(set(known)) > 10


def test_selections_are_those_of_the_window(tmp_path: Path) -> None:
    folder = made_up_tables(tmp_path / "tables", num_documents=20)
    for one in read_excerpts(folder, [17, 3]):
        rows = [row for row in read_table(folder, "selections").to_pylist() if row["window_id"] == one["window_id"]]
        assert one["selections"] == {(row["selector"], row["context"]): row for row in rows}
        (row,) = (row for row in rows if (row["selector"], row["context"]) == ("kl", "real"))
        assert loss_at(row, one["loss_short_nats"], 0) == one["loss_short_nats"]
        assert loss_at(row, one["loss_short_nats"], 2) == row["loss_sparse_nats"][1]
        assert loss_at(row, one["loss_short_nats"], 3) is None
    with pytest.raises(UserError, match="numbered 0 to 29"):
        read_excerpts(folder, [3, 30])


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
        ("\u2028", "↵"),
        ("漢", "漢"),
    ],
)
def test_printable(text: str, seen: str) -> None:
    assert printable(text) == seen
