"""Tokenizers as they are read and trained; each is small and made here."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import numpy as np
import pytest
from conftest import made_up_text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.sources import open_source
from olmo_sparsity.text.tokenizer import parse_tokenizer, read_tokenizer, tokenizer_text, train_bpe, vocab_size_of


def test_ordinary_text_gives_the_tokenizer_of_the_library() -> None:
    """Also other scripts, and words of 999 bytes, as long as a word may be."""
    longest = "".join(random.Random(0).choices("abcdef", k=999))
    texts = [made_up_text(np.random.default_rng(seed), 200) for seed in range(20)]
    texts += ["na\u00efve \u6cb3\u6d41 \U0001f30a\U0001f30a 12,345.67\n\n  it's", f"{longest} {longest}"]
    expected = Tokenizer(models.BPE())
    expected.pre_tokenizer = byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    expected.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<eos>"], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    expected.train_from_iterator(texts, trainer)
    assert train_bpe(texts, 600, eos_token="<eos>").to_str() == expected.to_str()


def test_a_tokenizer_gives_the_same_whole_tokens_each_time(tmp_path: Path) -> None:
    """It neither cuts nor fills texts, drops no merges, and takes special tokens in a text for text."""
    written = train_bpe(["the river and the stones"] * 9, 300, eos_token="<eos>")
    expected = written.encode("the river and the stones " * 9).ids
    written.model.dropout = 0.5
    written.enable_truncation(2)
    written.enable_padding(length=9)
    written.save(str(tmp_path / "t.json"))
    read = read_tokenizer(tmp_path / "t.json")
    assert [read.encode("the river and the stones " * 9).ids for _ in range(5)] == [expected] * 5
    assert read.token_to_id("<eos>") not in read.encode("a <eos> b").ids
    assert read.decode(read.encode("a <eos> b").ids) == "a <eos> b"


def test_the_largest_token_has_a_place_in_an_embedding() -> None:
    def of_largest(number: int) -> Tokenizer:
        return Tokenizer(models.WordLevel({"a": 0, "b": number}, unk_token="a"))

    assert vocab_size_of(of_largest(2**24 - 1)) == 2**24
    with_added = of_largest(1)
    with_added.add_special_tokens(["<eos>"])
    assert vocab_size_of(with_added) == 3
    for tokenizer in (of_largest(2**24), Tokenizer(models.BPE())):
        with pytest.raises(UserError, match=r"its largest token ID is (16,777,216|-1); it must lie below 16,777,216"):
            vocab_size_of(tokenizer)


def test_what_is_no_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 99)
    (tmp_path / "latin.json").write_bytes("é".encode("latin-1"))
    data = DataConfig(source=str(tmp_path / "a.txt"))
    for name, words in {
        "bpe:299": "between 300 and 200000 entries",
        "bpe:200001": "between 300 and 200000 entries",
        "bpe:": "no such file, and neither bpe:N nor one of dolma-v1.5, gpt-neox-20b, dolma2",
        str(tmp_path / "latin.json"): r"not a tokenizer\.json \(not UTF-8 text\)",
        str(tmp_path): "no such file",
    }.items():
        with pytest.raises(UserError, match=words):
            tokenizer_text(dataclasses.replace(data, tokenizer=name), open_source(data))
    num_open = len(os.listdir("/dev/fd"))
    for text in ("{}", "no JSON"):
        with pytest.raises(UserError, match=r"^t\.json: not a tokenizer\.json that works \(.+\)"):
            parse_tokenizer(text, name="t.json")
    assert len(os.listdir("/dev/fd")) <= num_open  # none is left open
