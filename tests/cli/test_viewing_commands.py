"""The commands that show results, as a user types them: which measurement they show, and where they write."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from pathlib import Path

import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.quantities import read_estimates

FIRST, NEWEST = "runs/tiny/influence/text-k3-aaa", "runs/tiny/influence/text-k5-bbb"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two measurements, and one that lies elsewhere."""
    work = tmp_path_factory.mktemp("viewing")
    for number, name in enumerate((FIRST, NEWEST, "loose")):
        (work / name).mkdir(parents=True)
        manifest = unlike_manifest(run_id=name, finished=f"2026-01-0{number + 1}", num_parameters=number)
        write_rows(work / name, manifest, unlike_rows(manifest, seed=number))
    return work


@pytest.fixture
def work(measured: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(measured)
    return measured


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *shlex.split(line)])
    app(standalone_mode=False)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ("--run runs/tiny", NEWEST),
        ("--run runs/tiny --tables aaa", FIRST),
        ("--run runs/tiny --tables text-k5-bbb", NEWEST),
        (f"--tables {FIRST}", FIRST),
        (f"--run runs/tiny --tables {FIRST}", FIRST),
        ("--tables loose", "loose"),
    ],
)
def test_which_measurement_is_shown(
    options: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(f"summary --json {options}", monkeypatch)
    assert json.loads(capsys.readouterr().out)["manifest"]["run_id"] == shown


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "figures --tables loose",
            "loose: these tables are not in a run folder; say with --out where to write",
        ),
        ("summary --tables loose --run runs/tiny", "loose: these tables are of no run, not of runs/tiny"),
        (f"report --tables {FIRST} --run runs/other", f"{FIRST}: these tables are of runs/tiny, not of runs/other"),
        ("summary --run runs/tiny --tables text", "no influence tables here"),
        ("summary --json --csv --run runs/tiny", "give one of --json and --csv"),
    ],
)
def test_tables_that_do_not_belong_to_what_is_named_are_refused(
    line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=said):
        run(line, monkeypatch)


def test_a_command_for_every_form(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for form in ("--json", "--csv", "--md", "--tex", ""):
        run(f"summary --run runs/tiny {form}", monkeypatch)
        printed[form] = capsys.readouterr().out
    values = read_estimates(work / NEWEST)["value"].tolist()
    assert [of["value"] for of in json.loads(printed["--json"])["estimates"]] == values
    assert [float(of["value"]) for of in csv.DictReader(io.StringIO(printed["--csv"]))] == values
    assert len(set(printed.values())) == 5


def test_figures_are_drawn_beside_the_run_or_where_the_user_says(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run("figures --run runs/tiny", monkeypatch)
    drawn = capsys.readouterr().out.split()
    assert {Path(path).parent for path in drawn} == {Path("runs/tiny/figures/text-k5-bbb")}
    assert all(Path(path).is_file() for path in drawn)
    run("figures --tables loose --out pictures --all", monkeypatch)
    every = capsys.readouterr().out.split()
    assert {Path(path).name for path in drawn} < {Path(path).name for path in every}
    assert {Path(path).parent for path in every} == {Path("pictures")}
