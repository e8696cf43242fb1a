from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from olmo_sparsity.statistics import (
    Measurement,
    document_sums,
    gate_of,
    gate_words,
    length_words,
    ratio_estimates,
    summarize,
)

CONTEXT = {"local_len": 16, "full_len": 48, "train_len": 32, "num_long_range": 32, "max_position": 64, "num_chunks": 2}


def made_up(num_documents: int, long_gain: float, seed: int = 0, luck: float = 0.3, signal: float = 0.2) -> Measurement:
    """Windows whose gains are known: sparse gain = luck (+ signal under the real context), each with noise."""
    rng = np.random.default_rng(seed)
    per_document = rng.integers(1, 4, num_documents)
    document = np.repeat(np.arange(num_documents), per_document)
    num = len(document)
    shift = rng.normal(0, 0.3, num_documents)[document]  # windows of one document are alike
    gain = long_gain + shift + rng.normal(0, 0.5, num)
    windows = pd.DataFrame(
        {"window_id": np.arange(num), "doc_id": [f"{d:016x}" for d in document], "loss_short_nats": 4.0 + shift}
    )
    windows["loss_long_nats"] = windows["loss_short_nats"] - gain
    windows["gain_long_nats"] = gain
    windows["null_gain_long_nats"] = -0.1 + rng.normal(0, 0.5, num)
    rows = []
    for k in (1, 4):
        for context in ("real", "null"):
            values = luck * k + (signal if context == "real" else 0) + shift + rng.normal(0, 0.1, num)
            rows += [
                {"window_id": i, "selector": "unmask-one", "context": context, "k": k, "gain_sparse_nats": value}
                for i, value in enumerate(values)
            ]
    order = rng.permutation(len(rows))
    facts: dict[str, Any] = {"context": CONTEXT, "source": "s", "split": "validation", "run": "r", "run_id": "0"}
    return Measurement(windows, pd.DataFrame([rows[i] for i in order]), facts)


def test_means_and_ratios_of_means_by_brute_force() -> None:
    measurement = made_up(300, long_gain=0.4)
    summary = summarize(measurement)
    windows, selections = measurement.windows, measurement.selections
    assert summary["num_windows"] == len(windows)
    assert summary["num_documents"] == 300
    assert summary["long_gain_nats"]["mean"] == pytest.approx(windows["gain_long_nats"].mean())
    assert summary["loss_short_nats"]["mean"] == pytest.approx(windows["loss_short_nats"].mean())
    for entry in summary["selections"]:
        of = selections[(selections["context"] == entry["context"]) & (selections["k"] == entry["k"])]
        gain = of["gain_sparse_nats"].mean()
        assert entry["gain_sparse_nats"]["mean"] == pytest.approx(gain)
        assert entry["recovered_fraction"]["mean"] == pytest.approx(gain / windows["gain_long_nats"].mean())
        null = selections[(selections["context"] == "null") & (selections["k"] == entry["k"])][
            "gain_sparse_nats"
        ].mean()
        if entry["context"] == "real":
            assert entry["excess_gain_nats"]["mean"] == pytest.approx(gain - null)
            assert entry["excess_recovered_fraction"]["mean"] == pytest.approx(
                (gain - null) / windows["gain_long_nats"].mean()
            )
        else:
            assert entry["excess_gain_nats"] is None


def test_excess_is_paired_and_finds_the_planted_signal() -> None:
    entries = summarize(made_up(400, long_gain=0.4))["selections"]
    for entry in entries:
        if entry["context"] == "real":
            excess, gain = entry["excess_gain_nats"], entry["gain_sparse_nats"]
            assert abs(excess["mean"] - 0.2) < excess["high"] - excess["low"]  # four standard errors
            assert excess["high"] - excess["low"] < 0.5 * (gain["high"] - gain["low"])


def test_the_gate_hides_fractions_and_says_so_in_words() -> None:
    failed = summarize(made_up(200, long_gain=0.0))
    assert failed["gate"] == "failed"
    assert all(e["recovered_fraction"] is None for e in failed["selections"])
    assert all(e["excess_recovered_fraction"] is None for e in failed["selections"])
    assert all(e["gain_sparse_nats"] is not None for e in failed["selections"])
    assert "GATE FAILED" in gate_words(failed)
    passed = summarize(made_up(200, long_gain=0.5))
    assert passed["gate"] == "passed"
    assert "passed" in gate_words(passed)


@pytest.mark.parametrize(("low", "gate"), [(0.01, "passed"), (0.0, "failed"), (-0.01, "failed"), (None, "failed")])
def test_gate_of(low: float | None, gate: str) -> None:
    assert gate_of({"mean": 0.02, "low": low, "high": 0.03}) == gate


@pytest.mark.parametrize("num_documents", [1, 2, 19])
def test_few_documents_have_no_interval_and_fail(num_documents: int) -> None:
    summary = summarize(made_up(num_documents, long_gain=5.0))
    assert summary["long_gain_nats"]["low"] is None
    assert summary["gate"] == "failed"
    assert "fewer than 20 documents" in gate_words(summary)


def test_the_gate_of_a_model_without_long_gain_passes_as_rarely_as_it_should() -> None:
    rng = np.random.default_rng(5)
    passed = sum(
        gate_of(ratio_estimates(rng.normal(0, 1, (1, 20)), np.ones((1, 20)))[0]) == "passed" for _ in range(200)
    )
    assert passed <= 16  # 2.5% of 200 is 5; with 2 documents it would be about 44


def test_how_much_lies_beyond_training_is_said() -> None:
    assert "only 16 of the 48 tokens lie beyond" in length_words({**CONTEXT})
    assert "all 32 long-range tokens lie beyond" in length_words({**CONTEXT, "train_len": 16})
    assert "PoSE positions below 64" in length_words({**CONTEXT})
    assert "ordinary positions, no PoSE" in length_words({**CONTEXT, "num_chunks": 1})


def test_the_interval_is_the_textbook_one_for_a_mean_over_independent_documents() -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, 1500)
    (estimate,) = ratio_estimates(values[None], np.ones((1, 1500)))
    half = 1.96 * values.std(ddof=1) / np.sqrt(1500)
    assert estimate["low"] == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert estimate["high"] == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_dependent_windows_widen_the_interval_as_they_should() -> None:
    rng = np.random.default_rng(1)
    of_document = rng.normal(0, 1, 400)
    codes = np.repeat(np.arange(400), 5)
    sums, ones = (document_sums(v, codes, 400) for v in (of_document[codes], np.ones(2000)))
    (by_document,) = ratio_estimates(sums[None], ones[None])
    (by_window,) = ratio_estimates(of_document[codes][None], np.ones((1, 2000)))
    widths = [e["high"] - e["low"] for e in (by_document, by_window)]  # type: ignore[operator]
    assert widths[0] / widths[1] == pytest.approx(np.sqrt(5), rel=0.1)
