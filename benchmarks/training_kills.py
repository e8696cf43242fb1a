"""Kills training with SIGKILL at random moments, lets it go on, and compares losses and weights with those of a run that
was left alone:

    python -m benchmarks.training_kills --kills 10 training.steps=200 training.checkpoint_every=10

Exit code 0: every number of metrics.jsonl but the clock's, every weight and all of the optimizer's state are the same, to
the last bit.
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

LOOK_SECONDS = 0.05  # between two looks at how far a run is
MOST_SECONDS = 2.0  # from there to the kill, at most: some steps and a checkpoint
CLOCK = ("tokens_per_second", "share_of_peak", "seconds")


def start(run: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "olmo_sparsity", "train", "--run", str(run), *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    """Waits for it.

    Raises:
        SystemExit: it failed.
    """
    _, said = process.communicate()
    if process.returncode != 0:
        sys.exit(f"failed: {said.decode(errors='replace')}")


def step_of(run: Path) -> int:
    """The newest step in metrics.jsonl; 0 where there is none."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    whole = [line for line in lines if line.endswith("\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def numbers(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what the clock gave."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in record.items() if key not in CLOCK} for record in records]


def tensors(state: Any, name: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of nested dictionaries and lists, by its path."""
    if isinstance(state, torch.Tensor):
        return {name: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {path: value for key, item in items for path, value in tensors(item, f"{name}/{key}").items()}


def differences(whole: Path, run: Path) -> list[str]:
    """What is not the same in two runs, to the last bit."""
    ours, theirs = numbers(whole), numbers(run)
    found = [f"metrics.jsonl: {len(ours)} lines, and {len(theirs)}"] if len(ours) != len(theirs) else []
    found += [f"metrics.jsonl, step {a['step']}: differs" for a, b in zip(ours, theirs, strict=False) if a != b]
    for file in ("model.pt", "optim.pt"):
        path = Path("checkpoints") / "latest" / file
        a, b = (tensors(torch.load(folder / path, weights_only=True)) for folder in (whole, run))
        found += [f"{file}{name}: only in one" for name in sorted(a.keys() ^ b.keys())]
        found += [f"{file}{name}: differs" for name in sorted(a.keys() & b.keys()) if not torch.equal(a[name], b[name])]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="YAML configuration; default: configs/demo.yaml")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("override", nargs="*", metavar="KEY=VALUE")
    asked = parser.parse_args()
    arguments = [*(["--config", asked.config] if asked.config else []), *asked.override]
    moments = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="training-kills-"))
    whole, run = folder / "whole", folder / "run"

    finish(start(whole, arguments))
    steps = step_of(whole)
    print(f"uninterrupted: {steps} steps", flush=True)

    killed_at: list[int] = []
    while len(killed_at) < asked.kills:
        # A random number of steps further than the last time, or most kills would strike while Python starts.
        further = step_of(run) + moments.randint(0, 2 * steps // asked.kills)
        process = start(run, arguments)
        while process.poll() is None and step_of(run) < further:
            time.sleep(LOOK_SECONDS)
        time.sleep(moments.uniform(0, MOST_SECONDS))
        if process.poll() is not None:  # finished before its kill: the moments that are left are spent on a new run
            finish(process)
            if found := differences(whole, run):
                sys.exit("\n".join(found))
            shutil.rmtree(run)
            continue
        process.kill()
        process.communicate()
        killed_at.append(step_of(run))
    finish(start(run, arguments))
    problems = differences(whole, run)
    for problem in problems:
        print(problem)
    print(f"{len(killed_at)} kills, at steps {killed_at}; {len(problems)} differences from the uninterrupted run")
    shutil.rmtree(folder)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
