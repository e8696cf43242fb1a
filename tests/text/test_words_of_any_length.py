"""The training of a BPE takes the same time for words of any length, and ordinary text gives the entries that it always gave."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from conftest import made_up_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from olmo_sparsity.text import vocabulary
from olmo_sparsity.text.vocabulary import train_bpe


def trained_without_a_limit(texts: list[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def test_ordinary_text_gives_the_same_tokenizer() -> None:
    """Also na\u00efve, \u6cb3, emoji, and words of 999 bytes, as long as a word may be."""
    longest = "".join(random.Random(0).choices("abcdef", k=999))
    texts = [made_up_text(np.random.default_rng(seed), 200) for seed in range(20)]
    texts += ["na\u00efve \u6cb3\u6d41 \U0001f30a\U0001f30a 12,345.67\n\n  it's", f"{longest} {longest}"]
    assert train_bpe(texts, 600, eos_token="<eos>").to_str() == trained_without_a_limit(texts, 600).to_str()


def test_the_parts_of_a_long_word_are_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "LONGEST_WORD", 4)
    cut = train_bpe(["abcdabcdxyz"] * 3, 300, eos_token="<eos>")
    entries = [entry for entry in cut.get_vocab() if len(entry) > 1 and entry != "<eos>"]
    assert "abcd" in entries and "xyz" in entries
    assert not any(len(entry) > 4 for entry in entries)
    whole = trained_without_a_limit(["abcdabcdxyz"] * 3, 300)
    assert any(len(entry) > 4 and entry != "<eos>" for entry in whole.get_vocab())
    assert cut.pre_tokenizer.__getstate__() == whole.pre_tokenizer.__getstate__()
    assert cut.decode(cut.encode("abcdabcdxyz").ids) == "abcdabcdxyz"


def test_training_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library draws one from Rust, past Python's streams, and only in a terminal."""
    monkeypatch.setenv("TERM", "xterm")
    terminal, end = os.openpty()
    os.set_blocking(terminal, False)
    kept = os.dup(2)
    os.dup2(end, 2)
    try:
        train_bpe(["the river and the stones"] * 20, 300, eos_token="<eos>")
        with pytest.raises(BlockingIOError):  # nothing was written
            os.read(terminal, 1 << 16)
    finally:
        os.dup2(kept, 2)
        for number in (terminal, end, kept):
            os.close(number)
