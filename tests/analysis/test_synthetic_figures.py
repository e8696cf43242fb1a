"""The figures of the synthetic tasks, through their artists: which numbers are drawn where, under which label."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from drawn_figures import figures_of, words_on
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from analysis import synthetic
from analysis.output import Drawn
from analysis.synthetic import COLOURS
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import Accuracy, Setting
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.synthetic_tasks import setting_words

LENGTHS = (6, 12, 24)
# By k. Variables: 3, 6 and 12 chains of one assignment, or 2, 3 and 6 chains of two; one is right, the others are in one of ten.
BY_CHANCE = {"parity": {1: [0.5] * 3, 2: [0.5] * 3}, "variables": {1: [0.4, 0.25, 0.175], 2: [0.55, 0.4, 0.25]}}
NUMBERS = np.random.default_rng(0)
PARITY = Setting("parity", False, "pose", max_sparsity=2, train_lengths=(4, 8), max_position=32)


def share() -> Estimate:
    """Return another share at each call, with an interval that is not symmetric."""
    value = float(NUMBERS.uniform(0.2, 0.9))
    return Estimate(value, value - 0.05, value + 0.1, 0.04)


def accuracies_of(setting: Setting, sparsities: tuple[int, ...], *, seeds: int = 3) -> list[Accuracy]:
    return [
        Accuracy(setting, length, k, share(), share(), tuple(share().mean for _ in range(seeds)))
        for k in sparsities for length in LENGTHS
    ]  # fmt: skip


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Draw made-up accuracies; return the figures by name. All seeds have learned but those named."""

    def figures(
        accuracies: list[Accuracy],
        learned: dict[Setting, tuple[int, int]] | None = None,
    ) -> dict[str, Figure]:
        counts = {one.setting: (len(one.of_seeds),) * 2 for one in accuracies}
        (tmp_path / "run" / "synthetic").mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(synthetic, "newest_finished", lambda run, kind: run / kind / "newest")
        monkeypatch.setattr(synthetic, "read_accuracies", lambda folders: accuracies)
        monkeypatch.setattr(synthetic, "task_runs", lambda folders: [])
        monkeypatch.setattr(synthetic, "num_learned", lambda runs: counts | (learned or {}))
        drawn = synthetic.draw([tmp_path / "run"])
        return {one.name: one.figure for one in drawn}

    yield figures
    plt.close("all")


def assert_line(axis: Axes, points: list[Accuracy], *, color: str, linestyle: str = "-") -> None:
    """Check that a line shows the accuracies, and thin ones of the same colour each seed; or a band the intervals of one seed."""
    lines = [
        line
        for line in axis.lines
        if (line.get_color(), line.get_linestyle(), len(line.get_xdata())) == (color, linestyle, len(points))
    ]
    assert all(list(line.get_xdata()) == [point.length for point in points] for line in lines)
    means, *seeds = sorted(lines, key=lambda line: -line.get_linewidth())
    assert list(means.get_ydata()) == [point.right.mean for point in points]
    if len(points[0].of_seeds) > 1:
        assert [tuple(line.get_ydata()) for line in seeds] == list(
            zip(*(point.of_seeds for point in points), strict=True)
        )
        return
    assert not seeds
    corners = [
        {(float(x), float(y)) for x, y in band.get_paths()[0].vertices}
        for band in axis.collections
        if to_hex(band.get_facecolor()[0]) == color.lower()
    ]
    expected = {(float(p.length), bound) for p in points for bound in (p.right.low, p.right.high)}
    assert expected in corners


def legend(figure: Figure) -> dict[str, tuple[str, str]]:
    """Return colour and line style of each entry of the legend."""
    return {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.legends[0].legend_handles}


