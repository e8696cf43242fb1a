"""What a reader gets of an HTML page, as text: a line for each text with what marks it, for each row of a table, and for each
entry of the data that its scripts show. Scripts and styles are left out; of a chart its texts are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, Optional

# What says or marks something, beside the text of a tag.
SAYING = (
    "class",
    "id",
    "aria-labelledby",
    "title",
    "aria-label",
    "href",
    "type",
    "value",
    "max",
    "name",
    "for",
    "open",
    "checked",
    "selected",
    "lang",
    "role",
    "scope",
    "tabindex",
    "min",
    "step",
    "rows",
    "inputmode",
    "autocomplete",
    "spellcheck",
    "charset",
    "aria-describedby",
    "aria-live",
    "aria-hidden",
)
VOID = {"input", "meta", "br", "link", "hr"}
DIGITS = 6
TOKEN = re.compile(
    r'(span|mark) class="token (.*?)" title="(\d+) tokens before the target, score (.*?)": (.*)\n(?:sup: (.*)\n)?'
)
TOKENS = re.compile(f"(?:{TOKEN.pattern})+")
MOST_ROWS = 12  # of a table that are all written; of more the first and the last ones, and how many there are
MOST_LETTERS, MOST_ENTRIES = 900, 5  # of an entry of the data in one line; of a list of long entries


class _Reader(HTMLParser):
    """Collects the lines of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.opened: Optional[str] = None  # the tag whose text has not come yet
        self.row: Optional[list[str]] = None
        self.hidden = ""  # the tag whose content is not shown
        self.chart: Optional[list[str]] = None
        self.rows: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, Optional[str]]]) -> None:
        found = dict(attributes)
        if self.chart is not None or self.hidden:
            return
        self._close()
        if tag == "svg" and found.get("id") != "links":
            self.chart = []
        elif tag == "style" or (tag == "script" and found.get("type") != "application/json"):
            self.hidden = tag
        elif tag == "tr":
            self.row = []
        else:
            said = [f'{name}="{found[name]}"' if found[name] else name for name in SAYING if name in found]
            if self.row is not None and tag in ("td", "th"):
                said = [words for words in said if words not in ('class="number"', "class=number")]
                self.row.append(" ".join(said))
            elif tag == "meta" and "content" in found and found.get("name") == "generator":
                self.opened = None
            else:
                self.opened = " ".join([tag, *said])
                if tag in VOID:
                    self._close()

    def handle_endtag(self, tag: str) -> None:
        if tag == self.hidden:
            self.hidden = ""
        elif tag == "svg" and self.chart is not None:
            self.lines.append(f"chart: {' | '.join(self.chart)}")
            self.chart = None
        elif tag == "tr" and self.row is not None:
            self.rows.append(f"row: {' | '.join(self.row)}")
            self.row = None
        elif tag == "table":
            few = [*self.rows[:4], f"{len(self.rows)} rows", *self.rows[-2:]]
            self.lines += self.rows if len(self.rows) <= MOST_ROWS else few
            self.rows = []
        elif self.chart is None and not self.hidden:
            self._close()

    def handle_data(self, data: str) -> None:
        words = " ".join(data.split())
        if not words or self.hidden:
            return
        if self.chart is not None:
            self.chart.append(words)
        elif self.opened is not None and self.opened.startswith("script"):
            self.lines.append(f"data: {data_text(json.loads(data))}")
            self.opened = None
        elif self.row:
            self.row[-1] = f"{self.row[-1]} {words}".strip()
        else:
            self.lines.append(f"{self.opened or '...'}: {words}")
            self.opened = None

    def _close(self) -> None:
        """Write a tag without text of its own, if it says something."""
        if self.opened is not None and " " in self.opened:
            self.lines.append(self.opened)
        self.opened = None


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS) + 0.0
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list) else value


def data_text(data: Any) -> str:
    """Return JSON with a line for each entry, and numbers of six digits. Of long lists of entries the first ones are written."""
    return "\n".join(_entries(_rounded(data), ""))


def _entries(value: Any, path: str) -> Iterator[str]:
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict) and (not path or len(written) > MOST_LETTERS):
        for key, entry in value.items():
            yield from _entries(entry, f"{path}.{key}")
    elif isinstance(value, list) and value and isinstance(value[0], dict) and len(written) > MOST_LETTERS:
        for number, entry in enumerate(value[:MOST_ENTRIES]):
            yield from _entries(entry, f"{path}[{number}]")
        if len(value) > MOST_ENTRIES:
            yield f"{path}: {len(value)} entries"
    else:
        yield f"{path}: {written}"


def _token_line(found: re.Match[str]) -> str:
    """Return the tokens of a paragraph in one line: text, rank if one follows, distance, score and shade of each."""
    tokens = [
        f"{'*' * (tag == 'mark')}{text}{' rank ' + rank if rank else ''} {distance} {score} {shade}"
        for tag, shade, distance, score, text, rank in TOKEN.findall(found[0])
    ]
    return f"tokens: {'; '.join(tokens)}\n"


def page_text(page: str) -> str:
    """Return what a reader gets of a page, one fact a line. Versions are left out."""
    reader = _Reader()
    reader.feed(page)
    text = TOKENS.sub(_token_line, "\n".join(reader.lines) + "\n")
    return re.sub(r"olmo-sparsity (\d+\.)+\d+", "olmo-sparsity VERSION", text).replace(
        "version = {0.1.0}", "version = {VERSION}"
    )
