"""What the methods of ``benchmarks.long_peers`` are asked: one window of a long document, and which tokens or sentences matter.

Two quantities are ranked, each of a group of the long-range tokens:

- ``tokens``: the gain of unmasking one token, loss({}) - loss({j}), under ``contextual`` visibility;
- ``sentences``: the cost of leaving one sentence out, loss(all but i) - loss(all), under ``hidden`` visibility. It is AttriBoT's
  quantity; masked tokens keep their position IDs.

A token in front of the window is always visible (the anchor).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Union

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import log_probs, short_log_probs
from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.measure.visible.window_batch import TokenGroups, WindowBatch, single_tokens
from olmo_sparsity.text.corpus import is_token_source, list_files, read_documents
from olmo_sparsity.text.in_memory import document_of_text, store_of
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.text.readers import read_records
from olmo_sparsity.text.units import group_numbers
from olmo_sparsity.text.windows import sample_windows

K = 8  # the size of the sets that rankings are compared by
VISIBILITY: dict[str, Visibility] = {"tokens": "contextual", "sentences": "hidden"}
QUANTITIES = tuple(VISIBILITY)
LONG = 8  # characters of a document that is long enough, for each token of a window
C4_DOCUMENTS = 5_000  # that are read of C4
Part = Union[Path, str]  # of a text: a file, ``builtin`` or ``c4``


@dataclass(frozen=True)
class Problem:
    """One window, and what is asked about it.

    Attributes:
        evaluator: the model, with the anchor and the definition of visible of the quantity.
        tokens_1T: int64, the window, without its target.
        target: the token that follows.
        quantity: ``tokens`` or ``sentences``.
        groups: of this window; of ``tokens``, every token is one.
    """

    evaluator: Evaluator
    tokens_1T: torch.Tensor
    target: int
    _: KW_ONLY
    quantity: str
    groups: TokenGroups

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens."""
        return self.tokens_1T.shape[1] - self.evaluator.local_len

    @property
    def targets_1(self) -> torch.Tensor:
        """The target, int64 [1]."""
        return torch.tensor([self.target], device=self.tokens_1T.device)

    @property
    def num_groups(self) -> int:
        """I, the number of groups."""
        return self.groups.num_groups

    @cached_property
    def log_p_short_1V(self) -> torch.Tensor:
        """Log-probabilities with only the local tokens visible, fp32."""
        return short_log_probs(self.evaluator, self.tokens_1T)

    @cached_property
    def log_p_long_1V(self) -> torch.Tensor:
        """Log-probabilities under full context, fp32."""
        all_1M = torch.arange(self.num_long_range, device=self.tokens_1T.device)[None]
        return log_probs(self.evaluator, self.tokens_1T, visible_WS=all_1M)

    def scores(self) -> WindowScores:
        """Return what selectors ask about the window, with nothing computed that a method is timed for."""
        windows = WindowBatch(
            self.tokens_1T,
            self.targets_1,
            window_ids_W=np.array([0]),
            context="real",
            seed=0,
            groups=None if self.groups.is_single else self.groups,
        )
        predictions = Predictions(self.evaluator, windows, log_p_short_WV=self.log_p_short_1V)
        return WindowScores(predictions, max_k=K)


def make_problem(evaluator: Evaluator, tokens_T: np.ndarray, *, quantity: str, tokenizer: Tokenizer) -> Problem:
    """Return the problem of a window.

    Args:
        evaluator: the model, with the quantity's definition of visible.
        tokens_T: int64, the window, and its target behind it.
        quantity: ``tokens`` or ``sentences``.
        tokenizer: of the model.
    """
    tokens_1T = tokens_T[None, :-1]
    num_long_range = tokens_1T.shape[1] - evaluator.local_len
    if quantity == "tokens":
        groups = single_tokens(1, num_long_range)
    else:
        groups = TokenGroups(group_numbers(tokenizer, tokens_1T, num_long_range=num_long_range, unit="sentence"))
    on_device_1T = torch.from_numpy(tokens_1T).to(evaluator.model.device)
    return Problem(evaluator, on_device_1T, int(tokens_T[-1]), quantity=quantity, groups=groups)


def parts_of(sources: Sequence[str]) -> list[Part]:
    """Return the parts of texts that are named as in ``data.source``: ``builtin``, ``c4``, or a file, folder or glob.

    Raises:
        UserError: there is no such text, or it is tokens.
    """
    parts: list[Part] = []
    for source in sources:
        if is_token_source(DataConfig(source=source)):
            raise UserError(f"--data {source}: these are token files; name text, which the model's own tokenizer reads")
        parts += [source] if source in ("builtin", "c4") else list_files(source)
    return parts


def _texts(part: Part) -> Iterator[str]:
    if isinstance(part, Path):
        return (record.text for record in read_records(part, "text"))
    documents = read_documents(DataConfig(source=part))
    return (document.text for document in itertools.islice(documents, C4_DOCUMENTS if part == "c4" else None))


def _long_documents(part: Part, num_characters: int, *, seed: int) -> list[str]:
    texts = [text for text in _texts(part) if len(text) >= num_characters]
    return [texts[i] for i in np.random.default_rng([seed, 0]).permutation(len(texts))]


def long_windows(parts: Sequence[Part], full_len: int, *, tokenizer: Tokenizer, seed: int) -> Iterator[np.ndarray]:
    """Yield windows of long documents and their targets, int64 [full_len + 1]; one of each document, the parts in turn.

    Raises:
        UserError: a file is missing or damaged, C4 cannot be reached, or no part holds a long document.
    """
    of_parts = [_long_documents(part, LONG * full_len, seed=seed) for part in parts]
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*of_parts))
    num_windows = 0
    for number, text in enumerate(text for text in in_turn if text is not None):
        encoded = encode_text(tokenizer, text)
        if len(encoded) <= full_len:
            continue
        store = store_of([document_of_text(text, encoded.token_ids, source="text")], split="text")
        windows = sample_windows(store, full_len, num_windows=1, max_per_document=1, seed=seed + number)
        num_windows += 1
        yield windows.tokens(np.array([0]))[0]
    if num_windows == 0:
        raise UserError(
            f"--data: no document has {LONG * full_len} characters and more than {full_len} tokens, enough for a window of "
            f"{full_len} tokens; give longer text"
        )
