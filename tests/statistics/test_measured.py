"""A measurement to show, and the tokenizer beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import made_up_tables
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from olmo_sparsity.statistics.single.breakdowns import by_class, by_distance
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measured_tokenizer import tokenizer_of, window_texts
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.spectrum import Curve, spectra
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import sha256_text


def test_what_is_shown_of_a_measurement_is_of_it(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "tables", selectors=["kl", "random"])
    measured, measurement = Measured.read(tables), load(tables)
    assert (measured.tables, measured.summary) == (tables, summarize(measurement))
    assert measured.classes == by_class(measurement, measured.summary)
    assert measured.distances == by_distance(tables, measurement)
    assert measured.spectra == spectra(measurement)
    windows = measurement.windows
    assert set(measured.spectra_of_classes) == set(windows["target_class"])
    for name, found in measured.spectra_of_classes.items():
        assert {curve.tolerance_nats for curve in found.by_curve} == {0.05}
        needs_none = (windows["kl_short_nats"] <= 0.05)[windows["target_class"] == name]
        assert found.by_curve[Curve("kl", "real", 0.05)].none_needed.mean == pytest.approx(needs_none.mean())


def test_the_tokenizer_is_that_of_the_run_if_it_is_the_one_that_measured(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    known = {"tokenizer_sha256": sha256_text(tokenizer.to_str())}
    for name, entries in (("same", known), ("other", {"tokenizer_sha256": "0" * 64}), ("unknown", {})):
        made_up_tables(tmp_path / "run" / "influence" / name, 3, setup=entries, selectors=["random"])
        assert tokenizer_of(tmp_path / "run" / "influence" / name) is None  # no tokenizer lies beside it
    tokenizer.save(str(tmp_path / "run" / "tokenizer.json"))
    found = {name: tokenizer_of(tmp_path / "run" / "influence" / name) for name in ("same", "other", "unknown")}
    assert found["same"] is not None and found["same"].to_str() == tokenizer.to_str()
    assert found["other"] is found["unknown"] is None
    elsewhere = made_up_tables(tmp_path / "elsewhere", 3, setup=known, selectors=["random"])
    assert tokenizer_of(elsewhere) is None


def test_texts_of_a_window_end_with_its_target() -> None:
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    row = {"token_texts": ["x", "y"], "target_text": "z", "token_ids": [1, 0], "target_id": 2}
    assert window_texts(row, None) == ["x", "y", "z"]
    assert [text.strip() for text in window_texts(row, tokenizer)] == ["b", "a", "c"]
