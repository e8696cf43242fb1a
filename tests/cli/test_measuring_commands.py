"""Every option of the commands that measure reaches what the command calls; nothing is measured here."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up_text

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError

TABLES, RUN = Path("tables"), Path("runs/tiny")


@pytest.fixture
def calls(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was called, with its arguments; the commands run beside a trained run and a text."""
    found: list[tuple[Any, ...]] = []
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "tiny").symlink_to(tiny_run)
    (tmp_path / "letter.txt").write_text(made_up_text(np.random.default_rng(5), 80), encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    def replace(module: str, name: str, result: Any) -> None:
        def probe(*args: Any, **given: Any) -> Any:
            found.append((name, *args, given))
            return result

        monkeypatch.setattr(importlib.import_module(f"olmo_sparsity.{module}"), name, probe)

    replace("measure.influence", "measure", TABLES)
    monkeypatch.setattr("olmo_sparsity.cli.measuring.finish_share", lambda tables, share: share.count == 1)
    return found


def invoke(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *line.split()])
    app(standalone_mode=False)


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("influence --k 13 --train", r"influence\.k = \[13\]: there are only M = 12"),
        ("influence --k 13", r"influence\.k = \[13\]: there are only M = 12"),
        ("explore --text letter.txt --at 200 --k 13 --train", r"influence\.k = \[13\]: there are only M = 12"),
        ("influence influence.data=nowhere.jsonl --train", r"nowhere\.jsonl: no such file, folder or glob"),
        (
            "influence --train influence.anchor=bos",
            r"full_len = 20 with the anchor .* in front: .* --full-len 19 or less$",
        ),
        ("explore --text letter.txt --out letter.txt --train", "letter.txt: this is no page that olmo-sparsity wrote"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_trained_or_opened(
    command: str, said: str, tiny_yaml: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]]
) -> None:
    def trained(*_: Any, **named: Any) -> None:
        raise AssertionError("it was trained")

    monkeypatch.setattr("olmo_sparsity.train.loop.train", trained)
    with pytest.raises(UserError, match=said):
        invoke(f"{command} --config {tiny_yaml} --run runs/new", monkeypatch)
    assert not calls and not Path("runs/new").exists()
