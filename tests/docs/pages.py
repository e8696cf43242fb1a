"""The pages of the documentation, and the lines of code that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
    """Return the lines of a page that start a command or a figure, without comments."""
    lines = (re.fullmatch(r"((?:olmo-sparsity|python -m analysis) .*?)(?: {2,}#.*)?", of) for of in code_lines(page))
    return [line[1] for line in lines if line is not None]


def python_blocks(*pages: str) -> list[str]:
    """Return the blocks of Python code of pages."""
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
