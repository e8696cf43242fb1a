"""Measures time and memory of reading tables: ``python -m benchmarks.reading`` (``--windows 10000`` for one size only).

Writes valid tables (``generated_tables``: six selectors and controls, 22 rows of selections for each window) in a temporary
folder, runs ``olmo-sparsity summary`` and ``python -m analysis`` on them, and deletes them. A million windows need 2 GB of disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

# Large packages are not imported here: the kernel counts the memory of this process towards the peak of the commands it starts.

SIZES = (10_000, 100_000, 1_000_000)
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Cost:
    """What a command cost: seconds of wall and processor time, and peak resident memory in MB."""

    wall: float
    processor: float
    peak_megabytes: float


def run(*arguments: str) -> Cost:
    """Run ``python -m arguments``, which must succeed, and return its cost."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"python -m {' '.join(arguments)}: it failed")
    kilobytes = usage.ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return Cost(
        wall=time.perf_counter() - start,
        processor=usage.ru_utime + usage.ru_stime,
        peak_megabytes=kilobytes / 1024,
    )


def num_rows(tables: Path) -> int:
    """Return the number of rows of all tables of a folder."""
    from pyarrow.parquet import read_metadata

    return sum(read_metadata(path).num_rows for path in tables.rglob("*.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, nargs="+", default=SIZES, help="numbers of windows")
    print(
        f"{'windows':>9} {'rows':>11} {'tables, MB':>10}  {'command':22} {'wall, s':>8} {'CPU, s':>8} {'peak memory, MB':>16}",
        flush=True,
    )
    for num_windows in parser.parse_args().windows:
        with tempfile.TemporaryDirectory() as temporary:
            tables = Path(temporary) / "run" / "influence" / "generated"
            run("benchmarks.generated_tables", str(tables), str(num_windows))
            # Elsewhere: a process that is started has at least the peak of memory of the one that starts it.
            with multiprocessing.get_context("spawn").Pool(1) as elsewhere:
                rows = elsewhere.apply(num_rows, [tables])
            megabytes = sum(path.stat().st_size for path in tables.rglob("*.parquet")) / 2**20
            for command in (("olmo_sparsity", "summary"), ("olmo_sparsity", "summary", "--every"), ("analysis",)):
                cost = run(*command, "--run", str(Path(temporary) / "run"))
                words = " ".join(command).replace("olmo_sparsity", "olmo-sparsity").replace("analysis", "all figures")
                print(
                    f"{num_windows:9} {rows:11} {megabytes:10.0f}  {words:22} {cost.wall:8.1f} {cost.processor:8.1f} "
                    f"{cost.peak_megabytes:16.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
