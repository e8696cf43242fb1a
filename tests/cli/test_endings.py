"""How a command ends: errors of the operating system, streams that are closed or narrow, and the characters of its line."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tokenizers import Tokenizer, models

from olmo_sparsity.cli.app import app
from olmo_sparsity.cli.endings import LONGEST_LINE, os_error_line, run
from olmo_sparsity.errors import Interrupted, UserError


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


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "permission denied; allow it, or name another"),
        (errno.EPERM, "permission denied; allow it, or name another"),
        (errno.EROFS, "this file system is read-only; name a folder that can be written"),
        (errno.ENAMETOOLONG, "the name is too long; choose a shorter one"),
        (errno.ELOOP, "its symbolic links lead back to themselves; correct them, or name another"),
        (errno.EISDIR, "this is a folder, where a file was expected"),
        (errno.ENOTDIR, "a file stands where this path needs a folder; choose another"),
        (errno.EEXIST, "something else has this name already; choose another"),
        (errno.ENOENT, "no such file or folder"),
        (errno.EMFILE, "too many open files; allow more (ulimit -n)"),
        (errno.ENFILE, "too many open files on this machine; close some"),
        (errno.EIO, "the disk cannot be read or written (input/output error); copy what is there to another"),
        (errno.ESTALE, "the network file system has lost this file; run the same command again"),
        (errno.EBUSY, "words of the system; choose another"),
    ],
)
def test_what_to_do_about_an_error_follows_its_number(number: int, advice: str) -> None:
    """Some have no name of a file, but the number of one that is open."""
    assert os_error_line(OSError(number, "words of the system", "a/b")) == f"a/b: {advice}"
    for unnamed in (OSError(number, "words of the system"), OSError(number, "words of the system", 3)):
        assert os_error_line(unnamed) == f"a file cannot be read or written: {advice}"


def test_the_code_and_the_line_follow_what_ended_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    """An interruption is no error; help that was not asked for is shown as one; a command may end with a code of its own."""
    assert fails_with(Interrupted("stopped; all is saved")) == 130
    assert capsys.readouterr().err == "olmo-sparsity: stopped; all is saved\n"
    assert [run(lambda *_, code=code, **__: code, []) for code in (None, 0, 2)] == [0, 0, 2]
    app = typer.Typer(no_args_is_help=True)
    app.command()(lambda: None)
    app.command("other")(lambda: None)
    assert run(app, []) == 2
    shown = capsys.readouterr()
    assert "Usage: olmo-sparsity" in shown.out + shown.err and "error:" not in shown.err


def test_ctrl_c_outside_of_the_work_that_is_saved_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """As while a command imports torch."""
    app = typer.Typer()

    @app.command()
    def stopped() -> None:
        raise KeyboardInterrupt

    assert run(app, []) == 130
    assert capsys.readouterr() == ("", "olmo-sparsity: interrupted\n")


def test_standard_error_takes_all_characters_too(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(file, encoding="ascii", errors="strict"))
    assert fails_with(UserError("\u00e9")) == 2
    assert file.getvalue() == b"olmo-sparsity: error: ?\n"


@pytest.mark.parametrize("size", ["0", "00", "-5", "\u00b2", "x", ""])
@pytest.mark.parametrize("arguments", [["list", "."], ["list", "--help"]], ids=["list", "help"])
def test_sizes_that_no_terminal_has_are_left_out(
    arguments: list[str], size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs that start others without a terminal set 0, with which nothing was printed."""
    monkeypatch.chdir(tmp_path)
    printed = []
    for value in ("80", size):
        monkeypatch.setenv("COLUMNS", value)
        monkeypatch.setenv("LINES", value)
        monkeypatch.setenv("TERMINAL_WIDTH", value)
        assert run(app, arguments) == 0
        printed.append(capsys.readouterr().out)
    assert len(printed[0]) > 20 and printed[1] == printed[0]


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


def test_memory_of_a_device_is_not_enough_and_where_it_was_found_is_in_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of torch, which is not imported: one of its own class, and one that says so."""
    monkeypatch.setattr(logging.getLogger("olmo_sparsity"), "propagate", True)
    caplog.set_level(logging.DEBUG, "olmo_sparsity")
    of_device = type("OutOfMemoryError", (RuntimeError,), {})("CUDA: no memory")
    for error in (of_device, RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")):
        caplog.clear()
        assert fails_with(error) == 2
        line = f"not enough memory ({error}); use smaller batches or a smaller model"
        assert capsys.readouterr().err == f"olmo-sparsity: error: {line}\n"
        ((_, level, _),) = caplog.record_tuples
        (record,) = caplog.records
        assert level == logging.DEBUG and record.exc_info is not None and record.exc_info[1] is error
    with pytest.raises(RuntimeError, match="another"):
        fails_with(RuntimeError("another"))


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
