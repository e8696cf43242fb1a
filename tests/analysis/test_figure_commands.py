"""The command line of the figures: what each option reaches, what stands in where it is left out."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up import made_up_tables
from matplotlib.figure import Figure

from analysis import __main__ as command
from analysis import context_curve, drawing, every_figure, training
from analysis.drawing import FigureOfLengths, FigureOfMeasurement, FigureOfRuns
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


Started = Callable[[str], tuple[int, list[str], str]]


@pytest.fixture
def run_command(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Started, list[tuple[list[str], Width | None]]]:
    """Start the command in the folder; nothing is read but which tables are there, and no picture is written.

    Returns:
        What takes a command line and returns exit code, printed lines and errors; and what was drawn, at which width.
    """
    drawn: list[tuple[list[str], Width | None]] = []

    def draw(of: Any) -> Iterator[Drawn]:
        drawn.append(([str(one) for one in (of if isinstance(of, list) else [of.tables])], width_in_force()))
        yield Drawn(Figure(), "picture", "It shows 1.\x1b")

    figures = {
        "of_one": FigureOfMeasurement(draw), "of_runs": FigureOfRuns(draw), "of_lengths": FigureOfLengths(draw),
    }  # fmt: skip
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(every_figure, "declared", lambda: figures)
    monkeypatch.setattr(drawing, "save", lambda drawn, folder: [folder / f"{drawn.name}.png"])
    monkeypatch.setattr(command, "Measured", SimpleNamespace(read=lambda folder: SimpleNamespace(tables=folder)))

    def started(line: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["figure", *shlex.split(line)])
        with pytest.raises(SystemExit) as ended:
            drawing.run_command(command.draw)
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out.splitlines(), said.err

    return started, drawn


@pytest.mark.parametrize(
    ("line", "of", "out", "width"),
    [
        ("of_one", "runs/demo/influence/newer", "runs/demo/figures/newer", "screen"),
        ("of_one --run runs/other", "runs/other/influence/only", "runs/other/figures/only", "screen"),
        ("of_one --tables runs/demo/influence/older", "runs/demo/influence/older", "runs/demo/figures/older", "screen"),
        ("of_one --tables elsewhere --run runs/other", "elsewhere", "runs/other/figures/elsewhere", "screen"),
        ("of_one --tables elsewhere --out there", "elsewhere", "there", "screen"),
        ("of_one --run runs/other --out there --width two", "runs/other/influence/only", "there/paper-two", "two"),
        ("of_one --run runs/other --width one", "runs/other/influence/only", "runs/other/figures/only/paper-one", "one"),
        ("of_runs", "runs/demo", "runs/demo/figures", "screen"),
        ("of_runs --run runs/other --run runs/demo", "runs/other runs/demo", "runs/other/figures", "screen"),
        ("of_runs --run runs/other:kl --run runs/demo", "runs/other:kl runs/demo", "runs/other/figures", "screen"),
        ("of_runs --run runs/demo --out there --width one", "runs/demo", "there/paper-one", "one"),
        ("of_lengths --tables b --tables a --out there", "b a", "there", "screen"),
        ("of_lengths --tables b --tables a --run runs/demo", "b a", "runs/demo/figures", "screen"),
        (
            "of_lengths --tables runs/demo/influence/older --tables runs/demo/influence/newer",
            "runs/demo/influence/older runs/demo/influence/newer", "runs/demo/figures", "screen",
        ),
    ],
)  # fmt: skip
def test_a_figure_is_of_what_is_named_or_of_the_newest_of_the_demo(
    run_command: Any, line: str, of: str, out: str, width: str
) -> None:
    """What it shows is printed before the pictures."""
    started, drawn = run_command
    assert started(line) == (0, ["It shows 1.\ufffd", f"{out}/picture.png"], "")
    assert drawn == [(of.split(), Width(width))]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "of_one --tables elsewhere",
            "elsewhere: these tables are not in a run folder; name the folder for the pictures with --out DIR",
        ),
        ("of_one --run a --run b", "--run a --run b: of_one is a figure of one measurement; draw each by itself"),
        (
            "of_one --tables a --tables b",
            "--tables a --tables b: of_one is a figure of one measurement; draw each by itself",
        ),
        ("of_runs --tables a", "--tables a: of_runs is a figure of runs; name them with --run"),
        ("of_lengths", "of_lengths is a figure of several lengths; name the tables of each with --tables"),
        ("figure6", "figure6: there is no such figure; choose of of_one, of_runs, of_lengths"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(run_command: Any, line: str, said: str) -> None:
    started, drawn = run_command
    assert (*started(line), drawn) == (2, [], f"analysis: error: {said}\n", [])


def test_a_figure_of_runs_is_of_a_run_alone_only_where_it_says_so() -> None:
    assert not FigureOfRuns(lambda runs: iter([])).is_of(Path("runs/demo"))


def test_what_the_package_tells_is_a_line_of_its_own_while_a_script_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with drawing.mistakes_in_one_line():
        logging.getLogger("olmo_sparsity.tables").warning("a \x1b[31mrun\nof two lines")
    assert capsys.readouterr().err == "warning: a \ufffd[31mrun\u21b5of two lines\n"
    assert logging.getLogger("olmo_sparsity").handlers == []


@pytest.mark.parametrize(
    ("line", "said"),  # the rest are words of a library
    [
        ("of_one top1 --out figs", " (top1); name a folder with --run or --tables; see "),
        ("of_one --out", "option '--out' requires an argument; see "),
        ("of_one --widht one", "o such option: --widht"),
        ("of_one --width three", "nvalid value for '--width': 'three' is not one of "),
    ],
)
def test_a_mistake_in_the_arguments_is_one_line(run_command: Any, line: str, said: str) -> None:
    code, lines, error = run_command[0](line)
    assert (code, lines) == (2, [])
    assert error.startswith("analysis: error: ") and error.count("\n") == 1
    assert said in error and error.endswith(f"ee {drawing._program()} --help\n")


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_both_options_of_help_print_it(option: str, run_command: Any) -> None:
    code, lines, error = run_command[0](option)
    assert (code, error) == (0, "") and "--tables" in "\n".join(lines)


def test_a_script_is_named_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec, name in (
        (SimpleNamespace(name="analysis.gallery"), "python -m analysis.gallery"),
        (SimpleNamespace(name="analysis.__main__"), "python -m analysis"),
        (None, "figure4.py"),
    ):
        monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "argv", ["some/figure4.py"])
        assert drawing._program() == name


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
