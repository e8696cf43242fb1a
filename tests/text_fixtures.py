"""Fixtures of the snapshots of what commands print: invented measurements, and a way to run a command."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_runs import made_up_run
from planted_answers import answers
from planted_measurements import PLANTED, write
from printed_text import Printed, json_lines, without_layout

from olmo_sparsity.cli import endings
from olmo_sparsity.cli.app import app
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest

WIDTH = "600"  # columns of the terminal, in which no table is divided


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tables of each of ``PLANTED``, as runs/NAME/influence/of-NAME."""
    folder = tmp_path_factory.mktemp("planted")
    for name, of in PLANTED.items():
        write(folder / "runs" / name / "influence" / f"of-{name}", of)
    return folder


@pytest.fixture(scope="session")
def siblings(work: Path) -> None:
    """A measurement of the windows of ``run``, of another model; one of other text; a damaged manifest; unfinished tables."""
    run = PLANTED["run"]
    write(work / "others" / "weaker" / "influence" / "measured-a", replace(
        run, long_gain=0.42, gain_beyond=0.05, selectors={"kl": 0.2, "random": 0.05, "unmask-one": 0.5},
        manifest={"run": "weaker"},
    ))  # fmt: skip
    other = replace(PLANTED["failed"], manifest={**PLANTED["failed"].manifest, "source": "other text"})
    write(work / "others" / "weaker" / "influence" / "others-a", replace(other, num_documents=52))
    made_up_run(work / "others" / "weaker", seed=5)
    unfinished = made_up_run(work / "others" / "begun")
    write_manifest(unfinished, {**read_json(unfinished / "manifest.json"), "status": "running"})
    folder = write(unfinished / "influence" / "half", replace(PLANTED["few"], num_documents=9))
    manifest = read_json(folder / "manifest.json")
    write_manifest(folder, {**manifest, "status": "running"})
    (work / "others" / "broken").mkdir()
    (work / "others" / "broken" / "manifest.json").write_text("{")
    answers(work / "others" / "task" / "synthetic" / "tables", lambda length, k, place: 3)


@pytest.fixture
def printed(work: Path, monkeypatch: pytest.MonkeyPatch) -> Printed:
    """Run a command in ``work``; return its exit code and all that it prints, or with ``as_json`` its JSON, rounded.

    With ``as_laid_out`` tables keep the lines and spaces that lay them out.
    """
    monkeypatch.chdir(work)
    monkeypatch.setenv("COLUMNS", WIDTH)

    def run(line: str, *, as_json: bool = False, as_laid_out: bool = False) -> str:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = endings.run(app, shlex.split(line))
        if as_json:
            assert (code, err.getvalue()) == (0, "")
            return json_lines(json.loads(out.getvalue()))
        text = out.getvalue() if as_laid_out else without_layout(out.getvalue())
        return f"olmo-sparsity {line}\nexit code {code}\n{err.getvalue()}{text}"

    return run
