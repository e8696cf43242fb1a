"""Places in a text: the token at a character."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from olmo_sparsity.errors import UserError
from olmo_sparsity.text import places
from olmo_sparsity.text.corpus import hash64
from olmo_sparsity.text.in_memory import document_of_text, document_of_tokens, store_of, windows_before
from olmo_sparsity.text.places import (
    EncodedText,
    encode_text,
    place_at,
)
from olmo_sparsity.text.vocabulary import train_bpe

TEXT = "the cat sat on the mat, and the cat was naïve ✨ the end"
LENGTHS = {"full_len": 4, "local_len": 2}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_bpe([TEXT.replace("✨", "")] * 20, 300, eos_token="<eos>")


@pytest.fixture(scope="module")
def encoded(tokenizer: Tokenizer) -> EncodedText:
    return encode_text(tokenizer, TEXT)


def test_tokens_are_those_of_a_corpus_and_cover_the_text(tokenizer: Tokenizer, encoded: EncodedText) -> None:
    (of_corpus,) = tokenizer.encode_batch_fast([TEXT], add_special_tokens=False)
    assert encoded.token_ids.tolist() == of_corpus.ids
    assert encoded.begins[0] == 0 and encoded.ends[-1] == len(TEXT)
    assert "".join(TEXT[b:e] for b, e in sorted(set(zip(encoded.begins, encoded.ends, strict=True)))) == TEXT


def test_every_character_has_the_first_token_that_holds_it(encoded: EncodedText) -> None:
    for offset in range(int(encoded.begins[4]), len(TEXT)):
        holding = [i for i in range(len(encoded)) if encoded.begins[i] <= offset < encoded.ends[i]]
        assert place_at(encoded, offset, **LENGTHS) == holding[0]


def test_what_is_said_of_too_few_tokens() -> None:
    """One token a character: how many stand before it, and which of the lengths or places would do."""
    text = "abcdefg"
    encoded = EncodedText(text, np.arange(7), np.arange(7), np.arange(1, 8))

    def said(offset: int, *, full_len: int, local_len: int) -> str:
        with pytest.raises(UserError) as error:
            place_at(encoded, offset, full_len=full_len, local_len=local_len)
        return str(error.value)

    assert said(0, full_len=6, local_len=3).endswith("has 6; choose a place from character 6 on")
    assert said(0, full_len=7, local_len=3).endswith("has 7; choose a longer text (this one has 7 tokens)")
    assert "only 1 token stands before it" in said(1, full_len=6, local_len=3)
    assert "only 0 tokens stand before it" in said(0, full_len=6, local_len=3)
    assert "choose a place" in said(1, full_len=6, local_len=3)
    assert "choose shorter lengths (--local-len 1 --full-len 2) or" in said(2, full_len=6, local_len=3)
    assert "choose shorter lengths (--local-len 1 --full-len 3) or" in said(3, full_len=6, local_len=3)
    assert "choose a shorter full context (--full-len 4) or" in said(4, full_len=6, local_len=3)
    assert place_at(encoded, 6, full_len=6, local_len=3) == 6


def test_a_character_of_several_tokens_has_the_first(encoded: EncodedText) -> None:
    token = place_at(encoded, TEXT.index("✨"), **LENGTHS)
    assert encoded.begin_of(token) == TEXT.index("✨")
    assert encoded.begins[token - 1] < encoded.begins[token] == encoded.begins[token + 1]


@pytest.mark.parametrize(
    ("offset", "lengths", "said"),
    [
        (99, LENGTHS, f"offset 99: the text has {len(TEXT)} characters"),
        (-1, LENGTHS, f"offset -1: the text has {len(TEXT)} characters, numbered from 0; choose one of them with --at"),
        (
            8,
            LENGTHS,
            r"only 2 tokens stand before it, .* \(--local-len 1 --full-len 2\) or a place from character 15 on",
        ),
        (
            12,
            LENGTHS,
            r"only 3 tokens stand before it, and the full context has 4; choose a shorter .* \(--full-len 3\)",
        ),
        (0, LENGTHS, "only 0 tokens stand before it, and the full context has 4; choose a place from character 15 on"),
        (12, {"full_len": 400, "local_len": 2}, r"--full-len 3\) or a longer text \(this one has \d+ tokens\)"),
    ],
)
def test_mistakes_of_offsets(encoded: EncodedText, offset: int, lengths: dict[str, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        place_at(encoded, offset, **lengths)


def test_a_character_that_the_tokenizer_takes_away_is_not_called_outside_of_the_text() -> None:
    """As one that strips white space does; one that a token stands behind is the place of that token."""
    text = "ab  cd  "
    encoded = EncodedText(text, np.array([5, 6, 7]), begins=np.array([0, 1, 4]), ends=np.array([1, 2, 6]))
    assert place_at(encoded, 2, full_len=2, local_len=1) == 2
    for offset in (6, 7):
        with pytest.raises(UserError, match=f"^offset {offset}: no token stands at this character or behind it: the"):
            place_at(encoded, offset, full_len=2, local_len=1)
    with pytest.raises(UserError, match=r"^offset 8: the text has 8 characters, numbered from 0"):
        place_at(encoded, 8, full_len=2, local_len=1)


def test_windows_before_chosen_targets() -> None:
    first, second = np.arange(10, 19), np.arange(30, 36)
    store = store_of([document_of_text("a", first, source="x"), document_of_tokens(second, source="y")], split="own")
    windows = windows_before(store, 4, document_W=np.array([1, 0, 0]), target_W=np.array([5, 4, 8]))
    assert windows.tokens(np.arange(3)).tolist() == [
        [31, 32, 33, 34, 35],
        [10, 11, 12, 13, 14],
        [14, 15, 16, 17, 18],
    ]
    assert windows.eligible_g.tolist() == [0, 1] and windows.weight_W.tolist() == [1, 1, 1]
    assert store.source_of(np.array([0, 1])) == ["x", "y"]
    assert windows.num_documents == 2
    tokens = np.array([*first, 0, *second, 0], dtype="<u4")
    assert (store.split, store.tokens_sha256) == ("own", hashlib.sha256(tokens.tobytes()).hexdigest())


def test_documents_have_the_ids_of_corpora() -> None:
    """Of their text or their tokens as 32 bits; a name is hashed, unless it is such an ID."""
    ids = np.array([70_000, 5])
    assert document_of_text("naïve", ids, source="x").doc_id == hash64("naïve".encode(), b"doc_id")
    names = {None: b"p\x11\x01\x00\x05\x00\x00\x00", "abc": b"abc", "0123456789abcdeg": b"0123456789abcdeg"}
    names["00123456789abcdef"] = b"00123456789abcdef"
    for name, content in names.items():
        assert document_of_tokens(ids, source="y", name=name).doc_id == hash64(content, b"doc_id")
    assert document_of_tokens(ids, source="y", name="0123456789abcdef").doc_id == 0x0123456789ABCDEF


def test_documents_that_hold_no_window_lend_no_null_context() -> None:
    sizes = (4, 5, 3, 9)
    store = store_of([document_of_tokens(np.full(n, n), source="z") for n in sizes], split="own")
    windows = windows_before(store, 4, document_W=np.array([3]), target_W=np.array([6]))
    assert windows.eligible_g.tolist() == [1, 3]


def tokenizers_of_every_kind() -> dict[str, Tokenizer]:
    """Byte-level BPE, one with GPT-2's look-ahead, one of words and punctuation, and one with Metaspace and a prefix."""
    texts = [TEXT, "ab ab abc  d\n\nthe cat; don't 12,345 naïve ✨✨"] * 3
    kinds: dict[str, Tokenizer] = {}
    for name, before in {
        "byte-level": pre_tokenizers.ByteLevel(add_prefix_space=False),
        "prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
        "metaspace": pre_tokenizers.Metaspace(prepend_scheme="first"),
        "whitespace": pre_tokenizers.Whitespace(),
        "none": None,
    }.items():
        kinds[name] = Tokenizer(models.BPE(unk_token="?"))
        if before is not None:
            kinds[name].pre_tokenizer = before
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=330, initial_alphabet=alphabet, special_tokens=["?"], show_progress=False
        )
        kinds[name].train_from_iterator(texts, trainer)
    return kinds


