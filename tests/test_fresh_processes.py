"""Every target of the Makefile, every script and every figure, started as users start them, on small data.

A module of ``analysis`` that is imported after others finds what those have set up. So each is started in a process of its own
here, with paths of one part.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache

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
    "evidence": ("", "runs/demo/figures/*/gains.png runs/demo-ceiling/influence/*/manifest.json"),
    "seeds": ("'SEEDS=0 1'", "runs/demo-seed1/influence/*/manifest.json"),
    "hypothesis": (
        "'SEEDS=0 1' TARGETS_OF_TEST=40",
        "runs/hypothesis/demo-ceiling-seed1/influence/*/manifest.json runs/hypothesis/figures/hypothesis.png",
    ),
    "twin": ("'SEEDS=0 1'", "runs/twin/sum-ceiling-seed1/synthetic/*/manifest.json"),
    "figures-synthetic": (
        "K_TRAIN=2 METHODS=pose",
        " ".join(
            f"runs/synthetic/figures/synthetic-{name}.png" for name in ("parity", "parity-scratchpad", "variables*")
        ),
    ),
    "real": ("DATA=long.jsonl", "runs/SmolLM2-*/figures/*/figure5.png runs/SmolLM2-*/figures/*/report.html"),
}
NOT_STARTED = {
    "figures": "make demo starts it",
    "report": "make demo starts it",
    "curve": "make evidence starts it",
    "bench": "installs captum and takes minutes",
    "gpu-check": "benchmarks/test_gpu_check.py runs its module",
    "mutants": "runs the tests many times",
    "browser": "installs a program",
    "docs": "installs and runs mkdocs; docs/test_pages.py checks the pages",
    "lock": "asks the package index",
    "test": "is what runs now",
    "check": "is what runs now",
    "format": "changes the checkout",
    "clean": "deletes the environment",
}
# Script -> (variables, arguments).
SCRIPTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "influence-torchrun.sh": ({"PROCESSES": "2"}, ("--run", "demo", "--k", "3", "training.threads=1")),
    "influence-slurm-array.sh": (
        {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}, ("--run", "demo", "--k", "5"),
    ),
}  # fmt: skip
STARTED_BY = {
    "find_tables.py": "make real",
    "fetch_smollm2.py": "scripts/test_fetch_smollm2.py, since it downloads",
    "train-slurm.sh": "train/test_processes.py",
}
# Figure -> (folder of the checkout that it is started in, its arguments); the others are drawn from the demo.
DEMO = ("runs", ("--run", "demo"))
FIGURES = {
    "hypothesis": ("runs/hypothesis", ("--run", "demo-seed1", "--run", "demo-ceiling-seed1")),
    "synthetic": ("runs/synthetic", ("--run", "parity-K2-seed0")),
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


def test_every_target_is_started_or_not_for_a_reason() -> None:
    (listed,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed.split()) == sorted([*TARGETS, *NOT_STARTED])
    assert {path.name for path in (ROOT / "scripts").iterdir() if path.is_file()} == {*SCRIPTS, *STARTED_BY}


@pytest.mark.parametrize("target", TARGETS)
def test_targets(target: str, checkout: SmallCheckout, made: Callable[[str], None]) -> None:
    made(target)
    for pattern in TARGETS[target][1].split():
        assert list(checkout.folder.glob(pattern)), pattern


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts(script: str, checkout: SmallCheckout, made: Callable[[str], None]) -> None:
    made("demo")
    variables, arguments = SCRIPTS[script]
    runs = checkout.folder / "runs"
    done = checkout.run(str(ROOT / "scripts" / script), *arguments, cwd=runs, **variables)
    assert done.returncode == 0, done.stderr
    k = arguments[arguments.index("--k") + 1]
    assert list(runs.glob(f"demo/influence/*-{k}-seed0-*/manifest.json"))


@pytest.mark.parametrize("name", STARTED)
def test_figures(name: str, checkout: SmallCheckout, made: Callable[[str], None]) -> None:
    """Each draws, in the style of ``olmo-sparsity figures``, or says why so small a measurement has nothing to show."""
    for target in ("demo", "evidence", "seeds", "hypothesis", "figures-synthetic"):
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
