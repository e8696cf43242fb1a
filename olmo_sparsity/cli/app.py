"""The application: its commands, its messages, its exit codes.

Commands import what they need after their arguments are read: torch takes seconds to import, a mistake should not.

Exit codes: 0 done, 2 a mistake of the user's (told in one line), 130 interrupted (all is saved).
"""

from __future__ import annotations

import errno
import sys
import warnings
from typing import Annotated

import typer

from olmo_sparsity import __version__
from olmo_sparsity.cli import measuring, training, viewing
from olmo_sparsity.cli.messages import set_up_messages
from olmo_sparsity.errors import Interrupted, UserError

# No space on the device, quota used up, file larger than allowed.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = typer.Typer(
    name="olmo-sparsity",
    help="How few of the earlier tokens does a language model need? Train short-context OLMo models with PoSE, unmask "
    "the k most influential long-range tokens, and see how much of the loss comes back.",
    epilog="Each command does what the one before it left undone. Begin with: olmo-sparsity train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
export = typer.Typer(help="A trained model for other programs.", no_args_is_help=True)

app.command("prepare")(training.prepare)
app.command("train")(training.train)
app.command("influence")(measuring.influence)
app.command("summary")(viewing.summary)
app.command("validate")(measuring.validate)
app.command("context-curve")(measuring.context_curve)
app.command("merge")(measuring.merge)
app.command("figures")(viewing.figures)
app.command("report")(viewing.report)
app.command("show")(viewing.show)
app.command("compare")(viewing.compare)
app.command("config")(training.show_config)
app.add_typer(export, name="export")
export.command("hf")(training.export_hf)


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also show details, with times.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show warnings and results only.")] = False,
) -> None:
    set_up_messages(verbose=verbose, quiet=quiet)


def _print_error(line: str) -> None:
    print(f"olmo-sparsity: {line}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line: a user's mistake is one line and exit code 2, a bug keeps its traceback."""
    # olmo calls omegaconf by a name that newer versions have renamed; a user can do nothing about it.
    warnings.filterwarnings("ignore", message="register_new_resolver", category=UserWarning)
    try:
        app()
    except UserError as error:
        _print_error(f"error: {error}")
        raise SystemExit(2) from None
    except Interrupted as error:
        _print_error(str(error))
        raise SystemExit(130) from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        _print_error(
            f"error: cannot write any more ({error.strerror}); make room on the disk and run the same command again, it "
            "continues from what was saved"
        )
        raise SystemExit(2) from None
