"""Windows of texts or tokens that Python gives: drawn, in front of one place, or row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.api.opening import Model, settings_of
from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.nulls import NullContexts, draw_null_contexts
from olmo_sparsity.text.places import EncodedText, encode_around, encode_text, place_at
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.text.windows import Windows, id_of_text, id_of_tokens, sample_windows, store_of, windows_before

SPLIT = "own"  # how tables name the text


@dataclass(frozen=True, eq=False)
class ChosenWindows:
    """Windows to measure, with their null contexts."""

    null_contexts: NullContexts
    tokenizer: Tokenizer
    drawn: Optional[InfluenceConfig] = None  # how they were drawn; None: they were given, and means are over them alone

    @property
    def windows(self) -> Windows:
        """Tokens, documents, weights."""
        return self.null_contexts.windows

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each window: its document, tokens and text."""
        tokens_WT, doc_ids = self.windows.tokens(all_W := np.arange(len(self))), self.windows.doc_ids(all_W)
        texts = [token_texts(self.tokenizer, tokens_T) for tokens_T in tokens_WT]
        columns = {"doc_id": doc_ids, "token_ids": list(tokens_WT[:, :-1]), "target_id": tokens_WT[:, -1]}
        columns |= {"text": ["".join(of[:-1]) for of in texts], "target_text": [of[-1] for of in texts]}
        return pd.DataFrame(columns).rename_axis("window_id")

    def __len__(self) -> int:
        return len(self.windows)

    def __repr__(self) -> str:
        windows = self.windows
        return f"ChosenWindows({len(windows):,} of {windows.full_len} tokens, {windows.num_documents:,} documents)"


@typed
def windows_from_texts(
    model: Model, texts: Sequence[str], *, num_windows: int = 100, seed: Optional[int] = None
) -> ChosenWindows:
    """Draw windows from texts, each a document, as ``olmo-sparsity influence`` draws them from a corpus.

    There are fewer if the texts hold fewer. The model's configuration has ``influence.max_windows_per_document``, ``targets``,
    ``min_preceding``, and the seed if it is None.
    """
    settings = settings_of(model, num_windows=num_windows, seed=seed).influence
    encoded = [of for of in (encode_text(model.tokenizer, text) for text in texts) if len(of)]
    if not encoded:
        raise UserError("texts: there is no text with a token in it")
    ids = [id_of_text(of.text) for of in encoded]
    store = store_of([of.token_ids for of in encoded], ids, source="texts", split=SPLIT)
    windows = sample_windows(store, model.lengths.full_len, settings, target_table_V=model.target_table_V)
    return _chosen(model, windows, seed, drawn=settings)


@typed
def windows_from_tokens(
    model: Model,
    token_ids: Sequence[Sequence[int]],
    *,
    doc_ids: Optional[Sequence[Any]] = None,
    seed: Optional[int] = None,
) -> ChosenWindows:
    """Windows as token IDs, in rows of ``full_len`` + 1 of which the last is the target; means are over these windows alone.

    A BOS in front of a row is left out where it is the model's anchor, which precedes every window anyway. ``doc_ids`` names the
    document of each row, such as the column ``doc_id`` of a table: intervals count rows of a document together, and they lend one
    another no null context. None: each row is a document.
    """
    full_len, vocab_size = model.lengths.full_len, model.model.vocab_size
    rows = [row[1:] if model.anchor is not None and row[:1] == [model.anchor.id] else row for row in token_ids]
    for number, row in enumerate(rows):
        if len(row) != full_len + 1 or min(row) < 0 or max(row) >= vocab_size:
            raise UserError(
                f"token_ids[{number}]: must hold full_len = {full_len} tokens and the target, without the BOS of an anchor, each "
                f"from 0 to {vocab_size - 1}; it has {len(row)}"
            )
    if not rows:
        raise UserError("token_ids: there are no windows")
    names = [None] * len(rows) if doc_ids is None else doc_ids
    if len(names) != len(rows) or (doc_ids is not None and pd.isna(pd.Series(names, dtype=object)).any()):
        raise UserError(f"doc_ids: must name the document of each of the {len(rows):,} windows")
    documents, number_W = [np.array(row) for row in rows], np.arange(len(rows))
    ids = [id_of_tokens(row, None if name is None else str(name)) for row, name in zip(documents, names, strict=True)]
    store = store_of(documents, ids, source="tokens", split=SPLIT)
    windows = windows_before(store, full_len, document_W=number_W, target_W=np.full_like(number_W, full_len))
    return _chosen(model, windows, seed)


@typed
def window_at(model: Model, text: str, *, at: int, seed: Optional[int] = None) -> ChosenWindows:
    """The one window in front of a place of a text: the token that holds character ``at``, counted from 0, is the target."""
    lengths = model.lengths
    encoded = encode_around(model.tokenizer, text, at, lengths.full_len)
    target = place_at(encoded, at, full_len=lengths.full_len, local_len=lengths.local_len)
    return windows_of_text(model, encoded, np.array([target]), seed, "text")


def windows_of_text(
    model: Model, encoded: EncodedText, target_W: np.ndarray, seed: Optional[int], source: str
) -> ChosenWindows:
    """The windows in front of some tokens of one text."""
    store = store_of([encoded.token_ids], [id_of_text(encoded.text)], source=source, split=SPLIT)
    full_len, document_W = model.lengths.full_len, np.zeros_like(target_W)
    return _chosen(model, windows_before(store, full_len, document_W=document_W, target_W=target_W), seed)


def _chosen(
    model: Model, windows: Windows, seed: Optional[int], drawn: Optional[InfluenceConfig] = None
) -> ChosenWindows:
    settings, num_far = settings_of(model, seed=seed).influence, model.lengths.num_long_range
    null_contexts = draw_null_contexts(windows, num_far, kind=settings.null_context, seed=settings.seed)
    return ChosenWindows(null_contexts, model.tokenizer, drawn)
