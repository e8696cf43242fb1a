"""What ``olmo-sparsity show`` and ``explain`` print of windows of invented measurements."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from printed_text import Printed, json_lines
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.tables.reading import read_windows
from olmo_sparsity.view.excerpts import read_excerpts
from olmo_sparsity.view.explanation import Explanation, print_explanation
from olmo_sparsity.view.one_window import ShownWindow, show_window
from olmo_sparsity.wording.setup import setup_words

NOTE = "The text stands at 2 places; this is the first."


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
        "runs/heads 8",
        "runs/run/influence/of-run 8 --selector attention",
        "runs/run 8 --k 11",
        "runs/run 8 --k -1",
        "runs/run 470",
        "runs/heads 8 --selector h2o-heads",
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


def explanation(tables: Path, window_id: int, selectors: list[str], *, note: str | None) -> Explanation:
    measurement = load(tables)
    (excerpt,) = read_excerpts(tables, [window_id])
    (window_row,) = read_windows(tables, "windows", window_ids=[window_id])
    setup, run = measurement.setup, measurement.manifest["run"]
    shown = tuple(
        ShownWindow(
            excerpt, name, measurement.selectors[name].sees_target, "real", measurement.ks[-1], measurement.ks, measurement.unit,
            setup.visibility, measurement.lengths.local_len, setup_words(run, setup),
        )
        for name in selectors
    )  # fmt: skip
    rows = [row for row in read_windows(tables, "selections", window_ids=[window_id]) if row["selector"] in selectors]
    return Explanation("letter.txt", 321, run, setup, note, measurement.null_context, shown, window_row, rows)


@pytest.mark.parametrize(
    ("name", "selectors", "note"), [("run", ["kl", "unmask-one", "random"], NOTE), ("words", ["attention"], None)]
)
def test_explanation(
    name: str, selectors: list[str], note: str | None, work: Path, printed: Printed, snapshot: SnapshotAssertion
) -> None:
    explained = explanation(work / "runs" / name / "influence" / f"of-{name}", 11, selectors, note=note)
    out = io.StringIO()
    print_explanation(explained, Console(file=out, width=200))
    assert out.getvalue() == snapshot
    if name == "words":
        assert json_lines(explained.to_json()) == snapshot
