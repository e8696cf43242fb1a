"""Helpers that look at training runs: metrics, weights, and runs that are killed."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import torch
from started_commands import Started

CLOCK = ("tokens_per_second", "seconds")


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of ``metrics.jsonl`` without the values that depend on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in records]


def weights(run: Path) -> dict[str, Any]:
    """Return the tensors of the newest checkpoint, by file."""
    folder = run / "checkpoints" / "latest"
    return {name: torch.load(folder / name, weights_only=True) for name in ("model.pt", "optim.pt")}


def wait_for_lines(run: Path, process: Started | subprocess.Popen[str], count: int) -> None:
    """Wait until a run has written ``count`` lines of metrics. The process must not end before that."""
    deadline = time.monotonic() + 120
    while not (run / "metrics.jsonl").is_file() or len((run / "metrics.jsonl").read_text().splitlines()) < count:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
