"""Percentile intervals by resampling documents one by one, and those of shares by their formula, for tests of estimates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats

from olmo_sparsity.statistics.intervals.estimate import Estimate


def totals_of_draws(values: Sequence[Any], doc_ids: Sequence[str]) -> np.ndarray:
    """Return the sums of each of the values over all windows, then over those of each resample of the documents, [V, 1 + X]."""
    names = list(pd.unique(pd.Series(doc_ids)))
    sums_VU = np.zeros((len(values), len(names)))
    for window, doc_id in enumerate(doc_ids):
        for v, values_W in enumerate(values):
            sums_VU[v, names.index(doc_id)] += float(values_W[window])
    draws_XU = np.random.default_rng(0).integers(0, len(names), (2000, len(names)))
    return np.column_stack([sums_VU.sum(axis=1), *(sums_VU[:, draw_U].sum(axis=1) for draw_U in draws_XU)])


def expected_of(quantity: Callable[..., np.ndarray], *values: Any, doc_ids: Sequence[str]) -> list[float]:
    """Return a function of sums over windows, and the ends of its interval."""
    mean, *drawn = quantity(*totals_of_draws([np.asarray(of, dtype=float) for of in values], doc_ids))
    return [float(mean), *np.quantile(drawn, [0.025, 0.975]).tolist()]


def expected_mean(values_W: Any, weights_W: Any, *, doc_ids: Sequence[str]) -> list[float]:
    """Return a weighted mean over windows, and the ends of its interval."""
    weighted = np.asarray(values_W, dtype=float) * np.asarray(weights_W)
    return expected_of(lambda of, weight: of / weight, weighted, weights_W, doc_ids=doc_ids)


def expected_share(is_in_W: Any, weights_W: Any, *, doc_ids: Sequence[str]) -> list[float]:
    """Return a share of the windows by weight, and the ends of its exact interval; some document must differ."""
    windows = pd.DataFrame({"doc_id": doc_ids, "whole": weights_W, "part": np.asarray(weights_W) * np.asarray(is_in_W)})
    of_documents = windows.groupby("doc_id").sum()
    share = of_documents["part"].sum() / of_documents["whole"].sum()
    variance = ((of_documents["part"] - share * of_documents["whole"]) ** 2).sum() / of_documents["whole"].sum() ** 2
    n = share * (1 - share) / variance
    beta, n_in, n_out = scipy.stats.beta, share * n, (1 - share) * n
    return [float(share), float(beta.ppf(0.025, n_in, n_out + 1)), float(beta.isf(0.025, n_in + 1, n_out))]


def numbers(estimate: Estimate | None) -> list[float]:
    """Return mean, low and high of an estimate with an interval."""
    assert estimate is not None and estimate.bounds is not None
    return [estimate.mean, *estimate.bounds]
