"""One window in a terminal, with colour and without."""

from __future__ import annotations

import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_up import CONTEXTUAL, made_up_tables
from rich.console import Console

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view import one_window
from olmo_sparsity.view.excerpts import Choice, read_excerpts
from olmo_sparsity.view.one_window import show_window
from olmo_sparsity.wording.setup import anchor_warning

HOSTILE = ["[red]markup[/red]", " \x1b[31mescape", " \u202eturned", "\n"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("show") / "tables", num_documents=30, words=HOSTILE)


def shown(tables: Path, window: int = 5, coloured: bool = False, width: int = 100, **options: object) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=coloured, color_system="truecolor" if coloured else None)
    settings: dict = {"k": 2, **options}
    show_window(tables, window, console=console, **settings)
    return out.getvalue()


def test_marks_tell_what_colours_would(tables: Path) -> None:
    said = shown(tables)
    (window,) = (row for row in read_table(tables, "windows").to_pylist() if row["window_id"] == 5)
    (chosen,) = (
        row
        for row in read_table(tables, "selections").to_pylist()
        if (row["window_id"], row["selector"], row["context"]) == (5, "kl", "real")
    )
    for rank, position in enumerate(chosen["positions"][:2]):
        assert f"{window['token_texts'][position].strip()}[{rank + 1}]" in said
    assert "[3]" not in said
    assert "\x1b" not in said
    assert "does not see the target" in said
    assert f"{window['loss_short_nats']:.3f} nats" in said
    assert f"{chosen['loss_sparse_nats'][1]:.3f} nats" in said
    assert " >>end<<" in said


def test_colour_where_there_is_colour(tables: Path) -> None:
    said = shown(tables, coloured=True)
    assert "\x1b[" in said
    assert "[1]" not in said


def test_the_rank_stands_behind_the_word(tmp_path: Path) -> None:
    """Of "focused" the selector may choose "focus" alone; the word stays one."""
    words = [" the", " focus", "ed", " degree", ".", "\n", "They", "", "\u2019", "ll", " a", "b"]
    tables = made_up_tables(tmp_path / "tables", num_documents=30, words=words)

    def text_of(*chosen: int, ranks: Sequence[int] = (), in_colour: bool = True) -> str:
        k = len(set(ranks) or chosen)
        choice = Choice(list(chosen), list(ranks or range(1, k + 1)), [1.0] * 12, [k], [1.0], [1.0])
        (excerpt,) = read_excerpts(tables, [0])
        excerpt = dataclasses.replace(excerpt, token_texts=[*words, *["x"] * 8], selections={("kl", "real"): choice})
        window = one_window.ShownWindow(
            excerpt, "kl", False, "real", k, [k], "sentence" if ranks else "token", "hidden", 8, "made up"
        )
        return one_window._long_range_line(window, coloured=in_colour).plain

    assert text_of(1) == "the focused(1) degree.\u21b5They\u2019ll ab"
    assert text_of(2, 1, 3) == "the focused(2,1) degree(3).\u21b5They\u2019ll ab"
    assert text_of(11, 7, 6) == "the focused degree.\u21b5They\u2025\u2019ll(3,2) ab(1)"
    assert text_of(4, 5) == "the focused degree.(1)\u21b5(2)They\u2019ll ab"
    for chosen in ((1,), (2, 1, 3), (11, 7, 6), (4, 5)):
        in_colour = text_of(*chosen).replace("(", "[").replace(")", "]")
        assert text_of(*chosen, in_colour=False) == in_colour
    # Groups of several words, of which one may end within a word, where another begins.
    groups = text_of(0, 1, 2, 3, 4, ranks=[1, 1, 1, 2, 2], in_colour=False)
    assert groups == "[1:the focused] [2:degree.]\u21b5They\u2019ll ab"
    groups = text_of(0, 1, 2, 3, 4, ranks=[2, 2, 1, 1, 1], in_colour=False)
    assert groups == "the[2] focused[2,1] [1:degree.]\u21b5They\u2019ll ab"
    # In colours the marked tokens tell where a group begins, and its rank stands behind the word that ends it.
    for ranks, expected in (
        ([1, 1, 1, 2, 2], "the focused(1) degree.(2)\u21b5They\u2019ll ab"),
        ([2, 2, 1, 1, 1], "the focused(2) degree.(1)\u21b5They\u2019ll ab"),
        ([1, 2, 2, 2, 3], "the(1) focused degree(2).(3)\u21b5They\u2019ll ab"),
    ):
        assert text_of(0, 1, 2, 3, 4, ranks=ranks) == expected


