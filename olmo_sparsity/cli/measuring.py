"""Commands that measure: ``influence``, ``merge``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import (
    ALL,
    ConfigOption,
    DataOption,
    FullLenOption,
    KOption,
    LocalLenOption,
    ModelOption,
    NumWindowsOption,
    Overrides,
    OverwriteOption,
    PrecisionOption,
    RevisionOption,
    RunOption,
    ShardOption,
    TrainOption,
    UnitOption,
    VisibilityOption,
    keys_of_influence,
    resolve,
    selector_option,
)
from olmo_sparsity.cli.steps import check_before_torch, finish_share, interruptible, train_first
from olmo_sparsity.errors import UserError
from olmo_sparsity.selectors import SELECTORS

MAX_PROBLEMS = 10  # printed per folder; one failed machine can cause thousands

logger = logging.getLogger(__name__)


def influence(
    config: ConfigOption = None,
    run: RunOption = None,
    model: ModelOption = None,
    revision: RevisionOption = None,
    num_windows: NumWindowsOption = None,
    unit: UnitOption = None,
    k: KOption = None,
    selector: Annotated[
        Optional[list[str]], selector_option((*SELECTORS, ALL), default="those of the configuration")
    ] = None,
    seed: Annotated[Optional[int], typer.Option("--seed", help="Seed of the windows and the controls.")] = None,
    local_len: LocalLenOption = None,
    full_len: FullLenOption = None,
    visibility: VisibilityOption = None,
    precision: PrecisionOption = None,
    data: DataOption = None,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the tables. Default: one inside the run, named after what is measured.",
        ),
    ] = None,
    train: TrainOption = False,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Measure which long-range tokens are influential. Trains runs/NAME first if it is not trained."""
    from olmo_sparsity.measure.parts import finished, share_of_process

    share = share_of_process(shard, overwrite=overwrite)
    keys = keys_of_influence(
        num_windows=num_windows, unit=unit, k=k, selector=selector, seed=seed, local_len=local_len, full_len=full_len,
        visibility=visibility, precision=precision, data=data,
    )  # fmt: skip
    loaded, folder, _ = named = resolve(config, run, overrides=overrides, model=model, revision=revision, keys=keys)
    loaded.with_measured_k()
    check_before_torch(loaded, folder, share=share, asked=train)
    from olmo_sparsity.statistics.quantities import read_estimates
    from olmo_sparsity.view.tables import print_summary

    tables = None if overwrite else finished(loaded, folder, out)  # before torch is imported, which takes seconds
    if tables is None:
        from olmo_sparsity.measure.influence import measure

        train_first(named, share=share, asked=train, kind="influence", out=out)
        with interruptible():
            tables = measure(loaded, folder, out=out, overwrite=overwrite, share=share)
    if finish_share(tables, share):
        print_summary(read_estimates(tables))


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of tables.")],
    out: Annotated[
        Optional[Path],
        typer.Option("--out", metavar="DIR", help="Folder to merge them into; an earlier merge is continued."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check each folder, and print its problems.")] = False,
) -> None:
    """Merge parts that were measured on machines without a common file system, or --check that a folder is complete."""
    from olmo_sparsity.tables import check_tables, merge_folders

    if check == (out is not None):
        raise UserError("merge: give either --check, or --out DIR to merge the folders into")
    if out is not None:
        merge_folders(folders, out)
    problems = 0
    for folder in [out] if out is not None else folders:
        found = check_tables(folder)
        problems += len(found)
        for problem in found[:MAX_PROBLEMS]:
            print_line(problem, to_stderr=True)
        if len(found) > MAX_PROBLEMS:
            logger.info(f"{folder}: and {len(found) - MAX_PROBLEMS} more")
        if not found:
            print_line(f"{folder}: complete")
    if problems:
        raise typer.Exit(2)
