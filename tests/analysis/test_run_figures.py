"""The figures of whole runs, drawn from real tables; a message of one line if there are none."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from drawn_figures import figures_of
from matplotlib.figure import Figure
from typer.testing import CliRunner

from analysis import compare, context_curve, hypothesis, training
from analysis.drawing import mistakes_in_one_line
from analysis.style import RUN_LOOKS
from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.context_curve import measure_context_curve
from olmo_sparsity.statistics.curves import context_curve as curve_numbers
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.hypothesis import (
    THIRDS,
    Analysis,
    Contrasts,
    SparsityAndGain,
    ThirdOfTargets,
)
from olmo_sparsity.statistics.single.measurement import Lengths
from olmo_sparsity.tables.parts import part_path, write_parquet
from olmo_sparsity.tables.reading import list_finished
from olmo_sparsity.wording.setup import short_positions_words


def with_windows_of_many_documents(config: Config, **influence: Any) -> Config:
    """Return the configuration with a window of every document, so that there are enough for intervals."""
    return dataclasses.replace(
        config, influence=dataclasses.replace(config.influence, max_windows_per_document=1, **influence)
    )


@pytest.fixture(scope="module")
def runs(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with context curves; the losses of the second are half a nat higher."""
    folder = tmp_path_factory.mktemp("measured")
    first, second = (Path(shutil.copytree(tiny_run, folder / name, symlinks=True)) for name in ("one", "two"))
    config = with_windows_of_many_documents(tiny_config)
    for run in (first, second):
        measure_context_curve(config, run)
    part = part_path(list_finished(second, "context-curve")[-1], "curve", part=0)
    table = pq.read_table(part)
    field = table.schema.field("loss_nats")
    losses = pa.array([[loss + 0.5 for loss in row] for row in table["loss_nats"].to_pylist()], field.type)
    write_parquet(table.set_column(table.schema.get_field_index("loss_nats"), field, losses), part)
    return [first, second]


def drawn(module: ModuleType, runs: list[Path]) -> Figure:
    (figure,) = figures_of(module.draw(runs))
    return figure


def test_numbers_in_the_context_curve(runs: list[Path]) -> None:
    """The losses of the second run are half a nat higher: each line must show its own run."""
    figure = drawn(context_curve, runs)
    for panel in (0, 1):
        lines = [line for line in figure.axes[panel].lines if len(line.get_xdata()) == 12]
        assert len(lines) == 2
        for line, run in zip(lines, runs, strict=True):
            points = curve_numbers(list_finished(run, "context-curve")[-1]).points
            assert list(line.get_xdata()) == [point.num_visible_tokens for point in points]
            values = [(point.loss_nats, point.change_nats)[panel] for point in points]
            assert list(line.get_ydata()) == [value.mean for value in values]
    first, second = (line.get_ydata() for line in figure.axes[0].lines if len(line.get_xdata()) == 12)
    assert np.subtract(second, first) == pytest.approx(np.full(12, 0.5), abs=1e-5)


def test_what_is_missing_or_cannot_be_compared(
    runs: list[Path], tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match="nowhere: no such folder; name another, or run `olmo-sparsity "):
        figures_of(context_curve.draw([tmp_path / "nowhere"]))
    with pytest.raises(UserError, match="no context curve"):
        figures_of(context_curve.draw([empty]))
    other = Path(shutil.copytree(tiny_run, tmp_path / "other", symlinks=True))
    fewer = with_windows_of_many_documents(tiny_config, num_windows=9)
    measure_context_curve(fewer, other)
    with pytest.raises(UserError, match="different windows"):
        figures_of(context_curve.draw([runs[0], other]))


def test_too_few_windows_and_no_gain_get_different_words(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "few", symlinks=True))
    few = dataclasses.replace(tiny_config.influence, num_windows=9, k=[3], selectors=["random"])
    config = dataclasses.replace(tiny_config, influence=few)
    measure_context_curve(config, run)
    assert drawn(context_curve, [run]).axes
    result = subprocess.run(
        [sys.executable, "-m", "analysis", "context_curve", "--run", str(tmp_path / "nowhere")],
        capture_output=True, text=True, cwd=Path(context_curve.__file__).parent.parent,
    )  # fmt: skip
    assert result.returncode == 2
    assert "nowhere: no such folder" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_context_curve_is_labelled_with_the_positions_of_its_run() -> None:
    old = Lengths(local_len=8, full_len=20, train_len=8, max_position=20, num_chunks=2, num_long_range=12)
    new = dataclasses.replace(old, pose_method="pose", pose_contents="contiguous")

    def positions(**changes: Any) -> str:
        return short_positions_words(dataclasses.replace(new, **changes))

    assert short_positions_words(old) == positions() == "PoSE, 2 chunks"
    assert positions(pose_contents="matched") == "PoSE, 2 chunks, matched"
    assert positions(num_chunks=1, pose_contents="matched") == "no PoSE"  # as in demo-no-pose.yaml
    assert positions(pose_method="randpos") == "RandPos"
    assert positions(num_chunks=1, train_len=20) == "ceiling, rows of 20"
    assert positions(train_len=20) == "ceiling, rows of 20, PoSE, 2 chunks"


