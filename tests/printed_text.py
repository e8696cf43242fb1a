"""What is printed, as snapshots hold it: tables without their layout, of JSON and CSV some records, rounded."""

from __future__ import annotations

import csv
import io
import json
import re
from typing import Any, Protocol

LONGEST = 150  # characters of a JSON object that is kept on one line
DIGITS = 6  # of a number
KEPT = (
    2  # rows of CSV that are kept of each sort; lists of JSON with more than twice as many records keep both ends ...
)
WHOLE = 1500  # ... or the first record alone, where records are longer than so many characters


class Printed(Protocol):
    """Runs a command, and returns what it prints."""

    def __call__(self, line: str, *, as_json: bool = False, as_laid_out: bool = False) -> str: ...


def without_layout(text: str) -> str:
    """Return printed tables without the lines between rows, and without the spaces that make columns as wide as each other."""
    lines = [line for line in text.splitlines() if not re.match("[\u250f\u2521\u2514\u251c]", line)]
    is_row = re.compile("[\u2502\u2503]")
    return "\n".join(re.sub(" +", " ", line) if is_row.match(line) else line for line in lines)


def json_lines(value: Any) -> str:
    """Return JSON, indented, with what is short on one line, and numbers rounded; of long lists of records some."""
    return "\n".join(_lines(_rounded(value), "", ""))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list):
        is_long = len(value) > 2 * KEPT and isinstance(value[0], dict)
        kept = value
        if is_long:
            kept = [value[0], f"{len(value) - 1} more"]
            if len(json.dumps(value[-1])) < WHOLE:
                kept = [value[0], f"{len(value) - 2} more", value[-1]]
        return [_rounded(entry) for entry in kept]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _lines(value: Any, indent: str, name: str) -> list[str]:
    line = f"{indent}{name}{json.dumps(value, ensure_ascii=False)}"
    inner = list(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    is_flat = not any(isinstance(entry, (dict, list)) and entry for entry in inner)
    if is_flat and (not isinstance(value, dict) or len(line) <= LONGEST):
        return [line]
    entries = value.items() if isinstance(value, dict) else (("", entry) for entry in value)
    first, last = "{}" if isinstance(value, dict) else "[]"
    inside = [part for key, entry in entries for part in _lines(entry, f"{indent}  ", f"{key}: " if key else "- ")]
    return [f"{indent}{name}{first}", *inside, f"{indent}{last}"]


def csv_lines(text: str) -> str:
    """Return the columns of CSV that have one value in all rows, then rows of the others: the first of each sort."""
    rows = list(csv.DictReader(io.StringIO(text)))
    common = [name for name in rows[0] if len({row[name] for row in rows}) == 1]
    lines = [f"{name}: {rows[0][name]}" for name in common]
    names = [name for name in rows[0] if name not in common]
    lines += [f"{len(rows)} rows", ",".join(names)]
    seen: dict[tuple[str, str], int] = {}
    for row in rows:
        sort = tuple(row[name] for name in ("table", "quantity"))
        seen[sort] = seen.get(sort, 0) + 1
        if seen[sort] <= KEPT:
            lines.append(",".join(_short(row[name]) for name in names))
    return "\n".join(lines)


def _short(text: str) -> str:
    try:
        return f"{float(text):.{DIGITS}g}"
    except ValueError:
        return text
