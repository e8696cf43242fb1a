"""How many targets need at most two tokens where every pair was unmasked: against the tables, row by row; how it is shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from olmo_sparsity.config import Config
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.pairs import ANY, PairSpectra, pair_spectra
from olmo_sparsity.statistics.single.spectrum import TOLERANCES, Curve
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.console import Form, print_summary

PAIRED = 20


@pytest.fixture(scope="module")
def tables(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    changes = {"num_windows": 24, "pairs_windows": PAIRED, "selectors": ["kl", "attention", "random"], "k": [1, 2, 4]}
    settings = dataclasses.replace(tiny_config.influence, resampled_draws=0, **changes)
    config = dataclasses.replace(tiny_config, influence=settings)
    return measure(config, tiny_run, out=tmp_path_factory.mktemp("pairs") / "tables")


@pytest.fixture(scope="module")
def measurement(tables: Path) -> Measurement:
    return load(tables)


@pytest.fixture(scope="module")
def tolerances(measurement: Measurement) -> list[float]:
    """Tolerances at which the tiny model's targets differ."""
    return np.quantile(measurement.windows["kl_short_nats"], [0.2, 0.5, 0.8]).astype(float).tolist()


@pytest.fixture(scope="module")
def found(tables: Path, measurement: Measurement, tolerances: list[float]) -> PairSpectra:
    spectra = pair_spectra(tables, measurement, tolerances=tolerances)
    assert spectra is not None
    return spectra


def test_shares_are_those_of_the_paired_windows(
    tables: Path, measurement: Measurement, tolerances: list[float], found: PairSpectra
) -> None:
    windows = measurement.windows.set_index("window_id")
    least = {(row["window_id"], row["context"]): row for row in read_table(tables, "pairs").to_pylist()}
    assert found.num_windows == PAIRED and found.num_documents == windows.loc[range(PAIRED), "doc_id"].nunique()
    seen = set()
    for context, column in (("real", "kl_short_nats"), ("null", "null_kl_short_nats")):
        for tolerance in tolerances:
            weight = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
            for w in range(PAIRED):
                row = least[w, context]
                enough = [float(windows.loc[w, column]), row["kl_single_nats"], row["kl_pair_nats"], 0.0]
                weight[next(k for k, delta in enumerate(enough) if delta <= tolerance)] += windows.loc[w, "weight"]
            total = sum(weight.values())
            spectrum = found.by_curve[Curve(ANY, context, tolerance)]
            expected = [(weight[0]) / total, (weight[0] + weight[1]) / total, 1 - weight[3] / total]
            assert [share.mean for share in spectrum.shares] == pytest.approx(expected)
            seen |= {k for k, of in weight.items() if of}
            for family in ("kl", "attention", "random"):
                other = found.by_curve[Curve(family, context, tolerance)]
                assert other.ks == (0, 1, 2)
                for of_choice, exact in zip(other.shares, spectrum.shares, strict=True):
                    assert of_choice.mean <= exact.mean + 1e-12
            at_1 = found.by_curve[Curve("kl", context, tolerance)].at_most(1)
            assert at_1 is not None and at_1.mean == pytest.approx(
                spectrum.shares[1].mean
            )  # the best single is its first
    assert seen == {0, 1, 2, 3}


def test_other_windows_do_not_count(tables: Path, measurement: Measurement, tolerances: list[float]) -> None:
    chosen = pair_spectra(tables, measurement.restrict(np.arange(24) >= 18), tolerances=tolerances)
    assert chosen is not None and chosen.num_windows == PAIRED - 18


def test_summary_shows_them(tables: Path, measurement: Measurement, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(tables)
    text = " ".join(capsys.readouterr().out.split())
    assert "every pair: share of the targets that need at most k tokens, within 0.05 nats" in text
    assert f"{PAIRED} windows of " in text and ANY in text
    print_summary(tables, form=Form.json)
    shown = json.loads(capsys.readouterr().out)["pairs"]
    spectra = pair_spectra(tables, measurement)
    assert spectra is not None and shown["num_windows"] == PAIRED
    for entry in shown["curves"]:
        key = Curve(entry["family"], entry["context"], entry["tolerance_nats"])
        shares = spectra.by_curve[key].shares
        assert [share["mean"] for share in entry["shares"]] == pytest.approx([share.mean for share in shares])
    assert {entry["tolerance_nats"] for entry in shown["curves"]} == set(TOLERANCES)
