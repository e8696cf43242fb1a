"""Token stores in memory, with chosen documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import numpy as np

from olmo_sparsity.text.store import TokenStore

EOS = 0


def tiny_store(
    documents: Sequence[Sequence[int]],
    *,
    sources: Optional[Sequence[str]] = None,
    gap: int = 3,
    split: str = "validation",
) -> TokenStore:
    """Return a store of these documents.

    Args:
        documents: tokens of each document, without EOS; equal documents have the same ID.
        sources: source of each document; None: all the same.
        gap: tokens (numbered 1) between two documents, which belong to another split.
        split: name of the split.
    """
    ids = {tuple(tokens): number + 1 for number, tokens in enumerate(documents)}
    pieces = [[*tokens, EOS, *[1] * gap] for tokens in documents]
    ends = np.cumsum([len(piece) for piece in pieces])
    names = list(sources) if sources is not None else ["made up"] * len(documents)
    return TokenStore(
        tokens=np.array([token for piece in pieces for token in piece], dtype=np.uint16),
        begins_G=np.array([0, *ends[:-1]], dtype=np.int64),
        ends_G=(ends - gap).astype(np.int64),
        doc_ids_G=np.array([ids[tuple(tokens)] for tokens in documents], dtype=np.uint64),
        sources=names,
        source_ends=np.arange(1, len(documents) + 1),
        split=split,
        tokens_sha256="0",
    )
