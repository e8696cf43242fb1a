"""Figure 4: its points, their weights, the resampled target as the picture of selection, and the numbers in its panels."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drawn_figures import figures_of, fragile, read, reweighted, rows, words_on
from made_up import DRAWS, KS
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from planted_measurements import ROW, Planted, write

from analysis import figure4
from analysis.drawn_targets import fit_of_draws, read_drawn_targets
from olmo_sparsity.statistics.intervals.lines import LineFit
from olmo_sparsity.statistics.single.measurement import LONG_GAIN, load
from olmo_sparsity.tables.parts import part_path, write_parquet
from olmo_sparsity.wording.numbers import interval


def lines_of(fit: LineFit) -> list[str]:
    slopes = {"r": fit.correlation, "OLS": fit.ols_slope, "TLS": fit.tls_slope}
    return [f"{name} {interval(value)}" for name, value in slopes.items()]


def panels(figure: Figure) -> list[Axes]:
    """Return the panels, without the bar of colours."""
    return [axis for axis in figure.axes if axis.get_title()]


def gains_on_drawn_labels(tables: Path, selector: str) -> dict[tuple[int, int], tuple[list[float], float]]:
    """Return sparse gains at each k, and the long gain, of each window and draw, read row by row."""
    windows = {row["window_id"]: row for row in rows(tables, "windows")}
    gains = {}
    for row in rows(tables, "selections"):
        if (row["selector"], row["context"]) == (selector, "resampled"):
            window, draw = windows[row["window_id"]], row["draw"]
            short, long = (np.float32(window[f"resampled_loss_{name}_nats"][draw]) for name in ("short", "long"))
            gains[row["window_id"], draw] = row["gain_sparse_nats"], float(short - long)
    return gains


def test_one_number_stands_above_a_panel_and_the_others_in_the_caption(tables: Path) -> None:
    drawn = read(tables, "unmask-one", "kl", "random")
    made = list(figure4.draw(drawn))
    figures, findings = figures_of(made), {one.name.removeprefix("figure4-"): one.finding for one in made}
    for name, figure in zip(("unmask-one", "kl", "random"), figures, strict=True):
        titles = [axis.get_title().split("\n") for axis in panels(figure)]
        words = str(figure.get_label())
        correlations = {context: drawn.summary.at(name, context, KS[-1]).figure4.correlation for context in LONG_GAIN}
        said = ", ".join(f"{interval(value)} under the {context} context" for context, value in correlations.items())
        assert (
            f"Sparse gain with {KS[-1]} tokens chosen by {name} " in findings[name] and f" by {said};" in findings[name]
        )
        for i, k in enumerate(KS):
            for context, title in (("real", titles[i]), ("null", titles[i - 3])):
                entry = drawn.summary.at(name, context, k)
                fraction = f"R({k}) = {interval(entry.recovered_fraction)}"
                above = f"corrected gain {interval(entry.corrected_gain_nats)}" if name == "unmask-one" else fraction
                assert title == [f"k = {k}, {context} context", above]
                of_panel = words.partition(f"{title[0]}: ")[2].partition(";")[0]
                others = [f"sparse gain {interval(entry.gain_sparse_nats)}"]
                if name == "unmask-one" and context == "real":
                    others.append(fraction)
                if name == "kl":
                    others.append(f"over random {interval(entry.gain_over_random_nats)}")
                assert of_panel.startswith(", ".join([*others, *lines_of(entry.figure4)]))
            if name == "unmask-one":
                optimism = drawn.summary.at(name, "real", k).optimism_nats
                assert titles[i + 3] == [f"k = {k}, resampled target", f"optimism {interval(optimism)}"]
                assert f"k = {k}, resampled target: r " in words
        assert ("what showing any set costs" in words) == ("corrected gain" in words) == (name == "unmask-one")
        assert re.findall(r"\((\d+) draws of each window\)", words) == [str(DRAWS)] * (name == "unmask-one")
        assert f"Selector {name}. " in words and "its area" not in words  # all windows weigh the same
        assert ("holds no optimism" in words) == (name != "unmask-one")


def test_what_lies_outside_the_frame_is_counted_in_the_caption(tables: Path) -> None:
    (figure,) = figures_of(figure4.draw(read(tables, "kl")))
    x, y = (
        read(tables, "kl").measurement.gains["kl", "real", 8],
        read(tables, "kl").measurement.windows["gain_long_nats"],
    )
    low, high = panels(figure)[2].get_xlim()
    outside = int((((x < low) | (x > high)).to_numpy() | ((y < low) | (y > high)).to_numpy()).sum())
    of_panel = str(figure.get_label()).partition("k = 8, real context: ")[2].partition(";")[0]
    assert of_panel.endswith(f", {outside} outside the frame") if outside else "outside" not in of_panel


def test_a_single_window_can_be_seen_on_white() -> None:
    """The lightest colour of a density has a contrast of 3 to 1 with white, as graphics need."""

    def luminance(colour: tuple[float, ...]) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    contrasts = [1.05 / (luminance(figure4.DENSITY(share)) + 0.05) for share in np.linspace(0, 1, 9)]
    assert min(contrasts) == contrasts[0] >= 3
    assert contrasts == sorted(contrasts)


def test_no_recovered_fraction_where_the_gate_failed(folders: dict[str, Path]) -> None:
    for figure in figures_of(figure4.draw(read(folders["failed"], "unmask-one", "kl"))):
        words = words_on(figure)
        assert "gate failed: no R(k)" in words
        assert "R(8) =" not in words and "R(1) =" not in words


def test_fragile_fractions_are_marked(tables: Path) -> None:
    drawn = read(tables, "kl", "random")
    figures = figures_of([*figure4.draw(drawn), *figure4.draw(fragile(drawn))])
    assert ["fragile" in figure.axes[0].get_title() for figure in figures] == [False, False, True, True]


def test_draws_are_read_and_fitted_with_weights(tables: Path) -> None:
    """Correlation and slope agree with numpy's weighted covariance over all draws."""
    measurement = reweighted(load(tables))
    drawn = read_drawn_targets(tables, measurement)
    assert set(drawn.sparse_gain_KWD) == {name for name, info in measurement.selectors.items() if info.sees_target}
    for selector in ("unmask-one", "greedy"):
        gains = gains_on_drawn_labels(tables, selector)
        for (window_id, draw), (sparse, long) in gains.items():
            row = measurement.windows["window_id"].tolist().index(window_id)
            assert drawn.sparse_gain_KWD[selector][:, row, draw].tolist() == pytest.approx(sparse)
            assert drawn.long_gain_WD[row, draw] == pytest.approx(long, abs=1e-6)
    x_WD, y_WD = drawn.sparse_gain_KWD["greedy"][2], drawn.long_gain_WD
    fit = fit_of_draws(measurement, x_WD=x_WD, y_WD=y_WD)
    (xx, xy), (_, yy) = np.cov(x_WD.ravel(), y_WD.ravel(), aweights=np.repeat(measurement.weights_W, DRAWS), ddof=0)
    assert fit.correlation is not None and fit.ols_slope is not None
    assert fit.correlation.mean == pytest.approx(xy / np.sqrt(xx * yy), abs=1e-6)
    assert fit.ols_slope.mean == pytest.approx(xy / xx, abs=1e-6)


