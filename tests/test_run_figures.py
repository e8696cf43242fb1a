"""The figures of whole runs: drawn of real tables; told in one line where there are none."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import context_curve, planted, scale
from olmo_sparsity.config import Config, UserError, ValidationConfig
from olmo_sparsity.context_curve import measure_context_curve
from olmo_sparsity.influence import measure
from olmo_sparsity.validation import validate


@pytest.fixture(scope="module")
def runs(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that were measured in every way; the second calls itself larger."""
    folder = tmp_path_factory.mktemp("measured")
    first, second = (Path(shutil.copytree(tiny_run, folder / name, symlinks=True)) for name in ("one", "two"))
    manifest = (second / "manifest.json").read_text()
    before = next(line for line in manifest.splitlines() if "num_parameters" in line)
    (second / "manifest.json").write_text(manifest.replace(before, '"num_parameters": 9000000,'))
    settings = ValidationConfig(num_windows=21, k=[1, 2], selectors=["unmask-one", "random"], solver_steps=2)
    config = dataclasses.replace(tiny_config, validation=settings)
    for run in (first, second):
        measure(config, run)
        measure_context_curve(config, run)
    validate(config, first)
    return [first, second]


def test_pictures(runs: list[Path], tmp_path: Path) -> None:
    for draw in (context_curve.draw, planted.draw, scale.draw):
        for path in draw(runs, tmp_path):
            assert path.stat().st_size > 5000
    assert sorted(path.stem for path in tmp_path.glob("*.pdf")) == ["context-curve", "planted", "scale"]


def test_numbers_in_the_context_curve(runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(context_curve, "save", lambda figure, out, name: figures.append(figure) or [])
    context_curve.draw(runs, tmp_path)
    lines = [line for line in figures[0].axes[0].lines if len(line.get_xdata()) > 2]
    assert len(lines) == 2
    assert list(lines[0].get_xdata()) == [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40]
    assert list(lines[0].get_ydata()) == list(lines[1].get_ydata())  # one model under two names


def test_what_is_missing_or_cannot_be_compared(
    runs: list[Path], tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    for draw, said in (
        (context_curve.draw, "no context curve"),
        (planted.draw, "nothing has been validated"),
        (scale.draw, "nothing has been measured"),
    ):
        with pytest.raises(UserError, match=said):
            draw([tmp_path / "nowhere"], tmp_path)
    other = Path(shutil.copytree(tiny_run, tmp_path / "other", symlinks=True))
    fewer = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, num_windows=9))
    measure_context_curve(fewer, other)
    with pytest.raises(UserError, match="different windows"):
        context_curve.draw([runs[0], other], tmp_path)
    result = subprocess.run(
        [sys.executable, "-m", "analysis.scale", "--run", str(tmp_path / "nowhere")],
        capture_output=True, text=True, cwd=Path(scale.__file__).parent.parent,
    )  # fmt: skip
    assert result.returncode == 2
    assert "nothing has been measured" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
