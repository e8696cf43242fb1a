"""A pretrained model from its folder to the tables: what is computed, what is recorded, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import Messages, write_corpus
from tiny_gguf import BOS as GGUF_BOS
from tiny_gguf import save_gguf
from tiny_pretrained import BOS, MAX_POSITION, loss_after, save_llama

from olmo_sparsity.config import Config, InfluenceConfig, PretrainedConfig
from olmo_sparsity.config.files import load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.measurement import begin_pretrained
from olmo_sparsity.measure.setup.fit import num_compared_windows
from olmo_sparsity.records.measured import ModelRecord
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.parts import part_path
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.vocabulary import read_tokenizer

LOCAL, FULL, M = 8, 20, 12


@pytest.fixture(scope="module")
def config(corpus_file: Path, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A tiny Llama that adds a BOS, to be measured on the text of the tiny run."""
    texts = [json.loads(line)["text"] for line in corpus_file.open()]
    folder = save_llama(tmp_path_factory.mktemp("models") / "llama", texts)
    return dataclasses.replace(
        tiny_config,
        pretrained=PretrainedConfig(str(folder)),
        influence=dataclasses.replace(tiny_config.influence, num_windows=30, windows_per_part=12),
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "llama"


@pytest.fixture(scope="module")
def tables(config: Config, results: Path) -> Path:
    return measure(config, results)


def with_settings(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


def rows_of(tables: Path, table: str) -> list[dict]:
    return read_table(tables, table).to_pylist()


def test_losses_are_those_of_transformers_with_a_bos_in_front(tables: Path, config: Config) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(str(config.pretrained.model)).eval()
    bos = read_json(tables / "manifest.json")["anchor"]["id"]
    selections = {
        (row["window_id"], row["selector"]): row for row in rows_of(tables, "selections") if row["context"] == "real"
    }
    for window in rows_of(tables, "windows")[:3]:

        def loss(visible: list[int], window: dict = window) -> float:
            seen = [*sorted(visible), *range(M, FULL)]
            tokens = [bos, *(window["token_ids"][i] for i in seen)]
            return loss_after(model, tokens, [0, *(i + 1 for i in seen)], window["target_id"])

        assert window["loss_short_nats"] == pytest.approx(loss([]), abs=1e-5)
        assert window["loss_long_nats"] == pytest.approx(loss(list(range(M))), abs=1e-5)
        assert window["split"] == "measured"
        row = [bos, *window["token_ids"][M:]]
        no_gap = loss_after(model, row, list(range(len(row))), window["target_id"])
        assert window["loss_short_no_gap_nats"] == pytest.approx(no_gap, abs=1e-5)
        assert abs(no_gap - loss([])) > 1e-4
        assert window["gain_beyond_nats"] is None and window["train_overlap"] is None
        for selector in ("kl", "unmask-one"):
            row = selections[window["window_id"], selector]
            for k, value in zip(row["k"], row["loss_sparse_nats"], strict=True):
                assert value == pytest.approx(loss(row["positions"][:k]), abs=1e-5)


def test_the_folder_and_the_manifest_say_what_was_measured(tables: Path, results: Path, config: Config) -> None:
    manifest, of_folder = read_json(tables / "manifest.json"), read_json(results / "manifest.json")
    assert of_folder == {"kind": "pretrained", "status": "complete", "model": manifest["model"]}
    assert manifest["model"]["name"] == config.pretrained.model
    assert (manifest["visibility"], manifest["anchor"]["text"]) == ("hidden", BOS)
    assert manifest["context"] == {
        "local_len": LOCAL, "full_len": FULL, "train_len": None, "max_position": MAX_POSITION, "num_long_range": M,
    }  # fmt: skip
    assert manifest["fit"]["anchor"]["chosen"] == "bos"
    assert manifest["fit"]["anchor"]["num_windows"] == 30
    assert (manifest["precision"], manifest["run"]) == ("fp32", "llama")
    assert not {"checkpoint", "pose"} & set(manifest)
    assert tables.name.startswith("words-jsonl-measured-8of20-bos-n30-")
    kept = load_config(results / "config.yaml")
    assert (kept.name, kept.pretrained, kept.data, kept.context) == (
        "llama", config.pretrained, config.data, config.context,
    )  # fmt: skip
    assert kept.influence == InfluenceConfig()


def test_a_removed_part_is_measured_again_and_gives_the_same_bytes(
    tables: Path, results: Path, config: Config, tmp_path: Path
) -> None:
    parts = [part_path(tables, table, part=1) for table in ("windows", "selections")]
    before = [path.read_bytes() for path in parts]
    parts[0].unlink()
    assert measure(config, results) == tables
    assert [path.read_bytes() for path in parts] == before
    elsewhere = measure(config, tmp_path / "again", out=tmp_path / "tables")
    for table in ("windows", "selections"):
        assert read_table(elsewhere, table).equals(read_table(tables, table))
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (results / "tokenizer.json").read_bytes()


def test_contextual_visibility_and_the_anchor_change_the_losses_and_the_name(
    tables: Path, results: Path, config: Config
) -> None:
    contextual = measure(with_settings(config, visibility="contextual"), results)
    bare = measure(with_settings(config, anchor="none"), results)
    assert "8of20-contextual-bos-n30" in contextual.name
    assert "8of20-n30" in bare.name
    assert read_json(bare / "manifest.json")["anchor"] is None
    losses = {
        folder: {
            column: read_table(folder, "windows")[column].to_numpy() for column in ("loss_short_nats", "loss_long_nats")
        }
        for folder in (tables, contextual, bare)
    }
    for column in ("loss_short_nats", "loss_long_nats"):  # nothing or everything visible: both definitions agree
        assert losses[contextual][column] == pytest.approx(losses[tables][column], abs=1e-5)
        assert np.abs(losses[bare][column] - losses[tables][column]).max() > 0.01
    sparse = [
        {
            row["window_id"]: row
            for row in rows_of(folder, "selections")
            if (row["selector"], row["context"]) == ("nearest", "real")
        }
        for folder in (tables, contextual)
    ]
    differences = [abs(sparse[0][w]["loss_sparse_nats"][-1] - sparse[1][w]["loss_sparse_nats"][-1]) for w in sparse[0]]
    assert max(differences) > 0.01


def test_a_model_is_measured_in_the_precision_that_is_asked_for(config: Config, tables: Path, tmp_path: Path) -> None:
    few = with_settings(config, precision="bf16", num_windows=5, selectors=["nearest"], resampled_draws=0)
    folder = measure(few, tmp_path / "llama")
    assert read_json(folder / "manifest.json")["precision"] == "bf16"
    for column in ("loss_short_nats", "loss_long_nats", "null_loss_long_nats"):
        low, high = (read_table(one, "windows")[column].to_numpy()[:5] for one in (folder, tables))
        assert 1e-4 < np.abs(low - high).max() < 0.1  # bf16 has 8 bits


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_a_gguf_file_is_measured(visibility: str, config: Config, corpus_file: Path, tmp_path: Path) -> None:
    """Under ``contextual`` a model has an anchor, even where its tokenizer adds no BOS."""
    path = tmp_path / "tiny.Q4_1.gguf"
    model = save_gguf(path, [json.loads(line)["text"] for line in corpus_file.open()], adds_bos=visibility == "hidden")
    few = with_settings(config, visibility=visibility, num_windows=5, selectors=["kl", "random"])
    folder = measure(dataclasses.replace(few, pretrained=PretrainedConfig(str(path))), tmp_path / "runs" / "tiny")
    manifest = read_json(folder / "manifest.json")
    record = manifest["model"]
    assert (record["name"], record["dtype"], record["revision"]) == (str(path), "float32", None)
    assert record["weights_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (manifest["visibility"], manifest["anchor"]["text"]) == (visibility, GGUF_BOS)
    rows = rows_of(folder, "windows")
    assert len(rows) == 5
    for row in rows:
        bos = manifest["anchor"]["id"]
        long = loss_after(model, [bos, *row["token_ids"]], list(range(FULL + 1)), row["target_id"])
        short = loss_after(model, [bos, *row["token_ids"][M:]], [0, *range(M + 1, FULL + 1)], row["target_id"])
        assert (row["loss_long_nats"], row["loss_short_nats"]) == pytest.approx((long, short), abs=1e-5)


def test_windows_are_longer_than_a_sliding_window(config: Config, tmp_path: Path) -> None:
    """Windows of 20 tokens, of a model whose layers see 12 or 24 positions: its own masks say what it sees."""
    folder = Path(shutil.copytree(str(config.pretrained.model), tmp_path / "mistral"))
    described = json.loads((folder / "config.json").read_text())
    few = with_settings(config, num_windows=6, selectors=["nearest"], resampled_draws=0)
    for window in (12, 24):
        described |= {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": window}
        (folder / "config.json").write_text(json.dumps(described))
        mistral = dataclasses.replace(few, pretrained=PretrainedConfig(str(folder)))
        raw = transformers.MistralForCausalLM.from_pretrained(str(folder)).eval()
        run = tmp_path / f"run-{window}"
        tables = measure(mistral, run)
        bos = read_json(tables / "manifest.json")["anchor"]["id"]
        for row in rows_of(tables, "windows"):
            with torch.no_grad():  # transformers makes its own mask of a text without gaps
                logits = raw(torch.tensor([[bos, *row["token_ids"]]])).logits[0, -1]
            expected = float(-logits.double().log_softmax(-1)[row["target_id"]])
            assert row["loss_long_nats"] == pytest.approx(expected, abs=1e-5)
            if window == 12:  # the anchor and the first tokens are seen by way of others only, under two layers
                plain = loss_after(raw, [bos, *row["token_ids"]], list(range(FULL + 1)), row["target_id"])
                assert abs(plain - expected) > 1e-4


def test_one_document_is_enough(config: Config, messages: Messages, tmp_path: Path) -> None:
    """Its null context is shuffled, and the manifest and a message say so."""
    one = write_corpus(tmp_path / "one.jsonl", 1, seed=3)
    few = with_settings(config, data=str(one), num_windows=9, selectors=["kl", "random"])
    folder = measure(few, tmp_path / "llama")
    assert read_json(folder / "manifest.json")["influence"]["null_context"] == "shuffled"
    windows = rows_of(folder, "windows")
    assert {window["null_doc_id"] for window in windows} == {windows[0]["doc_id"]}
    assert any("influence.null_context = document: all text is one document" in line for line in messages)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"influence": InfluenceConfig(full_len=MAX_POSITION)},
            r"full_len = 64 with the anchor '<s>'.*64 positions.*--full-len 63",
        ),
        ({"influence": InfluenceConfig(full_len=4096)}, "--full-len 63 or less"),
        ({"influence": InfluenceConfig(data="nowhere.txt")}, "nowhere.txt"),
        ({"influence": InfluenceConfig(k=[13])}, r"there are only M = 12 long-range tokens"),
        (
            {"influence": InfluenceConfig(full_len=50, k=[1], data="short")},
            "0 of its 3 documents hold a window of 50 tokens",
        ),
        ({"pretrained": PretrainedConfig("no/where/llama")}, "no/where/llama"),
        ({"pretrained": PretrainedConfig("empty")}, "empty"),
    ],
)
def test_mistakes_leave_nothing_behind(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "text.jsonl").write_text('{"text": "much too short"}\n' * 3)
    with pytest.raises(UserError, match=message) as caught:
        measure(dataclasses.replace(config, **changes), tmp_path / "runs" / "llama")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_folder_holds_the_results_of_one_model(
    config: Config, results: Path, tables: Path, tiny_run: Path, tmp_path: Path
) -> None:
    other = save_llama(tmp_path / "other", ["some words for another model"] * 9, seed=1)
    another = dataclasses.replace(config, pretrained=PretrainedConfig(str(other)))
    with pytest.raises(UserError, match=r"holds the results of .*llama with other weights.*--run DIR"):
        measure(another, results)
    with pytest.raises(UserError, match=r"no pretrained folder of olmo-sparsity \(its manifest says 'run'\)"):
        measure(config, tiny_run)


