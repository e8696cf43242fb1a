"""What a benchmark may write over, results of an earlier one, and how it says what is wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import check_replaceable

WRITTEN = {
    ".json": re.compile(rb'\A\{\n  "(device|setting)": '),
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


def check_same_setting(known: Mapping[str, Any], setting: Mapping[str, Any], *, where: str, advice: str) -> None:
    """Check that what is kept was measured in the setting that is asked for.

    Args:
        known: the setting of what is kept; it may have other entries, too.
        setting: what is asked for.
        where: what is kept lies, for the error.
        advice: what to do if the settings differ.

    Raises:
        UserError: they differ.
    """
    for name, value in setting.items():
        if known.get(name) != value:
            raise UserError(
                f"{where}: it holds results with {name} = {known.get(name)}, where {value} is asked for; {advice}"
            )


def check_results(folder: Path, *names: str) -> None:
    """End the script with one line if a file that it is to write exists and is of another kind."""
    try:
        for name in names:
            check_replaceable(folder / name, WRITTEN[Path(name).suffix].search, what="result")
    except UserError as error:
        sys.exit(str(error))
