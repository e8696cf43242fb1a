"""The influence tables against the definitions, window by window; null context, parts, interruptions, other text."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Messages, write_corpus

from olmo_sparsity.config import Config, ContextConfig, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure import influence
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.setup.opened_model import lengths_record
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.storage.files import read_json, sha256_text
from olmo_sparsity.tables.parts import part_path
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text import corpus
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.vocabulary import read_tokenizer

LOCAL, FULL, M = 8, 20, 12


def with_settings(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


def rows_of(tables: Path, table: str) -> list[dict]:
    return read_table(tables, table).to_pylist()


def test_the_manifest_says_what_was_measured(tiny_run: Path, tiny_tables: Path, tiny_config: Config) -> None:
    manifest, windows = read_json(tiny_tables / "manifest.json"), rows_of(tiny_tables, "windows")
    assert manifest["context"] == {
        "local_len": 8, "full_len": 20, "train_len": 8, "max_position": 20, "pose_method": "pose", "num_chunks": 3,
        "pose_contents": "contiguous", "num_long_range": 12,
    }  # fmt: skip
    documents = {row["doc_id"] for row in windows}
    assert (
        (manifest["num_windows"], manifest["num_documents"]) == (len(windows), len(documents)) == (60, len(documents))
    )
    assert len(documents) < 60 and manifest["influence"]["null_context"] == "document"
    assert (manifest["run"], manifest["split"], manifest["source"]) == ("tiny", "validation", tiny_config.data.source)
    assert {(row["split"], row["source"]) for row in windows} == {("validation", "words.jsonl")}
    trained = read_json(tiny_run / "manifest.json")
    assert manifest["num_parameters"] == trained["num_parameters"]
    assert manifest["checkpoint"]["step"] == 12 == tiny_config.training.steps
    tokenizer = read_tokenizer(tiny_run / "tokenizer.json")
    assert manifest["tokenizer_sha256"] == sha256_text(tokenizer.to_str()) != manifest["tokens_sha256"]
    assert (manifest["num_parts"], manifest["windows_per_part"]) == (3, 25)
    settings = manifest["influence"]
    assert (settings["k"], settings["seed"], settings["resampled_draws"]) == ([1, 2, 8], 0, 2)


@pytest.mark.parametrize("is_stated", [False, True])
def test_lengths_of_the_manifest_each_stand_under_their_name(is_stated: bool) -> None:
    lengths = Config(context=ContextConfig(local_len=10, full_len=50, train_len=20)).measured_lengths
    pose = None if is_stated else PoseConfig(method="pose", num_chunks=3, contents="matched")
    opened: Any = SimpleNamespace(lengths=lengths, max_position=70, pose=pose)
    rest = {"pose_method": "pose", "num_chunks": 3, "pose_contents": "matched"}
    assert lengths_record(opened) == {
        "local_len": 10, "full_len": 50, "train_len": 20, "max_position": 70, "num_long_range": 40,
        **({"train_len_is_stated": True} if is_stated else rest),
    }  # fmt: skip


def test_a_run_that_is_the_current_directory_has_its_name(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(tiny_run, tmp_path / "mine", symlinks=True))
    tables = measure(with_settings(tiny_config, num_windows=4, k=[1], selectors=["random"]), Path())
    assert read_json(tables / "manifest.json")["run"] == "mine"


def test_measurements_of_several_lengths_share_targets_and_foreign_text(
    tiny_config: Config, tiny_run: Path, tiny_tables: Path, tmp_path: Path
) -> None:
    settings = {"full_len": 14, "min_preceding": FULL, "num_windows": 6, "k": [2], "selectors": ["nearest", "random"]}
    shorter = measure(with_settings(tiny_config, **settings), tiny_run, out=tmp_path / "shorter")
    pairs = list(zip(rows_of(shorter, "windows"), rows_of(tiny_tables, "windows")[:6], strict=True))
    for one, other in pairs:
        assert [one[name] for name in ("doc_id", "target_id", "null_doc_id")] == [
            other[name] for name in ("doc_id", "target_id", "null_doc_id")
        ]
        assert one["start_token"] == other["start_token"] + 6
        assert one["token_ids"] == other["token_ids"][6:] and one["null_token_ids"] == other["null_token_ids"][6:]
    shorts = [[row["loss_short_nats"] for row in pair] for pair in pairs]
    assert shorts == [pytest.approx([pair[0], pair[0]], abs=1e-5) for pair in shorts]  # the local tokens are the same


def test_windows_are_consecutive_tokens_of_validation_documents(tiny_tables: Path, tiny_run: Path) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    store = open_store(Path(manifest["token_store"]), "validation")
    training = {f"{i:016x}" for i in open_store(Path(manifest["token_store"]), "train").doc_ids_G.tolist()}
    where = {f"{i:016x}": n for n, i in enumerate(store.doc_ids_G.tolist())}
    tokenizer = read_tokenizer(tiny_run / "tokenizer.json")
    assert read_json(tiny_tables / "manifest.json")["tokenizer_sha256"] == sha256_text(tokenizer.to_str())
    windows = rows_of(tiny_tables, "windows")
    assert [w["window_id"] for w in windows] == list(range(60))
    for window in windows:
        begin = store.begins_G[where[window["doc_id"]]] + window["start_token"]
        assert store.tokens[begin : begin + FULL + 1].tolist() == [*window["token_ids"], window["target_id"]]
        assert window["doc_id"] not in training
        assert window["null_doc_id"] != window["doc_id"]
        null = store.tokens[store.begins_G[where[window["null_doc_id"]]] : store.ends_G[where[window["null_doc_id"]]]]
        text = " ".join(map(str, null.tolist()))
        assert " ".join(map(str, window["null_token_ids"])) in text
        assert len(window["null_token_ids"]) == M
        assert tokenizer.decode([window["target_id"]]) == window["target_text"]
        assert "".join(window["token_texts"]) == tokenizer.decode(window["token_ids"])


def test_the_masked_path_gives_the_same_tables(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    masked = measure(with_settings(tiny_config, path="masked"), tiny_run, out=tmp_path / "masked")
    for ours, theirs in zip(rows_of(tiny_tables, "windows"), rows_of(masked, "windows"), strict=True):
        for column in ("loss_short_nats", "loss_long_nats", "null_loss_long_nats"):
            assert ours[column] == pytest.approx(theirs[column], abs=1e-5)
    same = [
        np.abs(np.subtract(a["loss_sparse_nats"], b["loss_sparse_nats"])).max() < 1e-5
        for a, b in zip(rows_of(tiny_tables, "selections"), rows_of(masked, "selections"), strict=True)
        if a["positions"] == b["positions"]  # scores that differ by rounding may swap two positions
    ]
    assert all(same)
    assert len(same) > 400


def test_an_interrupted_measurement_does_the_missing_parts_only(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    measured = influence.measure_windows
    calls: list[int] = []

    def counted(evaluator: Evaluator, batches: dict[str, WindowBatch], **options: Any) -> object:
        if len(calls) == 1 and not out.joinpath("resumed").exists():
            raise KeyboardInterrupt
        calls.append(int(batches["real"].window_ids_W[0]))
        return measured(evaluator, batches, **options)

    monkeypatch.setattr(influence, "measure_windows", counted)
    with pytest.raises(KeyboardInterrupt):
        measure(tiny_config, tiny_run, out=out)
    with pytest.raises(UserError, match="unfinished"):
        read_table(out, "windows")
    (out / "resumed").touch()
    measure(tiny_config, tiny_run, out=out)
    assert calls == [0, 25, 50]
    for table in ("windows", "selections"):
        assert read_table(out, table).equals(read_table(tiny_tables, table))
        for part in range(3):
            assert (
                part_path(out, table, part=part).read_bytes() == part_path(tiny_tables, table, part=part).read_bytes()
            )


def test_more_windows_begin_with_the_same_ones(
    tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    fewer = measure(with_settings(tiny_config, num_windows=25), tiny_run, out=tmp_path / "fewer")
    first, of_all = (read_table(tables, "windows").drop_columns("weight") for tables in (fewer, tiny_tables))
    assert first.equals(of_all.slice(0, 25))  # weights depend on how many draws there were


def test_the_kind_of_the_null_context_is_in_tables_and_manifest(
    tiny_config: Config, tiny_run: Path, tiny_tables: Path, tmp_path: Path
) -> None:
    assert read_json(tiny_tables / "manifest.json")["influence"]["null_context"] == "document"
    settings = {"null_context": "shuffled", "selectors": ["random"], "resampled_draws": 0}
    tables = measure(with_settings(tiny_config, **settings), tiny_run, out=tmp_path / "shuffled")
    windows = rows_of(tables, "windows")
    assert read_json(tables / "manifest.json")["influence"]["null_context"] == "shuffled"
    for window in windows:
        assert window["null_doc_id"] == window["doc_id"]
        assert sorted(window["null_token_ids"]) == sorted(window["token_ids"][:M])
    assert any(window["null_token_ids"] != window["token_ids"][:M] for window in windows)


def test_other_text_is_measured_without_what_was_trained_on(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    own = Path(tiny_config.data.source)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(own.read_text() + write_corpus(tmp_path / "new.jsonl", 40, seed=99).read_text())
    tables = measure(
        with_settings(tiny_config, data=str(mixed), num_windows=5000, max_windows_per_document=1),
        tiny_run,
        out=tmp_path / "t",
    )
    windows = rows_of(tables, "windows")
    training = {
        f"{i:016x}" for i in open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "train").doc_ids_G
    }
    assert windows
    assert {w["split"] for w in windows} == {"held-out"}
    assert not {w["doc_id"] for w in windows} & training
    assert not {w["null_doc_id"] for w in windows} & training
    documents = [d for d in corpus.read_documents(tiny_config.data) if corpus.split_of(d, 30) == "train"]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps({"text": d.text}) + "\n" for d in documents[:9]))
    own_text = with_settings(tiny_config, data=str(tmp_path / "own.jsonl"))
    with pytest.raises(UserError, match="left out: the model was trained on them"):
        measure(own_text, tiny_run, out=tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_windows_that_overlap_with_training_text_are_marked(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    """Half of the texts to measure begin or end with words that the model was trained on."""
    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "train")
    tokenizer = read_tokenizer(tiny_run / "tokenizer.json")
    documents = [store.tokens[a : b - 1].tolist() for a, b in zip(store.begins_G, store.ends_G, strict=True)]
    trained = {tuple(tokens[i : i + 13]) for tokens in documents for i in range(len(tokens) - 12)}
    new = [json.loads(line)["text"] for line in write_corpus(tmp_path / "new.jsonl", 40, seed=98).open()]
    mixed = [f"{text} {tokenizer.decode(documents[i])}" if i % 2 else text for i, text in enumerate(new)]
    source = tmp_path / "mixed.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in mixed))
    few = with_settings(tiny_config, data=str(source), selectors=["random"], resampled_draws=0)
    windows = rows_of(measure(few, tiny_run, out=tmp_path / "checked"), "windows")
    for window in windows:
        tokens = [*window["token_ids"], window["target_id"]]
        assert window["train_overlap"] == any(tuple(tokens[i : i + 13]) in trained for i in range(len(tokens) - 12))
    assert 10 < sum(window["train_overlap"] for window in windows) < 50
    unchecked = measure(with_settings(few, train_overlap=False), tiny_run, out=tmp_path / "unchecked")
    assert {window["train_overlap"] for window in rows_of(unchecked, "windows")} == {None}
    short = measure(with_settings(few, full_len=11, k=[1]), tiny_run, out=tmp_path / "short")
    assert {window["train_overlap"] for window in rows_of(short, "windows")} == {None}  # too short to hold 13 tokens


def test_finished_foreign_and_missing_folders(
    messages: Messages, tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    messages.clear()
    assert measure(tiny_config, tiny_run) == tiny_tables
    assert "already measured (60 windows)" in messages[0]
    copy = Path(shutil.copytree(tiny_tables, tmp_path / "copy"))
    with pytest.raises(UserError, match="other settings"):
        measure(with_settings(tiny_config, seed=5), tiny_run, out=copy)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is no influence folder"):
        measure(tiny_config, tiny_run, out=tmp_path / "mine", overwrite=True)
    with pytest.raises(UserError, match=r"is no influence folder .*'run'"):
        measure(tiny_config, tiny_run, out=tiny_run, overwrite=True)
    assert (tiny_run / "checkpoints").is_dir()
    (tmp_path / "short.jsonl").write_text('{"text": "much too short"}\n')
    short = with_settings(tiny_config, data=str(tmp_path / "short.jsonl"))
    with pytest.raises(UserError, match="too small"):  # detected before anything is deleted
        measure(short, tiny_run, out=copy, overwrite=True)
    assert read_table(copy, "windows").num_rows == 60
    with pytest.raises(UserError, match="this run has no checkpoint"):
        measure(tiny_config, tmp_path / "nowhere")
    assert measure(with_settings(tiny_config, seed=5, num_windows=5), tiny_run, out=copy, overwrite=True) == copy
    assert read_json(copy / "manifest.json")["num_windows"] == 5
