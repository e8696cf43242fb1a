"""The commands that the README and the pages show, run as they stand there, on a small corpus."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import TINY_YAML, made_up_text, write_corpus
from shown_commands import PAGES, ROOT, first_block, shown_commands, with_own_configuration
from tiny_gguf import save_gguf
from tiny_pretrained import save_llama
from typer import Typer
from typer.testing import CliRunner

from olmo_sparsity.cli import options
from olmo_sparsity.cli.app import app
from olmo_sparsity.tables import newest_finished

ELSEWHERE = "c4-64-128"  # requires a GPU and C4
TINY_PARITY = """
name: {name}
context: {{local_len: 2, full_len: 24}}
model: {{d_model: 16, n_heads: 2, n_layers: 1, mlp_ratio: 2}}
training: {{steps: 2, batch_rows: 4, warmup_steps: 1, eval_every: 2, eval_rows: 4, compile: never, device: cpu}}
synthetic: {{train_lengths: [6, 8], test_lengths: [8, 12], test_rows: 4}}
"""
SELECTORS = "[kl, unmask-one, random]"  # one of each kind: every further one would add a figure
ON_HUB = "EleutherAI/"  # models that are not here


def command_names(parent: Typer) -> Iterator[tuple[str, ...]]:
    """Yield each command as a user types it, with those of sub-apps: ("train",), ("export", "hf")."""
    for command in parent.registered_commands:
        yield (command.name or command.callback.__name__,)  # type: ignore[union-attr]
    for group in parent.registered_groups:
        for name in command_names(group.typer_instance):  # type: ignore[arg-type]
            yield (str(group.name), *name)


def words(command: str) -> tuple[str, ...]:
    """Return the words of a command without the options before it, such as -v."""
    return tuple(re.sub(r"^(-\S+ )+", "", command).split())


@pytest.mark.parametrize("page", ["README.md and docs/", "docs/reference.md"])
def test_every_command_has_an_example(page: str) -> None:
    pages = PAGES if " and " in page else [ROOT / page]
    shown = [words(command) for path in pages for command in shown_commands(path)]
    names = set(command_names(app))
    assert ("export", "hf") in names
    for name in names:
        assert any(command[: len(name)] == name for command in shown), name
    assert {command[0] for command in shown} - {"--version"} == {name[0] for name in names}


def test_the_three_lines_are_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "    olmo-sparsity train\n    olmo-sparsity influence --k 8\n    make figures\n" in readme


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the configurations and the texts that the commands name, but small; commands share their runs."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "my_texts").mkdir()
    write_corpus(folder / "my_texts" / "others.jsonl", 200, seed=1)
    letter = made_up_text(np.random.default_rng(2), 200)
    (folder / "my_texts" / "letter.txt").write_text(f"{letter} river", encoding="utf-8")
    configs = folder / "configs"
    configs.mkdir()
    text = TINY_YAML.format(source=write_corpus(folder / "words.jsonl", 300), cache=folder / "data")
    text = text.replace("full_len: 20", "full_len: 40").replace(
        "influence: {num_windows: 60, windows_per_part: 25,",
        f"influence: {{selectors: {SELECTORS}, num_windows: 24, windows_per_part: 10,",
    )
    assert SELECTORS in text
    (configs / "pretrained.yaml").write_text(text.replace("name: tiny", "name: pretrained"))
    texts = [json.loads(line)["text"] for line in (folder / "words.jsonl").open()]
    save_llama(folder / "models" / "SmolLM2-135M", texts, max_position=256)
    (folder / "my_selector.py").write_text(first_block(ROOT / "docs" / "selectors.md"), encoding="utf-8")
    (folder / "data").mkdir(exist_ok=True)
    save_gguf(folder / "data" / "SmolLM2-135M-Instruct.Q4_1.gguf", texts, max_position=256)
    (configs / "demo.yaml").write_text(text.replace("name: tiny", "name: demo"))
    twins = {"demo-no-pose": "num_chunks: 1", "demo-randpos": "method: randpos", "demo-ceiling": "num_chunks: 1"}
    for name, positions in twins.items():
        twin = text.replace("name: tiny", f"name: {name}").replace("num_chunks: 3", positions)
        if name == "demo-ceiling":
            twin = twin.replace("full_len: 40", "full_len: 40, train_len: 40")
        (configs / f"{name}.yaml").write_text(twin)
    (configs / "synthetic").mkdir()
    for name in ("parity", "sum"):
        parity = TINY_PARITY.format(name=name)
        if name == "sum":
            parity = parity.replace("full_len: 24", "full_len: 40")
            parity = parity.replace("test_rows: 4", "test_sparsity: [1, 2], test_row_len: 8, test_rows: 4")
        (configs / "synthetic" / f"{name}.yaml").write_text(parity)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        seed1 = "demo.yaml --run runs/demo-seed1 --train training.seed=1"
        for made in ("demo.yaml", "demo-no-pose.yaml", seed1):  # that pages rest on
            must_run(f"influence --config configs/{made}")
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
        if command in already_run:
            continue
        already_run.add(command)
        if ELSEWHERE in command:
            options.resolve(ROOT / f"configs/{ELSEWHERE}.yaml", None, overrides=None)
            continue
        if ON_HUB in command:
            continue
        command = re.sub(r"--num-windows \d+", "--num-windows 24", command)
        if "--model" in command and command.startswith("influence"):
            command += " --num-windows 24"  # the folder of a model keeps no number of windows
        if command.startswith("explore") and "--selector" not in command:
            command += " --selector attention"  # the default unmasks every token before every target of the text
        # The contexts of the configurations here are longer than those of the demo.
        command = command.replace("min_preceding=16", "min_preceding=40").replace("--full-len 8 ", "--full-len 24 ")
        if "NAME" in command:
            name = newest_finished(workplace / "runs" / "demo").name
            command = command.replace("NAME", name)
            for shard in ("shard0", "shard1"):
                shutil.copytree(workplace / "runs/demo/influence" / name, workplace / shard / name, dirs_exist_ok=True)
        must_run(command)
