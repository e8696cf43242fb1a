"""Mistakes of a user: exit code 2, one line that names the key or the file, and nothing written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from guard_commands import Command

TRAIN = ("train", "--config", "guard.yaml", "--run", "new")
RUN = ("influence", "--run", "runs/guard", "--out", "new")
MODEL = ("--run", "new", "--data", "corpus", "influence.local_len=5", "influence.full_len=16")
PREPARE = ("prepare", "--config", "guard.yaml", "data.cache_dir=new")


def nothing() -> None:
    pass


def text(name: str, content: str) -> Callable[[], None]:
    def write() -> None:
        Path(name).write_text(content, encoding="utf-8")

    return write


def flipped(path: str, column: str) -> Callable[[], None]:
    """Flip a byte in a page of a column of a Parquet file."""

    def flip() -> None:
        group = pq.ParquetFile(path).metadata.row_group(0)
        (of_column,) = [
            one for one in map(group.column, range(group.num_columns)) if one.path_in_schema.startswith(column)
        ]
        content = bytearray(Path(path).read_bytes())
        content[of_column.data_page_offset + 100] ^= 0xFF
        Path(path).write_bytes(content)

    return flip


def cut_short(path: str) -> Callable[[], None]:
    def cut() -> None:
        content = Path(path).read_bytes()
        Path(path).write_bytes(content[: len(content) // 2])

    return cut


def pickled_model() -> None:
    """Leave a model with weights in a form that can hold code."""
    shutil.copytree("llama", "pickled")
    Path("pickled/model.safetensors").rename("pickled/pytorch_model.bin")


def model_with_code() -> None:
    """A model whose configuration asks for code of its own."""
    shutil.copytree("llama", "coded")
    config = json.loads(Path("coded/config.json").read_text())
    config |= {"model_type": "coded", "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}
    Path("coded/config.json").write_text(json.dumps(config))
    Path("coded/code.py").write_text("open('code-has-run', 'w')\n")


# Name: what makes the input, the command, and what its line must name.
MISTAKES = {
    "unknown key": (nothing, (*TRAIN, "training.stepz=3"), "stepz"),
    "not a number": (nothing, (*TRAIN, "training.steps=many"), "training.steps"),
    "out of range": (nothing, (*TRAIN, "pose.num_chunks=0"), "pose.num_chunks"),
    "more chunks than tokens": (nothing, (*TRAIN, "pose.num_chunks=99"), "num_chunks"),
    "local longer than full": (nothing, (*TRAIN, "context.local_len=16"), "local_len"),
    "no such file": (nothing, ("train", "--config", "no.yaml"), "no.yaml"),
    "not YAML": (text("broken.yaml", "name: [1"), ("train", "--config", "broken.yaml", "--run", "new"), "broken.yaml"),
    "no such text": (nothing, (*PREPARE, "data.source=nowhere.jsonl"), "nowhere.jsonl"),
    "not JSON": (text("broken.jsonl", '{"text": "a b"}\n{"text": '), (*PREPARE, "data.source=broken.jsonl"), "broken.jsonl"),
    "no text field": (text("field.jsonl", '{"body": "a b"}\n'), (*PREPARE, "data.source=field.jsonl"), "field.jsonl"),
    "not a tokenizer": (text("bad.json", "{}"), (*PREPARE, "data.tokenizer=bad.json"), "bad.json"),
    "another training": (
        nothing, ("train", "--config", "guard.yaml", "--run", "runs/guard", "training.learning_rate=0.1"), "learning_rate",
    ),
    "no such run": (nothing, ("summary", "--run", "runs/none"), "runs/none"),
    "unknown selector": (nothing, (*RUN, "influence.selectors=[best]"), "best"),
    "k above M": (nothing, (*RUN, "influence.k=[99]"), "k"),
    "no such share": (nothing, (*RUN, "--shard", "2/2"), "--shard"),
    "weights cut short": (cut_short("runs/guard/checkpoints/step60/model.pt"), RUN, "model.pt"),
    "no such model": (nothing, ("influence", "--model", "./nowhere", *MODEL), "nowhere"),
    "pickled weights": (pickled_model, ("influence", "--model", "pickled", *MODEL), "pickled"),
    "a model with code": (model_with_code, ("influence", "--model", "coded", *MODEL), "coded"),
    "GGUF cut short": (cut_short("llama.gguf"), ("influence", "--model", "llama.gguf", *MODEL), "llama.gguf"),
    "a flipped bit": (
        flipped("tables/contextual/selections/part-00000.parquet", "kl_sparse_nats"),
        ("summary", "--tables", "tables/contextual"), "part-00000.parquet",
    ),
    "a part is missing": (
        lambda: Path("tables/words/windows/part-00000.parquet").unlink(), ("summary", "--tables", "tables/words"),
        "part-00000.parquet",
    ),
    "not a manifest": (
        text("tables/words/manifest.json", "{"), ("summary", "--tables", "tables/words"), "manifest.json",
    ),
    "merge of two measurements": (
        nothing, ("merge", "tables/words", "tables/contextual", "--out", "new"), "tables/contextual",
    ),
}  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, arguments, named = MISTAKES[name]
    folder = tmp_path / "folder"
    copied = ("corpus", "llama", "llama.gguf", "guard.yaml", "tables", "runs/guard")
    for one in copied:
        source, copy = workplace / one, folder / one
        copy.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    monkeypatch.chdir(folder)
    make()
    before = contents(folder)
    command = Command("-q", *arguments, cwd=folder)
    assert command.wait() == 2, command.err
    assert len(command.err.splitlines()) == 1, command.err
    assert named in command.err
    after = contents(folder)
    assert {path: after.get(path) for path in before} == before
    written = [path for path in after.keys() - before.keys() if not path.startswith(("data/", "new"))]
    assert not written
