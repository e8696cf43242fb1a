"""``export hf``: the folder loads with transformers, computes what the run computes, and appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from markdown_it import MarkdownIt
from started_commands import exit_code, run_cli, start_command
from tiny_models import last_logits, rows
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import ExportedModel, export_hf, model_card, to_transformers_tokenizer
from olmo_sparsity.files import partial_path, read_json, sha256_file, write_manifest
from olmo_sparsity.model.checkpoint import CheckpointInfo, read_checkpoint_info
from olmo_sparsity.model.olmo import OLMoWithPositions, load_model
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.tokenizer import read_tokenizer, train_bpe

WRITTEN = {
    "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip
TEXTS = [
    "The river's  bridge,   12.5 km\n\n\tlong; naïve e\u0301 日本語",
    " ends<|endoftext|>begins <|padding|> |||EMAIL_ADDRESS||| <|im_start|>",
    "a",
]


def rollout(model: OLMoWithPositions, tokens: list[int], num_new: int) -> list[int]:
    """The most likely continuation of a row, up to an EOS."""
    eos, row = model.config.eos_token_id, torch.tensor([tokens])
    while row.shape[1] < len(tokens) + num_new and row[0, -1] != eos:
        chosen = last_logits(model, row, torch.arange(row.shape[1])[None]).argmax(-1)
        row = torch.cat([row, chosen[:, None]], dim=1)
    return row[0, len(tokens) :].tolist()


@pytest.mark.parametrize("has_bos", [False, True], ids=["no BOS", "BOS"])
@torch.no_grad()
def test_an_export_computes_what_its_run_computes(
    has_bos: bool, tiny_run: Path, bos_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits at positions with gaps, continuations, token IDs of the stored text, and what stands in front of a text."""
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, lambda *_, **__: pytest.fail("the network was asked for"))
    run, folder = bos_run if has_bos else tiny_run, tmp_path / "a" / "model"
    export_hf(run, folder)
    assert {path.name for path in folder.iterdir()} == {*WRITTEN, "manifest.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert "auto_map" not in (folder / "config.json").read_text()

    checkpoint = run / "checkpoints" / "step12"
    model, tokenizer = load_model(checkpoint, torch.device("cpu")), read_tokenizer(run / "tokenizer.json")
    theirs, loaded = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    vocab_size, last = tokenizer.get_vocab_size(), model.config.max_sequence_length
    assert (theirs.config.vocab_size, theirs.config.max_position_embeddings) == (vocab_size, last)
    tokens, gaps = rows(4, 12)
    gaps = gaps * (last - 1) // 23
    expected = model(tokens, gaps)[..., :vocab_size]
    torch.testing.assert_close(theirs(input_ids=tokens, position_ids=gaps).logits, expected, atol=1e-5, rtol=0)

    bos = loaded.eos_token_id if has_bos else None
    assert (theirs.config.bos_token_id, theirs.generation_config.bos_token_id, loaded.bos_token_id) == (bos, bos, bos)
    assert theirs.config.rows_have_bos is has_bos
    first = [bos] if has_bos else []
    store = open_store(Path(read_json(run / "manifest.json")["token_store"]), "validation")
    for number in range(20):
        ids = store.tokens[store.begins_G[number] : store.ends_G[number]].tolist()
        assert ids.pop() == loaded.eos_token_id
        assert loaded(loaded.decode(ids), verbose=False)["input_ids"] == first + ids

    texts = ["the", "river stone"]  # of different lengths: one is padded, on the left
    batch = loaded(texts, padding=True, return_tensors="pt")
    for text, row in zip(texts, theirs.generate(**batch, max_new_tokens=4), strict=True):
        alone, new = rollout(model, loaded(text)["input_ids"], 4), row[batch["input_ids"].shape[1] :].tolist()
        assert new[: len(alone)] == alone and set(new[len(alone) :]) <= {loaded.eos_token_id}

    manifest, of_run = read_json(folder / "manifest.json"), read_json(run / "manifest.json")
    assert (manifest["step"], manifest["architecture"]) == (12, type(theirs).__name__)
    assert manifest["checkpoint_sha256"] == read_checkpoint_info(checkpoint).sha256
    assert manifest["files"] == {name: sha256_file(folder / name) for name in WRITTEN}
    assert manifest["largest_logit_difference"] <= 1e-5
    card = (folder / "README.md").read_text(encoding="utf-8")
    for fact in (f"12 of 12 steps, {12 * 16 * 8:,} tokens; validation loss {of_run['validation_loss_nats']:.3f} nats.",
                 f"**Rows**: {8 + has_bos} tokens", "3 chunks", f"Those from\n  {last} on were never trained"):  # fmt: skip
        assert fact in card, fact


@pytest.mark.parametrize("rows_have_bos", [False, True], ids=["no BOS", "BOS"])
@pytest.mark.parametrize("eos_token", ["<|endoftext|>", "$A", "a b:1"])  # a template would take the second for the text
@pytest.mark.parametrize("adds_its_own", [False, True])
def test_a_text_has_the_ids_that_it_had_in_training(
    eos_token: str, adds_its_own: bool, rows_have_bos: bool, tmp_path: Path
) -> None:
    tokenizer = train_bpe(TEXTS, 300, eos_token=eos_token)
    tokenizer.encode_special_tokens = True
    eos = tokenizer.token_to_id(eos_token)
    if adds_its_own:
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False)])
    to_transformers_tokenizer(
        Tokenizer.from_str(tokenizer.to_str()), eos_id=eos, rows_have_bos=rows_have_bos, max_position=40
    ).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (eos, eos, 40)
    first = [eos] if rows_have_bos else []
    for text in (*TEXTS, f" ends{eos_token}begins"):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert loaded(text, verbose=False)["input_ids"] == [*first, *ids] and eos not in ids
        assert loaded.decode(ids) == tokenizer.decode(ids, skip_special_tokens=False)
    alone = tokenizer.encode("a", add_special_tokens=False).ids
    assert loaded("a", "a", verbose=False)["input_ids"] == [*first, *alone, *alone]


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): sha256_file(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("spoiled", ["weights", "NaN", "tokenizer"])
def test_nothing_is_exported_if_what_was_written_loads_as_something_else(
    spoiled: str, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_hf(tiny_run, tmp_path / "model")
    before = contents(tmp_path)
    written = transformers.PreTrainedTokenizerFast if spoiled == "tokenizer" else transformers.PreTrainedModel
    save = written.save_pretrained

    def save_another(one: Any, folder: Path) -> None:
        if spoiled != "tokenizer":
            one.lm_head.weight.data[3, 0] += torch.nan if spoiled == "NaN" else 0.02
        save(one, folder)
        if spoiled == "tokenizer":
            path = folder / "tokenizer_config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "split_special_tokens": False}))

    monkeypatch.setattr(written, "save_pretrained", save_another)
    for folder in (tmp_path / "model", tmp_path / "new"):
        with pytest.raises(UserError, match=r"nothing was exported: transformers .* another"):
            export_hf(tiny_run, folder, overwrite=True)
    assert contents(tmp_path) == before and [path.name for path in tmp_path.iterdir()] == ["model"]


def test_only_an_earlier_export_is_replaced_and_only_with_overwrite(tiny_run: Path, tmp_path: Path) -> None:
    folder, beside = tmp_path / "model", [tmp_path / ".model.partial", partial_path(tmp_path / "another")]
    for path in (
        folder,
        partial_path(folder),
        *beside,
    ):  # an empty folder is a new one; a killed export left the second
        path.mkdir()
    export_hf(tiny_run, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in (folder, *beside))
    (folder / "config.json").write_text("changed")
    with pytest.raises(UserError, match="already holds an exported model; replace it with --overwrite"):
        export_hf(tiny_run, folder)
    assert (folder / "config.json").read_text() == "changed"
    export_hf(tiny_run, folder, overwrite=True)
    assert read_json(folder / "config.json")["model_type"] == "olmoe"
    (tmp_path / "others").mkdir()
    for name in ("model/notes.txt", "file", "others/notes.txt"):
        (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    for there, message in ((folder, "it also holds notes.txt"), (tmp_path / "others", "no hf folder"),
                           (tmp_path / "file", "this is a file"), (tiny_run, "manifest says 'run'")):  # fmt: skip
        with pytest.raises(UserError, match=message):
            export_hf(tiny_run, there, overwrite=True)
    assert contents(tmp_path) == before


def test_only_a_trained_run_of_text_is_exported(tiny_run: Path, bos_run: Path, tmp_path: Path) -> None:
    task, other, mixed, early = (
        Path(shutil.copytree(tiny_run, tmp_path / name, symlinks=True)) for name in ("task", "other", "mixed", "early")
    )
    write_manifest(task, {**read_json(task / "manifest.json"), "synthetic_task": "parity"})
    (other / "tokenizer.json").write_text(train_bpe(TEXTS, 320, eos_token="<|endoftext|>").to_str())
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(bos_run / "checkpoints", mixed / "checkpoints", symlinks=True)
    for run, message in (
        (task, "trained on a synthetic task, not on text"),
        (other, "not the tokenizer that the manifest beside it was written with"),
        (mixed, "saved this checkpoint, not this run"),
    ):
        with pytest.raises(UserError, match=message):
            export_hf(run, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    shutil.rmtree(early / "checkpoints" / "step12")
    tokenizer, eos = read_tokenizer(early / "tokenizer.json"), "<|endoftext|>"
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{eos} $A", special_tokens=[(eos, 0)])
    (early / "tokenizer.json").write_text(tokenizer.to_str())
    of_own = {"tokenizer_sha256": sha256_file(early / "tokenizer.json")}
    write_manifest(early, {**read_json(early / "manifest.json"), **of_own})
    exported = run_cli("export", "hf", str(early), str(tmp_path / "out"), cwd=tmp_path)
    assert "this is step8, not the model at the end" in exported.stderr
    assert "register_new_resolver" not in exported.stderr  # a warning that helps no user
    assert f"8 of 12 steps, {8 * 16 * 8:,} tokens.\n" in (tmp_path / "out" / "README.md").read_text()
    assert exit_code("export", "hf", early, tmp_path / "out") == 2  # not replaced without being asked


def test_killed_at_any_time_nothing_is_lost(tiny_run: Path, tmp_path: Path) -> None:
    """The folder holds an export that is whole, or for a moment none; the next export removes what was left."""
    folder = export_hf(tiny_run, tmp_path / "model").folder
    whole = contents(folder)
    for written in ("", "model.safetensors", "manifest.json"):
        command = start_command("export", "hf", str(tiny_run), str(folder), "--overwrite", cwd=tmp_path)
        while command.poll() is None and not list(tmp_path.glob(f".model.*.partial/{written}")):
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            command.send_signal(signal.SIGKILL)
        command.communicate()
        assert not folder.exists() or contents(folder) == whole
    export_hf(tiny_run, folder, overwrite=True)
    assert contents(folder) == whole and [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("pose", "source", "trained"),
    [
        ({"num_chunks": 1}, "a|b/*.txt", "position IDs below 8. Those from\n  8 on"),
        ({"method": "randpos"}, "``x` <b>", "position IDs below 64, drawn by RandPos. Those from\n  64 on"),
        (
            {"contents": "matched", "num_chunks": 2}, "two\nlines # [x](y)",
            "position IDs below 64, drawn by PoSE (2 chunks, matched). Those from\n  64 on",
        ),
        ({"num_chunks": 1}, "builtin", "**Rows**: 8 tokens; "),
        ({"num_chunks": 1}, "`", "**Rows**: 8 tokens; "), ({"num_chunks": 1}, "<script>", "**Rows**: 8 tokens; "),
    ],
)  # fmt: skip
def test_the_model_card_says_which_positions_were_trained_and_escapes_names(
    pose: dict[str, Any], source: str, trained: str, tiny_config: Config
) -> None:
    data, positions = replace(tiny_config.data, source=source), PoseConfig(**{"max_position": 64, **pose})
    exported, info = ExportedModel(Path("x"), "OlmoForCausalLM", 1, 0.0), CheckpointInfo(1, 1, 0.0, "0123")
    config = replace(tiny_config, data=data, pose=positions)
    card = model_card(exported, config, info, loss_nats=None, eos_token=source)
    assert trained in card and ("BoolQ" in card) == (source == "builtin")
    tokens = [child for token in MarkdownIt().parse(card) for child in token.children or []]
    assert [token.content for token in tokens if token.type == "code_inline"].count(" ".join(source.split())) == 2
    assert not [token for token in tokens if token.type == "html_inline"]
