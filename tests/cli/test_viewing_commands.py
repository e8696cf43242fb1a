"""Every option of the commands that show results reaches what the command calls; no two of the values are alike."""

from __future__ import annotations

import importlib
import shlex
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from made_up import MODEL, made_up_tables
from made_up_runs import made_up_run
from planted_measurements import PLANTED, write

from olmo_sparsity.cli import viewing
from olmo_sparsity.cli.app import app
from olmo_sparsity.config.files import default_config_path, load_config, pretrained_config_path, to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest

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
            {"overwrite": False, "num_windows": 20, "seed": 0},
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


def test_compare_prints_the_subjects(
    measured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[Any, ...]] = []
    for module, name in (
        ("statistics.several.subjects", "read_subjects"),
        ("view.console", "print_comparison"),
    ):

        def probe(*args: Any, name: str = name, **given: Any) -> str:
            calls.append((name, *args, given))
            return "subjects"

        monkeypatch.setattr(importlib.import_module(f"olmo_sparsity.{module}"), name, probe)
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *shlex.split("compare b:kl a --every --json")])
    app(standalone_mode=False)
    assert calls == [
        ("read_subjects", ["b:kl", "a"], {}),
        ("print_comparison", "subjects", {"every": True, "as_json": True}),
    ]
    assert capsys.readouterr() == ("", "")


