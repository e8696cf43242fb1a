"""Places in a text: the token at a character, and the tokens of a part of a long text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from olmo_sparsity.errors import UserError
from olmo_sparsity.text.places import BLOCK, OVERLAP, EncodedText, encode_around, encode_text, place_at
from olmo_sparsity.text.tokenizer import train_bpe

TEXT = "the cat sat on the mat, and the cat was naïve ✨ the end"
KINDS = {
    "byte-level": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "metaspace": pre_tokenizers.Metaspace(prepend_scheme="first"),
    "whitespace": pre_tokenizers.Whitespace(),
    "none": None,
}


@pytest.fixture(params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    if KINDS[request.param] is not None:
        tokenizer.pre_tokenizer = KINDS[request.param]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=["?"], show_progress=False)
    tokenizer.train_from_iterator([TEXT.replace("✨", ""), "ab abc  d\n\nthe cat; don't 12,345 naïve"] * 3, trainer)
    special = [("?", tokenizer.token_to_id("?"))]  # in front of a text, but no token of it
    tokenizer.post_processor = processors.TemplateProcessing(single="? $A", special_tokens=special)
    return tokenizer


def test_every_character_has_the_first_token_that_holds_it(tokenizer: Tokenizer) -> None:
    text = f" \n{TEXT}  "
    encoded = encode_text(tokenizer, text)
    assert encoded.token_ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    for offset in range(int(encoded.begins[4]), int(encoded.ends[-1])):
        behind = [i for i in range(len(encoded)) if offset < encoded.ends[i]]
        assert place_at(encoded, offset, full_len=4, local_len=2) == behind[0]
    assert "".join(encoded.pieces) == text and len(encoded.pieces) == len(encoded)
    reached = 0
    for piece, begin, end in zip(encoded.pieces[:-1], encoded.begins.tolist(), encoded.ends.tolist(), strict=False):
        own = text[max(begin, reached) : end]
        reached += len(piece)
        assert piece.endswith(own)  # what no earlier token holds
    assert encode_text(tokenizer, "").pieces == []
    token = place_at(encoded, text.index("naïve"), full_len=4, local_len=2)
    assert encoded.begin_of(token) == text.index("naïve")


class Blocks:
    """A tokenizer that refuses more characters at once than a block and what it shares with its neighbours."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str, **options: Any) -> Any:
        assert len(text) <= BLOCK + 2 * OVERLAP
        return self.tokenizer.encode(text, **options)


def test_parts_give_the_tokens_of_the_whole_text(tokenizer: Tokenizer) -> None:
    """On random text of several blocks: words, runs of white space, characters of several bytes."""
    pieces = ["the", " cat", "  ", "\n\n", " don't", "12,345", "naïve", "✨", "é", " ab", "\t", ";;", " ", "x" * 90]
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(pieces[:-1], 60_000))
    expected, found = tokenizer.encode(text, add_special_tokens=False), encode_text(Blocks(tokenizer), text)
    assert len(text) > 2 << 16 and found.token_ids.tolist() == expected.ids
    assert np.stack([found.begins, found.ends], axis=1).tolist() == list(map(list, expected.offsets))
    places = [(offset, 20) for offset in (1000, 5000, 100_000, len(text) - 5000)]
    for offset, num_before in [*places, (len(text) - 5000, 20_000)]:
        part = encode_around(tokenizer, text, offset, num_before)
        at, of_whole = (place_at(one, offset, full_len=num_before, local_len=4) for one in (part, found))
        assert len(part) < len(found) // 2 or num_before > 20
        for name in ("token_ids", "begins"):
            of_part, wanted = (
                getattr(of, name)[end - num_before : end + 1] for of, end in ((part, at), (found, of_whole))
            )
            assert of_part.tolist() == wanted.tolist()


def test_a_word_without_end_is_encoded_at_once() -> None:
    tokenizer = train_bpe(["x" * 64, "yx", TEXT] * 3, 330, eos_token="<eos>")
    text = "the cat sat on the mat, " * 2_500 + "yyy" + "x" * 9000  # which begins before the second block
    text += ", the cat sat on the mat" * 3_000
    assert encode_text(tokenizer, text).token_ids.tolist() == tokenizer.encode(text).ids


CHARACTERS = EncodedText("abcdefg", np.arange(7), np.arange(7), np.arange(1, 8))  # one token a character
STRIPPED = EncodedText("ab  cd  ", np.array([5, 6, 7]), np.array([0, 1, 4]), np.array([1, 2, 6]))
TOO_EARLY = [  # text, offset, full and local length, and words of the line
    (CHARACTERS, 0, 6, 3, "offset 0: 0 tokens before it, not 6; choose a place from character 6 on"),
    (CHARACTERS, 0, 7, 3, "choose a longer text"),
    (CHARACTERS, 4, 6, 3, "choose a place from character 6 on or a shorter context (--full-len 4)"),
    (CHARACTERS, 3, 6, 3, "offset 3: 3 tokens before it, not 6; choose a place from character 6 on"),
    (CHARACTERS, 7, 6, 3, "offset 7: the text has 7 characters, numbered from 0"),
    (CHARACTERS, -1, 6, 3, "offset -1: the text has 7 characters"),
    (STRIPPED, 6, 2, 1, "offset 6: no token of the text holds it or follows"),
    (STRIPPED, 8, 2, 1, "offset 8: the text has 8 characters"),
]


@pytest.mark.parametrize(("encoded", "offset", "full_len", "local_len", "words"), TOO_EARLY)
def test_places_without_a_window(encoded: EncodedText, offset: int, full_len: int, local_len: int, words: str) -> None:
    with pytest.raises(UserError) as refused:
        place_at(encoded, offset, full_len=full_len, local_len=local_len)
    assert words in str(refused.value) and ("--full-len" in str(refused.value)) == ("--full-len" in words)


def test_the_first_place_and_one_that_a_later_token_holds() -> None:
    assert place_at(CHARACTERS, 6, full_len=6, local_len=3) == 6
    assert place_at(STRIPPED, 2, full_len=2, local_len=1) == 2