def test_figure_1_has_a_panel_for_each_k_train_and_a_line_for_each_k(draw) -> None:
    settings = [dataclasses.replace(PARITY, max_sparsity=number) for number in (4, 2)]
    made = [accuracies_of(setting, (2, 4, 6)) for setting in settings]
    figure = draw(made[0] + made[1])["synthetic-parity"]
    assert [axis.get_title() for axis in figure.axes] == ["K_train = 2", "K_train = 4"]
    assert figure.axes[0].get_ylabel() == "accuracy"
    assert {axis.get_xlabel() for axis in figure.axes} == {"prompt length, tokens"}
    for axis, own in zip(figure.axes, (made[1], made[0]), strict=True):
        for number, k in enumerate((2, 4, 6)):
            assert_line(axis, [one for one in own if one.k == k], color=COLOURS[number])
            assert legend(figure)[f"k = {k}"][0] == COLOURS[number]
        grey = [patch.get_x() for patch in axis.patches], [patch.get_x() + patch.get_width() for patch in axis.patches]
        assert grey == ([4], [8])
        chance = [line for line in axis.lines if line.get_linestyle() == ":"]
        assert [set(line.get_ydata()) for line in chance] == [{0.5}]
    assert "k uniform from 1 to K_train and 4 to 8 tokens" in words_on(figure)
    assert "Thick: the mean over 3 training seeds; thin: each of them." in words_on(figure)


def test_the_theory_is_drawn_where_it_speaks_only(draw) -> None:
    """The theory covers k up to K_train and lengths up to the longest training prompt, of 8 tokens: here, length 6."""
    figure = draw(accuracies_of(PARITY, (2, 6)))["synthetic-parity"]
    theory = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
    assert [list(line.get_xdata()) for line in theory] == [[6]]
    none = draw(accuracies_of(PARITY, (6,)))["synthetic-parity"]
    assert not [line for line in none.axes[0].lines if line.get_linestyle() == "--"]
    assert "theory" in legend(figure) and "theory" not in legend(none)


@pytest.mark.parametrize("seeds", [1, 3])
def test_what_was_evaluated_at_one_length_is_seen(draw, seeds: int) -> None:
    """A line, or a band, of one place has no length: what has no marker gets one, an interval is a bar."""
    steps = dataclasses.replace(PARITY, scratchpad=True, positions="predicted")
    made = [one for setting in (PARITY, steps) for one in accuracies_of(setting, (1, 2), seeds=seeds)]
    at_one = [one for one in made if one.length == 6]
    learned = {PARITY: (seeds, seeds), steps: (seeds, seeds)}
    first = synthetic._draw_parity([one for one in at_one if one.setting == PARITY], learned).figure
    figures = [first, *draw(at_one).values()]
    assert len(figures) == 2
    for figure in figures:
        for axis in figure.axes:
            assert axis.lines and all(line.get_marker() not in ("", "None") for line in axis.lines)
    intervals = [segment for lines in first.axes[0].collections for segment in lines.get_segments()]  # type: ignore[attr-defined]
    assert len(intervals) == (2 if seeds == 1 else 0)


