"""The command ``explore``: every token of one document, or one place in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import (
    ConfigOption,
    FullLenOption,
    LocalLenOption,
    ModelOption,
    Overrides,
    OverwritePageOption,
    RevisionOption,
    RunOption,
    SeedOption,
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
from olmo_sparsity.cli.steps import check_before_torch, check_settings, interruptible, train_first
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.own_selectors import BUILT_IN_ALONE
from olmo_sparsity.records.selectors import SELECTORS

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
            refusal=BUILT_IN_ALONE,
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

    Shows how far the long context moves the prediction of each token, what is chosen for it, and which later tokens use it.
    """
    check_text_options(overrides, selector=selector, k=k, seed=seed)
    keys = keys_of_influence(unit=unit, local_len=local_len, full_len=full_len, visibility=visibility)
    loaded, folder, _ = named = resolve(config, run, overrides=overrides, model=model, revision=revision, keys=keys)
    from olmo_sparsity.measure.work import WHOLE

    check_before_torch(loaded, folder, share=WHOLE, asked=train)
    from olmo_sparsity.text.readers import read_document
    from olmo_sparsity.view.pages import check_free

    if at is not None and out is not None:
        raise UserError("explore: --at prints one place and writes no page; leave out --out")
    chosen = selectors_named(selector or [])
    document = read_document(text, loaded.data.text_field)
    page = out or folder / FOLDER / f"{text.stem}.html"
    if at is None:
        check_free(page, overwrite)
    ks = None if k is None else parse_k(k)
    check_settings(loaded, selectors=chosen, ks=ks, seed=seed)
    from olmo_sparsity.api.exploring import explore as explore_document
    from olmo_sparsity.api.exploring import explore_place
    from olmo_sparsity.api.opening import open_configured
    from olmo_sparsity.view.one_window import print_place, terminal

    train_first(named, share=WHOLE, asked=train)
    if at is not None:
        with interruptible():
            opened = open_configured(loaded, folder)
            shown = explore_place(opened, document, at=at, selectors=chosen or None, k=ks, seed=seed, source=text.name)
        print_place(shown, f"{text.name}, character {at}", terminal())
        return
    with interruptible():
        exploration = explore_document(
            open_configured(loaded, folder),
            document,
            selectors=chosen or None,
            k=ks,
            seed=seed,
            source=text.name,
            folder=folder / FOLDER,
        )
    saved = exploration.save_html(page, overwrite=overwrite)
    print_line(f"{exploration.found[0].upper()}{exploration.found[1:]}; the page is {saved}")
    print_line(exploration.gate)
