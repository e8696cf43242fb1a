"""A GGUF file is opened with the weights, the tokenizer and the first token that it holds."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny_gguf import save_gguf
from transformers_models import BOS_TEXT as BOS
from transformers_models import BPE_VOCAB as VOCAB
from transformers_models import EOS_TEXT as EOS
from transformers_models import build_raw

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.pretrained import PretrainedModel, open_pretrained
from olmo_sparsity.text.tokenizer import train_bpe

TOKENS = torch.randint(2, VOCAB - 1, (2, 12), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.tensor([0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13]).expand(2, -1)


@pytest.fixture(scope="module")
def texts(corpus_file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in corpus_file.open()]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "tiny.Q4_1.gguf"


@pytest.fixture(scope="module")
def stored(path: Path, texts: list[str]) -> transformers.LlamaForCausalLM:
    """The model whose weights are in the file."""
    return save_gguf(path, texts)


def opened(path: Path, precision: str = "fp32") -> PretrainedModel:
    return open_pretrained(PretrainedConfig(model=str(path)), device=torch.device("cpu"), precision=precision)


@torch.no_grad()
def test_it_computes_with_the_weights_that_were_stored(path: Path, stored: transformers.LlamaForCausalLM) -> None:
    found = opened(path)
    expected = stored(TOKENS, position_ids=POSITIONS, attention_mask=torch.ones_like(TOKENS)).logits[:, -1]
    torch.testing.assert_close(found.model.logits(TOKENS, POSITIONS), expected, atol=1e-5, rtol=0)
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        own, theirs = opened(path, precision).model.raw.state_dict(), stored.state_dict()
        assert own.keys() == theirs.keys()
        assert [name for name in own if not torch.equal(own[name], theirs[name].to(dtype))] == []
    record = found.record
    assert (record.name, record.revision, record.architecture) == (str(path), None, "LlamaForCausalLM")
    assert record.weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (record.dtype, record.max_position) == ("float32", 64)
    assert record.num_parameters == sum(parameter.numel() for parameter in stored.parameters())


@pytest.mark.parametrize("adds_bos", [True, False])
def test_the_tokenizer_and_the_first_token_are_those_of_the_file(
    adds_bos: bool, texts: list[str], tmp_path: Path
) -> None:
    save_gguf(tmp_path / "model.gguf", texts, adds_bos=adds_bos)
    found = opened(tmp_path / "model.gguf")
    assert (found.bos_id, found.bos_text, found.adds_bos, found.eos_token) == (VOCAB - 1, BOS, adds_bos, EOS)
    written = train_bpe(texts, VOCAB - 1, eos_token=EOS)
    for text in (texts[0], "na\u00efve \u6cb3,\n\t12 stones"):
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == written.encode(text).ids
    ids = found.tokenizer.encode(f"a {EOS}", add_special_tokens=False).ids
    assert len(ids) > 3 and found.tokenizer.token_to_id(EOS) not in ids  # written out in a text, it ends nothing


@pytest.mark.parametrize(
    ("block_count", "added", "error"),
    [(1, {}, ""), (2, {"blk.0.attn_q.bias": 32}, ""), (2, {"rope_freqs.weight": 4}, "28,832 of its 28,836")],
    ids=["a layer", "a bias", "scaled positions"],
)
def test_values_that_the_model_has_no_place_for_are_not_left_out(
    block_count: int, added: dict[str, int], error: str, texts: list[str], tmp_path: Path
) -> None:
    arrays = {name: np.ones(length, dtype=np.float32) for name, length in added.items()}
    save_gguf(tmp_path / "more.gguf", texts, block_count=block_count, added=arrays)
    with pytest.raises(UserError, match=rf"more\.gguf: LlamaForCausalLM of transformers takes [^\n]*{error}[^\n]*$"):
        opened(tmp_path / "more.gguf")


def test_a_second_copy_of_tied_weights_is_not_left_over(texts: list[str], tmp_path: Path) -> None:
    """A Llama with one is not tied."""
    output = {"output.weight": build_raw("llama", vocab_size=VOCAB).lm_head.weight.detach().numpy()}
    save_gguf(tmp_path / "more.gguf", texts, added=output)
    assert not opened(tmp_path / "more.gguf").model.raw.config.tie_word_embeddings
    save_gguf(tmp_path / "left.gguf", texts, added=output | {"rope_freqs.weight": np.ones(4, dtype=np.float32)})
    with pytest.raises(UserError, match="takes 39,072 of its 39,076 values"):
        opened(tmp_path / "left.gguf")
