"""The figure of a comparison: which numbers stand side by side, and what it says about the gates."""

from __future__ import annotations

import dataclasses
import shutil
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from drawn_figures import figures_of, mean, words_on
from made_up import made_up_tables
from matplotlib.figure import Figure

from analysis import compare, style
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import compare as comparison_of
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.wording.gates import SELECTION_ONLY

GAINS = ["long gain", "gain beyond the training row", "long gain, null context"]


@cache
def drawn(*runs: str) -> Figure:
    """Return the figure of these runs, which tests must not change."""
    (figure,) = figures_of(compare.draw([Path(run) for run in runs]))
    return figure


def labels_of(figure: Figure) -> list[str]:
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_the_smallest_and_the_largest_k_alike(folders: dict[str, Path]) -> None:
    """Blind selectors are shown by their gain over random, those that see the target by their corrected gain."""
    runs = [str(folders["passed"]), str(folders["beyond failed"])]
    figure = drawn(*runs)
    labels = labels_of(figure)
    numbers = {
        "unmask-one": "corrected gain",
        "kl": "gain over random",
        "attention": "gain over random",
    }
    selections = [f"{name}, k = {k}: {words}" for name, words in numbers.items() for k in (1, 8)]
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > len(labels) - 1 > 0 > top  # the first on top, none cut off
    assert labels[:3] == GAINS and sorted(labels[3:]) == sorted(selections)
    comparison = comparison_of(read_subjects(runs))
    first, second = comparison.subjects
    words = compare._words(dataclasses.replace(comparison, subjects=(first, dataclasses.replace(first, label="b"))))
    assert words.startswith(f"Both gates of all measurements passed. b minus {first.label}: ")
    without = dataclasses.replace(first, summary=dataclasses.replace(first.summary, beyond_gate="not-applicable"))
    words = compare._words(dataclasses.replace(comparison, subjects=(first, dataclasses.replace(without, label="b"))))
    assert words.startswith("Every gate that applies passed. b: The gate beyond the training row does not apply: ")
    words = compare._words(dataclasses.replace(comparison, subjects=(without, second)))
    assert (
        words.startswith(f"{second.label}: GATE BEYOND THE TRAINING ROW FAILED: ")
        and f" {first.label}: The gate beyond" in words
    )
    value_of = {
        (row.selector, row.k, row.words.removesuffix(", nats")): [mean(value) for value in row.values]
        for row in comparison.rows
        if not row.is_fraction
    }
    places = {
        line.get_xydata()[0].round(9).tolist()[0]: line for line in figure.axes[0].lines if len(line.get_xdata()) == 1
    }
    for name, words in numbers.items():
        for k in (1, 8):
            for value in value_of[name, k, words]:
                row = places[round(value, 9)].get_ydata()[0]
                assert labels[round(row)] == f"{name}, k = {k}: {words}"
    words = words_on(figure)
    assert "GATE BEYOND THE TRAINING ROW FAILED: " in words and SELECTION_ONLY in words
    assert "GATE FAILED" not in words and "Both gates" not in words
    assert " ".join(above(figure)) == f"{comparison.labels[1]}: GATE BEYOND THE TRAINING ROW FAILED"


@pytest.mark.parametrize(("number", "apart"), [(2, 0.2), (3, 0.2), (8, 0.1)])
def test_the_values_of_a_quantity_stand_around_its_label(number: int, apart: float) -> None:
    """The first measurement on top; a missing value leaves its place free. None of eight is nearer to another label."""
    figure, axis = plt.subplots()
    rows = [[Estimate(10.0 * row + i, 0.0, 99.0) for i in range(number)] for row in range(2)]
    rows.append([None, *rows[0][1:]])
    compare._panel(axis, rows, looks=style.RUN_LOOKS, unit="nats")
    drawn = {
        container.lines[0].get_xdata()[0]: container.lines[0].get_ydata()[0]
        for container in axis.containers[: 2 * number]
    }
    aside = [apart * (i - (number - 1) / 2) for i in range(number)]
    assert sum(aside) == pytest.approx(0) and aside[0] < 0
    assert drawn == pytest.approx({10.0 * row + i: row + aside[i] for row in range(2) for i in range(number)})
    of_last = [container.lines[0].get_ydata()[0] for container in axis.containers[2 * number :]]
    assert of_last == pytest.approx([2 + place for place in aside[1:]])
    plt.close(figure)


def above(figure: Figure) -> list[str]:
    """Return the lines above the figure."""
    return [] if figure._suptitle is None else figure._suptitle.get_text().split("\n")


