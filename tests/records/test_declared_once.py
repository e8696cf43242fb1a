"""A selector is declared in one place: one that is added there is measured, priced, drawn and explained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from olmo_sparsity.records.selectors import SELECTORS

ROOT = Path(__file__).parents[2]
ADDED = """
import dataclasses, sys
import numpy as np
from olmo_sparsity.records import selectors

def farthest(cache):
    return -selectors.SELECTORS["nearest"].score(cache)

selectors.SELECTORS["farthest"] = dataclasses.replace(
    selectors.SELECTORS["nearest"],
    name="farthest",
    score=farthest,
    meaning="the {units} at the beginning of the window",
    is_control=False,
)

from olmo_sparsity.cli.app import main
from pathlib import Path

def command(*words):
    sys.argv = ["olmo-sparsity", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words

run = sys.argv[1]
settings = ("influence.resampled_draws=0", "influence.train_overlap=false")
command("influence", "--run", run, "--out", "tables", "--num-windows", "40", "--selector", "farthest", *settings)
command("summary", "--tables", "tables", "--every")
command("report", "--tables", "tables", "--out", "page.html")
command("figures", "--tables", "tables", "--all", "--out", "figures")
"""


def test_no_two_selectors_look_alike() -> None:
    looks = [selector.look for selector in SELECTORS.values()]
    for part in ("color", "marker", "on_light", "on_dark"):
        assert len({getattr(look, part) for look in looks}) == len(SELECTORS), part
    for name, selector in SELECTORS.items():
        assert name == selector.name


def test_a_selector_is_added_in_one_place(tiny_run: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADDED, str(tiny_run)],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "farthest" in done.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "the tokens at the beginning of the window" in page
    assert "picked by farthest" in page
    assert (tmp_path / "figures" / "gains.png").is_file()
