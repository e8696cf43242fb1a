"""Commands that measure: ``influence``, ``validate``, ``context-curve``, ``merge``."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import (
    AnchorOption,
    ConfigOption,
    DataOption,
    FullLenOption,
    LocalLenOption,
    ModelOption,
    NumWindowsOption,
    Overrides,
    OverwriteOption,
    PathName,
    Precision,
    RevisionOption,
    RunOption,
    SelectorOption,
    ShardOption,
    TrainOption,
    UnitOption,
    VisibilityOption,
    definition,
    parse_k,
    parse_screen,
    resolve,
    selector_names,
    with_options,
)
from olmo_sparsity.cli.steps import finish_share, interruptible, train_first
from olmo_sparsity.config import ContextCurveConfig
from olmo_sparsity.config.measuring import RANKING_SHOWN_TO
from olmo_sparsity.errors import UserError

MAX_PROBLEMS = 10  # printed per folder; one failed machine can cause thousands

logger = logging.getLogger(__name__)


def influence(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    k: Annotated[
        Optional[str],
        typer.Option("--k", metavar="K", help="8 measures k = 1, 2, 4, 8; 1,3,5 only those.", show_default=False),
    ] = None,
    unit: UnitOption = None,
    num_windows: NumWindowsOption = None,
    selector: SelectorOption = None,
    seed: Annotated[Optional[int], typer.Option("--seed", help="Seed of the windows and the controls.")] = None,
    data: DataOption = None,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the tables. Default: one inside the run, named after what is measured.",
        ),
    ] = None,
    screen: Annotated[
        Optional[str],
        typer.Option(
            "--screen",
            metavar="[RANKING:]N",
            help="Rank all tokens cheaply, then unmask only the best N one by one; reports the recall. RANKING: gradient, "
            f"patching, attention, hierarchy, or proxy; may be left out among at most {RANKING_SHOWN_TO} long-range tokens. "
            "Default: off.",
        ),
    ] = None,
    precision: Annotated[
        Optional[Precision],
        typer.Option(
            "--precision", help="Precision of the losses: fp32, or bf16, which is faster and less exact; auto."
        ),
    ] = None,
    save_candidates: Annotated[
        bool, typer.Option("--save-candidates", help="Also write the loss of every single-token unmasking.")
    ] = False,
    path: Annotated[
        Optional[PathName],
        typer.Option("--path", help="How losses are computed. plain and masked are slower, for comparison."),
    ] = None,
    local_len: LocalLenOption = None,
    full_len: FullLenOption = None,
    visibility: VisibilityOption = None,
    anchor: AnchorOption = None,
    train: TrainOption = False,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Measure which long-range tokens are influential. Trains runs/NAME first if it is not trained."""
    from olmo_sparsity.measure.shares import share_of_process

    share = share_of_process(shard, overwrite=overwrite)
    loaded, folder = resolve(config, run, overrides=overrides, model=model, revision=revision)
    given: dict[str, Any] = {
        "k": None if k is None else parse_k(k),
        "unit": unit,
        "num_windows": num_windows,
        "selectors": selector_names(selector),
        "seed": seed,
        "data": data,
        **({} if screen is None else parse_screen(screen)),
        "precision": precision and precision.value,
        "save_candidates": save_candidates or None,
        "path": path and path.value,
        **definition(local_len, full_len, visibility=visibility, anchor=anchor),
    }
    loaded = dataclasses.replace(loaded, influence=with_options(loaded.influence, given))
    loaded.check_k()
    from olmo_sparsity.measure.influence import measure
    from olmo_sparsity.view.console import print_summary

    train_first(loaded, folder, share=share, asked=train, kind="influence", out=out)
    with interruptible():
        tables = measure(loaded, folder, out=out, overwrite=overwrite, share=share)
    if finish_share(tables, share):
        print_summary(tables)


