"""How the scripts of figures end at a mistake of the user: one line on standard error, and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from olmo_sparsity.errors import UserError


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Turn a mistake, or an error of the operating system about a file, into one line and exit code 2."""
    try:
        yield
    except UserError as error:
        line = str(error)
    except OSError as error:
        if error.errno is None:  # not of the operating system
            raise
        line = f"{error.filename or 'a file cannot be read or written'}: {error.strerror}"
    else:
        return
    typer.echo(f"analysis: error: {line}", err=True)
    raise typer.Exit(2)
