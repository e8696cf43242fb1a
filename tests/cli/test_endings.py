"""How a command ends: errors of the operating system, streams that are closed or narrow, and the characters of its line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from olmo_sparsity.cli.endings import LONGEST_LINE, os_error_line, run
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import partial_path


def fails_with(error: BaseException) -> int:
    def app(*_: object, **__: object) -> None:
        raise error

    return run(app, [])


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_error_of_the_system_is_one_line(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    code = fails_with(OSError(number, os.strerror(number), "folder/name"))
    captured = capsys.readouterr()
    if number in (errno.EPIPE, errno.ESHUTDOWN):
        assert (code, captured.err) == (1, "")
        return
    assert code == 2
    assert captured.err.startswith("olmo-sparsity: error: ")
    assert captured.err.count("\n") == 1
    is_full = number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of the device, of the quota, of a file
    assert ("cannot write to disk (" in captured.err) == is_full
    assert ("folder/name" in captured.err) != is_full


def test_the_line_names_the_file_that_was_to_be_written() -> None:
    partial = partial_path(Path("folder/report.html"))
    error = PermissionError(errno.EACCES, "Permission denied", str(partial))
    assert os_error_line(error) == "folder/report.html: permission denied; allow it, or name another"


def test_an_error_without_a_number_is_a_bug() -> None:
    with pytest.raises(OSError, match="of a library"):
        fails_with(OSError("of a library"))


def test_a_line_is_short_and_printable(capsys: pytest.CaptureFixture[str]) -> None:
    fails_with(OSError(errno.EACCES, "", "\x1b[31m\u202e" + "9" * 5000))
    line = capsys.readouterr().err
    assert len(line) < LONGEST_LINE + 100
    assert line.endswith("99: permission denied; allow it, or name another\n")  # the middle is left out
    assert "\x1b" not in line and "\u202e" not in line


def test_memory_that_is_not_enough_is_one_line_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    reason = "Unable to allocate 93.1 GiB for an array with shape (100000, 250000) and data type float32"
    for words, shown in ((f"{reason}\nand more", reason), ("9" * 300, "9" * 200), ("", "it cannot be had")):
        fails_with(MemoryError(words))
        line = capsys.readouterr().err
        assert line == f"olmo-sparsity: error: not enough memory ({shown}); use smaller batches or a smaller model\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_folder_whose_name_is_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    folder = tmp_path / os.fsdecode(b"b\xfccher")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run(lambda *_, **__: 0, []) == 2
    assert "this name is not UTF-8" in capsys.readouterr().err
    folder.rmdir()
    assert run(lambda *_, **__: 0, []) == 0  # what needs the folder says that it is gone


def in_a_process(shell: str, tiny_tables: Path) -> subprocess.CompletedProcess[bytes]:
    command = f"{sys.executable} -m olmo_sparsity show {tiny_tables} 1 {shell}"
    return subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("shell", "code", "words"),
    [
        ("| true", 1, b""),
        (">&-", 0, b""),
        ("> /dev/full", 2, b"olmo-sparsity: error: cannot write to disk (No space left on device)"),
    ],
)
def test_an_output_that_nobody_reads_ends_quietly(shell: str, code: int, words: bytes, tiny_tables: Path) -> None:
    ended = in_a_process(shell, tiny_tables)
    assert ended.returncode == code
    assert ended.stderr.startswith(words)
    assert ended.stderr.count(b"\n") == bool(words)


def test_a_terminal_may_be_ascii(tiny_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    ended = in_a_process("", tiny_tables)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"Window" in ended.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_that_a_library_found_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """tokenizers raises a bare Exception; one with other words is a bug."""
    with pytest.raises(Exception, match="os error 28") as raised:
        Tokenizer(models.BPE({"a" * 9000: 0}, [])).save("/dev/full")
    assert fails_with(raised.value) == 2
    line = capsys.readouterr().err
    assert line.startswith("olmo-sparsity: error: cannot write to disk (") and line.count("\n") == 1
    with pytest.raises(Exception, match="another"):
        fails_with(Exception("another (os error 5)"))
    with pytest.raises(ValueError, match="os error 28"):  # of Python itself
        fails_with(ValueError("of mine (os error 28)"))
    assert fails_with(type("SafetensorError", (Exception,), {})("Error (os error 28)")) == 2
    with pytest.raises(Exception, match="os error 281"):
        fails_with(Exception("os error 281"))


def test_the_middle_of_a_long_line_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    for length in (LONGEST_LINE - len("error: "), LONGEST_LINE - len("error: ") + 1):
        words = "".join(f"{number:05d}" for number in range(length))[:length]
        assert fails_with(UserError(words)) == 2
        line = capsys.readouterr().err.removeprefix("olmo-sparsity: ").removesuffix("\n")
        whole = f"error: {words}"
        assert line == (whole if len(whole) == LONGEST_LINE else f"{whole[:1000]} ... {whole[-1000:]}")
