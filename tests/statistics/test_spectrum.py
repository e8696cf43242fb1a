"""The smallest sufficient k of every target, the shares of targets, and their bands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from unlike_tables import KS, M, unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.statistics.frames import Frames, read_frames
from olmo_sparsity.statistics.quantities import estimate
from olmo_sparsity.statistics.spectrum import TOLERANCES, sufficient_k

MANIFEST = unlike_manifest()


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    rows = unlike_rows(MANIFEST, num_documents=80)
    return read_frames(write_rows(tmp_path_factory.mktemp("tables"), MANIFEST, rows))


def test_first_passage(frames: Frames) -> None:
    """A set that suffices suffices for good: a larger one that moves the prediction away again does not count."""
    divergence = frames.divergence.copy()
    rows = frames.rows("kl", "real")
    cases = [(0.3, 0.04, 0.2), (0.3, 0.2, 0.05), (0.3, 0.2, 0.06), (0.02, 0.3, 0.3)]
    for window, of in enumerate(cases):
        divergence[rows, window] = of
    reaction = frames.windows["kl_short_nats"].to_numpy().copy()
    reaction[: len(cases) + 1] = [0.4, 0.4, 0.4, 0.4, 0.05]
    changed = replace(frames, divergence=divergence, windows=frames.windows.assign(kl_short_nats=reaction))
    found = sufficient_k(changed)
    of = found[(found["selector"] == "kl") & (found["context"] == "real")]
    assert of.loc[of["tolerance_nats"] == 0.05, "k"].iloc[:5].tolist() == [KS[1], KS[2], np.inf, KS[0], 0]
    assert of.loc[of["tolerance_nats"] == 0.5, "k"].iloc[:5].tolist() == [0, 0, 0, 0, 0]
    assert set(found["max_k"]) == {KS[-1]}
    assert len(found) == len(frames.windows) * len(TOLERANCES) * 4 * 2
    names = "window_id doc_id weight target_class selector context tolerance_nats k max_k"
    assert found.columns.tolist() == names.split() and found.index.is_unique


def test_bands_by_hand(frames: Frames) -> None:
    """Sup-t: as many standard errors as 95% of the resamples stay within at every k; each end is an exact binomial one."""
    found = estimate(frames)
    found = found[found["quantity"].eq("spectrum_share") & found["selector"].eq("kl") & found["context"].eq("real")]
    found = found[found["x"] == 0.1].sort_values("k")
    targets = sufficient_k(frames)
    targets = targets[targets["selector"].eq("kl") & targets["context"].eq("real") & targets["tolerance_nats"].eq(0.1)]
    documents = targets["doc_id"].unique()
    weight = np.array([targets.loc[targets["doc_id"] == name, "weight"].sum() for name in documents])
    draws = np.random.default_rng(0).integers(0, 80, (2000, 80))
    resampled = []
    for k in (0, *KS):
        is_in = targets[targets["k"] <= k]
        part = np.array([is_in.loc[is_in["doc_id"] == name, "weight"].sum() for name in documents])
        resampled.append(part[draws].sum(axis=1) / weight[draws].sum(axis=1))
    values, errors = found["value"].to_numpy(), np.std(resampled, axis=1, ddof=1)
    away = np.abs(np.array(resampled) - values[:, None]) / errors[:, None]
    size = np.quantile(away.max(axis=0), 0.95)
    assert size > 1.96
    tail, number = scipy.stats.norm.sf(size), values * (1 - values) / errors**2
    low = scipy.stats.beta.ppf(tail, values * number, number - values * number + 1)
    high = scipy.stats.beta.isf(tail, values * number + 1, number - values * number)
    assert found["low"].to_numpy() == pytest.approx(np.maximum.accumulate(low))
    assert found["high"].to_numpy() == pytest.approx(np.minimum.accumulate(high[::-1])[::-1])
    assert found["se"].to_numpy() == pytest.approx(errors)


def test_all_tokens_suffice_by_definition(tmp_path: Path) -> None:
    rows = unlike_rows(MANIFEST, ks=(1, M))
    for row in rows["selections"]:
        if row["kl_sparse_nats"] is not None:
            row["kl_sparse_nats"][1] = 0.0
    table = estimate(read_frames(write_rows(tmp_path, MANIFEST, rows)))
    spectrum = table[table["quantity"] == "spectrum_share"]
    ends = spectrum.loc[spectrum["k"] == M, ["value", "low", "high", "se"]].to_numpy()
    assert (ends == [1, 1, 1, 0]).all()
    assert (spectrum.loc[spectrum["k"] == 1, "low"] < 1).all()


def test_a_share_of_one_at_fewer_tokens_is_an_estimate(frames: Frames) -> None:
    table = estimate(replace(frames, divergence=np.zeros_like(frames.divergence)))
    spectrum = table[(table["quantity"] == "spectrum_share") & (table["k"] == KS[-1])]
    assert (spectrum["value"] == 1).all()
    sizes = frames.windows.groupby("doc_id")["weight"].sum()
    number = sizes.sum() ** 2 / (sizes**2).sum()  # of equal documents
    assert (spectrum["low"] <= scipy.stats.beta.ppf(0.025, number, 1) + 1e-9).all()


@pytest.mark.parametrize("num", [49, 50])
def test_fewer_than_50_documents_have_no_band(num: int, tmp_path: Path) -> None:
    table = estimate(read_frames(write_rows(tmp_path, MANIFEST, unlike_rows(MANIFEST, num_documents=num))))
    ends = table.loc[table["quantity"] == "spectrum_share", ["low", "high", "se"]]
    assert (ends.isna() if num < 50 else ends.notna()).all(axis=None)
