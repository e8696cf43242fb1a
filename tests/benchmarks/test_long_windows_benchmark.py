"""The benchmark of long windows: its counts are known, and a run that was stopped goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks import long_windows
from benchmarks.long_windows import TensorMemory, exponents, run, small_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.storage.files import read_json


def test_exponents_are_slopes_of_logarithms() -> None:
    found = {
        size: {"tokens": 3.0 * size**2, "seconds": size**0.5, "peak_bytes": 2.0 * size, "largest_bytes": 7.0}
        for size in (8, 16, 32, 64)
    }
    found[8] = dict.fromkeys(found[8], 1e9)  # the smaller half does not count
    expected = {"tokens": 2.0, "seconds": 0.5, "peak_bytes": 1.0, "largest_bytes": 0.0}
    assert exponents(found) == pytest.approx(expected, abs=1e-9)
    assert exponents({8: found[8]}) == {}


def test_memory_is_of_the_tensors_that_live_at_once() -> None:
    weight = torch.zeros(5000, requires_grad=True)
    with TensorMemory() as memory:
        kept = weight[:1000] * 2  # of the weight, a view
        for _ in range(3):
            passing = torch.ones(500)
            passing = passing.view(10, 50).t() + 1
        del passing
        derivatives = torch.zeros(100)
    assert len(kept) + len(derivatives) == 1100
    assert (memory.largest, memory.peak) == (4000, 4000 + 2000 + 2000)


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
