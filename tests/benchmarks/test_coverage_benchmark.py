"""The simulation of coverage: its truths, what counts as covered, and its lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from benchmarks.coverage import SPREAD, TEXTS, Text, holds, main
from olmo_sparsity.statistics.intervals import Estimates


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
def test_the_true_d_is_that_of_many_windows(text: Text) -> None:
    rng, num = np.random.default_rng(0), 2_000_000
    z = rng.standard_normal(num) + SPREAD  # windows drawn in proportion to their unbounded reaction
    weight = text.reaction(z) / np.exp(SPREAD * z - SPREAD**2 / 2)
    left = text.left(z, rng.standard_normal(num))
    found = 1 - (weight * left).sum() / weight.sum()
    error = np.std(weight * (left - (1 - found))) / weight.mean() / np.sqrt(num)
    assert text.true_d() == pytest.approx(found, abs=4 * error)


def test_an_interval_holds_a_truth_between_its_ends_and_a_missing_one_holds_nothing() -> None:
    low, high = np.array([0.0, 0.6, np.nan, 0.5]), np.array([1.0, 0.8, np.nan, 0.7])
    is_in, width = holds(Estimates(low, low, high, low), 0.5)
    assert is_in.tolist() == [True, False, False, True]
    assert width.tolist() == pytest.approx([1.0, 0.2, np.nan, 0.2], nan_ok=True)
    both = Estimates(*(np.stack([of, of + 0.2], axis=1) for of in (low, low, high, low)))
    assert holds(both, np.array([0.5, 0.75]))[0].tolist() == [True, False, False, True]  # each of several at once


def lines_of(given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["coverage", *given.split()])
    main()
    return capsys.readouterr().out.splitlines()


def test_lines_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--experiments 100 --documents 60 --windows 4 --parts mean share band seeds"
    lines = lines_of(given, monkeypatch, capsys)
    assert lines == lines_of(given, monkeypatch, capsys)
    assert lines != lines_of(f"{given} --seed 1", monkeypatch, capsys)
    words = [word for line in lines for word in line.partition(": ")[2].split("; ")]
    found = {name: float(share) for name, share in re.findall(r"^(.*) ([\d.]+) \(", "\n".join(words), re.MULTILINE)}
    assert len(found) == 2 + 6 + 2 + 2
    assert found["gain, percentile"] > 0.85
    assert found["spectrum, band"] > 0.85 > found["spectrum, percentile"]


@pytest.mark.slow
def test_documents_of_a_measurement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = unlike_manifest()
    write_rows(tmp_path / "tables", manifest, unlike_rows(manifest))
    given = f"--experiments 100 --documents 60 --parts --tables {tmp_path / 'tables'}"
    lines = lines_of(given, monkeypatch, capsys)
    shares = dict(re.findall(r"of tables: (\w+) ([\d.]+)", "\n".join(lines)))
    assert {"long_gain_nats", "prediction_recovered", "gain_over_damping_nats"} <= set(shares)
    assert float(shares["long_gain_nats"]) >= 0.5
