"""The lines of the training figure are the numbers of metrics.jsonl, of finished and of unfinished runs."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_of
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis import training
from analysis.drawing import saved
from analysis.metrics import BY_POSITION, TrainingRun, running_median
from analysis.style import RUN_LOOKS
from olmo_sparsity.errors import UserError


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def copy_of(run: Path, to: Path, found: list[dict[str, Any]]) -> Path:
    to.mkdir()
    shutil.copy(run / "manifest.json", to)
    (to / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in found))
    return to


def drawn(runs: list[Path]) -> Figure:
    (figure,) = figures_of(training.draw(runs))
    return figure


def lines_of(axis: Axes, color: Any = None) -> list[tuple[list[float], list[float]]]:
    return [
        (list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines if color in (None, line.get_color())
    ]


def test_lines_are_the_numbers_of_the_file(tiny_run: Path, tmp_path: Path) -> None:
    """The losses of the second run are half a nat higher: each line must show its own run."""
    more = [
        {key: value + 0.5 if isinstance(value, float) and "nats" in key else value for key, value in record.items()}
        for record in records(tiny_run)
    ]
    other = copy_of(tiny_run, tmp_path / "other", more)
    for runs in ([tiny_run], [tiny_run, other]):
        losses, rate, speed, positions, norm, share = drawn(runs).axes
        for number, run in enumerate(runs):
            found = records(run)
            color = RUN_LOOKS[number]["color"] if len(runs) > 1 else None
            for axis, key in (
                (losses, "loss_nats"), (rate, "learning_rate"), (speed, "tokens_per_second"), (norm, "grad_norm"),
                (share, "share_of_peak"),
            ):  # fmt: skip
                assert ([r["tokens"] for r in found], [r[key] for r in found]) in lines_of(axis, color), key
            there = [r for r in found if r["validation_loss_nats"] is not None]
            assert len(there) == 2
            for key in training.EVALUATED:
                assert ([r["tokens"] for r in there], [r[key] for r in there]) in lines_of(losses, color), key
            for record in there if len(runs) == 1 else there[-1:]:
                assert (list(range(1, 21)), record["loss_by_position_nats"]) in lines_of(positions, color)
        assert ([8, 8], [0, 1]) in lines_of(positions)  # where a training row ends
        assert len(positions.lines) == 3


def test_the_running_median_stands_over_the_numbers_that_it_is_of(tiny_run: Path, tmp_path: Path) -> None:
    """A thick line over the same tokens as the thin one; with 60 lines it is over five of them."""
    rng, first = np.random.default_rng(1), records(tiny_run)[-1]
    names = {"loss_nats": 0, "tokens_per_second": 2, "grad_norm": 4, "share_of_peak": 5}
    found = [
        {**first, "step": n, "tokens": 700 * n, **{name: 1.0 + rng.random() for name in names}} for n in range(1, 61)
    ]
    (figure,) = training.draw([copy_of(tiny_run, tmp_path / "long", found)])
    axes, last = figure.figure.axes, np.median([record["loss_nats"] for record in found[-3:]])
    assert f"training {last:.2f}," in figure.finding and f"{last:.2f}" != f"{found[-1]['loss_nats']:.2f}"
    plt.close("all")
    for name, panel in names.items():
        values = pd.Series([record[name] for record in found])
        thin, thick = (line for line in axes[panel].lines if line.get_linewidth() in (0.6, 1.4))
        assert list(thin.get_xdata()) == list(thick.get_xdata()) == [record["tokens"] for record in found]
        assert list(thin.get_ydata()) == values.tolist()
        medians = values.rolling(5, center=True, min_periods=1).median()
        assert list(thick.get_ydata()) == medians.tolist() != values.tolist()


def test_labels_and_progress_are_those_of_the_lines(tiny_run: Path, tmp_path: Path) -> None:
    (figure,) = figures_of(training.draw([tiny_run]))
    labels = {str(line.get_label()): to_hex(line.get_color()) for line in figure.legends[0].legend_handles}
    found = records(tiny_run)
    there = [record for record in found if record["validation_loss_nats"] is not None]
    for words, key in (
        ("validation, rows", "validation_loss_nats"),
        ("within the length of a row", "loss_within_train_len_nats"),
        ("beyond it", "loss_beyond_train_len_nats"),
    ):
        (label,) = (label for label in labels if words in label)
        lines = [line for line in figure.axes[0].lines if to_hex(line.get_color()) == labels[label]]
        assert [record[key] for record in there] in [list(line.get_ydata()) for line in lines], label
    for record in there:
        (line,) = (line for line in figure.axes[3].lines if list(line.get_ydata()) == record["loss_by_position_nats"])
        assert labels[f"by position, step {record['step']}"] == to_hex(line.get_color())
    half = copy_of(tiny_run, tmp_path / "half", found[:3])
    words = " ".join(str(drawn([half]).get_label()).split())
    assert f"Training: half, step {found[2]['step']} of {found[-1]['step']}." in words


def test_panels_and_what_the_figure_shows_are_of_the_newest_lines(tiny_run: Path, tmp_path: Path) -> None:
    """Of several runs the losses by position are those of the last evaluation, and each length of rows is marked."""
    found = records(tiny_run)
    other = copy_of(tiny_run, tmp_path / "other", [{**one, "loss_nats": one["loss_nats"] + 1} for one in found])
    titles = [
        "loss", "learning rate", "tokens per second", "held-out loss by position", "norm of the gradient",
        "speed, relative to\na matrix product",
    ]  # fmt: skip
    (alone,), (both,) = ([*training.draw(runs)] for runs in ([tiny_run], [tiny_run, other]))
    assert [axis.get_title() for axis in alone.figure.axes] == titles
    titles[3] += ", last evaluation"
    assert [axis.get_title() for axis in both.figure.axes] == titles
    for figure in (alone.figure, both.figure):
        labels = [axis.get_xlabel() for axis in figure.axes]
        assert labels == [*["tokens trained on"] * 3, "visible tokens", *["tokens trained on"] * 2]
        assert [axis.get_ylabel() for axis in figure.axes] == ["nats", "", "", "nats", "", ""]
    last = [one for one in found if one["validation_loss_nats"] is not None][-1]
    assert last["validation_loss_nats"] != found[0]["validation_loss_nats"]
    said = [
        f"{name} after {found[-1]['step']:,} steps: training {found[-1]['loss_nats'] + more:.2f}, "
        f"validation, rows as in training {last['validation_loss_nats']:.2f}, "
        f"held-out text, within the length of a row {last['loss_within_train_len_nats']:.2f}, "
        f"held-out text, beyond it {last['loss_beyond_train_len_nats']:.2f}"
        for name, more in ((tiny_run.name, 0), ("other", 1))
    ]
    assert alone.finding == f"Loss in nats of {said[0]}." and both.finding == f"Loss in nats of {'; '.join(said)}."
    lines = pd.DataFrame({BY_POSITION: [[1.0]] * 11, "step": range(11)})
    shown = TrainingRun("run", lines, 8, 11).evaluations_by_position()
    assert list(shown["step"]) == [0, 3, 7, 10]  # the first, the last, and two evenly between
    run = TrainingRun("run", lines, 8, 11)
    _, axis = plt.subplots()
    training._draw_losses_by_position(axis, [run, dataclasses.replace(run, row_len=20)], looks=list(RUN_LOOKS[:2]))
    assert [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == ":"] == [8, 20]
    plt.close("all")


def test_what_an_unfinished_run_has_is_drawn(tiny_run: Path, tmp_path: Path) -> None:
    early = copy_of(tiny_run, tmp_path / "early", records(tiny_run)[:3])
    with open(early / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "lo')
    losses, _, _, positions, _, _ = drawn([early]).axes
    assert [r["loss_nats"] for r in records(tiny_run)[:3]] in [y for _, y in lines_of(losses)]
    assert not positions.lines
    assert [text.get_text() for text in positions.texts] == ["no evaluation yet"]
    assert all(path.stat().st_size > 5000 for path in saved(training.draw([early, tiny_run]), tmp_path / "out"))


def test_runs_of_one_name_are_named_by_their_paths(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    again = copy_of(tiny_run, tmp_path / "other" / tiny_run.name, records(tiny_run)[:3])
    (both,) = training.draw([tiny_run, again])
    labels = {str(line.get_label()): line.get_color() for line in both.figure.legends[0].legend_handles}
    for number, run in enumerate((tiny_run, again)):
        assert labels[str(run)] == RUN_LOOKS[number]["color"]
        assert both.finding.count(f"{run} after ") == 1 and str(both.figure.get_label()).count(f"{run}, step ") == 1
    (alone,) = training.draw([again])
    assert alone.finding.startswith(f"Loss in nats of {tiny_run.name} after ")
    plt.close("all")


def test_a_single_line_of_the_file_is_a_dot(tiny_run: Path, tmp_path: Path) -> None:
    """A line through one point has no length; of two it needs no dots."""
    for num, marker in ((1, "."), (2, "")):
        losses, rate, speed, _, norm, _ = drawn([copy_of(tiny_run, tmp_path / str(num), records(tiny_run)[:num])]).axes
        for axis in (losses, rate, speed, norm):
            assert {line.get_marker() for line in axis.lines if line.get_linewidth() == 1.4} == {marker}


@pytest.mark.parametrize(("norms", "scale"), [((0.7, 1.9), "linear"), ((0.7, 7.0), "log")])
def test_norms_that_differ_little_have_ticks_too(
    norms: tuple[float, float], scale: str, tiny_run: Path, tmp_path: Path
) -> None:
    found = [{**one, "grad_norm": norm} for one, norm in zip(records(tiny_run)[:2], norms, strict=True)]
    norm = drawn([copy_of(tiny_run, tmp_path / "run", found)]).axes[4]
    low, high = norm.get_ylim()
    assert norm.get_yscale() == scale and sum(low <= tick <= high for tick in norm.get_yticks()) >= 2


def test_the_first_steps_do_not_squeeze_the_rest(tiny_run: Path, tmp_path: Path) -> None:
    first = records(tiny_run)[-1]
    found = [{**first, "step": n, "tokens": n * 100, "loss_nats": 90.0 if n < 3 else 4.0} for n in range(1, 101)]
    low, high = drawn([copy_of(tiny_run, tmp_path / "steep", found)]).axes[0].get_ylim()
    assert low < 4 < high < 10


def test_losses_by_position_fill_their_panel(tiny_run: Path, tmp_path: Path) -> None:
    """All but the highest 3% are shown, and little else; the row lengths keep the limits apart."""
    first = [one for one in records(tiny_run) if one["loss_by_position_nats"]][-1]
    losses = [90.0, *np.linspace(5.5, 4.5, 60)]
    changed = {**first, "loss_by_position_nats": losses}
    axis = drawn([copy_of(tiny_run, tmp_path / "long", [changed])]).axes[3]
    low, high = axis.get_ylim()
    assert 4.4 < low < 4.5 and 5.5 < high < 5.8


@pytest.mark.parametrize(("number", "every"), [(11, 1), (23, 1), (24, 2), (35, 2), (36, 3)])
def test_a_line_has_twelve_marks_or_few_more(tiny_run: Path, tmp_path: Path, number: int, every: int) -> None:
    found = [{"step": n, "tokens": n, "loss_nats": 3.0, "validation_loss_nats": 3.0 + n} for n in range(1, number + 1)]
    figure = drawn([copy_of(tiny_run, tmp_path / "run", found)])
    (line,) = (line for line in figure.axes[0].lines if line.get_marker() == "o")
    assert line.get_markevery() == every


@pytest.mark.parametrize(("number", "width"), [(24, 1), (25, 3), (49, 3), (50, 5)])
def test_the_running_median_is_of_eight_percent_of_the_lines(number: int, width: int) -> None:
    values = np.random.default_rng(0).random(number)
    half = width // 2
    expected = [np.median(values[max(0, i - half) : i + half + 1]) for i in range(number)]
    assert running_median(pd.Series(values)).tolist() == expected


def test_running_median() -> None:
    values = pd.Series(np.random.default_rng(0).normal(size=60))
    medians = running_median(values)
    assert medians[30] == np.median(values[28:33])
    assert medians[0] == np.median(values[:3])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "nothing is written there yet; a run writes every training.log_every steps$"),
        ("", "nothing is written there yet; a run writes every training.log_every steps$"),
        ('{"step": 1, "tokens": 1, "loss_nats": 1}', "nothing is written there yet;"),  # a line that was cut short
        (b"\xff\n", "cannot be read as text$"),
        ("{oops\n", "not lines of JSON, the file is damaged$"),
        ('{"a": 1}\n', "no numbers under step, tokens, loss_nats"),
        ("null\nnull\n", "no numbers under step, tokens, loss_nats"),
        ('{"step": null, "tokens": null, "loss_nats": null}\n', "no numbers under step, tokens, loss_nats"),
        (
            '{"step": true, "tokens": 1, "loss_nats": 1}\n',
            "no numbers under step; this is not the metrics.jsonl of a run$",
        ),
        (
            '{"step": 1, "tokens": 1, "loss_nats": 1}\n{"step": 2, "tokens": 2, "loss_nats": null}\n',
            "no numbers under loss_nats;",
        ),
    ],
)
def test_other_files(tiny_run: Path, tmp_path: Path, content: Any, said: str) -> None:
    run = copy_of(tiny_run, tmp_path / "run", [])
    if content is None:
        (run / "metrics.jsonl").unlink()
    else:
        (run / "metrics.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"run/metrics\.jsonl: {said}"):
        figures_of(training.draw([run]))
    advice = "there is no training run here; name the folder of one, or run `olmo-sparsity train` first$"
    for folder, words in ((tmp_path / "nowhere", f"nowhere: {advice}"), (tmp_path, "no run folder")):
        with pytest.raises(UserError, match=words):
            figures_of(training.draw([folder]))


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_the_frame_by_position_leaves_out_the_first_positions_and_holds_the_rest_of_every_run(order: slice) -> None:
    """Of 100 positions three lie above the frame."""
    low_run, high_run = np.full(100, 2.0), np.full(100, 3.0)
    low_run[-1], high_run[:3], high_run[3] = 1.5, 9.0, 4.0
    figure, axis = plt.subplots()
    training._frame_losses_by_position(axis, [low_run, high_run][order], row_lens={64, 32})
    high = np.quantile(high_run, 0.97)
    margin = 0.06 * (high - 1.5) + 0.01
    assert axis.get_ylim() == pytest.approx((1.5 - margin, high + 3 * margin)) and 4.0 < axis.get_ylim()[1] < 9.0
    assert [line.get_xdata()[0] for line in axis.lines] == [32, 64]  # type: ignore[index]
    assert [text.xy[0] for text in axis.texts] == [32, 64]  # type: ignore[attr-defined]
    plt.close(figure)