@pytest.mark.parametrize(("task", "name"), [("parity", "synthetic-scratchpad"), ("variables", "synthetic-variables")])
def test_figures_2_and_3_have_a_panel_for_each_k_and_a_line_for_each_method(draw, task: str, name: str) -> None:
    ways = [("predicted", True), ("shifted", True), ("pose", True), ("shifted", False), ("pose", False)]
    words = [
        "Predictive Position Coupling", "absolute, random shift", "RoPE with PoSE", "absolute, random shift, no scratchpad",
        "RoPE with PoSE, no scratchpad",
    ]  # fmt: skip
    settings = [
        Setting(task, scratchpad, positions, 2, (4, 8), 32, "rope" if positions == "pose" else "absolute")
        for positions, scratchpad in ways
    ]
    made = {setting: accuracies_of(setting, (1, 2), seeds=1) for setting in settings}
    figure = draw([one for setting in reversed(settings) for one in made[setting]])[name]
    assert [axis.get_title() for axis in figure.axes] == ["k = 1", "k = 2"]
    assert figure.axes[0].get_ylabel() == "accuracy of the whole response"
    for axis, k in zip(figure.axes, (1, 2), strict=True):
        for number, (setting, word) in enumerate(zip(settings, words, strict=True)):
            style = "-" if setting.scratchpad else "--"
            assert_line(axis, [one for one in made[setting] if one.k == k], color=COLOURS[number], linestyle=style)
            assert legend(figure)[word] == (COLOURS[number], style)
        forgiven = [line for line in axis.lines if line.get_linestyle() == ":" and line.get_color() == COLOURS[0]]
        own = [one for one in made[settings[0]] if one.k == k]
        assert [list(line.get_ydata()) for line in forgiven] == [[one.tokens_right.mean for one in own]]
        chance = [line for line in axis.lines if line.get_linestyle() == ":" and line.get_color() == "grey"]
        assert [list(line.get_ydata()) for line in chance] == [pytest.approx(BY_CHANCE[task][k])]
    assert legend(figure)["chance, no scratchpad"] == ("grey", ":")
    assert "k uniform from 1 to 2 and 4 to 8 tokens" in words_on(figure)
    assert "One training seed" in words_on(figure)


def test_every_encoding_has_its_line(draw) -> None:
    pose = Setting("parity", True, "pose", 2, (4, 8), 32)
    settings = [
        pose,
        dataclasses.replace(pose, num_chunks=1),
        dataclasses.replace(pose, num_chunks=1, rope_scaling="yarn", rope_factor=2.0),
        dataclasses.replace(pose, position_embedding="none", num_chunks=1),
        dataclasses.replace(pose, positions="randpos", position_embedding="absolute"),
    ]
    made = {setting: accuracies_of(setting, (1,), seeds=1) for setting in settings}
    figure = draw([one for setting in reversed(settings) for one in made[setting]])["synthetic-scratchpad"]
    words = [
        "RoPE with PoSE",
        "RoPE without PoSE",
        "RoPE without PoSE, YaRN by 2",
        "no positions (NoPE)",
        "absolute with RandPos",
    ]
    assert [label for label in legend(figure) if label in words] == words
    for number, setting in enumerate(settings):
        assert_line(figure.axes[0], made[setting], color=COLOURS[number], linestyle="-")


def test_lines_that_differ_in_what_their_names_leave_out_are_told_apart(draw) -> None:
    steps = Setting("parity", True, "pose", 2, (4, 8), 32)
    settings = [steps, dataclasses.replace(steps, num_chunks=4), dataclasses.replace(steps, positions="randpos")]
    drawn = draw([one for setting in settings for one in accuracies_of(setting, (1,), seeds=1)])
    names = ["RoPE with PoSE, chunks 4", "RoPE with PoSE, chunks 2", "RoPE with RandPos"]
    assert [label for label in legend(drawn["synthetic-scratchpad"]) if "RoPE" in label] == names


def test_a_figure_of_one_encoding_does_not_mix_two(draw) -> None:
    others = {"position_embedding": "none", "rope_scaling": "linear"}
    for part, value in others.items():
        other = dataclasses.replace(PARITY, max_sparsity=3, **{part: value})  # type: ignore[arg-type]
        with pytest.raises(UserError, match=f"differ in {part}"):
            draw(accuracies_of(PARITY, (1,)) + accuracies_of(other, (1,)))


def test_parity_without_a_scratchpad_stands_beside_its_twin_with_one_and_otherwise_alone(draw) -> None:
    steps = Setting("parity", True, "pose", 2, (4, 8), 32)
    longer = dataclasses.replace(PARITY, train_lengths=(8, 20))
    made = accuracies_of(steps, (1,)) + accuracies_of(PARITY, (1,)) + accuracies_of(longer, (1,))
    figures = draw(made)
    assert sorted(figures) == ["synthetic-parity", "synthetic-scratchpad"]
    assert "8 to 20 tokens" in words_on(figures["synthetic-parity"])
    assert {"RoPE with PoSE", "RoPE with PoSE, no scratchpad"} <= set(legend(figures["synthetic-scratchpad"]))


