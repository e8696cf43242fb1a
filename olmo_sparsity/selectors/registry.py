"""A selector is a function that scores every candidate of every window; the k highest are J_k, so J_1, J_2, ... are nested.

    @selector("my-kl", cost=lambda many, settings: many + 2)
    def my_kl(s):
        \"\"\"How far unmasking the token alone moves the prediction towards the full-context one.\"\"\"
        return s.kl_short[:, None] - s.kl_single

``s`` is ``olmo_sparsity.measure.scores.Scores``. The result is [W, I]: a score for each of the I candidates of W windows, NaN
for a candidate without one. Selectors of the package and of a user's file are written alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
# What ``Scores.observed`` reads of all layers and heads, in one pass under full context.
OBSERVED = (
    *("attention_of_heads", "accumulated_attention", "observed_attention"),
    *("queries", "keys", "values"),
)
ATTENTION = "attention"  # ``Scores.attention``, read together with the full-context prediction
# Forward passes over one row, for a window of so many candidates under the settings ``influence``.
Cost = Union[int, Callable[[int, Any], int]]


@dataclass(frozen=True)
class Selector:
    """One way to choose candidates; ``selector`` makes it."""

    name: str
    function: Callable[[Scores], Any]
    sees_target: bool = False  # it may read losses and the target; part of its gain is then optimism
    cost: Cost = 0
    needs: frozenset[str] = frozenset()  # of OBSERVED and ATTENTION: one pass reads them for all selectors
    needs_entries: bool = False  # it chooses entries of a key-value cache: contextual visibility
    is_control: bool = False
    is_extra: bool = False  # `all` leaves it out
    source: Optional[tuple[str, Optional[str]]] = None  # of a user's: file name, and SHA-256 if it is known

    def __post_init__(self) -> None:
        if NAME.fullmatch(self.name) is None or self.name == "all":
            raise ValueError(
                f"{self.name!r}: name a selector by a letter and up to 39 letters, digits, - and _; all is taken"
            )
        if not callable(self.function):
            raise ValueError(f"no function or selector is named {self.name} here")
        if unknown := self.needs - {ATTENTION, *OBSERVED}:
            raise ValueError(f"needs = {sorted(unknown)}: must be some of {ATTENTION}, {', '.join(OBSERVED)}")

    @property
    def meaning(self) -> str:
        """What the score says: the first paragraph of the function's docstring."""
        return " ".join((self.function.__doc__ or f"Score of {self.name}.").strip().split("\n\n")[0].split())

    def num_evaluations(self, many: int, settings: Any) -> int:
        """Cost of the scores of a window with so many candidates, in forward passes over one row."""
        return self.cost if isinstance(self.cost, int) else self.cost(many, settings)


def selector(name: str, *, needs: Iterable[str] = (), **about: Any) -> Callable[[Callable[[Scores], Any]], Selector]:
    """Make a function a selector; ``about``: fields of ``Selector``."""
    return lambda function: Selector(name, function, needs=frozenset(needs), **about)


def rank(scores_WI: np.ndarray) -> np.ndarray:
    """The candidates of each window by falling score, int64 [W, I]; among equal scores the nearest first, NaN last."""
    num = scores_WI.shape[-1]
    return num - 1 - np.argsort(-scores_WI[..., ::-1], axis=-1, kind="stable")
