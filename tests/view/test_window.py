"""One window: its words and numbers against the tables, and how it is printed."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from started_commands import exit_code
from tokenizers import Tokenizer
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import printable
from olmo_sparsity.files import sha256_text
from olmo_sparsity.statistics.quantities import counted
from olmo_sparsity.tables import read_table
from olmo_sparsity.text.tokenizer import train_bpe
from olmo_sparsity.view.console import SafeConsole
from olmo_sparsity.view.window import Window, print_choice, read_windows, window_of
from olmo_sparsity.view.words import alone, words

LOCAL, FULL, KS = 8, 20, [1, 2, 8]


def rows_of(tables: Path, table: str, window_id: int) -> list[dict[str, Any]]:
    return [row for row in read_table(tables, table).to_pylist() if row["window_id"] == window_id]


def test_a_window_holds_what_the_tables_hold(tiny_run: Path, tiny_tables: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_run / "tokenizer.json"))
    for window_id, window in zip([31, 7], read_windows(tiny_tables, [31, 7]), strict=True):
        (row,) = rows_of(tiny_tables, "windows", window_id)
        decoded = printable(tokenizer.decode([*row["token_ids"], row["target_id"]]))
        assert "".join([*window.texts, window.target.space, window.target.text]) == decoded
        assert (window.row, len(window.texts), window.num_long_range) == (row, FULL, FULL - LOCAL)
        selections = [of for of in rows_of(tiny_tables, "selections", window_id) if of["context"] == "real"]
        for of in selections:
            for k, loss in zip(KS, of["loss_sparse_nats"], strict=True):
                assert window.losses(of["selector"], k) == [row["loss_short_nats"], loss, row["loss_long_nats"]]
                ranks = {position: rank for rank, position in enumerate(of["positions"][:k], start=1)}
                assert window.visible(of["selector"], k) == ranks


def test_characters_that_span_tokens_are_whole_with_the_tokenizer_of_the_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = train_bpe(["They say that the plain cafe is in the river."] * 50, 300, eos_token="<eos>")
    rows = unlike_rows(unlike_manifest(), num_documents=1)
    token_ids = tokenizer.encode("They say caf\u00e9 \u20ac" + " in" * FULL).ids[:FULL]
    rows["windows"][0] |= {"token_ids": token_ids, "token_texts": [tokenizer.decode([i]) for i in token_ids]}
    for name, sha256, shown in (
        ("theirs", sha256_text(tokenizer.to_str()), "They say caf\u00e9 \u20ac in"),
        ("another", "0" * 64, "They say caf\ufffd\ufffd \ufffd\ufffd\ufffd in"),
    ):
        tables = write_rows(tmp_path / name / "influence" / "t", unlike_manifest(tokenizer_sha256=sha256), rows)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        (window,) = read_windows(tables, [0])
        assert "".join(window.texts).startswith(shown) and len(window.texts) == FULL
        assert "3 tokens picked by kl" in show(capsys, tables, 0)[1]  # a quarter of 12


def made_up_window(texts: list[str], positions: list[int], target: str = " end", **of: Any) -> Window:
    """A window of 12 long-range tokens and 8 local ones, and one choice at as many k as it has positions."""
    ks = list(range(1, len(set(of.get("group_first", positions))) + 1))
    row = {
        "window_id": 5, "doc_id": "d", "start_token": 0, "target_class": "other", "loss_short_nats": 4.0, "loss_long_nats": 2.0,
        "token_texts": [*texts, *[" x"] * (FULL - len(texts))], "target_text": target,
    }  # fmt: skip
    chosen = {
        "selector": "kl", "context": "real", "sees_target": False, "positions": positions, "scores": [1.0] * 12, "k": ks,
        "loss_sparse_nats": [1.0] * len(ks), **of,
    }  # fmt: skip
    return window_of(row, [chosen], tokenizer=None, local_len=LOCAL)


TEXTS = [" the", " focus", "ed", " degree", ".", "\u21b5", "They", "", "\u2019", "ll", " a", "b"]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ({1: 1}, "the|focused(1)|degree|.|\u21b5|They\u2019ll|ab"),
        ({2: 1, 1: 2, 3: 3}, "the|focused(2,1)|degree(3)|.|\u21b5|They\u2019ll|ab"),
        ({7: 1, 11: 2}, "the|focused|degree|.|\u21b5|They\u2025\u2019ll(1)|ab(2)"),
        ({0: 1, 1: 1, 2: 1, 3: 2}, "the(1)|focused(1)|degree(2)|.|\u21b5|They\u2019ll|ab"),
    ],
)
def test_tokens_join_to_words_that_keep_their_ranks(visible: dict[int, int], expected: str) -> None:
    found = words(TEXTS, visible)
    shown = [word.text + (f"({','.join(map(str, word.ranks))})" if word.ranks else "") for word in found]
    assert "|".join(shown) == expected and [word.space for word in found] == ["", " ", " ", "", "", "", " "]
    assert [word.text for word in words([" a.", "b"], {})] == ["a.", "b"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", "\u2025"), (" ", "\u2423"), ("\u200d", "(U+200D)"), ("\u0301", "\u25cc\u0301"), ("e\u0301", "e\u0301")],
)
def test_something_of_a_token_can_be_seen_where_it_is_alone(text: str, shown: str) -> None:
    assert alone(text) == shown


@pytest.mark.parametrize(
    ("number", "unit", "visibility", "expected"),
    [
        (1, "token", "hidden", "1 token"),
        (1200, "token", "hidden", "1,200 tokens"),
        (2, "sentence", "hidden", "2 sentences"),
        (1, "token", "contextual", "1 entry"),
        (1, "block:16", "contextual", "1 block of 16 entries"),
    ],
)
def test_k_is_counted_in_its_unit(number: int, unit: str, visibility: str, expected: str) -> None:
    assert counted(number, {"influence": {"unit": unit}, "visibility": visibility}) == expected


# --- in the terminal


def printed(window: Window, k: int, *, colour: bool = False, unit: str = "token") -> str:
    file = io.StringIO()
    console = SafeConsole(file=file, width=100, force_terminal=colour, color_system="truecolor" if colour else None)
    print_choice(window, "kl", k, console=console, manifest={"influence": {"unit": unit}})
    return file.getvalue()


def test_marks_read_the_same_with_colour_and_without() -> None:
    window = made_up_window([" the", " river", "s", " run"], [2, 3])
    plain, coloured = printed(window, 2), printed(window, 2, colour=True)
    assert "  the [1:rivers] [2:run] x x x x x x x x" in plain and "\x1b" not in plain
    assert "\x1b[" in coloured and re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain


def test_words_of_one_group_share_a_rank_and_a_mark() -> None:
    groups = {"group_first": [0, 4], "group_last": [1, 4], "scores": [1.0] * 3}
    window = made_up_window([" the", " red", " river", "s", " run"], [0, 1, 4], **groups)
    assert window.visible("kl", 2) == {0: 1, 1: 1, 4: 2} and window.visible("kl", 1) == {0: 1, 1: 1}
    assert "  [1:the red] rivers [2:run] x x x x x x x" in printed(window, 2, unit="sentence")


def test_hostile_text_is_only_text() -> None:
    hostile = ["[red]markup[/red]", " \x1b[31mescape", " \u202eturned", "\n"]
    said = printed(made_up_window(hostile, [0, 1, 2], target=" \x1b]0;title\x07"), 3, colour=True)
    assert "[red]markup[/red]" in said and "\ufffd[31mescape" in said
    assert "\x1b[31m" not in said and "\x1b]" not in said and "\u202e" not in said and "\x07" not in said


def show(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = exit_code("show", *map(str, arguments))
    out, err = capsys.readouterr()
    return code, " ".join(out.split()), err


@pytest.mark.parametrize(
    (
        "options",
        "name",
        "i",
    ),  # by default the largest k up to a quarter of 12 tokens, by a selector that does not see the target
    [((), "kl", 1), (("--selector", "unmask-one", "--k", 8), "unmask-one", 2)],
)
def test_show_prints_the_numbers_of_the_tables(
    options: tuple[object, ...],
    name: str,
    i: int,
    tiny_run: Path,
    tiny_tables: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (row,) = rows_of(tiny_tables, "windows", 7)
    selections = rows_of(tiny_tables, "selections", 7)
    (chosen,) = [of for of in selections if (of["selector"], of["context"]) == (name, "real")]
    code, said, _ = show(capsys, tiny_run, 7, *options)
    losses = row["loss_short_nats"], chosen["loss_sparse_nats"][i], row["loss_long_nats"]
    assert code == 0 and f"Window 7 of {tiny_run.name}" in said and f"{KS[i]} tokens picked by {name}" in said
    assert all(re.search(rf" {loss:.3f} +{np.exp(-loss):.1%}", said) for loss in losses)
    assert f"sparse gain {losses[0] - losses[1]:.3f}, long gain {losses[0] - losses[2]:.3f} nats" in said
    assert f">>{alone(printable(row['target_text']).removeprefix(' '))}<<" in said
    ranks = [int(rank) for found in re.findall(r"\[([\d,]+):", said) for rank in found.split(",")]
    assert sorted(ranks) == list(range(1, KS[i] + 1))
