"""The pages of the documentation, and the lines of code that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
# In reading order: the pages of the navigation that are files in docs/, after the README.
IN_NAVIGATION = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in IN_NAVIGATION if (ROOT / "docs" / name).is_file()),
    ROOT / "CONTRIBUTING.md",
]


def code_lines(page: Path) -> Iterator[str]:
    """Yield the lines of a page's indented code blocks and of its fenced shell blocks."""
    fence: str | None = None
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            fence = line.removeprefix("```").strip() if fence is None else None
        elif fence == "bash":
            yield line
        elif fence is None and line.startswith("    "):
            yield line.removeprefix("    ")


def shown_commands(page: Path) -> list[str]:
    """Return the arguments of each ``olmo-sparsity`` line of a page, without comments."""
    lines = (re.fullmatch(r"olmo-sparsity (.*?)(?: {2,}#.*)?", line) for line in code_lines(page))
    return [line[1] for line in lines if line is not None]


def first_block(page: Path) -> str:
    """Return the first block of Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)[0]
