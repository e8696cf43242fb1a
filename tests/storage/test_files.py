"""Names of partial files, which of them are abandoned, what may be replaced, and checksums."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage import files
from olmo_sparsity.storage.files import (
    CHECKSUM,
    HOST,
    check_replaceable,
    final_path,
    is_as_written,
    partial_path,
    read_json,
    remove_leftovers,
    sha256_file,
    sha256_files,
    with_checksum,
    write_json,
    write_json_once,
    write_new,
    written_whole,
)


def test_a_partial_file_is_hidden_and_tells_its_host_process_and_final_name(tmp_path: Path) -> None:
    path = tmp_path / "a.b.12.json"
    partial = partial_path(path)
    assert partial.parent == tmp_path and partial != partial_path(path)
    assert partial.name.startswith(f".a.b.12.json.{HOST}.{os.getpid()}.") and partial.name.endswith(".partial")
    assert final_path(str(partial)) == str(path)
    for other in (
        "a.json",
        ".a.json.partial",
        f".a.json.{HOST}.7.0123456.partial",
        f"a.json.{HOST}.7.01234567.partial",
    ):
        assert final_path(str(tmp_path / other)) == str(tmp_path / other)


def test_partial_files_are_removed_where_nobody_writes_them_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process 7 has ended, 8 runs, 9 is somebody else's; of another machine the time of the last change tells."""

    def signal(pid: int, number: int) -> None:
        assert number == 0
        if pid != 8:
            raise ProcessLookupError if pid == 7 else PermissionError

    monkeypatch.setattr(os, "kill", signal)
    monkeypatch.setattr(os, "getpid", lambda: 12)
    names = {
        f".x.{HOST}.7.01234567.partial": False, f".x.{HOST}.8.01234567.partial": True,
        f".x.{HOST}.9.01234567.partial": True, ".x.elsewhere.7.01234567.partial": True,
        ".old.elsewhere.8.01234567.partial": False, ".x.notes.partial": True, "x.partial": True,
        f".x.{HOST}.7.01234567.json": True,
    }  # fmt: skip
    for name in names:
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (time.time() - 3500,) * 2)
    os.utime(tmp_path / ".old.elsewhere.8.01234567.partial", (time.time() - 3700,) * 2)
    (tmp_path / f".folder.{HOST}.7.01234567.partial").mkdir()
    (tmp_path / f".link.{HOST}.7.01234567.partial").symlink_to(tmp_path / "x.partial")
    remove_leftovers(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {name for name, is_kept in names.items() if is_kept} | {
        f".{kind}.{HOST}.7.01234567.partial" for kind in ("folder", "link")
    }


def test_a_partial_file_of_this_process_is_not_in_use(tmp_path: Path) -> None:
    partial_path(tmp_path / "x").write_text("")
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("before")

    def fails() -> None:
        with written_whole(path) as partial:
            partial.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]
    with written_whole(path) as partial:
        partial.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after" and list(tmp_path.iterdir()) == [path]


def test_what_is_written_once_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object) -> None:
        raise OSError

    for name in ("links", "no-links"):
        write_json_once(tmp_path / name, {"a": "é"})
        write_json_once(tmp_path / name, {"a": 2})
        assert (tmp_path / name).read_text(encoding="utf-8") == '{\n  "a": "é"\n}\n'
        path, dangling = tmp_path / f"{name}-bytes", tmp_path / f"{name}-dangling"
        dangling.symlink_to(tmp_path / "nowhere")
        assert write_new(path, b"one") and not write_new(path, b"two") and not write_new(dangling, b"three")
        assert path.read_bytes() == b"one" and dangling.is_symlink()
        monkeypatch.setattr(os, "link", no_links)
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize("size", range(12))
def test_the_tool_looks_at_both_ends_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Without the middle; what both ends hold is not given twice."""
    monkeypatch.setattr(files, "END_BYTES", 4)
    path, content = tmp_path / "x", bytes(range(65, 65 + size))
    assert not check_replaceable(path, lambda _: False, what="figure")
    assert not check_replaceable(path / "below", lambda _: False, what="figure")
    path.write_bytes(content)
    seen: list[bytes] = []
    assert check_replaceable(path, lambda ends: seen.append(ends) or True, what="figure")
    assert seen == [content if size <= 8 else content[:4] + content[-4:]]
    with pytest.raises(UserError, match="x: this is no figure that olmo-sparsity wrote, so it is not replaced"):
        check_replaceable(path, lambda _: False, what="figure")


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, words in (
        ("link", "a symbolic link to .*nothing"),
        ("pipe", "a pipe"),
        ("folder", "a folder, where a file"),
    ):
        with pytest.raises(UserError, match=f"{name}: this is {words}"):
            check_replaceable(tmp_path / name, lambda _: True, what="figure")


def test_a_checksum_is_of_the_values_in_any_order(tmp_path: Path) -> None:
    value = {"b": (1, 2.5), "a": {"y": None, "x": "é"}}
    written = with_checksum(value)
    assert list(written) == ["b", "a", CHECKSUM]
    plain = json.dumps({"a": {"x": "é", "y": None}, "b": [1, 2.5]})
    assert written[CHECKSUM] == hashlib.sha256(plain.encode()).hexdigest()
    assert with_checksum({CHECKSUM: "other", **value}) == written
    write_json(tmp_path / "x", written)
    read = read_json(tmp_path / "x")
    assert (
        is_as_written(read) is True and is_as_written({**read, "b": [1, 2.6]}) is False and is_as_written(value) is None
    )


def test_a_value_that_is_nested_without_end_is_not_as_it_was_written() -> None:
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    assert is_as_written({"a": nested, CHECKSUM: "0"}) is False


def test_the_hash_of_several_files_is_that_of_all_their_bytes(tmp_path: Path) -> None:
    contents = [b"a" * (1 << 20) + b"b", b"", b"c"]
    paths = [tmp_path / str(number) for number in range(3)]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert sha256_files(paths) == hashlib.sha256(b"".join(contents)).hexdigest()
    assert sha256_file(paths[0]) == hashlib.sha256(contents[0]).hexdigest()


def test_a_partial_file_of_another_users_process_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partial = partial_path(tmp_path / "a.json")
    partial.write_text("{")
    for error, kept in ((PermissionError, True), (ProcessLookupError, False)):

        def kill(pid: int, signal: int, error: type[OSError] = error) -> None:
            assert (pid, signal) == (os.getpid(), 0)
            raise error

        monkeypatch.setattr(os, "kill", kill)
        remove_leftovers(tmp_path)
        assert partial.exists() == kept
