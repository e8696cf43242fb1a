"""The reactions of one run to the tokens beyond the training row, target by target.

A *reaction* is how far these tokens move the model's prediction, KL(p_all, p_{}); it is *sparse* where one token alone
reproduces much of it. No label enters a reaction. Everything is read from the tables of ``olmo-sparsity influence``.

Letters of shapes: W windows; C contexts, real and null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from olmo_sparsity.statistics.single.measurement import CONTEXTS, window_rows
from olmo_sparsity.tables.reading import list_rows, padded_rows, read_parts, read_table, rows_by_choice

# Below this divergence, in nats, rounding decides what share of a reaction a token reproduces.
LEAST_REACTION_NATS = 1e-6
HALF = 0.5  # share of a reaction, of the sparsity that counts tokens
WINDOW_COLUMNS = [
    "window_id",
    "doc_id",
    "weight",
    "target_class",
    "train_overlap",
    "loss_long_nats",
    "null_loss_long_nats",
    "loss_short_no_gap_nats",
    "kl_short_nats",
    "null_kl_short_nats",
    "entropy_short_nats",
]
SELECTION_COLUMNS = ["window_id", "selector", "context", "k", "kl_sparse_nats", "distance_tokens"]

SparsityMeasure = Literal["best", "half"]


class Choice(NamedTuple):
    """What a selector chose in every window, under each context.

    Attributes:
        best_CW: D of its first token alone, float64; NaN where there is hardly a reaction.
        half_CW: minus the number of tokens at which D reaches one half, float64; between two measured k, and between none and
            the smallest k, D is taken to be linear. Minus infinity where no measured k reaches it. The higher, the sparser.
        distance_CW: distance of its first token to the target, in tokens, int64.
    """

    best_CW: np.ndarray
    half_CW: np.ndarray
    distance_CW: np.ndarray

    def sparsity(self, measure: SparsityMeasure) -> np.ndarray:
        """Return how sparse each reaction is, float64 [C, W]; the higher, the sparser."""
        return self.best_CW if measure == "best" else self.half_CW


@dataclass(frozen=True)
class Reactions:
    """One run's reactions and gains.

    Attributes:
        windows: one row a window, by rising ``window_id``; columns window_id, doc_id, weight, target_class, train_overlap.
        reaction_CW: KL(p_all, p_{}), nats, float64.
        gain_CW: loss with the local tokens alone, directly behind the anchor, as in a training row, minus the loss with all
            tokens, nats, float64; under the null context all tokens are those of the null context.
        entropy_W: entropy of p_{}, nats, float64.
        choices: by selector.
    """

    windows: pd.DataFrame
    reaction_CW: np.ndarray
    gain_CW: np.ndarray
    entropy_W: np.ndarray
    choices: dict[str, Choice]


def read_reactions(folder: Path, selectors: Sequence[str]) -> Reactions:
    """Read the reactions of one run from an influence folder.

    Args:
        folder: a finished influence folder.
        selectors: whose choices to read; all were measured, and at k = 1.

    Raises:
        UserError: the tables are missing, unfinished, or of another version.
    """
    windows = _windows(folder)
    reaction_CW = windows[["kl_short_nats", "null_kl_short_nats"]].to_numpy(np.float64).T
    short_W = windows["loss_short_no_gap_nats"].to_numpy(np.float64)
    long_CW = windows[["loss_long_nats", "null_loss_long_nats"]].to_numpy(np.float64).T
    return Reactions(
        windows[["window_id", "doc_id", "weight", "target_class", "train_overlap"]],
        reaction_CW,
        short_W - long_CW,
        windows["entropy_short_nats"].to_numpy(np.float64),
        _choices(folder, windows, selectors, reaction_CW=reaction_CW),
    )


def _windows(folder: Path) -> pd.DataFrame:
    frame: pd.DataFrame = read_table(folder, "windows", columns=WINDOW_COLUMNS).to_pandas(strings_to_categorical=False)
    return frame.sort_values("window_id", ignore_index=True)


def _choices(
    folder: Path, windows: pd.DataFrame, selectors: Sequence[str], *, reaction_CW: np.ndarray
) -> dict[str, Choice]:
    num_windows = len(windows)
    found: dict[str, list[Any]] = {name: [None, np.zeros((len(CONTEXTS), num_windows), np.int64)] for name in selectors}
    ks: list[int] = []
    for part in read_parts(folder, "selections", columns=SELECTION_COLUMNS):
        wanted = part.filter(pc.field("context").isin(CONTEXTS) & pc.field("selector").isin(list(selectors)))
        if not len(wanted):
            continue
        ks = wanted["k"][0].as_py()
        kl_RK, distance_RS = list_rows(wanted["kl_sparse_nats"]), padded_rows(wanted["distance_tokens"])
        rows_R = window_rows(windows, wanted["window_id"])
        for selector, context, rows_r in rows_by_choice(wanted):
            of_selector, c = found[selector], CONTEXTS.index(context)
            if of_selector[0] is None:
                of_selector[0] = np.full((len(CONTEXTS), num_windows, len(ks)), np.nan)
            of_selector[0][c, rows_R[rows_r]] = kl_RK[rows_r]
            of_selector[1][c, rows_R[rows_r]] = distance_RS[rows_r, 0]
    return {name: _choice(kl_CWK, reaction_CW, ks, distance_CW) for name, (kl_CWK, distance_CW) in found.items()}


def _choice(kl_CWK: np.ndarray, reaction_CW: np.ndarray, ks: list[int], distance_CW: np.ndarray) -> Choice:
    reacts_CW = reaction_CW >= LEAST_REACTION_NATS
    recovered_CWK = 1 - kl_CWK / np.where(reacts_CW, reaction_CW, np.nan)[..., None]
    return Choice(recovered_CWK[..., 0], -tokens_to_reach(recovered_CWK, ks, share=HALF), distance_CW)


def tokens_to_reach(recovered_NK: np.ndarray, ks: Sequence[int], *, share: float) -> np.ndarray:
    """Return at how many tokens D first reaches a share, float64 [...]; infinity where no measured k reaches it, NaN for NaN.

    Args:
        recovered_NK: D at each measured k, float64 [..., K].
        ks: the measured k, rising. D of no token is 0, and between two measured k it is taken to be linear.
        share: above 0.
    """
    values_NK = np.concatenate([np.zeros((*recovered_NK.shape[:-1], 1)), recovered_NK], axis=-1)
    tokens_N = where_reached(values_NK, np.array([0.0, *ks]), share)
    return np.where(np.isnan(recovered_NK).any(axis=-1), np.nan, tokens_N)


def where_reached(values_NK: np.ndarray, places_K: np.ndarray, share: float) -> np.ndarray:
    """Return the place at which values first reach a share, float64 [...]; infinity where none does.

    Between two places values are taken to be linear; the first place stands for those before it, too.

    Args:
        values_NK: float64 [..., K].
        places_K: of the values, rising, float64.
        share: to reach.
    """
    reaches_NK = values_NK >= share
    first_N = np.asarray(reaches_NK.argmax(axis=-1))
    before_N = np.maximum(first_N - 1, 0)
    high_N, low_N = (np.take_along_axis(values_NK, at_N[..., None], axis=-1)[..., 0] for at_N in (first_N, before_N))
    with np.errstate(divide="ignore", invalid="ignore"):
        way_N = np.where(first_N > 0, (share - low_N) / (high_N - low_N), 1.0)
    place_N = places_K[before_N] + way_N * (places_K[first_N] - places_K[before_N])
    return np.where(reaches_NK.any(axis=-1), place_N, np.inf)
