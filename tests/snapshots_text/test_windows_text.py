"""What ``olmo-sparsity show`` prints of windows of invented measurements."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from printed_text import Printed
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.view.one_window import show_window


@pytest.mark.parametrize(
    "line",
    [
        "runs/run 17",
        "runs/run 18 --selector unmask-one --k 10",
        "runs/run 19 --selector greedy --k 2 --context null",
        "runs/run 20 --k 0",
        "runs/words 5 --k 2",
        "runs/words 6 --context null",
        "runs/words 9 --selector gradient --k 1",
        "runs/gap 7 --selector unmask-one",
        "runs/few 3",
        "runs/stated 8",
        "runs/run/influence/of-run 8 --selector attention",
        "runs/run 8 --k 11",
        "runs/run 8 --k -1",
        "runs/run 470",
    ],
)
def test_show(line: str, printed: Printed, snapshot: SnapshotAssertion) -> None:
    assert printed(f"show {line}", as_laid_out=True) == snapshot


def test_show_in_colour(work: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion) -> None:
    monkeypatch.chdir(work)
    out = io.StringIO()
    console = Console(file=out, width=90, force_terminal=True, color_system="truecolor")
    show_window(Path("runs/run/influence/of-run"), 18, console=console, selector="unmask-one")
    assert out.getvalue().replace("\x1b", "ESC").splitlines() == snapshot
