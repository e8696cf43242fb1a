"""Shares of a measurement; processes that are killed at every step, and processes that start at the same time."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import Messages
from started_commands import run_cli, start_command, starts_of_python
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import manifest_of_kind, read_json
from olmo_sparsity.measure import parts
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.parts import Share, is_measured, measure_parts, share_of_process
from olmo_sparsity.model.devices import take_own_gpu
from olmo_sparsity.tables import finalize, missing_parts, schemas

TABLES = ("windows", "selections")
FACTS: dict[str, Any] = {
    "kind": "influence",
    "run_id": "abc",
    "num_windows": 23,
    "context": {"local_len": 8, "full_len": 12, "num_long_range": 4},
}


def measure_part(chosen: np.ndarray) -> dict[str, pa.Table]:
    schema_of = schemas(FACTS["context"]["num_long_range"])
    return {
        name: pa.table([_made_up(field, chosen) for field in schema_of[name]], schema=schema_of[name])
        for name in TABLES
    }


def _made_up(field: pa.Field, chosen: np.ndarray) -> pa.Array:
    """Return a column: numbers are those of the windows or their roots, texts ``a``; there are no lists."""
    if pa.types.is_nested(field.type):
        return pa.nulls(len(chosen), field.type)
    if pa.types.is_string(field.type):
        return pa.array(["a"] * len(chosen))
    return pa.array(np.sqrt(chosen) if pa.types.is_floating(field.type) else chosen).cast(field.type)


def measure_made_up(folder: Path, share: Share = parts.WHOLE, overwrite: bool = False, **facts: object) -> None:
    measure_parts(folder, {**FACTS, **facts}, part_size=4, measure_part=measure_part, overwrite=overwrite, share=share)


def part_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/*.parquet"))}


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up measurement in 6 parts, written by one process without interruption."""
    monkeypatch.setattr(parts, "environment", dict)  # it runs git
    measure_made_up(tmp_path / "whole")
    return tmp_path / "whole"


def in_a_child(action: Callable[[], None]) -> int:
    """Run an action in a forked process, and return its process ID."""
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return child


# --- shares ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shard", "variables", "share"),
    [
        (None, {}, Share(0, 1)),
        ("0/1", {}, Share(0, 1)),
        ("2/3", {}, Share(2, 3)),
        (None, {"RANK": "1", "WORLD_SIZE": "2"}, Share(1, 2, is_leader=False)),
        ("1/3", {"RANK": "0", "WORLD_SIZE": "2"}, Share(2, 6)),
        ("1/3", {"RANK": "1", "WORLD_SIZE": "2"}, Share(3, 6, is_leader=False)),
        (None, {"RANK": "3"}, Share(0, 1)),  # set by another launcher
    ],
)
def test_shares(shard: str | None, variables: dict[str, str], share: Share) -> None:
    assert share_of_process(shard, overwrite=False, variables=variables) == share


@pytest.mark.parametrize("shard", ["2/2", "0/0", "1", "a/b", "-1/2", "1/2/3", ""])
def test_an_invalid_shard_is_refused(shard: str) -> None:
    with pytest.raises(UserError, match="I from 0 to N - 1"):
        share_of_process(shard, overwrite=False, variables={})


def test_a_share_may_not_overwrite() -> None:
    assert share_of_process("0/1", overwrite=True, variables={}) == Share(0, 1)
    for shard, variables in (("0/2", {}), (None, {"RANK": "0", "WORLD_SIZE": "2"})):
        with pytest.raises(UserError, match="would delete what the others measure"):
            share_of_process(shard, overwrite=True, variables=variables)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_shares_together_are_the_whole(whole: Path, tmp_path: Path, count: int) -> None:
    out = tmp_path / "out"
    for index in reversed(range(count)):
        before = set(part_bytes(out))
        measure_made_up(out, Share(index, count))
        new = {int(name[-13:-8]) for name in set(part_bytes(out)) - before}
        assert new == set(range(index, 6, count))
        complete = read_json(out / "manifest.json")["status"] == "complete"
        assert complete == (finalize(out) == 0) == (index == 0)
    assert part_bytes(out) == part_bytes(whole)
    sessions = [read_json(path)["share"] for path in (out / "sessions").iterdir()]
    assert sorted(sessions) == [
        f"{index}/{count}" for index in range(min(count, 6))
    ]  # processes without parts write no session


def test_each_rank_takes_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of its number on its own machine, the second of two, which have nine processes each and four GPUs."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    take_own_gpu("auto")  # not under torchrun
    for local, device in ((3, "auto"), (5, "cuda"), (2, "cpu"), (2, "cuda:0")):
        for name, value in (("RANK", 9 + local), ("WORLD_SIZE", 18), ("LOCAL_RANK", local), ("LOCAL_WORLD_SIZE", 9)):
            monkeypatch.setenv(name, str(value))
        take_own_gpu(device)
    assert chosen == [3, 1]


# --- several processes in one folder ---------------------------------------------------------------------------------


