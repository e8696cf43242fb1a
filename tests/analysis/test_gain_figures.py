"""The figures of R(k), of D(k), of the classes and of the sample size: what is plotted, under which label."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_figures import assert_bars, figures_of, fragile, heights, mean, measured, only, read, words_on
from made_up import KS, SEES_TARGET, made_up_tables
from matplotlib.axes import Axes

from analysis import classes, prediction_recovered, recovered_fraction
from analysis.style import LOOKS, offsets_in_row
from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.intervals.ratios import MIN_RATIO_DOCUMENTS
from olmo_sparsity.statistics.single.breakdowns import by_class
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import Summary

BLIND = [name for name, sees_target in SEES_TARGET.items() if not sees_target]
SEEING = [name for name, sees_target in SEES_TARGET.items() if sees_target]


def line_of(summary: Summary, selector: str, *, context: str, quantity: str) -> tuple[float, ...]:
    return tuple(mean(summary.at(selector, context, k).estimate(quantity)) for k in KS)


def drawn_selectors(axis: Axes) -> set[str]:
    """Return the selectors whose colour and marker some line of a panel has."""
    looks = {(line.get_color(), line.get_marker()) for line in axis.lines}
    return {name for name, look in LOOKS.items() if (look["color"], look["marker"]) in looks}


def line_styles(axis: Axes, selector: str) -> set[str]:
    lines = [line for line in axis.lines if line.get_marker() == LOOKS[selector]["marker"]]
    return {line.get_linestyle() for line in lines if len(line.get_xdata()) == len(KS)}


def test_recovered_fraction_shows_the_summary(tables: Path) -> None:
    (figure,) = figures_of(recovered_fraction.draw(read(tables)))
    summary, axes = read(tables).summary, figure.axes
    assert [axis.get_title() for axis in axes] == [
        "R(k)\ntarget unseen", "gain over random\ntarget unseen", "real minus null\ntarget unseen",
        "sparse gain, optimism\ntarget seen", "corrected gain\ntarget seen", "real minus null\ntarget seen",
    ]  # fmt: skip
    assert [axis.get_ylabel() for axis in axes] == ["recovered fraction", *["mean, nats"] * 5]
    expected: list[list[tuple[str, str, str]]] = [  # context, quantity and line of each panel
        [("real", "recovered_fraction", "-"), ("null", "recovered_fraction", ":")],
        [("real", "gain_over_random_nats", "-"), ("null", "gain_over_random_nats", ":")],
        [("real", "excess_gain_nats", "-")],
        [("real", "gain_sparse_nats", "-"), ("real", "optimism_nats", "-.")],
        [("real", "corrected_gain_nats", "-"), ("null", "corrected_gain_nats", ":")],
        [("real", "excess_gain_nats", "-")],
    ]
    for axis, group, lines in zip(axes, [BLIND] * 3 + [SEEING] * 3, expected, strict=True):
        selectors = [name for name in group if (name, lines[0][1]) != ("random", "gain_over_random_nats")]
        assert drawn_selectors(axis) == set(selectors), axis.get_title()
        for selector in selectors:
            assert line_styles(axis, selector) == {style for *_, style in lines}
            for context, quantity, _ in lines:
                assert line_of(summary, selector, context=context, quantity=quantity) in heights(axis)
    for axis in (axes[1], axes[3], axes[4]):
        assert (summary.long_gain_nats.mean,) * 2 in heights(axis)
    low, high = summary.long_gain_nats.bounds or (0, 0)
    for axis in axes:
        spans = [(patch.get_y(), patch.get_y() + patch.get_height()) for patch in axis.patches]
        assert spans == ([pytest.approx((low, high))] if axis in (axes[1], axes[3], axes[4]) else [])
        dashed = [
            set(line.get_ydata()) for line in axis.lines if line.get_linestyle() == "--" and len(line.get_xdata()) == 2
        ]
        beside = [{summary.long_gain_nats.mean}] if axis in (axes[1], axes[3], axes[4]) else []
        assert dashed == ([{1}] if axis is axes[0] else beside)


def test_without_a_gate_there_is_no_recovered_fraction(folders: dict[str, Path]) -> None:
    drawn = read(folders["failed"])
    gains, predictions = figures_of([*recovered_fraction.draw(drawn), *prediction_recovered.draw(drawn)])
    for axis in (gains.axes[0], predictions.axes[2]):
        assert "R(k)" in axis.get_title()
        assert not axis.lines
        assert axis.texts[0].get_text().replace("\n", " ").startswith("gate failed: the windows show no clear gain")
    assert all(axis.lines for axis in [*gains.axes[1:], *predictions.axes[:2]])


def test_fragile_fractions_are_marked(tables: Path) -> None:
    robust = read(tables, "kl", "random")
    figures = [
        figure
        for drawn in (robust, fragile(robust))
        for figure in figures_of([*recovered_fraction.draw(drawn), *prediction_recovered.draw(drawn)])
    ]
    marked = [[axis.get_title() for axis in figure.axes if "fragile" in axis.get_title()] for figure in figures]
    assert marked == [[], [], ["R(k), fragile\ntarget unseen"], ["R(k), real context, fragile"]]


def test_the_prediction_is_never_shown_without_its_company(tables: Path) -> None:
    """D(k) of every selector and of `random`; D under the null context; R(k)."""
    (figure,) = figures_of(prediction_recovered.draw(read(tables)))
    summary, (real, null, gain) = read(tables).summary, figure.axes
    assert [axis.get_title() for axis in (real, null, gain)] == [
        "D(k), real context", "D(k), null context", "R(k), real context",
    ]  # fmt: skip
    labels = ["prediction recovered"] * 2 + ["recovered fraction"]
    assert [axis.get_ylabel() for axis in (real, null, gain)] == labels
    assert {axis.get_xlabel() for axis in (real, null, gain)} == {"k, unmasked tokens"}
    for axis, context, style, selectors in (
        (real, "real", "-", list(SEES_TARGET)),
        (null, "null", ":", list(SEES_TARGET)),
    ):
        assert drawn_selectors(axis) == set(selectors)
        for selector in selectors:
            assert style in line_styles(axis, selector)
            shown = line_of(summary, selector, context=context, quantity="prediction_recovered")
            assert shown in heights(axis)
    assert drawn_selectors(gain) == set(SEES_TARGET)
    for selector in SEES_TARGET:
        assert line_of(summary, selector, context="real", quantity="recovered_fraction") in heights(gain)
        alphas = {line.get_alpha() for line in gain.lines if line.get_marker() == LOOKS[selector]["marker"]}
        assert alphas == {prediction_recovered.PALE if SEES_TARGET[selector] else 1.0}
    assert len({axis.get_ylim() for axis in (real, null)}) == 1
    assert "no evidence that the context helps" in words_on(figure)


@pytest.mark.parametrize("num_documents", [MIN_RATIO_DOCUMENTS - 1, MIN_RATIO_DOCUMENTS])
def test_bars_of_d_stand_only_where_there_are_documents_enough(num_documents: int, tmp_path: Path) -> None:
    """R(k), of the same windows, has bars with fewer."""
    drawn = read(made_up_tables(tmp_path / "tables", num_documents, selectors=["kl", "random"]))
    (figure,) = figures_of(prediction_recovered.draw(drawn))
    for axis, quantity in ((figure.axes[0], "prediction_recovered"), (figure.axes[2], "recovered_fraction")):
        found = [drawn.summary.at(name, "real", k).estimate(quantity) for name in ("kl", "random") for k in KS]
        expected = sorted(estimate.bounds for estimate in found if estimate is not None and estimate.bounds is not None)
        bars = sorted(tuple(segment[:, 1]) for bars in axis.collections for segment in bars.get_segments())
        has_few = quantity == "prediction_recovered" and num_documents < MIN_RATIO_DOCUMENTS
        assert len(bars) == (0 if has_few else len(found))
        assert np.array(bars) == pytest.approx(np.array(expected))
    words = f"D(k): too few documents for an interval ({num_documents}; it takes {MIN_RATIO_DOCUMENTS})."
    assert (words in words_on(figure)) == (num_documents < MIN_RATIO_DOCUMENTS)


def test_what_was_not_measured_is_said(tables: Path) -> None:
    figures = [
        figure for name in ("random", "lasso") for figure in figures_of(recovered_fraction.draw(read(tables, name)))
    ]
    assert [text.get_text() for text in figures[0].axes[1].texts] == ["not measured"]
    assert [len(figure.axes) for figure in figures] == [3, 3]
    assert "target seen" not in words_on(figures[0]) and "target unseen" not in words_on(figures[1])


def points_with(axis: Axes, look: dict[str, object]) -> list[tuple[float, ...]]:
    return [
        tuple(line.get_xydata()[0].round(9))
        for line in axis.lines
        if line.get_marker() == look["marker"] and line.get_color() == look["color"] and len(line.get_xdata()) == 1
    ]


def test_classes_show_the_breakdown(tables: Path) -> None:
    drawn = read(tables, *MAIN_SELECTORS)
    (figure,) = figures_of(classes.draw(drawn))
    entries = by_class(drawn.measurement, drawn.summary)
    axes = figure.axes
    labels = [label.get_text().split("\n")[0] for label in axes[0].get_yticklabels()]
    assert labels == [entry.target_class for entry in entries]
    assert [label.get_text().split("\n")[1] for label in axes[0].get_yticklabels()] == [
        f"{entry.summary.num_windows} windows, {entry.summary.num_documents} documents" for entry in entries
    ]
    assert any(entry.summary.num_windows != entry.summary.num_documents for entry in entries)
    gain_bars = [container for container in axes[1].containers if container.lines[0].get_color() == "black"]
    for container, entry in zip(gain_bars, entries, strict=True):
        assert_bars(container, [entry.summary.long_gain_nats], upright=False)
    assert {entry.summary.gate for entry in entries} == {"passed", "not-assessed"}
    said = {round(text.get_position()[1]): text.get_text() for text in axes[2].texts if "no R(k)" in text.get_text()}
    assert said == {
        row: "gate failed: no R(k)" if entry.summary.gate == "failed" else "too few documents: no R(k)"
        for row, entry in enumerate(entries)
        if entry.summary.gate != "passed"
    }
    assert [axis.get_title().replace("\n", " ") for axis in axes] == [
        "share of windows weighted", "long gain nats", "R(8) target unseen", "gain minus control k = 8, nats",
    ]  # fmt: skip
    shares, gains = [e.window_share.mean for e in entries], [e.summary.long_gain_nats.mean for e in entries]
    for axis, values in ((axes[0], shares), (axes[1], gains)):
        shown = points_with(axis, {"color": "black", "marker": "o"})
        assert shown == [(round(value, 9), row) for row, value in enumerate(values)]
    for selector in ("kl", "attention", "unmask-one"):
        at = [entry.summary.at(selector, "real", 8) for entry in entries]
        fractions = [] if selector == "unmask-one" else [e for e in at if e.recovered_fraction is not None]
        shown = [x for x, _ in points_with(axes[2], LOOKS[selector])]
        assert shown == [round(mean(entry.recovered_fraction), 9) for entry in fractions]
        controls = [e.corrected_gain_nats if selector == "unmask-one" else e.gain_over_random_nats for e in at]
        assert [x for x, _ in points_with(axes[3], LOOKS[selector])] == [round(mean(value), 9) for value in controls]
    words = words_on(figure)
    assert "unmask-one (sees the target)" in words
    assert [entry.summary.num_documents >= 50 for entry in entries].count(True) == 1  # the others have no gate
    assert "passes by chance in 2.5% of measurements; one class has enough documents for it." in words


def test_rows_of_classes_are_grey_where_their_gate_did_not_pass_and_say_where_r_is_fragile(tables: Path) -> None:
    """A class that is fragile and has no R(k) says nothing; without contrasts the caption does not speak of them."""
    drawn = copy.copy(read(tables, *MAIN_SELECTORS))  # what is read is shared with other tests
    entries = by_class(drawn.measurement, drawn.summary)
    (figure,) = figures_of(classes.draw(drawn))
    not_passed = [row for row, entry in enumerate(entries) if not entry.summary.gate_passed]
    assert 0 < len(not_passed) < len(entries)
    for axis in figure.axes:
        grey = [
            (round(patch.get_y(), 9), round(patch.get_height(), 9)) for patch in axis.patches if patch.get_height() == 1
        ]
        assert grey == [(row - 0.5, 1.0) for row in not_passed]
    assert classes.CONTRAST_WORDS in words_on(figure)
    assert (
        "Grey: the interval of the class's own gain at the gate, the long gain without the cost of the gap"
        in words_on(figure)
    )
    fragile = [
        dataclasses.replace(entry, contrast=None, summary=dataclasses.replace(entry.summary, is_fragile=row != 1))
        for row, entry in enumerate(entries)
    ]
    drawn.__dict__["classes"] = fragile
    (marked,) = figures_of(classes.draw(drawn))
    rows = {round(text.get_position()[1] - 0.45) for text in marked.axes[2].texts if text.get_text() == "fragile"}
    assert rows == {row for row in range(len(entries)) if row != 1 and row not in not_passed} != set()
    assert classes.CONTRAST_WORDS not in words_on(marked)
    above_0 = next(entry for entry in entries if entry.summary.long_gain_nats.is_above_zero)
    of_gap = dataclasses.replace(above_0, summary=dataclasses.replace(above_0.summary, gate="failed"))
    drawn.__dict__["classes"] = [of_gap if entry is above_0 else entry for entry in entries]
    (grey_above_0,) = figures_of(classes.draw(drawn))
    said = f"The gate of {of_gap.target_class} failed: the long gain may be the cost of the gap in the position IDs."
    assert said in words_on(grey_above_0) and said not in words_on(figure)


def test_classes_that_look_for_the_target_stand_beside_the_null_context(tables: Path) -> None:
    drawn = read(tables, *MAIN_SELECTORS)
    (figure,) = figures_of(classes.draw(drawn))
    axis, windows = figure.axes[1], drawn.measurement.windows
    labels = [label.get_text().split("\n")[0] for label in figure.axes[0].get_yticklabels()]
    same, others = points_with(axis, classes.SAME_RULE_LOOK), points_with(axis, classes.OTHERS_LOOK)
    assert [labels[round(row - 0.2)] for _, row in same] == [name for name in labels if name in ("induction", "repeat")]
    for points, is_same in ((same, True), (others, False)):
        for (x, _), name in zip(points, [name for name in labels if name in ("induction", "repeat")], strict=True):
            chosen = (windows["null_target_class"] == name) == is_same
            assert x == pytest.approx(windows["null_gain_long_nats"][chosen].mean(), abs=1e-6)
    looks = {
        line.get_label(): (line.get_color(), line.get_marker(), line.get_markerfacecolor())
        for line in figure.legends[0].legend_handles
    }
    for label, look in (
        ("same rule, null context", classes.SAME_RULE_LOOK),
        ("other targets, null context", classes.OTHERS_LOOK),
    ):
        assert looks[label] == (look["color"], look["marker"], look.get("markerfacecolor", look["color"])), label


def test_no_class_has_a_fraction_where_the_gate_of_the_whole_failed(tmp_path: Path) -> None:
    """`repeat` gains, and all windows together do not: its R(k) was shown once."""
    tables = made_up_tables(tmp_path / "tables", num_documents=200, long_gain=0.0)
    measurement = only(load(tables), ["unmask-one", "kl", "random"])
    gains = measurement.windows["gain_long_nats"] + np.where(measurement.windows["target_class"] == "repeat", 0.3, -0.2)
    measurement = dataclasses.replace(measurement, windows=measurement.windows.assign(gain_long_nats=gains))
    drawn = measured(tables, measurement)
    entries = by_class(measurement, drawn.summary)
    assert not drawn.summary.gate_passed and entries[0].summary.long_gain_nats.is_above_zero
    (figure,) = figures_of(classes.draw(drawn))
    axis = figure.axes[2]
    assert not axis.lines
    assert [text.get_text().replace("\n", " ") for text in axis.texts] == ["gate of all windows failed: no R(k)"] * len(
        entries
    )


@pytest.mark.parametrize(
    ("ks", "labels"),
    [
        ([1, 3, 4, 10], ["1", "3", "4", "10"]),
        ([2, 5], ["2", "5"]),
        ([7], ["7"]),
        (list(range(1, 41)), ["1", "2", "4", "8", "16", "40"]),
        (list(range(1, 33)), ["1", "2", "4", "8", "16", "32"]),
    ],
)
def test_labels_of_many_k_do_not_touch(ks: list[int], labels: list[str]) -> None:
    """Every k has a point; of `--k all` few have a label."""
    summary: Any = SimpleNamespace(ks=ks, unit="token", setup=SimpleNamespace(visibility="hidden"), num_windows=90)
    figure, axis = plt.subplots(figsize=(3.5, 3))
    recovered_fraction.set_axis_of_k(axis, summary)
    figure.canvas.draw()
    assert [label.get_text() for label in axis.get_xticklabels()] == labels


def test_marks_of_many_selectors_stay_in_their_row() -> None:
    """As they are three to six selectors, whose marks are 0.17 of a row apart."""
    assert offsets_in_row(3, apart=0.17) == pytest.approx([-0.17, 0, 0.17])
    offsets = offsets_in_row(9, apart=0.17)
    assert max(offsets) == -min(offsets) < 0.4 and len(set(offsets)) == 9
