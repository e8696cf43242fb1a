"""Mutation testing: ``python -m benchmarks.mutants --room statistics [--number 40] [--seed 0] [--module bootstrap.py]``.

cosmic-ray changes one operator, number or comparison of a room at a time and runs the tests of that room. A mutant that no test
notices has survived: either a test is missing, or the change changes nothing. It all happens in a copy of the checkout, so that
an interrupted run leaves no mutant behind. Without ``--number`` every mutant is run, which takes days for a room; the share of a
random part that survives is an estimate of that of all.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).parents[1]
CONFIG = Path(__file__).with_name("cosmic-ray.toml")
ROOMS = {  # room -> (folder of the modules, folder of the tests)
    "statistics": ("olmo_sparsity/statistics", "tests/statistics"),
    "measure": ("olmo_sparsity/measure", "tests/measure"),
    "view": ("olmo_sparsity/view", "tests/view"),
    "analysis": ("analysis", "tests/analysis"),
}
COPIED = ("olmo_sparsity", "analysis", "benchmarks", "configs", "tests", "pyproject.toml")
# Operators whose mutants say little: ``|`` stands in annotations nearly always, and a condition that is turned round or a missing
# decorator is noticed by every test that comes there.
SKIPPED = ("core/ReplaceBinaryOperator_BitOr_", "core/AddNot", "core/RemoveDecorator")


def settings_of(room: str, *, module: Optional[str], tests: Optional[str]) -> str:
    """Return the configuration of cosmic-ray for one room, or one of its modules."""
    modules, room_tests = ROOMS[room]
    filled_in = {
        "ROOM": modules if module is None else f"{modules}/{module}",
        "TESTS": tests or room_tests,
        "PYTHON": sys.executable,
    }
    text = CONFIG.read_text(encoding="utf-8")
    for word, value in filled_in.items():
        text = text.replace(word, value)
    return text


def keep_some(session: Path, *, number: Optional[int], seed: int) -> int:
    """Leave a random part of the mutants of a session to be run, and return how many these are."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    with use_db(str(session), WorkDB.Mode.open) as database:
        items = sorted(database.pending_work_items, key=_place)  # in random order before
        wanted = [item for item in items if not item.mutations[0].operator_name.startswith(SKIPPED)]
        kept = wanted if number is None else random.Random(seed).sample(wanted, min(number, len(wanted)))
        jobs = {item.job_id for item in kept}
        left_out = [item.job_id for item in items if item.job_id not in jobs]
        database.set_multiple_results(left_out, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    return len(kept)


def _place(item: Any) -> tuple[Any, ...]:
    mutation = item.mutations[0]
    return str(mutation.module_path), mutation.start_pos, mutation.operator_name, mutation.occurrence


def tally(session: Path) -> tuple[Counter[str], list[str]]:
    """Return how many mutants ended how, and the changes that no test noticed."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome

    counts: Counter[str] = Counter()
    survivors = []
    with use_db(str(session), WorkDB.Mode.open) as database:
        for _, result in database.results:
            if result.worker_outcome != WorkerOutcome.SKIPPED:
                outcome = str(result.test_outcome and result.test_outcome.value)
                counts[outcome] += 1
                if outcome == "survived":
                    survivors.append(str(result.diff))
    return counts, survivors


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--room", choices=list(ROOMS), default="statistics")
    parser.add_argument("--module", help="one module of the room, such as bootstrap.py")
    parser.add_argument(
        "--tests", help="tests to run, such as tests/statistics/test_bootstrap.py; default: those of the room"
    )
    parser.add_argument("--number", type=int, help="how many mutants, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the draw; default 0")
    given = parser.parse_args(arguments)
    cosmic_ray = Path(sys.executable).with_name("cosmic-ray")
    if not cosmic_ray.is_file():
        print("cosmic-ray is not installed; run pip install 'olmo-sparsity[mutants]'", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, checkout / name)
        settings = settings_of(given.room, module=given.module, tests=given.tests)
        (checkout / CONFIG.name).write_text(settings, encoding="utf-8")
        session = checkout / "session.sqlite"

        def run(command: str, *arguments: str) -> None:
            environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
            subprocess.run([cosmic_ray, command, CONFIG.name, *arguments], cwd=checkout, env=environment, check=True)

        run("baseline")  # without a mutant the tests pass
        run("init", session.name)
        number = keep_some(session, number=given.number, seed=given.seed)
        print(f"{number} mutants of {given.module or given.room}", flush=True)
        run("exec", session.name)
        counts, survivors = tally(session)
    print("\n".join(survivors))
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
