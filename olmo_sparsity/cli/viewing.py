"""Commands that show results: ``list``, ``summary``, ``figures``, ``report``, ``show``, ``compare``, ``hypothesis``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import (
    RUNS,
    ConfigOption,
    ContextName,
    ModelOption,
    Named,
    Overrides,
    OverwritePageOption,
    RevisionOption,
    RunOption,
    ShownSelectorOption,
    TrainOption,
    given_keys,
    resolve,
)
from olmo_sparsity.cli.shown_models import check_shown_model
from olmo_sparsity.cli.steps import measure_first
from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.config.trained import FREE_TO_MEASURE, MEASURED_SECTIONS, different_keys
from olmo_sparsity.errors import UserError, only_one, printable
from olmo_sparsity.storage.manifests import read_manifest_of

TablesOption = Annotated[
    Optional[list[Path]],
    typer.Option(
        "--tables",
        metavar="DIR",
        help="Influence folder, or the end of its name (`olmo-sparsity list` prints the names). Default: the newest of the run.",
        show_default=False,
    ),
]
STATED_OF_MODEL = ("pretrained.train_len", "pretrained.rope_scaling", "pretrained.rope_factor")
AS_RUN = "name it as RUN"  # where there is no option --run


def _resolve_shown(
    config: Optional[Path],
    run: Optional[Path],
    *,
    overrides: Optional[list[str]] = None,
    model: Optional[str],
    revision: Optional[str],
    show: str = "show it with --run DIR",
) -> Named:
    """Return what ``resolve`` does; the folder of a model's results, where it exists, holds those of this model.

    Raises:
        UserError: it holds those of another.
    """
    named = resolve(config, run, overrides=overrides, model=model, revision=revision)
    check_shown_model(named.folder, named.config.pretrained, show=show)
    return named


def _check_not_measured_now(overrides: Optional[list[str]], sections: Sequence[str] = MEASURED_SECTIONS) -> None:
    """Check that no override is of a measurement, where what was measured is shown.

    Raises:
        UserError: one is of a key of these sections, but for those that change nothing.
    """
    for override, key in given_keys(overrides):
        section, _, name = key.partition(".")
        if section in sections and (section, name) not in FREE_TO_MEASURE:
            raise UserError(
                f"{override}: what was measured is shown as it is; measure again with `olmo-sparsity influence` and this key, or "
                "choose other tables with --tables"
            )


def _check_shown(overrides: Optional[list[str]], loaded: Config, folder: Path) -> None:
    """Check that no override asks for another training than that of the run that is shown, or another text than a model's.

    Args:
        overrides: as ``SECTION.KEY=VALUE``.
        loaded: the configuration with them.
        folder: of the run or model.

    Raises:
        UserError: one does.
    """
    if not overrides:
        return
    if loaded.pretrained.model is not None:
        _check_not_measured_now(overrides, ("data", "context"))
    manifest = read_manifest_of(folder) if (folder / "manifest.json").is_file() else {}
    if manifest.get("kind") != "run":
        return
    given = {key for _, key in given_keys(overrides)}
    for key in different_keys(manifest["config"], to_dict(loaded), free=FREE_TO_MEASURE):
        if key.dotted in given:
            raise UserError(
                f"{folder}: this run was made with {key.dotted} = {key.first!r}, not {key.second!r}; name another with --run DIR"
            )


def _check_stated(overrides: Optional[list[str]], loaded: Config, tables: Path) -> None:
    """Check that no override states another training row or scaling of a pretrained model than the shown tables record.

    Args:
        overrides: as ``SECTION.KEY=VALUE``.
        loaded: the configuration with them.
        tables: the influence folder.

    Raises:
        UserError: one does, or there are no tables.
    """
    from olmo_sparsity.tables.reading import read_manifest

    given = [(override, key) for override, key in given_keys(overrides) if key in STATED_OF_MODEL]
    if not given:
        return
    manifest, asked = read_manifest(tables), loaded.pretrained
    lengths, model = manifest["context"], manifest.get("model") or {}
    row = lengths.get("train_len") if lengths.get("train_len_is_stated") else None
    for override, key in given:
        pair = (asked.train_len, row) if key == "pretrained.train_len" else (asked.scaling, model.get("rope_scaling"))
        if pair[0] != pair[1]:
            raise UserError(
                f"{override}: {tables} was measured with {pair[1] or 'none'}; what was measured is shown as it is; measure again "
                "with this key, or choose other tables with --tables"
            )


def _only_one(tables: Optional[list[Path]]) -> Optional[Path]:
    """Return the influence folder that ``--tables`` names; see ``only_one``."""
    return only_one(
        "--tables", tables, advice="one measurement is shown at a time; `olmo-sparsity compare` takes several"
    )


def _check_same_weights(tables: Path, folder: Path, *, given: Path) -> None:
    """Check that tables that lie outside of runs are of the weights of the run or model that is named beside them.

    Their folder does not tell whose they are, and a run may have been renamed. Where the weights of one are not recorded, nothing
    is checked.

    Args:
        tables: the influence folder.
        folder: of the run or model.
        given: the tables, as the user named them.

    Raises:
        UserError: they are of other weights, or there are no tables.
    """
    from olmo_sparsity.tables.reading import read_manifest

    manifest = read_manifest(tables)
    if not (folder / "manifest.json").is_file():
        return
    measured, trained = _weights_of(manifest), _weights_of(read_manifest_of(folder))
    if measured is not None and trained is not None and measured != trained:
        raise UserError(
            f"{given}: these tables are of {manifest['run']}, measured with other weights than those of {folder}; leave out what "
            f"names {folder}, or --tables"
        )


def _weights_of(manifest: dict[str, Any]) -> Optional[str]:
    """Return the hash of the weights that a run or model ended with, or that tables are of; None: it is not recorded."""
    checkpoint, model = manifest.get("checkpoint") or {}, manifest.get("model") or {}
    return checkpoint.get("model_sha256") or model.get("weights_sha256")


def _named(
    tables: Path,
    config: Optional[Path],
    run: Optional[Path],
    *,
    overrides: Optional[list[str]],
    model: Optional[str],
    revision: Optional[str],
) -> tuple[Path, Optional[Path]]:
    """Return (the influence folder that ``--tables`` names, the folder of the run or model that options name beside it).

    Without such options the second is the one in which the tables lie, if there is one.

    Raises:
        UserError: the tables are of another run or model than the options name, or the name is that of several.
    """
    from olmo_sparsity.tables.reading import named_tables, run_of_tables

    is_named = any((config, run, overrides, model, revision))
    if tables.exists() and not is_named:
        return tables, run_of_tables(tables)
    _check_not_measured_now(overrides)
    loaded, folder, _ = _resolve_shown(config, run, overrides=overrides, model=model, revision=revision)
    _check_shown(overrides, loaded, folder)
    found = named_tables(tables, folder)
    _check_stated(overrides, loaded, found)
    own = run_of_tables(found)
    if is_named and own is not None and own.resolve() != folder.resolve():
        raise UserError(
            f"{tables}: these tables are of {own}, not of {folder}; leave out what names {folder}, or --tables"
        )
    if is_named and own is None:
        _check_same_weights(found, folder, given=tables)
    return found, folder if is_named else own


def _shown_tables(
    named: Optional[list[Path]],
    config: Optional[Path],
    run: Optional[Path],
    *,
    overrides: Optional[list[str]],
    model: Optional[str],
    revision: Optional[str],
) -> tuple[Path, Optional[Path]]:
    """Return (the tables, by default the newest, and the folder of their run or model, if there is one).

    Raises:
        UserError: there are none.
    """
    from olmo_sparsity.tables.reading import newest_shown

    tables = _only_one(named)
    if tables is not None:
        return _named(tables, config, run, overrides=overrides, model=model, revision=revision)
    _check_not_measured_now(overrides)
    loaded, folder, _ = _resolve_shown(config, run, overrides=overrides, model=model, revision=revision)
    _check_shown(overrides, loaded, folder)
    if run is None and not folder.is_dir():  # no folder was named, so none is missing
        done = "measured" if loaded.pretrained.model is not None else "trained or measured"
        raise UserError(f"{folder}: nothing has been {done} yet; run `olmo-sparsity influence` first")
    newest = newest_shown(folder)
    _check_stated(overrides, loaded, newest)
    return newest, folder


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with the runs.")] = RUNS,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """List the runs and their measurements: date, text, lengths, and whether the gates passed."""
    from olmo_sparsity.view.listing import print_runs

    print_runs(folder, as_json=as_json)


def summary(
    config: ConfigOption = None,
    run: Annotated[
        Optional[list[Path]],
        typer.Option(
            "--run",
            metavar="DIR",
            help="Folder of the run. Default: runs/NAME. Several runs that differ in training.seed only: one table over seeds.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    tables: TablesOption = None,
    every: Annotated[
        bool,
        typer.Option("--every", help="Also print every k and context, and the target classes."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print everything as CSV, one number a row, not rounded.")
    ] = False,
    as_md: Annotated[bool, typer.Option("--md", help="Print the tables as Markdown.")] = False,
    as_tex: Annotated[
        bool, typer.Option("--tex", help="Print the tables for LaTeX, with the package booktabs.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Print the numbers of a measurement, or their means over several seeds of training, as tables for the terminal, or as
    JSON, CSV, Markdown or LaTeX."""
    from olmo_sparsity.view.console import Form, print_summary
    from olmo_sparsity.view.seed_table import print_seeds

    asked = [
        name for name, is_asked in (("json", as_json), ("csv", as_csv), ("md", as_md), ("tex", as_tex)) if is_asked
    ]
    if len(asked) > 1:
        raise UserError(f"summary: give one of --{' and --'.join(asked)}")
    form = Form(asked[0] if asked else "text")
    runs = run or []
    if len(runs) > 1:
        if any((tables, config, model, revision, overrides)):
            raise UserError(
                "summary: with several runs there is no --tables, --config, --model, --revision or KEY=VALUE; each has its own"
            )
        print_seeds(runs, every=every, form=form)
        return
    run_folder = runs[0] if runs else None
    shown, _ = _shown_tables(tables, config, run_folder, overrides=overrides, model=model, revision=revision)
    print_summary(shown, every=every, form=form)


