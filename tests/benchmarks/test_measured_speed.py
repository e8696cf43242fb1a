"""A benchmark replaces results of an earlier one, and no other files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import coverage, engine, many_windows
from benchmarks.results import check_results
from olmo_sparsity.files import write_json


def test_results_of_an_earlier_benchmark_are_replaced(tmp_path: Path) -> None:
    write_json(tmp_path / "table.json", {"device": "cpu"})
    check_results(tmp_path / "table.json")


def test_another_file_ends_the_benchmark_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table.json").write_text('{"mine": 1}')
    monkeypatch.setattr(sys, "argv", ["benchmark", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"table\.json: no result that olmo-sparsity wrote"):
        engine.main()
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"mine": 1}']


@pytest.mark.parametrize(
    ("benchmark", "options", "words"),
    [
        *(
            (coverage, ["--experiments", n, "--parts"], f"--experiments {n}: 100 run at once")
            for n in ("150", "50", "0", "-100")
        ),
        (coverage, ["--parts", "--tables", "nope"], "nope: there are no influence tables here"),
        *(
            (many_windows, of, "give a measurement, a new folder and a positive number of windows")
            for of in ([], ["old", "new"], ["old", "new", "few"], ["old", "new", "0"], ["old", "new", "9", "other"])
        ),
        (many_windows, ["old", ".", "9"], ".: exists; name a new folder"),
        (many_windows, ["old", "new", "9"], "old: there are no influence tables here"),
    ],
)
def test_a_mistake_ends_in_one_line_before_anything_is_written(
    benchmark: ModuleType,
    options: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark", *options])
    with pytest.raises(SystemExit) as error:
        benchmark.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and words in line
    assert not list(tmp_path.iterdir())
