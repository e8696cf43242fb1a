"""Every number of a measurement by loops over its windows, as the method defines them; no interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pandas as pd
from unlike_tables import Rows

Key = tuple[str, Optional[str], Optional[str], Optional[int], Optional[float]]  # quantity, selector, context, k, x
TOLERANCE = 0.05  # nats


def numbers_of(rows: Rows, manifest: dict[str, Any]) -> dict[Key, float]:
    """The value of every row of a frame, R(k) included."""
    windows, row_len = rows["windows"], manifest["context"]["train_len"]
    full, local = manifest["context"]["full_len"], manifest["context"]["local_len"]
    chosen: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows["selections"]:
        chosen.setdefault((row["selector"], row["context"], row["window_id"]), []).append(row)

    def mean(of: Callable[[dict[str, Any]], float]) -> float:
        return sum(w["weight"] * of(w) for w in windows) / sum(w["weight"] for w in windows)

    def column(name: str) -> float:
        return mean(lambda w: w[name])

    def last(n: int) -> float:
        return mean(lambda w: w["loss_last_nats"][w["last_n"].index(n)])

    short, no_gap, long = column("loss_short_nats"), column("loss_short_no_gap_nats"), column("loss_long_nats")
    long_gain = {"real": short - long, "null": short - column("null_loss_long_nats")}
    reaction = {"real": column("kl_short_nats"), "null": column("null_kl_short_nats")}
    of_window = {
        "loss_short_nats": short,
        "loss_short_no_gap_nats": no_gap,
        "gap_cost_nats": short - no_gap,
        "loss_long_nats": long,
        "long_gain_nats": long_gain["real"],
        "long_gain_no_gap_nats": no_gap - long,
        "gate_gain_nats": min(short, no_gap) - long,
        "null_long_gain_nats": long_gain["null"],
        "content_gain_nats": long_gain["real"] - long_gain["null"],
        "kl_short_nats": reaction["real"],
        "null_kl_short_nats": reaction["null"],
        "none_needed_share": mean(lambda w: w["kl_short_nats"] <= TOLERANCE),
        "null_none_needed_share": mean(lambda w: w["null_kl_short_nats"] <= TOLERANCE),
        "calibration_nats": column("entropy_short_nats") - short,
    }
    if row_len is not None and row_len < full:
        of_window["gain_beyond_nats"] = last(row_len) - long
    if row_len is not None:
        of_window["train_overlap_share"] = column("train_overlap")
    if windows[0]["resampled_target_ids"]:

        def optimism_all(w: dict[str, Any]) -> float:
            losses = zip(w["resampled_loss_short_nats"], w["resampled_loss_long_nats"], strict=True)
            return float(np.mean([before - after for before, after in losses])) + w["kl_short_to_long_nats"]

        of_window["optimism_all_nats"] = mean(optimism_all)
        of_window["corrected_gain_all_nats"] = long_gain["real"] - mean(optimism_all)
    found: dict[Key, float] = {(name, None, None, None, None): value for name, value in of_window.items()}
    for n in windows[0]["last_n"]:
        found["loss_last_nats", None, None, None, n] = last(n)
        found["gain_over_row_nats", None, None, None, n] = last(min(row_len or local, full)) - last(n)
    assert windows[0]["last_n"][-1] == full
    blends: dict[str, list[tuple[float, float]]] = {"real": [(0.0, 0.0)], "null": [(0.0, 0.0)]}
    for context, prefix in (("real", ""), ("null", "null_")):
        for b in range(9):
            recovered = 1 - mean(lambda w, b=b, of=f"{prefix}kl_damped_nats": w[of][b]) / reaction[context]
            gain = short - mean(lambda w, b=b, of=f"{prefix}loss_damped_nats": w[of][b])
            found["damped_recovered", None, context, None, (b + 1) / 10] = recovered
            found["damped_gain_nats", None, context, None, (b + 1) / 10] = gain
            blends[context].append((recovered, gain))
        blends[context].append((1.0, long_gain[context]))

    selectors = dict.fromkeys(row["selector"] for row in rows["selections"])
    ks = rows["selections"][0]["k"]
    for selector, context in ((name, context) for name in selectors for context in ("real", "null")):

        def of_k(name: str, at: int, context: str, selector: str = selector) -> float:
            """The mean over windows of the mean over draws."""
            return mean(lambda w: float(np.mean([row[name][at] for row in chosen[selector, context, w["window_id"]]])))

        def needs(tolerance: float, w: dict[str, Any], of: tuple[str, str] = (selector, context)) -> float:
            """The smallest sufficient k."""
            if w["kl_short_nats" if of[1] == "real" else "null_kl_short_nats"] <= tolerance:
                return 0
            (row,) = chosen[(*of, w["window_id"])]
            return next((k for k, kl in zip(ks, row["kl_sparse_nats"], strict=True) if kl <= tolerance), np.inf)

        for tolerance in (0.01, 0.05, 0.1, 0.5):
            for k in (0, *ks):
                share = mean(lambda w, k=k, tolerance=tolerance, needs=needs: needs(tolerance, w) <= k)
                found["spectrum_share", selector, context, k, tolerance] = share
        for at, k in enumerate(ks):
            gain = of_k("gain_sparse_nats", at, context)
            left = of_k("kl_sparse_nats", at, context)
            expected = float(np.interp(1 - left / reaction[context], *zip(*blends[context], strict=True)))
            numbers = {
                "gain_sparse_nats": gain,
                "recovered_fraction": gain / long_gain["real"],
                "prediction_recovered": 1 - left / reaction[context],
                "expected_gain_nats": expected,
                "gain_over_damping_nats": gain - expected,
                "sufficient_share": mean(lambda w, k=k, needs=needs: needs(TOLERANCE, w) <= k),
            }
            if "num_tokens" in rows["selections"][0]:
                numbers["mean_tokens"] = of_k("num_tokens", at, context)
            if selector != "random":
                over_random = gain - of_k("gain_sparse_nats", at, context, "random")
                numbers["gain_over_random_nats"] = over_random
            if context == "real":
                null = of_k("gain_sparse_nats", at, "null")
                numbers["excess_gain_nats"] = gain - null
                if selector != "random":
                    null_over_random = null - of_k("gain_sparse_nats", at, "null", "random")
                    numbers["excess_over_random_nats"] = over_random - null_over_random
            drawn = {"real": "resampled", "null": "null-resampled"}[context]
            if (selector, drawn, windows[0]["window_id"]) in chosen:
                optimism = of_k("gain_sparse_nats", at, drawn) + of_k("kl_short_to_sparse_nats", at, drawn)
                numbers["optimism_nats"], numbers["corrected_gain_nats"] = optimism, gain - optimism
            found |= {(name, selector, context, k, None): value for name, value in numbers.items()}
    return found


def as_dict(frame: pd.DataFrame, column: str = "value") -> dict[Key, float]:
    """A column of a frame by what its rows are of."""
    names = ("quantity", "selector", "context", "k", "x")
    return {
        tuple(None if pd.isna(row[name]) else row[name] for name in names): row[column]  # type: ignore[misc]
        for row in frame.to_dict("records")
    }
