"""What can be known without torch is rejected before it is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up_text

# Runs each command in turn, and prints its exit code and whether torch is there afterwards.
SCRIPT = """
import json, sys
from olmo_sparsity.cli.app import app
from olmo_sparsity.cli.endings import run
for arguments in json.loads(sys.argv[1]):
    print(run(app, arguments), any(name in sys.modules for name in ("torch", "transformers", "olmo")))
"""


@pytest.fixture
def mistakes(tiny_run: Path, tmp_path: Path) -> dict[str, str]:
    """Commands with a mistake, and what is said of it. They stand in the current folder."""
    (tmp_path / "text.txt").write_text(made_up_text(np.random.default_rng(5), 80), encoding="utf-8")
    (tmp_path / "page.html").write_text("mine")
    explore = f"explore --run {tiny_run} --text text.txt"
    return {
        "influence --run none": "none: this run is not trained",
        f"influence --run {tiny_run} --k 999": "influence.k = ",
        f"influence --run {tiny_run} --shard 5/3": "--shard 5/3: must be I/N",
        f"influence --run {tiny_run} --data nowhere": "nowhere: no such file, folder or glob",
        f"influence --run {tiny_run} influence.anchor=maybe": "influence.anchor = maybe: must be one of",
        "influence --model nowhere.gguf": "nowhere.gguf: no such folder or file",
        "explore --model ./nowhere/at/all --text text.txt --at 3": "./nowhere/at/all: no such folder or file",
        "explore --run none --text text.txt --at 200": "none: this run is not trained",
        f"explore --run {tiny_run} --text nowhere --at 3": "nowhere: no such file",
        f"{explore} --k 999": "influence.k = ",
        f"{explore} --seed {2**64}": "influence.seed = ",
        f"{explore} --selector h2o": "h2o: chooses entries of a key-value cache",
        f"{explore} --out page.html": "page.html: this is no page",
    }


def test_mistakes_are_found_before_torch_is_imported(mistakes: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps([command.split() for command in mistakes])],
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["2 False"] * len(mistakes)
    for line, (command, words) in zip(done.stderr.splitlines(), mistakes.items(), strict=True):
        assert words in line, command