@pytest.mark.parametrize(
    ("task", "scratchpad", "part", "value"),
    [
        ("parity", False, "max_position", 64),
        ("parity", False, "positions", "randpos"),
        ("parity", False, "train_lengths", (8, 20)),
        ("parity", False, "modulus", 4),
        ("parity", False, "num_chunks", 3),
        ("parity", False, "rope_factor", 2.0),
        ("variables", True, "train_lengths", (8, 20)),
        ("variables", True, "max_sparsity", 4),
        ("parity", True, "modulus", 4),
    ],
)
def test_runs_that_one_caption_cannot_describe_are_refused(
    draw, task: str, scratchpad: bool, part: str, value: object
) -> None:
    setting = Setting(task, scratchpad, "pose", 2, (4, 8), 32)
    other = dataclasses.replace(setting, **{part: value})
    with pytest.raises(UserError) as refused:
        synthetic._only_setting([setting, setting, other], "task", part)
    assert str(refused.value) == (
        f"one figure cannot show runs that differ in {part}: {getattr(setting, part)} ({setting_words(setting)}) and "
        f"{value} ({setting_words(other)}); give the runs of one of them"
    )
    drawn = synthetic._draw_parity if (task, scratchpad) == ("parity", False) else synthetic._draw_methods(task, "name")
    with pytest.raises(UserError, match=f"differ in {part}: "):
        drawn(accuracies_of(setting, (1,)) + accuracies_of(other, (1,)), {setting: (3, 3), other: (3, 3)})


def test_an_unfinished_evaluation_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "synthetic" / "begun").mkdir(parents=True)
    with pytest.raises(
        UserError,
        match=r"is finished; run `olmo-sparsity synth eval TASK --run .*`, which continues one that has begun$",
    ):
        figures_of(synthetic.draw([tmp_path]))


def test_runs_without_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no synthetic tables here; run `olmo-sparsity synth eval` first"):
        figures_of(synthetic.draw([tmp_path]))


def test_sums_have_their_own_chance_and_name(draw) -> None:
    setting = dataclasses.replace(PARITY, modulus=4, background="text")
    figure = draw(accuracies_of(setting, (2,)))["synthetic-parity-text"]
    (chance,) = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert set(chance.get_ydata()) == {0.25}
    assert "Sum modulo 4 in text: accuracy" in words_on(figure) and "k planted values" in words_on(figure)
    steps = draw(accuracies_of(dataclasses.replace(PARITY, scratchpad=True, modulus=4), (2,)))
    assert "Sum modulo 4: accuracy of the whole response" in words_on(steps["synthetic-scratchpad"])


def test_accuracies_inside_a_row_and_beyond_it_are_another_figure(draw) -> None:
    placed = [dataclasses.replace(one, place="beyond") for one in accuracies_of(PARITY, (2,))]
    with pytest.raises(UserError) as refused:
        draw(placed)
    assert str(refused.value) == (
        "some of these runs were evaluated with the planted tokens inside a row and beyond it (synthetic.test_row_len); "
        "`python -m analysis inside_and_beyond` draws them"
    )


def test_what_has_not_learned_is_drawn_and_marked(draw) -> None:
    ways = [Setting("parity", True, positions, 2, (4, 8), 32) for positions in ("predicted", "shifted", "pose")]
    made = [one for setting in ways for one in accuracies_of(setting, (2,))]
    figure = draw(made, {ways[1]: (0, 3), ways[2]: (2, 3)})["synthetic-scratchpad"]
    assert {
        "Predictive Position Coupling",
        "absolute, random shift (not learned)",
        "RoPE with PoSE (learned by 2 of 3 seeds)",
    } <= set(legend(figure))
    for number, setting in enumerate(ways):
        assert_line(figure.axes[0], [one for one in made if one.setting == setting], color=COLOURS[number])
    assert "Learned: an accuracy of at least 0.95 at the training lengths" in words_on(figure)
    panels = draw(accuracies_of(PARITY, (2,)), {PARITY: (0, 3)})["synthetic-parity"]
    assert panels.axes[0].get_title() == "K_train = 2 (not learned)"


