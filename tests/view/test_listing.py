"""`list`: one row a measurement, with the numbers of its frame."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import write_json
from olmo_sparsity.statistics.quantities import pick, read_estimates
from olmo_sparsity.view.listing import print_listing, read_listing


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two measurements of one run, the second unfinished; one with few documents and no training row; a run without any."""
    folder = tmp_path_factory.mktemp("listing") / "runs"
    for run, name, documents, changes in (
        ("one", "text-k1-0aaaaa", 60, {"finished": "2026-01-02"}),
        ("one", "text-k8-0bbbbb", 60, {"finished": "2026-01-01", "status": "running"}),
        ("two", "text-k1-0ccccc", 9, {"train_len": None}),
    ):
        tables = folder / run / "influence" / name
        tables.mkdir(parents=True)
        manifest = unlike_manifest(train_len=changes.pop("train_len", 14), **changes)  # type: ignore[arg-type]
        write_rows(tables, {**manifest, "run": run}, unlike_rows(manifest, num_documents=documents))
    (folder / "three").mkdir()
    write_json(folder / "three" / "manifest.json", {"kind": "run", "status": "running", "config": {}})
    (folder / "four").mkdir()
    (folder / "four" / "manifest.json").write_text("{")
    return folder


def test_the_numbers_are_those_of_the_frame(runs: Path) -> None:
    entries = {(Path(entry["run"]).name, entry["name"]): entry for entry in read_listing(runs)}
    entry, frame = entries["one", "text-k1-0aaaaa"], read_estimates(runs / "one/influence/text-k1-0aaaaa")
    assert (entry["windows"], entry["selector"], entry["k"]) == (
        len(unlike_rows(frame.attrs["manifest"])["windows"]),
        "kl",
        1,
    )
    for name, row in (
        ("gain", pick(frame, "long_gain_nats")),
        ("gain beyond row", pick(frame, "gain_beyond_nats")),
        ("R", pick(frame, "recovered_fraction", selector="kl", context="real", k=1)),
    ):
        assert row is not None
        assert entry[name] == {end: row[end] for end in ("value", "low", "high")}


def test_one_row_a_measurement_and_one_for_a_run_without_any(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_listing(runs)
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    found = {(Path(row[0]).name, row[1]) for row in rows if Path(row[0]).parent == runs}
    assert {("one", "0aaaaa"), ("one", "0bbbbb")} < found
    assert {run for run, _ in found} == {"one", "two", "three"}
    assert str(runs / "four" / "manifest.json") in out
    (unfinished,) = (row for row in rows if row[1:2] == ["0bbbbb"])
    assert unfinished[2:] == ["running"]
    (few,) = (row for row in rows if Path(row[0]).name == "two")
    assert few[-1].endswith("?")  # no interval, so no R and no gain that is shown


def test_json_has_no_number_that_json_has_not(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(runs, as_json=True)
    entries = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    (few,) = (entry for entry in entries if Path(entry["run"]).name == "two")
    assert few["gain"]["low"] is None
    assert few["gain beyond row"] is None
    assert few["R"] is None


def test_a_folder_without_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(tmp_path)
    assert str(tmp_path) in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(UserError, match="no such folder"):
        print_listing(tmp_path / "none")
