"""Kills a measurement with SIGKILL at random moments, resumes it, and compares its tables with those of an uninterrupted
one:

    python benchmarks/kills.py --run runs/demo --kills 20 --num-windows 600
    python benchmarks/kills.py --run runs/long --kills 4 --num-windows 6 --model MODEL --data FILES --full-len 4160 --k 8

What it does not know itself is passed on to ``olmo-sparsity influence``. It prints how much work the kills lost: the time since
the last part was finished. Exit code 0: all tables that were finished after kills are the same, byte for byte, and no kill lost a
finished part.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start(arguments: list[str], out: Path, *, processes: int) -> list[subprocess.Popen[bytes]]:
    """Start the measurement in one process, or in several, one shard each."""
    command = [sys.executable, "-m", "olmo_sparsity", "influence", "--out", str(out), *arguments]
    shards = [["--shard", f"{i}/{processes}"] if processes > 1 else [] for i in range(processes)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return [subprocess.Popen([*command, *shard], **quiet) for shard in shards]  # type: ignore[call-overload]


def finish(running: list[subprocess.Popen[bytes]]) -> None:
    """Wait for all processes.

    Raises:
        SystemExit: a process failed.
    """
    for process in running:
        _, errors = process.communicate()
        if process.returncode != 0:
            sys.exit(f"failed: {errors.decode(errors='replace')}")


def parts_of(out: Path) -> dict[Path, int]:
    """Return the inode of each part file: a part that is written again is another file."""
    return {path.relative_to(out): path.stat().st_ino for path in out.glob("*/*.parquet")}


def finished_parts(out: Path) -> dict[Path, int]:
    """Return the files of finished parts. ``windows`` is written last: a kill before that loses the part's other files."""
    parts = parts_of(out)
    return {path: inode for path, inode in parts.items() if Path("windows", path.name) in parts}


def seconds_lost(out: Path, began: float) -> float:
    """Return the time that a process which began at ``began`` (in seconds since the epoch) has spent on unfinished parts."""
    written = [(out / path).stat().st_mtime for path in finished_parts(out) if path.parent.name == "windows"]
    return time.time() - max([began, *written])


def is_complete(out: Path) -> bool:
    """Return True if the measurement in this folder is finished."""
    manifest = out / "manifest.json"
    return manifest.is_file() and '"status": "complete"' in manifest.read_text(encoding="utf-8")


def differences(whole: Path, out: Path) -> list[str]:
    """Return how two folders differ, byte for byte, and which temporary files are left."""
    expected, actual = parts_of(whole), parts_of(out)
    problems = [f"{path}: in one folder only" for path in sorted(expected.keys() ^ actual.keys())]
    both = sorted(expected.keys() & actual.keys())
    problems += [f"{path}: differs" for path in both if (whole / path).read_bytes() != (out / path).read_bytes()]
    problems += [f"{path}: left behind" for path in out.rglob("*.partial")]
    return problems if is_complete(out) else [*problems, "manifest.json: not complete"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --k is for the measurement
    )
    parser.add_argument("--run", required=True, help="folder of a trained run, or of the results of --model")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--num-windows", type=int, default=600)
    parser.add_argument("--windows-per-part", type=int, default=20)
    parser.add_argument(
        "--processes", type=int, default=1, help="number of processes, one shard each, that are killed together"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random moments")
    asked, passed_on = parser.parse_known_args()
    arguments = ["--run", asked.run, "--num-windows", str(asked.num_windows), *passed_on]
    arguments.append(f"influence.windows_per_part={asked.windows_per_part}")
    moments = random.Random(asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    whole, out = folder / "whole", folder / "out"

    began = time.monotonic()
    finish(start(arguments, whole, processes=1))
    seconds = time.monotonic() - began
    num_parts = len(list(whole.glob("windows/*.parquet")))
    print(f"uninterrupted: {seconds:.1f} s, {num_parts} parts", flush=True)

    kills, among_parts, tables, problems = 0, 0, 0, []
    lost: list[float] = []  # seconds, of each kill
    while kills < asked.kills or out.exists():
        before, killed, started = finished_parts(out), False, time.time()
        running = start(arguments, out, processes=asked.processes)
        if kills < asked.kills:
            time.sleep(moments.uniform(0, seconds))
            if any(process.poll() is None for process in running):
                lost.append(seconds_lost(out, started))
                for process in running:
                    process.kill()
                    process.communicate()
                kills, killed = kills + 1, True
        if not killed:
            finish(running)
        after = finished_parts(out)
        problems += [f"{path}: lost or written again" for path in before if after.get(path) != before[path]]
        among_parts += killed and len(before) < len(after) < len(parts_of(whole))
        if is_complete(out):
            if killed:
                finish(start(arguments, out, processes=1))  # the killed process may not have cleaned up
            problems += differences(whole, out)
            tables += 1
            shutil.rmtree(out)
    for problem in problems:
        print(problem)
    print(
        f"{kills} kills of {asked.processes} processes, {among_parts} of them between the first and the last part; "
        f"{tables} measurements finished after kills; {len(problems)} differences from the uninterrupted one"
    )
    if lost:
        print(f"a kill lost {statistics.fmean(lost):.1f} s on average, {max(lost):.1f} s at most")
    shutil.rmtree(folder)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
