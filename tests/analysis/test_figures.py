"""Every figure is drawn from tables alone, and shows its numbers and warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from made_up import SEES_TARGET, M, made_up_tables
from matplotlib.figure import Figure

from analysis import agreement, classes, distance, figure4, figure5, output, recovered_fraction, sample_size, style
from analysis.measured import Measured
from olmo_sparsity.statistics.agreement import agreement as agreement_of
from olmo_sparsity.statistics.breakdowns import by_class, by_sample_size
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import LONG_GAIN, Measurement, load
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.statistics.wording import interval
from olmo_sparsity.tables.reading import read_table

MODULES = (figure4, figure5, recovered_fraction, distance, classes, agreement, sample_size)
DRAWS = {module.__name__.removeprefix("analysis.").replace("_", "-"): module.draw for module in MODULES}


def mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def words_on(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.findobj(lambda a: hasattr(a, "get_text")))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Made-up tables of a model whose gate passes, and of one whose gate fails."""
    folder = tmp_path_factory.mktemp("made-up")
    return {
        "passed": made_up_tables(folder / "passed", num_documents=120),
        "failed": made_up_tables(folder / "failed", num_documents=120, long_gain=0.0),
    }


@pytest.fixture
def tables(folders: dict[str, Path]) -> Path:
    return folders["passed"]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that a test draws; they are not saved."""
    kept: list[Figure] = []
    for module in MODULES:
        monkeypatch.setattr(module, "save", lambda figure, out, **_: kept.append(figure) or [])
    yield kept
    for figure in kept:
        plt.close(figure)


def only(measurement: Measurement, selectors: list[str]) -> Measurement:
    infos = {selector: measurement.selectors[selector] for selector in selectors}
    return dataclasses.replace(measurement, gains=measurement.gains[selectors], selectors=infos)


def measured(tables: Path, measurement: Measurement | None = None) -> Measured:
    """Return what figures are drawn from: these tables, or part of their numbers."""
    measurement = load(tables) if measurement is None else measurement
    return Measured(tables, measurement, summarize(measurement))


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    words: list[str] = []
    save = output.save

    def keep(figure: Figure, out: Path, **options: Any) -> list[Path]:
        words.append(words_on(figure))
        return save(figure, out, **options)

    for module in MODULES:
        monkeypatch.setattr(module, "save", keep)
    return words


@pytest.mark.parametrize("gate", ["passed", "failed"])
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_figures_say_what_they_show(
    folders: dict[str, Path], tmp_path: Path, captured: list[str], name: str, gate: str
) -> None:
    measurement = load(folders[gate])
    if name == "figure4":
        measurement = only(measurement, ["unmask-one", "kl"])  # a file each: two are enough to wait for
    drawn = measured(folders[gate], measurement)
    summary = drawn.summary
    assert summary.gate == gate
    paths = DRAWS[name](drawn, tmp_path)
    assert {path.suffix for path in paths} == {".png", ".pdf"}
    assert all(path.stat().st_size > 3000 for path in paths)
    assert len(captured) == (2 if name == "figure4" else 1)
    for words in captured:
        assert "180 windows of 120 documents" in words
        assert "all 12 long-range tokens lie beyond" in words
        assert ("VALIDITY GATE FAILED" in words) == (gate == "failed")
        if name in ("figure4", "recovered-fraction"):
            assert "nats" in words
    if name == "figure4":
        selection = summary.at("unmask-one", "real", 8)
        expected = "gate failed" if gate == "failed" else f"R(8) = {interval(selection.recovered_fraction)}"
        assert expected in captured[0]
        assert "null" in captured[0]
        assert f"r {interval(selection.figure4.correlation)}" in captured[0]
        assert f"OLS {interval(selection.figure4.ols_slope)}" in captured[0]
        assert f"TLS {interval(selection.figure4.tls_slope)}" in captured[0]


def test_every_figure_is_among_all_of_them() -> None:
    text = Path(style.__file__).with_name("every_figure.py").read_text()
    assert all(f"{module.__name__.removeprefix('analysis.')}.draw" in text for module in MODULES)


def test_every_selector_has_looks_of_its_own() -> None:
    assert set(style.LOOKS) == set(SEES_TARGET)
    assert (
        len({look["color"] for look in style.LOOKS.values()})
        == len({look["marker"] for look in style.LOOKS.values()})
        == 10
    )


@pytest.mark.parametrize("selectors", [["random"], ["kl", "random"], ["nearest", "lasso"]])
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_few_selectors_are_enough(
    tables: Path, tmp_path: Path, figures: list[Figure], name: str, selectors: list[str]
) -> None:
    DRAWS[name](measured(tables, only(load(tables), selectors)), tmp_path)
    expected = {"figure4": len(selectors), "agreement": len(selectors) - 1}.get(name, 1)
    assert len(figures) == expected
    for figure in figures:
        figure.canvas.draw()


def test_too_few_documents_is_not_called_no_profit(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = only(load(tables), ["unmask-one", "kl"])
    few = measurement.windows["doc_id"].unique()[:10]
    small = measurement.restrict(measurement.windows["doc_id"].isin(few).to_numpy())
    for draw in DRAWS.values():
        draw(measured(tables, small), tmp_path)
    assert len(figures) == 8
    for figure in figures:
        assert "too few documents to tell" in words_on(figure)
        assert "does not profit" not in words_on(figure)


def test_figure5_shows_the_words_and_the_losses_of_its_window(
    tables: Path, tmp_path: Path, captured: list[str]
) -> None:
    figure5.draw(measured(tables), tmp_path)
    window_id = int(captured[0].split("Window ")[1].split()[0])
    (window,) = (row for row in read_table(tables, "windows").to_pylist() if row["window_id"] == window_id)
    for text in [*window["token_texts"], window["target_text"]]:
        assert captured[0].count(figure5.shown(text)) >= 3
    for loss in (window["loss_short_nats"], window["loss_long_nats"]):
        assert f"{loss:.2f} nats" in captured[0]


@pytest.mark.parametrize(("text", "seen"), [(" a", "·a"), ("\n", "↵"), ("\x1b[31m", "\ufffd[31m"), ("漢", "□")])
def test_shown(text: str, seen: str) -> None:
    assert figure5.shown(text) == seen


def test_figure4_has_sparse_gain_across_and_long_gain_up(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = load(tables)
    figure4.draw(measured(tables, measurement), tmp_path)
    axes = figures[0].axes  # unmask-one: k = 1, 2, 8 under the real, then under the null context
    for number, (context, k) in enumerate((c, k) for c in ("real", "null") for k in (1, 2, 8)):
        x, y = measurement.gains["unmask-one", context, k], measurement.windows[LONG_GAIN[context]]
        expected = {(round(a, 6), round(b, 6)) for a, b in zip(x, y, strict=True)}
        shown = {(round(a, 6), round(b, 6)) for a, b in axes[number].collections[0].get_offsets().tolist()}
        assert shown <= expected
        assert len(shown) >= 150


def test_figure4_of_many_windows_is_a_density(
    tables: Path, tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    measurement = only(load(tables), ["kl"])
    monkeypatch.setattr(figure4, "MAX_POINTS", len(measurement.windows))
    figure4.draw(measured(tables, measurement), tmp_path)
    monkeypatch.setattr(figure4, "MAX_POINTS", len(measurement.windows) - 1)
    figure4.draw(measured(tables, measurement), tmp_path)
    points, dense = figures
    assert "Each point is a window" in words_on(points) and "hexagon" not in words_on(points)
    assert "Each point" not in words_on(dense)
    assert "Colour: windows in a hexagon, on a logarithmic scale" in words_on(dense)
    assert [axis.get_ylabel() for axis in dense.axes].count("windows in a hexagon") == 1  # one bar for all panels
    norms = []
    for number, (axis, of_points) in enumerate(zip(dense.axes[:6], points.axes, strict=True)):
        (density,) = axis.collections
        x, y = of_points.collections[0].get_offsets().T
        counts = density.get_array()
        assert counts.sum() == len(x) > 150, number
        assert counts.min() >= 1
        assert np.ptp(counts) > 0
        # The hexagons lie where the points do: both have the same centre, to within a hexagon.
        centre = (density.get_offsets() * counts[:, None]).sum(axis=0) / counts.sum()
        size = np.array([np.ptp(axis.get_xlim()), np.ptp(axis.get_ylim())]) / figure4.HEXAGONS
        assert (np.abs(centre - [x.mean(), y.mean()]) < 0.5 * size).all()
        assert axis.get_xlim() == of_points.get_xlim() and axis.get_ylim() == of_points.get_ylim()
        norms.append((density.norm.vmin, density.norm.vmax))
    assert len(set(norms)) == 1 and norms[0][1] == max(axis.collections[0].get_array().max() for axis in dense.axes[:6])


def test_recovered_fraction_shows_the_summary(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    drawn = measured(tables)
    recovered_fraction.draw(drawn, tmp_path)
    for axis, panel in zip(figures[0].axes, recovered_fraction.PANELS, strict=True):
        lines = [tuple(line.get_ydata()) for line in axis.lines]
        for selector in SEES_TARGET:
            estimates = [drawn.summary.at(selector, "real", k).estimate(panel.quantity) for k in (1, 2, 8)]
            if (selector, panel.quantity) == ("random", "gain_over_random_nats"):
                assert estimates == [None] * 3
            else:
                assert tuple(mean(estimate) for estimate in estimates) in lines


def test_classes_show_the_breakdown(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = load(tables)
    classes.draw(measured(tables, measurement), tmp_path)
    entries = by_class(measurement, summarize(measurement))
    axes = figures[0].axes
    labels = [label.get_text().split("\n")[0] for label in axes[0].get_yticklabels()]
    assert labels == [entry.target_class for entry in entries]
    assert {entry.summary.gate for entry in entries} == {"passed", "failed"}
    said = [round(text.get_position()[1]) for text in axes[2].texts if "gate failed" in text.get_text()]
    assert said == [row for row, entry in enumerate(entries) if entry.summary.gate == "failed"]
    shares, gains = [e.window_share.mean for e in entries], [e.summary.long_gain_nats.mean for e in entries]
    for axis, values in ((axes[0], shares), (axes[1], gains)):
        points = [(x, y) for line in axis.lines if line.get_marker() == "o" for x, y in line.get_xydata().tolist()]
        assert points == [(value, row) for row, value in enumerate(values)]
    shown = {round(x, 9) for line in axes[2].lines for x in line.get_xdata() if line.get_marker() == "s"}
    expected = {
        round(mean(entry.summary.at("kl", "real", 8).recovered_fraction), 9)
        for entry in entries
        if entry.summary.gate == "passed"
    }
    assert shown == expected


def test_agreement_writes_its_numbers_into_the_cells(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = load(tables)
    agreement.draw(measured(tables, measurement), tmp_path)
    pairs = agreement_of(tables, measurement)
    names = [name for name in style.LOOKS if name in measurement.selectors]
    for axis, values in (
        (figures[0].axes[0], [mean(pair.overlap[-1].share) for pair in pairs]),
        (figures[0].axes[1], [mean(pair.rank_correlation) for pair in pairs]),
    ):
        written = {(int(t.get_position()[1]), int(t.get_position()[0])): float(t.get_text()) for t in axis.texts}
        assert len(written) == 45
        for pair, value in zip(pairs, values, strict=True):
            column, row = sorted(names.index(name) for name in pair.selectors)
            assert written[row, column] == pytest.approx(value, abs=0.00501)
    assert f"two random choices: {8 / M:.2f}" in words_on(figures[0])


def test_sample_size_shows_the_prefixes(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = load(tables)
    sample_size.draw(measured(tables, measurement), tmp_path)
    summaries = by_sample_size(measurement)
    axes = figures[0].axes
    assert axes[0].lines[0].get_xdata().tolist() == [summary.num_windows for summary in summaries]
    assert axes[0].lines[0].get_ydata().tolist() == [summary.long_gain_nats.mean for summary in summaries]
    fractions = [summary.at("kl", "real", 8).recovered_fraction for summary in summaries]
    expected = [np.nan if fraction is None else fraction.mean for fraction in fractions]
    assert any(np.array_equal(line.get_ydata(), expected, equal_nan=True) for line in axes[1].lines)
    smallest = [summary.sparsity_at("kl", 0.8).smallest_k for summary in summaries]
    heights = [[1, 2, 8, None].index(value.value) for value in smallest if value is not None]
    assert heights
    (line,) = (line for line in axes[2].lines if line.get_marker() == "s")
    assert [round(y) for y in line.get_ydata()] == heights


def test_distance_shows_the_shares(tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    distance.draw(measured(tables), tmp_path)
    axis = figures[0].axes[0]
    counts: dict[int, int] = dict.fromkeys(range(9, 21), 0)  # M = 12 distances, a bin each
    for row in read_table(tables, "selections").to_pylist():
        if (row["selector"], row["context"]) == ("unmask-one", "real"):
            for far in row["distance_tokens"]:
                counts[far] += 1
    real = axis.lines[0]
    assert real.get_xdata().tolist() == list(counts)
    assert list(real.get_ydata()) == pytest.approx([count / sum(counts.values()) for count in counts.values()])


def test_distance_of_some_windows_in_uneven_parts(tmp_path: Path, figures: list[Figure]) -> None:
    tables = made_up_tables(tmp_path / "uneven", part_sizes=[1, 50, 7, 32])
    measurement = only(load(tables), ["kl", "random"]).restrict(np.arange(90) % 2 == 0)
    distance.draw(measured(tables, measurement), tmp_path)
    for line, context in zip(figures[0].axes[0].lines, ("real", "null"), strict=False):
        far = [
            row["distance_tokens"]
            for row in read_table(tables, "selections").to_pylist()
            if (row["selector"], row["context"], row["window_id"] % 2) == ("kl", context, 0)
        ]
        assert len(far) == 45
        counts = np.bincount(np.ravel(far), minlength=21)[9:]
        assert list(line.get_ydata()) == pytest.approx(counts / counts.sum())


def test_dollar_signs_are_only_dollar_signs(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure5, "shown", lambda text: "$$_$")
    assert figure5.draw(measured(tables), tmp_path)