def figures(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    tables: TablesOption = None,
    train: TrainOption = False,
    overrides: Overrides = None,
) -> None:
    """Draw the figures of a run or a model as PNG and PDF. If nothing is measured yet, train runs/NAME and measure first."""
    from tqdm import tqdm

    from olmo_sparsity.tables.reading import list_finished, read_manifest
    from olmo_sparsity.view.figure_scripts import figure_script

    folder: Optional[Path]
    shown = _only_one(tables)
    if shown is None:
        loaded, folder, _ = named = _resolve_shown(config, run, overrides=overrides, model=model, revision=revision)
        if finished := list_finished(folder):
            _check_not_measured_now(overrides)
            _check_shown(overrides, loaded, folder)
            _check_stated(overrides, loaded, finished[-1])
        else:
            measure_first(named, asked=train)
    else:
        shown, folder = _named(shown, config, run, overrides=overrides, model=model, revision=revision)
        if folder is None:
            read_manifest(shown)
            raise UserError(
                f"{shown}: these tables are not in a run folder; name the one that gets the folder figures/ with --run DIR"
            )
    for path in figure_script("every_figure").draw_run(folder, shown):
        with tqdm.external_write_mode(sys.stdout):  # beside a bar
            print_line(path)


def report(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    tables: TablesOption = None,
    windows: Annotated[
        int, typer.Option("--windows", min=1, help="Windows on the page; a random sample if more were measured.")
    ] = 20,
    sample_seed: Annotated[int, typer.Option("--sample-seed", min=0, help="Seed of the random sample.")] = 0,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out", metavar="FILE", help="HTML file to write. Default: report.html beside the figures of the run."
        ),
    ] = None,
    overwrite: OverwritePageOption = False,
    overrides: Overrides = None,
) -> None:
    """Write a measurement as one HTML file: the answer, charts, and windows with their words."""
    from olmo_sparsity.view.report import default_out, write_report

    shown, folder = _shown_tables(tables, config, run, overrides=overrides, model=model, revision=revision)
    page = out or default_out(shown, folder)
    print_line(write_report(shown, page, overwrite=overwrite, num_windows=windows, seed=sample_seed))


