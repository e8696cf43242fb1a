"""The command line application: its commands and global options.

Commands import torch only after their arguments are checked, because the import takes seconds.
"""

from __future__ import annotations

from typing import Annotated

import typer

from olmo_sparsity import __version__
from olmo_sparsity.cli import exploring, measuring, training, viewing
from olmo_sparsity.cli import synth as synthetic
from olmo_sparsity.cli.endings import run
from olmo_sparsity.cli.messages import Command, Group, Program, note_option, set_up_asked_messages

app = typer.Typer(
    name="olmo-sparsity",
    cls=Program,
    help="How few of the earlier tokens does a language model need? Train short-context OLMo models with PoSE, unmask "
    "the k most influential long-range tokens, and measure how much of the long-context gain they recover.",
    epilog="Commands that measure train first if the run is not trained; figures also measures first. Start with: "
    "olmo-sparsity train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
export = typer.Typer(cls=Group, help="Export a trained model for other programs.", no_args_is_help=True)
synth = typer.Typer(cls=Group, help="Synthetic tasks with known dependencies.", no_args_is_help=True)

for group, name, function in (
    (app, "prepare", training.prepare),
    (app, "train", training.train),
    (app, "influence", measuring.influence),
    (app, "list", viewing.list_runs),
    (app, "summary", viewing.summary),
    (app, "explore", exploring.explore),
    (app, "merge", measuring.merge),
    (app, "figures", viewing.figures),
    (app, "report", viewing.report),
    (app, "show", exploring.show),
    (app, "compare", viewing.compare),
    (app, "hypothesis", viewing.hypothesis),
    (app, "config", training.show_config),
    (export, "hf", training.export_hf),
    (synth, "train", synthetic.synth_train),
    (synth, "eval", synthetic.synth_eval),
    (synth, "summary", synthetic.synth_summary),
):
    group.command(name, cls=Command)(function)
app.add_typer(export, name="export")
app.add_typer(synth, name="synth")


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose",
            "-v",
            callback=note_option,
            expose_value=False,
            help="Show more messages, with time and module.",
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            callback=note_option,
            expose_value=False,
            help="Show only warnings and results; takes precedence over --verbose.",
        ),
    ] = False,
) -> None:
    set_up_asked_messages(context)


def main() -> None:
    """Run the command line. A mistake of the user ends it with one line and exit code 2, a bug with a traceback."""
    raise SystemExit(run(app))
