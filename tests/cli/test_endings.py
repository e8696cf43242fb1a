"""How the program ends in places that are full, closed, narrow, nameless or not in UTF-8."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from started_commands import TIMEOUT, exit_code

from olmo_sparsity.cli.app import error_line
from olmo_sparsity.errors import UserError

ROOT = Path(__file__).parents[2]
PROGRAM = f"{shlex.quote(sys.executable)} -m olmo_sparsity"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("endings")
    shutil.copytree(ROOT / "tests" / "guard" / "data" / "runs" / "seed0", where / "runs" / "demo")
    os.chmod(where, 0o777)
    return where


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which $PROGRAM is the program."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PROGRAM": PROGRAM, **environment}
    return subprocess.run(
        ["bash", "-c", command.replace("$PROGRAM", PROGRAM)], cwd=folder, env=variables, capture_output=True
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("$PROGRAM config <&- 2>&-", 0),
        ("$PROGRAM config >&- <&- 2>&-", 0),
        ("$PROGRAM train a=1 2>&-", 2),
        ("$PROGRAM show | true; exit ${PIPESTATUS[0]}", None),
        ("$PROGRAM show > /dev/full", 2),
        pytest.param(
            "env -u HOME -u USER -u LOGNAME unshare -U --map-user=12345 --map-group=12345 $PROGRAM show",
            0,
            marks=pytest.mark.needs("user namespaces"),
        ),
    ],
)
def test_streams_that_are_closed_or_full_and_users_without_a_home(command: str, code: int | None, folder: Path) -> None:
    ended = shell(command, folder)
    assert ended.returncode in ((0, 1) if code is None else (code,)), ended.stderr
    assert b"Traceback" not in ended.stderr
    if code == 2 and "2>&-" not in command:
        assert ended.stderr.count(b"\n") == 1


def test_names_are_utf_8_in_every_locale(folder: Path) -> None:
    (folder / "nötes.yaml").write_text("name: nötes\ndata: {source: 'tëxt #2'}", encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    ended = shell("$PROGRAM config --config nötes.yaml; $PROGRAM train --config nö.yaml", folder, **ascii_only)
    assert 'source: "tëxt #2"' in ended.stdout.decode()
    assert (ended.returncode, "nö.yaml: cannot read" in ended.stderr.decode()) == (2, True)
    without_such_letters = {"PYTHONIOENCODING": "iso8859-5"}
    ended = shell("$PROGRAM config --config nötes.yaml", folder, **without_such_letters)
    assert (ended.returncode, b"t?xt #2" in ended.stdout) == (0, True), ended.stderr


@pytest.mark.parametrize("columns", ["0", "-1", "x", "20", "1000"])
def test_every_width_of_a_terminal_prints_the_numbers(
    columns: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", columns)
    assert exit_code("show") == 0 and "nats" in capfd.readouterr().out


def test_a_user_who_interrupts_sees_one_line(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    command = [sys.executable, "-m", "olmo_sparsity", "config", "--config", "pipe"]  # waits for what nobody writes
    started = subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a suite in the background ignores it
    )  # fmt: skip
    pipe = None
    while pipe is None and started.poll() is None:
        with suppress(OSError):  # the command does not read it yet
            pipe = os.open(folder / "pipe", os.O_WRONLY | os.O_NONBLOCK)
        time.sleep(0.01)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=TIMEOUT)
    assert started.returncode == 130 and err.startswith(b"olmo-sparsity: interrupted; ") and err.count(b"\n") == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_named_by_whoever_notices(number: int) -> None:
    rust = f"Error: No space left on device (os error {number})"
    for error in (OSError(number, os.strerror(number), "a/b"), OSError(number, "full"), Exception(rust)):
        line = error_line(error)
        assert line is not None and line.startswith(f"cannot write to disk ({os.strerror(number)}); free some space")


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EIO, errno.ESTALE]
)
def test_an_error_of_the_system_names_the_file(number: int) -> None:
    line = error_line(OSError(number, os.strerror(number), "folder/name"))
    advice = "wait, and run the same command again" if number == errno.ESTALE else "choose another, or correct it"
    assert line == f"folder/name: {os.strerror(number).lower()}; {advice}"
    assert error_line(OSError(number, os.strerror(number))) == f"a file: {os.strerror(number).lower()}; {advice}"


def test_other_errors_are_bugs() -> None:
    assert error_line(UserError("a: b")) == "a: b"
    assert "use smaller batches" in str(error_line(MemoryError("no 5 GB")))
    for bug in (ValueError("x"), KeyError("x"), OSError("x"), RuntimeError("os error 28")):
        assert error_line(bug) is None
