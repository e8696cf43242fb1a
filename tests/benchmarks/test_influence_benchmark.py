"""The influence benchmark: what captum is taken for, and what screening and bf16 change in a run."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import influence
from benchmarks.influence_methods import fastest_captum
from benchmarks.influence_precision import compare_precisions, open_run
from olmo_sparsity.config import Config
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.statistics.single.measurement import load


def test_the_reference_is_captum_at_its_best_with_all_logits() -> None:
    seconds = {
        "compact, fp32": [0.1],
        "captum, 8 a pass": [3.0, 2.0, 9.0],
        "captum, 64 a pass": [4.0, 5.0, 2.0],
        "captum, 8 a pass, last logits only": [1.0],
    }
    assert fastest_captum(seconds) == 3.0
    assert fastest_captum({**seconds, "captum, 64 a pass": [2.5]}) == 2.5


def test_a_run_is_measured_as_influence_measures_it_and_screening_leaves_tokens_out(
    bos_config: Config, bos_run: Path
) -> None:
    """With its BOS, and fewer candidates than long-range tokens."""
    settings = dataclasses.replace(bos_config.influence, selectors=["unmask-one", "kl"], k=[1])
    windows = load(measure(dataclasses.replace(bos_config, influence=settings), bos_run)).windows
    found = compare_precisions(*open_run(bos_run, len(windows)))
    long_gain = windows["gain_long_nats"].mean()
    assert found["bf16"]["long gain, fp32"] == pytest.approx(long_gain, abs=1e-6)
    num_long_range = bos_config.measured_lengths.num_long_range
    assert 0 < found["screen"] < num_long_range
    assert any(of_k < 1 for recall in found["recall_at_screen"].values() for of_k in recall.values())


def test_a_run_is_opened_before_anything_is_timed_and_does_not_change_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    timed: list[int] = []
    monkeypatch.setattr(
        influence, "compare", lambda *given, **named: timed.append(torch.get_num_threads()) or sys.exit()
    )
    monkeypatch.setattr(sys, "argv", ["influence", "--run", str(tmp_path / "nope"), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as error:
        influence.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert error.value.code == 2 and "nope/config.yaml: cannot read this configuration" in line
    assert timed == [] and not list(tmp_path.iterdir())
    threads = torch.get_num_threads()
    monkeypatch.setattr(influence, "open_run", lambda *given: torch.set_num_threads(threads + 1))
    with pytest.raises(SystemExit):
        influence.main()
    assert timed == [threads]