def test_figure_1_shows_k_up_to_four_more_than_trained_and_text_apart(draw) -> None:
    in_text = dataclasses.replace(PARITY, background="text")
    figures = draw(accuracies_of(PARITY, (2, 6, 7)) + accuracies_of(in_text, (2,)))
    assert {"k = 2", "k = 6"} < set(legend(figures["synthetic-parity"]))
    assert "k = 7" not in legend(figures["synthetic-parity"])
    assert "Sparse parity in text" in words_on(figures["synthetic-parity-text"])


def test_where_only_k_far_above_k_train_were_evaluated_figure_1_shows_the_smallest(draw) -> None:
    wider = dataclasses.replace(PARITY, max_sparsity=4)
    made = accuracies_of(PARITY, (9, 7)), accuracies_of(wider, (3, 8, 9))
    first, second = draw(made[0] + made[1])["synthetic-parity"].axes
    assert (first.get_title(), second.get_title()) == ("K_train = 2", "K_train = 4")
    for axis, own, drawn in ((first, made[0], {7: 1}), (second, made[1], {3: 0, 8: 2})):
        for k, number in drawn.items():
            assert_line(axis, [one for one in own if one.k == k], color=COLOURS[number])
        assert {line.get_color() for line in axis.lines} - {"grey", "black"} == {COLOURS[i] for i in drawn.values()}


def test_who_was_evaluated_at_no_k_of_the_scratchpads_is_named_and_not_drawn(draw) -> None:
    steps = dataclasses.replace(PARITY, scratchpad=True)
    ordinary = dataclasses.replace(PARITY, num_chunks=1)
    made = accuracies_of(steps, (1, 2)) + accuracies_of(PARITY, (2, 5)) + accuracies_of(ordinary, (3, 5))
    figure = draw(made)["synthetic-scratchpad"]
    assert [axis.get_title() for axis in figure.axes] == ["k = 1", "k = 2"]
    assert set(legend(figure)) == {"RoPE with PoSE", "RoPE with PoSE, no scratchpad", "chance, no scratchpad"}
    assert "Not drawn, since evaluated at other k alone: RoPE without PoSE, no scratchpad." in words_on(figure)
    all_drawn = draw(accuracies_of(steps, (1, 2)) + accuracies_of(PARITY, (2, 5)))["synthetic-scratchpad"]
    assert "Not drawn" not in words_on(all_drawn)


def test_the_twin_without_a_scratchpad_is_in_figure_1_where_k_train_is_compared(draw) -> None:
    steps = Setting("parity", True, "pose", 2, (4, 8), 32)
    made = [
        one
        for setting in (
            steps,
            PARITY,
            dataclasses.replace(PARITY, max_sparsity=4),
            dataclasses.replace(PARITY, num_chunks=1),
        )
        for one in accuracies_of(setting, (2,))
    ]
    figures = draw(made)
    assert [axis.get_title() for axis in figures["synthetic-parity"].axes] == ["K_train = 2", "K_train = 4"]
    assert {"RoPE with PoSE, no scratchpad", "RoPE without PoSE, no scratchpad"} <= set(
        legend(figures["synthetic-scratchpad"])
    )


