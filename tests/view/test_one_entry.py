"""A number is added by one entry: it is in every command, the report and the figure that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner
from unlike_tables import KS, unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.cli.app import app
from olmo_sparsity.statistics.quantities import QUANTITIES, Quantity


def run(*arguments: str) -> str:
    ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_a_number_is_added_by_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Quantity(
        "share_of_loss",
        "sparse gain over L_short",
        lambda t: t["gain"] / t["loss_short_nats"],
        "selection",
        unit="",
        digits=4,
        definition="what a choice saves of the loss",
        show=("report", "compare", "figure:gains"),
    )
    manifest = unlike_manifest()
    rows = unlike_rows(manifest)
    tables = write_rows(tmp_path / "runs" / "a" / "influence" / "measured", manifest, rows)
    before = json.loads(run("summary", "--tables", str(tables), "--json"))["estimates"]
    monkeypatch.setitem(QUANTITIES, entry.name, entry)
    monkeypatch.setenv("COLUMNS", "200")

    records = json.loads(run("summary", "--tables", str(tables), "--json"))["estimates"]
    added = [of for of in records if of["quantity"] == entry.name]
    assert [of for of in records if of["quantity"] != entry.name] == before
    wanted = next(
        of for of in added if (of["selector"], of["context"], of["k"], of.get("group")) == ("kl", "real", KS[0], None)
    )
    weight = sum(window["weight"] for window in rows["windows"])
    gains = {
        row["window_id"]: row["gain_sparse_nats"][0]
        for row in rows["selections"]
        if (row["selector"], row["context"]) == ("kl", "real")
    }
    gain = sum(window["weight"] * gains[window["window_id"]] for window in rows["windows"]) / weight
    loss = sum(window["weight"] * window["loss_short_nats"] for window in rows["windows"]) / weight
    assert wanted["value"] == pytest.approx(gain / loss, abs=1e-6)
    assert wanted["low"] < wanted["value"] < wanted["high"]

    shown = f"{wanted['value']:.4f}"
    every = [line for line in run("summary", "--tables", str(tables), "--every").splitlines() if entry.name in line]
    assert len(every) == len(added)
    assert any(shown in line for line in every)
    assert shown in run("compare", f"{tables}:kl", f"{tables}:kl")

    page = Path(run("report", "--tables", str(tables), "--out", str(tmp_path / "report.html")).split()[-1])
    texts = re.sub(r"<[^>]*>", " ", page.read_text(encoding="utf-8"))
    assert entry.header in texts
    assert shown in texts
    assert entry.definition in page.read_text(encoding="utf-8")

    from analysis import gains as figure_of_gains
    from olmo_sparsity.statistics.quantities import read_estimates

    panel = next(
        axis
        for axis in figure_of_gains.figure(read_estimates(tables)).axes
        if entry.label in (axis.get_title(), axis.get_title(loc="left"))
    )
    assert any(wanted["value"] == pytest.approx(y) for line in panel.lines for y in line.get_ydata())
