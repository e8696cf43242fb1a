"""Commands in processes of their own, which are forked from one that has imported the libraries: importing takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from olmo_sparsity.cli.app import main

TIMEOUT = 300  # seconds
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(
    [
        "olmo_sparsity.cli.app", "olmo_sparsity.training.loop", "olmo_sparsity.measure.influence",
        "olmo_sparsity.measure.validation", "olmo_sparsity.model.pretrained", "olmo_sparsity.view.report",
    ]
)  # fmt: skip


def _run(
    arguments: tuple[str, ...], folder: Path, streams: Path, environment: dict[str, str], largest_file: int
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(streams / name, os.O_WRONLY | os.O_CREAT), number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    sys.argv = ["olmo-sparsity", *arguments]
    main()


def run_cli(*arguments: str, cwd: Path, largest_file: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, in a process of its own, and return how it ended and what it printed.

    Args:
        arguments: of the command line.
        cwd: the folder.
        largest_file: bytes of the largest file that the process may write.
    """
    with tempfile.TemporaryDirectory() as name:
        streams = Path(name)
        process = _server.Process(target=_run, args=(arguments, cwd, streams, dict(os.environ), largest_file))
        process.start()
        process.join(TIMEOUT)
        assert process.exitcode is not None, f"{arguments}: still running after {TIMEOUT} seconds"
        out, err = ((streams / stream).read_text(encoding="utf-8") for stream in ("out", "err"))
    return subprocess.CompletedProcess(arguments, process.exitcode, out, err)
