"""A tiny Llama of transformers with a tokenizer of its own, saved as a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers
from tokenizers import processors

from olmo_sparsity.text.tokenizer import train_bpe

VOCAB, MAX_POSITION = 320, 64
BOS, EOS = "<s>", "</s>"


def save_llama(folder: Path, texts: list[str], *, max_position: int = MAX_POSITION, seed: int = 0) -> Path:
    """Save the model and a byte-level BPE that is trained on ``texts`` and puts a BOS in front; return the folder."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position,
        initializer_range=0.2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = train_bpe(texts, VOCAB - 1, eos_token=EOS)
    tokenizer.add_special_tokens([BOS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def loss_after(model: transformers.LlamaForCausalLM, tokens: list[int], positions: list[int], target: int) -> float:
    """Return the loss by transformers itself, where a row holds the visible tokens alone."""
    size = len(tokens)
    mask = torch.ones(1, 1, size, size, dtype=torch.bool).tril()  # without it, gaps in positions would end a sequence
    with torch.no_grad():
        logits = model(
            torch.tensor([tokens]), position_ids=torch.tensor([positions]), attention_mask=mask, use_cache=False
        ).logits[0, -1]
    return float(-logits.double().log_softmax(-1)[target])
