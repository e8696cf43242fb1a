"""Runs commands in this process, on a copy of a small run, and says what they printed and what they changed.

``USER_RIGHTS`` takes from a superuser the right to read and write everything, so that permissions hold in tests, too.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pytest

from olmo_sparsity.cli.app import main

SECONDS = 60  # a command that takes longer hangs
OVERRIDING = 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
LINUX_CAPABILITY_VERSION_3 = 0x20080522


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        command: the command line, as in a shell, without the name of the program.
        line: what the line on standard error must hold.
        make: makes the input in the current folder; None: the small run is enough.
        variables: environment variables.
    """

    command: str
    line: str
    make: Optional[Callable[[], Any]] = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code, its output, and the paths that are new, gone or changed."""

    code: object
    out: str
    err: str
    changed: list[str]


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Capabilities(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


@contextmanager
def user_rights() -> Iterator[None]:
    """Let file permissions hold for this thread, even if it is a superuser's."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, all_rights, fewer = _Header(LINUX_CAPABILITY_VERSION_3, 0), (_Capabilities * 2)(), (_Capabilities * 2)()
    for rights in (all_rights, fewer):
        assert libc.capget(ctypes.byref(header), rights) == 0
    fewer[0].effective &= ~OVERRIDING
    assert libc.capset(ctypes.byref(header), fewer) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(header), all_rights) == 0


def tree(folder: str = ".") -> dict[str, tuple[int, int, int]]:
    """Return kind and permissions, size and time of change of everything below a folder."""
    found: dict[str, tuple[int, int, int]] = {}
    for parent, folders, files in os.walk(os.fsencode(folder)):
        for name in folders + files:
            path = os.path.join(parent, name)
            stat = os.lstat(path)
            is_folder = name in folders
            found[os.fsdecode(path)] = (stat.st_mode, *((0, 0) if is_folder else (stat.st_size, stat.st_mtime_ns)))
    return found


def _hangs(*_: Any) -> None:
    raise AssertionError(f"the command hangs for more than {SECONDS} s")


def run_main(
    command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], **variables: str
) -> Ending:
    """Run one command in this process, in the current folder. What the libraries print is part of the output."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *shlex.split(command)])
    before = tree()
    capfd.readouterr()
    earlier = signal.signal(signal.SIGALRM, _hangs)
    signal.alarm(SECONDS)
    try:
        with user_rights(), pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
    after, captured = tree(), capfd.readouterr()
    changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return Ending(ended.value.code, captured.out, captured.err, changed)


def file(name: str, content: str | bytes = "") -> Callable[[], None]:
    """Return what writes a file."""

    def make() -> None:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return make
