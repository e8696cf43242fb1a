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
from made_up import CONTEXTUAL
from matplotlib.figure import Figure
from typer.testing import CliRunner

from analysis import compare, context_curve, hypothesis, inside_and_beyond, planted, scale, training
from analysis.drawing import mistakes_in_one_line, saved
from analysis.style import RUN_LOOKS
from olmo_sparsity.config import Config, ValidationConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.context_curve import measure_context_curve
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.validation import validate
from olmo_sparsity.statistics.curves import context_curve as curve_numbers
from olmo_sparsity.statistics.detection import Detection, PrecisionAtDistance, SelectorDetection, Suite, detection
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.hypothesis import (
    THIRDS,
    Analysis,
    Contrasts,
    SparsityAndGain,
    ThirdOfTargets,
)
from olmo_sparsity.statistics.single.measurement import Lengths
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.checksums import write_parquet
from olmo_sparsity.tables.parts import part_path
from olmo_sparsity.tables.reading import list_finished
from olmo_sparsity.view.console import print_detection
from olmo_sparsity.wording.detection import detection_finding
from olmo_sparsity.wording.setup import anchor_warning, short_positions_words


def with_windows_of_many_documents(config: Config, **influence: Any) -> Config:
    """Return the configuration with a window of every document, so that there are enough for intervals."""
    return dataclasses.replace(
        config, influence=dataclasses.replace(config.influence, sampling="documents", **influence)
    )


