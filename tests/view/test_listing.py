"""`list`: one row a measurement, with the numbers of its frame."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import write_json
from olmo_sparsity.statistics.quantities import pick, read_estimates
from olmo_sparsity.view.listing import print_listing


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two measurements of one run, one unfinished; one with few documents and no row; a run without any; a damaged one."""
    folder = tmp_path_factory.mktemp("listing") / "runs"
    for run, name, documents, train_len, status in (
        ("one", "text-k1-0aaaaa", 60, 14, "complete"),
        ("one", "mine", 60, 14, "running"),
        ("two", "text-k1-0ccccc", 9, None, "complete"),
    ):
        finished = {"finished": "1"} if status == "complete" else {}
        manifest = unlike_manifest(train_len=train_len, status=status, **finished)
        tables = folder / run / "influence" / name
        tables.mkdir(parents=True)
        write_rows(tables, {**manifest, "run": run}, unlike_rows(manifest, num_documents=documents))
    shutil.copytree(tables, folder / "two" / "explore" / "text-0dddddd")  # an explored document
    (folder / "three").mkdir()
    write_json(folder / "three" / "manifest.json", {"kind": "run", "status": "running", "config": {}})
    (folder / "four").mkdir()
    (folder / "four" / "manifest.json").write_text("{")
    return folder


def test_the_numbers_are_those_of_the_frame(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_listing(runs, as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    names = [entry["name"] for entry in found if Path(entry["run"]).name in ("one", "two")]
    assert names == ["text-k1-0aaaaa", "mine", "text-k1-0ccccc"]
    entries = {(Path(entry["run"]).name, entry["name"]): entry for entry in found}
    entry, frame = entries["one", "text-k1-0aaaaa"], read_estimates(runs / "one/influence/text-k1-0aaaaa")
    assert (entry["windows"], entry["selector"], entry["k"]) == (frame["n_windows"].max(), "kl", 1)
    for name, row in (
        ("gain", pick(frame, "long_gain_nats")), ("gain beyond row", pick(frame, "gain_beyond_nats")),
        ("R", pick(frame, "recovered_fraction", selector="kl", context="real", k=1)),
    ):  # fmt: skip
        assert row is not None and entry[name] == {end: row[end] for end in ("value", "low", "high")}
    few = entries["two", "text-k1-0ccccc"]
    assert few["gain"]["low"] is None and few["gain beyond row"] is None and few["R"] is None


def test_one_row_a_measurement_and_one_for_a_run_without_any(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_listing(runs)
    out = capsys.readouterr().out
    rows = {tuple(line.split()[:3]): line.split() for line in out.splitlines() if line.startswith(f"{runs}/")}
    found = {(Path(run).name, *others) for run, *others in rows}
    windows = str(read_estimates(runs / "one/influence/text-k1-0aaaaa")["n_windows"].max())
    assert {("one", "0aaaaa", windows), ("one", "mine", "running"), ("three", "training", "running")} <= found
    (few,) = [line for line in rows.values() if line[1] == "0ccccc"]
    assert few[-1].endswith("?")  # no interval, so no R and no gain that is shown
    assert str(runs / "four" / "manifest.json") in out
    print_listing(tmp_path)
    assert str(tmp_path) in capsys.readouterr().out.replace("\n", "")
    with pytest.raises(UserError, match="no such folder"):
        print_listing(tmp_path / "none")
