"""The ladder of sizes: one point a size with the interval over its seeds, a dot a seed, each number in its own panel."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from drawn_figures import figures_of
from made_up import CONTEXTUAL, MODEL
from made_up_runs import made_up_ladder
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import scale
from analysis.style import LOOKS
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.measured import ModelRecord
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.differences import difference
from olmo_sparsity.statistics.several.seed_summary import difference_over_seeds
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.reading import newest_finished
from olmo_sparsity.wording.numbers import interval

KINDS_OF_D = {"null": "null context", "mimicry": "mimicry"}  # as the legend names them
SIZES = [400_000.0, 1_200_000.0, 3_600_000.0]


@pytest.fixture(scope="module")
def rungs(tmp_path_factory: pytest.TempPathFactory) -> list[scale.Rung]:
    """Three sizes with three seeds each, named in disorder."""
    runs = made_up_ladder(tmp_path_factory.mktemp("ladder"), (0, 1, 2))
    return scale.ladder(sorted(runs, key=lambda run: run.name[-1]))


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three sizes; tests change copies."""
    folder = tmp_path_factory.mktemp("sizes") / "ladder"
    made_up_ladder(folder)
    return folder


@pytest.fixture
def runs(ladder: Path, tmp_path: Path) -> list[Path]:
    """Runs of three sizes, the smallest first."""
    copy = shutil.copytree(ladder, tmp_path / "ladder")
    return sorted(copy.iterdir(), key=lambda run: int(run.name[1:].partition("-")[0]))


SCREENED = {"screen": 4, "screen_by": "patching"}


@pytest.mark.parametrize(
    ("name", "first", "other"),
    [
        ("null contexts", {}, {"influence": {"null_context": "shuffled"}}),
        ("ways of screening", {}, {"influence": SCREENED}),
        ("ways of screening", {"influence": SCREENED}, {"influence": {**SCREENED, "screen_by": "attention"}}),
        ("ways of screening", {"influence": SCREENED}, {"influence": SCREENED, "screen_precision": "bf16"}),
        (
            "ways of screening",
            {"influence": SCREENED},
            {"influence": SCREENED, "screen_proxy": {"weights_sha256": "0"}},
        ),
        ("k", {}, {"influence": {"k": [1, 2, 5]}}),
        ("selectors", {}, {"influence": {"selectors": ["random", "kl"]}}),
        ("PoSE settings", {}, {"pose": {"method": "randpos"}}),
        ("precisions", {"precision": "fp32"}, {"precision": "bf16"}),
        ("numbers of training steps", {}, {"checkpoint": {"step": 7, "model_sha256": "0"}}),
    ],
    ids=[
        "null context",
        "screened or not",
        "ranking",
        "precision of earlier versions",
        "proxy of earlier versions",
        "k",
        "selectors",
        "pose",
        "precision",
        "steps",
    ],
)
def test_sizes_that_were_measured_in_other_ways_are_refused(
    name: str, first: dict[str, Any], other: dict[str, Any], runs: list[Path]
) -> None:
    for run, entries in zip(runs[:2], (first, other), strict=True):
        path = newest_finished(run) / "manifest.json"
        manifest = read_json(path)
        settings = {**manifest["influence"], **entries.get("influence", {})}
        write_manifest(path.parent, {**manifest, **entries, "influence": settings})
    with pytest.raises(UserError, match=f"of different {name}; a ladder differs in size and seed alone"):
        scale.ladder(runs[:2])


