"""The benchmark of controls measures more with each stage."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import controls, timing


def test_each_stage_runs_the_one_before_and_one_control_more(
    monkeypatch: pytest.MonkeyPatch, tiny_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(controls, "measure_context", lambda scores, settings: seen.append(",".join(settings.selectors)))
    monkeypatch.setattr(
        controls, "measure_windows", lambda *_, settings, **__: seen.append(f"draws={settings.resampled_draws}")
    )
    monkeypatch.setattr("sys.argv", ["controls", "--run", str(tiny_run), "--num-windows", "6", "--repeats", "1"])
    controls.main()
    (once, again) = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert once == again  # one round to warm up, one that is timed
    assert "random" not in once[0] and once[1].startswith(once[0].split(",")[0])
    assert set(once[1].split(",")) - set(once[0].split(",")) == {"random", "nearest"}
    assert once[2:] == [f"draws={i}" for i in range(len(once) - 2)]
    assert "times the first" in capsys.readouterr().out


def test_seconds_are_those_of_each_stage_without_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    durations = iter([100.0, 200.0, 1.0, 3.0, 2.0, 5.0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def stage() -> None:
        clock[0] += next(durations)

    seconds = controls.time_stages({"a": stage, "b": stage}, repeats=2, device=torch.device("cpu"))
    assert seconds == {"a": [1.0, 2.0], "b": [3.0, 5.0]}