def test_killed_at_every_step_a_rerun_gives_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process kills itself before its 1st, 2nd, ... file system call; the next process resumes."""
    monkeypatch.setattr(parts, "environment", dict)
    measure_made_up(tmp_path / "whole", num_windows=10)
    expected = part_bytes(tmp_path / "whole")
    write_table = pq.write_table
    steps = [(os, "replace"), (os, "fsync"), (os, "link"), (Path, "mkdir"), (Path, "write_text"), (Path, "unlink")]
    kills = 0
    for at in range(1, 200):

        def killed_at_a_step(at: int = at, to: Path = tmp_path / f"out{at}") -> None:
            counter = iter(range(1, 10_000))

            def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
                def step(*arguments: Any, **options: Any) -> Any:
                    if next(counter) != at:
                        return real(*arguments, **options)
                    if real is write_table and isinstance(arguments[1], Path):  # in the middle of writing
                        real(*arguments, **options)
                        os.truncate(arguments[1], arguments[1].stat().st_size // 2)
                    os.kill(os.getpid(), signal.SIGKILL)

                return step

            for owner, name in steps:
                setattr(owner, name, deadly(getattr(owner, name)))
            pq.write_table = deadly(write_table)
            measure_made_up(to, num_windows=10)

        out = tmp_path / f"out{at}"
        _, status = os.waitpid(in_a_child(killed_at_a_step), 0)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            break
        kills += 1
        before = {path: path.stat().st_ino for path in out.glob("*/*.parquet")}
        for name, content in part_bytes(out).items():
            assert content == expected[name]
        assert is_measured(out, "influence", run_id="abc") <= (len(before) == 6)
        measure_made_up(out, num_windows=10)
        assert part_bytes(out) == expected
        parts_kept = {path for path, inode in before.items() if path.stat().st_ino == inode}
        assert len(before) - len(parts_kept) <= 1  # a table of the part that was being written
        assert read_json(out / "manifest.json")["status"] == "complete"
    assert kills > 20


def test_processes_that_begin_and_end_at_once(whole: Path, tmp_path: Path) -> None:
    """Four processes meet at the empty folder and at the last part; two of them measure the same share."""
    for attempt in range(10):
        out, (wait, begin) = tmp_path / f"out{attempt}", os.pipe()

        def work(index: int, out: Path = out, wait: int = wait, begin: int = begin) -> None:
            os.close(begin)
            os.read(wait, 1)  # returns when the parent closes the other end
            is_measured(out, "influence", run_id="abc")
            measure_made_up(out, Share(index, 3))

        children = [in_a_child(lambda index=index, work=work: work(index)) for index in (0, 1, 2, 2)]  # type: ignore[misc]
        os.close(begin)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        assert read_json(out / "manifest.json")["status"] == "complete"
        assert part_bytes(out) == part_bytes(whole)
        os.close(wait)


def test_a_folder_that_fills_during_the_check_is_accepted(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process starts and finishes just after this one has looked for the manifest and not found it."""
    out, really_is_file, looks = tmp_path / "out", Path.is_file, []

    def slow_look(path: Path) -> bool:
        answer = really_is_file(path)
        if path == out / "manifest.json" and not looks:
            looks.append(answer)
            shutil.copytree(whole, out)
        return answer

    monkeypatch.setattr(Path, "is_file", slow_look)
    assert not manifest_of_kind(out, "influence")
    assert looks == [False]
    assert manifest_of_kind(out, "influence")


