"""Correlation and slopes of a cloud of points, computed from sums, so that they can be bootstrapped.

In Figure 4 each point is a window: the sparse gain across, the long gain up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.statistics.intervals.estimate import Estimate


@dataclass(frozen=True)
class LineFit:
    """Line through a cloud of points; a field is None where it is undefined.

    Attributes:
        ols_slope: slope of the ordinary least squares fit of y on x. Noise in x pulls it towards 0.
        tls_slope: slope of the total least squares fit.
        correlation: Pearson's correlation of x and y.
    """

    ols_slope: Optional[Estimate]
    tls_slope: Optional[Estimate]
    correlation: Optional[Estimate]


def _variance(sum_x: np.ndarray, sum_xx: np.ndarray, *, n: np.ndarray) -> np.ndarray:
    """Return the variance, 0 where it is only rounding error."""
    variance = sum_xx / n - (sum_x / n) ** 2
    return np.where(variance > 1e-12 * (sum_xx / n), variance, 0.0)


def line_of_sums(
    n: np.ndarray, *, x: np.ndarray, y: np.ndarray, xx: np.ndarray, yy: np.ndarray, xy: np.ndarray
) -> dict[str, np.ndarray]:
    """Return correlation and slopes of y on x from the (weighted) sums of n points; NaN where undefined.

    ``ols_slope`` is ``Sxy / Sxx``. ``tls_slope`` belongs to the line through the mean with the smallest sum of squared
    orthogonal distances. That line has the direction of the first eigenvector of the covariance matrix, whose slope is
    ``(Syy - Sxx + root) / (2 Sxy)`` with ``root = sqrt((Syy - Sxx)^2 + 4 Sxy^2)``, or, equal to it and exact where Sxy is
    small, ``2 Sxy / (Sxx - Syy + root)``. For a nearly round or upright cloud the direction is unstable and the interval wide.
    Without variance in x there is no slope; without variance in x or y there is no correlation.

    Args:
        n: number of points, or the sum of their weights, float [...].
        x: sum of x, float [...].
        y: sum of y, float [...].
        xx: sum of x squared, float [...].
        yy: sum of y squared, float [...].
        xy: sum of x times y, float [...].

    Returns:
        name of a field of ``LineFit`` -> float [...].
    """
    sxx, syy = _variance(x, xx, n=n), _variance(y, yy, n=n)
    sxy = np.where((sxx > 0) & (syy > 0), xy / n - (x / n) * (y / n), 0.0)
    root = np.hypot(syy - sxx, 2 * sxy)
    tls = np.where(sxx >= syy, 2 * sxy / (sxx - syy + root), (syy - sxx + root) / (2 * sxy))
    return {
        "ols_slope": sxy / sxx,
        "tls_slope": np.where(sxx > 0, tls, np.nan),
        "correlation": sxy / np.sqrt(sxx * syy),
    }
