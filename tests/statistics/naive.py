"""Every number of a measurement by loops over its windows, and every interval by loops over its documents, as defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pandas as pd
import scipy.stats
from unlike_tables import Rows

Key = tuple[str, Optional[str], Optional[str], Optional[int], Optional[float]]  # quantity, selector, context, k, x
TOLERANCE = 0.05  # nats


def numbers_of(rows: Rows, manifest: dict[str, Any]) -> dict[Key, Any]:
    """The value of every row of a frame, R(k) included; an array of them where each weight of a window is one."""
    windows, row_len = rows["windows"], manifest["context"]["train_len"]
    full, local = manifest["context"]["full_len"], manifest["context"]["local_len"]
    chosen: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for row in rows["selections"]:
        chosen.setdefault((row["selector"], row["context"], row["window_id"]), []).append(row)

    def mean(of: Callable[[dict[str, Any]], float]) -> Any:
        return sum(w["weight"] * of(w) for w in windows) / sum(w["weight"] for w in windows)

    def column(name: str) -> Any:
        return mean(lambda w: w[name])

    def last(n: int) -> Any:
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
        "gate_gain_nats": np.minimum(short, no_gap) - long,
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
    found: dict[Key, Any] = {(name, None, None, None, None): value for name, value in of_window.items()}
    for n in windows[0]["last_n"]:
        found["loss_last_nats", None, None, None, n] = last(n)
        found["gain_over_row_nats", None, None, None, n] = last(min(row_len or local, full)) - last(n)
    assert windows[0]["last_n"][-1] == full
    blends: dict[str, list[tuple[Any, Any]]] = {"real": [(0.0, 0.0)], "null": [(0.0, 0.0)]}
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

        def of_k(name: str, at: int, context: str, selector: str = selector) -> Any:
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
            expected = between(1 - left / reaction[context], blends[context])
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


def between(at: Any, points: list[tuple[Any, Any]]) -> Any:
    """What lies between the points at a place, or at each of several places."""
    xs, ys = ([np.ravel(np.broadcast_to(point[i], np.shape(at))) for point in points] for i in (0, 1))
    found = [np.interp(one, *of) for one, *of in zip(np.ravel(at), np.array(xs).T, np.array(ys).T, strict=True)]
    return np.reshape(found, np.shape(at))[()]


def korn_graubard(part_U: np.ndarray, whole_U: np.ndarray) -> tuple[float, float, float, np.ndarray]:
    """A share, the ends of its interval, and what each document adds to it."""
    share = part_U.sum() / whole_U.sum()
    rest = np.array([(part - share * whole) / whole_U.sum() for part, whole in zip(part_U, whole_U, strict=True)])
    number = share * (1 - share) / sum(rest**2) if rest.any() else whole_U.sum() ** 2 / sum(whole_U**2)
    low = scipy.stats.beta.ppf(0.025, share * number, number - share * number + 1) if share else 0.0
    return share, low, scipy.stats.beta.isf(0.025, share * number + 1, number - share * number), rest


def bootstrap_t(left_U: np.ndarray, whole_U: np.ndarray, draws: np.ndarray) -> tuple[float, float]:
    """The ends of the interval of 1 - left / whole: each resample has a standard error of its own, that of a logarithm."""

    def ratio(draw: np.ndarray) -> tuple[float, float]:
        left, whole = left_U[draw], whole_U[draw]
        share = left.sum() / whole.sum()
        return share, np.sqrt(((left - share * whole) ** 2).sum()) / whole.sum() / share

    share, error = ratio(np.arange(len(whole_U)))
    size = np.quantile([abs(np.log(of / share)) / of_error for of, of_error in map(ratio, draws)], 0.95)
    return 1 - share * np.exp(size * error), 1 - share * np.exp(-size * error)


def as_dict(frame: pd.DataFrame, column: str = "value") -> dict[Key, float]:
    """A column of a frame by what its rows are of."""
    names = ("quantity", "selector", "context", "k", "x")
    return {
        tuple(None if pd.isna(row[name]) else row[name] for name in names): row[column]  # type: ignore[misc]
        for row in frame.to_dict("records")
    }
