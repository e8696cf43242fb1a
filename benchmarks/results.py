"""What a benchmark may write over: results of an earlier one."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import check_replaceable

WRITTEN = {
    ".json": re.compile(rb'\A\{\n  "(device|setting)": '),
    ".png": re.compile(rb"tEXtSoftware\0Matplotlib "),
    ".pdf": re.compile(rb"/Producer \(Matplotlib "),
}


def check_results(folder: Path, *names: str) -> None:
    """End the script with one line if a file that it is to write exists and is of another kind."""
    try:
        for name in names:
            check_replaceable(folder / name, WRITTEN[Path(name).suffix].search, what="result")
    except UserError as error:
        sys.exit(str(error))
