"""The resampled targets of a measurement: labels drawn from the short-context prediction, which no long-range token informs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.lines import LineFit, line_of_sums
from olmo_sparsity.statistics.single.measurement import Measurement, window_rows
from olmo_sparsity.tables.reading import list_rows, read_parts, rows_by_choice


@dataclass(frozen=True)
class DrawnTargets:
    """Gains on the drawn labels of every window.

    Attributes:
        long_gain_WD: long gain on each drawn label, float32 [W, D]; D is the number of draws.
        sparse_gain_KWD: sparse gain of each selector that sees the target, float32 [K, W, D]; k as in the measurement.
    """

    long_gain_WD: np.ndarray
    sparse_gain_KWD: Mapping[str, np.ndarray]


def read_drawn_targets(folder: Path, measurement: Measurement) -> DrawnTargets:
    """Read the gains on drawn labels, part by part; rows W as in the measurement.

    Args:
        folder: the tables that the measurement was loaded from.
        measurement: names the windows, selectors and k.
    """
    num_windows, num_ks = len(measurement.windows), len(measurement.ks)
    long_gain_WD = np.empty((num_windows, 0), np.float32)
    columns = ["window_id", "resampled_loss_short_nats", "resampled_loss_long_nats"]
    for part in read_parts(folder, "windows", columns=columns):
        rows_w = window_rows(measurement.windows, part["window_id"])
        short_wD, long_wD = (list_rows(part[name]) for name in columns[1:])
        if not long_gain_WD.shape[1]:
            long_gain_WD = np.full((num_windows, short_wD.shape[1]), np.nan, np.float32)
        long_gain_WD[rows_w[rows_w >= 0]] = (short_wD - long_wD)[rows_w >= 0]
    gains_of: dict[str, np.ndarray] = {}
    columns = ["window_id", "selector", "context", "draw", "gain_sparse_nats"]
    for part in read_parts(folder, "selections", columns=columns):
        rows_R, draws_R = window_rows(measurement.windows, part["window_id"]), part["draw"].to_numpy()
        gains_RK = list_rows(part["gain_sparse_nats"])
        for selector, _, rows_r in rows_by_choice(part, contexts=("resampled",)):
            if selector not in measurement.selectors or not measurement.selectors[selector].sees_target:
                continue
            if selector not in gains_of:
                gains_of[selector] = np.full((num_ks, *long_gain_WD.shape), np.nan, np.float32)
            rows_r = rows_r[rows_R[rows_r] >= 0]
            gains_of[selector][:, rows_R[rows_r], draws_R[rows_r]] = gains_RK[rows_r].T
    return DrawnTargets(long_gain_WD, gains_of)


def fit_of_draws(measurement: Measurement, *, x_WD: np.ndarray, y_WD: np.ndarray) -> LineFit:
    """Return the line through the points of all draws; every draw has the weight of its window."""
    units = document_units(measurement.windows["doc_id"])
    weight_W1 = measurement.weights_W[:, None]
    x_WD, y_WD = x_WD.astype(np.float64), y_WD.astype(np.float64)
    values = {"n": np.ones_like(x_WD), "x": x_WD, "y": y_WD, "xx": x_WD**2, "yy": y_WD**2, "xy": x_WD * y_WD}
    sums = {name: units.sums((weight_W1 * value_WD).sum(axis=1)) for name, value_WD in values.items()}

    def line(totals: Mapping[Any, np.ndarray]) -> dict[str, np.ndarray]:
        return line_of_sums(totals["n"], **{name: totals[name] for name in ("x", "y", "xx", "yy", "xy")})

    return LineFit(**estimates(sums, line))
