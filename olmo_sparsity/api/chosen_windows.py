"""Windows of one's own text: drawn from texts, before one place of a text, or given as tokens.

A text is encoded once, when its windows are made; everything later works on the tokens.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.api.arguments import column, typed
from olmo_sparsity.api.opening import Model
from olmo_sparsity.config import InfluenceConfig, require
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.opening import draw_windows
from olmo_sparsity.text.nulls import NullContexts, draw_null_contexts
from olmo_sparsity.text.overlap import NGRAM, ngram_hashes
from olmo_sparsity.text.places import EncodedText, encode_around, encode_text, place_at
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.text.windows import Windows, document_of_text, document_of_tokens, store_of, windows_before

logger = logging.getLogger(__name__)
SPLIT = "own"  # the name of one's own text in tables


@dataclass(frozen=True, eq=False)  # arrays have no one answer to ==
class ChosenWindows:
    """Windows to measure, with their null contexts.

    Attributes:
        null_contexts: the windows, and what takes the place of their long-range tokens in the null context.
        source: where the text comes from, as tables name it.
        texts: texts of the ``full_len`` tokens of each window and, last, of its target; each decoded on its own.
        tokenizer_sha256: of the tokenizer that the tokens are of; only a model with this one can be given the windows.
        seed: of the null contexts, and of the draw where the windows were drawn.
        drawn: the settings by which the windows were drawn; None: they were given, and means are over these windows alone.
    """

    null_contexts: NullContexts
    source: str
    texts: list[list[str]]
    tokenizer_sha256: str
    seed: int = 0
    drawn: Optional[InfluenceConfig] = None

    @property
    def windows(self) -> Windows:
        """The windows: tokens, documents, weights."""
        return self.null_contexts.windows

    @property
    def frame(self) -> pd.DataFrame:
        """One row a window: ``window_id``, ``doc_id``, ``source``, ``start_token``, ``token_ids``, ``token_texts``,
        ``target_id``, ``target_text`` and ``null_context``, the kind of its null context."""
        windows, window_ids_W = self.windows, np.arange(len(self))
        tokens_WT = windows.tokens(window_ids_W)
        return pd.DataFrame(
            {
                "window_id": window_ids_W,
                "doc_id": windows.doc_ids(window_ids_W),
                "source": windows.store.source_of(windows.document_W),
                "start_token": windows.start_W - windows.store.begins_G[windows.document_W],
                "token_ids": list(tokens_WT[:, :-1]),
                "token_texts": [texts[:-1] for texts in self.texts],
                "target_id": tokens_WT[:, -1],
                "target_text": [texts[-1] for texts in self.texts],
                "null_context": self.null_contexts.kind,
            }
        )

    def __len__(self) -> int:
        return len(self.windows)

    def __repr__(self) -> str:
        windows = self.windows
        return f"ChosenWindows({len(windows):,} of {windows.full_len} tokens, {windows.num_documents:,} documents)"

    def _repr_html_(self) -> str:
        return str(self.frame.to_html(max_rows=10, notebook=True))


@typed
def windows_from_texts(
    model: Model,
    texts: Sequence[str],
    *,
    num_windows: int = 100,
    max_per_document: Optional[int] = None,
    seed: Optional[int] = None,
    source: str = "texts",
) -> ChosenWindows:
    """Draw windows from texts, as ``olmo-sparsity influence`` draws them from a corpus.

    The model's configuration says how: ``influence.targets`` and ``min_preceding``.

    Args:
        model: its tokenizer encodes the texts, each once; its ``full_len`` is the length of the windows.
        texts: the documents.
        num_windows: number of windows; fewer if the texts hold fewer. The configuration's is for a corpus, and does not count.
        max_per_document: largest number of windows of one text; None: ``influence.max_windows_per_document``.
        seed: of the draw and of the null contexts; None: that of the configuration.
        source: name of the texts in tables.

    Raises:
        UserError: no text holds a window, ``full_len`` tokens and the target behind them.
    """
    require(num_windows >= 1, f"num_windows = {num_windows}: must be at least 1")
    settings = model.config.influence
    if max_per_document is None:
        max_per_document = settings.max_windows_per_document
    require(max_per_document >= 1, f"max_per_document = {max_per_document}: must be at least 1")
    seed = _seed_of(model, seed)
    encodings = [encode_text(model.tokenizer, text) for text in texts]
    documents = [
        document_of_text(encoded.text, encoded.token_ids, source=source) for encoded in encodings if len(encoded)
    ]
    if not documents:
        raise UserError("texts: there is no text with a token in it")
    drawn = dataclasses.replace(settings, num_windows=num_windows, max_windows_per_document=max_per_document, seed=seed)
    windows = draw_windows(
        store_of(documents, split=SPLIT), drawn, full_len=model.lengths.full_len, tokenizer=model.tokenizer
    )
    return _with_null_contexts(model, windows, source=source, seed=seed, drawn=drawn)


@typed
def windows_from_tokens(
    model: Model,
    token_ids: Sequence[Sequence[int]] | np.ndarray,
    *,
    doc_ids: Optional[Sequence[Any]] = None,
    seed: Optional[int] = None,
    source: str = "tokens",
) -> ChosenWindows:
    """Return windows that are given as token IDs, in their order; nothing is encoded, and means are over these windows alone.

    Args:
        model: its vocabulary is that of the tokens.
        token_ids: [windows, full_len + 1]; the last token of each row is the target.
        doc_ids: what names the document of each window, such as the column ``doc_id`` of a table; intervals count windows of
            one document together, and windows lend one another no null context. None: each window is a document of its own.
        seed: of the null contexts, which are taken from other rows; None: that of the configuration.
        source: name of the windows in tables.

    Raises:
        UserError: a row has another length, or holds a token that the model does not have; or the document of a window is not
            named.
    """
    seed = _seed_of(model, seed)
    full_len, vocab_size = model.lengths.full_len, model.engine.model.vocab_size
    if isinstance(token_ids, np.ndarray) and token_ids.dtype.kind not in "iu":
        raise UserError(f"token_ids: an array of {token_ids.dtype}: must hold whole numbers")
    if isinstance(token_ids, np.ndarray) and token_ids.ndim != 2:
        raise UserError(f"token_ids: an array of shape {token_ids.shape}: must have a row of tokens for each window")
    try:
        rows = [np.asarray(row, dtype=np.int64) for row in token_ids]
    except OverflowError:
        raise UserError(f"token_ids: token IDs must lie between 0 and {vocab_size - 1}") from None
    for number, row in enumerate(rows):
        if row.shape != (full_len + 1,):
            raise UserError(
                f"token_ids[{number}]: {row.size} tokens, where full_len = {full_len} tokens and the target are expected"
            )
        if row.min() < 0 or row.max() >= vocab_size:
            raise UserError(f"token_ids[{number}]: token IDs must lie between 0 and {vocab_size - 1}")
    if not rows:
        raise UserError("token_ids: there are no windows")
    if doc_ids is not None and len(doc_ids) != len(rows):
        raise UserError(f"doc_ids: {len(doc_ids)} of them for {len(rows):,} windows")
    missing = [number for number, name in enumerate(doc_ids or ()) if name is None or name is pd.NA or name != name]
    if missing:
        raise UserError(
            f"doc_ids[{missing[0]}]: is missing; name the document of each window, or leave doc_ids out if each is one of its own"
        )
    if doc_ids is None and model.config.influence.null_context != "shuffled":
        _warn_of_shared_text(np.stack(rows))
    names = [None] * len(rows) if doc_ids is None else [str(name) for name in doc_ids]
    documents = [document_of_tokens(row, source=source, name=name) for row, name in zip(rows, names, strict=True)]
    windows = windows_before(
        store_of(documents, split=SPLIT),
        full_len,
        document_W=np.arange(len(rows)),
        target_W=np.full(len(rows), full_len),
    )
    return _with_null_contexts(model, windows, source=source, seed=seed)


def _warn_of_shared_text(tokens_WT: np.ndarray) -> None:
    """Warn where windows that were given as documents of their own share text, unless they are the same."""
    of_windows = [np.unique(hashes_N) for hashes_N in ngram_hashes(np.unique(tokens_WT, axis=0))]
    hashes_S = np.concatenate(of_windows)
    if len(np.unique(hashes_S)) < len(hashes_S):
        logger.warning(
            f"token_ids: some rows share {NGRAM} tokens in a row; if they are of one document, name the document of each row "
            "with doc_ids, or a null context may hold the text of its own window"
        )


@typed
def windows_from_table(model: Model, table: pd.DataFrame, *, seed: Optional[int] = None) -> ChosenWindows:
    """Return the windows of a table ``windows`` by their tokens, in its order, numbered from 0; nothing is encoded.

    Means are over these windows alone, each with weight 1, whatever they were drawn as: some rows are no sample of the text.

    Args:
        model: its vocabulary is that of the tokens.
        table: some rows of a table ``windows``, such as ``Results.windows``; its columns ``token_ids``, ``target_id``,
            ``token_texts``, ``target_text`` and ``doc_id`` are read.
        seed: of the null contexts, which are taken from other rows; None: that of the configuration.

    Raises:
        UserError: the windows have another length than the model's ``full_len``, or their tokens are of another tokenizer.
    """
    ids, targets = (
        column(table, wanted, name=name, of="table")
        for name, wanted in (("token_ids", Sequence[Sequence[int]]), ("target_id", Sequence[int]))
    )
    texts_of, target_texts = (
        column(table, wanted, name=name, of="table")
        for name, wanted in (("token_texts", Sequence[Sequence[str]]), ("target_text", Sequence[str]))
    )
    doc_ids = column(table, Sequence[str], name="doc_id", of="table")
    rows = [[*of_window, target] for of_window, target in zip(ids, targets, strict=True)]
    windows = windows_from_tokens(model, rows, doc_ids=doc_ids, seed=seed, source="table")
    written = [[*texts, target] for texts, target in zip(texts_of, target_texts, strict=True)]
    for number, (texts, known) in enumerate(zip(windows.texts, written, strict=True)):
        if texts != known:
            raise UserError(
                f"table: the tokens of row {number} are not those of this model's tokenizer; make windows from the texts, with "
                "windows_from_texts"
            )
    return windows


@typed
def window_at(
    model: Model,
    text: str,
    *,
    at: int,
    seed: Optional[int] = None,
    source: str = "text",
) -> ChosenWindows:
    """Return the one window before a place of a text.

    Args:
        model: its tokenizer encodes the text.
        text: one document.
        at: index of a character; the token that holds it is the target.
        seed: of the null context; None: that of the configuration.
        source: name of the text in tables.

    Raises:
        UserError: there is no such character, or too few tokens stand before it.
    """
    seed = _seed_of(model, seed)
    lengths = model.lengths
    encoded = encode_around(model.tokenizer, text, at, lengths.full_len)
    token = place_at(encoded, at, full_len=lengths.full_len, local_len=lengths.local_len)
    return _windows_before(model, encoded, np.array([token]), seed=seed, source=source)


def _seed_of(model: Model, seed: Optional[int]) -> int:
    """Return a seed that is given, or that of the configuration."""
    seed = model.config.influence.seed if seed is None else seed
    require(seed >= 0, f"seed = {seed}: must be at least 0")
    return seed


def windows_of_document(model: Model, encoded: EncodedText, *, seed: int, source: str) -> ChosenWindows:
    """Return the windows before all tokens of an encoded text that follow a full window, in the order of the text."""
    return _windows_before(model, encoded, np.arange(model.lengths.full_len, len(encoded)), seed=seed, source=source)


def _windows_before(
    model: Model, encoded: EncodedText, targets_W: np.ndarray, *, seed: int, source: str
) -> ChosenWindows:
    windows = windows_before(
        store_of([document_of_text(encoded.text, encoded.token_ids, source=source)], split=SPLIT),
        model.lengths.full_len,
        document_W=np.zeros(len(targets_W), dtype=np.int64),
        target_W=targets_W,
    )
    return _with_null_contexts(model, windows, source=source, seed=seed)


def _with_null_contexts(
    model: Model, windows: Windows, *, source: str, seed: int, drawn: Optional[InfluenceConfig] = None
) -> ChosenWindows:
    null_contexts = draw_null_contexts(
        windows, model.lengths.num_long_range, kind=model.config.influence.null_context, seed=seed
    )
    texts = [token_texts(model.tokenizer, tokens_T) for tokens_T in windows.tokens(np.arange(len(windows)))]
    return ChosenWindows(null_contexts, source, texts, model.opened.tokenizer_sha256, seed, drawn)
