"""Tables of results: whole at every width, and as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from pathlib import Path

import numpy as np
import pytest
from made_up import made_up_tables
from rich.console import Console

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.result_table import (
    Cell,
    ResultTable,
    Sentence,
    estimated,
    in_nats,
    keys,
    number,
    plain,
    words,
)
from olmo_sparsity.view.safe_console import SafeConsole
from olmo_sparsity.view.summary_tables import distance_table
from olmo_sparsity.view.table_formats import csv_of, in_tex, markdown_of, tex_of
from olmo_sparsity.view.table_printing import _print_as_lists, parts_of, print_items, print_table, results_console

GAIN, LOSS = Estimate(-0.01234567, -0.02, 0.005), Estimate(3.25, 3.125, 3.5)
TABLE = ResultTable(
    "gains",
    (*keys("selector", "quantity"), *plain("cost"), *in_nats("gain over random", "loss"), *plain("R(k)", "verdict")),
    (
        (*words("greedy-kl", "a quantity of many words that may be wrapped"), number(9), estimated(GAIN, 3),
         estimated(LOSS, 4), estimated(None, 2), *words("no clear difference")),
        (*words("[*]", "short"), number(10), estimated(LOSS, 3), estimated(GAIN, 4), estimated(Estimate(0.5), 2),
         *words("higher")),
    ),
    "the title",
    "the caption",
)  # fmt: skip
NUMBERS = ["-0.012 [-0.020, 0.005]", "3.2500 [3.1250, 3.5000]", "3.250 [3.125, 3.500]", "-0.0123 [-0.0200, 0.0050]"]


def printed(width: int) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    print_table(TABLE, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 200])
def test_no_number_is_cut_at_any_width(width: int) -> None:
    shown = printed(width)
    assert "…" not in shown
    assert max(len(line) for line in shown.splitlines()) <= width
    pieces = re.findall(r"-?\d+\.\d+", shown)
    expected = [piece for text in NUMBERS for piece in re.findall(r"-?\d+\.\d+", text)] + ["0.50"]
    assert sorted(pieces) == sorted(expected)
    if width >= 60:
        for text in NUMBERS:
            assert text in shown


def test_a_name_with_control_characters_is_whole() -> None:
    table = ResultTable(
        "t", (*keys("class"), *plain("of \x1b[31mrun")), ((*words("a\x1b[31mred\u202e \x9b2J end"), number(5)),)
    )
    for width in (80, 36):
        file = io.StringIO()
        print_table(table, SafeConsole(file=file, width=width))
        assert "\u2502 a\ufffd[31mred\ufffd \ufffd2J end \u2502" in file.getvalue()
        assert "\u2503 \ufffd[31mrun \u2503" in file.getvalue()


def test_a_row_that_is_a_list_has_its_keys_in_front_and_no_cell_that_is_empty() -> None:
    """Where not even one column fits beside the keys; a row may have an empty key, or an empty number."""
    table = ResultTable(
        "seeds",
        (*keys("quantity", "selector", "k"), *in_nats("mean"), *plain("seed 4", "seed 9")),
        (
            (*words("long gain", "", ""), estimated(Estimate(0.25), 3), number(1), number(2)),
            (*words("sparse gain", "kl", "8"), estimated(Estimate(0.5), 3), number(None), number(3)),
        ),
    )
    console = Console(width=44, file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False)
    assert parts_of(table, room=30) is None
    _print_as_lists(table, console)
    bold, plainly = "\x1b[1m", "\x1b[0m"
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        f"{bold}quantity: long gain{plainly}", "  mean, nats: 0.250", "  seed 4: 1", "  seed 9: 2",
        f"{bold}quantity: sparse gain, selector: kl, k: 8{plainly}", "  mean, nats: 0.500", "  seed 9: 3",
    ]  # fmt: skip


def test_each_part_of_a_wide_table_names_its_rows() -> None:
    wide, narrow = printed(200), printed(80)
    assert (wide.count("greedy-kl"), wide.count("┏")) == (1, 1)
    assert narrow.count("┏") > 1 and narrow.count("greedy-kl") == narrow.count("┏")
    assert narrow.count("the title") == narrow.count("the caption") == 1


def test_a_pipe_is_as_wide_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables keep the width; a sentence stays on one line, for programs that look for it."""
    monkeypatch.setenv("COLUMNS", "64")
    console = results_console()
    assert console.width == 64
    file = io.StringIO()
    print_items([Sentence("word " * 30 + "end"), TABLE], Console(file=file, width=64))
    first, between, title, *rest = file.getvalue().splitlines()
    assert first.endswith("end")
    assert (between, title) == ("", "the title")
    assert max(len(line) for line in rest) <= 64


