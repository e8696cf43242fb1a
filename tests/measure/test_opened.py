"""What is measured: the model of a run or a pretrained one, its text, its anchor, and its folder of results."""

from __future__ import annotations

import dataclasses
import gzip
import json
import shutil
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from conftest import Messages, write_corpus
from tiny_models import last_logits
from transformers_models import byte_tokenizer, save

from olmo_sparsity.config import Config, InfluenceConfig, PretrainedConfig, load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import export_hf
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.measure.opening import OpenedModel, open_model, open_text
from olmo_sparsity.measure.parts import begin_pretrained
from olmo_sparsity.model.olmo import load_model
from olmo_sparsity.progress import listening
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.windows import Windows, sample_windows

LOCAL, FULL, M, POSITIONS = 8, 20, 12, 64


def with_settings(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))


def of_model(
    config: Config, model: Path, *, train_len: Optional[int] = None, scaling: Optional[str] = None, **settings: Any
) -> Config:
    """The configuration of a measurement of a pretrained model on the text of the tiny run."""
    pretrained = PretrainedConfig(str(model), train_len=train_len, rope_scaling=scaling)
    return with_settings(dataclasses.replace(config, pretrained=pretrained), **settings)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose tokenizer adds nothing in front of a text."""
    folder = tmp_path_factory.mktemp("models") / "plain"
    save(folder)
    return folder


@pytest.fixture(scope="module")
def adding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama whose tokenizer adds a BOS."""
    folder = tmp_path_factory.mktemp("models") / "adding"
    save(folder, tokenizer=byte_tokenizer(adds_bos=True))
    return folder


@torch.no_grad()
def test_a_run_is_converted_when_it_is_opened(tiny_config: Config, tiny_run: Path) -> None:
    opened, trained = (
        open_model(tiny_config, tiny_run),
        load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu")),
    )
    tokens = torch.randint(3, 300, (3, 10), generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 2, 5, 6, 9, 12, 13, 18, 19]).expand(3, -1)
    expected = last_logits(trained, tokens, positions)
    torch.testing.assert_close(opened.model.logits(tokens, positions), expected, atol=1e-5, rtol=0)
    assert (opened.precision, opened.record) == ("fp32", None)
    assert opened.fit(windows_of(opened, tiny_config)) == {}
    low = open_model(with_settings(tiny_config, precision="bf16"), tiny_run)
    assert (low.precision, low.model.dtype) == ("bf16", torch.bfloat16)
    engine = opened.engine(dataclasses.replace(tiny_config.influence, path="masked", batch_tokens=77))
    assert (engine.local_len, engine.path, engine.batch_tokens, engine.anchor_id) == (LOCAL, "masked", 77, None)