@pytest.mark.parametrize(
    ("name", "manifest", "changes"),
    [
        ("windows", {"tokens_sha256": "other"}, {}),
        ("windows", {"windows_sha256": "other"}, {}),
        ("lengths", {"context": {"local_len": 8, "full_len": 20}}, {}),
        ("lengths", {"context": {"local_len": 9, "full_len": 24}}, {}),
        ("definitions of visible", {}, {"visibility": "contextual"}),
        ("definitions of visible", {}, {"positions": "compact"}),
        ("definitions of visible", {}, {"anchor": "<s>"}),
        ("precisions", {}, {"precision": "bf16"}),
        ("precisions", {}, {"precision": None}),  # unknown
        ("units", {}, {"unit": "word"}),
        ("null contexts", {}, {"null_context": "shuffled"}),
        ("numbers of training steps", {"checkpoint": {"step": 7}}, {}),
        ("numbers of training steps", {"checkpoint": {}}, {}),
    ],
)
def test_what_the_sizes_of_a_ladder_must_have_in_common_is_named(
    name: str, manifest: dict[str, Any], changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three measurements the last differs, in one thing."""
    alike: dict[str, Any] = {
        "visibility": "hidden",
        "positions": "kept",
        "anchor": None,
        "precision": "fp32",
        "unit": "token",
        "null_context": "any",
    }
    of_all = {
        "tokens_sha256": "t", "windows_sha256": "w", "context": {"local_len": 8, "full_len": 24}, "checkpoint": {"step": 9},
        "influence": {"k": [1], "selectors": ["kl"]},
    }  # fmt: skip

    def load(run: Path) -> SimpleNamespace:
        own = {**alike, **(changes if run.name == "last" else {})}
        setup = SimpleNamespace(**own, screening=None)
        return SimpleNamespace(**own, setup=setup, manifest={**of_all, **(manifest if run.name == "last" else {})})

    monkeypatch.setattr(scale, "newest_finished", lambda run: run)
    monkeypatch.setattr(scale, "load", load)
    with pytest.raises(UserError) as refused:
        scale.ladder([Path("one"), Path("two"), Path("last")])
    assert str(refused.value) == (
        f"these runs' newest measurements are of different {name}; a ladder differs in size and seed alone"
    )


@pytest.fixture(scope="module")
def figure(rungs: list[scale.Rung]) -> Figure:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale, "ladder", lambda runs: rungs)
        (figure,) = figures_of(scale.draw([]))
    return figure


def mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def lines(axis: Axes, color: str, *, k_is_largest: bool = True) -> list[list[float]]:
    """Return the heights of the joined points of one colour, of the largest k (solid) or the smallest (dashed)."""
    style = "-" if k_is_largest else "--"
    return [
        list(line.get_ydata()) for line in axis.lines
        if line.get_color() == color and line.get_linestyle() == style and len(line.get_xdata()) == 3
    ]  # fmt: skip


def test_two_models_of_one_size_are_refused(runs: list[Path]) -> None:
    for run in runs[:2]:
        path = newest_finished(run) / "manifest.json"
        write_manifest(path.parent, {**read_json(path), "num_parameters": 1000})
    with pytest.raises(UserError, match="are two models of 1,000 parameters"):
        scale.ladder(runs)
    assert "Largest minus smallest" not in scale._words(scale.ladder(runs[2:]))


def test_a_missing_number_leaves_a_gap(rungs: list[scale.Rung]) -> None:
    """A line from its left to its right neighbour would show a number that is not there."""
    figure, axis = plt.subplots()
    hidden = rungs[1].numbers.mean
    value = lambda summary: None if summary is hidden else summary.long_gain_nats  # noqa: E731
    scale._draw_line(axis, rungs, value=value, color="black")
    joined = [list(line.get_xdata()) for line in axis.lines if line.get_linestyle() == "-"]
    plt.close(figure)
    assert joined == [[SIZES[0]], [SIZES[2]]]


def test_runs_of_one_configuration_are_one_point(rungs: list[scale.Rung]) -> None:
    assert [rung.num_parameters for rung in rungs] == SIZES
    assert [rung.numbers.model.seeds for rung in rungs] == [(0, 1, 2)] * 3
    for rung in rungs:
        of_seeds = [summary.long_gain_nats.mean for summary in rung.numbers.of_seeds]
        assert rung.numbers.mean.long_gain_nats.mean == pytest.approx(np.mean(of_seeds))


def test_panels_of_windows_show_means_intervals_and_seeds(figure: Figure, rungs: list[scale.Rung]) -> None:
    for axis, name in ((figure.axes[0], "long_gain_nats"), (figure.axes[1], "gain_beyond_nats")):
        estimates = [rung.numbers.mean.of_windows(name) for rung in rungs]
        assert list(axis.lines[0].get_xdata()) == SIZES
        assert list(axis.lines[0].get_ydata()) == [estimate.mean for estimate in estimates]
        ends = np.array([segment for segment in axis.collections[0].get_segments()])[:, :, 1]
        assert ends == pytest.approx(np.array([estimate.bounds for estimate in estimates]))
        dots = [list(line.get_ydata()) for line in axis.lines if line.get_marker() == "."]
        assert dots == [[summary.of_windows(name).mean for summary in rung.numbers.of_seeds] for rung in rungs]
    assert [axis.get_title() for axis in figure.axes[:2]] == ["long gain", "gain beyond the training row"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["nats", "nats", "recovered fraction", "nats", "nats", "D(k)"]
    assert [axis.get_xlabel() for axis in figure.axes] == [""] * 3 + ["parameters"] * 3
    for axis in figure.axes:
        assert [label.get_text() for label in axis.get_xticklabels()] == ["0.4M", "1.2M", "3.6M"]


def test_sizes_and_fractions_are_on_logarithmic_axes(figure: Figure) -> None:
    for axis in figure.axes:
        low, high = axis.get_xlim()
        assert axis.get_xscale() == "log" and 0.5 * SIZES[0] < low < SIZES[0] and SIZES[-1] < high < 2 * SIZES[-1]
    assert [axis.get_yscale() == "linear" for axis in figure.axes] == [True, True, False, True, True, True]


@pytest.mark.parametrize("number", [1, 3, 6])
def test_seeds_stand_to_the_right_of_their_own_line_and_left_of_the_next(rungs: list[scale.Rung], number: int) -> None:
    factors = [
        factor for place in scale._places(number, rungs) for factor in (place["shift"], place["shift"] * place["aside"])
    ]
    assert len(factors) == 2 * number and factors == sorted(set(factors))
    assert factors[-1] / factors[0] < SIZES[1] / SIZES[0]  # nothing reaches the next size


def test_pretrained_models_of_a_ladder_are_named(rungs: list[scale.Rung]) -> None:
    named = []
    for i, rung in enumerate(rungs):
        setup = dataclasses.replace(
            rung.numbers.mean.setup, model=ModelRecord(**{**MODEL, "name": f"someone/model-{i}"})
        )
        mean = dataclasses.replace(rung.numbers.mean, setup=setup)
        named.append(dataclasses.replace(rung, numbers=dataclasses.replace(rung.numbers, mean=mean)))
    said = scale._words(named)
    assert all(said.count(f"someone/model-{i}") == 1 for i in range(3)) and "someone/" not in scale._words(rungs)


def test_where_one_size_has_a_single_seed_its_interval_is_said_to_lack_the_choice_of_the_seed(
    rungs: list[scale.Rung],
) -> None:
    mixed = scale.ladder([rungs[0].numbers.model.runs[0], *rungs[1].numbers.model.runs[:2]])
    words = scale._words(mixed)
    assert "Points: means over 1 seed or 2 seeds of training; " in words and "Dots: single seeds." in words
    assert "they may cover as little as 88%; intervals of models with 1 seed do not include what another seed" in words
    gains = [rung.numbers.mean.long_gain_nats for rung in mixed]
    said = ", ".join(f"{size} {interval(gain, 3)}" for size, gain in zip(("0.4M", "1.2M"), gains, strict=True))
    assert scale._finding(mixed) == f"Long gain in nats by the number of parameters: {said}."
    figure, axis = plt.subplots()
    scale._draw_windows(axis, mixed, name="long_gain_nats", title="long gain")
    dots = [list(line.get_ydata()) for line in axis.lines if line.get_marker() == "."]
    assert dots == [[], [summary.long_gain_nats.mean for summary in mixed[1].numbers.of_seeds]]
    places = [list(line.get_xdata()) for line in axis.lines if line.get_marker() == "."]
    assert places == [[], [pytest.approx(1.05 * SIZES[1])] * 2]  # beside the point
    plt.close(figure)


def test_sizes_with_two_and_with_three_seeds_keep_the_warning_of_two(rungs: list[scale.Rung]) -> None:
    words = scale._words([scale.ladder(list(rungs[0].numbers.model.runs[:2]))[0], *rungs[1:]])
    assert "Points: means over 2 seeds or 3 seeds of training; " in words and "as little as 88%. Dots" in words
    assert "with 1 seed" not in words


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((338_000, 850_304, 2_400_000), ["0.34M", "0.85M", "2.4M"]),
        ((2_410_000, 2_440_000, 134_515_008), ["2.41M", "2.44M", "135M"]),
        ((101_100_000, 104_400_000, 1_235_800_000), ["101M", "104M", "1236M"]),
        ((104_100_000, 104_400_000, 104_420_000), ["104.1M", "104.4M", "104.42M"]),
        ((12, 99_600_000, 100_000_000), ["0.000012M", "99.6M", "100M"]),
    ],
)
def test_sizes_have_names_of_their_own_without_exponents(
    rungs: list[scale.Rung], sizes: tuple[int, ...], names: list[str]
) -> None:
    """On the axis, in the finding, and in what is said of the gates, which fail everywhere."""
    renamed = []
    for rung, size in zip(rungs, sizes, strict=True):
        mean = dataclasses.replace(rung.numbers.mean, gate="failed")
        numbers = dataclasses.replace(rung.numbers, mean=mean)
        renamed.append(dataclasses.replace(rung, num_parameters=float(size), numbers=numbers))
    assert f"GATE FAILED at {', '.join(names)}: no R(k) there." in scale._words(renamed)
    gains = [interval(rung.numbers.mean.long_gain_nats, 3) for rung in rungs]
    said = ", ".join(f"{name} {gain}" for name, gain in zip(names, gains, strict=True))
    assert scale._finding(renamed) == f"Long gain in nats by the number of parameters: {said}."
    figure, axes = plt.subplots(2, 2)
    scale._set_axes(axes, renamed)
    assert [[label.get_text() for label in axis.get_xticklabels()] for axis in axes.flat] == [names] * 4
    plt.close(figure)


@pytest.mark.parametrize(
    ("panel", "title", "name", "selectors"),
    [
        (2, "R(k), target not seen", "recovered_fraction", ["kl", "attention", "random"]),
        (3, "gain over random, target not seen", "gain_over_random_nats", ["kl", "attention"]),
        (4, "corrected gain, target seen", "corrected_gain_nats", ["unmask-one"]),
    ],
)
def test_panels_of_selectors_show_the_smallest_and_the_largest_k_alike(
    figure: Figure, rungs: list[scale.Rung], panel: int, title: str, name: str, selectors: list[str]
) -> None:
    axis = figure.axes[panel]
    assert axis.get_title() == title
    for selector in selectors:
        for k in (1, 8):
            expected = [mean(rung.numbers.mean.at(selector, "real", k).estimate(name)) for rung in rungs]
            assert lines(axis, LOOKS[selector]["color"], k_is_largest=k == 8) == [expected]
        dots = [
            list(line.get_ydata()) for line in axis.lines
            if line.get_marker() == "." and line.get_color() == LOOKS[selector]["color"]
        ]  # fmt: skip
        of_seeds = [
            [mean(summary.at(selector, "real", k).estimate(name)) for summary in rung.numbers.of_seeds]
            for k in (1, 8)
            for rung in rungs
        ]
        assert sorted(dots) == sorted(of_seeds)
    colors = {line.get_color() for line in axis.lines if line.get_linestyle() != "None"} - {"grey"}
    assert colors == {LOOKS[selector]["color"] for selector in selectors}
    (level,) = (line for line in axis.lines if line.get_color() == "grey")
    assert set(level.get_ydata()) == {1 if name == "recovered_fraction" else 0}  # the whole long gain; nothing


def test_prediction_recovered_stands_beside_its_company(figure: Figure, rungs: list[scale.Rung]) -> None:
    axis = figure.axes[5]
    assert axis.get_title() == "prediction recovered by kl, D(8)"
    recovered = [rung.numbers.mean.prediction_recovered("kl", 8) for rung in rungs]
    drawn = [
        list(line.get_ydata()) for line in axis.lines if len(line.get_xdata()) == 3 and line.get_marker() in ("s", "X")
    ]
    drawn = [heights for heights in drawn if heights]
    for wanted in ("real", "null", "mimicry", "random"):
        assert [mean(getattr(of, wanted)) for of in recovered] in drawn
    labels = {line.get_label(): line for line in figure.legends[0].legend_handles}
    styles = {"real": "-", **{name: labels[f"D: {words}"].get_linestyle() for name, words in KINDS_OF_D.items()}}
    assert len(set(styles.values())) == 3
    looks = {
        tuple(line.get_ydata()): (line.get_color(), line.get_marker(), line.get_linestyle(), line.get_markerfacecolor())
        for line in axis.lines
        if len(line.get_xdata()) == 3 and line.get_linestyle() != "None"
    }
    of_kl, of_random = (LOOKS["kl"]["color"], LOOKS["kl"]["marker"]), (LOOKS["random"]["color"], "X")
    assert looks == {
        tuple(mean(getattr(of, wanted)) for of in recovered): look
        for wanted, look in (
            ("real", (*of_kl, "-", of_kl[0])),
            ("null", (*of_kl, styles["null"], "white")),
            ("mimicry", (*of_kl, styles["mimicry"], "white")),
            ("random", (*of_random, "-", of_random[0])),
        )
    }
    assert not any(of.real.has_interval for of in recovered if of.real)
    assert not [segment for bars in axis.collections for segment in bars.get_segments() if np.isfinite(segment).all()]
    assert "D(k): too few documents for an interval (80; it takes 300)." in str(figure.get_label())


def test_the_legend_has_each_kind_of_line_as_it_is_drawn(figure: Figure) -> None:
    entries = {
        line.get_label(): (line.get_color(), line.get_linestyle(), line.get_markerfacecolor())
        for line in figure.legends[0].legend_handles
    }
    selectors = ("unmask-one", "kl", "attention", "random")
    assert entries == {name: (LOOKS[name]["color"], "-", LOOKS[name]["color"]) for name in selectors} | {
        "k = 8": ("grey", "-", "grey"),
        "k = 1": ("grey", "--", "white"),
        "D: null context": ("grey", ":", "white"),
        "D: mimicry": ("grey", "-.", "white"),
    }
    open_points = {line.get_linestyle() for line in figure.axes[2].lines if line.get_markerfacecolor() == "white"}
    assert open_points == {"--"}
    # Where lines have gaps only points are left, so an open one must look open.
    for axis in figure.axes[2:5]:
        markers = {line.get_marker() for line in axis.lines} - {".", "None"}
        assert markers and markers <= set(Line2D.filled_markers)
    assert {line.get_marker() for line in figure.legends[0].legend_handles} <= set(Line2D.filled_markers)


def test_the_size_with_the_fewest_documents_says_why_d_has_no_interval(rungs: list[scale.Rung]) -> None:
    changed = []
    for rung, number in zip(rungs, (450, 1200, 299), strict=True):
        mean = dataclasses.replace(rung.numbers.mean, num_documents=number)
        changed.append(dataclasses.replace(rung, numbers=dataclasses.replace(rung.numbers, mean=mean)))
    assert "D(k): too few documents for an interval (299; it takes 300)." in scale._words(changed)
    assert "too few documents" not in scale._words(changed[:2])


def test_the_caption_tells_gates_differences_and_seeds(figure: Figure, rungs: list[scale.Rung]) -> None:
    words = str(figure.get_label())
    found = dict(re.findall(r"(?:nats: |; )(long gain|gain over random of [\w-]+, k = \d,) (-?\d\.\d{3}) \[", words))
    largest, smallest = (
        [(of_seed.windows["gain_long_nats"], of_seed.gains) for of_seed in rungs[i].measurements] for i in (-1, 0)
    )

    def change(value: Callable[[pd.Series, pd.DataFrame], pd.Series]) -> float:
        means = [np.mean([value(*of_seed).mean() for of_seed in seeds]) for seeds in (largest, smallest)]
        return float(means[0] - means[1])

    expected = {"long gain": change(lambda long_gain, _: long_gain)}
    for selector, k in itertools.product(("kl", "attention"), (1, 8)):
        expected[f"gain over random of {selector}, k = {k},"] = change(
            lambda _, gains, name=selector, k=k: gains[name, "real", k] - gains["random", "real", k]
        )
    assert expected["long gain"] > 0.1  # the larger the model, the larger its long gain
    assert {name: float(shown) for name, shown in found.items()} == pytest.approx(expected, abs=6e-4)
    of_seeds = difference_over_seeds(rungs[0].measurements, rungs[-1].measurements).of_windows("long_gain_nats")
    assert f"long gain {interval(of_seeds, 3)};" in words
    assert "The gate passed everywhere. The gate beyond the training row passed everywhere." in words
    assert "means over 3 seeds of training" in words and "Dots: single seeds." in words


def test_failed_gates_and_first_tokens_that_are_not_the_better_ones_are_named_by_size(
    rungs: list[scale.Rung], figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: list[dict[str, Any]] = [
        {"gate": "failed", "beyond_gate": "failed"},
        {"setup": ModelSetup.from_manifest(CONTEXTUAL)},
        {"beyond_gate": "failed"},
    ]
    changed = []
    for rung, change in zip(rungs, changes, strict=True):
        mean = dataclasses.replace(rung.numbers.mean, **change)
        changed.append(dataclasses.replace(rung, numbers=dataclasses.replace(rung.numbers, mean=mean)))
    monkeypatch.setattr(scale, "ladder", lambda runs: changed)
    (drawn,) = figures_of(scale.draw([]))
    assert drawn.get_suptitle().splitlines() == [
        "0.4M: GATE FAILED, GATE BEYOND THE TRAINING ROW FAILED", "3.6M: GATE BEYOND THE TRAINING ROW FAILED",
    ]  # fmt: skip
    assert "1.2M: WARNING: this measurement is not of the better first token: " in str(drawn.get_label())
    below = [" ".join(text.get_text().split()) for text in drawn.texts]
    assert any(text.endswith("1.2M: WARNING: not of the better first token.") for text in below)
    assert figure.get_suptitle() == "" and "WARNING" not in str(figure.get_label())


def test_differences_of_single_seeds_are_the_paired_ones(rungs: list[scale.Rung]) -> None:
    first, second = rungs[0].measurements[0], rungs[2].measurements[0]
    assert difference_over_seeds([first], [second]) == difference(first, second)


def test_differences_over_random_are_of_ladders_that_have_it(rungs: list[scale.Rung]) -> None:
    without = [
        dataclasses.replace(
            rung, measurements=tuple(one.restrict_selectors({"kl": "kl"}) for one in rung.measurements[:1])
        )
        for rung in rungs
    ]
    words = scale._differences_words(without)
    assert re.fullmatch(r"Largest minus smallest, paired, nats: long gain 0\.\d{3} \[[\d., ]+\]\.", words), words
