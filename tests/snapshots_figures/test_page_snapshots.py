"""Every page as a reader gets it: its texts, tables, marks and data. Charts are in the snapshots of figures, but for one page."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up import CONTEXTUAL
from made_up_explorations import made_up_exploration
from made_up_runs import made_up_measurement, made_up_run
from page_text import page_text
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from analysis import on_page
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.view.one_window import show_window
from olmo_sparsity.view.report import write_report
from olmo_sparsity.view.report_answer import answer

PARTS = ("<svg>panel</svg>", "<svg>legend</svg>")


@pytest.fixture
def empty_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts with words and without panels."""

    def named(*names: str) -> Any:
        return lambda *shown: {
            name: on_page.PageFigure(
                name, f"Finding of {name} -1.", list(PARTS), f"Words of {name}.", ["FAILED -2"] * (name == "spectrum")
            )
            for name in names
        }

    report = ("figure4", "recovered-fraction", "prediction-recovered", "spectrum", "classes", "distance")
    monkeypatch.setattr(on_page, "of_report", named(*report))
    monkeypatch.setattr(on_page, "of_hypothesis", named("hypothesis"))


def report(tables: Path, out: Path, **options: Any) -> str:
    return page_text(write_report(tables, out / "report.html", **options).read_text())


@pytest.mark.usefixtures("empty_charts")
@pytest.mark.parametrize("which", ["words", "own", "failed", "row", "stranger"])
def test_report(
    varied: dict[str, Path],
    tmp_path: Path,
    text_snapshot: SnapshotAssertion,
    which: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What every report says is in that of ``words``."""
    monkeypatch.setattr("olmo_sparsity.view.report_data.NUM_LARGEST", 1)
    text = report(varied[which], tmp_path, num_windows=2, seed=3)
    if which != "words":
        known = set(report(varied["words"], tmp_path, num_windows=2, seed=3, overwrite=True).splitlines())
        kept = [line for line in text.splitlines() if line not in known]
        text = "\n".join(kept)
    assert text == text_snapshot


def test_report_with_charts(varied: dict[str, Path], tmp_path: Path, text_snapshot: SnapshotAssertion) -> None:
    page = report(varied["row"], tmp_path, num_windows=1)
    charts = [line for line in page.splitlines() if line.startswith(("chart:", 'div class="panels"', 'p class="gate'))]
    assert "\n".join(charts) == text_snapshot


@pytest.mark.usefixtures("empty_charts")
def test_report_with_the_test_of_sparsity(
    tmp_path: Path, text_snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run, with what its manifest says of it; the sections that other reports have are left out."""
    monkeypatch.setattr("olmo_sparsity.view.report_data.NUM_LARGEST", 1)
    run = made_up_run(tmp_path / "seed4", seed=4)
    tables = made_up_measurement(run, 0.5, windows_seed=6, num_documents=160)
    lines = report(tables, tmp_path, num_windows=1).splitlines()
    begins = [i for i, line in enumerate(lines) if line.startswith("section")]
    named = {
        lines[begin].partition(" ")[2]: lines[begin:end] for begin, end in zip(begins, [*begins[1:], None], strict=True)
    }
    kept = [line for name, of in named.items() if "hypothesis" in name or "about" in name for line in of]
    assert "\n".join(kept) == text_snapshot


TEXTS = [f" t{i}" for i in range(9)] + [" a", "<b>", " \u2028", " end"]


def explored(which: str) -> str:
    made = made_up_exploration(TEXTS, seed=3, groups=which == "words", long_gain=0.3 if which == "run" else 0.02)
    if which == "model":
        setup = ModelSetup.from_manifest(CONTEXTUAL)
        made = replace(made, setup=setup, run="someone/Made-Up-2M", null_context="shuffled")
    return f"{made!r}\n{made.gate}\n{page_text(made.to_html())}"


@pytest.mark.parametrize("which", ["run", "model", "words"])
def test_exploration(text_snapshot: SnapshotAssertion, which: str) -> None:
    known = set(explored("run").splitlines()) if which != "run" else set()
    lines = [line for line in explored(which).splitlines() if line not in known]
    assert "\n".join(line for line in lines if which == "run" or not line.startswith(".contexts")) == text_snapshot


def test_window_in_colour(varied: dict[str, Path], text_snapshot: SnapshotAssertion) -> None:
    """With a warning, of another first token; and of words under the null context."""
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system="truecolor")
    show_window(varied["stranger"], 3, console=console, k=2)
    show_window(varied["words"], 5, console=console, k=2, selector="unmask-one", context="null")
    assert out.getvalue().replace("\x1b", "~") == text_snapshot


def test_answer_of_another_selector(varied: dict[str, Path], text_snapshot: SnapshotAssertion) -> None:
    """The verdict and the sentences are of the selector that leads; of one that sees the target, of another one."""
    lines = []
    for which, first in (("own", "greedy-kl"), ("own", "lasso"), ("long", "nearest"), ("stranger", "random")):
        said = answer(Measured.read(varied[which]).summary, first)
        lines += [f"{which}, {first}", said.verdict, *said.sentences, said.warning]
    assert "\n".join(lines) == text_snapshot
