"""What visible sets of a window's long-range tokens do to the prediction of its target, by definition: every token runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from llama import Llama, Pass

STEP = 1e-8  # of numerical derivatives; weights of attention can be thousands


@dataclass(frozen=True)
class Window:
    """A window under one context, and the label whose loss is asked for. Visible sets S hold numbers of groups."""

    model: Llama
    tokens: list[int]
    label: int  # the target, or a token drawn in its place
    local_len: int
    visibility: Literal["hidden", "contextual"]
    anchor: list[int]  # one token in front of the window that all tokens see, or none
    first: list[int]  # first position of each group
    draw_key: list[int]  # of random numbers: number of the window, then 0, or 1 for the null context
    counts: Mapping[int, int]  # how often each token occurs in the measured text
    texts: list[str]  # of each token
    known: dict[Any, Any] = field(default_factory=dict, repr=False)  # what was computed, for any label

    @property
    def num_long_range(self) -> int:
        return len(self.tokens) - self.local_len

    @property
    def groups(self) -> list[range]:
        """The long-range positions of each group."""
        return [range(a, b) for a, b in zip(self.first, [*self.first[1:], self.num_long_range], strict=True)]

    def sees(self, positions: Iterable[int]) -> list[set[int]]:
        """Return which tokens each token sees where these long-range positions are visible.

        ``hidden``: no token sees a hidden one but itself. ``contextual``: long-range tokens see all tokens before them.
        """
        front = len(self.anchor)
        local, length = front + self.num_long_range, front + len(self.tokens)
        visible = {*range(front), *(front + j for j in positions), *range(local, length)}
        return [
            set(range(i + 1)) if self.visibility == "contextual" and i < local else {i, *(j for j in visible if j < i)}
            for i in range(length)
        ]

    def run(self, positions: Iterable[int], **more: Any) -> Pass:
        """Run all tokens with these long-range positions visible. Position IDs never move."""
        row = [*self.anchor, *self.tokens]
        return self.model.run(row, range(len(row)), self.sees(positions), **more)

    def shown(self, groups: Iterable[int]) -> Pass:
        """Run all tokens with some groups visible."""
        key = frozenset(position for group in groups for position in self.groups[group])
        if key not in self.known:
            self.known[key] = self.run(key)
        return self.known[key]

    @property
    def everything(self) -> Pass:
        return self.shown(range(len(self.groups)))

    def log_probs(self, groups: Iterable[int]) -> np.ndarray:
        return self.shown(groups).log_probs

    def loss(self, groups: Iterable[int]) -> float:
        """Return loss(S)."""
        return -self.log_probs(groups)[self.label]

    def kl(self, groups: Iterable[int]) -> float:
        """Return KL(p_all, p_S)."""
        return divergence(self.everything.log_probs, self.log_probs(groups))

    def loss_last(self, number: int) -> float:
        """Return the loss with the last tokens and the anchor alone, directly behind the anchor."""
        row = [*self.anchor, *self.tokens[-number:]]
        sees = [set(range(i + 1)) for i in range(len(row))]
        return -self.model.run(row, range(len(row)), sees).log_probs[self.label]

    def damped(self) -> tuple[np.ndarray, np.ndarray]:
        """Return losses of p_{}^(1-w) p_all^w, normalized, and their divergences from p_all, for w = 0.1, ..., 0.9."""
        weights = np.arange(1, 10)[:, None] / 10
        products = np.exp(self.log_probs([])) ** (1 - weights) * np.exp(self.everything.log_probs) ** weights
        log_q = np.log(products / products.sum(axis=1, keepdims=True))
        return -log_q[:, self.label], np.array([divergence(self.everything.log_probs, one) for one in log_q])

    def derivative(self, position: int, beside: Iterable[int] = (), *, blend: bool = False) -> np.ndarray:
        """Return the derivative of the log-probabilities by a gate on a position, at 0, beside visible positions; [V].

        The gate multiplies the weight of attention to the position where it is hidden. ``blend``: it blends attention outputs.
        """
        key = (position, *beside, blend)
        if key not in self.known:
            more = self.sees([*beside, position])
            high, low = (self.run(beside, more=more, gate=gate, blend=blend).log_probs for gate in (STEP, -STEP))
            self.known[key] = (high - low) / (2 * STEP)
        return self.known[key]

    def sums(self, values: Iterable[float]) -> np.ndarray:
        """Return the sum of the positions' values in each group."""
        return np.add.reduceat(np.array([*values], dtype=np.float64), self.first)


def divergence(log_p: np.ndarray, log_q: np.ndarray) -> float:
    """Return KL(p, q)."""
    return np.exp(log_p) @ (log_p - log_q)