def invoke(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *shlex.split(line)])
    app(standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "folder", "tables", "width"),
    [
        ("figures --run runs/tiny", "runs/tiny", None, "screen"),
        ("figures --tables {}", "runs/tiny", TABLES, "screen"),
        ("figures --tables {} --width two", "runs/tiny", TABLES, "two"),
        ("figures --tables made-up --run runs/tiny --width one", "runs/tiny", TABLES, "one"),
        # One folder under three names: that of the options is used.
        ("figures --tables {} --run runs/../runs/tiny", "runs/../runs/tiny", TABLES, "screen"),
        ("figures --tables {} --run link", "link", TABLES, "screen"),
        ("figures --tables loose --run runs/tiny", "runs/tiny", Path("loose"), "screen"),
    ],
)
def test_figures_are_those_of_the_tables_in_the_folder_that_is_named(
    line: str,
    folder: str,
    tables: Path | None,
    width: str,
    measured: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[tuple[Any, ...]] = []

    def draw_run(*args: Any, **given: Any) -> list[Path]:
        drawn.append((*args, given))
        return []

    shutil.copytree(measured / "runs", tmp_path / "runs")
    shutil.copytree(measured / TABLES, tmp_path / "loose")
    (tmp_path / "link").symlink_to("runs/tiny")
    monkeypatch.chdir(tmp_path)
    scripts: list[str] = []
    monkeypatch.setattr(
        "olmo_sparsity.view.figure_scripts.figure_script",
        lambda name: scripts.append(name) or types.SimpleNamespace(draw_run=draw_run),
    )
    invoke(line.format(TABLES), monkeypatch)
    assert (scripts, drawn) == (["every_figure"], [(Path(folder), tables, {"width": width})])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("figures --tables {}", "{}: these tables are not in a run folder; name the one that gets the folder figures/"),
        ("summary --tables {} training.steps=200", None),
        ("report --tables {} --run runs/other", None),
    ],
)
def test_tables_that_do_not_belong_to_what_is_named_are_refused(
    line: str, said: str | None, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the configuration names the run of the configuration."""
    tables = str(TABLES)
    if said is not None:
        tables = "loose"
        shutil.copytree(measured / TABLES, tmp_path / tables)
    shutil.copytree(measured / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=(said or "{}: these tables are of runs/tiny, not of runs/").format(tables)):
        invoke(line.format(tables), monkeypatch)


@pytest.mark.parametrize("command", ["summary", "report", "figures"])
def test_tables_outside_of_runs_are_not_shown_as_those_of_other_weights(
    command: str, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may have been renamed; where its weights are not known, as while it trains, it may be the one."""
    shown: list[Path] = []
    for name in ("view.console.print_summary", "view.report.write_report"):
        monkeypatch.setattr(f"olmo_sparsity.{name}", lambda tables, *_, **__: shown.append(tables))
    monkeypatch.setattr(
        "olmo_sparsity.view.figure_scripts.figure_script",
        lambda name: types.SimpleNamespace(draw_run=lambda run, tables, **_: shown.append(tables) or []),
    )
    shutil.copytree(measured / TABLES, tmp_path / "loose")
    monkeypatch.chdir(tmp_path)
    run = made_up_run(Path("runs/renamed"))
    of_run, of_tables = (read_json(folder / "manifest.json") for folder in (run, Path("loose")))

    def record(trained: str | None, measured: dict[str, Any]) -> None:
        checkpoint = {"checkpoint": {"step": 9, "model_sha256": trained}} if trained else {}
        write_manifest(run, {**of_run, **checkpoint})
        write_manifest(Path("loose"), {**of_tables, "checkpoint": None, **measured})

    for trained, measured_with in (
        ("own", {"checkpoint": {"step": 9, "model_sha256": "own"}}),
        (None, {"checkpoint": {"step": 9, "model_sha256": "other"}}),
        ("own", {}),
    ):
        record(trained, measured_with)
        invoke(f"{command} --tables loose --run runs/renamed", monkeypatch)
    assert shown == [Path("loose")] * 3
    for measured_with in ({"checkpoint": {"step": 9, "model_sha256": "other"}}, {"model": MODEL}):
        record("own", measured_with)
        with pytest.raises(
            UserError,
            match=r"^loose: these tables are of .*, measured with other weights than those of runs/renamed; leave",
        ):
            invoke(f"{command} --tables loose --run runs/renamed", monkeypatch)
    assert len(shown) == 3


@pytest.mark.parametrize("command", ["summary", "report", "figures", "summary --tables m"])
def test_a_row_or_scaling_that_was_not_measured_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, scaled = Path("runs/stated"), ["pretrained.rope_scaling=yarn", "pretrained.rope_factor=4"]
    write(run / "influence/m", PLANTED["stated"])  # a stated row of 30 tokens, yarn:4
    config = load_config(pretrained_config_path(), ["pretrained.model=models/own/step70", *scaled])
    (run / "config.yaml").write_text(to_yaml(config))
    shown: list[Path] = []
    monkeypatch.setattr("olmo_sparsity.view.console.print_summary", lambda tables, **_: shown.append(tables))
    monkeypatch.setattr(
        "olmo_sparsity.view.report.write_report", lambda tables, page, **_: shown.append(tables) or page
    )
    monkeypatch.setattr(
        "olmo_sparsity.view.figure_scripts.figure_script",
        lambda name: types.SimpleNamespace(draw_run=lambda run, tables, **_: shown.append(tables) or []),
    )
    for given, measured in (
        ("pretrained.train_len=31", "30"), ("pretrained.train_len=null", "30"), ("pretrained.rope_factor=8", "yarn:4"),
        ("pretrained.rope_scaling=linear", "yarn:4"), ("'pretrained={rope_scaling: none, rope_factor: null}'", "yarn:4"),
    ):  # fmt: skip
        with pytest.raises(
            UserError, match=f"{given[:22].strip(chr(39))}.*: runs/stated/influence/m was measured with {measured};"
        ):
            invoke(f"{command} --run {run} {given}", monkeypatch)
    assert not shown
    invoke(f"{command} --run {run} pretrained.train_len=30 {' '.join(scaled)}", monkeypatch)
    assert len(shown) == 1


@pytest.mark.parametrize("asked", [False, True])
def test_figures_measure_first_where_nothing_is_measured(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        viewing, "measure_first", lambda named, **given: calls.append((named.config.name, *named[1:], given))
    )
    monkeypatch.setattr(
        "olmo_sparsity.view.figure_scripts.figure_script",
        lambda name: types.SimpleNamespace(draw_run=lambda *args, **given: calls.append((*args, given)) or []),
    )
    invoke(f"figures --run runs/new name=mine{' --train' * asked}", monkeypatch)
    assert calls == [
        ("mine", Path("runs/new"), default_config_path(), {"asked": asked}),
        (Path("runs/new"), None, {"width": "screen"}),
    ]


def test_models_come_behind_the_runs_that_they_are_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the folder of its results; of one model with the revision that is given."""
    found: list[list[str]] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("olmo_sparsity.statistics.several.subjects.read_subjects", found.append)
    monkeypatch.setattr("olmo_sparsity.view.console.print_comparison", lambda *_, **named: None)
    invoke("compare --model org/b --model a x:kl y", monkeypatch)
    invoke("compare --model org/b --revision v2 x", monkeypatch)
    assert found == [["x:kl", "y", "runs/org-b", "runs/a"], ["x", "runs/org-b-v2"]]
    with pytest.raises(UserError, match="compare: --revision v2 is that of one --model; 2 are given"):
        invoke("compare --model org/b --model a --revision v2", monkeypatch)


def test_a_window_has_a_number_of_up_to_18_digits(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []
    monkeypatch.chdir(measured)
    monkeypatch.setattr("olmo_sparsity.view.one_window.show_window", lambda folder, number, **_: shown.append(number))
    invoke(f"show {TABLES} {'9' * 18}", monkeypatch)
    assert shown == [10**18 - 1]
    for number in ("9" * 19, "+1", "1.0", "\u0663"):
        with pytest.raises(UserError, match="give a run and the number of a window"):
            invoke(f"show {TABLES} {number}", monkeypatch)


def test_a_report_lies_with_the_run_that_is_named(
    measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of tables that lie elsewhere, and where the configuration names the run."""
    pages: list[Path] = []
    shutil.copytree(measured / TABLES, tmp_path / "loose")
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("olmo_sparsity.view.report.write_report", lambda tables, page, **_: pages.append(page))
    invoke("report --tables loose --config mine.yaml", monkeypatch)
    invoke("report --tables loose --model org/b", monkeypatch)
    assert pages == [Path("runs") / name / "figures/loose/report.html" for name in ("mine", "org-b")]


@pytest.mark.parametrize(
    "beside", ["--tables x", "--config x", "--model x", "--revision x", "training.steps=3", "training.seed=1 name=x"]
)
def test_several_runs_have_their_own_settings(beside: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("olmo_sparsity.view.seed_table.print_seeds", lambda *_, **named: 1 / 0)
    with pytest.raises(UserError, match="summary: with several runs there is no --tables, --config, --model"):
        invoke(f"summary --run a --run b {beside}", monkeypatch)
    with pytest.raises(ZeroDivisionError):
        invoke("summary --run a --run b", monkeypatch)
