"""The figure of the spectrum against the length: its points, bars and marks are the planted numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from planted_lengths import LineKey, planted_length, planted_needs

from analysis import spectrum_by_length as figure_of
from analysis.output import save
from analysis.style import LOOKS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.same_targets import models_of_same_targets
from olmo_sparsity.statistics.several.spectrum_by_length import LongerKey, SpectrumByLength, spectrum_by_length
from olmo_sparsity.statistics.single.spectrum import REACHED, TOLERANCE, TOLERANCES, Curve
from olmo_sparsity.wording.spectrum_by_length import length_sentences

LENGTHS = (128, 256, 512)
KS = (1, 2, 4, 8, 16)
# Of ten targets, at each length: choices stay, suffixes grow beyond what is measured.
CHOSEN = [0, 0, 0, 0, 0, 1, 1, 1, 2, 4]
NEAR = {
    128: [0, 0, 0, 0, 0, 2, 2, 2, 4, 8],
    256: [0, 0, 0, 0, 0, 2, 2, 8, 16, 16],
    512: [0] * 5 + [2, 8] + [math.inf] * 3,
}


def found_of(num_documents: int, lengths: tuple[int, ...] = LENGTHS) -> SpectrumByLength:
    measured = []
    for length in lengths:
        needs = {LineKey("attention", "real"): CHOSEN, LineKey("nearest", "real"): NEAR.get(length, NEAR[128])}
        needs[LineKey("random", "real")] = [2 * k for k in CHOSEN]
        needs |= {LineKey(line.selector, "null"): [min(k, 1) for k in of] for line, of in needs.items()}
        repeated = {line: of * (num_documents // 10) for line, of in needs.items()}
        measured.append(planted_needs(length, repeated, ks=KS, document_W=np.arange(num_documents)))
    return spectrum_by_length(measured, selector="attention")


@pytest.fixture(scope="module")
def found() -> SpectrumByLength:
    return found_of(300)


@pytest.fixture(scope="module")
def figure(found: SpectrumByLength) -> Figure:
    figure = figure_of.draw_found(found).figure
    plt.close(figure)
    return figure


def test_points_and_bars_are_what_the_targets_need(figure: Figure, found: SpectrumByLength) -> None:
    (model,) = found.models
    lines = [(family, context) for family in ("random", "nearest", "attention") for context in ("null", "real")]
    for axis, share in zip(figure.axes, REACHED, strict=False):
        needs = [[model.spectra[n].of(*line).reaching(share) for n in LENGTHS] for line in lines]  # type: ignore[union-attr]
        heights = [list(line.get_ydata()) for line in axis.lines]
        assert heights[0] == [n - 64 for n in LENGTHS]
        for drawn, expected in zip(heights[1:], needs, strict=True):
            assert drawn == pytest.approx(
                [np.nan if need.value is None else need.value for need in expected], nan_ok=True
            )
        bars = sorted(tuple(s[:, 1]) for of in axis.collections for s in of.get_segments())
        real = [need for (_, context), of in zip(lines, needs, strict=True) if context == "real" for need in of]
        assert bars == sorted(
            (need.low, 16 if need.high is None else need.high) for need in real if need.low is not None
        )
        marks = [text.get_text() for text in axis.texts]
        assert marks == [">16"] * sum(need.value is None for of in needs for need in of)
    assert [axis.get_title() for axis in figure.axes[:3]] == [f"{n}% of the targets need at most" for n in (50, 80, 90)]
    assert model.spectra[512].of("nearest").reaching(0.8).value is None  # type: ignore[union-attr]


def test_marks_of_what_no_measured_k_reaches_are_none_over_another_and_inside_the_panel() -> None:
    measured = []
    for length, most in ((128, 16), (256, 128)):
        needs = {
            LineKey(family, context): [math.inf] * 60
            for family in ("nearest", "random")
            for context in ("real", "null")
        }
        needs |= {LineKey("attention", "real"): [3] * 60, LineKey("attention", "null"): [math.inf] * 60}
        measured.append(planted_needs(length, needs, ks=[*KS, most] if most > 16 else KS))
    figure = figure_of.draw_found(spectrum_by_length(measured, selector="attention")).figure
    figure.canvas.draw()
    for axis in figure.axes[:3]:
        words = [">16 null", ">16", ">16 null", ">16", ">16 null"]
        assert sorted(text.get_text() for text in axis.texts) == sorted(
            [*words, *(word.replace("16", "128") for word in words)]
        )
        boxes = [text.get_window_extent() for text in axis.texts]
        assert all(not one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        assert all(box.y1 <= axis.bbox.y1 for box in boxes)
    plt.close(figure)


def test_the_last_panel_is_of_targets_that_need_more(figure: Figure, found: SpectrumByLength) -> None:
    (model,) = found.models
    drawn = [list(line.get_ydata()) for line in figure.axes[-1].lines]
    expected = [
        [model.growth[LongerKey(Curve(family, context, TOLERANCE), n)].more.mean for n in LENGTHS[1:]]
        for family in ("random", "nearest", "attention")
        for context in ("null", "real")
    ]
    assert drawn == expected and expected[3][1] > expected[3][0] > 0 == expected[5][1]
    assert figure.axes[-1].get_title() == "targets that need more than at 128"


def test_points_of_one_longer_context_stand_together_at_its_length() -> None:
    figure = figure_of.draw_found(found_of(60, (128, 256))).figure
    figure.canvas.draw()
    axis = figure.axes[-1]
    places = axis.transAxes.inverted().transform(
        [axis.transData.transform((line.get_xdata()[0], 0)) for line in axis.lines]
    )
    assert len(places) == 6 and np.ptp(places[:, 0]) < 0.25  # of the width of the panel
    assert places[:, 0].mean() == pytest.approx(0.5, abs=0.02)
    plt.close(figure)


def test_the_sentences_follow_the_numbers(found: SpectrumByLength) -> None:
    (model,) = found.models
    needs, growth, difference, null = length_sentences(found, model)
    assert needs.startswith(
        "someone/Made-Up-2M: within 0.05 nats, for 90% of the targets it takes at 128 and 512 tokens 2 [2, 4] and 2"
    )
    assert "; 4 [4, 8] and > 16 [> 16, > 16] nearest (null context 1 [1, 1] and 1 [1, 1]); " in needs
    more = model.growth_of("nearest").more
    assert f"{100 * more.mean:.0f}% [" in growth and growth.startswith(
        "From 128 to 512 tokens these targets need more: 0% [0, "
    )
    assert difference.endswith(": suffixes grow for more targets than choices do.")
    assert null.startswith("Under the null context these need more: 0% [0, ")
    few = found_of(40)
    needs, growth, difference, null = length_sentences(few, few.models[0])
    assert "[" not in needs + growth + difference + null
    assert difference.endswith("percentage points: too few documents to tell.")


def test_targets_that_need_more_and_fewer_are_told_apart_in_either_context() -> None:
    """By the first and the last length; the shares of no two families, contexts and directions are alike."""
    first = [0, 1, 1, 2, 2, 4, 4, 8, 8, 16]
    last = {
        LineKey("attention", "real"): [0, 2, 2, 4, 1, 1, 8, 8, 8, 16],  # 4 of 10 more, 2 fewer
        LineKey("nearest", "real"): [0, 2, 2, 4, 4, 8, 8, 4, 16, 16],  # 7 more, 1 fewer
        LineKey("random", "real"): [0, 2, 2, 4, 2, 4, 4, 8, 8, 16],  # 3 more
        LineKey("attention", "null"): [0, 2, 1, 2, 2, 4, 4, 8, 8, 16],  # 1 more
        LineKey("nearest", "null"): [0, 2, 2, 4, 4, 8, 8, 8, 8, 16],  # 6 more
        LineKey("random", "null"): [0, 2, 2, 2, 2, 4, 4, 8, 8, 16],  # 2 more
    }
    measured = [
        planted_needs(
            length,
            {line: (last[line] if length == 512 else first) * 30 for line in last},
            ks=KS,
            document_W=np.arange(300),
        )
        for length in LENGTHS
    ]
    found = spectrum_by_length(measured, selector="attention")
    _, growth, difference, null = (re.sub(r" \[.*?\]", "", words) for words in length_sentences(found, found.models[0]))
    assert growth == (
        "From 128 to 512 tokens these targets need more: 40% chosen by attention, 70% nearest, 30% at random; fewer: 20% chosen "
        "by attention, 10% nearest."
    )
    assert difference == "Suffix minus choice: 30 percentage points: suffixes grow for more targets than choices do."
    assert null == "Under the null context these need more: 10% chosen by attention, 60% nearest."
    key = LongerKey(Curve("attention", "real", TOLERANCE), 512)
    for of, verdict in (
        (
            Estimate(-0.3, -0.4, -0.2),
            "-30 [-40, -20] percentage points: choices grow for more targets than suffixes do.",
        ),
        (Estimate(0.1, -0.1, 0.3), "10 [-10, 30] percentage points: no clear difference."),
    ):
        model = found.models[0]
        growth = {**model.growth, key: dataclasses.replace(model.growth[key], suffix_minus_this=of)}
        said = length_sentences(found, dataclasses.replace(model, growth=growth))[2]
        assert said == f"Suffix minus choice: {verdict}"
    table = figure_of.table(found).query("full_len == 512 and tolerance_nats == 0.05").set_index("family")
    of_real = table.query("context == 'real'")
    assert of_real["more"].round(6).to_dict() == {"attention": 0.4, "nearest": 0.7, "random": 0.3}
    assert of_real["fewer"].round(6).to_dict() == {"attention": 0.2, "nearest": 0.1, "random": 0.0}
    assert of_real["suffix_minus_this"].round(6).drop("nearest").to_dict() == {"attention": 0.3, "random": 0.4}
    curve = Curve("attention", "real", TOLERANCE)
    for share in REACHED:
        need = found.models[0].spectra[512].by_curve[curve].reaching(share)
        names = (f"k_{share:.0%}", f"k_{share:.0%}_low", f"k_{share:.0%}_high")
        shown = [None if np.isnan(value) else value for value in of_real.loc["attention", list(names)].astype(float)]
        assert shown == [need.value, need.low, need.high]


def test_lines_have_the_looks_of_their_family_and_context_and_rows_the_name_of_their_model(
    figure: Figure, found: SpectrumByLength
) -> None:
    lines = [(family, context) for family in ("random", "nearest", "attention") for context in ("null", "real")]
    for axis, own in ((figure.axes[0], figure.axes[0].lines[1:]), (figure.axes[-1], figure.axes[-1].lines)):
        looks = [(line.get_color(), line.get_linestyle()) for line in own]
        assert looks == [(LOOKS[family]["color"], "-" if context == "real" else ":") for family, context in lines]
        assert axis.get_xlabel() == "full context, tokens"
    assert figure.axes[0].get_ylabel() == "k, entries, within 0.05 nats"
    assert figure.axes[0].get_ylim()[1] > 512 - 64 and figure.axes[-1].get_ylim() == (0, 1)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[:3] == ["chosen by attention (how many)", "nearest (how far attention goes)", "random"]
    colors = [line.get_color() for line in figure.legends[0].legend_handles[:3]]
    assert colors == [LOOKS[family]["color"] for family in ("attention", "nearest", "random")]
    assert labels[3:] == ["real context", "null context", "all long-range tokens"]
    both = figure_of.draw_found(dataclasses.replace(found, models=found.models * 2)).figure
    plt.close(both)
    assert [axis.get_ylabel() for axis in (both.axes[0], both.axes[4])] == [
        "someone/Made-Up-2M\nk, entries, within 0.05 nats"
    ] * 2


def test_the_caption_tells_bound_and_gates(figure: Figure) -> None:
    words = str(figure.get_label())
    for expected in (
        "that of a choice is an upper bound. An entry: ",
        "local context fixed at 64 tokens",
        "the gate passed at every length",
        "300 windows of 300 documents (planted text, measured), mean over eligible targets",
        "The targets, and the foreign text, of a model are the same at every length. A target counts",
    ):
        assert expected in words


@pytest.mark.usefixtures("quick_pictures")
def test_the_table_has_every_curve_and_length(found: SpectrumByLength, tmp_path: Path) -> None:
    save(figure_of.draw_found(found), tmp_path)
    rows = pd.read_csv(tmp_path / "spectrum-by-length.csv")
    assert len(rows) == 3 * 2 * len(TOLERANCES) * len(LENGTHS)
    (model,) = found.models
    curve = Curve("nearest", "real", 0.1)
    (row,) = rows.query(
        "family == 'nearest' and context == 'real' and tolerance_nats == 0.1 and full_len == 512"
    ).itertuples()
    growth, spectrum = model.growth[LongerKey(curve, 512)], model.spectra[512].by_curve[curve]
    assert (row.more, row.more_low, row.more_high) == pytest.approx((growth.more.mean, *growth.more.bounds))  # type: ignore[misc]
    assert (row.fewer, row.none_needed) == pytest.approx((0, spectrum.none_needed.mean))
    assert np.isnan(row.suffix_minus_this)  # of the suffix itself
    assert rows.loc[row.Index, ["k_80%", "k_90%"]].isna().all()
    assert row.max_k == 16 and row.gate == "passed"
    assert rows.query("full_len == 128")[["more", "fewer", "suffix_minus_this"]].isna().all(axis=None)


def test_the_table_has_the_gate_of_the_caption_where_the_gain_is_the_cost_of_the_gap() -> None:
    needs = {
        LineKey(name, context): CHOSEN * 30
        for name in ("attention", "nearest", "random")
        for context in ("real", "null")
    }
    measured = [planted_needs(length, needs, ks=KS, document_W=np.arange(300)) for length in LENGTHS[:2]]
    measured[1].measurement.windows["loss_short_nats"] = 4.0
    measured[1].measurement.windows["loss_short_no_gap_nats"] = 3.4  # the gap costs more than the long gain
    found = spectrum_by_length(measured, selector="attention")
    drawn = figure_of.draw_found(found)
    plt.close(drawn.figure)
    assert figure_of.table(found).groupby("full_len").gate.unique().map(list).to_dict() == {
        128: ["passed"],
        256: ["failed"],
    }
    assert "the gate FAILED at full_len 256" in str(drawn.figure.get_label())


@pytest.mark.parametrize(
    ("most", "ticks"),
    [
        (127, [0, 1, 2, 4, 8, 16, 32, 64]),
        (128, [0, 1, 4, 16, 64]),
        (1025, [0, 1, 4, 16, 64, 256, 1024]),
        (2**20, [0, 1, 8, 64, 512, 4096, 32_768, 262_144]),
    ],
)
def test_the_axis_of_k_has_seven_powers_of_two_at_most(most: int, ticks: list[int]) -> None:
    figure = figure_of.draw_found(found_of(10, (100, 64 + most))).figure
    plt.close(figure)
    assert figure.axes[0].get_yticks().tolist() == ticks
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [f"{tick:,}" for tick in ticks]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("document", "The targets, and the foreign text, of a model are the same at every length."),
        ("shuffled", "of a model are the same at every length. Null context: the same tokens in random order."),
    ],
)
def test_the_null_context_has_the_name_of_its_kind(kind: str, said: str) -> None:
    influence = {"null_context": kind}
    measured = [planted_length(length, num_documents=40, influence=influence) for length in LENGTHS]
    words = figure_of.targets_words(list(models_of_same_targets(measured, selector="attention", controls=[])))
    assert said in words and ("foreign text" in words) == (kind == "document")
