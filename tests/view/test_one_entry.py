"""A number is added by one entry: it is in every command, the report and the figure that it names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from unlike_tables import KS, unlike_manifest, unlike_rows, write_rows

ENTRY = """

QUANTITIES["share_of_loss"] = Quantity(
    "share_of_loss", "sparse gain over L_short", lambda t: t["gain"] / t["loss_short_nats"], "selection", unit="", digits=4,
    definition="what a choice saves of the loss", show=("report", "compare", "figure:gains"),
)
"""
COMMANDS = """
import contextlib, io, json
from olmo_sparsity.cli.app import main
from olmo_sparsity.statistics.quantities import read_estimates
from olmo_sparsity.view.report import analysis
from pathlib import Path

def printed(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main(arguments)
    return out.getvalue()

tables = ["--tables", "measured"]
found = {form: printed("summary", *tables, f"--{form}") for form in ("json", "every")}
found["compare"] = printed("compare", "measured:kl", "measured:kl")
found["report"] = Path(printed("report", *tables, "--out", "report.html").split()[-1]).read_text(encoding="utf-8")
axes = analysis("gains").figure(read_estimates(Path("measured"))).axes
found["figure"] = {axis.get_title(loc="left"): [list(line.get_ydata()) for line in axis.lines] for axis in axes}
print(json.dumps(found, default=float))
"""


def test_a_number_is_added_by_one_entry(tmp_path: Path) -> None:
    root, manifest = Path(__file__).parents[2], unlike_manifest()
    for package in ("olmo_sparsity", "analysis"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "olmo_sparsity" / "statistics" / "quantities.py").open("a") as file:
        file.write(ENTRY)
    rows = unlike_rows(manifest)
    write_rows(tmp_path / "measured", manifest, rows)
    paths = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    command = [sys.executable, "-c", COMMANDS]
    ended = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)

    added = [of for of in json.loads(found["json"])["estimates"] if of["quantity"] == "share_of_loss"]
    keys = {"selector": "kl", "context": "real", "k": KS[0], "group": None}
    (one,) = [of for of in added if keys.items() <= of.items()]
    of_kl = [of for of in rows["selections"] if (of["selector"], of["context"]) == ("kl", "real")]
    gain = {of["window_id"]: of["gain_sparse_nats"][0] for of in of_kl}
    gains, losses, weights = np.array([
        (gain[of["window_id"]], of["loss_short_nats"], of["weight"]) for of in rows["windows"]
    ]).T  # fmt: skip
    assert one["value"] == pytest.approx((weights @ gains) / (weights @ losses), abs=1e-6)
    assert one["low"] < one["value"] < one["high"]
    shown = f"{one['value']:.4f}"
    every = [line for line in found["every"].splitlines() if "share_of_loss" in line]
    assert len(every) == len(added) and any(shown in line for line in every)
    assert shown in found["compare"]
    for text in (shown, "sparse gain over L_short", "what a choice saves of the loss"):
        assert text in unescape(found["report"])
    drawn = found["figure"]["sparse gain over L_short"]
    assert any(y == pytest.approx(one["value"]) for line in drawn for y in line)
