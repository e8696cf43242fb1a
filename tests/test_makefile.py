"""The targets of the Makefile that train several runs; programs that write down their arguments stand in for the real ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment whose programs append their arguments to ``log``; the one named in ``fails`` fails."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("olmo-sparsity", "python"):
        script = f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/log\ncase "$*" in *"$FAILS"*) exit 1;; esac\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / ".ready").touch()
    return tmp_path


def make(environment: Path, *arguments: str, fails: str = "nothing") -> tuple[int, list[str]]:
    """Run make, and return its exit status and the commands that it ran."""
    (environment / "log").unlink(missing_ok=True)
    result = subprocess.run(
        ["make", "--no-print-directory", *arguments, f"VENV={environment / 'venv'}"],
        cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "FAILS": fails},
    )  # fmt: skip
    return result.returncode, (environment / "log").read_text().splitlines()


def test_curve_measures_the_four_and_draws_them(environment: Path) -> None:
    names = ("demo", "demo-no-pose", "demo-randpos", "demo-ceiling")
    status, commands = make(environment, "curve")
    assert status == 0
    measured = [
        f"olmo-sparsity context-curve --config configs/{name}.yaml --run runs/{name} --train training.seed=0"
        for name in names
    ]
    options = " ".join(f"--run runs/{name}" for name in names)
    assert commands == [*measured, f"python -m analysis.context_curve {options} --out runs/figures"]
    _, commands = make(environment, "curve", "SEEDS=0 2")
    assert len(commands) == 9
    assert (
        "olmo-sparsity context-curve --config configs/demo-ceiling.yaml --run runs/demo-ceiling-seed2 --train training.seed=2"
        in commands
    )
    assert "--run runs/demo --run runs/demo-seed2 --run runs/demo-no-pose --run runs/demo-no-pose-seed2" in commands[-1]


def test_seeds_measures_the_demo_and_the_ladder(environment: Path) -> None:
    status, commands = make(environment, "seeds", "LADDER=configs/scale/a.yaml configs/scale/b.yaml", "SEEDS=0 1")
    assert status == 0
    assert commands == [
        "olmo-sparsity influence --config configs/demo.yaml --run runs/demo --train training.seed=0",
        "olmo-sparsity influence --config configs/demo.yaml --run runs/demo-seed1 --train training.seed=1",
        "olmo-sparsity influence --config configs/scale/a.yaml --run runs/scale/a --train training.seed=0",
        "olmo-sparsity influence --config configs/scale/b.yaml --run runs/scale/b --train training.seed=0",
        "olmo-sparsity influence --config configs/scale/a.yaml --run runs/scale/a-seed1 --train training.seed=1",
        "olmo-sparsity influence --config configs/scale/b.yaml --run runs/scale/b-seed1 --train training.seed=1",
        "olmo-sparsity summary --run runs/demo --run runs/demo-seed1",
        "python -m analysis.scale --run runs/scale/a --run runs/scale/a-seed1 --run runs/scale/b --run runs/scale/b-seed1 "
        "--out runs/scale/figures",
    ]
    _, commands = make(environment, "seeds", "LADDER=configs/scale/a.yaml")
    assert (
        "olmo-sparsity influence --config configs/demo.yaml --run runs/demo-seed2 --train training.seed=2" in commands
    )


def test_lengths_measures_the_same_targets_at_every_length_and_draws_them(environment: Path) -> None:
    given = ("SMOLLM2=Makefile", "LENGTHS=512 128", "DATA=books/*.jsonl")  # weights that are there are not fetched
    status, commands = make(environment, "lengths", *given)
    assert status == 0
    options = "influence --config configs/lengths.yaml --run runs/lengths --out runs/lengths/influence"
    assert commands == [
        f"olmo-sparsity {options}/64of512 --full-len 512 --k 448 influence.min_preceding=512 --data books/*.jsonl",
        f"olmo-sparsity {options}/64of128 --full-len 128 --k 64 influence.min_preceding=512 --data books/*.jsonl",
        "python -m analysis.effective_sparsity --tables runs/lengths/influence/64of512 --tables runs/lengths/influence/64of128 "
        "--out runs/lengths/figures",
    ]
    _, commands = make(environment, "lengths", "SMOLLM2=Makefile", "RUN=runs/others")
    assert "--run runs/others --out runs/others/influence/64of256 --full-len 256 --k 192" in commands[1]


def test_a_failure_stops_the_target(environment: Path) -> None:
    status, commands = make(environment, "seeds", fails="runs/demo-seed1")
    assert status != 0
    assert commands[-1].endswith("--run runs/demo-seed1 --train training.seed=1")
