"""The command line application: its commands and global options.

Commands import torch only after their arguments are checked, because the import takes seconds.
"""

from __future__ import annotations

import warnings
from typing import Annotated

import typer

from olmo_sparsity import __version__
from olmo_sparsity.cli import explaining, measuring, synthetic, training, viewing
from olmo_sparsity.cli.endings import run
from olmo_sparsity.cli.messages import Program, note_option, set_up_asked_messages

app = typer.Typer(
    name="olmo-sparsity",
    cls=Program,
    help="How few of the earlier tokens does a language model need? Train short-context OLMo models with PoSE, unmask "
    "the k most influential long-range tokens, and measure how much of the long-context gain they recover.",
    epilog="A command first runs the earlier commands that it depends on, if they have not been run. Start with: "
    "olmo-sparsity train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
export = typer.Typer(help="Export a trained model for other programs.", no_args_is_help=True)

app.command("prepare")(training.prepare)
app.command("train")(training.train)
app.command("influence")(measuring.influence)
app.command("summary")(viewing.summary)
app.command("validate")(measuring.validate)
app.command("context-curve")(measuring.context_curve)
app.command("explain")(explaining.explain)
app.command("merge")(measuring.merge)
app.command("figures")(viewing.figures)
app.command("report")(viewing.report)
app.command("show")(viewing.show)
app.command("compare")(viewing.compare)
app.command("config")(training.show_config)
app.add_typer(export, name="export")
export.command("hf")(training.export_hf)
synth = typer.Typer(help="Synthetic tasks, whose dependencies are known.", no_args_is_help=True)
app.add_typer(synth, name="synth")
synth.command("train")(synthetic.synth_train)
synth.command("eval")(synthetic.synth_eval)
synth.command("bridge")(synthetic.synth_bridge)


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
    # olmo calls a function of omegaconf that newer versions have renamed; the warning does not help a user.
    warnings.filterwarnings("ignore", message="register_new_resolver", category=UserWarning)
    raise SystemExit(run(app))
