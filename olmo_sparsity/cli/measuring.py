"""Commands that measure: ``influence``, ``explore``; and ``merge``, which gathers what was measured apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from olmo_sparsity.cli import options as opt
from olmo_sparsity.errors import UserError, printable

MAX_PROBLEMS = 10  # printed of a folder; one failed machine can cause thousands


def influence(
    config: opt.ConfigFile = None,
    run: opt.Run = None,
    model: opt.Model = None,
    num_windows: opt.Windows = None,
    k: opt.K = None,
    selector: opt.Selectors = None,
    unit: opt.Unit = None,
    local_len: opt.LocalLen = None,
    full_len: opt.FullLen = None,
    visibility: opt.Visibility = None,
    data: opt.Source = None,
    overwrite: opt.Overwrite = False,
    seed: opt.Seed = None,
    precision: opt.Precision = None,
    out: opt.Out = None,
    train: opt.Train = False,
    shard: opt.Shard = None,
    help_all: opt.HelpAll = False,
    overrides: opt.Keys = None,
) -> None:
    """Measure which long-range tokens are influential. Trains runs/NAME first if it is not trained."""
    from olmo_sparsity.measure.parts import finished, share_of_process

    share = share_of_process(shard, overwrite=overwrite)
    keys = opt.keys_of(
        k=k, selector=selector, num_windows=num_windows, unit=unit, local_len=local_len, full_len=full_len,
        visibility=visibility, data=data, seed=seed, precision=precision,
    )  # fmt: skip
    named = opt.resolve(config, run, overrides=overrides, model=model, keys=keys)
    named.config.with_measured_k()
    tables = None if overwrite else finished(named.config, named.folder, out)  # before torch is imported
    if tables is None:
        opt.train_first(named, num_processes=share.count, asked=train, out=out)
        from olmo_sparsity.measure.influence import measure

        tables = measure(named.config, named.folder, out=out, overwrite=overwrite, share=share)
    from olmo_sparsity.statistics.quantities import read_estimates
    from olmo_sparsity.view.summary import print_answers

    if opt.finish_share(tables, share):
        print_answers(read_estimates(tables))
        typer.echo("Tables and controls: `olmo-sparsity summary`")


def explore(
    text: Annotated[Path, opt.option("--text", help="File with one document.")],
    config: opt.ConfigFile = None,
    run: opt.Run = None,
    model: opt.Model = None,
    at: Annotated[opt.Number, opt.option("--at", help="Print the place of this character, and write no page.")] = None,
    k: opt.K = None,
    selector: opt.Selectors = None,
    unit: opt.Unit = None,
    local_len: opt.LocalLen = None,
    full_len: opt.FullLen = None,
    visibility: opt.Visibility = None,
    seed: opt.Seed = None,
    out: opt.Out = None,
    train: opt.Train = False,
    overwrite: opt.Overwrite = False,
    help_all: opt.HelpAll = False,
    overrides: opt.Keys = None,
) -> None:
    """Explore a whole document, token by token, on one page. Trains runs/NAME first if it is not trained.

    Shows which earlier tokens each prediction needs, and what is predicted with local tokens only, with k, and with all.
    """
    if at is not None and out is not None:
        raise UserError("explore: --at prints one place and writes no page; leave out --out")
    keys = opt.keys_of(
        k=k, selector=selector, unit=unit, local_len=local_len, full_len=full_len, visibility=visibility, seed=seed
    )
    named = opt.resolve(config, run, overrides=overrides, model=model, keys=keys)
    loaded = named.config if k is None else named.config.with_measured_k()
    from olmo_sparsity.text.sources import read_document
    from olmo_sparsity.view.explore import check_length
    from olmo_sparsity.view.pages import check_free

    document = read_document(text, loaded.data.text_field)
    page = out or named.folder / "explore" / f"{text.stem}.html"
    if at is None:
        check_length(document, text.name)
        check_free(page, overwrite)
    opt.train_first(named, num_processes=1, asked=train)
    from olmo_sparsity.api.exploring import explore as explore_document
    from olmo_sparsity.api.exploring import explore_place
    from olmo_sparsity.measure.opening import open_model
    from olmo_sparsity.view.console import SafeConsole
    from olmo_sparsity.view.explore import ONE_DOCUMENT, print_place

    are_named = selector or any(override.startswith("influence.selectors=") for override in overrides or ())
    chosen = loaded.influence.selectors if are_named else None
    opened = open_model(loaded, named.folder)
    if at is not None:
        place = explore_place(opened, document, at=at, selectors=chosen)
        print_place(**place, title=f"{text.name}, character {at}", console=SafeConsole())
        return
    found = explore_document(opened, document, selectors=chosen, source=text.name, folder=named.folder / "explore")
    saved = found.save_html(page, overwrite=overwrite)
    for line in (found.found, ONE_DOCUMENT, f"The page is {saved}"):
        typer.echo(printable(line))


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of tables.", show_default=False)],
    out: Annotated[opt.File, opt.option("--out", help="Folder to merge into; an earlier merge is continued.")] = None,
    check: Annotated[bool, opt.option("--check", help="Only check each folder, and print its problems.")] = False,
) -> None:
    """Merge parts that were measured on machines without a common file system, or --check that a folder is complete."""
    from olmo_sparsity.tables import check_tables, merge_folders

    if check == (out is not None):
        raise UserError("merge: give either --check, or --out DIR to merge the folders into")
    if out is not None:
        merge_folders(folders, out)
    problems = {folder: check_tables(folder) for folder in ([out] if out is not None else folders)}
    for folder, lines in problems.items():
        for line in lines[:MAX_PROBLEMS]:
            typer.echo(printable(line), err=True)
        if len(lines) > MAX_PROBLEMS:
            typer.echo(f"{folder}: and {len(lines) - MAX_PROBLEMS} more", err=True)
        if not lines:
            typer.echo(f"{folder}: complete")
    if any(problems.values()):
        raise typer.Exit(2)
