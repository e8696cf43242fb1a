"""How the text that is measured is read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Messages
from tokenizers import Tokenizer, models

from olmo_sparsity.config import Config, DataConfig, InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.setup import measured_text
from olmo_sparsity.measure.setup.measured_text import _data_to_measure, text_of_pretrained, text_of_run

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


IDS = np.array([3, 5], dtype=np.uint64)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is done with prepared texts; ``gone`` is not there, ``again`` and ``other`` are what is prepared for two sources."""
    calls: list[tuple[Any, ...]] = []
    of_run = Config(data=DataConfig(source="own.jsonl", tokenizer="bpe:9", cache_dir="where the run was trained"))

    def prepare(data: DataConfig, **options: Path) -> Path:
        calls.append(("prepare", data, options))
        return Path("again" if data.source == "own.jsonl" else "other")

    def open_store(folder: Path, split: str) -> Any:
        calls.append(("open", folder.name, split))
        return SimpleNamespace(folder=folder, split=split, tokens_sha256="t", doc_ids_G=IDS)

    monkeypatch.setattr(measured_text, "prepare", prepare)
    monkeypatch.setattr(measured_text, "open_store", open_store)
    monkeypatch.setattr(measured_text, "verify_prepared", lambda folder: calls.append(("verify", folder.name)))
    monkeypatch.setattr(measured_text, "is_prepared", lambda folder: folder != Path("gone"))
    monkeypatch.setattr(measured_text, "read_config_of", lambda run: of_run)
    made = {"kept": "text", "again": "token files", "other": "text"}
    monkeypatch.setattr(measured_text, "read_manifest_of", lambda folder, key: {key: made[folder.name]})
    return calls


def of_run(settings: InfluenceConfig, store: str = "kept", **manifest: Any) -> measured_text.MeasuredText:
    data, facts = DataConfig(source="own.jsonl", cache_dir="here"), {"token_store": store, "tokens_sha256": "t"}
    return text_of_run(data, settings, run=Path("runs/x"), manifest=facts | manifest)


def test_the_text_of_a_run_is_verified_before_it_is_opened(done: list[tuple[Any, ...]]) -> None:
    text = of_run(InfluenceConfig())
    assert done == [("verify", "kept"), ("open", "kept", "train"), ("open", "kept", "validation")]
    assert (text.store.split, text.source, text.split) == ("validation", "own.jsonl", "validation")
    assert text.training_store is not None and text.training_store.split == "train"  # type: ignore[attr-defined]
    assert text.excluded_ids_G is None
    with pytest.raises(UserError, match=r"^runs/x: data\.source = own\.jsonl has changed since .*; restore the text$"):
        of_run(InfluenceConfig(), tokens_sha256="another")
    with pytest.raises(UserError, match=r"^runs/x/manifest\.json: key tokens_sha256 is missing; "):
        of_run(InfluenceConfig(), tokens_sha256=None)


def test_so_is_other_text_and_that_of_a_pretrained_model(done: list[tuple[Any, ...]]) -> None:
    text = of_run(InfluenceConfig(data="other.jsonl"))
    prepared, *rest = done[2:]
    assert (prepared[1].source, prepared[2]) == ("other.jsonl", {"tokenizer_file": Path("runs/x/tokenizer.json")})
    assert rest == [("verify", "other"), ("open", "other", "measured")]
    assert (text.source, text.split) == ("other.jsonl", "held-out") and np.array_equal(text.excluded_ids_G, IDS)
    done.clear()
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    text = text_of_pretrained(DataConfig(source="x"), InfluenceConfig(), tokenizer=tokenizer, eos_token="</s>")
    assert done[0][1].eos_token == "</s>" and done[1:] == [("verify", "other"), ("open", "other", "measured")]
    assert (text.source, text.split, text.training_store, text.excluded_ids_G) == ("x", "measured", None, None)


def test_token_files_that_are_gone_are_made_again_where_they_are_kept_now(
    done: list[tuple[Any, ...]], messages: Messages
) -> None:
    """As the run's own configuration says. Made of other token files, they tell no document of text."""
    of_run(InfluenceConfig(data="other.jsonl"), store="gone")
    expected = dataclasses.replace(DataConfig(source="own.jsonl", tokenizer="bpe:9"), cache_dir="here")
    assert done[:2] == [("prepare", expected, {}), ("verify", "again")]
    assert messages.lines == [
        "gone: the token files of this run are gone; preparing the text again",
        "other.jsonl: documents of text are recognised by their characters, documents of token files by their tokens, so "
        "documents that the model was trained on cannot be left out here",
    ]
    messages.clear()
    of_run(InfluenceConfig(data="other.jsonl"))  # both of text
    assert messages.lines == []
    with pytest.raises(UserError, match=r"on a synthetic task and has no text; measure it with `olmo-sparsity synth`$"):
        text_of_run(DataConfig(), InfluenceConfig(), run=Path("x"), manifest={})
