"""Commands that show results; none of them takes KEY=VALUE."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional, get_args

import typer

from olmo_sparsity.cli import options as opt
from olmo_sparsity.errors import UserError, printable

Tables = Annotated[opt.File, opt.option("--tables", help="Folder of a measurement, or the end of its name. Or newest.")]
Every = Annotated[bool, opt.option("--every", help="Print every number.")]


def _shown_tables(tables: Optional[Path], run: Optional[Path], model: Optional[str]) -> Path:
    """The measurement to show: the one that is given, which must be of the run or model that is named, or the newest."""
    from olmo_sparsity.tables import find_tables, named_tables, run_of_tables

    if tables is not None and tables.exists() and run is None and model is None:
        return find_tables(tables)
    folder = opt.shown_folder(run, model)
    found = find_tables(folder if tables is None else named_tables(tables, folder))
    own = run_of_tables(found)
    if tables is not None and (own is None or own.resolve() != folder.resolve()):
        raise UserError(f"{found}: these tables are of {own or 'no run'}, not of {folder}; leave out one of the two")
    return found


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with the runs.")] = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """List the measurements of all runs with their main numbers: the gain, the gain beyond the training row, R."""
    from olmo_sparsity.view.listing import print_listing

    print_listing(folder, as_json=as_json)


def summary(
    run: Annotated[opt.Files, opt.option("--run", help="A run, or several seeds of one: their mean.")] = None,
    model: opt.Model = None,
    tables: Tables = None,
    every: Every = False,
    as_json: opt.Json = False,
    as_csv: Annotated[bool, opt.option("--csv", help="Print every number as CSV.")] = False,
    as_md: Annotated[bool, opt.option("--md", help="Print the tables as Markdown.")] = False,
    as_tex: Annotated[bool, opt.option("--tex", help="Print the tables for LaTeX with booktabs.")] = False,
) -> None:
    """Print what a measurement found: does the long context help, and are few of its tokens enough?"""
    from olmo_sparsity.statistics.frames import read_frames
    from olmo_sparsity.statistics.quantities import estimate, read_estimates
    from olmo_sparsity.statistics.seeds import matching_tables, same_model
    from olmo_sparsity.view.summary import Form, print_summary

    asked = {"json": as_json, "csv": as_csv, "md": as_md, "tex": as_tex}
    forms: list[Form] = [form for form in get_args(Form) if asked.get(form)]
    if len(forms) > 1:
        raise UserError(f"summary: give one of --{' and --'.join(forms)}")
    runs = run or []
    if len(runs) > 1:
        if tables is not None or model is not None:
            raise UserError("summary: with several runs there is no --tables and no --model")
        same_model(runs, advice="compare shows two runs side by side")
        frames = [read_frames(folder) for folder in matching_tables(runs)]
        frame = estimate(frames[0], seeds=frames[1:])
        manifest = frame.attrs["manifest"]
        frame.attrs["manifest"] = {**manifest, "run": f"{manifest['run']}, mean over {len(runs)} seeds"}
    else:
        frame = read_estimates(_shown_tables(tables, runs[0] if runs else None, model))
    print_summary(frame, every=every, form=forms[0] if forms else "text")


def figures(
    config: opt.ConfigFile = None,
    run: opt.Run = None,
    model: opt.Model = None,
    tables: Tables = None,
    every: Annotated[bool, opt.option("--all", help="Draw all figures, not only the main three.")] = False,
    out: opt.Out = None,
    train: opt.Train = False,
    help_all: opt.HelpAll = False,
) -> None:
    """Draw figures as PNG and PDF. If nothing is measured yet, train runs/NAME and measure first."""
    from olmo_sparsity.cli.measuring import influence
    from olmo_sparsity.tables import figures_folder, list_finished
    from olmo_sparsity.view.report import analysis

    if tables is None:
        run = opt.resolve(config, run, overrides=None, model=model).folder
        if not list_finished(run):
            influence(config=config, run=run, model=model, train=train)
    shown = _shown_tables(tables, run, model)
    pictures = list(analysis("drawing").draw_run(shown, out or figures_folder(shown), every))
    others = [*dict.fromkeys(path.stem for path in pictures)][1:]
    there = f", and there: {', '.join(others)}" if others else ""
    typer.echo(printable(f"{pictures[0]}{there}; each as PNG and PDF"))


def report(
    run: opt.Run = None,
    model: opt.Model = None,
    tables: Tables = None,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    help_all: opt.HelpAll = False,
) -> None:
    """Write what a measurement found as one HTML page: answers, pictures, windows with their words."""
    from olmo_sparsity.tables import figures_folder
    from olmo_sparsity.view.report import write_report

    shown = _shown_tables(tables, run, model)
    typer.echo(printable(str(write_report(shown, out or figures_folder(shown) / "report.html", overwrite=overwrite))))


def show(
    arguments: Annotated[opt.Words, typer.Argument(metavar="[RUN] [WINDOW]", help="Default: runs/demo 0.")] = None,
    model: opt.Model = None,
    selector: Annotated[opt.Word, opt.option("--selector", help="Whose choice is shown.")] = None,
    k: Annotated[opt.Number, opt.option("--k", help="A measured k. Default: at most a quarter of all tokens.")] = None,
) -> None:
    """Show one window in the terminal: its words, the picked tokens, the losses."""
    from olmo_sparsity.tables import find_tables
    from olmo_sparsity.view.console import SafeConsole
    from olmo_sparsity.view.window import show as show_window

    words = list(arguments or [])
    number = int(words.pop()) if words and words[-1].isdecimal() else 0
    if len(words) + (model is not None) > 1:
        raise UserError(f"show {' '.join(words)}: give a run and the number of a window, such as show runs/demo 17")
    folder = Path(words[0]) if words else opt.shown_folder(None, model)
    show_window(find_tables(folder), number, console=SafeConsole(), selector=selector, k=k)


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="A run, or a measurement. RUN:kl: its selector kl.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one, or another selector of the same.")],
    every: Every = False,
    as_json: opt.Json = False,
) -> None:
    """Compare two measurements: their numbers side by side, and the differences with intervals."""
    from olmo_sparsity.statistics.compare import compare as compare_measurements
    from olmo_sparsity.view.comparisons import print_comparison

    print_comparison(compare_measurements(first, second), every=every, as_json=as_json)


def hypothesis(
    runs: Annotated[opt.Files, opt.option("--run", help="A measured run; may be repeated: seeds, a ceiling.")] = None,
    selector: Annotated[str, opt.option("--selector", help="Whose first token tells the sparsity.")] = "kl",
    as_json: opt.Json = False,
) -> None:
    """Test whether sparsity predicts length generalization: do targets with a sparse reaction to the tokens beyond the training
    row gain more from them than targets with a dense one?

    Each run must be measured with as many local tokens as a training row has (`influence --local-len`).
    """
    from olmo_sparsity.view.comparisons import print_hypothesis

    print_hypothesis(runs or [opt.DEMO], selector=selector, as_json=as_json)