def show(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN] WINDOW",
            help="A run (its newest measurement) or an influence folder, and the number of the window. With --model no RUN.",
        ),
    ],
    model: ModelOption = None,
    revision: RevisionOption = None,
    selector: ShownSelectorOption = None,
    k: Annotated[
        Optional[int],
        typer.Option(
            "--k", help="How many tokens to unmask. Default: the largest measured k up to a quarter of all, or up to 8."
        ),
    ] = None,
    context: Annotated[
        ContextName, typer.Option("--context", help="real, or null: the null context that was measured.")
    ] = ContextName.real,
) -> None:
    """Show one window in the terminal: its words, the chosen tokens, the losses."""
    from olmo_sparsity.tables.reading import find_tables
    from olmo_sparsity.view.one_window import show_window, terminal

    folders, number = [Path(argument) for argument in arguments[:-1]], arguments[-1]
    if revision is not None and model is None:
        raise UserError(f"show: --revision {printable(revision)} is that of --model, and none is given")
    if model is not None:
        folders.append(_resolve_shown(None, None, model=model, revision=revision, show=AS_RUN).folder)
    if len(folders) != 1 or not re.fullmatch("[0-9]{1,18}", number):
        raise UserError(
            f"show {' '.join(arguments)}: give a run and the number of a window, such as show runs/demo 17, or with --model "
            "the number alone"
        )
    show_window(find_tables(folders[0]), int(number), console=terminal(), selector=selector, k=k, context=context.value)


