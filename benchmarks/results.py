"""What a benchmark may write over, results of an earlier one, and how it says what is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import check_replaceable

WRITTEN = {
    ".json": re.compile(rb'\A\{\n  "device": '),
    ".png": re.compile(rb"tEXtSoftware\0Matplotlib "),
    ".pdf": re.compile(rb"/Producer \(Matplotlib "),
}


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Turn a mistake of the user into one line and exit code 2."""
    try:
        yield
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def check_results(folder: Path, *names: str) -> None:
    """End the script with one line if a file that it is to write exists and is of another kind."""
    try:
        for name in names:
            check_replaceable(folder / name, WRITTEN[Path(name).suffix].search, what="result")
    except UserError as error:
        sys.exit(str(error))
