"""What some tests need that not every machine has: ``@pytest.mark.needs("make")``. No other test is skipped."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Name -> (whether it is there, what to do where it is missing).
NEEDS: dict[str, tuple[Callable[[], object], str]] = {
    "Chromium": (lambda: CHROMIUM, "make browser"),
    "make": (lambda: shutil.which("make"), "install it"),
    "mkdocs": (lambda: find_spec("mkdocs") and find_spec("mkdocstrings"), "make docs"),
    "a C++ compiler": (lambda: shutil.which("g++"), "install g++"),
    "glibc": (lambda: platform.libc_ver()[0] == "glibc", "another allocator behaves otherwise"),
    "matplotlib 3.11.2": (lambda: version("matplotlib") == "3.11.2", "Python 3.11 or 3.12 has it; others draw letters otherwise"),
    "user namespaces": (lambda: not subprocess.run(["unshare", "-U", "true"], capture_output=True).returncode, "allow them"),
}  # fmt: skip


@cache
def is_there(what: str) -> bool:
    return bool(NEEDS[what][0]())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for what in mark.args:
            if not is_there(what):
                pytest.skip(f"{what} is missing ({NEEDS[what][1]})")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line that says what was skipped, and why."""
    skipped = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")]
    if skipped:
        reasons = "; ".join(f"{number} because {reason}" for reason, number in Counter(skipped).most_common())
        terminalreporter.write_line(f"Skipped: {reasons}")
