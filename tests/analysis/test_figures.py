"""Every figure is drawn from tables alone, and shows its numbers and warnings."""

from __future__ import annotations

import dataclasses
import re
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_figures import FIGURES, figures_of, mean, measured, num_cut_off, only, read, rows, words_on
from known_selectors import only_here as only_here
from made_up import KS, M, made_up_tables
from matplotlib.colors import to_hex
from PIL import Image

from analysis import distance, every_figure, figure4, figure5, output, style
from analysis.drawing import FigureOfMeasurement, FigureOfRuns
from benchmarks.generated_tables import PRETRAINED, write_tables
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.breakdowns import DistanceBin
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.wording.gates import TOO_FEW_FOR_INTERVAL
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import anchor_warning, measured_words


@pytest.mark.parametrize("gates", ["passed", "beyond failed", "failed", "not applicable"])
@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_say_what_they_show(folders: dict[str, Path], name: str, gates: str) -> None:
    """Every figure names its model, its data, its lengths and both gates; a gate that failed stands above it as well."""
    some = ["unmask-one", "kl"] if name in ("figure4", "classes") else []  # they have much to draw
    drawn = read(folders[gates], *some)
    assert drawn.summary.gate_passed == (gates != "failed")
    assert drawn.summary.beyond_gate_passed == (gates == "passed")
    figures = figures_of(FIGURES[name](drawn))
    assert len(figures) == (2 if name == "figure4" else 1)
    for figure in figures:
        words = words_on(figure)
        above = figure.texts[0].get_text()
        assert above.count("\n") < 2 and "180 windows of 120 documents" in above.replace("\n", " ")
        assert len(figure.get_label()) > len(above)
        assert "180 windows of 120 documents" in words
        beyond = {
            "beyond failed": "only 6 of the 20 tokens lie beyond",
            "not applicable": "no training row of this model is known",
        }
        assert beyond.get(gates, "all 12 long-range tokens lie beyond") in words
        assert measured_words(drawn.summary) in words and anchor_warning(drawn.summary.setup) in words
        assert ("WARNING" in words) == (gates == "not applicable")
        assert ("shows nothing about length generalization" in words) == (gates == "not applicable")
        assert ("GATE FAILED" in words) == (gates == "failed")
        assert ("Gate passed: the long context is worth" in words) == (gates != "failed")
        assert ("Gate beyond the training row passed" in words) == (gates == "passed")
        failures = 2 if gates in ("failed", "beyond failed") else 0
        assert words.count("shows selection, not length generalization") == failures
        assert [num_cut_off(axis) for axis in figure.axes] == [0] * len(figure.axes)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_files_of_a_figure(tables: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture, a drawing, and a text that says what the figure shows, which the picture holds as well."""
    monkeypatch.setitem(plt.rcParams, "savefig.dpi", 60)
    drawn = next(FIGURES[name](read(tables, "nearest", "lasso")))
    label = drawn.figure.get_label()
    picture, drawing = output.save(drawn, tmp_path)
    assert (picture, drawing) == (tmp_path / f"{drawn.name}.png", tmp_path / f"{drawn.name}.pdf")
    assert min(path.stat().st_size for path in (picture, drawing)) > 3000
    assert picture.with_suffix(".txt").read_text(encoding="utf-8") == f"{label}\n"
    with Image.open(picture) as image:
        assert image.text["Description"] == label
        assert image.text["Title"] == drawn.finding


def test_scripts_are_found_from_any_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [every_figure.figures_of(kind) for kind in (FigureOfMeasurement, FigureOfRuns)]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path_importer_cache", {})  # which remembers folders by how they were named
    assert [every_figure.figures_of(kind) for kind in (FigureOfMeasurement, FigureOfRuns)] == found and all(found)


@pytest.mark.parametrize("selectors", [["random"], ["nearest", "lasso"]])
@pytest.mark.parametrize("name", sorted(FIGURES))
def test_few_selectors_are_enough(tables: Path, name: str, selectors: list[str]) -> None:
    expected = {"figure4": len(selectors)}.get(name, 1)
    assert len(figures_of(FIGURES[name](read(tables, *selectors)))) == expected


def test_too_few_documents_is_not_called_no_profit(tables: Path) -> None:
    measurement = read(tables, "unmask-one", "kl").measurement
    few = measurement.windows["doc_id"].unique()[:10]
    small = measured(tables, measurement.restrict(measurement.windows["doc_id"].isin(few).to_numpy()))
    figures = [figure for draw in FIGURES.values() for figure in figures_of(draw(small))]
    assert len(figures) == 8
    for figure in figures:
        assert TOO_FEW_FOR_INTERVAL in " ".join(words_on(figure).split())
        assert "no clear gain" not in words_on(figure)


def test_figure5_shows_the_words_and_the_losses_of_its_window(tables: Path) -> None:
    (figure,) = figures_of(figure5.draw(read(tables)))
    words = words_on(figure)
    window_id = int(words.split("Window ")[1].split()[0])
    (window,) = (row for row in rows(tables, "windows") if row["window_id"] == window_id)
    for text in [*window["token_texts"], window["target_text"]]:
        assert words.count(figure5.shown(text)) >= 3
    for visible, loss in (
        ("L_short: only the local tokens", "loss_short_nats"),
        ("L_long: all tokens", "loss_long_nats"),
    ):
        assert f"{visible}. Loss of the target: {window[loss]:.2f} nats" in words
    assert "(kl, numbered by rank)" in words and "sees the target" not in words
    assert (
        max(k for k in KS if k <= M / 4) == 2 and "the 2 most influential ones" in words
    )  # few of 12: at most a quarter


def test_figure5_masks_what_each_loss_does_not_see(tables: Path) -> None:
    """A box for each token, in its colour, and a stroke through those that are masked; the target comes last."""
    (figure,) = figures_of(figure5.draw(read(tables)))
    window_id = int(words_on(figure).split("Window ")[1].split()[0])
    (row,) = (
        row for row in rows(tables, "selections")
        if (row["window_id"], row["selector"], row["context"]) == (window_id, "kl", "real")
    )  # fmt: skip
    white, yellow, grey, target = (
        to_hex(of)
        for of in (figure5.LOCAL_COLOUR, figure5.LONG_RANGE_COLOUR, figure5.MASKED_COLOUR, figure5.TARGET_COLOUR)
    )
    assert len({white, yellow, grey, target}) == 4 and white == "#ffffff"
    chosen = [yellow if place in row["positions"][:2] else grey for place in range(M)]
    for axis, long_range in zip(figure.axes, ([grey] * M, [yellow] * M, chosen), strict=True):
        assert [to_hex(box.get_facecolor()) for box in axis.patches] == [*long_range, *[white] * 8, target]
        struck = [line for line in axis.lines if len(set(line.get_ydata())) == 1]
        assert len(struck) == long_range.count(grey)
        (bar,) = (line for line in axis.lines if len(set(line.get_ydata())) == 2)
        first_local = axis.patches[M]
        assert bar.get_xdata()[0] < first_local.get_x() < bar.get_xdata()[0] + 1


def test_figure5_shows_the_window_at_its_percentile(tables: Path) -> None:
    (figure,) = figures_of(figure5.draw(read(tables)))
    gains = {row["window_id"]: row["gain_long_nats"] for row in rows(tables, "windows")}
    middle = float(np.quantile(list(gains.values()), 0.9))
    window_id = min(gains, key=lambda number: abs(gains[number] - middle))
    caption = " ".join(str(figure.get_label()).split())
    assert f"Window {window_id} (document " in caption
    assert f"its long gain, {gains[window_id]:.2f} nats, is nearest to the 90th percentile of the windows" in caption


def test_a_panel_of_figure5_holds_a_target_that_begins_a_line() -> None:
    words = figure5.Words(["a" * 90, "b" * 3], "target", 1)
    assert [line for line, _ in words.places()] == [0, 0, 1]
    _, axis = plt.subplots()
    figure5._draw_panel(axis, figure5.Panel("L_long", 1.5, {0, 1}, {}), words=words)
    assert len(axis.patches) == 3 and num_cut_off(axis) == 0


def test_tokens_of_figure5_fill_lines_of_96_characters() -> None:
    """A space stands between them; one that is longer than a line has one of its own, and the first line is not left empty."""
    words = figure5.Words(["x" * 100, "a" * 47, "b" * 48, "c" * 48, "d" * 48, "e"], "target", 3)
    assert words.places() == [(0, 0), (1, 0), (1, 48), (2, 0), (3, 0), (3, 49), (3, 51)]
    assert words.num_lines == 4


def test_a_point_at_the_edge_of_the_frame_of_figure4_is_drawn() -> None:
    x, y = np.array([(0, 1), (1, 0), (0.5, 0.5), (-0.1, 0.5), (1.1, 0.5), (0.5, -0.1), (0.5, 1.1)]).T
    assert figure4.Frame(0.0, 1.0).contains(x, y).tolist() == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        (" a", "·a"),
        ("\n", "↵"),
        ("\x1b[31m", "\ufffd[31m"),
        ("漢", "□"),
        ("", "‥"),
        ("\u200d", "(U+200D)"),
        (" \u0301", "·◌\u0301"),
    ],
)
def test_shown(text: str, seen: str) -> None:
    assert figure5.shown(text) == seen


@pytest.mark.parametrize("name", ["distance", "figure4", "recovered-fraction"])
def test_figures_say_what_the_null_context_is(tables: Path, name: str) -> None:
    """The same tokens in another order are no other tokens, and show nothing of their content."""
    found = read(tables, "kl")
    measured = Measured(tables, found.measurement, dataclasses.replace(found.summary, null_context="shuffled"))
    (figure,) = figures_of(FIGURES[name](measured))
    words = words_on(figure)
    assert "Null context, in place of the long-range tokens: the same tokens in random order." in words
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "other" not in " ".join([words, *labels]) and "content" not in words


def test_distance_shows_the_shares(tables: Path) -> None:
    (figure,) = figures_of(distance.draw(read(tables)))
    axis = figure.axes[0]
    counts: dict[int, int] = dict.fromkeys(range(9, 21), 0)  # M = 12 distances, a bin each
    for row in rows(tables, "selections"):
        if (row["selector"], row["context"]) == ("unmask-one", "real"):
            for far in row["distance_tokens"]:
                counts[far] += 1
    real = axis.lines[0]
    assert real.get_xdata().tolist() == list(counts)
    assert list(real.get_ydata()) == pytest.approx([count / sum(counts.values()) for count in counts.values()])
    labels = ("distance to the target, tokens", "share of the influential tokens")
    assert (axis.get_xlabel(), axis.get_ylabel()) == labels


def test_distance_has_a_panel_for_each_selector_but_controls_with_both_contexts_and_a_random_choice(
    tables: Path,
) -> None:
    drawn = read(tables)
    (figure,) = figures_of(distance.draw(drawn))
    panels = [axis for axis in figure.axes if axis.axison]
    names = ["unmask-one", "gradient", "mask-one", "greedy", "lasso", "kl", "attention", "greedy-kl"]
    assert [axis.get_title() for axis in panels] == [f"{name}, k = 8" for name in names]
    for axis, name in zip(panels, names, strict=True):
        real, null, uniform = axis.lines
        for line, context in ((real, "real"), (null, "null")):
            shares = next(e.bins for e in drawn.distances if (e.selector, e.context, e.k) == (name, context, 8))
            assert list(line.get_ydata()) == [mean(of.share) for of in shares]
        assert [line.get_linestyle() for line in axis.lines] == ["-", ":", "--"]
        assert [line.get_color() for line in axis.lines] == [style.LOOKS[name]["color"], "black", "grey"]
        assert set(uniform.get_ydata()) == {1 / M} and axis.get_ylim()[0] == 0
    told = next(e.bins for e in drawn.distances if (e.selector, e.context, e.k) == ("kl", "real", 8))[0]
    assert next(distance.draw(drawn)).finding.startswith(
        f"Of the 8 tokens that kl chooses, a share of {interval(told.share, 3)} lies 9 tokens before the target, the nearest"
    )
    (controls,) = figures_of(distance.draw(read(tables, "random", "nearest")))
    assert [axis.get_title() for axis in controls.axes] == ["random, k = 8", "nearest, k = 8"]


@pytest.mark.parametrize(
    ("first", "last", "ticks"),
    [
        (65, 128, ["65", "81", "102", "128"]),
        (33, 512, ["64", "128", "256", "512"]),
        (9, 1000, ["16", "32", "64", "128", "256", "512"]),
        (9, 2100, ["32", "128", "512", "2048"]),  # the farthest are kept
    ],
)
def test_distances_have_few_ticks_at_powers_of_two(first: int, last: int, ticks: list[str]) -> None:
    _, axis = plt.subplots()
    ends = DistanceBin(first, first, Estimate(0.5), 0.5), DistanceBin(last, last, Estimate(0.5), 0.5)
    distance._make_logarithmic(axis, ends)
    assert [label.get_text() for label in axis.get_xticklabels()] in (ticks, ticks[::-1])
    plt.close("all")


def test_many_long_range_tokens_have_a_logarithmic_axis_of_distances(tmp_path: Path) -> None:
    """Scores at random are flat there, at 1, although the bins differ in width."""
    tables = tmp_path / "many"
    write_tables(tables, 300, invented=PRETRAINED)
    drawn = read(tables, "kl", "random")
    (figure,) = figures_of(distance.draw(drawn))
    axis = figure.axes[0]
    assert axis.get_xscale() == "log" and "over that of a random choice" in axis.get_ylabel()
    real, uniform = axis.lines[0], axis.lines[2]
    assert set(uniform.get_ydata()) == {1.0}
    assert np.abs(np.array(real.get_ydata()) - 1).max() < 0.15
    bins = next(e.bins for e in drawn.distances if (e.selector, e.context, e.k) == ("kl", "real", 32))
    assert (bins[0].from_tokens, bins[-1].to_tokens) == (65, 128)
    assert all(b.from_tokens == a.to_tokens + 1 for a, b in pairwise(bins))
    assert sum(b.uniform for b in bins) == pytest.approx(1) and sum(mean(b.share) for b in bins) == pytest.approx(1)


def test_bins_of_distance_that_differ_in_width_are_relative_to_a_random_choice(tmp_path: Path) -> None:
    """With 24 long-range tokens bins hold one or two distances, and shares would rise and fall with that alone."""
    tables = tmp_path / "uneven-bins"
    write_tables(tables, 300, invented=dataclasses.replace(PRETRAINED, full_len=88, ks=[1, 6]))
    (figure,) = figures_of(distance.draw(read(tables, "kl", "random")))
    axis = figure.axes[0]
    assert axis.get_xscale() == "linear" and "over that of a random choice" in axis.get_ylabel()
    real, uniform = axis.lines[0], axis.lines[2]
    assert set(uniform.get_ydata()) == {1.0}
    assert np.abs(np.array(real.get_ydata()) - 1).max() < 0.25
    assert "Bins differ in width by a token; their shares are divided by those of a random" in str(figure.get_label())


def test_figures_of_one_k_or_a_panel_for_each_leave_all_tokens_out(tmp_path: Path) -> None:
    """There R(k) and D(k) are 1 by definition. The curves against k have every k."""
    tables = tmp_path / "many"
    write_tables(tables, 60, invented=dataclasses.replace(PRETRAINED, ks=[1, 2, 4, 8, 16, 32, 64]))
    drawn = read(tables, "unmask-one", "kl", "random")
    shown: dict[str, set[int]] = {}
    for name, draw in FIGURES.items():
        axes = [axis for figure in figures_of(draw(drawn)) for axis in figure.axes]
        titles = " ".join(axis.get_title() + axis.get_title(loc="left") for axis in axes)
        found = re.findall(r"(?:\bk = |\bR\(|the )(\d+)(?:\)| chosen| most)?(?=\s|,|$)", titles)
        shown[name] = {int(k) for k in found}
    assert shown["figure4"] == {1, 2, 4, 8, 16}
    assert shown["figure5"] == {8}
    for name in ("classes", "distance"):
        assert shown[name] == {16}, name


def test_distance_of_some_windows_in_uneven_parts(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "uneven", part_sizes=[1, 50, 7, 32])
    measurement = only(load(tables), ["kl", "random"]).restrict(np.arange(90) % 2 == 0)
    (figure,) = figures_of(distance.draw(measured(tables, measurement)))
    for line, context in zip(figure.axes[0].lines, ("real", "null"), strict=False):
        far = [
            row["distance_tokens"]
            for row in rows(tables, "selections")
            if (row["selector"], row["context"], row["window_id"] % 2) == ("kl", context, 0)
        ]
        assert len(far) == 45
        counts = np.bincount(np.ravel(far), minlength=21)[9:]
        assert list(line.get_ydata()) == pytest.approx(counts / counts.sum())


def test_the_caption_on_the_picture_is_two_lines_of_whole_sentences() -> None:
    """The first sentences that fit, and behind them what was measured; the whole text is the label."""
    figure = plt.figure(figsize=(4, 1))
    long = "A third one that is far too long to fit " + "x " * 90 + "end."
    output.caption_text(figure, f"First one. Second one. {long}", last="Data.")
    assert figure.texts[0].get_text().replace("\n", " ") == "First one. Second one. Data."
    assert str(figure.get_label()).endswith("x end.")
    longest = plt.figure(figsize=(4, 1))
    output.caption_text(longest, "First.", last="Data: " + "word " * 60)
    lines = longest.texts[0].get_text().split("\n")
    assert len(lines) == 2 and lines[0].startswith("Data: word") and lines[1].endswith(" ...")
    plt.close("all")


def test_bars_reach_from_the_mean_to_both_ends_where_every_estimate_has_them() -> None:
    estimates = [Estimate(0.5, 0.25, 1.0), Estimate(-1.0, -3.0, -0.5)]
    bars = style.error_bars(estimates)
    assert bars is not None and bars.tolist() == [[0.25, 2.0], [0.5, 0.5]]
    assert style.error_bars([*estimates, Estimate(0.5)]) is None


def test_lines_side_by_side_stay_near_their_place() -> None:
    """At most a set share of the distance between neighbours, however many lines; and none over another."""
    assert style.dodges(0, [1, 2]) == []
    for number in (1, 2, 5, 10):
        shifts = np.array(style.dodges(number, [1, 2, 8]))
        assert len(shifts) == number and (np.diff(shifts) > 0).all()
        assert np.log2(shifts).max() <= style.DODGE / 2 + 1e-12
        assert np.log2(shifts).min() == pytest.approx(-np.log2(shifts).max())
    assert style.dodges(1, [5]) == [1.0]
    near = np.log(style.dodges(3, [100, 120, 400]))
    assert near[-1] - near[0] == pytest.approx(style.DODGE * np.log(1.2))
    far = np.log(style.dodges(2, [1, 64]))
    assert far[-1] - far[0] == pytest.approx(style.DODGE * np.log(2))


@pytest.mark.parametrize(
    ("selectors", "shown"), [(["unmask-one", "kl", "attention"], "kl"), (["unmask-one"], "unmask-one")]
)
def test_figure5_shows_a_choice_made_without_the_target(tables: Path, selectors: list[str], shown: str) -> None:
    (figure,) = figures_of(figure5.draw(read(tables, *selectors)))
    title = figure.axes[2].get_title(loc="left")
    assert f"({shown}, numbered by rank)" in title
    window_id = int(str(figure.get_label()).split("Window ")[1].split()[0])
    (row,) = (
        row for row in rows(tables, "selections")
        if (row["window_id"], row["selector"], row["context"]) == (window_id, shown, "real")
    )  # fmt: skip
    at_2 = row["k"].index(2)  # the largest measured k that is at most a quarter of 12
    assert f"Loss of the target: {row['loss_sparse_nats'][at_2]:.2f} nats" in title
    assert (f"{shown} sees the target" in str(figure.get_label())) == (shown == "unmask-one")
    ranks = [text.get_text() for text in figure.axes[2].texts if text.get_fontsize() == 5]
    order = np.argsort(row["positions"][:2]) + 1  # ranks in the order of the text
    assert ranks == [str(rank) for rank in order]


def test_the_class_with_the_largest_long_gain_is_on_top(tables: Path) -> None:
    """Each row of the figure, from the top, against the means of the rows of the table."""
    (figure,) = figures_of(FIGURES["classes"](read(tables, "unmask-one", "kl", "random")))
    axis = figure.axes[0]
    labels = [label.get_text().split("\n")[0] for label in axis.get_yticklabels()]
    heights = axis.transData.transform([(0, tick) for tick in axis.get_yticks()])[:, 1]
    gains: dict[str, list[float]] = {}
    for row in rows(tables, "windows"):
        gains.setdefault(row["target_class"], []).append(row["gain_long_nats"])
    means = {name: float(np.mean(values)) for name, values in gains.items()}
    from_the_top = [labels[i] for i in np.argsort(-heights)]
    assert from_the_top == sorted(from_the_top, key=lambda name: -means[name]) and len(labels) == 4
    gains_drawn = figure.axes[1]  # beside the shares of the windows
    assert gains_drawn.get_ylim() == axis.get_ylim()
    points = [line.get_xydata()[0] for line in gains_drawn.lines if len(line.get_xdata()) == 1]
    for tick, name in zip(axis.get_yticks(), labels, strict=True):
        assert any(abs(x - means[name]) < 1e-4 and abs(y - tick) < 0.5 for x, y in points), name
