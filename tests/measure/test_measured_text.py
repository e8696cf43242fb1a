"""How the text that is measured is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.config import DataConfig, InfluenceConfig
from olmo_sparsity.measure.setup import measured_text
from olmo_sparsity.measure.setup.measured_text import _data_to_measure, text_of_run

OWN = {"source": "own.jsonl", "max_documents": 30, "tokenizer": "bpe:320"}


@pytest.mark.parametrize(
    ("data", "influence", "source", "max_documents"),
    [
        ({}, {}, "own.jsonl", 30),
        ({}, {"max_documents": 7}, "own.jsonl", 7),
        ({}, {"data": "other.jsonl"}, "other.jsonl", None),  # limits of the training text are its own
        ({}, {"data": "other.jsonl", "max_documents": 7}, "other.jsonl", 7),
        ({}, {"data": "c4"}, "c4", 20 * 6),
        ({"source": "c4", "max_documents": None}, {}, "c4", 20 * 6),
        ({"source": "c4"}, {}, "c4", 30),
        ({"source": "c4", "max_documents": None, "max_tokens": 10**6}, {}, "c4", None),
        ({"max_tokens": 10**6}, {"data": "c4"}, "c4", 20 * 6),
    ],
)
def test_which_text_is_read_and_how_much_of_it(
    data: dict[str, Any], influence: dict[str, Any], source: str, max_documents: int | None
) -> None:
    """Of a corpus without a limit as many documents as the windows take."""
    of_run = DataConfig(**(OWN | data))
    found = _data_to_measure(of_run, InfluenceConfig(**({"num_windows": 6} | influence)))
    assert (found.source, found.max_documents, found.tokenizer) == (source, max_documents, "bpe:320")
    assert found.max_tokens == (None if "data" in influence else of_run.max_tokens)


def of_run(settings: InfluenceConfig, store: str = "kept", **manifest: Any) -> measured_text.MeasuredText:
    data, facts = DataConfig(source="own.jsonl", cache_dir="here"), {"token_store": store, "tokens_sha256": "t"}
    return text_of_run(data, settings, run=Path("runs/x"), manifest=facts | manifest)