def test_mistakes_of_the_scripts_are_one_line(tmp_path: Path) -> None:
    """Of the user, and of the operating system; bugs keep their traceback."""
    for error, line in (
        (UserError("no such run"), "analysis: error: no such run"),
        (PermissionError(13, "Permission denied", "out"), "analysis: error: out: Permission denied"),
        (
            OSError(28, "No space left"),
            "analysis: error: a file cannot be read or written: No space left",
        ),
    ):

        def fail(error: Exception = error) -> None:
            with mistakes_in_one_line():
                raise error

        app = typer.Typer()
        app.command()(fail)
        done = CliRunner().invoke(app, [])
        assert (done.exit_code, done.output.strip()) == (2, line)
    with pytest.raises(OSError, match="a bug"), mistakes_in_one_line():
        raise OSError("a bug")


def test_more_runs_than_can_be_told_apart_are_refused(tmp_path: Path) -> None:
    runs = [tmp_path / str(number) for number in range(9)]
    for draw in (compare.draw, training.draw):
        with pytest.raises(UserError, match="9 runs or models in one figure: at most 8 can be told apart"):
            figures_of(draw(runs))
    assert len({(look["color"], look["marker"]) for look in RUN_LOOKS}) == 8


def test_a_number_that_a_third_lacks_is_not_drawn() -> None:
    figure, axis = plt.subplots()
    whole = [Estimate(0.1, 0.0, 0.3), Estimate(0.2, 0.1, 0.25), Estimate(0.4, 0.3, 0.6)]
    for lacking in range(3):
        values = [None if number == lacking else value for number, value in enumerate(whole)]
        hypothesis._draw_line(axis, values, label="gain", look={"color": "black"})
    assert not axis.containers
    hypothesis._draw_line(axis, whole, label="gain", look={"color": "black"})
    assert axis.lines[0].get_xydata().tolist() == [[0, 0.1], [1, 0.2], [2, 0.4]]
    plt.close(figure)


def test_shares_of_several_models_have_a_legend_with_their_colours() -> None:
    """Thirds have six numbers, of which the last is the share."""

    def entry(name: str, shift: float) -> SparsityAndGain:
        of_thirds = [(*[Estimate(9.0)] * 5, Estimate(shift + 0.1 * i)) for i in range(3)]
        thirds = tuple(ThirdOfTargets(third, *of) for third, of in zip(THIRDS, of_thirds, strict=True))
        contrasts = Contrasts(*[Estimate(0.1)] * 5)
        return SparsityAndGain(Analysis("as planned"), "ceiling", name, False, 99, thirds, contrasts)

    figure, axes = plt.subplots(1, 2)
    entries = [entry("pose", 0.2), entry("no-pose", 0.5)]
    hypothesis._draw_shares(axes[0], entries)
    hypothesis._draw_shares(axes[1], entries[:1])
    labelled = {
        text.get_text(): handle.lines[0].get_color()
        for text, handle in zip(axes[0].get_legend().get_texts(), axes[0].containers, strict=True)
    }
    assert labelled == {"pose": RUN_LOOKS[0]["color"], "no-pose": RUN_LOOKS[1]["color"]}
    assert [list(one.lines[0].get_ydata()) for one in axes[0].containers] == [
        pytest.approx([0.2, 0.3, 0.4]),
        pytest.approx([0.5, 0.6, 0.7]),
    ]
    with pytest.raises(UserError, match="9 runs or models in one figure: at most 8 can be told apart"):
        hypothesis._draw_shares(axes[1], entries[:1] * 9)
    assert axes[1].get_legend() is None and axes[1].get_title() == "share, by the reactions of ceiling"
    plt.close(figure)
