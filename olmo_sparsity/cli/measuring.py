"""Commands that measure: ``influence``, ``validate``, ``context-curve``, ``merge``."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.cli.options import (
    ConfigOption,
    Overrides,
    OverwriteOption,
    PathName,
    Precision,
    RunOption,
    SelectorName,
    ShardOption,
    given_options,
    parse_k,
    resolve,
    selectors_of,
)
from olmo_sparsity.cli.steps import interruptible, is_complete, train_first
from olmo_sparsity.config import ContextCurveConfig
from olmo_sparsity.errors import UserError

MAX_PROBLEMS = 10  # of a folder, printed; one machine's failure can be thousands

logger = logging.getLogger(__name__)


def influence(
    config: ConfigOption = None,
    run: RunOption = None,
    k: Annotated[
        Optional[str],
        typer.Option("--k", metavar="K", help="8 measures k = 1, 2, 4, 8; 1,3,5 just those.", show_default=False),
    ] = None,
    num_windows: Annotated[Optional[int], typer.Option("--num-windows", help="Windows to measure.")] = None,
    selector: Annotated[
        Optional[list[SelectorName]],
        typer.Option("--selector", help="Which selectors; may be given again.", show_default=False),
    ] = None,
    seed: Annotated[Optional[int], typer.Option("--seed", help="Seed of the windows and controls.")] = None,
    data: Annotated[
        Optional[str],
        typer.Option("--data", metavar="SOURCE", help="Text to measure: builtin, c4, or a file, folder or glob."),
    ] = None,
    out: Annotated[
        Optional[Path],
        typer.Option(
            "--out",
            metavar="DIR",
            help="Folder of the tables. Default: one inside the run, named after what is measured.",
        ),
    ] = None,
    screen: Annotated[
        Optional[int],
        typer.Option(
            "--screen",
            metavar="N",
            help="Rank cheaply, unmask singly only the best N; reports the recall. Default: off.",
        ),
    ] = None,
    precision: Annotated[
        Optional[Precision], typer.Option("--precision", help="Of the losses: fp32, or bf16, faster and coarser.")
    ] = None,
    save_candidates: Annotated[
        bool, typer.Option("--save-candidates", help="Also write every single-token unmasking.")
    ] = False,
    path: Annotated[
        Optional[PathName], typer.Option("--path", help="compact; plain and masked: slower, to compare with.")
    ] = None,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Measure which long-range tokens are influential; trains the model first where that is still to do."""
    from olmo_sparsity.measure.shares import share_of_process

    share = share_of_process(shard, overwrite)
    loaded, folder = resolve(config, run, overrides)
    given: dict[str, Any] = {"num_windows": num_windows, "seed": seed, "data": data, "screen": screen}
    given["precision"] = None if precision is None else precision.value
    given["k"] = None if k is None else parse_k(k)
    given["selectors"] = selectors_of(selector)
    given["path"] = None if path is None else path.value
    given["save_candidates"] = True if save_candidates else None
    loaded = dataclasses.replace(loaded, influence=given_options(loaded.influence, given))
    loaded.check_k()
    from olmo_sparsity.measure.influence import measure
    from olmo_sparsity.view.console import print_summary

    train_first(loaded, folder, share)
    with interruptible():
        tables = measure(loaded, folder, out, overwrite, share)
    if is_complete(tables, share):
        print_summary(tables)


def validate(
    config: ConfigOption = None,
    run: RunOption = None,
    num_windows: Annotated[
        Optional[int], typer.Option("--num-windows", help="Windows of each suite and number of planted tokens.")
    ] = None,
    selector: Annotated[
        Optional[list[SelectorName]],
        typer.Option("--selector", help="Which selectors; may be given again. Default: all.", show_default=False),
    ] = None,
    out: Annotated[Optional[Path], typer.Option("--out", metavar="DIR", help="Folder of the tables.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Do the selectors find what is known to matter? Plants needles and correlations, and counts what is found."""
    from olmo_sparsity.measure.shares import share_of_process

    share = share_of_process(shard, overwrite)
    loaded, folder = resolve(config, run, overrides)
    given: dict[str, Any] = {"num_windows": num_windows, "selectors": selectors_of(selector)}
    loaded = dataclasses.replace(loaded, validation=given_options(loaded.validation, given))
    from olmo_sparsity.measure.validation import validate as validate_run
    from olmo_sparsity.view.console import print_detection

    train_first(loaded, folder, share)
    with interruptible():
        tables = validate_run(loaded, folder, out, overwrite, share)
    if is_complete(tables, share):
        print_detection(tables, as_json)


def context_curve(
    config: ConfigOption = None,
    run: RunOption = None,
    num_windows: Annotated[Optional[int], typer.Option("--num-windows", help="Windows to measure.")] = None,
    max_visible: Annotated[
        Optional[int], typer.Option("--max-visible", help="Longest visible context. Default: twice the full one.")
    ] = None,
    data: Annotated[
        Optional[str],
        typer.Option("--data", metavar="SOURCE", help="Text to measure: builtin, c4, or a file, folder or glob."),
    ] = None,
    out: Annotated[Optional[Path], typer.Option("--out", metavar="DIR", help="Folder of the table.")] = None,
    shard: ShardOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Does the model generalize in length? Measures the loss against the number of visible recent tokens."""
    from olmo_sparsity.measure.shares import share_of_process

    share = share_of_process(shard, overwrite)
    loaded, folder = resolve(config, run, overrides)
    given: dict[str, Any] = {"num_windows": num_windows, "data": data}
    loaded = dataclasses.replace(loaded, influence=given_options(loaded.influence, given))
    if max_visible is not None:
        loaded = dataclasses.replace(loaded, context_curve=ContextCurveConfig(max_visible))
    from olmo_sparsity.measure.context_curve import measure_context_curve
    from olmo_sparsity.view.console import print_curve

    train_first(loaded, folder, share)
    with interruptible():
        tables = measure_context_curve(loaded, folder, out, overwrite, share)
    if is_complete(tables, share):
        print_curve(tables)


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of tables.")],
    out: Annotated[
        Optional[Path], typer.Option("--out", metavar="DIR", help="Where to gather them; may be begun already.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong with each folder.")] = False,
) -> None:
    """Gather the parts that were measured on machines without a common file system, or --check that a folder has all."""
    from olmo_sparsity.tables.merging import check_tables, merge_folders

    if check == (out is not None):
        raise UserError("merge: either --check, or --out DIR to gather the folders in")
    if out is not None:
        merge_folders(folders, out)
    problems = 0
    for folder in [out] if out is not None else folders:
        result = check_tables(folder)
        problems += len(result.problems)
        for problem in result.problems[:MAX_PROBLEMS]:
            typer.echo(problem, err=True)
        if len(result.problems) > MAX_PROBLEMS:
            logger.info(f"{folder}: and {len(result.problems) - MAX_PROBLEMS} more")
        if not result.problems:
            print(result.summary)
    if problems:
        raise typer.Exit(2)
