"""Fixtures that the tests share: a small invented corpus, and a run that was trained on it."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import clean_environment  # noqa: F401  # before whatever reads the environment
import numpy as np
import pytest
import torch
import typer.main

from olmo_sparsity.config import Config, load_config
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.text.sources import C4_REVISION
from olmo_sparsity.train.loop import train

pytest_plugins = ["guard_fixtures", "needs"]
torch.set_num_threads(1)
# Typer builds the command line anew at each call, which takes as long as many tests of a command.
typer.main.get_command = cache(typer.main.get_command)  # before typer.testing takes it from there

# The files that take longest come first, so that no worker ends with one of them while the others wait.
LONG = """
    guard/test_guard_influence.py train/test_runs.py docs/test_commands.py view/test_report.py text/test_prepare.py
    reference/test_against_definitions.py measure/test_fit.py analysis/test_figures.py guard/test_guard_parts.py
    cli/test_endings.py measure/test_measured_parts.py view/test_explore.py measure/test_engine_paths.py
""".split()  # noqa: SIM905


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of long files first; within a file the order stays."""
    rank = {f"tests/{name}": number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collection: it stays, and commands that are forked share it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current directory of all tests, so that none depends on what the checkout holds."""
    folder = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(autouse=True)
def stays_empty(empty_folder: Path) -> Iterator[None]:
    """Fail a test that leaves something in the directory that all tests share."""
    yield
    left = [path.name for path in empty_folder.iterdir()]
    assert not left, f"this test has written {left} into the current directory; change to tmp_path first"


@pytest.fixture(autouse=True)
def log_of_a_new_process() -> None:
    """Forget where the commands that ran before send the package's log: ``set_up_messages`` is for a whole process."""
    logger = logging.getLogger("olmo_sparsity")
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def only_the_packages_selectors() -> Iterator[None]:
    """Forget the selectors of one's own that a file of tests declared."""
    of_package = dict(SELECTORS)
    yield
    for name in SELECTORS.keys() - of_package.keys():
        del SELECTORS[name]


Messages = list[str]


@pytest.fixture
def messages() -> Iterator[Messages]:
    """The lines that the package logs during a test, the newest last."""
    logger, handler, lines = logging.getLogger("olmo_sparsity"), logging.Handler(logging.INFO), Messages()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lines
    logger.removeHandler(handler)
    logger.setLevel(before)


WORDS = """
    river stone cloud garden window paper lamp bridge forest silver morning winter quiet yellow seven letter market
    doctor engine harbour island journey kitchen ladder mirror needle orange pencil quarter ribbon shadow table
    umbrella valley whisper the a of and to in was it
""".split()  # noqa: SIM905


def made_up_text(rng: np.random.Generator, num_words: int) -> str:
    """Return random words, in which a few words of each document occur more often than others."""
    favourites = rng.choice(WORDS, 3)
    words = [str(rng.choice(favourites) if rng.random() < 0.4 else rng.choice(WORDS)) for _ in range(num_words)]
    return " ".join(words)


def write_corpus(path: Path, num_documents: int, seed: int = 0) -> Path:
    """Write a JSON-lines file of random documents, and return its path."""
    path.parent.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(num_documents):
            file.write(json.dumps({"text": made_up_text(rng, int(rng.integers(10, 60)))}) + "\n")
    return path


@pytest.fixture(scope="session")
def corpus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "words.jsonl", 400)


@pytest.fixture(scope="session")
def tiny_yaml(corpus_file: Path) -> Path:
    path = corpus_file.parent / "tiny.yaml"
    path.write_text(f"""
name: tiny
data: {{source: {corpus_file}, tokenizer: "bpe:320", cache_dir: {path.with_name("cache")}, validation_percent: 30}}
context: {{local_len: 8, full_len: 20}}
pose: {{num_chunks: 3}}
model: {{d_model: 32, n_heads: 2, n_layers: 2, mlp_ratio: 4, attention_layer_norm: true, layer_norm_type: rms}}
training: {{steps: 12, batch_rows: 16, warmup_steps: 2, checkpoint_every: 4, eval_every: 6, eval_rows: 32, log_every: 1,
           compile: never, precision: fp32, threads: 1}}
influence: {{num_windows: 60, windows_per_part: 25, k: [1, 2, 8], batch_tokens: 700}}
""")
    return path


@pytest.fixture(scope="session")
def tiny_config(tiny_yaml: Path) -> Config:
    return load_config(tiny_yaml)


@pytest.fixture
def cached_c4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of C4's files in an empty cache of the hub, which cannot be reached."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    folder = tmp_path / "hub" / "datasets--allenai--c4" / "snapshots" / C4_REVISION / "en"
    folder.mkdir(parents=True)
    return folder


def unchanged(folder: Path) -> Iterator[Path]:
    """Yield a folder that tests share, and fail at the end if one has changed what was in it; they may add to it."""

    def state(path: Path) -> tuple[int, int] | None:
        return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None

    before = {path: state(path) for path in folder.rglob("*") if path.is_file()}
    yield folder
    changed = [str(path) for path in before if state(path) != before[path]]
    assert not changed, f"a test has changed what all share: {changed}; change a copy"


@pytest.fixture(scope="session")
def tiny_run(tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A trained run; tests must not change it."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_config, run)
    yield from unchanged(run)


@pytest.fixture(scope="session")
def bos_config(tiny_config: Config) -> Config:
    return replace(tiny_config, name="bos", context=replace(tiny_config.context, bos=True))


@pytest.fixture(scope="session")
def bos_run(bos_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run trained with a BOS in front of its rows; tests must not change it."""
    run = tmp_path_factory.mktemp("runs") / "bos"
    train(bos_config, run)
    yield from unchanged(run)


@pytest.fixture(scope="session")
def tiny_tables(tiny_config: Config, tiny_run: Path) -> Iterator[Path]:
    """The measurement of ``tiny_run``; tests must not change it."""
    yield from unchanged(measure(tiny_config, tiny_run))