def test_csv_has_a_row_for_each_number() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_of([Sentence("left out"), TABLE], {"gate": "passed"}))))
    assert len(rows) == 10
    first = rows[1]
    assert [first[name] for name in ("gate", "table", "selector", "number", "unit")] == [
        "passed", "gains", "greedy-kl", "gain over random", "nats",
    ]  # fmt: skip
    assert [float(first[name]) for name in ("value", "low", "high")] == [GAIN.mean, GAIN.low, GAIN.high]
    assert [rows[3][name] for name in ("value", "low", "high", "text")] == ["", "", "", "-"]
    assert [rows[8][name] for name in ("value", "low", "high", "text")] == ["0.5", "", "", "0.50"]


def test_markdown_escapes_words_and_keeps_numbers() -> None:
    table = ResultTable("t", (*keys("a|b"), *in_nats("gain")), ((*words("<b>*x*_y_[l](u)"), estimated(GAIN, 3)),))
    lines = markdown_of([Sentence("`A` & b", is_bold=True), table]).splitlines()
    assert lines == [
        r"**\`A\` \& b**", "",
        r"| a\|b | gain, nats |",
        "| --- | ---: |",
        r"| \<b\>\*x\*\_y\_\[l\](u) | -0.012 [-0.020, 0.005] |",
    ]  # fmt: skip


def test_every_sign_of_markdown_is_escaped() -> None:
    """Emphasis, code, links, images, HTML, headings, cells, entities, GitHub's strikethrough, and the escape itself."""
    for sign in "\\`*_{}[]<>#|~&!":
        assert markdown_of([Sentence(f"a{sign}b{sign}{sign}")]) == f"a\\{sign}b\\{sign}\\{sign}\n"
    assert markdown_of([Sentence("a\u202eb\u200bc\x1bd")]) == "a b c d\n"  # what turns or hides text, and escapes
    assert in_tex("a\u202eb\u200bc\x1bd") == "a b c d"
    assert markdown_of([Sentence("a\nb\tc (d) 1. e-f")]) == "a b c (d) 1. e-f\n"
    title, _, heads, rule, row, _, caption = markdown_of(
        [ResultTable("t", (*keys("~k"), *plain("#x")), ((*words("~1~"), number(2)),), "!t", "c|c")]
    ).splitlines()
    assert (title, caption) == (r"### \!t", r"c\|c")
    assert (heads, rule, row) == (r"| \~k | \#x |", "| --- | ---: |", r"| \~1\~ | 2 |")


def test_latex_follows_its_rules() -> None:
    """Environments and braces are balanced, every row has its cells, and no special character stands for itself."""
    nasty = '100% of $a_b & {c} #1 ~ ^ \\ < > | " \x1b\n\u65e5'
    table = ResultTable(
        nasty,
        (*keys(nasty), *in_nats("gain")),
        ((Cell("[*]"), estimated(GAIN, 3)), (Cell("* starred"), Cell("-")), (Cell(nasty), Cell("-"))),
        nasty,
        nasty,
    )
    tex = tex_of([Sentence(nasty), TABLE, table], nasty)
    assert "(U+65E5)" in tex and "\x1b" not in tex
    opened = re.findall(r"\\(begin|end)\{(\w+)\}", tex)
    stack: list[str] = []
    for kind, name in opened:
        if kind == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert stack == [] and len(opened) == 4 * tex.count(r"\caption{") > 8  # a table that is too wide is several
    code = [line for line in tex.splitlines() if not line.startswith("%")]
    bare = re.sub(r"\\(?:[{}$&#%_]|text\w+\{\}|\\)|\$-\$", "", "\n".join(code))
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"[$#%_^~<>|\"]", bare)
    columns = 0
    for line in code:
        if match := re.search(r"begin\{tabular\}\{((?:l|r|p\{[\d.]+em\})+)\}", line):
            columns = len(re.findall(r"[lrp]", match[1]))
        if line.endswith(r"\\"):
            cells = re.split(r"(?<!\\)&", line)
            assert len(cells) == columns and not re.match(r"\s*[\[*]", line)


