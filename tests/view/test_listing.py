"""``olmo-sparsity list``, names of tables, and what is said where the newest of several measurements is shown."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import Messages
from made_up import made_up_tables
from made_up_runs import made_up_measurement, made_up_run
from planted_answers import ROWS, answers
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.reading import find_tables, named_tables
from olmo_sparsity.view.listing import read_listing, short_names

FIRST, SECOND, THIRD = "builtin-n1-aaaaaa", "c4-n1-bbbbbb", "c4-n1-cccccc"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; of the first, which gains, a measurement, one without a gain finished later, and one that is unfinished."""
    folder = tmp_path_factory.mktemp("listed") / "runs"
    run = made_up_run(folder / "a")
    made_up_run(folder / "below" / "b", seed=1)
    for name, long_gain, finished in (
        (FIRST, 0.6, "2026-01-02T03:04:05"),
        (SECOND, -0.6, "2026-01-05T06:07:08"),
        (THIRD, 0.6, ""),
    ):
        tables = made_up_measurement(run, long_gain, name=name)
        count = len(load(tables).windows)
        status = "complete" if finished else "running"
        source = name.partition("-")[0]
        changed = {"finished": finished, "status": status, "source": source, "num_windows": count}
        write_manifest(tables, {**read_json(tables / "manifest.json"), **changed})
    return folder


def printed(*arguments: object) -> str:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


def test_every_run_and_measurement_is_listed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    lines = printed("list", runs).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [
        [str(runs / "a"), "yes", "8", ""],
        [str(runs / "below" / "b"), "yes", "8", ""],
        ["aaaaaa", "2026-01-02 03:04", "120", "8 of 20", "passed, passed", "builtin, validation"],
        ["bbbbbb", "2026-01-05 06:07", "120", "8 of 20", "FAILED, FAILED", "c4, validation"],
        ["cccccc", "unfinished", "120", "8 of 20", "", "c4, validation"],
    ]


def test_a_run_has_its_row_and_steps_and_says_that_it_is_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    for name, entries in (("done", {"steps": 4321}), ("going", {"status": "running"})):
        run = made_up_run(tmp_path / name, row_len=14)
        write_manifest(run, {**read_json(run / "manifest.json"), **entries})
    lines = printed("list", tmp_path).splitlines()
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    assert cells == [[str(tmp_path / "done"), "yes", "14", "4321"], [str(tmp_path / "going"), "unfinished", "14", ""]]
    assert [(run.status, run.steps) for run in read_listing(tmp_path).runs] == [("complete", 4321), ("running", 0)]


def test_json_holds_the_whole_names_and_the_gates_of_the_summary(runs: Path) -> None:
    listed = json.loads(printed("list", runs, "--json"))
    assert [entry["run"] for entry in listed["runs"]] == [str(runs / "a"), str(runs / "below" / "b")]
    assert [entry["name"] for entry in listed["tables"]] == [FIRST, SECOND, THIRD]
    for entry in listed["tables"][:2]:
        summary = summarize(load(runs / "a" / "influence" / entry["name"]))
        assert (entry["gate"], entry["beyond_gate"]) == (summary.gate, summary.beyond_gate)
    assert listed["tables"][2]["gate"] is None and listed["tables"][2]["beyond_gate"] is None


