"""The installed command, run in processes forked from one that has imported its libraries: importing takes seconds.

The command is what the package's entry point names, so nothing here knows a module of the package but ``olmo_sparsity.api``.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import torch
import torch.distributed.launcher.api as launcher
import transformers.models.llama.modeling_llama
import transformers.models.olmo.modeling_olmo
import transformers.models.olmo3.modeling_olmo3  # noqa: F401

import olmo_sparsity.api  # noqa: F401

DATA, EXPECTED = Path(__file__).parent / "data", Path(__file__).parent / "expected"
ROOT = Path(__file__).parents[2]
TIMEOUT = 120  # seconds
(COMMAND,) = entry_points(group="console_scripts", name="olmo-sparsity")
main: Callable[[], None] = COMMAND.load()
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([__name__])


def _in_process(arguments: tuple[str, ...]) -> None:
    sys.argv = ["olmo-sparsity", *arguments]
    main()


def _begin(
    arguments: tuple[str, ...], folder: Path, streams: Path, environment: dict[str, str], processes: int
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch.set_num_threads(1)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    if processes == 1:
        _in_process(arguments)
        return
    # As torchrun does, but with forked processes.
    launch = launcher.LaunchConfig(
        1, 1, processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id=str(os.getpid()), max_restarts=0,
        monitor_interval=0.1, start_method="fork",
    )  # fmt: skip
    launcher.elastic_launch(launch, _in_process)(arguments)


class Command:
    """A command that runs in a folder. ``wait`` returns its exit code; ``out`` and ``err`` are what it has printed."""

    def __init__(self, *arguments: object, cwd: Path, processes: int = 1) -> None:
        self._streams = tempfile.TemporaryDirectory()
        self.arguments = tuple(map(str, arguments))
        given = (self.arguments, cwd, Path(self._streams.name), dict(os.environ), processes)
        paths = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(__file__).parent)))
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            os.environ.update({} if paths is None else {"PYTHONPATH": paths})
        self._process = _server.Process(target=_begin, args=given)
        self._process.start()

    @property
    def out(self) -> str:
        return self._printed("out")

    @property
    def err(self) -> str:
        return self._printed("err")

    def _printed(self, name: str) -> str:
        path = Path(self._streams.name) / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def wait(self) -> int:
        self._process.join(TIMEOUT)
        assert self._process.exitcode is not None, f"still running after {TIMEOUT} s: {self.arguments}"
        return self._process.exitcode

    def kill_when(self, holds: Callable[[], bool]) -> None:
        """Kill the command as soon as something holds; fail if it ends before."""
        while not holds():
            assert self._process.is_alive(), f"ended before it could be killed: {self.arguments}\n{self.err}"
            time.sleep(0.001)
        self._process.kill()
        assert self.wait() == -9, f"ended before it was killed: {self.arguments}"


def run(*arguments: object, cwd: Path, processes: int = 1) -> str:
    """Run a command that must succeed; return what it prints."""
    command = Command(*arguments, cwd=cwd, processes=processes)
    assert command.wait() == 0, f"{command.arguments}\n{command.err}"
    return command.out
