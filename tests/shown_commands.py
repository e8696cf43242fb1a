"""The pages of the documentation, and the lines of code that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SYNTHETIC = (["synth", "train"], ["synth", "eval"])
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


def with_own_configuration(words: list[str]) -> list[str]:
    """Return a command with the ``--config`` in ``configs/`` here of the file that it would take from the package."""
    takes_file = words[0] in ("prepare", "train", "influence", "explore", "figures", "config") or words[:2] in SYNTHETIC
    run = Path(words[words.index("--run") + 1]) if "--run" in words else None
    if not takes_file or "--config" in words or (run is not None and (run / "config.yaml").is_file()):
        return words
    is_task, is_named = words[0] == "synth", len(words) > 2 and re.fullmatch(r"\w+", words[2]) is not None
    name = (
        f"synthetic/{words[2] if is_named else 'parity'}" if is_task else "pretrained" if "--model" in words else "demo"
    )
    return [*words, "--config", f"configs/{name}.yaml"]


def first_block(page: Path) -> str:
    """Return the first block of Python code of a page."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)[0]
