"""The command ``explain``: one place in one document."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from olmo_sparsity.cli.flags import Keys, one_of, words_of
from olmo_sparsity.cli.options import (
    ConfigOption,
    ModelOption,
    Overrides,
    OverwritePageOption,
    RevisionOption,
    RunOption,
    SeedOption,
    TextOption,
    TrainOption,
    check_text_options,
    resolve,
)
from olmo_sparsity.cli.steps import check_before_torch, check_settings, interruptible, train_first
from olmo_sparsity.config import Config
from olmo_sparsity.config.flags import ALL, parse_k, selectors_named
from olmo_sparsity.config.measuring import check_one_set, selector_help
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.own_selectors import is_own
from olmo_sparsity.records.selectors import SELECTORS

if TYPE_CHECKING:
    from olmo_sparsity.text.places import EncodedText, TargetPlace

SHOWN = ("kl",)  # the selector that is shown where none is named: it does not see the target

logger = logging.getLogger(__name__)


def explain(
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
            help="Character of the document, counted from 0. The token that holds it is the target.",
        ),
    ] = None,
    target: Annotated[
        Optional[str],
        typer.Option(
            "--target",
            metavar="TEXT",
            help="In place of --at: the target is the first token that begins this text and follows a full window.",
        ),
    ] = None,
    selector: Annotated[
        Optional[list[str]],
        typer.Option(
            "--selector",
            metavar=words_of((*SELECTORS, ALL)),
            parser=one_of((*SELECTORS, ALL), also=is_own),
            help=selector_help(", ".join(SHOWN)),
            show_default=False,
        ),
    ] = None,
    k: Annotated[
        Optional[str],
        typer.Option(
            "--k",
            metavar="K",
            help="Numbers of tokens to unmask. 8: k = 1, 2, 4, 8. 1,3,5: these. The largest is shown.",
        ),
    ] = None,
    *,
    keys: Keys,
    seed: SeedOption = None,
    html: Annotated[
        Optional[Path], typer.Option("--html", metavar="FILE", help="Also write one self-contained HTML page.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    train: TrainOption = False,
    overwrite: OverwritePageOption = False,
    overrides: Overrides = None,
) -> None:
    """Explain one place in one document: which earlier tokens matter there. Trains runs/NAME first if it is not trained.

    Prints the window with its influential tokens marked, the losses and the gains.
    """
    check_text_options(overrides, selector=selector, k=k, seed=seed)
    loaded, folder, _ = named = resolve(config, run, overrides=overrides, model=model, revision=revision, keys=keys)
    if (at is None) == (target is None):
        raise UserError("explain: give one place, either --at OFFSET or --target TEXT")
    from olmo_sparsity.measure.work import WHOLE
    from olmo_sparsity.text.readers import read_document

    check_before_torch(loaded, folder, share=WHOLE, asked=train)
    chosen = selectors_named(selector or [])
    check_one_set(chosen, "explain")
    document = read_document(text, loaded.data.text_field)
    if html is not None:
        from olmo_sparsity.view.pages import check_free

        check_free(html, overwrite)
    ks = None if k is None else parse_k(k)
    check_settings(loaded, selectors=chosen, ks=ks, seed=seed)
    found = _place_in(loaded, folder, document, at=at, target=target)
    logger.info(f"{folder}: loading the model, to measure one window")
    from olmo_sparsity.api.chosen_windows import find_place
    from olmo_sparsity.api.explaining import explain_found
    from olmo_sparsity.api.opening import open_configured
    from olmo_sparsity.view.console import print_json
    from olmo_sparsity.view.explanation import print_explanation
    from olmo_sparsity.view.one_window import terminal

    train_first(named, share=WHOLE, asked=train)
    with interruptible():
        opened = open_configured(loaded, folder)
        explanation = explain_found(
            opened,
            found or find_place(opened, document, at=at, target=target),
            target=target,
            selectors=chosen or SHOWN,
            k=ks,
            seed=seed,
            source=text.name,
        )
    if as_json:
        print_json(explanation.to_json())
    else:
        print_explanation(explanation, terminal())
    if html is not None:
        logger.info(str(explanation.save_html(html, overwrite=overwrite)))


def _place_in(
    config: Config, run: Path, document: str, *, at: Optional[int], target: Optional[str]
) -> Optional[tuple[EncodedText, TargetPlace]]:
    """Return the encoded document and the place, by the tokenizer of a run and before torch is imported; None: there is no run.

    Raises:
        UserError: there is no such place.
    """
    from olmo_sparsity.storage.folders import manifest_of_kind
    from olmo_sparsity.storage.manifests import tokenizer_of_run
    from olmo_sparsity.text.places import find_place
    from olmo_sparsity.text.vocabulary import read_tokenizer

    manifest = manifest_of_kind(run, "run") if config.pretrained.model is None else None
    if manifest is None:
        return None
    tokenizer, lengths = read_tokenizer(tokenizer_of_run(run, manifest)), config.measured_lengths
    return find_place(tokenizer, document, at=at, target=target, full_len=lengths.full_len, local_len=lengths.local_len)
