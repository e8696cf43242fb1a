"""Fixtures of the tests of figures: made-up tables, and the figures that a test draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from made_up import CONTEXTUAL, made_up_tables
from quick_pictures import QUICK

from analysis import on_page


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Made-up tables: both gates pass; only the gate beyond the training row fails; both fail; of a pretrained
    model, to which the second does not apply."""
    folder = tmp_path_factory.mktemp("made-up")
    return {
        "passed": made_up_tables(folder / "passed", num_documents=120),
        "beyond failed": made_up_tables(folder / "beyond-failed", num_documents=120, gain_beyond=0.0),
        "failed": made_up_tables(folder / "failed", num_documents=120, long_gain=0.0),
        "not applicable": made_up_tables(folder / "not-applicable", num_documents=120, setup=CONTEXTUAL),
    }


@pytest.fixture
def tables(folders: dict[str, Path]) -> Path:
    return folders["passed"]


@pytest.fixture(autouse=True)
def figures_are_closed() -> Iterator[None]:
    """Close the figures that a test has drawn and not saved: matplotlib keeps them otherwise, and warns at the twenty-first."""
    yield
    plt.close("all")


@pytest.fixture
def quick_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write files of figures that are neither laid out nor rendered."""
    for (of, name), quick in QUICK.items():
        monkeypatch.setattr(of, name, quick)


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write pages with charts that are empty: drawing them takes seconds."""

    def empty(*names: str) -> Callable[..., dict[str, on_page.PageFigure]]:
        return lambda *shown: {name: on_page.PageFigure(name, "What it shows.", [], "", []) for name in names}

    monkeypatch.setattr(
        on_page,
        "of_report",
        empty("figure4", "recovered-fraction", "prediction-recovered", "spectrum", "classes", "distance"),
    )
