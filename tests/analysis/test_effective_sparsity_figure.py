"""The figure of effective sparsity against context length: its points, bars and marks are the planted numbers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import typer
from made_up import CONTEXTUAL, made_up_tables
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from planted_lengths import ATTENTION, NULL, RANDOM, k_of_share, planted_length
from typer.testing import CliRunner

from analysis import effective_sparsity
from analysis.of_lengths import command_of_lengths, targets_words
from analysis.output import save
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.sparsity_by_length import (
    SHARES,
    LineKey,
    PointKey,
    ReachingK,
    SparsityByLength,
    sparsity_by_length,
)

LENGTHS = (128, 256, 512)


@pytest.fixture(scope="module")
def found() -> SparsityByLength:
    measured = [planted_length(length, spread=0.5) for length in LENGTHS]
    smaller = {"name": "someone/Smaller", "weights_sha256": "e" * 64}
    measured += [planted_length(length, ks=[1, 2, 4, 8], model=smaller, long_gain=0.0) for length in LENGTHS[:2]]
    return sparsity_by_length(measured, selector="attention")


@pytest.fixture(scope="module")
def figure(found: SparsityByLength) -> Figure:
    figure = effective_sparsity.draw_found(found).figure
    plt.close(figure)
    return figure


def test_the_growth_of_a_constant_share_stands_beside_that_of_k(found: SparsityByLength) -> None:
    """M is 64 and 192 of 128 and 256 tokens: a constant share grows as the logarithm of 3 to the base 2 says."""
    assert found.models[1].growth_of_constant_share == pytest.approx(np.log2(3))
    assert effective_sparsity.slope_lines(found)[-2:] == [
        "If k of someone/Made-Up-2M were always the same share of the long-range tokens, it would grow as full_len^1.40",
        "If k of someone/Smaller were always the same share of the long-range tokens, it would grow as full_len^1.58",
    ]


def marks(axis: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in axis.texts if text.get_text()]


def test_lines_are_the_numbers_of_both_models(figure: Figure, found: SparsityByLength) -> None:
    for panel, share in enumerate(SHARES):
        for row in (0, 1):
            axis = figure.axes[row * len(SHARES) + panel]
            expected = []
            for model in found.models:
                for line in (ATTENTION, NULL, RANDOM):
                    points = {n: model.points[PointKey(line, share, n)].value for n in model.measurements}
                    expected.append([k if k is None or row == 0 else k / (n - 64) for n, k in points.items()])
            drawn = [list(line.get_ydata()) for line in axis.lines]
            assert len(drawn) == len(expected) == 6
            for heights, values in zip(drawn, expected, strict=True):
                assert heights == pytest.approx([np.nan if value is None else value for value in values], nan_ok=True)
    assert [axis.get_title() for axis in figure.axes[:3]] == [f"D(k) of at least {share:.0%}" for share in SHARES]
    assert "interpolated in log k" in figure.axes[0].get_ylabel()


@pytest.mark.parametrize(
    ("kind", "counts", "said"),
    [
        ("same-source", {}, "The targets, and the foreign text, of a model are the same at every length."),
        ("any-source", {"any-source": 60, "same-source": 20}, "The targets, and the foreign text, of a model are"),
        ("shuffled", {}, "of a model are the same at every length. Null context: the same tokens in random order."),
        (
            "same-document",
            {"same-document": 61, "same-source": 19},
            "The targets of a model are the same at every length. Null context: in 61 windows text from elsewhere in the same "
            "document; in 19 windows text of another document of the same source.",
        ),
    ],
)
def test_the_null_context_has_the_name_of_its_kind(kind: str, counts: dict[str, int], said: str) -> None:
    influence = {"sampling": "documents", "null_context": kind}
    measured = [
        planted_length(length, num_documents=40, influence=influence, null_contexts=counts) for length in LENGTHS
    ]
    words = targets_words(sparsity_by_length(measured, selector="attention").models)
    assert said in words and ("foreign text" in words) == kind.endswith("source")


def test_lines_of_a_panel_stand_beside_their_lengths(figure: Figure) -> None:
    places = np.array([line.get_xdata() for line in figure.axes[0].lines[:3]])
    assert places == pytest.approx(np.broadcast_to(LENGTHS, places.shape), rel=0.1)
    assert len(np.unique(places[:, 0])) == 3


def test_bars_are_the_intervals(figure: Figure, found: SparsityByLength) -> None:
    """In the lower row they are shares of the long-range tokens, as the points are."""
    model = found.models[0]
    points = [model.points[PointKey(ATTENTION, 0.5, length)] for length in LENGTHS]
    for axis, divisors in ((figure.axes[0], [1] * len(LENGTHS)), (figure.axes[3], [n - 64 for n in LENGTHS])):
        bars = [tuple(segment[:, 1]) for bars in axis.collections for segment in bars.get_segments()]
        expected = [(point.low / m, point.high / m) for point, m in zip(points, divisors, strict=True)]
        assert bars[: len(LENGTHS)] == [pytest.approx(ends) for ends in expected]


@pytest.mark.parametrize("num_documents", [299, 300])
def test_too_few_documents_have_no_bars_and_say_so(num_documents: int) -> None:
    measured = [planted_length(length, spread=0.5, num_documents=num_documents) for length in LENGTHS]
    found = sparsity_by_length(measured, selector="attention")
    drawn = effective_sparsity.draw_found(found)
    bars = [segment for axis in drawn.figure.axes for bars in axis.collections for segment in bars.get_segments()]
    plt.close(drawn.figure)
    of_k = f"k of someone/Made-Up-2M: too few documents for an interval ({num_documents}; it takes 300)"
    of_growth = (
        f"Growth of k of someone/Made-Up-2M: too few documents for an interval ({num_documents}; it takes 1,000)"
    )
    has_few = num_documents < 300
    assert (len(bars) == 0) == has_few
    assert effective_sparsity.slope_lines(found)[4:] == [of_k, of_growth][0 if has_few else 1 :]
    words = str(drawn.figure.get_label())
    assert (of_k in words) == has_few and of_growth in words
    assert "attention: full_len^0.40 (no interval) for 50%" in words
    table = effective_sparsity.table(found)
    assert (table[["k_low", "k_high"]].isna().all(axis=None)) == has_few and (table.has_interval == (not has_few)).all()
    assert table[["slope_low", "slope_high"]].isna().all(axis=None)


def test_a_bar_without_an_upper_end_has_an_arrow_upwards_from_the_largest_k() -> None:
    """Shares: 8 of 64 and 16 of 192 long-range tokens. A k with both ends has no arrow."""
    _, axis = plt.subplots()
    points = {128: ReachingK(4.0, 2.0, None, 8, True), 256: ReachingK(4.0, 2.0, 6.0, 16, True)}
    effective_sparsity._draw_line(
        axis, points, name="kl", divisors={128: 64, 256: 192}, shift=1.5, below={}, look={"color": "red"}
    )
    (arrow,) = axis.texts
    assert (arrow.xyann, arrow.xy) == ((192.0, 0.125), (192.0, pytest.approx(0.14)))  # type: ignore[attr-defined]
    assert [tuple(s[:, 1]) for bars in axis.collections for s in bars.get_segments()] == [
        (2 / 64, 8 / 64),
        (2 / 192, 6 / 192),
    ]
    assert [list(line.get_ydata()) for line in axis.lines] == [[4 / 64, 4 / 192]]
    plt.close("all")


def test_what_no_measured_k_reaches_has_a_mark_and_no_point(figure: Figure, found: SparsityByLength) -> None:
    assert marks(figure.axes[0]) == [">8 random"] * 2  # random of the smaller model, at both lengths
    assert found.models[1].points[PointKey(RANDOM, 0.5, 128)].value is None
    drawn = figure.axes[0].lines[5].get_ydata()
    assert np.isnan(np.asarray(drawn, dtype=float)).all()
    assert k_of_share(RANDOM, 0.9, 128) > 64
    assert ">64 random" in marks(figure.axes[2])
    at_128 = [text for text in figure.axes[1].texts if text.get_text().startswith(">8 ") and text.xy[0] < 180]
    assert [text.get_text() for text in at_128] == [">8 attention", ">8 null", ">8 random"]
    assert [text.xyann[1] for text in at_128] == [1, 8, 15]  # none over another
    figure.canvas.draw()
    for axis in figure.axes:  # nor over a title
        assert all(text.get_window_extent().y1 <= axis.bbox.y1 for text in axis.texts if text.get_text())


def test_the_caption_tells_growth_bound_gates_and_company(figure: Figure) -> None:
    words = str(figure.get_label())
    for expected in (
        "Growth of k of someone/Made-Up-2M, attention: full_len^0.40 [0.40, 0.40] for 50%,",
        "Growth of k of someone/Made-Up-2M, attention, null context: full_len^0.20 [0.20, 0.20] for 50%,",
        "Growth of k of someone/Made-Up-2M, random: full_len^1.00 [1.00, 1.00] for 50%,",
        "Growth of k of someone/Smaller, random: none for 50% (some length does not reach it),",
        "The k of a selector is an upper bound of the entries that suffice: another choice may need fewer. An entry: ",
        "the local context fixed at 64 tokens",
        "D(k) alone is no evidence that the context helps",
        "the gate passed at every length",
        "the gate FAILED at full_len 128, 256",
        "2,000 windows of 1,000 documents (planted text, measured), mean over windows drawn document by document",
        "The targets, and the foreign text, of a model are the same at every length. Those of other models are their own.",
    ):
        assert expected in words
    above = figure._suptitle  # what nobody may miss
    assert above is not None and above.get_text() == "someone/Smaller: gate FAILED at full_len 128, 256"
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["someone/Made-Up-2M", "someone/Smaller", "attention", "attention, null context", "random"]
    handles = figure.legends[0].legend_handles
    of_lines = [(line.get_linestyle(), line.get_marker()) for line in handles[2:]]
    assert len(set(of_lines)) == 3 and handles[0].get_color() != handles[1].get_color()
    for axis in figure.axes:
        assert [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axis.lines] == [
            (model.get_color(), *look) for model in handles[:2] for look in of_lines
        ]
        for line, entry in zip(axis.lines, [*handles[2:]] * 2, strict=True):
            assert (line.get_markerfacecolor() == "white") == (entry.get_markerfacecolor() == "white")


@pytest.mark.parametrize(
    ("low", "high", "is_relative", "ticks"),
    [
        (1, 128, False, ["1", "2", "4", "8", "16", "32", "64", "128"]),
        (1, 256, False, ["1", "4", "16", "64", "256"]),
        (3, 70_000, False, ["4", "16", "64", "256", "1,024", "4,096", "16,384", "65,536"]),
        (0.02, 1, True, ["0.03", "0.1", "0.3", "1"]),
    ],
)
def test_a_panel_has_at_most_eight_ticks(low: float, high: float, is_relative: bool, ticks: list[str]) -> None:
    figure, axis = plt.subplots()
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    effective_sparsity._set_ticks(axis, [128, 256], is_relative=is_relative)
    assert [label.get_text() for label in axis.get_yticklabels()] == ticks
    plt.close(figure)


def test_what_it_shows_is_the_k_of_80_percent_at_the_ends(found: SparsityByLength) -> None:
    drawn = effective_sparsity.draw_found(found)
    plt.close(drawn.figure)
    first, last = (found.models[0].points[PointKey(ATTENTION, 0.8, length)] for length in (128, 512))
    assert first.value is not None and last.value is not None and last.value > 1.5 * first.value
    of_ends = [
        f"{point.value:.1f} [{point.low:.1f}, {point.high:.1f}] at {n} tokens"
        for point, n in ((first, 128), (last, 512))
    ]
    assert drawn.finding == (
        f"Smallest k, chosen by attention, of which D(k) reaches 80%: someone/Made-Up-2M {', '.join(of_ends)}; "
        "someone/Smaller > 8 [> 8, > 8] at 128 tokens, > 8 [> 8, > 8] at 256 tokens."
    )


def test_the_caption_says_that_entries_are_bounded_where_entries_are_chosen(figure: Figure) -> None:
    assert "an upper bound of the entries that suffice" in str(figure.get_label())  # contextual visibility


def test_the_legend_stands_below_the_panels(figure: Figure) -> None:
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().y1 <= min(axis.get_tightbbox().y0 for axis in figure.axes)


@pytest.mark.usefixtures("quick_pictures")
def test_the_table_has_every_point(found: SparsityByLength, tmp_path: Path) -> None:
    save(effective_sparsity.draw_found(found), tmp_path)
    csv = tmp_path / "effective-sparsity.csv"
    csv.write_text(csv.read_text().replace("someone", "nobody"))
    save(effective_sparsity.draw_found(found), tmp_path)  # an earlier table is replaced
    rows = pd.read_csv(csv, keep_default_na=False, na_values=[""])
    assert len(rows) == 3 * 3 * (3 + 2)
    row = rows.query("model == 'someone/Made-Up-2M' and context == 'null' and share == 0.8 and full_len == 512").iloc[0]
    point = found.models[0].points[PointKey(NULL, 0.8, 512)]
    assert [row.k, row.k_low, row.k_high, row.max_k] == pytest.approx([point.value, point.low, point.high, 448])
    assert row.k_share == pytest.approx(point.value / 448) and row.slope == pytest.approx(0.2)
    assert set(rows[["model", "gate"]].itertuples(index=False, name=None)) == {
        ("someone/Made-Up-2M", "passed"), ("someone/Smaller", "failed"),
    }  # fmt: skip
    missing = rows.query("model == 'someone/Smaller' and selector == 'random'")
    assert missing.k.isna().all() and (missing.max_k == 8).all()


def test_the_table_has_the_slope_of_each_line_and_share_with_its_interval(found: SparsityByLength) -> None:
    slopes = {key: Estimate(0.1 * i, 0.1 * i - 0.03, 0.1 * i + 0.05) for i, key in enumerate(found.models[0].slopes)}
    model = dataclasses.replace(found.models[0], slopes=slopes)
    rows = effective_sparsity.table(dataclasses.replace(found, models=(model,))).query("full_len == 256")
    assert len(rows) == len(slopes) == 9
    for row in rows.itertuples():
        of = slopes[LineKey(row.selector, row.context), row.share]
        assert (row.slope, row.slope_low, row.slope_high) == (of.mean, of.low, of.high)


def test_tables_of_one_length_are_refused_in_one_line(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "tables", num_documents=2, setup=CONTEXTUAL)
    app = typer.Typer()
    app.command()(command_of_lengths(effective_sparsity.draw))
    result = CliRunner().invoke(app, ["--tables", str(tables), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "error: someone/Made-Up-2M was measured at full_len 20 alone" in result.output
    assert not (tmp_path / "out").exists()


def test_where_nothing_reacts_there_is_no_point(tmp_path: Path) -> None:
    measured = [planted_length(length, num_documents=60) for length in (128, 256)]
    for column in ("kl_short_nats", "null_kl_short_nats"):
        measured[1].measurement.windows[column] = 0.0
    found = sparsity_by_length(measured, selector="attention")
    drawn = effective_sparsity.draw_found(found)
    plt.close(drawn.figure)
    for axis in drawn.figure.axes:
        lines = [np.asarray(line.get_xydata()).T for line in axis.lines if line.get_marker() in ("o", "x")]
        at_points = [x[~np.isnan(y)] for x, y in lines]
        assert len(lines) == 3 and len(at_points[0]) == 1  # not every line reaches the larger shares
        assert max(np.concatenate(at_points)) < 200
    assert drawn.finding.endswith(" at 128 tokens, undefined, since nothing reacts, at 256 tokens.")
    assert set(effective_sparsity.table(found)["full_len"]) == {128}


def test_a_line_does_not_pass_over_a_length_where_nothing_reacts() -> None:
    _, axis = plt.subplots()
    points = {n: ReachingK(4.0, None, None, 8, False) for n in (128, 512)}
    divisors = {128: 1, 256: 1, 512: 1}
    effective_sparsity._draw_line(axis, points, name="kl", divisors=divisors, shift=1, below={}, look={"color": "red"})
    (line,) = axis.lines
    np.testing.assert_array_equal(line.get_xydata(), [(128, 4), (256, np.nan), (512, 4)])
    plt.close("all")


def test_the_table_has_the_gate_of_the_caption_where_the_gain_is_the_cost_of_the_gap() -> None:
    measured = [planted_length(length) for length in (128, 256)]
    measured[1].measurement.windows["loss_short_nats"] = 4.0
    measured[1].measurement.windows["loss_short_no_gap_nats"] = 3.4  # the gap costs more than the long gain of 0.5
    found = sparsity_by_length(measured, selector="attention")
    drawn = effective_sparsity.draw_found(found)
    plt.close(drawn.figure)
    table = effective_sparsity.table(found)
    assert table.groupby("full_len").gate.unique().map(list).to_dict() == {128: ["passed"], 256: ["failed"]}
    windows = measured[0].measurement.windows  # both have the same long gains
    gain = f"{np.average(windows['gain_long_nats'], weights=windows['weight']):.3f}"
    caption = re.sub(r" \[.*?\]", "", str(drawn.figure.get_label()))
    assert f"long gain, nats, at 128: {gain}, 256: {gain}: the gate FAILED at full_len 256." in caption


def test_too_few_documents_do_not_fail_a_gate() -> None:
    few = sparsity_by_length([planted_length(length, num_documents=40) for length in (128, 256)], selector="attention")
    drawn = effective_sparsity.draw_found(few)
    plt.close(drawn.figure)
    assert "the gate is not assessed at full_len 128, 256." in str(drawn.figure.get_label())
    above = drawn.figure._suptitle
    assert above is not None and above.get_text() == "someone/Made-Up-2M: gate is not assessed at full_len 128, 256"
