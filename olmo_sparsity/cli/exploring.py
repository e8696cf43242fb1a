"""The commands `explore`, a whole document or one place in it, and `show`, one measured window."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import (
    ConfigOption,
    ContextName,
    FullLenOption,
    LocalLenOption,
    ModelOption,
    Overrides,
    OverwritePageOption,
    RevisionOption,
    RunOption,
    SeedOption,
    ShownSelectorOption,
    TextOption,
    TrainOption,
    UnitOption,
    VisibilityOption,
    check_text_options,
    keys_of_influence,
    parse_k,
    resolve,
    selector_option,
    selectors_named,
)
from olmo_sparsity.cli.shown_models import check_shown_model
from olmo_sparsity.cli.steps import check_before_torch, check_settings, interruptible, train_first
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.selectors import SELECTORS

FOLDER = "explore"  # in the folder of the run: the tables, and the page where no file is named


def explore(
    text: TextOption,
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    at: Annotated[
        Optional[int],
        typer.Option(
            "--at",
            metavar="OFFSET",
            help="Print one place in place of the page: the token that holds this character, counted from 0.",
        ),
    ] = None,
    selector: Annotated[
        Optional[list[str]],
        selector_option(
            SELECTORS,
            default="kl and attention of a run, attention and nearest of --model; the page begins with the first two",
        ),
    ] = None,
    k: Annotated[
        Optional[str],
        typer.Option("--k", metavar="K", help="Numbers of tokens to unmask. 8: k = 1, 2, 4, 8. 1,3,5: these."),
    ] = None,
    unit: UnitOption = None,
    local_len: LocalLenOption = None,
    full_len: FullLenOption = None,
    visibility: VisibilityOption = None,
    seed: SeedOption = None,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out", metavar="FILE", help="HTML file to write. Default: explore/NAME.html in the folder of the run."
        ),
    ] = None,
    train: TrainOption = False,
    overwrite: OverwritePageOption = False,
    overrides: Overrides = None,
) -> None:
    """Explore a whole document, token by token, on one page. Trains runs/NAME first if it is not trained.

    Shows which earlier tokens each prediction needs, and what is predicted with local tokens only, with k, and with all.
    """
    check_text_options(overrides, selector=selector, k=k, seed=seed)
    keys = keys_of_influence(unit=unit, local_len=local_len, full_len=full_len, visibility=visibility)
    loaded, folder, _ = named = resolve(config, run, overrides=overrides, model=model, revision=revision, keys=keys)
    from olmo_sparsity.measure.parts import WHOLE

    check_before_torch(loaded, folder, share=WHOLE, asked=train)
    from olmo_sparsity.text.sources import read_document
    from olmo_sparsity.view.pages import check_free

    if at is not None and out is not None:
        raise UserError("explore: --at prints one place and writes no page; leave out --out")
    chosen = selectors_named(selector or []) or None
    document = read_document(text, loaded.data.text_field)
    page = out or folder / FOLDER / f"{text.stem}.html"
    if at is None:
        check_free(page, overwrite)
    ks = None if k is None else parse_k(k)
    check_settings(loaded, selectors=chosen or [], ks=ks, seed=seed)
    from olmo_sparsity.api.exploring import explore as explore_document
    from olmo_sparsity.api.exploring import explore_place
    from olmo_sparsity.api.opening import open_configured
    from olmo_sparsity.view.console import SafeConsole
    from olmo_sparsity.view.explore import ONE_DOCUMENT, print_place

    train_first(named, share=WHOLE, asked=train)
    with interruptible():
        opened = open_configured(loaded, folder)
        if at is not None:
            place = explore_place(opened, document, at=at, selectors=chosen, k=ks, seed=seed, source=text.name)
            print_place(**place, title=f"{text.name}, character {at}", console=SafeConsole())
            return
        exploration = explore_document(
            opened, document, selectors=chosen, k=ks, seed=seed, source=text.name, folder=folder / FOLDER
        )
    saved = exploration.save_html(page, overwrite=overwrite)
    print_line(exploration.found)
    print_line(ONE_DOCUMENT)
    print_line(f"The page is {saved}")


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
        Optional[int], typer.Option("--k", help="A measured k. Default: the largest up to a quarter of all tokens.")
    ] = None,
    context: Annotated[
        ContextName, typer.Option("--context", help="real, or null: the null context that was measured.")
    ] = ContextName.real,
) -> None:
    """Show one window in the terminal: its words, the picked tokens, the losses."""
    from olmo_sparsity.tables import find_tables
    from olmo_sparsity.view.console import SafeConsole
    from olmo_sparsity.view.window import show as show_window

    folders, number = [Path(argument) for argument in arguments[:-1]], arguments[-1]
    if revision is not None and model is None:
        raise UserError(f"show: --revision {printable(revision)} needs --model")
    if model is not None:
        named = resolve(None, None, overrides=None, model=model, revision=revision)
        check_shown_model(named.folder, named.config.pretrained, show="name it as RUN")
        folders.append(named.folder)
    if len(folders) != 1 or not re.fullmatch("[0-9]{1,18}", number):
        raise UserError(
            f"show {' '.join(arguments)}: give a run and the number of a window, such as show runs/demo 17, or with --model "
            "the number alone"
        )
    tables = find_tables(folders[0])
    show_window(tables, int(number), console=SafeConsole(), selector=selector, k=k, context=context.value)
