"""The figure of what many selectors' choices are worth: each dot, each line, their order, colours and words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from drawn_figures import read
from known_selectors import only_here as only_here
from made_up import CONTEXTUAL
from matplotlib.axes import Axes

from analysis import choices
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.own_selectors import OwnSelector, declare_recorded, names_of, own_entries
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import anchor_warning, data_words, length_words, measured_words

GREEN, BLUE, ORANGE, GREY = "#009E73", "#0072B2", "#D55E00", "#777777"


def dots(axis: Axes, *, filled: bool) -> dict[float, tuple[float, str]]:
    """Return the dots of a panel by their line: (value, colour)."""
    return {
        round(float(line.get_ydata()[0])): (float(line.get_xdata()[0]), line.get_color())
        for line in axis.lines
        if line.get_marker() == "o" and (line.get_markerfacecolor() != "white") == filled
    }


def spans(axis: Axes) -> list[tuple[float, float, float]]:
    """Return (line, low, high) of the intervals."""
    return sorted(
        (round(float(segment[0][1]), 2), segment[0][0], segment[1][0])
        for lines in axis.collections
        for segment in lines.get_segments()  # type: ignore[attr-defined]
    )


def test_dots_are_the_numbers_of_the_summary_in_the_order_of_the_mean_gain(folders: dict[str, Path]) -> None:
    names = ["kl", "attention", "random", "nearest", "greedy-kl", "unmask-one"]
    both = [read(folders["passed"], *names), read(folders["not applicable"], *names)]
    drawn = choices.draw_measured(both, 2)
    blind = ["kl", "attention", "nearest", "greedy-kl"]  # unmask-one sees the target
    gains = {
        name: [one.summary.at(name, "real", 2).gain_over_random_nats for one in both]
        for name in blind
        if name in SELECTORS
    }
    means = {name: sum(gain.mean for gain in of if gain) / 2 for name, of in gains.items()} | {"random": 0.0}
    order = sorted(means, key=lambda name: means[name])
    assert len(set(means.values())) == 5 and order != list(means)
    axes = drawn.figure.axes
    assert [label.get_text() for label in axes[0].get_yticklabels()] == order
    assert [axis.get_xlabel() for axis in axes] == ["gain over random, nats"] * 2 + ["D(2)"] * 2
    colors = {"kl": GREEN, "greedy-kl": GREEN, "attention": BLUE, "nearest": ORANGE, "random": GREY}
    for column, one in enumerate(both):
        above, below = axes[column], axes[2 + column]
        at = {name: place for place, name in enumerate(order)}
        expected = {at[name]: (gains[name][column].mean, colors[name]) for name in blind}  # type: ignore[union-attr]
        assert dots(above, filled=True) == expected and dots(above, filled=False) == {}
        bounds = [gains[name][column].bounds for name in order if name != "random"]  # type: ignore[union-attr]
        assert [span[1:] for span in spans(above)] == [pytest.approx(bound) for bound in bounds]
        for context, filled in (("real", True), ("null", False)):
            recovered = {name: one.summary.at(name, context, 2).prediction_recovered for name in order}
            shown = {at[name]: (value.mean, colors[name]) for name, value in recovered.items() if value}
            assert dots(below, filled=filled) == shown and len(shown) == 5
        lengths = one.summary.lengths
        windows = f"{len(one.measurement.windows)} windows"
        assert above.get_title() == f"{one.summary.run}\n{lengths.local_len} of {lengths.full_len} tokens\n{windows}"
        # Foreign text stands below the line of its selector, the real one above it.
        hollow = {line.get_ydata()[0] % 1 for line in below.lines[:-1] if line.get_markerfacecolor() == "white"}
        filled = {line.get_ydata()[0] % 1 for line in below.lines[:-1] if line.get_markerfacecolor() != "white"}
        assert {round(shift, 2) for shift in hollow} == {0.8} and {round(shift, 2) for shift in filled} == {0.15}
        assert {line.get_ydata()[0] % 1 for line in above.lines[:-1]} == {0}
        for axis in (above, below):
            assert list(axis.lines[-1].get_xdata()) == [0, 0]  # what a choice without worth has
    legend = {text.get_text(): handle.get_color() for text, handle in zip(
        drawn.figure.legends[0].get_texts(), drawn.figure.legends[0].legend_handles, strict=True
    )}  # fmt: skip
    assert legend == {
        "the model, by derivatives or runs": GREEN,
        "one pass: attention, keys, values": BLUE,
        "the text or the place alone": ORANGE,
        "control": GREY,
        "foreign text": "black",
    }


def test_the_legend_has_the_kinds_that_are_drawn_alone(folders: dict[str, Path]) -> None:
    figure = choices.draw_measured([read(folders["passed"], "random", "attention")], 2).figure
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["one pass: attention, keys, values", "control", "foreign text"]


def test_a_null_context_that_is_no_foreign_text_is_not_called_so(folders: dict[str, Path]) -> None:
    one = read(folders["passed"], "random", "attention")
    shuffled = dataclasses.replace(one, summary=dataclasses.replace(one.summary, null_context="shuffled"))
    for measured in ([shuffled], [one, shuffled]):
        figure = choices.draw_measured(measured, 2).figure
        assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "null context"
        words = str(figure.get_label())
        assert "under the null context (hollow)" in words and "foreign text" not in words


def test_each_column_has_its_own_name_and_the_caption_the_data_of_each(folders: dict[str, Path]) -> None:
    one, other = (read(folders[name], "attention", "random") for name in ("passed", "not applicable"))
    lengths = dataclasses.replace(other.summary.lengths, local_len=1_006, full_len=2_012)
    summary = dataclasses.replace(other.summary, run="a-run-of-a-name-that-is-long", lengths=lengths, num_windows=3_017)
    other = dataclasses.replace(other, summary=summary)
    drawn = choices.draw_measured([one, other], 2)
    assert [axis.get_title() for axis in drawn.figure.axes] == [
        f"made-up\n8 of 20 tokens\n{one.summary.num_windows} windows",
        "a-run-of-a-name-that-is-\nlong\n1,006 of 2,012 tokens\n3,017 windows", "", "",
    ]  # fmt: skip
    words = str(drawn.figure.get_label())
    for of_one in (one.summary, summary):
        assert words.count(f"{measured_words(of_one)}. {data_words(of_one)}; {length_words(of_one.lengths)}") == 1
    first, second = drawn.finding.split("; a-run-of-a-name-that-is-long, 1,006 of 2,012 tokens, 3,017 windows: ")
    name = f"made-up, 8 of 20 tokens, {one.summary.num_windows} windows"
    assert first.startswith(f"k = 2. {name}: attention gains most over random, ")
    assert interval(one.summary.at("attention", "real", 2).gain_over_random_nats, 3) in first
    assert interval(summary.at("attention", "real", 2).gain_over_random_nats, 3) in second


def test_columns_of_one_name_are_told_apart(folders: dict[str, Path]) -> None:
    """By the definition of visible, such as those of one model under both, else by their numbers."""
    one = read(folders["failed"], "attention", "random")
    contextual = dataclasses.replace(one.summary.setup, visibility="contextual")
    other = dataclasses.replace(one, summary=dataclasses.replace(one.summary, setup=contextual))
    drawn = choices.draw_measured([one, other, other], 2)
    name = f"made-up\n8 of 20 tokens\n{one.summary.num_windows} windows"
    endings = ["hidden, no anchor", "contextual, no anchor\ncolumn 2", "contextual, no anchor\ncolumn 3"]
    assert [axis.get_title() for axis in drawn.figure.axes[:3]] == [f"{name}\n{ending}" for ending in endings]
    for ending in endings:
        of_column = f"{name}\n{ending}: ".replace("\n", ", ")
        assert of_column in drawn.finding
        assert f"{of_column}GATE FAILED" in drawn.figure.get_suptitle().replace("\n", " ")


def test_a_column_of_too_few_documents_for_intervals_of_d_says_so(folders: dict[str, Path]) -> None:
    one = read(folders["passed"], "attention", "random")
    few, enough = (
        dataclasses.replace(one, summary=dataclasses.replace(one.summary, run=run, num_documents=documents))
        for run, documents in (("few", 299), ("enough", 300))
    )
    words = str(choices.draw_measured([few, enough], 2).figure.get_label())
    windows = f"8 of 20 tokens, {one.summary.num_windows} windows"
    assert words.count("too few documents for an interval") == 1
    assert f"D(2) of few, {windows}: too few documents for an interval (299; it takes 300). " in words


@pytest.mark.parametrize("number", [1, 2, 4])
def test_the_legend_of_all_kinds_lies_within_the_figure(number: int, folders: dict[str, Path]) -> None:
    measured = [read(folders["passed"], "kl", "attention", "nearest", "random")] * number
    figure = choices.draw_measured(measured, 2).figure
    figure.canvas.draw()
    legend, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert len(figure.legends[0].get_texts()) == 5
    assert whole.x0 <= legend.x0 and legend.x1 <= whole.x1


def test_the_finding_names_the_best_and_those_with_a_gain(folders: dict[str, Path]) -> None:
    one = read(folders["passed"], "kl", "attention", "random", "nearest")
    gains = {name: one.summary.at(name, "real", 8).gain_over_random_nats for name in ("kl", "attention", "nearest")}
    best = max(gains, key=lambda name: gains[name].mean)  # type: ignore[union-attr]
    shown = [name for name, gain in gains.items() if gain and gain.low is not None and gain.low > 0]
    name = f"made-up, 8 of 20 tokens, {one.summary.num_windows} windows"
    words = f"k = 8. {name}: {best} gains most over random, {interval(gains[best], 3)} nats; "
    words += "a gain is shown for "
    listed = f" ({', '.join(name for name in ('kl', 'attention', 'nearest') if name in shown)})" if shown else ""
    assert choices.draw_measured([one], 8).finding == f"{words}{len(shown)} of 3{listed}"
    caption = str(choices.draw_measured([one], 8).figure.get_label())
    assert caption.startswith("What k = 8 tokens are worth that each selector chooses, none of which sees the target.")
    assert caption.index("Above: gain over as many random") < caption.index("Below: D(k)")


def test_every_selector_has_the_colour_of_what_it_chooses_from() -> None:
    expected = {
        GREEN: {"kl", "greedy-kl", "greedy-patching"},
        BLUE: {"attention", "h2o", "snapkv", "vatp", "key-norm", "quest", "magicpig", "h2o-heads", "quest-heads"},
        ORANGE: {"nearest", "same-token", "rarest", "bm25", "bm25-word", "sentence-start", "streaming-llm"},
        GREY: {"random"},
    }
    for color, names in expected.items():
        assert {name: choices.KINDS[choices._kind(name)] for name in names} == dict.fromkeys(names, color)


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize(
    ("needs", "color"),
    [
        (["keys"], BLUE),
        (["texts", "accumulated_attention"], BLUE),
        (["texts", "positions"], ORANGE),
        (["short_prediction"], GREEN),
        (["long_prediction", "texts"], GREEN),
        (["long_prediction", "keys"], BLUE),
    ],
)
def test_a_selector_of_ones_own_has_its_colour_also_where_tables_alone_name_it(needs: list[str], color: str) -> None:
    names_of([OwnSelector(lambda window: None, name="mine", needs=needs)])
    recorded = json.loads(json.dumps(own_entries(["mine"])))
    assert choices.KINDS[choices._kind("mine")] == color
    del SELECTORS["mine"]
    declare_recorded(recorded, where="manifest.json")
    assert choices.KINDS[choices._kind("mine")] == color


def test_gates_that_failed_stand_above_the_figure_and_the_gates_of_each_in_the_caption(
    folders: dict[str, Path],
) -> None:
    names = ("passed", "beyond failed", "failed", "passed")
    many = [read(folders[name], "attention", "random") for name in names]
    many = [
        dataclasses.replace(one, summary=dataclasses.replace(one.summary, run=run))
        for one, run in zip(many, ("a", "b", "c", "c"), strict=True)
    ]
    figure = choices.draw_measured(many, 2).figure
    lines = [f"{one.summary.run}, 8 of 20 tokens, {one.summary.num_windows} windows: " for one in many]
    assert figure.get_suptitle().splitlines() == [
        f"{lines[1]}GATE BEYOND THE TRAINING ROW FAILED",
        f"{lines[2].removesuffix(': ')}, column 3: GATE FAILED, GATE BEYOND THE TRAINING ROW FAILED",
    ]
    words = str(figure.get_label())
    places = [words.index(f"{one}: ") for one in ("GATE BEYOND THE TRAINING ROW FAILED", "GATE FAILED")]
    runs = [words.index(f"Run {name}; ") for name in "abc"]
    assert runs[1] < places[0] < runs[2] < places[1]
    assert words.count("Gate passed: ") == 3 and words.count("GATE FAILED: ") == 1
    assert choices.draw_measured([many[0]], 2).figure.get_suptitle() == ""


def test_the_warning_of_the_first_token_is_of_its_measurement(folders: dict[str, Path]) -> None:
    one, other = (read(folders[name], "attention", "random") for name in ("passed", "not applicable"))
    other = dataclasses.replace(other, summary=dataclasses.replace(other.summary, run="other"))
    figure = choices.draw_measured([other, one, other], 2).figure
    warning = anchor_warning(ModelSetup.from_manifest(CONTEXTUAL))
    assert warning.startswith("WARNING: ") and str(figure.get_label()).endswith(f" {warning}")
    shown = " ".join(figure.texts[-1].get_text().split())
    assert shown.endswith(" Columns 1, 3: WARNING: not of the better first token.")
    assert "WARNING" not in str(choices.draw_measured([one], 2).figure.get_label())


def test_a_selector_is_drawn_where_it_was_measured(folders: dict[str, Path]) -> None:
    """A costly selector on some of the windows, the others on all: two measurements, in columns of their own."""
    few, many = (
        read(folders["passed"], "kl", "nearest", "random"),
        read(folders["failed"], "attention", "nearest", "random"),
    )
    of_each = [(few, ["kl", "nearest"]), (many, ["attention", "nearest"])]
    gains = {
        (column, name): one.summary.at(name, "real", 2).gain_over_random_nats.mean  # type: ignore[union-attr]
        for column, (one, names) in enumerate(of_each)
        for name in names
    }
    drawn = choices.draw_measured([few, many], 2)
    order = [label.get_text() for label in drawn.figure.axes[0].get_yticklabels()]
    means = {name: np.mean([gain for (_, of), gain in gains.items() if of == name]) for _, name in gains} | {
        "random": 0
    }
    assert order == sorted(means, key=lambda name: means[name])
    for column, (one, names) in enumerate(of_each):
        above, below = drawn.figure.axes[column], drawn.figure.axes[2 + column]
        at = {place: value for place, (value, _) in dots(above, filled=True).items()}
        assert at == {order.index(name): gains[column, name] for name in names}
        for filled in (True, False):
            assert dots(below, filled=filled).keys() == {order.index(name) for name in [*names, "random"]}
        assert (
            f"a gain is shown for {sum(bool(_shown(one, name)) for name in names)} of 2"
            in drawn.finding.split("; made-up")[column]
        )
    words = str(drawn.figure.get_label())
    said = "Sorted by the mean gain over the columns where a selector was measured; without a dot it was not."
    assert said in words and said not in str(choices.draw_measured([few, few], 2).figure.get_label())


def _shown(measured: Measured, name: str) -> bool:
    gain = measured.summary.at(name, "real", 2).gain_over_random_nats
    return gain is not None and gain.is_above_zero


@pytest.mark.parametrize("others", [("random",), ("unmask-one", "random")])
def test_a_measurement_without_a_blind_selector_is_one_line(folders: dict[str, Path], others: tuple[str, ...]) -> None:
    lacking = read(folders["failed"], *others)
    with pytest.raises(UserError) as refused:
        choices.draw_measured([read(folders["passed"], "kl", "random", "unmask-one"), lacking], 2)
    assert str(refused.value) == (
        f"made-up, 8 of 20 tokens, {lacking.summary.num_windows} windows, column 2: no selector but random that does not see the "
        "target was measured; name one with --selector, such as kl"
    )


def test_what_cannot_be_drawn_is_one_line(folders: dict[str, Path]) -> None:
    one: Measured = read(folders["passed"], "kl", "random")
    name = f"made-up, 8 of 20 tokens, {one.summary.num_windows} windows"
    for measured, k, words in (
        ([one], 3, ": k = 3 was not measured, but 1, 2, 8; choose another --k"),
        (
            [one, read(folders["passed"], "kl")],
            2,
            ", column 2: random was not measured, and gains are over it; name it with --selector random",
        ),
    ):
        with pytest.raises(UserError) as refused:
            choices.draw_measured(measured, k)
        assert str(refused.value) == f"{name}{words}"