@pytest.mark.parametrize(
    ("kind", "setting", "visibility", "has_anchor"),
    [
        ("run", "auto", "hidden", False), ("run", "auto", "contextual", False), ("run", "bos", "hidden", True),
        ("bos run", "auto", "hidden", True), ("bos run", "none", "hidden", False), ("export", "auto", "contextual", False),
        ("bos export", "auto", "hidden", True), ("plain", "auto", "hidden", False), ("plain", "auto", "contextual", True),
        ("plain", "none", "contextual", False), ("adding", "auto", "hidden", True), ("adding", "none", "hidden", False),
    ],
)  # fmt: skip
def test_the_anchor(
    kind: str, setting: str, visibility: str, has_anchor: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """`auto`: as the rows of training began; of other models as the tokenizer says, or under contextual visibility."""
    name, run = "bos" if "bos" in kind else "tiny", tmp_path / "results"
    config, expected = request.getfixturevalue(f"{name}_config"), "<|endoftext|>"
    if kind.endswith("run"):
        run = request.getfixturevalue(f"{name}_run")
    elif kind.endswith("export"):
        config = of_model(config, export_hf(request.getfixturevalue(f"{name}_run"), tmp_path / "hf").folder)
    else:
        config, expected = of_model(config, request.getfixturevalue(kind)), "<s>"
    opened = open_model(with_settings(config, anchor=setting, visibility=visibility, full_len=19), run)
    assert opened.bos.text == expected and opened.tokenizer.token_to_id(expected) == opened.bos.id
    assert (opened.anchor, opened.anchor_id) == ((opened.bos, opened.bos.id) if has_anchor else (None, None))


def test_rows_that_have_too_few_positions(
    tiny_config: Config, tiny_run: Path, plain: Path, adding: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        UserError,
        match=r"^full_len = 20 with the anchor '<\|endoftext\|>' in front: .* 20 positions; .*--full-len 19 or less$",
    ):
        open_model(with_settings(tiny_config, anchor="bos"), tiny_run)
    said = r"^full_len = 64 with the anchor '<s>' in front: .*--full-len 63 or less; longer windows need a model with rotary"
    with pytest.raises(UserError, match=said):
        open_model(of_model(tiny_config, adding, full_len=POSITIONS), tmp_path)
    open_model(of_model(tiny_config, adding, full_len=POSITIONS - 1), tmp_path)
    said = r"^full_len = 65: the model was trained on 64 positions; .*--full-len 64 or less; longer windows need"
    with pytest.raises(UserError, match=said):
        open_model(of_model(tiny_config, plain, full_len=POSITIONS + 1), tmp_path)


@pytest.mark.parametrize(
    ("train_len", "full_len", "beyond"),
    [
        (24, 23, []), (23, 23, ["its stated training row"]), (90, 64, ["its positions"]),
        (23, 64, ["its stated training row and its positions"]),
    ],
)  # fmt: skip
def test_a_stated_row_allows_longer_windows_and_a_warning_says_beyond_what(
    train_len: int, full_len: int, beyond: list[str], tiny_config: Config, adding: Path, tmp_path: Path, messages: Messages
) -> None:  # fmt: skip
    opened = open_model(of_model(tiny_config, adding, train_len=train_len, full_len=full_len), tmp_path)
    start = f"rows of up to {full_len + 1} tokens go beyond "
    assert [line.split(start)[1].split(": ")[0] for line in messages if start in line] == beyond
    assert opened.lengths.train_len == train_len and opened.max_position == POSITIONS
    assert opened.model.max_position == max(POSITIONS, full_len + 1)


# The text.


def windows_of(opened: OpenedModel, config: Config) -> Windows:
    text = open_text(opened)
    options = {"exclude_ids": text.excluded_ids_G, "target_table_V": opened.target_table_V}
    return sample_windows(text.store, opened.lengths.full_len, config.influence, **options)


def test_a_run_is_measured_on_text_that_it_was_not_trained_on(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    own = open_text(open_model(tiny_config, tiny_run))
    assert (own.source, own.split, own.excluded_ids_G) == (tiny_config.data.source, "validation", None)
    store = Path(read_json(tiny_run / "manifest.json")["token_store"])
    assert own.store.tokens_sha256 == open_store(store, "validation").tokens_sha256
    trained = open_store(store, "train").doc_ids_G
    assert own.training_store is not None and own.training_store.doc_ids_G.tolist() == trained.tolist()
    assert not set(own.store.doc_ids_G) & set(trained)
    new = write_corpus(tmp_path / "new.jsonl", 40, seed=99)
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text(Path(tiny_config.data.source).read_text() + new.read_text())
    config = with_settings(tiny_config, data=str(mixed), num_windows=5000, max_windows_per_document=1)
    opened = open_model(config, tiny_run)
    text = open_text(opened)
    assert (text.source, text.split) == (str(mixed), "held-out")
    windows = windows_of(opened, config)
    measured = {*windows.store.doc_ids_G[windows.document_W].tolist()}
    assert (
        measured
        and not measured & set(trained.tolist())
        and set(trained.tolist()) & set(windows.store.doc_ids_G.tolist())
    )
    assert not any("cannot be left out" in line for line in messages)
    from_tokens = Path(shutil.copytree(store, tmp_path / "store"))
    write_json(from_tokens / "manifest.json", read_json(from_tokens / "manifest.json") | {"made_from": "token files"})
    open_text(open_model(config, copied(tiny_run, tmp_path, token_store=str(from_tokens))))
    assert any(
        "by their tokens, so documents that the model was trained on cannot be left out" in line for line in messages
    )


def copied(run: Path, folder: Path, **entries: Any) -> Path:
    """A run with other entries in its manifest; None: without them."""
    copy = Path(shutil.copytree(run, folder / run.name, symlinks=True))
    manifest = read_json(copy / "manifest.json") | entries
    write_json(copy / "manifest.json", {name: value for name, value in manifest.items() if value is not None})
    return copy


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"tokens_sha256": None}, r"manifest\.json: key tokens_sha256 is missing"),
        ({"tokens_sha256": "other"}, "has changed since this run was trained on it, so it is unknown which documents"),
        (
            {"token_store": None},
            "was trained on a synthetic task and has no text; measure it with `olmo-sparsity synth`",
        ),
    ],
)
def test_text_that_cannot_be_told_from_that_of_training_is_refused(
    entries: dict[str, Any], said: str, tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        open_text(open_model(tiny_config, copied(tiny_run, tmp_path, **entries)))


def test_token_files_of_a_run_that_are_gone_are_made_again(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    data = dataclasses.replace(tiny_config.data, cache_dir=str(tmp_path / "cache"))
    run = copied(tiny_run, tmp_path, token_store=str(tmp_path / "gone"))
    text = open_text(open_model(dataclasses.replace(tiny_config, data=data), run))
    assert text.store.tokens_sha256 == open_text(open_model(tiny_config, tiny_run)).store.tokens_sha256
    assert any("the token files of this run are gone; preparing the text again" in line for line in messages)
    config = dataclasses.replace(tiny_config, data=data)
    other = with_settings(config, data=str(write_corpus(tmp_path / "other.jsonl", 9, seed=7)))
    open_text(open_model(other, run))
    for split, of in (("measured", other), ("train", config)):
        (tokens,) = (tmp_path / "cache").glob(f"*/{split}/tokens.bin")
        tokens.write_bytes(tokens.read_bytes()[::-1])
        with pytest.raises(UserError, match=r"tokens\.bin: other contents than were written there"):
            open_text(open_model(of, run))


def test_a_pretrained_model_is_measured_on_text_by_its_own_tokenizer(
    tiny_config: Config, plain: Path, tmp_path: Path
) -> None:
    few = write_corpus(tmp_path / "few.jsonl", 90)  # more than 10,000 tokens
    data = dataclasses.replace(tiny_config.data, cache_dir=str(tmp_path / "cache"))
    config = of_model(dataclasses.replace(tiny_config, data=data), plain, data=str(few), num_windows=1)
    opened = open_model(config, tmp_path / "results")
    text = open_text(opened)
    assert (text.source, text.split, text.training_store, text.excluded_ids_G) == (str(few), "measured", None, None)
    pairs = zip(text.store.begins_G.tolist(), text.store.ends_G.tolist(), strict=True)
    found = [opened.tokenizer.decode(text.store.tokens[begin : end - 1].tolist()) for begin, end in pairs]
    assert found == [json.loads(line)["text"] for line in few.open()]
    assert not (tmp_path / "results").exists()
    (tokens,) = (tmp_path / "cache").glob("*/measured/tokens.bin")
    tokens.write_bytes(tokens.read_bytes()[::-1])
    with pytest.raises(UserError, match=r"tokens\.bin: other contents than were written there"):
        open_text(opened)


def test_of_c4_so_many_tokens_are_read_for_each_window(
    tiny_config: Config, plain: Path, tmp_path: Path, cached_c4: Path
) -> None:
    text = write_corpus(tmp_path / "text.jsonl", 200).read_bytes()
    (cached_c4 / "c4-train.00000-of-01024.json.gz").write_bytes(gzip.compress(text))
    data = dataclasses.replace(tiny_config.data, cache_dir=str(tmp_path / "cache"))
    config = of_model(dataclasses.replace(tiny_config, data=data), plain, data="c4", num_windows=2)
    assert 20_000 <= open_text(open_model(config, tmp_path / "results")).store.lengths_G.sum() < 20_600


# Folders of results.


def test_a_folder_holds_the_results_of_one_model(
    tiny_config: Config, plain: Path, adding: Path, tmp_path: Path
) -> None:
    run, config = tmp_path / "runs" / "begun", of_model(tiny_config, plain, k=[3], train_len=29)
    opened = open_model(config, run)
    assert opened.record is not None
    scaled = open_model(of_model(tiny_config, plain, k=[3], train_len=29, scaling="yarn:2"), tmp_path / "scaled")
    assert scaled.identity() != opened.identity()
    begin_pretrained(config, run, record=opened.record, tokenizer=opened.tokenizer)
    kept = load_config(run / "config.yaml")
    assert kept == dataclasses.replace(
        config, name="begun", pretrained=PretrainedConfig(str(plain)), influence=InfluenceConfig()
    )
    written = {path.name: path.read_bytes() for path in run.iterdir()}
    assert set(written) == {"manifest.json", "config.yaml", "tokenizer.json"}
    (run / "tokenizer.json").unlink()
    other = dataclasses.replace(config, training=dataclasses.replace(config.training, steps=config.training.steps + 1))
    begin_pretrained(other, run, record=opened.record, tokenizer=opened.tokenizer)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == written  # as it was begun
    with pytest.raises(
        UserError, match=r"holds the results of .*plain with other weights or another tokenizer; .*--run DIR$"
    ):
        open_model(of_model(tiny_config, adding), run)
    with pytest.raises(
        UserError, match=r"with pretrained.rope_scaling = null, not yarn:2; choose another folder with --run DIR$"
    ):
        open_model(of_model(tiny_config, plain, scaling="yarn:2"), run)
    for changes in ({"weights_sha256": "1"}, {"tokenizer_sha256": "1"}):  # another process has begun it in the meantime
        with pytest.raises(UserError, match="with other weights or another tokenizer"):
            begin_pretrained(
                config, run, record=dataclasses.replace(opened.record, **changes), tokenizer=opened.tokenizer
            )


def test_checks_are_kept_and_first_tokens_compared_again_where_there_are_more_windows(
    tiny_config: Config, adding: Path, tmp_path: Path
) -> None:
    few, many = (of_model(tiny_config, adding, num_windows=number) for number in (5, 9))
    opened, ran = open_model(many, tmp_path), []
    first = opened.fit(windows_of(opened, few))["fit"]
    assert first["anchor"]["num_windows"] == 5 and first["anchor"]["chosen"] == "bos"
    with listening(ran.append):
        assert opened.fit(windows_of(opened, few))["fit"] == first
    assert ran == []
    more = opened.fit(windows_of(opened, many))["fit"]
    assert more["checks"] is first["checks"] and more["anchor"]["num_windows"] == 9
    full = open_model(of_model(tiny_config, adding, full_len=POSITIONS, anchor="none", num_windows=5), tmp_path)
    assert full.fit(windows_of(full, full.config))["fit"]["anchor"] is None  # a BOS has no place
