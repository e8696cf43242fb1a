"""The commands and the Python examples of the README and the pages, run as they stand there, on a small corpus."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY_YAML, made_up_text, write_corpus
from quick_pictures import QUICK
from shown_commands import PAGES, ROOT, first_block, shown_commands, with_own_configuration
from tiny_gguf import save_gguf
from tiny_pretrained import save_llama
from typer import Typer
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.tables import newest_finished

ELSEWHERE = ("c4-64-128", "EleutherAI/")  # what requires a GPU and C4, or the hub
TINY_TASK = """
name: {name}
context: {{local_len: 2, full_len: 40}}
model: {{d_model: 16, n_heads: 2, n_layers: 1, mlp_ratio: 2}}
training: {{steps: 2, batch_rows: 4, warmup_steps: 1, eval_every: 2, eval_rows: 4, compile: never, device: cpu}}
synthetic: {{train_lengths: [6, 8], test_lengths: [8, 12], test_sparsity: [1, 2], test_row_len: 8, test_rows: 4}}
"""
SELECTORS = "[kl, unmask-one, random]"  # one of each kind: every further one would add a figure


def command_names(parent: Typer) -> Iterator[str]:
    """Yield each command as a user types it: "train", "export hf"."""
    for command in parent.registered_commands:
        yield command.name or command.callback.__name__  # type: ignore[union-attr]
    for group in parent.registered_groups:
        yield from (f"{group.name} {name}" for name in command_names(group.typer_instance))  # type: ignore[arg-type]


@pytest.mark.parametrize("pages", [PAGES, [ROOT / "docs" / "reference.md"]], ids=["pages", "reference"])
def test_every_command_has_an_example(pages: list[Path]) -> None:
    shown = [re.sub(r"^(-\S+ )+", "", command) + " " for page in pages for command in shown_commands(page)]
    assert [name for name in command_names(app) if not any(command.startswith(f"{name} ") for command in shown)] == []


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the configurations and the texts that the commands name, but small; commands share their runs."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "my_texts").mkdir()
    write_corpus(folder / "my_texts" / "others.jsonl", 200, seed=1)
    letter = made_up_text(np.random.default_rng(2), 100)
    (folder / "my_texts" / "letter.txt").write_text(f"{letter} river", encoding="utf-8")
    text = TINY_YAML.format(source=write_corpus(folder / "words.jsonl", 300), cache=folder / "data")
    text = text.replace("full_len: 20", "full_len: 40").replace(
        "influence: {num_windows: 60, windows_per_part: 25,",
        f"influence: {{selectors: {SELECTORS}, num_windows: 24, windows_per_part: 10,",
    )
    (folder / "configs" / "synthetic").mkdir(parents=True)
    for name in ("demo", "pretrained"):
        (folder / "configs" / f"{name}.yaml").write_text(text.replace("name: tiny", f"name: {name}"))
    for name in ("parity", "sum"):
        (folder / "configs" / "synthetic" / f"{name}.yaml").write_text(TINY_TASK.format(name=name))
    texts = [json.loads(line)["text"] for line in (folder / "words.jsonl").open()]
    save_llama(folder / "models" / "SmolLM2-135M", texts, max_position=256)
    (folder / "data").mkdir(exist_ok=True)
    save_gguf(folder / "data" / "SmolLM2-135M-Instruct.Q4_1.gguf", texts, max_position=256)
    (folder / "my_selector.py").write_text(first_block(ROOT / "docs" / "selectors.md"), encoding="utf-8")
    shutil.copy(ROOT / "README.md", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for (of, name), quick in QUICK.items():
            patch.setattr(of, name, quick)
        for run in ("demo", "demo-no-pose --train pose.num_chunks=1", "demo-seed1 --train training.seed=1"):
            must_run(f"influence --config configs/demo.yaml --run runs/{run}")  # that pages rest on
        yield folder


def must_run(command: str) -> None:
    result = CliRunner().invoke(app, with_own_configuration(command.split()))
    assert result.exit_code == 0, (command, result.output, result.exception)


@pytest.fixture(scope="module")
def already_run() -> set[str]:
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_they_run(page: Path, workplace: Path, already_run: set[str]) -> None:
    for command in shown_commands(page):
        if command in already_run or any(name in command for name in ELSEWHERE):
            continue
        already_run.add(command)
        command = re.sub(r"--num-windows \d+", "--num-windows 24", command)
        if "--model" in command and command.startswith("influence"):
            command += " --num-windows 24"  # the folder of a model keeps no number of windows
        if command.startswith("explore") and "--selector" not in command:
            command += " --selector attention"  # the default unmasks every token before every target of the text
        command = command.replace("min_preceding=96", "min_preceding=100").replace("demo 5140", "demo 17")
        if "NAME" in command:
            name = newest_finished(workplace / "runs" / "demo").name
            command = command.replace("NAME", name)
            for shard in ("shard0", "shard1"):
                shutil.copytree(workplace / "runs/demo/influence" / name, workplace / shard / name, dirs_exist_ok=True)
        must_run(command)


def test_the_examples_in_python_run(workplace: Path) -> None:
    space: dict[str, Any] = {}
    (workplace / "my_texts" / "second.txt").write_text(made_up_text(np.random.default_rng(3), 200), encoding="utf-8")
    pages = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/python.md"))
    for code in re.findall(r"^```python\n(.*?)^```", pages, re.M | re.S):
        exec(compile(code, "<block>", "exec"), space)
    assert (workplace / "first-picture.png").read_bytes().startswith(b"\x89PNG")
    assert len(space["windows"]) == 20 and (workplace / "my-windows" / "manifest.json").is_file()
