"""The targets of the Makefile that run several commands; programs that write down their arguments stand in for the real ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.needs("make")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment whose programs append their arguments to ``log``; the one named in ``fails`` fails."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("olmo-sparsity", "python"):
        script = f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/log\ncase "$*" in *"$FAILS"*) exit 1;; esac\n'
        script += 'case "$1" in scripts/find_tables.py) echo runs/of/influence/found;; esac\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    (tmp_path / "venv" / ".ready").touch()
    (tmp_path / "weights.gguf").touch()
    return tmp_path


def printed(environment: Path, *arguments: str, fails: str = "nothing") -> tuple[int, list[str], str]:
    """Run make, and return its exit status, the commands that it ran and what it printed."""
    (environment / "log").unlink(missing_ok=True)
    result = subprocess.run(
        ["make", "--no-print-directory", *arguments, f"VENV={environment / 'venv'}"],
        cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "FAILS": fails},
    )  # fmt: skip
    return result.returncode, (environment / "log").read_text().splitlines(), result.stdout


def make(environment: Path, *arguments: str, fails: str = "nothing") -> tuple[int, list[str]]:
    """Run make, and return its exit status and the commands that it ran."""
    return printed(environment, *arguments, fails=fails)[:2]


def test_curve_measures_the_four_and_compares_the_demo_with_the_others(environment: Path) -> None:
    status, commands = make(environment, "curve", "SEEDS=0 2")
    assert status == 0 and len(commands) == 8 + 6
    assert "olmo-sparsity influence --config configs/demo.yaml --run runs/demo --train training.seed=0" in commands[:8]
    ceiling = "--config configs/demo-ceiling.yaml --run runs/demo-ceiling-seed2 --train training.seed=2"
    assert f"olmo-sparsity influence {ceiling}" in commands[:8]
    assert commands[8:] == [
        f"olmo-sparsity compare runs/demo{end} runs/{other}{end}"
        for end in ("", "-seed2")
        for other in ("demo-no-pose", "demo-randpos", "demo-ceiling")
    ]


def test_evidence_draws_all_figures(environment: Path) -> None:
    status, commands = make(environment, "evidence")
    assert status == 0
    assert commands[:2] == [
        "olmo-sparsity influence --selector all --num-windows 3000",
        "olmo-sparsity figures --all",
    ]
    assert len(commands) == 2 + 4 + 3


def test_seeds_measures_the_demo(environment: Path) -> None:
    status, commands = make(environment, "seeds", "SEEDS=0 1")
    assert status == 0
    assert commands == [
        "olmo-sparsity influence --config configs/demo.yaml --run runs/demo --train training.seed=0",
        "olmo-sparsity influence --config configs/demo.yaml --run runs/demo-seed1 --train training.seed=1",
        "olmo-sparsity summary --run runs/demo --run runs/demo-seed1",
    ]
    _, commands = make(environment, "seeds")
    assert (
        "olmo-sparsity influence --config configs/demo.yaml --run runs/demo-seed2 --train training.seed=2" in commands
    )


def test_twin_evaluates_the_seeds_of_each_and_prints_them(environment: Path) -> None:
    status, commands = make(environment, "twin", "SEEDS=1 2 3")
    assert status == 0 and len(commands) == 3 + 3 + 2 + 1
    assert "olmo-sparsity synth eval sum --run runs/twin/sum-pose-seed3 training.seed=3" in commands
    ceiling = "context.train_len=32 pose.num_chunks=1 synthetic.train_lengths=[4,30]"
    assert f"olmo-sparsity synth eval sum {ceiling} --run runs/twin/sum-ceiling-seed1 training.seed=1" in commands
    assert (
        commands[7]
        == "olmo-sparsity synth eval sum pose.num_chunks=1 --run runs/twin/sum-no-pose-seed2 training.seed=2"
    )
    assert commands[8].startswith("olmo-sparsity synth summary --run runs/twin/sum-pose-seed1 ")
    assert commands[8].count("--run") == 8


def test_figures_synthetic_evaluates_every_way_to_give_position_ids_and_draws_them(environment: Path) -> None:
    status, commands = make(environment, "figures-synthetic", "SEEDS=1 2")
    assert status == 0 and len(commands) == 2 * (2 + 6 + 6) + 1
    assert (
        "olmo-sparsity synth eval parity synthetic.max_sparsity=4 --run runs/synthetic/parity-K4-seed1 training.seed=1"
        in commands
    )
    keys = "synthetic.positions=pose model.position_embedding=rope synthetic.scratchpad=false"
    run = "--run runs/synthetic/variables-pose-answer-seed2 training.seed=2"
    assert f"olmo-sparsity synth eval variables {keys} {run}" in commands
    assert commands[-1].count("--run") == 28 and commands[-1].endswith("--out runs/synthetic/figures")
    status, commands = make(environment, "figures-synthetic", fails="scratchpad-pose-seed0")
    assert status != 0 and "scratchpad-pose-seed0" in commands[-1]


def test_real_checks_the_weights_each_time_and_shows_what_it_measured(environment: Path) -> None:
    """Not the newest measurement of the model, which may be another one."""
    weights = environment / "weights.gguf"
    for data, option, argument in ((), "", ""), (("DATA=my texts/*.txt",), " --data my texts/*.txt", " my texts/*.txt"):
        status, commands = make(environment, "real", f"SMOLLM2={weights}", *data)
        assert status == 0
        assert commands == [
            f"python scripts/fetch_smollm2.py {weights}",
            f"olmo-sparsity influence --config configs/smollm2.yaml{option}",
            f"python scripts/find_tables.py configs/smollm2.yaml{argument}",
            "olmo-sparsity figures --tables runs/of/influence/found",
            "olmo-sparsity report --overwrite --tables runs/of/influence/found",
        ]


@pytest.mark.parametrize(
    ("target", "fails", "last"),
    [
        ("real", "fetch_smollm2", "fetch_smollm2.py"),
        ("real", "find_tables", "find_tables.py configs/smollm2.yaml"),
    ],
)
def test_nothing_long_runs_with_other_weights_or_without_a_text(
    target: str, fails: str, last: str, environment: Path
) -> None:
    status, commands = make(environment, target, f"SMOLLM2={environment / 'weights.gguf'}", fails=fails)
    assert status != 0
    assert last in commands[-1]


def test_a_failure_stops_the_target(environment: Path) -> None:
    status, commands = make(environment, "seeds", fails="runs/demo-seed1")
    assert status != 0
    assert commands[-1].endswith("--run runs/demo-seed1 --train training.seed=1")
