"""What fixtures and tests make alike: invented text, the configuration of a small run, and a list of what is logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np


class Messages(logging.Handler):
    """Collects the lines that the package logs, the newest last."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __getitem__(self, index: int) -> str:
        return self.lines[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def clear(self) -> None:
        self.lines.clear()


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
    rng = np.random.default_rng(seed)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(num_documents):
            file.write(json.dumps({"text": made_up_text(rng, int(rng.integers(10, 60)))}) + "\n")
    return path


TINY_YAML = """
name: tiny
data: {{source: {source}, tokenizer: "bpe:320", cache_dir: {cache}, validation_percent: 30}}
context: {{local_len: 8, full_len: 20}}
pose: {{num_chunks: 3}}
model: {{d_model: 32, n_heads: 2, n_layers: 2, mlp_ratio: 4, attention_layer_norm: true, layer_norm_type: rms,
         layer_norm_with_affine: true}}
training: {{steps: 12, batch_rows: 16, warmup_steps: 2, checkpoint_every: 4, eval_every: 6, eval_rows: 32, log_every: 1,
           compile: never, precision: fp32, threads: 1}}
influence: {{num_windows: 60, windows_per_part: 25, k: [1, 2, 8], batch_tokens: 700}}
"""