def test_the_folder_of_a_model_keeps_the_configuration_that_it_was_begun_with(
    config: Config, results: Path, tables: Path, tmp_path: Path
) -> None:
    """Without what each measurement records of itself; a file that is gone is written again."""
    record = ModelRecord(**read_json(results / "manifest.json")["model"])
    tokenizer = read_tokenizer(results / "tokenizer.json")
    run = tmp_path / "runs" / "begun"
    first = dataclasses.replace(
        with_settings(config, k=[3]), pretrained=dataclasses.replace(config.pretrained, train_len=29)
    )
    begin_pretrained(first, run, record=record, tokenizer=tokenizer)
    assert load_config(run / "config.yaml") == dataclasses.replace(config, name="begun", influence=InfluenceConfig())
    written = {path.name: path.read_bytes() for path in run.iterdir()}
    assert set(written) == {"manifest.json", "config.yaml", "tokenizer.json"}
    (run / "tokenizer.json").unlink()
    other = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=config.training.steps + 1))
    begin_pretrained(other, run, record=record, tokenizer=tokenizer)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == written
    for changes, said in (  # another process has begun it in the meantime
        ({"weights_sha256": "1"}, "other weights or another tokenizer"),
        ({"tokenizer_sha256": "1"}, "other weights or another tokenizer"),
        ({"rope_scaling": "yarn:2"}, r"pretrained\.rope_scaling = none, not yarn:2"),
    ):
        holds = rf"begun: this folder holds the results of .*llama with {said}; choose another folder with --run DIR$"
        with pytest.raises(UserError, match=holds):
            begin_pretrained(config, run, record=dataclasses.replace(record, **changes), tokenizer=tokenizer)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == written


