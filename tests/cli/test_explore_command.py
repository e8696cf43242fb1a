"""The command `explore`, in one process."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up_text

from olmo_sparsity import api
from olmo_sparsity.cli.app import app
from olmo_sparsity.cli.endings import run
from olmo_sparsity.tables import list_finished

COMMAND = ["explore", "--run", "runs/tiny", "--text", "letter.txt"]


@pytest.fixture
def workplace(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_run, tmp_path / "runs" / "tiny")
    (tmp_path / "letter.txt").write_text(made_up_text(np.random.default_rng(5), 30), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_writes_the_page_of_the_function_once(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = list_finished(Path("runs/tiny"))
    options = [*COMMAND, "--k", "2", "--selector", "kl"]
    assert run(app, options) == 0
    expected = api.explore(
        api.open_model("runs/tiny"), Path("letter.txt").read_text(), selectors=["kl"], k=[1, 2], source="letter.txt"
    )
    said, page = capsys.readouterr().out, Path("runs/tiny/explore/letter.html")
    assert expected.found in said and str(page) in said and page.read_text() == expected.to_html()
    assert run(app, options) == 2 and "the file exists; --overwrite replaces it" in capsys.readouterr().err
    assert run(app, [*options, "--overwrite"]) == 0 and page.read_text() == expected.to_html()
    assert list_finished(Path("runs/tiny")) == before  # an exploration is no measurement of the run


def test_one_place_is_printed_with_the_numbers_of_the_window_alone(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [*COMMAND, "--at", "130", "--k", "2", "--selector", "kl", "--selector", "unmask-one"]
    assert run(app, line) == 0
    said, model = capsys.readouterr().out, api.open_model("runs/tiny")
    window = api.window_at(model, Path("letter.txt").read_text(), at=130)
    measured = api.measure(model, window, selectors=["kl", "unmask-one"], k=[1, 2])
    row, real = measured.windows.iloc[0], measured.selections.query("context == 'real'").set_index("selector")
    expected = [
        loss
        for name in ("kl", "unmask-one")
        for loss in (row["loss_short_nats"], real.loc[name, "loss_sparse_nats"][1], row["loss_long_nats"])
    ]
    assert list(map(float, re.findall(r"(\d\.\d{3}) +[\d.]+%", said))) == pytest.approx(expected, abs=6e-4)
    assert said.startswith("letter.txt, character 130") and said.count(f">>{row['target_text'].strip()}<<") == 2
    assert len(re.findall(r"^ +[\d.]+% \S+ .* [\d.]+% \S+", said, re.M)) == 2 * 5
    assert not (workplace / "runs" / "tiny" / "explore").exists()
    assert run(app, [*line, "--out", "page.html"]) == 2
