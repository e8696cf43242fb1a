"""argv, printing, exit codes; no logic.

Commands import what they do after they have read what they are asked: torch takes seconds, a mistake should not.

Exit codes: 0 done, 2 a mistake of the user's (told in one line), 130 interrupted (all is saved).
"""

from __future__ import annotations

import dataclasses
import errno
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from olmo_sparsity import __version__
from olmo_sparsity.config import Config, ContextCurveConfig, Interrupted, UserError
from olmo_sparsity.config_files import config_folder, to_yaml
from olmo_sparsity.options import (
    ConfigOption,
    ContextName,
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
    say,
    selectors_of,
)

if TYPE_CHECKING:
    from olmo_sparsity.parts import Share

app = typer.Typer(
    name="olmo-sparsity",
    help="How few of the earlier tokens does a language model need? Train short-context OLMo models with PoSE, unmask "
    "the k most influential long-range tokens, and see how much of the loss comes back.",
    epilog="Each command does what the one before it left undone. Begin with: olmo-sparsity train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

export = typer.Typer(help="A trained model for other programs.", no_args_is_help=True)
app.add_typer(export, name="export")

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room, none of one's own, none for a file so large
MAX_PROBLEMS = 10  # of a folder, printed; one machine's failure can be thousands


def _train_first(config: Config, run: Path, share: Share) -> None:
    """Every measurement begins with a trained run, of this very experiment."""
    from olmo_sparsity.runs import FREE_TO_MEASURE, check_same_experiment, is_trained
    from olmo_sparsity.training import train as train_model

    if is_trained(run):
        check_same_experiment(run, config, FREE_TO_MEASURE)
        return
    if share.count > 1:
        raise UserError(f"{run}: not trained yet, and not by several processes; run `olmo-sparsity train` first, alone")
    say(f"{run}: not trained yet, so it is trained first")
    with _interruptible():
        train_model(config, run, say=say)


def _say_of(share: Share) -> Callable[[str], None]:
    """Of the processes in one terminal, one says what all of them would."""
    return say if share.leads else lambda line: None


def _is_whole(tables: Path, share: Share) -> bool:
    """Is there something to show, and is it this process that shows it."""
    from olmo_sparsity.parts import close

    left = close(tables)
    if left:
        say(f"{tables}: share {share.index} of {share.count} is done; {left} parts are left to the others")
    elif not share.leads:
        say(f"{tables}: share {share.index} of {share.count} is done, and with it all parts")
    return not left and share.leads


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command, without --overwrite, goes on from here") from None


@app.command()
def prepare(config: ConfigOption = None, run: RunOption = None, overrides: Overrides = None) -> None:
    """Turn the text into token files (OLMo's own format) and a tokenizer."""
    from olmo_sparsity.tokens import describe
    from olmo_sparsity.tokens import prepare as prepare_tokens

    loaded, _ = resolve(config, run, overrides)
    with _interruptible():
        folder = prepare_tokens(loaded.data)
    for line in describe(folder):
        say(line)
    print(folder)


@app.command()
def train(
    config: ConfigOption = None, run: RunOption = None, overwrite: OverwriteOption = False, overrides: Overrides = None
) -> None:
    """Train the model, or go on training it; prepares the text first where that is still to do."""
    loaded, folder = resolve(config, run, overrides)
    from olmo_sparsity.torchrun import own_place
    from olmo_sparsity.training import train as train_model

    with _interruptible():
        train_model(loaded, folder, overwrite, say, own_place())


@app.command()
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
    from olmo_sparsity.parts import own_share

    share = own_share(shard, overwrite)
    loaded, folder = resolve(config, run, overrides)
    given: dict[str, Any] = {"num_windows": num_windows, "seed": seed, "data": data, "screen": screen}
    given["precision"] = None if precision is None else precision.value
    given["k"] = None if k is None else parse_k(k)
    given["selectors"] = selectors_of(selector)
    given["path"] = None if path is None else path.value
    given["save_candidates"] = True if save_candidates else None
    loaded = dataclasses.replace(loaded, influence=given_options(loaded.influence, given))
    loaded.check_k()
    from olmo_sparsity.console import print_summary
    from olmo_sparsity.influence import measure

    _train_first(loaded, folder, share)
    with _interruptible():
        tables = measure(loaded, folder, out, overwrite, _say_of(share), share)
    if _is_whole(tables, share):
        print_summary(tables)


@app.command()
def summary(
    config: ConfigOption = None,
    run: RunOption = None,
    tables: Annotated[
        Optional[Path], typer.Option("--tables", metavar="DIR", help="An influence folder. Default: the run's newest.")
    ] = None,
    every: Annotated[bool, typer.Option("--every", help="Every k and context, classes and agreement, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, for programs.")] = False,
    overrides: Overrides = None,
) -> None:
    """The numbers of a measurement: for reading, or with --json for programs."""
    from olmo_sparsity.console import print_summary
    from olmo_sparsity.tables import newest_finished

    if tables is None:
        _, folder = resolve(config, run, overrides)
        tables = newest_finished(folder)
    print_summary(tables, every, as_json)


@app.command()
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
    from olmo_sparsity.parts import own_share

    share = own_share(shard, overwrite)
    loaded, folder = resolve(config, run, overrides)
    given: dict[str, Any] = {"num_windows": num_windows, "selectors": selectors_of(selector)}
    loaded = dataclasses.replace(loaded, validation=given_options(loaded.validation, given))
    from olmo_sparsity.console import print_detection
    from olmo_sparsity.validation import validate as validate_run

    _train_first(loaded, folder, share)
    with _interruptible():
        tables = validate_run(loaded, folder, out, overwrite, _say_of(share), share)
    if _is_whole(tables, share):
        print_detection(tables, as_json)


@app.command("context-curve")
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
    from olmo_sparsity.parts import own_share

    share = own_share(shard, overwrite)
    loaded, folder = resolve(config, run, overrides)
    given: dict[str, Any] = {"num_windows": num_windows, "data": data}
    loaded = dataclasses.replace(loaded, influence=given_options(loaded.influence, given))
    if max_visible is not None:
        loaded = dataclasses.replace(loaded, context_curve=ContextCurveConfig(max_visible))
    from olmo_sparsity.console import print_curve
    from olmo_sparsity.context_curve import measure_context_curve

    _train_first(loaded, folder, share)
    with _interruptible():
        tables = measure_context_curve(loaded, folder, out, overwrite, _say_of(share), share)
    if _is_whole(tables, share):
        print_curve(tables)


@app.command()
def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of tables.")],
    out: Annotated[
        Optional[Path], typer.Option("--out", metavar="DIR", help="Where to gather them; may be begun already.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only say what is wrong with each folder.")] = False,
) -> None:
    """Gather the parts that were measured on machines without a common file system, or --check that a folder has all."""
    from olmo_sparsity.merging import check_tables, gather

    if check == (out is not None):
        raise UserError("merge: either --check, or --out DIR to gather the folders in")
    if out is not None:
        gather(folders, out, say)
    problems = 0
    for folder in [out] if out is not None else folders:
        found, words = check_tables(folder)
        problems += len(found)
        for problem in found[:MAX_PROBLEMS]:
            say(problem)
        if len(found) > MAX_PROBLEMS:
            say(f"{folder}: and {len(found) - MAX_PROBLEMS} more")
        if not found:
            print(words)
    if problems:
        raise typer.Exit(2)


