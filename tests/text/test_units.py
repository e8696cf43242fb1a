"""Which tokens make a word or a sentence: cases written by hand, and tokenizers of several kinds."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from olmo_sparsity.text.tokenizer import token_texts, train_bpe, word_start_table
from olmo_sparsity.text.units import decode_tokens, group_numbers, sentence_starts, shown_texts, word_starts


def byte_level(pieces: list[str | bytes]) -> tuple[Tokenizer, list[int]]:
    """Return a byte-level tokenizer with an entry for each of these pieces, and their tokens."""
    # The characters that stand for bytes, as GPT-2 defines them.
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(sorted({*range(256)} - {*plain}))}
    entries = ["".join(table[b] for b in (piece.encode() if isinstance(piece, str) else piece)) for piece in pieces]
    vocabulary = {entry: i for i, entry in enumerate(dict.fromkeys(entries))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=entries[0]))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, [vocabulary[entry] for entry in entries]


def groups(pieces: list[str | bytes], unit: str, *, num_long_range: int | None = None) -> list[int]:
    """Return the group of each piece of a text."""
    tokenizer, ids = byte_level(pieces)
    number = len(pieces) if num_long_range is None else num_long_range
    return group_numbers(tokenizer, np.array([ids]), num_long_range=number, unit=unit)[0].tolist()  # type: ignore[no-any-return]


WORDS: list[tuple[list[str | bytes], list[int]]] = [
    (["The", " cat", " sat", "."], [0, 1, 2, 2]),  # punctuation belongs to its word
    (["ing", " un", "believ", "able", "!"], [0, 1, 1, 1, 1]),  # the window's start cuts a word
    (["A", " ", "b", "\n\n", "c", " "], [0, 1, 1, 2, 2, 3]),  # white space alone goes with the word behind it
    ([" ", "\n", "a", " b"], [0, 0, 0, 1]),
    (["well", "-", "known", " don", "'t"], [0, 0, 0, 1, 1]),
    (["he said", " no", "w"], [0, 1, 1]),  # a token of two words belongs to the first
    (["他", "来了", "。", " ok"], [0, 1, 2, 3]),  # every ideograph is a word; a token of two belongs to the first
    ([" ", b"\xf0\x9f", b"\x98", b"\x80", " hi"], [0, 0, 0, 0, 1]),  # one character of three tokens
    (["so", b" \xf0\x9f", b"\x98\x80", "!", " x"], [0, 1, 1, 1, 2]),  # a token of a space and a part of a character
    ([b"\x98", b"\x80", " hi"], [0, 0, 1]),  # the window's start cuts a character
    (["caf", b"\xc3", b"\xa9", "s", " au"], [0, 0, 0, 0, 1]),
    ([b"\xe4\xbd", b"\xa0\xe5", b"\xa5\xbd", " x"], [0, 0, 1, 2]),  # two characters of three tokens
]

SENTENCES: list[tuple[list[str | bytes], list[int]]] = [
    (["He", " left", ".", " She", " stayed", "."], [0, 0, 0, 1, 1, 1]),
    (["Dr", ".", " Jones", " came", ".", " \n", "Yes", "!"], [0, 0, 0, 0, 0, 0, 1, 1]),
    (["Title", "\n\n", "One", " line", ".", "\n\n", "\n\n", "Two", "."], [0, 0, 1, 1, 1, 1, 1, 2, 2]),
    ([" ", "\n", "Oh", "!", "\n\n", " ", "No", "."], [0, 0, 0, 0, 0, 0, 1, 1]),  # goes with the sentence in front of it
    (["of", " it", ".", " It", " cost", " $", "3", ".", "50", "."], [0, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
    (["他来了。", "她走了\uff01", " The", " end"], [0, 1, 2, 2]),
    (["Oh", b" \xf0\x9f", b"\x98\x80", ".", " So", "."], [0, 0, 0, 0, 1, 1]),
]


@pytest.mark.parametrize(("unit", "cases"), [("word", WORDS), ("sentence", SENTENCES)])
def test_words_and_sentences(unit: str, cases: list[tuple[list[str | bytes], list[int]]]) -> None:
    assert [pieces for pieces, expected in cases if groups(pieces, unit) != expected] == []


def test_the_border_to_the_local_tokens_cuts_a_group() -> None:
    pieces: list[str | bytes] = ["It", " is", " un", "believ", "able", ".", " Dr", ".", " Li", "."]
    for border in range(1, len(pieces)):
        assert groups(pieces, "word", num_long_range=border) == [0, 1, 2, 2, 2, 2, 3, 3, 4, 4][:border]
        assert groups(pieces, "sentence", num_long_range=border) == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1][:border]
    assert groups(list("abcdefghij"), "block:4", num_long_range=9) == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert groups(list("abcdefghij"), "block:1") == groups(list("abcdefghij"), "token") == list(range(10))
    # the local tokens tell that the full stop is that of an abbreviation
    assert groups(["He", " saw", " Dr", ".", " Li"], "sentence", num_long_range=4) == [0, 0, 0, 0]


def test_starts_in_a_text() -> None:
    text = '  One two.\tThree\n"Four"  他们 ガ'
    assert [text[i] for i in word_starts(text)] == ["O", "t", "T", '"', "他", "们", "ガ"]
    assert sentence_starts("") == []
    assert sentence_starts(" \n\n ") == []
    text = '"Is it?" he asked. No. \n\nA line'
    assert [text[i:][:2] for i in sentence_starts(text)] == ['"I', "No", "A "]


@pytest.mark.parametrize("space", [c for c in map(chr, range(128, 0x110000)) if c.isspace()], ids=ascii)
def test_white_space_that_is_not_ascii_is_as_a_space(space: str) -> None:
    """Behind a lone capital letter and before a period, too, where the splitter knows plain spaces only."""
    for form, expected in {
        "D{}.": [0],
        "Vitamin C{}. It{}helps.{}{}So he{}said.": [0, 12, 23],
        "At {}E{}{}. coli, Dr.{}Jones stopped.{}": [0],
    }.items():
        assert sentence_starts(form.replace("{}", space)) == expected


def test_marks_belong_to_the_character_before_them() -> None:
    for text, expected in {
        "か\u3099は\u309aき": [0, 2, 4],  # two characters, of which others are written as one
        "ｶﾞﾊﾟｦ b": [0, 2, 4, 6],
        "葛\ufe00葛\U000e0100城": [0, 2, 4],
        "e\u0301te\u0301 \u0928\u092e\u0938\u094d\u0924\u0947": [0, 6],
    }.items():
        assert word_starts(text) == expected


@pytest.mark.parametrize("text", ["naïve café \u2013 他们说 “好”。 😀😀 done.\nNext", "a\ufffd b", "\t\r\n x"])
def test_every_token_has_its_own_bytes(text: str) -> None:
    """A byte-level tokenizer of single bytes: the characters of a token are those that its byte is in."""
    decoded = decode_tokens(*byte_level([bytes([byte]) for byte in text.encode()]))
    assert decoded.text == text
    if "\ufffd" in text:  # which parts make a replacement character that the text itself holds cannot be told
        return
    of_byte = [i for i, character in enumerate(text) for _ in character.encode()]
    assert decoded.begins_T.tolist() == of_byte
    assert decoded.ends_T.tolist() == [i + 1 for i in of_byte]


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Replace("▁", " "),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
        decoders.Metaspace(),
        decoders.Metaspace(prepend_scheme="never"),
    ],
    ids=["keeps spaces", "as of Llama", "Metaspace", "Metaspace that prepends nothing"],
)
def test_a_token_has_as_many_spaces_as_marks_whatever_the_decoder_takes_away(decoder: decoders.Decoder) -> None:
    entries = ["<unk>", "▁The", "at", "▁", "▁▁", "▁▁▁x", ".", "▁a"]
    tokenizer = Tokenizer(models.WordLevel({entry: i for i, entry in enumerate(entries)}, unk_token="<unk>"))
    tokenizer.decoder = decoder
    assert token_texts(tokenizer, range(8)) == [entry.replace("▁", " ") for entry in entries]
    assert token_texts(tokenizer, np.array([7, 4, 7])) == [" a", "  ", " a"]
    assert word_start_table(tokenizer).tolist() == [False, True, False, False, False, True, False, True]


def test_characters_that_span_tokens_are_shown_once_and_whole() -> None:
    """A byte-level BPE of English alone has no entry for these characters, so every byte of one is a token."""
    text = "They\u2019ll pay \u20ac5 for na\u00efve \u6cb3\u6c34 \U0001f30a\U0001f1e9\U0001f1ea \u2014 caf\u00e9."
    tokenizer = train_bpe(["They'll pay for the plain cafe in the river, they say."] * 50, 300, eos_token="<eos>")
    assert token_texts(tokenizer, [0]) == ["<eos>"]
    tokens = tokenizer.encode(text).ids
    texts = shown_texts(tokenizer, tokens)
    assert len(texts) == len(tokens) and "".join(texts) == text and "\ufffd" not in "".join(texts)
    cut = shown_texts(tokenizer, tokenizer.encode("a\u20acb\u20ac").ids[:-1])
    assert cut[:5] == ["a", "", "", "\u20ac", "b"] and shown_texts(tokenizer, []) == []
    cut = shown_texts(tokenizer, tokenizer.encode("\u20aca\u20ac").ids[1:])
    assert cut == ["\ufffd", "\ufffd", "a", "", "", "\u20ac"]
