"""Files that are whole or not there, locks, manifests of any content, folders that are cleared, and what torchrun says."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest
from conftest import Messages
from unlike_tables import made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    check_replaceable,
    check_writable,
    clear_folder,
    environment,
    exclusive_lock,
    manifest_of_kind,
    partial_path,
    read_json,
    read_manifest_of,
    remove_leftovers,
    sha256_file,
    sha256_text,
    telling_name,
    write_json,
    write_manifest,
    write_text,
)
from olmo_sparsity.torchrun import ProcessInfo, current_process


def started(work: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    return process


def write_without_end(path: Path) -> None:
    for number in range(10**9):
        write_json(path, {"number": number, "filling": str(number) * 20_000})


def test_a_reader_sees_whole_files_while_a_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for seconds in (0.02, 0.05, 0.1):
        writer = started(write_without_end, path)
        until = time.monotonic() + seconds
        while time.monotonic() < until or not path.exists():
            if path.exists():
                value = read_json(path)
                assert value["filling"] == str(value["number"]) * 20_000
        writer.kill()
        writer.join()
        assert read_json(path)
    remove_leftovers(tmp_path, seconds=0)
    assert os.listdir(tmp_path) == ["file.json"]


def write_once_with_others(path: Path, number: int) -> None:
    while not path.with_name("begin").exists():
        pass
    write_json(path, {"number": number}, once=True)
    first = read_json(path)
    for _ in range(100):
        assert read_json(path) == first


@pytest.mark.parametrize("has_links", [True, False])
def test_one_of_several_processes_writes_a_file_once(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_links:

        def no_links(*_: object) -> None:
            raise OSError

        monkeypatch.setattr(os, "link", no_links)
        write_json(tmp_path / "file", {"number": 1}, once=True)  # without links, processes may replace one another's
    writers = [started(write_once_with_others, tmp_path / "file", number) for number in range(6)]
    (tmp_path / "begin").touch()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 6
    assert sorted(os.listdir(tmp_path)) == ["begin", "file"]


def test_numbers_that_are_none_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"a": math.nan, "b": [math.inf, np.float64(1.5), np.int32(2)], "c": {"é": 1e22}})
    assert read_json(tmp_path / "a") == {"a": None, "b": [None, 1.5, 2], "c": {"é": 1e22}}
    assert json.loads((tmp_path / "a").read_text(encoding="utf-8")) == read_json(tmp_path / "a")


def test_an_error_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "nowhere" / "file", "")
    assert caught.value.filename == str(tmp_path / "nowhere" / "file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path / "folder", "")
    assert os.listdir(tmp_path) == ["folder"]


def test_only_abandoned_partial_files_are_removed(tmp_path: Path) -> None:
    """Others' for an hour, whatever process wrote them; a folder, a link and its target are told apart."""
    kept = {".a.json.0123abcd.partial": 3500, ".notes.partial": 9000, "film.0123abcd.partial": 9000, "notes": 9000}
    gone = {".b.json.0123abcd.partial": 3700, ".folder.0123abcd.partial": 3700, ".link.0123abcd.partial": 3700}
    for name, age in {**kept, **gone}.items():
        path = tmp_path / name
        if "link" in name:
            path.symlink_to(tmp_path / "notes")
        else:
            path.mkdir() if "folder" in name else path.touch()
        os.utime(path, (time.time() - age,) * 2, follow_symlinks=False)
    own = partial_path(tmp_path / "a.json")
    own.touch()
    remove_leftovers(tmp_path, tmp_path / "nowhere")
    assert set(os.listdir(tmp_path)) == {*kept, own.name}
    remove_leftovers(tmp_path, name="b.json", seconds=0)
    assert set(os.listdir(tmp_path)) == {*kept, own.name}
    remove_leftovers(tmp_path, name="a.json", seconds=0)
    assert set(os.listdir(tmp_path)) == set(kept) - {".a.json.0123abcd.partial"}


def hold(lock: Path) -> None:
    with exclusive_lock(lock):
        lock.with_name("held").touch()
        time.sleep(60)


