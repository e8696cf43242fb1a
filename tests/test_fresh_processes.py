"""What the Makefile, the scripts and the figures do, started as users start them, on small data.

A module of ``analysis`` that is imported after others finds what those have set up. So each is started in a process of its own
here, with paths of one part.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from quick_pictures import style_of
from small_checkout import SmallCheckout, opened_small_checkout, run_figure
from started_commands import ROOT, Started

pytestmark = pytest.mark.needs("make")

# Target -> further arguments of make, and what it makes.
TARGETS = {
    "demo": (
        "",
        "runs/demo/figures/*/first_picture.pdf runs/demo/figures/*/figure4.png runs/demo/figures/*/report.html",
    ),
    "evidence": ("", "runs/demo/figures/*/gains.png runs/evidence/figures/gains.png"),
    "hypothesis": ("SET='seeds=0,1 targets=40'", "runs/hypothesis/figures/hypothesis.png"),
    "synthetic": (
        "SET=runs=parity-K2,scratchpad-pose,variables-pose",
        " ".join(
            f"runs/synthetic/figures/synthetic-{name}.png" for name in ("parity", "parity-scratchpad", "variables*")
        ),
    ),
    "smollm2": ("SET=data=long.jsonl", "runs/smollm2/figures/figure5.png runs/smollm2/report.html"),
}
LONG = ("evidence", "hypothesis")  # more than ten seconds
# Script -> (variables, arguments).
SCRIPTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "influence-torchrun.sh": ({"PROCESSES": "2"}, ("--run", "demo", "--k", "3", "training.threads=1")),
    "influence-slurm-array.sh": (
        {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}, ("--run", "demo", "--k", "5"),
    ),
}  # fmt: skip
# Figure -> (folder of the checkout that it is started in, its arguments); the others are drawn from the demo.
DEMO = ("runs", ("--run", "demo"))
FIGURES = {
    "hypothesis": ("runs/hypothesis", ("--run", "demo-seed1", "--run", "demo-ceiling-seed1")),
    "synthetic": ("runs/synthetic", ("--run", "parity-K2")),
}
STARTED = sorted(
    path.stem for path in (ROOT / "analysis").glob("*.py") if "\nNEEDS = " in path.read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCheckout]:
    with opened_small_checkout(tmp_path_factory.mktemp("small")) as opened:
        yield opened


@pytest.fixture(scope="module")
def made(checkout: SmallCheckout) -> Callable[[str], None]:
    """A function that makes a target once."""

    @cache
    def make(target: str) -> None:
        done = checkout.make(target, *shlex.split(TARGETS[target][0]))
        assert done.returncode == 0, done.stdout + done.stderr

    return make


@pytest.mark.parametrize("target", [pytest.param(of, marks=[pytest.mark.slow] * (of in LONG)) for of in TARGETS])
def test_targets(target: str, checkout: SmallCheckout, made: Callable[[str], None]) -> None:
    made(target)
    for pattern in TARGETS[target][1].split():
        assert list(checkout.folder.glob(pattern)), pattern


def test_a_recipe_that_runs_again_continues(checkout: SmallCheckout) -> None:
    """What a stopped one has not made is made, what it has made stays as it is."""

    def files() -> dict[Path, int]:
        parts = (checkout.folder / "runs").glob("twin/*/synthetic/*/answers/*")
        return {path: path.stat().st_mtime_ns for path in parts}

    assert checkout.make("twin", "SET=seeds=1 runs=sum-pose").returncode == 0
    made = files()
    done = checkout.make("twin", "SET=seeds=1,2 runs=sum-pose,sum-ceiling", "J=2")
    assert done.returncode == 0 and len(files()) == 4 * len(made) > 0 and made.items() <= files().items()
    assert done.stdout.count("olmo-sparsity synth eval") == 4


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts(script: str, checkout: SmallCheckout, made: Callable[[str], None]) -> None:
    made("demo")
    variables, arguments = SCRIPTS[script]
    runs = checkout.folder / "runs"
    done = checkout.run(str(ROOT / "scripts" / script), *arguments, cwd=runs, **variables)
    assert done.returncode == 0, done.stderr
    k = arguments[arguments.index("--k") + 1]
    assert list(runs.glob(f"demo/influence/*-{k}-seed0-*/manifest.json"))


@pytest.mark.slow
@pytest.mark.parametrize("name", STARTED)
def test_figures(name: str, checkout: SmallCheckout, made: Callable[[str], None]) -> None:
    """Each draws, in the style of ``olmo-sparsity figures``, or says why so small a measurement has nothing to show."""
    for target in ("demo", "evidence", "hypothesis", "synthetic"):
        made(target)
    folder, arguments = FIGURES.get(name, DEMO)
    cwd = checkout.folder / folder
    out = cwd / "drawn" / name
    out.mkdir(parents=True)
    drawing = Started(run_figure, "analysis", (name, *arguments, "--out", f"drawn/{name}"), cwd=cwd)
    _, errors = drawing.communicate()
    if name in ("classes", "recovered", "spectrum") and drawing.returncode == 2:
        assert errors.splitlines()[-1].startswith(f"analysis: error: {name}: ")
        return
    assert drawing.returncode == 0, errors
    pictures = list(out.glob("*.png"))
    style = style_of(next(checkout.folder.glob("runs/demo/figures/*/first_picture.png")))
    assert pictures and {style_of(picture) for picture in pictures} == {style}
