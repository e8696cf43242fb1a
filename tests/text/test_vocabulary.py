"""Tokenizers as they are read, compared and trained; each is small and made here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text import vocabulary
from olmo_sparsity.text.vocabulary import encode_alike, parse_tokenizer, tokenizer_text, vocab_size_of

TEXTS = ["abab ba"]


def bpe(merges: list[tuple[str, str]], *entries: str) -> Tokenizer:
    """A tokenizer of characters and the pieces that they make, some of which only ``merges`` can make."""
    names = dict.fromkeys(["?", "a", "b", " ", *entries])
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, merges, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    return made


def test_tokenizers_are_alike_with_the_same_entries_and_the_same_tokens() -> None:
    first = bpe([("a", "b")], "ab", "ba")
    assert encode_alike(first, bpe([("a", "b")], "ab", "ba"), TEXTS)
    assert not encode_alike(first, bpe([("b", "a")], "ab", "ba"), TEXTS)  # the same entries
    assert encode_alike(first, bpe([("b", "a")], "ab", "ba"), ["bb"])
    assert not encode_alike(first, bpe([("a", "b")], "ab", "ba", "unused"), TEXTS)  # the same tokens


def test_tokenizers_that_differ_only_in_texts_of_other_scripts_are_not_alike() -> None:
    """Whatever the texts that they are compared on."""
    with_river, without = (bpe(merges, "r", "i", "ri") for merges in ([("r", "i")], []))
    assert all(with_river.encode(text).ids == without.encode(text).ids for text in TEXTS)
    assert not encode_alike(with_river, without, TEXTS) and not encode_alike(with_river, without, [])


def test_a_tokenizer_that_cuts_or_fills_texts_does_neither_here() -> None:
    written = bpe([("a", "b")], "ab")
    written.enable_truncation(2)
    written.enable_padding(length=9)
    assert len(written.encode("ababab").ids) == 9
    read = parse_tokenizer(written.to_str(), name="t.json")
    assert (read.truncation, read.padding) == (None, None)
    assert read.encode("ababab").tokens == ["ab"] * 3


def test_the_largest_token_has_a_place_in_an_embedding() -> None:
    def of_largest(number: int) -> Any:
        return Tokenizer(models.WordLevel({"a": 0, "b": number}, unk_token="a"))

    assert vocab_size_of(of_largest(2**24 - 1)) == 2**24
    for number in (2**24, 2**24 + 5):
        with pytest.raises(UserError) as refused:
            vocab_size_of(of_largest(number))
        assert str(refused.value) == f"data.tokenizer: its largest token ID is {number:,}; it must lie below 16,777,216"
    with pytest.raises(UserError, match="its largest token ID is -1; it must lie below"):
        vocab_size_of(Tokenizer(models.BPE()))


@pytest.mark.parametrize("number", [299, 300, 200_000, 200_001])
def test_a_bpe_has_300_to_200000_entries(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"text {i}"}) + "\n" for i in range(30)))
    asked: list[tuple[int, str]] = []

    def train(texts: object, size: int, *, eos_token: str) -> Tokenizer:
        asked.append((size, eos_token))
        return bpe([])

    monkeypatch.setattr(vocabulary, "train_bpe", train)
    data = DataConfig(source=str(path), tokenizer=f"bpe:{number}", eos_token="<end>")
    if number in (300, 200_000):
        assert tokenizer_text(data) == bpe([]).to_str() and asked == [(number, "<end>")]
    else:
        with pytest.raises(UserError) as refused:
            tokenizer_text(data)
        said = "between 300 and 200000 entries (256 of them are bytes)"
        assert str(refused.value) == f"data.tokenizer = bpe:{number}: {said}" and not asked
    with pytest.raises(UserError) as none:
        tokenizer_text(dataclasses.replace(data, tokenizer="bpe:"))
    assert str(none.value) == (
        "data.tokenizer = bpe:: no such file, and neither bpe:N nor one of dolma-v1.5, gpt-neox-20b, dolma2"
    )
