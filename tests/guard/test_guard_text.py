"""``prepare``: token files, offsets, tokenizer and split are those of before, byte by byte."""

from __future__ import annotations

import hashlib
from pathlib import Path

from guard_commands import run
from guard_tables import assert_numbers


def token_files(data: Path) -> dict[str, str]:
    """Return the SHA-256 of the tokenizer, and of the tokens and offsets of each split, whatever files they are divided into."""
    (store,) = data.iterdir()
    hashes = {"tokenizer": hashlib.sha256((store / "tokenizer.json").read_bytes())}
    for split in ("train", "validation"):
        for path in sorted((store / split).glob("*.bin")):
            name = f"{split}.{path.name.split('-')[0].removesuffix('.bin')}"
            hashes.setdefault(name, hashlib.sha256()).update(path.read_bytes())
    return {name: of.hexdigest() for name, of in hashes.items()}


def test_prepare(workplace: Path) -> None:
    for name, keys in {
        "prepared": [],
        "prepared-other": [
            "data.source=corpus/stories.jsonl",
            "data.tokenizer=corpus-tokenizer.json",
            "data.max_tokens=4000",
        ],
    }.items():
        (workplace / "corpus-tokenizer.json").write_bytes((workplace / "llama" / "tokenizer.json").read_bytes())
        if keys:
            keys += ["data.eos_token=</s>", "data.validation_percent=20"]
        run("prepare", "--config", "guard.yaml", f"data.cache_dir={name}", *keys, cwd=workplace)
        assert_numbers(name, token_files(workplace / name), tolerance=0)
