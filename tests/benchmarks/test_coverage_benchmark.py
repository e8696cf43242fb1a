"""The simulation of coverage: its truths, the intervals that it computes itself, and its lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from benchmarks import coverage
from benchmarks.coverage import TEXTS, Text, linear_bounds, main, score


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text.name)
@pytest.mark.parametrize("more", [0.0, -0.5])
def test_the_true_share_is_that_of_many_windows(text: Text, more: float) -> None:
    rng, num = np.random.default_rng(0), 2_000_000
    z = rng.standard_normal(num) + coverage.SPREAD  # windows drawn in proportion to their unbounded reaction
    weight = text.reaction(z) / np.exp(coverage.SPREAD * z - coverage.SPREAD**2 / 2)
    left = text.left(z, rng.standard_normal(num), more)
    found = 1 - (weight * left).sum() / weight.sum()
    error = np.std(weight * (left - (1 - found))) / weight.mean() / np.sqrt(num)
    assert text.true_share(more) == pytest.approx(found, abs=4 * error)


def test_fieller_s_interval_ends_where_the_difference_from_a_multiple_is_just_not_shown() -> None:
    rng = np.random.default_rng(1)
    whole = rng.lognormal(0, 1, 80)
    left = whole * rng.uniform(0, 1, 80)
    for end in linear_bounds(left, whole)["Fieller"]:
        difference = left - (1 - end) * whole
        assert abs(scipy.stats.ttest_1samp(difference, 0).pvalue) == pytest.approx(0.05)


def test_a_missing_interval_covers_nothing() -> None:
    assert score([(0.0, 1.0), (0.6, 0.8), None, (0.5, 0.7)], 0.5) == coverage.Score(0.5, pytest.approx(0.2))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--documents 300 0", "--documents 0: an interval takes at least 2"),
        ("--experiments 150", "--experiments 150: 100 run at once; give a multiple of it"),
        ("--tables {tables} --k 99", "{tables}: it has no kl at k = 99; choose of: attention 1, attention 2, "),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(
    given: str, said: str, tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["coverage", *given.format(tables=tables).split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{said.format(tables=tables)}")


def test_lines_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(coverage, "TEXTS", TEXTS[-1:])
    monkeypatch.setattr(coverage, "NUM_WINDOWS", ("1 to 16",))
    monkeypatch.setattr(coverage, "NUM_RESAMPLES", 100)
    monkeypatch.setattr(sys, "argv", ["coverage", "--experiments", "100", "--documents", "60"])
    lines = []
    for _ in range(2):
        main()
        lines.append(capsys.readouterr().out.splitlines())
    assert lines[0] == lines[1] and len(lines[0]) == 2 + len(coverage.GROWING)
    assert re.fullmatch(
        r"spectrum, 1 to 16 windows a document, 60 documents: percentile 0\.\d+ \(1\.00\); band [01]\.\d+ \(1\.\d+\)",
        lines[0][1],
    )
    assert re.fullmatch(
        r"growth of \(0\.05, 0\.2\), 1 to 16 windows a document, 60 documents: choice, percentile .*; difference, exact [01]\.\d+"
        r" \(\d\.\d+\)",
        lines[0][2],
    )
    assert lines[0][0].startswith(
        "better, bounded, D = 0.74, 1 to 16 windows a document, 60 documents: D, percentile 0."
    )