def validate(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    num_windows: Annotated[
        Optional[int],
        typer.Option("--num-windows", help="Windows for each kind of needle and each number of copies."),
    ] = None,
    selector: SelectorOption = None,
    out: Annotated[Optional[Path], typer.Option("--out", metavar="DIR", help="Folder of the tables.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    local_len: LocalLenOption = None,
    full_len: FullLenOption = None,
    visibility: VisibilityOption = None,
    anchor: AnchorOption = None,
    train: TrainOption = False,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Check that the selectors find tokens that are known to matter: plants needles, and counts how many are found."""
    from olmo_sparsity.measure.shares import share_of_process

    share = share_of_process(shard, overwrite=overwrite)
    loaded, folder = resolve(config, run, overrides=overrides, model=model, revision=revision)
    given: dict[str, Any] = {"num_windows": num_windows, "selectors": selector_names(selector)}
    defined = definition(local_len, full_len, visibility=visibility, anchor=anchor)
    loaded = dataclasses.replace(
        loaded,
        validation=with_options(loaded.validation, given),
        influence=with_options(loaded.influence, defined),
    )
    from olmo_sparsity.measure.validation import check_room
    from olmo_sparsity.measure.validation import validate as validate_run
    from olmo_sparsity.view.console import print_detection

    check_room(loaded)
    train_first(loaded, folder, share=share, asked=train, kind="validation", out=out)
    with interruptible():
        tables = validate_run(loaded, folder, out=out, overwrite=overwrite, share=share)
    if finish_share(tables, share):
        print_detection(tables, as_json=as_json)


def context_curve(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    num_windows: NumWindowsOption = None,
    max_visible: Annotated[
        Optional[int],
        typer.Option("--max-visible", help="Longest visible context, in tokens. Default: twice the full context."),
    ] = None,
    data: DataOption = None,
    out: Annotated[Optional[Path], typer.Option("--out", metavar="DIR", help="Folder of the table.")] = None,
    local_len: LocalLenOption = None,
    full_len: FullLenOption = None,
    visibility: VisibilityOption = None,
    anchor: AnchorOption = None,
    train: TrainOption = False,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Measure the loss against the number of visible recent tokens: does the model generalize in length?"""
    from olmo_sparsity.measure.shares import share_of_process

    share = share_of_process(shard, overwrite=overwrite)
    loaded, folder = resolve(config, run, overrides=overrides, model=model, revision=revision)
    given: dict[str, Any] = {
        "num_windows": num_windows,
        "data": data,
        **definition(local_len, full_len, visibility=visibility, anchor=anchor),
    }
    loaded = dataclasses.replace(loaded, influence=with_options(loaded.influence, given))
    if max_visible is not None:
        loaded = dataclasses.replace(loaded, context_curve=ContextCurveConfig(max_visible))
    from olmo_sparsity.measure.context_curve import measure_context_curve, visible_lengths
    from olmo_sparsity.view.console import print_curve

    visible_lengths(loaded)  # refuses what is too short, before the training
    train_first(loaded, folder, share=share, asked=train, kind="context-curve", out=out)
    with interruptible():
        tables = measure_context_curve(loaded, folder, out=out, overwrite=overwrite, share=share)
    if finish_share(tables, share):
        print_curve(tables)


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of tables.")],
    out: Annotated[
        Optional[Path],
        typer.Option("--out", metavar="DIR", help="Folder to merge them into; an earlier merge is continued."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check each folder, and print its problems.")] = False,
) -> None:
    """Merge parts that were measured on machines without a common file system, or --check that a folder is complete."""
    from olmo_sparsity.tables.merging import check_tables, merge_folders

    if check == (out is not None):
        raise UserError("merge: give either --check, or --out DIR to merge the folders into")
    if out is not None:
        merge_folders(folders, out)
    problems = 0
    for folder in [out] if out is not None else folders:
        result = check_tables(folder)
        problems += len(result.problems)
        for problem in result.problems[:MAX_PROBLEMS]:
            print_line(problem, to_stderr=True)
        if len(result.problems) > MAX_PROBLEMS:
            logger.info(f"{folder}: and {len(result.problems) - MAX_PROBLEMS} more")
        if not result.problems:
            print_line(result.summary)
    if problems:
        raise typer.Exit(2)