def test_the_stronger_the_score_the_stronger_the_colour(tables: Path) -> None:
    """Of the scores 9, 6, 3 and 0 each chosen token has a colour of its own, from strong to weak."""
    (excerpt,) = read_excerpts(tables, [5])
    choice = Choice([4, 2, 0, 6], [1, 2, 3, 4], [3.0, 1.0, 6.0, 1.0, 9.0, 1.0, 0.0, *[0.0] * 5], [4], [1.0], [1.0])
    excerpt = dataclasses.replace(excerpt, selections={("kl", "real"): choice})
    window = one_window.ShownWindow(excerpt, "kl", False, "real", 4, [4], "token", "hidden", 8, "made up")
    line = one_window._coloured_line(window)
    colours = {
        line.plain[span.start : span.end]: str(span.style).rpartition(" ")[2]
        for span in line.spans
        if " on " in str(span.style)
    }
    words = [excerpt.token_texts[position].strip() for position in (6, 0, 2, 4)]
    assert [colours[word] for word in words] == list(one_window.HEAT)
    brightness = [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in one_window.HEAT]
    assert brightness == sorted(brightness, reverse=True)


def test_a_score_below_0_is_weak_and_counts_for_the_largest(tables: Path) -> None:
    """Of the scores 4.5 and -9 the first has half of the largest absolute score, and the second nothing."""
    (excerpt,) = read_excerpts(tables, [5])
    choice = Choice([6, 2], [1, 2], [*[0.0] * 2, -9.0, *[0.0] * 3, 4.5, *[0.0] * 5], [2], [1.0], [1.0])
    excerpt = dataclasses.replace(excerpt, selections={("kl", "real"): choice})
    window = one_window.ShownWindow(excerpt, "kl", False, "real", 2, [2], "token", "hidden", 8, "made up")
    assert (window.heat(6), window.heat(2)) == (0.5, 0.0)


def test_a_chosen_token_without_a_score_has_none_and_the_weakest_colour(tables: Path) -> None:
    """One beside scores of 5 and -2, and where no token has a score."""
    (excerpt,) = read_excerpts(tables, [5])
    for scores, expected in (
        ([None, None, 5.0, *[None] * 5, -2.0, *[None] * 3], ["5", "-2", "-"]),
        ([None] * 12, ["-", "-", "-"]),
    ):
        choice = Choice([2, 8, 11], [1, 2, 3], scores, [3], [1.0], [1.0])
        one = dataclasses.replace(excerpt, selections={("kl", "real"): choice})
        window = one_window.ShownWindow(one, "kl", False, "real", 3, [3], "token", "hidden", 8, "made up")
        assert [row.score for row in one_window.ranking(window)] == expected
        assert [window.heat(position) for position in (2, 8, 11)] == [float(expected[0] == "5"), 0.0, 0.0]
        for coloured in (False, True):
            out = io.StringIO()
            one_window.print_choice(window, Console(file=out, width=100, force_terminal=coloured))
            assert [line.split()[:3] for line in out.getvalue().splitlines()[-3:]] == [
                [str(rank), distance, score]
                for rank, (distance, score) in enumerate(zip(("18", "12", "9"), expected, strict=True), start=1)
            ]