def test_lengths_far_apart_are_on_a_logarithmic_axis(draw) -> None:
    """From 15 times the shortest length on."""
    for longest, scale in ((240, "log"), (90, "log"), (89, "linear")):
        far = [dataclasses.replace(one, length=longest) for one in accuracies_of(PARITY, (2,)) if one.length == 24]
        axis = draw(accuracies_of(PARITY, (2,)) + far)["synthetic-parity"].axes[0]
        assert axis.get_xscale() == scale
        low, high = axis.get_xlim()
        assert low < 6 and longest < high < 1.1 * longest
        if scale == "log":
            assert [label.get_text() for label in axis.get_xticklabels()] == ["6", "12", "24", str(longest)]
    assert draw(accuracies_of(PARITY, (2,)))["synthetic-parity"].axes[0].get_xscale() == "linear"


def test_encodings_of_parity_without_a_scratchpad_have_a_figure_of_their_own(draw) -> None:
    settings = [
        PARITY,
        dataclasses.replace(PARITY, num_chunks=1),
        dataclasses.replace(PARITY, num_chunks=1, position_embedding="none"),
    ]
    made = {setting: accuracies_of(setting, (1, 2, 4)) for setting in settings}
    figures = draw([one for own in made.values() for one in own])
    figure = figures["synthetic-encodings"]  # k up to K_train
    assert [axis.get_title() for axis in figure.axes] == ["k = 1", "k = 2"]
    named = {"RoPE with PoSE": PARITY, "RoPE without PoSE": settings[1], "no positions (NoPE)": settings[2]}
    for axis, k in zip(figure.axes, (1, 2), strict=True):
        for label, setting in named.items():
            color, style = legend(figure)[label]
            assert_line(axis, [one for one in made[setting] if one.k == k], color=color, linestyle=style)
    assert set(legend(figure)) == {*named, "chance"}
    assert "Predictive" not in words_on(figure)
    assert "synthetic-scratchpad" not in figures


def test_findings_are_of_the_longest_prompts_at_the_k_of_the_figure(draw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Figure 1 at k = K_train, of the methods at the largest k."""
    said: dict[str, str] = {}

    def drawn(figure: Figure, name: str, finding: str, **rest: Any) -> Drawn:
        said[name] = finding
        return Drawn(figure, name, finding, **rest)

    monkeypatch.setattr(synthetic, "Drawn", drawn)
    settings = [dataclasses.replace(PARITY, max_sparsity=k_train) for k_train in (2, 4)]
    made = [accuracies_of(setting, (2, 4, 6)) for setting in settings]
    farther = dataclasses.replace(made[0][-1], length=99)  # of k = 6
    draw([*(one for of_setting in made for one in reversed(of_setting)), farther])
    at_k_train = [
        next(one.right for one in of_setting if (one.k, one.length) == (k_train, 24))
        for of_setting, k_train in zip(made, (2, 4), strict=True)
    ]
    assert said["synthetic-parity"] == (
        f"Accuracy in the longest prompts, K_train = 2: {interval(at_k_train[0])} at k = 2 in prompts of 24 tokens; "
        f"K_train = 4: {interval(at_k_train[1])} at k = 4 in prompts of 24 tokens."
    )
    steps = Setting("parity", True, "pose", 2, (4, 8), 32)
    hard = [*accuracies_of(steps, (1, 2)), dataclasses.replace(accuracies_of(steps, (1,))[0], length=99)]
    draw(hard, {steps: (1, 3)})
    (right,) = (one.right for one in hard if (one.k, one.length) == (2, 24))
    assert said["synthetic-scratchpad"] == (
        "Accuracy of the whole response by the way position IDs are given, RoPE with PoSE (learned by 1 of 3 seeds): "
        f"{interval(right)} at k = 2 in prompts of 24 tokens."
    )


def test_the_numbers_of_seeds_are_said_from_the_fewest_to_the_most(draw) -> None:
    wider = dataclasses.replace(PARITY, max_sparsity=4)
    words = words_on(
        draw(accuracies_of(PARITY, (2,), seeds=1) + accuracies_of(wider, (2,), seeds=5))["synthetic-parity"]
    )
    assert (
        "the mean over 1 to 5 training seeds; thin: each of them; a band, where there is one seed" in words
        and "One training seed" not in words
    )
