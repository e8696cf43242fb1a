"""Every option of the commands that train, prepare and export reaches what the command calls; nothing is trained here."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.cli import synth
from olmo_sparsity.cli.app import app
from olmo_sparsity.config import config_folder, load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import ExportedModel
from olmo_sparsity.torchrun import ProcessInfo

RANK = ProcessInfo(1, 3, 1, 3)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was called, with its arguments; this is process 1 of 3 of torchrun where a command asks."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.chdir(tmp_path)

    def replace(name: str, result: Any) -> None:
        def probe(*args: Any, **given: Any) -> Any:
            found.append((name.rpartition(".")[2], *args, given))
            return result

        monkeypatch.setattr(f"olmo_sparsity.{name}", probe)

    exported = ExportedModel(Path("out"), "OlmoForCausalLM", 12_345_678, 1.26e-5)
    replace("train.loop.train", None)
    replace("text.prepare.prepare", Path("cache/of-text"))
    replace("text.prepare.describe", ["12 documents", "3 splits"])
    replace("export.export_hf", exported)
    replace("synthetic.evaluate.evaluate_task", Path("answers"))
    monkeypatch.setattr("olmo_sparsity.torchrun.current_process", lambda: RANK)
    return found


def invoke(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *shlex.split(line)])
    app(standalone_mode=False)


def test_a_task_has_the_configuration_that_is_named_else_that_of_its_run_else_the_shipped_one(tmp_path: Path) -> None:
    path, run = config_folder() / "synthetic" / "parity.yaml", tmp_path / "run"
    assert synth.resolve_task("parity", None, run, overrides=None) == (load_config(path), run, path)
    run.mkdir()
    own, named = run / "config.yaml", tmp_path / "named.yaml"
    own.write_text("name: parity\ntraining: {steps: 601}\n", encoding="utf-8")
    named.write_text("name: parity\ntraining: {steps: 602}\n", encoding="utf-8")
    for config, overrides, steps in (
        (None, None, 601), (named, None, 602), (None, ["training.steps=603"], 603), (named, ["training.steps=604"], 604),
    ):  # fmt: skip
        loaded, folder, file = synth.resolve_task("parity", config, run, overrides=overrides)
        assert (loaded.training.steps, folder, file) == (steps, run, config or own)


def test_a_folder_of_something_else_is_refused_before_a_task_is_trained(
    calls: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(synth, "needs_training", lambda *_, **named: True)
    Path("papers").mkdir()
    Path("papers/manifest.json").write_text('{"kind": "another"}')
    with pytest.raises(UserError, match="papers: this is no synthetic folder of olmo-sparsity"):
        invoke("synth eval parity --out papers", monkeypatch)
    assert not calls


def test_the_configuration_is_printed_as_a_file_that_explains_itself(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Behind the names of the shipped ones, below the folder in which they lie."""
    monkeypatch.chdir(tmp_path)
    invoke(f"config --config {tiny_yaml} training.steps=79", monkeypatch)
    printed = capsys.readouterr().out
    names = printed.splitlines()[0].removeprefix("# Configurations in this package: ").split(", ")
    assert {"demo.yaml", "pretrained.yaml", "synthetic/parity.yaml"} <= set(names) and names == sorted(names)
    (tmp_path / "printed.yaml").write_text(printed, encoding="utf-8")
    assert load_config(tmp_path / "printed.yaml") == load_config(tiny_yaml, ["training.steps=79"])
    assert "# Number of optimizer steps." in printed and printed.endswith("\n") and not printed.endswith("\n\n")
