"""The command ``explore``, in one process."""

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
from olmo_sparsity.tables.reading import list_finished


@pytest.fixture
def workplace(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_run, tmp_path / "runs" / "tiny")
    (tmp_path / "letter.txt").write_text(made_up_text(np.random.default_rng(5), 30), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMAND = ["explore", "--run", "runs/tiny", "--text", "letter.txt"]


def test_it_begins_with_what_was_found_and_writes_the_page_of_the_function(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, [*COMMAND, "--k", "2", "--selector", "kl", "--unit", "token"]) == 0
    first, gate, *rest = capsys.readouterr().out.splitlines()
    expected = api.explore(
        api.open_model("runs/tiny"), Path("letter.txt").read_text(), selectors=["kl"], k=[1, 2], source="letter.txt"
    )
    found = expected.found
    assert first == f"{found[0].upper()}{found[1:]}; the page is runs/tiny/explore/letter.html"
    assert gate.startswith("Gate not assessed: one document is no sample.") and not rest
    assert Path("runs/tiny/explore/letter.html").read_text() == expected.to_html()


def test_what_is_not_named_has_defaults_and_a_page_is_not_replaced_unasked(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(app, [*COMMAND, "--out", "page.html"]) == 0
    (tables,) = (workplace / "runs" / "tiny" / "explore").iterdir()
    selections = api.read_results(tables).selections
    assert selections["selector"].unique().tolist() == ["kl", "attention", "random"]
    before = Path("page.html").read_bytes()
    assert run(app, [*COMMAND, "--out", "page.html"]) == 2
    assert "page.html: the file exists; --overwrite replaces it" in capsys.readouterr().err
    assert run(app, [*COMMAND, "--out", "page.html", "--overwrite"]) == 0
    assert Path("page.html").read_bytes() == before
    assert list((workplace / "runs" / "tiny" / "explore").iterdir()) == [tables]


def test_an_exploration_is_no_measurement_of_the_run(workplace: Path) -> None:
    before = list_finished(Path("runs/tiny"))
    assert run(app, [*COMMAND, "--selector", "attention"]) == 0
    assert list_finished(Path("runs/tiny")) == before
    assert Path("runs/tiny/explore/letter.html").is_file()


def test_one_place_is_printed_with_the_numbers_of_the_window_alone(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token that holds the character is the target; nothing is written."""
    line = [*COMMAND, "--at", "130", "--k", "2", "--selector", "kl", "--selector", "unmask-one"]
    assert run(app, line) == 0
    said = capsys.readouterr().out
    assert said.startswith("letter.txt, character 130\nRun tiny")
    assert "Gate not assessed: one document is no sample." in said
    for name, sees in (("kl", "does not see"), ("unmask-one", "sees"), ("random", "does not see")):
        assert f"Selector {name}, real context, k = 2. It {sees} the target" in said
    model = api.open_model("runs/tiny")
    window = api.window_at(model, Path("letter.txt").read_text(), at=130)
    measured = api.measure(model, window, selectors=["kl", "unmask-one"], k=[1, 2])
    row = measured.windows.iloc[0]
    assert said.count(">>") == 3 and f">>{row['target_text'].strip()}<<" in said
    real = measured.selections.query("context == 'real'").set_index("selector")
    losses = re.findall(r"^  (L_\S+),? .*?([\d.]+) nats", said, re.M)
    for part, name in enumerate(("kl", "unmask-one")):
        expected = [row["loss_short_nats"], real.loc[name, "loss_sparse_nats"][1], row["loss_long_nats"]]
        assert [float(loss) for _, loss in losses[3 * part : 3 * part + 3]] == pytest.approx(expected, abs=6e-4)
    assert not (workplace / "runs" / "tiny" / "explore").exists()
    by_kl = [row["token_texts"][position].strip() for position in real.loc["kl", "positions"][:2]]
    ranks = re.findall(r"^ +([12]) +(\d+) +\S+  (.*)$", said, re.M)[:2]
    assert [text for _, _, text in ranks] == by_kl