def test_a_lock_is_held_by_one_process_and_released_by_its_death(tmp_path: Path) -> None:
    lock = tmp_path / "a" / ".run.lock"
    holder = started(hold, lock)
    while not lock.with_name("held").exists():
        time.sleep(0.001)
    with pytest.raises(UserError, match="busy"), exclusive_lock(lock, busy="busy"):
        pass
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    with exclusive_lock(lock):  # waits
        assert holder.exitcode is None or holder.exitcode == -9
    assert os.listdir(lock.parent) == ["held"]


# What stands in a manifest, and what its one line must say.
MANIFESTS = [
    ("", "not valid JSON"), ("{", "not valid JSON"), ('{"kind": NaN}', "not valid JSON"), (b"\xff", "not valid JSON"),
    ("[" * 100_000, "not valid JSON"), ("[]", "expected object, got array"), ("{}", "missing required field kind"),
    ('{"kind": 3}', "key kind: expected str"), ('{"kind": "run", "num_parts": true}', "key num_parts: expected int"),
    ('{"kind": "run", "num_parts": 0}', "key num_parts: expected int >= 1"),
    ('{"kind": "run", "num_parts": 1e300}', "key num_parts: expected"), ('{"kind": "run", "steps": -1}', "key steps"),
    ('{"kind": "run", "num_windows": 99999999999999999999}', "key num_windows"),
    ('{"kind": "run", "context": []}', "key context: expected object"), ('{"kind": "run", "files": {"a": 1}}', "key files"),
    ('{"kind": "run", "status": null}', "key run_id is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "said"), MANIFESTS)
def test_a_damaged_manifest_is_one_line(content: str | bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        read_manifest_of(tmp_path, "run_id")
    assert said in str(caught.value) and str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_of_something_else_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / ".a.partial").touch()
    assert manifest_of_kind(tmp_path / "nowhere", "run") is None
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".a.partial").touch()
    assert manifest_of_kind(tmp_path / "new", "run") is None
    for folder, said in ((tmp_path, "exists and is no run folder"), (tmp_path / "file", "this is a file")):
        with pytest.raises(UserError, match=said):
            manifest_of_kind(folder, "run")


def test_what_is_no_file_of_ours_is_not_replaced(tmp_path: Path) -> None:
    """Both ends of a file tell; a pipe is refused and not waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    (tmp_path / "page").write_bytes(b"OURS" + bytes(200_000) + b"end")
    assert not check_replaceable(tmp_path / "nothing", lambda _: False, what="page")
    for is_own in (lambda ends: ends.startswith(b"OURS"), lambda ends: ends.endswith(b"end") and len(ends) == 1 << 17):
        assert check_replaceable(tmp_path / "page", is_own, what="page")
    for name, said in (("pipe", "device"), ("link", "symbolic link"), (".", "a folder"), ("page", "no page that")):
        with pytest.raises(UserError, match=said):
            check_replaceable(tmp_path / name, lambda _: False, what="page")
    for read in (read_json, sha256_file):
        with pytest.raises(UserError, match="this is a pipe or a device"):
            read(tmp_path / "pipe")
    check_writable(tmp_path / "a" / "b")
    with pytest.raises(UserError, match="cannot write into this folder"):
        check_writable(tmp_path / "page" / "b")
    assert not (tmp_path / "a").exists()
    assert sha256_file(tmp_path / "page", tmp_path / "page") != sha256_file(tmp_path / "page")
    assert (
        sha256_text("é") == subprocess.run(["sha256sum"], input="é".encode(), capture_output=True).stdout.decode()[:64]
    )


def made_up_run(run: Path) -> Path:
    """Write all that commands write into a run, as far as it is deleted with it."""
    killed = partial_path(run / "checkpoints" / "step12").name
    steps = [
        f"checkpoints/{step}/{name}" for step in ("step4", killed) for name in ("config.yaml", "model.pt", "train.json")
    ]
    names = ["config.yaml", "tokenizer.json", "metrics.jsonl", "tensorboard/events.out.tfevents.1.host", *steps]
    for path in (*(run / name for name in names), partial_path(run / "config.yaml")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ours")
    (run / "checkpoints" / "latest").symlink_to("step4")
    (run / "figures").mkdir()
    write_manifest(run, {"kind": "run", "status": "complete", "config": {}})
    made_up_tables(run / "influence" / "first", num_documents=4)
    return run


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def test_overwriting_deletes_what_commands_wrote_and_names_the_rest(tmp_path: Path, messages: Messages) -> None:
    run = made_up_run(tmp_path / "run")
    clear_folder(run)
    assert [path.name for path in run.rglob("*")] == ["manifest.json"] and not messages
    assert read_json(run / "manifest.json")["status"] == "running"
    made_up_run(run)
    mine = {
        "notes.txt", "checkpoints/step4/notes.txt", "checkpoints/best.pt", "influence/first/notes.txt", ".notes.partial",
        "influence/thoughts.md", "sub/manifest.json", "figures/annotated.png", "checkpoints/steps/config.yaml",
        "copy/influence/first/windows/part-00000.parquet",
    }  # fmt: skip
    for name in mine:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("mine")
    (run / "linked").symlink_to(tmp_path)
    clear_folder(run)
    assert files(run) == {*mine, "linked", "manifest.json"}
    named = sorted({*mine, "linked"})
    told = f": left as they are, since they are no part of it: {', '.join(named[:5])}"
    assert messages[-1].endswith(f"{told} and 6 more")
    for number, more in ((6, " and 1 more"), (5, "")):
        for name in named[number:]:
            (run / name).unlink(missing_ok=True)
        clear_folder(run)
        assert messages[-1].endswith(told + more)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("~/models/llama", "llama"),
        ("runs/pythia/step3000", "pythia-step3000"),
        ("runs/olmo/checkpoints/step60-unsharded", "olmo-step60-unsharded"),
        ("step60", "step60"),
        ("hub/models--gpt2/snapshots/" + 40 * "a", "models--gpt2-aaaaaaaaaaaa"),
    ],
)
def test_a_checkpoint_is_named_with_what_it_is_of(path: str, name: str) -> None:
    assert telling_name(PurePath(path)) == name


@pytest.mark.parametrize("linked", ["checkpoints", "checkpoints/step4", "influence/first", "influence/first/windows"])
def test_a_link_in_place_of_a_folder_goes_and_what_it_leads_to_stays(linked: str, tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    (run / linked).rename(tmp_path / "elsewhere")
    (run / linked).symlink_to(tmp_path / "elsewhere")
    before = files(tmp_path / "elsewhere")
    clear_folder(run)
    assert not (run / linked).is_symlink() and files(tmp_path / "elsewhere") == before


def test_the_environment_names_the_commit_of_the_checkout(tmp_path: Path) -> None:
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    ).stdout
    facts = environment()
    assert facts["commit"].removesuffix("-dirty") == head.strip()
    assert facts["packages"]["numpy"] == np.__version__


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ("", ProcessInfo()), ("RANK=1", ProcessInfo()), ("RANK=0 WORLD_SIZE=16 LOCAL_RANK=3", ProcessInfo(0, 16, 3, 1)),
        ("RANK=5 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4", ProcessInfo(5, 16, 1, 4)),
        ("RANK=0 WORLD_SIZE=1 TORCHELASTIC_RESTART_COUNT=2", ProcessInfo(restarts=2)),
        ("RANK=4 WORLD_SIZE=4", "RANK = 4, WORLD_SIZE = 4: a rank must be below"),
        ("RANK=0 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2", "a rank must be below"),
        ("RANK=a WORLD_SIZE=4", "RANK = a, WORLD_SIZE = 4: these environment variables must be numbers"),
        ("RANK=-1 WORLD_SIZE=4", "must be numbers"), ("RANK=\u0661 WORLD_SIZE=4", "must be numbers"),
    ],
)  # fmt: skip
def test_the_rank_that_torchrun_tells(variables: str, expected: ProcessInfo | str) -> None:
    given = dict(one.split("=") for one in variables.split())
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            current_process(given)
    else:
        assert current_process(given) == expected
