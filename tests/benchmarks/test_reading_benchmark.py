"""The benchmark of reading says how large the tables are that it made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import reading
from benchmarks.generated_tables import write_tables
from olmo_sparsity.tables.reading import read_parts


def test_rows_are_those_of_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[int] = []

    def run(module: str, *arguments: str) -> reading.Cost:
        if module == "benchmarks.generated_tables":
            folder, num_windows = Path(arguments[0]), int(arguments[1])
            write_tables(folder, num_windows, windows_per_part=20)
            found.append(
                sum(part.num_rows for table in ("windows", "selections") for part in read_parts(folder, table))
            )
        return reading.Cost(1.0, 1.0, 1.0)

    monkeypatch.setattr(reading, "run", run)
    monkeypatch.setattr(sys, "argv", ["reading", "--windows", "30"])
    reading.main()
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[:2] for line in lines] == [["30", str(found[0])]] * 3
    assert found == [30 * 23]
