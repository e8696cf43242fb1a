"""``export hf``: the folder loads with transformers, computes what the run computes, and appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from markdown_it import MarkdownIt
from started_commands import run_cli, start_command
from tiny_models import converted, last_logits
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmo_sparsity.config import Config, ContextConfig, ModelConfig, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import ExportedModel, export_hf, model_card, to_transformers_tokenizer
from olmo_sparsity.files import partial_path, read_json, sha256_file, write_manifest
from olmo_sparsity.model.checkpoint import CheckpointInfo, read_checkpoint_info
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, load_model, olmo_model_config
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.tokenizer import read_tokenizer, train_bpe
from olmo_sparsity.train.positions import pose_positions

WRITTEN = {
    "README.md",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
VOCAB, EOS, FULL = 100, 7, 40
TEXTS = [
    "The river's  bridge,   12.5 km\n\n\tlong; naïve e\u0301 日本語",
    " ends<|endoftext|>begins <|padding|> |||EMAIL_ADDRESS||| <|im_start|>",
    "a",
]


def rows(num_rows: int, length: int, vocab_size: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, vocab_size, (num_rows, length)))
    return tokens, torch.from_numpy(
        pose_positions(rng, num_rows, row_len=length, max_position=last, num_chunks=min(4, length))
    )


def rollout(model: OLMoWithPositions, tokens_BT: torch.Tensor, num_new: int) -> torch.Tensor:
    """Append the most likely token ``num_new`` times. EOS ends a row and then pads it."""
    ended = torch.zeros(len(tokens_BT), dtype=torch.bool)
    for _ in range(num_new):
        positions = torch.arange(tokens_BT.shape[1]).expand(len(tokens_BT), -1)
        chosen = last_logits(model, tokens_BT, positions).argmax(-1).masked_fill(ended, model.config.eos_token_id)
        tokens_BT = torch.cat([tokens_BT, chosen[:, None]], dim=1)
        ended |= chosen == model.config.eos_token_id
        if ended.all():
            break
    return tokens_BT


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("has_bos", [False, True], ids=["no BOS", "BOS"])
@torch.no_grad()
def test_an_export_computes_what_its_run_computes(has_bos: bool, tiny_run: Path, bos_run: Path, tmp_path: Path) -> None:
    """Logits at positions with gaps, continuations, token IDs of the stored text, and what stands in front of a text."""
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
    tokens, gaps = rows(4, 12, vocab_size, last)
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
        prompt = torch.tensor([loaded(text)["input_ids"]])
        alone = rollout(model, prompt, 4)[0, prompt.shape[1] :].tolist()
        new = row[batch["input_ids"].shape[1] :].tolist()
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


def build(kind: ModelConfig) -> OLMoWithPositions:
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=FULL))
    model = build_model(olmo_model_config(config, vocab_size=VOCAB, eos_id=EOS), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_f" in name:  # with ones, a missing scale would not be noticed
            torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return model.eval()


@pytest.mark.parametrize("tying", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(("norm", "normed_queries"), product(["default", "rms"], [False, True]))
@torch.no_grad()
def test_every_model_has_an_equivalent(norm: Any, normed_queries: bool, tying: bool, tmp_path: Path) -> None:
    model = build(
        ModelConfig(
            d_model=32, n_heads=4, n_layers=2, mlp_ratio=6, init_std=0.1, weight_tying=tying,
            layer_norm_type=norm, attention_layer_norm=normed_queries,
        )
    )  # fmt: skip
    converted(model).save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    kind = "Olmoe" if normed_queries else {"rms": "Llama", "default": "Olmo"}[norm]
    assert type(theirs).__name__ == f"{kind}ForCausalLM"
    tokens, gaps = rows(6, 24, VOCAB, FULL)
    in_order = torch.arange(24).expand(6, -1)
    ours, apart = model(tokens, in_order)[..., :VOCAB], model(tokens, gaps)[..., :VOCAB]
    assert (ours - apart).abs().max() > 1e-2 and ours.std() > 0.3  # otherwise the positions would not be tested
    torch.testing.assert_close(theirs(input_ids=tokens).logits, ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs(input_ids=tokens, position_ids=gaps).logits, apart, atol=1e-5, rtol=0)


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
        Tokenizer.from_str(tokenizer.to_str()), eos_id=eos, rows_have_bos=rows_have_bos, max_position=FULL
    ).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (eos, eos, FULL)
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
    save_model, save_tokenizer = (
        transformers.PreTrainedModel.save_pretrained,
        transformers.PreTrainedTokenizerFast.save_pretrained,
    )

    def save_other_weights(model: Any, folder: Path) -> None:
        model.lm_head.weight.data[3, 0] += torch.nan if spoiled == "NaN" else 0.02
        save_model(model, folder)

    def save_other_tokenizer(tokenizer: Any, folder: Path) -> None:
        save_tokenizer(tokenizer, folder)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "split_special_tokens": False}))

    if spoiled == "tokenizer":
        monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "save_pretrained", save_other_tokenizer)
    else:
        monkeypatch.setattr(transformers.PreTrainedModel, "save_pretrained", save_other_weights)
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
    (folder / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    for there, message in ((folder, "it also holds notes.txt"), (tmp_path / "others", "no hf folder"),
                           (tmp_path / "file", "this is a file"), (tiny_run, "manifest says 'run'")):  # fmt: skip
        with pytest.raises(UserError, match=message):
            export_hf(tiny_run, there, overwrite=True)
    assert contents(tmp_path) == before


def test_only_a_trained_run_of_text_is_exported(tiny_run: Path, bos_run: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(tiny_run, tmp_path / name, symlinks=True))

    task, other, mixed, early = map(copy, ("task", "other", "mixed", "early"))
    write_manifest(task, {**read_json(task / "manifest.json"), "synthetic_task": "parity"})
    (other / "tokenizer.json").write_text(train_bpe(TEXTS, 320, eos_token="<|endoftext|>").to_str())
    shutil.rmtree(mixed / "checkpoints")
    shutil.copytree(bos_run / "checkpoints", mixed / "checkpoints", symlinks=True)
    for run, message in (
        (tmp_path / "nowhere", "there is no trained model here; train it first"),
        (task, "trained on a synthetic task, not on text"),
        (other, "not the tokenizer that the manifest beside it was written with"),
        (mixed, "saved this checkpoint, not this run"),
    ):
        refused = run_cli("export", "hf", str(run), str(tmp_path / "out"), cwd=tmp_path)
        assert refused.returncode == 2 and message in refused.stderr and refused.stderr.count("\n") == 1
        assert not (tmp_path / "out").exists()
    shutil.rmtree(early / "checkpoints" / "step12")
    exported = run_cli("export", "hf", str(early), str(tmp_path / "out"), cwd=tmp_path)
    assert "this is step8, not the model at the end" in exported.stderr
    assert f"8 of 12 steps, {8 * 16 * 8:,} tokens.\n" in (tmp_path / "out" / "README.md").read_text()


def test_killed_at_any_time_nothing_is_lost(tiny_run: Path, tmp_path: Path) -> None:
    """The folder holds an export that is whole, or for a moment none; the next export removes what was left."""
    folder = export_hf(tiny_run, tmp_path / "model").folder
    whole = contents(folder)
    for written in ("", "config.json", "model.safetensors", "README.md", "manifest.json"):
        command = start_command("export", "hf", str(tiny_run), str(folder), "--overwrite", cwd=tmp_path)
        while command.poll() is None and not list(tmp_path.glob(f".model.*.partial/{written}")):
            time.sleep(0.001)
        with contextlib.suppress(ProcessLookupError):
            command.send_signal(signal.SIGKILL)
        command.communicate()
        assert not folder.exists() or contents(folder) == whole
    done = run_cli("export", "hf", str(tiny_run), str(folder), "--overwrite", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert contents(folder) == whole and [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("source", ["a|b/*.txt", "``x` <b>", "`", "two\nlines # [x](y)", "<script>"])
def test_the_model_card_escapes_names(source: str, tiny_config: Config) -> None:
    config = replace(tiny_config, data=replace(tiny_config.data, source=source))
    exported, info = ExportedModel(Path("x"), "OlmoForCausalLM", 1, 0.0), CheckpointInfo(1, 1, 0.0, "0123")
    card = model_card(exported, config, info, loss_nats=None, eos_token=source)
    tokens = [child for token in MarkdownIt().parse(card) for child in token.children or []]
    assert [token.content for token in tokens if token.type == "code_inline"].count(" ".join(source.split())) == 2
    assert not [token for token in tokens if token.type == "html_inline"]


@pytest.mark.parametrize(
    ("pose", "said"),
    [
        ({"num_chunks": 1}, "position IDs below 8. Those from\n  8 on"),
        (
            {"num_chunks": 2, "contents": "matched"},
            "position IDs below 64, drawn by PoSE (2 chunks, matched). Those from\n  64 on",
        ),
        ({"method": "randpos"}, "position IDs below 64, drawn by RandPos. Those from\n  64 on"),
    ],
)
def test_the_model_card_tells_which_positions_were_trained(
    pose: dict[str, Any], said: str, tiny_config: Config
) -> None:
    config = replace(tiny_config, pose=PoseConfig(**{"max_position": 64, **pose}))
    exported, info = ExportedModel(Path("x"), "OlmoForCausalLM", 1, 0.0), CheckpointInfo(1, 1, 0.0, "0123")
    assert said in model_card(exported, config, info, loss_nats=None, eos_token="end")
