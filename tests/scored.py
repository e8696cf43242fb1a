"""Scores and measurements of small models in memory, and scores whose answers are given by hand."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Optional

import numpy as np
import torch
import transformers
from defined import FULL, LOCAL, M, windows
from tiny_stores import tiny_store
from tokenizers import Tokenizer
from transformers_models import VOCAB, build, byte_tokenizer

from olmo_sparsity.config import InfluenceConfig, Lengths
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.evaluate import Measurement
from olmo_sparsity.measure.scores import Scores
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.text.nulls import draw_null_contexts
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.windows import sample_windows

W, DRAWS, MAX_K, LASSO_MASKS = 3, 1, 4, 40
TOKENS = [(j, j + 1) for j in range(M)]
GROUPS = [(0, 1), (1, 4), (4, 6), (6, 11), (11, M)]
TOKENIZER = Tokenizer.from_str(byte_tokenizer().backend_tokenizer.to_str())
TEXT = "It was a dark night. The old ship lay still; no wind came. We ate bread! Who knows why? All slept. "


@functools.cache
def llama() -> CausalLM:
    """A small Llama."""
    return build("llama")


@functools.cache
def text_store() -> TokenStore:
    """Six documents of letters, whose tokens are bytes."""
    return tiny_store([TOKENIZER.encode(TEXT[7 * i :] + TEXT * 2).ids for i in range(6)])


def scores_of(
    model: Optional[CausalLM] = None,
    *,
    tokens_WT: Optional[torch.Tensor] = None,
    labels_WA: Optional[torch.Tensor] = None,
    spans: Any = TOKENS,
    seed: int = 0,
    context: str = "real",
    window_ids: Any = None,
    needs: Any = (),
    **engine: Any,
) -> Scores:
    """Scores of three windows, with the target and one drawn label unless others are given."""
    drawn_WT, targets_W = windows(W)
    tokens_WT = drawn_WT if tokens_WT is None else tokens_WT
    labels_WA = torch.stack([targets_W, targets_W.flip(0)], dim=1) if labels_WA is None else labels_WA
    of_engine = Engine(model or llama(), LOCAL, **engine)
    ids = np.arange(len(tokens_WT)) if window_ids is None else np.array(window_ids)
    short_WV = of_engine.predictions(tokens_WT, torch.zeros(len(tokens_WT), M, dtype=torch.bool))
    return Scores(
        of_engine, tokens_WT, labels_WA, ids, list(spans), short_WV, context, seed, MAX_K, LASSO_MASKS, frozenset(needs),
        TOKENIZER, text_store(),
    )  # fmt: skip


def measurement(
    model: Optional[CausalLM] = None, *, anchor_id: Optional[int] = None, train_len: Optional[int] = None, batch_tokens: int = 0,
    **settings: Any,
) -> Measurement:  # fmt: skip
    """A measurement of windows of ``text_store``."""
    given: dict[str, Any] = {
        "num_windows": 6,
        "selectors": ["kl", "random"],
        "k": [1, 2, 5],
        "lasso_masks": LASSO_MASKS,
    }
    of = InfluenceConfig(**(given | settings))
    drawn = sample_windows(text_store(), FULL, replace(of, max_windows_per_document=4))
    engine = Engine(model or llama(), LOCAL, of.visibility, anchor_id, of.path, batch_tokens)
    null_contexts = draw_null_contexts(drawn, M, kind=of.null_context, seed=of.seed)
    return Measurement(engine, null_contexts, of, Lengths(LOCAL, FULL, M, train_len), TOKENIZER, "measured")


PLANTED, NOISE, ANSWER = 3, 20, 10  # the first of 4 planted tokens, and of their 4 answers; others from 20 on are noise


@functools.cache
def reader() -> CausalLM:
    """One layer of attention, by hand: every token attends to planted tokens, and predicts the answer of the one that it sees."""
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_embd=32,
        n_layer=1,
        n_head=1,
        n_positions=64,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    raw = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in raw.parameters():
            parameter.zero_()
        embedding, layer = raw.transformer.wte.weight, raw.transformer.h[0]
        for norm in (layer.ln_1, layer.ln_2, raw.transformer.ln_f):
            norm.weight.fill_(1)
        embedding[NOISE:, 31] = 1
        layer.attn.c_attn.bias[0] = 6  # of each query
        layer.attn.c_attn.weight[0, 32] = 4  # keys tell whether a token is planted, values which one it is
        layer.attn.c_proj.weight.copy_(torch.eye(32))
        for value in range(4):
            embedding[PLANTED + value, 0], embedding[PLANTED + value, 1 + value] = 1, 1
            layer.attn.c_attn.weight[1 + value, 64 + 10 + value] = 1
            raw.lm_head.weight[ANSWER + value, 10 + value] = 3
    return CausalLM(raw)


def planted_windows(num: int = 8) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Windows of noise with one planted token, their targets [num, 1], and where it is planted [num]."""
    rng = np.random.default_rng(1)
    tokens_WT, places_W, values_W = (
        rng.integers(NOISE, VOCAB, (num, FULL)),
        rng.integers(0, M, num),
        rng.integers(0, 4, num),
    )
    tokens_WT[np.arange(num), places_W] = PLANTED + values_W
    return torch.from_numpy(tokens_WT), torch.from_numpy(ANSWER + values_W)[:, None], places_W