def test_some_windows_of_the_tables(tables: Path) -> None:
    measurement = load(tables)
    some = measurement.restrict(np.arange(len(measurement.windows)) % 2 == 0)
    everything, part = read_drawn_targets(tables, measurement), read_drawn_targets(tables, some)
    assert np.array_equal(part.long_gain_WD, everything.long_gain_WD[::2])
    assert np.array_equal(part.sparse_gain_KWD["lasso"], everything.sparse_gain_KWD["lasso"][:, ::2])


@pytest.mark.parametrize("num", [1, 2])
def test_a_colour_stands_for_one_window_where_no_hexagon_has_more(num: int) -> None:
    """A scale from 1 to 1 has no colours."""
    figure, axis = plt.subplots()
    density = axis.hexbin([0.0, 1.0], [0.0, 1.0], C=[1.0, float(num)], reduce_C_function=np.sum)
    figure4._colour_densities(figure, np.array([[axis]]), densities=[density])
    assert (density.norm.vmin, density.norm.vmax) == (1, 2)
    assert np.isfinite(density.norm(density.get_array())).all()
    plt.close(figure)


@pytest.mark.parametrize(("num", "opacity"), [(10, 0.4), (1500, 0.4), (3000, 0.2), (6000, 0.1), (100_000, 0.08)])
def test_the_more_points_there_are_the_fainter_is_each(num: int, opacity: float) -> None:
    """From 1,500 points on their ink stays the same, until a point alone could hardly be seen."""
    figure, axis = plt.subplots()
    zeros = np.zeros(num)
    figure4._points(axis, figure4.Cloud(zeros, zeros, zeros + 1, "", "", ""), inside=zeros == 0, color="black")
    assert axis.collections[0].get_alpha() == pytest.approx(opacity)
    plt.close(figure)


