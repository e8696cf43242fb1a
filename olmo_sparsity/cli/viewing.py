"""Commands that show results: `list`, `summary`, `figures`, `report`, `compare`, `hypothesis`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Optional, get_args

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import (
    RUNS,
    ConfigOption,
    ModelOption,
    Named,
    OverwritePageOption,
    RevisionOption,
    RunOption,
    TrainOption,
    resolve,
)
from olmo_sparsity.cli.shown_models import check_shown_model
from olmo_sparsity.cli.steps import measure_first
from olmo_sparsity.errors import UserError

TablesOption = Annotated[
    Optional[list[Path]],
    typer.Option(
        "--tables",
        metavar="DIR",
        help="Influence folder, or the end of its name (`olmo-sparsity list` prints the names). Default: the newest of the run.",
        show_default=False,
    ),
]
EveryOption = Annotated[bool, typer.Option("--every", help="Print every number.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print every number as JSON.")]


def _named(config: Optional[Path], run: Optional[Path], model: Optional[str], revision: Optional[str]) -> Named:
    """The run, or the model's folder of results, which must hold those of this model."""
    named = resolve(config, run, overrides=None, model=model, revision=revision)
    check_shown_model(named.folder, named.config.pretrained)
    return named


def _shown_tables(
    given: Optional[list[Path]],
    config: Optional[Path],
    run: Optional[Path],
    model: Optional[str],
    revision: Optional[str],
) -> Path:
    """The influence folder to show: the one that is given, else the newest of the run or model.

    Raises:
        UserError: there is none, or it is not in the run or model that is named, too.
    """
    from olmo_sparsity.tables import find_tables, named_tables, read_manifest, run_of_tables

    if given and len(given) > 1:
        raise UserError(
            f"--tables {' --tables '.join(map(str, given))}: one measurement is shown at a time; compare takes two"
        )
    tables = given[0] if given else None
    if tables is not None and tables.exists() and not any((config, run, model, revision)):
        return tables
    loaded, folder, _ = _named(config, run, model, revision)
    if tables is None:
        if run is None and not folder.is_dir():
            done = "measured" if loaded.pretrained.model is not None else "trained or measured"
            raise UserError(f"{folder}: nothing has been {done} yet; run `olmo-sparsity influence` first")
        return find_tables(folder)
    found = named_tables(tables, folder)
    read_manifest(found)
    own = run_of_tables(found)
    if own is None or own.resolve() != folder.resolve():
        raise UserError(f"{tables}: these tables are of {own or 'no run'}, not of {folder}; leave out one of the two")
    return found


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with the runs.")] = RUNS,
    as_json: JsonOption = False,
) -> None:
    """List the measurements of all runs with their main numbers: the gain, the gain beyond the training row, R."""
    from olmo_sparsity.view.listing import print_listing

    print_listing(folder, as_json=as_json)


def summary(
    config: ConfigOption = None,
    run: Annotated[
        Optional[list[Path]],
        typer.Option(
            "--run",
            metavar="DIR",
            help="Folder of the run. Default: runs/NAME. Several that differ only in training.seed: means over the seeds.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    tables: TablesOption = None,
    every: EveryOption = False,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print every number as CSV.")] = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print the tables as Markdown.")] = False,
    as_tex: Annotated[bool, typer.Option("--tex", help="Print the tables for LaTeX with booktabs.")] = False,
) -> None:
    """Print what a measurement found: does the long context help, and are few of its tokens enough?"""
    from olmo_sparsity.statistics.frames import read_frames
    from olmo_sparsity.statistics.quantities import estimate, read_estimates
    from olmo_sparsity.statistics.seeds import matching_tables, same_model
    from olmo_sparsity.view.tables import Form, print_summary

    asked = {"json": as_json, "csv": as_csv, "md": as_md, "tex": as_tex}
    forms: list[Form] = [form for form in get_args(Form) if asked.get(form)]
    if len(forms) > 1:
        raise UserError(f"summary: give one of --{' and --'.join(forms)}")
    runs = run or []
    if len(runs) > 1:
        if any((tables, config, model, revision)):
            raise UserError("summary: with several runs there is no --tables, --config, --model or --revision")
        same_model(runs, advice="compare shows two runs side by side")
        frames = [read_frames(folder) for folder in matching_tables(runs)]
        frame = estimate(frames[0], seeds=frames[1:])
        manifest = frame.attrs["manifest"]
        frame.attrs["manifest"] = {**manifest, "run": f"{manifest['run']}, mean over {len(runs)} seeds"}
    else:
        frame = read_estimates(_shown_tables(tables, config, runs[0] if runs else None, model, revision))
    print_summary(frame, every=every, form=forms[0] if forms else "text")


def figures(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    tables: TablesOption = None,
    every: Annotated[bool, typer.Option("--all", help="Draw all figures, not only the main three.")] = False,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out", metavar="DIR", help="Folder to draw into. Default: figures/NAME in the folder of the run."
        ),
    ] = None,
    train: TrainOption = False,
) -> None:
    """Draw figures as PNG and PDF. If nothing is measured yet, train runs/NAME and measure first."""
    from tqdm import tqdm

    from olmo_sparsity.tables import figures_folder, list_finished
    from olmo_sparsity.view.report import analysis

    if not tables:
        named = _named(config, run, model, revision)
        if not list_finished(named.folder):
            measure_first(named, asked=train)
    shown = _shown_tables(tables, config, run, model, revision)
    for path in analysis("drawing").draw_run(shown, out or figures_folder(shown), every):
        with tqdm.external_write_mode(sys.stdout):  # above a progress bar
            print_line(path)


def report(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    tables: TablesOption = None,
    out: Annotated[
        Optional[Path],
        typer.Option("--out", metavar="FILE", help="HTML file to write. Default: report.html beside the figures."),
    ] = None,
    overwrite: OverwritePageOption = False,
) -> None:
    """Write what a measurement found as one HTML page: answers, pictures, windows with their words."""
    from olmo_sparsity.tables import figures_folder
    from olmo_sparsity.view.report import write_report

    shown = _shown_tables(tables, config, run, model, revision)
    print_line(write_report(shown, out or figures_folder(shown) / "report.html", overwrite=overwrite))


def compare(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A run or influence folder; RUN:kl compares the selector kl.")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another one, or another selector of the same.")],
    every: EveryOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two measurements: their numbers side by side, and the differences with intervals."""
    from olmo_sparsity.statistics.compare import compare as compare_measurements
    from olmo_sparsity.view.tables import print_comparison

    print_comparison(compare_measurements(first, second), every=every, as_json=as_json)


def hypothesis(
    runs: Annotated[
        list[Path],
        typer.Option(
            "--run",
            metavar="DIR",
            help="A measured run; repeat the option. Seeds of a configuration are one model; one model may be a ceiling.",
            show_default=False,
        ),
    ],
    selector: Annotated[
        str,
        typer.Option(
            "--selector",
            metavar="NAME",
            help="Selector whose first token tells how sparse a reaction is; sees no target.",
        ),
    ] = "kl",
    as_json: JsonOption = False,
) -> None:
    """Test whether sparsity predicts length generalization: do targets with a sparse reaction to the tokens beyond the training
    row gain more from them than targets with a dense one?

    Each run must be measured with as many local tokens as a training row has (`influence --local-len`).
    """
    from olmo_sparsity.view.trials import print_hypothesis

    print_hypothesis(runs, selector=selector, as_json=as_json)
