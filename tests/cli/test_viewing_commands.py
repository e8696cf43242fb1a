"""Every option of the commands that show results reaches what the command calls; no two of the values are alike."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

import pytest
from made_up import made_up_tables

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError

TABLES = Path("runs/tiny/influence/made-up")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("viewing")
    made_up_tables(folder / TABLES, num_documents=60)
    return folder


def invoke(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *shlex.split(line)])
    app(standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("figures --tables {}", "{}: these tables are not in a run folder; name the one that gets the folder figures/"),
        ("summary --tables {} training.steps=200", None),
        ("report --tables {} --run runs/other", None),
    ],
)
def test_tables_that_do_not_belong_to_what_is_named_are_refused(
    line: str, said: str | None, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the configuration names the run of the configuration."""
    tables = str(TABLES)
    if said is not None:
        tables = "loose"
        shutil.copytree(measured / TABLES, tmp_path / tables)
    shutil.copytree(measured / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=(said or "{}: these tables are of runs/tiny, not of runs/").format(tables)):
        invoke(line.format(tables), monkeypatch)
