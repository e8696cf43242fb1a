"""What ``olmo-sparsity summary`` and ``list`` print of invented measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import made_up_run
from planted_measurements import PLANTED, write
from printed_text import Printed, csv_lines
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.config import PoseConfig


@pytest.fixture(scope="module")
def seeds(work: Path) -> list[str]:
    """Three seeds of one model, with the same windows."""
    runs = []
    for seed in (3, 4, 7):
        run = made_up_run(work / "seeds" / f"seed{seed}", seed=seed, pose=PoseConfig(max_position=31, num_chunks=3))
        of = replace(
            PLANTED["gap"], long_gain=0.4 + 0.02 * seed, selectors={"kl": 0.3, "random": 0.05, "unmask-one": 0.4}
        )
        manifest = {**of.manifest, "run": run.name, "checkpoint": {"step": 90, "model_sha256": run.name}}
        write(run / "influence" / "measured", replace(of, num_documents=51, manifest=manifest))
        runs.append(f"seeds/{run.name}")
    return runs


@pytest.mark.parametrize("name", PLANTED)
def test_summary(name: str, printed: Printed, snapshot: SnapshotAssertion) -> None:
    every = " --every" if name == "gap" else ""
    assert printed(f"summary --tables runs/{name}/influence/of-{name}{every}") == snapshot


@pytest.mark.parametrize(("name", "form"), [("stated", "md"), ("failed", "tex")])
def test_summary_in_other_forms(name: str, form: str, printed: Printed, snapshot: SnapshotAssertion) -> None:
    assert printed(f"summary --run runs/{name} --{form}") == snapshot


def test_summary_as_csv(printed: Printed, snapshot: SnapshotAssertion) -> None:
    assert (
        csv_lines(printed("summary --run runs/stated --csv", as_laid_out=True).partition("\nexit code 0\n")[2])
        == snapshot
    )


@pytest.mark.parametrize("name", ["stated"])
def test_summary_as_json(name: str, printed: Printed, snapshot: SnapshotAssertion) -> None:
    assert printed(f"summary --run runs/{name} --json", as_json=True) == snapshot


def test_summary_in_a_narrow_terminal(
    printed: Printed, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert printed("summary --run runs/few", as_laid_out=True) == snapshot


def test_summary_over_seeds(seeds: list[str], printed: Printed, snapshot: SnapshotAssertion) -> None:
    named = " ".join(f"--run {run}" for run in seeds)
    assert printed(f"summary {named} --every") == snapshot
    assert printed(f"summary {' '.join(f'--run {run}' for run in seeds[:2])} --md") == snapshot
    assert printed(f"summary {named} --json", as_json=True) == snapshot
