"""A checkout whose configurations are small, for the targets of the Makefile and the scripts.

They start a stand-in for Python. It hands the commands of the package, and the figures, on to processes that are forked from one
which has imported the libraries, as ``started_commands`` does. What installs, downloads or takes long is only written down.
"""

from __future__ import annotations

import json
import os
import runpy
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import yaml
from conftest import write_corpus
from quick_pictures import draw_quickly
from shown_commands import with_own_configuration
from started_commands import ROOT, TIMEOUT, Started, run_command
from tiny_gguf import save_gguf

LINKED = ("Makefile", "pyproject.toml", "requirements.lock", "analysis", "experiments", "scripts")
SMOLLM2 = "data/SmolLM2-135M-Instruct.Q4_1.gguf"
SELECTORS = ["kl", "unmask-one", "random"]  # where a configuration names none
# The sizes of all configurations; the rest is as in those of the package.
SIZES: dict[str, dict[str, Any]] = {
    "data": {"source": "words.jsonl", "tokenizer": "bpe:320", "cache_dir": "data", "validation_percent": 30},
    "training": {
        "steps": 2, "batch_rows": 8, "warmup_steps": 1, "eval_every": 1, "eval_rows": 8, "checkpoint_every": 2, "threads": 1,
        "compile": "never", "precision": "fp32", "device": "cpu",
    },
    "influence": {"num_windows": 12, "resampled_draws": 1},
    "synthetic": {"test_rows": 4},
}  # fmt: skip


def small_checkout(folder: Path) -> Path:
    """Make the checkout in a new folder, and return it."""
    folder.mkdir()
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for path in (ROOT / "configs").rglob("*.yaml"):
        small = folder / path.relative_to(ROOT)
        small.parent.mkdir(parents=True, exist_ok=True)
        small.write_text(yaml.safe_dump(_small(yaml.safe_load(path.read_text(encoding="utf-8")))))
    (folder / "docs" / "images").mkdir(parents=True)
    words = write_corpus(folder / "words.jsonl", 40)
    (folder / "data").mkdir()
    texts = [json.loads(line)["text"] for line in words.open()]
    save_gguf(folder / SMOLLM2, texts, max_position=256)
    with open(folder / "long.jsonl", "w") as file:
        file.writelines(json.dumps({"text": " ".join(texts[i : i + 8])}) + "\n" for i in range(len(texts) - 8))
    return folder


def _small(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with the sizes of ``SIZES``, and with a model of an eighth of its width."""
    small = {**config, **{name: {**config.get(name, {}), **sizes} for name, sizes in SIZES.items()}}
    small["influence"].setdefault("selectors", SELECTORS)
    if "model" in config:
        small["model"] = {**config["model"], "d_model": config["model"]["d_model"] // 8}
    return small


def run_small_command(arguments: tuple[str, ...]) -> None:
    """Run a command of the package in this process, with the configurations of the current directory, on few windows."""
    draw_quickly()
    few = str(SIZES["influence"]["num_windows"])
    words = [few if before == "--num-windows" else word for before, word in pairwise(("", *arguments))]
    options = list(takewhile(lambda word: word.startswith("-"), words))
    command = words[len(options) :]
    run_command((*options, *(with_own_configuration(command) if command else [])))


def run_figure(module: str, arguments: tuple[str, ...]) -> None:
    """Run ``python -m MODULE`` in this process, which has imported nothing of ``analysis``."""
    assert not [name for name in sys.modules if name.partition(".")[0] == "analysis"]
    draw_quickly()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def answer(command: list[str], cwd: Path) -> tuple[int, str, str]:
    """Run a command line of Python or of the package; return its exit status, what it printed, and its standard error."""
    match command:
        case ["olmo-sparsity", *rest] | ["python", "-m", "olmo_sparsity", *rest]:
            process = Started(run_small_command, tuple(rest), cwd=cwd)
        case [
            "python",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            number,
            "-m",
            "--",
            _,
            *rest,
        ]:
            process = Started(run_small_command, tuple(rest), cwd=cwd, processes=int(number))
        case ["python", "-m", "analysis", *rest]:
            process = Started(run_figure, "analysis", tuple(rest), cwd=cwd)
        case _:
            return 0, "", ""
    out, err = process.communicate()
    assert process.returncode is not None
    return process.returncode, out, err


CLIENT = """\
import json, os, socket, sys
with socket.create_connection(("localhost", {port})) as connection, connection.makefile("rw") as stream:
    print(json.dumps([os.getcwd(), *sys.argv[1:]]), file=stream, flush=True)
    code, out, err = json.loads(stream.readline())
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""
# Recipes run in Python itself, and find the stand-ins beside it.
PROGRAM = """\
#!/bin/sh
if [ "$2" = experiments ]; then
    shift 2
    exec {python} -c "import runpy, sys; sys.executable = '$0'; runpy.run_module('experiments', run_name='__main__')" "$@"
fi
exec {python} -S -E {client} {name} "$@"
"""


@dataclass(frozen=True)
class SmallCheckout:
    """A small checkout, and the programs that start its stand-in for Python."""

    folder: Path
    programs: Path  # the folder ``bin`` of its virtual environment

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run make in the checkout."""
        venv = f"VENV={self.programs.parent}"
        return self.run("make", "--no-print-directory", *arguments, venv)

    def run(self, *command: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program in the checkout, or in a folder inside it, and return how it ended and what it printed."""
        environment = {"PATH": os.environ["PATH"], "PYTHON": str(self.programs / "python"), **variables}
        return subprocess.run(
            command, cwd=cwd or self.folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT
        )


@contextmanager
def opened_small_checkout(folder: Path) -> Iterator[SmallCheckout]:
    """Make a small checkout in a new folder, and start what its stand-in for Python asks for while the context lasts."""

    class Answer(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            cwd, *command = json.loads(self.rfile.readline())
            self.wfile.write(f"{json.dumps(answer(command, Path(cwd)))}\n".encode())

    checkout = SmallCheckout(small_checkout(folder / "checkout"), folder / "venv" / "bin")
    checkout.programs.mkdir(parents=True)
    with socketserver.TCPServer(("localhost", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (folder / "client.py").write_text(CLIENT.format(port=server.server_address[1]))
        for name in ("python", "olmo-sparsity"):
            program = checkout.programs / name
            program.write_text(PROGRAM.format(python=sys.executable, client=folder / "client.py", name=name))
            program.chmod(0o755)
        (folder / "venv" / ".ready").touch()
        yield checkout
        server.shutdown()
