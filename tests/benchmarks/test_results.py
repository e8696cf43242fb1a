"""A benchmark replaces results of an earlier one, and no other files."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pytest

from benchmarks import controls, coverage, generated_tables, influence, learned_choice, long_peers, long_windows
from benchmarks.results import check_results
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import write_json


def test_results_of_an_earlier_benchmark_are_replaced(tmp_path: Path) -> None:
    write_json(tmp_path / "table.json", {"device": "cpu"})
    write_json(tmp_path / "long_windows.json", {"setting": {}})
    for ending in (".png", ".pdf"):
        plt.figure(figsize=(1, 1)).savefig(tmp_path / f"methods{ending}")
    plt.close("all")
    check_results(tmp_path, "table.json", "long_windows.json", "methods.png", "methods.pdf", "scaling.png")


@pytest.mark.parametrize(
    ("benchmark", "name"), [(influence, "table.json"), (influence, "scaling.png"), (long_windows, "long_windows.json")]
)
def test_another_file_ends_the_benchmark_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, benchmark: object, name: str
) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    monkeypatch.setattr(sys, "argv", ["benchmark", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"{name}: this is no result that olmo-sparsity wrote"):
        benchmark.main()  # type: ignore[attr-defined]
    assert [path.read_text() for path in tmp_path.iterdir()] == ['{"mine": 1}']


def test_the_peers_do_not_write_into_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "long_peers.json").write_text("mine")
    for writes in (False, True):
        with pytest.raises(UserError, match="holds something else than results"):
            long_peers.check_setting(tmp_path, {"seed": 0}, writes=writes)
    assert [path.name for path in tmp_path.iterdir()] == ["long_peers.json"]


@pytest.mark.parametrize(
    ("benchmark", "options", "words"),
    [
        *(
            (coverage, ["--experiments", n, "--parts"], f"--experiments {n}: 100 run at once")
            for n in ("150", "50", "0", "-100")
        ),
        (coverage, ["--tables", "nope"], "nope: there are no influence tables here"),
        (controls, ["--run", "nope"], "nope/config.yaml: cannot read this configuration"),
        *(
            (generated_tables, of, "give a new folder and a positive number of windows")
            for of in ([], ["new"], ["new", "few"], ["new", "0"], ["new", "9", "other"])
        ),
        (generated_tables, [".", "9"], ".: exists; name a new folder"),
        (learned_choice, ["--run", "nope", "--num-sets", "0"], "--num-sets 0: the choice is learned from"),
        (long_windows, ["--model", "/no/such/folder"], "/no/such/folder: no such folder or file"),
        (long_windows, ["--sizes", "8", "0"], "--sizes, --local-len: a window has at least one"),
        (long_windows, ["--local-len", "0"], "--sizes, --local-len: a window has at least one"),
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
