"""Locks of folders: which files are taken for one, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.folders import exclusive_lock


@pytest.mark.parametrize("content", [None, b"", b"4711\n", b"0"])
def test_a_lock_that_nobody_holds_is_taken_and_removed(content: bytes | None, tmp_path: Path) -> None:
    """Also one of a process that was killed, in which file systems that cannot lock keep its number."""
    lock = tmp_path / "new" / "a.lock"
    if content is not None:
        lock.parent.mkdir()
        lock.write_bytes(content)
    with exclusive_lock(lock, "held"):
        assert lock.is_file()
        with pytest.raises(UserError, match=r"^held$"), exclusive_lock(lock, "held"):
            pass
    assert not lock.exists()
    with pytest.raises(KeyError), exclusive_lock(lock):
        raise KeyError
    assert not lock.exists()


@pytest.mark.parametrize("content", [b"[[package]]", b" 1", b"\xff"])
def test_a_file_of_somebody_else_is_no_lock(content: bytes, tmp_path: Path) -> None:
    lock = tmp_path / "poetry.lock"
    lock.write_bytes(content)
    with (
        pytest.raises(
            UserError, match=r"poetry\.lock: this file is no lock of olmo-sparsity, and a lock is to get its na"
        ),
        exclusive_lock(lock, "held"),
    ):
        raise AssertionError
    assert lock.read_bytes() == content


def test_a_lock_of_another_process_is_waited_for_only_where_nothing_is_to_be_said(tmp_path: Path) -> None:
    lock, folder = tmp_path / "a.lock", tmp_path / "b.lock"
    folder.mkdir()
    with FileLock(lock), pytest.raises(UserError, match=r"^held$"), exclusive_lock(lock, "held"):
        raise AssertionError
    with pytest.raises(UserError, match=r"b\.lock: cannot lock this file \(Is a directory\)"), exclusive_lock(folder):
        raise AssertionError
    assert folder.is_dir()
