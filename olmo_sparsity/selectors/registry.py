"""What a selector is: a function that scores each candidate of each window; the k highest are J_k, so J_1, J_2, ... are nested.

A selector of one's own, in a file that the command line names or a function that is passed from Python, is written in the
same way as those of the package:

    @selector("my-kl", cost="M + 2")
    def my_kl(s):
        \"\"\"How far unmasking the token alone moves the prediction towards the full-context one.\"\"\"
        return s.kl_short[:, None] - s.kl_single

``s`` is ``olmo_sparsity.measure.scores.Scores``. A selector returns a score for each candidate, [W, I]; NaN is none. Of equal
scores the nearer wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

# What ``Scores.observed`` gives: a pass under full context that reads all layers and heads.
OBSERVED = (
    *("attention_of_heads", "accumulated_attention", "observed_attention"),
    *("queries", "keys", "values", "hidden_states"),
)
ATTENTION = "attention"  # of ``Scores.attention``, read beside the full-context prediction
Cost = Union[int, Callable[[int, int], int]]  # forward passes; a function of the candidates and the largest k


@dataclass(frozen=True)
class Selector:
    """One way to choose candidates; ``selector`` makes it."""

    name: str
    function: Callable[[Scores], Any]
    sees_target: bool = False  # it may ask for losses and the target; part of its gain is then optimism
    cost: str = "0"  # forward passes over one row, for readers; M: the candidates
    num_evaluations: Cost = 0  # the same, for tables
    needs: frozenset[str] = frozenset()  # of OBSERVED and ATTENTION, so that one pass serves all selectors
    needs_entries: bool = False  # it chooses entries of a key-value cache: contextual visibility
    is_control: bool = False
    is_extra: bool = False  # not among those that `all` stands for
    source: Optional[tuple[str, Optional[str]]] = None  # file name and SHA-256 of a selector of one's own

    @property
    def meaning(self) -> str:
        """What the score says: the first paragraph of the function's docstring."""
        return re.sub(r"\s+", " ", (self.function.__doc__ or f"Score of {self.name}.").strip().split("\n\n")[0])

    def score(self, scores: Scores) -> np.ndarray:
        """Score each candidate of each window, float64 [W, I]."""
        return np.asarray(self.function(scores), dtype=np.float64)


def selector(name: str, **about: Any) -> Callable[[Callable[[Scores], Any]], Selector]:
    """Make a function a selector; ``about``: fields of ``Selector``."""
    needs = frozenset(about.pop("needs", ()))
    return lambda function: Selector(name, function, needs=needs, **about)


def rank(scores_WI: np.ndarray) -> np.ndarray:
    """The candidates of each window by falling score, int64 [W, I]; of equal scores the nearer comes first, NaN last."""
    num = scores_WI.shape[-1]
    return num - 1 - np.argsort(-scores_WI[..., ::-1], axis=-1, kind="stable")


def names_of(selectors: Iterable[Selector]) -> list[str]:
    """The names of selectors, in their order."""
    return [one.name for one in selectors]