def test_a_run_is_measured_at_other_lengths(
    tiny_config: Config, tiny_run: Path, tiny_tables: Path, tmp_path: Path
) -> None:
    """The same targets may be drawn, but windows and tables have the lengths of the measurement."""
    shorter = with_settings(tiny_config, local_len=4, full_len=16, num_windows=10)
    folder = measure(shorter, tiny_run, out=tmp_path / "shorter")
    context = read_json(folder / "manifest.json")["context"]
    assert [context[name] for name in ("local_len", "full_len", "train_len", "num_long_range")] == [4, 16, 8, 12]
    assert {len(window["token_ids"]) for window in rows_of(folder, "windows")} == {16}
    same = with_settings(tiny_config, local_len=LOCAL, full_len=FULL)
    assert measure(same, tiny_run) == tiny_tables  # the run's own lengths, said aloud
    with pytest.raises(UserError, match=r"influence.full_len = 21: the run is trained with 20 positions"):
        with_settings(tiny_config, full_len=21)


def test_a_run_with_an_anchor_needs_a_position_for_it(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    contextual = with_settings(tiny_config, visibility="contextual", anchor="bos", num_windows=5, selectors=["kl"])
    with pytest.raises(UserError, match=r"full_len = 20 with the anchor '<\|endoftext\|>'.*--full-len 19 or less"):
        measure(contextual, tiny_run, out=tmp_path / "refused")
    folder = measure(with_settings(contextual, full_len=19), tiny_run, out=tmp_path / "measured")
    manifest = read_json(folder / "manifest.json")
    assert (manifest["visibility"], manifest["anchor"]["text"]) == ("contextual", "<|endoftext|>")


@pytest.mark.parametrize(
    ("full_len", "most"),
    [(16, 64), (128, 64), (256, 64), (257, 63), (2048, 8), (4096, 8), (8128, 8)],
)
def test_the_first_tokens_are_compared_on_about_as_many_tokens_at_every_length(full_len: int, most: int) -> None:
    assert num_compared_windows(full_len) == most


def test_without_room_for_a_bos_the_first_tokens_are_not_compared(
    config: Config, corpus_file: Path, tmp_path: Path
) -> None:
    texts = [json.loads(line)["text"] for line in corpus_file.open()]
    short = save_llama(tmp_path / "llama", texts, max_position=FULL)
    asked = with_settings(dataclasses.replace(config, pretrained=PretrainedConfig(str(short))), anchor="none")
    assert read_json(measure(asked, tmp_path / "run") / "manifest.json")["fit"]["anchor"] is None