@pytest.mark.parametrize(("num_documents", "words"), [(49, "not assessed, not assessed"), (50, "FAILED, FAILED")])
def test_too_few_documents_are_no_failed_gate(
    num_documents: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    run = made_up_run(tmp_path / "a")
    made_up_measurement(run, -0.6, name="few", num_documents=num_documents)
    assert f"│ {words}" in printed("list", tmp_path)
    (listed,) = read_listing(tmp_path).tables
    assert listed.gate == listed.beyond_gate == ("failed" if num_documents == 50 else "not-assessed")


def test_a_damaged_manifest_is_one_line_and_hides_nothing_else(tmp_path: Path) -> None:
    made_up_run(tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_text("{")
    listing = read_listing(tmp_path)
    assert [run.run for run in listing.runs] == [str(tmp_path / "good")]
    assert len(listing.unreadable) == 1 and str(tmp_path / "bad") in listing.unreadable[0]
    assert "".join(listing.unreadable[0].split()) in "".join(printed("list", tmp_path).split())


def test_a_folder_without_runs_says_so_and_a_missing_one_is_a_mistake(tmp_path: Path) -> None:
    assert "no runs here" in printed("list", tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        read_listing(tmp_path / "gone")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a-n1-1f", "a-n1-2f"], ["1f", "2f"]),
        (["x-1", "y-x-1"], ["x-1", "y-x-1"]),  # how the first ends, the second ends, too
        (["p-x-1", "q-x-1", "q-2"], ["p-x-1", "q-x-1", "2"]),
        (["alone"], ["alone"]),
    ],
)
def test_a_short_name_ends_one_name_only(names: list[str], short: list[str]) -> None:
    assert short_names(names) == short


def test_tables_are_found_by_how_their_name_ends(runs: Path) -> None:
    run = runs / "a"
    assert named_tables(Path("aaaaaa"), run) == named_tables(Path(FIRST), run) == run / "influence" / FIRST
    assert named_tables(Path("cccccc"), run) == Path("cccccc")  # unfinished
    assert named_tables(run / "influence" / FIRST, run) == run / "influence" / FIRST
    made_up_measurement(run, 0.6, name="other-aaaaaa")
    with pytest.raises(UserError, match=r"builtin-n1-aaaaaa and other-aaaaaa .* end so"):
        named_tables(Path("aaaaaa"), run)


def test_the_command_shows_the_tables_of_that_name(runs: Path) -> None:
    of_second = printed("summary", "--run", runs / "a", "--tables", "bbbbbb")
    assert of_second.startswith(str(runs / "a" / "influence" / SECOND))
    unknown = CliRunner().invoke(app, ["summary", "--run", str(runs / "a"), "--tables", "nothing"])
    assert isinstance(unknown.exception, UserError) and str(unknown.exception).startswith("nothing: ")


def test_it_is_said_that_there_are_other_measurements(tmp_path: Path, messages: Messages) -> None:
    run = made_up_run(tmp_path / "run")
    first = made_up_measurement(run, 0.6, name="2026-01-01")
    assert find_tables(run) == first and not messages.lines
    second = made_up_measurement(run, 0.6, name="2026-01-02")
    assert find_tables(run) == second
    assert messages.lines == [
        f"{second}: the newest measurement of {run}; another one is there (`olmo-sparsity list` lists them)"
    ]
    messages.clear()
    assert find_tables(second) == second and not messages.lines  # it was named


def test_the_gate_of_the_long_gain_comes_first(tmp_path: Path) -> None:
    """Of tables that pass it, and fail the gate beyond the training row. Copies that lie elsewhere are not listed."""
    run = made_up_run(tmp_path / "run")
    tables = made_up_tables(run / "influence" / "made-up", gain_beyond=-0.1, selectors=MAIN_SELECTORS)
    for copy in ("loose", "run/explore/letter", "run/validation/other"):  # as an explored document has them
        shutil.copytree(tables, tmp_path / copy)
    (listed,) = read_listing(tmp_path).tables
    assert (listed.gate, listed.beyond_gate) == ("passed", "failed")
    assert "passed, FAILED" in printed("list", tmp_path)


def test_tables_of_a_run_stand_by_kind_then_by_when_they_were_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A synthetic task has no text, lengths and gates. The manifest of the influence tables has no number of windows."""
    monkeypatch.setenv("COLUMNS", "150")
    run = made_up_run(tmp_path / "run")
    for name, finished in (("early-1", "2026-02-01T00:00:00"), ("late-0", "2026-02-03T00:00:00"), ("going-2", "")):
        tables = answers(run / "synthetic" / name, lambda length, k, place: ROWS)
        status = "complete" if finished else "running"
        write_manifest(tables, {**read_json(tables / "manifest.json"), "finished": finished, "status": status})
    tables = made_up_measurement(run, 0.6, name="last-3")
    write_manifest(tables, {**read_json(tables / "manifest.json"), "finished": "2026-02-09T00:00:00"})
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed("list", tmp_path).splitlines()]
    assert [[row[0], *row[2:]] for row in cells if len(row) == 6] == [
        ["3", "", "8 of 20", "passed, passed", "made up, validation"],
        ["synthetic 1", "120", "", "", ""],
        ["synthetic 0", "120", "", "", ""],
        ["synthetic 2", "120", "", "", ""],
    ]
