"""Commands in processes of their own, which are forked from one that has imported the libraries: importing takes seconds."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.forkserver
import multiprocessing.util
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.cli.app import main

ROOT = Path(__file__).parents[1]
TIMEOUT = 300  # seconds
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["forked_from"])


@cache
def _start_server() -> None:
    """Start the process that commands are forked from, which finds the modules of tests, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, ROOT / "tests"))))
        multiprocessing.forkserver.ensure_running()


@atexit.register  # after that of multiprocessing.util, which waits for them, so that this one is called first
def _kill_what_runs() -> None:
    for process in multiprocessing.active_children():
        process.kill()


def _print_threads() -> None:
    """Print the names of the threads that are alive to standard error."""
    names = []  # empty on systems without /proc
    for path in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended
            names.append(path.read_text().strip())
    sys.stderr.write(f"threads at the end: {' '.join(names)}\n")  # in one write, because processes share stderr


def exit_code(*arguments: object) -> int:
    """Run a command in this process, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return int(ended.value.code or 0)


def run_command(arguments: tuple[str, ...], with_threads: bool = False) -> None:
    """Run a command in this process; ``with_threads`` prints the threads that are alive at the end to standard error."""
    sys.argv = ["olmo-sparsity", *arguments]
    try:
        main()
    finally:
        if with_threads:
            _print_threads()


def _begin(
    call: Callable[..., None],
    arguments: tuple[Any, ...],
    folder: Path,
    streams: Path,
    environment: dict[str, str],
    processes: int,
) -> None:
    import torch
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    if processes == 1:
        call(*arguments)
    else:  # what torchrun does with a script, but with a function, so that its processes can be forked
        launch = LaunchConfig(
            1, 1, processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=str(os.getpid()), max_restarts=0,
            monitor_interval=0.1, start_method="fork",
        )  # fmt: skip
        elastic_launch(launch, call)(*arguments)


class Started:
    """A process that calls a function of a module, or several that do as under torchrun; with methods of ``subprocess.Popen``."""

    def __init__(self, call: Callable[..., None], *arguments: Any, cwd: Path, processes: int = 1) -> None:
        self._streams = tempfile.TemporaryDirectory()
        streams = Path(self._streams.name)
        for stream in ("out", "err"):  # there even if the process is killed before it opens them
            (streams / stream).touch()
        _start_server()
        given = (call, arguments, cwd, streams, dict(os.environ), processes)
        self._process = _server.Process(target=_begin, args=given)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """The exit status, negative after a signal; None while the process runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, to that of torchrun where it has several."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def communicate(self, timeout: float = TIMEOUT) -> tuple[str, str]:
        """Wait until the process has ended, and return (what it printed, its standard error)."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"still running after {timeout} seconds"
        with self._streams as name:
            out, err = ((Path(name) / stream).read_text(encoding="utf-8") for stream in ("out", "err"))
        return out, err


def start_command(*arguments: str, cwd: Path, processes: int = 1) -> Started:
    """Start a command in a folder, with ``run_command``; as torchrun does, with the threads, where it has processes."""
    return Started(run_command, arguments, processes > 1, cwd=cwd, processes=processes)


def run_cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in a process of its own, and return how it ended and what it printed."""
    command = start_command(*arguments, cwd=cwd)
    out, err = command.communicate()
    return subprocess.CompletedProcess(arguments, command.returncode or 0, out, err)


def starts_of_python(script: str, *arguments: str, cwd: Path, **variables: str) -> list[list[str]]:
    """Run a script of ``scripts/`` with a stand-in for Python, and return the arguments of each start of Python."""
    python = cwd / "python"
    python.write_text("#!/usr/bin/env bash\nprintf '%q ' \"$@\"\necho\n")
    python.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(python), **variables}
    command = [str(ROOT / "scripts" / script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=cwd, env=environment, timeout=TIMEOUT
    )
    return [shlex.split(line) for line in done.stdout.splitlines()]
