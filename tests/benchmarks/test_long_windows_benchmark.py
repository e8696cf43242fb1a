"""The benchmark of long windows: its counts are known, and a run that was stopped goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import transformers_models

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
    run(evaluator, tmp_path, weights="random", sizes=[16, 32], quadratic_up_to=16)
    asked: list[int] = []
    original = long_windows.measure
    monkeypatch.setattr(long_windows, "measure", lambda *given: asked.append(given[2]) or original(*given))
    result = run(evaluator, tmp_path, weights="random", sizes=[16, 32, 64], quadratic_up_to=16)
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


def test_a_folder_holds_one_model_in_one_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of models with the same vocabulary, too; what it holds stays."""
    for layers in (1, 2):
        transformers_models.save(tmp_path / f"layers{layers}", num_hidden_layers=layers)

    def measure(layers: int, *options: str) -> None:
        given = ["--model", str(tmp_path / f"layers{layers}"), "--out", str(tmp_path / "out"), "--local-len", "4"]
        monkeypatch.setattr(sys, "argv", ["long_windows", *given, "--sizes", "8", *options])
        long_windows.main()

    measure(1)
    known = (tmp_path / "out" / "long_windows.json").read_text()
    capsys.readouterr()
    for layers, options, name in ((2, (), "weights"), (1, ("--visibility", "contextual"), "visibility")):
        with pytest.raises(SystemExit) as error:
            measure(layers, *options)
        (line,) = capsys.readouterr().err.splitlines()
        assert error.value.code == 2 and f"it holds results with {name} = " in line
    assert (tmp_path / "out" / "long_windows.json").read_text() == known
