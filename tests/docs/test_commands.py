"""The commands of the README, the pages, the Makefile and the recipes, and the examples in Python, run in turn on small data."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import yaml
from conftest import made_up_text, write_corpus
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox
from pages import PAGES, ROOT, python_blocks, shown_commands
from PIL import Image, PngImagePlugin
from tiny_gguf import save_gguf
from transformers_models import save_with_words
from typer import Typer
from typer.testing import CliRunner

from analysis.__main__ import main as draw_one
from olmo_sparsity.cli.app import app
from olmo_sparsity.tables import newest_finished

ELSEWHERE = ("c4-64-128", "EleutherAI/")  # what requires a GPU and C4, or the hub
# The sizes of all configurations; the rest is as in those of the package.
SIZES: dict[str, dict[str, Any]] = {
    "data": {"source": "words.jsonl", "tokenizer": "bpe:320", "cache_dir": "data", "validation_percent": 30},
    "training": {
        "steps": 2, "batch_rows": 8, "warmup_steps": 1, "eval_every": 1, "eval_rows": 8, "checkpoint_every": 2, "threads": 1,
        "compile": "never", "precision": "fp32", "device": "cpu",
    },
    "influence": {
        "num_windows": 24, "windows_per_part": 10, "resampled_draws": 1, "selectors": ["kl", "attention", "unmask-one", "random"],
    },
    "synthetic": {"test_rows": 4},
}  # fmt: skip
# Target of the Makefile -> the settings of its recipe, and what it makes.
TARGETS = {
    "demo": ("", "runs/demo/figures/*/first_picture.pdf runs/demo/figures/*/report.html"),
    "evidence": ("", "runs/demo/figures/*/gains.png runs/evidence/figures/gains.png"),
    "hypothesis": ("seeds=0,1 targets=24", "runs/hypothesis/figures/hypothesis.png"),
    "synthetic": (
        "runs=parity-K2,scratchpad-pose,variables-pose",
        "runs/synthetic/figures/synthetic-parity.png runs/synthetic/figures/synthetic-variables*.png",
    ),
    "twin": ("seeds=1 runs=sum-pose,sum-ceiling", "runs/twin/sum-ceiling-seed1/synthetic/*/answers/*"),
    "smollm2": ("data=my_texts/", "runs/smollm2/figures/figure5.png runs/smollm2/report.html"),
}


def save_quickly(_: Figure, file: BinaryIO, *, format: str = "png", metadata: Any = None, **options: Any) -> None:
    """Write an empty picture with the words that a figure has in its metadata."""
    if format == "png":
        chunks = PngImagePlugin.PngInfo()
        for key, text in {"Software": "Matplotlib version 0", **(metadata or {})}.items():
            chunks.add_text(key, text)
        Image.new("1", (1, 1)).save(file, "png", pnginfo=chunks)
    elif format == "svg":
        file.write(b'<svg viewBox="0 0 1 1"></svg>')
    else:
        file.write(f"/Producer (Matplotlib 0)\n/Subject ({metadata['Subject']})\n".encode())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the configurations and the texts that the commands name, but small; commands share their runs.

    Figures are drawn, but neither laid out nor rendered, which takes seconds.
    """
    folder = tmp_path_factory.mktemp("commands")
    for path in (ROOT / "configs").rglob("*.yaml"):
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        for section, sizes in SIZES.items():
            config[section] = {**config.get(section, {}), **sizes}
        if "model" in config:
            config["model"]["d_model"] //= 8
        if path.stem == "pretrained":
            config["context"] = {"local_len": 8, "full_len": 40}
        (folder / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        (folder / path.relative_to(ROOT)).write_text(yaml.safe_dump(config))
    for name in ("my_texts", "models", "data"):
        (folder / name).mkdir()
    texts = [json.loads(line)["text"] for line in write_corpus(folder / "words.jsonl", 120).open()]
    write_corpus(folder / "my_texts" / "others.jsonl", 80, seed=1)
    letter = made_up_text(np.random.default_rng(2), 75)
    (folder / "my_texts" / "letter.txt").write_text(f"{letter} river", encoding="utf-8")
    save_with_words(folder / "models" / "SmolLM2-135M", texts, max_position_embeddings=256)
    save_gguf(folder / "data" / "SmolLM2-135M-Instruct.Q4_1.gguf", texts, max_position=256)
    (folder / "my_selector.py").write_text(python_blocks("docs/selectors.md")[0], encoding="utf-8")
    shutil.copy(ROOT / "README.md", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
        patch.setattr(Figure, "draw_without_rendering", lambda _: None)
        patch.setattr(Figure, "get_tightbbox", lambda _: Bbox.unit())
        patch.setattr(Figure, "savefig", save_quickly)
        for run in (
            "demo",
            "demo-no-pose --train pose.num_chunks=1 pose.vary_chunks=false",
            "demo-seed1 --train training.seed=1",
        ):
            must_run(f"olmo-sparsity influence --config configs/demo.yaml --run runs/{run}")  # that pages rest on
        yield folder


def with_own_configuration(words: list[str]) -> list[str]:
    """Return a command with the file in ``configs/`` here in place of the one that it would take from the package."""
    is_task = words[:2] in (["synth", "train"], ["synth", "eval"])
    takes_file = is_task or words[0] in ("prepare", "train", "influence", "explore", "figures", "config")
    run = Path(words[words.index("--run") + 1]) if "--run" in words else None
    if not takes_file or "--config" in words or (run is not None and (run / "config.yaml").is_file()):
        return words
    name = f"synthetic/{words[2]}" if is_task else "pretrained" if "--model" in words else "demo"
    return [*words, "--config", f"configs/{name}.yaml"]


def must_run(line: str) -> None:
    """Run a command of the package, or a figure, in this process, on few windows and for few steps."""
    line = re.sub(r"(--num-windows |training\.steps=)\d+", r"\g<1>24", line)
    program, *words = shlex.split(line)
    if program == "python":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words[1:])
            draw_one()
        return
    result = CliRunner().invoke(app, with_own_configuration(words))
    assert result.exit_code == 0, (line, result.output, result.exception)


@pytest.fixture(scope="module")
def already_run() -> set[str]:
    return set()


@pytest.mark.parametrize("page", [page for page in PAGES if shown_commands(page)], ids=lambda path: path.stem)
def test_the_commands_of_a_page_run(page: Path, workplace: Path, already_run: set[str]) -> None:
    for command in shown_commands(page):
        if command in already_run or any(name in command for name in ELSEWHERE):
            continue
        already_run.add(command)
        if "influence --model" in command and "--num-windows" not in command:
            command += " --num-windows 24"  # the folder of a model keeps no number of windows
        if " explore " in command and "--selector" not in command:
            command += " --selector attention"  # the default unmasks every token before every target of the text
        command = command.replace("show runs/demo 5140", "show runs/demo 17")
        if "NAME" in command:
            name = newest_finished(workplace / "runs" / "demo").name
            command = command.replace("NAME", name)
            for shard in ("shard0", "shard1"):
                shutil.copytree(workplace / "runs/demo/influence" / name, workplace / shard / name, dirs_exist_ok=True)
        must_run(command)


def lines_of_make(*arguments: str, programs: Path) -> list[str]:
    """The lines that make prints in a checkout whose virtual environment is ready."""
    python = programs / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (programs / ".ready").touch()
    command = ["make", "--no-print-directory", f"VENV={programs}", *arguments]
    printed = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    return [line.removeprefix(f"{programs}/bin/") for line in printed.stdout.splitlines()]


@pytest.mark.needs("make")
@pytest.mark.parametrize("target", [pytest.param(of, marks=[pytest.mark.slow] * (of == "evidence")) for of in TARGETS])
def test_the_commands_of_a_target_run(target: str, workplace: Path, tmp_path: Path) -> None:
    settings, made = TARGETS[target]
    options = ["--dry-run"] if target == "demo" else ["DRY=1", f"SET={settings}"]
    lines = lines_of_make(target, *options, programs=tmp_path)
    assert len(lines) > 2
    for line in lines:
        must_run(line)
    for pattern in made.split():
        assert list(workplace.glob(pattern)), pattern


def command_names(parent: Typer) -> Iterator[str]:
    """Yield each command as a user types it: "train", "export hf"."""
    for command in parent.registered_commands:
        yield command.name or command.callback.__name__  # type: ignore[union-attr]
    for group in parent.registered_groups:
        yield from (f"{group.name} {name}" for name in command_names(group.typer_instance))  # type: ignore[arg-type]


def test_figures_says_what_it_has_drawn(workplace: Path) -> None:
    said = CliRunner().invoke(app, ["figures", "--run", "runs/demo", "--out", "drawn"]).stdout
    others = sorted({path.stem for path in Path("drawn").iterdir()} - {"first_picture"})
    assert set(others) <= {"figure4", "figure5"}
    assert said == f"drawn/first_picture.png, and there: {', '.join(others)}; each as PNG and PDF\n"


def test_every_command_has_an_example_in_the_reference() -> None:
    shown = [re.sub(r"^olmo-sparsity (-\S+ )*", "", of) + " " for of in shown_commands(ROOT / "docs" / "reference.md")]
    assert [name for name in command_names(app) if not any(command.startswith(f"{name} ") for command in shown)] == []


def test_the_examples_in_python_run(workplace: Path) -> None:
    space: dict[str, Any] = {}
    (workplace / "my_texts" / "second.txt").write_text(made_up_text(np.random.default_rng(3), 200), encoding="utf-8")
    for code in python_blocks("README.md", "docs/python.md"):
        exec(compile(code, "<block>", "exec"), space)
    assert (workplace / "first-picture.png").read_bytes().startswith(b"\x89PNG")
    assert len(space["windows"]) == 20 and (workplace / "my-windows" / "manifest.json").is_file()
