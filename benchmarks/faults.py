"""Faults while commands write: kills at random moments, files that may not grow (as on a full disk), folders that are read-only.

    python benchmarks/faults.py --run runs/demo --tables runs/demo/influence/NAME --faults 10

``benchmarks/kills.py`` and ``benchmarks/training_kills.py`` kill measurements and training. This kills the commands that show and
export. Exit code 0: after every fault there was one line (none after a kill) and no file under its name but whole ones, and the
next run of the command left nothing behind.
"""

from __future__ import annotations

import argparse
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Optional

FAULTS = ("kill", "full disk", "read-only")
COMMANDS = {
    "report": ("report", "--tables", "{tables}", "--out", "{out}/report.html", "--overwrite"),
    "compare": ("compare", "{tables}:kl", "{tables}:random", "--out", "{out}/compare.html", "--overwrite"),
    "export hf": ("export", "hf", "{run}", "{out}/hf", "--overwrite"),
    "figures": ("figures", "--run", "{out}/run", "--tables", "{tables}"),
}


def start(command: list[str], *, largest_file: Optional[int] = None) -> subprocess.Popen[bytes]:
    """Start a command; none of its files may become larger than ``largest_file`` bytes."""

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))

    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "olmo_sparsity", "--quiet", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=limit,
    )


def sizes(out: Path) -> dict[Path, int]:
    """Return the size of every file below a folder, temporary ones included."""
    return {path.relative_to(out): path.stat().st_size for path in out.rglob("*") if path.is_file()}


def is_partial(path: Path) -> bool:
    """Return True for a temporary file, or one in a temporary folder."""
    return any(part.endswith((".partial", ".lock")) for part in path.parts)


def inflict(
    fault: str, command: list[str], out: Path, *, seconds: float, largest: int, moments: random.Random
) -> list[str]:
    """Run a command under a fault, and return what it left wrong on standard error."""
    if fault == "read-only":
        # A read-only folder does not hold a superuser back; a file in the place of a folder does.
        shutil.rmtree(out)
        out.write_text("a file where a folder is needed")
    running = start(command, largest_file=moments.randrange(1, largest) if fault == "full disk" else None)
    if fault == "kill":
        time.sleep(moments.uniform(0.3, 1) * seconds)
        running.kill()
    _, errors = running.communicate()
    if fault == "read-only":
        out.unlink()
        out.mkdir()
    lines = errors.decode(errors="replace").splitlines()
    if fault == "kill" or running.returncode == 0:
        return []
    is_one_line = running.returncode == 2 and len(lines) == 1 and lines[0].startswith("olmo-sparsity: error: ")
    return (
        []
        if is_one_line
        else [f"exit code {running.returncode}, {len(lines)} lines, the last: {(lines or [''])[-1][:150]}"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--run", required=True, help="folder of a trained run")
    parser.add_argument("--tables", required=True, help="a finished measurement of it")
    parser.add_argument("--faults", type=int, default=10, help="of each kind, for each command")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), choices=list(COMMANDS))
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and sizes")
    asked = parser.parse_args()
    moments, problems, tally = random.Random(asked.seed), 0, Counter[tuple[str, str]]()
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    for name in asked.commands:
        out = folder / name.replace(" ", "-")
        out.mkdir()
        command = [part.format(run=asked.run, tables=asked.tables, out=out) for part in COMMANDS[name]]
        begun = time.monotonic()
        if start(command).wait() != 0:
            sys.exit(f"{name}: failed without a fault")
        seconds, whole = time.monotonic() - begun, sizes(out)
        for fault in FAULTS:
            for _ in range(asked.faults):
                shutil.rmtree(out)
                out.mkdir()
                found = inflict(fault, command, out, seconds=seconds, largest=max(whole.values()), moments=moments)
                after = sizes(out)
                found += [f"{path}: torn" for path, size in after.items() if not is_partial(path) and size == 0]
                found += [f"{path}: left behind" for path in after if is_partial(path) and fault != "kill"]
                if start(command).wait() != 0:
                    found.append("failed when it was run again")
                found += [f"{path}: left behind" for path in sizes(out) if is_partial(path)]
                found += [f"{path}: missing" for path in whole.keys() - sizes(out).keys()]
                tally[name, fault] += 1
                problems += bool(found)
                for problem in found:
                    print(f"{name}, {fault}: {problem}", flush=True)
    for (name, fault), number in tally.items():
        print(f"{name}: {number} x {fault}")
    print(f"{sum(tally.values())} faults, {problems} with a problem")
    shutil.rmtree(folder)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
