"""What a selector gets of one window: arrays, of which it names those that it needs.

Shape letters: T tokens of a window, M long-range tokens (the first M of T), V vocabulary entries, D width of the model, H heads,
E width of a head; layers come first. A model whose heads share keys has fewer heads of keys and values than of attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

OBSERVED_QUERIES = 32  # the last local tokens whose queries `observed_attention` sums over, as in SnapKV
# What is known without a model, from the predictions that are made anyway, and from one pass over the window.
OF_TEXT = ("token_ids", "texts", "positions", "sentence_starts", "frequencies")
OF_PREDICTIONS = ("short_prediction", "long_prediction")
OF_PASS = (
    "attention",
    "accumulated_attention",
    "observed_attention",
    "queries",
    "keys",
    "values",
    "hidden_states",
)
NEEDS = (*OF_TEXT, *OF_PREDICTIONS, *OF_PASS)


class UndeclaredNeedError(Exception):
    """A selector reads what it has not declared that it needs."""


@dataclass(frozen=True)
class WindowInput:
    """One window under one context, as a selector sees it. Arrays are copies, and cannot be written to.

    Attributes:
        num_long_range: M. The long-range tokens are the first M of the window; each gets a score.
        local_len: L, the number of local tokens behind them.
        given: what the selector needs, by name.
    """

    num_long_range: int
    local_len: int
    given: Mapping[str, Any] = field(repr=False)

    def _of(self, name: str) -> Any:
        if name not in self.given:
            needs = [need for need in (*self.given, name) if need != "target"]
            wanted = "sees_target=True" if name == "target" else f"needs={needs}"
            raise UndeclaredNeedError(f"{name} was not asked for; declare it: Selector(..., {wanted})")
        return self.given[name]

    @property
    def token_ids(self) -> np.ndarray:
        """The tokens, int64 [T]; an anchor in front of the window is not among them."""
        return self._of("token_ids")

    @property
    def texts(self) -> tuple[str, ...]:
        """The text of each token, T of them."""
        return self._of("texts")

    @property
    def positions(self) -> np.ndarray:
        """The position IDs of the tokens under full context, int64 [T]."""
        return self._of("positions")

    @property
    def sentence_starts(self) -> np.ndarray:
        """Which tokens begin a sentence, bool [T]. What begins before the window has no beginning here."""
        return self._of("sentence_starts")

    @property
    def frequencies(self) -> np.ndarray:
        """How often each token occurs in the measured text, all its documents with the targets, int64 [T]."""
        return self._of("frequencies")

    @property
    def short_prediction(self) -> np.ndarray:
        """Log-probabilities of the next token with the local tokens alone, nats, fp32 [V]."""
        return self._of("short_prediction")

    @property
    def long_prediction(self) -> np.ndarray:
        """Log-probabilities of the next token under full context, nats, fp32 [V]."""
        return self._of("long_prediction")

    @property
    def attention(self) -> np.ndarray:
        """Attention of the last token to each long-range one under full context, fp32 [layers, H, M]."""
        return self._of("attention")

    @property
    def accumulated_attention(self) -> np.ndarray:
        """The sum of the attention that all tokens pay to each long-range one under full context, fp32 [layers, H, M]."""
        return self._of("accumulated_attention")

    @property
    def observed_attention(self) -> np.ndarray:
        """The same of the last local tokens alone: 32 of them, or all L where there are fewer; fp32 [layers, H, M]."""
        return self._of("observed_attention")

    @property
    def queries(self) -> np.ndarray:
        """Queries of the last token, rotated, not scaled, fp32 [layers, H, E]."""
        return self._of("queries")

    @property
    def keys(self) -> np.ndarray:
        """Keys of the long-range tokens under full context, rotated, fp32 [layers, heads of keys, M, E]."""
        return self._of("keys")

    @property
    def values(self) -> np.ndarray:
        """Values of the long-range tokens under full context, fp32 [layers, heads of keys, M, E]."""
        return self._of("values")

    @property
    def hidden_states(self) -> np.ndarray:
        """States of the long-range tokens before each layer, and behind the last and its norm, fp32 [layers + 1, M, D]."""
        return self._of("hidden_states")

    @property
    def target(self) -> int:
        """The token that the window is measured on; only for selectors that say that they see it."""
        target: int = self._of("target")
        return target


def needs_pass(needs: Iterable[str]) -> bool:
    """Return whether one of the needs takes a pass of the model over the window."""
    return not set(needs).isdisjoint(OF_PASS)
