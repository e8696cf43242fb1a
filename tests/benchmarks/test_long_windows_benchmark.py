"""The benchmark of long windows: its counts are known, and a run that was stopped goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import long_windows
from benchmarks.long_windows import exponents, run, small_model
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.storage.files import read_json


def test_exponents_are_slopes_of_logarithms() -> None:
    found = {size: {"tokens": 3.0 * size**2, "seconds": size**0.5, "largest_bytes": 7.0} for size in (8, 16, 32, 64)}
    found[8] = {"tokens": 1e9, "seconds": 1e9, "largest_bytes": 1e9}  # the smaller half does not count
    assert exponents(found) == pytest.approx({"tokens": 2.0, "seconds": 0.5, "largest_bytes": 0.0}, abs=1e-9)
    assert exponents({8: found[8]}) == {}


def test_tokens_are_those_of_the_definition_and_a_stopped_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = Evaluator(small_model(80), 8, batch_tokens=64)
    run(evaluator, tmp_path, sizes=[16, 32], quadratic_up_to=16)
    asked: list[int] = []
    original = long_windows.measure
    monkeypatch.setattr(long_windows, "measure", lambda *given: asked.append(given[2]) or original(*given))
    result = run(evaluator, tmp_path, sizes=[16, 32, 64], quadratic_up_to=16)
    assert asked == [64, 64]  # what is in the file is not measured again
    assert {size: values["tokens"] for size, values in result["questions"]["unmask-one"].items()} == {
        size: size * (8 + 1) for size in (16, 32, 64)
    }
    assert {size: values["tokens"] for size, values in result["questions"]["gradient"].items()} == {
        size: size + 3 * 8 for size in (16, 32, 64)
    }
    assert list(result["questions"]["mask-one"]) == [16]
    assert result["exponents"]["unmask-one"]["tokens"] == pytest.approx(1.0)
    assert read_json(tmp_path / "long_windows.json")["exponents"] == result["exponents"]
