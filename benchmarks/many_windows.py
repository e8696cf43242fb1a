"""Repeats the windows of a measurement until there are many: ``python -m benchmarks.many_windows TABLES NEW WINDOWS``.

The tables are valid, and every repetition has documents of its own, so means stay as they are and intervals become narrow. It
makes a measurement of a million windows, to read and draw, out of a small one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from tqdm import tqdm

from benchmarks.results import mistakes_in_one_line
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import write_manifest
from olmo_sparsity.tables import read_manifest, read_table, write_part


def repeat(tables: Path, folder: Path, num_windows: int) -> None:
    """Write an influence folder of ``num_windows`` windows, a part for each repetition of the windows of ``tables``."""
    manifest = read_manifest(tables)
    contents = {name: read_table(tables, name) for name in ("selections", "windows")}
    num_own = len(contents["windows"])
    num_parts = -(-num_windows // num_own)
    for part in tqdm(range(num_parts), desc=str(folder), unit="part"):
        kept = pc.field("window_id") < min(num_own, num_windows - part * num_own)
        for name, table in contents.items():
            of_part = table.filter(kept)
            changed = {
                "window_id": pc.add(of_part["window_id"], pa.scalar(part * num_own, pa.int64())),
                "doc_id": pc.binary_join_element_wise(f"{part:x}", pc.utf8_slice_codeunits(of_part["doc_id"], 5), "-"),
            }
            for column, values in changed.items():
                at = of_part.column_names.index(column)
                of_part = of_part.set_column(at, of_part.schema.field(column), values)
            write_part(folder, name, part=part, content=of_part, metadata={"run_id": manifest["run_id"]})
    write_manifest(folder, {**manifest, "num_windows": num_windows, "num_parts": num_parts})


@mistakes_in_one_line()
def main() -> None:
    """Write the tables that the command line asks for."""
    given = sys.argv[1:]
    if len(given) != 3 or not given[2].isdecimal() or int(given[2]) < 1:
        raise UserError(
            "many_windows TABLES NEW WINDOWS: give a measurement, a new folder and a positive number of windows"
        )
    if Path(given[1]).exists():
        raise UserError(f"{given[1]}: exists; name a new folder")
    repeat(Path(given[0]), Path(given[1]), int(given[2]))


if __name__ == "__main__":
    main()