def test_a_late_process_does_not_reopen_a_finished_measurement(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that looked at the folder before the others wrote anything does not reset their manifest."""
    before = (whole / "manifest.json").read_text()
    seen: list[str] = []
    monkeypatch.setattr(parts, "finalize", lambda folder: seen.append(read_json(folder / "manifest.json")["status"]))
    measure_made_up(whole, Share(1, 2))
    assert seen == ["complete"]
    assert (whole / "manifest.json").read_text() == before


def test_another_measurement_that_came_first_stays(whole: Path) -> None:
    before = part_bytes(whole)
    with pytest.raises(UserError, match="other settings"):
        measure_made_up(whole, run_id="other")
    assert part_bytes(whole) == before
    assert read_json(whole / "manifest.json")["run_id"] == "abc"
    measure_made_up(whole, run_id="other", overwrite=True)
    assert pq.read_schema(whole / "windows" / "part-00000.parquet").metadata[b"run_id"] == b"other"
    assert read_json(whole / "manifest.json")["run_id"] == "other"


def test_parts_keep_the_size_they_were_begun_with(whole: Path, tmp_path: Path) -> None:
    measure_made_up(tmp_path / "out", Share(0, 2))
    measure_parts(tmp_path / "out", dict(FACTS), part_size=7, measure_part=measure_part)
    assert part_bytes(tmp_path / "out") == part_bytes(whole)


def test_parts_are_not_added_to_those_of_other_columns(whole: Path) -> None:
    """A version that has another column in one table keeps the fingerprint, so that other tables are found again."""
    for path in (whole / "windows").iterdir():
        pq.write_table(pq.read_table(path).drop_columns("loss_short_no_gap_nats"), path)
    (whole / "windows" / "part-00004.parquet").unlink()
    before = part_bytes(whole)
    said = r"part-00000\.parquet: columns window_id, .* run the same `olmo-sparsity influence` again, with --overwrite$"
    with pytest.raises(UserError, match=said):
        measure_made_up(whole)
    assert part_bytes(whole) == before
    measure_made_up(whole, overwrite=True)
    assert is_measured(whole, "influence", run_id="abc")


@pytest.mark.parametrize("table", ["windows", "selections"])
def test_a_missing_part_is_measured_again(whole: Path, table: str, messages: Messages) -> None:
    expected = part_bytes(whole)
    messages.clear()
    (whole / table / "part-00004.parquet").unlink()
    assert missing_parts(whole, read_json(whole / "manifest.json")) == [4]
    assert not is_measured(whole, "influence", run_id="abc")
    assert "1 of 6 parts are gone" in messages[0]
    measure_made_up(whole)
    assert part_bytes(whole) == expected
    assert is_measured(whole, "influence", run_id="abc")


# --- real commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(tiny_run: Path, tmp_path: Path) -> list[str]:
    return ["--run", str(tiny_run), "--out", str(tmp_path / "out")]


def test_torchrun(asked: list[str], tiny_tables: Path, tmp_path: Path) -> None:
    measured, shown = starts_of_python("influence-torchrun.sh", *asked, cwd=tmp_path, PROCESSES="2")
    assert measured[:7] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    assert measured[7:] == shown[1:]
    assert shown == ["-m", "olmo_sparsity", "influence", *asked]
    command = start_command(*measured[8:], cwd=tmp_path, processes=2)
    _, errors = command.communicate()
    assert command.returncode == 0, errors
    assert part_bytes(tmp_path / "out") == part_bytes(tiny_tables)
    sessions = [read_json(path)["share"] for path in (tmp_path / "out" / "sessions").iterdir()]
    assert sorted(sessions) == ["0/2", "1/2"]
    assert errors.count("unmask-one, kl") == 1  # only one of two ranks logs what is measured
    done = run_cli(*shown[2:], cwd=tmp_path)
    assert "60 windows of" in done.stdout
    assert "already measured" in done.stderr


def test_slurm_array(asked: list[str], tiny_tables: Path, tmp_path: Path) -> None:
    tasks = []
    for task in "10":
        variables = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"}
        (started,) = starts_of_python("influence-slurm-array.sh", *asked, cwd=tmp_path, **variables)
        assert started == ["-m", "olmo_sparsity", "influence", "--shard", f"{task}/2", *asked]
        tasks.append(run_cli(*started[2:], cwd=tmp_path))
    assert [task.returncode for task in tasks] == [0, 0], tasks[0].stderr
    assert "share 1 of 2 is done; 2 parts are left to the others" in tasks[0].stderr
    assert tasks[0].stdout == ""
    assert "60 windows of" in tasks[1].stdout
    assert part_bytes(tmp_path / "out") == part_bytes(tiny_tables)


def test_mistakes_of_shards(tiny_yaml: Path, tmp_path: Path) -> None:
    """They are refused before anything is written."""
    for options, said in (
        (("--shard", "0/2"), "run `olmo-sparsity train` first, alone"),
        (("--shard", "2/2"), "I from 0 to N - 1"),
        (("--shard", "1/2", "--overwrite"), "delete what the others measure"),
    ):
        run = tmp_path / "run"
        refused = CliRunner().invoke(app, ["influence", "--config", str(tiny_yaml), "--run", str(run), *options])
        assert isinstance(refused.exception, UserError)
        assert said in str(refused.exception)
        assert not run.exists()


def test_killed_between_the_tables_of_a_part(
    tiny_config: Config, tiny_run: Path, tiny_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unfinished part is measured again; the parts before it are not."""

    def until_killed(folder: Path, table: str, *, part: int, **rest: Any) -> None:
        if (table, part) == ("windows", 1):
            os.kill(os.getpid(), signal.SIGKILL)
        really_write(folder, table, part=part, **rest)

    out, really_write = tmp_path / "out", parts.write_part
    with monkeypatch.context() as patched:
        patched.setattr(parts, "write_part", until_killed)
        os.waitpid(in_a_child(lambda: measure(tiny_config, tiny_run, out=out)), 0)
    finished = [out / table / "part-00000.parquet" for table in ("windows", "selections")]
    before = [path.stat().st_ino for path in finished]
    assert sorted(path.name for path in out.glob("*/part-*")) == [*["part-00000.parquet"] * 2, "part-00001.parquet"]
    measure(tiny_config, tiny_run, out=out)
    assert [path.stat().st_ino for path in finished] == before  # another file if it was written again
    assert part_bytes(out) == part_bytes(tiny_tables)
