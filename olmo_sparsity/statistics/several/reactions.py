"""The reactions of one run to the tokens beyond the training row, target by target.

A *reaction* is how far these tokens move the model's prediction, KL(p_all, p_{}); it is *sparse* where one token alone
reproduces much of it. No label enters a reaction. Everything is read from the tables of ``olmo-sparsity influence``.

Letters of shapes: W windows; C contexts, real and null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from olmo_sparsity.statistics.single.measurement import CONTEXTS, window_rows
from olmo_sparsity.tables.reading import list_rows, padded_rows, read_parts, read_table, rows_by_choice

# Below this divergence, in nats, rounding decides what share of a reaction a token reproduces.
LEAST_REACTION_NATS = 1e-6
WINDOW_COLUMNS = [
    "window_id",
    "doc_id",
    "weight",
    "loss_long_nats",
    "null_loss_long_nats",
    "loss_short_no_gap_nats",
    "kl_short_nats",
    "null_kl_short_nats",
    "entropy_short_nats",
]
SELECTION_COLUMNS = ["window_id", "selector", "context", "kl_sparse_nats", "distance_tokens"]


class Choice(NamedTuple):
    """What a selector chose in every window, under each context.

    Attributes:
        best_CW: D of its first token alone, float64; NaN where there is hardly a reaction.
        distance_CW: distance of its first token to the target, in tokens, int64.
    """

    best_CW: np.ndarray
    distance_CW: np.ndarray


@dataclass(frozen=True)
class Reactions:
    """One run's reactions and gains.

    Attributes:
        windows: one row a window, by rising ``window_id``; columns window_id, doc_id, weight.
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
        windows[["window_id", "doc_id", "weight"]],
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
    for part in read_parts(folder, "selections", columns=SELECTION_COLUMNS):
        wanted = part.filter(pc.field("context").isin(CONTEXTS) & pc.field("selector").isin(list(selectors)))
        if not len(wanted):
            continue
        kl_RK, distance_RS = list_rows(wanted["kl_sparse_nats"]), padded_rows(wanted["distance_tokens"])
        rows_R = window_rows(windows, wanted["window_id"])
        for selector, context, rows_r in rows_by_choice(wanted):
            of_selector, c = found[selector], CONTEXTS.index(context)
            if of_selector[0] is None:
                of_selector[0] = np.full((len(CONTEXTS), num_windows), np.nan)
            of_selector[0][c, rows_R[rows_r]] = kl_RK[rows_r, 0]
            of_selector[1][c, rows_R[rows_r]] = distance_RS[rows_r, 0]
    return {name: _choice(kl_CW, reaction_CW, distance_CW) for name, (kl_CW, distance_CW) in found.items()}


def _choice(kl_CW: np.ndarray, reaction_CW: np.ndarray, distance_CW: np.ndarray) -> Choice:
    reacts_CW = reaction_CW >= LEAST_REACTION_NATS
    return Choice(1 - kl_CW / np.where(reacts_CW, reaction_CW, np.nan), distance_CW)