def test_latex_shows_each_number_once_on_a_page_wide_enough() -> None:
    tex = tex_of([TABLE], "the note")
    for shown in [*NUMBERS, "0.50"]:
        assert tex.count(in_tex(shown)) == 1
    assert tex.count(r"\caption{") == tex.count("the note") == tex.count("The title. ") == 3
    assert (tex.count("the caption"), tex.count("Continued.")) == (1, 2)
    assert tex.count("greedy-kl & a quantity of many words") == tex.count("{}[*] & short") == 3
    assert r"\begin{tabular}{lp{11em}rr}" in tex and r"\shortstack[r]{gain over random\\ (nats)}" in tex


def test_latex_divides_a_long_table_and_shows_each_row_once() -> None:
    rows = tuple((*words(f"row-{i}"), number(1000 + i)) for i in range(61))
    tex = tex_of([ResultTable("long", (*keys("name"), *plain("cost")), rows, "the title", "the caption")], "the note")
    assert re.findall(r"row-(\d+) & ([\d,]+) ", tex) == [(str(i), cells[1].text) for i, cells in enumerate(rows)]
    parts = tex.split(r"\begin{tabular}")[1:]
    assert [part.count("row-") for part in parts] == [30, 30, 1]
    assert (tex.count("the caption"), tex.count("Continued."), tex.count("the note")) == (1, 2, 3)
    without_rows = tex_of([ResultTable("long", (*keys("name"), *plain("cost")), (), "the title", "the caption")], "")
    (head,) = re.findall(r"toprule\n +(.*)\n +\\midrule\n +\\bottomrule", without_rows)
    assert head == r"name & cost \\" and r"\caption{The title. the caption}" in without_rows


def test_latex_takes_no_character_for_anything_else() -> None:
    """Each of these stopped LaTeX, or was printed as another character, when such a table was compiled."""
    assert in_tex("a - b, -0.5 [-1.0, 2] --- -- -") == "a $-$ b, $-$0.5 [$-$1.0, 2] -{}-{}- -{}- -"
    assert in_tex("\u00ab\u0142\u00fc\u0105\u00bb") == "(U+00AB)\u0142\u00fc(U+0105)(U+00BB)"
    assert in_tex("?`x'") == r"?\textasciigrave{}x'"
    assert in_tex(r"\{}$&#%_~^<>|") == (
        r"\textbackslash{}\{\}\$\&\#\%\_\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"
    )
    assert in_tex("-0.5 and a-b, k-2") == "$-$0.5 and a-b, k-2"


def test_the_table_of_distances_counts_the_chosen_tokens_of_each_bin(tmp_path: Path) -> None:
    """Row by row from the tables: of the k chosen tokens of a selector the share in each bin, from its nearest distance on."""
    tables = made_up_tables(tmp_path / "tables", num_documents=20, selectors=["kl", "random"])
    chosen: dict[tuple[str, str], list[list[int]]] = {}
    for row in read_table(tables, "selections").to_pylist():
        if row["context"] in ("real", "null"):
            chosen.setdefault((row["selector"], row["context"]), []).append(row["distance_tokens"])
    table = distance_table(Measured.read(tables).distances)
    assert [column.name for column in table.columns] == [
        "selector", "context", "k", "distance, tokens", "share", "share at random",
    ]  # fmt: skip
    for selector, context, k, bounds, share, at_random in table.rows:
        first, last = map(int, bounds.text.split(" to "))
        assert 9 <= first <= last <= 20
        far = [distance for row in chosen[selector.text, context.text] for distance in row[: int(k.text)]]
        assert share.value == pytest.approx(np.mean([first <= distance <= last for distance in far]))
        assert float(at_random.text) == pytest.approx((last - first + 1) / 12, abs=6e-4)
    assert len({row[4].value for row in table.rows}) > 20
    of = Measured.read(tables).distances[0]
    wide = dataclasses.replace(of, bins=(dataclasses.replace(of.bins[0], from_tokens=9, to_tokens=12),))
    assert distance_table([wide]).rows[0][3].text == "9 to 12"
