"""LongPPL's key tokens, and the perplexity over them (Fang et al. 2024, arXiv 2410.23771).

Of a target, the long-short difference is LSD = log p_all - log p_{} of its token, the long gain, and the long-context likelihood
is LCL = log p_all, minus L_long. A *key token* has an LSD above 2 and an LCL above -2. LongPPL is the perplexity over the key
tokens.

Key tokens are chosen by the label. Here the measured model chooses its own; the paper lets another model, the evaluator, choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates, of_some
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.single.measurement import LONG_GAIN, Measurement

LSD_ABOVE = 2.0  # nats; alpha of the paper
LCL_ABOVE = -2.0  # nats; beta of the paper


@dataclass(frozen=True)
class KeyTokens:
    """The key tokens among the targets, under one context.

    Attributes:
        share: of the targets that are key tokens.
        loss_short_nats: their mean L_short; None where there are none.
        loss_long_nats: their mean L_long, the logarithm of LongPPL.
        perplexity: LongPPL, exp of ``loss_long_nats``.
    """

    share: Optional[Estimate]
    loss_short_nats: Optional[Estimate]
    loss_long_nats: Optional[Estimate]
    perplexity: Optional[Estimate]


def key_token_frame(measurement: Measurement, context: str = "real") -> pd.DataFrame:
    """Return one row a target: window_id, doc_id, weight, lsd_nats, lcl_nats, is_key."""
    windows = measurement.windows
    lsd_W = windows[LONG_GAIN[context]].to_numpy(np.float64)
    lcl_W = lsd_W - windows["loss_short_nats"].to_numpy(np.float64)
    of_window = windows[["window_id", "doc_id", "weight"]].reset_index(drop=True)
    return of_window.assign(lsd_nats=lsd_W, lcl_nats=lcl_W, is_key=(lsd_W > LSD_ABOVE) & (lcl_W > LCL_ABOVE))


def key_tokens(measurement: Measurement) -> dict[str, KeyTokens]:
    """Return the key tokens under the real and the null context; those under foreign text are what chance and label give."""
    units = document_units(measurement.windows["doc_id"])
    found = {}
    for context in LONG_GAIN:
        frame = key_token_frame(measurement, context)
        key_W = (frame["weight"] * frame["is_key"]).to_numpy()
        long_W = -frame["lcl_nats"].to_numpy()
        sums = {
            "weight": units.sums(frame["weight"]),
            "key": units.sums(key_W),
            "long": units.sums(key_W * long_W),
            "short": units.sums(key_W * (long_W + frame["lsd_nats"].to_numpy())),
        }
        numbers = estimates(sums, _quantities)
        of_keys = (of_some(numbers[name], sums["key"]) for name in ("short", "long", "perplexity"))
        found[context] = KeyTokens(numbers["share"], *of_keys)
    return found


def _quantities(totals: Mapping[str, np.ndarray]) -> dict[str, Any]:
    long = totals["long"] / totals["key"]
    return {
        "share": Share(totals["key"], totals["weight"]),
        "short": totals["short"] / totals["key"],
        "long": long,
        "perplexity": np.exp(long),
    }
