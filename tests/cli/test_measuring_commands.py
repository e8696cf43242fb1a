"""Every option of the commands that measure reaches what the command calls; nothing is measured here."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up_text

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.work import WHOLE, Share

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

    for module, name, printing in (
        ("measure.influence", "measure", "print_summary"),
        ("measure.context_curve", "measure_context_curve", "print_curve"),
    ):
        replace(module, name, TABLES)
        replace("view.console", printing, None)
    monkeypatch.setattr("olmo_sparsity.cli.measuring.finish_share", lambda tables, share: share.count == 1)
    return found


def invoke(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *line.split()])
    app(standalone_mode=False)


@pytest.mark.parametrize(
    ("command", "name", "printing", "printed"),
    [
        ("influence --seed 77", "measure", "print_summary", {}),
        ("context-curve", "measure_context_curve", "print_curve", {}),
    ],
)
def test_options_reach_what_measures(
    command: str,
    name: str,
    printing: str,
    printed: dict[str, Any],
    calls: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables that were measured are printed, where they are complete."""
    invoke(f"{command} --run runs/tiny --out there --overwrite influence.batch_tokens=12345", monkeypatch)
    invoke(f"{command} --run runs/tiny --shard 2/3", monkeypatch)
    (first, config, run, given), (second, *what), (third, other, _, in_parts) = calls
    assert (first, second, third) == (name, printing, name)
    assert isinstance(config, Config) and config.influence.batch_tokens == 12345 != other.influence.batch_tokens
    assert ("--seed" in command) == (config.influence.seed == 77)
    assert (run, given) == (RUN, {"out": Path("there"), "overwrite": True, "share": WHOLE})
    assert what == [TABLES, printed]
    assert in_parts == {"out": None, "overwrite": False, "share": Share(2, 3)}


class Shown:
    """Stands for what was explored."""

    found, gate = "what was found", "what one document cannot tell"

    def __init__(self) -> None:
        self.saved: list[tuple[Path, bool]] = []

    def save_html(self, page: Path, *, overwrite: bool) -> Path:
        self.saved.append((page, overwrite))
        return page


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("command", "page", "chosen"),
    [
        ("explore --out page.html --k 4", Path("page.html"), {"k": [1, 2, 4], "seed": None}),
        ("explore --seed 5 --k 1,3", Path("runs/tiny/explore/letter.html"), {"k": [1, 3], "seed": 5}),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_options_reach_what_explores(
    command: str,
    page: Path,
    chosen: dict[str, Any],
    overwrite: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown, given = Shown(), {}

    def probe(*_: Any, **named: Any) -> Shown:
        given.update(named)
        return shown

    monkeypatch.setattr("olmo_sparsity.api.exploring.explore", probe)
    invoke(
        f"{command} --run runs/tiny --text letter.txt --selector greedy --selector kl{' --overwrite' * overwrite}",
        monkeypatch,
    )
    assert {key: given[key] for key in ("k", "seed", "source")} == {**chosen, "source": "letter.txt"}
    assert list(given["selectors"]) == ["greedy", "kl"]
    assert shown.saved == [(page, overwrite)]
    assert capsys.readouterr().out == f"What was found; the page is {page}\nwhat one document cannot tell\n"


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("influence --k 13 --train", r"influence\.k = \[13\]: there are only M = 12"),
        ("influence --k 13", r"influence\.k = \[13\]: there are only M = 12"),
        ("figures influence.k=[13] --train", r"influence\.k = \[13\]: there are only M = 12"),
        ("explore --text letter.txt --at 200 --k 13 --train", r"influence\.k = \[13\]: there are only M = 12"),
        ("figures influence.data=nowhere.jsonl --train", r"nowhere\.jsonl: no such file, folder or glob"),
        (
            "influence --train influence.anchor=bos",
            r"full_len = 20 with the anchor .* in front: .* --full-len 19 or less$",
        ),
        (
            "context-curve --train context_curve.max_visible=7",
            "max_visible = 7: must be at least the length of a training row, 8",
        ),
        # These are of the lengths that are measured, which are not those that the experiment names.
        ("context-curve --train --local-len 1 --full-len 3", "the curve ends at 6 tokens where"),
        ("explore --text letter.txt --out letter.txt --train", "letter.txt: this is no page that olmo-sparsity wrote"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_trained_or_opened(
    command: str, said: str, tiny_yaml: Path, monkeypatch: pytest.MonkeyPatch, calls: list[tuple[Any, ...]]
) -> None:
    def trained(*_: Any, **named: Any) -> None:
        raise AssertionError("it was trained")

    monkeypatch.setattr("olmo_sparsity.training.loop.train", trained)
    with pytest.raises(UserError, match=said):
        invoke(f"{command} --config {tiny_yaml} --run runs/new", monkeypatch)
    assert not calls and not Path("runs/new").exists()


class Trained(Exception):
    """Ends a command where it would begin to train."""


@pytest.mark.usefixtures("calls")
@pytest.mark.parametrize(
    ("command", "kind", "out"),
    [
        ("influence --out there", "influence", Path("there")),
        ("context-curve --out there", "context-curve", Path("there")),
        ("explore --text letter.txt --out there", None, None),
        ("explore --text letter.txt --at 200", None, None),
    ],
)
def test_a_run_of_another_name_is_trained_where_it_is_asked_for(
    command: str, kind: str | None, out: Path | None, tiny_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That in a folder which holds other tables nothing could be written, is known before."""
    started: list[tuple[Path, int]] = []

    def train(config: Config, run: Path) -> None:
        started.append((run, config.training.steps))
        raise Trained

    monkeypatch.setattr("olmo_sparsity.training.loop.train", train)
    line = f"{command} --config {tiny_yaml} --run runs/new training.steps=7"
    with pytest.raises(UserError, match=r"runs/new: this run is not trained; train it with .* --train"):
        invoke(line, monkeypatch)
    with pytest.raises(Trained):
        invoke(f"{line} --train", monkeypatch)
    assert started == [(Path("runs/new"), 7)]
    if out is not None:
        out.mkdir()
        (out / "manifest.json").write_text('{"kind": "another"}')
        with pytest.raises(UserError, match=f"{out}: this is no {kind} folder of olmo-sparsity"):
            invoke(f"{line} --train", monkeypatch)
        assert len(started) == 1


@pytest.mark.usefixtures("calls")
def test_the_document_is_the_field_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a file with one record; the tables of an exploration lie in the folder of the run, wherever its page is written."""
    text, given = Path("letter.txt").read_text(encoding="utf-8"), []
    Path("letter.jsonl").write_text(json.dumps({"text": "short", "body": text}), encoding="utf-8")

    def probe(*args: Any, **named: Any) -> Shown:
        given.append((args[1], named))
        return Shown()

    monkeypatch.setattr("olmo_sparsity.api.exploring.explore", probe)
    line = "explore --run runs/tiny --text letter.jsonl --out elsewhere/page.html data.text_field=body"
    invoke(line, monkeypatch)
    ((found, named),) = given
    assert (found, named["folder"]) == (text, Path("runs/tiny/explore"))
    assert named["source"] == "letter.jsonl"
    assert capsys.readouterr().out
