"""Every option of the commands that show results reaches what the command calls; no two of the values are alike."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up import made_up_tables

from olmo_sparsity.cli.app import app

TABLES = Path("runs/tiny/influence/made-up")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewing")
    made_up_tables(folder / TABLES, num_documents=60)
    return folder


@pytest.mark.parametrize(
    ("line", "called", "arguments", "keywords"),
    [
        ("list", "listing.print_runs", (Path("runs"),), {"as_json": False}),
        ("list other --json", "listing.print_runs", (Path("other"),), {"as_json": True}),
        ("summary --tables {}", "console.print_summary", (TABLES,), {"every": False, "form": "text"}),
        ("summary --tables {} --every --json", "console.print_summary", (TABLES,), {"every": True, "form": "json"}),
        ("summary --tables {} --csv", "console.print_summary", (TABLES,), {"every": False, "form": "csv"}),
        ("summary --tables {} --md", "console.print_summary", (TABLES,), {"every": False, "form": "md"}),
        ("summary --tables {} --tex", "console.print_summary", (TABLES,), {"every": False, "form": "tex"}),
        (
            "summary --run a --run b --every --tex",
            "seed_table.print_seeds",
            ([Path("a"), Path("b")],),
            {"every": True, "form": "tex"},
        ),
        (
            "report --tables {} --windows 17 --sample-seed 3 --out page.html --overwrite",
            "report.write_report",
            (TABLES, Path("page.html")),
            {"overwrite": True, "num_windows": 17, "seed": 3},
        ),
        (
            "report --tables {}",
            "report.write_report",
            (TABLES, Path("runs/tiny/figures/made-up/report.html")),
            {"overwrite": False, "num_windows": 200, "seed": 0},
        ),
        (
            "show {} 17 --selector attention --k 4 --context null",
            "one_window.show_window",
            (TABLES, 17),
            {"selector": "attention", "k": 4, "context": "null"},
        ),
        ("show {} 5", "one_window.show_window", (TABLES, 5), {"selector": None, "k": None, "context": "real"}),
        (
            "hypothesis --run a --run b --selector attention --every",
            "hypothesis.print_hypothesis",
            ([Path("a"), Path("b")],),
            {"selector": "attention", "every": True, "as_json": False},
        ),
        (
            "hypothesis --run a --json",
            "hypothesis.print_hypothesis",
            ([Path("a")],),
            {"selector": "kl", "every": False, "as_json": True},
        ),
    ],
)
def test_options_reach_what_is_called(
    line: str,
    called: str,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    measured: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def probe(*args: Any, **given: Any) -> Path:
        given.pop("console", None)
        calls.append((args, given))
        return Path("page.html")

    monkeypatch.chdir(measured)
    module, _, name = called.rpartition(".")
    monkeypatch.setattr(importlib.import_module(f"olmo_sparsity.view.{module}"), name, probe)
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *line.format(TABLES).split()])
    app(standalone_mode=False)
    assert calls == [(arguments, keywords)]


def test_compare_prints_and_writes_the_same_subjects(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    for module, name in (
        ("statistics.several.subjects", "read_subjects"),
        ("view.comparison_page", "write_comparison"),
        ("view.console", "print_comparison"),
    ):

        def probe(*args: Any, name: str = name, **given: Any) -> str:
            calls.append((name, *args, given))
            return "subjects"

        monkeypatch.setattr(importlib.import_module(f"olmo_sparsity.{module}"), name, probe)
    monkeypatch.setattr(
        sys, "argv", ["olmo-sparsity", *shlex.split("compare b:kl a --every --out page.html --overwrite --json")]
    )
    app(standalone_mode=False)
    assert calls == [
        ("read_subjects", ["b:kl", "a"], {}),
        ("write_comparison", "subjects", Path("page.html"), {"overwrite": True}),
        ("print_comparison", "subjects", {"every": True, "as_json": True}),
    ]
