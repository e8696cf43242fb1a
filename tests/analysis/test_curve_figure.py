"""The figure of context curves shows each model's own numbers under its own name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_figures import figures_of
from made_up import CONTEXTUAL
from made_up_runs import (
    FULL,
    ROW,
    VISIBLE,
    four_way_runs,
    made_up_curve,
    made_up_losses,
    made_up_run,
    pretrained_curve,
)
from matplotlib.axes import Axes
from matplotlib.colors import same_color, to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from analysis import context_curve
from analysis.output import save
from analysis.style import RUN_LOOKS
from olmo_sparsity.config import ContextConfig, PoseConfig
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.curve_comparison import ComparedCurves, compare_curves
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.wording.curves import gain_beyond_lines, model_labels
from olmo_sparsity.wording.setup import anchor_warning


@pytest.fixture(scope="module", params=[(0,), (0, 1, 2)], ids=["one seed", "three seeds"])
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("four-way")
    return [run for of_kind in four_way_runs(folder, request.param).values() for run in of_kind]


@pytest.fixture(scope="module")
def compared(runs: list[Path]) -> ComparedCurves:
    return compare_curves(runs)


@pytest.fixture
def figure(compared: ComparedCurves) -> Figure:
    return context_curve.draw_compared(compared).figure


def end_labels(axis: Axes) -> dict[str, str]:
    """Return the words beside the ends of lines and their colours."""
    found = {}
    for text in axis.texts:
        if isinstance(text, Annotation) and text.xycoords == "axes fraction":
            found[text.get_text().replace("\n", " ")] = str(text.get_color())
    return found


def test_each_line_and_its_label_are_of_the_same_model(figure: Figure, compared: ComparedCurves) -> None:
    """The label has the colour of the line, and the line the numbers of the model."""
    assert [axis.get_ylabel() for axis in figure.axes] == ["mean loss of the target, nats", "nats"]
    assert [axis.get_title() for axis in figure.axes] == ["context curve", f"change from {ROW} visible tokens (paired)"]
    for panel, axis in enumerate(figure.axes):
        lines = [
            line for line in axis.lines if len(line.get_xdata()) == len(VISIBLE) and line.get_linestyle() != "None"
        ]
        labels = end_labels(axis)
        assert len(lines) == len(labels) == 4 == len({line.get_color() for line in lines})
        for line, model, name in zip(lines, compared.models, model_labels(compared), strict=True):
            assert list(line.get_xdata()) == VISIBLE
            values = [(point.loss_nats, point.change_nats)[panel].mean for point in model.curve.points]
            assert list(line.get_ydata()) == values
            assert [color for label, color in labels.items() if label.startswith(name)] == [line.get_color()]


def test_a_line_that_rises_out_of_the_frame_has_its_last_value_in_its_label(figure: Figure) -> None:
    axis = figure.axes[1]
    rise = next(line for line in axis.lines if max(np.atleast_1d(line.get_ydata())) > 0.3).get_ydata()[-1]
    assert rise > axis.get_ylim()[1]
    assert f"no PoSE to {rise:+.2f}" in end_labels(axis)
    assert not any(" to +" in label for label in end_labels(figure.axes[0]))


def test_each_seed_is_a_row_of_dots(figure: Figure, compared: ComparedCurves) -> None:
    for panel, axis in enumerate(figure.axes):
        colors = [line.get_color() for line in axis.lines if line.get_marker() != "." and len(line.get_xdata()) > 2]
        dots = [(line.get_color(), list(line.get_ydata())) for line in axis.lines if line.get_linestyle() == "None"]
        expected = []
        for model, color in zip(compared.models, colors, strict=True):
            if len(model.seeds) > 1:
                for seed in model.seeds:
                    losses = np.array(seed.losses_nats)
                    expected.append((color, list(losses - losses[VISIBLE.index(ROW)] if panel else losses)))
        assert dots == expected


def test_the_lengths_are_marked(figure: Figure) -> None:
    for axis in figure.axes:
        marks = {
            text.get_text(): line for text in axis.texts for line in [text.get_position()] if text.get_rotation() == 90
        }
        assert set(marks) == {f"training row {ROW}", f"full {FULL}", "positions 32"}
        upright = {line.get_xdata()[0] for line in axis.lines if len(set(line.get_xdata())) == 1}
        assert upright == {ROW, FULL, 32}


def test_no_label_covers_another(figure: Figure) -> None:
    figure.draw_without_rendering()
    for axis in figure.axes:
        boxes = [
            text.get_window_extent() for text in axis.texts
            if isinstance(text, Annotation) and text.xycoords == "axes fraction"
        ]  # fmt: skip
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[i + 1 :])


def test_the_caption_and_the_command_give_the_gains(runs: list[Path], compared: ComparedCurves, figure: Figure) -> None:
    lines = gain_beyond_lines(compared)
    words = str(figure.get_label())
    assert all(line in words for line in lines[1:])
    assert ("Dots: single seeds." in words) == (len(runs) > 4)


@pytest.mark.parametrize("runs", [(0,)], ids=["one seed"], indirect=True)
def test_a_model_alone_has_the_first_colour_and_positions_are_marked_of_chunks_alone(runs: list[Path]) -> None:
    """The ceiling is black beside others. Its rows, and those without PoSE, are no chunks that are moved apart."""
    looks = {run: context_curve._looks(compare_curves([run])) for run in runs}
    assert [look for of_run in looks.values() for look in of_run] == [RUN_LOOKS[0]] * len(runs)
    assert context_curve._looks(compare_curves(runs)).count(context_curve.CEILING_LOOK) == 1
    marked = {run.name: "positions" in context_curve._marked_lengths(compare_curves([run])) for run in runs}
    assert marked == {"pose": True, "no-pose": False, "randpos": True, "ceiling": False}


@pytest.mark.parametrize("runs", [(0,)], ids=["one seed"], indirect=True)
def test_the_largest_positions_of_chunks_are_marked_and_a_stated_row_is_told(compared: ComparedCurves) -> None:
    """Of the last of several models; the curves end at 48 tokens."""

    def changed(number: int, **lengths: Any) -> ComparedCurves:
        models = list(compared.models)
        curve = models[number].curve
        curve = dataclasses.replace(curve, lengths=dataclasses.replace(curve.lengths, **lengths))
        models[number] = dataclasses.replace(models[number], curve=curve)
        return dataclasses.replace(compared, models=tuple(models))

    for position, marked in ((40, 40), (48, None), (30, 32)):
        lengths = context_curve._marked_lengths(changed(3, num_chunks=2, max_position=position))
        assert lengths.get("positions") == marked
    alone = dataclasses.replace(
        changed(3, num_chunks=2, max_position=FULL), models=changed(3, num_chunks=2, max_position=FULL).models[3:]
    )
    assert "positions" not in context_curve._marked_lengths(alone)
    assert gain_beyond_lines(compared)[0].startswith("gain beyond the training row, from 8 to 24 visible tokens")
    stated = gain_beyond_lines(changed(2, train_len_is_stated=True))
    assert stated[0].startswith("gain beyond the stated training row, from 8 to 24 visible tokens")


def test_the_changes_begin_at_a_row_that_is_shorter_than_the_local_context(tmp_path: Path) -> None:
    """Else at the local context."""
    for row_len, first in ((4, 4), (12, ROW)):
        model = pretrained_curve(tmp_path / str(row_len), gain=0.2, row_len=row_len)
        (figure,) = figures_of(context_curve.draw([model]))
        axis = figure.axes[1]
        assert axis.get_title() == f"change from {row_len} visible tokens (paired)"
        assert axis.get_xlim()[0] == pytest.approx(first / 1.35)
        assert axis.get_xticklabels()[0].get_text() == str(first)


def test_without_a_training_row_the_figure_shows_the_losses_at_both_ends(tmp_path: Path) -> None:
    run = pretrained_curve(tmp_path / "model", gain=0.2)
    (drawn,) = context_curve.draw([run])
    points = compare_curves([run]).models[0].curve.points
    assert points[0].loss_nats.mean != points[-1].loss_nats.mean
    assert drawn.finding == (
        f"Mean loss: someone/Made-Up-2M {points[0].loss_nats.mean:.3f} nats with 1 visible token, "
        f"{points[-1].loss_nats.mean:.3f} with {VISIBLE[-1]}."
    )
    plt.close("all")


def test_a_line_has_a_band_where_every_point_has_an_interval(compared: ComparedCurves) -> None:
    values = [Estimate(1.0, 0.5, 2.0), Estimate(2.0, 1.5, 2.5)]
    model = compared.models[0]
    model = dataclasses.replace(model, curve=dataclasses.replace(model.curve, points=model.curve.points[:2]))
    for of_points, num_bands in ((values, 1), ([values[0], Estimate(2.0)], 0)):
        _, axis = plt.subplots()
        context_curve._draw_model(axis, model, values=of_points, of_seeds=[], look=RUN_LOOKS[1])
        assert len(axis.collections) == num_bands and [list(line.get_ydata()) for line in axis.lines] == [[1.0, 2.0]]
        for band in axis.collections:
            assert same_color(band.get_facecolor()[0, :3], to_rgb(RUN_LOOKS[1]["color"]))
            assert {tuple(map(float, at)) for at in band.get_paths()[0].vertices} == {
                (visible, bound)
                for visible, value in zip(VISIBLE, values, strict=False)
                for bound in (value.low, value.high)
            }
    plt.close("all")


@pytest.mark.parametrize("runs", [(0, 1, 2)], ids=["three seeds"], indirect=True)
def test_pictures_are_written(compared: ComparedCurves, tmp_path: Path) -> None:
    pictures = save(context_curve.draw_compared(compared), tmp_path)
    assert [path.name for path in pictures] == ["context-curve.png", "context-curve.pdf"]
    assert all(path.stat().st_size > 5000 for path in pictures)


@pytest.mark.usefixtures("quick_pictures")
def test_numbers_are_written(compared: ComparedCurves, tmp_path: Path) -> None:
    save(context_curve.draw_compared(compared), tmp_path)
    numbers = json.loads((tmp_path / "context-curve.json").read_text())
    assert (numbers["row_len"], numbers["full_len"], numbers["shares_are_fragile"]) == (ROW, FULL, False)
    assert [entry["label"] for entry in numbers["models"]] == model_labels(compared)
    for entry, model in zip(numbers["models"], compared.models, strict=True):
        for key, value in (("gain_beyond_nats", model.gain_beyond_nats), ("share_of_ceiling", model.share_of_ceiling)):
            if value is None:
                assert entry[key] is None and entry["is_ceiling"]
            else:
                assert (entry[key]["mean"], entry[key]["low"], entry[key]["high"]) == (
                    value.mean,
                    value.low,
                    value.high,
                )
        assert entry["seeds"] == [seed.seed for seed in model.seeds]
        assert [point["loss_nats"]["mean"] for point in entry["points"]] == [
            p.loss_nats.mean for p in model.curve.points
        ]


def test_the_curve_of_a_pretrained_model_marks_no_training_row(tmp_path: Path) -> None:
    (figure,) = figures_of(context_curve.draw([pretrained_curve(tmp_path / "model", gain=0.2)]))
    for axis in figure.axes:
        marks = {text.get_text() for text in axis.texts if text.get_rotation() == 90}
        assert marks == {f"local {ROW}", f"full {FULL}"}
        assert list(end_labels(axis)) == ["someone/Made- Up-2M"]
    assert figure.axes[1].get_title() == f"change from {ROW} visible tokens (paired)"
    words = str(figure.get_label())
    assert "the curve shows nothing about length generalization" in words and "generalizes" not in words
    assert "Model someone/Made-Up-2M (2.346M parameters" in words and "gain beyond" not in words.lower()


def test_stated_rows_as_long_as_the_full_context_are_said(tmp_path: Path) -> None:
    """They are known, and there is no gain beyond them."""
    rows = {"exact": FULL, "longer": 32, "again": 32, "unknown": None}
    runs = {name: pretrained_curve(tmp_path / name, gain=0.2, name=name, row_len=row) for name, row in rows.items()}
    beyond, unknown = "Nothing of the full context lies beyond the stated training", "No training row of"
    for names, said in (
        (["exact"], f"{beyond} row of 24 tokens, so no gain beyond it is given. Model"),
        (["longer", "again"], f"{beyond} row of 32 tokens, so no gain beyond it is given. Model"),
        (["longer", "exact"], f"{beyond} rows of 24 and 32 tokens, so no gain beyond them is given. Model"),
        (
            ["unknown", "longer"],
            f"{beyond} row of 32 tokens, so no gain beyond it is given. {unknown} the other models is known. Model",
        ),
        (
            ["unknown"],
            f"{unknown} these models is known, so the curve shows nothing about length generalization. Model",
        ),
    ):
        words = context_curve._words(compare_curves([runs[name] for name in names]))
        assert said in words and words.count(beyond) + words.count("these models") == 1


def test_the_own_row_of_a_ceiling_that_is_longer_than_the_full_context_is_marked(tmp_path: Path) -> None:
    """Measured with a shorter full context, where no other model has a row; changes are counted from there."""
    losses_WN, doc_ids = made_up_losses(0.03)
    pose = PoseConfig(num_chunks=1, max_position=48)
    context = ContextConfig(local_len=ROW, full_len=32, train_len=32)
    ceiling = made_up_run(tmp_path / "ceiling", pose=pose, context=context)
    made_up_curve(ceiling, losses_WN, doc_ids=doc_ids, pose=pose, row_len=32)
    for beside in ([], [pretrained_curve(tmp_path / "model", gain=0.2)]):
        compared = compare_curves([ceiling, *beside])
        assert context_curve._marked_lengths(compared) == {"local": ROW, "full": FULL, "training row": 32}
        assert (compared.row_len, compared.reference_len, gain_beyond_lines(compared)) == (32, 32, [])
        changes = {point.num_visible_tokens: point.change_nats.mean for point in compared.models[0].curve.points}
        assert changes[32] == 0 and changes[FULL] != 0


def test_the_caption_warns_of_the_worse_first_token(tmp_path: Path) -> None:
    """Of each model whose check found it, by its name where there are several; the picture says it in short."""
    plain = pretrained_curve(tmp_path / "plain", gain=0.2, name="someone/Plain")
    warned = pretrained_curve(tmp_path / "warned", gain=0.2, of_model=CONTEXTUAL)
    warning = anchor_warning(ModelSetup.from_manifest(CONTEXTUAL))
    assert warning.startswith("WARNING")
    for models, expected in (
        ([plain], ""),
        ([warned], f" {warning}"),
        ([plain, warned], f" someone/Made-Up-2M: {warning}"),
    ):
        (figure,) = figures_of(context_curve.draw(models))
        words, picture = str(figure.get_label()), " ".join(text.get_text() for text in figure.texts)
        assert words.endswith(expected) and words.count("WARNING") == (expected != "")
        assert ("WARNING: not of the better first token." in picture.replace("\n", " ")) == (expected != "")


@pytest.mark.parametrize(
    ("chunks", "positions", "marked"),
    [
        ((2, 1), (40, 99), {"positions": 40}),  # of a model with PoSE alone
        ((2, 4), (40, 48), {"positions": 48}),
        ((2, None), (32, 48), {}),  # not where the full context ends, nor where no training row is known
        ((2, 1), (64, 99), {}),  # nor at the end of the curve
        ((2, 1), (None, None), {}),
    ],
)
def test_the_largest_trained_position_is_marked_inside_the_curve(
    chunks: tuple[int | None, ...], positions: tuple[int | None, ...], marked: dict[str, int]
) -> None:
    points = [SimpleNamespace(num_visible_tokens=number) for number in (1, 8, 64)]
    models = [
        SimpleNamespace(
            curve=SimpleNamespace(
                points=points, lengths=SimpleNamespace(local_len=8, max_position=position, num_chunks=chunk)
            )
        )
        for chunk, position in zip(chunks, positions, strict=True)
    ]
    for row_len, others in (
        (None, {"local": 8, "full": 32}),
        (16, {"local": 8, "full": 32, "training row": 16}),
        (8, {"full": 32, "training row": 8}),
        (32, {"local": 8, "training row": 32}),
    ):
        compared: Any = SimpleNamespace(models=models, full_len=32, row_len=row_len)
        assert context_curve._marked_lengths(compared) == {**others, **marked}


@pytest.mark.parametrize(
    ("models", "low", "high"),
    [
        ([[9.0, Estimate(0.0), Estimate(5.0)]], 0.0, 5.0),  # one alone is in the frame as a whole
        ([[-9.0, Estimate(0.0, -0.1, 0.1), Estimate(-0.3, -0.5, -0.2)]], -0.5, 0.1),
        ([[9.0, Estimate(0.0), Estimate(-0.3)], [9.0, Estimate(0.0), Estimate(5.0)]], -0.3, 0.3),
        ([[9.0, Estimate(0.0), Estimate(-0.001)], [9.0, Estimate(0.0), Estimate(5.0)]], -0.001, 0.02),
        ([[9.0, Estimate(0.0), Estimate(-0.3)], [9.0, Estimate(0.2), Estimate(0.1)]], -0.3, 0.2),
    ],
)
def test_the_frame_of_changes_holds_what_falls_and_of_several_models_no_rise_that_is_larger(
    models: list[list[Any]], low: float, high: float
) -> None:
    """From the first marked length on, here 8 of 4, 8 and 16 visible tokens."""
    of_models = [
        [
            SimpleNamespace(num_visible_tokens=visible, change_nats=change if visible > 4 else Estimate(change))
            for visible, change in zip((4, 8, 16), changes, strict=True)
        ]
        for changes in models
    ]
    compared: Any = SimpleNamespace(models=[SimpleNamespace(curve=SimpleNamespace(points=of)) for of in of_models])
    figure, axis = plt.subplots()
    context_curve._frame_changes(axis, compared, first=8)
    margin = 0.08 * (high - low) + 0.001
    assert axis.get_ylim() == pytest.approx((low - margin, high + margin))
    plt.close(figure)
