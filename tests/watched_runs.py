"""Training runs as tests look at them: metrics, weights, a slowed command."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

CLOCK = ("tokens_per_second", "share_of_peak", "seconds")


def metrics(run: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in records]


def weights(run: Path) -> dict[str, Any]:
    folder = run / "checkpoints" / "latest"
    return {name: torch.load(folder / name, weights_only=True) for name in ("model.pt", "optim.pt")}


# The command, with a pause after every step, so that a signal comes in the middle.
SLOWED = """
import time, olmo_sparsity.training.loop as t
at = t.batch_at
t.batch_at = lambda *a: (time.sleep({pause}), at(*a))[1]
from olmo_sparsity.cli.app import main; main()
"""


def wait_for_lines(run: Path, process: subprocess.Popen[str], count: int) -> None:
    """Until a run has written so many lines of metrics, by a process that must not end before."""
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").is_file() or len((run / "metrics.jsonl").read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