@pytest.fixture(scope="module")
def runs(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs with all kinds of measurements; the manifest of the second names more parameters."""
    folder = tmp_path_factory.mktemp("measured")
    first, second = (Path(shutil.copytree(tiny_run, folder / name, symlinks=True)) for name in ("one", "two"))
    manifest = (second / "manifest.json").read_text()
    before = next(line for line in manifest.splitlines() if "num_parameters" in line)
    (second / "manifest.json").write_text(manifest.replace(before, '"num_parameters": 9000000,'))
    settings = ValidationConfig(num_windows=51, k=[1, 2], selectors=["unmask-one", "random"])
    config = dataclasses.replace(with_windows_of_many_documents(tiny_config), validation=settings)
    for run in (first, second):
        measure(config, run)
        measure_context_curve(config, run)
    part = part_path(list_finished(second, "context-curve")[-1], "curve", part=0)
    table = pq.read_table(part)
    field = table.schema.field("loss_nats")
    losses = pa.array([[loss + 0.5 for loss in row] for row in table["loss_nats"].to_pylist()], field.type)
    write_parquet(table.set_column(table.schema.get_field_index("loss_nats"), field, losses), part)
    validate(config, first)
    return [first, second]


def test_pictures(runs: list[Path], tmp_path: Path) -> None:
    for draw, shown in ((planted.draw, runs[:1]), (scale.draw, runs)):
        for path in saved(draw(shown), tmp_path):
            assert path.stat().st_size > 5000
    assert sorted(path.stem for path in tmp_path.glob("*.pdf")) == ["planted", "scale"]


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


def test_numbers_in_the_planted_figure(runs: list[Path]) -> None:
    figure = drawn(planted, runs[:1])
    suites = detection(list_finished(runs[0], "validation")[-1]).suites
    for axis, suite in zip(figure.axes, suites, strict=True):
        bars = [bar.get_width() for bar in axis.patches]
        assert bars == [entry.precision_at_truth and entry.precision_at_truth.mean for entry in suite.selectors]
        assert len(bars) == 2
        lines = {line.get_linestyle(): line for line in axis.lines if line.get_marker() == "None"}
        assert set(lines[":"].get_xdata()) == {suite.chance}  # type: ignore[arg-type]
        bounds = [entry.precision_at_truth and entry.precision_at_truth.bounds for entry in suite.selectors]
        drawn_bounds = [
            (tuple(line.get_xdata()), line.get_ydata()[0])  # type: ignore[arg-type,index]
            for line in axis.lines
            if line.get_linestyle() == "-" and line.get_marker() == "None"
        ]
        assert drawn_bounds == [(of, 1 - row) for row, of in enumerate(bounds) if of is not None]
        losses = (suite.loss_short_nats, suite.loss_long_nats, suite.loss_planted_nats)
        assert "L short {:.2f}, long {:.2f}, planted {:.2f}".format(*(loss.mean for loss in losses)) in axis.get_title()
        assert ("gate failed: " in axis.get_title()) == (suite.gate == "failed")
        assert ("gate not assessed: " in axis.get_title()) == (suite.gate == "not-assessed")


def found_planted(selector: str, precision: float, *, num_windows: tuple[int, int, int]) -> SelectorDetection:
    """Return what one selector found: of farther tokens a tenth less, and of the farthest two tenths."""
    thirds = tuple(
        PrecisionAtDistance(8.0 * i, 8.0 * i + 8, number, Estimate(precision - 0.1 * i))
        for i, number in enumerate(num_windows)
    )
    return SelectorDetection(selector, Estimate(precision, precision - 0.05, precision + 0.1), (), thirds)


def test_planted_tokens_by_distance_are_marked_near_above_far_where_windows_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The finding names the selectors with the highest and the lowest precision; selectors stand as in legends."""
    numbers = {"random": 0.25, "kl": 0.5, "unmask-one": 0.9}
    suites = tuple(
        Suite(
            name, copies, 8, 20, 120, 60, 0.125, 4.0, Estimate(4.5), Estimate(4.0), Estimate(3.25), Estimate(3.0),
            Estimate(1.25, 1.1, 1.4), Estimate(0.75, -0.1, 1.0), Estimate(1.5), gate,
            tuple(found_planted(of, value, num_windows=(50, 49, 80)) for of, value in numbers.items()),
        )
        for name, copies, gate in (("needle-name", 1, "passed"), ("needle-number", 2, "failed"))
    )  # fmt: skip
    found = Detection("run", "id", "made up", "validation", ModelSetup(None, "hidden", None, None), suites)
    monkeypatch.setattr(planted, "newest_finished", lambda run, kind: run)
    monkeypatch.setattr(planted, "detection", lambda folder: found)
    (drawn_of,) = planted.draw([Path("run")])
    axes = [axis for axis in drawn_of.figure.axes if axis.axison]
    assert [axis.get_title().split("\n")[0] for axis in axes] == ["needle: name, 1 copy", "needle: number, 2 copies"]
    assert [axis.get_title().split("\n")[2:] for axis in axes] == [[], ["gate failed: perhaps the cost of the gap"]]
    in_order = ["unmask-one", "kl", "random"]
    for axis in axes:
        rows = dict(zip((label.get_text() for label in axis.get_yticklabels()), axis.get_yticks(), strict=True))
        assert rows == {name: 2 - number for number, name in enumerate(in_order)}
        marks = {
            (line.get_marker(), *np.round(line.get_xydata()[0], 9)) for line in axis.lines if line.get_marker() in "<o>"
        }
        assert marks == {  # in the middle there are 49 windows
            mark
            for name, row in rows.items()
            for mark in (
                ("<", numbers[name], round(row + 0.2, 9)),
                (">", round(numbers[name] - 0.2, 9), round(row - 0.2, 9)),
            )
        }
    assert drawn_of.finding == (
        "Share of the planted tokens that the selectors find, needle: name, 1 copy: unmask-one 0.90 [0.85, 1.00] at best, "
        "random 0.25 [0.20, 0.35] at worst; needle: number, 2 copies: unmask-one 0.90 [0.85, 1.00] at best, random 0.25 "
        "[0.20, 0.35] at worst (gate failed: perhaps the cost of the gap)."
    )
    of_one = tuple(dataclasses.replace(suite, selectors=suite.selectors[1:2]) for suite in suites[:1])
    assert detection_finding(dataclasses.replace(found, suites=of_one)) == (
        "Share of the planted tokens that the selectors find, needle: name, 1 copy: kl 0.50 [0.45, 0.60]."
    )
    plt.close(drawn_of.figure)


def test_the_worse_first_token_is_told_beside_the_precision(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the caption and in what ``validate`` prints, as if the needles were of a pretrained model."""
    monkeypatch.setenv("COLUMNS", "400")
    warning = anchor_warning(ModelSetup.from_manifest(CONTEXTUAL))
    tables = list_finished(runs[0], "validation")[-1]
    print_detection(tables)
    assert "WARNING" not in capsys.readouterr().out + str(drawn(planted, runs[:1]).get_label())
    warned = Path(shutil.copytree(tables, tmp_path / "warned" / "validation" / "planted"))
    write_manifest(warned, {**read_json(warned / "manifest.json"), **CONTEXTUAL})
    print_detection(warned)
    shown = capsys.readouterr().out
    assert (
        shown.index("chance: precision of a random")
        < shown.index(warning)
        < shown.index("precision at truth: of as many")
    )
    figure = drawn(planted, [tmp_path / "warned"])
    assert str(figure.get_label()).endswith(f" {warning}")
    assert "WARNING: not of the better first token." in " ".join(figure.texts[-1].get_text().split())


def test_numbers_in_the_scale_figure(runs: list[Path]) -> None:
    figure = drawn(scale, runs)
    rungs = scale.ladder(runs)
    sizes = [rung.num_parameters for rung in rungs]
    assert sizes == sorted(sizes) and len(sizes) == 2
    assert [rung.numbers.mean for rung in rungs] == [summarize(rung.measurements[0]) for rung in rungs]
    line = figure.axes[0].lines[0]
    assert list(line.get_xdata()) == sizes
    assert list(line.get_ydata()) == [rung.numbers.mean.long_gain_nats.mean for rung in rungs]
    words = str(figure.get_label())
    assert ("GATE FAILED at" in words) == any(rung.numbers.mean.gate == "failed" for rung in rungs)
    assert "long gain 0.000 [0.000, 0.000]" in words  # one model under two names


def test_what_is_missing_or_cannot_be_compared(
    runs: list[Path], tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for draw, said in (
        (context_curve.draw, "no context curve"),
        (planted.draw, "nothing has been validated"),
        (scale.draw, "nothing has been measured"),
    ):
        with pytest.raises(UserError, match="nowhere: no such folder; name another, or run `olmo-sparsity "):
            figures_of(draw([tmp_path / "nowhere"]))
        with pytest.raises(UserError, match=said):
            figures_of(draw([empty]))
    other = Path(shutil.copytree(tiny_run, tmp_path / "other", symlinks=True))
    fewer = with_windows_of_many_documents(tiny_config, num_windows=9)
    measure_context_curve(fewer, other)
    with pytest.raises(UserError, match="different windows"):
        figures_of(context_curve.draw([runs[0], other]))
    measure(fewer, other)
    with pytest.raises(UserError, match="different windows"):
        figures_of(scale.draw([runs[0], other]))
    measure(with_windows_of_many_documents(tiny_config, k=[2]), other)
    with pytest.raises(UserError, match="different k"):
        figures_of(scale.draw([runs[0], other]))


def test_too_few_windows_and_no_gain_get_different_words(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tiny_run, tmp_path / "few", symlinks=True))
    settings = ValidationConfig(num_windows=4, k=[1], selectors=["random"])
    few = dataclasses.replace(tiny_config.influence, num_windows=9, k=[3], selectors=["random"])
    config = dataclasses.replace(tiny_config, validation=settings, influence=few)
    validate(config, run)
    measure(config, run)
    measure_context_curve(config, run)
    for axis in drawn(planted, [run]).axes:
        assert "gate not assessed: too few windows" in axis.get_title()
    assert drawn(scale, [run]).axes
    assert drawn(context_curve, [run]).axes
    result = subprocess.run(
        [sys.executable, "-m", "analysis.scale", "--run", str(tmp_path / "nowhere")],
        capture_output=True, text=True, cwd=Path(scale.__file__).parent.parent,
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
    with pytest.raises(UserError) as refused:
        figures_of(planted.draw(runs[:2]))
    assert str(refused.value) == f"{runs[1]}: this figure is of one run; draw each with its own --run and --out"


def test_near_planted_tokens_are_marked_above_far_ones(runs: list[Path]) -> None:
    """In each bar the nearest third of the distances is the upper mark, <, and the farthest the lower one, >."""
    suite = detection(list_finished(runs[0], "validation")[-1]).suites[0]
    entry = suite.selectors[0]
    precisions = [0.9, 0.6, 0.2]  # of near, middle and far planted tokens
    thirds = tuple(
        dataclasses.replace(third, num_windows=99, precision_at_truth=Estimate(value, None, None, 0.0))
        for third, value in zip(entry.by_distance, precisions, strict=True)
    )
    few = tuple(
        dataclasses.replace(third, num_windows=number) for third, number in zip(thirds, (50, 49, 51), strict=True)
    )
    assert [third.distance_above_tokens for third in thirds] == sorted(third.distance_above_tokens for third in thirds)
    figure, axis = plt.subplots()
    planted._panel(axis, dataclasses.replace(suite, selectors=(dataclasses.replace(entry, by_distance=thirds),)))
    marks = {
        line.get_marker(): (line.get_xdata()[0], line.get_ydata()[0])
        for line in axis.lines
        if line.get_marker() in "<o>"
    }
    plt.close(figure)
    assert [marks[marker][0] for marker in "<o>"] == precisions
    assert marks["<"][1] > marks["o"][1] > marks[">"][1]
    figure, axis = plt.subplots()
    planted._panel(axis, dataclasses.replace(suite, selectors=(dataclasses.replace(entry, by_distance=few),)))
    assert {line.get_marker() for line in axis.lines} & set("<o>") == {"<", ">"}  # of 50 windows or more
    plt.close(figure)
    assert "where 50 windows or more lie there" in " ".join(str(drawn(planted, runs[:1]).get_label()).split())
    assert "near (<), in the middle (o), far (>)" in " ".join(str(drawn(planted, runs[:1]).get_label()).split())


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


@pytest.mark.parametrize(
    ("module", "reads", "draws", "kind"),
    [
        (hypothesis, "read_hypothesis", "draw_hypothesis", ""),
        (inside_and_beyond, "read_inside_and_beyond", "draw_inside_and_beyond", "synthetic"),
        (context_curve, "compare_curves", "draw_compared", ""),
    ],
)
def test_a_figure_of_runs_is_of_all_of_them(
    module: ModuleType, reads: str, draws: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order; of synthetic tasks their newest evaluations."""
    monkeypatch.setattr(module, reads, lambda runs: [str(run) for run in runs])
    monkeypatch.setattr(module, draws, lambda found: found)
    if kind:
        monkeypatch.setattr(module, "newest_finished", lambda run, of: run / of / "newest")
    expected = [f"{run}/{kind}/newest" if kind else run for run in ("b", "a")]
    assert list(module.draw([Path("b"), Path("a")])) == [expected]