def test_without_resampled_targets(tables: Path, tmp_path: Path) -> None:
    """``influence.resampled_draws: 0`` leaves optimism unknown: no row of it, and a dash in its place."""
    bare = Path(shutil.copytree(tables, tmp_path / "bare"))
    for part in (0, 1):
        path = part_path(bare, "selections", part=part)
        table = pq.read_table(path)
        write_parquet(table.filter(~pc.field("context").isin(["resampled", "null-resampled"])), path)
        path = part_path(bare, "windows", part=part)
        table = pq.read_table(path)
        for name in (
            "resampled_target_ids",
            "resampled_loss_short_nats",
            "resampled_loss_long_nats",
        ):
            field = table.schema.field(name)
            column = pa.array([[]] * len(table), field.type)
            table = table.set_column(table.schema.get_field_index(name), field, column)
        write_parquet(table, path)
    (figure,) = figures_of(figure4.draw(read(bare, "unmask-one")))
    assert len(figure.axes) == 2 * len(KS)
    assert figure.axes[0].get_title().split("\n")[1] == "corrected gain -"
    assert "what showing any set costs" not in words_on(figure)


@pytest.mark.parametrize(
    ("ks", "shown"),
    [([1, 2, 3, 5, 7], [1, 2, 3, 5, 7]), (list(range(1, 41)), [1, 2, 3, 6, 10]), ([1, 2, 3, 4, 6, 8], [1, 2, 3, 4, 8])],
)
def test_of_many_k_there_are_a_few_panels(ks: list[int], shown: list[int], tmp_path: Path) -> None:
    tables = write(
        tmp_path / "tables", Planted(60, {"kl": 0.3, "random": 0.05}, ks, {**ROW, "full_len": 51, "num_long_range": 40})
    )
    figure, _ = figures_of(figure4.draw(read(tables)))
    titles = [axis.get_title() for axis in panels(figure)]
    assert [title.partition(",")[0] for title in titles] == [f"k = {k}" for k in shown] * 2
    assert figure.get_figwidth() < 14


def test_nothing_covers_the_points(tables: Path) -> None:
    """The numbers stand above the panels; both axes have one range and one scale, so that the dashed line is the diagonal."""
    (figure,) = figures_of(figure4.draw(read(tables, "unmask-one")))
    figure.draw_without_rendering()
    shown = panels(figure)
    assert len(shown) == 9
    for axis in shown:
        assert list(axis.texts) == [] and axis.get_legend() is None
        assert axis.get_xlim() == axis.get_ylim() == shown[0].get_xlim()
        box = axis.get_window_extent()
        assert box.width == pytest.approx(box.height, rel=0.01) and box.width > 0.6 * figure.dpi
        title = axis.title.get_window_extent()
        assert title.y0 >= box.y1
        for other in shown:
            assert other is axis or not title.overlaps(other.title.get_window_extent())
            assert not title.overlaps(other.get_window_extent())
