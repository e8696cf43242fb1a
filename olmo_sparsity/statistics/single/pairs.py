"""How many targets need at most two tokens, whatever the choice: exactly, where every token and every pair was unmasked.

It bounds the dependency spectrum from below. What a selector needs (``statistics.single.spectrum``) bounds it from above.

Letters of shapes: W windows, w those whose pairs were measured; U bootstrap units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from olmo_sparsity.statistics.intervals.bands import share_bands
from olmo_sparsity.statistics.intervals.bootstrap import document_units
from olmo_sparsity.statistics.single.measurement import CONTEXTS, SHORT_DIVERGENCE, Measurement
from olmo_sparsity.statistics.single.spectrum import TOLERANCES, Curve, Spectrum, sufficient_k, sufficient_ks
from olmo_sparsity.tables.reading import read_table

ANY = "any choice"  # the family of the best of all sets of one token, and of two
LARGEST_SET = 2  # tokens of which every set was unmasked


@dataclass(frozen=True)
class PairSpectra:
    """The spectra up to two tokens, of the windows whose pairs were measured.

    Attributes:
        num_windows: number of these windows.
        num_documents: number of their documents.
        by_curve: of ``ANY``, and of every measured family at its measured k up to two.
    """

    num_windows: int
    num_documents: int
    by_curve: dict[Curve, Spectrum]


def pair_spectra(
    folder: Path, measurement: Measurement, *, tolerances: Sequence[float] = TOLERANCES
) -> Optional[PairSpectra]:
    """Return how many targets need at most two tokens, weighted as the windows are; None where no pairs were measured.

    Args:
        folder: the influence folder.
        measurement: its numbers.
        tolerances: in nats.

    Raises:
        UserError: the table is missing or damaged.
    """
    if not measurement.manifest.get("influence", {}).get("pairs_windows", 0):
        return None
    frame = read_table(folder, "pairs", columns=["window_id", "context", "kl_single_nats", "kl_pair_nats"]).to_pandas()
    ids_W = measurement.windows["window_id"]
    frame = frame[frame["window_id"].isin(ids_W)].sort_values("window_id")
    restricted = measurement.restrict(ids_W.isin(frame["window_id"]).to_numpy())
    needs = dict(sufficient_ks(restricted, tolerances=tolerances))
    ks = {curve: (0, *(k for k in restricted.ks if k <= LARGEST_SET)) for curve in needs}
    for context in CONTEXTS:
        least_w2 = frame.loc[frame["context"] == context, ["kl_single_nats", "kl_pair_nats"]].to_numpy(np.float64)
        short_w = restricted.windows[SHORT_DIVERGENCE[context]].to_numpy(np.float64)
        for tolerance in tolerances:
            curve = Curve(ANY, context, tolerance)
            needs[curve] = sufficient_k(least_w2, short_w, ks=(1, LARGEST_SET), tolerance=tolerance)
            ks[curve] = (0, 1, LARGEST_SET)
    units, weights_w = document_units(restricted.windows["doc_id"]), restricted.weights_W
    parts = {curve: np.stack([units.sums(weights_w * (needs[curve] <= k)) for k in ks[curve]]) for curve in needs}
    bands = share_bands(parts, units.sums(weights_w))
    by_curve = {curve: Spectrum(curve, ks[curve], shares) for curve, shares in bands.items()}
    return PairSpectra(len(restricted.windows), restricted.num_documents, by_curve)
