"""The command ``explain``, in one process."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up_text

from olmo_sparsity import api
from olmo_sparsity.cli.app import main


@pytest.fixture(scope="module")
def letter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explained") / "letter.txt"
    path.write_text(made_up_text(np.random.default_rng(5), 80) + " zebra", encoding="utf-8")
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", "explain", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def test_options_reach_the_measurement(
    tiny_run: Path, letter: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = letter.with_name("page.html")
    run(
        monkeypatch, "--run", str(tiny_run), "--text", str(letter), "--target", "zebra", "--selector", "kl", "--selector",
        "greedy", "--k", "2", "--json", "--html", str(page),
    )  # fmt: skip
    shown = capsys.readouterr()
    value = json.loads(shown.out)
    assert str(page) in shown.err.splitlines()
    text = letter.read_text()
    expected = api.explain(
        api.open_model(tiny_run), text, target="zebra", selectors=["kl", "greedy"], k=[1, 2], source="letter.txt"
    )
    assert value == json.loads(json.dumps(expected.to_json()))
    assert value["offset"] == text.index("zebra")
    assert page.read_text() == expected.to_html()


def test_it_prints_one_window(
    tiny_run: Path, letter: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--run", str(tiny_run), "--text", str(letter), "--at", "200", "--k", "2")
    said = capsys.readouterr().out
    assert said.startswith("letter.txt, character 200\n")
    assert "Selector kl, real context, k = 2. It does not see the target." in said
    assert re.search(r"\[1(,2)?\]", said) and "3]" not in said