@pytest.mark.parametrize(
    ("unit", "visibility", "ranks", "k", "words"),
    [
        ("token", "contextual", [1], 1, "1 entry visible"),
        ("token", "hidden", [1], 1, "1 visible"),
        ("sentence", "hidden", [1, 2, 2, 2], 2, "2 sentences of 4 tokens visible"),
        ("sentence", "contextual", [1, 1, 2], 1, "1 sentence of 2 entries visible"),
        ("block:2", "hidden", [1], 1, "1 block of 2 tokens of one token visible"),
    ],
)
def test_how_much_is_visible_is_said_of_the_null_context_and_of_groups(
    tables: Path, unit: str, visibility: Any, ranks: list[int], k: int, words: str
) -> None:
    (excerpt,) = read_excerpts(tables, [5])
    assert excerpt.null_doc_id != excerpt.doc_id
    choice = Choice([*range(len(ranks))], ranks, [1.0] * 12, [k], [1.0], [1.0])
    excerpt = dataclasses.replace(excerpt, selections={("kl", "null"): choice})
    window = one_window.ShownWindow(excerpt, "kl", False, "null", k, [k], unit, visibility, 8, "made up")
    out = io.StringIO()
    one_window.print_choice(window, Console(file=out, width=200))
    assert f"12 long-range tokens, null context: of document {excerpt.null_doc_id}; {words}, numbered" in out.getvalue()
    groups = [[place for place, rank in enumerate(ranks) if rank == number] for number in range(1, max(ranks) + 1)]
    ends = [12 + 8 - max(group) for group in groups if group][:k]  # the token of a group that is nearest to the target
    assert [row.distance for row in one_window.ranking(window)] == ends


