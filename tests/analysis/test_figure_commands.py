"""The command lines of the figures' scripts: what each option reaches, what stands in where it is left out."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from made_up import made_up_tables
from matplotlib.figure import Figure
from typer.main import get_command

from analysis import (
    context_curve,
    drawing,
    every_figure,
    spectrum_by_length,
    training,
)
from analysis.drawing import FigureOfMeasurement, FigureOfRuns, command_of
from analysis.of_lengths import command_of_lengths
from analysis.output import Drawn
from analysis.paper import Width, width_in_force
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two measurements of the run of the demo, one of another run, and one of none."""
    checkout = tmp_path_factory.mktemp("checkout")
    tables = made_up_tables(checkout / "elsewhere", num_documents=2, selectors=["random"])
    for folder in ("runs/demo/influence/newer", "runs/demo/influence/older", "runs/other/influence/only"):
        shutil.copytree(tables, checkout / folder)
    for name, finished in (("newer", "2026-02"), ("older", "2026-01")):
        folder = checkout / "runs/demo/influence" / name
        write_manifest(folder, {**read_json(folder / "manifest.json"), "finished": finished})
    return checkout


@pytest.fixture
def run_script(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Callable[[], None], str], tuple[int, list[str], str]]:
    """Start a command in the folder; nothing is read but which tables are there, and no picture is written.

    Returns:
        Exit code, the lines that were printed, and errors.
    """
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(drawing, "save", lambda drawn, folder: [folder / f"{drawn.name}.png"])
    monkeypatch.setattr(drawing, "Measured", SimpleNamespace(read=lambda folder: SimpleNamespace(tables=folder)))

    def started(command: Callable[[], None], line: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["figure", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            command()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out.splitlines(), said.err

    return started


@pytest.mark.parametrize(
    ("line", "shown", "out", "width"),
    [
        ("", "runs/demo/influence/newer", "runs/demo/figures/newer", "screen"),
        ("--run runs/other", "runs/other/influence/only", "runs/other/figures/only", "screen"),
        ("--tables runs/demo/influence/older", "runs/demo/influence/older", "runs/demo/figures/older", "screen"),
        ("--tables elsewhere --run runs/other", "elsewhere", "runs/other/figures/elsewhere", "screen"),
        ("--tables elsewhere --out there", "elsewhere", "there", "screen"),
        ("--run runs/other --out there --width two", "runs/other/influence/only", "there/paper-two", "two"),
        ("--run runs/other --width one", "runs/other/influence/only", "runs/other/figures/only/paper-one", "one"),
    ],
)
def test_figures_of_a_measurement_are_of_the_tables_and_in_the_folder_that_are_named(
    run_script: Callable, line: str, shown: str, out: str, width: str
) -> None:
    """Without ``--tables`` of the newest ones of the run, and without a run of the demo."""
    drawn: list[tuple[str, Width | None]] = []

    def draw(name: str) -> FigureOfMeasurement:
        def one(measured: drawing.Measured) -> Iterator[Drawn]:
            drawn.append((str(measured.tables), width_in_force()))
            yield Drawn(Figure(), name, "It shows 1.")

        return FigureOfMeasurement(one)

    code, lines, errors = run_script(lambda: command_of([draw("first"), draw("second")]), line)
    assert (code, lines, errors) == (0, [f"{out}/first.png", f"{out}/second.png"], "")
    assert drawn == [(shown, Width(width))] * 2
    assert run_script(draw("alone").command, line)[1] == [f"{out}/alone.png"]


def test_tables_outside_a_run_need_a_folder_for_the_pictures(run_script: Callable) -> None:
    figure = FigureOfMeasurement(lambda measured: iter([Drawn(Figure(), "never", "")]))
    assert run_script(figure.command, "--tables elsewhere") == (
        2,
        [],
        "analysis: error: elsewhere: these tables are not in a run folder; name the folder for the pictures with --out DIR\n",
    )


@pytest.mark.parametrize("option", ["--tables", "--run"])
def test_a_second_measurement_is_refused(option: str, run_script: Callable) -> None:
    figure = FigureOfMeasurement(lambda measured: iter([Drawn(Figure(), "never", "")]))
    said = f"analysis: error: {option} a {option} b: these figures are of one measurement; draw each by itself\n"
    assert run_script(figure.command, f"{option} a {option} b") == (2, [], said)


@pytest.mark.parametrize(
    ("line", "runs", "out", "width"),
    [
        ("", ["runs/demo"], "runs/demo/figures", "screen"),
        ("--run runs/other --run runs/demo", ["runs/other", "runs/demo"], "runs/other/figures", "screen"),
        ("--run runs/other:kl --run runs/demo", ["runs/other:kl", "runs/demo"], "runs/other/figures", "screen"),
        ("--run runs/demo --out there --width one", ["runs/demo"], "there/paper-one", "one"),
    ],
)
def test_figures_of_runs_are_in_the_folder_of_the_first(
    run_script: Callable, line: str, runs: list[str], out: str, width: str
) -> None:
    drawn: list[tuple[list[str], Width | None]] = []

    def draw(named: list[Path]) -> Iterator[Drawn]:
        drawn.append((list(map(str, named)), width_in_force()))
        yield Drawn(Figure(), "of-runs", "It shows 1.")

    code, lines, errors = run_script(FigureOfRuns(draw).command, line)
    assert (code, lines) == (0, [f"{out}/of-runs.png"]), errors
    assert drawn == [(runs, Width(width))]
    assert not FigureOfRuns(draw).is_of(Path("runs/demo"))  # of a run alone only where a script says so


def test_what_the_package_tells_is_a_line_of_its_own_while_a_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with drawing.mistakes_in_one_line():
        logging.getLogger("olmo_sparsity.tables").warning("a \x1b[31mrun\nof two lines")
    assert capsys.readouterr().err == "warning: a \ufffd[31mrun\u21b5of two lines\n"
    assert logging.getLogger("olmo_sparsity").handlers == []


def test_figures_of_lengths_are_of_all_tables_and_of_attention_where_no_selector_is_named(
    run_script: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it found is printed before the pictures."""
    found: list[tuple[list[Path], str, Width | None]] = []

    def measured(folders: list[Path], *, selector: str) -> SimpleNamespace:
        found.append((folders, selector, width_in_force()))
        return SimpleNamespace(models=["one", "other"])

    monkeypatch.setattr(spectrum_by_length, "read_length", lambda folder: folder)
    monkeypatch.setattr(spectrum_by_length, "spectrum_by_length", measured)
    monkeypatch.setattr(spectrum_by_length, "length_sentences", lambda of, model: [f"{model}\x1b."])
    command = partial(drawing.run_command, command_of_lengths(spectrum_by_length.draw))
    monkeypatch.setattr(spectrum_by_length, "draw_found", lambda of: Drawn(Figure(), "of-lengths", "It shows 1."))
    for options, selector, out, width in (
        ("", "attention", "runs/figures", "screen"),
        (" --selector kl --out there --width one", "kl", "there/paper-one", "one"),
    ):
        code, lines, _ = run_script(command, f"--tables b --tables a{options}")
        assert (code, lines) == (0, ["one\ufffd.", "other\ufffd.", f"{out}/of-lengths.png"])
        assert found.pop() == ([Path("b"), Path("a")], selector, Width(width)) and not found


@pytest.mark.parametrize(
    ("line", "said"),  # the rest are words of a library
    [
        ("top1 --out figs", " (top1); name a folder with --run or --tables; see "),
        ("--out", "option '--out' requires an argument; see "),
        ("--widht one", "o such option: --widht"),
        ("--width three", "nvalid value for '--width': 'three' is not one of "),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(run_script: Callable, line: str, said: str) -> None:
    code, lines, error = run_script(FigureOfMeasurement(lambda measured: iter([])).command, line)
    assert (code, lines) == (2, [])
    assert error.startswith("analysis: error: ") and error.count("\n") == 1
    assert said in error and error.endswith(f"ee {drawing._program()} --help\n")


def test_a_folder_of_runs_is_named_with_its_option(run_script: Callable) -> None:
    error = run_script(FigureOfRuns(lambda runs: iter([])).command, "top1")[2]
    assert " (top1); name a folder with --run; see " in error


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_both_options_of_help_print_it(option: str, run_script: Callable) -> None:
    code, lines, error = run_script(FigureOfMeasurement(lambda measured: iter([])).command, option)
    assert (code, error) == (0, "") and "--tables" in "\n".join(lines)


def test_a_script_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, name in (
        (SimpleNamespace(name="analysis.figure4"), "python -m analysis.figure4"),
        (SimpleNamespace(name="analysis.__main__"), "python -m analysis"),
        (None, "figure4.py"),
    ):
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "argv", ["some/figure4.py"])
        assert drawing._program() == name


WIDTHS = "screen, or the columns of a paper: one (3.25 in) or two (6.75 in), written into a folder paper-WIDTH."
PICTURES = "Folder for the pictures."
OF_LENGTHS = command_of_lengths(spectrum_by_length.draw)


@pytest.mark.parametrize(
    ("start", "options"),
    [
        (
            lambda: command_of([]),
            {
                "run": ("Folder of the run. Default: that of --tables, or runs/demo.", None),
                "tables": ("Influence folder. Default: the run's newest.", None),
                "out": (f"{PICTURES} Default: RUN/figures/NAME OF THE TABLES.", None),
            },
        ),
        (
            FigureOfRuns(lambda runs: iter([])).command,
            {
                "run": ("Folder of a run; may be repeated.", [Path("runs/demo")]),
                "out": (f"{PICTURES} Default: figures/ of the first run.", None),
            },
        ),
        (
            lambda: drawing.run_command(OF_LENGTHS),
            {
                "tables": ("Influence folder of one length; repeated for each.", "required"),
                "out": (PICTURES, Path("runs/figures")),
                "selector": ("A selector that does not see the target.", "attention"),
            },
        ),
    ],
    ids=["of a measurement", "of runs", "of lengths"],
)
def test_help_says_what_each_option_is(
    start: Callable[[], None], options: dict[str, tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = typer.Typer(add_completion=False)
    monkeypatch.setattr(drawing, "run_command", lambda function: app.command()(function))
    start()
    asked = {
        param.name: (param.help, "required" if param.required else param.default)  # type: ignore[attr-defined]
        for param in get_command(app).params
    }
    assert asked == {**options, "width": (WIDTHS, Width.screen)}


def test_a_figure_of_tables_belongs_to_runs_that_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("with", "context-curve")
    monkeypatch.setattr(context_curve, "list_finished", lambda run, of: ["tables"] * ((run.name, of) == there))
    assert [context_curve.FIGURE.is_of(Path(name)) for name in ("with", "without")] == [True, False]


def test_the_figure_of_training_belongs_to_runs_that_have_logged(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    is_of = [training.FIGURE.is_of(tmp_path)]
    for text in ("", "{}\n"):
        metrics.write_text(text)
        is_of.append(training.FIGURE.is_of(tmp_path))
    assert is_of == [False, False, True]


@pytest.mark.parametrize("tables", [None, Path("runs/demo/influence/older")])
def test_every_figure_of_a_run_is_of_the_tables_that_are_named_or_of_the_newest(
    checkout: Path, tables: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of a measurement are in a folder of its name, those of the run in the folder around it."""
    drawn: list[tuple[str, Any, Width | None]] = []

    def figure(name: str) -> Callable[[Any], Iterator[Drawn]]:
        def draw(of: Any) -> Iterator[Drawn]:
            drawn.append((name, of, width_in_force()))
            yield Drawn(Figure(), name, "It shows 1.")

        return draw

    run, name = Path("runs/demo"), tables.name if tables else "newer"
    declared: dict[type, list] = {
        FigureOfMeasurement: [FigureOfMeasurement(figure("first")), FigureOfMeasurement(figure("second"))],
        FigureOfRuns: [
            FigureOfRuns(figure("never"), is_of=lambda of: of != run),
            FigureOfRuns(figure("run"), is_of=lambda of: of == run),
        ],
    }
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(every_figure, "figures_of", declared.__getitem__)
    monkeypatch.setattr(every_figure, "Measured", SimpleNamespace(read=str))
    monkeypatch.setattr(drawing, "save", lambda drawn, folder: [folder / f"{drawn.name}.png"])
    paths = list(map(str, every_figure.draw_run(run, tables, width="two")))
    figures = f"runs/demo/figures/{name}/paper-two"
    assert paths == [f"{figures}/first.png", f"{figures}/second.png", "runs/demo/figures/paper-two/run.png"]
    shown = f"runs/demo/influence/{name}"
    assert drawn == [("first", shown, Width.two), ("second", shown, Width.two), ("run", [run], Width.two)]


def test_a_place_that_takes_no_pictures_is_named_before_anything_is_drawn(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reads = tmp_path / "run", list[Path]()
    shutil.copytree(checkout / "runs/demo/influence/newer", run / "influence" / "only")
    (run / "figures").write_text("a file")
    monkeypatch.setattr(every_figure, "Measured", SimpleNamespace(read=reads.append))
    with pytest.raises(UserError, match=r"run/figures/only: cannot make this folder \(Not a directory\)"):
        next(every_figure.draw_run(run))
    with pytest.raises(UserError, match=r"run/figures: cannot make this folder \(File exists\)"):
        next(drawing.saved(map(reads.append, [run]), run / "figures"))  # type: ignore[arg-type]
    assert not reads
