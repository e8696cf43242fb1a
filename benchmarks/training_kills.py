"""Kills training with SIGKILL at random moments, resumes it, and compares losses and weights with an uninterrupted run:

    python -m benchmarks.training_kills --kills 10 training.steps=200 training.checkpoint_every=10

Exit code 0: all metrics that do not depend on the clock are the same, and the files of weights and optimizer byte for byte.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

POLL_SECONDS = 0.05  # between two readings of how far a run is
MAX_DELAY_SECONDS = 2.0  # from reaching the step to the kill: time for some steps and a checkpoint
CLOCK = ("tokens_per_second", "share_of_peak", "seconds")


def start(run: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "olmo_sparsity", "train", "--run", str(run), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process.

    Raises:
        SystemExit: it failed.
    """
    _, errors = process.communicate()
    if process.returncode != 0:
        sys.exit(f"failed: {errors.decode(errors='replace')}")


def step_of(run: Path) -> int:
    """Return the newest step in metrics.jsonl, or 0."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    complete = [line for line in lines if line.endswith("\n")]
    return int(json.loads(complete[-1])["step"]) if complete else 0


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without the values that depend on the clock."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in records]


def tensors(state: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Return the tensors in nested dictionaries and lists, by their paths."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {path: value for key, item in items for path, value in tensors(item, f"{name}/{key}").items()}


def differences(uninterrupted: Path, run: Path) -> list[str]:
    """Return a line for everything that is not the same, bit for bit, in both runs."""
    expected, actual = metrics(uninterrupted), metrics(run)
    lines = []
    if len(expected) != len(actual):
        lines.append(f"metrics.jsonl: {len(expected)} lines, and {len(actual)}")
    lines += [f"metrics.jsonl, step {a['step']}: differs" for a, b in zip(expected, actual, strict=False) if a != b]
    for file in ("model.pt", "optim.pt"):
        path = Path("checkpoints") / "latest" / file
        a, b = (tensors(torch.load(folder / path, weights_only=True)) for folder in (uninterrupted, run))
        lines += [f"{file}{name}: only in one" for name in sorted(a.keys() ^ b.keys())]
        lines += [f"{file}{name}: differs" for name in sorted(a.keys() & b.keys()) if not torch.equal(a[name], b[name])]
        if (uninterrupted / path).read_bytes() != (run / path).read_bytes():
            lines.append(f"{file}: other bytes")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="YAML configuration; default: configs/demo.yaml")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    parser.add_argument("override", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    arguments = [*(["--config", given.config] if given.config else []), *given.override]
    moments = random.Random(given.seed)
    folder = Path(tempfile.mkdtemp(prefix="training-kills-"))
    uninterrupted, run = folder / "uninterrupted", folder / "run"

    finish(start(uninterrupted, arguments))
    steps = step_of(uninterrupted)
    print(f"uninterrupted: {steps} steps", flush=True)

    killed_at: list[int] = []
    while len(killed_at) < given.kills:
        # Kill a random number of steps after the last kill; otherwise most kills would come while Python starts.
        kill_step = step_of(run) + moments.randint(0, 2 * steps // given.kills)
        process = start(run, arguments)
        while process.poll() is None and step_of(run) < kill_step:
            time.sleep(POLL_SECONDS)
        time.sleep(moments.uniform(0, MAX_DELAY_SECONDS))
        if process.poll() is not None:  # finished before it was killed: the remaining kills are those of a new run
            finish(process)
            if problems := differences(uninterrupted, run):
                sys.exit("\n".join(problems))
            shutil.rmtree(run)
            continue
        process.kill()
        process.communicate()
        killed_at.append(step_of(run))
    finish(start(run, arguments))
    problems = differences(uninterrupted, run)
    for problem in problems:
        print(problem)
    print(f"{len(killed_at)} kills, at steps {killed_at}; {len(problems)} differences from the uninterrupted run")
    shutil.rmtree(folder)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
