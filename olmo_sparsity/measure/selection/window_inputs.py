"""What selectors need of windows besides losses: their text, the predictions, and what one pass gives of layers and heads.

Shape letters: W windows, T tokens of a window, M long-range positions, V vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.visibility import with_anchor
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.observation import Observer
from olmo_sparsity.progress import tokens_ran
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.units import group_numbers
from olmo_sparsity.text.vocabulary import token_texts

COUNTED_AT_ONCE = 2**24  # tokens
_counted: dict[tuple[str, str], np.ndarray] = {}  # by hash and split of the store


@torch.inference_mode()
def observed(evaluator: Evaluator, tokens_WT: torch.Tensor, *, needs: Iterable[str]) -> dict[str, np.ndarray]:
    """Run windows under full context, and return what is needed of their layers; fp32 [W, layers, ...] of each need.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        needs: of ``olmo_sparsity.records.window_input.OF_PASS``.

    Raises:
        UserError: the attention of the model cannot be read.
    """
    wanted, first = frozenset(needs), evaluator.num_anchors
    num_windows, full_len = tokens_WT.shape
    long_range = slice(first, first + full_len - evaluator.local_len)
    found: list[dict[str, torch.Tensor]] = []
    for windows in evaluator.batches(num_windows, evaluator.window_len(full_len)):
        observer = Observer(wanted, long_range=long_range, local_len=evaluator.local_len)
        tokens_wT, positions_wT = with_anchor(tokens_WT[windows], evaluator.anchor_id)
        tokens_ran(tokens_wT.numel())
        evaluator.model.observe(tokens_wT, positions_wT, observer=observer)
        found.append(observer.result())
    return {name: torch.cat([part[name] for part in found]).numpy() for name in wanted}


def text_inputs(windows: WindowBatch, evaluator: Evaluator, *, needs: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield what is needed of each window's text, by name.

    Args:
        windows: the windows; where texts, sentences or frequencies are needed, with tokenizer and store.
        evaluator: of the model.
        needs: of ``olmo_sparsity.records.window_input.OF_TEXT``.
    """
    wanted = set(needs)
    tokens_WT = windows.tokens_WT.cpu().numpy()
    for tokens_T in tokens_WT:
        given: dict[str, Any] = {}
        if "token_ids" in wanted:
            given["token_ids"] = tokens_T
        if "positions" in wanted:
            given["positions"] = evaluator.num_anchors + np.arange(len(tokens_T))
        if "texts" in wanted:
            assert windows.tokenizer is not None
            given["texts"] = tuple(token_texts(windows.tokenizer, tokens_T))
        if "sentence_starts" in wanted:
            assert windows.tokenizer is not None
            numbers_T = group_numbers(windows.tokenizer, tokens_T[None], num_long_range=len(tokens_T), unit="sentence")[
                0
            ]
            given["sentence_starts"] = np.diff(numbers_T, prepend=numbers_T[0]) != 0
        if "frequencies" in wanted:
            assert windows.store is not None
            counts_V = token_counts(windows.store)
            given["frequencies"] = np.where(tokens_T < len(counts_V), counts_V[tokens_T.clip(max=len(counts_V) - 1)], 0)
        yield given


def token_counts(store: TokenStore) -> np.ndarray:
    """Return how often each token occurs in the documents of a store, int64, up to the largest token ID; counted once."""
    key = (store.tokens_sha256, store.split)
    if key not in _counted:
        follows_G = np.append(
            store.begins_G[1:] == store.ends_G[:-1], False
        )  # documents that lie side by side are one span
        ends_g = store.ends_G[~follows_G]
        begins_g = store.begins_G[np.append(True, ~follows_G[:-1])]
        counts_V = np.zeros(1, dtype=np.int64)
        for begin, end in zip(begins_g.tolist(), ends_g.tolist(), strict=True):
            for first in range(begin, end, COUNTED_AT_ONCE):
                more_V = np.bincount(store.tokens[first : min(first + COUNTED_AT_ONCE, end)], minlength=len(counts_V))
                more_V[: len(counts_V)] += counts_V
                counts_V = more_V
        np.subtract.at(
            counts_V, store.tokens[store.ends_G - 1], 1
        )  # the token that closes a document is none of its text
        _counted[key] = counts_V
    return _counted[key]