@pytest.mark.parametrize("kind", ["byte-level", "prefix", "metaspace", "whitespace", "none"])
def test_the_pieces_of_the_tokens_are_the_text(kind: str) -> None:
    """Also what no token stands for; each piece holds the characters of its token that no earlier token holds."""
    text = f" \n{TEXT}  "
    encoded = encode_text(tokenizers_of_every_kind()[kind], text)
    assert "".join(encoded.pieces) == text and len(encoded.pieces) == len(encoded)
    reached = 0
    for piece, begin, end in zip(encoded.pieces, encoded.begins.tolist(), encoded.ends.tolist(), strict=True):
        own = text[max(begin, reached) : end]
        reached += len(piece)
        assert own in piece if reached == len(text) else piece.endswith(own)
    assert encode_text(tokenizers_of_every_kind()[kind], "").pieces == []


@pytest.mark.parametrize("kind", ["byte-level", "prefix", "metaspace", "whitespace", "none"])
def test_blocks_give_the_tokens_of_the_whole_text(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On random texts: words, runs of white space, characters of several bytes, words longer than the overlap."""
    tokenizer = tokenizers_of_every_kind()[kind]
    pieces = ["the", " cat", "  ", "\n\n", " don't", "12,345", "naïve", "✨", "é", " ab", "\t", ";;", "x" * 90, " "]
    rng = np.random.default_rng(0)
    sizes: list[int] = []
    encode = places._encode_block
    monkeypatch.setattr(places, "_encode_block", lambda t, text, a, b: sizes.append(b - a) or encode(t, text, a, b))
    for trial in range(40):
        weights = np.ones(len(pieces)) if trial % 4 == 0 else np.where(np.array(pieces) == "x" * 90, 0, 1.0)
        text = "".join(rng.choice(pieces, 700, p=weights / weights.sum()))
        monkeypatch.setattr(places, "BLOCK", 10**9)
        whole = encode_text(tokenizer, text)
        monkeypatch.setattr(places, "BLOCK", 400)
        monkeypatch.setattr(places, "OVERLAP", 128)
        sizes.clear()
        found = encode_text(tokenizer, text)
        for name in ("token_ids", "begins", "ends"):
            np.testing.assert_array_equal(getattr(found, name), getattr(whole, name), err_msg=f"{name} {trial}")
        if kind == "byte-level" and trial % 4:
            assert len(sizes) > 3 and max(sizes) <= 400  # never the whole text


def test_a_text_that_can_be_encoded_at_once_alone_is_bounded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word without end, behind words: as long as memory lasts it is encoded, and then refused before anything is tried."""
    monkeypatch.setattr(places, "BLOCK", 400)
    monkeypatch.setattr(places, "OVERLAP", 128)
    text = "the cat sat on the mat, " * 20 + "x" * 600
    whole = tokenizer.encode(text, add_special_tokens=False)
    encoded = encode_text(tokenizer, text)
    assert encoded.token_ids.tolist() == whole.ids
    assert list(zip(encoded.begins.tolist(), encoded.ends.tolist(), strict=True)) == whole.offsets
    monkeypatch.setattr(places, "LONGEST_AT_ONCE", 1080)
    assert encode_text(tokenizer, text).token_ids.tolist() == whole.ids
    monkeypatch.setattr(places, "LONGEST_AT_ONCE", 1079)
    with pytest.raises(UserError) as error:
        encode_text(tokenizer, text)
    # The first two blocks, to 400 and from 272 to 672, are joined; the third begins where the second holds no word.
    assert str(error.value) == (
        "the text has 1,080 characters, and around character 544 its tokenizer begins no word for 128 of them, so that it "
        "cannot be encoded in pieces; give at most 1,079 characters"
    )


@pytest.mark.parametrize(("length", "dtype"), [(2**31 - 1, np.int32), (2**31, np.int64)])
def test_a_text_of_more_characters_than_an_int32_can_tell(tokenizer: Tokenizer, length: int, dtype: type) -> None:
    class Long:
        """A text of this length of which nothing but its end is in memory."""

        def __len__(self) -> int:
            return length

        def __getitem__(self, part: slice) -> str:
            assert (part.start, part.stop) == (length - 7, length)
            return "the cat"

    block = places._encode_block(tokenizer, Long(), length - 7, length)  # type: ignore[arg-type]
    assert block.begins.dtype == block.ends.dtype == dtype
    assert (int(block.begins[0]), int(block.ends[-1]), block.end) == (length - 7, length, length)
