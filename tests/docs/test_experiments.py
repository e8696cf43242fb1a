"""Recipes: every command line is one that the real commands accept; a small recipe runs, stops at a failure, and continues."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import ROOT

from analysis.drawing import figure_names
from experiments.__main__ import recipe_names
from olmo_sparsity.cli import options
from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config, shipped, to_dict

KEYS = ("num_windows", "local_len", "full_len", "visibility", "data", "seed", "precision")
SMALL = """
about: Folders.
settings: {folder: made, seeds: "0,1,2", extra: ""}
runs: {a: "", b: "{extra}"}
each: mkdir -p {run} {arguments}
then: ["echo {runs}"]
"""


def experiments(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)


def accepted(words: list[str]) -> dict[str, Any]:
    """Parse the arguments of ``olmo-sparsity`` as its command does, and return the values of the command's parameters."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    return command.make_context(command.name, words).params


def configuration(given: dict[str, Any]) -> Config:
    """What a command that trains or measures would do, which checks every key."""
    file = shipped(f"synthetic/{given['task']}") if "task" in given else None
    measured = {key: given.get(key) for key in KEYS}
    keys = options.keys_of(k=given.get("k"), selector=given.get("selector"), **measured)
    config = options.resolve(file, None, overrides=given["overrides"], model=given.get("model"), keys=keys).config
    config.with_measured_k()
    return config


def shown_folders(given: dict[str, Any]) -> list[Any]:
    """The runs and measurements that a command reads."""
    named = [given.get(name) or [] for name in ("run", "runs", "tables", "first", "second")]
    return [path for one in named for path in (one if isinstance(one, list) else [one])]


@pytest.mark.parametrize("name", recipe_names())
def test_every_command_of_a_recipe_is_accepted(name: str) -> None:
    printed = experiments(name, "--dry-run")
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    made: dict[str, Config] = {}
    for line in lines:
        program, *words = shlex.split(line)
        if program == "python":
            assert words[:2] == ["-m", "analysis"] and words[2] in figure_names()
            continue
        assert program == "olmo-sparsity"
        given = accepted(words)
        if "overrides" in given:
            folder = str(given.get("out") or given["run"])
            assert folder not in made, line
            made[folder] = configuration(given)
            if "ceiling" in folder:
                assert made[folder].context.train_len == made[folder].context.full_len
        else:
            assert not {str(path) for path in shown_folders(given)} - made.keys(), line
    assert len({str(to_dict(config)) for config in made.values()}) == len(made) > 1  # no two are the same run


def test_a_small_recipe_stops_at_a_failure_and_continues(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SMALL)
    failed = experiments("small.yaml", "--set", "extra=--no-such-option", cwd=tmp_path)
    assert failed.returncode == 1 and len(failed.stdout.splitlines()) == 4
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"a", "a-seed1", "a-seed2"}
    done = experiments("small.yaml", "-j", "2", "--set", "runs=b", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[-1].endswith(
        "--run made/b --run made/b-seed1 --run made/b-seed2"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nothing",), "nothing: no such recipe; there are evidence, "),
        (("seeds", "--set", "speed=2"), "--set speed=2: give KEY=VALUE; this recipe has runs, folder, seeds"),
        (("twin", "--set", "runs=sum"), "--set runs=sum: no run is named sum"),
        (("seeds", "-j", "0"), "-j 0: must be at least 1"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = experiments(*arguments)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1 and said in done.stderr
