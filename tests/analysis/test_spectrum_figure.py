"""The figure of the dependency spectrum: which numbers each line and band shows; no two shares are alike."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from drawn_figures import figures_of, read, words_on
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis import spectrum
from analysis.style import LOOKS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.model_setup import Visibility
from olmo_sparsity.statistics.single.spectrum import TOLERANCES, Curve, Spectra, Spectrum

KS = (0, 1, 2, 4, 8, 12)
FAMILIES = ("kl", "nearest", "random")


@pytest.fixture(scope="module")
def spectra() -> Spectra:
    numbers = itertools.count(1)
    curves = [
        Curve(family, context, tolerance)
        for tolerance, context, family in itertools.product(TOLERANCES, ("real", "null"), FAMILIES)
    ]
    by_curve = {}
    for curve in curves:
        means = [next(numbers) / 1000 for _ in KS]
        by_curve[curve] = Spectrum(
            curve, KS, tuple(Estimate(mean, mean - 0.0003, mean + 0.0004, 0.1) for mean in means)
        )
    return Spectra(by_curve, row_k=4, max_k=12)


def draw(spectra: Spectra, tables: Path) -> Figure:
    drawn = dataclasses.replace(read(tables, "kl", "random"))
    drawn.__dict__["spectra"] = spectra  # a cached property
    (figure,) = figures_of(spectrum.draw(drawn))
    return figure


def steps_of(axis: Axes) -> dict[tuple[str, str], list[float]]:
    """Return the shares of each line; that of the last k has a width, too, so that it can be seen."""
    lines = [line for line in axis.lines if len(line.get_xdata()) == len(KS) + 1]
    assert all(list(line.get_xdata()) == [*KS, 15] and line.get_drawstyle() == "steps-post" for line in lines)
    assert axis.get_xlim() == (0, 15) and all(line.get_ydata()[-1] == line.get_ydata()[-2] for line in lines)
    found = {(to_hex(line.get_color()), str(line.get_linestyle())): list(line.get_ydata())[:-1] for line in lines}
    assert len(found) == len(lines)
    return found


def test_each_line_and_band_is_of_its_family_context_and_tolerance(spectra: Spectra, tables: Path) -> None:
    figure = draw(spectra, tables)
    colours = {name: to_hex(LOOKS[name]["color"]) for name in FAMILIES}
    assert len(set(colours.values())) == 3
    assert [axis.get_title() for axis in figure.axes] == [f"within {tolerance:g} nats" for tolerance in TOLERANCES]
    for axis, tolerance in zip(figure.axes, TOLERANCES, strict=True):
        expected = {
            (colours[curve.family], "-" if curve.context == "real" else ":"): [share.mean for share in of.shares]
            for curve, of in spectra.by_curve.items()
            if curve.tolerance_nats == tolerance
        }
        assert steps_of(axis) == expected and len(expected) == 6
        bands = {to_hex(band.get_facecolor()[0]): band.get_paths()[0].vertices for band in axis.collections}
        assert set(bands) == set(colours.values())
        for name in FAMILIES:
            of = spectra.of(name, tolerance=tolerance)
            assert of is not None
            ends = {round(bound, 6) for share in of.shares for bound in share.bounds or ()}
            assert {round(float(y), 6) for y in bands[colours[name]][:, 1]} == ends
            assert bands[colours[name]][:, 0].max() == 15


def test_the_row_and_the_labels(spectra: Spectra, tables: Path) -> None:
    figure = draw(spectra, tables)
    for axis in figure.axes:
        upright = [line.get_xdata() for line in axis.lines if len(line.get_xdata()) == 2]
        assert [list(x) for x in upright] == [[4, 4]]
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0", "1", "2", "4", "8", "12"]
        assert list(axis.get_xticks()) == list(KS)
    legend = {line.get_label(): to_hex(line.get_color()) for line in figure.legends[0].legend_handles}
    assert {name: legend[name] for name in list(legend)[:3]} == {
        "chosen by kl (how many)": to_hex(LOOKS["kl"]["color"]),
        "nearest (how far)": to_hex(LOOKS["nearest"]["color"]),
        "random": to_hex(LOOKS["random"]["color"]),
    }
    assert "the nearest up to here are a training row" in legend
    assert figure.axes[0].get_ylabel() == "targets that need at most k"
    unknown = draw(dataclasses.replace(spectra, row_k=None), tables)
    assert not [line for axis in unknown.axes for line in axis.lines if len(line.get_xdata()) == 2]
    assert "a training row" not in {line.get_label() for line in unknown.legends[0].legend_handles}
    assert "within" in words_on(unknown)


@pytest.mark.parametrize(
    ("visibility", "near"), [("hidden", "nearest (how far)"), ("contextual", "nearest (how far attention goes)")]
)
def test_the_legend_says_what_k_of_each_family_tells(
    visibility: Visibility, near: str, spectra: Spectra, tables: Path
) -> None:
    """The nearest entries have read what is before them, so their number says nothing about how far a target reaches."""
    drawn = read(tables, "kl", "random")
    setup = dataclasses.replace(drawn.summary.setup, visibility=visibility)
    drawn = dataclasses.replace(drawn, summary=dataclasses.replace(drawn.summary, setup=setup))
    drawn.__dict__["spectra"] = spectra
    (figure,) = figures_of(spectrum.draw(drawn))
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels[:3] == ["chosen by kl (how many)", near, "random"]


def test_without_a_band_the_lines_stand_alone(spectra: Spectra, tables: Path) -> None:
    bare = {
        curve: dataclasses.replace(of, shares=tuple(Estimate(share.mean) for share in of.shares))
        for curve, of in spectra.by_curve.items()
    }
    figure = draw(dataclasses.replace(spectra, by_curve=bare), tables)
    for axis in figure.axes:
        assert len(steps_of(axis)) == 6
        for band in axis.collections:
            assert not band.get_paths() or not np.isfinite(band.get_paths()[0].vertices).all()
