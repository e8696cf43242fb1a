"""Documents that are given in memory, as the token store that windows and null contexts are drawn from."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.text.corpus import hash64, make_document
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.windows import Windows

END = 0  # closes a document in the store; it belongs to no window and is never a target


@dataclass(frozen=True)
class TokenDocument:
    """One document as tokens.

    Attributes:
        token_ids: [tokens], integers, without the token that ends a document.
        doc_id: 64-bit hash of its content.
        source: name of what it comes from.
    """

    token_ids: np.ndarray
    doc_id: int
    source: str


def document_of_text(text: str, token_ids: np.ndarray, *, source: str) -> TokenDocument:
    """Return a document with the ID that its text has in every corpus."""
    return TokenDocument(token_ids, make_document(text, source).doc_id, source)


def document_of_tokens(token_ids: np.ndarray, *, source: str, name: Optional[str] = None) -> TokenDocument:
    """Return a document with the ID that its tokens have in token files, or that its name stands for.

    A name of 16 hexadecimal digits is the ID itself, as tables write it; other names are hashed.
    """
    if name is None:
        doc_id = hash64(token_ids.astype("<u4").tobytes(), b"doc_id")
    elif re.fullmatch(r"[0-9a-f]{16}", name):
        doc_id = int(name, 16)
    else:
        doc_id = hash64(name.encode(), b"doc_id")
    return TokenDocument(token_ids, doc_id, source)


def store_of(documents: Sequence[TokenDocument], *, split: str) -> TokenStore:
    """Return a store of at least one document, in the given order; ``split`` is its name in tables."""
    ends_G = np.cumsum([len(document.token_ids) + 1 for document in documents], dtype=np.int64)
    tokens = np.full(ends_G[-1], END, dtype=np.uint32)
    for document, end in zip(documents, ends_G.tolist(), strict=True):
        tokens[end - 1 - len(document.token_ids) : end - 1] = document.token_ids
    return TokenStore(
        tokens=tokens,
        begins_G=np.concatenate([[0], ends_G[:-1]]).astype(np.int64),
        ends_G=ends_G,
        doc_ids_G=np.array([document.doc_id for document in documents], dtype=np.uint64),
        sources=[document.source for document in documents],
        source_ends=np.arange(1, len(documents) + 1),
        split=split,
        tokens_sha256=hashlib.sha256(tokens.data).hexdigest(),
    )


def windows_before(store: TokenStore, full_len: int, *, document_W: np.ndarray, target_W: np.ndarray) -> Windows:
    """Return the windows before chosen targets, all with weight 1.

    Args:
        store: the documents.
        full_len: tokens of a window; each target has as many before it in its document.
        document_W: int64, the number of each target's document in the store.
        target_W: int64, the index of each target among the tokens of its document.
    """
    return Windows(
        store=store,
        full_len=full_len,
        min_preceding=full_len,
        document_W=document_W,
        start_W=store.begins_G[document_W] + target_W - full_len,
        weight_W=np.ones(len(target_W)),
        eligible_g=np.flatnonzero(store.lengths_G - 1 > full_len),
    )
