"""The wheel, installed into an empty environment: it holds all that it needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from guard_commands import DATA, ROOT


@pytest.mark.wheel
def test_wheel_draws_a_figure(tmp_path: Path) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *quiet, "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    lock = ("--constraint", ROOT / "requirements.lock")
    subprocess.run([programs / "pip", "install", *quiet, "--no-compile", *lock, wheel], check=True)
    run = shutil.copytree(DATA / "runs" / "seed0", tmp_path / "runs" / "seed0")
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([programs / "olmo-sparsity", "figures", "--run", run], check=True, cwd=tmp_path, env=alone)
    assert list(run.glob("figures/*/figure5.png"))
    subprocess.run([programs / "olmo-sparsity", "config"], check=True, cwd=tmp_path, env=alone)
