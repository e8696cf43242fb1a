"""The commands that the README shows, run as they stand there, on a small corpus."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import TINY_YAML, write_corpus
from typer import Typer
from typer.testing import CliRunner

from olmo_sparsity.cli import options
from olmo_sparsity.cli.app import app
from olmo_sparsity.config import files as config_files
from olmo_sparsity.tables.reading import newest_finished

ROOT = Path(__file__).parent.parent
SHOWN = re.findall(r"^    olmo-sparsity (.*?)(?: {2,}#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE)
ELSEWHERE = "c4-64-128"  # wants a GPU and C4


def command_names(parent: Typer) -> Iterator[tuple[str, ...]]:
    """Each command as one types it, those of sub-apps too: ("train",), ("export", "hf")."""
    for command in parent.registered_commands:
        yield (command.name or command.callback.__name__,)  # type: ignore[union-attr]
    for group in parent.registered_groups:
        for name in command_names(group.typer_instance):  # type: ignore[arg-type]
            yield (str(group.name), *name)


def test_every_command_has_an_example() -> None:
    names = set(command_names(app))
    assert ("export", "hf") in names
    for name in names:
        assert any(tuple(command.split()[: len(name)]) == name for command in SHOWN), name
    assert {command.split()[0] for command in SHOWN} == {name[0] for name in names}


def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_texts").mkdir()
    write_corpus(tmp_path / "my_texts" / "others.jsonl", 40, seed=1)
    configs = tmp_path / "configs"
    configs.mkdir()
    text = TINY_YAML.format(source=write_corpus(tmp_path / "words.jsonl", 300), cache=tmp_path / "data")
    text = text.replace("full_len: 20", "full_len: 40") + "validation: {num_windows: 4, solver_steps: 2, k: [1, 4]}\n"
    (configs / "demo.yaml").write_text(text.replace("name: tiny", "name: demo"))
    without = text.replace("name: tiny", "name: demo-no-pose").replace("num_chunks: 3", "num_chunks: 1")
    (configs / "demo-no-pose.yaml").write_text(without)
    monkeypatch.setattr(config_files, "config_folder", lambda: configs)
    run = CliRunner()

    def must_run(command: str) -> None:
        result = run.invoke(app, command.split())
        assert result.exit_code == 0, (command, result.output, result.exception)

    for command in SHOWN:
        if ELSEWHERE in command:
            options.resolve(ROOT / f"configs/{ELSEWHERE}.yaml", None, None)
            continue
        if command.startswith("compare"):
            must_run("influence --config configs/demo-no-pose.yaml")
        if "NAME" in command:
            name = newest_finished(tmp_path / "runs" / "demo").name
            command = command.replace("NAME", name)
            for shard in ("shard0", "shard1"):
                shutil.copytree(tmp_path / "runs/demo/influence" / name, tmp_path / shard / name, dirs_exist_ok=True)
        must_run(command)
    assert (tmp_path / "runs/demo/influence").is_dir()
