"""What a benchmark may write over, results of an earlier one, and how it says what is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_replaceable

WRITTEN = re.compile(rb'\A\{\n  "device": ')


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Turn a mistake of the user into one line and exit code 2."""
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def check_results(path: Path) -> None:
    """End the script with one line if the file that it is to write exists and is of another kind."""
    try:
        check_replaceable(path, WRITTEN.search, what="result")
    except UserError as error:
        sys.exit(str(error))