@app.command()
def report(
    config: ConfigOption = None,
    run: RunOption = None,
    tables: Annotated[
        Optional[Path], typer.Option("--tables", metavar="DIR", help="An influence folder. Default: the run's newest.")
    ] = None,
    windows: Annotated[
        int, typer.Option("--windows", help="Windows in the page: a random sample where there are more.")
    ] = 200,
    sample_seed: Annotated[int, typer.Option("--sample-seed", help="Seed of that sample.")] = 0,
    out: Annotated[
        Optional[Path],
        typer.Option("--out", metavar="FILE", help="The HTML file. Default: report.html beside the run's figures."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over what is there.")] = False,
    overrides: Overrides = None,
) -> None:
    """A measurement as one HTML file to look at: the answer, the charts, the windows with their words."""
    from olmo_sparsity.report import default_out, write_report
    from olmo_sparsity.tables import newest_finished

    if tables is None:
        _, folder = resolve(config, run, overrides)
        tables = newest_finished(folder)
    print(write_report(tables, out or default_out(tables, run), overwrite, windows, sample_seed))


@app.command()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run (its newest measurement) or an influence folder.")],
    window: Annotated[int, typer.Argument(metavar="WINDOW", help="Number of the window.")],
    selector: Annotated[
        Optional[SelectorName],
        typer.Option("--selector", help="Whose choice. Default: one that does not see the target."),
    ] = None,
    k: Annotated[Optional[int], typer.Option("--k", help="How many tokens it unmasks. Default: the most.")] = None,
    context: Annotated[ContextName, typer.Option("--context", help="real, or null: foreign text.")] = ContextName.real,
) -> None:
    """One window in the terminal: its words, which of them were chosen, the losses."""
    from olmo_sparsity.excerpts import find_tables
    from olmo_sparsity.show import show_window, terminal

    show_window(find_tables(run), window, selector and selector.value, k, context.value, terminal())


@app.command()
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN RUN...", help="Runs or influence folders; RUN:kl compares by that selector."),
    ],
    every: Annotated[bool, typer.Option("--every", help="Every selector and k.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="All of it, for programs.")] = False,
    out: Annotated[
        Optional[Path], typer.Option("--out", metavar="FILE", help="Also write a page with table and figure.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over what is there.")] = False,
) -> None:
    """Measurements side by side, differences from the first with intervals; paired where the windows are the same."""
    from olmo_sparsity.comparison import read_subjects, write_comparison
    from olmo_sparsity.console import print_comparison

    subjects = read_subjects(runs)
    if out is not None:
        write_comparison(subjects, out, overwrite)
    print_comparison(subjects, every, as_json)
    if out is not None:
        say(str(out))


@export.command("hf")
def export_hf(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A trained run; its newest checkpoint is taken.")],
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write: new, or empty.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
) -> None:
    """Model and tokenizer as a Hugging Face folder, which transformers loads without any code of ours."""
    from olmo_sparsity.export import export_hf as write_hf

    exported = write_hf(run, out, overwrite, say)
    say(
        f"{exported.architecture}, {exported.num_parameters / 1e6:.2f}M parameters; loaded by transformers, its logits "
        f"differ from the run's model by {exported.difference:.2g} at most ({exported.num_logits:,} compared)"
    )
    print(out)


@app.command("config")
def show_config(config: ConfigOption = None, run: RunOption = None, overrides: Overrides = None) -> None:
    """Print the configuration that the other commands would use, every key explained."""
    loaded, _ = resolve(config, run, overrides)
    folder = config_folder()
    shipped = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml"))
    print(f"# The configurations that ship: {', '.join(shipped)}")
    print(to_yaml(loaded, explain=True), end="")


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2; a bug keeps its traceback."""
    # olmo calls omegaconf by a name that newer versions have renamed; nothing that a user could act on.
    warnings.filterwarnings("ignore", message="register_new_resolver", category=UserWarning)
    try:
        app()
    except UserError as error:
        say(f"olmo-sparsity: error: {error}")
        raise SystemExit(2) from None
    except Interrupted as error:
        say(f"olmo-sparsity: {error}")
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        say(
            f"olmo-sparsity: error: cannot write any more ({error.strerror}); make room on the disk and run the same command "
            "again, it goes on from what was saved"
        )
        raise SystemExit(2) from None