def test_no_failure_is_cut_off(folders: dict[str, Path], tables: Path) -> None:
    """The two lines below the figure cannot hold the gates of several measurements; what is above it does."""
    names = ["failed", "beyond failed", "passed"]
    runs = [folders[name] for name in names]
    figure = drawn(*map(str, runs))
    words = " ".join(above(figure))
    assert words.count(": GATE FAILED, GATE BEYOND THE TRAINING ROW FAILED") == 1
    assert words.count(": GATE BEYOND THE TRAINING ROW FAILED") == 1
    assert not above(drawn(f"{tables}:kl", f"{tables}:attention"))


def test_a_fragile_fraction_is_marked_where_one_is_shown(tables: Path, tmp_path: Path) -> None:
    """A long gain of 2.4 standard errors passes the gate; its R(k) misses low."""
    fragile = made_up_tables(tmp_path / "fragile", num_documents=120, long_gain=0.11)
    robust, other = f"{tables}:kl", f"{fragile}:attention"
    figure = drawn(robust, other)
    assert above(figure)[0] == "made-up:attention: R(k) fragile"
    assert not [line for line in above(figure) if line.startswith("made-up:kl")]
    words = str(figure.get_label())
    assert words.startswith(
        "Both gates of all measurements passed. made-up:attention: R(k) is fragile: the long gain is 2.4 standard errors above 0"
    )
    assert words.count("is fragile") == words.count("misses low") == 1
    no_fractions = drawn(f"{tables}:mask-one", f"{fragile}:unmask-one")
    assert len(no_fractions.axes) == 2 and "fragile" not in words_on(no_fractions)


def test_a_selector_of_each_run(tables: Path) -> None:
    blind = drawn(f"{tables}:kl", f"{tables}:attention")
    mixed = drawn(f"{tables}:kl", f"{tables}:unmask-one")
    assert labels_of(blind)[3:] == [f"its selector, k = {k}: gain over random" for k in (1, 8)]
    assert sorted(labels_of(mixed)[3:]) == sorted(
        f"its selector, k = {k}: {words}" for k in (1, 8) for words in ("gain over random", "corrected gain")
    )
    assert "Both gates of all measurements passed." in words_on(blind)
    assert "unmask-one sees the target" in words_on(mixed)


def test_fractions_have_panels_of_their_own(folders: dict[str, Path], tables: Path) -> None:
    """R(k) of each measurement in its colour and row, where any gate passed, and the difference."""
    runs = [f"{tables}:kl", f"{tables}:attention"]
    rows = [row for row in comparison_of(read_subjects(runs)).rows if row.is_main and row.is_fraction]
    values, differences = drawn(*runs).axes[2:]
    assert values.get_xlabel() == differences.get_xlabel() == "fraction of the long gain"
    labels = [label.get_text() for label in values.get_yticklabels()]
    assert labels == [f"{row.selector}, k = {row.k}: {row.words}" for row in rows]
    for axis, of, first in ((values, "values", 0), (differences, "differences", 1)):
        points = {
            (round(line.get_xdata()[0], 9), round(line.get_ydata()[0]), line.get_color())
            for line in axis.lines
            if line.get_marker() in ("o", "s")  # the others are ends of intervals
        }
        assert points == {
            (round(mean(value), 9), place, style.RUN_LOOKS[first + number]["color"])
            for place, row in enumerate(rows)
            for number, value in enumerate(getattr(row, of))
        }
        assert len(points) == (4 if of == "values" else 2)
    assert len(drawn(*[str(folders["failed"])] * 2).axes) == 2


def test_without_a_difference_the_values_stand_alone(folders: dict[str, Path], tmp_path: Path) -> None:
    """Other tokens, and a gate that failed: neither nats nor fractions are compared."""
    runs = []
    for number, name in enumerate(("passed", "failed")):
        copy = Path(shutil.copytree(folders[name], tmp_path / name))
        hashes = dict.fromkeys(("tokens_sha256", "tokenizer_sha256"), str(number) * 64)
        write_manifest(copy, {**read_json(copy / "manifest.json"), **hashes})
        runs.append(str(copy))
    gains, no_gains, fractions, no_fractions = drawn(*runs).axes
    assert len(gains.containers) > 3 and len(fractions.containers) > 1
    for axis in (no_gains, no_fractions):
        assert not axis.containers
        assert [text.get_text() for text in axis.texts] == ["no difference of these is known"]