def compare(
    runs: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="RUN RUN...", help="Runs or influence folders; RUN:kl compares by the selector kl."),
    ] = None,
    model: Annotated[
        Optional[list[str]],
        typer.Option(
            "--model",
            metavar="MODEL",
            help="A pretrained model (its newest measurement), which follows the runs; repeat the option for several.",
            show_default=False,
        ),
    ] = None,
    revision: RevisionOption = None,
    every: Annotated[bool, typer.Option("--every", help="Print every selector and k.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare measurements: values side by side, and differences from the first with intervals.

    Differences are paired if the windows are the same.
    """
    from olmo_sparsity.statistics.several.subjects import read_subjects
    from olmo_sparsity.view.console import print_comparison

    models = model or []
    if revision is not None and len(models) != 1:
        raise UserError(f"compare: --revision {revision} is that of one --model; {len(models)} are given")
    of_models = [_resolve_shown(None, None, model=name, revision=revision, show=AS_RUN).folder for name in models]
    subjects = read_subjects([*(runs or []), *map(str, of_models)])
    print_comparison(subjects, every=every, as_json=as_json)


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
        Optional[str],
        typer.Option(
            "--selector",
            metavar="NAME",
            help="Selector whose first token tells how sparse a reaction is. It must not see the target. Default: kl.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Test whether sparsity predicts length generalization: do targets with a sparse reaction to the tokens beyond the training
    row gain more from them than targets with a dense one?

    Each run must be measured with as many local tokens as a training row has (`influence --local-len`).
    """
    from olmo_sparsity.statistics.several.hypothesis import MAIN
    from olmo_sparsity.view.hypothesis import print_hypothesis

    print_hypothesis(runs, selector=selector or MAIN.selector, as_json=as_json)
