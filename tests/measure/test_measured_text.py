"""How the text that is measured is read."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Messages, made_up_text
from tokenizers import Tokenizer, models

from olmo_sparsity.config import Config, DataConfig, InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.setup import measured_text
from olmo_sparsity.measure.setup.measured_text import _data_to_measure, text_of_pretrained, text_of_run
from olmo_sparsity.measure.setup.opened_model import open_model
from olmo_sparsity.storage.files import read_json, write_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.store import open_store
from olmo_sparsity.training.loop import train
from olmo_sparsity.view.console import print_summary

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
    assert [store.split for store in text.training_stores] == ["train"] and text.is_training_known
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
    assert (text.source, text.split, text.training_stores, text.excluded_ids_G) == ("x", "measured", (), None)
    assert not text.is_training_known


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


@pytest.fixture(scope="module")
def stages(
    tiny_config: Config, tiny_run: Path, corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, Path]:
    """A run that starts from ``tiny_run``, on other text; half of its documents hold a passage of the text of that one."""
    folder, rng = tmp_path_factory.mktemp("stages"), np.random.default_rng(9)
    passages = [json.loads(line)["text"][:300] for line in corpus_file.open()][:40]
    texts = [made_up_text(rng, 60) + passage * (number % 2) for number, passage in enumerate(passages)]
    (folder / "other.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    config = dataclasses.replace(
        tiny_config,
        name="second",
        data=dataclasses.replace(
            tiny_config.data, source=str(folder / "other.jsonl"), tokenizer=str(tiny_run / "tokenizer.json")
        ),
        training=dataclasses.replace(tiny_config.training, steps=1, warmup_steps=0, start_from=str(tiny_run)),
        influence=InfluenceConfig(num_windows=40, selectors=["random"], k=[1], resampled_draws=0, windows_per_part=40),
    )
    train(config, folder / "second")
    return config, folder / "second"


def sequences_of_training(run: Path) -> set[tuple[int, ...]]:
    store = open_store(Path(read_json(run / "manifest.json")["token_store"]), "train")
    documents = [
        store.tokens[begin : end - 1].tolist() for begin, end in zip(store.begins_G, store.ends_G, strict=True)
    ]
    return {tuple(tokens[i : i + 13]) for tokens in documents for i in range(len(tokens) - 12)}


def test_the_text_of_every_stage_counts_as_training_text(
    stages: tuple[Config, Path],
    tiny_run: Path,
    corpus_file: Path,
    tmp_path: Path,
    messages: Messages,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a stage whose records are gone, that is unknown: said so, and in no column."""
    config, run = stages
    seen_first, seen_second = sequences_of_training(tiny_run), sequences_of_training(run)
    windows = read_table(measure(config, run), "windows").to_pylist()
    tokens = [(*row["token_ids"], row["target_id"]) for row in windows]
    in_first, in_second = [
        [any(window[i : i + 13] in seen for i in range(len(window) - 12)) for window in tokens]
        for seen in (seen_first, seen_second)
    ]
    assert [row["train_overlap"] for row in windows] == [a or b for a, b in zip(in_first, in_second, strict=True)]
    assert any(a and not b for a, b in zip(in_first, in_second, strict=True)) and not all(in_first)
    other = dataclasses.replace(config, influence=dataclasses.replace(config.influence, data=str(corpus_file)))
    train_ids, kept_ids = [
        set(open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), split).doc_ids_G.tolist())
        for split in ("train", "validation")
    ]
    opened = open_model(other, run)
    drawn = opened.windows(dataclasses.replace(other.influence, num_windows=4000))
    measured_ids = set(drawn.store.doc_ids_G[drawn.document_W].tolist())
    assert measured_ids <= kept_ids and len(measured_ids) > 20 and train_ids
    assert not any("unknown" in line for line in messages)

    moved = Path(shutil.copytree(run, tmp_path / "second", symlinks=True))
    manifest = read_json(moved / "manifest.json")
    manifest["config"]["training"]["start_from"] = manifest["first_stage"]["folder"] = "gone"
    write_json(moved / "manifest.json", manifest)
    adrift = dataclasses.replace(config, training=dataclasses.replace(config.training, start_from="gone"))
    windows = read_table(measure(adrift, moved), "windows").to_pylist()
    assert {row["train_overlap"] for row in windows} == {None}
    (said,) = [line for line in messages if "unknown" in line]
    assert said == (
        f"{moved}: on which text tiny, from which this run started, was trained is unknown (gone: this run is gone, or was "
        "trained anew), so documents of that text are not left out, and train_overlap is null"
    )
    print_summary(measure(adrift, moved))
    said = " ".join(capsys.readouterr().out.split())
    assert "share text with training is unknown, as is the text of an earlier stage of this run." in said
