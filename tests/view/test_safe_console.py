"""What is printed holds no control characters, whatever the tables hold, and markup is text."""

from __future__ import annotations

import io
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from olmo_sparsity.errors import printable, printable_lines
from olmo_sparsity.view.safe_console import SafeConsole

HOSTILE = "[bold]a[/bold] \x1b[31mred\x07 \u202eback \x9b2J :smile: b"


def printed(*texts: str, **options: object) -> str:
    file = io.StringIO()
    console = SafeConsole(file=file, width=200, **options)
    table = Table(*texts)
    table.add_row(*texts)
    for text in texts:
        console.print(text)
        console.print(Text(text))
    console.print(table)
    return file.getvalue()


def test_names_from_tables_are_shown_as_they_are() -> None:
    shown = printed(HOSTILE)
    assert shown.count("[bold]a[/bold] \ufffd[31mred") == 4
    assert ":smile: b" in shown
    # A cell is as wide as its text without control characters, so what follows is cut there.
    assert shown.count(":smile") == 4


@given(st.text(min_size=1, max_size=30))
def test_no_control_character_is_printed(text: str) -> None:
    for character in printed(text):
        assert character in "\n\u200c\u200d" or unicodedata.category(character)[0] != "C", ascii(character)


def test_texts_that_are_written_with_joiners_are_printed_as_they_are() -> None:
    persian, emoji, turned = "\u0645\u06cc\u200c\u0631\u0648\u0645", "\U0001f469\u200d\U0001f52c", "a\u202eb\u200fc"
    shown = printed(persian, emoji, turned)
    assert (shown.count(persian), shown.count(emoji), shown.count("a\ufffdb\ufffdc")) == (
        4,
        4,
        2,
    )  # in a cell it is cut


def test_a_terminal_still_has_its_colours() -> None:
    file = io.StringIO()
    console = SafeConsole(file=file, width=80, force_terminal=True, color_system="standard", no_color=False)
    console.print("a\x1b[8mb", style="bold red")
    assert "\x1b[1;31m" in file.getvalue() and "\x1b[8m" not in file.getvalue()
    file.truncate(file.seek(0))
    console.print("k = 16, 'kl', None, True, https://a.b/c, runs/tiny")  # what rich would colour by itself
    assert file.getvalue() == "k = 16, 'kl', None, True, https://a.b/c, runs/tiny\n"


@given(st.text())
def test_printable_text_is_one_line_and_stays_as_it_is(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert printable(shown) == shown
    assert all(before == after for before, after in zip(text, shown, strict=True) if before.isprintable())


def test_breaks_and_tabs_are_arrows_and_other_control_characters_one_mark() -> None:
    text = "a b\tc\nd\re\u2028f\u2029g\x00\x1b\u202e\ud800\u00a0h"
    shown = "a b\u2192c\u21b5d\u21b5e\u21b5f\u21b5g\ufffd\ufffd\ufffd\ufffd\u00a0h"
    assert printable(text) == shown
    assert printable_lines(text) == shown.replace("c\u21b5d", "c\nd")