def test_no_color_means_marks(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    said = shown(tables, coloured=True)
    assert "[1]" in said
    assert "\x1b[38" not in said and "\x1b[48" not in said


def test_hostile_text_is_only_text(tables: Path) -> None:
    said = shown(tables, window=0, k=8)
    assert "[red]markup[/red]" in said
    assert "\x1b" not in said and "\u202e" not in said


def test_a_terminal_is_as_wide_as_it_is_and_no_wider_than_is_easy_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a pipe or file has the widest lines that are, however wide the terminal is."""
    for is_terminal, columns, width in ((True, 70, 70), (True, 130, 100), (False, 70, 100), (False, 130, 100)):
        monkeypatch.setattr(sys.stdout, "isatty", lambda is_terminal=is_terminal: is_terminal, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        assert one_window.terminal().width == width


def test_what_is_blank_or_a_part_of_a_character_is_marked_by_a_sign(tables: Path) -> None:
    """As a target, as a chosen token, and in the ranking. Local tokens begin without the space in front of the first."""
    (excerpt,) = read_excerpts(tables, [5])
    choice = Choice([1, 2], [1, 2], [0.0] * 12, [2], [1.0], [1.0])
    texts = ["a", " ", "", *[" b"] * 9, " local", *[" c"] * 7]
    excerpt = dataclasses.replace(excerpt, token_texts=texts, target_text=" ", selections={("kl", "real"): choice})
    window = one_window.ShownWindow(excerpt, "kl", False, "real", 2, [2], "token", "hidden", 8, "made up")
    out = io.StringIO()
    one_window.print_choice(window, Console(file=out, width=100))
    lines = out.getvalue().splitlines()
    assert f"  local{' c' * 7} >>\u2423<<" in lines and f"  a \u2423\u2025[1,2]{' b' * 9}" in lines
    assert [row.text for row in one_window.ranking(window)] == ["\u2423", "\u2025"]
    assert choice.largest_score == 1.0 and [window.heat(position) for position in (1, 2)] == [0.0, 0.0]


@pytest.mark.parametrize("width", [50, 60, 80, 100])
def test_a_bar_stands_beside_its_loss(tables: Path, width: int) -> None:
    bars = [line for line in shown(tables, width=width).splitlines() if "█" in line]
    assert len(bars) == 3 and all(" nats  █" in line for line in bars)
    assert max(line.count("█") for line in bars) == min(40, width - 42)


def test_the_largest_of_the_three_losses_has_the_longest_bar(tables: Path) -> None:
    """The chosen tokens may cost more than they give."""
    (excerpt,) = read_excerpts(tables, [5])
    for losses in ((2.0, 1.0, 4.0), (4.0, 2.0, 1.0), (1.0, 4.0, 2.0)):
        short, long, sparse = losses
        choice = Choice([3], [1], [1.0] * 12, [1], [sparse], [short - sparse])
        of_losses = {"loss_short_nats": short, "loss_long_nats": long, "selections": {("kl", "real"): choice}}
        window = one_window.ShownWindow(
            dataclasses.replace(excerpt, **of_losses), "kl", False, "real", 1, [1], "token", "hidden", 8, "made up"
        )
        out = io.StringIO()
        one_window.print_choice(window, Console(file=out, width=100))
        bars = [line.count("█") for line in out.getvalue().splitlines() if "█" in line]
        assert bars == [round(10 * loss) for loss in (short, sparse, long)], losses


def test_a_chosen_joiner_is_named(tables: Path) -> None:
    choice = Choice([1, 2], [1, 2], [1.0] * 12, [2], [1.0], [1.0])
    (excerpt,) = read_excerpts(tables, [0])
    texts = [" a", " \u200d", "\u0301", *[" b"] * 9, *[" c"] * 8]
    excerpt = dataclasses.replace(excerpt, token_texts=texts, target_text="\u200c", selections={("kl", "real"): choice})
    window = one_window.ShownWindow(excerpt, "kl", False, "real", 2, [2], "token", "hidden", 8, "made up")
    out = io.StringIO()
    one_window.print_choice(window, Console(file=out, width=100))
    assert "a (U+200D)[1]\u25cc\u0301[2] b" in out.getvalue() and " c>>(U+200C)<<" in out.getvalue()
    assert [row.text for row in one_window.ranking(window)] == ["(U+200D)", "\u25cc\u0301"]


def test_null_context_and_an_unmeasured_k(tables: Path) -> None:
    said = shown(tables, context="null", k=3, selector="unmask-one")
    assert "null context: of document" in said
    assert "measured at k = 1, 2, 8" in said
    assert "sees the target: part of its gain is optimism" in said
    assert "optimism, measured" not in shown(tables, context="null", k=2, selector="unmask-one")


def test_a_selector_that_sees_the_target_has_its_optimism_beside_its_gain(tables: Path) -> None:
    """Its optimism stands beside the sparse gain, and beside that of no other selector."""
    rows = read_table(tables, "selections").to_pylist()
    gains = [
        row["gain_sparse_nats"][1] + row["kl_short_to_sparse_nats"][1]
        for row in rows
        if (row["window_id"], row["selector"], row["context"]) == (5, "greedy", "resampled")
    ]
    said = shown(tables, selector="greedy", k=2)
    assert f"optimism, measured on resampled targets, {sum(gains) / len(gains):.3f} nats" in said
    assert "optimism, measured" not in shown(tables, selector="kl", k=2)
    assert "optimism, measured" not in shown(tables, selector="greedy", k=3)


def test_the_model_the_definition_of_visible_and_the_anchor_are_named(tables: Path, tmp_path: Path) -> None:
    of_run = " ".join(shown(tables).split())
    assert "Run made-up; visibility hidden (a hidden token is seen by no one); no anchor." in of_run
    of_model = " ".join(shown(made_up_tables(tmp_path / "model", num_documents=30, setup=CONTEXTUAL)).split())
    assert "Model someone/Made-Up-2M (2.346M parameters, bfloat16" in of_model
    assert "visibility contextual" in of_model and 'anchor "<bos>"' in of_model
    assert anchor_warning(ModelSetup.from_manifest(CONTEXTUAL)) in of_model and "WARNING" not in of_run


@pytest.mark.parametrize(
    ("window", "options", "said"),
    [
        (9999, {}, "no window 9999; they are numbered 0 to 44"),
        (1, {"k": 9}, "--k 9: must lie between 0 and 8"),
        (1, {"selector": "best"}, "--selector best: not measured"),
    ],
)
def test_mistakes(tables: Path, window: int, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        shown(tables, window, **options)


@pytest.mark.parametrize("context", ["real", "null"])
def test_the_ranking_has_the_distances_and_scores_of_the_tables(tables: Path, context: str) -> None:
    """Distances count the local tokens, too: the token next to them is one more than L before the target."""
    lines = shown(tables, context=context, k=8, selector="unmask-one").splitlines()
    ranked = [line.split() for line in lines[-8:]]
    (row,) = (
        row
        for row in read_table(tables, "selections").to_pylist()
        if (row["window_id"], row["selector"], row["context"]) == (5, "unmask-one", context)
    )
    assert [line[0] for line in ranked] == [str(rank) for rank in range(1, 9)]
    assert [int(line[1]) for line in ranked] == row["distance_tokens"]
    assert [int(line[1]) for line in ranked] == [20 - position for position in row["positions"]]
    assert [float(line[2]) for line in ranked] == [row["scores"][position] for position in row["positions"]]
