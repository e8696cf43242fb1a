"""No test depends on what the checkout holds, on the current directory or on the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from started_commands import ROOT


def test_the_current_directory_is_empty_and_not_the_checkout() -> None:
    assert ROOT not in (Path.cwd(), *Path.cwd().parents)
    assert not list(Path.cwd().iterdir())


def test_of_the_environment_only_places_are_left() -> None:
    hostile = (
        "RANK",
        "WORLD_SIZE",
        "MPLBACKEND",
        "NO_COLOR",
        "COLUMNS",
        "HF_HOME",
        "HF_HUB_OFFLINE",
        "SLURM_JOB_ID",
        "RUN",
    )
    done = subprocess.run(
        [sys.executable, "-c", "import clean_environment, os; print(*os.environ)"],
        cwd=ROOT / "tests", env=dict.fromkeys((*hostile, "PATH", "HOME"), "x"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    kept = {"PATH", "HOME", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", "PYTHONPATH", "MATPLOTLIBRC"}
    assert set(done.stdout.split()) == kept
    assert not set(hostile) & set(os.environ)
